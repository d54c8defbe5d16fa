"""Ctrl-C during imports, during work that must not be left half done, and while fit runs.

Importing the command line takes most of a second. An exception must not leave an import: NumPy turns it into an
ImportError. There is nothing to tidy up yet, so the process ends at once, with the line and the exit code of cli.main.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any


def _is_command() -> bool:
    """True for `gossipgrad ...` or `python -m gossipgrad ...`. Other programs decide themselves how they end."""
    if sys.argv[:1] == ["-m"]:  # Python is looking for the module to run
        return ("-m", "gossipgrad") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(sys.argv[0] if sys.argv else "") == "gossipgrad"


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"gossipgrad: interrupted\n")
    finally:
        os._exit(128 + number)


def begin_import() -> None:
    """From now on Ctrl-C ends a process of the command line without a traceback. A process that ignores it still
    does."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def end_import() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C inside until the end, so that the inside is done as a whole or not at all."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


# Signals of schedulers before the time is over.
TO_SAVE = (signal.SIGTERM, signal.SIGUSR1)

# Seconds within which a signal to one rank, which has ended fit on all, reaches the others.
LATE = 2.0


class _Late:
    """The handler of a rank that left fit for another's Ctrl-C: its own, if it comes soon, was the same one."""

    def __init__(self) -> None:
        self.until = time.monotonic() + LATE

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if time.monotonic() >= self.until:
            signal.default_int_handler(number, frame)


class Noted:
    """Note a Ctrl-C inside in `came`; if nobody raises it, it comes at the end of the inside.

    A second one ends the process at once. Only in the main thread, and if no handler of a script's own is set.
    active: otherwise nothing is noted, and nothing changes. saving: SIGTERM and SIGUSR1 set `saves`, whatever their
    handlers are; RuntimeError in another thread than the main one.
    """

    def __init__(self, active: bool, saving: bool = False) -> None:
        main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT)
        self.active = active and main and (handler is signal.default_int_handler or isinstance(handler, _Late))
        self.came = self.saves = False
        self._saving: dict[int, Any] = dict.fromkeys(TO_SAVE) if saving else {}  # with the former handlers
        if saving and not main:
            raise RuntimeError(
                f"save_on_signal=True: fit runs in the thread {threading.current_thread().name!r}, which no signal "
                "comes to; allowed: in the main thread"
            )
        self._until = handler.until if isinstance(handler, _Late) else 0.0

    def _note(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self._until:  # the signal of an earlier fit
            self._until = 0.0
            return
        self.came = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _note_to_save(self, number: int, frame: FrameType | None) -> None:
        self.saves = True

    def __enter__(self) -> Noted:
        for number in self._saving:
            self._saving[number] = signal.signal(number, self._note_to_save)
        if self.active:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, before in self._saving.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        if not self.active:
            return
        late = isinstance(error, KeyboardInterrupt) and not self.came
        signal.signal(signal.SIGINT, _Late() if late else signal.default_int_handler)
        if self.came and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt
