"""Every operation of both CPU tables and every instruction set, forward and backward, against float64.

Pooling, losses, normalisation and sequences have files of their own.

run_op puts guard bytes around every buffer and fills outputs with NaN.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys

import numpy as np
import operations
import pytest
import reference as ref
from conftest import ROOT
from operation_cases import (
    ISAS,
    ONEDNN,
    ROUNDING,
    TINY,
    close,
    float32,
    isas,
    product_isas,
    products,
    relu_of,
    same,
    seeded,
    tables,
)

from gossipgrad import _core


def test_all_tables_are_here():
    assert _core.info()["isa"] in ISAS and "scalar" in ISAS
    assert ISAS[0] == "scalar"


# ---- convolution: batch, channels, size, outputs, kernel, options

CONVOLUTIONS = {
    "lenet1": (3, 1, (28, 28), 20, (5, 5), {}),
    "lenet2": (3, 20, (12, 12), 50, (5, 5), {}),
    "one-of-everything": (1, 1, (1, 1), 1, (1, 1), {}),
    "pointwise": (37, 5, (3, 3), 20, (1, 1), {}),
    "pointwise-of-many-channels": (5, 52, (4, 3), 50, (1, 1), {}),
    "pointwise-two-threads": (19, 49, (17, 16), 163, (1, 1), dict(threads=2, activation="relu")),
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


@pytest.mark.core(24)
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


@pytest.mark.core(24)
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


@pytest.mark.full
@pytest.mark.skipif(
    not ONEDNN or "GOSSIPGRAD_ISA" in os.environ, reason="built without oneDNN, or an ISA is forced already"
)
@pytest.mark.parametrize("isa", [i for i in ISAS if i != _core.info()["isa"]])
def test_onednn_limited(isa):
    names = ["operations", "pooling", *(f"network_{subject}" for subject in ("lenet", "graphs", "dropout", "batches"))]
    files = [f"tests/test_{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    # torch's turn and the memory tests are the same for all
    command += ["-k", "onednn and not limited and not torch and not memory"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "GOSSIPGRAD_ISA": isa}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed > 150, done.stdout


# ---- products of float32 with paired terms where they are not, and without where they are


@pytest.mark.full
@pytest.mark.skipif("GOSSIPGRAD_PAIRED" in os.environ, reason="forced already")
def test_other_products():
    files = ["tests/test_operations.py", "tests/test_lstm_of_tokens.py", "tests/test_computed_gradients.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    command += ["-k", "(linear or lstm or tokens or rows or pointwise) and not limited and not torch and not memory"]
    paired = {"GOSSIPGRAD_PAIRED": "0" if _core.info()["paired"] else "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | paired, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert passed > 100, done.stdout


def test_paired_is_0_or_1():
    code = "import gossipgrad as gg; gg.Trainer(gg.models.mlp())"
    environ = os.environ | {"GOSSIPGRAD_PAIRED": "yes"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ValueError: GOSSIPGRAD_PAIRED='yes': allowed are 0 and 1", done.stderr
