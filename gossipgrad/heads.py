"""Inputs and outputs of a network: its inputs, and its heads, each with a loss, a weight and a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipgrad import losses
from gossipgrad.errors import choice, did_you_mean, integer, number, plain_array
from gossipgrad.layers import Node
from gossipgrad.literals import LOSSES, Loss

MAX_FIELDS = 8  # GG_MAX_FIELDS of the core: inputs of a network, heads, and targets

T = TypeVar("T")
OneLoss = Loss | losses.CrossEntropy
Losses = OneLoss | Sequence[OneLoss] | Mapping[str, OneLoss]  # for all outputs, for each, or by their names


@dataclass(frozen=True)
class Field:
    """An input of a network, by its name for data; shape: of one sample."""

    name: str
    node: int  # its number in the graph
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Head:
    """An output of a network; shape: of one sample."""

    name: str
    node: int
    shape: tuple[int, ...]
    training_only: bool  # evaluation leaves it out, with the layers that lead to it alone
    target: int  # number of the data's target that it is trained on
    weight: float = 1.0  # of its loss in the sum that is trained
    loss: Any = "cross_entropy"

    @property
    def kind(self) -> str:
        """The loss's name."""
        return self.loss if isinstance(self.loss, str) else str(self.loss.name)

    @property
    def ignored(self) -> int | None:
        """The target value without loss, if there is one."""
        return getattr(self.loss, "ignore_index", None)

    def core(self) -> dict[str, Any]:
        """The loss in the core's form."""
        given = {"loss": self.loss} if isinstance(self.loss, str) else dict(self.loss.core())
        return given | {"weight": self.weight, "target": self.target}

    def describe_loss(self) -> Any:
        """The loss in terms of JSON: the value of loss=."""
        return losses.described(self.loss)

    def describe(self) -> dict[str, Any]:
        """The head, without its loss, in terms of JSON."""
        keys = ("name", "node", "training_only", "target", "weight")
        return {key: self.__dict__[key] for key in keys}


def nodes_of(argument: str, given: Any) -> list[tuple[str | None, Node]]:
    """One node, a list of nodes, or nodes by name: (name or None, node) of each."""
    several: list[tuple[str | None, Any]]
    if isinstance(given, Mapping):
        several = [(str(key), node) for key, node in given.items()]
    elif isinstance(given, (list, tuple)):
        several = [(None, node) for node in given]
    else:
        several = [(None, given)]
    for name, node in several:
        place = argument if len(several) == 1 else f"{argument}[{name!r}]" if name else argument
        if not isinstance(node, Node):
            raise TypeError(f"{place} is a {type(node).__name__}; wanted a node, as gg.Input or a layer gives")
    if not 1 <= len(several) <= MAX_FIELDS:
        raise ValueError(f"{argument}: {len(several)} nodes; allowed: 1 to {MAX_FIELDS}")
    if len({id(node) for _, node in several}) < len(several):
        raise ValueError(f"{argument}: a node is there twice; allowed: each once")
    return several


def _named(argument: str, name: Any, names: Sequence[str]) -> int:
    """The place of an output's name."""
    if name not in names:
        allowed = ", ".join(map(repr, names))
        hint = did_you_mean(name, names)
        raise ValueError(f"{argument}: {name!r} is no output of the network; allowed: {allowed}{hint}")
    return names.index(name)


def by_head(argument: str, given: Any, names: Sequence[str], default: T | None) -> list[Any]:
    """A value for each head, from one for all, a list, or a dict by the heads' names (others get the default)."""
    if isinstance(given, Mapping):
        places = {_named(argument, name, names): value for name, value in given.items()}
        missing = [names[i] for i in range(len(names)) if i not in places and default is None]
        if missing:
            raise ValueError(f"{argument} has nothing for the output {', '.join(map(repr, missing))}")
        return [places.get(i, default) for i in range(len(names))]
    if isinstance(given, (list, tuple)):
        if len(given) != len(names):
            outputs = f"{len(names)} outputs: {', '.join(names)}" if len(names) > 1 else "one output"
            raise ValueError(f"{argument}: {len(given)} of them; the network has {outputs}")
        return list(given)
    return [given] * len(names)


def heads(
    places: Sequence[tuple[str, int, tuple[int, ...]]],
    training_only: Iterable[str],
    targets: Any,
    weights: Any,
) -> tuple[Head, ...]:
    """The heads of a network: (name, node, shape) of each, and the arguments of Model for them."""
    names = [name for name, _, _ in places]
    if len(set(names)) < len(names):
        raise ValueError(f"outputs: {', '.join(names)}: allowed: each name once")
    only = {_named("training_only", name, names) for name in training_only}
    if 0 in only:
        raise ValueError(f"training_only: {names[0]!r} is the first output, which is the main one; allowed: others")
    if targets is None:
        own = iter(range(len(names)))
        targets = [0 if i in only else next(own) for i in range(len(names))]
    chosen = [integer("targets", one, 0, MAX_FIELDS - 1) for one in by_head("targets", targets, names, None)]
    if set(chosen) != set(range(max(chosen) + 1)):
        raise ValueError(f"targets={chosen}: allowed: numbers from 0 on, none left out")
    given = by_head("loss_weights", 1.0 if weights is None else weights, names, 1.0)
    return tuple(
        Head(name, node, shape, i in only, chosen[i], number(f"loss_weights[{name!r}]", given[i], 0.0))
        for i, (name, node, shape) in enumerate(places)
    )


def _checked(head: Head, argument: str) -> Head:
    loss = head.loss
    if not isinstance(loss, (str, losses.CrossEntropy)):  # for example a module of PyTorch's
        allowed = ", ".join(map(repr, LOSSES))
        hint = did_you_mean(type(loss).__name__, LOSSES)
        raise ValueError(f"{argument}={loss!r}: allowed: {allowed}, gossipgrad.CrossEntropy(...){hint}")
    if isinstance(loss, str):
        choice(argument, loss, LOSSES)
    if head.kind == "cross_entropy" and len(head.shape) > 2:
        raise ValueError(
            f"{argument}='cross_entropy' wants one score a class, an output of shape (classes,) or (positions, "
            f"classes); {head.name!r} gives {head.shape}"
        )
    return head


def with_losses(made: Sequence[Head], loss: Any, weights: Any) -> tuple[Head, ...]:
    """The heads with a trainer's loss= and loss_weights=: one for all, a list, or by name."""
    names = [one.name for one in made]
    chosen = by_head("loss", loss, names, None)
    given = [one.weight for one in made] if weights is None else by_head("loss_weights", weights, names, 1.0)
    result = []
    for one, own, weight in zip(made, chosen, given, strict=True):
        argument = "loss" if len(made) == 1 else f"loss[{one.name!r}]"
        weight = number(f"loss_weights[{one.name!r}]", weight, 0.0)
        result.append(_checked(replace(one, loss=own, weight=weight), argument))
    if not any(one.weight for one in result):
        raise ValueError("loss_weights: all 0; allowed: one above 0 at least")
    return tuple(result)


def check_names(argument: str, given: Iterable[str], wanted: Sequence[str]) -> None:
    """ValueError with the missing and the unknown names, unless `given` has exactly the wanted ones."""
    found = list(map(str, given))
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in wanted]
    parts = [f"no {', '.join(map(repr, missing))}"] * bool(missing)
    parts += [f"unknown: {', '.join(map(repr, unknown))}"] * bool(unknown)
    if parts:
        raise ValueError(f"{argument}: {'; '.join(parts)}; allowed: {', '.join(wanted)}")


def separate(argument: str, given: Any, names: Sequence[str]) -> list[Any]:
    """The arrays of several fields, from a list, a tuple or a dict by name; for a single field the thing itself."""
    if isinstance(given, Mapping):
        check_names(argument, given, names)
        return [given[name] for name in names]
    if len(names) == 1:
        return [given]
    if not isinstance(given, (list, tuple)) or len(given) != len(names):
        found = f"{len(given)} of them" if isinstance(given, (list, tuple)) else type(given).__name__
        raise ValueError(f"{argument}: {found}; wanted an array for each of {', '.join(names)}")
    return list(given)


def of_samples(shape: tuple[int, ...]) -> str:
    """Errors' text for the shape of any number of samples: (n, 8)."""
    return str(("n", *shape)).replace("'n'", "n")


def tokens(given: Any, shape: tuple[int, ...], what: str) -> NDArray[np.int32]:
    """An int32 array (n, ...) of whole numbers; TypeError for others."""
    array = plain_array(what, given)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what}: dtype {array.dtype}; wanted whole numbers, tokens")
    if array.shape[1:] != shape or not array.size:
        raise ValueError(f"{what}: shape {array.shape}, but the network wants {of_samples(shape)}")
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{what}: {array.min()} to {array.max()}; allowed: numbers from 0 on that int32 holds")
    return np.ascontiguousarray(array, np.int32)


def measured_names(made: Sequence[Head]) -> list[str]:
    """Names of the numbers of `measured`."""
    own = [("loss", "accuracy") if one.kind != "mean_squared_error" else ("loss",) for one in made]
    several = [(one.name, keys) for one, keys in zip(made, own, strict=True) if not one.training_only]
    named = [f"{name}_{key}" for name, keys in several for key in keys] if len(several) > 1 else []
    return [*own[0], *named]


def measured(made: Sequence[Head], found: Mapping[str, Any]) -> dict[str, float]:
    """The core's evaluation: the main output's loss and accuracy, and with several outputs each one's as NAME_loss."""
    result = {key: value for key, value in found.items() if key != "heads"}
    for place, each in found.get("heads", {}).items():
        result |= {f"{made[place].name}_{key}": value for key, value in each.items()}
    return result


def loss_settings(made: Sequence[Head]) -> dict[str, Any]:
    """The losses, and with several outputs the weights, in terms of JSON; losses_of reads them."""
    if len(made) == 1:
        return {"loss": made[0].describe_loss()}
    return {"loss": [one.describe_loss() for one in made], "loss_weights": [one.weight for one in made]}


def losses_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """loss= and loss_weights= of a trainer, from its settings in terms of JSON."""
    given = settings["loss"]
    several = isinstance(given, list)
    made = [losses.from_description(one) for one in given] if several else losses.from_description(given)
    return {"loss": made, "loss_weights": settings.get("loss_weights")}
