"""MNIST: found in a folder, in $GOSSIPGRAD_DATA/mnist or in the cache, else fetched into the cache.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from gossipgrad.data import cache, idx
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import DataError
from gossipgrad.state import files

# name -> md5 of the uncompressed file
FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
TIMEOUT = 20.0  # seconds without an answer, each mirror


def cache_folder() -> Path:
    """$GOSSIPGRAD_CACHE/mnist, $XDG_CACHE_HOME/gossipgrad/mnist or ~/.cache/gossipgrad/mnist."""
    return cache.root() / "mnist"


def find(name: str, folder: Path) -> Path | None:
    """The file of this name in a folder, plain or with .gz; also with the dot of some copies in its name."""
    for variant in (name, name.replace("-idx", ".idx")):
        for path in (folder / variant, folder / f"{variant}.gz"):
            if path.is_file():
                return path
    return None


def _fetch(name: str, folder: Path) -> Path:
    """Download one file, check it, put it into the folder in one move."""
    problems = []
    for mirror in MIRRORS:
        address = f"{mirror}{name}.gz"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                packed = answer.read()
            content = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error, urllib.error.URLError, http.client.HTTPException) as error:
            problems.append(f"{address}: {getattr(error, 'reason', None) or error}")
            continue
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != FILES[name]:
            problems.append(f"{address}: md5 {found}, wanted {FILES[name]}")
            continue
        path = folder / f"{name}.gz"
        with files.written(os.fspath(path)) as file:
            file.write(packed)
        return path
    raise DataError("; ".join(problems))


def _fetch_all() -> Path:
    """Fill the cache; one process of a machine fetches, the others wait for it."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with cache.locked(folder / ".lock"):
            cache.remove_left(folder)
            for name in FILES:
                if find(name, folder) is None:
                    _fetch(name, folder)
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}") from error
    return folder


def _advice(looked: list[Path], reason: str) -> str:
    names = ", ".join(f"{name}[.gz]" for name in FILES)
    places = ", ".join(str(p) for p in looked)
    return f"mnist not found in {places}{reason}. Put {names} into one of these folders or name theirs by --data"


def locate(folder: str | os.PathLike[str] | None = None, download: bool = True) -> Path:
    """The folder that holds all four files. No other folder is tried for a given one (and its mnist/)."""
    looked = cache.places("mnist", folder)
    for place in looked:
        present = [name for name in FILES if find(name, place)]
        if len(present) == len(FILES):
            return place
        if present and place != cache_folder():
            missing = ", ".join(f"{n}[.gz]" for n in FILES if n not in present)
            raise DataError(f"{place}: missing beside the other MNIST files: {missing}")
    if folder is not None or not download:
        raise DataError(_advice(looked, ""))
    try:
        return _fetch_all()
    except DataError as error:
        raise DataError(_advice(looked, f", and not to be had from the network ({error})")) from error


def load(folder: str | os.PathLike[str] | None = None, download: bool = True) -> tuple[Dataset, Dataset]:
    """(60,000 to train, 10,000 to test), samples (1, 28, 28) in 0..1.

    folder: the folder of the four IDX files, plain or gzip; None: $GOSSIPGRAD_DATA/mnist, the cache, the network.
    DataError names missing, damaged or swapped files. Other sets in this format with these names work as well.
    """
    place = locate(folder, download)
    sets = []
    for part in ("train", "t10k"):
        images, labels = (find(f"{part}-{kind}", place) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        assert images is not None and labels is not None  # locate has found them
        x, y = idx.read_pair(images, labels)
        sets.append(Dataset(x[:, None], y, 1 / 255, name="mnist"))
        sets[-1].classes = [str(digit) for digit in range(10)]
    return sets[0], sets[1]
