"""Feeds changed and random packed messages to what reads them, built with address and undefined-behaviour sanitizers.

    python tools/fuzz_packed.py --minutes 10

Needs a C compiler and its sanitizers, and nothing of the package. Ends with an error at the first byte that is read or
written outside of an array, or written between segments; the state that it prints is that of the round.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SOURCES = [
    ROOT / "tools/fuzz_packed.c",
    *[CSRC / "exchange/codec" / name for name in ("packed.c", "unpacked.c", "packed_room.c", "pieces.c")],
    *[CSRC / "cpu/arena" / name for name in ("pack.c", "choose_kernels.c", "entries_kernels.c")],
    *[CSRC / "ops/tensor.c", CSRC / "ops/device.c"],
    *[CSRC / "base" / name for name in ("status.c", "memory.c", "parallel.c", "cpu.c")],
]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def build(folder: Path) -> Path:
    program = folder / "fuzz_packed"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    # the vector kernels of this machine; fused products off as in setup.py
    options = ["-O1", "-g", "-std=gnu11", "-march=native", "-ffp-contract=off", "-DGG_ISA=scalar", f"-I{CSRC}"]
    command = [*compiler, *options, *SANITIZERS, *map(str, SOURCES), "-o", str(program), "-lm", "-pthread"]
    subprocess.run(command, check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="default: the clock")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        print(f"{arguments.minutes:g} minutes, --seed {seed}", flush=True)
        return subprocess.run([str(program), str(60 * arguments.minutes), str(seed)]).returncode


if __name__ == "__main__":
    sys.exit(main())
