"""Files that are made once: where they lie, and one process at a time that makes them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gossipgrad.errors import DataError
from gossipgrad.state import files

WAIT = 0.1  # seconds between two looks at a lock


def root() -> Path:
    """$GOSSIPGRAD_CACHE, $XDG_CACHE_HOME/gossipgrad or ~/.cache/gossipgrad."""
    return Path(os.environ.get("GOSSIPGRAD_CACHE") or files.cache_folder())


def places(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Where a set's files may lie: `folder` and its folder `name`, or $GOSSIPGRAD_DATA/`name` and the cache's.

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
    """Hold the lock file for the block; gives a function that writes a text for those who wait.

    waiting: called with that text while another process holds it. The lock goes with its process, so one that is
    killed leaves nobody waiting; a file system without locks lets all in. OSError if the file cannot be made.
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
    """Remove the temporary files that earlier versions left where they were killed or the disk was full."""
    for left in (*folder.glob(".fetch-*"), *folder.glob(".made-*")):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > files.STALE:
                left.unlink()
