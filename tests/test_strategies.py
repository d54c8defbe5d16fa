"""What the strategies compute, in the virtual cluster: against a float64 simulation, and by what must hold."""

import itertools
import math

import numpy as np
import pytest
from gossip_reference import Gradients, Simulation, flat, randomise, small_batches, small_net, state

import gossipgrad as gg
from gossipgrad import _core

# test_a_cube_that_lacks_ranks_says_so looks at it.
pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

TOPOLOGIES = ("dissemination", "cube")
EXCHANGES = ("weights+momentum", "weights", "gradients")
FORMS = [(what, late) for what in EXCHANGES for late in (0, 1) if not (late and what == "gradients")]
OPTIMIZERS = {
    "momentum": gg.SGD(lr=0.2, momentum=0.9),
    "nesterov": gg.SGD(lr=0.1, momentum=0.7, weight_decay=0.1, nesterov=True),
    "plain": gg.SGD(lr=0.3, weight_decay=0.05),
}
# Each layer alone in pieces of 16 numbers; two layers joined, in pieces that cut them; the core's choice.
CUTS = {
    "layers": {"bucket_bytes": 1, "chunk_bytes": 64},
    "joined": {"bucket_bytes": 900, "chunk_bytes": 448},
    "default": {},
}


def trainer_of(p, optimizer, strategy, net=None, seed=5, **options):
    return gg.Trainer(
        net or small_net(), optimizer=optimizer, strategy=strategy, seed=seed, comm=gg.VirtualCluster(p), **options
    )


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def compare_with_simulation(p, strategy, optimizer, gradients_of, legs=(4, 3), tolerance=2e-5):
    """Runs both; between the legs all comes to rest and is compared."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, optimizer, strategy)
    is_gossip = isinstance(strategy, gg.GossipGraD)
    simulation = Simulation(*randomise(trainer, generator), optimizer, strategy if is_gossip else None, trainer.seed)
    for steps in legs:
        for _ in range(steps):
            x, y = small_batches(generator, p, sizes=(5, 3, 8))
            gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
            trainer.train_step(x, y)
            simulation.step(gradients)
        simulation.settle()
        weights, momentum = state(trainer)
        # What is compared is of size 1; a mix that is left out or doubled shows as 0.1 and more.
        np.testing.assert_allclose(weights, simulation.w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(momentum, simulation.v, rtol=tolerance, atol=tolerance)
    trainer.close()


@pytest.mark.core(24)
@pytest.mark.parametrize(("exchange", "staleness"), FORMS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("p", range(1, 9))
def test_gossip_is_what_its_contract_says(p, topology, staleness, exchange, gradients_of):
    # Every optimiser with some cut and every cut with some optimiser, others for other p.
    for i, optimizer in enumerate(OPTIMIZERS.values()):
        cut = list(CUTS.values())[(i + p) % 3]
        strategy = gg.GossipGraD(
            topology=topology, staleness=staleness, exchange=exchange, rotate=(p + i) % 2 == 0, **cut
        )
        compare_with_simulation(p, strategy, optimizer, gradients_of)


@pytest.mark.parametrize(("exchange", "staleness"), FORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_cut_with_every_optimizer(optimizer, exchange, staleness, gradients_of):
    for cut, rotate in itertools.product(CUTS.values(), (True, False)):
        strategy = gg.GossipGraD(exchange=exchange, staleness=staleness, rotate=rotate, **cut)
        compare_with_simulation(3, strategy, OPTIMIZERS[optimizer], gradients_of)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_exchange_is_sgd_on_every_rank(optimizer, gradients_of):
    compare_with_simulation(3, gg.NoExchange(), OPTIMIZERS[optimizer], gradients_of)


@pytest.mark.parametrize(("exchange", "staleness"), FORMS)
def test_cutting_changes_no_bit(exchange, staleness):
    seen = set()
    for cut in CUTS.values():
        generator = np.random.default_rng(3)
        trainer = trainer_of(5, OPTIMIZERS["nesterov"], gg.GossipGraD(exchange=exchange, staleness=staleness, **cut))
        randomise(trainer, generator)
        for _ in range(5):
            trainer.train_step(*small_batches(generator, 5))
        seen.add(tuple(trainer.weights_sha256()))
    assert len(seen) == 1


# ---- mixing alone: with samples of zeros and no biases every gradient is 0


def silent_net():
    return gg.Sequential([gg.Linear(40, bias=False), gg.Linear(5, bias=False)], input=(30,), name="silent")


def silent_step(trainer):
    zeros = [np.zeros((1, 30), np.float32)] * trainer.size
    trainer.train_step(zeros, [np.zeros(1, np.int64)] * trainer.size)


def spread(weights):
    return math.sqrt(((weights - weights.mean(0)) ** 2).sum())


def stages(p):
    return math.ceil(math.log2(p))


def silent_trainer(p, generator, momentum=0.5, **options):
    trainer = trainer_of(p, gg.SGD(lr=0.0, momentum=momentum), gg.GossipGraD(**options), net=silent_net())
    return trainer, *randomise(trainer, generator)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_one_cycle_is_consensus_for_powers_of_two(p, topology, staleness):
    trainer, weights, momentum = silent_trainer(p, np.random.default_rng(p), topology=topology, staleness=staleness)
    for step in range(stages(p)):
        assert step == 0 or trainer.consensus_distance() > 0.1  # and settles
        silent_step(trainer)
    found, velocity = state(trainer)
    np.testing.assert_allclose(found, np.tile(weights.mean(0), (p, 1)), atol=1e-6)
    np.testing.assert_allclose(velocity, np.tile(momentum.mean(0) * 0.5 ** stages(p), (p, 1)), atol=1e-6)
    assert trainer.consensus_distance() < 1e-6


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_the_mean_is_kept_at_every_step(p, topology, staleness):
    trainer, weights, momentum = silent_trainer(p, np.random.default_rng(p), topology=topology, staleness=staleness)
    before = spread(weights)
    for step in range(2 * stages(p) + 2):
        silent_step(trainer)
        found, velocity = state(trainer)
        np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=1e-6)
        np.testing.assert_allclose(velocity.mean(0), momentum.mean(0) * 0.5 ** (step + 1), atol=1e-6)
    assert p == 1 or spread(found) < 0.5 * before, "and the replicas did mix"


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_mean_is_kept_without_coming_to_rest(staleness):
    """staleness 1 mixes while the next message is under way: only the end may settle."""
    trainer, weights, momentum = silent_trainer(6, np.random.default_rng(0), staleness=staleness)
    for _ in range(8):
        silent_step(trainer)
    found, velocity = state(trainer)
    np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=1e-6)
    np.testing.assert_allclose(velocity.mean(0), momentum.mean(0) * 0.5**8, atol=1e-6)


# From the table of the algorithm: the relative spread that one cycle of dissemination leaves.
@pytest.mark.parametrize(("p", "left"), [(3, 0.25), (6, 0.16), (12, 0.11), (33, 0.022), (100, 0.035)])
def test_spread_after_a_cycle(p, left):
    generator = np.random.default_rng(p)
    ratios = []
    for _ in range(3):
        trainer, weights, _ = silent_trainer(p, generator)
        for _ in range(stages(p)):
            silent_step(trainer)
        ratios.append(spread(state(trainer)[0]) / spread(weights))
        trainer.close()
    assert np.mean(ratios) == pytest.approx(left, rel=0.1)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_consensus_distance_is_what_it_says(topology):
    trainer, weights, _ = silent_trainer(5, np.random.default_rng(1), topology=topology)
    mean = weights.mean(0)
    expected = np.mean([np.linalg.norm(w - mean) for w in weights]) / np.linalg.norm(mean)
    assert trainer.consensus_distance() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(flat(trainer.consensus_weights()), mean, atol=1e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("p", [3, 4, 7, 8])
def test_rotation_makes_every_pair_meet(p, topology):
    def pairs(rotate, steps):
        met = set()
        for step in range(steps):
            for rank in range(p):
                to, source = _core.partners(topology, p, step, rank, rotate, 11)
                met |= {(rank, to)} if to >= 0 else set()
                assert source < 0 or _core.partners(topology, p, step, source, rotate, 11)[0] == rank
        return met

    everyone = {(a, b) for a in range(p) for b in range(p) if a != b}
    steps = 40 * stages(p)
    assert pairs(True, steps) == everyone
    if p > 3:
        assert pairs(False, steps) < everyone


@pytest.mark.parametrize("p", [1, 2, 5, 8])
def test_partners_follow_the_formulas(p):
    """Without rotation, and in the first cycle of any."""
    for step in range(3 * max(stages(p), 1)):
        distance = 2 ** (step % stages(p)) if p > 1 else 0
        for rank, rotate in itertools.product(range(p), (False, True)):
            if rotate and step >= stages(p):
                continue
            expected = ((rank - distance) % p, (rank + distance) % p) if p > 1 else (-1, -1)
            assert _core.partners("dissemination", p, step, rank, rotate, 3) == expected
            peer = rank ^ distance if p > 1 and rank ^ distance < p else -1
            assert _core.partners("cube", p, step, rank, rotate, 3) == (peer, peer)


def test_the_seed_draws_the_rotation():
    def schedule(seed):
        return [_core.partners("dissemination", 8, step, 0, True, seed) for step in range(60)]

    assert schedule(1) == schedule(1) != schedule(2)


# ---- all-reduce, one rank, no exchange


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_allreduce_is_one_rank_with_a_larger_batch(p, optimizer):
    generator = np.random.default_rng(p)
    many = trainer_of(p, OPTIMIZERS[optimizer], gg.AllReduce())
    one = trainer_of(1, OPTIMIZERS[optimizer], gg.NoExchange())
    for step in range(6):
        x, y = small_batches(generator, p, sizes=[(4,), (4, 1, 7)][step % 2])  # uneven batches too
        losses = many.train_step(x, y)
        (whole,) = one.train_step([np.concatenate(x)], [np.concatenate(y)])
        assert np.average(losses, weights=[len(b) for b in x]) == pytest.approx(whole, rel=1e-5)
    assert len(set(many.weights_sha256())) == 1
    weights, momentum = state(many)
    expected, velocity = state(one)
    np.testing.assert_allclose(weights[0], expected[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(momentum[0], velocity[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("samples", "p", "batch"), [(101, 3, 11), (50, 4, 5), (23, 5, 4), (9, 2, 4)])
def test_allreduce_over_an_epoch_with_ragged_ends(samples, p, batch):
    """fit's own batches: interleaved shards, in order, the last batch whatever is left but at least one sample."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((samples, 1, 8, 8)).astype(np.float32)
    y = generator.integers(0, 4, samples)
    many = trainer_of(p, OPTIMIZERS["momentum"], gg.AllReduce())
    history = many.fit((x, y), epochs=2, batch_size=batch, shuffle=False, progress=False)
    assert len(set(history.weights_sha256)) == 1
    assert [record["samples"] for record in history.epochs] == [samples, samples]

    one = trainer_of(1, OPTIMIZERS["momentum"], gg.NoExchange())
    shards = [_core.shard(samples, rank, p, many.seed).tolist() for rank in range(p)]
    steps = math.ceil(len(shards[0]) / batch)
    for _ in range(2):
        for t in range(steps):
            rows = []
            for shard in shards:
                # a shard that full batches use up keeps its last sample for the last step
                begin = min(t * batch, len(shard) - 1)
                end = len(shard) if t == steps - 1 else min((t + 1) * batch, len(shard) - 1)
                rows += shard[begin:end]
            one.train_step([x[rows]], [y[rows]])
    np.testing.assert_allclose(state(many)[0][0], state(one)[0][0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank_is_plain_sgd_bit_for_bit(optimizer):
    def run(strategy, comm):
        generator = np.random.default_rng(2)
        trainer = gg.Trainer(small_net(), optimizer=OPTIMIZERS[optimizer], strategy=strategy, comm=comm)
        for _ in range(6):
            x, y = small_batches(generator, 1)
            trainer.train_step(*((x, y) if comm else (x[0], y[0])))
        return trainer.weights_sha256(), {k: v.tobytes() for k, v in trainer.momentum().items()}

    plain = run(gg.NoExchange(), gg.VirtualCluster(1))
    assert run(gg.NoExchange(), None) == plain
    for comm, topology, (exchange, staleness) in itertools.product((None, gg.VirtualCluster(1)), TOPOLOGIES, FORMS):
        assert run(gg.GossipGraD(topology=topology, staleness=staleness, exchange=exchange), comm) == plain
    assert run(gg.AllReduce(), None) == run(gg.AllReduce(), gg.VirtualCluster(1)) == plain


def test_no_exchange_is_independent_runs():
    p, optimizer = 3, OPTIMIZERS["momentum"]
    generator = np.random.default_rng(0)
    together = trainer_of(p, optimizer, gg.NoExchange())
    alone = [trainer_of(1, optimizer, gg.NoExchange()) for _ in range(p)]
    for _ in range(5):
        x, y = small_batches(generator, p)
        together.train_step(x, y)
        for rank in range(p):
            alone[rank].train_step([x[rank]], [y[rank]])
    found = together.weights_sha256()
    assert found == [one.weights_sha256()[0] for one in alone] and len(set(found)) == p


def test_traffic():
    """Messages and bytes are what the strategy says: one partner a step, whatever p is."""
    net = small_net()
    x, y = np.zeros((96, 1, 8, 8), np.float32), np.zeros(96, np.int64)

    def sent(p, strategy):
        trainer = gg.Trainer(net, optimizer=OPTIMIZERS["momentum"], strategy=strategy, comm=gg.VirtualCluster(p))
        record = trainer.fit((x, y), batch_size=4, progress=False).last
        return record["bytes_sent"] / (p * record["steps"]), record["messages_sent"] / (p * record["steps"])

    at_2, at_8 = sent(2, gg.GossipGraD()), sent(8, gg.GossipGraD())
    assert at_2 == at_8, "the same for any number of ranks"
    values = at_2[0] / 4
    assert 2 * net.parameters <= values < 2 * (net.parameters + 3 * 32)  # layers are padded
    weights, gradients = (sent(4, gg.GossipGraD(exchange=what)) for what in ("weights", "gradients"))
    assert weights == gradients == (at_2[0] / 2, at_2[1] / 2)
    assert sent(4, gg.GossipGraD(exchange="weights+momentum")) == at_2
    assert sent(4, gg.NoExchange()) == (0, 0)
    assert sent(4, gg.AllReduce())[0] == pytest.approx(2 * 3 / 4 * at_2[0] / 2, rel=0.1)


# ---- what cannot be


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topology": "torus"}, ("topology='torus'", "dissemination", "cube", "ring", "random")),
        ({"staleness": 2}, ("staleness=2", "0", "1")),
        ({"exchange": "all"}, ("exchange='all'", "weights+momentum")),
        ({"bucket_bytes": 0}, ("bucket_bytes=0", "at least 1")),
        ({"chunk_bytes": -4}, ("chunk_bytes=-4", "at least 1")),
    ],
)
def test_options_out_of_range(options, words):
    with pytest.raises(ValueError) as caught:
        gg.GossipGraD(**options)
    assert all(word in str(caught.value) for word in words)


def test_the_core_checks_too():
    team = _core.Team("virtual", size=2)
    optimizer = gg.SGD(lr=0.1).options()
    for options, word in [
        ({"name": "gossipgrad", "staleness": 2}, "staleness"),
        ({"name": "gossipgrad", "topology": "torus"}, "topology"),
        ({"name": "gossipgrad", "chunk_bytes": 0}, "chunk_bytes"),
        ({"name": "easgd"}, "easgd"),
    ]:
        with pytest.raises(ValueError, match=word):
            _core.Trainer(small_net().graph, team, loss="cross_entropy", optimizer=optimizer, strategy=options)


@pytest.mark.filterwarnings("default")
def test_a_cube_that_lacks_ranks_says_so(recwarn):
    for p, topology in [(4, "cube"), (3, "dissemination"), (1, "cube")]:
        trainer_of(p, OPTIMIZERS["plain"], gg.GossipGraD(topology=topology))
    assert not [w for w in recwarn if "topology" in str(w.message)]
    with pytest.warns(UserWarning, match="topology='cube' with 3 ranks"):
        trainer_of(3, OPTIMIZERS["plain"], gg.GossipGraD(topology="cube"))


def test_more_chunks_than_can_be_told_apart():
    net = gg.Sequential([gg.Linear(4000)], input=(200,), name="wide")
    with pytest.raises(ValueError, match="chunk_bytes"):
        trainer_of(2, OPTIMIZERS["momentum"], gg.GossipGraD(chunk_bytes=64), net=net)


@pytest.mark.parametrize("exchange", ["weights", "gradients"])
def test_a_chunk_leaves_when_its_last_layer_is_final(exchange):
    """So small chunks of one bucket travel under the rest of the backward pass."""

    def exposed(chunk_bytes):
        net = gg.Sequential([gg.Linear(300) for _ in range(6)], input=(300,), name="deep")
        strategy = gg.GossipGraD(exchange=exchange, bucket_bytes=1 << 30, chunk_bytes=chunk_bytes)
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(2, bandwidth=5e8))
        data = np.zeros((256, 300), np.float32), np.zeros(256, np.int64)
        return trainer.fit(data, batch_size=64, progress=False).last["exposed_communication_seconds"]

    assert 0 < exposed(1 << 16) < 0.8 * exposed(1 << 30)
