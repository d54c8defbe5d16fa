"""Apoptosis: networks of other sizes, what is wanted of it, and the rule that says how much may leave."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import apoptosis, compare
from gossipgrad.apoptosis import Apoptosis, Course
from gossipgrad.compare import processes


def mlp(*sizes):
    layers = [one for size in sizes for one in (gg.Linear(size), gg.ReLU())]
    return gg.Sequential([*layers, gg.Linear(3)], input=(6,), name="small")


def test_a_network_of_other_sizes():
    net = mlp(8, 5).freeze("fc1")
    small = net.resized({"fc1": 3})
    assert small.units == {"fc1": 3, "fc2": 5, "fc3": 3} and small.born == {"fc1": 8}
    assert small.same_network(mlp(3, 5).freeze("fc1")) and not small.same_network(net), "factors and names stay"
    assert net.shrinks_to(small) and net.shrinks_to(net) and not small.shrinks_to(net)
    assert not net.shrinks_to(mlp(3, 5)), "of which fc1 is trained"
    assert not net.shrinks_to(mlp(8).freeze("fc1"))
    smaller = small.resized({"fc1": 2, "fc2": 4})
    for again in (smaller, pickle.loads(pickle.dumps(smaller)), gg.Model.from_config(smaller.config())):
        assert again.born == {"fc1": 8, "fc2": 5} and again.same_network(smaller)
    back = smaller.resized(smaller.born)
    assert back.same_network(net) and back.born == {} and back.config() == net.config()
    net.load_weights(net.weights(3))
    assert net.loaded and not net.resized({"fc1": 3}).loaded and net.resized({"fc1": 3}).parameters < net.parameters


def test_layers_that_follow_take_the_new_size():
    x = gg.Input((2, 8, 8))
    y = gg.Flatten()(gg.MaxPool2d(2)(gg.ReLU()(gg.BatchNorm2d()(gg.Conv2d(6, 3, padding=1)(x)))))
    net = gg.Model(x, gg.Linear(4)(y)).resized({"conv1": 5})
    shapes = net.parameter_shapes()
    assert shapes["fc1.weight"] == (4, 5 * 16) and shapes["bn1.weight"] == (5,) and shapes["conv1.weight"][0] == 5
    text = net.summary()
    assert "6 x 8 x 8 -> 5 x 8 x 8" in text and "2 x 8 x 8 ->" not in text
    assert f"{net.resized(net.born).parameters + 12:,} -> {net.parameters + 10:,}" in text, "statistics count as well"
    lstm = gg.Sequential([gg.LSTM(7), gg.Linear(2)], input=(4, 3)).resized({"lstm1": 5})
    assert lstm.parameter_shapes()["lstm1.weight_hh_l0"] == (20, 5) and lstm.units == {"lstm1": 5, "fc1": 2}


@pytest.mark.parametrize(
    ("sizes", "kind", "words"),
    [
        (
            {"fc9": 3},
            ValueError,
            r"'fc9': ...}\): no layer has this name; did you mean 'fc\d'\?; allowed: fc1, fc2, fc3",
        ),
        ({"relu1": 3}, ValueError, "'relu1': ...}.: has no units"),
        ({"fc1": 0}, ValueError, "resized: fc1=0: allowed: an integer of at least 1"),
        ({"fc1": 2.5}, TypeError, "resized: fc1=2.5"),
    ],
)
def test_sizes_that_cannot_be(sizes, kind, words):
    with pytest.raises(kind, match=words):
        mlp(8, 5).resized(sizes)


def test_which_layers_can_shrink():
    lenet = gg.models.lenet()
    assert apoptosis.chosen("x", "*", lenet) == ["conv1", "conv2", "fc1"]
    assert apoptosis.chosen("x", ("fc*", "conv2"), lenet) == ["fc1", "conv2"]
    assert apoptosis.fixed(lenet) == {"fc2": "'fc2' (linear) is an output of the network"}
    resnet = gg.models.resnet20()
    inner = [f"layer1.{i}.conv1" for i in range(3)]
    assert apoptosis.chosen("x", "layer1", resnet) == ["conv1", *inner], "to conv1 the outputs of blocks are added"
    for layers, words in (
        ("fc2", "x: layers='fc2': cannot shrink: fc2: 'fc2' .linear. is an output of the network"),
        ("fc3", "x: layers='fc3': no layer with units has this name; did you mean 'fc2'.; allowed: conv1, conv2, fc1"),
        ("relu1", "no layer with units"),
        (("fc1", "nothing*"), r"layers='nothing\*'"),
    ):
        with pytest.raises(ValueError, match=words):
            apoptosis.chosen("x", layers, lenet)


def test_how_many_units_stay():
    lenet = gg.models.lenet()
    assert apoptosis.leasts("x", 3, lenet) == {"conv1": 3, "conv2": 3, "fc1": 3, "fc2": 3}
    assert apoptosis.leasts("x", 0.1, lenet) == {"conv1": 2, "conv2": 5, "fc1": 50, "fc2": 1}
    mixed = {"conv2": 9, "conv*": 0.01, "fc1": 0.101}
    assert apoptosis.leasts("x", mixed, lenet) == {"conv1": 1, "conv2": 9, "fc1": 51, "fc2": 1}
    assert apoptosis.leasts("x", mixed, lenet.resized({"fc1": 60})) == apoptosis.leasts("x", mixed, lenet)
    assert apoptosis._read_least("conv*=8,fc1=0.25") == {"conv*": 8, "fc1": 0.25} and apoptosis._read_least("3") == 3
    with pytest.raises(ValueError, match="x: least: 'fc3': no layer with units has this name; did you mean 'fc2'"):
        apoptosis.leasts("x", {"fc3": 2}, lenet)
    for text in ("x", "fc1=x", "fc1=0", "1.5", "fc1"):
        with pytest.raises(ValueError, match="allowed: a number of units, a share, or NAME=N with commas"):
            apoptosis._read_least(text)


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"budget": -0.1}, ValueError, "budget=-0.1: allowed: a finite number >= 0 and <= 1"),
        ({"budget": 1.5}, ValueError, "budget=1.5"),
        ({"budget": math.nan}, ValueError, "budget=nan"),
        ({"budget": "0.1"}, TypeError, "budget='0.1'"),
        ({"epsilon": -0.1}, ValueError, "epsilon=-0.1"),
        ({"every": 0}, ValueError, "every=0: allowed: an integer of at least 1"),
        ({"every": 10, "stop": 10}, ValueError, "stop=10: allowed: above start=10"),
        ({"start": 30, "stop": 20}, ValueError, "stop=20: allowed: above start=30"),
        ({"least": 0}, ValueError, "least=0: allowed: an integer of at least 1"),
        ({"least": 1.5}, ValueError, "least=1.5: allowed: a finite number > 0 and < 1"),
        ({"least": {"fc1": 0}}, ValueError, r"least\['fc1'\]=0"),
        ({"least": {"": 2}}, ValueError, "layers=''"),
        ({"least": "8"}, TypeError, "least='8'"),
        ({"probe": 0}, ValueError, "probe=0"),
        ({"probe": "all"}, TypeError, "probe='all'"),
        ({"probe": [1, 2, 3]}, TypeError, "probe"),
        ({"layers": 3}, TypeError, "layers=3: allowed: a name of a layer"),
        ({"layers": ()}, ValueError, r"layers=\(\)"),
        ({"grow": 0.9}, ValueError, "grow=0.9: allowed: a finite number >= 1"),
        ({"shrink": 1.0}, ValueError, "shrink=1.0: allowed: a finite number > 0 and < 1"),
        ({"interval": 3}, TypeError, r"Apoptosis\(\) has no keyword 'interval'"),
        ({"evry": 3}, TypeError, "did you mean 'every'"),
    ],
)
def test_arguments_out_of_range(given, kind, words):
    with pytest.raises(kind, match=words):
        Apoptosis(**given)


def test_settings_make_the_same_again():
    for options in (
        Apoptosis(),
        Apoptosis(every=7, start=0, stop=90, layers=("fc1", "conv*"), budget=0, probe=9, least={"fc*": 0.1}),
    ):
        again = apoptosis.from_settings(options.settings())
        assert again == options and again.settings() == options.settings()
    own = Apoptosis(probe=([[1.0, 2.0]] * 5, [0, 1, 0, 1, 1]))
    assert own.settings()["probe"] == {"name": "probe", "samples": 5}
    assert apoptosis.from_settings(own.settings()).probe == 5
    assert apoptosis.from_settings(None) is None


def event(step, left, undone=False, loss=1.0, after=2.0):
    return {"step": step, "left": left, "undone": undone, "loss_before": loss, "loss_after": after}


def events(options, steps, begin=0, course=None):
    """The steps of a run's events if no event finds a unit."""
    course, found, step = course or Course.begun(options), [], begin
    while (due := course.due(options, step)) is not None and due < steps:
        found.append(due)
        course.learn(options, event(due, {}), ["a"])
        step = due
    return found, course


def test_when_events_are():
    assert events(Apoptosis(every=10), 41)[0] == [10, 20, 30, 40]
    assert events(Apoptosis(every=10, start=0, stop=20), 90)[0] == [0, 10]
    assert events(Apoptosis(every=10, start=5, stop=26), 90)[0] == [5, 15, 25]
    assert events(Apoptosis(every=1, start=3), 6)[0] == [3, 4, 5]
    options = Apoptosis(every=10)
    for cut in (9, 10, 11, 20, 29):
        first, course = events(options, cut)
        rest, _ = events(options, 41, cut, Course.of(options, course.settings()))
        assert first + rest == [10, 20, 30, 40], f"stopped before step {cut}"


def test_the_budget_follows_what_becomes_of_events():
    options = Apoptosis(budget=0.1, grow=2.0, shrink=0.5)
    course = Course.begun(options)
    assert course.budgets(["a", "b"]) == {"a": 0.1, "b": 0.1}
    course.learn(options, event(100, {"a": 3}), ["a", "b"])
    assert course.budgets(["a", "b"]) == {"a": 0.2, "b": 0.05}, "who pays gets more, the budget is not above the given"
    course.learn(options, event(200, {"a": 2}, undone=True), ["a", "b"])
    assert course.budgets(["a", "b"]) == {"a": 0.05, "b": 0.025} and course.last == 200, (
        "units that were not to be spared"
    )
    course.learn(options, event(300, {}), ["a", "b"])
    assert course.budgets(["a", "b"]) == {"a": 0.1, "b": 0.05}, "nothing was found: it grows back"
    for step in range(400, 3000, 100):
        course.learn(options, event(step, {"a": 1}), ["a", "b"])
    assert course.budgets(["a", "b"]) == {"a": 0.8, "b": 0.0125}, "8 times and an eighth at most"
    for step in range(3000, 6000, 100):
        course.learn(options, event(step, {"a": 1}, undone=True), ["a", "b"])
    assert course.budget == pytest.approx(1e-4), "a thousandth at least"
    again = Course.of(options, course.settings())
    assert again == course
    assert Course.of(Apoptosis(budget=1e-5), course.settings()).budget == 1e-5
    assert Course.begun(Apoptosis(budget=0.5)).budgets(["a"]) == {"a": 0.5}
    assert Course(0.5, gain={"a": 8.0}).budgets(["a"]) == {"a": 1.0}


def test_what_events_cost_does_not_add_up():
    options = Apoptosis(epsilon=0.1)
    course = Course.begun(options)
    assert apoptosis.limit(0.1, 2.0) == apoptosis.limit(0.1, 2.0, course.best) == pytest.approx(2.2)
    for step, loss, best in ((100, 2.0, 2.0), (200, 1.0, 1.0), (300, 1.05, 1.0), (400, math.nan, 1.0)):
        course.learn(options, event(step, {}, loss=loss), ["a"])
        assert course.best == best
    assert apoptosis.limit(0.1, 1.05, course.best) == pytest.approx(1.1), "of the lowest, not of the last one"
    assert apoptosis.limit(0.1, 0.5, course.best) == pytest.approx(0.55)
    assert apoptosis.limit(0.1, 3.0, course.best) == 3.0, "what costs nothing may leave at any time"
    before = course.settings() | {"last": 500}
    course.learn(options, event(500, {"a": 2}, undone=True, loss=3.0, after=3.1), ["a"])
    assert course.settings() == before, "it had to wait, which says nothing of the budget"
    course.learn(options, event(600, {"a": 2}, undone=True, loss=3.0, after=3.4), ["a"])
    assert course.budget == before["budget"] / 2 and course.gain["a"] < 1
    assert apoptosis.limit(0.1, -2.0) == pytest.approx(-1.8)
    assert Course.of(options, course.settings()) == course


def test_in_comparisons():
    words = "allreduce:apoptosis=true:apoptosis-budget=0.2:apoptosis-layers=fc1/fc2:apoptosis-least=fc*=3,allreduce"
    one, other = compare.entries(words)
    assert one.apoptosis == Apoptosis(budget=0.2, layers=("fc1", "fc2"), least={"fc*": 3}) and other.apoptosis is None
    assert one.settings()["apoptosis"] == one.apoptosis.settings() and other.settings()["apoptosis"] is None
    with pytest.raises(ValueError, match="apoptosis_budget: only with apoptosis=true"):
        compare.entries("allreduce:apoptosis-budget=0.2")
    with pytest.raises(TypeError, match="apoptosis='yes'"):
        compare.entries("allreduce:apoptosis=yes")
    how = {"model": "mlp", "dataset": "synthetic", "samples": 400, "points": 2, "ranks": [2], "global_batch": 20}
    shrinks = compare.entries("allreduce:apoptosis=true:apoptosis-every=5:apoptosis-budget=0.3:apoptosis-epsilon=9")[0]
    found = processes.train(compare.Comparison(entries=[shrinks], **how), shrinks, 2)
    assert found["report"]["apoptosis"]["events"] and len(found["points"]) == 2
    assert found["report"]["epochs"][-1]["parameters"] < found["report"]["apoptosis"]["born"]["parameters"]


def blocks(kind):
    """Attention with its projections inside or outside, and an inner width, in residual blocks; or a ResNet."""
    if kind == "resnet":
        return gg.models.resnet20(width=4, input=(3, 8, 8))
    x = gg.Input((5, 8))
    y = gg.LayerNorm(name="ln")(x)
    if kind == "packed":
        y = gg.Linear(8, name="out")(gg.Attention(4, name="attn")(gg.Linear(24, name="in")(y)))
    else:
        y = gg.MultiHeadAttention(8, 4, name="attn")(y)
    y = gg.Add()(y, x)
    y = gg.Add()(gg.Linear(8, name="down")(gg.GELU()(gg.Linear(16, name="up")(y))), y)
    return gg.Model(x, gg.Linear(10)(y))


@pytest.mark.parametrize("kind", ["packed", "multi_head", "resnet"])
def test_heads_inner_widths_and_residual_streams_shrink(kind, tmp_path):
    net, rng = blocks(kind), np.random.default_rng(1)
    weights = net.weights(3)
    for name, array in weights.items():
        array += rng.uniform(0.01, 0.1, array.shape).astype("f4")  # biases and statistics begin alike
        if name.startswith("in.") or "in_proj" in name:
            for part in array.reshape(3, 4, 2, -1):  # queries, keys, values of four heads
                part[2] = part[0]
        if name.startswith("up."):
            array[3] = array[9]
        if name.startswith("layer3") and ("conv2" in name or "bn2" in name):
            array[13] = array[1]  # to both of which the shortcut adds zeros
    net.load_weights(weights)
    wanted = {
        "packed": {"in": 18, "attn": 3, "up": 15},
        "multi_head": {"attn": 3, "up": 15},
        "resnet": {f"layer3.{i}.conv2": 15 for i in range(3)},
    }[kind]
    x = rng.normal(size=(12, *net.inputs[0].shape)).astype("f4")
    y = rng.normal(size=(12, *net.heads[0].shape)).astype("f4")
    with gg.Trainer(net, loss="mean_squared_error", comm=gg.VirtualCluster(2)) as trainer:
        before = trainer.predict(x)
        event = trainer.shrink(0.0)
        small = trainer.net
        assert {name: size for name, size in small.units.items() if size != net.units[name]} == wanted, event
        np.testing.assert_allclose(trainer.predict(x), before, atol=1e-5, rtol=1e-5)
        assert small.born.get("layer3.0.pad") == ((4, 4) if kind == "resnet" else None)
        trainer.fit(x, y, epochs=1, batch_size=3)
        trainer.save(tmp_path / "small.ckpt")
        after = trainer.predict(x)
    assert small.resized(small.born).same_network(net) and net.shrinks_to(small) and not small.shrinks_to(net)
    for again in (pickle.loads(pickle.dumps(small)), gg.Model.from_config(json.loads(json.dumps(small.config())))):
        assert again.same_network(small) and again.born == small.born
    assert " -> " in small.summary()
    with gg.Trainer.load(tmp_path / "small.ckpt") as trainer:
        assert trainer.net.same_network(small) and trainer.net.born == small.born
        np.testing.assert_array_equal(trainer.predict(x), after)


def test_sizes_of_a_pad():
    net = blocks("resnet")
    with pytest.raises(TypeError, match=r"resized: layer3.0.pad=3: allowed: 2 integers"):
        net.resized({"layer3.0.pad": 3})
    with pytest.raises(ValueError, match="'layer3.0.add'"):
        net.resized({"layer3.0.pad": (3, 4)})
