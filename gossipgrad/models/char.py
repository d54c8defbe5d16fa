"""Networks that predict the next character of a text: an LSTM. Input: int32 tokens (sequence,)."""

from __future__ import annotations

from gossipgrad.layers import Dropout, Linear
from gossipgrad.model import Input, Model
from gossipgrad.models.building import at_least, rate
from gossipgrad.sequences import LSTM, Embedding


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
    scores (sequence, vocabulary) of the characters that follow. dropout: between the layers of the LSTM, and behind
    the last. stateful: the state is carried from batch to batch, for windows="streams" of gossipgrad.data.text.
    Names as in PyTorch's example word_language_model: encoder, rnn, decoder; weights start as there.
    """
    vocabulary, dropout = at_least("vocabulary", vocabulary), rate(dropout)
    x = Input((at_least("sequence", sequence),), dtype="int32")
    y = Embedding(vocabulary, at_least("embedding", embedding), weight_init=("uniform", 0.1), name="encoder")(x)
    y = LSTM(hidden, layers, dropout=dropout if layers > 1 else 0.0, stateful=stateful, name="rnn")(y)
    if dropout:
        y = Dropout(dropout, name="drop")(y)
    y = Linear(vocabulary, weight_init=("uniform", 0.1), bias_init=0.0, name="decoder")(y)
    return Model(x, y, name="char_lstm")
