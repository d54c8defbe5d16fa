"""What happens beside training: logs, checkpoints, early stopping. Own ones: subclass Callback.

Callbacks run on every rank with the same epoch records, so what they decide from records all ranks decide alike.
trainer.stop = True, on any rank, ends training after the epoch. Files are written by rank 0 alone (trainer.rank == 0).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from gossipgrad.errors import choice, integer, number
from gossipgrad.history import Record, flat, lookup
from gossipgrad.outputs import best_path

if TYPE_CHECKING:
    from gossipgrad.trainer import Trainer

__all__ = ["CSVLogger", "Callback", "Checkpoint", "EarlyStopping", "JSONLLogger", "Progress", "StopOnNaN"]


@dataclass(frozen=True)
class Progress:
    """How far the epoch is. Counts, loss and seconds are those of this process's ranks."""

    epoch: int  # from 1
    epochs: int  # the last one's number
    step: int  # done in this epoch by this process's slowest rank
    steps: int  # of the epoch
    samples: int
    loss: float  # mean so far
    accuracy: float  # share right so far; 0 for losses without classes
    seconds: float
    samples_per_second: float  # of all ranks, taken from this process's


class Callback:
    """The base; every method may be left out."""

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Before the first epoch. trainer.history holds the epochs before a resume."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Before epoch `epoch`, from 1."""

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        """A few times a second within an epoch; with more than one rank at other steps, and not as often, on each.

        So nothing that is collective can be asked for here: evaluate, weights, save and the like raise RuntimeError, on
        MPI and in a virtual cluster (what an mpi4py communicator is asked for would hang). trainer.step, history and
        stop are there.
        """

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """After an epoch, its validation included; `record` is in the history already."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """After the last epoch; also after an error."""


class StopOnNaN(Callback):
    """Fails with FloatingPointError when the loss or a weight is not finite. fit puts one in unless one is given.

    Weights are looked at when an epoch ends: not every kernel passes a NaN on to the loss. enabled=False: train on
    regardless.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def _check(self, loss: float, where: str, what: str = "the loss") -> None:
        if self.enabled and not math.isfinite(loss):
            raise FloatingPointError(f"{what} is {loss} {where}; a lower lr, or a warm-up, may help")

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        self._check(progress.loss, f"in epoch {progress.epoch}, by step {progress.step} of {progress.steps}")

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        self._check(record["train_loss"], f"in epoch {record['epoch']}")
        self._check(record["consensus_distance"], f"in epoch {record['epoch']}", "a weight is not finite, its distance")


class _Monitor(Callback):
    """Follows one number of the records and knows its best value."""

    def __init__(self, monitor: str, mode: str | None, min_delta: float) -> None:
        self.monitor = monitor
        inferred = "max" if "accuracy" in monitor or "per_second" in monitor else "min"
        self.mode = inferred if mode is None else choice("mode", mode, ("min", "max"))
        self.min_delta = number("min_delta", min_delta, 0.0)
        self.best: float | None = None
        self.best_epoch = 0
        self.since = 0  # epochs without a better one

    def see(self, record: Record) -> bool:
        """Is this epoch's value the best so far?"""
        try:
            value = float(lookup(record, self.monitor))
        except KeyError as error:
            raise ValueError(f"monitor={error.args[0]}") from None
        sign = 1.0 if self.mode == "min" else -1.0
        better = self.best is None or sign * value < sign * self.best - self.min_delta
        if math.isnan(value) or not better:
            self.since += 1
            return False
        self.best, self.best_epoch, self.since = value, record["epoch"], 0
        return True

    def on_fit_begin(self, trainer: Trainer) -> None:
        self.best, self.best_epoch, self.since = None, 0, 0
        for record in trainer.history.epochs:
            self.see(record)


class EarlyStopping(_Monitor):
    """Ends training when `monitor` has not been better by min_delta for `patience` epochs.

    monitor: a name in the epoch's record, dotted, as "validation.loss"; mode: "min", "max", None: by the name.
    """

    def __init__(
        self, monitor: str = "validation.loss", patience: int = 3, min_delta: float = 0.0, mode: str | None = None
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = integer("patience", patience, 1)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        self.see(record)
        if self.since >= self.patience:
            trainer.stop = True


class Checkpoint(_Monitor):
    """Saves after every epoch to `path`, and the best epoch beside it ("run.best.safetensors" for "run.safetensors").

    monitor None: "validation.loss" where there is validation, else "train_loss". save_last, save_best: which of both.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str | None = None,
        mode: str | None = None,
        save_last: bool = True,
        save_best: bool = True,
    ) -> None:
        super().__init__(monitor or "validation.loss", mode, 0.0)
        self._given = monitor is not None
        self.path = os.fspath(path)
        self.best_path = best_path(self.path)
        self.save_last, self.save_best = save_last, save_best

    def on_fit_begin(self, trainer: Trainer) -> None:
        if not self._given:
            self.monitor = "validation.loss" if trainer.validating else "train_loss"
        folder = os.path.dirname(self.path) or "."
        if not os.path.isdir(folder):
            raise ValueError(f"checkpoint={self.path!r}: no such folder: {folder!r}")
        super().on_fit_begin(trainer)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        best = self.see(record)
        if self.save_best and best:
            trainer.save(self.best_path)
        if self.save_last:
            trainer.save(self.path)


class _FileLogger(Callback):
    """A text file of one line an epoch; a resumed run writes the earlier epochs again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: IO[str] | None = None

    def line(self, record: Record, first: bool) -> str:
        raise NotImplementedError

    def on_fit_begin(self, trainer: Trainer) -> None:
        if trainer.rank == 0:
            self._file = open(self.path, "w", encoding="utf-8", newline="")
            for i, record in enumerate(trainer.history.epochs):
                self._file.write(self.line(record, i == 0))
            self._file.flush()

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        if self._file is not None:
            self._file.write(self.line(record, len(trainer.history) == 1))
            self._file.flush()

    def on_fit_end(self, trainer: Trainer) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class CSVLogger(_FileLogger):
    """One row an epoch with dotted column names, as "validation.accuracy"."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def line(self, record: Record, first: bool) -> str:
        row = flat(record)
        text = io.StringIO()
        if first or not self._columns:
            self._columns = list(row)
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
        if first:
            writer.writeheader()
        writer.writerow(row)
        return text.getvalue()


class JSONLLogger(_FileLogger):
    """One line of JSON an epoch: the record as it is in the report."""

    def line(self, record: Record, first: bool) -> str:
        return json.dumps(record) + "\n"


def call(callbacks: list[Callback], method: str, *arguments: Any) -> None:
    """Call one method of all callbacks in their order."""
    for callback in callbacks:
        getattr(callback, method)(*arguments)
