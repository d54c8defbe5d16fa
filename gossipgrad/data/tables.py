"""Tables: CSV files, plain or gzip, with a header or without, and NPZ files of NumPy."""

from __future__ import annotations

import csv as csv_module
import gzip
import io
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data.arrays import Dataset
from gossipgrad.data.checks import check_finite
from gossipgrad.errors import LARGEST, DataError, counted, did_you_mean, flag, number, warn

if TYPE_CHECKING:
    from gossipgrad.progress import Bar

Path_ = str | os.PathLike[str]
Columns = str | int | Sequence[str | int]

CHUNK = 1 << 24  # bytes of text that are parsed together
DELIMITERS = ",;\t|"
LISTED = 5  # rows that a message names
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


# ---- the text of a file


@dataclass
class _Text:
    """A CSV file as text in pieces of whole rows, with the number of the first line of each."""

    path: Path
    encoding: str = "utf-8"

    def pieces(self, bar: Bar) -> Iterator[tuple[int, str]]:
        """(number of its first line, text)"""
        size = max(self.path.stat().st_size, 1)
        with open(self.path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            line, rest = 1, b""
            while True:
                piece = file.read(CHUNK)
                content = rest + piece
                cut = _cut(content) if piece else len(content)
                rest = content[cut:]
                if cut:
                    text = self._decode(content[:cut], line)
                    yield line, text.removeprefix("\ufeff") if line == 1 else text
                    line += content.count(b"\n", 0, cut)
                    bar.show(raw.tell() / size, f"{raw.tell() / 1e6:,.0f} of {size / 1e6:,.0f} MB read")
                if not piece:
                    return

    def _decode(self, content: bytes, line: int) -> str:
        try:
            return content.decode(self.encoding)
        except UnicodeDecodeError as error:
            line += content.count(b"\n", 0, error.start)
            raise DataError(f"{self.path}: line {line}: no {self.encoding} text ({error.reason})") from error


def _cut(content: bytes) -> int:
    """Where the last whole row ends; 0: there is none. A line end between quotes ends no row."""
    cut = content.rfind(b"\n") + 1
    while cut and content.count(b'"', 0, cut) % 2:
        cut = content.rfind(b"\n", 0, cut - 1) + 1
    return cut


def _rows(text: str, delimiter: str, line: int) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of the rows of a text that begins in this line; empty lines are none."""
    reader = csv_module.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    before = 0
    for fields in reader:
        begin, before = line + before, reader.line_num
        if fields and not (len(fields) == 1 and not fields[0].strip()):
            yield begin, [field.strip() for field in fields]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _wrong(text: str, numeric: bool) -> str | None:
    """What is wrong with a field; None: nothing."""
    if text.lower() in _MISSING and (numeric or not text):
        return "missing" if not text else f"{text!r}, not a number"
    if not numeric:
        return None
    if not _is_number(text):
        return f"{text!r}, not a number"
    value = float(text)
    if not math.isfinite(value):
        return f"{text!r}, not a finite number"
    return f"{text}, too large for float32" if abs(value) > LARGEST else None


# ---- one file


class _Short(DataError):
    """A text that ends before the first row of data."""


@dataclass
class _Layout:
    """What the first rows of a file say."""

    delimiter: str
    names: list[str]  # of all columns
    header: bool
    first: list[str]  # fields of the first row of data
    first_line: int


def _delimiter(line: str) -> str:
    best = max(DELIMITERS, key=line.count)
    return best if line.count(best) else ","


def _layout(path: Path, text: str, delimiter: str | None, header: bool | None) -> _Layout:
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter={delimiter!r}: allowed: one character, or None to find it")
    head = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = delimiter or _delimiter(head)
    rows = _rows(text, delimiter, 1)
    first = next(rows, None)
    if first is None:
        raise _Short(f"{path}: empty; wanted rows of numbers")
    named = header if header is not None else not any(map(_is_number, first[1]))
    names = first[1] if named else [str(i) for i in range(len(first[1]))]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise DataError(f"{path}: line {first[0]}: several columns have the name {', '.join(map(repr, double))}")
    data = next(rows, None) if named else first
    if data is None:
        raise _Short(f"{path}: no rows, only the names of columns in line {first[0]}")
    return _Layout(delimiter, names, named, data[1], data[0])


def _index(path: Path, layout: _Layout, column: Any, argument: str) -> int:
    if isinstance(column, str):
        if column in layout.names:
            return layout.names.index(column)
        hint = did_you_mean(column, layout.names)
        if not layout.header:
            hint = "; the file has no line of names: a column is a number, the first one 0"
        shown = ", ".join(layout.names[:20]) + (", ..." if len(layout.names) > 20 else "")
        raise DataError(f"{argument}={column!r}: {path} has no such column; it has {shown}{hint}")
    if isinstance(column, (bool, np.bool_)) or not hasattr(column, "__index__"):
        raise TypeError(f"{argument}={column!r}: allowed: the name of a column, its number, or a list of these")
    at, count = int(column.__index__()), len(layout.names)
    if not -count <= at < count:
        raise DataError(f"{argument}={at}: {path} has columns 0..{count - 1}")
    return at % count


def _indices(path: Path, layout: _Layout, columns: Columns, argument: str) -> list[int]:
    several = list(columns) if isinstance(columns, (list, tuple)) else [columns]
    found = [_index(path, layout, one, argument) for one in several]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{argument}={columns!r}: allowed: at least one column, each once")
    return found


@dataclass
class _Columns:
    """The columns of a file that are read: numbers, and one of text or none."""

    layout: _Layout
    features: list[int]
    labels: list[int]
    text: bool  # the label is text

    @property
    def numeric(self) -> list[int]:
        return self.features + ([] if self.text else self.labels)

    def same(self, columns: list[int]) -> Columns:
        """These columns in another file: by their names, which may be digits, or where there are none by number."""
        return [self.layout.names[i] if self.layout.header else i for i in columns]


def _columns(path: Path, layout: _Layout, label: Columns, features: Columns | None, classes: Any) -> _Columns:
    labels = _indices(path, layout, label, "label")
    if features is None:
        chosen = [i for i in range(len(layout.names)) if i not in labels]
    else:
        chosen = _indices(path, layout, features, "features")
        both = [layout.names[i] for i in chosen if i in labels]
        if both:
            raise ValueError(f"features: {both[0]!r} is the label too; allowed: one of both")
    if not chosen:
        raise DataError(f"{path}: no column beside the label; wanted one feature at least")
    if len(layout.first) != len(layout.names):
        raise DataError(_ragged(path, layout.first_line, len(layout.first), len(layout.names)))

    def is_text(column: int) -> bool:
        field = layout.first[column]
        return not _is_number(field) and field.lower() not in _MISSING

    for column in chosen:
        if is_text(column):
            hint = "features=[...] chooses columns" if features is None else "features are numbers"
            raise DataError(
                f"{path}: line {layout.first_line}: column {layout.names[column]!r} is {layout.first[column]!r}, not a "
                f"number; {hint}"
            )
    text = is_text(labels[0]) if classes is None else True
    if text and len(labels) > 1:
        raise DataError(f"{path}: label {layout.names[labels[0]]!r} is text; allowed: one label of text, or numbers")
    return _Columns(layout, chosen, labels, text)


def _ragged(path: Path, line: int, found: int, wanted: int) -> str:
    return f"{path}: line {line}: {counted(found, 'field')}; wanted {wanted}, as many as there are columns"


class _Reader:
    """The rows of one file, checked."""

    def __init__(self, path: Path, columns: _Columns, strict: bool) -> None:
        self.path, self.columns, self.strict = path, columns, strict
        self.values: list[NDArray[np.float32]] = []  # numeric columns
        self.labels: list[NDArray[np.str_]] = []
        self.lines: list[NDArray[np.int64]] = []  # of the labels, where they are text
        self.skipped: list[str] = []
        self.rows = 0

    def add(self, text: str, line: int) -> None:
        """The rows of a text that begins in this line of the file."""
        try:
            values, labels = self._fast(text)
            good = np.isfinite(values).all() and (labels is None or not (labels == "").any())
        except ValueError:
            values, labels, good = np.empty((0, 0), np.float32), None, False
        if not good:
            values, labels = self._slow(text, line)
        if not len(values):
            return
        self.values.append(values)
        self.rows += len(values)
        if labels is not None:
            self.labels.append(labels)

    def _fast(self, text: str) -> tuple[NDArray[np.float32], NDArray[np.str_] | None]:
        """By NumPy's parser; ValueError where any field of any row is not as it should be."""
        width = len(self.columns.layout.names)
        how: dict[str, Any] = {"delimiter": self.columns.layout.delimiter, "quotechar": '"', "comments": None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a text without rows
            if len(self.columns.numeric) == width:
                table = np.loadtxt(io.StringIO(text), np.float32, ndmin=2, **how)
                if len(table) and table.shape[1] != width:
                    raise ValueError("ragged")
                return self._chosen(table), None
            rows = self._even(text, width)
            table = np.loadtxt(io.StringIO(text), np.float32, ndmin=2, usecols=self.columns.numeric, **how)
            labels = None
            if self.columns.text:
                read = np.loadtxt(io.StringIO(text), str, ndmin=1, usecols=self.columns.labels[0], **how)
                labels = np.char.strip(read)
            if len(table) != rows or (labels is not None and len(labels) != rows):
                raise ValueError("rows")
            return table, labels

    def _chosen(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        order = self.columns.numeric
        return table if order == list(range(len(order))) or not len(table) else np.ascontiguousarray(table[:, order])

    def _even(self, text: str, width: int) -> int:
        """The number of rows; ValueError if one has another number of fields, or quotes make them hard to count."""
        content = np.frombuffer(text.encode(), np.uint8)
        delimiter = self.columns.layout.delimiter.encode()
        if len(delimiter) > 1 or (content == ord('"')).any():
            raise ValueError("not plain")
        ends = np.flatnonzero(content == ord("\n"))
        if not len(ends) or ends[-1] != len(content) - 1:
            ends = np.append(ends, len(content))
        begins = np.concatenate([[0], ends[:-1] + 1])
        found = np.diff(np.searchsorted(np.flatnonzero(content == delimiter[0]), np.append(begins, len(content))))
        blank = (ends - begins <= 1) & (found == 0)
        if (found[~blank] != width - 1).any():
            raise ValueError("ragged")
        return int((~blank).sum())

    def _slow(self, text: str, line: int) -> tuple[NDArray[np.float32], NDArray[np.str_] | None]:
        """Row by row: what is wrong in which line; an error, or such rows are left out."""
        names, numeric = self.columns.layout.names, self.columns.numeric
        checked = [*((i, True) for i in numeric), *((i, False) for i in self.columns.labels if self.columns.text)]
        good: list[list[str]] = []
        for at, fields in _rows(text, self.columns.layout.delimiter, line):
            if len(fields) != len(names):
                self._bad(_ragged(self.path, at, len(fields), len(names)))
                continue
            found = ((i, _wrong(fields[i], is_number)) for i, is_number in checked)
            first = next(((i, words) for i, words in found if words is not None), None)
            if first is not None:
                self._bad(f"{self.path}: line {at}: column {names[first[0]]!r} is {first[1]}")
                continue
            good.append(fields)
        values = np.array([[float(row[i]) for i in numeric] for row in good], np.float32).reshape(-1, len(numeric))
        labels = np.array([row[self.columns.labels[0]] for row in good]) if self.columns.text else None
        return values, labels

    def _bad(self, words: str) -> None:
        if self.strict:
            raise DataError(f"{words} (strict=False, --no-strict on the command line, skips such rows)")
        self.skipped.append(words)

    def result(self) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """(features (n, k), labels (n,) or (n, m))"""
        if self.skipped:
            shown = [words.removeprefix(f"{self.path}: ") for words in self.skipped[:LISTED]]
            more = f"; and {len(self.skipped) - LISTED} more" if len(self.skipped) > LISTED else ""
            warn(f"{self.path}: {counted(len(self.skipped), 'row')} skipped: {'; '.join(shown)}{more}")
        if not self.rows:
            raise DataError(f"{self.path}: no rows" + (", all were skipped" if self.skipped else ""))
        table = self.values[0] if len(self.values) == 1 else np.concatenate(self.values)
        self.values = []
        count = len(self.columns.features)
        features = np.ascontiguousarray(table[:, :count])
        if self.columns.text:
            return features, np.concatenate(self.labels)
        numbers = table[:, count:].copy()
        return features, numbers[:, 0] if len(self.columns.labels) == 1 else numbers


def _read(
    path: Path_,
    label: Columns,
    features: Columns | None,
    delimiter: str | None,
    header: bool | None,
    strict: bool,
    classes: list[str] | None,
    progress: bool,
) -> tuple[NDArray[np.float32], NDArray[Any], Columns, Columns, list[str] | None]:
    """(features, targets, the label's columns and the features' in another file, names of the classes)"""
    from gossipgrad.progress import Bar

    path = Path(path)
    reader: _Reader | None = None
    begun, short = "", _Short(f"{path}: empty; wanted rows of numbers")
    bar = Bar(path.name, progress)
    try:
        for line, text in _Text(path).pieces(bar):
            if reader is None:
                begun += text
                try:  # the last row is a piece of its own where no line end follows it
                    layout = _layout(path, begun, delimiter, header)
                except _Short as error:
                    short = error
                    continue
                line, text = 1, begun
                reader = _Reader(path, _columns(path, layout, label, features, classes), strict)
                if layout.header:  # the names are no row
                    begin = _after(text, layout.first_line)
                    line, text = layout.first_line, text[begin:]
            reader.add(text, line)
    except (OSError, EOFError, zlib.error, csv_module.Error) as error:
        raise DataError(f"{path}: {_reason(error)}") from error
    finally:
        bar.close()
    if reader is None:
        raise short
    x, y = reader.result()
    columns = reader.columns
    same = columns.same(columns.labels), columns.same(columns.features)
    if not columns.text:
        return x, y, *same, None
    kinds = np.unique(y) if classes is None else np.array(classes)
    order = np.argsort(kinds)
    place = np.clip(np.searchsorted(kinds[order], y), 0, len(kinds) - 1)
    found = order[place]
    unknown = np.flatnonzero(kinds[found] != y)
    if len(unknown):
        raise DataError(
            f"{path}: row {unknown[0] + 1} has the label {str(y[unknown[0]])!r}, which the training part has not; "
            f"it has {', '.join(map(repr, kinds.tolist()[:20]))}"
        )
    return x, found.astype(np.int32), *same, [str(kind) for kind in kinds]


def _after(text: str, line: int) -> int:
    """Where this line begins in a text that begins in line 1, by the line ends that _rows counts."""
    lines = io.StringIO(text, newline="")
    return sum(len(next(lines)) for _ in range(line - 1))


def _reason(error: BaseException) -> str:
    if isinstance(error, IsADirectoryError):
        return "is a folder; allowed: a file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"truncated or damaged: {error}"


# ---- standardisation


def standardize(train: Dataset, *others: Dataset) -> tuple[Dataset, ...]:
    """These sets with each feature's mean 0 and standard deviation 1 in the first of them, the training part.

    Samples are float32 arrays (n, ...), and a feature is a place in a sample. One that never changes becomes 0. The
    result has `standardization`, a pair (mean, deviation) of float32 arrays in the shape of a sample: new samples are
    made alike by (x - mean) / deviation. Both are of the samples as they are stored, and the result has scale 1 and
    shift 0. Copies the samples. ValueError: a set with several inputs or targets, or with samples of another type.
    """
    for one in (train, *others):
        _check_single(one)
    mean, deviation = moments(train.samples)
    return tuple(_standardized(one, mean, deviation) for one in (train, *others))


def moments(samples: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(mean, standard deviation) of each place in a sample; a deviation of 0 is given as 1."""
    rows = max(1, (1 << 22) // max(1, samples[:1].nbytes))
    pieces = [samples[begin : begin + rows] for begin in range(0, len(samples), rows)]
    mean = sum(piece.sum(axis=0, dtype=np.float64) for piece in pieces) / len(samples)
    square = sum(((piece - mean) ** 2).sum(axis=0) for piece in pieces) / len(samples)
    deviation = np.sqrt(square)
    # A feature that is constant up to rounding has no deviation to divide by.
    constant = deviation <= 1e-7 * np.abs(mean)
    return np.asarray(mean, np.float32), np.where(constant, 1.0, deviation).astype(np.float32)


def _check_single(one: Dataset) -> None:
    inputs, targets = 1 + len(one._others), len(one.target_shapes)
    if inputs > 1 or targets > 1:
        raise ValueError(
            f"standardize: {one.name} has {counted(inputs, 'input')} and {counted(targets, 'array')} of targets; "
            "allowed: one of each"
        )


def _standardized(one: Dataset, mean: NDArray[np.float32], deviation: NDArray[np.float32]) -> Dataset:
    if one.dtype != np.float32 or one.shape != mean.shape:
        raise ValueError(
            f"standardize: {one.name} has samples {one.shape} of {one.dtype}; allowed: float32 of {mean.shape}"
        )
    samples = (one.samples - mean) / deviation
    made = Dataset(samples, one.targets, sample_weight=one.sample_weight, name=one.name)
    made.classes, made.standardization = one.classes, (mean, deviation)
    return made


def _standardize_as(wanted: Any, train: Dataset, others: Sequence[Dataset]) -> tuple[Dataset, ...]:
    """standardize= of csv and npz."""
    if isinstance(wanted, Dataset):
        if wanted.standardization is None:
            raise ValueError(f"standardize: {wanted.name} is not standardised; allowed: True, False, or a set that is")
        for one in (train, *others):
            _check_single(one)
        return tuple(_standardized(one, *wanted.standardization) for one in (train, *others))
    return standardize(train, *others) if flag("standardize", wanted) else (train, *others)


# ---- for users


def csv(
    path: Path_,
    label: Columns,
    *,
    test: Path_ | float | None = None,
    features: Columns | None = None,
    standardize: bool | Dataset = False,
    delimiter: str | None = None,
    header: bool | None = None,
    strict: bool = True,
    seed: int = 0,
    progress: bool = True,
    name: str | None = None,
) -> Any:
    """The Dataset of a CSV file, plain or gzip: samples (n, features) as float32, targets (n,); or (train, test).

    label        the column of the targets, by its name or number (-1: the last). Text becomes the classes 0, 1, ... in
                 alphabetical order, whose names the set has as `classes`. A list of columns: targets (n, m).
    test         another file with the same columns, or a share in 0..1 of the rows, drawn by the seed: the result is
                 (train, test).
    features     the columns of the samples; None: all but the label.
    standardize  True: each feature gets mean 0 and deviation 1 in the training part; see gossipgrad.data.standardize.
                 A Dataset: with its mean and deviation.
    delimiter    None: the most frequent of , ; tab | in the first line.
    header       whether the first line names the columns; None: it does if no field in it is a number.
    strict       True: a row with another number of fields, or with a field that is missing, NaN or no number, is an
                 error that names the line and the column. False: such rows are skipped, and a warning counts them, but
                 for the first one, which says what the columns are.

    DataError: damaged files, columns that are not there, rows as above. Shows a progress bar if `progress`.
    """
    how = (delimiter, header, flag("strict", strict))
    x, y, same_label, same, classes = _read(path, label, features, *how, None, progress)
    train = _made(x, y, classes, name or _stem(path))
    if test is None:
        return _standardize_as(standardize, train, ())[0]
    if isinstance(test, (str, os.PathLike)):
        x, y, _, _, found = _read(test, same_label, same, *how, classes, progress)
        if classes is None and found is not None:
            raise DataError(
                f"{test}: label={label!r} is text, as {found[0]!r}; allowed: numbers, which it is in the training part"
            )
        other = _made(x, y, found, name or _stem(test))
        sets: tuple[Dataset, ...] = (train, other)
    else:
        rest, part = train.split(_complement(test), seed=seed)
        rest.classes = part.classes = classes
        sets = (rest, part)
    return _standardize_as(standardize, sets[0], sets[1:])


def _complement(test: Any) -> float:
    return 1.0 - number("test", test, above=0.0, below=1.0)


def _made(x: NDArray[np.float32], y: NDArray[Any], classes: list[str] | None, name: str) -> Dataset:
    made = Dataset(x, y, name=name)
    made.classes = classes
    return made


def _stem(path: Path_) -> str:
    name = Path(path).name
    for suffix in (".gz", ".csv", ".tsv", ".txt", ".npz"):
        name = name[: -len(suffix)] if name.lower().endswith(suffix) and len(name) > len(suffix) else name
    return name


_PAIRS = (("x", "y"), ("X", "y"), ("samples", "targets"), ("data", "labels"), ("images", "labels"), ("data", "targets"))
_PARTS = ("x_train", "y_train", "x_test", "y_test")


def npz(
    path: Path_,
    samples: str | None = None,
    targets: str | None = None,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
    standardize: bool | Dataset = False,
    progress: bool = True,
    name: str | None = None,
) -> Any:
    """The Dataset of two arrays in an NPZ file; or (train, test), if it has x_train, y_train, x_test and y_test.

    samples, targets  the arrays' names; None: x and y, X and y, samples and targets, data and labels, images and
                      labels, or data and targets.
    scale, shift      as of Dataset: uint8 pixels want scale=1/255.
    standardize       as for csv.

    Files that hold Python objects are not read, because that would run what they contain. An array larger than memory
    is no NPZ file but a .npy one: gg.data.Dataset(numpy.load("x.npy", mmap_mode="r"), y). DataError: damaged files,
    arrays that are not there, of different lengths, or with elements that are not finite.
    """
    path = Path(path)
    if (samples is None) != (targets is None):
        raise ValueError("samples, targets: allowed: the names of both arrays, or none of both")
    try:
        wanted, arrays = _read_npz(path, samples, targets, progress)
    # RuntimeError: members that are encrypted, or compressed in a way that Python has not.
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: {_reason(error)}") from error
    sets = []
    for i in range(0, len(arrays), 2):
        x, y = arrays[i : i + 2]
        if len(x) != len(y) or not len(x):
            raise DataError(f"{path}: {wanted[i]} has {len(x)} samples, {wanted[i + 1]} {len(y)} targets")
        try:
            check_finite(x, f"{path}: {wanted[i]}")
            check_finite(y, f"{path}: {wanted[i + 1]}")
        except ValueError as error:
            raise DataError(str(error)) from None
        sets.append(Dataset(x, y, scale, shift, name=name or _stem(path)))
    made = _standardize_as(standardize, sets[0], sets[1:])
    return made[0] if len(made) == 1 else made


def _names(path: Path, present: list[str], samples: str | None, targets: str | None) -> tuple[str, ...]:
    listed = ", ".join(present)
    if samples is not None and targets is not None:
        for argument, one in (("samples", samples), ("targets", targets)):
            if one not in present:
                raise DataError(f"{argument}={one!r}: {path} has {listed}{did_you_mean(one, present)}")
        return samples, targets
    if all(one in present for one in _PARTS):
        return _PARTS
    for pair in _PAIRS:
        if all(one in present for one in pair):
            return pair
    raise DataError(f"{path}: it has {listed}; samples= and targets= name the arrays to use")


class _Counted:
    """A member of an NPZ file that is being read, and how much of all that is wanted has been."""

    def __init__(self, bar: Bar, size: int) -> None:
        self.bar, self.size, self.done = bar, max(size, 1), 0
        self.file: Any = None

    def read(self, size: int = -1) -> bytes:
        content: bytes = self.file.read(size)
        self.done += len(content)
        self.bar.show(self.done / self.size, f"{self.done / 1e6:,.0f} of {self.size / 1e6:,.0f} MB read")
        return content


def _read_npz(
    path: Path, samples: str | None, targets: str | None, progress: bool
) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """(names, arrays) of the samples and targets of each part."""
    from gossipgrad.progress import Bar

    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        raise DataError(f"{path}: one array, no NPZ file of several; gg.data.Dataset(x, y) is made of two")
    bar = Bar(path.name, progress)
    try:
        with loaded, zipfile.ZipFile(path) as archive:
            wanted = _names(path, list(loaded.files), samples, targets)
            members = [one if one in archive.NameToInfo else f"{one}.npy" for one in wanted]
            reading = _Counted(bar, sum(archive.getinfo(one).file_size for one in members))
            arrays = []
            for name, member in zip(wanted, members, strict=True):
                with archive.open(member) as file:
                    reading.file = file
                    arrays.append(_array(path, reading, name))
            return wanted, arrays
    finally:
        bar.close()


def _array(path: Path, file: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        if "pickle" in str(error).lower() or "object" in str(error).lower():
            raise DataError(f"{path}: {name} holds Python objects, which are not read") from error
        raise
    if array.ndim < 1:
        raise DataError(f"{path}: {name} is a single number; wanted an array (n, ...)")
    return array
