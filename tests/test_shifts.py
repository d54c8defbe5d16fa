"""Images moved and mirrored while training."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import draws


def images(n=40, shape=(2, 5, 7)):
    draw = np.random.default_rng(0)
    return gg.Dataset(draw.integers(1, 256, (n, *shape)).astype(np.uint8), np.arange(n) % 3, scale=0.5, name="few")


def test_each_image_is_a_window_of_itself_between_zeros():
    data = images()
    made = gg.data.random_crop(data, 2, 0.3, seed=9)
    rows = np.array([3, 39, 0, 7, 8, 9])
    for epoch in range(3):
        found, _ = made.source.read_new(rows, epoch)
        drawn = draws.uniform(9, epoch, rows)
        for row, got, numbers in zip(rows, found, drawn, strict=True):
            padded = np.zeros((2, 9, 11), np.uint8)
            padded[:, 2:-2, 2:-2] = data.samples[row]
            y, x = int(5 * numbers[0]), int(5 * numbers[1])
            want = padded[:, y : y + 5, x : x + 7]
            assert np.array_equal(got, want[..., ::-1] if numbers[2] < 0.3 else want)
    assert np.array_equal(made.source.read_new(rows)[0], data.samples[rows]), "to evaluate nothing is drawn"
    assert not np.array_equal(made.source.read_new(rows, 0)[0], made.source.read_new(rows, 1)[0])


def test_all_shifts_and_both_sides_occur():
    data = gg.Dataset(np.full((600, 1, 3, 3), 7, np.uint8), np.zeros(600, int))
    data.samples[:, 0, 1, 0] = 200
    found = gg.data.random_crop(data, 1).source.read_new(np.arange(600), 0)[0]
    assert len({one.tobytes() for one in found}) == 18
    still = gg.data.random_crop(data, 0, 0).source.read_new(np.arange(600), 0)[0]
    assert np.array_equal(still, data.samples)


def test_what_it_keeps_and_refuses():
    data = images()
    weighted = gg.Dataset(data.samples, data.targets, 0.5, sample_weight=np.ones(40))
    made = gg.data.random_crop(weighted[5:])
    assert (made.shape, len(made), float(made.scale)) == ((2, 5, 7), 35, 0.5) and len(made.sample_weight) == 35
    assert np.array_equal(made.targets, data.targets[5:])
    with pytest.raises(ValueError, match=r"samples of shape \(4,\); allowed: images"):
        gg.data.random_crop(gg.Dataset(np.zeros((3, 4), np.uint8), [0, 1, 2]))
    with pytest.raises(ValueError, match="flip=2"):
        gg.data.random_crop(data, flip=2)
