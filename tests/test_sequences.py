"""Layers of sequences: single operations of every table and instruction set against float64, and PyTorch's."""

from __future__ import annotations

import contextlib

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import PRODUCTS, TABLES, close, float32, isas, product_isas, same, seeded

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
    options = dict(stride1=1) | {k: v for k, v in how.items() if k not in ("before", "behind")}
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
    with pytest.raises(ValueError, match=f"divisible by the {2**63 // 3 * 2 + 2} heads"):
        gg.Model(x, gg.Attention(2**63 // 3 * 2 + 2)(x))
    for hidden in (2**60, 2**61, 2**63 - 1):
        with pytest.raises(ValueError, match=f"the weight \\(4 \\* {hidden}, {hidden}\\) has too many values"):
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


# ---- attention

ATTENTION = {
    "one-of-everything": (1, 1, 1, 1, {}),
    "batch-1": (1, 5, 2, 3, {}),
    "one-position": (7, 1, 3, 8, dict(causal=True)),
    "causal": (3, 17, 2, 5, dict(causal=True)),
    "nanogpt": (2, 64, 4, 32, dict(causal=True)),
    "a-block-and-one": (2, 65, 2, 16, dict(causal=True)),
    "blocks": (1, 150, 1, 7, {}),
    "blocks-causal": (2, 130, 3, 33, dict(causal=True, threads=2)),
    "lengths": (5, 9, 2, 4, dict(lengths=True)),
    "lengths-causal": (4, 70, 2, 6, dict(lengths=True, causal=True)),
    "extreme": (2, 12, 2, 4, dict(scale=30.0)),
    "dropout": (3, 10, 2, 4, dict(probability=0.3)),
    "dropout-causal": (2, 67, 2, 5, dict(probability=0.5, causal=True, threads=3)),
    "dropout-lengths": (3, 13, 2, 5, dict(probability=0.2, lengths=True)),
}


def attention_case(name):
    n, positions, heads, size, how = ATTENTION[name]
    rng = seeded(ATTENTION[name])
    x = float32(rng, n, positions, 3 * heads * size) * np.float32(how.get("scale", 1))
    lengths = rng.integers(1, positions + 1, (n, 1)).astype(np.int32) if how.get("lengths") else None
    return x, lengths, float32(rng, n, positions, heads * size), heads, how


def run_attention(backend, isa, name, **more):
    x, lengths, grad, heads, how = attention_case(name)
    options = {k: v for k, v in how.items() if k not in ("lengths", "scale")} | more
    inputs = [x] if lengths is None else [x, lengths]
    return operations.run_op(
        backend, isa, "attention", inputs, grad.shape[1:], grad_output=grad, heads=heads, seed=3, step=5, **options
    )


def attention_mask(name):
    """What dropout multiplies the weights by, found from the output: with values that are unit vectors it is shown."""
    x, lengths, _, heads, how = attention_case(name)
    if not how.get("probability"):
        return None
    n, positions = x.shape[:2]
    size = x.shape[2] // 3 // heads
    mask = np.zeros((n, heads, positions, positions))
    for begin in range(0, positions, size):
        shown = x.reshape(n, positions, 3, heads, size).copy()
        shown[:, :, 2] = 0
        for j in range(begin, min(begin + size, positions)):
            shown[:, j, 2, :, j - begin] = 1
        inputs = [shown.reshape(x.shape)] + ([] if lengths is None else [lengths])
        options = {k: v for k, v in how.items() if k != "lengths"}
        y = operations.run_op(
            "native", None, "attention", inputs, (positions, heads * size), heads=heads, seed=3, step=5, **options
        )["output"]
        part = y.reshape(n, positions, heads, size).transpose(0, 2, 1, 3)
        mask[..., begin : begin + size] = part[..., : min(size, positions - begin)]
    _, weights = ref.attention(x.astype(np.float64), heads, how.get("causal", False), lengths)
    factor = mask / np.where(weights > 0, weights, 1)
    kept = 1 / (1 - how["probability"])
    assert np.all((np.abs(factor) < 1e-3) | (np.abs(factor - kept) < 1e-3 * kept))
    share = (factor > kept / 2).sum() / (weights > 0).sum()
    assert abs(share - (1 - how["probability"])) < 0.1
    return np.where(factor > kept / 2, kept, 0)


@isas
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(isa, name):
    x, lengths, grad, heads, how = attention_case(name)
    found = run_attention("native", isa, name)
    wide, mask = x.astype(np.float64), attention_mask(name)
    y, weights = ref.attention(wide, heads, how.get("causal", False), lengths, mask)
    # A score is a sum of products; what it is off by is a factor of its weight, and so of all that follows.
    far = how.get("scale", 1) ** 2
    size = ref.attention(np.abs(wide) * 0 + np.abs(wide), heads)[0] * 0 + np.abs(wide).max() * 4 * far
    close("output", found["output"], y, size, x.shape[1])
    back = ref.attention_backward(wide, weights, grad.astype(np.float64), mask)
    size = np.abs(back).max() + np.abs(wide).max() * np.abs(grad).max() * far * 4
    close("grad_input", found["grad_inputs"][0], back, size, x.shape[1])


def test_attention_agrees_with_its_own_differences():
    x, lengths, grad, heads, how = attention_case("dropout-lengths")
    wide, mask, step = x.astype(np.float64), attention_mask("dropout-lengths"), 1e-6
    _, weights = ref.attention(wide, heads, False, lengths, mask)
    back = ref.attention_backward(wide, weights, grad.astype(np.float64), mask)
    rng = np.random.default_rng(0)
    for _ in range(20):
        at = tuple(int(rng.integers(size)) for size in x.shape)
        up, down = wide.copy(), wide.copy()
        up[at] += step
        down[at] -= step
        both = [(ref.attention(z, heads, False, lengths, mask)[0] * grad).sum() for z in (up, down)]
        assert (both[0] - both[1]) / (2 * step) == pytest.approx(back[at], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", ["blocks-causal", "dropout-causal", "lengths"])
def test_attention_is_the_same_for_any_threads(name):
    one, three = run_attention("native", None, name, threads=1), run_attention("native", None, name, threads=3)
    same("output", one["output"], three["output"])
    same("grad_input", one["grad_inputs"][0], three["grad_inputs"][0])


def test_no_dropout_in_evaluation():
    x, _, _, heads, _ = attention_case("dropout")
    y = operations.run_op(
        "native", None, "attention", [x], (10, 8), heads=heads, probability=0.3, evaluate=True, training=True
    )["output"]
    without = operations.run_op("native", None, "attention", [x], (10, 8), heads=heads, training=False)["output"]
    same("output", y, without)


@pytest.mark.parametrize("length", [0, -1, 10])
def test_a_wrong_length_is_named(length):
    lengths = np.array([[9], [length], [3]], np.int32)
    with pytest.raises(ValueError, match=f"the length of sample 1 of the batch is {length}; allowed: 1 to 9"):
        operations.run_op("native", None, "attention", [np.zeros((3, 9, 6), np.float32), lengths], (9, 2), heads=1)


@pytest.mark.parametrize("made", [gg.Attention(2), gg.MultiHeadAttention(12, 2)], ids=lambda one: type(one).__name__)
def test_lengths_are_checked_before_the_first_step(made):
    """Of all samples, with the number of the one that is wrong; through a view, too, and of what validates."""
    x, lengths = gg.Input((5, 12), name="x"), gg.Input((1, 1), dtype="int32", name="lengths")
    layer = type(made)(2) if isinstance(made, gg.Attention) else type(made)(12, 2)
    net = gg.Model([x, lengths], gg.Linear(3)(layer(x, gg.Reshape((1,))(lengths))))
    given = {"x": np.ones((40, 5, 12), np.float32), "lengths": np.full((40, 1, 1), 5)}
    targets = np.zeros((40, 5), np.int32)
    for wrong, allowed in ((0, False), (6, False), (1, True)):
        given["lengths"][33] = wrong
        with gg.Trainer(net) as trainer:
            if allowed:
                trainer.fit(gg.Dataset(given, targets), batch_size=10, progress=False)
                continue
            message = f"input 1: sample 33 has number {wrong}; allowed are 1 to 5"
            with pytest.raises(ValueError, match=message):
                trainer.fit(gg.Dataset(given, targets), batch_size=10, progress=False)
            with pytest.raises(ValueError, match=f"samples: number {wrong}; the network has numbers 1 to 5"):
                trainer.train_step(given, targets)
            assert trainer.step == 0


@pytest.mark.parametrize("name", ["one-position", "nanogpt", "a-block-and-one", "blocks", "lengths", "lengths-causal"])
def test_attention_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, lengths, grad, heads, how = attention_case(name)
    n, positions = x.shape[:2]
    packed = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    query, key, value = packed.reshape(n, positions, 3, heads, -1).permute(2, 0, 3, 1, 4)
    allowed = torch.ones(n, 1, positions, positions, dtype=torch.bool)
    if how.get("causal"):
        allowed = allowed.tril()
    if lengths is not None:
        allowed = allowed & (torch.arange(positions) < torch.tensor(lengths).reshape(n, 1, 1, 1))
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value, allowed)
    y = y.permute(0, 2, 1, 3).reshape(n, positions, -1)
    y.backward(torch.tensor(grad, dtype=torch.float64))
    found = run_attention("native", None, name)
    np.testing.assert_allclose(found["output"], y.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["grad_inputs"][0], packed.grad.numpy(), rtol=1e-4, atol=1e-5)


# ---- LSTM

LSTM = {
    "one-of-everything": (1, 1, 1, 1, 1, {}),
    "batch-1": (1, 4, 3, 5, 1, {}),
    "one-position": (5, 1, 7, 4, 2, {}),
    "odd": (3, 6, 5, 17, 1, {}),
    "two-layers": (4, 5, 3, 8, 2, {}),
    "three-layers-no-bias": (2, 3, 4, 5, 3, dict(bias=False)),
    "wide": (17, 3, 65, 70, 1, dict(threads=2)),
    "threads": (7, 4, 6, 33, 2, dict(threads=3)),
    "stateful": (3, 4, 5, 6, 2, dict(stateful=True)),
    "no-input-grad": (2, 5, 3, 4, 2, dict(input_grad=False)),
    "dropout": (6, 5, 4, 10, 2, dict(probability=0.4)),
    "large": (5, 3, 7, 288, 2, dict(threads=2)),
    "many-samples": (35, 4, 9, 288, 2, dict(threads=2, stateful=True)),
    "dropout-stateful-threads": (5, 3, 4, 7, 2, dict(probability=0.3, stateful=True, threads=2)),
}


def lstm_case(name):
    n, positions, inputs, hidden, layers, how = LSTM[name]
    rng = seeded(LSTM[name])
    x, grad = float32(rng, n, positions, inputs), float32(rng, n, positions, hidden)
    parameters = []
    for k in range(layers):
        sizes = [(4 * hidden, inputs if k == 0 else hidden), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
        parameters += [float32(rng, *size) / np.float32(np.sqrt(hidden)) for size in sizes]
    first = float32(rng, n, layers, 2, hidden) if how.get("stateful") else np.zeros((n, layers, 2, hidden), np.float32)
    return x, parameters, first, grad, layers, how


def run_lstm(isa, name, **more):
    x, parameters, first, grad, layers, how = lstm_case(name)
    given = [p for i, p in enumerate(parameters) if how.get("bias", True) or i % 4 < 2]
    carried = first.copy() if how.get("stateful") else None
    options = dict(bias=True, layers=layers, seed=7, step=2) | how | more
    found = operations.run_op(
        "native", isa, "lstm", [x], grad.shape[1:], parameters=given, grad_output=grad, carried=carried, **options
    )
    return found | {"carried": carried}


def lstm_masks(name):
    """What dropout multiplies the states between two layers by: where the first layer always says 1, and the second
    passes on what it reads, the output shows which came through."""
    x, _, _, grad, layers, how = lstm_case(name)
    if not how.get("probability"):
        return None
    assert layers == 2
    hidden = grad.shape[2]
    passes = np.concatenate([np.full(hidden, b) for b in (30.0, -30.0, 0.0, 30.0)])  # in, forget, new, out
    says = passes.copy()
    says[2 * hidden : 3 * hidden] = 30.0
    reads = np.zeros((4 * hidden, hidden))
    reads[2 * hidden : 3 * hidden] = np.eye(hidden)
    none = [np.zeros((4 * hidden, hidden)), np.zeros(4 * hidden)]
    parameters = [np.zeros((4 * hidden, x.shape[2])), none[0], says, none[1], reads, none[0], passes, none[1]]
    options = dict(bias=True, layers=2, seed=7, step=2, probability=how["probability"])
    shown = operations.run_op(
        "native", None, "lstm", [x], grad.shape[1:], parameters=[p.astype(np.float32) for p in parameters], **options
    )["output"]
    assert abs((shown > 0.1).mean() - (1 - how["probability"])) < 0.1
    return [np.where(shown > 0.1, 1 / (1 - how["probability"]), 0)]


@product_isas
@pytest.mark.parametrize("name", LSTM)
def test_lstm(isa, name):
    x, parameters, first, grad, layers, how = lstm_case(name)
    masks = lstm_masks(name)
    found = run_lstm(isa, name)
    wide = [p.astype(np.float64) * (how.get("bias", True) or i % 4 < 2) for i, p in enumerate(parameters)]
    made = ref.lstm(x.astype(np.float64), wide, layers, first.astype(np.float64), masks)
    terms = x.shape[1] * layers * 8
    close("output", found["output"], made[-1]["states"], 2.0, terms)
    back, gradients = ref.lstm_backward(made, wide, grad.astype(np.float64), masks)
    if how.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], back, np.abs(back).max() + 1, terms)
    wanted = [g for i, g in enumerate(gradients) if how.get("bias", True) or i % 4 < 2]
    assert len(found["gradients"]) == len(wanted)
    for i, (one, g) in enumerate(zip(found["gradients"], wanted, strict=True)):
        close(f"gradient {i}", one, g, np.abs(g).max() + 1, terms * x.shape[0])
    if how.get("stateful"):
        last = np.stack([np.stack([m["states"][:, -1], m["cells"][:, -1]], 1) for m in made], 1)
        close("carried", found["carried"], last, 2 + np.abs(last), terms)


def test_lstm_agrees_with_its_own_differences():
    x, parameters, first, grad, layers, _ = lstm_case("stateful")
    wide, step = [p.astype(np.float64) for p in parameters], 1e-6
    x, first = x.astype(np.float64), first.astype(np.float64)
    back, gradients = ref.lstm_backward(ref.lstm(x, wide, layers, first), wide, grad.astype(np.float64))

    def value():
        return (ref.lstm(x, wide, layers, first)[-1]["states"] * grad).sum()

    rng = np.random.default_rng(0)
    for array, wanted in [(x, back), *zip(wide, gradients, strict=True)]:
        for _ in range(3):
            at = tuple(int(rng.integers(size)) for size in array.shape)
            at_rest = array[at]
            array[at] = at_rest + step
            up = value()
            array[at] = at_rest - step
            down = value()
            array[at] = at_rest
            assert (up - down) / (2 * step) == pytest.approx(wanted[at], rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("isa", [None, "amx"])
@pytest.mark.parametrize("name", ["wide", "two-layers", "dropout", "stateful", "large", "many-samples"])
def test_lstm_is_the_same_for_any_threads(isa, name):
    one, three = run_lstm(isa, name, threads=1), run_lstm(isa, name, threads=3)
    same("output", one["output"], three["output"])
    same("grad_input", one["grad_inputs"][0], three["grad_inputs"][0])
    for a, b in zip(one["gradients"], three["gradients"], strict=True):
        same("gradient", a, b)


def test_a_state_that_is_carried_joins_two_halves():
    x, parameters, _, grad, layers, _ = lstm_case("two-layers")
    n, hidden = len(x), grad.shape[2]
    options = dict(parameters=parameters, bias=True, layers=layers)
    whole = operations.run_op("native", None, "lstm", [x], (5, hidden), **options)["output"]
    carried = np.zeros((n, layers, 2, hidden), np.float32)
    options |= dict(carried=carried, stateful=True)
    first = operations.run_op("native", None, "lstm", [x[:, :2]], (2, hidden), **options)
    rest = operations.run_op("native", None, "lstm", [x[:, 2:]], (3, hidden), **options)
    same("output", np.concatenate([first["output"], rest["output"]], 1), whole)


def test_lstm_for_evaluation():
    x, parameters, _, grad, layers, _ = lstm_case("dropout")
    options = dict(parameters=parameters, bias=True, layers=layers, probability=0.4)
    one = operations.run_op("native", None, "lstm", [x], grad.shape[1:], training=False, **options)["output"]
    two = operations.run_op("native", None, "lstm", [x], grad.shape[1:], evaluate=True, **options)["output"]
    wide = [p.astype(np.float64) for p in parameters]
    made = ref.lstm(x.astype(np.float64), wide, layers, np.zeros((len(x), layers, 2, grad.shape[2])))
    close("output", one, made[-1]["states"], 2.0, 100)
    same("output", one, two)


def test_lstm_draws_by_step():
    one, two, again = (run_lstm(None, "dropout", step=step)["output"] for step in (3, 4, 3))
    assert (one != two).any()
    same("output of a step", one, again)


@pytest.mark.parametrize("name", ["odd", "two-layers", "three-layers-no-bias", "stateful", "one-position"])
def test_lstm_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, parameters, first, grad, layers, how = lstm_case(name)
    bias, hidden = how.get("bias", True), grad.shape[2]
    net = torch.nn.LSTM(x.shape[2], hidden, layers, bias=bias, batch_first=True).double()
    given = [p for i, p in enumerate(parameters) if bias or i % 4 < 2]
    with torch.no_grad():
        for own, value in zip(net.parameters(), given, strict=True):
            own.copy_(torch.tensor(value, dtype=torch.float64))
    tokens = gg.Input(x.shape[1:])
    model = gg.Model(tokens, gg.LSTM(hidden, layers=layers, bias=bias, name="rnn")(tokens))
    assert [name for name, *_ in model.graph.parameters()] == [f"rnn.{name}" for name, _ in net.named_parameters()]
    z = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    begin = torch.tensor(first, dtype=torch.float64).permute(2, 1, 0, 3).contiguous()
    y, _ = net(z, (begin[0], begin[1]))
    y.backward(torch.tensor(grad, dtype=torch.float64))
    found = run_lstm(None, name)
    np.testing.assert_allclose(found["output"], y.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(found["grad_inputs"][0], z.grad.numpy(), rtol=1e-4, atol=1e-5)
    for one, own in zip(found["gradients"], net.parameters(), strict=True):
        np.testing.assert_allclose(one, own.grad.numpy(), rtol=1e-4, atol=1e-5)


# ---- attention with its projections


@isas
@pytest.mark.parametrize(
    "case",
    [(1, 1, 1, 1, {}), (3, 9, 2, 5, {}), (2, 66, 3, 4, dict(causal=True, threads=2)), (4, 7, 2, 3, dict(bias=False)),
     (5, 8, 2, 4, dict(lengths=True)), (2, 5, 1, 6, dict(input_grad=False)), (3, 6, 2, 5, dict(embed=20)),
     (2, 4, 3, 8, dict(embed=7))],
    ids=str,
)  # fmt: skip
def test_multi_head_attention(isa, case):
    n, positions, heads, size, how = case
    rng, inner = seeded(case), heads * size
    embed = how.get("embed", inner)
    x, grad = float32(rng, n, positions, embed), float32(rng, n, positions, embed)
    lengths = rng.integers(1, positions + 1, (n, 1)).astype(np.int32) if how.get("lengths") else None
    sizes = [(3 * inner, embed), (3 * inner,), (embed, inner), (embed,)]
    given = [float32(rng, *one) / np.float32(np.sqrt(embed)) for one in sizes]
    wide = [p.astype(np.float64) * (how.get("bias", True) or p.ndim == 2) for p in given]
    options = dict(bias=True) | {k: v for k, v in how.items() if k not in ("lengths", "embed")}
    found = operations.run_op(
        "native",
        isa,
        "multi_head",
        [x] if lengths is None else [x, lengths],
        grad.shape[1:],
        parameters=[p for p in given if options["bias"] or p.ndim == 2],
        grad_output=grad,
        heads=heads,
        head_size=size,
        **options,
    )
    packed = x.astype(np.float64) @ wide[0].T + wide[1]
    mixed, weights = ref.attention(packed, heads, how.get("causal", False), lengths)
    close("output", found["output"], mixed @ wide[2].T + wide[3], np.abs(mixed).max() * size + 4, 8 * positions)
    error = grad.astype(np.float64)
    back = ref.attention_backward(packed, weights, error @ wide[2])
    flat = [a.reshape(-1, a.shape[-1]) for a in (back, x.astype(np.float64), error, mixed)]
    wanted = [flat[0].T @ flat[1], flat[0].sum(0), flat[2].T @ flat[3], flat[2].sum(0)]
    scale = max(np.abs(w).max() for w in wanted) + np.abs(packed).max() ** 2
    for one, w in zip(found["gradients"], [w for w in wanted if options["bias"] or w.ndim == 2], strict=True):
        close("gradient", one, w, scale, 8 * positions * n)
    if options.get("input_grad", True):
        close("grad_input", found["grad_inputs"][0], back @ wide[0], scale, 8 * positions)


def test_multi_head_attention_is_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    net = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    tokens = gg.Input((7, 12))
    model = gg.Model(tokens, gg.MultiHeadAttention(12, 3, causal=True, name="attn")(tokens))
    named = list(net.named_parameters())
    assert [name for name, *_ in model.graph.parameters()] == [f"attn.{name}" for name, _ in named]
    x, grad = float32(rng, 4, 7, 12), float32(rng, 4, 7, 12)
    z = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y, _ = net(z, z, z, attn_mask=torch.ones(7, 7).triu(1).bool(), need_weights=False)
    y.backward(torch.tensor(grad, dtype=torch.float64))
    given = [own.detach().numpy().astype(np.float32) for _, own in named]
    found = operations.run_op(
        "native", None, "multi_head", [x], (7, 12), parameters=given, bias=True, grad_output=grad, heads=3, causal=True,
        head_size=4,
    )  # fmt: skip
    np.testing.assert_allclose(found["output"], y.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found["grad_inputs"][0], z.grad.numpy(), rtol=1e-4, atol=1e-5)
    for one, (_, own) in zip(found["gradients"], named, strict=True):
        np.testing.assert_allclose(one, own.grad.numpy(), rtol=1e-4, atol=1e-5)


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
