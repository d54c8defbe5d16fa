"""IDX files, the format of MNIST: a big-endian header (two zero bytes, type, number of dimensions, sizes), then bytes.

Format: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits". Only unsigned bytes
(type 8) are read, the only type of MNIST and its relatives. The content tells plain files from gzip.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import DataError
from gossipgrad.state import files

UBYTE = 8
_TYPES = {8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}
_WHAT = {1: "labels (one dimension)", 3: "images (three dimensions)"}


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The file's content, unpacked if it is gzip. DataError if it is missing, not readable or a damaged gzip."""
    try:
        content = files.content(path)
    except OSError as error:
        raise DataError(f"{os.fspath(path)}: {error.strerror or error}") from error
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{os.fspath(path)}: truncated or damaged gzip file ({error})") from error


def parse(content: bytes, name: str, dimensions: int | None = None) -> NDArray[np.uint8]:
    """The array in an IDX file's content; `name` is for errors. dimensions: the expected number; None: any.

    Read-only and without a copy of the content. DataError: no IDX, another element type, another number of
    dimensions, truncated, or more bytes than the header says.
    """
    if len(content) < 4:
        raise DataError(f"{name}: truncated: {len(content)} bytes are no IDX header")
    if content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(f"{name}: no IDX file: it begins with {content[:4].hex()}, wanted 0000 and a type")
    kind, found = content[2], content[3]
    if kind != UBYTE:
        raise DataError(f"{name}: IDX of {_TYPES[kind]}; only uint8 (type 8) is read")
    if dimensions is not None and found != dimensions:
        wanted = _WHAT.get(dimensions, f"{dimensions} dimensions")
        raise DataError(
            f"{name}: holds {_WHAT.get(found, f'{found} dimensions')} where {wanted} are wanted; "
            "are images and labels swapped?"
        )
    head = 4 + 4 * found
    if found < 1 or len(content) < head:
        raise DataError(f"{name}: truncated: the header wants {head} bytes, the file has {len(content)}")
    shape = struct.unpack(f">{found}I", content[4:head])
    if 0 in shape:
        raise DataError(f"{name}: holds nothing: its header says {' x '.join(map(str, shape))}")
    wanted_bytes = head + math.prod(shape)
    if len(content) < wanted_bytes:
        raise DataError(
            f"{name}: truncated: its header says {' x '.join(map(str, shape))} = {wanted_bytes} bytes with the header, "
            f"the file has {len(content)}"
        )
    if len(content) > wanted_bytes:
        raise DataError(
            f"{name}: {len(content) - wanted_bytes} bytes more than its header says ({' x '.join(map(str, shape))})"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def read(path: str | os.PathLike[str], dimensions: int | None = None) -> NDArray[np.uint8]:
    """The array in an IDX file, plain or gzip; see parse."""
    return parse(read_bytes(path), os.fspath(path), dimensions)


def read_pair(
    images: str | os.PathLike[str], labels: str | os.PathLike[str]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(images (n, height, width), labels (n,)). DataError if their counts differ, besides those of parse."""
    x, y = read(images, 3), read(labels, 1)
    if len(x) != len(y):
        raise DataError(f"{os.fspath(images)} holds {len(x)} images, {os.fspath(labels)} {len(y)} labels")
    return x, y


def encode(array: NDArray[np.uint8]) -> bytes:
    """The content of an IDX file with this uint8 array."""
    if array.dtype != np.uint8 or not 1 <= array.ndim <= 255:
        raise TypeError(f"array: {array.dtype} of {array.ndim} dimensions; wanted uint8 of 1 to 255")
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, UBYTE, array.ndim, *array.shape)
    return head + np.ascontiguousarray(array).tobytes()
