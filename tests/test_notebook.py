"""The notebooks run from top to bottom, show what they say, and are shipped with their outputs."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest
import run_notebooks
from run_notebooks import NOTEBOOKS

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
SILENT = ("close", "stop_cluster_sync")  # calls that show nothing
# Paths, addresses and hosts of one machine; numbers of processes.
OF_A_MACHINE = r"(?<![\w.:/])/\w+/\w|site-packages|\b(?:\d{1,3}\.){3}\d{1,3}\b|0x[0-9a-f]{6,}|\bpid\b|localhost"


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def texts(output):
    """Whatever of an output is no picture."""
    data = {kind: one for kind, one in output.get("data", {}).items() if kind != "image/png"}
    return json.dumps([output.get("text", ""), output.get("metadata", {}), data])


def kinds(cell):
    """What a cell shows, in order: the stream, or the forms of a result."""
    return [output.get("name") or sorted(output["data"]) for output in cell["outputs"]]


def shows(source):
    """True if a cell's source prints, or ends with a value."""
    tree = ast.parse(re.sub(r"^%%px.*\n", "", source))
    if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" for node in ast.walk(tree)):
        return True
    last = tree.body[-1]
    return isinstance(last, ast.Expr) and not (
        isinstance(last.value, ast.Call) and getattr(last.value.func, "attr", "") in SILENT
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_its_outputs(name):
    """python tests/run_notebooks.py writes them."""
    path = NOTEBOOKS / name
    cells = code(json.loads(path.read_text(encoding="utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        source = "".join(cell["source"])
        assert bool(cell["outputs"]) >= shows(source), source
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr", output
            assert not re.search(OF_A_MACHINE, texts(output)), texts(output)
    assert path.stat().st_size < 300_000
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])


def executed(name, folder):
    """The outputs of all its cells, which are of the kinds that are shipped."""
    for module in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(module)
    path = NOTEBOOKS / name
    cells = code(run_notebooks.executed(path, folder))
    shipped = code(json.loads(path.read_text(encoding="utf-8")))
    assert list(map(kinds, cells)) == list(map(kinds, shipped))
    return [output for cell in cells for output in cell["outputs"]]


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_when_ranks_die(tmp_path):
    outputs = executed("when_ranks_die.ipynb", tmp_path)
    lines = "".join(o.get("text", "") for o in outputs).splitlines()
    samples = [line.split(": ")[1].split(" samples")[0] for line in lines if line.startswith("epoch")]
    assert samples == ["4000"] * 6
    accuracy = [float(line.split("accuracy ")[1].split(" ")[0]) for line in lines if "accuracy" in line]
    assert len(accuracy) == 2 and min(accuracy) > 93
    assert outputs[-1]["data"]["text/plain"] == "True", "the run repeats"


@pytest.mark.full
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


@pytest.mark.full
def test_ranks_as_engines(tmp_path, monkeypatch):
    pytest.importorskip("ipyparallel")
    pytest.importorskip("mpi4py")
    from gossipgrad.launch import mpiexec

    monkeypatch.setenv("PATH", str(Path(mpiexec.find()).parent), prepend=os.pathsep)
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
