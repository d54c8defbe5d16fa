"""Learning rates as functions of the step t = 0, 1, ...; the core computes them.

All take warmup (steps in which the rate rises linearly from warmup_start times lr to lr; the schedule proper starts
after them). Where there is a `total`, it is in steps after the warm-up, and "auto" is all steps that fit will make.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

from gossipgrad.errors import choice, integer, number, store
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
        """Is its length not known before fit?"""
        return getattr(self, "total", None) == "auto"

    def settings(self) -> dict[str, Any]:
        """The keywords, with the kind as "schedule"."""
        return {"schedule": self.kind, **asdict(self)}

    def options(self, total: int | None = None) -> dict[str, Any]:
        """What the core wants; `total` stands for "auto": all steps of training, warm-up included."""
        options: dict[str, Any] = {"kind": self.kind, **asdict(self)}
        if self.auto:
            if total is None:
                raise ValueError("total='auto' is known only in fit; give the schedule's total in steps")
            options["total"] = max(total - self.warmup, 1)
        return options


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
        store(self, total=_checked_total(self.total), final=number("final", self.final, 0.0))


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
            final=number("final", self.final, 0.0),
        )


BY_NAME: dict[str, type[Schedule]] = {c.kind: c for c in (Constant, StepDecay, Cosine, Polynomial)}


def by_name(kind: str, **options: Any) -> Schedule:
    """The schedule of this kind with these keywords; ValueError names the kinds there are, or a keyword it lacks."""
    choice("schedule", kind, BY_NAME)
    made = BY_NAME[kind]
    allowed = [field.name for field in fields(made)]
    for key in options:
        if key not in allowed:
            raise ValueError(f"{key}: not an option of schedule={kind!r}; it has {', '.join(allowed)}")
    if kind == "step" and "every" not in options:
        raise ValueError("schedule='step' wants every, the steps between two decays")
    return made(**options)
