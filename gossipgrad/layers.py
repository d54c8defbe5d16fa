"""The layers. A layer object is a description; calling it on a node gives the node of its output."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NoReturn, get_args

from gossipgrad.errors import choice, flag, integer, named_keywords, number, pair

PlainInit = Literal["default", "xavier_uniform", "xavier_normal", "he_uniform", "he_normal", "caffe_xavier"]
ValueInit = Literal["uniform", "normal", "constant"]
PLAIN_INITS: tuple[PlainInit, ...] = get_args(PlainInit)
VALUE_INITS: tuple[ValueInit, ...] = get_args(ValueInit)
NAME_LENGTH = 63  # GG_NAME_LENGTH of the core, less the closing zero
MAX_INPUTS = 16  # of one Add or Concat; the core checks as well

Init = PlainInit | float | tuple[ValueInit, float]


def _init(argument: str, value: Any) -> tuple[str, float]:
    """The filling of a weight: a name of PLAIN_INITS, (a name of VALUE_INITS, number), or a number for all elements."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        name, parameter = value
        if name in PLAIN_INITS and parameter == 0:
            return name, 0.0
        choice(f"{argument}[0]", name, VALUE_INITS)
        return name, number(f"{argument}[1]", parameter, 0.0 if name != "constant" else None)
    if isinstance(value, Real) and not isinstance(value, bool):
        return "constant", number(argument, value)
    if value not in PLAIN_INITS:
        names = ", ".join(map(repr, PLAIN_INITS))
        values = ", ".join(f"({n!r}, value)" for n in VALUE_INITS)
        raise ValueError(f"{argument}={value!r}: allowed: {names}, {values}, or a number")
    return value, 0.0


Factor = float | tuple[float, float]


def factor_pair(argument: str, value: Any) -> tuple[float, float]:
    """(of the weights, of the biases), from a pair or from one number for both."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return number(f"{argument}[0]", value[0], 0.0), number(f"{argument}[1]", value[1], 0.0)
    if isinstance(value, (tuple, list)):
        raise TypeError(
            f"{argument}={value!r}: allowed: a finite number >= 0, or a pair of these: of weights, of biases"
        )
    return (number(argument, value, 0.0),) * 2


def _no_more(layer: str, given: tuple[Any, ...], more: tuple[Any, ...], allowed: str, keywords: str) -> None:
    """TypeError for more positional arguments: other libraries have the input's channels before the outputs."""
    if more:
        call = ", ".join(repr(one) for one in (*given, *more))
        raise TypeError(
            f"{layer}({call}): allowed without a keyword: {allowed}; the size of the input is inferred, "
            f"and the rest has keywords: {keywords}"
        )


class Node:
    """A value in the network: an Input, or the output of a layer called on nodes."""

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
    inputs = (1, 1)  # min and max
    units_keyword = ""  # the keyword of its number of units; "": it has no units of its own
    extent_keywords: tuple[str, ...] = ()  # keywords that count units of other layers: of a Pad, or a Slice

    keywords: tuple[str, ...] = ()  # of the constructor, without the name and those of Trained; attributes hold them
    core_names: Mapping[str, str] = {}  # the core's name of a keyword, where it has another

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):  # a user's subclass of a layer may have other parameters
            parameters = list(inspect.signature(cls.__init__).parameters)
            cls.keywords = tuple(one for one in parameters if one not in ("self", "more", "name", "lr", "weight_decay"))
        named_keywords(cls)

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            if not isinstance(name, str):
                raise TypeError(f"name={name!r}: allowed: a string, or None")
            if not name or len(name.encode()) > NAME_LENGTH or not name.isprintable() or "/" in name:
                size = f"; it has {len(name.encode())} bytes" if len(name.encode()) > NAME_LENGTH else ""
                raise ValueError(
                    f"name={name!r}: allowed: printable characters without '/', 1 to {NAME_LENGTH} bytes of UTF-8{size}"
                )
        self.name = name
        self._used = False

    def options(self) -> dict[str, Any]:
        """The core's options for this kind, besides name and inputs."""
        return {self.core_names.get(key, key): getattr(self, key) for key in self.keywords}

    def config(self) -> dict[str, Any]:
        """`keywords` and their values in terms of JSON; None for an empty tuple."""
        own = {key: getattr(self, key) for key in self.keywords}
        return {key: list(value) or None if isinstance(value, tuple) else value for key, value in own.items()}

    def described(self) -> dict[str, Any]:
        """All keywords of the constructor except the name, in terms of JSON."""
        return self.config()

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
            raise ValueError(f"{self!r} was called on {len(flat)} nodes; it wants {wanted}")
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
        shown |= {key: value for key, value in self.described().items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


class Trained(Layer):
    """The base of layers with parameters.

    lr, weight_decay  factors of the optimiser's learning rate and weight decay for this layer: one number, or a pair
                      (of weights and scales, of biases and shifts), as lr=(1, 2) in Caffe's networks. lr=0 freezes it.
    """

    def __init__(self, name: str | None = None, lr: Factor = 1.0, weight_decay: Factor = 1.0) -> None:
        super().__init__(name)
        self.lr = factor_pair("lr", lr)
        self.weight_decay = factor_pair("weight_decay", weight_decay)

    def factors(self) -> dict[str, tuple[float, float]]:
        """The factors other than 1."""
        given = {"lr": self.lr, "weight_decay": self.weight_decay}
        return {key: pair_ for key, pair_ in given.items() if pair_ != (1.0, 1.0)}

    def described(self) -> dict[str, Any]:
        return self.config() | {key: list(pair_) for key, pair_ in self.factors().items()}


class Conv2d(Trained):
    """Convolution (cross-correlation) of (channels, height, width) with `out` filters; input channels are inferred.

    kernel, stride, padding, dilation  one integer, or (height, width); padding is zeros on each side.
    groups       divides the channels and `out`.
    weight_init, bias_init  "default" (PyTorch's), "xavier_uniform", "xavier_normal" (Glorot and Bengio 2010),
                 "he_uniform", "he_normal" (He et al. 2015), "caffe_xavier", ("uniform", bound), ("normal", deviation),
                 ("constant", value), or a number for all elements.
    lr, weight_decay  factors of the optimiser's for this layer: one number, or a pair (of the weight, of the bias),
                 as lr=(1, 2) in Caffe's networks.
    """

    kind, prefix, units_keyword = "conv2d", "conv", "out"
    core_names = {"out": "outputs"}

    def __init__(
        self,
        out: int,
        kernel: int | tuple[int, int],
        *more: NoReturn,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        weight_init: Init = "default",
        bias_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("Conv2d", (out, kernel), more, "filters and kernel", "stride=, padding=, ...")
        super().__init__(name, lr, weight_decay)
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


class Linear(Trained):
    """out = weight x + bias: `out` features from those of the last axis, which are inferred: (n,) becomes (out,), and a
    sequence (T, n) becomes (T, out). Images need a Flatten first.

    weight_init, bias_init, lr, weight_decay  as of Conv2d.
    """

    kind, prefix, units_keyword = "linear", "fc", "out"
    core_names = {"out": "outputs"}

    def __init__(
        self,
        out: int,
        *more: NoReturn,
        bias: bool = True,
        weight_init: Init = "default",
        bias_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("Linear", (out,), more, "the number of outputs", "bias=, ...")
        super().__init__(name, lr, weight_decay)
        self.out = integer("out", out, 1)
        self.bias = flag("bias", bias)
        self.weight_init = _init("weight_init", weight_init)
        self.bias_init = _init("bias_init", bias_init)


class _Pool2d(Layer):
    prefix = "pool"

    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        *,
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


class MaxPool2d(_Pool2d):
    """The largest value of each window of (channels, height, width).

    kernel, stride, padding, dilation  one integer, or (height, width); stride None: kernel. Padding is never the
               largest, and at most half of the kernel.
    ceil_mode  adds a last window that reaches over the edge.
    """

    kind = "max_pool2d"


class AvgPool2d(_Pool2d):
    """The mean of each window of (channels, height, width).

    kernel, stride, padding, ceil_mode  as of MaxPool2d.
    count_include_pad  True: padding counts as zeros; False: the divisor counts only elements inside.
    """

    kind = "avg_pool2d"

    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        *,
        padding: int | tuple[int, int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(kernel, stride, padding=padding, ceil_mode=ceil_mode, name=name)
        self.count_include_pad = flag("count_include_pad", count_include_pad)


class AdaptiveAvgPool2d(Layer):
    """The means of windows that divide an image of any size into `output_size`: one integer, or (height, width); None:
    the input's. Window i of n over a side of s pixels spans floor(i*s/n) to ceil((i+1)*s/n), as in PyTorch.
    """

    kind, prefix = "adaptive_avg_pool2d", "pool"

    def __init__(
        self, output_size: int | tuple[int | None, int | None] | list[int | None], name: str | None = None
    ) -> None:
        super().__init__(name)
        sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
        if len(sizes) != 2:
            raise ValueError(f"output_size={output_size!r}: allowed: an integer, or (height, width)")
        self.output_size = tuple(None if one is None else integer("output_size", one, 1) for one in sizes)

    def options(self) -> dict[str, Any]:
        return {"output_size": tuple(one or 0 for one in self.output_size)}


class GlobalAvgPool2d(AdaptiveAvgPool2d):
    """The mean of each channel: (channels, height, width) becomes (channels, 1, 1); Flatten makes (channels,) of it."""

    keywords = ()

    def __init__(self, name: str | None = None) -> None:
        super().__init__(1, name)


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
    """In training sets each value to 0 with probability p, and divides the others by 1 - p (Srivastava et al. 2014)."""

    kind, prefix = "dropout", "dropout"
    core_names = {"p": "probability"}

    def __init__(self, p: float = 0.5, name: str | None = None) -> None:
        super().__init__(name)
        self.p = number("p", p, 0.0, below=1.0)


class Add(Layer):
    """The sum of 2 to 16 nodes of one shape."""

    kind, prefix, inputs = "add", "add", (2, MAX_INPUTS)


class Concat(Layer):
    """Joins 2 to 16 nodes along the first axis (channels); the other axes must agree."""

    kind, prefix, inputs = "concat", "concat", (2, MAX_INPUTS)


class _BatchNorm(Trained):
    prefix = "bn"

    def __init__(
        self,
        *more: NoReturn,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more(type(self).__name__, (), more, "nothing", "eps=, momentum=, ...")
        super().__init__(name, lr, weight_decay)
        self.eps = number("eps", eps, 0.0)
        self.momentum = number("momentum", momentum, 0.0, 1.0)
        self.affine = flag("affine", affine)
        self.track_running_stats = flag("track_running_stats", track_running_stats)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation (Ioffe and Szegedy 2015) of (channels,) or (channels, length): from each channel the mean
    over the batch is subtracted, and the result is divided by the square root of the variance plus eps.

    Training uses the statistics of the batch, and moves the running ones towards them:
    running = (1 - momentum)*running + momentum*batch, the variance with n - 1 in the denominator. Evaluation uses the
    running ones. All is as in PyTorch, except that num_batches_tracked does not exist, so momentum is a number.

    eps          added to the variance.
    momentum     the share of a new batch in the running statistics, 0 to 1.
    affine       a weight (first 1) multiplies and a bias (first 0) is added, one of each a channel.
    track_running_stats  False: no running statistics; evaluation, too, uses those of the batch.
    lr, weight_decay  as of Conv2d: a pair is of the weight and of the bias.
    """

    kind = "batch_norm1d"


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (channels, height, width); the mean and the variance of a channel are over the batch and
    all places. Keywords as of BatchNorm1d."""

    kind = "batch_norm2d"


class LayerNorm(Trained):
    """Layer normalisation (Ba et al. 2016): from each sample, over its last axes, the mean is subtracted, and the
    result is divided by the square root of the variance plus eps; PyTorch's form.

    normalized_shape  the sizes of the axes, as a check: an integer for the last one, or a tuple for several; None: the
                 last axis, whatever its size.
    eps          added to the variance.
    elementwise_affine  a weight (first 1) multiplies each place of the axes; with bias (first 0) added.
    lr, weight_decay  factors of the optimiser's for this layer, as of Conv2d.
    """

    kind, prefix = "layer_norm", "ln"

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int] | None = None,
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name, lr, weight_decay)
        sizes = () if normalized_shape is None else normalized_shape
        sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
        self.normalized_shape = tuple(integer("normalized_shape", one, 1) for one in sizes)
        self.eps = number("eps", eps, 0.0)
        self.elementwise_affine = flag("elementwise_affine", elementwise_affine)
        self.bias = flag("bias", bias)

    def options(self) -> dict[str, Any]:
        shape = {"normalized_shape": self.normalized_shape} if self.normalized_shape else {}
        return shape | {"eps": self.eps, "affine": self.elementwise_affine, "bias": self.bias}


class RMSNorm(LayerNorm):
    """Root mean square normalisation (Zhang and Sennrich 2019): each sample is divided, over its last axes, by the
    square root of the mean of its squares plus eps; PyTorch's form.

    normalized_shape, lr, weight_decay  as of LayerNorm.
    eps          added to the mean of the squares. PyTorch's default is 1.19e-7.
    elementwise_affine  a weight (first 1) multiplies each place of the axes. There is no bias.
    """

    kind, prefix = "rms_norm", "rms"

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int] | None = None,
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            normalized_shape,
            eps=eps,
            elementwise_affine=elementwise_affine,
            bias=False,
            lr=lr,
            weight_decay=weight_decay,
            name=name,
        )


class GroupNorm(Trained):
    """Group normalisation (Wu and He 2018) of (channels, ...), with any or no sizes behind the channels: each sample's
    channels are divided into `groups` of neighbours. From each group its mean is subtracted, and the result is divided
    by the square root of the variance plus eps; PyTorch's form. Training and evaluation compute the same, and no batch
    is too small.

    groups       divides the channels.
    eps          added to the variance.
    affine       a weight (first 1) multiplies and a bias (first 0) is added, one of each a channel.
    lr, weight_decay  factors of the optimiser's for this layer, as of Conv2d.
    """

    kind, prefix = "group_norm", "gn"

    def __init__(
        self,
        groups: int,
        *more: NoReturn,
        eps: float = 1e-5,
        affine: bool = True,
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("GroupNorm", (groups,), more, "the number of groups", "eps=, affine=, ...")
        super().__init__(name, lr, weight_decay)
        self.groups = integer("groups", groups, 1)
        self.eps = number("eps", eps, 0.0)
        self.affine = flag("affine", affine)


class LocalResponseNorm(Layer):
    """Local response normalisation (Krizhevsky et al. 2012) of (channels, ...): x / (k + alpha*mean)^beta. The mean is
    over the squares of `size` channels around x's, with zeros beyond the ends; PyTorch's form.
    """

    kind, prefix = "local_response_norm", "lrn"

    def __init__(
        self, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.size = integer("size", size, 1)
        self.alpha = number("alpha", alpha)
        self.beta = number("beta", beta)
        self.k = number("k", k)


class Softmax(Layer):
    """exp(x) over its sum along one axis. dim counts as in PyTorch: -1 is the last axis, 1 the sample's first (0 would
    be the batch). Networks trained with loss="cross_entropy" need none: that loss has its own.
    """

    kind, prefix = "softmax", "softmax"

    def __init__(self, dim: int = -1, name: str | None = None) -> None:
        super().__init__(name)
        self.dim = integer("dim", dim, -5, 5)
        if self.dim == 0:
            raise ValueError("dim=0: that is the batch; allowed: 1 for the sample's first axis, -1 for the last, ...")


class LeakyReLU(Layer):
    """x if positive, else negative_slope*x."""

    kind, prefix = "leaky_relu", "leaky"

    def __init__(self, negative_slope: float = 0.01, name: str | None = None) -> None:
        super().__init__(name)
        self.negative_slope = number("negative_slope", negative_slope)


class GELU(Layer):
    """x times the normal distribution's share below x (Hendrycks and Gimpel 2016). approximate="tanh": the formula
    0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2.
    """

    kind, prefix = "gelu", "gelu"

    def __init__(self, approximate: Literal["none", "tanh"] = "none", name: str | None = None) -> None:
        super().__init__(name)
        self.approximate = choice("approximate", approximate, ("none", "tanh"))

    def options(self) -> dict[str, Any]:
        return {"tanh_form": self.approximate == "tanh"}


KINDS: dict[str, type[Layer]] = {
    c.__name__: c
    for c in (
        *(Conv2d, Linear, MaxPool2d, AvgPool2d, ReLU, Tanh, Sigmoid, Flatten, Dropout, Add, Concat),
        *(LayerNorm, RMSNorm, GroupNorm, LocalResponseNorm, Softmax, LeakyReLU, GELU),
        *(BatchNorm1d, BatchNorm2d, AdaptiveAvgPool2d, GlobalAvgPool2d),
    )
}
