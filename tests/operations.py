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

import gossipgrad  # noqa: F401  loads the core's libraries
from gossipgrad import _preload


def _load() -> Any:
    path = cbuild.build_module(cbuild.ROOT / _preload.build_facts().OBJECTS)
    spec = importlib.util.spec_from_file_location("core_operations", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = _load()


def run_op(
    backend: str,
    isa: str | None,
    kind: str,
    inputs: Sequence[NDArray[np.float32]],
    output_shape: Sequence[int],
    *,
    weight: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    grad_output: NDArray[np.float32] | None = None,
    threads: int = 1,
    **attributes: Any,
) -> dict[str, Any]:
    """One operation of one table on arrays (N, ...): output, and with grad_output grad_inputs, grad_weight, grad_bias.

    Every buffer stands between guard bytes; a damaged guard is an error. attributes: kernel, stride, padding, dilation,
    groups, ceil_mode, count_include_pad, probability, activation, seed, rank, step, input_grad.
    """
    options: dict[str, Any] = dict(weight=weight, bias=bias, grad_output=grad_output, threads=threads, **attributes)
    return _module.run_op(backend, isa, kind, inputs, output_shape, **options)


def run_loss(
    isa: str | None, kind: str, layout: str, prediction: NDArray[np.float32], targets: NDArray[Any]
) -> tuple[float, int, NDArray[np.float32]]:
    """Sum of losses, samples right, gradient of the mean."""
    return _module.run_loss(isa, kind, layout, prediction, targets)


def run_kernel(
    isa: str | None, name: str, arrays: Sequence[NDArray[np.float32] | None], numbers: Sequence[float]
) -> Any:
    """A kernel on arenas: update, mix, halve, narrow, narrow_difference, weighted_sum, narrow_sum, sum_squares,
    all_finite."""
    return _module.run_kernel(isa, name, arrays, numbers)


def live_bytes() -> int:
    """What the core of this module holds; it counts for itself."""
    return _module.live_bytes()


def float_mode() -> int:
    """How this thread rounds and what it does with denormal numbers: x86's MXCSR, aarch64's FPCR, else 0."""
    return _module.float_mode()


def set_float_mode(mode: int) -> None:
    _module.set_float_mode(mode)
