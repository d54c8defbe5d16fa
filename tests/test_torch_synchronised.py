"""SyncBatchNorm on several ranks: one process with the whole batch, in float64, is the reference."""

from __future__ import annotations

import copy
import io

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import batch, plain, torch_env  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch import synchronised  # noqa: E402

torch.set_num_threads(1)

RANKS = 2
CHANNELS = 5
# Options of SyncBatchNorm, shape of a sample behind the channels, samples of each rank, autocast.
CASES = {
    "two axes": ({}, (), (4, 4), False),
    "images": ({}, (3, 2), (4, 4), False),
    "volumes": ({"eps": 0.1}, (2, 2, 2), (2, 3), False),
    "unequal": ({}, (7,), (1, 5), False),
    "none on a rank": ({}, (2, 2), (3, 0), False),
    "one each": ({}, (), (1, 1), False),
    "no affine": ({"affine": False}, (3,), (2, 3), False),
    "mean of all batches": ({"momentum": None}, (3,), (4, 1), False),
    "not tracked": ({"track_running_stats": False}, (3,), (4, 2), False),
    "bfloat16": ({}, (4, 4), (4, 4), True),
}
AVERAGING = {"all-reduce": gg.AllReduce, "layer-wise": gg.LayerwiseAllReduce, "overlapped": gg.OverlappedAveraging}


def layer(**options):
    torch.manual_seed(1)
    made = nn.SyncBatchNorm(CHANNELS, **options)
    if made.affine:
        nn.init.uniform_(made.weight, 0.5, 2.0)
        nn.init.uniform_(made.bias)
    return nn.Sequential(made, nn.Flatten(), nn.LazyLinear(2))


def inputs(shape, counts, step=0):
    """Of each rank a batch far from zero, and weights of its outputs."""
    generator = torch.Generator().manual_seed(step)
    return [
        (
            3 + torch.randn(n, CHANNELS, *shape, generator=generator),
            torch.randn(n, CHANNELS, *shape, generator=generator),
        )
        for n in counts
    ]


def reference(options, shape):
    made = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(shape)](CHANNELS, **options)
    made.load_state_dict(layer(**options)[0].state_dict())
    return made.double()


def compared(name, rank, team):
    """Which of outputs, gradients and statistics of two batches are not those of the whole batch in one process.

    Nothing is raised, since the other ranks come to the next collective call.
    """
    wrong = []

    def compare(what, one, other):
        if one.shape != other.shape or not torch.allclose(one.double(), other.double(), **near):
            wrong.append(what)

    options, shape, counts, halves = CASES[name]
    module = layer(**options)
    module(torch.zeros(2, CHANNELS, *shape))
    module[0].load_state_dict(layer(**options)[0].state_dict())
    model, whole = gg.torch.wrap(module, gg.SGD(0.1), gg.AllReduce(), overlap=False), reference(options, shape)
    near = {"rtol": 2e-2, "atol": 2e-2} if halves else {"rtol": 2e-5, "atol": 1e-5}
    for step in range(2):
        given = inputs(shape, counts, step)
        if halves:
            given = [(x.bfloat16(), c) for x, c in given]
        x, c = given[rank][0].clone().requires_grad_(), given[rank][1]
        everything = torch.cat([one.double() for one, _ in given]).requires_grad_()
        wanted = whole(everything)
        (wanted * torch.cat([one for _, one in given])).sum().backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=halves):
            model._step.begin()
            found = model.module[0](x)
        assert found.dtype == x.dtype
        (found.float() * c).sum().backward()
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        compare("outputs", found, wanted[own])
        compare("gradients", x.grad, everything.grad[own])
        if module[0].affine:
            for mine, theirs in zip(module[0].parameters(), whole.parameters(), strict=True):
                total = torch.from_numpy(team.allreduce(mine.grad.double().numpy()))
                compare("gradients of parameters", total, theirs.grad)
            module[0].zero_grad(set_to_none=False)
            whole.zero_grad()
    for key, value in whole.state_dict().items():
        compare(key, module[0].state_dict()[key], value)
    module.eval(), whole.eval()
    if module[0].track_running_stats:  # each rank alone
        compare("outputs of eval", module[0](x.float()), whole(x.double()))
    model._step.leave()
    model.close()
    return wrong


def network(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), norm(6), nn.Tanh(), nn.Linear(6, 5), norm(5), nn.Linear(5, 3))


def whole_batch(step):
    parts = [batch(step, rank) for rank in range(RANKS)]
    return torch.cat([x for x, _ in parts]).double(), torch.cat([y for _, y in parts])


def trained(strategy, rank, compiled=False, steps=6):
    module = network(nn.SyncBatchNorm)
    model = gg.torch.wrap(
        torch.compile(module, backend="eager") if compiled else module, gg.SGD(0.1, momentum=0.9), strategy
    )
    for step in range(steps):
        x, y = batch(step, rank)
        F.cross_entropy(model(x), y).backward()
        model.step()
    state = model.consensus_state_dict()
    model.close()
    return state


def trained_alike(strategy, rank):
    """Is it what one process trains with the whole batch?"""
    net = network(nn.BatchNorm1d).double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    wanted = plain(net, optimizer, 6, lambda step, rank: whole_batch(step))
    found = trained(strategy, rank)
    return all(torch.allclose(found[key].double(), one.double(), rtol=1e-5, atol=1e-6) for key, one in wanted.items())


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.SyncBatchNorm(4), nn.SyncBatchNorm(4)

    def forward(self, x, first):
        return self.a(x) if first else self.b(x)


def raised(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return "nothing"


UNDER_MPI = """
import sys, warnings
sys.path.insert(0, "tests")
warnings.simplefilter("ignore")
import torch
import gossipgrad as gg
import gossipgrad.torch
from test_torch_synchronised import *
team = gg.Team()
rank = team.rank
for name in CASES:
    print("CASE", name, compared(name, rank, team), sep="|")
for name, make in AVERAGING.items():
    print("TRAINED", name, trained_alike(make(), rank), sep="|")
one, other = (trained(gg.AllReduce(), rank, compiled) for compiled in (True, False))
print("COMPILED", all(torch.allclose(one[key], other[key], rtol=1e-6, atol=1e-6) for key in other), sep="|")
model = gg.torch.wrap(Two(), gg.SGD(0.1), gg.AllReduce())
print("CALLS", raised(lambda: model(torch.ones(2, 4), rank == 0)), sep="|")
print("ONE", raised(lambda: model(torch.ones(int(rank == 0), 4), True)), sep="|")
print("REFUSED", raised(lambda: gg.torch.wrap(Two(), strategy=gg.GossipGraD())), sep="|")
class Own(nn.SyncBatchNorm):
    def forward(self, x):
        return super().forward(x)
print("OWN", raised(lambda: gg.torch.wrap(nn.Sequential(nn.Linear(4, 4), Own(4)), strategy=gg.AllReduce())), sep="|")
"""


def test_statistics_are_of_all_ranks(mpirun):
    lines = mpirun(RANKS, UNDER_MPI, env=torch_env()).stdout.splitlines()
    for name in CASES:
        assert lines.count(f"CASE|{name}|[]") == RANKS, [one for one in lines if f"CASE|{name}|" in one]
    for name in AVERAGING:
        assert lines.count(f"TRAINED|{name}|True") == RANKS, [one for one in lines if "TRAINED" in one]
    assert lines.count("COMPILED|True") == RANKS
    said = {word: [one for one in lines if one.startswith(word)] for word in ("CALLS", "ONE", "REFUSED", "OWN")}
    assert len(said["CALLS"]) == RANKS
    assert "forward pass of a, a SyncBatchNorm on rank 0; forward pass of b, a SyncBatchNorm" in said["CALLS"][0]
    assert len(said["ONE"]) == RANKS and all("1 values a channel on all ranks together" in one for one in said["ONE"])
    assert all("strategy='grad" in one or "strategy='gossip" in one for one in said["REFUSED"])
    assert all("Allowed: a strategy that averages gradients (allreduce, " in one for one in said["REFUSED"])
    assert len(said["REFUSED"]) == RANKS == len(said["OWN"]) and all("Own, has a forward" in one for one in said["OWN"])


class Group:
    """Stands for ranks that have all what this one has."""

    size, kind = 2, "virtual"


def test_a_copy_and_a_module_that_was_left_are_torchs():
    module = network(nn.SyncBatchNorm)
    x = batch(0)[0]
    wanted = copy.deepcopy(module)(x)
    handles = synchronised.synchronise(module, Group())
    assert len(handles) == 2
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    for one in (copy.deepcopy(module), torch.load(stream, weights_only=False)):
        assert torch.equal(one(x), wanted)
        assert one[1].num_batches_tracked == 1  # its own, not that of the module it was copied from
    assert module[1].num_batches_tracked == 0
    for handle in handles:
        handle.remove()
    assert torch.equal(module(x), wanted) and "forward" not in module[1].__dict__


@pytest.mark.filterwarnings("ignore")
def test_what_is_traced_is_found():
    """torch.jit's modules have the name of a class alone."""
    traced = torch.jit.trace(network(nn.SyncBatchNorm).eval(), batch(0)[0])
    with pytest.raises(ValueError, match="^1: is a SyncBatchNorm, .* forward pass of its own"):
        synchronised.check_synchronised(traced, gg.AllReduce(), 2, False)
