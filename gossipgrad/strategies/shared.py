"""Keywords of strategies: shared types, and fields and checks from the core's descriptions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, get_args

from gossipgrad import _core
from gossipgrad.described import checked, field_of
from gossipgrad.errors import store

WireDtype = Literal["float32", "bfloat16"]
Collectives = Literal["own", "mpi"]

WIRES = get_args(WireDtype)
COLLECTIVES = get_args(Collectives)
OPTIONS = _core.describe("strategy")


def option(strategy: str, key: str, **own: Any) -> Any:
    """A field with default and help of the core's option; own: default=, if Python has another."""
    return field_of({**OPTIONS[strategy][key], **own})


def check(strategy: Any, but: Collection[str] = ()) -> None:
    """Check the keywords that the core describes, except those with more values in Python."""
    for key, said in OPTIONS[strategy.name].items():
        if hasattr(strategy, key) and key not in but:
            store(strategy, **{key: checked(said, key, getattr(strategy, key))})
    if getattr(strategy, "collectives", "own") == "mpi" and strategy.wire_dtype != "float32":
        raise ValueError(
            f"wire_dtype={strategy.wire_dtype!r} with collectives='mpi': MPI has no sum of {strategy.wire_dtype}; "
            "allowed: 'float32', or collectives='own'"
        )
