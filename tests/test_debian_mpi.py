"""tests/test_mpi.py on Debian's MPICH and Open MPI, built and unpacked beside this tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, run_group


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mpich", "openmpi"])
def test_debian_mpi(kind):
    if shutil.which("apt-cache") is None or subprocess.run(["apt-cache", "show", kind], capture_output=True).returncode:
        pytest.skip("wants Debian's package lists: apt-get update")
    environ = {**os.environ, "PYTHON": sys.executable}
    done = run_group([str(ROOT / "tests" / "debian_mpi.sh"), kind], env=environ, timeout=3 * 3600)
    assert done.stdout.endswith("debian_mpi: fine\n"), done.stdout + done.stderr
