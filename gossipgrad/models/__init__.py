"""Networks by name. Tensors have the names that PyTorch's and torchvision's modules give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossipgrad.errors import choice
from gossipgrad.literals import Loss
from gossipgrad.model import Model
from gossipgrad.models.classic import cifar_quick, lenet, mlp
from gossipgrad.models.speech import speech_dnn

__all__ = ["BY_NAME", "Entry", "by_name", "cifar_quick", "lenet", "mlp", "speech_dnn"]


@dataclass(frozen=True)
class Entry:
    """A network of the command line, with the loss, batch and data set that go with it."""

    make: Callable[[], Model]
    loss: Loss
    batch: int
    dataset: str


BY_NAME = {
    "lenet": Entry(lenet, "cross_entropy", 64, "mnist-10k"),
    "mlp": Entry(mlp, "binary_cross_entropy", 256, "higgs"),
    "cifar_quick": Entry(cifar_quick, "cross_entropy", 100, "cifar10"),
    "speech_dnn": Entry(speech_dnn, "cross_entropy", 256, "synthetic"),
}


def by_name(name: str) -> Entry:
    """The entry of a name; ValueError lists the names there are."""
    choice("model", name, BY_NAME)
    return BY_NAME[name]
