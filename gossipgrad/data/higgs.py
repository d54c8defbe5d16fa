"""HIGGS: did a collision make a Higgs boson? 28 numbers each. From the UCI repository, as CSV files.

Baldi, Sadowski, Whiteson, "Searching for exotic particles in high-energy physics with deep learning" (2014). The whole
set has 11 million rows; any part of it in two files will do.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gossipgrad.data import cache, tables
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import DataError

FEATURES = 28
_WANTED = "two files, one with train in its name and one with test: *.csv or *.csv.gz, a line of names or none, then "
_WANTED += f"the label (0 or 1) and {FEATURES} numbers a line"


def _find(folder: Path, part: str) -> Path | None:
    found = sorted(one for one in folder.glob(f"*{part}*") if one.name.endswith((".csv", ".csv.gz")))
    if len(found) > 1:
        raise DataError(f"{folder}: {', '.join(one.name for one in found)}: allowed: one file for {part}")
    return found[0] if found else None


def locate(folder: str | os.PathLike[str] | None = None) -> tuple[Path, Path]:
    """(file to train, file to test) in `folder` (or its higgs/), else $GOSSIPGRAD_DATA/higgs or the cache."""
    looked = cache.places("higgs", folder)
    for place in looked:
        train, test = (_find(place, part) if place.is_dir() else None for part in ("train", "test"))
        if train is not None and test is not None:
            return train, test
        if train is not None or test is not None:
            raise DataError(f"{place}: only one of both files is there. Wanted: {_WANTED}")
    raise DataError(f"higgs not found in {', '.join(map(str, looked))}. Put there, or name by --data: {_WANTED}")


def read(path: str | os.PathLike[str], progress: bool = True) -> Dataset:
    """The samples (n, 28) of a CSV file, plain or gzip, with targets (n, 1) of 0 or 1. DataError: damaged."""
    made: Dataset = tables.csv(path, [0], name="higgs", progress=progress)
    if made.shape != (FEATURES,):
        raise DataError(f"{path}: {made.shape[0]} numbers a line beside the label. Wanted: {_WANTED}")
    wrong = np.flatnonzero(~np.isin(made.targets[:, 0], (0, 1)))
    if len(wrong):
        raise DataError(f"{path}: row {wrong[0] + 1}: a label of {made.targets[wrong[0], 0]:g}; allowed: 0 and 1")
    return made


def load(folder: str | os.PathLike[str] | None = None, progress: bool = True) -> tuple[Dataset, Dataset]:
    """(train, test) from the files that locate finds, each feature with mean 0 and deviation 1 in the first of them."""
    train, test = locate(folder)
    first, second = tables.standardize(read(train, progress), read(test, progress))
    return first, second
