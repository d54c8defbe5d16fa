"""Debian's Slurm on this one machine: srun, sbatch, a signal, a requeue."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from conftest import ROOT, run_group


@pytest.mark.long
def test_slurm():
    if os.geteuid() != 0 or shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("wants root and Slurm: apt-get install slurmctld slurmd slurm-client munge libpmix-dev")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = run_group([str(ROOT / "tests" / "slurm.sh")], env={**os.environ, "PATH": path}, timeout=600)
    assert done.stdout.endswith("slurm: fine\n"), done.stdout + done.stderr
