"""Arrays and layers that a caller gives to an exchange: checks, float32 copies, and shapes for the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.errors import did_you_mean, not_finite, plain_array, unreadable
from gossipgrad.launch import agreement, stall

Array = NDArray[np.float32]
Arrays = dict[str, Array]

ROLES = ("weight", "bias", "scale", "shift", "statistic")
FAMILIES = ("other", "conv", "linear", "recurrent")
_MAX_AXES = 5  # of a parameter in the core; arrays of more are flat there
_Parameter = tuple[str, Sequence[int], str, str, float, float]  # as _core.Exchange wants it


def floats(what: str, value: Any) -> NDArray[Any]:
    """An array of floating numbers in the host's memory, NumPy's or by DLPack; without a copy if possible."""
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        try:
            value = np.from_dlpack(value)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise TypeError(unreadable(what, value, error)) from error
    array = plain_array(what, value)
    if array.dtype.kind != "f":
        raise TypeError(f"{what} has dtype {array.dtype}; allowed: floating numbers, which become float32")
    return array


def named(what: str, given: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """`given`, if it is a mapping with exactly these names."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a {type(given).__name__}; wanted a mapping from names to arrays")
    for name in given:
        if name not in names:
            raise ValueError(
                f"{what}: no array is named {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}"
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"{what}: {', '.join(map(repr, missing))} missing; allowed: all of {', '.join(names)}")
    return given


def _check_finite(what: str, array: Array) -> None:
    if found := not_finite(array):
        raise ValueError(f"{what}{found}; allowed: finite numbers of float32")


def _core_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) <= _MAX_AXES else (int(np.prod(shape)),)


class Shapes(dict[str, tuple[int, ...]]):
    """The shapes of an exchange's arrays by name, in their order, and arrays made to fit them."""

    def fitting(self, name: str, value: Any) -> Array:
        """A float32 copy of a value for the array of this name."""
        given = floats(f"{name!r}", value)
        if given.shape != self[name]:
            raise ValueError(f"{name!r} has shape {given.shape}; the exchange's is {self[name]}")
        with np.errstate(over="ignore"):  # it becomes inf, which is an error
            return given.astype(np.float32)

    def fitting_all(self, what: str, given: Any) -> Arrays:
        """float32 copies of all arrays, of finite numbers; `what` names the mapping in errors."""
        made = {name: self.fitting(name, value) for name, value in named(what, given, list(self)).items()}
        for name, array in made.items():
            _check_finite(f"{what}: {name!r}", array)
        return made

    def flat(self, arrays: Mapping[str, Any]) -> Arrays:
        """Arrays as the core expects them: contiguous, of its shapes."""
        return {
            name: np.ascontiguousarray(arrays[name], np.float32).reshape(_core_shape(shape))
            for name, shape in self.items()
        }

    def shaped(self, arrays: Mapping[str, Array]) -> Arrays:
        """Arrays of the core, in the caller's shapes."""
        return {name: arrays[name].reshape(shape) for name, shape in self.items()}


def copies(arrays: Any) -> dict[str, Array]:
    """float32 copies of the given arrays, of finite numbers."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays is a {type(arrays).__name__}; wanted a mapping from names to arrays")
    if not arrays:
        raise ValueError("arrays: none; at least one is wanted")
    made = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"arrays: the name {name!r}; allowed: texts that are not empty")
        array = floats(f"arrays[{name!r}]", value)
        if array.size == 0:
            raise ValueError(f"arrays[{name!r}] has shape {array.shape}; wanted at least one element")
        with np.errstate(over="ignore"):  # it becomes inf, which is an error
            made[name] = np.array(array, np.float32)
        _check_finite(f"arrays[{name!r}]", made[name])
    return made


def _of_all(
    argument: str, given: Mapping[str, str] | None, names: Sequence[str], allowed: Sequence[str]
) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{argument} is a {type(given).__name__}; wanted a mapping from names of arrays")
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"{argument}: no array is named {name!r}{did_you_mean(name, names)}")
        if value not in allowed:
            raise ValueError(
                f"{argument}[{name!r}]={value!r}: allowed: {', '.join(allowed)}{did_you_mean(value, allowed)}"
            )
    return dict(given)


def _role(name: str) -> str:
    return "bias" if name.rpartition(".")[2] in ("bias", "b") else "weight"


def _family(shape: tuple[int, ...]) -> str:
    return "conv" if len(shape) > 2 else "linear" if len(shape) == 2 else "other"


def described(
    start: Mapping[str, Array],
    layers: Mapping[str, Sequence[str]] | None,
    roles: Mapping[str, str] | None,
    families: Mapping[str, str] | None,
) -> list[tuple[str, list[_Parameter]]]:
    """Layers and parameters as _core.Exchange expects them."""
    names = list(start)
    of_role = _of_all("roles", roles, names, ROLES)
    of_family = _of_all("families", families, names, FAMILIES)
    if layers is None:
        layers = {name: [name] for name in names}
    elif not isinstance(layers, Mapping):
        raise TypeError(f"layers is a {type(layers).__name__}; wanted a mapping from names to names of arrays")
    layers = {name: one if isinstance(one, str) else list(one) for name, one in layers.items()}
    seen: list[str] = []
    for layer, members in layers.items():
        if isinstance(members, str) or not members:
            raise ValueError(f"layers[{layer!r}]={members!r}: allowed: a sequence of names of arrays, at least one")
        for name in members:
            if name not in names:
                raise ValueError(f"layers[{layer!r}]: no array is named {name!r}{did_you_mean(name, names)}")
            if name in seen:
                raise ValueError(f"layers[{layer!r}]: {name!r} is in two layers; allowed: one")
            seen.append(name)
    missing = [name for name in names if name not in seen]
    if missing:
        raise ValueError(f"layers: {', '.join(map(repr, missing))} in none; every array is in one")
    listed = []
    for layer, members in layers.items():
        parts: list[_Parameter] = []
        for name in members:
            shape = start[name].shape
            role, family = of_role.get(name, _role(name)), of_family.get(name, _family(shape))
            parts.append((name, _core_shape(shape), role, family, 1.0, 1.0))
        listed.append((str(layer), parts))
    return listed


def of_root(team: _core.Team, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """Rank 0's arrays, the common start of all ranks."""
    if agreement.alone(team):
        return arrays
    with stall.within("Exchange"):
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
        flat = np.frombuffer(team.broadcast(data, 0), np.float32)
    ends = np.cumsum([array.size for array in arrays.values()])
    parts = np.split(flat, ends[:-1])
    return {name: part.reshape(array.shape) for (name, array), part in zip(arrays.items(), parts, strict=True)}
