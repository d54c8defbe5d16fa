"""Files in the safetensors format: 8 bytes with the header's length, a header in JSON, the arrays' bytes.

Format: https://github.com/huggingface/safetensors. Only what weights need: F32 is written; F64, F32, F16, BF16 and
integers are read (BF16 as float32). Files are written beside their place and moved into it in one step.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import CheckpointError

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1",
}  # fmt: skip
_HEADER_LIMIT = 100_000_000  # bytes, the format's own


def write_atomically(path: str | os.PathLike[str], *parts: Any) -> None:
    """Write these bytes to a file that appears, or replaces the old one, only when all of them are on the disk."""
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float32 arrays by name, with text by name in the header. Atomic."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    blocks = []
    for name, array in arrays.items():
        block = np.ascontiguousarray(array, "<f4")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + block.nbytes]}
        offset += block.nbytes
        blocks.append(block.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_atomically(path, struct.pack("<Q", len(text)), text, *blocks)


def _header(path: str, content: Any) -> tuple[dict[str, Any], int]:
    if len(content) < 8:
        raise CheckpointError(f"{path}: truncated: {len(content)} bytes are no safetensors file")
    (length,) = struct.unpack("<Q", content[:8])
    if length > _HEADER_LIMIT:
        raise CheckpointError(f"{path}: no safetensors file: it says that its header has {length} bytes")
    if 8 + length > len(content):
        raise CheckpointError(f"{path}: truncated: the header alone has {length} bytes, the file {len(content)}")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
    except ValueError as error:
        raise CheckpointError(f"{path}: no safetensors file: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: no safetensors file: its header is no JSON object")
    return header, 8 + length


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """(arrays by name in the file's order, metadata). CheckpointError: missing, truncated or not of this format."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    header, base = _header(path, content)
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        try:
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            shape = tuple(int(n) for n in entry["shape"])
            begin, end = (base + int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {name}: an entry of the header that is not understood: {entry}") from error
        if end > len(content):
            raise CheckpointError(f"{path}: truncated: {name} ends at byte {end}, the file at {len(content)}")
        count = int(np.prod(shape, dtype=np.int64))
        if begin < base or end - begin != count * dtype.itemsize:
            raise CheckpointError(f"{path}: {name}: {end - begin} bytes for shape {shape} of {entry['dtype']}")
        array: NDArray[Any] = np.frombuffer(content, dtype, count, begin).reshape(shape)
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
    return arrays, metadata
