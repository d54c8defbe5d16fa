"""The small networks: LeNet, Caffe's quick one for CIFAR-10, and linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from gossipgrad.errors import choice
from gossipgrad.layers import AvgPool2d, Conv2d, Flatten, Init, Layer, Linear, MaxPool2d, ReLU
from gossipgrad.model import Model, Sequential
from gossipgrad.models.building import Shape, at_least, chain, image, network


@network
def lenet(
    classes: int = 10,
    weight_init: Init = "caffe_xavier",
    bias_init: Init = 0.0,
    *,
    input: Shape = (1, 28, 28),
) -> Model:
    """Caffe's LeNet for 28 x 28 grey digits: 431,080 parameters at 10 classes; loss "cross_entropy".

    After LeCun et al., "Gradient-based learning applied to document recognition" (1998), as in Caffe's examples/mnist:
    no activation after the convolutions, weights start from Caffe's "xavier", biases from 0.
    """
    how: dict[str, Any] = {"weight_init": weight_init, "bias_init": bias_init}
    layers: list[Layer] = [
        Conv2d(20, 5, name="conv1", **how),
        MaxPool2d(2, name="pool1"),
        Conv2d(50, 5, name="conv2", **how),
        MaxPool2d(2, name="pool2"),
        Flatten(name="flatten"),
        Linear(500, name="fc1", **how),
        ReLU(name="relu1"),
        Linear(at_least("classes", classes), name="fc2", **how),
    ]
    x = image(input)
    return Model(x, chain(x, layers), name="lenet")


_CAFFE_DEVIATIONS = {"conv1": 1e-4, "conv2": 0.01, "conv3": 0.01, "fc1": 0.1, "fc2": 0.1}


@network
def cifar_quick(
    classes: int = 10, *, input: Shape = (3, 32, 32), initial: Literal["pytorch", "caffe"] = "pytorch"
) -> Model:
    """Caffe's cifar10_quick for 32 x 32 colour images: 145,578 parameters at 10 classes; loss "cross_entropy".

    After Krizhevsky's cuda-convnet, as in Caffe's examples/cifar10: windows of 3 x 3 by 2 that reach over the edge
    (32, 16, 8, 4), the first activation after its pooling, none between the linear layers.

    initial  the rule of initial weights. "caffe": normal, deviation 1e-4 in conv1, 0.01 and 0.1 in the others, biases
             0, made for pixels of 0..255 less their mean; as there, biases learn at twice the rate. "pytorch":
             PyTorch's defaults, for pixels of 0..1; with Caffe's an epoch on those ends at chance.
    """
    caffe = choice("initial", initial, ("pytorch", "caffe")) == "caffe"

    def how(name: str) -> dict[str, Any]:
        if not caffe:
            return {"name": name}
        return {"weight_init": ("normal", _CAFFE_DEVIATIONS[name]), "bias_init": 0.0, "lr": (1, 2), "name": name}

    layers: list[Layer] = [
        Conv2d(32, 5, padding=2, **how("conv1")),
        MaxPool2d(3, 2, ceil_mode=True, name="pool1"),
        ReLU(name="relu1"),
        Conv2d(32, 5, padding=2, **how("conv2")),
        ReLU(name="relu2"),
        AvgPool2d(3, 2, ceil_mode=True, name="pool2"),
        Conv2d(64, 5, padding=2, **how("conv3")),
        ReLU(name="relu3"),
        AvgPool2d(3, 2, ceil_mode=True, name="pool3"),
        Flatten(name="flatten"),
        Linear(64, **how("fc1")),
        Linear(at_least("classes", classes), **how("fc2")),
    ]
    x = image(input)
    return Model(x, chain(x, layers), name="cifar_quick")


@network
def mlp(inputs: int = 28, hidden: Sequence[int] = (300, 300, 300), outputs: int = 1) -> Model:
    """Linear layers with ReLU between: 28-300-300-300-1 for HIGGS; loss "binary_cross_entropy" (scores, no sigmoid)."""
    layers: list[Layer] = []
    for i, width in enumerate(hidden, 1):
        layers += [Linear(at_least(f"hidden[{i - 1}]", width), name=f"fc{i}"), ReLU(name=f"relu{i}")]
    layers.append(Linear(at_least("outputs", outputs), name=f"fc{len(hidden) + 1}"))
    return Sequential(layers, input=(at_least("inputs", inputs),), name="mlp")
