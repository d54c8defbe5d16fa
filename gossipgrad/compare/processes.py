"""Every configuration (a strategy, a number of ranks, a learning rate) trains in a process of its own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from gossipgrad import models
from gossipgrad.cluster import VirtualCluster
from gossipgrad.compare.plan import Comparison, Entry, Record
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import counted, integer, one_line
from gossipgrad.launch import environment
from gossipgrad.launch.terminal import Bar
from gossipgrad.state import files
from gossipgrad.trainer import Trainer

# Fields of a point: the samples of all ranks so far; sums since the start.
SUMS = (
    "samples",
    "virtual_seconds",
    "exposed_communication_seconds",
    "compute_seconds",
    "bytes_sent",
    "messages_sent",
)
POINT = (*SUMS, "steps", "train_loss", "loss", "accuracy", "consensus_distance")


def _shuffled(whole: Dataset, seed: int, turn: int) -> Dataset:
    order = np.random.default_rng([seed, turn]).permutation(len(whole))
    return whole[order]


def train(comparison: Comparison, entry: Entry, p: int) -> Record:
    """Train one configuration; its points and its report."""
    begin = time.perf_counter()
    model = models.by_name(comparison.model)
    net, whole, validation = models.with_data(
        model,
        comparison.dataset,
        comparison.folder,
        comparison.seed,
        progress=False,
        **comparison.data_options,
    )
    count, size = comparison.parts(len(whole))
    batch = comparison.batch(p)
    schedule = comparison.optimizer.timing
    if schedule.auto:
        schedule = replace(schedule, total=comparison.steps(len(whole), entry, p))  # type: ignore[call-arg]
    optimizer = replace(comparison.optimizer, lr=comparison.rate(entry, p), schedule=schedule)  # type: ignore[type-var]
    trainer = Trainer(
        net,
        loss=model.loss,
        optimizer=optimizer,
        strategy=entry.strategy,
        compression=entry.compression,
        apoptosis=entry.apoptosis,
        seed=comparison.seed,
        comm=VirtualCluster(p, compute_time=comparison.compute_time),
        threads=1,  # there are as many processes as CPUs
        backend=comparison.backend,
        device=comparison.device,
        straggler=comparison.straggler,
        network=comparison.network,
    )
    points: list[Record] = []
    failure: str | None = None
    sums: dict[str, float] = dict.fromkeys((*SUMS, "steps"), 0)
    a_turn = len(whole) // size
    for i in range(count):
        if i % a_turn == 0:
            shuffled = _shuffled(whole, comparison.seed, i // a_turn)
        part = shuffled[i % a_turn * size : (i % a_turn + 1) * size]
        try:
            record = trainer.fit(part, validation, batch_size=batch, progress=False).last
            if not math.isfinite(record["validation"]["loss"]):
                raise FloatingPointError(f"the validation loss is {record['validation']['loss']}")
        except FloatingPointError as error:  # a result as well: the same command would diverge again
            failure = f"diverged after {i * size} to {(i + 1) * size} samples: {one_line(error)}"
            break
        sums = {key: value + record[key] for key, value in sums.items()}
        points.append({**sums, **record["validation"], **{k: record[k] for k in ("train_loss", "consensus_distance")}})
    result: Record = {
        "strategy": entry.label,
        "ranks": p,
        "seed": comparison.seed,
        "batch_size": batch,
        "lr": optimizer.lr,
        "seconds": time.perf_counter() - begin,
        "points": [{key: point[key] for key in POINT if key in point} for point in points],
    }
    return result | ({"report": trainer.history.to_dict()} if failure is None else {"failure": failure})


def worker() -> None:
    """Read a comparison, an entry, a number of ranks and a path from stdin, and write the result of train there."""
    comparison, entry, p, path = pickle.load(sys.stdin.buffer)
    try:
        result = train(comparison, entry, p)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {one_line(error)}")
    files.write_atomically(path, json.dumps(result).encode())


def worker_command() -> list[str]:
    """A command that starts worker() with the modules of this process."""
    # By itself "-c" imports gossipgrad.py, numpy.py and the like from the current folder.
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from gossipgrad.compare import worker; worker()",
    ]


class Process:
    """One running configuration."""

    def __init__(self, comparison: Comparison, entry: Entry, p: int, path: str) -> None:
        self.entry, self.p, self.path = entry, p, path
        self.lr, self.seed = comparison.rate(entry, p), comparison.seed
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, until the process has ended
        self.process = subprocess.Popen(
            worker_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(pickle.dumps((comparison, entry, p, path)))

    def result(self) -> Record:
        """The result, after its end."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        if self.process.returncode == 0:
            with open(self.path, encoding="utf-8") as file:
                done: Record = json.load(file)
            return done
        why = lines[-1] if lines else f"its process ended with code {self.process.returncode}"
        about = {"strategy": self.entry.label, "ranks": self.p, "seed": self.seed, "lr": self.lr}
        return {**about, "points": [], "failure": why}

    def end(self) -> None:
        """End it early."""
        self.process.kill()
        self.process.wait()
        self.errors.close()


# ---- all of them


def _name(comparison: Comparison, entry: Entry, p: int) -> str:
    """Name of the file with a configuration's result: equal for equal settings."""
    settings = comparison.settings()
    common = {key: settings[key] for key in settings if key not in ("strategies", "ranks", "lr_grid", "target")}
    own = {"label": entry.label, **entry.settings(), "rate": comparison.rate(entry, p), "p": p}
    text = json.dumps([environment.VERSION, common, own], default=list)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _numbers(record: Any, keys: Iterable[str]) -> bool:
    """True if a record has these keys, each with a number."""
    return isinstance(record, dict) and all(type(record.get(key)) in (int, float) for key in keys)


def _is_result(result: Any) -> bool:
    """True for a result of train."""
    if not _numbers(result, ("ranks", "seed", "batch_size", "lr", "seconds")) or not isinstance(
        result.get("points"), list
    ):
        return False
    needed = [key for key in POINT if key != "accuracy"]
    return (
        isinstance(result.get("strategy"), str)
        and isinstance(result.get("failure", ""), str)
        and isinstance(result.get("report", {}), dict)
        and all(_numbers(one, needed) and _numbers({"accuracy": 0} | one, ["accuracy"]) for one in result["points"])
        and (bool(result["points"]) or bool(result.get("failure")))
    )


def _finished(path: str) -> Record | None:
    """The result in this file; None if missing, and, with a warning, if damaged."""
    try:
        result: Record = json.loads(files.content(path))
        if not _is_result(result):
            raise ValueError("no result of a configuration")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{path}: damaged, its configuration is trained again ({one_line(error)})", stacklevel=3)
        return None
    return result


def run(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    jobs: int | None = None,
    said: Callable[[str], None] = lambda line: None,
    shown: bool = False,
) -> list[Record]:
    """Train every configuration, `jobs` at a time (None: as many as the usable cores), those of most ranks first.

    One result a configuration, in the order of entries and ranks: strategy, ranks, and batch_size, lr, seconds, points
    and report; or failure, the reason ("diverged ...": with the points before that). With several seeds the points are
    means, `by_seed` has those of each, and the report is of the first. With several learning rates also `tried`, the
    final loss and the failure of each, None if missing. A failing one does not end the others. `said` gets a line at
    the end of each; shown: a progress bar with the time left.

    Trained and diverged configurations are stored in `folder`, which is created. After an interrupt a configuration
    with a stored result of equal settings is not trained again. Other failures are not stored.
    """
    jobs = environment.usable_cpus() if jobs is None else integer("jobs", jobs, 1)
    by_size = sorted(comparison.ranks, reverse=True)
    waiting = [
        (plan, one, p)
        for p in by_size
        for entry in comparison.entries
        for one in comparison.variants(entry, p)
        for plan in comparison.of_each_seed()
    ]
    weights = {p: 4.0 + p for p in comparison.ranks}  # more ranks take longer, by about so much
    count, bar = len(waiting), Bar("compare", shown)
    results: dict[tuple[str, int], list[Record]] = {}
    under_way: list[Process] = []
    os.makedirs(folder, exist_ok=True)
    for plan, one, p in list(waiting):
        path = os.path.join(folder, _name(plan, one, p))
        result = _finished(path)
        if result is not None:
            waiting.remove((plan, one, p))
            results.setdefault((one.label, p), []).append(result)
    total, done, ready = sum(weights[p] for *_, p in waiting), 0.0, count - len(waiting)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                path = os.path.join(folder, _name(*waiting[0]))
                under_way.append(Process(*waiting.pop(0), path))
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


def final_loss(result: Mapping[str, Any]) -> float | None:
    """The final loss; None if it failed."""
    return result["points"][-1]["loss"] if result["points"] and not result.get("failure") else None


def _of_seeds(results: Sequence[Record]) -> Record:
    """One result of some that differ in the seed: their means, and the points of each; a failure if one failed."""
    if len(results) == 1:
        return results[0]
    results = sorted(results, key=lambda one: int(one["seed"]))
    together = zip(*(one["points"] for one in results), strict=False)  # up to the first that failed
    merged = {
        **results[0],
        "points": [{key: _mean([one[key] for one in some]) for key in some[0]} for some in together],
    }
    merged["by_seed"] = [{key: one[key] for key in ("seed", "points", "failure") if key in one} for one in results]
    failed = [one for one in results if one.get("failure")]
    if failed:
        worst = min(failed, key=lambda one: str(one["failure"]).startswith("diverged"))  # another reason comes first
        merged.pop("report", None)
        merged["failure"] = f"{worst['failure']} (seed {worst['seed']})"
    else:
        merged["seconds"] = sum(one["seconds"] for one in results)
    return merged


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(set(values)) == 1 else statistics.fmean(values)


def _best(results: Sequence[Record]) -> Record:
    """The result of the rate with the lowest final loss, the mean over the seeds; a failing one if all failed."""
    rates = dict.fromkeys(one["lr"] for one in results)
    results = [_of_seeds([one for one in results if one["lr"] == lr]) for lr in rates]
    if len(results) == 1:
        return results[0]
    tried = [{"lr": one["lr"], "loss": final_loss(one), "failure": one.get("failure")} for one in results]
    best = min(results, key=lambda one: (final_loss(one) is None, final_loss(one) or float(one["lr"])))
    return {**best, "tried": sorted(tried, key=lambda one: float(one["lr"]))}


def complete(results: Iterable[Mapping[str, Any]]) -> bool:
    """True if every configuration was trained with every learning rate, to its end or until it diverged."""
    tried = [one for result in results for one in result.get("tried", [result])]
    return all((one.get("failure") or "diverged").startswith("diverged") for one in tried)


def _sentence(result: Mapping[str, Any]) -> str:
    head = f"{result['strategy']}, {counted(result['ranks'], 'rank')}, lr {result['lr']:.4g}, seed {result['seed']}"
    if result.get("failure"):
        return f"{head}: FAILED: {result['failure']}"
    last = result["points"][-1]
    accuracy = f", accuracy {100 * last['accuracy']:.2f} %" if "accuracy" in last else ""
    took = f"{last['virtual_seconds']:.4g} virtual s ({result['seconds']:.1f} s)"
    return f"{head}: loss {last['loss']:.4f}{accuracy}, {took}"
