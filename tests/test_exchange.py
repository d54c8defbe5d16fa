"""Arrays of a caller, exchanged and updated: by the same strategies as a network's, with the same bits."""

from __future__ import annotations

import gc
import hashlib
import json
from typing import Any

import numpy as np
import pytest
from exchange_cases import SHAPES, SMALL, STRATEGIES, P, all_step, assert_same, everything, made, pulled, start

import gossipgrad as gg
from gossipgrad import _core

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


OPTIMIZERS = {
    "sgd": gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": gg.Adam(lr=0.01, beta1=0.5),
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
        self.trainer.core.exchange.load_arena("weight", {name: array.copy() for name, array in weights.items()})
        self.trainer.train_step([x], [y])
        return self.trainer.gradients()


@pytest.mark.core(16)
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
    for arena in (name for name, kind in wanted.core.exchange.arenas().items() if kind != "gradient"):
        for rank in range(P):
            state = wanted.core.exchange.arena(arena, rank)
            for made in (by_step, by_call):
                for key, array in made.arena(arena, rank).items():
                    np.testing.assert_array_equal(array, state[key], err_msg=f"{arena} of rank {rank}, {key}")
    consensus = wanted.consensus_weights()
    for key, array in by_call.consensus_weights().items():
        np.testing.assert_array_equal(array, consensus[key])
    assert by_step.consensus_distance() == by_call.consensus_distance() == wanted.consensus_distance()


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
    for wrong in (-1.0, 1e39):
        with pytest.raises(ValueError, match="learning_rate"):
            one.learning_rate = wrong
    assert one.learning_rate == 0.25


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
    try:
        x.step({{"w": np.full(2, np.nan if x.rank == 1 else 1.0)}}, samples=3)
    except FloatingPointError:
        x.step({{"w": np.ones(2)}}, samples=3)  # the others are in the same step
    assert x.steps == 2
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


@pytest.mark.parametrize(("strategy", "current"), [(gg.AllReduce(), True), (gg.GossipGraD(staleness=1), False)])
def test_what_only_modules_of_torch_ask_the_core(strategy: gg.Strategy, current: bool) -> None:
    arrays = {"big": np.ones((130, 130)), "small": np.ones(5)}
    x = gg.Exchange(arrays, strategy=strategy, comm=gg.VirtualCluster(2))
    assert x.core.current_at_end() == current
    assert set(x.core.large()) <= {"big"}

    def train(replica: gg.exchange.Replica) -> None:
        replica.step({name: np.full_like(array, 2) for name, array in replica.weights.items()})
        x.core.wait(replica.rank)
        x.core.zero_gradients(replica.rank)
        assert not replica.gradients["small"].any()
        assert bool(replica.gradients["big"].any()) == ("big" in x.core.large())

    x.run(train)
