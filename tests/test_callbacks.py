"""Callbacks: when they are called, what they write, and how they end training."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.callbacks import Progress
from gossipgrad.history import History, flat


def trainer(lr=0.05, p=2):
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
    return gg.Trainer(net, optimizer=gg.SGD(lr=lr, momentum=0.9), comm=gg.VirtualCluster(p))


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 96, 30, noise=0.3)


class Recorder(gg.Callback):
    def __init__(self):
        self.calls = []

    def on_fit_begin(self, trainer):
        self.calls.append("begin")

    def on_epoch_begin(self, trainer, epoch):
        self.calls.append(f"epoch {epoch}")

    def on_progress(self, trainer, progress):
        assert isinstance(progress, Progress) and 0 < progress.step <= progress.steps
        self.last = progress

    def on_epoch_end(self, trainer, record):
        assert trainer.history.last is record
        self.calls.append(f"end {record['epoch']}")

    def on_fit_end(self, trainer):
        self.calls.append("over")


def test_order_of_calls(data):
    seen = Recorder()
    trainer().fit(data[0], epochs=2, batch_size=8, callbacks=[seen], progress=False)
    assert seen.calls == ["begin", "epoch 1", "end 1", "epoch 2", "end 2", "over"]
    assert (seen.last.epoch, seen.last.epochs, seen.last.step, seen.last.steps) == (2, 2, 6, 6)
    assert seen.last.samples == 96 and math.isfinite(seen.last.loss) and seen.last.samples_per_second > 0


def test_stop_and_errors_end_training(data):
    class Stop(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.stop = record["epoch"] == 2

    assert len(trainer().fit(data[0], epochs=9, batch_size=8, callbacks=[Stop()], progress=False)) == 2

    class Fail(gg.Callback):
        def on_epoch_end(self, trainer, record):
            raise KeyError("planted")

    seen = Recorder()
    with pytest.raises(KeyError, match="planted"):
        trainer().fit(data[0], epochs=9, batch_size=8, callbacks=[Fail(), seen], progress=False)
    assert seen.calls[-1] == "over"


# Asks for everything collective; the program that mpiexec starts takes the class from here.
ASKS = '''
class Asks(gg.Callback):
    """Keeps what on_progress was told when it asked for what is collective."""

    def __init__(self, path):
        x, y = np.zeros((4, 6), np.float32), np.zeros(4, np.int32)
        self.answers = {}
        self.collective = {
            "fit": lambda t: t.fit((x, y), batch_size=1),
            "evaluate": lambda t: t.evaluate((x, y)),
            "predict": lambda t: t.predict(x),
            "train_step": lambda t: t.train_step([x] * t.size, [y] * t.size) if t.virtual else t.train_step(x, y),
            "settle": lambda t: t.settle(),
            "audit_samples": lambda t: t.audit_samples(),
            "sample_ids": lambda t: t.sample_ids(),
            "weights": lambda t: t.weights(),
            "consensus_weights": lambda t: t.consensus_weights(),
            "gradients": lambda t: t.gradients(),
            "momentum": lambda t: t.momentum(),
            "optimizer_state": lambda t: t.optimizer_state(),
            "consensus_distance": lambda t: t.consensus_distance(),
            "load_weights": lambda t: t.load_weights(t.net.weights()),
            "weights_sha256": lambda t: t.weights_sha256(),
            "save": lambda t: t.save(path),
            "write_trace": lambda t: t.write_trace(path),
            "close": lambda t: t.close(),
        }

    def on_progress(self, trainer, progress):
        assert 0 <= trainer.step <= 12
        for name, ask in self.collective.items():
            try:
                ask(trainer)
                self.answers[name] = "answered"
            except RuntimeError as error:
                self.answers[name] = str(error)

    def check(self):
        assert set(self.answers) == set(self.collective), self.answers
        assert all("in on_epoch_end it can" in answer for answer in self.answers.values()), self.answers
'''


def asks(path):
    space = {"gg": gg, "np": np}
    exec(ASKS, space)
    return space["Asks"](path)


@pytest.mark.parametrize("p", [1, 2])
def test_on_progress_cannot_ask_for_what_is_collective(data, p, tmp_path):
    asking, t = asks(tmp_path / "x"), trainer(p=p)
    t.fit(data[0], epochs=1, batch_size=8, callbacks=[asking], progress=False)
    asking.check()
    assert t.evaluate(data[1]) and not list(tmp_path.iterdir())


def test_what_is_collective_is_known(tmp_path):
    """Methods whose documentation says Collective are asked for above."""
    said = {name for name, member in vars(gg.Trainer).items() if "Collective." in (member.__doc__ or "")}
    assert len(said) > 10 and said - {"load"} <= set(asks(tmp_path / "x").collective)


def test_on_progress_under_mpi(mpirun, tmp_path):
    program = f"""
import numpy as np, gossipgrad as gg
{ASKS}
data = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
trainer, asks = gg.Trainer(net), Asks({str(tmp_path / "x")!r})
trainer.fit(data[0], epochs=1, batch_size=8, callbacks=[asks], progress=False)
asks.check()
assert trainer.evaluate(data[1])
"""
    mpirun(2, program)
    assert not list(tmp_path.iterdir())


def test_one_rank_alone_may_ask_on_progress(data, tmp_path):
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
    answers = []

    class Look(gg.Callback):
        def on_progress(self, trainer, progress):
            answers.append(trainer.evaluate(data[1]))

    gg.Trainer(net).fit(data[0], epochs=1, batch_size=8, callbacks=[Look()], progress=False)
    assert answers


def test_loggers_write_what_the_history_holds(data, tmp_path):
    loggers = [gg.CSVLogger(tmp_path / "a.csv"), gg.JSONLLogger(tmp_path / "a.jsonl")]
    history = trainer().fit(data[0], data[1], epochs=3, batch_size=8, callbacks=loggers, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == history.epochs
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(r["validation.accuracy"]) for r in rows] == history["validation.accuracy"]
    assert list(rows[0]) == list(flat(history.epochs[0]))


def test_loggers_of_a_resumed_run_hold_all_epochs(data, tmp_path):
    first = trainer()
    first.fit(data[0], epochs=2, batch_size=8, progress=False)
    first.save(tmp_path / "c.safetensors")
    loggers = [gg.CSVLogger(tmp_path / "a.csv"), gg.JSONLLogger(tmp_path / "a.jsonl")]
    resume = tmp_path / "c.safetensors"
    trainer().fit(data[0], epochs=3, batch_size=8, callbacks=loggers, progress=False, resume=resume)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4


def history_of(values):
    return History(
        epochs=[{"epoch": i + 1, "validation": {"loss": v, "accuracy": 1 - v}} for i, v in enumerate(values)]
    )


class FakeTrainer:
    def __init__(self):
        self.stop, self.history, self.validating, self.saved = False, history_of([]), True, []

    def save(self, path):
        self.saved.append(path)


def play(callback, values):
    """Epochs that `callback` sees until it stops."""
    fake = FakeTrainer()
    callback.on_fit_begin(fake)
    for record in history_of(values).epochs:
        callback.on_epoch_end(fake, record)
        if fake.stop:
            break
    return fake, record["epoch"]


def test_early_stopping():
    assert play(gg.EarlyStopping(patience=2), [5, 4, 4.5, 4.2, 1])[1] == 4
    assert play(gg.EarlyStopping(patience=3), [5, 4, 4.5, 4.2, 1])[1] == 5
    assert play(gg.EarlyStopping(patience=1, min_delta=0.5), [5, 4.8, 4.6])[1] == 2
    assert play(gg.EarlyStopping("validation.accuracy", patience=1), [0.5, 0.4, 0.45])[1] == 3
    assert play(gg.EarlyStopping(patience=1), [math.nan, 1])[1] == 1
    with pytest.raises(ValueError, match="monitor='validation.f1' is not in an epoch's record"):
        play(gg.EarlyStopping("validation.f1"), [1])
    with pytest.raises(ValueError, match="mode='down'"):
        gg.EarlyStopping(mode="down")


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


def test_nan_is_an_error_unless_allowed(data):
    x = data[0].samples.copy()
    x[5] = np.nan
    with pytest.raises(FloatingPointError, match="loss is nan in epoch 1"):
        trainer().fit((x, data[0].targets), epochs=2, batch_size=8, progress=False)
    allowed = [gg.StopOnNaN(enabled=False)]
    history = trainer().fit((x, data[0].targets), epochs=1, batch_size=8, callbacks=allowed, progress=False)
    assert math.isnan(history.last["train_loss"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_log_and_on_a_terminal(data, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    log, terminal = io.StringIO(), Terminal()
    for file in (log, terminal):
        trainer().fit(data[0], data[1], epochs=2, batch_size=8, callbacks=[gg.ProgressBar(file)])
    lines = log.getvalue().splitlines()
    assert len(lines) == 2 and lines[0].startswith("epoch 1/2: loss ") and "accuracy" in lines[1]
    assert "\r" not in log.getvalue()
    shown = terminal.getvalue()
    assert "\repoch 2/2 [" in shown and "6/6" in shown and "left" in shown
    assert shown.splitlines()[-1].rpartition("\x1b[K")[2].startswith("epoch 2/2: loss ")


def test_a_launched_rank_draws_no_bar_into_a_log(monkeypatch):
    bar = gg.ProgressBar(Terminal())
    assert bar._terminal()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert not bar._terminal()
    monkeypatch.setenv("GOSSIPGRAD_TERMINAL", "1")
    assert bar._terminal()


def test_nan_weights_stop_training_although_the_loss_is_finite() -> None:
    """oneDNN's ReLU turns NaN into 0, so the loss does not show a broken first layer."""
    net = gg.models.mlp()
    weights = net.weights()
    weights["fc1.weight"][:] = np.nan
    net.load_weights(weights)
    x = np.random.default_rng(0).standard_normal((32, 28), np.float32)
    y = np.zeros((32, 1), np.float32)
    trainer = gg.Trainer(net, loss="binary_cross_entropy", backend="onednn")
    with pytest.raises(FloatingPointError, match="a weight is not finite|the loss is nan"):
        trainer.fit((x, y), batch_size=8, progress=False)
