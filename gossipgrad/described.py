"""Fields of dataclasses, and their checks, from the core's descriptions of options (_core.describe)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from gossipgrad.errors import choice, flag, integer, number
from gossipgrad.keywords import about


def metadata_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """A field's metadata: help, the meaning of None, and how the command line reads several numbers."""
    if not said["count"]:
        return about(said["help"], default=said["unset"])
    return about(said["help"], metavar=",".join("X" * said["count"]), read=_read_numbers)


def _read_numbers(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


def field_of(said: Mapping[str, Any]) -> Any:
    """A field with the default and the help of an option that need not be given."""
    return field(default=said["default"], metadata=metadata_of(said))


def checked(said: Mapping[str, Any], argument: str, value: Any) -> Any:
    """`value` in the core's form; TypeError, ValueError: invalid."""
    if value is None and said["unset"] is not None:
        return None
    if said["type"] == "flag":
        return flag(argument, value)
    if said["type"] == "name":
        return choice(argument, value, said["names"])
    if said["type"] == "integer":
        return integer(argument, value, **{key: int(limit) for key, limit in said["bounds"].items()})
    if not said["count"]:
        return _real(argument, value, **said["bounds"])
    if not isinstance(value, (tuple, list)) or len(value) != said["count"]:
        raise ValueError(f"{argument}={value!r}: allowed: {said['count']} numbers, as {said['default']}")
    return tuple(_real(f"{argument}[{i}]", one, **said["bounds"]) for i, one in enumerate(value))


def _real(argument: str, value: Any, **bounds: float) -> float:
    """A number that float32, in which the core computes, does not round to an excluded maximum."""
    made = number(argument, value, **bounds)
    if np.float32(made) == bounds.get("below"):
        raise ValueError(f"{argument}={value!r}: is 1 in float32; allowed: a finite number >= 0 and < 1 - 2**-25")
    return made
