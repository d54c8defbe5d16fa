"""Winograd's convolution, of tiles of 2 x 2, 4 x 4 and 6 x 6 outputs, for 3 x 3 and 5 x 5, against sums in float64.

A transform mixes the values of a tile, so an element's error depends on those around it: errors are relative to the
largest sum of absolute values of products that makes an element of the result.
"""

import zlib

import numpy as np
import operations
import pytest
import reference as ref

import gossipgrad as gg
from gossipgrad import _core

ISAS = _core.info()["isas"]
# by algorithm and window: of any element, in units of 2**-24
BOUNDS = {("winograd4", 3): 40, ("winograd2", 3): 8, ("winograd2", 5): 40, ("winograd4", 5): 160, ("winograd6", 3): 160}
# root mean square of the errors over that of the result, of long sums
RMS = {
    ("direct", 3): 1e-6,
    ("winograd2", 3): 5e-7,
    ("winograd4", 3): 1.2e-6,
    ("winograd2", 5): 1.2e-6,
    ("winograd4", 5): 4e-6,
    ("winograd6", 3): 5e-6,
}

# batch, input channels, height, width, output channels, padding
MANY_TILES = (33, 3, 37, 29, 5, (1, 1))  # the gradient of weights in parts, with any tiles and layout
SHAPES = [
    (1, 1, 3, 3, 1, (0, 0)),
    (1, 3, 4, 4, 5, (1, 1)),
    (2, 17, 7, 9, 31, (1, 1)),
    (3, 16, 6, 5, 16, (0, 2)),
    (5, 33, 8, 12, 48, (2, 1)),
    (16, 8, 14, 14, 24, (1, 1)),
    (19, 70, 5, 6, 20, (2, 2)),
    (33, 4, 13, 3, 65, (0, 1)),
    (2, 130, 9, 8, 40, (1, 0)),
    (2, 64, 6, 7, 64, (1, 1)),
    (3, 100, 7, 6, 128, (1, 1)),
    MANY_TILES,
]
SHAPES5 = [
    (1, 1, 5, 5, 1, (0, 0)),
    (1, 3, 4, 4, 5, (2, 2)),
    (2, 17, 7, 9, 31, (2, 2)),
    (3, 16, 6, 5, 16, (0, 4)),
    (5, 33, 8, 12, 48, (3, 1)),
    (16, 8, 14, 14, 24, (2, 2)),
    (19, 70, 5, 6, 20, (4, 3)),
    (33, 4, 13, 5, 65, (0, 2)),
    (2, 100, 6, 7, 128, (2, 2)),
    MANY_TILES,
]


def seeded(name):
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def check(found, x, weight, bias, grad, padding, relu, bound, name):
    """All results of a run against float64 sums."""
    wide = [a.astype(np.float64) for a in (x, weight, bias, grad)]
    sizes = [np.abs(a) for a in wide]
    y = ref.conv2d(wide[0], wide[1], wide[2], padding=padding)
    if relu:
        # The mask is the operation's own: a sum that is nearly 0 may have either sign.
        mask = found["output"] > 0
        y, wide[3], sizes[3] = np.maximum(y, 0), wide[3] * mask, sizes[3] * mask
    exact = ref.conv2d_backward(wide[0], wide[1], wide[3], padding=padding)
    size = ref.conv2d_backward(sizes[0], sizes[1], sizes[3], padding=padding)
    wanted = [("output", y, ref.conv2d(*sizes[:3], padding=padding))]
    wanted += zip(("grad_input", "grad_weight", "grad_bias"), exact, size, strict=True)
    for what, value, scale in wanted:
        got = found["grad_inputs"][0] if what == "grad_input" else found[what]
        error = np.max(np.abs(got - value)) / (2.0**-24 * np.max(scale))
        assert error <= bound, f"{name}: {what}: {error:.1f} of {bound}"


def run(isa, algorithm, x, weight, bias, grad, padding, **options):
    return operations.run_op(
        "native", isa, "conv2d", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad,
        kernel=weight.shape[2:], padding=padding, algorithm=algorithm, **options,
    )  # fmt: skip


def arrays(name, n, c, h, w, k, padding, taps=3):
    rng = seeded(name)
    output = (n, k, h + 2 * padding[0] - taps + 1, w + 2 * padding[1] - taps + 1)
    return [rng.standard_normal(shape, np.float32) for shape in ((n, c, h, w), (k, c, taps, taps), (k,), output)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("algorithm", "taps"), BOUNDS)
@pytest.mark.parametrize("layout", ["batch_last", "channels16"])
def test_against_float64(isa, algorithm, taps, layout):
    for number, shape in enumerate(SHAPES if taps == 3 else SHAPES5):
        name = (isa, algorithm, layout, *shape)
        relu = number % 2 == 1
        x, weight, bias, grad = arrays(name, *shape, taps)
        options = {"activation": "relu" if relu else "none", "layout": layout, "threads": 1 + number % 3}
        found = run(isa, algorithm, x, weight, bias, grad, shape[-1], **options)
        check(found, x, weight, bias, grad, shape[-1], relu, BOUNDS[algorithm, taps], name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", ["batch_last", "channels16"])
@pytest.mark.parametrize("shape", [(18, 20, 11, 6, 37, (1, 1)), (5, 100, 7, 6, 128, (1, 1)), MANY_TILES], ids=str)
def test_threads_give_the_same_bits(isa, layout, shape):
    for algorithm, taps in BOUNDS:
        given = arrays((isa, layout), *shape, taps)
        found = [run(isa, algorithm, *given, shape[-1], layout=layout, threads=threads) for threads in (1, 2, 5)]
        for other in found[1:]:
            for what in ("output", "grad_weight", "grad_bias"):
                assert np.array_equal(found[0][what], other[what]), (algorithm, what)
            assert np.array_equal(found[0]["grad_inputs"][0], other["grad_inputs"][0]), algorithm


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize(("algorithm", "taps"), RMS)
@pytest.mark.parametrize("layout", ["batch_last", "channels16"])
def test_error_of_long_sums(isa, algorithm, taps, layout):
    shape = (2, 512, 8, 8, 32, (taps // 2, taps // 2))
    x, weight, bias, grad = arrays("long", *shape, taps)
    bias[:] = 0
    found = run(isa, algorithm, x, weight, bias, grad, shape[-1], layout=layout)
    exact = ref.conv2d(x.astype(np.float64), weight.astype(np.float64), padding=shape[-1])
    error = np.sqrt(np.mean((found["output"] - exact) ** 2) / np.mean(exact**2))
    assert error <= RMS[algorithm, taps], error


def test_what_it_is_not_for():
    image = np.ones((1, 2, 7, 7), np.float32)
    for kernel, stride, padding, groups in [(7, 1, 3, 1), (5, 1, 5, 1), (3, 2, 1, 1), (3, 1, 3, 1), (3, 1, 1, 2)]:
        size = (7 + 2 * padding - kernel) // stride + 1
        weight = np.ones((2, 2 // groups, kernel, kernel), np.float32)
        options = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2, "groups": groups}
        with pytest.raises(NotImplementedError, match="windows of 3 x 3 and padding up to 2"):
            operations.run_op("native", None, "conv2d", [image], (2, size, size), weight=weight, algorithm="winograd4",
                              **options)  # fmt: skip


@pytest.mark.parametrize("backend", [None, "native"])
def test_networks_learn_alike(backend):
    """A small network of 3x3 and 5x5 convolutions: gradients by Winograd are those of direct sums but for rounding."""
    rng = seeded("network")
    x = rng.standard_normal((12, 16, 10, 10), np.float32)
    y = rng.integers(0, 5, 12).astype(np.int32)
    weights = {}
    for algorithm in ("direct", "winograd", "auto"):
        net = gg.Sequential(
            [
                gg.Conv2d(64, 3, padding=1), gg.ReLU(), gg.Conv2d(64, 3), gg.ReLU(),
                gg.Conv2d(64, 5, padding=2), gg.ReLU(), gg.Flatten(), gg.Linear(5),
            ],
            input=x.shape[1:],
        )  # fmt: skip
        with gg.Trainer(net, optimizer=gg.SGD(lr=0.01), conv_algorithm=algorithm, backend=backend, seed=1) as trainer:
            trainer.fit((x, y), epochs=3, batch_size=12, progress=False)
            weights[algorithm] = trainer.weights()
            used = {pair for each in trainer.core.node_algorithms() if each for pair in each.values()}
            assert (("native", "winograd4") in used) == (algorithm != "direct")
    for algorithm in ("winograd", "auto"):
        for name, exact in weights["direct"].items():
            close = np.max(np.abs(weights[algorithm][name] - exact)) / np.max(np.abs(exact))
            assert close < 1e-4, (algorithm, name, close)
    assert any(np.any(weights["winograd"][name] != exact) for name, exact in weights["direct"].items())


def test_the_option_is_checked():
    net = gg.Sequential([gg.Linear(2)], input=(3,))
    with pytest.raises(ValueError, match="conv_algorithm.*fft.*auto.*direct.*winograd"):
        gg.Trainer(net, conv_algorithm="fft")
