"""GossipGraD(slices=m): in step t only slice t mod m of every bucket is exchanged."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gossip_reference import (
    LANE,
    Gradients,
    Simulation,
    flat,
    randomise,
    slices_of,
    small_batches,
    small_net,
    state,
    unflat,
)
from test_push_sum import irregular
from test_strategies import CUTS, OPTIMIZERS, TOPOLOGIES, silent_net, silent_step, silent_trainer, stages, trainer_of

import gossipgrad as gg

MANY = 1000  # more than any bucket of these networks has lanes


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def compare(p, strategy, optimizer, gradients_of, legs=(5, 4), tolerance=2e-5):
    """Runs the core and a float64 simulation; between the legs all is settled and compared."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, optimizer, strategy)
    start = randomise(trainer, generator)
    simulation = Simulation(*start, optimizer, strategy, trainer.seed, trainer.weights(0))
    for steps in legs:
        for _ in range(steps):
            x, y = small_batches(generator, p, sizes=(5, 3, 8))
            gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
            trainer.train_step(x, y)
            simulation.step(gradients)
        simulation.settle()
        weights, momentum = state(trainer)
        np.testing.assert_allclose(weights, simulation.w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(momentum, simulation.v, rtol=tolerance, atol=tolerance)
    trainer.close()


@pytest.mark.parametrize("exchange", ["weights+momentum", "weights", "slices"])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_slices_are_what_the_contract_says(p, staleness, exchange, gradients_of):
    for i, (slices, optimizer) in enumerate(zip((2, 3, 7, MANY), [*OPTIMIZERS.values()] * 2, strict=False)):
        cut = list(CUTS.values())[(i + p) % 3]
        topology = TOPOLOGIES[i % 2]
        strategy = gg.GossipGraD(
            topology=topology, staleness=staleness, exchange=exchange, slices=slices, rotate=i % 2 == 0, **cut
        )
        compare(p, strategy, optimizer, gradients_of)


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_slices_have_push_sum_scalars_of_their_own(p, staleness, wire_dtype, gradients_of):
    for i, (slices, optimizer) in enumerate(zip((2, 5, MANY), OPTIMIZERS.values(), strict=True)):
        strategy = gg.GossipGraD(
            topology=irregular(p), push_sum=True, slices=slices, staleness=staleness, **list(CUTS.values())[i]
        )
        compare(p, strategy, optimizer, gradients_of, legs=(7, 6))
    table = irregular(p)
    trainer, weights, _ = silent_trainer(
        p, np.random.default_rng(p), topology=table, push_sum=True, slices=3, staleness=staleness, wire_dtype=wire_dtype
    )
    for _ in range(3 * 20 * (p + 3)):
        silent_step(trainer)
    found, _ = state(trainer)
    np.testing.assert_allclose(found, np.tile(weights.mean(0), (p, 1)), atol=1e-5 if wire_dtype == "float32" else 0.02)


@pytest.mark.parametrize("staleness", [0, 1])
def test_adams_moments_travel_with_the_weights(staleness, gradients_of):
    optimizer = gg.Adam(lr=0.01, beta1=0.5)
    strategy = gg.GossipGraD(exchange="weights+momentum", slices=3, staleness=staleness, bucket_bytes=300)
    compare(4, strategy, optimizer, gradients_of, tolerance=1e-4)


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("slices", [2, 3, 5])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_consensus_after_slices_times_a_cycle(p, slices, staleness):
    """Without gradients every number becomes the mean of all ranks in m log2 p steps, and not before."""
    trainer, weights, momentum = silent_trainer(p, np.random.default_rng(p), slices=slices, staleness=staleness)
    steps = slices * stages(p)
    for step in range(steps):
        assert step == 0 or trainer.consensus_distance() > 0.05
        silent_step(trainer)
    found, velocity = state(trainer)
    np.testing.assert_allclose(found, np.tile(weights.mean(0), (p, 1)), atol=1e-6)
    np.testing.assert_allclose(velocity, np.tile(momentum.mean(0) * 0.5**steps, (p, 1)), atol=1e-6)
    assert trainer.consensus_distance() < 1e-6


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("topology", ["dissemination", "cube", "ring", "exponential", "random", [[1, 2, 0, -1, -1]]])
def test_the_mean_is_preserved(topology, wire_dtype):
    """By whatever was sent, and where some ranks have no partner; bfloat16's rounding takes nothing from it."""
    p = 5
    for staleness, slices in itertools.product((0, 1), (2, 3)):
        options = {"topology": topology, "staleness": staleness, "slices": slices, "wire_dtype": wire_dtype}
        trainer, weights, momentum = silent_trainer(p, np.random.default_rng(7), **options)
        for _ in range(9):
            silent_step(trainer)
        found, velocity = state(trainer)
        np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=2e-6)
        np.testing.assert_allclose(velocity.mean(0), momentum.mean(0) * 0.5**9, atol=1e-6)
        assert np.abs(found - weights).max() > 0.1, "and something was mixed"


def test_a_step_moves_its_slice_alone():
    for bucket_bytes, slices in ((1, 2), (1 << 20, 3), (1 << 20, MANY)):
        trainer, before, _ = silent_trainer(4, np.random.default_rng(1), slices=slices, bucket_bytes=bucket_bytes)
        lies_in = slices_of(trainer.weights(0), bucket_bytes, slices)
        for step in range(4):
            silent_step(trainer)
            after, _ = state(trainer)
            moved = (after != before).any(0)
            assert (moved == (lies_in == step % slices)).all()
            before = after


def test_slices_send_that_many_times_fewer_bytes():
    x, y = np.zeros((64, 30), np.float32), np.zeros(64, np.int64)
    count = 30 * 40 + 40 * 5 + (-200 % LANE)
    for slices in (1, 2, 4, 8):
        strategy = gg.GossipGraD(exchange="weights", slices=slices)
        trainer = trainer_of(4, OPTIMIZERS["plain"], strategy, silent_net())
        record = trainer.fit((x, y), epochs=1, batch_size=2, progress=False).last  # 8 steps
        assert record["bytes_sent"] == 4 * 8 * count * 4 // slices
        assert trainer.history.schedule["diffusion_steps"] == 2 * slices


@pytest.mark.parametrize("slices", [1 << 20, (1 << 30) + 1, (1 << 31) - 1])
def test_more_slices_than_can_be_numbered(slices):
    """Times the number of buckets they are 4 * (2^30 + 1), which is 4 to an int."""
    strategy = gg.GossipGraD(exchange="weights", slices=slices, bucket_bytes=1)
    net = gg.Sequential([gg.Linear(5) for _ in range(4)], (3,))
    with pytest.raises(ValueError, match=rf"slices: {slices}; with 4 buckets allowed are 1 to 209715"):
        gg.Trainer(net, loss="cross_entropy", strategy=strategy, comm=gg.VirtualCluster(2))


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
def test_chunks_change_no_bit(staleness, wire_dtype):
    seen = set()
    for chunk_bytes in (64, 192, 1 << 20):
        generator = np.random.default_rng(3)
        strategy = gg.GossipGraD(
            slices=3, staleness=staleness, wire_dtype=wire_dtype, bucket_bytes=900, chunk_bytes=chunk_bytes
        )
        trainer = trainer_of(5, OPTIMIZERS["nesterov"], strategy)
        randomise(trainer, generator)
        for _ in range(7):
            trainer.train_step(*small_batches(generator, 5))
        seen.add(tuple(trainer.weights_sha256()))
    assert len(seen) == 1


@pytest.mark.parametrize("staleness", [0, 1])
def test_nodes_gossip_in_slices(staleness):
    """One slice of the weights between two nodes of two ranks; inside a node all ranks have the same bits."""
    strategy = gg.GossipGraD(hierarchical=True, ranks_per_node=2, slices=3, staleness=staleness)
    trainer = trainer_of(4, OPTIMIZERS["momentum"], strategy)
    generator = np.random.default_rng(0)
    start = [generator.standard_normal(flat(trainer.weights(0)).size).astype(np.float32) for _ in range(2)]
    like = trainer.weights(0)
    for rank in range(4):
        trainer.core.exchange.load_arena("weight", unflat(start[rank // 2], like), rank)
    for _ in range(7):
        trainer.train_step(*small_batches(generator, 4))
    hashes = trainer.weights_sha256()
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resume_between_slices_has_the_same_bits(staleness, tmp_path):
    data = np.random.default_rng(0)
    x, y = data.standard_normal((96, 1, 8, 8)).astype(np.float32), data.integers(0, 4, 96)
    strategy = gg.GossipGraD(slices=4, staleness=staleness, bucket_bytes=300)

    def made():
        return trainer_of(4, OPTIMIZERS["momentum"], strategy)

    whole = made()
    whole.fit((x, y), epochs=4, batch_size=8, progress=False)
    first = made()  # 3 steps an epoch: the slices go on where they were
    first.fit((x, y), epochs=3, batch_size=8, progress=False)
    first.save(tmp_path / "part")
    rest = made()
    rest.fit((x, y), epochs=4, batch_size=8, progress=False, resume=tmp_path / "part")
    assert rest.weights_sha256() == whole.weights_sha256()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slices": 0}, ["slices=0", "at least 1"]),
        ({"slices": 2.5}, ["slices=2.5"]),
        ({"slices": 4, "exchange": "gradients"}, ["slices=4", "exchange='gradients'", "'weights+momentum'"]),
        ({"exchange": "slices", "slices": 1}, ["slices=1", "exchange='weights'"]),
    ],
)
def test_what_slices_do_not_go_with(options, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        gg.GossipGraD(**options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_slices_or_compression():
    with pytest.raises(ValueError, match=r"slices=4 with compression='adacomp'.*allowed: None"):
        trainer_of(2, OPTIMIZERS["plain"], gg.GossipGraD(slices=4), compression=gg.AdaComp())
    with pytest.raises(ValueError, match=r"exchange='slices' with compression='adacomp'"):
        trainer_of(2, OPTIMIZERS["plain"], gg.GossipGraD(exchange="slices"), compression=gg.AdaComp())


def test_too_many_slices_for_the_tags():
    net = gg.Sequential([gg.Linear(1000, bias=False)], input=(1000,), name="wide")
    with pytest.raises(ValueError, match=r"slices: 50000 slices of 1 buckets travel as 50000 chunks.*fewer slices"):
        trainer_of(2, OPTIMIZERS["plain"], gg.GossipGraD(slices=50000), net=net)


def test_spellings():
    assert gg.GossipGraD(exchange="slices").slices == 8
    assert gg.GossipGraD(exchange="slices", slices=16).options()["exchange"] == "weights"
    assert gg.GossipGraD(slices=16).slices == 16 and gg.GossipGraD().slices is None
    trainer = trainer_of(2, OPTIMIZERS["plain"], gg.GossipGraD(exchange="slices"))
    assert trainer.exchange == "weights"
