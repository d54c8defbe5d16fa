"""benchmarks/compression.py trains what it is told, compressed or not, and says and draws what came of it."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.full


def run(*words):
    command = [sys.executable, "benchmarks/compression.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "rows", "measured"),
    [
        ("tasks --tasks higgs --seeds 2 --modes dense strict", ["dense", "strict", "exact, cyclic"], "auc"),
        ("gossip --tasks lenet --ways gossip slices=4", ["gossip", "slices=4"], "accuracy"),
    ],
    ids=["tasks", "gossip"],
)
def test_it_runs(words, rows, measured, data_dir, tmp_path):
    pytest.importorskip("matplotlib")
    file, plot = tmp_path / "runs.json", tmp_path / "plot.png"
    small = ["--take", "512", "--epochs", "1", "--ranks", "4", "--json", str(file), "--plot", str(plot)]
    done = run(*words.split(), *small)
    assert done.returncode == 0, done.stderr[-2000:]
    runs = json.loads(file.read_text())
    assert len(runs) == len(rows) * (2 if "--seeds" in words else 1) and plot.stat().st_size > 10000
    assert all(0 < one[measured] < 1 and one["bytes"] > 0 for one in runs)
    assert all(one["ratio"] > 3 for one in runs if one.get("mode", "dense") != "dense")
    found = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert [row for row in found if row in rows] == rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gossip --tasks higgs", "--tasks higgs: allowed with gossip: lenet, cifar_quick"),
        ("peers --tasks resnet20", "--tasks resnet20: allowed with peers: lenet"),
        ("peers --lr 0.1", "--lr: peers train at the task's rate"),
    ],
)
def test_what_a_part_does_not_have_is_refused(words, said):
    done = run(*words.split())
    assert done.returncode == 2 and said in done.stderr
