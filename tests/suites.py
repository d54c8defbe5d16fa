"""The suites: core by default, all but long tests with --full, all with --long; and on how many cores they run.

The core suite has CASES cases of each test, evenly spread, unless the test is marked:
  core(n)    n of its cases are in the core suite
  full       none is: it takes long for what it can find
  long       none is, nor in the full suite: a soak, or hundreds of killed runs
Marks stand on a test, on a case (pytest.param(..., marks=)), on a class or, as pytestmark, on a file. The command line
overrides marks: a named file runs all tests but long ones; a named test, and tests selected by -k or -m, run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

MARKERS = (
    "full: takes long for what it can find, so it runs with --full",
    "core(n): n of the cases, evenly spread, are in the core suite; the others run with --full",
    "long: a soak, or hundreds of killed runs, so it runs with --long",
)
CORE, FULL, LONG = range(3)
LEFT = pytest.StashKey[int]()
CASES = 8
MAX_PROCESSES = 16  # each has MPI jobs of several ranks

# Reasons of skips that --tools makes failures.
MISSING = re.compile(r"could not import|no g\+\+ here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="all tests but long ones; without it: the core suite")
    parser.addoption("--long", action="store_true", help="all tests, also soaks and hundreds of killed runs")
    parser.addoption("--tools", action="store_true", help="a missing module or program fails the tests that want it")


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def named(config: pytest.Config) -> list[str]:
    """The files and tests on the command line."""
    return [str(name) for name in config.invocation_params.args if re.search(r"\.py(::.*)?$", str(name))]


def wanted(config: pytest.Config) -> int:
    """The suite that the command line asks for."""
    files = named(config)
    selected = [text for text in (config.option.keyword, config.option.markexpr) if text and "not " not in text]
    if config.option.long or selected or any("::" in name for name in files):
        return LONG
    return FULL if config.option.full or files else CORE


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Whole suites run on all cores; a debugger, tests by name, -n and --dist decide for themselves."""
    option = config.option
    option.suite = wanted(config)
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput") or named(config):
        return
    if option.usepdb or option.trace or option.capture == "no" or option.collectonly:
        return
    if option.numprocesses is None and option.dist == "no" and not option.tx:
        option.numprocesses = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
        option.dist = "loadfile"
        option.maxworkerrestart = "0"  # with "loadfile" and a new process, xdist 3.8 waits for ever after a crash


def _mark_cases(items: list[pytest.Item]) -> None:
    """Marks as full the cases that are more than a test has in the core suite."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("full") and not item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        mark = found[0].get_closest_marker("core")
        count = min(mark.args[0] if mark else CASES, len(found))
        chosen = {i * len(found) // count for i in range(count)}
        for i, item in enumerate(found):
            if i not in chosen:
                item.add_marker("full")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what the suite has not."""
    _mark_cases(items)
    left: list[pytest.Item] = []
    kept: list[pytest.Item] = []
    for item in items:
        least = LONG if item.get_closest_marker("long") else FULL if item.get_closest_marker("full") else CORE
        (kept if least <= config.option.suite else left).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)
    config.stash[LEFT] = len(left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of xdist tells the first one."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left = config.stash.get(LEFT, 0)
    if left:
        remedy = "--full, or by name" if config.option.suite == CORE else "--long, or by name"
        terminalreporter.write_line(f"{left} tests were left out: they run with {remedy}")


def _missing_fails(config: pytest.Config, report: Any) -> None:
    if config.option.tools and report.skipped and MISSING.search(str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"--tools: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    _missing_fails(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    _missing_fails(collector.config, report)
    return report
