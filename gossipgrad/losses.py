"""Losses with options: gg.Trainer(net, loss=gg.CrossEntropy(label_smoothing=0.1)). Without options: a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gossipgrad.errors import LARGEST, integer, named_keywords, number, store
from gossipgrad.keywords import about
from gossipgrad.literals import Loss


def numbers(text: str) -> tuple[float, ...]:
    """Numbers from a text, separated by commas."""
    try:
        return tuple(float(one) for one in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r}: allowed: numbers with commas, as 1,2,0.5") from None


@named_keywords
@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Softmax and cross entropy, with PyTorch's options and formulas.

    An output (classes,) has one integer target a sample; (T, classes), a class for each position, has T of them.

    label_smoothing  in [0, 1): this share of a target is spread evenly over all classes.
    class_weights    the factor of each class's targets, one number a class, at least 0.
    ignore_index     targets of this value have no loss, are not counted in the accuracy, and bring no gradient.

    The loss of a batch is the sum over all positions that are not ignored, divided by the sum of their class weights
    (without class weights: by their number), as in PyTorch; if that is 0, loss and gradient are 0. Each rank divides
    by the sum of its own batch, and the ranks are averaged by their numbers of samples, as in PyTorch's data
    parallelism. Evaluation divides once, by the sum over the whole set: if that is 0, it is NaN.
    sample_weight= and class_weight= of fit are further factors of whole samples, and change no divisor.
    """

    name: ClassVar[Loss] = "cross_entropy"

    label_smoothing: float = field(
        default=0.0, metadata=about("this share of a target is spread evenly over all classes")
    )
    class_weights: Sequence[float] | None = field(
        default=None,
        metadata=about(
            "of the loss, as PyTorch's CrossEntropyLoss(weight=): what targets of each class count, divided by their "
            "sum over the batch; --class-weight, in contrast, divides by the number of samples",
            default="all 1",
            metavar="W,W,...",
            read=numbers,
        ),
    )
    ignore_index: int | None = field(
        default=None, metadata=about("targets of this value have no loss and count in no divisor or accuracy")
    )

    def __post_init__(self) -> None:
        weights = self.class_weights
        if weights is not None:
            try:
                given = list(weights)
            except TypeError:
                raise TypeError(f"class_weights={weights!r}: allowed: one number a class, or None") from None
            if len(given) < 2:
                raise ValueError(f"class_weights={weights!r}: allowed: one number a class, of at least two classes")
            weights = tuple(number(f"class_weights[{i}]", one, 0.0, LARGEST) for i, one in enumerate(given))
            if not any(weights):
                raise ValueError("class_weights: all 0; allowed: one above 0 at least")
        index = self.ignore_index
        store(
            self,
            label_smoothing=number("label_smoothing", self.label_smoothing, 0.0, below=1.0),
            class_weights=weights,
            ignore_index=None if index is None else integer("ignore_index", index, -(2**31), 2**31 - 1),
        )

    def core(self) -> dict[str, Any]:
        """The loss in the core's form."""
        weights = None if self.class_weights is None else np.array(self.class_weights, np.float32)
        return {
            "loss": self.name,
            "label_smoothing": self.label_smoothing,
            "class_weight": weights,
            "ignore_index": self.ignore_index,
        }

    def describe(self) -> dict[str, Any]:
        """In terms of JSON."""
        weights = None if self.class_weights is None else list(self.class_weights)
        given = {
            "label_smoothing": self.label_smoothing or None,
            "class_weights": weights,
            "ignore_index": self.ignore_index,  # may be 0
        }
        return {"name": self.name} | {key: value for key, value in given.items() if value is not None}


def described(loss: Any) -> Any:
    """A loss in terms of JSON: its name, or the result of describe() if it has options."""
    return loss if isinstance(loss, str) else loss.describe()


def from_description(given: str | Mapping[str, Any]) -> str | CrossEntropy:
    """The loss that described() returned."""
    if isinstance(given, str):
        return given
    return CrossEntropy(**{key: value for key, value in given.items() if key != "name"})
