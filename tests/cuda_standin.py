"""Build the stand-in for CUDA of tests/cuda/standin: its own test programs, and the library that the core loads.

The library is the room csrc/cuda with the stand-in in the place of the CUDA runtime, cuDNN and cuBLASLt, and the own
kernels compiled for the host by the emulation of tests/cuda/emulation. GOSSIPGRAD_CUDA_LIBRARY names it.

As a program it builds what all tests of CUDA want, so that they need not wait for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cbuild
import cuda_build

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "cuda"
STANDIN = sorted((FOLDER / "standin").glob("*.c"))
LAUNCHES = FOLDER / "standin" / "launches.cpp"
PROGRAMS = ("test_standin", "test_standin_libraries")
ROOM = sorted((ROOT / "csrc" / "cuda").rglob("*.c"))

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wno-unknown-pragmas"]
INCLUDES = ["csrc", "tests/cuda", "tests/cuda/standin", "tests/cuda/emulation", "tests/c"]
COMMON = [
    *["-O2", "-g", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-DGG_CUDA_STANDIN"],
    "-DGG_CUDA_ATTENTION_BYTES=2048",  # so that small attention is computed in several blocks
    *[*WARNINGS, *(word for path in INCLUDES for word in ("-I", str(ROOT / path)))],
]
C = ["-std=gnu11", "-Wstrict-prototypes"]
CXX = ["-std=c++17"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def _key(words: list[str], paths: list[Path]) -> str:
    folders = [FOLDER, ROOT / "tests" / "c", *(ROOT / "csrc" / room for room in ("base", "ops", "cuda"))]
    headers = [path for folder in folders for path in sorted([*folder.rglob("*.h"), *folder.rglob("*.cuh")])]
    key = hashlib.sha256("\0".join(words).encode())
    for path in [*headers, *paths]:
        key.update(path.read_bytes())
    return key.hexdigest()


def _run(words: list[str], target: Path, key: str) -> Path:
    stamp = target.with_suffix(target.suffix + ".key")
    if not (target.exists() and stamp.exists() and stamp.read_text() == key):
        target.unlink(missing_ok=True)  # who has loaded the old file keeps it
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode or done.stderr.strip():
            raise RuntimeError(f"{target.name}: {' '.join(words)}\n{done.stdout}{done.stderr}")
        stamp.write_text(key)
    return target


def _facts(objects: Path) -> dict:
    return json.loads((objects / "libgossipgrad.json").read_text())


def _build(objects: Path, name: str, sources: list[Path], link: list[str], extra: list[str]) -> Path:
    facts = _facts(objects)
    cc, cxx = facts["cc"], cuda_build.compiler(facts)
    folder = objects / "tests" / f"cuda-standin{'-asan' if extra else ''}"
    folder.mkdir(parents=True, exist_ok=True)

    def compile_source(source: Path) -> tuple[Path, str]:
        emulated = ["-DGG_CUDA_EMULATION"] if source.suffix == ".cu" else []
        language = [*cc, *C] if source.suffix == ".c" else [*cxx, *CXX, *emulated, "-x", "c++"]
        target = folder / f"{source.stem}{source.suffix}.o"
        words = [*language, *COMMON, *extra, "-c", str(source), "-o", str(target)]
        key = _key(words, [source])
        return _run(words, target, key), key

    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            units = list(pool.map(compile_source, sources))
        target = folder / name
        words = [*cxx, *(str(path) for path, _ in units), "-o", str(target), *extra, *link]
        shared = [path.read_bytes() for path in map(Path, link) if path.suffix == ".o"]
        key = hashlib.sha256(b"".join([*shared, *(word.encode() for word in [*words, *(key for _, key in units)])]))
        return _run(words, target, key.hexdigest())


def program(objects: Path, name: str) -> Path:
    """Tests of the stand-in itself, one of PROGRAMS, under sanitizers."""
    status = ROOT / "csrc" / "base" / "status.c"
    return _build(objects, name, [FOLDER / f"{name}.c", *STANDIN, status], ["-pthread", "-lm"], SANITIZED)


def library(objects: Path) -> Path:
    """The library, as the core loads it."""
    sources = [*ROOM, *cuda_build.KERNELS, cuda_build.EMULATION, *STANDIN, LAUNCHES]
    shared = [str(ROOT / path) for path in _facts(objects)["cuda_shares"]]
    link = ["-shared", *shared, "-Wl,-z,defs", "-pthread", "-lm"]
    return _build(objects, "gossipgrad_cuda_standin.so", sources, link, [])


def device_program(objects: Path, name: str, folder: Path) -> Path:
    """Tests that load the library: of the device's memory and queues, of operations."""
    return cbuild.build(objects, FOLDER / f"{name}.c", folder)


def convolution_program(objects: Path, folder: Path) -> Path:
    """The tests of convolutions, which load the library."""
    return cbuild.build(objects, FOLDER / "test_convolution.c", folder)


class Standin:
    """The functions of standin.h in the library that this process has loaded, or loads now."""

    def __init__(self, path: str | os.PathLike):
        self.library = ctypes.CDLL(os.fspath(path))
        self.library.gg_standin_begin.argtypes = [ctypes.c_uint64]
        self.library.gg_standin_memory.argtypes = [ctypes.c_size_t]
        self.library.gg_standin_plant.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 2, *[ctypes.c_bool] * 2]
        self.library.gg_standin_count.argtypes = [ctypes.c_char_p]
        self.library.gg_standin_kernel_failures.restype = ctypes.c_long
        self.library.gg_standin_count.restype = ctypes.c_long

    def begin(self, seed: int = 0) -> None:
        self.library.gg_standin_begin(seed)

    def memory(self, size: int) -> None:
        self.library.gg_standin_memory(size)

    def devices(self, count: int) -> None:
        self.library.gg_standin_devices(count)

    def plant(self, function: str, nth: int, code: int, lost: bool = False, late: bool = False) -> None:
        self.library.gg_standin_plant(function.encode(), nth, code, lost, late)

    def count(self, what: str) -> int:
        return self.library.gg_standin_count(what.encode())

    def kernel_failures(self) -> int:
        return self.library.gg_standin_kernel_failures()

    def violations(self) -> list[str]:
        return self._lines("gg_standin_violations")

    def leaks(self) -> list[str]:
        return self._lines("gg_standin_leaks")

    def _lines(self, name: str) -> list[str]:
        text = ctypes.create_string_buffer(1 << 14)
        count = getattr(self.library, name)(text, ctypes.c_size_t(len(text)))
        lines = text.value.decode().splitlines()
        return lines + ["..."] * (count - len(lines))


if __name__ == "__main__":
    from gossipgrad.launch import preload

    folder = ROOT / preload.build_facts().OBJECTS
    library(folder)
    for variant in cuda_build.VARIANTS:
        cuda_build.build(folder, variant)
    for name in PROGRAMS:
        program(folder, name)
