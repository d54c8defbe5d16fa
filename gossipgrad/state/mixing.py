"""State of the ranks that refers to former weights or partners, where others are loaded or another schedule begins.

Functions of a compiled Trainer or Exchange, at rest. Collective.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


class Core(Protocol):
    """What both have."""

    @property
    def step(self) -> int: ...
    @property
    def push_sum_since(self) -> int: ...
    @push_sum_since.setter
    def push_sum_since(self, value: int) -> None: ...
    def arenas(self) -> dict[str, str]: ...
    def arena(self, name: str, rank: int = 0) -> Arrays: ...
    def load_arena(self, name: str, arrays: Arrays, rank: int | None = None) -> None: ...
    def consensus_weights(self) -> Arrays: ...


def forget(core: Core) -> None:
    """After other weights have been loaded: residues and copies begin at zero, push-sum's scalars at 1."""
    zeros: Arrays | None = None
    for name, kind in core.arenas().items():
        if kind in ("residue", "copy"):
            zeros = zeros or {key: np.zeros_like(array) for key, array in core.arena("weight").items()}
            core.load_arena(name, zeros)
    core.push_sum_since = core.step


def recentre(core: Core, local: int, consensus: Arrays) -> None:
    """Shift the weights of all ranks, of which `local` are in this process, by one vector, so that their mean is this.

    By push-sum's scalars the mean was another one than where all ranks count alike.
    """
    mean = core.consensus_weights()
    for rank in range(local):
        own = core.arena("weight", rank)
        core.load_arena("weight", {name: own[name] + (consensus[name] - mean[name]) for name in own}, rank)
