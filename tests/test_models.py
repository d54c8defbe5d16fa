"""The networks that have names."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import models


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


def test_by_name():
    assert models.by_name("lenet").make().name == "lenet"
    with pytest.raises(ValueError, match="model='alexnet': allowed: 'lenet', 'mlp'"):
        models.by_name("alexnet")
