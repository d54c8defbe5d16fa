"""What apoptosis saves: the same training with it and without it, alternately, in wall-clock; and its peers.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/apoptosis.py --tasks mnist_mlp higgs --seeds 5
    python benchmarks/apoptosis.py --tasks lenet --ranks 1 2 4 --strategies gossipgrad allreduce --json FILE
    python benchmarks/apoptosis.py --quick

Every training is a process of its own (with more than one rank under mpiexec), the trainings of a seed one after the
other: all units, apoptosis, and then the peers, which end with the same number of units in each layer:

    small    the network of apoptosis' final size, trained from scratch
    pruned   magnitude pruning: all units until the epoch in which apoptosis has removed half of what it removes; then
             torch.nn.utils.prune.ln_structured chooses those that stay, the others are removed, and training goes on

Seconds are the wall-clock of training with its events, without reading data and without validation. "equal loss":
seconds until the validation loss, looked at after each epoch, is where both with and without apoptosis arrive at the
latest. Times are medians over the seeds of the ratio within a seed, the others means with their deviation. Each task
has its settings of apoptosis, which --set changes: --set every=50 budget=0.2.

Needs PyTorch for `pruned`, which is left out otherwise.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import fnmatch
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gossipgrad as gg

Sizes = Mapping[str, int]  # a layer's name: its units
Kept = Mapping[str, np.ndarray]  # a layer's name: the units that stay


# ---- tasks


@dataclass(frozen=True)
class Task:
    """A network with its data, how it is trained, and how its units leave."""

    title: str
    net: Callable[[], gg.Model]
    data: Callable[[], tuple[gg.Dataset, gg.Dataset]]
    optimizer: Callable[[int], gg.optim.Optimizer]  # of all steps
    epochs: int
    batch: int  # of all ranks
    readers: Mapping[str, Sequence[str]]  # a layer whose units may leave: those that read it
    apoptosis: Mapping[str, Any]
    loss: str = "cross_entropy"
    measured: str = "accuracy"
    metrics: Sequence[str] = ()

    def quick(self, train: gg.Dataset, test: gg.Dataset) -> tuple[gg.Dataset, gg.Dataset]:
        return train[: 20 * self.batch], test[:1000]


def load(name: str) -> Callable[[], tuple[gg.Dataset, gg.Dataset]]:
    return lambda: gg.data.load(name, progress=False)


def flat_digits() -> tuple[gg.Dataset, gg.Dataset]:
    train, test = gg.data.load("mnist", progress=False)
    flat = {"scale": 1 / 255, "name": "mnist"}
    return tuple(gg.Dataset(one.samples.reshape(-1, 784), one.targets, **flat) for one in (train, test))


def mean_image() -> tuple[gg.Dataset, gg.Dataset]:
    train, test = gg.data.load("cifar10", progress=False)
    mean = train.samples.mean(axis=0)
    return tuple(gg.Dataset(one.samples, one.targets, shift=-mean, name="cifar10") for one in (train, test))


def sgd(lr: float, **keywords: Any) -> Callable[[int], gg.optim.Optimizer]:
    return lambda steps: gg.SGD(lr=lr, momentum=0.9, schedule=gg.schedules.Cosine(), **keywords)


def chain(*names: str) -> dict[str, list[str]]:
    """Successive layers; the last one gives the outputs."""
    return {one: [after] for one, after in zip(names, names[1:], strict=False)}


def higgs(width: int, title: str) -> Task:
    return Task(
        title,
        lambda: gg.models.mlp(hidden=(width,) * 3),
        load("higgs"),
        sgd(0.05, weight_decay=5e-3),
        epochs=20,
        batch=128,
        readers=chain("fc1", "fc2", "fc3", "fc4"),
        apoptosis={"every": 20, "start": 40, "stop": 300, "budget": 0.2, "epsilon": 0.05, "least": 32},
        loss="binary_cross_entropy",
        measured="auc",
        metrics=("auc",),
    )


TASKS = {
    "higgs": higgs(300, "Higgs, 28-300-300-300-1"),
    "higgs_wide": higgs(600, "Higgs, 28-600-600-600-1"),
    "mnist_mlp": Task(
        "MNIST, 784-1024-1024-1024-10",
        lambda: gg.models.mlp(784, (1024,) * 3, 10),
        flat_digits,
        sgd(0.05),
        epochs=10,
        batch=128,
        readers=chain("fc1", "fc2", "fc3", "fc4"),
        apoptosis={"every": 20, "start": 40, "stop": 600, "budget": 0.2, "epsilon": 0.2, "least": 224},
    ),
    "lenet": Task(
        "LeNet, MNIST",
        gg.models.lenet,
        load("mnist"),
        sgd(0.02),
        epochs=6,
        batch=64,
        readers=chain("conv1", "conv2", "fc1", "fc2"),
        apoptosis={
            "every": 25,
            "start": 25,
            "stop": 400,
            "budget": 0.3,
            "epsilon": 0.5,
            "least": {"conv*": 8, "fc1": 48},
        },
    ),
    "cifar_quick": Task(
        "cifar_quick, CIFAR-10",
        lambda: gg.models.cifar_quick(initial="caffe"),
        mean_image,
        lambda steps: gg.SGD(
            lr=0.001,
            momentum=0.9,
            weight_decay=0.004,
            schedule=gg.schedules.StepDecay(every=max(4 * steps // 5, 1)),
        ),
        epochs=10,
        batch=100,
        readers=chain("conv1", "conv2", "conv3", "fc1", "fc2"),
        apoptosis={"every": 250, "start": 500, "stop": 4000, "budget": 0.1, "epsilon": 0.05, "least": 8},
    ),
    "char_lstm": Task(
        "char_lstm, tiny Shakespeare",
        lambda: gg.models.char_lstm(sequence=64),
        lambda: gg.data.load("shakespeare", sequence=64, windows="random", progress=False),
        lambda steps: gg.Adam(lr=2e-3),
        epochs=8,
        batch=52,
        readers={"rnn": ["decoder"]},
        apoptosis={"every": 50, "start": 50, "stop": 500, "budget": 0.05, "epsilon": 0.01, "least": 116, "probe": 104},
    ),
}


def taken(task: Task, arguments: argparse.Namespace) -> tuple[gg.Dataset, gg.Dataset, int]:
    """The sets and the number of epochs."""
    train, test = task.data()
    if arguments.quick:
        return *task.quick(train, test), 2
    if arguments.take:
        train = train[: arguments.take]
    if task.title.startswith("char_lstm"):  # windows are drawn anew in each epoch: 2000 steps in all
        train = train[: 250 * task.batch]
    return train, test, arguments.epochs or task.epochs


# ---- magnitude pruning


def incoming(weights: Mapping[str, np.ndarray], layer: str) -> np.ndarray:
    """(units, what comes in): the weights that a unit of a layer is made of; of an LSTM all gates and layers."""
    if f"{layer}.weight" in weights:
        array = weights[f"{layer}.weight"]
        return array.reshape(len(array), -1)
    parts = [array for name, array in weights.items() if fnmatch.fnmatch(name, f"{layer}.weight_?h_l*")]
    units = len(parts[0]) // 4
    return np.concatenate([one.reshape(4, units, -1).transpose(1, 0, 2).reshape(units, -1) for one in parts], 1)


def strongest(weights: Mapping[str, np.ndarray], sizes: Sizes) -> dict[str, np.ndarray]:
    """The units of each layer that torch.nn.utils.prune.ln_structured keeps."""
    import torch
    from torch.nn.utils import prune

    found = {}
    for layer, size in sizes.items():
        rows = incoming(weights, layer)
        if size == len(rows):
            continue
        module = torch.nn.Linear(rows.shape[1], len(rows), bias=False)
        module.load_state_dict({"weight": torch.from_numpy(np.ascontiguousarray(rows, np.float32))})
        prune.ln_structured(module, "weight", amount=len(rows) - size, n=2, dim=0)
        found[layer] = np.flatnonzero(module.weight_mask[:, 0].numpy())
        assert len(found[layer]) == size
    return found


def remove(weights: Mapping[str, np.ndarray], kept: Kept, readers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The weights of the network whose layers have the units `kept` alone."""
    made = dict(weights)

    def columns(name: str, units: int, indices: np.ndarray) -> None:
        """Of a weight that reads `units` units, several neighbouring columns each behind Flatten."""
        array = made[name]
        by_unit = array.reshape(len(array), units, -1)[:, indices]
        made[name] = by_unit.reshape(len(array), *((len(indices), *array.shape[2:]) if array.ndim > 2 else (-1,)))

    for layer, indices in kept.items():
        units = len(incoming(weights, layer))
        for name in [one for one in made if one.startswith(f"{layer}.")]:
            if f"{layer}.weight" in weights:
                made[name] = made[name][indices]
                continue
            gates = made[name].reshape(4, units, -1)[:, indices]
            made[name] = gates.reshape(4 * len(indices), *made[name].shape[1:])
            if "_hh_" in name and "weight" in name or ("_ih_" in name and "weight" in name and "_l0" not in name):
                columns(name, units, indices)
        for reader in readers.get(layer, ()):
            columns(f"{reader}.weight", units, indices)
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


# ---- one training, in a process of its own


class Clock(gg.Callback):
    """Seconds of training, with its events and without validation, at the end of each epoch; and what was learned."""

    def __init__(self, test: gg.Dataset, measured: str) -> None:
        self.test, self.measured = test, measured
        self.seconds, self.began = 0.0, 0.0
        self.epochs: list[dict[str, Any]] = []

    def on_epoch_begin(self, trainer: gg.Trainer, epoch: int) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, trainer: gg.Trainer, record: dict[str, Any]) -> None:
        self.seconds += time.perf_counter() - self.began
        found = trainer.evaluate(self.test)
        self.epochs.append(
            {
                "seconds": self.seconds,
                "train_loss": record["train_loss"],
                "loss": found["loss"],
                "measured": found[self.measured],
                "parameters": trainer.net.parameters,
            }
        )


def later(optimizer: gg.optim.Optimizer, done: int, steps: int) -> gg.optim.Optimizer:
    """With the rates from step `done` on of a training of so many steps."""
    return dataclasses.replace(optimizer, schedule=lambda t: optimizer.rate(t + done, steps) / optimizer.lr)


def worker(order: dict[str, Any]) -> None:
    """One training; rank 0 writes a JSON file."""
    task, arguments = TASKS[order["task"]], argparse.Namespace(**order["arguments"])
    kind, seed, ranks = order["kind"], order["seed"], order["ranks"]
    train, test, epochs = taken(task, arguments)
    batch = task.batch // ranks
    steps = epochs * -(-len(train) // (batch * ranks))
    optimizer = task.optimizer(steps)
    strategy = gg.strategies.by_name(order["strategy"]) if ranks > 1 else gg.GossipGraD()
    common = {"loss": task.loss, "strategy": strategy, "metrics": list(task.metrics) or None, "seed": seed}
    net, clock = task.net(), Clock(test, task.measured)

    def train_on(trainer: gg.Trainer, count: int) -> None:
        trainer.fit(train, epochs=count, batch_size=batch, progress=False, callbacks=[clock])

    if kind == "small":
        net = net.resized(order["sizes"])
    if kind == "pruned":
        import torch.nn.utils.prune  # noqa: F401  before the clock is read

        with gg.Trainer(net, optimizer=later(optimizer, 0, steps), **common) as trainer:
            train_on(trainer, order["at"])
            weights, done = trainer.consensus_weights(), trainer.step
        begin = time.perf_counter()
        net = net.resized(order["sizes"])
        net.load_weights(remove(weights, strongest(weights, order["sizes"]), task.readers))
        clock.seconds += time.perf_counter() - begin
        optimizer = later(optimizer, done, steps)
        epochs -= order["at"]
    keywords = {"apoptosis": gg.Apoptosis(**order["apoptosis"])} if kind == "apoptosis" else {}
    with gg.Trainer(net, optimizer=optimizer, **common, **keywords) as trainer:
        train_on(trainer, epochs)
        result = {
            "epochs": clock.epochs,
            "seconds": clock.seconds,
            "parameters": trainer.net.parameters,
            "units": {layer: trainer.net.units[layer] for layer in task.readers},
            "events": trainer.history.apoptosis["events"] if keywords else [],
        }
        if trainer.rank == 0:
            Path(order["out"]).write_text(json.dumps(result), encoding="utf-8")


# ---- all trainings of a task


def run(order: dict[str, Any], threads: int) -> dict[str, Any]:
    """One training; its result."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable]
        if order["ranks"] > 1:
            command += ["-m", "gossipgrad", "run", "-n", str(order["ranks"])]
        command += [os.path.abspath(__file__), "--worker", json.dumps({**order, "out": str(out)})]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{order['task']}, {order['kind']}: failed ({done.returncode}):\n{done.stderr[-3000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def half_removed(result: Mapping[str, Any], birth: int) -> int:
    """The epoch, from 1, in which half of what leaves has left; the last but one at most."""
    half = (birth + result["parameters"]) / 2
    for number, epoch in enumerate(result["epochs"], 1):
        if epoch["parameters"] <= half:
            return min(number, len(result["epochs"]) - 1) or 1
    return 1


def seconds_to(result: Mapping[str, Any], loss: float) -> float | None:
    return next((one["seconds"] for one in result["epochs"] if one["loss"] <= loss), None)


def trainings(name: str, ranks: int, strategy: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The trainings of one seed, by kind."""
    task = TASKS[name]
    order = {"task": name, "ranks": ranks, "strategy": strategy, "seed": seed, "arguments": vars(arguments)}
    order["apoptosis"] = {**task.apoptosis, **arguments.set}
    if arguments.quick:
        order["apoptosis"] |= {"every": 5, "start": 5, "stop": 30}
    kinds = ["plain", "apoptosis"] if seed % 2 == 0 else ["apoptosis", "plain"]  # alternately the first
    found = {kind: run({**order, "kind": kind}, arguments.threads) for kind in kinds}
    small = found["apoptosis"]
    if arguments.peers:
        found["small"] = run({**order, "kind": "small", "sizes": small["units"]}, arguments.threads)
        if importlib.util.find_spec("torch") is not None:
            at = half_removed(small, found["plain"]["parameters"])
            found["pruned"] = run({**order, "kind": "pruned", "sizes": small["units"], "at": at}, arguments.threads)
    reached = max(min(one["loss"] for one in found[kind]["epochs"]) for kind in ("plain", "apoptosis"))
    for one in found.values():
        one["measured"] = one["epochs"][-1]["measured"]
        one["to_loss"] = seconds_to(one, reached)
    return {"task": name, "ranks": ranks, "strategy": strategy, "seed": seed, "equal_loss": reached, "runs": found}


def spread(values: Sequence[float], digits: int = 2) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def ratios(lines: Sequence[Mapping[str, Any]], kind: str, what: str) -> str:
    """The median over the seeds of plain's seconds over this kind's."""
    pairs = [(line["runs"]["plain"][what], line["runs"][kind][what]) for line in lines]
    known = [a / b for a, b in pairs if a is not None and b is not None]
    return f"{statistics.median(known):.2f}" if len(known) == len(pairs) else "not reached"


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """The table of a task, a number of ranks and a strategy."""
    first, task = lines[0], TASKS[lines[0]["task"]]
    where = "one rank" if first["ranks"] == 1 else f"{first['ranks']} ranks, {first['strategy']}"
    print(f"\n{task.title}, {where}: {len(lines)} seed{'s' if len(lines) > 1 else ''}")
    measured = "AUC, %" if task.measured == "auc" else "accuracy, %"
    print(f"{'':11}{'seconds':>9}{'ratio':>7}{'to equal loss':>15}{'parameters':>12}{'fewer':>7}  {measured}")
    for kind in first["runs"]:
        runs = [line["runs"][kind] for line in lines]
        fewer = [line["runs"]["plain"]["parameters"] / line["runs"][kind]["parameters"] for line in lines]
        print(
            f"{kind:11}{statistics.median(one['seconds'] for one in runs):>9.1f}{ratios(lines, kind, 'seconds'):>7}"
            f"{ratios(lines, kind, 'to_loss'):>15}{statistics.mean(one['parameters'] for one in runs):>12,.0f}"
            f"{statistics.mean(fewer):>7.1f}  {spread([100 * one['measured'] for one in runs])}"
        )
    runs = [line["runs"]["apoptosis"] for line in lines]
    undone = [sum(event["undone"] for event in one["events"]) for one in runs]
    units = ", ".join(
        f"{layer} {statistics.mean(one['units'][layer] for one in runs):.0f}" for layer in runs[0]["units"]
    )
    spent = statistics.mean(sum(event["seconds"] for event in one["events"]) for one in runs)
    print(f"  units {units}; events {statistics.mean(len(one['events']) for one in runs):.0f}, ", end="")
    print(f"undone {statistics.mean(undone):.0f}, {spent:.2f} s in them", end="")
    steps = [cost for one in runs for cost in steps_of_events(one["events"])]
    if steps:
        print(f"; an event costs {statistics.median(steps):.1f} steps (at most {max(steps):.0f}) of the", end="")
        print(" network before it", end="")
    print(flush=True)


def steps_of_events(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each event after which the network was smaller, in steps of the network before it."""
    known = [one for one in events if one["left"] and not one["undone"] and one["step_seconds_before"]]
    return [one["seconds"] / one["step_seconds_before"] for one in known]


def settings(words: Sequence[str]) -> dict[str, Any]:
    """Words such as budget=0.2."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise SystemExit(f"--set {word}: allowed: NAME=VALUE, a keyword of gossipgrad.Apoptosis")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def places(arguments: argparse.Namespace) -> Iterator[tuple[int, str]]:
    """Numbers of ranks with their strategies."""
    for ranks in arguments.ranks:
        for strategy in arguments.strategies[:1] if ranks == 1 else arguments.strategies:
            yield ranks, strategy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", default=["gossipgrad", "allreduce"], help="with several ranks")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ...")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="default: the task's")
    parser.add_argument("--take", type=int, help="train on so many samples; default: all")
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="keywords of gossipgrad.Apoptosis")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="small and pruned as well")
    parser.add_argument("--quick", action="store_true", help="a few steps of each task: does it run?")
    parser.add_argument("--json", metavar="FILE", help="write all trainings, with their epochs and events")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(json.loads(arguments.worker))
        return
    arguments.set = settings(arguments.set)
    if arguments.quick:
        arguments.seeds = 1
    lines: list[dict[str, Any]] = []
    for name in arguments.tasks:
        for ranks, strategy in places(arguments):
            seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            found = []
            for seed in seeds:
                found.append(trainings(name, ranks, strategy, seed, arguments))
                if arguments.json:
                    Path(arguments.json).write_text(json.dumps(lines + found, indent=1), encoding="utf-8")
            lines += found
            show(found)


if __name__ == "__main__":
    main()
