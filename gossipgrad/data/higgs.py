"""HIGGS: whether a collision made a Higgs boson, from 28 numbers. From the UCI repository, as CSV files with a header.

Baldi, Sadowski, Whiteson, "Searching for exotic particles in high-energy physics with deep learning" (2014). The whole
set has 11 million rows; any part of it in two files will do.
"""

from __future__ import annotations

import gzip
import os
import warnings
from pathlib import Path

import numpy as np

from gossipgrad.data import cache
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import DataError

FEATURES = 28
_WANTED = "two files, one with train in its name and one with test: *.csv or *.csv.gz, a line of names, then the label "
_WANTED += f"(0 or 1) and {FEATURES} numbers a line"


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


def read(path: str | os.PathLike[str]) -> Dataset:
    """The samples (n, 28) of a CSV file, plain or gzip, with targets (n, 1) of 0 or 1. DataError: damaged."""
    path = Path(path)
    try:
        with gzip.open(path, "rt") if path.name.endswith(".gz") else open(path, encoding="ascii") as file:
            names = file.readline().strip().split(",")
            if len(names) != 1 + FEATURES or names[0] in ("0", "1") or names[0][:1].isdigit():
                raise DataError(f"{path}: its first line is no line of {1 + FEATURES} names. Wanted: {_WANTED}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a file without lines, which is an error below
                table = np.loadtxt(file, np.float32, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: damaged: {' '.join(str(error).split())}") from error
    if not len(table) or table.shape[1] != 1 + FEATURES:
        raise DataError(f"{path}: an array of {table.shape}; wanted lines of {1 + FEATURES} numbers")
    wrong = np.flatnonzero(~np.isfinite(table).all(axis=1) | ~np.isin(table[:, 0], (0, 1)))
    if len(wrong):
        raise DataError(f"{path}: line {wrong[0] + 2}: a label other than 0 and 1, or a number that is not finite")
    return Dataset(np.ascontiguousarray(table[:, 1:]), table[:, :1].copy(), name="higgs")


def load(folder: str | os.PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """(train, test) from the files that locate finds."""
    train, test = locate(folder)
    return read(train), read(test)
