"""The trainer: a network, a loss, an optimiser and a strategy on the ranks of a group.

Collective means: all ranks of an MPI group call it, in the same order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core, checkpoint, cluster, environment, optim, safetensors, strategies
from gossipgrad import callbacks as _callbacks
from gossipgrad import trace as _trace
from gossipgrad.callbacks import Callback, Progress, StopOnNaN
from gossipgrad.data.arrays import Dataset, as_dataset, one_sided, samples_array, targets_array
from gossipgrad.errors import CheckpointError, CommunicationError, choice, flag, integer, number
from gossipgrad.history import History, Record, ordered
from gossipgrad.model import Model
from gossipgrad.optim import SGD, Optimizer
from gossipgrad.progress import ProgressBar

LOSSES = ("cross_entropy", "binary_cross_entropy", "mean_squared_error")
BACKENDS = (None, "onednn", "native")
CHUNK = 0.2  # seconds of training between looks at signals and progress

Arrays = dict[str, NDArray[np.float32]]


class Trainer:
    """Trains `net` on every rank of `comm`.

    loss       "cross_entropy" (softmax; integer classes), "binary_cross_entropy" (of scores, "with logits"; targets
               0..1), "mean_squared_error"; each the mean over a batch.
    optimizer  gossipgrad.SGD(...) or Adam(...); default SGD(lr=0.01, momentum=0.9).
    strategy   gossipgrad.GossipGraD(...), AllReduce(), LayerwiseAllReduce(),
               PeriodicAllReduce(...), PullGossip(...), PushGossip(...), OverlappedAveraging(...),
               ElasticAveraging(...), ParameterServer(...), NoExchange(); default GossipGraD().
    seed       of initial weights, order of samples, dropout and rotation.
    comm       None: the MPI world where mpiexec started this process, else one rank; a VirtualCluster(p): p ranks in
               this process; an mpi4py communicator: that group.
    threads    of each rank; None: OMP_NUM_THREADS, else 1.
    backend    "onednn", "native"; None: $GOSSIPGRAD_BACKEND, else each operation from the faster one.
    dtype      "float32"; device: "cpu"; others are not there yet.
    trace      spans kept a rank for write_trace; 0: none.
    timeout    seconds a rank waits for another's message before it fails (CommunicationError: the step, the layers, the
               other rank); 0: for ever. To be longer than any step, callback or write of a file takes, and than ranks
               differ in making the trainer. MPI's own start and end cannot fail so: there it is only said. In a
               virtual cluster seconds are virtual ones. Without effect, and warned of, with one rank.
    straggler  gossipgrad.Straggler(...): ranks that now and then come late; None: none but a VirtualCluster's.
    network    gossipgrad.Network(...): slow links; None: as they are, or a VirtualCluster's. With one rank:
               like timeout.

    Creating one is collective, as are fit, evaluate, predict, save, load, train_step and what shows weights.
    """

    def __init__(
        self,
        net: Model,
        *,
        loss: str = "cross_entropy",
        optimizer: Optimizer | None = None,
        strategy: strategies.Strategy | None = None,
        seed: int = 0,
        comm: Any = None,
        threads: int | None = 1,
        backend: str | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        trace: int = 0,
        timeout: float = 0.0,
        straggler: cluster.Straggler | None = None,
        network: cluster.Network | None = None,
    ) -> None:
        if not isinstance(net, Model):
            raise TypeError(f"net is a {type(net).__name__}; wanted a gossipgrad.Model")
        self.net = net
        self.loss: str = choice("loss", loss, LOSSES)
        self.optimizer = SGD(lr=0.01, momentum=0.9) if optimizer is None else optimizer
        if not isinstance(self.optimizer, Optimizer) or not self.optimizer.name:
            allowed = ", ".join(f"gossipgrad.{c.__name__}(...)" for c in optim.BY_NAME.values())
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; allowed: {allowed}")
        self.strategy = strategies.GossipGraD() if strategy is None else strategy
        if not isinstance(self.strategy, strategies.Strategy) or not self.strategy.name:
            allowed = ", ".join(f"gossipgrad.{c.__name__}()" for c in strategies.BY_NAME.values())
            raise TypeError(f"strategy={strategy!r}: allowed: {allowed}")
        self.seed = integer("seed", seed, 0, 2**64 - 1)
        self.threads = environment.default_threads() if threads is None else integer("threads", threads, 1, 4096)
        self.backend: str | None = choice("backend", backend, BACKENDS)
        choice("dtype", dtype, ("float32",))
        choice("device", device, ("cpu",))
        self.trace = integer("trace", trace, 0)
        if self.loss == "cross_entropy" and len(net.output_shape) != 1:
            raise ValueError(
                f"loss='cross_entropy' wants one score a class, a network output of shape (classes,); "
                f"{net.name!r} gives {net.output_shape}"
            )
        self.comm = cluster.with_circumstances(comm, straggler, network)
        self.straggler, self.network = straggler, network
        self.compute_time: list[float] | None = None
        self._straggler_seed = self.seed
        if isinstance(self.comm, cluster.VirtualCluster):
            self.straggler = self.comm.straggler
            self.network = cluster.Network(self.comm.latency, self.comm.bandwidth)
            self.compute_time = self.comm.step_seconds()
            self._straggler_seed = self.seed if self.comm.seed is None else self.comm.seed
        self.team = cluster.make_team(self.comm, number("timeout", timeout, 0.0), network)
        # What partners exchange, where the strategy's "auto" has become something; None: the strategy does not ask.
        self.exchange: str | None = None
        if isinstance(self.strategy, strategies.GossipGraD):
            self.exchange = self.strategy.exchange_on(self.team.nodes()[0])
        self._warn_of_missing_partners()
        self._warn_of_one_rank(network, timeout)
        self.stop = False
        self.epoch = 0  # epochs done
        self.last_epoch = 0  # number of the last epoch of this fit
        self.validating = False
        self.history = History(ranks=self.size)
        self._fit_settings: Record = {}
        self._total: int | None = None
        self._core: _core.Trainer | None = None
        self._make(None)

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
        """Do all ranks live in this process, as threads?"""
        return self.team.kind == "virtual"

    @property
    def step(self) -> int:
        """Updates done."""
        return self.core.step

    @property
    def core(self) -> _core.Trainer:
        """The compiled trainer; RuntimeError after close()."""
        if self._core is None:
            raise RuntimeError("this trainer is closed")
        return self._core

    @property
    def tuning(self) -> Record:
        """What messages between the ranks cost, as measured, and the buckets and chunks made for it: docs/report.md.

        Empty for strategies that have none, or whose sizes are not tuned.
        """
        return dict(self.core.tuning())

    def __repr__(self) -> str:
        return f"<Trainer of {self.net.name} by {self.strategy.name} on {self.size} ranks ({self.team.kind})>"

    def _warn_of_missing_partners(self) -> None:
        """The cube of p ranks that are no power of two has gaps; nodes of unlike size may have no common divisor."""
        if not isinstance(self.strategy, strategies.GossipGraD) or self.rank != 0:
            return
        count, size = self._nodes(self.strategy)
        if self.strategy.hierarchical and size == 1 < self.size and self.strategy.ranks_per_node != 1:
            warnings.warn(
                f"hierarchical=True with {self.size} ranks: their nodes are of unlike sizes without a common divisor, "
                "so every rank is a node of its own",
                stacklevel=3,
            )
        if self.strategy.topology == "cube" and count & (count - 1):
            what = "nodes" if self.strategy.hierarchical else "ranks"
            warnings.warn(
                f"topology='cube' with {count} {what}: in some steps some {what} have no partner; "
                f"'dissemination' has partners for any number of {what}",
                stacklevel=3,
            )

    def _warn_of_one_rank(self, network: cluster.Network | None, timeout: float) -> None:
        """It sends no message that these could delay or end; most likely a launcher was meant."""
        if self.virtual or self.size > 1:
            return
        for argument, value, without in (("network", network, None), ("timeout", timeout, 0.0)):
            if value != without:
                warnings.warn(
                    f"{argument}={value!r}: without effect, one rank sends no messages; gossipgrad run -n P or mpiexec "
                    "starts several, a VirtualCluster (--virtual-ranks) has them",
                    stacklevel=3,
                )

    def _make(self, total: int | None) -> None:
        """A core trainer in the initial state, or in the state of the one before it.

        total: the steps of training, where the schedule's length is "auto"; None: not known yet.
        """
        state = self._state() if self._core is not None else None
        self._core = None  # frees its memory first
        self._core = _core.Trainer(
            self.net.graph,
            self.team,
            loss=self.loss,
            optimizer=self.optimizer.options(total or 1),
            strategy=self.strategy.options() | ({} if self.exchange is None else {"exchange": self.exchange}),
            seed=self.seed,
            threads=self.threads,
            backend=self.backend,
            trace=self.trace,
            straggler=self._straggler_options(),
            compute_time=self.compute_time,
        )
        self._total = total
        if state is not None:
            self._set_state(*state)
        elif self.net.loaded:
            self._core.load_weights(self.net.weights())

    def _straggler_options(self) -> tuple[float, float, int]:
        one = self.straggler or cluster.Straggler(0.0, 0.0)
        return float(one.probability), float(one.delay), self._straggler_seed

    def _rank_state(self, local: int) -> dict[str, Arrays]:
        """All that a local rank trains with, by name; empty where the optimiser keeps none."""
        core = self.core
        return {
            "weight": core.weights(local),
            "momentum": core.momentum(local),
            "second_moment": core.second_moment(local),
        }

    def _state(self) -> tuple[int, list[dict[str, Arrays]], Arrays]:
        parts = [self._rank_state(local) for local in range(self.team.local)]
        return self.core.step, parts, self.core.consensus_weights()

    def _set_state(self, step: int, parts: Sequence[dict[str, Arrays]], consensus: Arrays) -> None:
        core = self.core
        core.load_consensus(consensus)
        for local, part in enumerate(parts):
            core.load_weights(part["weight"], local)
            # What another optimiser left is of no use to this one.
            if part["momentum"] and core.momentum(local):
                core.load_momentum(part["momentum"], local)
            if part["second_moment"] and core.second_moment(local):
                core.load_second_moment(part["second_moment"], local)
        core.step = step

    def close(self) -> None:
        """Free the core's memory. Collective."""
        self.team.together()
        self._core = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- agreement among the processes of an MPI group

    def _alone(self) -> bool:
        return self.team.kind != "mpi" or self.size == 1

    def _any(self, mine: bool) -> bool:
        """Is it so on any rank?"""
        return mine if self._alone() else any(one == b"\1" for one in self._allgather(b"\1" if mine else b"\0"))

    def _together(self, what: str, work: Callable[[], None]) -> None:
        """Do this on every process; where one fails, all raise CheckpointError with the first one's reason."""
        problem = ""
        try:
            work()
        except (OSError, CheckpointError) as error:
            problem = f"{what}: {error}"
        problems = [problem] if self._alone() else [one.decode() for one in self._gather(problem.encode())]
        for rank, text in enumerate(problems):
            if text:
                raise CheckpointError(text if rank == self.rank or self._alone() else f"{text} (on rank {rank})")

    def _allgather(self, data: bytes) -> list[bytes]:
        """Every process's bytes, all of one length, by rank."""
        try:
            return self.team.allgather(data)
        except CommunicationError as error:
            raise CommunicationError(f"step {self.step}, between epochs: {error}") from None

    def _gather(self, data: bytes) -> list[bytes]:
        """Every process's bytes, of any length, by rank."""
        if self._alone():
            return [data]
        longest = max(int.from_bytes(n, "little") for n in self._allgather(len(data).to_bytes(8, "little")))
        framed = len(data).to_bytes(8, "little") + data.ljust(longest, b"\0")
        return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in self._allgather(framed)]

    # ---- training

    def fit(
        self,
        train: Any,
        validation: Any = None,
        epochs: int = 1,
        batch_size: int = 64,
        callbacks: Iterable[Callback] = (),
        validate_replicas: bool = False,
        shuffle: bool = True,
        progress: bool = True,
        resume: str | os.PathLike[str] | None = None,
    ) -> History:
        """Train for `epochs` epochs and return the history (all epochs of this trainer).

        train, validation  a gossipgrad.data.Dataset or (samples, targets). Every rank gives the whole set and trains on
                           its shard of it, a contiguous part, so samples should come in a random order (a warning
                           says when they look sorted by class); the consensus model is validated: the replicas'
                           mean, or the centre of ElasticAveraging and ParameterServer.
                           uint8 samples are not scaled unless by their Dataset (a warning says so): pixels want
                           gg.data.Dataset(x, y, scale=1/255).
        batch_size         samples a rank and step.
        validate_replicas  validates every rank's own weights as well.
        resume             a checkpoint: go on from it, up to `epochs` epochs in all, as if training had never stopped.
        callbacks          see gossipgrad.callbacks; a ProgressBar (if `progress`) and StopOnNaN are added.

        ValueError, TypeError: data that do not fit the network or the ranks. FloatingPointError: the loss is NaN.
        CheckpointError: `resume` does not fit. Collective.
        """
        self.team.together()
        train_set = as_dataset(train, "train")
        validation_set = None if validation is None else as_dataset(validation, "validation")
        epochs = integer("epochs", epochs, 1)
        batch_size = integer("batch_size", batch_size, 1)
        flag("validate_replicas", validate_replicas)
        flag("shuffle", shuffle)
        if validate_replicas and validation_set is None:
            raise ValueError("validate_replicas=True: allowed only with validation data")
        shapes = (self.loss, self.net.input_shape, self.net.output_shape)
        train_core = train_set.for_network(*shapes)
        validation_core = None if validation_set is None else validation_set.for_network(*shapes)
        check_batch(train_set, self.workers, batch_size)
        self._warn_of_sorted(train_set)
        self._warn_of_pixels(train_set, validation_set)
        actors = list(callbacks)
        for actor in actors:
            if not isinstance(actor, Callback):
                raise TypeError(f"callbacks: {actor!r} is no gossipgrad.callbacks.Callback")
        if not any(isinstance(actor, StopOnNaN) for actor in actors):
            actors.insert(0, StopOnNaN())
        if progress and not any(isinstance(actor, ProgressBar) for actor in actors):
            actors.insert(1, ProgressBar())

        self._fit_settings = {
            "dataset": train_set.name,
            "train_samples": len(train_set),
            "validation_samples": 0 if validation_set is None else len(validation_set),
            "epochs": epochs,
            "batch_size": batch_size,
            "shuffle": shuffle,
            "validate_replicas": validate_replicas,
        }
        if resume is not None:
            self._restore(resume)
        self.last_epoch = epochs if resume is not None else self.epoch + epochs
        steps = math.ceil(math.ceil(len(train_set) / self.workers) / batch_size)
        total = self.step + max(self.last_epoch - self.epoch, 0) * steps
        if self.optimizer.schedule.auto and self._total != total:
            self._make(total)
        self.history.settings = self.settings()
        self.history.environment = self._environment()
        self.history.ranks = self.size
        self.history.schedule = self._schedule()
        self.history.tuning = self.tuning
        self.history.model = {"name": self.net.name, "parameters": self.net.parameters}
        self.history.weights_sha256 = []
        self.stop = False
        self.validating = validation_core is not None

        self.core.begin(train_core, batch_size, shuffle)
        try:
            _callbacks.call(actors, "on_fit_begin", self)
            while self.epoch < self.last_epoch and not self.stop:
                self._epoch(actors, steps, validation_core, batch_size, validate_replicas)
        finally:
            _callbacks.call(actors, "on_fit_end", self)
        self.history.weights_sha256 = self.weights_sha256()
        return self.history

    def _warn_of_sorted(self, train: Dataset) -> None:
        """Replicas that see unlike samples drift apart, and what they learn in common suffers."""
        if self.rank or not self.strategy.replicas_differ or getattr(self.strategy, "shuffle_samples", False):
            return
        what = one_sided(train.targets, self.workers)
        if what is not None:
            warnings.warn(
                f"train: {what}: the samples look sorted by class, and ranks train on contiguous shards. Put the "
                "samples into a random order, the same on every rank, or let them move (shuffle_samples=True, where "
                "the strategy has it)",
                stacklevel=3,
            )

    def _warn_of_pixels(self, train: Dataset, validation: Dataset | None) -> None:
        """Images are uint8, and a network that is to learn from 0..255 seldom does."""
        for argument, one in (("train", train), ("validation", validation)):
            if self.rank or one is None or one.samples.dtype != np.uint8 or one.scale != 1.0:
                continue
            highest = one.samples[:1000].max(initial=0)  # the set may be large
            if highest <= 1:
                continue
            warnings.warn(
                f"{argument}: uint8 samples of 0..{highest} are taken as they are; if they are pixels, "
                "gg.data.Dataset(x, y, scale=1/255) makes them 0..1",
                stacklevel=3,
            )
            return

    def _epoch(
        self,
        actors: list[Callback],
        steps: int,
        validation: _core.Dataset | None,
        batch_size: int,
        validate_replicas: bool,
    ) -> None:
        _callbacks.call(actors, "on_epoch_begin", self, self.epoch + 1)
        self.core.epoch(self.epoch)
        self._steps(actors, steps)
        record: Record = {"epoch": self.epoch + 1, **self.core.end_epoch()}
        self.history.partitioned_fc = self.core.partitioned_fc()
        for key in ("bytes", "messages"):
            record[f"{key}_per_rank_step"] = record[f"{key}_sent"] / (self.size * record["steps"])
        if validation is not None:
            record["validation"] = dict(self.core.evaluate(validation, batch_size, False)[0])
            if validate_replicas:
                record["validation_replicas"] = [dict(one) for one in self.core.evaluate(validation, batch_size, True)]
        record = ordered(record)
        self.epoch += 1
        self.history.epochs.append(record)
        _callbacks.call(actors, "on_epoch_end", self, record)
        self.stop = self._any(self.stop)

    def _steps(self, actors: list[Callback], steps: int) -> None:
        """One epoch's steps, in pieces of about CHUNK seconds: between them Python sees signals and shows progress.

        In a virtual cluster in one piece that is watched meanwhile: what a rank has at hand when a piece ends must not
        depend on the wall clock.
        """
        begin = shown = time.perf_counter()
        if self.virtual:
            self.core.run(steps, lambda: self._show(actors, steps, time.perf_counter() - begin))
            self._show(actors, steps, time.perf_counter() - begin)
            return
        done, piece = 0, 1
        while done < steps:
            start = time.perf_counter()
            before, done = done, self.core.run(min(piece, steps - done))
            now = time.perf_counter()
            if done == before:
                raise RuntimeError(f"the epoch ended after {done} of {steps} steps")
            a_step = max((now - start) / (done - before), 1e-7)
            piece = max(1, min(int(CHUNK / a_step), 4 * piece))
            if now - shown >= CHUNK / 2 or done == steps:
                shown = now
                self._show(actors, steps, now - begin)

    def _show(self, actors: list[Callback], steps: int, seconds: float) -> None:
        counts = self.core.progress()
        samples = int(counts["samples"])
        progress = Progress(
            epoch=self.epoch + 1,
            epochs=self.last_epoch,
            step=int(counts["steps"]),
            steps=steps,
            samples=samples,
            loss=float(counts["loss"]),
            accuracy=float(counts["correct"]) / samples if samples else 0.0,
            seconds=seconds,
            samples_per_second=samples * self.workers / min(self.team.local, self.workers) / max(seconds, 1e-9),
        )
        self.team.apart = self.virtual or self.size > 1
        try:
            _callbacks.call(actors, "on_progress", self, progress)
        finally:
            self.team.apart = False

    def train_step(self, x: Any, y: Any) -> Any:
        """One step on this rank's batch (x, y); returns its mean loss. For tests and research.

        In a virtual cluster x and y are lists with one batch a rank, and a list comes back. Collective.
        """
        if self.optimizer.schedule.auto and self._total is None:
            raise ValueError("total='auto' is known only in fit; give the schedule's total in steps")
        if self.virtual:
            for argument, value in (("x", x), ("y", y)):
                if not isinstance(value, (list, tuple)) or len(value) != self.size:
                    found = f"{len(value)} of them" if isinstance(value, (list, tuple)) else type(value).__name__
                    raise ValueError(f"{argument}: a virtual cluster wants a list of {self.size} batches; got {found}")
            pairs = list(zip(x, y, strict=True))
        else:
            pairs = [(x, y)]
        samples, targets = [], []
        for one, answers in pairs:
            samples.append(self._batch(one, "x"))
            targets.append(targets_array(answers, self.loss, self.net.output_shape, "y"))
            if len(samples[-1]) != len(targets[-1]):
                raise ValueError(f"x has {len(samples[-1])} samples, y {len(targets[-1])}")
        losses = self.core.train_step(samples, targets)
        return losses if self.virtual else losses[0]

    def _batch(self, x: Any, what: str) -> NDArray[np.float32]:
        array = samples_array(x, what)
        if array.shape[1:] != self.net.input_shape or not len(array):
            raise ValueError(f"{what}: shape {array.shape}, but the network wants (n, {str(self.net.input_shape)[1:]}")
        return np.ascontiguousarray(array, np.float32)

    # ---- using the network

    def evaluate(self, data: Any, batch_size: int = 256, replicas: bool = False) -> Any:
        """{"loss": ..., "accuracy": ...} of the consensus model; with `replicas` a list, one rank's own weights each.

        The set is split over the ranks (not with `replicas`). Collective.
        """
        data_set = as_dataset(data, "data").for_network(self.loss, self.net.input_shape, self.net.output_shape)
        results = self.core.evaluate(data_set, integer("batch_size", batch_size, 1), flag("replicas", replicas))
        return [dict(one) for one in results] if replicas else dict(results[0])

    def predict(self, x: Any, batch_size: int = 256) -> NDArray[np.float32]:
        """The consensus model's outputs (n, ...) for samples (n, ...) or a Dataset; the same on every rank. Collective.

        Scores: for "cross_entropy" and "binary_cross_entropy" no softmax or sigmoid is applied.
        """
        batch_size = integer("batch_size", batch_size, 1)
        if isinstance(x, Dataset):
            if x.shape != self.net.input_shape:
                raise ValueError(f"x: samples of shape {x.shape}, but the network's input is {self.net.input_shape}")
            rows = max(batch_size, 4096)
            return np.concatenate([self.core.predict(np.ascontiguousarray(b), batch_size) for b in x.batches(rows)])
        return self.core.predict(self._batch(x, "x"), batch_size)

    # ---- state, at rest

    def _local(self, rank: int) -> int:
        """`rank` among the ranks of this process."""
        return integer("rank", rank, 0, self.team.local - 1)

    def settle(self) -> None:
        """Complete and mix what is in flight. Collective."""
        self.core.settle()

    def audit_samples(self) -> Record:
        """Prove that all samples of fit's training set are there, each on one rank, by counting them. Collective.

        {"ok": bool, "samples": held by all ranks, "missing": ids that nobody has, "duplicate": ids too many, "altered":
        samples that are not bit for bit those of the set with their ids, "first_missing", "first_duplicate",
        "first_altered": the first such id, or None}. An id is the number of a sample in the set. Called at the same
        step on all ranks, whatever step that is. RuntimeError before fit.
        """
        found = self.core.audit_samples()
        return {"ok": not (found["missing"] or found["duplicate"] or found["altered"]), **found}

    def sample_ids(self, rank: int = 0) -> NDArray[np.int32]:
        """Which samples of fit's training set this rank holds now, in the order of its shard. Collective.

        `rank`: which one, in a virtual cluster. Without shuffle_samples they are those that it began with. RuntimeError
        before fit.
        """
        return self.core.sample_ids(self._local(rank))

    def weights(self, rank: int = 0) -> Arrays:
        """This rank's weights by name, copies. `rank`: which one, in a virtual cluster. Collective."""
        self.core.settle()
        return self.core.weights(self._local(rank))

    def consensus_weights(self) -> Arrays:
        """The mean of all replicas' weights by name, or the centre, where the strategy has one. Collective."""
        return self.core.consensus_weights()

    def gradients(self, rank: int = 0) -> Arrays:
        """The gradients of the last step by name, copies. Collective."""
        self.core.settle()
        return self.core.gradients(self._local(rank))

    def momentum(self, rank: int = 0) -> Arrays:
        """SGD's momentum or Adam's first moment by name, copies; empty without momentum. Collective."""
        self.core.settle()
        return self.core.momentum(self._local(rank))

    def optimizer_state(self, rank: int = 0) -> dict[str, Any]:
        """{"step": updates done, "momentum": arrays by name, "second_moment": Adam's, else empty}. Collective."""
        self.core.settle()
        moments = {key: value for key, value in self._rank_state(self._local(rank)).items() if key != "weight"}
        return {"step": self.step, **moments}

    def consensus_distance(self) -> float:
        """The mean over ranks of |w_r - w_mean| / |w_mean|. Collective."""
        return self.core.consensus_distance()

    def load_weights(self, weights: Any) -> None:
        """Give every rank, and a centre, these weights: arrays by name or a .safetensors file. Momentum, step stay."""
        what = "weights"
        if isinstance(weights, (str, os.PathLike)):
            what = os.fspath(weights)
            weights = safetensors.read(weights)[0]
        checked = self.net.check_weights(weights, what)
        self.core.settle()
        self.core.load_weights(checked)

    def weights_sha256(self) -> list[str]:
        """One a rank: SHA-256 of its weights as little-endian float32, in the order of the network. Collective."""
        own = []
        self.core.settle()
        for local in range(self.team.local):
            digest = hashlib.sha256()
            for array in self.core.weights(local).values():
                digest.update(np.ascontiguousarray(array, "<f4").data)
            own.append(digest.hexdigest())
        return own if self._alone() else [one.decode() for one in self._gather(own[0].encode())]

    # ---- what it is, in terms of JSON

    def settings(self) -> Record:
        """All options by their names on the command line."""
        virtual = self.comm.settings() if isinstance(self.comm, cluster.VirtualCluster) else None
        return {
            "model": self.net.name,
            **self._fit_settings,
            **self.strategy_settings(),
            "loss": self.loss,
            **self.optimizer.settings(),
            "seed": self.seed,
            "threads": self.threads,
            "backend": self.backend,
            "dtype": "float32",
            "device": "cpu",
            "comm": self.team.kind,
            "virtual_ranks": None if virtual is None else self.size,
            "virtual_cluster": virtual,
            "straggler_probability": None if self.straggler is None else self.straggler.probability,
            "straggler_delay": None if self.straggler is None else self.straggler.delay,
            "latency": None if self.network is None else self.network.latency,
            "bandwidth": None if self.network is None else self.network.bandwidth,
        }

    def strategy_settings(self) -> Record:
        """The strategy's options, and what became of those that it leaves to the trainer."""
        return self.strategy.settings() | ({} if self.exchange is None else {"exchange_used": self.exchange})

    def _schedule(self) -> Record:
        """The report's facts about who meets whom; empty where no schedule says."""
        if not isinstance(self.strategy, strategies.GossipGraD):
            return {}
        topology, rotate = strategies.core_topology(self.strategy.topology), self.strategy.rotate
        nodes = self._nodes(self.strategy)
        facts = _core.schedule(topology, nodes[0], rotate, self.seed)
        if self.strategy.hierarchical:
            facts |= {"nodes": nodes[0], "ranks_per_node": nodes[1]}
        return {"topology": topology if isinstance(topology, str) else "table", "rotate": rotate, **facts}

    def _nodes(self, strategy: strategies.GossipGraD) -> tuple[int, int]:
        """How many take part in the gossip, each of how many ranks."""
        return self.team.nodes(strategy.ranks_per_node or 0) if strategy.hierarchical else (self.size, 1)

    def _environment(self) -> Record:
        used = {"backend": self.core.backend, "isa": self.core.isa}
        return environment.environment(self.threads) | used

    # ---- checkpoints

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the consensus weights to `path` (safetensors) and all ranks' state to `path`.state/. Collective.

        The folder of `path` must be there. Whenever it is interrupted, `path` and its state are those of one complete
        save. CheckpointError: not written.
        """
        path = os.fspath(path)
        self.core.settle()
        step = self.core.step
        token = self.team.broadcast(os.urandom(4)).hex()
        state = f"step-{step:08}-{token}"
        self._together(path, lambda: checkpoint.prepare(path, state) if self.rank == 0 else None)

        def write() -> None:
            for local in range(self.team.local):
                checkpoint.write_rank(path, state, self.rank + local, step, self._rank_state(local))

        self._together(path, write)
        weights = self.core.consensus_weights()
        description = {
            "model": self.net.config(),
            "settings": self.settings(),
            "ranks": self.size,
            "step": step,
            "epoch": self.epoch,
            "epochs": self.history.epochs,
        }
        self._together(path, lambda: checkpoint.commit(path, state, weights, description) if self.rank == 0 else None)

    def _restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state of a checkpoint of the same network and number of ranks."""
        name = os.fspath(path)
        consensus, description = checkpoint.read(name)
        try:
            saved = Model.from_config(description["model"])
            ranks, step, epoch = (int(description[key]) for key in ("ranks", "step", "epoch"))
            epochs, settings = list(description["epochs"]), dict(description["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{name}: its description cannot be understood ({error!r})") from error
        if not self.net.same_network(saved):
            raise CheckpointError(
                f"{name} is of another model: {saved.name!r} with {saved.parameters:,} parameters, here "
                f"{self.net.name!r} with {self.net.parameters:,}{_first_difference(saved, self.net)}"
            )
        if ranks != self.size:
            raise CheckpointError(
                f"{name} is of {ranks} ranks, here are {self.size}; to go on it takes as many. "
                "net.load_weights takes its consensus weights alone"
            )
        parts: list[dict[str, Arrays]] = []

        def load() -> None:
            for local in range(self.team.local):
                part = checkpoint.read_rank(name, description["state"], self.rank + local)
                where = f"{name}, rank {self.rank + local}"
                kept = {key: self.net.check_weights(arrays, where) if arrays else {} for key, arrays in part.items()}
                parts.append(kept | {"weight": self.net.check_weights(part["weight"], where)})

        self._together("resume", load)
        self.core.settle()
        self._keep_exchange(settings)
        self._set_state(step, parts, self.net.check_weights(consensus, name))
        self.epoch = epoch
        self.history.epochs = epochs
        self._warn_of_changes(name, settings)

    def _keep_exchange(self, saved: Record) -> None:
        """Where "auto" may choose, what was exchanged before goes on, whatever these ranks share."""
        if "exchange" in saved:  # before there was "auto"
            saved.setdefault("exchange_used", saved["exchange"])
        used = saved.get("exchange_used")
        if getattr(self.strategy, "exchange", None) != "auto" or used == self.exchange:
            return
        if used in ("weights+momentum", "weights"):
            self.exchange = used
            self._make(self._total)

    def _warn_of_changes(self, name: str, saved: Record) -> None:
        here = self.settings()
        free = {"epochs", "threads", "backend", "comm", "virtual_ranks", "virtual_cluster", "validate_replicas"}
        free |= {"validation_samples", "dataset", "model", "exchange"}
        free |= {"straggler_probability", "straggler_delay", "latency", "bandwidth"}
        changed = [k for k in here if k not in free and k in saved and json.dumps(saved[k]) != json.dumps(here[k])]
        if changed and self.rank == 0:
            pairs = ", ".join(f"{key} {saved[key]!r} -> {here[key]!r}" for key in changed)
            warnings.warn(f"{name}: goes on with other settings than it was saved with: {pairs}", stacklevel=4)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        comm: Any = None,
        threads: int | None = 1,
        backend: str | None = None,
    ) -> Trainer:
        """The trainer of a checkpoint: network, loss, optimiser, strategy, and every rank's state. Collective.

        It takes as many ranks as saved it; comm None makes the virtual cluster of a checkpoint that was saved by one.
        A strategy with collectives="mpi" gets its own ones where the ranks are not MPI's.
        CheckpointError: not a checkpoint, damaged, or another number of ranks.
        """
        _, description = checkpoint.read(path)
        try:
            settings = description["settings"]
            net = Model.from_config(description["model"])
            strategy, optimizer = strategies.from_settings(settings), optim.from_settings(settings)
            if comm is None and settings["virtual_cluster"] is not None and cluster.launcher_world_size() is None:
                comm = cluster.VirtualCluster.from_settings(settings["virtual_cluster"])
            if getattr(strategy, "collectives", "own") != "own" and not cluster.by_mpi(comm):
                strategy = replace(strategy, collectives="own")  # type: ignore[call-arg]
            how = {"loss": settings["loss"], "seed": settings["seed"]}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{os.fspath(path)}: its description cannot be understood ({error!r})") from error
        trainer = cls(net, optimizer=optimizer, strategy=strategy, comm=comm, threads=threads, backend=backend, **how)
        trainer._fit_settings = {key: settings[key] for key in _FIT_SETTINGS if key in settings}
        trainer._restore(path)
        return trainer

    # ---- traces

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write what the ranks did and when (trace= of the constructor) for chrome://tracing or Perfetto. Collective.

        See gossipgrad.trace for what it shows. A rank whose spans were more than trace= keeps the newest; a warning
        says so, and the file ("spans_lost", by rank).
        """
        core, ranks = self.core, range(self.team.local)
        spans = [core.spans(local) for local in ranks]
        own = {
            "begin": [min(span[0] for span in one) for one in spans if one],
            "lost": [core.spans_lost(local) for local in ranks],
        }
        facts = [json.loads(one) for one in self._gather(json.dumps(own).encode())]
        zero = min((begin for one in facts for begin in one["begin"]), default=0.0)
        lost = [number for one in facts for number in one["lost"]]
        nodes = self.net.graph.nodes()
        names, layers = [node["name"] for node in nodes], [node["name"] for node in nodes if node["parameters"]]
        told = (_trace.events(self.rank + local, spans[local], names, layers, zero) for local in ranks)
        texts = self.team.gather(_trace.encoded(itertools.chain.from_iterable(told)))
        if texts is None:
            return
        if any(lost):
            warnings.warn(
                f"trace={self.trace} spans a rank: rank {lost.index(max(lost))} had {max(lost)} more; "
                f"the oldest are not in {os.fspath(path)}",
                stacklevel=2,
            )
        safetensors.write_atomically(path, *_trace.parts(texts, lost))


_FIT_SETTINGS = (
    "dataset",
    "train_samples",
    "validation_samples",
    "epochs",
    "batch_size",
    "shuffle",
    "validate_replicas",
)


def check_batch(train: Dataset, ranks: int, batch_size: int) -> None:
    """ValueError unless every rank's shard of the set has a batch."""
    if len(train) < ranks:
        raise ValueError(f"train has {len(train)} samples for {ranks} ranks; allowed: at least one a rank")
    smallest = len(train) // ranks
    if batch_size > smallest:
        raise ValueError(
            f"batch_size={batch_size}: the smallest shard has {smallest} samples "
            f"({len(train)} over {ranks} ranks); allowed: 1..{smallest}"
        )


def _first_difference(saved: Model, here: Model) -> str:
    theirs, ours = saved.parameter_shapes(), here.parameter_shapes()
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            return f"; {name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
    return ""
