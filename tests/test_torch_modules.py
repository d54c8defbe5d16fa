"""gossipgrad.torch: modules that PyTorch's users bring, scripted, traced, synchronised and parallel ones."""

from __future__ import annotations

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import batch, close, plain, small, trained, wide  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)


def _partly_scripted():
    first, *others = small()
    return nn.Sequential(torch.jit.script(first), *others)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "eager"),
    [
        (lambda: torch.jit.script(wide()), wide),
        (lambda: torch.jit.trace(wide(), batch(0)[0]), wide),
        (_partly_scripted, small),
    ],
    ids=["scripted", "traced", "partly scripted"],
)
def test_scripted_modules_train_as_eager_ones(make, eager):
    """A scripted module takes no hooks: its weights are waited for before the forward pass."""
    made, wanted = (trained(gg.torch.replicas(one, 3, gg.SGD(0.1, momentum=0.9))) for one in (make, eager))
    for one, other in zip(made, wanted, strict=True):
        close(one, other, rtol=1e-5, atol=1e-6)


def synchronised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.SyncBatchNorm(5), nn.Linear(5, 3))


def test_statistics_over_ranks_are_refused_in_a_virtual_cluster():
    """In one process they would be each rank's own without a word."""
    for strategy in (gg.AllReduce(), gg.GossipGraD()):
        with pytest.raises(
            ValueError, match=r"^1: is a SyncBatchNorm, .* on 2 ranks of a virtual .* BatchNorm, .*Group"
        ):
            gg.torch.replicas(synchronised, 2, strategy=strategy)
    module, net = synchronised(), synchronised()
    model = gg.torch.wrap(module, gg.SGD(0.1))  # one rank has the statistics of all
    for step in range(3):
        nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
    close(model.state_dict(), plain(net, torch.optim.SGD(net.parameters(), 0.1), 3))


def test_modules_that_exchange_gradients_themselves_are_refused():
    with pytest.raises(ValueError, match="module: is a DataParallel, which exchanges gradients itself; .* its .module"):
        gg.torch.wrap(nn.DataParallel(small()))
    with pytest.raises(ValueError, match="^1: is a DataParallel"):
        gg.torch.wrap(nn.Sequential(nn.Linear(4, 4), nn.DataParallel(small())))


def test_what_a_wrapped_model_is_not_is_said():
    """A GradScaler and a scheduler want an optimizer; what the module alone has is at model.module."""
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    model.module.width = 5
    loss = F.cross_entropy(model(batch(0)[0]), batch(0)[1])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0) if hasattr(torch.amp, "GradScaler") else None
    if scaler is not None:
        scaler.scale(loss).backward()
        with pytest.raises(AttributeError, match="no optimizer of torch's, .* autocast with bfloat16.*learning_rate"):
            scaler.step(model)
        net = small()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with gg.torch.wrap(net, optimizer) as other:
            scaler.scale(F.cross_entropy(other(batch(0)[0]), batch(0)[1])).backward()
            with pytest.raises(RuntimeError, match="in place of a GradScaler autocast with bfloat16"):
                scaler.step(optimizer)
            other._step.leave()
    assert not hasattr(model, "param_groups") and not hasattr(model, "nothing")
    with pytest.raises(AttributeError, match="no attribute 'width'; the module has: model.module.width"):
        print(model.width)
    assert model.module.width == 5


def test_a_loss_through_two_models_says_what_to_do():
    one, two = gg.torch.wrap(small(), gg.SGD(0.1)), gg.torch.wrap(nn.Linear(3, 1), gg.SGD(0.1))
    two(torch.zeros(2, 3)).sum().backward()
    two.step()
    fake = one(batch(0)[0])
    two(fake.detach()).sum().backward()
    loss = two.module(fake).sum()
    with pytest.raises(RuntimeError, match=r"a second gradient .* loss.backward\(inputs=list\(the_one_to_train.param"):
        loss.backward()
