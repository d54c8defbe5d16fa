"""Leftovers of killed jobs in shared memory and the temporary folder, and their removal.

Killed ranks leave Open MPI's 16 MB each in /dev/shm; a killed mpiexec leaves its folder of sockets.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable

# Seconds: younger files may belong to a job that is just starting.
AGE = 600.0

# sm_segment.HOST.USER.JOB.RANK and vader_segment.HOST.USER.JOB.RANK of Open MPI; gossipgrad-PID-TIME-NUMBER, named only
# until all ranks of the host have opened it.
SEGMENT = re.compile(r"(?:sm_segment|vader_segment)\.(?P<host>.+)\.\d+\.[0-9a-f]+\.\d+|gossipgrad-\d+-\d+-\d+-\d+")
# ompi.PID of Open MPI's mpiexec
FOLDER = re.compile(r"ompi\.(?P<process>\d+)")
# gossipgrad-net-HOST-PID-RANDOM of `gossipgrad run --transport net`
OF_NET = re.compile(r"gossipgrad-net-(?P<host>.+)-(?P<process>\d+)-\w+")


def _mapped(names: set[str]) -> set[str]:
    """The files in /dev/shm, among these, that a living process uses."""
    used: set[str] = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps", errors="replace") as maps:
            text = maps.read()
            used |= {name for name in names if name in text}
    return used


def _of_this_user(path: str, before: float) -> bool:
    """A file or folder of this user, not a link, last changed before this time."""
    facts = os.lstat(path)
    kind = stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)
    return kind and facts.st_uid == os.geteuid() and facts.st_mtime < before


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def of_processes(processes: Iterable[int], temporary: str | None = None) -> set[str]:
    """Files that these living processes of one job would leave if killed: segments and mpiexec's folder."""
    temporary = tempfile.gettempdir() if temporary is None else temporary
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
            found |= {path for path in paths if SEGMENT.fullmatch(os.path.basename(path))}
        names = [os.path.join("/dev/shm", name) for name in _entries("/dev/shm")]
        found |= {name for name in names if os.path.basename(name).startswith(f"gossipgrad-{process}-")}
        found |= {path for path in [os.path.join(temporary, f"ompi.{process}")] if os.path.isdir(path)}
    return found


def remove(paths: Iterable[str]) -> None:
    """Remove the results of of_processes, after the processes have ended."""
    given = list(paths)
    used = _mapped({os.path.basename(path) for path in given})
    for path in given:
        with contextlib.suppress(OSError):
            if os.path.basename(path) not in used and _of_this_user(path, float("inf")):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def remove_leftovers(shared: str = "/dev/shm", temporary: str | None = None, age: float = AGE) -> list[str]:
    """Remove leftovers of dead jobs of this user and host; returns the paths removed.

    Segments that no living process has mapped, and launchers' folders whose process has ended; all of them older than
    `age` seconds. Doubtful files stay.
    """
    before, host = time.time() - age, os.uname().nodename
    temporary = tempfile.gettempdir() if temporary is None else temporary
    removed: list[str] = []
    old: set[str] = set()
    for name in _entries(shared):
        found = SEGMENT.fullmatch(name)
        # Other hosts: containers may share /dev/shm, but not the visible processes.
        if found and found["host"] in (None, host):
            with contextlib.suppress(OSError):
                old |= {name} if _of_this_user(os.path.join(shared, name), before) else set()
    for name in sorted(old - _mapped(old)) if old else ():
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(shared, name))
            removed.append(os.path.join(shared, name))
    for name in sorted(_entries(temporary)):
        of_net = OF_NET.fullmatch(name)
        found = of_net or FOLDER.fullmatch(name)
        path = os.path.join(temporary, name)
        if found is None or os.path.exists(f"/proc/{found['process']}"):
            continue
        # The name of its socket is the host's: a folder of another host or container stays.
        if os.path.exists(os.path.join(path, f"pmix.{host}.tool")) or (of_net and of_net["host"] == host):
            with contextlib.suppress(OSError):
                if _of_this_user(path, before):
                    shutil.rmtree(path)
                    removed.append(path)
    return removed
