"""bfloat16 on the wire, in the virtual cluster: half the bytes, the mean kept, replicas that agree to its precision."""

import numpy as np
import pytest
from gossip_reference import Gradients, flat, randomise, small_batches, small_net, state
from operation_cases import bfloat16
from test_strategies import (
    CUTS,
    EXCHANGES,
    OPTIMIZERS,
    compare_with_simulation,
    silent_net,
    silent_step,
    spread,
    stages,
    trainer_of,
)

import gossipgrad as gg

BITS = 2.0**-8  # the largest relative error of rounding

STRATEGIES = {
    "gossip": lambda wire: gg.GossipGraD(wire_dtype=wire),
    "late": lambda wire: gg.GossipGraD(wire_dtype=wire, staleness=1, **CUTS["joined"]),
    "weights": lambda wire: gg.GossipGraD(wire_dtype=wire, exchange="weights"),
    "gradients": lambda wire: gg.GossipGraD(wire_dtype=wire, exchange="gradients"),
    "allreduce": lambda wire: gg.AllReduce(wire_dtype=wire),
    "layerwise": lambda wire: gg.LayerwiseAllReduce(wire_dtype=wire, **CUTS["layers"]),
    "periodic": lambda wire: gg.PeriodicAllReduce(wire_dtype=wire, period=2),
    "elastic": lambda wire: gg.ElasticAveraging(wire_dtype=wire, period=2),
}
SERVED = {
    "elastic, server": lambda wire: gg.ElasticAveraging(synchronous=False, wire_dtype=wire, period=2, **CUTS["layers"]),
    "elastic, own servers": lambda wire: gg.ElasticAveraging(synchronous=False, wire_dtype=wire, period=2, servers=2),
    "server": lambda wire: gg.ParameterServer(wire_dtype=wire),
    "server, dedicated": lambda wire: gg.ParameterServer(wire_dtype=wire, period=2, dedicated=True, chunk_bytes=320),
}


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_gossip_is_the_float32_exchange_to_rounding(p, exchange, gradients_of):
    """Values are of size 1; a mix that is left out or doubled shows as 0.1 and more."""
    for staleness, cut in ((0, "joined"), (1, "layers"), (1, "default"))[: 1 if exchange == "gradients" else 3]:
        strategy = gg.GossipGraD(exchange=exchange, staleness=staleness, wire_dtype="bfloat16", **CUTS[cut])
        compare_with_simulation(p, strategy, OPTIMIZERS["nesterov"], gradients_of, tolerance=0.03 if p > 1 else 2e-5)


def silent(p, strategy, generator, scale=0.5):
    trainer = trainer_of(p, gg.SGD(lr=0.0, momentum=0.5), strategy, net=silent_net())
    return trainer, *randomise(trainer, generator, scale)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("topology", ["dissemination", "cube"])
@pytest.mark.filterwarnings("ignore:topology='cube'")
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_gossip_keeps_the_mean(p, topology, staleness):
    """To the rounding of float32, as with float32 on the wire; settled at some steps only."""
    strategy = gg.GossipGraD(topology=topology, staleness=staleness, wire_dtype="bfloat16")
    trainer, weights, momentum = silent(p, strategy, np.random.default_rng(p))
    for step in range(12):
        silent_step(trainer)
        if step % 3 == 2:
            found, velocity = state(trainer)
            np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=1e-6)
            np.testing.assert_allclose(velocity.mean(0), momentum.mean(0) * 0.5 ** (step + 1), atol=1e-6)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_gossip_agrees_to_bfloat16(p, staleness):
    strategy = gg.GossipGraD(staleness=staleness, wire_dtype="bfloat16")
    trainer, weights, _ = silent(p, strategy, np.random.default_rng(p))
    for _ in range(stages(p) + 1):
        silent_step(trainer)
    found = state(trainer)[0]
    assert 0 < np.abs(found - weights.mean(0)).max() < 2 * BITS * np.abs(weights).max()
    for _ in range(60):  # and it does not drift
        silent_step(trainer)
    found = state(trainer)[0]
    assert spread(found) < 0.01 * spread(weights)
    np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=2e-6)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("p", [2, 5])
def test_half_the_bytes(p, name):
    data = np.zeros((24 * p, 1, 8, 8), np.float32), np.zeros(24 * p, np.int64)

    def sent(wire):
        trainer = trainer_of(p, OPTIMIZERS["momentum"], STRATEGIES[name](wire))
        record = trainer.fit(data, batch_size=4, progress=False).last
        return record["bytes_sent"], record["messages_sent"]

    (whole, messages), (half, as_many) = sent("float32"), sent("bfloat16")
    assert 2 * half == whole > 0 and messages == as_many


@pytest.mark.parametrize("name", [*STRATEGIES, "elastic, server", "server"])
def test_one_rank_rounds_nothing(name):
    def run(wire):
        generator = np.random.default_rng(0)
        trainer = trainer_of(1, OPTIMIZERS["momentum"], {**STRATEGIES, **SERVED}[name](wire))
        for _ in range(4):
            trainer.train_step(*small_batches(generator, 1))
        return trainer.weights_sha256()

    assert run("bfloat16") == run("float32")


@pytest.mark.parametrize("name", ["gossip", "late", "weights", "gradients"])
def test_cutting_changes_no_bit(name):
    seen = set()
    for cut in CUTS.values():
        generator = np.random.default_rng(3)
        options = STRATEGIES[name]("bfloat16").settings() | cut
        del options["strategy"]
        trainer = trainer_of(5, OPTIMIZERS["nesterov"], gg.GossipGraD(**options))
        randomise(trainer, generator)
        for _ in range(5):
            trainer.train_step(*small_batches(generator, 5))
        seen.add(tuple(trainer.weights_sha256()))
    assert len(seen) == 1


@pytest.mark.parametrize("p", [2, 3, 5])
def test_allreduce(p, gradients_of):
    """The sum of rounded gradients, rounded, with the same bits on every rank and however it is cut."""
    generator = np.random.default_rng(p)
    trainers = [
        trainer_of(p, OPTIMIZERS["momentum"], strategy)
        for strategy in (
            gg.AllReduce(wire_dtype="bfloat16"),
            gg.LayerwiseAllReduce(wire_dtype="bfloat16", **CUTS["layers"]),
            gg.LayerwiseAllReduce(wire_dtype="bfloat16", **CUTS["joined"]),
        )
    ]
    for _ in range(3):
        x, y = small_batches(generator, p, sizes=(5, 3, 8))
        share = np.array([len(one) for one in y]) / sum(len(one) for one in y)
        gradients = [gradients_of(flat(trainers[0].weights()), *batch) for batch in zip(x, y, strict=True)]
        wanted = sum(part * np.float64(bfloat16(g)) for part, g in zip(share, gradients, strict=True))
        for trainer in trainers:
            trainer.train_step(x, y)
        found = flat(trainers[0].gradients())
        assert np.array_equal(found, bfloat16(found))
        np.testing.assert_allclose(found, wanted, rtol=BITS, atol=1e-6)
        hashes = {one for trainer in trainers for one in trainer.weights_sha256()}
        assert len(hashes) == 1


@pytest.mark.parametrize("p", [2, 3, 8])
def test_periodic(p):
    """w += mean of the rounded - rounded w."""
    strategy = gg.PeriodicAllReduce(period=1, wire_dtype="bfloat16")
    trainer, weights, momentum = silent(p, strategy, np.random.default_rng(p))
    silent_step(trainer)
    found, velocity = state(trainer)
    for now, before in ((found, weights), (velocity, momentum * 0.5)):
        sent = np.float64(bfloat16(before))
        step = sent.mean(0) - sent
        np.testing.assert_allclose(now, before + step, atol=1.01 * BITS * np.abs(step).max())
        np.testing.assert_allclose(now.mean(0), before.mean(0), atol=BITS * np.abs(step).max())
    for _ in range(3):  # where all are near each other nothing is lost any more
        silent_step(trainer)
    near = state(trainer)[0]
    for _ in range(5):
        silent_step(trainer)
    np.testing.assert_allclose(state(trainer)[0].mean(0), near.mean(0), atol=1e-5)
    assert 0 < np.abs(near - near.mean(0)).max() < BITS * np.abs(near).max()


@pytest.mark.parametrize("alpha", [None, 0.05])
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_elastic(p, alpha):
    """s = alpha*(w - c), rounded; w -= s; c += their sum, rounded; who adds an element of it takes the difference."""
    strategy = gg.ElasticAveraging(period=1, alpha=alpha, wire_dtype="bfloat16")
    trainer, weights, momentum = silent(p, strategy, np.random.default_rng(p))
    c, force = flat(trainer.consensus_weights()), np.float32(alpha or 0.8 / p)
    kept = weights.sum(0) + c
    silent_step(trainer)
    (found, velocity), there = state(trainer), flat(trainer.consensus_weights())
    pull = np.float64(bfloat16(force * np.float32(weights - c)))
    taken = pull.sum(0)
    np.testing.assert_allclose(there - c, taken, rtol=1.01 * BITS, atol=1e-6)
    assert np.abs(there - c - taken).max() > 1e-4  # it is rounded
    ahead = found - (weights - pull)
    assert (np.sum(np.abs(ahead) > 1e-6, 0) <= 1).all()
    np.testing.assert_allclose(ahead.sum(0), taken - (there - c), atol=1e-6)
    np.testing.assert_allclose(velocity, momentum * 0.5, atol=1e-7)
    for _ in range(200):
        silent_step(trainer)
    found, there = state(trainer)[0], flat(trainer.consensus_weights())
    np.testing.assert_allclose(found.sum(0) + there, kept, atol=2e-5)
    if alpha is None:
        np.testing.assert_allclose(found, np.tile(there, (p, 1)), atol=2e-6)  # nearer than bfloat16 can say


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_centres_on_servers(p, name):
    """Without learning: what elastic ranks and the centre sum up to is kept, and a parameter server's centre stays."""
    strategy = SERVED[name]("bfloat16")
    trainer, weights, _ = silent(p, strategy, np.random.default_rng(p))
    workers = strategy.workers(p)
    c = flat(trainer.consensus_weights())
    for step in range(300):
        silent_step(trainer)
        if step % 100 == 3:  # at rest
            found, there = state(trainer)[0][:workers], flat(trainer.consensus_weights())
            if isinstance(strategy, gg.ParameterServer):
                assert np.array_equal(there, c)
            else:
                np.testing.assert_allclose(found.sum(0) + there, weights[:workers].sum(0) + c, atol=1e-5)
    found, there = state(trainer)[0][:workers], flat(trainer.consensus_weights())
    np.testing.assert_allclose(found, np.tile(there, (workers, 1)), atol=1e-5)


@pytest.mark.parametrize("name", SERVED)
def test_what_is_loaded_counts(name):
    """Weights that are loaded between steps are where the ranks begin, whatever the servers knew."""
    strategy = SERVED[name]("bfloat16")
    generator = np.random.default_rng(0)
    trainer, _, _ = silent(3, strategy, generator)
    for _ in range(2):
        for _ in range(3):
            silent_step(trainer)
        weights, _ = randomise(trainer, generator)
        c = flat(trainer.consensus_weights())
        for _ in range(2):
            silent_step(trainer)
        found, there = state(trainer)[0][: strategy.workers(3)], flat(trainer.consensus_weights())
        if isinstance(strategy, gg.ParameterServer):
            np.testing.assert_allclose(found, np.tile(c, (len(found), 1)), atol=2 * BITS)
        else:
            np.testing.assert_allclose(found.sum(0) + there, weights.sum(0) + c, atol=1e-5)


@pytest.mark.parametrize("name", ["gossip", "late", "periodic", "allreduce", "elastic", *SERVED])
def test_small_updates_are_not_lost(name):
    """Each step moves the weights by less than bfloat16 can tell, a hundred steps by several times as much."""
    generator = np.random.default_rng(0)
    make = {**STRATEGIES, **SERVED}[name]
    one, other = (trainer_of(2, gg.SGD(lr=5e-3), make(wire)) for wire in ("float32", "bfloat16"))
    before = flat(one.weights())
    x, y = small_batches(generator, 2, sizes=(20,))
    for _ in range(100):
        one.train_step(x, y)
        other.train_step(x, y)
    moved, also = flat(one.consensus_weights()) - before, flat(other.consensus_weights()) - before
    assert np.linalg.norm(moved - also) < 0.01 * np.linalg.norm(moved)


@pytest.mark.parametrize("name", ["gossip", "late", "allreduce", "periodic", "elastic", *SERVED])
def test_it_learns_as_well(name):
    data = gg.data.synthetic((1, 8, 8), 4, 400, 200, noise=0.5)
    accuracy = []
    for wire in ("float32", "bfloat16"):
        rate = 0.01 if name.startswith("server") else 0.05
        trainer = trainer_of(4, gg.SGD(lr=rate, momentum=0.9), {**STRATEGIES, **SERVED}[name](wire))
        accuracy.append(trainer.fit(*data, epochs=5, batch_size=10, progress=False)["validation.accuracy"][-1])
    assert accuracy[0] > 0.9 and abs(accuracy[0] - accuracy[1]) < 0.03
