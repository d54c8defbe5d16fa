"""Which rank trains on which samples: shards that sorted data do not harm, and parts that every rank brings itself."""

from __future__ import annotations

import numpy as np
import pytest

from gossipgrad import _core


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
