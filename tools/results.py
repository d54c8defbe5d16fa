"""Makes the tables and charts of docs/results.md from the figures of docs/measurements.md.

    python tools/results.py

A table of the page stands between `<!-- NAME -->` and `<!-- end -->`, its chart is docs/pictures/NAME.svg. Nothing
is measured here, and no figure is written here: each is looked up by its table's head, its row and its column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pictures import Bar, bars, dots

DOCS = Path(__file__).resolve().parent.parent / "docs"
NUMBER = r"\d+(?:\.\d+)?"

Made = tuple[str, list[list[str]]]  # a chart and a table, whose first row is its head


class Measured:
    """The tables of the page of measurements."""

    def __init__(self, text: str) -> None:
        self.text = text

    def rows(self, head: str) -> list[list[str]]:
        """The table whose first line begins with `head`, without that line and the one below it."""
        found = re.search(rf"^{re.escape(head)}.*\n\|[-|]+\n((?:\|.*\n)+)", self.text, re.MULTILINE)
        if not found:
            raise ValueError(f"docs/measurements.md has no table that begins with {head!r}")
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]

    def row(self, head: str, first: str) -> list[str]:
        for row in self.rows(head):
            if row[0] == first:
                return row
        raise ValueError(f"docs/measurements.md: the table {head!r} has no row {first!r}")

    def pair(self, sentence: str) -> list[str]:
        """The groups of a pattern in the text outside of tables, whose lines may break anywhere."""
        found = re.search(sentence.replace(" ", r"\s+"), self.text)
        if not found:
            raise ValueError(f"docs/measurements.md has no sentence {sentence!r}")
        return list(found.groups())


def quotient(cell: str) -> tuple[str, str, float]:
    """'peer / gossipgrad = ratio'"""
    found = re.fullmatch(rf"({NUMBER}) / ({NUMBER}) = ({NUMBER})", cell)
    if not found:
        raise ValueError(f"{cell!r} is no quotient of the form '14.4 / 4.47 = 3.22'")
    return found[1], found[2], float(found[3])


STEPS = "| network, batch | Xeon AMX, 1 | 2 | Xeon, 1 |"
HALVES = "| network, batch | Xeon AMX, 1 | 2 | Zen 4"
SHARED = "| LeNet (21) |"
SLOW = "| (21) | p = 2: ms a step, waited |"
DIGITS = "| LeNet, MNIST, 2 epochs"
PHOTOGRAPHS = "| CIFAR-10 quick, 8 epochs"
GPU = "| network, batch | type |"


def step_speed(measured: Measured) -> Made:
    left_out = ("`vgg16`, 8", "`alexnet`, 32")
    table = [["network, batch", "PyTorch or JAX, ms", "gossipgrad, ms", "times faster", "on four machines"]]
    chart = []
    for name, *cells in measured.rows(STEPS):
        if name in left_out:
            continue
        peer, own, ratio = quotient(cells[4])  # Zen 4, one thread
        all_ratios = [quotient(cells[i])[2] for i in (0, 2, 4, 6)]
        low, high = min(all_ratios), max(all_ratios)
        table.append([name, peer, own, f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"])
        chart.append(Bar(name.replace("`", ""), ratio, f"{ratio:.2f}", "gossip", low, high))
    title = "A training step, times faster than PyTorch or JAX, one thread"
    return bars(title, chart, 3.3, (1, "PyTorch, JAX = 1")), table


def exchange_cost(measured: Measured) -> Made:
    table = [["LeNet, two ranks", "float32 wire", "bfloat16 wire"]]
    chart = []

    def add(name: str, cells: Sequence[str], kind: str) -> None:
        table.append([name, *cells])
        chart.append(Bar(name.replace("`", ""), float(cells[0]), cells[0], kind))

    for name, *cells in measured.rows(SHARED):
        for one, value in zip(name.split("; "), cells[0].split("; "), strict=True):
            kind = "gossip" if one.startswith("GossipGraD") else "other"
            name = one.replace("with `coll", "all-reduce, `coll")
            add(name, [value, cells[1]], kind)
    title = "Step without an exchange over step with it: LeNet, two ranks, shared memory"
    return bars(title, chart, 1, (1, "free = 1")), table


def slow_links(measured: Measured) -> Made:
    wanted = {
        "no exchange": "other",
        "GossipGraD, weights, bfloat16 wire": "gossip",
        'GossipGraD, `exchange="weights"`': "gossip",
        "layer-wise all-reduce, bfloat16 wire": "other",
        "overlapped averaging": "other",
        "layer-wise all-reduce": "other",
        "PyTorch DDP (gloo), bfloat16": "other",
        "PyTorch DDP (gloo)": "other",
    }
    table = [["ms a step", "p = 2", "p = 4", "MB a rank, p = 4"]]
    chart = []
    for name, kind in wanted.items():
        _, two, _, four, megabytes = measured.row(SLOW, name)
        two, four = (cell.partition(",")[0] for cell in (two, four))
        table.append([name, two, four, megabytes])
        chart.append(Bar(name.replace("`", ""), float(four), f"{four} ms", kind))
    title = "Milliseconds of a step: 5.8 million weights, four ranks, links of 1 Gbit/s"
    return bars(title, chart, 410), table


def accuracy(measured: Measured) -> Made:
    shares = r"p = 4, 8, 16, 32 virtual"
    digits = next(row for row in measured.rows(DIGITS) if row[0].startswith(shares))
    gossip, reduced = (re.findall(r"\d\d\.\d\d", cell) for cell in digits[1:])
    photographs = [measured.row(PHOTOGRAPHS, name)[1:] for name in ("GossipGraD", "all-reduce")]
    table = [["ranks", "CIFAR-10: GossipGraD", "all-reduce", "MNIST: GossipGraD", "all-reduce"]]
    chart = []
    for i, ranks in enumerate((4, 8, 16, 32)):
        mine, theirs = photographs[0][i], photographs[1][i]
        table.append([str(ranks), mine, theirs, f"{gossip[i]} %", f"{reduced[i]} %"])
        chart.append((f"{ranks} ranks", [(float(mine[:4]), "gossip"), (float(theirs[:4]), "other")]))
    title = "Test accuracy of cifar_quick after 8 epochs, means of three seeds"
    names = [("gossip", "GossipGraD"), ("other", "all-reduce")]
    return dots(title, chart, 56, 75, (60, 65, 70, 75), " %", names), table


def gpu(measured: Measured) -> Made:
    table = [["network, batch", "type", "PyTorch, ms", "gossipgrad, ms", "times faster"]]
    chart = []
    for row in measured.rows(GPU):
        column, how = (3, "compiled") if row[3] else (2, "as a graph")
        peer, own, ratio = quotient(row[column])
        table.append([row[0], row[1], f"{peer}, {how}", own, f"{ratio:.2f}"])
        kind = "gossip" if ratio >= 1 else "behind"
        chart.append(Bar(f"{row[0].replace('`', '')}: PyTorch {how}", ratio, f"{ratio:.2f}", kind))
    return bars("A training step on a GPU, times faster than PyTorch", chart, 2.4, (1, "PyTorch = 1")), table


def losses(measured: Measured) -> Made:
    """Where GossipGraD, or the package, is behind. The quotient is below 1, for times, losses and accuracies alike."""

    def first(cell: str, pattern: str = NUMBER) -> str:
        found = re.search(pattern, cell)
        assert found, cell
        return found[0]

    alone, both = measured.pair(rf"`resnet50`, 64 samples each .*: ({NUMBER}) ms without an exchange, ({NUMBER}) with")
    overlapped = first(measured.row(SLOW, "overlapped averaging")[1])
    weights = first(measured.row(SLOW, 'GossipGraD, `exchange="weights"`')[1])
    default = measured.row(SHARED, "GossipGraD, weights and momentum (default on one machine)")[1]
    layered = first(measured.row(SHARED, "layer-wise all-reduce; overlapped averaging")[1])
    half = quotient(measured.row(HALVES, "`resnet50`, 16")[2])
    compiled = quotient(measured.row(GPU, "`resnet50`, 256")[3])
    accuracies = [first(measured.row(PHOTOGRAPHS, name)[4]) for name in ("all-reduce", "GossipGraD")]
    norms = measured.row("| two convolutions, MNIST", "`GroupNorm`, 128 ranks x 4 samples, three seeds")
    few = [first(cell) for cell in norms[1:3]]
    cases: list[tuple[str, str, str, str]] = [  # the case, the figures of both, and their unit
        ("1 Gbit/s, 2 ranks: overlapped averaging", overlapped, weights, "{} ms"),
        ("two ranks on one GPU, `resnet50`: no exchange", alone, both, "{} ms"),
        ("`resnet50` on a GPU: PyTorch compiled", compiled[0], compiled[1], "{} ms"),
        ("LeNet, shared memory: layer-wise all-reduce", layered, default, "{}"),
        ("`GroupNorm`, 128 ranks x 4 samples: all-reduce", few[0], few[1], "{} %"),
        ("CIFAR-10, 32 ranks: all-reduce", accuracies[0], accuracies[1], "{} %"),
        ("`resnet50` in bfloat16, AMX, 2 threads: PyTorch", half[0], half[1], "{} ms"),
    ]

    def ratio(case: tuple[str, str, str, str]) -> float:
        theirs, own = float(case[1]), float(case[2])
        return min(theirs / own, own / theirs)

    cases.sort(key=ratio)
    table = [["case: the better one", "it has", "gossipgrad has", "quotient"]]
    table += [[one[0], one[3].format(one[1]), one[3].format(one[2]), f"{ratio(one):.2f}"] for one in cases]
    chart = [Bar(one[0].replace("`", ""), ratio(one), f"{ratio(one):.2f}", "behind") for one in cases]
    return bars("Where gossipgrad is behind: 1 is equal", chart, 1, (1, "equal = 1")), table


QUESTIONS: dict[str, Callable[[Measured], Made]] = {
    "step-speed": step_speed,
    "exchange-cost": exchange_cost,
    "slow-links": slow_links,
    "accuracy": accuracy,
    "gpu": gpu,
    "behind": losses,
}


def lines(table: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *rows = table
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |".replace("|  |", "| |")


def made(page: str, measurements: str) -> tuple[str, dict[str, str]]:
    """The page with its tables, and the charts by name."""
    measured = Measured(measurements)
    charts = {}
    for name, make in QUESTIONS.items():
        charts[name], table = make(measured)
        words = "\n".join(lines(table))
        begin = f"<!-- {name} -->\n"
        count = page.count(begin)
        if count != 1:
            raise ValueError(f"docs/results.md: {count} places {begin.strip()} ... <!-- end -->; exactly 1 is needed")
        before, _, after = page.partition(begin)
        page = f"{before}{begin}\n{words}\n\n<!-- end -->{after.partition('<!-- end -->')[2]}"
    return page, charts


def main() -> None:
    path = DOCS / "results.md"
    page, charts = made(path.read_text(encoding="utf-8"), (DOCS / "measurements.md").read_text(encoding="utf-8"))
    path.write_text(page, encoding="utf-8")
    for name, chart in charts.items():
        (DOCS / "pictures" / f"{name}.svg").write_text(chart, encoding="utf-8")


if __name__ == "__main__":
    main()
