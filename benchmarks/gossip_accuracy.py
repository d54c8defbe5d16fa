"""What gossip costs in accuracy: two convolutions on MNIST, many virtual ranks with few samples each, by normalisation.

    python benchmarks/gossip_accuracy.py --json runs.json
    python benchmarks/gossip_accuracy.py --json runs.json --norms batch --strategies weights quasi-global
    python benchmarks/gossip_accuracy.py --json runs.json --plot accuracy.png --plot-cost spread.png

The first 10,000 images train, the 10,000 official ones test. Runs with one seed have equal initial weights. Prints a
row for each normalisation, batch and strategy: the mean accuracy of the consensus model at its best rate, least and
greatest of the seeds, and the gap to the all-reduce at its best rate, seed by seed. --plot draws all runs of the file.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
from records import Record, Results, table

import gossipgrad as gg
from gossipgrad import drawing

NORMS: dict[str, Callable[[int], list[gg.Layer]]] = {
    "batch": lambda channels: [gg.BatchNorm2d()],
    "group": lambda channels: [gg.GroupNorm(channels // 8)],
    "none": lambda channels: [],
}
STRATEGIES: dict[str, gg.strategies.Strategy] = {
    "allreduce": gg.AllReduce(),
    "gossipgrad": gg.GossipGraD(exchange="weights+momentum"),
    "nodes": gg.GossipGraD(exchange="weights+momentum", hierarchical=True, ranks_per_node=8),
    "first": gg.GossipGraD(exchange="weights+momentum", allreduce_steps=40),
    "weights": gg.GossipGraD(exchange="weights"),
    "quasi-global": gg.QuasiGlobal(mu=0.0),
    "staleness": gg.GossipGraD(exchange="weights+momentum", staleness=1),
    "shuffle": gg.GossipGraD(exchange="weights+momentum", shuffle_samples=True),
}
KEYS = ("seed", "ranks", "batch", "norm", "strategy", "lr")


def network(norm: str) -> gg.Sequential:
    layers: list[gg.Layer] = []
    for channels in (16, 32):
        layers += [gg.Conv2d(channels, 5), *NORMS[norm](channels), gg.ReLU(), gg.MaxPool2d(2)]
    return gg.Sequential([*layers, gg.Flatten(), gg.Linear(10)], input=(1, 28, 28), name=f"two-conv-{norm}")


def norms_of(arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """The norm of each layer's weights."""
    return {name: float(np.linalg.norm(array)) for name, array in arrays.items() if name.endswith(".weight")}


def trained(how: Record, epochs: int, samples: int) -> Record:
    train, test = gg.data.load("mnist")
    begin = time.perf_counter()
    with gg.Trainer(
        network(how["norm"]),
        optimizer=gg.SGD(lr=how["lr"], momentum=0.9, schedule=gg.schedules.Cosine(warmup=10)),
        strategy=STRATEGIES[how["strategy"]],
        comm=gg.VirtualCluster(how["ranks"]),
        seed=how["seed"],
    ) as trainer:
        try:
            last = trainer.fit(train[:samples], epochs=epochs, batch_size=how["batch"], progress=False).last
        except FloatingPointError:
            return {"accuracy": 0.0, "seconds": time.perf_counter() - begin}
        own = [norms_of(trainer.weights(rank)) for rank in range(0, how["ranks"], max(how["ranks"] // 8, 1))]
        return {
            "accuracy": 100 * trainer.evaluate(test)["accuracy"],
            "train_loss": last["train_loss"],
            "distance": last["consensus_distance"],
            "norms": norms_of(trainer.consensus_weights()),
            "own_norms": {name: statistics.fmean(one[name] for one in own) for name in own[0]},
            "seconds": time.perf_counter() - begin,
        }


def best(runs: Iterable[Record], how: Record) -> dict[int, float]:
    """Accuracy by seed at the rate with the best mean; {} if there is none."""
    by_rate: dict[float, dict[int, float]] = {}
    for run in runs:
        if how.items() <= run.items():
            by_rate.setdefault(run["lr"], {})[run["seed"]] = run["accuracy"]
    return max(by_rate.values(), key=lambda found: statistics.fmean(found.values()), default={})


def rows(runs: list[Record]) -> Iterable[list[str]]:
    for norm, ranks, batch, strategy in sorted({(r["norm"], r["ranks"], r["batch"], r["strategy"]) for r in runs}):
        how = {"norm": norm, "ranks": ranks, "batch": batch}
        found, other = best(runs, how | {"strategy": strategy}), best(runs, how | {"strategy": "allreduce"})
        gaps = [other[seed] - found[seed] for seed in sorted(found.keys() & other.keys())]
        accuracy = found.values()
        yield [
            *(norm, str(ranks), str(batch), strategy, f"{statistics.fmean(accuracy):.2f}"),
            *(f"{min(accuracy):.2f}", f"{max(accuracy):.2f}", f"{statistics.fmean(gaps):.2f}" if gaps else "-"),
            " ".join(f"{gap:.2f}" for gap in gaps),
        ]


SHOWN = {"allreduce": "all-reduce", "nodes": "nodes of 8", "gossipgrad": "GossipGraD"}
NAMES = {"batch": "BatchNorm", "group": "GroupNorm", "none": "none"}


def plot(path: str, runs: list[Record]) -> None:
    """Accuracy of each seed at the strategy's best rate, by normalisation."""
    figure, axes = drawing.panels(7.2, 3.2)
    shown = [norm for norm in NORMS if any(run["norm"] == norm and run["strategy"] in SHOWN for run in runs)]
    for i, strategy in enumerate(SHOWN):
        for at, norm in enumerate(shown):
            found = best(runs, {"norm": norm, "strategy": strategy})
            places = [at + 0.25 * (i - 1) + 0.04 * (turn - 1) for turn in range(len(found))]
            label = SHOWN[strategy] if at == 0 else None
            axes.plot(places, list(found.values()), "os^"[i], color=drawing.colour(i), ms=6, label=label)
    axes.set_xticks(range(len(shown)), [NAMES[norm] for norm in shown])
    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylabel("test accuracy, %")
    drawing.grid(axes, "y")
    drawing.legend(axes)
    ranks, batch, epochs = (sorted({run[key] for run in runs}) for key in ("ranks", "batch", "epochs"))
    words = f"{ranks[-1]} ranks with {batch[-1]} samples each; {epochs[-1]} epochs; a mark a seed, at the best rate"
    drawing.finish(figure, path, f"Two convolutions on MNIST; {words}")


# With BatchNorm, rate 0.1, seed 0: rounds of gossip a step, made between the steps. The variance of replicas for
# gradients of variance 1 by k rounds is the sum over ages t of ((1 - 0.9^(t + 1)) / 0.1)^2 * (2^(-k (t + 1)) - 1/128).
ROUNDS = {"2 rounds": (0.497 / 4, 0.56), "3 rounds": (0.145 / 4, 0.24)}


def plot_cost(path: str, runs: list[Record]) -> None:
    """The gap to the all-reduce at rate 0.1 over the spread of replicas that theory gives."""
    spread = gg.strategies.auto.spread
    variances = {"GossipGraD": spread(128) / 4, "weights alone": spread(128, False) / 4, "nodes of 8": spread(16) / 32}
    names = {"gossipgrad": "GossipGraD", "weights": "weights alone", "nodes": "nodes of 8"}
    figure, axes = drawing.panels(7.2, 3.6)
    for at, norm in enumerate(("batch", "group")):
        points = []
        for strategy, name in names.items():
            how = {"norm": norm, "lr": 0.1, "ranks": 128, "batch": 4}
            found, other = (best(runs, how | {"strategy": one}) for one in (strategy, "allreduce"))
            points += [(math.sqrt(variances[name]), other[seed] - found[seed], name) for seed in found.keys() & other]
        points += [(math.sqrt(v), gap, name) for name, (v, gap) in ROUNDS.items() if norm == "batch"]
        x, y, _ = zip(*points, strict=True)
        axes.plot(x, y, "os"[at], color=drawing.colour(at), ms=6, label=NAMES[norm])
        if norm == "batch":
            for place, height, name in {point[2]: point for point in sorted(points)}.values():
                away, side = {"nodes of 8": ((9, -4), "left"), "3 rounds": ((-7, 2), "right")}.get(
                    name, ((0, 9), "left")
                )
                look = {"textcoords": "offset points", "color": drawing.INK, "size": 8, "ha": side}
                axes.annotate(name, (place, height), away, **look)
    end = math.sqrt(variances["weights alone"])
    axes.plot([0, end], [0, gg.strategies.auto.POINTS["batch"] * end], "-", color=drawing.INK, label="estimate")
    axes.set(xlim=(0, 1.15 * end), ylim=(0, None), xlabel="spread of the replicas, by theory", ylabel="gap, points")
    drawing.grid(axes)
    drawing.legend(axes)
    title = "What gossip costs over how far replicas are apart; 128 ranks with 4 samples each, rate 0.1; a mark a seed"
    drawing.finish(figure, path, title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="runs, so that none is made twice")
    parser.add_argument("--ranks", type=int, nargs="+", default=[128])
    parser.add_argument("--batches", type=int, nargs="+", default=[4], help="samples a rank and step")
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["allreduce", "gossipgrad", "nodes"])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--plot", help="picture: accuracy by normalisation")
    parser.add_argument("--plot-cost", help="picture: the gap over the spread of replicas")
    a = parser.parse_args()
    results = Results(a.json, lambda one: f"{one['accuracy']:.2f} %")
    for values in itertools.product(a.seeds, a.ranks, a.batches, a.norms, a.strategies, a.rates):
        how = dict(zip(KEYS, values, strict=True))
        results.run(how | {"epochs": a.epochs, "samples": a.samples}, lambda how=how: trained(how, a.epochs, a.samples))
    head = ["norm", "ranks", "batch", "strategy", "accuracy %", "least", "most", "gap", "by seed"]
    table(head, list(rows(results.records)))
    if a.plot:
        plot(a.plot, results.records)
    if a.plot_cost:
        plot_cost(a.plot_cost, results.records)


if __name__ == "__main__":
    main()
