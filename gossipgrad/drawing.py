"""Parts of pictures by matplotlib: a transparent figure, colours, axes with enough numbers, names at the ends of lines.

The colours read on white and on black. plots draws with these.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from gossipgrad.state.files import write_atomically

Path = str | os.PathLike[str]

# ---- colours, titles, axes

# Each has a contrast of 3.6 or more with white, and with the dark grey of dark pages.
COLOURS = ("#2a7fc9", "#d55e00", "#2f8f2f", "#d13d7d", "#7d6ce0", "#b07d00")
INK = "#7a7a7a"  # text and axes
DASHES = ("-", "--", ":", "-.", (0, (1, 4)))


def colour(i: int) -> str:
    """One of COLOURS, in turns."""
    return COLOURS[i % len(COLOURS)]


def panels(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """A figure of this size in inches, and its panels; one alone is no array. ImportError: no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots want matplotlib: pip install 'gossipgrad[plot]'") from error

    class Picture(Figure):
        """A figure that a notebook shows by itself, with or without pyplot."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=80)
            return file.getvalue()

    figure = Picture(figsize=(width, height), layout="constrained", facecolor="none")
    figure.ends = []  # type: ignore[attr-defined]
    made = figure.subplots(rows, columns, squeeze=False)
    for axes in made.flat:
        axes.set_facecolor("none")
        axes.tick_params(which="both", color=INK, labelcolor=INK)
        for side, spine in axes.spines.items():
            spine.set_color(INK)
            spine.set_visible(side in ("left", "bottom"))
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
            text.set_color(INK)
    return figure, made[0, 0] if made.size == 1 else made.flatten()


def check_format(argument: str, path: Path) -> None:
    """ValueError unless pictures can be written in the format of the path's extension; ImportError: no matplotlib."""
    figure, _ = panels(1, 1)
    formats = figure.canvas.get_supported_filetypes()
    extension = os.path.splitext(os.fspath(path))[1][1:]
    if extension and extension.lower() not in formats:
        raise ValueError(
            f"{argument} {os.fspath(path)}: a picture of format {extension!r} cannot be written; allowed: "
            + ", ".join(f".{one}" for one in sorted(formats))
        )


def finish(figure: Any, path: Path | None, title: str = "") -> Any:
    """Write the title and the lines' names; the figure, which is written to the path if there is one."""
    if title:
        width = int(12 * figure.get_figwidth())  # characters of a line
        whole = [
            "; ".join(part.replace(" ", _STAYS) if len(part) < width else part for part in line.split("; "))
            for line in title.split("\n")
        ]
        text = "\n".join(part for line in whole for part in textwrap.wrap(line, width))
        figure.suptitle(text.replace(_STAYS, " "), fontsize=9.5, color=INK)
    if path is not None:
        check_format("path", path)
    _name_lines(figure)
    if path is not None:
        name, extension = os.path.splitext(os.fspath(path))
        extension = extension or f".{figure.canvas.get_default_filetype()}"
        file = io.BytesIO()
        figure.savefig(file, format=extension[1:], dpi=120)
        write_atomically(name + extension, file.getvalue())
    return figure


_STAYS = "\u00a0"  # a space at which no line ends


def note(axes: Any, text: str) -> None:
    """A remark above the panel."""
    axes.set_title(text, fontsize=8.5, loc="left", color=INK)


def grid(axes: Any, axis: str = "both") -> None:
    """Thin lines at the numbers."""
    axes.grid(axis=axis, color=INK, alpha=0.25, lw=0.6)
    axes.set_axisbelow(True)


def longer(axis: Any, share: float) -> None:
    """Extend an axis beyond its end, so that its present span takes this share of it."""
    turn = axis.get_transform()
    low, high = turn.transform(axis.get_view_interval())
    far = turn.inverted().transform([low + (high - low) / share])[0]
    axis.axes.set(**{f"{axis.axis_name}lim": (axis.get_view_interval()[0], far)})


_PARTS = ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 4.0, 6.0, 8.0))


def numbers(low: float, high: float) -> list[float]:
    """At least four round numbers from low to high, both positive, evenly on a logarithmic axis if it can be."""
    from matplotlib.ticker import MaxNLocator

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    powers = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
    if len(powers) >= 4:
        return powers[:: math.ceil(len(powers) / 8)]
    for parts in _PARTS:
        places = [part * 10.0**decade for decade in decades for part in parts]
        places = [place for place in places if low <= place <= high]
        if 4 <= len(places) <= 9:
            return places
    for most in range(4, 10):
        places = [float(place) for place in MaxNLocator(most).tick_values(low, high) if low <= place <= high]
        if len(places) >= 4:
            break
    return places


def number(value: float, _: Any = None) -> str:
    """The text of a number at an axis: with a power of ten if it is long."""
    if value <= 0 or 1e-3 <= value < 1e5:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    part = f"{value / 10.0**exponent:g}"
    return f"$10^{{{exponent}}}$" if part == "1" else f"${part}\\cdot10^{{{exponent}}}$"


def log(axis: Any) -> None:
    """A logarithmic axis with enough plain numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(FixedLocator(numbers(*axis.get_view_interval())))
    axis.set_major_formatter(FuncFormatter(number))
    axis.set_minor_formatter(NullFormatter())


def log_with_zero(axes: Any, values: Iterable[float]) -> None:
    """A logarithmic y axis; if some of the values are zero, that has zero as well."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values = list(values)
    positive = [value for value in values if value > 0]
    if not positive:
        axes.set_ylim(-0.05, 1)
    elif len(positive) == len(values):
        log(axes.yaxis)
    else:
        least, top = 10.0 ** math.floor(math.log10(min(positive))), 2 * max(positive)
        axes.set_yscale("symlog", linthresh=least)
        axes.set_ylim(-0.2 * least, top)
        axes.yaxis.set_major_locator(FixedLocator([0, *numbers(least, top)]))
        axes.yaxis.set_major_formatter(FuncFormatter(number))
        axes.yaxis.set_minor_locator(NullLocator())


def legend(axes: Any) -> None:
    """A legend above the panel, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    look = {
        "loc": "lower left",
        "bbox_to_anchor": (0, 1),
        "ncols": 4,
        "frameon": False,
        "labelcolor": INK,
        "handletextpad": 0.4,
    }
    for handle in axes.legend(handles, labels, fontsize=8, borderaxespad=0.2, columnspacing=1, **look).legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([24])  # sizes in the panel mean something


# ---- names at the ends of lines


def name_end(axes: Any, name: str, colour: str, x: float, y: float) -> None:
    """Name the line that ends at (x, y)."""
    if name:
        axes.figure.ends.append((axes, name, colour, x, y))


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights near to the wanted ones, which ascend: from low to high, each at least `gap` above the one before."""
    blocks: list[tuple[float, int]] = []  # (mean of wanted - i * gap, count): isotonic regression by pooling
    for i, height in enumerate(wanted):
        mean, count = height - i * gap, 1
        while blocks and blocks[-1][0] >= mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    top = high - (len(wanted) - 1) * gap
    flat_ = [max(low, min(mean, top)) for mean, count in blocks for _ in range(count)]
    return [height + i * gap for i, height in enumerate(flat_)]


def _name_lines(figure: Any) -> None:
    """Write the lines' names in a strip that each panel gets at its right, and join them with the lines' ends."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator, NullLocator

    if not figure.ends:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the panels keep these sizes
    points = figure.dpi / 72
    for axes in dict.fromkeys(one[0] for one in figure.ends):
        box = axes.get_window_extent()

        def height_of(end: Any, axes: Any = axes, box: Any = box) -> float:
            return float(axes.transData.transform(end[3:])[1] - box.y0)

        ends = sorted((one for one in figure.ends if one[0] is axes), key=height_of)
        size = min(8.5, 0.75 * box.height / len(ends) / points)
        texts = []
        for _, name, colour, *place in ends:
            join = {"arrowstyle": "-", "color": colour, "lw": 0.8, "ls": ":", "relpos": (0, 0.5), "shrinkA": 1}
            look = {"color": colour, "fontsize": size, "va": "center", "arrowprops": {**join, "shrinkB": 3}}
            texts.append(axes.annotate(name, place, (0, 0), textcoords="axes fraction", **look))
        extents = [Text.get_window_extent(text) for text in texts]
        wide, high = 1.04 * max(one.width for one in extents), 1.05 * max(one.height for one in extents)
        shown = axes.get_xlim()
        ticks = [place for place in axes.get_xticks() if shown[0] <= place <= shown[1]]
        longer(axes.xaxis, 1 - min((wide + 14 * points) / box.width, 0.6))
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        heights = apart([height_of(end) for end in ends], high, high / 2, box.height - high / 2)
        for text, height in zip(texts, heights, strict=True):
            text.xyann = (1 - wide / box.width, height / box.height)
        low, top = axes.get_ylim()
        axes.grid(visible=False, axis="y")  # lines of the grid end where the names begin
        axes.hlines([y for y in axes.get_yticks() if low <= y <= top], *shown, color=INK, alpha=0.25, lw=0.6, zorder=0)
        axes.set_ylim(low, top)
    figure.ends.clear()
