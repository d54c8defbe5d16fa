"""Data sets: arrays in memory, tables, texts, folders of images, and sets by name."""

from __future__ import annotations

import os
from typing import Any

from gossipgrad.data import draws, idx, sets
from gossipgrad.data.arrays import Dataset, as_dataset
from gossipgrad.data.characters import Vocabulary, text
from gossipgrad.data.images import ImageFolder, image_folder
from gossipgrad.data.iterables import from_iterable
from gossipgrad.data.sets import NAMES, load
from gossipgrad.data.shifts import random_crop
from gossipgrad.data.source import Source
from gossipgrad.data.synthetic_sets import synthetic, synthetic_tokens
from gossipgrad.data.tables import csv, npz, standardize
from gossipgrad.errors import DataError, check_keywords
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
    "sets",
    "standardize",
    "synthetic",
    "text",
]


def for_network(
    net: Model,
    name: str,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    progress: bool = True,
    **options: Any,
) -> tuple[Dataset, Dataset]:
    """load(name, folder, ...), or for "synthetic" a set of the network's shapes, drawn from the seed."""
    if name == "synthetic":
        check_keywords("load of 'synthetic': load", options, ())
        tokens = net.tokens()
        if tokens is not None:
            return synthetic_tokens(net.input_shape[0], tokens, seed=seed)
        classes = net.output_shape[0] if len(net.output_shape) == 1 else 1
        return synthetic(net.input_shape, classes, seed=seed)
    return load(name, folder, progress=progress, seed=seed, **options)
