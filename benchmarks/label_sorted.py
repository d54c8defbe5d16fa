"""Does the shuffle of samples matter? LeNet on MNIST sorted by label, so that each rank's shard has one or two digits only.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/label_sorted.py --ranks 8 --epochs 2

In the virtual cluster, every strategy on the same samples, cosine decay of the rate. Prints one line a run: accuracy of the
consensus model, least and greatest of the replicas, consensus distance at the end.
"""

from __future__ import annotations

import argparse

import numpy as np

import gossipgrad as gg


def sorted_by_label(data: gg.data.Dataset) -> gg.data.Dataset:
    order = np.argsort(data.targets, kind="stable")
    return gg.data.Dataset(
        data.samples[order], data.targets[order], data.scale, data.shift, name=f"{data.name}, sorted"
    )


def contestants() -> dict[str, gg.strategies.Strategy]:
    found: dict[str, gg.strategies.Strategy] = {"allreduce": gg.AllReduce()}
    for exchange in ("weights+momentum", "weights"):
        for shuffle in (False, True):
            name = f"gossipgrad, {exchange}, {'with' if shuffle else 'without'} shuffle"
            found[name] = gg.GossipGraD(exchange=exchange, shuffle_samples=shuffle)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", default="mnist", choices=("mnist", "mnist-10k"))
    parser.add_argument("--samples", type=int, help="train on the first so many of the set; default: all")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="a rank and step")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.04)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    train, test = gg.data.load(arguments.dataset)
    train = sorted_by_label(train[: arguments.samples])
    print(f"{'seed':>4} {'strategy':46}{'consensus %':>12}{'replicas %':>16}{'distance':>10}", flush=True)
    for seed in arguments.seeds:
        for name, strategy in contestants().items():
            trainer = gg.Trainer(
                gg.models.lenet(),
                optimizer=gg.SGD(lr=arguments.lr, momentum=0.9, schedule=gg.schedules.Cosine()),
                strategy=strategy,
                comm=gg.VirtualCluster(arguments.ranks),
                seed=seed,
            )
            options = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "progress": False}
            distance = trainer.fit(train, **options).last["consensus_distance"]
            accuracy = 100 * trainer.evaluate(test)["accuracy"]
            replicas = [100 * one["accuracy"] for one in trainer.evaluate(test, replicas=True)]
            span = f"{min(replicas):.2f} to {max(replicas):.2f}"
            print(f"{seed:>4} {name:46}{accuracy:>12.2f}{span:>16}{distance:>10.2g}", flush=True)
            trainer.close()


if __name__ == "__main__":
    main()
