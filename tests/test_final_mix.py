"""fit(final_mix=True): at the end all replicas are the consensus model."""

from __future__ import annotations

import numpy as np
import pytest
from gossip_reference import flat
from test_strategies import trainer_of

import gossipgrad as gg

P = 3
STRATEGIES = {
    "gossip": gg.GossipGraD(),
    "slices, late": gg.GossipGraD(slices=4, staleness=1),
    "nodes": gg.GossipGraD(hierarchical=True, ranks_per_node=1, slices=2),
    "push-sum": gg.GossipGraD(push_sum=True),
    "periodic": gg.PeriodicAllReduce(period=100),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(),
    "elastic": gg.ElasticAveraging(),
    "server": gg.ParameterServer(servers=1, dedicated=True),
    "none": gg.NoExchange(),
}


def net():
    """With statistics, which are averaged as well."""
    return gg.Sequential([gg.Conv2d(3, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(4)], input=(1, 6, 6))


def fit(trainer, epochs=1, **options):
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((60, 1, 6, 6)).astype(np.float32), generator.integers(0, 4, 60)
    return trainer.fit((x, y), epochs=epochs, batch_size=5, progress=False, **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_all_replicas_are_the_consensus_model(name):
    apart, mixed = (trainer_of(P, gg.SGD(lr=0.1, momentum=0.9), STRATEGIES[name], net()) for _ in range(2))
    fit(apart)
    assert len(set(apart.weights_sha256())) > 1
    seen = []

    class AtTheEnd(gg.callbacks.Callback):
        def on_fit_end(self, trainer):
            seen.append(trainer.weights_sha256())

    history = fit(mixed, final_mix=True, callbacks=AtTheEnd())
    assert len(set(mixed.weights_sha256())) == 1
    assert seen == [history.weights_sha256] == [mixed.weights_sha256()]
    # The model is the one that was evaluated, and momentum is still each rank's.
    expected = apart.consensus_weights()
    np.testing.assert_allclose(flat(mixed.weights(0)), flat(expected), rtol=1e-6, atol=1e-7)
    for rank in range(P):
        for key, momentum in apart.momentum(rank).items():
            np.testing.assert_array_equal(momentum, mixed.momentum(rank)[key])
    fit(mixed)  # and it goes on


@pytest.mark.parametrize("name", ["gossip", "elastic", "none"])
def test_weights_that_are_restored_are_mixed_as_well(name):
    """The best epoch is the first one, whose consensus is what a training of one epoch ends with."""
    best, stopped = (trainer_of(P, gg.SGD(lr=0.1), STRATEGIES[name], net()) for _ in range(2))
    fit(best, final_mix=True)
    stopping = gg.callbacks.EarlyStopping("learning_rate", mode="min", patience=2)
    history = fit(stopped, 3, final_mix=True, callbacks=[Raise(), stopping])
    assert stopping.best_epoch == 1 and len(set(stopped.weights_sha256())) == 1
    assert history.weights_sha256 == stopped.weights_sha256() == best.weights_sha256()


class Raise(gg.callbacks.Callback):
    def on_epoch_end(self, trainer, record):
        trainer.learning_rate *= 2


def test_nothing_changes_where_replicas_are_equal():
    """Not even the last bit: the mean of three equal numbers may be another one."""
    plain, mixed = (trainer_of(P, gg.SGD(lr=0.1), gg.AllReduce(), net()) for _ in range(2))
    fit(plain)
    fit(mixed, final_mix=True)
    assert plain.weights_sha256() == mixed.weights_sha256()


def test_a_resume_goes_on_from_what_was_not_mixed(tmp_path):
    whole, first, rest = (trainer_of(P, gg.SGD(lr=0.1, momentum=0.9), gg.GossipGraD(slices=4), net()) for _ in range(3))
    fit(whole, 2, final_mix=True)
    fit(first, 1, final_mix=True, callbacks=gg.callbacks.Checkpoint(tmp_path / "c"))
    fit(rest, 2, final_mix=True, resume=tmp_path / "c")
    assert rest.weights_sha256() == whole.weights_sha256()


@pytest.mark.parametrize("strategy", [gg.PeriodicAllReduce(period=3), gg.ElasticAveraging(period=3)], ids=repr)
def test_strategies_that_compress_go_on_from_it(strategy):
    """What a rank has moved is counted from the weights that it was given, which then stay at rate 0."""
    optimizer = gg.SGD(lr=0.3, schedule=gg.schedules.StepDecay(every=4, gamma=1e-12))
    trainer = trainer_of(P, optimizer, strategy, net(), compression=gg.AdaComp(dense_below=0, warmup=0))
    fit(trainer, final_mix=True)  # 4 steps, an exchange before the last one
    before = trainer.weights(0)
    fit(trainer)
    for rank in range(P):
        for key in (key for key in before if "running" not in key):
            np.testing.assert_allclose(trainer.weights(rank)[key], before[key], atol=1e-4)


def test_it_is_true_or_false():
    with pytest.raises(TypeError, match="final_mix='yes'"):
        fit(trainer_of(1, gg.SGD(lr=0.1), gg.NoExchange(), net()), final_mix="yes")
