"""Common parts of the networks: their arguments, and initial weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from gossipgrad.errors import integer, named_keywords, number
from gossipgrad.layers import Init, Layer, Node
from gossipgrad.model import Input

Shape = Sequence[int]  # (channels, height, width)
_Made = TypeVar("_Made", bound=Callable[..., Any])


def network(make: _Made) -> _Made:
    """A function that makes a network by name: an unknown keyword is an error with a hint."""
    known = named_keywords(make)

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        for one in ("weights", "pretrained"):
            if one in kwargs:
                raise TypeError(f"{make.__name__}() has no keyword {one!r}; net.load_weights(FILE) loads weights")
        return known(*args, **kwargs)

    return cast(_Made, made)


def image(shape: Any) -> Node:
    """The input of a network for images; `shape` is its argument input=."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"input={shape!r}: allowed: (channels, height, width), as (3, 224, 224)")
    return Input(tuple(integer(f"input[{i}]", size, 1) for i, size in enumerate(shape)))


def at_least(argument: str, value: Any, least: int = 1) -> int:
    """An argument that counts something."""
    return integer(argument, value, least)


def rate(value: Any, argument: str = "dropout") -> float:
    """The argument dropout=, a probability."""
    return number(argument, value, 0.0, below=1.0)


def chain(node: Node, layers: Sequence[Layer]) -> Node:
    """The layers one after another."""
    for layer in layers:
        node = layer(node)
    return node


def fan_out(out: int, kernel: int) -> Init:
    """PyTorch's kaiming_normal_(mode="fan_out", nonlinearity="relu"): He et al. 2015, of the backward pass."""
    return "normal", math.sqrt(2.0 / (out * kernel * kernel))
