"""What every test stands on: MPI that starts as root and with more ranks than cores, and the data folder."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

# Seconds until what is started counts as hung: far more than a slow, busy machine takes.
DEADLINE = 300

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}
if not os.path.isdir("/sys/class/infiniband") or not os.listdir("/sys/class/infiniband"):
    ENVIRONMENT |= {"OMPI_MCA_btl": "^ofi,uct", "OMPI_MCA_pml": "ob1"}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
# Of all trainers that name no number of threads, whatever is exported.
os.environ["OMP_NUM_THREADS"] = ENVIRONMENT["OMP_NUM_THREADS"]
if not os.environ.get("HOME"):  # Open MPI does not start without, and reads what lies there
    _home = tempfile.TemporaryDirectory(prefix="gossipgrad-home-")
    os.environ["HOME"] = _home.name
if "GOSSIPGRAD_DATA" not in os.environ and (ROOT.parent / "shared" / "data").is_dir():
    os.environ["GOSSIPGRAD_DATA"] = str(ROOT.parent / "shared" / "data")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    import suites

    pluginmanager.register(suites)
    help_ = "the device of trainers that name none: as $GOSSIPGRAD_DEVICE; standin: cuda, over tests/cuda/standin"
    parser.addoption("--device", metavar="NAME", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu(reason): of the CPU alone, so it is skipped where --device is another one")
    if (ROOT / "gossipgrad" / "_build.py").exists():
        import cbuild

        os.environ["GOSSIPGRAD_DEVICE_LIBRARY"] = str(cbuild.build_strict(built_objects()))
    device = config.getoption("--device")
    if device == "standin":
        import cuda_standin

        os.environ["GOSSIPGRAD_CUDA_LIBRARY"] = str(cuda_standin.library(built_objects()))
        device = "cuda"
    if device:
        os.environ["GOSSIPGRAD_DEVICE"] = device


def default_device() -> str:
    """What computes where a trainer names no device."""
    return os.environ.get("GOSSIPGRAD_DEVICE") or "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    device = default_device()
    for item in items if device != "cpu" else []:
        for mark in item.iter_markers("cpu"):
            item.add_marker(pytest.mark.skip(reason=f"device {device}: {mark.args[0]}"))


# Started in the background of a script, pytest inherits that SIGINT is ignored, and so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def end_group(process: subprocess.Popen) -> None:
    """End mpiexec and the ranks under it: politely, so that it can take its ranks along, then not."""
    for sign, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def segments() -> set[str]:
    """What Open MPI has in shared memory; killed ranks leave theirs behind."""
    try:
        return {n for n in os.listdir("/dev/shm") if n.startswith(("sm_segment.", "vader_segment."))}
    except OSError:
        return set()


def _in_use(name: str) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in maps.read_text(errors="replace"):
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


# Appeared while something of ours ran; another job of this machine may just have made them, and not mapped them yet.
_left: set[str] = set()


def remove_left_segments() -> None:
    """Those of earlier runs that nobody uses."""
    for name in sorted(_left):
        if not _in_use(name):
            Path("/dev/shm", name).unlink(missing_ok=True)
    _left.clear()


def pytest_sessionfinish() -> None:
    remove_left_segments()


def own_lines(stderr: str) -> list[str]:
    """Lines of gossipgrad itself. What mpiexec says of a rank's end closes with a zero byte, which may be first."""
    lines = (line.lstrip("\0 ") for line in stderr.splitlines())
    return [line for line in lines if line.startswith("gossipgrad: ")]


def run_group(command: list[str], timeout: float = DEADLINE, **options) -> subprocess.CompletedProcess:
    """subprocess.run that on a timeout fails the test and ends all descendants."""
    before = segments()
    options.setdefault("cwd", ROOT)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(process)
        out, err = process.communicate()
        pytest.fail(f"no end within {timeout} s: {' '.join(command)}\nstdout:\n{out}\nstderr:\n{err}")
    finally:
        end_group(process)
        remove_left_segments()
        _left.update(segments() - before)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture(scope="session")
def mpiexec() -> str:
    from gossipgrad.launch import mpiexec

    return mpiexec.find()


# What mpiexec says where it could not open its own socket, once in some thousand starts on a busy machine: no rank has
# run then.
NOT_STARTED = "The PMIx server's listener thread failed to start"


@pytest.fixture
def mpirun(mpiexec):
    """mpirun(n, "source text" | ["script.py", ...] | ["-m", ...], timeout=, env=, check=) -> CompletedProcess.

    Python under n ranks. check (default True): a return code other than 0 fails the test with both outputs.
    """

    def run(n, script_or_args, timeout=DEADLINE, *, env=None, cwd=ROOT, check=True):
        what = ["-c", script_or_args] if isinstance(script_or_args, str) else [str(a) for a in script_or_args]
        command = [mpiexec, "-n", str(n), "--bind-to", "none", sys.executable, *what]
        options: dict[str, Any] = {"cwd": cwd, "env": {**os.environ, **(env or {})}}
        done = run_group(command, timeout, **options)
        if NOT_STARTED in done.stderr:
            done = run_group(command, timeout, **options)
        if check and done.returncode:
            pytest.fail(f"rc {done.returncode}: {what}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}")
        return done

    return run


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(8)


@pytest.fixture
def no_forced_backend(monkeypatch):
    """Trainers that name no backend choose it, whatever is exported."""
    monkeypatch.delenv("GOSSIPGRAD_BACKEND", raising=False)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with mnist/ and the other sets; skips where this machine has none."""
    folder = os.environ.get("GOSSIPGRAD_DATA")
    if folder is None:
        pytest.skip("GOSSIPGRAD_DATA is not set and ../shared/data does not exist")
    path = Path(folder).resolve()
    assert path.is_dir(), f"GOSSIPGRAD_DATA={folder} is no folder"
    return path


@pytest.fixture(scope="session")
def objects() -> Path:
    """The folder with the object files of the core in use: the tests need a source tree that was built."""
    return built_objects()


def built_objects() -> Path:
    folder = ROOT / runpy.run_path(str(ROOT / "gossipgrad" / "_build.py"))["OBJECTS"]  # without loading the core
    assert (folder / "libgossipgrad.a").exists(), f"{folder}: build the core in this tree: pip install -e ."
    return folder


@pytest.fixture(scope="session")
def scratch_project(tmp_path_factory) -> Path:
    """A copy of the build files around a C core of a few lines, to try the build on."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tools").mkdir()
    for name in ("setup.py", "tools/toolchain.py", "pyproject.toml", "MANIFEST.in", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "README.md").write_text("scratch\n")
    (folder / "gossipgrad" / "launch").mkdir(parents=True)
    for name in ("__init__.py", "preload.py"):
        shutil.copy(ROOT / "gossipgrad" / "launch" / name, folder / "gossipgrad" / "launch")
    (folder / "gossipgrad" / "__init__.py").write_text("")
    for name, text in SCRATCH_SOURCES.items():
        path = folder / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


SCRATCH_SOURCES = {
    "base/a.h": "#define GG_ANSWER 42\nint gg_answer(void);\n",
    "base/a.c": '#include "base/a.h"\nint gg_answer(void)\n{\n    return GG_ANSWER;\n}\n',
    "base/alone.c": "int gg_alone;\n",
    "comm/mpi/m.c": "#include <mpi.h>\nint gg_mpi(char *text);\nint gg_mpi(char *text)\n{\n    int n = 0;\n"
    "    return MPI_Get_library_version(text, &n);\n}\n",
    "cpu/rows/k_kernels.c": "#define JOIN2(a, b) a##_##b\n#define JOIN(a, b) JOIN2(a, b)\n"
    "void JOIN(gg_add, GG_ISA)(float *restrict x, const float *restrict y, int n);\n"
    "void JOIN(gg_add, GG_ISA)(float *restrict x, const float *restrict y, int n)\n{\n"
    "    for (int i = 0; i < n; i++)\n        x[i] += 2.0f * y[i];\n}\n",
    "python/module.c": '#include <Python.h>\n#include "base/a.h"\nint gg_mpi(char *text);\n'
    "static PyObject *facts(PyObject *self, PyObject *none)\n{\n    char text[16384];\n    (void)self;\n"
    "    (void)none;\n"
    '    gg_mpi(text);\n    return Py_BuildValue("is", gg_answer(), text);\n}\n'
    'static PyMethodDef methods[] = {{"facts", facts, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};\n'
    'static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods, NULL, NULL, NULL, NULL};\n'
    "PyMODINIT_FUNC PyInit__core(void)\n{\n    return PyModule_Create(&module);\n}\n",
}
