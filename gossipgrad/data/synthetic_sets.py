"""Random sets, for trials without files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import integer


def synthetic(
    shape: Sequence[int],
    classes: int = 10,
    train: int = 2000,
    test: int = 500,
    *,
    seed: int = 0,
    noise: float = 1.0,
) -> tuple[Dataset, Dataset]:
    """(train, test): for each class a random pattern, plus noise of this deviation; easy to learn, needs no files.

    classes=1 gives two patterns with targets 0.0 and 1.0 for a binary loss.
    """
    for argument, value in (("classes", classes), ("train", train), ("test", test)):
        integer(argument, value, 1)
    generator = np.random.default_rng(seed)
    kinds = 2 if classes == 1 else classes
    patterns = generator.standard_normal((kinds, *shape), np.float32)
    sets = []
    for count in (train, test):
        labels = (generator.permutation(count) % kinds).astype(np.int32)
        samples = patterns[labels] + np.float32(noise) * generator.standard_normal((count, *shape), np.float32)
        targets: NDArray[Any] = labels.astype(np.float32)[:, None] if classes == 1 else labels
        sets.append(Dataset(samples, targets, name="synthetic"))
    return sets[0], sets[1]


def synthetic_tokens(
    sequence: int, tokens: int, train: int = 2000, test: int = 500, *, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """(train, test): windows (n, sequence) of tokens with their successors, nine in ten by a rule, others random."""
    generator = np.random.default_rng(seed)
    rule = generator.permutation(tokens).astype(np.int32)
    sets = []
    for count in (train, test):
        text = np.empty((count, sequence + 1), np.int32)
        text[:, 0] = generator.integers(tokens, size=count)
        for place in range(sequence):
            free = generator.integers(tokens, size=count)
            text[:, place + 1] = np.where(generator.random(count) < 0.9, rule[text[:, place]], free)
        sets.append(Dataset(text[:, :-1].copy(), text[:, 1:].copy(), name="synthetic"))
    return sets[0], sets[1]
