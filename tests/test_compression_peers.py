"""The peers of benchmarks/compression.py: what is sent and what is held back is the gradient, and bytes are right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
sys.path.insert(0, str(ROOT / "benchmarks"))
import compression_peers as peers  # noqa: E402

SHAPES = [torch.Size(one) for one in ((12, 3, 5, 5), (12,), (40, 60), (40,))]
RANKS = 3


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(RANKS)]


@pytest.mark.parametrize("steps", [1, 4])
def test_top_k_holds_back_what_it_does_not_send(steps):
    peer = peers.TopK(SHAPES, RANKS, 0.05)
    whole = [torch.zeros(shape) for shape in SHAPES]
    sent = [torch.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        given = gradients(step)
        for i, mean in enumerate(peer.mean(given)):
            whole[i] += sum(of_rank[i] for of_rank in given) / RANKS
            sent[i] += mean
            assert i in (1, 3) or 0 < (mean != 0).sum() <= RANKS * round(0.05 * mean.numel())
    for i in range(len(SHAPES)):
        left = sum(peer.error[i]).reshape(SHAPES[i]) if i in peer.error else 0
        torch.testing.assert_close(sent[i] + left, whole[i])
    assert peer.contributed == steps * (8 * (45 + 120) + 4 * 52)
    assert peer.sent() == 2 * peer.contributed  # to both others


def test_powersgd_holds_back_what_its_factors_miss():
    peer = peers.PowerSGD(SHAPES, RANKS, 2)
    for step in range(3):
        given = gradients(step)
        before = [e.clone() for e in peer.error[2]]
        mean = peer.mean(given)
        assert torch.linalg.matrix_rank(mean[2]) == 2
        torch.testing.assert_close(mean[1], sum(of_rank[1] for of_rank in given) / RANKS)
        for of_rank, old, new in zip(given, before, peer.error[2], strict=True):
            torch.testing.assert_close(mean[2] + new, of_rank[2] + old)
    assert peer.contributed == 3 * 4 * (2 * (12 + 75) + 12 + 2 * (40 + 60) + 40)
    assert peer.sent() == pytest.approx(peer.contributed * 4 / 3)


def test_powersgd_of_full_rank_is_the_mean():
    """A gradient of rank 2, the same on all ranks, comes through two factors whole after one step of iteration."""
    peer = peers.PowerSGD([torch.Size((40, 60))], RANKS, 2)
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(40, 2, generator=generator) @ torch.randn(2, 60, generator=generator)
    torch.testing.assert_close(peer.mean([[one]] * RANKS)[0], one, rtol=1e-4, atol=1e-4)


def test_small_matrices_travel_dense():
    peer = peers.PowerSGD([torch.Size((6, 8))], RANKS, 2)
    peer.mean([[torch.ones(6, 8)]] * RANKS)
    assert peer.contributed == 4 * 48


HOOK = """
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

sys.path.insert(0, "benchmarks")
import compression_peers as peers

torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
module = torch.nn.Linear(60, 40, bias=False)
wrapped = torch.nn.parallel.DistributedDataParallel(module)
state = hooks.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
wrapped.register_comm_hook(state, hooks.powerSGD_hook)
peer = peers.PowerSGD([module.weight.shape], 1, 2)
for step in range(6):
    x, wanted = torch.randn(8, 60), torch.randn(8, 40)
    alone = torch.autograd.grad((module(x) - wanted).square().sum(), module.weight)[0]
    kept = [one.clone() for of in (state.q_memory_dict, state.error_dict) for one in of.values()]
    module.zero_grad()
    (wrapped(x) - wanted).square().sum().backward()
    if step < 3:
        continue
    if step == 3:
        peer.factor[0], peer.error[0] = kept[0].view(60, 2), [kept[1].view(40, 60)]
    torch.testing.assert_close(module.weight.grad, peer.mean([[alone]])[0], rtol=1e-4, atol=1e-4)
print("equal", flush=True)
os._exit(0)  # Gloo's threads may abort a process that takes them down
"""


def test_powersgd_is_that_of_the_hook():
    """From a step on, whose factor and error are the hook's."""
    assert torch.distributed.is_available()
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, "-c", HOOK], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr
