"""The files of a checkpoint: PATH, the consensus weights as safetensors, and PATH.state/, all ranks' own state.

PATH.state/step-<step>-<token>/rank-00000.safetensors holds a rank's arenas, each array as "<arena>/<parameter>":
"weight/...", and the moments of the optimiser, such as "momentum/...". The metadata of PATH name its folder, and the
checksum of each rank's file. A save writes a new folder, then replaces PATH in one step, then removes the old folder.
So even if it is interrupted, PATH and its folder belong together. Every file has a checksum for each array and for its
header, compared when it is read.

A save holds a lock on PATH.state/; a Checkpoint callback holds it as long as fit runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import CheckpointError
from gossipgrad.state import safetensors
from gossipgrad.state.files import locked_folder, opened, sync_folder

FORMAT = "gossipgrad-checkpoint-2"
Arrays = dict[str, NDArray[np.float32]]

_STATE = re.compile(r"step-[0-9]{8,}-[0-9a-f]{8}")


def state_root(path: str) -> str:
    return f"{path}.state"


def state_name(step: int, token: bytes) -> str:
    """The folder of a save in state_root; `token`: four random bytes, the same on all ranks."""
    return f"step-{step:08}-{token.hex()}"


def rank_file(path: str, state: str, rank: int) -> str:
    return os.path.join(state_root(path), state, f"rank-{rank:05}.safetensors")


# ---- the lock


@dataclass
class _Held:
    """A lock of this process."""

    handle: int
    users: int = 0


_held: dict[str, _Held] = {}  # by the real path of the folder


def lock(path: str) -> str:
    """No other process saves to PATH until unlock, which takes the result. CheckpointError, OSError.

    The folder of PATH must exist, and PATH, if it exists, must be a regular file. Locks of one process nest, and end
    with it.
    """
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise CheckpointError(f"no such folder: {folder!r}")
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise CheckpointError("not a regular file; allowed: the path of a file to write")
    root = os.path.realpath(state_root(path))
    if root not in _held:
        handle = locked_folder(root)
        if handle is None:
            raise CheckpointError("another run saves there; allowed: a path of its own for each run")
        _held[root] = _Held(handle)
    _held[root].users += 1
    return root


def unlock(root: str) -> None:
    """End a lock. An empty folder is removed."""
    one = _held[root]
    one.users -= 1
    if one.users == 0:
        del _held[root]
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(root)
        os.close(one.handle)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    root = lock(path)
    try:
        yield
    finally:
        unlock(root)


# ---- writing


def prepare(path: str, state: str) -> None:
    """Make the folder of a new state (rank 0, which holds the lock, before the ranks write)."""
    root = state_root(path)
    os.makedirs(os.path.join(root, state), exist_ok=True)
    sync_folder(root)
    sync_folder(os.path.dirname(os.path.abspath(root)))


def write_rank(path: str, state: str, rank: int, step: int, parts: dict[str, Arrays]) -> str:
    """One rank's state: the arrays of each arena by name. Returns the file's checksum."""
    arrays = {f"{part}/{name}": array for part, own in parts.items() for name, array in own.items()}
    metadata = {"format": FORMAT, "rank": str(rank), "step": str(step)}
    return safetensors.write(rank_file(path, state, rank), arrays, metadata, checksums=True)


def commit(path: str, state: str, weights: Arrays, description: dict[str, Any]) -> None:
    """Replace PATH (rank 0, after all ranks have written) and remove the folders of other saves.

    `description` has the checksums of the ranks' files as "rank_files". Other files in PATH.state/ stay.
    """
    metadata = {"format": FORMAT, "state": state, "gossipgrad": json.dumps(description)}
    safetensors.write(path, weights, metadata, checksums=True)
    root = state_root(path)
    for name in os.listdir(root):
        if name != state and _STATE.fullmatch(name):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def discard(path: str, state: str) -> None:
    """Remove the folder of a failed save to free its space, unless PATH already names it."""
    try:
        named = read(path)[1]["state"] if os.path.exists(path) else ""
    except CheckpointError:  # PATH may name any
        return
    if named != state:
        shutil.rmtree(os.path.join(state_root(path), state), ignore_errors=True)


# ---- reading


def read(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, Any]]:
    """(consensus weights, description) of PATH; the description has a key "state". CheckpointError."""
    path = os.fspath(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path}: a folder; a checkpoint is named by its .safetensors file")
    arrays, metadata = safetensors.read(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: weights without a trainer's state; net.load_weights({path!r}) loads them into a network"
            if "gossipgrad" not in metadata
            else f"{path}: a checkpoint of the format {metadata.get('format')!r}; allowed: {FORMAT!r}"
        )
    safetensors.header_digest(path, metadata)
    try:
        description, state = dict(json.loads(metadata["gossipgrad"])), metadata["state"]
        if not _STATE.fullmatch(state):  # the name becomes a path
            raise ValueError(f"state {state!r}: allowed: {state_name(0, bytes(4))!r} and the like")
        digests = description["rank_files"]
        if not isinstance(digests, list) or len(digests) != description["ranks"]:
            raise ValueError("rank_files: wanted a checksum for each rank")
        return arrays, description | {"state": state}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its description cannot be read ({error})") from error


def saved_at(description: Mapping[str, Any]) -> str:
    """The time of the save, in words: after "epoch 3", or within an epoch, after "step 1200, in epoch 4"."""
    if description.get("position") is None:
        return f"epoch {description['epoch']}"
    return f"step {description['step']}, in epoch {description['epoch'] + 1}"


def last_checkpoint(path: str | None) -> str:
    """For a message: "; the last checkpoint is PATH (epoch 3)", or that there is none; "" if none was requested.

    Within an epoch it is "PATH (step 1200, in epoch 4)".
    """
    if not path:
        return ""
    try:
        with opened(path) as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        when = saved_at(json.loads(head["__metadata__"]["gossipgrad"]))
    except FileNotFoundError:
        return "; no checkpoint was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError, RecursionError):
        return f"; see {path}"
    return f"; the last checkpoint is {path} ({when})"


def read_rank(path: str | os.PathLike[str], description: dict[str, Any], rank: int) -> dict[str, Arrays]:
    """One rank's state as it was given to write_rank; `description`: from read.

    CheckpointError if the file is missing, damaged, or not the one that was saved together with PATH.
    """
    name = rank_file(os.fspath(path), description["state"], rank)
    arrays, metadata = safetensors.read(name)
    if metadata.get("format") != FORMAT or metadata.get("rank") != str(rank):
        raise CheckpointError(f"{name}: not the state of rank {rank}")
    if metadata.get("step") != str(description["step"]):
        raise CheckpointError(f"{name}: the state after step {metadata.get('step')}, not {description['step']}")
    if safetensors.header_digest(name, metadata) != description["rank_files"][rank]:
        raise CheckpointError(f"{name}: of another save or run than {os.fspath(path)}, by its checksum")
    parts: dict[str, Arrays] = {}
    for key, array in arrays.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = array
    return parts
