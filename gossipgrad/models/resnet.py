"""Residual networks: those for ImageNet in the form of torchvision, and the narrow ones for CIFAR-10.

He et al., "Deep residual learning for image recognition" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence

from gossipgrad.layers import (
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Node,
    ReLU,
)
from gossipgrad.model import Model
from gossipgrad.models.building import Shape, at_least, chain, fan_out, image, network
from gossipgrad.sequences import Pad


def _normed(x: Node, out: int, kernel: int, stride: int, conv: str, norm: str) -> Node:
    """A convolution without bias and its BatchNorm."""
    init = fan_out(out, kernel)
    y = Conv2d(out, kernel, stride=stride, padding=kernel // 2, bias=False, weight_init=init, name=conv)(x)
    return BatchNorm2d(name=norm)(y)


def _basic(x: Node, name: str, width: int, stride: int) -> Node:
    y = _normed(x, width, 3, stride, f"{name}.conv1", f"{name}.bn1")
    return _normed(ReLU(name=f"{name}.relu1")(y), width, 3, 1, f"{name}.conv2", f"{name}.bn2")


def _bottleneck(x: Node, name: str, width: int, stride: int) -> Node:
    """The stride is that of the 3 x 3 convolution, as in torchvision."""
    y = _normed(x, width, 1, 1, f"{name}.conv1", f"{name}.bn1")
    y = _normed(ReLU(name=f"{name}.relu1")(y), width, 3, stride, f"{name}.conv2", f"{name}.bn2")
    return _normed(ReLU(name=f"{name}.relu2")(y), 4 * width, 1, 1, f"{name}.conv3", f"{name}.bn3")


def _resnet(name: str, wide: bool, blocks: Sequence[int], classes: int, input: Shape, width: int) -> Model:
    width = at_least("width", width)
    x = image(input)
    y = ReLU(name="relu")(_normed(x, width, 7, 2, "conv1", "bn1"))
    y = MaxPool2d(3, 2, padding=1, name="maxpool")(y)
    channels, expansion = width, 4 if wide else 1
    for stage, count in enumerate(blocks):
        inner = width << stage
        for i in range(count):
            block, stride = f"layer{stage + 1}.{i}", 2 if stage and not i else 1
            shortcut = y
            if stride > 1 or channels != expansion * inner:
                parts = f"{block}.downsample"
                shortcut = _normed(y, expansion * inner, 1, stride, f"{parts}.0", f"{parts}.1")
            inside = (_bottleneck if wide else _basic)(y, block, inner, stride)
            y = ReLU(name=f"{block}.relu")(Add(name=f"{block}.add")(inside, shortcut))
            channels = expansion * inner
    last = Linear(at_least("classes", classes), name="fc")
    y = chain(y, [AdaptiveAvgPool2d(1, name="avgpool"), Flatten(name="flatten"), last])
    return Model(x, y, name=name)


@network
def resnet18(classes: int = 1000, input: Shape = (3, 224, 224), *, width: int = 64) -> Model:
    """ResNet-18: 11,689,512 parameters at 1000 classes; loss "cross_entropy". Names, weights as torchvision's.

    `width`: channels of the first stage.
    """
    return _resnet("resnet18", False, (2, 2, 2, 2), classes, input, width)


@network
def resnet34(classes: int = 1000, input: Shape = (3, 224, 224), *, width: int = 64) -> Model:
    """ResNet-34: 21,797,672 parameters at 1000 classes. Arguments as of resnet18."""
    return _resnet("resnet34", False, (3, 4, 6, 3), classes, input, width)


@network
def resnet50(classes: int = 1000, input: Shape = (3, 224, 224), *, width: int = 64) -> Model:
    """ResNet-50, with the stride in the 3 x 3 convolutions: 25,557,032 parameters at 1000 classes; as resnet18."""
    return _resnet("resnet50", True, (3, 4, 6, 3), classes, input, width)


@network
def resnet101(classes: int = 1000, input: Shape = (3, 224, 224), *, width: int = 64) -> Model:
    """ResNet-101: 44,549,160 parameters at 1000 classes. Arguments as of resnet18."""
    return _resnet("resnet101", True, (3, 4, 23, 3), classes, input, width)


# ---- CIFAR-10


def _normed_narrow(x: Node, out: int, stride: int, conv: str, norm: str) -> Node:
    y = Conv2d(out, 3, stride=stride, padding=1, bias=False, weight_init="he_normal", name=conv)(x)
    return BatchNorm2d(name=norm)(y)


def _cifar(depth: int, classes: int, input: Shape, width: int) -> Model:
    width = at_least("width", width)
    x = image(input)
    y = ReLU(name="relu")(_normed_narrow(x, width, 1, "conv1", "bn1"))
    for stage in range(3):
        out = width << stage
        for i in range((depth - 2) // 6):
            block, shortcut = f"layer{stage + 1}.{i}", y
            stride = 2 if stage and not i else 1
            if stride > 1:  # every second pixel, and zeros for the new channels: no parameters
                fewer = AvgPool2d(1, 2, name=f"{block}.shortcut")(y)
                shortcut = Pad(0, out // 4, out // 2 - out // 4, name=f"{block}.pad")(fewer)
            inside = _normed_narrow(y, out, stride, f"{block}.conv1", f"{block}.bn1")
            inside = _normed_narrow(ReLU(name=f"{block}.relu1")(inside), out, 1, f"{block}.conv2", f"{block}.bn2")
            y = ReLU(name=f"{block}.relu")(Add(name=f"{block}.add")(inside, shortcut))
    last = Linear(at_least("classes", classes), weight_init="he_normal", name="linear")
    y = chain(y, [AdaptiveAvgPool2d(1, name="avgpool"), Flatten(name="flatten"), last])
    return Model(x, y, name=f"resnet{depth}")


@network
def resnet20(classes: int = 10, input: Shape = (3, 32, 32), *, width: int = 16) -> Model:
    """ResNet-20 for CIFAR-10 (He et al., 4.2): 269,722 parameters at 10 classes; loss "cross_entropy".

    Shortcuts have no parameters (option A). When the image shrinks they take every second pixel, with zeros for the new
    channels, half of them before and half after. Names as in Y. Idelbayev's PyTorch version.
    """
    return _cifar(20, classes, input, width)


@network
def resnet32(classes: int = 10, input: Shape = (3, 32, 32), *, width: int = 16) -> Model:
    """ResNet-32 for CIFAR-10: 464,154 parameters at 10 classes; as resnet20."""
    return _cifar(32, classes, input, width)


@network
def resnet56(classes: int = 10, input: Shape = (3, 32, 32), *, width: int = 16) -> Model:
    """ResNet-56 for CIFAR-10: 853,018 parameters at 10 classes; as resnet20."""
    return _cifar(56, classes, input, width)
