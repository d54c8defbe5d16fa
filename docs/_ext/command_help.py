"""The directive `command-help`: the output of `gossipgrad COMMAND --help-all`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive


class CommandHelp(Directive):
    """One argument: the sub-command, or "gossipgrad" for the command itself."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        words = [word for word in self.arguments if word != "gossipgrad"]
        environment = {**os.environ, "COLUMNS": "86", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "gossipgrad", *words, "--help-all" if words else "--help"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode or not done.stdout:
            raise self.error(f"{' '.join(command)} failed: {done.stderr}")
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    return {"version": "1", "parallel_read_safe": True}
