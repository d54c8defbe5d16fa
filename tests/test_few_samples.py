"""Few samples a rank: the estimate of what gossip costs, its warning, and strategy="auto"."""

import math
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import strategies
from gossipgrad.strategies.auto import WANTED, WARNED, cost, spread
from gossipgrad.training import chosen
from gossipgrad.training.chosen import norm_of

MOMENTUM = 0.9


def network(normalised=True):
    norm = [gg.BatchNorm2d()] if normalised else []
    return gg.Sequential([gg.Conv2d(4, 3), *norm, gg.ReLU(), gg.Flatten(), gg.Linear(3)], input=(1, 5, 5))


def samples(count):
    rng = np.random.default_rng(0)
    return rng.random((count, 1, 5, 5), np.float32), rng.integers(0, 3, count).astype(np.int32)


def fit(ranks, batch, normalised=True, said=None, **how):
    """A trainer after one step; `said` receives the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer = gg.Trainer(network(normalised), comm=gg.VirtualCluster(ranks), **how)
        trainer.fit(*samples(ranks * batch), batch_size=batch, progress=False)
    if said is not None:
        said += [str(one.message) for one in found]
    return trainer


@pytest.mark.core(99)
@pytest.mark.parametrize("ranks", [2, 4, 8, 32, 128])
def test_the_spread_is_that_of_independent_gradients(ranks):
    # After t + 1 averages with partners at distances 1, 2, 4, ... a gradient is spread evenly over 2^(t + 1) ranks.
    exact, step = 0.0, 1.0
    for t in range(int(math.log2(ranks))):
        exact += step**2 * (0.5 ** (t + 1) - 1 / ranks)
        step = 1 + MOMENTUM * step
    assert spread(ranks) == pytest.approx(exact, rel=1e-9)
    assert (spread(ranks, momentum=False) > spread(ranks)) == (ranks > 2)


@pytest.mark.core(99)
def test_the_spread_is_that_of_a_training():
    """The variance of replicas whose gradients are noise alone, measured in an Exchange, against the estimate."""
    ranks, width, steps = 8, 20_000, 40
    rng = np.random.default_rng(1)
    exchange = gg.Exchange(
        {"w": np.zeros(width, np.float32)},
        optimizer=gg.SGD(lr=1.0, momentum=MOMENTUM),
        strategy=gg.GossipGraD(exchange="weights+momentum", rotate=False),
        comm=gg.VirtualCluster(ranks),
    )
    found = []
    for step in range(steps):
        for one in exchange.replicas:
            one.gradients["w"][:] = rng.standard_normal(width, np.float32)
        exchange.step()
        if step >= 16:
            exchange.settle()
            weights = np.stack([one.weights["w"] for one in exchange.replicas]).astype(np.float64)
            found.append(np.square(weights - weights.mean(0)).sum(0).mean() / ranks)
    assert np.mean(found) == pytest.approx(spread(ranks), rel=0.1)


@pytest.mark.core(99)
def test_more_ranks_and_fewer_samples_cost_more():
    assert cost(4, 1, "batch") == cost(4, 2, "batch") == 0
    assert cost(4, 8, "batch") < cost(4, 32, "batch") < cost(1, 32, "batch")
    assert cost(4, 8, "batch") < cost(4, 8, "group")
    assert cost(4, 8, "none") < cost(4, 8, "batch") < cost(4, 8, "batch", momentum=False)


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("ranks", "batch", "normalised"),
    [(1, 1, True), (2, 1, True), (8, 1, True), (15, 1, False), (16, 32, True), (16, 32, False)],
)
def test_usual_batches_bring_no_warning(ranks, batch, normalised):
    said = []
    fit(ranks, batch, normalised, said)
    assert not [one for one in said if "accuracy by gossip" in one]


@pytest.mark.core(99)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_usual_batches_on_machines_bring_no_warning(ranks):
    # Ranks behind simulated links are machines: without momentum in the messages replicas differ more.
    said = []
    fit(ranks, 32, True, said, network=gg.Network(latency=1e-6, bandwidth=1e9))
    assert not [one for one in said if "accuracy by gossip" in one]


@pytest.mark.core(99)
def test_the_norm_is_that_of_the_layers():
    assert cost(32, 8, "group", momentum=False) <= WARNED
    for made, norm in ((gg.GroupNorm(2), "group"), (gg.BatchNorm2d(), "batch"), (gg.ReLU(), "none")):
        assert norm_of(gg.Sequential([gg.Conv2d(4, 3), made], input=(1, 5, 5))) == norm


@pytest.mark.core(99)
def test_few_samples_bring_one_warning_with_the_remedy():
    said = []
    trainer = fit(16, 4, True, said, strategy=gg.GossipGraD())
    found = [one for one in said if "of accuracy by gossip" in one]
    assert len(found) == 1
    assert found[0].startswith(
        "4 samples a rank and step on 16 ranks may cost a network with batch normalisation about 0.7 points of accuracy"
    )
    assert "strategy='auto', which is GossipGraD(hierarchical=True, ranks_per_node=4) here; or batch_size=7" in found[0]
    assert cost(7, 16, "batch") <= WARNED < cost(6, 16, "batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(*samples(64), batch_size=4, progress=False)  # once a trainer


def said_of(strategy, exchange, samples, ranks, norm, **how):
    members = ranks if strategy.ranks_per_node is None else ranks // strategy.ranks_per_node
    return strategies.few_samples(strategy, exchange, samples, ranks, members, norm, 1, **how)


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("samples", "ranks", "norm", "usual", "points"),
    [
        (4, 128, "batch", True, "about 1.0 points of accuracy"),
        (4, 16, "group", True, "about 0.9 points of accuracy"),
        (1, 128, "batch", True, "accuracy"),  # fewer samples,
        (4, 512, "batch", True, "accuracy"),  # more ranks than were measured,
        (4, 128, "batch", False, "accuracy"),  # another optimiser,
        (4, 128, "none", True, "accuracy"),  # or no law
    ],
)
def test_points_are_named_where_they_were_measured(samples, ranks, norm, usual, points):
    network = "this network" if norm == "none" else f"a network with {norm} normalisation"
    said = said_of(gg.GossipGraD(), "weights+momentum", samples, ranks, norm, usual=usual)
    assert f"on {ranks} ranks may cost {network} {points} by gossip. Allowed" in said
    assert ("; compare with strategy='auto'" in said) == (norm == "none")
    assert f"may cost {network} {points} " in strategies.choose(samples, ranks, norm, 1, usual=usual)[1]


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("optimizer", "usual", "private"),
    [
        (gg.SGD(0.1, momentum=0.9), True, False),
        (gg.SGD(0.1, momentum=0.5), False, False),
        (gg.SGD(0.1), False, True),  # the exchange of a momentum is no remedy
        (gg.Adam(), False, False),
        (gg.LARS(1.0), False, False),
        (gg.LARS(1.0, momentum=0.0), False, True),
    ],
    ids=["sgd", "other momentum", "no momentum", "adam", "lars", "lars without momentum"],
)
def test_the_usual_optimiser_is_sgd_with_momentum(optimizer, usual, private):
    assert chosen.momentum_of(optimizer) == {"usual": usual, "private": private}


@pytest.mark.core(99)
@pytest.mark.parametrize("ranks", [16, 24, 32, 64, 128])
@pytest.mark.parametrize("exchange", ["weights", "weights+momentum"])
@pytest.mark.parametrize("nodes", [None, 2, 4])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_a_remedy_changes_something(ranks, exchange, nodes, norm):
    """It is neither what the training does, nor does it cost as much by the estimate."""
    given = gg.GossipGraD(exchange=exchange, hierarchical=nodes is not None, ranks_per_node=nodes)
    for few in (1, 2, 4, 8):
        members = ranks // (nodes or 1)
        said = said_of(given, exchange, few, ranks, norm)
        if said is None:
            continue
        if "exchange='weights+momentum'" in said:
            assert exchange == "weights"
            assert cost(few * ranks // members, members, norm) <= WARNED
        else:
            made = strategies.choose(few, ranks, norm, 1)[0]
            assert made not in (gg.GossipGraD(), given)
            assert f"which is {strategies.choose(few, ranks, norm, 1)[1].split(':')[0]} here" in said


@pytest.mark.core(99)
def test_remedies_are_allowed_ones():
    few = gg.GossipGraD(), "weights", 4, 32, "batch"
    compressed = said_of(*few, fixed=True)
    assert "auto" not in compressed
    assert "exchange=" not in compressed
    assert "Allowed, but better: batch_size=" in compressed
    assert "which is AllReduce() here" in said_of(*few, mortal=True)  # ranks that may die form no nodes
    private = said_of(gg.GossipGraD(), "weights+momentum", 8, 32, "batch", private=True)  # an optimiser of torch
    assert private == said_of(gg.GossipGraD(), "weights", 8, 32, "batch", private=True)
    assert "exchange=" not in private
    assert strategies.choose(8, 32, "batch", 1, private=True)[1].startswith("GossipGraD(hierarchical=True")
    said = []
    fit(32, 1, True, said, compression=gg.AdaComp())
    assert [one for one in said if "of gossip" in one or "accuracy by gossip. Allowed, but better: batch_size=" in one]


@pytest.mark.core(99)
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.QuasiGlobal(), gg.GossipGraD(exchange="gradients")])
def test_other_strategies_bring_no_warning(strategy):
    said = []
    fit(16, 1, True, said, strategy=strategy)
    assert not [one for one in said if "accuracy by gossip" in one]


@pytest.mark.core(99)
@pytest.mark.parametrize("ranks", [6, 7, 8, 12, 16, 60, 128, 512])
@pytest.mark.parametrize("batch", [1, 4, 64])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_the_smallest_nodes_that_suffice_are_chosen(ranks, batch, norm):
    chosen, why = strategies.choose(batch, ranks, norm, 1)
    enough = [
        size
        for size in range(2, ranks // 4 + 1)
        if ranks % size == 0 and cost(batch * size, ranks // size, norm) <= WANTED
    ]
    if ranks < 16 or cost(batch, ranks, norm) <= WARNED:
        assert chosen == gg.GossipGraD()
    elif enough:
        assert chosen == gg.GossipGraD(hierarchical=True, ranks_per_node=enough[0])
    else:
        assert chosen == gg.AllReduce()
    assert why.startswith(type(chosen).__name__)
    assert "\n" not in why


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("ranks", "batch", "same"),
    [
        (4, 16, gg.GossipGraD()),
        (16, 2, gg.GossipGraD(hierarchical=True, ranks_per_node=4)),
        (17, 1, gg.AllReduce()),
    ],
)
def test_auto_is_the_chosen_strategy_to_the_bit(ranks, batch, same, tmp_path):
    auto, plain = fit(ranks, batch, strategy="auto"), fit(ranks, batch, strategy=same)
    assert auto.strategy == same
    assert auto.exchange == plain.exchange
    assert auto.weights_sha256() == plain.weights_sha256()
    assert auto.history.settings | {"fit": 0} == plain.history.settings | {"fit": 0}
    assert auto.decision.startswith(type(same).__name__)
    assert plain.decision == ""
    # It is stored as the chosen one, and goes on to the bit.
    path = str(tmp_path / "auto.safetensors")
    auto.save(path)
    loaded = gg.Trainer.load(path, comm=gg.VirtualCluster(ranks))
    assert loaded.strategy == same
    for one in (auto, loaded):
        one.fit(*samples(ranks * batch), batch_size=batch, progress=False)
    assert auto.weights_sha256() == loaded.weights_sha256()
    resumed = gg.Trainer(network(), strategy="auto", comm=gg.VirtualCluster(ranks))
    resumed.fit(*samples(ranks * batch), batch_size=batch, epochs=2, resume=path, progress=False)
    assert resumed.weights_sha256() == auto.weights_sha256()


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("ranks", "batch", "how", "nodes"),
    [
        (16, 4, {}, 4),
        (15, 1, {}, None),
        (16, 32, {}, None),
        (16, 4, {"normalised": False}, None),  # or the law has no data,
        (16, 4, {"optimizer": gg.Adam()}, None),
        (17, 1, {}, None),  # or there are no nodes
        (16, 4, {"compression": gg.AdaComp()}, None),
    ],
)
def test_without_a_strategy_nodes_are_formed_where_gossip_is_known_to_cost_accuracy(ranks, batch, how, nodes, tmp_path):
    chosen, plain = fit(ranks, batch, **how), gg.GossipGraD()
    same = plain if nodes is None else gg.GossipGraD(hierarchical=True, ranks_per_node=nodes)
    given = fit(ranks, batch, strategy=same, **how)
    assert chosen.strategy == same
    assert chosen.weights_sha256() == given.weights_sha256()
    assert bool(chosen.decision) == (nodes is not None)
    path = str(tmp_path / "chosen.safetensors")
    chosen.save(path)
    for one in (chosen, given):
        one.fit(*samples(ranks * batch), batch_size=batch, progress=False)
    how = {key: value for key, value in how.items() if key != "normalised"}
    resumed = gg.Trainer(chosen.net, comm=gg.VirtualCluster(ranks), **how)
    resumed.fit(*samples(ranks * batch), batch_size=batch, epochs=2, resume=path, progress=False)
    assert chosen.weights_sha256() == given.weights_sha256() == resumed.weights_sha256()


@pytest.mark.core(99)
def test_the_choice_is_said_once(capsys):
    trainer = gg.Trainer(network(), strategy="auto", comm=gg.VirtualCluster(16))
    trainer.fit(*samples(32), batch_size=2)
    out = capsys.readouterr()
    assert (out.out + out.err).count("strategy: GossipGraD(hierarchical=True, ranks_per_node=4): 2 samples") == 1


@pytest.mark.core(99)
def test_a_step_decides_as_well():
    trainer = gg.Trainer(network(), strategy="auto", comm=gg.VirtualCluster(17))
    x, y = samples(17)
    trainer.train_step(list(x[:, None]), list(y[:, None]))
    assert trainer.strategy == gg.AllReduce()
    assert trainer.step == 1


@pytest.mark.core(99)
def test_loaded_weights_survive_the_choice():
    given = network()
    start = {name: array + 0.5 for name, array in given.weights(0).items()}
    trainer = gg.Trainer(given, strategy="auto", optimizer=gg.SGD(lr=0.0), comm=gg.VirtualCluster(17))
    trainer.load_weights(start)
    trainer.fit(*samples(17), batch_size=1, progress=False)
    for name, array in trainer.weights().items():
        if "running" not in name:
            np.testing.assert_array_equal(array, start[name])


@pytest.mark.core(99)
def test_auto_is_refused_where_samples_are_unknown():
    with pytest.raises(ValueError, match=r"strategy='auto': allowed where the samples of a rank are known"):
        gg.Exchange({"w": np.zeros(3, np.float32)}, strategy="auto")
    with pytest.raises(ValueError, match=r"compression='adacomp' with strategy='auto': the chosen strategy may"):
        gg.Trainer(network(), strategy="auto", compression=gg.AdaComp())
    with pytest.raises(TypeError, match=r"strategy='autos': allowed: .*'auto'"):
        gg.Trainer(network(), strategy="autos")
    with pytest.raises(ValueError, match=r"staleness: not an option of strategy='auto'; it has none;"):
        strategies.by_name("auto", staleness=1)


@pytest.mark.core(99)
def test_torch_chooses_and_warns_by_batch_size():
    torch = pytest.importorskip("torch")
    import gossipgrad.torch

    def make(normalised):
        torch.manual_seed(0)
        norm = {"group": [torch.nn.GroupNorm(2, 4)], True: [torch.nn.BatchNorm1d(4)]}.get(normalised, [])
        return torch.nn.Sequential(torch.nn.Linear(3, 4), *norm, torch.nn.Linear(4, 2))

    def strategy(normalised, **how):
        models = gossipgrad.torch.replicas(lambda: make(normalised), 16, gg.SGD(0.1, MOMENTUM), **how)
        chosen = models[0].strategy_name, models[0].decision
        models.close()
        return chosen

    name, why = strategy(True, strategy="auto", batch_size=2)
    assert (name, why) == ("gossipgrad", strategies.choose(2, 16, "batch", 1)[1])
    assert strategy("group", strategy="auto", batch_size=2)[1] == strategies.choose(2, 16, "group", 1)[1]
    assert strategy(True, strategy="auto", batch_size=64)[1].startswith("GossipGraD()")
    assert strategy(False, strategy="auto", batch_size=8)[1].startswith("GossipGraD()")
    with pytest.raises(ValueError, match=r"strategy='auto' chooses by the samples of a rank: batch_size="):
        strategy(True, strategy="auto")
    with pytest.warns(
        UserWarning, match=r"1 sample a rank and step on 16 ranks may cost a network with batch normalisation"
    ):
        strategy(True, strategy=gg.GossipGraD(), batch_size=1)
    assert strategy(True, batch_size=2)[1] == strategies.choose(2, 16, "batch", 1)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy(True, batch_size=64)
        strategy(True)


@pytest.mark.full
def test_ranks_with_unlike_batches_decide_alike(mpirun):
    program = """
import numpy as np, gossipgrad as gg
def net(): return gg.Sequential([gg.Flatten(), gg.Linear(3)], input=(1, 5, 5))
gg.strategies.auto.MEASURED = 2, 128  # a cluster of 16 ranks is not needed
t = gg.Trainer(net(), strategy="auto")
n = 1 if t.rank == 2 else 64
t.train_step(np.zeros((n, 1, 5, 5), np.float32), np.zeros(n, np.int32))
print("decided", t.strategy.name)
try:
    gg.Trainer(net(), strategy="auto" if t.rank else None)
except ValueError as error:
    print("differs", "strategy: gossipgrad on rank 0; auto on ranks 1-4" in str(error))
"""
    said = mpirun(5, program).stdout
    assert said.count("decided allreduce") == said.count("differs True") == 5
