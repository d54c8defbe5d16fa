"""Ranks that may die, in a batch job: a signal lets all save, a node never comes, a command is killed."""

from __future__ import annotations

import argparse
import time

import pytest
import test_hosts
from survival_runs import survived
from test_hosts import Fake
from test_net import RUN, wait_for
from test_survival_net import check

from gossipgrad.launch import coordinator

job, coordinated = test_hosts.job, test_hosts.coordinated  # fixtures

SAVES = """
import json, os, signal
import numpy as np
import gossipgrad as gg

class Signals(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        if trainer.rank == 1 and step == 5: signal.raise_signal(signal.SIGUSR1)

x = np.eye(40, dtype=np.float32)
trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(40,)), loss="mean_squared_error")
saving = gg.Checkpoint(json.loads(os.environ["CASE"]), save_on_signal=True)
trainer.fit(x, x[:, :1], epochs=1000, batch_size=2, progress=False, callbacks=[Signals(), saving])
"""


@pytest.mark.core(2)
def test_ranks_that_save_on_a_signal_have_not_died(tmp_path):
    """Else the others would go on, and new ranks would come in their places."""
    saved = tmp_path / "run.safetensors"
    _, errors = survived(tmp_path, SAVES, str(saved), "-n", "2", "--respawn", "1", code=75)
    assert saved.exists() and "ended with" not in errors, errors


def test_a_killed_command_is_the_death_of_its_ranks_alone(job, tmp_path):
    """They must not save then, which would end all nodes."""
    one = job(checkpoint=str(tmp_path / "run.safetensors"), saves=True, epochs=2)
    coordinator_, agent = one.coordinate(), one.agent(0)
    words = [*RUN, "-n", "4", "--nodes", "2", "--node", "1", "--survive", "--save-on-signal", "--lease", "6"]
    run = one.start("run1", [*words, "--coordinator", f"127.0.0.1:{one.port}", str(tmp_path / "script.py")])
    wait_for(one.trains)
    run.kill()
    assert agent.wait(60) == 0 and coordinator_.wait(60) == 0, one.said("agent0")
    check(one.result(), 4, [2, 3], host=True)


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


def test_a_name_that_is_a_loopback_address_is_told():
    """As /etc/hosts of Debian has it for a host's own name."""
    line = coordinator._unreachable("node0", "127.0.1.1")
    assert line.startswith("warning: node0 is 127.0.1.1 here, which other hosts cannot reach")
    for host, at in (("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("node0", "10.0.0.1"), ("node0", "::")):
        assert not coordinator._unreachable(host, at)
