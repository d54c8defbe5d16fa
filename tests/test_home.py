"""Without a HOME nothing is read from a folder in which another user could have placed it."""

from __future__ import annotations

import os
import pwd
import re
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from gossipgrad.data import cache
from gossipgrad.launch import mpiexec, preload
from gossipgrad.state import files
from gossipgrad.training import algorithms


@pytest.fixture(params=["unset", "empty"])
def shared(request, monkeypatch, tmp_path):
    """The temporary folder, which all users share; HOME is missing."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("HOME", "")
    if request.param == "unset":
        monkeypatch.delenv("HOME")
    for name in ("XDG_CACHE_HOME", "GOSSIPGRAD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(preload, "_fresh_home", None)
    yield folder
    preload.remove_home()
    assert not list(folder.iterdir()), "a fresh home goes"


def of_passwd(monkeypatch, folder):
    def entry(uid):
        if folder is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir=str(folder))

    monkeypatch.setattr(pwd, "getpwuid", entry)


def homes():
    """Of all that wants one."""
    made = mpiexec.home()["HOME"]
    assert files.cache_folder() == str(cache.root()) == os.path.join(made, ".cache", "gossipgrad")
    assert os.path.dirname(algorithms.cache_path()) == files.cache_folder()
    assert preload.mpi_environment()["HOME"] == os.environ["HOME"] == made
    return Path(made)


def test_the_home_of_the_passwd_database(shared, monkeypatch, tmp_path):
    own = tmp_path / "own"
    own.mkdir(0o755)
    of_passwd(monkeypatch, own)
    assert homes() == own


@pytest.mark.parametrize("what", ["none", "missing", "a file", "shared", "of a group", "another user's"])
def test_else_a_fresh_folder(what, shared, monkeypatch, tmp_path):
    folder = {"none": None, "shared": shared}.get(what, tmp_path / "folder")
    if what in ("of a group", "another user's"):
        folder.mkdir()
        folder.chmod(0o775 if what == "of a group" else 0o755)
    if what == "a file":
        folder.write_text("")
    if what == "another user's":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    of_passwd(monkeypatch, folder)
    made = homes()
    assert made.parent == shared and stat.S_IMODE(made.stat().st_mode) == 0o700


def test_open_mpi_wants_one_in_any_case(shared, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_MPI_DEFAULTS", "0")
    of_passwd(monkeypatch, None)
    assert preload.mpi_environment() == {"HOME": os.environ["HOME"]}


def test_a_forked_child_leaves_its_parents(shared, monkeypatch):
    of_passwd(monkeypatch, None)
    made = preload.home()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        preload.remove_home()
    assert os.path.isdir(made)


def test_one_place_looks_for_it():
    """All others ask gossipgrad/launch/preload.py."""
    wanted = re.compile(r"""["']HOME["']|expanduser|Path\.home""")
    sources = [*(ROOT / "gossipgrad").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]")]
    found = {path.name for path in sources if wanted.search(path.read_text())}
    assert found == {"preload.py", "mpiexec.py"}
