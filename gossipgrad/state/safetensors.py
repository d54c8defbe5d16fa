"""Files in the safetensors format: 8 bytes with the header's length, a header in JSON, the arrays' bytes.

Format: https://github.com/huggingface/safetensors. Only types of weights: F32 is written; F64, F32, F16, BF16, F8,
C64, BOOL and integers are read (BF16 and F8 as float32). Files are written beside their place and moved into it in one
step.

With checksums the metadata hold the SHA-256 of each array ("gossipgrad_sha256", a JSON object by name) and that of the
header itself ("gossipgrad_header_sha256"). The header's covers the others, so it is a checksum of the whole file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import CheckpointError
from gossipgrad.state import elements, files

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
    "C64": "<c8", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
}  # fmt: skip
_ELSEWHERE = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}  # PyTorch's names
_HEADER_LIMIT = 100_000_000  # bytes, the format's own
_MAX_DIMENSIONS = 32  # the limit of every NumPy
_ARRAYS, _HEADER = "gossipgrad_sha256", "gossipgrad_header_sha256"  # names in the metadata


def _header_digest(header: Mapping[str, Any]) -> str:
    """Digest of the header without its own digest, whatever its spaces and the order of its keys."""
    metadata = {key: value for key, value in header["__metadata__"].items() if key != _HEADER}
    text = json.dumps(dict(header) | {"__metadata__": metadata}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[np.float32]],
    metadata: Mapping[str, str] | None = None,
    *,
    checksums: bool = False,
) -> str:
    """Write float32 arrays by name, with text by name in the header. Atomic.

    With `checksums` the metadata get them, and the header's is returned, which covers the whole file; else "".
    """
    header: dict[str, Any] = {}
    offset = 0
    blocks = []
    for name, array in arrays.items():
        block = np.ascontiguousarray(array, "<f4")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + block.nbytes]}
        offset += block.nbytes
        blocks.append(block.reshape(-1).view(np.uint8).data)
    digest = ""
    texts = dict(metadata or {})
    if checksums:
        each = {name: hashlib.sha256(block).hexdigest() for name, block in zip(header, blocks, strict=True)}
        texts[_ARRAYS] = json.dumps(each)
        texts[_HEADER] = digest = _header_digest(header | {"__metadata__": texts})
    if texts:
        header = {"__metadata__": texts, **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_LIMIT:
        raise CheckpointError(f"{path}: names and settings have {len(text)} bytes; allowed: {_HEADER_LIMIT}")
    files.write_atomically(path, struct.pack("<Q", len(text)), text, *blocks)
    return digest


def content(path: str) -> bytes:
    """The bytes of a regular file; CheckpointError: missing or unreadable."""
    try:
        return files.content(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _header(path: str, content: bytes) -> tuple[dict[str, Any], int]:
    """(the header, where the arrays begin)."""
    if len(content) < 8:
        raise CheckpointError(f"{path}: truncated: {len(content)} bytes are no safetensors file")
    (length,) = struct.unpack("<Q", content[:8])
    if length > _HEADER_LIMIT:
        raise CheckpointError(f"{path}: no safetensors file: it says that its header has {length} bytes")
    if 8 + length > len(content):
        raise CheckpointError(f"{path}: truncated: the header alone has {length} bytes, the file {len(content)}")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no safetensors file: its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: no safetensors file: its header is no JSON object")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError(f"{path}: its metadata are not an object of texts")
    return header, 8 + length


def _sizes(value: Any) -> list[int]:
    """A list of integers of at least 0; TypeError."""
    if not isinstance(value, list) or not all(type(one) is int and one >= 0 for one in value):
        raise TypeError
    return value


def _array(path: str, name: str, entry: Any, content: bytes, base: int) -> tuple[NDArray[Any], int, int]:
    """(an array on the bytes of the file, where it begins, where it ends)."""
    try:
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(_sizes(entry["shape"]))
        begin, end = _sizes(entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {name}: an entry of the header that is not understood: {str(entry)[:200]}"
        ) from error
    if len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(f"{path}: {name}: {len(shape)} dimensions; allowed: at most {_MAX_DIMENSIONS}")
    count = math.prod(shape)
    if end - begin != count * dtype.itemsize:
        raise CheckpointError(f"{path}: {name}: {end - begin} bytes for shape {shape} of {entry['dtype']}")
    if base + end > len(content):
        raise CheckpointError(f"{path}: truncated: {name} ends at byte {base + end}, the file at {len(content)}")
    try:
        return np.frombuffer(content, dtype, count, base + begin).reshape(shape), base + begin, base + end
    except ValueError as error:  # a dimension beyond NumPy's limit, beside one of 0
        raise CheckpointError(f"{path}: {name}: shape {shape}: {error}") from error


def _check_places(path: str, places: Mapping[str, tuple[int, int]], base: int, size: int) -> None:
    """CheckpointError unless every byte after the header belongs to one array, as the format demands."""
    last = base
    for name, (begin, end) in sorted(places.items(), key=lambda one: one[1]):
        if begin != last:
            what = "overlaps the array before it" if begin < last else "leaves bytes before it that are no array's"
            raise CheckpointError(f"{path}: {name} begins at byte {begin}, which {what}; wanted {last}")
        last = end
    if last < size:
        raise CheckpointError(f"{path}: {size - last} bytes behind the last array")


def _check_array(path: str, name: str, array: NDArray[Any], digests: Mapping[str, Any]) -> None:
    if hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest() != digests.get(name):
        raise CheckpointError(f"{path}: {name} is damaged: its bytes do not have the checksum they were saved with")


def _digests(path: str, header: Mapping[str, Any], metadata: Mapping[str, str], needed: bool) -> dict[str, Any]:
    """The arrays' checksums, after verifying the header's own; empty without checksums."""
    if _HEADER not in metadata and _ARRAYS not in metadata and not needed:
        return {}
    if metadata.get(_HEADER) != _header_digest(header):
        raise CheckpointError(f"{path}: its header is damaged: it does not have the checksum that it was saved with")
    digests = json.loads(metadata[_ARRAYS])
    assert isinstance(digests, dict)
    return digests


def read(path: str | os.PathLike[str], *, checksums: bool = False) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """(arrays by name in the file's order, metadata). CheckpointError: missing, truncated or not of this format.

    Checksums are verified if the file has them; with `checksums` a file without is an error.
    """
    path = os.fspath(path)
    whole = content(path)
    header, base = _header(path, whole)
    metadata: dict[str, str] = header.get("__metadata__", {})
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    found = {name: _array(path, name, entry, whole, base) for name, entry in entries.items()}
    _check_places(path, {name: (begin, end) for name, (_, begin, end) in found.items()}, base, len(whole))
    if checksums and "__metadata__" not in header:
        raise CheckpointError(f"{path}: without checksums")
    digests = _digests(path, header, metadata, checksums)
    arrays = {}
    for name, (array, _, _) in found.items():
        if digests:
            _check_array(path, name, array, digests)
        arrays[name] = elements.decoded(_ELSEWHERE.get(entries[name]["dtype"], ""), array)
    return arrays, metadata


def header_digest(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> str:
    """The checksum of a file with these metadata from `read`, as `write` returned it; CheckpointError: none."""
    if _HEADER not in metadata:
        raise CheckpointError(f"{os.fspath(path)}: without checksums")
    return metadata[_HEADER]
