"""Facts that must be equal on all ranks, for an agreement: networks, weights, data, files, the environment.

Checksums stand for large values. They are of bytes, so NaN equals itself.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.callbacks import Callback, CSVLogger, JSONLLogger, StopOnNaN
from gossipgrad.data.arrays import Dataset
from gossipgrad.model import Model
from gossipgrad.training.progress import ProgressBar

# Max rows and bytes of a set's samples that are compared; targets are compared completely.
ROWS, BYTES = 64, 1 << 20
# Variables that determine partners and forms of exchange.
VARIABLES = ("GOSSIPGRAD_RANKS_PER_NODE", "GOSSIPGRAD_SHARED", "GOSSIPGRAD_MPI_CUDA")
# Callbacks that act on one rank alone, or independently of other ranks.
_OF_ONE_RANK = (ProgressBar, CSVLogger, JSONLLogger, StopOnNaN)


def checksum(*arrays: NDArray[Any]) -> str:
    """Checksum of arrays' bytes, types and shapes."""
    digest = hashlib.blake2b(digest_size=4)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return f"checksum {digest.hexdigest()}"


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that must be equal on all ranks."""
    return {name: variables.get(name, "not set") for name in VARIABLES}


def network(net: Model) -> dict[str, Any]:
    """The layers in their order, with each one's kind, options and inputs."""
    layers = net.config()["layers"]
    names = [str(layer["name"]) for layer in layers]
    facts: dict[str, Any] = {"layers": " ".join(names)}
    for name, layer in zip(names, layers, strict=True):
        of = ", ".join(names[i] for i in layer["inputs"])
        facts[f"layer {name!r}"] = {"kind": layer["layer"], "inputs": of, **layer["options"]}
    return facts


def text(facts: Mapping[str, Any]) -> str:
    """A checksum of facts."""
    described = json.dumps(facts, sort_keys=True, default=str).encode()
    return hashlib.blake2b(described, digest_size=8).hexdigest()


def weights(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """A checksum for each tensor."""
    return {name: checksum(np.asarray(array)) for name, array in arrays.items()}


def targets(values: NDArray[Any]) -> str:
    """A checksum of all targets by value, for integers or floats of any type."""
    kind = {"i": np.int64, "u": np.int64, "b": np.int64, "f": np.float32}.get(values.dtype.kind, np.str_)
    digest = hashlib.blake2b(str((kind.__name__, values.shape)).encode(), digest_size=4)
    rows = max(1, BYTES // max(1, values[:1].nbytes))  # no copy of a whole large set
    for begin in range(0, len(values), rows):
        digest.update(np.ascontiguousarray(values[begin : begin + rows], kind).tobytes())
    return f"checksum {digest.hexdigest()}"


def spread(count: int, row_bytes: int) -> NDArray[np.int64]:
    """Numbers of some rows of `count`, evenly spread, with the first and the last one; equal on every rank."""
    some = min(count, ROWS, max(1, BYTES // max(1, row_bytes)))
    return np.linspace(0, count - 1, some).astype(np.int64)


def data(one: Dataset | None, sharded: bool = False) -> dict[str, Any] | str:
    """Facts of a data set: its sizes, checksums of all targets and weights, and one of some samples. None: "none".

    sharded: each rank has its own part of the set, so shapes alone are compared.
    """
    if one is None:
        return "none"
    facts: dict[str, Any] = {"shape of a sample": one.shape, "type of samples": str(one.dtype), "sharded": sharded}
    for name, value in (("scale", np.asarray(one.scale)), ("shift", np.asarray(one.shift))):
        facts[name] = value.tolist() if value.ndim < 2 else checksum(value)  # one for each element, as a mean image
    if one.class_names is not None:
        facts["names of classes"] = text({"names": one.class_names})
    if sharded:
        shapes = one.target_shapes
        shape = shapes[0] if len(shapes) == 1 else ", ".join(map(str, shapes))
        return facts | {"shape of a target": shape, "weighted": one.sample_weight is not None}
    weights = one.sample_weight
    facts["number of samples"] = len(one)
    facts["sample_weight"] = lambda: "none" if weights is None else checksum(weights)
    if one.source is not None and one.source.ordered:  # checking all of it would be a pass
        mark = getattr(one.source, "mark", None)
        return facts if mark is None else facts | {"targets of the first batch": f"checksum {mark:08x}"}
    for number, values in enumerate(one.targets_in_memory):
        facts["targets" if number == 0 else f"targets[{number}]"] = partial(targets, values)
    if not one.targets_in_memory:
        facts["targets"] = lambda: targets(_some(one).targets)
    facts["some of the samples"] = lambda: checksum(*_some(one).inputs)
    return facts


def inputs(x: Dataset | tuple[NDArray[Any], ...]) -> dict[str, Any]:
    """Facts of samples without targets."""
    if isinstance(x, Dataset):
        facts: dict[str, Any] = {"shape": (len(x), *x.shape)}
        if x.source is None or not x.source.ordered:
            facts["some of the samples"] = lambda: checksum(*_some(x).inputs)
        return facts
    rows = [one[spread(len(one), one[:1].nbytes)] for one in x]
    shapes = x[0].shape if len(x) == 1 else ", ".join(str(one.shape) for one in x)
    return {"shape": shapes, "some of the samples": lambda: checksum(*rows)}


def _some(one: Dataset) -> Dataset:
    return one[spread(len(one), one.dtype.itemsize * math.prod(one.shape))]


def class_weight(given: Any) -> str:
    """Facts of fit's class_weight, in the caller's form."""
    if given is None or isinstance(given, str):
        return str(given)
    if isinstance(given, Mapping):
        return ", ".join(sorted(f"{key}: {float(value)}" for key, value in given.items()))
    return ", ".join(str(float(value)) for value in np.asarray(given))


def callbacks(actors: Iterable[Callback]) -> dict[str, Any]:
    """The package's own callbacks that act on all ranks together, in their order, with their options.

    Others may differ.
    """
    ours = [one for one in actors if type(one).__module__ == Callback.__module__ and not isinstance(one, _OF_ONE_RANK)]
    names = [type(one).__name__ for one in ours]
    facts: dict[str, Any] = {"callbacks": ", ".join(names) or "none"}
    for number, (name, one) in enumerate(zip(names, ours, strict=True)):
        again = names[:number].count(name)
        facts[f"callbacks, {name}" + (f" {again + 1}" if again else "")] = _options(one)
    return facts


def _options(actor: Callback) -> dict[str, Any]:
    """The constructor's arguments of a callback of the package; a monitor that fit chooses is None."""
    found = {name: getattr(actor, name) for name in inspect.signature(type(actor)).parameters}
    return found if getattr(actor, "chosen", True) else found | {"monitor": None}


def description(facts: Mapping[str, Any]) -> str:
    """A checksum of a checkpoint's description."""
    return f"checksum {hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:8]}"
