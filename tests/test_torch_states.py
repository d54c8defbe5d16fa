"""gossipgrad.torch: whose a training state is, and the state of all ranks that one file holds."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

from torch_cases import batch, close, convolutional, images, plain, small, torch_env, trained  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def made(p=2, optimizer=None, strategy=None, **options):
    optimizer = gg.SGD(0.1, momentum=0.9) if optimizer is None else optimizer
    return gg.torch.replicas(small, p, optimizer, strategy, **options)


def from_step(models, first, last):
    trained(models, last - first, lambda step, rank: batch(step + first, rank))


def test_a_state_goes_on_where_it_was_made():
    models = made(2)
    from_step(models, 0, 2)
    states = models.training_states()
    assert [(one["rank"], one["size"], one["settings"]["strategy"]) for one in states] == [
        (0, 2, "gossipgrad"),
        (1, 2, "gossipgrad"),
    ]
    for wrong, message in (
        ([states[0]] * 2, "state: is that of rank 0 of 2, here is rank 1 of 2; .*consensus_training_state"),
        (states[::-1], "state: is that of rank 1 of 2, here is rank 0 of 2; "),
        ([{**states[0], "rank": "0"}, states[1]], "state: rank='0': allowed: an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            made(2).load_training_states(wrong)
    with pytest.raises(ValueError, match="state: is that of rank 0 of 2, here is rank 0 of 1; "):
        gg.torch.wrap(small(), gg.SGD(0.1, momentum=0.9)).load_training_state(states[0])
    with pytest.raises(ValueError, match="state: is that of rank 0 of 2, here is rank 0 of 4; "):
        made(4).load_training_states(states * 2)
    with pytest.raises(ValueError, match="state: is of strategy 'gossipgrad', here is 'allreduce'; .*consensus_trai"):
        made(2, strategy=gg.AllReduce()).load_training_states(states)
    made(2).load_training_states(states)


def test_a_state_of_before_goes_on_with_a_warning():
    models = made(2)
    from_step(models, 0, 2)
    old = [
        {key: one for key, one in state.items() if key not in ("rank", "size")} for state in models.training_states()
    ]
    again = made(2)
    with pytest.warns(
        UserWarning, match="state: does not say of which rank .* of 2 ranks; that is not checked"
    ) as said:
        again.load_training_states(old)
    assert sum("does not say" in str(one.message) for one in said) <= 2
    for one in (models, again):
        from_step(one, 2, 4)
    for one, other in zip(models, again, strict=True):
        close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["sgd", "adam", "torch sgd"])
def test_one_state_for_all_goes_on_as_if_nothing_had_been(kind, tmp_path):
    """Under an all-reduce replicas are equal, so one file is enough. Moments of a torch optimizer count as a mean."""
    optimizer = {"sgd": gg.SGD(0.1, momentum=0.9), "adam": gg.Adam(0.01), "torch sgd": sgd}[kind]
    models = made(2, optimizer, gg.AllReduce())
    from_step(models, 0, 3)
    state = models.consensus_training_state()
    assert (state["rank"], state["size"], state["step"]) == (None, 2, 3)
    torch.save(state, tmp_path / "run.pt")
    again = made(2, optimizer, gg.AllReduce())
    again.load_training_states(torch.load(tmp_path / "run.pt"))
    for one in (models, again):
        from_step(one, 3, 6)
    exact = {} if kind == "torch sgd" else {"rtol": 0, "atol": 0}
    for one, other in zip(models, again, strict=True):
        close(one.state_dict(), other.state_dict(), **exact)
        assert other.steps == 6


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (gg.GossipGraD(), gg.AllReduce()),
        (gg.DiLoCo(period=2), gg.GossipGraD()),
        (gg.AllReduce(), gg.DiLoCo(period=2)),
        (gg.ElasticAveraging(), gg.NoLoCo(period=2)),
        (gg.PushGossip(push_sum=True), gg.ElasticAveraging()),
    ],
)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_one_state_for_all_goes_to_other_ranks_and_strategies(there, here, p):
    """All ranks begin with the consensus, and with the mean of moments."""
    models = made(3, strategy=there)
    from_step(models, 0, 3)
    mean = models.consensus_state_dict()
    states = models.training_states()
    again = made(p, strategy=here)
    again.load_training_states(models.consensus_training_state())
    close(again.consensus_state_dict(), mean)
    moments = {
        name: sum(one["arenas"]["momentum"][name].double() for one in states) / 3 for name in states[0]["consensus"]
    }
    for state in again.training_states():
        close(state["module"], mean)
        for name, one in state["arenas"]["momentum"].items():
            torch.testing.assert_close(one.double(), moments[name], rtol=1e-6, atol=1e-7)
    from_step(again, 3, 5)
    assert all(torch.isfinite(one).all() for one in again.consensus_state_dict().values())


def test_one_state_for_all_with_residues_and_statistics():
    """What was not sent is left behind; statistics are the mean's."""
    compression = gg.AdaComp(bin_size=20, dense_below=1, warmup=0)
    models = gg.torch.replicas(convolutional, 2, gg.SGD(0.1), gg.AllReduce(), compression=compression)
    trained(models, 3, images)
    assert any(one.any() for one in models.training_states()[0]["arenas"]["residue"].values())
    state = models.consensus_training_state()
    assert set(state["arenas"]) == {"weight"}
    again = gg.torch.replicas(convolutional, 2, gg.SGD(0.1), gg.AllReduce(), compression=compression)
    trained(again, 2, images)
    again.load_training_states(state)
    for made_again in again.training_states():
        assert not any(one.any() for one in made_again["arenas"]["residue"].values())
        close(made_again["module"], models.consensus_state_dict(), rtol=0, atol=0)


def test_another_state_of_all_ranks_is_a_value_error():
    state = made(2, gg.SGD(0.1)).consensus_training_state()
    with pytest.raises(ValueError, match="state: has no 'momentum', which this optimizer wants"):
        made(2).load_training_states(state)
    with pytest.raises(
        ValueError, match="state: momentum is of {'optimizer': 'sgd'}; allowed: of {'optimizer': 'lars'}"
    ):
        made(2, gg.LARS(0.1, momentum=0.9)).load_training_states(made(2).consensus_training_state())
    damaged = {**state, "arenas": {"weight": {}}}
    with pytest.raises(ValueError, match="state: weight, '0.weight': absent"):
        made(2, gg.SGD(0.1)).load_training_states(damaged)


def test_an_optimizers_state_says_whose_it_is(tmp_path):
    """As users of DDP save it: rank 0's, which all ranks load."""
    nets: list = []

    def optimizer(net):
        nets.append(sgd(net))
        return nets[-1]

    models = made(2, optimizer)
    from_step(models, 0, 2)
    first, second = nets
    torch.save(first.state_dict(), tmp_path / "optimizer.pt")
    state = torch.load(tmp_path / "optimizer.pt")
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(
        ValueError, match="the optimizer's state: is that of rank 0 of 2, here is rank 1 of 2; .*Allowed"
    ):
        second.load_state_dict(state)
    for place, one in before["state"].items():
        assert torch.equal(second.state_dict()["state"][place]["momentum_buffer"], one["momentum_buffer"])
    first.load_state_dict(state)
    other = small()
    sgd(other).load_state_dict(state)  # of a module that is not wrapped
    plain(other, own := sgd(other), 1)
    second.load_state_dict(own.state_dict())  # plain torch's, as of DDP, is that of all ranks
    models.close()
    assert "gossipgrad" not in first.state_dict()
    alone = gg.torch.wrap(other, own)
    assert "gossipgrad" not in own.state_dict()  # one rank's is that of all
    alone.close()


def test_a_state_is_a_copy():
    """Training that goes on changes neither what was given nor, by what was loaded, another rank."""
    models = made(2, sgd, gg.NoExchange())
    from_step(models, 0, 2)
    states, whole = models.training_states(), models.consensus_training_state()
    before = copy.deepcopy((states, whole))
    from_step(models, 2, 3)
    models.load_training_states(whole)
    from_step(models, 2, 3)
    for one, other in zip((*states, whole), (*before[0], before[1]), strict=True):
        close(one["module"], other["module"], rtol=0, atol=0)
        for place, values in other["optimizer"]["state"].items():
            assert torch.equal(one["optimizer"]["state"][place]["momentum_buffer"], values["momentum_buffer"])


DDP = """
import io, sys
sys.path.insert(0, "tests")
import torch, torch.nn.functional as F
import gossipgrad as gg, gossipgrad.torch
from torch_cases import batch, small
from test_torch_states import sgd
torch.set_num_threads(1)
rank = gg.Team().rank

def train(model, first, last):
    for step in range(first, last):
        x, y = batch(step, rank)
        F.cross_entropy(model(x), y).backward()
        model.step()

def shared(value):  # a file of rank 0's
    stream = io.BytesIO()
    torch.save(value, stream)
    import numpy as np
    data = gg.Team().broadcast(np.frombuffer(stream.getvalue(), np.uint8) if rank == 0 else None)
    return torch.load(io.BytesIO(data.tobytes()))

for make in (sgd, lambda net: gg.SGD(0.1, momentum=0.9)):
    net = small()
    optimizer = make(net)
    model = gg.torch.wrap(net, optimizer, gg.AllReduce())
    train(model, 0, 3)
    state = shared(model.consensus_training_state())
    if make is sgd:
        of_first = shared(optimizer.state_dict())
        try:
            optimizer.load_state_dict(of_first)
            print("loaded", rank)
        except ValueError as error:
            print("refused", rank, "rank 0 of 2, here is rank 1 of 2" in str(error))
    try:
        model.load_training_state(shared(model.training_state()))
    except ValueError as error:
        print("state", rank, "is that of rank 0 of 2, here is rank 1 of 2" in str(error))
    train(model, 3, 6)
    wanted = model.consensus_state_dict()
    net = small()
    again = gg.torch.wrap(net, make(net), gg.AllReduce())
    again.load_training_state(state)
    train(again, 3, 6)
    apart = max((one - wanted[name]).abs().max().item() for name, one in again.consensus_state_dict().items())
    print("apart", rank, apart < 1e-6, apart)
    other = small(rank)
    try:
        again.load_state_dict(other.state_dict())
    except ValueError as error:
        print("differ", rank, "load_state_dict: ranks differ" in str(error))
    model.close()
    again.close()
"""


def test_checkpoints_as_users_of_ddp_write_them(mpirun):
    done = mpirun(2, DDP, env=torch_env())
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["loaded", "0"] in lines and ["refused", "1", "True"] in lines, done.stdout
    assert [line for line in lines if line[0] == "state"] and all(
        line[2] == "True" for line in lines if line[0] != "loaded"
    )
    assert sum(line[0] == "apart" for line in lines) == sum(line[0] == "differ" for line in lines) == 4, done.stdout


IRREGULAR = [[1, 2, 3, 4, 0], [1, 0, 0, 0, 0]]


def silent(model):
    """A step that mixes and changes nothing."""
    model(torch.zeros(2, 4)).sum().backward()
    model.step()


@pytest.mark.parametrize("how", ["state of all", "weights"])
def test_what_is_loaded_is_the_mean_that_push_sum_keeps(how):
    """Its scalars begin at 1 there: with those of another past the mean would move as weights are mixed."""
    strategy = gg.GossipGraD(topology=IRREGULAR, push_sum=True, exchange="weights")

    def ranks():
        return gg.torch.replicas(lambda: torch.nn.Linear(4, 3), 5, gg.SGD(0.0), strategy)

    models = ranks()
    models.run(lambda model, rank: [silent(model) for _ in range(3)])
    if how == "state of all":
        state = models.consensus_training_state()
        models = ranks()
        models.load_training_states([state] * 5)
    else:
        state = models[0].consensus_state_dict()
        for model in models:
            model.load_state_dict(state)
    generator = np.random.default_rng(1)
    own = [generator.standard_normal((3, 4)).astype(np.float32) for _ in range(5)]
    core = models[0]._group.core
    assert core.push_sum_since == 3
    for rank, array in enumerate(own):  # ranks that differ
        core.load_arena("weight", core.arena("weight", rank) | {"weight": array}, rank)
    mean = np.mean(own, axis=0, dtype=np.float64)
    for _ in range(4):
        np.testing.assert_allclose(models[0].consensus_state_dict()["weight"].numpy(), mean, atol=1e-6)
        models.run(lambda model, rank: silent(model))
