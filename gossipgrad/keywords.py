"""Metadata of dataclasses' fields, from which the command line makes its options.

A field's metadata is the result of `about`; its type is an int, float, bool, a Literal, None, or a union of these.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any


def about(
    help_: str, *, default: str | None = None, metavar: str | None = None, read: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """The metadata of a field.

    default  the meaning of None, the field's default; metavar: help's name of the value, None: by the type.
    read     makes the value from a text if the type does not determine it; ValueError, OSError: it cannot.
    """
    return {"help": help_, "default": default, "metavar": metavar, "read": read}


@dataclass
class Keyword:
    """A keyword of one or several classes: all values that any of them allows."""

    name: str
    help: str
    metavar: str | None
    read: Callable[[str], Any] | None
    types: list[type] = field(default_factory=list)  # of int, float, bool
    values: list[Any] = field(default_factory=list)  # of Literal
    defaults: dict[str, Any] = field(default_factory=dict)  # by the class's name; MISSING: required
    none_means: dict[str, str | None] = field(default_factory=dict)  # the meaning of the default None, likewise

    def allow(self, annotation: Any) -> None:
        """Add the values of a field's type."""
        if typing.get_origin(annotation) is typing.Literal:
            self.values += [one for one in typing.get_args(annotation) if one not in self.values]
        elif typing.get_origin(annotation) in (typing.Union, UnionType):
            for one in typing.get_args(annotation):
                self.allow(one)
        elif annotation in (int, float, bool):
            self.types += [annotation] if annotation not in self.types else []
        elif annotation is not NoneType:
            raise TypeError(f"{self.name}: {annotation!r} has no form on the command line; allowed: about(read=...)")

    def default(self, owner: str) -> str:
        """This class's default for reading."""
        value = self.defaults[owner]
        if value is MISSING:
            return "none, it must be given"
        if isinstance(value, tuple):
            return ",".join(map(str, value)) or "none"
        if value is None:
            return self.none_means[owner] or "none"
        if isinstance(value, bool):
            return ("on" if value else "off") if self.types == [bool] and not self.values else str(value).lower()
        return f"{value:g}" if isinstance(value, float) else str(value)


def keywords(
    makers: Mapping[str, type],
    without: tuple[str, ...] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Keyword]:
    """The keywords of these dataclasses' constructors, by name, each once, in the order of the fields.

    without: those that are left out; defaults: in place of the fields', by class and keyword. Help is the first one's.
    """
    found: dict[str, Keyword] = {}
    for owner, made in makers.items():
        hints = typing.get_type_hints(made)
        for one in fields(made):
            if one.name in without:
                continue
            if "help" not in one.metadata:
                raise TypeError(f"{made.__name__}.{one.name}: no help; allowed: field(..., metadata=about(...))")
            said = one.metadata
            word = found.setdefault(one.name, Keyword(one.name, said["help"], said["metavar"], said["read"]))
            if word.read is None:
                word.allow(hints[one.name])
            word.none_means[owner] = said["default"]
            word.defaults[owner] = (defaults or {}).get(owner, {}).get(one.name, one.default)
    return found
