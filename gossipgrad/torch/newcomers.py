"""The state of a wrapped module that no arena has, given to a newcomer: buffers, frozen tensors, torch's optimizer."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from gossipgrad.errors import one_line
from gossipgrad.torch.modules import Layer, original, tensors_of, write


def _outside(module: Any, layers: list[Layer]) -> dict[str, Any]:
    """Tensors of the module that no arena has."""
    inside = {id(tensor) for layer in layers for _, tensor in layer.parameters + layer.statistics}
    named = tensors_of(module).items()
    return {name: one for name, one in named if id(one) not in inside and one.device.type != "meta"}


def _whole(tensor: Any) -> Any:
    """A copy in the host's memory, without the rest of a memory that the tensor is a part of."""
    own = tensor.detach().cpu()
    return own.clone(memory_format=torch.contiguous_format) if own.layout == torch.strided else own.clone()


def given(module: Any, layers: list[Layer], optimizer: Any, rate: float | None) -> bytes:
    """A donor's state, for `take`. optimizer: one of torch's, or None. rate: as set, or None.

    A state that torch cannot write is an error on the newcomer, not on the donor.
    """
    try:
        state = {
            "rate": rate,
            "tensors": {name: _whole(one) for name, one in _outside(module, layers).items()},
            "extra": {
                name: one
                for name, one in original(module).state_dict().items()
                if not isinstance(one, torch.Tensor)  # as of get_extra_state
            },
        }
        if optimizer is not None:
            own = optimizer.state_dict()
            state["optimizer"] = {name: one for name, one in own.items() if name != "gossipgrad"}  # the donor's rank
        stream = io.BytesIO()
        torch.save(state, stream)
    except Exception as error:
        stream = io.BytesIO()
        torch.save({"error": f"{type(error).__name__}: {one_line(error)}"}, stream)
    return stream.getvalue()


def take(data: bytes, module: Any, layers: list[Layer], optimizer: Any) -> float | None:
    """Takes the result of `given`, on a newcomer; returns the rate that was set.

    ValueError: the donor's state cannot be read, or lacks a tensor.
    """
    try:
        state: Mapping[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        text = one_line(error)
        raise _unreadable((text.partition("WeightsUnpickler error: ")[2] or text).partition(". ")[0]) from error
    if "error" in state:
        raise _unreadable(state["error"])
    own = _outside(module, layers)
    for name in own:
        if name not in state["tensors"]:
            raise ValueError(
                f"this newcomer cannot join: the group's module does not have {name!r}; allowed: the same buffers and "
                "frozen parameters on all ranks"
            )
    for name, tensor in own.items():
        write(tensor, state["tensors"][name])
    if state["extra"]:
        original(module).load_state_dict(state["extra"], strict=False)
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    rate: float | None = state["rate"]
    return rate


def _unreadable(why: str) -> ValueError:
    return ValueError(
        "this newcomer cannot join: the results of get_extra_state, or the state of torch's optimizer, have values "
        f"that torch.load(weights_only=True) does not read ({why}). Allowed: tensors, numbers, texts, dicts and "
        "lists of them, and classes of torch.serialization.add_safe_globals"
    )
