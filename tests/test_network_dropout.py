"""Dropout within a network: what it keeps, in each backend, step and seed."""

from __future__ import annotations

import numpy as np
import pytest
from network_cases import BACKENDS, backends, trainer_of

import gossipgrad as gg

pytestmark = pytest.mark.usefixtures("no_forced_backend")


def dropout_mask(backend, n, rank_seed=0, steps=1, width=24):
    """What a Dropout behind a Linear kept at the last of some steps. The gradient of the Linear's weight shows it,
    sample by sample, as the samples are rows of the identity."""
    net = gg.Sequential([gg.Linear(width, bias=False, name="a"), gg.Dropout(0.4, name="d")], input=(n,))
    net.load_weights({"a.weight": np.ones((width, n), np.float32)})
    trainer = trainer_of(net, backend, "mean_squared_error", optimizer=gg.SGD(lr=0.0), seed=rank_seed)
    for _ in range(steps):
        loss = trainer.train_step(np.eye(n, dtype=np.float32), np.zeros((n, width), np.float32))
    kept = trainer.gradients()["a.weight"].T  # (sample, feature)
    size = 2 / (n * width) / (1 - 0.4) ** 2
    np.testing.assert_allclose(kept[kept != 0], size, rtol=1e-6)
    assert loss == pytest.approx((kept != 0).mean() / (1 - 0.4) ** 2, rel=1e-6)
    return kept != 0


@pytest.mark.parametrize("n", [1, 3, 16, 37])
def test_dropout_is_the_same_in_every_backend(n):
    """In the layouts of both tables; so is a run's result, but for rounding."""
    masks = [dropout_mask(backend, n) for backend in BACKENDS]
    assert all((mask == masks[0]).all() for mask in masks)


@backends
def test_dropout_changes_with_step_and_seed(backend):
    first = dropout_mask(backend, 37)
    assert abs(first.mean() - 0.6) < 0.1
    assert (first == dropout_mask(backend, 37)).all()
    for other in (dropout_mask(backend, 37, steps=2), dropout_mask(backend, 37, rank_seed=1)):
        assert 0.3 < (first == other).mean() < 0.7


@backends
def test_every_dropout_draws_for_itself_and_evaluation_draws_nothing(rng, backend):
    x = gg.Input((16,))
    a = gg.Linear(16, bias=False, name="a")(x)
    net = gg.Model(x, gg.Concat()(gg.Dropout(0.5)(a), gg.Dropout(0.5)(a)))
    net.load_weights({"a.weight": np.eye(16, dtype=np.float32)})
    trainer = trainer_of(net, backend, "mean_squared_error", optimizer=gg.SGD(lr=0.0))
    ones = np.ones((8, 16), np.float32)
    assert (trainer.predict(ones) == 1).all()
    assert trainer.evaluate((ones, np.ones((8, 32), np.float32)))["loss"] == 0
    # An element of the gradient has one of three values: kept by both, by none, or by one only, as the masks differ.
    trainer.train_step(np.eye(16, dtype=np.float32), np.zeros((16, 32), np.float32))
    diagonal = np.diag(trainer.gradients()["a.weight"])
    assert len(np.unique(np.round(diagonal / diagonal.max() * 2))) == 3
