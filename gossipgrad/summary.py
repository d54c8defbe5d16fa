"""What a network is made of, as a table."""

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
    """How many numbers the tensors have that are trained, or are not."""
    return sum(math.prod(shape) for _, shape, role in graph.parameters() if (role != STATISTIC) == trained)


def _shapes(several: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, several))


def text(
    name: str,
    graph: _core.Graph,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
    frozen: int = 0,
) -> show.Text:
    """A row a layer, and what the network is in all. Multiply-adds and bytes are those of one sample.

    frozen: how many of the numbers that gradients are of have a learning rate of 0.
    """
    rows: list[tuple[str, ...]] = [_HEAD]
    nodes: list[dict[str, Any]] = graph.nodes()
    macs = activations = 0
    for node in nodes:
        sources = ", ".join(nodes[i]["name"] for i in node["inputs"])
        size = 4 * math.prod(node["shape"])
        macs += node["macs"]
        activations += size
        shape = " x ".join(map(str, node["shape"]))
        numbers = (f"{node[key]:,}" for key in ("parameters", "macs"))
        rows.append((node["name"], node["kind"], sources, shape, *numbers, f"{size:,}"))
    trained, statistics = count(graph, True), count(graph, False)
    rows.append(("total", "", "", "", f"{trained + statistics:,}", f"{macs:,}", f"{activations:,}"))
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
