"""Display of objects in a notebook: tables as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Text(str):
    """A text whose lines and columns stay as they are in a notebook, and at a prompt."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def cell(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def quantity(value: float, unit: str) -> str:
    """A positive value in few characters: 1.25e9 bit/s as "1.25 Gbit/s"."""
    for power, prefix in ((9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "µ")):
        if value >= 0.9995 * 10.0**power:
            return f"{value / 10.0**power:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def links(latency: float | None, bandwidth: float | None) -> str:
    """A network's latency in seconds, and bandwidth in bytes a second, in words; None and 0: no limit."""
    parts = [quantity(8 * bandwidth, "bit/s")] if bandwidth else []
    parts += [quantity(latency, "s")] if latency else []
    return f"links of {' and '.join(parts)}" if parts else "messages take no time"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as HTML: numbers on the right, all else on the left."""

    def line(values: Sequence[Any], kind: str) -> str:
        numbers = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in values]
        sides = ["right" if number or kind == "th" else "left" for number in numbers]
        cells = [
            f'<{kind} style="text-align: {side}">{html.escape(cell(value))}</{kind}>'
            for side, value in zip(sides, values, strict=True)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    body = "".join(line(row, "td") for row in rows)
    return f"<div><b>{html.escape(title)}</b><table>{top}<tbody>{body}</tbody></table></div>"


def pairs(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values as HTML."""
    return table(title, (), facts.items())
