"""The pictures of a page as Plotly's data and layouts, and their places in the page."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from gossipgrad import _core
from gossipgrad.errors import counted
from gossipgrad.report import form, numbers
from gossipgrad.report.numbers import Record
from gossipgrad.show import cell
from gossipgrad.state.files import json_text

Figure = dict[str, Any]

_COLOURS = ("#3b82c4", "#e0752d", "#2e9e6b", "#9d6bd0", "#d64550", "#1fa3b5", "#b8901f", "#7f8c99")
_DASHES = ("solid", "dash", "dashdot", "longdash")  # training has dots
_MANY = 6  # most runs whose training is drawn beside their validation
_RANKED = 8  # most runs whose time is shown by rank
_MATRICES = 6  # most schedules that are shown
_MATRIX_RANKS, _MATRIX_TURNS, _MATRIX_NUMBERS = 128, 64, 16


def _label(name: str) -> str:
    """A name for Plotly, which reads tags and entities in texts."""
    return html.escape(name, quote=False)


def looks(reports: Mapping[str, Record]) -> list[tuple[str, str]]:
    """Colour and dashes of each run. In a comparison, of names-pN: a colour a name, dashes by the ranks."""
    names = [re.sub(r"-p\d+$", "", name) for name in reports]
    ranks = [one["ranks"] for one in reports.values()]
    alike = len(set(zip(names, ranks, strict=True))) == len(reports) > len(set(names))
    firsts, counts = list(dict.fromkeys(names)), sorted(set(ranks))
    places = [(firsts.index(name), counts.index(p)) for name, p in zip(names, ranks, strict=True)]
    places = places if alike else [(i, i // len(_COLOURS)) for i in range(len(reports))]
    return [(_COLOURS[i % len(_COLOURS)], _DASHES[k % len(_DASHES)]) for i, k in places]


def _figure(figures: list[Figure], title: str, traces: list[Figure], note: str = "", **layout: Any) -> str:
    """Add a picture; returns its place."""
    figures.append({"data": traces, "layout": layout})
    about = f"<p class=note>{form.escaped(note)}</p>" if note else ""
    place = f"<div class=plot id=figure-{len(figures) - 1} role=img aria-label='{form.escaped(title)}'></div>"
    return f"<figure><figcaption>{form.escaped(title)}</figcaption>{about}{place}</figure>\n"


def _grid(made: Sequence[str]) -> str:
    return f"<div class=grid>\n{''.join(made)}</div>\n" if any(made) else ""


def _curves(
    reports: Mapping[str, Record],
    figures: list[Figure],
    title: str,
    keys: Mapping[str, str],
    x: str = "epoch",
    *,
    y: str = "",
    factor: float = 1.0,
    total: bool = False,
    **axis: Any,
) -> str:
    """Lines over the epochs, or over a clock's seconds; "" without values.

    keys: meanings of numbers by name, at most two: solid and dotted. total: their sums so far. axis: of y.
    """
    traces: list[Figure] = []
    several, dotted = len(reports) > 1, False
    chosen = looks(reports)
    hover = "epoch %{x}" if x == "epoch" else "%{x:.4~g} s"
    for number, (name, report) in enumerate(reports.items()):
        places = [record.get(x) or 0.0 for record in report["epochs"]]
        places = places if x == "epoch" else list(accumulate(places))
        for place, (key, meaning) in enumerate(keys.items()):
            values = [factor * value for value in numbers.values(report, key)]
            ends = [at for at, record in zip(places, report["epochs"], strict=True) if numbers.has(record, key)]
            points = list(zip(ends, accumulate(values) if total else values, strict=True))
            if axis.get("type") == "log":
                points = [(at, value) for at, value in points if value > 0]
            if not points:
                continue
            colour, dash = chosen[number] if several else (_COLOURS[place], "solid")
            dotted = dotted or (several and place > 0)
            label = f"{name}, {meaning}" if several and len(keys) > 1 else name if several else meaning
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [at for at, _ in points],
                    "y": [value for _, value in points],
                    "name": _label(label),
                    "meta": number,
                    "line": {"color": colour, "width": 2, "dash": "dot" if place else dash},
                    "marker": {"size": 5 if len(points) < 40 else 3},
                    "hovertemplate": f"%{{fullData.name}}<br>{hover}: %{{y:.4~g}}<extra></extra>",
                }
            )
    if not traces:
        return ""
    words = list(keys.values())
    note = f"Solid: {words[0]}; dotted: {words[1]}." if dotted else ""
    across: Figure = {"title": {"text": x.replace("_", " ")}}
    if x == "epoch":
        across |= {"tickformat": "d", **({"dtick": 1} if max(max(one["x"]) for one in traces) <= 8 else {})}
    else:
        across["rangemode"] = "tozero"
    layout = {"xaxis": across, "yaxis": {"title": {"text": y}, **axis}}
    return _figure(figures, title, traces, note, **layout, showlegend=not several and len(traces) > 1)


def learning(reports: Mapping[str, Record], figures: list[Figure]) -> str:
    """Loss, accuracy, metrics and consensus distance."""
    clock = numbers.clock_of(reports)
    loss = {"validation.loss": "validation", "train_loss": "training"}
    accuracy = {"validation.accuracy": "validation", "train_accuracy": "training"}
    if len(reports) > _MANY and any(numbers.values(one, "validation.loss") for one in reports.values()):
        loss, accuracy = ({key: "validation" for key in keys if "validation" in key} for keys in (loss, accuracy))
    made = []
    for title, keys, factor, y in (("Loss", loss, 1.0, "loss"), ("Accuracy", accuracy, 100.0, "accuracy (%)")):
        for x in ("epoch", clock):
            by = f"{title} by {x.replace('_', ' ')}"
            made.append(_curves(reports, figures, by, keys, x, y=y, factor=factor))
    others = dict.fromkeys(k for one in reports.values() for r in one["epochs"] for k in r.get("validation") or {})
    for key in others:
        if key not in ("loss", "accuracy"):
            made.append(_curves(reports, figures, f"Validation: {key}", {f"validation.{key}": key}, y=key))
    far = _curves(
        reports,
        figures,
        "Consensus distance",
        {"consensus_distance": "distance"},
        y="|w − mean| / |mean|",
        type="log",
        exponentformat="power",
    )
    made.append(far)
    equal = [name for name, one in reports.items() if one["epochs"] and not numbers.total(one, "consensus_distance")]
    names = f" ({', '.join(equal)})" if far else ""
    said = f"A consensus distance of 0 has no place on a log axis: equal replicas{names}."
    note = f"<p class=note>{form.escaped(said)}</p>\n" if equal else ""
    if any(report["apoptosis"] for report in reports.values()):
        made.append(_curves(reports, figures, "Parameters", {"parameters": "parameters"}, y="parameters"))
    return form.section("Learning", _grid(made) + note)


def times(reports: Mapping[str, Record], figures: list[Figure]) -> str:
    """Where the seconds went: of the mean rank of each run, and by rank."""
    clock = "virtual seconds" if numbers.clock_of(reports) == "virtual_seconds" else "seconds"
    timed = {name: one for name, one in reports.items() if numbers.waiting(one) is not None}
    if not timed:
        return ""
    made = []
    if len(reports) > 1 or not _by_rank(*timed.values()):
        traces = []
        for key, (meaning, colour) in numbers.PARTS.items():
            slowest = [numbers.total(one, f"{key}_max") for one in timed.values()]
            hover = f"{meaning}: %{{x:.4~g}} s<br>slowest rank: %{{customdata:.4~g}} s<extra></extra>"
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": list(range(len(timed))),
                    "x": [numbers.total(one, key) for one in timed.values()],
                    "customdata": slowest,
                    "name": meaning,
                    "marker": {"color": colour},
                    "hovertemplate": hover,
                }
            )
        names = [_label(name if len(name) <= 26 else f"{name[:13]}…{name[-12:]}") for name in timed]
        up = {"tickvals": list(range(len(timed))), "ticktext": names, "autorange": "reversed", "automargin": True}
        bars: Figure = {
            "barmode": "stack",
            "bargap": 0.35,
            "height": max(300, 120 + 26 * len(timed)),
            "showlegend": True,
        }
        title = "The mean rank of each run" if len(reports) > 1 else "The mean rank"
        made.append(
            _figure(figures, title, traces, **bars, xaxis={"title": {"text": clock}}, yaxis=up, hovermode="closest")
        )
    ranked = [name for name, one in timed.items() if _by_rank(one)]
    if len(ranked) <= _RANKED:
        made += [_ranks_of(name if len(reports) > 1 else "", timed[name], figures, clock) for name in ranked]
    return form.section("Where the time went", _grid(made))


def _by_rank(*reports: Record) -> bool:
    return all(len(one.get("time_by_rank") or ()) > 0 for one in reports)


def _ranks_of(name: str, report: Record, figures: list[Figure], clock: str) -> str:
    """The time of each rank."""
    ranks = range(len(report["time_by_rank"]))
    traces = [
        {
            "type": "bar",
            "x": list(ranks),
            "y": [one[key] for one in report["time_by_rank"]],
            "name": meaning,
            "marker": {"color": colour},
            "hovertemplate": f"rank %{{x}}<br>{meaning}: %{{y:.4~g}} s<extra></extra>",
        }
        for key, (meaning, colour) in numbers.PARTS.items()
    ]
    across: Figure = {"title": {"text": "rank"}, "tickformat": "d", "range": [-0.6, max(len(ranks), 4) - 0.4]}
    across |= {"dtick": 1} if len(ranks) <= 16 else {}
    look: Figure = {
        "barmode": "stack",
        "bargap": 0.3 if len(ranks) <= 32 else 0,
        "showlegend": True,
        "hovermode": "closest",
    }
    title = f"By rank: {name}" if name else "By rank"
    return _figure(figures, title, traces, **look, xaxis=across, yaxis={"title": {"text": clock}})


def sent(reports: Mapping[str, Record], figures: list[Figure]) -> str:
    """The bytes of all ranks, and of a rank in a step."""
    most = max(numbers.total(one, "bytes_sent") for one in reports.values())
    if not most:
        return ""
    unit, name = numbers.size(most)
    steps = (value for one in reports.values() for value in numbers.values(one, "bytes_per_rank_step"))
    a_step, its = numbers.size(max(steps, default=0.0))
    low: Figure = {"rangemode": "tozero"}
    whole, each = {"bytes_sent": "all ranks"}, {"bytes_per_rank_step": "a rank"}
    made = [
        _curves(reports, figures, "Sent by all ranks", whole, y=f"{name}, sum", factor=1 / unit, total=True, **low),
        _curves(reports, figures, "Sent by a rank in a step", each, y=its, factor=1 / a_step, **low),
        _curves(reports, figures, "Compression", {"compression.ratio": "ratio"}, y="dense bytes / packed bytes", **low),
    ]
    return form.section("Bytes", _grid(made))


def partners(reports: Mapping[str, Record], figures: list[Figure]) -> str:
    """Who sends to whom, once for each schedule."""
    found: dict[str, tuple[Record, list[str]]] = {}
    for name, report in reports.items():
        if report["schedule"]:
            key = json_text([report["ranks"], report["schedule"], report["settings"].get("seed")])
            found.setdefault(key, (report, []))[1].append(name)
    shown = list(found.values())[:_MATRICES]
    made = [_matrix(report, names if len(reports) > 1 else [], figures) for report, names in shown]
    more = f"<p class=note>{_MATRICES} of {len(found)} schedules.</p>\n" if len(found) > _MATRICES else ""
    return form.section("Partners", _grid(made) + more)


def _matrix(report: Record, names: Sequence[str], figures: list[Figure]) -> str:
    """A matrix of the first step in which a rank sends to another one; facts alone for tables and many ranks."""
    schedule, seed = report["schedule"], report["settings"].get("seed") or 0
    p, slices = schedule.get("nodes") or report["ranks"], schedule.get("slices") or 1
    who, topology = "node" if schedule.get("nodes") else "rank", schedule["topology"]
    facts = ", ".join(f"{key.replace('_', ' ')} {cell(value)}" for key, value in schedule.items() if key != "topology")
    title = f"{topology}, {p} {who}s{f': {_some(names)}' if names else ''}"
    if topology == "table" or not 1 < p <= _MATRIX_RANKS:
        about = f"<p class=note>{form.escaped(facts)}</p>"
        return f"<figure><figcaption>{form.escaped(title)}</figcaption>{about}</figure>\n"
    turns = max(schedule.get("meeting_steps") or 0, schedule.get("stages") or 0) // slices
    turns = min(max(turns, 1), _MATRIX_TURNS)
    first: list[list[int | None]] = [[None] * p for _ in range(p)]
    for turn in range(turns):
        for rank in range(p):
            few = schedule.get("permutations") or 0
            to, _ = _core.partners(topology, p, turn, rank, schedule["rotate"], seed, few)
            if to >= 0 and first[rank][to] is None:
                first[rank][to] = turn * slices + 1
    trace: Figure = {
        "type": "heatmap",
        "z": first,
        "xgap": 1,
        "ygap": 1,
        "colorscale": [[0, "#1d5b94"], [0.5, "#2f8f7d"], [1, "#e8d36b"]],
        "colorbar": {"title": {"text": "step"}, "thickness": 10, "tickformat": "d"},
        "hovertemplate": f"{who} %{{y}} sends to {who} %{{x}}<br>first in step %{{z}}<extra></extra>",
    }
    trace |= {"texttemplate": "%{z}"} if p <= _MATRIX_NUMBERS else {}
    axis = {"tickformat": "d", "showgrid": False, "zeroline": False, "constrain": "domain"}
    axis |= {"dtick": 1} if p <= _MATRIX_NUMBERS else {}
    across = {**axis, "title": {"text": f"to {who}"}}
    down = {**axis, "title": {"text": f"from {who}"}, "autorange": "reversed", "scaleanchor": "x"}
    note = f"The first of {counted(turns * slices, 'step')} in which a {who} sends to another. {facts}."
    return _figure(figures, title, [trace], note, xaxis=across, yaxis=down, height=380, hovermode="closest")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
