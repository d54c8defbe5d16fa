"""Apoptosis: networks that shrink while they train. Its options, and the rule for the number of leaving units.

Pure: nothing here knows ranks, files or the core. training/events.py carries out the decisions of this module.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gossipgrad.data.arrays import Dataset, as_dataset
from gossipgrad.errors import did_you_mean, integer, named_keywords, number, store
from gossipgrad.keywords import about
from gossipgrad.model import Model, some_of

Record = dict[str, Any]

ALL = "*"
MIN_BUDGET = 1e-3  # min of the budget, as a share of the given one
MAX_GAIN = 8.0  # max factor of the budget for a layer; its inverse is the min


def layer_patterns(value: Any) -> tuple[str, ...]:
    """Names of layers, or patterns of them, from one or a sequence; TypeError, ValueError: others."""
    given = (value,) if isinstance(value, str) else value
    allowed = "allowed: a name of a layer, a pattern as 'fc*', or a tuple of these"
    if not isinstance(given, (tuple, list)) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"layers={value!r}: {allowed}")
    if not given or not all(given):
        raise ValueError(f"layers={value!r}: {allowed}, none of them empty")
    return tuple(given)


Least = int | float | Mapping[str, int | float]


def _least(argument: str, value: Any) -> int | float:
    if isinstance(value, (float, np.floating)):
        return number(argument, value, above=0.0, below=1.0)
    return integer(argument, value, 1)


def least_units(value: Any) -> Least:
    """The min number of units: a number, a share, or these by layer_patterns. TypeError, ValueError: another thing."""
    if not isinstance(value, Mapping):
        return _least("least", value)
    for one in value:
        layer_patterns(one)
    return {str(key): _least(f"least[{key!r}]", one) for key, one in value.items()}


def _read_least(text: str) -> Least:
    """Read a number, or NAME=N with commas between them."""

    def one(value: str) -> int | float:
        return float(value) if "." in value else int(value)

    try:
        if "=" not in text:
            return least_units(one(text))
        pairs = [pair.rpartition("=") for pair in text.replace("/", ",").split(",")]
        return least_units({name.strip(): one(value) for name, _, value in pairs})
    except (TypeError, ValueError) as error:
        said = str(error) if str(error).startswith("least") else f"{text!r}"
        raise ValueError(
            f"{said}; allowed: a number of units, a share, or NAME=N with commas, as conv*=8,fc1=64"
        ) from None


def _probe(value: Any) -> Any:
    if hasattr(value, "__index__") or isinstance(value, (bool, float, str)) or value is None:
        return integer("probe", value, 1)
    return as_dataset(value, "probe")


def _read_probe(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}: allowed: a number of samples") from None


@named_keywords
@dataclass(frozen=True, kw_only=True)
class Apoptosis:
    """Units of a network that others make redundant leave it while it trains, on all ranks at once.

    Siegel, Daily, Vishnu, "Adaptive Neuron Apoptosis for Accelerating Deep Learning on Large Scale Systems" (2016),
    arXiv 1610.00790. A unit is a neuron of a Linear, a filter of a Conv2d with the batch normalisation after it, a
    hidden unit of an LSTM (the same one of all its layers), or a head of attention.

    In an event a unit is folded into another whose incoming weights are nearly parallel to its own. A nearly constant
    unit is folded into the biases of its readers. Then the network, the optimiser's state and all state of strategies
    are made smaller, and training continues with the next batch. The network's outputs change by at most a bound, which
    is in the history. The trainer's net is then the smaller network.

    Before an event counts, the smaller network is tried on the probe. The event is undone, and changes nothing, if the
    probe's loss is higher than before and more than epsilon above the lowest loss before any event. So the cost of
    events does not add up: training must make up for it before more units may leave. If the event alone costs more than
    epsilon, the budget shrinks.

    every    steps between events.
    start    the step before which the first event is; None: `every`.
    stop     the step from which on there are none; None: until training ends.
    budget   0 to 1: max loss of a layer in an event, as a share of the contributions of all its units. 0: only units
             whose removal changes nothing but rounding. The budget follows the events: `grow` multiplies it after an
             event that stays, up to the given one, and `shrink` after one that cost too much. A layer that keeps losing
             units gets up to 8 times the budget; a layer that loses none, or needed its units, gets less.
    epsilon  share by which the loss on the probe may exceed the lowest so far, 0.01: by 1 %.
    probe    number of samples, drawn by the trainer's seed from the training set (rank 0's part with sharded=True); or
             samples of the user's, (x, y) or a Dataset, the same on all ranks.
    layers   layers that may lose units: names ("fc1"), patterns ("conv*"), or a tuple of these.
    least    min units of each layer; 0.1: a tenth of its original units; a dict by names or patterns, {"conv*": 8,
             "fc1": 0.1}, whose first match counts; others keep one.
    grow, shrink  factors of the budget: at least 1; above 0 and below 1.

    Outputs of the network never leave. history.apoptosis["fixed"] has the reason for each other layer that cannot
    shrink.
    """

    every: int = field(default=100, metadata=about("steps between events"))
    start: int | None = field(
        default=None, metadata=about("the step before which the first event is", default="as many as every")
    )
    stop: int | None = field(
        default=None, metadata=about("the step from which on there are no events", default="until the end")
    )
    budget: float = field(default=0.01, metadata=about("0 to 1: what an event may take from a layer, as a share"))
    epsilon: float = field(
        default=0.01, metadata=about("by which share the loss on the probe may rise; else the event is undone")
    )
    probe: Any = field(
        default=256,
        hash=False,
        compare=False,
        metadata=about("so many samples of the training set compare both networks", metavar="N", read=_read_probe),
    )
    layers: str | Sequence[str] = field(
        default=ALL,
        metadata=about(
            "names or patterns of layers that may shrink, with commas",
            metavar="NAMES",
            read=lambda text: layer_patterns([one.strip() for one in text.replace("/", ",").split(",")]),
        ),
    )
    least: Least = field(
        default=1,
        hash=False,
        metadata=about(
            "so many units, or this share of the first ones, stay in each layer; or by names of layers",
            metavar="N|NAME=N,...",
            read=_read_least,
        ),
    )
    grow: float = field(default=1.25, metadata=about("at least 1: multiplies the budget after an event that stays"))
    shrink: float = field(default=0.5, metadata=about("0 to 1: multiplies the budget after one that cost too much"))

    def __post_init__(self) -> None:
        every = integer("every", self.every, 1)
        start = None if self.start is None else integer("start", self.start, 0)
        stop = None if self.stop is None else integer("stop", self.stop, 1)
        layers = layer_patterns(self.layers)
        store(
            self,
            every=every,
            start=start,
            stop=stop,
            budget=number("budget", self.budget, 0.0, 1.0),
            epsilon=number("epsilon", self.epsilon, 0.0),
            probe=_probe(self.probe),
            layers=layers[0] if len(layers) == 1 else layers,
            least=least_units(self.least),
            grow=number("grow", self.grow, 1.0),
            shrink=number("shrink", self.shrink, above=0.0, below=1.0),
        )
        if stop is not None and stop <= self.first:
            raise ValueError(
                f"stop={stop}: allowed: above start={self.first}, the step before which the first event is"
            )

    @property
    def first(self) -> int:
        """The step before which the first event is."""
        return self.every if self.start is None else self.start

    @property
    def own_probe(self) -> Dataset | None:
        """The user's own probe."""
        return self.probe if isinstance(self.probe, Dataset) else None

    def settings(self) -> Record:
        """The keywords, in terms of JSON; a user's own probe is described, not contained."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        if isinstance(self.probe, Dataset):
            own["probe"] = {"name": self.probe.name, "samples": len(self.probe)}
        if isinstance(self.least, Mapping):
            own["least"] = dict(self.least)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}


def from_settings(settings: Mapping[str, Any] | None) -> Apoptosis | None:
    """The Apoptosis of a settings() dict; the same number of the training set's samples replaces a user's own probe."""
    if settings is None:
        return None
    given = {one.name: settings[one.name] for one in fields(Apoptosis) if one.name in settings}
    if isinstance(given.get("probe"), Mapping):
        given["probe"] = int(given["probe"]["samples"])
    return Apoptosis(**given)


# ---- which units of a network can leave


@dataclass(frozen=True)
class Group:
    """Units that leave together: those of a layer, or of several whose outputs are added."""

    layers: tuple[str, ...]
    units: int
    fixed: str  # reason why none can leave; "": they can

    @property
    def name(self) -> str:
        """The first layer's name."""
        return self.layers[0]


def groups(net: Model) -> list[Group]:
    """All groups of units of a network."""
    return [Group(tuple(one["layers"]), one["units"], one["fixed"] or one["single"]) for one in net.graph.units()]


def fixed(net: Model) -> dict[str, str]:
    """Reasons, by name, of layers that cannot lose units."""
    return {name: one.fixed for one in groups(net) if one.fixed for name in one.layers}


def chosen(call: str, layers: str | Sequence[str], net: Model) -> list[str]:
    """The names of the groups that may shrink, by layer_patterns.

    ValueError: a name that no layer with units has, or of a layer that cannot shrink, with the reason; a pattern
    without a match that can.
    """
    found = groups(net)
    names = [name for one in found for name in one.layers]
    result: dict[str, None] = {}
    for pattern in layer_patterns(layers):
        meant = [one for one in found if any(_means(pattern, name) for name in one.layers)]
        if not meant:
            raise ValueError(
                f"{call}: layers={pattern!r}: no layer with units has this name{did_you_mean(pattern, names)}; "
                f"allowed: {some_of(names)}, or a pattern as 'fc*'"
            )
        free = [one for one in meant if not one.fixed]
        if not free:
            why = "; ".join(f"{one.name}: {one.fixed}" for one in meant[:4])
            raise ValueError(f"{call}: layers={pattern!r}: cannot shrink: {why}")
        result |= dict.fromkeys(one.name for one in free)
    return list(result)


def leasts(call: str, least: Least, net: Model) -> dict[str, int]:
    """The min units of each group, by its name. ValueError: a name that no layer with units has."""
    found = groups(net)
    names = [name for one in found for name in one.layers]
    given = least if isinstance(least, Mapping) else {ALL: least}
    for pattern in given:
        if not any(_means(pattern, name) for name in names):
            raise ValueError(
                f"{call}: least: {pattern!r}: no layer with units has this name{did_you_mean(pattern, names)}; "
                f"allowed: {some_of(names)}, or a pattern as 'fc*'"
            )
    result = {}
    for one in found:
        value = next((v for p, v in given.items() if any(_means(p, name) for name in one.layers)), 1)
        share = isinstance(value, float)
        born, now = net.born.get(one.name), net.units[one.name]  # before Attention a layer has rows, not heads
        units = one.units * born / now if isinstance(born, int) else one.units
        result[one.name] = max(1, math.ceil(value * units)) if share else int(value)
    return result


def _means(pattern: str, name: str) -> bool:
    return name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)


# ---- the rule


def limit(epsilon: float, loss_before: float, best: float | None = None) -> float:
    """The max loss of the probe after an event that stays; best: the lowest before earlier events."""
    lowest = loss_before if best is None else min(best, loss_before)
    most = lowest + epsilon * abs(lowest)
    return most if best is None else max(most, loss_before)


@dataclass
class Course:
    """The progress of apoptosis: the budget that events have left, and the time of the next one.

    The course follows from the options and the outcomes of events alone. So it is equal on all ranks, and a checkpoint
    continues it as if training had never stopped.
    """

    budget: float
    last: int = -1  # the step of the last event
    best: float | None = None  # the lowest loss of the probe before an event
    gain: dict[str, float] = field(default_factory=dict)  # factor of the budget for a layer; 1 if absent

    def due(self, options: Apoptosis, step: int) -> int | None:
        """The first step from `step` on before which there is an event; None: there are no more."""
        begin = max(step, self.last + 1)
        after = max(begin - options.first, 0)
        found = options.first + -(-after // options.every) * options.every
        return None if options.stop is not None and found >= options.stop else found

    def budgets(self, layers: Iterable[str]) -> dict[str, float]:
        """The budget of each layer in the next event."""
        return {name: min(1.0, self.budget * self.gain.get(name, 1.0)) for name in layers}

    def learn(self, options: Apoptosis, event: Mapping[str, Any], layers: Iterable[str]) -> None:
        """Adjust budgets after an event in which these layers might lose units."""
        self.last, left, loss, after = event["step"], event["left"], event["loss_before"], event["loss_after"]
        if loss is not None and (self.best is None or loss < self.best):
            self.best = loss
        if event["undone"] and None not in (loss, after) and after <= limit(options.epsilon, loss):
            return  # cheap by itself: the cost of earlier events has not been made up for yet
        if event["undone"]:
            self.budget = max(self.budget * options.shrink, options.budget * MIN_BUDGET)
        else:
            self.budget = min(self.budget * options.grow, options.budget)
        if not left:
            return
        for name in layers:
            if not left.get(name) and event["undone"]:
                continue  # not part of the event
            factor = options.grow if left.get(name) and not event["undone"] else 1.0 / options.grow
            self.gain[name] = min(max(self.gain.get(name, 1.0) * factor, 1.0 / MAX_GAIN), MAX_GAIN)

    def settings(self) -> Record:
        """The course in terms of JSON."""
        return {"budget": self.budget, "last": self.last, "best": self.best, "gain": dict(self.gain)}

    @classmethod
    def begun(cls, options: Apoptosis) -> Course:
        """The course before the first event."""
        return cls(options.budget)

    @classmethod
    def of(cls, options: Apoptosis, settings: Mapping[str, Any]) -> Course:
        """The course of a settings() dict, under these options, whose budget may differ."""
        gain = {str(name): float(one) for name, one in settings["gain"].items()}
        best = None if settings["best"] is None else float(settings["best"])
        return cls(min(float(settings["budget"]), options.budget), int(settings["last"]), best, gain)
