"""The notebooks run from top to bottom, and show what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def executed(name, folder):
    """The outputs of all its cells."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


def test_gossip_in_ten_minutes(tmp_path):
    outputs = executed("gossip_in_ten_minutes.ipynb", tmp_path)
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 2
    lines = "".join(o.get("text", "") for o in outputs).splitlines()
    last = next(line for line in lines if line.startswith("after step 3"))
    assert float(last.split("distance ")[1].split(",")[0]) < 1e-12
    solutions = [
        [float(one) for one in line.split("[")[1].strip("]").split()]
        for line in lines
        if line.startswith(("gossip, rank", "least"))
    ]
    assert len(solutions) == 3
    for one in solutions[:2]:
        assert max(abs(a - b) for a, b in zip(one, solutions[2], strict=True)) < 0.02


def test_the_notebook_runs(tmp_path):
    outputs = executed("gossip_in_a_notebook.ipynb", tmp_path)
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 2
    assert sum("text/html" in o.get("data", {}) for o in outputs) == 2  # the network and a history as tables
    lines = "".join(o.get("text", "") for o in outputs).splitlines()
    found = {line[:22].strip(): line for line in lines if "accuracy" in line}
    accuracy = {name: float(line.split("accuracy ")[1].split(" ")[0]) for name, line in found.items()}
    assert accuracy["gossip"] > 88 and accuracy["all-reduce"] > 88
    distance = {name: float(line.split("distance ")[1].split(",")[0]) for name, line in found.items()}
    assert distance["gossip"] < 0.1 * distance["no exchange"]


def test_apoptosis(data_dir, tmp_path):
    outputs = executed("apoptosis.ipynb", tmp_path)
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 1
    lines = "".join(o.get("text", "") for o in outputs).splitlines()
    assert "left: {'fc1': 11}" in lines, "the ten that were planted, and the one that hears nothing"
    change, largest = next(line for line in lines if line.startswith("largest change")).split(": ")[1].split(", of ")
    assert float(change) < 1e-5 * float(largest)
    found = {line[:12].strip(): line.split("AUC ")[1] for line in lines if "AUC" in line}
    auc = {name: float(line.split(",")[0]) for name, line in found.items()}
    parameters = {name: int(line.split(", ")[1].split()[0].replace(",", "")) for name, line in found.items()}
    assert parameters["all neurons"] == 189601 > 20 * parameters["apoptosis"]
    assert auc["apoptosis"] > auc["all neurons"] - 0.01 > 0.7


def test_ranks_as_engines(tmp_path, monkeypatch):
    pytest.importorskip("ipyparallel")
    pytest.importorskip("mpi4py")
    from gossipgrad.launch.start import find_mpiexec

    monkeypatch.setenv("PATH", str(Path(find_mpiexec()).parent), prepend=os.pathsep)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    outputs = executed("ranks_as_engines.ipynb", tmp_path)
    texts = [o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in outputs]  # of %%px: data
    lines = "\n".join(texts).splitlines()
    for rank in range(4):
        assert f"[stdout:{rank}] rank {rank} of 4 has {rank}.0" in lines
        assert f"[stdout:{rank}] rank {rank} has 1.5" in lines
    said = [line for line in lines if "batch_size=-20" in line]
    assert len(said) == 4 and sum("rank 0: " in line for line in said) == 3
    accuracy = next(line for line in lines if line.startswith("accuracy"))
    assert float(accuracy.split()[1]) > 90 and float(accuracy.split("distance ")[1]) < 0.2
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 1
