"""Small SVG pictures for the documentation: bars, dots, and their colours.

A picture is one file for light and dark. On the site it lies inside its page and takes the theme's colours; elsewhere
it follows the reader's system. Text stays text, and the same figures give the same bytes, so a test can compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

# name: (the theme's variable, light, dark)
COLOURS = {
    "ink": ("--color-foreground-primary", "#111827", "#e5e7eb"),
    "muted": ("--color-foreground-secondary", "#5a5c63", "#9ca0a5"),
    "line": ("--color-background-border", "#d8dade", "#3a3d42"),
    "paper": ("--color-background-primary", "#ffffff", "#131416"),
    "gossip": ("--gg-gossip", "#2563eb", "#6ea8fe"),
    "other": ("--gg-other", "#8a8f98", "#7d828a"),
    "behind": ("--gg-behind", "#c2410c", "#fb923c"),
}
WIDTH = 480
ROW = 40


def document(height: int, title: str, body: Sequence[str], style: str = "", width: int = WIDTH) -> str:
    light, dark = (
        ";".join(f"--p-{name}:var({colour[0]},{colour[shade]})" for name, colour in COLOURS.items()) for shade in (1, 2)
    )
    fills = "".join(f"svg.gg .{name}{{fill:var(--p-{name})}}" for name in COLOURS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="system-ui,Segoe UI,Roboto,sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
        f"<style>svg.gg{{{light};max-width:100%;height:auto}}",
        f"@media(prefers-color-scheme:dark){{svg.gg{{{dark}}}}}",
        f"{fills}svg.gg .end{{text-anchor:end}}svg.gg .middle{{text-anchor:middle}}{style}</style>",
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, classes: str = "ink", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}"{more}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, classes: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" class="{classes}"/>'


@dataclass
class Bar:
    """A bar of a chart; `said` stands behind it, `low` and `high` are the ends of a thin line over it."""

    label: str
    value: float
    said: str
    kind: str = "gossip"
    low: float | None = None
    high: float | None = None


def bars(title: str, rows: Sequence[Bar], most: float, reference: tuple[float, str] | None = None) -> str:
    """Bars from 0 to `most`, each below its label; reference: a value that gets a line, and its name."""
    top, left, right = (36 if reference else 10), 4, 70
    scale = (WIDTH - left - right) / most
    height = top + ROW * len(rows)
    body = []
    for i, row in enumerate(rows):
        y = top + ROW * i
        body.append(text(left, y + 10, row.label))
        body.append(rect(left, y + 16, row.value * scale, 14, row.kind))
        ends = max(row.value, row.high or 0)
        if row.low is not None and row.high is not None:
            body.append(rect(left + row.low * scale, y + 21.5, (row.high - row.low) * scale, 3, "ink"))
        behind = left + ends * scale
        if reference:
            mark = left + reference[0] * scale
            body.append(rect(mark - 0.75, y + 14, 1.5, 18, "ink"))
            if mark - 42 < behind < mark:
                behind = mark
        body.append(text(behind + 6, y + 28, row.said, row.kind if row.kind != "other" else "muted"))
    if reference:
        mark = left + reference[0] * scale
        body.append(rect(mark - 0.75, 18, 1.5, 8, "ink"))
        body.append(
            text(mark + (4 if mark > WIDTH / 2 else -3), 13, reference[1], "muted end" if mark > WIDTH / 2 else "muted")
        )
    return document(height, title, body)


def dots(
    title: str,
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]],
    low: float,
    high: float,
    ticks: Sequence[float],
    unit: str,
    names: Sequence[tuple[str, str]],
) -> str:
    """Values of each row on one axis; a point is (value, kind). names: (kind, name), the legend."""
    top, left, right = 36, 14, 24
    scale = (WIDTH - left - right) / (high - low)
    height = top + ROW * len(rows) + 22
    body = []
    x = float(left)
    for kind, name in names:
        body.append(f'<circle cx="{x + 5:g}" cy="9" r="6" class="{kind}"/>')
        body.append(text(x + 16, 14, name))
        x += 40 + 7.5 * len(name)
    for tick in ticks:
        x = left + (tick - low) * scale
        body.append(rect(x - 0.5, top - 4, 1, height - top - 18, "line"))
        body.append(text(x, height - 6, f"{tick:g}{unit}", "muted middle"))
    for i, (label, points) in enumerate(rows):
        y = top + ROW * i
        body.append(text(left - 10, y + 10, label))
        places = [left + (value - low) * scale for value, _ in points]
        body.append(rect(min(places), y + 21.5, max(places) - min(places), 3, "line"))
        for place, (value, kind) in zip(places, points, strict=True):
            body.append(f'<circle cx="{place:g}" cy="{y + 23}" r="6" class="{kind}"/>')
            first = place == min(places)
            shade = "muted" if kind == "other" else kind
            words = f"{value:.1f}{unit}"
            body.append(text(place + (-10 if first else 10), y + 28, words, f"{shade} end" if first else shade))
    return document(height, title, body)
