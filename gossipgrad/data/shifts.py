"""Images of a set in memory, moved and mirrored at random while training: the usual augmentation for CIFAR-10."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import draws
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.source import Source
from gossipgrad.errors import integer, number


class _Shifted(Source):
    def __init__(self, data: Dataset, padding: int, flip: float, seed: int) -> None:
        self.name, self.shape, self.dtype = data.name, data.shape, data.dtype
        self.scale, self.shift, self.classes = data.scale, data.shift, data.classes
        self.images, self.targets = data.samples, data.targets
        self.padding, self.flip, self.seed = padding, flip, seed

    def __len__(self) -> int:
        return len(self.images)

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        if epoch < 0:
            samples[...] = self.images[rows]
            return
        drawn, most = draws.uniform(self.seed, epoch, rows), 2 * self.padding + 1
        down, right = (np.minimum((drawn[:, i] * most).astype(np.int64), most - 1) for i in (0, 1))
        edge = (self.padding, self.padding)
        padded = np.pad(self.images[rows], ((0, 0), (0, 0), edge, edge))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.shape[1:], (2, 3))
        samples[...] = windows[np.arange(len(rows)), :, down, right]
        mirrored = drawn[:, 2] < self.flip
        samples[mirrored] = samples[mirrored][..., ::-1]


def random_crop(data: Dataset, padding: int = 4, flip: float = 0.5, *, seed: int = 0) -> Dataset:
    """The set with its images (channels, height, width) moved and mirrored in training, differently in each epoch.

    As torchvision's RandomCrop(size, padding=padding) and RandomHorizontalFlip(flip). An image is padded with zeros
    (black, before scale and shift), and a part of the old size is cut out. With the probability `flip` it is mirrored.
    The result depends on (seed, epoch, sample) alone. Evaluation draws nothing.
    """
    if len(data.shape) != 3:
        raise ValueError(f"data: samples of shape {data.shape}; allowed: images (channels, height, width)")
    padding, flip = integer("padding", padding, 0), number("flip", flip, 0.0, 1.0)
    made = Dataset(_Shifted(data, padding, flip, integer("seed", seed, 0, 2**64 - 1)))
    made.sample_weight = data.sample_weight
    return made
