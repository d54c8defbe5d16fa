"""Partners of gossip: topologies by name, and tables of partners."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import choice, integer
from gossipgrad.state.files import content, opened

TopologyName = Literal["dissemination", "cube", "ring", "exponential", "random"]
Topology = TopologyName | Sequence[Sequence[int]] | NDArray[np.integer[Any]]

TOPOLOGIES = get_args(TopologyName)


def check_topology(topology: Any) -> str | tuple[tuple[int, ...], ...]:
    """A topology's name, or a table [period, p] as tuples; the core checks the partners when it knows p."""
    if isinstance(topology, str):
        return str(choice("topology", topology, TOPOLOGIES))
    allowed = ", ".join(repr(name) for name in TOPOLOGIES) + ", or integers of shape [period, ranks]"
    try:
        table = np.asarray(topology)
    except ValueError:
        raise ValueError(f"topology: rows of different lengths; allowed: {allowed}") from None
    if table.ndim != 2 or table.dtype.kind not in "iu":
        what = f"an array of shape {table.shape} and dtype {table.dtype}" if table.ndim else repr(topology)
        raise ValueError(f"topology: {what}; allowed: {allowed}")
    return tuple(tuple(int(partner) for partner in row) for row in table)


def check_permutations(permutations: Any, topology: Any, rotate: bool) -> int | None:
    """The number of permutations of the ranks that take turns; None: a new one after each cycle. `topology` was
    checked."""
    if permutations is None:
        return None
    number = integer("permutations", permutations, 1, 2**31 - 1)
    if not rotate:
        raise ValueError(f"permutations={number} with rotate=False, where no ranks change places; allowed: None")
    if topology == "random" or not isinstance(topology, str):
        what = "'random', which draws pairs anew for every step" if topology == "random" else "a table"
        raise ValueError(
            f"permutations={number} with topology={what}: ranks do not change places there; allowed: None, or one of "
            f"{', '.join(repr(name) for name in TOPOLOGIES if name != 'random')}"
        )
    return number


def read_topology(text: str) -> str | tuple[tuple[int, ...], ...]:
    """A topology's name, or the table in a file: .npy, .json, or text with a line a step. ValueError, OSError."""
    if not text:
        raise ValueError(f"empty; allowed: {', '.join(TOPOLOGIES)}, or a file")
    kind = os.path.splitext(text)[1]
    return check_topology(_table(text, kind) if kind else text)


def _table(path: str, kind: str) -> Any:
    try:
        if kind == ".json":
            return json.loads(content(path))
        with opened(path) as file:
            return np.load(file) if kind == ".npy" else np.loadtxt(file, dtype=np.int64, ndmin=2)
    except (EOFError, RecursionError) as error:
        raise ValueError(f"{path}: damaged: {error}") from error


def core_topology(topology: Topology | str) -> str | NDArray[np.int64]:
    """The core's form of a topology that check_topology returned."""
    return topology if isinstance(topology, str) else np.array(topology, np.int64, ndmin=2)
