"""Arrays of a caller, exchanged and updated: by the same strategies as a network's, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

P = 3
LAYERS = [
    (
        "conv",
        [
            ("conv.weight", (6, 1, 3, 3), "weight", "conv", 1.0, 1.0),
            ("conv.bias", (6,), "bias", "conv", 1.0, 1.0),
        ],
    ),
    (
        "fc1",
        [
            ("fc1.weight", (40, 216), "weight", "linear", 1.0, 1.0),
            ("fc1.bias", (40,), "bias", "linear", 1.0, 1.0),
        ],
    ),
    (
        "fc2",
        [
            ("fc2.weight", (5, 40), "weight", "linear", 1.0, 1.0),
            ("fc2.bias", (5,), "bias", "linear", 1.0, 1.0),
        ],
    ),
]
SMALL: dict[str, Any] = {"bucket_bytes": 2000, "chunk_bytes": 448}


def network() -> gg.Model:
    return gg.Sequential(
        [
            gg.Conv2d(6, 3, name="conv"),
            gg.ReLU(),
            gg.Flatten(),
            gg.Linear(40, name="fc1"),
            gg.ReLU(),
            gg.Linear(5, name="fc2"),
        ],
        (1, 8, 8),
    )


def trainer(strategy: gg.Strategy, optimizer: gg.Optimizer, p: int, **options: Any) -> gg.Trainer:
    return gg.Trainer(
        network(),
        strategy=strategy,
        optimizer=optimizer,
        comm=gg.VirtualCluster(p, compute_time=0.01),
        backend="native",
        seed=5,
        **options,
    )


@pytest.fixture(scope="module")
def batches() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(9, 7, 1, 8, 8)).astype(np.float32), rng.integers(0, 5, size=(9, 7)).astype(np.int32)


STRATEGIES = {
    "gossip": gg.GossipGraD(**SMALL),
    "gossip stale": gg.GossipGraD(staleness=1, **SMALL),
    "gossip bfloat16 slices": gg.GossipGraD(wire_dtype="bfloat16", slices=3, **SMALL),
    "gossip gradients": gg.GossipGraD(exchange="gradients", **SMALL),
    "gossip halves": gg.GossipGraD(mix="halves", exchange="weights", **SMALL),
    "gossip push-sum": gg.GossipGraD(push_sum=True, topology="ring", **SMALL),
    "gossip hierarchical": gg.GossipGraD(hierarchical=True, ranks_per_node=1, **SMALL),
    "allreduce": gg.AllReduce(),
    "layerwise": gg.LayerwiseAllReduce(**SMALL),
    "periodic": gg.PeriodicAllReduce(period=2),
    "overlapped": gg.OverlappedAveraging(partition_fc=False, **SMALL),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(interval=2),
    "elastic": gg.ElasticAveraging(period=2, alpha=0.1),
    "elastic asynchronous": gg.ElasticAveraging(period=2, alpha=0.1, synchronous=False),
    "server": gg.ParameterServer(period=2, servers=1, dedicated=True),
    "none": gg.NoExchange(),
}
OPTIMIZERS = {
    "sgd": gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": gg.Adam(lr=0.01),
    "clipped": gg.SGD(lr=0.05, clip_norm=0.5),
}


def core_exchange(strategy: gg.Strategy, optimizer: gg.Optimizer, p: int) -> _core.Exchange:
    team = _core.Team("virtual", size=p)
    return _core.Exchange(
        team,
        LAYERS,
        optimizer=optimizer.options(),
        strategy=strategy.options() | {"exchange": "weights+momentum"}
        if getattr(strategy, "exchange", "") == "auto"
        else strategy.options(),
        seed=5,
        compute_time=[0.01] * p,
    )


class Network:
    """The gradients of a network at any weights: of a rank that trains alone, at a rate of 0."""

    def __init__(self) -> None:
        self.trainer = trainer(gg.NoExchange(), gg.SGD(lr=0.0), 1)
        self.start = self.trainer.weights()

    def gradients(self, weights: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        self.trainer.core.load_arena("weight", {name: array.copy() for name, array in weights.items()})
        self.trainer.train_step([x], [y])
        return self.trainer.gradients()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_bits_as_a_trainer(name: str, optimizer: str, batches: tuple[Any, Any]) -> None:
    """On the same gradients, weights and moments are those of a trainer, whoever makes the calls of a step."""
    x, y = batches
    wanted = trainer(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    whole, alone = Network(), [Network() for _ in range(P)]
    by_step = core_exchange(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    by_call = core_exchange(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    for one in (by_step, by_call):
        one.load_arena("weight", whole.start)
    workers = by_step.workers

    def step_of(step: int) -> Any:
        def run(rank: int) -> None:
            by_call.begin(rank)
            if rank < workers:
                for layer in range(len(LAYERS)):
                    by_call.need(rank, layer)
                made = alone[rank].gradients(by_call.weights(rank), x[step + rank], y[step + rank])
                for key, array in by_call.gradients(rank).items():
                    array[...] = made[key]
                for layer in (1, 2, 0):  # in another order than the strategies'
                    by_call.ready(rank, layer)
                    by_call.poll(rank)
            by_call.end(rank)

        return run

    for step in range(6):
        wanted.train_step([x[step + r] for r in range(P)], [y[step + r] for r in range(P)])
        for rank in range(workers):
            made = whole.gradients(by_step.weights(rank), x[step + rank], y[step + rank])
            for key, array in by_step.gradients(rank).items():
                array[...] = made[key]
        by_step.whole_step()
        by_call.run(step_of(step))
    wanted.settle()
    for arena in (name for name, kind in wanted.core.arenas().items() if kind != "gradient"):
        for rank in range(P):
            state = wanted.core.arena(arena, rank)
            for made in (by_step, by_call):
                for key, array in made.arena(arena, rank).items():
                    np.testing.assert_array_equal(array, state[key], err_msg=f"{arena} of rank {rank}, {key}")
    consensus = wanted.consensus_weights()
    for key, array in by_call.consensus_weights().items():
        np.testing.assert_array_equal(array, consensus[key])
    assert by_step.consensus_distance() == by_call.consensus_distance() == wanted.consensus_distance()
