"""Which rank trains on which samples: shards that sorted data do not harm, and parts that every rank brings itself."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core


def net():
    return gg.Sequential([gg.Linear(6), gg.Tanh(), gg.Linear(3)], input=(5,), name="small")


def arrays(count, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, 5)).astype(np.float32), generator.integers(0, 3, count)


def trained(data, p, strategy=None, **options):
    """(hashes of the replicas, the last record) after two epochs."""
    strategy = strategy or gg.GossipGraD()
    with gg.Trainer(net(), strategy=strategy, comm=gg.VirtualCluster(p), seed=options.pop("seed", 1)) as trainer:
        history = trainer.fit(data, epochs=2, progress=False, **{"batch_size": 4} | options)
        assert trainer.audit_samples()["ok"]
        return history.weights_sha256, history.last


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_sorted_samples_are_divided_evenly(p):
    """Of a run of n samples of one class a rank has n / p, but for at most one round at each end of the run."""
    labels = np.repeat(np.arange(4), [100, 37, 250, 13])
    for seed in range(3):
        for rank in range(p):
            found = np.bincount(labels[_core.shard(len(labels), rank, p, seed)], minlength=4)
            assert (np.abs(found - np.bincount(labels) / p) < 2).all()


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_period_in_the_order_is_no_period_of_a_rank(p):
    """The classes come in turns, with a period that the number of ranks divides: a plain stride would give each one."""
    for period in (p, 2 * p):
        labels = np.arange(4000) % period
        for rank in range(p):
            found = np.bincount(labels[_core.shard(len(labels), rank, p, 1)], minlength=period)
            wanted = len(labels) / p / period
            assert (found > 0.5 * wanted).all() and (found < 1.6 * wanted).all()


def test_shards_are_a_function_of_the_seed():
    def shards(seed):
        return [_core.shard(1001, rank, 4, seed).tolist() for rank in range(4)]

    assert shards(5) == shards(5) and shards(5) != shards(6)
    assert _core.shard(1001, 0, 1, 5).tolist() == list(range(1001))
    assert _core.shard(10, 1, 3, 5, True).tolist() == [4, 5, 6]


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.GossipGraD(shuffle_samples=True)], ids=str)
@pytest.mark.parametrize("p", [1, 3])
def test_a_part_is_trained_on_like_a_set_of_its_samples(p, strategy):
    x, y = arrays(80)
    weights = np.random.default_rng(1).uniform(0, 2, 80).astype(np.float32)
    rows = np.random.default_rng(2).permutation(80)[:37]
    part = gg.Dataset(x, y, sample_weight=weights)[rows]
    copy = gg.Dataset(x[rows], y[rows], sample_weight=weights[rows])
    found, last = trained(part, p, strategy, validation=part)
    assert (found, last["validation"]) == (
        (wanted := trained(copy, p, strategy, validation=copy))[0],
        wanted[1]["validation"],
    )
    unweighted = trained(gg.Dataset(x[rows], y[rows]), p, strategy)
    assert unweighted[0] != found
