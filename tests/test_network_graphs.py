"""Graphs of all shapes: losses, gradients and predictions, against float64 and against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import reference as ref
from network_cases import (
    ISAS,
    all_near,
    backends,
    batch_for,
    branches,
    double,
    flat,
    gradients_near,
    graphs,
    near,
    trainer_of,
)

import gossipgrad as gg

pytestmark = pytest.mark.usefixtures("no_forced_backend")


@pytest.mark.core(24)
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
    if kind == "RMSNorm":
        axes = tuple(range(-len(o["normalized_shape"] or [1]), 0))
        y = x / (x.square().mean(axes, keepdim=True) + o["eps"]).sqrt()
        return y if weight is None else y * weight
    if kind == "GroupNorm":
        return f.group_norm(x, o["groups"], weight, bias, o["eps"])
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
@pytest.mark.parametrize("views", [[(3, 1, 5)], [(15,), (3, 1, 5)]], ids=["one", "two"])
def test_a_view_that_is_undone(rng, backend, views):
    """Nobody reads a copy in the view's layout, and none is made."""

    def trained(views):
        x = gg.Input((2, 2, 14))
        y = c = gg.Conv2d(3, 3, stride=3, padding=1, name="c")(x)
        for shape in views:
            y = gg.Reshape(shape)(y)
        net = gg.Model(x, gg.Linear(2, name="out")(gg.Flatten()(gg.Add()(c, y))))
        trainer = trainer_of(net, backend)
        trainer.train_step(samples, labels)
        return trainer.gradients(), [one["operation"] for one in trainer.core.profile()["operations"]]

    samples, labels = rng.standard_normal((3, 2, 2, 14)).astype(np.float32), rng.integers(0, 2, 3)
    (found, operations), (wanted, without) = trained(views), trained([])
    all_near(found, wanted)
    assert operations == without


@backends
@pytest.mark.parametrize("n", [3, 16])
@pytest.mark.parametrize("undone", [False, True])
def test_an_image_in_several_shapes(rng, backend, n, undone):
    """Readers of an image, of it in another shape, and of it in its own shape again."""
    x = gg.Input((3, 8, 8))
    c = gg.Conv2d(16, 3, padding=1, name="c")(x)
    other = gg.Reshape((4, 16, 16))(c)
    again = gg.Reshape((16, 8, 8))(other) if undone else c
    ways = [gg.Conv2d(5, 4, stride=4, name="o")(other), gg.Conv2d(5, 3, stride=2, padding=1, name="a")(again)]
    net = gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.Concat()(*ways, gg.MaxPool2d(4)(gg.Tanh()(other))))))
    trainer = trainer_of(net, backend)
    weights = double(trainer.weights())
    samples, labels = batch_for(net, rng, n)
    found = trainer.train_step(samples, labels)
    wanted, _, grads = ref.Network(net.config()).gradients(weights, samples.astype(np.float64), labels, "cross_entropy")
    assert found == pytest.approx(wanted, rel=2e-6)
    all_near(trainer.gradients(), grads, 4e-6)


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
