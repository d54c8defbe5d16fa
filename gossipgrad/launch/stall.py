"""Long waits between ranks: who waits, in which call, for whom. They are printed on stderr and continue.

The first line comes after $GOSSIPGRAD_STALL_SECONDS (default 10; 0: never). Each further one comes after six times as
long. The ranks of a host write their waits into the launcher's folder of the job, so that one of them speaks for all.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from gossipgrad import _core
from gossipgrad.launch import FOLDER
from gossipgrad.launch.failure import launched_rank, launched_size, mark
from gossipgrad.launch.origin import all_here

SECONDS = 10.0
REPEAT = 6  # as GG_STALL_REPEAT
VARIABLE = "GOSSIPGRAD_STALL_SECONDS"

_calls: list[str] = []  # the current collective calls of this process, the innermost last
_advice = ""  # advice if ranks wait in different calls
_allowance = 0.0  # additional seconds for simulated stragglers and links
_HERE = FOLDER + os.sep
_not_the_users: tuple[str, ...] = (_HERE, os.path.abspath(contextlib.__file__))


@dataclass(frozen=True)
class Wait:
    """One rank's wait. peer: the awaited rank; -1: several; itself: it waits for `own`, which is no rank. place: the
    user's line.

    place "": not known.
    """

    rank: int
    size: int
    peer: int
    call: str
    place: str
    began: float  # time.time
    own: str = ""


def ranks_text(ranks: Sequence[int], most: int = 8) -> str:
    """ "rank 3", "ranks 0, 2 and 5", "ranks 0-3 and 7": runs of three and more are joined, long lists are cut."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts: list[str] = []
    for first, last in runs:
        parts += [f"{first}-{last}"] if last - first > 1 else [str(one) for one in range(first, last + 1)]
    if len(parts) > most:
        parts = [*parts[: most - 1], f"others, {len(ordered)} in all"]
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def line(waits: Sequence[Wait], now: float, all_here: bool) -> str:
    """The message about these waits. all_here: no rank of the group is on another host."""
    groups: dict[tuple[str, str], list[Wait]] = {}
    for wait in sorted(waits, key=lambda one: one.rank):
        groups.setdefault((wait.call, wait.place), []).append(wait)
    parts = []
    for (call, place), some in groups.items():
        has = "has" if len(some) == 1 else "have"
        peers = [wait.peer for wait in some]
        whom = f" for {ranks_text(peers)}" if min(peers) >= 0 else " for other ranks"
        if all(wait.peer == wait.rank for wait in some):
            whom = f" for {' and '.join(sorted({wait.own for wait in some}))}"
        lasted = max(now - wait.began for wait in some)
        where = f" ({place})" if place else ""
        parts.append(f"{ranks_text([w.rank for w in some])} {has} waited for {lasted:.3g} s in {call}{where}{whom}")
    size = waits[0].size
    others = sorted(set(range(size)) - {wait.rank for wait in waits})
    if all_here and others and all(wait.size == size for wait in waits):
        does = "does not wait so long: it computes, or does not make this call"
        if len(others) > 1:
            does = "do not wait so long: they compute, or do not make this call"
        parts.append(f"{ranks_text(others)} {does}")
    return f"gossipgrad: {'; '.join(parts)}. Waiting goes on"


# ---- the position of this process


@contextlib.contextmanager
def within(call: str) -> Iterator[None]:
    """Waits inside count as waits in this call."""
    _calls.append(call)
    try:
        yield
    finally:
        _calls.pop()


def current(place: str = "") -> str:
    """This process's innermost collective call, and a place in it."""
    return ", ".join([*_calls[-1:], *filter(None, [place])])


def allow(seconds: float) -> None:
    """Simulated circumstances make waits of this many seconds usual."""
    global _allowance
    _allowance = max(_allowance, seconds)


def leave_out(*folders: str) -> None:
    """Lines in these folders, of a library that calls this package, do not count as the user's."""
    global _not_the_users
    _not_the_users += tuple(os.path.abspath(folder) + os.sep for folder in folders)


def advise(text: str) -> None:
    """Advice to add to the message if ranks wait in different calls."""
    global _advice
    _advice = text


def _users_line() -> str:
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_not_the_users):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"


# ---- the ranks of this host


def _file(name: str) -> str:
    """A file of this job on this host; "": the launcher has no folder."""
    return mark(f"waits-{name}")


def _write(name: str, text: str) -> None:
    path = _file(name)
    if path:
        with contextlib.suppress(OSError):
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.part", path)


def _forget(name: str) -> None:
    if _file(name):
        with contextlib.suppress(OSError):
            os.unlink(_file(name))


def _modified(name: str) -> float:
    try:
        return os.stat(_file(name)).st_mtime
    except OSError:
        return -math.inf


def _waits_here() -> list[Wait]:
    prefix = _file("rank-")
    found: list[Wait] = []
    if not prefix:
        return found
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.dirname(prefix)):
            path = os.path.join(os.path.dirname(prefix), name)
            if path.startswith(prefix) and not path.endswith(".part"):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    with open(path, encoding="utf-8") as file:
                        found.append(Wait(**json.load(file)))
    return sorted(found, key=lambda one: one.rank)


def _say(own: Wait, grace: float) -> None:
    """Print the waits of this host's ranks, unless another rank has done so since this wait began."""
    name = f"rank-{launched_rank()}"
    _write(name, json.dumps(asdict(own)))
    written = _modified(name)
    time.sleep(grace)  # ranks that wait for one rank arrive here at about the same time
    waits = [one for one in _waits_here() if one.size == own.size] or [own]
    place = sum(one.rank < own.rank for one in waits)
    time.sleep(min(place, 8) * grace / 8)
    if _modified("said") >= written > -math.inf:
        return
    _write("said", "")
    waits = [one for one in _waits_here() if one.size == own.size] or [own]
    here = own.size == launched_size() and all_here(own.size) and bool(_file("x"))
    with contextlib.suppress(OSError, ValueError):  # a closed stderr
        apart = len({(one.call, one.place) for one in waits}) > 1 or len(waits) < own.size
        advice = f". {_advice}" if _advice and apart else ""
        sys.stderr.write(f"{line(waits, time.time(), here)}{advice}\n")
        sys.stderr.flush()


# ---- entry points


def patience() -> float:
    """Seconds after which a wait is reported; 0: never. ValueError if the variable is no such number."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        value = float(text) if text else SECONDS
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{VARIABLE}={text!r}: allowed: seconds after which a wait is reported; 0: never")
    return value


def report(
    rank: int,
    size: int,
    peer: int,
    step: int,
    first: str | None,
    last: str | None,
    what: str | None,
    seconds: float,
    over: bool,
) -> float:
    """The core's call: a wait lasts this long, or is over. Returns the seconds until the next report."""
    if over:
        _forget(f"rank-{launched_rank()}")
        return 0.0
    limit = patience()
    if seconds < limit + _allowance:
        return limit + _allowance - seconds
    words = _calls[-1:]
    words += [f"step {step}"] if step >= 0 else []
    if first is not None and last is not None:
        words.append(f"layers '{first}'" if first == last else f"layers '{first}' to '{last}'")
    own = what if peer == rank and what is not None else ""
    words += [what] if what is not None and not own else []
    call = ", ".join(words) or "a call of the core"
    _say(Wait(rank, size, peer, call, _users_line(), time.time() - seconds, own), min(0.5, limit / 4))
    return REPEAT * limit


def start() -> None:
    """Report waits of this process from now on."""
    _core.report_stalls(patience(), report)


@contextlib.contextmanager
def watch(what: str) -> Iterator[None]:
    """Report the inside, a call of MPI's own, from a thread while it lasts."""
    limit, over = patience(), threading.Event()
    place = _users_line()

    def run() -> None:
        began, next_one = time.time(), limit
        while not over.wait(next_one):
            _say(Wait(launched_rank(), launched_size(), -1, what, place, began), min(0.5, limit / 4))
            next_one = REPEAT * limit
        _forget(f"rank-{launched_rank()}")

    thread = threading.Thread(target=run, daemon=True)
    if limit > 0 and launched_size() > 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
