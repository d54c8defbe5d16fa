"""Computing in bfloat16: single operations against float64, whole networks against float32.

Inputs are numbers that bfloat16 holds exactly. So a gradient of a parameter, which is float32, has the errors of
float32 sums only; everything that reads weights or gives activations has roundings of 2**-8 beside them.
"""

import numpy as np
import operations
import pytest
import reference as ref
from test_lstm import LSTM, lstm_case, lstm_masks

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.training import algorithms

pytestmark = [
    pytest.mark.skipif(
        not _core.info()["onednn"] or _core.info()["isa"] not in ("avx512", "amx"),
        reason="bfloat16 needs oneDNN and AVX-512",
    ),
    pytest.mark.cpu("what oneDNN computes in bfloat16, and where"),
]

ROUNDING = 2.0**-8  # of one number
SUMS = 2.0**-18  # of a float32 sum of up to some thousand products, of the sum of their sizes


def narrow(a):
    """To the nearest number that bfloat16 holds, ties to even."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def held(rng, *shape):
    return narrow(rng.standard_normal(shape, np.float32))


def near(found, exact, size, roundings, what, sums=SUMS):
    """found is within `roundings` roundings of exact; size: the sum of the absolute values of each element's terms."""
    error = np.abs(found - exact)
    assert np.all(error <= roundings * ROUNDING * size + sums * size + 1e-30), (what, np.max(error / (size + 1e-30)))


CONVOLUTIONS = [  # batch, channels, height, width, filters, kernel, stride, padding, groups, dilation
    (4, 1, 12, 12, 20, 5, 1, 0, 1, 1),
    (3, 3, 9, 11, 32, 5, 1, 2, 1, 1),
    (2, 20, 8, 8, 50, 5, 1, 0, 1, 1),
    (2, 16, 7, 7, 24, 3, 2, 1, 1, 1),
    (1, 48, 6, 6, 32, 1, 1, 0, 1, 1),
    (2, 32, 7, 7, 64, 3, 1, 1, 2, 1),
    (2, 5, 9, 9, 7, 3, 1, 2, 1, 2),
]


# Channels that do not fill vectors, and samples that nearly do, with the tiles that there are.
TURNED = [
    ((30, 20, 8, 9, 50, 5, 1, 0, 1, 1), ("", "2", "4")),
    ((16, 1, 12, 11, 20, 5, 1, 2, 1, 1), ("",)),
    ((32, 3, 9, 10, 7, 3, 2, 1, 1, 1), ("",)),
    ((47, 17, 7, 6, 5, 3, 1, 1, 1, 1), ("", "2", "4", "6")),
    ((16, 16, 4, 4, 9, 2, 2, 0, 1, 1), ("",)),
]
# A first layer's few channels, and what Winograd's method takes in blocks of sixteen.
ALGORITHMS = [
    *((shape, algorithm) for algorithm in ("direct", "widened") for shape in CONVOLUTIONS),
    *(((2, 32, 9, 7, 48, 3, 1, 1, 1, 1), f"winograd{tile}") for tile in (2, 4, 6)),
    *((shape, f"turned{tile}") for shape, tiles in TURNED for tile in tiles),
]
PRODUCTS = pytest.mark.parametrize("algorithm", ["direct", "widened"])  # by the instructions, and in float32


@pytest.mark.parametrize(("shape", "algorithm"), ALGORITHMS)
def test_convolution(shape, algorithm):
    n, c, h, w, filters, kernel, stride, padding, groups, dilation = shape
    rng = np.random.default_rng(sum(shape))
    where = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2, "groups": groups}
    x, weight = held(rng, n, c, h, w), rng.standard_normal((filters, c // groups, kernel, kernel), np.float32)
    bias = rng.standard_normal(filters, np.float32)
    wide = [a.astype(np.float64) for a in (x, weight, bias)]
    y = ref.conv2d(*wide, **where)
    grad = held(rng, *y.shape)
    winograd = algorithm[-1].isdigit()
    table, layout = ("native", "channels16") if algorithm.startswith("winograd") else ("onednn", "plain")
    sums = 2.0**-12 if algorithm[-1] == "6" else 2.0**-14 if winograd else SUMS
    for relu in (False, True):
        found = operations.run_op(
            table, None, "conv2d", [x], y.shape[1:], weight=weight, bias=bias, grad_output=grad,
            kernel=(kernel,) * 2, dtype="bfloat16", activation="relu" if relu else "none", threads=2,
            algorithm=algorithm, layout=layout, **where,
        )  # fmt: skip
        size = ref.conv2d(*(np.abs(a) for a in wide), **where)
        near(found["output"], np.maximum(y, 0) if relu else y, size, 2, "output")
        assert np.array_equal(found["output"], narrow(found["output"]))
        error = grad.astype(np.float64) * (found["output"] > 0) if relu else grad.astype(np.float64)
        exact = ref.conv2d_backward(wide[0], wide[1], error, **where)
        sizes = ref.conv2d_backward(np.abs(wide[0]), np.abs(wide[1]), np.abs(error), **where)
        near(found["grad_inputs"][0], exact[0], sizes[0], 2, "grad_input")
        near(found["grad_weight"], exact[1], sizes[1], 0, "grad_weight", sums)
        near(found["grad_bias"], exact[2], sizes[2], 0, "grad_bias")


FEW_CHANNELS = [  # batch, channels, height, width, filters, kernel, stride, padding
    (4, 1, 12, 12, 20, (5, 5), (1, 1), (0, 0)),
    (1, 3, 40, 37, 32, (5, 5), (1, 1), (2, 2)),
    (19, 2, 9, 70, 17, (3, 5), (1, 2), (1, 2)),
    (2, 3, 31, 67, 48, (11, 11), (4, 4), (2, 2)),
    (3, 4, 7, 8, 5, (2, 1), (3, 3), (0, 0)),
    (2, 4, 5, 200, 16, (1, 16), (1, 1), (0, 7)),
    (1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0)),
]


@pytest.mark.parametrize("shape", FEW_CHANNELS)
@pytest.mark.parametrize("layout", ["plain", "nhwc"])
def test_weights_of_few_channels(shape, layout):
    """By own kernels: of ragged rows and groups, whatever the threads."""
    n, c, h, w, filters, kernel, stride, padding = shape
    rng = np.random.default_rng(w)
    x, weight = held(rng, n, c, h, w), np.zeros((filters, c, *kernel), np.float32)
    where = {"stride": stride, "padding": padding}
    size = ref.conv2d(x[:1].astype(np.float64), weight.astype(np.float64), np.zeros(filters), **where).shape[1:]
    grad, zeros = held(rng, n, *size), np.zeros(filters, np.float32)
    for relu, bias in ((False, True), (True, True), (False, False)):
        one, three = (
            operations.run_op(
                "native", "amx", "conv2d", [x], size, weight=weight, bias=zeros if bias else None, grad_output=grad,
                kernel=kernel, dtype="bfloat16", activation="relu" if relu else "none",
                algorithm="tiled", layout=layout, passes=2, input_grad=False, threads=threads, **where,
            )
            for threads in (1, 3)
        )  # fmt: skip
        error = (np.minimum(grad, 0) if relu else grad).astype(np.float64)  # the output is -grad
        exact = ref.conv2d_backward(x.astype(np.float64), weight.astype(np.float64), error, **where)
        sizes = ref.conv2d_backward(np.abs(x.astype(np.float64)), weight.astype(np.float64), np.abs(error), **where)
        near(one["grad_weight"], exact[1], sizes[1], 0, "grad_weight")
        assert np.array_equal(one["grad_weight"], three["grad_weight"])
        if bias:
            near(one["grad_bias"], exact[2], sizes[2], 0, "grad_bias")
            assert np.array_equal(one["grad_bias"], three["grad_bias"])


@pytest.mark.skipif(_core.info()["isa"] != "amx", reason="others leave it to oneDNN")
def test_a_first_convolution_has_the_kernels_of_few_channels():
    """With which its gradients are those of the direct one, but for the order of sums."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((6, 3, 20, 21), np.float32), rng.integers(4, size=6)
    gradient = {}
    for algorithm in ("auto", "direct"):
        layers = [gg.Conv2d(3, 3, padding=1), gg.Conv2d(20, 5, padding=2), gg.ReLU(), gg.AvgPool2d(2), gg.Flatten()]
        layers.append(gg.Linear(4))
        net = gg.Sequential(layers, input=(3, 20, 21))
        with gg.Trainer(net, dtype="bfloat16", conv_algorithm=algorithm, tune=False, seed=1) as trainer:
            trainer.train_step(x, y)
            gradient[algorithm] = trainer.gradients()
            found = [one for one in trainer.core.node_algorithms() if one and "weights" in one]
            for one in found[:2]:  # the error behind the ReLU is left to the second one's data
                assert (one["weights"] == ("native", "tiled")) == (algorithm == "auto"), found
    for name, one in gradient["auto"].items():
        assert np.linalg.norm(one - gradient["direct"][name]) <= 1e-6 * np.linalg.norm(one), name


@pytest.mark.skipif(_core.info()["isa"] != "amx", reason="others leave it to oneDNN")
def test_a_first_convolution_is_measured_once(monkeypatch, tmp_path):
    """Also the passes that have one algorithm, so that the cache has all of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((6, 3, 20, 21), np.float32), rng.integers(4, size=6).astype(np.int32)
    measure, asked, found = algorithms.measured, [], []

    def measured(wanted, passes, ask, where, path, own):
        return measure(wanted, passes, lambda missing: asked.append(len(missing)) or ask(missing), where, path, own)

    monkeypatch.setattr(algorithms, "measured", measured)
    for _ in range(2):
        net = gg.Sequential([gg.Conv2d(20, 5), gg.Flatten(), gg.Linear(4)], input=(3, 20, 21))
        with gg.Trainer(net, dtype="bfloat16", tune=True) as trainer:
            trainer.fit(x, y, batch_size=6, epochs=1, progress=False)
            found.append([one["seconds"] for one in trainer.algorithms if "seconds" in one and "filters" in one])
    assert asked == [1] and found[0] == found[1] and len(found[0]) == 1
    assert {"direct", "tiled"} <= set(found[0][0]["weights"]) and "direct" in found[0][0]["forward"]


@pytest.mark.parametrize("shape", [(1, 7, 3), (5, 33, 10), (64, 100, 50), (3, 4, 16, 24)])
@PRODUCTS
def test_linear(shape, algorithm):
    *rows, inputs, outputs = shape
    rng = np.random.default_rng(sum(shape))
    x, grad = held(rng, *rows, inputs), held(rng, *rows, outputs)
    weight, bias = rng.standard_normal((outputs, inputs), np.float32), rng.standard_normal(outputs, np.float32)
    found = operations.run_op(
        "onednn", None, "linear", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad, dtype="bfloat16",
        algorithm=algorithm,
    )  # fmt: skip
    flat, error = x.reshape(-1, inputs).astype(np.float64), grad.reshape(-1, outputs).astype(np.float64)
    wide = weight.astype(np.float64)
    near(
        found["output"].reshape(-1, outputs), flat @ wide.T + bias, np.abs(flat) @ np.abs(wide.T) + np.abs(bias), 2, "y"
    )
    near(found["grad_inputs"][0].reshape(-1, inputs), error @ wide, np.abs(error) @ np.abs(wide), 2, "grad_input")
    near(found["grad_weight"], error.T @ flat, np.abs(error.T) @ np.abs(flat), 0, "grad_weight")
    near(found["grad_bias"], error.sum(0), np.abs(error).sum(0), 0, "grad_bias")


@pytest.mark.parametrize(("rows", "outputs", "wide"), [(64, 1024, True), (65, 1024, False), (64, 1008, False)])
def test_few_rows_over_many_weights_compute_in_float32(rows, outputs, wide):
    rng = np.random.default_rng(rows)
    x, grad = held(rng, rows, 1024), held(rng, rows, outputs)
    weight, bias = rng.standard_normal((outputs, 1024), np.float32), rng.standard_normal(outputs, np.float32)
    found, exact = (
        operations.run_op(
            "onednn", None, "linear", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad, dtype=dtype
        )
        for dtype in ("bfloat16", "float32")
    )
    assert np.array_equal(found["output"], exact["output"]) == wide
    assert np.array_equal(found["output"], narrow(found["output"])) != wide
    assert np.array_equal(found["grad_inputs"][0], exact["grad_inputs"][0]) == wide


@PRODUCTS
@pytest.mark.parametrize("name", LSTM)
def test_lstm(name, algorithm):
    """By lengths of whole arrays: errors of states travel through positions. The states are those of PyTorch's gates,
    and the gradients those of the same network in float64."""
    x, parameters, first, grad, layers, how = lstm_case(name)
    bias, stateful = how.get("bias", True), how.get("stateful")
    x, grad = narrow(x), narrow(grad)
    masks = lstm_masks(name)
    carried = first.copy() if stateful else None
    options = dict(bias=True, layers=layers, seed=7, step=2) | how
    given = [p for i, p in enumerate(parameters) if bias or i % 4 < 2]
    found = operations.run_op(
        "onednn", None, "lstm", [x], grad.shape[1:], parameters=given, grad_output=grad, carried=carried,
        dtype="bfloat16", algorithm=algorithm, **options,
    )  # fmt: skip
    wide = [p.astype(np.float64) * (bias or i % 4 < 2) for i, p in enumerate(parameters)]
    made = ref.lstm(x.astype(np.float64), wide, layers, first.astype(np.float64), masks)
    back, gradients = ref.lstm_backward(made, wide, grad.astype(np.float64), masks)
    wanted = [("output", found["output"], made[-1]["states"])]
    if how.get("input_grad", True):
        wanted.append(("grad_input", found["grad_inputs"][0], back))
    exact = [g for i, g in enumerate(gradients) if bias or i % 4 < 2]
    wanted += [(f"gradient {i}", f, g) for i, (f, g) in enumerate(zip(found["gradients"], exact, strict=True))]
    if stateful:
        last = [np.stack([m["states"][:, -1], m["cells"][:, -1]], 1) for m in made]
        wanted.append(("carried", carried, np.stack(last, 1)))
    for what, f, g in wanted:
        assert np.linalg.norm(f - g) <= 4 * ROUNDING * np.linalg.norm(g), what
        assert np.max(np.abs(f - g)) <= 16 * ROUNDING * np.max(np.abs(g)), what
    assert np.array_equal(found["output"], narrow(found["output"]))


def run_narrow_lstm(x, grad, parameters, layers, **options):
    return operations.run_op(
        "onednn", None, "lstm", [x], grad.shape[1:], parameters=parameters, bias=True, layers=layers,
        dtype="bfloat16", **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["wide", "two-layers", "dropout", "large"])
def test_lstm_is_the_same_for_any_threads(name):
    x, parameters, _, grad, layers, how = lstm_case(name)
    options = {k: v for k, v in how.items() if k == "probability"} | {"grad_output": narrow(grad)}
    one, three = (run_narrow_lstm(narrow(x), grad, parameters, layers, threads=n, **options) for n in (1, 3))
    for a, b in zip(
        [one["output"], one["grad_inputs"][0], *one["gradients"]],
        [three["output"], three["grad_inputs"][0], *three["gradients"]],
        strict=True,
    ):
        assert np.array_equal(a, b)


def test_lstm_for_evaluation():
    x, parameters, _, grad, layers, _ = lstm_case("dropout")
    ways = {"training=False": {"training": False}, "evaluate=True": {"evaluate": True}, "no dropout": {}}
    found = [
        run_narrow_lstm(narrow(x), grad, parameters, layers, probability=0.4 if how else 0.0, **how)["output"]
        for how in ways.values()
    ]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    _, three, *_ = lstm_case("three-layers-no-bias")
    x, _, _, grad, layers, _ = lstm_case("three-layers-no-bias")
    both = [run_narrow_lstm(narrow(x), grad, three, layers, training=how)["output"] for how in (True, False)]
    assert np.array_equal(*both)


def test_a_carried_state_joins_two_halves_of_an_lstm():
    x, parameters, _, grad, layers, _ = lstm_case("two-layers")
    whole = run_narrow_lstm(narrow(x), grad, parameters, layers)["output"]
    carried = np.zeros((len(x), layers, 2, grad.shape[2]), np.float32)
    halves = [
        run_narrow_lstm(narrow(x[:, k]), grad[:, k], parameters, layers, carried=carried, stateful=True)["output"]
        for k in (slice(0, 2), slice(2, 5))
    ]
    assert np.array_equal(np.concatenate(halves, 1), whole)


def both(table, kind, inputs, shape, grad, **options):
    """A network in float32 and in bfloat16."""
    run = [
        operations.run_op(table, None, kind, inputs, shape, grad_output=grad, dtype=dtype, **options)
        for dtype in ("float32", "bfloat16")
    ]
    return run[0], run[1]


UNARY = [
    *(("native", kind, {}) for kind in ("relu", "tanh", "sigmoid", "gelu")),
    *(("onednn", kind, {}) for kind in ("tanh", "sigmoid")),
    ("native", "leaky_relu", {"negative_slope": 0.1}),
    ("native", "dropout", {"probability": 0.4, "seed": 5}),
    ("native", "batch_norm", {"eps": 1e-5, "affine": False}),
    *(("onednn", kind, {"kernel": (2, 2), "stride": (2, 2)}) for kind in ("max_pool2d", "avg_pool2d")),
    ("onednn", "max_pool2d", {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
]


@pytest.mark.parametrize("layout", ["plain", "nhwc", "channels16"])
@pytest.mark.parametrize(("table", "kind", "options"), UNARY)
def test_what_multiplies_nothing(table, kind, options, layout):
    """It is float32's result, rounded; the way back begins with the same rounded numbers."""
    if kind == "dropout" and layout != "plain":
        pytest.skip("dropout is computed in float32 there")
    rng = np.random.default_rng(len(kind))
    x = held(rng, 3, 18, 7, 9)
    size = 7 // 2 + (options.get("padding") is not None), 9 // 2 + (options.get("padding") is not None)
    shape = (18, *(size if "pool" in kind else (7, 9)))
    grad = held(rng, 3, *shape)
    wide, found = both(table, kind, [x], shape, grad, layout=layout, **options)
    assert np.array_equal(found["output"], narrow(wide["output"])), kind
    # From a rounded output the derivative is that of a number nearby.
    size = np.abs(both(table, kind, [x], shape, np.abs(grad), layout=layout, **options)[0]["grad_inputs"][0])
    if kind in ("tanh", "sigmoid", "batch_norm"):
        size += np.max(np.abs(grad))
    assert np.all(np.abs(found["grad_inputs"][0] - wide["grad_inputs"][0]) <= 4 * ROUNDING * size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("added", [False, True])
def test_large_batch_norm_in_blocks_of_positions(dtype, added):
    """NHWC has blocks, PLAIN with these channels has none; results are near, and do not depend on the threads."""
    rng = np.random.default_rng(8)
    inputs = [held(rng, 6, 35, 31, 30) + 3 * narrow(np.arange(35).reshape(-1, 1, 1)), held(rng, 6, 35, 31, 30)]
    inputs, grad = [narrow(one) for one in inputs[: 1 + added]], held(rng, 6, 35, 31, 30)
    parameters = [rng.standard_normal(35).astype(np.float32) for _ in range(2)]
    runs = {}
    for layout, threads in (("plain", 1), ("nhwc", 1), ("nhwc", 3)):
        runs[layout, threads] = operations.run_op(
            "native", None, "batch_norm", inputs, (35, 31, 30), parameters=parameters, grad_output=grad, affine=True,
            eps=1e-5, activation="relu", dtype=dtype, layout=layout, threads=threads,
        )  # fmt: skip
    plain, one, three = runs.values()
    pairs = [(run["output"], *run["grad_inputs"], *run["gradients"]) for run in (plain, one, three)]
    for wanted, found, again in zip(*pairs, strict=True):
        assert np.array_equal(found, again)
        # A sum near 0 may have either sign, and then its gradient passes or does not.
        away = np.abs(found - wanted) > (2 * ROUNDING if dtype == "bfloat16" else 2e-5) * (1 + np.abs(wanted))
        assert np.mean(away) <= (1e-4 if found.ndim > 1 else 0.0)


@pytest.mark.parametrize("table", ["native", "onednn"])
def test_sums_and_joins(table):
    rng = np.random.default_rng(3)
    inputs = [held(rng, 2, 16, 5, 3) for _ in range(3)]
    wide, found = both(table, "add", inputs, (16, 5, 3), inputs[0])
    assert np.max(np.abs(found["output"] - wide["output"]) / (sum(map(np.abs, inputs)) + 1e-30)) <= 2 * ROUNDING
    for i in range(3):
        assert np.array_equal(found["grad_inputs"][i], inputs[0])
    if table == "onednn":
        grad = held(rng, 2, 48, 5, 3)
        wide, found = both(table, "concat", inputs, (48, 5, 3), grad)
        assert np.array_equal(found["output"], np.concatenate(inputs, 1))
        assert all(np.array_equal(a, b) for a, b in zip(wide["grad_inputs"], found["grad_inputs"], strict=True))


def test_nan_stays_nan():
    """In the ReLU behind a product, in ReLUs of their own and in maxima; elsewhere nothing changes."""
    rng = np.random.default_rng(4)
    x = held(rng, 2, 33, 6, 6)
    weight = rng.standard_normal((40, 33, 1, 1), np.float32)
    options = {"weight": weight, "activation": "relu", "dtype": "bfloat16"}
    clean = operations.run_op("onednn", None, "conv2d", [x], (40, 6, 6), **options)["output"]
    broken = x.copy()
    broken[1, 5, 2, 3] = np.nan
    found = operations.run_op("onednn", None, "conv2d", [broken], (40, 6, 6), **options)["output"]
    wanted = clean.copy()
    wanted[1, :, 2, 3] = np.nan
    assert np.array_equal(found, wanted, equal_nan=True)
    for kind, shape, more in (
        ("relu", (33, 6, 6), {}),
        ("max_pool2d", (33, 3, 3), {"kernel": (2, 2), "stride": (2, 2)}),
    ):
        table = "native" if kind == "relu" else "onednn"
        wide, found = both(table, kind, [broken], shape, np.ones((2, *shape), np.float32), **more)
        assert np.isnan(wide["output"]).sum() == 1
        assert np.array_equal(found["output"], wide["output"], equal_nan=True), kind
        assert np.array_equal(found["grad_inputs"][0], wide["grad_inputs"][0]), kind


@pytest.mark.parametrize("shape", [(19,), (5, 19)])
@PRODUCTS
def test_a_gelu_that_a_linear_layer_does_not_have_is_refused(shape, algorithm):
    """Not left out: the plan then computes it behind the layer."""
    rng = np.random.default_rng(6)
    weight, bias = rng.standard_normal((37, 19), np.float32), rng.standard_normal(37, np.float32)
    with pytest.raises(NotImplementedError, match="GELU|no widened form"):
        operations.run_op(
            "onednn", None, "linear", [held(rng, 3, *shape)], (*shape[:-1], 37), weight=weight, bias=bias,
            dtype="bfloat16", algorithm=algorithm, activation="gelu",
        )  # fmt: skip


def test_widened_is_float32_rounded():
    """Of numbers that bfloat16 holds: nothing else differs."""
    rng = np.random.default_rng(5)
    x, grad = held(rng, 2, 16, 6, 6), held(rng, 2, 32, 6, 6)
    options = {"weight": rng.standard_normal((32, 16, 3, 3), np.float32), "padding": (1, 1), "kernel": (3, 3)}
    options |= {"grad_output": grad, "activation": "relu"}
    wide = operations.run_op("onednn", None, "conv2d", [x], (32, 6, 6), **options)
    found = operations.run_op(
        "onednn", None, "conv2d", [x], (32, 6, 6), dtype="bfloat16", algorithm="widened", **options
    )
    assert np.array_equal(found["output"], narrow(wide["output"]))
    assert np.array_equal(found["grad_inputs"][0], narrow(wide["grad_inputs"][0]))
    assert np.array_equal(found["grad_weight"], wide["grad_weight"])


@pytest.mark.parametrize("shape", [shape for shape, _ in TURNED])
@pytest.mark.parametrize("layout", ["plain", "nhwc", "channels16"])
def test_turned_is_float32_rounded(shape, layout):
    """As own kernels compute it with samples side by side, however the images lie in bfloat16."""
    n, c, h, w, filters, kernel, stride, padding, *_ = shape
    rng = np.random.default_rng(8)
    size = [(side + 2 * padding - kernel) // stride + 1 for side in (h, w)]
    x, grad = held(rng, n, c, h, w), held(rng, n, filters, *size)
    options = {"weight": rng.standard_normal((filters, c, kernel, kernel), np.float32), "grad_output": grad}
    options |= {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2, "threads": 2}
    options |= {"bias": rng.standard_normal(filters, np.float32)}
    wide = operations.run_op("native", None, "conv2d", [x], grad.shape[1:], layout="batch_last", **options)
    found = operations.run_op(
        "onednn", None, "conv2d", [x], grad.shape[1:], layout=layout, dtype="bfloat16", algorithm="turned", **options
    )
    assert np.array_equal(found["output"], narrow(wide["output"]))
    assert np.array_equal(found["grad_inputs"][0], narrow(wide["grad_inputs"][0]))
    assert np.array_equal(found["grad_weight"], wide["grad_weight"])
    assert np.array_equal(found["grad_bias"], wide["grad_bias"])


def test_what_is_not_turned_is_refused():
    """Samples that fill no vector, channels that do, and groups."""
    for n, c, filters, groups in ((4, 20, 50, 1), (16, 16, 32, 1), (16, 20, 50, 2)):
        with pytest.raises(NotImplementedError, match="images are turned for"):
            operations.run_op(
                "onednn", None, "conv2d", [np.zeros((n, c, 5, 5), np.float32)], (filters, 3, 3), dtype="bfloat16",
                weight=np.zeros((filters, c // groups, 3, 3), np.float32), kernel=(3, 3), groups=groups,
                algorithm="turned",
            )  # fmt: skip


@pytest.mark.skipif(_core.info()["bfloat16"] == "amx", reason="there oneDNN has kernels for it")
def test_no_convolution_of_one_channel_runs_in_plain_loops():
    """oneDNN has such a loop alone for the gradient of its weights, a thousand times slower: float32 computes it."""
    rng = np.random.default_rng(7)
    x, grad = held(rng, 3, 1, 12, 12), held(rng, 3, 20, 8, 8)
    options = {"weight": rng.standard_normal((20, 1, 5, 5), np.float32), "kernel": (5, 5), "grad_output": grad}
    direct, widened = (
        operations.run_op(
            "onednn", None, "conv2d", [x], (20, 8, 8), dtype="bfloat16", layout="plain", algorithm=algorithm, **options
        )
        for algorithm in ("direct", "widened")
    )
    assert np.array_equal(direct["grad_weight"], widened["grad_weight"])
    assert np.array_equal(direct["output"], widened["output"])


LARGE = [  # batch, channels, height, width, filters, groups: more than 4 million numbers
    (6, 4, 300, 300, 4, 1),  # 2 parts
    (9, 4, 300, 300, 8, 2),  # 3 parts, of groups
    (2, 8, 512, 520, 8, 1),  # single samples
    (5, 3, 301, 299, 8, 1),  # parts would begin where vectors do not: none
    (4, 16, 200, 200, 16, 1),  # Winograd's
]


@pytest.mark.parametrize("shape", LARGE)
def test_convolutions_of_large_images_compute_some_samples_after_the_others(shape):
    """As float32 does whole batches, rounded: each sample has its own results, and gradients other sums."""
    n, c, h, w, filters, groups = shape
    rng = np.random.default_rng(6)
    x, grad = held(rng, n, c, h, w), held(rng, n, filters, h, w)
    options = {"weight": rng.standard_normal((filters, c // groups, 3, 3), np.float32), "padding": (1, 1)}
    options |= {"bias": rng.standard_normal(filters, np.float32), "kernel": (3, 3), "groups": groups}
    table, algorithm, layout = ("native", "winograd4", "channels16") if c == 16 else ("onednn", "widened", "plain")

    def narrow_of(threads):
        return operations.run_op(
            table, None, "conv2d", [x], grad.shape[1:], dtype="bfloat16", algorithm=algorithm, layout=layout,
            grad_output=grad, activation="relu", threads=threads, **options,
        )  # fmt: skip

    found = narrow_of(2)
    masked = grad * (found["output"] > 0)
    wide = operations.run_op("onednn", None, "conv2d", [x], grad.shape[1:], grad_output=masked, threads=2, **options)
    rounding = ROUNDING if algorithm == "widened" else 2 * ROUNDING
    for each, exact in (
        (found["output"], np.maximum(wide["output"], 0)),
        (found["grad_inputs"][0], wide["grad_inputs"][0]),
    ):
        assert np.all(np.abs(each - exact) <= rounding * np.abs(exact) + 2.0**-12)
    for each in ("grad_weight", "grad_bias"):
        assert np.all(np.abs(found[each] - wide[each]) <= 2.0**-16 * n * h * w), each
    other = narrow_of(1)
    for each in ("output", "grad_weight", "grad_bias"):
        assert table == "onednn" or np.array_equal(other[each], found[each])


# ---- networks


def trainer_of(net, dtype="bfloat16", lr=0.05, **options):
    return gg.Trainer(net, optimizer=gg.SGD(lr=lr, momentum=0.9), seed=3, dtype=dtype, **options)


def images(net, n=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, *net.input_shape), np.float32), rng.integers(net.output_shape[-1], size=n)


def branches():
    """Meeting gradients, joins, every kind of normalisation and pooling, and layers without a form for bfloat16."""
    x = gg.Input((3, 12, 12))
    a = gg.ReLU()(gg.BatchNorm2d()(gg.Conv2d(20, 3, padding=1)(x)))
    b = gg.ReLU()(gg.Add()(a, gg.BatchNorm2d()(gg.Conv2d(20, 3, padding=1)(a))))
    c = gg.Concat()(gg.MaxPool2d(2)(b), gg.AvgPool2d(2)(a), gg.Conv2d(16, 2, stride=2)(gg.LocalResponseNorm(5)(b)))
    d = gg.Tanh()(gg.Linear(24)(gg.Dropout(0.2)(gg.Flatten()(gg.AdaptiveAvgPool2d(3)(c)))))
    return gg.Model(x, gg.Linear(7)(gg.LayerNorm()(gg.GELU()(d))))


@pytest.mark.parametrize("make", [branches, gg.models.lenet, gg.models.cifar_quick])
def test_gradients_are_near_those_of_float32(make):
    found = []
    for dtype in ("float32", "bfloat16"):
        with trainer_of(make(), dtype, strategy=gg.NoExchange()) as trainer:
            x, y = images(trainer.net)
            loss = trainer.train_step(x, y)
            found.append((loss, trainer.gradients(), trainer.predict(x)))
            assert found[-1][2].dtype == np.float32
    (wide_loss, wide, _), (loss, narrowed, _) = found
    assert loss == pytest.approx(wide_loss, rel=0.02)
    assert loss != wide_loss
    for name, gradient in wide.items():
        assert gradient.dtype == narrowed[name].dtype == np.float32
        if np.max(np.abs(gradient)) > 1e-4:
            away = np.linalg.norm(gradient - narrowed[name]) / np.linalg.norm(gradient)
            assert away < 0.35, (name, away)


def test_it_learns_like_float32():
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((4, 1, 10, 10), np.float32)
    y = rng.integers(4, size=512)
    data = gg.data.Dataset(centres[y] + 0.8 * rng.standard_normal((512, 1, 10, 10)).astype(np.float32), y)
    losses = []
    for dtype in ("float32", "bfloat16"):
        net = gg.Sequential(
            [gg.Conv2d(8, 3), gg.ReLU(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(4)], input=(1, 10, 10)
        )
        with trainer_of(net, dtype, comm=gg.VirtualCluster(2)) as trainer:
            trainer.fit(data, validation=data, epochs=2, batch_size=32, progress=False)
            losses.append(trainer.evaluate(data)["loss"])
    assert losses[0] < 0.1
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


STRATEGIES = [
    gg.GossipGraD(), gg.AllReduce(), gg.LayerwiseAllReduce(), gg.PeriodicAllReduce(), gg.OverlappedAveraging(),
    gg.ElasticAveraging(), gg.DiLoCo(), gg.NoExchange(),
]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
def test_strategies(strategy):
    """All see float32 gradients. Ranks that average gradients stay equal."""
    net = gg.Sequential(
        [gg.Conv2d(6, 3), gg.ReLU(), gg.Flatten(), gg.Linear(70), gg.ReLU(), gg.Linear(4)], input=(2, 6, 6)
    )
    with trainer_of(net, strategy=strategy, comm=gg.VirtualCluster(2)) as trainer:
        batches = [images(net, 8, seed) for seed in range(2)]
        first = trainer.train_step([x for x, _ in batches], [y for _, y in batches])
        for _ in range(25):
            last = trainer.train_step([x for x, _ in batches], [y for _, y in batches])
        assert np.mean(last) < 0.7 * np.mean(first)
        weights = [trainer.weights(rank=rank) for rank in range(2)]
        if strategy.name in ("allreduce", "layerwise-allreduce", "overlapped-averaging"):
            assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_checkpoints_are_those_of_float32(tmp_path):
    data = gg.data.Dataset(*images(gg.models.lenet(), 64))
    with trainer_of(gg.models.lenet(), lr=0.001) as trainer:
        trainer.fit(data, epochs=1, batch_size=16, progress=False)
        trainer.save(tmp_path / "narrow.safetensors")
        weights = trainer.weights()
        trainer.fit(data, epochs=1, batch_size=16, progress=False)
        later = trainer.weights()
    for dtype in ("bfloat16", "float32"):
        with trainer_of(gg.models.lenet(), dtype, lr=0.001) as other:
            if dtype == "bfloat16":
                other.fit(data, epochs=2, batch_size=16, progress=False, resume=tmp_path / "narrow.safetensors")
                assert all(np.array_equal(a, later[name]) for name, a in other.weights().items())
            else:
                with pytest.warns(UserWarning, match="dtype"):
                    other.fit(data, epochs=1, batch_size=16, progress=False, resume=tmp_path / "narrow.safetensors")
                assert all(np.array_equal(a, weights[name]) for name, a in other.weights().items())


def test_a_checkpoint_of_bfloat16_goes_on_in_it(tmp_path):
    net = branches()
    data = images(net)
    with trainer_of(net) as trainer:
        trainer.fit(data, epochs=1, batch_size=16, progress=False)
        trainer.save(tmp_path / "c")
        with gg.Trainer.load(tmp_path / "c") as again, gg.Trainer.load(tmp_path / "c", dtype="float32") as wide:
            assert (again.dtype, wide.dtype) == ("bfloat16", "float32")
            for one in (trainer, again):
                one.fit(data, epochs=2, batch_size=16, progress=False)
            assert again.weights_sha256() == trainer.weights_sha256()


# ---- the option


def test_auto_and_bad_values(monkeypatch):
    net = gg.models.mlp()
    with trainer_of(net, "auto", loss="binary_cross_entropy") as trainer:
        wanted = "bfloat16" if _core.info()["bfloat16_is_fast"] else "float32"
        assert trainer.dtype == trainer.settings()["dtype"] == wanted
    with trainer_of(net, "auto", loss="binary_cross_entropy", backend="native") as trainer:
        assert trainer.dtype == "float32"
    with pytest.raises(NotImplementedError, match="dtype: 'bfloat16' needs oneDNN, but the backend is 'native'"):
        trainer_of(net, loss="binary_cross_entropy", backend="native")
    with pytest.raises(ValueError, match="dtype='half'.*float32.*bfloat16.*auto"):
        trainer_of(net, "half", loss="binary_cross_entropy")
    monkeypatch.setenv("GOSSIPGRAD_ISA", "avx2")
    with pytest.raises(
        NotImplementedError, match="dtype: 'bfloat16' needs the instruction set avx512, here it is avx2"
    ):
        trainer_of(net, loss="binary_cross_entropy")


def test_a_cpu_without_the_instructions_is_told(monkeypatch):
    facts = _core.info() | {"bfloat16": "", "bfloat16_is_fast": False}
    monkeypatch.setattr(gg.launch.environment, "core_info", lambda: facts)
    with pytest.warns(UserWarning, match="has no instructions for it.*takes longer than in float32"):
        trainer_of(gg.models.lenet()).close()
    with trainer_of(gg.models.lenet(), "auto") as trainer:
        assert trainer.dtype == "float32"


def test_ranks_must_ask_for_the_same():
    """A fact of the network's arithmetic, compared when a trainer is made."""
    with trainer_of(gg.models.lenet(), comm=gg.VirtualCluster(2)) as trainer:
        with pytest.raises(AttributeError, match="dtype"):
            trainer.dtype = "float32"
