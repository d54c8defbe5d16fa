"""Runs notebooks. python tests/run_notebooks.py [NAME.ipynb ...] writes notebooks/ anew, with their outputs."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def of_engine(output: Any) -> int:
    """The engine whose print this is; -1: of none."""
    found = re.match(r"\[stdout:(\d+)\]", output.get("data", {}).get("text/plain", ""))
    return int(found[1]) if found else -1


def executed(path: Path, folder: Path) -> Any:
    """The notebook of a file after all its cells have run in `folder`, without times, versions and ipyparallel's bars.

    Engines that print in one cell stand in their order.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown = [one for one in cell.outputs if not re.match(r"(%px: +)?\d+%\|", one.get("text", "").lstrip())]
            cell.outputs = sorted(shown, key=of_engine)
    return notebook


def smaller(png: str) -> str:
    """A picture of at most 64 colours in base64; what was transparent still is."""
    from PIL import Image

    done = io.BytesIO()
    whole = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    whole.quantize(64, method=Image.Quantize.FASTOCTREE).save(done, "png", optimize=True)
    return base64.b64encode(done.getvalue()).decode()


def write(path: Path) -> None:
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder
        notebook = executed(path, Path(folder))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    for path in [NOTEBOOKS / name for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        write(path)
