"""gg.Exchange goes on when ranks of a virtual cluster die; gg.Division deals each sample once, whatever dies when."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

SAMPLES = 61


def trained(deaths, *, p=4, batch=3, epochs=1, strategy=None, optimizer=None, samples=SAMPLES, cluster=None, **options):
    """Sample i moves weight i alone. Returns the exchange, the samples that living ranks trained, and the changes."""
    heard = []
    x = gg.Exchange(
        {"w": np.zeros(samples), "v": np.ones((40, 3))},
        strategy=strategy or gg.NoExchange(),
        optimizer=optimizer or gg.SGD(lr=0.1),
        comm=gg.VirtualCluster(p, deaths=deaths, **(cluster or {})),
        on_view=lambda x, change: heard.append((x.size, change)),
        **options,
    )
    divisions = {replica: gg.Division(samples, batch, replica) for replica in x.replicas}
    for epoch in range(epochs):
        for one in divisions.values():
            if one.lives:
                one.set_epoch(epoch)
        iterations = {replica: iter(one) for replica, one in divisions.items() if replica.lives}
        while True:
            gradients = []
            for replica in x.replicas:
                read = next(iterations[replica], None)
                if read is not None:
                    g = {"w": np.zeros(samples, np.float32), "v": replica.weights["v"] * 0.1}
                    g["w"][read] = -1
                    gradients.append(g)
            assert len(gradients) in (0, x.size)
            if not gradients:
                break
            x.step(gradients)
    return x, heard


def moved(x) -> np.ndarray:
    """Steps of each rank in which each sample was trained."""
    return np.rint(np.stack([replica.weights["w"] for replica in x.replicas]) / 0.1).astype(int)


@pytest.mark.parametrize(
    "p, deaths", [(2, {0: 0}), (2, {1: 5}), (3, {1: 2}), (5, {0: 1, 3: 1}), (5, {4: 0, 2: 3, 1: 4}), (3, {0: 6})]
)
def test_each_sample_is_trained_on_by_one_survivor(p, deaths):
    """Without an exchange nothing of the dead reaches anyone: the survivors train on all samples, each once."""
    x, heard = trained(deaths, p=p)
    died = [rank for rank in deaths if any(rank in change["died"] for _, change in heard)]
    assert x.size == p - len(died) and died
    assert (moved(x).sum(axis=0) == 1).all()
    assert x.view.members == tuple(rank for rank in range(p) if rank not in died)
    assert x.view.changes == tuple(change for _, change in heard) and x.view.epoch == len(heard)
    assert [size for size, _ in heard] == [len(change["ranks"]) for _, change in heard]


@pytest.mark.parametrize(
    "strategy",
    [
        gg.GossipGraD(exchange="weights+momentum"),
        gg.GossipGraD(exchange="weights", staleness=1),
        gg.GossipGraD(exchange="gradients"),
        gg.GossipGraD(exchange="weights", slices=3),
        gg.GossipGraD(exchange="weights", push_sum=True),
        gg.PullGossip(),
        gg.PushGossip(),
    ],
)
def test_no_sample_is_lost_and_runs_repeat(strategy):
    deaths = {1: gg.Death(step=2, after_messages=1), 3: 4}
    if getattr(strategy, "exchange", None) == "gradients":  # a gradient reaches one rank, which may die as well
        del deaths[3]
    runs = [trained(deaths, strategy=strategy, optimizer=gg.SGD(lr=0.1, momentum=0.5)) for _ in range(2)]
    weights = [np.stack([replica.weights["w"] for replica in x.replicas]) for x, _ in runs]
    assert runs[0][0].size == 4 - len(deaths) and (weights[0] != 0).any(axis=0).all()
    np.testing.assert_array_equal(*weights)
    seconds = [[{**change, "seconds": 0} for _, change in heard] for _, heard in runs]
    assert seconds[0] == seconds[1]


@pytest.mark.parametrize("deaths, last, again", [({1: 1, 2: 2}, 1, 0), ({2: 1, 0: 2}, 0, 3)])
def test_messages_before_the_last_change_count(deaths, last, again):
    """A rank that dies before it has exchanged in a view has done so in the view before."""
    x, heard = trained(deaths, strategy=gg.GossipGraD(), cluster={"compute_time": 1.0, "detect": 0.4})
    change = heard[1][1]
    assert (change["last_steps"], change["trained_again"]) == ([last], again) and last < heard[0][1]["step"]
    assert (np.stack([one.weights["w"] for one in x.replicas]) != 0).any(axis=0).all()


def test_arrays_stay_where_they_are():
    x = gg.Exchange({"w": np.arange(40.0)}, comm=gg.VirtualCluster(3, deaths={1: 1}), optimizer=gg.SGD(lr=0.1))
    first, dead, last = x.replicas
    held = [(one.weights["w"], one.gradients["w"]) for one in x.replicas]
    for _ in range(3):
        for one in x.replicas:
            one.gradients["w"] = np.full(40, 1.0 + one.rank)
        x.step()
    assert x.replicas == (first, last) and last.rank == 1 and not dead.lives
    for replica in x.replicas:
        fresh = x.core.weights(replica.rank)["w"], x.core.gradients(replica.rank)["w"]
        for now, then in zip(fresh, (held[0], held[2])[replica.rank], strict=True):
            assert np.shares_memory(now, then)
    assert held[1][0].sum() < 40 * 39 / 2  # of the dead rank: still readable
    with pytest.raises(gg.PeerError, match="has died"):
        dead.rank  # noqa: B018
    before = first.weights["w"].copy()
    x.step([{"w": np.ones(40)}, {"w": np.ones(40)}])
    assert (held[0][0] != before).all()


def test_a_state_after_a_death_loads_on_any_number_of_ranks():
    x, _ = trained({2: 3}, strategy=gg.GossipGraD(), optimizer=gg.SGD(lr=0.1, momentum=0.9))
    state = x.state_dict()
    assert len(state["ranks"]) == x.size == 3
    for p in (3, 2):
        again = gg.Exchange(
            {"w": np.zeros(SAMPLES), "v": np.zeros((40, 3))},
            strategy=gg.GossipGraD(),
            optimizer=gg.SGD(lr=0.1, momentum=0.9),
            comm=gg.VirtualCluster(p),
        )
        again.load_state_dict(state)
        assert again.steps == x.steps
        for name, array in again.consensus_weights().items():
            np.testing.assert_allclose(array, x.consensus_weights()[name], rtol=1e-5, atol=1e-6)
    assert 0 <= x.consensus_distance() < 10


def test_a_cluster_whose_ranks_live_is_as_before():
    plain, _ = trained({}, strategy=gg.GossipGraD())
    late, heard = trained({1: 10**6}, strategy=gg.GossipGraD())
    assert not heard and late.view == plain.view
    np.testing.assert_array_equal(*[np.stack([r.weights["v"] for r in one.replicas]) for one in (plain, late)])


def test_refusals():
    cluster = gg.VirtualCluster(3, deaths={1: 2})
    for strategy in (gg.AllReduce(), gg.DiLoCo(period=2), gg.ParameterServer()):
        with pytest.raises(ValueError, match=f"not with the strategy {strategy.name}.*allowed: gossipgrad"):
            gg.Exchange({"w": np.zeros(3)}, strategy=strategy, comm=cluster)
    with pytest.raises(ValueError, match="hierarchical=True"):
        gg.Exchange({"w": np.zeros(3)}, strategy=gg.GossipGraD(hierarchical=True, ranks_per_node=1), comm=cluster)
    x = gg.Exchange({"w": np.zeros(3)}, comm=cluster)
    with pytest.raises(RuntimeError, match=r"run: not where virtual ranks die.*step\(\)"):
        x.run(lambda replica: None)
    with pytest.raises(TypeError, match="on_view=3"):
        gg.Exchange({"w": np.zeros(3)}, on_view=3)


# ------------------------------------------------------------------------------------------------ the division alone


class Group:
    """Ranks that make one step after the other, each with batches that it has asked for ahead."""

    def __init__(self, p, samples, batch, ahead, accumulate=1, **options):
        self.members, self.steps, self.places = list(range(p)), 0, {}
        self.watched = weakref.WeakSet()
        self.trained, self.ahead, self.accumulate = Counter(), ahead, accumulate
        self.queues = {rank: [] for rank in range(p)}
        self.made = {rank: [] for rank in range(p)}  # the samples of each step
        self.divisions = {
            rank: gg.Division(samples, batch, _Rank(self, rank), accumulate=accumulate, **options) for rank in range(p)
        }
        self.due = []  # deaths: (rank, its last step that counts), noticed at the next look
        self.iterations = {}

    def watch(self, division):
        self.watched.add(division)

    def meet(self, where):
        return not self.look()

    def look(self):
        due, self.due = self.due, []
        if not due:
            return False
        change = {"died": [rank for rank, _ in due], "last_steps": [last for _, last in due]}
        change["made"] = [len(self.made[rank]) for rank, _ in due]
        self.members = [one for one in self.members if one not in change["died"]]
        change["ranks"] = self.members
        for rank, last in due:
            self.trained.update(one for step in self.made[rank][: last + 1] for one in step)
        kept = max(self.divisions[rank].asked() for rank in self.members)
        again = {self.divisions[rank].changed(change, kept) for rank in self.members}
        lost = sum(len(step) for rank, last in due for step in self.made[rank][last + 1 :])
        assert again == {lost}
        return True

    def step(self):
        """One step of all that live; False at the epoch's end."""
        for rank in self.members:
            queue = self.queues[rank]
            while len(queue) < self.ahead[rank] + self.accumulate:
                batch = next(self.iterations[rank], None)
                if batch is None:
                    break
                queue.append(batch)
        left = {bool(self.queues[rank]) for rank in self.members}
        assert len(left) == 1
        if left == {False}:
            return False
        for rank in self.members:
            taken, self.queues[rank] = self.queues[rank][: self.accumulate], self.queues[rank][self.accumulate :]
            self.made[rank].append([one for batch in taken for one in batch])
        self.steps += 1
        for rank in self.members:
            self.divisions[rank].stepped()
        return True


class _Rank:
    def __init__(self, group, identity):
        self.group, self.identity, self._survivor = group, identity, group

    @property
    def rank(self):
        return self.group.members.index(self.identity)

    @property
    def size(self):
        return len(self.group.members)


@pytest.mark.parametrize("seed", range(60))
def test_each_sample_counts_once_whatever_was_read_ahead(seed):
    """Deaths at random steps, of which the last ones reached nobody; batches read ahead stay with their rank."""
    draw = random.Random(seed)
    p, batch, accumulate = draw.randint(2, 5), draw.randint(2, 5), draw.choice([1, 1, 2])
    ahead = dict.fromkeys(range(p), 0) if draw.random() < 0.3 else {r: draw.choice([0, 1, 4, 9]) for r in range(p)}
    samples = draw.randint(p * batch, 130)
    group = Group(p, samples, batch, ahead, accumulate, shuffle=draw.random() < 0.7, seed=seed)
    rate = draw.choice([0.1, 0.3, 0.8])
    while {group.divisions[rank].left > 0 for rank in group.members} == {True}:
        group.iterations = {rank: iter(group.divisions[rank]) for rank in group.members}
        while group.step():
            if len(group.members) > 1 and draw.random() < rate:
                dead = draw.sample(group.members, draw.randint(1, len(group.members) - 1))
                group.due = [(rank, len(group.made[rank]) - 1 - draw.randint(0, 2)) for rank in dead]
            if draw.random() < 0.8:
                group.look()
    for rank in group.members:
        group.trained.update(one for step in group.made[rank] for one in step)
    assert set(group.trained) == set(range(samples))
    extra = sum(group.trained.values()) - samples
    assert extra <= (p - 1) * len(group.made[group.members[0]]) if batch == 1 else extra < 2 * p * p


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_division_is_that_of_the_core(shuffle):
    """Where nothing was read ahead, a death deals anew as a Trainer, or a resumed epoch, does."""
    group = Group(3, 50, 4, dict.fromkeys(range(3), 0), shuffle=shuffle, seed=7)
    group.iterations = {rank: iter(one) for rank, one in group.divisions.items()}
    for _ in range(2):
        group.step()
    group.due = [(1, 0)]
    group.look()
    for place, rank in enumerate(group.members):
        wanted, _ = _core.division(50, place, 2, 7, 0, shuffle, [[8, 4, 8]])
        assert [one for batch in group.iterations[rank] for one in batch] == wanted.tolist()


def test_a_position_after_a_death_goes_on_on_any_number_of_ranks():
    group = Group(3, 60, 4, dict.fromkeys(range(3), 2), seed=3)
    group.iterations = {rank: iter(one) for rank, one in group.divisions.items()}
    for _ in range(3):
        group.step()
    group.due = [(2, 1)]
    group.look()
    done = Counter(one for rank in (0, 1) for step in group.made[rank] for one in step)
    done.update(one for step in group.made[2][:2] for one in step)
    states = [group.divisions[rank].state_dict(3) for rank in (0, 1)]  # while batches that were read ahead are left
    assert states[0] == states[1]
    for size in (1, 2, 4):
        rest = Counter()
        for rank in range(size):
            one = gg.Division(60, 3, SimpleNamespace(rank=rank, size=size), seed=3)
            one.load_state_dict(states[0])
            rest.update(sample for batch in one for sample in batch)
        assert done + rest == Counter(range(60))
        with pytest.raises(ValueError, match="Division: seed is 4, and 3 in the state"):
            gg.Division(60, 3, SimpleNamespace(rank=0, size=1), seed=4).load_state_dict(states[0])


def test_unread_samples_are_told():
    group = Group(2, 40, 4, dict.fromkeys(range(2), 20), seed=3)
    group.iterations = {rank: iter(one) for rank, one in group.divisions.items()}
    for _ in range(len(group.divisions[0])):
        group.step()
    group.due = [(1, 1)]
    group.look()
    assert group.divisions[0].left > 0
    with pytest.warns(UserWarning, match="epoch 0: .* batches of a rank were not read.*sampler.left"):
        group.divisions[0].set_epoch(1)
    assert len(group.divisions[0]) == 10 and group.divisions[0].left == 10
