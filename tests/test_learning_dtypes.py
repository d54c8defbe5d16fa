"""benchmarks/learning_dtypes.py trains every way once, from the same start, and says what came of it."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from gossipgrad import _core


@pytest.mark.full
def test_the_benchmark_runs(data_dir, tmp_path):
    ways = ["direct", "bfloat16"] if _core.info()["isa"] in ("avx512", "amx") else ["direct"]
    words = [sys.executable, "benchmarks/learning_dtypes.py", "--tasks", "higgs", "--seeds", "2", "--epochs", "1"]
    words += ["--json", str(tmp_path / "runs.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [(one["seed"], one["way"]) for one in runs] == [(s, w) for s in (0, 1) for w in ways]
    of_seed = {(one["seed"], one["way"]): one["train_loss"] for one in runs}
    seeds = abs(of_seed[0, "direct"] - of_seed[1, "direct"])
    assert all(0 < abs(of_seed[0, "direct"] - of_seed[0, way]) < seeds for way in ways[1:]) and seeds > 0
    again = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0 and "seed 0" not in again.stdout
    rows = [line.split()[0] for line in again.stdout.splitlines() if "±" in line]
    assert rows == ways
