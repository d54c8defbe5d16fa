"""Tables: CSV files, plain or gzip, with or without a header, data frames, and NPZ files of NumPy."""

from __future__ import annotations

import csv as csv_module
import gzip
import io
import itertools
import math
import operator
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data.arrays import Dataset
from gossipgrad.data.checks import PIECE, check_finite
from gossipgrad.data.classes import check_alike, names_of
from gossipgrad.errors import LARGEST, DataError, counted, did_you_mean, flag, listed, number, warn
from gossipgrad.launch.terminal import Bar
from gossipgrad.state import files

Path_ = str | os.PathLike[str]
Columns = str | int | Sequence[str | int]
Row = tuple[int, Sequence[str]]  # the number of its first line, and its fields

FIELDS = 1 << 18  # converted together
DELIMITERS = ",;\t|"
LISTED = 5  # rows that a message names
_MISSING = frozenset(("", "na", "n/a", "<na>", "nan", "nat", "null", "none", "?"))


# ---- rows


@dataclass
class _Table:
    """Names of the columns, and rows that are read on demand."""

    where: str  # for messages
    unit: str  # of a row's number: "line", "row"
    names: list[str]
    header: bool  # True if columns have names of their own
    rows: Iterator[Row]

    def __post_init__(self) -> None:
        self.place = {name: i for i, name in enumerate(self.names)}

    def index(self, column: Any, argument: str) -> int:
        """A column's number."""
        if isinstance(column, str):
            if column in self.place:
                return self.place[column]
            hint = did_you_mean(column, self.names)
            if not self.header:
                hint = "; the file has no line of names: a column is a number, the first one 0"
            there = listed(self.names)
            raise DataError(f"{argument}={column!r}: {self.where} has no such column; it has {there}{hint}")
        if isinstance(column, (bool, np.bool_)) or not hasattr(column, "__index__"):
            raise TypeError(f"{argument}={column!r}: allowed: the name of a column, its number, or a list of these")
        at, count = int(column.__index__()), len(self.names)
        if not -count <= at < count:
            raise DataError(f"{argument}={at}: {self.where} has columns 0..{count - 1}")
        return at % count

    def indices(self, columns: Columns, argument: str) -> list[int]:
        several = list(columns) if isinstance(columns, (list, tuple)) else [columns]
        found = [self.index(one, argument) for one in several]
        if not found or len(set(found)) < len(found):
            raise ValueError(f"{argument}={columns!r}: allowed: at least one column, each once")
        return found

    def same(self, columns: list[int]) -> list[str | int]:
        """These columns in another file: by their names, which may be digits, or without names by number."""
        return [self.names[i] if self.header else i for i in columns]


def _text(file: IO[bytes]) -> IO[str]:
    """A file, plain or gzip, as text whose lines have their ends, \\n, \\r or both."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    content: Any = gzip.GzipFile(fileobj=file) if packed else file
    return io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline="")


def _checked(text: Iterable[str], path: Path) -> Iterator[str]:
    for number_, line in enumerate(text, 1):
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{path}: line {number_}: no utf-8 text") from error
        yield line


def _rows(lines: Iterable[str], delimiter: str, path: Path) -> Iterator[Row]:
    """The rows of these lines; empty lines are none. A field too long for the reader is an error, which bounds the cost
    of an unclosed quote.
    """
    reader = csv_module.reader(lines, delimiter=delimiter)
    begin = 1
    try:
        for fields in reader:
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield begin, fields
            begin = reader.line_num + 1
    except csv_module.Error as error:
        raise DataError(f"{path}: line {begin}: {error}; is a quote not closed?") from error


def _of_file(path: Path, text: Iterable[str], delimiter: str | None, header: bool | None) -> _Table:
    """The lines of a CSV file."""
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(f"delimiter={delimiter!r}: allowed: one character, or None to find it")
    lines, head = _checked(text, path), []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    if delimiter is None:
        delimiter = max(DELIMITERS, key=head[-1].count) if head else ","
    rows = _rows(itertools.chain(head, lines), delimiter, path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: empty; wanted rows of numbers")
    line_, fields = first
    if header is None:
        header = not any(map(_is_number, fields))
    if not header:
        return _Table(str(path), "line", [str(i) for i in range(len(fields))], False, itertools.chain([first], rows))
    names = [field.strip() for field in fields]
    double = sorted(name for name, count in Counter(names).items() if count > 1)
    if double:
        raise DataError(f"{path}: line {line_}: several columns have the name {listed(map(repr, double))}")
    second = next(rows, None)
    if second is None:
        raise DataError(f"{path}: no rows, only the names of columns in line {line_}")
    return _Table(str(path), "line", names, True, itertools.chain([second], rows))


def _is_frame(source: Any) -> bool:
    """True for a data frame of pandas, polars or a similar library; none is imported."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def _of_frame(frame: Any) -> _Table:
    keys = list(frame.columns)
    if not keys or len(set(map(str, keys))) < len(keys):
        raise ValueError(f"path: a data frame with columns {listed(map(repr, keys))}; allowed: one at least, each once")

    def texts(key: Any) -> list[str]:
        column = np.asarray(frame[key])
        return [str(one) for one in (column.astype(np.uint8) if column.dtype == np.bool_ else column).tolist()]

    rows = enumerate(zip(*map(texts, keys), strict=True), 1)
    return _Table(f"the {type(frame).__name__}", "row", [str(key) for key in keys], True, rows)


# ---- fields


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _wrong(text: str) -> str | None:
    """The fault of a number's text; None: none."""
    if text.strip().lower() in _MISSING:
        return f"{text.strip()!r}, not a number" if text.strip() else "missing"
    if not _is_number(text):
        return f"{text.strip()!r}, not a number"
    value = float(text)
    if not math.isfinite(value):
        return f"{text.strip()!r}, not a finite number"
    return f"{text.strip()}, too large for float32" if abs(value) > LARGEST else None


class _Reader:
    """The chosen columns of a table, checked: numbers, and one label, whose type all of its fields decide."""

    def __init__(self, table: _Table, label: Columns, features: Columns | None, strict: bool) -> None:
        self.table, self.strict = table, strict
        self.labels = table.indices(label, "label")
        labels = set(self.labels)
        if features is None:
            self.features = [i for i in range(len(table.names)) if i not in labels]
        else:
            self.features = table.indices(features, "features")
            both = [table.names[i] for i in self.features if i in labels]
            if both:
                raise ValueError(f"features: {both[0]!r} is the label too; allowed: one of both")
        if not self.features:
            raise DataError(f"{table.where}: no column beside the label; wanted one feature at least")
        self.label = None if isinstance(label, (list, tuple)) else self.labels[0]  # None: several columns of numbers
        self.numeric = self.features + (self.labels if self.label is None else [])
        self.hint = "; features=[...] chooses columns" if features is None else ""
        self.values: list[NDArray[np.float64]] = []
        self.kinds: dict[str, int] = {}  # the different fields of the label, in their order of appearance
        self.codes: list[NDArray[np.int64]] = []
        self.lines: list[NDArray[np.int64]] = []
        self.skipped: list[tuple[int, str]] = []

    def read(self, read: Callable[[], None] = lambda: None) -> None:
        """All rows, in pieces; `read` is called after each."""
        rows = max(1, FIELDS // len(self.table.names))
        while piece := list(itertools.islice(self.table.rows, rows)):
            self._add(piece)
            read()

    def _add(self, rows: list[Row]) -> None:
        values = self._fast(rows)
        if values is None:
            rows, values = self._slow(rows)
        self.values.append(values)
        self.lines.append(np.array([line for line, _ in rows], np.int64))
        if self.label is not None:
            texts = (fields[self.label].strip() for _, fields in rows)
            self.codes.append(np.array([self.kinds.setdefault(text, len(self.kinds)) for text in texts], np.int64))

    def _fast(self, rows: list[Row]) -> NDArray[np.float64] | None:
        """All rows at once; None if any field of any row is invalid."""
        width = len(self.table.names)
        if any(len(fields) != width for _, fields in rows):
            return None
        pick: Any = operator.itemgetter(*self.numeric)
        chosen = [pick(fields) for _, fields in rows]
        if len(self.numeric) == 1:
            chosen = [(field,) for field in chosen]
        try:
            values = np.array([list(map(float, fields)) for fields in chosen])
        except ValueError:
            return None
        plain = not any("_" in "".join(fields) for fields in chosen)  # float("1_0") is 10
        return values if plain and (np.abs(values) <= LARGEST).all() else None

    def _slow(self, rows: list[Row]) -> tuple[list[Row], NDArray[np.float64]]:
        """Row by row: invalid rows are an error that names the line, or are left out."""
        names, good = self.table.names, []
        for line, fields in rows:
            if len(fields) != len(names):
                found = counted(len(fields), "field")
                self._bad(line, f"{found}; wanted {len(names)}, as many as there are columns")
                continue
            wrong = ((i, _wrong(fields[i])) for i in self.numeric)
            first = next(((i, words) for i, words in wrong if words is not None), None)
            if first is None:
                good.append((line, fields))
            else:
                i, words = first
                self._bad(line, f"column {names[i]!r} is {words}", self.hint if i in self.features else "")
        values = [[float(fields[i]) for i in self.numeric] for _, fields in good]
        return good, np.array(values, np.float64).reshape(-1, len(self.numeric))

    def _bad(self, line: int, words: str, hint: str = "") -> None:
        if self.strict:
            raise DataError(
                f"{self.table.where}: {self.table.unit} {line}: {words}{hint} "
                "(strict=False, --no-strict on the command line, skips such rows)"
            )
        self.skipped.append((line, words))

    def result(self, classes: Sequence[str] | None) -> tuple[NDArray[np.float64], NDArray[Any], list[str] | None]:
        """(features (n, k), targets (n,) or (n, m), names of the classes)"""
        table = np.concatenate(self.values or [np.empty((0, len(self.numeric)))])
        targets, names = table[:, len(self.features) :], None
        if self.label is not None:
            good, targets, names = self._label(classes)
            table = table if good.all() else table[good]
        if self.skipped:
            self.skipped.sort()
            shown = [f"{self.table.unit} {line}: {words}" for line, words in self.skipped[:LISTED]]
            more = f"; and {len(self.skipped) - LISTED} more" if len(self.skipped) > LISTED else ""
            warn(f"{self.table.where}: {counted(len(self.skipped), 'row')} skipped: {'; '.join(shown)}{more}")
        if not len(table):
            raise DataError(f"{self.table.where}: no rows" + (", all were skipped" if self.skipped else ""))
        return np.ascontiguousarray(table[:, : len(self.features)]), np.ascontiguousarray(targets), names

    def _label(self, classes: Sequence[str] | None) -> tuple[NDArray[np.bool_], NDArray[Any], list[str] | None]:
        """(mask of rows that have a label, their targets, names of the classes): by all fields of the column."""
        codes, lines = (np.concatenate(one or [np.empty(0, np.int64)]) for one in (self.codes, self.lines))
        kinds, name = list(self.kinds), self.table.names[self.labels[0]]
        known = [kind.lower() not in _MISSING for kind in kinds]
        digits = [_is_number(kind) for kind in kinds]
        numbers = np.array([k and d for k, d in zip(known, digits, strict=True)], bool)[codes]
        texts = np.array([k and not d for k, d in zip(known, digits, strict=True)], bool)[codes]
        if classes is None and self.strict and texts.any() and numbers.any():
            one, other = int(np.argmax(numbers)), int(np.argmax(texts))
            unit = self.table.unit
            raise DataError(
                f"{self.table.where}: column {name!r} has numbers, as {kinds[codes[one]]!r} in {unit} {lines[one]}, "
                f"and text, as {kinds[codes[other]]!r} in {unit} {lines[other]}; allowed: one of both, or "
                "classes=[...], which names classes that may be numbers"
            )
        of_text = classes is not None or texts.sum() > numbers.sum()
        wrong = [(None if kind else "missing") if of_text else _wrong(kind) for kind in kinds]  # "None" may be a name
        bad = np.array([words is not None for words in wrong], bool)[codes]
        for row in np.flatnonzero(bad).tolist():
            self._bad(int(lines[row]), f"column {name!r} is {wrong[codes[row]]}")
        if not of_text:
            values = np.array([0.0 if words else float(kind) for kind, words in zip(kinds, wrong, strict=True)])
            return ~bad, values[codes[~bad]], None
        return ~bad, self._classes(kinds, codes[~bad], lines[~bad], classes), self.names

    def _classes(
        self, kinds: list[str], codes: NDArray[np.int64], lines: NDArray[np.int64], classes: Sequence[str] | None
    ) -> NDArray[np.int32]:
        """The class of each row; `names` receives the classes' names."""
        self.names = sorted(kinds[code] for code in set(codes.tolist())) if classes is None else list(classes)
        place = {name: i for i, name in enumerate(self.names)}
        found = np.array([place.get(kind, -1) for kind in kinds], np.int32)[codes]
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            row = int(unknown[0])
            raise DataError(
                f"{self.table.where}: {self.table.unit} {lines[row]} has the label {kinds[codes[row]]!r}, which is "
                f"none of the classes; they are {listed(map(repr, self.names))}"
            )
        return found


@dataclass
class _Read:
    """The content of a table: features (n, k), targets (n,) or (n, m), names of classes, columns in another table."""

    x: NDArray[np.float64]
    y: NDArray[Any]
    classes: list[str] | None
    label: Columns
    features: Columns

    def dataset(self, name: str) -> Dataset:
        made = Dataset(self.x, self.y, name=name)
        made.classes = self.classes
        return made


def _read(
    source: Any,
    label: Columns,
    features: Columns | None,
    delimiter: str | None,
    header: bool | None,
    strict: bool,
    classes: Sequence[str] | None,
    progress: bool,
) -> _Read:
    if _is_frame(source):
        reader = _Reader(_of_frame(source), label, features, strict)
        reader.read()
    else:
        path = Path(source)
        bar = Bar(path.name, progress)
        try:
            with files.opened(path) as file, _text(file) as text:
                size = max(os.fstat(file.fileno()).st_size, 1)

                def show() -> None:
                    bar.show(file.tell() / size, f"{file.tell() / 1e6:,.0f} of {size / 1e6:,.0f} MB read")

                reader = _Reader(_of_file(path, text, delimiter, header), label, features, strict)
                reader.read(show)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: {_reason(error)}") from error
        finally:
            bar.close()
    x, y, names = reader.result(classes)
    same = reader.table.same(reader.labels)
    return _Read(x, y, names, same if reader.label is None else same[0], reader.table.same(reader.features))


def _reason(error: BaseException) -> str:
    if isinstance(error, IsADirectoryError):
        return "is a folder; allowed: a file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"truncated or damaged: {error}"


# ---- standardisation


def standardize(train: Dataset, *others: Dataset) -> tuple[Dataset, ...]:
    """These sets with each feature's mean 0 and standard deviation 1 in the first of them, the training part.

    Samples are float arrays (n, ...), and a feature is a place in a sample. One that never changes becomes 0. The
    result has `standardization`, a pair (mean, deviation) of float64 arrays in the shape of a sample: apply
    (x - mean) / deviation to new samples. All is computed in float64, from the original float64 samples, so that
    features far from 0, as times in seconds, keep their differences. The result has scale 1 and shift 0, and copies
    the samples. ValueError: a set with several inputs or targets, or with samples of another type.
    """
    for one in (train, *others):
        _check_single(one)
        check_alike(one.name, one.class_names, "the training part", train.class_names)
    mean, deviation = moments(train._unrounded())
    return tuple(_standardized(one, mean, deviation) for one in (train, *others))


def _pieces(samples: NDArray[Any]) -> Iterator[slice]:
    rows = max(1, (1 << 22) // max(1, samples[:1].nbytes))
    return (slice(begin, begin + rows) for begin in range(0, len(samples), rows))


def moments(samples: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(mean, standard deviation) of each place in a sample; a deviation of 0 is given as 1."""
    pieces = [samples[piece] for piece in _pieces(samples)]
    mean = np.asarray(sum(piece.sum(axis=0, dtype=np.float64) for piece in pieces) / len(samples))
    square = sum(((piece - mean) ** 2).sum(axis=0) for piece in pieces) / len(samples)
    deviation = np.sqrt(square)
    # A feature that is constant, up to rounding, has no deviation to divide by.
    constant = np.logical_and.reduce([(piece == samples[0]).all(axis=0) for piece in pieces])
    constant |= deviation <= np.finfo(samples.dtype).eps * np.abs(mean)
    return mean, np.where(constant, 1.0, deviation)


def _check_single(one: Dataset) -> None:
    inputs, targets = 1 + len(one._others), len(one.target_shapes)
    if inputs > 1 or targets > 1:
        raise ValueError(
            f"standardize: {one.name} has {counted(inputs, 'input')} and {counted(targets, 'array')} of targets; "
            "allowed: one of each"
        )


def _standardized(one: Dataset, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> Dataset:
    if one.dtype != np.float32 or one.shape != mean.shape:
        raise ValueError(
            f"standardize: {one.name} has samples {one.shape} of {one.dtype}; allowed: floats of {mean.shape}"
        )
    samples = one._unrounded()
    made = np.empty(samples.shape, np.float32)
    for piece in _pieces(samples):
        made[piece] = (samples[piece] - mean) / deviation
    result = Dataset(made, one.targets, sample_weight=one.sample_weight, name=one.name)
    result.classes, result.standardization = one.classes, (mean, deviation)
    return result


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
    path: Any,
    label: Columns,
    *,
    test: Any = None,
    features: Columns | None = None,
    classes: Sequence[str] | None = None,
    standardize: bool | Dataset = False,
    delimiter: str | None = None,
    header: bool | None = None,
    strict: bool = True,
    seed: int = 0,
    progress: bool = True,
    name: str | None = None,
) -> Any:
    """The Dataset of a CSV file, plain or gzip: samples (n, features) as float32, targets (n,); or (train, test).

    path         the file, or a data frame, as of pandas or polars.
    label        the column of the targets, by its name or number (-1: the last). Text becomes the classes 0, 1, ... in
                 alphabetical order; the set's `classes` has their names. All fields of the column decide if it is text
                 or numbers; a mixture is an error. A list of columns: targets (n, m), numbers.
    test         another table with these columns, or a share in 0..1 of the rows, drawn by the seed: the result is
                 (train, test).
    features     the columns of the samples; None: all but the label.
    classes      names of the allowed labels, in their order, as those of the training part for another table:
                 test.classes == train.classes. Labels that look like numbers are then names.
    standardize  True: each feature gets mean 0 and deviation 1 in the training part; see gossipgrad.data.standardize.
                 A Dataset: with its mean and deviation.
    delimiter    None: the most frequent of , ; tab | in the first line.
    header       True if the first line names the columns; None: it does if no field in it is a number.
    strict       True: a row with another number of fields, or with a field that is missing, NaN or no number, is an
                 error that names the line and the column. False: such rows are skipped, and a warning counts them; most
                 fields of the label decide if it is text or numbers.

    Numbers are read as float64, for gossipgrad.data.standardize, and become float32 for training. DataError: damaged
    files, missing columns, rows as above. Shows a progress bar if `progress`.
    """
    how = (delimiter, header, flag("strict", strict))
    first = _read(path, label, features, *how, names_of(classes), progress)
    train = first.dataset(name or _stem(path))
    if test is None:
        return _standardize_as(standardize, train, ())[0]
    if isinstance(test, (str, os.PathLike)) or _is_frame(test):
        second = _read(test, first.label, first.features, *how, first.classes, progress)
        if first.classes is None and second.classes is not None:
            raise DataError(
                f"{_stem(test) if _is_frame(test) else test}: label={label!r} is text, as {second.classes[0]!r}; "
                "allowed: numbers, which it is in the training part"
            )
        return _standardize_as(standardize, train, (second.dataset(name or _stem(test)),))
    rest, part = train.split(1.0 - number("test", test, above=0.0, below=1.0), seed=seed)
    return _standardize_as(standardize, rest, (part,))


def _stem(path: Any) -> str:
    if _is_frame(path):
        return type(path).__name__
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

    Files that hold Python objects are refused, because reading them would run their content. An array larger than
    memory is not for an NPZ file but a .npy one: gg.data.Dataset(numpy.load("x.npy", mmap_mode="r"), y). DataError:
    damaged files, missing arrays, different lengths, or elements that are not finite.
    """
    path = Path(path)
    if (samples is None) != (targets is None):
        raise ValueError("samples, targets: allowed: the names of both arrays, or none of both")
    try:
        wanted, arrays = _read_npz(path, samples, targets, progress)
    except DataError:
        raise
    except Exception as error:  # a forged header may raise anything
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
    there = listed(present)
    if samples is not None and targets is not None:
        for argument, one in (("samples", samples), ("targets", targets)):
            if one not in present:
                raise DataError(f"{argument}={one!r}: {path} has {there}{did_you_mean(one, present)}")
        return samples, targets
    if all(one in present for one in _PARTS):
        return _PARTS
    for pair in _PAIRS:
        if all(one in present for one in pair):
            return pair
    raise DataError(f"{path}: it has {there}; samples= and targets= name the arrays to use")


def _read_npz(
    path: Path, samples: str | None, targets: str | None, progress: bool
) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """(names, arrays) of the samples and targets of each part."""
    bar, done = Bar(path.name, progress), 0

    def show(count: int) -> None:
        nonlocal done
        done += count
        bar.show(done / max(size, 1), f"{done / 1e6:,.0f} of {size / 1e6:,.0f} MB read")

    try:
        with files.opened(path) as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise DataError(f"{path}: one array, no NPZ file of several; gg.data.Dataset(x, y) is made of two")
            archive = zipfile.ZipFile(file)
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            wanted = _names(path, list(members), samples, targets)
            size = sum(members[one].file_size for one in wanted)
            return wanted, [_array(f"{path}: {one}", archive, members[one], show) for one in wanted]
    finally:
        bar.close()


def _array(what: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, show: Callable[[int], None]) -> NDArray[Any]:
    """A member of an NPZ file. Its header is compared with its size before memory is allocated."""
    file: Any
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if dtype.hasobject:
            raise DataError(f"{what} holds Python objects, which are not read")
        if not shape:
            raise DataError(f"{what} is a single number; wanted an array (n, ...)")
        if file.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise DataError(f"{what} has {member.file_size:,} bytes; its header says {dtype} of shape {shape}")
        array = np.empty(math.prod(shape), dtype)
        content, at = array.view(np.uint8).data, 0
        while count := file.readinto(content[at : at + PIECE]):
            at += count
            show(count)
    if at < len(content):
        raise DataError(f"{what} ends after {at:,} of {len(content):,} bytes")
    return array.reshape(shape, order="F" if fortran else "C")
