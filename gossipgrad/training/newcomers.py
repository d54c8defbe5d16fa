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


def _facts(trainer: Replicas) -> dict[str, str]:
    """Facts that must be equal on a newcomer and the group."""
    assert trainer.batches is not None
    facts = trainer._fingerprint(trainer.network)
    fit = {key: trainer.fit_settings.get(key) for key in ("epochs", "shuffle", "shard", "drop_last", "final_mix")}
    used = {"exchange used": str(trainer.exchange), "number of samples": sum(trainer.batches.sizes)}
    return agreement.flat(facts | fit | used)


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
    trainer.set_algorithms(heard["algorithms"])
    for key, value in heard["state"].items():
        setattr(trainer, key, value)
    assert trainer.batches is not None
    trainer.batches.size = heard["batch"]
    trainer.history.views.clear()
    trainer.keep(change["ranks"])
    return {**heard["loop"], "change": change}
