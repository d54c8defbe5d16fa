"""gg.torch.BatchSampler: fit's division of an epoch for a loop of one's own, on any number of ranks."""

from collections import Counter
from types import SimpleNamespace
from weakref import WeakSet

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")
import gossipgrad.torch  # noqa: E402
from gossipgrad.torch import optimizers  # noqa: E402
from gossipgrad.torch import samplers as samplers_of_torch  # noqa: E402


def samplers(samples, batch, size, state=None, **options):
    found = []
    for rank in range(size):
        found.append(gg.torch.BatchSampler(range(samples), batch, SimpleNamespace(rank=rank, size=size), **options))
        if state is not None:
            found[-1].load_state_dict(state)
    return found


def read(ranks, batches=None):
    """The samples of some batches, of all ranks."""
    lists = [list(one)[:batches] for one in ranks]
    assert len({len(one) for one in lists}) == 1 and all(batch for one in lists for batch in one)
    return Counter(sample for one in lists for batch in one for sample in batch)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("samples", "batch", "size"), [(60, 4, 3), (61, 4, 3), (47, 5, 4), (12, 3, 4), (7, 7, 1)])
def test_each_sample_once(samples, batch, size, shuffle):
    ranks = samplers(samples, batch, size, shuffle=shuffle)
    assert read(ranks) == Counter(range(samples))
    first = [list(one) for one in ranks]
    for one in ranks:
        one.set_epoch(1)
    assert read(ranks) == Counter(range(samples))
    assert ([list(one) for one in ranks] == first) is not shuffle or size * batch == samples


def test_the_batches_are_those_of_fit():
    """Of a Trainer with this seed: the same weights, to the bit."""
    x = np.random.default_rng(0).standard_normal((47, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    net = gg.Sequential([gg.Linear(1)], input=(3,))
    options = {"loss": "mean_squared_error", "seed": 5, "optimizer": gg.SGD(lr=0.05), "strategy": gg.AllReduce()}
    with gg.Trainer(net, comm=gg.VirtualCluster(3), **options) as fitted:
        fitted.fit(x, y, epochs=2, batch_size=4, progress=False)
        wanted = fitted.weights()
    with gg.Trainer(net, comm=gg.VirtualCluster(3), **options) as own:
        ranks = samplers(47, 4, 3, seed=5)
        for epoch in range(2):
            for one in ranks:
                one.set_epoch(epoch)
            for batches in zip(*ranks, strict=True):
                own.train_step([x[batch] for batch in batches], [y[batch] for batch in batches])
        for name, array in own.weights().items():
            np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3, 1), (4, 1, 4), (1, 4)], ids=str)
def test_an_epoch_goes_on_on_other_ranks(sizes, drop_last):
    samples, state, found = 59, None, Counter()
    for at, size in enumerate(sizes):
        ranks = samplers(samples, 3 + at, size, state, drop_last=drop_last)
        done = None if at == len(sizes) - 1 else 2
        found += read(ranks, done)
        states = [one.state_dict(len(one) if done is None else done) for one in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert max(found.values()) == 1
    assert sum(found.values()) == 59 if not drop_last else 59 - (3 + at) * sizes[-1] < sum(found.values()) <= 59
    assert state["epoch"] == 1 and state["divisions"] == []


def test_batches_of_one():
    """Before the last batch the smaller parts have been read."""
    ranks = samplers(7, 1, 2)
    found = read(ranks, 3)
    found += read(samplers(7, 1, 1, ranks[0].state_dict(3)))
    assert found == Counter(range(7))
    assert sum(read(ranks).values()) == 8  # rank 1 reads its last sample again


def test_a_loader_reads_it():
    model = SimpleNamespace(rank=1, size=2)
    sampler = gg.torch.BatchSampler(range(10), 2, model, shuffle=False)
    loader = torch.utils.data.DataLoader(torch.arange(10), batch_sampler=sampler)
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == list(sampler)
    sampler.load_state_dict(sampler.state_dict(1))
    sampler.set_epoch(0)  # goes on
    assert [batch.tolist() for batch in loader] == list(sampler) and len(loader) == 2
    sampler.set_epoch(1)
    assert len(loader) == 3


def test_what_is_refused():
    model = SimpleNamespace(rank=0, size=4)
    with pytest.raises(ValueError, match="batch_size=3: 11 samples on 4 ranks allow 1 to 2"):
        gg.torch.BatchSampler(range(11), 3, model)
    one = gg.torch.BatchSampler(range(11), 2, model)
    with pytest.raises(ValueError, match="batches=4: allowed: an integer of 0 to 3|batches"):
        one.state_dict(4)
    state = one.state_dict(1)
    for other in (gg.torch.BatchSampler(range(12), 2, model), gg.torch.BatchSampler(range(11), 2, model, seed=1)):
        with pytest.raises(ValueError, match="BatchSampler: (samples|seed) is 1"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="division 0, rank 0: 9 samples read; allowed: 0 to 3"):
        one.load_state_dict(state | {"divisions": [[9, 0, 0, 0]]})


def test_batches_without_a_step_do_not_begin_the_epoch_again():
    """Where ranks may die, `while sampler.left` would read all of it again, without end."""
    survivor = SimpleNamespace(members=[0], heard={}, steps=0, watch=lambda division: None, meet=lambda where: True)
    model = SimpleNamespace(rank=0, size=1, _survivor=survivor)
    sampler = gg.torch.BatchSampler(range(10), 2, model, accumulate=2)
    assert len(list(sampler)) == 5
    for _ in range(2):
        sampler.stepped()
    assert sampler.left == 1
    words = r"epoch 0: 1 of 5 batches were read, and no step came.*accumulate=2.*to evaluate, no BatchSampler, because"
    with pytest.raises(RuntimeError, match=words):
        iter(sampler)
    sampler.stepped()
    assert sampler.left == 0 and len(list(sampler)) == 5


def test_ranks_that_do_not_hear_of_deaths_are_refused(monkeypatch):
    """Their samples would be lost without a word; a DistributedSampler works until the first death, so it warns."""
    alone = gg.torch.BatchSampler(range(10), 2, gg.Team())
    assert len(list(alone)) == 5
    sampler = torch.utils.data.DistributedSampler(range(10), 2, 0)
    monkeypatch.setattr(samplers_of_torch.origin, "survives", lambda: True)
    with pytest.raises(RuntimeError, match="BatchSampler: ranks is a gg.Team, which does not hear of deaths.*Allowed"):
        iter(alone)
    with pytest.warns(UserWarning, match="DistributedSampler: does not hear of deaths.*BatchSampler"):
        samplers_of_torch.check_sampler(sampler, [(0, 2)])
    samplers_of_torch.follow(sampler, 0, 3)
    assert (sampler.num_replicas, len(sampler)) == (3, 4)
    samplers_of_torch.check_sampler(sampler, [(0, 2)])  # whose part is set here


def test_a_sampler_of_former_ranks_is_an_error_where_one_is_left(monkeypatch):
    """It would leave out the samples of the dead."""
    model = gg.torch.wrap(torch.nn.Linear(2, 2), gg.SGD(0.1))
    monkeypatch.setattr(optimizers, "_OPEN", WeakSet([model]))
    assert optimizers.ranks_of_processes() == []
    model._group.survivor = SimpleNamespace()
    sampler = torch.utils.data.DistributedSampler(range(10), 2, 0)
    with pytest.raises(ValueError, match="DistributedSampler: is of rank 0 of 2, here is rank 0 of 1; allowed"):
        samplers_of_torch.check_sampler(sampler, optimizers.ranks_of_processes())
    model._group.survivor = None
    model.close()
