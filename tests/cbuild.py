"""Build the C test programs against the core's static archive, without Python; and the module of single operations.

As a program:  python tests/cbuild.py OBJECT_FOLDER OUTPUT_FOLDER [NAME...]   builds all, or some, and prints
"RANKS PATH" lines. Programs for another machine (tests/aarch64.sh) are linked without MPI's library.
A program that wants ranks says so in a comment:  mpi ranks: 2
One that wants the level amx on any CPU:  twins: amx
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "tests" / "c").glob("*.c"))
MODULE_SOURCES = sorted((ROOT / "tests" / "c" / "operations").glob("*.c"))
TWINS = sorted((ROOT / "tests" / "c" / "twin").glob("*.c"))
STRICT = sorted((ROOT / "tests" / "c" / "strict").glob("*.c"))


def wheel_library(wheel: str, name: str) -> str:
    for file in importlib.metadata.distribution(wheel).files or []:
        if file.name == name:
            return os.path.normpath(str(file.locate()))
    raise FileNotFoundError(f"{name} of the wheel {wheel}")


def compiling(facts: dict) -> list[str]:
    return [*facts["cc"], *facts["cflags"], "-Wno-missing-prototypes", "-g", "-I", str(ROOT / "tests" / "c")]


def linking(facts: dict) -> list[str]:
    """What follows the objects: the core and what it needs."""
    if facts["machine"] != platform.machine():
        return [str(ROOT / facts["archive"]), *facts["link"]]
    libraries = [wheel_library(wheel, name) for wheel, name in facts["wheels"].items()]
    rpath = [f"-Wl,-rpath,{os.path.dirname(p)}" for p in libraries]
    whole = [str(ROOT / facts["archive"]), *libraries, *rpath, *facts["libraries"], *facts["link"]]
    return [*whole, "-Wl,--allow-shlib-undefined"]


def wrapped(*sources: Path) -> list[str]:
    """What sends calls of the core's objects to the functions __wrap_NAME of the sources, in place of NAME."""
    names = sorted({name for path in sources for name in re.findall(r"\b__wrap_(\w+)", path.read_text())})
    return [f"-Wl,--wrap={name}" for name in names]


def command(objects: Path, source: Path, target: Path) -> list[str]:
    facts = json.loads((objects / "libgossipgrad.json").read_text())
    text = source.read_text()
    units = [source, *TWINS] if "twins: amx" in text else [source]
    if '"strict/strict.h"' in text:
        units += [path for path in STRICT if path.stem != "library"]
    return [*compiling(facts), *map(str, units), *wrapped(*units), "-o", str(target), *linking(facts)]


def build_stale(target: Path, key: str, commands: list[list[str]]) -> Path:
    """Run the commands that make `target`, unless it was made with this key."""
    stamp = target.with_suffix(".key")
    target.parent.mkdir(exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists() and stamp.exists() and stamp.read_text() == key:
            return target
        stamp.unlink(missing_ok=True)
        target.unlink(missing_ok=True)  # who has loaded the old file keeps it
        for words in commands:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{target.name}:\n{done.stdout}{done.stderr}")
        stamp.write_text(key)
    return target


def build_strict(objects: Path) -> Path:
    """The library of the strict device, in OBJECTS/tests, which GOSSIPGRAD_DEVICE_LIBRARY may name."""
    facts = json.loads((objects / "libgossipgrad.json").read_text())
    target = objects / "tests" / "strict.so"
    core = [*(ROOT / path for path in facts["cuda_shares"]), objects / "base" / "clock.o"]
    sources = [*STRICT, ROOT / "csrc" / "cuda" / "services.c"]
    words = [*compiling(facts), "-shared", *map(str, [*sources, *core]), "-o", str(target), *facts["link"]]
    key = hashlib.sha256("\0".join(words).encode())
    for path in [*sources, *core, *STRICT[0].parent.glob("*.h"), *(ROOT / "csrc" / "ops").glob("*.h")]:
        key.update(path.read_bytes())
    return build_stale(target, key.hexdigest(), [words])


def build_module(objects: Path) -> Path:
    """The extension module of tests/c/operations, in OBJECTS/tests; compiled where it is stale."""
    import numpy

    facts = json.loads((objects / "libgossipgrad.json").read_text())
    folder = objects / "tests"
    target = folder / "core_operations.so"
    includes = [sysconfig.get_paths()["include"], sysconfig.get_paths()["platinclude"], numpy.get_include()]
    compiler = [*compiling(facts), *(word for path in includes for word in ("-isystem", path))]
    core = [ROOT / facts["archive"], *(objects / "python" / f"{name}.o" for name in ("convert", "exceptions"))]
    units = {source: folder / f"{source.stem}.o" for source in [*MODULE_SOURCES, *TWINS]}
    whole = [*map(str, [*units.values(), *core[1:]]), *wrapped(*TWINS), "-o", str(target), *linking(facts)]
    link = [*facts["cc"], "-shared", *whole]
    key = hashlib.sha256("\0".join([*compiler, *link, sys.version, numpy.__version__]).encode())
    for path in [*units, *MODULE_SOURCES[0].parent.glob("*.h"), *TWINS[0].parent.glob("*.h")]:
        key.update(path.read_bytes())
    for path in core:  # a changed header of the core compiles some of its objects, too
        key.update(f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    commands = [[*compiler, "-c", str(source), "-o", str(into)] for source, into in units.items()]
    return build_stale(target, key.hexdigest(), [*commands, link])


def build(objects: Path, source: Path, folder: Path) -> Path:
    target = folder / source.stem
    done = subprocess.run(command(objects, source, target), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stdout}{done.stderr}")
    return target


def ranks(source: Path) -> int:
    """0: started plainly."""
    found = re.search(r"mpi ranks: (\d+)", source.read_text())
    return int(found.group(1)) if found else 0


if __name__ == "__main__":
    into = Path(sys.argv[2])
    into.mkdir(parents=True, exist_ok=True)
    for program in [path for path in SOURCES if path.stem in sys.argv[3:] or not sys.argv[3:]]:
        print(ranks(program), build(Path(sys.argv[1]), program, into))
