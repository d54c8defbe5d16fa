"""The site's pictures, tables and code: made from the measurements, and narrow enough to be read."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import gossipgrad as gg

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 88


def tool(name: str, monkeypatch: pytest.MonkeyPatch, folder: str = "tools") -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module(name)


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_tables_and_charts_of_results_have_the_figures_of_measurements(monkeypatch):
    page, charts = tool("results", monkeypatch).made(text("docs/results.md"), text("docs/measurements.md"))
    assert page == text("docs/results.md"), "run python tools/results.py"
    for name, chart in charts.items():
        assert chart == text(f"docs/pictures/{name}.svg"), "run python tools/results.py"
        assert f"](pictures/{name}.svg)" in page


def test_results_has_six_questions_with_a_table_of_eight_rows_and_a_command(monkeypatch):
    results = tool("results", monkeypatch)
    sections = re.split(r"^## ", text("docs/results.md"), flags=re.MULTILINE)[1:]
    assert len(sections) == len(results.QUESTIONS) == 6
    for section in sections:
        title = section.partition("\n")[0]
        assert title.endswith("?"), title
        assert 2 < len(re.findall(r"^\|", section, re.MULTILINE)) <= 8 + 2, title  # with the head and the line below it
        assert len(re.findall(r"^```\n", section, re.MULTILINE)) == 2, title


def test_figures_in_the_words_of_results_are_measured():
    words = re.sub(r"<!--.*?<!-- end -->|```.*?```|\]\([^)]*\)", "", text("docs/results.md"), flags=re.DOTALL)
    measured = text("docs/measurements.md") + text("docs/devices.md")
    figures = re.findall(r"\d+\.\d+", words)
    assert len(figures) >= 5
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", measured), figure


def test_a_figure_that_is_not_measured_is_an_error_that_names_it(monkeypatch):
    results = tool("results", monkeypatch)
    with pytest.raises(ValueError, match=r"no table that begins with '\| LeNet \(21\) \|'"):
        results.made(text("docs/results.md"), text("docs/measurements.md").replace("| LeNet (21) |", "| LeNet |"))
    with pytest.raises(ValueError, match=r"has no row 'overlapped averaging'"):
        results.made(
            text("docs/results.md"), text("docs/measurements.md").replace("| overlapped averaging |", "| other |")
        )
    with pytest.raises(ValueError, match="0 places <!-- gpu -->"):
        results.made(text("docs/results.md").replace("<!-- gpu -->", ""), text("docs/measurements.md"))


def test_the_moving_picture_spreads_as_training_does(monkeypatch):
    spreading = tool("spreading", monkeypatch)
    assert [len(known) for known in spreading.spread()] == [1, 2, 4, 8, 16]
    assert spreading.drawn() == text("docs/pictures/spreading.svg"), "run python tools/spreading.py"


def test_pictures_are_small():
    for path in ROOT.glob("docs/pictures/*"):
        assert path.stat().st_size < 32_000, path.name


def test_code_of_pages_fits_into_the_site():
    wide = []
    for path in [*ROOT.glob("docs/**/*.md"), ROOT / "ARCHITECTURE.md"]:
        for language, block in re.findall(
            r"^```([^\n`]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            if not language.startswith("{"):
                wide += [f"{path.name}: {line}" for line in block.splitlines() if len(line) > COLUMNS]
    assert not wide, "\n".join(wide)


def test_a_class_opens_with_the_arguments_that_its_docstring_lists(monkeypatch):
    house = tool("house_docstrings", monkeypatch, "docs/_ext")

    def opening(thing: type) -> str:
        return house._signature(None, "class", thing.__name__, thing, None, "(every, argument)", None)[0]

    assert opening(gg.Trainer) == "(net, *, loss='cross_entropy', optimizer=None, strategy=None, comm=None, ...)"
    assert opening(gg.GossipGraD) == "(every, argument)"
    assert opening(gg.CheckpointError) == "(every, argument)"
