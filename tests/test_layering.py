"""The rooms of csrc: who may include whom, which symbols leave, which instructions an ISA's build may use.

And the modules of the package: their imports make no circle.
"""

from __future__ import annotations

import ast
import fnmatch
import itertools
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import cbuild
import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# A room may include headers of itself and of rooms before it. The last one is the tests' own module.
# "cuda" is a library of its own, which the core loads: nobody else includes its headers.
ROOMS = "base ops cuda cpu data comm exchange nn apoptosis train python operations".split()

# Headers of a library -> the files that may see them.
PRIVATE = {
    r"mpi(-ext)?\.h": "comm/mpi/*",
    r"(oneapi/dnnl/)?dnnl\w*\.h": "cpu/*onednn_*",
    r"Python\.h|numpy/.*": "python/*",
    r"cuda\w*\.h|cudnn\w*\.h|cublas\w*\.h": "cuda/*",
    r"omp\.h": "base/*",
}


def breaches(name: str, text: str) -> list[str]:
    """name: the file's path under csrc or tests/c."""
    found = []
    room = name.split("/")[0]
    if room not in ROOMS:
        return [f"{name}: {room!r} is not a room"]
    for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        other = included.split("/")[0]
        if other not in ROOMS or not included.endswith((".h", ".cuh")):
            found.append(f'{name}: "{included}" is not the path of a header under csrc')
        elif ROOMS.index(other) > ROOMS.index(room) or (other == "cuda" and room != other):
            found.append(f'{name}: "{included}": room {room} may not know {other}')
    for included in re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', text, re.M):
        for pattern, owners in PRIVATE.items():
            if re.fullmatch(pattern, included) and not fnmatch.fnmatchcase(name, owners):
                found.append(f"{name}: <{included}> belongs to {owners}")
    return found


def files() -> list[Path]:
    return sorted(path for ending in ("*.c", "*.h", "*.cu", "*.cuh") for path in CSRC.rglob(ending))


def core_sources() -> list[Path]:
    return [path for path in CSRC.rglob("*.c") if path.relative_to(CSRC).parts[0] != "cuda"]


def test_rooms():
    module = [*cbuild.MODULE_SOURCES, *cbuild.MODULE_SOURCES[0].parent.glob("*.h")]
    assert files() and len(module) > 1
    named = [(path.relative_to(CSRC).as_posix(), path) for path in files()]
    named += [(path.relative_to(ROOT / "tests" / "c").as_posix(), path) for path in module]
    found = [b for name, path in named for b in breaches(name, path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("base/x.c", '#include "nn/graph.h"\n', "may not know nn"),
        ("exchange/x.c", "#include <mpi.h>\n", "belongs to comm/mpi"),
        ("cpu/conv/x.c", "# include <oneapi/dnnl/dnnl.h>\n", "belongs to cpu/*onednn_"),
        ("train/x.c", "#include <Python.h>\n", "belongs to python"),
        ("exchange/strategies/x.c", '#include "nn/graph.h"\n', "may not know nn"),
        ("cuda/conv/x.cu", '#include "nn/graph.h"\n', "may not know nn"),
        ("cpu/x.c", '#include "cuda/cuda_api.h"\n', "may not know cuda"),
        ("ops/x.c", "#include <cuda_runtime_api.h>\n", "belongs to cuda"),
        ("python/x.c", '#include "operations/operations.h"\n', "may not know operations"),
        ("attic/x.c", "", "not a room"),
        ("base/x.c", '#include "nowhere.h"\n', "not the path"),
    ],
)
def test_breaches_are_seen(name, text, word):
    assert any(word in b for b in breaches(name, text))


def test_one_file_calls_strategies():
    """The exchange is the one user of a strategy's table, whoever computes the gradients."""
    own = [CSRC / "exchange" / name for name in ("strategies", "parts", "strategy.c", "strategy.h")]
    used = re.compile(r"gg_strategy_create\(|strategy->table|->table->ready")
    others = [path for path in files() if not {path, path.parent} & set(own)]
    users = [path.name for path in others if used.search(path.read_text())]
    assert users == ["exchange.c"]


def test_the_trace_of_a_step_names_functions_that_are_there():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w/]+\.[ch]):(\w+)`", text))
    assert len(named) > 15
    missing = [f"{file}:{name}" for file, name in named if not defines(CSRC / file, name)]
    assert not missing, missing


def defines(path: Path, function: str) -> bool:
    return path.exists() and re.search(rf"^[a-z].*\b{function}\(.*\n?.*\{{", path.read_text(), re.M) is not None


# ------------------------------------------------------------------------------------------------ symbols


def foreign_symbols(listing: str) -> list[str]:
    """From nm -g --defined-only -A: global names without our prefix."""
    bad = []
    for line in listing.splitlines():
        parts = line.split()
        if len(parts) >= 2 and not re.match(r"gg_|PyInit_", parts[-1]):
            bad.append(line)
    return bad


def object_files(folder: Path) -> list[Path]:
    """Objects of the sources that exist now."""
    found = []
    for source in core_sources():
        stem = source.relative_to(CSRC).with_suffix("")
        found += sorted((folder / stem.parent).glob(stem.name + ".o"))
        if stem.parts[0] == "cpu" and stem.name.endswith("_kernels"):
            found += sorted((folder / stem.parent).glob(stem.name + ".*.o"))
    assert len(found) >= len(core_sources())
    return found


def test_symbols(objects):
    cbuild.build_module(objects)
    module = [objects / "tests" / f"{source.stem}.o" for source in cbuild.MODULE_SOURCES]
    listing = subprocess.run(
        ["nm", "-A", "-g", "--defined-only", *map(str, [*object_files(objects), *module])],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "gg_" in listing
    bad = foreign_symbols(listing)
    assert not bad, "global symbols without the prefix gg_:\n" + "\n".join(bad)


def dynamic_symbols(library: str) -> set[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in listing.splitlines()} - {"_init", "_fini", "_end", "_edata", "__bss_start"}


def test_only_the_module_leaves_the_library(objects):
    from gossipgrad import _core

    assert dynamic_symbols(_core.__file__) == {"PyInit__core"}
    assert dynamic_symbols(str(cbuild.build_module(objects))) == {"PyInit_core_operations"}


def test_the_package_holds_no_test_functions():
    from gossipgrad import _core

    assert not {"run_op", "run_loss", "run_kernel"} & set(dir(_core))


def test_foreign_symbols_are_seen():
    assert foreign_symbols("x.o:0000000000000000 T gg_fine\nx.o:0000000000000000 T helper\n") == [
        "x.o:0000000000000000 T helper"
    ]


# ------------------------------------------------------------------------------------------------ circles

Calls = dict[tuple[str, str], set[str]]


def calls_of(symbols: dict[str, str]) -> Calls:
    """From the output of nm for each source: which symbols of another source each uses."""
    defined: dict[str, set[str]] = {}
    used: dict[str, set[str]] = {}
    for source, listing in symbols.items():
        for line in listing.splitlines():
            kind, name = line.split()[-2:]
            if kind == "U":
                used.setdefault(source, set()).add(name)
            elif kind.isupper():
                defined.setdefault(name, set()).add(source)
    calls: Calls = {}
    for source, names in used.items():
        for name in names:
            for other in defined.get(name, set()) - {source}:
                calls.setdefault((source, other), set()).add(name)
    return calls


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Nodes that lead back to themselves: the first circle met from each; none: empty."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in graph.get(name, ()):
                visit(other, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def circles_of_files(calls: Calls) -> list[list[str]]:
    return circles({source: sorted(b for a, b in calls if a == source) for source in sorted({a for a, _ in calls})})


def test_files_do_not_use_each_other_in_a_circle(objects):
    symbols: dict[str, str] = {}
    command = ["nm", "-g", "-A", *map(str, object_files(objects))]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        path, _, symbol = line.partition(":")
        source = Path(path).relative_to(objects).as_posix().split(".")[0] + ".c"
        symbols[source] = f"{symbols.get(source, '')}{symbol}\n"
    calls = calls_of(symbols)
    found = circles_of_files(calls)
    assert not found, "\n".join(
        f"{a} uses {', '.join(sorted(calls[a, b]))} of {b}" for path in found for a, b in itertools.pairwise(path)
    )


def test_circles_of_files_are_seen():
    symbols = {"a.c": "0 T gg_a\n U gg_b\n", "b.c": "0 T gg_b\n U gg_c\n U malloc\n", "c.c": "0 T gg_c\n"}
    assert circles_of_files(calls_of(symbols)) == []
    symbols["c.c"] += " U gg_a\n"
    assert circles_of_files(calls_of(symbols)) == [["a.c", "b.c", "c.c", "a.c"]]


# ------------------------------------------------------------------------------------------------ instructions

LINE = re.compile(r"^\s*[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t(.*)$")

# EVEX forms of 128 bits that plain AVX512F has: scalars, and moves of parts of a register.
SCALAR = re.compile(
    r"(v\w+s[sd]|v\w+[sd]i|v\w+s[sd]2\w+|v\w+2s[sd]l?q?|vmov[dq]|vmov[hl]p[sd]|vmovhlps|vmovlhps|vinsertps|vextractps)\b"
)


def vector_instructions(disassembly: str) -> list[tuple[bytes, str]]:
    found = []
    for line in disassembly.splitlines():
        match = LINE.match(line)
        if match:
            text = re.sub(r"\s*(#.*|<.*>)", "", match.group(2)).strip()
            if re.match(r"(\{\w+\} )?[vk]", text):
                found.append((bytes.fromhex(match.group(1)), text))
    return found


def beyond_knights_landing(instructions: list[tuple[bytes, str]], folder: Path) -> list[str]:
    """Instructions that need more than AVX512F, CD, ER, PF: 256- and 128-bit EVEX forms (VL) by their
    encoding, and whatever the assembler does not know for that machine. A 512-bit one need not name a zmm register:
    vcvtpd2ps of memory to a ymm has the length in its fourth byte."""
    bad = {
        text
        for code, text in instructions
        if code[0] == 0x62
        and "%zmm" not in text
        and code[3] & 0x60 != 0x40
        and not SCALAR.match(text)
        and not text.startswith("k")
    }
    unique = sorted({text for _, text in instructions})
    source, target = folder / "vector.s", folder / "vector.o"
    source.write_text("".join(f"{text}\n" for text in unique))
    march = "-march=generic64+avx2+fma+f16c+bmi+bmi2+avx512f+avx512cd+avx512er+avx512pf"
    done = subprocess.run(["as", march, str(source), "-o", str(target)], capture_output=True, text=True)
    for number in re.findall(r"vector\.s:(\d+): Error", done.stderr):
        bad.add(unique[int(number) - 1])
    assert done.returncode == 0 or bad, done.stderr
    return sorted(bad)


def disassemble(path: Path) -> str:
    return subprocess.run(
        ["objdump", "-d", "-w", "--insn-width=16", str(path)], check=True, capture_output=True, text=True
    ).stdout


def test_avx512f_runs_on_knights_landing(objects, tmp_path):
    from gossipgrad import _build

    if "avx512f" not in _build.ISAS:
        pytest.skip("built without avx512f: GOSSIPGRAD_ISAS=all builds it")
    if _build.VARIANT != "release":
        pytest.skip("instrumented code is not what runs there")
    kernels = [p for p in object_files(objects) if p.name.endswith(".avx512f.o")]
    assert kernels
    found = {p.name: beyond_knights_landing(vector_instructions(disassemble(p)), tmp_path) for p in kernels}
    assert not any(found.values()), found
    assert any(code[0] == 0x62 for p in kernels for code, _ in vector_instructions(disassemble(p)))


def test_no_vector_code_outside_of_kernels(objects):
    """What is not chosen at run time must run on every x86-64: no AVX there."""
    if platform.machine() != "x86_64":
        pytest.skip("not an x86 machine")
    for path in object_files(objects):
        isa = path.name.split(".")[-2] if path.name.count(".") > 1 else "scalar"
        if isa == "scalar":
            found = [t for c, t in vector_instructions(disassemble(path)) if c[0] in (0x62, 0xC4, 0xC5)]
            assert not found, f"{path}: {found[:5]}"


@pytest.mark.parametrize(
    ("body", "flags"),
    [
        ("x[i] += y[i];", ["-mavx512f", "-mavx512vl"]),  # and a move of 256 bits
        ("x[i] = -y[i];", ["-mavx512f", "-mavx512dq", "-mprefer-vector-width=512"]),  # vxorps of 512 bits
        ("c[i] = (signed char)(c[i] + d[i]);", ["-mavx512f", "-mavx512bw", "-mprefer-vector-width=512"]),
    ],
)
def test_forbidden_instructions_are_seen(body, flags, tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip("not an x86 machine")
    source = tmp_path / "k.c"
    move = '__asm__ volatile("vmovaps %ymm17, %ymm18");' if "-mavx512vl" in flags else ""
    source.write_text(
        "void k(float *restrict x, const float *restrict y, signed char *restrict c, const signed char *restrict d,"
        f" int n)\n{{\n    {move}\n    for (int i = 0; i < n; i++)\n        {body}\n}}\n"
    )
    subprocess.run(["gcc", "-O3", *flags, "-c", str(source), "-o", str(tmp_path / "k.o")], check=True)
    assert beyond_knights_landing(vector_instructions(disassemble(tmp_path / "k.o")), tmp_path)


# ---------------------------------------------------------------------------------------------- Python modules

PACKAGE = ROOT / "gossipgrad"

# A module imports from modules and wings of its own line or of those before it.
WINGS = """
errors keywords literals show described
launch
state
losses schedules layers sequences heads summary weights model
data
metrics optim compression strategies cluster team apoptosis models
report
history drawing plots callbacks
training
trainer exchange
bench profile sklearn torch
compare
cli
__main__
"""

# A callback's methods are given the trainer, which calls them: its type alone is imported from a line below.
CALLBACKS = ("callbacks", "training.progress", "training.tensorboard")
BY_TYPE_ALONE = {(f"gossipgrad.{name}", "gossipgrad.trainer") for name in CALLBACKS}


def modules_of(root: Path) -> dict[str, str]:
    """The sources of the package at `root` by the modules' names."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


def imports_of(module: str, source: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Modules of the package that this one imports, wherever the statement stands, TYPE_CHECKING's included.

    To import a.b.c runs a and a.b as well; they count where they are no packages that this module lies in.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                prefix = ".".join(parts[:i])
                if prefix in modules and not f"{module}.".startswith(f"{prefix}."):
                    yield prefix


def circles_of_imports(sources: Mapping[str, str]) -> list[str]:
    """As "a -> b -> a"."""
    graph = {
        name: [o for o in sorted(set(imports_of(name, source, sources))) if (name, o) not in BY_TYPE_ALONE]
        for name, source in sources.items()
    }
    return [" -> ".join(path) for path in circles(graph)]


def test_the_package_imports_without_circles():
    sources = modules_of(PACKAGE)
    assert "gossipgrad.trainer" in sources and "gossipgrad.data.arrays" in sources
    assert circles_of_imports(sources) == []
    for name, other in BY_TYPE_ALONE:
        assert other in imports_of(name, sources[name], sources), f"{name} does not import {other} any more"
        guarded = sources[name].split("if TYPE_CHECKING:")
        assert len(guarded) == 2 and f"from {other} import" not in guarded[0]


def breaches_of_wings(sources: Mapping[str, str]) -> list[str]:
    """Imports from a line of WINGS below that of the module; modules that have no line."""
    line = {name: i for i, names in enumerate(WINGS.split("\n")) for name in names.split()}
    found = []
    for name, source in sources.items():
        wing = name.split(".")[1:2]
        if not wing or wing == ["_build"]:
            continue
        if wing[0] not in line:
            found.append(f"{name} has no place in WINGS")
            continue
        for other in sorted({o for o in imports_of(name, source, sources) if "." in o}):
            below = line.get(other.split(".")[1], 0) > line[wing[0]]
            if below and (name, other) not in BY_TYPE_ALONE:
                found.append(f"{name} imports {other}")
    return found


def test_wings_import_from_those_above_them():
    assert breaches_of_wings(modules_of(PACKAGE)) == []
    names = {f"gossipgrad.{name}" for name in WINGS.split()}
    assert names <= set(modules_of(PACKAGE)), "a name of WINGS is no module"


def test_breaches_of_wings_are_seen():
    package = {"gossipgrad": "", "gossipgrad.state": "", "gossipgrad.data": "", "gossipgrad.data.a": ""}
    package["gossipgrad.data.a"] = "from gossipgrad import state"
    assert breaches_of_wings(package) == []
    package["gossipgrad.state"] = "def f():\n    from gossipgrad.data import a"
    package["gossipgrad.new"] = ""
    assert breaches_of_wings(package) == [
        "gossipgrad.state imports gossipgrad.data",
        "gossipgrad.state imports gossipgrad.data.a",
        "gossipgrad.new has no place in WINGS",
    ]


def test_circles_are_seen():
    package = {"p": "from p import a", "p.a": "from p.b import x", "p.b": "def f():\n    from p import c", "p.c": ""}
    assert circles_of_imports(package) == []
    package["p.c"] = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a"
    assert circles_of_imports(package) == ["p.a -> p.b -> p.c -> p.a"]
    nested = {"p": "", "p.q": "import p.q.r", "p.q.r": "from p.s import y", "p.s": "from p.q.r import z"}
    assert circles_of_imports(nested) == ["p.q -> p.q.r -> p.s -> p.q", "p.q.r -> p.s -> p.q.r"]
