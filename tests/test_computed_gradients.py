"""Gradients of large linear layers that the update computes row by row: the bits of gradients that are arrays."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

# Row lengths that are no multiple of a vector; rows so long that few are computed at a time; small last layers.
NETS = {
    "alone": lambda: gg.Sequential([gg.Linear(601, bias=False)], input=(449,)),
    "uneven": lambda: gg.Sequential([gg.Linear(603), gg.ReLU(), gg.Linear(599), gg.ReLU(), gg.Linear(5)], input=(451,)),
    "long": lambda: gg.Sequential([gg.Linear(23), gg.ReLU(), gg.Linear(5)], input=(20011,)),
    "images": lambda: gg.Sequential(
        [gg.Conv2d(5, 3, padding=1), gg.Flatten(), gg.Linear(700, bias=False), gg.Tanh(), gg.Linear(5)], input=(2, 9, 9)
    ),
}
STRATEGIES = {
    "none": gg.NoExchange(),
    "gossip": gg.GossipGraD(exchange="weights", bucket_bytes=1, chunk_bytes=100_000),
    "momentum": gg.GossipGraD(exchange="weights+momentum", chunk_bytes=33_000),
    "stale": gg.GossipGraD(exchange="weights", staleness=1, wire_dtype="bfloat16"),
    "slices": gg.GossipGraD(exchange="weights", slices=3),
    "periodic": gg.PeriodicAllReduce(period=2),
    "elastic": gg.ElasticAveraging(period=2),
    "diloco": gg.DiLoCo(period=2),
    "noloco": gg.NoLoCo(period=2, group=2),
    "push-sum": gg.GossipGraD(push_sum=True, chunk_bytes=50_000),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(),
    "edges": gg.GossipGraD(topology="cube", rotate=False, exchange="weights"),  # with a copy for each edge
}


def trained(net, strategy, p, optimizer, backend=None, threads=1):
    """What a rank has after some steps: gradients of all ranks after each, weights, moments."""
    trainer = gg.Trainer(
        NETS[net](),
        optimizer=optimizer,
        strategy=strategy,
        seed=3,
        threads=threads,
        backend=backend,
        comm=gg.VirtualCluster(p),
        compression=gg.AdaComp(mode="exact") if strategy == STRATEGIES["edges"] else None,
    )
    generator = np.random.default_rng(1)
    gradients = []
    for step in range(5):
        sizes = [(5, 3, 8)[(rank + step) % 3] for rank in range(p)]
        x = [generator.standard_normal((n, *trainer.net.input_shape)).astype(np.float32) for n in sizes]
        y = [generator.integers(0, 5, n) for n in sizes]
        trainer.train_step(x, y)
        if step in (1, 4):
            gradients += [trainer.gradients(rank) for rank in range(p)]
    trainer.core.exchange.settle()
    arenas = {
        name: [trainer.core.exchange.arena(name, rank) for rank in range(p)] for name in trainer.core.exchange.arenas()
    }
    trainer.close()
    return gradients, arenas


def equal(a, b):
    assert all(np.array_equal(one[key], other[key]) for one, other in zip(a[0], b[0], strict=True) for key in one)
    assert a[1].keys() == b[1].keys()
    for name in a[1]:
        for one, other in zip(a[1][name], b[1][name], strict=True):
            assert all(np.array_equal(one[key], other[key]) for key in one), name


def as_arrays_and_not(net, strategy, *how):
    """Where a norm is needed, they are arrays; 1e9 clips nothing."""
    found = [
        trained(net, STRATEGIES[strategy], 3, gg.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=clip), *how)
        for clip in (None, 1e9)
    ]
    equal(*found)
    assert all(np.abs(one[key]).max() > 0 for one in found[0][0] for key in one)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_the_bits_of_arrays(strategy):
    as_arrays_and_not("uneven", strategy)


@pytest.mark.parametrize("backend", ["native", *(["onednn"] if _core.info()["onednn"] else [])])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("threads", [1, 3], ids=["1 thread", "3 threads"])
def test_every_shape_has_the_bits_of_arrays(net, backend, threads):
    as_arrays_and_not(net, "gossip", backend, threads)


def test_a_batch_of_which_they_are_arrays():
    """Inputs and errors of 200 samples are no fewer than half of the gradient: between batches of few there is one."""
    found = []
    for clip in (None, 1e9):
        optimizer = gg.SGD(lr=0.05, momentum=0.9, clip_norm=clip)
        trainer = gg.Trainer(NETS["alone"](), optimizer=optimizer, strategy=gg.NoExchange(), seed=3, threads=1)
        generator = np.random.default_rng(1)
        for n in (5, 200, 5, 5, 200):
            x = generator.standard_normal((n, 449)).astype(np.float32)
            trainer.train_step(x, generator.integers(0, 601, n))
            found.append([trainer.weights_sha256(), *(one.tobytes() for one in trainer.gradients().values())])
        trainer.close()
    assert found[:5] == found[5:]


@pytest.mark.parametrize("net", NETS)
def test_adam_and_one_rank(net):
    found = [
        trained(net, gg.GossipGraD(), 1, gg.Adam(lr=0.01, decoupled=True, weight_decay=0.1, clip_norm=clip))
        for clip in (None, 1e9)
    ]
    equal(*found)
