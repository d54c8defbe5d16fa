"""Parts of a set, and its classes: the class of each sample, weights of classes, classes missing in a shard."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import integer, listed, number, plain_array


def sizes_of(parts: Any, count: int) -> list[int]:
    """The number of samples of each part."""
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


def runs_of(sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    ends = np.cumsum([0, *sizes])
    return [np.arange(begin, end) for begin, end in itertools.pairwise(ends)]


def stratified(targets: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Rows of each part: its share of each class, as nearly as whole samples allow."""
    classes = class_numbers(targets)
    if classes is None:
        raise ValueError("stratify=True: targets must be classes: integers (n,), or one-hot rows")
    left = np.argsort(classes, kind="stable")  # by class, and in each in the order drawn
    chosen = []
    for size in sizes[:-1]:
        # Evenly spread over the remaining rows: the part has its share of every run of them.
        ends = np.arange(1, len(left) + 1) * size // len(left)
        mine = np.diff(ends, prepend=0) > 0
        chosen.append(left[mine])
        left = left[~mine]
    return [*chosen, left]


def names_of(classes: Any) -> list[str] | None:
    """The argument classes=: names, or None."""
    if classes is None:
        return None
    if isinstance(classes, (str, bytes, Mapping)) or not isinstance(classes, Iterable):
        raise TypeError(f"classes={classes!r}: allowed: a list of names, or None")
    names = [str(one) for one in classes]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"classes: {listed(map(repr, names)) or 'none'}; allowed: at least one name, each once")
    return names


def differ(here: Sequence[str] | None, there: Sequence[str] | None) -> str | None:
    """The first class number with another meaning in two sets, in words; None: none, or a set's classes have no names.

    One list may be longer than the other.
    """
    for number_, (one, other) in enumerate(zip(here or (), there or (), strict=False)):
        if one != other:
            return f"number {number_} is {one!r} here and {other!r} there"
    return None


def check_alike(what: str, here: Sequence[str] | None, of: str, there: Sequence[str] | None) -> None:
    """ValueError if a class number means different classes in `what` and another set."""
    found = differ(here, there)
    if found is not None:
        raise ValueError(
            f"{what} has other classes than {of}: {found}, because each set numbers its own; allowed: the same names "
            "in the same order, as by classes=train.classes of image_folder and csv, test= of csv, vocabulary= of text"
        )


def class_numbers(targets: NDArray[Any]) -> NDArray[np.int64] | None:
    """The class of each sample, for integer or bool targets (n,) or (n, 1), or one-hot rows; None: no classes."""
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] == 1:
        whole = flat.dtype.kind in "iub" or (flat.dtype.kind == "f" and bool((flat == np.floor(flat)).all()))
        return flat[:, 0].astype(np.int64) if whole else None
    hot = bool(((flat == 0) | (flat == 1)).all()) and bool((flat.sum(axis=1, dtype=np.float64) == 1).all())
    return flat.argmax(axis=1).astype(np.int64) if hot else None


def class_weights(given: Any, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """One weight a class from fit's class_weight, which is not None; counts: samples of each class, of all ranks.

    {class: weight}, where missing classes have 1; one weight a class in an array; or "balanced": the number of
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
    array = plain_array("class_weight", given)
    if array.dtype.kind not in "iuf" or array.shape != (classes,):
        raise ValueError(
            f"class_weight: {type(given).__name__} of shape {array.shape}; allowed: 'balanced', a dict "
            f"{{class: weight}}, or one weight a class, {classes} of them"
        )
    for index, value in enumerate(array.tolist()):
        result[index] = number(f"class_weight[{index}]", value, 0.0)
    return result


def one_sided(targets: NDArray[Any], ranks: int) -> str | None:
    """The problem with contiguous shards of these classes: a shard has at most half the classes for its size.

    Samples that are sorted by class cause it. None: no problem, or the targets are no classes.
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
