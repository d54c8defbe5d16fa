"""Adam of torch under gossip: the second moment is that of the mean gradient, against float64."""

from types import SimpleNamespace

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch import second_moment  # noqa: E402

SHAPE, STEPS = (3, 4), 40


def gradients():
    return np.random.default_rng(0).standard_normal((STEPS, *SHAPE))


def share(beta, ranks, t):
    """From the definition: the momentum's noise is the sum over ages of the squares of the gradients' shares."""
    noise = sum(((1 - beta) * beta**age / (1 - beta**t)) ** 2 for age in range(t))
    return max((1 / ranks - noise) / (1 - noise), 0.0) if t > 2 / (1 - beta) else 1.0


@pytest.mark.core(99)
@pytest.mark.parametrize("ranks", [2, 4, 64])
@pytest.mark.parametrize(
    ("make", "how"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.5, 0.95)}),
        (torch.optim.Adam, {"maximize": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "foreach": False}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "fused": True}),
    ],
)
def test_steps_are_those_of_the_rule(make, how, ranks):
    weight = torch.nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
    optimizer = make([weight], lr=0.01, **how)
    beta1, beta2 = how.get("betas", (0.9, 0.999))
    decay, decoupled = how.get("weight_decay", 0.0), make is torch.optim.AdamW
    w, m, s = np.ones(SHAPE), np.zeros(SHAPE), np.zeros(SHAPE)
    for t, g in enumerate(gradients(), 1):
        weight.grad = torch.from_numpy(g.copy())
        second_moment.correct(optimizer, ranks)
        optimizer.step()
        g = -g if how.get("maximize") else g
        w, g = (w * (1 - 0.01 * decay), g) if decoupled else (w, g + decay * w)
        m = beta1 * m + (1 - beta1) * g
        n, a = m / (1 - beta1**t), share(beta1, ranks, t)
        s = beta2 * s + (1 - beta2) * (a * g * g + (1 - a) * n * n)
        w = w - 0.01 * n / (np.sqrt(s / (1 - beta2**t)) + 1e-8)
    np.testing.assert_allclose(optimizer.state[weight]["exp_avg_sq"].numpy(), s, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(weight.detach().numpy(), w, rtol=1e-9)


@pytest.mark.core(99)
@pytest.mark.parametrize("scale", [1e-18, 1e-9, 1.0])
def test_no_second_moment_becomes_negative(scale):
    """Where the gradient takes back the whole momentum, rounding alone decides the sign."""
    beta1, beta2 = 0.9, 0.5
    gradient = scale * torch.rand(1000, generator=torch.Generator().manual_seed(0))
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.Adam([weight], lr=0.01, betas=(beta1, beta2))
    for _ in range(20):
        weight.grad = torch.zeros(1000)
        optimizer.step()
    optimizer.state[weight]["exp_avg"].copy_(-gradient * (1 - beta1) / beta1)
    weight.grad = gradient
    second_moment.correct(optimizer, 64)
    optimizer.step()
    assert (optimizer.state[weight]["exp_avg_sq"] >= 0).all()
    assert weight.isfinite().all()


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("strategy", "make", "corrected"),
    [
        (gg.GossipGraD(), torch.optim.Adam, True),
        (gg.GossipGraD(exchange="weights"), torch.optim.AdamW, True),
        (gg.PushGossip(), torch.optim.Adam, True),
        (gg.GossipGraD(exchange="gradients"), torch.optim.Adam, False),
        (gg.GossipGraD(hierarchical=True), torch.optim.Adam, False),
        (gg.AllReduce(), torch.optim.Adam, False),
        (gg.GossipGraD(), torch.optim.NAdam, False),
    ],
)
def test_it_is_done_under_gossip_of_weights_alone(strategy, make, corrected, monkeypatch):
    calls = []
    monkeypatch.setattr(second_moment, "correct", lambda optimizer, ranks: calls.append(ranks))
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = make([weight])
    exchange = strategy.exchange if strategy.name == "gossipgrad" else None
    group = SimpleNamespace(strategy=strategy, exchange=exchange, team=SimpleNamespace(size=4))
    handles = second_moment.of_mean(optimizer, group)
    optimizer.step()
    assert calls == [4] * corrected
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert calls == [4] * corrected


@pytest.mark.core(99)
def test_a_wrapped_module_has_it_until_it_is_closed():
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters())
    model = gossipgrad.torch.wrap(net, optimizer, gg.GossipGraD())
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    model.close()
    assert not optimizer._optimizer_step_pre_hooks
