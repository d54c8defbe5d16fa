"""The loop of fit: epochs of steps, the measures after each, and the callbacks between them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

from gossipgrad import _core, heads
from gossipgrad._core import PeerError
from gossipgrad.callbacks import (
    Callback,
    Checkpoint,
    Progress,
    ReduceOnPlateau,
    StopOnNaN,
    call,
    check,
    check_steps,
    end,
    has_steps,
    known_of,
    take_known,
)
from gossipgrad.errors import SavedOnSignal, one_line, warn
from gossipgrad.history import Record, compressed, number_names, ordered
from gossipgrad.launch import agreement, joining, stall
from gossipgrad.launch.interrupts import Noted
from gossipgrad.schedules import Plateau, Schedule
from gossipgrad.strategies import Strategy
from gossipgrad.training import elastic, events, newcomers, survival
from gossipgrad.training.fit_state import Stage
from gossipgrad.training.progress import ProgressBar
from gossipgrad.training.replicas import Replicas

CHUNK = 0.2  # seconds of training between looks at signals and progress
# Seconds of training between steps at which all ranks ask about failed callbacks, and the first such step. They are
# rare, so asynchronous ranks hardly wait for each other.
MEET = 30.0
FIRST_MEETING = 16
_INTERRUPTED, _SAVES = 1 << 62, 1 << 61  # in the number of an agreement


def check_sharded(sharded: bool, shard: str, strategy: Strategy, ranks: int) -> None:
    """ValueError if a strategy cannot train on parts that the ranks bring themselves."""
    if not sharded:
        return
    if shard != "interleaved":
        raise ValueError(f"shard={shard!r}: not with sharded=True, where every rank brings its own shard")
    if getattr(strategy, "shuffle_samples", False):
        raise ValueError("sharded=True: not with shuffle_samples=True, for which every rank wants the whole set")
    if strategy.workers(ranks) < ranks:
        raise ValueError(f"sharded=True: allowed where all ranks train; here {strategy.workers(ranks)} of {ranks} do")


def with_defaults(callbacks: Callback | Iterable[Callback], progress: bool, schedule: Schedule) -> list[Callback]:
    """These callbacks, plus missing defaults: a StopOnNaN, if `progress` a ProgressBar, and the schedule's callback."""
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
    """One call of fit. The trainer's core has begun its training set; validation is in batches of `batch_size`."""

    def __init__(
        self,
        trainer: Replicas,
        callbacks: list[Callback],
        batch_size: int,
        validation: _core.Dataset | list[_core.Dataset] | None,
        validate_replicas: bool,
        measure: Callable[[], Record],
        interrupts: Noted,
        apoptosis: events.Events | None = None,
    ) -> None:
        self.trainer = trainer
        self.callbacks = callbacks
        self.steps = trainer.epoch_steps  # of this epoch
        self.batch_size = batch_size
        self.validation = validation
        self.validate_replicas = validate_replicas
        self.measure = measure  # the metrics of the validation set
        self.interrupts = interrupts
        self.apoptosis = apoptosis
        self._interval = FIRST_MEETING  # steps until the ranks meet
        self._pauses: list[int] = []  # intervals of steps after which a callback of some rank is called
        self._rate = 0.0  # of the epoch's last step
        self._counts: Any = None  # of an epoch whose steps are done; its validation sends further messages
        self._point = 0  # the epoch's step at which the ranks meet next
        self._last = 0  # the epoch's last step before the last change of the view
        self._joined: Record | None = None  # where this newcomer has joined
        self._problem: Exception | None = None  # of on_progress, called at different steps on each rank

    def run(self, final_mix: bool = False) -> None:
        """Run all epochs up to the trainer's last one, or until it is to stop; final_mix: replicas then become one."""
        trainer = self.trainer
        bar = next((one for one in self.callbacks if isinstance(one, ProgressBar)), None)
        trainer.speaker = None if bar is None else bar.say
        trainer.record_names = self._record_names()
        state = trainer.fit_state
        state.begin(self)
        try:
            with trainer.agreed("begin") as one:
                call(self.callbacks, "on_fit_begin", trainer)
                wanted = check_steps(self.callbacks)  # on_fit_begin may have set others
                one.number = self._number(bool(trainer.stop))
            if trainer.decision:
                trainer.say(f"strategy: {trainer.decision}")
            trainer.stop = any(self._numbers(one, "before the first step"))
            trainer.team.halt_begin(trainer.step)
            self._pauses = self._all_pauses(wanted)
            if trainer.team.newcomer:
                self._joined = newcomers.join(trainer, lambda loop: take_known(self.callbacks, loop["known"]))
                self._pauses = self._joined["pauses"]
            # A newcomer whose donor is to stop after this epoch trains it to its end, as the others do.
            while trainer.epoch < trainer.last_epoch and (self._joined is not None or not trainer.stop):
                self._epoch()
            mixes = final_mix and trainer.strategy.replicas_differ
            if mixes:
                agreement.surviving(trainer.team, trainer.core.exchange.adopt_consensus)
            state.over(mixes)
            with trainer.agreed("end"):
                end(self.callbacks, trainer)
        except BaseException as raised:
            state.error, ended = True, state.stage is Stage.OVER
            saved = self._saved(raised) if not ended and agreement.saves(raised) else None
            if not ended:
                try:
                    end(self.callbacks, trainer)
                except Exception as error:  # the first error says more
                    warn(f"callbacks: on_fit_end has failed too: {type(error).__name__}: {one_line(error)}")
            if saved is not None:
                raise saved from None
            raise
        finally:
            trainer.team.halt_end()
            state.end()

    def shrunk(self, event: Record) -> None:
        """Tell callbacks of an event of apoptosis."""
        trainer = self.trainer
        text = events.say(event)
        if text:
            trainer.say(text)
        trainer.fit_state.shrinking = True
        try:
            with self._aside(), trainer.agreed(f"event before step {event['step']}"):
                call(self.callbacks, "on_shrink", trainer, event)
        finally:
            trainer.fit_state.shrinking = False

    def viewed(self, change: Record) -> None:
        """Adapt to ranks that have died or joined, and tell the callbacks."""
        trainer, state = self.trainer, self.trainer.fit_state
        trainer.say(survival.said(change))  # first: a rank may die in the calls that follow
        at = trainer.core.position()
        if state.stage is Stage.MADE and at["step"] < at["steps"]:  # dead ranks have left samples of this epoch
            state.stage, state.position = Stage.WITHIN, None
        if state.position is not None:
            state.position = elastic.continued(state.position, trainer.size, trainer.workers)
        with self._aside(), trainer.agreed(f"view {change['view']}"):
            call(self.callbacks, "on_view", trainer, change)
        if state.stage is Stage.WITHIN:
            self.rebatched()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Messages inside do not count in the epoch's record."""
        trainer = self.trainer
        if trainer.fit_state.stage not in (Stage.WITHIN, Stage.MADE):
            yield
            return
        trainer.core.exchange.settle()
        counts, views = trainer.core.counts(), len(trainer.history.views)
        yield
        if len(trainer.history.views) == views:  # otherwise the core has added the counts of the dead
            trainer.core.set_counts(counts)

    def _all_pauses(self, own: list[int]) -> list[int]:
        """The intervals of all ranks, because one rank alone may have a callback."""
        found = [json.loads(one) for one in self.trainer.gather(json.dumps(own).encode())]
        return sorted({every for one in found for every in one})

    def rebatched(self) -> None:
        """Adapt to another size of the trainer's batches."""
        trainer, state = self.trainer, self.trainer.fit_state
        if state.stage is not Stage.MADE:  # otherwise it applies to the next epoch
            self.steps = trainer.epoch_steps
        trainer.set_total(trainer.step + trainer.steps_left())
        if state.within and trainer.step < state.epoch_begun + self.steps:
            self._prepare_rates(state.epoch_begun + self.steps - trainer.step)

    def _prepare_rates(self, steps: int) -> None:
        """Prepare the rates of the epoch's last `steps` steps. A change of the view meanwhile has prepared its own."""
        rate = self.trainer.prepare_rates(steps)
        self._rate = self._rate if rate is None else rate

    def _record_names(self) -> list[str]:
        trainer = self.trainer
        classes = trainer.loss != "mean_squared_error"
        measured = heads.measured_names(trainer.heads)
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

    def _begin_epoch(self) -> int:
        """Begin the epoch, or continue in the middle of a saved one; returns the steps done in it."""
        trainer, number, state = self.trainer, self.trainer.epoch + 1, self.trainer.fit_state
        position, state.position = state.position, None
        done = 0
        if self._joined is not None:
            return self._begin_joined()
        if position is None:
            with trainer.agreed(f"begin of epoch {number}"):
                call(self.callbacks, "on_epoch_begin", trainer, number)
            trainer.core.epoch(trainer.epoch)
        else:
            done = trainer.go_on(position)
        state.begin_epoch(trainer.step - done)
        if position is not None and position["left"] == 0:  # the epoch's record comes next
            self.steps = done
            self._prepare_rates(0)
            self._rate = position.get("rate", self._rate)
        else:
            self.steps = trainer.epoch_steps
            if trainer.history.views:  # a change between two epochs has another number of steps
                trainer.set_total(trainer.step + trainer.steps_left())
            self._prepare_rates(self.steps - done)
        return done

    def _begin_joined(self) -> int:
        """Go on in the middle of the epoch that this newcomer has joined; returns the steps done in it."""
        trainer, state, joined = self.trainer, self.trainer.fit_state, self._joined
        assert joined is not None
        state.begin_epoch(joined["epoch_begun"])
        state.paused_at = joined["paused_at"]
        self._interval, self._point, self._last = joined["interval"], joined["point"], joined["last"]
        with stall.within(joining.CHANGE):
            survival.tell(trainer, joined["change"])
        return trainer.step - state.epoch_begun

    def handover(self) -> Record:
        """Lists the place in this loop, between two steps, for a newcomer."""
        state = self.trainer.fit_state
        return {
            "pauses": self._pauses,
            "epoch_begun": state.epoch_begun,
            "paused_at": state.paused_at,
            "interval": self._interval,
            "point": self._point,
            "last": self.steps,
            "known": known_of(self.callbacks),
        }

    def _meets(self, done: int, a_step: float | None = None) -> None:
        """Meet, if it is the step for it. a_step: seconds of a step; None: as often as before."""
        if done == self._point or done == self._last:
            self._meet(done, self._interval if a_step is None else max(1, int(MEET / a_step)))
            self._point = done + self._interval

    def _epoch(self) -> None:
        trainer, number = self.trainer, self.trainer.epoch + 1
        done, self._counts = self._begin_epoch(), None
        try:
            ended = None
            while ended is None:
                if done < self.steps or self._joined is not None:
                    self._train(done)
                    if trainer.set_rate is not None:
                        self._rate = trainer.set_rate
                self._pause_at_end()
                if trainer.step >= trainer.fit_state.epoch_begun + self.steps:  # else ranks have died, and left samples
                    ended = self._end()
                done = trainer.step - trainer.fit_state.epoch_begun
            record = self._record(number, ended)
            trainer.epoch += 1
        except BaseException as error:
            if trainer.epoch < number:
                self._keep_place(error)
            raise
        trainer.history.epochs.append(record)
        with trainer.agreed(f"end of epoch {number}") as one:
            call(self.callbacks, "on_epoch_end", trainer, record)
            one.number = self._number(bool(trainer.stop))
        trainer.stop = any(self._numbers(one, f"after epoch {number}"))

    def _number(self, number: int) -> int:
        """This rank's number for an agreement, which includes its interrupt."""
        found = number | (_INTERRUPTED if self.interrupts.came else 0)
        return found | (_SAVES if self.interrupts.saves else 0)

    def _numbers(self, one: agreement.Agreement, where: str) -> list[int]:
        """The numbers of all ranks; KeyboardInterrupt on all if one was interrupted."""
        if any(number & (_INTERRUPTED | _SAVES) for number in one.numbers):
            saves = any(number & _SAVES for number in one.numbers)
            raise agreement.interrupt(f"fit was interrupted {where}", saves)
        return one.numbers

    def _until(self, done: int, goal: int) -> int:
        """The next step of the epoch to train to; KeyboardInterrupt on all ranks if they stop after this one.

        goal: this rank's own limit, at most the next step at which ranks meet anyway. A rank promises others no more,
        so all ranks make the same calls up to their common stop.
        """
        first, wanted = self.trainer.fit_state.epoch_begun, self.interrupts.came or self.interrupts.saves
        until = self.trainer.team.halt_until(first + done, first + goal, wanted) - first
        if wanted and agreement.alone(self.trainer.team):
            until = done
        if until == done:
            self._meet(done, self._interval)  # reports this rank's interrupt
        return until

    def _saved(self, raised: BaseException) -> BaseException:
        """Save at the common step of a signal, `raised`; returns the exception that fit raises then."""
        chosen = [one for one in self.callbacks if isinstance(one, Checkpoint) and one.save_on_signal]
        try:
            call([*chosen], "on_step", self.trainer, self.trainer.step)
        except Exception as error:
            return error
        return agreement.in_place_of(SavedOnSignal([one.path for one in chosen]), raised)

    def _keep_place(self, error: BaseException) -> None:
        """Let a later save continue from here: after an error at which all ranks are at one step of the epoch."""
        trainer, state = self.trainer, self.trainer.fit_state
        state.position = None
        if agreement.alone(trainer.team) or agreement.of_all(error):
            with contextlib.suppress(Exception):  # ranks of a failed cluster have no common step: a save reports that
                trainer.core.exchange.settle()
                if self._counts is not None:
                    trainer.core.set_counts(self._counts)
                state.stage = Stage.WITHIN
                state.position = trainer.where_in_epoch()
            if state.position is not None and state.position["left"] == 0:
                state.position["rate"] = self._rate

    def _end(self) -> Record | None:
        """The numbers of the epoch whose steps are done. None: ranks have died, and have left samples."""
        trainer = self.trainer
        while True:
            self._counts = trainer.core.counts()
            done, ended = True, None
            try:
                ended = trainer.core.end_epoch()
            except PeerError:
                done = False
            if not trainer.team.survives or trainer.team.decide(done):
                return ended
            survival.change_view(trainer)
            if trainer.step < trainer.fit_state.epoch_begun + self.steps:
                return None

    def _record(self, number: int, ended: Record) -> Record:
        """The record of the epoch with these numbers."""
        trainer = self.trainer
        record: Record = {"epoch": number, "learning_rate": self._rate, **ended}
        trainer.count_seconds()
        trainer.fit_state.stage = Stage.BETWEEN
        if self.apoptosis is not None:
            record |= self.apoptosis.end_epoch(record)
        trainer.history.partitioned_fc = trainer.core.partitioned_fc()
        trainer.history.graphs = trainer.core.graphs() or {}
        for key in ("bytes", "messages"):
            record[f"{key}_per_rank_step"] = record[f"{key}_sent"] / (trainer.size * record["steps"])
        if "compression" in record:
            record["compression"] = compressed(record["compression"])
        record |= {"parameters": trainer.net.parameters, "units": trainer.net.units}
        return ordered(record | self._validate())

    def _validate(self) -> Record:
        """The record's "validation" and "validation_replicas"."""
        if self.validation is None:
            return {}
        core, team = self.trainer.core, self.trainer.team
        sets = self.validation, self.batch_size
        whole = heads.measured(self.trainer.heads, agreement.surviving(team, lambda: core.evaluate(*sets, False))[0])
        found: Record = {"validation": whole | agreement.surviving(team, self.measure)}
        if self.validate_replicas:
            replicas = agreement.surviving(team, lambda: core.evaluate(*sets, True))
            found["validation_replicas"] = [heads.measured(self.trainer.heads, one) for one in replicas]
        return found

    def _train(self, done: int) -> None:
        """Make the epoch's steps after the first `done`, in pieces of about CHUNK seconds.

        Between pieces Python handles signals and shows progress. A virtual cluster trains in one piece, watched from
        outside: the state at the end of a piece must not depend on the wall clock. Events of apoptosis and on_step are
        between pieces, at steps that do not depend on it either, and may change the steps of the epoch.
        """
        trainer, core, first = self.trainer, self.trainer.core, self.trainer.fit_state.epoch_begun
        begin = shown = time.perf_counter()
        piece = 1
        if self._joined is None:
            self._point = done + self._interval
        else:
            self._joined = None
            self._meets(done)
        while done < self.steps:
            end = self._pause(first + done) - first
            if done >= self.steps:  # no full batch is left
                self._meet(done, self._interval)
                break
            until = self.steps if self.trainer.virtual else min(done + piece, self._point, self.steps)
            until = self._until(done, min(until, end))
            start, before, self._last = time.perf_counter(), done, self.steps
            if self.trainer.virtual:
                core.run(until - done, lambda: self._show(time.perf_counter() - begin))
            else:
                core.run(until - done)
            done = trainer.step - first
            now = time.perf_counter()
            if trainer.team.survives:
                newcomers.prepare(trainer, self.handover)
                if survival.change_view(trainer) is not None:
                    done = trainer.step - first
                    if not trainer.virtual:
                        self._meets(done)  # others may be within the meeting
                    continue
            if done == before:
                raise RuntimeError(f"the epoch ended after {done} of {self.steps} steps")
            if self.apoptosis is not None:
                self.apoptosis.pace.add(now - start, done - before)
            if self.trainer.virtual:
                self._show(now - begin)
                continue
            a_step = max((now - start) / (done - before), 1e-7)
            piece = max(1, min(int(CHUNK / a_step), 4 * piece))
            if now - shown >= CHUNK / 2 or done == self.steps:
                shown = now
                self._show(now - begin)
            self._meets(done, a_step)

    def _pause(self, step: int) -> int:
        """Do everything due before this step of the epoch; returns the step of the next pause."""
        state, change = self.trainer.fit_state, self.trainer.strategy.changes_after
        self.trainer.follow_step()
        following = [step + every - step % every for every in self._pauses] + [change] * (step < change)
        if self.apoptosis is not None:
            if self.apoptosis.next(step) == step:
                self.shrunk(self.apoptosis.make())
            due = self.apoptosis.next(step)
            following += [] if due is None else [due]
        if state.epoch_begun < step and self._is_due(step):
            state.paused_at = step
            self._call_on_step(step)
        return min(following, default=state.epoch_begun + self.steps)

    def _is_due(self, step: int) -> bool:
        """True if on_step of some rank must be called after this step, and was not yet."""
        return step != self.trainer.fit_state.paused_at and any(step % every == 0 for every in self._pauses)

    def _call_on_step(self, step: int) -> None:
        trainer = self.trainer
        with self._aside(), trainer.agreed(f"after step {step}"):
            actors = [actor for actor in self.callbacks if has_steps(actor) and actor.every]
            # Last, so that a checkpoint includes the changes of the others.
            actors.sort(key=lambda actor: isinstance(actor, Checkpoint))
            call([actor for actor in actors if step % actor.every == 0], "on_step", trainer, step)

    def _pause_at_end(self) -> None:
        """Call on_step after the last step of an epoch, before its record.

        A batch size that is set there applies to the next epoch. A checkpoint that is saved there is of this epoch with
        no step left: a resume continues with its record.
        """
        trainer, step, state = self.trainer, self.trainer.step, self.trainer.fit_state
        if not self._is_due(step):
            return
        trainer.core.exchange.settle()
        position = agreement.surviving(trainer.team, trainer.where_in_epoch)
        assert position is not None
        if trainer.step < state.epoch_begun + self.steps:  # ranks have died: on_step comes with the steps that are left
            return
        state.paused_at = step
        state.stage, state.position = Stage.MADE, position | {"left": 0, "rate": self._rate, "paused_at": step}
        try:
            self._call_on_step(step)
        finally:
            state.position = None

    def _meet(self, done: int, steps: int) -> None:
        """Raise an error of one rank's callback on all ranks. steps: this rank's steps in MEET seconds."""
        problem, self._problem = self._problem, None
        with self.trainer.agreed(f"epoch {self.trainer.epoch + 1}, after {done} steps") as one:
            if problem is not None:
                raise problem
            one.number = self._number(steps)
        numbers = self._numbers(one, f"after step {self.trainer.step}")
        # Equal on all ranks: the median, so that no outlier decides.
        self._interval = max(1, min(sorted(numbers)[len(numbers) // 2], 16 * self._interval))

    def _show(self, seconds: float) -> None:
        """Call on_progress; other ranks may be at another step, so collective calls are not allowed there."""
        trainer = self.trainer
        if trainer.virtual and self.interrupts.saves:
            raise agreement.interrupt("fit was interrupted within a step", True)
        if self._problem is not None:
            return
        counts = trainer.core.progress()
        samples = int(counts["samples"])
        if not samples and not counts["steps"]:  # the device has not completed the first step
            return
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
            self._problem = error  # the others hear of it at the next meeting
        finally:
            trainer.team.no_collectives = False
