"""Parts of a saved state that remain valid under the current settings: pure functions of settings in terms of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import strategies
from gossipgrad.model import Arrays
from gossipgrad.optim import Optimizer

RESIDUE = "residue"  # the arena of compression's unsent values
_PARTNERS = ("strategy", "topology", "rotate", "permutations")
_MIXING = ("push_sum", "slices", "hierarchical", "ranks_per_node")


def partner_keys(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that determine a rank's partners: if few permutations take turns, the seed draws them."""
    return _PARTNERS if settings.get("permutations") is None else (*_PARTNERS, "seed")


def begun_anew(saved: Mapping[str, Any], here: Mapping[str, Any], kinds: Mapping[str, str]) -> set[str]:
    """Names of the current arenas that cannot continue from a state of the saved settings.

    Moments belong to one kind of optimiser, and copies to a rank's partners.

    kinds   of the current arenas, by name.
    """
    names: set[str] = set()
    if saved.get("optimizer") != here.get("optimizer"):
        names |= {name for name, kind in kinds.items() if kind == "moment"}
    if any(saved.get(key) != here.get(key) for key in partner_keys(here)):
        names |= {name for name, kind in kinds.items() if kind == "copy"}
    return names


def mix_alike(saved: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """True if as many ranks mix by one schedule, so that push-sum's scalars stay valid."""
    return all(saved.get(key) == here.get(key) for key in (*partner_keys(here), *_MIXING))


def residues_differ(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The reason why a residue of one settings is invalid under the other; None: it is valid."""
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
    """The common start on another number of ranks: the consensus weights, and the means of the other arenas.

    A residue holds the rank's share of unsent values, so ranks divide the sum of residues among themselves, and all of
    it is still sent. Arenas of one rank or two alone are left out: the state that layers carry, and copies of partners.
    So is the residue of a rank that moves a centre; the centre continues without the rank's own progress.

    strategy   the name of the saved one.
    parts      each rank's arenas, of those that trained, one after the other.
    kinds      of the current arenas, by name.
    ranks      the number that train here.
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
        divisor = ranks if arena == RESIDUE else count  # a base is weights, although of a residue's kind
        made[arena] = {name: (total / divisor).astype(np.float32) for name, total in totals.items()}
    return made


def rates_alike(saved: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """True if the optimiser has the lr and the schedule of these settings: only then a learning rate that was set
    stays."""
    here = {"lr": optimizer.lr, **optimizer.timing.settings()}
    return all(saved.get(key) == value for key, value in here.items())
