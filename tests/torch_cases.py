"""Strategies, modules, batches and training loops that the tests of gossipgrad.torch have in common."""

from __future__ import annotations

import os
import sys

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)

STRATEGIES = {
    "gossip": gg.GossipGraD(),
    "late gossip": gg.GossipGraD(staleness=1),
    "gossip of weights": gg.GossipGraD(exchange="weights", topology="ring"),
    "gossip of gradients": gg.GossipGraD(exchange="gradients"),
    "gossip by slices": gg.GossipGraD(slices=2),
    "all-reduce": gg.AllReduce(),
    "layer-wise": gg.LayerwiseAllReduce(),
    "overlapped": gg.OverlappedAveraging(),
    "periodic": gg.PeriodicAllReduce(period=3),
    "elastic": gg.ElasticAveraging(),
    "hierarchical": gg.GossipGraD(hierarchical=True),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(),
    "push-sum": gg.PushGossip(push_sum=True),
    "DiLoCo": gg.DiLoCo(period=5),
    "NoLoCo": gg.NoLoCo(period=5),
    "quasi-global": gg.QuasiGlobal(),
    "none": gg.NoExchange(),
}
# What a rank finds at a server depends on when that polls, which is not the same in both: one rank alone. Up to the
# first exchange several ranks are equal as well.
OF_ONE_RANK = {"server": gg.ParameterServer()}
CASES = [
    *(pytest.param(one, p, id=f"{name}-{p}") for name, one in STRATEGIES.items() for p in (1, 2, 3, 4)),
    *(pytest.param(one, 1, id=name) for name, one in OF_ONE_RANK.items()),
]


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def wide(seed=0):
    """With a parameter that is large enough for its gradient to be read where autograd has it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 3))


def batch(step, rank=0, n=4, features=4, classes=3):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(n, features, generator=generator)
    return x, torch.randint(0, classes, (n,), generator=generator)


def trained(models, steps=5, of=batch):
    """Each rank trains on its batches; state_dicts by rank, completed."""

    def train(model, rank):
        for step in range(steps):
            x, y = of(step, rank)
            F.cross_entropy(model(x), y).backward()
            model.step()

    models.run(train)
    models.settle()
    return [{name: one.clone() for name, one in model.state_dict().items()} for model in models]


def plain(module, optimizer, steps=5, of=batch, rank=0):
    for step in range(steps):
        x, y = of(step, rank)
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.state_dict()


def close(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=name, **({"rtol": 2e-5, "atol": 2e-6} | tolerance))


class Odd(nn.Module):
    """Registered in another order than it is used; one weight serves twice, one layer is never used, one is frozen."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 9, bias=False)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.LayerNorm(6)
        self.first = nn.Embedding(9, 6)
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.last.weight = self.first.weight

    def forward(self, tokens):
        return self.last(self.frozen(self.norm(self.first(tokens))) * self.scalar)


def convolutional():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


def images(step, rank=0):
    generator = torch.Generator().manual_seed(77 * step + rank)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 10, (6,), generator=generator)


def torch_env():
    """Ranks find PyTorch where this process has it."""
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def tokens(step, rank=0):
    generator = torch.Generator().manual_seed(5 * step + rank)
    return torch.randint(0, 9, (4, 3), generator=generator), torch.randint(0, 9, (4, 3), generator=generator)
