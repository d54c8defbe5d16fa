"""Networks by name. Tensors have the names that PyTorch's and torchvision's modules give them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gossipgrad import data, optim
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import choice
from gossipgrad.literals import Loss
from gossipgrad.model import Model
from gossipgrad.models.alexnet import alexnet
from gossipgrad.models.char import char_gpt, char_lstm
from gossipgrad.models.classic import cifar_quick, lenet, mlp
from gossipgrad.models.googlenet import googlenet
from gossipgrad.models.resnet import resnet18, resnet20, resnet32, resnet34, resnet50, resnet56, resnet101
from gossipgrad.models.speech import speech_dnn
from gossipgrad.models.vgg import vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn

__all__ = [
    "BY_NAME",
    "Entry",
    "alexnet",
    "by_name",
    "char_gpt",
    "char_lstm",
    "cifar_quick",
    "googlenet",
    "lenet",
    "mlp",
    "resnet101",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet50",
    "resnet56",
    "set_options",
    "speech_dnn",
    "vgg11",
    "vgg11_bn",
    "vgg13",
    "vgg13_bn",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "vgg19_bn",
    "with_data",
]


@dataclass(frozen=True)
class Entry:
    """A network of the command line, with its defaults, and the kind of its samples.

    optimizer: for one rank, `batch` samples a step and a constant rate.
    """

    make: Callable[..., Model]
    loss: Loss
    batch: int
    dataset: str
    optimizer: optim.Optimizer
    samples: Literal["images", "rows", "tokens"] = "images"
    streams: bool = False  # True if it can carry its state from batch to batch, by stateful=True

    def options(self, name: str) -> dict[str, Any]:
        """set_options for the network in its own form."""
        return set_options(self.make(), name, self.streams)

    def of(self, train: Dataset, loss: Loss | None = None, ignored: int | None = None) -> Model:
        """The network for samples and classes like those of a set; its own form, if it has none for such samples.

        ignored: a target that is no class.
        """
        if len(train.shape) != (3 if self.samples == "images" else 1):
            return self.make()
        if self.samples == "images":
            return self.make(classes=_classes(train, ignored), input=train.shape)
        if self.samples == "tokens":
            stateful = {"stateful": True} if self.streams and train.source is not None and train.source.streams else {}
            return self.make(vocabulary=_classes(train, ignored), sequence=train.shape[0], **stateful)
        if self.loss == "binary_cross_entropy":
            return self.make(inputs=train.shape[0], outputs=_outputs(train, loss or self.loss, ignored))
        return self.make(inputs=train.shape[0], classes=_classes(train, ignored))


def _classes(train: Dataset, ignored: int | None) -> int:
    """The number of classes, or characters, of a set's targets."""
    if train.class_names is not None:
        return len(train.class_names)
    return int(train.targets.max(initial=0, where=True if ignored is None else train.targets != ignored)) + 1


def _outputs(train: Dataset, loss: Loss, ignored: int | None) -> int:
    """The number of outputs for targets that are classes, or numbers."""
    return _classes(train, ignored) if loss == "cross_entropy" else math.prod(train.targets.shape[1:])


def _sgd(lr: float) -> optim.Optimizer:
    return optim.SGD(lr=lr, momentum=0.9)


BY_NAME = {
    "lenet": Entry(lenet, "cross_entropy", 64, "mnist-10k", _sgd(0.03)),
    "mlp": Entry(mlp, "binary_cross_entropy", 256, "higgs", _sgd(0.05), "rows"),
    "cifar_quick": Entry(cifar_quick, "cross_entropy", 100, "cifar10", _sgd(0.02)),
    "resnet20": Entry(resnet20, "cross_entropy", 128, "cifar10", _sgd(0.1)),
    "resnet32": Entry(resnet32, "cross_entropy", 128, "cifar10", _sgd(0.1)),
    "resnet56": Entry(resnet56, "cross_entropy", 128, "cifar10", _sgd(0.1)),
    "alexnet": Entry(alexnet, "cross_entropy", 128, "imagefolder", _sgd(0.01)),
    **{
        made.__name__: Entry(made, "cross_entropy", 32, "imagefolder", _sgd(0.01))
        for made in (vgg11, vgg13, vgg16, vgg19, vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn)
    },
    "googlenet": Entry(googlenet, "cross_entropy", 32, "imagefolder", _sgd(0.025)),
    "resnet18": Entry(resnet18, "cross_entropy", 64, "imagefolder", _sgd(0.05)),
    "resnet34": Entry(resnet34, "cross_entropy", 64, "imagefolder", _sgd(0.05)),
    "resnet50": Entry(resnet50, "cross_entropy", 32, "imagefolder", _sgd(0.025)),
    "resnet101": Entry(resnet101, "cross_entropy", 32, "imagefolder", _sgd(0.025)),
    "char_gpt": Entry(char_gpt, "cross_entropy", 12, "shakespeare", optim.Adam(lr=0.001), "tokens"),
    "char_lstm": Entry(char_lstm, "cross_entropy", 50, "shakespeare", optim.Adam(lr=0.002), "tokens", streams=True),
    "speech_dnn": Entry(speech_dnn, "cross_entropy", 256, "synthetic", _sgd(0.1), "rows"),
}


def by_name(name: str) -> Entry:
    """The entry of a name; ValueError lists the names there are."""
    choice("model", name, BY_NAME)
    return BY_NAME[name]


def set_options(net: Model, name: str, streams: bool) -> dict[str, Any]:
    """Default options of a set of this name for a network: its own size of images or text.

    streams: True if it can carry its state from batch to batch.
    """
    shape, text = net.input_shape, net.tokens() is not None
    if name == "imagefolder" and not text and len(shape) == 3:
        return {"image_size": tuple(shape[1:]), "channels": shape[0]}
    if name == "shakespeare" and text:
        return {"sequence": shape[0], "windows": "streams" if streams else "random"}
    return {}


def with_data(
    entry: Entry,
    name: str,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    loss: Loss | None = None,
    ignored: int | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[Model, Dataset, Dataset]:
    """The network for a set by name, and (train, validation) of it; "synthetic": a set of the network's own shapes.

    loss: None: the network's own. ignored: a target that is no class. options: of the set, as of gossipgrad.data.load.
    """
    if name == "synthetic":
        net = entry.make()
        return net, *data.for_network(net, name, folder, seed, progress=progress, **options)
    how = entry.options(name) | options
    train, validation = data.load(name, folder, progress=progress, seed=seed, **how)
    return entry.of(train, loss, ignored), train, validation
