"""The batches of a fit: how large they are, and how many steps an epoch of them has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

USUAL = 64  # samples a rank and step, unless fit is told


def _shard(sizes: Sequence[int], sharded: bool, drop_last: bool) -> tuple[str, int]:
    """Which shard limits the size of batches, and its samples."""
    return ("largest", max(sizes)) if sharded and not drop_last else ("smallest", min(sizes))


def batch_for(usual: int, sizes: Sequence[int], sharded: bool = False, drop_last: bool = False) -> int:
    """The usual size of batches, or that of the shard which limits it."""
    return max(1, min(usual, _shard(sizes, sharded, drop_last)[1]))


def check_batch(sizes: Sequence[int], batch_size: int, sharded: bool = False, drop_last: bool = False) -> None:
    """ValueError unless every rank's shard has a sample, and the smallest one a batch.

    With `sharded` the largest one, unless all batches are to be full (`drop_last`).
    """
    if min(sizes) < 1:
        raise ValueError(f"train has {sum(sizes)} samples for {len(sizes)} ranks; allowed: at least one a rank")
    which, most = _shard(sizes, sharded, drop_last)
    if batch_size > most:
        reason = ", and with drop_last every rank wants a full batch" if sharded and drop_last else ""
        raise ValueError(
            f"batch_size={batch_size}: the {which} shard has {most} samples "
            f"({sum(sizes)} over {len(sizes)} ranks){reason}; allowed: 1..{most}"
        )


@dataclass
class Batches:
    """Those that a fit trains in from here on."""

    size: int  # samples a rank and step
    sizes: list[int]  # samples of each rank that trains
    sharded: bool  # every rank has brought its own part
    drop_last: bool
    streams: bool  # each sample goes on where the one before it ends

    @property
    def steps(self) -> int:
        """Of a whole epoch: the largest shard is trained on once; where all batches are full, those of the smallest."""
        return min(self.sizes) // self.size if self.drop_last else math.ceil(max(self.sizes) / self.size)

    def check(self, size: int) -> None:
        """ValueError unless the shards have batches of this size."""
        check_batch(self.sizes, size, self.sharded, self.drop_last)
