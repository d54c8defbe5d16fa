"""The compiled core. Not public: the package's own modules use it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

# Exceptions: argument, shape -> ValueError; type -> TypeError; memory -> MemoryError; unsupported ->
# NotImplementedError; state, backend -> RuntimeError; comm -> CommunicationError; numeric -> FloatingPointError;
# cancelled -> Cancelled.
# Arrays of one batch: one, or a tuple with one for each input of the network, or for each target.
_Fields = NDArray[Any] | tuple[NDArray[Any], ...]
# A convolution, and its algorithms forward, of the weights and of the data.
_Choice = tuple[tuple[int, ...], tuple[str, str, str]]

class CommunicationError(RuntimeError): ...
class Cancelled(RuntimeError): ...

@final
class Graph:
    """Layers as nodes. Node numbers start at 0; the input is a node."""

    def input(self, shape: Sequence[int], name: str = "input", dtype: str = "float32") -> int: ...
    def layer(self, kind: str, name: str, inputs: Sequence[int], /, **options: Any) -> int:
        """Adds a layer; returns its node number. The options are those of the kind, under the names of Layer.options()."""
    def finish(self, *heads: int | tuple[int, bool]) -> None:
        """Names the heads and closes the graph: node numbers, the main one first, or (node, training_only)."""
    def shape(self, node: int, /) -> tuple[int, ...]: ...
    def nodes(self) -> list[dict[str, Any]]:
        """One dict a node: name, kind, inputs, shape, parameters (count), macs."""
    def set_factors(self, node: int, lr: tuple[float, float], weight_decay: tuple[float, float], /) -> None:
        """What multiplies the optimiser's, of the layer's weights and of its biases; before finish."""
    def parameters(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and role of each tensor; roles: weight bias scale shift statistic."""
    def compressed(self, options: dict[str, Any], /) -> dict[str, tuple[str, int]]:
        """The tensors that a compression's options compress, by name: family of the layer and elements of a bin."""
    def units(self) -> list[dict[str, Any]]:
        """One dict a group of units that leave together: layers (that produce them), readers, units (count), rule.

        fixed: why none of them can leave, "": they can; single: why they are not compared by their weights.
        """
    def same_layout(self, other: Graph, /) -> bool:
        """Whether nodes, shapes, parameters, factors and heads are the same. Both are finished."""
    def initial_weights(self, seed: int, /) -> dict[str, NDArray[np.float32]]: ...

@final
class Team:
    """A group of ranks. kind: single, mpi, virtual."""

    def __new__(
        cls,
        kind: str,
        *,
        size: int = 1,
        fortran_handle: int | None = None,
        launched: int = 0,
        latency: float = 0.0,
        bandwidth: float = 0.0,
        compute_rate: float = 1.0,
        timeout: float = 0.0,
    ) -> Team: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int:
        """This process's rank; 0 for a virtual cluster."""
    @property
    def local(self) -> int:
        """Ranks in this process: size for a virtual cluster, else 1."""
    timeout: float
    no_collectives: bool
    """Set while this process is in a callback that other ranks may have at another step, or not at all: what is
    collective then raises RuntimeError, here and in trainers of this team."""
    def check_collectives(self) -> None:
        """RuntimeError where collective calls are forbidden (no_collectives)."""
    def barrier(self) -> None: ...
    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """MPI and single only do something; a virtual cluster returns data."""
    def allgather(self, data: bytes, /) -> list[bytes]: ...
    def agree(self, data: bytes, timeout: float = 0.0) -> list[bytes]:
        """The same of bytes of one length on all ranks: uncounted, and never mixed up with another call's messages.

        timeout: where it is above 0 and shorter than the team's, in place of that."""
    def halt_begin(self, step: int, /) -> None:
        """Before steps after which any process may want all to stop; `step` have been made. Between processes alone.

        Collective, and so is something else before the first of them calls halt_until."""
    def halt_end(self) -> None:
        """There are no more such steps; what other processes tell is dropped."""
    def halt_until(self, step: int, next: int, want: bool, /) -> int:
        """Up to which step this process trains, which has made `step` and wants to train to `next`.

        want: it wants all to stop. `next` as long as none does; then less or the same; `step`: all stop after it. Waits
        only where one wants to, and for no longer than the others need to come here, or to a wait of their own."""
    def messages(
        self, sends: Sequence[Sequence[tuple[int, Any]]], receives: Sequence[Sequence[tuple[int, Any]]]
    ) -> None:
        """One round of messages: of each local rank those that it sends and receives, as (peer, contiguous buffer).

        Every message is listed by both sides, with the same bytes; none goes to its own rank."""
    def counts(self) -> tuple[int, int, float]:
        """Bytes and messages sent by ranks of this process, and the latest of their clocks in seconds."""
    def clocks(self) -> list[tuple[float, float, float]]:
        """Of each rank of a virtual cluster its clock, and when its outgoing and its incoming link are idle again; else
        []."""
    def set_clocks(self, clocks: list[tuple[float, float, float]], /) -> None:
        """What clocks gave. Nothing may be in flight."""
    def nodes(self, ranks_per_node: int = 0) -> tuple[int, int]:
        """How many nodes of how many ranks hierarchical gossip makes; 0: of the ranks that share memory."""
    def gather(self, data: bytes, /) -> list[bytes] | None:
        """Every process's bytes, of any length, on rank 0; None on the others."""

@final
class Dataset:
    """A set: arrays, without a copy of C-contiguous ones, and what a source reads.

    samples, targets: a field, or a list of fields, one for each input and each target; targets None: only to predict.
    A field is an array (n, ...), or a dict with "array", or "shape" and "dtype" where the source reads it; of inputs
    also "scale" and "shift", a float, float32 (channels,) or one of the shape of a sample, and "tokens", true where the
    numbers stay what they are; "classes", how many values integers have (0: any), and "ignored", one more that is allowed.
    Inputs are uint8, int32 or float32, targets int32 or float32.
    scale, shift: of the first input. sample_weights: (n,) float32, what the loss of each sample counts; None: 1.
    rows: (n,) uint32, the place of each in the inputs, whose number then is free, and in the source; None: in their
    order. Targets and weights are in the order of the set, but for targets that the source reads.
    source: has __len__, read(rows, epoch, samples, targets), and ordered, readers, ahead: gossipgrad.data.Source.
    streams: each sample goes on where the one before it ends.
    """

    def __init__(
        self,
        samples: Any,
        targets: Any = None,
        scale: float | NDArray[np.float32] | None = None,
        shift: float | NDArray[np.float32] | None = None,
        sample_weights: NDArray[np.float32] | None = None,
        rows: NDArray[np.uint32] | None = None,
        source: Any = None,
        streams: bool = False,
    ) -> None: ...
    def __len__(self) -> int: ...

@final
class ShrinkPlan:
    """What would leave a network, and what that changes: of Trainer.plan_shrink. The same on all ranks."""

    @property
    def accepted(self) -> bool:
        """Whether something leaves, and the loss on the probe allows it."""
    @property
    def left(self) -> dict[str, list[int]]:
        """Of each layer of which units leave, the first of a group's: which of its outputs, ascending."""
    @property
    def outputs(self) -> dict[str, int | tuple[int, int]]:
        """Of each layer that becomes smaller: how many outputs it has then.

        Of attention its heads; of a Pad its zeros before and behind, of a Slice its begin and end.
        """
    @property
    def bound(self) -> dict[str, float]:
        """Of each layer that may shrink, the first of a group's: the sum of the bounds of the units that leave."""
    @property
    def share(self) -> dict[str, float]:
        """The same, as the share that a budget limits."""
    @property
    def loss_before(self) -> float | None:
        """On the probe, all heads together; None: there is none, or nothing leaves."""
    @property
    def loss_after(self) -> float | None: ...
    @property
    def parameters(self) -> int:
        """Numbers that the smaller network trains."""
    @property
    def hash(self) -> int:
        """Of what leaves and into what, the same on all ranks."""

@final
class Trainer:
    """The ranks of this process, each with its plan, state, strategy and loader."""

    def __new__(
        cls,
        graph: Graph,
        team: Team,
        *,
        loss: str  # cross_entropy binary_cross_entropy mean_squared_error
        | list[str | dict[str, Any]],  # one a head: loss weight target label_smoothing ignore_index class_weight
        optimizer: dict[
            str, Any
        ],  # name schedule, and options as describe() has them: schedule{kind final gamma power warmup_start every total warmup, first values of kind table}
        strategy: dict[str, Any],  # name topology, and options as describe() has them
        # compression{bin_size factor mode values dense dense_below warmup selection packs}; packs: names of the
        # parameters that may be compressed, in place of dense_below, as by the sizes that a network began with
        seed: int = 0,
        threads: int = 1,
        backend: str | None = None,  # None: $GOSSIPGRAD_BACKEND, else each operation from the faster table
        trace: int = 0,  # spans stored by a rank; 0: off
        straggler: tuple[float, float, int] = ...,  # probability, delay in seconds, seed
        compute_time: Sequence[float]
        | None = None,  # virtual seconds of a step, one a rank of the group; None: of its flops
        conv_algorithm: str = "auto",  # "direct", "winograd"
        dtype: str = "float32",  # "bfloat16"
        device: str = "cpu",  # as find_device has them
        fast: bool = False,  # products and algorithms of a GPU
        graphs: bool = True,  # where the device captures work
        costs: str | None = None,  # the kind of CPU whose cost model chooses, as info() has it; None: this one
    ) -> Trainer: ...
    @property
    def backend(self) -> str:
        """ "onednn", "native", or "onednn+native" where each operation comes from the faster table."""
    @property
    def exchange(self) -> Exchange:
        """The state of the ranks and what exchanges it, whose steps this trainer makes. It outlives the trainer."""
    @property
    def graph(self) -> Graph:
        """What is trained: as given, or what a change of the network has made of it."""
    @property
    def isa(self) -> str: ...
    def node_backends(self) -> list[str]: ...
    def convolutions(self, batch: int, training: bool, first: str | None = None, /) -> list[tuple[int, ...]]:
        """Those of a training step or an evaluation that have several algorithms, each once, the most expensive first:
        batch, channels, height, width, filters, two paddings, bias, ReLU, window. first: the table that is asked first;
        None: as set_algorithms and the cost model have it."""
    def measure_algorithms(
        self, batch: int, training: bool, wanted: list[tuple[int, ...]], seconds: float, first: str | None = None, /
    ) -> list[tuple[tuple[int, ...], str, str, float]]:
        """Seconds of each candidate, as (convolution, pass, algorithm, seconds), of these convolutions; without those
        for which `seconds` do not suffice. Without training: of the pass forward alone. first: as of convolutions."""
    def measure_tables(
        self, batch: int, seconds: float, of_onednn: list[_Choice] = ..., of_native: list[_Choice] = ..., /
    ) -> tuple[dict[str, float], str]:
        """Seconds of a training step with each table asked first; none where there is no choice, or where time (so many
        seconds) or memory do not suffice: then the text says so. Between steps. of_onednn, of_native: the algorithms of
        convolutions where oneDNN's table is first, and where the native one is, both or neither; in place of those that
        are set."""
    def measure_step(self, batch: int, /) -> float:
        """Seconds of a training step on a CPU; between steps. No weight changes."""
    def set_algorithms(
        self,
        choices: list[_Choice],
        tables: list[tuple[int, str]] = ...,
        /,
    ) -> None:
        """Those of forward, weights and data of these convolutions, and which table is asked first for these batch
        sizes, on the local ranks; between steps. In place of those given before."""
    def node_algorithms(self) -> list[dict[str, tuple[str, str]] | None]:
        """Of each node that is a convolution {pass: (table, algorithm)}, else None; after the first step."""
    def graphs(self) -> dict[str, Any] | None:
        """How the last training step was given to a device that captures work: "pieces", those "replayed", and why nothing
        is captured ("failure", or None). None: it does not capture, or before the first step."""
    def partitioned_fc(self) -> list[str]: ...
    def compressed_families(self) -> list[str]: ...
    def bytes(self) -> int: ...
    # training
    def begin(
        self,
        dataset: Dataset | list[Dataset],
        batch: int,
        shuffle: bool = True,
        shard: str = "interleaved",
        drop_last: bool = False,
    ) -> int:
        """Makes the loaders and plans; returns the steps of an epoch.

        A list: the own part of each local rank, instead of one set that all ranks have. shard: interleaved contiguous.
        """
    def epoch(self, epoch: int, step: int = 0, begun: int = 0, done: list[int] | None = None) -> None:
        """Starts epoch `epoch` (from 0), or goes on with its step `step`, 0 to its steps.

        done: samples of each rank that trains which the steps before `begun` have read, in batches of other sizes.

        Orders the samples, those that are shuffled among the ranks included; zeroes the sums, and the state that layers
        carry. The steps from `step` on read what they read in an epoch that was not interrupted.
        """
    def position(self) -> dict[str, Any]:
        """What epoch() is given to go on here, and "steps": those of this epoch."""
    def counts(self) -> list[dict[str, Any]]:
        """Of each local rank since the epoch began: what an epoch's sums are made of. At rest, for checkpoints."""
    def set_counts(self, counts: list[dict[str, Any]], /) -> None: ...
    def run(self, steps: int, watch: Callable[[], object] | None = None) -> int:
        """Runs up to `steps` more steps of the epoch; returns the steps of the epoch done so far. Releases the GIL.

        watch: in a virtual cluster called a few times a second; after an exception from it, or a signal, the ranks end the
        step under way, all the same one, and it is raised.
        """
    def progress(self) -> dict[str, float]:
        """Of this process's ranks since `epoch`: samples, loss and accuracy (so far), seconds, steps (of the slowest)."""
    def end_epoch(self) -> dict[str, Any]:
        """Collective. Settles; sums over ranks and means over ranks of design.md's epoch record, without validation."""
    def train_step(self, samples: list[_Fields], targets: list[_Fields]) -> list[float]:
        """One step, one batch a local rank (float32 or int32, plain layout); each rank's mean loss."""
    def reset_carried(self) -> None:
        """State that layers carry from batch to batch becomes zero."""
    def audit_samples(self) -> dict[str, int | None]:
        """Collective. Settles. samples, missing, duplicate, altered; first_...: an id, or None."""
    def sample_ids(self, rank: int = 0) -> NDArray[np.int32]:
        """Which sample each slot of a local rank holds. Settles."""
    # evaluation. Collective; replica: every rank's own weights on the whole set, one result a rank of the group;
    # else the consensus model, the set split over the ranks, one result.
    # A list of sets: the own part of each local rank, one result over all of them.
    def evaluate(self, dataset: Dataset | list[Dataset], batch: int, replica: bool = False) -> list[dict[str, Any]]:
        """loss and accuracy of the main head; with several that are evaluated `heads`: each one's by its number."""
    def predict(self, dataset: Dataset, batch: int) -> list[NDArray[np.float32]]:
        """By the consensus model, all on every rank of MPI: an array for each head that is evaluated."""
    # state, at rest
    def reshape(self, *, strategy: dict[str, Any] = ..., batch: int = ...) -> None:
        """Completes what is in flight, and goes on with the next batch of the same epoch. Collective.

        strategy: as in Trainer(); left out: as it is, in new arenas. Weights, moments, residues, statistics and the
        state that layers carry are each rank's as before; what the old strategy had no arena for begins at zero. The
        sums of the epoch and the trace go on.

        batch: samples a rank and step from here on. In the middle of an epoch it goes on with the samples that have not
        been read in it, each once; position() says how many steps it then has. Alone it leaves the strategy as it is.

        ValueError, and nothing has changed, for options that a strategy refuses, a batch that is larger than the shards,
        and in the middle of an epoch where other ranks would train or shuffle_samples would change.
        """
    def plan_shrink(
        self,
        budgets: dict[str, float],
        *,
        least: int | dict[str, int] = 1,
        probe: Dataset | None = None,
        batch: int = 64,
        epsilon: float = 0.0,
    ) -> ShrinkPlan:
        """Completes what is in flight, and finds the units of the consensus model that may leave. Collective.

        budgets: 0 to 1 by layers of Graph.units(); others do not shrink. Where several layers of one group are named
        the smallest counts. least: units that stay in each group, or by layers, others 1. probe: the same set on all
        ranks, evaluated `batch` samples at a time; accepted where loss_after <= loss_before + epsilon * |loss_before|.
        ValueError for a layer that cannot shrink, with the reason; FloatingPointError on all ranks where weights are
        not finite.
        """
    def apply_shrink(self, plan: ShrinkPlan, graph: Graph, /) -> None:
        """Goes on with the smaller network, accepted or not. graph: of the plan's sizes. Collective.

        Weights and residues are folded and selected, moments and carried state selected; the epoch goes on.
        RuntimeError on all ranks, and nothing has changed, where their plans differ or are of another step; ValueError
        likewise where nothing leaves, or the graph has other sizes.
        """
    def restore_graph(self, graph: Graph, /) -> None:
        """Goes on with a network of other sizes between the same inputs and outputs. Collective.

        All arenas and carried state are zero afterwards: load them. The number of steps stays.
        """
    def carried(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """State that layers carry from batch to batch: rows by the layers' names."""
    def load_carried(self, arrays: dict[str, NDArray[np.float32]], rank: int, /) -> None:
        """Sets what carried() gave; {}: to zero."""
    # measurement
    def bench(self, samples: _Fields, targets: _Fields, warmup: int, steps: int) -> list[float]:
        """Seconds of each of `steps` training steps on one batch in memory."""
    def profile(self) -> dict[str, Any]:
        """The operations of a training step, in their order, after the first one: {"operations": [...],
        "loss_seconds"}. Of each {"nodes", "operation", "input", "output" (layouts), "passes"}: by the name of the pass
        {"backend", "algorithm", "products", "seconds", "bytes", "with_update"}; products: how often as many as forward
        has, 2 where "data" computes the gradients of "weights" too. Seconds are summed since set_timing(True); bytes
        are those of its operands, each moved once. with_update: the update computed the gradient of this weight in the
        last step, so seconds are of the bias alone."""
    def set_timing(self, on: bool, /) -> None: ...

@final
class Exchange:
    """Arrays of a caller, and what trains and exchanges them: of each rank of this process.

    `rank` is a local rank. In a virtual cluster the calls of one rank are made by the function that `run` runs, on the
    rank's thread; elsewhere by any one thread at a time. Where rank may be None, the call acts for all local ranks,
    outside of `run`. RuntimeError for a call at the wrong time or on the wrong thread, which changes nothing. A
    trainer's exchange has its state; the calls of a step, and weights and gradients, are the trainer's alone there.
    """

    def __new__(
        cls,
        team: Team,
        layers: Sequence[tuple[str, Sequence[tuple[Any, ...]]]],  # lists
        # in the order of the forward pass: (name, parameters); a parameter: name, shape of at most 5 axes,
        # role: weight bias scale shift statistic, family: other conv linear recurrent, factors of lr and weight decay,
        # and, where it is not 1, of the momentum
        *,
        optimizer: dict[str, Any],  # as for Trainer
        strategy: dict[str, Any],  # as for Trainer
        seed: int = 0,
        threads: int = 1,
        trace: int = 0,  # spans stored by a rank; 0: off
        compute_time: Sequence[float] | None = None,  # virtual seconds of a step, one a rank of the group
    ) -> Exchange: ...

    # a step of a rank
    def begin(self, rank: int, batches: Sequence[int] | None = None, /) -> None:
        """batches: the samples of every rank of the group in this step; None: all weigh alike."""
    def need(self, rank: int, layer: int, /) -> None: ...
    def ready(self, rank: int, layer: int, addresses: list[int] | None = None, /) -> None:
        """In any order of the layers, once each. addresses: of each parameter of the layer, where the gradient of a
        large one lies as far as this call, and 0 for those in the arena."""
    def poll(self, rank: int, /) -> None: ...
    def zero_gradients(self, rank: int, /) -> None:
        """Those of all parameters but the large ones. From end to the first ready."""
    def large(self) -> list[str]:
        """Parameters whose gradients may lie elsewhere than in the arena."""
    def end(self, rank: int, /) -> None: ...
    def wait(self, rank: int | None = None, /) -> None:
        """Between end and begin: until all weights are current, as need does in the next step."""
    def current_at_end(self) -> bool:
        """Whether weights may be written between end and begin without wait: nothing arrives in them any more."""
    def under_way(self, rank: int, half: bool = False, /) -> bool:
        """Whether a step has begun and not ended; half: and a layer is ready in it."""
    def whole_step(self, rank: int | None = None, batches: Sequence[int] | None = None, check: bool = True) -> None:
        """begin, need and ready of all layers, end and wait.

        check: FloatingPointError, before anything is done, where a gradient has a NaN or an infinity.
        """
    def run(self, function: Callable[[int], object], /) -> None:
        """Calls function(rank) on every local rank: in a virtual cluster on the rank's thread, of which one runs at a
        time, and another only where it waits; else here. Raises what the function raises."""

    # state. Collective, but for weights and gradients
    def weights(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """Arrays that share the rank's memory and hold the object alive; current from need to ready, after wait and
        settle."""
    def gradients(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """The same; to be written from end to ready."""
    def settle(self, rank: int | None = None, /) -> None:
        """Completes what is in flight; a step in which no layer is ready is left as if it had not begun."""
    @property
    def step(self) -> int: ...
    @step.setter
    def step(self, value: int) -> None: ...
    @property
    def moments_since(self) -> int:
        """The step in which the optimiser's moments were zero: Adam counts its updates from there."""
    @moments_since.setter
    def moments_since(self, value: int) -> None: ...
    @property
    def push_sum_since(self) -> int:
        """The step before which all ranks' scalars of push-sum are 1."""
    @push_sum_since.setter
    def push_sum_since(self, value: int) -> None: ...
    @property
    def workers(self) -> int: ...
    def arenas(self) -> dict[str, str]:
        """What a rank trains with: "weight", "gradient", "moment" (the optimiser's), "residue" or "copy" (compression's),
        "outer" or "outer moment" (of outer steps)."""
    def check_arena(self, name: str, /) -> None:
        """RuntimeError for the gradients where the last step's sum was applied in pieces: the arena does not have it."""
    def arena(self, name: str, rank: int = 0) -> dict[str, NDArray[np.float32]]:
        """Copies, by the parameters' names; `rank` counts the local ranks."""
    def load_arena(self, name: str, arrays: dict[str, NDArray[np.float32]], rank: int | None = None) -> None:
        """None: every local rank. All names and shapes must fit."""
    def resume_arena(
        self,
        name: str,
        arrays: list[dict[str, NDArray[np.float32]]],
        consensus: dict[str, NDArray[np.float32]] | None,
        trained: int,
        /,
    ) -> None:
        """arrays: one dict a local rank, of settled ones. Where the strategy gives all ranks the same weights and
        moments, and these differ among the ranks, all load `consensus`, or where that is None the mean over the
        first `trained` ranks. Collective."""
    def consensus_weights(self) -> dict[str, NDArray[np.float32]]: ...
    def adopt_consensus(self) -> None:
        """All replicas become the consensus model, statistics included; moments stay each rank's. Collective."""
    def load_consensus(self, weights: dict[str, NDArray[np.float32]], /) -> None:
        """Sets the strategy's own model, where it has one (a centre)."""
    def consensus_distance(self) -> float: ...
    def set_schedule(self, schedule: dict[str, Any], /) -> None:
        """The learning rates of the steps from here on, at rest: schedule{kind ...} as in the optimizer's options."""
    def tuning(self) -> dict[str, float | None]:
        """docs/report.md's "tuning"; empty for strategies without buckets, or whose sizes are not tuned."""
    def counts(self, rank: int = 0, /) -> dict[str, float]:
        """Since creation: exposed_seconds, bytes_sent, messages_sent, skipped; clock_seconds; residue."""
    def spans(self, rank: int = 0, /) -> list[tuple[float, float, str, int, int, int, int, int, float, int]]:
        """begin, end, name, step, lane, index, last, peer, arrived, bytes: gg_trace_span, on rank 0's clock."""
    def spans_lost(self, rank: int = 0, /) -> int:
        """How many newer ones have overwritten."""

def info() -> dict[str, Any]:
    """compiler, cpu, isa, isas, bfloat16 (the CPU's instructions for it: "amx", "avx512_bf16" or ""), bfloat16_is_fast, paired
    (whether products of float32 are), cores, onednn, mpi{...}, built{...}"""

def cuda() -> tuple[int, str, str]:
    """How many GPUs can be used; why there are none, else ""; lines "name: value" on them, the driver and the libraries."""

def choices() -> dict[str, tuple[str, ...]]:
    """The names that the core knows, by keyword: "strategy", "exchange", "mix", ..."""

def describe(kind: Literal["optimizer", "strategy"], /) -> dict[str, dict[str, dict[str, Any]]]:
    """Options of each optimizer or strategy, by name: "type", "default", "bounds", "help", "unset" (the meaning of None), "names"."""

def find_device(name: str, /) -> tuple[str, int]:
    """The kind and the number of a device; ValueError says which there are."""

def memory() -> tuple[int, int]:
    """Live bytes of the core, allocations ever made."""

def abort(code: int, /) -> None:
    """Ends all ranks of the MPI world."""

def note_exit(code: int, /) -> None:
    """This process will end with this code, also where MPI is finalised before."""

def first_to_report() -> bool:
    """Has no rank of this job on this host reported a failure yet? True once, and where nobody can know."""

def mpi_start(launched: int = 0) -> None: ...
def report_stalls(
    seconds: float,
    report: Callable[[int, int, int, int, str | None, str | None, str | None, float, bool], float] | None,
) -> None:
    """From now on a wait between ranks that lasts so many seconds is reported: report(rank, size of the group, peer or
    -1, step or -1, first layer, last layer, a place in MPI, seconds, whether it is over) returns the seconds until the
    next report, 0 for never. seconds 0 or report None: none is."""

def shard(count: int, rank: int, size: int, seed: int = 0, contiguous: bool = False) -> NDArray[np.int32]:
    """Which samples a rank has, in their order."""

def partners(
    topology: str | NDArray[np.int64],
    size: int,
    step: int,
    rank: int,
    rotate: bool = True,
    seed: int = 0,
    permutations: int = 0,  # that take turns; 0: a new one after each cycle
) -> tuple[int, int]:
    """(send to, receive from); -1: nobody. Where several send to `rank`: the lowest."""

def schedule(
    topology: str | NDArray[np.int64], size: int, rotate: bool = True, seed: int = 0, permutations: int = 0
) -> dict[str, Any]:
    """stages: steps of a cycle; diffusion_steps: after so many what any rank knew is everywhere, None: never.

    meeting_steps: after so many every rank has itself sent to every other, None: never, or not within 2^24 messages.
    """

def groups(size: int, most: int, turn: int, seed: int = 0) -> list[tuple[int, ...]]:
    """The groups of at most `most` of `size` ranks in a turn, as NoLoCo draws them; the last one may be smaller."""

def push_sum_scalar(
    topology: str | NDArray[np.int64],
    size: int,
    step: int,
    rank: int,
    rotate: bool = True,
    seed: int = 0,
    permutations: int = 0,
) -> float:
    """The push-sum scalar of `rank` before `step`: 1 before step 0, the sum over the ranks always `size`."""

def permutation(seed: int, purpose: str, n: int) -> NDArray[np.uint32]:
    """0 to n - 1 in an order drawn by seed and purpose: split order validation probe."""

def random_uniform(seed: int, purpose: int, rank: int, step: int, n: int) -> NDArray[np.float32]: ...
def rate(schedule: dict[str, Any], step: int) -> float: ...
