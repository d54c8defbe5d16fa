"""gossipgrad.torch: what training loops do with a wrapped module and its gradients, statistics and state."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import warnings

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import (  # noqa: E402
    STRATEGIES,
    Odd,
    batch,
    close,
    convolutional,
    images,
    plain,
    small,
    tokens,
    torch_env,
    trained,
    wide,
)

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)
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


def test_a_trace_shows_the_waits(tmp_path):
    """On a slow network: the waits add up to the exposed seconds, and messages have the modules' names."""
    cluster = gg.VirtualCluster(2, latency=0.01, bandwidth=1e6, compute_time=0.001)
    models = gg.torch.replicas(small, cluster, gg.SGD(0.1), gg.AllReduce(), trace=1000)
    trained(models, 3)
    models[0].write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for model in models:
        own = [one for one in events if one["pid"] == model.rank]
        waits = [one["dur"] for one in own if one["name"] == "wait"]
        assert sum(waits) == pytest.approx(model.counts()["exposed_seconds"] * 1e6, rel=1e-6) and sum(waits) > 0
        assert [one["name"] for one in own].count("step") == 3
    assert any(one["name"] == "gradients 0 to 2" for one in events)
    models.close()
    with pytest.raises(RuntimeError, match="closed"):
        models[0].write_trace(tmp_path / "trace.json")


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
    """A loop that zeroes gradients at this place, in a step of two backward passes; one is not exchanged."""

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


def test_an_optimizer_of_torch_leaves_out_what_has_no_gradient():
    module = small()
    module.add_module("left", nn.Linear(2, 2))
    before = module.left.weight.detach().clone()
    made = torch.optim.SGD(module.parameters(), 0.1, weight_decay=0.1)
    model = gg.torch.wrap(module, made)
    x, y = batch(0)
    with pytest.warns(UserWarning, match="'left.weight', 'left.bias': no gradient in step 0; the optimizer leaves it"):
        F.cross_entropy(module[2](module[1](module[0](x))), y).backward()
        model.step()
    assert (module.left.weight == before).all()


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


@pytest.mark.parametrize(
    "strategy",
    [
        gg.GossipGraD(staleness=1),
        gg.OverlappedAveraging(),
        gg.ElasticAveraging(),
        gg.DiLoCo(period=3),
        gg.NoLoCo(period=3),
    ],
)
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


GOES_ON = """
import io, sys
import torch
import torch.nn.functional as F
import gossipgrad as gg
import gossipgrad.torch
sys.path.insert(0, "tests")
from torch_cases import Odd, tokens
torch.set_num_threads(1)
parts = {"period": 4, "fragments": 2, "delay": 1}

def made(strategy):
    torch.manual_seed(1)
    return gg.torch.wrap(Odd(), gg.SGD(0.05, momentum=0.9), strategy)

def train(model, first, last):
    for step in range(first, last):
        x, y = tokens(step, model.rank)
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        model.step()

for strategy in (gg.GossipGraD(staleness=1), gg.GossipGraD(slices=2), gg.DiLoCo(**parts), gg.NoLoCo(**parts)):
    model = made(strategy)
    train(model, 0, 5)
    state = io.BytesIO()
    torch.save(model.training_state(), state)
    train(model, 5, 11)
    model.settle()
    again = made(strategy)
    again.load_training_state(torch.load(io.BytesIO(state.getvalue())))
    train(again, 5, 6)
    assert again._step.early == model._step.early, "known from the first step on"
    train(again, 6, 11)
    again.settle()
    for name, one in model.state_dict().items():
        assert (one == again.state_dict()[name]).all(), (strategy, name)
    model.close()
    again.close()
print("equal", flush=True)
"""


@pytest.mark.full
def test_training_goes_on_to_the_bit_in_the_order_of_use(mpirun):
    """Where it is another than that of registration, the arenas have it after the first steps."""
    assert mpirun(2, GOES_ON, env=torch_env()).stdout.split() == ["equal"] * 2


def test_an_order_of_layers_goes_on_in_replicas():
    """As of a state that ranks of MPI have written."""

    def train(model, rank):
        for step in range(4):
            F.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
            model.step()

    models = gg.torch.replicas(small, 2, gg.SGD(0.1, momentum=0.9), gg.GossipGraD(staleness=1))
    models[0]._lay_out([1, 0])
    models.run(train)
    states = copy.deepcopy(models.training_states())
    again = gg.torch.replicas(small, 2, gg.SGD(0.1, momentum=0.9), gg.GossipGraD(staleness=1))
    again.load_training_states(states)
    assert [layer.name for layer in again[1]._layers] == ["2", "0"]
    for one in (models, again):
        one.run(train)
        one.settle()
    for one, other in zip(models, again, strict=True):
        close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_step_within_no_sync_leaves_what_it_found():
    """Also where that step lays out the arenas anew, as the first ones do."""
    models = gg.torch.replicas(small, 2, gg.SGD(0.1))
    with models[0].no_sync():
        models[0]._lay_out([1, 0])
        assert not models[0]._step.synchronised
    assert models[0]._step.synchronised


def test_counts_go_on_in_another_order_of_layers():
    """As under MPI, where the order of use is found in the first step."""
    models = gg.torch.replicas(small, gg.VirtualCluster(2, latency=0.01), gg.SGD(0.1), gg.AllReduce())

    def train(model, rank):
        F.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1]).backward()
        model.step()

    models.run(train)
    models.settle()
    before = [model.counts() for model in models]
    models[0]._lay_out([1, 0])
    after = [model.counts() for model in models]
    for key in ("exposed_seconds", "bytes_sent", "messages_sent", "clock_seconds"):
        assert all(now[key] >= then[key] > 0 for then, now in zip(before, after, strict=True)), key
    models.run(train)
    assert all(
        model.counts()["exposed_seconds"] > one["exposed_seconds"] for model, one in zip(models, after, strict=True)
    )


@pytest.mark.full
def test_a_compiled_module():
    module = small()
    model = gg.torch.wrap(torch.compile(module, backend="eager"), gg.SGD(0.1))
    for step in range(3):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        model.step()
    other = small()
    close(model.state_dict(), plain(other, torch.optim.SGD(other.parameters(), 0.1), 3))


@pytest.mark.parametrize("how", ["inputs", "no_sync"])
def test_a_loss_through_another_wrapped_module(how):
    """Two networks; the loss of one goes through the other, as in a GAN."""

    def made():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), nn.Sequential(nn.Linear(2, 16), nn.Tanh())

    def train(generator, critic, end, sync):
        for step in range(5):
            torch.manual_seed(step)
            fake = generator(torch.randn(8, 4))
            end(generator, critic)
            (critic(fake.detach()).mean() - critic(torch.randn(8, 2)).mean()).backward()
            end(critic)
            loss = -critic(fake).mean()
            if how == "inputs":
                loss.backward(inputs=list(generator.parameters()))
            else:
                with sync(critic):
                    loss.backward()
            end(generator)
            if how == "no_sync":
                critic.zero_grad()

    plain_nets = made()
    optimizers = {net: torch.optim.SGD(net.parameters(), 0.05, momentum=0.9) for net in plain_nets}

    def ended(*nets):
        for net in nets:
            if len(nets) == 1:
                optimizers[net].step()
            optimizers[net].zero_grad()

    train(*plain_nets, ended, lambda net: contextlib.nullcontext())
    models = [gg.torch.wrap(net, gg.SGD(0.05, momentum=0.9)) for net in made()]
    train(*models, lambda *nets: nets[0].step() if len(nets) == 1 else None, lambda net: net.no_sync())
    for model, net in zip(models, plain_nets, strict=True):
        close(model.state_dict(), net.state_dict())


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


def test_rank_threads_begin_with_the_callers_settings():
    """Threads that torch makes start with the machine's number of threads, and without autocast."""
    models = gg.torch.replicas(small, 3)

    def seen(model, rank):
        with torch.no_grad():
            dtype = model.module(batch(0)[0]).dtype
        return torch.get_num_threads(), torch.is_grad_enabled(), dtype

    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert models.run(seen) == [(count, True, torch.float32)] * 3
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert models.run(seen) == [(3, False, torch.bfloat16)] * 3
    finally:
        torch.set_num_threads(before)
