"""A newcomer's wrapped module takes its donor's buffers, frozen tensors and optimizer of torch."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_buffers import Buffered, dense  # noqa: E402
from test_torch_device import LateCopies  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import batch, small  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.launch import failure, origin  # noqa: E402
from gossipgrad.torch import device  # noqa: E402
from gossipgrad.torch.modules import layers_of, tensors_of  # noqa: E402
from gossipgrad.torch.newcomers import given, take  # noqa: E402


class Extra(nn.Module):
    """With frozen parameters, a part of a larger memory, and a state of its own."""

    def __init__(self, seed):
        super().__init__()
        self.of, self.frozen, self.count = Buffered(seed), nn.Linear(3, 3).requires_grad_(False), seed
        self.frozen.weight.fill_(float(seed))
        self.register_buffer("part", torch.full((1000,), float(seed))[:2])

    def get_extra_state(self):
        return self.count

    def set_extra_state(self, state):
        self.count = state

    def forward(self, x):
        return self.frozen(self.of(x))


def trained(module, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(step)
        F.cross_entropy(module(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_newcomer_takes_all_that_no_arena_has(compiled):
    donor, newcomer = Extra(1), Extra(4)
    optimizers = [torch.optim.Adam(one.of.parameters(), lr=0.1) for one in (donor, newcomer)]
    trained(donor, optimizers[0], 3)
    optimizers[0].param_groups[0]["lr"] = 0.05
    own = {name: dense(one) for name, one in newcomer.named_parameters() if one.requires_grad}
    wrapped = [torch.compile(one, backend="eager") if compiled else one for one in (donor, newcomer)]
    data = given(wrapped[0], layers_of(wrapped[0]), optimizers[0], 0.25)
    assert len(data) < 20000
    assert take(data, wrapped[1], layers_of(wrapped[1]), optimizers[1]) == 0.25
    there, here = tensors_of(donor), tensors_of(newcomer)
    statistics = ("of.norm.running_mean", "of.norm.running_var")
    for name, one in here.items():
        assert torch.equal(dense(one), own[name] if name in own else dense(there[name])) != (name in statistics), name
    assert newcomer.count == 1 and newcomer.of.expanded.stride() == (0, 1)
    first, second = (one.state_dict() for one in optimizers)
    assert first["param_groups"] == second["param_groups"] and second["param_groups"][0]["lr"] == 0.05
    for place, state in first["state"].items():
        assert all(torch.equal(one, second["state"][place][name]) for name, one in state.items())


def test_what_cannot_be_given_is_an_error_of_the_newcomer_alone():
    donor, newcomer = Extra(1), Extra(4)
    for value, why in ((lambda: 0, "pickle local object.*"), (Buffered, "GLOBAL test_torch_buffers.Buffered [^.]*")):
        donor.count = value  # not to be written; written, and not to be read
        with pytest.raises(ValueError, match=rf"this newcomer cannot join: the results of get_.*{why}\). Allowed"):
            take(given(donor, layers_of(donor), None, None), newcomer, layers_of(newcomer), None)
    assert newcomer.count == 4


def test_a_buffer_that_the_donor_does_not_have_is_named():
    """And nothing is written then."""
    donor, newcomer = Extra(1), Extra(4)
    newcomer.register_buffer("mine", torch.ones(2))
    data = given(donor, layers_of(donor), None, None)
    with pytest.raises(ValueError, match="^this newcomer cannot join: the group's module does not have 'mine'; all"):
        take(data, newcomer, layers_of(newcomer), None)
    assert newcomer.part[0] == 4


def grown(donor, newcomer):
    """What the core does: the newcomer's arenas and step are its donor's. Then the rest."""
    for name, kind in newcomer._group.core.arenas().items():
        if kind != "gradient":
            newcomer._group.core.load_arena(name, donor._group.core.arena(name, 0), 0)
    newcomer._group.core.step = donor.steps
    newcomer._group._take(donor._group._given_to_new())


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("fused", [True, False])
def test_a_newcomer_goes_on_as_its_donor(fused, on_device, monkeypatch):
    if on_device:
        monkeypatch.setattr(device, "copies_of", lambda _: LateCopies())
    models = []
    for seed in (1, 4):
        module = Buffered(seed)
        with torch.no_grad():
            module.net.weight.mul_(seed)
        optimizer = gg.Adam(0.1) if fused else torch.optim.Adam(module.parameters(), 0.1)
        models.append(gg.torch.wrap(module, optimizer))

    def train(model, steps):
        for step in range(steps):
            x, y = batch(step)
            if on_device:
                model._copies.clock += 1
            F.cross_entropy(model(x), y).backward()
            if on_device:
                model._copies.readers = model._copies.clock
            model.step()

    donor, newcomer = models
    train(donor, 3)
    if fused:
        donor.learning_rate = 0.05
    else:
        donor._optimizer.param_groups[0]["lr"] = 0.05
    grown(donor, newcomer)
    for more in (0, 2):
        for model in models:
            train(model, more)
        there, here = (model.state_dict() for model in models)
        assert all(torch.equal(dense(one), dense(there[name])) for name, one in here.items())
        assert newcomer.steps == donor.steps == 3 + more
    assert not fused or newcomer.learning_rate == donor.learning_rate == 0.05
    for model in models:
        model.close()


def test_the_order_of_layers_stays_where_ranks_may_die_or_join():
    """A death while the arenas are made anew would find none; newcomers have the order of the module."""
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    state = copy.deepcopy(model.training_state())
    state["order"] = state["order"][::-1]
    for name, one in state["arenas"]["weight"].items():
        one.fill_(len(name))
    layers = list(model._layers)
    stands_in = {"team": model._group.team, "leave": lambda: None, "check_step": lambda step: None}
    model._group.survivor = SimpleNamespace(**stands_in)
    model.load_training_state(state)
    assert model._layers == layers
    assert all(bool((one == len(name)).all()) for name, one in model.state_dict().items())
    model._group.survivor = None
    model.close()


def test_a_newcomers_wrong_argument_is_its_error(monkeypatch):
    """It has no group yet in which others could hear of it."""
    monkeypatch.setenv(origin.NET, json.dumps({"rank": 2, "members": 2, "size": 3}))
    monkeypatch.setattr(failure, "launched_size", lambda: 2)
    monkeypatch.setattr(failure, "has_joined", False)  # other tests of this process may have trained
    with pytest.raises(TypeError, match="optimizer is a str"):
        gg.torch.wrap(small(), "sgd")


def test_lightning_is_refused_where_ranks_may_join(monkeypatch):
    lightning = pytest.importorskip("gossipgrad.torch.lightning")
    for name, where in (("survives", origin), ("may_grow", origin)):
        monkeypatch.setattr(where, name, lambda: True)
    monkeypatch.setattr(lightning, "Team", lambda *_, **__: gg.Team(gg.VirtualCluster(1)))
    with pytest.raises(ValueError, match=r"GossipStrategy: new ranks \(run --respawn.*Allowed: without --respawn"):
        lightning.GossipStrategy()
