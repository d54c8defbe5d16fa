"""Layers and the network: how a user writes down a graph. Shapes are inferred and checked by the core.

A layer object is a description; calling it on a node gives the node of its output. Weights have PyTorch's names and
shapes: "conv1.weight" (out, in/groups, height, width), "fc1.weight" (out, in), "fc1.bias" (out,).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core, safetensors
from gossipgrad.errors import CheckpointError, choice, flag, integer, number, pair

PLAIN_INITS = ("default", "xavier_uniform", "xavier_normal", "he_uniform", "he_normal", "caffe_xavier")
VALUE_INITS = ("uniform", "normal", "constant")
NAME_LENGTH = 63  # GG_NAME_LENGTH of the core, less the closing zero
MAX_INPUTS = 16  # of one Add or Concat; the core checks as well

Init = str | float | tuple[str, float]


def _init(argument: str, value: Any) -> tuple[str, float]:
    """How to fill a weight: a name of PLAIN_INITS, (a name of VALUE_INITS, number), or a number for all elements."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        name, parameter = value
        if name in PLAIN_INITS and parameter == 0:
            return name, 0.0
        choice(f"{argument}[0]", name, VALUE_INITS)
        return name, number(f"{argument}[1]", parameter, 0.0 if name != "constant" else None)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "constant", number(argument, value)
    if value not in PLAIN_INITS:
        names = ", ".join(map(repr, PLAIN_INITS))
        values = ", ".join(f"({n!r}, value)" for n in VALUE_INITS)
        raise ValueError(f"{argument}={value!r}: allowed: {names}, {values}, or a number")
    return value, 0.0


class Node:
    """A value in the network: what an Input gives, or the output of a layer called on nodes."""

    def __init__(self, layer: Layer, inputs: tuple[Node, ...]) -> None:
        self.layer = layer
        self.inputs = inputs

    def __repr__(self) -> str:
        return f"<Node {self.layer!r}>"

    def __add__(self, other: Any) -> Node:
        """x + y is Add()(x, y)."""
        return Add()(self, other) if isinstance(other, Node) else NotImplemented


class Layer:
    """The base of all layers. `name` is unique in a network; None: made from the kind and a count, as "conv1"."""

    kind = ""
    prefix = ""
    inputs = (1, 1)  # least and most

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            if not isinstance(name, str):
                raise TypeError(f"name={name!r}: allowed: a string, or None")
            if not name or len(name.encode()) > NAME_LENGTH or not name.isprintable() or "/" in name:
                raise ValueError(f"name={name!r}: allowed: 1 to {NAME_LENGTH} printable characters without '/'")
        self.name = name
        self._used = False

    def options(self) -> dict[str, Any]:
        """The keywords that the core wants for this kind, besides name and inputs."""
        return {}

    def config(self) -> dict[str, Any]:
        """The constructor's keywords, without the name, in terms of JSON."""
        return {}

    def __call__(self, *nodes: Node | Sequence[Node]) -> Node:
        flat: list[Node] = []
        for node in nodes:
            for one in node if isinstance(node, (list, tuple)) else [node]:
                if not isinstance(one, Node):
                    raise TypeError(f"{self!r} was called on a {type(one).__name__}; it wants nodes, as gg.Input gives")
                flat.append(one)
        low, high = self.inputs
        if not low <= len(flat) <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise ValueError(f"{self!r} was called on {len(flat)} nodes; it takes {wanted}")
        self._use()
        return Node(self, tuple(flat))

    def _use(self) -> None:
        if self._used:
            raise ValueError(
                f"{self!r} is used twice: a layer stands at one place of one network (weights are not shared); "
                "make a new layer for each place"
            )
        self._used = True

    def __repr__(self) -> str:
        shown = {"name": self.name} if self.name else {}
        shown |= {key: value for key, value in self.config().items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


class _InputLayer(Layer):
    kind, prefix, inputs = "input", "input", (0, 0)

    def __init__(self, shape: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        if isinstance(shape, (int, np.integer)):
            shape = (int(shape),)
        if not isinstance(shape, (tuple, list)) or not shape:
            raise TypeError(f"shape={shape!r}: allowed: the shape of one sample, as (1, 28, 28)")
        self.shape = tuple(integer(f"shape[{i}]", size, 1) for i, size in enumerate(shape))

    def config(self) -> dict[str, Any]:
        return {"shape": list(self.shape)}


def Input(shape: Sequence[int] | int, name: str | None = None) -> Node:  # noqa: N802, as the layers
    """The network's input: the shape of one sample, without the batch, as (3, 224, 224) or (28,)."""
    layer = _InputLayer((shape,) if isinstance(shape, int) else shape, name)
    layer._used = True
    return Node(layer, ())


class Conv2d(Layer):
    """Convolution (cross-correlation) of (channels, height, width) with `out` filters.

    kernel, stride, padding, dilation: one integer or (height, width). padding is zeros on each side. groups divides
    the channels and `out`. weight_init, bias_init: "default" (PyTorch's), "xavier_uniform", "xavier_normal" (Glorot and
    Bengio 2010), "he_uniform", "he_normal" (He et al. 2015), "caffe_xavier", ("uniform", bound), ("normal",
    deviation), ("constant", value) or a number.
    """

    kind, prefix = "conv2d", "conv"

    def __init__(
        self,
        out: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        weight_init: Init = "default",
        bias_init: Init = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.out = integer("out", out, 1)
        self.kernel = pair("kernel", kernel, 1)
        self.stride = pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        self.dilation = pair("dilation", dilation, 1)
        self.groups = integer("groups", groups, 1)
        if self.out % self.groups:
            raise ValueError(f"groups={groups}: allowed: divisors of out={out} (and of the input's channels)")
        self.bias = flag("bias", bias)
        self.weight_init = _init("weight_init", weight_init)
        self.bias_init = _init("bias_init", bias_init)

    def options(self) -> dict[str, Any]:
        named = self.__dict__
        keys = ("kernel", "stride", "padding", "dilation", "groups", "bias", "weight_init", "bias_init")
        return {"outputs": self.out} | {key: named[key] for key in keys}

    def config(self) -> dict[str, Any]:
        config = {"out": self.out} | self.options()
        del config["outputs"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in config.items()}


class Linear(Layer):
    """out = weight x + bias, `out` features from a flat input (Flatten first). Initialisation as in Conv2d."""

    kind, prefix = "linear", "fc"

    def __init__(
        self,
        out: int,
        bias: bool = True,
        weight_init: Init = "default",
        bias_init: Init = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.out = integer("out", out, 1)
        self.bias = flag("bias", bias)
        self.weight_init = _init("weight_init", weight_init)
        self.bias_init = _init("bias_init", bias_init)

    def options(self) -> dict[str, Any]:
        named = self.__dict__
        return {"outputs": self.out} | {key: named[key] for key in ("bias", "weight_init", "bias_init")}

    def config(self) -> dict[str, Any]:
        inits = {"weight_init": list(self.weight_init), "bias_init": list(self.bias_init)}
        return {"out": self.out, "bias": self.bias} | inits


class _Pool2d(Layer):
    prefix = "pool"

    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.kernel = pair("kernel", kernel, 1)
        self.stride = self.kernel if stride is None else pair("stride", stride, 1)
        self.padding = pair("padding", padding, 0)
        self.dilation = pair("dilation", dilation, 1)
        self.ceil_mode = flag("ceil_mode", ceil_mode)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise ValueError(f"padding={padding!r}: allowed: at most half of kernel={self.kernel}")

    def options(self) -> dict[str, Any]:
        named = self.__dict__
        return {key: named[key] for key in ("kernel", "stride", "padding", "dilation", "ceil_mode")}

    def config(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in self.options().items()}


class MaxPool2d(_Pool2d):
    """The largest value of each window. stride None: kernel. ceil_mode: a last window that reaches over the edge."""

    kind = "max_pool2d"


class AvgPool2d(_Pool2d):
    """The mean of each window; count_include_pad: padding counts as zeros, else only what lies inside is divided by."""

    kind = "avg_pool2d"

    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(kernel, stride, padding, 1, ceil_mode, name)
        self.count_include_pad = flag("count_include_pad", count_include_pad)

    def options(self) -> dict[str, Any]:
        options = super().options() | {"count_include_pad": self.count_include_pad}
        del options["dilation"]
        return options


class ReLU(Layer):
    """max(x, 0)."""

    kind, prefix = "relu", "relu"


class Tanh(Layer):
    """The hyperbolic tangent."""

    kind, prefix = "tanh", "tanh"


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    kind, prefix = "sigmoid", "sigmoid"


class Flatten(Layer):
    """All values of a sample in one row: (c, h, w) becomes (c*h*w,)."""

    kind, prefix = "flatten", "flatten"


class Dropout(Layer):
    """In training each value becomes 0 with probability p, the others are divided by 1 - p (Srivastava et al. 2014)."""

    kind, prefix = "dropout", "dropout"

    def __init__(self, p: float = 0.5, name: str | None = None) -> None:
        super().__init__(name)
        self.p = number("p", p, 0.0, below=1.0)

    def options(self) -> dict[str, Any]:
        return {"probability": self.p}

    def config(self) -> dict[str, Any]:
        return {"p": self.p}


class Add(Layer):
    """The sum of two or more nodes of one shape."""

    kind, prefix, inputs = "add", "add", (2, MAX_INPUTS)


class Concat(Layer):
    """Two or more nodes one after the other along the first axis (channels); the other axes must agree."""

    kind, prefix, inputs = "concat", "concat", (2, MAX_INPUTS)


KINDS: dict[str, type[Layer]] = {
    c.__name__: c for c in (Conv2d, Linear, MaxPool2d, AvgPool2d, ReLU, Tanh, Sigmoid, Flatten, Dropout, Add, Concat)
}


def _order(output: Node) -> list[Node]:
    """The nodes that lead to `output`, each after its inputs; the same for the same network."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(output, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((one, False) for one in reversed(node.inputs))
    return order


class Model:
    """A network: all that leads from the Input node `inputs` to the node `outputs`.

    It is checked as a whole here: ValueError names the layer and the shapes that do not fit. The network holds no
    trained state: training changes the trainer's weights (trainer.weights()), not the network.
    """

    def __init__(self, inputs: Node, outputs: Node, name: str = "model") -> None:
        for argument, node in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(node, Node):
                raise TypeError(f"{argument} is a {type(node).__name__}; wanted a node, as gg.Input or a layer gives")
        if not isinstance(inputs.layer, _InputLayer):
            raise ValueError(f"inputs is the output of {inputs.layer!r}; wanted what gg.Input gave")
        self.name = name
        order = _order(outputs)
        for node in order:
            if isinstance(node.layer, _InputLayer) and node is not inputs:
                raise ValueError(f"outputs depends on {node.layer!r}, which is not the network's input")
        if inputs not in order:
            raise ValueError(f"outputs does not depend on the network's input {inputs.layer!r}")
        self._layers: list[tuple[Layer, str, tuple[int, ...]]] = []
        names = self._names(order)
        number_of = {id(node): i for i, node in enumerate(order)}
        graph = _core.Graph()
        for node, given in zip(order, names, strict=True):
            places = tuple(number_of[id(one)] for one in node.inputs)
            self._layers.append((node.layer, given, places))
            if isinstance(node.layer, _InputLayer):
                graph.input(node.layer.shape, given)
            else:
                graph.layer(node.layer.kind, given, places, **node.layer.options())
        graph.finish(len(order) - 1)
        self.graph = graph
        self._loaded: dict[str, NDArray[np.float32]] | None = None

    @staticmethod
    def _names(order: list[Node]) -> list[str]:
        taken: set[str] = set()
        for node in order:
            if node.layer.name is not None:
                if node.layer.name in taken:
                    raise ValueError(f"name={node.layer.name!r} is borne by two layers; names are unique in a network")
                taken.add(node.layer.name)
        counts: dict[str, int] = {}
        names = []
        for node in order:
            name = node.layer.name
            if name is None and isinstance(node.layer, _InputLayer):
                name = "input" if "input" not in taken else None
            while name is None:
                prefix = node.layer.prefix
                counts[prefix] = counts.get(prefix, 0) + 1
                if f"{prefix}{counts[prefix]}" not in taken:
                    name = f"{prefix}{counts[prefix]}"
            taken.add(name)
            names.append(name)
        return names

    # what it is

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        place = next(i for i, (layer, _, _) in enumerate(self._layers) if isinstance(layer, _InputLayer))
        return tuple(self.graph.shape(place))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.graph.shape(len(self._layers) - 1))

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(shape)) for _, shape in self.graph.parameters())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The trained tensors' shapes by name, in the order of the network."""
        return {name: tuple(shape) for name, shape in self.graph.parameters()}

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.input_shape} -> {self.output_shape}, {self.parameters:,} parameters>"

    def summary(self) -> str:
        """A table of the layers: name, kind, inputs, output shape, parameters, multiply-adds of one sample."""
        rows = [("layer", "kind", "from", "output", "parameters", "multiply-adds")]
        total = 0
        for node in self.graph.nodes():
            sources = ", ".join(self._layers[i][1] for i in node["inputs"])
            total += node["macs"]
            shape = " x ".join(map(str, node["shape"]))
            rows.append((node["name"], node["kind"], sources, shape, f"{node['parameters']:,}", f"{node['macs']:,}"))
        rows.append(("total", "", "", "", f"{self.parameters:,}", f"{total:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            cells = [
                cell.rjust(w) if i > 3 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        rule = "-" * max(map(len, lines))
        return "\n".join([f"{self.name}: input {self.input_shape}", lines[0], rule, *lines[1:-1], rule, lines[-1]])

    # weights

    def weights(self, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        """The weights training starts from: those loaded, else the initial ones of this seed. Copies, by name."""
        if self._loaded is not None:
            return {name: array.copy() for name, array in self._loaded.items()}
        return self.graph.initial_weights(integer("seed", seed, 0))

    @property
    def loaded(self) -> bool:
        """Have weights been loaded? Else a trainer draws initial ones from its seed."""
        return self._loaded is not None

    def load_weights(self, weights: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Start from these: arrays by name, or a .safetensors file (PyTorch's names and shapes; a copy is taken).

        ValueError or CheckpointError names what is missing, too much, or of another shape.
        """
        what = "weights"
        if isinstance(weights, (str, os.PathLike)):
            what = os.fspath(weights)
            weights = safetensors.read(weights)[0]
        self._loaded = self.check_weights(weights, what)

    def check_weights(self, weights: Mapping[str, Any], what: str = "weights") -> dict[str, NDArray[np.float32]]:
        """Copies of these weights as float32 in the network's order; ValueError if they do not fit it."""
        shapes = self.parameter_shapes()
        missing = [name for name in shapes if name not in weights]
        extra = [name for name in weights if name not in shapes]
        if missing or extra:
            parts = [f"has no {', '.join(missing[:4])}"] if missing else []
            parts += [f"has {', '.join(extra[:4])}, which the network lacks"] if extra else []
            raise CheckpointError(f"{what} is of another model than {self.name!r}: it {' and '.join(parts)}")
        result = {}
        for name, shape in shapes.items():
            array = np.asarray(weights[name])
            if array.shape != shape:
                raise CheckpointError(
                    f"{what} is of another model than {self.name!r}: {name} has shape {array.shape}, here {shape}"
                )
            if array.dtype.kind not in "iuf":
                raise TypeError(f"{what}: {name} is of dtype {array.dtype}; wanted numbers")
            result[name] = np.array(array, np.float32, order="C")
        return result

    # to and from JSON

    def config(self) -> dict[str, Any]:
        """The network in terms of JSON; from_config makes it again."""
        layers = []
        for layer, name, inputs in self._layers:
            kind = "Input" if isinstance(layer, _InputLayer) else type(layer).__name__
            layers.append({"layer": kind, "name": name, "inputs": list(inputs), "options": layer.config()})
        return {"name": self.name, "layers": layers}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """The network that config() described."""
        nodes: list[Node] = []
        root: Node | None = None
        for entry in config["layers"]:
            if entry["layer"] == "Input":
                root = Input(tuple(entry["options"]["shape"]), entry["name"])
                nodes.append(root)
                continue
            choice("layer", entry["layer"], KINDS)
            options = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["options"].items()}
            layer = KINDS[entry["layer"]](name=entry["name"], **options)
            nodes.append(layer(*[nodes[i] for i in entry["inputs"]]))
        if root is None:
            raise ValueError("the model's description has no input")
        return cls(root, nodes[-1], str(config["name"]))

    def same_network(self, other: Model) -> bool:
        """Do both have the same layers, names and options (their own names aside)?"""
        return json.dumps(self.config()["layers"]) == json.dumps(other.config()["layers"])


class Sequential(Model):
    """Layers one after another; `input` is the shape of one sample, as (1, 28, 28)."""

    def __init__(self, layers: Iterable[Layer], input: Sequence[int] | int, name: str = "model") -> None:
        node = root = Input(input)
        for i, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layers[{i}] is a {type(layer).__name__}; wanted a layer")
            node = layer(node)
        if node is root:
            raise ValueError("layers: empty")
        super().__init__(root, node, name)
