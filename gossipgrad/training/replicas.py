"""The ranks' replicas of one network and the machinery that trains them: the base of Trainer.

The loop of fit, checkpoints and traces work on this class; trainer.py adds the calls of users.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core, cluster, heads, optim, show, strategies
from gossipgrad.apoptosis import Apoptosis, Course
from gossipgrad.compression import AdaComp
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import LARGEST, check_keywords, choice, counted, flag, integer, is_of, number
from gossipgrad.history import History, Record
from gossipgrad.launch import agreement, environment, joining, stall, surviving
from gossipgrad.launch.interrupts import uninterrupted
from gossipgrad.literals import BACKENDS, CONV_ALGORITHMS, DTYPES, Backend, ConvAlgorithm, DType, Precision
from gossipgrad.metrics import Metrics, parse
from gossipgrad.model import Model
from gossipgrad.training import algorithms, description, elastic, fingerprint, mixing, next_rates, notices
from gossipgrad.training.batches import Batches
from gossipgrad.training.chosen import (
    checked_apoptosis,
    checked_compression,
    checked_device,
    checked_optimizer,
    checked_precision,
    checked_strategy,
    dtype_of,
    exchanged,
    momentum_of,
    norm_of,
    simulated_seconds,
    strategy_options,
)
from gossipgrad.training.fit_state import FitState
from gossipgrad.training.times import Times

Arrays = dict[str, NDArray[np.float32]]
CARRIED = "carried"  # a key of rank_state: not an arena, and has no parameters

# Parts of a trainer that cannot be assigned: the core was built for them, so a new value would have no effect.
_FIXED = frozenset(
    {
        *("net", "loss", "heads", "optimizer", "strategy", "compression", "apoptosis", "seed", "comm", "team"),
        *("threads", "backend", "conv_algorithm", "tune", "dtype", "device", "precision", "graphs", "trace"),
        *("straggler", "network", "compute_time", "metrics"),
    }
)


# Seconds that a rank leaving a collective call by sys.exit waits for the others to reach the call's end.
_LEAVING = 3.0

P = ParamSpec("P")
R = TypeVar("R")


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """A call that all ranks make; waits inside it count as waits of this call."""
    name = f"Trainer.{method.__name__}"
    keywords = list(inspect.signature(method).parameters)

    @functools.wraps(method)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        check_keywords(name, kwargs, keywords)
        with stall.within(name):
            try:
                trainer: Any = args[0]
                if isinstance(trainer, Replicas) and trainer.fit_state.fitting:
                    return agreement.surviving(trainer.team, lambda: method(*args, **kwargs))
                return method(*args, **kwargs)
            except SystemExit:
                # If only this rank leaves, the others wait for it: it must not wait for them while it frees its memory.
                team = getattr(args[0], "team", None)
                if team is not None and team.local < team.size:
                    team.timeout = _LEAVING
                raise

    return named


class Replicas:
    """A network, a loss, an optimiser and a strategy on the ranks of a group; Trainer documents the arguments."""

    def __init__(
        self,
        net: Model,
        *,
        loss: heads.Losses = "cross_entropy",
        loss_weights: Sequence[float] | Mapping[str, float] | None = None,
        optimizer: optim.Optimizer | None = None,
        strategy: strategies.Strategy | Literal["auto"] | None = None,
        compression: AdaComp | None = None,
        apoptosis: Apoptosis | None = None,
        seed: int = 0,
        comm: Any = None,
        threads: int | None = None,
        backend: Backend | None = None,
        conv_algorithm: ConvAlgorithm = "auto",
        tune: bool | None = None,
        dtype: DType = "float32",
        device: str | None = None,
        precision: Precision = "exact",
        graphs: bool | None = None,
        trace: int = 0,
        timeout: float = 0.0,
        straggler: cluster.Straggler | None = None,
        network: cluster.Network | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """loss     "cross_entropy" (softmax; integer classes), "binary_cross_entropy" (of scores, "logits"; targets
                 0..1) or "mean_squared_error", each the mean over a batch; gossipgrad.CrossEntropy(...) has options.
                 Several outputs have a loss each: a list, or a dict by their names.
        loss_weights  factors of the outputs' losses in the sum that is trained: a list, or a dict by name, where
                 missing ones are 1; None: those of the network.
        optimizer  gossipgrad.SGD(...), Adam(...) or another Optimizer; None: SGD(lr=0.01, momentum=0.9).
        strategy  how ranks exchange, a gossipgrad.Strategy; None: GossipGraD(). "auto": the first fit or train_step
                 chooses by the samples of a rank (gossipgrad.strategies.Auto); until then it is GossipGraD(). None
                 chooses as well, between GossipGraD() and nodes, for a network with a normalisation and SGD with
                 momentum 0.9.
        compression  gossipgrad.AdaComp(...): messages become 40 to 200 times smaller. Strategies that cannot compress
                 refuse it.
        apoptosis  gossipgrad.Apoptosis(...): redundant units leave the network while it trains; trainer.net is then
                 the smaller network.
        seed     of initial weights, order of samples, dropout and rotation.
        comm     None: the MPI world if mpiexec started this process, else one rank. A VirtualCluster(p): p ranks in
                 this process. An mpi4py communicator: its group.
        threads  of each rank; None: OMP_NUM_THREADS, which `gossipgrad run --threads N` sets, else 1.
        backend  "onednn", "native"; None: $GOSSIPGRAD_BACKEND, else the faster one for each operation.
        conv_algorithm  of convolutions. "direct": sums of products. "winograd": fewer multiplications for windows of
                 3 x 3 and 5 x 5 with stride 1; errors are up to several times larger. "auto": the fastest for each
                 pass of each layer; with AMX "split" and "tiled" are candidates, too (docs/training.md).
        tune     False: a cost model chooses tables and algorithms from the shapes and the kind of rank 0's CPU, so
                 bits repeat. True: fit and the first train_step measure them first, for at most 20 seconds and, on a
                 CPU, a tenth of the run. Steps may become a few percent faster, and bits differ from run to
                 run. Times are cached in $XDG_CACHE_HOME/gossipgrad (~/.cache); the report ("algorithms") and
                 checkpoints hold the choice. evaluate and predict use the cache, and measure if a rank has 100 full
                 batches or more. None: $GOSSIPGRAD_TUNE, 0 or 1; else True on a GPU with precision="fast", and False.
        dtype    type of the network's arithmetic. "bfloat16": activations, their gradients and the products' copies of
                 weights are rounded to bfloat16. Sums, statistics, losses, weights, gradients of weights, the optimiser
                 and messages stay float32. On a CPU it needs oneDNN and AVX-512 (an error says so), and is faster with
                 AMX and with AMD's AVX512_BF16. "auto": bfloat16 if the CPU of every rank is faster in it, or on a GPU
                 with precision="fast", else "float32"; trainer.dtype tells the choice.
        device   "cpu"; "cuda": an NVIDIA GPU, if the build has the library for it ('gossipgrad info' says so). Ranks of
                 a node are spread over its GPUs, and may share one; "cuda:1" is one of several. None:
                 $GOSSIPGRAD_DEVICE, else "cpu"; "cpu" if `backend` is given.
        precision  of products and convolutions on a GPU. "exact": float32 by deterministic algorithms, so bits do not
                 depend on timing. "fast": TF32 (10 bits of precision), channels last, and algorithms that may add in
                 any order. A CPU computes exactly.
        graphs   record and replay steps on a GPU (CUDA graphs), with the same bits; the report ("graphs") counts the
                 pieces of a step. None: True, unless $GOSSIPGRAD_CUDA_GRAPHS is 0.
        trace    the number of spans that a rank stores for write_trace; 0: none.
        timeout  seconds that a rank waits for a message before it fails (CommunicationError with the step, the layers
                 and the other rank); 0: for ever. It must exceed any step, callback or write of a file, and the
                 difference between ranks in making the trainer. Waits in MPI's own start and end are only reported.
                 In a virtual cluster seconds are virtual. With one rank it has no effect, and a warning says so.
        straggler  gossipgrad.Straggler(...): ranks that now and then are late; None: those of a VirtualCluster.
        network  gossipgrad.Network(...): slow links; None: as they are, or those of a VirtualCluster. With one rank it
                 has no effect, and a warning says so.
        metrics  measured on validation sets beside the loss: names, functions of (outputs, targets) that give one
                 number a sample, or {name: function}; see gossipgrad.metrics. They are in history["validation.NAME"],
                 in evaluate, and callbacks can monitor them.
        """
        try:
            if not isinstance(net, Model):
                torch = "; a module of PyTorch's is trained by gossipgrad.torch.wrap(net, ...)"
                hint = torch if is_of(net, "torch.nn") else ""
                raise TypeError(f"net is a {type(net).__name__}; wanted a gossipgrad.Model{hint}")
            self.net = net
            self.heads = heads.with_losses(net.heads, loss, loss_weights)
            self.loss = self.heads[0].kind  # the main one's name
            self.optimizer = checked_optimizer(optimizer)
            given = checked_strategy(strategy, auto=True, changes=True)
            self.undecided = isinstance(given, strategies.Auto)  # until the samples of a rank are known
            self._by_default = strategy is None and compression is None
            checked_compression(compression, given)
            self.strategy = strategies.GossipGraD() if self.undecided else given
            self.compression = checked_compression(compression, self.strategy)
            self.apoptosis = checked_apoptosis(apoptosis, net)
            if self.apoptosis is not None and isinstance(self.apoptosis.probe, Dataset):
                self.apoptosis.probe.for_model(net.inputs, self.heads, net.target_names)
            self.seed = integer("seed", seed, 0, 2**64 - 1)
            self.threads = environment.default_threads() if threads is None else integer("threads", threads, 1, 4096)
            environment.check_threads(self.threads)
            self.backend: Backend | None = choice("backend", backend, BACKENDS)
            self.conv_algorithm: ConvAlgorithm = choice("conv_algorithm", conv_algorithm, CONV_ALGORITHMS)
            self.algorithms: list[Record] = []  # of convolutions, as in the report
            self.algorithms_saved = False  # they are those of a checkpoint
            self.algorithms_chosen: set[tuple[int, str]] = set()  # batch size and purpose of each choice
            choice("dtype", dtype, DTYPES)
            self.device = checked_device(device, self.backend)
            self.precision: Precision = checked_precision(precision, self.device)
            self.tune = algorithms.wanted(self.device, self.precision) if tune is None else flag("tune", tune)
            self.graphs = environment.wants_graphs() if graphs is None else flag("graphs", graphs)
            self.trace = integer("trace", trace, 0)
            self.metrics = parse(metrics, self.heads[0].loss, net.output_shape, heads.measured_names(self.heads))
            self.comm = cluster.with_circumstances(comm, straggler, network)
            virtual = self.comm if isinstance(self.comm, cluster.VirtualCluster) else None
            self.straggler = virtual.straggler if virtual else straggler
            self.network = cluster.links(self.comm, network)
            self.compute_time = virtual.step_seconds() if virtual else None
            self._straggler_seed = virtual.seed if virtual and virtual.seed is not None else self.seed
            self.timeout = number("timeout", timeout, 0.0)
        except (TypeError, ValueError) as error:
            cluster.refuse(comm, "Trainer", error)
        self.team = cluster.make_team(self.comm, self.timeout, network, survives=True)
        with agreement.agreed(self.team, "Trainer") as one:
            surviving.check(self.team, "Trainer", begun=True)
            one.facts = self._fingerprint(network) | {"dtype": dtype}
        stall.allow(simulated_seconds(self.straggler, self.network, self.net.parameters))
        self.exchange = exchanged(self.strategy, self.compression, self.team, self.network)
        if isinstance(self.strategy, strategies.Partnered):
            notices.missing_partners(self.team, self.strategy)
        # Rank 0's kind of CPU decides, so that all ranks choose alike.
        own = str(environment.core_info()["costs"]).encode()
        self.costs = agreement.gather(self.team, own, "Trainer")[0].decode()
        self.dtype: DType = dtype_of(dtype, self.device, self.precision, self.backend, self.team)
        notices.one_rank(self.team, network, timeout)
        notices.kernels_not_built(self.team.rank, environment.core_info())
        self.decision = ""  # which strategy was chosen, and why; "": the given one, or GossipGraD()
        self._samples_seen = False
        self.stop = False
        self.resumed = False  # True if this fit continues from a checkpoint saved after an epoch
        self.fit_state = FitState()
        self.members = list(range(self.size))  # the ranks' first numbers
        self.fits = 0  # calls of fit, where ranks may die
        self.facts_of_call: dict[str, str] = {}  # of the last one, where new ranks may join
        self.facts_of_fit: dict[str, str] | None = None  # what newcomers must have alike
        self.epochs_text = 0, "[]"  # for newcomers: epochs done, and their records as JSON
        self.may_grow = joining.grows(self.team)
        self.record_names: list[str] = []  # the numbers of an epoch's record in this fit, dotted
        self.speaker: Callable[[str], None] | None = None  # prints the lines of say
        self.epoch = 0  # epochs done
        self.fit_began = 0  # epochs done when this fit began; after a resume, when the fit that saved began
        self.last_epoch = 0  # number of the last epoch of this fit
        self.validating = False
        self.history = History(ranks=self.size)
        self._times = Times()  # of the local ranks
        self.course = None if self.apoptosis is None else Course.begun(self.apoptosis)
        self.batches: Batches | None = None  # of the last fit
        self.set_batch: int | None = None  # by set_batch_size or new ranks; None: as fit was called with
        self.batch_changes: list[Record] = []  # in this training: {"step": ..., "batch_size": ...}
        self.fit_settings: Record = {}  # arguments of the last fit, in terms of JSON
        self.class_names: list[str] | None = None  # of the last fit's set, or the checkpoint's
        self.set_rate: float | None = None  # by learning_rate; None: the optimiser's schedule applies
        self._core: _core.Trainer | None = None
        self._make()
        self.check_survival()
        models = [kind for kind in self.core.exchange.arenas().values() if kind in ("residue", "copy")]
        if self.compression is not None:
            notices.nothing_compressed(self.rank, self.size, len(self.compression.packed(self.born)))
        notices.compression_memory(self.rank, len(models), self.net.parameters, self.team.local)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Trainer cannot be copied or pickled, since it is ranks of a group; allowed: trainer.save(PATH), of "
            "which Trainer.load(PATH) makes another one, or a new Trainer(...) of copy.deepcopy(trainer.net)"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(
                f"trainer.{name} = ...: what a trainer was made of stays; allowed: a new "
                f"gossipgrad.Trainer(..., {name}=...)" + (", trainer.learning_rate" if name == "optimizer" else "")
            )
        super().__setattr__(name, value)

    def _fingerprint(self, network: cluster.Network | None) -> Record:
        """Settings that must be equal on all ranks when a trainer is made."""
        return {
            "gossipgrad": environment.VERSION,
            "network": lambda: fingerprint.network(self.net),
            "loaded weights": lambda: fingerprint.weights(self.net.weights()) if self.net.loaded else "none",
            **heads.loss_settings(self.heads),
            **self.strategy.settings(),
            **({"strategy": "auto"} if self.undecided else {}),
            "strategy is given": not self._by_default,
            "compression": "none" if self.compression is None else self.compression.settings(),
            "apoptosis": "none" if self.apoptosis is None else self.apoptosis.settings(),
            "probe": lambda: fingerprint.data(getattr(self.apoptosis, "own_probe", None)),
            **self.optimizer.settings(),
            "seed": self.seed,
            "device": self.device.partition(":")[0],
            "precision": self.precision,
            "trace": self.trace,
            "timeout": self.timeout,
            "metrics": ", ".join(one.name for one in self.metrics),
            "straggler": self.straggler,
            "slow network": network,
            **fingerprint.environment(),
        }

    # ---- who and where

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.team.size

    @property
    def rank(self) -> int:
        """This process's rank; 0 in a virtual cluster."""
        return self.team.rank

    @property
    def workers(self) -> int:
        """Ranks that train, the first ones; the others only serve (ParameterServer, ElasticAveraging)."""
        return self.strategy.workers(self.size)

    @property
    def virtual(self) -> bool:
        """True if all ranks live in this process, as threads."""
        return self.team.kind == "virtual"

    def check_survival(self) -> None:
        """ValueError if ranks may die, and the strategy, the data or an option need all of them."""
        if not self.team.survives:
            return
        self.core.check_survival()
        if self.apoptosis is not None:
            raise ValueError("ranks that may die: not with apoptosis, whose plans are of all ranks")
        if self.strategy.changes_after:
            raise ValueError("ranks that may die: not with allreduce_steps, after which all ranks change together")
        if isinstance(self.comm, cluster.VirtualCluster) and self.batches is not None:
            self.batches.divided(self.comm.most).check(1)

    @property
    def step(self) -> int:
        """Updates done."""
        return self.core.exchange.step

    @property
    def batch_size(self) -> int | None:
        """Samples a rank and step; trainer.set_batch_size changes it, and new ranks may lower it. None before the first
        fit."""
        return None if self.batches is None else self.batches.size

    @property
    def fitting(self) -> bool:
        """True while fit runs."""
        return self.fit_state.fitting

    @property
    def failed(self) -> bool:
        """True if the last fit ended by an error, and while fit runs."""
        return self.fit_state.failed

    @property
    def epoch_steps(self) -> int:
        """Steps of the current epoch, or of a whole one."""
        if self.fit_state.within:
            at = self.core.position()
            return self.step - self.fit_state.epoch_begun + int(at["steps"] - at["step"])
        return 0 if self.batches is None else self.batches.steps

    def steps_left(self) -> int:
        """Steps until fit ends, if nothing changes."""
        epochs, left, assumed = max(self.last_epoch - self.epoch, 0), 0, self.batches
        assert assumed is not None
        state = self.fit_state
        if state.within:
            epochs, left = epochs - 1, state.epoch_begun + self.epoch_steps - self.step
        elif state.position is not None:
            epochs, left = epochs - 1, state.position["left"]
        return left + epochs * assumed.steps

    @property
    def born(self) -> Model:
        """The network before any unit left it; the current one if none has."""
        return self.net.resized(self.net.born) if self.net.born else self.net

    @property
    def core(self) -> _core.Trainer:
        """The compiled trainer; RuntimeError after close()."""
        if self._core is None:
            raise RuntimeError("this trainer is closed")
        return self._core

    @property
    def tuning(self) -> Record:
        """Measured costs of messages between the ranks, and the bucket and chunk sizes chosen by them: docs/report.md.

        Empty for strategies without buckets, or whose sizes are not tuned.
        """
        return dict(self.core.exchange.tuning())

    def __repr__(self) -> str:
        ranks = counted(self.size, "rank")
        return f"<Trainer of {self.net.name} by {self.strategy.name} on {ranks} ({self.team.kind})>"

    def _repr_html_(self) -> str:
        facts = {
            "network": repr(self.net)[1:-1],
            "strategy": ", ".join(f"{key}={show.cell(value)}" for key, value in self.strategy_settings().items()),
            "optimizer": repr(self.optimizer),
            "compression": repr(self.compression),
            "apoptosis": repr(self.apoptosis),
            "loss": ", ".join(one.kind for one in self.heads),
            "ranks": f"{counted(self.size, 'rank')} ({self.team.kind}), {counted(self.threads, 'thread')} each",
            "done": f"{counted(self.epoch, 'epoch')}",
        }
        return show.pairs(repr(self)[1:-1], facts)

    # ---- the compiled trainer

    def _make(self) -> None:
        """A core trainer in the initial state, or in the state of the one before it."""
        schedule = self.optimizer.timing.options(self.optimizer.total or 1) | {"lr": self.optimizer.lr}
        state = self.state() if self._core is not None else None
        strategy = self._strategy_options(0 if state is None else state[0])
        since = None if self._core is None else (self.core.exchange.push_sum_since, self.core.exchange.moments_since)
        self._core = None  # frees its memory first
        self._core = _core.Trainer(
            self.net.graph,
            self.team,
            loss=[one.core() for one in self.heads],
            optimizer=self.optimizer.options() | {"schedule": schedule},
            strategy=strategy,
            seed=self.seed,
            threads=self.threads,
            backend=self.backend,
            trace=self.trace,
            straggler=self._straggler_options(),
            compute_time=self.compute_time,
            conv_algorithm=self.conv_algorithm,
            dtype=self.dtype,
            device=self.device,
            fast=self.precision == "fast",
            graphs=self.graphs,
            costs=self.costs,
        )
        self._exchanges_by = strategy["name"]
        self._core.set_algorithms(algorithms.choices(self.algorithms), algorithms.first_tables(self.algorithms))
        exchange = self._core.exchange
        if state is not None and since is not None:
            exchange.moments_since = since[1]
            self.set_state(*state)
            exchange.push_sum_since = since[0]
        elif self.net.loaded:
            exchange.load_arena("weight", self.net.weights(self.seed))

    def _strategy_options(self, step: int) -> Record:
        """Options of the strategy in this step and of the compression for the core, with "auto" resolved."""
        options = strategy_options(self.strategy, self.exchange, self.compression, step)
        if self.compression is not None:
            # A layer that shrinks stays packed: otherwise its residue would never be sent.
            options["compression"]["packs"] = list(self.compression.packed(self.born))
        return options

    def follow_step(self, step: int | None = None) -> None:
        """Exchange as the strategy does from this step on, None: from the current one. All ranks call it."""
        if not self.strategy.changes_after:
            return
        step = self.step if step is None else step
        name = self.strategy.options_at(step)["name"]
        if name != self._exchanges_by:
            self.core.reshape(strategy=self._strategy_options(step))
            self._exchanges_by = name
            self._describe_network()

    def _straggler_options(self) -> tuple[float, float, int]:
        one = self.straggler or cluster.Straggler(0.0, 0.0)
        return float(one.probability), float(one.delay), self._straggler_seed

    def set_exchange(self, exchange: str) -> None:
        """Set the exchange between partners from here on, in place of the resolved "auto". Collective."""
        if self.exchange != exchange:
            self.exchange = exchange
            self._make()

    def see_samples(self, samples: int) -> None:
        """Decide for batches of `samples` a rank, unless a strategy is given; warn if gossip has few. Once.
        Collective.
        """
        if self._samples_seen:
            return
        self._samples_seen = True
        machines, norm = cluster.machines(self.team, self.network), norm_of(self.net)
        how = {"mortal": self.team.survives} | momentum_of(self.optimizer)
        undecided, self.undecided = self.undecided, False
        if undecided or self._by_default:
            decide = strategies.choose if undecided else strategies.by_default
            ranks = joining.first_size(self.team)
            strategy, self.decision = decide(samples, ranks, norm, machines, **how)
            if strategy != self.strategy:
                self.__dict__["strategy"] = strategy
                self.exchange = exchanged(strategy, self.compression, self.team, self.network)
                self._make()
        if not undecided:
            how["fixed"] = self.compression is not None
            notices.few_samples(self.team, self.strategy, self.exchange, samples, norm, machines, **how)

    def copy_weights(self) -> tuple[list[Arrays], Arrays, Model]:
        """The weights of each local rank, the consensus weights, and the network, for put_weights_back. Collective."""
        with self.agreed("copy of the weights"):  # a callback of another rank may have failed
            pass
        own = [self.core.exchange.arena("weight", local) for local in range(self.team.local)]
        return own, self.core.exchange.consensus_weights(), self.net

    def put_weights_back(self, weights: tuple[list[Arrays], Arrays, Model]) -> None:
        """Give every rank, and a centre, the weights of copy_weights; moments and step stay. Collective.

        State that refers to other weights begins anew, as in load_weights; the mean of the replicas is that of the
        copy. If the network has shrunk since then, it has its former size again, and moments begin at zero.
        If fit ends with one model for all (final_mix), the replicas then become the consensus of the restored weights.
        """
        own, consensus, net = weights
        with self.agreed("weights that come back"):
            pass
        self.core.exchange.settle()
        with uninterrupted():  # a network that has grown again has no weights before these are loaded
            if not net.same_network(self.net):
                self.core.restore_graph(net.graph)
                self._is_now(net)
                self.core.exchange.moments_since = self.step
            self.core.exchange.load_consensus(consensus)
            for local, arrays in enumerate(own):
                self.core.exchange.load_arena("weight", arrays, local)
            mixing.forget(self.core.exchange)
            if getattr(self.strategy, "push_sum", False):
                mixing.recentre(self.core.exchange, self.team.local, consensus)
            if self.fit_state.mixed:
                self.core.exchange.adopt_consensus()

    # ---- the middle of an epoch

    def where_in_epoch(self) -> Record | None:
        """The position of training in an epoch, in terms of JSON, with the counts of each rank; None: between two.

        Before fit continues from a checkpoint of the middle of an epoch: the checkpoint's position.

        At rest. Collective.
        """
        if not self.fit_state.within or self.batches is None:
            return self.fit_state.position
        counts = [one for text in self.gather(json.dumps(self.core.counts()).encode()) for one in json.loads(text)]
        at = self.core.position()
        at |= {"left": at["steps"] - at["step"], "paused_at": self.fit_state.paused_at}
        return at | {"counts": counts}

    def go_on(self, position: Record) -> int:
        """Continue at the position of where_in_epoch(), in the batches of this fit; returns the steps done.
        Collective."""
        assert self.batches is not None
        steps = elastic.go_on(self.core, self.epoch, position, self.batches.size, self.rank, self.team.local)
        self.fit_state.paused_at = position["paused_at"]
        return steps

    # ---- another size

    def become(self, plan: _core.ShrinkPlan) -> None:
        """Remove the units of a plan from the network; training continues with the next batch. Collective."""
        net = self.net.resized(plan.outputs)
        try:
            self.core.apply_shrink(plan, net.graph)
        finally:  # after a Ctrl-C between the two, the next save must describe the core's network
            if self.core.graph is net.graph:
                self._is_now(net)

    def adopt(self, net: Model) -> None:
        """Take this network, in the initial state: all training is dropped. Collective."""
        self._core = None
        self._is_now(net)
        self._make()

    def _is_now(self, net: Model) -> None:
        """The core trains this network from here on."""
        self.__dict__["net"] = net
        self._describe_network()

    # ---- output for users

    def say(self, text: str) -> None:
        """Print a line, by rank 0, beside fit's progress."""
        if self.rank == 0 and self.speaker is not None:
            self.speaker(text)

    # ---- the learning rate

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. Set it between epochs and steps, also in callbacks, to one value on every rank.

        A set rate stays until it is set again, in place of the optimiser's schedule, and is saved with checkpoints.
        """
        return self.optimizer.rate(self.step) if self.set_rate is None else self.set_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        rate = number("learning_rate", rate, 0.0, LARGEST)
        self.core.exchange.set_schedule({"kind": "constant", "lr": rate})
        self.set_rate = rate

    def set_total(self, total: int) -> None:
        """The steps of all training: schedules with total="auto" need them."""
        self.__dict__["optimizer"] = self.optimizer.of_total(total)

    def prepare_rates(self, steps: int, agree: bool = True) -> float | None:
        """Give the core the rates of the next steps; returns the last one's. None: the view has changed meanwhile.

        agree: compare them first, ValueError on all ranks if they differ; collective.
        """
        last, views = self.step + steps - 1, len(self.history.views)
        with self.agreed("learning rate") if agree else contextlib.nullcontext() as one:
            rates = next_rates.until(self.optimizer, self.set_rate, self.step, last)
            if one is not None:
                one.facts = {"learning_rate": lambda: next_rates.said(rates, self.step, last)}
        if len(self.history.views) != views:
            return None
        self.core.exchange.set_schedule(rates)
        return _core.rate(rates, last)

    # ---- state, at rest

    def rank_state(self, local: int) -> dict[str, Arrays]:
        """mixing.read of a local rank; plus, under CARRIED, the state that layers carry from batch to batch, if any."""
        found = mixing.read(self.core.exchange, local)
        carried = self.core.carried(local)
        return found | {CARRIED: carried} if carried else found

    def state(self) -> tuple[int, list[dict[str, Arrays]], Arrays]:
        """(step, rank_state of each local rank, consensus weights). Collective."""
        parts = [self.rank_state(local) for local in range(self.team.local)]
        return self.core.exchange.step, parts, self.core.exchange.consensus_weights()

    def set_state(
        self, step: int, parts: Sequence[dict[str, Arrays]], consensus: Arrays, trained: int | None = None
    ) -> None:
        """Continue from the result of state(), by mixing.resume. trained: None: all ranks have. Collective."""
        self.follow_step(step)
        mixing.resume(self.core.exchange, parts, consensus, trained or self.size)
        for local, part in enumerate(parts):
            self.core.load_carried(part.get(CARRIED, {}), local)
        self.core.exchange.step = step

    @collective
    def weights_sha256(self) -> list[str]:
        """One a rank: SHA-256 of its weights as little-endian float32, in the order of the network. Collective."""
        own = []
        with self.agreed():
            pass
        self.core.exchange.settle()
        for local in range(self.team.local):
            digest = hashlib.sha256()
            for array in self.core.exchange.arena("weight", local).values():
                digest.update(np.ascontiguousarray(array, "<f4").data)
            own.append(digest.hexdigest())
        return own if agreement.alone(self.team) else [one.decode() for one in self.gather(own[0].encode())]

    def count_seconds(self) -> None:
        """Add the seconds of the epoch that has ended, for each local rank."""
        self._times.add(self.core.counts())

    def keep(self, ranks: Sequence[int]) -> None:
        """Adapt to these ranks, by their first numbers, which the core has gone on with."""
        if self.virtual:
            self._times.keep(self.members, ranks)
        self.members = list(ranks)
        self.history.ranks = self.size
        if self.batches is not None:
            self.batches.divide(self.workers)
            size = int(self.core.position()["batch_size"])
            if size != self.batches.size:
                self.rebatch(size)
                self.say(f"step {self.step}: batches of {size} samples from here on, the smallest share of a rank")

    def rebatch(self, size: int) -> None:
        """Note that the core's batches have another size from here on."""
        assert self.batches is not None
        self.set_batch = self.batches.size = size
        self.batch_changes.append({"step": self.step, "batch_size": size})
        self.history.settings = self.settings()

    def _time_by_rank(self) -> list[Record]:
        """The history's time_by_rank. Collective."""
        return [one for part in self.gather(json.dumps(self._times.ranks).encode()) for one in json.loads(part)]

    @collective
    def close(self) -> None:
        """Free the core's memory. Collective."""
        self.team.check_collectives()
        self._core = None

    # ---- agreement among the processes

    @property
    def where(self) -> str:
        """The position of training; the text of an error between epochs begins with it."""
        return f"step {self.step}, between epochs"

    @contextlib.contextmanager
    def agreed(self, place: str = "") -> Iterator[agreement.Agreement]:
        """agreement.agreed of the current collective call, or of a place in it. A call begins with it."""
        self.team.check_collectives()
        with agreement.agreed(self.team, stall.current(place), f"step {self.step}") as one:
            yield one

    def set_algorithms(self, described: list[Record], saved: bool = False) -> None:
        """Set the algorithms of convolutions from now on, equal on all ranks. saved: they are a checkpoint's."""
        self.core.set_algorithms(algorithms.choices(described), algorithms.first_tables(described))
        self.algorithms, self.algorithms_saved = described, saved

    def gather(self, data: bytes) -> list[bytes]:
        """Every process's bytes, of any length, by rank. Collective."""
        return agreement.gather(self.team, data, self.where)

    # ---- the trainer in terms of JSON

    def settings(self) -> Record:
        """All options by their names on the command line."""
        virtual = self.comm.settings() if isinstance(self.comm, cluster.VirtualCluster) else None
        return {
            "model": self.net.name,
            **self.fit_settings,
            **({"batch_size_changes": list(self.batch_changes)} if self.batch_changes else {}),
            **self.strategy_settings(),
            "compression": None if self.compression is None else self.compression.settings(),
            "apoptosis": None if self.apoptosis is None else self.apoptosis.settings(),
            **heads.loss_settings(self.heads),
            "metrics": [one.name for one in self.metrics],
            **self.optimizer.settings(),
            "seed": self.seed,
            "threads": self.threads,
            "backend": self.backend,
            "conv_algorithm": self.conv_algorithm,
            "tune": self.tune,
            "dtype": self.dtype,
            "device": self.device,
            "precision": self.precision,
            "graphs": self.graphs,
            "comm": self.team.kind,
            "virtual_ranks": None if virtual is None else self.size,
            "virtual_cluster": virtual,
            "straggler_probability": None if self.straggler is None else self.straggler.probability,
            "straggler_delay": None if self.straggler is None else self.straggler.delay,
            "latency": None if self.network is None else self.network.latency,
            "bandwidth": None if self.network is None else self.network.bandwidth,
        }

    def strategy_settings(self) -> Record:
        """The strategy's options, with those that it leaves to the trainer resolved."""
        return self.strategy.settings() | ({} if self.exchange is None else {"exchange_used": self.exchange})

    def describe(self) -> None:
        """Write settings, environment, schedule, tuning and model into the history."""
        self.history.settings = self.settings()
        used = {"backend": self.core.backend, "isa": self.core.isa, "costs": self.costs}
        self.history.environment = environment.environment(self.threads) | used
        self.history.ranks = self.size
        strategy = self.strategy
        self.history.schedule = (
            strategy.schedule(self.team, self.seed) if isinstance(strategy, strategies.Partnered) else {}
        )
        self._describe_network()
        if self.apoptosis is not None:
            self.describe_apoptosis()
        self.history.weights_sha256, self.history.time_by_rank = [], []

    def _describe_network(self) -> None:
        tuning = self.tuning if self._core is not None else {}
        description.network(self.history, self.net, tuning, self.algorithms)

    def describe_apoptosis(self) -> None:
        """Write the layers that may shrink, and those that cannot, into the history; events are added to it."""
        options = None if self.apoptosis is None else self.apoptosis.settings()
        description.shrinking(self.history, self.net, self.born, options)
