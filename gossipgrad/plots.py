"""Pictures by matplotlib (pip install 'gossipgrad[plot]').

Each returns the figure, which a notebook shows; given a path, it writes it. The background is transparent, and all
colours read on white and on black. Lines are named at their ends. `histories` is a History; or a dict by name of
histories, or of lists of them, which differ in the seed: their mean is drawn, and a band from the least to the most.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossipgrad import _core, drawing, show
from gossipgrad.drawing import Path
from gossipgrad.errors import counted, flag, integer
from gossipgrad.history import History, flat
from gossipgrad.strategies import BY_NAME, Topology, check_permutations, check_topology, core_topology

Histories = History | Mapping[str, History | Sequence[History]]

# ---- partners


def partner_schedule(
    p: int,
    topology: Topology = "dissemination",
    path: Path | None = None,
    *,
    steps: int | None = None,
    rotate: bool = True,
    seed: int = 0,
    permutations: int | None = None,
) -> Any:
    """Messages between ranks: ranks from top to bottom, steps from left to right, an arrow a message.

    topology, rotate, permutations: as for GossipGraD; seed draws the places. steps None: two cycles, but at least
    ceil(log2 p) steps and at most 12.
    The arrows are those of _core.partners, which training uses.
    """
    p = integer("p", p, 1)
    name = check_topology(topology)
    few = check_permutations(permutations, name, flag("rotate", rotate)) or 0
    chosen = core_topology(name)
    stages = max(int(_core.schedule(chosen, p, rotate, seed, few)["stages"]), 1)
    shortest = max((p - 1).bit_length(), 1)
    steps = min(max(2 * stages, shortest), 12) if steps is None else integer("steps", steps, 1)
    figure, axes = drawing.panels(1.3 + 1.1 * steps, 1.2 + 0.38 * p)
    for step in range(steps + 1):
        axes.scatter([step] * p, range(p), s=36, color=drawing.INK, zorder=3)
    for step in range(steps):
        colour = drawing.colour(step % stages)
        for rank in range(p):
            to, _ = _core.partners(chosen, p, step, rank, rotate, seed, few)
            axes.plot([step, step + 1], [rank, rank], color=drawing.INK, alpha=0.4, lw=1, zorder=1)
            if to >= 0:
                style = {"arrowstyle": "-|>", "color": colour, "lw": 1.4, "shrinkA": 4, "shrinkB": 4}
                axes.annotate("", xy=(step + 1, to), xytext=(step, rank), arrowprops=style, zorder=2)
    for cycle in range(stages, steps, stages) if stages > 1 else ():
        axes.axvline(cycle, color=drawing.INK, ls=":", lw=1, zorder=0)
    turns = rotate and few != 1 and name != "random" and isinstance(name, str)
    about = f"{name if isinstance(name, str) else 'a table'}, {counted(p, 'rank')}"
    about += f", seed {seed}" if turns or name == "random" else ""
    about += f": {counted(stages, 'step')} a cycle" if name != "random" else ": other pairs in every step"
    among = f", among {few}" if few else ""
    axes.set_title(about + (f", places change after each{among}" if turns else ""), fontsize=11)
    axes.set_xticks(range(steps + 1))
    axes.set_yticks(range(p), [f"rank {r}" for r in range(p)])
    axes.set_xlabel("step")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return drawing.finish(figure, path)


# ---- histories


def _named(histories: Histories) -> dict[str, list[History]]:
    if isinstance(histories, History):
        return {"": [histories]}
    if isinstance(histories, Mapping):
        found = {name: [one] if isinstance(one, History) else one for name, one in histories.items()}
        if all(isinstance(some, (list, tuple)) and some for some in found.values()) and all(
            isinstance(one, History) for some in found.values() for one in some
        ):
            for name in found:
                if not isinstance(name, str):
                    raise TypeError(f"histories: the name {name!r}; allowed: a str")
            return {name: list(some) for name, some in found.items()}
    raise TypeError(
        f"histories is a {type(histories).__name__}; allowed: a gossipgrad.History, or a dict of them, or of lists of "
        "them, by name"
    )


def _title(named: Mapping[str, Sequence[History]]) -> str:
    """Model, ranks, strategy, links, rate and seed of the histories."""

    def found(*keys: str) -> list[Any]:
        return list(dict.fromkeys(tuple(one.settings[key] for key in keys) for one in known if keys[0] in one.settings))

    known = [one for some in named.values() for one in some if one.settings]
    models = [
        f"{one.model.get('name', 'training')}{f' on {data}' if (data := one.settings.get('dataset')) else ''}"
        for one in known
    ]
    parts = [", ".join(dict.fromkeys(models)), " and ".join(dict.fromkeys(counted(one.ranks, "rank") for one in known))]
    parts.append(", ".join(str(strategy) for (strategy,) in found("strategy")))
    parts.append(" and ".join(show.links(*pair) for pair in found("latency", "bandwidth") if any(pair)))
    for key, word in (("lr", "rate"), ("seed", "seed")):
        values = [cell for (value,) in found(key) if (cell := show.cell(value))]
        parts.append(f"{word}{'s' if len(values) > 1 else ''} {', '.join(values)}" if values else "")
    bands = "bands: least to most" if any(len(some) > 1 for some in named.values()) else ""
    return "; ".join(part for part in (*parts, bands) if part)


def _curve(runs: Sequence[History], key: str) -> Points:
    """(epoch, mean, least, most) over the runs, for the epochs in which all of them have a finite value."""
    found: dict[int, list[float]] = {}
    for history in runs:
        for record in history.epochs:
            value = flat(record).get(key)
            if value is not None and math.isfinite(value):
                found.setdefault(record["epoch"], []).append(value)
    return [(x, statistics.fmean(y), min(y), max(y)) for x, y in found.items() if len(y) == len(runs)]


Points = Sequence[tuple[float, float, float, float]]  # x, mean, least and most over the seeds


def _alike(one: Points, other: Points, height: float) -> bool:
    """True if two lines lie on each other, in a panel of this height."""
    if [point[0] for point in one] != [point[0] for point in other] or not one:
        return False
    return all(abs(a[1] - b[1]) <= 0.004 * height for a, b in zip(one, other, strict=True))


def _groups(lines: Mapping[str, Points], height: float) -> list[list[str]]:
    """The names, those of lines on each other together."""
    groups: list[list[str]] = []
    for label, points in lines.items():
        for group in groups:
            if _alike(lines[group[0]], points, height):
                group.append(label)
                break
        else:
            groups.append([label])
    return groups


def _wider(group: Sequence[str], place: int) -> float:
    """Additional width of a line, so that each of a group is seen beside those on it."""
    return min(2.2, 6 / len(group)) * (len(group) - 1 - place)


def _draw(axes: Any, curve: Points, **look: Any) -> None:
    """A line, and around it the band from the least to the most."""
    x, mean, low, high = zip(*curve, strict=True)
    axes.plot(x, mean, **look)
    if low != high:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.2, lw=0, zorder=1)


_WORDS = {"train_loss": "training", "validation.loss": "validation"}


def _lines(axes: Any, named: Mapping[str, Sequence[History]], keys: Sequence[str], what: str) -> None:
    """A colour a history, dashes for the second key."""
    names = list(named)
    found = {key: {name: curve for name, runs in named.items() if (curve := _curve(runs, key))} for key in keys}
    for key, curves in found.items():
        values = [point[1] for curve in curves.values() for point in curve]
        groups = _groups(curves, max(values, default=0.0) - min(values, default=0.0))
        for group in groups:
            for place, name in enumerate(group):
                turn, curve = keys.index(key), curves[name]
                colour = drawing.colour(names.index(name) if name else turn)
                look = {"ls": drawing.DASHES[turn], "lw": 1.5 + _wider(group, place), "marker": "o", "ms": 3}
                _draw(axes, curve, color=colour, label=name or key, **look)
                if not name:
                    drawing.name_end(axes, _WORDS.get(key, key) if len(keys) > 1 else "", colour, *curve[-1][:2])
                elif not turn or name not in found[keys[0]]:
                    drawing.name_end(axes, name, colour, *curve[-1][:2])
    if any(named) and all(found.values()) and len(keys) > 1:
        drawing.note(axes, f"solid: {_WORDS[keys[0]]}, dashed: {_WORDS[keys[1]]}")
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.xaxis.get_major_locator().set_params(integer=True)
    drawing.grid(axes)


def _distances(axes: Any, named: Mapping[str, Sequence[History]]) -> None:
    _lines(axes, named, ("consensus_distance",), "consensus distance")
    drawing.log_with_zero(axes, [y for line in axes.lines for y in line.get_ydata()])


def loss(histories: Histories, path: Path | None = None) -> Any:
    """Training and validation loss over the epochs, of one history or of several by name."""
    named = _named(histories)
    figure, axes = drawing.panels(5.6, 3.8)
    _lines(axes, named, ("train_loss", "validation.loss"), "loss")
    return drawing.finish(figure, path, _title(named))


def consensus(histories: Histories, path: Path | None = None) -> Any:
    """The consensus distance over the epochs: the mean over ranks of |w_r - w_mean| / |w_mean|. Its axis is
    logarithmic."""
    named = _named(histories)
    figure, axes = drawing.panels(5.6, 3.8)
    _distances(axes, named)
    return drawing.finish(figure, path, _title(named))


def training(histories: Histories, path: Path | None = None) -> Any:
    """Loss, accuracy and consensus distance (on a logarithmic axis) side by side."""
    named = _named(histories)
    figure, axes = drawing.panels(12, 3.8, 3)
    _lines(axes[0], named, ("train_loss", "validation.loss"), "loss")
    _lines(axes[1], named, ("validation.accuracy",), "validation accuracy")
    _distances(axes[2], named)
    return drawing.finish(figure, path, _title(named))


def compression(histories: Histories, path: Path | None = None) -> Any:
    """The traffic of compression=gg.AdaComp(...), of one history or of several by name.

    Over the epochs the ratio, as a whole and by kind of layer, and the size of the residue; for the last epoch the
    numbers of sent elements in a bin.

    ValueError if nothing was compressed in any of them.
    """
    named = {k: some for k, some in _named(histories).items() if any("compression" in r for r in some[0].epochs)}
    if not named:
        raise ValueError("histories: nothing was compressed; allowed: of a trainer with compression=")
    figure, axes = drawing.panels(12, 3.8, 3)
    kinds = dict.fromkeys(k for some in named.values() for r in some[0].epochs for k in flat(r) if _BY_KIND in k)
    for i, (name, runs) in enumerate(named.items()):
        for key, style in zip(("compression.ratio", *kinds), drawing.DASHES, strict=False):
            curve = _curve(runs, key)
            if curve:
                label = f"{name} {key.rpartition('.')[2]}".strip()
                _draw(axes[0], curve, color=drawing.colour(i), ls=style, marker="o", ms=3, label=label)
                drawing.name_end(axes[0], label, drawing.colour(i), *curve[-1][:2])
    drawing.log(axes[0].yaxis)
    axes[0].set_xlabel("epoch")
    axes[0].set_ylabel("dense bytes / packed bytes")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    drawing.grid(axes[0])
    _lines(axes[1], named, ("compression.residue",), "|residue| / |weights|")
    axes[1].set_ylim(bottom=0)
    width = 0.8 / len(named)
    for i, runs in enumerate(named.values()):
        bins = next(r["compression"]["bins"] for r in reversed(runs[0].epochs) if "compression" in r)
        places = [k + (i - (len(named) - 1) / 2) * width for k in range(len(bins))]
        axes[2].bar(places, [count / max(sum(bins), 1) for count in bins], width, color=drawing.colour(i))
    axes[2].set_xticks(range(0, len(bins), 2), [*map(str, range(0, len(bins) - 1, 2)), f"{len(bins) - 1}+"])
    axes[2].set_xlabel("elements of a bin that were sent")
    axes[2].set_ylabel("share of the bins")
    drawing.grid(axes[2], "y")
    return drawing.finish(figure, path, _title(named))


_BY_KIND = "compression.by_kind."


def apoptosis(histories: Histories, path: Path | None = None) -> Any:
    """The units that left networks, of one history or of several by name; of a list of them, of its first.

    Over the steps: the units of each layer, as a share of the original ones; the parameters; the seconds of a training
    step; and over the epochs the loss. A cross is an event that was undone.

    ValueError if nothing could leave in any of them.
    """
    named = {name: some for name, some in _named(histories).items() if some[0].apoptosis}
    if not named:
        raise ValueError(
            "histories: no network could shrink; allowed: of a trainer with apoptosis=, or that shrink did"
        )
    figure, axes = drawing.panels(11, 7, 2, 2)
    for i, (name, (history, *_)) in enumerate(named.items()):
        events, born = history.apoptosis["events"], history.apoptosis["born"]
        for turn, (layer, units) in enumerate(_units_left(history).items()):
            colour = drawing.colour(i if name else turn)
            shares = [(step, count / born["units"][layer]) for step, count in units]
            axes[0].step(*zip(*shares, strict=True), where="post", color=colour)
            drawing.name_end(axes[0], f"{name} {layer}".strip(), colour, *shares[-1])
        sizes = [(0, born["parameters"]), *((one["step"], one["parameters"]) for one in events)]
        undone = [(one["step"], one["parameters"]) for one in events if one["undone"]]
        paces = [(one["step"], 1e3 * s) for one in events if (s := one["step_seconds_after"]) is not None]
        first = next((s for one in events if (s := one["step_seconds_before"]) is not None), None)
        paces = ([(0, 1e3 * first)] if first is not None else []) + paces
        for panel, points in ((axes[1], sizes), (axes[2], paces)):
            if points:
                panel.step(*zip(*points, strict=True), where="post", color=drawing.colour(i), label=name)
                drawing.name_end(panel, name, drawing.colour(i), *points[-1])
        if undone:
            axes[1].plot(*zip(*undone, strict=True), color=drawing.colour(i), ls="", marker="x", ms=6)
            drawing.note(axes[1], "x: undone")
    for one, what in zip(axes, ("share of the units", "parameters", "ms a step"), strict=False):
        one.set_xlabel("step")
        one.xaxis.get_major_locator().set_params(integer=True)
        one.set_ylabel(what)
        one.set_ylim(bottom=0)
        drawing.grid(one)
    _lines(axes[3], named, ("train_loss", "validation.loss"), "loss")
    return drawing.finish(figure, path, _title(named))


def _units_left(history: History) -> dict[str, list[tuple[int, int]]]:
    """For each layer that has lost units: (step, units from there on), from the first step to the last known one."""
    events = [one for one in history.apoptosis["events"] if not one["undone"]]
    last = max((one["step"] for one in history.apoptosis["events"]), default=0)
    found: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        for layer, count in event["left"].items():
            points = found.setdefault(layer, [(0, history.apoptosis["born"]["units"][layer])])
            points.append((event["step"], points[-1][1] - count))
    return {layer: [*points, (last, points[-1][1])] for layer, points in found.items()}


# ---- strategies side by side

# The colours and markers of the strategies in all pictures, in the order of the core's rows, in turns if there are more
# strategies. Each colour has a contrast of 3.6 or more with white and with the darkest grey of dark pages.
_LOOKS = (
    *(("#d55e00", "o"), ("#2a7fc9", "s"), ("#1493a8", "D"), ("#7d6ce0", "v"), ("#b07d00", "^"), ("#80801a", ">")),
    *(("#a0694a", "x"), ("#00966d", "P"), ("#c8609c", "*"), ("#d13d7d", "h"), ("#2f8f2f", "<"), ("#7d7d7d", ".")),
    *(("#5f7f8f", "p"), ("#b5563b", "X"), ("#6d8a3a", "H"), ("#9a6fb0", "8")),
)
_STYLES = dict(zip(BY_NAME, itertools.cycle(_LOOKS), strict=False))


def _styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The style of each of these "strategy:option=value": the colour shows the strategy, the dashes the options."""
    made: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for label in dict.fromkeys(labels):
        name = label.partition(":")[0]
        turn = seen[name] = seen.get(name, -1) + 1
        colour, marker = _STYLES.get(name, (drawing.INK, "d"))
        made[label] = {"color": colour, "marker": marker, "ls": drawing.DASHES[turn % 4]}
    return made


def _limit(lines: Mapping[str, Points], ended: Iterable[str]) -> float | None:
    """The height at which lines are cut off, so that diverging ones do not flatten the others; None: none is."""
    good = [point[1] for label, points in lines.items() if label not in ended for point in points]
    firsts = sorted(points[0][1] for points in lines.values() if points)
    if not good:
        return None
    limit = 1.1 * min(max(good), 5 * firsts[len(firsts) // 2])
    return limit if max(point[1] for points in lines.values() for point in points) > 1.5 * limit else None


def _panel(
    axes: Any, lines: Mapping[str, Points], styles: Mapping[str, dict[str, Any]], ended: Mapping[str, str], cut: bool
) -> None:
    """Lines by name, all of them visible: of lines on each other the first ones are wider.

    ended  the reason why a line ends before the others: its end is marked by a cross.
    cut    lines far above the others are cut off at the upper edge, and marked by arrows there.
    """
    limit = _limit(lines, ended) if cut else None
    top = math.inf if limit is None else limit
    values = [min(point[1], top) for points in lines.values() for point in points]
    height = max(values, default=1.0) - min(values, default=0.0)
    for group in _groups(lines, height):
        for place, label in enumerate(group):
            points, wider = lines[label], _wider(group, place)
            style, colour = styles[label], styles[label]["color"]
            shown = [(x, min(y, top), min(low, top), min(high, top)) for x, y, low, high in points]
            _draw(axes, shown, **style, lw=1.5 + wider, ms=4 + wider, label=label, zorder=2 + place / 10)
            over = [x for x, y, *_ in points if y > top]
            if over:
                arrows = {"marker": 6, "ls": "", "ms": 9, "zorder": 4, "clip_on": False}
                axes.plot(over, [top] * len(over), color=colour, **arrows)
            if label in ended:
                axes.plot(*shown[-1][:2], marker="X", color=colour, mec=drawing.INK, ms=9, zorder=5, clip_on=False)
            drawing.name_end(axes, f"{label} (diverged)" if label in ended else label, colour, *shown[-1][:2])
    if limit:
        axes.set_ylim(top=limit)
        drawing.note(axes, "arrows: above the edge")
    drawing.grid(axes)


def _over_seeds(run: Mapping[str, Any], x: str, y: str, scale: float) -> Points:
    """A run's points: the means, and the least and most over its seeds."""
    seeds = [one["points"] for one in run.get("by_seed", ())] or [run["points"]]
    found = []
    for i, point in enumerate(run["points"]):
        all_ = [scale * points[i][y] for points in seeds if points[i].get(y) is not None]
        if len(all_) == len(seeds) and all(map(math.isfinite, all_)):
            found.append((point[x], scale * point[y], min(all_), max(all_)))
    return found


def comparison_curves(runs: Sequence[Mapping[str, Any]], path: Path | None = None, *, title: str = "") -> Any:
    """The learning of strategies on one number of ranks; runs: of compare.json, each with its points.

    A strategy has one colour and marker in all pictures. A band is the range over the seeds. A diverged one is shown up
    to that point, with a cross at its end; if it is far above the others it is cut off, with arrows at the edge.
    """
    figure, axes = drawing.panels(9.2, 10.4, 2, 3)
    panels: tuple[tuple[str, str, str, float], ...] = (
        ("samples", "loss", "validation loss", 1),
        ("virtual_seconds", "loss", "validation loss", 1),
        ("samples", "accuracy", "validation accuracy (%)", 100),
        ("virtual_seconds", "accuracy", "validation accuracy (%)", 100),
        ("samples", "consensus_distance", "consensus distance", 1),
        ("virtual_seconds", "bytes_sent", "sent by all ranks (MB)", 1e-6),
    )
    styles = _styles([run["strategy"] for run in runs])
    ended = {run["strategy"]: run["failure"] for run in runs if run.get("failure")}
    for one, (x, y, what, scale) in zip(axes, panels, strict=True):
        lines = {run["strategy"]: _over_seeds(run, x, y, scale) for run in runs}
        lines = {label: points for label, points in lines.items() if points}
        _panel(one, lines, styles, ended, cut=y == "loss")
        if x == "virtual_seconds" and lines:  # a strategy that takes ten times as long must not squeeze the others
            drawing.log(one.xaxis)
        if y == "loss" and lines:
            drawing.log(one.yaxis)
        elif y != "accuracy":
            drawing.log_with_zero(one, [point[1] for points in lines.values() for point in points])
        one.set_xlabel("samples of all ranks" if x == "samples" else "virtual seconds")
        one.set_ylabel(what)
    about = [title or f"{runs[0]['ranks']} ranks", f"diverged (X): {', '.join(ended)}" if ended else ""]
    return drawing.finish(figure, path, "\n".join(part for part in about if part))


def comparison_scaling(
    rows: Sequence[Mapping[str, Any]], target: float | None, path: Path | None = None, *, title: str = ""
) -> Any:
    """The results of strategies as the ranks grow; rows: the table of compare.json.

    A band is the range over the seeds. A missing value, as the time to a loss that was not reached, has a cross above
    the lines. Columns that no row has are left out.
    """
    panels: tuple[tuple[str, str, float], ...] = (
        ("virtual_seconds_to_target", f"virtual seconds to a loss of {target or 0:.3g}", 1),
        ("virtual_seconds", "virtual seconds for all samples", 1),
        ("accuracy", "validation accuracy (%)", 100),
        ("loss", "validation loss", 1),
        ("exposed_share", "time spent waiting for messages (%)", 100),
        ("bytes_per_rank_step", "sent by a rank in a step (MB)", 1e-6),
    )
    panels = tuple(panel for panel in panels if any(panel[0] in row for row in rows))
    columns = min(len(panels), 2)
    height = math.ceil(len(panels) / columns)
    figure, axes = drawing.panels(9.2 if columns > 1 else 7, 0.6 + 3.3 * height, columns, height)
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    styles, ranks = _styles(names), sorted({row["ranks"] for row in rows})
    for one, (y, what, scale) in zip([axes] if columns == 1 else axes, panels, strict=False):
        own = {name: [row for row in rows if row["strategy"] == name] for name in names}
        lines = {
            name: sorted(
                (row["ranks"], *(scale * row.get(key, row[y]) for key in (y, f"{y}_min", f"{y}_max")))
                for row in of_name
                if row.get(y) is not None
            )
            for name, of_name in own.items()
        }
        _panel(one, {name: points for name, points in lines.items() if points}, styles, {}, cut=y == "loss")
        one.set_xscale("log", base=2)
        one.set_xticks(ranks, ranks)
        one.minorticks_off()
        if y.startswith("virtual_seconds") and any(lines.values()):
            drawing.log(one.yaxis)
        elif y in ("exposed_share", "bytes_per_rank_step"):
            one.set_ylim(bottom=-0.03 * one.get_ylim()[1])
        _crosses(
            one, {name: [row["ranks"] for row in some if row.get(y) is None] for name, some in own.items()}, styles
        )
        one.set_xlabel("ranks")
        one.set_ylabel(what)
    return drawing.finish(figure, path, title)


def _crosses(axes: Any, missing: Mapping[str, Sequence[int]], styles: Mapping[str, dict[str, Any]]) -> None:
    """A cross for each missing value, in rows above the lines: a row a name."""
    missing = {name: sorted(places) for name, places in missing.items() if places}
    if not missing:
        return
    named = {end[1] for end in axes.figure.ends if end[0] is axes}
    room = min(0.06 * (len(missing) + 0.5), 0.5)
    drawing.longer(axes.yaxis, 1 - room)
    turn = axes.yaxis.get_transform()
    low, high = turn.transform(axes.get_ylim())
    for row, (name, places) in enumerate(missing.items()):
        share = 1 - room * (row + 0.5) / (len(missing) + 0.5)
        y = float(turn.inverted().transform([low + share * (high - low)])[0])
        colour = styles[name]["color"]
        axes.plot(places, [y] * len(places), marker="X", color=colour, mec=drawing.INK, ms=7, ls="", zorder=6)
        if name not in named:
            drawing.name_end(axes, name, colour, places[-1], y)
    drawing.note(axes, "X: no value")


# ---- a step's time

_PASSES = {"forward": drawing.COLOURS[0], "weights": drawing.COLOURS[1], "data": drawing.COLOURS[2]}
_BARS = 40  # operations with a bar of their own


def profile(found: Mapping[str, Any], path: Path | None = None) -> Any:
    """The time of a training step by operations, and its bounds: the result of gossipgrad.profile.step, as a picture.

    Left the operations in their order, a colour a pass; those with the least time are one bar. Right each pass with
    products, by its operations for each byte and its speed, under the roof of this machine: its memory, and its product
    of matrices. Points above the roof: Winograd's convolutions, which have fewer operations than counted, and data in
    caches.
    """
    figure, (left, right) = drawing.panels(13, 8, columns=2)
    _profile_bars(left, found)
    _roof(right, found)
    about = f"{found['model']}, batch {found['batch']}, {counted(found['threads'], 'thread')}"
    return drawing.finish(figure, path, f"{about}: a step of {found['ms']:.4g} ms")


def _profile_bars(axes: Any, found: Mapping[str, Any]) -> None:
    times: dict[int, dict[str, float]] = {}
    names: dict[int, str] = {}
    for one in found["operations"]:
        names[one["number"]] = f"{one['name']} ({one['operation']})"
        times.setdefault(one["number"], {})[one["pass"]] = one["ms"]
    longest = set(sorted(times, key=lambda number: -sum(times[number].values()))[:_BARS])
    bars = [(names[number], times[number]) for number in times if number in longest]
    short = [times[number] for number in times if number not in longest]
    if short:
        sums = {name: sum(one.get(name, 0.0) for one in short) for name in _PASSES}
        bars.append((f"{len(short)} more operations", sums))
    bars += [(label, {"rest": found[key]}) for label, key in _REST.items()]
    for place, (_, parts) in enumerate(bars):
        begin = 0.0
        for name, ms in parts.items():
            axes.barh(place, max(ms, 0.0), left=begin, color=_PASSES.get(name, drawing.INK))
            begin += max(ms, 0.0)
    axes.set_yticks(range(len(bars)), [label if len(label) < 48 else f"{label[:45]}..." for label, _ in bars])
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    drawing.grid(axes, "x")
    for name, colour in _PASSES.items():
        axes.barh(0, 0, color=colour, label=name)
    drawing.legend(axes)


_REST = {"losses": "loss_ms", "update": "update_ms", "other": "other_ms"}


def _roof(axes: Any, found: Mapping[str, Any]) -> None:
    points = [one for one in found["operations"] if one["gflops"] > 0]
    for name, colour in _PASSES.items():
        own = [one for one in points if one["pass"] == name]
        intensity = [one["gflops"] / one["gbytes_per_s"] for one in own]
        sizes = [12 + 1500 * one["share"] for one in own]
        axes.scatter(intensity, [one["gflops"] for one in own], s=sizes, color=colour, alpha=0.6, label=name)
    product, copy = found["product_gflops"], found["copy_gbytes_per_s"]
    ridge = product / copy
    most = max([one["gflops"] / one["gbytes_per_s"] for one in points], default=ridge)
    ends = [ridge / 30, ridge, 2 * max(most, ridge)]
    bounds = f"memory {copy:.0f} GB/s, product {product:.0f} GFLOP/s"
    axes.plot(ends, [copy * ends[0], product, product], color=drawing.INK, lw=1.5, zorder=0, label=bounds)
    drawing.log(axes.xaxis)
    drawing.log(axes.yaxis)
    axes.set_xlabel("operations for each byte that has to be moved")
    axes.set_ylabel("GFLOP/s (size: share of the step)")
    drawing.grid(axes)
    drawing.legend(axes)
