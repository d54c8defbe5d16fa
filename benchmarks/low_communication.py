"""Who learns most for few bytes: DiLoCo and NoLoCo beside GossipGraD, its slices, local SGD and AllReduce.

    export GOSSIPGRAD_DATA=../shared/data
    python benchmarks/low_communication.py --json low.json --plot docs/low_communication.png
    python benchmarks/low_communication.py --tasks cifar_quick --epochs 1 --ways allreduce noloco    (a short look)

Every way trains on the same samples, on --ranks of a virtual cluster: char_gpt, a smaller one, on Shakespeare, and
cifar_quick on images of CIFAR-10. After each epoch the mean of the replicas is validated. The table has what a rank
sends in a step, the final validation loss, and how many virtual seconds the loss of --target takes over each network
(default: 1.2 times AllReduce's last one; on straight lines between the epochs; -: not within these samples). No
result here depends on clocks, so seconds are the steps times the seconds of a step, which a short run of two periods
over that network gives, at batches of one sample and --compute-time seconds a step.

--json writes every run when it is done; runs that the file has already are not run again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import records
from records import Record

import gossipgrad as gg

Pair = tuple[gg.Dataset, gg.Dataset]


@dataclass(frozen=True)
class Task:
    """A network, its sets for so many training samples, how it is trained; batch: of a rank."""

    net: Callable[[], gg.Model]
    sets: Callable[[int], Pair]
    optimizer: Callable[[], gg.SGD | gg.Adam]
    samples: int
    batch: int
    epochs: int


def shakespeare(samples: int) -> Pair:
    path = Path(os.environ["GOSSIPGRAD_DATA"]) / "shakespeare" / "input.txt"
    train, test = gg.data.text(path, sequence=64, windows="random", seed=0)
    return train[:samples], test[:256]  # other windows in each epoch


def cifar10(samples: int) -> Pair:
    mean, deviation = np.float32([0.4914, 0.4822, 0.4465]), np.float32([0.247, 0.243, 0.262])
    colours = {"scale": 1 / (255 * deviation), "shift": -mean / deviation}
    train, test = (gg.Dataset(one.samples, one.targets, name="cifar10", **colours) for one in gg.data.load("cifar10"))
    return train[:samples], test[:1000]


TASKS = {
    "char_gpt": Task(
        lambda: gg.models.char_gpt(sequence=64, layers=2, heads=2, width=64),
        shakespeare,
        lambda: gg.Adam(lr=2e-3, schedule=gg.schedules.Cosine(warmup=30)),
        4000,
        8,
        8,
    ),
    "cifar_quick": Task(
        gg.models.cifar_quick,
        cifar10,
        lambda: gg.SGD(lr=0.02, momentum=0.9, schedule=gg.schedules.Cosine(warmup=30)),
        6000,
        8,
        5,
    ),
}

Way = Callable[[int], gg.Strategy]  # of a period
WAYS: dict[str, Way] = {
    "allreduce": lambda period: gg.AllReduce(),
    "gossip": lambda period: gg.GossipGraD(exchange="weights", staleness=1),
    "gossip, 8 slices": lambda period: gg.GossipGraD(slices=8, exchange="weights", staleness=1),
    "gossip, a slice as NoLoCo": lambda period: gg.GossipGraD(slices=period, exchange="weights", staleness=1),
    "local SGD": lambda period: gg.PeriodicAllReduce(period=period),
    "diloco": lambda period: gg.DiLoCo(period=period),
    "diloco, Nesterov": lambda period: gg.DiLoCo(period=period, outer_nesterov=True),
    "diloco, Nesterov, 5 fragments": lambda period: gg.DiLoCo(period=period, outer_nesterov=True, fragments=5),
    "diloco, momentum 0.5": lambda period: gg.DiLoCo(period=period, outer_momentum=0.5),
    "diloco, 5 fragments": lambda period: gg.DiLoCo(period=period, fragments=5),
    "noloco": lambda period: gg.NoLoCo(period=period),
    "noloco, Nesterov": lambda period: gg.NoLoCo(period=period, outer_nesterov=True),
    "noloco, Nesterov, 5 fragments": lambda period: gg.NoLoCo(period=period, outer_nesterov=True, fragments=5),
    "noloco, momentum 0.5": lambda period: gg.NoLoCo(period=period, outer_momentum=0.5),
    "noloco, 5 fragments": lambda period: gg.NoLoCo(period=period, fragments=5),
}
# Bytes and seconds.
NETWORKS = {
    "1 Gbit/s": gg.Network(latency=1e-4, bandwidth=125e6),
    "100 Mbit/s": gg.Network(latency=1e-3, bandwidth=12.5e6),
    "10 Mbit/s": gg.Network(latency=1e-2, bandwidth=1.25e6),
}


def learn(name: str, way: str, arguments: argparse.Namespace) -> Record:
    """Validation losses after each epoch, steps up to there, bytes of a rank in a step."""
    task = TASKS[name]
    train, test = task.sets(arguments.samples or task.samples)
    trainer = gg.Trainer(
        task.net(),
        optimizer=task.optimizer(),
        strategy=WAYS[way](arguments.period),
        comm=gg.VirtualCluster(arguments.ranks),
    )
    begin = time.perf_counter()
    try:
        history = trainer.fit(
            train,
            validation=test,
            epochs=arguments.epochs or task.epochs,
            batch_size=task.batch,
            progress=False,
        )
    except FloatingPointError as error:
        return {"seconds": time.perf_counter() - begin, "failure": str(error)}
    finally:
        trainer.close()
    steps = [record["steps"] for record in history]
    return {
        "seconds": time.perf_counter() - begin,
        "parameters": trainer.net.parameters,
        "steps": [int(one) for one in np.cumsum(steps)],
        "losses": [record["validation"]["loss"] for record in history],
        "distance": history.last["consensus_distance"],
        "bytes": sum(record["bytes_sent"] for record in history) / (arguments.ranks * sum(steps)),
    }


def step_seconds(name: str, way: str, network: str, arguments: argparse.Namespace) -> Record:
    """Virtual seconds of a step over this network."""
    task, p, link = TASKS[name], arguments.ranks, NETWORKS[network]
    train, _ = task.sets(2 * arguments.period * p)
    cluster = gg.VirtualCluster(p, latency=link.latency, bandwidth=link.bandwidth, compute_time=arguments.compute_time)
    trainer = gg.Trainer(task.net(), optimizer=gg.SGD(lr=0.0), strategy=WAYS[way](arguments.period), comm=cluster)
    begin = time.perf_counter()
    last = trainer.fit(train, batch_size=1, progress=False).last
    trainer.close()
    return {"seconds": time.perf_counter() - begin, "step": last["virtual_seconds"] / last["steps"]}


def said(run: Record) -> str:
    return f"loss {run['losses'][-1]:.4f}" if "losses" in run else run.get("failure", "")


def reached(run: Record, target: float) -> float | None:
    """The step at which the validation loss falls to the target."""
    before = None
    for step, loss in zip(run["steps"], run["losses"], strict=True):
        if loss <= target:
            if before is None:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - target) / (before[1] - loss)
        before = step, loss
    return None


def table(name: str, runs: dict[str, Record], steps: dict[str, dict[str, float]], target: float) -> None:
    print(f"\n{name}: validation loss; virtual seconds until it is {target:.4g}")
    head = ["", "kB a rank and step", "loss", "distance", *steps]
    rows = []
    for way, run in runs.items():
        if "failure" in run:
            rows.append([way, "-", "diverged", *["-"] * (1 + len(steps))])
            continue
        at = reached(run, target)
        times = ["-" if at is None else f"{at * of[way]:,.1f}" for of in steps.values()]
        rows.append([way, f"{run['bytes'] / 1e3:,.2f}", f"{run['losses'][-1]:.4f}", f"{run['distance']:.2g}", *times])
    records.table(head, rows)


def style(way: str) -> Record:
    i = list(WAYS).index(way)
    return {"color": f"C{i % 10}", "marker": "osD^vP*X<>hdp8H1"[i], "label": way, "linestyle": "-" if i < 10 else ":"}


def logarithmic(axes: Any, name: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(name)


def plot(path: str, found: dict[str, tuple[dict[str, Record], dict[str, dict[str, float]]]]) -> None:
    """A row a task: bytes against the final loss, and the loss over time on the slower networks."""
    from matplotlib.figure import Figure

    slow = list(NETWORKS)[1:]
    drawn = Figure(figsize=(5 * (1 + len(slow)) + 3, 4.2 * len(found)), layout="constrained")
    axes = drawn.subplots(len(found), 1 + len(slow), squeeze=False)
    for row, (name, (runs, steps)) in zip(axes, found.items(), strict=True):
        good = {way: run for way, run in runs.items() if "failure" not in run}
        lowest = min(min(run["losses"]) for run in good.values())
        for way, run in good.items():
            row[0].plot(run["bytes"] / 1e3, run["losses"][-1], **{**style(way), "linestyle": ""})
            for one, network in zip(row[1:], slow, strict=True):
                seconds = [step * steps[network][way] for step in run["steps"]]
                one.plot(seconds, run["losses"], markersize=4, **style(way))
        logarithmic(row[0], "kB that a rank sends in a step")
        row[0].set_ylabel("final validation loss")
        row[0].set_title(name)
        for one, network in zip(row[1:], slow, strict=True):
            logarithmic(one, "virtual seconds")
            one.set_ylabel("validation loss")
            one.set_ylim(0.98 * lowest, 1.45 * lowest)
            one.set_title(f"{name}, {network}")
        for one in row:
            one.grid(alpha=0.3)
    drawn.legend(*axes[0][-1].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    drawn.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--period", type=int, default=20, help="steps between outer steps and averages")
    parser.add_argument("--epochs", type=int, help="default: each task's own")
    parser.add_argument("--samples", type=int, help="of an epoch; default: each task's own")
    parser.add_argument("--compute-time", type=float, default=0.05, help="virtual seconds of a step's arithmetic")
    parser.add_argument("--target", type=float, help="validation loss; default: 1.2 times AllReduce's last one")
    parser.add_argument("--json", help="file of all runs")
    parser.add_argument("--plot", help="file of the picture")
    arguments = parser.parse_args()
    results = records.Results(arguments.json, said)
    found = {}
    for name in arguments.tasks:
        runs: dict[str, Record] = {}
        steps: dict[str, dict[str, float]] = {network: {} for network in NETWORKS}
        for way in arguments.ways:
            what = {"task": name, "way": way, "ranks": arguments.ranks, "period": arguments.period}
            size = {"epochs": arguments.epochs, "samples": arguments.samples}
            runs[way] = results.run({**what, **size}, lambda name=name, way=way: learn(name, way, arguments))
            for network in NETWORKS:
                timed = {**what, "network": network, "compute_time": arguments.compute_time}
                steps[network][way] = results.run(
                    timed, lambda name=name, way=way, network=network: step_seconds(name, way, network, arguments)
                )["step"]
        finished = [run for run in runs.values() if "failure" not in run]
        reference = runs["allreduce"] if runs.get("allreduce") in finished else finished[0]
        table(name, runs, steps, arguments.target or 1.2 * reference["losses"][-1])
        found[name] = (runs, steps)
    if arguments.plot:
        plot(arguments.plot, found)


if __name__ == "__main__":
    main()
