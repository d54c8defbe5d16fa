"""The sets of fit and evaluate, in all forms in which callers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.data.arrays import Dataset, as_dataset
from gossipgrad.data.checks import CLASS_LOSSES, targets_array, weights_array
from gossipgrad.data.classes import check_alike, class_weights
from gossipgrad.errors import integer, number
from gossipgrad.heads import Field, Head

SHARDS = ("interleaved", "contiguous")
Gather = Callable[[bytes], list[bytes]]  # every process's bytes, by rank


@dataclass(frozen=True)
class Given:
    """A set as the ranks of this process have it: one for all, or with `sharded` each local rank's own part."""

    parts: tuple[Dataset, ...]
    sharded: bool

    @property
    def first(self) -> Dataset:
        """The set, or the part of this process's first rank."""
        return self.parts[0]

    @property
    def name(self) -> str:
        return self.first.name

    def __len__(self) -> int:
        """Samples in this process."""
        return sum(len(part) for part in self.parts)

    def core(
        self, inputs: Sequence[Field], heads: Sequence[Head], targets: Sequence[str]
    ) -> _core.Dataset | list[_core.Dataset]:
        """The core's view for a network: Dataset.for_model. ValueError names the misfit."""
        made = [part.for_model(inputs, heads, targets) for part in self.parts]
        return made if self.sharded else made[0]

    def split(self, split: float | int, seed: int) -> tuple[Given, Given]:
        """(to train on, to validate on), drawn by the seed; for streams the end. Each part of a sharded set is
        split."""
        if self.sharded and hasattr(split, "__index__"):
            raise TypeError(f"validation_split={split!r}: allowed with sharded=True: a share, of each rank's own part")
        pairs = [_validation_part(part, split, seed) for part in self.parts]
        return Given(tuple(one for one, _ in pairs), self.sharded), Given(tuple(one for _, one in pairs), self.sharded)

    def weighted(self, weights: Any) -> Given:
        """The set with fit's sample_weight: an array, or for sharded sets in a virtual cluster a list of them."""
        given = list(weights) if self.sharded and len(self.parts) > 1 else [weights]
        if len(given) != len(self.parts):
            raise ValueError(f"sample_weight: {len(given)} arrays; wanted one for each of {len(self.parts)} ranks")
        made = []
        for part, one in zip(self.parts, given, strict=True):
            if part.sample_weight is not None:
                raise ValueError(f"sample_weight: {part.name} has weights of its own; allowed: one of both")
            made.append(part.with_weights(weights_array(one, len(part))))
        return Given(tuple(made), self.sharded)

    def sizes(self, ranks: int, gather: Gather) -> list[int]:
        """Samples of each of `ranks` ranks that share the set, or of each rank's own part. Collective if sharded."""
        if not self.sharded:
            return shard_sizes(len(self), ranks)
        if len(self.parts) > 1:
            return [len(part) for part in self.parts]
        return [int.from_bytes(one, "little") for one in gather(len(self).to_bytes(8, "little"))]

    def counts(self, gather: Gather) -> bool:
        """True if the loss of any sample counts, on any rank, by the weights of samples. Collective if sharded."""
        own = any(part.sample_weight is None or part.sample_weight.any() for part in self.parts)
        return any(gather(b"1" if own else b"")) if self.sharded else bool(own)

    def class_counts(
        self, loss: str, output: Sequence[int], gather: Gather, ignored: int | None = None
    ) -> NDArray[np.int64]:
        """Samples of each class in the set, or in the parts of all ranks, without `ignored`. Collective if sharded."""
        classes = [_classes(part, loss, output, ignored) for part in self.parts]
        count = _class_count(loss, output)
        counts = np.asarray(sum(np.bincount(one[one != _IGNORED], minlength=count) for one in classes), np.int64)
        if not self.sharded:
            return counts
        return np.asarray(sum(np.frombuffer(one, np.int64) for one in gather(counts.tobytes())))

    def check_class_weight(self, given: Any, loss: str, output: Sequence[int], ignored: int | None) -> None:
        """ValueError or TypeError if it is not a valid class_weight of fit for these targets."""
        class_weights(given, self.class_counts(loss, output, lambda own: [own], ignored))

    def class_weighted(
        self, given: Any, counts: NDArray[np.int64], loss: str, output: Sequence[int], ignored: int | None
    ) -> Given:
        """The set with fit's class_weight; counts: samples of each class over all ranks."""
        weights = class_weights(given, counts)
        made = []
        for part in self.parts:
            classes = _classes(part, loss, output, ignored)
            each = np.where(classes == _IGNORED, 1.0, weights[classes])
            if part.sample_weight is not None:
                each = each * part.sample_weight
            made.append(part.with_weights(each.astype(np.float32)))
        return Given(tuple(made), self.sharded)


def shard_sizes(count: int, ranks: int) -> list[int]:
    """Samples of each rank, if a set is divided among them."""
    each, more = divmod(count, ranks)
    return [each + (rank < more) for rank in range(ranks)]


def _class_count(loss: str, output: Sequence[int]) -> int:
    if loss in CLASS_LOSSES and len(output) > 1:
        raise ValueError(
            f"class_weight: allowed where a sample has one class; outputs {tuple(output)} have one for each position: "
            "loss=gg.CrossEntropy(class_weights=...)"
        )
    if loss in CLASS_LOSSES:
        return int(np.prod(output))
    if loss == "binary_cross_entropy" and int(np.prod(output)) == 1:
        return 2
    raise ValueError(
        f"class_weight: allowed where targets are classes: loss='cross_entropy', or 'binary_cross_entropy' with one "
        f"output; here loss='{loss}' with output {tuple(output)}"
    )


_IGNORED = -1  # the class of a target that the loss ignores


def _classes(part: Dataset, loss: str, output: Sequence[int], ignored: int | None) -> NDArray[np.int64]:
    _class_count(loss, output)
    if len(part.target_shapes) > 1:
        raise ValueError(
            "class_weight: allowed where a network has one output; of several, losses have weights of classes"
        )
    found = targets_array(part.targets, loss, output, f"{part.name}: targets", ignored).reshape(-1)
    broken = np.flatnonzero(found != np.floor(found))
    if len(broken):
        raise ValueError(
            f"{part.name}: targets[{broken[0]}] is {found[broken[0]]}; class_weight wants targets that are 0 or 1"
        )
    classes = found.astype(np.int64)
    return classes if ignored is None else np.where(classes == ignored, _IGNORED, classes)


def held_out(split: float | int, count: int) -> int:
    """The number of samples, out of `count`, for fit's validation_split; ValueError, TypeError: invalid."""
    if hasattr(split, "__index__"):
        return integer("validation_split", split, 1, count - 1)
    size = round(number("validation_split", split, above=0.0, below=1.0) * count)
    if not 0 < size < count:
        raise ValueError(f"validation_split={split!r}: {size} of {count} samples; both parts want one at least")
    return size


def _validation_part(data: Dataset, split: float | int, seed: int) -> tuple[Dataset, Dataset]:
    size = held_out(split, len(data))
    if data.streams:  # windows carry a state on, so both parts must be without gaps
        return data[: len(data) - size], data[len(data) - size :]
    drawn = _core.permutation(seed, "validation", len(data))
    return data[np.sort(drawn[size:])], data[np.sort(drawn[:size])]


# ---- reading the caller's intention


@dataclass(frozen=True)
class Arity:
    """Numbers of inputs and targets of a network, which decide the meaning of a tuple of arrays."""

    inputs: int = 1
    targets: int = 1


ONE = Arity()


def _axes(value: Any) -> int:
    """The number of axes, as far as that is plain."""
    if hasattr(value, "ndim"):
        return int(value.ndim)
    return 1 if isinstance(value, (list, tuple)) else 0


def _are_fields(value: Any, count: int) -> bool:
    """True for one array if `count` is 1, for `count` arrays in a tuple or list, and for a dict that is not empty."""
    if isinstance(value, Mapping):
        return len(value) > 0  # missing names are reported later
    if count == 1:
        return _axes(value) > 0
    return isinstance(value, (tuple, list)) and len(value) == count and all(_axes(one) for one in value)


def _is_set(value: Any, arity: Arity = ONE) -> bool:
    """True for a Dataset, or a pair (samples, targets)."""
    if isinstance(value, Dataset):
        return True
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return pair and _are_fields(value[0], arity.inputs) and _are_fields(value[1], arity.targets)


def _fields(value: Any, count: int) -> Any:
    """Several arrays in the form that Dataset takes."""
    return tuple(value) if count > 1 and isinstance(value, list) else value


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{type(value).__name__} of {', '.join(map(repr, value)) or 'nothing'}"
    shape = None if isinstance(value, Dataset) else getattr(value, "shape", None)
    return f"{type(value).__name__} of shape {tuple(shape)}" if shape is not None else type(value).__name__


def one(data: Any, y: Any, what: str, sharded: bool, ranks: int, arity: Arity = ONE) -> Given:
    """The set of (data, y), or of data alone, if y is None.

    what: the argument's name. ranks: the number in this process; each brings a part if `sharded`. With more than one,
    data is a list of sets, or data and y are lists of arrays.
    """
    if not sharded:
        return Given((_single(data, y, what, arity),), False)
    if ranks == 1:
        if arity == ONE and _is_list_of_one(data, y):
            data, y = data[0], None if y is None else y[0]
        return Given((_single(data, y, what, arity),), True)
    for argument, value in ((what, data), ("y", y)):
        if value is None and argument == "y":
            continue
        if not isinstance(value, (list, tuple)) or len(value) != ranks:
            found = f"{len(value)} of them" if isinstance(value, (list, tuple)) else _describe(value)
            raise ValueError(
                f"{argument}: with sharded=True a virtual cluster wants a list of {ranks} parts, one a rank; "
                f"got {found}"
            )
    targets = [None] * ranks if y is None else y
    parts = [_single(x, t, f"{what}[{rank}]", arity) for rank, (x, t) in enumerate(zip(data, targets, strict=True))]
    for rank, part in enumerate(parts):
        check_alike(f"{what}[{rank}]", part.class_names, f"{what}[0]", parts[0].class_names)
    return Given(tuple(parts), True)


def _is_list_of_one(data: Any, y: Any) -> bool:
    """True for the lists of a virtual cluster of one rank."""
    if not isinstance(data, (list, tuple)) or len(data) != 1:
        return False
    if y is None:
        return _is_set(data[0])
    return isinstance(y, (list, tuple)) and len(y) == 1 and _axes(y[0]) > 0


def _single(data: Any, y: Any, what: str, arity: Arity = ONE) -> Dataset:
    if y is None:
        if not _is_set(data, arity) and _axes(data):
            raise TypeError(
                f"{what} is a {_describe(data)}, without targets; allowed: two arrays (x, y), a pair of arrays, or a "
                "gossipgrad.data.Dataset"
            )
        if not isinstance(data, Dataset) and isinstance(data, (tuple, list)) and len(data) == 2:
            data = (_fields(data[0], arity.inputs), _fields(data[1], arity.targets))
        return as_dataset(data, what)
    if isinstance(data, Dataset):
        raise TypeError(f"{what} is a Dataset, which has its targets, and y is a {_describe(y)}; allowed: one of both")
    if isinstance(y, Dataset) or not _are_fields(y, arity.targets):
        wanted = "an array (n, ...)" if arity.targets == 1 else f"{arity.targets} arrays (n, ...)"
        raise TypeError(f"y is a {_describe(y)}; wanted the targets of {what}, {wanted}")
    return as_dataset((_fields(data, arity.inputs), _fields(y, arity.targets)), what)


def training_sets(
    train: Any, y: Any, validation: Any, sharded: bool, ranks: int, arity: Arity = ONE
) -> tuple[Given, Given | None]:
    """(train, validation) of fit(x, y), fit((x, y)), fit(data), each with validation=, or of fit(data, validation).

    TypeError if the arguments are ambiguous.
    """
    several = sharded and ranks > 1

    def are_sets(values: Any) -> bool:
        return all(_is_set(value, arity) for value in values)

    is_set = bool(train) and are_sets(train) if several and isinstance(train, (list, tuple)) else _is_set(train, arity)
    if y is not None and is_set:
        meant = isinstance(y, (list, tuple)) and len(y) == ranks and are_sets(y) if several else _is_set(y, arity)
        if not meant:
            raise TypeError(
                f"train is samples with targets already, and the second argument a {_describe(y)}; allowed: "
                "fit(x, y) with two arrays, fit((x, y)), fit(data), and validation data as validation=(x, y)"
            )
        if validation is not None:
            raise TypeError("validation is given twice: as the second argument and by name")
        y, validation = None, y
    elif y is not None and not several and isinstance(y, tuple) and _is_set(y, arity):
        raise TypeError(
            f"train is a {_describe(train)} and the second argument a pair; allowed: fit(x, y, validation=(x, y))"
        )
    first = one(train, y, "train", sharded, ranks, arity)
    if validation is None:
        return first, None
    second = one(validation, None, "validation", sharded, ranks, arity)
    check_alike("validation", second.first.class_names, "the training set", first.first.class_names)
    return first, second
