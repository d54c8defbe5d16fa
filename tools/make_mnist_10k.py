#!/usr/bin/env python3
"""Make the files of mnist-10k in gossipgrad/data from the four files of MNIST: make_mnist_10k.py FOLDER.

Of each class, digits at even distances in the order of the file; the same bytes from every run.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import embedded, idx, mnist

A_CLASS = {"train": 1000, "t10k": 200}


def choose(labels: NDArray[np.uint8], a_class: int) -> NDArray[np.intp]:
    """The places of `a_class` digits of each class, in the file's order."""
    chosen = []
    for digit in range(10):
        places = np.flatnonzero(labels == digit)
        chosen.append(places[np.arange(a_class) * len(places) // a_class])
    return np.sort(np.concatenate(chosen))


def pack(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(content)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where train-images-idx3-ubyte.gz and its three companions lie")
    parser.add_argument("--out", type=Path, default=embedded.FOLDER)
    arguments = parser.parse_args()
    for part, a_class in A_CLASS.items():
        paths = [mnist.find(f"{part}-{kind}", arguments.folder) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        if None in paths:
            parser.error(f"{arguments.folder}: no {part} files")
        images, labels = idx.read_pair(str(paths[0]), str(paths[1]))
        chosen = choose(labels, a_class)
        for name, array in zip(embedded.file_names(part), (images[chosen], labels[chosen]), strict=True):
            target = arguments.out / name
            temporary = target.with_suffix(".tmp")
            temporary.write_bytes(pack(idx.encode(array)))
            os.replace(temporary, target)
            print(f"{name}: {array.shape[0]}, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
