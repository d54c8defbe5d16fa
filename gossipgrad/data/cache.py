"""Files that are made once: their places, and a lock for the process that makes them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gossipgrad.errors import DataError
from gossipgrad.state import files

WAIT = 0.1  # seconds between two tries of a lock


def root() -> Path:
    """$GOSSIPGRAD_CACHE, $XDG_CACHE_HOME/gossipgrad or ~/.cache/gossipgrad."""
    return Path(os.environ.get("GOSSIPGRAD_CACHE") or files.cache_folder())


def key(*words: object) -> str:
    """A name for data made from these."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(f"{word}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def places(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Possible folders of a set's files: `folder` and its folder `name`, or $GOSSIPGRAD_DATA/`name` and the cache's.

    DataError: `folder` is none.
    """
    if folder is not None:
        if not os.path.isdir(folder):
            raise DataError(f"data: no such folder: {os.fspath(folder)!r}")
        return [Path(folder), Path(folder) / name]
    given = os.environ.get("GOSSIPGRAD_DATA")
    return [*([Path(given) / name] if given else []), root() / name]


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[str], None] = lambda text: None) -> Iterator[Callable[[str], None]]:
    """Hold the lock file for the block; yields a function that writes a text for waiting processes.

    waiting: called with that text while another process holds it. The lock ends with its process, so a killed process
    blocks nobody; a file system without locks lets all in. OSError if the file cannot be made.
    """
    with open(path, "a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    break
                file.seek(0)
                waiting(file.read())
                time.sleep(WAIT)
            else:
                break

        def report(text: str) -> None:
            file.truncate(0)
            file.write(text)
            file.flush()

        report("")
        yield report


def remove_left(folder: Path) -> None:
    """Remove temporary files of earlier versions that were killed, or met a full disk."""
    for left in (*folder.glob(".fetch-*"), *folder.glob(".made-*")):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > files.STALE:
                left.unlink()
