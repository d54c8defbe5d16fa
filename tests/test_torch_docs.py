"""The whole scripts of docs/torch.md: each one after the change gives on one rank what the one before it gives, and
trains on two."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_cases import close, torch_env  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torch.md"


def scripts(which: str) -> list[str]:
    """The whole scripts of the page that begin with this comment, in order."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        block for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if block.startswith(f"# {which}")
    ]


PAIRS = list(zip(scripts("before"), scripts("after"), strict=True))


def run(script: str) -> Any:
    """What it trained: its `net`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, str(PAGE), "exec"), names)
    return getattr(names["net"], "_orig_mod", names["net"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", range(3))
def test_what_a_script_trains_is_what_it_was(place, tmp_path, monkeypatch):
    before, after = PAIRS[place]
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with monkeypatch.context() as only:
        for name, value in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", str(port)),
        ):
            only.setenv(name, value)
        try:
            wanted = run(before).state_dict()
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    close({name: one.clone() for name, one in run(after).state_dict().items()}, wanted, rtol=1e-4, atol=1e-5)
    assert sum(one.numel() for one in wanted.values()) > 50


def test_all_pairs_are_run():
    assert len(PAIRS) == 3 and all("gg.torch.wrap(" in after for _, after in PAIRS)


def test_they_train_on_two_ranks(mpirun, tmp_path):
    program = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(
        f"exec({after!r}, {{'__name__': '__main__'}})\nprint('trained')" for _, after in PAIRS
    )
    done = mpirun(2, program, cwd=tmp_path, env=torch_env() | {"PYTHONWARNINGS": "ignore"})
    assert done.stdout.split() == ["trained"] * 6, done.stderr
    assert os.path.getsize(tmp_path / "run.pt") > 1000
