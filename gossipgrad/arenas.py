"""What of a saved state goes on under the settings of here: pure functions of settings in terms of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gossipgrad import strategies
from gossipgrad.optim import Optimizer

RESIDUE = "residue"  # the arena of what compression has not sent yet


def begun_anew(saved: Mapping[str, Any], here: Mapping[str, Any], kinds: Mapping[str, str]) -> set[str]:
    """Names of the arenas of here that do not go on from a state of these settings.

    Moments are those of one kind of optimiser, and copies those of a rank's partners.

    kinds   of the arenas of here, by name.
    """
    names: set[str] = set()
    if saved.get("optimizer") != here.get("optimizer"):
        names |= {name for name, kind in kinds.items() if kind == "moment"}
    if any(saved.get(key) != here.get(key) for key in ("strategy", "topology", "rotate")):
        names |= {name for name, kind in kinds.items() if kind == "copy"}
    return names


def residues_differ(saved: str, here: str) -> str | None:
    """Why a residue of the one strategy means nothing to the other; None: it does. By the strategies' names."""
    theirs, ours = strategies.BY_NAME[saved], strategies.BY_NAME[here]
    if theirs.residue == ours.residue:
        return None
    return f"its residue is of {theirs.residue} (strategy {saved!r}), here it is of {ours.residue} ({here!r})"


def rates_alike(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Has the optimiser the lr and the schedule of these settings? A learning rate that was set goes on only there."""
    here = {"lr": optimizer.lr, **optimizer.timing.settings()}
    return all(saved.get(key) == value for key, value in here.items())
