"""The LSTM: every instruction set against float64, and PyTorch's."""

from __future__ import annotations

import numpy as np
import operations
import pytest
import reference as ref
from operation_cases import close, float32, product_isas, same, seeded

import gossipgrad as gg

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
