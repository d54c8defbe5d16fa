"""gossipgrad.torch: modules of PyTorch against our own networks, DDP, plain PyTorch, and MPI against replicas."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import CASES, Odd, batch, close, convolutional, images, plain, small, torch_env, trained  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch.modules import Recorder, layers_of, owners  # noqa: E402

torch.set_num_threads(1)
# ---- what a module consists of


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
from test_torch import MPI_CASES
from torch_cases import batch, convolutional, images, small
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


def backwards(seed=0):
    """Its layers are registered in another order than that of their use, which the arenas get under MPI."""

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(5, 3), nn.Linear(4, 5)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    torch.manual_seed(seed)
    return Backwards()


MPI_CASES = {
    "gossip": (convolutional, images, {"optimizer": gg.SGD(0.05, momentum=0.9)}),
    "late": (small, batch, {"optimizer": gg.Adam(0.01), "strategy": gg.GossipGraD(staleness=1)}),
    "all-reduce": (convolutional, images, {"optimizer": gg.SGD(0.05), "strategy": gg.LayerwiseAllReduce()}),
    "clipped": (small, batch, {"optimizer": gg.SGD(0.5, clip_norm=0.1), "strategy": gg.AllReduce()}),
    "outer steps": (backwards, batch, {"optimizer": gg.SGD(0.1), "strategy": gg.DiLoCo(period=3)}),
    "outer steps of groups": (backwards, batch, {"optimizer": gg.SGD(0.1), "strategy": gg.NoLoCo(period=3)}),
}


@pytest.mark.full
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
from torch_cases import batch, small
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


@pytest.mark.full
def test_all_reduce_is_ddp(mpirun, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BESIDE_DDP)
    done = mpirun(2, [script, tmp_path / "store"], env=torch_env())
    assert sorted(done.stdout.split()) == ["0", "1", "equal", "equal"]
