"""CIFAR-10 from binary files, folders and archives, each way in which they can be wrong, and the network for it."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import DEADLINE
from network_cases import all_near, near, trainer_of
from test_cli import cli_run

import gossipgrad as gg
from gossipgrad import models
from gossipgrad.data import cache, cifar10
from gossipgrad.state import files

KINDS = [f"kind{letter}" for letter in "jbcdefghia"]  # not in alphabetical order


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOSSIPGRAD_DATA", raising=False)


def pixels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def records(n, seed=0):
    """A binary file's content: labels seed, seed + 1, ..."""
    labels = ((np.arange(n) + seed) % 10).astype(np.uint8)
    return np.concatenate([labels[:, None], pixels(n, seed).reshape(n, -1)], 1).tobytes()


@pytest.fixture
def binary(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for i, name in enumerate(cifar10.BINARY_FILES):
        (folder / name).write_bytes(records(3, i))
    return folder


def encoded(planes, suffix=".png"):
    image = pytest.importorskip("PIL.Image").fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))
    file = io.BytesIO()
    image.save(file, "PNG" if suffix == ".png" else "JPEG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path):
    """train/<class>/ with two images, test/<class>/ with one; x of the class that is i-th in the alphabet: seed i."""
    folder = tmp_path / "images"
    for i, kind in enumerate(sorted(KINDS)):
        for part, numbers in (("train", (1, 0)), ("test", (2,))):
            (folder / part / kind).mkdir(parents=True)
            for number in numbers:
                (folder / part / kind / f"{number:04}.png").write_bytes(encoded(pixels(3, i)[number]))
    return folder


def packed(folder, path, mode="w:xz", inside=""):
    with tarfile.open(path, mode) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.add(file, inside + file.relative_to(folder).as_posix(), recursive=False)
    return path


def check_images(sets):
    for data, numbers in zip(sets, ((0, 1), (2,)), strict=True):
        files = [(i, number) for i in range(10) for number in numbers]
        files.sort(key=lambda f: hashlib.sha256(f"{sorted(KINDS)[f[0]]}/{f[1]:04}".encode()).digest())
        wanted = np.stack([pixels(3, i)[number] for i, number in files])
        assert data.samples.dtype == np.uint8 and data.scale == 1 / 255 and data.name == "cifar10"
        assert np.array_equal(data.samples, wanted)
        assert data.targets.tolist() == [i for i, _ in files]


def check_binary(sets):
    train, test = sets
    assert train.shape == test.shape == (3, 32, 32) and (len(train), len(test)) == (15, 3)
    for i in range(5):
        assert np.array_equal(train.samples[3 * i : 3 * i + 3], pixels(3, i))
        assert train.targets[3 * i : 3 * i + 3].tolist() == [i, i + 1, i + 2]
    assert np.array_equal(test.samples, pixels(3, 5)) and test.targets.tolist() == [5, 6, 7]


def kept():
    return sorted(cifar10.cache_folder().glob("*.npz"))


# ---- the Python version


def text2(content):
    """A str of Python 2 in protocol 2."""
    short = len(content) < 256
    return (b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + content


def python2(x, y):
    """What Python 2's pickle wrote of {"data": x, "labels": y} in protocol 2."""
    shape = b"".join(b"J" + struct.pack("<i", size) for size in x.shape)
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + b"\x86"
    array += kind + b"\x89" + text2(x.tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    head = b"\x80\x02}q\x00(" + text2(b"batch_label") + text2(b"training batch 1 of 5") + text2(b"labels")
    return head + labels + text2(b"data") + array + text2(b"filenames") + b"]" + text2(b"a.png") + b"au."


def python_batches(folder, encode):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(cifar10.PYTHON_FILES):
        rows = np.frombuffer(records(3, i), np.uint8).reshape(3, -1)
        (folder / name).write_bytes(encode(np.ascontiguousarray(rows[:, 1:]), rows[:, 0].tolist()))
    return folder


@pytest.mark.parametrize("protocol", ["python 2", 0, 1, 2, 3, 4])
def test_python_version(tmp_path, protocol):
    def encode(x, y):
        if protocol == "python 2":
            found = pickle.loads(python2(x, y), encoding="latin1")  # it is such a pickle
            assert np.array_equal(found["data"], x) and found["labels"] == y
            return python2(x, y)
        return pickle.dumps({b"data": x, b"labels": y} if protocol == 4 else {"data": x, "labels": y}, protocol)

    folder = python_batches(tmp_path / "in" / "cifar-10-batches-py", encode)
    check_binary(gg.data.load("cifar10", folder))
    check_binary(gg.data.load("cifar10", folder.parent))
    check_binary(gg.data.load("cifar10", packed(folder.parent, tmp_path / "cifar-10-python.tar.gz", "w:gz")))


class Runs:
    def __reduce__(self):
        return (os.mkdir, ("/nowhere/a pickle was run",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda x, y: pickle.dumps(Runs(), 2), "it holds 'posix.mkdir', which is not read"),
        (
            lambda x, y: pickle.dumps({"data": np.array([Runs()], object), "labels": y}, 2),
            "an array of object, which is not read",
        ),
        (lambda x, y: b"\x80\x02]q\x00h\x00a.", "more than 16 containers in each other"),
        (lambda x, y: pickle.dumps([x, y], 2), "no batch of CIFAR-10's Python version"),
        (lambda x, y: pickle.dumps({"data": x}, 2), "no batch of CIFAR-10's Python version"),
        (
            lambda x, y: pickle.dumps({"data": x.astype(np.int32), "labels": y}, 2),
            r"data is no uint8 array \(n, 3072\)",
        ),
        (lambda x, y: pickle.dumps({"data": x[:, :10], "labels": y}, 2), r"data is no uint8 array \(n, 3072\)"),
        (lambda x, y: pickle.dumps({"data": x, "labels": y[:2]}, 2), "labels are no list of 3 integers"),
        (lambda x, y: pickle.dumps({"data": x, "labels": [0, 10, 1]}, 2), r"labels\[1\] is 10; CIFAR-10 has 0..9"),
        (lambda x, y: python2(x, y)[:5000], "damaged"),
        (lambda x, y: python2(x, y)[:-1], "it has no end|damaged"),
        (lambda x, y: b"", "damaged|no end"),
    ],
)
def test_pickles_are_not_run(tmp_path, content, words):
    folder = python_batches(tmp_path / "cifar10", python2)
    rows = np.frombuffer(records(3, 1), np.uint8).reshape(3, -1)
    (folder / "data_batch_2").write_bytes(content(np.ascontiguousarray(rows[:, 1:]), rows[:, 0].tolist()))
    with pytest.raises(gg.DataError, match=words) as caught:
        gg.data.load("cifar10", folder)
    assert "data_batch_2" in str(caught.value)


# ---- what is read


def test_binary_files(binary, monkeypatch):
    for place in (binary, binary.parent):
        check_binary(gg.data.load("cifar10", place))
    monkeypatch.setenv("GOSSIPGRAD_DATA", str(binary.parent))
    check_binary(gg.data.load("cifar10"))
    monkeypatch.delenv("GOSSIPGRAD_DATA")
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(binary.parent))
    check_binary(gg.data.load("cifar10"))
    inner = binary / "cifar-10-batches-bin"
    inner.mkdir()
    for name in cifar10.BINARY_FILES:
        (binary / name).rename(inner / name)
    check_binary(gg.data.load("cifar10"))
    assert not kept()


def test_binary_archive(binary, tmp_path):
    place = tmp_path / "download"
    place.mkdir()
    path = packed(binary, place / "cifar-10-binary.tar.gz", "w:gz", "cifar-10-batches-bin/")
    for source in (path, place, place):
        check_binary(gg.data.load("cifar10", source))
    assert len(kept()) == 1


def test_folder_of_images(images, capsys):
    check_images(gg.data.load("cifar10", images))
    assert capsys.readouterr().out.startswith("cifar10: 30 images decoded in ")
    (images / "train" / KINDS[0] / "0000.png").rename(images / "train" / KINDS[0] / "0000.JPEG")  # told by content
    (images / "train" / KINDS[0] / ".hidden.png").write_bytes(b"x")
    check_images(gg.data.load("cifar10", images, progress=False))
    assert capsys.readouterr().out == ""


def test_shards_of_images_have_all_classes(tmp_path):
    collected = cifar10._Collector(tmp_path)
    collected.decode = lambda content, name: bytes(3 * 32 * 32)
    for kind in KINDS:
        for i in range(200):
            for part in cifar10.PARTS:
                collected.add(part, kind, f"{i:04}.png", b"")
    labels = collected.arrays()["train_y"]
    assert np.bincount(labels).tolist() == [200] * 10
    for shard in labels.reshape(16, 125):
        assert np.bincount(shard, minlength=10).min() >= 3


@pytest.mark.parametrize(
    ("suffix", "mode", "inside"),
    [(".tar.xz", "w:xz", ""), (".tar.gz", "w:gz", "some/where/"), (".tar", "w", "./"), (".tgz", "w:gz", "")],
)
def test_archive_of_images(images, tmp_path, suffix, mode, inside):
    place = tmp_path / "packed" / "cifar10"
    place.mkdir(parents=True)
    path = packed(images, place / f"cifar10-images{suffix}", mode, inside)
    for source in (path, place, place.parent):
        check_images(gg.data.load("cifar10", source))
    assert len(kept()) == 1


def test_jpeg_and_grey(images):
    smooth = np.broadcast_to(np.arange(32, dtype=np.uint8) * 7, (3, 32, 32))
    kind = sorted(KINDS)[0]
    (images / "test" / kind / "0002.png").unlink()
    (images / "test" / kind / "0002.jpg").write_bytes(encoded(smooth, ".jpg"))
    grey = pytest.importorskip("PIL.Image").fromarray(np.ascontiguousarray(smooth[0]))
    grey.save(images / "test" / kind / "0003.png")
    _, test = gg.data.load("cifar10", images)
    far = sorted(np.abs(one.astype(int) - smooth).max() for one in test.samples[test.targets == 0])
    assert far[0] == 0 and 0 < far[1] < 8


def test_the_images_of_the_data_folder(data_dir):
    """A few of the real ones; all 60,000 take several seconds."""
    path = data_dir / "cifar10" / "cifar10-images.tar.xz"
    pytest.importorskip("PIL")
    if not path.is_file():
        pytest.skip(f"no {path.name} in the data folder")
    decode, found = cifar10._decoder(), 0
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member).read()
                assert member.name.split("/")[0] in cifar10.PARTS and len(decode(content, member.name)) == 3072
                found += 1
            if found == 3:
                break
    assert cifar10.locate(data_dir / "cifar10") == path


# ---- the cache


def unused(*arguments):
    raise AssertionError("decoded again")


def test_decoded_once(images, monkeypatch):
    check_images(gg.data.load("cifar10", images))
    with monkeypatch.context() as patch:
        patch.setattr(cifar10, "_from_folder", unused)
        patch.setattr(cifar10.images, "pillow", unused)
        check_images(gg.data.load("cifar10", images))
    assert [p.name for p in cifar10.cache_folder().iterdir() if p not in kept()] == [".lock"]
    changed = images / "test" / KINDS[0] / "0002.png"
    os.utime(changed, (1, 1))
    check_images(gg.data.load("cifar10", images))
    assert len(kept()) == 2


def test_a_changed_archive_is_read_again(images, tmp_path):
    path = packed(images, tmp_path / "a.tar")
    gg.data.load("cifar10", path)
    os.utime(path, (1, 1))
    check_images(gg.data.load("cifar10", path))
    assert len(kept()) == 2


@pytest.mark.parametrize("spoil", [lambda b: b[:-100], lambda b: b"", lambda b: b[:5000] + b"\x01\x02" + b[5002:]])
def test_a_damaged_cache_is_made_anew(images, spoil):
    gg.data.load("cifar10", images)
    (path,) = kept()
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    check_images(gg.data.load("cifar10", images))
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_to(images, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"file/cifar10: Not a directory.* not stored; GOSSIPGRAD_CACHE"):
        check_images(gg.data.load("cifar10", images))


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert cache.root() == tmp_path / "cache"
    monkeypatch.delenv("GOSSIPGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.root() == Path("/x/gossipgrad")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.root() == Path("/home/someone/.cache/gossipgrad")


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(KeyError), files.written(str(tmp_path / "f")) as file:
        file.write(b"half")
        raise KeyError
    assert not list(tmp_path.iterdir())
    before = os.umask(0o022)
    try:
        with files.written(str(tmp_path / "f")) as file:
            file.write(b"whole")
    finally:
        os.umask(before)
    assert (tmp_path / "f").read_bytes() == b"whole" and (tmp_path / "f").stat().st_mode & 0o777 == 0o644


def test_who_waits_sees_how_far_it_is(tmp_path):
    told = []

    def wait():
        with cache.locked(tmp_path / ".lock", told.append):
            told.append("mine")

    with cache.locked(tmp_path / ".lock") as say:
        say("0.25 500")
        other = threading.Thread(target=wait)
        other.start()
        deadline = time.monotonic() + DEADLINE
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    other.join(DEADLINE)
    assert told[0] == "0.25 500" and told[-1] == "mine"


RANKS = """
import sys, time
import gossipgrad as gg
from gossipgrad.data import cifar10
make = cifar10._from_folder
def counted(*arguments):
    print("one decodes", flush=True)
    time.sleep(0.5)
    return make(*arguments)
cifar10._from_folder = counted
train, test = gg.data.load("cifar10", FOLDER)
print("sum", int(train.samples.sum()), len(test), flush=True)
"""


def test_one_rank_decodes(images, mpirun):
    done = mpirun(3, RANKS.replace("FOLDER", repr(str(images))))
    total = int(gg.data.load("cifar10", images)[0].samples.sum())
    assert done.stdout.count("one decodes") == 1 and done.stdout.count(f"sum {total} 10") == 3
    assert done.stdout.count("30 images decoded in") <= 1 and done.stderr == ""


# ---- what is wrong


def remade(path, change):
    path.write_bytes(change(path.read_bytes()))


def set_label(content):
    return content[:3073] + b"\x0a" + content[3074:]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: remade(d / "data_batch_2.bin", lambda b: b[:-1]), ["data_batch_2.bin: truncated: 9218 bytes"]),
        (lambda d: remade(d / "test_batch.bin", lambda b: b""), ["test_batch.bin: truncated: 0 bytes"]),
        (lambda d: remade(d / "test_batch.bin", set_label), ["test_batch.bin: record 1 has label 10", "0..9"]),
        (lambda d: (d / "data_batch_4.bin").unlink(), ["cifar10: missing beside", ": data_batch_4.bin"]),
    ],
)
def test_wrong_binary_files(binary, tmp_path, spoil, words):
    spoil(binary)
    sources = [binary, packed(binary, tmp_path / "a.tar")]
    for source in sources:
        with pytest.raises(gg.DataError) as caught:
            gg.data.load("cifar10", source)
        for word in words if source is binary else words[1:] or words:
            assert word in str(caught.value)
    assert not kept()


def rewritten(path, size):
    path.write_bytes(encoded(np.zeros((3, *size), np.uint8)))


def without(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


FIRST = f"{sorted(KINDS)[0]}"


@pytest.mark.parametrize(
    ("spoil", "words", "packable"),
    [
        (lambda d: rewritten(d / "test" / FIRST / "0002.png", (32, 31)), ["0002.png: 31 x 32 pixels", "32 x 32"], True),
        (lambda d: remade(d / "test" / FIRST / "0002.png", lambda b: b[:99]), ["0002.png: a broken image"], True),
        (lambda d: (d / "train" / FIRST / "0000.png").write_bytes(b"text"), ["0000.png: a broken image"], True),
        (lambda d: (d / "train" / FIRST / "0000.png").write_bytes(b""), ["0000.png: a broken image"], True),
        (lambda d: without(d / "test" / FIRST), [f"in train/ alone: {FIRST}"], True),
        (lambda d: [without(d / p / FIRST) for p in cifar10.PARTS], ["9 classes (kindb", "wanted 10"], True),
        (lambda d: [without(k) for k in (d / "train").iterdir()], ["no classes", "train/<class>/*.jpg"], True),
        (lambda d: (d / "test" / FIRST / "0002.png").unlink(), [f"{FIRST}: no images (*.jpg, *.png)"], False),
        (lambda d: without(d / "test"), ["has train/ but no test/<class>/"], False),
    ],
)
def test_wrong_images(images, tmp_path, spoil, words, packable):
    spoil(images)
    for source in [images, packed(images, tmp_path / "a.tar.gz", "w:gz")] if packable else [images]:
        with pytest.raises(gg.DataError) as caught:
            gg.data.load("cifar10", source)
        for word in [str(source), *words]:
            assert word in str(caught.value)
    assert not kept()


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w"])
def test_damaged_archives(images, tmp_path, mode):
    path = packed(images, tmp_path / "a.tar", mode)
    whole = path.read_bytes()
    for spoiled in (whole[: len(whole) // 2 + 100], b"no archive" * 99, b"", whole[:1000] + b"\xff" * 900):
        path.write_bytes(spoiled)
        with pytest.raises(gg.DataError, match=r"a\.tar: "):
            gg.data.load("cifar10", path)
    assert not kept()


@pytest.mark.parametrize("pack", [lambda b: b, lzma.compress, gzip.compress], ids=["tar", "xz", "gz"])
@pytest.mark.parametrize("end", [b"", b"\0" * 100], ids=["cut", "short"])
def test_an_archive_without_an_end(images, tmp_path, pack, end):
    """All images are there, but so might be others."""
    path = packed(images, tmp_path / "a.tar", "w")
    with tarfile.open(path) as archive:
        archive.getmembers()
        whole, length = path.read_bytes(), archive.offset
    path.write_bytes(pack(whole[:length] + end))
    with pytest.raises(gg.DataError, match=r"a\.tar: truncated or damaged archive: it has no end"):
        gg.data.load("cifar10", path)
    path.write_bytes(pack(whole[:length] + bytes(1024)))
    check_images(gg.data.load("cifar10", path))


def test_an_archive_of_something_else(tmp_path):
    (tmp_path / "in" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "in" / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"pickle")
    path = packed(tmp_path / "in", tmp_path / "cifar-10-python.tar.gz", "w:gz")
    with pytest.raises(gg.DataError, match=r"cifar-10-python.tar.gz: missing in the archive .*: data_batch_2, data"):
        gg.data.load("cifar10", path)
    (tmp_path / "in" / "cifar-10-batches-py" / "data_batch_1").rename(tmp_path / "in" / "notes")
    path = packed(tmp_path / "in", tmp_path / "cifar-other.tar.gz", "w:gz")
    with pytest.raises(gg.DataError, match=r"cifar-other.tar.gz: no classes: neither .* nor data_batch_1.bin or data"):
        gg.data.load("cifar10", path)


def test_nothing_there(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(gg.DataError, match="no such file or folder: 'nowhere'"):
        gg.data.load("cifar10", "nowhere")
    (empty / "notes.txt").write_text("")
    with pytest.raises(gg.DataError, match=r"notes.txt: no archive; allowed: .tar, "):
        gg.data.load("cifar10", empty / "notes.txt")
    with pytest.raises(gg.DataError) as caught:
        gg.data.load("cifar10", empty)
    for word in ("not found in", str(empty), "cifar-10-binary.tar.gz", "data_batch_1.bin", "train/<class>/", "--data"):
        assert word in str(caught.value)
    monkeypatch.setenv("GOSSIPGRAD_DATA", str(empty))
    with pytest.raises(gg.DataError, match=r"not found in .*empty/cifar10, .*cache/cifar10\."):
        gg.data.load("cifar10")
    for name in ("cifar-a.tar", "cifar-b.tgz"):
        (empty / name).write_bytes(b"")
    with pytest.raises(gg.DataError, match=r"several archives: cifar-a.tar, cifar-b.tgz; name one"):
        gg.data.load("cifar10", empty)


def test_without_pillow(images, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"decoded by Pillow: pip install 'gossipgrad\[images\]'"):
        gg.data.load("cifar10", images)


# ---- the network


def test_cifar_quick():
    net = gg.models.cifar_quick()
    assert net.parameters == 145_578
    assert net.input_shape == (3, 32, 32) and net.output_shape == (10,)
    names = "conv1 pool1 relu1 conv2 relu2 pool2 conv3 relu3 pool3 flatten fc1 fc2".split()
    assert [layer["name"] for layer in net.config()["layers"]][1:] == names
    weights = {"conv1": (32, 3, 5, 5), "conv2": (32, 32, 5, 5), "conv3": (64, 32, 5, 5), "fc1": (64, 1024)}
    weights |= {"fc2": (10, 64)}
    assert {k: v for k, v in net.parameter_shapes().items() if k.endswith("weight")} == {
        f"{name}.weight": shape for name, shape in weights.items()
    }
    macs = 32 * 75 * 32 * 32 + 32 * 800 * 16 * 16 + 64 * 800 * 8 * 8 + 1024 * 64 + 640
    assert sum(node["macs"] for node in net.graph.nodes()) == macs
    entry = models.by_name("cifar_quick")
    assert (entry.loss, entry.batch) == ("cross_entropy", 100)
    assert gg.models.cifar_quick(7).output_shape == (7,)


def test_cifar_quick_is_torchs():
    torch = pytest.importorskip("torch")
    layers = torch.nn
    parts = {
        "conv1": layers.Conv2d(3, 32, 5, padding=2),
        "pool1": layers.MaxPool2d(3, 2, ceil_mode=True),
        "relu1": layers.ReLU(),
        "conv2": layers.Conv2d(32, 32, 5, padding=2),
        "relu2": layers.ReLU(),
        "pool2": layers.AvgPool2d(3, 2, ceil_mode=True),
        "conv3": layers.Conv2d(32, 64, 5, padding=2),
        "relu3": layers.ReLU(),
        "pool3": layers.AvgPool2d(3, 2, ceil_mode=True),
        "flatten": layers.Flatten(),
        "fc1": layers.Linear(1024, 64),
        "fc2": layers.Linear(64, 10),
    }
    theirs = layers.Sequential()
    for name, layer in parts.items():
        theirs.add_module(name, layer)
    net = gg.models.cifar_quick()
    theirs.load_state_dict({name: torch.tensor(array) for name, array in net.weights().items()})
    theirs.double()
    options = dict(lr=0.05, momentum=0.9, weight_decay=0.004)
    optimizer = torch.optim.SGD(theirs.parameters(), **options)
    trainer = trainer_of(net, optimizer=gg.SGD(**options))
    rng = np.random.default_rng(3)
    for _ in range(2):
        x = rng.standard_normal((9, 3, 32, 32), np.float32)
        y = rng.integers(0, 10, 9).astype(np.int32)
        near("scores", trainer.predict(x), theirs(torch.tensor(x).double()).detach().numpy(), 5e-6)
        loss = trainer.train_step(x, y)
        optimizer.zero_grad()
        wanted = layers.functional.cross_entropy(theirs(torch.tensor(x).double()), torch.tensor(y).long())
        wanted.backward()
        assert loss == pytest.approx(wanted.item(), rel=3e-6)
        all_near(trainer.gradients(), {name: p.grad.numpy() for name, p in theirs.named_parameters()}, 1e-5)
        optimizer.step()
    all_near(trainer.weights(), {name: p.detach().numpy() for name, p in theirs.named_parameters()}, 5e-6)


def test_on_the_command_line(binary, capsys):
    words = ["train", "--model", "cifar_quick", "--dataset", "cifar10", "--epochs", 1, "--batch-size", 5]
    code, out, err = cli_run(capsys, *words, "--data", binary)
    assert code == 0 and out.startswith("cifar_quick, 145,578 parameters, on cifar10, 15 + 3 samples") and err == ""
    (binary / "test_batch.bin").write_bytes(b"short")
    code, _, err = cli_run(capsys, *words, "--data", binary)
    assert code == 1 and "test_batch.bin: truncated: 5 bytes" in err and len(err.splitlines()) == 1
    code, out, _ = cli_run(capsys, "bench", "--model", "cifar_quick", "--steps", 2, "--warmup", 0)
    assert code == 0 and '"batch": 100' in out
