"""Optimisers: what to compute, by name; the core computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from gossipgrad import _core, schedules
from gossipgrad.errors import choice, flag, integer, number


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent in PyTorch's form: g += weight_decay * w; v = momentum * v + g; w -= lr * v.

    nesterov: w -= lr * (g + momentum * v). The rate is used as given: with p ranks of batch b, as for a batch of p*b,
    lr * p is the usual choice (Goyal et al. 2017), and the user's. schedule: one of gossipgrad.schedules.
    """

    name: ClassVar[str] = "sgd"
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: schedules.Schedule = field(default_factory=schedules.Constant)

    def __post_init__(self) -> None:
        number("lr", self.lr, 0.0)
        number("momentum", self.momentum, 0.0, below=1.0)
        number("weight_decay", self.weight_decay, 0.0)
        flag("nesterov", self.nesterov)
        if self.nesterov and not self.momentum:
            raise ValueError(f"nesterov=True: allowed only with momentum > 0; momentum={self.momentum!r}")
        if not isinstance(self.schedule, schedules.Schedule):
            raise TypeError(f"schedule={self.schedule!r}: allowed: an object of gossipgrad.schedules")

    def settings(self) -> dict[str, Any]:
        """The keywords, with the name as "optimizer", in terms of JSON."""
        own = {key: getattr(self, key) for key in ("lr", "momentum", "weight_decay", "nesterov")}
        return {"optimizer": self.name, **own, **self.schedule.settings()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> SGD:
        """The optimiser that settings() described; other keys are ignored."""
        choice("optimizer", settings["optimizer"], [cls.name])
        kind = schedules.BY_NAME[choice("schedule", settings["schedule"], schedules.BY_NAME)]
        schedule = kind(**{one.name: settings[one.name] for one in fields(kind)})
        own = {key: settings[key] for key in ("lr", "momentum", "weight_decay", "nesterov")}
        return cls(**own, schedule=schedule)

    def options(self, total: int | None = None) -> dict[str, Any]:
        """What the core wants; `total`: the steps of training where the schedule's length is "auto"."""
        own = {key: float(getattr(self, key)) for key in ("lr", "momentum", "weight_decay")}
        schedule = self.schedule.options(total) | {"lr": float(self.lr)}
        return {"name": self.name, **own, "nesterov": self.nesterov, "schedule": schedule}

    def rate(self, step: int, total: int | None = None) -> float:
        """The learning rate at this step."""
        return _core.rate(self.options(total)["schedule"], integer("step", step, 0))
