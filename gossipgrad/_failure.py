"""An error on one rank ends all ranks, and is said once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from gossipgrad import _core
from gossipgrad._launch import launcher_rank, launcher_world_size

# An error that all ranks meet alike is told by rank 0, whose abort ends the others within this time.
PATIENCE = 1.0
# Ranks that wait in vain give up one after the other; each says for whom it waited, for which this is the time.
LAST_WORDS = 2.0


def launched_size() -> int:
    """Ranks of the launcher's world; 1 without a launcher."""
    return launcher_world_size() or 1


def launched_rank() -> int:
    """This process's rank in the launcher's world; 0 without a launcher."""
    return launcher_rank() or 0


def end_all_ranks(say: Callable[[str], None], code: int, error: BaseException | None = None) -> None:
    """Say what happened (`say` gets "" or "rank 3: "), then end every rank of the MPI world with this exit code.

    A CommunicationError is not the same on all ranks: each says its own before the first one ends them all.
    Returns if there is no MPI world to end: a single process, or MPI not started yet.
    """
    size, rank = launched_size(), launched_rank()
    alike = not isinstance(error, _core.CommunicationError)
    if size > 1 and rank > 0 and alike:
        time.sleep(PATIENCE)
    say(f"rank {rank}: " if rank > 0 else "")
    sys.stdout.flush()
    sys.stderr.flush()
    if size > 1:
        # The launcher forwards the text before it ends us.
        time.sleep(PATIENCE / 10 if alike else LAST_WORDS)
        _core.abort(code)


@contextlib.contextmanager
def patience(seconds: float, what: str) -> Iterator[None]:
    """Says on stderr when the inside takes longer than this, because it waits for other ranks and never fails.

    0: it never says so.
    """

    def say() -> None:
        words = f"gossipgrad: rank {launched_rank()}: has waited {seconds:g} s in {what} for other ranks; waits on"
        print(words, file=sys.stderr, flush=True)

    timer = threading.Timer(seconds, say)
    timer.daemon = True
    if seconds > 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


_installed = False


def guard() -> None:
    """From now on an exception that nobody catches ends all ranks instead of leaving the others waiting."""
    global _installed
    if _installed or launched_size() < 2:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        end_all_ranks(lambda who: before(kind, error, trace), code, error)

    sys.excepthook = hook
