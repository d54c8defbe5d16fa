"""Ranks are killed and stopped at random moments while they train; the others go on.

    python benchmarks/chaos.py --ranks 8 --minutes 30 --faults 62 --seed 0 --picture chaos.png

The ranks are processes of `gossipgrad run --survive` that train LeNet on MNIST's digits, and wait `--pause` seconds in
each step as if for a device of their own. A fault is a SIGKILL, or a SIGSTOP for at most `--stop` seconds. Where the
command has --respawn and --stopped, a dead rank is started again, and one that stays stopped is killed. Otherwise kills
end when two ranks are left, and the other faults are stops (with --kills 1 there are none).

Prints and checks, by what each rank wrote down of its own steps:

- samples in the records of the epochs: each epoch has the set's, but for views that left fewer samples than ranks
- samples trained, those trained again, and those that as many living ranks train without faults

The picture has a row a rank, and below it the loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from gossipgrad import drawing

RUN = [sys.executable, "-m", "gossipgrad", "run", "--transport", "net"]
BATCH = 16
BEFORE, BEHIND = 0.05, 0.85  # parts of the time between which faults happen

RANK = """
import json, os, time
import gossipgrad as gg

case = json.loads(os.environ["CASE"])
log = open(f"{case['folder']}/{os.environ['GOSSIPGRAD_NET_RANK']}-{os.getpid()}", "w", buffering=1)

def say(kind, **facts): log.write(json.dumps({"at": time.time(), "kind": kind} | facts) + "\\n")

class Log(gg.Callback):
    every = 1
    samples, loss = 0, 0.0

    def on_epoch_begin(self, trainer, epoch): self.samples, self.loss = 0, 0.0

    def on_view(self, trainer, change):
        say("view", **change)
        self.keep(trainer)  # the first rank's counts have those of the dead now

    def keep(self, trainer):
        counts = trainer.core.counts()[0]
        self.samples, self.loss = counts["samples"], counts["loss_sum"]

    def on_step(self, trainer, step):
        samples, loss = self.samples, self.loss
        self.keep(trainer)
        n = self.samples - samples
        say("step", samples=n, loss=(self.loss - loss) / max(n, 1), step=step)
        trainer.stop = os.path.exists(case["folder"] + "/stop")

    def on_epoch_end(self, trainer, record):
        say("epoch", epoch=record["epoch"], samples=record["samples"], ranks=trainer.size)

say("begin")
train, _ = gg.data.load("mnist-10k")
trainer = gg.Trainer(gg.models.lenet(), optimizer=gg.SGD(lr=0.01, momentum=0.9),
                     straggler=gg.Straggler(probability=1.0, delay=case["pause"]))
trainer.fit(train, epochs=1_000_000, batch_size=case["batch"], progress=False, callbacks=Log())
say("end")
"""


@dataclasses.dataclass
class Rank:
    """What a process has written down; times are seconds since the epoch."""

    identity: int
    pid: int
    events: list[dict[str, Any]]
    end: float = 0.0  # of its last event

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["kind"] == kind]

    def trains(self) -> tuple[float, float]:
        steps = self.of("step")
        return (steps[0]["at"], self.end) if steps else (self.end, self.end)


@dataclasses.dataclass
class Fault:
    kind: str  # "kill", "stop"
    at: float
    pid: int
    seconds: float = 0.0


@dataclasses.dataclass
class Run:
    ranks: list[Rank]
    faults: list[Fault]
    begin: float  # all of the first ranks train
    end: float

    def steps(self) -> Iterator[dict[str, Any]]:
        for rank in self.ranks:
            yield from (one for one in rank.of("step") if self.begin <= one["at"] <= self.end)

    def trained(self) -> int:
        return sum(one["samples"] for one in self.steps())

    def living(self) -> Iterator[tuple[float, int]]:
        """Seconds, and how many ranks train in them."""
        lives = [rank.trains() for rank in self.ranks]
        times = sorted({self.begin, self.end, *(t for life in lives for t in life if self.begin < t < self.end)})
        for before, after in zip(times, times[1:], strict=False):
            yield after - before, sum(first <= before and after <= last for first, last in lives)


def read(folder: Path) -> list[Rank]:
    ranks = []
    for path in folder.glob("*-*"):
        lines = path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half a line
        if events:
            identity, pid = (int(part) for part in path.name.split("-"))
            ranks.append(Rank(identity, pid, events, events[-1]["at"]))
    return sorted(ranks, key=lambda one: (one.events[0]["at"], one.identity))


def training(folder: Path) -> list[int]:
    """Processes of ranks that live and have made a step."""
    pids = []
    for path in folder.glob("*-*"):
        pid = int(path.name.split("-")[1])
        if os.path.exists(f"/proc/{pid}") and '"step"' in path.read_text():
            pids.append(pid)
    return sorted(pids)


def run(ranks: int, options: list[str], pause: float, faults: Callable[[Path, float], list[Fault]]) -> Run:
    """`faults(folder, begin)` returns when the time is over."""
    folder = Path(tempfile.mkdtemp())
    (folder / "rank.py").write_text(RANK)
    case = {"folder": str(folder), "pause": pause, "batch": BATCH}
    with open(folder / "errors", "w") as errors:
        launcher = subprocess.Popen(
            [*RUN, *options, "-n", str(ranks), str(folder / "rank.py")],
            env={**os.environ, "CASE": json.dumps(case)},
            stdout=errors,
            stderr=errors,
        )
        while len(training(folder)) < ranks:
            time.sleep(0.05)
            if launcher.poll() is not None:
                raise SystemExit((folder / "errors").read_text())
        begin = time.time()
        done = faults(folder, begin)
        end = time.time()
        (folder / "stop").touch()
        code = launcher.wait()
    if code != 0:
        raise SystemExit(f"exit code {code}\n{(folder / 'errors').read_text()}")
    found = Run(read(folder), done, begin, end)
    shutil.rmtree(folder)
    return found


# ---- faults


def wait(seconds: float) -> Callable[[Path, float], list[Fault]]:
    def no_faults(_: Path, begin: float) -> list[Fault]:
        time.sleep(max(begin + seconds - time.time(), 0))
        return []

    return no_faults


def has_option(name: str) -> bool:
    return name in subprocess.run([*RUN, "--help"], capture_output=True, text=True).stdout


def chaos(arguments: argparse.Namespace, respawns: bool) -> Callable[[Path, float], list[Fault]]:
    draw = random.Random(arguments.seed)
    seconds = 60 * arguments.minutes
    plan = sorted(draw.uniform(BEFORE, BEHIND) * seconds for _ in range(arguments.faults))
    kinds = [draw.random() < arguments.kills for _ in plan]

    def go_on(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def faults(folder: Path, begin: float) -> list[Fault]:
        done: list[Fault] = []
        stopped: dict[int, float] = {}
        for at, kills in [*zip(plan, kinds, strict=True), (seconds, False)]:
            while (now := time.time()) < begin + at:
                time.sleep(min(0.005, begin + at - now))
                for pid in [pid for pid, until in stopped.items() if until < now]:
                    del stopped[pid]
                    go_on(pid)
            living = [pid for pid in training(folder) if pid not in stopped]
            if at == seconds or not living:
                continue
            pid = draw.choice(living)
            length = draw.uniform(0.1, 1) * arguments.stop
            kills = kills and (respawns or len(living) > 2)
            if not kills and arguments.kills == 1:
                continue
            done.append(Fault("kill" if kills else "stop", time.time(), pid, 0.0 if kills else length))
            os.kill(pid, signal.SIGKILL if kills else signal.SIGSTOP)
            if not kills:
                stopped[pid] = time.time() + length
        for pid in stopped:
            go_on(pid)
        return done

    return faults


# ---- audit


def audit(found: Run, ranks: int) -> tuple[int, int]:
    """Checks the records; (samples that they have too many, samples trained again)."""
    epochs, views = {}, {}
    for rank in found.ranks:
        epochs |= {one["epoch"]: one for one in rank.of("epoch")}
        views |= {one["view"]: one for one in rank.of("view")}
    size, more = 10_000, 0
    for epoch in epochs.values():
        changes = sum(one["epoch"] == epoch["epoch"] for one in views.values())
        if not size <= epoch["samples"] <= size + changes * (ranks - 1):
            raise SystemExit(f"epoch {epoch['epoch']}: {epoch['samples']} samples of {size}")
        more += epoch["samples"] - size
    return more, sum(one["trained_again"] for one in views.values())


def of_living(found: Run, rates: dict[int, float]) -> float:
    """Samples that as many living ranks train without faults."""
    return sum(seconds * rates.get(living, 0.0) for seconds, living in found.living())


# ---- picture

TRAINS, CHANGES, STOPPED, STARTS = (drawing.colour(i) for i in (0, 1, 4, 5))


def rows(found: Run) -> list[list[Rank]]:
    """Processes by row: a newcomer takes the first one whose rank has ended."""
    made: list[list[Rank]] = []
    for rank in found.ranks:
        free = [row for row in made if row[-1].end < rank.events[0]["at"]]
        if free:
            free[0].append(rank)
        else:
            made.append([rank])
    return made


def at_work(steps: list[float]) -> Iterator[tuple[float, float]]:
    """Times without long waits between the ends of two steps."""
    gaps = [after - before for before, after in zip(steps, steps[1:], strict=False)]
    longest, begin = 4 * statistics.median(gaps or [0.0]), 0
    for i, gap in enumerate([*gaps, math.inf]):
        if gap > longest and steps:
            yield steps[begin], steps[i]
            begin = i + 1


def losses(found: Run, parts: int = 100) -> tuple[list[float], list[float]]:
    """Mean loss of the steps in each part of the time."""
    width = (found.end - found.begin) / parts
    sums: dict[int, tuple[float, int]] = {}
    for one in found.steps():
        part = min(int((one["at"] - found.begin) / width), parts - 1)
        loss, samples = sums.get(part, (0.0, 0))
        sums[part] = loss + one["samples"] * one["loss"], samples + one["samples"]
    kept = [part for part in sorted(sums) if sums[part][1]]
    return [(part + 0.5) * width for part in kept], [sums[part][0] / sums[part][1] for part in kept]


def draw(found: Run, quiet: Run, title: str, path: str) -> None:
    made = rows(found)
    figure, (top, bottom) = drawing.panels(8.5, 2.6 + 0.26 * len(made), rows=2)
    top.get_gridspec().set_height_ratios([0.3 * len(made) + 0.4, 1.5])
    least = (found.end - found.begin) / 250  # so that a short change is seen

    def bar(row: int, begin: float, end: float, colour: str, alpha: float = 1.0) -> None:
        begin, end = max(begin, found.begin), min(end, found.end)
        if end > begin:
            top.broken_barh([(begin - found.begin, end - begin)], (row - 0.38, 0.76), color=colour, alpha=alpha, lw=0)

    for row, lives in enumerate(made):
        bar(row, found.begin, found.end, drawing.INK, 0.15)
        for rank in lives:
            first, last = rank.trains()
            bar(row, rank.events[0]["at"], first, STARTS)
            bar(row, first, last, TRAINS, 0.3)
            for begin, end in at_work([one["at"] for one in rank.of("step")]):
                bar(row, begin, end, TRAINS, 0.65)
            for fault in found.faults:
                if fault.pid == rank.pid and fault.kind == "stop":
                    bar(row, fault.at, min(fault.at + fault.seconds, max(last, fault.at + least)), STOPPED)
            for one in rank.of("view"):
                bar(row, one["at"] - max(one["seconds"], least), one["at"], CHANGES)
    kills = [(row, rank) for row, lives in enumerate(made) for rank in lives if rank.end < found.end - 0.5]
    top.scatter([rank.end - found.begin for _, rank in kills], [row for row, _ in kills], marker="x", s=28,
                color=drawing.INK, zorder=3)  # fmt: skip
    shown = {"trains": (TRAINS, 0.8), "waits": (TRAINS, 0.3), "changes its view": (CHANGES, 1.0)}
    shown |= {"stopped": (STOPPED, 1.0), "starts": (STARTS, 1.0), "dead": (drawing.INK, 0.15)}
    for name, (colour, alpha) in shown.items():
        if name != "starts" or len(found.ranks) > len(made):
            top.bar([0], [0], color=colour, alpha=alpha, label=name)
    drawing.legend(top)
    top.set(yticks=range(len(made)), ylabel="rank", xlim=(0, found.end - found.begin), ylim=(len(made) - 0.5, -0.5))
    for one, name, colour, style in ((quiet, "no faults", drawing.INK, "--"), (found, "faults", TRAINS, "-")):
        bottom.plot(*losses(one), style, color=colour, lw=1.4, label=name)
    bottom.set(xlabel="seconds", ylabel="loss", xlim=(0, found.end - found.begin))
    drawing.log(bottom.yaxis)
    drawing.grid(bottom)
    drawing.legend(bottom)
    drawing.finish(figure, path, title)
    if path.endswith(".png"):
        whole = Image.open(path).convert("RGBA")
        whole.quantize(64, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--faults", type=int, default=62)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=float, default=0.7, help="share of kills among the faults")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds a step that a rank waits")
    parser.add_argument("--stop", type=float, default=1.0, help="greatest seconds of a SIGSTOP")
    parser.add_argument("--stopped", type=float, default=2.0, help="seconds after which a stopped rank is killed")
    parser.add_argument("--reference", type=float, default=4.0, help="seconds of a run without faults on fewer ranks")
    parser.add_argument("--picture")
    arguments = parser.parse_args()
    options, respawns = ["--survive"], has_option("--respawn")
    if respawns:
        options += ["--respawn", str(arguments.faults)]
    if has_option("--stopped"):
        options += ["--stopped", str(arguments.stopped)]
    found = run(arguments.ranks, options, arguments.pause, chaos(arguments, respawns))
    more, again = audit(found, arguments.ranks)
    quiet = run(arguments.ranks, ["--survive"], arguments.pause, wait(found.end - found.begin))
    rates = {arguments.ranks: quiet.trained() / (quiet.end - quiet.begin)}
    for living in sorted({n for _, n in found.living()} - {0, arguments.ranks}):
        one = run(living, ["--survive"], arguments.pause, wait(arguments.reference))
        rates[living] = one.trained() / (one.end - one.begin)
    share = found.trained() / of_living(found, rates)
    kills = sum(one.kind == "kill" for one in found.faults)
    text = (
        f"{arguments.ranks} ranks, {found.end - found.begin:.0f} s: {kills} kills, {len(found.faults) - kills} "
        f"stops of up to {arguments.stop:g} s; {100 * share:.1f} % of the samples that as many living ranks train "
        f"without faults; {again} trained again"
    )
    print(text)
    print(f"trained {found.trained()}, in the records {more} more than the epochs have; samples a second, by ranks:")
    print({living: round(rate) for living, rate in sorted(rates.items())})
    if arguments.picture:
        draw(found, quiet, text, arguments.picture)


if __name__ == "__main__":
    main()
