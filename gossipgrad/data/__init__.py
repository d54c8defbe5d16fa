"""Data sets: arrays in memory, IDX files, MNIST, and the small MNIST that is in the package."""

from __future__ import annotations

import os

from gossipgrad.data import embedded, idx, mnist
from gossipgrad.data.arrays import Dataset, as_dataset, synthetic
from gossipgrad.errors import DataError, choice

__all__ = ["NAMES", "DataError", "Dataset", "as_dataset", "idx", "load", "synthetic"]

NAMES = ("mnist-10k", "mnist")


def load(name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = True) -> tuple[Dataset, Dataset]:
    """(train, test) of a set by name.

    "mnist-10k": in the package, 10,000 + 2,000 digits. "mnist": from `folder`, $GOSSIPGRAD_DATA/mnist, the cache
    (~/.cache/gossipgrad), or the network if `download`. Errors: DataError for files, ValueError for another name.
    """
    choice("dataset", name, NAMES)
    if name == "mnist-10k":
        return embedded.load()
    return mnist.load(folder, download)
