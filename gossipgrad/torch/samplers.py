"""DistributedSamplers beside wrapped models: checks that each rank reads its own part, in another order in each
epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data.distributed import DistributedSampler

from gossipgrad.errors import warn
from gossipgrad.launch import origin

_epochs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # the last epoch read from each sampler
_following: WeakSet[Any] = WeakSet()  # samplers whose rank and size `follow` sets
_watching = False


def watch_samplers(ranks: Callable[[], Iterable[tuple[int, int]]]) -> None:
    """Check each DistributedSampler when it is read, from now on. ranks: (rank, size) of the models that train."""
    global _watching
    if _watching:
        return
    _watching = True
    plain: Callable[[Any], Iterator[Any]] = DistributedSampler.__iter__

    def read(sampler: Any) -> Iterator[Any]:
        check_sampler(sampler, list(ranks()))
        return plain(sampler)

    setattr(DistributedSampler, "__iter__", read)  # noqa: B010  torch has no hook for it


def follow(sampler: Any, rank: int, size: int) -> None:
    """Give a DistributedSampler this rank's part of `size`; it is not checked any more."""
    _following.add(sampler)
    sampler.rank, sampler.num_replicas = rank, size
    count = len(sampler.dataset)
    sampler.num_samples = count // size if sampler.drop_last else -(-count // size)
    sampler.total_size = sampler.num_samples * size


def check_sampler(sampler: Any, ranks: list[tuple[int, int]]) -> None:
    """ValueError: of another rank, or number of ranks. A warning: an epoch repeats the last one's order."""
    if not ranks or sampler in _following:
        return
    own = (sampler.rank, sampler.num_replicas)
    if own not in ranks and sampler.num_replicas > 1:
        (rank, size), *_ = ranks
        raise ValueError(
            f"DistributedSampler: is of rank {own[0]} of {own[1]}, here is rank {rank} of {size}; allowed: "
            "DistributedSampler(data, model.size, model.rank), or gossipgrad.torch.BatchSampler"
        )
    if origin.survives() and sampler.num_replicas > 1 and torch.is_grad_enabled():
        warn(
            "DistributedSampler: does not hear of deaths (run --survive): a dead rank's samples are lost, and the next "
            "epoch is an error. Allowed: gossipgrad.torch.BatchSampler"
        )
    if sampler.shuffle and torch.is_grad_enabled() and _epochs.get(sampler) == sampler.epoch:
        warn(
            f"DistributedSampler: is read for training again in epoch {sampler.epoch}, in the same order. Call "
            "sampler.set_epoch(epoch) before each epoch"
        )
    _epochs[sampler] = sampler.epoch
