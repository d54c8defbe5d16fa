"""How a process was started: as a rank, by a rank, by a launcher without MPI, and what it may do."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import cli
from gossipgrad.launch import origin

CHILD = "was started by rank 1 of 4, process 1, and has no part in its MPI; allowed here: comm=gossipgrad.Virtual"
LAUNCHER = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "job@1", "PMIX_RANK": "1"}


@pytest.fixture
def environment(monkeypatch):
    """As of a process that nobody has started."""
    monkeypatch.setenv(origin.MARK, "")  # so that it is gone after the test, whoever sets it
    for name in [*os.environ]:
        if re.match("OMPI_COMM|PMI|SLURM|WORLD_SIZE|LOCAL_RANK|TORCHELASTIC|HOROVOD", name) or name == origin.MARK:
            monkeypatch.delenv(name)
    monkeypatch.setattr(origin, "_taken", {})
    return monkeypatch


def set_all(environment, **variables):
    for name, value in variables.items():
        environment.setenv(name, value)


def entries():
    """Every way to a group of ranks."""
    yield lambda: gg.Team()
    yield lambda: gg.Trainer(gg.models.lenet())
    yield lambda: gg.Exchange({"a": np.ones(3, "f4")})
    torch = pytest.importorskip("torch")
    yield lambda: gg.torch.wrap(torch.nn.Linear(2, 2), torch.optim.SGD, comm=None)


def refused(text, capsys):
    for make in entries():
        with pytest.raises(RuntimeError, match=text):
            make()
    for words in (["train", "--epochs", "1"], ["bench"], ["evaluate", "--checkpoint", "x"]):
        assert cli.main(words) == 1
        assert re.search(f"^gossipgrad: error: .*{text}", capsys.readouterr().err)
    assert cli.main(["run", "-n", "2", "train"]) == 2
    assert re.search(f"^gossipgrad: error: run: .*{text}", capsys.readouterr().err)


OTHERS = [
    ({"WORLD_SIZE": "4", "LOCAL_RANK": "0"}, r"torchrun \(WORLD_SIZE=4\), where no MPI.*: gossipgrad run -n 4 script"),
    ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}, r"horovodrun \(HOROVOD_SIZE=2\), where no MPI.*mpiexec -n 2 python"),
    (
        {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"},
        r"srun \(SLURM_STEP_NUM_TASKS=8\) without PMI.*gossipgrad run -n 8 script.py, or srun --mpi=pmix -n 8",
    ),
]


@pytest.mark.parametrize(("variables", "text"), OTHERS)
def test_a_launcher_without_mpi_is_refused_everywhere(variables, text, environment, capsys):
    set_all(environment, **variables)
    refused(text, capsys)
    gg.Team(gg.VirtualCluster(2)).close()


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"WORLD_SIZE": "4"},  # a variable of the user's own
        {"SLURM_STEP_NUM_TASKS": "8"},  # a shell in a batch job
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
    ],
)
def test_one_process_trains_alone(variables, environment):
    set_all(environment, **variables)
    with gg.Team() as team:
        assert team.size == 1


def test_what_a_rank_has_started_is_refused_everywhere(environment, capsys):
    set_all(environment, **LAUNCHER)
    environment.setenv(origin.MARK, f"1 1 4 {origin._checksum(os.environ)}")
    refused(CHILD, capsys)  # it has inherited the connection
    for name in ("PMIX_NAMESPACE", "PMIX_RANK"):
        environment.delenv(name)
    refused(CHILD, capsys)  # it has been taken out
    assert origin.launcher_world_size() is None and origin.launcher_rank() is None
    gg.Team(gg.VirtualCluster(2)).close()


def test_a_job_that_a_rank_has_started_is_one_of_its_own(environment):
    set_all(environment, **LAUNCHER)
    environment.setenv(origin.MARK, f"1 1 4 {origin._checksum(os.environ)}")
    set_all(environment, PMIX_NAMESPACE="job@2", OMPI_COMM_WORLD_SIZE="2")
    assert origin.parent_rank() is None and origin.launcher_world_size() == 2
    origin.claim()
    assert os.environ[origin.MARK].startswith(f"{os.getpid()} 1 2 ")


def test_children_do_not_inherit_the_connection(environment):
    """What belongs to the rank alone goes; what scripts read and users set stays."""
    stays = LAUNCHER | {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash", "PRTE_MCA_x": "1", "PMI_RANK": "1"}
    goes = {"PMIX_SERVER_URI41": "x", "PMIX_SERVER_TMPDIR": "/t", "PMI_FD": "7", "HYDI_CONTROL_FD": "8"}
    goes |= {name: stays.pop(name) for name in ("PMIX_NAMESPACE", "PMIX_RANK")}
    goes |= {"OMPI_MCA_orte_hnp_uri": "y"}
    set_all(environment, **stays, **goes)
    origin.claim()
    assert os.environ[origin.MARK].startswith(f"{os.getpid()} 1 4 ") and origin.parent_rank() is None
    origin.let_go()
    code = "import os; print(*os.environ)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(goes) & set(seen) and set(stays) <= set(seen)
    assert origin.variable("PMIX_SERVER_TMPDIR") == "/t" and origin.launcher_world_size() == 4


def test_a_rank_that_mpi_does_not_know(environment):
    """PMIx started it, the MPI in use does not speak it: it would train alone."""
    code = "import gossipgrad as gg\ntry: gg.Team()\nexcept RuntimeError as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PMIX_RANK": "1"}
    )
    assert "as rank 1, but MPI sees 1: it belongs to another MPI" in done.stdout, done


CHILDREN = """
import multiprocessing, os, subprocess, sys
import numpy as np
import gossipgrad as gg

team = gg.Team()

def work(number):
    assert team.size == 2 and repr(team).endswith(f"rank {team.rank} of 2)")
    for use in (lambda: team.allreduce(np.ones(3)), lambda: gg.Trainer(gg.models.lenet())):
        try: use()
        except RuntimeError as error: assert "allowed" in str(error), error
        else: raise AssertionError("a child had MPI")
    return team.rank, number**2

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(work, range(3)) == [(team.rank, n**2) for n in range(3)]
    child = "import gossipgrad as gg; gg.Team()"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        assert f"was started by rank {team.rank} of 2, process {os.getpid()}" in done.stderr, done
    print(team.allreduce(np.ones(1)))
"""


def test_children_of_ranks(mpirun, tmp_path):
    """Workers of every start method import a script that makes a Team, and MPI goes on in the ranks."""
    script = tmp_path / "own.py"
    script.write_text(CHILDREN)
    done = mpirun(2, [script])
    assert done.stdout == "[2.]\n" * 2 and not done.stderr, done
