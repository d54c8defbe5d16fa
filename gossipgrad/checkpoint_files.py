"""The files of a checkpoint: PATH, the consensus weights as safetensors, and PATH.state/, all ranks' own state.

PATH.state/<name>/rank-00000.safetensors holds a rank's "weight/...", "momentum/..." and "second_moment/..."; the
metadata of PATH says which <name> belongs to it. A save writes a new folder, then replaces PATH in one step, then
removes the old folder: whenever it is interrupted, PATH and its folder belong together.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import safetensors
from gossipgrad.errors import CheckpointError

FORMAT = "gossipgrad-checkpoint-1"
PARTS = ("weight", "momentum", "second_moment")
Arrays = dict[str, NDArray[np.float32]]


def state_root(path: str) -> str:
    return f"{path}.state"


def rank_file(path: str, state: str, rank: int) -> str:
    return os.path.join(state_root(path), state, f"rank-{rank:05}.safetensors")


def prepare(path: str, state: str) -> None:
    """Make the folder of a new state (rank 0, before the ranks write), in the folder of PATH, which must be there."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise CheckpointError(f"no such folder: {folder!r}")
    os.makedirs(os.path.join(state_root(path), state), exist_ok=True)


def write_rank(path: str, state: str, rank: int, step: int, parts: dict[str, Arrays]) -> None:
    """One rank's state: the arrays of each of PARTS by name."""
    arrays = {f"{part}/{name}": array for part in PARTS for name, array in parts[part].items()}
    metadata = {"format": FORMAT, "rank": str(rank), "step": str(step)}
    safetensors.write(rank_file(path, state, rank), arrays, metadata)


def commit(path: str, state: str, weights: Arrays, description: dict[str, Any]) -> None:
    """Replace PATH (rank 0, after all ranks have written) and remove what belonged to the old one."""
    metadata = {"format": FORMAT, "state": state, "gossipgrad": json.dumps(description)}
    safetensors.write(path, weights, metadata)
    root = state_root(path)
    for name in os.listdir(root):
        if name != state:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def read(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, Any]]:
    """(consensus weights, description) of PATH; the description has a key "state". CheckpointError."""
    path = os.fspath(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path}: a folder; a checkpoint is named by its .safetensors file")
    arrays, metadata = safetensors.read(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: weights without a trainer's state; net.load_weights({path!r}) takes them into a network"
        )
    try:
        description = json.loads(metadata["gossipgrad"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: its description cannot be read ({error})") from error
    return arrays, description | {"state": metadata["state"]}


def read_rank(path: str | os.PathLike[str], state: str, rank: int) -> dict[str, Arrays]:
    """One rank's state as it was given to write_rank. CheckpointError if the file is missing or damaged."""
    name = rank_file(os.fspath(path), state, rank)
    arrays, metadata = safetensors.read(name)
    if metadata.get("format") != FORMAT or metadata.get("rank") != str(rank):
        raise CheckpointError(f"{name}: not the state of rank {rank}")
    parts: dict[str, Arrays] = {part: {} for part in PARTS}
    for key, array in arrays.items():
        part, _, name = key.partition("/")
        if part in parts:
            parts[part][name] = array
    return parts
