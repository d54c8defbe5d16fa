"""What of a saved state goes on under the settings of here: pure functions of settings in terms of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import strategies
from gossipgrad.model import Arrays
from gossipgrad.optim import Optimizer

RESIDUE = "residue"  # the arena of what compression has not sent yet
_PARTNERS = ("strategy", "topology", "rotate", "permutations")
_MIXING = ("push_sum", "slices", "hierarchical", "ranks_per_node")


def partner_keys(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that say which partners a rank has: where few permutations take turns, the seed draws them."""
    return _PARTNERS if settings.get("permutations") is None else (*_PARTNERS, "seed")


def begun_anew(saved: Mapping[str, Any], here: Mapping[str, Any], kinds: Mapping[str, str]) -> set[str]:
    """Names of the arenas of here that do not go on from a state of these settings.

    Moments are those of one kind of optimiser, and copies those of a rank's partners.

    kinds   of the arenas of here, by name.
    """
    names: set[str] = set()
    if saved.get("optimizer") != here.get("optimizer"):
        names |= {name for name, kind in kinds.items() if kind == "moment"}
    if any(saved.get(key) != here.get(key) for key in partner_keys(here)):
        names |= {name for name, kind in kinds.items() if kind == "copy"}
    return names


def mix_alike(saved: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Do as many ranks mix by one schedule, so that push-sum's scalars go on?"""
    return all(saved.get(key) == here.get(key) for key in (*partner_keys(here), *_MIXING))


def residues_differ(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Why a residue under the one settings means nothing under the other; None: it does."""
    names = saved["strategy"], here["strategy"]
    theirs, ours = (strategies.BY_NAME[name].residue for name in names)
    if theirs != ours:
        return f"its residue is of {theirs} (strategy {names[0]!r}), here it is of {ours} ({names[1]!r})"
    local = [bool((one.get("compression") or {}).get("local_momentum")) for one in (saved, here)]
    if local[0] != local[1] and saved.get("compression") is not None:
        of = [f"{'momenta' if one else 'gradients'} (local_momentum={one})" for one in local]
        return f"its residue is of {of[0]}, here it is of {of[1]}"
    return None


def of_other_ranks(
    strategy: str, consensus: Arrays, parts: Iterable[Mapping[str, Arrays]], kinds: Mapping[str, str], ranks: int
) -> dict[str, Arrays]:
    """What every rank begins with on another number of them: the consensus weights, and of the rest the mean.

    A residue holds the rank's share of what was to be sent, so ranks divide the sum of residues among themselves, and
    all of it will still arrive. What only one rank or two have in common is left out: the state that layers carry, and
    copies of partners. So is the residue of a rank that moves a centre, which goes on without what the rank has learnt
    alone.

    strategy   the name of that which was saved.
    parts      each rank's arenas, of those that trained, one after the other.
    kinds      of the arenas of here, by name.
    ranks      how many train here.
    """
    kept = {"moment", "outer", "outer moment"}
    if strategies.BY_NAME[strategy].residue != strategies.ParameterServer.residue:
        kept.add("residue")
    sums: dict[str, dict[str, NDArray[np.float64]]] = {}
    count = 0
    for part in parts:
        count += 1
        for arena in part:
            if kinds.get(arena) in kept:
                for name, array in part[arena].items():
                    total = sums.setdefault(arena, {}).setdefault(name, np.zeros(array.shape))
                    total += array
    made: dict[str, Arrays] = {"weight": consensus}
    for arena, totals in sums.items():
        divisor = ranks if arena == RESIDUE else count  # a base, which has a residue's kind, is weights
        made[arena] = {name: (total / divisor).astype(np.float32) for name, total in totals.items()}
    return made


def rates_alike(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Has the optimiser the lr and the schedule of these settings? A learning rate that was set goes on only there."""
    here = {"lr": optimizer.lr, **optimizer.timing.settings()}
    return all(saved.get(key) == value for key, value in here.items())
