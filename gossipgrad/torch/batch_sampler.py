"""Batches of sample numbers for a DataLoader, whose epoch continues on any number of ranks."""

from __future__ import annotations

import torch.utils.data

from gossipgrad.data.division import Division


class BatchSampler(Division, torch.utils.data.Sampler):  # type: ignore[misc]
    """This rank's batches for a DataLoader: a `gossipgrad.Division`, which has the arguments.

        sampler = gg.torch.BatchSampler(data, 64, model)  # samples, batch_size, ranks
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            while sampler.left:
                for x, y in loader:
                    loss(model(x), y).backward()
                    model.step()

    Under `no_sync` accumulate= is the number of passes of a step. Where no rank dies (run without --survive), `while
    sampler.left` is not needed.
    """
