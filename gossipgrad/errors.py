"""The package's errors, and the checks that name the argument, its value and what is allowed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from gossipgrad._core import Cancelled, CommunicationError

__all__ = ["Cancelled", "CheckpointError", "CommunicationError", "DataError"]


class DataError(ValueError):
    """A data file is missing, damaged or not what it should be."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, incomplete, or of another model or group of ranks."""


def choice(argument: str, value: Any, allowed: Iterable[Any]) -> Any:
    """`value`, if it is one of `allowed`."""
    allowed = list(allowed)
    if not any(type(value) is type(a) and value == a for a in allowed):
        listed = ", ".join(repr(a) for a in allowed)
        raise ValueError(f"{argument}={value!r}: allowed: {listed}")
    return value


def flag(argument: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool) and type(value).__name__ != "bool_":
        raise TypeError(f"{argument}={value!r}: allowed: True or False")
    return bool(value)


def integer(argument: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int in low..high (high None: no limit)."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer in {low}..{high}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}")
    number = int(value.__index__())
    if number < low or (high is not None and number > high):
        raise ValueError(f"{argument}={value!r}: allowed: {allowed}")
    return number


def number(
    argument: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """`value` as a finite float with low <= value <= high, above < value < below; None: no such limit."""
    limits = [f">= {low:g}"] if low is not None else []
    limits += [f"> {above:g}"] if above is not None else []
    limits += [f"<= {high:g}"] if high is not None else []
    limits += [f"< {below:g}"] if below is not None else []
    allowed = " ".join(["a finite number", " and ".join(limits)]).strip()
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}") from None
    good = math.isfinite(result)
    good = good and (low is None or result >= low) and (high is None or result <= high)
    good = good and (above is None or result > above) and (below is None or result < below)
    if not good:
        raise ValueError(f"{argument}={value!r}: allowed: {allowed}")
    return result


def pair(argument: str, value: Any, low: int) -> tuple[int, int]:
    """(height, width) from one integer for both or two."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"{argument}={value!r}: allowed: one integer, or two (height, width)")
        return integer(argument, value[0], low), integer(argument, value[1], low)
    return (integer(argument, value, low),) * 2


def one_line(error: BaseException) -> str:
    """An error's text for a terminal: one line, never empty."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{os.fspath(error.filename)!s}: {error.strerror}"
    elif isinstance(error, KeyError):
        text = f"KeyError: {error}"
    else:
        text = str(error)
    text = " ".join(text.split())
    return text or type(error).__name__
