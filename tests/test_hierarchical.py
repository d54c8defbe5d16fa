"""Hierarchical gossip: all-reduce inside a node, gossip between nodes."""

import math

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import Gradients, Simulation, assert_steady, randomise, small_batches, small_net, state, unflat
from test_strategies import CUTS, FORMS, OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core


def run(strategy, p, steps=7, optimizer="nesterov"):
    """Bits of weights, momentum and losses after steps with batches of unlike size."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, OPTIMIZERS[optimizer], strategy)
    losses = [list(trainer.train_step(*small_batches(generator, p, sizes=(4, 1, 7)))) for _ in range(steps)]
    momentum = [{k: v.tobytes() for k, v in trainer.momentum(r).items()} for r in range(p)]
    made = trainer.weights_sha256(), momentum, losses
    trainer.close()
    return made


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_one_node_is_allreduce_bit_for_bit(p, staleness, cut):
    for ranks_per_node in (None, p, p + 3):
        strategy = gg.GossipGraD(
            hierarchical=True, ranks_per_node=ranks_per_node, staleness=staleness, push_sum=p == 3, **CUTS[cut]
        )
        assert run(strategy, p) == run(gg.AllReduce(), p)


@pytest.mark.parametrize(("exchange", "staleness"), FORMS)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_nodes_of_one_rank_are_plain_gossip_bit_for_bit(p, staleness, exchange):
    options = {"staleness": staleness, "exchange": exchange, **list(CUTS.values())[p % 3]}
    plain = run(gg.GossipGraD(**options), p)
    assert run(gg.GossipGraD(hierarchical=True, ranks_per_node=1, **options), p) == plain


NODES = [  # ranks, asked for, ranks in a node
    (4, 2, 2), (6, 3, 3), (6, 2, 2), (8, 4, 4), (6, 4, 2), (10, 4, 2), (9, 6, 3), (5, 2, 1), (7, 3, 1), (3, 7, 3),
]  # fmt: skip


@pytest.mark.parametrize(("p", "asked", "size"), NODES)
def test_how_ranks_are_divided(p, asked, size):
    team = _core.Team("virtual", size=p)
    assert team.nodes(asked) == (p // size, size)
    assert team.nodes() == (1, p)
    assert size == math.gcd(min(asked, p), p % min(asked, p))


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


OF_NODES = [{}, {"staleness": 1}, {"exchange": "gradients"}, {"push_sum": True}, {"slices": 3}]


@pytest.mark.parametrize("options", [*OF_NODES, {"slices": 2, "staleness": 1}], ids=repr)
@pytest.mark.parametrize(("p", "asked", "size"), [(4, 2, 2), (6, 2, 2), (6, 4, 2), (6, 3, 3), (8, 2, 2)])
def test_nodes_gossip_with_their_mean_gradient(p, asked, size, options, gradients_of):
    """Against the simulation of plain gossip whose ranks are the nodes."""
    nodes, generator = p // size, np.random.default_rng(p)
    strategy = gg.GossipGraD(hierarchical=True, ranks_per_node=asked, topology="exponential", **options)
    trainer = trainer_of(p, OPTIMIZERS["momentum"], strategy)
    weights, momentum = randomise(trainer, generator)
    for rank in range(p):  # ranks of a node start alike
        trainer.core.exchange.load_arena("weight", unflat(weights[rank // size * size], trainer.weights(0)), rank)
        trainer.core.exchange.load_arena("momentum", unflat(momentum[rank // size * size], trainer.weights(0)), rank)
    like = trainer.weights(0)
    simulation = Simulation(weights[::size], momentum[::size], OPTIMIZERS["momentum"], strategy, trainer.seed, like)
    for _ in range(7):
        x, y = small_batches(generator, p, sizes=(5, 3, 8))
        samples = np.array([len(batch) for batch in x])
        own = np.stack([gradients_of(simulation.w[r // size], x[r], y[r]) * samples[r] for r in range(p)])
        trainer.train_step(x, y)
        simulation.step(own.reshape(nodes, size, -1).sum(1) / samples.reshape(nodes, size).sum(1)[:, None])
    simulation.settle()
    found = state(trainer)
    for a, b in zip(found, (simulation.w, simulation.v), strict=True):
        np.testing.assert_allclose(a[::size], b, rtol=2e-5, atol=2e-5)
    hashes = trainer.weights_sha256()
    assert all(hashes[rank] == hashes[rank // size * size] for rank in range(p)), "all of a node hold the same bits"
    assert len(set(hashes)) == nodes or nodes == 2, "two nodes agree after each exchange"


@pytest.mark.parametrize("exchange", ["weights+momentum", "weights", "gradients"])
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_a_node_without_samples_has_a_gradient_of_zero(ranks_per_node, exchange):
    strategy = gg.GossipGraD(hierarchical=True, ranks_per_node=ranks_per_node, exchange=exchange)
    found = []
    for samples in ([8, 8, 0, 0], None):
        x = gg.Exchange(
            {"w": np.ones(40)}, strategy=strategy, optimizer=gg.SGD(lr=0.1, momentum=0.9), comm=gg.VirtualCluster(4)
        )
        given = [1, 2, 3, 4] if samples else [1, 2, 0, 0]
        for _ in range(3):
            x.step([{"w": np.full(40, float(one))} for one in given], samples=samples)
        x.settle()
        found.append([one.weights["w"].tolist() for one in x.replicas])
    assert np.isfinite(found[0]).all() and found[0] == found[1]


def bits_of(trainer, arena):
    return [{name: a.tobytes() for name, a in trainer.state()[1][rank][arena].items()} for rank in range(4)]


@pytest.mark.parametrize("how", ["a checkpoint's state", "a reshape"])
@pytest.mark.parametrize("before", [gg.NoExchange(), gg.GossipGraD(staleness=1)], ids=["none", "gossip"])
def test_nodes_whose_ranks_differ_begin_with_the_mean(before, how):
    """Gossip between nodes never makes the ranks of a node equal again."""
    strategy, generator = gg.GossipGraD(hierarchical=True, ranks_per_node=2), np.random.default_rng(1)
    trainer = trainer_of(4, OPTIMIZERS["momentum"], before)
    for _ in range(5):
        trainer.train_step(*small_batches(generator, 4))
    _, parts, consensus = state_before = trainer.state()
    if how == "a reshape":
        trainer.core.reshape(strategy=strategy.options() | {"exchange": "weights"})
    else:
        trainer = trainer_of(4, OPTIMIZERS["momentum"], strategy)
        trainer.set_state(*state_before)
    for rank in range(4):
        for name, a in trainer.weights(rank).items():
            np.testing.assert_array_equal(a, consensus[name])
        for name, a in trainer.momentum(rank).items():
            mean = np.mean([part["momentum"][name] for part in parts], axis=0, dtype=np.float64)
            np.testing.assert_allclose(a, mean, rtol=1e-5, atol=1e-6)
    trainer.train_step(*small_batches(generator, 4))
    hashes = trainer.weights_sha256()
    assert hashes[0] == hashes[1] and hashes[2] == hashes[3]


@pytest.mark.parametrize("staleness", [0, 1])
def test_nodes_that_differ_go_on_as_they_are(staleness):
    generator = np.random.default_rng(1)
    first, second = (
        trainer_of(4, OPTIMIZERS["momentum"], gg.GossipGraD(hierarchical=True, ranks_per_node=2, staleness=one))
        for one in (1, staleness)
    )
    for _ in range(5):
        first.train_step(*small_batches(generator, 4))
    second.set_state(*first.state())
    assert bits_of(first, "weight") == bits_of(second, "weight")
    momentum = bits_of(second, "momentum")
    assert bits_of(first, "momentum") == momentum
    assert momentum[0] == momentum[1] != momentum[2] == momentum[3]


def test_traffic_between_and_inside_nodes():
    data = np.zeros((48, 1, 8, 8), np.float32), np.zeros(48, np.int64)

    def sent(p, strategy):
        return trainer_of(p, OPTIMIZERS["momentum"], strategy).fit(data, batch_size=4, progress=False)

    gossip, reduce = (sent(p, s).last["bytes_per_rank_step"] for p, s in ((2, gg.GossipGraD()), (2, gg.AllReduce())))
    history = sent(4, gg.GossipGraD(hierarchical=True, ranks_per_node=2))
    assert history.last["bytes_per_rank_step"] == gossip + reduce
    facts = {"topology": "dissemination", "rotate": True, "stages": 1, "diffusion_steps": 1, "meeting_steps": 1}
    assert history.schedule == facts | {"nodes": 2, "ranks_per_node": 2}


@pytest.mark.core(1)
@pytest.mark.parametrize("options", [{}, {"staleness": 1}, {"exchange": "gradients"}], ids=repr)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(options):
    strategy = gg.GossipGraD(hierarchical=True, ranks_per_node=3, **options)
    assert_steady(lambda one: trainer_of(6, OPTIMIZERS["momentum"], one), strategy, 6)


def test_errors_and_warnings():
    with pytest.raises(ValueError, match="ranks_per_node=0: allowed: an integer of at least 1"):
        gg.GossipGraD(hierarchical=True, ranks_per_node=0)
    with pytest.raises(ValueError, match="ranks_per_node=2: allowed only with hierarchical=True"):
        gg.GossipGraD(ranks_per_node=2)
    with pytest.raises(TypeError, match="hierarchical=1"):
        gg.GossipGraD(hierarchical=1)
    with pytest.raises(ValueError, match="2 columns; allowed: 3, one a rank, or a node where nodes gossip"):
        trainer_of(6, OPTIMIZERS["plain"], gg.GossipGraD(hierarchical=True, ranks_per_node=2, topology=[[1, 0]]))
    with pytest.warns(UserWarning, match="5 ranks: their nodes are of unlike sizes without a common divisor"):
        trainer_of(5, OPTIMIZERS["plain"], gg.GossipGraD(hierarchical=True, ranks_per_node=2))
    with pytest.warns(UserWarning, match="topology='cube' with 3 nodes"):
        trainer_of(6, OPTIMIZERS["plain"], gg.GossipGraD(hierarchical=True, ranks_per_node=2, topology="cube"))


@pytest.mark.full
def test_a_machine_is_a_node_under_mpi(mpirun):
    """Its ranks share memory: left alone it is AllReduce; with ranks_per_node the bits of the virtual cluster."""
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import gossipgrad as gg\n"
        "import test_mpi\n"
        "data, _ = gg.data.synthetic((2, 26, 26), train=90, test=1, seed=1)\n"
        "def run(comm, strategy):\n"
        "    trainer = gg.Trainer(test_mpi.net(), comm=comm, strategy=strategy)\n"
        "    return trainer.fit(data, batch_size=7, progress=False).weights_sha256\n"
        "assert run(None, gg.GossipGraD(hierarchical=True)) == run(None, gg.AllReduce())\n"
        "for options in ({}, {'staleness': 1, 'chunk_bytes': 6000}, {'wire_dtype': 'bfloat16', 'push_sum': True}):\n"
        "    strategy = gg.GossipGraD(hierarchical=True, ranks_per_node=2, **options)\n"
        "    found = run(None, strategy)\n"
        "    assert found == run(gg.VirtualCluster(4), strategy)\n"
        "    assert found[0] == found[1] and found[2] == found[3]\n"
    )
    mpirun(4, text)
