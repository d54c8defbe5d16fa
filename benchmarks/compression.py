"""What compression costs in accuracy and saves in bytes: tasks with AdaComp, gossip that sends less, others' ways.

    export GOSSIPGRAD_DATA=../shared/data
    python benchmarks/compression.py tasks --seeds 3 --json tasks.json --plot tasks.png
    python benchmarks/compression.py tasks --tasks lenet --modes dense strict --selections local --take 10000
    python benchmarks/compression.py gossip --ranks 8 32 --json gossip.json --plot gossip.png
    python benchmarks/compression.py peers --json peers.json --plot peers.png             (needs PyTorch)
    gossipgrad run -n 2 benchmarks/compression.py tasks --tasks lenet      (or gossip)

tasks: every task with AllReduce, dense and by AdaComp's modes, on --ranks of a virtual cluster, or on all ranks under
mpiexec. The table has accuracy (char_lstm: loss, higgs: AUC), its difference from dense with the same seed, the ratio
of bytes as a whole and by kind of layer, and a rank's bytes in a step. speech is a smaller speech_dnn on vectors with
labels of a fixed random network: there is no speech in it. gossip: accuracy of the mean of the replicas and of the
replicas themselves, and the consensus distance, against bytes. peers: LeNet by PyTorch's PowerSGD and by top-k with
error feedback at AdaComp's bytes, p ranks in one process, from the same initial weights (compression_peers.py).

--json writes every run when it is done; runs that the file has already are not run again.
"""

from __future__ import annotations

import argparse
import ast
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from records import Record, Results, table

import gossipgrad as gg
from gossipgrad import strategies
from gossipgrad.launch.start import launcher_rank, launcher_world_size

MODES = ("dense", "strict", "safe", "exact")
KINDS = ("conv2d", "linear", "recurrent", "other")
Pair = tuple[gg.Dataset, gg.Dataset]


# ------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Task:
    """A network, its data, and how it is trained; batch: samples of a step, all ranks together.

    measured: of the validation; within: how much worse than dense it may be.
    """

    net: Callable[[], gg.Model]
    sets: Callable[[int], Pair]
    optimizer: Callable[[], gg.SGD | gg.Adam]
    batch: int
    epochs: int
    measured: str = "accuracy"
    within: float = 0.005
    loss: str = "cross_entropy"


def cifar10(seed: int) -> Pair:
    mean, deviation = np.float32([0.4914, 0.4822, 0.4465]), np.float32([0.247, 0.243, 0.262])
    colours = {"scale": 1 / (255 * deviation), "shift": -mean / deviation}
    train, test = (gg.Dataset(one.samples, one.targets, name="cifar10", **colours) for one in gg.data.load("cifar10"))
    return train, test


def augmented(seed: int) -> Pair:
    train, test = cifar10(seed)
    return gg.data.random_crop(train, 4, 0.5, seed=seed), test


def shakespeare(seed: int) -> Pair:
    path = Path(os.environ["GOSSIPGRAD_DATA"]) / "shakespeare" / "input.txt"
    train, test = gg.data.text(path, sequence=64, windows="random", validation=0.1, seed=seed)
    return train, test


SPEECH = {"classes": 40, "inputs": 440, "hidden": (512,) * 3}


def teacher(seed: int) -> Pair:
    """440 numbers that depend on 12, in classes by a fixed random network of these; the same for every seed."""
    generator = np.random.default_rng(2017)
    mixing = generator.normal(size=(12, 440)) / np.sqrt(12)
    first, second = generator.normal(size=(12, 128)) / np.sqrt(12), generator.normal(size=(128, SPEECH["classes"]))
    hidden = generator.normal(size=(44000, 12))
    x = (hidden @ mixing + 0.1 * generator.normal(size=(len(hidden), 440))).astype(np.float32)
    y = (np.tanh(hidden @ first) @ second).argmax(1).astype(np.int32)
    return gg.Dataset(x[:40000], y[:40000]), gg.Dataset(x[40000:], y[40000:])


def momentum(rate: float, decay: float = 0.0) -> Callable[[], gg.SGD]:
    return lambda: gg.SGD(lr=rate, momentum=0.9, weight_decay=decay, schedule=gg.schedules.Cosine())


TASKS = {
    "lenet": Task(gg.models.lenet, lambda seed: gg.data.load("mnist"), momentum(0.04), 256, 2),
    "cifar_quick": Task(gg.models.cifar_quick, cifar10, momentum(0.04), 128, 8),
    "resnet20": Task(gg.models.resnet20, augmented, momentum(0.1, 1e-4), 128, 5),
    "char_lstm": Task(
        lambda: gg.models.char_lstm(sequence=64), shakespeare, lambda: gg.Adam(lr=2e-3), 56, 6, "loss", 0.02
    ),
    "higgs": Task(
        gg.models.mlp,
        lambda seed: gg.data.load("higgs", progress=False),
        lambda: gg.Adam(lr=1e-3, schedule=gg.schedules.Cosine()),
        128,
        10,
        "auc",
        0.005,
        "binary_cross_entropy",
    ),
    "speech": Task(
        lambda: gg.models.speech_dnn(**SPEECH),
        teacher,
        lambda: gg.Adam(lr=1e-3, schedule=gg.schedules.Cosine()),
        256,
        8,
    ),
}


def train(
    name: str,
    strategy: gg.Strategy,
    compression: gg.AdaComp | None,
    ranks: int,
    seed: int,
    epochs: int | None,
    take: int | None,
    *,
    lr: float | None = None,
    replicas: bool = False,
) -> Record:
    """One run: the figures of its end; ratios and bytes are of all epochs."""
    task = TASKS[name]
    training, test = task.sets(seed)
    training = training[:take]
    optimizer = task.optimizer()
    trainer = gg.Trainer(
        task.net(),
        loss=task.loss,
        optimizer=optimizer if lr is None else replace(optimizer, lr=lr),
        strategy=strategy,
        compression=compression,
        metrics=["auc"] if task.measured == "auc" else None,
        comm=None if launcher_world_size() else gg.VirtualCluster(ranks),
        seed=seed,
    )
    begin = time.perf_counter()
    try:
        history = trainer.fit(
            training,
            validation=test,
            epochs=epochs or task.epochs,
            batch_size=max(task.batch // trainer.size, 1),
            validate_replicas=replicas,
            progress=False,
        )
    except FloatingPointError as error:
        names = (task.measured, "bytes", "consensus_distance", "worst", "replicas")
        return dict.fromkeys(names, float("nan")) | {"seconds": time.perf_counter() - begin, "failure": str(error)}
    finally:
        trainer.close()
    last = history.last
    steps = sum(record["steps"] for record in history)
    found = {
        task.measured: last["validation"][task.measured],
        "seconds": time.perf_counter() - begin,
        "bytes": sum(record["bytes_sent"] for record in history) / (trainer.size * steps),
        "consensus_distance": last["consensus_distance"],
    }
    if replicas:
        of_ranks = [one[task.measured] for one in last["validation_replicas"]]
        found |= {"worst": min(of_ranks), "replicas": statistics.mean(of_ranks)}
    compressed = [record["compression"] for record in history if "compression" in record]
    if compressed:
        packed = sum(one["packed_bytes"] for one in compressed)
        found["contributed"] = packed / (trainer.size * steps)
        found["ratio"] = sum(one["dense_bytes"] for one in compressed) / packed
        found["residue"] = last["compression"]["residue"]
        for kind in compressed[0]["by_kind"]:
            ratios = [one["by_kind"][kind] for one in compressed if one["by_kind"][kind]]
            found[f"ratio {kind}"] = statistics.harmonic_mean(ratios)
    return found


# ------------------------------------------------------------------------------------ results


def spread(values: list[float], digits: int, factor: float = 1, sign: str = "") -> str:
    """The mean, and the largest distance from it where there are several."""
    mean = factor * statistics.mean(values)
    text = f"{mean:{sign}.{digits}f}"
    return text if len(values) == 1 else f"{text}±{max(abs(factor * value - mean) for value in values):.{digits}f}"


def figure(name: str) -> tuple[float, int, str]:
    """How a measured figure is shown: times what, with how many digits, and its name with its unit."""
    return {"accuracy": (100.0, 2, "accuracy %"), "auc": (1.0, 4, "AUC"), "loss": (1.0, 4, "loss")}[name]


def panels(count: int, width: float = 5.0) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width * count, 4.0), layout="constrained")
    return drawn, list(np.atleast_1d(drawn.subplots(1, count)))


def points(axes: Any, rows: dict[str, list[Record]], x: str, y: str, scale_x: float = 1, scale_y: float = 1) -> None:
    """A point a row, with the range of its seeds."""
    for i, (label, all_runs) in enumerate(rows.items()):
        runs = [one for one in all_runs if "failure" not in one]
        if not runs:
            continue
        values = [scale_y * one[y] for one in runs]
        place, mean = scale_x * statistics.mean(one[x] for one in runs), statistics.mean(values)
        reach = [[mean - min(values)], [max(values) - mean]]
        axes.errorbar(place, mean, reach, fmt="osD^vP*X<>"[i % 10], color=f"C{i % 10}", capsize=3, label=label)
    axes.grid(alpha=0.3)


# ------------------------------------------------------------------------------------ parts


def adacomp(mode: str, selection: str, arguments: argparse.Namespace) -> gg.AdaComp | None:
    return None if mode == "dense" else gg.AdaComp(mode=mode, selection=selection, **dict(arguments.adacomp))


def options(arguments: argparse.Namespace, compressed: bool) -> Record:
    """What else tells one run from another."""
    how = " ".join(f"{key}={value}" for key, value in arguments.adacomp) if compressed else ""
    return {"epochs": arguments.epochs, "take": arguments.take, "lr": arguments.lr, "adacomp": how}


def keyword(text: str) -> tuple[str, Any]:
    """("factor", 1.5) of "factor=1.5"."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: KEYWORD=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def tasks(arguments: argparse.Namespace, results: Results) -> None:
    rows = [("dense", "local")] * ("dense" in arguments.modes)
    rows += [(mode, "local") for mode in arguments.modes if mode != "dense" and "local" in arguments.selections]
    rows += [("exact", "cyclic")] * ("cyclic" in arguments.selections)
    found: dict[str, dict[str, list[Record]]] = {}
    ranks = arguments.ranks[0]
    for name in arguments.tasks:
        found[name] = {}
        for seed in range(arguments.seeds):
            for mode, selection in rows:
                what = {"part": "tasks", "task": name, "mode": mode, "selection": selection, "seed": seed}
                what |= {"ranks": ranks, "strategy": arguments.strategy, **options(arguments, mode != "dense")}
                how = adacomp(mode, selection, arguments)

                def run(name: str = name, how: gg.AdaComp | None = how, seed: int = seed) -> Record:
                    strategy = strategies.by_name(arguments.strategy)
                    return train(name, strategy, how, ranks, seed, arguments.epochs, arguments.take, lr=arguments.lr)

                label = mode if selection == "local" else f"{mode}, {selection}"
                found[name].setdefault(label, []).append(results.run(what, run))
        if not launcher_rank():
            task_table(name, found[name], ranks)
    if arguments.plot and not launcher_rank():
        drawn, axes = panels(len(found))
        for one, (name, of_task) in zip(axes, found.items(), strict=True):
            factor, _, title = figure(TASKS[name].measured)
            whole = {label: [{"ratio": 1.0, **record} for record in runs] for label, runs in of_task.items()}
            points(one, whole, "ratio", TASKS[name].measured, scale_y=factor)
            one.set_xscale("log")
            one.set_xlabel("dense bytes / packed bytes")
            one.set_ylabel(title)
            one.set_title(name)
            one.legend(fontsize=8)
        drawn.savefig(arguments.plot, dpi=120)


def task_table(name: str, rows: dict[str, list[Record]], ranks: int) -> None:
    measured = TASKS[name].measured
    factor, digits, title = figure(measured)
    kinds = [kind for kind in KINDS if any(f"ratio {kind}" in one for runs in rows.values() for one in runs)]
    lines = []
    for label, runs in rows.items():
        line = [label, spread([one[measured] for one in runs], digits, factor)]
        dense = {one["seed"]: one[measured] for one in rows.get("dense", ())}
        differences = [one[measured] - dense[one["seed"]] for one in runs if one["seed"] in dense]
        line.append(spread(differences, digits, factor, "+") if differences and label != "dense" else "")
        for key in ("ratio", *(f"ratio {kind}" for kind in kinds)):
            values = [one[key] for one in runs if key in one]
            line.append(f"{statistics.mean(values):.1f}" if values else "")
        line.append(f"{statistics.mean(one['bytes'] for one in runs) / 1e3:,.1f}")
        lines.append(line)
    runs = next(iter(rows.values()))
    print(f"\n{name}, {ranks} ranks, {len(runs)} seeds; allowed against dense: {factor * TASKS[name].within:g}")
    table(["", title, "to dense", "ratio", *kinds, "kB a rank and step"], lines)


GOSSIP = {
    "all-reduce": lambda: (gg.AllReduce(), None),
    "gossip": lambda: (gg.GossipGraD(exchange="weights"), None),
    "gossip, bfloat16": lambda: (gg.GossipGraD(exchange="weights", wire_dtype="bfloat16"), None),
    **{f"slices={m}": lambda m=m: (gg.GossipGraD(exchange="weights", slices=m), None) for m in (4, 8, 16, 40, 100)},
    **{
        f"edge copies{name}": lambda how=how: (
            gg.GossipGraD(topology="cube", exchange="weights", **how),
            gg.AdaComp(mode="exact"),
        )
        for name, how in {
            "": {"rotate": False},
            ", 2 permutations": {"permutations": 2},
            ", rotated": {"rotate": True},
        }.items()
    },
}
TOO_MANY = {"edge copies, rotated": 34}  # ranks, with which it is refused


def gossip(arguments: argparse.Namespace, results: Results) -> None:
    found: dict[int, dict[str, list[Record]]] = {}
    name = arguments.tasks[0]
    measured = TASKS[name].measured
    for ranks in arguments.ranks:
        found[ranks] = {}
        for seed in range(arguments.seeds):
            for label in arguments.ways or [one for one in GOSSIP if ranks < TOO_MANY.get(one, ranks + 1)]:
                what = {"part": "gossip", "task": name, "way": label, "seed": seed, "ranks": ranks}
                what |= options(arguments, compressed=False)

                def run(label: str = label, ranks: int = ranks, seed: int = seed) -> Record:
                    strategy, how = GOSSIP[label]()
                    cut = (arguments.epochs, arguments.take)
                    return train(name, strategy, how, ranks, seed, *cut, lr=arguments.lr, replicas=True)

                found[ranks].setdefault(label, []).append(results.run(what, run))
        if launcher_rank():
            continue
        factor, digits, title = figure(measured)
        dense = statistics.mean(one["bytes"] for one in next(iter(found[ranks].values())))
        lines = []
        for label, runs in found[ranks].items():
            sent = statistics.mean(one["bytes"] for one in runs)
            line = [label] + [spread([one[key] for one in runs], digits, factor) for key in (measured, "replicas")]
            line += [f"{factor * min(one['worst'] for one in runs):.{digits}f}"]
            line += [f"{statistics.mean(one['consensus_distance'] for one in runs):.2g}"]
            lines.append([*line, f"{sent / 1e3:,.1f}", f"{dense / sent:.1f}"])
        print(f"\n{name}, {ranks} ranks, {arguments.seeds} seeds: the mean model and the replicas")
        first = next(iter(found[ranks]))
        head = ["", title, "of the replicas", "worst", "distance", "kB a rank and step", f"{first}: times as many"]
        table(head, lines)
    if arguments.plot and not launcher_rank():
        drawn, axes = panels(2 * len(found))
        for i, (ranks, rows) in enumerate(found.items()):
            factor, _, title = figure(measured)
            points(axes[2 * i], rows, "bytes", measured, 1e-3, factor)
            points(axes[2 * i + 1], rows, "bytes", "consensus_distance", 1e-3)
            axes[2 * i].set_ylabel(f"{title} of the mean model")
            axes[2 * i + 1].set_ylabel("consensus distance")
            axes[2 * i + 1].set_yscale("symlog", linthresh=1e-4)
            for one in axes[2 * i : 2 * i + 2]:
                one.set_title(f"{name}, p = {ranks}")
                one.set_xscale("log")
                one.set_xlabel("kB that a rank sends in a step")
            axes[2 * i].legend(fontsize=7)
        drawn.savefig(arguments.plot, dpi=120)


def peers(arguments: argparse.Namespace, results: Results) -> None:
    import compression_peers as others
    import torch

    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    name, ranks = "lenet", arguments.ranks[0]
    task = TASKS[name]
    found: dict[str, list[Record]] = {}
    for seed in range(arguments.seeds):
        for mode in MODES:
            what = {"part": "tasks", "task": name, "mode": mode, "selection": "local", "seed": seed}
            what |= {"ranks": ranks, "strategy": "allreduce", **options(arguments, mode != "dense")}
            how = adacomp(mode, "local", arguments)

            def ours(how: gg.AdaComp | None = how, seed: int = seed) -> Record:
                return train(name, gg.AllReduce(), how, ranks, seed, arguments.epochs, arguments.take)

            found.setdefault("dense" if mode == "dense" else f"AdaComp {mode}", []).append(results.run(what, ours))
        ratios = {mode: found[f"AdaComp {mode}"][-1]["ratio"] for mode in ("strict", "exact")}
        ways: dict[str, Callable[[list[Any], int], others.Dense]] = {"dense, PyTorch": others.Dense}
        for rank in (1, 2, 4):
            ways[f"PowerSGD, rank {rank}"] = partial(others.PowerSGD, rank=rank)
        for mode, ratio in ratios.items():
            ways[f"top-k at {mode}'s bytes"] = partial(others.TopK, share=1 / (2 * ratio))
        for label, make in ways.items():
            what = {
                "part": "peers",
                "task": name,
                "way": label,
                "seed": seed,
                "ranks": ranks,
                **options(arguments, label.startswith("top-k")),
            }

            def theirs(make: Callable[[list[Any], int], others.Dense] = make, seed: int = seed) -> Record:
                training, test = task.sets(seed)
                start = task.net().weights(seed)
                begin = time.perf_counter()
                how = {"ranks": ranks, "batch": task.batch // ranks, "epochs": arguments.epochs or task.epochs}
                how |= {"optimizer": task.optimizer(), "seed": seed}
                one = others.train(others.MODULES[name](), start, training[: arguments.take], test, make, **how)
                return one | {"seconds": time.perf_counter() - begin}

            found.setdefault(label, []).append(results.run(what, theirs))
    parameters = 4 * task.net().parameters
    lines = []
    for label, runs in found.items():
        contributed = statistics.mean(one.get("contributed", parameters) for one in runs)
        sent = statistics.mean(one["bytes"] for one in runs)
        accuracy = spread([one["accuracy"] for one in runs], 2, 100)
        lines.append(
            [label, accuracy, f"{contributed / 1e3:,.2f}", f"{parameters / contributed:.1f}", f"{sent / 1e3:,.1f}"]
        )
    print(f"\n{name}, {ranks} ranks, {arguments.seeds} seeds; sent: by an all-gather, or by a ring all-reduce")
    table(["", "accuracy %", "kB contributed", "ratio", "kB sent a rank and step"], lines)
    if arguments.plot:
        drawn, axes = panels(2, 6)
        whole = {label: [{"contributed": parameters, **one} for one in runs] for label, runs in found.items()}
        for one, key, title in zip(axes, ("contributed", "bytes"), ("contributes to", "sends in"), strict=True):
            points(one, whole, key, "accuracy", 1e-3, 100)
            one.set_xscale("log")
            one.set_xlabel(f"kB that a rank {title} a step")
            one.set_ylabel("accuracy %")
            one.set_title(f"{name}, p = {ranks}")
        axes[0].legend(fontsize=8)
        drawn.savefig(arguments.plot, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("tasks", "gossip", "peers"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="default: all; gossip: the first, default lenet")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--selections", nargs="+", choices=("local", "cyclic"), default=["local", "cyclic"])
    parser.add_argument("--strategy", default="allreduce", help="of tasks")
    parser.add_argument("--ways", nargs="+", choices=GOSSIP, help="of gossip; default: all")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8], help="of a virtual cluster")
    parser.add_argument("--seeds", type=int, default=1, help="runs, of seeds 0, 1, ...")
    parser.add_argument("--epochs", type=int, help="default: the task's")
    parser.add_argument("--lr", type=float, help="of tasks and gossip; default: the task's")
    parser.add_argument("--take", type=int, help="train on so many samples; default: all")
    parser.add_argument(
        "--adacomp",
        type=keyword,
        nargs="+",
        default=[],
        metavar="KEYWORD=VALUE",
        help="of gg.AdaComp, in all rows: factor=1.5 dense=norm \"bin_size={'conv': 25}\"",
    )
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; ours: OMP_NUM_THREADS")
    parser.add_argument("--json", metavar="FILE", help="runs, written one by one; those that it has are not run again")
    parser.add_argument("--plot", metavar="FILE", help="a picture (matplotlib)")
    arguments = parser.parse_args()
    if arguments.part == "peers" and arguments.lr is not None:
        parser.error("--lr: peers train at the task's rate")
    of_replicas = [name for name, task in TASKS.items() if task.measured != "auc"]
    for name in arguments.tasks or ():
        allowed = {"gossip": of_replicas, "peers": ["lenet"]}.get(arguments.part, TASKS)
        if name not in allowed:
            parser.error(f"--tasks {name}: allowed with {arguments.part}: {', '.join(allowed)}")
    if launcher_world_size():
        arguments.ranks = [launcher_world_size()]
    arguments.tasks = arguments.tasks or (list(TASKS) if arguments.part == "tasks" else ["lenet"])
    {"tasks": tasks, "gossip": gossip, "peers": peers}[arguments.part](
        arguments, Results(arguments.json, lambda run: run.get("failure", ""), not launcher_rank())
    )


if __name__ == "__main__":
    main()
