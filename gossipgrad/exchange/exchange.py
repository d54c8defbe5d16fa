"""Arrays of the caller, trained by the strategies of this package; the caller computes the gradients."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

import numpy as np

from gossipgrad import _core, cluster, optim, strategies
from gossipgrad._core import PeerError
from gossipgrad.compression import AdaComp
from gossipgrad.errors import LARGEST, did_you_mean, integer, named_keywords, number
from gossipgrad.exchange import arrays as given_arrays
from gossipgrad.exchange import state as saved_state
from gossipgrad.exchange.arrays import Array, Arrays, Shapes
from gossipgrad.exchange.survivor import Survivor, View, collective
from gossipgrad.launch import agreement, environment, surviving
from gossipgrad.state import files, outputs, trace
from gossipgrad.training import fingerprint, mixing, notices
from gossipgrad.training.chosen import (
    checked_compression,
    checked_optimizer,
    checked_strategy,
    exchanged,
    strategy_options,
)

_RATES = 1000  # steps of a run for which a schedule function is evaluated beforehand
_MAX_SAMPLES = 2**31 - 1  # of a rank in a step, in the core


class Gradients(Mapping[str, Array]):
    """The arrays into which a rank's gradients are written: g["w"][...] = values, or g["w"] = values, which are copied.

    The arrays stay the same for the life of the exchange, and hold the values written last.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._known(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        to = self._arrays[self._known(name)]
        given = given_arrays.floats(f"the gradient of {name!r}", value)
        if given.shape != to.shape:
            raise ValueError(f"the gradient of {name!r} has shape {given.shape}; the array's is {to.shape}")
        to[...] = given

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Gradients({', '.join(f'{name} {array.shape}' for name, array in self._arrays.items())})"

    def _known(self, name: str) -> str:
        if name not in self._arrays:
            there = ", ".join(self._arrays)
            raise KeyError(f"no array is named {name!r}{did_you_mean(name, self._arrays)}; there are {there}")
        return name


class Replica:
    """One rank's arrays, and the calls of a step for this rank alone; an item of Exchange.replicas.

    In a virtual cluster these calls are made in run, on the rank's own thread. A call at the wrong time or place raises
    RuntimeError and changes nothing.
    """

    def __init__(self, exchange: Exchange, local: int) -> None:
        self._exchange, self._local = exchange, local
        core = exchange.core
        shapes = exchange._shapes
        views = {name: view.reshape(shapes[name]) for name, view in core.weights(local).items()}
        for view in views.values():
            view.flags.writeable = False
        self._weights = MappingProxyType(views)
        self._gradients = Gradients({name: view.reshape(shapes[name]) for name, view in core.gradients(local).items()})

    @property
    def rank(self) -> int:
        """This rank's number in the group. PeerError if it has died."""
        if not self.lives:
            raise PeerError("this rank of the virtual cluster has died; allowed: exchange.replicas, those that live")
        return self._exchange.rank + self._local

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._exchange.size

    @property
    def lives(self) -> bool:
        """False for a rank of a virtual cluster that has died."""
        return self._local >= 0

    @property
    def _survivor(self) -> Survivor | None:
        return self._exchange._survivor

    @property
    def trains(self) -> bool:
        """False for a rank that only serves the others (ParameterServer(dedicated=True) and the like)."""
        return self.rank < self._exchange.workers

    @property
    def weights(self) -> Mapping[str, Array]:
        """The arrays by name, float32, read only, in the memory that is trained: step changes them.

        Current after step, need (until ready), wait and settle.
        """
        return self._weights

    @property
    def gradients(self) -> Gradients:
        """The arrays to write gradients into, before step, or before the layer is ready."""
        return self._gradients

    # ---- a step in its parts

    def begin(self, samples: Sequence[int] | None = None) -> None:
        """Begin a step. samples: of every rank of the group in this step, if they differ.

        ValueError for samples where new ranks may join: the number of ranks is unknown before the step begins.
        """
        self._check_samples(samples)
        self._exchange._begins()
        self._exchange._rates_known(self._local)
        self._exchange.core.begin(self._local, samples)

    def need(self, layer: str) -> None:
        """Wait for the layer's messages; afterwards its weights are current."""
        self._exchange.core.need(self._local, self._exchange._layer(layer))

    def ready(self, layer: str) -> None:
        """Begin the layer's exchange: its gradients are written, and this step uses its weights no more."""
        self._exchange.core.ready(self._local, self._exchange._layer(layer))

    def poll(self) -> None:
        """Let messages progress."""
        self._exchange.core.poll(self._local)

    def end(self) -> None:
        """End the step; RuntimeError if a layer was not ready."""
        self._exchange.core.end(self._local)
        self._exchange._look()

    def wait(self) -> None:
        """Between two steps: wait until all weights are current."""
        self._exchange.core.wait(self._local)

    def settle(self) -> None:
        """Complete all exchanges in flight. Collective: every rank of the group calls it at the same step."""
        if self._exchange._survivor is not None and not self._exchange.virtual:
            self._exchange.settle()
        else:
            self._exchange.core.settle(self._local)

    def step(
        self, gradients: Mapping[str, Any] | None = None, *, samples: Sequence[int] | None = None, check: bool = True
    ) -> None:
        """Exchange.step for this rank: in run, where each rank makes its own. samples: as for begin."""
        self._check_samples(samples)
        self._exchange._begins()
        self._write(gradients)
        self._exchange._rates_known(self._local)
        if check:
            self._exchange.core.check_gradients(self._local)
        self._exchange.core.whole_step(self._local, samples)
        self._exchange._look()

    def _check_samples(self, samples: Sequence[int] | None) -> None:
        if samples is not None and self._survivor is not None and self._survivor.grows:
            raise ValueError(
                f"samples={samples!r}: not where new ranks may join (--respawn), since the number of ranks is unknown "
                "before the step begins; allowed: Exchange.step(samples=n), for this rank"
            )

    def _write(self, gradients: Mapping[str, Any] | None) -> None:
        if gradients is not None:
            for name, value in given_arrays.named("gradients", gradients, list(self._gradients)).items():
                self._gradients[name] = value

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Replica of an Exchange cannot be copied or pickled, since it is a rank of a group; allowed: "
            "{name: w.copy() for name, w in replica.weights.items()}, exchange.state_dict()"
        )

    def __repr__(self) -> str:
        return f"Replica(rank {self.rank} of {self._exchange.size})" if self.lives else "Replica(has died)"


@named_keywords
class Exchange:
    """Arrays that are trained on several ranks by a strategy and an optimiser; the caller computes the gradients.

        x = gg.Exchange({"w": np.zeros((8, 3)), "b": np.zeros(3)}, optimizer=gg.SGD(lr=0.1))
        for batch in batches_of(x.rank):
            w, b = x.weights["w"], x.weights["b"]
            x.gradients["w"], x.gradients["b"] = gradients_of(w, b, batch)
            x.step()

    arrays       arrays of finite floating numbers by name, in the order of their use; they are copied, as float32.
                 NumPy's, and by DLPack those of JAX, PyTorch or CuPy in the host's memory. All ranks must give the
                 same names and shapes, and begin with the values of rank 0.
    strategy     a Strategy, without shuffle_samples; None: GossipGraD().
    optimizer    an Optimizer, whose schedule is not Plateau; None: SGD(lr=0.01, momentum=0.9).
    compression  None, or AdaComp(...), if the strategy compresses.
    comm         as for a Trainer: None for the MPI world, or one rank if no launcher started this process; a
                 VirtualCluster without a straggler, whose ranks are all in this process; a communicator of mpi4py.
    layers       arrays that become ready together: names of arrays by the layer's name, in the order of the forward
                 pass. None: each array is a layer.
    roles        of arrays by name: "weight", "bias", "scale", "shift", "statistic". Optimisers tell them apart
                 (no_decay, LARS). A statistic is not trained: its gradient is subtracted from it as it is. Left out:
                 "bias" for names that are or end with ".bias", ".b", else "weight".
    families     of arrays by name: "conv", "linear", "recurrent", "other", for bins of compression. Left out: "conv"
                 from 3 axes on, "linear" for 2, else "other".
    total        steps of all training, for schedules with total="auto".
    seed         of the strategy's draws: partners, rotation.
    threads      of each rank, for updates and mixes. None: OMP_NUM_THREADS, which `gossipgrad run
                 --threads N` sets, else 1.
    timeout      seconds that a wait for another rank may take before it fails; 0: for ever.
    network      a Network that slows the links down under MPI; a VirtualCluster has its own.
    trace        max spans that each rank records; 0: none.
    on_view      called with the Exchange and the change after ranks have died (run --survive; deaths= of a
                 VirtualCluster), or new ones have joined (--respawn). On a new rank before the constructor returns.

    ValueError, TypeError on all ranks: arguments that are not allowed, or differ between ranks.

    A process that was started in place of a dead one becomes a rank here: the constructor returns with the weights,
    moments, step and set learning rate of another rank. ValueError if its arguments differ from the others'; a script
    that catches it must end, because the others may wait for this rank. The loop begins at `steps`.

    All ranks make the same steps. A rank that leaves one out keeps its partners waiting, which `timeout` ends with an
    error. Every step waits for its exchanges before it ends, so weights are current after it. A caller whose gradients
    come layer by layer can hide the exchange behind computing: it makes the calls of a step itself, begin, need, ready,
    poll, end of a Replica.

    In a virtual cluster `replicas` has all ranks. There are two ways: write the gradients of all and call x.step()
    once, or let each rank run the same function. Each rank then has a thread of its own, and one runs at a time.
    Results are the same bits in every run and under MPI:

        def train(replica):
            for batch in batches_of(replica.rank):
                replica.step(gradients_of(replica.weights, batch))

        x = gg.Exchange(arrays, comm=gg.VirtualCluster(8))
        x.run(train)
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        strategy: strategies.Strategy | None = None,
        optimizer: optim.Optimizer | None = None,
        compression: AdaComp | None = None,
        comm: Any = None,
        layers: Mapping[str, Sequence[str]] | None = None,
        roles: Mapping[str, str] | None = None,
        families: Mapping[str, str] | None = None,
        total: int | None = None,
        seed: int = 0,
        threads: int | None = None,
        timeout: float = 0.0,
        network: cluster.Network | None = None,
        trace: int = 0,
        on_view: Callable[[Exchange, dict[str, Any]], object] | None = None,
    ) -> None:
        try:
            start = given_arrays.copies(arrays)
            self._shapes = Shapes({name: array.shape for name, array in start.items()})
            self.strategy = checked_strategy(strategy)
            if getattr(self.strategy, "shuffle_samples", False):
                raise ValueError("shuffle_samples=True: allowed only for a Trainer, which has the samples")
            self.optimizer = checked_optimizer(optimizer)
            if total is not None:
                self.optimizer = self.optimizer.of_total(integer("total", total, 1))
            elif self.optimizer.timing.auto:
                raise ValueError("a schedule with total='auto' needs total=, the steps of all training")
            if self.optimizer.timing.kind == "plateau":
                raise ValueError(
                    "schedule: 'plateau' follows a Trainer's epochs; allowed: learning_rate = ..., between steps"
                )
            self.compression = checked_compression(compression, self.strategy)
            self.seed = integer("seed", seed, 0, 2**64 - 1)
            listed = given_arrays.described(start, layers, roles, families)
            self._numbers = {name: number for number, (name, _) in enumerate(listed)}
            threads = environment.default_threads() if threads is None else integer("threads", threads, 1, 4096)
            spans = integer("trace", trace, 0)
            given = cluster.with_circumstances(comm, None, network)
            virtual = given if isinstance(given, cluster.VirtualCluster) else None
            if virtual is not None and virtual.straggler is not None:
                raise ValueError(f"straggler={virtual.straggler!r}: allowed only for a Trainer")
            cluster.refuse_joins(given)
            seconds = number("timeout", timeout, 0.0)
            if on_view is not None and not callable(on_view):
                raise TypeError(f"on_view={on_view!r}: allowed: None, or what can be called with the Exchange, change")
        except (TypeError, ValueError) as error:
            cluster.refuse(comm, "Exchange", error)
        self._team = cluster.make_team(given, seconds, network, survives=True)
        facts = {
            "gossipgrad": environment.VERSION,
            "arrays": {name: str(shape) for name, shape in self._shapes.items()},
            "layers": str([(name, [part[:1] + part[2:] for part in parts]) for name, parts in listed]),
            **self.strategy.settings(),
            "compression": "none" if self.compression is None else self.compression.settings(),
            **self.optimizer.settings(),
            "total": self.optimizer.total,
            "seed": self.seed,
            "timeout": seconds,
            "trace": spans,
            "slow network": network,
            **fingerprint.environment(),
        }
        with agreement.agreed(self._team, "Exchange") as one:
            surviving.check(self._team, "Exchange", begun=True)
            one.facts = facts
        notices.one_rank(self._team, network, timeout)
        notices.kernels_not_built(self._team.rank, environment.core_info())
        self._given = given
        self._rate: float | None = None
        self._rates_end = 0 if self._schedule(0, 1)["kind"] == "table" else -1
        used = exchanged(self.strategy, self.compression, self._team, cluster.links(given, network))
        self._core: _core.Exchange | None = _core.Exchange(
            self._team,
            listed,
            optimizer=self.optimizer.options() | {"schedule": self._schedule(0, 1)},
            strategy=strategy_options(self.strategy, used, self.compression),
            seed=self.seed,
            threads=threads,
            trace=spans,
            compute_time=virtual.step_seconds() if virtual else None,
        )
        self._replicas = tuple(Replica(self, local) for local in range(self._team.local))
        self._load("weight", given_arrays.of_root(self._team, start))
        self._survivor: Survivor | None = None
        if self._team.survives:
            self._core.check_survival()
            self._on_view = on_view
            alike = agreement.flat(facts | {"exchange used": str(used)})
            how = (lambda: self.core, self._adapt, self._told, lambda: self.core.leave())
            self._survivor = Survivor(self._team, *how, facts=alike, give=self._given_to_new, take=self._take)
            self._survivor.begin("Exchange")
            self._survivor.join()

    # ---- who and where

    @property
    def core(self) -> _core.Exchange:
        """The compiled exchange; RuntimeError after close()."""
        if self._core is None:
            raise RuntimeError("this Exchange is closed")
        return self._core

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._team.size

    @property
    def rank(self) -> int:
        """This process's rank; 0 of a virtual cluster."""
        return self._team.rank

    @property
    def virtual(self) -> bool:
        """True if all ranks live in this process, as threads."""
        return self._team.kind == "virtual"

    @property
    def view(self) -> View:
        """The ranks of the group that live: epoch, members, rank, size and changes. Those of a group whose ranks cannot
        die never change."""
        if self._survivor is not None:
            return self._survivor.view()
        return View(0, tuple(range(self.size)), self.rank, self.size, ())

    @property
    def workers(self) -> int:
        """Ranks that train, the first ones; the others only serve."""
        return self.core.workers

    @property
    def steps(self) -> int:
        """Steps done."""
        return self.core.step

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The ranks of this process: one, or all of a virtual cluster."""
        return self._replicas

    @property
    def weights(self) -> Mapping[str, Array]:
        """Replica.weights of this process's only rank; RuntimeError in a virtual cluster of several."""
        return self._only("weights").weights

    @property
    def gradients(self) -> Gradients:
        """Replica.gradients of this process's only rank; RuntimeError in a virtual cluster of several."""
        return self._only("gradients").gradients

    @property
    def learning_rate(self) -> float:
        """The rate of the next step. Set it between steps, to the same value on every rank; it replaces the
        schedule."""
        return self.optimizer.rate(self.steps) if self._rate is None else self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._rate = number("learning_rate", rate, 0.0, LARGEST)
        self.core.set_schedule(self._schedule(self.steps, 1))

    def counts(self, rank: int = 0) -> dict[str, float]:
        """Totals of a rank of this process, since the beginning.

        exposed_seconds  waited for others.
        bytes_sent, messages_sent  to others.
        skipped          exchanges left out to avoid waiting.
        clock_seconds    its clock: virtual time in a virtual cluster.
        residue          norm of the values that compression has not sent yet, divided by that of the weights. While
                         another thread is in a call of the rank, it may include values sent in the last step.
        """
        return self.core.counts(rank)

    # ---- training

    def step(
        self,
        gradients: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        samples: int | Sequence[int] | None = None,
        check: bool = True,
    ) -> None:
        """Update and exchange, with the written gradients; afterwards the weights are current.

        gradients  by name, to be written first: all arrays, of their shapes. In a virtual cluster of several ranks a
                   list of such, one a rank. None: the values in `gradients`.
        samples    the number of samples that this rank's gradients average; in a virtual cluster a list. Strategies
                   that average gradients then weight ranks by it. With MPI this costs one more small message to each
                   rank.
                   None: all ranks alike.
        check      a NaN or an infinity in a gradient is a FloatingPointError that names the array. Nothing is done
                   before this check, so this rank can repeat the step.

        Every rank makes the same steps. ValueError for names and shapes, TypeError for dtypes. An error about samples=
        is raised on all ranks, and nothing is done.
        """
        self._begins()
        if gradients is not None:
            given = [gradients] if isinstance(gradients, Mapping) else list(gradients)
            if len(given) != len(self._replicas):
                raise ValueError(f"gradients: of {len(given)} ranks; this process has {len(self._replicas)}")
            for replica, one in zip(self._replicas, given, strict=True):
                replica._write(one)
        self._prepare_rates(1)
        if check:
            self.core.check_gradients()  # before the ranks agree on samples, which a repeated step would do again
        self.core.whole_step(None, self._batches(samples))
        self._look()

    def run(self, function: Callable[[Replica], Any]) -> list[Any]:
        """function(replica) for each rank of this process; returns the results by rank.

        In a virtual cluster each rank has a thread of its own, and one runs at a time. Another runs when this one waits
        for a message or has returned. An exception of one rank is raised, and the others end at their next wait; Ctrl-C
        is raised in the next call of each. The exchange is then of no more use. A schedule that is a function lasts for
        1000 steps of a run there: RuntimeError in the next one. Elsewhere the function is just called.
        """
        if not callable(function):
            raise TypeError(f"function is a {type(function).__name__}; allowed: what can be called with a replica")
        made: dict[int, Any] = {}
        if self.virtual and self._survivor is not None:
            raise RuntimeError("run: not where virtual ranks die (deaths=); allowed: step(), of all ranks at once")
        self._prepare_rates(_RATES)

        def call(local: int) -> None:
            made[local] = function(self._replicas[local])

        self.core.run(call)
        return [made[local] for local in range(len(self._replicas))]

    # ---- state, at rest

    @collective
    def settle(self) -> None:
        """Complete all exchanges in flight. Collective."""
        self.core.settle()

    @collective
    def consensus_weights(self) -> Arrays:
        """The strategy's own model if it has one, else the mean of the weights over the ranks. Collective."""
        return self._shapes.shaped(self.core.consensus_weights())

    @collective
    def consensus_distance(self) -> float:
        """Mean over the ranks of |w - mean| / |mean|; statistics left out. Collective."""
        return self.core.consensus_distance()

    @collective
    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the weights of all ranks, to rank 0's. Names and shapes must fit. Collective.

        Moments stay. Residues of compression and copies of partners begin at zero, scalars of push-sum at 1, and outer
        weights are these.

        ValueError, TypeError on all ranks: a weight does not fit, or is NaN or infinite.
        """
        with agreement.agreed(self._team, "Exchange.load_weights"):
            given = self._shapes.fitting_all("weights", weights)
        self._load("weight", given_arrays.of_root(self._team, given))
        mixing.forget(self.core)

    @collective
    def state_dict(self) -> dict[str, Any]:
        """The complete training state as a dict of numbers, texts and arrays: of all ranks, on every rank.

        Settles. Collective. load_state_dict continues from it with the same bits as an uninterrupted run.
        """
        made = saved_state.gathered(self.core, self._team, self._shapes, self.seed)
        compression = None if self.compression is None else self.compression.settings()
        settings = {"strategy": self.strategy.settings(), "optimizer": self.optimizer.settings()}
        return {**made, **settings, "compression": compression, "learning_rate": self._rate}

    @collective
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of state_dict, with the same arrays and seed. Collective.

        On another number of ranks all begin with the consensus weights and the mean of moments, and share the sum of
        residues. Scalars of push-sum begin at 1 there, and under another strategy or schedule of partners.

        Another strategy or optimiser may continue from it as well. Moments that the state lacks, or has of another kind
        of optimiser, begin at zero. Outer weights begin at the consensus, and copies for other partners begin anew. If
        the strategy gives all ranks the same weights, they begin from the consensus. ValueError if the state has a NaN,
        an infinity, or a residue of compression with another meaning to this strategy.

        A learning_rate that was set stays, unless the optimiser here has another lr or schedule. ValueError on all
        ranks if their states differ, and for a step before that in which ranks have last died or joined.
        """
        with agreement.agreed(self._team, "Exchange.load_state_dict") as one:
            here = {**self.strategy.settings(), **self.optimizer.settings()}
            here["compression"] = None if self.compression is None else self.compression.settings()
            how = self.size, self.workers, self.seed, here, self.core.arenas()
            parts, consensus, times = saved_state.checked(state, self._shapes, *how)
            rate = saved_state.set_rate(state, self.optimizer)
            if self._survivor is not None:
                self._survivor.check_step(int(state["step"]))
            one.facts = {
                "step": int(state["step"]),
                "consensus": lambda: fingerprint.weights(consensus),
                "learning_rate": rate,
            }
        saved_state.resume(self.core, self._team, self._shapes, state, parts, consensus, times, here)
        self._rate = rate
        self.core.set_schedule(self._schedule(self.steps, 1))
        self._prepare_rates(1)

    @collective
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write state_dict to a file, an .npz of NumPy, by rank 0; it appears complete or not at all. Collective.

        CheckpointError: not written.
        """
        state = self.state_dict()

        def write() -> None:
            if self.rank == 0:
                files.write_atomically(path, saved_state.packed(state))

        agreement.together(self._team, f"{os.fspath(path)}", write, f"step {self.steps}")

    @collective
    def load(self, path: str | os.PathLike[str]) -> None:
        """load_state_dict of a file that save wrote. Collective; every rank reads it.

        CheckpointError: an unreadable file, or one that save did not write. ValueError as of load_state_dict.
        """
        found: list[dict[str, Any]] = []

        def read() -> None:
            found.append(saved_state.unpacked(files.content(path)))

        agreement.together(self._team, f"{os.fspath(path)}", read, f"step {self.steps}")
        self.load_state_dict(found[0])

    @collective
    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of all ranks (trace= of the constructor) for chrome://tracing or Perfetto. Collective.

        gossipgrad.state.trace describes the file. A rank with more spans than trace= keeps the newest; "spans_lost" of
        the file counts the lost ones by rank.
        """
        with agreement.agreed(self._team, "Exchange.write_trace", f"step {self.steps}") as one:
            one.facts = {"path": outputs.check_path("path", path)}
        self.settle()
        trace.write(self.core, self._team, (), list(self._numbers), path)

    def close(self) -> None:
        """Free the memory and the group, once no array of it is used any more. Collective.

        Where ranks may die, a process that ends without it has died.
        """
        if self._survivor is not None:
            self._survivor.end()
            self._survivor = None  # after it, because ranks may die until all end
        self._replicas = ()
        self._core = None

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._survivor is not None and not self.virtual:
            surviving.end(self._team, error)  # an error of this rank alone must not wait for the others
            return
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an Exchange cannot be copied or pickled, since it is ranks of a group; allowed: x.state_dict() and "
            "load_state_dict of a new Exchange(...), or x.save(PATH) and its load(PATH)"
        )

    def __repr__(self) -> str:
        if self._core is None:
            return "Exchange(closed)"
        arrays = ", ".join(f"{name} {shape}" for name, shape in self._shapes.items())
        where = f"rank {self.rank} of {self.size}" if not self.virtual else f"{self.size} virtual ranks"
        return f"Exchange({arrays}; {self.strategy.name}, {self.optimizer.name}; {where}, step {self.steps})"

    # ---- within

    def _begins(self) -> None:
        """Before a step: new ranks may join. Written gradients stay."""
        if self._survivor is not None:
            self._survivor.begins()

    def _look(self) -> None:
        """After a step: go on without ranks that have died, and with new ones."""
        if self._survivor is not None:
            self._survivor.stepped()

    def _adapt(self, change: Mapping[str, Any]) -> None:
        """The replicas of the ranks that live, with their numbers of now."""
        former = self._replicas
        self._replicas = tuple(former[local] for local in change["local"])
        for replica in former:
            replica._local = -1
        for local, replica in enumerate(self._replicas):
            replica._local = local

    def _given_to_new(self) -> bytes:
        """Packs the learning rate that was set, for new ranks."""
        return json.dumps({"rate": self._rate}).encode()

    def _take(self, given: bytes) -> None:
        """Takes the result of the donor's `_given_to_new`, on a new rank."""
        self._rate = json.loads(given)["rate"]
        self.core.set_schedule(self._schedule(self.steps, 1))

    def _told(self, change: dict[str, Any]) -> None:
        if self._on_view is not None:
            self._on_view(self, change)

    def _only(self, what: str) -> Replica:
        self.core  # noqa: B018 - raises if it is closed
        if len(self._replicas) != 1:
            raise RuntimeError(f"{what}: there are {len(self._replicas)} ranks here; allowed: replicas[r].{what}")
        return self._replicas[0]

    def _layer(self, name: str) -> int:
        if name not in self._numbers:
            there = ", ".join(self._numbers)
            raise ValueError(f"layer={name!r}: allowed: {there}{did_you_mean(name, self._numbers)}")
        return self._numbers[name]

    def _load(self, arena: str, arrays: Mapping[str, Any]) -> None:
        self.core.load_arena(arena, self._shapes.flat(arrays))

    def _batches(self, samples: Any) -> list[int] | None:
        """The samples of every rank of the group."""
        if samples is None:
            return None
        if self.virtual:
            given = [samples] if isinstance(samples, (int, np.integer)) else samples
            if isinstance(given, str) or not hasattr(given, "__len__"):
                raise TypeError(f"samples={samples!r}: allowed in a virtual cluster: a number for each rank")
            if len(given) != self.size:
                raise ValueError(f"samples={samples!r}: allowed in a virtual cluster: {self.size} numbers, one a rank")
            return [integer("samples", one, 0, _MAX_SAMPLES) for one in given]
        with agreement.agreed(self._team, "Exchange.step", f"step {self.steps}") as one:
            one.number = integer("samples", samples, 0, _MAX_SAMPLES)
        return one.numbers

    def _schedule(self, first: int, count: int) -> dict[str, Any]:
        """The core's description of the rates of these steps."""
        if self._rate is not None:
            return {"kind": "constant", "lr": self._rate}
        return self.optimizer.rates(first, count)

    def _prepare_rates(self, steps: int) -> None:
        """Give the core the rates of the next steps, if it does not know them: of a schedule that is a function."""
        schedule = self._schedule(max(self.steps - 1, 0), steps + 1)  # an exchange in flight may be of the step before
        if schedule["kind"] == "table":
            self.core.set_schedule(schedule)
            self._rates_end = self.steps + steps
        else:
            self._rates_end = -1

    def _rates_known(self, local: int) -> None:
        """RuntimeError if a function gives the rates, and run has made more steps than it has evaluated."""
        if self._rates_end >= 0 and self.steps >= self._rates_end:
            if self.virtual:
                raise RuntimeError(
                    f"a schedule that is a function gives the rates of {_RATES} steps of a run; allowed: several runs"
                )
            self._prepare_rates(_RATES)
