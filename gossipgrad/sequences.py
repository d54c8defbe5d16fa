"""Layers of sequence networks: embeddings, and other shapes or orders of a sample's axes.

A sample is (positions, features), or (positions,) as tokens; the batch has no axis here. Linear, Dropout, Add and the
activations work on each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from gossipgrad import layers
from gossipgrad.errors import HIGHEST, flag, integer, number
from gossipgrad.layers import Factor, Init, Layer, Trained, _init, _no_more

MAX_AXES = 5  # of one sample


def _sizes(argument: str, values: Any, low: int) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or not 1 <= len(values) <= MAX_AXES:
        raise ValueError(f"{argument}={values!r}: allowed: a tuple of 1 to {MAX_AXES} integers, one an axis")
    return tuple(integer(f"{argument}[{i}]", value, low) for i, value in enumerate(values))


class Embedding(Trained):
    """Row t of a table (num, dim) for each token t: int32 tokens (T,), 0 to num - 1, become (T, dim).

    Tokens come from `Input((T,), dtype="int32")`. A token outside of the table is an error with its position.
    weight_init  as of Linear; "default" is PyTorch's for embeddings, normal numbers of deviation 1.
    lr, weight_decay  as of Linear.
    """

    kind, prefix = "embedding", "embedding"
    core_names = {"num": "numbers", "dim": "outputs"}

    def __init__(
        self,
        num: int,
        dim: int,
        *more: NoReturn,
        weight_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("Embedding", (num, dim), more, "the number of tokens and the features of each", "weight_init=, ...")
        super().__init__(name, lr, weight_decay)
        self.num = integer("num", num, 1)
        self.dim = integer("dim", dim, 1)
        self.weight_init = _init("weight_init", weight_init)


class PositionEmbedding(Trained):
    """Adds a learned vector to each position: (T, C) + weight[:T] of a table (num, C).

    num  positions of the table, at least T; None: T. A longer table can hold weights of other sequence lengths.
    weight_init, lr, weight_decay  as of Embedding.
    """

    kind, prefix = "position_embedding", "position"

    def __init__(
        self,
        num: int | None = None,
        *,
        weight_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name, lr, weight_decay)
        self.num = None if num is None else integer("num", num, 1)
        self.weight_init = _init("weight_init", weight_init)

    def options(self) -> dict[str, Any]:
        return {"numbers": self.num or 0, "weight_init": self.weight_init}


class Reshape(Layer):
    """The values of a sample, in their order, under another shape: Reshape((8, -1)); one size may be -1, the
    remainder."""

    kind, prefix = "reshape", "reshape"

    def __init__(self, shape: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.shape = _sizes("shape", shape, -1)
        if 0 in self.shape or self.shape.count(-1) > 1:
            raise ValueError(f"shape={self.shape}: allowed: sizes of at least 1, and one -1 at most")


class Permute(Layer):
    """The axes of a sample in another order, as NumPy's transpose: Permute((1, 0)) makes (T, C) of (C, T)."""

    kind, prefix = "permute", "permute"

    def __init__(self, order: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.order = _sizes("order", order, 0)
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order={self.order}: allowed: each axis of a sample once, as (1, 0)")


class Slice(Layer):
    """A range of one axis, as Python's x[begin:end:step]; Slice(0, -1) is the last position: (T, C) becomes (1, C).

    axis   of a sample, 0 is the first; negative: counted from the last.
    begin, end  negative: counted from the end; end None: to the end. step: at least 1.
    """

    kind, prefix, extent_keywords = "slice", "slice", ("begin", "end")

    def __init__(
        self, axis: int, begin: int = 0, end: int | None = None, step: int = 1, *, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.axis = integer("axis", axis, -MAX_AXES, MAX_AXES - 1)
        self.begin = integer("begin", begin, -HIGHEST)
        self.end = None if end is None else integer("end", end, -HIGHEST)
        self.step = integer("step", step, 1)

    def options(self) -> dict[str, Any]:
        return super().options() | {"end": HIGHEST if self.end is None else self.end}


class Pad(Layer):
    """Zeros before and after along one axis: Pad(0, 8, 8) makes (32, h, w) of (16, h, w)."""

    kind, prefix, extent_keywords = "pad", "pad", ("before", "behind")

    def __init__(self, axis: int, before: int = 0, behind: int = 0, *, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = integer("axis", axis, -MAX_AXES, MAX_AXES - 1)
        self.before = integer("before", before, 0)
        self.behind = integer("behind", behind, 0)

    def options(self) -> dict[str, Any]:
        return {"axis": self.axis, "pads": (self.before, self.behind)}


class Attention(Layer):
    """Attention (Vaswani et al. 2017) on packed queries, keys and values: (T, 3C) becomes (T, C).

    The features of a position are C of its query, C of its key, C of its value, as nanoGPT's c_attn gives them; each
    head has C/heads of them. Called on a second node, Attention(4)(x, lengths), it ignores positions from a sample's
    length on; lengths: int32 of shape (1,), 1 to T.

    causal   a position does not attend to later ones.
    dropout  in training each weight becomes 0 with this probability, the others are divided by 1 - dropout.

    The weights (T, T) are never in memory as a whole.
    """

    kind, prefix, inputs, units_keyword = "attention", "attention", (1, 2), "heads"
    core_names = {"dropout": "probability"}

    def __init__(self, heads: int, *, causal: bool = False, dropout: float = 0.0, name: str | None = None) -> None:
        super().__init__(name)
        self.heads = integer("heads", heads, 1)
        self.causal = flag("causal", causal)
        self.dropout = number("dropout", dropout, 0.0, below=1.0)


class MultiHeadAttention(Trained):
    """Self-attention with its projections, as PyTorch's: (T, embed) becomes (T, embed).

    head_size   features of one head; None: embed / heads, as in PyTorch. A network that loses heads keeps their size.

    Parameters, by PyTorch's names, with n = heads*head_size: in_proj_weight (3*n, embed), in_proj_bias (3*n,),
    out_proj.weight (embed, n), out_proj.bias (embed,). causal, dropout, and a second node of lengths: as of Attention.
    weight_init "default" is PyTorch's: Glorot's for in_proj_weight, Linear's for out_proj.weight; biases begin at 0.
    """

    kind, prefix, inputs, units_keyword = "multi_head", "attention", (1, 2), "heads"
    core_names = {"embed": "outputs", "dropout": "probability"}

    def __init__(
        self,
        embed: int,
        heads: int,
        *more: NoReturn,
        head_size: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        weight_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("MultiHeadAttention", (embed, heads), more, "features and heads", "causal=, dropout=, bias=, ...")
        super().__init__(name, lr, weight_decay)
        self.embed = integer("embed", embed, 1)
        self.heads = integer("heads", heads, 1)
        if head_size is None and self.embed % self.heads:
            raise ValueError(f"heads={heads}: allowed: divisors of embed={embed}, or give head_size=")
        self.head_size = self.embed // self.heads if head_size is None else integer("head_size", head_size, 1)
        self.causal = flag("causal", causal)
        self.dropout = number("dropout", dropout, 0.0, below=1.0)
        self.bias = flag("bias", bias)
        self.weight_init = _init("weight_init", weight_init)


class LSTM(Trained):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): (T, n) becomes (T, hidden), as PyTorch's LSTM.

    hidden    units of each of the `layers`; each layer reads the one before.
    dropout   in training a layer's input from the layer before is dropped with this probability.
    stateful  False: each sample begins at zero. True: a batch's samples continue those of the batch before (gg.data's
              ordered sources), so the state is carried on, without a gradient (truncated back-propagation). The
              state belongs to the replica and is saved with it. Evaluation begins at zero.

    Parameters, by PyTorch's names: weight_ih_l0 (4*hidden, n), weight_hh_l0 (4*hidden, hidden), bias_ih_l0 and
    bias_hh_l0 (4*hidden,), the gates in the order i, f, g, o; _l1 is the second layer. All begin uniform within
    1/sqrt(hidden). weight_init, bias_init, lr, weight_decay as of Linear.
    """

    kind, prefix, units_keyword = "lstm", "lstm", "hidden"
    core_names = {"hidden": "outputs", "dropout": "probability"}

    def __init__(
        self,
        hidden: int,
        *more: NoReturn,
        layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        stateful: bool = False,
        weight_init: Init = "default",
        bias_init: Init = "default",
        lr: Factor = 1.0,
        weight_decay: Factor = 1.0,
        name: str | None = None,
    ) -> None:
        _no_more("LSTM", (hidden,), more, "the number of hidden units", "layers=, dropout=, stateful=, ...")
        super().__init__(name, lr, weight_decay)
        self.hidden = integer("hidden", hidden, 1)
        self.layers = integer("layers", layers, 1)
        self.bias = flag("bias", bias)
        self.dropout = number("dropout", dropout, 0.0, below=1.0)
        self.stateful = flag("stateful", stateful)
        self.weight_init = _init("weight_init", weight_init)
        self.bias_init = _init("bias_init", bias_init)


_OWN = (Embedding, PositionEmbedding, Reshape, Permute, Slice, Pad, Attention, MultiHeadAttention, LSTM)
KINDS: dict[str, type[Layer]] = layers.KINDS | {c.__name__: c for c in _OWN}
