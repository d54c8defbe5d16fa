"""Optimisers of torch beside wrapped models: steps outside of a model, and states of one rank."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, ref

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gossipgrad.torch.training_state import check_rank, rank_of

_OPEN: WeakSet[Any] = WeakSet()  # the models that train
_watching = False


def watch(model: Any) -> None:
    """Make a step of an optimizer that would train the model's parameters beside it an error, from now on."""
    global _watching
    _OPEN.add(model)
    if not _watching:
        register_optimizer_step_pre_hook(_before_step)
        _watching = True


def unwatch(model: Any) -> None:
    """End watch: the model's parameters are the user's again."""
    _OPEN.discard(model)


def ranks_of_processes() -> list[tuple[int, int]]:
    """(rank, size) of the training models that have ranks in other processes, or had some that died."""
    return [(one.rank, one.size) for one in _OPEN if one._group.team.local < one.size or one._survivor is not None]


def _before_step(optimizer: Any, *_: Any) -> None:
    """RuntimeError unless step() of the model makes this step."""
    for model in list(_OPEN):
        own = model._optimizer
        if own is optimizer:
            if not model._step.of_optimizer:
                raise RuntimeError(
                    "optimizer.step() of the optimizer that the module was wrapped with: model.step() makes this step, "
                    "and what another one changed would reach no other rank. Allowed: model.step() alone; in place "
                    "of a GradScaler autocast with bfloat16, which needs none"
                )
            continue
        names = {id(tensor): name for layer in model._layers for name, tensor in layer.parameters}
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if id(tensor) in names:
                    raise RuntimeError(
                        f"optimizer.step() of a {type(optimizer).__name__} with {names[id(tensor)]!r}, which a wrapped "
                        "model trains: model.step() makes the update, and what this step changed would reach no other "
                        "rank. Allowed: model.step() alone, of a module wrapped with gossipgrad's optimizer or this one"
                    )


def mark_states(model: Any, optimizer: Any) -> list[Any]:
    """Add the owner to the optimizer's state_dict, and check it in load_state_dict; returns handles that end it."""
    one = ref(model)

    def mark(_: Any, state: dict[str, Any]) -> None:
        owner = one()
        if owner is not None and owner.size > 1:
            state["gossipgrad"] = rank_of(owner)

    def check(_: Any, state: dict[str, Any]) -> None:
        owner = one()
        if owner is not None and "gossipgrad" in state:
            check_rank("the optimizer's state", state["gossipgrad"], owner)

    if not hasattr(optimizer, "register_state_dict_post_hook"):  # an older torch
        return []
    return [optimizer.register_state_dict_post_hook(mark), optimizer.register_load_state_dict_pre_hook(check)]
