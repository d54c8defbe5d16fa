"""Data in memory: samples and targets as arrays, checked once, handed to the core without a copy where possible."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gossipgrad import _core
from gossipgrad.data.source import EVALUATION, Source
from gossipgrad.errors import flag, integer, number
from gossipgrad.heads import MAX_FIELDS, Field, Head

if TYPE_CHECKING:
    from gossipgrad.progress import Bar

CLASS_LOSSES = ("cross_entropy",)
PIECE = 1 << 20  # bytes that are looked at together
LARGE = 1 << 30  # bytes of an array whose reading takes seconds


def samples_array(samples: Any, what: str = "samples", integers: bool = False) -> NDArray[Any]:
    """`samples` as a C-contiguous uint8 or float32 array of at least one dimension.

    uint8 and float32 are used as they are; bool becomes uint8; other integers and floats become float32, a copy
    (integers beyond 2^24 are rounded). integers: they become int32, where all fit. TypeError for anything else.
    """
    array = np.asarray(samples)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    elif array.dtype.kind not in "iuf":
        raise TypeError(f"{what}: dtype {array.dtype}; allowed: uint8, float32, and numbers that become float32")
    elif array.dtype not in (np.dtype(np.uint8), np.dtype(np.float32)):
        array = array.astype(np.int32 if integers and _fits_int32(array) else np.float32, copy=False)
    if array.ndim < 1:
        raise ValueError(f"{what}: a single number; wanted an array (n, ...)")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def _fits_int32(array: NDArray[Any]) -> bool:
    """Are they integers that int32 holds?"""
    if array.dtype.kind not in "iu":
        return False
    if np.can_cast(array.dtype, np.int32):
        return True
    limits = np.iinfo(np.int32)
    return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


class MappedArray(Source):
    """A memory map of elements that the core does not read as they are: they are converted as they are read."""

    def __init__(self, array: NDArray[Any], scale: Any, shift: Any) -> None:
        self.array = array
        self.name = "arrays"
        self.shape = tuple(array.shape[1:])
        self.dtype = np.dtype(np.uint8 if array.dtype == np.bool_ else np.int32 if _fits_int32(array) else np.float32)
        self.scale, self.shift = affine("scale", scale, self.shape), affine("shift", shift, self.shape)

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        with np.errstate(over="ignore"):  # the core looks for what is not finite
            samples[...] = self.array[rows]

    @staticmethod
    def wants(samples: Any) -> bool:
        """Is it a memory map that would be copied into memory to be used?"""
        if not isinstance(samples, np.memmap) or samples.ndim < 1 or samples.dtype.kind not in "biuf":
            return False
        kinds = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_))
        return not (samples.dtype in kinds and samples.flags.c_contiguous)


def check_finite(array: NDArray[Any], what: str) -> None:
    """ValueError that names the first entry, along the first axis, which has a NaN or an infinite element, and where.

    Reads the array once, in pieces and without a copy; shows a bar where that takes long. Integers are not read.
    """
    if array.dtype.kind != "f" or not array.size:
        return
    from gossipgrad.progress import Bar

    bar = Bar(what, array.nbytes >= LARGE)
    try:
        _check_pieces(array, what, bar)
    finally:
        bar.close()


def _check_pieces(array: NDArray[Any], what: str, bar: Bar) -> None:
    rows = max(1, PIECE // max(1, array[:1].nbytes))
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(array), rows):
            piece = array[begin : begin + rows]
            bar.show(begin / len(array), f"{begin:,} checked")
            # The sum is not finite if an element is not; a sum that is too large for its type is looked at again.
            if np.isfinite(piece.sum()) or np.isfinite(piece).all():
                continue
            entry, *place = (int(i) for i in np.argwhere(~np.isfinite(piece))[0])
            value = piece[(entry, *place)]
            name = "NaN" if np.isnan(value) else f"{value}"
            found = f"has {name} at {place}" if place else f"is {name}"
            raise ValueError(f"{what}[{begin + entry}] {found}; allowed: finite numbers")


def _numbers(targets: Any, what: str) -> NDArray[Any]:
    array = np.asarray(targets)
    if array.dtype.kind not in "iufb":
        hint = ""
        if array.dtype.kind in "USO" and array.ndim == 1:
            hint = "; names of classes become numbers by np.unique(y, return_inverse=True)[1]"
        raise TypeError(f"{what}: dtype {array.dtype}; wanted numbers{hint}")
    if array.ndim < 1:
        raise ValueError(f"{what}: a single number; wanted an array (n, ...)")
    return array


def _classes(array: NDArray[Any], loss: str, classes: int, what: str) -> NDArray[np.int32]:
    """One class a sample from integers, bools, floats that are whole, or one-hot rows."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    check_finite(array, what)
    if array.ndim == 2 and array.shape[1] == classes:
        wrong = np.flatnonzero(((array != 0) & (array != 1)).any(axis=1) | (array.sum(axis=1, dtype=np.float64) != 1))
        if len(wrong):
            raise ValueError(
                f"{what}[{wrong[0]}] is no one-hot row, a single 1 among zeros; loss='{loss}' wants one class a "
                "sample: (n,), or (n, classes) one-hot"
            )
        return np.ascontiguousarray(array.argmax(axis=1), np.int32)
    if array.ndim != 1:
        raise ValueError(
            f"{what}: shape {array.shape}; loss='{loss}' wants one class a sample: (n,), or one-hot rows (n, {classes})"
        )
    if array.dtype.kind == "f":
        broken = np.flatnonzero(array != np.floor(array))
        if len(broken):
            raise ValueError(
                f"{what}[{broken[0]}] is {array[broken[0]]}; loss='{loss}' wants classes, whole numbers; for targets "
                "that are quantities there is loss='mean_squared_error'"
            )
    if len(array) and (array.min() < 0 or array.max() >= classes):
        bad = int(np.flatnonzero((array < 0) | (array >= classes))[0])
        hint = "; a network with one output wants loss='binary_cross_entropy'" if classes == 1 else ""
        raise ValueError(f"{what}[{bad}] is {array[bad]}; the network has classes 0..{classes - 1}{hint}")
    return np.ascontiguousarray(array, np.int32)


def _position_classes(
    array: NDArray[Any], loss: str, output: Sequence[int], ignored: int | None, what: str
) -> NDArray[np.int32]:
    """A class for each position of a sample, or for the sample, where `ignored` is allowed besides."""
    classes, positions = output[-1], tuple(output[:-1])
    if array.shape[1:] != positions:
        wanted = ", ".join(map(str, ("n", *positions)))
        raise ValueError(
            f"{what}: shape {array.shape}; loss='{loss}' of a network with outputs {tuple(output)} wants a class for "
            f"each position: ({wanted})"
        )
    check_finite(array, what)
    wrong = (array < 0) | (array >= classes)
    if ignored is not None:
        wrong &= array != ignored
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        bad = tuple(int(i) for i in np.argwhere(wrong)[0])
        besides = "" if ignored is None else f", and {ignored}, which is ignored"
        raise ValueError(
            f"{what}[{', '.join(map(str, bad))}] is {array[bad]}; the network has classes 0..{classes - 1}{besides}"
        )
    return np.ascontiguousarray(array, np.int32)


def targets_array(
    targets: Any, loss: str, output: Sequence[int], what: str = "targets", ignored: int | None = None
) -> NDArray[Any]:
    """`targets` as the loss wants them, for a network with this output shape of one sample.

    cross_entropy: (n,) or (n, 1) classes in 0..classes-1, integers, bools or floats that are whole, or one-hot rows
    (n, classes) -> int32 (n,); of outputs (..., classes) a class for each position, (n, ...) -> int32 (n, ...); and
    `ignored`, where that is a number. Others: (n, ...) finite numbers with as many values a sample as the network
    gives, for binary_cross_entropy in 0..1 -> float32 (n, k). Errors name the shapes, or the first target that is
    wrong.
    """
    array = _numbers(targets, what)
    values = int(np.prod(output))
    if loss in CLASS_LOSSES:
        if not output:
            raise ValueError(f"loss='{loss}' wants one score a class, a network output of shape (classes,); it is ()")
        if len(output) > 1 or ignored is not None:
            return _position_classes(array, loss, output, ignored, what)
        return _classes(array, loss, values, what)
    if array.size != len(array) * values:
        raise ValueError(
            f"{what}: shape {array.shape} has {array.size // max(len(array), 1)} values a sample; "
            f"the network's output {tuple(output)} has {values}"
        )
    check_finite(array, what)
    if loss == "binary_cross_entropy" and array.size and (array.min() < 0 or array.max() > 1):
        bad = tuple(int(i) for i in np.argwhere((array < 0) | (array > 1))[0])
        raise ValueError(f"{what}[{', '.join(map(str, bad))}] is {array[bad]}; loss='{loss}' wants targets in 0..1")
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(array.reshape(len(array), values), np.float32)
    check_finite(made, what)  # a float64 may be too large
    return made


def shape_hint(shape: Sequence[int], wanted: Sequence[int]) -> str:
    """How samples of one shape become samples of another, where that is plain; begins with "; ". Else "".

    For axes in another order it says transpose, never reshape, which would scramble the pixels.
    """
    shape, wanted = tuple(shape), tuple(wanted)
    size = int(np.prod(wanted))
    if len(shape) == len(wanted) > 1 and sorted(shape) == sorted(wanted):
        orders = sorted(itertools.permutations(range(len(shape))), key=lambda order: order != (2, 0, 1))
        order = next(order for order in orders if tuple(shape[i] for i in order) == wanted)
        return f"; put the axes into order: x.transpose({', '.join(map(str, (0, *(i + 1 for i in order))))})"
    if len(wanted) == 3 and wanted[0] == 1 and shape == wanted[1:]:
        return "; grey images want an axis for their one channel: x[:, None]"
    if int(np.prod(shape)) != size:
        return ""
    if len(wanted) == 1:
        return f"; make them flat: x.reshape(-1, {size})"
    if len(shape) == 1 and len(wanted) == 3 and wanted[0] > 1:
        channels, height, width = wanted
        return (
            f"; reshape them: x.reshape(-1, {channels}, {height}, {width}) where a row holds channel by channel, or "
            f"x.reshape(-1, {height}, {width}, {channels}).transpose(0, 3, 1, 2) where it holds pixel by pixel"
        )
    if len(shape) == 1:
        return f"; reshape them: x.reshape(-1, {', '.join(map(str, wanted))})"
    return ""


def weights_array(weights: Any, count: int, what: str = "sample_weight") -> NDArray[np.float32]:
    """`weights` as float32 (count,): finite and at least 0. Errors name the first that is not."""
    array = np.asarray(weights)
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{what}: dtype {array.dtype}; wanted numbers, one a sample")
    if array.shape != (count,):
        raise ValueError(f"{what}: shape {array.shape}; wanted ({count},), one weight a sample")
    made = np.ascontiguousarray(array, np.float32)
    check_finite(made, what)
    if count and made.min() < 0:
        bad = int(np.argmin(made >= 0))
        raise ValueError(f"{what}[{bad}] is {made[bad]}; allowed: at least 0")
    return made


Affine = float | NDArray[np.float32]  # one number, one a channel, or one for each element of a sample


def affine(argument: str, value: Any, shape: Sequence[int]) -> Affine:
    """A scale or shift of samples of this shape: a number, or float32 (channels,), one for each place of axis 0, or
    float32 of this shape."""
    array = np.asarray(value)
    if array.ndim == 0:
        return number(argument, value)
    if array.dtype.kind not in "iuf" or not shape or array.shape not in ((shape[0],), tuple(shape)):
        wanted = f", or {shape[0]} of them, one a channel" if shape else ""
        wanted += f", or an array of the shape of a sample, {tuple(shape)}" if len(shape) > 1 else ""
        raise ValueError(f"{argument}: shape {array.shape} of {array.dtype}; allowed: one number{wanted}")
    made = np.ascontiguousarray(array, np.float32)
    check_finite(made, argument)
    return made


def along_channels(value: Affine, shape: Sequence[int]) -> Affine:
    """A scale or shift in the form in which NumPy applies it to samples (n, *shape), as float32."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1, *(1,) * (len(shape) - 1)) if value.ndim == 1 else value
    return np.float32(value)  # type: ignore[return-value]


class Dataset:
    """Samples (n, ...) with targets: arrays in memory or memory maps, or a source that reads them.

    samples        uint8, int32 or float32, used without a copy if C-contiguous, and so are memory maps, which may be
                   larger than memory; other integers become int32, other numbers float32 (of a memory map batch by
                   batch). What the network sees is scale * element + shift in float32, computed batch by batch: uint8
                   pixels with scale=1/255 take a quarter of the room. Images have their channels first: (n, channels,
                   height, width). Of a network whose input is tokens, integers, which stay what they are. Or a
                   gossipgrad.data.Source, which has scale and shift of its own.
                   For a network of several inputs a tuple of arrays, or a dict of them by the inputs' names.
    targets        classes (n,), one-hot rows (n, classes) or numbers (n, ...); checked against the network and its loss
                   when the set is used. None: the source gives them. For several outputs a tuple, or a dict by the
                   outputs' names.
    scale, shift   one number each, or one for each channel, (channels,): (x / 255 - mean) / deviation is
                   scale=1 / (255 * deviation), shift=-mean / deviation. Or one for each element, an array of the shape
                   of a sample: shift=-x.mean(axis=0) subtracts the mean image. Of several inputs those of the first.
    sample_weight  what the loss of each sample counts, (n,), at least 0; None: 1 each. In training and in validation.

    len(data); data[100:200], data[rows] with an array of sample numbers or of bools: parts of it. Parts, and those of
    split, shuffle and take, share the samples with the whole set. The arrays must not change while a set is in use.
    Of sets from files: `classes`, the classes' names, or None; `standardization`, see gossipgrad.data.standardize.
    """

    def __init__(
        self,
        samples: Any,
        targets: Any = None,
        scale: Any = 1.0,
        shift: Any = 0.0,
        *,
        sample_weight: ArrayLike | None = None,
        name: str | None = None,
    ) -> None:
        self.input_names, samples, others = _separated("samples", samples)
        self.target_names, targets, other_targets = _separated("targets", targets)
        if not others and not other_targets and MappedArray.wants(samples):
            samples, scale, shift = MappedArray(samples, scale, shift), 1.0, 0.0
            if targets is None:
                raise TypeError("targets: missing; wanted an array (n, ...)")
        self.source: Source | None = samples if isinstance(samples, Source) else None
        self._rows: NDArray[np.uint32] | None = None  # of the stored samples, where the set is a part of them
        self._array: NDArray[Any] | None = None  # all stored samples; None: the source reads them
        self._targets: NDArray[Any] | None = None  # of this part; None: the source reads them
        self.classes: list[str] | None = None  # their names
        self.standardization: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None  # (mean, deviation)
        if self.source is not None:
            scale, shift, targets = self._of_source(self.source, scale, shift, targets)
        else:
            if targets is None:
                raise TypeError("targets: missing; wanted an array (n, ...)")
            self._array = samples_array(samples, integers=True)
            self._shape = tuple(self._array.shape[1:])
        # Of networks with several inputs and outputs: those after the first, which lie as it does.
        self._others = tuple(samples_array(one, "samples", integers=True) for one in others)
        self._other_targets = tuple(np.asarray(one) for one in other_targets)
        self._count = len(samples) if self.source is not None else len(self._array)  # type: ignore[arg-type]
        self.name = name or ("arrays" if self.source is None else self.source.name)
        if targets is not None:
            self._targets = np.asarray(targets)
            if self._targets.ndim < 1 or self._count != len(self._targets):
                count = len(self._targets) if self._targets.ndim else "one number as"
                raise ValueError(f"{self._count} samples but {count} targets")
        self.scale = affine("scale", scale, self.shape)
        self.shift = affine("shift", shift, self.shape)
        if not self._count:
            raise ValueError("samples: empty")
        if self.source is not None and (self._others or self._other_targets):
            raise TypeError("samples: a source and arrays beside it; allowed: one or the other")
        for what, several in (("samples", self._others), ("targets", self._other_targets)):
            for place, one in enumerate(several, 1):
                if one.ndim < 1 or len(one) != self._count:
                    raise ValueError(f"{what}[{place}]: shape {one.shape}; wanted {self._count} entries, one a sample")
        self.sample_weight = None if sample_weight is None else weights_array(sample_weight, self._count)

    def _of_source(self, source: Source, scale: Any, shift: Any, targets: Any) -> tuple[Any, Any, Any]:
        """(scale, shift, targets), after what the source says of itself."""
        self._shape = tuple(source.shape)
        if np.dtype(source.dtype) not in (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int32)):
            raise TypeError(f"{source.name}: samples of {source.dtype}; allowed: uint8, float32, int32")
        for argument, value, plain in (("scale", scale, 1.0), ("shift", shift, 0.0)):
            if np.ndim(value) or value != plain:
                raise ValueError(f"{argument}={value!r}: a source has its own; allowed: {argument} of the source")
        self.classes = source.classes
        return source.scale, source.shift, source.targets if targets is None else targets

    def __len__(self) -> int:
        return self._count

    @property
    def inputs(self) -> tuple[NDArray[Any], ...]:
        """`samples` of each input, the first of them as `samples` gives it."""
        rows = slice(None) if self._rows is None else self._rows
        return (self.samples, *(one[rows] for one in self._others))

    @property
    def targets_in_memory(self) -> tuple[NDArray[Any], ...]:
        """All targets, one array for each output that has some; empty where a source reads them."""
        return () if self._targets is None else (self._targets, *self._other_targets)

    @property
    def vocabulary(self) -> Any:
        """Of a text: gossipgrad.data.Vocabulary, the characters of its tokens. None: the samples are no text."""
        return getattr(self.source, "vocabulary", None)

    @property
    def target_shapes(self) -> list[tuple[int, ...]]:
        """Of one sample, for each output that has targets."""
        if self._targets is None and self.source is not None:
            return [tuple(self.source.target_shape)]
        return [tuple(one.shape[1:]) for one in self.targets_in_memory]

    def targets_of(self, number: int, names: Sequence[str]) -> NDArray[Any]:
        """The targets with this number of a network whose targets have these names."""
        given = self.targets_in_memory or (self.targets,)
        return given[_places(f"{self.name}: targets", self.target_names, len(given), names)[number]]

    @property
    def targets(self) -> NDArray[Any]:
        """Of all samples, (n, ...); of several those of the first. A source that reads them does so for all of them."""
        if self._targets is not None:
            return self._targets
        assert self.source is not None
        made = np.empty((len(self), *self.source.target_shape), self.source.target_dtype)
        for rows in self._runs():
            targets = self._read(rows)[1]
            assert targets is not None
            made[rows] = targets
        return made

    @property
    def samples(self) -> NDArray[Any]:
        """As given, (n, ...); of several inputs the first. A copy of a part that is no run of the set, or is read."""
        if self._array is not None:
            return self._array if self._rows is None else self._array[self._rows]
        made = np.empty((len(self), *self.shape), self.dtype)
        for rows in self._runs():
            made[rows] = self._read(rows)[0]
        return made

    def _runs(self) -> Iterator[slice]:
        """All samples in pieces that are read together."""
        rows = max(1, PIECE // max(1, self.dtype.itemsize * int(np.prod(self.shape))))
        return (slice(begin, min(begin + rows, len(self))) for begin in range(0, len(self), rows))

    def _read(self, rows: slice) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """(samples, targets or None) of a run of the set, as for evaluation."""
        if self._array is not None:
            return self._array[rows if self._rows is None else self._rows[rows]], None
        assert self.source is not None
        places = np.arange(rows.start, min(rows.stop, len(self)), dtype=np.uint32)
        return self.source.read_new(places if self._rows is None else self._rows[rows], EVALUATION)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the samples: uint8, float32, or of a source int32."""
        if self._array is not None:
            return self._array.dtype
        assert self.source is not None
        return np.dtype(self.source.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self._shape

    def __repr__(self) -> str:
        weighted = "" if self.sample_weight is None else ", weighted"
        return f"<Dataset {self.name}: {len(self)} samples {self.shape} {self.dtype}{weighted}>"

    # ---- parts

    def _part(self, index: slice | NDArray[Any]) -> Dataset:
        """The samples that a slice, or numbers in 0..n-1, select."""
        part = object.__new__(Dataset)
        part.__dict__.update(self.__dict__)
        part._targets = None if self._targets is None else self._targets[index]
        part._other_targets = tuple(one[index] for one in self._other_targets)
        part.sample_weight = None if self.sample_weight is None else self.sample_weight[index]
        if isinstance(index, slice) and index.step in (None, 1) and self._rows is None and self._array is not None:
            part._array = self._array[index]
            part._others = tuple(one[index] for one in self._others)
            part._count = len(part._array)
        else:
            rows = np.arange(self._count, dtype=np.uint32) if self._rows is None else self._rows
            part._rows = np.ascontiguousarray(rows[index])
            part._count = len(part._rows)
        return part

    def __getitem__(self, index: slice | ArrayLike) -> Dataset:
        """A part of the set: data[:1000], data[rows]. The samples are not copied."""
        if isinstance(index, slice):
            part = self._part(index)
            if not len(part):
                raise IndexError(f"{index}: no sample of {len(self)}")
            return part
        rows = np.asarray(index)
        allowed = "a slice, as in data[:1000], or an array of sample numbers or of bools"
        if rows.ndim != 1 or rows.dtype.kind not in "iub" or not len(rows):
            what = f"{index}" if rows.ndim == 0 else f"an array of {rows.dtype} and shape {rows.shape}"
            raise TypeError(f"index: {what}; allowed: {allowed}")
        if rows.dtype.kind == "b":
            if len(rows) != len(self):
                raise IndexError(f"index: {len(rows)} bools for {len(self)} samples")
            rows = np.flatnonzero(rows)
            if not len(rows):
                raise IndexError("index: no bool is true; a set has at least one sample")
        wrong = np.flatnonzero((rows < -len(self)) | (rows >= len(self)))
        if len(wrong):
            raise IndexError(f"index[{wrong[0]}] is {rows[wrong[0]]}; the set has samples 0..{len(self) - 1}")
        return self._part(np.where(rows < 0, rows + len(self), rows))

    def with_weights(self, sample_weight: NDArray[np.float32] | None) -> Dataset:
        """The same set with other weights of its samples, which are not checked."""
        made = self._part(slice(None))
        made.sample_weight = sample_weight
        return made

    def take(self, n: int) -> Dataset:
        """The first n samples. ValueError if there are fewer."""
        return self[: integer("n", n, 1, len(self))]

    def shuffle(self, seed: int = 0) -> Dataset:
        """The same samples in an order drawn by the seed, the same on every machine."""
        return self[_core.permutation(integer("seed", seed, 0, 2**64 - 1), "order", len(self))]

    def split(
        self, parts: float | int | Sequence[float] | Sequence[int], *, seed: int = 0, stratify: bool = False
    ) -> tuple[Dataset, ...]:
        """The set in parts, drawn by the seed, the same on every machine; each has the samples in their order.

        parts     0.8: two parts, of 80 % and the rest; 8000: of 8000 samples and the rest; [0.8, 0.1, 0.1] or
                  [8000, 1000, 1000]: as many parts, which add up to the whole.
        stratify  each part has each class of integer targets (n,), or of one-hot ones, in the share that the set has.

        ValueError where parts do not add up, or one would be empty.
        """
        sizes = _sizes(parts, len(self))
        drawn = _core.permutation(integer("seed", seed, 0, 2**64 - 1), "split", len(self))
        chosen = _stratified(self.targets[drawn], sizes) if flag("stratify", stratify) else _runs(sizes)
        return tuple(self._part(np.sort(drawn[rows])) for rows in chosen)

    def batches(self, size: int) -> Iterator[NDArray[Any]]:
        """The samples in order as the network sees them, float32 or int32 tokens, `size` at a time."""
        scale, shift = along_channels(self.scale, self.shape), along_channels(self.shift, self.shape)
        for begin in range(0, len(self), size):
            part = self._read(slice(begin, begin + size))[0]
            if part.dtype == np.int32 or (part.dtype == np.float32 and self.unscaled):
                yield part
            else:
                yield part.astype(np.float32) * scale + shift

    @property
    def streams(self) -> bool:
        """Does each sample go on where the one before it ends?"""
        return self.source is not None and self.source.streams

    @property
    def unscaled(self) -> bool:
        """Does the network see the elements as they are?"""
        return bool(np.all(self.scale == 1.0) and np.all(self.shift == 0.0))

    # ---- what the core trains on

    def for_network(self, loss: str, input_shape: Sequence[int], output: Sequence[int]) -> _core.Dataset:
        """The core's view of the set for a network of one input and one output of these shapes."""
        head = Head("output", 0, tuple(output), False, 0, loss=loss)
        return self.for_model([Field("input", 0, tuple(input_shape), "float32")], [head], ["output"])

    def for_model(self, inputs: Sequence[Field], heads: Sequence[Head], targets: Sequence[str]) -> _core.Dataset:
        """The core's view of the set for a network of these inputs and heads, whose targets have these names.

        ValueError or TypeError names what does not fit.
        """
        fields = self._fields(inputs)
        self._check_samples()
        read = self._read_target()
        if read is not None and len(targets) == 1:
            return self._core(fields, [read], self.sample_weight)
        given = [self.targets, *self._other_targets]
        places = _places(f"{self.name}: targets", self.target_names, len(given), targets)
        made = []
        for number_, place in enumerate(places):
            what = f"{self.name}: targets" if len(targets) == 1 else f"{self.name}: targets[{targets[number_]!r}]"
            checked = [
                targets_array(given[place], one.kind, one.shape, what, one.ignored)
                for one in heads
                if one.target == number_
            ]
            made.append(checked[0])
        return self._core(fields, made, self.sample_weight)

    def inputs_for_model(self, inputs: Sequence[Field]) -> _core.Dataset:
        """The same to predict: targets are not looked at."""
        read = self._read_target()
        return self._core(self._fields(inputs), None if read is None else [read], None)

    def _core(self, fields: list[Any], targets: list[Any] | None, weights: NDArray[np.float32] | None) -> _core.Dataset:
        return _core.Dataset(fields, targets, None, None, weights, self._rows, self.source, self.streams)

    def _read_target(self) -> dict[str, Any] | None:
        """The targets for the core where the source reads them; else None."""
        if self._targets is not None or self.source is None:
            return None
        source = self.source
        made = {"shape": source.target_shape, "dtype": source.target_dtype}
        return made | ({"classes": source.values} if np.dtype(source.target_dtype) == np.int32 else {})

    def _fields(self, inputs: Sequence[Field]) -> list[dict[str, Any]]:
        """The inputs for the core, in the network's order, of the right shapes and types."""
        names = [one.name for one in inputs]
        arrays = [self._array, *self._others]
        places = _places(f"{self.name}: samples", self.input_names, len(arrays), names)
        return [self._field(arrays[place], place, one, len(inputs)) for place, one in zip(places, inputs, strict=True)]

    def _field(self, array: NDArray[Any] | None, place: int, wanted: Field, count: int) -> dict[str, Any]:
        """One input for the core; array None: the source reads it."""
        shape, dtype = (self.shape, self.dtype) if array is None else (tuple(array.shape[1:]), array.dtype)
        what = self.name if count == 1 else f"{self.name}: samples[{wanted.name!r}]"
        tokens = wanted.dtype == "int32"
        if shape != tuple(wanted.shape):
            raise ValueError(
                f"{what}: samples of shape {shape}, but the network's input is {tuple(wanted.shape)}"
                f"{shape_hint(shape, wanted.shape)}"
            )
        if tokens and dtype.kind == "f":
            raise TypeError(f"{what}: samples of {dtype}; allowed here: integers, the network's tokens")
        values = 0 if self.source is None or not tokens else self.source.values
        made = {"shape": shape, "dtype": dtype} if array is None else {"array": array}
        scaled = {"scale": self.scale, "shift": self.shift} if place == 0 else {}
        return {**made, **scaled, "tokens": tokens, "classes": values}

    def _check_samples(self) -> None:
        for place, array in enumerate((self._array, *self._others)):
            if array is None or array.dtype.kind != "f":
                continue  # the core looks at what a source reads
            what = f"{self.name}: samples" if not self._others else f"{self.name}: samples[{place}]"
            if self._rows is None:
                check_finite(array, what)
                continue
            for rows in self._runs():
                piece = array[self._rows[rows]]
                if not np.isfinite(piece).all():
                    check_finite(array[self._rows], what)


def _separated(argument: str, given: Any) -> tuple[list[str] | None, Any, list[Any]]:
    """(names or None, the first, the others) of a tuple of arrays, or of a dict of them; else of the thing itself."""
    names = [str(one) for one in given] if isinstance(given, Mapping) else None
    parts = list(given.values()) if isinstance(given, Mapping) else list(given) if isinstance(given, tuple) else [given]
    if not 1 <= len(parts) <= MAX_FIELDS:
        raise ValueError(f"{argument}: {len(parts)} arrays; allowed: 1 to {MAX_FIELDS}")
    return names, parts[0], parts[1:]


def _places(what: str, names: Sequence[str] | None, count: int, wanted: Sequence[str]) -> list[int]:
    """Which of `count` fields, which may have names, is which of those that a network wants."""
    if count != len(wanted):
        raise ValueError(f"{what}: {count} of them; the network wants {len(wanted)}: {', '.join(wanted)}")
    if names is None:
        return list(range(count))
    if set(names) != set(wanted):
        raise ValueError(f"{what}: {', '.join(names)}; allowed: {', '.join(wanted)}")
    return [list(names).index(one) for one in wanted]


def _sizes(parts: Any, count: int) -> list[int]:
    """How many samples each part has."""
    allowed = "a share in 0..1, a number of samples, or a list of either for all parts"
    single = np.ndim(parts) == 0
    given = [parts] if single else list(parts)
    if not given or any(isinstance(one, (bool, np.bool_, str)) for one in given):
        raise TypeError(f"parts={parts!r}: allowed: {allowed}")
    if all(hasattr(one, "__index__") for one in given):
        sizes = [integer("parts", one, 1, count) for one in given]
        sizes += [count - sizes[0]] if single else []
    else:
        shares = [number("parts", one, above=0.0, below=1.0 if single else None) for one in given]
        shares += [1.0 - shares[0]] if single else []
        if abs(sum(shares) - 1.0) > 1e-6:
            raise ValueError(f"parts={parts!r}: shares add up to {sum(shares):g}; allowed: 1")
        ends = [round(float(end) * count) for end in np.cumsum(shares)]
        sizes = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    if sum(sizes) != count or min(sizes) < 1:
        raise ValueError(f"parts={parts!r}: parts of {sizes} samples, of {count} in the set; none may be empty")
    return sizes


def _runs(sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    ends = np.cumsum([0, *sizes])
    return [np.arange(begin, end) for begin, end in itertools.pairwise(ends)]


def _stratified(targets: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Rows of each part: of each class as near to its share as whole samples allow."""
    classes = class_numbers(targets)
    if classes is None:
        raise ValueError("stratify=True: targets must be classes: integers (n,), or one-hot rows")
    left = np.argsort(classes, kind="stable")  # by class, and in each in the order drawn
    chosen = []
    for size in sizes[:-1]:
        # Evenly spread over what is left: of every run of it the part has its share.
        ends = np.arange(1, len(left) + 1) * size // len(left)
        mine = np.diff(ends, prepend=0) > 0
        chosen.append(left[mine])
        left = left[~mine]
    return [*chosen, left]


def class_numbers(targets: NDArray[Any]) -> NDArray[np.int64] | None:
    """The class of each sample, of integer or bool targets (n,) or (n, 1), or of one-hot rows; None: no classes."""
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] == 1:
        whole = flat.dtype.kind in "iub" or (flat.dtype.kind == "f" and bool((flat == np.floor(flat)).all()))
        return flat[:, 0].astype(np.int64) if whole else None
    hot = bool(((flat == 0) | (flat == 1)).all()) and bool((flat.sum(axis=1, dtype=np.float64) == 1).all())
    return flat.argmax(axis=1).astype(np.int64) if hot else None


def class_weights(given: Any, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """One weight a class from fit's class_weight, which is not None; counts: samples of each class, of all ranks.

    {class: weight}, where a class that is not named has 1; one weight a class in an array; or "balanced": the number of
    samples / (classes that occur * samples of the class), so that all classes count alike and the mean weight is 1.
    """
    classes = len(counts)
    if isinstance(given, str):
        if given != "balanced":
            raise ValueError(
                f"class_weight={given!r}: allowed: 'balanced', a dict {{class: weight}}, or one weight a class"
            )
        found = counts > 0
        return np.where(found, counts.sum() / (found.sum() * np.maximum(counts, 1)), 1.0)
    result = np.ones(classes)
    if isinstance(given, Mapping):
        for key, value in given.items():
            result[integer("class_weight: class", key, 0, classes - 1)] = number(f"class_weight[{key}]", value, 0.0)
        return result
    array = np.asarray(given)
    if array.dtype.kind not in "iuf" or array.shape != (classes,):
        raise ValueError(
            f"class_weight: {type(given).__name__} of shape {array.shape}; allowed: 'balanced', a dict "
            f"{{class: weight}}, or one weight a class, {classes} of them"
        )
    for index, value in enumerate(array.tolist()):
        result[index] = number(f"class_weight[{index}]", value, 0.0)
    return result


def as_dataset(data: Any, what: str) -> Dataset:
    """A Dataset from one, or from a pair (samples, targets) of arrays; `what` is the argument's name."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        try:
            return Dataset(data[0], data[1], name=what)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
    of_batches = f"; of batches, as a DataLoader has them: gossipgrad.data.from_iterable({what})"
    raise TypeError(
        f"{what} is a {type(data).__name__}; allowed: a gossipgrad.data.Dataset, or (samples, targets)"
        f"{of_batches if hasattr(data, '__iter__') and not isinstance(data, (str, bytes, dict)) else ''}"
    )


def one_sided(targets: NDArray[Any], ranks: int) -> str | None:
    """What is wrong with contiguous shards of these classes: one of them has at most half the classes for its size.

    Samples that are sorted by class do that. None: nothing, or the targets are no classes.
    """
    quantities = targets.dtype.kind == "f" and targets.size == len(targets)
    classes = None if ranks < 2 or quantities else class_numbers(targets)
    if classes is None:
        return None
    _, index = np.unique(classes, return_inverse=True)
    count = int(index.max()) + 1
    for rank, shard in enumerate(np.array_split(index, ranks)):
        found = len(np.unique(shard))
        if 2 * found <= min(count, len(shard) // 4):
            return f"the shard of rank {rank} has {len(shard)} samples of {found} classes only, of {count} in the set"
    return None


def synthetic(
    shape: Sequence[int],
    classes: int = 10,
    train: int = 2000,
    test: int = 500,
    *,
    seed: int = 0,
    noise: float = 1.0,
) -> tuple[Dataset, Dataset]:
    """(train, test): for each class a random pattern, plus noise of this deviation; easy to learn, needs no files.

    classes=1 gives two patterns with targets 0.0 and 1.0 for a binary loss.
    """
    generator = np.random.default_rng(seed)
    kinds = 2 if classes == 1 else classes
    patterns = generator.standard_normal((kinds, *shape), np.float32)
    sets = []
    for count in (train, test):
        labels = (generator.permutation(count) % kinds).astype(np.int32)
        samples = patterns[labels] + np.float32(noise) * generator.standard_normal((count, *shape), np.float32)
        targets: NDArray[Any] = labels.astype(np.float32)[:, None] if classes == 1 else labels
        sets.append(Dataset(samples, targets, name="synthetic"))
    return sets[0], sets[1]


def synthetic_tokens(
    sequence: int, tokens: int, train: int = 2000, test: int = 500, *, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """(train, test): windows (n, sequence) of tokens with those that follow, nine in ten by a rule, others random."""
    generator = np.random.default_rng(seed)
    rule = generator.permutation(tokens).astype(np.int32)
    sets = []
    for count in (train, test):
        text = np.empty((count, sequence + 1), np.int32)
        text[:, 0] = generator.integers(tokens, size=count)
        for place in range(sequence):
            free = generator.integers(tokens, size=count)
            text[:, place + 1] = np.where(generator.random(count) < 0.9, rule[text[:, place]], free)
        sets.append(Dataset(text[:, :-1].copy(), text[:, 1:].copy(), name="synthetic"))
    return sets[0], sets[1]
