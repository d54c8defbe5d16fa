"""The progress of fit: a bar on a terminal, plain lines in a log; rank 0 alone. Epochs in words."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING

from gossipgrad.callbacks import Callback, Progress
from gossipgrad.history import Record
from gossipgrad.launch import terminal

if TYPE_CHECKING:
    from gossipgrad.trainer import Trainer


def waiting(records: Iterable[Record]) -> float:
    """The share of the ranks' time, the mean over ranks, spent waiting for messages."""
    records = list(records)
    waited = sum(record["exposed_communication_seconds"] for record in records)
    if any("virtual_seconds" in record for record in records):
        whole = waited + sum(record["compute_seconds"] for record in records)
    else:
        whole = sum(record["seconds"] for record in records)
    return float(waited / whole) if whole else 0.0


def simulated(records: Iterable[Record], circumstances: bool) -> str:
    """The virtual seconds and the share of waiting, as ", 0.39 virtual s, 10.4 % of it waiting"; "" for plain ranks."""
    records = list(records)
    share = f"{100 * waiting(records):.1f} % of it waiting"
    if any("virtual_seconds" in record for record in records):
        return f", {sum(record.get('virtual_seconds', 0.0) for record in records):.4g} virtual s, {share}"
    return f", {share}" if circumstances else ""


def measured(numbers: Mapping[str, float]) -> list[str]:
    """The results of evaluate in words, the loss first."""
    parts = [f"loss {numbers['loss']:.4f}"]
    if "accuracy" in numbers:
        parts.append(f"accuracy {100 * numbers['accuracy']:.2f} %")
    return parts + [f"{name} {value:.4g}" for name, value in numbers.items() if name not in ("loss", "accuracy")]


def epoch_line(record: Record, epochs: int, circumstances: bool = False) -> str:
    """One epoch in words; circumstances: stragglers or a network are simulated."""
    parts = [f"loss {record['train_loss']:.4f}"]
    if "train_accuracy" in record:
        parts.append(f"training accuracy {100 * record['train_accuracy']:.2f} %")
    validation = record.get("validation")
    if validation is not None:
        first, *others = measured(validation)
        parts += [f"validation {first}", *others]
    for i, replica in enumerate(record.get("validation_replicas", [])):
        if "accuracy" in replica:
            parts.append(f"rank {i} {100 * replica['accuracy']:.2f} %")
    parts.append(f"lr {record['learning_rate']:.3g}")
    parts.append(f"{record['samples_per_second']:,.0f} samples/s")
    parts.append(f"{record['seconds']:.2f} s{simulated([record], circumstances)}")
    ratio = record.get("compression", {}).get("ratio")
    if ratio is not None:
        parts.append(f"ratio {ratio:.{1 if ratio < 10 else 0}f}x")
    parts.append(f"consensus distance {record['consensus_distance']:.2g}")
    return f"epoch {record['epoch']}/{epochs}: {', '.join(parts)}"


class ProgressBar(Callback):
    """A bar with rate and estimated time left on a terminal and in a notebook; elsewhere one line an epoch.

    file  the stream for it, on rank 0; None: sys.stdout.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        if file is not None and not callable(getattr(file, "write", None)):
            raise TypeError(f"file={file!r}: allowed: an open file of text, or None")
        self._file = file
        self._line = terminal.Line()
        self._line_due = 0.0

    @property
    def file(self) -> IO[str]:
        return self._file if self._file is not None else sys.stdout

    def _terminal(self) -> bool:
        return terminal.on_terminal(self.file) or terminal.in_notebook(self.file)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._line.clear(self.file)
        print(text, file=self.file, flush=True)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        self._line_due = time.monotonic() + terminal.pause(self.file)

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        if trainer.rank != 0:
            return
        done = progress.step / max(progress.steps, 1)
        left = (1 - done) * progress.seconds / done if done else 0.0
        numbers = f"{progress.step}/{progress.steps}  loss {progress.loss:.4f}"
        numbers += f"  {progress.samples_per_second:,.0f} samples/s  {terminal.duration(left)} left"
        head = f"epoch {progress.epoch}/{progress.epochs}"
        drawn, cell = self._terminal(), terminal.in_notebook(self.file)
        if cell or not drawn:  # these store all output
            if time.monotonic() < self._line_due and not (cell and progress.step >= progress.steps):
                return
            self._line_due = time.monotonic() + terminal.pause(self.file)
        if not drawn:
            print(f"{head}: {numbers}", file=self.file, flush=True)
            return
        width = min(max(terminal.columns() - len(head) - len(numbers) - 6, 0), 40)
        bar = f" {terminal.bar(done, width)}" if width >= 5 else ""
        self._line.draw(self.file, f"{head}{bar} {numbers}")

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        if trainer.rank == 0:
            circumstances = trainer.straggler is not None or trainer.network is not None
            self.say(epoch_line(record, trainer.last_epoch, circumstances))

    def on_fit_end(self, trainer: Trainer) -> None:
        self._line.clear(self.file)
