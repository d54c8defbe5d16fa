"""Does the shuffle of samples matter? LeNet on MNIST sorted by label, in contiguous shards: each has one or two digits.

    python benchmarks/label_sorted.py --ranks 8 --epochs 12

In the virtual cluster, every strategy on the same samples, cosine decay of the rate. Prints one line a run: accuracy of
the consensus model, least and greatest of the replicas, consensus distance at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np

import gossipgrad as gg


def sorted_by_label(data: gg.data.Dataset) -> gg.data.Dataset:
    return data[np.argsort(data.targets, kind="stable")]


# From those that mix often to one that never does, with shares of --lr: a lone rank whose digits change diverges.
CONTESTANTS: dict[str, tuple[Callable[[bool], gg.strategies.Strategy], float]] = {
    "gossipgrad": (lambda shuffle: gg.GossipGraD(shuffle_samples=shuffle), 1),
    "gossipgrad, weights only": (lambda shuffle: gg.GossipGraD(exchange="weights", shuffle_samples=shuffle), 1),
    "quasi-global": (lambda shuffle: gg.QuasiGlobal(shuffle_samples=shuffle), 1),
    "quasi-global, mu 0": (lambda shuffle: gg.QuasiGlobal(mu=0.0, shuffle_samples=shuffle), 1),
    "periodic-allreduce, 16": (lambda shuffle: gg.PeriodicAllReduce(period=16, shuffle_samples=shuffle), 1),
    "no-exchange": (lambda shuffle: gg.NoExchange(shuffle_samples=shuffle), 0.25),
}


def runs() -> Iterator[tuple[str, gg.strategies.Strategy, float]]:
    yield "allreduce", gg.AllReduce(), 1
    for name, (make, share) in CONTESTANTS.items():
        for shuffle in (False, True):
            yield f"{name}, {'with' if shuffle else 'without'} shuffle", make(shuffle), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", default="mnist-10k", choices=("mnist", "mnist-10k"))
    parser.add_argument("--samples", type=int, help="train on the first so many of the set; default: all")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="a rank and step")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--warmup", type=int, default=50, help="steps; ranks that train alone may diverge without")
    parser.add_argument(
        "--shard",
        default="contiguous",
        choices=("contiguous", "interleaved"),
        help="interleaved, fit's default, divides the digits evenly: then there is nothing to shuffle",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    train, test = gg.data.load(arguments.dataset)
    train = sorted_by_label(train[: arguments.samples])
    print(f"{'seed':>4} {'strategy':46}{'consensus %':>12}{'replicas %':>16}{'distance':>10}", flush=True)
    for seed in arguments.seeds:
        for name, strategy, share in runs():
            trainer = gg.Trainer(
                gg.models.lenet(),
                optimizer=gg.SGD(
                    lr=share * arguments.lr, momentum=0.9, schedule=gg.schedules.Cosine(warmup=arguments.warmup)
                ),
                strategy=strategy,
                comm=gg.VirtualCluster(arguments.ranks),
                seed=seed,
            )
            options = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "progress": False}
            options["shard"] = arguments.shard
            try:
                distance = trainer.fit(train, **options).last["consensus_distance"]
            except FloatingPointError as error:
                print(f"{seed:>4} {name:46} diverged: {error}", flush=True)
                continue
            accuracy = 100 * trainer.evaluate(test)["accuracy"]
            replicas = [100 * one["accuracy"] for one in trainer.evaluate(test, replicas=True)]
            span = f"{min(replicas):.2f} to {max(replicas):.2f}"
            print(f"{seed:>4} {name:46}{accuracy:>12.2f}{span:>16}{distance:>10.2g}", flush=True)
            trainer.close()


if __name__ == "__main__":
    main()
