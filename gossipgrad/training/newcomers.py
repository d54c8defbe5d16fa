"""A rank that was started later joins the fit of the others, between two steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gossipgrad.launch import agreement, joining
from gossipgrad.training.replicas import Replicas

Record = dict[str, Any]
# Equal on all ranks, and changed by callbacks or by the steps so far.
_STATE = ("epoch", "last_epoch", "fit_began", "set_rate", "set_batch", "batch_changes", "stop", "decision")


# Facts of fit that may differ: its place, and the options of Checkpoint, which a newcomer takes from its donor.
_OF_PLACE = ("resume", "epochs done", "steps done")
_TAKEN = "callbacks, Checkpoint"


def _facts(trainer: Replicas) -> dict[str, str]:
    """Facts that must be equal on a newcomer and the group."""
    of_fit = trainer.facts_of_call.items()
    same = {key: one for key, one in of_fit if key not in _OF_PLACE and not key.startswith(_TAKEN)}
    used = {"exchange used": str(trainer.exchange), "number of this fit": trainer.fits}
    return agreement.flat(trainer._fingerprint(trainer.network) | used) | same


def _epochs(trainer: Replicas) -> str:
    """The records of the epochs that are done, as JSON, which is made anew after each one."""
    done = len(trainer.history.epochs)
    if trainer.epochs_text[0] != done:
        trainer.epochs_text = done, json.dumps(trainer.history.epochs)
    return trainer.epochs_text[1]


def prepare(trainer: Replicas, loop: Callable[[], Record]) -> None:
    """Sets the text that newcomers hear from this rank. Called before a change of the view."""
    if trainer.virtual or not trainer.may_grow:
        return
    if trainer.facts_of_fit is None:
        trainer.facts_of_fit = _facts(trainer)
    state = {key: getattr(trainer, key) for key in _STATE}
    batch = None if trainer.batches is None else trainer.batches.size
    text = {
        "facts": trainer.facts_of_fit,
        "state": state,
        "loop": loop(),
        "batch": batch,
        "algorithms": trainer.algorithms,
        "chosen": sorted(trainer.algorithms_chosen),
        "saved": trainer.algorithms_saved,
        "epochs": _epochs(trainer),
    }
    trainer.core.set_text(json.dumps(text).encode())


def join(trainer: Replicas, hear: Callable[[Record], None]) -> Record:
    """Wait for a view with this newcomer, and take its donor's state. Returns the donor's place in the loop, and the
    change. hear: hears that place before; ValueError: this newcomer cannot join."""

    def take() -> tuple[Record, Record] | None:
        heard = json.loads(trainer.core.hear())
        joining.check(heard["facts"], _facts(trainer))
        hear(heard["loop"])
        change = trainer.core.join()
        return None if change is None else (heard, change)

    heard, change = joining.await_state(trainer.team, take)
    trainer.set_algorithms(heard["algorithms"], heard["saved"])
    trainer.algorithms_chosen = {(batch, purpose) for batch, purpose in heard["chosen"]}
    for key, value in heard["state"].items():
        setattr(trainer, key, value)
    assert trainer.batches is not None
    trainer.batches.size = heard["batch"]
    trainer.history.epochs[:] = json.loads(heard["epochs"])
    trainer.history.views.clear()
    trainer.keep(change["ranks"])
    return {**heard["loop"], "change": change}
