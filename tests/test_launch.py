"""gossipgrad run: the line it builds, the environment it makes, signals, errors."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DEADLINE, ENVIRONMENT, ROOT, end_group

from gossipgrad import _launch, _preload

RUN = [sys.executable, "-c", "import sys; from gossipgrad import _launch; sys.exit(_launch.main(sys.argv[1:]))"]


@pytest.fixture
def bare(monkeypatch):
    """An environment in which nobody has set anything."""
    for name in [*ENVIRONMENT, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "GOSSIPGRAD_MPIEXEC", "SLURM_NNODES"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_launch, "usable_cores", lambda: 4)
    monkeypatch.setattr(_launch, "_narrowed", lambda: False)
    monkeypatch.setattr(_launch, "flavour", lambda mpiexec: "openmpi5")
    monkeypatch.setattr(_launch, "find_mpiexec", lambda: "mpiexec")
    monkeypatch.setattr(_preload, "fast_fabric", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return monkeypatch


def words(*argv):
    command, made, _ = _launch.plan(list(argv))
    return " ".join(command[: command.index(sys.executable)]), made, command[command.index(sys.executable) :]


def test_ranks_that_fit_are_bound(bare):
    line, made, inner = words("-n", "4", "train", "--model", "lenet")
    assert line == "mpiexec -n 4 --bind-to core --map-by core"
    assert inner == [sys.executable, "-m", "gossipgrad", "train", "--model", "lenet"]
    assert made["OMP_NUM_THREADS"] == "1" and "OMP_WAIT_POLICY" not in made
    assert made["OMPI_ALLOW_RUN_AS_ROOT"] == made["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert (made["OMPI_MCA_btl"], made["OMPI_MCA_pml"]) == ("^ofi,uct", "ob1")
    assert not any("oversubscribe" in value for value in made.values())


def test_more_ranks_than_cores(bare):
    line, made, _ = words("-n", "5", "train")
    assert line == "mpiexec -n 5 --bind-to none"
    assert made["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe" and made["OMP_WAIT_POLICY"] == "passive"
    bare.setattr(_launch, "flavour", lambda mpiexec: "openmpi4")
    assert words("-n", "5", "train")[1]["OMPI_MCA_rmaps_base_oversubscribe"] == "1"


def test_threads(bare):
    for argv in (["-n", "2", "train", "--threads", "2"], ["-n", "2", "--threads", "2", "train"]):
        line, made, inner = words(*argv)
        assert line == "mpiexec -n 2 --bind-to core --map-by slot:PE=2" and made["OMP_NUM_THREADS"] == "2"
        assert inner[-2:] == ["--threads", "2"]
    # threads beyond the cores: unbound, but no more ranks than cores
    line, made, _ = words("-n", "2", "train", "--threads=3")
    assert line == "mpiexec -n 2 --bind-to none" and "PRTE_MCA_rmaps_default_mapping_policy" not in made
    bare.setenv("OMP_NUM_THREADS", "2")
    line, made, _ = words("-n", "2", "train")
    assert "slot:PE=2" in line and "OMP_NUM_THREADS" not in made
    with pytest.raises(_launch.LaunchError, match="contradict"):
        words("-n", "2", "--threads", "2", "train", "--threads", "1")


def test_what_the_user_set_stays(bare):
    bare.setenv("OMPI_MCA_pml", "ucx")
    bare.setenv("OMP_WAIT_POLICY", "active")
    made = words("-n", "9", "train")[1]
    assert "OMPI_MCA_pml" not in made and "OMP_WAIT_POLICY" not in made
    bare.setenv("GOSSIPGRAD_MPI_DEFAULTS", "0")
    assert "OMPI_MCA_btl" not in words("-n", "9", "train")[1]


def test_options_for_mpiexec_and_hosts(bare):
    line, _, _ = words("-n", "2", "--mpi", "--bind-to none --tag-output", "train")
    assert line == "mpiexec -n 2 --bind-to none --tag-output"
    assert words("-n", "2", "--bind", "none", "train")[0] == "mpiexec -n 2 --bind-to none"
    line, made, _ = words("-n", "16", "--hosts", "a:8,b:8", "train")
    assert "--host a:8,b:8" in line and "-x OMP_NUM_THREADS" in line and "--map-by slot" in line
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in made
    bare.setenv("SLURM_NNODES", "4")
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in words("-n", "16", "train")[1]


def test_other_mpi(bare):
    bare.setattr(_launch, "flavour", lambda mpiexec: "other")
    line, made, _ = words("-n", "2", "train")
    assert line == "mpiexec -n 2 -bind-to core" and not any(name.startswith("OMPI") for name in made)


def test_a_confined_process_is_not_bound(bare):
    bare.setattr(_launch, "_narrowed", lambda: True)  # mpiexec would bind outside of the allowed CPUs
    assert words("-n", "1", "train")[0] == "mpiexec -n 1 --bind-to none"


def test_full_dev_shm(bare):
    bare.setattr(_launch, "_shared_memory_for", lambda ranks: False)
    assert os.path.isdir(words("-n", "2", "train")[1]["OMPI_MCA_btl_sm_backing_directory"])


def test_scripts(bare, tmp_path):
    script = tmp_path / "own.py"
    script.write_text("")
    assert words("-n", "2", str(script), "--threads", "7")[2] == [sys.executable, str(script), "--threads", "7"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "-n RANKS is missing"),
        (["train"], "-n RANKS is missing"),
        (["-n", "0", "train"], "'0'"),
        (["-n", "two", "train"], "'two'"),
        (["-n", "-3", "train"], "'-3'"),
        (["-n"], "wants a value"),
        (["-n", "2"], "what shall the ranks run"),
        (["-n", "2", "--bogus", "train"], "--bogus"),
        (["-n", "2", "--threads", "x", "train"], "'x'"),
        (["-n", "2", "--bind", "socket", "train"], "'socket'"),
        (["-n", "2", "missing.py"], "missing.py"),
    ],
)
def test_errors(bare, capfd, argv, text):
    assert _launch.main(argv) == 2
    err = capfd.readouterr().err
    assert text in err and err.startswith("gossipgrad: ") and len(err.splitlines()) == 1


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.delenv("GOSSIPGRAD_MPIEXEC", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(_preload, "build_facts", lambda: (_ for _ in ()).throw(ImportError()))
    with pytest.raises(_launch.LaunchError, match="no mpiexec found"):
        _launch.find_mpiexec()
    found = tmp_path / "mpiexec"
    found.write_text("#!/bin/sh\n")
    found.chmod(found.stat().st_mode | stat.S_IXUSR)
    assert _launch.find_mpiexec() == str(found)
    monkeypatch.setenv("GOSSIPGRAD_MPIEXEC", "/nowhere/mpiexec")
    with pytest.raises(_launch.LaunchError, match="/nowhere"):
        _launch.find_mpiexec()


def test_world_size():
    assert _launch.launcher_world_size({}) is None
    assert _launch.launcher_world_size({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert _launch.launcher_world_size({"PMI_SIZE": "3", "PMI_RANK": "1"}) == 3
    assert _launch.launcher_world_size({"SLURM_STEP_NUM_TASKS": "8"}) is None  # a shell in a batch job
    assert _launch.launcher_world_size({"SLURM_STEP_NUM_TASKS": "8", "PMIX_RANK": "0"}) == 8
    assert _launch.launcher_rank({"OMPI_COMM_WORLD_RANK": "2"}) == 2


def test_inside_a_rank(bare, capfd):
    bare.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert _launch.main(["-n", "2", "train"]) == 2
    assert "itself a rank" in capfd.readouterr().err


def launched(argv, **options):
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    return subprocess.Popen(
        [*RUN, *argv],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


@pytest.mark.parametrize("ranks", [1, 2, len(os.sched_getaffinity(0)) + 2])
def test_it_runs(ranks, tmp_path):
    """As whoever we are, from an environment in which nothing is set."""
    script = tmp_path / "own.py"
    script.write_text(
        "import os, sys\n"
        "from gossipgrad._launch import launcher_rank, launcher_world_size\n"
        "cpus = ','.join(map(str, sorted(os.sched_getaffinity(0))))\n"
        "line = f'rank {launcher_rank()} of {launcher_world_size()} cpus {cpus} '\n"
        "sys.stdout.write(line + os.environ['OMP_NUM_THREADS'] + ' ' + sys.argv[1] + chr(10))\n"
    )
    process = launched(["-n", str(ranks), str(script), "an argument"])
    try:
        out, err = process.communicate(timeout=DEADLINE)
    finally:
        end_group(process)
    assert process.returncode == 0, err
    found = re.findall(r"rank (\d+) of (\d+) cpus (\S+) 1 an argument", out)
    assert sorted(int(r) for r, _, _ in found) == list(range(ranks)) and {s for _, s, _ in found} == {str(ranks)}
    cores = _launch.usable_cores()
    if ranks <= cores and not _launch._narrowed():
        assert len({c for _, _, c in found}) == ranks, "each rank on a core of its own"
    assert re.search(rf"mpiexec -n {ranks} .*{re.escape(str(script))} 'an argument'$", err.strip(), re.M)


def test_print(tmp_path):
    process = launched(["--print", "-n", "2", "train", "--lr", "0.1"])
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0 and re.search(r"mpiexec -n 2 .* -m gossipgrad train --lr 0.1$", out.strip()), err


def test_return_code(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("raise SystemExit(7)\n")
    process = launched(["-n", "2", str(script)])
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 7


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks(sign, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(os.environ['OMPI_COMM_WORLD_RANK'] + '.pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    process = launched(["-n", "2", "--mpi", f"--wdir {tmp_path}", str(script)])
    try:
        deadline = time.monotonic() + DEADLINE
        while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        pids = [int(p.read_text()) for p in tmp_path.glob("*.pid")]
        assert len(pids) == 2
        os.kill(process.pid, sign)  # to the launcher alone: it has become mpiexec
        process.communicate(timeout=DEADLINE)
        assert process.returncode != 0
        deadline = time.monotonic() + DEADLINE
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        end_group(process)
