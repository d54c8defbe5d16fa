"""Samples of Lightning's Trainer where ranks may die: batches that are dealt anew, parts of validation sets that follow
the group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from gossipgrad.torch.batch_sampler import BatchSampler
from gossipgrad.torch.samplers import follow
from gossipgrad.torch.wrapped import Wrapped

_ALLOWED = (
    "allowed where ranks may die (run --survive): a DataLoader(data, batch_size) of torch over a set with a length, "
    "without a sampler of your own; or one with batch_sampler=gg.torch.BatchSampler(data, batch_size, gg.Team()) and "
    "Trainer(use_distributed_sampler=False)"
)
# Arguments of a DataLoader beside its set and its batches.
_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


def check_trainer(trainer: Any) -> None:
    """ValueError for options of a Trainer with which an epoch cannot be dealt anew."""
    if trainer.reload_dataloaders_every_n_epochs:
        raise ValueError(
            f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}: allowed where ranks may "
            "die (run --survive): 0"
        )
    limit = trainer.limit_train_batches
    if isinstance(limit, float) and limit != 1.0:
        raise ValueError(
            f"limit_train_batches={limit}: allowed where ranks may die (run --survive): 1.0, or a number of batches"
        )


class Samples(BatchSampler):
    """The batches of a Trainer's epoch, which tells Lightning's loops how many there are.

    The Trainer counts batches at the begin of an epoch. After a death there are more.
    """

    def __init__(self, trainer: Any, samples: Any, batch_size: int, model: Wrapped, **options: Any) -> None:
        self._trainer = trainer
        self._fetched = 0  # batches since the last step
        limit = trainer.limit_train_batches
        self._limit: int | None = limit if isinstance(limit, int) else None
        super().__init__(samples, batch_size, model, accumulate=trainer.accumulate_grad_batches, **options)

    @property
    def sampler(self) -> Samples:
        """Itself: Lightning sets the epoch of a batch sampler's sampler."""
        return self

    def __len__(self) -> int:
        count = super().__len__()
        return count if self._limit is None else min(count, self._limit)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: Lightning calls it."""
        changed = epoch != self.epoch
        super().set_epoch(epoch)
        self.tell()
        loop = self._trainer.fit_loop
        if changed and (loop.restarting or getattr(loop, "is_resuming", False)):
            iter(loop._data_fetcher)  # else Lightning reads on in epoch 0

    def fetched(self) -> None:
        """A batch is about to be trained. ValueError: a checkpoint has begun in the middle of the epoch."""
        one = self._iteration
        if one is not None and len(one.trained) == 1 and self._fetched == 0:
            before = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready - 1
            if before:
                raise ValueError(
                    f"checkpoint: after {before} batches of an epoch; allowed where ranks may die "
                    "(run --survive): one of an epoch's end"
                )
        self._fetched += 1

    def stepped(self) -> None:
        """The model has made a step: with accumulation the last one of an epoch may have fewer batches."""
        one = self._iteration
        if one is not None:
            one.trained.append(min(one.given, one.trained[-1] + self._fetched))
        self._fetched = 0

    def tell(self) -> None:
        """Tell Lightning's loop the number of batches of the epoch as it is now."""
        trainer, count = self._trainer, len(self)
        loop = trainer.fit_loop
        fetcher, combined = loop._data_fetcher, loop._combined_loader
        if fetcher is None or combined is None or loop.max_batches == count:
            return
        if trainer.val_check_batch == loop.max_batches and trainer.val_check_interval == 1.0:
            trainer.val_check_batch = count
        loop.max_batches = count
        combined.limits = [count]
        if combined._iterator is not None:
            combined._iterator.limits = combined.limits
        fetcher.length = count
        fetcher.done = fetcher.fetched >= count
        loop.epoch_loop.batch_progress.is_last_batch = fetcher.done


class Loader(DataLoader):  # type: ignore[misc]
    """A DataLoader over Samples. Its iteration goes on if a death has left batches when its workers have ended."""

    def __iter__(self) -> Iterator[Any]:
        samples = self.batch_sampler
        while True:
            yield from super().__iter__()
            one = samples._iteration
            if one is None or not one.ended or one.given >= len(samples):
                return


def training_loader(loader: Any, trainer: Any, model: Wrapped) -> Loader:
    """This loader with batches that are dealt anew when ranks have died. ValueError: a loader that has none."""
    if type(loader) is not DataLoader:
        raise ValueError(f"train_dataloader: a {type(loader).__name__}; {_ALLOWED}")
    given, sampler = loader.batch_sampler, loader.sampler
    if isinstance(given, BatchSampler):
        options = {"shuffle": given.shuffle, "seed": given.seed, "drop_last": given.drop_last}
        samples = Samples(trainer, given.samples, given.batch_size, model, **options)
        samples.load_state_dict(given.state_dict(0))
    elif type(sampler) is DistributedSampler and loader.batch_size is not None:
        options = {"shuffle": sampler.shuffle, "seed": sampler.seed, "drop_last": loader.drop_last}
        samples = Samples(trainer, loader.dataset, loader.batch_size, model, **options)
    else:
        name = type(sampler).__name__ if loader.batch_size is not None else type(given).__name__
        raise ValueError(f"train_dataloader: a DataLoader with a {name}; {_ALLOWED}")
    return Loader(loader.dataset, batch_sampler=samples, **{key: getattr(loader, key) for key in _KEPT})


def divide_validation(trainer: Any, rank: int, size: int) -> None:
    """Give DistributedSamplers of validation sets this rank's part. All ranks do so at one place of the loop."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    if loop._combined_loader is None:
        return
    for place, loader in enumerate(loop._combined_loader.flattened):
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            former, limit = len(loader), loop._max_batches[place]
            follow(sampler, rank, size)
            if limit == former:
                loop._max_batches[place] = len(loader)
            elif isinstance(trainer.limit_val_batches, float):
                loop._max_batches[place] = int(len(loader) * trainer.limit_val_batches)
