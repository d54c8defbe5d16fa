"""A network that shrinks while it trains, at the level of the core: what every rank goes on with, and that it does."""

import gc
import json

import numpy as np
import pytest
from conftest import ROOT
from test_reshape import COMPRESSED, STRATEGIES, Rows, begun, everything, trainer_of

import gossipgrad as gg
from gossipgrad import _core

OPTIMIZERS = {"sgd": gg.SGD(lr=0.05, momentum=0.9), "adam": gg.Adam(lr=0.01)}
PACKING = gg.AdaComp(bin_size=5, dense_below=0)
TWINS = {"conv": (0, 2), "fc": (1, 5)}  # two equal units of each layer, whose readers are equal too


def twinned(arrays):
    """Weights in which the second of each twins is as the first."""
    found = {key: array.copy() for key, array in arrays.items()}
    (a, b), (c, d) = TWINS["conv"], TWINS["fc"]
    columns = found["fc.weight"].reshape(8, 4, 36)
    columns[:, b] = columns[:, a]
    found["out.weight"][:, d] = found["out.weight"][:, c]
    for key, array in found.items():
        if key.startswith(("conv.", "norm.")):
            array[b] = array[a]
        elif key.startswith("fc."):
            array[d] = array[c]
    return found


def network():
    """A convolution with its normalisation, 2 of 4 filters twins, and 8 units with 2 twins."""
    layers = [gg.Conv2d(4, 3, name="conv"), gg.BatchNorm2d(name="norm"), gg.ReLU(), gg.Flatten()]
    layers += [gg.Linear(8, name="fc"), gg.ReLU(), gg.Linear(3, name="out")]
    net = gg.Sequential(layers, input=(1, 8, 8), name="twins")
    net.load_weights(twinned(net.weights(3)))
    return net


def made(name, ranks, net, optimizer="sgd"):
    """By a strategy, or with "packed NAME" by one that compresses."""
    packed = name.startswith("packed ")
    strategy = COMPRESSED[name.removeprefix("packed ")] if packed else STRATEGIES[name]
    return trainer_of(
        strategy, ranks, net=net, optimizer=OPTIMIZERS[optimizer], compression=PACKING if packed else None
    )


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
@pytest.mark.parametrize("name", [*STRATEGIES, *(f"packed {name}" for name in COMPRESSED)])
def test_it_goes_on_as_one_that_was_born_small(name, ranks, optimizer):
    """Every arena is what NumPy makes of it, and the rest of the epoch the same bits as of a new trainer's."""
    first = made(name, ranks, network(), optimizer)
    steps = begun(first)
    first.core.epoch(0)
    first.core.run(4)
    step, before, consensus = first.state()
    for part in before:
        part["weight"] = twinned(part["weight"])  # again: rounding, fragments and packing pull them apart
    consensus = twinned(consensus)
    first.set_state(step, before, consensus)
    plan, small = shrunk(first, probe=probe_of(first), batch=4, epsilon=1e-4)
    assert plan.accepted and plan.loss_after == pytest.approx(plan.loss_before, 1e-4)
    assert {key: len(gone) for key, gone in plan.left.items()} == {"conv": 1, "fc": 1}
    assert plan.outputs == {"conv": 3, "fc": 7} and plan.parameters == small.parameters
    assert all(set(gone) < set(TWINS[key]) for key, gone in plan.left.items())
    step, parts, smaller_consensus = first.state()
    kinds = first.core.exchange.arenas()
    for part, old in zip([*parts, {"weight": smaller_consensus}], [*before, {"weight": consensus}], strict=True):
        for arena, arrays in part.items():
            wanted = smaller(old[arena], plan.left, "moment" not in kinds[arena])
            for key, array in arrays.items():
                np.testing.assert_allclose(array, wanted[key], 1e-5, 1e-6, err_msg=f"{arena} {key}")
    born = made(name, ranks, small, optimizer)
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


@pytest.mark.parametrize("name", [*STRATEGIES, *(f"packed {name}" for name in COMPRESSED)])
def test_a_plan_alone_changes_nothing(name):
    """It is as a run that was settled there, to the bit: arenas, samples, counts."""
    found, ranks = [], 4 if "packed" in name else 3
    for plans in (False, True):
        trainer = made(name, ranks, network())
        steps = begun(trainer)
        trainer.core.epoch(0)
        trainer.core.run(3)
        trainer.core.exchange.settle()
        if plans:
            plan = trainer.core.plan_shrink({"conv": 0.5, "fc": 0.5}, probe=probe_of(trainer), epsilon=-1.0)
            assert not plan.accepted and plan.left and plan.loss_after is not None
        found.append([everything(trainer), [trainer.sample_ids(rank).tolist() for rank in range(ranks)]])
        assert trainer.core.progress()["steps"] == 3
        assert trainer.core.run(steps) == steps
        counts = trainer.core.end_epoch()
        found[-1] += [everything(trainer), counts["train_loss"], counts["bytes_sent"], counts["messages_sent"]]
        trainer.close()
    assert found[0] == found[1]


# ---- what has not been sent


PACKED = {
    "cyclic": gg.AdaComp(bin_size=20, dense_below=60, selection="cyclic", values="float32"),
    "local": gg.AdaComp(bin_size=20, dense_below=60, mode="exact", values="float32"),
}


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)], ids=["all", "layers"])
@pytest.mark.parametrize("packing", PACKED)
def test_residues_of_parameters_that_become_small_are_sent(packing, strategy):
    """Sent + residues = gradients, over a shrink by which a parameter falls below dense_below: none is lost."""
    net = gg.Sequential([gg.Linear(10, name="fc"), gg.Linear(7, name="out")], input=(8,), name="linear")
    weights = {key: array.copy() for key, array in net.weights(1).items()}
    for unit in range(3, 9):  # multiples of unit 0, 1 or 2
        weights["fc.weight"][unit] = 0.5 * weights["fc.weight"][unit % 3]
        weights["fc.bias"][unit] = 0.5 * weights["fc.bias"][unit % 3]
    weights["fc.weight"][9], weights["fc.bias"][9] = 0, 0.7  # a constant: goes into biases, which travel whole
    names = PACKED[packing].packed(net)
    assert set(names) == {"fc.weight", "out.weight"}
    packs = {"compression": PACKED[packing].options() | {"packs": [*names]}}
    generator = np.random.default_rng(3)

    def one(net, ranks, options):
        x = generator.standard_normal((ranks, 4, 8), np.float32)
        y = generator.integers(0, 7, (ranks, 4)).astype(np.int32)
        made = gg.Trainer(net, comm=gg.VirtualCluster(ranks), **options)
        return made, list(x), list(y)

    # The norm needs the sum as an array, and clips nothing.
    how = {"strategy": strategy, "compression": PACKED[packing], "optimizer": gg.SGD(lr=0.5, clip_norm=1e6)}
    trainer, x, y = one(net, 3, how)
    trainer.core.reshape(strategy=trainer._strategy_options(trainer.step) | packs)
    trainer.train_step(x, y)
    trainer.core.exchange.settle()
    trainer.core.exchange.load_arena("weight", weights)  # redundant again
    before = [trainer.core.exchange.arena("residue", rank) for rank in range(3)]
    assert all(abs(one["out.weight"]).max() > 0 for one in before)
    plan, small = shrunk(trainer, {"fc": 0.0}, least=3)
    assert plan.outputs == {"fc": 3}
    assert 9 in plan.left["fc"]
    stays = [unit for unit in range(9) if unit not in plan.left["fc"]]
    for rank in range(3):
        residue = trainer.core.exchange.arena("residue", rank)
        folded = before[rank]["out.weight"][:, stays].astype(np.float64)
        for unit in set(plan.left["fc"]) - {9}:
            (into,) = (i for i, other in enumerate(stays) if other % 3 == unit % 3)
            factor = weights["fc.weight"][unit, 0] / weights["fc.weight"][stays[into], 0]
            folded[:, into] += factor * before[rank]["out.weight"][:, unit]
        np.testing.assert_allclose(residue["out.weight"], folded, 1e-4, 1e-6)
        np.testing.assert_allclose(residue["out.bias"], 0.7 * before[rank]["out.weight"][:, 9], 1e-4, 1e-6)
        np.testing.assert_array_equal(residue["fc.weight"], before[rank]["fc.weight"][stays])
    assert small.graph.compressed(packs["compression"]).keys() == names.keys()
    assert not small.graph.compressed(PACKED[packing].options())  # by their sizes both would travel whole

    for _ in range(8):
        start = trainer.core.exchange.arena("weight")
        residues = [trainer.core.exchange.arena("residue", rank) for rank in range(3)]
        gradients = []
        for rank in range(3):
            alone = gg.Trainer(small, optimizer=gg.SGD(lr=0.5), strategy=gg.NoExchange(), comm=gg.VirtualCluster(1))
            alone.core.exchange.load_arena("weight", start)
            alone.train_step([x[rank]], [y[rank]])
            gradients.append(alone.core.exchange.arena("gradient"))
            alone.close()
        trainer.train_step(x, y)
        trainer.core.exchange.settle()
        left = [trainer.core.exchange.arena("residue", rank) for rank in range(3)]
        for key, array in trainer.core.exchange.arena("gradient", 2).items():
            found = array + sum(one[key].astype(np.float64) for one in left)
            wanted = sum(one[key].astype(np.float64) / 3 for one in gradients) + sum(one[key] for one in residues)
            np.testing.assert_allclose(found, wanted, 1e-4, 1e-6, err_msg=key)
        assert not any(one["out.bias"].any() for one in left)
    trainer.close()


def test_no_residue_of_gradients_goes_into_a_running_mean():
    """From which it would be subtracted without a learning rate. The weights of a constant unit do."""
    layers = [gg.Linear(6, name="fc"), gg.ReLU(), gg.Linear(9, bias=False, name="behind"), gg.BatchNorm1d(name="norm")]
    net = gg.Sequential([*layers, gg.Linear(3, name="out")], input=(5,), name="constant")
    weights = {key: array.copy() for key, array in net.weights(2).items()}
    weights["fc.weight"][2], weights["fc.bias"][2] = 0, 0.7
    generator = np.random.default_rng(6)
    x, y = generator.standard_normal((2, 8, 5), np.float32), generator.integers(0, 3, (2, 8)).astype(np.int32)
    how = {"strategy": gg.AllReduce(), "compression": PACKING, "comm": gg.VirtualCluster(2)}
    with gg.Trainer(net, optimizer=gg.SGD(lr=0.01), **how) as trainer:
        trainer.train_step(list(x), list(y))
        trainer.core.exchange.settle()
        trainer.core.exchange.load_arena("weight", weights)
        assert shrunk(trainer, {"fc": 0.0}, least=5)[0].left == {"fc": [2]}
        for rank in range(2):
            residue = trainer.core.exchange.arena("residue", rank)
            assert residue["behind.weight"].any() and not residue["norm.running_mean"].any()
            mean = trainer.core.exchange.arena("weight", rank)["norm.running_mean"]
            np.testing.assert_allclose(mean, -0.7 * weights["behind.weight"][:, 2], 1e-5, 1e-6)


# ---- state that layers carry


def test_carried_state_goes_on_in_the_smaller_network():
    """Two hidden units with the same gates: outputs over the next pieces are those of the larger network."""
    ids = gg.Input((4,), dtype="int32", name="ids")
    rows = gg.LSTM(5, stateful=True, name="rnn")(gg.Embedding(7, 3, name="table")(ids))
    net = gg.Model(ids, gg.Linear(7, name="out")(rows))
    weights = {key: array.copy() for key, array in net.weights(2).items()}
    for key in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        gates = weights[f"rnn.{key}"].reshape(4, 5, -1)
        gates[:, 4] = gates[:, 1]
    weights["rnn.weight_hh_l0"][:, 4] = weights["rnn.weight_hh_l0"][:, 1]
    weights["out.weight"][:, 4] = weights["out.weight"][:, 1]
    net.load_weights(weights)
    generator = np.random.default_rng(4)
    pieces = [generator.integers(0, 7, (2, 6, 5)).astype(np.int32) for _ in range(6)]  # of each rank

    def step(trainer, piece):
        return trainer.core.train_step([one[:, :-1].copy() for one in piece], [one[:, 1:].copy() for one in piece])

    optimizer = gg.SGD(lr=0.1, momentum=0.9)
    first, second = (trainer_of(gg.AllReduce(), 2, net=net, optimizer=optimizer) for _ in range(2))
    for piece in pieces[:3]:
        for one in (first, second):
            step(one, piece)
    before = [first.core.carried(rank)["rnn"] for rank in range(2)]
    assert before[0].shape[1] == 10 and abs(before[1]).max() > 0
    plan, small = shrunk(first, {"rnn": 0.0})
    assert plan.outputs == {"rnn": 4} and plan.left["rnn"][0] in (1, 4)
    gone = plan.left["rnn"][0]
    for rank in range(2):
        np.testing.assert_array_equal(first.core.carried(rank)["rnn"], np.delete(before[rank], [gone, 5 + gone], 1))
    # One step: a merged unit then learns with twice the outgoing weights.
    np.testing.assert_allclose(step(first, pieces[3]), step(second, pieces[3]), 1e-5)
    born = trainer_of(gg.AllReduce(), 2, net=small, optimizer=optimizer)
    born.set_state(*first.state())
    for piece in pieces[4:]:
        assert step(first, piece) == step(born, piece)
    assert everything(first) == everything(born)
    first.core.restore_graph(net.graph)
    assert not any(abs(array).max() for array in first.core.carried(0).values())
    for one in (first, second, born):
        one.close()


# ---- errors, and a network that is put back


def test_what_cannot_be_planned_or_applied_changes_nothing():
    trainer = trainer_of(gg.GossipGraD(), 2, net=network())
    steps = begun(trainer)
    trainer.core.epoch(0)
    trainer.core.run(2)
    trainer.core.exchange.settle()
    core, state, probe = trainer.core, everything(trainer), probe_of(trainer)
    for budgets, options, text in [
        ({"conv": -0.1}, {}, "budget: -0.1; must be 0 to 1"),
        ({"conv": float("nan")}, {}, "must be 0 to 1"),
        ({"conv": 0.0}, {"least": 0}, "least: 0; must be at least 1"),
        ({"conv": 0.0}, {"least": {"fc": -2}}, "least: -2; must be at least 1"),
        ({"norm": 0.0}, {}, "'norm' cannot shrink: it is no layer that has units"),
        ({"out": 0.0}, {}, "'out' cannot shrink: .* is an output of the network"),
        ({"conv": 0.0}, {"probe": probe, "batch": 0}, "batch: 0; must be at least 1"),
        ({"conv": 0.0}, {"probe": probe, "epsilon": float("inf")}, "epsilon: inf; must be finite"),
    ]:
        with pytest.raises(ValueError, match=text):
            core.plan_shrink(budgets, **options)
    with pytest.raises(TypeError, match="probe: must be a Dataset or None"):
        core.plan_shrink({"conv": 0.0}, probe=[])
    nothing = core.plan_shrink({"conv": 0.0}, least=4, probe=probe)
    assert not nothing.accepted and nothing.left == {} == nothing.outputs and nothing.loss_before is None
    with pytest.raises(ValueError, match="says that nothing leaves"):
        core.apply_shrink(nothing, trainer.net.graph)
    assert core.plan_shrink({"conv": 1.0, "fc": 1.0}).outputs == {"conv": 1, "fc": 1}
    assert core.plan_shrink({"conv": 1.0, "fc": 1.0}, least={"conv": 3, "fc": 5}).outputs == {"conv": 3, "fc": 5}
    plan = core.plan_shrink({"conv": 0.0})
    assert plan.accepted and plan.loss_after is None and len(plan.left["conv"]) == 1
    with pytest.raises(ValueError, match="is not of the network that is given"):
        core.apply_shrink(plan, trainer.net.graph)
    with pytest.raises(ValueError, match="other inputs, outputs or layers"):
        core.restore_graph(gg.models.lenet().graph)
    assert everything(trainer) == state
    core.run(1)
    with pytest.raises(RuntimeError, match="is not of the present step, weights and network"):
        core.apply_shrink(plan, trainer.net.resized(plan.outputs).graph)
    assert core.run(steps) == steps
    trainer.close()


def test_a_number_below_one_is_refused_for_any_layer_of_a_group():
    """Layers that are added to each other share their units."""
    x = gg.Input((5,))
    both = gg.Add()(gg.Linear(4, name="a")(x), gg.Linear(4, name="b")(x))
    trainer = trainer_of(gg.AllReduce(), 2, net=gg.Model(x, gg.Linear(3, name="out")(gg.ReLU()(both))))
    for least in ({"a": 0, "b": 3}, {"b": 3, "a": 0}, {"a": -1, "b": 0}):
        with pytest.raises(ValueError, match=r"least: (0|-1); must be at least 1"):
            trainer.core.plan_shrink({"a": 0.0}, least=least)
    assert trainer.core.plan_shrink({"a": 1.0}, least={"a": 2, "b": 3}).outputs in ({}, {"a": 3, "b": 3})
    trainer.close()


@pytest.mark.parametrize("name", ["gossip-1", "elastic"])
def test_a_plan_is_of_the_weights_that_it_was_made_of(name):
    trainer = trainer_of(STRATEGIES[name], 2, net=network())
    begun(trainer)
    trainer.core.epoch(0)
    trainer.core.run(2)
    core = trainer.core
    weights, moments = core.exchange.arena("weight", 0), core.exchange.arena("momentum", 0)
    loads = [
        lambda: trainer.load_weights(weights),
        lambda: core.exchange.load_arena("weight", weights, 1),
        lambda: core.exchange.resume_arena("weight", [weights] * 2, weights, 2),
        lambda: core.exchange.load_consensus(weights),
    ]
    for load in loads:
        plan = core.plan_shrink({"conv": 0.5, "fc": 0.5})
        load()
        with pytest.raises(RuntimeError, match="is not of the present step, weights and network of the trainer"):
            core.apply_shrink(plan, trainer.net.resized(plan.outputs).graph)
    plan, again = (core.plan_shrink({"conv": 0.5, "fc": 0.5}) for _ in range(2))
    assert plan.hash == again.hash
    core.exchange.load_arena("momentum", moments, 1)  # a plan does not read moments
    core.apply_shrink(plan, trainer.net.resized(plan.outputs).graph)
    trainer.close()


class Half(Rows):
    """A set whose second half cannot be read."""

    def read(self, rows, epoch, samples, targets):
        if max(rows) >= len(self) // 2:
            raise OSError("the disk is gone")
        super().read(rows, epoch, samples, targets)


def half_a_probe(trainer):
    x, y = np.ones((8, 1, 8, 8), np.float32), np.zeros(8, np.int32)
    return gg.Dataset(Half(x, y)).for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape)


def test_weights_that_are_not_finite_are_an_error_of_all_ranks():
    trainer = trainer_of(gg.AllReduce(), 3, net=network())
    weights = {key: array.copy() for key, array in trainer.core.exchange.arena("weight").items()}
    weights["fc.weight"][2, 5] = np.nan
    trainer.core.exchange.load_arena("weight", weights)
    with pytest.raises(FloatingPointError, match="weights of or behind unit 0 of layer 'conv' are not finite"):
        trainer.core.plan_shrink({"conv": 0.0, "fc": 0.0})
    trainer.core.exchange.load_arena("weight", network().weights())
    assert trainer.core.plan_shrink({"conv": 0.0, "fc": 0.0}).accepted
    trainer.close()


@pytest.mark.parametrize("name", ["allreduce", "overlapped", "gossip-1", "elastic", "server"])
def test_a_larger_network_is_put_back(name):
    """After its state is loaded it goes on as a trainer that never shrank."""
    plain, shaped = (trainer_of(STRATEGIES[name], 3, net=network()) for _ in range(2))
    steps = [begun(one) for one in (plain, shaped)][0]
    for one in (plain, shaped):
        one.core.epoch(0)
        one.core.run(3)
    state = shaped.state()
    small = shrunk(shaped)[1]
    shaped.core.run(1)
    shaped.core.restore_graph(shaped.net.graph)
    assert shaped.core.exchange.step == 4 and not any(
        abs(a).max() for a in shaped.core.exchange.arena("weight").values()
    )
    assert small.graph.same_layout(small.graph) and not small.graph.same_layout(shaped.net.graph)
    for one in (plain, shaped):
        one.set_state(*state)
        one.core.epoch(0, 3)
        assert one.core.run(steps) == steps
    assert everything(plain) == everything(shaped)
    plain.close(), shaped.close()


def test_virtual_steps_become_shorter_with_the_network():
    cluster = gg.VirtualCluster(2, compute_time=(1.0, 3.0))
    trainer = trainer_of(gg.NoExchange(), net=network(), comm=cluster)
    begun(trainer)
    seconds = []
    for epoch in range(2):
        trainer.core.epoch(epoch)
        trainer.core.run(4)
        seconds.append(trainer.core.end_epoch()["virtual_seconds"])
        if epoch == 0:
            small = shrunk(trainer)[1]
    macs = [sum(node["macs"] for node in net.graph.nodes()) for net in (trainer.net, small)]
    assert seconds[0] == pytest.approx(12.0, 1e-3) and macs[1] < 0.8 * macs[0]
    assert seconds[1] == pytest.approx(12.0 * macs[1] / macs[0], 1e-3)
    trainer.close()


def shrunk_twice(comm=None):
    """What the ranks have after two shrinks; before them, ranks that would apply different plans."""
    trainer = trainer_of(gg.GossipGraD(staleness=1), 0, net=network(), comm=comm)
    steps = begun(trainer)
    trainer.core.epoch(0)
    trainer.core.run(2)
    core, probe, found, net = trainer.core, probe_of(trainer), [], trainer.net
    for _ in range(2):  # rank 0 can read its part, and waits for nobody; all go on
        with pytest.raises((OSError, RuntimeError), match="the disk is gone"):
            core.plan_shrink({"conv": 0.0}, probe=half_a_probe(trainer))
    # Twins that leave change the loss by rounding alone.
    plans = [core.plan_shrink({"conv": share, "fc": share}, probe=probe, epsilon=1e-6) for share in (0.0, 0.5)]
    assert plans[0].hash != plans[1].hash
    if comm is None:
        text = "ranks differ in what is to leave: rank 1 from rank 0"
        with pytest.raises(RuntimeError, match=text):
            core.apply_shrink(plans[trainer.rank == 1], net.resized(plans[trainer.rank == 1].outputs).graph)
    for plan in (plans[0], None):
        plan = plan or core.plan_shrink({"conv": 0.3, "fc": 0.3}, least=2, probe=probe, batch=3, epsilon=10.0)
        assert plan.accepted
        net = net.resized(plan.outputs)
        core.apply_shrink(plan, net.graph)
        found.append([plan.hash, plan.left, plan.bound, plan.loss_before, plan.loss_after])
        core.run(3)
    assert core.run(steps) == steps
    found += [trainer.weights_sha256(), core.end_epoch()["samples"]]
    core.exchange.load_arena(
        "weight", {key: np.full_like(array, np.nan) for key, array in core.exchange.arena("weight").items()}
    )
    with pytest.raises(FloatingPointError, match="are not finite"):  # on every rank, though rank 0 alone looks
        core.plan_shrink({"conv": 0.0})
    rank = trainer.rank
    trainer.close()
    return found, rank


@pytest.mark.full
def test_mpi_gives_the_bits_of_the_virtual_cluster(mpirun):
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport test_shrink_core\n"
        "found, rank = test_shrink_core.shrunk_twice()\nif rank == 0: print(json.dumps(found))\n"
    )
    done = mpirun(3, script)
    assert done.returncode == 0, done.stderr
    virtual = json.loads(json.dumps(shrunk_twice(gg.VirtualCluster(3))[0]))
    assert json.loads(done.stdout.strip().splitlines()[-1]) == virtual


def test_sizes_that_are_left_open_are_chosen_anew():
    layers = [gg.Linear(300, name="a"), gg.ReLU(), gg.Linear(300, name="b"), gg.ReLU(), gg.Linear(3)]
    net = gg.Sequential(layers, input=(300,))
    shaped = trainer_of(gg.LayerwiseAllReduce(), net=net, comm=gg.VirtualCluster(2, latency=1e-6, bandwidth=1e8))
    large = shaped.core.exchange.tuning()
    small = shrunk(shaped, {"a": 1.0, "b": 1.0}, least=5)[1]
    born = trainer_of(gg.LayerwiseAllReduce(), net=small, comm=gg.VirtualCluster(2, latency=1e-6, bandwidth=1e8))
    found, wanted = shaped.core.exchange.tuning(), born.core.exchange.tuning()
    for key in ("bucket_bytes", "chunk_bytes", "buckets", "chunks"):
        assert found[key] == wanted[key], key
    assert found["latency_seconds"] == large["latency_seconds"] is not None and found["buckets"] != large["buckets"]
    shaped.close(), born.close()


def test_a_network_that_the_strategy_cannot_send_ends_the_trainer():
    """More pieces than there are tags: nothing can be read afterwards, by the sizes of neither network."""
    gc.collect()
    before = _core.memory()[0]
    large = gg.Sequential([gg.Linear(600, name="a"), gg.ReLU(), gg.Linear(3, name="b")], input=(300,), name="large")
    small = large.resized({"a": 4})
    trainer = trainer_of(gg.GossipGraD(slices=2, chunk_bytes=64, exchange="weights"), 2, net=small)
    with pytest.raises(ValueError, match="slices: 2 slices of .* travel as .* chunks, more than"):
        trainer.core.restore_graph(large.graph)
    for call in (
        trainer.core.progress,
        trainer.core.exchange.consensus_weights,
        lambda: trainer.core.plan_shrink({"a": 0.0}),
    ):
        with pytest.raises(RuntimeError, match="this trainer could not be reshaped and has no state any more"):
            call()
    trainer.close()
    trainer = call = large = small = None
    gc.collect()
    assert _core.memory()[0] == before
