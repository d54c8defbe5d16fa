"""Data sets: arrays in memory, tables, texts, folders of images, and sets by name."""

from __future__ import annotations

import os

from gossipgrad.data import characters, cifar10, draws, embedded, higgs, idx, images, mnist
from gossipgrad.data.arrays import Dataset, as_dataset, synthetic
from gossipgrad.data.characters import Vocabulary, text
from gossipgrad.data.images import ImageFolder, image_folder
from gossipgrad.data.iterables import from_iterable
from gossipgrad.data.shifts import random_crop
from gossipgrad.data.source import Source
from gossipgrad.data.tables import csv, npz, standardize
from gossipgrad.errors import DataError, choice
from gossipgrad.model import Model

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "ImageFolder",
    "Source",
    "Vocabulary",
    "as_dataset",
    "csv",
    "draws",
    "for_network",
    "from_iterable",
    "idx",
    "image_folder",
    "load",
    "npz",
    "random_crop",
    "standardize",
    "synthetic",
    "text",
]

NAMES = ("mnist-10k", "mnist", "cifar10", "higgs", "shakespeare", "imagefolder")


def load(
    name: str, folder: str | os.PathLike[str] | None = None, *, download: bool = True, progress: bool = True
) -> tuple[Dataset, Dataset]:
    """(train, test) of a set by name.

    "mnist-10k": in the package, 10,000 + 2,000 digits. "mnist": from `folder`, $GOSSIPGRAD_DATA/mnist, the cache
    ($GOSSIPGRAD_CACHE or ~/.cache/gossipgrad), or the network if `download`. "cifar10": from `folder` (or an archive),
    $GOSSIPGRAD_DATA/cifar10 or the cache. "higgs": CSV files from `folder`, $GOSSIPGRAD_DATA/higgs or the cache; each
    feature has mean 0 and deviation 1 in the training part. "shakespeare": input.txt likewise, in windows of 64
    characters; gossipgrad.data.text has more to choose. "imagefolder": the images in `folder`, which has train/<class>/
    and val/<class>/, or <class>/ alone, of which a tenth is to validate on; see image_folder.
    progress: show how far reading and decoding are.
    Errors: DataError for files, ValueError for another name.
    """
    choice("dataset", name, NAMES)
    if name == "mnist-10k":
        return embedded.load()
    if name == "cifar10":
        return cifar10.load(folder, progress)
    if name == "higgs":
        return higgs.load(folder, progress)
    if name == "shakespeare":
        return characters.shakespeare(folder)
    if name == "imagefolder":
        if folder is None:
            raise DataError("data: missing: --dataset imagefolder wants a folder, or an archive, of images")
        return images.load(folder, progress=progress)
    return mnist.load(folder, download)


def for_network(
    net: Model, name: str, folder: str | os.PathLike[str] | None = None, seed: int = 0, *, progress: bool = True
) -> tuple[Dataset, Dataset]:
    """load(name, folder), or for "synthetic" a set of the network's shapes, drawn from the seed."""
    if name == "synthetic":
        classes = net.output_shape[0] if len(net.output_shape) == 1 else 1
        return synthetic(net.input_shape, classes, seed=seed)
    return load(name, folder, progress=progress)
