"""Networks for speech."""

from __future__ import annotations

from collections.abc import Sequence

from gossipgrad.layers import Layer, Linear, Sigmoid
from gossipgrad.model import Model, Sequential
from gossipgrad.models.building import at_least, network


@network
def speech_dnn(classes: int = 5999, inputs: int = 440, hidden: Sequence[int] = (1024,) * 6) -> Model:
    """Linear layers with Sigmoid between, for acoustic states: 440-1024-1024-1024-1024-1024-1024-5999.

    11,848,559 parameters; loss "cross_entropy". As trained on BN50 in Chen et al., "AdaComp" (2017): 440 values are 11
    frames of 40. Weights start by Glorot and Bengio's rule, biases from 0.
    """
    layers: list[Layer] = []
    for i, width in enumerate(hidden, 1):
        linear = Linear(at_least(f"hidden[{i - 1}]", width), weight_init="xavier_uniform", bias_init=0.0, name=f"fc{i}")
        layers += [linear, Sigmoid(name=f"sigmoid{i}")]
    last = at_least("classes", classes)
    layers.append(Linear(last, weight_init="xavier_uniform", bias_init=0.0, name=f"fc{len(hidden) + 1}"))
    return Sequential(layers, input=(at_least("inputs", inputs),), name="speech_dnn")
