"""The core cross-compiled for aarch64, and its C programs under qemu-user."""

from __future__ import annotations

import os
import sys

import pytest
from conftest import ROOT, run_group


@pytest.mark.long
def test_aarch64():
    environ = {**os.environ, "PYTHON": sys.executable}
    done = run_group([str(ROOT / "tests" / "aarch64.sh")], env=environ, timeout=3600)
    if "NOT TESTED" in done.stdout:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.stdout.endswith("aarch64: clean\n"), done.stdout + done.stderr
