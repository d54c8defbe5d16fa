"""The batches of a fit: their size, and the steps of an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

USUAL = 64  # samples a rank and step, by default


def _shard(sizes: Sequence[int], sharded: bool, drop_last: bool) -> tuple[str, int]:
    """The shard that limits the size of batches, and its samples."""
    return ("largest", max(sizes)) if sharded and not drop_last else ("smallest", min(sizes))


def batch_for(usual: int, sizes: Sequence[int], sharded: bool = False, drop_last: bool = False) -> int:
    """The usual size of batches, or that of the limiting shard."""
    return max(1, min(usual, _shard(sizes, sharded, drop_last)[1]))


def check_batch(sizes: Sequence[int], batch_size: int, sharded: bool = False, drop_last: bool = False) -> None:
    """ValueError unless every rank's shard has a sample, and the smallest one a batch.

    With `sharded` the largest one must have a batch, unless all batches are to be full (`drop_last`).
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
    """The batches of a fit from here on."""

    size: int  # samples a rank and step
    sizes: list[int]  # samples of each rank that trains
    sharded: bool  # every rank has brought its own part
    drop_last: bool
    streams: bool  # each sample continues the one before it

    @property
    def steps(self) -> int:
        """Steps of a whole epoch: the largest shard is trained on once; with full batches alone, those of the
        smallest."""
        return min(self.sizes) // self.size if self.drop_last else math.ceil(max(self.sizes) / self.size)

    def divided(self, ranks: int) -> Batches:
        """These batches on another number of ranks. Not if every rank has brought its own part."""
        whole, more = divmod(sum(self.sizes), ranks)
        return replace(self, sizes=[whole + (rank < more) for rank in range(ranks)])

    def divide(self, ranks: int) -> None:
        """Divide the samples among another number of ranks."""
        self.sizes = self.divided(ranks).sizes

    def check(self, size: int) -> None:
        """ValueError unless the shards have batches of this size."""
        check_batch(self.sizes, size, self.sharded, self.drop_last)
