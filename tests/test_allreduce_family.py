"""Layer-wise and periodic all-reduce in the virtual cluster; test_mpi compares the same bits under MPI."""

import math

import numpy as np
import pytest
from gossip_reference import Gradients, Simulation, assert_steady, randomise, small_batches, small_net, state
from test_strategies import CUTS, OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core

CUTS = {**CUTS, "large buckets, small chunks": {"bucket_bytes": 1 << 20, "chunk_bytes": 64}}


def bits(trainer):
    """Hashes of weights and the bytes of momentum and gradients, of every rank."""
    arrays = [(trainer.momentum(r), trainer.gradients(r)) for r in range(trainer.size)]
    return trainer.weights_sha256(), [[{k: v.tobytes() for k, v in a.items()} for a in both] for both in arrays]


# ---- layer-wise


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", range(1, 6))
def test_layerwise_is_allreduce_bit_for_bit(p, optimizer, cut):
    def run(strategy):
        generator = np.random.default_rng(p)
        trainer = trainer_of(p, OPTIMIZERS[optimizer], strategy)
        seen = []
        for step in range(6):
            losses = trainer.train_step(*small_batches(generator, p, sizes=[(4,), (4, 1, 7)][step % 2]))
            seen.append([list(losses), bits(trainer) if step % 3 == 2 else None])  # settles now and then only
        trainer.close()
        return seen

    assert run(gg.LayerwiseAllReduce(**CUTS[cut])) == run(gg.AllReduce())


def test_layerwise_over_an_epoch_with_ragged_ends():
    generator = np.random.default_rng(0)
    data = generator.standard_normal((53, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 53)
    hashes = []
    for strategy in (gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1, chunk_bytes=128)):
        history = trainer_of(4, OPTIMIZERS["momentum"], strategy).fit(data, epochs=3, batch_size=5, progress=False)
        hashes.append((history.weights_sha256, history["train_loss"]))
    assert hashes[0] == hashes[1]


def test_layerwise_hides_behind_the_backward_pass():
    """On the virtual clock, where a network takes the time of its arithmetic and a slow wire the time of its bytes."""
    layers = [gg.Linear(300), gg.Linear(300), gg.Linear(300), gg.Linear(300)]
    net = gg.Sequential(layers, input=(300,), name="deep")
    data = np.zeros((512, 300), np.float32), np.zeros(512, np.int64)

    def exposed(strategy):
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(4, bandwidth=5e9))
        return trainer.fit(data, batch_size=64, progress=False).last["exposed_communication_seconds"]

    assert exposed(gg.LayerwiseAllReduce(bucket_bytes=1)) < 0.6 * exposed(gg.AllReduce())


def test_layerwise_more_chunks_than_can_be_told_apart():
    net = gg.Sequential([gg.Linear(4000)], input=(200,), name="wide")
    with pytest.raises(ValueError, match="chunk_bytes"):
        trainer_of(2, OPTIMIZERS["momentum"], gg.LayerwiseAllReduce(chunk_bytes=64), net=net)


# ---- periodic


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("period", ["log2", 1, 2, 3])
@pytest.mark.parametrize("p", range(1, 7))
def test_periodic_is_local_sgd_and_a_mean(p, period, optimizer):
    generator = np.random.default_rng(p)
    gradients_of = Gradients(small_net())
    trainer = trainer_of(p, OPTIMIZERS[optimizer], gg.PeriodicAllReduce(period=period))
    simulation = Simulation(*randomise(trainer, generator), OPTIMIZERS[optimizer], None, trainer.seed)
    every = max(1, math.ceil(math.log2(p))) if period == "log2" else period
    for step in range(7):
        x, y = small_batches(generator, p, sizes=(5, 3, 8))  # uneven batches do not weigh
        gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
        trainer.train_step(x, y)
        simulation.step(gradients)
        averages = (step + 1) % every == 0
        if averages:
            simulation.w[:], simulation.v[:] = simulation.w.mean(0), simulation.v.mean(0)
        weights, momentum = state(trainer)
        np.testing.assert_allclose(weights, simulation.w, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(momentum, simulation.v, rtol=2e-5, atol=2e-5)
        hashes, kept = trainer.weights_sha256(), {m.tobytes() for m in momentum}
        if averages or p == 1:
            assert len(set(hashes)) == 1 and len(kept) == 1
        else:
            assert len(set(hashes)) == p
    trainer.close()


def test_periods_run_on_over_epochs_and_checkpoints(tmp_path):
    """Three steps an epoch, a mean every fourth: saved in the middle of a period."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((36, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 36)

    def fit(epochs, **options):
        trainer = trainer_of(3, OPTIMIZERS["momentum"], gg.PeriodicAllReduce(period=4))
        return trainer, trainer.fit(data, epochs=epochs, batch_size=4, progress=False, **options)

    path = tmp_path / "middle.safetensors"
    half, _ = fit(1)
    assert len(set(half.weights_sha256())) == 3
    half.save(path)
    _, resumed = fit(4, resume=path)
    _, whole = fit(4)
    assert resumed.weights_sha256 == whole.weights_sha256 and len(set(whole.weights_sha256)) == 1
    assert resumed["consensus_distance"] == whole["consensus_distance"]
    averaged = [record["bytes_sent"] > 0 for record in whole.epochs]
    assert averaged == [False, True, True, True]  # after steps 3, 7 and 11


# ---- both

STEADY = [gg.LayerwiseAllReduce(chunk_bytes=64), gg.PeriodicAllReduce(period=3), gg.AllReduce(wire_dtype="bfloat16")]
STEADY += [gg.GossipGraD(wire_dtype="bfloat16"), gg.GossipGraD(wire_dtype="bfloat16", exchange="gradients")]
STEADY += [gg.LayerwiseAllReduce(wire_dtype="bfloat16"), gg.PeriodicAllReduce(period=3, wire_dtype="bfloat16")]


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", STEADY, ids=repr)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(strategy):
    assert_steady(lambda one: trainer_of(3, OPTIMIZERS["momentum"], one), strategy, 3)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_traffic_is_that_of_allreduce(p):
    data = np.zeros((24 * p, 1, 8, 8), np.float32), np.zeros(24 * p, np.int64)

    def sent(strategy):
        return (
            trainer_of(p, OPTIMIZERS["momentum"], strategy).fit(data, batch_size=4, progress=False).last["bytes_sent"]
        )

    assert sent(gg.LayerwiseAllReduce(bucket_bytes=1)) == sent(gg.AllReduce())
    assert sent(gg.PeriodicAllReduce(period=3)) == sent(gg.AllReduce()) * 2 // 3  # weights and momentum, 2 of 6 steps


def test_the_core_checks_too():
    team = _core.Team("virtual", size=2)
    optimizer = gg.SGD(lr=0.1).options()
    for options, word in [
        ({"name": "layerwise-allreduce", "chunk_bytes": 0}, "chunk_bytes"),
        ({"name": "periodic-allreduce", "period": 0}, "period"),
        ({"name": "periodic-allreduce", "period": "log"}, "log2"),
    ]:
        with pytest.raises((TypeError, ValueError), match=word):
            _core.Trainer(small_net().graph, team, loss="cross_entropy", optimizer=optimizer, strategy=options)
