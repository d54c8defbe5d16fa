"""Batches from an iterable, as PyTorch's DataLoader, gathered into a set in memory or read as they come."""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data.arrays import Dataset
from gossipgrad.data.checks import fits_int32, samples_array
from gossipgrad.data.source import EVALUATION, Source
from gossipgrad.errors import DataError, flag, integer, plain_array
from gossipgrad.launch.terminal import Bar

MAX_CURSORS = 64  # max open iterators of an epoch, or of evaluation, of a stream


def _array(value: Any, what: str) -> NDArray[Any]:
    """An array from NumPy's, PyTorch's, or a similar one."""
    for step in ("detach", "cpu", "numpy"):
        method = getattr(value, step, None)
        if callable(method) and not isinstance(value, np.ndarray):
            value = method()
    array = plain_array(what, value)
    if array.dtype.kind not in "biuf" or array.ndim < 1:
        raise TypeError(f"{what}: {type(value).__name__} of {array.dtype}; wanted an array (n, ...) of numbers")
    return array


def _pair(batch: Any, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(samples, targets) of one batch."""
    what = f"batch {number}"
    if isinstance(batch, Mapping) or not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list, Mapping)) else ""
        raise TypeError(f"{what}: a {type(batch).__name__}{size}; wanted a pair (samples, targets) of arrays")
    x, y = _array(batch[0], f"{what}: samples"), _array(batch[1], f"{what}: targets")
    if len(x) != len(y):
        raise ValueError(f"{what}: {len(x)} samples but {len(y)} targets")
    return x, y


class _Growing:
    """Batches one after the other in one array, which doubles when it is full."""

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0
        self.array: NDArray[Any] | None = None

    def add(self, piece: NDArray[Any], number: int) -> None:
        if self.array is None:
            self.array = np.empty(piece.shape, piece.dtype)
        if piece.shape[1:] != self.array.shape[1:] or piece.dtype != self.array.dtype:
            raise ValueError(
                f"batch {number}: {self.what} of shape {piece.shape[1:]} and {piece.dtype}; those of the batches "
                f"before are {self.array.shape[1:]} and {self.array.dtype}"
            )
        end = self.count + len(piece)
        if end > len(self.array):
            larger = np.empty((max(end, 2 * len(self.array)), *self.array.shape[1:]), self.array.dtype)
            larger[: self.count] = self.array[: self.count]
            self.array = larger
        self.array[self.count : end] = piece
        self.count = end

    def result(self) -> NDArray[Any]:
        assert self.array is not None
        return self.array[: self.count]


def _gather(iterable: Iterable[Any], name: str, progress: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = _Growing("samples"), _Growing("targets")
    length = _length(iterable)
    bar = Bar(name, progress)
    try:
        for number, batch in enumerate(iterable):
            samples, targets = _pair(batch, number)
            x.add(samples, number)
            y.add(targets, number)
            bar.show((number + 1) / max(length or 0, number + 1), f"{x.count:,} samples")
    finally:
        bar.close()
    if not x.count:
        raise DataError(f"{name}: no batches; an iterator that has been used up gives none")
    return x.result(), y.result()


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except TypeError:
        return None


# ---- read as they come


def _begun(iterable: Iterable[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
    """(iter(iterable), an iterator over its batches), begun with the first batch on a thread made by Python, unlike a
    reader's.

    Processes forked from a foreign thread end with an error in CPython, and a DataLoader takes that for a failure of
    its workers. A generator forks them for its first batch.
    """
    if threading.get_ident() == threading.main_thread().ident:
        batches = iter(iterable)
        return batches, batches
    found: list[tuple[Iterator[Any], Iterator[Any]]] = []
    problems: list[BaseException] = []

    def begin() -> None:
        try:
            batches = iter(iterable)
            found.append((batches, itertools.chain(list(itertools.islice(batches, 1)), batches)))
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    for error in problems:
        raise error
    return found[0]


class _Cursor:
    """One pass through the batches, and its position."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterator, self.batches = _begun(iterable)
        _owners[id(self.iterator)] = self
        self.number = 0
        self.marks: list[int] = []  # after each batch a checksum of all targets so far
        self.begin = self.end = 0  # samples of the batch at hand
        self.read = 0  # samples before this one have been read or skipped
        self.batch: tuple[NDArray[Any], NDArray[Any]] | None = None

    def forward(self, count: int, name: str) -> None:
        try:
            found = next(self.batches, None) if self._own() else None
        except Exception:
            if self._own():
                raise
            found = None  # another thread has begun the iterator anew meanwhile
        if not self._own():
            raise DataError(
                f"{name}: another pass has begun the iterator of this one anew, as a DataLoader gives the same one to "
                "each pass with persistent_workers=True; allowed: an iterator for each pass (each rank of a virtual "
                "cluster, training and evaluation), or stream=False"
            )
        if found is None:
            raise DataError(f"{name}: its batches end after {self.end} samples; samples={count} were announced")
        x, y = _pair(found, self.number)
        fits = x.dtype.kind in "iu" and x.dtype.itemsize > 1 and fits_int32(x)
        x = np.ascontiguousarray(x, np.int32) if fits else samples_array(x, f"batch {self.number}: samples")
        self.batch = x, y
        self.marks.append(zlib.crc32(np.ascontiguousarray(y).data.cast("B"), self.marks[-1] if self.marks else 0))
        self.number += 1
        self.begin, self.end = self.end, self.end + len(self.batch[0])

    def _own(self) -> bool:
        return _owners.get(id(self.iterator)) is self


_owners: weakref.WeakValueDictionary[int, _Cursor] = weakref.WeakValueDictionary()  # the last pass of each iterator


class Stream(Source):
    """A pass through an iterable in each epoch and each evaluation. Each reader has a pass of its own, and reads rows
    in ascending order.
    """

    ordered = True

    def __init__(self, iterable: Iterable[Any], samples: int, name: str) -> None:
        self.iterable, self.count, self.name = iterable, samples, name
        self.passed: dict[int, int] = {}  # of the last epoch: marks by numbers of samples
        self._begin()
        first = _Cursor(iterable)
        first.forward(samples, name)
        self.mark = first.marks[0]  # of the first batch, for comparison between ranks
        assert first.batch is not None
        x, y = first.batch
        self.shape, self.dtype = tuple(x.shape[1:]), x.dtype
        self.target_shape = tuple(y.shape[1:])
        self.target_dtype = np.dtype(np.int32 if y.dtype.kind in "iub" else np.float32)

    def _begin(self) -> None:
        """Start without open passes."""
        self._lock = threading.Lock()
        self._epoch = -2
        self._cursors: list[_Cursor] = []
        self._evaluations: dict[int, _Cursor] = {}  # of each thread that evaluates, the most recently used last

    def _opened(self, floats: bool = False) -> Stream:
        one = copy.copy(self)
        if floats:
            one.target_dtype = np.dtype(np.float32)
        one._begin()
        return one

    def __len__(self) -> int:
        return self.count

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        with self._lock:
            if epoch != self._epoch:
                self._epoch, self._cursors, self._evaluations = epoch, [], {}
                self.passed.clear()
            cursor = self._evaluation_at(int(rows[0])) if epoch == EVALUATION else self._at(int(rows[0]))
            try:
                self._fill(cursor, rows, samples, targets)
            except BaseException:  # a failed iterator is of no more use
                self._cursors = [one for one in self._cursors if one is not cursor]
                self._evaluations = {thread: one for thread, one in self._evaluations.items() if one is not cursor}
                raise
            cursor.read = int(rows[-1]) + 1
            if epoch == EVALUATION and rows[-1] == self.count - 1:
                del self._evaluations[threading.get_ident()]  # at its end an iterator ends its workers

    def _fill(self, cursor: _Cursor, rows: NDArray[Any], samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        at = 0
        while at < len(rows):
            if not cursor.begin <= rows[at] < cursor.end:
                cursor.forward(self.count, self.name)
                self._compare(cursor)
                continue
            here = int(np.searchsorted(rows[at:], cursor.end)) + at
            assert cursor.batch is not None
            x, y = cursor.batch
            fits = self.target_dtype.kind == "f" or y.dtype.kind == "b" or fits_int32(y)
            if x.shape[1:] != self.shape or x.dtype != self.dtype or y.shape[1:] != self.target_shape or not fits:
                raise DataError(
                    f"{self.name}: batch {cursor.number - 1}: samples {x.shape[1:]} of {x.dtype}, targets "
                    f"{y.shape[1:]} of {y.dtype}; those of the first are {self.shape} of {self.dtype}, "
                    f"{self.target_shape} of {self.target_dtype}"
                )
            chosen = rows[at:here] - cursor.begin
            samples[at:here] = x[chosen]
            if targets is not None:
                targets[at:here] = y[chosen]
            at = here

    def _compare(self, cursor: _Cursor) -> None:
        """DataError if another pass of these ranks had other targets up to this batch."""
        self.passed[cursor.end] = cursor.marks[-1]
        for other in (*self._cursors, *self._evaluations.values()):
            if len(other.marks) >= cursor.number and other.marks[cursor.number - 1] != cursor.marks[-1]:
                raise DataError(differs(self.name, f"in batch {cursor.number - 1}"))

    def _evaluation_at(self, row: int) -> _Cursor:
        """The pass of the thread that evaluates; a new one if that is past the row.

        All evaluations are one epoch, so a row before those already read begins the next one. A rank that evaluates a
        part of the samples never reaches the end. The thread's next pass then replaces its pass, or closes it as the
        least recently used one.
        """
        thread = threading.get_ident()
        cursor = self._evaluations.pop(thread, None)
        if cursor is None or cursor.read > row:
            cursor = _Cursor(self.iterable)
        self._evaluations[thread] = cursor
        if len(self._evaluations) > MAX_CURSORS:
            del self._evaluations[next(iter(self._evaluations))]
        return cursor

    def _at(self, row: int) -> _Cursor:
        """The pass nearest before a row; a new one if all are past it."""
        before = [one for one in self._cursors if one.begin <= row]
        if before:
            return max(before, key=lambda one: one.begin)
        if len(self._cursors) >= MAX_CURSORS:
            raise DataError(
                f"{self.name}: rows are not read in ascending order; allowed: parts of a stream that are in its order"
            )
        self._cursors.append(_Cursor(self.iterable))
        return self._cursors[-1]


def differs(name: str, where: str) -> str:
    """The error text for passes that differ."""
    return (
        f"{name}: its passes differ, by the targets {where}, so ranks would train on some samples twice and on others "
        "never; allowed: an order that is the same in each rank's pass (shuffle=False), stream=False, or sharded=True "
        "with an iterable of its own part for each rank"
    )


def from_iterable(
    iterable: Iterable[Any],
    *,
    stream: bool = False,
    samples: int | None = None,
    scale: Any = 1.0,
    shift: Any = 0.0,
    name: str = "iterable",
    progress: bool = True,
) -> Dataset:
    """The Dataset of an iterable of batches, each a pair (samples, targets) of arrays or tensors: PyTorch's DataLoader,
    a generator, a list.

    stream       False: one pass gathers all into memory. The iterable's random choices are then made once; order,
                 shards and resuming are fit's. True: each epoch is a pass of its own, so the iterable must allow
                 several passes. It decides the order, and fit's shuffle has no effect. Each of several ranks passes
                 through all of it for its shard. If passes differ, as with shuffle=True, the targets reveal it, and it
                 is an error. Then, or if that takes too long, give each rank an iterable of its own part
                 (sharded=True).
    samples      of a stream: their number in a pass; None: that of iterable.dataset, as a DataLoader has it.
    scale, shift of the samples in memory, as of Dataset; a stream's batches are used as they are.

    ValueError, TypeError: batches that are no such pairs or differ in shape or type, named by their number.
    """
    if not hasattr(iterable, "__iter__"):
        raise TypeError(f"iterable: a {type(iterable).__name__}; wanted an iterable of batches (samples, targets)")
    if not flag("stream", stream):
        if samples is not None:
            raise ValueError(f"samples={samples!r}: allowed with stream=True")
        x, y = _gather(iterable, name, progress)
        return Dataset(x, y, scale, shift, name=name)
    if iter(iterable) is iterable:
        raise TypeError(
            f"iterable: a {type(iterable).__name__}, which can be gone through once; stream=True wants one that each "
            "epoch can iterate anew, as a list or a DataLoader"
        )
    count = samples if samples is not None else _length(getattr(iterable, "dataset", None))
    if count is None:
        raise ValueError("samples: missing; a stream must say how many samples a pass has")
    for argument, value, plain in (("scale", scale, 1.0), ("shift", shift, 0.0)):
        if np.ndim(value) or value != plain:
            raise ValueError(f"{argument}={value!r}: allowed without stream=True")
    return Dataset(Stream(iterable, integer("samples", count, 1), name))
