"""Who learns most for few bytes: DiLoCo and NoLoCo beside GossipGraD, its slices, local SGD and AllReduce.

    export GOSSIPGRAD_DATA=../shared/data
    python benchmarks/low_communication.py --json low.json --plot docs/low_communication.png
    python benchmarks/low_communication.py --tasks cifar_quick --epochs 1 --ways allreduce noloco    (a short look)

Every way trains on the same samples, on --ranks of a virtual cluster: char_gpt, a smaller one, on Shakespeare, and
cifar_quick on images of CIFAR-10. After each epoch the mean of the replicas is validated. The table has a rank's
bytes in a step, the final validation loss, and the virtual seconds to the loss of --target over each network. The
default of --target is 1.2 times AllReduce's last loss. Losses between epochs lie on straight lines; -: not reached.
No result depends on clocks, so seconds are steps times the seconds of a step. A short run of two periods over that
network measures the latter, with batches of one sample and --compute-time seconds a step.

--json writes every run when it is done; runs that the file has already are not run again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import records
from records import Record

import gossipgrad as gg
from gossipgrad import drawing, show

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


Times = dict[str, list[float | None]]


def times(runs: dict[str, Record], steps: dict[str, dict[str, float]], target: float) -> Times:
    """By way, the virtual seconds to the target over each network; None: not reached."""
    found: Times = {}
    for way, run in runs.items():
        at = None if "failure" in run else reached(run, target)
        found[way] = [None if at is None else at * of[way] for of in steps.values()]
    return found


def table(name: str, runs: dict[str, Record], seconds: Times, target: float) -> None:
    print(f"\n{name}: validation loss; virtual seconds until it is {target:.4g}")
    head = ["", "kB a rank and step", "loss", "distance", *NETWORKS]
    rows = []
    for way, run in runs.items():
        shown = ["-" if one is None else f"{one:,.1f}" for one in seconds[way]]
        if "failure" in run:
            rows.append([way, "-", "diverged", "-", *shown])
        else:
            rows.append(
                [way, f"{run['bytes'] / 1e3:,.2f}", f"{run['losses'][-1]:.4f}", f"{run['distance']:.2g}", *shown]
            )
    records.table(head, rows)


def plot(path: str, found: dict[str, tuple[dict[str, Record], Times, float]], title: str) -> None:
    """A row of panels a task, a line a way: bytes, the final loss, the seconds to the target over each network."""
    lines = sum(len(runs) for runs, _, _ in found.values())
    drawn, axes = drawing.panels(9.2, 1.1 * len(found) + 0.2 * lines, 3, len(found))
    for i, (name, (runs, seconds, target)) in enumerate(found.items()):
        sent, final, reach = axes[3 * i : 3 * i + 3]
        good = [way for way in runs if "failure" not in runs[way]]
        sent.plot([runs[way]["bytes"] / 1e3 for way in good], good, "o", color=drawing.colour(0))
        final.plot([runs[way]["losses"][-1] for way in good], good, "o", color=drawing.colour(0))
        for turn, network in enumerate(NETWORKS):
            points = [(seconds[way][turn], way) for way in good if seconds[way][turn] is not None]
            look = {
                "marker": "os^"[turn],
                "color": drawing.colour(turn),
                "ls": "",
                "label": network,
                "zorder": 4 - turn,
            }
            reach.plot(*zip(*points, strict=True), **look, ms=5 + 2 * turn, mfc="none" if turn else None)
        words = (
            "kB a rank and step",
            "final validation loss",
            f"virtual seconds to a loss of {target:.3g}",
        )
        for one, what in zip((sent, final, reach), words, strict=True):
            one.set_yticks(range(len(good)), good if one is sent else [""] * len(good))
            one.set_ylim(len(good) - 0.5, -0.5)
            one.tick_params(axis="y", length=0)
            one.set_xlabel(what)
            drawing.grid(one)
        drawing.log(sent.xaxis)
        drawing.log(reach.xaxis)
        drawing.note(sent, name)
        drawing.legend(reach)
    drawing.finish(drawn, path, title)


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
        target = arguments.target or 1.2 * reference["losses"][-1]
        found[name] = (runs, times(runs, steps, target), target)
        table(name, *found[name])
    if arguments.plot:
        links = ", ".join(f"{name} and {show.quantity(one.latency, 's')}" for name, one in NETWORKS.items())
        about = f"{arguments.ranks} virtual ranks; period {arguments.period}; seed 0; links of {links}"
        plot(arguments.plot, found, f"{about}; steps of {show.quantity(arguments.compute_time, 's')}")


if __name__ == "__main__":
    main()
