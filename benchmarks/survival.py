"""How long ranks stand still when one of them is killed, and how well the others learn.

    python benchmarks/survival.py --ranks 2 4 8 --runs 10           # delay
    python benchmarks/survival.py restarts --ranks 2 4 --runs 3     # beside runs that end and start again
    python benchmarks/survival.py accuracy --ranks 8 --runs 5       # 0, 1 and half of the ranks die

delay: each run trains LeNet on MNIST's digits in processes of `gossipgrad run --survive` and kills a rank at random
with SIGKILL. A survivor's delay is its longest time from the begin of one step to that of the next, from the death to
ten steps after the change, without two ordinary steps (their median). Prints the median and the greatest of all
survivors and runs, the seconds of the change itself and the samples trained again.

restarts: the same death, and the longest time between the ends of two steps of a rank. "resume" is a run without
--survive that ends, and starts again with one rank less from its last checkpoint; "torchrun" PyTorch's
DistributedDataParallel on as many ranks, which torchrun starts again from their last checkpoint. Both save every 20
steps.

accuracy: a virtual cluster whose ranks die at random steps. Test accuracy after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import gossipgrad as gg

NET = ["--transport", "net"]
EPOCHS = 6  # of accuracy
AFTER = 10  # steps after a change that still count for its delay

RANK = """
import json, os, random, signal, sys, threading
import gossipgrad as gg

case = json.loads(os.environ["CASE"])
train, _ = gg.data.load("mnist-10k")
trainer = gg.Trainer(gg.models.lenet(), optimizer=gg.SGD(lr=0.02, momentum=0.9), trace=200_000)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)

class Dies(gg.Callback):
    def on_epoch_begin(self, trainer, epoch):
        if epoch == 2 and trainer.rank == case["rank"] and not trainer.history.views:
            threading.Timer(case["seconds"], kill).start()

history = trainer.fit(train, epochs=3, batch_size=16, progress=False, callbacks=Dies())
trainer.write_trace(case["trace"])
if trainer.rank == 0: print(json.dumps(history.views))
"""

# Each rank of the next two appends the time and number of each step to a file of its own.
LOGGED = """
import os, signal, time
import gossipgrad as gg

folder, dies, step = os.environ["FOLDER"], int(os.environ["DIES"]), int(os.environ["STEP"])
path, me = folder + "/run.safetensors", int(os.environ["GOSSIPGRAD_NET_RANK"])
train, _ = gg.data.load("mnist-10k")
again = os.path.exists(path)

class Log(gg.Callback):
    every = 1
    def on_step(self, trainer, number):
        with open(f"{folder}/log-{me}", "a") as log: log.write(f"{time.time()} {number}\\n")
        if me == dies and number == step: os.kill(os.getpid(), signal.SIGKILL)

callbacks = [Log()] + [gg.Checkpoint(path, every=20, save_best=False)] * (os.environ["SAVES"] == "1")
trainer = gg.Trainer.load(path) if again else gg.Trainer(gg.models.lenet(), optimizer=gg.SGD(lr=0.02, momentum=0.9))
trainer.fit(train, epochs=1, batch_size=16, progress=False, callbacks=callbacks)
"""

TORCH = """
import os, signal, time
import numpy as np
import torch
from torch import nn

folder, dies, step = os.environ["FOLDER"], int(os.environ["DIES"]), int(os.environ["STEP"])
torch.distributed.init_process_group("gloo")
me, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
data = np.load(folder + "/digits.npz")
x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
net = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                    nn.Linear(84, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
first, path = 0, folder + "/run.pt"
if os.path.exists(path):
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
model = nn.parallel.DistributedDataParallel(net)
for number in range(first + 1, len(x) // (16 * size) + 1):
    part = slice(16 * (size * (number - 1) + me), 16 * (size * (number - 1) + me + 1))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[part]), y[part]).backward()
    optimizer.step()
    with open(f"{folder}/log-{me}", "a") as log: log.write(f"{time.time()} {number}\\n")
    if me == 0 and number % 20 == 0:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": number}, path + ".new")
        os.replace(path + ".new", path)
    if me == dies and number == step and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def gossipgrad(ranks: int, script: Path, *options: str, env: dict[str, str], check: bool = True) -> str:
    command = [sys.executable, "-m", "gossipgrad", "run", *NET, *options, "-n", str(ranks), str(script)]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=check).stdout


# ---- delay


def delays(trace: Path, first: int, last: int) -> list[float]:
    """Of each rank: seconds of its longest step from `first` to `last`, waits included, without two ordinary ones."""
    events = json.loads(trace.read_text())
    begins: dict[int, dict[int, float]] = {}
    for event in events["traceEvents"] if isinstance(events, dict) else events:
        if event.get("name") == "step":
            begins.setdefault(event["pid"], {}).setdefault(event["args"]["step"], event["ts"] / 1e6)
    found = []
    for at in begins.values():
        gaps = {step: at[step + 1] - at[step] for step in at if step + 1 in at}
        found.append(max(gaps[step] for step in gaps if first <= step <= last) - 2 * statistics.median(gaps.values()))
    return found


def one_run(ranks: int, seed: int, folder: Path) -> tuple[list[float], float, int]:
    draw = random.Random(seed)
    script, trace = folder / "rank.py", folder / "trace.json"
    script.write_text(RANK)
    case = {"rank": draw.randrange(ranks), "seconds": draw.uniform(0.02, 0.2), "trace": str(trace)}
    printed = gossipgrad(ranks, script, "--survive", env={"CASE": json.dumps(case)})
    views = json.loads(printed.splitlines()[-1])
    # The first batch that is not full, at the end of an epoch, takes long without deaths as well.
    found = delays(trace, min(views[0]["last_steps"]) - 1, views[-1]["step"] + AFTER)
    return found, sum(view["seconds"] for view in views), sum(view["trained_again"] for view in views)


def delay(arguments: argparse.Namespace, folder: Path) -> None:
    print("ranks  delay ms: median, greatest  change ms: median  trained again: mean")
    for ranks in arguments.ranks:
        runs = [one_run(ranks, seed, folder) for seed in range(arguments.runs)]
        waits = [1e3 * one for run in runs for one in run[0]]
        change, again = statistics.median(run[1] for run in runs), statistics.mean(run[2] for run in runs)
        print(f"{ranks:5}  {statistics.median(waits):8.1f} {max(waits):8.1f}  {1e3 * change:8.2f}  {again:.1f}")


# ---- restarts


def with_survivors(ranks: int, folder: Path, env: dict[str, str]) -> None:
    gossipgrad(ranks, folder / "logged.py", "--survive", env=env | {"SAVES": "0"})


def with_resume(ranks: int, folder: Path, env: dict[str, str]) -> None:
    gossipgrad(ranks, folder / "logged.py", env=env | {"SAVES": "1"}, check=False)
    gossipgrad(ranks - 1, folder / "logged.py", env=env | {"SAVES": "1", "DIES": "-1"})


def with_torchrun(ranks: int, folder: Path, env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", "3", str(folder / "torch_rank.py")]
    env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # a shared one has the addresses of ranks that died
    subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=True)


KINDS = {"survive": with_survivors, "resume": with_resume, "torchrun": with_torchrun}


def standstill(folder: Path) -> tuple[float, int]:
    """Seconds of the longest time between two steps of a rank; steps made twice."""
    longest, again = 0.0, 0
    for path in folder.glob("log-*"):
        lines = [line.split() for line in path.read_text().splitlines()]
        for (before, was), (after, now) in zip(lines, lines[1:], strict=False):
            longest = max(longest, float(after) - float(before))
            again = max(again, int(was) - int(now) + 1)
    return longest, again


def restarts(arguments: argparse.Namespace, _: Path) -> None:
    train, _test = gg.data.load("mnist-10k")
    x, y = train.inputs[0], train.targets
    print("ranks  kind       seconds: median, greatest  samples trained again: mean")
    for ranks in arguments.ranks:
        for kind in arguments.kinds:
            found = []
            for seed in range(arguments.runs):
                draw = random.Random(seed)
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    (folder / "logged.py").write_text(LOGGED)
                    (folder / "torch_rank.py").write_text(TORCH)
                    images = x.reshape(-1, 1, 28, 28).astype(np.float32) / 255
                    np.savez(folder / "digits.npz", x=images, y=y.astype(np.int64))
                    env = {"FOLDER": name, "DIES": str(draw.randrange(ranks)), "STEP": str(draw.randrange(25, 60))}
                    KINDS[kind](ranks, folder, env)
                    found.append(standstill(folder))
            waits = [one for one, _ in found]
            again = statistics.mean(16 * ranks * steps for _, steps in found)
            print(f"{ranks:5}  {kind:9}  {statistics.median(waits):8.3f} {max(waits):8.3f}  {again:.0f}", flush=True)


# ---- accuracy


def trained(ranks: int, deaths: int, seed: int) -> tuple[float, int]:
    """Accuracy in percent; samples trained again."""
    draw = random.Random(seed)
    train, test = gg.data.load("mnist-10k")
    steps = EPOCHS * -(-len(train) // (16 * ranks))
    dies = {rank: draw.randrange(steps) for rank in draw.sample(range(ranks), deaths)}
    trainer = gg.Trainer(
        gg.models.lenet(),
        optimizer=gg.SGD(lr=0.02, momentum=0.9),
        comm=gg.VirtualCluster(ranks, deaths=dies or None),
        seed=seed,
    )
    history = trainer.fit(train, validation=test, epochs=EPOCHS, batch_size=16, progress=False)
    assert all(record["samples"] == len(train) for record in history)
    return 100 * history.last["validation"]["accuracy"], sum(view["trained_again"] for view in history.views)


def accuracy(arguments: argparse.Namespace, _: Path) -> None:
    warnings.simplefilter("ignore")
    print("ranks  deaths  accuracy %: mean, spread, least, greatest  samples trained again: mean")
    for ranks in arguments.ranks:
        for deaths in (0, 1, ranks // 2):
            runs = [trained(ranks, deaths, seed) for seed in range(arguments.runs)]
            found = [one for one, _ in runs]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            numbers = f"{statistics.mean(found):7.2f} {spread:6.2f} {min(found):7.2f} {max(found):7.2f}"
            print(f"{ranks:5}  {deaths:6}  {numbers}  {statistics.mean(again for _, again in runs):.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = {one.__name__: one for one in (delay, restarts, accuracy)}
    parser.add_argument("mode", nargs="?", choices=modes, default="delay")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of restarts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        modes[arguments.mode](arguments, Path(folder))


if __name__ == "__main__":
    main()
