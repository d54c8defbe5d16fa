"""Random configurations of everything that shapes a run, and what must hold for each of them.

    python tests/random_configurations.py --count 10000 [--first 0] [--strategies NAME,NAME]

draws that many, one after the other, and prints each that fails with the number that reproduces it. For each
one must hold:

- Training ends, with finite losses. The virtual cluster declares a deadlock.
- A second run has the same weights, losses, counts and virtual times, bit for bit.
- At learning rate 0 the mean of the replicas stays if the mixing promises it. Elastic averaging preserves the sum of
  replicas and centre. A parameter server's centre stays. Replicas that gossip draw near each other.

With GOSSIPGRAD_CHECK_BUFFERS=1 the core also checks that no message is written while it is in flight.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import itertools
import math
import os
import sys
import time
import traceback
import warnings

import numpy as np
from gossip_reference import flat, unflat

import gossipgrad as gg
from gossipgrad import strategies
from gossipgrad.errors import choice

# What an option is drawn from. Every keyword of every strategy has its line: a new one is missed by a test.
POOLS = {
    "topology": ["dissemination", "cube", "ring", "exponential", "random"],
    "rotate": [True, False],
    "permutations": [None, None, 1, 2, 3],
    "staleness": [0, 1],
    "exchange": ["auto", "weights+momentum", "weights", "slices", "gradients"],
    "slices": [None, None, 2, 3, 7],
    "mu": [0.9, 0.0, 0.5],
    "allreduce_steps": [0, 0, 1, 3],
    "mix_gamma": [None],  # with compression alone: Configuration draws it
    "bucket_bytes": [None, 1, 300, 2000],
    "chunk_bytes": [None, 64, 448, 3000],
    "period": ["log2", 1, 2, 3, 5],
    "wire_dtype": ["float32", "bfloat16"],
    "collectives": ["own"],  # virtual ranks have no others; test_collectives
    "push_sum": [False, False, True],
    "hierarchical": [False, False, True],
    "ranks_per_node": [1, 2, 3],
    "shuffle_samples": [False, True],
    "interval": [1, 2, 3],
    "probability": [1.0, 0.5, 0.1],
    "alpha": [None, 0.05, 0.1],
    "beta": [None, 0.5, 0.9],
    "synchronous": [True, False],
    "servers": [1, 1, 2, 3],
    "dedicated": [False, True],
    "overlap": [True, False],
    "partition_fc": ["auto", True, False],
    "outer_lr": [0.7, 1.0, 0.3],
    "outer_momentum": [0.0, 0.5, 0.9],
    "outer_nesterov": [False, True],
    "fragments": [1, 2, 3, 100],
    "delay": [None, 0, 1, 2],
    "group": [2, 2, 3, 5],
}


def keywords_of(kind: type[strategies.Strategy]) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)]


def drawn_strategy(generator: np.random.Generator, p: int) -> strategies.Strategy:
    """A strategy with random options; those that exclude each other are drawn again, as the constructor says."""
    names = list(strategies.BY_NAME)
    kind = strategies.BY_NAME[names[generator.integers(len(names))]]
    while True:
        options = {}
        for key in keywords_of(kind):
            pool = POOLS[key]
            options[key] = pool[generator.integers(len(pool))]
        if "period" in options and kind is not gg.PeriodicAllReduce and options["period"] == "log2":
            options["period"] = 4
        if "ranks_per_node" in options and not options["hierarchical"]:
            options["ranks_per_node"] = None
        if options.get("servers", 1) > p - bool(options.get("dedicated")):
            continue  # one rank at least trains
        try:
            return kind(**options)
        except ValueError:
            continue


def compressible(strategy: strategies.Strategy) -> strategies.Strategy:
    """GossipGraD goes with compression in one of its forms alone, which would seldom be drawn."""
    if not isinstance(strategy, gg.GossipGraD):
        return strategy
    names = ("topology", "rotate", "permutations", "bucket_bytes", "chunk_bytes", "shuffle_samples")
    return gg.GossipGraD(**{name: getattr(strategy, name) for name in names})


def drawn_compression(generator: np.random.Generator, strategy: strategies.Strategy) -> gg.AdaComp | None:
    """A compression that the strategy allows; None for some."""
    cyclic = generator.random() < 0.3
    gossip = strategy.name == "gossipgrad"  # sends values, and no sums
    cyclic = cyclic and not gossip
    how = {"mode": "exact", "values": str(generator.choice(["bfloat16", "float32"]))}
    if not cyclic and not gossip and generator.random() >= 0.4:
        how = {"mode": str(generator.choice(["strict", "safe"]))}
    parts = [(), ("bias",), ("bias", "norm")]
    made = gg.AdaComp(
        bin_size={"conv": int(generator.choice([0, 1, 5, 63, 64])), "linear": int(generator.choice([1, 7, 100]))},
        factor=float(generator.choice([1.0, 1.5, 3.0])),
        dense=parts[generator.integers(len(parts))],
        dense_below=int(generator.choice([0, 20])),
        warmup=int(generator.choice([0, 0, 3])),
        selection="cyclic" if cyclic else "local",
        **how,
    )
    try:
        made = strategy.compressed(made)
    except ValueError:
        return None
    return made if generator.random() < 0.8 else None


@dataclasses.dataclass
class Configuration:
    number: int

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.number)
        self.p = int(generator.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 13]))
        self.strategy = drawn_strategy(generator, self.p)
        self.cluster = self._cluster(generator)
        plain = compressible(self.strategy) if np.random.default_rng([self.number, 4]).random() < 0.4 else self.strategy
        self.compression = drawn_compression(np.random.default_rng([self.number, 3]), plain)
        self.strategy = self.strategy if self.compression is None else plain
        if isinstance(self.strategy, gg.GossipGraD) and self.compression is not None:
            gamma = [None, 0.2, 0.5][self.number % 3]
            self.strategy = dataclasses.replace(self.strategy, mix_gamma=gamma)
        momentum = float(generator.choice([0.0, 0.9]))
        if generator.random() < 0.25:
            self.optimizer: gg.SGD | gg.Adam | gg.LARS = gg.Adam(
                lr=0.01, weight_decay=float(generator.choice([0.0, 0.01]))
            )
        else:
            self.optimizer = gg.SGD(lr=0.05, momentum=momentum, nesterov=momentum > 0 and generator.random() < 0.3)
        self._draw_groups(np.random.default_rng([self.number, 2]))
        if isinstance(self.strategy, gg.QuasiGlobal):  # makes SGD's momentum
            self.optimizer = gg.SGD(lr=0.05, momentum=0.9, nesterov=self.number % 2 == 0)
        self._draw_local_momentum(np.random.default_rng([self.number, 6]))
        self.widths = [int(n) for n in generator.integers(1, 40, generator.integers(1, 4))]
        self.convolution = bool(generator.random() < 0.4)
        self.batch = int(generator.integers(1, 8))
        self.samples = int(generator.integers(self.p * self.batch, self.p * self.batch * 6 + self.p))
        self.seed = int(generator.integers(1 << 30))
        self.shard = str(generator.choice(["interleaved", "contiguous", "own"]))
        if getattr(self.strategy, "shuffle_samples", False) or self.strategy.workers(self.p) < self.p:
            self.shard = "interleaved"
        self.weighted = bool(generator.random() < 0.3)
        self.apoptosis = self._apoptosis(np.random.default_rng([self.number, 5]))

    def _draw_local_momentum(self, generator: np.random.Generator) -> None:
        sgd = isinstance(self.optimizer, gg.SGD) and self.optimizer.momentum > 0 and not self.optimizer.nesterov
        divisible = sgd or isinstance(self.optimizer, gg.Adam)
        if not divisible or self.optimizer.clip_norm or self.compression is None or generator.random() < 0.5:
            return
        if self.strategy.residue == "gradients":
            self.compression = dataclasses.replace(self.compression, local_momentum=True)

    def _apoptosis(self, generator: np.random.Generator) -> gg.Apoptosis | None:
        """Events that mostly stay, at any steps."""
        if generator.random() < 0.6:
            return None
        every, start = int(generator.integers(1, 5)), int(generator.integers(0, 5))
        budget, epsilon = float(generator.choice([0.0, 0.1, 0.5])), float(generator.choice([0.01, 10.0]))
        probe, least = int(generator.integers(1, 20)), int(generator.integers(1, 4))
        return gg.Apoptosis(every=every, start=start, budget=budget, epsilon=epsilon, probe=probe, least=least)

    def _draw_groups(self, generator: np.random.Generator) -> None:
        """What cuts updates at parameters, and what makes them wait for norms."""
        if generator.random() < 0.15:
            self.optimizer = gg.LARS(lr=0.5, momentum=float(generator.choice([0.0, 0.9])))
        if generator.random() < 0.3:
            self.optimizer = dataclasses.replace(self.optimizer, clip_norm=float(generator.choice([0.05, 1.0])))
        if generator.random() < 0.3:
            self.optimizer = dataclasses.replace(self.optimizer, weight_decay=0.01, no_decay=("bias", "norm"))
        self.normalised = bool(generator.random() < 0.5)  # behind a convolution
        self.bias_lr = float(generator.choice([1.0, 1.0, 2.0]))

    def _cluster(self, generator: np.random.Generator) -> gg.VirtualCluster:
        known = inspect.signature(gg.VirtualCluster).parameters
        options: dict = {}
        if generator.random() < 0.7:
            options["latency"] = float(generator.choice([0.0, 1e-6, 1e-4, 1e-2]))
            options["bandwidth"] = float(generator.choice([0.0, 1e6, 1e9]))
        if "compute_time" in known and generator.random() < 0.5:
            even = generator.random() < 0.5
            options["compute_time"] = 1e-3 if even else [float(s) for s in generator.uniform(1e-4, 5e-3, self.p)]
        if "straggler" in known and generator.random() < 0.4:
            options["straggler"] = gg.Straggler(probability=float(generator.choice([0.1, 0.5])), delay=0.02)
        return gg.VirtualCluster(self.p, **options)

    def __str__(self) -> str:
        return (
            f"number {self.number}: {self.strategy}, {self.compression}, {self.apoptosis}, {self.cluster}, "
            f"{self.optimizer}, layers {self.widths}{' behind a convolution' if self.convolution else ''}, "
            f"batch {self.batch}, {self.samples} samples"
            f"{', weighted' if self.weighted else ''}, shards {self.shard}"
        )

    def net(self, statistics: bool) -> gg.Model:
        layers: list[gg.Layer] = [gg.Conv2d(3, 2), gg.Tanh()] if self.convolution else []
        if self.convolution and self.normalised and statistics:
            layers.insert(1, gg.BatchNorm2d())
        layers.append(gg.Flatten())
        for width in self.widths:
            layers += [gg.Linear(width, lr=(1, self.bias_lr)), gg.Tanh()]
        return gg.Sequential([*layers, gg.Linear(4)], input=(1, 5, 4))

    def trainer(self, optimizer: gg.SGD | gg.Adam | gg.LARS, statistics: bool = True) -> gg.Trainer:
        """statistics: those that move whatever the learning rate is are wanted as well."""
        how = {"strategy": self.strategy, "compression": self.compression, "apoptosis": self.apoptosis}
        how |= {"seed": self.seed, "comm": self.cluster}
        return gg.Trainer(self.net(statistics), optimizer=optimizer, timeout=60, **how)

    def data(self) -> gg.Dataset:
        generator = np.random.default_rng(self.number)
        images = generator.integers(0, 256, (self.samples, 1, 5, 4), dtype=np.uint8)
        labels = generator.integers(0, 4, self.samples).astype(np.int32)
        weights = generator.uniform(0, 2, self.samples) if self.weighted else None
        return gg.Dataset(images, labels, sample_weight=weights, name="train")

    def fit(self, trainer: gg.Trainer) -> gg.History:
        options: dict = {"epochs": 2, "batch_size": self.batch, "progress": False}
        if self.shard != "own":
            return trainer.fit(self.data(), shard=self.shard, **options)
        generator = np.random.default_rng([self.number, 1])  # parts of any sizes: a batch may be more than one has
        cuts = 1 + np.sort(generator.choice(self.samples - 1, self.p - 1, replace=False))
        ends = [0, *(int(cut) for cut in cuts), self.samples]
        data, sizes = self.data(), np.diff(ends)
        options["batch_size"] = min(self.batch, int(sizes.max()))
        parts = [data[begin:end] for begin, end in itertools.pairwise(ends)]
        return trainer.fit(parts if self.p > 1 else data, sharded=True, **options)


# What differs from run to run: real time.
REAL_TIME = ("seconds", "samples_per_second", "apoptosis_seconds")


def _fixed(record: dict) -> dict:
    """What of an epoch's record must be the same in a second run."""
    return {key: value for key, value in record.items() if not key.startswith(REAL_TIME)}


def check_training(configuration: Configuration) -> None:
    found = []
    for _ in range(2):
        trainer = configuration.trainer(configuration.optimizer)
        history = configuration.fit(trainer)
        assert all(math.isfinite(loss) for loss in history["train_loss"]), history["train_loss"]
        audit = trainer.audit_samples()
        assert audit["ok"] and audit["samples"] == configuration.samples, audit
        left = [(one["step"], one["left"], one["undone"]) for one in history.apoptosis.get("events", ())]
        found.append((history.weights_sha256, [_fixed(one) for one in history.epochs], left))
        trainer.close()
    assert found[0] == found[1], "a second run differs"


def keeps_the_mean(strategy: strategies.Strategy) -> bool:
    """At learning rate 0, whatever the replicas are."""
    if strategy.name in ("pull-gossip", "push-gossip"):
        return strategy.push_sum
    return isinstance(strategy, (strategies.Partnered, gg.PeriodicAllReduce, gg.NoExchange))


def draws_together(strategy: strategies.Strategy) -> bool:
    if isinstance(strategy, strategies.Partnered):
        return getattr(strategy, "exchange", "weights") != "gradients"
    return strategy.name in ("periodic-allreduce", "pull-gossip", "push-gossip")


def check_mixing(configuration: Configuration) -> None:
    """Learning rate 0 and different replicas: only the mixing moves them."""
    strategy, p = configuration.strategy, configuration.p
    centred = isinstance(strategy, (gg.ElasticAveraging, gg.ParameterServer))
    if not centred and not keeps_the_mean(strategy) and not draws_together(strategy):
        return
    if getattr(strategy, "hierarchical", False):
        return  # the ranks of a node must hold one replica
    trainer = configuration.trainer(dataclasses.replace(configuration.optimizer, lr=0.0, weight_decay=0.0), False)
    generator = np.random.default_rng(configuration.number)
    like = trainer.weights(0)
    before = generator.standard_normal((p, flat(like).size)).astype(np.float32)
    for rank in range(p):
        trainer.core.exchange.load_arena("weight", unflat(before[rank], like), rank)
    centre = flat(trainer.consensus_weights()) if centred else 0.0
    x = [np.zeros((1, 1, 5, 4), np.float32)] * p
    y = [np.zeros(1, np.int64)] * p
    packed = configuration.compression is not None and isinstance(strategy, gg.GossipGraD)
    for _ in range(60 * (getattr(strategy, "slices", None) or 1) * (3 if packed else 1)):
        trainer.train_step(x, y)
    after = np.stack([flat(trainer.weights(rank)) for rank in range(p)])
    moved = flat(trainer.consensus_weights()) - centre if centred else 0.0
    workers = trainer.workers
    trainer.close()
    if isinstance(strategy, gg.ElasticAveraging):
        drift = np.abs((after[:workers].astype(np.float64) - before[:workers]).sum(0) + moved).max()
        assert drift < 1e-5 * p, f"the sum of replicas and centre moved by {drift}"
    elif centred and p > 1:
        assert not np.any(moved), f"the centre moved by {np.abs(moved).max()}"
    coarse = getattr(strategy, "wire_dtype", None) == "bfloat16"
    if keeps_the_mean(strategy):
        tolerance = 0.03 if coarse else 2e-5
        drift = np.abs(after.mean(0) - before.mean(0, dtype=np.float64)).max()
        assert drift < tolerance, f"the mean moved by {drift}"
    if draws_together(strategy) and p > 1:
        rare = strategy.probability / strategy.interval if hasattr(strategy, "probability") else 1.0
        if rare >= 0.3:
            spread = np.linalg.norm(after - after.mean(0)) / np.linalg.norm(before - before.mean(0))
            stays = getattr(strategy, "topology", None) == "ring" and (
                not strategy.rotate or strategy.permutations == 1
            )
            wanted = (
                0.5 if packed else 0.2 if stays else 0.05 if coarse else 0.03
            )  # a ring that stays mixes in p^2 steps
            assert spread < wanted, f"the spread fell to {spread} only"


def check(number: int) -> Configuration:
    """Raises what went wrong, with the configuration in front."""
    configuration = Configuration(number)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="topology=|hierarchical=|train: uint8")
            check_training(configuration)
            check_mixing(configuration)
    except Exception as error:
        raise AssertionError(f"{configuration}: {type(error).__name__}: {error}") from error
    return configuration


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--strategies", metavar="NAME,NAME", help="leave the others out; default: all")
    arguments = parser.parse_args()
    names = (arguments.strategies or ",".join(strategies.BY_NAME)).split(",")
    for name in names:
        choice("strategies", name, strategies.BY_NAME)
    numbers = (n for n in itertools.count(arguments.first) if Configuration(n).strategy.name in names)
    os.environ.setdefault("GOSSIPGRAD_CHECK_BUFFERS", "1")
    failed, begin = [], time.monotonic()
    for i, number in enumerate(itertools.islice(numbers, arguments.count)):
        try:
            check(number)
        except AssertionError:
            failed.append(number)
            traceback.print_exc(limit=0)
        if (i + 1) % 100 == 0:
            rate = (i + 1) / (time.monotonic() - begin)
            left = (arguments.count - i - 1) / rate
            print(f"{i + 1} of {arguments.count}, {len(failed)} failed, {left:.0f} s left", file=sys.stderr, flush=True)
    print(f"{arguments.count} configurations, {len(failed)} failed{': ' if failed else ''}{failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
