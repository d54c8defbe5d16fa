"""Agreements between all processes of a group, and their exchanges outside of training. All is collective.

Every collective call begins by comparing the ranks' intentions: `agreed`. Each rank contributes the call's name and its
facts, or the error met in its own arguments. A digest goes to all; the whole texts follow only if digests differ, and
then every rank raises the result of `disagreement`. So nobody waits for a rank that has failed, or that makes another
call.

A virtual cluster and a single rank are one process: it agrees with itself, and nothing is computed or sent.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gossipgrad import errors
from gossipgrad._core import PeerError, Team
from gossipgrad.errors import CheckpointError, CommunicationError, one_line
from gossipgrad.launch import stall

_DIGEST = 32
_ABSENT = "absent"
# Max differences in one message, values of one difference, and characters of a value.
_MAX, _VALUES, _WIDEST = 5, 8, 80

T = TypeVar("T")
# Where ranks may die: goes on without the dead ones. Set by surviving.py.
go_on: Callable[[], object] | None = None
_within = False  # within a call that is made again
_leaves = False  # a collective call is not made again after a change of the group

Report = dict[str, Any]  # {"call": ..., "facts": {name: text}} or {"call": ..., "error": [text, kinds]}


# ---- comparing: functions of all ranks' reports, by rank


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Facts as texts, by name; those of a dict are "name, key"; a callable is called."""
    result: dict[str, str] = {}
    for key, value in facts.items():
        value = value() if callable(value) else value
        if isinstance(value, Mapping):
            result |= {f"{prefix}{key}": "given"} | flat(value, f"{prefix}{key}, ")
        else:
            result[f"{prefix}{key}"] = _text(value)
    return result


def _text(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    if len(text) <= _WIDEST:
        return text
    return f"{text[: _WIDEST - 20]}... (checksum {hashlib.sha256(text.encode()).hexdigest()[:8]})"


def report_of(call: str, facts: Mapping[str, Any], error: Exception | None = None) -> Report:
    """One rank's report."""
    if error is None:
        return {"call": call, "facts": flat(facts)}
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return {"call": call, "error": [text or type(error).__name__, kinds]}


def _groups(values: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The different values, each with its ranks, in the order of their first ranks."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return list(groups.items())


def _listed(values: Sequence[str]) -> str:
    """ "32 on ranks 0 and 2; 64 on rank 1" """
    groups = _groups(values)
    parts = [f"{value} on {stall.ranks_text(ranks)}" for value, ranks in groups[:_VALUES]]
    if len(groups) > _VALUES:
        parts.append(f"and {len(groups) - _VALUES} more values")
    return "; ".join(parts)


def differences(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """One text for each fact that differs between ranks: "batch_size: 32 on ranks 0 and 2; 64 on rank 1"."""
    names: dict[str, None] = {}
    for one in facts:
        names |= dict.fromkeys(one)
    found: dict[str, str] = {}
    for name in names:
        values = [one.get(name, _ABSENT) for one in facts]
        parts = name.split(", ")
        inside = any(", ".join(parts[:n]) in found for n in range(1, len(parts)))  # missing on one rank
        if len(set(values)) > 1 and not inside:
            found[name] = f"{name}: {_listed(values)}"
    return list(found.values())


def _made_again(text: str, kinds: Sequence[str]) -> Exception:
    """An error of another rank: of its type, or of the nearest type that can be made here."""
    for name in kinds:
        made = getattr(errors, name, None) or getattr(builtins, name, None)
        if isinstance(made, type) and issubclass(made, Exception):
            with contextlib.suppress(TypeError):  # some types need more than a text
                return made(text)
    return RuntimeError(text)


def disagreement(
    reports: Sequence[Report], rank: int, own: Exception | None = None, hints: Mapping[str, str] | None = None
) -> Exception | None:
    """The exception that `rank` must raise; None: none. own: the error that it has reported. hints: as of Agreement.

    Its own error, if any; else the first other rank's; else ValueError that lists the differences.
    """
    if own is not None:
        return own
    for other, report in enumerate(reports):
        if "error" in report:
            text, kinds = report["error"]
            error = _made_again(f"rank {other}: {text}", kinds)
            error.__dict__["of_rank"] = other
            return error
    calls = [str(report["call"]) for report in reports]
    if len(set(calls)) > 1:
        return ValueError(
            f"ranks make different calls: {_listed(calls)}. All ranks make the same collective calls in the same "
            "order; what one rank alone is to do, as printing, comes after them"
        )
    found = differences([report["facts"] for report in reports])
    if not found:
        return None
    more = [f"and {len(found) - _MAX} more differences"] if len(found) > _MAX else []
    advice = dict.fromkeys(hint for name, hint in (hints or {}).items() if any(one.startswith(name) for one in found))
    return ValueError(
        ". ".join([f"{calls[0]}: ranks differ in what must be equal on all", *found[:_MAX], *more, *advice])
    )


# ---- between processes


def alone(team: Team) -> bool:
    """True if all ranks of the group are in this process."""
    return team.local == team.size


def of_all(error: BaseException) -> bool:
    """True if all ranks raised this error, or an equivalent one, together."""
    return "agreement" in error.__dict__


def interrupt(where: str, saves: bool = False) -> KeyboardInterrupt:
    """Ctrl-C of some rank, which all raise together; saves: or a signal that lets them save and end."""
    error = KeyboardInterrupt(f"{where}, on all ranks")
    error.__dict__ |= {"agreement": _agreements, "saves": saves}
    return error


def in_place_of(error: BaseException, raised: BaseException) -> BaseException:
    """`error`, which all ranks raise together in the place of `raised`."""
    error.__dict__["agreement"] = raised.__dict__["agreement"]
    return error


def saves(error: BaseException) -> bool:
    """True for a signal that lets all ranks save and end."""
    return bool(error.__dict__.get("saves"))


_agreements = 0  # agreements of this process so far


class Agreement:
    """A rank's contribution to an agreement, and afterwards the result."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}  # texts, numbers, dicts of them, or callables that give one
        self.hints: dict[str, str] = {}  # advice by beginnings of the names of differing facts
        self.number = 0  # this rank's number, 0 to 2**63 - 1; it may differ between ranks
        self.numbers: list[int] = []  # every process's number, by rank, after the agreement


@contextlib.contextmanager
def agreed(team: Team, call: str, where: str = "") -> Iterator[Agreement]:
    """On leaving, all ranks compare the facts collected inside; an exception inside is raised by all.

    ValueError on all ranks if calls or facts differ. An exception of the inside is raised as it is; on the other ranks
    one of its type says "rank 1: ...". KeyboardInterrupt and others that are no Exception stay this rank's alone, and
    so does a CommunicationError. where: begins the text of a CommunicationError.
    """
    one = Agreement()
    error: Exception | None = None
    before = _agreements
    with stall.within(call):
        report: Report = {}
        try:
            yield one
            if not alone(team):  # reading facts may fail on one rank alone
                report = report_of(call, one.facts)
        except Exception as raised:
            # An error that all ranks raised together in an inner agreement needs no further comparison.
            inside = raised.__dict__.get("agreement", -1) > before
            if alone(team) or isinstance(raised, CommunicationError) or inside:
                raise
            error, report = raised, report_of(call, {}, raised)
        if alone(team):
            one.numbers = [one.number]
            return
        _compare(team, one, report, error, ", ".join(filter(None, (where, call))))


def _compare(team: Team, one: Agreement, own: Report, error: Exception | None, where: str) -> None:
    global _agreements
    text = json.dumps(own).encode()
    digest = hashlib.sha256(text).digest()
    if error is None:
        answers = _equal(team, digest + one.number.to_bytes(8, "little"), where)
    else:
        answers = _report(team, digest + bytes(8), error, where)
    one.numbers = [int.from_bytes(answer[_DIGEST:], "little") for answer in answers]
    result = error
    if any(answer[:_DIGEST] != digest for answer in answers):
        reports = [json.loads(text) for text in _gather(team, text, where)]
        result = disagreement(reports, team.rank, error, one.hints)
        if result is None and len(reports) < len(answers):  # a rank that made another call has died since
            return _compare(team, one, own, error, where)
    _agreements += 1
    if result is not None:
        result.__dict__["agreement"] = _agreements
        raise result


def _report(team: Team, data: bytes, error: Exception, where: str) -> list[bytes]:
    """_equal for a failed rank, whose error must not wait for ever, because others may wait for this rank."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    with stall.within(f"{where}, with an error to be raised by all ranks, {text},"):
        try:
            return _equal(team, data, where, error_patience())
        except CommunicationError as missing:
            raise error from missing


def error_patience() -> float:
    """Seconds that an error waits for the other ranks before it is raised on its own rank alone."""
    return stall.REPEAT * (stall.patience() or stall.SECONDS)


def refuse(team: Team, call: str, error: Exception) -> None:
    """Raise this error on all ranks; this rank alone met it, before it could come to `call`."""
    with agreed(team, call):
        raise error


def gather(team: Team, data: bytes, where: str = "between epochs") -> list[bytes]:
    """Every process's bytes, of any length, by rank. `where` begins the text of a CommunicationError."""
    return [data] if alone(team) else _gather(team, data, where)


def together(team: Team, what: str, work: Callable[[], None], where: str = "between epochs") -> None:
    """Do this on every process; if one fails, all raise CheckpointError with its reason.

    OSError and CheckpointError count as failing; `what` begins the reason.
    """
    with agreed(team, what, where):
        try:
            work()
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"{what}: {one_line(error)}") from error


class _ChangedError(Exception):
    """The group has changed in a call that nobody makes again."""


def surviving(team: Team, call: Callable[[], T]) -> T:
    """The result of a collective call, which the others make again if ranks have died before all had completed it.

    Inner collective calls end with the outermost one.
    """
    global _within, _leaves
    if not team.survives or _within:
        return call()
    while True:
        done = True
        _within = True
        try:
            result = call()
        except PeerError as error:
            done, lost = False, error
        finally:
            _within = False
        if team.decide(done):
            return result
        if go_on is None:
            raise PeerError(
                "a rank has died; allowed while fit trains, or an Exchange or a wrapped model is open. The others end "
                "here: start again, from the last checkpoint"
            ) from (None if done else lost)
        leaves, _leaves = _leaves, False
        try:
            go_on()
        finally:
            _leaves = leaves
        if leaves:
            raise _ChangedError
        if team.goal is not None:
            raise PeerError(
                f"a rank has died, and the others go on in step {team.goal}, which this rank does not reach: it waits "
                "in a collective call. All ranks make the same collective calls after the same step"
            ) from (None if done else lost)


def met(team: Team, where: str) -> bool:
    """True if all ranks that live meet here. False: ranks have died before, and the others have gone on without them.

    Then nobody comes back to this meeting by itself, because some ranks may not have come to it yet.
    """
    global _leaves
    _leaves = True
    try:
        with agreed(team, where):
            pass
    except _ChangedError:
        return False
    finally:
        _leaves = False
    return True


def all_end(team: Team, timeout: float = 0.0) -> bool:
    """True on all ranks if all make this call; False if another rank makes another one. It goes on without this rank.

    CommunicationError after this many seconds (0: as the team).
    """
    own = hashlib.sha256(b"end").digest() + bytes(8)  # as long as in _compare, where it differs from all
    return all(answer == own for answer in _equal(team, own, "end", timeout))


def _gather(team: Team, data: bytes, where: str) -> list[bytes]:
    length = len(data).to_bytes(8, "little")
    longest = max(int.from_bytes(one, "little") for one in _equal(team, length, where))
    framed = _equal(team, length + data.ljust(longest, b"\0"), where)
    return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in framed]


def _equal(team: Team, data: bytes, where: str, timeout: float = 0.0) -> list[bytes]:
    """Every process's bytes, all of one length, by rank. timeout: in place of the team's, if that is longer."""
    try:
        return surviving(team, lambda: team.agree(data, timeout))
    except PeerError:
        raise
    except CommunicationError as error:
        raise CommunicationError(f"{where}: {error}") from None
