"""The page: its parts, one after the other."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gossipgrad.errors import counted
from gossipgrad.report import command, form, numbers, pictures
from gossipgrad.report.numbers import Record
from gossipgrad.report.pictures import Figure
from gossipgrad.show import cell
from gossipgrad.state.files import json_text, write_atomically

SUFFIXES = (".html", ".htm")  # of a report that is a page


def bundle() -> str:
    """Plotly's JavaScript. ImportError with advice if Plotly is missing."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("pages want Plotly: pip install 'gossipgrad[report]'") from error
    return str(get_plotlyjs())


def is_page(path: str | os.PathLike[str]) -> bool:
    """True if a report of this name is a page."""
    return os.fspath(path).lower().endswith(SUFFIXES)


def write(reports: Mapping[str, Record], path: str | os.PathLike[str], comparison: Record | None = None) -> None:
    """Write the page of these reports; the file appears complete or not at all."""
    write_atomically(path, page(reports, comparison).encode())


def page(reports: Mapping[str, Record], comparison: Record | None = None) -> str:
    """The page of reports by name. comparison: the content of compare.json, if they are of one comparison."""
    if not reports:
        raise ValueError("reports: there is none; allowed: at least one")
    library, title = bundle(), _title(reports, comparison)
    figures: list[Figure] = []
    parts = [
        _overview(reports),
        _failures(comparison),
        _deaths(reports),
        pictures.learning(reports, figures),
        pictures.times(reports, figures),
        pictures.sent(reports, figures),
        pictures.partners(reports, figures),
        _settings("Settings", reports, "settings"),
        _settings("Environment", reports, "environment"),
        _commands(reports, comparison),
    ]
    contents = {"runs": dict(reports), "figures": figures}
    scripts = "".join(
        f'<script type="application/json" id="{name}">{form.in_script(json_text(value))}</script>\n'
        for name, value in contents.items()
    )
    title = form.escaped(title)
    return (
        f"<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<title>{title}</title>\n{form.HEAD}"
        f"<style>{form.STYLE}</style>\n</head>\n<body>\n<header><h1>{title}</h1>\n{_subtitle(reports)}</header>\n"
        f"<noscript><p>The pictures want JavaScript, the tables do not.</p></noscript>\n"
        f"<main>\n{''.join(parts)}</main>\n{scripts}"
        f"<script>{library}</script>\n<script>{form.SCRIPT}</script>\n</body>\n</html>\n"
    )


def _title(reports: Mapping[str, Record], comparison: Record | None) -> str:
    names = list(dict.fromkeys(str(one["model"].get("name", "a network")) for one in reports.values()))
    if comparison is not None:
        return f"Strategies side by side: {', '.join(names)}"
    if len(reports) > 1:
        return f"{len(reports)} runs of {', '.join(names)}"
    (report,) = reports.values()
    strategy = report["settings"].get("strategy")
    return f"{names[0]} on {counted(report['ranks'], 'rank')}{f' with {strategy}' if strategy else ''}"


def _subtitle(reports: Mapping[str, Record]) -> str:
    """Facts that all runs share."""
    found = []
    for shown, *path in (
        ("{}", "settings", "dataset"),
        ("{:,} samples", "settings", "train_samples"),
        ("{:,} parameters", "model", "parameters"),
        ("{}", "environment", "cpu"),
        ("gossipgrad {}", "environment", "gossipgrad"),
    ):
        values = [numbers.at(report, path) for report in reports.values()]
        if values[0] is not None and all(value == values[0] for value in values):
            found.append(form.escaped(shown.format(values[0])))
    return f"<p class=facts>{' · '.join(found)}</p>\n"


_NUMBERS: tuple[tuple[str, Callable[[Record, str], Any]], ...] = (
    ("epochs", lambda one, _: len(one["epochs"])),
    ("training loss", lambda one, _: numbers.last(one, "train_loss")),
    ("validation loss", lambda one, _: numbers.last(one, "validation.loss")),
    ("validation accuracy (%)", lambda one, _: _times(100, numbers.last(one, "validation.accuracy"))),
    ("consensus distance", lambda one, _: numbers.last(one, "consensus_distance")),
    ("{clock}", lambda one, clock: numbers.total(one, clock) if one["epochs"] else None),
    ("waiting for messages (%)", lambda one, _: _times(100, numbers.waiting(one))),
    ("MB sent by a rank in a step", lambda one, _: _times(1e-6, numbers.last(one, "bytes_per_rank_step"))),
    ("compression ratio", lambda one, _: numbers.last(one, "compression.ratio")),
)


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _overview(reports: Mapping[str, Record]) -> str:
    clock = numbers.clock_of(reports)
    columns = [(title.format(clock=clock.replace("_", " ")), value) for title, value in _NUMBERS]
    rows = [[value(report, clock) for _, value in columns] for report in reports.values()]
    shown = [i for i in range(len(columns)) if any(row[i] is not None for row in rows)]
    if len(reports) == 1:
        tiles = (f"<div><b>{form.escaped(cell(rows[0][i]))}</b>{form.escaped(columns[i][0])}</div>" for i in shown)
        return f"<section class=tiles>{''.join(tiles)}</section>\n"
    head = ["run", "strategy", "ranks", *(columns[i][0] for i in shown)]
    lines = []
    chosen = pictures.looks(reports)
    for number, ((name, report), row) in enumerate(zip(reports.items(), rows, strict=True)):
        colour, dash = chosen[number]
        mark = f"<input type=checkbox checked data-run={number} style='accent-color:{colour}'>"
        line = f"<i class='line {dash}' style='color:{colour}'></i>"
        run = form.Markup(f"<label>{mark}{line}{form.escaped(name)}</label>")
        lines.append([run, report["settings"].get("strategy", "-"), report["ranks"], *(row[i] for i in shown)])
    note = "<p class=note>Last epoch, and sums over all. A box hides the run in the pictures.</p>\n"
    return form.section("Runs", note + form.table(head, lines, " class=runs"))


def _failures(comparison: Record | None) -> str:
    runs = [] if comparison is None else [one for one in comparison.get("runs", ()) if one.get("failure")]
    lines = [[one.get("strategy"), one.get("ranks"), one["failure"]] for one in runs]
    return form.section("Failed", form.table(("strategy", "ranks", "reason"), lines)) if lines else ""


def _deaths(reports: Mapping[str, Record]) -> str:
    """Changes of the view: ranks have died."""
    lines = [
        [
            name,
            one["epoch"],
            one["step"],
            ", ".join(map(str, one["died"])),
            len(one["ranks"]),
            one["trained_again"],
            one["seconds"],
        ]
        for name, report in reports.items()
        for one in report.get("views", ())
    ]
    head = ("run", "epoch", "step", "died", "ranks left", "samples trained again", "seconds")
    return form.section("Ranks that died", form.table(head, lines)) if lines else ""


# ---- tables of settings


def _flat(record: Record, before: str = "") -> dict[str, Any]:
    """Values by dotted names; lists as texts."""
    made: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            made |= _flat(value, f"{before}{key}.")
        else:
            text = ", ".join(map(str, value)) or "none" if isinstance(value, (list, Mapping)) else value
            made[before + key] = f"{text[:160]}…" if isinstance(text, str) and len(text) > 160 else text
    return made


def _settings(title: str, reports: Mapping[str, Record], field: str) -> str:
    """The values of a field of all runs: first those that differ."""
    runs = [_flat(report[field]) for report in reports.values()]
    keys = list(dict.fromkeys(key for one in runs for key in one))
    differ = [key for key in keys if any(one.get(key) != runs[0].get(key) for one in runs)]
    alike = [key for key in keys if key not in differ]
    body = ""
    if differ:
        rows = [[key, *(one.get(key) for one in runs)] for key in differ]
        body += f"<h3>What differs</h3>\n{form.table(['', *reports], rows, ' class=pairs')}"
    if alike:
        summary = "Equal in all runs" if len(reports) > 1 else f"All {len(alike)}"
        table = form.table((), [[key, runs[0].get(key)] for key in alike], " class=pairs")
        body += f"<details><summary>{summary}</summary>\n{table}</details>\n"
    return form.section(title, body)


def _unbroken(words: Sequence[str]) -> str:
    """A command whose lines end between options alone."""
    parts: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not parts:
            parts.append([])
        parts[-1].append(word)
    return " ".join(f"<span>{form.escaped(shlex.join(part))}</span>" for part in parts)


def _commands(reports: Mapping[str, Record], comparison: Record | None) -> str:
    made = {"": command.of_comparison(comparison["settings"])} if comparison else {}
    made = made or {name: command.of_run(report) for name, report in reports.items()}
    body = ""
    for name, words in made.items():
        title = f"<h3>{form.escaped(name)}</h3>\n" if len(made) > 1 else ""
        reason = "It was made in Python: no command has this network, these data or these settings."
        body += title + (f"<pre>{_unbroken(words)}</pre>\n" if words else f"<p>{reason}</p>\n")
        hashes = [] if comparison else reports[name]["weights_sha256"]
        if words and hashes:
            found = form.escaped(hashes[0])
            body += f"<p class=note>SHA-256 of rank 0's weights at the end: <code>{found}</code></p>\n"
    note = "A report has no paths. Add what was given: --data and options of the set, --validation-split, --weights."
    return form.section("The command", f"{body}<p class=note>{note}</p>\n" if any(made.values()) else body)
