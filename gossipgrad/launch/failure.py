"""One failing rank ends all ranks, and its error is printed once.

Detection of each way to end:

an exception that nobody catches    the hooks of guard(): they print it and call MPI_Abort
an exit code other than 0           the core, at the end of the process or of MPI (csrc/comm/mpi/mpi_end.c)
an exit code of 0 while others wait the core: a waiting rank asks, the ended one answers
a signal, os._exit                  the launcher; before MPI_Init has returned: starting()
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NoReturn

from gossipgrad import _core
from gossipgrad.launch.origin import (
    all_here,
    by_net,
    is_newcomer,
    job_folder,
    launcher_rank,
    launcher_world_size,
    may_grow,
    variable,
)

# Seconds. Rank 0 reports an error of all ranks if it comes within this time, else the first rank of a host that can.
HEAD_START = 1.0
# Seconds that a rank without a report waits to be ended by the reporting one; then it ends by itself.
TO_BE_ENDED = 30.0
# Ranks that wait in vain fail one after the other, and each names the awaited rank. Seconds that the first one waits
# for the others' reports before it ends them.
OTHER_REPORTS = 3.0
# MPI_Abort needs the launcher, which may be gone: after these seconds the process ends anyway.
TO_ABORT = 10.0
# Seconds without a new rank of a host, after which the launcher has started all of them.
ALL_STARTED = 5.0


def launched_size() -> int:
    """Ranks of the launcher's world; 1 without a launcher."""
    return launcher_world_size() or 1


def launched_rank() -> int:
    """This process's rank in the launcher's world; 0 without a launcher."""
    return launcher_rank() or 0


def several() -> bool:
    """True if there are other ranks, or there may be later."""
    return launched_size() > 1 or may_grow()


def mark(name: str) -> str:
    """A file in the launcher's folder of the job on this host, by which ranks see each other; "": no such folder."""
    folder, job = job_folder()
    return os.path.join(folder, f"gossipgrad-{job}-{name}") if folder and job else ""


# ------------------------------------------------------------------------------------ reporting, and ending all


def first_to_report() -> bool:
    """True if no rank of this job on this host has reported a failure yet: once, and if that cannot be known."""
    if not by_net():
        return _core.first_to_report()
    try:
        os.close(os.open(mark("reported"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError:
        pass
    return True


def _wait_until_read(seconds: float) -> None:
    """Wait until the reader of our pipes, as the launcher, has read all output."""
    end = time.monotonic() + seconds
    for stream in (1, 2):
        try:
            while stat.S_ISFIFO(os.fstat(stream).st_mode) and time.monotonic() < end:
                if int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, b"\0" * 4), sys.byteorder) == 0:
                    break
                time.sleep(0.01)
        except OSError:  # closed
            pass


def _wait_for_reports(size: int, rank: int, seconds: float) -> None:
    """Wait until all ranks except one, the awaited one, have reported; at most `seconds`."""
    end = time.monotonic() + seconds
    try:
        with open(mark(f"waited-{rank}"), "w"):
            pass
        while time.monotonic() < end:
            if sum(os.path.exists(mark(f"waited-{other}")) for other in range(size)) >= size - 1:
                return
            time.sleep(0.02)
    except OSError:  # no such folder
        time.sleep(seconds)


def _report(report: Callable[[str], None], who: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr has no reader any more
        report(who)
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # gone, closed, None
            file.flush()


_reported = False
# Where ranks may die (surviving.py): tells that an error is this rank's own, and that the others go on.
dies_alone: Callable[[BaseException | None], bool] | None = None
has_joined = False  # this process trains with the others, or has done so; set by surviving.py
exits_with_error = False  # sys.exit was called with a code other than 0


def _others_go_on(error: BaseException | None) -> bool:
    """True if this error ends this process alone."""
    if dies_alone is not None:
        return dies_alone(error)
    return has_yet_to_join()


def has_yet_to_join() -> bool:
    """True on a new rank that no other rank knows yet."""
    return is_newcomer() and not has_joined


def end_all_ranks(report: Callable[[str], None], code: int, error: BaseException | None = None) -> None:
    """Report the error (`report` gets "" or "rank 3: "), then end every rank of the MPI world with this exit code.

    A CommunicationError differs between ranks: each reports its own before the first one ends them all. An error of
    another rank (agreement.disagreement) is reported by that rank.
    Returns if there is no MPI world to end: a single process, or MPI not started yet.
    """
    size, rank = launched_size(), launched_rank()
    if not several():
        _report(report, "")
        return
    if _others_go_on(error):
        _report(report, f"rank {rank}: ")
        _wait_until_read(HEAD_START)
        os._exit(code)
    global _reported
    again, _reported = _reported, True  # an error while this process reports one must not wait for itself
    alike = not isinstance(error, _core.CommunicationError)
    if not again:
        if getattr(error, "of_rank", None) is not None:
            time.sleep(3 * HEAD_START)  # the rank of the error shows its traceback
        elif rank > 0 and alike:
            time.sleep(HEAD_START)
        if alike and not first_to_report():
            time.sleep(TO_BE_ENDED)
        else:
            _report(report, f"rank {rank}: " if rank > 0 else "")
    # The launcher forwards the text before it ends us.
    _wait_until_read(5 * HEAD_START)
    if not alike and not again:
        _wait_for_reports(size, rank, OTHER_REPORTS)
    time.sleep(HEAD_START / 10)
    end = threading.Timer(TO_ABORT, os._exit, (code,))
    end.daemon = True
    end.start()
    if by_net():
        with contextlib.suppress(OSError), open(mark(f"told-{rank}"), "w"):
            pass
        os._exit(code)  # the launcher ends the others
    _core.abort(code)
    end.cancel()
    _reported = again  # no world has ended: the next failure of this process is reported as well


# ------------------------------------------------------------------------------------ exceptions


def _from_this_package(trace: TracebackType | None) -> bool:
    """True if the exception left a function of this package."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "gossipgrad":
            return True
        trace = trace.tb_next
    return False


class _Exit(SystemExit):
    """The exception of sys.exit. If nothing catches it, the core is told its code: mpi4py finalises MPI before the
    end."""

    def __del__(self) -> None:
        try:
            sys._getframe(1)
        except ValueError:  # no function of Python runs any more: the interpreter ends because of it
            if not sys.is_finalizing() and os.getpid() == _guarded and self.code is not None:
                _core.note_exit(self.code if isinstance(self.code, int) else 1)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"


def _exit(status: object = None, /) -> NoReturn:
    global exits_with_error
    exits_with_error = status is not None and status != 0
    raise _Exit(status)


_guarded = 0  # the process whose hooks are set


def guard() -> None:
    """From now on an uncaught exception ends all ranks, so that the others do not wait for ever.

    In the main thread any uncaught exception does, as it ends the process. In another thread only one that has left a
    function of this package, such as fit: the others are in that function and wait.
    """
    global _guarded
    if _guarded or not several():
        return
    _guarded = os.getpid()
    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != _guarded:  # a forked process ends alone
            before(kind, error, trace)
            return
        code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        end_all_ranks(lambda who: before(kind, error, trace), code, error)

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        if os.getpid() != _guarded or not _from_this_package(arguments.exc_traceback):
            before_in_thread(arguments)
            return

        def report(who: str) -> None:
            before_in_thread(arguments)  # silent about SystemExit
            if issubclass(arguments.exc_type, SystemExit):
                name = arguments.thread.name if arguments.thread is not None else "a thread"
                print(f"gossipgrad: {who}{name} left training by sys.exit", file=sys.stderr, flush=True)

        code = getattr(arguments.exc_value, "code", None)
        end_all_ranks(report, code if isinstance(code, int) and code != 0 else 1, arguments.exc_value)

    sys.excepthook, threading.excepthook = hook, thread_hook
    sys.exit = functools.update_wrapper(_exit, sys.exit)


# ------------------------------------------------------------------------------------ MPI_Init


def _ranks_here() -> set[int]:
    """The ranks of this job with a living process on this host."""
    job, found = f"PMIX_NAMESPACE={variable('PMIX_NAMESPACE')}".encode(), set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:  # of another user, or just ended
                continue
            if job in variables:
                found |= {int(v[10:]) for v in variables if v.startswith(b"PMIX_RANK=") and v[10:].isdigit()}
    return found


def lost_ranks(here: set[int], seen: set[int], size: int, all_here: bool, all_started: bool) -> set[int]:
    """Ranks whose processes have ended, of those `here` now and those `seen` before.

    all_here: all ranks are to run on this host. The launcher starts them in order, so if a later rank lives, a missing
    earlier one has ended. all_started: enough time has passed that all were started.
    """
    started = set(seen)
    if all_here:
        started = set(range(size if all_started else max(here | seen, default=-1) + 1))
    return started - here


def _end_start(report: str) -> None:
    """End this rank, which waits in MPI_Init; the launcher ends the others."""
    if first_to_report():
        with contextlib.suppress(OSError, ValueError):
            print(report, file=sys.stderr, flush=True)
    _wait_until_read(HEAD_START)
    os._exit(1)


def _watch_start(done: threading.Event, timeout: float, error: Exception | None) -> None:
    """End this rank if another has ended and can never reach MPI_Init, or after `timeout` seconds (0: never)."""
    size, rank = launched_size(), launched_rank()
    together = all_here(size)
    begin = time.monotonic()
    seen: set[int] = set()
    lost: set[int] = set()
    newest = begin  # when a rank was first seen
    while not done.wait(0.5):
        waited = time.monotonic() - begin
        if timeout and waited > timeout:
            why = "" if error is None else f", with an error that it was to tell them, {type(error).__name__}: {error},"
            _end_start(
                f"gossipgrad: rank {rank} has waited {waited:.1f} s in MPI_Init for other ranks, which have not come "
                f"to a Trainer, Team or Exchange of their own{why} (timeout={timeout:g}): this ends all ranks"
            )
        if waited >= 1 and variable("PMIX_NAMESPACE"):
            here, before = _ranks_here(), lost
            if here - seen:
                newest = time.monotonic()
            all_started = time.monotonic() - newest > ALL_STARTED
            lost = lost_ranks(here, seen, size, together, all_started) if rank in here else set()
            seen |= here
            if lost & before and not done.is_set():
                _end_start(
                    f"gossipgrad: rank {min(lost & before)} ended before it had started MPI: this ends all ranks"
                )


@contextlib.contextmanager
def starting(timeout: float = 0.0, error: Exception | None = None) -> Iterator[None]:
    """Around MPI_Init, which waits for all ranks and never fails.

    If a rank of this host has ended, MPI_Init would never return: print that and end the job; also after `timeout`
    seconds (0: never). error: of this rank, printed then.
    """
    if launched_size() < 2:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_watch_start, args=(done, timeout, error), name="gossipgrad-start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
