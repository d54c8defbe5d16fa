"""gossipgrad.torch: modules of PyTorch against our own networks, DDP, plain PyTorch, and MPI against replicas."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch.group import check_launcher  # noqa: E402
from gossipgrad.torch.modules import Recorder, layers_of, owners  # noqa: E402

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


# ---- what a module consists of


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


def test_layers_are_modules_with_trainable_tensors_of_their_own():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.Flatten(), nn.LSTM(8, 3)))
    found = [one.described() for one in layers_of(net)]
    assert [name for name, _ in found] == ["0", "1", "2.1"]
    assert found[0][1] == [
        ("0.weight", (2, 1, 3, 3), "weight", "conv", 1.0, 1.0, 1.0),
        ("0.bias", (2,), "bias", "conv", 1.0, 1.0, 1.0),
    ]
    assert [(name, role) for name, _, role, *_ in found[1][1]] == [
        ("1.weight", "scale"),
        ("1.bias", "shift"),
        ("1.running_mean", "statistic"),
        ("1.running_var", "statistic"),
    ]
    assert {role for name, _, role, family, *_ in found[2][1] if "bias" in name} == {"bias"}
    assert {family for *_, family, _, _, _ in found[2][1]} == {"recurrent"}
    odd = {one.name: [name for name, _ in one.parameters] for one in layers_of(Odd())}
    assert odd == {
        "module": ["scalar"],
        "last": ["last.weight"],
        "unused": ["unused.weight", "unused.bias"],
        "norm": ["norm.weight", "norm.bias"],
    }
    assert layers_of(Odd())[0].described()[1][0][1] == (1,)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.Linear(2, 2).double(), "weight: dtype torch.float64; allowed: torch.float32"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight: is on meta; allowed: tensors on the CPU, or"),
        (lambda: nn.LazyLinear(2), "weight: has no shape yet; run a batch"),
        (lambda: nn.ReLU(), "module: has no parameters that train"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "module: has no parameters that train"),
        (lambda: F.relu, "module is a .*; allowed: a torch.nn.Module"),
    ],
)
def test_what_cannot_be_wrapped_is_named(module, message):
    with pytest.raises((ValueError, TypeError), match=message):
        gg.torch.wrap(module())


def recorded(net, *inputs):
    layers = layers_of(net)
    recorder = Recorder(layers)
    of = owners(net, layers)
    handles = [one.register_forward_pre_hook(lambda part, _: recorder.enter(of[part])) for one in of]
    with recorder:
        net(*inputs)
    for handle in handles:
        handle.remove()
    return [layers[i].name for i in recorder.order()], {layers[i].name for i in recorder.early()}


def test_the_order_is_that_of_use_and_what_no_hook_announces_is_early():
    order, early = recorded(Odd(), torch.tensor([[1, 2]]))
    # "last" was registered first and owns the weight that the embedding uses before it.
    assert order == ["module", "last", "norm", "unused"] and early == {"unused"}
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    order, early = recorded(attention, torch.randn(2, 3, 8))
    assert order[:2] == ["self_attn", "self_attn.out_proj"] and early == {"self_attn.out_proj"}
    assert order.index("norm1") < order.index("linear1") < order.index("linear2") < order.index("norm2")


# ---- the same as our own networks, DDP and plain PyTorch


def convolutional():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


def images(step, rank=0):
    generator = torch.Generator().manual_seed(77 * step + rank)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 10, (6,), generator=generator)


@pytest.mark.parametrize(("strategy", "p"), CASES)
def test_a_wrapped_module_trains_as_our_own_network(strategy, p):
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(10)]
    net = gg.Sequential(layers, input=(1, 8, 8))
    first = convolutional()
    names = [name for name, _, _ in net.graph.parameters()]
    tensors = {name: one for name, one in first.state_dict().items() if not name.endswith("num_batches_tracked")}
    net.load_weights(dict(zip(names, (one.numpy() for one in tensors.values()), strict=True)))
    optimizer = gg.SGD(0.02, momentum=0.9, weight_decay=1e-3)
    # Messages arrive at the same steps in both: a step takes a second, a message a part of that.
    cluster = gg.VirtualCluster(p, compute_time=1.0, latency=0.05)
    models = gg.torch.replicas(convolutional, cluster, optimizer, strategy, seed=5)
    got = trained(models, 50, images)
    with gg.Trainer(net, optimizer=optimizer, strategy=strategy, comm=cluster, seed=5) as trainer:
        for step in range(50):
            drawn = [images(step, rank) for rank in range(p)]
            trainer.train_step([x.numpy() for x, _ in drawn], [y.numpy().astype(np.int32) for _, y in drawn])
        for rank in range(p):
            wanted = trainer.weights(rank=rank)
            for name, own in zip(tensors, names, strict=True):
                np.testing.assert_allclose(got[rank][name], wanted[own], rtol=1e-3, atol=2e-5, err_msg=f"{rank} {name}")


@pytest.mark.parametrize("adam", [False, True])
def test_one_rank_is_plain_pytorch(adam):
    models = gg.torch.replicas(small, 1, gg.Adam(0.01) if adam else gg.SGD(0.1, momentum=0.9, weight_decay=0.01))
    module = small()
    optimizer = (
        torch.optim.Adam(module.parameters(), 0.01)
        if adam
        else torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    )
    close(trained(models, 20)[0], plain(module, optimizer, 20), rtol=1e-4, atol=1e-5)


UNDER_MPI = """
import hashlib, sys
import torch
import torch.nn.functional as F
from torch import nn
import gossipgrad as gg
import gossipgrad.torch
sys.path.insert(0, "tests")
from test_torch import MPI_CASES, batch, convolutional, images, small
torch.set_num_threads(1)
for name, (make, of, options) in MPI_CASES.items():
    model = gg.torch.wrap(make(), **options)
    for step in range(12):
        x, y = of(step, model.rank)
        F.cross_entropy(model(x), y).backward()
        model.step()
    model.settle()
    digest = hashlib.sha256()
    for one in model.state_dict().values():
        digest.update(one.numpy().tobytes())
    print(name, model.rank, digest.hexdigest()[:16], flush=True)
    model.close()
"""

MPI_CASES = {
    "gossip": (convolutional, images, {"optimizer": gg.SGD(0.05, momentum=0.9)}),
    "late": (small, batch, {"optimizer": gg.Adam(0.01), "strategy": gg.GossipGraD(staleness=1)}),
    "all-reduce": (convolutional, images, {"optimizer": gg.SGD(0.05), "strategy": gg.LayerwiseAllReduce()}),
    "clipped": (small, batch, {"optimizer": gg.SGD(0.5, clip_norm=0.1), "strategy": gg.AllReduce()}),
}


def torch_env():
    """Ranks find PyTorch where this process has it."""
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_under_mpi_the_same_bits_as_replicas(mpirun):
    import hashlib

    lines = set(mpirun(3, UNDER_MPI, env=torch_env()).stdout.splitlines())
    wanted = set()
    for name, (make, of, options) in MPI_CASES.items():
        for rank, state in enumerate(trained(gg.torch.replicas(make, 3, **options), 12, of)):
            digest = hashlib.sha256()
            for one in state.values():
                digest.update(one.numpy().tobytes())
            wanted.add(f"{name} {rank} {digest.hexdigest()[:16]}")
    assert lines == wanted


BESIDE_DDP = """
import sys, tempfile
import torch
import torch.distributed as dist
import torch.nn.functional as F
import gossipgrad as gg
import gossipgrad.torch
sys.path.insert(0, "tests")
from test_torch import batch, small
torch.set_num_threads(1)
team = gg.Team()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=team.rank, world_size=team.size)
theirs = torch.nn.parallel.DistributedDataParallel(small(), broadcast_buffers=True)
optimizer = torch.optim.SGD(theirs.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
strategies = [gg.AllReduce(), gg.LayerwiseAllReduce()]
ours = [gg.torch.wrap(small(team.rank and 9), gg.SGD(0.1, 0.9, 0.01), one) for one in strategies]
for step in range(50):
    x, y = batch(step, team.rank)
    optimizer.zero_grad()
    F.cross_entropy(theirs(x), y).backward()
    optimizer.step()
    for model in ours:
        F.cross_entropy(model(x), y).backward()
        model.step()
for model in ours:
    model.settle()
    for name, one in theirs.module.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], one, rtol=1e-4, atol=1e-5)
    model.close()
print("equal", team.rank, flush=True)
dist.destroy_process_group()
"""


def test_all_reduce_is_ddp(mpirun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BESIDE_DDP)
    done = mpirun(2, [script, tmp_path / "store"], env=torch_env())
    assert sorted(done.stdout.split()) == ["0", "1", "equal", "equal"]


# ---- what training loops do


def test_parameters_are_the_same_objects_and_views_of_the_arenas():
    net = small()
    tensors = list(net.parameters())
    model = gg.torch.wrap(net, gg.SGD(0.1))
    assert all(one is other for one, other in zip(tensors, net.parameters(), strict=True))
    before = [one.data_ptr() for one in tensors]
    x, y = batch(0)
    F.cross_entropy(model(x), y).backward()
    assert all(one.grad is not None and one.grad.shape == one.shape for one in tensors)
    model.step()
    assert [one.data_ptr() for one in tensors] == before and all(one.data_ptr() % 64 == 0 for one in tensors)
    model.close()
    assert [one.data_ptr() for one in tensors] != before and all(one.grad is None for one in tensors)


def test_gradients_are_the_same_views_in_all_steps():
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    tensors = dict(model.module.named_parameters())
    addresses = {name: one.ctypes.data for name, one in model._group.core.gradients(0).items()}
    seen = []
    for step in range(3):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward()
        assert {name: one.grad.data_ptr() for name, one in tensors.items()} == addresses
        seen.append([one.grad for one in tensors.values()])
        values = [one.clone() for one in seen[-1]]
        model.step()
        # They can be read until the next forward pass, which begins from zero.
        assert all((one == other).all() for one, other in zip(values, seen[-1], strict=True))
    assert all(one is other for row in seen[1:] for one, other in zip(seen[0], row, strict=True))
    model(batch(9)[0])
    assert not any(one.grad.any() for one in tensors.values())


def _zeroed(when, to_none):
    """A loop that zeroes gradients at this place, in a step of two backward passes of which one is not exchanged."""

    def train(model, optimizer, end, no_sync):
        for step in range(4):
            (x, y), (x2, y2) = batch(step), batch(step + 50)
            zero = functools.partial((optimizer or model).zero_grad, set_to_none=to_none)
            if when == "before" or optimizer:
                zero()
            with no_sync():
                loss = F.cross_entropy(model(x), y)
                if when == "between":
                    zero()
                loss.backward()
                if when == "after a pass":  # which thereby counts for nothing
                    zero()
            F.cross_entropy(model(x2), y2).backward()
            end()

    return train


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("when", ["before", "between", "after a pass"])
def test_zeroing_gradients_at_any_time(when, to_none, make):
    model, module = gg.torch.wrap(make(), gg.SGD(0.1, momentum=0.9)), make()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    train = _zeroed(when, to_none)
    train(module, optimizer, optimizer.step, contextlib.nullcontext)
    train(model, None, model.step, model.no_sync)
    close(model.state_dict(), module.state_dict())


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize("how", ["assigned", "written"])
def test_gradients_that_come_by_hand(how, make):
    """As from torch.autograd.grad; those of the last step do not count."""
    model, module = gg.torch.wrap(make(), gg.SGD(0.1)), make()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(3):
        x, y = batch(step)
        for net in (model, module):
            optimizer.zero_grad()
            out = net(x)
            if net is model:
                with pytest.raises(RuntimeError, match=r"step\(\) without a backward pass"):
                    model.step()
            parameters = list(net.parameters())
            for one, gradient in zip(parameters, torch.autograd.grad(F.cross_entropy(out, y), parameters), strict=True):
                if how == "assigned" or one.grad is None:
                    one.grad = gradient
                else:
                    one.grad.copy_(gradient)
            (model if net is model else optimizer).step()
    close(model.state_dict(), module.state_dict())


@pytest.mark.parametrize("strategy", [*STRATEGIES, "clipped"])
def test_gradients_are_read_where_they_lie(strategy, monkeypatch):
    """Of large parameters: the same bits as from the arena, in any order, and where no gradient comes."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.last, self.first = nn.Linear(128, 128), nn.Linear(4, 128)  # not in the order of use
            self.spare, self.both = nn.Linear(128, 128), nn.Linear(130, 127)  # not whole lanes
            self.turned = nn.Parameter(0.1 * torch.randn(128, 128))

        def forward(self, x):
            x = self.last(self.first(x).tanh() @ self.turned.t()).tanh()
            return self.both(F.pad(x, (1, 1)))[:, :3]

    options = {"optimizer": gg.SGD(0.05, momentum=0.9, weight_decay=0.01)}
    options |= {"strategy": STRATEGIES[strategy]} if strategy in STRATEGIES else {}
    options |= {"optimizer": gg.Adam(0.01, clip_norm=0.1)} if strategy == "clipped" else {}
    for make in (Net, wide):  # whose layers come in another order than that of the arenas, and in this one
        found = []
        for in_place in (True, False):
            monkeypatch.setattr(gossipgrad.torch.step.Step, "in_place", in_place)
            models = gg.torch.replicas(make, 2, **options)
            assert any(models[0]._step._large) == in_place
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(trained(models, 4))
        for one, other in zip(*found, strict=True):
            close(one, other, rtol=0, atol=0)
        assert any(
            (one[name] != tensor).any() for name, tensor in make().state_dict().items() if tensor.numel() == 16384
        )


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("make", [small, wide])
def test_a_gradient_that_autograd_replaces_is_copied(make):
    """create_graph=True makes sums of their own."""
    model, module = gg.torch.wrap(make(), gg.SGD(0.1)), make()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(3):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward(create_graph=True)
        assert make is wide or not any(one.grad.requires_grad for one in model.parameters())
        model.step()
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    close(model.state_dict(), module.state_dict())


@pytest.mark.parametrize("overlap", [True, False])
def test_layers_are_updated_while_the_backward_pass_goes_on(overlap):
    model = gg.torch.wrap(small(), gg.SGD(0.1), overlap=overlap)
    first, last = model.module[0].weight, model.module[2].weight
    before = [first.detach().clone(), last.detach().clone()]
    seen = []
    first.register_hook(lambda _: seen.append([bool((first != before[0]).any()), bool((last != before[1]).any())]))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    seen.append([bool((first != before[0]).any()), bool((last != before[1]).any())])
    model.step()
    assert seen == ([[False, True], [True, True]] if overlap else [[False, False], [False, False]])
    assert (first != before[0]).any() and (last != before[1]).any()


def test_gradients_are_accumulated_by_no_sync():
    models = gg.torch.replicas(small, 2, gg.SGD(0.1, momentum=0.9), gg.AllReduce())

    def train(model, rank):
        for step in range(4):
            with model.no_sync():
                for part in range(2):
                    x, y = batch(10 * step + part, rank)
                    (F.cross_entropy(model(x), y) / 3).backward()
            x, y = batch(10 * step + 2, rank)
            (F.cross_entropy(model(x), y) / 3).backward()
            model.step()

    models.run(train)
    module = small()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            for part in range(3):
                x, y = batch(10 * step + part, rank)
                (F.cross_entropy(module(x), y) / 6).backward()
        optimizer.step()
    for model in models:
        close(model.state_dict(), module.state_dict())


def test_step_exchanges_what_no_sync_left():
    model, module = gg.torch.wrap(small(), gg.SGD(0.1)), small()
    with model.no_sync():
        F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    model.step()
    close(model.state_dict(), plain(module, torch.optim.SGD(module.parameters(), 0.1), 1))


@pytest.mark.parametrize("zero", ["model", "module", "none"])
def test_zero_grad_is_needless_and_harmless(zero):
    model, module = gg.torch.wrap(small(), gg.SGD(0.1)), small()
    for step in range(3):
        if zero != "none":
            (model if zero == "model" else model.module).zero_grad()
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
    close(model.state_dict(), plain(module, torch.optim.SGD(module.parameters(), 0.1), 3))


def test_clipping_by_the_optimizer_or_without_overlap():
    module = small()
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for step in range(4):
        optimizer.zero_grad()
        F.cross_entropy(module(batch(step)[0]), batch(step)[1]).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    ours = gg.torch.wrap(small(), gg.SGD(0.5, clip_norm=0.1))
    by_hand = gg.torch.wrap(small(), gg.SGD(0.5), overlap=False)
    too_late = gg.torch.wrap(small(), gg.SGD(0.5))
    for step in range(4):
        for model in (ours, by_hand):
            F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            if model is by_hand:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            model.step()
    close(ours.state_dict(), module.state_dict())
    close(by_hand.state_dict(), module.state_dict())
    F.cross_entropy(too_late(batch(0)[0]), batch(0)[1]).backward()
    torch.nn.utils.clip_grad_norm_(too_late.parameters(), 0.1)
    with pytest.raises(
        RuntimeError, match="0.weight: its gradient was changed after it had been exchanged.*overlap=False"
    ):
        too_late.step()


def tokens(step, rank=0):
    generator = torch.Generator().manual_seed(5 * step + rank)
    return torch.randint(0, 9, (4, 3), generator=generator), torch.randint(0, 9, (4, 3), generator=generator)


def test_shared_frozen_and_unused_parameters():
    def make():
        torch.manual_seed(0)
        return Odd()

    def loss(model, step, rank):
        x, y = tokens(step, rank)
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    models = gg.torch.replicas(make, 2, gg.SGD(0.1, momentum=0.9), gg.AllReduce())

    def train(model, rank):
        for step in range(4):
            loss(model, step, rank).backward()
            model.step()

    with pytest.warns(UserWarning, match="'unused.weight', 'unused.bias': no gradient in step 0; it counts as zero"):
        models.run(train)
    module = make()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            (loss(module, step, rank) / 2).backward()
        optimizer.step()
    for model in models:
        close(model.state_dict(), module.state_dict())
        assert model.module.last.weight is model.module.first.weight


def test_statistics_are_averaged_and_evaluation_reads_them():
    models = gg.torch.replicas(convolutional, 2, gg.SGD(0.0), gg.AllReduce())
    trained(models, 3, images)
    singles = [convolutional(), convolutional()]
    mean, var = singles[0][1].running_mean.clone(), singles[0][1].running_var.clone()
    for step in range(3):
        for rank, one in enumerate(singles):
            one[1].running_mean.copy_(mean)
            one[1].running_var.copy_(var)
            one(images(step, rank)[0])
        mean = (singles[0][1].running_mean + singles[1][1].running_mean) / 2
        var = (singles[0][1].running_var + singles[1][1].running_var) / 2
    for model in models:
        torch.testing.assert_close(model.module[1].running_mean, mean)
        torch.testing.assert_close(model.module[1].running_var, var)
    x = images(9)[0]
    models[0].eval()
    singles[0].eval()
    singles[0][1].running_mean.copy_(mean)
    singles[0][1].running_var.copy_(var)
    with torch.no_grad():
        torch.testing.assert_close(models[0](x), singles[0](x))


def test_evaluation_by_one_rank_changes_nothing():
    """Between steps, and between a forward and a backward pass, of one rank alone."""

    def run(evaluates):
        models = gg.torch.replicas(convolutional, 3, gg.SGD(0.05, momentum=0.9))

        def train(model, rank):
            for step in range(6):
                if evaluates and rank == 1:
                    model.eval()
                    with torch.no_grad():
                        model(images(99)[0])
                    model.state_dict()
                    model.train()
                x, y = images(step, rank)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                model.step()

        models.run(train)
        models.settle()
        return [model.state_dict() for model in models]

    for one, other in zip(run(False), run(True), strict=True):
        assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_an_optimizer_of_torch(kind):
    made = kind(small().parameters(), lr=0.01)
    module = small()
    with pytest.warns(UserWarning, match="optimizer: one of torch's.*is faster"):
        model = gg.torch.wrap(module, kind(module.parameters(), lr=0.01))
    for step in range(10):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
    other = small()
    made = kind(other.parameters(), lr=0.01)
    close(model.state_dict(), plain(other, made, 10))


def test_an_optimizer_of_torch_and_several_ranks():
    """Averages of what the ranks' steps changed: with SGD that is the step of the mean gradient."""
    models = gg.torch.replicas(
        small, 3, lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), gg.AllReduce()
    )
    got = trained(models, 6)
    fused = trained(gg.torch.replicas(small, 3, gg.SGD(0.1, momentum=0.9), gg.AllReduce()), 6)
    for one, other in zip(got, fused, strict=True):
        close(one, other)


def test_state_dicts_go_in_and_out(tmp_path):
    models = gg.torch.replicas(convolutional, 2, gg.SGD(0.05, momentum=0.9))
    states = trained(models, 3, images)
    mean = models[0].consensus_state_dict()
    for name, one in mean.items():
        if one.is_floating_point():
            torch.testing.assert_close(one, (states[0][name] + states[1][name]) / 2)
    assert mean.keys() == convolutional().state_dict().keys()
    torch.save(states[0], tmp_path / "net.pt")
    models.load_state_dict(torch.load(tmp_path / "net.pt"))
    assert models[0].consensus_distance() == 0
    for model in models:
        close(model.state_dict(), states[0], rtol=0, atol=0)
    plain_module = convolutional()
    plain_module.load_state_dict(models[0].state_dict())


@pytest.mark.parametrize("strategy", [gg.GossipGraD(staleness=1), gg.OverlappedAveraging(), gg.ElasticAveraging()])
def test_training_goes_on_to_the_bit(strategy, tmp_path):
    def run(model, rank, first, last):
        for step in range(first, last):
            x, y = images(step, rank)
            F.cross_entropy(model(x), y).backward()
            model.step()

    def make():
        return gg.torch.replicas(convolutional, 3, gg.Adam(0.01), strategy)

    whole = make()
    whole.run(lambda model, rank: run(model, rank, 0, 4))
    whole.settle()
    whole.run(lambda model, rank: run(model, rank, 4, 8))
    whole.settle()
    half = make()
    half.run(lambda model, rank: run(model, rank, 0, 4))
    for rank, state in enumerate(half.training_states()):
        torch.save(state, tmp_path / f"{rank}.pt")
    again = make()
    again.load_training_states([torch.load(tmp_path / f"{rank}.pt") for rank in range(3)])
    assert again[0].steps == 4
    again.run(lambda model, rank: run(model, rank, 4, 8))
    again.settle()
    for one, other in zip(whole, again, strict=True):
        for name, tensor in one.state_dict().items():
            assert (tensor == other.state_dict()[name]).all(), name


def test_a_compiled_module():
    module = small()
    model = gg.torch.wrap(torch.compile(module, backend="eager"), gg.SGD(0.1))
    for step in range(3):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
    other = small()
    close(model.state_dict(), plain(other, torch.optim.SGD(other.parameters(), 0.1), 3))


def test_gradient_penalties():
    """torch.autograd.grad fires no hook; two backward passes want overlap=False or no_sync."""

    def penalised(model, x, y):
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + (slope**2).sum()

    model, module = gg.torch.wrap(small(), gg.SGD(0.1)), small()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(4):
        penalised(model, *batch(step)).backward()
        model.step()
        optimizer.zero_grad()
        penalised(module, *batch(step)).backward()
        optimizer.step()
    close(model.state_dict(), module.state_dict())


def test_learning_rates():
    schedule = gg.schedules.StepDecay(every=2, gamma=0.5)
    model, module = gg.torch.wrap(small(), gg.SGD(0.1, schedule=schedule)), small()
    by_function = gg.torch.wrap(small(), gg.SGD(0.1, schedule=lambda t: 0.5 ** (t // 2)))
    by_hand = gg.torch.wrap(small(), gg.SGD(0.1))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(6):
        by_hand.learning_rate = 0.1 * 0.5 ** (step // 2)
        for one in (model, by_function, by_hand):
            assert one.learning_rate == pytest.approx(optimizer.param_groups[0]["lr"])
            F.cross_entropy(one(batch(step)[0]), batch(step)[1]).backward()
            one.step()
        plain(module, optimizer, 1, lambda _, __, step=step: batch(step))
        decay.step()
    for one in (model, by_function, by_hand):
        close(one.state_dict(), module.state_dict())


# ---- misuse


def test_misuse_is_an_error_that_says_what_is_allowed():
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    x, y = batch(0)
    with pytest.raises(RuntimeError, match=r"step\(\) without a forward and a backward pass"):
        model.step()
    loss = F.cross_entropy(model(x), y)
    with pytest.raises(RuntimeError, match=r"step\(\) without a backward pass since the last one: no parameter"):
        model.step()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second gradient in step 0, after its layer was exchanged.*no_sync"):
        loss.backward(retain_graph=True)
    with pytest.raises(
        RuntimeError, match="forward pass in the middle of step 0: its gradients are exchanged.*model.step"
    ):
        model(x)
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    model.step()
    with pytest.raises(
        RuntimeError, match="a gradient outside of a step: this backward pass belongs to a forward pass"
    ):
        loss.backward()
    model.module.zero_grad()
    F.cross_entropy(model(x), y).backward()
    model.step()
    model.module[0].weight.requires_grad_(False)
    with pytest.raises(
        RuntimeError, match=r"0.weight: was trained when the module was wrapped; allowed: close\(\), and to wrap"
    ):
        model(x)


def _clamp(model):
    with torch.no_grad():
        for one in model.module.parameters():
            one.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.OverlappedAveraging(), gg.GossipGraD(exchange="gradients")])
@pytest.mark.parametrize("then", ["state_dict", "settle", "forward", "evaluate", "close"])
def test_weights_in_flight_cannot_be_written(strategy, then):
    """Neither what was written nor what a partner sends may be lost without a word; after settle() all is at rest."""
    calls = {
        "state_dict": lambda model: model.state_dict(),
        "settle": lambda model: model.settle(),
        "forward": lambda model: model(batch(1)[0]),
        "evaluate": lambda model: torch.no_grad()(model)(batch(1)[0]),
        "close": lambda model: model.close(),
    }

    def train(model, rank):
        F.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1]).backward()
        model.step()
        model.settle()
        _clamp(model)
        assert max(one.abs().max() for one in model.state_dict().values()) <= 0.01
        F.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1]).backward()
        model.step()
        _clamp(model)
        with pytest.raises(RuntimeError, match=r"0.weight: was written between model.step\(\) .*model.settle\(\)"):
            calls[then](model)

    gg.torch.replicas(small, 2, gg.SGD(0.001), strategy).run(train)


@pytest.mark.parametrize(
    ("strategy", "p"),
    [
        (gg.AllReduce(), 2),
        (gg.LayerwiseAllReduce(), 2),
        (gg.OverlappedAveraging(overlap=False), 2),
        (gg.PeriodicAllReduce(period=2), 2),
        (gg.DiLoCo(period=2), 2),
        (gg.GossipGraD(), 1),
        (gg.OverlappedAveraging(), 1),
    ],
)
def test_weights_that_are_current_after_a_step_can_be_written(strategy, p):
    def train(model, rank):
        for step in range(4):
            F.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
            model.step()
            _clamp(model)
            written = [one.clone() for one in model.module.parameters()]
            for one, other in zip(written, model.state_dict().values(), strict=True):
                assert (one == other).all() and one.abs().max() <= 0.01

    gg.torch.replicas(small, p, gg.SGD(0.1), strategy).run(train)


def test_a_module_may_write_its_weights_in_an_evaluation():
    """As Embedding(max_norm=...) does in every forward pass."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))

    def train(model, rank):
        x, y = torch.tensor([[0, 1, 2], [3, 4, 0]]), torch.tensor([0, 2])
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            model.step()
            with torch.no_grad():
                before = model.module[0].weight._version
                model(x)
                assert model.module[0].weight._version > before

    gg.torch.replicas(make, 2, gg.SGD(0.1)).run(train)


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize(("how", "what"), [("replaced", "replaced"), ("removed", "removed"), ("in place", "changed")])
def test_gradients_that_were_exchanged_cannot_be_changed(make, how, what):
    """Of any size: those of large parameters are autograd's own tensors."""
    for place in range(2):
        model = gg.torch.wrap(make(), gg.SGD(0.1))
        F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
        weight = model.module[2 * place].weight
        if how == "in place":
            weight.grad *= 0.5
        else:
            weight.grad = weight.grad * 0.5 if how == "replaced" else None
        with pytest.raises(RuntimeError, match=f"{2 * place}.weight: its gradient was {what} after it had been exch"):
            model.step()


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_that_are_read_are_each_ranks_own(strategy, make):
    def train(model, rank):
        for step in range(2):
            x, y = batch(step, rank)
            F.cross_entropy(model(x), y).backward()
            before = [one.grad.clone() for one in model.module.parameters()]
            module = make()
            module.load_state_dict(model.state_dict())
            F.cross_entropy(module(x), y).backward()
            model.step()
            for one, kept, own in zip(model.module.parameters(), before, module.parameters(), strict=True):
                assert (one.grad == kept).all()
                if step == 0:  # then the weights were those of the forward pass
                    torch.testing.assert_close(kept, own.grad)

    gg.torch.replicas(make, 2, gg.SGD(1e-9), STRATEGIES[strategy], overlap=True).run(train)


@pytest.mark.parametrize("where", ["2", "extra"])
def test_a_parameter_that_was_not_wrapped_is_an_error(where):
    net = small()
    model = gg.torch.wrap(net, gg.SGD(0.1))
    setattr(net, where, nn.Linear(net[2].in_features, net[2].out_features))
    with pytest.raises(RuntimeError, match=rf"'{where}.weight', '{where}.bias': not in the module when it was wrapped"):
        model(batch(0)[0])
    model.close()


def test_a_parameter_that_thaws_is_an_error():
    net = small()
    net[0].requires_grad_(False)
    model = gg.torch.wrap(net, gg.SGD(0.1))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    model.step()
    net[0].requires_grad_(True)
    with pytest.raises(
        RuntimeError, match=r"0.weight: was frozen when the module was wrapped; allowed: close\(\), and to wrap"
    ):
        model(batch(1)[0])
    model.close()
    again = gg.torch.wrap(net, gg.SGD(0.1))
    before = net[0].weight.detach().clone()
    F.cross_entropy(again(batch(1)[0]), batch(1)[1]).backward()
    again.step()
    assert (net[0].weight != before).any()


def test_a_module_is_wrapped_again_after_close():
    net = small()
    first = gg.torch.wrap(net, gg.SGD(0.1))
    x, y = batch(0)
    F.cross_entropy(first(x), y).backward()
    first.step()
    for again in (net, first, torch.nn.Sequential(net, torch.nn.Tanh()), net[0]):
        with pytest.raises(ValueError, match=r"module: is wrapped already; allowed: .*close\(\)"):
            gg.torch.wrap(again, gg.SGD(0.1))
    with pytest.raises(ValueError, match="module: is wrapped already"):
        gg.torch.replicas(lambda: net, 1)
    net[0].weight.requires_grad_(False)
    first.close()
    assert (first(x) == net(x)).all()
    with pytest.raises(RuntimeError, match=r"closed"):
        first.step()
    second = gg.torch.wrap(net, gg.SGD(0.1))
    frozen, trained = net[0].weight.clone(), net[2].weight.clone()
    F.cross_entropy(second(x), y).backward()
    second.step()
    second.settle()
    assert (net[0].weight == frozen).all() and (net[2].weight != trained).any()
    second.close()
    with pytest.raises(ValueError, match="make_module: gave one module twice"):
        gg.torch.replicas(lambda: net, 2)


def test_a_closed_model_says_so():
    model = gg.torch.wrap(convolutional(), gg.SGD(0.1))
    state = model.training_state()
    model.close()
    for call in (
        model.settle,
        model.consensus_state_dict,
        model.consensus_distance,
        model.training_state,
        lambda: model.load_training_state(state),
        lambda: model.load_state_dict(state["module"]),
    ):
        with pytest.raises(RuntimeError, match="this model is closed"):
            call()
    close(model.state_dict(), state["module"], rtol=0, atol=0)


def test_replicas_with_statistics_are_closed():
    models = gg.torch.replicas(convolutional, 3, gg.SGD(0.1))
    models.run(
        lambda model, rank: (F.cross_entropy(model(images(0, rank)[0]), images(0, rank)[1]).backward(), model.step())
    )
    wanted = [copy.deepcopy(one) for one in models.training_states()]
    models.close()
    models.close()
    for model, state in zip(models, wanted, strict=True):
        close(model.state_dict(), state["module"], rtol=0, atol=0)
        gg.torch.wrap(model.module, gg.SGD(0.1)).close()


def test_modules_and_optimizers_that_do_not_fit():
    own = small()
    with pytest.raises(ValueError, match="optimizer: has none of the module's parameters that train"):
        gg.torch.wrap(own, torch.optim.SGD(small().parameters(), 0.1))
    with pytest.raises(ValueError, match="optimizer: has none of the module's parameters that train"):
        gg.torch.replicas(small, 2, lambda module: torch.optim.SGD(own.parameters(), 0.1))
    with pytest.raises(TypeError, match="optimizer is a SGD; allowed: one of gossipgrad's, or a function"):
        gg.torch.replicas(lambda: own, 1, torch.optim.SGD(own.parameters(), 0.1))
    sizes = iter((5, 6))
    with pytest.raises(
        ValueError, match=r"make_module: '0.weight' is torch.float32 \(5, 4\) on rank 0, .*\(6, 4\) on rank 1"
    ):
        gg.torch.replicas(lambda: torch.nn.Sequential(torch.nn.Linear(4, next(sizes))), 2)
    with pytest.raises(TypeError, match="module is a NoneType"):
        gg.torch.replicas(lambda: None, 2)


def test_another_training_state_is_a_value_error():
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    good = model.training_state()
    momentum = gg.torch.wrap(small(), gg.SGD(0.1, momentum=0.9)).training_state()
    other = gg.torch.wrap(torch.nn.Linear(4, 3), gg.SGD(0.1)).training_state()
    torch.manual_seed(7)
    wide = gg.torch.wrap(
        torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)), gg.SGD(0.1)
    )
    before = {name: one.clone() for name, one in model.state_dict().items()}
    lacking = [{key: value for key, value in good.items() if key != one} for one in good]
    for state in ({}, model.state_dict(), momentum, other, wide.training_state(), *lacking):
        with pytest.raises(ValueError, match="state: "):
            model.load_training_state(state)
    close(model.state_dict(), before, rtol=0, atol=0)
    model.load_training_state(good)


def _damaged(good, **parts):
    return {**good, **parts}


def test_a_damaged_training_state_is_named_before_anything_is_loaded():
    model = gg.torch.wrap(small(), gg.SGD(0.1, momentum=0.9))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    model.step()
    good = copy.deepcopy(model.training_state())
    weight = good["arenas"]["weight"]
    F.cross_entropy(model(batch(1)[0]), batch(1)[1]).backward()
    model.step()
    before = copy.deepcopy(model.training_state())
    other = {name: one + 1 for name, one in good["module"].items()}
    for parts, message in (
        ({"step": None}, "state: step=None: allowed: an integer of at least 0"),
        ({"step": -1}, "state: step=-1: allowed: an integer of at least 0"),
        ({"step": 2**70}, "state: step=1180591620717411303424: allowed: an integer in 0.."),
        ({"step": 1.5}, "state: step=1.5: allowed: an integer"),
        ({"arenas": None}, "state: arenas is a NoneType, None; allowed: what training_state.* gave, a dict"),
        ({"arenas": {**good["arenas"], "weight": 3}}, "state: weight is a int, 3; allowed: what"),
        ({"arenas": {**good["arenas"], "weight": {**weight, "0.bias": None}}}, "weight, '0.bias': a NoneType, None; t"),
        (
            {"arenas": {**good["arenas"], "weight": {**weight, "0.bias": weight["0.bias"].double()}}},
            "weight, '0.bias': of torch.float64, where torch.float32 is allowed",
        ),
        ({"module": None}, "state: module is a NoneType"),
        ({"module": {**good["module"], "0.bias": [1.0]}}, r"state: module, '0.bias': a list, \[1.0\]; this module has"),
        ({"consensus": [1]}, r"state: consensus is a list, \[1\]; allowed: what training"),
        ({"consensus": {**good["consensus"], "more": torch.ones(1)}}, "consensus, 'more': .* none of this name"),
    ):
        with pytest.raises(ValueError, match=message):
            model.load_training_state(_damaged({**good, "module": other}, **parts))
    after = model.training_state()
    assert after["step"] == before["step"] == 2
    for part in ("weight", *(set(before["arenas"]) - {"weight"})):
        close(after["arenas"][part], before["arenas"][part], rtol=0, atol=0)
    close(model.state_dict(), before["module"], rtol=0, atol=0)
    own = small()
    with pytest.warns(UserWarning, match="one of torch's"):
        model = gg.torch.wrap(own, torch.optim.Adam(own.parameters()))
    good = model.training_state()
    for damaged in (None, {}, {**good["optimizer"], "param_groups": []}, {**good["optimizer"], "param_groups": [3]}):
        with pytest.raises(ValueError, match="state: optimizer"):
            model.load_training_state(_damaged(good, optimizer=damaged))
    model.load_training_state(good)
    models = gg.torch.replicas(small, 2, gg.SGD(0.1))
    states = copy.deepcopy(models.training_states())
    with pytest.raises(ValueError, match=r"states: of the steps \[0, 4\]; allowed: of one step"):
        models.load_training_states([states[0], _damaged(states[1], step=4)])
    changed = {name: one + 1 for name, one in states[0]["module"].items()}
    with pytest.raises(ValueError, match="state: consensus is a NoneType"):
        models.load_training_states([_damaged(states[0], module=changed), _damaged(states[1], consensus=None)])
    close(models[0].state_dict(), states[0]["module"], rtol=0, atol=0)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("on purpose")


def test_an_exception_in_backward_leaves_a_step_that_can_be_ended():
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    x, y = batch(0)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    hidden = Fails.apply(model.module[0](x))
    model(x)
    with pytest.raises(ArithmeticError, match="on purpose"):
        F.cross_entropy(model.module[2](hidden), y).backward()
    with pytest.raises(RuntimeError, match="forward pass in the middle of step 0: .*'2'.* are exchanged, .*'0'.* not"):
        model(x)
    with pytest.warns(UserWarning, match="'0.weight', '0.bias': no gradient in step 0"):
        model.step()
    after = model.state_dict()
    assert (after["0.weight"] == before["0.weight"]).all() and (after["2.weight"] != before["2.weight"]).any()
    F.cross_entropy(model(x), y).backward()
    model.step()


def test_options_that_cannot_be():
    for options, message in (
        ({"optimizer": "sgd"}, "optimizer is a str"),
        ({"optimizer": [torch.optim.SGD(small().parameters(), 0.1)]}, "optimizer is a list"),
        ({"optimizer": gg.SGD(0.1, schedule=gg.schedules.Cosine())}, "total='auto' is known only in Trainer.fit"),
        ({"strategy": gg.GossipGraD(shuffle_samples=True)}, "shuffle_samples=True: allowed: False"),
        ({"comm": gg.VirtualCluster(2)}, "comm is a VirtualCluster; allowed: gossipgrad.torch.replicas"),
        ({"overlap": 3}, "overlap=3: allowed: True or False"),
        ({"momentum": 3}, "no keyword 'momentum'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            gg.torch.wrap(small(), **options)


def test_under_torchrun_it_says_how_to_launch():
    check_launcher({"WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    check_launcher({"WORLD_SIZE": "4", "LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"})
    with pytest.raises(
        RuntimeError, match=r"torchrun \(WORLD_SIZE=4\), where no MPI runs.*gossipgrad run -n 4 script.py"
    ):
        check_launcher({"WORLD_SIZE": "4", "LOCAL_RANK": "0"})


MISUSE = """
import sys
import warnings
import torch
import torch.nn.functional as F
import gossipgrad as gg
import gossipgrad.torch
sys.path.insert(0, "tests")
from test_torch import Fails, Odd, batch, small, wide
torch.set_num_threads(1)
rank = gg.Team().rank

def refused(text, call):
    try:
        call()
    except (ValueError, TypeError, RuntimeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

refused("ranks differ in what must be equal on all. module, ", lambda: gg.torch.wrap(Odd() if rank else small()))
other = torch.nn.Sequential(torch.nn.Linear(4, 5 + rank), torch.nn.Tanh(), torch.nn.Linear(5 + rank, 3))
shapes = "module, 0.weight: torch.float32 (5, 4) on rank 0; torch.float32 (6, 4) on rank 1"
refused(shapes, lambda: gg.torch.wrap(other))
frozen = small()
frozen[0].requires_grad_(rank == 0)
refused("trained, 0.weight: in Linear on rank 0; absent on rank 1", lambda: gg.torch.wrap(frozen))
refused("seed: 0 on rank 0; 1 on rank 1", lambda: gg.torch.wrap(small(), seed=rank))
# What is wrong on one rank alone is an error on both, before they begin to wait for each other.
refused("" if rank else "module is a int", lambda: gg.torch.wrap(small() if rank else 5))
refused("optimizer is a int" if rank else "", lambda: gg.torch.wrap(small(), 3 if rank else gg.SGD(0.1)))
refused("" if rank else "overlap=3", lambda: gg.torch.wrap(small(), overlap=bool(rank) or 3))

# Registered the other way round, branches in an order of each rank's own; the arenas' order is rank 0's.
class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b, self.a = torch.nn.Linear(4, 3), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.flip = False
    def forward(self, x):
        first, second = (self.b, self.a) if self.flip else (self.a, self.b)
        return self.c(first(x).tanh() + second(x))

torch.manual_seed(rank)
for strategy in (gg.LayerwiseAllReduce(), gg.GossipGraD()):
    model = gg.torch.wrap(Branches(), gg.SGD(0.1, momentum=0.9), strategy)
    names = []
    for step in range(9):
        model.module.flip = step >= 5 or bool(rank)
        F.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
        model.step()
        names.append("".join(layer.name for layer in model._layers))
    assert names == ["abc"] * 7 + ["bac"] * 2, names
    total = sum(one.double().sum().item() for one in model.consensus_state_dict().values())
    print(f"{rank} {model.consensus_distance() < 1e-6} {total:.9f}", flush=True)
    model.close()

# Each rank uses another branch, so the other one has no gradient; or one rank's backward pass fails in the middle.
class Sides(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.c((self.b if rank else self.a)(x).tanh())

def steps(model, count):
    for step in range(count):
        x, y = batch(step, rank)
        try:
            if isinstance(model.module, torch.nn.Sequential) and step == rank + 1:
                model(x)
                F.cross_entropy(model.module[2](Fails.apply(model.module[0](x))), y).backward()
            else:
                F.cross_entropy(model(x), y).backward()
        except ArithmeticError:
            print("fails", rank)
        model.step()

warnings.simplefilter("ignore")
for strategy in (gg.LayerwiseAllReduce(), gg.GossipGraD()):
    for make in (Sides, small):
        model = gg.torch.wrap(make(), gg.SGD(0.1), strategy)
        steps(model, 4)
        assert model.consensus_distance() < 1e-6
        model.close()

# A training state that is damaged on one rank alone.
for strategy in (gg.OverlappedAveraging(), gg.GossipGraD()):
    model = gg.torch.wrap(small(), gg.SGD(0.1, momentum=0.9), strategy, timeout=20.0)
    steps(model, 1)
    good = model.training_state()
    for part, text in (("step", "state: step=None"), ("arenas", "state: arenas is a"), ("module", "state: mo")):
        other = text if rank else f"rank 1: {text}"
        refused(other, lambda: model.load_training_state({**good, part: None} if rank else good))
    refused("step: 1 on rank 0; 2 on rank 1", lambda: model.load_training_state({**good, "step": 1 + rank}))
    model.load_training_state(good)
    steps(model, 1)
    model.close()

# Weights in flight that are written, which is an error before anything is waited for; here with their own values.
for strategy in (gg.OverlappedAveraging(), gg.GossipGraD()):
    model = gg.torch.wrap(wide(), gg.SGD(0.1), strategy, timeout=20.0)
    steps(model, 1)
    with torch.no_grad():
        model.module[0].bias.mul_(1)
    for call in (model.state_dict, model.settle, lambda: model(batch(1)[0])):
        refused("0.bias: was written between model.step() and the next forward pass", call)
    del model

# One rank has a batch less than the other, which waits for it in a step or when it settles.
for strategy in (gg.LayerwiseAllReduce(), gg.GossipGraD()):
    gg.Team().barrier()
    model = gg.torch.wrap(small(), gg.SGD(0.1), strategy, timeout=1.0)
    try:
        steps(model, 3 if rank else 4)
        model.settle()
    except gg.CommunicationError as error:
        print("less", rank, error)
gg.Team().barrier()

# One rank skips a step.
model = gg.torch.wrap(small(), gg.SGD(0.1), gg.AllReduce(), timeout=1.0)
for step in range(3):
    if rank == 1 and step == 1:
        import time
        print("skips", flush=True)
        time.sleep(30)
    F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
    model.step()
"""


def test_misuse_under_mpi_ends_in_errors_on_all_ranks(mpirun):
    done = mpirun(2, MISUSE, env=torch_env(), check=False)
    lines = done.stdout.splitlines()
    assert "skips" in lines, done.stderr
    assert lines.count("fails 0") == lines.count("fails 1") == 4, done.stderr
    less = [line for line in lines if line.startswith("less 0 step 3")]
    assert len(less) == 2 and all("waited" in line and "from rank 1" in line for line in less), lines
    by_rank = [[line.split()[1:] for line in lines if line.startswith(f"{rank} ")] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1] and by_rank[0][0][0] == "True", lines
    assert done.returncode != 0 and "CommunicationError" in done.stderr and "rank 1" in done.stderr, done.stderr


def test_the_benchmark_says_where_its_data_are_to_be(tmp_path):
    """Once without a folder, then with one that is none, or empty: its advice is an option that it has."""
    script = [sys.executable, Path(__file__).parent.parent / "benchmarks" / "torch_learning.py"]
    env = {**os.environ, **torch_env()}
    env.pop("GOSSIPGRAD_DATA", None)
    for more, said in (
        (["mnist"], "--data: missing, and GOSSIPGRAD_DATA is not set"),
        (["mnist", "--data", tmp_path / "none"], "no such folder"),
        (["shakespeare", "--data", tmp_path], "shakespeare not found in"),
        (["photographs", "--data", tmp_path], "imagenet-sample"),
    ):
        done = subprocess.run([*script, *more], env=env, capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_nothing_else_needs_torch():
    import subprocess

    program = "import sys, gossipgrad; assert 'torch' not in sys.modules; assert gossipgrad.torch.wrap"
    assert subprocess.run([sys.executable, "-c", program], env={**os.environ, **torch_env()}).returncode == 0
    program = "import sys; sys.modules['torch'] = None; import gossipgrad as gg; gg.Team(); gg.torch"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, **torch_env()}, capture_output=True)
    assert done.returncode == 1 and b"ImportError: gossipgrad.torch wants PyTorch, 2.1 or newer" in done.stderr


def test_copies_and_pickles_of_the_module_are_plain_modules(tmp_path):
    """As an average of the weights over steps wants them."""
    model = gg.torch.wrap(convolutional(), gg.SGD(0.1))
    F.cross_entropy(model(images(0)[0]), images(0)[1]).backward()
    model.step()
    state = model.state_dict()
    torch.save(model.module, tmp_path / "net.pt")
    for made in (copy.deepcopy(model.module), torch.load(tmp_path / "net.pt", weights_only=False)):
        close(made.state_dict(), state, rtol=0, atol=0)
        plain(made, torch.optim.SGD(made.parameters(), 0.1), 1, images)
        assert (made[0].weight != state["0.weight"]).any() and (model.module[0].weight == state["0.weight"]).all()
    assert model.steps == 1
    for call in (copy.deepcopy, lambda one: torch.save(one, tmp_path / "model.pt")):
        with pytest.raises(TypeError, match="a wrapped module cannot be copied or pickled.*copy.deepcopy"):
            call(model)


# ---- groups of parameters


def _grouped(net, of_torch=False):
    """Weights of the first layer, biases, and the rest; what a group does not set is the optimizer's."""
    biases = [net[0].bias, net[2].bias]
    groups = [{"params": [net[0].weight], "lr": 0.3, "weight_decay": 0.0}, {"params": biases, "lr": 0.02}]
    if of_torch:
        return [*groups, {"params": [net[2].weight]}]
    return groups


def _with_momenta(net, of_torch=False):
    """The same; the first layer's weights have no momentum."""
    groups = _grouped(net, of_torch)
    groups[0]["momentum"] = 0.0
    return groups


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam", "plain base"])
def test_parameter_groups_are_those_of_torch(kind):
    base = {"lr": 0.1, "weight_decay": 0.05}
    if kind == "adam":
        ours, theirs = gg.Adam(**base), lambda groups: torch.optim.Adam(groups, **base)
    else:
        base |= {"momentum": 0.0 if kind == "plain base" else 0.8}
        base |= {"nesterov": True} if kind == "nesterov" else {}
        ours, theirs = gg.SGD(**base), lambda groups: torch.optim.SGD(groups, **base)

    def groups(net, of_torch=False):
        made = _grouped(net, of_torch)
        if kind != "adam":
            made[0]["momentum"] = 0.9
            made[1] |= {"momentum": 0.3, "weight_decay": 0.5}
        return made

    ours = dataclasses.replace(ours, schedule=gg.schedules.StepDecay(every=3, gamma=0.5))
    net, module = small(), small()
    model = gg.torch.wrap(net, ours, groups=groups(net))
    optimizer = theirs(groups(module, True))
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(10):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
        plain(module, optimizer, 1, lambda _, __, step=step: batch(step))
        decay.step()
    close(model.state_dict(), module.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("local", [False, True])
def test_parameter_groups_of_replicas(local):
    """local: each rank's momentum comes before the exchange, which sends all elements as they are."""
    everything = {"mode": "exact", "values": "float32", "factor": 1, "bin_size": 1, "dense_below": 1}
    how = gg.AdaComp(local_momentum=True, **everything) if local else None
    models = gg.torch.replicas(
        small, 2, gg.SGD(0.1, momentum=0.9), gg.AllReduce(), groups=_with_momenta, compression=how
    )
    module = small()
    optimizer = torch.optim.SGD(_with_momenta(module, True), lr=0.1, momentum=0.9)
    trained(models, 4)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(2):
            (F.cross_entropy(module(batch(step, rank)[0]), batch(step, rank)[1]) / 2).backward()
        optimizer.step()
    for model in models:
        close(model.state_dict(), module.state_dict())
    count = iter(range(9))
    with pytest.raises(ValueError, match="groups: '0.weight' is in other groups on rank 1 than on rank 0"):
        gg.torch.replicas(small, 2, groups=lambda net: [{"params": [net[0].weight], "lr": 0.1 + next(count)}])


def test_groups_that_cannot_be():
    net = small()
    first = {"params": net[0].parameters()}
    for groups, message in (
        ({"params": []}, "groups is a dict; allowed: a list of dicts"),
        ([list(net.parameters())], r"groups\[0\]: allowed: a dict with 'params'"),
        ([{**first, "momentun": 0.1}], r"groups\[0\]: 'momentun'.*'momentum'.*allowed for SGD: params, lr, momentum"),
        ([{**first, "lr": -1.0}], r"groups\[0\]: lr=-1.0: allowed: a finite number >= 0"),
        ([{**first, "lr": 1e50}], r"groups\[0\]: lr=1e\+50: allowed: a finite number >= 0 and <= 3.40282e\+38"),
        ([{**first, "lr": 1e38}], r"groups\[0\]: lr=1e\+38: allowed: at most 3.4.* times the optim.* is 0.1"),
        ([{**first, "weight_decay": 1e50}], r"groups\[0\]: weight_decay=1e\+50: allowed: a finite number >= 0 and <="),
        ([{"params": [torch.zeros(3)]}], r"groups\[0\]: params has a tensor that is none; allowed: parameters"),
        ([{"params": ["0.weight"]}], r"groups\[0\]: params has a str; allowed: parameters of the module"),
        ([{"params": net[0].weight}, {"params": net[0].weight}], r"groups\[1\]: '0.weight' is in groups\[0\] too"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            gg.torch.wrap(net, gg.SGD(0.1), groups=groups)
    with pytest.raises(ValueError, match="where the optimizer has lr=0"):
        gg.torch.wrap(net, gg.SGD(0.0), groups=[{"params": net[0].weight, "lr": 0.1}])
    with pytest.raises(ValueError, match="groups: an optimizer of torch has param_groups of its own"):
        gg.torch.wrap(net, torch.optim.SGD(net.parameters(), 0.1), groups=[])
    with pytest.raises(ValueError, match="'momentum'.*allowed for Adam: params, lr, weight_decay"):
        gg.torch.wrap(net, gg.Adam(0.1), groups=[{"params": net[0].weight, "momentum": 0.1}])
    net[0].requires_grad_(False)
    gg.torch.wrap(net, gg.SGD(0.1), groups=[{"params": net.parameters(), "lr": 0.2}]).close()


@pytest.mark.parametrize(
    "how", [lambda net: net.double(), lambda net: setattr(net[2].weight, "data", torch.ones(3, 5))]
)
def test_memory_of_a_parameter_that_was_replaced_is_named(how):
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    how(model.module)
    with pytest.raises(
        RuntimeError, match=r"\d.weight: its memory was replaced after the module was wrapped, as by mod"
    ):
        model(batch(0)[0])
