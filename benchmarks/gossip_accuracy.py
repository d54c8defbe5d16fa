"""What gossip costs in accuracy: two convolutions on MNIST, many virtual ranks with few samples each, by normalisation.

    python benchmarks/gossip_accuracy.py --json runs.json
    python benchmarks/gossip_accuracy.py --json runs.json --norms batch --strategies weights quasi-global

The first 10,000 images train, the 10,000 official ones test. Runs with one seed have equal initial weights. Prints a
row for each normalisation, batch and strategy: the mean accuracy of the consensus model at its best rate, least and
greatest of the seeds, and the gap to the all-reduce at its best rate, seed by seed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
from records import Record, Results, table

import gossipgrad as gg

NORMS: dict[str, Callable[[int], list[gg.Layer]]] = {
    "batch": lambda channels: [gg.BatchNorm2d()],
    "group": lambda channels: [gg.GroupNorm(channels // 8)],
    "none": lambda channels: [],
}
STRATEGIES: dict[str, gg.strategies.Strategy] = {
    "allreduce": gg.AllReduce(),
    "gossipgrad": gg.GossipGraD(exchange="weights+momentum"),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="runs, so that none is made twice")
    parser.add_argument("--ranks", type=int, nargs="+", default=[128])
    parser.add_argument("--batches", type=int, nargs="+", default=[4], help="samples a rank and step")
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["allreduce", "gossipgrad"])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=10_000)
    a = parser.parse_args()
    results = Results(a.json, lambda one: f"{one['accuracy']:.2f} %")
    for values in itertools.product(a.seeds, a.ranks, a.batches, a.norms, a.strategies, a.rates):
        how = dict(zip(KEYS, values, strict=True))
        results.run(how | {"epochs": a.epochs, "samples": a.samples}, lambda how=how: trained(how, a.epochs, a.samples))
    head = ["norm", "ranks", "batch", "strategy", "accuracy %", "least", "most", "gap", "by seed"]
    table(head, list(rows(results.records)))


if __name__ == "__main__":
    main()
