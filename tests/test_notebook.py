"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "gossip_in_a_notebook.ipynb"


def test_the_notebook_runs(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert sum("image/png" in o.get("data", {}) for o in outputs) == 2
    assert sum("text/html" in o.get("data", {}) for o in outputs) == 2  # the network and a history as tables
    lines = "".join(o.get("text", "") for o in outputs).splitlines()
    found = {line[:22].strip(): line for line in lines if "accuracy" in line}
    accuracy = {name: float(line.split("accuracy ")[1].split(" ")[0]) for name, line in found.items()}
    assert accuracy["gossip"] > 88 and accuracy["all-reduce"] > 88
    distance = {name: float(line.split("distance ")[1].split(",")[0]) for name, line in found.items()}
    assert distance["gossip"] < 0.1 * distance["no exchange"]
