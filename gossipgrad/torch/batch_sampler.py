"""Batches of sample numbers for a DataLoader, whose epoch continues on any number of ranks."""

from __future__ import annotations

from collections.abc import Sized

import torch.utils.data

from gossipgrad.data.division import Division, Ranks


class BatchSampler(Division, torch.utils.data.Sampler):  # type: ignore[misc]
    """This rank's batches: `DataLoader(data, batch_sampler=gg.torch.BatchSampler(data, 64, model))`.

    An epoch reads each sample once. All ranks have equally many batches; the last may be smaller. With batches of one a
    rank may read its last sample a second time. The state of a running epoch loads on any number of ranks, with any
    batch size: they share the samples that no rank has read.

    data        a set with a length, at least one sample for each rank.
    batch_size  samples of a rank and batch.
    model       a wrapped model, gg.Team or gg.Exchange: rank and number of ranks.
    shuffle     an order drawn from `seed`, rank and epoch; False: the set's.
    drop_last   full batches only; the samples that are left over are not read.
    accumulate  batches of a step, under `no_sync`.

    Where ranks die (run --survive), their samples that reached nobody are dealt anew, with all that nobody has asked
    for. Batches that the workers of a DataLoader have read ahead stay with their rank. So each sample still counts once
    with `while sampler.left:` around the loop over the loader.

    ValueError: a batch larger than the smallest rank's part.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        model: Ranks,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulate: int = 1,
    ) -> None:
        Division.__init__(
            self,
            data,
            batch_size,
            model,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            accumulate=accumulate,
        )
