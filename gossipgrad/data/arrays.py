"""Data in memory: samples and targets as arrays, checked once, handed to the core without a copy where possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.errors import number

CLASS_LOSSES = ("cross_entropy",)


def samples_array(samples: Any, what: str = "samples") -> NDArray[Any]:
    """`samples` as a C-contiguous uint8 or float32 array of at least one dimension.

    uint8 and float32 are taken as they are; bool becomes uint8; other integers and floats become float32, a copy
    (integers beyond 2^24 are rounded). TypeError for anything else.
    """
    array = np.asarray(samples)
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    elif array.dtype.kind in "iuf" and array.dtype not in (np.dtype(np.uint8), np.dtype(np.float32)):
        array = array.astype(np.float32)
    elif array.dtype.kind not in "iuf":
        raise TypeError(f"{what}: dtype {array.dtype}; allowed: uint8, float32, and numbers that become float32")
    if array.ndim < 1:
        raise ValueError(f"{what}: a single number; wanted an array (n, ...)")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


def targets_array(targets: Any, loss: str, output: Sequence[int], what: str = "targets") -> NDArray[Any]:
    """`targets` as the loss wants them, for a network with this output shape of one sample.

    cross_entropy: (n,) or (n, 1) integers in 0..classes-1 -> int32 (n,). Others: (n, ...) numbers with as many
    values a sample as the network gives -> float32 (n, k). Errors name the shapes, or the first label out of range.
    """
    array = np.asarray(targets)
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{what}: dtype {array.dtype}; wanted numbers")
    if array.ndim < 1:
        raise ValueError(f"{what}: a single number; wanted an array (n, ...)")
    values = int(np.prod(output))
    if loss in CLASS_LOSSES:
        if len(output) != 1:
            raise ValueError(
                f"loss='{loss}' wants one score a class, a network output of shape (classes,); it is {tuple(output)}"
            )
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ValueError(f"{what}: shape {array.shape}; loss='{loss}' wants one class a sample: (n,)")
        if array.dtype.kind not in "iu":
            raise TypeError(f"{what}: dtype {array.dtype}; loss='{loss}' wants integers, the classes")
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= values):
            bad = int(np.flatnonzero((array < 0) | (array >= values))[0])
            raise ValueError(f"{what}[{bad}] is {array[bad]}; the network has classes 0..{values - 1}")
        return np.ascontiguousarray(array, np.int32)
    if array.size != len(array) * values:
        raise ValueError(
            f"{what}: shape {array.shape} has {array.size // max(len(array), 1)} values a sample; "
            f"the network's output {tuple(output)} has {values}"
        )
    return np.ascontiguousarray(array.reshape(len(array), values), np.float32)


class Dataset:
    """Samples (n, ...) with targets, in memory.

    samples: uint8 or float32, used without a copy if C-contiguous; other numbers become float32. What the network
    sees is scale * element + shift, computed batch by batch: uint8 pixels with scale=1/255 take a quarter of the room.
    targets: integer classes (n,) or numbers (n, ...); checked against the network and its loss when it is used.
    The arrays must not change while the set is in use.
    """

    def __init__(
        self, samples: Any, targets: Any, scale: float = 1.0, shift: float = 0.0, *, name: str = "arrays"
    ) -> None:
        self.name = name
        self.samples = samples_array(samples)
        self.targets = np.asarray(targets)
        self.scale = number("scale", scale)
        self.shift = number("shift", shift)
        if self.targets.ndim < 1 or len(self.samples) != len(self.targets):
            count = len(self.targets) if self.targets.ndim else "one number as"
            raise ValueError(f"{len(self.samples)} samples but {count} targets")
        if not len(self.samples):
            raise ValueError("samples: empty")
        self._cores: dict[tuple[str, tuple[int, ...]], _core.Dataset] = {}

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.samples.shape[1:])

    def __repr__(self) -> str:
        return f"<Dataset {self.name}: {len(self)} samples {self.shape} {self.samples.dtype}>"

    def __getitem__(self, index: slice) -> Dataset:
        """A part of the set: data[:1000]. No copy for steps of 1."""
        if not isinstance(index, slice):
            raise TypeError(f"index={index!r}: allowed: a slice, as in data[:1000]")
        return Dataset(self.samples[index], self.targets[index], self.scale, self.shift, name=self.name)

    def batches(self, size: int) -> Iterator[NDArray[np.float32]]:
        """The samples in order as the network sees them, float32, `size` at a time."""
        for begin in range(0, len(self), size):
            part = self.samples[begin : begin + size]
            if part.dtype == np.float32 and self.scale == 1.0 and self.shift == 0.0:
                yield part
            else:
                yield part.astype(np.float32) * np.float32(self.scale) + np.float32(self.shift)

    def for_network(self, loss: str, input_shape: Sequence[int], output: Sequence[int]) -> _core.Dataset:
        """The core's view of the set for a network of these shapes. ValueError names what does not fit."""
        if self.shape != tuple(input_shape):
            hint = ""
            if np.prod(self.shape) == np.prod(input_shape):
                hint = f"; reshape them: x.reshape(-1, {', '.join(map(str, input_shape))})"
            raise ValueError(
                f"{self.name}: samples of shape {self.shape}, but the network's input is {tuple(input_shape)}{hint}"
            )
        key = (loss, tuple(output))
        if key not in self._cores:
            targets = targets_array(self.targets, loss, output, f"{self.name}: targets")
            self._cores[key] = _core.Dataset(self.samples, targets, self.scale, self.shift)
        return self._cores[key]


def as_dataset(data: Any, what: str) -> Dataset:
    """A Dataset from one, or from a pair (samples, targets) of arrays; `what` is the argument's name."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        try:
            return Dataset(data[0], data[1], name=what)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from None
    raise TypeError(f"{what} is a {type(data).__name__}; allowed: a gossipgrad.data.Dataset, or (samples, targets)")


def one_sided(targets: NDArray[Any], ranks: int) -> str | None:
    """What is wrong with contiguous shards of these classes: one of them has less than half the classes for its size.

    Samples that are sorted by class do that. None: nothing, or the targets are no classes.
    """
    classes = np.asarray(targets).reshape(len(targets), -1)
    if ranks < 2 or classes.dtype.kind not in "iu" or classes.shape[1] != 1:
        return None
    _, index = np.unique(classes[:, 0], return_inverse=True)
    count = int(index.max()) + 1
    for rank, shard in enumerate(np.array_split(index, ranks)):
        found = len(np.unique(shard))
        if 2 * found < min(count, len(shard) // 4):
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
