"""The loop of fit: epochs of steps, what is measured after each, and the callbacks between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields

from gossipgrad import _core, agreement, events
from gossipgrad.callbacks import Callback, Progress, ReduceOnPlateau, StopOnNaN, call, check
from gossipgrad.history import Record, compressed, number_names, ordered
from gossipgrad.progress import ProgressBar
from gossipgrad.replicas import Replicas
from gossipgrad.schedules import Plateau, Schedule
from gossipgrad.strategies import Strategy

CHUNK = 0.2  # seconds of training between looks at signals and progress
# Seconds of training between steps at which all ranks ask whether a callback of one has failed, and the first such
# step: seldom enough that ranks which need not wait for each other hardly do.
MEET = 30.0
FIRST_MEETING = 16


def check_sharded(sharded: bool, shard: str, strategy: Strategy, ranks: int) -> None:
    """ValueError where a strategy cannot train on parts that the ranks bring themselves."""
    if not sharded:
        return
    if shard != "interleaved":
        raise ValueError(f"shard={shard!r}: not with sharded=True, where every rank brings its own shard")
    if getattr(strategy, "shuffle_samples", False):
        raise ValueError("sharded=True: not with shuffle_samples=True, for which every rank wants the whole set")
    if strategy.workers(ranks) < ranks:
        raise ValueError(f"sharded=True: allowed where all ranks train; here {strategy.workers(ranks)} of {ranks} do")


def check_batch(sizes: Sequence[int], batch_size: int, sharded: bool = False, drop_last: bool = False) -> None:
    """ValueError unless every rank's shard has a sample, and the smallest one a batch.

    With `sharded` the largest one, unless all batches are to be full (`drop_last`).
    """
    if min(sizes) < 1:
        raise ValueError(f"train has {sum(sizes)} samples for {len(sizes)} ranks; allowed: at least one a rank")
    which, most = ("largest", max(sizes)) if sharded and not drop_last else ("smallest", min(sizes))
    if batch_size > most:
        reason = ", and with drop_last every rank wants a full batch" if sharded and drop_last else ""
        raise ValueError(
            f"batch_size={batch_size}: the {which} shard has {most} samples "
            f"({sum(sizes)} over {len(sizes)} ranks){reason}; allowed: 1..{most}"
        )


def steps_of_epoch(sizes: Sequence[int], batch_size: int, full: bool = False) -> int:
    """Steps in which the largest shard is trained on once; where all batches are full, those that the smallest has."""
    return min(sizes) // batch_size if full else math.ceil(max(sizes) / batch_size)


def with_defaults(callbacks: Callback | Iterable[Callback], progress: bool, schedule: Schedule) -> list[Callback]:
    """These callbacks, a StopOnNaN, if `progress` a ProgressBar, where there is none, and what the schedule wants."""
    actors = check(callbacks)
    if not any(isinstance(actor, StopOnNaN) for actor in actors):
        actors.insert(0, StopOnNaN())
    if progress and not any(isinstance(actor, ProgressBar) for actor in actors):
        actors.insert(1, ProgressBar())
    if isinstance(schedule, Plateau):
        how = {one.name: getattr(schedule, one.name) for one in fields(schedule)}
        actors.append(ReduceOnPlateau(**{key: how[key] for key in how if key not in ("warmup", "warmup_start")}))
    return actors


class Loop:
    """One call of fit. The trainer's core has begun its training set: `steps` to an epoch, of `batch_size` a rank."""

    def __init__(
        self,
        trainer: Replicas,
        callbacks: list[Callback],
        steps: int,
        batch_size: int,
        validation: _core.Dataset | list[_core.Dataset] | None,
        validate_replicas: bool,
        measure: Callable[[], Record],
        apoptosis: events.Events | None = None,
    ) -> None:
        self.trainer = trainer
        self.callbacks = callbacks
        self.steps = steps
        self.batch_size = batch_size
        self.validation = validation
        self.validate_replicas = validate_replicas
        self.measure = measure  # the metrics of the validation set
        self.apoptosis = apoptosis
        self._interval = FIRST_MEETING  # steps until the ranks meet
        self._problem: Exception | None = None  # of on_progress, which comes at other steps on each rank

    def run(self, final_mix: bool = False) -> None:
        """All epochs up to the trainer's last one, or until it is to stop; final_mix: replicas then become one."""
        trainer = self.trainer
        bar = next((one for one in self.callbacks if isinstance(one, ProgressBar)), None)
        trainer.speaker = None if bar is None else bar.say
        trainer.record_names = self._record_names()
        trainer.fitting = trainer.failed = True
        trainer.watchers = [self._shrunk]
        ended = False
        try:
            with trainer.agreed("begin"):
                call(self.callbacks, "on_fit_begin", trainer)
            while trainer.epoch < trainer.last_epoch and not trainer.stop:
                self._epoch()
            if final_mix and trainer.strategy.replicas_differ:
                trainer.core.adopt_consensus()
            trainer.failed, ended = False, True
            with trainer.agreed("end"):
                call(self.callbacks, "on_fit_end", trainer)
        except BaseException:
            trainer.failed = True
            if not ended:
                call(self.callbacks, "on_fit_end", trainer)
            raise
        finally:
            trainer.fitting = False
            trainer.watchers = []

    def _shrunk(self, event: Record) -> None:
        """Tell of an event of apoptosis."""
        trainer = self.trainer
        text = events.say(event)
        if text:
            trainer.say(text)
        trainer.shrinking = True
        try:
            with trainer.agreed(f"event before step {event['step']}"):
                call(self.callbacks, "on_shrink", trainer, event)
        finally:
            trainer.shrinking = False

    def _record_names(self) -> list[str]:
        trainer = self.trainer
        classes = trainer.loss != "mean_squared_error"
        measured = trainer.measured_names()
        families = trainer.core.compressed_families()
        validated = self.validation is not None
        replicas = trainer.size if self.validate_replicas else 0
        metrics = [one.name for one in trainer.metrics]
        return number_names(
            trainer.virtual,
            classes,
            families,
            (measured + metrics) * validated,
            measured * (replicas > 0),
            replicas,
            trainer.net.units,
            self.apoptosis is not None,
        )

    def _epoch(self) -> None:
        trainer, number = self.trainer, self.trainer.epoch + 1
        with trainer.agreed(f"begin of epoch {number}"):
            call(self.callbacks, "on_epoch_begin", trainer, number)
        rate = trainer.prepare_rates(self.steps)
        trainer.core.epoch(trainer.epoch)
        self._train()
        rate = rate if trainer.set_rate is None else trainer.set_rate
        record: Record = {"epoch": number, "learning_rate": rate, **trainer.core.end_epoch()}
        if self.apoptosis is not None:
            record |= self.apoptosis.end_epoch(record)
        trainer.history.partitioned_fc = trainer.core.partitioned_fc()
        for key in ("bytes", "messages"):
            record[f"{key}_per_rank_step"] = record[f"{key}_sent"] / (trainer.size * record["steps"])
        if "compression" in record:
            record["compression"] = compressed(record["compression"])
        record |= {"parameters": trainer.net.parameters, "units": trainer.net.units}
        record = ordered(record | self._validate())
        trainer.epoch += 1
        trainer.history.epochs.append(record)
        with trainer.agreed(f"end of epoch {number}") as one:
            call(self.callbacks, "on_epoch_end", trainer, record)
            one.number = bool(trainer.stop)
        trainer.stop = any(one.numbers)

    def _validate(self) -> Record:
        """The record's "validation" and "validation_replicas"."""
        if self.validation is None:
            return {}
        core = self.trainer.core
        whole = self.trainer.evaluated(core.evaluate(self.validation, self.batch_size, False)[0])
        found: Record = {"validation": whole | self.measure()}
        if self.validate_replicas:
            replicas = core.evaluate(self.validation, self.batch_size, True)
            found["validation_replicas"] = [self.trainer.evaluated(one) for one in replicas]
        return found

    def _train(self) -> None:
        """One epoch's steps, in pieces of about CHUNK seconds: between them Python sees signals and shows progress.

        In a virtual cluster in one piece that is watched meanwhile: what a rank has at hand when a piece ends must not
        depend on the wall clock. Events of apoptosis are between pieces, at steps that do not depend on it either.
        """
        core, steps, first = self.trainer.core, self.steps, self.trainer.step
        begin = shown = time.perf_counter()
        done, piece, point = 0, 1, self._interval
        while done < steps:
            end = self._event(first + done, first + steps) - first
            start, before = time.perf_counter(), done
            if self.trainer.virtual:
                done = core.run(end - done, lambda: self._show(time.perf_counter() - begin))
            else:
                done = core.run(min(piece, point - done, end - done))
            now = time.perf_counter()
            if done == before:
                raise RuntimeError(f"the epoch ended after {done} of {steps} steps")
            if self.apoptosis is not None:
                self.apoptosis.pace.add(now - start, done - before)
            if self.trainer.virtual:
                self._show(now - begin)
                continue
            a_step = max((now - start) / (done - before), 1e-7)
            piece = max(1, min(int(CHUNK / a_step), 4 * piece))
            if now - shown >= CHUNK / 2 or done == steps:
                shown = now
                self._show(now - begin)
            if done == point or done == steps:
                self._meet(done, max(1, int(MEET / a_step)))
                point = done + self._interval

    def _event(self, step: int, end: int) -> int:
        """Make the event of apoptosis before this step, if there is one; the step of the next one, or `end`."""
        if self.apoptosis is None:
            return end
        if self.apoptosis.next(step) == step:
            self._shrunk(self.apoptosis.make())
        due = self.apoptosis.next(step)
        return end if due is None else min(due, end)

    def _meet(self, done: int, steps: int) -> None:
        """Raise on all ranks what a callback has raised on one. steps: those of this rank in MEET seconds."""
        problem, self._problem = self._problem, None
        with self.trainer.agreed(f"epoch {self.trainer.epoch + 1}, after {done} steps") as one:
            if problem is not None:
                raise problem
            one.number = steps
        # The same on all ranks: the middle one's, so that no rank that stands out decides.
        self._interval = max(1, min(sorted(one.numbers)[len(one.numbers) // 2], 16 * self._interval))

    def _show(self, seconds: float) -> None:
        """Call on_progress; other ranks may be at another step, so nothing collective can be asked for there."""
        trainer = self.trainer
        if self._problem is not None:
            return
        counts = trainer.core.progress()
        samples = int(counts["samples"])
        progress = Progress(
            epoch=trainer.epoch + 1,
            epochs=trainer.last_epoch,
            step=int(counts["steps"]),
            steps=self.steps,
            samples=samples,
            loss=float(counts["loss"]),
            accuracy=float(counts["accuracy"]),
            seconds=seconds,
            samples_per_second=samples
            * trainer.workers
            / min(trainer.team.local, trainer.workers)
            / max(seconds, 1e-9),
        )
        trainer.team.no_collectives = trainer.virtual or trainer.size > 1
        try:
            call(self.callbacks, "on_progress", trainer, progress)
        except Exception as error:
            if agreement.alone(trainer.team):
                raise
            self._problem = error  # the others learn of it at the next step at which all meet
        finally:
            trainer.team.no_collectives = False
