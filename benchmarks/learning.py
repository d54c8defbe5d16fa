"""What is learned: GossipGraD against AllReduce at equal samples, every replica against the consensus model.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/learning.py --ranks 2 4
    python benchmarks/learning.py --virtual-ranks 4 8 16 32 --global-batch 256 --lr 0.04 --schedule cosine
    python benchmarks/learning.py --virtual-ranks 4 8 16 32 --model cifar_quick --dataset cifar10 --global-batch 128
        --lr 0.04 --schedule cosine --epochs 8 --no-replicas -- --seed 1

--ranks: under mpiexec (`gossipgrad run`); --virtual-ranks: in the virtual cluster. Momentum 0.9. Without --global-batch
a rank has 64 samples a batch and the rate is 0.01 x ranks; with it the batch is divided among the ranks and the rate
is --lr for all. What follows `--` goes to `gossipgrad train`. Prints one line a run. To validate many replicas takes
longer than to train them: --no-replicas leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile


def train(ranks: int, strategy: str, arguments: argparse.Namespace, virtual: bool, extra: list[str]) -> dict:
    launcher = [] if virtual else ["run", "-n", str(ranks)]
    batch = arguments.global_batch // ranks if arguments.global_batch else 64
    rate = arguments.lr if arguments.global_batch else 0.01 * ranks
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [sys.executable, "-m", "gossipgrad", *launcher, "train"]
        command += ["--model", arguments.model, "--dataset", arguments.dataset, "--epochs", str(arguments.epochs)]
        command += [
            "--batch-size",
            str(batch),
            "--lr",
            str(rate),
            "--momentum",
            "0.9",
            "--schedule",
            arguments.schedule,
        ]
        command += ["--strategy", strategy, "--quiet", "--report", report, *extra]
        command += ["--validate-replicas"] if arguments.replicas else []
        if virtual:
            command += ["--virtual-ranks", str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--virtual-ranks", type=int, nargs="+", default=[])
    parser.add_argument("--strategies", nargs="+", default=["gossipgrad", "allreduce"])
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch", type=int, help="samples a step over all ranks")
    parser.add_argument("--lr", type=float, default=0.04, help="with --global-batch")
    parser.add_argument("--schedule", default="constant")
    parser.add_argument("--replicas", action=argparse.BooleanOptionalAction, default=True, help="validate each one")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="after --: more options of `gossipgrad train`")
    arguments = parser.parse_args()
    extra = [word for word in arguments.rest if word != "--"]
    runs = [(p, True) for p in arguments.virtual_ranks]
    runs = [(p, False) for p in arguments.ranks or ([] if runs else [2, 4])] + runs
    print(
        f"{'ranks':>5} {'strategy':20}{'consensus %':>12}{'replicas %':>18}{'distance':>10}{'s/epoch':>9}"
        f"{'exposed s':>11}"
    )
    for ranks, virtual in runs:
        for strategy in arguments.strategies:
            last = train(ranks, strategy, arguments, virtual, extra)["epochs"][-1]
            replicas = [100 * one["accuracy"] for one in last.get("validation_replicas", ())]
            print(
                f"{ranks:>5} {strategy:20}{100 * last['validation']['accuracy']:>12.2f}"
                f"{f'{min(replicas):.2f} to {max(replicas):.2f}' if replicas else '':>18}"
                f"{last['consensus_distance']:>10.2g}"
                f"{last['seconds']:>9.2f}{last['exposed_communication_seconds']:>11.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
