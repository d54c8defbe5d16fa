"""Build the own CUDA kernels for the host against the emulation of tests/cuda/emulation, and programs that test them.

There are two variants, and the tests run under both:

  checked  the emulation sees every access of the kernels: races, and memory that is no buffer; and UBSan
  asan     AddressSanitizer and UBSan
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cbuild

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "cuda"
KERNELS = sorted((ROOT / "csrc" / "cuda").glob("*/*.cu"))
PROGRAMS = sorted(FOLDER.glob("test_*.cpp"))
EMULATION = FOLDER / "emulation" / "emulation.cpp"

CXX = "g++"  # whose calls before each access the emulation defines

COMMON = [
    *["-std=c++17", "-g1", "-ffp-contract=off", "-fno-omit-frame-pointer", "-DGG_CUDA_EMULATION"],
    "-DGG_CUDA_MAX_BLOCKS=2",  # so that kernels go around in their loops
    *["-Wall", "-Wextra", "-Wshadow", "-Wno-unknown-pragmas"],
    *["-I", str(ROOT / "csrc"), "-I", str(FOLDER), "-I", str(FOLDER / "emulation"), "-I", str(ROOT / "tests" / "c")],
]
UNDEFINED = ["-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"]
# Programs without kernels of their own are compiled once, without checks: the kernels' are what counts.
PLAIN = ["-O0"]
# For kernels, for the emulation itself, and for the linker.
VARIANTS = {
    "checked": (
        # Not linked with ThreadSanitizer: the emulation defines what such code calls.
        ["-O1", *UNDEFINED, "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"],
        ["-O1", "-DGG_EMULATION_CHECKED"],
        UNDEFINED,
    ),
    "asan": tuple([["-O1", *UNDEFINED, "-fsanitize=address"]] * 3),
}
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def compiler(facts: dict) -> list[str]:
    wrapper = [word for word in facts["cc"][:-1] if word.endswith("ccache")]
    return [*wrapper, CXX]


def headers_key() -> bytes:
    key = hashlib.sha256()
    folders = [FOLDER, ROOT / "tests" / "c", *(ROOT / "csrc" / room for room in ("base", "ops", "cuda"))]
    for folder in folders:
        for path in sorted([*folder.rglob("*.h"), *folder.rglob("*.cuh")]):
            key.update(path.read_bytes())
    return key.digest()


def up_to_date(target: Path, key: str) -> bool:
    stamp = target.with_suffix(target.suffix + ".key")
    return target.exists() and stamp.exists() and stamp.read_text() == key


def run(words: list[str], target: Path, key: str) -> None:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{target.name}: {' '.join(words)}\n{done.stdout}{done.stderr}")
    if done.stderr.strip() and os.environ.get("GOSSIPGRAD_WERROR") == "1":
        raise RuntimeError(f"{target.name}: warnings\n{done.stderr}")
    target.with_suffix(target.suffix + ".key").write_text(key)


def build(objects: Path, variant: str, programs: list[Path] | None = None) -> dict[str, Path]:
    """The programs by their names, with all kernels in them; compiled where something has changed."""
    facts = json.loads((objects / "libgossipgrad.json").read_text())
    kernel_flags, emulation_flags, link_flags = VARIANTS[variant]
    folder, plain = objects / "tests" / f"cuda-{variant}", objects / "tests" / "cuda-plain"
    for path in (folder, plain):
        path.mkdir(parents=True, exist_ok=True)
    cxx, headers = compiler(facts), headers_key()
    programs = PROGRAMS if programs is None else programs

    def compile_source(source: Path) -> tuple[Path, str]:
        flags, into = kernel_flags, folder
        if source == EMULATION:
            flags = emulation_flags
        elif source.suffix == ".cpp" and "common.cuh" not in source.read_text():
            flags, into = PLAIN, plain
        target = into / f"{source.stem}.o"
        words = [*cxx, *COMMON, *flags, "-x", "c++", "-c", str(source), "-o", str(target)]
        key = hashlib.sha256(headers + source.read_bytes() + "\0".join(words).encode()).hexdigest()
        if not up_to_date(target, key):
            run(words, target, key)
        return target, key

    def link(program: Path, units: list[tuple[Path, str]]) -> Path:
        unit, key_of_unit = compile_source(program)
        target = folder / program.stem
        words = [*cxx, str(unit), *(str(path) for path, _ in units), "-o", str(target), *link_flags]
        words += cbuild.linking(facts)
        archive = (ROOT / facts["archive"]).stat()
        stamp = [*words, key_of_unit, *(key for _, key in units), f"{archive.st_size} {archive.st_mtime_ns}"]
        key = hashlib.sha256("\0".join(stamp).encode()).hexdigest()
        if not up_to_date(target, key):
            run(words, target, key)
        return target

    with open(plain / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            units = list(pool.map(compile_source, [*KERNELS, EMULATION]))
            made = list(pool.map(lambda program: link(program, units), programs))
    return {path.name: path for path in made}
