"""Foreign weights: files and dictionaries, and their match with a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import CheckpointError, listed, plain_array
from gossipgrad.state import safetensors, torch_file

_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
SHOWN = 20  # names that a message lists
_COUNTERS = ".num_batches_tracked"  # of PyTorch's BatchNorm: count of batches; no momentum here needs it


class Misfit(NamedTuple):
    """Misfits between given weights and a network: names, and for `shapes` (given, wanted) by name."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]

    def __bool__(self) -> bool:
        """True if there is any."""
        return bool(self.missing or self.extra or self.shapes)

    def __str__(self) -> str:
        """One line, with the first SHOWN of each kind."""
        parts = [f"it has no {listed(self.missing)}"] if self.missing else []
        parts += [f"it has {listed(self.extra)}, which the network lacks"] if self.extra else []
        shapes = list(self.shapes.items())
        parts += [f"{name} has shape {given}, in the network {wanted}" for name, (given, wanted) in shapes[:SHOWN]]
        parts += [f"{len(shapes) - SHOWN:,} more have other shapes"] if len(shapes) > SHOWN else []
        return "; ".join(parts)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file of weights, as NumPy arrays by name: .safetensors, or .pt and .pth of torch.save.

    Code in a file is never run, and PyTorch is not needed. A file that holds more than weights, as
    {"model": ..., "optimizer": ..., "step": 7}, gives nested dictionaries. bfloat16 and float8 become float32.
    CheckpointError: missing, damaged, another format, or with other things in it than data.
    """
    name = os.fspath(path)
    content = safetensors.content(name)
    if not torch_file.is_one(content[:16]):
        return safetensors.read(name)[0]
    found = torch_file.read(name, content)
    if not isinstance(found, dict):
        raise CheckpointError(f"{name}: holds a {type(found).__name__}; wanted a dictionary, as net.state_dict() gives")
    return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def _array(value: Any, what: str) -> NDArray[Any]:
    """A tensor of PyTorch, or any value that NumPy can make an array of."""
    if not hasattr(value, "detach"):
        return plain_array(what, value)
    value = value.detach().cpu()
    try:
        return np.asarray(value.numpy())
    except TypeError:  # NumPy has no such type, as bfloat16
        return np.asarray(value.float().numpy())


def _alone(content: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """The weights in a file that may hold more: itself, or its only entry that is a dictionary of tensors."""
    if not content or not any(isinstance(value, Mapping) for value in content.values()):
        return content
    inside = {
        key: value
        for key, value in content.items()
        if isinstance(value, Mapping) and value and all(map(_is_tensor, value.values()))
    }
    if len(inside) == 1:
        return next(iter(inside.values()))
    found = f"{len(inside)} dictionaries of weights ({listed(map(repr, inside))})" if inside else "no weights"
    raise CheckpointError(
        f"{what}: holds {found} among its entries {listed(map(repr, content))}; allowed: one. "
        "gossipgrad.read_weights gives them all, and load_weights one of them"
    )


def _plain(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The weights without prefixes of wrappers, and without counters that the network lacks."""
    found = {str(name): value for name, value in content.items()}
    for _ in range(4):  # a wrapper in a wrapper
        for prefix in _WRAPPERS:
            if found and all(name.startswith(prefix) for name in found) and not any(n in wanted for n in found):
                found = {name[len(prefix) :]: value for name, value in found.items()}
    if not any("_orig_mod." in name for name in wanted):  # of modules that were compiled one by one
        found = {name.replace("_orig_mod.", ""): value for name, value in found.items()}
    return {name: value for name, value in found.items() if name in wanted or not name.endswith(_COUNTERS)}


def fit(
    weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], what: str
) -> tuple[dict[str, NDArray[np.float32]], Misfit]:
    """(copies of those that fit, as float32 in the order of `shapes`; the misfits).

    TypeError: no dictionary, or elements that are no numbers.
    """
    if not isinstance(weights, Mapping):
        of_module = "; of a module: its state_dict()" if callable(getattr(weights, "state_dict", None)) else ""
        raise TypeError(
            f"{what}: a {type(weights).__name__}; allowed: arrays by name, or the path of a file{of_module}"
        )
    found = _plain(_alone(weights, what), shapes)
    missing = tuple(name for name in shapes if name not in found)
    extra = tuple(name for name in found if name not in shapes)
    misshapen = {}
    copies = {}
    for name, shape in shapes.items():
        if name not in found:
            continue
        array = _array(found[name], f"{what}: {name}")
        if array.shape != shape:
            misshapen[name] = (array.shape, shape)
        elif array.dtype.kind not in "iuf":
            raise TypeError(f"{what}: {name} is of dtype {array.dtype}; wanted numbers")
        else:
            copies[name] = np.array(array, np.float32, order="C")
    return copies, Misfit(missing, extra, misshapen)


def opened(weights: Mapping[str, Any] | str | os.PathLike[str]) -> tuple[Mapping[str, Any], str]:
    """(the weights, their name in messages): arrays by name as they are, or a file's content."""
    if isinstance(weights, (str, os.PathLike)):
        return read(weights), os.fspath(weights)
    return weights, "weights"
