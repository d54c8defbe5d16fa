"""Build the C test programs against the core's static archive; no Python in them.

As a program:  python tests/cbuild.py OBJECT_FOLDER OUTPUT_FOLDER   builds all and prints "RANKS PATH" lines.
A program that wants ranks says so in a comment:  mpi ranks: 2
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "tests" / "c").glob("*.c"))


def wheel_library(wheel: str, name: str) -> str:
    for file in importlib.metadata.distribution(wheel).files or []:
        if file.name == name:
            return os.path.normpath(str(file.locate()))
    raise FileNotFoundError(f"{name} of the wheel {wheel}")


def command(objects: Path, source: Path, target: Path) -> list[str]:
    facts = json.loads((objects / "libgossipgrad.json").read_text())
    libraries = [wheel_library(wheel, name) for wheel, name in facts["wheels"].items()]
    flags = [*facts["cflags"], "-Wno-missing-prototypes", "-g"]
    rpath = [f"-Wl,-rpath,{os.path.dirname(p)}" for p in libraries]
    whole = [*facts["cc"], *flags, "-I", str(ROOT / "tests" / "c"), str(source), "-o", str(target)]
    whole += [str(ROOT / facts["archive"]), *libraries, *rpath, *facts["libraries"], *facts["link"]]
    return [*whole, "-Wl,--allow-shlib-undefined"]


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
    for program in SOURCES:
        print(ranks(program), build(Path(sys.argv[1]), program, into))
