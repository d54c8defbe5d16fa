"""How long ranks stand still when one of them is killed.

    python benchmarks/survival.py --ranks 2 4 8 --runs 10

Each run trains LeNet on MNIST's digits in processes of `gossipgrad run --survive` and kills a rank at random with
SIGKILL. A survivor's delay is its longest time from the begin of one step to that of the next, without two ordinary
steps (their median). Prints the median and the greatest of all survivors and runs, the seconds of the change itself and
the samples trained again.
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
from pathlib import Path

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


def delays(trace: Path) -> list[float]:
    """Of each rank: seconds of its longest step, waits included, without two of its ordinary ones."""
    events = json.loads(trace.read_text())
    begins: dict[int, list[float]] = {}
    for event in events["traceEvents"] if isinstance(events, dict) else events:
        if event.get("name") == "step":
            begins.setdefault(event["pid"], []).append(event["ts"] / 1e6)
    found = []
    for times in begins.values():
        times.sort()
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        found.append(max(gaps) - 2 * statistics.median(gaps))
    return found


def one_run(ranks: int, seed: int, folder: Path) -> tuple[list[float], float, int]:
    draw = random.Random(seed)
    script, trace = folder / "rank.py", folder / "trace.json"
    script.write_text(RANK)
    case = {"rank": draw.randrange(ranks), "seconds": draw.uniform(0.02, 0.2), "trace": str(trace)}
    command = [sys.executable, "-m", "gossipgrad", "run", "--transport", "net", "--survive", "-n", str(ranks)]
    done = subprocess.run(
        [*command, str(script)],
        env={**os.environ, "CASE": json.dumps(case)},
        capture_output=True,
        text=True,
        check=True,
    )
    views = json.loads(done.stdout.splitlines()[-1])
    return delays(trace), sum(view["seconds"] for view in views), sum(view["trained_again"] for view in views)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    print("ranks  delay ms: median, greatest  change ms: median  trained again: mean")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in arguments.ranks:
            runs = [one_run(ranks, seed, Path(folder)) for seed in range(arguments.runs)]
            waits = [1e3 * one for run in runs for one in run[0]]
            change, again = statistics.median(run[1] for run in runs), statistics.mean(run[2] for run in runs)
            print(f"{ranks:5}  {statistics.median(waits):8.1f} {max(waits):8.1f}  {1e3 * change:8.2f}  {again:.1f}")


if __name__ == "__main__":
    main()
