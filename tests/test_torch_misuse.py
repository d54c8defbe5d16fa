"""gossipgrad.torch: what cannot be, is an error that says what is allowed."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import STRATEGIES, batch, close, convolutional, images, plain, small, torch_env, wide  # noqa: E402

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch.group import check_launcher  # noqa: E402

torch.set_num_threads(1)
# ---- misuse


def test_what_belongs_to_torch_is_named_where_a_trainer_gets_it():
    with pytest.raises(TypeError, match=r"net is a Sequential; .*trained by gossipgrad\.torch\.wrap\(net, \.\.\.\)$"):
        gg.Trainer(small())
    network = gg.Sequential([gg.Linear(2)], input=(3,))
    with pytest.raises(ValueError, match=r"loss=BCEWithLogitsLoss\(\): .*did you mean 'binary_cross_entropy'\?$"):
        gg.Trainer(network, loss=nn.BCEWithLogitsLoss())
    data = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(
        TypeError, match=r"train is a TensorDataset; .*from_iterable\(torch.*DataLoader\(train, 64\)\)$"
    ):
        gg.Trainer(network).fit(data)
    net = small()
    model = gg.torch.wrap(net, torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(RuntimeError, match="learning_rate: is that of the torch optimizer's param_groups"):
        print(model.learning_rate)


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

    gg.torch.replicas(make, 2, gg.SGD(1e-9, momentum=0.5), STRATEGIES[strategy], overlap=True).run(train)


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


@pytest.mark.parametrize("where", ["before", "backward"])
def test_replicas_of_a_run_that_failed_are_closed_and_can_be_wrapped(where):
    """Others end in the middle of a step; the modules are the user's all the same."""
    models = gg.torch.replicas(small, 3, gg.SGD(0.1))

    def train(model, rank):
        for step in range(4):
            if where == "before" and rank == step == 1:
                raise LookupError("of one rank")
            model(torch.ones(2, 4)).sum().backward()
            if rank == step == 1:
                raise LookupError("of one rank")
            model.step()

    with pytest.raises(LookupError, match="of one rank"):
        models.run(train)
    models.close()
    for model in models:
        assert all(torch.isfinite(one).all() for one in model.state_dict().values())
        gg.torch.wrap(model.module).close()


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
    with pytest.raises(TypeError, match="optimizer: LBFGS, whose step computes the loss anew by a closure"):
        gg.torch.wrap(own, torch.optim.LBFGS(own.parameters()))
    sizes = iter((5, 6))
    with pytest.raises(
        ValueError, match=r"make_module: '0.weight' is torch.float32 \(5, 4\) on rank 0, .*\(6, 4\) on rank 1"
    ):
        gg.torch.replicas(lambda: torch.nn.Sequential(torch.nn.Linear(4, next(sizes))), 2)
    with pytest.raises(TypeError, match="module is a NoneType"):
        gg.torch.replicas(lambda: None, 2)


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_step_of_the_optimizer_beside_the_models_is_an_error(place):
    """It would change the weights of one rank, and the model's would make it once more."""
    module = small()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with pytest.warns(UserWarning, match="one of torch's"):
        model = gg.torch.wrap(module, optimizer)
    wanted = small()
    plain(wanted, torch.optim.SGD(wanted.parameters(), 0.1), 1)
    x, y = batch(0)
    F.cross_entropy(model(x), y).backward()
    if place == "behind":
        model.step()
    with pytest.raises(RuntimeError, match=r"Allowed: model.step\(\) alone"):
        optimizer.step()
    if place == "before":
        model.step()
    scheduler.step()
    close(model.state_dict(), wanted.state_dict())
    model.close()
    F.cross_entropy(module(x), y).backward()
    optimizer.step()  # is the module's own again


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
    needed = [one for one in good if one not in ("settings", "learning_rate", "order", "buffers", "push_sum_since")]
    lacking = [{key: value for key, value in good.items() if key != one} for one in needed]
    for state in ({}, model.state_dict(), momentum, other, wide.training_state(), *lacking):
        with pytest.raises(ValueError, match="state: "):
            model.load_training_state(state)
    close(model.state_dict(), before, rtol=0, atol=0)
    model.load_training_state(good)


def test_a_training_state_of_another_optimizer_or_other_partners_is_a_value_error():
    sgd = gg.torch.wrap(small(), gg.SGD(0.1, momentum=0.9)).training_state()
    lars = gg.torch.wrap(small(), gg.LARS(0.1, momentum=0.9))
    with pytest.raises(ValueError, match="state: momentum is of {'optimizer': 'sgd'}; allowed: of {'optimizer': 'la"):
        lars.load_training_state(sgd)
    compression = gg.AdaComp(bin_size=20, dense_below=1, warmup=0)
    one, other = (
        gg.torch.replicas(small, 3, gg.SGD(0.1), gg.GossipGraD(topology=topology), compression=compression)
        for topology in ("ring", "dissemination")
    )
    with pytest.raises(ValueError, match="'topology': 'ring'.*; allowed: of .*'topology': 'dissemination'"):
        other.load_training_states(one.training_states())
    one, other, few = (
        gg.torch.replicas(small, 4, gg.SGD(0.1), gg.GossipGraD(permutations=few), compression=compression, seed=seed)
        for seed, few in ((1, 2), (2, 2), (1, 3))
    )
    one.load_training_states(one.training_states())
    with pytest.raises(ValueError, match="'seed': 1}; allowed: of .*'permutations': 2, 'seed': 2}"):
        other.load_training_states(one.training_states())
    with pytest.raises(ValueError, match="'permutations': 2, .*; allowed: of .*'permutations': 3, "):
        few.load_training_states(one.training_states())


def test_a_learning_rate_that_was_set_goes_on():
    model, again, other = (gg.torch.wrap(small(), gg.SGD(lr, momentum=0.9)) for lr in (0.1, 0.1, 0.2))
    model.learning_rate = 0.01
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    model.step()
    state = model.training_state()
    for one, rate in ((again, 0.01), (other, 0.2)):
        one.load_training_state(state)
        assert one.learning_rate == rate
    for one in (model, again):
        F.cross_entropy(one(batch(1)[0]), batch(1)[1]).backward()
        one.step()
    close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match="state: learning_rate=-1"):
        again.load_training_state(_damaged(state, learning_rate=-1))
    old = {key: one for key, one in state.items() if key not in ("settings", "learning_rate")}
    again.load_training_state(old)
    assert again.learning_rate == 0.1


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
        (
            {"order": ["0.weight"]},
            r"state: order: \['0.weight'\]; this module has layers of \['0.weight', '2.weight'\]",
        ),
        ({"order": None}, "state: order: None; this module has"),
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
    with pytest.raises(ValueError, match="states: of layers in several orders"):
        models.load_training_states([states[0], _damaged(states[1], order=states[1]["order"][::-1])])
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


def test_late_ranks_are_refused():
    """They would not be late: the steps are the training loop's own."""
    with pytest.raises(ValueError, match="straggler=Straggler.*: allowed only for a Trainer"):
        gg.torch.replicas(small, gg.VirtualCluster(2, straggler=gg.Straggler(1, 1)))


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
from torch.utils.data import DistributedSampler
sys.path.insert(0, "tests")
from test_torch_misuse import Fails
from torch_cases import Odd, batch, small, wide
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
one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
named = torch.nn.ModuleDict({"b": one, "a": two} if rank else {"a": one, "b": two})
order = "order of the module's tensors: a.weight a.bias b.weight b.bias on rank 0; b.weight b.bias a.weight a.bias on r"
refused(order, lambda: gg.torch.wrap(named))
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
    if rank:
        with model.no_sync():
            F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    refused(("" if rank else "rank 1: ") + "training_state(): '0.weight'", model.training_state)
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

# A sampler of another rank, and one whose epochs have one order.
model = gg.torch.wrap(small(), gg.SGD(0.1))
data = list(range(8))
refused(f"is of rank {1 - rank} of 2, here is rank {rank} of 2", lambda: list(DistributedSampler(data, 2, 1 - rank)))
refused(f"is of rank 0 of 4, here is rank {rank} of 2", lambda: list(DistributedSampler(data, 4, 0)))
sampler = DistributedSampler(data, model.size, model.rank)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    list(sampler), list(DistributedSampler(data, 1, 0))
    with torch.no_grad():
        list(sampler)
    sampler.set_epoch(1)
    list(sampler)
    assert not said, said
    list(sampler)
assert ["set_epoch(epoch) before each epoch" in str(one.message) for one in said] == [True], said
print("sampler", flush=True)
model.close()

# One rank has a batch less than the other, which waits for it in a step or when it settles.
for strategy in (gg.LayerwiseAllReduce(), gg.GossipGraD()):
    gg.Team().barrier()
    model = gg.torch.wrap(small(), gg.SGD(0.1), strategy, timeout=1.0)
    try:
        steps(model, 3 if rank else 4)
        model.settle()
    except (ValueError, gg.CommunicationError) as error:
        print("less", rank, type(error).__name__, error)
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


def test_a_wait_is_placed_in_the_users_file():
    """Not in torch's, which calls hooks."""
    from gossipgrad.launch import stall

    found = torch.no_grad()(stall._users_line)()  # called by a function of torch's
    assert found.startswith("test_torch_misuse.py, line "), found


@pytest.mark.full
def test_misuse_under_mpi_ends_in_errors_on_all_ranks(mpirun):
    done = mpirun(2, MISUSE, env=torch_env() | {"GOSSIPGRAD_STALL_SECONDS": "0.3"}, check=False)
    lines = done.stdout.splitlines()
    assert "skips" in lines and lines.count("sampler") == 2, done.stderr
    assert lines.count("fails 0") == lines.count("fails 1") == 4, done.stderr
    layerwise, gossip = [line for line in lines if line.startswith("less 0 ")]
    assert re.search("CommunicationError step 3.* waited .* from rank 1 .*unequal numbers of steps.*loaders", layerwise)
    settle = "ValueError settle: ranks differ in what must be equal on all. steps: 4 on rank 0; 3 on rank 1. .*loaders"
    assert re.search(settle, gossip), gossip
    waits = [line for line in done.stderr.splitlines() if " in step 3 " in line and " in settle " in line]
    assert waits and all(line.endswith("unequal lengths make unequal numbers of steps") for line in waits), done.stderr
    assert not re.search(r"has waited for \S+ s in .* \((graph|_tensor|module).py, line", done.stderr), done.stderr
    by_rank = [[line.split()[1:] for line in lines if line.startswith(f"{rank} ")] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1] and by_rank[0][0][0] == "True", lines
    assert done.returncode != 0 and "CommunicationError" in done.stderr and "rank 1" in done.stderr, done.stderr


@pytest.mark.full
def test_the_benchmark_says_where_its_data_are_to_be(tmp_path):
    """Once without a folder, then with one that is none, or empty: its advice is an option that it has. All in one
    process, since importing PyTorch takes seconds."""
    script = str(Path(__file__).parent.parent / "benchmarks" / "torch_learning.py")
    env = {**os.environ, **torch_env()}
    env.pop("GOSSIPGRAD_DATA", None)
    cases = [
        (["mnist"], "--data: missing, and GOSSIPGRAD_DATA is not set"),
        (["mnist", "--data", str(tmp_path / "none")], "no such folder"),
        (["shakespeare", "--data", str(tmp_path)], "shakespeare not found in"),
        (["photographs", "--data", str(tmp_path)], "imagenet-sample"),
    ]
    program = f"""
import runpy, sys
for words in {[words for words, _ in cases]}:
    sys.argv = [{script!r}, *words]
    try:
        runpy.run_path({script!r}, run_name="__main__")
    except SystemExit as end:
        print("ended", end.code, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    said = done.stderr.split("ended 2\n")
    assert done.returncode == 0 and len(said) == len(cases) + 1 and "Traceback" not in done.stderr, done.stderr
    for (_, wanted), one in zip(cases, said, strict=False):
        assert wanted in one, done.stderr


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


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.training_state(),
        lambda model: model.load_training_state({}),
        lambda model: model.load_state_dict({}),
        lambda model: model.consensus_state_dict(),
        lambda model: model.consensus_distance(),
        lambda model: setattr(model, "learning_rate", 0.1),
    ],
)
def test_calls_of_all_ranks_are_made_outside_of_run(call):
    models = gg.torch.replicas(small, 2, gg.SGD(0.1))
    with pytest.raises(RuntimeError, match=r"(\(\)|\.\.\.) in the function that run calls; allowed: outside of run"):
        models.run(lambda model, _: call(model))
