"""The clocks of a virtual cluster in what is saved.

They go on after a resume: from 0, sums of times would be rounded otherwise, so that ranks that do something at the same
time might do it in another order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gossipgrad import _core
from gossipgrad.errors import number

Clock = tuple[float, float, float]  # as _core.Team.clocks


@contextlib.contextmanager
def standing(team: _core.Team) -> Iterator[list[Clock]]:
    """The clocks, which stand still meanwhile: to save costs no virtual time. [] where they are real."""
    clocks = team.clocks()
    try:
        yield clocks
    finally:
        if clocks:
            team.set_clocks(clocks)


def checked(described: Any, ranks: int) -> list[Clock]:
    """What standing gave; [] of None, which is saved by what has none. TypeError, ValueError: another thing."""
    if not described:
        return []
    if len(described) != ranks or any(len(times) != 3 for times in described):
        raise ValueError(f"clocks={described!r}: allowed: three times of each of {ranks} ranks")
    now, out, into = ([number("clocks", times[i], 0.0) for times in described] for i in range(3))
    return list(zip(now, out, into, strict=True))


def go_on(team: _core.Team, clocks: list[Clock]) -> None:
    """From what was saved, with nothing in flight. Of real clocks, or of other ranks, nothing goes on."""
    if clocks and len(clocks) == len(team.clocks()):
        team.set_clocks(clocks)
