"""Fits of one trainer, one after the other: what callbacks remember begins with each of them."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.training import fingerprint


def trainer(lr=0.0):
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    return gg.Trainer(net, optimizer=gg.SGD(lr=lr), comm=gg.VirtualCluster(2), tune=False)


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 32, 30, noise=0.3)[0]


class Plant(gg.Callback):
    """The losses that epochs are to have."""

    def __init__(self, *losses):
        self.losses = losses

    def on_epoch_end(self, trainer, record):
        record["train_loss"] = self.losses[record["epoch"] - 1]


def fit(one, data, epochs, callbacks, **options):
    return one.fit(data, epochs=epochs, batch_size=8, callbacks=callbacks, progress=False, **options)


def test_early_stopping_begins_with_each_fit(data):
    """The second fit's losses are all above those of the first, and fall."""
    one, plant = trainer(), Plant(1, 2, 3, 9, 8, 7, 6, 5)
    stop = gg.EarlyStopping("train_loss", patience=2, restore_best=False)
    assert len(fit(one, data, 8, [plant, stop])) == 3
    assert len(fit(one, data, 5, [plant, stop])) == 8 and stop.best == 5
    assert one.fit_began == 3


def test_after_a_load_too(data, tmp_path):
    plant = Plant(1, 9, 8, 7, 6)
    fit(trainer(), data, 1, [plant, gg.Checkpoint(tmp_path / "c")])
    again, stop = gg.Trainer.load(tmp_path / "c"), gg.EarlyStopping("train_loss", patience=1)
    assert len(fit(again, data, 4, [plant, stop])) == 5


def test_the_best_epoch_is_of_this_fit(data, tmp_path):
    one, plant = trainer(), Plant(1, 9, 8, 8.5)
    fit(one, data, 1, [plant])
    fit(one, data, 3, [plant, gg.Checkpoint(tmp_path / "c.safetensors", "train_loss")])
    best = gg.Trainer.load(tmp_path / "c.best.safetensors")
    assert (best.epoch, best.history.last["train_loss"]) == (3, 8)


def test_a_plateau_is_of_this_fit(data):
    one, plant = trainer(lr=1.0), Plant(1, 9, 8, 7, 6)
    reduce = gg.ReduceOnPlateau("train_loss", factor=0.5, patience=1)
    fit(one, data, 1, [plant, reduce])
    assert fit(one, data, 4, [plant, reduce])["learning_rate"] == [1.0] * 5


def test_a_resume_goes_on_with_the_fit_that_saved(data, tmp_path):
    """Not with those before it: epoch 1 is the best of all, but of another fit."""
    plant = Plant(1, 9, 8, 8.5, 8.6, 8.7)
    one = trainer()
    fit(one, data, 1, [plant])
    fit(one, data, 3, [plant, gg.Checkpoint(tmp_path / "c")])
    stop = gg.EarlyStopping("train_loss", patience=3, restore_best=False)
    assert len(fit(trainer(), data, 9, [plant, stop], resume=tmp_path / "c")) == 6
    assert (stop.best, stop.best_epoch) == (8, 3)


def test_options_of_callbacks_are_compared():
    """Those that callers give, whatever the callback has seen since."""

    def facts(*callbacks):
        return fingerprint.text(fingerprint.callbacks(callbacks))

    used = gg.EarlyStopping(patience=2)
    used.see({"epoch": 1, "validation": {"loss": 0.5}})
    assert facts(used) == facts(gg.EarlyStopping(patience=2)) != facts(gg.EarlyStopping(patience=3))
    assert facts(gg.EarlyStopping(min_delta=0.1)) != facts(gg.EarlyStopping(min_delta=0.2))
    two = gg.ReduceOnPlateau(), gg.ReduceOnPlateau(factor=0.5)
    assert facts(*two) != facts(two[0], two[0])
    chosen = gg.ReduceOnPlateau()
    chosen.monitor = "train_loss"  # fit has chosen it
    assert facts(chosen) == facts(two[0]) != facts(gg.ReduceOnPlateau("train_loss"))
    assert facts(gg.Checkpoint("c", every=2)) != facts(gg.Checkpoint("c"))
    own = type("Own", (gg.Callback,), {"__module__": "elsewhere"})
    assert facts(own(), gg.CSVLogger("x.csv"), gg.StopOnNaN()) == facts()


def test_a_history_is_asked_by_name(data):
    history = trainer().history
    with pytest.raises(
        TypeError, match=r"history\[-1\]: allowed: a name .*\(none before the first epoch\); .*epochs\[i"
    ):
        history[-1]
    one = trainer()
    history = fit(one, data, 1, [])
    for key in (-1, 0, slice(1), None, np.int64(0)):
        with pytest.raises(TypeError, match=r"allowed: a name .*train_loss, .*history.last"):
            history[key]


def test_weights_of_samples_are_for_training_alone():
    """The loss on what validation_split sets aside has the weights of a Dataset, and no others."""
    x, y = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32), np.arange(20) % 3
    w = np.linspace(1, 9, 20, dtype=np.float32)

    def loss(*arguments, **options):
        how = {"validation_split": 8, "batch_size": 4, "progress": False}
        return trainer().fit(*arguments, **how, **options).last["validation"]["loss"]

    plain = loss(x, y)
    assert loss(x, y, sample_weight=w) == plain == loss(x, y, sample_weight=w, class_weight="balanced")
    assert abs(loss(gg.Dataset(x, y, sample_weight=w)) - plain) > 0.1
    parts = [(x[:10], y[:10]), (x[10:], y[10:])]
    shares = {"validation_split": 0.4, "batch_size": 3, "progress": False, "sharded": True}
    own = [
        trainer().fit(parts, **shares, **weight).last["validation"]["loss"]
        for weight in ({}, {"sample_weight": [w[:10], w[10:]]})
    ]
    assert own[0] == own[1]


@pytest.mark.parametrize(
    ("samples", "ranks", "options", "size"),
    [
        (50, 1, {}, 50),
        (50, 3, {}, 16),
        (64, 1, {}, 64),
        (300, 2, {}, 64),
        ((10, 30), 2, {"sharded": True}, 30),
        ((10, 30), 2, {"sharded": True, "drop_last": True}, 10),
    ],
)
def test_the_usual_batch_is_what_a_rank_has_at_most(samples, ranks, options, size, recwarn):
    """With a line that says so; a size that was given is never changed."""
    parts = [np.ones((n, 3), np.float32) for n in (samples if isinstance(samples, tuple) else (samples,))]
    data = [parts, [np.arange(len(x)) % 2 for x in parts]]
    x, y = data if options else (data[0][0], data[1][0])

    def trainer():
        return gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)), comm=gg.VirtualCluster(ranks))

    with trainer() as one, trainer() as other:
        one.fit(x, y, progress=False, **options)
        said = [str(w.message) for w in recwarn if "batch_size" in str(w.message)]
        assert said == ([] if size == 64 else [said[0]]) and one.fit_settings["batch_size"] == size
        wanted = f"batch_size={size}, all samples of a rank, in place of the usual 64"
        assert all(text.startswith(wanted) for text in said)
        other.fit(x, y, progress=False, batch_size=size, **options)
        assert one.weights_sha256() == other.weights_sha256()
        with pytest.raises(ValueError, match="batch_size=301: the .*; allowed: 1.."):
            other.fit(x, y, progress=False, batch_size=301, **options)
