"""The network: a graph of layers that a user writes down. The core infers and checks shapes.

Weights have PyTorch's names and shapes: "conv1.weight" (out, in/groups, height, width), "fc1.weight" (out, in),
"fc1.bias" (out,).
"""

from __future__ import annotations

import fnmatch
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core, heads, show, summary
from gossipgrad import weights as weights_of_others
from gossipgrad.errors import HIGHEST, CheckpointError, choice, did_you_mean, flag, integer, named_keywords, warn
from gossipgrad.layers import Factor, Layer, Node, Trained, factor_pair
from gossipgrad.literals import INPUT_TYPES, InputType
from gossipgrad.sequences import KINDS, Embedding
from gossipgrad.state import safetensors

Arrays = dict[str, NDArray[np.float32]]
Size = int | tuple[int | None, ...]  # units of a layer; before and after of a Pad; begin and end of a Slice
Nodes = Node | Sequence[Node] | Mapping[str, Node]


class _InputLayer(Layer):
    kind, prefix, inputs = "input", "input", (0, 0)

    def __init__(self, shape: Sequence[int], dtype: InputType = "float32", name: str | None = None) -> None:
        super().__init__(name)
        self.dtype: InputType = choice("dtype", dtype, INPUT_TYPES)
        if isinstance(shape, (int, np.integer)):
            shape = (int(shape),)
        if not isinstance(shape, (tuple, list)) or not shape:
            raise TypeError(f"shape={shape!r}: allowed: the shape of one sample, as (1, 28, 28)")
        self.shape = tuple(integer(f"shape[{i}]", size, 1) for i, size in enumerate(shape))

    def config(self) -> dict[str, Any]:
        return {"shape": list(self.shape)} | ({} if self.dtype == "float32" else {"dtype": self.dtype})


def Input(  # noqa: N802, as the layers
    shape: Sequence[int] | int, dtype: InputType = "float32", name: str | None = None
) -> Node:
    """An input of the network: the shape of one sample, without the batch, as (28,), or for images, whose channels come
    first, (3, 224, 224).

    dtype  "float32": numbers, also if the data have them as uint8 or another type. "int32": tokens, which stay whole
           numbers, for layers that take them, as Embedding.
    """
    layer = _InputLayer((shape,) if isinstance(shape, int) else shape, dtype, name)
    layer._used = True
    return Node(layer, ())


def _order(ends: Sequence[Node]) -> list[Node]:
    """The nodes that lead to the `ends`, each after its inputs, in a fixed order for a network."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(end, False) for end in reversed(ends)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((one, False) for one in reversed(node.inputs))
    return order


def _warn_of_channels_last(order: list[Node]) -> None:
    """Keras and image files have the channels last; (32, 32, 3) is a valid input here, with 32 channels."""
    for node in order:
        source = node.inputs[0].layer if node.inputs else None
        if not isinstance(source, _InputLayer) or node.layer.kind not in ("conv2d", "max_pool2d", "avg_pool2d"):
            continue
        shape = tuple(source.shape)
        if len(shape) != 3 or not (shape[2] in (3, 4) or (shape[2] == 1 and shape[0] == shape[1])):
            continue
        height, width, channels = shape
        if min(height, width) > channels:
            warn(
                f"input={shape}: channels come first, so this is {height} channels of {width} x {channels}; images of "
                f"{height} x {width} with {channels} channels are input={(channels, height, width)}, and samples "
                "x.transpose(0, 3, 1, 2)"
            )
            return


@named_keywords
class Model:
    """A network: all layers from the Input nodes `inputs` to the nodes `outputs`.

    inputs         a node, a list of nodes, or {name: node}: the names for data given as a dict; without names those of
                   the layers.
    outputs        a node, a list of nodes, or {name: node}; each is a head that a loss can see. The first is the main
                   one: evaluation reports its loss and accuracy as the network's, and metrics are measured on it.
    training_only  names or nodes of outputs, not the first, that training alone uses. Evaluation and prediction leave
                   them out, with the layers that lead to them alone.
    targets        the number of the data's targets that each output is trained on: a list, or by name. None: outputs
                   for training only use the first one's, each other one its own, in their order.
    loss_weights   factors of the outputs' losses in the sum that is trained, 1 by default: a list, or by name. The
                   trainer's loss_weights= take precedence.

    The constructor checks the whole network: ValueError names the layer and the shapes that do not fit. It holds no
    trained state: training changes the trainer's weights (trainer.weights()), not the network.
    """

    def __init__(
        self,
        inputs: Nodes,
        outputs: Nodes,
        name: str = "model",
        *,
        training_only: Iterable[str | Node] = (),
        targets: Sequence[int] | Mapping[str, int] | None = None,
        loss_weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> None:
        given_inputs, given_outputs = heads.nodes_of("inputs", inputs), heads.nodes_of("outputs", outputs)
        for _, node in given_inputs:
            if not isinstance(node.layer, _InputLayer):
                raise ValueError(f"inputs is the output of {node.layer!r}; wanted what gg.Input gave")
        self.name = name
        led = _order([node for _, node in given_outputs])
        sources = [node for _, node in given_inputs]
        for node in led:
            if isinstance(node.layer, _InputLayer) and node not in sources:
                raise ValueError(f"outputs depends on {node.layer!r}, which is not the network's input")
        for node in sources:
            if node not in led:
                raise ValueError(f"outputs does not depend on the network's input {node.layer!r}")
        order = _order([*sources, *(node for _, node in given_outputs)])
        _warn_of_channels_last(order)
        self._layers: list[tuple[Layer, str, tuple[int, ...]]] = []
        names = self._names(order)
        number_of = {id(node): i for i, node in enumerate(order)}
        graph = _core.Graph()
        for node, given in zip(order, names, strict=True):
            places = tuple(number_of[id(one)] for one in node.inputs)
            self._layers.append((node.layer, given, places))
            if isinstance(node.layer, _InputLayer):
                graph.input(node.layer.shape, given, node.layer.dtype)
            else:
                place = graph.layer(node.layer.kind, given, places, **node.layer.options())
                if isinstance(node.layer, Trained) and node.layer.factors():
                    graph.set_factors(place, node.layer.lr, node.layer.weight_decay)
        of = {id(node): given or names[number_of[id(node)]] for given, node in [*given_inputs, *given_outputs]}
        self.inputs = tuple(
            heads.Field(of[id(node)], number_of[id(node)], graph.shape(number_of[id(node)]), node.layer.dtype)
            for node in sources
            if isinstance(node.layer, _InputLayer)
        )
        if len({one.name for one in self.inputs}) < len(sources):
            raise ValueError(f"inputs: {', '.join(one.name for one in self.inputs)}: allowed: each name once")
        ends = [(of[id(node)], number_of[id(node)], graph.shape(number_of[id(node)])) for _, node in given_outputs]
        only = [of.get(id(one), repr(one)) if isinstance(one, Node) else one for one in training_only]
        self.heads = heads.heads(ends, only, targets, loss_weights)
        graph.finish(*((one.node, one.training_only) for one in self.heads))
        self.graph = graph
        self._loaded: Arrays | None = None
        self._born: dict[str, Size] = {}

    @staticmethod
    def _names(order: list[Node]) -> list[str]:
        used: set[str] = set()
        for node in order:
            if node.layer.name is not None:
                if node.layer.name in used:
                    raise ValueError(f"name={node.layer.name!r} is borne by two layers; names are unique in a network")
                used.add(node.layer.name)
        counts: dict[str, int] = {}
        names = []
        for node in order:
            name = node.layer.name
            if name is None and isinstance(node.layer, _InputLayer):
                name = "input" if "input" not in used else None
            while name is None:
                prefix = node.layer.prefix
                counts[prefix] = counts.get(prefix, 0) + 1
                if f"{prefix}{counts[prefix]}" not in used:
                    name = f"{prefix}{counts[prefix]}"
            used.add(name)
            names.append(name)
        return names

    # properties

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample; with several inputs that of the first."""
        return self.inputs[0].shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of one sample's output; with several outputs that of the first, the main one."""
        return self.heads[0].shape

    def tokens(self) -> int | None:
        """The number of different tokens of the first input, 0 to one less; None: it has numbers of any kind."""
        if self.inputs[0].dtype != "int32":
            return None
        readers = [layer for layer, _, inputs in self._layers if self.inputs[0].node in inputs]
        return min((layer.num for layer in readers if isinstance(layer, Embedding)), default=1)

    @property
    def carries_state(self) -> bool:
        """True if a layer carries its state from batch to batch, as LSTM(stateful=True)."""
        return any(getattr(layer, "stateful", False) for layer, _, _ in self._layers)

    @property
    def target_names(self) -> list[str]:
        """For each of the data's targets by number: the name of the first output trained on it."""
        numbers = [one.target for one in self.heads]
        return [self.heads[numbers.index(target)].name for target in range(max(numbers) + 1)]

    @property
    def parameters(self) -> int:
        """The count of trained numbers."""
        return summary.count(self.graph, trained=True)

    @property
    def statistics(self) -> int:
        """The count of numbers stored with the parameters but not trained, as the running means of BatchNorm."""
        return summary.count(self.graph, trained=False)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors' shapes by name, in the order of the network, statistics among them."""
        return {name: shape for name, shape, _ in self.graph.parameters()}

    def parameter_roles(self) -> dict[str, str]:
        """The role of each tensor: "weight", "bias", "scale", "shift", or "statistic", which is not trained."""
        return {name: role for name, _, role in self.graph.parameters()}

    @property
    def units(self) -> dict[str, int]:
        """Units of the layers that have some, by name: neurons of Linear, filters of Conv2d, hidden units of LSTM,
        heads of attention.
        """
        return {name: getattr(layer, key) for layer, name, _ in self._layers if (key := layer.units_keyword)}

    def _sizes(self) -> dict[str, Size]:
        """The units of layers; for a Pad its zeros before and after, for a Slice its begin and end."""
        found: dict[str, Size] = dict(self.units)
        for layer, name, _ in self._layers:
            if layer.extent_keywords:
                found[name] = tuple(getattr(layer, key) for key in layer.extent_keywords)
        return found

    @property
    def born(self) -> dict[str, Size]:
        """The units before the network was resized, of layers whose units have changed. Checkpoints have it.

        For a Pad zeros before and after, for a Slice its begin and end. net.resized(net.born) has the original sizes.
        """
        return dict(self._born)

    def __repr__(self) -> str:
        into, out = (", ".join(str(one.shape) for one in fields) for fields in (self.inputs, self.heads))
        return f"<Model {self.name}: {into} -> {out}, {self.parameters:,} parameters>"

    def summary(self) -> show.Text:
        """A table of the layers: kind, inputs, output shape, parameters; multiply-adds and bytes of outputs, a sample.

        A network that has shrunk shows original and current units, as 300 -> 57. print(net) shows it as well.
        """
        inputs, outputs = ([one.shape for one in ends] for ends in (self.inputs, self.heads))
        before = self.resized(self._born).graph if self._born else None
        return summary.text(self.name, self.graph, inputs, outputs, self._frozen(), before)

    def _frozen(self) -> int:
        """The count of numbers that have gradients but stay as they are, by lr=0 of their layers."""
        parameters = iter(self.graph.parameters())  # in the order of the layers
        frozen = 0
        for (layer, _, _), node in zip(self._layers, self.graph.nodes(), strict=True):
            rest: int = node["parameters"]
            while rest > 0:
                _, shape, role = next(parameters)
                rest -= math.prod(shape)
                if role != summary.STATISTIC and isinstance(layer, Trained):
                    frozen += 0 if layer.lr[role in ("bias", "shift")] else math.prod(shape)
        return frozen

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    # weights

    def weights(self, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        """The initial weights of training: loaded ones, for others those drawn from this seed. Copies, by name."""
        loaded = self._loaded or {}
        if len(loaded) == len(self.parameter_shapes()):
            return {name: array.copy() for name, array in loaded.items()}
        initial = self.graph.initial_weights(integer("seed", seed, 0, 2**64 - 1))
        return initial | {name: array.copy() for name, array in loaded.items()}

    @property
    def loaded(self) -> bool:
        """True if weights have been loaded. A trainer draws the others from its seed."""
        return self._loaded is not None

    def load_weights(
        self, weights: Mapping[str, Any] | str | os.PathLike[str], *, strict: bool = True
    ) -> weights_of_others.Misfit:
        """Start from these: a .safetensors file, a .pt or .pth file of torch.save, or arrays or tensors by name.

        Names and shapes are PyTorch's, so the state_dict of a module with these names loads as it is, also if saved
        under DistributedDataParallel or torch.compile. If a file holds more, as {"model": ..., "optimizer": ...}, its
        only dictionary of tensors is loaded. Code in a file is never run. All is copied, NaN and infinities too.

        strict   True: CheckpointError names weights that are missing, too much, or of another shape, at most 20 of
                 each.
                 False: weights that fit are loaded, and the others start from their initial values; at least one tensor
                 must fit. The misfits are returned: `missing`, `extra`, and `shapes`, (given, wanted) by name.
        """
        given, what = weights_of_others.opened(weights)
        found, misfit = weights_of_others.fit(given, self.parameter_shapes(), what)
        if misfit and (flag("strict", strict) or not found):
            raise CheckpointError(f"{what} is of another model than {self.name!r}: {misfit}")
        self._loaded = found
        return misfit

    def save_weights(self, path: str | os.PathLike[str], seed: int = 0) -> None:
        """Write `weights(seed)` to a .safetensors file, under PyTorch's names.

        A trainer's weights are written by trainer.save. CheckpointError: not written.
        """
        arrays = self.weights(seed)
        try:
            safetensors.write(path, arrays)
        except OSError as error:
            raise CheckpointError(f"{os.fspath(path)}: not written: {error.strerror or error}") from error

    def check_weights(self, weights: Mapping[str, Any], what: str = "weights") -> Arrays:
        """Copies of these weights as float32 in the network's order; CheckpointError if they do not fit it."""
        found, misfit = weights_of_others.fit(weights, self.parameter_shapes(), what)
        if misfit:
            raise CheckpointError(f"{what} is of another model than {self.name!r}: {misfit}")
        return found

    # factors of the optimiser's learning rate and weight decay

    def freeze(self, *layers: str) -> Model:
        """A copy of the network in which these layers are not trained, as requires_grad=False in PyTorch.

        layers  names ("conv1"), beginnings of names before a dot ("layer1", for all of its layers), or patterns ("fc*",
                "*"). ValueError for one that no layer with parameters has.

        net.freeze("*").factors("fc", lr=1) trains fc alone. The copy keeps loaded weights. Frozen weights do not
        change, neither by gradients nor by weight decay; running statistics of batch normalisations still follow the
        batches. Equivalent to lr=0 of the layers.
        """
        return self._with_factors("freeze", layers, {"lr": (0.0, 0.0)})

    def factors(self, *layers: str, lr: Factor | None = None, weight_decay: Factor | None = None) -> Model:
        """A copy of the network whose layers of these names have these factors of the optimiser's.

        layers            as of freeze.
        lr, weight_decay  one number, or a pair (of weights and scales, of biases and shifts), in place of the layers'
                          own; None: as they are. With an optimiser's lr=0.1, lr=0.5 makes 0.05.
        """
        given = {"lr": lr, "weight_decay": weight_decay}
        found = {key: factor_pair(key, value) for key, value in given.items() if value is not None}
        if not found:
            raise TypeError("factors(): allowed: lr=, weight_decay=, or both, as net.factors('fc*', lr=0.1)")
        return self._with_factors("factors", layers, found)

    def _with_factors(self, call: str, layers: Sequence[str], given: Mapping[str, tuple[float, float]]) -> Model:
        config = self.config()
        trained = {name for layer, name, _ in self._layers if isinstance(layer, Trained)}
        chosen = _chosen(call, layers, [name for _, name, _ in self._layers], trained)
        for entry in config["layers"]:
            if entry["name"] in chosen:
                entry["options"] |= {key: list(factors) for key, factors in given.items()}
        return _again(type(self), config, self._loaded, self._own())

    # other sizes

    def resized(self, sizes: Mapping[str, Size]) -> Model:
        """A copy of the network in which these layers have `sizes` units: {"fc1": 57}; names and all else stay.

        For a Pad or Slice among units two numbers: before and after, begin and end. For Attention the heads; the layer
        before it has three rows for each of their features.

        Loaded weights do not fit the copy and are dropped. The copy knows the original sizes: `born`, and its summary
        shows them. ValueError: a layer that does not exist or has no units, or sizes that do not fit each other.
        """
        units, now = self.units, self._sizes()
        config = self.config()
        born = now | self._born
        for name, size in sizes.items():
            if name not in now:
                what = "has no units" if any(name == one for _, one, _ in self._layers) else "no layer has this name"
                raise ValueError(
                    f"resized({{{name!r}: ...}}): {what}{did_you_mean(name, units)}; allowed: {some_of(list(units))}"
                )
            now[name] = _checked_size(name, size, now[name])
        for (layer, name, _), entry in zip(self._layers, config["layers"], strict=True):
            if name in sizes:
                keywords = (layer.units_keyword,) if layer.units_keyword else layer.extent_keywords
                size = now[name]
                values = size if isinstance(size, tuple) else (size,)
                entry["options"] |= dict(zip(keywords, values, strict=True))
        config["born"] = {name: size for name, size in born.items() if now[name] != size}
        return _again(type(self), config, None, self._own())

    def shrinks_to(self, other: Model) -> bool:
        """True if `other` is this network with as many or fewer units in each layer."""
        ours, theirs = self.units, other.units
        if list(ours) != list(theirs) or any(theirs[name] > ours[name] for name in ours):
            return False
        before = self._sizes()
        changed = {name: size for name, size in other._sizes().items() if size != before.get(name)}
        return self.resized(changed).same_network(other)

    # copies

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: the description and the loaded weights; the core's graph is made anew."""
        return _again, (type(self), self.config(), self._loaded, self._own())

    def _own(self) -> dict[str, Any]:
        """Attributes added by a subclass, or a user."""
        return {key: value for key, value in self.__dict__.items() if key not in _ATTRIBUTES}

    # to and from JSON

    def config(self) -> dict[str, Any]:
        """The network in terms of JSON; from_config makes it again."""
        layers = []
        for layer, name, inputs in self._layers:
            kind = "Input" if isinstance(layer, _InputLayer) else _kind(layer)
            layers.append({"layer": kind, "name": name, "inputs": list(inputs), "options": layer.described()})
        config: dict[str, Any] = {"name": self.name, "layers": layers}
        if self._born:
            config["born"] = dict(self._born)
        fields: list[heads.Field | heads.Head] = [*self.inputs, *self.heads]
        named = any(one.name != self._layers[one.node][1] for one in fields)
        if len(fields) > 2 or named or self.heads[0].weight != 1:
            config["inputs"] = [{"name": one.name, "node": one.node} for one in self.inputs]
            config["outputs"] = [one.describe() for one in self.heads]
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """The network of a config() dict. ValueError, TypeError: not such a dict."""
        try:
            return cls._of_config(config)
        except (KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"config: no description of a network, as config() gives one ({error!r})") from error

    @classmethod
    def _of_config(cls, config: Mapping[str, Any]) -> Model:
        nodes: list[Node] = []
        for entry in config["layers"]:
            if entry["layer"] == "Input":
                shape, dtype = entry["options"]["shape"], entry["options"].get("dtype", "float32")
                nodes.append(Input(tuple(shape), dtype, entry["name"]))
                continue
            choice("layer", entry["layer"], KINDS)
            options = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["options"].items()}
            layer = KINDS[entry["layer"]](name=entry["name"], **options)
            nodes.append(layer(*[nodes[i] for i in entry["inputs"]]))
        if not any(isinstance(node.layer, _InputLayer) for node in nodes):
            raise ValueError("the model's description has no input")
        made = cls._of_nodes(nodes, config)
        made._born = {
            str(name): tuple(size) if isinstance(size, (list, tuple)) else int(size)
            for name, size in config.get("born", {}).items()
        }
        return made

    @classmethod
    def _of_nodes(cls, nodes: list[Node], config: Mapping[str, Any]) -> Model:
        """The network of existing layers."""
        if "outputs" not in config:
            root = next(node for node in nodes if isinstance(node.layer, _InputLayer))
            return cls(root, nodes[-1], str(config["name"]))
        ends = config["outputs"]
        return cls(
            {one["name"]: nodes[one["node"]] for one in config["inputs"]},
            {one["name"]: nodes[one["node"]] for one in ends},
            str(config["name"]),
            training_only=[one["name"] for one in ends if one["training_only"]],
            targets=[one["target"] for one in ends],
            loss_weights=[one["weight"] for one in ends],
        )

    def same_network(self, other: Model) -> bool:
        """True if both have equal layers, names and options (their own names aside), inputs and outputs.

        Sizes from before they shrunk do not matter.
        """
        aside: dict[str, Any] = {"name": "", "born": {}}
        ours, theirs = (json.dumps(one.config() | aside, sort_keys=True) for one in (self, other))
        return ours == theirs


def _checked_size(name: str, size: Any, before: Size) -> Size:
    """For resized: the units of a layer, or as many numbers as it had."""
    if isinstance(before, int):
        return integer(f"resized: {name}", size, 1)
    if not isinstance(size, (tuple, list)) or len(size) != len(before):
        raise TypeError(f"resized: {name}={size!r}: allowed: {len(before)} integers")
    return tuple(None if one is None else integer(f"resized: {name}", one, -HIGHEST) for one in size)


def some_of(names: Sequence[str]) -> str:
    """The first of many names."""
    return ", ".join(names if len(names) < 10 else [*names[:8], "..."])


def _chosen(call: str, patterns: Sequence[str], names: Sequence[str], trained: set[str]) -> set[str]:
    """Names of trained layers that match one of the patterns."""
    if not patterns or not all(isinstance(one, str) for one in patterns):
        raise TypeError(f"{call}({', '.join(map(repr, patterns))}): allowed: names of layers, as 'conv1' or 'fc*'")
    chosen: set[str] = set()
    for pattern in patterns:
        meant = {name for name in names if name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)}
        if not meant & trained:
            allowed = [name for name in names if name in trained]
            what = "has no parameters" if meant else f"no layer has this name{did_you_mean(pattern, allowed)}"
            raise ValueError(f"{call}({pattern!r}): {what}; allowed: {some_of(allowed)}, or a pattern as 'fc*'")
        chosen |= meant & trained
    return chosen


_ATTRIBUTES = ("name", "inputs", "heads", "graph", "_layers", "_loaded", "_born")  # of every model


def _kind(layer: Layer) -> str:
    """The class by whose name a description makes the layer again: a user's subclass counts as its base here."""
    names = (one.__name__ for one in type(layer).__mro__ if KINDS.get(one.__name__) is one)
    return next(names, type(layer).__name__)


def _again(made: type[Model], config: Mapping[str, Any], loaded: Arrays | None, own: Mapping[str, Any]) -> Model:
    """Rebuild the model that was pickled or copied."""
    model = made.__new__(made)
    model.__dict__ |= {**own, **Model.from_config(config).__dict__}
    model._loaded = None if loaded is None else {name: array.copy() for name, array in loaded.items()}
    return model


_Init = TypeVar("_Init", bound=Callable[..., None])


def _of_a_list(init: _Init) -> _Init:
    """Sequential's constructor with advice: its error for layers that are no list, PyTorch's form, shows the right
    call."""

    @functools.wraps(init)
    def checked(self: Model, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], Layer):
            raise TypeError(
                f"layers is a {type(args[0]).__name__}; allowed: a list of layers, as "
                "gg.Sequential([gg.Linear(100), gg.ReLU(), gg.Linear(10)], input=(784,))"
            )
        init(self, *args, **kwargs)

    return cast(_Init, checked)


@named_keywords
class Sequential(Model):
    """Layers one after another; `input` is the shape of one sample, as (1, 28, 28).

    Samples are int32 tokens if the first layer is an Embedding, else numbers.
    """

    @_of_a_list
    def __init__(self, layers: Iterable[Layer], input: Sequence[int] | int, name: str = "model") -> None:
        layers = list(layers)
        node = root = Input(input, "int32" if layers and isinstance(layers[0], Embedding) else "float32")
        placed: list[Layer] = []
        try:
            for i, layer in enumerate(layers):
                if not isinstance(layer, Layer):
                    raise TypeError(f"layers[{i}] is a {type(layer).__name__}; wanted a layer")
                node = layer(node)
                placed.append(layer)
            if node is root:
                raise ValueError("layers: empty")
            super().__init__(root, node, name)
        except BaseException:
            for layer in placed:  # they stay outside of a network, and can be given again with another input
                layer._used = False
            raise
