"""Whole networks: LeNet and graphs of all shapes, one step and several, against float64 and against PyTorch."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys

import numpy as np
import pytest
import reference as ref
from conftest import DEADLINE, ROOT

import gossipgrad as gg
from gossipgrad import _core

ISAS = _core.info()["isas"]
BACKENDS = ["auto", "native", *(["onednn"] if _core.info()["onednn"] else [])]
backends = pytest.mark.parametrize("backend", BACKENDS)
# oneDNN takes its instruction set once a process; test_operations runs this file again for the others.
TABLES = [("native", isa) for isa in ISAS] + [(backend, "") for backend in BACKENDS if backend != "native"]
tables = pytest.mark.parametrize(("backend", "isa"), TABLES, ids=[f"{b}-{i or 'default'}" for b, i in TABLES])


@pytest.fixture(autouse=True)
def own_choice(monkeypatch):
    monkeypatch.delenv("GOSSIPGRAD_BACKEND", raising=False)


@pytest.fixture
def rng():
    return np.random.default_rng(8)


def trainer_of(net, backend="auto", loss="cross_entropy", **options) -> gg.Trainer:
    options.setdefault("optimizer", gg.SGD(lr=0.1))
    options.setdefault("strategy", gg.NoExchange())
    return gg.Trainer(net, loss=loss, backend=None if backend == "auto" else backend, **options)


def near(what: str, found, wanted, tolerance: float = 2e-6) -> None:
    """The largest error, relative to the largest element; and the error's norm, relative to the norm."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, f"{what}: {found.shape}, wanted {wanted.shape}"
    off = np.abs(found - wanted).max()
    assert off <= 2 * tolerance * max(np.abs(wanted).max(), 1e-20), (
        f"{what}: off by {off:.3g} of {np.abs(wanted).max():.3g}"
    )
    norm = np.linalg.norm(found - wanted)
    assert norm <= tolerance * max(np.linalg.norm(wanted), 1e-20), (
        f"{what}: norm {norm:.3g} of {np.linalg.norm(wanted):.3g}"
    )


def all_near(found, wanted, tolerance: float = 2e-6) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        near(name, found[name], wanted[name], tolerance)


def gradients_near(trainer, before, wanted, tolerance: float = 2e-6) -> None:
    """Of statistics, which have no gradient to be shown, how they have moved."""
    found = trainer.gradients()
    after = trainer.weights()
    moved = {name: before[name] - after[name] for name in wanted if ".running_" in name}
    assert not found.keys() & moved.keys()
    all_near(found | moved, wanted, tolerance)


def double(weights):
    return {name: array.astype(np.float64) for name, array in weights.items()}


def rounded_weights(net, rng, part=64):
    """Multiples of 1/64: with inputs of few bits the convolutions' sums are exact, so that equal maxima are equal in
    float32 as in float64, and which is the first is the same."""
    return {
        name: (np.round(array * part) / part).astype(np.float32) for name, array in net.graph.initial_weights(3).items()
    }


def images(rng, n):
    """Like digits: many zeros, so that windows have equal maxima."""
    x = rng.integers(-8, 9, (n, 1, 28, 28)) / 8
    x[rng.random(x.shape) < 0.5] = 0
    x[:, :, :5] = 0
    return x.astype(np.float32), rng.integers(0, 10, n).astype(np.int32)


SETTINGS = {
    "plain": dict(lr=0.1),
    "momentum": dict(lr=0.05, momentum=0.9),
    "decay": dict(lr=0.1, weight_decay=0.01),
    "nesterov": dict(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
}


# ---- LeNet


@tables
@pytest.mark.parametrize("n", [1, 3, 37])
def test_lenet_step(monkeypatch, rng, backend, isa, n):
    """Loss and every gradient against the float64 network."""
    if isa:
        monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    net = gg.models.lenet()
    weights = rounded_weights(net, rng)
    net.load_weights(weights)
    trainer = trainer_of(net, backend)
    assert not isa or trainer.core.isa == isa
    if backend != "auto":
        used = {one for one in trainer.core.node_backends() if one}
        assert backend in used or not used
    x, y = images(rng, n)
    loss = trainer.train_step(x, y)
    wanted, _, grads = ref.Network(net.config()).gradients(double(weights), x.astype(np.float64), y, "cross_entropy")
    assert loss == pytest.approx(wanted, rel=1e-6)
    all_near(trainer.gradients(), grads)
    # biases start from 0, so they are their gradients: no closer than those
    all_near(trainer.weights(), {k: weights[k] - 0.1 * grads[k] for k in grads})


@backends
@pytest.mark.parametrize("setting", SETTINGS)
def test_lenet_three_steps(rng, backend, setting):
    """Weights and momentum after three steps, of batches of different sizes, against the float64 network."""
    options = SETTINGS[setting]
    net = gg.models.lenet()
    net.load_weights(rounded_weights(net, rng))
    trainer = trainer_of(net, backend, optimizer=gg.SGD(**options))
    network, weights = ref.Network(net.config()), double(net.weights())
    momentum = {name: np.zeros_like(array) for name, array in weights.items()}
    sgd = [options.get(key, 0) for key in ("lr", "momentum", "weight_decay", "nesterov")]
    for n in (5, 3, 5):
        x, y = images(rng, n)
        loss = trainer.train_step(x, y)
        wanted, _, grads = network.gradients(weights, x.astype(np.float64), y, "cross_entropy")
        assert loss == pytest.approx(wanted, rel=3e-6)
        for name in grads:
            weights[name], momentum[name] = ref.sgd(weights[name], grads[name], momentum[name], *sgd)
    all_near(trainer.weights(), weights, 3e-6)
    if "momentum" in options:
        all_near(trainer.core.arena("momentum", 0), momentum, 1e-5)
    else:
        assert "momentum" not in trainer.core.arenas()
    assert trainer.step == 3


@backends
@pytest.mark.parametrize("setting", SETTINGS)
def test_lenet_is_torchs(rng, backend, setting):
    torch = pytest.importorskip("torch")
    options = SETTINGS[setting]
    net = gg.models.lenet()
    net.load_weights(rounded_weights(net, rng))
    layers = torch.nn
    theirs = layers.Sequential()
    theirs.add_module("conv1", layers.Conv2d(1, 20, 5))
    theirs.add_module("pool1", layers.MaxPool2d(2))
    theirs.add_module("conv2", layers.Conv2d(20, 50, 5))
    theirs.add_module("pool2", layers.MaxPool2d(2))
    theirs.add_module("flatten", layers.Flatten())
    theirs.add_module("fc1", layers.Linear(800, 500))
    theirs.add_module("relu1", layers.ReLU())
    theirs.add_module("fc2", layers.Linear(500, 10))
    theirs.load_state_dict({name: torch.tensor(array) for name, array in net.weights().items()})  # their names are ours
    theirs.double()
    optimizer = torch.optim.SGD(theirs.parameters(), **options)
    trainer = trainer_of(net, backend, optimizer=gg.SGD(**options))
    for step in range(3):
        x, y = images(rng, 20 if step == 0 else 5)
        loss = trainer.train_step(x, y)
        optimizer.zero_grad()
        wanted = layers.functional.cross_entropy(theirs(torch.tensor(x).double()), torch.tensor(y).long())
        wanted.backward()
        assert loss == pytest.approx(wanted.item(), rel=3e-6)
        grads = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
        all_near(trainer.gradients(), grads, 5e-6 if step == 0 else 2e-5)
        optimizer.step()
    all_near(trainer.weights(), {name: p.detach().numpy() for name, p in theirs.named_parameters()}, 3e-6)
    if "momentum" in options:
        buffers = {name: optimizer.state[p]["momentum_buffer"].numpy() for name, p in theirs.named_parameters()}
        all_near(trainer.core.arena("momentum", 0), buffers, 2e-5)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "auto"])
def test_a_named_backend_is_used(rng, backend):
    net = gg.models.lenet()
    trainer = trainer_of(net, backend)
    x, y = images(rng, 16)
    trainer.train_step(x, y)
    used = dict(zip([node["name"] for node in net.graph.nodes()], trainer.core.node_backends(), strict=True))
    assert used["conv1"] == used["conv2"] == used["fc1"] == used["fc2"] == used["pool1"] == backend


@tables
def test_repeated_runs_give_the_same_bits(monkeypatch, rng, backend, isa):
    if isa:
        monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    batches = [images(rng, 17) for _ in range(2)]
    weights = []
    for _ in range(2):
        trainer = trainer_of(gg.models.lenet(), backend, optimizer=gg.SGD(lr=0.01, momentum=0.9))
        for batch in batches:
            trainer.train_step(*batch)
        weights.append(trainer.weights())
    assert all(weights[0][name].tobytes() == weights[1][name].tobytes() for name in weights[0])


# ---- graphs


def branches():
    """Two ways of different depth that meet in an Add and in a Concat; their inputs are used again."""
    x = gg.Input((3, 9, 8))
    a = gg.Conv2d(6, 3, padding=1, name="a")(x)
    b = gg.ReLU()(gg.Conv2d(6, 1, name="b")(x))
    c = gg.Add()(a, b)
    d = gg.Concat()(c, b, gg.Conv2d(4, 3, padding=1, groups=2, name="d")(gg.ReLU()(c)))
    e = gg.MaxPool2d(3, 2, padding=1)(d)
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(e)))


def inception():
    """Four ways from one value, joined; one is a mere pool, one is the value itself."""
    x = gg.Input((5, 7, 7))
    stem = gg.ReLU()(gg.Conv2d(16, 3, stride=2, padding=1, name="stem")(x))
    one = gg.Conv2d(16, 1, name="one")(stem)
    three = gg.Tanh()(gg.Conv2d(16, 3, padding=1, name="three")(gg.Conv2d(3, 1, name="reduce")(stem)))
    pool = gg.MaxPool2d(3, 1, padding=1)(stem)
    joined = gg.Concat()(one, three, pool, stem)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AvgPool2d(2, ceil_mode=True)(joined))))


def residual():
    """A chain of sums in which every sum is used three times; sums of a value with itself."""
    node = x = gg.Input((4, 5, 5))
    for i in range(3):
        branch = gg.Conv2d(4, 3, padding=1, bias=False, name=f"conv{i}")(gg.ReLU()(node))
        node = gg.Add()(node, branch, node)
    twice = node + node
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AvgPool2d(5)(twice))))


def joins_of_joins():
    """A concatenation within another, the input in a join, one value twice in a join."""
    x = gg.Input((3, 4, 4))
    a = gg.Conv2d(16, 1, name="a")(x)
    b = gg.Conv2d(16, 1, name="b")(x)
    inner = gg.Concat()(a, b)
    outer = gg.Concat()(inner, a, x, inner)
    more = gg.Concat()(gg.Sigmoid()(outer), gg.Conv2d(2, 3, padding=1, name="c")(inner))
    return gg.Model(x, gg.Linear(2, name="out")(gg.Flatten()(more)))


def flat():
    """Without images: features joined and summed; dropout that drops nothing."""
    x = gg.Input((13,))
    a = gg.Tanh()(gg.Linear(7, name="a")(x))
    b = gg.Dropout(0.0)(gg.Sigmoid()(gg.Linear(7, name="b")(x)))
    both = gg.Concat()(a, gg.Add()(a, b), x)
    c = gg.ReLU()(gg.Linear(16, bias=False, name="c")(both))
    return gg.Model(x, gg.Linear(5, name="out")(gg.Concat()(c, c)))


def shared_activation():
    """A convolution whose output is read by a ReLU and by others: the ReLU must not be done in place, nor fused."""
    x = gg.Input((2, 6, 5))
    a = gg.Conv2d(3, 2, name="a")(x)
    r, t = gg.ReLU()(a), gg.Tanh()(a)
    p = gg.AvgPool2d(3, 2, padding=1, count_include_pad=False)(a)
    q = gg.AvgPool2d(3, 2, padding=1)(gg.Add()(r, t, a))
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.Concat()(p, q))))


def activations_in_a_row():
    x = gg.Input((11,))
    node = gg.Linear(9, name="a")(x)
    for layer in (gg.ReLU(), gg.Tanh(), gg.Sigmoid(), gg.ReLU(), gg.Tanh()):
        node = layer(node)
    return gg.Model(x, gg.ReLU()(gg.Linear(4, name="b")(node)))


def normalised():
    """Batch normalisations with and without a ReLU behind them, in branches that meet."""
    x = gg.Input((3, 9, 8))
    a = gg.ReLU()(gg.BatchNorm2d(name="a.bn")(gg.Conv2d(20, 3, padding=1, bias=False, name="a")(x)))
    b = gg.BatchNorm2d(name="b.bn", momentum=0.5, eps=1e-2)(gg.Conv2d(20, 3, padding=1, bias=False, name="b")(a))
    c = gg.ReLU()(gg.Add()(a, b))
    d = gg.Concat()(gg.BatchNorm2d(name="d.bn")(c), gg.BatchNorm2d(affine=False, name="c.bn")(gg.Tanh()(b)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(gg.MaxPool2d(2)(d))))


def adaptive_windows():
    """Windows of several sizes, of one size, larger outputs than inputs, and the whole image."""
    x = gg.Input((3, 9, 8))
    a = gg.AdaptiveAvgPool2d((4, 5))(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.AdaptiveAvgPool2d((None, 11))(gg.Conv2d(5, 3, padding=1, name="b")(a))
    c = gg.AdaptiveAvgPool2d((2, 11))(gg.Tanh()(b))
    joined = gg.Concat()(gg.GlobalAvgPool2d()(gg.ReLU()(c)), gg.GlobalAvgPool2d()(a))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(joined)))


def curves():
    """Layer normalisation of images and of vectors, GELU, LeakyReLU and softmax, among convolutions."""
    x = gg.Input((3, 9, 8))
    a = gg.GELU()(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.LeakyReLU(0.2)(gg.LayerNorm(8, name="a.ln")(gg.Conv2d(5, 3, padding=1, bias=False, name="b")(a)))
    c = gg.LayerNorm((5, 9, 8), bias=False, name="b.ln")(gg.Conv2d(5, 3, padding=1, name="c")(b))
    d = gg.LeakyReLU(-0.5)(gg.Add()(b, gg.Softmax(dim=1)(c)))
    e = gg.GELU(approximate="tanh")(gg.Linear(11, name="e")(gg.Flatten()(d)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Softmax()(gg.LayerNorm(name="e.ln", elementwise_affine=False)(e))))


def local_responses():
    """Local response normalisation with odd and even windows, the papers' power and others."""
    x = gg.Input((3, 9, 8))
    a = gg.LocalResponseNorm(5, alpha=0.5)(gg.ReLU()(gg.Conv2d(20, 3, padding=1, name="a")(x)))
    b = gg.LocalResponseNorm(4, alpha=0.3, beta=1.2, k=2.0)(gg.Conv2d(5, 3, padding=1, name="b")(a))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(gg.MaxPool2d(2)(b))))


def odd_windows():
    x = gg.Input((6, 11, 10))
    node = gg.Conv2d(4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, name="a")(x)
    node = gg.AvgPool2d((2, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True, count_include_pad=False)(node)
    node = gg.Conv2d(8, (5, 5), padding=(2, 2), groups=4, name="b")(node)
    node = gg.MaxPool2d(2, 1, dilation=2, padding=1)(node)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(node)))


def only_a_layer():
    return gg.Sequential([gg.Linear(3, name="out")], input=(5,))


def starts_without_parameters():
    """Layers before the first parameters: nobody wants their gradient."""
    x = gg.Input((3, 8, 8))
    a, b = gg.MaxPool2d(2)(x), gg.AvgPool2d(2)(gg.Tanh()(x))
    joined = gg.Concat()(a, b)
    c = gg.Conv2d(5, 3, name="c")(joined)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.Concat()(c, gg.Conv2d(2, 3, name="d")(a)))))


GRAPHS = [
    branches,
    inception,
    residual,
    joins_of_joins,
    flat,
    shared_activation,
    activations_in_a_row,
    odd_windows,
    normalised,
    adaptive_windows,
    curves,
    local_responses,
    only_a_layer,
    starts_without_parameters,
]
graphs = pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)


def batch_for(net, rng, n, loss="cross_entropy"):
    x = rng.standard_normal((n, *net.input_shape)).astype(np.float32)
    out = net.output_shape
    if loss == "cross_entropy":
        return x, rng.integers(0, out[0], n).astype(np.int32)
    if loss == "binary_cross_entropy":
        return x, rng.integers(0, 2, (n, *out)).astype(np.float32)
    return x, rng.standard_normal((n, *out)).astype(np.float32)


@backends
@pytest.mark.parametrize("n", [1, 3, 16, 37])
@graphs
def test_graph(rng, backend, make, n):
    net = make()
    trainer = trainer_of(net, backend, optimizer=gg.SGD(lr=0.01))
    network, weights = ref.Network(net.config()), double(trainer.weights())
    for _ in range(2):  # the second finds what the first left in shared memory
        x, y = batch_for(net, rng, n)
        loss = trainer.train_step(x, y)
        wanted, _, grads = network.gradients(weights, x.astype(np.float64), y, "cross_entropy")
        assert loss == pytest.approx(wanted, rel=2e-6)
        gradients_near(trainer, weights, grads, 4e-6)
        weights = double(trainer.weights())
    near("prediction", trainer.predict(x), network.forward(weights, x.astype(np.float64))[-1], 4e-6)


@pytest.mark.parametrize("isa", ISAS)
@graphs
def test_graph_on_each_isa(monkeypatch, rng, isa, make):
    monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    net = make()
    trainer = trainer_of(net, "native", threads=2)
    weights = double(trainer.weights())
    x, y = batch_for(net, rng, 19)
    trainer.train_step(x, y)
    gradients_near(
        trainer,
        weights,
        ref.Network(net.config()).gradients(weights, x.astype(np.float64), y, "cross_entropy")[2],
        4e-6,
    )


def torch_layer(torch, layer, tensors, inputs):
    f = torch.nn.functional
    kind, name, o, x = layer["layer"], layer["name"], layer["options"], inputs[0]
    weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if kind == "Conv2d":
        return f.conv2d(x, weight, bias, o["stride"], o["padding"], o["dilation"], o["groups"])
    if kind == "Linear":
        return f.linear(x, weight, bias)
    if kind == "MaxPool2d":
        return f.max_pool2d(x, o["kernel"], o["stride"], o["padding"], o["dilation"], o["ceil_mode"])
    if kind == "AvgPool2d":
        return f.avg_pool2d(x, o["kernel"], o["stride"], o["padding"], o["ceil_mode"], o["count_include_pad"])
    if kind in ("Add", "Concat"):
        return sum(inputs[1:], x) if kind == "Add" else torch.cat(inputs, 1)
    if kind == "Dropout":
        assert o["p"] == 0
        return x
    if kind == "LayerNorm":
        return f.layer_norm(x, x.shape[-len(o["normalized_shape"] or [1]) :], weight, bias, o["eps"])
    if kind == "LocalResponseNorm":
        return f.local_response_norm(x, o["size"], o["alpha"], o["beta"], o["k"])
    if kind == "Softmax":
        return x.softmax(o["dim"])
    if kind == "LeakyReLU":
        return f.leaky_relu(x, o["negative_slope"])
    if kind == "GELU":
        return f.gelu(x, approximate=o["approximate"])
    if kind in ("AdaptiveAvgPool2d", "GlobalAvgPool2d"):
        return f.adaptive_avg_pool2d(x, o.get("output_size", 1))
    if kind in ("BatchNorm1d", "BatchNorm2d"):
        statistics = [tensors[f"{name}.running_{one}"] for one in ("mean", "var")]
        running = [one.detach().clone() for one in statistics]
        y = f.batch_norm(x, *running, weight, bias, True, o["momentum"], o["eps"])
        for old, new in zip(statistics, running, strict=True):
            old.grad = old.detach() - new  # what is to be subtracted
        return y
    return {"ReLU": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Flatten": lambda x: x.flatten(1)}[kind](
        x
    )


def torch_forward(torch, config, tensors, x):
    values = []
    for layer in config["layers"]:
        inputs = [values[i] for i in layer["inputs"]]
        values.append(x if layer["layer"] == "Input" else torch_layer(torch, layer, tensors, inputs))
    return values[-1]


@graphs
def test_graph_is_torchs(rng, make):
    torch = pytest.importorskip("torch")
    net = make()
    trainer = trainer_of(net)
    tensors = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in trainer.weights().items()}
    x, y = batch_for(net, rng, 17)
    scores = torch_forward(torch, net.config(), tensors, torch.tensor(x).double())
    wanted = torch.nn.functional.cross_entropy(scores, torch.tensor(y).long())
    wanted.backward()
    assert trainer.train_step(x, y) == pytest.approx(wanted.item(), rel=2e-6)
    before = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    gradients_near(trainer, before, {name: tensor.grad.numpy() for name, tensor in tensors.items()}, 4e-6)


@backends
@pytest.mark.parametrize("n", [1, 19])
@pytest.mark.parametrize("loss", ref.LOSSES)
@pytest.mark.parametrize("make", [flat, branches], ids=lambda make: make.__name__)
def test_losses(rng, backend, make, loss, n):
    net = make()
    trainer = trainer_of(net, backend, loss)
    weights = double(trainer.weights())
    x, y = batch_for(net, rng, n, loss)
    found = trainer.train_step(x, y)
    targets = y if loss == "cross_entropy" else y.astype(np.float64)
    wanted, _, grads = ref.Network(net.config()).gradients(weights, x.astype(np.float64), targets, loss)
    assert found == pytest.approx(wanted, rel=2e-6)
    all_near(trainer.gradients(), grads, 4e-6)


@backends
def test_loss_of_images(rng, backend):
    """Mean squared error of an output that is an image."""
    net = gg.Sequential([gg.Conv2d(3, 3, padding=1, name="a"), gg.Tanh(), gg.Conv2d(2, 3, name="b")], input=(2, 6, 5))
    trainer = trainer_of(net, backend, "mean_squared_error")
    weights = double(trainer.weights())
    x, y = batch_for(net, rng, 5, "mean_squared_error")
    found = trainer.train_step(x, y)
    wanted, _, grads = ref.Network(net.config()).gradients(
        weights, x.astype(np.float64), y.astype(np.float64), trainer.loss
    )
    assert found == pytest.approx(wanted, rel=2e-6)
    all_near(trainer.gradients(), grads, 4e-6)


# ---- dropout within a network


def dropout_mask(backend, n, rank_seed=0, steps=1, width=24):
    """What a Dropout behind a Linear kept at the last of some steps. The gradient of the Linear's weight shows it,
    sample by sample, as the samples are rows of the identity."""
    net = gg.Sequential([gg.Linear(width, bias=False, name="a"), gg.Dropout(0.4, name="d")], input=(n,))
    net.load_weights({"a.weight": np.ones((width, n), np.float32)})
    trainer = trainer_of(net, backend, "mean_squared_error", optimizer=gg.SGD(lr=0.0), seed=rank_seed)
    for _ in range(steps):
        loss = trainer.train_step(np.eye(n, dtype=np.float32), np.zeros((n, width), np.float32))
    kept = trainer.gradients()["a.weight"].T  # (sample, feature)
    size = 2 / (n * width) / (1 - 0.4) ** 2
    np.testing.assert_allclose(kept[kept != 0], size, rtol=1e-6)
    assert loss == pytest.approx((kept != 0).mean() / (1 - 0.4) ** 2, rel=1e-6)
    return kept != 0


@pytest.mark.parametrize("n", [1, 3, 16, 37])
def test_dropout_is_the_same_in_every_backend(n):
    """In the layouts of both tables; so is a run's result, but for rounding."""
    masks = [dropout_mask(backend, n) for backend in BACKENDS]
    assert all((mask == masks[0]).all() for mask in masks)


@backends
def test_dropout_changes_with_step_and_seed(backend):
    first = dropout_mask(backend, 37)
    assert abs(first.mean() - 0.6) < 0.1
    assert (first == dropout_mask(backend, 37)).all()
    for other in (dropout_mask(backend, 37, steps=2), dropout_mask(backend, 37, rank_seed=1)):
        assert 0.3 < (first == other).mean() < 0.7


@backends
def test_every_dropout_draws_for_itself_and_evaluation_draws_nothing(rng, backend):
    x = gg.Input((16,))
    a = gg.Linear(16, bias=False, name="a")(x)
    net = gg.Model(x, gg.Concat()(gg.Dropout(0.5)(a), gg.Dropout(0.5)(a)))
    net.load_weights({"a.weight": np.eye(16, dtype=np.float32)})
    trainer = trainer_of(net, backend, "mean_squared_error", optimizer=gg.SGD(lr=0.0))
    ones = np.ones((8, 16), np.float32)
    assert (trainer.predict(ones) == 1).all()
    assert trainer.evaluate((ones, np.ones((8, 32), np.float32)))["loss"] == 0
    # An element of the gradient has one of three values: kept by both, by none, or by one only, as the masks differ.
    trainer.train_step(np.eye(16, dtype=np.float32), np.zeros((16, 32), np.float32))
    diagonal = np.diag(trainer.gradients()["a.weight"])
    assert len(np.unique(np.round(diagonal / diagonal.max() * 2))) == 3


# ---- prediction and evaluation


@backends
@graphs
def test_predict_and_evaluate_agree(rng, backend, make):
    net = make()
    trainer = trainer_of(net, backend)
    x, y = batch_for(net, rng, 37)
    wanted = trainer.predict(x, batch_size=37)
    assert wanted.shape == (37, *net.output_shape)
    reference = ref.Network(net.config()).forward(double(trainer.weights()), x.astype(np.float64))[-1]
    near("prediction", wanted, reference, 4e-6)
    total, right, _ = ref.cross_entropy(reference, y)
    for batch in (1, 5, 16, 37, 100):
        near(f"batch {batch}", trainer.predict(x, batch_size=batch), wanted, 2e-6)
        result = trainer.evaluate((x, y), batch_size=batch)
        assert result["loss"] == pytest.approx(total / 37, rel=2e-6)
        assert result["accuracy"] == right / 37


@backends
def test_uint8_samples(rng, backend):
    """Scaled and laid out by the core as they are read."""
    net = branches()
    trainer = trainer_of(net, backend)
    pixels, (_, y) = rng.integers(0, 256, (21, 3, 9, 8)).astype(np.uint8), batch_for(net, rng, 21)
    plain = pixels.astype(np.float32) * np.float32(1 / 255) - np.float32(0.5)
    wanted = trainer.evaluate((plain, y), batch_size=8)
    found = trainer.core.evaluate(_core.Dataset(pixels, y, 1 / 255, -0.5), 8)[0]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    assert found["accuracy"] == wanted["accuracy"]


@backends
def test_an_epoch_is_its_steps(rng, backend):
    """A loader's epoch without shuffling, the last batch ragged, is the same batches by hand, bit for bit."""
    net = branches()
    x, y = batch_for(net, rng, 23)
    one = trainer_of(net, backend, optimizer=gg.SGD(lr=0.05, momentum=0.9))
    core = one.core
    steps = core.begin(_core.Dataset(x, y), 5, False)
    assert steps == 5
    core.epoch(0)
    assert core.run(3) == 3
    assert core.run(100) == 5
    other = trainer_of(net, backend, optimizer=gg.SGD(lr=0.05, momentum=0.9))
    losses = [other.train_step(x[i : i + 5], y[i : i + 5]) for i in range(0, 23, 5)]
    assert all(one.weights()[name].tobytes() == other.weights()[name].tobytes() for name in one.weights())
    assert core.progress()["samples"] == 23
    assert core.progress()["loss"] == pytest.approx(np.dot(losses, [5, 5, 5, 5, 3]) / 23, rel=1e-9)


# ---- errors


def wrong_graphs():
    x = (3, 8, 8)
    image = "(3, 8, 8)|3 x 8 x 8|[3, 8, 8]"
    return [
        ("attention on an image", lambda: gg.Sequential([gg.Attention(2, name="bad")], input=x), image),
        ("conv on features", lambda: gg.Sequential([gg.Conv2d(3, 3, name="bad")], input=(7,)), "(7)|(7,)|[7]"),
        ("kernel too large", lambda: gg.Sequential([gg.Conv2d(3, 9, name="bad")], input=x), image),
        ("pool too large", lambda: gg.Sequential([gg.MaxPool2d(9, name="bad")], input=x), image),
        ("groups", lambda: gg.Sequential([gg.Conv2d(4, 3, groups=2, name="bad")], input=x), "3"),
    ]


@pytest.mark.parametrize(("make", "words"), [w[1:] for w in wrong_graphs()], ids=[w[0] for w in wrong_graphs()])
def test_shape_errors_name_the_layer_and_the_shape(make, words):
    with pytest.raises(ValueError, match="'bad'") as caught:
        make()
    assert any(word in str(caught.value) for word in words.split("|")), str(caught.value)


def check_window_shapes(size, kernel, stride, padding):
    """The shapes that the core infers are the reference's, which are PyTorch's."""
    graph = _core.Graph()
    image = graph.input((2, *size))
    window = dict(kernel=kernel, stride=stride, padding=padding)
    for ceil in (False, True):
        for kind in ("max_pool2d", "avg_pool2d"):
            node = graph.layer(kind, f"{kind}{ceil}", [image], ceil_mode=ceil, **window)
            wanted = [ref.window_output(size[a], kernel[a], stride[a], padding[a], 1, ceil) for a in (0, 1)]
            assert graph.shape(node) == (2, *wanted), (size, window, kind, ceil)
    node = graph.layer("conv2d", "conv", [image], outputs=5, **window)
    wanted = [ref.window_output(size[a], kernel[a], stride[a], padding[a]) for a in (0, 1)]
    assert graph.shape(node) == (5, *wanted), (size, window)


@pytest.mark.parametrize("turned", [False, True])
def test_window_shapes(turned):
    for size, kernel, stride in itertools.product(range(1, 8), range(1, 6), range(1, 5)):
        for padding in range(kernel // 2 + 1):
            if size + 2 * padding >= kernel:
                both = [(size, 9), (kernel, 3), (stride, 2), (padding, 1)]
                check_window_shapes(*[pair[::-1] if turned else pair for pair in both])


@pytest.mark.parametrize(
    ("join", "other"), [(gg.Add, 5), (gg.Concat, None)], ids=["channels of a sum", "sizes of a concatenation"]
)
def test_join_errors_name_the_layer_and_both_shapes(join, other):
    x = gg.Input((3, 8, 8))
    a = gg.Conv2d(4, 3, name="left")(x)
    b = gg.Conv2d(other or 4, 3 if other else 5, name="right")(x)
    with pytest.raises(ValueError, match="'bad'") as caught:
        gg.Model(x, join(name="bad")(a, b))
    text = str(caught.value).replace(" x ", ", ")
    assert "4, 6, 6" in text and ("5, 6, 6" if other else "4, 4, 4") in text, text


def test_a_layer_that_leads_nowhere_is_an_error():
    graph = _core.Graph()
    x = graph.input((4,))
    a = graph.layer("linear", "a", [x], outputs=3)
    graph.layer("linear", "dangling", [x], outputs=3)
    with pytest.raises(ValueError, match="'dangling'"):
        graph.finish(a)


def test_more_batch_sizes_than_plans(rng):
    """What is asked about the last training step is answered after its plan would have made room for another one."""
    net = branches()
    x, y = batch_for(net, rng, 30)
    core = trainer_of(net).core
    core.train_step([x[:5]], [y[:5]])
    before = core.node_backends()
    assert core.profile()["operations"]
    core.set_timing(True)
    for n in range(6, 26):
        core.predict(_core.Dataset(x[:n]), n)
        assert core.node_backends() == before
    core.train_step([x[:5]], [y[:5]])
    seconds = [one["passes"]["forward"]["seconds"] for one in core.profile()["operations"]]
    assert any(forward > 0 for forward in seconds)  # the plan is the one that was told to take the time
    for n in range(6, 26):
        core.train_step([x[:n]], [y[:n]])
        core.set_timing(True)
        assert core.profile()["operations"]


def test_batches_larger_than_any_set(rng):
    """A batch as large as an integer can be is the whole set; no address or size of it overflows."""
    net = branches()
    x, y = batch_for(net, rng, 9)
    with gg.Trainer(net, comm=gg.VirtualCluster(2), seed=3) as trainer:
        for replicas in (False, True):
            wanted = trainer.evaluate((x, y), batch_size=9, replicas=replicas)
            assert trainer.evaluate((x, y), batch_size=sys.maxsize, replicas=replicas) == wanted
        np.testing.assert_array_equal(trainer.predict(x, batch_size=sys.maxsize), trainer.predict(x, batch_size=9))
        with pytest.raises(ValueError, match=f"{sys.maxsize}.*1..4"):
            trainer.fit((x, y), batch_size=sys.maxsize)
        with pytest.raises(ValueError, match=f"{sys.maxsize}.*1 to 4"):
            trainer.core.begin(_core.Dataset(x, y), sys.maxsize)


# ---- memory


STEADY = """
import sys
import numpy as np
import gossipgrad as gg
from gossipgrad import _core

backend, strategy = sys.argv[1], sys.argv[2]
rng = np.random.default_rng(0)
assert _core.memory()[0] == 0, _core.memory()


def main():
    x = gg.Input((1, 12, 12))
    a = gg.Conv2d(6, 5, name="a")(x)
    b = gg.Dropout(0.3)(gg.ReLU()(gg.Conv2d(6, 5, name="b")(x)))
    net = gg.Model(x, gg.Linear(10)(gg.Flatten()(gg.MaxPool2d(2)(gg.Concat()(a, b, gg.Add()(a, b))))))
    ranks = 2 if strategy == "gossipgrad" else 1
    schedule = gg.schedules.StepDecay(every=7)
    trainer = gg.Trainer(
        net,
        optimizer=gg.SGD(0.01, momentum=0.9, weight_decay=1e-4, nesterov=True, schedule=schedule),
        strategy=gg.GossipGraD() if ranks > 1 else gg.NoExchange(),
        comm=gg.VirtualCluster(2) if ranks > 1 else None,
        backend=None if backend == "auto" else backend,
    )
    samples = rng.integers(0, 256, (ranks * (110 * 8 + 3), 1, 12, 12)).astype(np.uint8)
    data = _core.Dataset(samples, rng.integers(0, 10, len(samples)).astype(np.int32), 1 / 255, -0.5)
    core = trainer.core
    assert core.begin(data, 8, True) == 111
    for epoch in range(2):
        core.epoch(epoch)
        core.run(8)
        live, made = _core.memory()
        core.run(100)
        assert _core.memory() == (live, made), (epoch, live, made, _core.memory())
        core.run(3)  # with the ragged batch
        record = core.end_epoch()
        assert np.isfinite(record["train_loss"]), record
    live, made = _core.memory()
    core.epoch(2)
    core.run(111)  # now the ragged batch's plan is warm as well
    assert _core.memory() == (live, made), (live, made, _core.memory())
    core.evaluate(data, 32)
    trainer.predict(samples[:7].astype(np.float32))
    core.arena("weight"), core.arena("gradient"), core.arena("momentum")


main()
for wrong in range(2):  # what fails leaves nothing either
    try:
        if wrong == 0:
            gg.Sequential([gg.Conv2d(3, 9)], input=(1, 5, 5))
        else:
            trainer = gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy")
            trainer.train_step(np.ones((2, 5), np.float32), np.ones((2, 1), np.float32))
    except ValueError:
        continue
    raise AssertionError(wrong)
trainer = None
import gc
gc.collect()
print("left", _core.memory()[0])
"""


@backends
@pytest.mark.parametrize("strategy", ["no-exchange", "gossipgrad"])
def test_memory_of_warm_steps(backend, strategy):
    """A warm step allocates nothing; when all is gone the core holds nothing."""
    done = subprocess.run(
        [sys.executable, "-c", STEADY, backend, strategy], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["left", "0"], done.stdout + done.stderr


def test_memory_comes_back(rng):
    gc.collect()
    before = _core.memory()[0]
    for make in GRAPHS:
        net = make()
        trainer = trainer_of(net)
        trainer.train_step(*batch_for(net, rng, 5))
        trainer.predict(batch_for(net, rng, 3)[0])
        assert _core.memory()[0] > before
        trainer.close()
        del trainer, net
    gc.collect()
    assert _core.memory()[0] == before
