"""LeNet on full MNIST: GossipGraD against AllReduce at the same settings, and every replica against the consensus
model.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/learning.py --ranks 2 4

Batch 64 a rank, lr 0.01 x p, momentum 0.9, 2 epochs, under mpiexec (`gossipgrad run`). Prints one line a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile


def train(ranks: int, strategy: str, epochs: int, extra: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "gossipgrad",
            "run",
            "-n",
            str(ranks),
            "train",
            "--model",
            "lenet",
            "--dataset",
            "mnist",
        ]
        command += ["--batch-size", "64", "--lr", str(0.01 * ranks), "--momentum", "0.9", "--epochs", str(epochs)]
        command += ["--strategy", strategy, "--validate-replicas", "--quiet", "--report", report, *extra]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=["gossipgrad", "allreduce"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="after --: more options of `gossipgrad train`")
    arguments = parser.parse_args()
    extra = [word for word in arguments.rest if word != "--"]
    print(
        f"{'ranks':>5} {'strategy':12}{'consensus %':>12}{'replicas %':>26}{'distance':>10}{'s/epoch':>9}"
        f"{'exposed s':>11}"
    )
    for ranks in arguments.ranks:
        for strategy in arguments.strategies:
            last = train(ranks, strategy, arguments.epochs, extra)["epochs"][-1]
            replicas = " ".join(f"{100 * one['accuracy']:.2f}" for one in last["validation_replicas"])
            print(
                f"{ranks:>5} {strategy:12}{100 * last['validation']['accuracy']:>12.2f}{replicas:>26}"
                f"{last['consensus_distance']:>10.2g}{last['seconds']:>9.2f}{last['exposed_communication_seconds']:>11.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
