"""A rank that was started later joins the others, between two steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gossipgrad._core import PeerError, Team
from gossipgrad.launch import origin, stall

Record = dict[str, Any]
T = TypeVar("T")
_LOOK = 0.1  # seconds between looks at signals
CHANGE = "change of the view"  # the call of waits in it, because ranks may come from different calls


def grows(team: Team) -> bool:
    """True if processes that are started later may join this team, and go on with it."""
    return origin.may_grow() and team.survives and team.kind != "virtual"


def first_size(team: Team) -> int:
    """Ranks of the team when it made its choices; a newcomer takes the choices of the group that it joins."""
    return int(origin.net_facts()["members"]) if team.newcomer else team.size


def check(theirs: Mapping[str, str], own: Mapping[str, str]) -> None:
    """ValueError if the facts of the group (agreement.flat) differ from this newcomer's."""
    for name in {**theirs, **own}:
        if theirs.get(name) != own.get(name):
            raise ValueError(
                f"this newcomer cannot join: {name} is {own.get(name, 'absent')} here, {theirs.get(name, 'absent')} "
                "in the group; allowed: the same script with the same options"
            )


def await_state(team: Team, take: Callable[[], T | None]) -> T:
    """Wait for a view with this newcomer, and take() its donor's state; its result.

    If ranks die before the copy is whole, take raises PeerError or returns None, and is called in the next view.
    """
    with stall.within("joining the other ranks"):
        while True:
            while not team.await_member(_LOOK):
                pass
            with contextlib.suppress(PeerError):
                taken = take()
                if taken is not None:
                    return taken


def follow(
    change_view: Callable[[], Record | None],
    members: Callable[[], Sequence[int]],
    take: Callable[[Record, Record], bool],
) -> Record | None:
    """The change to a view whose ranks all have their state, as one; None: the view does not change here.

    members: the ranks before the change. take: called after each change with it and all of them as one; sets the ranks;
    True if all have their state.
    """
    made: Record | None = None
    while True:
        change = change_view()
        if change is None and made is None:
            return None
        if change is None:  # the others have not yet told their limits
            continue
        before = members()
        change["joined"] = [rank for rank in change["ranks"] if rank not in before]
        made = change if made is None else as_one(made, change)
        if take(change, made):
            return made


def as_one(first: Record, second: Record) -> Record:
    """Two changes at one step as one: newcomers, whose copy was not whole in the first, know of the second alone."""
    keys: list[str] = [key for key in ("last_steps", "made") if key in second]  # one entry a dead rank
    died = {
        rank: of_rank
        for change in (first, second)
        for rank, *of_rank in zip(change["died"], *(change[key] for key in keys), strict=True)
        if rank not in first["joined"]
    }
    ranks = sorted(died)
    lists = {key: [died[rank][place] for rank in ranks] for place, key in enumerate(keys)}
    summed: list[str] = [key for key in ("trained_again", "seconds") if key in first]
    sums = {key: first[key] + second[key] for key in summed}
    joined = [rank for rank in first["joined"] if rank in second["ranks"]] + second["joined"]
    return {**second, **sums, **lists, "died": ranks, "joined": sorted(joined)}
