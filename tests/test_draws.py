"""Random numbers of samples: those of the core's generator, of (seed, epoch, sample) alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gossipgrad import _core
from gossipgrad.data import draws

HEADER = Path(__file__).resolve().parent.parent / "csrc" / "base" / "random.h"


@pytest.mark.parametrize(("seed", "epoch", "block"), [(0, 0, 0), (5, 3, 1), (2**63 + 17, 2**35 + 1, 2)])
def test_the_words_are_the_cores(seed, epoch, block):
    found = draws.words(seed, epoch, np.arange(50), block)
    expected = _core.random_uniform(seed, draws.AUGMENT, block, epoch, 200).reshape(50, 4)
    assert np.array_equal((found >> np.uint64(8)) * 2.0**-24, expected)
    rows = np.array([41, 3, 3, 0])  # in any order, and repeated
    assert np.array_equal(draws.words(seed, epoch, rows, block), found[rows])


def test_the_purpose_is_the_headers():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    names = re.findall(r"GG_RANDOM_\w+", text.partition("gg_random_purpose {")[0] + text.partition("typedef enum")[2])
    assert names[draws.AUGMENT - 1] == "GG_RANDOM_AUGMENT"


def test_draws_are_uniform():
    values = draws.uniform(1, 2, np.arange(20000))
    assert values.min() >= 0 and values.max() < 1
    assert np.abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.03
    counts = np.bincount(draws.integers(1, 2, np.arange(20000), 10), minlength=10)
    assert len(counts) == 10 and np.abs(counts - 2000).max() < 6 * np.sqrt(2000)
    assert set(draws.integers(1, 2, np.arange(100), 1)) == {0}
    assert draws.integers(1, 2, np.arange(1000), 2**40).max() > 2**39
