"""Parts of a trainer's history: what trains."""

from __future__ import annotations

from typing import Any

from gossipgrad import apoptosis
from gossipgrad.history import History
from gossipgrad.model import Model

Record = dict[str, Any]


def network(history: History, net: Model, tuning: Record, algorithms: list[Record]) -> None:
    """The network of now, and how it is computed."""
    history.tuning, history.algorithms = tuning, algorithms
    history.model = {"name": net.name, "parameters": net.parameters}


def shrinking(history: History, net: Model, born: Model, options: Record | None) -> None:
    """The layers that may shrink, and those that cannot; events are added to it. options: of apoptosis."""
    before = history.apoptosis
    history.apoptosis = {
        "options": options,
        "born": {"parameters": born.parameters, "units": born.units},
        "fixed": apoptosis.fixed(net),
        "events": before.get("events", []),
        "bound": before.get("bound", {}),
    }
