"""GoogLeNet: Szegedy et al., "Going deeper with convolutions" (2014), in the form of torchvision and as published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gossipgrad.errors import choice, flag
from gossipgrad.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Node,
    ReLU,
)
from gossipgrad.model import Model
from gossipgrad.models.building import Shape, at_least, chain, image, network, rate

# Widths of each module: 1 x 1; 3 x 3 and its reduction; the widest windows and their reduction; after the pooling.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_Convolution = Callable[..., Node]  # (node, out, kernel, name, stride=, padding=)


def _normed(x: Node, out: int, kernel: int, name: str, stride: int = 1, padding: int = 0) -> Node:
    """torchvision's: without bias, with BatchNorm."""
    y = Conv2d(
        out, kernel, stride=stride, padding=padding, bias=False, weight_init=("normal", 0.01), name=f"{name}.conv"
    )(x)
    return ReLU(name=f"{name}.relu")(BatchNorm2d(eps=0.001, name=f"{name}.bn")(y))


def _plain(x: Node, out: int, kernel: int, name: str, stride: int = 1, padding: int = 0) -> Node:
    """As published; weights and biases start as in Caffe's bvlc_googlenet."""
    y = Conv2d(out, kernel, stride=stride, padding=padding, weight_init="caffe_xavier", bias_init=0.2, name=name)(x)
    return ReLU(name=f"{name}.relu")(y)


def _inception(x: Node, conv: _Convolution, name: str, sizes: Sequence[int], widest: int) -> Node:
    one, three_in, three, five_in, five, pool = sizes
    first = conv(x, one, 1, f"{name}.branch1")
    second = conv(conv(x, three_in, 1, f"{name}.branch2.0"), three, 3, f"{name}.branch2.1", padding=1)
    third = conv(x, five_in, 1, f"{name}.branch3.0")
    third = conv(third, five, widest, f"{name}.branch3.1", padding=widest // 2)
    pooled = MaxPool2d(3, 1, padding=1, ceil_mode=True, name=f"{name}.branch4.0")(x)
    return Concat(name=name)(first, second, third, conv(pooled, pool, 1, f"{name}.branch4.1"))


@network
def googlenet(
    classes: int = 1000,
    input: Shape = (3, 224, 224),
    dropout: float | None = None,
    *,
    form: Literal["torchvision", "published"] = "torchvision",
    auxiliary: bool = True,
    dropout_auxiliary: float = 0.7,
    width: int = 64,
) -> Model:
    """GoogLeNet with its two auxiliary heads, which training alone uses, with weight 0.3; loss "cross_entropy".

    form       "torchvision": BatchNorm after each convolution, and 3 x 3 windows in place of 5 x 5: 13,004,888
               parameters at 1000 classes, 6,624,904 without the auxiliary heads. "published": biases,
               LocalResponseNorm, 5 x 5 windows; weights start as in Caffe's bvlc_googlenet; with auxiliary heads images
               of at least 80 x 80.
    auxiliary  False: without the heads aux1 and aux2.
    dropout    before the last layer; None: 0.2 of torchvision, 0.4 as published. dropout_auxiliary: in the heads.
    width      channels of the first convolution, at least 8; all others in proportion.
    """
    published = choice("form", form, ("torchvision", "published")) == "published"
    conv, widest = (_plain, 5) if published else (_normed, 3)
    classes = at_least("classes", classes)
    dropout = rate((0.4 if published else 0.2) if dropout is None else dropout)
    dropout_auxiliary = rate(dropout_auxiliary, "dropout_auxiliary")
    start = {"weight_init": "caffe_xavier", "bias_init": 0.0} if published else {"weight_init": ("normal", 0.01)}

    width = at_least("width", width, 8)

    def of(channels: int) -> int:
        return channels * width // 64

    def pool(x: Node, name: str, size: int = 3) -> Node:
        return MaxPool2d(size, 2, ceil_mode=True, name=name)(x)

    def norm(x: Node, name: str) -> Node:
        return LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0, name=name)(x) if published else x

    def modules(x: Node, *names: str) -> Node:
        for name in names:
            sizes = [of(channels) for channels in _INCEPTIONS[name]]
            x = _inception(x, conv, f"inception{name}", sizes, widest)
        return x

    def head(x: Node, name: str) -> Node:
        smaller: Layer = (
            AvgPool2d(5, 3, name=f"{name}.pool") if published else AdaptiveAvgPool2d(4, name=f"{name}.pool")
        )
        y = conv(smaller(x), of(128), 1, f"{name}.conv")
        tail = [
            Flatten(name=f"{name}.flatten"),
            Linear(of(1024), name=f"{name}.fc1", **start),
            ReLU(name=f"{name}.relu"),
            Dropout(dropout_auxiliary, name=f"{name}.dropout"),
            Linear(classes, name=f"{name}.fc2", **start),
        ]
        return chain(y, tail)

    x = image(input)
    y = norm(pool(conv(x, of(64), 7, "conv1", stride=2, padding=3), "maxpool1"), "norm1")
    y = conv(conv(y, of(64), 1, "conv2"), of(192), 3, "conv3", padding=1)
    y = modules(pool(norm(y, "norm2"), "maxpool2"), "3a", "3b")
    first = y = modules(pool(y, "maxpool3"), "4a")
    second = y = modules(y, "4b", "4c", "4d")
    y = pool(modules(y, "4e"), "maxpool4", 3 if published else 2)
    y = modules(y, "5a", "5b")
    tail = [AdaptiveAvgPool2d(1, name="avgpool"), Flatten(name="flatten"), Dropout(dropout, name="dropout")]
    y = Linear(classes, name="fc", **start)(chain(y, tail))
    if not flag("auxiliary", auxiliary):
        return Model(x, y, name="googlenet")
    outputs = {"fc": y, "aux1": head(first, "aux1"), "aux2": head(second, "aux2")}
    weights = {"aux1": 0.3, "aux2": 0.3}
    return Model(x, outputs, name="googlenet", training_only=("aux1", "aux2"), loss_weights=weights)
