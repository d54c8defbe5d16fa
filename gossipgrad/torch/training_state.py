"""The content of Wrapped.training_state, and checks of a state before loading."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gossipgrad.errors import LARGEST, integer, number, warn
from gossipgrad.torch.modules import original, outside_of_state
from gossipgrad.training import arenas

Shapes = Mapping[str, tuple[int, ...]]
_MADE = "allowed: what training_state() gave"
# Arenas whose mean is in a state of all ranks; arenas of one rank, or of two partners, begin at zero.
COMMON = ("moment", "outer", "outer moment")


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(one) for name, one in arrays.items()}


def arrays_of(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays with the tensors' values."""
    return {name: one.detach().cpu().numpy() for name, one in tensors.items()}


def state_of(
    model: Any,
    owner: dict[str, Any],
    arenas: Mapping[str, Mapping[str, Any]],
    module: dict[str, Any],
    own: dict[str, Any],
) -> dict[str, Any]:
    """The training state of a model: of its rank, or of all ranks."""
    group = model._group
    return {
        **owner,
        "step": model.steps,
        "push_sum_since": group.core.push_sum_since,
        "settings": group.settings(),
        "order": [layer.key for layer in model._layers],
        "learning_rate": group.rate,
        "arenas": {arena: _tensors(of) for arena, of in arenas.items()},
        "consensus": _tensors(group.core.consensus_weights()),
        "module": module,
        "buffers": copies_of(outside_of_state(model.module)),
        **own,
    }


def rank_of(model: Any) -> dict[str, Any]:
    """The owner of a state."""
    return {"rank": model.rank, "size": model.size}


def check_rank(what: str, state: Any, here: Any) -> None:
    """ValueError for a state of another rank, or number of ranks, because it holds that rank's own values."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{what}: is of {_shown(state)}; {_MADE}")
    try:
        rank, size = (integer(f"{what}: {key}", state.get(key), 0) for key in ("rank", "size"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if (rank, size) != (here.rank, here.size):
        raise ValueError(
            f"{what}: is that of rank {rank} of {size}, here is rank {here.rank} of {here.size}; each rank's moments "
            "are its own. Allowed: a file a rank of training_state(), on as many ranks; or one file for all, and for "
            "any number of ranks, of consensus_training_state()"
        )


def check_owner(state: Mapping[str, Any], here: Any) -> bool:
    """True for a state of all ranks. ValueError: it is that of another rank, or of another strategy.

    A state of an earlier version lacks its owner, which a warning tells.
    """
    if not isinstance(state, Mapping) or state.get("rank", 0) is None:
        return isinstance(state, Mapping)
    if "rank" in state or "size" in state:
        check_rank("state", state, here)
    elif here.rank == 0:
        warn(
            "state: does not say of which rank and of how many it is, as it was made by an older gossipgrad. It is "
            f"right only if it is this rank's own, of {here.size} ranks; that is not checked"
        )
    own = here._group.settings()["strategy"]
    saved = _mapping("state: settings", state.get("settings", {})).get("strategy", own)
    if saved != own:
        raise ValueError(
            f"state: is of strategy {_shown(saved)}, here is {own!r}; allowed: the same. Another strategy goes on from "
            "consensus_training_state()"
        )
    return False


def copies_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of tensors, and of results of get_extra_state."""
    return {
        name: one.detach().clone() if isinstance(one, torch.Tensor) else copy.deepcopy(one)
        for name, one in values.items()
    }


def checksums_of(values: Any) -> dict[str, str]:
    """A checksum for each tensor, by name."""
    return {
        str(name): hashlib.blake2b(_values(one), digest_size=8).hexdigest()
        for name, one in _mapping("state_dict", values).items()
        if isinstance(one, torch.Tensor)
    }


def _values(tensor: Any) -> Any:
    dense = tensor.detach().cpu()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    return dense.contiguous().view(-1).view(torch.uint8).numpy()


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is a {type(value).__name__}, {_shown(value)}; {_MADE}, a dict")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_tensors(part: str, given: Any, shapes: Shapes, dtype: Any = None) -> None:
    """ValueError unless they are tensors of these shapes by these names. dtype: None, any."""
    given = _mapping(f"state: {part}", given)
    for name in [*shapes, *(str(key) for key in given if key not in shapes)]:
        there = "absent"
        if name in given:
            one = given[name]
            if not isinstance(one, torch.Tensor):
                there = f"a {type(one).__name__}, {_shown(one)}"
            elif dtype is not None and one.dtype != dtype:
                there = f"of {one.dtype}, where {dtype} is allowed, {tuple(one.shape)}"
            else:
                there = str(tuple(one.shape))
        here = str(tuple(shapes[name])) if name in shapes else "none of this name"
        if here != there:
            raise ValueError(f"state: {part}, {name!r}: {there}; this module has {here}")


def _check_optimizer(given: Any, optimizer: Any) -> None:
    """ValueError unless it is the state of such an optimizer of torch."""
    given = _mapping("state: optimizer", given)
    for key, kind in (("state", Mapping), ("param_groups", Sequence)):
        if not isinstance(given.get(key), kind):
            raise ValueError(f"state: optimizer, {key!r}: {_shown(given.get(key))}; {_MADE}")
    own = optimizer.state_dict()
    for place, group in enumerate(given["param_groups"]):
        if not isinstance(_mapping(f"state: optimizer, param_groups[{place}]", group).get("params"), Sequence):
            raise ValueError(f"state: optimizer, param_groups[{place}]: has no list of 'params'; {_MADE}")
    counts, wanted = ([len(group["params"]) for group in one["param_groups"]] for one in (given, own))
    if counts != wanted:
        raise ValueError(f"state: optimizer: groups of {counts} parameters; the optimizer has groups of {wanted}")


def _check_settings(state: Mapping[str, Any], kinds: Mapping[str, str], here: Mapping[str, Any]) -> None:
    """ValueError: an arena of the state has another meaning under the settings here, or its rate is invalid."""
    if state.get("learning_rate") is not None:
        number("state: learning_rate", state["learning_rate"], 0.0, LARGEST)
    saved = _mapping("state: settings", state.get("settings", here))
    for name in sorted(arenas.begun_anew(saved, here, kinds)):
        keys = ("optimizer",) if kinds[name] == "moment" else arenas.partner_keys(here)
        there, own = ({key: one[key] for key in keys if key in one} for one in (saved, here))
        raise ValueError(f"state: {name} is of {there}; allowed: of {own}, as here")


def check_state(
    state: Any,
    kinds: Mapping[str, str],
    settings: Mapping[str, Any],
    shapes: Shapes,
    module: Mapping[str, Any],
    buffers: Mapping[str, Any],
    optimizer: Any,
    of_all: bool,
) -> int:
    """The step of a valid state; ValueError: an invalid one, before any of it is loaded.

    kinds      of the arenas of the strategy and the optimizer, except the gradients', by name.
    settings   of the strategy and the optimizer here.
    shapes     of each arena's arrays, by name.
    module     its state_dict.
    buffers    those outside of it; a state of an earlier version has none.
    optimizer  one of torch's; None: the core's.
    of_all     it is a state of all ranks, which may have other arenas: only moments must be there.
    """
    wanted = ["step", "arenas", "consensus", "module", *(["optimizer"] if optimizer is not None else [])]
    missing = [name for name in wanted if not isinstance(state, Mapping) or name not in state]
    if missing:
        raise ValueError(f"state: has no {missing[0]!r}; {_MADE}")
    try:
        step = integer("state: step", state["step"], 0)
        integer("state: push_sum_since", state.get("push_sum_since", 0), 0, step)
    except TypeError as error:
        raise ValueError(str(error)) from None
    given = _mapping("state: arenas", state["arenas"])
    if of_all:
        wanted_here = {name for name, kind in kinds.items() if kind in ("weight", "moment")}
        missing = sorted(wanted_here - set(given))
        if missing:
            raise ValueError(f"state: has no {missing[0]!r}, which this optimizer wants; {_MADE}")
        kinds = {name: kind for name, kind in kinds.items() if name in given}
    elif set(given) != set(kinds):
        raise ValueError(
            f"state: has {sorted(map(str, given))}; this strategy and optimizer want {sorted(map(str, kinds))}"
        )
    _check_settings(state, kinds, settings)
    for name in kinds:
        _check_tensors(name, given[name], shapes, torch.float32)
    _check_tensors("consensus", state["consensus"], shapes, torch.float32)
    own = {name: tuple(one.shape) for name, one in module.items() if isinstance(one, torch.Tensor)}
    others = set(module) - set(own)  # as of get_extra_state
    of_module = _mapping("state: module", state["module"])
    _check_tensors("module", {name: one for name, one in of_module.items() if name not in others}, own)
    if "buffers" in state:
        _check_tensors("buffers", state["buffers"], {name: tuple(one.shape) for name, one in buffers.items()})
    if optimizer is not None:
        _check_optimizer(state["optimizer"], optimizer)
    return step


def checked(state: Any, model: Any) -> tuple[int, list[int]]:
    """The step of a state that fits this model, and the order of its layers; ValueError: it does not fit."""
    group, core = model._group, model._group.core
    step = check_state(
        state,
        {name: kind for name, kind in core.arenas().items() if kind != "gradient"},
        group.settings(),
        {name: one.shape for name, one in core.weights(model._local).items()},
        original(model.module).state_dict(),
        outside_of_state(model.module),
        model._optimizer if group.unfused else None,
        check_owner(state, model),
    )
    return step, order_of(state, [layer.key for layer in model._layers])


def order_of(state: Mapping[str, Any], here: Sequence[str]) -> list[int]:
    """The state's order of layers in the arenas, as their places here, if they have these keys.

    A state of an earlier version lacks it; then the current order. ValueError: of other layers.
    """
    there = state.get("order", here)
    if not isinstance(there, Sequence) or sorted(map(str, there)) != sorted(here):
        raise ValueError(f"state: order: {_shown(there)}; this module has layers of {_shown(list(here))}")
    return [here.index(key) for key in there]
