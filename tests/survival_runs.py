"""Starts the ranks of `gossipgrad run --survive` for the tests of survival."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from conftest import run_group
from test_net import RUN


def survived(
    folder: pathlib.Path, text: str, case: Any, *options: str, code: int = 0, seconds: float = 60, **env: str
) -> tuple[list[Any], str]:
    """Run a script with this CASE on ranks by these options; returns (its lines of JSON, stderr)."""
    script = folder / "script.py"
    script.write_text(text)
    command = [*RUN, "--survive", *options, str(script)]
    done = run_group(command, seconds, env={**os.environ, "CASE": json.dumps(case), **env})
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stderr
