"""Images that are decoded once: in a memory map on the disk, made by one process of a machine."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import cache as cache_files
from gossipgrad.errors import DataError
from gossipgrad.launch.terminal import Bar
from gossipgrad.state import files

FORMAT = 1  # of the cache's files
TOGETHER = 64  # images decoded between two writes to the cache

Pixels = NDArray[np.uint8]


class Decoded:
    """Images in one memory map, one after the other, (height, width, channels) each."""

    def __init__(self, path: Path, index: NDArray[np.int64], channels: int) -> None:
        self.path, self.channels = path, channels
        self.rows = np.flatnonzero(index[:, 1] > 0)
        self.index = index[self.rows]  # offset, height, width, checksum
        self.whole = np.zeros(len(self.index), np.bool_)  # images whose checksum was verified
        self.damaged = False  # True if a checksum differed
        self.bytes: Pixels = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)

    def pixels(self, row: int) -> Pixels | None:
        """The pixels of an image; None if they are damaged. The first reading verifies the checksum."""
        offset, height, width, checksum = (int(one) for one in self.index[row])
        pixels = self.bytes[offset : offset + height * width * self.channels]
        if not self.whole[row]:
            if zlib.crc32(pixels.data) != checksum:
                return None
            self.whole[row] = True
        return pixels.reshape((height, width) if self.channels == 1 else (height, width, self.channels))


def _load(path: Path, count: int, channels: int) -> Decoded | None:
    """The images of a file; None if it is missing or incomplete."""
    try:
        with files.opened(path.with_suffix(".npy")) as file:
            index = np.load(file, allow_pickle=False)
        if index.shape != (count, 4) or index.dtype != np.int64:
            return None
        sizes = index[:, 1] * index[:, 2] * channels
        if path.stat().st_size != int(sizes.sum()):
            return None
        return Decoded(path, index, channels)
    except Exception:  # a damaged header may raise anything
        return None


def decoded(
    path: Path, count: int, channels: int, decode: Callable[[range], list[Pixels | None]], name: str, progress: bool
) -> Decoded:
    """The decoded images in this file: one process of a machine makes it, the others wait.

    decode: returns the pixels of these of `count` images, None for a broken one. name: of the set, for the bar.
    """
    place, bar = path.parent, Bar(name, progress)

    def waiting(text: str) -> None:
        if text:
            bar.show(int(text) / count, f"{int(text):,} images decoded")

    try:
        found = _load(path, count, channels)
        if found is None:
            place.mkdir(parents=True, exist_ok=True)
            with cache_files.locked(place / f"{path.stem}.lock", waiting) as report:
                found = _load(path, count, channels)
                if found is None:
                    _decode_all(path, count, decode, bar, report)
                    found = _load(path, count, channels)
        if found is None:
            raise DataError(f"{path}: what was written there cannot be read")
    except OSError as error:
        raise DataError(
            f"cache: {error.filename or place}: {error.strerror or error}; cache= names another folder"
        ) from error
    finally:
        bar.close()
    return found


def _decode_all(
    path: Path, count: int, decode: Callable[[range], list[Pixels | None]], bar: Bar, report: Callable[[str], None]
) -> None:
    index = np.zeros((count, 4), np.int64)
    offset = 0
    with files.written(os.fspath(path)) as file:
        for begin in range(0, count, TOGETHER):
            end = min(begin + TOGETHER, count)
            for row, pixels in enumerate(decode(range(begin, end)), begin):
                if pixels is None:
                    continue
                content = np.ascontiguousarray(pixels).data
                file.write(content)
                index[row] = offset, *pixels.shape[:2], zlib.crc32(content)
                offset += pixels.size
            report(str(end))
            bar.show(end / count, f"{end:,} images decoded")
    with files.written(os.fspath(path.with_suffix(".npy"))) as file:
        np.save(file, index)
