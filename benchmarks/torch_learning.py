"""What PyTorch modules learn on several ranks: wrapped GossipGraD against DistributedDataParallel, in one run.

    gossipgrad run -n 2 benchmarks/torch_learning.py mnist --seeds 3 --data ../shared/data
    GOSSIPGRAD_DATA=../shared/data gossipgrad run -n 2 benchmarks/torch_learning.py shakespeare photographs

mnist: LeNet, SGD, test accuracy. shakespeare: nanoGPT's model, small, Adam, validation loss. photographs: resnet18 on
200 photographs of 200 classes at 64 x 64, its head with ten times the rate of the rest (groups of parameters), training
loss of all 200. Both sides begin with the same weights and see the same batches; each rank has a part of the samples.
The mean of GossipGraD's replicas and DDP's model are measured. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gossipgrad as gg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_networks  # noqa: E402
from torch import nn  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.data import characters  # noqa: E402


class Task:
    """Subclasses have the module, the optimisers, batches and the figure that is measured.

    folder: has the sets by name. DataError: this one is not there.
    """

    measured = "accuracy"

    def __init__(self, folder: Path, steps: int | None) -> None:
        self.steps = steps or self.default_steps

    def groups(self, net):
        return None

    def evaluated(self, net) -> float:
        net.eval()
        outputs, targets = [], []
        with torch.no_grad():
            for x, y in self.held_out():
                outputs.append(net(x).flatten(0, -2))
                targets.append(y.flatten())
        net.train()
        outputs, targets = torch.cat(outputs), torch.cat(targets)
        if self.measured == "accuracy":
            return (outputs.argmax(1) == targets).double().mean().item()
        return F.cross_entropy(outputs, targets).item()

    def loss(self, net, x, y):
        return F.cross_entropy(net(x).flatten(0, -2), y.flatten())


class Mnist(Task):
    default_steps = 300

    def __init__(self, folder, steps):
        super().__init__(folder, steps)
        self.train, self.test = gg.data.load("mnist", folder, progress=False)

    def module(self):
        features = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*features, nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))

    ours = gg.SGD(lr=0.01, momentum=0.9)

    def theirs(self, net):
        return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def rows(self, data, chosen):
        x = torch.from_numpy(np.ascontiguousarray(data.samples[chosen])).float().div_(255)
        return x.view(len(chosen), 1, 28, 28), torch.from_numpy(data.targets[chosen]).long()

    def batch(self, draw, rank, size):
        part = len(self.train) // size
        return self.rows(self.train, rank * part + draw.choice(part, 64, replace=False))

    def held_out(self):
        for first in range(0, len(self.test), 500):
            yield self.rows(self.test, np.arange(first, min(first + 500, len(self.test))))


class Shakespeare(Task):
    measured, default_steps, context = "loss", 300, 64

    def __init__(self, folder, steps):
        super().__init__(folder, steps)
        text = characters.locate(folder).read_text()
        number = {character: i for i, character in enumerate(sorted(set(text)))}
        tokens = torch.tensor([number[one] for one in text])
        self.train, self.validation = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]

    def module(self):
        return torch_networks.CharGPT(65, self.context, 3, 4, 96, False)

    ours = gg.Adam(lr=2e-3)

    def theirs(self, net):
        return torch.optim.Adam(net.parameters(), lr=2e-3)

    def windows(self, tokens, starts):
        rows = torch.stack([tokens[s : s + self.context + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    def batch(self, draw, rank, size):
        part = len(self.train) // size
        return self.windows(self.train, rank * part + draw.integers(0, part - self.context - 1, 12))

    def held_out(self):
        starts = range(0, 64 * 200, self.context)
        for first in range(0, len(starts), 50):
            yield self.windows(self.validation, starts[first : first + 50])


class Photographs(Task):
    measured, default_steps = "loss", 60

    def __init__(self, folder, steps):
        super().__init__(folder, steps)
        self.x, self.y = self.read(gg.data.image_folder(folder / "imagenet-sample", size=64))

    @staticmethod
    def read(folder):
        if folder.source is None:
            x = folder.samples
        else:
            x, _ = folder.source.read_new(np.arange(len(folder)), -1)
        x = torch.from_numpy(np.ascontiguousarray(x)).float()
        return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), torch.from_numpy(
            np.asarray(folder.targets)
        ).long()

    def module(self):
        return torch_networks.resnet(torch_networks.Basic, [2, 2, 2, 2], 200, 64)

    ours = gg.SGD(lr=0.005, momentum=0.9)

    def groups(self, net):
        return [{"params": list(net.fc.parameters()), "lr": 0.05}]

    def theirs(self, net):
        head = list(net.fc.parameters())
        rest = [one for name, one in net.named_parameters() if not name.startswith("fc.")]
        return torch.optim.SGD([{"params": head, "lr": 0.05}, {"params": rest}], lr=0.005, momentum=0.9)

    def batch(self, draw, rank, size):
        part = len(self.x) // size
        chosen = rank * part + draw.choice(part, 20, replace=False)
        return self.x[chosen], self.y[chosen]

    def held_out(self):
        for first in range(0, len(self.x), 50):
            yield self.x[first : first + 50], self.y[first : first + 50]


FOLDERS = ("mnist", "shakespeare", "imagenet-sample")
TASKS = {"mnist": Mnist, "shakespeare": Shakespeare, "photographs": Photographs}


def trained(task: Task, who: str, seed: int, team: gg.Team, factor: float) -> tuple[float, float]:
    """The figure, on rank 0, and the seconds of training."""
    torch.manual_seed(seed)
    net = task.module()
    if who == "DDP":
        wrapped = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
        optimizer = task.theirs(net)
        for group in optimizer.param_groups:
            group["lr"] *= factor
    else:
        strategy = {"GossipGraD": gg.GossipGraD, "all-reduce": gg.LayerwiseAllReduce}[who]()
        ours = dataclasses.replace(task.ours, lr=task.ours.lr * factor)
        groups = [{**one, "lr": one["lr"] * factor} for one in task.groups(net) or []]
        wrapped = gg.torch.wrap(net, ours, strategy, groups=groups, seed=seed)
    draw = np.random.default_rng((seed, team.rank))
    begin = time.perf_counter()
    for _ in range(task.steps):
        x, y = task.batch(draw, team.rank, team.size)
        if who == "DDP":
            optimizer.zero_grad()
            task.loss(wrapped, x, y).backward()
            optimizer.step()
        else:
            task.loss(wrapped, x, y).backward()
            wrapped.step()
    seconds = time.perf_counter() - begin
    if who != "DDP":
        mean = wrapped.consensus_state_dict()
        wrapped.close()
        net.load_state_dict(mean)
    return task.evaluated(net) if team.rank == 0 else 0.0, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of each run; default: the task's")
    parser.add_argument("--who", nargs="+", default=["GossipGraD", "DDP"], choices=["GossipGraD", "DDP", "all-reduce"])
    parser.add_argument("--rate", type=float, default=1.0, metavar="FACTOR", help="times the task's learning rates")
    parser.add_argument(
        "--data", default=os.environ.get("GOSSIPGRAD_DATA"), help="folder of all sets; default: $GOSSIPGRAD_DATA"
    )
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("--data: missing, and GOSSIPGRAD_DATA is not set; allowed: the folder with " + ", ".join(FOLDERS))
    try:
        tasks = {name: TASKS[name](Path(arguments.data), arguments.steps) for name in arguments.tasks}
    except gg.DataError as error:
        parser.error(str(error))
    team = gg.Team()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    name = np.frombuffer(tempfile.mkdtemp().encode(), np.uint8) if team.rank == 0 else None
    store = team.broadcast(name).tobytes().decode()
    dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=team.rank, world_size=team.size)
    for name, task in tasks.items():
        found: dict[str, list[float]] = {who: [] for who in arguments.who}
        for seed in range(arguments.seeds):
            for who in arguments.who:
                figure, seconds = trained(task, who, seed, team, arguments.rate)
                found[who].append(figure)
                if team.rank == 0:
                    print(f"{name}, seed {seed}, {who}: {task.measured} {figure:.4f} ({seconds:.0f} s)", flush=True)
        if team.rank == 0:
            for who, figures in found.items():
                spread = f" ± {statistics.stdev(figures):.4f}" if len(figures) > 1 else ""
                print(f"{name}, {team.size} ranks, {who}: {task.measured} {statistics.mean(figures):.4f}{spread}")
    team.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
