"""Every network against the same one in PyTorch: its names, its loss and gradients, and twenty steps of training."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch_networks as theirs  # noqa: E402
from torch import nn  # noqa: E402
from torch_networks import named, perceptron  # noqa: E402
from torch_parity import images, same  # noqa: E402

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)
    torch.set_num_threads(1)


def test_lenet():
    module = named(
        conv1=nn.Conv2d(1, 20, 5),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(20, 50, 5),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(50 * 2 * 1, 500),
        relu1=nn.ReLU(),
        fc2=nn.Linear(500, 7),
    )
    same(gg.models.lenet(7, input=(1, 17, 20)), module, images((1, 17, 20), 3, 7))


def test_cifar_quick():
    module = named(
        conv1=nn.Conv2d(3, 32, 5, padding=2),
        pool1=nn.MaxPool2d(3, 2, ceil_mode=True),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 32, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.AvgPool2d(3, 2, ceil_mode=True),
        conv3=nn.Conv2d(32, 64, 5, padding=2),
        relu3=nn.ReLU(),
        pool3=nn.AvgPool2d(3, 2, ceil_mode=True),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * 2 * 2, 64),
        fc2=nn.Linear(64, 10),
    )
    same(gg.models.cifar_quick(input=(3, 17, 21)), module, images((3, 17, 21), 5, 10), lr=0.003)


def test_mlp():
    draw = np.random.default_rng(1)
    batches = [
        (draw.normal(size=(n, 28)).astype(np.float32), draw.integers(0, 2, (n, 1)).astype(np.float32))
        for n in [17, 16, 5, 33] * 5
    ]
    same(gg.models.mlp(), perceptron((28, 300, 300, 300, 1), nn.ReLU), batches, "binary_cross_entropy")


def test_speech_dnn():
    widths = (41, *[70] * 6, 99)
    net = gg.models.speech_dnn(99, 41, widths[1:-1])
    same(net, perceptron(widths, nn.Sigmoid), images((41,), 6, 99), lr=0.1)
    assert gg.models.speech_dnn().parameters == 11_848_559


def test_alexnet():
    net = gg.models.alexnet(7, (3, 65, 79), 0.0, hidden=24, width=12)
    same(net, theirs.alexnet(7, 24, 12), images((3, 65, 79), 3, 7))


@pytest.mark.parametrize("depth", [11, 13, 16, 19])
@pytest.mark.parametrize("norm", [False, True])
def test_vgg(depth, norm):
    make = getattr(gg.models, f"vgg{depth}")
    net = make(5, (3, 35, 66), 0.0, batch_norm=norm, hidden=16, width=8)
    steps = 20 if depth == 11 else 1
    same(net, theirs.vgg(depth, 5, 16, 8, norm), images((3, 35, 66), 3, 5, steps), optimizers=kinds(steps), lr=0.003)


# Steps, so that no activation comes so near to 0, or to another one of its window, that rounding decides.
FEW = 10


def kinds(steps):
    """Of the shallowest network of a family also training."""
    return ("step", "sgd", "adam") if steps > 1 else ("step",)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_resnet(depth):
    blocks = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    module = theirs.resnet(theirs.Bottleneck if depth > 34 else theirs.Basic, blocks, 5, 4)
    net = getattr(gg.models, f"resnet{depth}")(5, (3, 35, 47), width=4)
    steps = {18: FEW, 50: 20}.get(depth, 1)
    same(net, module, images((3, 35, 47), 3, 5, steps), optimizers=kinds(steps), lr=0.003)


@pytest.mark.parametrize("depth", [20, 32, 56])
def test_resnet_for_cifar(depth):
    net = getattr(gg.models, f"resnet{depth}")(5, (3, 15, 18), width=4)
    steps = 20 if depth == 20 else 1
    same(net, theirs.cifar_resnet(depth, 5, 4), images((3, 15, 18), 5, 5, steps), optimizers=kinds(steps), lr=0.003)


def tokens(vocabulary, sequence, batch, steps=20, seed=0):
    """Batches of random tokens and of those that follow, of several sizes."""
    draw = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        text = draw.integers(0, vocabulary, (batch if step % 5 else batch + 3, sequence + 1)).astype(np.int32)
        found.append((np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])))
    return found


def test_char_lstm():
    net = gg.models.char_lstm(23, 11, embedding=13, hidden=20, layers=2)
    same(net, theirs.CharLSTM(23, 13, 20, 2), tokens(23, 11, 5), lr=0.1)


@pytest.mark.parametrize("bias", [True, False])
def test_char_gpt(bias):
    net = gg.models.char_gpt(23, 11, layers=2, heads=3, width=21, bias=bias)
    same(net, theirs.CharGPT(23, 11, 2, 3, 21, bias), tokens(23, 11, 5), lr=0.1)


@pytest.mark.parametrize("form", ["torchvision", "published"])
def test_googlenet(form):
    published = form == "published"
    size = (3, 81, 90) if published else (3, 33, 43)
    net = gg.models.googlenet(5, size, 0.0, form=form, dropout_auxiliary=0.0, width=8)
    module = theirs.GoogLeNet(5, published, 1 if published else 16, width=8)

    def loss_of(outputs, y):
        main, first, second = (nn.functional.cross_entropy(one, y) for one in outputs)
        return main + 0.3 * (first + second)

    if published:
        same(net, module, images(size, 3, 5, FEW), loss_of=loss_of, optimizers=("step", "adam"), lr=0.0005)
    else:  # normalised over few numbers: after some more steps PyTorch's float32 is as far from its float64 as weights
        few = images(size, 12, 5, steps=4)
        same(net, module, few, loss_of=loss_of, optimizers=("step", "sgd"), lr=5e-5)
