"""The progress bar on a terminal, plain lines in a log; rank 0 alone."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING

from gossipgrad.callbacks import Callback, Progress
from gossipgrad.history import Record
from gossipgrad.launch.origin import launcher_rank, launcher_world_size

if TYPE_CHECKING:
    from gossipgrad.trainer import Trainer

LINE_EVERY = 30.0  # seconds between plain lines within an epoch
CELL_EVERY = 0.5  # between drawings of the bar in a notebook


def duration(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    whole = max(int(seconds + 0.5), 0)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def waiting(records: Iterable[Record]) -> float:
    """The share of the ranks' time, the mean over ranks, in which they waited for messages."""
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
    """What evaluate gives in words, the loss first."""
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


def on_terminal(file: IO[str]) -> bool:
    """Whether a person watches what is written to this file.

    A launcher may give its ranks a terminal of their own although its own output goes to a file, so "gossipgrad run"
    says what it has itself.
    """
    if launcher_world_size() is not None and os.environ.get("GOSSIPGRAD_TERMINAL", "0") in ("", "0"):
        return False
    return bool(getattr(file, "isatty", lambda: False)())


def columns() -> int:
    """Of the terminal on which a person watches; a launcher gives its ranks one without a width."""
    width = os.environ.get("GOSSIPGRAD_TERMINAL", "") if launcher_world_size() is not None else ""
    return int(width) if width.isdecimal() and int(width) > 1 else shutil.get_terminal_size().columns


def in_notebook(file: IO[str]) -> bool:
    """Whether the file is a notebook's cell, where a carriage return begins the line anew as on a terminal."""
    return type(file).__module__.partition(".")[0] == "ipykernel"


class Bar:
    """How far a piece of work is: a bar on a terminal, a line every half minute elsewhere; on rank 0 alone."""

    def __init__(self, text: str, shown: bool = True) -> None:
        self.text = text
        self._speaks = shown and not launcher_rank()
        self._terminal = on_terminal(sys.stdout)
        self._start = time.monotonic()
        self._due = self._start + (0.1 if self._terminal else LINE_EVERY)
        self._drawn = False

    def show(self, share: float, words: str) -> None:
        """`share` of the work, 0..1, is done; `words` say how much."""
        now = time.monotonic()
        if not self._speaks or now < self._due:
            return
        share = min(max(share, 0.0), 1.0)
        left = f", {duration((1 - share) * (now - self._start) / share)} left" if share else ""
        line = f"{words}, {100 * share:.0f} %{left}"
        if self._terminal:
            done = round(share * 30)
            line = f"\r{self.text} [{'#' * done:.<30}] {line}"
            sys.stdout.write(line[: columns()] + "\x1b[K")
            sys.stdout.flush()
            self._drawn = True
        else:
            print(f"{self.text}: {line}", flush=True)
        self._due = now + (0.1 if self._terminal else LINE_EVERY)

    def clear(self) -> None:
        """Remove the bar until it is shown again."""
        if self._drawn:
            sys.stdout.write("\r\x1b[K")
            self._drawn = False

    def close(self, words: str | None = None) -> None:
        """Remove the bar; say `words` in its place."""
        self.clear()
        if words and self._speaks:
            print(f"{self.text}: {words} in {time.monotonic() - self._start:.1f} s", flush=True)


class ProgressBar(Callback):
    """A bar with rate and estimated time left on a terminal and in a notebook; elsewhere one line an epoch.

    file  where it is shown, by rank 0; None: sys.stdout.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        if file is not None and not callable(getattr(file, "write", None)):
            raise TypeError(f"file={file!r}: allowed: an open file of text, or None")
        self._file = file
        self._shown = False
        self._line_due = 0.0
        self._width = 0  # of the line that is drawn

    @property
    def file(self) -> IO[str]:
        return self._file if self._file is not None else sys.stdout

    def _terminal(self) -> bool:
        return on_terminal(self.file) or in_notebook(self.file)

    def _draw(self, line: str) -> None:
        """Write over the line that was there; a notebook knows no sequence that clears one."""
        rest = "\x1b[K"
        if in_notebook(self.file):
            rest = " " * max(self._width - len(line), 0) + ("" if line else "\r")
        self.file.write(f"\r{line}{rest}")
        self._width = len(line)

    def _clear(self) -> None:
        if self._shown:
            self._draw("")
            self._shown = False

    def say(self, text: str) -> None:
        """A line of its own."""
        self._clear()
        print(text, file=self.file, flush=True)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        self._line_due = time.monotonic() + (CELL_EVERY if in_notebook(self.file) else LINE_EVERY)

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        if trainer.rank != 0:
            return
        done = progress.step / max(progress.steps, 1)
        left = (1 - done) * progress.seconds / done if done else 0.0
        numbers = f"{progress.step}/{progress.steps}  loss {progress.loss:.4f}"
        numbers += f"  {progress.samples_per_second:,.0f} samples/s  {duration(left)} left"
        head = f"epoch {progress.epoch}/{progress.epochs}"
        if not self._terminal():
            if time.monotonic() >= self._line_due:
                self._line_due = time.monotonic() + LINE_EVERY
                print(f"{head}: {numbers}", file=self.file, flush=True)
            return
        if in_notebook(self.file):  # which stores all that is written
            if time.monotonic() < self._line_due and progress.step < progress.steps:
                return
            self._line_due = time.monotonic() + CELL_EVERY
        columns_here = columns()
        width = min(max(columns_here - len(head) - len(numbers) - 6, 0), 40)
        bar = f" [{'#' * round(done * width):.<{width}}]" if width >= 5 else ""
        self._draw(f"{head}{bar} {numbers}"[:columns_here])
        self.file.flush()
        self._shown = True

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        if trainer.rank == 0:
            self._clear()
            circumstances = trainer.straggler is not None or trainer.network is not None
            print(epoch_line(record, trainer.last_epoch, circumstances), file=self.file, flush=True)

    def on_fit_end(self, trainer: Trainer) -> None:
        self._clear()
