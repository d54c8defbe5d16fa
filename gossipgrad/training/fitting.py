"""The arguments of a call of fit: checked, compared among the ranks and written into the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gossipgrad import _core
from gossipgrad.callbacks import Callback
from gossipgrad.data import given
from gossipgrad.data.iterables import Stream, differs
from gossipgrad.errors import DataError, choice, flag, integer
from gossipgrad.history import Record
from gossipgrad.launch import joining
from gossipgrad.state import outputs
from gossipgrad.training import fingerprint, loop, notices
from gossipgrad.training.batches import USUAL, Batches, batch_for, check_batch
from gossipgrad.training.replicas import Replicas

CoreSet = _core.Dataset | list[_core.Dataset]

_WHOLE = (
    "Every rank gives the same whole sets: fit divides them among the ranks. "
    "Where each brings its own part, sharded=True says so"
)
HINTS = {"train, ": _WHOLE, "validation, ": _WHOLE}  # advice if the ranks' arguments differ


@dataclass
class Fit:
    """One call of fit, each rank's own arguments, checked."""

    train: given.Given
    validation: given.Given | None
    validation_split: float | int | None
    class_weight: Any
    epochs: int
    batch_size: int  # 0: `batches` chooses it
    callbacks: list[Callback]
    validate_replicas: bool
    shuffle: bool
    drop_last: bool
    final_mix: bool
    resume: str | None
    shard: str
    train_core: CoreSet
    validation_core: CoreSet | None

    @property
    def streams(self) -> bool:
        """True if each sample continues the one before it."""
        return self.train.first.streams

    @property
    def sharded(self) -> bool:
        """True if every rank brings its own part of the sets."""
        return self.train.sharded

    @classmethod
    def checked(
        cls,
        trainer: Replicas,
        train: Any,
        y: Any,
        *,
        validation: Any,
        validation_split: float | int | None,
        epochs: Any,
        batch_size: Any,
        callbacks: Any,
        validate_replicas: Any,
        shuffle: Any,
        drop_last: Any,
        final_mix: Any,
        progress: Any,
        resume: str | os.PathLike[str] | None,
        sample_weight: Any,
        class_weight: Any,
        shard: Any,
        sharded: Any,
    ) -> Fit:
        """ValueError, TypeError: arguments that do not fit the trainer or each other; no message to other ranks."""
        sharded, shard = flag("sharded", sharded), choice("shard", shard, given.SHARDS)
        train_set, validation_set = _sets(
            trainer,
            train,
            y,
            validation,
            validation_split=validation_split,
            sample_weight=sample_weight,
            sharded=sharded,
        )
        loop.check_sharded(sharded, shard, trainer.strategy, trainer.size)
        batch_size = 0 if batch_size is None else integer("batch_size", batch_size, 1)
        epochs = integer("epochs", epochs, 1, 2**31 - 1)
        validate_replicas = _check_validate_replicas(validate_replicas, validation_set is not None, sharded)
        shuffle, drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        final_mix = flag("final_mix", final_mix)
        ends = (trainer.net.inputs, trainer.heads, trainer.net.target_names)
        train_core = train_set.core(*ends)
        validation_core = None if validation_set is None else validation_set.core(*ends)
        if not sharded:
            check_batch(train_set.sizes(trainer.workers, trainer.gather), batch_size or 1)
        if class_weight is not None:
            train_set.check_class_weight(class_weight, trainer.loss, trainer.net.output_shape, trainer.heads[0].ignored)
        actors = loop.with_defaults(callbacks, progress, trainer.optimizer.timing)
        actors = with_same_streams(actors, train_set, trainer.size // trainer.team.local)
        _check_outputs(trainer.rank, actors, resume)
        return cls(
            train=train_set,
            validation=validation_set,
            validation_split=validation_split,
            class_weight=class_weight,
            epochs=epochs,
            batch_size=batch_size,
            callbacks=actors,
            validate_replicas=validate_replicas,
            shuffle=shuffle,
            drop_last=drop_last,
            final_mix=final_mix,
            resume=None if resume is None else os.fspath(resume),
            shard=shard,
            train_core=train_core,
            validation_core=validation_core,
        )

    def facts(self, trainer: Replicas) -> Record:
        """Facts that must be equal on all ranks."""
        validation = None if self.validation is None else self.validation.first
        return {
            "train": lambda: fingerprint.data(self.train.first, self.sharded),
            "validation": lambda: fingerprint.data(validation, self.sharded),
            "validation_split": self.validation_split,
            "class_weight": fingerprint.class_weight(self.class_weight),
            "shard": self.shard,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "validate_replicas": self.validate_replicas,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "final_mix": self.final_mix,
            **fingerprint.callbacks(self.callbacks),
            "resume": self.resume,
            "epochs done": trainer.epoch,
            "steps done": trainer.step,
        }

    def batches(self, trainer: Replicas) -> Batches:
        """The batches to train in; ValueError unless the ranks' samples make them. Collective."""
        ranks = joining.first_size(trainer.team)  # a newcomer, which is still alone, has the size of the group
        sizes = self.train.sizes(trainer.strategy.workers(ranks), trainer.gather)
        if self.batch_size == 0:
            self.batch_size = batch_for(USUAL, sizes, self.sharded, self.drop_last)
            notices.smaller_batches(trainer.rank, self.batch_size, USUAL)
        made = Batches(self.batch_size, sizes, self.sharded, self.drop_last, self.streams)
        made.check(self.batch_size)
        return made

    def weigh(self, trainer: Replicas) -> None:
        """Turn class weights into weights of samples, by the classes of all ranks' samples. Collective.

        ValueError if no sample counts: nothing would be trained.
        """
        self._check_weights(trainer, "sample_weight")
        if self.class_weight is None:
            return
        loss, net, ignored = trainer.loss, trainer.net, trainer.heads[0].ignored
        counts = self.train.class_counts(loss, net.output_shape, trainer.gather, ignored)
        self.train = self.train.class_weighted(self.class_weight, counts, loss, net.output_shape, ignored)
        self.train_core = self.train.core(net.inputs, trainer.heads, net.target_names)
        self._check_weights(trainer, "class_weight")

    def _check_weights(self, trainer: Replicas, argument: str) -> None:
        if not self.train.counts(trainer.gather):
            raise ValueError(f"{argument}: 0 for all samples to train on; allowed: above 0 for one of them at least")

    def warn(self, trainer: Replicas) -> None:
        """Warn of data that are learnt badly as they are."""
        if self.shard == "contiguous":
            notices.sorted_samples(trainer.rank, self.train.first, trainer.strategy, trainer.workers)
        validation = None if self.validation is None else self.validation.first
        notices.unscaled_pixels(trainer.rank, self.train.first, validation)

    def settings(self, trainer: Replicas, sizes: Sequence[int]) -> Record:
        """The settings in terms of JSON, for the report. Collective."""
        return {
            "dataset": self.train.name,
            "train_samples": sum(sizes),
            "validation_samples": 0 if self.validation is None else sum(self.validation.sizes(1, trainer.gather)),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "final_mix": self.final_mix,
            "validate_replicas": self.validate_replicas,
            "shard": "own" if self.sharded else "contiguous" if self.streams else self.shard,
            "weighted": self.train.first.sample_weight is not None,
        }


def _sets(
    trainer: Replicas,
    train: Any,
    y: Any,
    validation: Any,
    *,
    validation_split: float | int | None,
    sample_weight: Any,
    sharded: bool,
) -> tuple[given.Given, given.Given | None]:
    """(to train on, to validate on)"""
    arity = given.Arity(len(trainer.net.inputs), len(trainer.net.target_names))
    train_set, validation_set = given.training_sets(train, y, validation, sharded, trainer.team.local, arity)
    weighted = train_set if sample_weight is None else train_set.weighted(sample_weight)
    if validation_split is None:
        return weighted, validation_set
    if validation_set is not None:
        raise ValueError(f"validation_split={validation_split!r}: allowed without validation data")
    return weighted.split(validation_split, trainer.seed)[0], train_set.split(validation_split, trainer.seed)[1]


def _check_validate_replicas(wanted: Any, validated: bool, sharded: bool) -> bool:
    wanted = flag("validate_replicas", wanted)
    if wanted and not validated:
        raise ValueError("validate_replicas=True: allowed only with validation data")
    if wanted and sharded:
        raise ValueError("validate_replicas=True: every rank wants the whole set to validate on; not with sharded=True")
    return bool(wanted)


def _check_outputs(rank: int, callbacks: Sequence[Callback], resume: str | os.PathLike[str] | None) -> None:
    """ValueError if a file of a callback would overwrite another, or an input."""
    if resume is not None:
        outputs.check_path("resume", resume)
    if rank == 0:  # rank 0 alone writes most of them
        wanted = [output for actor in callbacks for output in actor.outputs()]
        outputs.check(wanted, {} if resume is None else {"resume": resume})


class _SameStreams(Callback):
    """Checks that streams are equal on all ranks, by the batches of each after an epoch."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def on_epoch_end(self, trainer: Any, record: Any) -> None:
        """DataError on all ranks if their passes had other targets up to the last batch that all have read."""
        gather, passed = cast(Replicas, trainer).gather, self.stream.passed
        end = min(int.from_bytes(one, "little") for one in gather(max(passed, default=0).to_bytes(8, "little")))
        if len(set(gather(passed.get(end, 0).to_bytes(4, "little")))) > 1:
            raise DataError(differs(self.stream.name, f"of its first {end:,} samples"))


def with_same_streams(callbacks: list[Callback], train: given.Given, processes: int) -> list[Callback]:
    """Add a callback that compares the streams, if several processes pass through one each."""
    source = train.first.source
    if train.sharded or processes < 2 or not isinstance(source, Stream):
        return callbacks
    return [_SameStreams(source), *callbacks]
