"""Every strategy under gossipgrad.torch beside its definition in float64: gradients of plain PyTorch, updates in NumPy.

If arrival times decide what ranks mix, they exchange once, at the end: the definition then leaves one result.
"""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.strategies import BY_NAME

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gossip_reference import Simulation, flat  # noqa: E402
from outer_reference import OuterSteps  # noqa: E402
from test_quasi_global import Reference  # noqa: E402
from torch_cases import batch, small  # noqa: E402

import gossipgrad.torch  # noqa: E402

LEGS = 5, 4  # steps between rests
SEED = 5
SGD = gg.SGD(0.1, momentum=0.9, weight_decay=0.01)


def gradients(weights, step):
    """Each rank's gradient at its weights, as plain PyTorch computes it in float64."""
    found = []
    for rank, own in enumerate(weights):
        net = small().double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(own), net.parameters())
        x, y = batch(step, rank)
        parts = torch.autograd.grad(F.cross_entropy(net(x.double()), y), list(net.parameters()))
        found.append(torch.nn.utils.parameters_to_vector(parts).numpy())
    return np.stack(found)


class Mean:
    """The consensus is the mean of the ranks."""

    cluster = None

    def centre(self):
        return self.w.mean(0)


class Alone(Mean, Simulation):
    """Every rank trains alone."""

    def __init__(self, weights, momentum, optimizer, strategy, seed, like):
        super().__init__(weights, momentum, optimizer, None, seed)
        self.how, self.start = strategy, weights[0].copy()


class MeanGradient(Alone):
    def step(self, gradients):
        super().step(np.broadcast_to(gradients.mean(0), gradients.shape))


class Periodic(Alone):
    def step(self, gradients):
        super().step(gradients)
        if self.t % self.how.period == 0:
            self.w[:], self.v[:] = self.w.mean(0), self.v.mean(0)


class Elastic(Alone):
    def __init__(self, *given):
        super().__init__(*given)
        self.c = self.start

    def centre(self):
        return self.c

    def step(self, gradients):
        super().step(gradients)
        if self.t % self.how.period == 0:
            pull = 0.8 / self.p * (self.w - self.c)
            self.c, self.w = self.c + pull.sum(0), self.w - pull


class OfServer(Alone):
    """At rest a server has added the movements of all ranks."""

    def centre(self):
        return self.start + (self.w - self.start).sum(0)


class OneMeeting(Alone):
    """Two ranks that meet once, before they rest; no message is of an earlier step."""

    cluster = gg.VirtualCluster(2, compute_time=1.0, latency=0.05)

    def settle(self):
        self.w[:] = self.w.mean(0)


class Gossip(Mean, Simulation):
    pass


class QuasiGlobal(Mean, Reference):
    def __init__(self, weights, momentum, optimizer, strategy, seed, like):
        super().__init__(weights, momentum, optimizer, strategy, seed)

    def step(self, gradients):
        super().step(gradients, self.optimizer.lr)

    def settle(self):
        pass


class Outer(Mean, OuterSteps):
    pass


# name -> (definition, strategies, ranks, legs)
END = sum(LEGS)
DEFINITIONS = {
    "gossipgrad": (
        Gossip,
        [
            gg.GossipGraD(),
            gg.GossipGraD(staleness=1),
            gg.GossipGraD(exchange="weights", topology="ring"),
            gg.GossipGraD(exchange="gradients"),
            gg.GossipGraD(slices=2),
            gg.GossipGraD(topology="random", push_sum=True),
        ],
        4,
        LEGS,
    ),
    "quasi-global": (QuasiGlobal, [gg.QuasiGlobal(), gg.QuasiGlobal(mu=0.5, topology="ring")], 4, LEGS),
    "allreduce": (MeanGradient, [gg.AllReduce()], 4, LEGS),
    "layerwise-allreduce": (MeanGradient, [gg.LayerwiseAllReduce()], 4, LEGS),
    "overlapped-averaging": (MeanGradient, [gg.OverlappedAveraging()], 4, LEGS),
    "periodic-allreduce": (Periodic, [gg.PeriodicAllReduce(period=3)], 4, LEGS),
    "elastic-averaging": (Elastic, [gg.ElasticAveraging(period=2)], 4, LEGS),
    "parameter-server": (OfServer, [gg.ParameterServer(period=100), gg.ParameterServer(period=END)], 4, (END,)),
    "pull-gossip": (OneMeeting, [gg.PullGossip(interval=END), gg.PullGossip(interval=END, push_sum=True)], 2, (END,)),
    "push-gossip": (OneMeeting, [gg.PushGossip(interval=END), gg.PushGossip(interval=END, push_sum=True)], 2, (END,)),
    "diloco": (Outer, [gg.DiLoCo(period=3), gg.DiLoCo(period=4, fragments=2)], 4, LEGS),
    "noloco": (Outer, [gg.NoLoCo(period=3), gg.NoLoCo(period=4, fragments=2)], 4, LEGS),
    "no-exchange": (Alone, [gg.NoExchange()], 4, LEGS),
}


def test_every_strategy_has_a_definition():
    assert DEFINITIONS.keys() == BY_NAME.keys()


@pytest.mark.parametrize(
    ("name", "strategy"),
    [pytest.param(name, one, id=f"{name}-{i}") for name, d in DEFINITIONS.items() for i, one in enumerate(d[1])],
)
def test_a_wrapped_module_trains_as_its_strategy_is_defined(name, strategy):
    definition, _, p, legs = DEFINITIONS[name]
    models = gg.torch.replicas(small, definition.cluster or p, SGD, strategy, seed=SEED)
    like = {name: one.detach().numpy() for name, one in small().named_parameters()}
    start = np.tile(flat(like), (p, 1))
    wanted = definition(start, np.zeros_like(start), SGD, strategy, SEED, like)

    def train(model, rank):
        for step in steps:
            x, y = batch(step, rank)
            F.cross_entropy(model(x), y).backward()
            model.step()

    for leg in legs:
        steps = range(wanted.t, wanted.t + leg)
        models.run(train)
        models.settle()
        for step in steps:
            wanted.step(gradients(wanted.w, step))
        wanted.settle()
        found = np.stack([flat(model.state_dict()) for model in models])
        assert np.abs(wanted.w - start).max() > 0.05
        if name != "parameter-server":  # whose answers have the movements that came before
            np.testing.assert_allclose(found, wanted.w, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(flat(models.consensus_state_dict()), wanted.centre(), rtol=2e-5, atol=2e-5)
