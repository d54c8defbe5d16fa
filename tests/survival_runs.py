"""Starts the ranks of `gossipgrad run --survive` for the tests of survival."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from conftest import run_group
from test_net import RUN

# The module of scripts with torch. Sample i moves weight i; buffers differ between ranks.
NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(samples, 1, bias=False)
        torch.nn.init.zeros_(self.w.weight)
        self.norm = torch.nn.BatchNorm1d(1, affine=False)
        self.register_buffer("mine", torch.zeros(1))
        self.frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    def forward(self, x):
        self.mine += 1 + me
        self.norm((x + torch.rand_like(x)).reshape(-1, 1))
        return self.w(x)
"""


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
