"""Every operation of both CPU tables and every instruction set, forward and backward, against float64.

Tolerances are in units of rounding: an element may be off by a few roundings of the sum of the absolute values of its
terms, and a few more the longer the sum is. run_op puts guard bytes around every buffer and fills outputs with NaN.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import subprocess
import sys
import zlib

import numpy as np
import operations
import pytest
import reference as ref
from conftest import ROOT

import gossipgrad
from gossipgrad import _core

ISAS = _core.info()["isas"]
ONEDNN = bool(_core.info()["onednn"])
# oneDNN takes its instruction set once a process: here the default, the others in processes of their own.
# At the level amx oneDNN's table leaves large products of float32 to the native one.
TABLES = [("native", isa) for isa in ISAS] + ([("onednn", "avx512" if ISAS[-1] == "amx" else None)] if ONEDNN else [])
tables = pytest.mark.parametrize(("backend", "isa"), TABLES, ids=[f"{b}-{i or 'default'}" for b, i in TABLES])
isas = pytest.mark.parametrize("isa", ISAS)
# Of products of matrices, which the level amx has of its own.
PRODUCTS = list(dict.fromkeys([*TABLES, ("native", "amx"), *([("onednn", "amx")] if ONEDNN else [])]))
products = pytest.mark.parametrize(("backend", "isa"), PRODUCTS, ids=[f"{b}-{i or 'default'}" for b, i in PRODUCTS])
product_isas = pytest.mark.parametrize("isa", operations.ISAS)

ROUNDING = 2.0**-24  # of float32, to nearest
TINY = 2.0**-126


def test_all_tables_are_here():
    assert _core.info()["isa"] in ISAS and "scalar" in ISAS
    assert ISAS[0] == "scalar"


def float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(what: str, found: np.ndarray, wanted: np.ndarray, magnitude: np.ndarray | float, terms: int = 1) -> None:
    """found is wanted (float64) up to roundings of `magnitude`, the sum of the absolute values of `terms` terms."""
    assert found.dtype == np.float32 and found.shape == wanted.shape, f"{what}: {found.shape}, wanted {wanted.shape}"
    allowed = ROUNDING * (4 + math.sqrt(terms)) * np.broadcast_to(magnitude, wanted.shape) + TINY
    with np.errstate(invalid="ignore"):
        off = np.abs(found.astype(np.float64) - wanted)
    bad = ~((off <= allowed) | (found == wanted))
    if bad.any():
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(bad, off / allowed, 0)), bad.shape))
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} elements are wrong, worst at {at}: "
            f"{found[at]!r}, wanted {wanted[at]!r} +- {allowed[at]:.3g}"
        )


def same(what: str, found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(found, wanted.astype(np.float32), err_msg=what)


def seeded(case) -> np.random.Generator:
    """Numbers of the case's own, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(case).encode()))


# ---- convolution: batch, channels, size, outputs, kernel, options

CONVOLUTIONS = {
    "lenet1": (3, 1, (28, 28), 20, (5, 5), {}),
    "lenet2": (3, 20, (12, 12), 50, (5, 5), {}),
    "one-of-everything": (1, 1, (1, 1), 1, (1, 1), {}),
    "pointwise": (37, 5, (3, 3), 20, (1, 1), {}),
    "batch-64": (64, 3, (7, 6), 5, (3, 3), {}),
    "batch-64-of-16-channels": (64, 16, (6, 6), 16, (3, 3), dict(padding=(1, 1))),
    "batch-1-of-32-channels": (1, 32, (9, 9), 32, (3, 3), dict(padding=(1, 1))),
    "batch-17": (17, 3, (5, 5), 3, (2, 2), {}),
    "flat-kernel": (3, 3, (5, 9), 5, (1, 5), {}),
    "tall-kernel": (3, 5, (9, 4), 3, (5, 2), {}),
    "stride-2": (3, 3, (9, 9), 5, (3, 3), dict(stride=(2, 2))),
    "stride-3-leaves-a-rest": (3, 3, (11, 10), 5, (3, 2), dict(stride=(3, 3))),
    "stride-beyond-kernel": (37, 3, (8, 8), 5, (1, 1), dict(stride=(3, 2))),
    "stride-pair": (3, 3, (9, 8), 5, (2, 3), dict(stride=(1, 3))),
    "padding": (3, 3, (7, 5), 5, (3, 3), dict(padding=(1, 1))),
    "padding-pair": (3, 5, (7, 5), 20, (5, 2), dict(padding=(2, 1))),
    "padding-beyond-kernel": (3, 3, (3, 3), 5, (2, 2), dict(padding=(3, 2))),
    "padding-and-stride": (37, 3, (7, 9), 5, (3, 3), dict(padding=(1, 1), stride=(2, 2))),
    "resnet-stem": (3, 3, (17, 15), 20, (7, 7), dict(padding=(3, 3), stride=(2, 2))),
    "kernel-beyond-input": (3, 3, (3, 2), 5, (5, 5), dict(padding=(2, 2))),
    "kernel-beyond-input-1": (1, 1, (1, 2), 3, (3, 5), dict(padding=(1, 3))),
    "dilation": (3, 3, (9, 9), 5, (3, 3), dict(dilation=(2, 2))),
    "dilation-all": (3, 5, (11, 9), 3, (3, 2), dict(dilation=(2, 3), stride=(2, 1), padding=(2, 3))),
    "dilation-of-1-kernel": (3, 3, (5, 5), 3, (1, 3), dict(dilation=(4, 1))),
    "groups": (3, 6, (7, 7), 4, (3, 3), dict(groups=2)),
    "groups-5": (3, 20, (5, 5), 10, (2, 2), dict(groups=5, padding=(1, 1))),
    "groups-batch-37": (37, 4, (5, 5), 6, (3, 3), dict(groups=2, stride=(2, 2))),
    "groups-of-16": (3, 32, (5, 5), 32, (3, 3), dict(groups=2, padding=(1, 1))),
    "depthwise": (3, 5, (7, 7), 5, (3, 3), dict(groups=5, padding=(1, 1))),
    "depthwise-16": (3, 16, (7, 7), 16, (3, 3), dict(groups=16, padding=(1, 1), stride=(2, 2))),
    "depthwise-times-3": (3, 5, (7, 6), 15, (3, 3), dict(groups=5)),
    "no-bias": (3, 3, (7, 7), 5, (3, 3), dict(bias=False)),
    "relu": (37, 3, (7, 7), 5, (3, 3), dict(activation="relu")),
    "relu-no-bias-batch-1": (1, 5, (6, 7), 20, (3, 2), dict(activation="relu", bias=False)),
    "relu-groups": (3, 6, (7, 7), 9, (3, 3), dict(activation="relu", groups=3)),
    "no-input-grad": (3, 1, (9, 9), 5, (5, 5), dict(input_grad=False)),
    "no-input-grad-relu": (17, 3, (9, 9), 20, (3, 3), dict(input_grad=False, activation="relu")),
    "two-threads": (37, 5, (9, 9), 20, (3, 3), dict(threads=2)),
    "two-threads-batch-1": (1, 3, (9, 9), 5, (3, 3), dict(threads=2, activation="relu")),
    "two-threads-groups": (17, 6, (9, 8), 6, (3, 3), dict(threads=2, groups=3, padding=(1, 1))),
    "many-channels": (3, 130, (4, 4), 67, (3, 3), {}),
    "wide": (1, 2, (3, 70), 3, (3, 3), dict(padding=(1, 1))),
}


@functools.cache
def convolution(name: str):
    """Arrays, the reference's results and the magnitudes of their sums."""
    n, channels, size, outputs, kernel, options = CONVOLUTIONS[name]
    window = {
        key: options.get(key, default) for key, default in dict(stride=(1, 1), padding=(0, 0), dilation=(1, 1)).items()
    }
    groups = options.get("groups", 1)
    rng = seeded(CONVOLUTIONS[name])
    x, weight = float32(rng, n, channels, *size), float32(rng, outputs, channels // groups, *kernel)
    bias = float32(rng, outputs) if options.get("bias", True) else None
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias)]
    y = ref.conv2d(*wide, **window, groups=groups)
    total = ref.conv2d(*[None if a is None else np.abs(a) for a in wide], **window, groups=groups)
    return x, weight, bias, y, total, float32(rng, *y.shape), window, groups


@tables
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(backend, isa, name):
    x, weight, bias, y, total, grad, window, groups = convolution(name)
    options = {k: v for k, v in CONVOLUTIONS[name][5].items() if k != "bias"}
    kernel = weight.shape[2:]
    found = operations.run_op(
        backend,
        isa,
        "conv2d",
        [x],
        y.shape[1:],
        weight=weight,
        bias=bias,
        grad_output=grad,
        kernel=kernel,
        **options,
    )
    terms = weight[0].size
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    if options.get("activation") == "relu":
        close("output", found["output"], np.maximum(y, 0), total, terms)
        wide[2] *= found["output"] > 0  # by its own output: close to 0 rounding decides
    else:
        close("output", found["output"], y, total, terms)
    wanted = ref.conv2d_backward(*wide, **window, groups=groups)
    size = ref.conv2d_backward(*map(np.abs, wide), **window, groups=groups)
    if options.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], wanted[0], size[0], terms * len(weight) // x.shape[1] + 1)
    else:
        assert found["grad_inputs"] == []
    places = len(x) * y.shape[2] * y.shape[3]
    close("grad_weight", found["grad_weight"], wanted[1], size[1], places)
    if bias is None:
        assert found["grad_bias"] is None
    else:
        close("grad_bias", found["grad_bias"], wanted[2], size[2], places)


# ---- linear: batch, inputs, outputs, options

LINEAR = {
    "one-of-everything": (1, 1, 1, {}),
    "batch-1": (1, 20, 5, {}),
    "batch-1-to-1": (1, 300, 1, {}),
    "to-1": (37, 300, 1, {}),
    "from-1": (37, 1, 20, {}),
    "odd": (3, 5, 3, {}),
    "batch-16": (16, 16, 16, {}),
    "batch-17": (17, 17, 17, {}),
    "lenet-fc1": (37, 800, 50, dict(activation="relu")),
    "lenet-fc2": (64, 500, 10, {}),
    "higgs": (256, 28, 300, dict(activation="relu")),
    "relu-no-bias": (3, 20, 37, dict(activation="relu", bias=False)),
    "no-bias": (64, 3, 5, dict(bias=False)),
    "no-input-grad": (37, 20, 5, dict(input_grad=False)),
    "no-input-grad-relu": (1, 20, 5, dict(input_grad=False, activation="relu")),
    "two-threads": (37, 65, 130, dict(threads=2)),
    "two-threads-batch-1": (1, 65, 33, dict(threads=2, activation="relu")),
    "deep": (5, 3001, 3, {}),
    "split": (70, 90, 65, dict(activation="relu", threads=2)),
    "split-long": (300, 45, 37, dict(threads=3)),
    "split-no-bias": (64, 530, 30, dict(bias=False)),
}


@functools.cache
def linear(name: str):
    n, inputs, outputs, options = LINEAR[name]
    rng = seeded(LINEAR[name])
    x, weight = float32(rng, n, inputs), float32(rng, outputs, inputs)
    return x, weight, float32(rng, outputs) if options.get("bias", True) else None, float32(rng, n, outputs)


@products
@pytest.mark.parametrize("name", LINEAR)
def test_linear(backend, isa, name):
    x, weight, bias, grad = linear(name)
    options = {k: v for k, v in LINEAR[name][3].items() if k != "bias"}
    found = operations.run_op(
        backend, isa, "linear", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad, **options
    )
    wide = [a.astype(np.float64) for a in (x, weight, grad)]
    shift = None if bias is None else bias.astype(np.float64)
    y = ref.linear(*wide[:2], shift)
    total = ref.linear(*map(np.abs, wide[:2]), None if shift is None else np.abs(shift))
    if options.get("activation") == "relu":
        close("output", found["output"], np.maximum(y, 0), total, x.shape[1])
        wide[2] *= found["output"] > 0
    else:
        close("output", found["output"], y, total, x.shape[1])
    wanted, size = ref.linear_backward(*wide), ref.linear_backward(*map(np.abs, wide))
    if options.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], wanted[0], size[0], len(weight))
    else:
        assert found["grad_inputs"] == []
    close("grad_weight", found["grad_weight"], wanted[1], size[1], len(x))
    if bias is not None:
        close("grad_bias", found["grad_bias"], wanted[2], size[2], len(x))


@tables
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_nan_passes_a_layer(backend, isa, activation):
    x, weight, image, kernel = (np.ones(s, np.float32) for s in [(3, 5), (4, 5), (3, 2, 4, 4), (5, 2, 3, 3)])
    x[1, 2] = image[1, 1, 2, 2] = np.nan
    y = operations.run_op(backend, isa, "linear", [x], (4,), weight=weight, activation=activation)["output"]
    assert np.isnan(y).all(1).tolist() == [False, True, False]
    options = dict(weight=kernel, kernel=(3, 3), activation=activation)
    y = operations.run_op(backend, isa, "conv2d", [image], (5, 2, 2), **options)
    assert np.isnan(y["output"]).all((1, 2, 3)).tolist() == [False, True, False]


@products
@pytest.mark.parametrize("layout", ["plain", "batch_last", "channels16"])
def test_a_fused_relu_passes_gradients_where_its_output_is_nan(backend, isa, layout):
    """As one by itself does, and PyTorch's."""
    x, weight, image, kernel = (np.ones(s, np.float32) for s in [(19, 5), (4, 5), (3, 2, 4, 4), (5, 2, 3, 3)])
    x[1, 2] = image[1, 1, 2, 2] = np.nan
    x[2], image[2] = -1, -1
    options = dict(activation="relu", layout=layout, grad_output=np.ones((19, 4), np.float32))
    found = operations.run_op(backend, isa, "linear", [x], (4,), weight=weight, bias=weight[:, 0] * 0, **options)
    assert found["grad_bias"].tolist() == [18] * 4
    options.update(grad_output=np.ones((3, 5, 2, 2), np.float32), kernel=(3, 3))
    for algorithm in ("direct", "winograd4"):
        if algorithm == "winograd4" and (backend != "native" or layout == "plain"):
            continue
        options.update(weight=kernel, bias=kernel[:, 0, 0, 0] * 0, algorithm=algorithm)
        found = operations.run_op(backend, isa, "conv2d", [image], (5, 2, 2), **options)
        assert found["grad_bias"].tolist() == [8] * 5, algorithm


# ---- pooling: batch, channels, size, kernel, stride, padding, options

POOLS = {
    "lenet": (37, 5, (8, 8), (2, 2), (2, 2), (0, 0), {}),
    "batch-1": (1, 3, (8, 6), (2, 2), (2, 2), (0, 0), {}),
    "batch-64": (64, 1, (6, 4), (2, 2), (2, 2), (0, 0), {}),
    "16-channels": (3, 16, (6, 6), (2, 2), (2, 2), (0, 0), {}),
    "one": (1, 1, (1, 1), (1, 1), (1, 1), (0, 0), {}),
    "odd-map": (3, 5, (7, 9), (2, 2), (2, 2), (0, 0), {}),
    "odd-map-ceil": (3, 5, (7, 9), (2, 2), (2, 2), (0, 0), dict(ceil_mode=True)),
    "tiles-of-3": (3, 3, (9, 7), (3, 3), (3, 3), (0, 0), {}),
    "tiles-of-2-by-3": (17, 3, (5, 8), (2, 3), (2, 3), (0, 0), {}),
    "overlapping": (3, 5, (7, 7), (3, 3), (2, 2), (0, 0), {}),
    "overlapping-ceil": (37, 3, (8, 6), (3, 3), (2, 2), (0, 0), dict(ceil_mode=True)),
    "stride-1": (3, 3, (5, 6), (2, 3), (1, 1), (0, 0), {}),
    "gaps": (3, 3, (8, 9), (2, 1), (3, 3), (0, 0), {}),
    "padding": (3, 3, (7, 7), (3, 3), (2, 2), (1, 1), {}),
    "padding-out": (3, 3, (7, 7), (3, 3), (2, 2), (1, 1), dict(count_include_pad=False)),
    "padding-pair": (1, 20, (6, 7), (4, 2), (2, 3), (2, 0), {}),
    "padding-ceil": (3, 3, (6, 7), (3, 2), (2, 3), (1, 1), dict(ceil_mode=True)),
    "padding-ceil-out": (3, 3, (6, 7), (3, 2), (2, 3), (1, 1), dict(ceil_mode=True, count_include_pad=False)),
    "clipped": (3, 3, (5, 5), (4, 4), (3, 3), (2, 2), dict(ceil_mode=True)),
    "clipped-out": (3, 3, (5, 5), (4, 4), (3, 3), (2, 2), dict(ceil_mode=True, count_include_pad=False)),
    "ceil-drops-a-window": (3, 3, (4, 3), (2, 2), (3, 3), (1, 0), dict(ceil_mode=True)),
    "global": (3, 5, (5, 7), (5, 7), (1, 1), (0, 0), {}),
    "beyond-input": (3, 3, (2, 3), (4, 5), (1, 2), (2, 2), {}),
    "big-window": (3, 2, (20, 19), (17, 18), (2, 1), (0, 0), {}),
    "two-threads": (17, 6, (7, 7), (3, 3), (2, 2), (1, 1), dict(threads=2)),
    "two-threads-one-channel": (1, 1, (7, 7), (2, 2), (2, 2), (0, 0), dict(threads=2)),
}
DILATED = {
    "dilation": (3, 3, (9, 9), (3, 3), (2, 2), (0, 0), dict(dilation=(2, 2))),
    "dilation-pair": (17, 5, (11, 8), (3, 2), (1, 3), (1, 1), dict(dilation=(3, 2), ceil_mode=True)),
}
# Where PyTorch clips the last window at the padding's edge, oneDNN does not; the plan then asks the other table.
NOT_ONEDNN_AVERAGE = {"padding-ceil", "clipped"}


def pool_input(case, kind: str) -> np.ndarray:
    n, channels, size = case[:3]
    return float32(seeded((case, kind)), n, channels, *size)


def run_pool(backend, isa, kind, case, x, grad, output_shape):
    _, _, _, kernel, stride, padding, options = case
    return operations.run_op(
        backend,
        isa,
        kind,
        [x],
        output_shape,
        grad_output=grad,
        kernel=kernel,
        stride=stride,
        padding=padding,
        **options,
    )


@tables
@pytest.mark.parametrize("name", [*POOLS, *DILATED])
def test_max_pool2d(backend, isa, name):
    case = (POOLS | DILATED)[name]
    check_max_pool(backend, isa, case, pool_input(case, "max"))


def check_max_pool(backend, isa, case, x):
    _, _, _, kernel, stride, padding, options = case
    dilation, ceil = options.get("dilation", (1, 1)), options.get("ceil_mode", False)
    y, winner = ref.max_pool2d(x, kernel, stride, padding, dilation, ceil)
    grad = float32(seeded(case), *y.shape)
    found = run_pool(backend, isa, "max_pool2d", case, x, grad, y.shape[1:])
    same("output", found["output"], y)
    wide = grad.astype(np.float64)
    wanted, size = ref.max_pool2d_backward(x, winner, wide), ref.max_pool2d_backward(x, winner, np.abs(wide))
    close("grad_input", found["grad_inputs"][0], wanted, size, math.prod(kernel))
    nothing = size == 0  # nobody's maximum
    assert (found["grad_inputs"][0][nothing] == 0).all()


TIES = ["lenet", "16-channels", "odd-map-ceil", "overlapping", "padding", "tiles-of-3", "tiles-of-2-by-3", "big-window"]


@tables
@pytest.mark.parametrize("name", TIES)
def test_max_pool2d_takes_the_first_of_equals(backend, isa, name):
    case = POOLS[name]
    x = np.round(pool_input(case, "ties")).astype(np.float32)
    check_max_pool(backend, isa, case, x)
    check_max_pool(backend, isa, case, np.full_like(x, -3e38))


@tables
@pytest.mark.parametrize("name", TIES)
def test_max_pool2d_of_nan_is_nan(backend, isa, name):
    case = POOLS[name]
    x = np.round(pool_input(case, "nan")).astype(np.float32)
    x[seeded(name).random(x.shape) < 0.1] = np.nan
    check_max_pool(backend, isa, case, x)
    x[np.isnan(x)] = 0
    x.flat[-1] = np.nan
    check_max_pool(backend, isa, case, x)


def relu_of(x):
    return np.where(x <= 0, np.float32(0), x)


@tables
@pytest.mark.parametrize("layout", ["batch_last", "channels16"])
def test_max_pool2d_with_a_relu_has_the_bits_of_separate_operations(backend, isa, layout):
    """It does not matter which of both comes first; NaN passes, and so does its gradient."""
    if (backend, layout) == ("onednn", "batch_last"):
        case, x = (*POOLS["lenet"][:6], dict(activation="relu")), pool_input(POOLS["lenet"], "relu")
        with pytest.raises(NotImplementedError, match="activation"):
            run_pool(backend, isa, "max_pool2d", case, x, None, (5, 4, 4))
        return
    for name, case in (POOLS | DILATED | {"256-places": (3, 2, (20, 19), (16, 16), (2, 1), (0, 0), {})}).items():
        x = np.round(pool_input(case, "relu")).astype(np.float32)
        x[seeded(name).random(x.shape) < 0.03] = np.nan
        y = ref.max_pool2d(x, *case[3:6], case[6].get("dilation", (1, 1)), case[6].get("ceil_mode", False))[0]
        grad = float32(seeded(case), *y.shape)
        fused = (*case[:6], case[6] | dict(activation="relu", layout=layout))
        found = run_pool(backend, isa, "max_pool2d", fused, x, grad, y.shape[1:])
        behind = run_pool("native", isa, "max_pool2d", case, x, np.where(y <= 0, np.float32(0), grad), y.shape[1:])
        before = run_pool("native", isa, "max_pool2d", case, relu_of(x), grad, y.shape[1:])
        same("output", found["output"], relu_of(behind["output"]))
        same("output", found["output"], before["output"])
        same("grad_input", found["grad_inputs"][0], behind["grad_inputs"][0])
        same("grad_input", found["grad_inputs"][0], np.where(x <= 0, np.float32(0), before["grad_inputs"][0]))


@isas
def test_pooling_of_blocks_of_channels_has_the_same_bits(isa):
    for kind, name in itertools.product(["max_pool2d", "avg_pool2d"], POOLS):
        case = POOLS[name]
        x = pool_input(case, "blocks")
        windows = (*case[3:6], case[6].get("ceil_mode", False))
        y = ref.avg_pool2d(x.astype(np.float64), *windows)
        grad = float32(seeded(case), *y.shape)
        lanes = run_pool("native", isa, kind, case, x, grad, y.shape[1:])
        blocks = run_pool("native", isa, kind, (*case[:6], case[6] | dict(layout="channels16")), x, grad, y.shape[1:])
        same("output", blocks["output"], lanes["output"])
        same("grad_input", blocks["grad_inputs"][0], lanes["grad_inputs"][0])


@tables
@pytest.mark.parametrize("name", POOLS)
def test_avg_pool2d(backend, isa, name):
    case = POOLS[name]
    x = pool_input(case, "average")
    _, _, _, kernel, stride, padding, options = case
    window = (kernel, stride, padding, options.get("ceil_mode", False), options.get("count_include_pad", True))
    wide = x.astype(np.float64)
    y, total = ref.avg_pool2d(wide, *window), ref.avg_pool2d(np.abs(wide), *window)
    grad = float32(seeded(case), *y.shape)
    if backend == "onednn" and name in NOT_ONEDNN_AVERAGE:
        with pytest.raises(NotImplementedError):
            run_pool(backend, isa, "avg_pool2d", case, x, grad, y.shape[1:])
        return
    found = run_pool(backend, isa, "avg_pool2d", case, x, grad, y.shape[1:])
    close("output", found["output"], y, total, math.prod(kernel))
    back = grad.astype(np.float64)
    wanted = ref.avg_pool2d_backward(wide, back, *window)
    size = ref.avg_pool2d_backward(wide, np.abs(back), *window)
    close("grad_input", found["grad_inputs"][0], wanted, size, math.prod(kernel))


@tables
@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
def test_pooling_for_nobody(backend, isa, kind):
    case = (3, 2, (6, 6), (2, 2), (2, 2), (0, 0), dict(input_grad=False))
    x = pool_input(case, kind)
    found = run_pool(backend, isa, kind, case, x, np.ones((3, 2, 3, 3), np.float32), (2, 3, 3))
    assert found["grad_inputs"] == []


# Every small window along one axis: size, kernel, stride, padding, dilation. Rows and columns are drawn from them.
SMALL = [
    case
    for case in itertools.product([1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 3], [0, 1, 2], [1, 2, 3])
    if 2 * case[3] <= case[1]  # the padding's limit has a test of its own
]


def small_windows(kind: str):
    """(height, width, ceil_mode): each of SMALL stands for rows twice and for columns twice, with either ceil_mode."""
    cases = [case for case in SMALL if kind == "max_pool2d" or case[-1] == 1]
    rng = seeded(kind)
    return [(cases[i], cases[j], c) for c in (False, True) * 2 for i, j in enumerate(rng.permutation(len(cases)))]


def is_legal(size, kernel, stride, padding, dilation, ceil):
    """There are windows, and each one holds an element."""
    out = ref.window_output(size, kernel, stride, padding, dilation, ceil)
    corners = [o * stride - padding for o in range(out)]
    held = [any(0 <= corner + k * dilation < size for k in range(kernel)) for corner in corners]
    return out >= 1 and all(held)


def pool_layer(kind: str, height, width, ceil):
    kernel, stride, padding, dilation = zip(height[1:], width[1:], strict=True)
    options = dict(stride=stride, padding=padding, ceil_mode=ceil)
    if kind == "max_pool2d":
        return gossipgrad.MaxPool2d(kernel, dilation=dilation, **options)
    return gossipgrad.AvgPool2d(kernel, **options)


@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
def test_every_small_window(kind):
    """A model is refused with a ValueError, or all tables compute what the reference does."""
    seen = {False: 0, True: 0}
    for height, width, ceil in small_windows(kind):
        image = (3, height[0], width[0])
        legal = is_legal(*height, ceil) and is_legal(*width, ceil)
        seen[legal] += 1
        if not legal:
            with pytest.raises(ValueError, match="pool2d"):
                gossipgrad.Sequential([pool_layer(kind, height, width, ceil)], input=image)
            continue
        net = gossipgrad.Sequential([pool_layer(kind, height, width, ceil)], input=image)
        kernel, stride, padding, dilation = zip(height[1:], width[1:], strict=True)
        case = (3, 3, image[1:], kernel, stride, padding, dict(ceil_mode=ceil))
        x = pool_input(case, kind)
        if kind == "max_pool2d":
            case[-1]["dilation"] = dilation
            y = ref.max_pool2d(x, kernel, stride, padding, dilation, ceil)[0]
        else:
            y = ref.avg_pool2d(x.astype(np.float64), kernel, stride, padding, ceil)
        assert net.output_shape == y.shape[1:], (height, width, ceil)
        for backend, isa in TABLES:
            try:
                found = run_pool(backend, isa, kind, case, x, np.ones_like(y, np.float32), y.shape[1:])
            except NotImplementedError:  # the plan asks the other table
                assert (backend, kind, ceil) == ("onednn", "avg_pool2d", True)
                continue
            close("output", found["output"], y, np.abs(x).max(), math.prod(kernel))
            if kind == "max_pool2d":  # each output has one winner; of averages padding has a part
                assert found["grad_inputs"][0].sum() == y.size
    assert min(seen.values()) > 100, seen


@pytest.mark.parametrize("kind", ["max_pool2d", "avg_pool2d"])
def test_every_small_window_is_torchs(kind):
    """Shapes and values; and what PyTorch refuses, or makes of a window without elements, a model refuses."""
    torch = pytest.importorskip("torch")
    for height, width, ceil in small_windows(kind):
        kernel, stride, padding, dilation = zip(height[1:], width[1:], strict=True)
        options = dict(dilation=dilation) if kind == "max_pool2d" else {}
        x = pool_input((1, 3, (height[0], width[0])), kind)
        try:
            theirs = getattr(torch.nn.functional, kind)(
                torch.tensor(x), kernel, stride, padding, ceil_mode=ceil, **options
            ).numpy()
        except RuntimeError:
            theirs = None
        if theirs is None or not np.isfinite(theirs).all():
            with pytest.raises(ValueError, match="pool2d"):
                gossipgrad.Sequential([pool_layer(kind, height, width, ceil)], input=x.shape[1:])
            continue
        with gossipgrad.Trainer(
            gossipgrad.Sequential([pool_layer(kind, height, width, ceil)], input=x.shape[1:]), loss="mean_squared_error"
        ) as trainer:
            close("output", trainer.predict(x), theirs.astype(np.float64), np.abs(x).max(), math.prod(kernel))


# ---- element by element

SHAPES = [(1, 1), (1, 5), (3, 7), (37, 20), (64, 3), (16, 1, 3, 3), (3, 5, 7, 5), (1, 20, 3, 1), (33, 16, 2, 2)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
ACTIVATIONS = ["relu", "tanh", "sigmoid"]


def with_rounded_input(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The output's size and, as the exponential's argument is rounded, what it changes by with the whole input."""
    with np.errstate(invalid="ignore"):
        change = getattr(ref, f"{kind}_backward")(y, np.abs(x.astype(np.float64)))
    return np.abs(y) + np.where(np.isfinite(x), change, 0)


@tables
@shapes
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(backend, isa, kind, shape):
    rng = seeded((kind, shape))
    x, grad = 3 * float32(rng, *shape), float32(rng, *shape)
    found = operations.run_op(backend, isa, kind, [x], shape[1:], grad_output=grad, threads=1 + shape[0] % 2)
    y = getattr(ref, kind)(x.astype(np.float64))
    if kind == "relu":
        same("output", found["output"], y)
        same("grad_input", found["grad_inputs"][0], ref.relu_backward(y, grad))
        return
    close("output", found["output"], y, with_rounded_input(kind, x, y), 16)
    # From the rounded output: what it is off by, times what the gradient changes with it.
    wanted = getattr(ref, f"{kind}_backward")(y, grad.astype(np.float64))
    changes = np.abs(grad) * np.abs(y) * (2 * np.abs(y) if kind == "tanh" else 1 + 2 * np.abs(y))
    close("grad_input", found["grad_inputs"][0], wanted, np.abs(wanted) + changes, 16)


@tables
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_at_the_ends(backend, isa, kind):
    """Tiny, huge, infinite, both zeros."""
    ends = [0.0, 1e-45, 1e-38, 1e-20, 1e-6, 1e-3, 0.01, 0.3, 8.9, 15.0, 17.5, 50.0, 87.0, 88.5, 89.5, 104.0, 1e4, 3e38]
    x = np.array([ends + [-e for e in ends] + [np.inf, -np.inf]], np.float32)
    found = operations.run_op(backend, isa, kind, [x], x.shape[1:], grad_output=np.ones_like(x))
    y = getattr(ref, kind)(x.astype(np.float64))
    # Results too small for a normal float32 may be 0.
    close("output", found["output"], y, with_rounded_input(kind, x, y) + 2 * TINY / ROUNDING, 16)
    assert np.isfinite(found["grad_inputs"][0]).all()
    assert (found["grad_inputs"][0] >= 0).all()


@tables
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_of_nan_is_nan(backend, isa, kind):
    """It must not be lost on the way to the loss."""
    x = np.linspace(-3, 3, 38, dtype=np.float32)[None]
    x[0, 5] = np.nan
    y = operations.run_op(backend, isa, kind, [x], x.shape[1:])["output"]
    assert np.isnan(y[0, 5])
    assert not np.isnan(np.delete(y, 5)).any()


@tables
@shapes
@pytest.mark.parametrize("count", [2, 3, 16])
def test_add(backend, isa, shape, count):
    rng = seeded((shape, count))
    inputs, grad = [float32(rng, *shape) for _ in range(count)], float32(rng, *shape)
    found = operations.run_op(backend, isa, "add", inputs, shape[1:], grad_output=grad)
    stack = np.array(inputs, np.float64)
    close("output", found["output"], stack.sum(0), np.abs(stack).sum(0), count)
    assert len(found["grad_inputs"]) == count
    for part in found["grad_inputs"]:
        same("grad_input", part, grad)


@tables
@shapes
def test_add_with_a_relu_has_the_bits_of_separate_operations(backend, isa, shape):
    rng = seeded((shape, "relu"))
    inputs, grad = [float32(rng, *shape) for _ in range(3)], float32(rng, *shape)
    inputs[1].flat[0] = np.nan
    for count, threads in ((2, 1), (3, 2)):
        options = dict(grad_output=grad, threads=threads)
        y = operations.run_op(backend, isa, "add", inputs[:count], shape[1:])["output"]
        for over in {False, count == 2}:  # the plan writes them there where nobody reads it later
            found = operations.run_op(
                backend, isa, "add", inputs[:count], shape[1:], activation="relu", over_output=over, **options
            )
            if not over:
                same("output", found["output"], relu_of(y))
            for part in found["grad_inputs"]:
                same("grad_input", part, np.where(y <= 0, np.float32(0), grad))


@tables
@pytest.mark.parametrize("rest", [(), (3, 5), (1, 1)], ids=str)
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (16, 16), (20, 1, 3), (2,) * 16], ids=str)
@pytest.mark.parametrize("batch", [1, 3, 37])
def test_concat(backend, isa, batch, channels, rest):
    rng = seeded((batch, channels, rest))
    inputs = [float32(rng, batch, c, *rest) for c in channels]
    grad = float32(rng, batch, sum(channels), *rest)
    found = operations.run_op(backend, isa, "concat", inputs, grad.shape[1:], grad_output=grad, threads=2)
    same("output", found["output"], np.concatenate(inputs, 1))
    for part, wanted in zip(found["grad_inputs"], np.split(grad, np.cumsum(channels)[:-1], 1), strict=True):
        same("grad_input", part, wanted)


# ---- dropout


def dropped(isa, x, p, grad=None, **key):
    return operations.run_op("native", isa, "dropout", [x], x.shape[1:], probability=p, grad_output=grad, **key)


@isas
@pytest.mark.parametrize("shape", [(1, 5), (3, 7), (37, 20), (64, 3), (3, 5, 7, 5), (1, 16, 2, 3)], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout(isa, shape, p):
    rng = seeded((shape, p))
    x, grad = float32(rng, *shape), float32(rng, *shape)
    x[x == 0] = 1
    grad[grad == 0] = 1
    found = dropped(isa, x, p, grad, seed=5, step=7, rank=1)
    kept = found["output"] != 0
    scale = np.float32(1 / (1 - float(np.float32(p))))
    same("output", found["output"], np.where(kept, x * scale, 0))
    same("grad_input", found["grad_inputs"][0], np.where(kept, grad * scale, 0))
    assert p > 0 or kept.all()
    again = dropped(isa, x, p, seed=5, step=7, rank=1, threads=2)["output"]
    same("again", again, found["output"])
    same("of the other kernels", dropped("scalar", x, p, seed=5, step=7, rank=1)["output"], found["output"])


@isas
def test_dropout_zeroes_everything_at_1(isa):
    x = np.ones((3, 5), np.float32)
    found = dropped(isa, x, 1.0, x)
    assert not found["output"].any() and not found["grad_inputs"][0].any()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_is_random(p):
    x = np.ones((64, 30, 20), np.float32)

    def mask(**key):
        return dropped(None, x, p, **key)["output"] != 0

    first = mask(seed=1, step=1)
    deviation = math.sqrt(p * (1 - p))
    assert abs(first.mean() - (1 - p)) < 5 * deviation / math.sqrt(first.size)
    for axes in [(0,), (1, 2), (0, 1), (0, 2)]:  # each place over the batch, each sample, each row and column
        counts = first.mean(axes)
        number = first.size / counts.size
        assert np.abs(counts - (1 - p)).max() < 5.5 * deviation / math.sqrt(number)
    # Streams of other keys, neighbours in the batch and in the features: independent.
    others = [mask(seed=2, step=1), mask(seed=1, step=2), mask(seed=1, step=1, rank=1), mask(seed=1 << 40, step=1)]
    others += [mask(seed=1, step=1 << 40), np.roll(first, 1, 0), np.roll(first, 1, 1), np.roll(first, 1, 2)]
    for other in others:
        product = ((first - (1 - p)) * (other - (1 - p))).mean() / deviation**2
        assert abs(product) < 5 / math.sqrt(first.size)


def test_dropout_of_a_training_plan_copies_in_evaluation():
    x = float32(seeded("evaluation"), 5, 7)
    found = operations.run_op("native", None, "dropout", [x], (7,), probability=0.5, seed=1, evaluate=True)
    np.testing.assert_array_equal(found["output"], x)


def test_no_two_samples_share_a_mask():
    mask = dropped(None, np.ones((37, 64), np.float32), 0.5)["output"] != 0
    assert len({row.tobytes() for row in mask}) == 37


@pytest.mark.skipif(not ONEDNN, reason="built without oneDNN")
def test_what_onednn_leaves_to_the_native_table():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(NotImplementedError, match="dropout"):
        operations.run_op("onednn", None, "dropout", [x], (3,), probability=0.5)


# ---- backends against each other, repeated runs


@pytest.mark.skipif(not ONEDNN, reason="built without oneDNN")
@pytest.mark.parametrize(
    "name", ["lenet2", "groups", "dilation-all", "kernel-beyond-input", "relu", "padding-and-stride"]
)
def test_backends_agree(name):
    x, weight, bias, y, total, grad, window, groups = convolution(name)
    options = {k: v for k, v in CONVOLUTIONS[name][5].items() if k != "bias"} | {"kernel": weight.shape[2:]}
    arrays = dict(weight=weight, bias=bias, grad_output=grad)
    ours, theirs = (
        operations.run_op(b, None, "conv2d", [x], y.shape[1:], **arrays, **options) for b in ("native", "onednn")
    )
    wide = [np.abs(a.astype(np.float64)) for a in (x, weight, grad)]
    sizes = ref.conv2d_backward(*wide, **window, groups=groups)
    terms = len(x) * weight[0].size * y[0, 0].size
    close("output", ours["output"], theirs["output"].astype(np.float64), 2 * total, weight[0].size)
    pairs = zip(("grad_weight", "grad_bias"), sizes[1:], strict=True)
    for key, size in pairs:
        close(key, ours[key], theirs[key].astype(np.float64), 2 * size, terms)
    close("grad_input", ours["grad_inputs"][0], theirs["grad_inputs"][0].astype(np.float64), 2 * sizes[0], terms)


@tables
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["conv2d", "linear"])
def test_repeated_runs_give_the_same_bits(backend, isa, kind, threads):
    if kind == "conv2d":
        x, weight, bias, y, _, grad, _, _ = convolution("lenet2")
        options = dict(kernel=(5, 5))
    else:
        x, weight, bias, grad = linear("lenet-fc1")
        y, options = grad, {}
    arrays = dict(weight=weight, bias=bias, grad_output=grad)
    first, *more = [
        operations.run_op(backend, isa, kind, [x], y.shape[1:], **arrays, threads=threads, **options) for _ in range(4)
    ]
    for one in more:
        for key in ("output", "grad_weight", "grad_bias"):
            assert one[key].tobytes() == first[key].tobytes(), key
        assert one["grad_inputs"][0].tobytes() == first["grad_inputs"][0].tobytes()


@product_isas
@pytest.mark.parametrize("name", ["conv2d", "two-threads", "split", "split-long"])
def test_more_threads_give_the_same_bits(isa, name):
    """The native table promises it: runs with another number of threads are comparable bit for bit."""
    kind = "conv2d" if name == "conv2d" else "linear"
    if kind == "conv2d":
        x, weight, bias, y, _, grad, _, _ = convolution("two-threads")
        options = dict(kernel=(3, 3))
    else:
        x, weight, bias, grad = linear(name)
        y, options = grad, {}
    runs = [
        operations.run_op(
            "native", isa, kind, [x], y.shape[1:], weight=weight, bias=bias, grad_output=grad, threads=t, **options
        )
        for t in (1, 2, 3)
    ]
    for one in runs[1:]:
        assert one["output"].tobytes() == runs[0]["output"].tobytes()


# ---- losses

LAYOUTS = ["plain", "batch_last"]
LOSS_SHAPES = [(1, 1), (1, 10), (3, 2), (16, 17), (37, 10), (64, 10), (17, 3), (5, 1000), (33, 1)]


def loss_batch(kind: str, n: int, features: int, scale: float = 3.0):
    rng = seeded((kind, n, features))
    x = scale * float32(rng, n, features)
    if kind == "cross_entropy":
        return x, rng.integers(0, features, n).astype(np.int32)
    if kind == "binary_cross_entropy":
        return x, rng.integers(0, 2, (n, features)).astype(np.float32)
    return x, float32(rng, n, features)


def check_loss(isa, kind, layout, x, targets):
    total, right, grad, divisor, counted = operations.run_loss(isa, kind, layout, x, targets)
    assert (divisor, counted) == (len(x), len(x))
    wide = targets if kind == "cross_entropy" else targets.astype(np.float64)
    wanted, count, gradient = ref.LOSSES[kind](x.astype(np.float64), wide)
    size = np.abs(gradient)
    if kind == "cross_entropy":
        # x - max(x) is rounded to float32 before the exponential; p - 1 is a difference in double.
        far = wide_spread(x, targets)
        size = size * (1 + far) + 2.0**-52 / ROUNDING / len(x) * (np.arange(x.shape[1]) == targets[:, None])
    # cross-entropy's exponentials are float32, the rest is double
    assert total == pytest.approx(wanted, rel=2e-7, abs=2e-7 * len(x) if kind == "cross_entropy" else 1e-13)
    assert right == count
    close("gradient", grad, gradient, size, 16)


def wide_spread(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """How far each exponent is below the largest; for the target, whose gradient is the others' sum, their mean."""
    below = x.max(1, keepdims=True).astype(np.float64) - x
    share = np.exp(-below)
    n = np.arange(len(x))
    share[n, classes] = 0
    with np.errstate(invalid="ignore"):
        below[n, classes] = np.where(share > 0, share * below, 0).sum(1) / np.maximum(share.sum(1), 1e-300)
    return np.where(np.isfinite(below), below, 0)


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", LOSS_SHAPES, ids=str)
@pytest.mark.parametrize("kind", ref.LOSSES)
def test_loss(isa, kind, layout, shape):
    check_loss(isa, kind, layout, *loss_batch(kind, *shape))


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ref.LOSSES)
@pytest.mark.parametrize("scale", [1e-6, 30.0, 100.0, 1e4, 1e15])
def test_loss_of_extreme_scores(isa, kind, layout, scale):
    check_loss(isa, kind, layout, *loss_batch(kind, 37, 10, scale))


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy_of_the_largest_numbers(isa, layout):
    x = np.array([[3e38, -3e38, 0], [-3e38, -3e38, -3e38], [3e38, 3e38, 0], [0, -np.inf, 0]], np.float32)
    check_loss(isa, "cross_entropy", layout, x, np.array([0, 1, 1, 2], np.int32))
    total, _, grad, *_ = operations.run_loss(isa, "cross_entropy", layout, x[:1], np.array([1], np.int32))
    assert total == pytest.approx(6e38, rel=1e-6)
    assert grad.tolist() == [[1, -1, 0]]


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_lowest_class_wins_ties(isa, layout):
    x = np.zeros((37, 20), np.float32)
    x[:, 3] = x[:, 7] = x[:, 19] = 1
    for target, right in [(3, 37), (7, 0), (19, 0), (0, 0)]:
        assert operations.run_loss(isa, "cross_entropy", layout, x, np.full(37, target, np.int32))[1] == right


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ref.LOSSES)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_nan_reaches_the_loss(isa, kind, layout, place):
    x, targets = loss_batch(kind, 5, 10)
    x[3, place] = np.nan
    total, _, grad, *_ = operations.run_loss(isa, kind, layout, x, targets)
    assert math.isnan(total)
    assert np.isnan(grad[3, place])
    assert np.isfinite(np.delete(grad, 3, 0)).all()


POSITIONS = {
    "a-sequence": (3, 5, 7, {}),
    "one-position": (5, 1, 11, dict(label_smoothing=0.1)),
    "batch-1": (1, 4, 3, dict(label_smoothing=0.3, weights=True)),
    "ignored": (17, 3, 20, dict(ignored=0.4)),
    "ignored-and-weights": (37, 2, 5, dict(ignored=0.3, weights=True)),
    "everything": (16, 6, 33, dict(ignored=0.2, weights=True, label_smoothing=0.2, samples=True, threads=3)),
    "nothing-counts": (3, 2, 4, dict(ignored=1.0, label_smoothing=0.2)),
    "weights": (19, 1, 9, dict(weights=True)),
    "a-class-of-weight-0": (19, 1, 2, dict(weights=True, zero=True)),
    "vocabulary": (2, 40, 1000, dict(label_smoothing=0.1, threads=2)),
}


def positions_case(name):
    """Scores, targets, options of run_loss and of the reference."""
    n, positions, classes, how = POSITIONS[name]
    rng = seeded(POSITIONS[name])
    x, targets = 3 * float32(rng, n, positions, classes), rng.integers(0, classes, (n, positions)).astype(np.int32)
    options = {key: how[key] for key in ("label_smoothing",) if key in how}
    if how.get("ignored"):
        options["ignore_index"] = -100
        targets[rng.random(targets.shape) < how["ignored"]] = -100
    if how.get("weights"):
        options["class_weights"] = rng.uniform(0.1, 3, classes).astype(np.float32)
        options["class_weights"][0] *= not how.get("zero")
    if how.get("samples"):
        options["sample_weights"] = rng.uniform(0, 2, n).astype(np.float32)
    return x, targets, options, how.get("threads", 1)


@isas
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", POSITIONS)
def test_cross_entropy_of_positions(isa, layout, name):
    x, targets, options, threads = positions_case(name)
    total, right, grad, divisor, counted = operations.run_loss(
        isa, "cross_entropy", layout, x, targets, threads=threads, **options
    )
    wide = {k: v.astype(np.float64) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    wanted = ref.cross_entropy_of_positions(x.astype(np.float64), targets, **wide)
    assert (right, counted) == (wanted.correct, wanted.counted)
    assert divisor == pytest.approx(wanted.divisor, rel=1e-12)
    assert total == pytest.approx(wanted.loss, rel=4e-7, abs=1e-12)
    below = x.max(-1, keepdims=True) - x  # is rounded before the exponential
    close("gradient", grad, wanted.gradient, wanted.magnitude * (1 + below), 16)


def test_positions_agree_with_their_own_differences():
    x, targets, options, _ = positions_case("everything")
    x, step = x.astype(np.float64), 1e-6
    given = ref.cross_entropy_of_positions(x, targets, **options)
    for at in [(0, 0, 0), (3, 5, 32), (15, 2, 7), (8, 1, int(max(targets[8, 1], 0)))]:
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        difference = [ref.cross_entropy_of_positions(y, targets, **options).loss for y in (up, down)]
        slope = (difference[0] - difference[1]) / (2 * step) / given.divisor
        assert slope == pytest.approx(given.gradient[at], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", sorted(POSITIONS.keys() - {"everything", "nothing-counts"}))
def test_cross_entropy_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, targets, options, _ = positions_case(name)
    weights = options.get("class_weights")
    scores = torch.tensor(x.reshape(-1, x.shape[-1]), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(
        scores,
        torch.tensor(targets.ravel(), dtype=torch.int64),
        weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        ignore_index=options.get("ignore_index", -100),
        label_smoothing=options.get("label_smoothing", 0.0),
    )
    loss.backward()
    total, _, grad, divisor, _ = operations.run_loss(None, "cross_entropy", "plain", x, targets, **options)
    assert total / divisor == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(grad.reshape(scores.shape), scores.grad.numpy(), rtol=1e-5, atol=1e-7)


# ---- kernels on arenas

SIZES = [16, 48, 1040, 4096 + 16]


def kernel(isa, name, arrays, numbers=()):
    return operations.run_kernel(isa, name, arrays, list(numbers))


RULES = ("plain", "momentum", "nesterov", "adam")
# rule, bfloat16 wire, then grad_scale lr mu weight_decay d_share beta2 square_share keep root_scale eps
UPDATE = [0.5, 0.1, 0.9, 0.01, 0.1, 0.99, 0.01, 0.97, 1.5, 1e-3]


def bfloat16(a):
    """Rounded to the nearest bfloat16, ties to even, by arithmetic on exact numbers."""
    mantissa, exponent = np.frexp(np.asarray(a, np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32)


def test_bfloat16_of_the_reference():
    given, wanted = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 5 * 2**-9, 0.0], [1.0, 1 + 2**-6, -1 - 2**-7, 0.0]
    assert bfloat16(np.float32(given)).tolist() == wanted


@isas
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("received", [0, 1, 2, 7])
@pytest.mark.parametrize("rule", RULES)
def test_update(isa, rule, received, narrow):
    for n in SIZES[:3]:
        rng = seeded((n, received, rule))
        grad, weight, m, s, *came = (float32(rng, n) for _ in range(7))
        s, came[2] = np.abs(s), np.abs(came[2])
        keeps, adam = rule != "plain", rule == "adam"
        given = [came[i] if received >> i & 1 and (True, keeps, adam)[i] else None for i in range(3)]
        arrays = [grad, weight, m if keeps else None, s if adam else None, *given]
        found = kernel(isa, "update", arrays, [RULES.index(rule), narrow, *UPDATE])
        scale, lr, mu, decay, d_share, beta2, square_share, keep, root_scale, eps = map(float, np.float32(UPDATE))
        sent = bfloat16 if narrow else np.asarray
        w = weight.astype(np.float64)
        owns = zip(given, (weight, m, s), strict=True)
        displaced = [0 if there is None else (np.float64(sent(there)) - sent(own)) / 2 for there, own in owns]
        if adam:
            d = scale * grad.astype(np.float64) + decay * w
            m_out = mu * (m + displaced[1]) + d_share * d
            s_out = np.maximum(beta2 * (s + displaced[2]) + square_share * d * d, 0)
            w_out = keep * w - lr * m_out / (np.sqrt(s_out) * root_scale + eps)
            close("second moment", found[2], s_out, s + d * d + np.abs(came[2]), 4)
            assert np.array_equal(found[5], sent(found[2]))
        else:
            start = m + displaced[1] if keeps else np.zeros(n)
            w_out, m_out = ref.sgd(w, scale * grad, start, lr, mu if keeps else 0.0, decay, rule == "nesterov")
            assert found[2] is None and found[5] is None
        size = sum(np.abs(a.astype(np.float64)) for a in arrays if a is not None)
        w_out = w_out + displaced[0]
        close("weight", found[0], w_out, size, 4)
        assert np.array_equal(found[3], sent(found[0]))
        if not keeps:
            assert found[1] is None and found[4] is None
            continue
        close("momentum", found[1], m_out, size, 4)
        assert np.array_equal(found[4], sent(found[1]))


@isas
@pytest.mark.parametrize("rule", RULES)
def test_what_pads_a_layer_stays_zero(isa, rule):
    zero = np.zeros(16, np.float32)
    arrays = [zero, zero, None if rule == "plain" else zero, zero if rule == "adam" else None, *[None] * 3]
    found = kernel(isa, "update", arrays, [RULES.index(rule), 0, *UPDATE[:-1], 2.0**-126])
    assert not any(np.any(array) for array in found if array is not None)


@isas
def test_adam_is_torchs(isa):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.999, 1e-8, 0.1
    for decoupled in (False, True):
        weight, m, s = float32(rng, 48), np.zeros(48, np.float32), np.zeros(48, np.float32)
        tensor = torch.tensor(weight.astype(np.float64), requires_grad=True)
        make = torch.optim.AdamW if decoupled else torch.optim.Adam
        theirs = make([tensor], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        for t in range(1, 6):
            grad = float32(rng, 48)
            tensor.grad = torch.tensor(grad.astype(np.float64))
            theirs.step()
            numbers = [1, lr / (1 - beta1**t), beta1, 0 if decoupled else decay, 1 - beta1, beta2, 1 - beta2]
            numbers += [1 - lr * decay if decoupled else 1, 1 / math.sqrt(1 - beta2**t), eps]
            weight, m, s, *_ = kernel(isa, "update", [grad, weight, m, s, None, None, None], [3, 0, *numbers])
        np.testing.assert_allclose(weight, tensor.detach(), rtol=2e-6, atol=2e-7)


@isas
@pytest.mark.parametrize("n", SIZES)
def test_bfloat16_kernels(isa, n):
    arrays = [float32(seeded((n, i)), n) for i in range(5)]
    assert np.array_equal(kernel(isa, "narrow", arrays[:1]), bfloat16(arrays[0]))
    base, received, sent = arrays[0].astype(np.float64), *(np.float64(bfloat16(a)) for a in arrays[1:3])
    size = np.abs(base) + np.abs(received) + np.abs(sent)
    close("mix", kernel(isa, "mix", arrays[:3], [0.5, 1]), base + (received - sent) / 2, size)
    assert np.array_equal(kernel(isa, "mix", [arrays[0], arrays[0], arrays[0]], [1, 1]), arrays[0])
    close("halve", kernel(isa, "halve", arrays[:2], [1]), (base + received) / 2, size)
    scale = np.float32([0.5, 0.2, -0.1, 0.7, 0.3])
    wanted = np.sum([np.float64(f) * bfloat16(a) for f, a in zip(scale, arrays, strict=True)], 0)
    plain, found, narrow = kernel(isa, "narrow_sum", arrays, scale.tolist())
    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(found, bfloat16(plain)) and np.array_equal(narrow, found)
    narrow, added = kernel(isa, "narrow_difference", arrays[:2])
    assert np.array_equal(narrow, bfloat16(arrays[0] - bfloat16(arrays[1])))
    assert np.array_equal(added, arrays[0] + narrow)


@isas
@pytest.mark.parametrize("n", SIZES)
def test_mix_halve_and_sums(isa, n):
    arrays = [float32(seeded(n), n) for _ in range(1)] + [float32(seeded((n, i)), n) for i in range(7)]
    base, received, snapshot = (a.astype(np.float64) for a in arrays[:3])
    size = np.abs(base) + np.abs(received) + np.abs(snapshot)
    close("mix", kernel(isa, "mix", arrays[:3], [0.5]), base + (received - snapshot) / 2, size)
    close("halve", kernel(isa, "halve", arrays[:2]), (base + received) / 2, size)
    for count in range(1, 9):
        scale = [0.5 - 0.3 * i for i in range(count)]
        parts = [np.float64(np.float32(s)) * a for s, a in zip(scale, arrays, strict=False)]
        found = kernel(isa, "weighted_sum", arrays[:count], scale)
        close("weighted_sum", found, np.sum(parts, 0), np.abs(parts).sum(0), count)
    wanted = float((base**2).sum())
    assert kernel(isa, "sum_squares", [arrays[0], None]) == pytest.approx(wanted, rel=1e-12)
    # The difference is one rounding of float32 at most.
    wanted = float(((base - received) ** 2).sum())
    assert kernel(isa, "sum_squares", arrays[:2]) == pytest.approx(wanted, rel=2e-7)


@isas
def test_halves_and_equal_replicas_are_exact(isa):
    a, b = (float32(seeded(i), 1040) for i in range(2))
    assert kernel(isa, "halve", [a, b]).tobytes() == kernel(isa, "halve", [b, a]).tobytes()
    assert kernel(isa, "halve", [a, a]).tobytes() == a.tobytes()
    assert kernel(isa, "mix", [a, b, b], [0.5]).tobytes() == a.tobytes()
    assert kernel(isa, "sum_squares", [a, a]) == 0


@isas
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite(isa, n, bad):
    a = 3e38 * np.sign(float32(seeded(n), n))
    assert kernel(isa, "all_finite", [a]) is True
    for place in {0, 7, 15, n // 2, n - 1}:
        one = a.copy()
        one[place] = bad
        assert kernel(isa, "all_finite", [one]) is False


@isas
@pytest.mark.parametrize("turn", [1, 16, 333])
def test_an_element_does_not_depend_on_its_place(isa, turn):
    """Else a bucket cut elsewhere, or another number of ranks, would give other bits."""
    n = 1040
    arrays = [float32(seeded(("place", i)), n) for i in range(7)]
    turned = [np.roll(a, turn) for a in arrays]
    for rule, narrow in itertools.product(range(4), (0, 1)):
        both = [kernel(isa, "update", [np.abs(a) for a in some], [rule, narrow, *UPDATE]) for some in (arrays, turned)]
        for one, other in zip(*both, strict=True):
            assert one is other is None or np.roll(one, turn).tobytes() == other.tobytes()
    for name, count, numbers in [
        ("mix", 3, [0.5]),
        ("mix", 3, [0.5, 1]),
        ("narrow", 1, []),
        ("halve", 2, []),
        ("weighted_sum", 5, [0.1, 0.2, 0.3, 0.4, 0.5]),
    ]:
        one, other = kernel(isa, name, arrays[:count], numbers), kernel(isa, name, turned[:count], numbers)
        assert np.roll(one, turn).tobytes() == other.tobytes(), name
    # Neither on how much is done in one call.
    whole, part = kernel(isa, "mix", arrays[:3], [0.5]), kernel(isa, "mix", [a[:48] for a in arrays[:3]], [0.5])
    assert whole[:48].tobytes() == part.tobytes()


# ---- what the tests above must not be fooled by


def test_a_wrong_result_is_seen():
    wanted = np.ones((3, 4))
    found = wanted.astype(np.float32)
    close("right", found, wanted, 1.0)
    for wrong in (1.00001, np.nan, np.inf):
        found[1, 2] = wrong
        with pytest.raises(AssertionError, match=r"1 of 12 elements are wrong, worst at \(1, 2\)"):
            close("wrong", found, wanted, 1.0)


def test_an_unknown_isa_or_backend_is_an_error():
    x = np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match="sse5"):
        operations.run_op("native", "sse5", "relu", [x], (1,))
    with pytest.raises(ValueError, match="cudnn"):
        operations.run_op("cudnn", None, "relu", [x], (1,))


def test_single_operations_free_their_memory():
    """What fails leaves nothing either."""
    image, weight = np.ones((1, 2, 5, 5), np.float32), np.ones((4, 2, 3, 3), np.float32)
    options = dict(weight=weight, kernel=(3, 3))
    operations.run_op("native", None, "conv2d", [image], (4, 3, 3), **options, grad_output=np.ones((1, 4, 3, 3), "f4"))
    with pytest.raises(ValueError):
        operations.run_op("native", None, "conv2d", [image], (4, 9, 9), **options)
    assert operations.live_bytes() == 0


# ---- oneDNN with other instruction sets


@pytest.mark.skipif(
    not ONEDNN or "GOSSIPGRAD_ISA" in os.environ, reason="built without oneDNN, or an ISA is forced already"
)
@pytest.mark.parametrize("isa", [i for i in ISAS if i != _core.info()["isa"]])
def test_onednn_limited(isa):
    files = ["tests/test_operations.py", "tests/test_network.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    # torch's turn and the memory tests are the same for all
    command += ["-k", "onednn and not limited and not torch and not memory"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "GOSSIPGRAD_ISA": isa}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed > 150, done.stdout
