"""Learning rates as functions of the step t = 0, 1, ...; the core computes them.

All have warmup: steps in which the rate rises linearly from warmup_start times lr to lr. The schedule proper starts
after them. `total`, if there is one, counts steps after the warm-up, and "auto" is all steps that fit will make.
A plain function of the step is a schedule as well: SGD(lr=0.1, schedule=lambda t: 0.99**t) is lr * 0.99**t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np

from gossipgrad import _core
from gossipgrad.errors import LARGEST, choice, integer, number, store
from gossipgrad.keywords import about


@dataclass(frozen=True)
class Schedule:
    """The base: a constant rate after the warm-up."""

    kind: ClassVar[str] = "constant"
    warmup: int = field(default=0, metadata=about("steps of linear rise"))
    warmup_start: float = field(default=0.0, metadata=about("where the rise starts, as a share of lr"))

    def __post_init__(self) -> None:
        store(
            self,
            warmup=integer("warmup", self.warmup, 0),
            warmup_start=number("warmup_start", self.warmup_start, 0.0, 1.0),
        )

    @property
    def auto(self) -> bool:
        """True if its length is unknown before fit."""
        return getattr(self, "total", None) == "auto"

    def settings(self) -> dict[str, Any]:
        """The keywords, with the kind as "schedule"."""
        return {"schedule": self.kind, **asdict(self)}

    def options(self, total: int | None = None) -> dict[str, Any]:
        """The core's options; `total` stands for "auto": all steps of training, warm-up included."""
        options: dict[str, Any] = {"kind": self.kind, **asdict(self)}
        if self.auto:
            if total is None:
                raise ValueError("total='auto' is known only in fit; give the schedule's total in steps")
            options["total"] = max(total - self.warmup, 1)
        return options

    def rates(self, lr: float, first: int, count: int, total: int | None = None) -> dict[str, Any]:
        """The core's description of the rates of steps first .. first + count - 1; it may cover more steps."""
        return self.options(total) | {"lr": lr}


@dataclass(frozen=True)
class Constant(Schedule):
    """lr at every step."""


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """lr * gamma^(t // every)."""

    kind: ClassVar[str] = "step"
    every: int = field(metadata=about("steps between two decays"))
    gamma: float = field(default=0.1, metadata=about("factor of a decay"))

    def __post_init__(self) -> None:
        super().__post_init__()
        store(self, every=integer("every", self.every, 1), gamma=number("gamma", self.gamma, None, 1.0, above=0.0))


def _total() -> Any:
    return field(default="auto", metadata=about("steps after the warm-up; auto: all of the run"))


def _final() -> Any:
    return field(default=0.0, metadata=about("the rate at the end"))


def _checked_total(total: Any) -> Any:
    if not isinstance(total, str):
        return integer("total", total, 1)
    if total != "auto":
        raise ValueError(f"total={total!r}: allowed: 'auto', or a number of steps")
    return str(total)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """From lr to final in half a cosine over `total` steps, then final (Loshchilov and Hutter 2017)."""

    kind: ClassVar[str] = "cosine"
    total: int | Literal["auto"] = _total()
    final: float = _final()

    def __post_init__(self) -> None:
        super().__post_init__()
        store(self, total=_checked_total(self.total), final=number("final", self.final, 0.0, LARGEST))


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """final + (lr - final) * (1 - t/total)^power over `total` steps, then final."""

    kind: ClassVar[str] = "polynomial"
    total: int | Literal["auto"] = _total()
    power: float = field(default=1.0, metadata=about("exponent"))
    final: float = _final()

    def __post_init__(self) -> None:
        super().__post_init__()
        store(
            self,
            total=_checked_total(self.total),
            power=number("power", self.power, above=0.0),
            final=number("final", self.final, 0.0, LARGEST),
        )


@dataclass(frozen=True, kw_only=True)
class Plateau(Schedule):
    """lr, times `factor` whenever `monitor` has not been better for `patience` epochs; never below min_lr.

    monitor    a name in the epoch's record, dotted, as "validation.accuracy"; None: "validation.loss" if there is
               validation, else "train_loss".
    factor     0 < factor < 1.
    min_delta  better means better by more than this.
    cooldown   epochs after a reduction in which none counts as without progress.
    mode       "min" or "max" is better; None: by the name.

    As Keras's ReduceLROnPlateau: fit adds a gossipgrad.callbacks.ReduceOnPlateau, which can be used by itself too.
    """

    kind: ClassVar[str] = "plateau"
    monitor: str | None = field(
        default=None,
        metadata=about(
            "number of an epoch's record that is to get better", default="the validation loss", metavar="NAME", read=str
        ),
    )
    factor: float = field(default=0.1, metadata=about("what the rate is multiplied by where nothing gets better"))
    patience: int = field(default=10, metadata=about("epochs without progress before that"))
    min_delta: float = field(default=0.0, metadata=about("smallest progress that counts"))
    cooldown: int = field(default=0, metadata=about("epochs after a reduction that do not count"))
    min_lr: float = field(default=0.0, metadata=about("smallest rate"))
    mode: Literal["min", "max"] | None = field(
        default=None, metadata=about("what is better", default="by the name of the number")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.monitor is not None and not isinstance(self.monitor, str):
            raise TypeError(f"monitor={self.monitor!r}: allowed: a name in an epoch's record, or None")
        store(
            self,
            factor=number("factor", self.factor, above=0.0, below=1.0),
            patience=integer("patience", self.patience, 1),
            min_delta=number("min_delta", self.min_delta, 0.0),
            cooldown=integer("cooldown", self.cooldown, 0),
            min_lr=number("min_lr", self.min_lr, 0.0, LARGEST),
        )
        choice("mode", self.mode, (None, "min", "max"))

    def options(self, total: int | None = None) -> dict[str, Any]:
        """A constant rate after the warm-up; the trainer changes it between epochs."""
        return {"kind": "constant", "warmup": self.warmup, "warmup_start": self.warmup_start}


@dataclass(frozen=True, kw_only=True)
class Function(Schedule):
    """lr * factor(t) for a function of the step after the warm-up; schedule=f is short for it.

    Python calls it for each step of the beginning epoch; all ranks need the same function. A checkpoint holds its
    name alone: to resume, make the trainer with the function again.
    """

    kind: ClassVar[str] = "function"
    factor: Callable[[int], float]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.factor):
            raise TypeError(f"factor={self.factor!r}: allowed: a function of the step")

    @property
    def name(self) -> str:
        """The function's name, for reports."""
        return str(getattr(self.factor, "__qualname__", type(self.factor).__qualname__))

    def settings(self) -> dict[str, Any]:
        warmup = {"warmup": self.warmup, "warmup_start": self.warmup_start}
        return {"schedule": self.kind, "schedule_function": self.name, **warmup}

    def options(self, total: int | None = None) -> dict[str, Any]:
        """The rates before any step is made: constant."""
        return {"kind": "constant", "warmup": self.warmup, "warmup_start": self.warmup_start}

    def rates(self, lr: float, first: int, count: int, total: int | None = None) -> dict[str, Any]:
        return {
            "kind": "table",
            "first": first,
            "values": np.array([self._at(lr, t) for t in range(first, first + count)]),
        }

    def _at(self, lr: float, step: int) -> float:
        if step < self.warmup:
            return _core.rate(self.options() | {"lr": lr}, step)
        t = step - self.warmup
        return lr * number(f"schedule: {self.name}({t})", self.factor(t), 0.0)


def of(given: Any) -> Schedule:
    """The schedule that a user gave: one of these, or a function."""
    if isinstance(given, Schedule):
        return given
    if callable(given) and not isinstance(given, type):
        return Function(factor=given)
    allowed = ", ".join(f"gossipgrad.schedules.{c.__name__}(...)" for c in BY_NAME.values())
    raise TypeError(f"schedule={given!r}: allowed: {allowed}, or a function of the step")


def _lost(name: str) -> Callable[[int], float]:
    """A placeholder for a function that a checkpoint only names."""

    def lost(step: int) -> float:
        raise ValueError(
            f"the learning rate was a function, {name}, which a checkpoint cannot hold; to train on, make a "
            "Trainer with optimizer=...(schedule=that function) and call fit(resume=...)"
        )

    lost.__qualname__ = name
    return lost


# The command line's; a Function has no form there.
BY_NAME: dict[str, type[Schedule]] = {c.kind: c for c in (Constant, StepDecay, Cosine, Polynomial, Plateau)}


def from_settings(settings: Mapping[str, Any]) -> Schedule:
    """The schedule of a settings() dict; other keys are ignored."""
    if settings["schedule"] == Function.kind:
        warmup = {key: settings[key] for key in ("warmup", "warmup_start")}
        return Function(factor=_lost(settings["schedule_function"]), **warmup)
    kind = BY_NAME[choice("schedule", settings["schedule"], BY_NAME)]
    return kind(**{one.name: settings[one.name] for one in fields(kind)})


def by_name(kind: str, **options: Any) -> Schedule:
    """The schedule of this kind with these keywords; ValueError lists the kinds, or names a keyword that it lacks."""
    choice("schedule", kind, BY_NAME)
    made = BY_NAME[kind]
    allowed = [field.name for field in fields(made)]
    for key in options:
        if key not in allowed:
            raise ValueError(f"{key}: not an option of schedule={kind!r}; it has {', '.join(allowed)}")
    if kind == "step" and "every" not in options:
        raise ValueError("schedule='step' wants every, the steps between two decays")
    return made(**options)
