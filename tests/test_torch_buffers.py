"""gossipgrad.torch: buffers of all kinds. Running means and variances are exchanged; others begin as rank 0's."""

from __future__ import annotations

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import batch, close, torch_env, trained  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch.modules import tensors_of, write  # noqa: E402

torch.set_num_threads(1)

KINDS = ("saved", "left_out", "counted", "expanded", "sparse", "rows", "flags", "empty", "norm.running_mean")


class Buffered(nn.Module):
    """With buffers of all kinds, whose values are each rank's own."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(3)
        self.net, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.norm.running_mean.add_(seed)
        self.register_buffer("saved", torch.full((2, 2), float(seed)))
        self.register_buffer("left_out", torch.full((3,), float(seed), dtype=torch.float64), persistent=False)
        self.register_buffer("counted", torch.tensor(seed))
        self.register_buffer("expanded", torch.full((1, 2), float(seed)).expand(4, 2))
        self.register_buffer("sparse", (torch.eye(3) * (seed + 1)).to_sparse())
        self.register_buffer("rows", (torch.eye(3) * (seed + 1)).to_sparse_csr(), persistent=False)
        self.register_buffer("flags", torch.tensor([seed % 2 == 0, True]))
        self.register_buffer("empty", torch.zeros(0), persistent=False)

    def forward(self, x):
        return self.norm(self.net(x))


def dense(tensor):
    return tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach().clone()


def values(model):
    return {name: dense(one) for name, one in tensors_of(model.module).items()}


def made(p=3, strategy=None):
    seeds = iter(range(1, 10))
    return gg.torch.replicas(lambda: Buffered(next(seeds)), p, gg.SGD(0.1), strategy)


def change(model, by):
    """All buffers but the statistics of batch normalisation, as a module itself changes them."""
    for name, one in tensors_of(model.module).items():
        if name in KINDS[:7]:
            write(one, dense(one).logical_not() if one.dtype == torch.bool else one + one * by)


def test_all_ranks_begin_with_those_of_rank_0():
    models, first = made(), Buffered(1)
    wanted = {name: dense(one) for name, one in tensors_of(first).items()}
    assert set(KINDS) <= set(wanted)
    for model in models:
        close(values(model), wanted, rtol=0, atol=0)
        assert model.module.expanded.stride() == (0, 1) and model.module.sparse.is_sparse


def test_a_training_state_has_all_and_the_consensus_those_of_rank_0(tmp_path):
    models = made()
    for rank, model in enumerate(models):
        change(model, rank + 1)
    consensus = models[2].consensus_state_dict()
    assert consensus.keys() == Buffered().state_dict().keys()
    for name in ("saved", "counted", "expanded", "sparse", "flags"):
        assert torch.equal(dense(consensus[name]), values(models[0])[name]), name
    for rank, state in enumerate(models.training_states()):
        torch.save(state, tmp_path / f"{rank}.pt")
    again = made()
    again.load_training_states([torch.load(tmp_path / f"{rank}.pt") for rank in range(3)])
    for one, other in zip(models, again, strict=True):
        close(values(other), values(one), rtol=0, atol=0)
        assert other.module.expanded.stride() == (0, 1)


def test_a_state_of_other_buffers_is_a_value_error_and_one_without_goes_on():
    models = made(1)
    change(models[0], 1)
    (state,) = models.training_states()
    for buffers, message in (
        ({}, "state: buffers, 'left_out': absent; this module has"),
        ({**state["buffers"], "left_out": torch.zeros(4)}, r"buffers, 'left_out': \(4,\); this module has \(3,\)"),
        (3, "state: buffers is a int, 3; allowed"),
    ):
        with pytest.raises(ValueError, match=message):
            models.load_training_states([{**state, "buffers": buffers}])
    change(models[0], 1)
    own = values(models[0])["left_out"]
    models.load_training_states([{key: one for key, one in state.items() if key != "buffers"}])
    assert torch.equal(values(models[0])["left_out"], own)


def test_copies_that_differ_in_a_buffer_that_is_not_saved_are_refused():
    sizes = iter((3, 4))

    def make():
        net = nn.Linear(4, 3)
        net.register_buffer("mask", torch.ones(next(sizes)), persistent=False)
        return net

    with pytest.raises(ValueError, match=r"make_module: 'mask' is torch.float32 \(3,\) on rank 0, .*\(4,\) on rank 1"):
        gg.torch.replicas(make, 2)


UNDER_MPI = """
import sys
sys.path.insert(0, "tests")
import torch
import gossipgrad as gg, gossipgrad.torch
from test_torch_buffers import Buffered, KINDS, change, dense, values
torch.set_num_threads(1)
rank = gg.Team().rank
model = gg.torch.wrap(Buffered(rank + 1), gg.SGD(0.1))
def text(tensors):
    return repr(sorted((name, dense(one).tolist()) for name, one in tensors.items()))
print("first", text(values(model)), flush=True)
change(model, rank + 1)
state = model.training_state()
assert (state["buffers"]["left_out"] == rank + 2).all(), state["buffers"]
print("consensus", text(model.consensus_state_dict()), flush=True)
model.close()
net = Buffered()
net.register_buffer("left_out", torch.ones(3 + rank), persistent=False)
try:
    gg.torch.wrap(net)
except ValueError as error:
    print("differs", "module, left_out: torch.float32 (3,) on rank 0; torch.float32 (4,) on rank 1" in str(error))
"""


def test_under_mpi(mpirun):
    lines = mpirun(2, UNDER_MPI, env=torch_env()).stdout.splitlines()
    assert len(lines) == 6 and len(set(lines)) == 3 and "differs True" in lines, lines
    assert "('counted', 1)" in next(line for line in lines if line.startswith("first"))
    assert "('counted', 2)" in next(line for line in lines if line.startswith("consensus"))  # rank 0's, 1 + 1


def normed():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(), gg.DiLoCo(period=3)])
def test_statistics_are_the_mean_when_a_step_of_an_all_reduce_ends(strategy):
    """As all weights are, which such strategies leave current."""
    models = gg.torch.replicas(normed, 2, gg.SGD(0.1), strategy)

    def train(model, rank):
        for step in range(3):
            F.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
            model.step()
        buffers = {name: one.clone() for name, one in model.module.named_buffers()}
        state = model.state_dict()
        return all(torch.equal(one, state[name]) for name, one in buffers.items())

    assert models.run(train) == [True, True]


def test_statistics_of_a_step_that_only_looked_are_kept():
    """As of a GAN's critic, through which the generator's loss went: not reverted by what is asked for between."""

    def run(asked):
        models = gg.torch.replicas(normed, 2, gg.SGD(0.1), gg.AllReduce())

        def train(model, rank):
            F.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1]).backward()
            model.step()
            model(batch(1, rank)[0])  # in training, with another model's loss

        models.run(train)
        seen = [model.module[1].running_mean.clone() for model in models]
        if asked:
            consensus = models.consensus_state_dict()
            torch.testing.assert_close(consensus["1.running_mean"], (seen[0] + seen[1]) / 2)
            states = models.training_states()
            again = gg.torch.replicas(normed, 2, gg.SGD(0.1), gg.AllReduce())
            again.load_training_states(states)
            models[0]._lay_out([2, 1, 0])
            for one in (models, again):
                for model, mean in zip(one, seen, strict=True):
                    torch.testing.assert_close(model.module[1].running_mean, mean)
            models = again if asked == "loaded" else models
        trained(models, 2, lambda step, rank: batch(step + 2, rank))
        return models.consensus_state_dict()

    plain = run(None)
    for asked in ("state", "loaded"):
        close(run(asked), plain)
    models = gg.torch.replicas(normed, 2)
    models.run(lambda model, rank: model(batch(1, rank)[0]))
    models.load_state_dict(normed().state_dict())
    assert not models[0].state_dict()["1.running_mean"].any()
