"""The networks that have names."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import bench, models


def test_lenet():
    net = gg.models.lenet()
    assert net.parameters == 431_080
    assert net.input_shape == (1, 28, 28) and net.output_shape == (10,)
    assert net.parameter_shapes() == {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "fc1.weight": (500, 800),
        "fc1.bias": (500,),
        "fc2.weight": (10, 500),
        "fc2.bias": (10,),
    }
    macs = 20 * 25 * 24 * 24 + 50 * 20 * 25 * 8 * 8 + 800 * 500 + 500 * 10
    assert sum(node["macs"] for node in net.graph.nodes()) == macs


def test_lenet_as_caffe_starts_it():
    weights = gg.models.lenet(weight_init="caffe_xavier", bias_init=0).weights()
    assert not weights["fc1.bias"].any()
    assert np.isclose(np.abs(weights["fc1.weight"]).max(), np.sqrt(3 / 800), rtol=1e-3)


def test_mlp():
    net = gg.models.mlp()
    assert net.parameters == 28 * 300 + 300 + 2 * (300 * 300 + 300) + 301
    assert net.input_shape == (28,) and net.output_shape == (1,)
    assert gg.models.mlp(4, (), 3).parameters == 15
    with pytest.raises(ValueError, match=r"hidden\[1\]=0"):
        gg.models.mlp(4, (5, 0))


@pytest.mark.parametrize(
    ("name", "trained", "statistics"),
    [  # what torchvision's own documentation and the papers say
        ("alexnet", 61_100_840, 0),
        ("vgg11", 132_863_336, 0),
        ("vgg13", 133_047_848, 0),
        ("vgg16", 138_357_544, 0),
        ("vgg19", 143_667_240, 0),
        ("vgg11_bn", 132_868_840, 2 * 2752),
        ("vgg16_bn", 138_365_992, 2 * 4224),
        ("vgg19_bn", 143_678_248, 2 * 5504),
        ("googlenet", 13_004_888, 2 * (7280 + 2 * 128)),
        ("resnet18", 11_689_512, 2 * 4800),
        ("resnet34", 21_797_672, 2 * 8512),
        ("resnet50", 25_557_032, 2 * 26560),
        ("resnet101", 44_549_160, 2 * 52672),
        ("resnet20", 269_722, 2 * 688),
        ("resnet32", 464_154, 2 * 1136),
        ("resnet56", 853_018, 2 * 2032),
        ("speech_dnn", 11_848_559, 0),
        ("char_gpt", 65 * 128 * 2 + 64 * 128 + 4 * (12 * 128**2 + 13 * 128) + 2 * 128, 0),
        ("char_lstm", 65 * 128 + 2 * 4 * 128 * (128 + 128 + 2) + 65 * 129, 0),
    ],
)
def test_sizes_that_are_known(name, trained, statistics):
    net = getattr(gg.models, name)()
    assert (net.name, net.parameters, net.statistics) == (name, trained, statistics)
    assert gg.models.by_name(name).make is getattr(gg.models, name)


def test_googlenet_and_its_heads():
    net = gg.models.googlenet(7)
    heads = [(one.name, one.shape, one.training_only, one.weight, one.target) for one in net.heads]
    assert heads == [("fc", (7,), False, 1.0, 0), ("aux1", (7,), True, 0.3, 0), ("aux2", (7,), True, 0.3, 0)]
    plain = gg.models.googlenet(auxiliary=False)
    assert plain.parameters == 6_624_904 and len(plain.heads) == 1
    published = gg.models.googlenet(auxiliary=False, form="published")
    assert published.parameters == 6_998_552, "as in Caffe's bvlc_googlenet without its auxiliary heads"
    with pytest.raises(ValueError, match="form='caffe': allowed: 'torchvision', 'published'"):
        gg.models.googlenet(form="caffe")


def test_images_of_other_sizes_and_classes():
    net = gg.models.resnet18(7, (1, 65, 33))
    assert net.parameter_shapes()["conv1.weight"] == (64, 1, 7, 7) and net.output_shape == (7,)
    assert gg.models.vgg11(3, (3, 32, 47), hidden=5).output_shape == (3,)
    with pytest.raises(ValueError, match=r"input=\(3, 224\): allowed: \(channels, height, width\)"):
        gg.models.resnet50(input=(3, 224))
    with pytest.raises(ValueError, match="features.12.*3"):
        gg.models.alexnet(input=(3, 40, 40))
    with pytest.raises(ValueError, match="dropout=1"):
        gg.models.vgg11(dropout=1)
    with pytest.raises(ValueError, match="classes=0"):
        gg.models.resnet20(0)


def test_initial_weights_as_torchvision_draws_them():
    weights = gg.models.resnet18(input=(3, 33, 33)).weights()
    wide = weights["layer3.0.conv1.weight"]
    assert np.isclose(wide.std(), np.sqrt(2 / (256 * 9)), rtol=0.01)
    assert (weights["bn1.weight"] == 1).all() and not weights["bn1.bias"].any()
    assert not weights["bn1.running_mean"].any() and (weights["bn1.running_var"] == 1).all()
    vgg = gg.models.vgg11(input=(3, 32, 32), hidden=8).weights()
    assert np.isclose(vgg["classifier.0.weight"].std(), 0.01, rtol=0.02) and not vgg["features.0.bias"].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: gg.models.resnet18(num_classes=3),
            r"resnet18\(\) has no keyword 'num_classes'; did you mean 'classes'\?",
        ),
        (lambda: gg.models.vgg11(input_shape=3), r"vgg11\(\) has no keyword 'input_shape'; did you mean 'input'\?"),
        (lambda: gg.models.char_gpt(n_layer=3), r"char_gpt\(\) has no keyword 'n_layer'; did you mean 'layers'\?"),
        (lambda: gg.models.resnet50(pretrained=True), r"has no keyword 'pretrained'; net.load_weights\(FILE\)"),
        (lambda: gg.Conv2d(3, kernel_size=3), r"Conv2d\(\) has no keyword 'kernel_size'; did you mean 'kernel'\?"),
        (lambda: gg.ReLU(nam="x"), r"ReLU\(\) has no keyword 'nam'; did you mean 'name'\?"),
        (lambda: gg.SGD(learning_rate=0.1), r"SGD\(\) has no keyword 'learning_rate'; did you mean 'lr'\?"),
        (lambda: gg.GossipGraD(stale=1), r"GossipGraD\(\) has no keyword 'stale'; did you mean 'staleness'\?"),
        (lambda: gg.CrossEntropy(weight=[1, 2]), r"has no keyword 'weight'; did you mean 'class_weights'\?"),
        (lambda: gg.VirtualCluster(4, late=2), r"VirtualCluster\(\) has no keyword 'late'"),
        (lambda: gg.Sequential([gg.ReLU()], input_shape=3), r"Sequential\(\) has no keyword 'input_shape'; did you"),
        (lambda: gg.Trainer(None, optim=None), r"Trainer\(\) has no keyword 'optim'; did you mean 'optimizer'\?"),
    ],
)
def test_a_keyword_that_is_nearly_right_gets_a_hint(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_signatures_are_those_that_were_written():
    """For help, completion and the API reference."""
    assert list(inspect.signature(gg.models.resnet18).parameters) == ["classes", "input", "width"]
    assert list(inspect.signature(gg.SGD).parameters)[:2] == ["lr", "momentum"]
    assert "kernel" in inspect.signature(gg.Conv2d).parameters and "ResNet-18" in gg.models.resnet18.__doc__


def test_by_name():
    assert models.by_name("lenet").make().name == "lenet"
    with pytest.raises(ValueError, match="model='alexnet2': allowed: 'lenet', 'mlp'.*did you mean 'alexnet'"):
        models.by_name("alexnet2")


@pytest.mark.parametrize("name", models.BY_NAME)
def test_batches_of_random_numbers_fit_each_network(name):
    entry = models.by_name(name)
    net = entry.make()
    x, y = bench.synthetic_batch(net, entry.loss, 3)
    assert x.shape == (3, *net.input_shape) and x.dtype == net.inputs[0].dtype and len(y) == 3
    if entry.loss == "cross_entropy":
        assert y.shape == (3, *net.output_shape[:-1]) and 0 <= y.min() <= y.max() < net.output_shape[-1]
    if net.tokens() is not None:
        assert 0 <= x.min() <= x.max() < net.tokens() == net.output_shape[-1]


def test_tokens_that_follow_a_rule_are_learned():
    net = gg.models.char_lstm(12, 9, embedding=12, hidden=24, layers=1)
    train, test = gg.data.for_network(net, "synthetic")
    assert train.shape == (9,) and np.array_equal(train.samples[:, 1:], train.targets[:, :-1])
    history = gg.Trainer(net, optimizer=gg.Adam(lr=0.01)).fit(train, validation=test, batch_size=20, progress=False)
    assert history.last["validation"]["accuracy"] > 0.8
