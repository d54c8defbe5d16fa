"""The consensus of the ranks as a state_dict, and one training state for all ranks: the means of their states."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossipgrad.launch import agreement
from gossipgrad.torch.group import Arrays, Group
from gossipgrad.torch.modules import original
from gossipgrad.torch.training_state import COMMON

_CHUNK = 1 << 20  # numbers of each rank gathered at once


def mean_arenas(group: Group) -> dict[str, Arrays]:
    """The consensus weights, and the means over the ranks of common arenas, by name. Collective, at rest."""
    result: dict[str, Arrays] = {"weight": group.core.consensus_weights()}
    for name, kind in group.core.arenas().items():
        if kind in COMMON:
            own = [group.core.arena(name, rank) for rank in range(len(group.layers))]
            result[name] = {key: mean_of_ranks(group, [one[key] for one in own]) for key in own[0]}
    return result


def mean_state_dict(model: Any) -> dict[str, Any]:
    """The module's state_dict with the consensus weights; copies. Collective, at rest."""
    group, first = model._group, original(model._group.members[0].module)
    consensus = group.core.consensus_weights()
    for statistic, change in _mean_pending(model).items():
        consensus[statistic] = consensus[statistic] + change
    name_of = {id(tensor): name for layer in model._layers for name, tensor in layer.parameters + layer.statistics}
    frozen = {id(tensor) for _, tensor in model._frozen}
    of_first = first.state_dict(keep_vars=True)
    result: dict[str, Any] = {}
    for key, tensor in original(model.module).state_dict(keep_vars=True).items():
        name = name_of.get(id(tensor))
        if name is not None:
            result[key] = torch.from_numpy(consensus[name].copy()).view(tensor.shape).to(tensor.device)
        elif isinstance(tensor, torch.Tensor):
            value = tensor.detach() if id(tensor) in frozen else group.of_first(of_first[key])
            result[key] = value.to(tensor.device).clone()
        else:
            result[key] = copy.deepcopy(of_first[key])  # as of get_extra_state
    return result


def _mean_pending(model: Any) -> dict[str, Any]:
    """Mean over the ranks of the statistics' changes since their last exchange. Collective."""
    own: list[dict[str, Any]] = []
    for one in model._together():
        own.append({})
        for layer in one._layers:
            if layer.statistics:
                changes = one._step.pending.get(layer.key) or [torch.zeros_like(b) for _, b in layer.statistics]
                named = zip(layer.statistics, changes, strict=True)
                own[-1] |= {name: change.detach().cpu().numpy() for (name, _), change in named}
    return {name: mean_of_ranks(model._group, [one[name] for one in own]) for name in own[0]}


def mean_of_ranks(group: Group, own: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The mean over all ranks, in the order of ranks; own: of each local rank."""
    if agreement.alone(group.team):
        return _mean_of(own)
    parts = []
    for begin in range(0, own[0].size, _CHUNK):
        data = np.ascontiguousarray(own[0].reshape(-1)[begin : begin + _CHUNK]).tobytes()
        parts.append(_mean_of([np.frombuffer(one, np.float32) for one in group.team.allgather(data)]))
    return np.concatenate(parts).reshape(own[0].shape)


def _mean_of(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    total = np.zeros(arrays[0].shape, np.float64)
    for one in arrays:
        total += one
    return (total / len(arrays)).astype(np.float32)


def mean_optimizer(group: Group, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of state_dicts of torch's optimizers, one of each local rank. Collective.

    A rank without gradients for a parameter has no state for it, and does not count in the mean.
    """
    groups = states[0]["param_groups"]
    result: dict[int, dict[str, Any]] = {}
    for place in sorted(place for one in groups for place in one["params"]):
        found = _gathered(group, [state["state"].get(place) for state in states])
        there = [one for one in found if one is not None]
        if there:
            result[place] = {key: _merged([one[key] for one in there if key in one]) for key in there[0]}
    return {"state": result, "param_groups": _gathered(group, [groups] * len(states))[0]}


def _gathered(group: Group, own: Sequence[Any]) -> list[Any]:
    """The values of all ranks, of types that torch.save can write."""
    if agreement.alone(group.team):
        return list(own)
    stream = io.BytesIO()
    torch.save(own[0], stream)
    found = agreement.gather(group.team, stream.getvalue(), "consensus_training_state")
    return [torch.load(io.BytesIO(one), map_location="cpu", weights_only=True) for one in found]


def _merged(values: Sequence[Any]) -> Any:
    """The mean of floating tensors; for anything else the first."""
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return first
    if not first.is_floating_point():
        return first.clone()
    total = torch.zeros_like(first, dtype=torch.float64)
    for one in values:
        total += one.to(first.device)
    return (total / len(values)).to(first.dtype)
