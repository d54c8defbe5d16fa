"""Where samples come from that are not arrays in memory: files that are decoded, texts that are cut, iterables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVALUATION = -1  # the epoch in which nothing is drawn at random


class Source(ABC):
    """What a sample is, how many there are, and how some of them are read: the base of sources of one's own.

    gossipgrad.Dataset(source) is the set. A subclass gives these as attributes, and __len__ and read:

    name          for messages and reports.
    shape, dtype  of one sample: uint8 or float32, or int32 tokens.
    scale, shift  what the network sees is scale * element + shift: numbers, or one a channel, which is the first axis,
                  or one for each element, arrays of `shape`.
    targets       all targets, an array, or None: then `read` gives them, of target_shape and target_dtype (int32 or
                  float32) a sample.
    classes       the classes' names where `targets` are classes, or None.
    values        how many tokens there are, and classes in targets that are read; 0: that is not known.
    ordered       True: in an epoch each rank reads rows in ascending order alone, and the calls for a set are one after
                  the other. Those of the ranks of a virtual cluster alternate, each going on where its own last one
                  ended. Evaluation has one epoch, -1, and begins anew each time.
    streams       True: each sample goes on where the one before it ends; see gossipgrad.data.text.
    readers       threads of a rank that call `read` at the same time.
    ahead         batches that a rank reads ahead of the network.

    What read gives depends on (row, epoch) alone, so it does not depend on ranks, threads or the order of calls.
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
        """How many samples there are."""

    @abstractmethod
    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        """Fill `samples` (n, *shape), and `targets` (n, *target_shape) unless it is None, with these rows.

        epoch: 0, 1, ...; -1: to evaluate, nothing is drawn at random. An error reaches the caller of fit as it is.
        """

    def read_new(self, rows: NDArray[Any], epoch: int = EVALUATION) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """(samples, targets) of these rows in memory of their own; targets None where `targets` has them."""
        samples = np.empty((len(rows), *self.shape), self.dtype)
        targets = None if self.targets is not None else np.empty((len(rows), *self.target_shape), self.target_dtype)
        self.read(rows, epoch, samples, targets)
        return samples, targets

    def _opened(self, floats: bool = False) -> Source:
        """What one fit, or one evaluation, reads: the source, or the same with a place of its own where it has one.

        floats: the loss takes targets as float32; what reads them from numbers of any kind gives them so.
        """
        return self
