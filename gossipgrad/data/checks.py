"""Checks of samples, targets, weights and scales, made arrays that the core reads, without a copy if possible."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import number, plain_array
from gossipgrad.launch.terminal import Bar

CLASS_LOSSES = ("cross_entropy",)
PIECE = 1 << 20  # bytes checked together
LARGE = 1 << 30  # bytes of an array whose reading takes seconds


def samples_array(samples: Any, what: str = "samples", integers: bool = False) -> NDArray[Any]:
    """`samples` as a C-contiguous uint8 or float32 array of at least one dimension.

    uint8 and float32 are used as they are; bool becomes uint8; other integers and floats become float32, a copy
    (integers beyond 2^24 are rounded). integers: they become int32, if all fit. TypeError for anything else.
    """
    array = plain_array(what, samples)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    elif array.dtype.kind not in "iuf":
        raise TypeError(f"{what}: dtype {array.dtype}; allowed: uint8, float32, and numbers that become float32")
    elif array.dtype not in (np.dtype(np.uint8), np.dtype(np.float32)):
        with np.errstate(over="ignore"):  # overflow gives inf, which check_finite finds
            array = array.astype(np.int32 if integers and fits_int32(array) else np.float32, copy=False)
    if array.ndim < 1:
        raise ValueError(f"{what}: a single number; wanted an array (n, ...)")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def unrounded(given: Any, stored: NDArray[Any]) -> NDArray[Any] | None:
    """`given` as an array, if samples_array rounded it to the float32 of `stored`; None: nothing was rounded."""
    array = plain_array("samples", given)
    if stored.dtype != np.float32 or (array.dtype.kind == "f" and np.array_equal(array, stored)):
        return None
    return array


def fits_int32(array: NDArray[Any]) -> bool:
    """True for integers that int32 holds."""
    if array.dtype.kind not in "iu":
        return False
    if np.can_cast(array.dtype, np.int32):
        return True
    limits = np.iinfo(np.int32)
    return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def check_finite(array: NDArray[Any], what: str) -> None:
    """ValueError that names the first entry, along the first axis, with a NaN or an infinite element, and its place.

    Reads the array once, in pieces and without a copy; shows a bar if that takes long. Integers are not read.
    """
    if array.dtype.kind != "f" or not array.size:
        return
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
            # The sum is not finite if an element is not; after an overflow of the sum the elements are checked.
            if np.isfinite(piece.sum()) or np.isfinite(piece).all():
                continue
            entry, *place = (int(i) for i in np.argwhere(~np.isfinite(piece))[0])
            value = piece[(entry, *place)]
            name = "NaN" if np.isnan(value) else f"{value}"
            found = f"has {name} at {place}" if place else f"is {name}"
            raise ValueError(f"{what}[{begin + entry}] {found}; allowed: finite numbers")


def _numbers(targets: Any, what: str) -> NDArray[Any]:
    array = plain_array(what, targets)
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
    """A class for each position of a sample, or for the sample; `ignored` is also allowed."""
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
    """`targets` in the form of the loss, for a network with this output shape of one sample.

    cross_entropy: (n,) or (n, 1) classes in 0..classes-1, integers, bools or floats that are whole, or one-hot rows
    (n, classes) -> int32 (n,); for outputs (..., classes) a class for each position, (n, ...) -> int32 (n, ...); and
    `ignored`, if that is a number. Others: (n, ...) finite numbers with as many values a sample as the network's
    output, for binary_cross_entropy in 0..1 -> float32 (n, k). Errors name the shapes, or the first wrong target.
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
        classes = values == 1 and array.min() >= 0 and not np.mod(array, 1).any()
        hint = "; of several classes: loss='cross_entropy', with an output for each" if classes else ""
        place = ", ".join(map(str, bad))
        raise ValueError(f"{what}[{place}] is {array[bad]}; loss='{loss}' wants targets in 0..1{hint}")
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(array.reshape(len(array), values), np.float32)
    check_finite(made, what)  # a float64 may be too large
    return made


def shape_hint(shape: Sequence[int], wanted: Sequence[int]) -> str:
    """Advice to turn samples of one shape into another, if that is plain; begins with "; ". Else "".

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
    """`weights` as float32 (count,): finite and at least 0. Errors name the first other one."""
    array = plain_array(what, weights)
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
    array = plain_array(argument, value)
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
    """A scale or shift as float32 that NumPy broadcasts over samples (n, *shape)."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1, *(1,) * (len(shape) - 1)) if value.ndim == 1 else value
    return np.float32(value)  # type: ignore[return-value]
