"""Files of torch.save, read without PyTorch and without running their content (pickled.py).

Both formats are read: the zip archive (PyTorch 1.6 and later) and the older stream of pickles. Tensors become NumPy
arrays, bfloat16 and float8 as float32, and NumPy's numbers Python's. Whole modules, and other values that are no
tensor, number, text or container, are refused by name: a file of weights is the output of torch.save(net.state_dict(),
path).
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import CheckpointError
from gossipgrad.state import elements, pickled
from gossipgrad.state.pickled import Unreadable

ZIP = b"PK\x03\x04"
STREAM = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the older format's first pickle: its magic number
_PROTOCOL = 1001  # of the older format
_SAVE = "save the weights alone: torch.save(net.state_dict(), path)"

# PyTorch's name of an element type -> (NumPy's, the name of its storages).
_TYPES = {
    "float64": ("f8", "DoubleStorage"), "float32": ("f4", "FloatStorage"), "float16": ("f2", "HalfStorage"),
    "bfloat16": ("u2", "BFloat16Storage"), "int64": ("i8", "LongStorage"), "int32": ("i4", "IntStorage"),
    "int16": ("i2", "ShortStorage"), "int8": ("i1", "CharStorage"), "uint8": ("u1", "ByteStorage"),
    "bool": ("b1", "BoolStorage"), "uint16": ("u2", ""), "uint32": ("u4", ""), "uint64": ("u8", ""),
    "complex64": ("c8", "ComplexFloatStorage"), "complex128": ("c16", "ComplexDoubleStorage"),
    **{name: ("u1", "") for name in elements.FLOAT8},
}  # fmt: skip
_ALIASES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32",
    "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip


class _Type:
    """An element type of PyTorch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(_TYPES[name][0])


class _Storage:
    """Elements one after another. Their bytes come later in the older format."""

    def __init__(self, kind: _Type | None, count: int) -> None:
        self.kind, self.count = kind, count  # no kind: bytes; the tensors know their type
        self.content: bytes | None = None
        self.order: Literal["<", ">"] = "<"

    def array(self, kind: _Type) -> NDArray[Any]:
        assert self.content is not None
        found = np.frombuffer(self.content, kind.dtype.newbyteorder(self.order))
        return elements.decoded(kind.name, found)


class _Tensor:
    """A view of a storage."""

    negative = False  # True for the negative of the stored values, as the imaginary part of a conjugate
    conjugate = False

    def __init__(self, storage: _Storage, kind: _Type, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.storage, self.kind, self.offset, self.shape, self.strides = storage, kind, offset, shape, strides

    def array(self) -> NDArray[Any]:
        whole = self.storage.array(self.kind)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if 0 not in self.shape and last >= len(whole):
            raise Unreadable(f"damaged: a tensor of shape {self.shape} reaches over the end of its storage")
        try:
            if 0 in self.shape:
                return np.zeros(self.shape, whole.dtype)
            steps = [s * whole.itemsize for s in self.strides]
            view = np.lib.stride_tricks.as_strided(whole[self.offset :], self.shape, steps, writeable=False)
            view = np.negative(view) if self.negative else view
            return np.conjugate(view) if self.conjugate else view
        # Sizes beyond NumPy's limit without elements; the negative of a bool.
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise Unreadable(f"damaged: a tensor of shape {self.shape} and strides {self.strides}: {error}") from error


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or not all(type(one) is int and one >= 0 for one in value):
        raise Unreadable(f"damaged: sizes {pickled.shown(value)}")
    return tuple(value)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *others: Any) -> _Tensor:
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2: requires_grad, hooks and marks of the tensor follow."""
    shape, strides = _sizes(shape), _sizes(strides)
    (offset,) = _sizes([offset])
    if not isinstance(storage, _Storage) or storage.kind is None or len(shape) != len(strides) or len(shape) > 32:
        raise Unreadable("damaged: a tensor without a storage")
    found = _Tensor(storage, storage.kind, offset, shape, strides)
    found.negative, found.conjugate = (
        any(isinstance(one, dict) and one.get(mark) is True for one in others) for mark in ("neg", "conj")
    )
    return found


def _typed_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *others: Any) -> _Tensor:
    """torch._utils._rebuild_tensor_v3: the type is the tensor's, after requires_grad and hooks."""
    kind = others[2] if len(others) > 2 else None
    if not isinstance(storage, _Storage) or not isinstance(kind, _Type):
        raise Unreadable("damaged: a tensor without a type")
    found = _tensor(_Storage(kind, 0), offset, shape, strides, *others)
    found.storage = storage
    return found


def _parameter(data: Any, *_: Any) -> Any:
    """torch._utils._rebuild_parameter."""
    return data


_NUMBERS = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())  # as NumPy's dtypes name them
_ORDERS = ["<", ">", "=", "|"]  # no set, because it would hash any value of a file


class _NumberType(pickled.Made):
    """numpy.dtype of one number. The file sets the order of its bytes."""

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or name not in _NUMBERS:
            raise Unreadable(
                f"it holds a NumPy value of type {pickled.shown(name)}, which is not read; allowed: numbers"
            )
        self.dtype = np.dtype(name)

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in _ORDERS:
            raise Unreadable("damaged: a NumPy number without an order of its bytes")
        self.dtype = self.dtype.newbyteorder(state[1])


def _number(kind: Any, content: Any = None) -> Any:
    """numpy._core.multiarray.scalar: the bytes of one number."""
    if not isinstance(kind, _NumberType) or not isinstance(content, bytes) or len(content) != kind.dtype.itemsize:
        raise Unreadable("damaged: a NumPy number of another size than its type's")
    return np.frombuffer(content, kind.dtype)[0].item()


def _bytes(text: Any, codec: Any = None) -> bytes:
    """_codecs.encode, as protocol 2 writes bytes."""
    if not isinstance(text, str) or codec != "latin1":
        raise Unreadable(f"damaged: bytes in the code {pickled.shown(codec)}")
    return text.encode("latin1")


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    """collections.OrderedDict of a list of pairs."""
    pickled.check_keys([key for key, _ in pairs])
    return dict(pairs)


_KINDS = {name: _Type(name) for name in _TYPES}
_KNOWN: dict[str, Any] = {
    "collections.OrderedDict": _ordered,
    "torch.Size": lambda sizes=(): _sizes(sizes),
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._tensor._rebuild_from_type_v2": lambda build, kind, arguments, state: _rebuilt(build, arguments),
    "torch.device": lambda *where: ":".join(map(pickled.shown, where)),
    "torch.nn.parameter.Parameter": lambda data, *_: data,
    "numpy._core.multiarray.scalar": _number,
    "numpy.core.multiarray.scalar": _number,
    "numpy.dtype": _NumberType,
    "_codecs.encode": _bytes,
}
_KNOWN |= {f"torch.{name}": kind for name, kind in _KINDS.items()}
_KNOWN |= {f"torch.{name}": _KINDS[kind] for name, kind in _ALIASES.items()}


class _StorageName:
    def __init__(self, kind: _Type | None) -> None:
        self.kind = kind


_KNOWN |= {f"torch.{storage}": _StorageName(_KINDS[name]) for name, (_, storage) in _TYPES.items() if storage}
_KNOWN |= {"torch.storage.UntypedStorage": _StorageName(None), "torch.UntypedStorage": _StorageName(None)}


def _rebuilt(build: Any, arguments: Any) -> Any:
    if not isinstance(build, pickled.Name) or not isinstance(arguments, tuple):
        raise Unreadable("damaged: a tensor without a way to build it")
    return build.value(*arguments)


class _Storages:
    """The storages by their keys, as the pickle names them."""

    def __init__(self) -> None:
        self.by_key: dict[str, _Storage] = {}
        self.views = False

    def of(self, name: Any) -> _Storage:
        """The storage of the persistent id ("storage", class, key, device, elements)."""
        try:
            what, kind, key, _, count = name[:5]
        except (TypeError, ValueError) as error:
            raise Unreadable(f"damaged: {pickled.shown(name)} is no storage") from error
        if what != "storage" or not isinstance(kind, _StorageName) or not isinstance(key, str):
            raise Unreadable(f"damaged: {pickled.shown(what)} is no storage")
        self.views = self.views or (len(name) > 5 and name[5] is not None)
        return self.by_key.setdefault(key, _Storage(kind.kind, _sizes([count])[0]))


def _leaf(value: Any) -> Any:
    """An array in place of a tensor."""
    if isinstance(value, _Tensor):
        return value.array()
    return None if isinstance(value, (pickled.Name, _StorageName, _Storage, _NumberType)) else value


def _from_zip(content: bytes) -> Any:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        names = archive.namelist()
        pickles = [name for name in names if name.count("/") <= 1 and name.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise Unreadable("a zip archive without a data.pkl, so not one of torch.save")
        folder = pickles[0][: -len("data.pkl")]
        if any(name.startswith((f"{folder}code/", f"{folder}constants.pkl")) for name in names):
            raise Unreadable(f"a TorchScript program; {_SAVE}")
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                raise Unreadable(f"damaged: {entry.filename} is compressed, which torch.save does not do")
        if sum(entry.file_size for entry in archive.infolist()) > len(content):
            raise Unreadable("damaged: its entries overlap")
        order = archive.read(f"{folder}byteorder").strip() if f"{folder}byteorder" in names else b"little"
        storages = _Storages()
        found = pickled.read(archive.read(pickles[0]), _KNOWN, storages.of)
        for key, storage in storages.by_key.items():
            storage.content = archive.read(f"{folder}data/{key}")
            storage.order = ">" if order == b"big" else "<"
            _check_size(key, storage)
    except Unreadable:
        raise
    # ValueError: names that are no text, places before the file's beginning.
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise Unreadable(f"damaged or truncated: {error}") from error
    return pickled.converted(found, _leaf)


def _check_size(key: str, storage: _Storage) -> None:
    assert storage.content is not None
    wanted = storage.count * (storage.kind.dtype.itemsize if storage.kind else 1)
    if len(storage.content) != wanted:
        raise Unreadable(f"damaged: storage {key} has {len(storage.content)} bytes; wanted {wanted}")


def _from_stream(file: IO[bytes]) -> Any:
    pickled.read(file, {})  # skips the magic number
    if pickled.read(file, {}) != _PROTOCOL:
        raise Unreadable("another version of PyTorch's older format")
    machine = pickled.read(file, {})
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Unreadable("saved on a machine of another byte order")
    storages = _Storages()
    found = pickled.read(file, _KNOWN, storages.of)
    if storages.views:
        raise Unreadable("storages that are parts of others, as in PyTorch 0.3; save it again with a newer PyTorch")
    keys = pickled.read(file, {})
    for key in keys if isinstance(keys, list) else []:
        storage, head = storages.by_key.get(key) if isinstance(key, str) else None, file.read(8)
        if storage is None or len(head) != 8 or struct.unpack("<q", head)[0] != storage.count:
            raise Unreadable(f"damaged or truncated: storage {pickled.shown(key)}")
        storage.content = file.read(storage.count * (storage.kind.dtype.itemsize if storage.kind else 1))
        _check_size(key, storage)
    missing = [key for key, storage in storages.by_key.items() if storage.content is None]
    if missing:
        raise Unreadable(f"damaged: without storage {missing[0]!r}")
    return pickled.converted(found, _leaf)


def is_one(head: bytes) -> bool:
    """True if these are the first bytes of such a file."""
    return head.startswith((ZIP, STREAM))


def read(path: str, content: bytes) -> Any:
    """The object that torch.save wrote, with arrays for tensors. CheckpointError: damaged, or with more than data in
    it."""
    reader: Callable[[], Any] = lambda: _from_zip(content)  # noqa: E731
    if content.startswith(STREAM):
        reader = lambda: _from_stream(io.BytesIO(content))  # noqa: E731
    try:
        return reader()
    except Unreadable as error:
        hint = "" if _SAVE in str(error) or "damaged" in str(error) else f"; {_SAVE}"
        raise CheckpointError(f"{path}: {error}{hint}") from error
