"""gg.Exchange goes on when ranks of a virtual cluster die."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg

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
    assert x.view.changes == tuple(change for _, change in heard) and x.view.number == len(heard)
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
