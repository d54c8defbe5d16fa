"""Callbacks beside training: logs, checkpoints, early stopping. Own ones: subclass Callback.

Callbacks run on every rank with the same epoch records, so all ranks decide alike from records. Their memory begins
with each call of fit; with resume= it continues from the fit that saved the checkpoint.
trainer.stop = True, on any rank, ends training after the epoch. Files are written by rank 0 alone (trainer.rank == 0).
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal

from gossipgrad.errors import LARGEST, CheckpointError, choice, counted, did_you_mean, flag, integer, number, warn
from gossipgrad.history import Record, flat, lookup
from gossipgrad.launch import agreement, joining
from gossipgrad.state import checkpoint_files
from gossipgrad.state.files import json_text
from gossipgrad.state.outputs import Output, best_path, fixed_path

if TYPE_CHECKING:
    from gossipgrad.trainer import Trainer

__all__ = [
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "JSONLLogger",
    "Progress",
    "ReduceOnPlateau",
    "StopOnNaN",
]

Mode = Literal["min", "max"]

# Endings of the names of numbers for which more is better, used if a callback has no mode.
HIGHER_IS_BETTER = ("accuracy", "auc", "per_second")


@dataclass(frozen=True)
class Progress:
    """Progress of the epoch. Counts, loss and seconds are those of this process's ranks."""

    epoch: int  # from 1
    epochs: int  # the last one's number
    step: int  # steps done in this epoch by this process's slowest rank
    steps: int  # of the epoch
    samples: int
    loss: float  # mean so far
    accuracy: float  # share right so far; 0 for losses without classes
    seconds: float
    samples_per_second: float  # sum of all ranks, estimated from this process's


class Callback:
    """The base; every method may be left out.

    every: on_step, if there is one, is called after every `every` steps of training; 0: never. An attribute of the
    class or of the object. A callback with on_step must set it, in on_fit_begin at the latest.
    """

    every = 0

    def outputs(self) -> Sequence[Output]:
        """Files that it will write; fit refuses unwritable or conflicting ones before it trains."""
        return ()

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Before the first epoch. trainer.history holds earlier epochs; trainer.fit_began counts those before this
        fit."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Before epoch `epoch`, from 1."""

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        """A few times a second within an epoch; with more than one rank at different steps and times on each.

        So collective calls are not allowed here: evaluate, weights, save and the like raise RuntimeError, on MPI and in
        a virtual cluster. Calls of an mpi4py communicator would hang. trainer.step, history and stop are allowed. With
        a GPU the loss is that of its completed steps, up to two behind; before the epoch's first step is complete there
        is no call.
        """

    def on_step(self, trainer: Trainer, step: int) -> None:
        """After every `every` steps of training, `step` in all, on all ranks at once.

        Between two steps of an epoch, or after its last one and before its validation and on_epoch_end. A batch size or
        a rate set after the last step applies to the next epoch. Collective calls are allowed: trainer.evaluate, save,
        set_batch_size and the like. Exchanges in flight have been completed and mixed, which with some strategies
        changes the bits (docs/training.md). Messages sent here do not count in the epoch's record.
        """

    def on_shrink(self, trainer: Trainer, event: Record) -> None:
        """After an event of apoptosis, within an epoch or between two; docs/report.md lists its fields.

        trainer.net is already the smaller network, unless event["undone"], or no unit has left (event["left"] is
        empty). event is already in the history, the same on all ranks.
        """

    def on_view(self, trainer: Trainer, change: Record) -> None:
        """After ranks have died or joined, within an epoch; docs/report.md lists the fields of `change`, which is
        already in history.views. trainer.size and trainer.rank are those of the ranks that go on.
        """

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """After an epoch, its validation included; `record` is already in the history."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """After the last epoch, and after an error: then trainer.failed is True, and collective calls are not allowed.

        The history's weights_sha256 are made afterwards.
        """


class StopOnNaN(Callback):
    """Fails with FloatingPointError when the loss or a weight is not finite. fit adds one unless one is given.

    Weights are checked at the end of an epoch, because not every kernel passes a NaN on to the loss. enabled=False:
    train on regardless.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = flag("enabled", enabled)

    def _check(self, loss: float, where: str, what: str = "the loss") -> None:
        if self.enabled and not math.isfinite(loss):
            raise FloatingPointError(f"{what} is {loss} {where}; a lower lr, or a warm-up, may help")

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        self._check(progress.loss, f"in epoch {progress.epoch}, by step {progress.step} of {progress.steps}")

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        self._check(record["train_loss"], f"in epoch {record['epoch']}")
        self._check(record["consensus_distance"], f"in epoch {record['epoch']}", "a weight is not finite, its distance")


class _Monitor(Callback):
    """Follows one number of the records and knows its best value.

    monitor: a dotted name in an epoch's record; None: "validation.loss" if there is validation, else "train_loss".
    mode: "min" or "max" is better; None: by the name.
    """

    argument = "monitor"  # the caller's name for it, for errors; the command line's begin with "-"
    known: tuple[str, ...] = ("best", "best_epoch", "since")  # attributes that a newcomer takes from its donor

    def __init__(self, monitor: str | None, mode: Mode | None, min_delta: float) -> None:
        if monitor is not None and not isinstance(monitor, str):
            raise TypeError(f"monitor={monitor!r}: allowed: a name in an epoch's record, as 'validation.loss'")
        self.chosen = monitor is not None  # by the caller; otherwise fit chooses
        self.monitor = "validation.loss" if monitor is None else monitor
        inferred: Mode = "max" if self.monitor.rpartition(".")[2].endswith(HIGHER_IS_BETTER) else "min"
        self.mode: Mode = inferred if mode is None else choice("mode", mode, ("min", "max"))
        self.min_delta = number("min_delta", min_delta, 0.0)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_epoch = 0
        self.since = 0  # epochs since the best

    def see(self, record: Record) -> bool:
        """True if this epoch's value is the best so far."""
        found = lookup(record, self.monitor)
        value = math.nan if found is None else float(found)  # None: not measured, as while compression sends everything
        sign = 1.0 if self.mode == "min" else -1.0
        better = self.best is None or sign * value < sign * self.best - self.min_delta
        if math.isnan(value) or not better:
            self.since += 1
            return False
        self.best, self.best_epoch, self.since = value, record["epoch"], 0
        return True

    def on_fit_begin(self, trainer: Trainer) -> None:
        if not self.chosen:
            self.monitor = "validation.loss" if trainer.validating else "train_loss"
        if self.monitor not in trainer.record_names:
            unseen = self.monitor.startswith("validation") and not trainer.validating
            why = "fit was given no validation data" if unseen else "no number of an epoch's record"
            allowed = ", ".join(trainer.record_names)
            hint = did_you_mean(self.monitor, trainer.record_names)
            option = self.argument.startswith("-")
            what = f"{self.argument} {self.monitor}" if option else f"{self.argument}={self.monitor!r}"
            raise ValueError(f"{what}: {why}; allowed: {allowed}{hint}")
        self._reset()
        for record in trainer.history.epochs:
            if record["epoch"] > trainer.fit_began and self.monitor in flat(record):
                self.replay(record)

    def replay(self, record: Record) -> None:
        """Account for an epoch that was trained before the checkpoint of this resume."""
        self.see(record)

    @property
    def _progress(self) -> str:
        by = f" by more than {self.min_delta:g}" if self.min_delta else ""
        best = "a number" if self.best is None else f"better than {self.best:.6g} (epoch {self.best_epoch}){by}"
        return f"{self.monitor} has not been {best} for {counted(self.since, 'epoch')}"


def known_of(callbacks: Sequence[Callback]) -> list[list[Any]]:
    """List each monitor's class, monitor and `known` attributes, for a newcomer; JSON can write them."""
    monitors = [one for one in callbacks if isinstance(one, _Monitor)]
    return [[type(one).__name__, one.monitor, [getattr(one, name) for name in one.known]] for one in monitors]


def take_known(callbacks: Sequence[Callback], known: Sequence[Any]) -> None:
    """Give a newcomer's monitors the `known_of` the group's, so that all take the same decisions."""
    monitors = [one for one in callbacks if isinstance(one, _Monitor)]
    theirs, own = (
        {"callbacks": ", ".join(f"{kind} of {name}" for kind, name, _ in ones) or "no monitor"}
        for ones in (known, known_of(monitors))
    )
    joining.check(theirs, own)
    for one, (_, _, values) in zip(monitors, known, strict=True):
        for name, value in zip(one.known, values, strict=True):
            setattr(one, name, value)


class EarlyStopping(_Monitor):
    """Ends training when `monitor` has not been better by min_delta for `patience` epochs, and says so.

    monitor       a name in the epoch's record, dotted, as "validation.loss"; fit raises ValueError for a name missing
                  in its records, as without validation. mode: "min", "max", None: by the name.
    restore_best  when training ends, by this or by itself, every rank gets back its weights of the best epoch, and a
                  centre (ElasticAveraging, ParameterServer) its own. Copies stay in memory until then. Momentum, step
                  and learning rate stay. A best epoch before a resume, or before a new rank has joined, is not in
                  every rank's memory: a warning says so, and the last weights stay. Checkpoints are written after each
                  epoch, before anything is restored. With fit(final_mix=True) all ranks get the consensus of those
                  weights.
                  If the network has shrunk since the best epoch, it gets that size again, and momentum begins at zero.

    A stopped run that is resumed from the checkpoint of its last epoch trains no further epoch.
    """

    def __init__(
        self,
        monitor: str = "validation.loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode | None = None,
        restore_best: bool = True,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = integer("patience", patience, 1)
        self.restore_best = flag("restore_best", restore_best)
        self._weights: Any = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        self._weights = None
        super().on_fit_begin(trainer)
        if trainer.resumed:  # the run may have been stopped after the checkpoint's epoch
            self._stop_if_due(trainer)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        if not self.see(record):
            self._stop_if_due(trainer)
        elif self.restore_best:
            self._weights = trainer.copy_weights()

    def _stop_if_due(self, trainer: Trainer) -> None:
        if self.since >= self.patience:
            trainer.stop = True
            trainer.say(f"stopped after epoch {trainer.epoch}: {self._progress}")

    def on_fit_end(self, trainer: Trainer) -> None:
        weights, self._weights = self._weights, None
        if not self.restore_best or trainer.failed or self.best_epoch in (0, trainer.epoch):
            return
        if trainer.may_grow and b"" in trainer.gather(b"" if weights is None else b"1"):
            weights = None
        if weights is not None:
            trainer.put_weights_back(weights)
            trainer.say(f"restored the weights of epoch {self.best_epoch}: {self.monitor} was {self.best:.6g}")
        elif trainer.rank == 0:
            before = "this fit, or before a new rank" if trainer.may_grow else "this fit"
            warn(
                f"restore_best: the best epoch, {self.best_epoch}, was before {before}; its weights are not in memory, "
                f"and those of epoch {trainer.epoch} stay"
            )


class ReduceOnPlateau(_Monitor):
    """Multiplies the learning rate by `factor` when `monitor` has not been better for `patience` epochs.

    The reduced rate counts from the next epoch on, is printed, and is never below min_lr. Arguments are
    those of gossipgrad.schedules.Plateau, which is this rule as a schedule. An optimiser's schedule must leave the rate
    alone after its warm-up, otherwise fit raises ValueError.
    """

    known = (*_Monitor.known, "_cooling", "_due")

    def __init__(
        self,
        monitor: str | None = None,
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
        mode: Mode | None = None,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.factor = number("factor", factor, above=0.0, below=1.0)
        self.patience = integer("patience", patience, 1)
        self.cooldown = integer("cooldown", cooldown, 0)
        self.min_lr = number("min_lr", min_lr, 0.0, LARGEST)

    def _reset(self) -> None:
        super()._reset()
        self._cooling = 0
        self._due: str | None = None  # reason for the next epoch's lower rate

    def on_fit_begin(self, trainer: Trainer) -> None:
        schedule = trainer.optimizer.timing
        if schedule.kind not in ("constant", "plateau"):
            raise ValueError(
                f"ReduceOnPlateau with schedule={schedule.kind!r}, which changes the rate itself; allowed: 'constant', "
                "'plateau'"
            )
        super().on_fit_begin(trainer)

    def replay(self, record: Record) -> None:
        """Repeat the decision of the epoch before the checkpoint, which holds the rate from before the reduction."""
        self._due = None
        better = self.see(record)
        if self._cooling:
            self._cooling -= 1
            self.since = 0
        elif not better and self.since >= self.patience:
            self._due = self._progress
            self._cooling, self.since = self.cooldown, 0

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        self.replay(record)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        why, self._due = self._due, None
        before = trainer.learning_rate
        if why is None or trainer.step < trainer.optimizer.timing.warmup or before <= self.min_lr:
            return
        trainer.learning_rate = max(before * self.factor, self.min_lr)
        trainer.say(f"learning rate {before:g} -> {trainer.learning_rate:g} from epoch {epoch} on: {why}")


class Checkpoint(_Monitor):
    """Saves after every epoch to `path`, and the best epoch beside it ("run.best.safetensors" for "run.safetensors").

    path: relative to the current folder at construction, even if that changes later.
    monitor None: "validation.loss" if there is validation, else "train_loss". mode: as of EarlyStopping. save_last,
    save_best: which of both.
    every: saves to `path` also after every `every` steps of training, within an epoch; a resume continues there,
    without on_epoch_begin. 0: after epochs alone.
    save_on_signal: SIGTERM and SIGUSR1, which schedulers send before the time is over, end fit on all ranks after the
    same step. That step is saved to `path`, and SavedOnSignal is raised: exit code 75. In the main thread alone.
    A checkpoint includes changes by earlier callbacks in the list at the end of the epoch, such as the rate.
    While fit runs, no other run can save to these paths: it is refused with a CheckpointError before it trains.
    Saves are collective, so a new rank that joins takes save_last, save_best, every and save_on_signal of the others.
    """

    known = (*_Monitor.known, "save_last", "save_best", "every", "save_on_signal")

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str | None = None,
        mode: Mode | None = None,
        save_last: bool = True,
        save_best: bool = True,
        every: int = 0,
        save_on_signal: bool = False,
    ) -> None:
        super().__init__(monitor, mode, 0.0)
        self.every = integer("every", every, 0)
        self.save_on_signal = flag("save_on_signal", save_on_signal)
        self.path = fixed_path("path", path)
        self.best_path = best_path(self.path)
        self.save_last, self.save_best = flag("save_last", save_last), flag("save_best", save_best)
        if self.every and not self.save_last:
            raise ValueError(f"every={self.every}: allowed with save_last=True, whose file it writes")
        if self.save_on_signal and not self.save_last:
            raise ValueError("save_on_signal=True: allowed with save_last=True, whose file it writes")
        self._locks: list[str] = []

    def outputs(self) -> Sequence[Output]:
        return [Output("checkpoint", self.path, checkpoint=True)]

    def on_fit_begin(self, trainer: Trainer) -> None:
        super().on_fit_begin(trainer)
        agreement.together(trainer.team, f"checkpoint={self.path!r}", partial(self._lock, trainer))

    def _lock(self, trainer: Trainer) -> None:
        for path in [self.path] * self.save_last + [self.best_path] * self.save_best:
            if trainer.rank == 0:
                self._locks.append(checkpoint_files.lock(path))

    def on_view(self, trainer: Trainer, change: Record) -> None:
        if not self._locks:  # they were a dead rank's
            with contextlib.suppress(CheckpointError, OSError):  # the next save says so
                self._lock(trainer)

    def on_fit_end(self, trainer: Trainer) -> None:
        while self._locks:
            checkpoint_files.unlock(self._locks.pop())

    def on_step(self, trainer: Trainer, step: int) -> None:
        trainer.save(self.path)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        best = self.see(record)
        if self.save_best and best:
            trainer.save(self.best_path)
        if self.save_last:
            trainer.save(self.path)


class _FileLogger(Callback):
    """A text file of one line an epoch; a resumed run writes the earlier epochs again.

    If it cannot be written, as on a full disk, one warning says so, `failure` has the reason, and training continues.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = fixed_path("path", path)
        self.failure: str | None = None
        self._file: IO[str] | None = None
        self._epochs = 0  # written

    def outputs(self) -> Sequence[Output]:
        return [Output(type(self).__name__, self.path)]

    def _write(self, lines: Callable[[], str], opened: bool = False) -> None:
        """Write the text of `lines`; opened: to a new file."""
        try:
            if opened:
                self._file = open(self.path, "w", encoding="utf-8", newline="")
            if self._file is not None:
                self._file.write(lines())
                self._file.flush()
        except OSError as error:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
            self.failure = f"{self.path}: this log ends here: {error.strerror or error}"
            warn(self.failure)

    def line(self, record: Record, first: bool) -> str:
        raise NotImplementedError

    def on_fit_begin(self, trainer: Trainer) -> None:
        if trainer.rank == 0:
            self.failure = None
            records = list(enumerate(trainer.history.epochs))
            self._write(lambda: "".join(self.line(record, i == 0) for i, record in records), opened=True)
            self._epochs = len(records)

    def on_view(self, trainer: Trainer, change: Record) -> None:
        if self._file is None:
            self.on_fit_begin(trainer)  # the file was a dead rank's

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        if self._file is not None and self._epochs < len(trainer.history):
            self._write(lambda: self.line(record, len(trainer.history) == 1))
            self._epochs = len(trainer.history)

    def on_fit_end(self, trainer: Trainer) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # all lines have been flushed
                self._file.close()
            self._file = None


class CSVLogger(_FileLogger):
    """A file with one row an epoch and dotted column names, as "validation.accuracy".

    A resumed run writes the earlier epochs again. fit raises ValueError for a path that cannot be written. If writing
    fails later, as on a full disk, one warning says so, and training continues.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def on_fit_begin(self, trainer: Trainer) -> None:
        """After earlier epochs the columns are theirs and this fit's: validation may be in one of both alone."""
        earlier = [name for record in trainer.history.epochs for name in flat(record)]
        self._columns = list(dict.fromkeys([*earlier, *trainer.record_names])) if earlier else []
        super().on_fit_begin(trainer)

    def line(self, record: Record, first: bool) -> str:
        row = flat(record)
        text = io.StringIO()
        if not self._columns:
            self._columns = list(row)
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
        if first:
            writer.writeheader()
        writer.writerow(row)
        return text.getvalue()


class JSONLLogger(_FileLogger):
    """A file with one line of JSON an epoch: the record as in the report. Otherwise as CSVLogger."""

    def line(self, record: Record, first: bool) -> str:
        return json_text(record) + "\n"


METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def check(callbacks: Any) -> list[Callback]:
    """The callbacks that a user gave, one or several; TypeError for other objects, or a method that is never called."""
    try:
        actors = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    except TypeError:
        actors = [callbacks]
    for actor in actors:
        if not isinstance(actor, Callback):
            made = isinstance(actor, type) and issubclass(actor, Callback)
            hint = f"; did you mean {actor.__name__}()?" if made else ""
            raise TypeError(f"callbacks: {actor!r} is no gossipgrad.Callback{hint}")
        for name in dir(type(actor)):
            if name.startswith("on_") and name not in METHODS and callable(getattr(actor, name)):
                raise TypeError(
                    f"callbacks: {type(actor).__name__}.{name} would never be called; allowed: {', '.join(METHODS)}"
                    f"{did_you_mean(name, METHODS)}"
                )
    check_steps(actors, begun=False)
    return actors


def check_steps(callbacks: list[Callback], begun: bool = True) -> list[int]:
    """The intervals of steps after which some on_step is called; ValueError, TypeError: an invalid `every`.

    begun: True after on_fit_begin, which may set `every`.
    """
    found = set()
    for actor in filter(has_steps, callbacks):
        name = type(actor).__name__
        found.add(integer(f"callbacks: {name}.every", actor.every, 0))
        if not _sets_every(actor) and (begun or type(actor).on_fit_begin is Callback.on_fit_begin):
            raise ValueError(
                f"callbacks: {name}.on_step is never called: {name}.every is not set; allowed: every = 100, say, in "
                "the class or the object, to call it after every 100 steps; every = 0 there: never"
            )
    return sorted(found - {0})


def _sets_every(actor: Callback) -> bool:
    """True if the object, or its class, has an `every` of its own."""
    classes = [one for one in type(actor).__mro__ if one not in (Callback, object)]
    return any("every" in vars(one) for one in (actor, *classes))


def has_steps(actor: Callback) -> bool:
    """True if on_step must be called."""
    return type(actor).on_step is not Callback.on_step


def call(callbacks: list[Callback], method: str, *arguments: Any) -> None:
    """Call one method of all callbacks in their order."""
    for callback in callbacks:
        getattr(callback, method)(*arguments)


def end(callbacks: list[Callback], trainer: Any) -> None:
    """Call on_fit_end of all callbacks, even if some raise: others have files to close and locks to release.

    The first error is raised at the end. trainer.failed tells it to the callbacks after it.
    """
    problem: BaseException | None = None
    for callback in callbacks:
        try:
            callback.on_fit_end(trainer)
        except BaseException as error:
            problem, trainer.fit_state.error = error if problem is None else problem, True
    if problem is not None:
        raise problem
