"""The table of docs/checkpoints.md: what becomes of each kind of state where ranks, strategy, schedule, compression or
weights change. States are random, the reference is in float64."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.training import checkpoint

SHAPES = {"w": (9, 8), "b": (5,)}
PACKED = gg.AdaComp(bin_size=8, dense_below=1, warmup=0)
TABLES: list[list[list[int]]] = [
    [[1, 2, 3, 4, 0], [1, 0, 0, 0, 0]],
    [[-1, 0, 0, 0, 0], [1, 2, 3, 4, 0], [4, 4, 0, 1, 1]],
]


def exchange(p: int, strategy: Any, compression: Any = None, optimizer: Any = None) -> gg.Exchange:
    optimizer = optimizer or gg.SGD(lr=0.1, momentum=0.9)
    arrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    how: dict[str, Any] = {"strategy": strategy, "compression": compression, "optimizer": optimizer, "seed": 5}
    return gg.Exchange(arrays, comm=gg.VirtualCluster(p), **how)


def drawn(rng: Any) -> dict[str, Any]:
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def steps(x: gg.Exchange, count: int, rng: Any = None) -> None:
    """With random gradients, or with none."""
    zeros = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for _ in range(count):
        x.step([zeros if rng is None else drawn(rng) for _ in x.replicas])


def trained(seed: int, p: int, strategy: Any, compression: Any = None, optimizer: Any = None) -> dict[str, Any]:
    """A state after some steps; one of them loaded weights."""
    rng = np.random.default_rng(seed)
    with exchange(p, strategy, compression, optimizer) as x:
        x.load_weights(drawn(rng))
        steps(x, int(rng.integers(7, 12)), rng)
        return x.state_dict()


def gone_on(state: Any, p: int, strategy: Any, compression: Any = None, optimizer: Any = None) -> gg.Exchange:
    x = exchange(p, strategy, compression, optimizer)
    x.load_state_dict(state)
    return x


def over(parts: Any, arena: str) -> dict[str, Any]:
    """The sum over ranks, in float64."""
    return {name: sum(one[arena][name].astype(np.float64) for one in parts) for name in SHAPES}


def near(found: Any, wanted: Any, what: str, atol: float = 2e-6) -> None:
    for name in SHAPES:
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-6, atol=atol, err_msg=f"{what} {name}")


def moved(state: Any, x: gg.Exchange) -> dict[str, Any]:
    now = x.consensus_weights()
    return {name: now[name].astype(np.float64) - state["consensus"][name] for name in SHAPES}


SUMS = {
    "all": (gg.AllReduce(), PACKED),
    "layers": (gg.LayerwiseAllReduce(), PACKED),
    "momentum": (gg.AllReduce(), gg.AdaComp(bin_size=8, dense_below=1, warmup=0, local_momentum=True)),
    "periodic": (gg.PeriodicAllReduce(period=3), PACKED),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(("old", "new"), [(4, 2), (4, 8), (2, 3), (3, 3)])
def test_all_that_was_not_sent_arrives_on_other_ranks(name, old, new):
    """Without gradients weights move by what the ranks' residues come to, and by nothing else."""
    strategy, compression = SUMS[name]
    state = trained(old + new, old, strategy, compression)
    waits = over(state["ranks"], "residue")
    assert max(np.abs(array).max() for array in waits.values()) > 0.01
    optimizer = gg.SGD(lr=0.1, momentum=0.9 if name == "momentum" else 0.0)
    state = {key: value for key, value in state.items() if key != "optimizer"}
    for part in state["ranks"]:
        part.get("momentum", {"w": np.zeros(1)})["w"][:] = 0
        part.get("momentum", {"b": np.zeros(1)})["b"][:] = 0
    with gone_on(state, new, strategy, compression, optimizer) as x:
        for part in x.state_dict()["ranks"] if new != old else []:
            near(part["residue"], {key: array / new for key, array in waits.items()}, "residue")
        if name == "periodic":  # ranks' weights are what they have trained since the last mean
            mean = {key: array / old for key, array in over(state["ranks"], "weight").items()}
            whole = {key: mean[key] + waits[key] - state["consensus"][key] for key in SHAPES}
            factor = 1.0
        else:
            whole, factor = {key: -0.1 * array for key, array in waits.items()}, -0.1
        steps(x, 90)
        left = over(x.state_dict()["ranks"], "residue")
        assert sum(np.abs(left[key]).sum() for key in SHAPES) < 0.5 * sum(np.abs(waits[key]).sum() for key in SHAPES)
        near(moved(state, x), {key: whole[key] - factor * left[key] for key in SHAPES}, "what arrived", 5e-6)


@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.GossipGraD(), gg.DiLoCo(period=2), gg.NoLoCo(period=2)], ids=repr
)
@pytest.mark.parametrize(("old", "new"), [(3, 5), (4, 2)])
def test_other_ranks_begin_with_the_mean(strategy, old, new):
    optimizer = gg.Adam(lr=0.05)
    state = trained(old, old, strategy, None, optimizer)
    with gone_on(state, new, strategy, None, optimizer) as x:
        for part in x.state_dict()["ranks"]:
            assert part.keys() == state["ranks"][0].keys()
            near(part["weight"], state["consensus"], "weight")
            for arena in part.keys() - {"weight"}:
                near(part[arena], {k: a / old for k, a in over(state["ranks"], arena).items()}, arena)


EVERY = {
    "all": (gg.AllReduce(), PACKED),
    "layers": (gg.LayerwiseAllReduce(), PACKED),
    "periodic": (gg.PeriodicAllReduce(period=2), PACKED),
    "server": (gg.ParameterServer(), PACKED),
    "elastic": (gg.ElasticAveraging(period=2, synchronous=False), PACKED),
    "edges": (gg.GossipGraD(topology="ring"), PACKED),
    "diloco": (gg.DiLoCo(period=2, outer_momentum=0.0), None),
    "noloco": (gg.NoLoCo(period=2, outer_momentum=0.0), None),
    "push-sum": (gg.GossipGraD(topology=TABLES[1], push_sum=True, slices=2), None),
    "overlapped": (gg.OverlappedAveraging(), None),
}


@pytest.mark.parametrize("name", EVERY)
def test_loaded_weights_stay_where_no_gradient_moves_them(name):
    """Nothing that refers to the weights of before is left: not sent yet, copied, or outer."""
    strategy, compression = EVERY[name]
    rng = np.random.default_rng(1)
    with exchange(5, strategy, compression, gg.SGD(lr=0.1)) as x:
        steps(x, 7, rng)
        given = drawn(rng)
        x.load_weights(given)
        for _ in range(3):
            steps(x, 5)
            near(x.consensus_weights(), {k: np.float32(a) for k, a in given.items()}, "consensus")
            for part in x.state_dict()["ranks"]:
                near(part["weight"], {k: np.float32(a) for k, a in given.items()}, "weight")


@pytest.mark.parametrize("name", EVERY)
def test_moments_stay_where_weights_are_loaded(name):
    strategy, compression = EVERY[name]
    rng = np.random.default_rng(2)
    with exchange(5, strategy, compression) as x:
        steps(x, 3, rng)
        before = [part["momentum"] for part in x.state_dict()["ranks"]]
        x.load_weights(drawn(rng))
        for part, one in zip(x.state_dict()["ranks"], before, strict=True):
            near(part["momentum"], one, "momentum")


def scalars_after(table: Any, since: int, step: int, slices: int, p: int) -> np.ndarray:
    """(slices, p): of each slice, by the definition; slice s is exchanged in the steps t with t mod slices = s."""
    s = np.ones((slices, p))
    for t in range(since, step):
        row, one = table[t // slices % len(table)], s[t % slices]
        to = [(r, d) for r, d in enumerate(row) if d not in (r, -1)]
        after = one.copy()
        for r, _ in to:
            after[r] -= one[r] / 2
        for r, d in to:
            after[d] += one[r] / 2
        s[t % slices] = after
    return s


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_push_sum_counts_ranks_by_its_scalars(seed, slices):
    """One array of 96 numbers, in slices of 32, 48 or 96: the consensus is the mean by scalars, and mixing keeps it."""
    rng, p, table = np.random.default_rng(seed), 5, TABLES[seed % 2]
    strategy = gg.GossipGraD(topology=table, push_sum=True, slices=slices)
    optimizer = gg.SGD(lr=0.1)
    with gg.Exchange(
        {"w": rng.normal(size=96)}, strategy=strategy, comm=gg.VirtualCluster(p), optimizer=optimizer
    ) as x:
        since = 0
        for count in (2, 5, 1, 4):
            for _ in range(count):
                x.step([{"w": rng.normal(size=96)} for _ in range(p)])
            own = np.array([part["weight"]["w"] for part in x.state_dict()["ranks"]], np.float64)
            weight = np.repeat(scalars_after(table, since, x.steps, slices, p), 96 // slices, axis=0).T
            wanted = (weight * own).mean(axis=0)
            np.testing.assert_allclose(x.consensus_weights()["w"], wanted, atol=2e-6)
            for _ in range(3):
                x.step([{"w": np.zeros(96)}] * p)
            np.testing.assert_allclose(x.consensus_weights()["w"], wanted, atol=4e-6)
            if count == 1:  # within a round of the slices, too
                x.load_weights({"w": rng.normal(size=96)})
                since = x.steps


CHANGES = {
    "from nothing": (gg.NoExchange(), gg.GossipGraD(topology=TABLES[0], push_sum=True)),
    "from regular": (gg.GossipGraD(), gg.GossipGraD(topology=TABLES[0], push_sum=True, slices=2)),
    "another table": (
        gg.GossipGraD(topology=TABLES[0], push_sum=True),
        gg.GossipGraD(topology=TABLES[1], push_sum=True),
    ),
    "other slices": (
        gg.GossipGraD(topology=TABLES[0], push_sum=True),
        gg.GossipGraD(topology=TABLES[0], push_sum=True, slices=3),
    ),
    "to regular": (gg.GossipGraD(topology=TABLES[1], push_sum=True), gg.GossipGraD()),
    "to sums": (gg.GossipGraD(topology=TABLES[0], push_sum=True), gg.AllReduce()),
    "the same": (gg.GossipGraD(topology=TABLES[0], push_sum=True), gg.GossipGraD(topology=TABLES[0], push_sum=True)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_stays_where_the_schedule_changes(name, seed):
    """And ranks come to it: 0.29 of a spread of 0.55 was lost where scalars went on as if they had begun earlier."""
    former, strategy = CHANGES[name]
    optimizer = gg.SGD(lr=0.1)
    state = trained(seed, 5, former, None, optimizer)
    with gone_on(state, 5, strategy, None, optimizer) as x:
        near(x.consensus_weights(), state["consensus"], "consensus")
        if name == "the same":
            for part, one in zip(x.state_dict()["ranks"], state["ranks"], strict=True):
                assert all(np.array_equal(part["weight"][key], one["weight"][key]) for key in SHAPES)
        again = x.state_dict()
        steps(x, 90)
        near(x.consensus_weights(), state["consensus"], "consensus after mixing", 1e-5)
        for part in x.state_dict()["ranks"]:
            near(part["weight"], state["consensus"], "weight after mixing", 1e-5)
    with gone_on(again, 5, strategy, None, optimizer) as x:  # what was resumed once is so again
        steps(x, 90)
        near(x.consensus_weights(), state["consensus"], "consensus of a second resume", 1e-5)


@pytest.mark.parametrize(
    ("former", "strategy"), [("diloco", "noloco"), ("noloco", "diloco"), ("edges", "diloco"), ("push-sum", "noloco")]
)
def test_outer_state_goes_on_or_begins_with_the_consensus(former, strategy):
    state = trained(3, 4 if former != "push-sum" else 5, *EVERY[former])
    with gone_on(state, len(state["ranks"]), *EVERY[strategy]) as x:
        for part, one in zip(x.state_dict()["ranks"], state["ranks"], strict=True):
            for arena, new in (("outer", state["consensus"]), ("outer_momentum", {key: 0.0 for key in SHAPES})):
                own = one.get(arena, new)
                if strategy == "diloco" and arena in one:  # all ranks have the same
                    own = {key: array / len(state["ranks"]) for key, array in over(state["ranks"], arena).items()}
                near(part[arena], own, arena)
            near(part["momentum"], one["momentum"], "momentum")


def test_copies_are_those_of_partners():
    state = trained(4, 4, gg.GossipGraD(topology="ring"), PACKED)
    wanted = {arena for arena in state["ranks"][0] if arena.startswith("edge")}
    with gone_on(state, 4, gg.GossipGraD(topology="ring"), gg.AdaComp(bin_size=16, dense_below=1, warmup=0)) as x:
        for part, one in zip(x.state_dict()["ranks"], state["ranks"], strict=True):
            assert wanted and all(np.array_equal(part[e]["w"], one[e]["w"]) for e in wanted)
    others = gg.GossipGraD(topology="cube", rotate=False)
    with gone_on(state, 4, others, PACKED) as x:
        for part in x.state_dict()["ranks"]:
            assert not any(array.any() for arena in part if arena.startswith("edge") for array in part[arena].values())


@pytest.mark.parametrize(
    ("former", "strategy", "words"),
    [
        (SUMS["all"], SUMS["periodic"], "its residue is of gradients .*here it is of displacements"),
        (
            SUMS["momentum"],
            SUMS["all"],
            r"of momenta \(local_momentum=True\), here it is of gradients \(local_momentum=F",
        ),
        (
            SUMS["all"],
            SUMS["momentum"],
            r"of gradients \(local_momentum=False\), here it is of momenta \(local_momentum=T",
        ),
    ],
)
def test_a_residue_of_another_quantity_is_refused(former, strategy, words, tmp_path):
    state = trained(6, 3, *former)
    with exchange(3, *strategy) as x, pytest.raises(ValueError, match=words):
        x.load_state_dict(state)

    def trainer(strategy, compression):
        net = gg.Sequential([gg.Linear(9)], input=(8,))
        how = {"strategy": strategy, "compression": compression, "comm": gg.VirtualCluster(3), "tune": False}
        return gg.Trainer(net, optimizer=gg.SGD(lr=0.1, momentum=0.9), **how)

    data = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32), np.arange(12) % 9
    one = trainer(*former)
    one.fit(data, epochs=2, batch_size=2, progress=False)
    one.save(tmp_path / "c")
    with pytest.raises(gg.CheckpointError, match=words):
        trainer(*strategy).fit(data, epochs=3, batch_size=2, progress=False, resume=tmp_path / "c")


@pytest.mark.parametrize("former", ["all", "layers"])
def test_a_residue_of_the_same_quantity_goes_on(former):
    state = trained(7, 3, *SUMS[former])
    wider = gg.AdaComp(bin_size=16, dense_below=1, warmup=0, selection="cyclic")
    for strategy in (gg.AllReduce(), gg.LayerwiseAllReduce()):
        with gone_on(state, 3, strategy, wider) as x:
            for part, one in zip(x.state_dict()["ranks"], state["ranks"], strict=True):
                assert all(np.array_equal(part["residue"][key], one["residue"][key]) for key in SHAPES)


CENTRES = [gg.ParameterServer(), gg.ElasticAveraging(period=2, synchronous=False)]


@pytest.mark.parametrize("strategy", CENTRES, ids=repr)
def test_what_a_rank_has_not_told_a_centre(strategy):
    """Goes on on as many ranks, also with the other of these strategies; on others nobody has it."""
    state = trained(9, 3, strategy, PACKED)
    assert max(np.abs(array).max() for array in over(state["ranks"], "residue").values()) > 0.01
    for other in CENTRES:
        with gone_on(state, 3, other, PACKED) as x:
            for part, one in zip(x.state_dict()["ranks"], state["ranks"], strict=True):
                near(part["residue"], one["residue"], "residue")
        with gone_on(state, 4, other, PACKED) as x:
            near(x.consensus_weights(), state["consensus"], "centre")
            assert not any(array.any() for array in over(x.state_dict()["ranks"], "residue").values())


@pytest.mark.parametrize(
    ("p", "strategy", "compression"),
    [(5, gg.AllReduce(), PACKED), (3, gg.GossipGraD(), None), (3, gg.AllReduce(), None), (3, gg.AllReduce(), PACKED)],
)
def test_a_rate_that_was_set_goes_on(p, strategy, compression):
    with exchange(3, gg.AllReduce(), PACKED) as x:
        x.learning_rate = 0.025
        x.load_weights(drawn(np.random.default_rng(0)))
        steps(x, 2)
        assert x.learning_rate == 0.025
        state = x.state_dict()
    with gone_on(state, p, strategy, compression) as x:
        assert x.learning_rate == 0.025
    with gone_on(state, p, strategy, compression, gg.SGD(lr=0.2, momentum=0.9)) as x:
        assert x.learning_rate == 0.2


@pytest.mark.parametrize(
    ("p", "strategy", "compression"),
    [(2, gg.AllReduce(), PACKED), (2, gg.GossipGraD(), None), (2, gg.AllReduce(), None), (3, gg.AllReduce(), PACKED)],
)
def test_state_that_layers_carry_is_each_ranks(p, strategy, compression, tmp_path):
    def made(p, strategy, compression):
        tokens = gg.Input((4,), dtype="int32")
        net = gg.Model(tokens, gg.Linear(7)(gg.LSTM(5, stateful=True)(gg.Embedding(7, 4)(tokens))))
        how = {"strategy": strategy, "compression": compression, "comm": gg.VirtualCluster(p), "tune": False}
        return gg.Trainer(net, optimizer=gg.SGD(lr=0.1), seed=3, **how)

    tokens = np.random.default_rng(0).integers(7, size=(2, 3, 5))
    one = made(2, gg.AllReduce(), PACKED)
    one.train_step([part[:, :-1] for part in tokens], [part[:, 1:] for part in tokens])
    one.save(tmp_path / "c")
    before = [one.rank_state(local)["carried"] for local in range(2)]
    assert all(array.any() for part in before for array in part.values())
    one.load_weights(one.net.weights(9))
    other = made(p, strategy, compression)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.restore(other, tmp_path / "c")
    for trainer in (one, other):
        for local in range(trainer.size):
            carried = trainer.rank_state(local).get("carried", {})
            if trainer.size == 2:
                assert all(np.array_equal(carried[name], array) for name, array in before[local].items())
            else:
                assert not any(array.any() for array in carried.values())


@pytest.mark.parametrize("slices", [1, 2])
def test_the_same_of_a_trainer(slices, tmp_path):
    """Its checkpoints hold where the scalars began; best weights that come back have the mean that they had."""
    strategies = gg.NoExchange(), gg.GossipGraD(topology=TABLES[0], push_sum=True, slices=slices)
    rng = np.random.default_rng(8)
    data = rng.normal(size=(35, 8)).astype(np.float32), np.arange(35) % 9

    def trainer(strategy):
        net = gg.Sequential([gg.Linear(9)], input=(8,))
        return gg.Trainer(net, optimizer=gg.SGD(lr=0.5), strategy=strategy, comm=gg.VirtualCluster(5), tune=False)

    def still(one, steps):
        one.learning_rate = 0.0
        for _ in range(steps):
            one.train_step([data[0][:2]] * 5, [data[1][:2]] * 5)

    one = trainer(strategies[0])
    one.fit(data, epochs=3, batch_size=3, progress=False)
    one.save(tmp_path / "c")
    wanted = one.consensus_weights()
    again = trainer(strategies[1])
    with pytest.warns(UserWarning):
        again.fit(data, epochs=3, batch_size=3, progress=False, resume=tmp_path / "c")
    still(again, 5)
    again.save(tmp_path / "d")
    third = gg.Trainer.load(tmp_path / "d")
    assert third.core.exchange.push_sum_since == one.step
    for other in (again, third):
        still(other, 60)
        for key, array in other.consensus_weights().items():
            np.testing.assert_allclose(array, wanted[key], atol=1e-5)
            np.testing.assert_allclose(other.weights(3)[key], wanted[key], atol=1e-5)
    third.fit(data, epochs=1, batch_size=3, progress=False)
    copy, mean = third.copy_weights(), third.consensus_weights()
    third.fit(data, epochs=1, batch_size=3, progress=False)
    third.put_weights_back(copy)
    still(third, 60)
    for key, array in third.consensus_weights().items():
        np.testing.assert_allclose(array, mean[key], atol=1e-5)
        np.testing.assert_allclose(third.weights(2)[key], mean[key], atol=1e-5)
