"""Keywords that several strategies share: each function makes a field, with its help for the command line."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, get_args

from gossipgrad.errors import choice, flag, integer, store
from gossipgrad.keywords import about

WireDtype = Literal["float32", "bfloat16"]
Collectives = Literal["own", "mpi"]

WIRES = get_args(WireDtype)
COLLECTIVES = get_args(Collectives)
TUNED = "tuned at the start"


def wire_dtype() -> Any:
    return field(default="float32", metadata=about("type of what is sent"))


def collectives() -> Any:
    return field(default="own", metadata=about("who adds over all ranks: this package, or the MPI library"))


def bucket_bytes(default: str = TUNED) -> Any:
    return field(default=None, metadata=about("layers are joined to buckets of at least this size", default=default))


def chunk_bytes(default: str = TUNED) -> Any:
    return field(default=None, metadata=about("the longest message", default=default))


def shuffle_samples() -> Any:
    return field(default=False, metadata=about("move the samples from rank to rank while they are trained on"))


def push_sum() -> Any:
    return field(default=False, metadata=about("preserve the mean of the replicas, whoever sends to whom"))


def servers() -> Any:
    return field(default=1, metadata=about("the last N ranks hold the centre"))


def dedicated() -> Any:
    return field(default=False, metadata=about("these ranks do not train"))


def check(strategy: Any) -> None:
    """Check the keywords that several strategies have, those that this one has."""
    for key in ("bucket_bytes", "chunk_bytes"):
        if getattr(strategy, key, None) is not None:
            store(strategy, **{key: integer(key, getattr(strategy, key), 1)})
    for key in ("push_sum", "shuffle_samples", "dedicated"):
        if hasattr(strategy, key):
            store(strategy, **{key: flag(key, getattr(strategy, key))})
    if hasattr(strategy, "wire_dtype"):
        store(strategy, wire_dtype=choice("wire_dtype", strategy.wire_dtype, WIRES))
    if hasattr(strategy, "servers"):
        store(strategy, servers=integer("servers", strategy.servers, 1, 4096))
    if hasattr(strategy, "collectives"):
        store(strategy, collectives=choice("collectives", strategy.collectives, COLLECTIVES))
        if strategy.collectives == "mpi" and strategy.wire_dtype != "float32":
            raise ValueError(
                f"wire_dtype={strategy.wire_dtype!r} with collectives='mpi': MPI has no sum of {strategy.wire_dtype}; "
                "allowed: 'float32', or collectives='own'"
            )
