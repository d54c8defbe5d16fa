"""Data in memory: samples and targets as arrays, checked once, handed to the core without a copy if possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gossipgrad import _core
from gossipgrad.data.checks import (
    CLASS_LOSSES,
    PIECE,
    affine,
    along_channels,
    check_finite,
    fits_int32,
    samples_array,
    shape_hint,
    targets_array,
    unrounded,
    weights_array,
)
from gossipgrad.data.classes import runs_of, sizes_of, stratified
from gossipgrad.data.source import EVALUATION, Source
from gossipgrad.errors import flag, integer, is_of, plain_array
from gossipgrad.heads import MAX_FIELDS, Field, Head, check_names


class MappedArray(Source):
    """A memory map of elements that the core does not read as they are: reading converts them."""

    def __init__(self, array: NDArray[Any], scale: Any, shift: Any) -> None:
        self.array = array
        self.name = "arrays"
        self.shape = tuple(array.shape[1:])
        self.dtype = np.dtype(np.uint8 if array.dtype == np.bool_ else np.int32 if fits_int32(array) else np.float32)
        self.scale, self.shift = affine("scale", scale, self.shape), affine("shift", shift, self.shape)

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        with np.errstate(over="ignore"):  # the core checks for non-finite values
            samples[...] = self.array[rows]

    @staticmethod
    def wants(samples: Any) -> bool:
        """True for a memory map that would otherwise be copied into memory."""
        if not isinstance(samples, np.memmap) or samples.ndim < 1 or samples.dtype.kind not in "biuf":
            return False
        kinds = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.bool_))
        return not (samples.dtype in kinds and samples.flags.c_contiguous)


class Dataset:
    """Samples (n, ...) with targets: arrays in memory or memory maps, or a source that reads them.

    samples        uint8, int32 or float32, used without a copy if C-contiguous. So are memory maps, which may be
                   larger than memory. Other integers become int32, other numbers float32 (for a memory map batch by
                   batch; gossipgrad.data.standardize still sees the original values). The network gets scale
                   * element + shift in float32, computed batch by batch: uint8 pixels with scale=1/255 take a quarter
                   of the memory. Images have their channels first: (n, channels, height, width). If the network's input
                   is tokens, integers, used as they are. Or a gossipgrad.data.Source, which has scale and shift of its
                   own.
                   For a network of several inputs a tuple of arrays, or a dict of them by the inputs' names.
    targets        classes (n,), one-hot rows (n, classes) or numbers (n, ...); checked against the network and its loss
                   when the set is used. None: the source gives them. For several outputs a tuple, or a dict by the
                   outputs' names.
    scale, shift   one number each, or one for each channel, (channels,): (x / 255 - mean) / deviation is
                   scale=1 / (255 * deviation), shift=-mean / deviation. Or one for each element, an array of the shape
                   of a sample: shift=-x.mean(axis=0) subtracts the mean image. With several inputs those of the first.
    sample_weight  factor of each sample's loss, (n,), at least 0; None: 1 each. In training and in validation.

    len(data); data[100:200], data[rows] with an array of sample numbers or of bools: parts of it. Parts, and those of
    split, shuffle and take, share the samples with the whole set. The arrays must not change while a set is in use.
    Sets from files have `classes`, the classes' names, or None; `standardization`, see gossipgrad.data.standardize.
    ValueError, TypeError: samples, targets and weights of unlike numbers, none at all, or of types that are no numbers.
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
        self._rows: NDArray[np.uint32] | None = None  # numbers of the stored samples, if the set is a part of them
        self._array: NDArray[Any] | None = None  # all stored samples; None: the source reads them
        self._exact: NDArray[Any] | None = None  # the original samples, if float32 has rounded them
        self._targets: NDArray[Any] | None = None  # of this part; None: the source reads them
        self.classes: list[str] | None = None  # their names
        self.standardization: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None  # (mean, deviation)
        if self.source is not None:
            scale, shift, targets = self._of_source(self.source, scale, shift, targets)
        else:
            if targets is None:
                raise TypeError("targets: missing; wanted an array (n, ...)")
            self._array = samples_array(samples, integers=True)
            self._exact = unrounded(samples, self._array)
            self._shape = tuple(self._array.shape[1:])
        # For networks with several inputs and outputs: those after the first, in its order of samples.
        self._others = tuple(samples_array(one, "samples", integers=True) for one in others)
        self._other_targets = tuple(plain_array("targets", one) for one in other_targets)
        self._count = len(samples) if self.source is not None else len(self._array)  # type: ignore[arg-type]
        self.name = name or ("arrays" if self.source is None else self.source.name)
        if targets is not None:
            self._targets = plain_array("targets", targets)
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
        """(scale, shift, targets), after checking them against the source's own."""
        if not isinstance(source.shape, (tuple, list)):
            raise TypeError(
                f"{source.name}: shape={source.shape!r}: allowed: a tuple of integers, as (28,) or (3, 8, 8)"
            )
        self._shape = tuple(integer(f"{source.name}: shape[{i}]", one, 1) for i, one in enumerate(source.shape))
        if np.dtype(source.dtype) not in (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int32)):
            raise TypeError(f"{source.name}: samples of {source.dtype}; allowed: uint8, float32, int32")
        for argument, value, plain in (("scale", scale, 1.0), ("shift", shift, 0.0)):
            if np.ndim(value) or value != plain:
                raise ValueError(f"{argument}={value!r}: a source has its own; allowed: {argument} of the source")
        if source.classes is not None and not isinstance(source.classes, (list, tuple, np.ndarray)):
            raise TypeError(f"{source.name}: classes={source.classes!r}: allowed: a list of names, or None")
        self.classes = source.classes
        return source.scale, source.shift, source.targets if targets is None else targets

    def __len__(self) -> int:
        return self._count

    @property
    def inputs(self) -> tuple[NDArray[Any], ...]:
        """`samples` of each input, the first one in the form of `samples`."""
        rows = slice(None) if self._rows is None else self._rows
        return (self.samples, *(one[rows] for one in self._others))

    @property
    def targets_in_memory(self) -> tuple[NDArray[Any], ...]:
        """All targets, one array for each output that has some; empty if a source reads them."""
        return () if self._targets is None else (self._targets, *self._other_targets)

    @property
    def vocabulary(self) -> Any:
        """The gossipgrad.data.Vocabulary of a text, the characters of its tokens. None: the samples are no text."""
        return getattr(self.source, "vocabulary", None)

    @property
    def class_names(self) -> list[str] | None:
        """Names for the numbers of the targets: of classes, or the characters of a text; None: not known."""
        if self.classes is not None:
            return [str(one) for one in self.classes]
        return None if self.vocabulary is None else list(self.vocabulary.characters)

    @property
    def target_shapes(self) -> list[tuple[int, ...]]:
        """Shape of one sample's target, for each output that has targets."""
        if self._targets is None and self.source is not None:
            return [tuple(self.source.target_shape)]
        return [tuple(one.shape[1:]) for one in self.targets_in_memory]

    def targets_of(self, number: int, names: Sequence[str]) -> NDArray[Any]:
        """The targets with this number, for a network whose targets have these names."""
        given = self.targets_in_memory or (self.targets,)
        return given[_places(f"{self.name}: targets", self.target_names, len(given), names)[number]]

    @property
    def targets(self) -> NDArray[Any]:
        """Targets of all samples, (n, ...); with several outputs those of the first. A source reads all of them."""
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
        """As stored, (n, ...); with several inputs the first. A copy if the part is no run of the set, or is read."""
        if self._array is not None:
            return self._array if self._rows is None else self._array[self._rows]
        made = np.empty((len(self), *self.shape), self.dtype)
        for rows in self._runs():
            made[rows] = self._read(rows)[0]
        return made

    def _unrounded(self) -> NDArray[Any]:
        """`samples` with their original values, before float32 rounds them."""
        exact = self.source.array if isinstance(self.source, MappedArray) else self._exact
        if exact is None:
            return self.samples
        return exact if self._rows is None else exact[self._rows]

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
        """Stored type of the samples: uint8, int32 or float32."""
        if self._array is not None:
            return self._array.dtype
        assert self.source is not None
        return np.dtype(self.source.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
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
            part._exact = None if self._exact is None else self._exact[index]
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
        rows = plain_array("index", index)
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
        rows = rows.astype(np.int64)  # a small type cannot hold the set's length
        return self._part(np.where(rows < 0, rows + len(self), rows))

    def with_weights(self, sample_weight: NDArray[np.float32] | None) -> Dataset:
        """This set with other weights of its samples, which are not checked."""
        made = self._part(slice(None))
        made.sample_weight = sample_weight
        return made

    def take(self, n: int) -> Dataset:
        """The first n samples. ValueError if there are fewer."""
        return self[: integer("n", n, 1, len(self))]

    def shuffle(self, seed: int = 0) -> Dataset:
        """These samples in an order drawn by the seed, the same on every machine."""
        return self[_core.permutation(integer("seed", seed, 0, 2**64 - 1), "order", len(self))]

    def split(
        self, parts: float | int | Sequence[float] | Sequence[int], *, seed: int = 0, stratify: bool = False
    ) -> tuple[Dataset, ...]:
        """Divide the set in parts, drawn by the seed, the same on every machine; each has the samples in their order.

        parts     0.8: two parts, of 80 % and the rest; 8000: of 8000 samples and the rest; [0.8, 0.1, 0.1] or
                  [8000, 1000, 1000]: as many parts, which add up to the whole.
        stratify  each part has the set's share of each class, for integer targets (n,), or one-hot ones.

        ValueError if parts do not add up, or one would be empty.
        """
        sizes = sizes_of(parts, len(self))
        drawn = _core.permutation(integer("seed", seed, 0, 2**64 - 1), "split", len(self))
        chosen = stratified(self.targets[drawn], sizes) if flag("stratify", stratify) else runs_of(sizes)
        return tuple(self._part(np.sort(drawn[rows])) for rows in chosen)

    def batches(self, size: int) -> Iterator[NDArray[Any]]:
        """The network's input in order, float32 or int32 tokens, `size` samples at a time."""
        scale, shift = along_channels(self.scale, self.shape), along_channels(self.shift, self.shape)
        for begin in range(0, len(self), size):
            part = self._read(slice(begin, begin + size))[0]
            if part.dtype != np.uint8 and self.unscaled:
                yield part
            else:
                yield part.astype(np.float32) * scale + shift

    @property
    def streams(self) -> bool:
        """True if each sample continues the one before it."""
        return self.source is not None and self.source.streams

    @property
    def unscaled(self) -> bool:
        """True if the network gets the elements as they are."""
        return bool(np.all(self.scale == 1.0) and np.all(self.shift == 0.0))

    # ---- the core's view

    def for_network(self, loss: str, input_shape: Sequence[int], output: Sequence[int]) -> _core.Dataset:
        """The core's view of the set for a network of one input and one output of these shapes."""
        head = Head("output", 0, tuple(output), False, 0, loss=loss)
        return self.for_model([Field("input", 0, tuple(input_shape), "float32")], [head], ["output"])

    def for_model(self, inputs: Sequence[Field], heads: Sequence[Head], targets: Sequence[str]) -> _core.Dataset:
        """The core's view of the set for a network of these inputs and heads, whose targets have these names.

        ValueError or TypeError names the misfit.
        """
        fields = self._fields(inputs)
        self._check_samples()
        source = self._opened(all(one.kind not in CLASS_LOSSES for one in heads))
        read = self._read_target(source)
        if read is not None and len(targets) == 1:
            return self._core(fields, [read], self.sample_weight, source)
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
        return self._core(fields, made, self.sample_weight, source)

    def inputs_for_model(self, inputs: Sequence[Field]) -> _core.Dataset:
        """for_model for prediction: targets are ignored."""
        source = self._opened(floats=True)
        read = self._read_target(source)
        return self._core(self._fields(inputs), None if read is None else [read], None, source)

    def _opened(self, floats: bool = False) -> Source | None:
        return None if self.source is None else self.source._opened(floats)

    def _core(
        self,
        fields: list[Any],
        targets: list[Any] | None,
        weights: NDArray[np.float32] | None,
        source: Source | None,
    ) -> _core.Dataset:
        return _core.Dataset(fields, targets, None, None, weights, self._rows, source, self.streams)

    def _read_target(self, source: Source | None) -> dict[str, Any] | None:
        """The targets for the core if the source reads them; else None."""
        if self._targets is not None or source is None:
            return None
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
        if tokens and place == 0 and self._exact is not None and self._exact.dtype.kind in "iu":
            raise ValueError(
                f"{what}: tokens from {self._exact.min()} to {self._exact.max()}; allowed: those of the network, which "
                "are int32"
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
                continue  # the core checks the values that a source reads
            what = f"{self.name}: samples" if not self._others else f"{self.name}: samples[{place}]"
            if self._rows is None:
                check_finite(array, what)
                continue
            for rows in self._runs():
                piece = array[self._rows[rows]]
                if not np.isfinite(piece).all():
                    check_finite(array[self._rows], what)


def _separated(argument: str, given: Any) -> tuple[list[str] | None, Any, list[Any]]:
    """(names or None, the first, the others) of a tuple or dict of arrays; for other objects the object itself."""
    names = [str(one) for one in given] if isinstance(given, Mapping) else None
    parts = list(given.values()) if isinstance(given, Mapping) else list(given) if isinstance(given, tuple) else [given]
    if not 1 <= len(parts) <= MAX_FIELDS:
        raise ValueError(f"{argument}: {len(parts)} arrays; allowed: 1 to {MAX_FIELDS}")
    return names, parts[0], parts[1:]


def _places(what: str, names: Sequence[str] | None, count: int, wanted: Sequence[str]) -> list[int]:
    """The index, among `count` fields with optional names, of each field that a network needs."""
    if names is not None:
        check_names(what, names, wanted)
        return [list(names).index(one) for one in wanted]
    if count != len(wanted):
        raise ValueError(f"{what}: {count} of them; the network wants {len(wanted)}: {', '.join(wanted)}")
    return list(range(count))


def as_dataset(data: Any, what: str) -> Dataset:
    """A Dataset from one, or from a pair (samples, targets) of arrays; `what` is the argument's name."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        try:
            return Dataset(data[0], data[1], name=what)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
    hint = ""
    if hasattr(data, "__iter__") and not isinstance(data, (str, bytes, dict)):
        hint = f"; of batches, as a DataLoader has them: gossipgrad.data.from_iterable({what})"
    elif is_of(data, "torch.utils.data"):
        hint = f"; of a dataset of PyTorch's: gossipgrad.data.from_iterable(torch.utils.data.DataLoader({what}, 64))"
    raise TypeError(
        f"{what} is a {type(data).__name__}; allowed: a gossipgrad.data.Dataset, or (samples, targets){hint}"
    )
