"""Every network against the same one in PyTorch: its names, its loss and gradients, and twenty steps of training."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_networks import named, perceptron  # noqa: E402
from torch_parity import images, same  # noqa: E402


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
    same(gg.models.lenet(7, input=(1, 20, 17)), module, images((1, 20, 17), 3, 7))


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
