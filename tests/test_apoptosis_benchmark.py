"""benchmarks/apoptosis.py: what magnitude pruning removes is right, and the script runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gossipgrad as gg

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import apoptosis  # noqa: E402

pytestmark = pytest.mark.full

SIZES = {
    "mnist_mlp": {"fc1": 9, "fc2": 20, "fc3": 10},
    "lenet": {"conv1": 7, "conv2": 9, "fc1": 33},
    "cifar_quick": {"conv1": 20, "conv2": 10, "conv3": 12, "fc1": 7},
    "char_lstm": {"rnn": 30},
}


@pytest.mark.parametrize("name", SIZES)
def test_without_units_that_nobody_reads_the_outputs_are_the_same(name):
    task, sizes, draw = apoptosis.TASKS[name], SIZES[name], np.random.default_rng(0)
    net = task.net()
    weights, units = net.weights(0), net.units
    kept = {layer: np.sort(draw.permutation(units[layer])[:size]) for layer, size in sizes.items()}
    small = net.resized(sizes)
    unheard = {key: array.copy() for key, array in weights.items()}
    for layer, indices in kept.items():
        gone = np.setdiff1d(np.arange(units[layer]), indices)
        recurrent = [key for key in weights if "weight_hh" in key or key.endswith("weight_ih_l1")]
        for key in [f"{reader}.weight" for reader in task.readers[layer]] + recurrent:
            unheard[key].reshape(len(unheard[key]), units[layer], -1)[:, gone] = 0
    net.load_weights(unheard)
    small.load_weights(apoptosis.remove(unheard, kept, task.readers))
    x = draw.standard_normal((5, *net.inputs[0].shape)).astype(np.float32)
    if name == "char_lstm":
        x = draw.integers(0, 65, (5, 64)).astype(np.int32)
    outputs = []
    for one in (net, small):
        with gg.Trainer(one) as trainer:
            outputs.append(trainer.predict(x))
    assert np.abs(outputs[0]).max() > 0
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5 * np.abs(outputs[0]).max())


def test_magnitude_pruning_keeps_the_units_of_the_largest_norm():
    pytest.importorskip("torch")
    weights = {"a.weight": np.float32([[3, 0], [1, 1], [0, 2], [5, 5]]), "a.bias": np.zeros(4, np.float32)}
    assert apoptosis.strongest(weights, {"a": 2})["a"].tolist() == [0, 3]
    gates = np.ones((8, 3), np.float32)  # two hidden units; what enters the second gate of unit 1 is larger
    gates[3] = 2
    weights = {"r.weight_ih_l0": gates, "r.weight_hh_l0": np.ones((8, 2), np.float32)}
    assert apoptosis.strongest(weights, {"r": 1})["r"].tolist() == [1]


def test_the_benchmark_runs(data_dir, tmp_path):
    words = [sys.executable, BENCHMARKS / "apoptosis.py", "--quick", "--tasks", "higgs", "--json", tmp_path / "j"]
    done = subprocess.run(map(str, words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    [line] = json.loads((tmp_path / "j").read_text())
    runs = line["runs"]
    assert {"plain", "apoptosis", "small"} <= set(runs)
    assert runs["plain"]["parameters"] == 189601 > runs["apoptosis"]["parameters"] == runs["small"]["parameters"]
    assert all(len(one["epochs"]) == 2 for one in runs.values())
    assert "28-300-300-300-1, one rank: 1 seed" in done.stdout
