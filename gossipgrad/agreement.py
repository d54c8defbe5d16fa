"""What the processes of a group tell each other outside of training. Every function here is collective.

A virtual cluster and a single rank are one process: it agrees with itself, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from gossipgrad._core import Team
from gossipgrad.errors import CheckpointError, CommunicationError


def alone(team: Team) -> bool:
    """Are all ranks of the group in this process?"""
    return team.kind != "mpi" or team.size == 1


def gather(team: Team, data: bytes, where: str = "between epochs") -> list[bytes]:
    """Every process's bytes, of any length, by rank. `where` begins the text of a CommunicationError."""
    if alone(team):
        return [data]
    length = len(data).to_bytes(8, "little")
    longest = max(int.from_bytes(one, "little") for one in _equal(team, length, where))
    framed = _equal(team, length + data.ljust(longest, b"\0"), where)
    return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in framed]


def anywhere(team: Team, mine: bool, where: str = "between epochs") -> bool:
    """Is it so on any process?"""
    return mine if alone(team) else b"\1" in _equal(team, b"\1" if mine else b"\0", where)


def together(team: Team, what: str, work: Callable[[], None], where: str = "between epochs") -> None:
    """Do this on every process; where one fails, all raise CheckpointError with the first one's reason.

    OSError and CheckpointError count as failing; `what` begins the reason.
    """
    problem = ""
    try:
        work()
    except (OSError, CheckpointError) as error:
        problem = f"{what}: {error}"
    for rank, text in enumerate(one.decode() for one in gather(team, problem.encode(), where)):
        if text:
            raise CheckpointError(text if rank == team.rank or alone(team) else f"{text} (on rank {rank})")


def _equal(team: Team, data: bytes, where: str) -> list[bytes]:
    """Every process's bytes, all of one length, by rank."""
    try:
        return team.allgather(data)
    except CommunicationError as error:
        raise CommunicationError(f"{where}: {error}") from None
