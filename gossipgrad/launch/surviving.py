"""The object of this process with which training goes on when ranks die: a trainer in fit, an Exchange, a wrapped
model.

There is one at a time, because all that trains changes its view together. While it trains, the end of this process is
the death of a rank, whatever the exit code. An error that all ranks raise together ends them all.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gossipgrad._core import Team
from gossipgrad.launch import agreement, failure

# Seconds that a process whose script has ended without close() waits for the others to end as well.
TO_END = 30.0
LEAVING = 0.1  # seconds that the end of a process that leaves the others waits for them

_current: tuple[Team, str] | None = None


def begin(team: Team, name: str, go_on: Callable[[], object]) -> None:
    """From now on `go_on` is called when ranks have died, and goes on without them. RuntimeError if there is one."""
    global _current
    if _current is not None:
        raise RuntimeError(
            f"{name}: not beside {_current[1]}, where ranks may die (run --survive): one object of a process goes on "
            "without them. Allowed: one after the other, with close() between"
        )
    _current = team, name
    agreement.go_on = go_on
    failure.dies_alone = _dies_alone
    team.train(True)
    if not failure.has_joined:
        atexit.register(_at_exit)
        failure.has_joined = True


def check(team: Team, name: str, begun: bool = False) -> None:
    """RuntimeError if the ranks have changed while another object trained.

    begun: also if such a change has only begun; within an agreement, because ranks may see it at different times.
    """
    if team.outdated or (begun and failure.has_joined and team.changing):
        raise RuntimeError(
            f"{name}: the ranks have changed, or are about to, since the script's first training. Allowed then, where "
            "ranks may die (run --survive): that training alone. Save, and start the job again for another one"
        )


def check_step(step: int, changes: Sequence[Mapping[str, Any]]) -> None:
    """ValueError for a state of a step before the last of these changes: where the next one comes, steps must not have
    fallen."""
    start = changes[-1]["step"] if changes else 0
    if step < start:
        raise ValueError(
            f"state: is of step {step}, and the ranks have changed at step {start}; allowed then: a state of step "
            f"{start} or later. From an earlier one start the job again"
        )


def is_of(team: Team) -> bool:
    """True from begin to end of this team's object."""
    return _current is not None and _current[0] is team


def end(team: Team, error: BaseException | None = None) -> None:
    """This process trains no more, unless this error is its own: then it is about to die."""
    global _current
    if not is_of(team):
        return
    agreement.go_on = None
    if error is None or agreement.of_all(error):
        _current = None
        failure.dies_alone = None
        team.train(False)


def _dies_alone(error: BaseException | None) -> bool:
    """True if an error that ends this process is its own, and the others go on."""
    if error is None or not agreement.of_all(error):
        return True
    if _current is not None:
        end(_current[0], error)
    return False


def _at_exit() -> None:
    """A script has ended without close(): if the others end as well, none of them has died."""
    if _current is None or agreement.go_on is None or failure.exits_with_error:
        return
    team = _current[0]
    ended = False
    with contextlib.suppress(Exception):
        ended = agreement.all_end(team, TO_END)
    if ended:
        end(team)
    else:  # the others train on: this process has died, and its end waits for nobody
        team.timeout = LEAVING
