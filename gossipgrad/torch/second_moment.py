"""Adam and AdamW of torch under gossip: the second moment of the mean gradient, by gossipgrad.Adam's rule."""

from __future__ import annotations

from typing import Any

import torch

from gossipgrad import strategies


def _share(beta: float, ranks: int, updates: float) -> float:
    """The share of the gradient's square in the estimate of the mean gradient's square; the rest is the momentum's.

    A rank's gradient has variance V, its momentum k * V, the mean over the ranks V / ranks.
    """
    first = (1 - beta) / (1 - beta**updates)
    noise = first * first * (1 - beta ** (2 * updates)) / (1 - beta * beta)
    share: float = (1 / ranks - noise) / (1 - noise)
    return max(share, 0.0)


def correct(optimizer: Any, ranks: int) -> None:
    """Change the second moments so that the coming step makes them those of the mean gradient of the ranks.

    The step computes beta2 * s + (1 - beta2) * g * g. Afterwards s is to contain a * g * g + (1 - a) * n * n in place
    of g * g, with n the corrected momentum. At first gradients change faster than the momentum follows: no change.
    """
    for group in optimizer.param_groups:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
        decay = 0.0 if decoupled else float(group["weight_decay"])
        for weight in group["params"]:
            state = optimizer.state.get(weight)
            if weight.grad is None or not state or weight.is_complex():
                continue
            updates = float(state["step"]) + 1
            if beta2 == 0.0 or updates <= 2 / (1 - beta1):
                continue
            gradient = -weight.grad if group["maximize"] else weight.grad
            gradient = gradient.add(weight.detach(), alpha=decay) if decay else gradient
            moment = state["exp_avg"].lerp(gradient, 1 - beta1).div_(1 - beta1**updates)
            part = (1 - beta2) / beta2
            square, share = gradient * gradient, _share(beta1, ranks, updates)
            wanted = state["exp_avg_sq"].add_(moment.mul_(moment).sub_(square), alpha=part * (1 - share))
            # Rounding makes no root of -1e-20, also where squares lose digits (below 1e-31 in float32).
            number = torch.finfo(square.dtype)
            least = square.sub_(number.tiny / number.eps).clamp_(min=0).mul_(-part * (1 - 4 * number.eps))
            torch.maximum(wanted, least, out=wanted)


def of_mean(optimizer: Any, group: Any) -> list[Any]:
    """Correct each step of an Adam or AdamW under gossip of weights; returns handles that end it."""
    strategy = group.strategy
    gossips = isinstance(strategy, (strategies.GossipGraD, strategies.PullGossip, strategies.PushGossip))
    if not gossips or group.exchange == "gradients" or getattr(strategy, "hierarchical", False):
        return []
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return []

    def before(own: Any, *_: Any) -> None:
        if group.team.size > 1:
            with torch.no_grad():
                correct(own, group.team.size)

    return [optimizer.register_step_pre_hook(before)]
