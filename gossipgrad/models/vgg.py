"""VGG, in the form of torchvision: Simonyan and Zisserman, "Very deep convolutional networks" (2014)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from gossipgrad.layers import AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, ReLU
from gossipgrad.model import Model
from gossipgrad.models.building import Shape, at_least, chain, fan_out, image, network, rate

# Convolutions of each of the five stages; their widths are 64, 128, 256, 512 and 512.
_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_Made = TypeVar("_Made", bound=Callable[..., Any])


def _vgg(depth: int, classes: int, input: Shape, dropout: float, batch_norm: bool, hidden: int, width: int) -> Model:
    dropout, hidden, width = rate(dropout), at_least("hidden", hidden), at_least("width", width)
    layers: list[Layer] = []

    def add(kind: Callable[..., Layer], *how: Any, **more: Any) -> None:
        layers.append(kind(*how, name=f"features.{len(layers)}", **more))

    for stage, convolutions in enumerate(_STAGES[depth]):
        out = width * min(2**stage, 8)
        for _ in range(convolutions):
            add(Conv2d, out, 3, padding=1, weight_init=fan_out(out, 3), bias_init=0.0)
            if batch_norm:
                add(BatchNorm2d)
            add(ReLU)
        add(MaxPool2d, 2)
    linear: dict[str, Any] = {"weight_init": ("normal", 0.01), "bias_init": 0.0}
    layers += [
        AdaptiveAvgPool2d(7, name="avgpool"),
        Flatten(name="flatten"),
        Linear(hidden, name="classifier.0", **linear),
        ReLU(name="classifier.1"),
        Dropout(dropout, name="classifier.2"),
        Linear(hidden, name="classifier.3", **linear),
        ReLU(name="classifier.4"),
        Dropout(dropout, name="classifier.5"),
        Linear(at_least("classes", classes), name="classifier.6", **linear),
    ]
    x = image(input)
    return Model(x, chain(x, layers), name=f"vgg{depth}{'_bn' if batch_norm else ''}")


@network
def vgg11(
    classes: int = 1000,
    input: Shape = (3, 224, 224),
    dropout: float = 0.5,
    *,
    batch_norm: bool = False,
    hidden: int = 4096,
    width: int = 64,
) -> Model:
    """VGG-11: 132,863,336 parameters at 1000 classes; loss "cross_entropy". Names and initial weights of torchvision.

    batch_norm  a BatchNorm2d after each convolution, as vgg11_bn of torchvision. `hidden`: the width of the two linear
    layers before the last; `width`: of the first convolution. Images of at least 32 x 32.
    """
    return _vgg(11, classes, input, dropout, batch_norm, hidden, width)


@network
def vgg11_bn(
    classes: int = 1000, input: Shape = (3, 224, 224), dropout: float = 0.5, *, hidden: int = 4096, width: int = 64
) -> Model:
    """vgg11(batch_norm=True)."""
    return _vgg(11, classes, input, dropout, True, hidden, width)


def _deeper(form: _Made, depth: int, text: str) -> _Made:
    """vgg11 or vgg11_bn with another depth and docstring."""
    signature = inspect.signature(form)

    @functools.wraps(form)
    def made(*args: Any, **kwargs: Any) -> Model:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return _vgg(depth, **{"batch_norm": True} | given.arguments)

    made.__name__ = made.__qualname__ = form.__name__.replace("11", str(depth))
    made.__doc__ = text
    return cast(_Made, network(made))


vgg13 = _deeper(vgg11, 13, "VGG-13: 133,047,848 parameters at 1000 classes. Arguments as of vgg11.")
vgg16 = _deeper(vgg11, 16, "VGG-16: 138,357,544 parameters at 1000 classes. Arguments as of vgg11.")
vgg19 = _deeper(vgg11, 19, "VGG-19: 143,667,240 parameters at 1000 classes. Arguments as of vgg11.")
vgg13_bn = _deeper(vgg11_bn, 13, "vgg13(batch_norm=True).")
vgg16_bn = _deeper(vgg11_bn, 16, "vgg16(batch_norm=True).")
vgg19_bn = _deeper(vgg11_bn, 19, "vgg19(batch_norm=True).")
