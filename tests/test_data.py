"""Data sets: arrays, dtypes, targets, the digits in the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import arrays, embedded

ROOT = Path(__file__).resolve().parent.parent


def test_mnist_10k_is_balanced():
    train, test = gg.data.load("mnist-10k")
    assert np.array_equal(np.bincount(train.targets), [1000] * 10)
    assert np.array_equal(np.bincount(test.targets), [200] * 10)
    assert train.shape == test.shape == (1, 28, 28) and train.scale == 1 / 255
    assert sum(p.stat().st_size for p in embedded.FOLDER.glob("mnist-10k*")) < 2_100_000
    assert "CC BY-SA 3.0" in (embedded.FOLDER / "mnist-10k.README.md").read_text()


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
def test_other_numbers_become_float32(dtype):
    x = np.arange(12).reshape(6, 2).astype(dtype)
    made = gg.Dataset(x, np.zeros(6, int)).samples
    assert made.dtype == np.float32 and made.dtype.isnative and np.array_equal(made, np.arange(12).reshape(6, 2))


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
    y = arrays.targets_array(np.array([0, 3, 1], dtype), "cross_entropy", (4,))
    assert y.dtype == np.int32 and y.tolist() == [0, 3, 1]
    assert arrays.targets_array(np.array([[0], [3]], dtype), "cross_entropy", (4,)).shape == (2,)


@pytest.mark.parametrize(
    ("y", "loss", "output", "error", "words"),
    [
        ([0, 1, 4, 9], "cross_entropy", (4,), ValueError, ["targets[2] is 4", "0..3"]),
        ([0, -1], "cross_entropy", (4,), ValueError, ["targets[1] is -1"]),
        ([2**33], "cross_entropy", (4,), ValueError, ["targets[0] is 8589934592"]),
        ([0.0, 1.0], "cross_entropy", (4,), TypeError, ["float64", "integers"]),
        ([[1, 0], [0, 1]], "cross_entropy", (2,), ValueError, ["shape (2, 2)", "one class a sample"]),
        ([0, 1], "cross_entropy", (4, 2, 2), ValueError, ["(4, 2, 2)"]),
        ([[1.0, 0.0]], "binary_cross_entropy", (1,), ValueError, ["2 values a sample", "(1,)"]),
        (["a"], "mean_squared_error", (1,), TypeError, ["numbers"]),
    ],
)
def test_bad_targets(y, loss, output, error, words):
    with pytest.raises(error) as caught:
        arrays.targets_array(np.array(y), loss, output)
    for word in words:
        assert word in str(caught.value)


def test_targets_of_other_losses():
    for y in ([0, 1, 1], [0.0, 1.0, 1.0], [[0], [1], [1]], [False, True, True]):
        made = arrays.targets_array(np.array(y), "binary_cross_entropy", (1,))
        assert made.dtype == np.float32 and made.tolist() == [[0], [1], [1]]
    assert arrays.targets_array(np.zeros((2, 3, 4)), "mean_squared_error", (3, 4)).shape == (2, 12)


def test_shapes_that_do_not_fit_the_network():
    train, _ = gg.data.load("mnist-10k")
    flat = gg.Dataset(train.samples.reshape(-1, 784), train.targets)
    with pytest.raises(ValueError, match=r"\(784,\), but the network's input is \(1, 28, 28\); reshape"):
        flat.for_network("cross_entropy", (1, 28, 28), (10,))


def test_slices_and_scale():
    x = np.arange(20, dtype=np.uint8).reshape(10, 2)
    part = gg.Dataset(x, np.arange(10), scale=0.5, shift=1)[4:7]
    assert len(part) == 3 and part.targets.tolist() == [4, 5, 6]
    assert np.concatenate(list(part.batches(2))).tolist() == (x[4:7] * 0.5 + 1).tolist()
    with pytest.raises(TypeError, match="index=3"):
        part[3]


def test_synthetic_is_the_same_each_time():
    (a, _), (b, test) = gg.data.synthetic((3, 4), 5, 100, 50), gg.data.synthetic((3, 4), 5, 100, 50)
    assert np.array_equal(a.samples, b.samples) and len(test) == 50 and set(b.targets) == set(range(5))
    binary, _ = gg.data.synthetic((4,), 1)
    assert binary.targets.shape == (2000, 1) and set(binary.targets.ravel()) == {0, 1}
