"""Layers of sequences: single operations of every table and instruction set against float64, and PyTorch's."""

from __future__ import annotations

import contextlib

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import PRODUCTS, TABLES, close, float32, isas, same, seeded

import gossipgrad as gg
from gossipgrad import _core

# ---- linear over the last axis; oneDNN's table leaves it to the native one without AVX-512, and large ones with AMX


def has_it(table):
    return table != ("onednn", "amx") and (table[0] == "native" or _core.info()["isa"] in ("scalar", "avx512", "amx"))


PRODUCTS, TABLES = ([one for one in each if has_it(one)] for each in (PRODUCTS, TABLES))
tables = pytest.mark.parametrize(("backend", "isa"), TABLES, ids=[f"{b}-{i or 'default'}" for b, i in TABLES])
products = pytest.mark.parametrize(("backend", "isa"), PRODUCTS, ids=[f"{b}-{i or 'default'}" for b, i in PRODUCTS])

ROWS = {
    "one-of-everything": (1, (1,), 1, 1, {}),
    "batch-1": (1, (5,), 20, 7, {}),
    "one-position": (17, (1,), 33, 5, {}),
    "sequence": (3, (7,), 16, 48, dict(activation="relu")),
    "no-bias": (5, (3,), 65, 130, dict(bias=False)),
    "two-axes-of-positions": (2, (3, 5), 11, 19, {}),
    "no-input-grad": (4, (6,), 9, 3, dict(input_grad=False, activation="relu")),
    "two-threads": (12, (13,), 37, 300, dict(threads=2)),
    "long": (2, (300,), 5, 3, dict(threads=3)),
    "deep": (2, (2,), 601, 3, {}),
    "wide-and-deep": (6, (61,), 301, 545, dict(threads=2, activation="relu")),
}


@contextlib.contextmanager
def left_to_native(backend, *sides):
    """oneDNN's table refuses what are paired products in the native one."""
    if backend == "onednn" and _core.info()["paired"] and min(sides) >= 48:
        with pytest.raises(NotImplementedError, match="left to the table 'native'"):
            yield
        pytest.skip("no such operation here")
    yield


@products
@pytest.mark.parametrize("name", ROWS)
def test_linear_over_the_last_axis(backend, isa, name):
    n, positions, inputs, outputs, options = ROWS[name]
    rng = seeded(ROWS[name])
    x, weight, grad = float32(rng, n, *positions, inputs), float32(rng, outputs, inputs), None
    bias = float32(rng, outputs) if options.get("bias", True) else None
    grad = float32(rng, n, *positions, outputs)
    how = {k: v for k, v in options.items() if k != "bias"}
    with left_to_native(backend, len(grad.reshape(-1, outputs)), inputs, outputs):
        found = operations.run_op(
            backend, isa, "linear", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad, **how
        )
    wide = [a.reshape(-1, a.shape[-1]).astype(np.float64) for a in (x, weight, grad)]
    shift = None if bias is None else bias.astype(np.float64)
    y, total = (
        ref.linear(*wide[:2], shift),
        ref.linear(*map(np.abs, wide[:2]), None if shift is None else np.abs(shift)),
    )
    if options.get("activation") == "relu":
        y = np.maximum(y, 0)
        wide[2] *= found["output"].reshape(y.shape) > 0
    close("output", found["output"], y.reshape(grad.shape), total.reshape(grad.shape), inputs)
    wanted, size = ref.linear_backward(*wide), ref.linear_backward(*map(np.abs, wide))
    if options.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], wanted[0].reshape(x.shape), size[0].reshape(x.shape), outputs)
    close("grad_weight", found["grad_weight"], wanted[1], size[1], len(wide[0]))
    if bias is not None:
        close("grad_bias", found["grad_bias"], wanted[2], size[2], len(wide[0]))


GELU_ROWS = [(1, (1,), 1, 1, 1), (3, (7,), 16, 48, 1), (5, (3, 5), 33, 19, 3), (9, (41,), 20, 400, 3)]


@isas
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("case", GELU_ROWS)
def test_a_gelu_behind_it_has_the_bits_of_both(isa, tanh, case):
    n, positions, inputs, outputs, threads = case
    rng = seeded(case)
    x, weight, bias = float32(rng, n, *positions, inputs) * 3, float32(rng, outputs, inputs), float32(rng, outputs)
    grad = float32(rng, n, *positions, outputs)
    shape = grad.shape[1:]

    def linear(grad, **how):
        how |= {"threads": threads, "weight": weight, "bias": bias, "grad_output": grad}
        return operations.run_op("native", isa, "linear", [x], shape, **how)

    def gelu(y):
        options = {"parameters": [], "grad_output": grad, "layout": "plain", "tanh_form": tanh}
        return operations.run_op("native", isa, "gelu", [y], shape, **options)

    both = linear(grad, activation="gelu", tanh_form=tanh)
    activated = gelu(linear(grad)["output"])
    same("output", both["output"], activated["output"])
    before = linear(activated["grad_inputs"][0])
    for name in ("grad_weight", "grad_bias"):
        same(name, both[name], before[name])
    same("grad_input", both["grad_inputs"][0], before["grad_inputs"][0])
    seen = operations.run_op(
        *("native", isa, "linear", [x], shape),
        weight=weight,
        bias=bias,
        activation="gelu",
        tanh_form=tanh,
        evaluate=True,
    )
    same("output of an evaluation", seen["output"], activated["output"])


@pytest.mark.parametrize("backend", sorted({backend for backend, _ in TABLES}))
def test_few_weights_over_many_positions_are_the_same_for_any_threads(backend):
    """Where a library would divide the sum of a gradient among its threads."""
    rng = np.random.default_rng(4)
    x, grad, weight = float32(rng, 2, 3000, 16), float32(rng, 2, 3000, 16), float32(rng, 16, 16)
    one, two, three = (
        operations.run_op(backend, None, "linear", [x], (3000, 16), weight=weight, grad_output=grad, threads=threads)
        for threads in (1, 2, 3)
    )
    wanted = grad.reshape(-1, 16).astype(np.float64).T @ x.reshape(-1, 16)
    close("grad_weight", one["grad_weight"], wanted, np.abs(grad.reshape(-1, 16)).T @ np.abs(x.reshape(-1, 16)), 6000)
    same("grad_weight", one["grad_weight"], two["grad_weight"])
    same("grad_weight", one["grad_weight"], three["grad_weight"])


@products
def test_linear_over_the_last_axis_is_the_same_for_any_threads(backend, isa):
    rng = np.random.default_rng(1)
    x, weight, bias, grad = float32(rng, 9, 31, 65), float32(rng, 130, 65), float32(rng, 130), float32(rng, 9, 31, 130)
    with left_to_native(backend, 9 * 31, 65, 130):
        runs = [
            operations.run_op(
                backend, isa, "linear", [x], (31, 130), weight=weight, bias=bias, grad_output=grad, threads=threads
            )
            for threads in (1, 3)
        ]
    for key in ("output", "grad_weight", "grad_bias"):
        same(key, runs[0][key], runs[1][key])
    same("grad_input", runs[0]["grad_inputs"][0], runs[1]["grad_inputs"][0])


@tables
def test_the_bias_gradient_of_many_rows(backend, isa):
    """A sum of float32 in one chain would be wrong by 6e-4."""
    x, grad = np.ones((4, 2**14, 1), np.float32), np.full((4, 2**14, 3), 0.1, np.float32)
    weight, bias = np.ones((3, 1), np.float32), np.zeros(3, np.float32)
    found = operations.run_op(backend, isa, "linear", [x], grad.shape[1:], weight=weight, bias=bias, grad_output=grad)
    assert found["grad_bias"] == pytest.approx(np.full(3, 2**16 * np.float64(np.float32(0.1))), rel=1e-5)


# ---- tables of rows

EMBEDDINGS = {
    "one-of-everything": (1, (1,), 1, 1, 1),
    "sequence": (3, (7,), 11, 20, 1),
    "one-token": (17, (1,), 5, 3, 1),
    "many-of-one-token": (64, (33,), 2, 65, 3),
    "large-table": (2, (5,), 1000, 33, 2),
    "grid": (2, (3, 4), 9, 8, 1),
}


@isas
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embedding(isa, name):
    n, shape, numbers, features, threads = EMBEDDINGS[name]
    rng = seeded(EMBEDDINGS[name])
    tokens = rng.integers(0, numbers, (n, *shape)).astype(np.int32)
    weight, grad = float32(rng, numbers, features), float32(rng, n, *shape, features)
    found = operations.run_op(
        "native",
        isa,
        "embedding",
        [tokens],
        grad.shape[1:],
        weight=weight,
        grad_output=grad,
        numbers=numbers,
        threads=threads,
    )
    same("output", found["output"], ref.embedding(weight, tokens))
    wanted = [ref.embedding_backward(weight, tokens, one) for one in (grad, np.abs(grad))]
    close("grad_weight", found["grad_weight"], *wanted, tokens.size)
    assert found["grad_inputs"] == [None]
    if threads == 1:
        return
    one = operations.run_op(
        "native", isa, "embedding", [tokens], grad.shape[1:], weight=weight, grad_output=grad, numbers=numbers
    )
    same("grad_weight for one thread", found["grad_weight"], one["grad_weight"])


def test_many_positions_of_one_token_keep_their_digits():
    tokens, grad = np.full((512, 32), 2, np.int32), np.random.default_rng(0).random((512, 32, 5), np.float32)
    options = dict(weight=np.ones((3, 5), np.float32), grad_output=grad, numbers=3)
    found = operations.run_op("native", None, "embedding", [tokens], (32, 5), **options)["grad_weight"]
    wanted = grad.astype(np.float64).sum((0, 1))
    assert np.abs(found[2] - wanted).max() < 3e-7 * wanted.max()
    assert not found[:2].any()


@pytest.mark.parametrize("token", [-1, 5, 2**31 - 1, -(2**31)])
def test_a_token_that_is_no_row_is_named(token):
    tokens = np.zeros((3, 4), np.int32)
    tokens[2, 1] = token
    with pytest.raises(ValueError, match=rf"token {token} at position 1 of sample 2 of the batch; allowed: 0 to 4"):
        operations.run_op("native", None, "embedding", [tokens], (4, 2), weight=np.ones((5, 2), np.float32), numbers=5)


def test_a_network_of_layers_that_begins_with_an_embedding_takes_tokens():
    """As Input(..., "int32") does; another first layer takes numbers. It trains, and comes back from its file."""
    layers = lambda: [gg.Embedding(9, 4), gg.Flatten(), gg.Linear(3)]  # noqa: E731
    net = gg.Sequential(layers(), input=(5,))
    node = inp = gg.Input((5,), dtype="int32")
    for layer in layers():
        node = layer(node)
    assert net.inputs[0].dtype == "int32" and net.tokens() == 9 and net.config() == gg.Model(inp, node).config()
    assert gg.Model.from_config(net.config()).inputs[0].dtype == "int32"
    assert gg.Sequential([gg.Linear(3)], input=(5,)).inputs[0].dtype == "float32"
    x = np.random.default_rng(0).integers(9, size=(12, 5))
    with gg.Trainer(net) as trainer:
        assert trainer.fit(x, x[:, 0] % 3, batch_size=4, progress=False).last["train_loss"] > 0


@isas
@pytest.mark.parametrize("case", [(1, 1, 1, 1, 1), (3, 7, 20, 7, 1), (17, 5, 33, 9, 1), (64, 33, 17, 64, 3)], ids=str)
def test_position_embedding(isa, case):
    n, positions, features, numbers, threads = case
    rng = seeded(case)
    x, weight = float32(rng, n, positions, features), float32(rng, numbers, features)
    grad = float32(rng, *x.shape)
    found = operations.run_op(
        "native",
        isa,
        "position_embedding",
        [x],
        x.shape[1:],
        weight=weight,
        grad_output=grad,
        numbers=numbers,
        threads=threads,
    )
    same("output", found["output"], x + weight[:positions])
    same("grad_input", found["grad_inputs"][0], grad)
    wide = np.zeros((numbers, features))
    wide[:positions] = grad.astype(np.float64).sum(0)
    size = np.zeros_like(wide)
    size[:positions] = np.abs(grad.astype(np.float64)).sum(0)
    close("grad_weight", found["grad_weight"], wide, size, n)
    assert not found["grad_weight"][positions:].any()


# ---- another order, a part, zeros around

ARRANGED = {
    "permute-2": ("permute", (5, 7), dict(order=(1, 0))),
    "permute-3": ("permute", (2, 3, 5), dict(order=(2, 0, 1))),
    "permute-nothing": ("permute", (4, 3), dict(order=(0, 1))),
    "permute-middle": ("permute", (3, 4, 2, 5), dict(order=(0, 2, 1, 3))),
    "slice-first-axis": ("slice", (5, 7), dict(axis=0, begin=4, end=5)),
    "slice-last-axis": ("slice", (5, 7), dict(axis=1, begin=2, end=6)),
    "slice-by-2": ("slice", (3, 9, 8), dict(axis=1, begin=1, end=9, stride1=3)),
    "slice-last-by-2": ("slice", (3, 9), dict(axis=1, begin=0, end=9, stride1=2)),
    "slice-all": ("slice", (3, 2), dict(axis=0, begin=0, end=3)),
    "slice-flat": ("slice", (20,), dict(axis=0, begin=3, end=20)),
    "pad-first-axis": ("pad", (3, 2, 5), dict(axis=0, begin=1, end=4, before=1, behind=2)),
    "pad-last-axis": ("pad", (3, 5), dict(axis=1, begin=0, end=5, before=0, behind=3)),
    "pad-nothing": ("pad", (3, 5), dict(axis=1, begin=0, end=5, before=0, behind=0)),
}


def arranged(name, x):
    kind, _, how = ARRANGED[name]
    if kind == "permute":
        return x.transpose(0, *(1 + axis for axis in how["order"]))
    if kind == "slice":
        return np.moveaxis(
            np.moveaxis(x, 1 + how["axis"], 0)[how["begin"] : how["end"] : how.get("stride1", 1)], 0, 1 + how["axis"]
        )
    around = [(0, 0)] * x.ndim
    around[1 + how["axis"]] = (how["before"], how["behind"])
    return np.pad(x, around)


@isas
@pytest.mark.parametrize("lanes", [False, True], ids=["plain", "batch-last"])
@pytest.mark.parametrize("n", [1, 19])
@pytest.mark.parametrize("name", ARRANGED)
def test_axes_are_rearranged(isa, name, n, lanes):
    kind, shape, how = ARRANGED[name]
    options = (dict(stride1=1) if kind in ("slice", "pad") else {}) | {
        k: v for k, v in how.items() if k not in ("before", "behind")
    }
    x = float32(seeded((name, n)), n, *shape)
    y = arranged(name, x)
    grad = float32(seeded((n, name)), *y.shape)
    found = operations.run_op(
        "native", isa, kind, [x], y.shape[1:], grad_output=grad, lanes=lanes, threads=2, **options
    )
    same("output", found["output"], y)
    # The adjoint: each element's gradient is that of the place it goes to.
    places = arranged(name, np.arange(1, x.size + 1).reshape(x.shape))
    wanted = np.zeros(x.size + 1, np.float32)
    wanted[places.ravel()] = grad.ravel()
    same("grad_input", found["grad_inputs"][0], wanted[1:].reshape(x.shape))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (gg.Reshape((4, 5)), r"the 21 values of the input \(7, 3\) from 'input' do not have the shape \(4, 5\)"),
        (gg.Reshape((-1, 4)), r"do not have the shape \(-1, 4\)"),
        (gg.Permute((0, 1, 2)), r"each of the axes 0 to 1 of the input \(7, 3\)"),
        (gg.Slice(2), r"axis must be -2 to 1 for the input \(7, 3\) from 'input', got 2"),
        (gg.Slice(0, 7), r"nothing of axis 0 of the input \(7, 3\) from 'input' is between 7"),
        (gg.Pad(-3, 1), r"axis must be -2 to 1"),
        (gg.PositionEmbedding(6), r"the table has 6 positions, the input \(7, 3\) from 'input' has 7"),
        (gg.Embedding(5, 2), r"input 0 must be int32, got float32 from 'input'"),
    ],
    ids=str,
)
def test_layers_name_what_does_not_fit(layer, message):
    x = gg.Input((7, 3))
    with pytest.raises((ValueError, TypeError), match=message):
        gg.Model(x, layer(x))


def test_numbers_beyond_any_size():
    """Their products do not overflow into something that fits."""
    x = gg.Input((4, 6))
    with pytest.raises(ValueError, match=r"heads=6\.1489\d*e\+18: must be at least 1 and at most"):
        gg.Model(x, gg.Attention(2**63 // 3 * 2 + 2)(x))
    for hidden in (2**60, 2**61, 2**63 - 1):
        with pytest.raises(ValueError, match=r"outputs=\S+: must be at least 1 and at most 2147483648"):
            gg.Model(x, gg.LSTM(hidden)(x))
    assert gg.Model(x, gg.Slice(1, step=2**62)(x)).output_shape == (4, 1)


def test_shapes():
    for layer, shape in [
        (gg.Reshape((-1,)), (24,)),
        (gg.Reshape((4, -1, 2)), (4, 3, 2)),
        (gg.Permute((2, 0, 1)), (4, 2, 3)),
        (gg.Slice(0, -1), (1, 3, 4)),
        (gg.Slice(-1, 1, None, 2), (2, 3, 2)),
        (gg.Slice(1, -2, -1), (2, 1, 4)),
        (gg.Pad(-1, 1, 2), (2, 3, 7)),
        (gg.Linear(5), (2, 3, 5)),
    ]:
        x = gg.Input((2, 3, 4))
        model = gg.Model(x, layer(x))
        assert model.output_shape == shape, layer
        again = gg.Model.from_config(model.config())
        assert again.output_shape == shape and again.config() == model.config()


def test_names_of_parameters():
    tokens = gg.Input((6,), dtype="int32")
    x = gg.PositionEmbedding(8, name="wpe")(gg.Embedding(7, 16, name="wte")(tokens))
    net = gg.Model(tokens, gg.Linear(7, name="head")(x))
    assert net.output_shape == (6, 7)
    assert {name: shape for name, shape, *_ in net.graph.parameters()} == {
        "wte.weight": (7, 16),
        "wpe.weight": (8, 16),
        "head.weight": (7, 16),
        "head.bias": (7,),
    }
    weights = net.graph.initial_weights(0)
    assert abs(np.concatenate([weights["wte.weight"], weights["wpe.weight"]]).std() - 1) < 0.2


@pytest.mark.parametrize("layout", ["plain", "batch_last"])
@pytest.mark.parametrize(
    ("kind", "inputs", "output", "options"),
    [
        ("add", 2, (9, 40, 50), {}),
        ("pad", 1, (12, 40, 50), {"axis": 0, "begin": 1, "end": 10, "stride1": 1}),
        ("slice", 1, (5, 40, 50), {"axis": 0, "begin": 2, "end": 7, "stride1": 1}),
    ],
)
def test_copies_that_threads_divide_have_the_same_bits(kind, inputs, output, options, layout):
    """Of sizes for which three threads are worth it, and that they do not divide evenly."""
    rng = np.random.default_rng(3)
    x = [rng.standard_normal((7, 9, 40, 50), np.float32) for _ in range(inputs)]
    grad = rng.standard_normal((7, *output), np.float32)
    one, three = (
        operations.run_op("native", None, kind, x, output, grad_output=grad, layout=layout, threads=threads, **options)
        for threads in (1, 3)
    )
    assert np.array_equal(one["output"], three["output"])
    for alone, divided in zip(one["grad_inputs"], three["grad_inputs"], strict=True):
        assert np.array_equal(alone, divided)
