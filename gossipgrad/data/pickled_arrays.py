"""NumPy's arrays in pickles, read without running the file's content."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import DataError
from gossipgrad.state import pickled

_KINDS = "biuf"  # bools, integers, floats


class _Type(pickled.Made):
    """numpy.dtype"""

    def __init__(self, text: Any, *_: Any) -> None:
        if not isinstance(text, str) or len(text) > 8:
            raise ValueError("a dtype that is no text")
        self.dtype = np.dtype(text)
        if self.dtype.kind not in _KINDS:
            raise ValueError(f"an array of {self.dtype}, which is not read")

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ["<", ">", "|", "="]:
            raise ValueError("a dtype without its byte order")
        if state[1] in "<>":
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array(pickled.Made):
    """numpy.ndarray: empty until its state is set."""

    def __init__(self) -> None:
        self.array: NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _Type) or not isinstance(shape, tuple):
            raise ValueError("an array without shape and type")
        if isinstance(content, str):  # Python 2's bytes
            content = content.encode("latin-1")
        sizes = [int(one) for one in shape]
        if min(sizes, default=0) < 0 or not isinstance(content, bytes):
            raise ValueError("an array without its elements")
        if len(content) != math.prod(sizes) * kind.dtype.itemsize:
            raise ValueError(f"an array of shape {tuple(sizes)} with {len(content)} bytes")
        self.array = np.frombuffer(content, kind.dtype).reshape(sizes, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes in an encoding other than latin1")
    return text.encode("latin-1")


def _nothing(*_: Any) -> None:
    raise ValueError("a call of numpy.ndarray, which is not read")


_KNOWN: dict[str, Any] = {"numpy.dtype": _Type, "numpy.ndarray": _nothing, "_codecs.encode": _encode}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _KNOWN[f"{_module}._reconstruct"] = _reconstruct


def read(content: bytes, name: str) -> Any:
    """Dicts, lists, tuples, numbers, text and NumPy's arrays in a pickle. DataError, with `name`: anything else."""
    try:
        return pickled.converted(
            pickled.read(content, _KNOWN),
            lambda one: one.array if isinstance(one, _Array) else one,
            lambda key: key.decode("latin-1") if isinstance(key, bytes) else key,
        )
    except pickled.Unreadable as error:
        raise DataError(f"{name}: {error}") from error
