"""The ranks' state out of a compiled Exchange and into it, and state that refers to other weights or partners.

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
    """The training state of a local rank, by the arena's name: copies of all but the gradients."""
    return {name: core.arena(name, rank) for name, kind in core.arenas().items() if kind != "gradient"}


def resume(core: _core.Exchange, parts: Sequence[Mapping[str, Arrays]], consensus: Arrays, trained: int) -> None:
    """Continue from the results of read, one a local rank. Missing arenas begin at zero, outer weights as the weights.

    If the strategy gives all ranks the same weights, and the given ones differ, all continue from the consensus weights
    and the mean of the moments of the first `trained` ranks.
    """
    core.settle()
    core.load_consensus(consensus)
    zeros = {key: np.zeros_like(array) for key, array in consensus.items()}
    for name, kind in core.arenas().items():
        if kind != "gradient":
            missing = consensus if kind == "outer" else zeros  # outer weights are a model, not a change of it
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
    """Keep push-sum's scalars if their schedule is unchanged. Otherwise all ranks count alike, and their mean stays.

    since        the step at which the scalars were 1, in the saved state.
    saved, here  settings of the saved state, and the current ones.
    same_ranks   True if the number of ranks is unchanged.
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
    """Shift the weights of all ranks, `local` of them in this process, by one vector, so that their mean is
    `consensus`.

    With push-sum's scalars the mean differs from that of equally counted ranks.
    """
    mean = core.consensus_weights()
    for rank in range(local):
        own = core.arena("weight", rank)
        core.load_arena("weight", {name: own[name] + (consensus[name] - mean[name]) for name in own}, rank)
