"""Building networks: names, shapes, weights, and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import gossipgrad as gg


def small() -> gg.Model:
    return gg.Sequential([gg.Conv2d(4, 3), gg.ReLU(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(5)], input=(2, 9, 8))


def test_names_shapes_and_counts():
    net = small()
    assert net.input_shape == (2, 9, 8) and net.output_shape == (5,)
    assert net.parameter_shapes() == {
        "conv1.weight": (4, 2, 3, 3),
        "conv1.bias": (4,),
        "fc1.weight": (5, 4 * 3 * 3),
        "fc1.bias": (5,),
    }
    assert net.parameters == 4 * 2 * 9 + 4 + 5 * 36 + 5
    text = net.summary()
    assert "conv1" in text and f"{net.parameters:,}" in text and "4 x 7 x 6" in text and str(net) == text
    outputs = 4 * (2 * 9 * 8 + 2 * 4 * 7 * 6 + 2 * 4 * 3 * 3 + 5)
    rows = [line.split() for line in text.splitlines()]
    assert rows[3] == ["input", "input", "2", "x", "9", "x", "8", "0", "0", f"{4 * 2 * 9 * 8}"]
    assert rows[-3] == ["total", f"{net.parameters:,}", f"{4 * 18 * 42 + 36 * 5:,}", f"{outputs:,}"]
    assert rows[-2][:3] == ["parameters:", f"{net.parameters:,}", "trained"]
    assert f"{outputs / 1024:.1f} KiB of outputs" in text
    assert net.statistics == 0 and set(net.parameter_roles().values()) == {"weight", "bias"}


def test_summary_counts_what_is_frozen():
    x = gg.Input((3, 4, 4))
    y = gg.BatchNorm2d(lr=(0, 1), name="block.bn")(gg.Conv2d(5, 1, lr=0, name="block.conv")(x))
    net = gg.Model(x, gg.Linear(2, lr=(1, 0))(gg.Flatten()(y)))
    trained, frozen = 5 + 2 * 80, 5 * 3 + 5 + 5 + 2
    words = f"{trained} trained ({4 * trained} bytes), {frozen} frozen by lr=0 ({4 * frozen} bytes), 10 statistics"
    assert words in net.summary()
    x = gg.Input((5, 8))
    attention = gg.Model(x, gg.Linear(2)(gg.MultiHeadAttention(8, 2, lr=(1, 0))(x)))
    assert f"{3 * 64 + 64 + 16 + 2} trained (1.1 KiB), {4 * 8} frozen by lr=0 (128 bytes)" in attention.summary()
    before = net.weights()
    with gg.Trainer(net) as trainer:
        trainer.fit(np.random.default_rng(0).random((8, 3, 4, 4)), np.arange(8) % 2, batch_size=4, progress=False)
        roles, after = net.parameter_roles(), trainer.weights()
    same = [n for n in before if roles[n] != "statistic" and np.array_equal(before[n], after[n])]
    assert same == ["block.conv.weight", "block.conv.bias", "block.bn.weight", "fc1.bias"]


def test_automatic_names_avoid_given_ones():
    net = gg.Sequential([gg.Linear(3), gg.Linear(3, name="fc1"), gg.Linear(3)], input=(4,))
    assert [n for n in net.parameter_shapes() if n.endswith("weight")] == ["fc2.weight", "fc1.weight", "fc3.weight"]


def test_branches():
    x = gg.Input((3, 6, 6))
    a = gg.Conv2d(4, 1, name="a")(x)
    b = gg.Conv2d(4, 3, padding=1, name="b")(x)
    y = gg.Concat()(gg.Add()(a, b), x)
    net = gg.Model(x, y, name="branches")
    assert net.output_shape == (7, 6, 6)
    assert (a + b).layer.kind == "add"


def test_torchvision_like_names_are_possible():
    net = gg.Sequential([gg.Conv2d(2, 3, bias=False, name="features.0")], input=(1, 4, 4))
    assert list(net.parameter_shapes()) == ["features.0.weight"]


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: gg.Conv2d(0, 3), ValueError, ["out=0", "at least 1"]),
        (lambda: gg.Conv2d(4, 0), ValueError, ["kernel=0"]),
        (lambda: gg.Conv2d(4, (3, 3, 3)), ValueError, ["kernel=(3, 3, 3)", "(height, width)"]),
        (lambda: gg.Conv2d(4, 3, padding=-1), ValueError, ["padding=-1"]),
        (lambda: gg.Conv2d(4, 3, groups=3), ValueError, ["groups=3", "out=4"]),
        (lambda: gg.Conv2d(4, 3.5), TypeError, ["kernel=3.5"]),
        (lambda: gg.Conv2d(4, 3, bias=1), TypeError, ["bias=1", "True or False"]),
        (lambda: gg.Linear("10"), TypeError, ["out='10'"]),
        (lambda: gg.Linear(10, weight_init="xavier"), ValueError, ["weight_init='xavier'", "xavier_uniform"]),
        (lambda: gg.Linear(10, weight_init=("normal", -1)), ValueError, ["weight_init[1]=-1"]),
        (lambda: gg.MaxPool2d(2, padding=2), ValueError, ["padding=2", "half of kernel"]),
        (lambda: gg.Dropout(1.0), ValueError, ["p=1.0", "< 1"]),
        (lambda: gg.Dropout(float("nan")), ValueError, ["p=nan"]),
        (lambda: gg.ReLU(name=""), ValueError, ["name=''"]),
        (lambda: gg.ReLU(name="x" * 100), ValueError, ["name=", "63"]),
        (lambda: gg.Input((3, 0)), ValueError, ["shape[1]=0"]),
        (lambda: gg.Add()(gg.Input((3,))), ValueError, ["Add()", "1 nodes"]),
        (lambda: gg.ReLU()(np.zeros(3)), TypeError, ["ReLU()", "ndarray"]),
        (lambda: gg.Sequential([], input=(3,)), ValueError, ["layers: empty"]),
        (lambda: gg.Sequential([gg.ReLU], input=(3,)), TypeError, ["layers[0]"]),
    ],
)
def test_bad_layers_are_refused_at_once(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.float64, np.float32])
def test_a_weight_is_filled_with_any_number(kind):
    layer = gg.Linear(10, weight_init=kind(2), bias_init=kind(0))
    assert layer.weight_init == ("constant", 2.0) and type(layer.weight_init[1]) is float
    assert layer.bias_init == ("constant", 0.0)
    for wrong in (True, np.True_):
        with pytest.raises(ValueError, match="weight_init=.*True.*or a number"):
            gg.Linear(10, weight_init=wrong)


def test_layers_of_a_network_that_was_refused_can_be_given_again():
    layers = [gg.Conv2d(4, 3), gg.Flatten(), gg.Linear(3)]
    for wrong in ((2, 2), (1, 2, 2)):
        with pytest.raises(ValueError, match="conv1"):
            gg.Sequential(layers, input=wrong)
    with pytest.raises(TypeError, match=r"layers\[3\] is a int"):
        gg.Sequential([*layers, 5], input=(1, 5, 5))
    assert gg.Sequential(layers, input=(1, 5, 5)).output_shape == (3,)
    with pytest.raises(ValueError, match="used twice"):
        gg.Sequential([gg.ReLU(), *layers], input=(1, 5, 5))
    with pytest.raises(ValueError, match="used twice"):
        gg.Sequential(layers, input=(1, 5, 5))


class Stem(gg.Conv2d):
    """A layer of a user's, with arguments of its own."""

    def __init__(self, out):
        super().__init__(out, 3, padding=1)


class Own(gg.Sequential):
    """A network of a user's, with an attribute of its own."""

    def __init__(self, out):
        super().__init__([Stem(out), gg.Flatten(), gg.Linear(3)], (1, 4, 4))
        self.out = out


def test_layers_and_networks_of_users_are_copied_and_saved(tmp_path):
    net = Own(2)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.freeze("fc1"), net.resized({"conv1": 1})):
        assert type(again) is Own and again.out == 2 and len(again.units) == 2
    with gg.Trainer(net) as trainer:
        trainer.save(tmp_path / "own.safetensors")
        with gg.Trainer.load(tmp_path / "own.safetensors") as loaded:
            assert loaded.weights_sha256() == trainer.weights_sha256() and loaded.net.same_network(net)


def test_layers_that_are_no_list():
    words = r"layers is a Flatten; allowed: a list of layers, as gg.Sequential\(\[gg.Linear"
    with pytest.raises(TypeError, match=words):
        gg.Sequential(gg.Flatten(), gg.Linear(10), input=(1, 5, 5))
    with pytest.raises(TypeError, match=words):
        gg.Sequential(gg.Flatten(), input=(1, 5, 5))


def test_a_layer_stands_at_one_place():
    layer = gg.Linear(3, name="twice")
    layer(gg.Input((3,)))
    with pytest.raises(ValueError, match="'twice'.*used twice.*not shared"):
        layer(gg.Input((3,)))


def test_shapes_that_do_not_fit_name_the_layer_and_both_shapes():
    with pytest.raises(ValueError, match="big") as caught:
        gg.Sequential([gg.Conv2d(2, 9, name="big")], input=(1, 4, 4))
    assert "4" in str(caught.value) and "9" in str(caught.value)
    x = gg.Input((3, 6, 6))
    with pytest.raises(ValueError, match="sum"):
        gg.Model(x, gg.Add(name="sum")(gg.Conv2d(4, 1)(x), x))


def test_names_are_unique_and_networks_connected():
    with pytest.raises(ValueError, match="name='a' is borne by two layers"):
        gg.Sequential([gg.ReLU(name="a"), gg.Tanh(name="a")], input=(3,))
    x, other = gg.Input((3,)), gg.Input((3,))
    with pytest.raises(ValueError, match="does not depend|not the network's input"):
        gg.Model(x, gg.ReLU()(other))
    with pytest.raises(TypeError, match="inputs is a str"):
        gg.Model("x", gg.ReLU()(other))


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = small().weights(3), small().weights(3), small().weights(4)
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    bound = 1 / np.sqrt(2 * 9)
    assert np.abs(first["conv1.weight"]).max() <= bound and np.abs(first["conv1.bias"]).max() <= bound


def test_initialisers():
    def drawn(init):
        return gg.Sequential([gg.Linear(200, weight_init=init, bias_init=0)], input=(300,)).weights()["fc1.weight"]

    assert np.all(drawn(0.25) == 0.25) and np.all(drawn(("constant", -1)) == -1)
    assert abs(drawn(("normal", 0.5)).std() - 0.5) < 0.01
    assert abs(drawn("he_normal").std() - np.sqrt(2 / 300)) < 0.001
    assert abs(np.abs(drawn("xavier_uniform")).max() - np.sqrt(6 / 500)) < 0.001
    assert abs(np.abs(drawn("caffe_xavier")).max() - np.sqrt(3 / 300)) < 0.001


def test_load_weights_and_what_does_not_fit(tmp_path):
    net, weights = small(), small().weights(7)
    weights["fc1.bias"][:] = 4
    net.load_weights({k: v.astype(np.float64) for k, v in weights.items()})
    assert net.loaded and all(np.array_equal(net.weights()[k], weights[k]) for k in weights)
    weights["fc1.bias"][:] = 5
    assert net.weights()["fc1.bias"][0] == 4, "load_weights copies"
    with pytest.raises(gg.CheckpointError, match=r"has no fc1.bias"):
        net.load_weights({k: v for k, v in weights.items() if k != "fc1.bias"})
    with pytest.raises(gg.CheckpointError, match="surplus, which the network lacks"):
        net.load_weights(weights | {"surplus": np.zeros(3)})
    with pytest.raises(gg.CheckpointError, match=r"fc1.weight has shape \(36, 5\), in the network \(5, 36\)"):
        net.load_weights(weights | {"fc1.weight": np.zeros((36, 5))})
    with pytest.raises(gg.CheckpointError, match="nowhere.*No such file"):
        net.load_weights(tmp_path / "nowhere.safetensors")


def test_the_spelling_of_other_libraries_is_refused():
    """Not a 20x20 kernel of stride 5, nor a bias of 16."""
    words = r"Conv2d\(1, 20, 5\): allowed without a keyword: filters and kernel; the size of the input is inferred"
    with pytest.raises(TypeError, match=words):
        gg.Conv2d(1, 20, 5)
    with pytest.raises(TypeError, match=r"Linear\(8, 16\): .*the number of outputs.*inferred.*bias="):
        gg.Linear(8, 16)
    with pytest.raises(TypeError, match="positional"):
        gg.MaxPool2d(3, 2, 1)


def test_an_argument_too_many_is_one_of_what_was_called():
    net = gg.Sequential([gg.Linear(3)], input=(2,))
    with pytest.raises(TypeError, match=r"^Trainer\(\): 2 positional arguments; allowed without a keyword: net$"):
        gg.Trainer(net, gg.Adam())
    with pytest.raises(TypeError, match=r"^AdaComp\(\): 1 positional argument; allowed without a keyword: none$"):
        gg.AdaComp(50)


def test_no_samples_are_no_matter_of_axes():
    trainer = gg.Trainer(gg.Sequential([gg.Flatten(), gg.Linear(3)], input=(1, 4, 4)))
    with pytest.raises(ValueError, match=r"x: shape \(0, 1, 4, 4\), but .* \(n, 1, 4, 4\), n at least 1$"):
        trainer.predict(np.zeros((0, 1, 4, 4), np.float32))


def test_config_makes_the_same_network():
    x = gg.Input((3, 8, 8), name="picture")
    a = gg.Conv2d(
        6,
        3,
        stride=(2, 1),
        padding=(1, 0),
        dilation=(1, 2),
        groups=3,
        bias=False,
        weight_init=("normal", 0.1),
        bias_init=0.5,
        name="c",
    )(x)
    b = gg.AvgPool2d(2, 1, padding=(1, 0), ceil_mode=True, count_include_pad=False)(a)
    y = gg.Dropout(0.25)(gg.Concat()(b, gg.Sigmoid()(b)))
    net = gg.Model(x, y, name="n")
    again = gg.Model.from_config(net.config())
    assert again.same_network(net) and again.summary() == net.summary()
    assert not again.same_network(small())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_model_can_be_copied_and_pickled(again):
    x = gg.Input((3, 8, 8))
    y = gg.Conv2d(4, 3, padding=1, weight_init=("normal", 0.1), name="a")(x)
    y = gg.Linear(5, bias=False)(gg.Flatten()(y + gg.Conv2d(4, 3, padding=1)(x)))
    for net in (gg.Model(x, y, name="branches"), gg.models.lenet()):
        other = again(net)
        assert type(other) is type(net) and other.same_network(net) and other.name == net.name
        assert not other.loaded and other.graph is not net.graph
        net.load_weights(net.weights(seed=5))
        other = again(net)
        assert other.loaded and other.weights().keys() == net.weights().keys()
        assert gg.Trainer(other).weights_sha256() == gg.Trainer(net).weights_sha256()
        net.load_weights(net.graph.initial_weights(6))
        assert gg.Trainer(other).weights_sha256() != gg.Trainer(net).weights_sha256()


@pytest.mark.parametrize(
    ("shape", "said"),
    [((32, 32, 3), True), ((20, 30, 4), True), ((28, 28, 1), True), ((3, 32, 32), False), ((64, 20, 1), False)],
)
def test_an_input_with_its_channels_last_is_warned_of(shape, said, recwarn):
    gg.Sequential([gg.Conv2d(2, 1), gg.Flatten(), gg.Linear(2)], input=shape)
    gg.Model(x := gg.Input(shape), gg.MaxPool2d(1)(x))
    gg.Sequential([gg.Flatten(), gg.Linear(2)], input=shape)
    found = [str(one.message) for one in recwarn]
    assert len(found) == (2 if said else 0)
    for text in found:
        assert "channels come first" in text and f"input={(shape[2], *shape[:2])}" in text
        assert "x.transpose(0, 3, 1, 2)" in text
    assert all(one.filename == __file__ for one in recwarn)


@pytest.mark.parametrize("config", [{}, {"layers": [{}]}, {"layers": [{"layer": "Linear"}]}, {"layers": 3}, 3])
def test_what_describes_no_network(config):
    with pytest.raises((ValueError, TypeError), match="config|int"):
        gg.Model.from_config(config)


def test_a_names_length_is_counted_in_bytes():
    assert gg.Linear(3, name="é" * 31 + "x").name == "é" * 31 + "x"
    with pytest.raises(ValueError, match="1 to 63 bytes of UTF-8; it has 64 bytes"):
        gg.Linear(3, name="é" * 32)


@pytest.mark.parametrize("file", [3, "log.txt"])
def test_a_bar_wants_a_file_that_is_open(file):
    with pytest.raises(TypeError, match=f"file={file!r}: allowed: an open file"):
        gg.ProgressBar(file=file)
