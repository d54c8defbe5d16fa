"""What is learned by Winograd's convolutions and in bfloat16, against direct convolutions in float32, on one rank.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/learning_dtypes.py --seeds 3 --json dtypes.json
    python benchmarks/learning_dtypes.py --tasks resnet20 --epochs 2 --ways direct bfloat16

The tasks are those of compression.py, with fewer epochs. Runs of one seed have the same start and the same order of
samples, so they differ by rounding alone. That makes another network of the same quality: what a difference must be
compared with is the spread of the seeds. The kernels of another instruction set give direct convolutions the same bits
or others; the same command says what these learn:

    GOSSIPGRAD_ISA=avx512f GOSSIPGRAD_BACKEND=native python benchmarks/learning_dtypes.py --ways direct --json isa.json

Prints one line a run, then means with the standard deviation of the seeds.

--json writes every run when it is done; runs that the file has already are not run again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

from compression import TASKS, figure
from records import Record, Results, table

import gossipgrad as gg
from gossipgrad.launch import environment

EPOCHS = {"lenet": 2, "cifar_quick": 4, "char_lstm": 2, "resnet20": 2, "higgs": 10}
CONVOLUTIONS = ("lenet", "cifar_quick", "resnet20")
WAYS: dict[str, dict[str, Any]] = {
    "direct": {"conv_algorithm": "direct"},
    "winograd": {"conv_algorithm": "winograd"},
    "bfloat16": {"dtype": "bfloat16"},
}


def train(name: str, seed: int, epochs: int, **options: Any) -> Record:
    task = TASKS[name]
    training, test = task.sets(seed)
    trainer = gg.Trainer(
        task.net(),
        loss=task.loss,
        optimizer=task.optimizer(),
        metrics=["auc"] if task.measured == "auc" else None,
        seed=seed,
        **options,
    )
    begin = time.perf_counter()
    history = trainer.fit(training, validation=test, epochs=epochs, batch_size=task.batch, progress=False)
    trainer.close()
    found = {task.measured: history.last["validation"][task.measured], "train_loss": history.last["train_loss"]}
    return found | {"seconds": time.perf_counter() - begin}


def shown(values: list[float], factor: float, digits: int) -> str:
    mean = f"{factor * statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {factor * statistics.stdev(values):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=EPOCHS, default=list(EPOCHS))
    narrow = environment.core_info()["isa"] in ("avx512", "amx")
    ways = [way for way in WAYS if narrow or way != "bfloat16"]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=ways, help="default: all that this CPU has")
    parser.add_argument("--seeds", type=int, default=1, help="runs, of seeds 0, 1, ...")
    parser.add_argument("--epochs", type=int, help=f"default: {', '.join(f'{k} {v}' for k, v in EPOCHS.items())}")
    parser.add_argument("--json", metavar="FILE", help="runs, written one by one; those that it has are not run again")
    arguments = parser.parse_args()
    for name in arguments.tasks:
        measured, epochs = TASKS[name].measured, arguments.epochs or EPOCHS[name]
        ways = [way for way in arguments.ways if way != "winograd" or name in CONVOLUTIONS]
        results = Results(arguments.json, lambda run, measured=measured: f"{measured} {run[measured]:.4f}")
        found: dict[str, list[Record]] = {way: [] for way in ways}
        for seed in range(arguments.seeds):
            for way in ways:
                what = {"task": name, "way": way, "seed": seed, "epochs": epochs}
                found[way].append(results.run(what, partial(train, name, seed, epochs, **WAYS[way])))
        factor, digits, title = figure(measured)
        print(f"\n{name}, {epochs} epochs, {arguments.seeds} seeds")
        lines = []
        for way, runs in found.items():
            line = [way, shown([one[measured] for one in runs], factor, digits)]
            line += [shown([one["train_loss"] for one in runs], 1, 4)]
            if "direct" in found and way != "direct":
                pairs = zip(runs, found["direct"], strict=True)
                line.append(shown([one[measured] - other[measured] for one, other in pairs], factor, digits))
            lines.append([*line, *[""] * (4 - len(line))])
        table(["", title, "training loss", "to direct, by seed"], lines)


if __name__ == "__main__":
    main()
