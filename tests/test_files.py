"""Files on disk: complete or not at all, and what is no safetensors file is refused with a word."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
import threading

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.errors import warn
from gossipgrad.state import files, safetensors


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("there/target")
    files.write_atomically(tmp_path / "link", b"n", b"ew")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "target").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["link", "there"] and os.listdir(tmp_path / "there") == ["target"]


def test_a_pipe_is_written_to_and_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    files.write_atomically(path, b"a" * 100_000, b"b")
    reader.join()
    assert read == [b"a" * 100_000 + b"b"] and stat.S_ISFIFO(os.stat(path).st_mode)


def test_a_device_stays_a_device(tmp_path):
    """Also behind a link; /dev/full fails as a full disk does, and is not replaced either."""
    (tmp_path / "null").symlink_to("/dev/null")
    gg.History().write(tmp_path / "null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and (tmp_path / "null").is_symlink()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        files.write_atomically("/dev/full", b"x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_pipe_or_device_is_not_read(tmp_path):
    """A pipe that nobody writes to would be waited for, /dev/zero read for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            files.content(path)
        for read in (gg.data.idx.read, lambda one: gg.data.csv(one, 0), gg.data.npz, gg.data.text):
            with pytest.raises(gg.DataError, match="not a regular file"):
                read(path)


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127, "漢" * 85], ids=["1", "2", "3"])
def test_a_name_as_long_as_a_file_may_have(name, tmp_path):
    files.write_atomically(tmp_path / name, b"x")
    assert os.listdir(tmp_path) == [name]


def test_text_of_a_file_is_printable():
    words = str(gg.DataError("a\x1b[31m\u202e\ud800 é 漢\nb" + "x" * 10_000))
    assert words.startswith("a\\x1b[31m\\u202e\\ud800 é 漢\nb") and len(words) < 2100 and "8,0" in words
    assert str(gg.CheckpointError("plain")) == "plain"
    with pytest.warns(UserWarning, match=r"^\\x1b\[0m$"):
        warn("\x1b[0m")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        files.write_atomically(tmp_path, b"x")
    assert os.listdir(tmp_path) == []


def test_a_failure_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        files.write_atomically(tmp_path / "none" / "f", b"x")
    assert caught.value.filename == str(tmp_path / "none" / "f")


def test_modes(tmp_path):
    """A new file has the umask's, a replaced one its own."""
    before = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "f", b"x")
        assert stat.S_IMODE(os.stat(tmp_path / "f").st_mode) == 0o640
        os.chmod(tmp_path / "f", 0o604)
        files.write_atomically(tmp_path / "f", b"y")
        assert stat.S_IMODE(os.stat(tmp_path / "f").st_mode) == 0o604
    finally:
        os.umask(before)


def test_what_killed_writers_left_is_removed(tmp_path):
    """Old and not locked; what lives, is young or belongs to another file stays."""
    names = [".f.00000001.tmp", ".f.00000002.tmp", ".f.00000003.tmp", ".g.00000001.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1e9, 1e9))
    os.utime(tmp_path / names[2])
    with open(tmp_path / names[1]) as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        files.write_atomically(tmp_path / "f", b"x")
    assert sorted(os.listdir(tmp_path)) == [*names[1:], "f"]


def test_a_write_that_is_interrupted_before_its_first_byte_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fcntl, "flock", interrupted)
        files.write_atomically(tmp_path / "a", b"new")
    assert not os.listdir(tmp_path) and len(os.listdir("/proc/self/fd")) == len(before)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(TypeError):
        files.write_atomically(tmp_path / "f", b"new", "no bytes")
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


# ------------------------------------------------------------------------------------------------ safetensors

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 4), np.float32), "s": np.float32(3)}


def test_checksums_cover_every_bit(tmp_path):
    """Whichever byte of the file has a flipped bit, it is not read as if nothing had happened."""
    path = tmp_path / "f"
    digest = safetensors.write(path, ARRAYS, {"key": "text"}, checksums=True)
    good = path.read_bytes()
    arrays, metadata = safetensors.read(path, checksums=True)
    assert metadata["key"] == "text" and safetensors.header_digest(path, metadata) == digest
    assert all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())
    unseen = []
    for byte in range(len(good)):
        bad = bytearray(good)
        bad[byte] ^= 1 << byte % 8
        path.write_bytes(bad)
        try:
            found, read = safetensors.read(path, checksums=True)
        except gg.CheckpointError:
            continue
        unseen.append(byte)
        assert read == metadata and all(np.array_equal(found[name], array) for name, array in ARRAYS.items())
    assert all(good[byte : byte + 1] == b" " for byte in unseen)  # blanks behind the header


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: object = (1,), offsets: object = (0, 4), dtype: object = "F32") -> dict:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (with_header(b"[" * 100_000), "no JSON"),
        (with_header(b'{"a":' * 100_000), "no JSON"),
        (with_header(b'{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}', b"1234"), "not understood"),
        (with_header(entry([2**70], [0, 4]), b"1234"), "4 bytes for shape"),
        (with_header(entry([2**32, 2**32], [0, 0])), "0 bytes for shape"),
        (with_header(entry([1] * 70), b"1234"), "70 dimensions"),
        (with_header(entry([-1], [4, 0]), b"1234"), "not understood"),
        (with_header(entry([2.9], [0, 8]), b"12345678"), "not understood"),
        (with_header(entry([True]), b"1234"), "not understood"),
        (with_header(entry([1], [4, 0]), b"1234"), "-4 bytes for shape"),
        (with_header(entry("1"), b"1234"), "not understood"),
        (with_header(entry([1], [0, 4, 4]), b"1234"), "not understood"),
        (with_header(entry(dtype=[]), b"1234"), "not understood"),
        (with_header({"a": 3}), "not understood"),
        (with_header({"__metadata__": [], **entry()}, b"1234"), "metadata"),
        (with_header({"__metadata__": {"k": 3}, **entry()}, b"1234"), "metadata"),
        (with_header(b'{"a": 1, "a": 2}'), "twice"),
        (with_header([]), "no JSON object"),
        (with_header(entry(), b"12345"), "1 bytes behind the last array"),
        (with_header(entry(), b"123"), "truncated"),
        (b"", "truncated"),
    ],
)
def test_malformed_files_are_refused(content, words, tmp_path):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(gg.CheckpointError, match=words) as caught:
        safetensors.read(tmp_path / "f")
    assert len(str(caught.value)) < 600 + len(str(tmp_path))


def test_only_regular_files_are_read(tmp_path):
    """An endless device is no file to read; nor is a pipe that nobody writes to."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(gg.CheckpointError, match="Is a directory"):
        safetensors.content(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(gg.CheckpointError, match="/dev/zero: not a regular file"):
        safetensors.read("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gg.CheckpointError, match="pipe: not a regular file"):
        safetensors.read(tmp_path / "pipe")


def in_time(function, path):
    """What it raises or gives, which a reader that waits for a writer of the pipe never does."""
    found = []

    def call():
        try:
            found.append(function(path))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    return found[0] if found else "waits"


@pytest.mark.parametrize("kind", ["report", "npy", "json", "txt", "exchange", "last checkpoint"])
def test_a_named_pipe_in_place_of_a_file_is_not_waited_for(tmp_path, kind):
    from gossipgrad.state import checkpoint_files

    path = str(tmp_path / f"pipe.{kind}")
    os.mkfifo(path)
    read = {"report": gg.History.read, "exchange": _loaded, "last checkpoint": checkpoint_files.last_checkpoint}
    found = in_time(read.get(kind, gg.strategies.read_topology), path)
    assert f"; see {path}" == found if kind == "last checkpoint" else "not a regular file" in str(found), found


def _loaded(path):
    return gg.Exchange({"w": np.zeros(3, np.float32)}, comm=gg.VirtualCluster(2)).load(path)


def test_a_named_pipe_in_place_of_the_cache_of_times_is_replaced(tmp_path):
    from gossipgrad.training import algorithms

    path = str(tmp_path / "algorithms.json")
    os.mkfifo(path)
    assert in_time(algorithms._read, path) == {}
    assert in_time(lambda one: algorithms._add(one, "here", {"a": 1}), path) is None
    assert algorithms._read(path) == {"here": {"a": 1}}


def test_deep_and_empty_files_are_damaged_ones(tmp_path):
    """Readers raise the exception that they promise."""
    for name, content in (("deep.json", b"[" * 100_000), ("empty.npy", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError):
            gg.strategies.read_topology(str(tmp_path / name))
    with pytest.raises(ValueError, match="no report"):
        gg.History.read(tmp_path / "deep.json")


def test_checksums_can_be_demanded(tmp_path):
    for metadata in (None, {"about": "x"}):
        safetensors.write(tmp_path / "f", ARRAYS, metadata)
        assert set(safetensors.read(tmp_path / "f")[0]) == set(ARRAYS)
        with pytest.raises(gg.CheckpointError, match="checksum"):
            safetensors.read(tmp_path / "f", checksums=True)
