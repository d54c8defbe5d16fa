"""Statistics that are not trained, BatchNorm's running mean and variance, in every strategy.

The network's first layer is a BatchNorm1d: what its batches show is known without the network.
tests/c/test_statistics.c has more forms of strategies.
"""

import warnings

import numpy as np
import pytest
from test_groups import STRATEGIES as GROUPS

import gossipgrad as gg

STRATEGIES = GROUPS | {
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(push_sum=True, wire_dtype="bfloat16"),
    "servers": gg.ElasticAveraging(synchronous=False, servers=2, period=2),
}
OPTIMIZERS = {
    "sgd": gg.SGD(0.1, momentum=0.9, weight_decay=0.5, clip_norm=0.1),
    "adamw": gg.Adam(0.01, weight_decay=0.5, decoupled=True),
    "lars": gg.LARS(1.0, weight_decay=0.5, no_adaptation=()),
}
RANKS, FEATURES, STEPS, MOMENTUM = 4, 7, 9, 0.1
AVERAGING = ("allreduce", "overlapped")  # the layerwise and partitioned forms here have a bfloat16 wire
# The mean of the ranks is exactly the running mean of what all of them show.
PRESERVING = [
    *("gossipgrad", "staleness", "weights", "narrow", "gradients", "hierarchical", "periodic"),
    *("alone", *AVERAGING),
]


def net():
    layers = [gg.BatchNorm1d(name="bn1"), gg.Linear(9, name="fc1"), gg.BatchNorm1d(name="bn2"), gg.Tanh()]
    return gg.Sequential([*layers, gg.Linear(3, name="fc2")], input=FEATURES)


def trainer_of(strategy, optimizer="sgd", ranks=RANKS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comm = gg.VirtualCluster(ranks)
        how = {"optimizer": OPTIMIZERS[optimizer], "strategy": STRATEGIES[strategy]}
        return gg.Trainer(net(), seed=3, comm=comm, **how)


def batches(step, ranks=RANKS, size=6):
    """Of every rank: another place and width for each, so that ranks show different things."""
    generator = np.random.default_rng(step)
    x = [generator.standard_normal((size, FEATURES)).astype(np.float32) * (1 + r / 4) + r / 2 for r in range(ranks)]
    return x, [generator.integers(0, 3, size) for _ in range(ranks)]


def shown(step, ranks=RANKS):
    """Mean and variance of every rank's batch, in float64, as they enter the running ones."""
    x = np.stack(batches(step, ranks)[0]).astype(np.float64)
    return x.mean(axis=1), x.var(axis=1, ddof=1)


def near(array, wanted, tolerance=2e-6):
    np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_running_statistics(strategy, optimizer):
    """What they are, whatever optimiser, decay and clipping do to the weights; their moments are 0."""
    mean, variance = np.zeros((RANKS, FEATURES)), np.ones((RANKS, FEATURES))
    with trainer_of(strategy, optimizer) as trainer:
        for step in range(STEPS):
            trainer.train_step(*batches(step))
            means, variances = shown(step)
            mean += MOMENTUM * (means - mean)
            variance += MOMENTUM * (variances - variance)
        trainer.settle()
        own = [trainer.weights(rank) for rank in range(RANKS)]
        for rank in range(RANKS):
            for arena, arrays in trainer.rank_state(rank).items():
                if arena not in ("weight", "outer"):
                    assert not any(array.any() for name, array in arrays.items() if "running" in name), arena
            assert not any("running" in name for name in (*trainer.gradients(rank), *trainer.momentum(rank)))
            # Variances over all ranks' batches, within the range of the batches.
            assert (own[rank]["bn1.running_var"] > 0.3).all() and (own[rank]["bn2.running_var"] > 0).all()
        consensus = trainer.consensus_weights()
        hashes = trainer.weights_sha256()
    if strategy == "alone":
        for rank in range(RANKS):
            near(own[rank]["bn1.running_mean"], mean[rank])
            near(own[rank]["bn1.running_var"], variance[rank])
    if strategy in PRESERVING:
        near(consensus["bn1.running_mean"], mean.mean(axis=0))
        near(consensus["bn1.running_var"], variance.mean(axis=0))
    elif strategy in ("layerwise", "partitioned"):
        near(consensus["bn1.running_mean"], mean.mean(axis=0), 5e-3)  # gradients that were rounded
    else:  # random partners, a centre that follows, shares that are rounded
        assert np.abs(consensus["bn1.running_mean"] - mean.mean(axis=0)).max() < 0.5
    if strategy in (*AVERAGING, "layerwise", "partitioned"):
        assert len(set(hashes)) == 1
    elif strategy != "alone":  # closer to each other than ranks that never meet
        spread = np.std([one["bn1.running_mean"] for one in own], axis=0).max()
        assert spread < (1.1 if strategy == "gradients" else 0.8) * np.std(mean, axis=0).max()


def test_the_mean_counts_samples():
    """AllReduce: by the shares of the batches, as gradients are."""
    with trainer_of("allreduce", ranks=2) as trainer:
        x, y = batches(0, 2)
        x[1], y[1] = x[1][:2], y[1][:2]
        trainer.train_step(x, y)
        wanted = MOMENTUM * (0.75 * x[0].mean(axis=0, dtype=np.float64) + 0.25 * x[1].mean(axis=0, dtype=np.float64))
        near(trainer.weights(1)["bn1.running_mean"], wanted)


@pytest.mark.parametrize("strategy", ["staleness", "overlapped", "server", "push"])
def test_checkpoints_hold_them(strategy, tmp_path):
    path = tmp_path / "c.safetensors"
    with trainer_of(strategy) as trainer:
        for step in range(3):
            trainer.train_step(*batches(step))
        trainer.save(path)
        own = [trainer.weights(rank) for rank in range(RANKS)]
        consensus = trainer.consensus_weights()
    assert (own[0]["bn1.running_mean"] != 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = gg.Trainer.load(path)
    with again as trainer:
        for rank in range(RANKS):
            assert all(np.array_equal(own[rank][name], array) for name, array in trainer.weights(rank).items())
        assert all(np.array_equal(consensus[name], array) for name, array in trainer.consensus_weights().items())
    weights = net()
    weights.load_weights(path)
    assert np.array_equal(weights.weights()["bn2.running_var"], consensus["bn2.running_var"])


def test_distances_leave_them_out():
    """Replicas that differ in nothing but what they have seen are one model."""
    config = net().config()
    for entry in config["layers"]:
        if entry["layer"] != "Input" and entry["layer"] != "Tanh":
            entry["options"] |= {"lr": 0}
    with gg.Trainer(gg.Model.from_config(config), strategy=gg.NoExchange(), comm=gg.VirtualCluster(2)) as trainer:
        trainer.train_step(*batches(0, 2))
        different = [trainer.weights(rank)["bn1.running_mean"] for rank in range(2)]
        assert not np.array_equal(*different)
        assert trainer.consensus_distance() == 0


def test_a_variance_below_zero_counts_as_zero():
    """What averages of rounded numbers may leave of a variance of 0; only NaN is NaN."""
    found = []
    for value in (0.0, -1e-3, np.nan):
        with gg.Trainer(net(), strategy=gg.NoExchange(), comm=gg.VirtualCluster(1)) as trainer:
            weights = trainer.weights()
            weights["bn1.running_var"][:] = value
            trainer.core.exchange.load_arena("weight", weights)
            found.append(trainer.predict(batches(0)[0][0]))
    assert np.isfinite(found[0]).all() and np.array_equal(found[0], found[1])
    assert np.isnan(found[2]).all()
