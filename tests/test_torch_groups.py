"""gossipgrad.torch: groups of parameters with settings of their own, and memory that was replaced."""

from __future__ import annotations

import dataclasses

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch_cases import batch, close, plain, small, trained  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)
# ---- groups of parameters


def _grouped(net, of_torch=False):
    """Weights of the first layer, biases, and the rest; what a group does not set is the optimizer's."""
    biases = [net[0].bias, net[2].bias]
    groups = [{"params": [net[0].weight], "lr": 0.3, "weight_decay": 0.0}, {"params": biases, "lr": 0.02}]
    if of_torch:
        return [*groups, {"params": [net[2].weight]}]
    return groups


def _with_momenta(net, of_torch=False):
    """As _grouped, but the first layer's weights have no momentum."""
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
