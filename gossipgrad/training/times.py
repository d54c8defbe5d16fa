"""Where the time of each local rank has gone, over the epochs of a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gossipgrad.history import PARTS_OF_TIME

Record = dict[str, Any]


class Times:
    """ranks: the sums of each rank, by PARTS_OF_TIME; none before the first epoch has ended."""

    def __init__(self) -> None:
        self.ranks: list[Record] = []

    def add(self, counts: Sequence[Record]) -> None:
        """An epoch has ended with these counts of each rank."""
        self.ranks = self.ranks or [dict.fromkeys(PARTS_OF_TIME, 0.0) for _ in counts]
        for total, one in zip(self.ranks, counts, strict=True):
            waited = one["exposed_seconds"], one["data_seconds"]
            for key, seconds in zip(PARTS_OF_TIME, (one["clock_seconds"] - sum(waited), *waited), strict=True):
                total[key] += seconds

    def keep(self, former: Sequence[int], ranks: Sequence[int]) -> None:
        """The ranks are others; those that are new begin at zero."""
        if self.ranks:
            known = dict(zip(former, self.ranks, strict=True))
            self.ranks = [known.get(rank) or dict.fromkeys(PARTS_OF_TIME, 0.0) for rank in ranks]
