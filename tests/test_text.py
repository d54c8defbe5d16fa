"""Text as characters: the vocabulary, windows and their targets, and texts that cannot be cut into any."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import characters
from gossipgrad.data.given import Given

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n" * 3


def windows(one, epoch=-1, rows=None):
    rows = np.arange(len(one)) if rows is None else np.asarray(rows)
    samples, targets = one.source.read_new(rows, epoch)
    decode = one.source.vocabulary.decode
    return [decode(row) for row in samples], [decode(row) for row in targets]


# ---- the vocabulary


@pytest.mark.parametrize("text", [TEXT, "a", "ßäöü€", "\U0001f600 and \x00", "x\ud800y"])
def test_encode_and_decode(text):
    words = gg.data.Vocabulary([text])
    tokens = words.encode(text)
    assert tokens.dtype == np.int32 and len(tokens) == len(text) and set(tokens) == set(range(len(words)))
    assert words.decode(tokens) == text and words.characters == "".join(sorted(set(text)))
    assert [words.characters[token] for token in tokens] == list(text)
    assert words == gg.data.Vocabulary(list(text)) and words != gg.data.Vocabulary([text, "#"])
    assert words.encode("").shape == (0,) and words.decode([]) == ""


def test_unknown_tokens_are_named():
    words = gg.data.Vocabulary(["abc\n"])
    with pytest.raises(ValueError, match=r"'x' at position 5 \(line 2, column 3\) is not among the 4 .* and 1 more"):
        words.encode("ab\nbcxc#")
    assert words.decode(words.encode("axb", unknown="c")) == "acb"
    for unknown in ("x", "ab", ""):
        with pytest.raises(ValueError, match=f"unknown={unknown!r}"):
            words.encode("x", unknown=unknown)
    for tokens, message in (([0, 4], r"tokens\[1\] is 4; allowed: 0..3"), ([-1], r"tokens\[0\] is -1")):
        with pytest.raises(ValueError, match=message):
            words.decode(tokens)
    with pytest.raises(TypeError, match="float64"):
        words.decode([0.5])
    with pytest.raises(ValueError, match="characters: none"):
        gg.data.Vocabulary([])


# ---- windows


def test_consecutive_windows_and_the_characters_that_follow():
    one = gg.data.text(TEXT, 16, windows="consecutive", validation=None)
    x, y = windows(one)
    assert one.shape == (16,) and one.dtype == np.int32 and one.targets.shape == (len(one), 16)
    assert "".join(x) == TEXT[: 16 * len(one)] and len(TEXT) - 16 * len(one) <= 16
    assert "".join(y) == TEXT[1 : 16 * len(one) + 1]
    assert windows(one, 3) == (x, y)
    assert np.array_equal(one[2:5].samples, one.samples[2:5]) and np.array_equal(one[2:5].targets, one.targets[2:5])


def test_random_windows_are_of_seed_epoch_and_sample_alone():
    one = gg.data.text(TEXT, 16, validation=None, seed=5)
    x, y = windows(one, 2)
    for row in range(len(one)):  # one at a time, in any order
        assert windows(one, 2, [row]) == ([x[row]], [y[row]])
    assert all(a[1:] == b[:-1] and a + b[-1] in TEXT for a, b in zip(x, y, strict=True))
    assert windows(one, 2) == (x, y) != windows(one, 3)
    assert windows(gg.data.text(TEXT, 16, validation=None, seed=6), 2) != (x, y)
    assert windows(one) == windows(gg.data.text(TEXT, 16, windows="consecutive", validation=None))
    # They begin anywhere, at both ends too.
    short = gg.data.text("abcdefgh\n", 4, validation=None)
    starts = {int(s) for epoch in range(200) for s in short.source.starts(np.arange(2), epoch)}
    assert starts == set(range(5))


def test_the_end_is_to_validate_on():
    train, test = gg.data.text(TEXT, 8, windows="streams", validation=0.25)
    cut = int(len(TEXT) * 0.75)
    assert "".join(windows(train)[0]) == TEXT[: 8 * len(train)] and 8 * len(train) <= cut
    assert "".join(windows(test)[0]) == TEXT[cut : cut + 8 * len(test)]
    assert train.source.vocabulary is test.source.vocabulary is test.vocabulary is train[3:5].vocabulary
    assert train.source.streams and test.source.streams
    train, test = gg.data.text(TEXT, 8)
    assert not train.source.streams and (train.source.windows, test.source.windows) == ("random", "consecutive")


def test_a_share_of_streams_is_their_end():
    """Windows that are drawn would leave gaps, over which a state would go on."""
    whole = gg.data.text(TEXT, 8, windows="streams", validation=None)
    train, test = (given.parts[0] for given in Given((whole,), False).split(0.25, 3))
    assert [*train._rows, *test._rows] == list(range(len(whole))) and len(test) == round(len(whole) / 4)
    assert train.streams and test.streams


def test_texts_from_files(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeff" + TEXT)
    (tmp_path / "b").write_bytes(gzip.compress(TEXT.encode()))
    for path in (tmp_path / "a.txt", str(tmp_path / "b")):
        one = gg.data.text(path, 8, windows="consecutive", validation=None)
        assert "".join(windows(one)[0]) == TEXT[: 8 * len(one)] and one.name in ("a.txt", "b")
        with pytest.raises(gg.DataError, match=f"^{re.escape(str(path))}: the part to train on has"):
            gg.data.load("shakespeare", path, sequence=1000)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"source": "abcd\nef", "sequence": 7, "validation": None}, "text: the text has 7 characters; sequence=7"),
        ({"source": TEXT, "sequence": 32}, "the part to validate on has 25 characters; sequence=32 wants at least 33"),
        ({"source": TEXT, "sequence": 32, "validation": 0.95}, "the part to train on has 12 characters"),
        ({"source": "", "sequence": 4}, "text: empty"),
        ({"source": TEXT, "vocabulary": gg.data.Vocabulary(["abc"])}, r"'F' at position 0 \(line 1, column 1\)"),
        ({"source": "no such file"}, "'no such file': no such file"),
        (
            {"source": "to be or not to be " * 5000},
            r"^'to be or not to be [a-z ]{10,60}'... \(95,000 characters\): no such file; a text itself has a line end",
        ),
    ],
)
def test_texts_that_cannot_be_cut(how, words):
    with pytest.raises(gg.DataError, match=words):
        gg.data.text(**how)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"sequence": 0}, ValueError, "sequence=0"),
        ({"windows": "stream"}, ValueError, "windows='stream': allowed: .*did you mean 'streams'"),
        ({"validation": 0}, ValueError, "validation=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"source": 5}, TypeError, "source: int"),
    ],
)
def test_bad_arguments(how, error, words):
    with pytest.raises(error, match=words):
        gg.data.text(**{"source": TEXT, **how})


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"abc\nde\xff\n")
    with pytest.raises(gg.DataError, match=r"t.txt: no UTF-8 text: byte 6, in line 2"):
        gg.data.text(path)
    path.write_bytes(gzip.compress(TEXT.encode())[:-9])
    with pytest.raises(gg.DataError, match=r"t.txt: truncated or damaged gzip"):
        gg.data.text(path)
    with pytest.raises(gg.DataError, match=r"none.txt: No such file"):
        gg.data.text(tmp_path / "none.txt")
    with pytest.raises(gg.DataError, match="Is a directory"):
        gg.data.text(tmp_path)


def test_many_characters():
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 300))) + "\n"
    one = gg.data.text(text, 100, windows="consecutive", validation=None)
    assert one.source.tokens.dtype == np.uint16
    assert one.source.vocabulary.decode(one.samples[0]) == text[:100]


# ---- tiny Shakespeare


def test_shakespeare(data_dir):
    train, test = gg.data.load("shakespeare", data_dir)
    whole = (data_dir / "shakespeare" / "input.txt").read_text()
    assert len(train.source.vocabulary) == 65 and len(whole) == 1115394
    assert len(train) == (1003854 - 1) // 64 and len(test) == (111540 - 1) // 64
    assert windows(test, rows=[0])[0] == [whole[1003854 : 1003854 + 64]]
    assert len(characters.shakespeare(data_dir / "shakespeare" / "input.txt", 100, "streams")[0]) == 1003853 // 100


def test_where_shakespeare_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOSSIPGRAD_DATA", raising=False)
    with pytest.raises(gg.DataError, match=r"shakespeare not found in .*cache/shakespeare. Put input.txt"):
        gg.data.load("shakespeare")
    (tmp_path / "cache" / "shakespeare").mkdir(parents=True)
    (tmp_path / "cache" / "shakespeare" / "input.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 30))
    assert gg.data.load("shakespeare")[0].name == "shakespeare"
