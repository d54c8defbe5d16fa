"""LeNet, one step and several, against float64 and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import reference as ref
from network_cases import BACKENDS, all_near, backends, double, tables, trainer_of

import gossipgrad as gg

pytestmark = pytest.mark.usefixtures("no_forced_backend")


def rounded_weights(net, rng, part=64):
    """Multiples of 1/64: with inputs of few bits direct convolutions' sums are exact, so that equal maxima are equal in
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


@tables
@pytest.mark.parametrize("n", [1, 3, 37])
def test_lenet_step(monkeypatch, rng, backend, isa, n):
    """Loss and every gradient against the float64 network."""
    if isa:
        monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    net = gg.models.lenet()
    weights = rounded_weights(net, rng)
    net.load_weights(weights)
    trainer = trainer_of(net, backend, conv_algorithm="direct")
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
        all_near(trainer.core.exchange.arena("momentum", 0), momentum, 1e-5)
    else:
        assert "momentum" not in trainer.core.exchange.arenas()
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
    trainer = trainer_of(net, backend, conv_algorithm="direct", optimizer=gg.SGD(**options))
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
        all_near(trainer.core.exchange.arena("momentum", 0), buffers, 2e-5)


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
