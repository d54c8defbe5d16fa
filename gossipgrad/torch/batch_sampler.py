"""Batches of sample numbers for a DataLoader, whose epoch continues on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, Protocol

import torch.utils.data

from gossipgrad import _core
from gossipgrad.errors import counted, flag, integer


class _Ranks(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


class BatchSampler(torch.utils.data.Sampler):  # type: ignore[misc]
    """This rank's batches: `DataLoader(data, batch_sampler=gg.torch.BatchSampler(data, 64, model))`.

    An epoch reads each sample once. All ranks have equally many batches; the last may be smaller. With batches of one a
    rank may read its last sample a second time. The state of a running epoch loads on any number of ranks, with any
    batch size: they share the samples that no rank has read.

    data        a set with a length, at least one sample for each rank.
    batch_size  samples a rank and step.
    model       a wrapped model, gg.Team or gg.Exchange: rank and number of ranks.
    shuffle     an order drawn from `seed`, rank and epoch; False: the set's.
    drop_last   full batches only; the samples that are left over are not read.

    ValueError: a batch larger than the smallest rank's part.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        model: _Ranks,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.samples, self.rank, self.size = len(data), model.rank, model.size
        self.batch_size = integer("batch_size", batch_size, 1)
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.seed = integer("seed", seed, 0)
        smallest = self.samples // self.size
        if self.batch_size > smallest:
            raise ValueError(
                f"batch_size={self.batch_size}: {counted(self.samples, 'sample')} on {counted(self.size, 'rank')} "
                f"allow 1 to {smallest}"
            )
        self.epoch = 0
        self._divisions: list[list[int]] = []
        self._divide()

    def _divide(self) -> None:
        order, left = _core.division(
            self.samples, self.rank, self.size, self.seed, self.epoch, self.shuffle, self._divisions
        )
        self._order: list[int] = order.tolist()
        self._shares = [left // self.size + (rank < left % self.size) for rank in range(self.size)]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0. The epoch of a loaded state goes on."""
        if integer("epoch", epoch, 0) != self.epoch:
            self.epoch, self._divisions = epoch, []
            self._divide()

    def __len__(self) -> int:
        """Batches of the epoch, or of the rest of a loaded one."""
        if self.drop_last:
            return min(self._shares) // self.batch_size
        return -(-max(self._shares) // self.batch_size)

    def _begin(self, share: int, batch: int) -> int:
        """Where a batch begins in a rank's order. The last has a sample, which the one before leaves it."""
        begin = batch * self.batch_size
        return begin if self.drop_last else min(begin, share - 1)

    def __iter__(self) -> Iterator[list[int]]:
        share, count = len(self._order), len(self)
        for batch in range(count):
            begin = self._begin(share, batch)
            last = batch == count - 1 and not self.drop_last
            end = share if last else self._begin(share, batch + 1)
            yield self._order[begin : max(end, begin + 1)]

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The position after `batches` batches of this iteration have been trained on: equal on all ranks.

        A DataLoader with workers reads ahead, so the sampler cannot know the number.
        """
        count, divisions, epoch = len(self), self._divisions, self.epoch
        if integer("batches", batches, 0, count) == count:
            epoch, divisions = epoch + 1, []
        elif batches:
            divisions = [*divisions, [self._read(share, batches) for share in self._shares]]
        return {
            "samples": self.samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": epoch,
            "divisions": divisions,
        }

    def _read(self, share: int, batches: int) -> int:
        """The samples that a rank has read after some batches, not all."""
        if self.batch_size == 1:
            return min(batches, share)
        return self._begin(share, batches)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position, saved on any number of ranks. ValueError: of another set, seed or shuffle."""
        for key in ("samples", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise ValueError(f"BatchSampler: {key} is {getattr(self, key)!r}, and {state[key]!r} in the state")
        self.epoch = integer("epoch", state["epoch"], 0)
        self._divisions = [[int(one) for one in read] for read in state["divisions"]]
        self._divide()
