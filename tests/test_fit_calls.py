"""Calls that are fit's alone while it runs, and callbacks in the middle of an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from test_callbacks import trainer

import gossipgrad as gg


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 96, 30, noise=0.3)


class At(gg.Callback):
    """Does something in one of the methods, and notes what has been refused."""

    def __init__(self, method, does):
        self.does, self.said = does, None
        setattr(self, method, self._try)

    def _try(self, trainer, *_):
        with pytest.raises(RuntimeError) as error:
            self.does(trainer)
        self.said = str(error.value)


@pytest.mark.parametrize("method", ["on_fit_begin", "on_epoch_begin", "on_epoch_end", "on_fit_end"])
def test_train_step_within_fit_is_refused(data, method):
    """It would make steps that the epoch, the schedule and checkpoints do not count."""
    x, y = np.zeros((4, 6), np.float32), np.zeros(4, np.int32)
    alone, t = At(method, lambda t: t.train_step([x] * 2, [y] * 2)), trainer()
    t.fit(data[0], epochs=2, batch_size=8, callbacks=[alone], progress=False)
    assert (
        "train_step was called within fit, by a callback or another thread; allowed: after fit has returned"
        in alone.said
    )
    assert t.step == 12 and len(t.train_step([x] * 2, [y] * 2)) == 2


def test_train_step_between_two_steps_of_fit_is_refused(data):
    class Wrong(gg.Callback):
        every = 3

        def on_step(self, trainer, step):
            trainer.train_step([np.zeros((4, 6), np.float32)] * 2, [np.zeros(4, np.int32)] * 2)

    with pytest.raises(RuntimeError, match="train_step was called within fit"):
        trainer().fit(data[0], batch_size=8, callbacks=[Wrong()], progress=False)


def test_the_batch_size_cannot_be_set_when_fit_ends(data):
    late, t = At("on_fit_end", lambda t: t.set_batch_size(4)), trainer()
    history = t.fit(data[0], batch_size=8, callbacks=[late], progress=False)
    for name in ("on_fit_begin", "on_epoch_begin", "on_step", "on_shrink", "on_epoch_end"):
        assert name in late.said
    assert t.batch_size == 8 and not history.settings.get("batch_size_changes")


class Steps(gg.Callback):
    """The steps after which it is called."""

    def __init__(self):
        self.steps = []

    def on_step(self, trainer, step):
        assert step == trainer.step
        self.steps.append(step)


def test_on_step_without_every_is_an_error(data):
    with pytest.raises(ValueError, match=r"Steps.on_step is never called: Steps.every is not set; .*every = 100"):
        trainer().fit(data[0], batch_size=8, callbacks=[Steps()], progress=False)

    class Later(Steps):
        def on_fit_begin(self, trainer):
            self.every = 4

    later = Later()
    trainer().fit(data[0], batch_size=8, callbacks=[later], progress=False)
    assert later.steps == [4]
    never = Steps()
    never.every = 0
    trainer().fit(data[0], batch_size=8, callbacks=[never], progress=False)
    assert not never.steps


@pytest.mark.parametrize("every", [2, np.int32(2), np.int64(2)])
def test_every_is_any_integer(data, every):
    seen = Steps()
    seen.every = every
    trainer().fit(data[0], batch_size=8, callbacks=[seen], progress=False)
    assert seen.steps[:2] == [2, 4]


ADACOMP = gg.AdaComp(bin_size=10, dense_below=10)
# With whether a look within an epoch changes the bits: docs/training.md says so.
LOOKED_AT = [
    (gg.GossipGraD(), None, False),
    (gg.GossipGraD(slices=3), None, False),
    (gg.GossipGraD(), ADACOMP, False),
    (gg.GossipGraD(exchange="gradients"), None, False),
    (gg.GossipGraD(push_sum=True, topology="ring"), None, False),
    (gg.GossipGraD(shuffle_samples=True), None, False),
    (gg.GossipGraD(staleness=1), None, True),
    (gg.AllReduce(), ADACOMP, False),
    (gg.LayerwiseAllReduce(), None, False),
    (gg.PeriodicAllReduce(period=3), ADACOMP, False),
    (gg.OverlappedAveraging(), None, False),
    (gg.ElasticAveraging(period=2), ADACOMP, False),
    (gg.ElasticAveraging(period=2, synchronous=False), None, True),
    (gg.ParameterServer(), None, True),
    (gg.PullGossip(), None, True),
    (gg.PushGossip(), None, True),
    (gg.DiLoCo(period=4), None, False),
    (gg.DiLoCo(period=4, fragments=2), None, True),
    (gg.NoLoCo(period=4), None, False),
    (gg.NoLoCo(period=4, delay=1), None, True),
    (gg.NoExchange(), None, False),
]


@pytest.mark.parametrize(("strategy", "compression", "changes"), LOOKED_AT, ids=lambda one: str(one)[:60])
def test_looks_within_an_epoch(strategy, compression, changes, data, tmp_path):
    """They change the bits of strategies that would have received later what is in flight; those behind it do not."""

    class Pass(gg.Callback):
        every = 2

        def on_step(self, trainer, step):
            pass

    def trained(*callbacks):
        net = gg.Sequential([gg.Linear(7), gg.ReLU(), gg.Linear(3)], input=(6,))
        comm = gg.VirtualCluster(4, latency=1e-6, bandwidth=1e9)
        one = gg.Trainer(net, strategy=strategy, compression=compression, comm=comm, seed=3)
        return one.fit(data[0], epochs=2, batch_size=4, progress=False, callbacks=callbacks).weights_sha256

    unseen, passed = trained(), trained(Pass())
    assert (passed != unseen) == changes
    assert trained(gg.Checkpoint(tmp_path / "c", every=2)) == passed
    assert trained(gg.Checkpoint(tmp_path / "d")) == unseen
