"""Changes of the group while fit trains: ranks have died, and the others go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from gossipgrad.errors import counted
from gossipgrad.launch import stall, surviving
from gossipgrad.training.replicas import Replicas

Record = dict[str, Any]


def said(change: Record) -> str:
    """A line about a change of the view."""
    died = " and ".join(str(rank) for rank in change["died"])
    who = f"rank {died} has" if len(change["died"]) == 1 else f"ranks {died} have"
    left, again = counted(len(change["ranks"]), "rank"), counted(change["trained_again"], "sample")
    goes = "goes" if len(change["ranks"]) == 1 else "go"
    return f"step {change['step']}: {who} died; {left} {goes} on; {again} trained again"


@contextlib.contextmanager
def survivable(trainer: Replicas) -> Iterator[None]:
    """Inside, the others go on when ranks die."""
    if not trainer.team.survives:
        yield
        return
    surviving.begin(trainer.team, "Trainer.fit", partial(change_view, trainer))
    try:
        yield
    except BaseException as error:
        surviving.end(trainer.team, error)
        raise
    surviving.end(trainer.team)


def change_view(trainer: Replicas) -> Record | None:
    """Go on without ranks that have died since; None if none has. Returns the change, as in history.views.

    All ranks stand at one step. Collective over the ranks that live.
    """
    with stall.within("change of the view"):  # ranks may come from different calls
        change = trainer.core.change_view()
        if change is None:
            return None
        trainer.keep([trainer.members.index(rank) for rank in change["ranks"]])
        change |= {"epoch": trainer.epoch + 1}
        trainer.history.views.append(change)
        if trainer.fit_state.watcher is not None:
            trainer.fit_state.watcher.viewed(change)
        return change
