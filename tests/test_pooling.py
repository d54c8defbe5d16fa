"""Pooling of both CPU tables and every instruction set, forward and backward, against float64 and PyTorch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import TABLES, close, float32, isas, relu_of, same, seeded, tables

import gossipgrad

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
