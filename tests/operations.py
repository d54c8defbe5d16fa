"""Single operations and kernels of the core on NumPy arrays: the extension module of tests/c/operations.

It is linked with the core's archive, so it tests the objects that the package's own module consists of. A source tree
that was built is needed; the module is compiled on first import and again when the core has changed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import cbuild
import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.launch import preload  # loads the core's libraries


def _load() -> Any:
    path = cbuild.build_module(cbuild.ROOT / preload.build_facts().OBJECTS)
    spec = importlib.util.spec_from_file_location("core_operations", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = _load()
# The levels that this CPU has, and amx on any: tests/c/twin.
ISAS = [isa for isa in _core.info()["isas"] if isa != "amx"] + ["amx"]


def run_op(
    backend: str,
    isa: str | None,
    kind: str,
    inputs: Sequence[NDArray[Any]],
    output_shape: Sequence[int],
    *,
    parameters: Sequence[NDArray[np.float32]] | None = None,
    weight: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | bool | None = None,
    grad_output: NDArray[np.float32] | None = None,
    threads: int = 1,
    carried: NDArray[np.float32] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """One operation of one table on arrays (N, ...), float32 or int32: its output, and with grad_output also
    grad_inputs (None for an integer input) and gradients, one a parameter.

    parameters are those of the layer in its order; weight= and bias= are another way to give the first two, whose
    gradients are then grad_weight and grad_bias as well. Every buffer stands between guard bytes; a damaged guard is an
    error. carried: state of each sample, (n, ...), which the operation changes. bias: with parameters, whether they
    have one. backend "cuda", "cuda-fast" (precision "fast"): what GOSSIPGRAD_CUDA_LIBRARY names. formats: type and
    layout of the first input and of the output. An operation without a forward pass has -grad_output for its output.
    options: the names of the table run_options in tests/c/operations/single.c.
    """
    if parameters is None:
        parameters = [one for one in (weight, bias) if one is not None and not isinstance(one, bool)]
        options["bias"] = bias is not None
    else:
        assert weight is None and (bias is None or isinstance(bias, bool))
        options |= {} if bias is None else {"bias": bias}
    found = _module.run_op(
        backend, isa, kind, list(inputs), output_shape, list(parameters), grad_output, threads, options, carried
    )
    if grad_output is not None:
        gradients = dict(zip(("weight", "bias"), found["gradients"], strict=False))
        found |= {f"grad_{name}": gradients.get(name) for name in ("weight", "bias")}
    return found


def run_loss(
    isa: str | None,
    kind: str,
    layout: str,
    prediction: NDArray[np.float32],
    targets: NDArray[Any],
    **options: Any,
) -> tuple[float, int, NDArray[np.float32], float, int]:
    """Sum of losses, targets met, gradient of the mean, what the sum is divided by, targets counted.

    prediction: (n, values), or (n, positions, classes). options: class_weights, sample_weights, label_smoothing,
    ignore_index, threads.
    """
    return _module.run_loss(isa, kind, layout, prediction, targets, **options)


def run_kernel(
    isa: str | None, name: str, arrays: Sequence[NDArray[np.float32] | None], numbers: Sequence[float]
) -> Any:
    """A kernel on arenas: update, mix, narrow, narrow_difference, weighted_sum, narrow_sum, sum_squares,
    all_finite."""
    return _module.run_kernel(isa, name, arrays, numbers)


MODES = ("strict", "safe", "exact")


def pack(
    what: str,
    segments: Sequence[tuple[int, int, int, int]],
    first: NDArray[np.float32] | None,
    second: NDArray[np.float32],
    *,
    isa: str | None = None,
    mode: str = "strict",
    values: str = "float32",
    factor: float = 2.0,
    scale: float = 1.0,
    counts: bool = True,
    threads: int = 1,
) -> tuple[bytes, NDArray[np.float32], dict[str, Any]]:
    """A call of exchange/codec/packed.h: the message, what `second` is then, and what was counted.

    what: pack (of gradient and residue), difference (of value and known), choice, accumulate. segments: offset,
    elements, bin, family of each.
    """
    rows = np.array(segments, dtype=np.int64)
    number = MODES.index(mode)
    narrow = values == "bfloat16"
    return _module.pack(isa, what, rows, first, second, number, factor, scale, narrow, counts, threads)


def pack_marked(
    segments: Sequence[tuple[int, int, int, int]],
    gradients: Sequence[NDArray[np.float32] | None],
    residue: NDArray[np.float32],
    *,
    isa: str | None = None,
    mode: str = "strict",
    factor: float = 2.0,
    scale: float = 1.0,
    settled: bool = False,
    clear: bool = False,
) -> tuple[list[bytes], NDArray[np.float32]]:
    """gg_pack of each of `gradients` in turn, where what was sent leaves the residue in the next call, or (settled)
    between the calls: the messages, and the residue when all has left it. clear: by gg_pack_and_clear."""
    rows = np.array(segments, dtype=np.int64)
    number = MODES.index(mode)
    return _module.pack_marked(isa, rows, list(gradients), residue, number, factor, scale, settled, clear)


def unpack_add(
    segments: Sequence[tuple[int, int, int, int]], message: bytes, out: NDArray[np.float32], factor: float = 1.0
) -> NDArray[np.float32]:
    """out plus what a message says."""
    return _module.unpack(np.array(segments, dtype=np.int64), message, factor, out)


def move_choice(
    segments: Sequence[tuple[int, int, int, int]],
    choice: bytes,
    residue: NDArray[np.float32],
    out: NDArray[np.float32],
    *,
    values: str = "float32",
    factor: float = 1.0,
) -> tuple[int, bytes, NDArray[np.float32], NDArray[np.float32], dict[str, Any]]:
    """Takes the values of a choice out of the residue and adds them to `out`: how many there are, their bytes, what
    both are then, and what was counted."""
    rows = np.array(segments, dtype=np.int64)
    return _module.choice(rows, choice, values == "bfloat16", factor, residue, out)


def live_bytes() -> int:
    """What the core of this module holds; it counts for itself."""
    return _module.live_bytes()


def float_mode() -> int:
    """How this thread rounds and what it does with denormal numbers: x86's MXCSR, aarch64's FPCR, else 0."""
    return _module.float_mode()


def set_float_mode(mode: int) -> None:
    _module.set_float_mode(mode)
