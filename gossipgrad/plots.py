"""Pictures by matplotlib (pip install 'gossipgrad[plot]'). Each returns the figure; given a path, it writes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossipgrad import _core
from gossipgrad.errors import flag, integer
from gossipgrad.history import History, flat
from gossipgrad.strategies import Topology, check_topology, core_topology

Path = str | os.PathLike[str]


def _figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots want matplotlib: pip install 'gossipgrad[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)


def _finish(figure: Any, path: Path | None) -> Any:
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def partner_schedule(
    p: int,
    topology: Topology = "dissemination",
    path: Path | None = None,
    *,
    steps: int | None = None,
    rotate: bool = True,
    seed: int = 0,
) -> Any:
    """Who sends to whom: ranks from top to bottom, steps from left to right, an arrow a message.

    topology, rotate, seed: as for GossipGraD. steps None: two cycles, but at least ceil(log2 p) steps and at most 12.
    The arrows are those of _core.partners, which training uses.
    """
    p = integer("p", p, 1)
    name = check_topology(topology)
    flag("rotate", rotate)
    chosen = core_topology(name)
    stages = max(int(_core.schedule(chosen, p, rotate, seed)["stages"]), 1)
    shortest = max((p - 1).bit_length(), 1)
    steps = min(max(2 * stages, shortest), 12) if steps is None else integer("steps", steps, 1)
    figure, axes = _figure(1.3 + 1.1 * steps, 1.2 + 0.38 * p)
    for step in range(steps + 1):
        axes.scatter([step] * p, range(p), s=36, color="#37474f", zorder=3)
    for step in range(steps):
        colour = f"C{step % stages}"
        for rank in range(p):
            to, _ = _core.partners(chosen, p, step, rank, rotate, seed)
            axes.plot([step, step + 1], [rank, rank], color="#cfd8dc", lw=1, zorder=1)
            if to >= 0:
                style = {"arrowstyle": "-|>", "color": colour, "lw": 1.4, "shrinkA": 4, "shrinkB": 4}
                axes.annotate("", xy=(step + 1, to), xytext=(step, rank), arrowprops=style, zorder=2)
    for cycle in range(stages, steps, stages) if stages > 1 else ():
        axes.axvline(cycle, color="#90a4ae", ls=":", lw=1, zorder=0)
    turns = rotate and name != "random" and isinstance(name, str)
    about = f"{name if isinstance(name, str) else 'a table'}, {p} rank{'s' if p > 1 else ''}"
    about += (
        f": {stages} step{'s' if stages > 1 else ''} a cycle" if name != "random" else ": other pairs in every step"
    )
    axes.set_title(about + (", places change after each" if turns else ""), fontsize=10)
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
    return {"": histories} if isinstance(histories, History) else dict(histories)


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


def comparison_curves(runs: Sequence[Mapping[str, Any]], path: Path | None = None) -> Any:
    """How strategies learn on one number of ranks; runs: of compare.json, each with its points."""
    figure, axes = _figure(13, 7, 3, 2)
    panels: tuple[tuple[str, str, str, float], ...] = (
        ("samples", "loss", "validation loss", 1),
        ("samples", "accuracy", "validation accuracy (%)", 100),
        ("samples", "consensus_distance", "consensus distance", 1),
        ("virtual_seconds", "loss", "validation loss", 1),
        ("virtual_seconds", "accuracy", "validation accuracy (%)", 100),
        ("virtual_seconds", "bytes_sent", "sent by all ranks (MB)", 1e-6),
    )
    for one, (x, y, what, scale) in zip(axes.flat, panels, strict=True):
        for i, run in enumerate(runs):
            points = [(p[x], scale * p[y]) for p in run["points"] if y in p]
            if points:
                one.plot(*zip(*points, strict=True), marker="o", ms=3, color=f"C{i}", label=run["strategy"])
        one.set_xlabel("samples" if x == "samples" else "virtual seconds")
        one.set_ylabel(what)
        one.grid(alpha=0.3)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    figure.suptitle(f"{runs[0]['ranks']} ranks")
    return _finish(figure, path)


def comparison_scaling(rows: Sequence[Mapping[str, Any]], target: float | None, path: Path | None = None) -> Any:
    """What becomes of strategies as the ranks grow; rows: the table of compare.json."""
    figure, axes = _figure(13, 7, 3, 2)
    panels: tuple[tuple[str, str, float], ...] = (
        ("virtual_seconds_to_target", f"virtual seconds to a loss of {target or 0:.3g}", 1),
        ("virtual_seconds", "virtual seconds for all samples", 1),
        ("accuracy", "validation accuracy (%)", 100),
        ("loss", "validation loss", 1),
        ("exposed_share", "time spent waiting for messages (%)", 100),
        ("bytes_per_rank_step", "sent by a rank in a step (MB)", 1e-6),
    )
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    for one, (y, what, scale) in zip(axes.flat, panels, strict=True):
        for i, name in enumerate(names):
            points = sorted((r["ranks"], scale * r[y]) for r in rows if r["strategy"] == name and r[y] is not None)
            if points:
                one.plot(*zip(*points, strict=True), marker="o", ms=4, color=f"C{i}", label=name)
        one.set_xscale("log", base=2)
        one.set_xticks(sorted({row["ranks"] for row in rows}), sorted({row["ranks"] for row in rows}))
        if y.startswith("virtual_seconds"):
            one.set_yscale("log")
        one.set_xlabel("ranks")
        one.set_ylabel(what)
        one.grid(alpha=0.3)
    figure.legend(*axes.flat[1].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return _finish(figure, path)
