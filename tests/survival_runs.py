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

# The beginning of scripts: each sample moves a weight of its own, so weights tell who has trained on it.
ONE_WEIGHT_A_SAMPLE = """
import json, os, pathlib, shutil, signal, subprocess, sys, threading, time
import numpy as np
import gossipgrad as gg

case = json.loads(os.environ["CASE"])
samples = case.get("samples", 600)
x, y = np.eye(samples, dtype=np.float32), np.ones((samples, 1), np.float32)
net = gg.Sequential([gg.Linear(1, bias=False)], input=(samples,))
net.load_weights({name: np.zeros_like(value) for name, value in net.weights().items()})
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
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
