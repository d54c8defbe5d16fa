"""The clocks of a virtual cluster in saved state.

They continue after a resume. From 0, sums of times would be rounded differently, so simultaneous actions of ranks might
change their order.
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
    """The clocks, stopped during the block: saving costs no virtual time. [] if they are real."""
    clocks = team.clocks()
    try:
        yield clocks
    finally:
        if clocks:
            team.set_clocks(clocks)


def checked(described: Any, ranks: int) -> list[Clock]:
    """The result of standing; [] for None, saved without clocks. TypeError, ValueError: another thing."""
    if not described:
        return []
    if len(described) != ranks or any(len(times) != 3 for times in described):
        raise ValueError(f"clocks={described!r}: allowed: three times of each of {ranks} ranks")
    now, out, into = ([number("clocks", times[i], 0.0) for times in described] for i in range(3))
    return list(zip(now, out, into, strict=True))


def go_on(team: _core.Team, clocks: list[Clock]) -> None:
    """Continue from saved clocks, with nothing in flight. A no-op for real clocks, or other ranks."""
    if clocks and len(clocks) == len(team.clocks()):
        team.set_clocks(clocks)
