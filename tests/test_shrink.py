"""Events of apoptosis: what leaves, what stays the same, and what goes on: checkpoints, callbacks, strategies, MPI."""

from __future__ import annotations

import json
import signal
import warnings

import numpy as np
import pytest
from conftest import ROOT

import gossipgrad as gg
from gossipgrad import _core, apoptosis
from gossipgrad.training.events import say

TIMES = ("seconds", "step_seconds_before", "step_seconds_after")


def mlp(seed=0):
    """fc1 has a multiple of unit 1 and one equal to unit 2, fc2 one opposite to unit 0."""
    layers = [gg.Linear(8), gg.ReLU(), gg.Linear(6), gg.Tanh(), gg.Linear(3)]
    net = gg.Sequential(layers, input=(6,), name="mlp")
    w = net.weights(seed)
    for place, one, factor in (("fc1", (5, 1), 2.0), ("fc1", (6, 2), 1.0), ("fc2", (4, 0), -1.0)):
        for part in ("weight", "bias"):
            w[f"{place}.{part}"][one[0]] = factor * w[f"{place}.{part}"][one[1]]
    net.load_weights(w)
    return net


def convolutions(seed=0):
    """The filters 1 and 4 are equal behind their batch normalisation."""
    layers = [gg.Conv2d(6, 3, padding=1), gg.BatchNorm2d(), gg.ReLU(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(3)]
    net = gg.Sequential(layers, input=(2, 6, 6), name="convolutions")
    w = net.weights(seed)
    w["bn1.weight"] *= np.linspace(0.5, 1.5, 6, dtype=np.float32)
    w["bn1.running_mean"][:] = np.linspace(-0.2, 0.2, 6)
    for name in ("conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"):
        w[name][4] = w[name][1]
    net.load_weights(w)
    return net


def recurrent(seed=0, stateful=False):
    """The hidden units 1 and 3 are equal."""
    net = gg.Sequential([gg.LSTM(5, stateful=stateful), gg.Linear(3)], input=(4, 2), name="recurrent")
    w = net.weights(seed)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        gates = w[f"lstm1.{name}"].reshape(4, 5, -1)
        gates[:, 3] = gates[:, 1]
    net.load_weights(w)
    return net


def trainer_of(net, p=2, **options):
    how = {"optimizer": gg.SGD(lr=0.05, momentum=0.9), "comm": gg.VirtualCluster(p), "seed": 5}
    return gg.Trainer(net, **(how | options))


PLANTED = {
    "mlp": (mlp, {"fc1": [{1, 5}, {2, 6}], "fc2": [{0, 4}]}),
    "convolutions": (convolutions, {"conv1": [{1, 4}]}),
    "recurrent": (recurrent, {"lstm1": [{1, 3}]}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_leaves_and_nothing_changes(name):
    make, planted = PLANTED[name]
    net = make()
    trainer = trainer_of(net, loss="mean_squared_error" if name == "recurrent" else "cross_entropy")
    x = np.random.default_rng(1).standard_normal((40, *net.input_shape)).astype(np.float32)
    before = trainer.predict(x)
    event = trainer.shrink(0.0)
    assert set(event["indices"]) == set(planted) == set(event["left"]) and not event["undone"] and event["by_hand"]
    for layer, pairs in planted.items():
        assert len(event["indices"][layer]) == len(pairs) == event["left"][layer]
        assert all(len(set(event["indices"][layer]) & pair) == 1 for pair in pairs)
    assert np.abs(trainer.predict(x) - before).max() <= 1e-5 * np.abs(before).max()
    small = trainer.net
    assert small.born == {layer: net.units[layer] for layer in planted} and net.shrinks_to(small)
    assert {k: a.shape for k, a in trainer.weights(1).items()} == small.parameter_shapes()
    assert {k: a.shape for k, a in trainer.momentum().items()}.items() <= small.parameter_shapes().items()
    assert event["parameters"] == small.parameters < net.parameters and "->" in small.summary()
    assert trainer.history.apoptosis["events"] == [{k: v for k, v in event.items() if k != "indices"}]
    again = trainer.shrink(0.0)
    assert again["left"] == {} and not again["undone"] and trainer.net is small, "nothing is left to leave"


@pytest.mark.cpu("a device makes room for the batches of a new plan, and records its steps, when they are run first")
@pytest.mark.parametrize("name", PLANTED)
def test_the_step_after_an_event_allocates_nothing(name):
    net = PLANTED[name][0]()
    loss = "mean_squared_error" if name == "recurrent" else "cross_entropy"
    trainer = trainer_of(net, loss=loss, optimizer=gg.SGD(lr=0.0, momentum=0.9))
    x = np.random.default_rng(1).standard_normal((40, *net.input_shape)).astype(np.float32)
    y = np.zeros((40, *net.output_shape), np.float32) if name == "recurrent" else np.zeros(40, np.int32)
    both = gg.Dataset(x, y)
    trainer.core.begin(both.for_model(net.inputs, trainer.heads, net.target_names), 4)
    trainer.core.epoch(0)
    trainer.core.run(1)
    assert trainer.shrink(0.0)["left"]
    warm = _core.memory()[1]
    assert trainer.core.run(4) == 5
    assert _core.memory()[1] == warm


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 120, 40, noise=0.3)


RULE = gg.Apoptosis(every=6, budget=0.15, epsilon=0.05, probe=32, least=2)
# Strategies with what compresses them; the events are at steps 6, 12, 18, ... of 7 an epoch (2 ranks) or 5 (3 ranks).
STRATEGIES = {
    "gossip": (gg.GossipGraD(), None),
    "gossip, late, samples": (gg.GossipGraD(staleness=1, shuffle_samples=True), None),
    "gossip, edges": (gg.GossipGraD(rotate=False), gg.AdaComp(dense_below=0)),
    "all-reduce": (gg.AllReduce(), None),
    "all-reduce, cyclic": (gg.AllReduce(), gg.AdaComp(selection="cyclic", bin_size=8, dense_below=30)),
    "layerwise": (gg.LayerwiseAllReduce(wire_dtype="bfloat16"), None),
    "periodic": (gg.PeriodicAllReduce(period=3), None),
    "overlapped": (gg.OverlappedAveraging(chunk_bytes=64), None),
    "elastic": (gg.ElasticAveraging(period=3), None),
    "server": (gg.ParameterServer(period=2), None),
    "pull": (gg.PullGossip(), None),
    "push-sum": (gg.PushGossip(push_sum=True), None),
    "outer steps": (gg.DiLoCo(period=4), None),
    "outer steps in groups": (gg.NoLoCo(period=3, fragments=2), None),
    "none": (gg.NoExchange(), None),
}


def shrinking(name, p=3, **options):
    strategy, compression = STRATEGIES[name]
    how = {"strategy": strategy, "compression": compression, "apoptosis": RULE}
    return trainer_of(mlp(), p, **(how | options))


def fit(trainer, data, epochs, **options):
    return trainer.fit(data[0], data[1], epochs=epochs, batch_size=8, progress=False, **options)


def without_times(found):
    return [{k: v for k, v in one.items() if k not in TIMES} for one in found["events"]]


class Save(gg.Callback):
    """A checkpoint after each epoch."""

    def __init__(self, path):
        self.path = path

    def on_epoch_end(self, trainer, record):
        trainer.save(f"{self.path}{record['epoch']}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_resuming_equals_never_having_stopped(name, data, tmp_path):
    """Before the first event, between events, and where an event is due at the step that the checkpoint has reached."""
    whole = shrinking(name)
    history = fit(whole, data, 4, callbacks=[Save(tmp_path / "c")])
    events = without_times(history.apoptosis)
    assert [one["step"] for one in events] == [6, 12, 18], "of 20 steps"
    assert any(one["left"] and not one["undone"] for one in events), "or nothing is seen here"
    assert history["parameters"] == sorted(history["parameters"], reverse=True) and whole.net.born
    for saved in (1, 2, 3):
        path = f"{tmp_path}/c{saved}"
        rest = shrinking(name)
        again = fit(rest, data, 4, resume=path)
        assert again.weights_sha256 == history.weights_sha256, f"resumed after epoch {saved}"
        assert without_times(again.apoptosis) == events and again.apoptosis["bound"] == history.apoptosis["bound"]
        for key in ("train_loss", "validation.loss", "parameters", "units.fc1", "consensus_distance"):
            assert again[key] == history[key], key
        assert rest.net.same_network(whole.net) and rest.net.born == whole.net.born
    loaded = gg.Trainer.load(f"{tmp_path}/c2")
    assert loaded.apoptosis == RULE and loaded.net.born == gg.Trainer.load(f"{tmp_path}/c2").net.born
    assert fit(loaded, data, 2).weights_sha256 == history.weights_sha256
    assert loaded.history["train_loss"] == history["train_loss"]


def test_an_event_that_is_due_where_an_epoch_ends_belongs_to_the_next(data, tmp_path):
    rule = gg.Apoptosis(every=5, budget=0.15, epsilon=1.0, probe=32)  # epochs of 5 steps
    seen = []

    class Look(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.save(f"{tmp_path}/c{record['epoch']}")
            seen.append(("end", trainer.step, len(trainer.history.apoptosis["events"])))

        def on_shrink(self, trainer, event):
            assert event is trainer.history.apoptosis["events"][-1]
            assert trainer.net.parameters == event["parameters"] and trainer.evaluate(data[1])["loss"] > 0
            seen.append(("event", event["step"], event["epoch"]))

    history = fit(shrinking("gossip", apoptosis=rule), data, 2, callbacks=[Look()])
    assert seen == [("end", 5, 0), ("event", 5, 2), ("end", 10, 1)]
    again = fit(shrinking("gossip", apoptosis=rule), data, 2, resume=f"{tmp_path}/c1")
    assert without_times(again.apoptosis) == without_times(history.apoptosis)
    assert again["units.fc1"] == history["units.fc1"]


def test_seconds_of_events_and_steps(data):
    history = fit(shrinking("all-reduce"), data, 4)
    for record in history:
        assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])
        within = [one["seconds"] for one in history.apoptosis["events"] if one["epoch"] == record["epoch"]]
        assert (
            record["apoptosis_seconds"] == pytest.approx(sum(within))
            and record["apoptosis_seconds"] <= record["seconds"]
        )
    events = history.apoptosis["events"]
    assert all(one["step_seconds_before"] > 0 and one["step_seconds_after"] > 0 for one in events)
    assert [one["step_seconds_after"] for one in events[:-1]] == [one["step_seconds_before"] for one in events[1:]]


def everything(trainer):
    """All that ranks have, as bytes."""
    parts = [trainer.rank_state(rank) for rank in range(trainer.size)]
    flat = [(key, k, a.tobytes()) for part in parts for key, arrays in sorted(part.items()) for k, a in arrays.items()]
    return trainer.step, flat, [trainer.sample_ids(rank).tolist() for rank in range(trainer.size)]


@pytest.mark.parametrize("name", ["gossip, late, samples", "gossip, edges", "overlapped", "elastic", "push-sum"])
def test_an_event_that_is_undone_has_changed_nothing_but_that_all_settled(name, data):
    found = []
    for undone in (True, False):
        trainer = shrinking(name)
        core_set = data[0].for_model(trainer.net.inputs, trainer.heads, trainer.net.target_names)
        steps = trainer.core.begin(core_set, 8)
        trainer.prepare_rates(steps)
        trainer.core.epoch(0)
        trainer.core.run(3)
        if undone:
            event = trainer.shrink(0.5, probe=data[1], epsilon=-1.0)
            assert event["undone"] and event["left"] and event["indices"] == {}
            assert event["loss_before"] == pytest.approx(trainer.evaluate(data[1])["loss"], rel=1e-5)
        else:
            trainer.settle()
            trainer.evaluate(data[1])
        at = everything(trainer)
        trainer.core.run(steps)
        counts = trainer.core.end_epoch()
        found.append((at, everything(trainer), counts["train_loss"], trainer.weights_sha256(), trainer.net.units))
    assert found[0] == found[1]


def test_a_save_after_ctrl_c_within_an_event(tmp_path):
    net = PLANTED["convolutions"][0]()
    trainer = trainer_of(net)
    core, path = trainer.core, tmp_path / "small"

    class Interrupted:
        def __getattr__(self, name):
            return getattr(core, name)

        def apply_shrink(self, *plan):
            core.apply_shrink(*plan)
            raise KeyboardInterrupt

    trainer._core = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        trainer.shrink(0.0)
    trainer._core = core
    assert trainer.net.parameters < net.parameters
    trainer.save(path)
    again = gg.Trainer.load(path)
    assert again.net.units == trainer.net.units and again.weights_sha256() == trainer.weights_sha256()


def test_best_epochs_before_an_event(data, tmp_path):
    """The best epoch's network comes back with its sizes; its checkpoint has them."""

    class First(gg.Callback):
        """The first epoch is the best one; the network shrinks after it."""

        def on_epoch_end(self, trainer, record):
            if record["epoch"] == 1:
                weights.append(trainer.consensus_weights())
                assert trainer.shrink(0.3)["left"]

    weights = []
    for restore in (True, False):
        trainer = trainer_of(mlp(), 2, strategy=gg.ElasticAveraging(period=2))
        stop = gg.EarlyStopping("train_loss", min_delta=10.0, patience=2, restore_best=restore)
        callbacks = [stop, gg.Checkpoint(tmp_path / f"{restore}.c", "train_loss", "max"), First()]
        fit(trainer, data, 4, callbacks=callbacks)
        assert trainer.epoch == 3 and stop.best_epoch == 1
        assert (trainer.net.units["fc1"] == 8) == restore == (trainer.net.born == {})
        best = gg.Trainer.load(tmp_path / f"{restore}.best.c")
        last = gg.Trainer.load(tmp_path / f"{restore}.c")
        assert best.net.units["fc1"] == 8 and last.net.units["fc1"] < 8 and last.net.born["fc1"] == 8
        assert last.evaluate(data[1])["loss"] > 0 and fit(last, data, 1)["units.fc1"][-1] == last.net.units["fc1"]
        if restore:
            for name, array in trainer.consensus_weights().items():
                assert np.allclose(array, weights[0][name], atol=1e-6), name
            assert not any(array.any() for array in trainer.momentum().values())
            fit(trainer, data, 1)
            assert trainer.epoch == 4


def test_an_interrupt_while_the_larger_network_comes_back_waits_for_its_weights(data, monkeypatch):
    trainer = trainer_of(mlp(), 2)
    fit(trainer, data, 1)
    kept, wanted = trainer.copy_weights(), trainer.weights_sha256()
    assert trainer.shrink(0.3)["left"]

    inner = trainer._is_now

    def interrupted(*given):
        inner(*given)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer, "_is_now", interrupted)
    for _ in range(2):  # the second time nothing has to grow
        before = signal.getsignal(signal.SIGINT)
        if trainer.net.born:
            with pytest.raises(KeyboardInterrupt):
                trainer.put_weights_back(kept)
        else:
            trainer.put_weights_back(kept)
        assert signal.getsignal(signal.SIGINT) is before
        assert trainer.weights_sha256() == wanted and trainer.net.units["fc1"] == 8
    assert not any(array.any() for array in trainer.momentum().values())
    fit(trainer, data, 1)


def test_moments_that_begin_at_zero_with_the_larger_network_are_adams_first(data):
    """Its bias correction counts from there: in its first step the weights move by lr."""

    class Smaller(gg.Callback):
        def on_epoch_end(self, trainer, record):
            if record["epoch"] == 1:
                assert trainer.shrink(0.3)["left"]

    x, y = data[0].samples[:30], data[0].targets[:30]
    stop = gg.EarlyStopping("train_loss", min_delta=10.0, patience=2)
    with trainer_of(mlp(), 1, optimizer=gg.Adam(lr=0.01), comm=None) as trainer:
        fit(trainer, data, 4, callbacks=[stop, Smaller()])
        assert trainer.net.units["fc1"] == 8 and not any(array.any() for array in trainer.momentum().values())
        before = trainer.weights()
        trainer.train_step(x, y)
        gradients = trainer.gradients()
        for name, array in trainer.weights().items():
            moved = abs(gradients[name]) > 1e-4
            assert moved.any()
            np.testing.assert_allclose(abs(array - before[name])[moved], 0.01, 1e-3)


def test_what_goes_on_after_an_event(data, tmp_path):
    trainer = shrinking("gossip", trace=100_000)
    fit(trainer, data, 2)
    net = trainer.net
    assert net.born and trainer.history.model == {"name": "mlp", "parameters": net.parameters}
    assert trainer.evaluate(data[1], replicas=True)[2]["loss"] > 0
    assert trainer.predict(data[1]).shape == (len(data[1]), 3) and trainer.audit_samples()["ok"]
    trainer.save(tmp_path / "c")
    again = net.resized({})
    again.load_weights(tmp_path / "c")
    again.save_weights(tmp_path / "w")
    other = mlp().resized(net.units)
    other.load_weights(tmp_path / "w")
    assert set(other.weights()) == set(mlp().weights()), "the same names"
    assert all(np.array_equal(a, other.weights()[k]) for k, a in trainer.consensus_weights().items())
    trainer.write_trace(tmp_path / "t")
    trainer.history.write(tmp_path / "r")
    report = gg.History.read(tmp_path / "r")
    assert report.to_dict() == trainer.history.to_dict()
    assert report.apoptosis["born"] == {"parameters": mlp().parameters, "units": mlp().units}
    assert report.apoptosis["fixed"] == {"fc3": "'fc3' (linear) is an output of the network"}
    assert report.apoptosis["options"] == RULE.settings() == report.settings["apoptosis"]


def test_another_run_without_apoptosis_goes_on_with_what_is_left(data, tmp_path):
    fit(shrinking("gossip"), data, 3, callbacks=[Save(tmp_path / "c")])
    plain = shrinking("gossip", apoptosis=None)
    with pytest.warns(UserWarning, match=r"units have left its network, which had 131 parameters and has \d+"):
        history = fit(plain, data, 4, resume=f"{tmp_path}/c3")
    assert len(set(history["units.fc1"][2:])) == 1 and plain.net.born
    before = [record for record in history.apoptosis["events"] if record["epoch"] <= 3]
    assert before == history.apoptosis["events"], "the history stays"
    other = gg.Trainer(gg.Sequential([gg.Linear(9), gg.ReLU(), gg.Linear(3)], input=(6,)), comm=gg.VirtualCluster(3))
    with pytest.raises(gg.CheckpointError, match="is of another model"):
        fit(other, data, 4, resume=f"{tmp_path}/c3")
    back = shrinking("gossip")
    fit(back, data, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(back, data, 2, resume=f"{tmp_path}/c1")
    assert len(back.history) == 2, "and a network that has shrunk has its former size again"


def test_a_probe_of_ones_own(data, tmp_path):
    rule = gg.Apoptosis(every=6, budget=0.15, epsilon=0.05, probe=data[1])
    trainer = shrinking("gossip", apoptosis=rule)
    history = fit(trainer, data, 2, callbacks=[Save(tmp_path / "c")])
    assert history.settings["apoptosis"]["probe"] == {"name": data[1].name, "samples": 40}
    assert gg.Trainer.load(f"{tmp_path}/c1").apoptosis.probe == 40
    own = gg.Trainer.load(f"{tmp_path}/c1", apoptosis=rule)
    assert without_times(fit(own, data, 1).apoptosis) == without_times(history.apoptosis)
    with pytest.raises(ValueError, match=r"samples of shape \(4,\), but the network's input is \(6,\)"):
        shrinking("gossip", apoptosis=gg.Apoptosis(probe=(np.zeros((5, 4), np.float32), np.zeros(5, int))))


def test_nothing_leaves_where_the_probe_has_no_loss(data):
    """All its targets are ignored, so nothing can be compared."""
    probe = data[1].samples, np.zeros(len(data[1]), np.int32)
    rule = gg.Apoptosis(every=3, budget=0.3, probe=probe)
    with trainer_of(mlp(), 2, loss=gg.CrossEntropy(ignore_index=0), apoptosis=rule) as trainer:
        history = fit(trainer, data, 2)
        events = [one for one in history.apoptosis["events"] if one["left"]]
        assert events and trainer.net.units == mlp().units
        for one in events:
            assert one["undone"] and one["loss_before"] is one["loss_after"] is one["loss_limit"] is None
            assert "undone" in say(one) and "NaN" in say(one)


def test_a_probe_of_what_is_read_in_order(data):
    """It is the beginning, read once before training."""
    rule = gg.Apoptosis(every=4, budget=0.3, epsilon=9.0, probe=25)
    passes = []

    class Batches:
        def __iter__(self):
            passes.append(None)
            yield from ((data[0].samples[i : i + 10], data[0].targets[i : i + 10]) for i in range(0, 120, 10))

    stream = gg.data.from_iterable(Batches(), stream=True, samples=120)
    history = trainer_of(mlp(), 1, apoptosis=rule).fit(stream, epochs=2, batch_size=10, progress=False)
    assert [one["step"] for one in history.apoptosis["events"]] == [4, 8, 12, 16, 20] and history.last[
        "parameters"
    ] < 131
    assert len(passes) == 1 + 1 + 2, "to look at it, for the probe, and for the epochs"
    first = gg.Dataset(data[0].samples[:25], data[0].targets[:25])
    same = trainer_of(mlp(), 1, apoptosis=gg.Apoptosis(every=4, budget=0.3, epsilon=9.0, probe=first))
    again = same.fit(stream, epochs=2, batch_size=10, progress=False)
    assert without_times(again.apoptosis) == without_times(history.apoptosis)


def test_text_that_streams_and_state_that_is_carried(tmp_path):
    text = "the quick brown fox jumps over the lazy dog.\n" * 60
    train, test = gg.data.text(text, 8, windows="streams", validation=0.25)
    count = len(train.vocabulary)

    def make():
        x = gg.Input((8,), dtype="int32")
        y = gg.ReLU()(gg.Linear(40, name="mid")(gg.LSTM(12, stateful=True, name="rnn")(gg.Embedding(count, 8)(x))))
        rule = gg.Apoptosis(every=5, budget=0.1, epsilon=0.5, probe=20, layers="mid")
        return trainer_of(gg.Model(x, gg.Linear(count)(y)), optimizer=gg.Adam(lr=0.01), apoptosis=rule)

    history = make().fit(train, test, epochs=3, batch_size=8, callbacks=[Save(tmp_path / "c")], progress=False)
    assert history.last["units"]["mid"] < 40 and history.last["units"]["rnn"] == 12
    again = make().fit(train, test, epochs=3, batch_size=8, resume=tmp_path / "c1", progress=False)
    assert again.weights_sha256 == history.weights_sha256 and again["parameters"] == history["parameters"]


def test_the_learning_rate_goes_on(data):
    """By a schedule, and where a callback has set it."""

    class Look(gg.Callback):
        def on_shrink(self, trainer, event):
            seen.append((event["step"], bool(event["left"]), event["undone"], trainer.consensus_weights()))

    for set_rate in (None, 0.0):
        seen = []
        schedule = gg.schedules.StepDecay(every=5, gamma=1e-30)  # of 6 steps an epoch: there is no training after 5
        rule = gg.Apoptosis(every=6, budget=0.2, epsilon=9.0, layers="fc1")
        trainer = trainer_of(mlp(), 3, optimizer=gg.SGD(lr=0.05, schedule=schedule), apoptosis=rule)
        if set_rate is not None:
            trainer.learning_rate = set_rate
        fit(trainer, data, 2)
        fit(trainer, data, 1, callbacks=[Look()])
        assert len(seen) == 1 and seen[0][0] == 12 and not seen[0][2]
        for name, array in trainer.consensus_weights().items():
            assert np.allclose(array, seen[0][3][name], atol=1e-6), name


def test_shards_of_ones_own(data):
    parts = [data[0][:40], data[0][40:90], data[0][90:]]
    history = shrinking("gossip").fit(parts, epochs=3, batch_size=8, progress=False, sharded=True)
    assert [one["step"] for one in history.apoptosis["events"]] == [6, 12, 18]


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"budget": -0.1}, ValueError, "budget=-0.1"),
        ({"budget": 1.5}, ValueError, "budget=1.5"),
        ({"budget": np.nan}, ValueError, "budget=nan"),
        ({"least": 0}, ValueError, "least=0"),
        ({"layers": "fc9"}, ValueError, "shrink: layers='fc9': no layer with units has this name; did you mean"),
        ({"layers": "fc3"}, ValueError, "shrink: layers='fc3': cannot shrink: fc3: 'fc3' .linear. is an output of the"),
        ({"epsilon": 0.1}, ValueError, "epsilon=0.1: allowed only with probe="),
        ({"probe": 7}, TypeError, "probe"),
        ({"probe": (np.zeros((5, 4), np.float32), np.zeros(5, int))}, ValueError, r"samples of shape \(4,\)"),
        ({"budgt": 0.1}, TypeError, r"shrink\(\) has no keyword 'budgt'; did you mean 'budget'"),
    ],
)
def test_errors(given, kind, words):
    trainer = trainer_of(mlp())
    with pytest.raises(kind, match=words):
        trainer.shrink(**given)
    assert trainer.net.born == {} and trainer.history.apoptosis == {}


def test_weights_that_are_no_numbers():
    trainer = trainer_of(mlp())
    w = trainer.weights()
    w["fc1.weight"][0, 0] = np.nan
    trainer.core.exchange.load_arena("weight", w)
    with pytest.raises(FloatingPointError):
        trainer.shrink(0.1)
    assert trainer.net.born == {} and trainer.weights().keys() == w.keys(), "nothing has changed"


def test_least_units_and_chosen_layers():
    trainer = trainer_of(mlp())
    event = trainer.shrink(1.0, layers="fc1", least=5)
    assert set(event["left"]) == {"fc1"} and trainer.net.units == {"fc1": 5, "fc2": 6, "fc3": 3}
    with pytest.raises(ValueError, match="cannot shrink"):
        trainer.shrink(layers="fc3")
    trainer.shrink(1.0, least={"fc1": 0.5, "fc2": 3})
    assert trainer.net.units == {"fc1": 4, "fc2": 3, "fc3": 3}, "half of what it had at first"
    trainer.shrink(1.0, least={"fc2": 2})
    assert trainer.net.units == {"fc1": 1, "fc2": 2, "fc3": 3}
    with pytest.raises(ValueError, match="shrink: least: 'fc4': no layer with units"):
        trainer.shrink(1.0, least={"fc4": 2})


@pytest.mark.full
def test_plots(data, tmp_path):
    pytest.importorskip("matplotlib")
    history = fit(shrinking("gossip"), data, 4)
    gg.plots.apoptosis(history, tmp_path / "one.png")
    figure = gg.plots.apoptosis({"one": history, "two": history})
    assert (tmp_path / "one.png").read_bytes()[:4] == b"\x89PNG" and len(figure.axes) == 4
    sizes = figure.axes[1].lines[0].get_ydata()
    assert sizes[0] == mlp().parameters and sizes[-1] == history.last["parameters"]
    with pytest.raises(ValueError, match="no network could shrink"):
        gg.plots.apoptosis(gg.History())


# ---- MPI


def run_all(comm=None):
    """[shas, events, parameters] of two strategies, as they are on every rank."""
    made = gg.data.synthetic((6,), 3, 120, 40, noise=0.3)
    found = []
    for name in ("gossip, late, samples", "overlapped"):
        trainer = shrinking(name, comm=comm)
        history = fit(trainer, made, 3)
        found.append([history.weights_sha256, without_times(history.apoptosis), history["parameters"]])
        trainer.close()
    trainer = shrinking("all-reduce", comm=comm)
    parts = [made[0][:50], made[0][50:90], made[0][90:]]
    history = trainer.fit(
        parts if trainer.virtual else parts[trainer.rank], epochs=2, batch_size=8, sharded=True, progress=False
    )
    found.append([history.weights_sha256, without_times(history.apoptosis), history["parameters"]])
    trainer.close()
    return found


def planted_difference():
    """What each rank is told where rank 1 has made another plan."""
    trainer = shrinking("gossip", comm=None)
    one, other = (trainer.core.plan_shrink({"fc1": budget}) for budget in (0.2, 0.6))
    plan = other if trainer.rank == 1 else one
    try:
        trainer.become(plan)
        return "none"
    except RuntimeError as error:
        return str(error)


@pytest.mark.full
def test_mpi(mpirun):
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport test_shrink\n"
        "found = test_shrink.run_all()\nsaid = test_shrink.planted_difference()\n"
        "from gossipgrad.launch import start\nimport os\n"
        "print(json.dumps([found, said]), flush=True)\n"
    )
    done = mpirun(3, script)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 3
    wanted = json.loads(json.dumps(run_all(gg.VirtualCluster(3))))
    for found, said in lines:
        assert found == wanted
        assert "rank" in said and "plan" in said, said
    assert any(one["left"] for one in wanted[0][1]) and apoptosis.fixed(mlp())
