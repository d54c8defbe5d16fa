"""DiLoCo and NoLoCo in the virtual cluster against float64; test_mpi compares the same bits under MPI."""

import itertools
from collections import Counter

import numpy as np
import pytest
from gossip_reference import Gradients, assert_steady, flat, randomise, small_batches, small_net, state
from outer_reference import OuterSteps
from test_strategies import trainer_of

import gossipgrad as gg
from gossipgrad import _core

OPTIMIZERS = {
    "sgd": gg.SGD(lr=0.05),
    "momentum": gg.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": gg.SGD(lr=0.05, momentum=0.9, nesterov=True),
    "adam": gg.Adam(lr=0.02, eps=1e-3),  # a larger eps: gradients near 0 would magnify rounding
}


def arena(trainer, name):
    """An arena of all ranks at rest, (ranks, parameters)."""
    return np.stack([flat(trainer.core.exchange.arena(name, rank)) for rank in range(trainer.size)])


def compare(p, strategy, optimizer, steps=13, rests=(0, 4, 5, 9), tolerance=3e-5):
    """Against the reference at rest after these steps, and after the last one; exchanges are in flight in between."""
    generator = np.random.default_rng(p)
    gradients_of = Gradients(small_net())
    trainer = trainer_of(p, optimizer, strategy)
    like = trainer.weights(0)
    phi = np.stack([flat(like)] * p)
    weights, momentum = randomise(trainer, generator)
    if isinstance(optimizer, gg.Adam):  # a first moment without a second one would be divided by eps
        trainer.core.exchange.load_arena("momentum", {name: np.zeros_like(one) for name, one in like.items()})
        momentum[:] = 0
    simulation = OuterSteps(weights, momentum, optimizer, strategy, trainer.seed, like, phi)
    flew = 0
    for step in range(steps):
        x, y = small_batches(generator, p, sizes=(5, 3, 8))  # uneven batches do not weigh
        gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
        trainer.train_step(x, y)
        simulation.step(gradients)
        if step in rests or step == steps - 1:
            flew += len(simulation.flying)
            simulation.settle()
            found = *state(trainer), arena(trainer, "outer"), arena(trainer, "outer_momentum")
            wanted = simulation.w, simulation.v, simulation.phi, simulation.m
            for mine, right in zip(found, wanted, strict=True):
                np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)
            if isinstance(strategy, gg.DiLoCo):
                assert len({one.tobytes() for one in found[2]}) == len({one.tobytes() for one in found[3]}) == 1
    trainer.close()
    return simulation, flew


@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("p", range(1, 6))
def test_the_formula(p, period, fragments, kind):
    options = {"period": period, "fragments": fragments, "outer_momentum": 0.5}
    simulation, flew = compare(p, kind(**options), OPTIMIZERS["momentum"])
    assert np.abs(simulation.m).max() > 0.01
    assert flew > 0 if fragments == 3 and period == 4 else flew == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "strategy",
    [
        gg.DiLoCo(period=3, delay=2, outer_momentum=0.6),
        gg.DiLoCo(period=3, delay=3, fragments=2, outer_lr=0.9, outer_momentum=0.3),
        gg.DiLoCo(period=4, fragments=2, delay=0, outer_momentum=0.4, outer_nesterov=True),
        gg.NoLoCo(period=2, group=3, delay=1, fragments=2, outer_momentum=0.4),
        gg.NoLoCo(period=5, delay=5, fragments=5, outer_momentum=0.0, outer_lr=1.0),
        gg.NoLoCo(period=3, group=9, outer_momentum=0.4, outer_nesterov=True),
    ],
    ids=repr,
)
def test_every_inner_optimizer_and_delay(strategy, optimizer):
    compare(4, strategy, OPTIMIZERS[optimizer], tolerance=1e-4)


def test_without_momentum_it_is_local_sgd():
    """outer_lr 1 and outer_momentum 0: the mean of the weights; moments stay with their rank."""
    x, y = small_batches(np.random.default_rng(0), 3)
    found = []
    for strategy in (gg.DiLoCo(period=2, outer_lr=1.0, outer_momentum=0.0), gg.PeriodicAllReduce(period=2)):
        trainer = trainer_of(3, gg.SGD(lr=0.1), strategy)
        for _ in range(4):
            trainer.train_step(x, y)
        found.append(state(trainer)[0])
        assert len(set(trainer.weights_sha256())) == 1
        trainer.close()
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_group_of_all_is_diloco(fragments):
    x, y = small_batches(np.random.default_rng(0), 4)
    found = []
    for kind, options in ((gg.DiLoCo, {}), (gg.NoLoCo, {"group": 4})):
        trainer = trainer_of(4, OPTIMIZERS["sgd"], kind(period=2, fragments=fragments, outer_momentum=0.5, **options))
        for _ in range(7):
            trainer.train_step(x, y)
        found.append(np.stack([arena(trainer, name) for name in ("weight", "outer", "outer_momentum")]))
        trainer.close()
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


# ---- groups


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_groups_part_the_ranks(size, most):
    for turn, seed in itertools.product((0, 1, 2, 10**12), (0, 7)):
        groups = _core.groups(size, most, turn, seed)
        assert sorted(rank for group in groups for rank in group) == list(range(size))
        assert all(list(group) == sorted(group) for group in groups)
        assert sorted(map(len, groups)) == sorted([most] * (size // most) + [size % most] * (size % most > 0))
        assert groups == _core.groups(size, most, turn, seed)


def test_groups_are_drawn_anew_and_evenly():
    """Over many turns every pair is as frequent as any other, and every rank is left over as often as any other."""
    turns, size = 3000, 5
    drawn = [_core.groups(size, 2, turn, 3) for turn in range(turns)]
    pairs = Counter(group for groups in drawn for group in groups if len(group) == 2)
    alone = Counter(group for groups in drawn for group in groups if len(group) == 1)
    assert set(pairs) == set(itertools.combinations(range(size), 2)) and len(alone) == size
    assert all(abs(n - turns / size) < 5 * np.sqrt(turns / size) for n in (*pairs.values(), *alone.values()))
    assert [_core.groups(size, 2, turn, 4) for turn in range(20)] != drawn[:20]
    for wrong in ((0, 2, 0), (2, 0, 0), (2, 2, -1)):
        with pytest.raises(ValueError, match="at least"):
            _core.groups(*wrong)


# ---- what is sent


@pytest.mark.parametrize("wire", gg.strategies.WIRES)
def test_bytes(wire):
    """A period sends what one all-reduce of the weights, or one message a rank, needs; between them nothing is sent."""
    p, size = 4, {"float32": 4, "bfloat16": 2}[wire]
    trainer = trainer_of(p, OPTIMIZERS["sgd"], gg.NoExchange())
    lanes = sum(-(-array.size // 16) for array in trainer.weights().values())
    data = np.zeros((12 * p, 1, 8, 8), np.float32), np.zeros(12 * p, np.int64)

    def sent(strategy, epochs=1):
        one = trainer_of(p, OPTIMIZERS["sgd"], strategy).fit(data, batch_size=4, epochs=epochs, progress=False)
        return one["bytes_sent"]

    model = lanes * 16 * size
    for fragments in (1, 2, 5):
        options = {"period": 3, "fragments": fragments, "wire_dtype": wire}
        assert sent(gg.DiLoCo(**options)) == [2 * (p - 1) * model]
        assert sent(gg.NoLoCo(**options)) == [p * model]
        assert sent(gg.NoLoCo(**options, group=4)) == [p * 3 * model]
    assert sent(gg.DiLoCo(period=4, wire_dtype=wire), 3) == [0, 2 * (p - 1) * model, 2 * (p - 1) * model]
    assert sent(gg.NoLoCo(period=3, group=3, wire_dtype=wire)) == [6 * model]  # the fourth rank is left over


def test_fragments_lower_the_peak_and_steps_hide_the_exchange():
    """On the virtual clock: what one step sends, and how long ranks wait."""
    net = gg.Sequential([gg.Linear(256), gg.Linear(256)], input=(256,), name="wide")
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((2 * 24 * 8, 256)).astype(np.float32), np.zeros(2 * 24 * 8, np.int64)

    def run(strategy):
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(2, bandwidth=4e8), trace=10000)
        record = trainer.fit((x, y), batch_size=8, progress=False).last
        spans = [s for s in trainer.core.exchange.spans(0) if s[4] == 1]
        trainer.close()
        return record["exposed_communication_seconds"], max(s[9] for s in spans), sum(s[9] for s in spans)

    for kind in (gg.DiLoCo, gg.NoLoCo):
        waits, peak, whole = run(kind(period=12))
        hidden, part, same = run(kind(period=12, fragments=4))
        assert abs(part - peak / 4) <= 64 * 4 and same == whole
        assert 0 < hidden < waits / 6  # what is in flight at the end of the epoch


# ---- wires


@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_bfloat16_is_near_float32(p, kind):
    """The difference is that of one rounding of what travels: of moves in DiLoCo, of weights in NoLoCo."""
    x, y = small_batches(np.random.default_rng(0), p)
    strategies = {
        wire: kind(period=4, outer_momentum=0.0, outer_lr=1.0, wire_dtype=wire) for wire in gg.strategies.WIRES
    }
    found = {}
    for name, strategy in {**strategies, "alone": gg.NoExchange()}.items():
        trainer = trainer_of(p, OPTIMIZERS["sgd"], strategy)
        start = flat(trainer.weights(0))
        for _ in range(4):
            trainer.train_step(x, y)
        found[name] = state(trainer)[0]
        trainer.close()
    exact, rounded = found["float32"], found["bfloat16"]
    scale = np.abs(found["alone"] - (start if kind is gg.DiLoCo else 0)).max(0)
    assert np.all(np.abs(rounded - exact) <= 2.01 * 2.0**-8 * scale + 1e-7)  # DiLoCo rounds the sum as well
    assert np.array_equal(rounded, exact) == (p == 1)
    if kind is gg.DiLoCo:
        assert len({one.tobytes() for one in rounded}) == 1
    elif p in (1, 2):
        np.testing.assert_allclose(rounded.mean(0), exact.mean(0), rtol=1e-6, atol=1e-6)  # the mean is preserved


# ---- statistics


def with_statistics():
    layers = [gg.Conv2d(3, 3), gg.BatchNorm2d(), gg.Flatten(), gg.Linear(4)]
    return gg.Sequential(layers, input=(1, 8, 8), name="normal")


def statistics(arrays):
    found = [array for name, array in arrays.items() if "running" in name]
    assert len(found) == 2
    return np.concatenate(found)


@pytest.mark.parametrize("wire", gg.strategies.WIRES)
@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
def test_statistics_become_the_mean(kind, wire):
    """Statistics become the ranks' mean at any outer rates. With p = 2 a group of two has all ranks."""
    x, y = small_batches(np.random.default_rng(0), 2)
    rates = {"outer_lr": 0.3, "outer_momentum": 0.8, "period": 3, "wire_dtype": wire}
    strategies = kind(**rates), gg.NoExchange()
    trainer, alone = (trainer_of(2, OPTIMIZERS["sgd"], one, net=with_statistics()) for one in strategies)
    for step in range(3):
        for one in (trainer, alone):
            one.train_step(x, y)
        own = [statistics(one) for one in (trainer.weights(0), trainer.weights(1))]
        there = [statistics(one) for one in (alone.weights(0), alone.weights(1))]
        if step < 2:
            assert np.array_equal(own, there) and not np.array_equal(own[0], own[1])
    moved = np.abs(np.array(there) - 1).max()
    mean = np.mean(there, axis=0, dtype=np.float64)
    for one in own:
        np.testing.assert_allclose(one, mean, rtol=0, atol=1e-6 if wire == "float32" else 0.02 * (1 + moved))
    assert np.abs(statistics(trainer.core.exchange.arena("outer_momentum", 1))).max() == 0


@pytest.mark.parametrize("wire", gg.strategies.WIRES)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
def test_a_variance_that_vanishes_does_not_fall_below_zero(kind, p, wire):
    """All ranks' variances fall from large numbers to zero within a period: what is rounded may not overshoot."""
    trainer = trainer_of(p, gg.SGD(lr=0.0), kind(period=1, wire_dtype=wire), net=with_statistics())
    generator = np.random.default_rng(p)
    x, y = small_batches(generator, p)
    x = [np.zeros_like(one) for one in x]
    like = trainer.weights()
    name = next(one for one in like if one.endswith("running_variance") or one.endswith("running_var"))
    for _ in range(20):
        large = generator.uniform(1, 1000, like[name].shape).astype(np.float32)
        trainer.load_weights({**like, name: large})
        for rank in range(p):
            trainer.core.exchange.load_arena("weight", {**like, name: np.zeros_like(large)}, rank)
        trainer.train_step(x, y)
        for rank in range(p):
            assert np.all(trainer.weights(rank)[name] >= 0)
    trainer.close()


# ---- state


def test_where_the_outer_weights_come_from():
    """The initial weights, loaded ones, the mean of another strategy's replicas; what a callback puts back."""
    x, y = small_batches(np.random.default_rng(0), 3)
    trainer = trainer_of(3, OPTIMIZERS["momentum"], gg.DiLoCo(period=100))
    start = flat(trainer.weights(0))
    trainer.train_step(x, y)
    assert np.array_equal(arena(trainer, "outer"), [start] * 3) and not np.array_equal(state(trainer)[0][0], start)
    trainer.load_weights({name: array + 1 for name, array in trainer.net.weights().items()})
    assert np.array_equal(arena(trainer, "outer"), state(trainer)[0])
    kept = trainer.copy_weights()
    trainer.train_step(x, y)
    trainer.put_weights_back(kept)
    assert np.array_equal(arena(trainer, "outer"), [flat(kept[1])] * 3)

    gossip = trainer_of(3, OPTIMIZERS["momentum"], gg.GossipGraD())
    gossip.train_step(x, y)
    for kind in (gg.DiLoCo, gg.NoLoCo):
        other = trainer_of(3, OPTIMIZERS["momentum"], kind(period=100))
        other.set_state(*gossip.state())
        assert np.array_equal(arena(other, "outer"), [flat(gossip.consensus_weights())] * 3)
        assert np.array_equal(state(other)[0], state(gossip)[0])
        assert not arena(other, "outer_momentum").any()
    gossip.core.reshape(strategy=gg.NoLoCo(period=2).options())
    assert np.array_equal(arena(gossip, "outer"), arena(other, "outer"))


@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
def test_a_change_of_strategy_with_an_exchange_in_flight(kind):
    """Ranks of unlike speed: none goes on before those that it has sent to have read it."""
    x, y = small_batches(np.random.default_rng(0), 5)
    found = []
    for reshapes in (False, True):
        comm = gg.VirtualCluster(5, latency=1e-3, straggler=gg.Straggler(0.5, 0.01))
        strategy = kind(period=3, delay=3, fragments=2, outer_momentum=0.5)
        trainer = gg.Trainer(small_net(), optimizer=OPTIMIZERS["sgd"], strategy=strategy, comm=comm)
        for step in range(9):
            trainer.train_step(x, y)
            if step % 4 == 0:
                trainer.core.reshape(strategy=strategy.options()) if reshapes else trainer.settle()
        found.append([arena(trainer, name).tobytes() for name in ("weight", "outer", "outer_momentum")])
        trainer.close()
    assert found[0] == found[1]


def test_from_noloco_to_diloco_all_ranks_get_one_phi():
    x, y = small_batches(np.random.default_rng(0), 3)
    trainer = trainer_of(3, OPTIMIZERS["momentum"], gg.NoLoCo(period=1))
    for _ in range(3):
        trainer.train_step(x, y)
    before = {name: arena(trainer, name) for name in ("weight", "outer", "outer_momentum")}
    trainer.core.reshape(strategy=gg.DiLoCo(period=5).options())
    assert np.array_equal(arena(trainer, "weight"), before["weight"])
    for name in ("outer", "outer_momentum"):
        now = arena(trainer, name)
        assert not np.array_equal(before[name][0], before[name][1]) and np.array_equal(now[0], now[1])
        np.testing.assert_allclose(now[0], before[name].mean(0), rtol=1e-5, atol=1e-7)
    trainer.core.reshape(strategy=gg.NoLoCo(period=5).options())
    trainer.core.reshape(strategy=gg.AllReduce().options())
    assert "outer" not in trainer.core.exchange.arenas()


@pytest.mark.filterwarnings("ignore:.*(other settings|nothing is trained)")
@pytest.mark.parametrize("strategy", [gg.DiLoCo(period=4, fragments=3), gg.NoLoCo(period=4, delay=3)], ids=repr)
def test_saved_with_an_exchange_in_flight(strategy, tmp_path):
    """Three steps an epoch, a turn in each epoch: the outer arenas go on to the bit, with another optimiser too."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((36, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 36)

    def fit(epochs, optimizer="momentum", **options):
        trainer = trainer_of(3, OPTIMIZERS[optimizer], strategy)
        return trainer, trainer.fit(data, epochs=epochs, batch_size=4, progress=False, **options)

    path = tmp_path / "middle.safetensors"
    half, _ = fit(2)
    half.save(path)
    again, resumed = fit(5, resume=path)
    through, whole = fit(5)
    assert resumed.weights_sha256 == whole.weights_sha256 and resumed["bytes_sent"] == whole["bytes_sent"]
    for name in ("outer", "outer_momentum"):
        assert np.array_equal(arena(again, name), arena(through, name)) and arena(through, name).any()
    other, _ = fit(2, "adam", resume=path)
    assert np.array_equal(arena(other, "outer_momentum"), arena(half, "outer_momentum"))
    assert np.array_equal(arena(other, "outer"), arena(half, "outer"))


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", [gg.DiLoCo(period=3, fragments=2), gg.NoLoCo(period=3, fragments=2)], ids=repr)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(strategy):
    assert_steady(lambda one: trainer_of(3, OPTIMIZERS["momentum"], one), strategy, 3, warm=3)


def test_more_fragments_than_numbers():
    """Some are empty: they have no turn."""
    compare(3, gg.DiLoCo(period=7, fragments=40, delay=2, outer_momentum=0.3), OPTIMIZERS["sgd"])
    compare(3, gg.NoLoCo(period=7, fragments=40, delay=2, outer_momentum=0.3), OPTIMIZERS["sgd"])


# ---- options


@pytest.mark.parametrize("kind", [gg.DiLoCo, gg.NoLoCo])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 0}, "period=0"),
        ({"outer_lr": 0}, "outer_lr=0"),
        ({"outer_lr": float("nan")}, "outer_lr=nan"),
        ({"outer_momentum": 1}, "outer_momentum=1"),
        ({"outer_momentum": -0.1}, "outer_momentum=-0.1"),
        ({"fragments": 0}, "fragments=0"),
        ({"fragments": 1025}, "fragments=1025"),
        ({"delay": -1}, "delay=-1"),
        ({"delay": 5, "period": 4}, "delay=5 with period=4: allowed: 0 to the period"),
        ({"wire_dtype": "half"}, "wire_dtype='half'"),
    ],
)
def test_options_are_checked(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)


def test_the_core_checks_too_and_compression_is_refused():
    with pytest.raises(ValueError, match="group=1"):
        gg.NoLoCo(group=1)
    with pytest.raises(ValueError, match="compression='adacomp' with strategy='diloco': its outer steps multiply"):
        trainer_of(2, OPTIMIZERS["sgd"], gg.DiLoCo(), compression=gg.AdaComp())
    sgd = OPTIMIZERS["sgd"].options()
    for options, words in [
        ({"name": "diloco", "period": "log2"}, "period: 'log2' is no number"),
        ({"name": "diloco", "period": 3, "outer_lr": -1.0}, "outer_lr=-1: must be above 0 and at most 1e"),
        ({"name": "noloco", "period": 3, "outer_momentum": 1.0}, "outer_momentum=1: must be at least 0 and below 1"),
        ({"name": "noloco", "period": 3, "fragments": 1 << 40}, "fragments=2147483647: must be at least 1 and at most"),
        ({"name": "noloco", "period": 3, "group": 1}, "group=1: must be at least 2"),
        ({"name": "diloco", "period": 3, "delay": 4}, "delay: 4 with period=3; must be"),
    ]:
        team = _core.Team("virtual", size=2)
        with pytest.raises((TypeError, ValueError), match=words):
            _core.Trainer(small_net().graph, team, loss="cross_entropy", optimizer=sgd, strategy=options)
    with pytest.raises(ValueError, match="MPI has no sum of bfloat16"):
        gg.DiLoCo(collectives="mpi", wire_dtype="bfloat16")


def test_turns_of_a_period_that_is_very_long():
    """(f + 1) * period // F has more than 63 bits on the way."""
    strategy = gg.DiLoCo(period=2**62, outer_lr=0.5, outer_momentum=0.0, fragments=4, delay=0)
    with gg.Exchange({"w": np.zeros(64)}, strategy=strategy, optimizer=gg.SGD(lr=1.0, momentum=0.0)) as x:
        x.core.step = 2**61 - 1
        x.step({"w": np.full(64, -1.0)})
        np.testing.assert_array_equal(x.weights["w"], np.repeat([1.0, 0.5, 1.0, 1.0], 16))
