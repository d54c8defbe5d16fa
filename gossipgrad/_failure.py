"""An error on one rank ends all ranks, and is said once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from gossipgrad import _core
from gossipgrad._launch import launcher_rank, launcher_world_size

# An error that all ranks meet alike is told by rank 0, if it comes within this time, else by the first one of a host.
PATIENCE = 1.0
# Who has been spared the telling is ended by the one that told; if not, after this time by itself.
SPARED = 30.0
# Ranks that wait in vain give up one after the other; each says for whom it waited, for which this is the time. It is
# not needed where all but one of them have.
LAST_WORDS = 3.0


def launched_size() -> int:
    """Ranks of the launcher's world; 1 without a launcher."""
    return launcher_world_size() or 1


def launched_rank() -> int:
    """This process's rank in the launcher's world; 0 without a launcher."""
    return launcher_rank() or 0


def _mark(who: str) -> str:
    """The file in the job's folder that says that `who` has told what happened; "": the launcher gives none."""
    folder, job = os.environ.get("PMIX_SERVER_TMPDIR"), os.environ.get("PMIX_NAMESPACE", "").replace("/", "-")
    return os.path.join(folder, f"gossipgrad-told-{job}-{who}") if folder and job else ""


def first_to_report() -> bool:
    """Has no other rank of this host told what happened? The answer is yes once, and where nobody can know.

    The launcher gives each job a folder of its own and removes it: a file there says so, however slow the ranks are.
    """
    mark = _mark("all")
    try:
        if mark:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError:  # not ours to write
        return True
    return True


def _wait_until_taken(patience: float) -> None:
    """Until whoever reads our pipes, as the launcher does, has read all that we wrote."""
    end = time.monotonic() + patience
    for stream in (1, 2):
        try:
            while stat.S_ISFIFO(os.fstat(stream).st_mode) and time.monotonic() < end:
                if int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, b"\0" * 4), sys.byteorder) == 0:
                    break
                time.sleep(0.01)
        except OSError:  # closed
            pass


def _wait_for_others(size: int, rank: int, patience: float) -> None:
    """Until all ranks but one, for which they wait, have told what they waited for; or so long."""
    end = time.monotonic() + patience
    try:
        with open(_mark(str(rank)), "w"):
            pass
        while time.monotonic() < end and sum(os.path.exists(_mark(str(r))) for r in range(size)) < size - 1:
            time.sleep(0.02)
    except OSError:  # no such folder
        time.sleep(patience)


def end_all_ranks(say: Callable[[str], None], code: int, error: BaseException | None = None) -> None:
    """Say what happened (`say` gets "" or "rank 3: "), then end every rank of the MPI world with this exit code.

    A CommunicationError is not the same on all ranks: each says its own before the first one ends them all.
    Returns if there is no MPI world to end: a single process, or MPI not started yet.
    """
    size, rank = launched_size(), launched_rank()
    alike = not isinstance(error, _core.CommunicationError)
    if size > 1 and rank > 0 and alike:
        time.sleep(PATIENCE)
    if size > 1 and alike and not first_to_report():
        time.sleep(SPARED)
    else:
        say(f"rank {rank}: " if rank > 0 else "")
    sys.stdout.flush()
    sys.stderr.flush()
    if size > 1:
        # The launcher forwards the text before it ends us.
        _wait_until_taken(5 * PATIENCE)
        if not alike:
            _wait_for_others(size, rank, LAST_WORDS)
        time.sleep(PATIENCE / 10)
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
