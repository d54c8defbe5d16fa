"""Operations of the CUDA table in float32 and bfloat16, PLAIN and NHWC, over the stand-in, beside the CPU's.

The CPU's are tested against float64 (test_operations.py). Here they compute in float32 from bfloat16 values. So a
bfloat16 result may differ by one rounding, and any result by the order of sums.
"""

from __future__ import annotations

import shutil
import zlib

import cuda_build
import cuda_standin
import numpy as np
import operations
import pytest

pytestmark = [pytest.mark.full, pytest.mark.skipif(shutil.which(cuda_build.CXX) is None, reason="no g++ here")]

NARROW = 2.0**-8  # one rounding to bfloat16 at most, with what computing costs
WIDE = 4e-6


@pytest.fixture(scope="module", autouse=True)
def standin(objects):
    library = cuda_standin.library(objects)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSIPGRAD_CUDA_LIBRARY", str(library))
        it = cuda_standin.Standin(library)
        it.begin(7)
        yield it
        assert it.violations() == []
        assert it.leaks() == []


def bfloat16(a):
    """Rounded to the nearest bfloat16, ties to even, by arithmetic on exact numbers."""
    mantissa, exponent = np.frexp(np.asarray(a, np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32)


def near(what, found, wanted, tolerance, size=0.0):
    """Up to a part of the wanted value, and of `size`."""
    assert found.shape == wanted.shape and np.isfinite(found).all(), what
    off = np.abs(found.astype(np.float64) - wanted)
    allowed = tolerance * (np.abs(wanted) + 0.1 * np.abs(wanted).mean() + size) + 1e-6
    bad = off > allowed
    assert not bad.any(), f"{what}: {bad.sum()} of {bad.size} are off by up to {off[bad].max()}"


WINDOW = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}
IMAGE, POOLED = (6, 7, 5), (6, 4, 4)
NORM = {"affine": True, "track_running_stats": True, "eps": 1e-5, "momentum": 0.1}
# kind, shapes of the inputs, of the output, options, whether it has a form for NHWC
CASES = {
    "relu": ("relu", [IMAGE], IMAGE, {}, True),
    "tanh": ("tanh", [(33,)], (33,), {}, False),
    "sigmoid": ("sigmoid", [IMAGE], IMAGE, {}, True),
    "leaky_relu": ("leaky_relu", [IMAGE], IMAGE, {"negative_slope": 0.1}, True),
    "gelu": ("gelu", [(5, 8)], (5, 8), {}, False),
    "gelu-tanh": ("gelu", [IMAGE], IMAGE, {"tanh_form": True}, True),
    "add": ("add", [IMAGE] * 3, IMAGE, {}, True),
    "add-relu": ("add", [IMAGE] * 2, IMAGE, {"activation": "relu"}, True),
    "dropout": ("dropout", [(8, 3, 5)], (8, 3, 5), {"probability": 0.3, "seed": 5, "rank": 2, "step": 9}, True),
    "max_pool2d": ("max_pool2d", [IMAGE], POOLED, {**WINDOW, "activation": "relu"}, True),
    "avg_pool2d": ("avg_pool2d", [IMAGE], POOLED, WINDOW, True),
    "adaptive_avg_pool2d": ("adaptive_avg_pool2d", [IMAGE], (6, 3, 2), {}, True),
    "global": ("adaptive_avg_pool2d", [IMAGE], (6, 1, 1), {}, True),
    "batch_norm": ("batch_norm", [IMAGE], IMAGE, NORM, True),
    "batch_norm-8": ("batch_norm", [(16, 3, 3)], (16, 3, 3), {**NORM, "activation": "relu"}, True),
    "batch_norm-add": ("batch_norm", [(8, 4, 4)] * 2, (8, 4, 4), {**NORM, "activation": "relu"}, True),
    "batch_norm-features": ("batch_norm", [(24,)], (24,), NORM, False),
    "layer_norm": ("layer_norm", [(5, 12)], (5, 12), {"affine": True, "sample_axis": 1, "eps": 1e-5}, False),
    "rms_norm": (
        "layer_norm",
        [(5, 37)],
        (5, 37),
        {"affine": True, "sample_axis": 1, "eps": 1e-5, "root_mean_square": True},
        False,
    ),
    "group_norm": ("layer_norm", [IMAGE], IMAGE, {"affine": True, "groups": 3, "eps": 1e-5}, False),
    "group_norm-features": ("layer_norm", [(24,)], (24,), {"affine": True, "groups": 4, "eps": 1e-5}, False),
    "local_response_norm": (
        "local_response_norm",
        [IMAGE],
        IMAGE,
        {"size": 5, "alpha": 0.5, "beta": 0.75, "k": 1.0},
        True,
    ),
    "softmax": ("softmax", [(5, 12)], (5, 12), {"sample_axis": 1}, False),
    "softmax-first": ("softmax", [(5, 12)], (5, 12), {"sample_axis": 0}, False),
    "concat": ("concat", [(2, 3, 3), (8, 3, 3), (5, 3, 3)], (15, 3, 3), {}, True),
    "permute": ("permute", [(2, 3, 4)], (4, 2, 3), {"order": (2, 0, 1)}, False),
    "slice": ("slice", [(7, 6)], (3, 6), {"axis": 0, "begin": 1, "end": 7, "stride1": 2}, False),
    "pad": ("pad", [(3, 6)], (7, 6), {"axis": 0, "begin": 1, "end": 7, "stride1": 2}, False),
}
PARAMETERS = {"batch_norm": 4, "layer_norm": 2}


@pytest.mark.parametrize("layout", ["plain", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel(name, dtype, layout):
    kind, inputs, output, options, has_nhwc = CASES[name]
    if layout == "nhwc" and len(inputs[0]) != 3:
        pytest.skip("no images")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    held = bfloat16 if dtype == "bfloat16" else np.float32
    arrays = [held(rng.standard_normal((4, *shape))) for shape in inputs]
    grad = held(rng.standard_normal((4, *output)))
    length = inputs[0][-1] if "sample_axis" in options else inputs[0][0]
    parameters = [np.float32(rng.uniform(0.5, 1.5, length)) for _ in range(PARAMETERS.get(kind, 0))]
    how = {**options, "parameters": parameters, "grad_output": grad}
    if kind == "layer_norm":
        how["bias"] = True
    wanted = operations.run_op("native", "scalar", kind, arrays, output, **how)
    found = operations.run_op("cuda", None, kind, arrays, output, dtype=dtype, layout=layout, **how)
    nhwc = layout == "nhwc" and has_nhwc
    lies = "nhwc" if nhwc else "plain"
    assert found["formats"] == (dtype, lies, dtype, "plain" if output[1:] == (1, 1) else lies)
    tolerance = NARROW if dtype == "bfloat16" else WIDE
    near("output", found["output"], wanted["output"], tolerance)
    # The derivative at an output that is rounded is that at another input.
    size = np.abs(grad).max() if kind in ("tanh", "sigmoid", "softmax") else 0
    for i in range(len(inputs)):
        near(f"error of input {i}", found["grad_inputs"][i], wanted["grad_inputs"][i], tolerance, size)
    for i in range(len(parameters)):  # float32 sums of what bfloat16 holds
        near(f"gradient {i}", found["gradients"][i], wanted["gradients"][i], 1e-5)


@pytest.mark.parametrize("backend", ["cuda", "cuda-fast"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_linear(standin, activation, bias, dtype, backend):
    narrow, fast = dtype == "bfloat16", backend == "cuda-fast"
    rng = np.random.default_rng(3)
    held = bfloat16 if narrow else np.float32
    x, weight, grad = (rng.standard_normal(shape) for shape in ((9, 3, 20), (7, 20), (9, 3, 7)))
    x, grad = held(x), held(grad)
    offset = np.float32(rng.standard_normal(7)) if bias else None
    before = standin.count("tf32")
    how = {"weight": np.float32(weight), "bias": offset, "grad_output": grad, "activation": activation}
    found = operations.run_op(backend, None, "linear", [x], (3, 7), dtype=dtype, **how)
    assert found["formats"] == (dtype, "plain", dtype, "plain")
    assert (standin.count("tf32") > before) == (fast and not narrow)
    w = np.float64(held(weight))
    y = np.float64(x) @ w.T + (np.float64(held(offset)) if bias else 0)
    error = np.float64(grad)
    if activation == "relu":
        error, y = np.where(found["output"] > 0, error, 0), np.maximum(y, 0)
    tolerance, part = (NARROW, 0) if narrow else (2.0**-10, 1) if fast else (WIDE, 0)
    sums = tolerance if part else 1e-5
    x = np.float64(x)
    near("output", found["output"], y, tolerance, part * (np.abs(x) @ np.abs(w).T))
    near("error", found["grad_inputs"][0], error @ w, tolerance, part * (np.abs(error) @ np.abs(w)))
    size = part * np.einsum("bpo,bpi->oi", np.abs(error), np.abs(x))
    near("weight", found["grad_weight"], np.einsum("bpo,bpi->oi", error, x), sums, size)
    if bias:
        near("bias", found["grad_bias"], error.sum((0, 1)), 1e-5)


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(9, 20, 1), (1, 20, 7)], ids=["one column", "one row"])
def test_a_linear_layer_whose_bias_is_not_in_the_product(standin, shape, dtype, activation):
    rng = np.random.default_rng(3)
    held = bfloat16 if dtype == "bfloat16" else np.float32
    n, inputs, outputs = shape
    x, weight, grad = (rng.standard_normal(size) for size in ((n, inputs), (outputs, inputs), (n, outputs)))
    offset = np.float32(rng.standard_normal(outputs))
    how = {"weight": np.float32(weight), "bias": offset, "grad_output": held(grad), "activation": activation}
    refused = [False, True] if dtype == "bfloat16" else [False]
    for all_of_bfloat16 in refused:
        standin.begin(3)
        if all_of_bfloat16:
            standin.plant("cublasLtMatmulAlgoGetHeuristic bfloat16", 0, 15)
        used = np.float32 if all_of_bfloat16 else held
        found = operations.run_op("cuda", None, "linear", [held(x)], (outputs,), dtype=dtype, **how)
        lies = "float32" if all_of_bfloat16 else dtype
        assert found["formats"] == (lies, "plain", lies, "plain")
        product = np.float64(held(x)) @ np.float64(used(weight)).T
        y = product + offset
        error = np.float64(held(grad))
        if activation == "relu":
            error, y = np.where(found["output"] > 0, error, 0), np.maximum(y, 0)
        # A product of bfloat16 is rounded before the bias is added.
        tolerance = WIDE if lies == "float32" else 2 * NARROW
        near("output", found["output"], y, tolerance, np.abs(product).max() if lies != "float32" else 0)
        near("error", found["grad_inputs"][0], error @ np.float64(used(weight)), tolerance)
        near("weight", found["grad_weight"], np.einsum("no,ni->oi", error, np.float64(held(x))), 1e-5)
        near("bias", found["grad_bias"], error.sum(0), 1e-5)
    standin.begin(7)


def test_mixed_inputs_are_float32():
    """A type is followed only where all inputs have it; NHWC where one has."""
    rng = np.random.default_rng(0)
    x = [np.float32(rng.standard_normal((2, 4, 3, 3))) for _ in range(2)]
    found = operations.run_op("cuda", None, "add", x, (4, 3, 3), layout="nhwc")
    assert found["formats"] == ("float32", "nhwc", "float32", "nhwc")
    np.testing.assert_array_equal(found["output"], x[0] + x[1])
