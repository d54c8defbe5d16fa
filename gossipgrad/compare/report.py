"""The results of a comparison: the table, data for other programs, pictures."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import os
import shutil
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gossipgrad import plots
from gossipgrad.compare.plan import Comparison, Record
from gossipgrad.compare.processes import POINT, final_loss
from gossipgrad.errors import counted
from gossipgrad.launch import environment
from gossipgrad.state.files import json_text, write_atomically

SCHEMA = 1
FINISHED = "finished"  # results of single configurations, until all have ended
_WRITTEN = ("compare.json", "compare.csv", "points.csv", "reports", "curves-*.png", "scaling.png")

_ROW = (
    *("strategy", "ranks", "batch_size", "lr", "samples", "steps", "loss", "accuracy", "consensus_distance"),
    *("virtual_seconds", "virtual_seconds_to_target", "exposed_share", "bytes_per_rank_step", "messages_per_rank_step"),
    *("seconds", "failure", "seeds"),
)
_RANGES = ("loss", "accuracy", "virtual_seconds", "virtual_seconds_to_target", "exposed_share", "bytes_per_rank_step")
_ENDS = tuple(f"{key}_{end}" for key in _RANGES for end in ("min", "max"))


def time_to(points: Iterable[Mapping[str, Any]], target: float) -> float | None:
    """The virtual time at which the validation loss first is `target`, on straight lines between the points."""
    before: Mapping[str, Any] | None = None
    for point in points:
        if point["loss"] <= target:
            if before is None:
                return float(point["virtual_seconds"])
            share = (before["loss"] - target) / (before["loss"] - point["loss"])
            step = point["virtual_seconds"] - before["virtual_seconds"]
            return float(before["virtual_seconds"] + share * step)
        before = point
    return None


def target_of(comparison: Comparison, results: Iterable[Mapping[str, Any]]) -> float | None:
    """The loss whose time is reported; None if nothing was trained."""
    if comparison.target is not None:
        return comparison.target
    finals = [loss for loss in map(final_loss, results) if loss is not None]
    return 1.5 * min(finals) if finals else None


def row(result: Mapping[str, Any], target: float | None) -> Record:
    """A configuration in one line of the table; a failing one has its reason alone.

    Numbers are means over the seeds, KEY_min and KEY_max the least and the most; None if a seed lacks it.
    """
    made: Record = {key: result.get(key) for key in ("strategy", "ranks", "batch_size", "lr", "seconds", "failure")}
    by_seed = [one["points"] for one in result.get("by_seed", [result])]
    made["seeds"] = len(by_seed)
    if result["points"] and not made["failure"]:
        ends = [_end(points, result["ranks"], target) for points in by_seed]
        for key in ends[0]:
            values = [one[key] for one in ends]
            known = None not in values
            made[key] = statistics.fmean(values) if known and len(set(values)) > 1 else values[0] if known else None
            if key in _RANGES and known:
                made |= {f"{key}_min": min(values), f"{key}_max": max(values)}
    return {key: made.get(key) for key in (*_ROW, *_ENDS)}


def _end(points: Sequence[Mapping[str, Any]], ranks: int, target: float | None) -> Record:
    """The columns of a row that follow from a run's points."""
    last = points[-1]
    clock = last["exposed_communication_seconds"] + last["compute_seconds"]
    return {key: last[key] for key in _ROW if key in last} | {
        "exposed_share": last["exposed_communication_seconds"] / clock if clock else 0.0,
        "bytes_per_rank_step": last["bytes_sent"] / last["steps"] / ranks,
        "messages_per_rank_step": last["messages_sent"] / last["steps"] / ranks,
        "virtual_seconds_to_target": None if target is None else time_to(points, target),
    }


_COLUMNS: tuple[tuple[str, str, str, float], ...] = (
    ("ranks", "ranks", "d", 1),
    ("batch", "batch_size", "d", 1),
    ("lr", "lr", ".4g", 1),
    ("loss", "loss", ".4f", 1),
    ("accuracy %", "accuracy", ".2f", 100),
    ("virtual s", "virtual_seconds", ".4g", 1),
    ("s to target", "virtual_seconds_to_target", ".4g", 1),
    ("exposed %", "exposed_share", ".1f", 100),
    ("MB/rank/step", "bytes_per_rank_step", ".3f", 1e-6),
    ("messages", "messages_per_rank_step", ".2f", 1),
    ("distance", "consensus_distance", ".2e", 1),
)


def table(rows: Sequence[Mapping[str, Any]], target: float | None) -> str:
    """The rows for reading. Several seeds: the mean of the losses and accuracies, ± half of their range."""
    cells = [["strategy", *(title for title, *_ in _COLUMNS)]]
    for one in rows:
        shown = []
        for _, key, form, scale in _COLUMNS:
            text = "-" if one[key] is None else format(one[key] * scale, form)
            if key in ("loss", "accuracy") and one[key] is not None and one["seeds"] > 1:
                text += f" ±{format(scale * (one[f'{key}_max'] - one[f'{key}_min']) / 2, form)}"
            shown.append(text)
        cells.append([one["strategy"], *(shown if one["failure"] is None else [str(one["ranks"]), "FAILED"])])
    widths = [max(len(line[i]) for line in cells if i < len(line)) for i in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=False)))
             for line in cells]  # fmt: skip
    if target is not None:
        lines.append(f"target: a validation loss of {target:.4f}")
    lines.append("messages: a rank's in a step; what it sends to one partner goes in several, the chunks of a model")
    return "\n".join(lines)


def _csv(keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def files_in(folder: str | os.PathLike[str]) -> list[str]:
    """Names of files of comparisons in a folder; a `finished` without results does not count."""
    found = [name for pattern in _WRITTEN for name in sorted(glob.glob(pattern, root_dir=folder))]
    return [*found, FINISHED] if glob.glob(f"{FINISHED}/*", root_dir=folder) else found


def remove_files(folder: str | os.PathLike[str]) -> None:
    """Remove all files of `write` from a folder."""
    for name in files_in(folder):
        path = os.path.join(folder, name)
        if name == "reports":
            shutil.rmtree(path)
        elif name != FINISHED:
            os.remove(path)


def write(comparison: Comparison, results: Sequence[Mapping[str, Any]], folder: str | os.PathLike[str]) -> list[Record]:
    """Write all files to a folder, which is made; returns the rows of the table.

    compare.json  everything: settings, environment, target, and for each configuration its row and its points
    compare.csv   the table;  points.csv  each seed's points: the state at a number of samples, sums since the start
    reports/      the report (docs/report.md) of each configuration's first seed, with a record a point
    *.png         curves-pN.png for each number of ranks, scaling.png over all; if matplotlib is installed
    """
    folder = os.fspath(folder)
    os.makedirs(os.path.join(folder, "reports"), exist_ok=True)
    target = target_of(comparison, results)
    rows = [row(one, target) for one in results]
    shown = ("tried", "points", "by_seed")
    runs = [{**line, **{k: one[k] for k in shown if k in one}} for line, one in zip(rows, results, strict=True)]
    whole = {"schema": SCHEMA, "settings": comparison.settings(), "environment": environment.environment(1)}
    whole |= {"target_loss": target, "runs": runs}
    write_atomically(os.path.join(folder, "compare.json"), json_text(whole, indent=1).encode() + b"\n")
    write_atomically(os.path.join(folder, "compare.csv"), _csv((*_ROW, *_ENDS), rows))
    single = [{**one, **own} for one in results for own in one.get("by_seed", [one])]
    points = [{**one, **point} for one in single for point in one["points"]]
    write_atomically(os.path.join(folder, "points.csv"), _csv(("strategy", "ranks", "seed", *POINT), points))
    for one in results:
        if "report" in one:
            path = os.path.join(folder, "reports", f"{_file_name(one['strategy'])}-p{one['ranks']}.json")
            write_atomically(path, json_text(one["report"], indent=1).encode() + b"\n")
    _draw(runs, target, folder, comparison.title())
    return rows


def _file_name(label: str) -> str:
    """File name of a configuration; a long one ends in a checksum, because a file's name has at most 255 bytes."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in label)
    return name if len(name) <= 200 else f"{name[:180]}-{hashlib.sha256(label.encode()).hexdigest()[:16]}"


def _draw(runs: Sequence[Record], target: float | None, folder: str, title: str) -> None:
    trained = [one for one in runs if one["points"]]
    try:
        for p in sorted({one["ranks"] for one in trained}):
            curves = [one for one in runs if one["ranks"] == p]
            path = os.path.join(folder, f"curves-p{p}.png")
            plots.comparison_curves(curves, path, title=f"{counted(p, 'rank')}; {title}")
        if trained:
            plots.comparison_scaling(runs, target, os.path.join(folder, "scaling.png"), title=title)
    except ImportError as error:
        warnings.warn(str(error), stacklevel=3)
