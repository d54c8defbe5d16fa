"""Callbacks: when they are called, what they write, and how they end training."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import time
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.callbacks import Progress, known_of, take_known
from gossipgrad.history import flat
from gossipgrad.state import checkpoint_files


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
        assert isinstance(progress, Progress) and 0 <= progress.step <= progress.steps
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


class Slow(gg.data.Source):
    """Samples that take longer than a call of on_progress is away: a step is shown before the device completes it."""

    shape, dtype, scale, shift = (1500,), np.dtype(np.uint8), 1 / 255, -0.5

    def __len__(self):
        return 3 * 64

    def read(self, rows, epoch, samples, targets):
        time.sleep(0.15)
        samples[:] = 3


@pytest.mark.parametrize("ranks", [None, 2])
def test_progress_is_of_steps_that_are_complete(ranks):
    """A device that works late shows no loss of steps that it has not completed."""
    seen = []

    class Watch(gg.Callback):
        def on_progress(self, trainer, progress):
            seen.append((progress.samples, progress.loss))

    net = gg.models.mlp(1500, (1500, 1500), 4)
    how = {"comm": gg.VirtualCluster(ranks)} if ranks else {}
    with gg.Trainer(net, loss="cross_entropy", device="strict", backend="native", tune=False, **how) as one:
        data = gg.Dataset(Slow(), np.zeros(3 * 64, np.int64))
        one.fit(data, epochs=1, batch_size=64 // (ranks or 1), callbacks=[Watch()], progress=False)
    assert seen and all(samples > 0 and loss > 0 for samples, loss in seen)
    assert seen[-1][0] == 3 * 64


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
            "shrink": lambda t: t.shrink(),
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
            "copy_weights": lambda t: t.copy_weights(),
            "set_batch_size": lambda t: t.set_batch_size(4),
            "reset_state": lambda t: t.reset_state(),
            "put_weights_back": lambda t: t.put_weights_back(([t.net.weights()] * t.size, t.net.weights(), t.net)),
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
    members = vars(gg.Trainer.__base__) | vars(gg.Trainer)
    documented = {name for name, member in members.items() if "Collective." in (member.__doc__ or "")}
    said = {name for name in documented if not name.startswith("_")}
    own = {
        "adopt",
        "become",
        "choose_algorithms",
        "gather",
        "go_on",
        "see_samples",
        "set_exchange",
        "set_state",
        "state",
        "where_in_epoch",
    }  # the package's, for its other modules
    assert len(said) > 10 and own < said and said - {"load"} - own <= set(asks(tmp_path / "x").collective)


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


def test_columns_are_those_of_earlier_epochs_and_of_this_fit(data, tmp_path):
    log = gg.CSVLogger(tmp_path / "a.csv")
    t = trainer()
    t.fit(data[0], epochs=1, batch_size=8, callbacks=log, progress=False)
    history = t.fit(data[0], data[1], epochs=2, batch_size=8, callbacks=log, progress=False)
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["validation.loss"] for row in rows][0] == "" and len(rows) == len(history)
    assert [float(row["validation.loss"]) for row in rows[1:]] == [
        record["validation"]["loss"] for record in history.epochs[1:]
    ]
    assert set(rows[0]) >= {name for record in history.epochs for name in flat(record)}


def test_nan_is_an_error_unless_allowed(data):
    with pytest.raises(FloatingPointError, match="loss is (nan|inf) in epoch 1"):
        trainer(lr=1e38).fit(data[0], epochs=2, batch_size=8, progress=False)
    allowed = [gg.StopOnNaN(enabled=False)]
    history = trainer(lr=1e38).fit(data[0], epochs=1, batch_size=8, callbacks=allowed, progress=False)
    assert not math.isfinite(history.last["train_loss"])


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


# ---------------------------------------------------------------------------------- the stages of fit


@pytest.mark.parametrize("fails", [False, True])
def test_the_stages_of_fit(data, fails):
    class Stages(gg.Callback):
        every = 3

        def __init__(self):
            self.seen = []

        def see(self, t):
            self.seen.append((t.fit_state.stage.name, t.fitting, t.failed))

        def on_fit_begin(self, trainer):
            self.see(trainer)

        def on_step(self, trainer, step):
            self.see(trainer)
            if fails and step == 6:
                raise KeyError("planted")

        def on_epoch_end(self, trainer, record):
            self.see(trainer)

        def on_fit_end(self, trainer):
            self.see(trainer)

    t, stages = trainer(), Stages()
    assert t.fit_state.stage.name == "REST"
    with pytest.raises(KeyError, match="planted") if fails else contextlib.nullcontext():
        t.fit(data[0], epochs=1, batch_size=8, callbacks=stages, progress=False)  # 6 steps
    steps = [("BETWEEN", True, True), ("WITHIN", True, True), ("MADE", True, True)]
    wanted = [("WITHIN", True, True)] if fails else [("BETWEEN", True, True), ("OVER", True, False)]
    assert stages.seen == steps + wanted
    assert (t.fit_state.stage.name, t.fitting, t.failed) == ("REST", False, fails)
    assert t.fit_state.watcher is None and (t.fit_state.position is not None) == fails


# ---------------------------------------------------------------------------------- what a callback may be


def test_what_a_callback_may_be(data):
    assert len(trainer().fit(data[0], epochs=1, batch_size=8, callbacks=Recorder(), progress=False)) == 1

    class Mistyped(gg.Callback):
        def on_epoc_end(self, trainer, record):
            pass

    t = trainer()
    for wrong, words in [
        (Mistyped(), r"Mistyped\.on_epoc_end would never be called; allowed: .*did you mean 'on_epoch_end'"),
        ([Mistyped()], "on_epoch_end"),
        (gg.EarlyStopping, r"is no gossipgrad\.Callback; did you mean EarlyStopping\(\)\?"),
        (5, "callbacks: 5 is no"),
        ([print], "is no gossipgrad.Callback"),
    ]:
        with pytest.raises(TypeError, match=words):
            t.fit(data[0], epochs=1, batch_size=8, callbacks=wrong, progress=False)
    assert len(t.history) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: gg.Checkpoint("c", monitor=0),
        lambda: gg.StopOnNaN(enabled="no"),
        lambda: gg.EarlyStopping([1]),
        lambda: gg.EarlyStopping(restore_best=None),
        lambda: gg.Checkpoint("c", save_best=1),
    ],
)
def test_arguments_of_the_wrong_type(make):
    with pytest.raises(TypeError, match="(monitor|enabled|restore_best|save_best)=.*allowed: "):
        make()


@pytest.mark.parametrize(
    ("callback", "validation", "words"),
    [
        (
            gg.EarlyStopping(),
            False,
            "monitor='validation.loss': fit was given no validation data; allowed: .*train_loss",
        ),
        (gg.EarlyStopping("validation"), True, "monitor='validation': no number.*allowed: .*validation.accuracy"),
        (gg.EarlyStopping("val_loss"), True, "did you mean 'validation.loss'"),
        (gg.EarlyStopping("train_los"), True, "did you mean 'train_loss'"),
        (gg.Checkpoint("c", "validation_replicas.0.loss"), True, "no number of an epoch's record"),
        (gg.schedules.Plateau(monitor="nothing"), True, "monitor='nothing'"),
    ],
)
def test_monitors_are_checked_before_training(data, callback, validation, words):
    t = trainer()
    if isinstance(callback, gg.schedules.Schedule):
        t, callback = gg.Trainer(t.net, optimizer=gg.SGD(lr=0.1, schedule=callback)), ()
    with pytest.raises(ValueError, match=words):
        t.fit(data[0], data[1] if validation else None, batch_size=8, callbacks=callback, progress=False)
    assert t.step == 0 and not t.fitting


@pytest.mark.parametrize("p", [0, 1, 3])
@pytest.mark.parametrize("loss", ["cross_entropy", "mean_squared_error"])
@pytest.mark.parametrize("validation", [0, 1, 2])
def test_the_numbers_of_a_record_are_known_before(p, loss, validation):
    x = np.random.default_rng(0).normal(size=(24, 6)).astype("f4")
    y = np.zeros(24, "i4") if loss == "cross_entropy" else np.zeros((24, 3), "f4")
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    t = gg.Trainer(net, loss=loss, comm=gg.VirtualCluster(p) if p else None)
    how = {"validation": (x, y), "validate_replicas": validation == 2} if validation else {}
    record = t.fit((x, y), batch_size=4, progress=False, **how).last
    assert sorted(t.record_names) == sorted(flat(record))


@pytest.mark.parametrize("where", ["on_fit_begin", "on_epoch_begin", "on_epoch_end", "on_fit_end"])
def test_fit_within_fit_is_refused(data, where):
    class Nested(gg.Callback):
        pass

    def nested(self, trainer, *_):
        trainer.fit(data[0], batch_size=8, progress=False)

    setattr(Nested, where, nested)
    t = trainer()
    with pytest.raises(RuntimeError, match="fit was called within fit.*allowed: after fit has returned"):
        t.fit(data[0], epochs=2, batch_size=8, callbacks=Nested(), progress=False)
    assert len(t.fit(data[0], batch_size=8, progress=False)) >= 1


def test_a_resume_that_is_complete_says_so(data, tmp_path):
    trainer().fit(data[0], epochs=2, batch_size=8, progress=False, callbacks=gg.Checkpoint(tmp_path / "c"))
    t = trainer()
    with pytest.warns(UserWarning, match="saved after epoch 2, and epochs=2 is all that is wanted; nothing is trained"):
        assert len(t.fit(data[0], epochs=2, batch_size=8, progress=False, resume=tmp_path / "c")) == 2
    assert repr(trainer(p=1)).endswith("on 1 rank (virtual)>")
    assert repr(trainer().fit(data[0], batch_size=8, progress=False)) == "<History of 1 epoch on 2 ranks>"


def test_stopping_nested_fits_and_monitors_under_mpi(data, mpirun):
    """The ranks decide alike; rank 0 alone speaks."""
    program = """
import gossipgrad as gg
train, test = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
t = gg.Trainer(net, optimizer=gg.SGD(lr=0.05))
class Nested(gg.Callback):
    def on_epoch_end(self, trainer, record): trainer.fit(train, batch_size=8)
for wrong in (Nested(), gg.EarlyStopping()):
    try: t.fit(train, batch_size=8, callbacks=wrong, progress=False)
    except (RuntimeError, ValueError) as error: print(f"{t.rank}: {error}"[:40], flush=True)
before = t.weights_sha256()
class Spoil(gg.Callback):
    def on_epoch_end(self, trainer, record): trainer.learning_rate = 5.0
    def on_epoch_begin(self, trainer, epoch):
        if epoch == 3: self.best = trainer.weights_sha256()
stop, spoil = gg.EarlyStopping(patience=1), Spoil()
t.learning_rate = 0.05
h = t.fit(train, test, epochs=9, batch_size=8, callbacks=[stop, spoil])
assert h.weights_sha256 == spoil.best and len(h) < 9, (len(h), stop.best_epoch)
"""
    out = mpirun(2, program).stdout
    for rank in (0, 1):
        assert f"{rank}: fit was called within fit" in out and f"{rank}: monitor='validation.loss'" in out
    assert out.count("restored the weights of epoch") == out.count("stopped after epoch") == 1


class EndsBadly(gg.Callback):
    """Fails in on_fit_end, and, if `early`, before that in on_epoch_end."""

    def __init__(self, early):
        self.early = early

    def on_epoch_end(self, trainer, record):
        if self.early:
            raise ArithmeticError("the first one")

    def on_fit_end(self, trainer):
        raise LookupError("the end")


@pytest.mark.parametrize("early", [False, True])
def test_an_error_at_the_end_leaves_no_other_callback_out(data, tmp_path, early):
    """The others have files to close and locks to give back; and what has ended fit is what it raises."""
    one, saves, recorder = trainer(), gg.Checkpoint(tmp_path / "a.safetensors"), Recorder()
    wanted = ArithmeticError if early else LookupError
    with warnings.catch_warnings(record=True) as said, pytest.raises(wanted):
        warnings.simplefilter("always")
        one.fit(data[0], data[1], batch_size=8, callbacks=[EndsBadly(early), saves, recorder], progress=False)
    assert ["the end" in str(w.message) for w in said if "on_fit_end" in str(w.message)] == [True] * early
    assert recorder.calls[-1] == "over" and one.failed and not saves._locks
    checkpoint_files.unlock(checkpoint_files.lock(os.fspath(tmp_path / "a.safetensors")))
    assert not checkpoint_files._held


def test_a_callback_of_one_rank_fails_or_stops_under_mpi(mpirun):
    """All ranks raise it, also where a callback behind it wants all weights; and stop= of one rank ends all."""
    program = """
import gossipgrad as gg
train, test = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
t = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)), optimizer=gg.SGD(lr=0.05))
class Alone(gg.Callback):
    def on_fit_begin(self, trainer):
        trainer.stop = self.stops and trainer.rank == 1
    def on_epoch_end(self, trainer, record):
        if trainer.rank == 1: raise LookupError("of one rank")
alone = Alone()
alone.stops = False
try: t.fit(train, test, batch_size=8, callbacks=[alone, gg.EarlyStopping()], progress=False)
except LookupError as error: print(f"{t.rank}: {error}", flush=True)
alone.stops = True
assert len(t.fit(train, test, batch_size=8, callbacks=alone, progress=False)) == 1
"""
    out = mpirun(2, program).stdout
    assert "0: rank 1: of one rank" in out and "1: of one rank" in out


def test_a_new_rank_saves_when_the_others_do():
    """Saves are collective; the command of a host that joins may leave these options out."""
    donors, own = gg.Checkpoint("a", save_best=False, every=5, save_on_signal=True), gg.Checkpoint("a")
    donors.best = 0.5
    take_known([own], json.loads(json.dumps(known_of([donors]))))
    assert (own.save_last, own.save_best, own.every, own.save_on_signal) == (True, False, 5, True)
    assert own.best == 0.5
