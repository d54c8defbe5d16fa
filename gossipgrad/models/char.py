"""Networks that predict the next character of a text: an LSTM and a transformer. Input: int32 tokens (sequence,)."""

from __future__ import annotations

import math
from typing import Any

from gossipgrad.layers import GELU, Add, Dropout, LayerNorm, Linear, Node
from gossipgrad.model import Input, Model
from gossipgrad.models.building import at_least, chain, network, rate
from gossipgrad.sequences import LSTM, Attention, Embedding, PositionEmbedding


@network
def char_lstm(
    vocabulary: int = 65,
    sequence: int = 64,
    *,
    embedding: int = 128,
    hidden: int = 128,
    layers: int = 2,
    dropout: float = 0.0,
    stateful: bool = False,
) -> Model:
    """An LSTM over characters: 280,897 parameters by default; loss "cross_entropy" of each position.

    After A. Karpathy's char-rnn, as trained in Chen et al., "AdaComp" (2017). `sequence` tokens of `vocabulary` become
    scores (sequence, vocabulary) of the next characters. dropout: between the layers of the LSTM, and after the
    last. stateful: the state is carried from batch to batch, for windows="streams" of gossipgrad.data.text.
    Names as in PyTorch's example word_language_model: encoder, rnn, decoder; weights start as there.
    """
    vocabulary, dropout = at_least("vocabulary", vocabulary), rate(dropout)
    x = Input((at_least("sequence", sequence),), dtype="int32")
    y = Embedding(vocabulary, at_least("embedding", embedding), weight_init=("uniform", 0.1), name="encoder")(x)
    y = LSTM(hidden, layers=layers, dropout=dropout if layers > 1 else 0.0, stateful=stateful, name="rnn")(y)
    if dropout:
        y = Dropout(dropout, name="drop")(y)
    y = Linear(vocabulary, weight_init=("uniform", 0.1), bias_init=0.0, name="decoder")(y)
    return Model(x, y, name="char_lstm")


@network
def char_gpt(
    vocabulary: int = 65,
    sequence: int = 64,
    *,
    layers: int = 4,
    heads: int = 4,
    width: int = 128,
    dropout: float = 0.0,
    bias: bool = True,
) -> Model:
    """A decoder-only transformer over characters, with nanoGPT's names; loss "cross_entropy" of each position.

    `sequence` tokens (nanoGPT's block_size) of `vocabulary` become scores (sequence, vocabulary) of the next
    characters. layers, heads, width: n_layer, n_head, n_embd. By default nanoGPT's setting for a CPU, 818,176
    parameters; its own for a GPU is layers=6, heads=6, width=384, sequence=256, dropout=0.2. Weights start as there:
    normal with deviation 0.02; for additions to the residual path 0.02 / sqrt(2 layers). transformer.wte.weight and
    lm_head.weight, one tensor in nanoGPT, are two here: they start with different values and are trained separately.
    """
    heads, width, layers = at_least("heads", heads), at_least("width", width), at_least("layers", layers)
    if width % heads:
        raise ValueError(f"width={width}: allowed: a multiple of heads={heads}")
    vocabulary, sequence, dropout = at_least("vocabulary", vocabulary), at_least("sequence", sequence), rate(dropout)
    x = Input((sequence,), dtype="int32")
    normal: dict[str, Any] = {"weight_init": ("normal", 0.02)}
    linear = normal | {"bias": bias, "bias_init": 0.0}
    residual = linear | {"weight_init": ("normal", 0.02 / math.sqrt(2 * layers))}

    def drop(y: Node, name: str) -> Node:
        return Dropout(dropout, name=name)(y) if dropout else y

    y = Embedding(vocabulary, width, name="transformer.wte", **normal)(x)
    y = drop(PositionEmbedding(name="transformer.wpe", **normal)(y), "transformer.drop")
    for i in range(layers):
        block = f"transformer.h.{i}"
        inside = chain(
            y,
            [
                LayerNorm(bias=bias, name=f"{block}.ln_1"),
                Linear(3 * width, name=f"{block}.attn.c_attn", **linear),
                Attention(heads, causal=True, dropout=dropout, name=f"{block}.attn"),
                Linear(width, name=f"{block}.attn.c_proj", **residual),
            ],
        )
        y = Add(name=f"{block}.add_1")(y, drop(inside, f"{block}.attn.resid_dropout"))
        inside = chain(
            y,
            [
                LayerNorm(bias=bias, name=f"{block}.ln_2"),
                Linear(4 * width, name=f"{block}.mlp.c_fc", **linear),
                GELU(name=f"{block}.mlp.gelu"),
                Linear(width, name=f"{block}.mlp.c_proj", **residual),
            ],
        )
        y = Add(name=f"{block}.add_2")(y, drop(inside, f"{block}.mlp.dropout"))
    y = LayerNorm(bias=bias, name="transformer.ln_f")(y)
    return Model(x, Linear(vocabulary, bias=False, name="lm_head", **normal)(y), name="char_gpt")
