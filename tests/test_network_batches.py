"""Batches of all sizes: prediction, evaluation and epochs by them, of floats and of bytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import reference as ref
from network_cases import backends, batch_for, branches, double, graphs, near, trainer_of

import gossipgrad as gg
from gossipgrad import _core

pytestmark = pytest.mark.usefixtures("no_forced_backend")


@backends
@graphs
def test_predict_and_evaluate_agree(rng, backend, make):
    net = make()
    trainer = trainer_of(net, backend)
    x, y = batch_for(net, rng, 37)
    wanted = trainer.predict(x, batch_size=37)
    assert wanted.shape == (37, *net.output_shape)
    reference = ref.Network(net.config()).forward(double(trainer.weights()), x.astype(np.float64))[-1]
    near("prediction", wanted, reference, 4e-6)
    total, right, _ = ref.cross_entropy(reference, y)
    for batch in (1, 5, 16, 37, 100):
        near(f"batch {batch}", trainer.predict(x, batch_size=batch), wanted, 2e-6)
        result = trainer.evaluate((x, y), batch_size=batch)
        assert result["loss"] == pytest.approx(total / 37, rel=2e-6)
        assert result["accuracy"] == right / 37


@backends
def test_uint8_samples(rng, backend):
    """Scaled and laid out by the core as they are read."""
    net = branches()
    trainer = trainer_of(net, backend)
    pixels, (_, y) = rng.integers(0, 256, (21, 3, 9, 8)).astype(np.uint8), batch_for(net, rng, 21)
    plain = pixels.astype(np.float32) * np.float32(1 / 255) - np.float32(0.5)
    wanted = trainer.evaluate((plain, y), batch_size=8)
    found = trainer.core.evaluate(_core.Dataset(pixels, y, 1 / 255, -0.5), 8)[0]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    assert found["accuracy"] == wanted["accuracy"]


@backends
def test_an_epoch_is_its_steps(rng, backend):
    """A loader's epoch without shuffling, the last batch ragged, is the same batches by hand, bit for bit."""
    net = branches()
    x, y = batch_for(net, rng, 23)
    one = trainer_of(net, backend, optimizer=gg.SGD(lr=0.05, momentum=0.9))
    core = one.core
    steps = core.begin(_core.Dataset(x, y), 5, False)
    assert steps == 5
    core.epoch(0)
    assert core.run(3) == 3
    assert core.run(100) == 5
    other = trainer_of(net, backend, optimizer=gg.SGD(lr=0.05, momentum=0.9))
    losses = [other.train_step(x[i : i + 5], y[i : i + 5]) for i in range(0, 23, 5)]
    assert all(one.weights()[name].tobytes() == other.weights()[name].tobytes() for name in one.weights())
    assert core.progress()["samples"] == 23
    assert core.progress()["loss"] == pytest.approx(np.dot(losses, [5, 5, 5, 5, 3]) / 23, rel=1e-9)


def test_more_batch_sizes_than_plans(rng):
    """What is asked about the last training step is answered after its plan would have made room for another one."""
    net = branches()
    x, y = batch_for(net, rng, 30)
    core = trainer_of(net).core
    core.train_step([x[:5]], [y[:5]])
    before = core.node_backends()
    assert core.profile()["operations"]
    core.set_timing(True)
    for n in range(6, 26):
        core.predict(_core.Dataset(x[:n]), n)
        assert core.node_backends() == before
    core.train_step([x[:5]], [y[:5]])
    seconds = [one["passes"]["forward"]["seconds"] for one in core.profile()["operations"]]
    assert any(forward > 0 for forward in seconds)  # the plan is the one that was told to take the time
    for n in range(6, 26):
        core.train_step([x[:n]], [y[:n]])
        core.set_timing(True)
        assert core.profile()["operations"]


def test_batches_larger_than_any_set(rng):
    """A batch as large as an integer can be is the whole set; no address or size of it overflows."""
    net = branches()
    x, y = batch_for(net, rng, 9)
    with gg.Trainer(net, comm=gg.VirtualCluster(2), seed=3) as trainer:
        for replicas in (False, True):
            wanted = trainer.evaluate((x, y), batch_size=9, replicas=replicas)
            assert trainer.evaluate((x, y), batch_size=sys.maxsize, replicas=replicas) == wanted
        np.testing.assert_array_equal(trainer.predict(x, batch_size=sys.maxsize), trainer.predict(x, batch_size=9))
        with pytest.raises(ValueError, match=f"{sys.maxsize}.*1..4"):
            trainer.fit((x, y), batch_size=sys.maxsize)
        with pytest.raises(ValueError, match=f"{sys.maxsize}.*1 to 4"):
            trainer.core.begin(_core.Dataset(x, y), sys.maxsize)
