"""mnist-10k, the part of MNIST that is in the package (mnist-10k.README.md beside this file: origin, licence)."""

from __future__ import annotations

from pathlib import Path

from gossipgrad.data import idx
from gossipgrad.data.arrays import Dataset

FOLDER = Path(__file__).resolve().parent
PARTS = ("train", "t10k")


def file_names(part: str) -> tuple[str, str]:
    """(images, labels) of part "train" or "t10k"."""
    return f"mnist-10k-{part}-images-idx3-ubyte.gz", f"mnist-10k-{part}-labels-idx1-ubyte.gz"


def load() -> tuple[Dataset, Dataset]:
    """(10,000 to train, 2,000 to test), samples (1, 28, 28) in 0..1, each class equally often."""
    sets = []
    for part in PARTS:
        images, labels = (FOLDER / name for name in file_names(part))
        x, y = idx.read_pair(images, labels)
        sets.append(Dataset(x[:, None], y, 1 / 255, name="mnist-10k"))
        sets[-1].classes = [str(digit) for digit in range(10)]
    return sets[0], sets[1]
