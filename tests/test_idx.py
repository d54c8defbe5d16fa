"""IDX files and MNIST: read, and each way in which they can be wrong."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import stat
import struct
import urllib.error

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import idx, mnist
from gossipgrad.state import files


def images(n=5, side=28):
    return (np.arange(n * side * side) % 251).astype(np.uint8).reshape(n, side, side)


def labels(n=5):
    return (np.arange(n) % 10).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    """A small set with MNIST's names; test files are gzip."""
    place = tmp_path / "mnist"
    place.mkdir()
    (place / "train-images-idx3-ubyte").write_bytes(idx.encode(images(30)))
    (place / "train-labels-idx1-ubyte").write_bytes(idx.encode(labels(30)))
    (place / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx.encode(images(20))))
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx.encode(labels(20))))
    return place


def test_read_plain_and_gzip(tmp_path):
    for content in (idx.encode(images()), gzip.compress(idx.encode(images()))):
        (tmp_path / "f").write_bytes(content)
        assert np.array_equal(idx.read(tmp_path / "f", 3), images())


def test_load_from_a_folder(folder):
    for place in (folder, folder.parent):
        train, test = gg.data.load("mnist", place)
        assert (len(train), len(test)) == (30, 20)
        assert train.shape == (1, 28, 28) and train.samples.dtype == np.uint8
        assert np.array_equal(train.samples[:, 0], images(30)) and np.array_equal(train.targets, labels(30))
        assert next(train.batches(7))[0, 0, 0, 5] == pytest.approx(images(30)[0, 0, 5] / 255)


def test_load_from_the_environment_and_the_cache(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_DATA", str(folder.parent))
    assert len(gg.data.load("mnist")[0]) == 30
    monkeypatch.delenv("GOSSIPGRAD_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gossipgrad").mkdir()
    folder.rename(tmp_path / "gossipgrad" / "mnist")
    assert len(gg.data.load("mnist", download=False)[0]) == 30


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: b[:-10], ["truncated", "30 x 28 x 28"]),
        (lambda b: b[:10], ["truncated", "header wants 16 bytes"]),
        (lambda b: b[:3], ["truncated"]),
        (lambda b: b + b"x", ["1 bytes more than its header says"]),
        (lambda b: b"PK\3\4" + b[4:], ["no IDX file", "504b0304"]),
        (lambda b: struct.pack(">BBBB", 0, 0, 13, 3) + b[4:], ["float32", "only uint8"]),
        (lambda b: gzip.compress(b)[:-20], ["truncated or damaged gzip"]),
        (lambda b: gzip.compress(b)[:40] + b"\xff" * 40 + gzip.compress(b)[80:], ["damaged gzip"]),
        (lambda b: idx.encode(labels(30)), ["holds labels", "images", "swapped"]),
        (lambda b: idx.encode(images(29)), ["29 images", "30 labels"]),
        (lambda b: b"", ["truncated", "0 bytes"]),
    ],
)
def test_damaged_images(folder, spoil, words):
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(gg.DataError) as caught:
        gg.data.load("mnist", folder)
    assert "train-images-idx3-ubyte" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_swapped_labels(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(idx.encode(images(20)))
    with pytest.raises(gg.DataError, match="t10k-labels.*holds images.*labels.*swapped"):
        gg.data.load("mnist", folder)


def test_missing_files_are_named(folder, tmp_path, monkeypatch):
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(gg.DataError, match=r"missing beside the other MNIST files: train-labels-idx1-ubyte\[.gz\]"):
        gg.data.load("mnist", folder)
    with pytest.raises(gg.DataError, match="no such folder: 'nowhere'"):
        gg.data.load("mnist", "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(gg.DataError, match="not found in .*empty.*Put train-images-idx3-ubyte.*--data"):
        gg.data.load("mnist", empty)


def test_offline_says_what_to_put_where(tmp_path, monkeypatch):
    def unplugged(*arguments, **options):
        raise urllib.error.URLError("unplugged")

    monkeypatch.delenv("GOSSIPGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mnist.urllib.request, "urlopen", unplugged)
    with pytest.raises(gg.DataError) as caught:
        gg.data.load("mnist")
    for word in ("unplugged", "gossipgrad/mnist", "train-images-idx3-ubyte[.gz]", "--data"):
        assert word in str(caught.value)
    assert [p.name for p in (tmp_path / "gossipgrad" / "mnist").iterdir()] == [".lock"]


class Answer:
    """What urlopen gives."""

    def __init__(self, data):
        self.data = data

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self):
        return self.data


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Small files in place of MNIST's, one of them wrong on the first mirror. Gives the addresses asked for."""
    contents = {n: idx.encode(images(30) if "images" in n else labels(30)) for n in mnist.FILES}
    asked = []

    def fetch(address, timeout):
        asked.append(address)
        name = address.rpartition("/")[2].removesuffix(".gz")
        wrong = address.startswith(mnist.MIRRORS[0]) and "t10k-labels" in name
        return Answer(gzip.compress(b"wrong" if wrong else contents[name]))

    monkeypatch.setattr(mnist, "FILES", {n: mnist.hashlib.md5(c).hexdigest() for n, c in contents.items()})
    monkeypatch.setattr(mnist.urllib.request, "urlopen", fetch)
    monkeypatch.delenv("GOSSIPGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return asked


def hidden(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("."))


def test_a_cache_on_a_file_system_without_locks(mirror, monkeypatch):
    def without_locks(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert len(gg.data.load("mnist")[1]) == 30


def test_download_checks_and_stores(tmp_path, mirror):
    """Every file is asked for once, a wrong one from the first mirror is not used. Others may read what is there."""
    folder = tmp_path / "gossipgrad" / "mnist"
    folder.mkdir(parents=True)
    for name in (".fetch-old", ".made-old", ".made-new", "other"):
        (folder / name).write_bytes(b"left")
    os.utime(folder / ".fetch-old", (0, 0))
    os.utime(folder / ".made-old", (0, 0))
    before = os.umask(0o027)
    try:
        assert len(gg.data.load("mnist")[1]) == 30 and len(mirror) == 5
    finally:
        os.umask(before)
    assert len(gg.data.load("mnist")[1]) == 30 and len(mirror) == 5
    made = [path for path in folder.iterdir() if path.suffix == ".gz"]
    assert len(made) == 4 and {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o640}
    assert hidden(folder) == [".lock", ".made-new"] and (folder / "other").exists()  # .made-new may be under way


def test_a_full_disk_leaves_nothing(tmp_path, mirror, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(gg.DataError, match="No space left on device"):
        gg.data.load("mnist")
    assert [p.name for p in (tmp_path / "gossipgrad" / "mnist").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "shape", [(0, 2**32 - 1, 2**32 - 1), (2, 0, 3), (0, 28, 28), (2**32 - 1, 2**32 - 1, 2**32 - 1)]
)
def test_sizes_of_nothing(shape):
    """NumPy's own error at sizes whose product does not fit is a ValueError about nothing that is in the file."""
    with pytest.raises(gg.DataError, match="mine: .*" + " x ".join(map(str, shape))):
        idx.parse(struct.pack(">BBBBIII", 0, 0, 8, 3, *shape), "mine", 3)


def test_the_real_files_have_these_checksums(data_dir):
    for name, md5 in mnist.FILES.items():
        content = idx.read_bytes(mnist.find(name, data_dir / "mnist"))
        assert mnist.hashlib.md5(content).hexdigest() == md5
