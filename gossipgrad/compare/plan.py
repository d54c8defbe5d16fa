"""The plan of a comparison: strategies with their options, numbers of ranks, and the settings of all configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gossipgrad import compression, optim, show, strategies
from gossipgrad.apoptosis import Apoptosis
from gossipgrad.cluster import MAX_VIRTUAL_RANKS, Network, Straggler
from gossipgrad.compression import AdaComp
from gossipgrad.errors import LARGEST, choice, counted, flag, integer, number, store
from gossipgrad.keywords import keywords
from gossipgrad.literals import Backend

LR_SCALINGS = ("none", "sqrt", "linear")
# "main" of the command line, and the first of "all". DiLoCo's and NoLoCo's usual period, 50, is for longer runs.
MAIN = ("gossipgrad", "allreduce", "layerwise-allreduce", "diloco:period=10", "noloco:period=10")
LINKS = Network(latency=50e-6, bandwidth=1.25e9)  # 10 Gbit/s Ethernet, as in a plain cluster
Record = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A strategy with its options, as named in `label`, and learning rates to try; none: the comparison's.

    compression: of the strategy's messages; None: none. apoptosis: None: the network stays as it is.
    """

    label: str
    strategy: strategies.Strategy
    rates: tuple[float, ...] = ()
    compression: AdaComp | None = None
    apoptosis: Apoptosis | None = None

    def __post_init__(self) -> None:
        if self.compression is not None:
            store(self, compression=self.strategy.compressed(self.compression))

    def settings(self) -> Record:
        """The strategy's keywords, the compression and apoptosis, in terms of JSON."""
        return {
            **self.strategy.settings(),
            "compression": None if self.compression is None else self.compression.settings(),
            "apoptosis": None if self.apoptosis is None else self.apoptosis.settings(),
        }


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


def _compression(options: Record) -> AdaComp | None:
    """The compression of an entry's options, which are removed."""
    name = options.pop("compression", None)
    own = {key: options.pop(key) for key in list(options) if key.startswith("compression_")}
    if name is None:
        for key in own:
            raise ValueError(f"{key}: only with compression=NAME; allowed: {', '.join(compression.BY_NAME)}")
        return None
    return compression.by_name(name, **_read(own, "compression_", compression.BY_NAME))


def _apoptosis(options: Record) -> Apoptosis | None:
    """The apoptosis of an entry's options, which are removed."""
    wanted = flag("apoptosis", options.pop("apoptosis", False))
    own = {key: options.pop(key) for key in list(options) if key.startswith("apoptosis_")}
    for key in own if not wanted else ():
        raise ValueError(f"{key}: only with apoptosis=true")
    return Apoptosis(**_read(own, "apoptosis_", {"apoptosis": Apoptosis})) if wanted else None


def _read(options: Record, prefix: str, makers: Mapping[str, type]) -> Record:
    """The keywords of these classes, from options with a prefix, by their own readers of texts."""
    known = keywords(makers)
    made: Record = {}
    for key, value in options.items():
        word = known.get(key.removeprefix(prefix))
        if word is None:
            listed = ", ".join(prefix + name for name in known)
            raise ValueError(f"{key}: not an option of {prefix.rstrip('_')}; it has {listed}")
        made[word.name] = value if word.read is None else word.read(str(value))
    return made


def _beside(strategy: type[strategies.Strategy]) -> list[str]:
    """The options of an entry that are no keywords of its strategy."""
    packed = {} if strategy.not_compressed else keywords(compression.BY_NAME)
    names = ["compression", *(f"compression_{name}" for name in packed)] if packed else []
    return ["lr", *names, "apoptosis", *(f"apoptosis_{name}" for name in keywords({"apoptosis": Apoptosis}))]


def entries(text: str) -> list[Entry]:
    """The strategies of a list of names with commas, each with options: "gossipgrad:staleness=1,allreduce".

    "main" stands for those of MAIN, which have shorter periods than usual, and "all" for these and all others.

    An option is the keyword of the strategy's constructor, or lr: a learning rate of its own, or several to try,
    "parameter-server:lr=0.001/0.003"; or compression, and its keywords as on the command line,
    "allreduce:compression=adacomp:compression-bin-size=conv=50/linear=500"; or apoptosis=true, and its keywords
    likewise, "allreduce:apoptosis=true:apoptosis-layers=fc*/conv2". ValueError lists the allowed ones.
    """
    found = []
    main = {label.partition(":")[0] for label in MAIN}
    every = [*MAIN, *(name for name in strategies.BY_NAME if name not in main)]
    named = {"main": MAIN, "all": every}
    for label in [one for words in text.split(",") for one in named.get(words.strip(), (words.strip(),))]:
        name, *pairs = label.split(":")
        options: Record = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise ValueError(
                    f"strategies: {label!r}: {pair!r} is no option; allowed: NAME:option=value:option=value"
                )
            options[key.replace("-", "_")] = _value(value)
        rates = [number("lr", _value(one), 0.0, LARGEST) for one in str(options.pop("lr", "")).split("/") if one]
        if len(rates) > 1:
            label = ":".join(one for one in label.split(":") if not one.startswith("lr="))
        packed, shrinks = _compression(options), _apoptosis(options)
        strategy = strategies.named(name)
        strategies.check_options(name, options, _beside(strategy))
        found.append(Entry(label, strategy(**options), tuple(rates), packed, shrinks))
    labels = [one.label for one in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"strategies: {label!r} is there twice; allowed: each once")
    return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison: its strategies, and the settings of all configurations.

    dataset, folder, data_options  the set: gossipgrad.data.load(dataset, folder, **data_options).
    samples       count that each configuration trains on, over all its ranks. The set is repeated, in another order
                  each time.
    points        number of validations on the way. The ranks come to rest there, as at the end of an epoch.
    global_batch  samples of all ranks in a step, so a rank has global_batch / p, rounded: every p does the same number
                  of steps, and synchronous strategies the same mathematics. Or
    batch_size    samples of each rank in a step: the steps get fewer as p grows.
    lr_scaling    the learning rate of p ranks: "none" lr, "sqrt" lr * sqrt(p), "linear" lr * p (Goyal et al. 2017).
                  "none" goes with global_batch, the others with batch_size.
    lr_limit      max learning rate; None: no limit.
    lr_grid       learning rates in place of the optimiser's: each configuration is trained with each, and the one of
                  the lowest final validation loss is reported. "auto": the optimiser's rate and a third of it; if ranks
                  add their updates up (Strategy.rate_share) divided by their number. An entry's own rates come
                  before these.
    seeds         each configuration is trained with this number of seeds, from `seed` on. Reported are means, and the
                  least and the most.
    target        a validation loss: the virtual time to reach it is reported. None: 1.5 times the lowest final one.
    network       of the virtual cluster; None: messages take no time. The default is 10 Gbit/s with 50 microseconds.
    compute_time  seconds of a step, as VirtualCluster's; None: by the flops of the network at 50e9 a second.
    The schedule's "auto" length is that of the run.
    """

    entries: Sequence[Entry]
    ranks: Sequence[int]
    model: str = "lenet"
    dataset: str = "mnist-10k"
    folder: str | None = None
    data_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: optim.Optimizer = optim.SGD(lr=0.03, momentum=0.9)
    samples: int = 10000
    points: int = 8
    global_batch: int | None = 128
    batch_size: int | None = None
    lr_scaling: str = "none"
    lr_limit: float | None = None
    lr_grid: Sequence[float] | Literal["auto"] = ()
    target: float | None = None
    seed: int = 0
    seeds: int = 3
    backend: Backend | None = None
    device: str | None = None
    straggler: Straggler | None = None
    network: Network | None = LINKS
    compute_time: float | None = None

    def __post_init__(self) -> None:
        if not self.entries or not self.ranks:
            raise ValueError("strategies, virtual_ranks: allowed: at least one of each")
        for p in self.ranks:
            integer("virtual_ranks", p, 1, MAX_VIRTUAL_RANKS)
        for key in ("samples", "points"):
            integer(key, getattr(self, key), 1)
        integer("seeds", self.seeds, 1, 1000)
        integer("seed", self.seed, 0, 2**64 - self.seeds)
        if (self.global_batch is None) == (self.batch_size is None):
            raise ValueError(
                f"global_batch={self.global_batch!r}, batch_size={self.batch_size!r}: allowed: one of both"
            )
        integer("global_batch" if self.batch_size is None else "batch_size", self.global_batch or self.batch_size, 1)
        choice("lr_scaling", self.lr_scaling, LR_SCALINGS)
        if isinstance(self.lr_grid, str):
            choice("lr_grid", self.lr_grid, ("auto",))
        else:
            for lr in self.lr_grid:
                number("lr_grid", lr, 0.0, LARGEST)
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

    def variants(self, entry: Entry, p: int) -> list[Entry]:
        """The entry with each learning rate to try on p ranks."""
        rates: Sequence[float] = entry.rates or (() if isinstance(self.lr_grid, str) else self.lr_grid)
        if not entry.rates and isinstance(self.lr_grid, str):
            share = entry.strategy.rate_share(p)
            rates = [float(f"{self.optimizer.lr * share * part:.3g}") for part in (1 / 3, 1)]
        return [replace(entry, rates=(lr,)) for lr in rates] or [entry]

    def of_each_seed(self) -> list[Comparison]:
        """The comparison once for each seed."""
        return [replace(self, seed=self.seed + i, seeds=1) for i in range(self.seeds)]

    def steps(self, size: int, entry: Entry, p: int) -> int:
        """Steps of a rank on a set of this size."""
        count, part = self.parts(size)
        return count * math.ceil(math.ceil(part / entry.strategy.workers(p)) / self.batch(p))

    def few_periods(self, size: int) -> list[str]:
        """A sentence for each strategy whose period is so long that it exchanges less than three times."""
        said = []
        for entry in self.entries:
            period, steps = getattr(entry.strategy, "period", 0), min(self.steps(size, entry, p) for p in self.ranks)
            if isinstance(period, int) and steps < 3 * period:
                said.append(
                    f"{entry.label}: {counted(steps, 'step')} of a rank are less than 3 periods of {period}; "
                    f"{entry.strategy.name}:period=N shortens it, --samples N trains longer"
                )
        return said

    def title(self) -> str:
        """Model, data, samples, links, rates and seeds in words, for pictures."""
        late = self.straggler
        first = f"{self.model} on {self.dataset}; {self.samples:,} samples; " + (
            f"{self.global_batch} a step" if self.batch_size is None else f"{self.batch_size} of a rank a step"
        )
        network = self.network or Network()
        parts = [show.links(network.latency, network.bandwidth)]
        parts += [f"{100 * late.probability:g} % of steps {show.quantity(late.delay, 's')} late"] if late else []
        tried = dict.fromkeys(
            v.rates[0] for e in self.entries for p in self.ranks for v in self.variants(e, p) if v.rates
        )
        rates = sorted(tried) or [self.optimizer.lr]
        few = ", ".join(f"{lr:g}" for lr in rates)
        many = f"{len(rates)} rates from {rates[0]:g} to {rates[-1]:g}"
        parts.append(
            f"rate {few}" if len(rates) == 1 else f"best of rates {few}" if len(rates) < 5 else f"best of {many}"
        )
        seeds = f"seeds {self.seed} to {self.seed + self.seeds - 1} (bands: least to most)"
        parts.append(seeds if self.seeds > 1 else f"seed {self.seed}")
        return f"{first}\n{'; '.join(parts)}"

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
        """(number of parts, samples of each) of a set of this size, to make up the samples: as many as points, or
        more."""
        count = max(self.points, math.ceil(self.samples / size))
        return count, self.samples // count

    def settings(self) -> Record:
        """All options, in terms of JSON."""
        plain = {key: value for key, value in vars(self).items() if key not in ("entries", "optimizer")}
        for key in ("straggler", "network"):
            plain[key] = None if plain[key] is None else vars(plain[key])
        chosen = [{"label": one.label, "rates": one.rates, **one.settings()} for one in self.entries]
        return {"strategies": chosen, **plain, **self.optimizer.settings()}
