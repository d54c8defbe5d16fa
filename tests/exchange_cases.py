"""What the tests of gg.Exchange share: strategies, arrays, gradients, and what two exchanges have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

import gossipgrad as gg

P = 3

SMALL: dict[str, Any] = {"bucket_bytes": 2000, "chunk_bytes": 448}

STRATEGIES = {
    "gossip": gg.GossipGraD(**SMALL),
    "gossip stale": gg.GossipGraD(staleness=1, **SMALL),
    "gossip bfloat16 slices": gg.GossipGraD(wire_dtype="bfloat16", slices=3, **SMALL),
    "gossip gradients": gg.GossipGraD(exchange="gradients", **SMALL),
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
    "server of one": gg.ParameterServer(period=2, servers=2, dedicated=True),
    "diloco": gg.DiLoCo(period=2),
    "diloco fragments": gg.DiLoCo(period=4, fragments=2),
    "noloco": gg.NoLoCo(period=2),
    "none": gg.NoExchange(),
}

SHAPES: dict[str, tuple[int, ...]] = {"w": (30, 7), "b": (7,), "k": (4, 2, 3, 3), "one": ()}


def start() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def pulled(weights: Any, rank: int, step: int) -> dict[str, Any]:
    """Gradients that depend on the weights, the rank and the step."""
    rng = np.random.default_rng([rank, step])
    return {name: np.float32(0.3) * w + rng.normal(size=w.shape).astype(np.float32) for name, w in weights.items()}


def made(strategy: gg.Strategy | None = None, p: int = P, **options: Any) -> gg.Exchange:
    given: dict[str, Any] = {"optimizer": gg.SGD(lr=0.1, momentum=0.9), "comm": gg.VirtualCluster(p), "seed": 5}
    return gg.Exchange(start(), strategy=strategy, **(given | options))


def all_step(x: gg.Exchange, steps: int) -> None:
    for _ in range(steps):
        x.step([pulled(replica.weights, replica.rank, x.steps) for replica in x.replicas])


def everything(x: gg.Exchange) -> list[tuple[str, Any]]:
    """What a state has, flat."""
    state = x.state_dict()
    parts = [*state["ranks"], {"consensus": state["consensus"]}]
    return [
        (f"{i} {arena} {name}", array)
        for i, part in enumerate(parts)
        for arena, arrays in part.items()
        for name, array in arrays.items()
    ]


def assert_same(a: gg.Exchange, b: gg.Exchange) -> None:
    for (name, one), (_, other) in zip(everything(a), everything(b), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
