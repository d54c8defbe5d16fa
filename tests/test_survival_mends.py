"""A process of `gossipgrad run --survive` dies while the others mend the step that another death has broken."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from conftest import run_group
from test_survival_allreduce import check_once
from test_survival_net import SCRIPT

# The launcher's keeper of views. Rank 1 stands still from its report on, so the next view begins with it, and its
# members wait for it in the mend. Then it is killed.
LAUNCHER = """
import os, signal, struct, sys, time
from gossipgrad import _core
from gossipgrad.launch import net_launcher

REPORT_OF = 3  # csrc/comm/view_pages.c: rank_page

class Keeper:
    def __init__(self, keeper, job):
        self.keeper, self.job, self.phase, self.stopped = keeper, job, "run", None
        self.pages = _core.ViewPages(job.views, job.most)

    def __getattr__(self, name):
        return getattr(self.keeper, name)

    def stop(self):
        self.stopped = next(process for process, rank in self.job.running.items() if rank == 1)
        os.kill(self.stopped, signal.SIGSTOP)
        while open(f"/proc/{self.stopped}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def poll(self):
        if self.phase == "goal" and self.stopped is None:
            if struct.unpack_from("=q", self.pages.told(1), 8 * REPORT_OF)[0] == 0:
                return self.phase
            self.stop()
        self.phase = self.keeper.poll()
        if self.stopped and self.keeper.view()["view"] == 1 and self.phase == "run":
            os.kill(self.stopped, signal.SIGKILL)
        return self.phase

keep = net_launcher.Job.keep
net_launcher.Job.keep = lambda job, least: Keeper(keep(job, least), job)
sys.exit(net_launcher.main())
"""


def test_one_in_the_mend_of_a_step(tmp_path):
    """The change has the dead of both views, and the step counts for all ranks or for none."""
    launcher, script, folder = tmp_path / "launcher.py", tmp_path / "script.py", tmp_path / "job"
    launcher.write_text(LAUNCHER)
    script.write_text(SCRIPT)
    folder.mkdir()
    case = {"deaths": [{"rank": 2, "at": "step 8"}], "strategy": "gg.AllReduce()", "epochs": 1, "delay": 0.002}
    command = [sys.executable, str(launcher), "-n", "4", "--survive", "1", str(folder), sys.executable, str(script)]
    done = run_group(command, 60, env={**os.environ, "CASE": json.dumps(case)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    (view,) = found["views"]
    assert (view["view"], view["ranks"], sorted(view["died"])) == (2, [0, 3], [1, 2]) and len(view["last_steps"]) == 2
    assert len(set(found["hashes"])) == 1
    check_once(np.array(found["weights"]))
