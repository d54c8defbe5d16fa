"""Ctrl-C while the command line is still being imported, which takes most of a second.

Imports may not be left by an exception: NumPy makes an ImportError of it. There is nothing to tidy up yet, so the
process ends at once, with the line and the exit code that cli.main has.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _is_command() -> bool:
    """Is this process `gossipgrad ...` or `python -m gossipgrad ...`? How other programs end is up to them."""
    if sys.argv[:1] == ["-m"]:  # Python is looking for the module that it shall run
        return ("-m", "gossipgrad") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(sys.argv[0] if sys.argv else "") == "gossipgrad"


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"gossipgrad: interrupted\n")
    finally:
        os._exit(128 + number)


def begin() -> None:
    """From now on Ctrl-C ends a process of the command line without a traceback. One that ignores it goes on to."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def end() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
