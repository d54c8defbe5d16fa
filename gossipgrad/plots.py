"""Pictures by matplotlib (pip install 'gossipgrad[plot]').

Each returns the figure, which a notebook shows; given a path, it writes it.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossipgrad import _core
from gossipgrad.errors import flag, integer
from gossipgrad.history import History, flat
from gossipgrad.state.files import write_atomically
from gossipgrad.strategies import BY_NAME, Topology, check_permutations, check_topology, core_topology

Path = str | os.PathLike[str]


def _figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
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

    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def check_format(argument: str, path: Path) -> None:
    """ValueError unless pictures can be written in the format of the path's extension; ImportError: no matplotlib."""
    figure, _ = _figure(1, 1)
    formats = figure.canvas.get_supported_filetypes()
    extension = os.path.splitext(os.fspath(path))[1][1:]
    if extension and extension.lower() not in formats:
        raise ValueError(
            f"{argument} {os.fspath(path)}: a picture of format {extension!r} cannot be written; allowed: "
            + ", ".join(f".{one}" for one in sorted(formats))
        )


def _finish(figure: Any, path: Path | None) -> Any:
    if path is not None:
        check_format("path", path)
        name, extension = os.path.splitext(os.fspath(path))
        extension = extension or f".{figure.canvas.get_default_filetype()}"
        file = io.BytesIO()
        figure.savefig(file, format=extension[1:], dpi=120)
        write_atomically(name + extension, file.getvalue())
    return figure


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
    figure, axes = _figure(1.3 + 1.1 * steps, 1.2 + 0.38 * p)
    for step in range(steps + 1):
        axes.scatter([step] * p, range(p), s=36, color="#37474f", zorder=3)
    for step in range(steps):
        colour = f"C{step % stages}"
        for rank in range(p):
            to, _ = _core.partners(chosen, p, step, rank, rotate, seed, few)
            axes.plot([step, step + 1], [rank, rank], color="#cfd8dc", lw=1, zorder=1)
            if to >= 0:
                style = {"arrowstyle": "-|>", "color": colour, "lw": 1.4, "shrinkA": 4, "shrinkB": 4}
                axes.annotate("", xy=(step + 1, to), xytext=(step, rank), arrowprops=style, zorder=2)
    for cycle in range(stages, steps, stages) if stages > 1 else ():
        axes.axvline(cycle, color="#90a4ae", ls=":", lw=1, zorder=0)
    turns = rotate and few != 1 and name != "random" and isinstance(name, str)
    about = f"{name if isinstance(name, str) else 'a table'}, {p} rank{'s' if p > 1 else ''}"
    about += (
        f": {stages} step{'s' if stages > 1 else ''} a cycle" if name != "random" else ": other pairs in every step"
    )
    among = f", among {few}" if few else ""
    axes.set_title(about + (f", places change after each{among}" if turns else ""), fontsize=10)
    axes.set_xticks(range(steps + 1))
    axes.set_yticks(range(p), [f"rank {r}" for r in range(p)])
    axes.set_xlabel("step")
    axes.invert_yaxis()
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    return _finish(figure, path)


def _lines(axes: Any, histories: dict[str, History], keys: Iterable[str], what: str) -> None:
    """A colour a history, a dash pattern a key."""
    keys = tuple(keys)
    for i, (name, history) in enumerate(histories.items()):
        for key, style in zip(keys, ("-", "--", ":"), strict=False):
            points = [(record["epoch"], flat(record)[key]) for record in history.epochs if key in flat(record)]
            if points:
                label = " ".join(part for part in (name, _SHORT.get(key, key) if len(keys) > 1 else "") if part)
                axes.plot(*zip(*points, strict=True), style, marker="o", ms=3, color=f"C{i}", label=label or key)
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0] and (len(keys) > 1 or any(histories)):
        axes.legend(fontsize=8)


_SHORT = {"train_loss": "(training)", "validation.loss": "(validation)"}


def _named(histories: History | dict[str, History]) -> dict[str, History]:
    if isinstance(histories, History):
        return {"": histories}
    if isinstance(histories, Mapping) and all(isinstance(one, History) for one in histories.values()):
        for name in histories:
            if not isinstance(name, str):
                raise TypeError(f"histories: the name {name!r}; allowed: a str")
        return dict(histories)
    raise TypeError(
        f"histories is a {type(histories).__name__}; allowed: a gossipgrad.History, or a dict of them by name"
    )


def loss(histories: History | dict[str, History], path: Path | None = None) -> Any:
    """Training and validation loss over the epochs, of one history or of several by name."""
    figure, axes = _figure(5, 3.4)
    _lines(axes, _named(histories), ("train_loss", "validation.loss"), "loss")
    return _finish(figure, path)


def consensus(histories: History | dict[str, History], path: Path | None = None) -> Any:
    """The consensus distance, the mean over ranks of |w_r - w_mean| / |w_mean|, over the epochs."""
    figure, axes = _figure(5, 3.4)
    _lines(axes, _named(histories), ("consensus_distance",), "consensus distance")
    axes.set_ylim(bottom=0)
    return _finish(figure, path)


def training(histories: History | dict[str, History], path: Path | None = None) -> Any:
    """Loss, accuracy and consensus distance side by side."""
    named = _named(histories)
    figure, axes = _figure(12, 3.4, 3)
    _lines(axes[0], named, ("train_loss", "validation.loss"), "loss")
    _lines(axes[1], named, ("validation.accuracy",), "validation accuracy")
    _lines(axes[2], named, ("consensus_distance",), "consensus distance")
    axes[2].set_ylim(bottom=0)
    return _finish(figure, path)


def compression(histories: History | dict[str, History], path: Path | None = None) -> Any:
    """The traffic of compression=gg.AdaComp(...), of one history or of several by name.

    Over the epochs the ratio, as a whole and by kind of layer, and the size of the residue; for the last epoch the
    numbers of sent elements in a bin.

    ValueError if nothing was compressed in any of them.
    """
    named = {name: one for name, one in _named(histories).items() if any("compression" in r for r in one.epochs)}
    if not named:
        raise ValueError("histories: nothing was compressed; allowed: of a trainer with compression=")
    figure, axes = _figure(12, 3.4, 3)
    kinds = dict.fromkeys(k for one in named.values() for r in one.epochs for k in flat(r) if _BY_KIND in k)
    styles = dict(zip(("compression.ratio", *kinds), ("-", "--", ":", "-.", (0, (1, 4))), strict=False))
    for i, (name, history) in enumerate(named.items()):
        for key, style in styles.items():
            values = [(record["epoch"], flat(record).get(key)) for record in history.epochs]
            points = [(x, y) for x, y in values if y is not None]
            if points:
                label = f"{name} {key.rpartition('.')[2]}".strip()
                look = {"color": f"C{i}", "ls": style, "marker": "o", "ms": 3, "label": label}
                axes[0].plot(*zip(*points, strict=True), **look)
    axes[0].set_yscale("log")
    _log(axes[0].yaxis)
    axes[0].set_xlabel("epoch")
    axes[0].set_ylabel("dense bytes / packed bytes")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    _lines(axes[1], named, ("compression.residue",), "|residue| / |weights|")
    axes[1].set_ylim(bottom=0)
    width = 0.8 / len(named)
    for i, (name, history) in enumerate(named.items()):
        bins = next(r["compression"]["bins"] for r in reversed(history.epochs) if "compression" in r)
        places = [k + (i - (len(named) - 1) / 2) * width for k in range(len(bins))]
        shares = [count / max(sum(bins), 1) for count in bins]
        axes[2].bar(places, shares, width, color=f"C{i}", label=name or None)
    axes[2].set_xticks(range(0, len(bins), 2), [*map(str, range(0, len(bins) - 1, 2)), f"{len(bins) - 1}+"])
    axes[2].set_xlabel("elements of a bin that were sent")
    axes[2].set_ylabel("share of the bins")
    axes[2].grid(alpha=0.3, axis="y")
    if any(named):
        axes[2].legend(fontsize=8)
    return _finish(figure, path)


_BY_KIND = "compression.by_kind."


def apoptosis(histories: History | dict[str, History], path: Path | None = None) -> Any:
    """The units that left networks, of one history or of several by name.

    Over the steps: the units of each layer, as a share of the original ones; the parameters; the seconds of a training
    step; and over the epochs the loss. A cross is an event that was undone.

    ValueError if nothing could leave in any of them.
    """
    named = {name: one for name, one in _named(histories).items() if one.apoptosis}
    if not named:
        raise ValueError(
            "histories: no network could shrink; allowed: of a trainer with apoptosis=, or that shrink did"
        )
    figure, axes = _figure(15, 3.4, 4)
    for i, (name, history) in enumerate(named.items()):
        events, born = history.apoptosis["events"], history.apoptosis["born"]
        marks = {"color": f"C{i}" if len(named) > 1 else "black", "ls": "", "marker": "x", "ms": 5}
        for layer, units in _units_left(history).items():
            look = (
                {"where": "post", "alpha": 0.5, "color": f"C{i}"}
                if len(named) > 1
                else {"where": "post", "label": layer}
            )
            axes[0].step([step for step, _ in units], [count / born["units"][layer] for _, count in units], **look)
        sizes = [(0, born["parameters"]), *((one["step"], one["parameters"]) for one in events)]
        axes[1].step(*zip(*sizes, strict=True), where="post", color=f"C{i}", label=name or None)
        undone = [(one["step"], one["parameters"]) for one in events if one["undone"]]
        if undone:
            axes[1].plot(*zip(*undone, strict=True), **marks)
        paces = [(one["step"], 1e3 * s) for one in events if (s := one["step_seconds_after"]) is not None]
        first = next((s for one in events if (s := one["step_seconds_before"]) is not None), None)
        paces = ([(0, 1e3 * first)] if first is not None else []) + paces
        if paces:
            axes[2].step(*zip(*paces, strict=True), where="post", color=f"C{i}", label=name or None)
    for one, what in zip(axes, ("share of the units", "parameters", "ms a step"), strict=False):
        one.set_xlabel("step")
        one.set_ylabel(what)
        one.set_ylim(bottom=0)
        one.grid(alpha=0.3)
        if one.get_legend_handles_labels()[0]:
            one.legend(fontsize=8)
    _lines(axes[3], named, ("train_loss", "validation.loss"), "loss")
    return _finish(figure, path)


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
# strategies. The first colours are those of Okabe and Ito (2008), which suit any colour vision; markers differ as well.
_LOOKS = (
    *(("#D55E00", "o"), ("#0072B2", "s"), ("#56B4E9", "D"), ("#332288", "v"), ("#E69F00", "^"), ("#F0E442", ">")),
    *(("#000000", "x"), ("#009E73", "P"), ("#CC79A7", "*"), ("#882255", "h"), ("#117733", "<"), ("#999999", ".")),
    *(("#44AA99", "p"), ("#AA4499", "X"), ("#999933", "H"), ("#661100", "8")),
)
_STYLES = dict(zip(BY_NAME, itertools.cycle(_LOOKS), strict=False))
_DASHES = ("-", "--", ":", "-.")  # of one strategy with several options


def _styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The style of each of these "strategy:option=value": the colour shows the strategy, the dashes the options."""
    made: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for label in dict.fromkeys(labels):
        name = label.partition(":")[0]
        turn = seen[name] = seen.get(name, -1) + 1
        colour, marker = _STYLES.get(name, ("#555555", "d"))
        made[label] = {"color": colour, "marker": marker, "linestyle": _DASHES[turn % len(_DASHES)]}
    return made


Points = Sequence[tuple[float, float]]


def _alike(one: Points, other: Points, height: float) -> bool:
    """True if two lines lie on each other, in a panel of this height."""
    if [x for x, _ in one] != [x for x, _ in other] or not one:
        return False
    return all(abs(a - b) <= 0.004 * height for (_, a), (_, b) in zip(one, other, strict=True))


def _limit(lines: Mapping[str, Points], ended: Iterable[str]) -> float | None:
    """The height at which lines are cut off, so that diverging ones do not flatten the others; None: none is."""
    good = [y for label, points in lines.items() if label not in ended for _, y in points]
    firsts = sorted(points[0][1] for points in lines.values() if points)
    if not good:
        return None
    limit = 1.1 * min(max(good), 5 * firsts[len(firsts) // 2])
    return limit if max(y for points in lines.values() for _, y in points) > 1.5 * limit else None


def _panel(
    axes: Any, lines: Mapping[str, Points], styles: Mapping[str, dict[str, Any]], ended: Mapping[str, str], cut: bool
) -> None:
    """Lines by name, all of them visible: lines on each other are drawn one inside the other, and named.

    ended  the reason why a line ends before the others: its end is marked by a cross.
    cut    lines far above the others are cut off at the upper edge, and marked by arrows there.
    """
    limit = _limit(lines, ended) if cut else None
    values = [min(y, limit) if limit else y for points in lines.values() for _, y in points]
    height = max(values, default=1.0) - min(values, default=0.0)
    groups: list[list[str]] = []
    for label, points in lines.items():
        for group in groups:
            if _alike(lines[group[0]], points, height):
                group.append(label)
                break
        else:
            groups.append([label])
    for group in groups:
        for place, label in enumerate(group):
            points, width = lines[label], 1.5 + 2.2 * (len(group) - 1 - place)
            size = 4 + 2.2 * (len(group) - 1 - place)
            shown = [(x, min(y, limit) if limit else y) for x, y in points]
            axes.plot(*zip(*shown, strict=True), **styles[label], lw=width, ms=size, label=label, zorder=2 + place / 10)
            over = [x for x, y in points if limit and y > limit]
            if over:
                arrows = {
                    "marker": 6,
                    "color": styles[label]["color"],
                    "ls": "",
                    "ms": 9,
                    "zorder": 4,
                    "clip_on": False,
                }
                axes.plot(over, [limit] * len(over), **arrows)
            if label in ended:
                end = {"marker": "X", "color": styles[label]["color"], "mec": "black", "ms": 9, "zorder": 5}
                axes.plot(*shown[-1], **end, clip_on=False)
        if len(group) > 1:
            x, y = lines[group[0]][-1]
            lines_end = min(y, limit) if limit else y
            below = bool(values) and lines_end > max(values) - 0.1 * height  # otherwise it would touch the frame
            words = {"xytext": (-6, -14 if below else 8), "textcoords": "offset points", "ha": "right"}
            box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
            axes.annotate(" = ".join(group), (x, lines_end), **words, fontsize=6.5, bbox=box, zorder=6)
    if limit:
        axes.set_ylim(top=limit)
        axes.text(0.01, 0.98, "arrows: above the edge", transform=axes.transAxes, fontsize=6.5, va="top")
    axes.grid(alpha=0.3)


def _symmetric_log(axes: Any, lines: Mapping[str, Points]) -> None:
    """A logarithmic y axis that has zero as well."""
    positive = [y for points in lines.values() for _, y in points if y > 0]
    least = 10 ** math.floor(math.log10(min(positive))) if positive else 1e-6
    axes.set_yscale("symlog", linthresh=least)
    axes.set_ylim(-0.2 * least, 2 * max(positive, default=least))


def _log(axis: Any) -> None:
    """Plain numbers at 1, 2, 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, panels: Iterable[Any]) -> None:
    """One legend for all panels, with each label once."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=5, fontsize=8)


def comparison_curves(runs: Sequence[Mapping[str, Any]], path: Path | None = None) -> Any:
    """The learning of strategies on one number of ranks; runs: of compare.json, each with its points.

    A strategy has one colour and marker in all pictures. A diverged one is shown up to that point, with a cross at
    its end; if it is far above the others it is cut off, with arrows at the edge.
    """
    figure, axes = _figure(14, 7.6, 3, 2)
    panels: tuple[tuple[str, str, str, float], ...] = (
        ("samples", "loss", "validation loss", 1),
        ("samples", "accuracy", "validation accuracy (%)", 100),
        ("samples", "consensus_distance", "consensus distance", 1),
        ("virtual_seconds", "loss", "validation loss", 1),
        ("virtual_seconds", "accuracy", "validation accuracy (%)", 100),
        ("virtual_seconds", "bytes_sent", "sent by all ranks (MB)", 1e-6),
    )
    styles = _styles([run["strategy"] for run in runs])
    ended = {run["strategy"]: run["failure"] for run in runs if run.get("failure")}
    for one, (x, y, what, scale) in zip(axes.flat, panels, strict=True):
        lines = {run["strategy"]: [(p[x], scale * p[y]) for p in run["points"] if y in p] for run in runs}
        lines = {label: points for label, points in lines.items() if points}
        _panel(one, lines, styles, ended, cut=y == "loss")
        if x == "virtual_seconds":  # a strategy that takes ten times as long must not squeeze the others
            one.set_xscale("log")
            _log(one.xaxis)
        if y == "loss":
            one.set_yscale("log")
            _log(one.yaxis)
        elif y != "accuracy":
            _symmetric_log(one, lines)
        one.set_xlabel("samples of all ranks" if x == "samples" else "virtual seconds")
        one.set_ylabel(what)
    _legend(figure, axes.flat)
    about = f"{runs[0]['ranks']} ranks"
    about += f"; diverged (X): {', '.join(ended)}" if ended else ""
    figure.suptitle(about)
    return _finish(figure, path)


def comparison_scaling(rows: Sequence[Mapping[str, Any]], target: float | None, path: Path | None = None) -> Any:
    """The results of strategies as the ranks grow; rows: the table of compare.json.

    A missing value, as the time to a loss that was not reached, has a cross at the upper edge.
    """
    figure, axes = _figure(14, 7.6, 3, 2)
    panels: tuple[tuple[str, str, float], ...] = (
        ("virtual_seconds_to_target", f"virtual seconds to a loss of {target or 0:.3g}", 1),
        ("virtual_seconds", "virtual seconds for all samples", 1),
        ("accuracy", "validation accuracy (%)", 100),
        ("loss", "validation loss", 1),
        ("exposed_share", "time spent waiting for messages (%)", 100),
        ("bytes_per_rank_step", "sent by a rank in a step (MB)", 1e-6),
    )
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    styles, ranks = _styles(names), sorted({row["ranks"] for row in rows})
    for one, (y, what, scale) in zip(axes.flat, panels, strict=True):
        own = {name: [row for row in rows if row["strategy"] == name] for name in names}
        lines = {
            name: sorted((row["ranks"], scale * row[y]) for row in of_name if row[y] is not None)
            for name, of_name in own.items()
        }
        _panel(one, {name: points for name, points in lines.items() if points}, styles, {}, cut=y == "loss")
        missing = [(row["ranks"], name) for name, of_name in own.items() for row in of_name if row[y] is None]
        for place, (x, name) in enumerate(missing):
            cross = {
                "marker": "X",
                "color": styles[name]["color"],
                "mec": "black",
                "ms": 8,
                "clip_on": False,
                "zorder": 6,
            }
            height = 1 - 0.05 * sum(other == x for other, _ in missing[:place])
            one.plot(x, height, **cross, ls="", transform=one.get_xaxis_transform())
        if missing and any(lines.values()):
            one.text(0.01, 0.98, "X: no value", transform=one.transAxes, fontsize=6.5, va="top")
        one.set_xscale("log", base=2)
        one.set_xticks(ranks, ranks)
        one.minorticks_off()
        if y.startswith("virtual_seconds") and any(lines.values()):
            one.set_yscale("log")
            _log(one.yaxis)
        elif y in ("exposed_share", "bytes_per_rank_step"):
            one.set_ylim(bottom=-0.03 * one.get_ylim()[1])
        one.set_xlabel("ranks")
        one.set_ylabel(what)
    _legend(figure, axes.flat)
    return _finish(figure, path)


_PASSES = {"forward": "C0", "weights": "C1", "data": "C2"}
_BARS = 40  # operations with a bar of their own


def profile(found: Mapping[str, Any], path: Path | None = None) -> Any:
    """The time of a training step by operations, and its bounds: the result of gossipgrad.profile.step, as a picture.

    Left the operations in their order, a colour a pass; those with the least time are one bar. Right each pass with
    products, by its operations for each byte and its speed, under the roof of this machine: its memory, and its product
    of matrices. Points above the roof: Winograd's convolutions, which have fewer operations than counted, and data in
    caches.
    """
    figure, (left, right) = _figure(13, 8, columns=2)
    _profile_bars(left, found)
    _roof(right, found)
    figure.suptitle(
        f"{found['model']}, batch {found['batch']}, {found['threads']} thread{'s' if found['threads'] > 1 else ''}: "
        f"a step of {found['ms']:.4g} ms",
        fontsize=11,
    )
    return _finish(figure, path)


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
            axes.barh(place, max(ms, 0.0), left=begin, color=_PASSES.get(name, "#90a4ae"))
            begin += max(ms, 0.0)
    axes.set_yticks(range(len(bars)), [label if len(label) < 48 else f"{label[:45]}..." for label, _ in bars])
    axes.tick_params(axis="y", labelsize=7, length=0)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.grid(axis="x", alpha=0.3)
    for name, colour in _PASSES.items():
        axes.barh(0, 0, color=colour, label=name)
    axes.legend(fontsize=8, loc="lower right")


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
    axes.plot(ends, [copy * ends[0], product, product], color="#37474f", lw=1.5, zorder=0)
    axes.annotate(f"product {product:.0f} GFLOP/s", (ends[2], product), ha="right", va="bottom", fontsize=8)
    axes.annotate(f"memory {copy:.0f} GB/s", (ends[0], copy * ends[0]), va="bottom", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte that has to be moved")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.3)
    if points:
        axes.legend(fontsize=8, loc="lower right", title="size: share of the step", title_fontsize=8)
