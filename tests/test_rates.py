"""Learning rates: functions, rates that are set while training, what the records say of them."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import schedules

STEPS = 4  # of an epoch
STRATEGIES = [gg.GossipGraD(), gg.GossipGraD(exchange="gradients"), gg.AllReduce()]


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 96, 30, noise=0.3)


def trainer(optimizer, strategy=None, p=3, loss="cross_entropy"):
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,), name="tiny")
    return gg.Trainer(net, loss=loss, optimizer=optimizer, strategy=strategy, comm=gg.VirtualCluster(p), seed=3)


def fit(made, data, epochs=3, **options):
    return made.fit(data[0], epochs=epochs, batch_size=8, progress=False, **options)


class SetRate(gg.Callback):
    """Sets the rate after these epochs."""

    def __init__(self, rates):
        self.rates = rates

    def on_epoch_end(self, trainer, record):
        if record["epoch"] in self.rates:
            trainer.learning_rate = self.rates[record["epoch"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", [lambda **o: gg.SGD(lr=0.25, momentum=0.9, **o), lambda **o: gg.Adam(lr=0.25, **o)])
def test_a_function_is_what_the_core_computes(data, make, strategy):
    """Powers of two have the same bits however they are computed."""
    core = trainer(make(schedule=schedules.StepDecay(every=3, gamma=0.5)), strategy)
    function = trainer(make(schedule=lambda t: 0.5 ** (t // 3)), strategy)
    assert fit(core, data).weights_sha256 == fit(function, data).weights_sha256
    assert core.history["learning_rate"] == function.history["learning_rate"]
    assert core.history["learning_rate"] == [0.25 * 0.5 ** ((STEPS * e - 1) // 3) for e in (1, 2, 3)]
    other = trainer(make(schedule=lambda t: 0.5 ** (t // 4)), strategy)
    assert fit(other, data).weights_sha256 != core.history.weights_sha256


def test_a_function_in_single_steps(data):
    rng = np.random.default_rng(0)
    batches = [(list(rng.normal(size=(3, 8, 6)).astype("f4")), list(rng.integers(0, 3, (3, 8)))) for _ in range(5)]
    for strategy in STRATEGIES:
        made = [
            trainer(gg.SGD(lr=0.25, momentum=0.9, schedule=one), strategy)
            for one in (schedules.StepDecay(every=1, gamma=0.5), lambda t: 0.5**t)
        ]
        for one in made:
            for x, y in batches:
                one.train_step(x, y)
        assert made[0].weights_sha256() == made[1].weights_sha256()


def test_warmup_comes_before_the_function():
    optimizer = gg.SGD(lr=0.8, schedule=schedules.Function(factor=lambda t: 0.5**t, warmup=4, warmup_start=0.5))
    wanted = [0.4, 0.5, 0.6, 0.7, 0.8, 0.4, 0.2]
    assert np.allclose([optimizer.rate(t) for t in range(7)], wanted, rtol=1e-15)


def test_the_record_says_the_rate_and_the_training_accuracy(data):
    made = trainer(gg.SGD(lr=0.1, schedule=schedules.Cosine()), gg.AllReduce())
    inside = []

    class Ask(gg.Callback):
        def on_epoch_begin(self, trainer, epoch):
            inside.append((trainer.optimizer.rate(trainer.step), trainer.learning_rate))

    fit(made, data, callbacks=[Ask()])
    plan = gg.SGD(lr=0.1, schedule=schedules.Cosine(total=3 * STEPS))
    assert inside == [(plan.rate(STEPS * e),) * 2 for e in range(3)]
    assert made.history["learning_rate"] == [plan.rate(STEPS * e - 1) for e in (1, 2, 3)]

    still = trainer(gg.SGD(lr=0.0))
    record = fit(still, data, epochs=1).last
    assert record["train_accuracy"] == still.evaluate(data[0])["accuracy"] and 0 < record["train_accuracy"] < 1
    values = gg.data.Dataset(data[0].samples, np.zeros((96, 3), "f4"))
    assert "train_accuracy" not in fit(trainer(gg.SGD(lr=0.0), loss="mean_squared_error"), (values,), epochs=1).last


def test_the_line_of_an_epoch_says_both(data, capsys):
    trainer(gg.SGD(lr=0.1)).fit(data[0], epochs=1, batch_size=8)
    line = capsys.readouterr().out
    assert "training accuracy" in line and "lr 0.1," in line


def test_a_rate_that_is_set_while_training(data):
    """It is the function that has these rates; setting it anew in a callback counts from the next epoch on."""
    steps = trainer(gg.SGD(lr=0.5, momentum=0.9, schedule=lambda t: (1.0, 0.25, 0.5)[t // STEPS]))
    hand = trainer(gg.SGD(lr=0.5, momentum=0.9))
    assert hand.learning_rate == 0.5
    fit(hand, data, callbacks=[SetRate({1: 0.125, 2: 0.25})])
    assert fit(steps, data).weights_sha256 == hand.history.weights_sha256
    assert hand.history["learning_rate"] == [0.5, 0.125, 0.25] and hand.learning_rate == 0.25

    again = trainer(gg.SGD(lr=0.5, momentum=0.9))
    for rate in (0.5, 0.125, 0.25):
        again.learning_rate = rate
        fit(again, data, epochs=1)
    assert again.history.weights_sha256 == hand.history.weights_sha256


@pytest.mark.parametrize("optimizer", [gg.SGD(lr=0.5, momentum=0.9), gg.Adam(lr=0.01)])
def test_a_resume_goes_on_with_the_rate_that_was_set(data, tmp_path, optimizer):
    path = tmp_path / "c.safetensors"
    rates = {1: 0.125, 3: 0.0625}
    whole = fit(trainer(optimizer), data, epochs=4, callbacks=[SetRate(rates)])
    fit(trainer(optimizer), data, epochs=2, callbacks=[SetRate(rates), gg.Checkpoint(path, save_best=False)])
    loaded = gg.Trainer.load(path)
    assert loaded.learning_rate == 0.125
    for second in (loaded, trainer(optimizer)):
        rest = fit(second, data, epochs=4, callbacks=[SetRate(rates)], resume=path)
        assert rest.weights_sha256 == whole.weights_sha256
        assert rest["learning_rate"] == whole["learning_rate"]
    with pytest.warns(UserWarning, match="lr .* -> 0.25"):
        other = fit(trainer(dataclasses.replace(optimizer, lr=0.25)), data, epochs=3, resume=path)
    assert other["learning_rate"][2] == 0.25


def test_a_checkpoint_of_a_function(data, tmp_path):
    def halved(step):
        return 0.5 ** (step // 3)

    path = tmp_path / "c.safetensors"
    optimizer = gg.SGD(lr=0.25, schedule=halved)
    whole = fit(trainer(optimizer), data, epochs=3)
    fit(trainer(optimizer), data, epochs=2, callbacks=[gg.Checkpoint(path, save_best=False)])
    assert fit(trainer(optimizer), data, epochs=3, resume=path).weights_sha256 == whole.weights_sha256
    loaded = gg.Trainer.load(path)
    assert loaded.settings()["schedule_function"].endswith("halved")
    assert loaded.predict(data[1]).shape == (30, 3)
    with pytest.raises(ValueError, match=r"halved, which a checkpoint cannot hold.*schedule=that function"):
        fit(loaded, data, epochs=1)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "0.1", None])
def test_values_that_are_no_rate(data, value):
    made = trainer(gg.SGD(lr=0.1, schedule=lambda t: value if t == 2 else 1.0))
    with pytest.raises((ValueError, TypeError), match=r"<lambda>\(2\)=.*allowed: a finite number >= 0"):
        fit(made, data)
    with pytest.raises((ValueError, TypeError), match=r"learning_rate=.*allowed: a finite number >= 0"):
        made.learning_rate = value
    assert made.learning_rate == 0.1


def test_the_largest_of_float32_is_the_largest_rate():
    """What optimisers allow, the core allows, too."""
    most = float(np.finfo(np.float32).max)
    made = trainer(gg.Adam(lr=most, beta1=1 - 2**-24, eps=most, weight_decay=most, clip_norm=most))
    with pytest.raises(ValueError, match=r"learning_rate=1e\+39: allowed: a finite number >= 0 and <= 3.40282e\+38"):
        made.learning_rate = 1e39
    assert made.learning_rate == most


@pytest.mark.parametrize("value", ["cosine", 0.1, schedules.Cosine, None])
def test_what_is_no_schedule(value):
    with pytest.raises(TypeError, match=r"schedule=.*allowed: .*Cosine\(\.\.\.\).*or a function of the step"):
        gg.SGD(lr=0.1, schedule=value)


def test_checked_values_are_plain_ones(data):
    optimizer = gg.SGD(lr=np.float32(0.5), momentum=np.float64(0.5), nesterov=np.True_)
    assert type(optimizer.lr) is float and type(optimizer.momentum) is float and optimizer.nesterov is True
    plan = schedules.StepDecay(every=np.int64(3), gamma=np.float32(0.5), warmup=np.int32(1))
    assert type(plan.every) is int and type(plan.gamma) is float and type(plan.warmup) is int
    assert type(schedules.Cosine(total=np.int64(3)).total) is int


@pytest.mark.parametrize(
    "name", ["net", "loss", "optimizer", "strategy", "seed", "comm", "threads", "backend", "trace", "network"]
)
def test_what_a_trainer_was_made_of_stays(name):
    made = trainer(gg.SGD(lr=0.1))
    before = getattr(made, name)
    with pytest.raises(AttributeError, match=rf"trainer\.{name} = .*allowed: a new gossipgrad\.Trainer\(.*{name}="):
        setattr(made, name, gg.Adam())
    assert getattr(made, name) is before


def test_ranks_with_rates_that_differ_fail_alike(mpirun):
    """Under MPI; nothing hangs, and every rank says which rates differ."""
    done = mpirun(
        2,
        "import gossipgrad as gg\n"
        "train, _ = gg.data.synthetic((6,), 3, 96, 30)\n"
        "net = gg.Sequential([gg.Linear(3)], input=(6,))\n"
        "trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.5))\n"
        "class Differ(gg.Callback):\n"
        "    def on_epoch_end(self, trainer, record):\n"
        "        trainer.learning_rate = 0.25 if trainer.rank else 0.125\n"
        "try:\n"
        "    trainer.fit(train, epochs=2, batch_size=8, callbacks=[Differ()], progress=False)\n"
        "except ValueError as error:\n"
        "    print(trainer.rank, len(trainer.history), error, flush=True)\n",
    )
    lines = sorted(line for line in done.stdout.splitlines() if "learning_rate" in line)
    said = r"learning_rate: 0.125 to 0.125 \(.*\) on rank 0; 0.25 to 0.25 \(.*\) on rank 1"
    assert [line[0] for line in lines] == ["0", "1"], done.stdout + done.stderr
    assert all(re.search(said, line) for line in lines), lines


def test_a_rate_that_is_set_is_not_that_of_what_is_in_flight():
    """Updates by gradients of a partner come when these arrive: here, when it settles."""
    strategy = gg.GossipGraD(exchange="gradients")
    x = [np.full((4, 6), 0.1 * (1 + rank), np.float32) for rank in range(3)]
    y = [np.full(4, rank) for rank in range(3)]
    found = []
    for settled_before in (True, False):
        net = gg.Sequential([gg.Linear(3)], input=(6,))
        with gg.Trainer(net, optimizer=gg.SGD(lr=0.5), strategy=strategy, comm=gg.VirtualCluster(3, latency=1)) as made:
            made.train_step(x, y)
            if settled_before:
                made.settle()
            made.learning_rate = 0.0
            found.append([made.weights(rank) for rank in range(3)])
    for settled, flying in zip(*found, strict=True):
        for name, array in settled.items():
            np.testing.assert_array_equal(flying[name], array, err_msg=name)


def test_of_an_exchange_neither():
    strategy = gg.GossipGraD(exchange="gradients")
    found = []
    for settled_before in (True, False):
        comm, start = gg.VirtualCluster(3, latency=1), {"w": np.ones(5)}
        with gg.Exchange(start, optimizer=gg.SGD(lr=0.5), strategy=strategy, comm=comm) as x:
            x.step([{"w": np.full(5, 1.0 + rank)} for rank in range(3)])
            if settled_before:
                x.settle()
            x.learning_rate = 0.0
            x.settle()
            found.append([replica.weights["w"].copy() for replica in x.replicas])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0][0] - 1).max() > 0
