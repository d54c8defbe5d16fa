"""Strategies: the messages between ranks, their partners and times. Each class is a description; the core does the
work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gossipgrad.errors import GONE, choice, named_keywords
from gossipgrad.strategies import every
from gossipgrad.strategies.auto import Auto, Norm, by_default, choose, few_samples
from gossipgrad.strategies.base import BY_NAME, Strategy
from gossipgrad.strategies.every import *  # noqa: F403
from gossipgrad.strategies.every import __all__ as __all__  # type: ignore[attr-defined]
from gossipgrad.strategies.gossip import EXCHANGES, Partnered
from gossipgrad.strategies.shared import COLLECTIVES, OPTIONS, WIRES
from gossipgrad.strategies.topologies import (
    TOPOLOGIES,
    Topology,
    check_permutations,
    check_topology,
    core_topology,
    read_topology,
)

__all__ += (
    "Auto",
    "BY_NAME",
    "COLLECTIVES",
    "EXCHANGES",
    "Norm",
    "Partnered",
    "TOPOLOGIES",
    "Topology",
    "WIRES",
    "by_name",
    "check_options",
    "check_permutations",
    "check_topology",
    "by_default",
    "choose",
    "core_topology",
    "few_samples",
    "from_settings",
    "named",
    "read_topology",
)

_classes = [one for one in vars(every).values() if isinstance(one, type) and issubclass(one, Strategy)]
_offered = {one.name: one for one in _classes}
for _name in OPTIONS:  # in the order of the core's rows
    BY_NAME[_name] = named_keywords(_offered[_name])


def named(name: str) -> type[Strategy]:
    """The strategy of this name, "auto" included; ValueError for another name."""
    return Auto if name == Auto.name else BY_NAME[choice("strategy", name, (*BY_NAME, Auto.name))]


def check_options(name: str, options: Iterable[str], also: Sequence[str] = ()) -> None:
    """ValueError for a name that no strategy has, or an option that is no keyword of this strategy.

    also: further options that the caller takes, beside the strategy's keywords; the error lists them.
    """
    made = named(name)
    allowed = [field.name for field in fields(made)]
    for key in options:
        if key not in allowed:
            others = [one for one, c in BY_NAME.items() if key in (field.name for field in fields(c))]
            hint = f"; {key} is one of {', '.join(others)}" if others else ""
            hint = f"; {GONE[key]}" if key in GONE else hint
            listed = ", ".join([*allowed, *also]) or "none"
            raise ValueError(f"{key}: not an option of strategy={name!r}; it has {listed}{hint}")


def by_name(name: str, **options: Any) -> Strategy:
    """The strategy of this name with these keywords; ValueError for another name, or a keyword it does not have."""
    check_options(name, options)
    return named(name)(**options)


def from_settings(settings: Mapping[str, Any]) -> Strategy:
    """The strategy of a settings() dict; other keys are ignored, and missing ones keep their defaults."""
    made = BY_NAME[choice("strategy", settings["strategy"], BY_NAME)]
    if settings.get("mix", "displacement") != "displacement":
        raise ValueError(f"mix={settings['mix']!r}: {GONE['mix']}")
    return made(**{field.name: settings[field.name] for field in fields(made) if field.name in settings})
