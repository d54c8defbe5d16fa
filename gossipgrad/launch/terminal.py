"""Progress of work for a person: a line that is redrawn, on a terminal or in a notebook; lines in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import IO

from gossipgrad.launch.origin import launcher_rank, launcher_world_size

LINE_EVERY = 30.0  # seconds between plain lines
CELL_EVERY = 0.5  # between drawings in a notebook


def duration(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    whole = max(int(seconds + 0.5), 0)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def on_terminal(file: IO[str]) -> bool:
    """True if a person watches the output to this file.

    A launcher may give its ranks a terminal of their own although its own output goes to a file, so "gossipgrad run"
    passes its own state.
    """
    if launcher_world_size() is not None and os.environ.get("GOSSIPGRAD_TERMINAL", "0") in ("", "0"):
        return False
    return bool(getattr(file, "isatty", lambda: False)())


def columns() -> int:
    """Width of the terminal that a person watches; a launcher gives its ranks one without a width."""
    width = os.environ.get("GOSSIPGRAD_TERMINAL", "") if launcher_world_size() is not None else ""
    return int(width) if width.isdecimal() and int(width) > 1 else shutil.get_terminal_size().columns


def in_notebook(file: IO[str]) -> bool:
    """True if the file is a notebook's cell, where a carriage return begins the line anew as on a terminal."""
    return type(file).__module__.partition(".")[0] == "ipykernel"


def pause(file: IO[str]) -> float:
    """Seconds between two lines in a file that stores all output."""
    return CELL_EVERY if in_notebook(file) else LINE_EVERY


def bar(share: float, width: int) -> str:
    return f"[{'#' * round(share * width):.<{width}}]"


class Line:
    """A line of a terminal, or of a notebook's cell, that each drawing replaces."""

    def __init__(self) -> None:
        self._width = 0  # of the drawn text

    def draw(self, file: IO[str], line: str) -> None:
        """Draw `line`, cut to the terminal's width. A notebook knows no sequence that clears a line."""
        line, rest = line[: columns()], "\x1b[K"
        if in_notebook(file):
            rest = " " * max(self._width - len(line), 0) + ("" if line else "\r")
        file.write(f"\r{line}{rest}")
        file.flush()
        self._width = len(line)

    def clear(self, file: IO[str]) -> None:
        """Remove the drawn text."""
        if self._width:
            self.draw(file, "")


class Bar:
    """Progress of a piece of work: a bar on a terminal, a line every half minute elsewhere; on rank 0 alone."""

    def __init__(self, text: str, shown: bool = True) -> None:
        self.text = text
        self._speaks = shown and not launcher_rank()
        self._terminal = on_terminal(sys.stdout)
        self._start = time.monotonic()
        self._due = self._start + (0.1 if self._terminal else LINE_EVERY)
        self._line = Line()

    def show(self, share: float, words: str) -> None:
        """Show that `share` of the work, 0..1, is done; `words` describe it."""
        now = time.monotonic()
        if not self._speaks or now < self._due:
            return
        share = min(max(share, 0.0), 1.0)
        left = f", {duration((1 - share) * (now - self._start) / share)} left" if share else ""
        line = f"{words}, {100 * share:.0f} %{left}"
        if self._terminal:
            self._line.draw(sys.stdout, f"{self.text} {bar(share, 30)} {line}")
        else:
            print(f"{self.text}: {line}", flush=True)
        self._due = now + (0.1 if self._terminal else LINE_EVERY)

    def clear(self) -> None:
        """Remove the bar until it is shown again."""
        self._line.clear(sys.stdout)

    def close(self, words: str | None = None) -> None:
        """Remove the bar; print `words` in its place."""
        self.clear()
        if words and self._speaks:
            print(f"{self.text}: {words} in {time.monotonic() - self._start:.1f} s", flush=True)
