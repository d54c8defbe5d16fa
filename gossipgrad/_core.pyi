"""The compiled core. Not public: the package's own modules use it."""

import builtins
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

class PeerError(CommunicationError):
    """A rank that the call needs has died, and the others may go on."""

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
        """Factors of the optimiser's learning rate and decay, for the layer's weights and biases; before finish."""
    def parameters(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and role of each tensor; roles: weight bias scale shift statistic."""
    def compressed(self, options: dict[str, Any], /) -> dict[str, tuple[str, int]]:
        """The tensors that a compression's options compress, by name: family of the layer and elements of a bin."""
    def units(self) -> list[dict[str, Any]]:
        """One dict a group of units that leave together: layers (that produce them), readers, units (count), rule.

        fixed: reason why none of them can leave, "": they can; single: reason why their weights are not compared.
        """
    def same_layout(self, other: Graph, /) -> bool:
        """True if nodes, shapes, parameters, factors and heads are equal. Both must be finished."""
    def initial_weights(self, seed: int, /) -> dict[str, NDArray[np.float32]]: ...

@final
class ViewKeeper:
    """Membership of processes of this host, in memory that they share.

    memory: a descriptor, sized here. members: ranks at first, of at most `most`. least: the job ends if fewer live.
    """

    def __new__(cls, memory: int, members: int, most: int, least: int) -> ViewKeeper: ...
    def died(self, identity: int, /) -> None:
        """A rank has been reaped: it writes no more."""
    def trains(self, identity: int, /) -> bool:
        """A rank trains: if it ends now, whatever its exit code, it has died."""
    def poll(self) -> str:
        """Reads what the ranks have told; returns the phase: run, stopping, goal or ended."""
    def rests(self) -> bool:
        """No view changes, all members have their state, and no newcomer waits: there is nothing to poll for."""
    def view(self) -> dict[str, Any]:
        """The current view: its number ("view"), step and ranks."""
    def restore(self, published: bytes, /) -> None:
        """Go on from what another keeper has published last (ViewPages.published). Of a keeper just made."""

@final
class ViewPages:
    """One host's copy of what ranks and their keeper tell each other. memory: a descriptor, sized here."""

    def __new__(cls, memory: int, most: int) -> ViewPages: ...
    def told(self, identity: int, /) -> bytes:
        """What a rank has told."""
    def tell(self, identity: int, told: bytes, /) -> None:
        """Take what a rank has told elsewhere; older words than those here change nothing."""
    def freeze(self, identity: int, /) -> None:
        """Hear no more votes of this rank."""
    def trains(self, identity: int, /) -> bool:
        """As ViewKeeper.trains."""
    def published(self) -> bytes:
        """What the keeper has published last."""
    def publish(self, published: bytes, /) -> None: ...
    def view(self) -> dict[str, Any]:
        """As ViewKeeper.view; no ranks before the first publish."""

@final
class Team:
    """A group of ranks. kind: single, mpi, net, virtual."""

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
        deaths: list[tuple[int, int, int]] | None = None,
        detect: float = 0.0,
        survives: bool = False,
        joins: list[int] | None = None,
    ) -> Team:
        """survives: of a net whose ranks may die (net_start): the caller goes on without them. Otherwise a call that
        waits for more than a second raises PeerError when one has died.

        deaths: of virtual ranks: rank, step, messages sent in it before. detect: seconds until the others know.
        joins: the step from which each newcomer, a virtual rank beyond `size`, is ready; ascending.
        """
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
    @property
    def survives(self) -> bool:
        """Ranks may die, and the others go on."""
    @property
    def newcomer(self) -> bool:
        """A rank that was started later, and has not joined: alone in the group."""
    @property
    def outdated(self) -> bool:
        """The ranks have changed while another group trained."""
    @property
    def changing(self) -> bool:
        """This group has not trained, and a change of the ranks has begun."""
    @property
    def goal(self) -> int | None:
        """After change_view: the step to which the others train before a death changes the view, if not made here."""
    def await_member(self, seconds: float, /) -> bool:
        """This newcomer is ready: True if a view with it has come within these seconds."""
    def train(self, trains: bool, /) -> None:
        """This process's ranks train, or do so no more: ranks that end meanwhile have died."""
    def decide(self, done: bool, /) -> bool:
        """After a collective call that a death may break: True if all ranks have completed it. Collective."""
    timeout: float
    no_collectives: bool
    """Set while this process is in a callback that other ranks may have at another step, or not at all: what is
    collective then raises RuntimeError, here and in trainers of this team."""
    def check_collectives(self) -> None:
        """RuntimeError if collective calls are forbidden (no_collectives)."""
    def barrier(self) -> None: ...
    def broadcast(self, data: bytes, root: int = 0) -> bytes:
        """Broadcast under MPI and for single; a virtual cluster returns data."""
    def allgather(self, data: bytes, /) -> list[bytes]: ...
    def agree(self, data: bytes, timeout: float = 0.0) -> list[bytes]:
        """allgather for bytes of one length on all ranks: uncounted, and never mixed up with another call's messages.

        timeout: replaces the team's if it is above 0 and shorter.
        """
    def halt_begin(self, step: int, /) -> None:
        """Call before steps after which any process may want all to stop; `step` steps are done. Between processes
        alone.

        Collective. Another collective call must precede the first halt_until.
        """
    def halt_end(self) -> None:
        """End such steps; later requests of other processes are dropped."""
    def halt_until(self, step: int, next: int, want: bool, /) -> int:
        """The step to which this process trains; it has made `step` and wants to train to `next`.

        want: it wants all to stop. Returns `next` as long as no process wants to stop, otherwise at most that; `step`:
        all stop after it. Waits only if a process wants to stop, until the others come here, or to a wait of their own.
        """
    def messages(
        self, sends: Sequence[Sequence[tuple[int, Any]]], receives: Sequence[Sequence[tuple[int, Any]]]
    ) -> None:
        """One round of messages: the sends and receives of each local rank, as (peer, contiguous buffer).

        Every message is listed by both sides, with the same bytes; none goes to its own rank.
        """
    def counts(self) -> tuple[int, int, float]:
        """Bytes and messages sent by ranks of this process, and the latest of their clocks in seconds."""
    def clocks(self) -> list[tuple[float, float, float]]:
        """For each rank of a virtual cluster its clock, and the times when its outgoing and its incoming link are idle
        again; else [].
        """
    def set_clocks(self, clocks: list[tuple[float, float, float]], /) -> None:
        """Restore the result of clocks. Nothing may be in flight."""
    def nodes(self, ranks_per_node: int = 0) -> tuple[int, int]:
        """(number of nodes, ranks of each) for hierarchical gossip; 0: nodes of the ranks that share memory."""
    def gather(self, data: bytes, /) -> list[bytes] | None:
        """Every process's bytes, of any length, on rank 0; None on the others."""

@final
class Dataset:
    """A set: arrays, C-contiguous ones without a copy, and fields that a source reads.

    samples, targets: a field, or a list of fields, one for each input and each target; targets None: only to predict.
    A field is an array (n, ...), or a dict with "array", or "shape" and "dtype" if the source reads it. Inputs also
    have "scale" and "shift", a float, float32 (channels,) or one of the shape of a sample, and "tokens", true if the
    numbers are used as they are; "classes", the number of values of integers (0: any), and "ignored", one more allowed
    value. Inputs are uint8, int32 or float32, targets int32 or float32.
    scale, shift: of the first input. sample_weights: (n,) float32, factors of the samples' losses; None: 1.
    rows: (n,) uint32, the place of each sample in the inputs, which may have any length, and in the source; None: in
    their order. Targets and weights are in the order of the set, except targets that the source reads.
    source: has __len__, read(rows, epoch, samples, targets), and ordered, readers, ahead: gossipgrad.data.Source.
    streams: each sample continues the one before it.
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
    """Units that would leave a network, and the effects: from Trainer.plan_shrink. Equal on all ranks."""

    @property
    def accepted(self) -> bool:
        """True if units leave, and the loss on the probe allows it."""
    @property
    def left(self) -> dict[str, list[int]]:
        """Leaving outputs, ascending, of each layer that loses units, by the first layer of a group."""
    @property
    def outputs(self) -> dict[str, int | tuple[int, int]]:
        """The new number of outputs of each layer that becomes smaller.

        For attention its heads; for a Pad its zeros before and after, for a Slice its begin and end.
        """
    @property
    def bound(self) -> dict[str, float]:
        """For each layer that may shrink, the first of a group: the sum of the bounds of the leaving units."""
    @property
    def share(self) -> dict[str, float]:
        """That sum, as the share that a budget limits."""
    @property
    def loss_before(self) -> float | None:
        """On the probe, all heads together; None: there is no probe, or nothing leaves."""
    @property
    def loss_after(self) -> float | None: ...
    @property
    def parameters(self) -> int:
        """Trained numbers of the smaller network."""
    @property
    def hash(self) -> int:
        """Hash of the leaving units and their targets, equal on all ranks."""

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
        backend: str | None = None,  # None: $GOSSIPGRAD_BACKEND, or else each operation from the faster table
        trace: int = 0,  # spans stored by a rank; 0: off
        straggler: tuple[float, float, int] = ...,  # probability, delay in seconds, seed
        compute_time: Sequence[float]
        | None = None,  # virtual seconds of a step, one a rank of the group; None: of its flops
        conv_algorithm: str = "auto",  # "direct", "winograd"
        dtype: str = "float32",  # "bfloat16"
        device: str = "cpu",  # names of find_device
        fast: bool = False,  # products and algorithms of a GPU
        graphs: bool = True,  # if the device captures work
        costs: str | None = None,  # the kind of CPU whose cost model chooses, from info(); None: this one
    ) -> Trainer: ...
    @property
    def backend(self) -> str:
        """ "onednn", "native", or "onednn+native" if each operation comes from the faster table."""
    @property
    def exchange(self) -> Exchange:
        """The state of the ranks and its exchange; this trainer makes its steps. Outlives the trainer."""
    @property
    def graph(self) -> Graph:
        """The trained network: as given, or as changed since."""
    @property
    def isa(self) -> str: ...
    def node_backends(self) -> list[str]:
        """The table that computes each node, after the first step."""
    def convolutions(self, batch: int, training: bool, first: str | None = None, /) -> list[tuple[int, ...]]:
        """Convolutions of a training step or an evaluation with several algorithms, each once, the most expensive
        first: batch, channels, height, width, filters, two paddings, bias, ReLU, window. first: the table that comes
        first; None: by set_algorithms and the cost model.
        """
    def measure_algorithms(
        self, batch: int, training: bool, wanted: list[tuple[int, ...]], seconds: float, first: str | None = None, /
    ) -> list[tuple[tuple[int, ...], str, str, float]]:
        """Seconds of each candidate, as (convolution, pass, algorithm, seconds), of these convolutions; those that do
        not fit into `seconds` are left out. Without training: of the pass forward alone. first: as of convolutions.
        """
    def measure_tables(
        self, batch: int, seconds: float, of_onednn: list[_Choice] = ..., of_native: list[_Choice] = ..., /
    ) -> tuple[dict[str, float], str]:
        """Seconds of a training step with each table first; {} if there is no choice, or if time (`seconds`) or
        memory do not suffice: then the text has the reason. Between steps. of_onednn, of_native: the algorithms of
        convolutions if oneDNN's table is first, and if the native one is, both or neither; they replace those that are
        set.
        """
    def measure_step(self, batch: int, /) -> float:
        """Seconds of a training step on a CPU; between steps. No weight changes."""
    def set_algorithms(
        self,
        choices: list[_Choice],
        tables: list[tuple[int, str]] = ...,
        /,
    ) -> None:
        """Set the algorithms of forward, weights and data of these convolutions, and the first table for these batch
        sizes, on the local ranks; between steps. Replaces those given before.
        """
    def node_algorithms(self) -> list[dict[str, tuple[str, str]] | None]:
        """For each node that is a convolution {pass: (table, algorithm)}, else None; after the first step."""
    def graphs(self) -> dict[str, Any] | None:
        """Facts of the last training step on a device that captures work: "pieces", those "replayed", and the reason if
        nothing is captured ("failure", or None). None: it does not capture, or before the first step.
        """
    def partitioned_fc(self) -> list[str]:
        """Layers whose inputs and errors have been exchanged in a step so far."""
    def compressed_families(self) -> list[str]:
        """Families of the network's layers if the strategy compresses; else none."""
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

        A list: the own part of each local rank, instead of one set for all ranks. shard: interleaved contiguous.
        """
    def epoch(
        self,
        epoch: int,
        step: int = 0,
        begun: int = 0,
        done: list[int] | None = None,
        divisions: list[list[int]] | None = None,
    ) -> None:
        """Starts epoch `epoch` (from 0), or continues at its step `step`, 0 to its steps.

        done: for each training rank the samples read by the steps before `begun`, in batches of other sizes.
        divisions: for each earlier number of ranks in this epoch the samples that its ranks have read there. Behind
        one, [-1 - k, r, n]: of those that rank r has read in divisions[k], all but the first n are left again.

        Orders the samples, including those shuffled among the ranks; zeroes the sums, and the state that layers carry.
        The steps from `step` on read the same samples as in an uninterrupted epoch.
        """
    def position(self) -> dict[str, Any]:
        """The arguments of epoch() to continue here; "steps" of this epoch; "batch_size"; "read": the samples that each
        training rank has read since the last of `divisions`."""
    def counts(self) -> list[dict[str, Any]]:
        """For each local rank since the epoch began: the parts of an epoch's sums. At rest, for checkpoints."""
    def set_counts(self, counts: list[dict[str, Any]], /) -> None: ...
    def change_view(self) -> dict[str, Any] | None:
        """After run: goes on without the ranks that have died, and with newcomers. Returns the new view, or None without
        a change. "whole": False: ranks have died before newcomers had their state, so the view changes again."""
    def set_text(self, text: builtins.bytes, /) -> None:
        """Sets the text that newcomers hear from this process's ranks, beside the state."""
    def hear(self) -> builtins.bytes:
        """Takes the view that has come, and returns the donor's text; on a newcomer. PeerError: await the next view."""
    def join(self) -> dict[str, Any] | None:
        """Takes the donor's state, after `hear`, and returns the view. None, or PeerError: await the next view."""
    def check_survival(self) -> None:
        """ValueError if ranks may die, and the strategy or the data need all of them."""
    def run(self, steps: int, watch: Callable[[], object] | None = None) -> int:
        """Runs up to `steps` more steps of the epoch; returns the steps of the epoch done so far. Releases the GIL.

        watch: in a virtual cluster called a few times a second. After an exception from it, or a signal, all ranks end
        the same step, and it is raised.
        """
    def progress(self) -> dict[str, float]:
        """For this process's ranks since `epoch`: samples, loss and accuracy (so far), seconds, steps (of the
        slowest)."""
    def end_epoch(self) -> dict[str, Any]:
        """Collective. Settles; sums over ranks and means over ranks of design.md's epoch record, without validation."""
    def train_step(self, samples: list[_Fields], targets: list[_Fields]) -> list[float]:
        """One step, one batch a local rank (float32 or int32, plain layout); each rank's mean loss."""
    def reset_carried(self) -> None:
        """Zeroes the state that layers carry from batch to batch."""
    def audit_samples(self) -> dict[str, int | None]:
        """Collective. Settles. samples, missing, duplicate, altered; first_...: an id, or None."""
    def sample_ids(self, rank: int = 0) -> NDArray[np.int32]:
        """The sample in each slot of a local rank. Settles."""
    # evaluation. Collective; replica: every rank's own weights on the whole set, one result a rank of the group;
    # else the consensus model, the set split over the ranks, one result.
    # A list of sets: the own part of each local rank, one result over all of them.
    def evaluate(self, dataset: Dataset | list[Dataset], batch: int, replica: bool = False) -> list[dict[str, Any]]:
        """loss and accuracy of the main head; with several evaluated heads `heads`: each one's by its number."""
    def predict(self, dataset: Dataset, batch: int) -> list[NDArray[np.float32]]:
        """Outputs of the consensus model, all on every rank of MPI: an array for each evaluated head."""
    # state, at rest
    def reshape(self, *, strategy: dict[str, Any] = ..., batch: int = ...) -> None:
        """Completes exchanges in flight, and continues with the next batch of the same epoch. Collective.

        strategy: as in Trainer(); left out: unchanged, in new arenas. Weights, moments, residues, statistics and the
        state that layers carry stay each rank's. New arenas begin at zero. The sums of the epoch and the trace
        continue.

        batch: samples a rank and step from here on. In the middle of an epoch it continues with the unread samples,
        each once; position() has the new number of steps. Alone it leaves the strategy unchanged.

        ValueError, and nothing has changed, for options that a strategy refuses, for a batch larger than the shards,
        and in the middle of an epoch if other ranks would train or shuffle_samples would change.
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
        """Completes exchanges in flight, and finds the units of the consensus model that may leave. Collective.

        budgets: 0 to 1 by layers of Graph.units(); others do not shrink. If several layers of one group are named the
        smallest counts. least: min units of each group, or by layers, others 1. probe: the same set on all ranks,
        evaluated `batch` samples at a time; accepted if loss_after <= loss_before + epsilon * |loss_before|.
        ValueError for a layer that cannot shrink, with the reason; FloatingPointError on all ranks if weights are not
        finite.
        """
    def apply_shrink(self, plan: ShrinkPlan, graph: Graph, /) -> None:
        """Continues with the smaller network, accepted or not. graph: of the plan's sizes. Collective.

        Weights and residues are folded and selected, moments and carried state selected; the epoch continues.
        RuntimeError on all ranks, and nothing has changed, if their plans differ or are of another step; ValueError
        likewise if nothing leaves, or the graph has other sizes.
        """
    def restore_graph(self, graph: Graph, /) -> None:
        """Continues with a network of other sizes between the same inputs and outputs. Collective.

        All arenas and carried state are zero afterwards: load them. The number of steps stays.
        """
    def carried(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """State that layers carry from batch to batch: rows by the layers' names."""
    def load_carried(self, arrays: dict[str, NDArray[np.float32]], rank: int, /) -> None:
        """Restores the result of carried(); {}: to zero."""
    # measurement
    def bench(self, samples: _Fields, targets: _Fields, warmup: int, steps: int) -> list[float]:
        """Seconds of each of `steps` training steps on one batch in memory."""
    def profile(self) -> dict[str, Any]:
        """The operations of a training step, in their order, after the first one: {"operations": [...],
        "loss_seconds"}.

        Each has {"nodes", "operation", "input", "output" (layouts), "passes"}: by the name of the pass {"backend",
        "algorithm", "products", "seconds", "bytes", "with_update"}. products: products relative to forward, 2 if "data"
        computes the gradients of "weights" too. Seconds are summed since set_timing(True); bytes are those of its
        operands, each moved once. with_update: the update computed the gradient of this weight in the last step, so
        seconds are of the bias alone.
        """
    def set_timing(self, on: bool, /) -> None:
        """Starts or ends the timing of each pass of each operation."""

@final
class Exchange:
    """Arrays of a caller, with their training and exchange, for each rank of this process.

    `rank` is a local rank. In a virtual cluster the function of `run` makes the calls of a rank, on the rank's thread;
    elsewhere any one thread at a time does. If rank may be None, None acts for all local ranks, outside of `run`. A
    call at the wrong time or on the wrong thread raises RuntimeError and changes nothing. A trainer's exchange has its
    state; the calls of a step, and weights and gradients, are then the trainer's alone.
    """

    def __new__(
        cls,
        team: Team,
        layers: Sequence[tuple[str, Sequence[tuple[Any, ...]]]],  # lists
        # in the order of the forward pass: (name, parameters); a parameter: name, shape of at most 5 axes,
        # role: weight bias scale shift statistic, family: other conv linear recurrent, factors of lr and weight decay,
        # and, if it is not 1, of the momentum
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
        """batches: the samples of every rank of the group in this step; None: all have equal weight."""
    def leave(self, rank: int | None = None, /) -> None:
        """A step without a ready layer counts as not begun, until the next begin or ready. Else a no-op."""
    def need(self, rank: int, layer: int, /) -> None:
        """Waits until the layer's weights are current."""
    def ready(self, rank: int, layer: int, addresses: list[int] | None = None, /) -> None:
        """In any order of the layers, once each. addresses: for each parameter of the layer the address of a large
        one's gradient, valid until this call returns, and 0 for those in the arena.
        """
    def poll(self, rank: int, /) -> None: ...
    def zero_gradients(self, rank: int, /) -> None:
        """Zeroes the gradients of all parameters except large ones. From end to the first ready."""
    def large(self) -> list[str]:
        """Parameters whose gradients may be outside of the arena."""
    def end(self, rank: int, /) -> None: ...
    def wait(self, rank: int | None = None, /) -> None:
        """Between end and begin: waits until all weights are current, as need does in the next step."""
    def current_at_end(self) -> bool:
        """True if weights may be written between end and begin without wait, because no message changes them then."""
    def under_way(self, rank: int, half: bool = False, /) -> bool:
        """True if a step has begun and not ended; half: and a layer is ready in it."""
    def check_gradients(self, rank: int | None = None, /) -> None:
        """FloatingPointError if a gradient has a NaN or an infinity. For a time before the step, which can be repeated
        then."""
    def whole_step(self, rank: int | None = None, batches: Sequence[int] | None = None) -> None:
        """begin, need and ready of all layers, end and wait."""
    def run(self, function: Callable[[int], object], /) -> None:
        """Calls function(rank) on every local rank. In a virtual cluster that is on the rank's thread; one runs at a
        time, and another only while it waits. Elsewhere it is called here. Raises the function's exceptions.
        """

    # where ranks may die
    def check_survival(self) -> None:
        """ValueError for a strategy that needs all ranks where the caller makes the steps."""
    def change_view(self) -> dict[str, Any] | None:
        """Between two steps of all ranks: goes on without those that have died, and with newcomers. None: the view does
        not change here.

        "view", "step", "ranks", "died", "last_steps"; "made": steps of each dead rank; "local": the former local
        numbers of the ranks here that live; "gives": this process's rank is the donor of a newcomer. The weights and
        gradients of ranks that live stay in their memory. `give` comes next.
        """
    def give(self, text: builtins.bytes, /) -> bool:
        """Gives the text and the state to the newcomers whose donor this is, and waits until all newcomers have theirs.
        False: ranks have died before, so the view changes again."""
    def hear(self) -> builtins.bytes:
        """Takes the view that has come, and returns the donor's text; on a newcomer. PeerError: await the next view."""
    def join(self) -> bool:
        """Takes the donor's state, after `hear`. False, or PeerError: await the next view."""
    # state. Collective, but for weights and gradients
    def weights(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """Arrays that share the rank's memory and keep the object alive; current from need to ready, after wait and
        settle."""
    def gradients(self, rank: int = 0, /) -> dict[str, NDArray[np.float32]]:
        """Arrays as of weights; write them from end to ready."""
    def settle(self, rank: int | None = None, /) -> None:
        """Completes exchanges in flight; a step without a ready layer is left as if it had not begun."""
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
        """The arenas of a rank: "weight", "gradient", "moment" (the optimiser's), "residue" or "copy" (compression's),
        "outer" or "outer moment" (of outer steps).
        """
    def check_arena(self, name: str, /) -> None:
        """RuntimeError for the gradients if the last step's sum was applied in pieces: the arena does not have it."""
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
        """arrays: one dict a local rank, of settled ones. If the strategy gives all ranks the same weights and moments,
        and these differ among the ranks, all load `consensus`, or if that is None the mean over the first `trained`
        ranks. Collective.
        """
    def consensus_weights(self) -> dict[str, NDArray[np.float32]]: ...
    def adopt_consensus(self) -> None:
        """Makes all replicas the consensus model, including statistics; moments stay each rank's. Collective."""
    def load_consensus(self, weights: dict[str, NDArray[np.float32]], /) -> None:
        """Sets the strategy's own model, if it has one (a centre)."""
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
        """The number of spans overwritten by newer ones."""

def info() -> dict[str, Any]:
    """compiler, cpu, isa, isas, bfloat16 (the CPU's instructions for it: "amx", "avx512_bf16" or ""), bfloat16_is_fast,
    paired (True if products of float32 are), cores, onednn, mpi{...}, built{...}
    """

def cuda() -> tuple[int, str, str]:
    """The number of usable GPUs; the reason for none, else ""; lines "name: value" on them, the driver and the
    libraries."""

def choices() -> dict[str, tuple[str, ...]]:
    """The core's names, by keyword: "strategy", "exchange", ..."""

def describe(kind: Literal["optimizer", "strategy"], /) -> dict[str, dict[str, dict[str, Any]]]:
    """Options of each optimizer or strategy, by name: "type", "default", "bounds", "help", "unset" (the meaning of None), "names"."""

def find_device(name: str, /) -> tuple[str, int]:
    """The kind and the number of a device; ValueError lists the existing ones."""

def memory() -> tuple[int, int]:
    """Live bytes of the core, allocations ever made."""

def abort(code: int, /) -> None:
    """Ends all ranks of the MPI world."""

def note_exit(code: int, /) -> None:
    """Announces this exit code of the process, also if MPI is finalised before its end."""

def first_to_report() -> bool:
    """True if no rank of this job on this host has reported a failure yet: once, and if that cannot be known."""

def mpi_start(launched: int = 0) -> None: ...
def net_start(
    rank: int,
    nodes: list[int],
    sockets: list[int],
    memory: int,
    ring_bytes: int,
    heap_bytes: int,
    views: int = -1,
    members: int = 0,
) -> None:
    """Make this process's links to other ranks from connected sockets and the node's memory, which it takes over.

    views: descriptor of a ViewKeeper's memory, not taken over: ranks may die. -1: a death ends all. members: the first
    ranks, which are there from the start; 0: all.
    """

def net_arrived(rank: int, socket: int) -> None:
    """A newcomer of another node has connected; the socket is taken over. From any thread, after net_start."""

def net_stop() -> None:
    """End these links."""

def report_stalls(
    seconds: float,
    report: Callable[[int, int, int, int, str | None, str | None, str | None, float, bool], float] | None,
) -> None:
    """From now on a wait between ranks of at least `seconds` is reported. report(rank, size of the group, peer or -1,
    step or -1, first layer, last layer, a place in MPI, seconds, True if it is over) returns the seconds until the next
    report, 0 for never. seconds 0 or report None: no reports.
    """

def shard(count: int, rank: int, size: int, seed: int = 0, contiguous: bool = False) -> NDArray[np.int32]:
    """The samples of a rank, in their order."""

def division(
    count: int, rank: int, size: int, seed: int, epoch: int, shuffle: bool, divisions: list[list[int]]
) -> tuple[NDArray[np.int32], int]:
    """(The order in which a rank reads its samples of an epoch, the samples of all ranks).

    divisions: as Trainer.epoch's.
    """

def partners(
    topology: str | NDArray[np.int64],
    size: int,
    step: int,
    rank: int,
    rotate: bool = True,
    seed: int = 0,
    permutations: int = 0,  # that take turns; 0: a new one after each cycle
) -> tuple[int, int]:
    """(send to, receive from); -1: nobody. If several send to `rank`: the lowest."""

def schedule(
    topology: str | NDArray[np.int64], size: int, rotate: bool = True, seed: int = 0, permutations: int = 0
) -> dict[str, Any]:
    """stages: steps of a cycle; diffusion_steps: steps until all ranks have any rank's knowledge, None: never.

    meeting_steps: steps until every rank has sent to every other, None: never, or not within 2^24 messages.
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
