"""gossipgrad run: the line it builds, the environment it makes, signals, errors."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import DEADLINE, ENVIRONMENT, ROOT, end_group, run_group

from gossipgrad import cli
from gossipgrad.compare import processes
from gossipgrad.launch import environment, leftovers, mpiexec, preload, start, supervisor

RUN = [sys.executable, "-c", "import sys; from gossipgrad.launch import start; sys.exit(start.main(sys.argv[1:]))"]


@pytest.fixture
def bare(monkeypatch):
    """An environment in which nobody has set anything."""
    for name in [*ENVIRONMENT, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "GOSSIPGRAD_MPIEXEC", "SLURM_NNODES"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mpiexec, "usable_cores", lambda: 4)
    monkeypatch.setattr(mpiexec, "narrowed", lambda: False)
    monkeypatch.setattr(mpiexec, "flavour", lambda program: "openmpi5")
    monkeypatch.setattr(mpiexec, "find", lambda: "mpiexec")
    monkeypatch.setattr(preload, "fast_fabric", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return monkeypatch


SCRIPT = os.path.join(os.path.dirname(sys.executable), "gossipgrad")  # of the command line


def words(*argv):
    plan = start.plan(list(argv))
    place = next(i for i, word in enumerate(plan.command) if word in (sys.executable, SCRIPT))
    line = " ".join(plan.command[:place])
    assert (" --stdin none" in line) == plan.openmpi
    return line.replace(" --stdin none", ""), plan.environment, plan.command[place:]


def test_ranks_that_fit_are_bound(bare):
    line, made, inner = words("-n", "4", "train", "--model", "lenet")
    assert line == "mpiexec -n 4 --bind-to core --map-by core"
    assert inner == [SCRIPT, "train", "--model", "lenet"]
    assert made["OMP_NUM_THREADS"] == "1" and "OMP_WAIT_POLICY" not in made
    assert made["OMPI_ALLOW_RUN_AS_ROOT"] == made["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert (made["OMPI_MCA_btl"], made["OMPI_MCA_pml"]) == ("self,sm", "ob1")
    assert not any("oversubscribe" in value for value in made.values())


@pytest.mark.parametrize("script", [True, False])
def test_nothing_of_the_current_folder_is_run(script, tmp_path, monkeypatch):
    """Files that are named like modules, in a folder of somebody else's."""
    names = ("gossipgrad", "numpy", "json", "argparse")
    for name in names:
        (tmp_path / f"{name}.py").write_text("open('executed', 'w'); raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    if not script:
        monkeypatch.setattr(os.path, "exists", lambda path: path != SCRIPT)
    done = subprocess.run(start.rank_command(["train", "--epochs", "x"], False), capture_output=True, text=True)
    assert done.returncode == 2 and "--epochs" in done.stderr, done
    done = subprocess.run(processes.worker_command(), input="", capture_output=True, text=True)
    assert "EOFError" in done.stderr, done
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(f"{name}.py" for name in names)


def test_a_folder_without_room_for_the_launcher(tmp_path, monkeypatch, capsys):
    class Full:
        def __init__(self, dir):  # noqa: A002
            assert dir == str(tmp_path)

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(mpiexec.tempfile, "TemporaryFile", Full)
    assert start.main(["-n", "2", "train"]) == 2
    assert (
        f"run: mpiexec keeps its files in {tmp_path}, which cannot be written to: No space" in capsys.readouterr().err
    )


def test_a_folder_for_the_launcher_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file" / "folder"))
    assert start.main(["-n", "2", "train"]) == 2
    assert f"run: mpiexec keeps its files in {tmp_path}/file/folder, which cannot be" in capsys.readouterr().err


def test_more_ranks_than_cores(bare):
    line, made, _ = words("-n", "5", "train")
    assert line == "mpiexec -n 5 --bind-to none"
    assert made["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe" and made["OMP_WAIT_POLICY"] == "passive"
    bare.setattr(mpiexec, "flavour", lambda program: "openmpi4")
    made = words("-n", "5", "train")[1]
    assert made["OMPI_MCA_rmaps_base_oversubscribe"] == "1" and made["OMPI_MCA_btl"] == "self,vader"


def test_threads(bare):
    for argv in (["-n", "2", "train", "--threads", "2"], ["-n", "2", "--threads", "2", "train"]):
        line, made, inner = words(*argv)
        assert line == "mpiexec -n 2 --bind-to core --map-by slot:PE=2" and made["OMP_NUM_THREADS"] == "2"
        assert inner[-2:] == ["--threads", "2"]
        assert not {"OMP_WAIT_POLICY", "OMPI_MCA_mpi_yield_when_idle"} & set(made)
    # threads beyond the cores: unbound, but no more ranks than cores
    line, made, _ = words("-n", "2", "train", "--threads=3")
    assert line == "mpiexec -n 2 --bind-to none" and "PRTE_MCA_rmaps_default_mapping_policy" not in made
    assert made["OMP_WAIT_POLICY"] == "passive" and made["OMPI_MCA_mpi_yield_when_idle"] == "1"
    bare.setenv("OMP_NUM_THREADS", "2")
    line, made, _ = words("-n", "2", "train")
    assert "slot:PE=2" in line and "OMP_NUM_THREADS" not in made
    assert words("-n", "3", "train")[1]["OMP_WAIT_POLICY"] == "passive"
    line, made, _ = words("-n", "2", "--threads", "1", "train")
    assert "slot:PE" not in line and made["OMP_NUM_THREADS"] == "1"  # what is asked for counts more
    bare.setenv("OMP_NUM_THREADS", "2,3")  # OpenMP's: the second number is for nested regions
    assert "slot:PE=2" in words("-n", "2", "train")[0]
    bare.setenv("OMP_NUM_THREADS", "none")
    with pytest.raises(start.LaunchError, match="OMP_NUM_THREADS is 'none'; allowed: 1 to"):
        words("-n", "2", "train")
    with pytest.raises(start.LaunchError, match="contradict"):
        words("-n", "2", "--threads", "2", "train", "--threads", "1")


@pytest.mark.parametrize(
    ("ranks", "threads", "narrowed", "passive", "yields"),
    [
        (None, "8", False, False, False),  # not under mpiexec
        (1, "8", False, False, False),
        (2, None, False, False, False),  # two threads each fit, if a trainer asks for them
        (2, "2", False, False, False),
        (3, None, False, True, False),  # and here they do not; one each does
        (2, "3,1", False, True, True),
        (5, "1", False, True, True),
        (4, "4", True, False, False),  # bound to four cores each
        (4, "5", True, True, True),
        (3, "none", False, True, False),
        (3, "9" * 30, False, True, True),
    ],
)
def test_how_ranks_of_mpiexec_wait(ranks, threads, narrowed, passive, yields, bare):
    environ = {} if ranks is None else {"OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks)}
    environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
    bare.setattr(mpiexec, "narrowed", lambda: narrowed)
    before = dict(environ)
    start.wait_passively(environ)
    made = {"OMP_WAIT_POLICY": "passive"} if passive else {}
    made |= {"OMPI_MCA_mpi_yield_when_idle": "1"} if yields else {}
    assert environ == before | made
    for own in ({"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}):
        environ = before | own | {"OMPI_MCA_mpi_yield_when_idle": "0"}
        kept = dict(environ)
        start.wait_passively(environ)
        assert environ == kept


def test_threads_that_a_trainer_asks_for_later(bare):
    bare.setattr(environment, "usable_cpus", lambda: 4)
    bare.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.check_threads(2)
        bare.setenv("OMP_WAIT_POLICY", "passive")
        environment.check_threads(3)
    bare.delenv("OMP_WAIT_POLICY")
    with pytest.warns(UserWarning, match="threads=3: the 2 ranks of this machine .*OMP_WAIT_POLICY=passive"):
        environment.check_threads(3)


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
    assert made["OMPI_MCA_btl"] == "^ofi,uct"
    assert "--host a:8,b:8" in line and "-x OMP_NUM_THREADS" in line and "--map-by slot" in line
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in made
    assert words("-n", "5000", "--hosts", "a:2500,b:2500", "train")[0].startswith("mpiexec -n 5000 ")
    bare.setenv("SLURM_NNODES", "4")
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in words("-n", "16", "train")[1]


def test_other_mpi(bare):
    bare.setattr(mpiexec, "flavour", lambda program: "other")
    line, made, _ = words("-n", "2", "train")
    assert line == "mpiexec -n 2 -bind-to core" and not any(name.startswith("OMPI") for name in made)


def test_a_confined_process_is_not_bound(bare):
    bare.setattr(mpiexec, "narrowed", lambda: True)  # mpiexec would bind outside of the allowed CPUs
    assert words("-n", "1", "train")[0] == "mpiexec -n 1 --bind-to none"


def test_full_dev_shm(bare):
    bare.setattr(mpiexec, "_shared_memory_for", lambda ranks: False)
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
        (["-n", "2\u00b2", "train"], "'2\u00b2'; allowed: 1 to 4096"),
        (["-n", "99999999999", "train"], "'99999999999'; allowed: 1 to 4096"),
        (["-n", "2", "--mpi", "'", "train"], '--mpi is "\'": no closing quotation'),
        (["-n", "2", "--bind", "socket", "train"], "'socket'"),
        (["-n", "2", "missing.py"], "missing.py"),
    ],
)
def test_errors(bare, capfd, argv, text):
    assert start.main(argv) == 2
    err = capfd.readouterr().err
    assert text in err and err.startswith("gossipgrad: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--report", "/nowhere/run.json"], "--report /nowhere/run.json: no such folder: /nowhere"),
        (["--checkpoint", "{folder}"], "is a folder; allowed: a file"),
        (["--save-on-signal"], "--save-on-signal: goes with --checkpoint"),
    ],
)
def test_outputs_are_checked_before_ranks_start(bare, capfd, tmp_path, words, text):
    bare.setattr(supervisor, "Supervisor", None)
    given = [word.format(folder=tmp_path) for word in words]
    assert cli.main(["run", "-n", "2", "train", *given]) == 2
    assert text in capfd.readouterr().err


def test_no_mpiexec(monkeypatch, tmp_path):
    monkeypatch.delenv("GOSSIPGRAD_MPIEXEC", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(preload, "build_facts", lambda: (_ for _ in ()).throw(ImportError()))
    with pytest.raises(start.LaunchError, match="no mpiexec found"):
        mpiexec.find()
    found = tmp_path / "mpiexec"
    found.write_text("#!/bin/sh\n")
    found.chmod(found.stat().st_mode | stat.S_IXUSR)
    assert mpiexec.find() == str(found)
    monkeypatch.setenv("GOSSIPGRAD_MPIEXEC", "/nowhere/mpiexec")
    with pytest.raises(start.LaunchError, match="/nowhere"):
        mpiexec.find()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo Hydra build details", "is no Open MPI's, but gossipgrad was built against Open MPI"),
        ("echo of no use >&2; exit 3", "--version failed with exit code 3: of no use"),
    ],
)
def test_an_mpiexec_that_cannot_serve(text, words, monkeypatch, tmp_path, capfd):
    other = tmp_path / "mpiexec"
    other.write_text(f"#!/bin/sh\n{text}\n")
    other.chmod(0o755)
    monkeypatch.setenv("GOSSIPGRAD_MPIEXEC", str(other))
    facts = type("facts", (), {"MPI_FAMILY": "Open MPI", "MPI_VERSION": "5", "MPI_BINDIR": None})
    monkeypatch.setattr(preload, "build_facts", lambda: facts)
    assert start.main(["-n", "2", "train"]) == 2
    assert words in capfd.readouterr().err


def test_world_size():
    assert start.launcher_world_size({}) is None
    assert start.launcher_world_size({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert start.launcher_world_size({"PMI_SIZE": "3", "PMI_RANK": "1"}) == 3
    assert start.launcher_world_size({"SLURM_STEP_NUM_TASKS": "8"}) is None  # a shell in a batch job
    assert start.launcher_world_size({"SLURM_STEP_NUM_TASKS": "8", "PMIX_RANK": "0"}) == 8
    assert start.launcher_rank({"OMPI_COMM_WORLD_RANK": "2"}) == 2


def test_inside_a_rank(bare, capfd):
    bare.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert start.main(["-n", "2", "train"]) == 2
    assert "itself a rank" in capfd.readouterr().err


def launched(argv, **options):
    """Without HOME, as cron starts programs."""
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT and k != "HOME"}
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


@pytest.mark.core(1)
@pytest.mark.parametrize("ranks", [1, 2, len(os.sched_getaffinity(0)) + 2])
def test_it_runs(ranks, tmp_path):
    """As whoever we are, from an environment in which nothing is set."""
    script = tmp_path / "own.py"
    script.write_text(
        "import os, sys\n"
        "from gossipgrad.launch.start import launcher_rank, launcher_world_size\n"
        "cpus = ','.join(map(str, sorted(os.sched_getaffinity(0))))\n"
        "assert not os.stat(os.environ['HOME']).st_mode & 0o022, 'a folder of others'\n"
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
    cores = mpiexec.usable_cores()
    if ranks <= cores and not mpiexec.narrowed():
        assert len({c for _, _, c in found}) == ranks, "each rank on a core of its own"
    assert re.search(rf"mpiexec -n {ranks} .*{re.escape(str(script))} 'an argument'$", err.strip(), re.M)


@pytest.mark.skipif(preload.fast_fabric(), reason="its library decides")
def test_ranks_of_one_host_listen_on_no_network(tmp_path):
    """Nobody on the network can disturb them. Inodes of sockets that listen are in /proc/net.

    MPICH's ranks inherit a socket of mpiexec. Open MPI's mpiexec, the ranks' parent, listens on loopback for them. Its
    socket for daemons has every address, once for IPv4 and once for IPv6; docs/security.md says why.
    """
    script = tmp_path / "own.py"
    script.write_text(
        "import os, pathlib, gossipgrad as gg\n"
        "team = gg.Team()\n"
        "lines = [line.split() for name in ('tcp', 'tcp6') for line in pathlib.Path('/proc/net', name).open()]\n"
        "listening = {f'socket:[{line[9]}]': line[1].partition(':')[0] for line in lines if line[3] == '0A'}\n"
        "def sockets(process):\n"
        "    files = [f'/proc/{process}/fd/{fd}' for fd in range(256)]\n"
        "    return {os.readlink(file) for file in files if os.path.lexists(file)} & set(listening)\n"
        "def text(found): return ' '.join(sorted(listening[one] for one in found))\n"
        "of_mpiexec = sockets(os.getppid())\n"
        "print(f'rank:{text(sockets(os.getpid()) - of_mpiexec)} mpiexec:{text(of_mpiexec)}')\n"
    )
    process = launched(["-n", "2", str(script)])
    out, err = process.communicate(timeout=DEADLINE)
    of_ranks, of_mpiexec = zip(*re.findall(r"^rank:(.*) mpiexec:(.*)$", out, re.M), strict=True)
    assert of_ranks == ("", ""), out + err
    if mpiexec.flavour(mpiexec.find()) != "other":
        every = {"0" * 8: "0.0.0.0", "0" * 32: "::", "0100007F": "127.0.0.1"}  # as /proc has them on x86 and ARM
        names = [every.get(address, address) for address in of_mpiexec[0].split()]
        assert of_mpiexec[0] == of_mpiexec[1]
        assert names in (["0.0.0.0", "::", "127.0.0.1"], ["0.0.0.0", "127.0.0.1"]), names


def test_print(tmp_path):
    process = launched(["--print", "-n", "2", "train", "--lr", "0.1"])
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0 and re.search(r"mpiexec -n 2 .*/gossipgrad train --lr 0.1$", out.strip()), err


def test_return_code(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("raise SystemExit(7)\n")
    process = launched(["-n", "2", str(script)])
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 7


def wait_until(true, what):
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.core(2)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, "twice", "mpiexec", "run"])
def test_signals_reach_the_ranks(sign, tmp_path):
    """Sent to `run` alone, or the end of mpiexec or of `run` itself: nothing is left, and the code says why."""
    script = tmp_path / "own.py"
    script.write_text(
        "import os, pathlib, signal, time\n"
        f"if {sign == 'twice'}: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(os.environ['OMPI_COMM_WORLD_RANK'] + '.pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    process = launched(["-n", "2", "--mpi", f"--wdir {tmp_path}", str(script)])
    try:
        wait_until(lambda: sum(bool(p.read_text()) for p in tmp_path.glob("*.pid")) == 2, "the ranks never started")
        pids = [int(p.read_text()) for p in tmp_path.glob("*.pid")]
        launcher = [pid for pid, parent in supervisor.parents().items() if parent == process.pid]
        if sign == "mpiexec":
            os.kill(launcher[0], signal.SIGKILL)
        elif sign == "run":
            process.kill()
        elif sign == "twice":
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGTERM)
        else:
            os.kill(process.pid, sign)
        _, err = process.communicate(timeout=DEADLINE)
        wait_until(lambda: not any(Path(f"/proc/{p}").exists() for p in [*pids, *launcher]), "processes are left")
        code, text = {
            signal.SIGINT: (130, "gossipgrad: interrupted"),
            signal.SIGTERM: (143, "gossipgrad: terminated"),
            signal.SIGHUP: (129, "gossipgrad: ended, because the terminal was closed"),
            "twice": (130, "gossipgrad: interrupted"),
            "mpiexec": (137, "the launcher was ended by signal 9 (SIGKILL)"),
            "run": (-9, ""),
        }[sign]
        assert process.returncode == code and text in err, err
    finally:
        end_group(process)


@pytest.mark.full
def test_standard_streams(tmp_path):
    """A loop over lines keeps its lines; closed streams do no harm."""
    script = tmp_path / "own.py"
    script.write_text("import sys\nprint('read', repr(sys.stdin.readline()))\n")
    run = f"{sys.executable} -m gossipgrad run -n 1"
    done = run_group(["sh", "-c", f"printf 'a\\nb\\n' | while read x; do echo $x; {run} {script}; done"])
    assert done.stdout.split() == ["a", "read", "''", "b", "read", "''"], done.stderr
    done = run_group(["sh", "-c", f"printf 'a\\n' | {run} --stdin {script}"])
    assert done.stdout == "read 'a\\n'\n", done.stderr
    train = "train --dataset synthetic --epochs 1 --batch-size 500 --lr 0.005"
    for command in (f"{run} {train} >&- 2>&- <&-", f"{run} --nonsense 2>&-; [ $? -eq 2 ]", f"{run} {script} >&-"):
        done = run_group(["sh", "-c", command])
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    done = run_group(["sh", "-c", f"{sys.executable} -m gossipgrad {train} >&-"])
    assert done.returncode == 0 and not done.stdout + done.stderr


SUPERVISE = """
import os, sys
from gossipgrad.launch import supervisor
supervisor._LOOK = supervisor._HUNG = 0.2
sys.exit(supervisor.Supervisor([sys.executable, "-c", sys.argv[1]], os.environ, True, script=True).run())
"""


def supervised(launcher):
    """Supervises this program in place of mpiexec, up to its line "ready"."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, launcher], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def test_a_launcher_that_does_not_end():
    """Open MPI's hangs now and then when all ranks have ended."""
    process = supervised(
        "import subprocess, time\nprint('ready', flush=True)\nsubprocess.run(['sleep', '0.5'])\ntime.sleep(1000)\n"
    )
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and "the ranks have ended, but the launcher had not" in err, err


@pytest.mark.parametrize("waits", [False, True])
def test_an_agent_waits_without_ranks(monkeypatch, waits):
    """For the coordinator: before the start, and after its ranks have died. mpiexec without ranks hangs."""
    monkeypatch.setattr(supervisor, "has_children", lambda process: process == now)
    one = supervisor.Supervisor([], {}, True, waits=waits)
    ended = []
    one.process, one._begin, one._kill = SimpleNamespace(pid=2.0), 0.0, lambda: ended.append(now)
    for now in (0.0, 70.0, 80.0, 2.0, 90.0, 100.0):
        one._look(now)
    assert ended == ([] if waits else [80.0, 100.0])


def test_a_launcher_whose_output_waits_for_its_reader_is_not_hung(monkeypatch):
    """As in a pager, or over a slow line."""
    monkeypatch.setattr(supervisor, "has_children", lambda process: False)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    assert supervisor._is_full(writer) and not supervisor._is_full(-1)
    is_full = supervisor._is_full
    monkeypatch.setattr(supervisor, "_is_full", lambda descriptor: descriptor == 1 and is_full(writer))
    one = supervisor.Supervisor([], {}, True)
    ended = []
    one.process, one._begin, one._had, one._kill = SimpleNamespace(pid=0), 0.0, True, lambda: ended.append(now)
    for now in (1.0, 7.0, 13.0):
        one._look(now)
    while is_full(writer):
        os.read(reader, 65536)
    for now in (14.0, 19.0):
        one._look(now)
    assert ended == [19.0]
    os.close(reader)
    os.close(writer)


def test_agents_alone_wait_without_ranks(monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_SECRET", "0" * 64)
    net = ["-n", "2", "--transport", "net", "--survive"]
    assert start.plan([*net, "--coordinator", "127.0.0.1:1", "train"]).waits
    assert not start.plan([*net, "train"]).waits and not start.plan(["-n", "2", "train"]).waits


def test_a_start_of_many_ranks_says_what_it_waits_for(bare, monkeypatch, capsys):
    """After 5 s, 10 s and so on, until all have loaded the core; nothing is said of a quick start."""
    asleep = subprocess.Popen(["sleep", "1000"])
    loaded = supervisor.have_loaded([os.getpid(), asleep.pid])
    asleep.kill()
    asleep.wait()
    assert loaded == 1
    monkeypatch.setattr(supervisor, "ranks_of", lambda *_: set())
    monkeypatch.setattr(supervisor, "has_children", lambda _: True)

    def said(many, loaded):
        monkeypatch.setattr(supervisor, "have_loaded", lambda _: loaded.pop(0))
        one = supervisor.Supervisor(["mpiexec"], {}, True, many=many)
        one.process, one._begin = asleep, 0.0
        for now in (1.0, 5.0, 6.0, 10.0, 20.0, 90.0):
            one._look(now)
        return capsys.readouterr().err

    found = said(300, [17, 250, 300])
    assert re.findall(r"after (\d+) s (\d+) of 300 ranks have loaded", found) == [("5", "17"), ("10", "250")]
    assert found.endswith("gossipgrad: all 300 ranks have loaded gossipgrad, 20 s after the start; MPI connects them\n")
    assert said(300, [300]).startswith("gossipgrad: all 300 ranks have loaded gossipgrad, 5 s") and said(0, []) == ""
    plans = [start.plan(["-n", str(n), "train"]).many for n in (start._MANY * 4, start._MANY * 4 + 1)]
    assert plans == [0, start._MANY * 4 + 1]


def test_signals_that_are_passed_on_and_a_script_that_saves(tmp_path):
    """USR1 and USR2 go to the launcher, Ctrl-C to the ranks, behind a shell too; they have time to save."""
    rank = (
        "import time\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(1000)\n"
        f"except KeyboardInterrupt:\n    time.sleep(0.5)\n    open({str(tmp_path / 'saved')!r}, 'w')\n"
    )
    process = supervised(
        "import os, signal, subprocess, sys\n"
        "for number in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "    signal.signal(number, lambda number, _: print('signal', int(number), flush=True))\n"
        f"code = {rank!r}\n"
        "shell = ['sh', '-c', '\"$@\"; exit $?', 'sh', sys.executable, '-c', code]\n"
        "process = subprocess.Popen(shell, env={**os.environ, 'PMIX_RANK': '0'})\n"
        "sys.exit(process.wait())\n"
    )
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
        assert process.stdout.readline() == f"signal {int(number)}\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130 and (tmp_path / "saved").exists(), err
    assert "gossipgrad: interrupted: the ranks have 30 s to end" in err


def test_killed_ranks_leave_no_segments():
    """Ctrl-C twice: they cannot remove them any more."""
    name = f"/dev/shm/sm_segment.{os.uname().nodename}.{os.geteuid()}.deadbeef.{os.getpid()}"
    process = supervised(
        "import mmap, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"file = open({name!r}, 'w+b')\n"
        "file.truncate(4096)\n"
        "memory = mmap.mmap(file.fileno(), 4096)\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    try:
        assert os.path.exists(name)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)
        assert process.returncode in (130, 143) and not os.path.exists(name)
    finally:
        Path(name).unlink(missing_ok=True)


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self):
        environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT} | {"PS1": "PROMPT> ", "TERM": "dumb"}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environ)

    def type(self, text, until):
        """What appears after it, to the end of `until`, a pattern."""
        os.write(self.fd, text.encode())
        seen, deadline = "", time.monotonic() + DEADLINE
        while not re.search(until, seen):
            assert time.monotonic() < deadline, seen[-10000:]
            if select.select([self.fd], [], [], 0.1)[0]:
                seen += os.read(self.fd, 65536).decode()
        return seen

    def states(self):
        """Of all processes that the shell started, by number."""
        found = {}
        for pid in supervisor.descendants(self.pid, supervisor.parents()):
            try:
                found[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
        return found

    def close(self):
        os.close(self.fd)
        self.fd = -1


@pytest.mark.full
def test_on_a_terminal(tmp_path):
    """The bar moves; Ctrl-Z stops all, fg goes on; Ctrl-C ends all and says so; so does closing the terminal."""
    path = tmp_path / "run.safetensors"
    train = f"{sys.executable} -m gossipgrad run -n 2 train --epochs 100000 --batch-size 10"
    terminal = Terminal()
    try:
        terminal.type("", "PROMPT> ")
        seen = terminal.type(f"{train} --lr 0.005 --checkpoint {path}\n", r"epoch 3/100000 \[")
        steps = re.findall(r"\repoch 2/100000 \[[#.]+\] (\d+)/500 ", seen)
        assert len(steps) >= 2, "the bar is seen while it moves, not only when a line ends"
        assert len(re.findall(r"^epoch \d+/100000: loss [^\r\n]*\r\n", seen.replace("\x1b[K", "\n"), re.M)) == 2
        terminal.type("\x1a", "(?s)Stopped.*PROMPT> ")
        assert len(terminal.states()) >= 4
        wait_until(lambda: set(terminal.states().values()) == {"T"}, "something did not stop")
        terminal.type("fg\n", r"(?s)epoch \d+/100000: loss.*epoch \d+/100000: loss")
        seen = terminal.type("\x03", "PROMPT> ")
        said = rf"\r\ngossipgrad: interrupted; the last checkpoint is {path} \(epoch \d+\)\r\nPROMPT> $"
        assert re.search(said, seen), seen
        assert "is 130\r" in terminal.type("echo is $?\n", "is \\d+\r\n") and path.exists()
        assert not terminal.states()
        terminal.type(f"{train} --lr 0.005\n", r"epoch 1/100000 \[")
        left = terminal.states()
        assert len(left) >= 4
        terminal.close()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "processes are left")
    finally:
        for pid in [*terminal.states(), terminal.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(terminal.pid, 0)


def test_leftovers(tmp_path):
    """What nobody uses goes; what may be in use, young, another host's or another program's stays."""
    host, age = os.uname().nodename, 600.0
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    temporary.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    files = {
        f"sm_segment.{host}.0.69730001.0": True,
        f"vader_segment.{host}.0.69730001.1": True,
        "gossipgrad-12-1700000000-5-0": True,
        "sm_segment.elsewhere.0.69730001.0": False,
        "someone's file": False,
        f"sm_segment.{host}.0.69730001.7": False,  # young
        f"sm_segment.{host}.0.69730001.8": False,  # mapped
    }
    for name in files:
        (shared / name).write_bytes(bytes(4096))
        os.utime(shared / name, (1, 1))
    os.utime(shared / f"sm_segment.{host}.0.69730001.7")
    folders = {f"ompi.{gone.pid}": (host, True), f"ompi.{os.getpid()}": (host, False), "ompi.999999999": ("b", False)}
    for name, (of, _) in folders.items():
        (temporary / name / "1").mkdir(parents=True)
        (temporary / name / f"pmix.{of}.tool").write_text("")
        os.utime(temporary / name, (1, 1))
    (temporary / "ompi.1234567").symlink_to(shared)
    import mmap

    with open(shared / f"sm_segment.{host}.0.69730001.8", "r+b") as file, mmap.mmap(file.fileno(), 4096):
        leftovers.remove_leftovers(str(shared), str(temporary), age)
    assert {p.name for p in shared.iterdir()} == {name for name, goes in files.items() if not goes}
    left = {p.name for p in temporary.iterdir()}
    assert left == {name for name, (_, goes) in folders.items() if not goes} | {"ompi.1234567"}


def test_the_last_checkpoint(tmp_path):
    import numpy as np

    import gossipgrad as gg
    from gossipgrad.state import checkpoint_files

    assert checkpoint_files.last_checkpoint(None) == ""
    path = tmp_path / "c.safetensors"
    assert checkpoint_files.last_checkpoint(str(path)) == "; no checkpoint was written"
    net = gg.Sequential([gg.Flatten(), gg.Linear(2)], input=(1, 2, 2))
    trainer = gg.Trainer(net, comm=gg.VirtualCluster(2))
    trainer.save(path)
    assert checkpoint_files.last_checkpoint(str(path)) == f"; the last checkpoint is {path} (epoch 0)"

    class Save(gg.Callback):
        every = 3

        def on_step(self, trainer, step):
            trainer.save(path)

    x, y = np.zeros((10, 1, 2, 2), "f4"), np.zeros(10, "i4")
    trainer.fit(x, y, epochs=2, batch_size=1, callbacks=Save(), progress=False)  # of 5 steps each
    assert checkpoint_files.last_checkpoint(str(path)) == f"; the last checkpoint is {path} (step 9, in epoch 2)"
    path.write_bytes(b"damaged")
    assert checkpoint_files.last_checkpoint(str(path)) == f"; see {path}"


@pytest.mark.full
def test_output_that_cannot_be_written_is_an_error(tmp_path):
    """mpiexec would not tell. The ranks train on, and what goes into a file that has room is complete."""
    script = tmp_path / "print.py"
    script.write_text(
        "import os\n"
        "rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "for i in range(20000): print(rank, i)\n"
        f"open({str(tmp_path / 'done')!r} + rank, 'w')\n"
    )
    for path, code in ((tmp_path / "out", 0), ("/dev/full", 1)):
        for left in tmp_path.glob("done*"):
            left.unlink()
        with open(path, "w") as file:
            done = subprocess.run(
                [*RUN, "-n", "2", script], stdout=file, stderr=subprocess.PIPE, text=True, timeout=100
            )
        assert done.returncode == code, done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("gossipgrad: ")]
        assert (
            told
            == ["gossipgrad: error: standard output: No space left on device; the ranks go on, what they print is lost"]
            * code
        )
        assert len(list(tmp_path.glob("done*"))) == 2
    lines = (tmp_path / "out").read_text().splitlines()
    for rank in range(2):
        assert [line for line in lines if line[0] == str(rank)] == [f"{rank} {i}" for i in range(20000)]
