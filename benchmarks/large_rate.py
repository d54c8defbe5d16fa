"""Large rates on many ranks: the rate of one rank times the ranks or their square root, and LARS; gossip, all-reduce.

    python benchmarks/large_rate.py --json runs.json --plot large_rate.png

The networks and images of gossip_accuracy.py. A rank has 16 samples a step. Rates warm up for the first epoch and end
at 0. Prints a row for each normalisation, number of ranks, rule and strategy: the mean test accuracy of the consensus
model, least and greatest of the seeds, and the gap to the all-reduce, seed by seed. A run that diverged has 0 %.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable

from gossip_accuracy import NAMES, NORMS, network
from records import Record, Results, table

import gossipgrad as gg
from gossipgrad import drawing

BATCH = 16  # samples a rank and step
ONE = 0.01  # the rate of SGD on one rank

Rule = Callable[[int, gg.schedules.Schedule], gg.Optimizer]


def lars(lr: float) -> Rule:
    return lambda ranks, schedule: gg.LARS(lr, momentum=0.9, no_adaptation=(), schedule=schedule)


RULES: dict[str, Rule] = {
    "linear": lambda ranks, schedule: gg.SGD(ONE * ranks, momentum=0.9, schedule=schedule),
    "square root": lambda ranks, schedule: gg.SGD(ONE * math.sqrt(ranks), momentum=0.9, schedule=schedule),
    "LARS 2": lars(2.0),
    "LARS 8": lars(8.0),
    "LARS 32": lars(32.0),
    "LARS 2p": lambda ranks, schedule: lars(2.0 * ranks)(ranks, schedule),
}
STRATEGIES: dict[str, Callable[[int], gg.strategies.Strategy]] = {
    "all-reduce": lambda steps: gg.AllReduce(),
    "GossipGraD": lambda steps: gg.GossipGraD(exchange="weights+momentum"),
    "first": lambda steps: gg.GossipGraD(exchange="weights+momentum", allreduce_steps=steps // 4),
}


def trained(how: Record, samples: int) -> Record:
    train, test = gg.data.load("mnist")
    begin = time.perf_counter()
    steps = samples // (how["ranks"] * BATCH)  # an epoch
    with gg.Trainer(
        network(how["norm"]),
        optimizer=RULES[how["rule"]](how["ranks"], gg.schedules.Cosine(warmup=steps)),
        strategy=STRATEGIES[how["strategy"]](steps * how["epochs"]),
        comm=gg.VirtualCluster(how["ranks"]),
        seed=how["seed"],
    ) as trainer:
        try:
            trainer.fit(train[:samples], epochs=how["epochs"], batch_size=BATCH, drop_last=True, progress=False)
            accuracy = 100 * trainer.evaluate(test)["accuracy"]
        except FloatingPointError:
            accuracy = 0.0
    return {"accuracy": accuracy, "seconds": time.perf_counter() - begin}


def found(runs: Iterable[Record], how: Record) -> dict[int, float]:
    """Accuracy by seed."""
    return {run["seed"]: run["accuracy"] for run in runs if how.items() <= run.items()}


def rows(runs: list[Record], shown: Iterable[tuple[str, int, str, str]]) -> Iterable[list[str]]:
    for norm, ranks, rule, strategy in shown:
        how = {"norm": norm, "ranks": ranks, "rule": rule}
        own, other = found(runs, how | {"strategy": strategy}), found(runs, how | {"strategy": "all-reduce"})
        gaps = [other[seed] - own[seed] for seed in sorted(own.keys() & other.keys())]
        if own:
            numbers = statistics.fmean(own.values()), min(own.values()), max(own.values())
            each = " ".join(f"{gap:.2f}" for gap in gaps)
            yield [norm, str(ranks), rule, strategy, *(f"{number:.2f}" for number in numbers), each]


SHOWN = ["linear", "square root", "LARS 32", "LARS 2p"]


def plot(path: str, runs: list[Record], ranks: list[int]) -> None:
    """Accuracy over ranks, by rule of the rate; a panel for each normalisation. Lines are means, marks seeds."""
    norms = [norm for norm in NORMS if any(run["norm"] == norm for run in runs)]
    figure, panels = drawing.panels(7.2, 3.6, columns=len(norms))
    for norm, axes in zip(norms, panels, strict=True):
        for (i, rule), (j, strategy) in itertools.product(enumerate(SHOWN), enumerate(("GossipGraD", "all-reduce"))):
            by_ranks = [found(runs, {"norm": norm, "ranks": p, "rule": rule, "strategy": strategy}) for p in ranks]
            points = [(p, one) for p, one in zip(ranks, by_ranks, strict=True) if one]
            means = [statistics.fmean(one.values()) for _, one in points]
            label = f"{rule}, {strategy}" if norm == norms[0] else None
            axes.plot([p for p, _ in points], means, drawing.DASHES[j], color=drawing.colour(i), label=label)
            for p, one in points:
                axes.plot([p] * len(one), list(one.values()), "os"[j], ms=4, color=drawing.colour(i))
        axes.set(xscale="log", xlabel="ranks", ylim=(91, 99))
        axes.set_xticks(ranks, [str(p) for p in ranks])
        axes.minorticks_off()
        axes.set_title(NAMES[norm] if norm != "none" else "no normalisation", fontsize=9, color=drawing.INK)
        drawing.grid(axes)
    panels[0].set_ylabel("test accuracy, %")
    handles, labels = panels[0].get_legend_handles_labels()
    look = {"loc": "outside lower center", "ncols": 3, "frameon": False, "labelcolor": drawing.INK, "fontsize": 8}
    figure.legend(handles, labels, **look)
    drawing.finish(figure, path, f"Two convolutions on MNIST, {BATCH} samples a rank; a mark is a seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="runs, so that none is made twice")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=["none", "batch"])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["all-reduce", "GossipGraD"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--plot", help="picture: accuracy over ranks")
    a = parser.parse_args()
    results = Results(a.json, lambda one: f"{one['accuracy']:.2f} %")
    keys = ("seed", "ranks", "norm", "rule", "strategy")
    for values in itertools.product(a.seeds, a.ranks, a.norms, a.rules, a.strategies):
        how = dict(zip(keys, values, strict=True)) | {"epochs": a.epochs}
        results.run(how, lambda how=how: trained(how, a.samples))
    head = ["norm", "ranks", "rule", "strategy", "accuracy %", "least", "most", "gap by seed"]
    table(head, list(rows(results.records, itertools.product(a.norms, a.ranks, a.rules, a.strategies))))
    if a.plot:
        plot(a.plot, results.records, a.ranks)


if __name__ == "__main__":
    main()
