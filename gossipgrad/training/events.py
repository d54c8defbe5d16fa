"""Events of apoptosis: units leave the network on all ranks at once, and training continues. All is collective."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossipgrad import _core, apoptosis
from gossipgrad.apoptosis import Apoptosis, Record
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.given import Given
from gossipgrad.launch import agreement
from gossipgrad.training.replicas import Replicas

BATCH = 256  # max samples of the probe evaluated together


# ---- the probe


def core_probe(replicas: Replicas, probe: Dataset) -> _core.Dataset:
    """The core's view of a probe. ValueError, TypeError: it does not fit the network."""
    return probe.for_model(replicas.net.inputs, replicas.heads, replicas.net.target_names)


def drawn(replicas: Replicas, count: int, train: Given) -> Dataset:
    """Draw `count` samples of the training set by the seed; of rank 0's part if each rank has its own."""
    part = train.first
    if not train.sharded or agreement.alone(replicas.team):
        return _some(part, count, replicas.seed)
    content = replicas.gather(_packed(_some(part, count, replicas.seed)) if replicas.rank == 0 else b"")[0]
    return _unpacked(content, part)


def _some(whole: Dataset, count: int, seed: int) -> Dataset:
    count = min(count, len(whole))
    source = whole.source
    if (source is None or not source.ordered) and not whole.streams:
        return whole[np.sort(_core.permutation(seed, "probe", len(whole))[:count])]
    first = whole[:count]  # other samples would break streams, or need a pass through the whole set
    if source is None or not source.ordered:
        return first
    samples, targets = first._read(slice(0, count))  # once, before training reads it
    return Dataset(samples, first.targets if targets is None else targets, first.scale, first.shift, name=first.name)


def _packed(part: Dataset) -> bytes:
    arrays = {f"input{i}": one for i, one in enumerate(part.inputs)}
    arrays |= {f"target{i}": one for i, one in enumerate(part.targets_in_memory or (part.targets,))}
    if part.sample_weight is not None:
        arrays["weight"] = part.sample_weight
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _unpacked(content: bytes, like: Dataset) -> Dataset:
    """The packed part, on another rank, whose own part describes the arrays."""
    with np.load(io.BytesIO(content)) as arrays:
        inputs = [arrays[f"input{i}"] for i in range(len(arrays.files)) if f"input{i}" in arrays]
        targets = [arrays[f"target{i}"] for i in range(len(arrays.files)) if f"target{i}" in arrays]
        weight = arrays["weight"] if "weight" in arrays else None
    return Dataset(
        _named(like.input_names, inputs),
        _named(like.target_names, targets),
        like.scale,
        like.shift,
        sample_weight=weight,
        name=like.name,
    )


def _named(names: list[str] | None, arrays: list[Any]) -> Any:
    if names is not None:
        return dict(zip(names, arrays, strict=True))
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


# ---- an event


@dataclass(frozen=True)
class Wanted:
    """Limits of an event."""

    budgets: Mapping[str, float]  # by the first layer of each group that may shrink
    least: Mapping[str, int]  # by the same names
    probe: _core.Dataset | None  # None: no comparison, so nothing is undone
    epsilon: float
    best: float | None  # the lowest loss of the probe so far; None: use the loss before this event
    budget: float  # the budget before factors of layers, for the report
    by_hand: bool

    def limit(self, loss_before: float | None) -> float | None:
        """The max loss of the probe after the event; None: there is no probe, or its loss is NaN."""
        return None if loss_before is None else apoptosis.limit(self.epsilon, loss_before, self.best)


def make(replicas: Replicas, wanted: Wanted, pace: Pace | None = None) -> tuple[Record, dict[str, list[int]]]:
    """(the event, the units that left, by layer). The network is then the smaller one, unless the event is undone."""
    begin = time.perf_counter()
    batch = BATCH if wanted.probe is None else min(BATCH, len(wanted.probe))
    least = {name: wanted.least[name] for name in wanted.budgets}
    plan = replicas.core.plan_shrink(dict(wanted.budgets), least=least, probe=wanted.probe, batch=batch)
    most = wanted.limit(plan.loss_before)
    no_worse = most is not None and plan.loss_after is not None and plan.loss_after <= most  # None: it is NaN
    stays = bool(plan.left) and (wanted.probe is None or no_worse)
    undone = bool(plan.left) and not stays
    if stays:
        replicas.become(plan)
    seconds, before = _slowest(replicas, time.perf_counter() - begin, None if pace is None else pace.seconds_a_step)
    event: Record = {
        "step": replicas.step,
        "epoch": replicas.epoch + 1,
        "by_hand": wanted.by_hand,
        "left": {name: len(units) for name, units in plan.left.items()},
        "bound": {name: plan.bound[name] for name in plan.left},
        "share": {name: plan.share[name] for name in plan.left},
        "budget": wanted.budget,
        "loss_before": plan.loss_before,
        "loss_after": plan.loss_after,
        "loss_limit": most,
        "undone": undone,
        "parameters": replicas.net.parameters,
        "seconds": seconds,
        "step_seconds_before": before,
        "step_seconds_after": None,
    }
    replicas.history.apoptosis["events"].append(event)
    bounds = replicas.history.apoptosis["bound"]
    for name, bound in event["bound"].items():
        bounds[name] = bounds.get(name, 0.0) + (0.0 if undone else bound)
    return event, {} if undone else {name: list(units) for name, units in plan.left.items()}


def _slowest(replicas: Replicas, *seconds: float | None) -> list[float | None]:
    """Each of these numbers as of the slowest rank, so that all ranks write equal histories."""
    everywhere = [json.loads(one) for one in replicas.gather(json.dumps(seconds).encode())]
    return [None if None in column else max(column) for column in zip(*everywhere, strict=True)]


def say(event: Record) -> str:
    """An event in a line; "": no unit left."""
    if not event["left"]:
        return ""
    units = ", ".join(f"{count} of {name}" for name, count in event["left"].items())
    losses = event["loss_before"], event["loss_after"]
    probe = "" if None in losses else f"; loss of the probe {losses[0]:.4g} -> {losses[1]:.4g}"
    if event["undone"]:
        limit = f"{probe}, at most {event['loss_limit']:.4g}" if probe else "; loss of the probe: NaN"
        return f"step {event['step']}: undone: {units} would have left{limit}"
    return f"step {event['step']}: left the network: {units}; {event['parameters']:,} parameters{probe}"


# ---- events of a fit


class Pace:
    """Seconds of training, without events and validation, and the steps made in them, since the last event."""

    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0
        self.event: Record | None = None  # the last one

    def add(self, seconds: float, steps: int) -> None:
        """Count steps."""
        self.seconds += seconds
        self.steps += steps

    @property
    def seconds_a_step(self) -> float | None:
        """None: no step has been made."""
        return self.seconds / self.steps if self.steps else None

    def note(self, replicas: Replicas) -> None:
        """Write the seconds of a step since the last event into it, if known. Collective."""
        if self.event is not None:
            self.event["step_seconds_after"] = _slowest(replicas, self.seconds_a_step)[0]

    def begin(self, event: Record) -> None:
        """Begin counting after an event."""
        self.seconds, self.steps, self.event = 0.0, 0, event


class Events:
    """The events of a trainer's apoptosis in one call of fit."""

    def __init__(self, replicas: Replicas, options: Apoptosis, train: Given) -> None:
        self.replicas = replicas
        self.options = options
        probe = options.probe if isinstance(options.probe, Dataset) else drawn(replicas, options.probe, train)
        self.probe = core_probe(replicas, probe)
        self.names = apoptosis.chosen("Apoptosis", options.layers, replicas.net)
        self.least = apoptosis.leasts("Apoptosis", options.least, replicas.net)
        self.pace = Pace()
        self.seconds = 0.0  # in events, since the epoch began

    def next(self, step: int) -> int | None:
        """The first step from `step` on before which there is an event; None: there are no more."""
        assert self.replicas.course is not None
        return self.replicas.course.due(self.options, step)

    def make(self) -> Record:
        """Make the event that is due."""
        replicas, course = self.replicas, self.replicas.course
        assert course is not None
        self.pace.note(replicas)
        budgets = course.budgets(self.names)
        how = self.least, self.probe, self.options.epsilon, course.best, course.budget
        event, _ = make(replicas, Wanted(budgets, *how, by_hand=False), self.pace)
        course.learn(self.options, event, self.names)
        self.pace.begin(event)
        self.seconds += event["seconds"]
        return event

    def end_epoch(self, record: Record) -> Record:
        """The events' part of an epoch's record, whose seconds include them. Collective."""
        self.pace.note(self.replicas)
        seconds, self.seconds = self.seconds, 0.0
        both = {key: record[key] + seconds for key in ("seconds", "seconds_max")}
        return both | {"samples_per_second": record["samples"] / both["seconds"], "apoptosis_seconds": seconds}
