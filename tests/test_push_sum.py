"""Push-sum: exact means although ranks receive more, or less, than they send."""

import numpy as np
import pytest
import test_adam
from conftest import ROOT
from gossip_reference import Gradients, assert_steady, randomise, small_batches, small_net, state
from test_strategies import (
    CUTS,
    OPTIMIZERS,
    compare_with_simulation,
    silent_net,
    silent_step,
    silent_trainer,
    trainer_of,
)

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.strategies import TOPOLOGIES, core_topology

pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")


def irregular(p):
    """All send to rank 0, rank 0 around the ring, all to a neighbour but the last, one alone."""
    star = [-1] + [0] * (p - 1)
    around = [[(step + 1) % p] + [-1] * (p - 1) for step in range(p)]
    chain = [min(r + 1, p - 1) for r in range(p)]
    return [star, *around, chain, [p - 1] + [1 % p] * (p - 1)]


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


@pytest.mark.parametrize("exchange", ["weights+momentum", "weights"])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 6, 7, 8])
def test_push_sum_is_what_its_contract_says(p, staleness, exchange, gradients_of):
    for i, (optimizer, cut) in enumerate(zip(OPTIMIZERS.values(), CUTS.values(), strict=True)):
        topology = irregular(p) if i else "dissemination"
        strategy = gg.GossipGraD(topology=topology, staleness=staleness, exchange=exchange, push_sum=True, **cut)
        compare_with_simulation(p, strategy, optimizer, gradients_of, legs=(5, 4))
    strategy = gg.GossipGraD(topology=irregular(p), staleness=staleness, exchange=exchange, push_sum=True)
    test_adam.compare(p, strategy, test_adam.OPTIMIZERS["adamw"], gradients_of)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_where_all_receive_as_much_as_they_send_it_changes_nothing(topology, gradients_of):
    def weights(push_sum, staleness):
        generator = np.random.default_rng(0)
        strategy = gg.GossipGraD(topology=topology, push_sum=push_sum, staleness=staleness)
        trainer = trainer_of(5, OPTIMIZERS["nesterov"], strategy)
        for _ in range(7):
            trainer.train_step(*small_batches(generator, 5))
        return state(trainer)[0]

    for staleness in (0, 1):
        np.testing.assert_allclose(weights(True, staleness), weights(False, staleness), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_all_ranks_find_the_exact_mean(p, staleness):
    """Without training; at every step the sum of the scalars is p and the mean of scalar * weights stays."""
    table = irregular(p)
    trainer, weights, momentum = silent_trainer(
        p, np.random.default_rng(p), topology=table, push_sum=True, staleness=staleness, chunk_bytes=256
    )
    scalars = np.ones(p)
    for step in range(20 * (p + 3)):
        scalars = np.array([_core.push_sum_scalar(core_topology(table), p, step, r) for r in range(p)])
        assert scalars.sum() == pytest.approx(p) and scalars.min() > 0
        if step % 5 == 0:
            np.testing.assert_allclose(scalars @ state(trainer)[0] / p, weights.mean(0), atol=2e-6)
        silent_step(trainer)
    assert p == 1 or scalars.max() - scalars.min() > 0.1, "the table is irregular"
    found, velocity = state(trainer)
    np.testing.assert_allclose(found, np.tile(weights.mean(0), (p, 1)), atol=5e-6)
    assert np.abs(velocity).max() < 1e-6


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_rounding_wire_keeps_the_mean(p, staleness):
    options = {"push_sum": True, "staleness": staleness, "wire_dtype": "bfloat16", "chunk_bytes": 256}
    strategy = gg.GossipGraD(topology=irregular(p), **options)
    trainer = trainer_of(p, gg.SGD(lr=0.0, momentum=0.5), strategy, net=silent_net())
    weights, _ = randomise(trainer, np.random.default_rng(p))
    for step in range(10 * (p + 3)):
        if step % 5 == 0:
            scalars = [_core.push_sum_scalar(core_topology(irregular(p)), p, step, r) for r in range(p)]
            np.testing.assert_allclose(np.array(scalars) @ state(trainer)[0] / p, weights.mean(0), atol=5e-6)
        silent_step(trainer)
    # A rank that has given away nearly all of its scalar keeps what rounding left, many times over.
    assert np.abs(state(trainer)[0] - weights.mean(0)).max() < 0.1


def test_two_cycles_by_hand():
    """Rank 1 sends to rank 0 and then rank 0 to rank 1."""
    table = [[-1, 0], [1, -1]]
    assert [_core.push_sum_scalar(core_topology(table), 2, t, 0) for t in range(3)] == [1, 1.5, 0.75]
    trainer, weights, _ = silent_trainer(2, np.random.default_rng(0), topology=table, push_sum=True)
    silent_step(trainer)
    first = (weights[0] + 0.5 * weights[1]) / 1.5
    np.testing.assert_allclose(state(trainer)[0], [first, weights[1]], atol=1e-6)
    silent_step(trainer)
    np.testing.assert_allclose(state(trainer)[0], [first, (0.75 * first + 0.5 * weights[1]) / 1.25], atol=1e-6)


def test_resuming_equals_never_having_stopped(tmp_path):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((36, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 36)

    def fit(epochs, **options):
        strategy = gg.GossipGraD(topology=irregular(3), push_sum=True, staleness=1)
        trainer = trainer_of(3, OPTIMIZERS["momentum"], strategy)
        return trainer, trainer.fit(data, epochs=epochs, batch_size=5, progress=False, **options)

    half, _ = fit(1)
    half.save(tmp_path / "c.safetensors")
    _, resumed = fit(3, resume=tmp_path / "c.safetensors")
    # Settling at the end of an epoch is part of training: epochs, not legs, are compared.
    assert resumed.weights_sha256 == fit(3)[1].weights_sha256
    half.core.exchange.step = 0  # an earlier step again: the scalars are found again
    half.train_step(*small_batches(generator, 3))


def test_another_strategy_in_mid_run_begins_with_scalars_of_1():
    """Other buckets do not."""

    def options(table, **others):
        return gg.GossipGraD(topology=table, push_sum=True, exchange="weights", **others).options()

    trainer, weights, _ = silent_trainer(3, np.random.default_rng(0), topology=irregular(3), push_sum=True)
    for _ in range(4):
        silent_step(trainer)
    mean = trainer.consensus_weights()
    trainer.core.reshape(strategy=options(irregular(3), chunk_bytes=256))
    assert trainer.core.exchange.push_sum_since == 0
    for key, array in trainer.consensus_weights().items():
        np.testing.assert_allclose(array, mean[key], atol=1e-6)
    trainer.core.reshape(strategy=options([[1, 0, 0], [1, 2, 0]]))
    assert trainer.core.exchange.push_sum_since == 4
    own = [trainer.weights(rank) for rank in range(3)]
    for key, array in trainer.consensus_weights().items():
        np.testing.assert_allclose(array, np.mean([one[key] for one in own], axis=0), atol=1e-6)
    with pytest.raises(ValueError, match="push_sum_since: -1; must be at least 0"):
        trainer.core.exchange.push_sum_since = -1


@pytest.mark.core(1)
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_warm_step_allocates_nothing_and_nothing_is_left(staleness):
    push_sum = gg.GossipGraD(topology=irregular(5), push_sum=True, staleness=staleness)
    assert_steady(lambda one: trainer_of(5, OPTIMIZERS["momentum"], one), push_sum, 5, steps=9)


def test_traffic_is_one_message_a_chunk_and_sender():
    data = np.zeros((24, 1, 8, 8), np.float32), np.zeros(24, np.int64)
    table = [[-1, 0, 0, 0], [1, 2, 3, 0], [3, 3, 3, -1]]  # 3, 4 and 3 senders

    def sent(**options):
        strategy = gg.GossipGraD(**options)
        record = trainer_of(4, OPTIMIZERS["momentum"], strategy).fit(data, batch_size=1, progress=False).last
        return record["bytes_sent"], record["messages_sent"]

    regular = sent()
    assert sent(topology=table, push_sum=True) == (regular[0] * 10 // 12, regular[1] * 10 // 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exchange": "gradients"}, "exchange='gradients': allowed: 'auto', 'weights.momentum', 'weights'"),
    ],
)
def test_what_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        gg.GossipGraD(push_sum=True, **options)
    core = {"name": "gossipgrad", "push_sum": True, **options}
    optimizer = OPTIMIZERS["plain"].options()
    with pytest.raises(ValueError, match="push_sum: True with"):
        _core.Trainer(small_net().graph, _core.Team("single"), loss="cross_entropy", optimizer=optimizer, strategy=core)


@pytest.mark.parametrize("table", [[[1, 0, -1]], [[1, 1, 1]]])
def test_all_must_hear_of_all(table):
    with pytest.raises(ValueError, match="some ranks never hear of others"):
        trainer_of(3, OPTIMIZERS["plain"], gg.GossipGraD(topology=table, push_sum=True))


@pytest.mark.full
def test_the_bits_of_the_virtual_cluster(mpirun):
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import gossipgrad as gg\n"
        "import test_mpi\n"
        "data, _ = gg.data.synthetic((2, 26, 26), train=90, test=1, seed=1)\n"
        "def run(comm, **options):\n"
        f"    strategy = gg.GossipGraD(topology={irregular(3)}, push_sum=True, **options)\n"
        "    trainer = gg.Trainer(test_mpi.net(), comm=comm, strategy=strategy)\n"
        "    return trainer.fit(data, batch_size=7, progress=False).weights_sha256\n"
        "for options in ({}, {'staleness': 1}, {'staleness': 1, 'chunk_bytes': 6000, 'bucket_bytes': 1}):\n"
        "    found = run(None, **options)\n"
        "    assert found == run(gg.VirtualCluster(3), **options) and len(set(found)) == 3\n"
    )
    mpirun(3, text)
