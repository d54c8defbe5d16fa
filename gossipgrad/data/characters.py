"""Text as characters: a vocabulary, and windows of a text with the next character of each place."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gossipgrad.data import cache, draws
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.source import Source
from gossipgrad.errors import DataError, choice, integer, number
from gossipgrad.state import files

Windows = Literal["random", "consecutive", "streams"]
WINDOWS = ("random", "consecutive", "streams")


class Vocabulary:
    """The characters of a text in the order of their code points; a token is a character's number, 0, 1, ..."""

    def __init__(self, characters: Iterable[str]) -> None:
        found = sorted({one for text in characters for one in text})
        if not found:
            raise ValueError("characters: none; wanted one at least")
        self.characters = "".join(found)
        self._codes = _codes(self.characters)

    def __len__(self) -> int:
        return len(self.characters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} characters: {self.characters!r}>"

    def encode(self, text: str, unknown: str | None = None) -> NDArray[np.int32]:
        """The tokens of a text, (n,). unknown: replaces characters outside of the vocabulary; None: they are a
        ValueError."""
        codes = _codes(text)
        place = np.minimum(np.searchsorted(self._codes, codes), len(self) - 1)
        wrong = np.flatnonzero(self._codes[place] != codes)
        if len(wrong):
            if unknown is None:
                raise ValueError(self._unknown(text, int(wrong[0]), len(wrong)))
            if len(unknown) != 1 or unknown not in self.characters:
                raise ValueError(f"unknown={unknown!r}: allowed: one of the vocabulary's characters, or None")
            place[wrong] = self.characters.index(unknown)
        return place.astype(np.int32)

    def _unknown(self, text: str, at: int, count: int) -> str:
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        others = f", and {count - 1} more" if count > 1 else ""
        return (
            f"character {text[at]!r} at position {at} (line {line}, column {column}) is not among the {len(self)} of "
            f"the vocabulary{others}; allowed: {self.characters!r}"
        )

    def decode(self, tokens: ArrayLike) -> str:
        """The text of tokens, in the order of their array. ValueError names the first invalid one."""
        numbers = np.asarray(tokens).reshape(-1)
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"tokens: dtype {numbers.dtype}; allowed: integers")
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(self)))
        if len(wrong):
            raise ValueError(f"tokens[{wrong[0]}] is {numbers[wrong[0]]}; allowed: 0..{len(self) - 1}")
        return self._codes[numbers.astype(np.int64)].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class TextSource(Source):
    """Windows of `sequence` tokens of one text; the targets are the tokens that follow, (sequence,)."""

    def __init__(
        self, tokens: NDArray[Any], vocabulary: Vocabulary, sequence: int, windows: str, seed: int, name: str
    ) -> None:
        self.tokens, self.vocabulary, self.sequence = tokens, vocabulary, sequence
        self.windows, self.seed, self.name = windows, seed, name
        self.shape = self.target_shape = (sequence,)
        self.dtype = np.dtype(np.int32)
        self.values = len(vocabulary)
        self.streams = windows == "streams"
        self._steps = np.arange(sequence)

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def starts(self, rows: NDArray[Any], epoch: int) -> NDArray[np.int64]:
        """Positions in the text where the windows of these rows begin."""
        if self.windows == "random" and epoch >= 0:
            return draws.integers(self.seed, epoch, rows, len(self.tokens) - self.sequence)
        return np.asarray(rows, np.int64) * self.sequence

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None) -> None:
        places = self.starts(rows, epoch)[:, None] + self._steps
        samples[...] = self.tokens[places]
        if targets is not None:
            targets[...] = self.tokens[places + 1]


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file, plain or gzip. DataError: unreadable, or not UTF-8."""
    path = Path(path)
    try:
        content = files.content(path)
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"truncated or damaged gzip file ({error})"
        raise DataError(f"{path}: {reason}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: no UTF-8 text: byte {error.start}, in line {line}: {error.reason}") from error


def text(
    source: str | os.PathLike[str],
    sequence: int = 64,
    *,
    windows: Windows = "random",
    validation: float | None = 0.1,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Any:
    """(train, validation) of a text's characters, each a Dataset of windows: samples (n, sequence) of int32 tokens, and
    targets (n, sequence), the token that follows each; or one Dataset with validation=None.

    source      a file, UTF-8, plain or gzip; or the text itself: a str with a line end in it.
    sequence    tokens a sample.
    windows     "random": a sample is a window that begins anywhere, drawn anew in each epoch by (seed, epoch, sample).
                An epoch has as many as there are consecutive windows. "consecutive": windows that follow each other
                without a gap, in an order that fit shuffles. "streams": consecutive, but row b of a batch continues row
                b of the batch before, for networks that carry their state from batch to batch; if rows differ in
                length, the last batch is smaller.
                Evaluation uses consecutive windows.
    validation  the share of the text, at its end, to validate on; None: the whole text is one set.
    vocabulary  None: the text's own characters. A character missing in a given one is an error with its place.
    seed        of the windows.

    The sets have `vocabulary`, with encode and decode. ValueError, DataError: a text that is shorter than a sequence,
    unknown characters, files that cannot be read.
    """
    content, where = _content(source)
    called = name or Path(where).name
    sequence, seed = integer("sequence", sequence, 1), integer("seed", seed, 0, 2**64 - 1)
    choice("windows", windows, WINDOWS)
    if vocabulary is None:
        if not content:
            raise DataError(f"{where}: empty; wanted at least {sequence + 1} characters")
        vocabulary = Vocabulary([content])
    try:
        tokens = _small(vocabulary.encode(content), len(vocabulary))
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    share = 0.0 if validation is None else number("validation", validation, above=0.0, below=1.0)
    cut = int(len(tokens) * (1 - share))
    parts = [tokens] if validation is None else [tokens[:cut], tokens[cut:]]
    for part, what in zip(parts, ("the text", "the part to validate on"), strict=False):
        if len(part) <= sequence:
            which = "the part to train on" if len(parts) == 2 and what == "the text" else what
            raise DataError(
                f"{where}: {which} has {len(part):,} characters; sequence={sequence} wants at least {sequence + 1}, a "
                "sequence and the character after it"
            )
    kinds = (windows, "streams" if windows == "streams" else "consecutive")
    sets = tuple(
        Dataset(TextSource(part, vocabulary, sequence, kind, seed, called))
        for part, kind in zip(parts, kinds, strict=False)
    )
    return sets[0] if validation is None else sets


def _content(source: Any) -> tuple[str, str]:
    """(the text, its file, or "text")"""
    if isinstance(source, str) and ("\n" in source or not source):
        return source, "text"
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source: {type(source).__name__}; allowed: a file's name, or a text with a line end in it")
    if isinstance(source, str) and not os.path.exists(source):
        shown = repr(source) if len(source) <= 80 else f"{source[:60]!r}... ({len(source):,} characters)"
        raise DataError(f"{shown}: no such file; a text itself has a line end in it")
    return read_text(source), os.fspath(source)


def _small(tokens: NDArray[np.int32], values: int) -> NDArray[Any]:
    """These numbers in fewer bytes, because there is one for each character."""
    return tokens.astype(np.uint8 if values <= 2**8 else np.uint16 if values <= 2**16 else np.int32)


# ---- tiny Shakespeare

FILE = "input.txt"


def locate(source: str | os.PathLike[str] | None = None) -> Path:
    """input.txt in a folder (or its shakespeare/), or the given file; None: $GOSSIPGRAD_DATA, the cache."""
    if source is not None and os.path.isfile(source):
        return Path(source)
    looked = cache.places("shakespeare", source)
    for place in looked:
        for name in (FILE, f"{FILE}.gz"):
            if (place / name).is_file():
                return place / name
    raise DataError(
        f"shakespeare not found in {', '.join(map(str, looked))}. Put {FILE}, tiny Shakespeare (1,115,394 characters; "
        "github.com/karpathy/char-rnn, data/tinyshakespeare), there, or name any text by --data"
    )


def shakespeare(
    source: str | os.PathLike[str] | None = None, sequence: int = 64, windows: Windows = "random", seed: int = 0
) -> tuple[Dataset, Dataset]:
    """(train, validation): tiny Shakespeare's first 90 %, and the rest, in the form of text()."""
    train, validation = text(locate(source), sequence, windows=windows, seed=seed, name="shakespeare")
    return train, validation
