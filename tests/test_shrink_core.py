"""A network that shrinks while it trains, at the level of the core: what every rank goes on with, and that it does."""

import numpy as np
import pytest
from test_reshape import STRATEGIES, begun, everything, trainer_of

import gossipgrad as gg
from gossipgrad import _core

OPTIMIZERS = {"sgd": gg.SGD(lr=0.05, momentum=0.9), "adam": gg.Adam(lr=0.01)}
TWINS = {"conv": (0, 2), "fc": (1, 5)}  # of each layer two units that are the same, with what reads them


def network():
    """A convolution with its normalisation, of 4 filters of which 2 are twins, and 8 units of which 2 are."""
    layers = [gg.Conv2d(4, 3, name="conv"), gg.BatchNorm2d(name="norm"), gg.ReLU(), gg.Flatten()]
    layers += [gg.Linear(8, name="fc"), gg.ReLU(), gg.Linear(3, name="out")]
    net = gg.Sequential(layers, input=(1, 8, 8), name="twins")
    weights = {key: array.copy() for key, array in net.weights(3).items()}
    a, b = TWINS["conv"]
    weights["conv.weight"][b], weights["conv.bias"][b] = weights["conv.weight"][a], weights["conv.bias"][a]
    columns = weights["fc.weight"].reshape(8, 4, 36)
    columns[:, b] = columns[:, a]
    a, b = TWINS["fc"]
    weights["fc.weight"][b], weights["fc.bias"][b] = weights["fc.weight"][a], weights["fc.bias"][a]
    weights["out.weight"][:, b] = weights["out.weight"][:, a]
    net.load_weights(weights)
    return net


def smaller(arrays, left, folds):
    """What stays of the parameters of one arena; folded: the columns of a unit that leaves are added to its twin's."""
    found = {key: array.astype(np.float64) for key, array in arrays.items()}
    columns = found["fc.weight"].reshape(8, 4, 36)
    for reader, layer in ((columns, "conv"), (found["out.weight"], "fc")):
        gone = left[layer][0]
        stays = sum(TWINS[layer]) - gone
        if folds:
            reader[:, stays] += reader[:, gone]
    conv, fc = left["conv"], left["fc"]
    columns = np.delete(np.delete(columns, conv, 1), fc, 0)
    for key in found:
        if key.startswith(("conv.", "norm.")):
            found[key] = np.delete(found[key], conv, 0)
    return found | {
        "fc.weight": columns.reshape(len(columns), -1),
        "fc.bias": np.delete(found["fc.bias"], fc, 0),
        "out.weight": np.delete(found["out.weight"], fc, 1),
    }


def probe_of(trainer, count=10):
    generator = np.random.default_rng(9)
    x, y = generator.standard_normal((count, 1, 8, 8), np.float32), generator.integers(0, 3, count).astype(np.int32)
    return gg.Dataset(x, y).for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape)


def shrunk(trainer, budgets=None, **options):
    """Plans and applies; returns the plan and the smaller network."""
    plan = trainer.core.plan_shrink(budgets or {"conv": 0.0, "fc": 0.0}, **options)
    small = trainer.net.resized(plan.outputs)
    trainer.core.apply_shrink(plan, small.graph)
    return plan, small


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", STRATEGIES)
def test_it_goes_on_as_one_that_was_born_small(name, ranks, optimizer):
    """Every arena is what NumPy makes of it, and the rest of the epoch the same bits as of a new trainer's."""
    first = trainer_of(STRATEGIES[name], ranks, net=network(), optimizer=OPTIMIZERS[optimizer])
    steps = begun(first)
    first.core.epoch(0)
    first.core.run(4)
    _, before, consensus = first.state()
    plan, small = shrunk(first, probe=probe_of(first), batch=4, epsilon=1e-4)
    assert plan.accepted and plan.loss_after == pytest.approx(plan.loss_before, 1e-4)
    assert {key: len(gone) for key, gone in plan.left.items()} == {"conv": 1, "fc": 1}
    assert plan.outputs == {"conv": 3, "fc": 7} and plan.parameters == small.parameters
    assert all(set(gone) < set(TWINS[key]) for key, gone in plan.left.items())
    step, parts, smaller_consensus = first.state()
    kinds = first.core.arenas()
    for part, old in zip([*parts, {"weight": smaller_consensus}], [*before, {"weight": consensus}], strict=True):
        for arena, arrays in part.items():
            wanted = smaller(old[arena], plan.left, kinds[arena] != "moment")
            for key, array in arrays.items():
                np.testing.assert_allclose(array, wanted[key], 1e-5, 1e-7, err_msg=f"{arena} {key}")
    born = trainer_of(STRATEGIES[name], ranks, net=small, optimizer=OPTIMIZERS[optimizer])
    begun(born)
    born.set_state(step, parts, smaller_consensus)
    born.core.epoch(0, 4)
    assert everything(born) == everything(first)
    allocations = _core.memory()[1]
    assert first.core.run(1) == 5
    assert _core.memory()[1] == allocations
    assert first.core.run(steps) == born.core.run(steps) == steps
    assert everything(born) == everything(first)
    first.close(), born.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_alone_changes_nothing(name):
    """It is as a run that was settled there, to the bit: arenas, samples, counts."""
    found = []
    for plans in (False, True):
        trainer = trainer_of(STRATEGIES[name], 3, net=network())
        steps = begun(trainer)
        trainer.core.epoch(0)
        trainer.core.run(3)
        trainer.core.settle()
        if plans:
            plan = trainer.core.plan_shrink({"conv": 0.5, "fc": 0.5}, probe=probe_of(trainer), epsilon=-1.0)
            assert not plan.accepted and plan.left and plan.loss_after is not None
        found.append([everything(trainer), [trainer.sample_ids(rank).tolist() for rank in range(3)]])
        assert trainer.core.progress()["steps"] == 3
        assert trainer.core.run(steps) == steps
        counts = trainer.core.end_epoch()
        found[-1] += [everything(trainer), counts["train_loss"], counts["bytes_sent"], counts["messages_sent"]]
        trainer.close()
    assert found[0] == found[1]
