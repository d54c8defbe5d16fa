"""gossipgrad report."""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gossipgrad import report
from gossipgrad.cli.options import UsageError, checked, path
from gossipgrad.cli.parsing import Parser
from gossipgrad.errors import one_line
from gossipgrad.history import History
from gossipgrad.launch import start
from gossipgrad.state import outputs
from gossipgrad.state.files import content

_DESCRIPTION = """\
One HTML page of reports: pictures, settings, environment, commands.
It loads nothing from elsewhere, and opens in any browser."""
_EXAMPLES = """\
examples:
  gossipgrad train --virtual-ranks 4 --report run.json
  gossipgrad report run.json
  gossipgrad report run1.json run2.json -o runs.html
  gossipgrad report compare-2026-11-29"""
_COMPARISON = "compare.json"


def add_options(parser: Parser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.usage = "%(prog)s RUN... [-o FILE]"
    help_ = "a report of train --report, or the folder of a comparison"
    parser.add_argument("runs", type=path, nargs="+", metavar="RUN", help=help_)
    help_ = "the page; default: report.html"
    parser.add_argument("-o", "--output", type=path, default="report.html", metavar="FILE", help=help_)


def make(arguments: argparse.Namespace) -> int:
    """Write the page."""
    if (start.launcher_world_size() or 1) > 1:
        raise UsageError("report: not under mpiexec, whose ranks would write one file")
    files, comparison = _files(arguments.runs)
    read = {f"RUN {i + 1}": one for i, one in enumerate(files)}
    checked(lambda: outputs.check([outputs.Output("--output", arguments.output)], read))
    reports = {name: History.read(one).to_dict() for name, one in zip(_names(files), files, strict=True)}
    try:
        report.write(reports, arguments.output, comparison)
    except ImportError as error:
        raise RuntimeError(str(error)) from error
    print(f"{arguments.output}: {', '.join(reports)}", flush=True)
    return 0


def _files(runs: Sequence[str]) -> tuple[list[str], Mapping[str, Any] | None]:
    """The reports of these arguments, and the comparison if they are one folder. UsageError: there are none."""
    found, comparisons = [], []
    for one in runs:
        if not os.path.isdir(one):
            found.append(one)
            continue
        inside = sorted(glob.glob(os.path.join(glob.escape(one), "reports", "*.json")), key=_in_order)
        if not inside:
            raise UsageError(f"{one}: no reports/*.json in it; allowed: reports, and folders of gossipgrad compare")
        found += inside
        comparisons.append(os.path.join(one, _COMPARISON))
    if len(runs) > 1 or not comparisons or not os.path.exists(comparisons[0]):
        return found, None
    try:
        whole = json.loads(content(comparisons[0]))
        return found, whole if isinstance(whole, dict) and isinstance(whole.get("settings"), dict) else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{comparisons[0]}: no comparison: {one_line(error)}") from error


def _in_order(text: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside a text by their values."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", text)]


def _names(files: Sequence[str]) -> list[str]:
    """A name for each report: its file's, with folder or number where several have it."""
    for parts in (1, 2):
        names = [os.path.splitext("/".join(os.path.abspath(one).split(os.sep)[-parts:]))[0] for one in files]
        if max(Counter(names).values()) == 1:
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]
