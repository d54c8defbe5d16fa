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
