"""Ranks that may die, in a batch job: a signal lets all save, a node never comes, a command is killed."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import test_hosts
from survival_runs import survived
from test_hosts import Fake
from test_net import RUN, wait_for
from test_survival_net import check

from gossipgrad.launch import agent, coordinator

job, coordinated = test_hosts.job, test_hosts.coordinated  # fixtures

SAVES = """
import json, os, signal
import numpy as np
import gossipgrad as gg

class Signals(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        if me == 1 and step == 5: os.kill(os.getpid(), signal.SIGKILL)
        if me == 0 and any(view["joined"] for view in trainer.history.views): signal.raise_signal(signal.SIGUSR1)

me = int(os.environ["GOSSIPGRAD_NET_RANK"])
x = np.ones((10**5, 1), np.float32)  # the end of an epoch, which saves as well, does not come
trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(1,)), loss="mean_squared_error")
saving = gg.Checkpoint(json.loads(os.environ["CASE"]), save_on_signal=me < 2)
trainer.fit(x, x, epochs=1, batch_size=1, progress=False, callbacks=[Signals(), saving])
"""


@pytest.mark.core(2)
def test_ranks_that_save_on_a_signal_have_not_died(tmp_path):
    """Else the others would go on, and new ranks would come in their places. A new rank saves as the others do."""
    saved = tmp_path / "run.safetensors"
    _, errors = survived(tmp_path, SAVES, str(saved), "-n", "2", "--respawn", "2", code=75, seconds=150)
    assert saved.exists() and "rank 2 (new) joins" in errors and "ended with" not in errors, errors


def test_a_killed_command_is_the_death_of_its_ranks_alone(job, tmp_path):
    """They must not save then, which would end all nodes."""
    one = job(checkpoint=str(tmp_path / "run.safetensors"), saves=True, epochs=2)
    coordinator_, agent = one.coordinate(), one.agent(0)
    words = [*RUN, "-n", "4", "--nodes", "2", "--node", "1", "--survive", "--save-on-signal", "--lease", "6"]
    run = one.start("run1", [*words, "--coordinator", f"127.0.0.1:{one.port}", str(tmp_path / "script.py")])
    wait_for(one.trains)
    run.kill()
    assert agent.wait(60) == 0 and coordinator_.wait(60) == 0, one.said("agent0")
    check(one.result(), 4, [2, 3])


def test_a_node_that_never_comes_ends_a_job_that_waits_no_longer(coordinated):
    begin, said = coordinated
    one, port = begin()
    agent = Fake(port, 0).hello()
    wait_for(lambda: one.facts)
    one.wait, one.wait_ends = 600.0, time.monotonic() - 1
    assert agent.hears("end")["code"] == 1
    assert "node 1 has not come within 600 s (--wait): all end" in said


def test_the_limit_of_a_wait_is_checked_and_begins_at_once(coordinated, monkeypatch):
    _, said = coordinated
    monkeypatch.setenv("GOSSIPGRAD_SECRET", test_hosts.KEY)
    for wrong in (0.0, float("nan")):
        words = argparse.Namespace(address="127.0.0.1:1", wait=wrong)
        assert coordinator.serve(words) == 2 and f"--wait is {wrong:g}; allowed: more than 0" in said[-1]
    monkeypatch.setattr(coordinator.signal, "signal", lambda *_: None)
    assert coordinator.serve(argparse.Namespace(address=f"127.0.0.1:{test_hosts.free_port()}", wait=1e-9)) == 1
    assert said[-1] == "no node has come within 1e-09 s (--wait): all end"


@pytest.mark.parametrize(("running", "code"), [({}, 0), ({1: 0}, 1)])
def test_ranks_that_have_ended_well_need_no_coordinator(running, code, monkeypatch):
    """After the grace the job's code is that of its ranks."""
    one = agent.Agent.__new__(agent.Agent)
    for name, value in {"node": 0, "grace": 60.0, "running": running, "wanted": [], "line": None, "code": 0}.items():
        setattr(one, name, value)
    one.deadline, one.told_end, one.cut = None, False, False
    monkeypatch.setattr(one, "send", lambda number: None)
    one._grace_over(time.monotonic())
    assert one.cut and one.code == code and (one.deadline is None) == (not running)


def test_a_name_that_is_a_loopback_address_is_told():
    """As /etc/hosts of Debian has it for a host's own name."""
    line = coordinator._unreachable("node0", "127.0.1.1")
    assert line.startswith("warning: node0 is 127.0.1.1 here, which other hosts cannot reach")
    for host, at in (("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("node0", "10.0.0.1"), ("node0", "::")):
        assert not coordinator._unreachable(host, at)


PAGE = pathlib.Path(__file__).parent.parent / "docs" / "survival.md"
TRAINS = """
import os, signal, sys, time
import numpy as np
import gossipgrad as gg

class Begins(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        open(f"began{trainer.rank}", "w").close()
        trainer.stop = "--resume" in sys.argv

x = np.eye(40, dtype=np.float32)
slow = gg.Straggler(probability=1.0, delay=0.005)
trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(40,)), loss="mean_squared_error", straggler=slow)
resume = "run.safetensors" if "--resume" in sys.argv else None
trainer.fit(x, x[:, :1], epochs=10**6, batch_size=2, progress=False, resume=resume,
            callbacks=[Begins(), gg.Checkpoint("run.safetensors", save_on_signal=True)])
"""
# Two nodes, each a process; a signal to srun goes to all of them.
SLURM = {
    "srun": """set -m
while [[ $1 == --* ]]; do shift; done
trap 'for process in $(jobs -p); do kill -USR1 -- -$process; done' USR1
for node in 0 1; do SLURM_NODEID=$node "$@" & done
for process in $(jobs -p); do wait $process || wait $process || code=$?; done
exit ${code:-0}""",
    "scontrol": 'echo "$@" >>scontrol.log',
    "sinfo": "exit 0",
    "hostname": "echo 127.0.0.1",
}


@pytest.mark.full
def test_the_pages_job_saves_is_queued_again_and_resumes(tmp_path, monkeypatch):
    """The lines as they stand, but for numbers and the script."""
    text = PAGE.read_text()
    text = text[text.index("## In a batch job") : text.index("## In a virtual cluster")]
    job_, node, _ = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    (tmp_path / "job.sh").write_text(job_)
    small = node.replace("8 * SLURM", "1 * SLURM").replace("sleep 400", "sleep 0").replace('"train ', '"script.py ')
    (tmp_path / "node.sh").write_text(small)
    (tmp_path / "script.py").write_text(TRAINS)
    commands = tmp_path / "bin"
    commands.mkdir()
    here = f'exec {sys.executable} -m gossipgrad "$@"'
    for name, lines in {**SLURM, "gossipgrad": here}.items():
        (commands / name).write_text(f"#!/bin/bash\n{lines}\n")
        (commands / name).chmod(0o755)
    port = next(port for port in range(20000, 30000) if is_free(port))
    monkeypatch.chdir(tmp_path)
    for name, value in {"JOB_ID": port - 20000, "NNODES": 2, "CPUS_PER_TASK": 1}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    batch = subprocess.Popen(["bash", "job.sh"], start_new_session=True)
    try:
        wait_for(lambda: all((tmp_path / f"began{rank}").exists() for rank in (0, 1)))
        batch.send_signal(signal.SIGUSR1)
        assert batch.wait(60) == 75
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGTERM)  # the coordinator ends all
        batch.wait()
    assert (tmp_path / "scontrol.log").read_text() == f"requeue {port - 20000}\n"
    assert (tmp_path / "job.env").stat().st_mode & 0o777 == 0o600
    assert subprocess.run(["bash", "job.sh"], timeout=60, check=False).returncode == 0


def test_the_pages_job_has_the_coordinators_code_after_two_signals(tmp_path):
    text = PAGE.read_text()
    waits = text[text.index("step=$!\n") : text.index("timeout 10 tail")].replace("' USR1\n", "' USR1\ntouch waits\n")
    (tmp_path / "job.sh").write_text(f"""mkfifo ends
(trap '' USR1; read line <ends; exit 75) &
coordinator=$!
(trap 'echo >>signals' USR1; touch passes; while [ ! -e over ]; do sleep 0.02; done) &
{waits}
touch over
exit $code""")
    job_ = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, start_new_session=True)
    try:
        wait_for(lambda: all((tmp_path / name).exists() for name in ("ends", "waits", "passes")))
        signals = tmp_path / "signals"
        for count in (1, 2):
            time.sleep(0.1)  # it waits
            job_.send_signal(signal.SIGUSR1)
            wait_for(lambda count=count: signals.exists() and len(signals.read_text()) == count)
        time.sleep(0.1)
        (tmp_path / "ends").write_text("\n")
        assert job_.wait(10) == 75
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job_.pid, signal.SIGKILL)


def is_free(port):
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
