"""gossipgrad.torch: what writes weights beside model.step() is found, and what may write them may."""

from __future__ import annotations

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import batch, close, small, wide  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)


def loss(model, step=0, rank=0):
    x, y = batch(step, rank)
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.GossipGraD()])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_step_of_an_optimizer_that_was_left_in_the_loop_is_an_error(make, strategy, place):
    """Replicas would drift apart without a word."""

    def train(model, rank):
        left = make(model.parameters(), lr=0.1)
        loss(model, 0, rank).backward()
        if place == "behind":
            model.step()
        with pytest.raises(RuntimeError, match=rf"of a {make.__name__} with '0.weight', which .* model.step\(\) alone"):
            left.step()
        if place == "before":
            model.step()
        loss(model, 1, rank).backward()
        model.step()

    models = gg.torch.replicas(small, 2, gg.SGD(0.1), strategy)
    models.run(train)
    models.settle()
    assert models[0].consensus_distance() < 1e-6
    optimizer = make(models[0].parameters(), lr=0.1)
    models.close()
    F.cross_entropy(models[0].module(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()  # the module is the user's own again


def test_an_optimizer_of_other_parameters_makes_its_steps():
    """A frozen part, or another network, beside a wrapped one."""
    net = small()
    net[0].requires_grad_(False)
    model, other = gg.torch.wrap(net, gg.SGD(0.1)), small(1)
    optimizer = torch.optim.SGD([*other.parameters(), net[0].weight], 0.1)
    loss(model).backward()
    loss(other).backward()
    optimizer.step()
    model.step()


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("of_torch", [True, False])
@pytest.mark.parametrize("when", ["after forward", "after backward"])
def test_a_write_within_a_step_is_an_error(make, overlap, of_torch, when):
    def write(net):
        with torch.no_grad():
            net[2].bias.add_(0.1)

    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1) if of_torch else gg.SGD(0.1)
    model = gg.torch.wrap(net, optimizer, overlap=overlap)
    value = loss(model)
    if when == "after forward":
        write(net)
        with pytest.raises(RuntimeError, match=r"2.bias: was written between the forward pass and model.step\(\)"):
            model(batch(1)[0])
        return
    value.backward()
    write(net)
    with pytest.raises(RuntimeError, match=r"2.bias: was written between the forward pass and model.step\(\), as an"):
        model.step()


def test_a_write_between_two_passes_of_a_step_is_an_error():
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    with model.no_sync():
        loss(model).backward()
    with torch.no_grad():
        model.module[0].weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="0.weight: was written between"):
        model(batch(1)[0])


class Clamped(nn.Module):
    """Writes its weights itself in each forward pass, and evaluates within a step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(5, 4, max_norm=0.5), nn.Linear(12, 3)

    def forward(self, x):
        with torch.no_grad():
            self.last.weight.clamp_(-0.2, 0.2)
        return self.last(self.words(x).flatten(1))


@pytest.mark.parametrize("of_torch", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
def test_a_module_writes_its_own_weights(of_torch, accumulate):
    x, y = torch.tensor([[0, 1, 2], [3, 4, 0]]), torch.tensor([0, 2])

    def train(model, rank):
        for _ in range(3):
            if accumulate:
                with model.no_sync():
                    F.cross_entropy(model(x), y).backward()
                with torch.no_grad():
                    model(x)
                    model.module.words(x)
            F.cross_entropy(model(x), y).backward()
            model.step()

    def optimizer(net):
        return torch.optim.SGD(net.parameters(), 0.1)

    gg.torch.replicas(Clamped, 2, optimizer if of_torch else gg.SGD(0.1)).run(train)


def test_writes_through_data_pass_by():
    """They change no version, which the page says."""
    model = gg.torch.wrap(small(), gg.SGD(0.0))
    loss(model).backward()
    model.module[0].weight.data.zero_()
    model.step()
    assert not model.module[0].weight.any()


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.GossipGraD()])
def test_weights_are_written_between_two_steps_after_settle(strategy):
    def train(model, rank):
        for step in range(3):
            loss(model, step, rank).backward()
            model.step()
            model.settle()
            with torch.no_grad():
                for one in model.parameters():
                    one.clamp_(-0.05, 0.05)

    models = gg.torch.replicas(small, 2, gg.SGD(0.01), strategy)
    models.run(train)
    states = [model.state_dict() for model in models]
    assert all(one.abs().max() <= 0.05 for state in states for one in state.values())
    if isinstance(strategy, gg.AllReduce):
        close(states[0], states[1], rtol=0, atol=0)
