"""Convolutions by products of split numbers (AMX), against sums in float64.

A float32 is the sum of three bfloat16; of the nine products of parts six are added. What is left out is below 2^-20 of
a product, and mostly far below: errors are relative to the sum of absolute values of the products of an element. Where
the CPU has no AMX, the scalar kernels compute, with the same bits.
"""

import zlib

import numpy as np
import operations
import pytest
import reference as ref

from gossipgrad import _core

BOUND = 12  # of any element, in units of 2**-24 of the sum of absolute values

# batch, input channels, height, width, output channels, window, stride, padding
SHAPES = [
    (1, 16, 1, 1, 16, (1, 1), (1, 1), (0, 0)),
    (2, 16, 8, 8, 16, (3, 3), (1, 1), (1, 1)),
    (3, 17, 7, 9, 31, (3, 3), (1, 1), (1, 1)),
    (2, 16, 40, 37, 16, (3, 3), (1, 1), (1, 1)),
    (5, 33, 8, 12, 48, (3, 3), (1, 1), (2, 1)),
    (2, 16, 9, 8, 32, (3, 3), (2, 2), (1, 1)),
    (2, 20, 8, 7, 40, (3, 3), (2, 2), (1, 1)),
    (3, 16, 11, 10, 16, (5, 5), (2, 2), (2, 2)),
    (2, 16, 7, 8, 16, (5, 3), (1, 2), (4, 0)),
    (3, 64, 7, 7, 33, (1, 1), (1, 1), (0, 0)),
    (2, 32, 9, 8, 16, (1, 1), (2, 2), (0, 0)),
    (17, 16, 5, 6, 20, (2, 2), (2, 1), (1, 0)),
    (1, 130, 60, 58, 18, (3, 3), (1, 1), (1, 1)),
    (5, 256, 4, 3, 512, (3, 3), (1, 1), (1, 1)),
]


def arrays(name, n, c, h, w, k, window, stride, padding):
    rng = np.random.default_rng(zlib.crc32(repr(name).encode()))
    size = tuple((i + 2 * p - t) // s + 1 for i, p, t, s in zip((h, w), padding, window, stride, strict=True))
    return [rng.standard_normal(s, np.float32) for s in ((n, c, h, w), (k, c, *window), (k,), (n, k, *size))]


def run(given, window, stride, padding, **options):
    x, weight, bias, grad = given
    return operations.run_op(
        "native", "amx", "conv2d", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad, kernel=window,
        stride=stride, padding=padding, algorithm="split", layout="channels16", **options,
    )  # fmt: skip


@pytest.mark.core(4)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape):
    given = arrays(shape, *shape)
    relu = shape[2] % 2 == 1
    where = dict(zip(("stride", "padding"), shape[6:], strict=True))
    found = run(given, *shape[5:], activation="relu" if relu else "none", threads=2)
    wide = [a.astype(np.float64) for a in given]
    sizes = [np.abs(a) for a in wide]
    y = ref.conv2d(*wide[:3], **where)
    if relu:
        # The mask is the operation's own: a sum that is nearly 0 may have either sign.
        mask = found["output"] > 0
        y, wide[3], sizes[3] = np.maximum(y, 0), wide[3] * mask, sizes[3] * mask
    wanted = [y, *ref.conv2d_backward(wide[0], wide[1], wide[3], **where)]
    scales = [ref.conv2d(*sizes[:3], **where), *ref.conv2d_backward(sizes[0], sizes[1], sizes[3], **where)]
    got = [found["output"], found["grad_inputs"][0], found["grad_weight"], found["grad_bias"]]
    for what, a, b, scale in zip(("output", "data", "weight", "bias"), got, wanted, scales, strict=True):
        assert not np.any(a[scale == 0]), what
        error = np.max(np.abs(a - b)[scale > 0] / scale[scale > 0]) / 2.0**-24
        assert error <= BOUND, f"{what}: {error:.1f} of {BOUND}"


@pytest.mark.full
def test_threads_give_the_same_bits():
    for shape in (SHAPES[4], SHAPES[6], SHAPES[11], SHAPES[13]):
        given = arrays(shape, *shape)
        one, *others = (run(given, *shape[5:], threads=threads) for threads in (1, 2, 5))
        for other in others:
            for what in ("output", "grad_weight", "grad_bias"):
                assert np.array_equal(one[what], other[what]), what
            assert np.array_equal(one["grad_inputs"][0], other["grad_inputs"][0])


def test_what_it_is_not_for():
    for change in ({"stride": (3, 3)}, {"dilation": (2, 2)}, {"padding": (3, 3)}, {"groups": 2}):
        options = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1} | change
        size = [
            (9 + 2 * p - d * (t - 1) - 1) // s + 1
            for t, s, p, d in zip(*(options[o] for o in ("kernel", "stride", "padding", "dilation")), strict=True)
        ]
        weight = np.ones((16, 16 // options["groups"], 3, 3), np.float32)
        with pytest.raises(NotImplementedError, match="strides of 1 or 2"):
            operations.run_op("native", "amx", "conv2d", [np.ones((1, 16, 9, 9), np.float32)], (16, *size),
                              weight=weight, algorithm="split", layout="channels16", **options)  # fmt: skip


@pytest.mark.parametrize("isa", [isa for isa in _core.info()["isas"] if isa != "amx"])
def test_other_levels_refuse_it(isa):
    with pytest.raises(NotImplementedError, match="instruction set amx"):
        operations.run_op("native", isa, "conv2d", [np.ones((1, 16, 3, 3), np.float32)], (16, 3, 3),
                          weight=np.ones((16, 16, 1, 1), np.float32), kernel=(1, 1), algorithm="split",
                          layout="channels16")  # fmt: skip
