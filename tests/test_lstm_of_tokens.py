"""An embedding and the LSTM behind it as one operation: against float64, and beside the two operations."""

from __future__ import annotations

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import close, float32, product_isas, same, seeded

import gossipgrad as gg
from gossipgrad import _core

# samples, positions, rows of the table, features, hidden units, layers, options
CASES = {
    "one-of-everything": (2, 1, 1, 1, 1, 1, {}),
    "batch-1": (1, 9, 4, 3, 5, 1, {}),
    "as-many-as-allowed": (3, 4, 6, 5, 7, 2, {}),
    "two-layers-no-bias": (4, 5, 3, 4, 8, 2, dict(bias=False)),
    "threads": (7, 8, 11, 6, 33, 2, dict(threads=3)),
    "stateful": (3, 6, 5, 4, 6, 2, dict(stateful=True)),
    "dropout": (6, 5, 9, 4, 10, 2, dict(probability=0.4)),
    "large": (5, 4, 7, 9, 288, 2, dict(threads=2)),
    "many-samples": (35, 4, 65, 19, 288, 1, dict(threads=2, stateful=True)),
    "many-rows": (16, 40, 300, 17, 20, 1, {}),
}
cases = pytest.mark.parametrize("name", CASES)


def case(name):
    n, positions, numbers, features, hidden, layers, how = CASES[name]
    rng = seeded(CASES[name])
    token = rng.integers(0, numbers, (n, positions)).astype(np.int32)
    token[0, 0] = numbers - 1
    parameters = [float32(rng, numbers, features)]
    for k in range(layers):
        sizes = [(4 * hidden, features if k == 0 else hidden), (4 * hidden, hidden)]
        sizes += [(4 * hidden,)] * 2 if how.get("bias", True) else []
        parameters += [float32(rng, *size) / np.float32(np.sqrt(hidden)) for size in sizes]
    first = float32(rng, n, layers, 2, hidden) if how.get("stateful") else None
    return token, parameters, first, float32(rng, n, positions, hidden), how


def run(isa, name, **more):
    """As one operation."""
    token, parameters, first, grad, how = case(name)
    numbers, features = parameters[0].shape
    options = dict(bias=True, layers=CASES[name][5], seed=7, step=2, input_grad=False) | how | more
    carried = None if first is None else first.copy()
    found = operations.run_op(
        "native",
        isa,
        "lstm",
        [token],
        grad.shape[1:],
        parameters=parameters,
        grad_output=grad,
        carried=carried,
        numbers=numbers,
        features=features,
        **options,
    )
    assert not any(one is not None for one in found["grad_inputs"])
    return found["output"], found["gradients"], carried


def run_apart(isa, name, **more):
    """As two: the LSTM reads the rows, and the table's gradient is made of what it gives."""
    token, parameters, first, grad, how = case(name)
    options = dict(bias=True, layers=CASES[name][5], seed=7, step=2) | how | more
    carried = None if first is None else first.copy()
    found = operations.run_op(
        "native",
        isa,
        "lstm",
        [parameters[0][token]],
        grad.shape[1:],
        parameters=parameters[1:],
        grad_output=grad,
        carried=carried,
        **options,
    )
    wide = found["grad_inputs"][0].astype(np.float64)
    table = ref.embedding_backward(parameters[0].astype(np.float64), token, wide)
    return found["output"], [table, *found["gradients"]], carried


@product_isas
@cases
def test_against_float64(isa, name):
    token, parameters, first, grad, how = case(name)
    output, gradients, carried = run(isa, name)
    if how.get("probability"):  # which states are dropped is the operation's own: the other form draws the same
        wanted, others, _ = run_apart(isa, name)
        close("output", output, wanted.astype(np.float64), 2.0, 100)
        for i, (one, other) in enumerate(zip(gradients, others, strict=True)):
            close(f"gradient {i}", one, np.asarray(other, np.float64), np.abs(other).max() + 1, 100 * token.size)
        return
    layers, (n, _, hidden) = CASES[name][5], grad.shape
    wide = [p.astype(np.float64) for p in parameters]
    each, bias = (4, True) if how.get("bias", True) else (2, False)
    full = []
    for k in range(layers):
        own = wide[1 + k * each : 1 + (k + 1) * each]
        full += own if bias else [*own, np.zeros(4 * hidden), np.zeros(4 * hidden)]
    begin = np.zeros((n, layers, 2, hidden)) if first is None else first.astype(np.float64)
    made = ref.lstm(wide[0][token], full, layers, begin)
    terms = token.shape[1] * layers * 8
    close("output", output, made[-1]["states"], 2.0, terms)
    back, made_gradients = ref.lstm_backward(made, full, grad.astype(np.float64))
    wanted = [g for i, g in enumerate(made_gradients) if bias or i % 4 < 2]
    table = ref.embedding_backward(wide[0], token, back)
    for i, (one, g) in enumerate(zip(gradients, [table, *wanted], strict=True)):
        close(f"gradient {i}", one, g, np.abs(g).max() + 1, terms * n)
    unused = np.setdiff1d(np.arange(len(wide[0])), token)
    assert not gradients[0][unused].any()
    if first is not None:
        last = np.stack([np.stack([m["states"][:, -1], m["cells"][:, -1]], 1) for m in made], 1)
        close("carried", carried, last, 2 + np.abs(last), terms)


@pytest.mark.parametrize("isa", [None, "amx"])
@pytest.mark.parametrize("name", ["threads", "dropout", "stateful", "large", "many-samples"])
def test_the_same_for_any_threads(isa, name):
    (one, gradients, carried), (three, others, later) = (run(isa, name, threads=t) for t in (1, 3))
    same("output", one, three)
    for a, b in zip(gradients, others, strict=True):
        same("gradient", a, b)
    if carried is not None:
        same("carried", carried, later)


def test_for_evaluation():
    token, parameters, _, grad, _ = case("dropout")
    options = dict(parameters=parameters, bias=True, layers=2, probability=0.4, numbers=9, features=4)
    one, two = (
        operations.run_op("native", None, "lstm", [token], grad.shape[1:], **options, **how)["output"]
        for how in (dict(training=False), dict(evaluate=True))
    )
    options |= dict(numbers=0, features=0, parameters=parameters[1:])
    rows = operations.run_op("native", None, "lstm", [parameters[0][token]], grad.shape[1:], training=False, **options)
    same("output", one, two)
    close("output", one, rows["output"].astype(np.float64), 2.0, 100)


def test_many_positions_of_one_token_keep_their_digits():
    rng, hidden, shape = np.random.default_rng(0), 3, (512, 32)
    token, grad = np.zeros(shape, np.int32), rng.random((*shape, hidden), np.float32)
    sizes = ((2, 2), (4 * hidden, 2), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
    parameters = [rng.random(size, np.float32) - np.float32(0.3) for size in sizes]
    options = dict(parameters=parameters, bias=True, layers=1, numbers=2, features=2, input_grad=False)
    found = operations.run_op("native", None, "lstm", [token], grad.shape[1:], grad_output=grad, **options)["gradients"]
    wide = [p.astype(np.float64) for p in parameters]
    made = ref.lstm(wide[0][token], wide[1:], 1, np.zeros((shape[0], 1, 2, hidden)))
    _, (input_weight, _, bias, _) = ref.lstm_backward(made, wide[1:], grad.astype(np.float64))
    for one, wanted in ((found[1], input_weight), (found[3], bias)):
        assert np.abs(one - wanted).max() < 3e-7 * np.abs(wanted).max()


@pytest.mark.parametrize("how", [dict(numbers=7), dict(dtype="bfloat16")], ids=["more-rows-than-allowed", "bfloat16"])
def test_what_is_computed_apart(how):
    token = np.zeros((3, 4), np.int32)
    parameters = [np.ones((how.get("numbers", 2), 5), np.float32)]
    parameters += [np.ones(size, np.float32) for size in ((8, 5), (8, 2), (8,), (8,))]
    options = dict(parameters=parameters, bias=True, layers=1, numbers=2, features=5) | how
    for table in ("native", "onednn"):
        with pytest.raises(NotImplementedError):
            operations.run_op(table, None, "lstm", [token], (4, 2), **options)


@pytest.mark.parametrize("token", [-1, 5, 2**31 - 1, -(2**31)])
def test_a_token_that_is_no_row_is_named(token):
    tokens = np.zeros((3, 4), np.int32)
    tokens[2, 1] = token
    parameters = [np.ones(size, np.float32) for size in ((5, 2), (12, 2), (12, 3), (12,), (12,))]
    options = dict(parameters=parameters, bias=True, layers=1, numbers=5, features=2)
    with pytest.raises(ValueError, match=rf"token {token} at position 1 of sample 2 of the batch; allowed: 0 to 4"):
        operations.run_op("native", None, "lstm", [tokens], (4, 3), **options)


def network(apart, **how):
    """An embedding and an LSTM; apart: with something between them, which changes nothing."""
    x = gg.Input((12,), dtype="int32")
    y = gg.Embedding(9, 6, name="encoder")(x)
    if apart:
        y = gg.Dropout(0.0, name="between")(y)
    y = gg.LSTM(20, layers=2, name="rnn", **how)(y)
    return gg.Model(x, gg.Linear(9, name="decoder")(y))


def tables_of(net, batch):
    """The table that computes each node in a step of `batch` samples; "": the operation of another node does."""
    with gg.Trainer(net) as trainer:
        x = np.zeros((batch, 12), np.int32)
        trainer.train_step(x, x)
        return dict(zip([node["name"] for node in net.graph.nodes()], trainer.core.node_backends(), strict=True))


@pytest.mark.cpu("what the native table computes as one")
def test_where_the_two_are_one():
    assert tables_of(network(apart=False), 2)["encoder"] == ""
    assert tables_of(network(apart=False), 1)["encoder"] == "native"  # 12 tokens of 9
    assert tables_of(network(apart=True), 2)["encoder"] == "native"


@pytest.mark.skipif(
    not _core.info()["onednn"] or _core.info()["isa"] not in ("avx512", "amx"),
    reason="bfloat16 needs oneDNN and AVX-512",
)
@pytest.mark.cpu("what oneDNN computes in bfloat16, and where")
def test_what_stays_an_embedding_is_computed_as_one():
    with gg.Trainer(network(apart=False), dtype="bfloat16") as trainer:
        x = np.zeros((4, 12), np.int32)
        trainer.train_step(x, x)
        steps = {one["operation"]: one["passes"] for one in trainer.core.profile()["operations"]}
    assert {one["algorithm"] for one in steps["embedding"].values()} == {"direct"}


@pytest.mark.cpu("what the native table computes as one")
def test_products_are_those_of_the_layers():
    with gg.Trainer(network(apart=False)) as trainer:
        x = np.zeros((4, 12), np.int32)
        trainer.train_step(x, x)
        steps = {one["operation"]: one["passes"] for one in trainer.core.profile()["operations"]}
    assert "embedding" not in steps
    assert [steps["lstm"][name]["products"] for name in ("forward", "data")] == [1, 2]


def test_as_many_layers_as_there_may_be_on_the_strict_device():
    x = gg.Input((4,), dtype="int32")
    y = gg.LSTM(4, layers=64, name="rnn")(gg.Embedding(3, 5, name="encoder")(x))
    net = gg.Model(x, gg.Linear(3, name="decoder")(y))
    tokens = np.random.default_rng(5).integers(0, 3, (8, 4)).astype(np.int32)
    found = []
    for device in ("cpu", "strict"):
        with gg.Trainer(net, device=device, backend="native") as trainer:
            for _ in range(2):
                trainer.train_step(tokens, tokens)
            found.append(trainer.weights())
    for name, one in found[0].items():
        same(name, one, found[1][name])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("how", [{}, dict(stateful=True)], ids=["plain", "stateful"])
def test_a_training_is_that_of_two_operations(ranks, how):
    rng = np.random.default_rng(3)
    x, y = (rng.integers(0, 9, (96, 12)).astype(np.int32) for _ in range(2))
    found = []
    for apart in (False, True):
        comm = gg.VirtualCluster(ranks) if ranks > 1 else None
        with gg.Trainer(network(apart, **how), optimizer=gg.SGD(lr=0.1, momentum=0.5), comm=comm, seed=2) as trainer:
            history = trainer.fit((x, y), epochs=2, batch_size=7, progress=False)
            found.append((trainer.weights(), trainer.predict(x[:10]), history.epochs[-1]["train_loss"]))
    (weights, outputs, loss), (others, predicted, other) = found
    assert loss == pytest.approx(other, rel=1e-5)
    np.testing.assert_allclose(outputs, predicted, rtol=1e-4, atol=1e-5)
    for name, one in weights.items():
        np.testing.assert_allclose(one, others[name], rtol=1e-3, atol=1e-5, err_msg=name)
