"""Strategies side by side: the same samples for each, on p virtual ranks for several p, as a table, data and plots.

Every configuration (a strategy, a p) trains in a process of its own, several at a time. What is told apart is what a
strategy does with the samples (loss against samples) and what that costs (loss against virtual time).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from gossipgrad import data, environment, models, optim, plots, strategies
from gossipgrad.cluster import MOST_VIRTUAL_RANKS, Network, Straggler, VirtualCluster
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import choice, integer, number, one_line
from gossipgrad.progress import Bar
from gossipgrad.safetensors import write_atomically
from gossipgrad.trainer import Trainer

SCHEMA = 1
LR_SCALINGS = ("none", "sqrt", "linear")
Record = dict[str, Any]

# Of a point: after so many samples of all ranks; sums since the start.
_SUMS = (
    "samples",
    "virtual_seconds",
    "exposed_communication_seconds",
    "compute_seconds",
    "bytes_sent",
    "messages_sent",
)
_POINT = (*_SUMS, "steps", "train_loss", "loss", "accuracy", "consensus_distance")
_ROW = (
    *("strategy", "ranks", "batch_size", "lr", "samples", "steps", "loss", "accuracy", "consensus_distance"),
    *("virtual_seconds", "virtual_seconds_to_target", "exposed_share", "bytes_per_rank_step", "messages_per_rank_step"),
    *("seconds", "failure"),
)


@dataclass(frozen=True)
class Entry:
    """A strategy with its options, as `label` says, and learning rates to try; none: the comparison's."""

    label: str
    strategy: strategies.Strategy
    rates: tuple[float, ...] = ()


def _value(text: str) -> Any:
    """true, false, an integer, a number, or the text itself."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def entries(text: str) -> list[Entry]:
    """The strategies of a list: "all", or names with commas, each with options: "gossipgrad:staleness=1,allreduce".

    An option is the keyword of the strategy's constructor, or lr: a learning rate of its own, or several to try,
    "parameter-server:lr=0.001/0.003". ValueError names what there is.
    """
    found = []
    for words in strategies.BY_NAME if text == "all" else text.split(","):
        label = words.strip()
        name, *pairs = label.split(":")
        options: Record = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise ValueError(
                    f"strategies: {label!r}: {pair!r} is no option; allowed: NAME:option=value:option=value"
                )
            options[key.replace("-", "_")] = _value(value)
        rates = [number("lr", _value(one), 0.0) for one in str(options.pop("lr", "")).split("/") if one]
        if len(rates) > 1:
            label = ":".join(one for one in label.split(":") if not one.startswith("lr="))
        found.append(Entry(label, strategies.by_name(name, **options), tuple(rates)))
    labels = [one.label for one in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"strategies: {label!r} is there twice; allowed: each once")
    return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and what all configurations have in common.

    samples       that each configuration trains on, over all its ranks. The set is gone through again and again, in
                  another order each time.
    points        how often it is validated on the way. The ranks come to rest there, as at the end of an epoch.
    global_batch  samples of all ranks in a step, so a rank has global_batch / p, rounded: every p does the same number
                  of steps, and synchronous strategies the same mathematics. Or
    batch_size    samples of each rank in a step: the steps get fewer as p grows.
    lr_scaling    the learning rate of p ranks: "none" lr, "sqrt" lr * sqrt(p), "linear" lr * p (Goyal et al. 2017).
                  "none" goes with global_batch, the others with batch_size.
    lr_limit      no learning rate is above; None: no limit.
    lr_grid       learning rates in place of the optimiser's: each configuration is trained with each, and the one of
                  the lowest final validation loss is kept. An entry's own rates come before these.
    target        a validation loss: the virtual time to reach it is told. None: 1.5 times the lowest final one.
    The schedule's "auto" length is that of the run. compute_time: as VirtualCluster's, one number.
    """

    entries: Sequence[Entry]
    ranks: Sequence[int]
    model: str = "lenet"
    dataset: str = "mnist-10k"
    folder: str | None = None
    optimizer: optim.Optimizer = optim.SGD(lr=0.03, momentum=0.9)
    samples: int = 20000
    points: int = 8
    global_batch: int | None = 128
    batch_size: int | None = None
    lr_scaling: str = "none"
    lr_limit: float | None = None
    lr_grid: Sequence[float] = ()
    target: float | None = None
    seed: int = 0
    backend: str | None = None
    straggler: Straggler | None = None
    network: Network | None = None
    compute_time: float | None = None

    def __post_init__(self) -> None:
        if not self.entries or not self.ranks:
            raise ValueError("strategies, virtual_ranks: allowed: at least one of each")
        for p in self.ranks:
            integer("virtual_ranks", p, 1, MOST_VIRTUAL_RANKS)
        for key in ("samples", "points"):
            integer(key, getattr(self, key), 1)
        if (self.global_batch is None) == (self.batch_size is None):
            raise ValueError(
                f"global_batch={self.global_batch!r}, batch_size={self.batch_size!r}: allowed: one of both"
            )
        integer("global_batch" if self.batch_size is None else "batch_size", self.global_batch or self.batch_size, 1)
        choice("lr_scaling", self.lr_scaling, LR_SCALINGS)
        for lr in self.lr_grid:
            number("lr_grid", lr, 0.0)
        for key in ("lr_limit", "target", "compute_time"):
            if getattr(self, key) is not None:
                number(key, getattr(self, key), 0.0)

    def batch(self, p: int) -> int:
        """Samples of a rank in a step."""
        if self.global_batch is None:
            return int(self.batch_size or 0)
        if self.global_batch < p:
            raise ValueError(
                f"global_batch={self.global_batch}: allowed: at least {p}, one sample for each of {p} ranks"
            )
        return round(self.global_batch / p)

    def rate(self, entry: Entry, p: int) -> float:
        """The learning rate."""
        scale = {"none": 1.0, "sqrt": math.sqrt(p), "linear": float(p)}[self.lr_scaling]
        rate = (entry.rates[0] if entry.rates else self.optimizer.lr) * scale
        return rate if self.lr_limit is None else min(rate, self.lr_limit)

    def variants(self, entry: Entry) -> list[Entry]:
        """The entry with each learning rate to try."""
        return [replace(entry, rates=(lr,)) for lr in entry.rates or self.lr_grid] or [entry]

    def check(self, size: int) -> None:
        """ValueError unless each part of a set of this size makes a step of all ranks, for any of the ranks."""
        count, part = self.parts(size)
        for p in self.ranks:
            if part < p * self.batch(p):
                raise ValueError(
                    f"samples={self.samples}, points={self.points}: {part} samples a point are less than a step of "
                    f"{p} ranks with {self.batch(p)} each; allowed: more samples, fewer points or a smaller batch"
                )

    def parts(self, size: int) -> tuple[int, int]:
        """How many parts of how many samples, of a set of this size, make the samples: as many as points, or more."""
        count = max(self.points, math.ceil(self.samples / size))
        return count, self.samples // count

    def settings(self) -> Record:
        """All options, in terms of JSON."""
        plain = {key: value for key, value in vars(self).items() if key not in ("entries", "optimizer")}
        for key in ("straggler", "network"):
            plain[key] = None if plain[key] is None else vars(plain[key])
        chosen = [{"label": one.label, "rates": one.rates, **one.strategy.settings()} for one in self.entries]
        return {"strategies": chosen, **plain, **self.optimizer.settings()}


# ---- one configuration, in a process of its own


def _shuffled(whole: Dataset, seed: int, turn: int) -> Dataset:
    order = np.random.default_rng([seed, turn]).permutation(len(whole))
    return Dataset(whole.samples[order], whole.targets[order], whole.scale, whole.shift, name=whole.name)


def train(comparison: Comparison, entry: Entry, p: int) -> Record:
    """Train one configuration; its points and its report."""
    begin = time.perf_counter()
    model = models.by_name(comparison.model)
    net = model.make()
    whole, validation = data.for_network(net, comparison.dataset, comparison.folder, comparison.seed, progress=False)
    count, size = comparison.parts(len(whole))
    batch = comparison.batch(p)
    schedule = comparison.optimizer.schedule
    if schedule.auto:
        schedule = replace(schedule, total=count * math.ceil(math.ceil(size / entry.strategy.workers(p)) / batch))  # type: ignore[call-arg]
    optimizer = replace(comparison.optimizer, lr=comparison.rate(entry, p), schedule=schedule)  # type: ignore[type-var]
    trainer = Trainer(
        net,
        loss=model.loss,
        optimizer=optimizer,
        strategy=entry.strategy,
        seed=comparison.seed,
        comm=VirtualCluster(p, compute_time=comparison.compute_time),
        backend=comparison.backend,
        straggler=comparison.straggler,
        network=comparison.network,
    )
    points: list[Record] = []
    sums: dict[str, float] = dict.fromkeys((*_SUMS, "steps"), 0)
    a_turn = len(whole) // size
    for i in range(count):
        if i % a_turn == 0:
            shuffled = _shuffled(whole, comparison.seed, i // a_turn)
        part = shuffled[i % a_turn * size : (i % a_turn + 1) * size]
        record = trainer.fit(part, validation, batch_size=batch, progress=False).last
        sums = {key: value + record[key] for key, value in sums.items()}
        points.append({**sums, **record["validation"], **{k: record[k] for k in ("train_loss", "consensus_distance")}})
    return {
        "strategy": entry.label,
        "ranks": p,
        "batch_size": batch,
        "lr": optimizer.lr,
        "seconds": time.perf_counter() - begin,
        "points": [{key: point[key] for key in _POINT if key in point} for point in points],
        "report": trainer.history.to_dict(),
    }


def worker() -> None:
    """Reads a comparison, an entry, a number of ranks and a path from stdin, and writes what train gives there."""
    comparison, entry, p, path = pickle.load(sys.stdin.buffer)
    try:
        result = train(comparison, entry, p)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {one_line(error)}")
    write_atomically(path, json.dumps(result).encode())


class _Process:
    """One configuration under way."""

    def __init__(self, comparison: Comparison, entry: Entry, p: int, path: str) -> None:
        self.entry, self.p, self.path = entry, p, path
        self.lr = comparison.rate(entry, p)
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, until the process has ended
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from gossipgrad.compare import worker; worker()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(pickle.dumps((comparison, entry, p, path)))

    def result(self) -> Record:
        """After its end."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        if self.process.returncode == 0:
            with open(self.path, encoding="utf-8") as file:
                done: Record = json.load(file)
            return done
        why = lines[-1] if lines else f"its process ended with code {self.process.returncode}"
        return {"strategy": self.entry.label, "ranks": self.p, "lr": self.lr, "points": [], "failure": why}

    def end(self) -> None:
        """Before its end."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


# ---- all of them


def _name(comparison: Comparison, entry: Entry, p: int) -> str:
    """Of the file that keeps a configuration's result: the same for the same settings."""
    settings = comparison.settings()
    common = {key: settings[key] for key in settings if key not in ("strategies", "ranks", "lr_grid", "target")}
    own = {"label": entry.label, **entry.strategy.settings(), "rate": comparison.rate(entry, p), "p": p}
    text = json.dumps([environment.VERSION, common, own], default=list)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def run(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    jobs: int | None = None,
    said: Callable[[str], None] = lambda line: None,
    shown: bool = False,
) -> list[Record]:
    """Train every configuration, `jobs` at a time (None: as many as there are cores), those of most ranks first.

    One result a configuration, in the order of entries and ranks: strategy, ranks, and batch_size, lr, seconds, points
    and report, or failure, the reason why there is no more; with several learning rates also `tried`, the final loss of
    each, None where it failed. A failing one does not end the others. `said` gets a line for each that has ended;
    shown: a progress bar with the time left. What has been trained is kept in `folder`, which is made, for a run that
    is interrupted: what is there of the same settings is not trained again. What has failed is not there.
    """
    jobs = max(os.cpu_count() or 1, 1) if jobs is None else integer("jobs", jobs, 1)
    by_size = sorted(comparison.ranks, reverse=True)
    waiting = [(one, p) for p in by_size for entry in comparison.entries for one in comparison.variants(entry)]
    weights = {p: 4.0 + p for p in comparison.ranks}  # more ranks take longer, by about so much
    count, bar = len(waiting), Bar("compare", shown)
    results: dict[tuple[str, int], list[Record]] = {}
    under_way: list[_Process] = []
    os.makedirs(folder, exist_ok=True)
    for one, p in list(waiting):
        path = os.path.join(folder, _name(comparison, one, p))
        if os.path.exists(path):
            waiting.remove((one, p))
            with open(path, encoding="utf-8") as file:
                results.setdefault((one.label, p), []).append(json.load(file))
    total, done, ready = sum(weights[p] for _, p in waiting), 0.0, count - len(waiting)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                path = os.path.join(folder, _name(comparison, *waiting[0]))
                under_way.append(_Process(comparison, *waiting.pop(0), path))
            ended = [process for process in under_way if process.process.poll() is not None]
            for process in ended:
                under_way.remove(process)
                result = process.result()
                results.setdefault((process.entry.label, process.p), []).append(result)
                ready += 1
                done += weights[process.p]
                bar.clear()
                said(f"{ready} of {count}: {_sentence(result)}")
            bar.show(done / total, f"{ready} of {count} runs")
            time.sleep(0 if ended else 0.05)
    finally:
        for process in under_way:
            process.end()
        bar.close()
    return [_best(results[entry.label, p]) for entry in comparison.entries for p in comparison.ranks]


def _final(result: Mapping[str, Any]) -> float | None:
    return result["points"][-1]["loss"] if result["points"] else None


def _best(results: Sequence[Record]) -> Record:
    """The one of the lowest final loss; a failing one if all failed."""
    if len(results) == 1:
        return results[0]
    tried = sorted([{"lr": one["lr"], "loss": _final(one)} for one in results], key=lambda one: float(one["lr"]))
    best = min(results, key=lambda one: (one["points"] == [], _final(one) or 0.0))
    return {**best, "tried": tried}


def complete(results: Iterable[Mapping[str, Any]]) -> bool:
    """Has every configuration been trained, with every learning rate?"""
    rates = [one for result in results for one in result.get("tried", [{"loss": _final(result)}])]
    return all(one["loss"] is not None for one in rates)


def _sentence(result: Mapping[str, Any]) -> str:
    head = f"{result['strategy']}, {result['ranks']} ranks, lr {result['lr']:.4g}"
    if not result["points"]:
        return f"{head}: FAILED: {result['failure']}"
    last = result["points"][-1]
    accuracy = f", accuracy {100 * last['accuracy']:.2f} %" if "accuracy" in last else ""
    took = f"{last['virtual_seconds']:.4g} virtual s ({result['seconds']:.1f} s)"
    return f"{head}: loss {last['loss']:.4f}{accuracy}, {took}"


# ---- what comes out


def time_to(points: Iterable[Mapping[str, Any]], target: float) -> float | None:
    """The virtual time at which the validation loss first is `target`, on straight lines between the points."""
    before: Mapping[str, Any] | None = None
    for point in points:
        if point["loss"] <= target:
            if before is None:
                return float(point["virtual_seconds"])
            share = (before["loss"] - target) / (before["loss"] - point["loss"])
            step = point["virtual_seconds"] - before["virtual_seconds"]
            return float(before["virtual_seconds"] + share * step)
        before = point
    return None


def target_of(comparison: Comparison, results: Iterable[Mapping[str, Any]]) -> float | None:
    """The loss whose time is told; None where nothing has been trained."""
    if comparison.target is not None:
        return comparison.target
    finals = [loss for loss in map(_final, results) if loss is not None]
    return 1.5 * min(finals) if finals else None


def row(result: Mapping[str, Any], target: float | None) -> Record:
    """A configuration in one line of the table; a failing one has its reason alone."""
    made: Record = {key: result.get(key) for key in ("strategy", "ranks", "batch_size", "lr", "seconds", "failure")}
    if result["points"]:
        last = result["points"][-1]
        ranks, clock = result["ranks"], last["exposed_communication_seconds"] + last["compute_seconds"]
        made |= {key: last.get(key) for key in _ROW if key in last}
        made["exposed_share"] = last["exposed_communication_seconds"] / clock if clock else 0.0
        made["bytes_per_rank_step"] = last["bytes_sent"] / last["steps"] / ranks
        made["messages_per_rank_step"] = last["messages_sent"] / last["steps"] / ranks
        made["virtual_seconds_to_target"] = None if target is None else time_to(result["points"], target)
    return {key: made.get(key) for key in _ROW}


_COLUMNS: tuple[tuple[str, str, str, float], ...] = (
    ("ranks", "ranks", "d", 1),
    ("batch", "batch_size", "d", 1),
    ("lr", "lr", ".4g", 1),
    ("loss", "loss", ".4f", 1),
    ("accuracy %", "accuracy", ".2f", 100),
    ("virtual s", "virtual_seconds", ".4g", 1),
    ("s to target", "virtual_seconds_to_target", ".4g", 1),
    ("exposed %", "exposed_share", ".1f", 100),
    ("MB/rank/step", "bytes_per_rank_step", ".3f", 1e-6),
    ("messages", "messages_per_rank_step", ".2f", 1),
    ("distance", "consensus_distance", ".2e", 1),
)


def table(rows: Sequence[Mapping[str, Any]], target: float | None) -> str:
    """The rows for reading."""
    cells = [["strategy", *(title for title, *_ in _COLUMNS)]]
    for one in rows:
        values = [(one[key], form, scale) for _, key, form, scale in _COLUMNS]
        shown = ["-" if value is None else format(value * scale, form) for value, form, scale in values]
        cells.append([one["strategy"], *(shown if one["failure"] is None else [str(one["ranks"]), "FAILED"])])
    widths = [max(len(line[i]) for line in cells if i < len(line)) for i in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=False)))
             for line in cells]  # fmt: skip
    if target is not None:
        lines.append(f"target: a validation loss of {target:.4f}")
    return "\n".join(lines)


def _csv(keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def write(comparison: Comparison, results: Sequence[Mapping[str, Any]], folder: str | os.PathLike[str]) -> list[Record]:
    """Write all files to a folder, which is made; the rows of the table.

    compare.json  everything: settings, environment, target, and for each configuration its row and its points
    compare.csv   the table;  points.csv  the points, each the state after so many samples, with sums since the start
    reports/      the report (docs/report.md) of each configuration, with a record a point
    *.png         curves-pN.png for each number of ranks, scaling.png over all; where matplotlib is installed
    """
    folder = os.fspath(folder)
    os.makedirs(os.path.join(folder, "reports"), exist_ok=True)
    target = target_of(comparison, results)
    rows = [row(one, target) for one in results]
    kept = ("tried", "points")
    runs = [{**line, **{k: one[k] for k in kept if k in one}} for line, one in zip(rows, results, strict=True)]
    whole = {"schema": SCHEMA, "settings": comparison.settings(), "environment": environment.environment(1)}
    whole |= {"target_loss": target, "runs": runs}
    write_atomically(os.path.join(folder, "compare.json"), json.dumps(whole, indent=1, default=list).encode() + b"\n")
    write_atomically(os.path.join(folder, "compare.csv"), _csv(_ROW, rows))
    points = [{**one, **point} for one in runs for point in one["points"]]
    write_atomically(os.path.join(folder, "points.csv"), _csv(("strategy", "ranks", *_POINT), points))
    for one in results:
        if "report" in one:
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in one["strategy"])
            path = os.path.join(folder, "reports", f"{name}-p{one['ranks']}.json")
            write_atomically(path, json.dumps(one["report"], indent=1).encode() + b"\n")
    _draw(runs, target, folder)
    return rows


def _draw(runs: Sequence[Record], target: float | None, folder: str) -> None:
    trained = [one for one in runs if one["points"]]
    try:
        for p in sorted({one["ranks"] for one in trained}):
            curves = [one for one in trained if one["ranks"] == p]
            plots.comparison_curves(curves, os.path.join(folder, f"curves-p{p}.png"))
        if trained:
            plots.comparison_scaling(trained, target, os.path.join(folder, "scaling.png"))
    except ImportError as error:
        warnings.warn(str(error), stacklevel=3)
