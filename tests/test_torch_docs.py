"""docs/torch.md is played: a changed script trains on one rank as the old one did, and trains on several ranks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_readme import run_here  # noqa: E402
from torch_cases import close, torch_env  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torch.md"

# Names that a reader of the page's diffs has.
OWN = """
import torch

train = torch.utils.data.TensorDataset(
    torch.randn(96, 8, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 3
)
samples = train
loader = torch.utils.data.DataLoader(train, 16)
loss_of = torch.nn.functional.cross_entropy


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def batches_of(rank):
    return [samples[12 * rank : 12 * (rank + 1)]] * 2


net = make_net()
"""
LIGHTNING = """
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, number):
        return loss_of(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


module = Module()
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def scripts(which: str) -> list[str]:
    """The whole scripts of the page that begin with this comment, in order."""
    return [block for block in blocks("python") if block.startswith(f"# {which}")]


def side(diff: str, left_out: str) -> str:
    """The lines of a diff that do not begin with `left_out`: "-" gives the new text, "+" the old one."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith(left_out))


DDP, HOROVOD, OF_LIGHTNING, REPLICAS = blocks("diff")
PAIRS = [
    *zip(scripts("before"), scripts("after"), strict=True),
    (OWN + side(DDP, "+"), OWN + side(DDP, "-")),
]
(SAVE,) = (block for block in blocks("python") if "done = 0 " in block)


def runs_here(script: str) -> bool:
    return "torch.amp.GradScaler" not in script or hasattr(torch.amp, "GradScaler")


def names_after(script: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, "<docs/torch.md>", "exec"), names)
    return names


def trained(names: dict[str, Any]) -> dict[str, Any]:
    """The state of a script's `net`."""
    net = getattr(names["net"], "_orig_mod", names["net"])
    return {name: one.clone() for name, one in net.state_dict().items()}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[dict[str, Any]]:
    """States that the old scripts train, in a process of their own, because Gloo's threads may abort it."""
    folder = tmp_path_factory.mktemp("before")
    program = """
import os
import torch, test_torch_docs as page
torch.set_num_threads(1)
states = []
for before, _ in page.PAIRS:
    states.append(page.trained(page.names_after(before)) if page.runs_here(before) else None)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
torch.save(states, "states.pt")
os._exit(0)
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        env=os.environ | torch_env() | place | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "states.pt")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", range(len(PAIRS)))
def test_what_a_script_trains_is_what_it_was(place, wanted, tmp_path, monkeypatch):
    if wanted[place] is None:
        pytest.skip("torch.amp.GradScaler came with PyTorch 2.3")
    monkeypatch.chdir(tmp_path)
    close(trained(names_after(PAIRS[place][1])), wanted[place], rtol=1e-4, atol=1e-5)
    assert sum(one.numel() for one in wanted[place].values()) > 50


def test_all_pairs_are_run():
    assert len(PAIRS) == 4 and all("gg.torch.wrap(" in after for _, after in PAIRS)


def moved(state: dict[str, Any]) -> float:
    start = names_after(OWN)["net"].state_dict()
    return max(float((state[name] - one).abs().max()) for name, one in start.items())


def test_from_horovod():
    assert 1e-3 < moved(trained(names_after(OWN + side(HOROVOD, "-")))) < 1


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_from_lightning(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    assert 1e-3 < moved(trained(names_after(OWN + LIGHTNING + side(OF_LIGHTNING, "-")))) < 1


def test_several_ranks_in_one_process():
    names = names_after("import gossipgrad as gg\n" + OWN + side(REPLICAS, "-"))
    assert len(names["models"]) == 8
    assert 1e-3 < moved(names["models"].consensus_state_dict()) < 1


def test_save_and_go_on(tmp_path, monkeypatch):
    """The second epoch, resumed from the first epoch's state, gives equal bits. net.pt loads without gossipgrad."""
    monkeypatch.chdir(tmp_path)
    means = []
    for done in (0, 1):
        names = names_after(PAIRS[3][1])
        names |= {"epochs": 2, "loader": torch.utils.data.DataLoader(names["train"], 16, sampler=names["sampler"])}
        exec(SAVE.replace("done = 0 ", f"done = {done} "), names)
        means.append(torch.load("net.pt"))
        names["make_net"]().load_state_dict(means[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.pt", "run.1.0.pt", "run.2.0.pt"]
    assert moved(means[0]) > 1e-3 and all(torch.equal(means[0][name], one) for name, one in means[1].items())


def test_they_train_on_two_ranks(mpirun, tmp_path):
    program = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(
        f"exec({after!r}, {{'__name__': '__main__'}})\nprint('trained')" for _, after in PAIRS
    )
    done = mpirun(2, program, cwd=tmp_path, env=torch_env() | {"PYTHONWARNINGS": "ignore"})
    assert done.stdout.split() == ["trained"] * 2 * len(PAIRS), done.stderr
    assert os.path.getsize(tmp_path / "run.pt") > 1000


@pytest.mark.full
def test_commands_of_the_page(tmp_path):
    """As they stand, on four ranks."""
    (tmp_path / "train.py").write_text(PAIRS[3][1])
    (tmp_path / "after.py").write_text(PAIRS[0][1])
    lines = set(re.findall(r"`(gossipgrad run [^`]+)`", PAGE.read_text(encoding="utf-8")))
    assert lines == {"gossipgrad run -n 4 train.py", "gossipgrad run -n 4 after.py"}
    for line in lines:
        run_here(line, tmp_path)
    assert os.path.getsize(tmp_path / "run.pt") > 1000
