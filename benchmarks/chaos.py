"""Ranks, agents and coordinators are killed, stopped and cut off at random moments; the others train on.

    python benchmarks/chaos.py --ranks 8 --minutes 30 --faults 62 --seed 0 --picture chaos.png
    python benchmarks/chaos.py --ranks 8 --minutes 30 --faults 62 --seed 0 --kinds kill coordinator
    python benchmarks/chaos.py --ranks 8 --nodes 1 --minutes 30 --faults 62 --seed 0

The ranks are processes of `gossipgrad run --survive` that train LeNet on MNIST's digits, and wait `--pause` seconds in
each step as if for a device of their own. Faults, by --kinds:

- kill: SIGKILL of a rank; --respawn starts a new one in its place
- stop: SIGSTOP of a rank for at most `--stop` seconds; after `--stopped` seconds it is killed

The ranks belong to agents of several hosts, played by this one. With --nodes 1 they are one host's, without these:

- coordinator: SIGKILL of the coordinator; another one starts at most 2 s later
- cut: an agent and the coordinator hear nothing of each other for at most 3 s; after `--lease` its ranks are killed
- agent: SIGKILL of an agent, which its ranks do not outlive

A host whose ranks have all died comes back by `gossipgrad join`. At least two ranks are left.

A run without faults trains beside it all the time (--reference beside), or after it, as long. Prints and checks, by the
files in which each rank writes down its own steps:

- samples that the records of the epochs have, and samples of all steps without those trained again: each epoch has the
  set's, but for views that left fewer samples than ranks, steps that a dead rank has not written down, and those that
  a dead host has not told
- samples trained, those trained again, and those that as many living ranks train without faults
- seconds that others stand still for a fault of each kind

The picture has a row for each place of a rank, which new ranks take over, and below it the loss.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import json
import math
import os
import random
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from gossipgrad import drawing
from gossipgrad.errors import counted

GOSSIPGRAD = [sys.executable, "-m", "gossipgrad"]
RUN = [*GOSSIPGRAD, "run", "--transport", "net", "--survive"]
BATCH, SAMPLES = 16, 10_000
BEHIND = 10.0  # seconds without a fault at the end, where deaths would end all ranks; at most a half of the time
WEIGHTS = {"kill": 6.0, "stop": 3.0, "coordinator": 3.0, "cut": 2.0, "agent": 1.0}
NAMES = {
    "kill": ("rank", "killed"),
    "stop": ("rank", "stopped"),
    "coordinator": ("coordinator", "killed"),
    "cut": ("node", "cut off"),
    "agent": ("agent", "killed"),
}
CUT, ABSENT = 3.0, 2.0  # greatest seconds of a cut, and without a coordinator
TO_END = 300.0  # seconds
COORDINATOR = -1_000_000  # its number among nodes
SHARE = 0.1  # of the time: numbers of living ranks whose rate is measured

RANK = """
import json, os, time
import gossipgrad as gg

case = json.loads(os.environ["CASE"])
place, number = (int(os.environ["GOSSIPGRAD_NET_" + name]) for name in ("LOCAL_RANK", "RANK"))
log = open(f"{case['folder']}/{case['node']}-{place}-{number}-{os.getpid()}", "w", buffering=1)

def say(kind, **facts): log.write(json.dumps({"at": time.time(), "kind": kind} | facts) + "\\n")

class Log(gg.Callback):
    every = 1
    epoch, step, samples, loss, mean = 0, None, 0, 0.0, 0.0

    def on_epoch_begin(self, trainer, epoch): self.epoch, self.samples, self.loss = epoch, 0, 0.0

    def on_view(self, trainer, change):
        self.epoch = change["epoch"]
        # The first rank's counts have those of the dead now, beside its own steps in the change.
        self.wrote(trainer, change["step"], 0 if self.step is None else case["batch"] * (change["step"] - self.step))
        say("view", **change)

    def on_step(self, trainer, step):
        self.wrote(trainer, step)
        trainer.stop = os.path.exists(case["folder"] + "/stop")

    def wrote(self, trainer, step, most=1 << 30):
        counts = trainer.core.counts()[0]
        n, loss = counts["samples"] - self.samples, counts["loss_sum"] - self.loss
        self.step, self.samples, self.loss = step, counts["samples"], counts["loss_sum"]
        self.mean = loss / n if 0 < n <= most else self.mean
        if n > 0 and most > 0: say("step", epoch=self.epoch, samples=min(n, most), loss=self.mean, bound=n > most)

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

    node: int
    place: int
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
    kind: str  # of WEIGHTS
    at: float
    pid: int = 0
    node: int = -1
    seconds: float = 0.0


@dataclasses.dataclass
class Run:
    ranks: list[Rank]
    faults: list[Fault]
    begin: float  # all of the first ranks train
    end: float
    problems: list[str] = dataclasses.field(default_factory=list)

    def steps(self) -> Iterator[dict[str, Any]]:
        for rank in self.ranks:
            yield from (one for one in rank.of("step") if self.begin <= one["at"] <= self.end)

    def views(self) -> dict[int, dict[str, Any]]:
        return {one["view"]: one for rank in self.ranks for one in rank.of("view")}

    def trained(self) -> int:
        """Samples, each as often as it counts."""
        again = sum(one["trained_again"] for one in self.views().values() if self.begin <= one["at"] <= self.end)
        return sum(one["samples"] for one in self.steps()) - again

    def living(self) -> Iterator[tuple[float, int]]:
        """Seconds, and how many ranks train in them."""
        lives = [rank.trains() for rank in self.ranks]
        times = sorted({self.begin, self.end, *(t for life in lives for t in life if self.begin < t < self.end)})
        for before, after in zip(times, times[1:], strict=False):
            yield after - before, sum(first <= before and after <= last for first, last in lives)


# ---- ranks


def logs(folder: Path) -> Iterator[tuple[Path, list[int]]]:
    """Files of ranks; node, place, rank and process."""
    for path in folder.glob("*-*-*-*"):
        yield path, [int(part) for part in path.name.split("-")]


def read(folder: Path) -> list[Rank]:
    ranks = []
    for path, numbers in logs(folder):
        lines = path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half a line
        if events:
            ranks.append(Rank(*numbers, events, events[-1]["at"]))
    return sorted(ranks, key=lambda one: (one.events[0]["at"], one.identity))


def training(folder: Path) -> list[tuple[int, int]]:
    """Node and process of each rank that lives and has made a step."""
    found = []
    for path, (node, _, _, pid) in logs(folder):
        if os.path.exists(f"/proc/{pid}"):
            with open(path) as file:
                if '"step"' in file.read(4096):
                    found.append((node, pid))
    return sorted(found)


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("PPid:"))


def ended(command: subprocess.Popen[bytes]) -> int | None:
    """Its exit code; None means that it has not ended, and was killed."""
    try:
        return command.wait(TO_END)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
        return None


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Job:
    """The processes of one run: here the ranks of one host."""

    def __init__(self, ranks: int, pause: float, options: list[str]) -> None:
        self.ranks, self.pause, self.options = ranks, pause, options
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "rank.py").write_text(RANK)
        self.commands: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.commands = [self.ranks_of([])]

    def ranks_of(self, options: list[str], node: int = 0, **env: str) -> subprocess.Popen[bytes]:
        command = [*RUN, *self.options, *options, "-n", str(self.ranks), str(self.folder / "rank.py")]
        return self.launch(command, CASE=self.case(node), **env)

    def case(self, node: int) -> str:
        return json.dumps({"folder": str(self.folder), "pause": self.pause, "batch": BATCH, "node": node})

    def launch(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "errors", "a") as errors:
            return subprocess.Popen(command, env={**os.environ, **env}, stdout=errors, stderr=errors)

    def said(self) -> str:
        return (self.folder / "errors").read_text()

    def end(self) -> list[str]:
        """All ranks that train end by themselves; what has gone wrong."""
        codes = [ended(one) for one in self.commands]
        return [] if 0 in codes and None not in codes else [f"exit codes {codes}\n{self.said()}"]

    def run(self, faults: Callable[[Job, float], list[Fault]]) -> Run:
        """`faults(job, begin)` returns when the time is over."""
        self.start()
        while len(training(self.folder)) < self.ranks:
            time.sleep(0.05)
            if any(one.poll() is not None for one in self.commands):
                raise SystemExit(self.said())
        begin = time.time()
        done = faults(self, begin)
        end = time.time()
        (self.folder / "stop").touch()
        problems = self.end()
        if "Traceback" in (said := self.said()):
            problems.append(f"a rank has failed by itself\n{said}")
        found = Run(read(self.folder), done, begin, end, problems)
        shutil.rmtree(self.folder)
        return found


class Relay:
    """Passes bytes between an agent and the coordinator; while it is cut they wait."""

    def __init__(self, port: int) -> None:
        self.target, self.whole = port, threading.Event()
        self.whole.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            one, _ = self.server.accept()
            self.whole.wait()
            try:
                other = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                self._refuse(one)
                continue
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _refuse(self, one: socket.socket) -> None:
        """Ends the connection as a process does that has read everything: no error reaches the agent."""
        one.settimeout(1.0)
        with one, contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_WR)
            while one.recv(65536):
                pass

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.whole.wait()
                target.sendall(data)
        self.whole.wait()
        for one in (source, target):  # the other direction ends as well
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Hosts(Job):
    """Agents and a coordinator."""

    def __init__(self, ranks: int, pause: float, options: list[str], nodes: int) -> None:
        super().__init__(ranks, pause, options)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.secret, self.address = secrets.token_hex(32), f"127.0.0.1:{port}"
        self.relays = [Relay(port) for _ in range(nodes)]

    def start(self) -> None:
        self.coordinate()
        self.commands = [self.agent(node) for node in range(len(self.relays))]

    def coordinate(self) -> None:
        self.coordinator = self.launch([*GOSSIPGRAD, "coordinator", self.address], GOSSIPGRAD_SECRET=self.secret)

    def agent(self, node: int) -> subprocess.Popen[bytes]:
        options = ["--coordinator", self.relays[node].address, "--nodes", str(len(self.relays)), "--node", str(node)]
        return self.ranks_of(options, node, GOSSIPGRAD_SECRET=self.secret)

    def join(self, node: int, ranks: int) -> subprocess.Popen[bytes]:
        """New ranks of a host that has none any more."""
        stopped = self.options[self.options.index("--stopped") :][:2]
        command = [*GOSSIPGRAD, "join", self.relays[node].address, *stopped, "-n", str(ranks)]
        command.append(str(self.folder / "rank.py"))
        self.commands.append(self.launch(command, CASE=self.case(node), GOSSIPGRAD_SECRET=self.secret))
        return self.commands[-1]

    def end(self) -> list[str]:
        problems, code = super().end(), ended(self.coordinator)
        return problems + ([] if code == 0 else [f"the coordinator's exit code is {code}\n{self.said()}"])


# ---- faults


def until(over: threading.Event, begun: threading.Event) -> Callable[[Job, float], list[Fault]]:
    def no_faults(_: Job, __: float) -> list[Fault]:
        begun.set()
        over.wait()
        return []

    return no_faults


def wait(seconds: float) -> Callable[[Job, float], list[Fault]]:
    def no_faults(_: Job, begin: float) -> list[Fault]:
        time.sleep(max(begin + seconds - time.time(), 0))
        return []

    return no_faults


class Chaos:
    """Calls faults at random moments."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.draw = random.Random(arguments.seed)
        self.seconds, self.stop = 60 * arguments.minutes, arguments.stop
        self.kinds, self.lease, self.stopped = arguments.kinds, arguments.lease, arguments.stopped
        last = max(self.seconds - BEHIND, self.seconds / 2)
        self.plan = sorted(self.draw.uniform(0, last) for _ in range(arguments.faults))
        self.over = False
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.hit: set[int] = set()  # processes, and -1 - node, that a fault still holds

    def __call__(self, job: Job, begin: float) -> list[Fault]:
        done: list[Fault] = []
        for at in [*self.plan, self.seconds]:
            while (now := time.time()) < begin + at:
                time.sleep(max(min(0.01, begin + at - now), 0))
                self._go_on(time.time())
            if at < self.seconds and (fault := self._fault(job)):
                done.append(fault)
        self.over = True
        self._go_on(math.inf)
        return done

    def _go_on(self, now: float) -> None:
        for one in [one for one in self.later if one[0] <= now]:
            self.later.remove(one)
            one[1]()

    def _fault(self, job: Job) -> Fault | None:
        living = [one for one in training(job.folder) if one[1] not in self.hit and -1 - one[0] not in self.hit]
        if not living:
            return None
        node, pid = self.draw.choice(living)
        nodes = len({one[0] for one in living})
        here = sum(one[0] == node for one in living)
        one_less, node_less = len(living) > 2, nodes > 2 and len(living) - here >= 2
        # New ranks need a coordinator to join: while they are awaited it is spared.
        coordinator = COORDINATOR not in self.hit and one_less
        allowed = {"kill": one_less, "agent": node_less, "coordinator": coordinator}
        kinds = [kind for kind in self.kinds if allowed.get(kind, True)]
        if not kinds:
            return None
        kind = self.draw.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        longest = {"stop": self.stop, "cut": CUT, "coordinator": ABSENT}.get(kind, 0.0)
        if kind == "stop" and not one_less:  # so short that nobody dies
            longest = min(longest, 0.8 * self.stopped)
        if kind == "cut" and not node_less:
            longest = min(longest, 0.4 * self.lease)
        fault = Fault(kind, time.time(), pid, node, self.draw.uniform(0.1, 1) * longest)
        getattr(self, f"_{kind}")(job, fault)
        if kind in ("agent", "cut"):
            assert isinstance(job, Hosts)
            self._come_back(job, node, here, fault.at + fault.seconds + 2 * self.lease)
        return fault

    def _come_back(self, job: Hosts, node: int, ranks: int, at: float) -> None:
        """At this time, if the node has no rank left: as many join. Again, if there was no coordinator."""

        def join() -> None:
            if self.over or any(one[0] == node for one in training(job.folder)):
                return
            command = job.join(node, ranks)
            self.later.append((time.time() + 2, lambda: again(command)))

        def again(command: subprocess.Popen[bytes]) -> None:
            if not self.over and command.poll() is not None:
                join()

        self.later.append((at, join))

    def _after(self, fault: Fault, held: int, go_on: Callable[[], None]) -> None:
        def both() -> None:
            self.hit.discard(held)
            go_on()

        self.hit.add(held)
        self.later.append((fault.at + fault.seconds, both))

    def _kill(self, _: Job, fault: Fault) -> None:
        send(fault.pid, signal.SIGKILL)

    def _stop(self, _: Job, fault: Fault) -> None:
        send(fault.pid, signal.SIGSTOP)
        self._after(fault, fault.pid, lambda: send(fault.pid, signal.SIGCONT))

    def _agent(self, _: Job, fault: Fault) -> None:
        send(parent(fault.pid), signal.SIGKILL)

    def _cut(self, job: Job, fault: Fault) -> None:
        assert isinstance(job, Hosts)
        relay = job.relays[fault.node]
        relay.whole.clear()
        self._after(fault, -1 - fault.node, relay.whole.set)

    def _coordinator(self, job: Job, fault: Fault) -> None:
        assert isinstance(job, Hosts)
        fault.pid, fault.node = 0, -1
        job.coordinator.kill()
        job.coordinator.wait()
        self._after(fault, COORDINATOR, job.coordinate)


# ---- audit


def audit(found: Run, ranks: int) -> tuple[int, int]:
    """Adds what is wrong with the samples of the whole epochs to the problems; (those that the records have too many,
    those trained again)."""
    hosts_die = any(fault.kind in ("agent", "cut") for fault in found.faults)
    views = found.views().values()
    records = {one["epoch"]: one["samples"] for rank in found.ranks for one in rank.of("epoch")}
    steps, bounds = dict.fromkeys(records, 0), dict.fromkeys(records, 0)
    for rank in found.ranks:
        for one in rank.of("step"):
            if one["epoch"] in steps:
                steps[one["epoch"]] += one["samples"]
                bounds[one["epoch"]] += one.get("bound", False)
    more = 0
    for epoch, record in records.items():
        changes = [one for one in views if one["epoch"] == epoch]
        again = sum(one["trained_again"] for one in changes)
        # A rank that dies in an epoch's last step is missed in the next epoch.
        unwritten = BATCH * sum(len(one["died"]) for one in views if one["epoch"] in (epoch, epoch + 1))
        most = SAMPLES + len(changes) * (ranks - 1)
        # Nobody knows how many steps a rank has made whose agent has died as well: all up to the change, at most.
        untold = BATCH * sum(one["step"] - 1 - last for one in changes for last in one["last_steps"]) * hosts_die
        # The batch of a first rank's step in a change may have been the short one at the end.
        untold += (BATCH - 1) * bounds[epoch]
        # The record may lack samples that a host had not told before it died whole.
        if record > most or (record < SAMPLES and not (hosts_die and unwritten)):
            found.problems.append(f"epoch {epoch}: {record} samples of {SAMPLES} in the record")
        if not SAMPLES - unwritten <= steps[epoch] - again <= most + untold:
            found.problems.append(f"epoch {epoch}: {steps[epoch]} samples of {SAMPLES} in steps, {again} trained again")
        more += max(record - SAMPLES, 0)
    return more, sum(one["trained_again"] for one in views)


def of_living(found: Run, rates: dict[int, float]) -> float:
    """Samples that as many living ranks train without faults; other numbers of ranks at the rate of the next one."""

    def rate(living: int) -> float:
        nearest = min(rates, key=lambda n: abs(n - living))
        return rates[nearest] * living / nearest

    return sum(seconds * rate(living) for seconds, living in found.living())


def standstill(found: Run) -> dict[str, list[float]]:
    """By kind of fault: seconds that ranks stand still, in the mean of those not hit, until the next fault."""
    times = [(rank, [one["at"] for one in rank.of("step")]) for rank in found.ranks]
    waits: dict[str, list[float]] = {}
    for i, fault in enumerate(found.faults):
        end = found.faults[i + 1].at if i + 1 < len(found.faults) else found.end
        lost = []
        for rank, steps in times:
            first, last = bisect.bisect_left(steps, fault.at), bisect.bisect_right(steps, end)
            if rank.pid == fault.pid or first == 0 or last - first < 2:
                continue
            gaps = [steps[k] - steps[k - 1] for k in range(first, last)]
            usual = statistics.median(gaps)
            lost.append(sum(gap - usual for gap in gaps if gap > 2 * usual))
        if lost:
            waits.setdefault(fault.kind, []).append(statistics.mean(lost))
    return waits


# ---- picture

TRAINS, CHANGES, CUT_OFF, STOPPED, STARTS = (drawing.colour(i) for i in (0, 1, 3, 4, 5))


def rows(found: Run) -> dict[tuple[int, int], list[Rank]]:
    """Processes by their node and place there."""
    made: dict[tuple[int, int], list[Rank]] = {}
    for rank in found.ranks:
        made.setdefault((rank.node, rank.place), []).append(rank)
    return dict(sorted(made.items()))


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


class Rows:
    """The upper panel."""

    def __init__(self, axes: Any, found: Run) -> None:
        self.axes, self.found = axes, found
        self.made = rows(found)
        self.least = (found.end - found.begin) / 500  # so that a short change is seen

    def bar(self, row: int, begin: float, end: float, colour: str, alpha: float = 1.0) -> None:
        begin, end = max(begin, self.found.begin), min(end, self.found.end)
        if end > begin:
            at = [(begin - self.found.begin, end - begin)]
            self.axes.broken_barh(at, (row - 0.38, 0.76), color=colour, alpha=alpha, lw=0)

    def lives(self, row: int, ranks: list[Rank]) -> None:
        self.bar(row, self.found.begin, self.found.end, drawing.INK, 0.15)
        for rank in ranks:
            first, last = rank.trains()
            self.bar(row, rank.events[0]["at"], first, STARTS)
            self.bar(row, first, last, TRAINS, 0.3)
            for begin, end in at_work([one["at"] for one in rank.of("step")]):
                self.bar(row, begin, end, TRAINS, 0.65)
            for one in rank.of("view"):
                self.bar(row, one["at"] - max(one["seconds"], self.least), one["at"], CHANGES)
            for fault in self.found.faults:
                until = fault.at + max(fault.seconds, self.least)
                if fault.pid == rank.pid and fault.kind == "stop":  # the rank after it is drawn over its end
                    self.bar(row, fault.at, until, STOPPED)
                if fault.node == rank.node and fault.kind == "cut" and first < fault.at < last:
                    self.bar(row, fault.at, min(until, last), CUT_OFF)

    def draw(self) -> None:
        found, names = self.found, []
        for row, ((node, place), ranks) in enumerate(self.made.items()):
            self.lives(row, ranks)
            names.append(f"{node}.{place}" if len({node for node, _ in self.made}) > 1 else f"{place}")
            ends = [rank.end - found.begin for rank in ranks if rank.end < found.end - 0.5]
            self.axes.scatter(ends, [row] * len(ends), marker="x", s=22, color=drawing.INK, zorder=3)
        killed = [one for one in found.faults if one.kind == "coordinator"]
        for fault in killed:
            self.bar(len(names), fault.at, max(fault.at + fault.seconds, fault.at + self.least), drawing.INK)
        names += ["coordinator"] if killed else []
        shown = {"trains": (TRAINS, 0.8), "waits": (TRAINS, 0.3), "changes its view": (CHANGES, 1.0)}
        shown |= {"stopped": (STOPPED, 1.0)} if any(one.kind == "stop" for one in found.faults) else {}
        shown |= {"cut off": (CUT_OFF, 1.0)} if any(one.kind == "cut" for one in found.faults) else {}
        shown |= {"starts": (STARTS, 1.0)} if len(found.ranks) > len(self.made) else {}
        for name, (colour, alpha) in {**shown, "dead": (drawing.INK, 0.15)}.items():
            self.axes.bar([0], [0], color=colour, alpha=alpha, label=name)
        drawing.legend(self.axes)
        label = "node.rank" if any("." in name for name in names) else "place of a rank"
        self.axes.set(yticks=range(len(names)), yticklabels=names, ylabel=label)
        self.axes.set(xlim=(0, found.end - found.begin), ylim=(len(names) - 0.5, -0.5))


def draw(found: Run, quiet: Run, title: str, path: str) -> None:
    count = len(rows(found))
    figure, (top, bottom) = drawing.panels(8.5, 2.8 + 0.26 * count, rows=2)
    top.get_gridspec().set_height_ratios([0.3 * count + 0.4, 1.5])
    Rows(top, found).draw()
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


# ---- the whole


def job(ranks: int, arguments: argparse.Namespace, faults: bool = False) -> Job:
    own = ["--stopped", str(arguments.stopped)]
    own += ["--lease", str(arguments.lease)] if arguments.nodes > 1 else []
    own += ["--respawn", str(4 * arguments.faults)] if faults else []
    if arguments.nodes > 1:
        return Hosts(ranks, arguments.pause, own, min(arguments.nodes, ranks))
    return Job(ranks, arguments.pause, own)


def with_reference(arguments: argparse.Namespace) -> tuple[Run, Run]:
    """The run, and the one without faults."""
    ranks, chaos = arguments.ranks, Chaos(arguments)
    if arguments.reference == "after":
        found = job(ranks, arguments, faults=True).run(chaos)
        return found, job(ranks, arguments).run(wait(found.end - found.begin))
    over, begun = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(job(ranks, arguments).run, until(over, begun))
        while not begun.wait(0.1) and not beside.done():
            pass
        try:
            found = job(ranks, arguments, faults=True).run(chaos)
        finally:
            over.set()
        return found, beside.result()


def rates_of(arguments: argparse.Namespace, found: Run, quiet: Run) -> dict[int, float]:
    """Samples a second without faults, by the number of ranks."""
    begin, end = max(found.begin, quiet.begin), min(found.end, quiet.end)
    if end <= begin:  # one after the other
        begin, end = quiet.begin, quiet.end
    whole = dataclasses.replace(quiet, begin=begin, end=end).trained() / (end - begin)
    times: dict[int, float] = {}
    for seconds, living in found.living():
        times[living] = times.get(living, 0.0) + seconds
    wanted = [
        n
        for n, seconds in times.items()
        if 0 < n < arguments.ranks and seconds > SHARE * sum(times.values()) and arguments.fewer
    ]
    alone = {}
    for living in sorted([*wanted, *([arguments.ranks] if wanted else [])]):
        one_run = job(living, arguments).run(wait(arguments.fewer))
        alone[living] = one_run.trained() / (one_run.end - one_run.begin)
    # The runs of fewer ranks are made alone: their rate counts beside that of all ranks alone.
    return {n: whole * rate / alone[arguments.ranks] for n, rate in alone.items()} | {arguments.ranks: whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--faults", type=int, default=62)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=WEIGHTS, help="of faults (default: all that can happen)")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds a step that a rank waits")
    parser.add_argument("--stop", type=float, default=3.0, help="greatest seconds of a SIGSTOP")
    parser.add_argument("--stopped", type=float, default=2.0, help="seconds after which a stopped rank is killed")
    parser.add_argument("--lease", type=float, default=1.0, help="of the agents, in seconds")
    parser.add_argument("--reference", choices=["beside", "after"], default="beside", help="the run without faults")
    parser.add_argument("--fewer", type=float, default=10.0, help="seconds of a run on fewer ranks; 0: none")
    parser.add_argument("--picture")
    arguments = parser.parse_args()
    possible = [kind for kind in WEIGHTS if arguments.nodes > 1 or kind in ("kill", "stop")]
    arguments.kinds = arguments.kinds or possible
    if not set(arguments.kinds) <= set(possible):
        parser.error(f"--kinds: allowed with --nodes {arguments.nodes}: {', '.join(possible)}")
    found, quiet = with_reference(arguments)
    more, again = audit(found, arguments.ranks)
    rates = rates_of(arguments, found, quiet)
    share = found.trained() / of_living(found, rates)
    numbers = {kind: sum(one.kind == kind for one in found.faults) for kind in arguments.kinds}
    counts = [f"{counted(n, NAMES[kind][0])} {NAMES[kind][1]}" for kind, n in numbers.items() if n]
    text = (
        f"{arguments.ranks} ranks, {found.end - found.begin:.0f} s: {', '.join(counts)}; {100 * share:.1f} % of the "
        f"samples that as many living ranks train without faults; {again} trained again"
    )
    print(text)
    print(f"trained {found.trained()}, in the records {more} more than the epochs have; samples a second, by ranks:")
    print({living: round(rate) for living, rate in sorted(rates.items())})
    total = found.end - found.begin
    for kind, waits in standstill(found).items():
        print(f"{kind}: others stand still for {statistics.mean(waits):.2f} s each, {max(waits):.2f} at most, "
              f"{100 * sum(waits) / total:.2f} % of the time")  # fmt: skip
    if arguments.picture:
        draw(found, quiet, text, arguments.picture)
    if problems := found.problems + quiet.problems:
        raise SystemExit("\n".join(problems))
    print("each sample of each epoch counted once")


if __name__ == "__main__":
    main()
