"""Changes of the group while fit trains: ranks have died, or new ones have joined, and all go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from gossipgrad.errors import counted
from gossipgrad.launch import joining, stall, surviving
from gossipgrad.training.replicas import Replicas

Record = dict[str, Any]


def said(change: Record) -> str:
    """A line about a change of the view."""
    parts = []
    for ranks, new, what in ((change["died"], "", "died"), (change["joined"], " (new)", "joined")):
        who = " and ".join(f"{rank}{new}" for rank in ranks)
        if ranks:
            parts.append(f"rank {who} has {what}" if len(ranks) == 1 else f"ranks {who} have {what}")
    left = counted(len(change["ranks"]), "rank")
    parts.append(f"{left} {'goes' if len(change['ranks']) == 1 else 'go'} on")
    if change["died"]:
        parts.append(f"{counted(change['trained_again'], 'sample')} trained again")
    return f"step {change['step']}: {'; '.join(parts)}"


@contextlib.contextmanager
def survivable(trainer: Replicas) -> Iterator[None]:
    """Inside, the others go on when ranks die."""
    if not trainer.team.survives:
        yield
        return
    trainer.facts_of_fit, trainer.fits = None, trainer.fits + 1
    surviving.begin(trainer.team, "Trainer.fit", partial(change_view, trainer))
    try:
        yield
    except BaseException as error:
        virtual = trainer.team.kind == "virtual"  # then the error ends no rank
        surviving.end(trainer.team, None if virtual else error)
        raise
    surviving.end(trainer.team)


def change_view(trainer: Replicas) -> Record | None:
    """Go on without ranks that have died, and with newcomers; None: neither. Returns the change, as in history.views.

    All ranks stand at one step. Collective over the ranks that live.
    """

    def go_on(change: Record, made: Record) -> bool:
        trainer.keep(change["ranks"])
        return bool(made.pop("whole"))

    with stall.within(joining.CHANGE):
        made = joining.follow(trainer.core.change_view, lambda: trainer.members, go_on)
        if made is not None:
            tell(trainer, made)
        return made


def tell(trainer: Replicas, change: Record) -> None:
    """Tell history and callbacks of a change of the view."""
    change["epoch"] = trainer.epoch + 1
    trainer.history.views.append(change)
    if trainer.fit_state.watcher is not None:
        trainer.fit_state.watcher.viewed(change)
