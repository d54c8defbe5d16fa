"""The layers of a network, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gossipgrad import _core, show

STATISTIC = "statistic"  # the role of a tensor that is not trained

_HEAD = ("layer", "kind", "from", "output", "parameters", "multiply-adds", "bytes")
_LEFT = 4  # columns of text; the others are numbers
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def amount(bytes_: int) -> str:
    """Bytes in the unit that fits: "3.1 MiB"."""
    for unit, name in _UNITS:
        if bytes_ >= unit:
            return f"{bytes_ / unit:.1f} {name}"
    return f"{bytes_} bytes"


def _lines(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = []
    for row in rows:
        cells = [
            one.ljust(w) if i < _LEFT else one.rjust(w) for i, (one, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def count(graph: _core.Graph, trained: bool) -> int:
    """The numbers in trained tensors, or in the others."""
    return sum(math.prod(shape) for _, shape, role in graph.parameters() if (role != STATISTIC) == trained)


def _costs(node: dict[str, Any]) -> tuple[int, int]:
    """(multiply-adds, bytes of the output) of a sample."""
    return node["macs"], 4 * math.prod(node["shape"])


def _columns(graph: _core.Graph) -> list[tuple[str, ...]]:
    """Output, parameters, multiply-adds and bytes of each layer, and of all."""
    nodes = graph.nodes()
    columns = []
    for node in nodes:
        numbers = (node["parameters"], *_costs(node))
        columns.append((" x ".join(map(str, node["shape"])), *(f"{one:,}" for one in numbers)))
    totals = (count(graph, True) + count(graph, False), *(sum(one) for one in zip(*map(_costs, nodes), strict=True)))
    return [*columns, ("", *(f"{one:,}" for one in totals))]


def _shapes(several: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, several))


def text(
    name: str,
    graph: _core.Graph,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
    frozen: int = 0,
    before: _core.Graph | None = None,
) -> show.Text:
    """A row a layer, and totals of the network. Multiply-adds and bytes are those of one sample.

    frozen: the count of numbers with gradients but a learning rate of 0.
    before: the graph before it shrunk: changes are shown as old -> new.
    """
    rows: list[tuple[str, ...]] = [_HEAD]
    nodes: list[dict[str, Any]] = graph.nodes()
    columns = _columns(graph)
    if before is not None:
        columns = [
            tuple(now if now == then else f"{then} -> {now}" for then, now in zip(*both, strict=True))
            for both in zip(_columns(before), columns, strict=True)
        ]
    for node, cells in zip(nodes, columns, strict=False):
        rows.append((node["name"], node["kind"], ", ".join(nodes[i]["name"] for i in node["inputs"]), *cells))
    rows.append(("total", "", "", *columns[-1]))
    macs, activations = (sum(one) for one in zip(*map(_costs, nodes), strict=True))
    trained, statistics = count(graph, True), count(graph, False)
    lines = _lines(rows)
    rule = "-" * max(map(len, lines))
    counts = f"{trained - frozen:,} trained ({amount(4 * (trained - frozen))})"
    counts += f", {frozen:,} frozen by lr=0 ({amount(4 * frozen)})" if frozen else ""
    counts += f", {statistics:,} statistics that are not ({amount(4 * statistics)})" if statistics else ""
    foot = [
        f"parameters: {counts}",
        f"one sample: {macs:,} multiply-adds forward, {amount(activations)} of outputs "
        "(a trainer lets layers share memory)",
    ]
    head = f"{name}: input {_shapes(inputs)}, output {_shapes(outputs)}"
    return show.Text("\n".join([head, lines[0], rule, *lines[1:-1], rule, lines[-1], *foot]))
