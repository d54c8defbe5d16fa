"""Arrays of a caller, exchanged and updated: by the same strategies as a network's, with the same bits."""

from __future__ import annotations

import _thread
import gc
import hashlib
import json
from typing import Any

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

P = 3
LAYERS = [
    (
        "conv",
        [
            ("conv.weight", (6, 1, 3, 3), "weight", "conv", 1.0, 1.0),
            ("conv.bias", (6,), "bias", "conv", 1.0, 1.0),
        ],
    ),
    (
        "fc1",
        [
            ("fc1.weight", (40, 216), "weight", "linear", 1.0, 1.0),
            ("fc1.bias", (40,), "bias", "linear", 1.0, 1.0),
        ],
    ),
    (
        "fc2",
        [
            ("fc2.weight", (5, 40), "weight", "linear", 1.0, 1.0),
            ("fc2.bias", (5,), "bias", "linear", 1.0, 1.0),
        ],
    ),
]
SMALL: dict[str, Any] = {"bucket_bytes": 2000, "chunk_bytes": 448}


def network() -> gg.Model:
    return gg.Sequential(
        [
            gg.Conv2d(6, 3, name="conv"),
            gg.ReLU(),
            gg.Flatten(),
            gg.Linear(40, name="fc1"),
            gg.ReLU(),
            gg.Linear(5, name="fc2"),
        ],
        (1, 8, 8),
    )


def trainer(strategy: gg.Strategy, optimizer: gg.Optimizer, p: int, **options: Any) -> gg.Trainer:
    return gg.Trainer(
        network(),
        strategy=strategy,
        optimizer=optimizer,
        comm=gg.VirtualCluster(p, compute_time=0.01),
        backend="native",
        seed=5,
        **options,
    )


@pytest.fixture(scope="module")
def batches() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(9, 7, 1, 8, 8)).astype(np.float32), rng.integers(0, 5, size=(9, 7)).astype(np.int32)


STRATEGIES = {
    "gossip": gg.GossipGraD(**SMALL),
    "gossip stale": gg.GossipGraD(staleness=1, **SMALL),
    "gossip bfloat16 slices": gg.GossipGraD(wire_dtype="bfloat16", slices=3, **SMALL),
    "gossip gradients": gg.GossipGraD(exchange="gradients", **SMALL),
    "gossip halves": gg.GossipGraD(mix="halves", exchange="weights", **SMALL),
    "gossip push-sum": gg.GossipGraD(push_sum=True, topology="ring", **SMALL),
    "gossip hierarchical": gg.GossipGraD(hierarchical=True, ranks_per_node=1, **SMALL),
    "allreduce": gg.AllReduce(),
    "layerwise": gg.LayerwiseAllReduce(**SMALL),
    "periodic": gg.PeriodicAllReduce(period=2),
    "overlapped": gg.OverlappedAveraging(partition_fc=False, **SMALL),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(interval=2),
    "elastic": gg.ElasticAveraging(period=2, alpha=0.1),
    "elastic asynchronous": gg.ElasticAveraging(period=2, alpha=0.1, synchronous=False),
    "server": gg.ParameterServer(period=2, servers=1, dedicated=True),
    "server of one": gg.ParameterServer(period=2, servers=2, dedicated=True),
    "diloco": gg.DiLoCo(period=2),
    "diloco fragments": gg.DiLoCo(period=4, fragments=2),
    "noloco": gg.NoLoCo(period=2),
    "none": gg.NoExchange(),
}
OPTIMIZERS = {
    "sgd": gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": gg.Adam(lr=0.01),
    "clipped": gg.SGD(lr=0.05, clip_norm=0.5),
}


def core_exchange(strategy: gg.Strategy, optimizer: gg.Optimizer, p: int) -> _core.Exchange:
    team = _core.Team("virtual", size=p)
    return _core.Exchange(
        team,
        LAYERS,
        optimizer=optimizer.options(),
        strategy=strategy.options() | {"exchange": "weights+momentum"}
        if getattr(strategy, "exchange", "") == "auto"
        else strategy.options(),
        seed=5,
        compute_time=[0.01] * p,
    )


class Network:
    """The gradients of a network at any weights: of a rank that trains alone, at a rate of 0."""

    def __init__(self) -> None:
        self.trainer = trainer(gg.NoExchange(), gg.SGD(lr=0.0), 1)
        self.start = self.trainer.weights()

    def gradients(self, weights: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        self.trainer.core.load_arena("weight", {name: array.copy() for name, array in weights.items()})
        self.trainer.train_step([x], [y])
        return self.trainer.gradients()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_bits_as_a_trainer(name: str, optimizer: str, batches: tuple[Any, Any]) -> None:
    """On the same gradients, weights and moments are those of a trainer, whoever makes the calls of a step."""
    x, y = batches
    wanted = trainer(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    whole, alone = Network(), [Network() for _ in range(P)]
    by_step = core_exchange(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    by_call = core_exchange(STRATEGIES[name], OPTIMIZERS[optimizer], P)
    for one in (by_step, by_call):
        one.load_arena("weight", whole.start)
    workers = by_step.workers

    def step_of(step: int) -> Any:
        def run(rank: int) -> None:
            by_call.begin(rank)
            if rank < workers:
                for layer in range(len(LAYERS)):
                    by_call.need(rank, layer)
                made = alone[rank].gradients(by_call.weights(rank), x[step + rank], y[step + rank])
                for key, array in by_call.gradients(rank).items():
                    array[...] = made[key]
                for layer in (1, 2, 0):  # in another order than the strategies'
                    by_call.ready(rank, layer)
                    by_call.poll(rank)
            by_call.end(rank)

        return run

    for step in range(6):
        wanted.train_step([x[step + r] for r in range(P)], [y[step + r] for r in range(P)])
        for rank in range(workers):
            made = whole.gradients(by_step.weights(rank), x[step + rank], y[step + rank])
            for key, array in by_step.gradients(rank).items():
                array[...] = made[key]
        by_step.whole_step()
        by_call.run(step_of(step))
    wanted.settle()
    for arena in (name for name, kind in wanted.core.arenas().items() if kind != "gradient"):
        for rank in range(P):
            state = wanted.core.arena(arena, rank)
            for made in (by_step, by_call):
                for key, array in made.arena(arena, rank).items():
                    np.testing.assert_array_equal(array, state[key], err_msg=f"{arena} of rank {rank}, {key}")
    consensus = wanted.consensus_weights()
    for key, array in by_call.consensus_weights().items():
        np.testing.assert_array_equal(array, consensus[key])
    assert by_step.consensus_distance() == by_call.consensus_distance() == wanted.consensus_distance()


# ------------------------------------------------------------------------------------------------ gg.Exchange

SHAPES: dict[str, tuple[int, ...]] = {"w": (30, 7), "b": (7,), "k": (4, 2, 3, 3), "one": ()}


def start() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def pulled(weights: Any, rank: int, step: int) -> dict[str, Any]:
    """Gradients that depend on the weights, the rank and the step."""
    rng = np.random.default_rng([rank, step])
    return {name: np.float32(0.3) * w + rng.normal(size=w.shape).astype(np.float32) for name, w in weights.items()}


def made(strategy: gg.Strategy | None = None, p: int = P, **options: Any) -> gg.Exchange:
    given: dict[str, Any] = {"optimizer": gg.SGD(lr=0.1, momentum=0.9), "comm": gg.VirtualCluster(p), "seed": 5}
    return gg.Exchange(start(), strategy=strategy, **(given | options))


def all_step(x: gg.Exchange, steps: int) -> None:
    for _ in range(steps):
        x.step([pulled(replica.weights, replica.rank, x.steps) for replica in x.replicas])


def everything(x: gg.Exchange) -> list[tuple[str, Any]]:
    """What a state has, flat."""
    state = x.state_dict()
    parts = [*state["ranks"], {"consensus": state["consensus"]}]
    return [
        (f"{i} {arena} {name}", array)
        for i, part in enumerate(parts)
        for arena, arrays in part.items()
        for name, array in arrays.items()
    ]


def assert_same(a: gg.Exchange, b: gg.Exchange) -> None:
    for (name, one), (_, other) in zip(everything(a), everything(b), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_a_run_and_a_step_of_all_are_the_same(p: int) -> None:
    by_run, by_step, by_parts = made(gg.GossipGraD(**SMALL), p), made(gg.GossipGraD(**SMALL), p), made(p=p, layers=None)

    def train(replica: Any) -> int:
        for step in range(5):
            replica.step(pulled(replica.weights, replica.rank, step))
        return replica.rank * 10

    def in_parts(replica: Any) -> None:
        for step in range(5):
            replica.begin()
            for name in SHAPES:
                replica.need(name)
            for name, gradient in pulled(replica.weights, replica.rank, step).items():
                replica.gradients[name] = gradient
                replica.ready(name)
                replica.poll()
            replica.end()

    assert by_run.run(train) == [10 * rank for rank in range(p)]
    all_step(by_step, 5)
    by_parts.run(in_parts)
    assert by_run.steps == by_step.steps == 5
    assert_same(by_run, by_step)
    assert_same(by_run, by_parts)  # sizes of buckets change no result


def test_the_mean_stays_and_replicas_draw_near() -> None:
    x = made(gg.GossipGraD(), 4, optimizer=gg.SGD(lr=0.1))
    all_step(x, 3)
    x.learning_rate = 0.0
    x.settle()
    before, distance = x.consensus_weights(), x.consensus_distance()
    all_step(x, 4)
    for name, array in x.consensus_weights().items():
        np.testing.assert_allclose(array, before[name], rtol=2e-6, atol=2e-6)
    assert 0 < distance and x.consensus_distance() < 1e-6 < distance


def test_allreduce_is_the_reference_of_one_rank() -> None:
    """With weights by samples: the same as the mean gradient, in float64."""
    x = made(gg.AllReduce(), 3, optimizer=gg.SGD(lr=0.1, momentum=0.9))
    samples = [2, 5, 1]
    wanted = {name: array.copy() for name, array in start().items()}
    moment = {name: np.zeros_like(array) for name, array in wanted.items()}
    for step in range(4):
        gradients = [pulled(replica.weights, replica.rank, step) for replica in x.replicas]
        x.step(gradients, samples=samples)
        for name in wanted:
            mean = sum(n * one[name].astype(np.float64) for n, one in zip(samples, gradients, strict=True)) / 8
            moment[name] = 0.9 * moment[name] + mean
            wanted[name] = wanted[name] - 0.1 * moment[name]
    for replica in x.replicas:
        for name in wanted:
            np.testing.assert_allclose(replica.weights[name], wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("gossip hierarchical", "server")])
def test_saved_and_loaded_it_goes_on_to_the_bit(name: str, tmp_path: Any) -> None:
    x, y = made(STRATEGIES[name]), made(STRATEGIES[name])
    all_step(x, 3)
    x.save(tmp_path / "state.npz")
    y.load(tmp_path / "state.npz")
    assert y.steps == 3
    all_step(x, 4)
    all_step(y, 4)
    assert_same(x, y)


def test_counts_leave_a_rank_alone_that_is_in_a_step() -> None:
    """Else they would write the residue while the step writes it. Rank 1 asks while rank 0 waits for its message."""
    x = gg.Exchange(
        {"w": np.ones(500, np.float32)},
        comm=gg.VirtualCluster(2),
        strategy=gg.AllReduce(),
        optimizer=gg.SGD(lr=1e-12),  # the weights remain ones
        compression=gg.AdaComp(bin_size=50, dense_below=1, warmup=0),
    )
    gradient = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    asked: list[float] = []

    def train(replica: gg.Replica) -> None:
        asked.append(x.counts(0)["residue"])
        replica.step({"w": gradient})

    x.run(train)
    first, busy = asked
    assert first == 0
    left = x.counts(0)["residue"]
    assert 0 < left < busy  # what rank 0 had sent was still part of its residue
    x.settle()
    assert x.counts(0)["residue"] == left


def test_compression_is_saved_as_well() -> None:
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    x, y = made(gg.AllReduce(), **options), made(gg.AllReduce(), **options)
    all_step(x, 3)
    assert x.counts()["residue"] > 0
    y.load_state_dict(x.state_dict())
    all_step(x, 2)
    all_step(y, 2)
    assert_same(x, y)


def test_a_state_goes_on_with_another_strategy() -> None:
    x, y = made(gg.GossipGraD(topology="ring")), made(gg.AllReduce(), optimizer=gg.Adam(lr=0.01))
    all_step(x, 3)
    y.load_state_dict(x.state_dict())
    for name, array in x.consensus_weights().items():
        for replica in y.replicas:
            np.testing.assert_array_equal(replica.weights[name], array)
    assert y.consensus_distance() < 1e-6 and y.steps == 3
    all_step(y, 1)


@pytest.mark.parametrize("strategy", [gg.DiLoCo(period=2), gg.NoLoCo(period=2)], ids=["diloco", "noloco"])
def test_outer_steps_of_a_state_without_them_begin_at_the_consensus(strategy: gg.Strategy) -> None:
    """An outer step moves from the outer weights to what is learnt since: here nothing, so the weights stay."""
    start = {"w": np.arange(1, 5, dtype=np.float32)}
    with gg.Exchange(start, strategy=gg.AllReduce(), comm=gg.VirtualCluster(2)) as x:
        state = x.state_dict()
    with gg.Exchange({"w": np.zeros(4)}, strategy=strategy, optimizer=gg.SGD(lr=0.1), comm=gg.VirtualCluster(2)) as y:
        y.load_state_dict(state)
        for _ in range(2):
            y.step([{"w": np.zeros(4)}] * 2)
        for replica in y.replicas:
            np.testing.assert_array_equal(replica.weights["w"], start["w"])


def test_moments_that_begin_later_count_from_there() -> None:
    """Adam's first steps are as long as its rate, whenever its moments begin; and so they are after another load."""
    x = gg.Exchange({"w": np.zeros(3)}, optimizer=gg.SGD(lr=0.1))
    for _ in range(50):
        x.step({"w": np.zeros(3)})
    y, z = (gg.Exchange({"w": np.ones(3)}, optimizer=gg.Adam(lr=0.01)) for _ in range(2))
    y.load_state_dict(x.state_dict())
    y.step({"w": np.ones(3)})
    np.testing.assert_allclose(y.weights["w"], -0.01, rtol=1e-5)
    z.load_state_dict(y.state_dict())
    z.step({"w": np.ones(3)})
    np.testing.assert_allclose(z.weights["w"], -0.02, rtol=1e-5)


@pytest.mark.parametrize("here", [gg.Adam(lr=0.01), gg.LARS(lr=0.01, momentum=0.9)], ids=["adam", "lars"])
def test_moments_of_another_kind_of_optimizer_begin_at_zero(here: gg.Optimizer) -> None:
    """Both call theirs "momentum", but Adam's is a mean of gradients, and LARS's of their scaled ones."""
    x = gg.Exchange({"w": np.ones((3, 3))}, optimizer=gg.SGD(lr=0.01, momentum=0.9))
    for _ in range(5):
        x.step({"w": np.full((3, 3), 10.0)})
    y, z = (gg.Exchange({"w": np.ones((3, 3))}, optimizer=here) for _ in range(2))
    y.load_state_dict(x.state_dict())
    z.load_weights({"w": x.weights["w"]})
    for one in (y, z):
        one.step({"w": np.ones((3, 3))})
    np.testing.assert_array_equal(y.weights["w"], z.weights["w"])


def test_copies_of_other_partners_begin_anew() -> None:
    """A loaded exchange then has the copies of one that was never trained, and the weights of the state."""
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    x, same, other = (made(gg.GossipGraD(topology=one), **options) for one in ("ring", "ring", "dissemination"))
    copies = [name for name, kind in x.core.arenas().items() if kind == "copy"]
    assert copies and set(copies) <= set(other.core.arenas())
    all_step(x, 3)
    state = x.state_dict()
    same.load_state_dict(state)
    assert_same(x, same)
    other.load_state_dict(state)
    for part in other.state_dict()["ranks"]:
        for name in copies:
            assert not any(array.any() for array in part[name].values())


def test_a_residue_that_means_something_else_is_refused() -> None:
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    x, y, plain = made(gg.AllReduce(), **options), made(gg.PeriodicAllReduce(period=2), **options), made()
    all_step(x, 3)
    state = x.state_dict()
    with pytest.raises(ValueError, match=r"state: its residue is of gradients \(strategy 'allreduce'\), here it is of"):
        y.load_state_dict(state)
    plain.load_state_dict(state)  # has no residue
    for wrong in ({"strategy": 3}, {"strategy": {"strategy": "none of it"}}, {"optimizer": {}}):
        with pytest.raises(ValueError, match="state: "):
            y.load_state_dict(state | wrong)


def test_a_learning_rate_that_was_set_goes_on(tmp_path: Any) -> None:
    """In a file as well; another lr or schedule of the loading optimiser counts more, as in a trainer's checkpoint."""
    x, y, again = (made(gg.GossipGraD(**SMALL)) for _ in range(3))
    x.learning_rate = 0.003
    all_step(x, 2)
    x.save(tmp_path / "x.npz")
    y.load(tmp_path / "x.npz")
    assert y.learning_rate == 0.003
    for one in (x, y):
        all_step(one, 2)
    assert_same(x, y)
    other = made(gg.GossipGraD(**SMALL), optimizer=gg.SGD(lr=0.2, momentum=0.9))
    other.load(tmp_path / "x.npz")
    assert other.learning_rate == 0.2
    state = x.state_dict()
    with pytest.raises(ValueError, match="state: learning_rate=-1"):
        y.load_state_dict(state | {"learning_rate": -1})
    del state["learning_rate"]
    again.load_state_dict(state)
    assert again.learning_rate == 0.1


# Of several workers of a server, who comes first depends on what else runs.
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "server"])
def test_a_step_that_only_began_is_left(name: str) -> None:
    """Weights that are asked for in vain, and a settle in between, change no more than the settle."""
    x, y = made(STRATEGIES[name]), made(STRATEGIES[name])

    def begin(replica: Any) -> None:
        replica.begin()
        if replica.trains:
            replica.need("w")
        replica.begin()

    for _ in range(3):
        all_step(x, 1)
        all_step(y, 1)
        y.run(begin)
        assert y.core.under_way(0) and not y.core.under_way(0, True)
        x.settle()
        y.settle()
    assert_same(x, y)


def test_arrays_are_the_same_for_life_and_current_after_a_step() -> None:
    x = made(gg.GossipGraD(exchange="gradients"), 2)
    w, g = x.replicas[1].weights["w"], x.replicas[1].gradients["w"]
    assert w.dtype == np.float32 and w.shape == (30, 7) and not w.flags.writeable
    before = w.copy()
    for _ in range(3):
        for replica in x.replicas:
            for array in replica.gradients.values():
                array[...] = 1
        x.step()
        held = w.copy()
        x.settle()
        np.testing.assert_array_equal(w, held)
    assert np.all(w < before) and x.replicas[1].gradients["w"] is g
    with pytest.raises(ValueError, match="read-only"):
        w[...] = 0


def test_it_is_initialised_once() -> None:
    x = made(p=2)
    with pytest.raises(RuntimeError, match="was initialised before"):
        x.core.__init__(x._team, LAYERS, optimizer={}, strategy={})  # type: ignore[misc]
    all_step(x, 1)


def test_views_keep_their_memory() -> None:
    gc.collect()  # what tests before it have left
    held = _core.memory()[0]
    x = made(p=2)
    w = x.replicas[0].weights["w"]
    value = w.copy()
    x.close()
    np.testing.assert_array_equal(w, value)
    with pytest.raises(RuntimeError, match="this Exchange is closed"):
        x.step()
    assert _core.memory()[0] > held
    del x, w
    assert _core.memory()[0] == held


class Foreign:
    """An array of another library, in the host's memory."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Device(Foreign):
    """One that the host cannot read."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("device memory")


def test_arrays_of_other_libraries() -> None:
    x = gg.Exchange({"w": Foreign(np.ones((3, 2)))}, optimizer=gg.SGD(lr=1.0))
    x.gradients["w"] = Foreign(np.full((3, 2), 0.25, np.float32))
    x.step()
    np.testing.assert_array_equal(x.weights["w"], np.full((3, 2), 0.75, np.float32))
    with pytest.raises(TypeError, match="the gradient of 'w' is a Device that NumPy cannot read .device memory"):
        x.gradients["w"] = Device(np.ones((3, 2)))
    torch = pytest.importorskip("torch")
    x.step({"w": torch.full((3, 2), 0.25)})
    np.testing.assert_array_equal(x.weights["w"], np.full((3, 2), 0.5, np.float32))
    with pytest.raises(TypeError, match="without gradients of their own"):
        x.gradients["w"] = torch.ones(3, 2, requires_grad=True)


def test_samples_are_integers_of_any_kind() -> None:
    x = gg.Exchange({"w": np.zeros(2)}, optimizer=gg.SGD(lr=1.0), comm=gg.VirtualCluster(1))
    for samples in (3, np.int64(3), [3], np.array([3])):
        x.step({"w": np.ones(2)}, samples=samples)
    y = gg.Exchange({"w": np.zeros(2)}, comm=gg.VirtualCluster(2))
    for wrong, error in ((np.int64(3), ValueError), (2.5, TypeError), ("34", TypeError), ([1, 2, 3], ValueError)):
        with pytest.raises(error, match="samples="):
            y.step([{"w": np.ones(2)}] * 2, samples=wrong)
    assert x.steps == 4 and y.steps == 0


def test_arrays_of_many_axes() -> None:
    many = np.arange(2.0**6).reshape((2,) * 6)
    x = gg.Exchange({"w": many}, optimizer=gg.SGD(lr=1.0))
    x.step({"w": many})
    assert x.weights["w"].shape == many.shape and not x.weights["w"].any()
    assert x.state_dict()["ranks"][0]["weight"]["w"].shape == many.shape


@pytest.mark.parametrize(
    ("arrays", "options", "error", "text"),
    [
        ([1.0], {}, TypeError, "arrays is a list; wanted a mapping"),
        ({}, {}, ValueError, "arrays: none"),
        ({1: np.ones(2)}, {}, TypeError, "the name 1"),
        ({"w": np.ones(2, int)}, {}, TypeError, "dtype int64; allowed: floating"),
        ({"w": np.ones((2, 0))}, {}, ValueError, "at least one element"),
        ({"w": np.ones(2)}, {"strategy": "ring"}, TypeError, "strategy="),
        ({"w": np.ones(2)}, {"strategy": gg.GossipGraD(shuffle_samples=True)}, ValueError, "shuffle_samples"),
        ({"w": np.ones(2)}, {"layers": {"a": []}}, ValueError, "layers"),
        ({"w": np.ones(2)}, {"layers": {"a": ["w", "w"]}}, ValueError, "'w' is in two layers"),
        ({"w": np.ones(2), "b": np.ones(1)}, {"layers": {"a": ["w"]}}, ValueError, "'b' in none"),
        ({"w": np.ones(2)}, {"layers": {"a": ["v"]}}, ValueError, "no array is named 'v'"),
        ({"w": np.ones(2)}, {"roles": {"w": "wait"}}, ValueError, "did you mean 'weight'"),
        ({"w": np.ones(2)}, {"families": {"u": "conv"}}, ValueError, "no array is named 'u'"),
        ({"w": np.ones(2)}, {"comm": gg.VirtualCluster(2, straggler=gg.Straggler(1, 1))}, ValueError, "straggler"),
        ({"w": np.ones(2)}, {"optimizer": gg.SGD(lr=1, schedule=gg.schedules.Cosine())}, ValueError, "total="),
        ({"w": np.ones(2)}, {"treads": 2}, TypeError, "did you mean 'threads'"),
    ],
)
def test_wrong_arguments(arrays: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        gg.Exchange(arrays, **options)


def test_wrong_gradients_change_nothing() -> None:
    x = made(p=2)
    all_step(x, 1)
    good = [pulled(replica.weights, replica.rank, 1) for replica in x.replicas]
    before = x.replicas[1].weights["w"].copy()
    for one, error, text in (
        ({"w": np.zeros((7, 30))}, ValueError, r"gradient of 'w' has shape \(7, 30\); the array's is \(30, 7\)"),
        ({"w": np.full((30, 7), np.nan)}, FloatingPointError, "rank 1: step 1: the gradient of 'w' has a NaN"),
        ({"b": np.full(7, np.inf)}, FloatingPointError, "'b' has a NaN or an infinity"),
        ({"v": np.zeros(7)}, ValueError, "no array is named 'v'"),
        ({"w": np.zeros((30, 7), complex)}, TypeError, "complex128"),
    ):
        with pytest.raises(error, match=text):
            x.step([good[0], good[1] | one])
    with pytest.raises(ValueError, match="'one' missing"):
        x.step([{name: g for name, g in good[0].items() if name != "one"}, good[1]])
    with pytest.raises(ValueError, match="of 1 ranks; this process has 2"):
        x.step(good[0])
    with pytest.raises(ValueError, match="samples="):
        x.step(good, samples=[1, 2, 3])
    with pytest.raises(RuntimeError, match=r"replicas\[r\].gradients"):
        _ = x.gradients
    with pytest.raises(KeyError, match="no array is named 'x'"):
        x.replicas[0].gradients["x"] = 1
    assert x.steps == 1
    np.testing.assert_array_equal(x.replicas[1].weights["w"], before)
    x.step(good)
    y = made(p=2)
    all_step(y, 2)
    assert_same(x, y)


@pytest.mark.parametrize("call", ["poll", "under_way", "settle", "need", "begin", "whole_step", "counts", "arena"])
def test_calls_of_an_exchange_that_was_not_made(call: str) -> None:
    arguments = {"need": (0, 0), "arena": ("weight", 0)}.get(call, (0,))
    with pytest.raises(RuntimeError, match="this exchange was not initialised"):
        getattr(_core.Exchange.__new__(_core.Exchange), call)(*arguments)


def test_calls_at_the_wrong_time() -> None:
    x = made(p=2)
    for call in ("begin", "poll", "end", "wait", "settle"):
        with pytest.raises(RuntimeError, match="a call of rank 1 outside of its thread"):
            getattr(x.replicas[1], call)()
    found: list[str] = []

    def train(replica: Any) -> None:
        def refused(call: Any, *words: Any) -> None:
            with pytest.raises((RuntimeError, ValueError)) as raised:
                call(*words)
            found.append(str(raised.value))

        if replica.rank == 0:
            refused(replica.need, "w")
            refused(replica.end)
            refused(x.replicas[1].begin)
            refused(x.step)
            refused(x.settle)
        for step in range(2):
            replica.begin()
            for name in SHAPES:
                replica.need(name)
            for name, gradient in pulled(replica.weights, replica.rank, step).items():
                replica.gradients[name] = gradient
            for name in list(SHAPES)[:-1]:
                replica.ready(name)
            if replica.rank == 0 and step == 0:
                refused(replica.ready, "w")
                refused(replica.need, "b")
                refused(replica.end)
                refused(replica.begin)
                refused(replica.settle)
                refused(replica.wait)
                refused(replica.ready, "wbk")
            replica.ready("one")
            replica.end()

    x.run(train)
    wanted = [
        *("need of layer 'w': step 0 has not begun", "end: step 0 has not begun", "rank 1 outside of its thread"),
        *("a call of all ranks while `run` is under way", "a call of all ranks while `run` is under way"),
        *("ready of layer 'w': it is ready already in step 0", "need of layer 'b': it is ready already"),
        "end: 3 of 4 layers are ready in step 0; 'one' is not",
        *("begin: 3 of 4 layers are ready", "settle: 3 of 4 layers are ready", "wait: 3 of 4 layers are ready"),
        "layer='wbk': allowed: w, b, k, one",
    ]
    assert len(found) == len(wanted)
    for text, part in zip(found, wanted, strict=True):
        assert part in text
    y = made(p=2)
    all_step(y, 2)
    assert_same(x, y)


def test_an_exception_of_a_rank_is_raised() -> None:
    x = made(p=3)
    after: list[int] = []

    def train(replica: Any) -> None:
        for step in range(5):
            if replica.rank == 1 and step == 2:
                raise LookupError("no more samples here")
            replica.step(pulled(replica.weights, replica.rank, step))
        after.append(replica.rank)

    with pytest.raises(LookupError, match="no more samples here"):
        x.run(train)
    assert after == []
    with pytest.raises(RuntimeError):
        x.run(train)


def test_a_run_can_be_interrupted() -> None:
    x = made(p=2)

    def train(replica: Any) -> None:
        while True:
            replica.step({name: np.zeros(shape) for name, shape in SHAPES.items()})
            if replica.rank == 1 and x.steps == 5:
                _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        x.run(train)
    assert x.steps >= 5


def test_an_exchange_that_was_interrupted_is_freed() -> None:
    def interrupt() -> bool:
        x = made(p=2)

        def train(replica: Any) -> None:
            while True:
                replica.step({name: np.zeros(shape) for name, shape in SHAPES.items()})
                if replica.rank == 1 and x.steps == 5:
                    _thread.interrupt_main()

        try:
            x.run(train)
        except KeyboardInterrupt:
            return True
        return False

    gc.collect()
    before, _ = _core.memory()
    assert interrupt()
    gc.collect()
    assert _core.memory()[0] <= before


def test_a_rank_that_leaves_a_step_out_is_named() -> None:
    x = made(gg.AllReduce(), 2)

    def train(replica: Any) -> None:
        for step in range(3 - replica.rank):
            replica.step(pulled(replica.weights, replica.rank, step))

    with pytest.raises(gg.CommunicationError, match="rank 0.*rank 1"):
        x.run(train)


@pytest.mark.parametrize(
    "schedule", [gg.schedules.StepDecay(every=2, gamma=0.5), lambda step: 0.5**step, gg.schedules.Cosine(total=6)]
)
def test_the_rate_follows_its_schedule(schedule: Any) -> None:
    optimizer = gg.SGD(lr=0.5, schedule=schedule)
    one, other = (gg.Exchange({"w": np.zeros(1)}, optimizer=optimizer) for _ in range(2))
    wanted = 0.0
    for step in range(5):
        assert one.learning_rate == optimizer.rate(step)
        one.step({"w": np.ones(1)})
        wanted -= optimizer.rate(step)
        np.testing.assert_allclose(one.weights["w"], wanted, rtol=1e-6)

    def train(replica: Any) -> None:
        for _ in range(5):
            replica.step({"w": np.ones(1)})

    other.run(train)
    np.testing.assert_array_equal(one.weights["w"], other.weights["w"])
    one.learning_rate = 0.25
    one.step({"w": np.ones(1)})
    np.testing.assert_allclose(one.weights["w"], wanted - 0.25, rtol=1e-6)
    with pytest.raises(ValueError, match="learning_rate"):
        one.learning_rate = -1.0


def test_a_trace_shows_the_waits(tmp_path: Any) -> None:
    """On a slow network: the waits add up to the exposed seconds, and messages have their layers' names."""
    cluster = gg.VirtualCluster(2, latency=0.01, bandwidth=1e6, compute_time=0.001)
    x = made(gg.AllReduce(), 2, comm=cluster, trace=1000)
    all_step(x, 3)
    x.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for rank in range(2):
        waits = [one["dur"] for one in events if one["name"] == "wait" and one["pid"] == rank]
        assert sum(waits) == pytest.approx(x.counts(rank)["exposed_seconds"] * 1e6, rel=1e-6) and sum(waits) > 0
        assert [one["name"] for one in events if one["pid"] == rank].count("step") == 3
    assert any(one["name"] == "gradients w to one" for one in events)
    assert x.counts()["clock_seconds"] >= 3 * (0.001 + 0.02)


def test_a_long_run_asks_a_function_for_more_rates() -> None:
    def train(replica: Any) -> None:
        for _ in range(1003):
            replica.step({"w": np.ones(1)})

    with gg.Exchange({"w": np.zeros(1)}, optimizer=gg.SGD(lr=1.0, momentum=0, schedule=lambda step: step % 2)) as x:
        x.run(train)
        np.testing.assert_array_equal(x.weights["w"], -501.0)


def test_wrong_states(tmp_path: Any) -> None:
    x = made(p=2)
    state = x.state_dict()
    for change, text in (
        ({"format": 7}, "not what state_dict"),
        ({"ranks": state["ranks"][:1]}, "of 1 ranks; this group has 2"),
        ({"seed": 6}, "of seed 6; this exchange has seed 5"),
        ({"consensus": {"w": np.zeros((30, 7))}}, "missing"),
    ):
        with pytest.raises(ValueError, match=text):
            x.load_state_dict(state | change)
    with pytest.raises(ValueError, match="no array is named 'v'"):
        x.load_weights({"v": np.ones(1)})
    for missing in state:
        if missing not in ("strategy", "optimizer", "learning_rate"):  # without them those of here count
            with pytest.raises(ValueError, match="not what state_dict"):
                x.load_state_dict({key: value for key, value in state.items() if key != missing})
    x.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    np.save(tmp_path / "array.npy", np.ones(3))
    array = (tmp_path / "array.npy").read_bytes()
    for damaged in (b"PK and more", b"", whole[:10], whole[:100], whole[:-5], bytes(flipped), array):
        (tmp_path / "no.npz").write_bytes(damaged)
        with pytest.raises(gg.CheckpointError, match=r"no.npz: not a file that Exchange.save wrote"):
            x.load(tmp_path / "no.npz")
    with pytest.raises(gg.CheckpointError, match="nowhere.npz"):
        x.load(tmp_path / "nowhere.npz")


UNDER_MPI = """
import hashlib, sys
import numpy as np
import gossipgrad as gg
sys.path.insert(0, "tests")
from test_exchange import STRATEGIES, everything, pulled, start

for name in {names!r}:
    x = gg.Exchange(start() if gg.Team().rank == 0 else {{n: 0 * a for n, a in start().items()}},
                    strategy=STRATEGIES[name], optimizer=gg.SGD(lr=0.1, momentum=0.9), seed=5)
    def train(replica):
        for step in range(5):
            replica.step(pulled(replica.weights, replica.rank, step), samples=[3, 2, 4])
    x.run(train)
    x.step(pulled(x.weights, x.rank, 5), samples=[3, 2, 4][x.rank])
    x.save({path!r})
    x.load({path!r})
    digest = hashlib.sha256(b"".join(array.tobytes() for _, array in everything(x))).hexdigest()
    if x.rank == 0:
        print(name, digest, sep="|")
    x.close()
try:
    gg.Exchange({{"w": np.ones(2 + gg.Team().rank // 2)}})
except ValueError as error:
    if gg.Team().rank == 0:
        print("error", error, sep="|")
with gg.Exchange({{"w": np.ones(2)}}, timeout=20) as x:
    for wrong in ("many", -1, 2**70):
        try:
            x.step({{"w": np.ones(2)}}, samples=wrong if x.rank == 1 else 3)
        except (TypeError, ValueError) as error:
            print(f"samples {{x.rank}} {{wrong}}|{{type(error).__name__}}: {{error}}")
    x.step({{"w": np.ones(2)}}, samples=3)  # nothing was done before
    assert x.steps == 1
"""

DETERMINISTIC = [name for name in STRATEGIES if name not in ("pull", "push", "elastic asynchronous", "server")]


def test_under_mpi_the_same_bits(mpirun: Any, tmp_path: Any) -> None:
    done = mpirun(3, UNDER_MPI.format(names=DETERMINISTIC, path=str(tmp_path / "x.npz")))
    lines = dict(line.split("|") for line in done.stdout.splitlines() if "|" in line)
    for name in DETERMINISTIC:
        x = made(STRATEGIES[name])
        for step in range(6):
            x.step([pulled(replica.weights, replica.rank, step) for replica in x.replicas], samples=[3, 2, 4])
        digest = hashlib.sha256(b"".join(array.tobytes() for _, array in everything(x))).hexdigest()
        assert lines[name] == digest, name
    assert "ranks differ in what must be equal on all" in lines["error"] and "(3,) on rank 2" in lines["error"]
    for wrong, kind in (("many", "TypeError"), (-1, "ValueError"), (2**70, "ValueError")):
        for rank in range(3):
            said = "samples=" if rank == 1 else "rank 1: samples="
            assert lines[f"samples {rank} {wrong}"].startswith(f"{kind}: {said}"), lines


def test_under_mpi_ranks_that_load_other_states(mpirun: Any) -> None:
    """As where each node has files of its own by one path."""
    text = (
        "import numpy as np\nimport gossipgrad as gg\n"
        "with gg.Exchange({'w': np.ones(3)}, strategy=gg.AllReduce(), timeout=20) as x:\n"
        "    states = []\n"
        "    for _ in range(2):\n"
        "        x.step({'w': np.ones(3)})\n"
        "        states.append(x.state_dict())\n"
        "    states.append({**states[0], 'consensus': {'w': np.zeros(3, np.float32)}})\n"
        "    for second in (1, 2):\n"
        "        try:\n"
        "            x.load_state_dict(states[second if x.rank else 0])\n"
        "        except ValueError as error:\n"
        "            print(f'refused {second} {x.rank}|{error}')\n"
        "    x.load_state_dict(states[0])\n"
        "    assert x.steps == 1\n"
    )
    done = mpirun(2, text)
    lines = dict(line.split("|") for line in done.stdout.splitlines() if "|" in line)
    for rank in range(2):
        assert "step: 1 on rank 0; 2 on rank 1" in lines[f"refused 1 {rank}"], lines
        assert "consensus, w: checksum" in lines[f"refused 2 {rank}"], lines


def test_under_mpi_a_rank_that_leaves_a_step_out(mpirun: Any) -> None:
    text = (
        "import time\nimport numpy as np\nimport gossipgrad as gg\n"
        "x = gg.Exchange({'w': np.ones(3)}, strategy=gg.AllReduce(), timeout=2)\n"
        "for step in range(3):\n"
        "    if x.rank == 1 and step == 1:\n"
        "        time.sleep(60)\n"
        "    x.step({'w': np.ones(3)})\n"
    )
    done = mpirun(2, text, check=False)
    assert done.returncode != 0
    assert "CommunicationError" in done.stderr and "rank 1" in done.stderr and "step 1" in done.stderr
