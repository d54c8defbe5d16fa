"""The ranks' state out of a compiled Exchange and into it, and what then refers to other weights or partners.

Functions of an exchange at rest. Collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.training import arenas

Arrays = dict[str, NDArray[np.float32]]


def read(core: _core.Exchange, rank: int) -> dict[str, Arrays]:
    """All that a local rank trains with, by the arena's name: copies of all but the gradients."""
    return {name: core.arena(name, rank) for name, kind in core.arenas().items() if kind != "gradient"}


def resume(core: _core.Exchange, parts: Sequence[Mapping[str, Arrays]], consensus: Arrays, trained: int) -> None:
    """Go on from what read gave, one a local rank. Arenas that it does not have begin at zero, outer weights as these.

    Where the strategy gives all ranks the same weights, and those given differ, all go on from the consensus weights
    and the mean of the moments of the first `trained` ranks.
    """
    core.settle()
    core.load_consensus(consensus)
    zeros = {key: np.zeros_like(array) for key, array in consensus.items()}
    for name, kind in core.arenas().items():
        if kind != "gradient":
            missing = consensus if kind == "outer" else zeros  # outer weights are the model, not what is added to it
            given = [part.get(name) or missing for part in parts]
            core.resume_arena(name, given, consensus if kind == "weight" else None, trained)


def go_on(
    core: _core.Exchange,
    local: int,
    consensus: Arrays,
    since: int,
    saved: Mapping[str, Any],
    here: Mapping[str, Any],
    same_ranks: bool,
) -> None:
    """Push-sum's scalars go on with their schedule. Else all ranks count alike, and their mean stays.

    since        when the scalars were 1, in the saved state.
    saved, here  settings of the saved state, and those that it goes on with.
    same_ranks   it has as many ranks.
    """
    alike = same_ranks and arenas.mix_alike(saved, here)
    core.push_sum_since = since if alike else core.step
    if same_ranks and not alike and saved.get("push_sum"):
        recentre(core, local, consensus)


def forget(core: _core.Exchange) -> None:
    """After other weights have been loaded: residues and copies begin at zero, push-sum's scalars at 1."""
    zeros: Arrays | None = None
    for name, kind in core.arenas().items():
        if kind in ("residue", "copy"):
            zeros = zeros or {key: np.zeros_like(array) for key, array in core.arena("weight").items()}
            core.load_arena(name, zeros)
    core.push_sum_since = core.step


def recentre(core: _core.Exchange, local: int, consensus: Arrays) -> None:
    """Shift the weights of all ranks, of which `local` are in this process, by one vector, so that their mean is this.

    By push-sum's scalars the mean was another one than where all ranks count alike.
    """
    mean = core.consensus_weights()
    for rank in range(local):
        own = core.arena("weight", rank)
        core.load_arena("weight", {name: own[name] + (consensus[name] - mean[name]) for name in own}, rank)
