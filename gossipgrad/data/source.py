"""Samples that are not arrays in memory: files that are decoded, texts that are cut, iterables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVALUATION = -1  # the epoch in which nothing is drawn at random


class Source(ABC):
    """Samples that are read on demand, with their form and number: the base of a user's own sources.

    gossipgrad.Dataset(source) is the set. A subclass has these as attributes, and __len__ and read:

    name          for messages and reports.
    shape, dtype  of one sample: uint8 or float32, or int32 tokens.
    scale, shift  the network gets scale * element + shift: numbers, or one a channel, which is the first axis,
                  or one for each element, arrays of `shape`.
    targets       all targets, an array, or None: then `read` gives them, of target_shape and target_dtype (int32 or
                  float32) a sample.
    classes       the classes' names if `targets` are classes, or None.
    values        the number of different tokens, and of classes in targets that are read; 0: unknown.
    ordered       True: in an epoch each rank reads rows in ascending order alone, and the calls for a set come one
                  after the other. Those of the ranks of a virtual cluster alternate; each continues after its own last
                  one. Evaluation has one epoch, -1, and begins anew each time.
    streams       True: each sample continues the one before it; see gossipgrad.data.text.
    readers       threads of a rank that call `read` at the same time.
    ahead         batches that a rank reads ahead of the network.

    The results of read depend on (row, epoch) alone, so they do not depend on ranks, threads or the order of calls.
    """

    name: str = "source"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scale: float | NDArray[np.float32] = 1.0
    shift: float | NDArray[np.float32] = 0.0
    targets: NDArray[Any] | None = None
    target_shape: tuple[int, ...] = ()
    target_dtype: np.dtype[Any] = np.dtype(np.int32)
    classes: list[str] | None = None
    values: int = 0
    ordered: bool = False
    streams: bool = False
    readers: int = 1
    ahead: int = 2

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        """Fill `samples` (n, *shape), and `targets` (n, *target_shape) unless it is None, with these rows.

        epoch: 0, 1, ...; -1: evaluation, without random choices. An error reaches the caller of fit as it is.
        """

    def read_new(self, rows: NDArray[Any], epoch: int = EVALUATION) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """(samples, targets) of these rows in memory of their own; targets None if `targets` has them."""
        samples = np.empty((len(rows), *self.shape), self.dtype)
        targets = None if self.targets is not None else np.empty((len(rows), *self.target_shape), self.target_dtype)
        self.read(rows, epoch, samples, targets)
        return samples, targets

    def _opened(self, floats: bool = False) -> Source:
        """The source for one fit or one evaluation: itself, or a copy with a position of its own.

        floats: the loss takes targets as float32; a source of targets of any numeric type then returns float32.
        """
        return self
