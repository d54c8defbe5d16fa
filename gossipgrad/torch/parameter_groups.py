"""Groups of parameters with a learning rate, momentum and weight decay of their own, as torch.optim's param_groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gossipgrad.errors import LARGEST, did_you_mean, number
from gossipgrad.torch.modules import Layer, original
from gossipgrad.training.chosen import checked_optimizer

# Settings of a group; the momentum is that of SGD and LARS.
_KEYS = ("lr", "momentum", "weight_decay")


def _settable(optimizer: Any) -> tuple[str, ...]:
    return tuple(key for key in _KEYS if hasattr(optimizer, key))


def _tensors(group: Mapping[str, Any]) -> list[Any]:
    given = group["params"]
    given = [given] if isinstance(given, torch.Tensor) else list(given)
    return [one[1] if isinstance(one, tuple) and len(one) == 2 else one for one in given]


def _own_settings(place: int, group: Any, optimizer: Any) -> dict[str, float]:
    """A group's own settings."""
    if not isinstance(group, Mapping) or "params" not in group:
        raise TypeError(f"groups[{place}]: allowed: a dict with 'params', as torch.optim's param_groups")
    allowed = _settable(optimizer)
    for key in group:
        if key != "params" and key not in allowed:
            raise ValueError(
                f"groups[{place}]: {key!r}{did_you_mean(key, allowed)}; allowed for {type(optimizer).__name__}: "
                f"params, {', '.join(allowed)}"
            )
    most = {"momentum": {"below": 1.0}}
    return {
        key: number(f"groups[{place}]: {key}", value, 0.0, **most.get(key, {"high": LARGEST}))
        for key, value in group.items()
        if key != "params"
    }


def with_groups(groups: Any, optimizer: Any, module: Any, layers: Sequence[Layer]) -> Any:
    """Note in the layers the factors of their parameters' settings, relative to the optimizer's.

    Returns the optimizer that these multiply: with the largest momentum and weight decay of all groups. ValueError,
    TypeError: settings that a group may not have.
    """
    if groups is None:
        return optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError("groups: an optimizer of torch has param_groups of its own; allowed: one of gossipgrad's")
    if isinstance(groups, (str, Mapping)) or not isinstance(groups, Sequence):
        raise TypeError(f"groups is a {type(groups).__name__}; allowed: a list of dicts, as torch.optim's param_groups")
    optimizer = checked_optimizer(optimizer)
    name_of = {id(tensor): name for layer in layers for name, tensor in layer.parameters}
    frozen = {id(tensor) for tensor in original(module).parameters()} - set(name_of)
    base = {key: float(getattr(optimizer, key)) for key in _settable(optimizer)}
    settings = {name: dict(base) for name in name_of.values()}
    group_of: dict[str, int] = {}
    for place, group in enumerate(groups):
        own = _own_settings(place, group, optimizer)
        if base["lr"] > 0 and own.get("lr", 0.0) / base["lr"] > LARGEST:
            raise ValueError(
                f"groups[{place}]: lr={own['lr']!r}: allowed: at most {LARGEST:g} times the optimizer's, which is "
                f"{base['lr']:g}"
            )
        for tensor in _tensors(group):
            name = name_of.get(id(tensor))
            if name is None and id(tensor) in frozen:
                continue
            if name is None:
                kind = "a tensor that is none" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
                raise ValueError(f"groups[{place}]: params has {kind}; allowed: parameters of the module")
            if name in group_of:
                raise ValueError(f"groups[{place}]: {name!r} is in groups[{group_of[name]}] too; allowed: in one group")
            group_of[name] = place
            settings[name].update(own)
    most = {key: max([base[key], *(one[key] for one in settings.values())]) for key in base}
    if base["lr"] == 0 and most["lr"] > 0:
        raise ValueError(
            f"groups: a learning rate of {most['lr']:g} where the optimizer has lr=0, which they are multiples of; "
            "allowed: a rate above 0 for the optimizer"
        )
    most["lr"] = base["lr"]
    for layer in layers:
        for name, _ in layer.parameters:
            factors = {key: value / most[key] if most[key] else 1.0 for key, value in settings[name].items()}
            layer.factors[name] = (factors["lr"], factors["weight_decay"], factors.get("momentum", 1.0))
    return dataclasses.replace(optimizer, **most)
