"""Files that appear complete or not at all; JSON in its standard form."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from gossipgrad.launch import preload
from gossipgrad.state.outputs import check_path

STALE = 60.0  # seconds: a younger temporary file may not be locked yet


def cache_folder() -> str:
    """$XDG_CACHE_HOME/gossipgrad; .cache/gossipgrad in the user's home if that is not set."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(preload.home(), ".cache"), "gossipgrad")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON, which has no NaN and no infinities: they are null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, Iterable) and not isinstance(value, str) else value


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file to read. OSError: missing, or a folder, a device or a named pipe; it never waits for a pipe."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def content(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file; OSError as of `opened`."""
    with opened(path) as file:
        return file.read()


def write_atomically(path: str | os.PathLike[str], *parts: Any) -> None:
    """Write these bytes to a file that appears, or replaces the old one, only when all of them are on the disk.

    A link is followed: its target is replaced, the link stays. A path that is no regular file, as /dev/stdout or a
    named pipe, is written to and never replaced. A replaced file passes its mode on; a new one has that of the umask.
    Temporary files beside `path` that a killed process left are removed. OSError: nothing is changed. ValueError: an
    empty path.
    """
    path = os.path.realpath(check_path("path", path))
    try:
        _write(path, parts)
    except OSError as error:
        error.filename = path  # not the temporary one; an error of writing, as on a full disk, names no file
        raise


def _write(path: str, parts: tuple[Any, ...]) -> None:
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        _write_through(path, parts)
        return
    with written(path) as stream:
        for part in parts:
            stream.write(part)
        if before is not None:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(stream.fileno(), stat.S_IMODE(before.st_mode))


@contextlib.contextmanager
def written(path: str) -> Iterator[IO[bytes]]:
    """A new file, with the mode of the umask. If the block ends well, it appears as `path` in one move, with all of its
    bytes on the disk; otherwise it vanishes.

    Temporary files beside `path` that a killed process left are removed.
    """
    _remove_stale(path)
    stream, temporary = _temporary(path)
    try:
        with stream:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # shows that its writer is alive
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    """Write the names in this folder to the disk, so that a new file survives a loss of power."""
    try:
        handle = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(handle)


def _write_through(path: str, parts: tuple[Any, ...]) -> None:
    """Write to a device, a pipe or a socket's name; a folder is an OSError, as of open."""
    with open(path, "wb", buffering=0) as stream:
        for part in parts:
            rest = memoryview(part).cast("B")
            while len(rest):
                rest = rest[stream.write(rest) :]


def _begin(name: str) -> str:
    """The beginning of a file's name, counted in bytes, that leaves room for a temporary file's suffix."""
    return os.fsencode(name)[:200].decode("utf-8", "ignore")


def _temporary(path: str) -> tuple[IO[bytes], str]:
    """A new file beside `path`, with the mode of the umask; an object, so that Ctrl-C never leaves it open."""
    folder, name = os.path.split(path)
    while True:
        temporary = os.path.join(folder, f".{_begin(name)}.{secrets.token_hex(4)}.tmp")
        try:
            return open(temporary, "xb"), temporary
        except FileExistsError:
            continue


def locked_folder(folder: str) -> int | None:
    """Make and lock a folder; until the handle is closed no other process gets one. None: another has it. OSError.

    The lock ends with its process. A file system without locks lets all in.
    """
    while True:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without locks
            return handle
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(folder), os.fstat(handle)):
                return handle
        os.close(handle)  # it was removed, and perhaps made again, before the lock


def _remove_stale(path: str) -> None:
    """Remove leftovers of killed writers of `path`: unlocked temporary files."""
    folder, name = os.path.split(path)
    for left in glob.glob(os.path.join(glob.escape(folder), f".{glob.escape(_begin(name))}.*.tmp")):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(left).st_mtime < STALE:
                continue
            with open(left, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(left)
