"""Data sets: arrays, dtypes, targets, the digits in the package."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import checks, classes, embedded

ROOT = Path(__file__).resolve().parent.parent


def test_mnist_10k_is_balanced():
    train, test = gg.data.load("mnist-10k")
    assert np.array_equal(np.bincount(train.targets), [1000] * 10)
    assert np.array_equal(np.bincount(test.targets), [200] * 10)
    assert train.shape == test.shape == (1, 28, 28) and train.scale == 1 / 255
    assert sum(p.stat().st_size for p in embedded.FOLDER.glob("mnist-10k*")) < 2_100_000
    assert "CC BY-SA 3.0" in (embedded.FOLDER / "mnist-10k.README.md").read_text()


@pytest.mark.full
def test_mnist_10k_is_what_its_script_makes(data_dir, tmp_path):
    script = [
        sys.executable,
        str(ROOT / "tools" / "make_mnist_10k.py"),
        str(data_dir / "mnist"),
        "--out",
        str(tmp_path),
    ]
    subprocess.run(script, check=True, capture_output=True, cwd=ROOT)
    made = sorted(tmp_path.glob("*.gz"))
    assert len(made) == 4
    from gossipgrad.data import idx

    for path in made:  # zlib versions pack differently: compare what is inside
        assert idx.read_bytes(path) == idx.read_bytes(embedded.FOLDER / path.name)


def test_unknown_name():
    with pytest.raises(ValueError, match="dataset='cifar': allowed: 'mnist-10k', 'mnist'"):
        gg.data.load("cifar")


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_no_copy_where_the_layout_allows(dtype):
    x = np.zeros((6, 2, 3), dtype)
    assert np.shares_memory(gg.Dataset(x, np.zeros(6, int)).samples, x)
    assert gg.Dataset(x.transpose(0, 2, 1), np.zeros(6, int)).samples.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int8, ">f4", ">i2"])
def test_other_numbers_become_float32_or_int32(dtype):
    x = np.arange(12).reshape(6, 2).astype(dtype)
    made = gg.Dataset(x, np.zeros(6, int)).samples
    assert made.dtype == (np.float32 if x.dtype.kind == "f" else np.int32)
    assert made.dtype.isnative and np.array_equal(made, np.arange(12).reshape(6, 2))


def test_bool_becomes_uint8():
    assert gg.Dataset(np.array([[True], [False]]), [0, 1]).samples.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("x", "y", "error", "words"),
    [
        (np.zeros((3, 2), complex), [0, 0, 0], TypeError, ["complex"]),
        (np.array(["a", "b"]), [0, 0], TypeError, ["dtype <U1"]),
        (np.zeros((3, 2)), [0, 0], ValueError, ["3 samples but 2 targets"]),
        (np.zeros((0, 2)), [], ValueError, ["empty"]),
        (np.float32(3), [0], ValueError, ["single number"]),
    ],
)
def test_bad_arrays(x, y, error, words):
    with pytest.raises(error) as caught:
        gg.Dataset(x, y)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_labels_of_any_integer(dtype):
    y = checks.targets_array(np.array([0, 3, 1], dtype), "cross_entropy", (4,))
    assert y.dtype == np.int32 and y.tolist() == [0, 3, 1]
    assert checks.targets_array(np.array([[0], [3]], dtype), "cross_entropy", (4,)).shape == (2,)


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("y", "loss", "output", "error", "words"),
    [
        ([0, 1, 4, 9], "cross_entropy", (4,), ValueError, ["targets[2] is 4", "0..3"]),
        ([0, -1], "cross_entropy", (4,), ValueError, ["targets[1] is -1"]),
        ([2**33], "cross_entropy", (4,), ValueError, ["targets[0] is 8589934592"]),
        ([0.0, 1.5], "cross_entropy", (4,), ValueError, ["targets[1] is 1.5", "whole numbers", "mean_squared_error"]),
        ([0.0, np.nan], "cross_entropy", (4,), ValueError, ["targets[1] is NaN"]),
        ([0, 1], "cross_entropy", (1,), ValueError, ["targets[1] is 1", "classes 0..0", "loss='binary_cross_entropy'"]),
        ([[1, 0], [1, 1]], "cross_entropy", (2,), ValueError, ["targets[1] is no one-hot row"]),
        ([[0.3, 0.7]], "cross_entropy", (2,), ValueError, ["targets[0] is no one-hot row"]),
        ([[1, 0], [0, 1]], "cross_entropy", (3,), ValueError, ["shape (2, 2)", "one class a sample", "(n, 3)"]),
        (["cat", "dog"], "cross_entropy", (2,), TypeError, ["np.unique(y, return_inverse=True)[1]"]),
        ([0, 2, 1], "binary_cross_entropy", (1,), ValueError, ["targets[1] is 2", "classes: loss='cross_entropy'"]),
        ([0, 1, -0.1], "binary_cross_entropy", (1,), ValueError, ["targets[2] is -0.1", "in 0..1"]),
        ([[0, 1], [0.5, 3]], "binary_cross_entropy", (2,), ValueError, ["targets[1, 1] is 3", "in 0..1"]),
        ([[0, np.inf]], "mean_squared_error", (2,), ValueError, ["targets[0] has inf at [1]"]),
        ([[0.0], [1e300]], "mean_squared_error", (1,), ValueError, ["targets[1] has inf at [0]"]),
        ([0, 1], "cross_entropy", (4, 2, 2), ValueError, ["(4, 2, 2)", "a class for each position: (n, 4, 2)"]),
        ([[0, 1], [2, 0]], "cross_entropy", (2, 2), ValueError, ["targets[1, 0] is 2", "classes 0..1"]),
        ([[0, -1]], "cross_entropy", (2, 2), ValueError, ["targets[0, 1] is -1"]),
        ([[0, 0.5]], "cross_entropy", (2, 2), ValueError, ["targets[0, 1] is 0.5"]),
        ([[0, np.nan]], "cross_entropy", (2, 2), ValueError, ["targets[0] has NaN at [1]"]),
        ([1], "cross_entropy", (), ValueError, ["one score a class"]),
        ([[1.0, 0.0]], "binary_cross_entropy", (1,), ValueError, ["2 values a sample", "(1,)"]),
        (["a"], "mean_squared_error", (1,), TypeError, ["numbers"]),
    ],
)
def test_bad_targets(y, loss, output, error, words):
    with pytest.raises(error) as caught:
        checks.targets_array(np.array(y), loss, output)
    for word in words:
        assert word in str(caught.value)


def test_samples_too_large_for_float32():
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"x\[1\] has inf at \[0\]"):
        warnings.simplefilter("error")
        checks.check_finite(checks.samples_array(np.array([[0.0], [1e300]])), "x")


@pytest.mark.parametrize(
    "y",
    [
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
        [[False, True, False], [False, False, True], [True, False, False]],
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
        [1.0, 2.0, 0.0],
        [[1.0], [2.0], [0.0]],
    ],
)
def test_one_hot_rows_and_whole_floats_are_classes(y):
    made = checks.targets_array(np.array(y), "cross_entropy", (3,))
    assert made.dtype == np.int32 and made.tolist() == [1, 2, 0]


def test_a_class_for_each_position():
    y = np.array([[0, 3], [2, 1]], np.int64)
    made = checks.targets_array(y, "cross_entropy", (2, 4))
    assert made.dtype == np.int32 and np.array_equal(made, y)
    y[0, 1] = -100
    assert np.array_equal(checks.targets_array(y, "cross_entropy", (2, 4), ignored=-100), y)
    assert checks.targets_array([1, 7], "cross_entropy", (4,), ignored=7).tolist() == [1, 7]
    with pytest.raises(ValueError, match=r"targets\[0, 1\] is -100; .* classes 0..3, and -1, which is ignored"):
        checks.targets_array(y, "cross_entropy", (2, 4), ignored=-1)


def test_bools_are_classes():
    assert checks.targets_array(np.array([True, False]), "cross_entropy", (2,)).tolist() == [1, 0]


def test_targets_of_other_losses():
    for y in ([0, 1, 1], [0.0, 1.0, 1.0], [[0], [1], [1]], [False, True, True]):
        made = checks.targets_array(np.array(y), "binary_cross_entropy", (1,))
        assert made.dtype == np.float32 and made.tolist() == [[0], [1], [1]]
    assert checks.targets_array(np.zeros((2, 3, 4)), "mean_squared_error", (3, 4)).shape == (2, 12)


def test_shapes_that_do_not_fit_the_network():
    train, _ = gg.data.load("mnist-10k")
    flat = gg.Dataset(train.samples.reshape(-1, 784), train.targets)
    with pytest.raises(ValueError, match=r"\(784,\), but the network's input is \(1, 28, 28\); reshape"):
        flat.for_network("cross_entropy", (1, 28, 28), (10,))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_slices_and_scale(dtype):
    x = np.arange(20, dtype=dtype).reshape(10, 2)
    part = gg.Dataset(x, np.arange(10), scale=0.5, shift=1)[4:7]
    assert len(part) == 3 and part.targets.tolist() == [4, 5, 6]
    seen = np.concatenate(list(part.batches(2)))
    assert seen.dtype == np.float32 and seen.tolist() == (x[4:7] * 0.5 + 1).tolist()
    with pytest.raises(TypeError, match="index: 3; allowed: a slice"):
        part[3]


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u8", ">i4"])
def test_an_index_may_be_of_any_integers(kind):
    data = gg.Dataset(np.zeros((40_000, 2)), np.arange(40_000))
    rows = np.array([3, 120, 7], kind)
    assert data[rows].targets.tolist() == [3, 120, 7]
    if rows.dtype.kind == "i":
        assert data[-rows].targets.tolist() == [39_997, 39_880, 39_993]


def test_a_wrong_index_is_described_and_not_printed():
    data = gg.Dataset(np.zeros((1000, 2)), np.arange(1000))
    cases = [
        (np.zeros(1000), TypeError, r"an array of float64 and shape \(1000,\)"),
        ([], TypeError, "an array"),
        ("name", TypeError, "index: name"),
        ([0, 1000], IndexError, r"index\[1\] is 1000; the set has samples 0\.\.999"),
        ([True, False], IndexError, "2 bools for 1000 samples"),
        (np.zeros(1000, bool), IndexError, "no bool is true"),
        (slice(5, 5), IndexError, "no sample of 1000"),
    ]
    for index, error, words in cases:
        with pytest.raises(error, match=words) as caught:
            data[index]
        assert len(str(caught.value)) < 200


def everything(data):
    """(samples, targets, weights) as lists, by way of each reader."""
    seen = np.concatenate(list(data.batches(3)))
    assert np.array_equal(seen, data.samples * np.float32(data.scale) + np.float32(data.shift))
    weights = None if data.sample_weight is None else data.sample_weight.tolist()
    return data.samples.tolist(), data.targets.tolist(), weights


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_parts_are_those_rows_and_share_the_samples(dtype):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 9, (20, 2)).astype(dtype), np.arange(20)
    w = generator.uniform(0, 3, 20).astype(np.float32)
    data = gg.Dataset(x, y, 0.5, 1, sample_weight=w)
    rows = np.array([3, 1, 1, 17])
    cases = {
        "slice": (data[4:7], y[4:7]),
        "stride": (data[::-3], y[::-3]),
        "rows": (data[rows], y[rows]),
        "negative rows": (data[[-1, 0]], y[[-1, 0]]),
        "mask": (data[y % 3 == 0], y[y % 3 == 0]),
        "part of a part": (data[rows][1:3][[1]], y[rows][1:3][[1]]),
        "slice of a slice": (data[5:15][2:4], y[7:9]),
        "take": (data.take(6), y[:6]),
    }
    for name, (part, wanted) in cases.items():
        assert everything(part) == (x[wanted].tolist(), wanted.tolist(), w[wanted].tolist()), name
        assert np.shares_memory(part._array, x) and len(part) == len(wanted)
    assert everything(data) == (x.tolist(), y.tolist(), w.tolist())


def test_shuffle_is_a_permutation_drawn_by_the_seed():
    data = gg.Dataset(np.arange(50, dtype=np.float32)[:, None], np.arange(50))
    one, other = data.shuffle(1), data.shuffle(2)
    assert sorted(one.targets) == list(range(50)) and one.samples.ravel().tolist() == one.targets.tolist()
    assert one.targets.tolist() == data.shuffle(1).targets.tolist() != other.targets.tolist() != list(range(50))


def test_split():
    data = gg.Dataset(np.arange(50, dtype=np.float32)[:, None], np.arange(50))
    for parts, sizes in ((0.8, [40, 10]), (8, [8, 42]), ([0.5, 0.3, 0.2], [25, 15, 10]), ([1, 48, 1], [1, 48, 1])):
        made = data.split(parts, seed=3)
        assert [len(one) for one in made] == sizes
        assert sorted(np.concatenate([one.targets for one in made])) == list(range(50))
        for one in made:
            assert one.targets.tolist() == sorted(one.targets) == one.samples.ravel().tolist()
    assert data.split(0.5, seed=3)[0].targets.tolist() == data.split(0.5, seed=3)[0].targets.tolist()
    assert data.split(0.5, seed=3)[0].targets.tolist() != data.split(0.5, seed=4)[0].targets.tolist()
    bad = [
        (0.0, "parts=0"),
        (1.0, "parts=1"),
        (50, "none may be empty"),
        (51, "parts=51"),
        ([0.5, 0.2], "add up to 0.7"),
    ]
    bad += [([10, 20], "parts of"), (0.001, "none may be empty")]
    for parts, words in bad:
        with pytest.raises(ValueError, match=words):
            data.split(parts)
    for parts in (True, "half", []):
        with pytest.raises(TypeError, match="parts="):
            data.split(parts)


def test_a_stratified_split_has_each_class_in_its_share():
    labels = np.repeat([0, 1, 2], [70, 25, 5])
    generator = np.random.default_rng(1)
    generator.shuffle(labels)
    for y in (labels, np.eye(3)[labels]):
        made = gg.Dataset(np.zeros((100, 1)), y).split([0.6, 0.2, 0.2], seed=5, stratify=True)
        for one, share in zip(made, (0.6, 0.2, 0.2), strict=True):
            found = np.bincount(classes.class_numbers(one.targets), minlength=3)
            assert (np.abs(found - share * np.array([70, 25, 5])) <= 1).all() and found.sum() == 100 * share
    with pytest.raises(ValueError, match="stratify=True: targets must be classes"):
        gg.Dataset(np.zeros((4, 1)), [0.5, 1, 2, 3]).split(0.5, stratify=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 3, 4999])
def test_a_sample_that_is_not_finite_is_named(value, row):
    x = np.zeros((5000, 3, 7, 8), np.float32)  # several pieces
    x[row, 0, 5, 7] = value
    name = "NaN" if np.isnan(value) else str(value)
    words = rf"mine: samples\[{row}\] has {name} at \[0, 5, 7\]"
    data = gg.Dataset(x, np.zeros(5000, int), name="mine")
    with pytest.raises(ValueError, match=words):
        data.for_network("cross_entropy", (3, 7, 8), (10,))
    data[[1, 2, 5]].for_network("cross_entropy", (3, 7, 8), (10,))  # a part without it
    with pytest.raises(ValueError, match=r"mine: samples\[2\] has "):
        data[[1, 2, row]].for_network("cross_entropy", (3, 7, 8), (10,))


def test_sums_that_overflow_are_no_infinite_samples():
    x = np.full((8, 1000), 3e38, np.float32)
    x[::2] *= -1
    gg.Dataset(x, np.zeros(8, int)).for_network("cross_entropy", (1000,), (10,))


@pytest.mark.parametrize(
    ("shape", "wanted", "hint"),
    [
        ((32, 32, 3), (3, 32, 32), "x.transpose(0, 3, 1, 2)"),
        ((28, 28, 1), (1, 28, 28), "x.transpose(0, 3, 1, 2)"),
        ((28, 28), (1, 28, 28), "x[:, None]"),
        ((3, 3, 3, 2), (2, 3, 3, 3), "x.transpose(0, 4, 1, 2, 3)"),
        ((1, 28, 28), (784,), "x.reshape(-1, 784)"),
        ((784,), (1, 28, 28), "x.reshape(-1, 1, 28, 28)"),
        ((3072,), (3, 32, 32), "x.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)"),
    ],
)
def test_hints_at_shapes_give_the_right_pixels(shape, wanted, hint):
    said = checks.shape_hint(shape, wanted)
    assert hint in said and ("reshape" in said) == ("reshape" in hint)
    x = np.zeros((5, *shape), np.float32)
    assert eval(said.split(": ", 1)[1].split(" where")[0]).shape[1:] == wanted
    with pytest.raises(ValueError, match="network's input") as caught:
        gg.Dataset(x, np.zeros(5, int)).for_network("cross_entropy", wanted, (10,))
    assert said in str(caught.value)


def test_no_hint_where_nothing_is_plain():
    for shape, wanted in (((2, 6), (3, 4)), ((3, 8), (2, 3, 4)), ((5,), (4,)), ((4, 4, 3), (3, 5, 5))):
        assert checks.shape_hint(shape, wanted) == ""


def test_class_weights():
    counts = np.array([60, 30, 0, 10])
    balanced = classes.class_weights("balanced", counts)
    assert np.allclose(balanced[counts > 0] * counts[counts > 0], 100 / 3) and np.isfinite(balanced).all()
    assert classes.class_weights({1: 5, np.int64(3): 0.5}, counts).tolist() == [1, 5, 1, 0.5]
    assert classes.class_weights([1, 2, 3, 4], counts).tolist() == [1, 2, 3, 4]
    bad = [
        ("equal", "class_weight='equal'"),
        ({4: 1.0}, "class=4.*in 0..3"),
        ({0: -1.0}, r"class_weight\[0\]=-1"),
        ([1, 2], "shape"),
    ]
    for given, words in [*bad, ({0: np.nan}, "nan"), ([1, 1, 1, -1], r"class_weight\[3\]=-1")]:
        with pytest.raises(ValueError, match=words):
            classes.class_weights(given, counts)


def test_sample_weights_are_checked():
    x, y = np.zeros((3, 2)), [0, 1, 2]
    for weights, error, words in (
        ([1, 2], ValueError, r"sample_weight: shape \(2,\); wanted \(3,\)"),
        ([1, -2, 3], ValueError, r"sample_weight\[1\] is -2"),
        ([1, 2, np.inf], ValueError, r"sample_weight\[2\] is inf"),
        (["a", "b", "c"], TypeError, "numbers"),
    ):
        with pytest.raises(error, match=words):
            gg.Dataset(x, y, sample_weight=weights)


def test_synthetic_is_the_same_each_time():
    (a, _), (b, test) = gg.data.synthetic((3, 4), 5, 100, 50), gg.data.synthetic((3, 4), 5, 100, 50)
    assert np.array_equal(a.samples, b.samples) and len(test) == 50 and set(b.targets) == set(range(5))
    binary, _ = gg.data.synthetic((4,), 1)
    assert binary.targets.shape == (2000, 1) and set(binary.targets.ravel()) == {0, 1}


# ---- channels, memory maps, sources


def test_a_scale_for_each_channel():
    x = np.random.default_rng(0).integers(0, 256, (6, 3, 2, 4), dtype=np.uint8)
    mean, deviation = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    data = gg.Dataset(x, np.arange(6) % 2, 1 / (255 * deviation), -mean / deviation)
    seen = np.concatenate(list(data[[3, 1, 2]].batches(2)))
    expected = (x[[3, 1, 2]] / 255 - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)
    assert seen.dtype == np.float32
    losses = []
    for given in (data, gg.Dataset(np.concatenate(list(data.batches(6))), data.targets)):
        net = gg.Sequential([gg.Flatten(), gg.Linear(2)], input=(3, 2, 4))
        with gg.Trainer(net, seed=1) as trainer:
            losses.append(trainer.fit(given, epochs=2, batch_size=2, progress=False)["train_loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for scale in ([1, 2], [[1, 2, 3]], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="scale: shape .* allowed: one number, or 3 of them, one a channel"):
            gg.Dataset(x, np.zeros(6), scale)
    with pytest.raises(ValueError, match=r"shift\[1\] is NaN"):
        gg.Dataset(x, np.zeros(6), shift=[0, np.nan, 0])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("convolution", [True, False])
def test_a_shift_for_each_element_subtracts_the_mean_image(dtype, convolution):
    """Layouts of convolutions and of plain rows; a scale of channels beside it; a part of the set; wrong shapes."""
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 5, 7)).astype(dtype)
    mean, scale = x.mean(axis=0), np.array([1 / 40, 1 / 50, 1 / 60], np.float32)
    data = gg.Dataset(x, np.arange(20) % 2, scale, -mean * scale[:, None, None])
    seen = np.concatenate(list(data.batches(7)))
    np.testing.assert_allclose(seen, (x - mean) * scale[:, None, None], rtol=1e-4, atol=1e-5)
    layers = [gg.Conv2d(4, 3)] if convolution else []
    net = gg.Sequential([*layers, gg.Flatten(), gg.Linear(2)], input=(3, 5, 7))
    losses = []
    for given in (data[3:], gg.Dataset(seen[3:], data.targets[3:])):
        with gg.Trainer(net, seed=1) as trainer:
            losses.append(trainer.fit(given, epochs=2, batch_size=17, progress=False)["train_loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"shift: shape \(5, 7\) .* or an array of the shape of a sample, \(3, 5, 7\)"):
        gg.Dataset(x, np.zeros(20), shift=mean[0])
    mean[1, 2, 3] = np.inf
    with pytest.raises(ValueError, match=r"shift\[1\] has inf at \[2, 3\]"):
        gg.Dataset(x, np.zeros(20), shift=mean)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_memory_maps_are_not_copied(tmp_path, dtype):
    x = np.random.default_rng(0).integers(0, 9, (40, 5)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = gg.Dataset(mapped, x[:, 0] > 4)
    assert np.shares_memory(data.samples, mapped) and np.shares_memory(data[3:9].samples, mapped)
    net = gg.Sequential([gg.Linear(2)], input=(5,))
    losses = []
    for given in (data, gg.Dataset(x, x[:, 0] > 4)):
        with gg.Trainer(net, seed=1) as trainer:
            losses.append(trainer.fit(given, epochs=1, batch_size=8, progress=False).last["train_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint16, np.int64, np.bool_, ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_other_memory_maps_are_converted_as_they_are_read(tmp_path, dtype, order):
    x = np.random.default_rng(0).integers(0, 9, (40, 5)).astype(dtype)
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data, plain = (gg.Dataset(one, np.arange(40) % 2, 0.5, 0.25) for one in (mapped, x))
    if data.source is None:
        assert dtype == np.bool_ and order == "C" and np.shares_memory(data.samples, mapped)
    assert data.dtype == plain.dtype and np.array_equal(data.samples, plain.samples)
    assert np.array_equal(data[[3, 1]].samples, plain[[3, 1]].samples)
    losses = []
    for given in (data, plain):
        with gg.Trainer(gg.Sequential([gg.Linear(2)], input=(5,)), seed=1) as trainer:
            losses.append(trainer.fit(given, epochs=2, batch_size=8, progress=False).last["train_loss"])
    assert losses[0] == losses[1]


def test_a_memory_map_with_nan(tmp_path):
    x = np.zeros((40, 5))
    x[13, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    with gg.Trainer(gg.Sequential([gg.Linear(2)], input=(5,))) as trainer, pytest.raises(ValueError, match="NaN|nan"):
        trainer.fit(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(40, int), batch_size=8, progress=False)


def test_a_bar_while_a_large_array_is_checked(monkeypatch, capsys):
    from gossipgrad.launch import terminal

    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    x = np.zeros((5000, 100), np.float32)
    checks.check_finite(x, "mine")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(checks, "LARGE", 1000)
    checks.check_finite(x, "mine")
    assert "mine: 2,621 checked, 52 %" in capsys.readouterr().out


class _Squares(gg.data.Source):
    """Sample i is (i, i * i), its target i % 3; with `own`, read gives the targets."""

    name, dtype, shape = "squares", np.dtype(np.float32), (2,)

    def __init__(self, count, own=False):
        self.count = count
        if not own:
            self.targets, self.classes = np.arange(count) % 3, ["a", "b", "c"]

    def __len__(self):
        return self.count

    def read(self, rows, epoch, samples, targets):
        samples[:, 0], samples[:, 1] = rows, np.asarray(rows, np.float64) ** 2
        if targets is not None:
            targets[...] = rows % 3


@pytest.mark.parametrize("own", [False, True])
def test_a_set_of_a_source(own):
    data = gg.Dataset(_Squares(10, own))
    assert len(data) == 10 and data.shape == (2,) and data.name == "squares" and data.dtype == np.float32
    assert data.classes == (None if own else ["a", "b", "c"])
    assert data.samples.tolist() == [[i, i * i] for i in range(10)] and data.targets.tolist() == [
        i % 3 for i in range(10)
    ]
    for part, rows in (
        (data[2:5], [2, 3, 4]),
        (data[[7, -1]], [7, 9]),
        (data[3:][[0, 2]], [3, 5]),
        (data.take(1), [0]),
    ):
        assert part.samples[:, 0].tolist() == rows and part.targets.tolist() == [i % 3 for i in rows]
        assert len(part) == len(rows)
        assert np.concatenate(list(part.batches(2)))[:, 1].tolist() == [i * i for i in rows]
    parts = data.split(0.5, seed=1)
    assert sorted(i for part in parts for i in part.samples[:, 0]) == list(range(10))


def test_what_a_source_says_is_checked():
    class Wrong(_Squares):
        dtype = np.dtype(np.float64)

    with pytest.raises(TypeError, match="squares: samples of float64; allowed: uint8, float32, int32"):
        gg.Dataset(Wrong(3))
    with pytest.raises(ValueError, match="scale=2.0: a source has its own"):
        gg.Dataset(_Squares(3), scale=2.0)
    with pytest.raises(ValueError, match="empty"):
        gg.Dataset(_Squares(0))
    with pytest.raises(ValueError, match="3 samples but 4 targets"):
        gg.Dataset(_Squares(3), np.zeros(4))
    with pytest.raises(TypeError, match="targets: missing"):
        gg.Dataset(np.zeros((3, 2)))


# ---- several inputs and outputs


def two_and_two():
    """A network of numbers and tokens, with a class and a number to tell."""
    rng = np.random.default_rng(0)
    a, b = gg.Input(5, name="numbers"), gg.Input(4, name="pixels")
    joined = gg.Concat()(gg.Linear(6)(a), gg.Linear(3)(b))
    net = gg.Model([a, b], {"kind": gg.Linear(3)(joined), "size": gg.Linear(2)(joined)})
    x = rng.normal(size=(37, 5)).astype(np.float32), rng.integers(0, 4, (37, 4)).astype(np.uint8)
    y = rng.integers(0, 3, 37), rng.normal(size=(37, 2)).astype(np.float32)
    return net, x, y


def fitted(net, *arguments, ranks=2, strategy=None, **options):
    losses = {"kind": "cross_entropy", "size": "mean_squared_error"}
    strategy = strategy or gg.GossipGraD()
    with gg.Trainer(net, loss=losses, comm=gg.VirtualCluster(ranks), strategy=strategy, seed=3) as trainer:
        history = trainer.fit(*arguments, epochs=2, batch_size=4, progress=False, **options)
        assert trainer.audit_samples()["ok"]
        return history.weights_sha256, history.last["train_loss"]


def test_several_inputs_and_targets_in_all_forms():
    """Tuples, lists, dicts by name in any order, pairs and sets are the same, and as training by hand."""
    net, x, y = two_and_two()
    names = {"pixels": x[1], "numbers": x[0]}, {"size": y[1], "kind": y[0]}
    wanted = fitted(net, x, y)
    for arguments in ((list(x), list(y)), names, ((x, y),), (names,), (gg.Dataset(x, y),), (gg.Dataset(*names),)):
        assert fitted(net, *arguments) == wanted
    assert fitted(net, x, y, validation=(x, y)) == wanted
    losses = {"kind": "cross_entropy", "size": "mean_squared_error"}
    with gg.Trainer(net, loss=losses, seed=3) as one, gg.Trainer(net, loss=losses, seed=3) as two:
        one.fit(x, y, batch_size=5, shuffle=False, progress=False)
        for at in range(0, 37, 5):
            two.train_step([part[at : at + 5] for part in x], [part[at : at + 5] for part in y])
        assert all(one.weights()[name].tobytes() == two.weights()[name].tobytes() for name in one.weights())
        data = gg.Dataset(x, y)
        assert one.evaluate(data[:20], batch_size=7) == one.evaluate(gg.Dataset(*names)[np.arange(20)], batch_size=7)
        found, given = one.predict(data, batch_size=9), one.predict(x, batch_size=9)
        assert all(np.array_equal(found[name], given[name]) for name in ("kind", "size"))


def test_several_inputs_move_among_the_ranks():
    net, x, y = two_and_two()
    fitted(net, x, y, ranks=3, strategy=gg.GossipGraD(shuffle_samples=True), sample_weight=np.linspace(0, 1, 37))


def test_wrong_fields_are_named():
    net, x, y = two_and_two()
    wrong = {
        "samples: 1 of them; the network wants 2: numbers, pixels": (gg.Dataset(x[0], y),),
        "targets: 1 of them; the network wants 2: kind, size": (gg.Dataset(x, y[0]),),
        "samples: no 'pixels'; unknown: 'other'; allowed: numbers, pixels": ({"numbers": x[0], "other": x[1]}, y),
        r"samples\['pixels'\]: samples of shape \(5,\)": ((x[0], x[0]), y),
        r"targets\['kind'\]\[2\] is 7": (x, (np.where(np.arange(37) == 2, 7, y[0]), y[1])),
        r"samples\[1\]: shape \(36, 4\); wanted 37 entries": ((x[0], x[1][:36]), y),
    }
    for words, arguments in wrong.items():
        with pytest.raises(ValueError, match=words):
            fitted(net, *arguments)
    bad = x[0].copy()
    bad[3, 1] = np.inf
    with pytest.raises(ValueError, match=r"samples\[0\]\[3\] has inf"):
        fitted(net, (bad, x[1]), y)


def test_tokens_stay_integers():
    """Integers of any type, and bytes, are the same tokens; numbers for a network of numbers."""
    x = np.random.default_rng(0).integers(0, 200, (12, 6))
    y = np.arange(12) % 3
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    with gg.Trainer(net, seed=1) as trainer:
        wanted = trainer.evaluate(x.astype(np.float32), y)
        for dtype in (np.uint8, np.int16, np.int32, np.int64, np.uint64):
            assert trainer.evaluate(x.astype(dtype), y) == wanted


def test_what_numpy_cannot_read_is_named():
    torch = pytest.importorskip("torch")
    y = np.arange(4) % 2
    trainer = gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)))
    allowed = "allowed: arrays of NumPy's types in the host's memory, without gradients of their own"
    for samples in (torch.ones(4, 3, requires_grad=True), torch.ones(4, 3, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match=rf"train: samples is a Tensor that NumPy cannot read \(.*\); {allowed}"):
            trainer.fit(samples, y)
        with pytest.raises(TypeError, match=r"train: targets is a Tensor that NumPy cannot read"):
            trainer.fit(np.ones((4, 3)), samples[:, 0])
        with pytest.raises(TypeError, match=r"arrays\['a'\] is a Tensor that NumPy cannot read"):
            gg.Exchange({"a": samples})
    with pytest.raises(ValueError, match=rf"^x is a list that NumPy cannot read \(.*inhomogeneous.*\); {allowed}"):
        trainer.predict([[1, 2, 3], [1, 2]])


def test_masked_elements_are_refused_where_arrays_are_given():
    x, y = np.ones((6, 2), np.float32), np.arange(6) % 2
    hidden = np.ma.masked_equal(np.arange(6), 1)
    masked_x = np.ma.masked_array(x, mask=[[False, True]] * 6)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(2)], input=(2,)), metrics={"own": lambda outputs, targets: hidden})
    team = gg.Team(comm=gg.VirtualCluster(6))
    exchange = gg.Exchange({"w": np.zeros(6)}, comm=gg.VirtualCluster(1))

    def gradient():
        exchange.replicas[0].gradients["w"] = hidden.astype(float)

    for argument, use in {
        "train: samples": lambda: trainer.fit(masked_x, y),
        "train: targets": lambda: trainer.fit(x, hidden),
        "index": lambda: gg.Dataset(x, y)[hidden],
        "scale": lambda: gg.Dataset(x, y, scale=masked_x[0]),
        "batch 0: samples": lambda: gg.data.from_iterable([(masked_x, y)]),
        "sample_weight": lambda: trainer.fit(x, y, sample_weight=hidden, batch_size=2),
        "class_weight": lambda: trainer.fit(x, y, class_weight=masked_x[0], batch_size=2),
        "x": lambda: trainer.predict(masked_x),
        "weights: fc1.bias": lambda: trainer.net.load_weights({"fc1.weight": np.eye(2), "fc1.bias": masked_x[0]}),
        "metrics: own of 6 samples: its numbers": lambda: trainer.evaluate(x, y),
        "arrays['w']": lambda: gg.Exchange({"w": hidden.astype(float)}),
        "the gradient of 'w'": gradient,
        "array": lambda: team.allreduce(hidden),
    }.items():
        with pytest.raises(ValueError, match=f"{re.escape(argument)}: a masked array, of whose"):
            use()
    assert gg.Dataset(np.ma.masked_array(x), y).samples is not None  # nothing is masked


def test_tokens_beyond_int32_are_named():
    """They are float32 in a set of samples; the message says which they are."""
    net = gg.models.char_gpt(vocabulary=4, sequence=2, width=8, heads=2, layers=1)
    x = np.array([[0, 2**32], [1, 2]])
    with gg.Trainer(net) as trainer, pytest.raises(ValueError, match="tokens from 0 to 4294967296; allowed: .*int32"):
        trainer.fit(x, np.zeros((2, 2), int), batch_size=1, progress=False)


@pytest.mark.parametrize("argument", ["classes", "train", "test"])
def test_a_drawn_set_of_nothing(argument):
    with pytest.raises(ValueError, match=f"{argument}=0: allowed: an integer of at least 1"):
        gg.data.synthetic((3,), **{argument: 0})
