"""Callbacks that decide: early stopping, the best weights, and a rate that falls on a plateau."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from test_callbacks import trainer

import gossipgrad as gg
from gossipgrad.history import History


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 96, 30, noise=0.3)


def history_of(values):
    return History(
        epochs=[{"epoch": i + 1, "validation": {"loss": v, "accuracy": 1 - v}} for i, v in enumerate(values)]
    )


class FakeTrainer:
    def __init__(self):
        self.stop, self.history, self.validating, self.saved = False, history_of([]), True, []
        self.record_names = ["train_loss", "validation.loss", "validation.accuracy"]
        self.said, self.failed, self.epoch, self.fit_began, self.resumed = [], False, 0, 0, False
        self.may_grow = False
        self.rank, self.team = 0, SimpleNamespace(kind="single", size=1, local=1, rank=0)

    def save(self, path):
        self.saved.append(path)

    def say(self, text):
        self.said.append(text)

    def copy_weights(self):
        return self.epoch

    def put_weights_back(self, epoch):
        self.epoch = epoch


def play(callback, values):
    """Epochs that `callback` sees until it stops."""
    fake = FakeTrainer()
    callback.on_fit_begin(fake)
    for record in history_of(values).epochs:
        fake.epoch = record["epoch"]
        callback.on_epoch_end(fake, record)
        if fake.stop:
            break
    callback.on_fit_end(fake)
    return fake, record["epoch"]


def test_early_stopping():
    assert play(gg.EarlyStopping(patience=2), [5, 4, 4.5, 4.2, 1])[1] == 4
    assert play(gg.EarlyStopping(patience=3), [5, 4, 4.5, 4.2, 1])[1] == 5
    assert play(gg.EarlyStopping(patience=1, min_delta=0.5), [5, 4.8, 4.6])[1] == 2
    assert play(gg.EarlyStopping("validation.accuracy", patience=1), [0.5, 0.4, 0.45])[1] == 3
    assert play(gg.EarlyStopping(patience=1), [math.nan, 1])[1] == 1
    with pytest.raises(ValueError, match="monitor='validation.f1': no number of an epoch's record; allowed: .*loss"):
        play(gg.EarlyStopping("validation.f1"), [1])
    with pytest.raises(ValueError, match="mode='down'"):
        gg.EarlyStopping(mode="down")


def test_a_number_that_an_epoch_is_without_is_not_better(data):
    stops = gg.EarlyStopping("compression.elements_sent", patience=1)  # None while the warm-up sends all
    one = gg.Trainer(
        gg.Sequential([gg.Linear(64), gg.Linear(3)], input=(6,)),
        strategy=gg.AllReduce(),
        compression=gg.AdaComp(warmup=100),
        comm=gg.VirtualCluster(2),
    )
    assert len(one.fit(data[0], epochs=3, batch_size=8, callbacks=stops, progress=False)) == 1


def test_early_stopping_remembers_across_a_resume():
    callback = gg.EarlyStopping(patience=2)
    fake = FakeTrainer()
    fake.history = history_of([5, 4, 4.5])
    callback.on_fit_begin(fake)
    assert (callback.best, callback.best_epoch, callback.since) == (4, 2, 1)


def test_checkpoint_best_and_last(tmp_path):
    path = str(tmp_path / "c.safetensors")
    best = str(tmp_path / "c.best.safetensors")
    assert play(gg.Checkpoint(path), [5, 4, 6])[0].saved == [best, path, best, path, path]
    assert play(gg.Checkpoint(path, save_best=False), [5, 4])[0].saved == [path, path]
    assert play(gg.Checkpoint(path, "validation.accuracy", save_last=False), [5, 6, 4])[0].saved == [best, best]
    with pytest.raises(ValueError, match="no such folder"):
        play(gg.Checkpoint(tmp_path / "no" / "c"), [1])


def digest(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def all_weights(trainer):
    return [digest(one) for one in (*map(trainer.weights, range(trainer.size)), trainer.consensus_weights())]


class Weights(gg.Callback):
    """All ranks' weights after each epoch."""

    def __init__(self):
        self.after = []

    def on_epoch_end(self, trainer, record):
        self.after.append(all_weights(trainer))


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.ElasticAveraging(), gg.ParameterServer()])
@pytest.mark.parametrize("stops", [True, False])
def test_the_best_weights_are_restored(data, strategy, stops, capsys):
    """The record says that the second epoch was the best: ranks and centre get their own weights back."""

    class Plant(gg.Callback):
        def on_epoch_end(self, trainer, record):
            record["train_loss"] = (3.0, 1.0, 2.0, 2.0)[record["epoch"] - 1]

    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
    t = gg.Trainer(net, optimizer=gg.SGD(lr=0.05, momentum=0.5), strategy=strategy, comm=gg.VirtualCluster(3))
    stop, seen = gg.EarlyStopping("train_loss", patience=2 if stops else 9), Weights()
    history = t.fit(data[0], data[1], epochs=4, batch_size=8, callbacks=[Plant(), stop, seen])
    assert (len(history), stop.best_epoch) == (4, 2)
    assert all_weights(t) == seen.after[1] != seen.after[3]
    assert history.weights_sha256 == t.weights_sha256()
    said = capsys.readouterr().out
    assert ("stopped after epoch 4: train_loss has not been better than" in said) == stops
    assert "restored the weights of epoch 2: train_loss was" in said


def test_without_restore_the_last_weights_stay(data):
    seen = Weights()
    stop = gg.EarlyStopping("train_loss", patience=1, min_delta=10.0, restore_best=False)
    t = trainer()
    t.fit(data[0], epochs=4, batch_size=8, callbacks=[stop, seen], progress=False)
    assert len(t.history) == 2 and digest(t.weights(1)) == seen.after[1][1]


def test_a_best_epoch_before_a_resume_is_not_in_memory(data, tmp_path):
    trainer().fit(data[0], epochs=2, batch_size=8, progress=False, callbacks=gg.Checkpoint(tmp_path / "c"))
    stop = gg.EarlyStopping("train_loss", patience=2, min_delta=10.0)
    with pytest.warns(UserWarning, match="the best epoch, 1, was before this fit"):
        trainer().fit(data[0], epochs=9, batch_size=8, progress=False, callbacks=stop, resume=tmp_path / "c")


def test_a_run_that_was_stopped_trains_no_further_where_it_is_resumed(data, tmp_path, capsys):
    def fit(epochs, patience, **options):
        made, stop = trainer(), gg.EarlyStopping("train_loss", patience, min_delta=10.0, restore_best=False)
        return made, len(made.fit(data[0], epochs=epochs, batch_size=8, callbacks=[stop, *also], **options))

    also = [gg.Checkpoint(tmp_path / "c")]
    assert fit(9, 2)[1] == 3
    also = []
    capsys.readouterr()
    made, count = fit(9, 2, resume=tmp_path / "c")
    assert count == 3 and "stopped after epoch 3: train_loss has not been better" in capsys.readouterr().out
    assert fit(9, 3, resume=tmp_path / "c")[1] == 4  # another patience is another run
    stop = gg.EarlyStopping("train_loss", 2, min_delta=10.0, restore_best=False)
    assert len(made.fit(data[0], epochs=9, batch_size=8, callbacks=stop, progress=False)) == 6  # a new call


def test_an_error_restores_nothing(data):
    """Ranks that fail are not at one step: nothing collective may be asked for."""

    class Fail(gg.Callback):
        def on_epoch_end(self, trainer, record):
            if record["epoch"] == 2:
                raise KeyError("planted")

    t, stop = trainer(), gg.EarlyStopping("train_loss", min_delta=10.0)
    with pytest.raises(KeyError, match="planted"):
        t.fit(data[0], epochs=3, batch_size=8, callbacks=[stop, Fail()], progress=False)
    assert t.failed and not t.fitting and stop.best_epoch == 1
    t.fit(data[0], epochs=1, batch_size=8, progress=False)
    assert not t.failed


def rates(*values, **options):
    """The rate of each epoch with these validation losses."""
    callback, fake, found = gg.ReduceOnPlateau(**options), FakeTrainer(), []
    fake.optimizer, fake.learning_rate, fake.step = gg.SGD(lr=1.0), 1.0, 0
    callback.on_fit_begin(fake)
    for record in history_of(values).epochs:
        callback.on_epoch_begin(fake, record["epoch"])
        found.append(fake.learning_rate)
        callback.on_epoch_end(fake, record)
    return found


def test_the_rate_is_reduced_on_a_plateau():
    """As PyTorch's ReduceLROnPlateau, which counts patience from 0: patience=n here is patience=n - 1 there."""
    assert rates(5, 4, 4, 4, 4, 4, factor=0.5, patience=2) == [1, 1, 1, 1, 0.5, 0.5]
    assert rates(5, 4, 4, 3, 3, 3, factor=0.5, patience=2) == [1, 1, 1, 1, 1, 1]
    assert rates(5, 5, 5, 5, 5, 5, factor=0.5, patience=1) == [1, 1, 0.5, 0.25, 0.125, 0.0625]
    assert rates(5, 5, 5, 5, 5, 5, factor=0.5, patience=1, cooldown=2) == [1, 1, 0.5, 0.5, 0.5, 0.25]
    assert rates(5, 5, 5, 5, factor=0.5, patience=1, min_lr=0.3) == [1, 1, 0.5, 0.3]
    assert rates(5, 4.5, 4, 4, factor=0.5, patience=1, min_delta=0.6) == [1, 1, 0.5, 0.5]
    accuracy = {"monitor": "validation.accuracy", "factor": 0.5, "patience": 1}
    assert rates(0.5, 0.4, 0.4, 0.4, **accuracy) == [1, 1, 1, 0.5]


@pytest.mark.parametrize("order", [1, -1])
def test_a_plateau_is_a_schedule_and_resumes(data, tmp_path, order):
    """A resume has the bits of an uninterrupted run, whether Checkpoint or the plateau comes first."""
    plan = gg.schedules.Plateau(monitor="train_loss", factor=0.5, patience=2, min_delta=10.0)
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))

    def run(schedule, epochs, callbacks=(), **options):
        t = gg.Trainer(net, optimizer=gg.SGD(lr=0.5, momentum=0.5, schedule=schedule), comm=gg.VirtualCluster(2))
        return t.fit(data[0], epochs=epochs, batch_size=8, callbacks=callbacks, progress=False, **options)

    whole = run(plan, 7)
    assert whole["learning_rate"] == [0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert whole.settings["schedule"] == "plateau" and whole.settings["factor"] == 0.5
    own = gg.ReduceOnPlateau("train_loss", factor=0.5, patience=2, min_delta=10.0)
    assert run(gg.schedules.Constant(), 7, own).weights_sha256 == whole.weights_sha256
    for epochs in (2, 3, 4):
        path = tmp_path / f"c{epochs}"
        reduce = gg.ReduceOnPlateau("train_loss", factor=0.5, patience=2, min_delta=10.0)
        run(gg.schedules.Constant(), epochs, [gg.Checkpoint(path), reduce][::order])
        again = gg.ReduceOnPlateau("train_loss", factor=0.5, patience=2, min_delta=10.0)
        assert run(gg.schedules.Constant(), 7, [again], resume=path).weights_sha256 == whole.weights_sha256
        path = tmp_path / f"d{epochs}"
        run(plan, epochs, gg.Checkpoint(path))
        assert gg.Trainer.load(path).optimizer.schedule == plan
        assert run(plan, 7, resume=path).weights_sha256 == whole.weights_sha256
    with pytest.raises(ValueError, match="schedule='cosine'.*allowed: 'constant', 'plateau'"):
        run(gg.schedules.Cosine(), 1, own)
