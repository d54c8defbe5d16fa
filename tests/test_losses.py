"""Losses with options, as Python describes them. What they compute: test_loss_kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import losses


def test_a_loss_survives_json():
    for loss in (
        gg.CrossEntropy(),
        gg.CrossEntropy(label_smoothing=0.1),
        gg.CrossEntropy(class_weights=np.array([1, 2.5, 0]), ignore_index=-100),
        gg.CrossEntropy(ignore_index=0),
    ):
        assert losses.from_description(json.loads(json.dumps(losses.described(loss)))) == loss
    assert losses.from_description(losses.described("mean_squared_error")) == "mean_squared_error"


def test_what_the_core_gets():
    core = gg.CrossEntropy(label_smoothing=0.1, class_weights=[1, 2], ignore_index=-1).core()
    assert core.pop("class_weight").tolist() == [1, 2]
    assert core == {"loss": "cross_entropy", "label_smoothing": 0.1, "ignore_index": -1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(label_smoothing=1.0), r"label_smoothing=1.0: allowed: a finite number >= 0 and < 1"),
        (dict(label_smoothing="0.1"), "label_smoothing='0.1'"),
        (dict(class_weights=[1, -1]), r"class_weights\[1\]=-1: allowed: a finite number >= 0"),
        (dict(class_weights=[1, 1e39]), r"class_weights\[1\]=1e\+39: allowed: a finite number >= 0 and <= 3.4"),
        (dict(class_weights=[0, 0]), "class_weights: all 0"),
        (dict(class_weights=[1]), "at least two classes"),
        (dict(class_weights=3), "class_weights=3: allowed: one number a class"),
        (dict(ignore_index=1.5), "ignore_index=1.5"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        gg.CrossEntropy(**options)


def test_as_many_class_weights_as_classes():
    net = gg.Sequential([gg.Linear(3)], 4)
    with pytest.raises(ValueError, match="class_weights: 2 of them, but the output has 3 classes; allowed"):
        gg.Trainer(net, loss=gg.CrossEntropy(class_weights=[1, 2]))


def test_the_class_0_that_is_ignored_is_so_in_a_checkpoint(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32), np.arange(12) % 3
    loss = gg.CrossEntropy(ignore_index=0)
    with gg.Trainer(gg.Sequential([gg.Linear(3)], 4), loss=loss) as trainer:
        trainer.save(tmp_path / "c")
        found = trainer.evaluate(x, y)
    with gg.Trainer.load(tmp_path / "c") as loaded:
        assert loaded.heads[0].loss == loss and loaded.evaluate(x, y) == found


NOTHING = {
    "a class of weight 0": (gg.CrossEntropy(class_weights=[1, 1, 0]), 2),
    "smoothed": (gg.CrossEntropy(class_weights=[1, 1, 0], label_smoothing=0.1), 2),
    "ignored": (gg.CrossEntropy(class_weights=[1, 1, 0], label_smoothing=0.1, ignore_index=1), 1),
    "one output of two": ([gg.CrossEntropy(class_weights=[1, 1, 0], label_smoothing=0.1)] * 2, 2),
}


@pytest.mark.parametrize("backend", ["native", "onednn"])
@pytest.mark.parametrize("name", NOTHING)
def test_where_nothing_counts_nothing_moves(name, backend):
    """The loss is 0 and so are its gradients, on one rank and on two; a set without what counts has no loss."""
    loss, target = NOTHING[name]
    several = isinstance(loss, list)
    x, y = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32), np.full(6, target)
    i = gg.Input((4,))
    net = gg.Model(i, [gg.Linear(3)(i) for _ in range(1 + several)])
    one = gg.Trainer(
        net, loss=loss, optimizer=gg.SGD(lr=1.0), strategy=gg.AllReduce(), comm=gg.VirtualCluster(2), backend=backend
    )
    before, targets = one.weights(), [y] * 2 if several else y
    assert one.train_step([x, x], [targets, targets]) == [0, 0]
    assert not any(array.any() for array in one.gradients().values())
    history = one.fit(x, targets, epochs=1, batch_size=3, progress=False)
    assert history.last["train_loss"] == 0
    for key, array in one.weights().items():
        assert np.array_equal(array, before[key]), key
    found = one.evaluate(x, targets)
    assert np.isnan(found["loss"]) and not any(np.isinf(value) for value in found.values())
    counted = one.evaluate(np.concatenate([x, x]), [np.append(y, y * 0)] * 2 if several else np.append(y, y * 0))
    assert np.isfinite(counted["loss"])


def test_a_set_is_evaluated_as_one_batch():
    """PyTorch's loss of the whole set, in whatever batches and ranks, also those in which nothing counts."""
    torch = pytest.importorskip("torch")
    loss = gg.CrossEntropy(class_weights=[1, 2, 0], label_smoothing=0.2, ignore_index=-1)
    x, y = np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32), np.repeat([2, -1, 0, 1], 6)
    one = gg.Trainer(gg.Sequential([gg.Linear(3)], 4), loss=loss, comm=gg.VirtualCluster(2))
    scores, weight = torch.tensor(one.predict(x), dtype=torch.float64), torch.tensor([1.0, 2, 0], dtype=torch.float64)
    how = {"weight": weight, "label_smoothing": 0.2, "ignore_index": -1}
    wanted = torch.nn.functional.cross_entropy(scores, torch.tensor(y), **how).item()
    for size in (1, 4, 6, 24):
        assert one.evaluate(x, y, batch_size=size)["loss"] == pytest.approx(wanted, rel=1e-6)
