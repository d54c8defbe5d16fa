"""SyncBatchNorm on several ranks: a batch is normalised by the statistics of all ranks' samples.

The forward pass adds count, sum and sum of squares of each channel over the ranks, the backward pass the sums of the
gradient and of its product with the normalised input. Sums are made in float64, in the order of ranks, so all ranks
have the same bits. Ranks may have different numbers of samples, or none.

All ranks must make the same passes through it. So it is refused for strategies whose replicas differ, and for the ranks
of a virtual cluster, because these run one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from gossipgrad import _core
from gossipgrad.launch import agreement, stall
from gossipgrad.strategies import BY_NAME, Strategy
from gossipgrad.team import Team
from gossipgrad.torch.modules import original

Sums = NDArray[np.float64]
_INSTEAD = (
    "BatchNorm, whose running statistics are exchanged as weights; or GroupNorm or LayerNorm, which need no other "
    "samples"
)


def strategies_that_synchronise() -> str:
    """Their names, for a message."""
    return ", ".join(name for name, kind in BY_NAME.items() if not kind.replicas_differ)


def _parts(module: Any) -> list[tuple[str, Any]]:
    """All SyncBatchNorm modules, by path; torch.jit's have the class's name alone."""
    return [
        (path or "module", part)
        for path, part in original(module).named_modules()
        if isinstance(part, torch.nn.SyncBatchNorm) or getattr(part, "original_name", "") == "SyncBatchNorm"
    ]


def check_synchronised(module: Any, strategy: Strategy, ranks: int, virtual: bool) -> None:
    """ValueError for a SyncBatchNorm whose statistics the ranks cannot share."""
    for path, part in _parts(module) if ranks > 1 else ():
        where = f"{path}: is a SyncBatchNorm, whose statistics"
        if virtual:
            raise ValueError(
                f"{where} would be each rank's own on {ranks} ranks of a virtual cluster: one runs at a time, and "
                f"none can wait for the others in a forward pass. Allowed: ranks of mpiexec; {_INSTEAD}"
            )
        if strategy.replicas_differ:
            raise ValueError(
                f"{where} need all {ranks} ranks in every pass, while strategy={strategy.name!r} lets them differ. "
                f"Allowed: a strategy that averages gradients ({strategies_that_synchronise()}); {_INSTEAD}"
            )
        if getattr(type(part), "forward", None) is not torch.nn.SyncBatchNorm.forward:
            raise ValueError(
                f"{where} would be each rank's own on {ranks} ranks, since its class, {type(part).__name__}, has a "
                f"forward pass of its own. Allowed: torch.nn.SyncBatchNorm itself, not scripted; {_INSTEAD}"
            )


def synchronise(module: Any, team: _core.Team) -> list[_Synchronised]:
    """Give these modules the statistics of all ranks from now on; returns handles that end it."""
    return [_Synchronised(path, part, team) for path, part in _parts(module)] if team.size > 1 else []


class _Synchronised:
    """Replaces the forward pass of one SyncBatchNorm. A copy of the module, or its pickle, has torch's again."""

    def __init__(self, path: str, part: Any, team: _core.Team) -> None:
        self._path, self._part, self._team = path, part, team
        self._training = torch.compiler.disable(self._normalised)  # messages cannot be part of a graph
        part.forward = self

    def remove(self) -> None:
        """Restore torch's forward pass."""
        self._part.__dict__.pop("forward", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (torch.nn.SyncBatchNorm.forward, self._part)

    def __call__(self, given: Any) -> Any:
        return self._training(given) if self._part.training else torch.nn.SyncBatchNorm.forward(self._part, given)

    def _normalised(self, given: Any) -> Any:
        part = self._part
        part._check_input_dim(given)
        tracks = part.track_running_stats and part.running_mean is not None
        if part.track_running_stats:
            part.num_batches_tracked.add_(1)
        mean, variance, count = _statistics(given.detach(), self._sum("forward"))
        if count <= 1:
            raise ValueError(
                f"{self._path}: {count:g} values a channel on all ranks together, input shape {tuple(given.shape)} on "
                "this one; allowed: more than 1 when training"
            )
        if tracks:
            factor = 1.0 / part.num_batches_tracked.item() if part.momentum is None else part.momentum
            with torch.no_grad():
                part.running_mean.lerp_(mean.to(part.running_mean), factor)
                part.running_var.lerp_((variance * (count / (count - 1))).to(part.running_var), factor)
        return _Normalise.apply(given, part.weight, part.bias, mean, variance, count, part.eps, self._sum("backward"))

    def _sum(self, way: str) -> Callable[[Sums], Sums]:
        """A function that returns the sum of the ranks' values in this pass."""
        call = f"{way} pass of {self._path}, a SyncBatchNorm"

        def of_all(own: Sums) -> Sums:
            with stall.within(call):
                with agreement.agreed(self._team, call) as one:
                    one.facts["values"] = own.size
                (total,) = Team.around(self._team)._reduced([own], np.add)
            return np.asarray(total)

        return of_all


def _axes(of: Any) -> list[int]:
    """All axes except that of the channels."""
    return [axis for axis in range(of.dim()) if axis != 1]


def _along(values: Any, like: Any) -> Any:
    """A value a channel, in a shape that broadcasts over an input."""
    return values.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))


def _wide(tensor: Any) -> Any:
    """The tensor in float32 at least, the type of all computations here."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _split(sums: Sums, like: Any) -> tuple[Any, Any]:
    """Two sums a channel."""
    first, second = torch.from_numpy(sums).to(like.device).chunk(2)
    return first, second


def _statistics(given: Any, of_all: Callable[[Sums], Sums]) -> tuple[Any, Any, float]:
    """Mean, variance and values of each channel over all ranks; in float64."""
    channels = given.size(1)
    own = np.zeros(1 + 2 * channels)
    own[0] = given.numel() // channels
    if own[0]:
        variance, mean = (one.double() for one in torch.var_mean(_wide(given), _axes(given), correction=0))
        own[1:] = own[0] * torch.cat([mean, variance + mean * mean]).cpu().numpy()
    total = of_all(own)
    count = float(total[0])
    mean, squares = _split(total[1:] / max(count, 1.0), given)
    return mean, (squares - mean * mean).clamp_(min=0), count


class _Normalise(torch.autograd.Function):  # type: ignore[misc]
    """(x - mean) / sqrt(variance + eps) * weight + bias, whose mean and variance are functions of all ranks' x."""

    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, count: float, eps: float, of_all: Any
    ) -> Any:
        single = _wide(x).dtype
        mean, variance = mean.to(single), variance.to(single)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.count, ctx.eps, ctx.of_all = count, eps, of_all
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Any) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        dtype, x, dy = x.dtype, _wide(x), _wide(dy)
        inverse = (variance.double() + ctx.eps).rsqrt()
        centred = x - _along(mean, x)
        shift = dy.sum(_axes(dy), dtype=torch.float64)
        scale = (dy * centred).sum(_axes(dy), dtype=torch.float64) * inverse
        dx = None
        if ctx.needs_input_grad[0]:
            shifts, scales = _split(ctx.of_all(torch.cat([shift, scale]).cpu().numpy()) / ctx.count, x)
            factor = inverse if weight is None else inverse * weight.double()
            dx = torch.addcmul(dy - _along(shifts, x), centred, _along(-scales * inverse, x))
            dx = dx.mul_(_along(factor, x)).to(dtype)
        needs = ctx.needs_input_grad
        return (
            dx,
            scale.to(weight.dtype) if needs[1] else None,
            shift.to(weight.dtype) if needs[2] else None,
            *[None] * 5,
        )
