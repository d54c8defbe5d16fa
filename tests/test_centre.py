"""Strategies with a centre, elastic averaging and the parameter server, in the virtual cluster and under MPI."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import Gradients, Simulation, assert_steady, flat, randomise, small_batches, small_net, state
from test_strategies import OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core

SERVED = {
    "server": gg.ParameterServer(),
    "server, seldom": gg.ParameterServer(period=3, servers=2, chunk_bytes=64),
    "elastic": gg.ElasticAveraging(synchronous=False, period=2),
    "elastic, servers": gg.ElasticAveraging(synchronous=False, period=1, servers=2, bucket_bytes=1),
}
SERVED |= {f"{name}, bfloat16": replace(one, wire_dtype="bfloat16") for name, one in SERVED.items()}


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def centre(trainer):
    return flat(trainer.consensus_weights())


# ---- elastic, synchronous: against float64


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_synchronous_elastic_averaging(p, period, optimizer, gradients_of):
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, OPTIMIZERS[optimizer], gg.ElasticAveraging(period=period))
    simulation = Simulation(*randomise(trainer, generator), OPTIMIZERS[optimizer], None, trainer.seed)
    c, alpha = centre(trainer), 0.8 / p
    for step in range(7):
        x, y = small_batches(generator, p, sizes=(5, 3, 8))
        gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
        trainer.train_step(x, y)
        simulation.step(gradients)
        if (step + 1) % period == 0:
            pull = alpha * (simulation.w - c)
            c, simulation.w = c + pull.sum(0), simulation.w - pull
        weights, momentum = state(trainer)
        np.testing.assert_allclose(weights, simulation.w, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(momentum, simulation.v, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(centre(trainer), c, rtol=2e-5, atol=2e-5)
    distance = np.mean(np.linalg.norm(weights - weights.mean(0), axis=1)) / np.linalg.norm(weights.mean(0))
    assert trainer.consensus_distance() == pytest.approx(distance, rel=1e-4, abs=1e-7)


def test_the_centre_is_evaluated_and_predicts():
    generator = np.random.default_rng(0)
    trainer = trainer_of(3, OPTIMIZERS["plain"], gg.ElasticAveraging(period=2))
    randomise(trainer, generator)
    for _ in range(2):
        trainer.train_step(*small_batches(generator, 3))
    other = trainer_of(1, OPTIMIZERS["plain"], gg.NoExchange())
    other.load_weights(trainer.consensus_weights())
    x = generator.standard_normal((9, 1, 8, 8)).astype(np.float32)
    assert np.array_equal(trainer.predict(x), other.predict(x))
    y = generator.integers(0, 4, 9)
    assert trainer.evaluate((x, y)) == pytest.approx(other.evaluate((x, y)), rel=1e-6)


# ---- one worker


@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank_with_its_server_is_plain_sgd(optimizer, period):
    def run(strategy):
        generator = np.random.default_rng(3)
        trainer = trainer_of(1, OPTIMIZERS[optimizer], strategy)
        for _ in range(6):
            trainer.train_step(*small_batches(generator, 1))
        return trainer.weights_sha256(), centre(trainer).tobytes()

    assert run(gg.ParameterServer(period=period)) == run(gg.NoExchange())


@pytest.mark.parametrize("wire", gg.strategies.WIRES)
@pytest.mark.parametrize("servers", [0, 1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_against_float64(optimizer, servers, wire, gradients_of):
    """Beside its server (0), or with servers of their own, there is one order only in which the centre can be asked."""
    period, alpha = 2, 0.7
    dedicated = {"servers": servers, "dedicated": True, "chunk_bytes": 128} if servers else {}
    dedicated |= {"wire_dtype": wire}
    generator = np.random.default_rng(servers)
    elastic = gg.ElasticAveraging(synchronous=False, period=period, alpha=alpha, **dedicated)
    trainers = [trainer_of(servers + 1, OPTIMIZERS[optimizer], s) for s in (elastic, gg.ParameterServer(**dedicated))]
    start = flat(trainers[0].weights()), np.zeros(trainers[0].net.parameters)
    w, plain = (Simulation(*(a[None] for a in start), OPTIMIZERS[optimizer], None, 5) for _ in range(2))
    c = start[0]
    for step in range(5):
        x, y = small_batches(generator, servers + 1)
        w.step(gradients_of(w.w[0], x[0], y[0]))
        plain.step(gradients_of(plain.w[0], x[0], y[0]))
        if (step + 1) % period == 0:
            pull = alpha * (w.w - c)
            c, w.w = c + pull[0], w.w - pull
        losses = [trainer.train_step(x, y) for trainer in trainers]
        assert all(np.isfinite(one[0]) and np.isnan(one[1:]).all() for one in losses)
    rounded = (
        5e-4 if wire == "bfloat16" and servers else 2e-5
    )  # the elastic force; what is told to a server is so only in parts
    np.testing.assert_allclose(flat(trainers[0].weights()), w.w[0], rtol=2e-5, atol=rounded)
    np.testing.assert_allclose(centre(trainers[0]), c, rtol=2e-5, atol=rounded)
    for server in range(1, servers + 1):
        assert np.array_equal(flat(trainers[0].weights(server)), centre(trainers[0]))
    np.testing.assert_allclose(flat(trainers[1].weights()), plain.w[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(centre(trainers[1]), plain.w[0], rtol=2e-5, atol=2e-5)


# ---- nothing is lost. With scores this high a gradient is the mean sample, exactly, whatever the order of arrival.

ODD = 257 / 256  # bfloat16 has no such number


def counting_trainer(strategy, comm=None):
    """What a rank's samples are summed up to is what the weights move by."""
    net = gg.Sequential([gg.Linear(1, name="fc")], input=(24,), name="counter")
    optimizer = gg.SGD(lr=1 / 64)
    trainer = gg.Trainer(net, loss="binary_cross_entropy", optimizer=optimizer, strategy=strategy, comm=comm)
    trainer.load_weights({"fc.weight": np.zeros((1, 24), np.float32), "fc.bias": np.full(1, 200, np.float32)})
    return trainer


def counted(trainer, workers, epochs=3):
    """Rank r of the workers has samples that are 0 but at place r; steps of 4 samples, 7 to an epoch."""
    x = np.zeros((28 * workers, 24), np.float32)
    x[np.arange(len(x)), np.arange(len(x)) // 28] = ODD
    trainer.fit((x, np.zeros((len(x), 1), np.float32)), epochs=epochs, batch_size=4, progress=False)
    found = trainer.consensus_weights()
    expected = np.zeros(24)
    expected[:workers] = -ODD * epochs * 7 / 64
    return np.array_equal(found["fc.weight"][0], expected) and found["fc.bias"][0] == 200 - workers * epochs * 7 / 64


@pytest.mark.parametrize("wire", gg.strategies.WIRES)
@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("period", [1, 2, 5, 100])
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_the_centre_moves_by_all_pushes(p, period, dedicated, wire):
    for servers in {1, 2, p} if not dedicated else {1, p - 1}:
        strategy = gg.ParameterServer(period=period, servers=servers, dedicated=dedicated, wire_dtype=wire)
        workers = p - servers if dedicated else p
        trainer = counting_trainer(strategy, gg.VirtualCluster(p, latency=1e-5, bandwidth=1e8))
        assert trainer.workers == workers
        assert counted(trainer, workers)
        assert trainer.history.last["samples"] == 28 * workers
        trainer.close()


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_without_learning_all_agree(p, name):
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, gg.SGD(lr=0.0), SERVED[name])
    w, _ = randomise(trainer, generator)
    c = centre(trainer)
    for _ in range(150):
        trainer.train_step(*small_batches(generator, p))
    weights, _ = state(trainer)
    there = centre(trainer)
    if isinstance(SERVED[name], gg.ParameterServer):
        assert all(np.array_equal(one, c) for one in [*weights, there])
    else:
        np.testing.assert_allclose(weights.sum(0) + there, w.sum(0) + c, atol=1e-5)
        np.testing.assert_allclose(weights, np.tile(there, (p, 1)), atol=1e-2)
        assert np.abs(weights - there).max() < 1e-3 * np.abs(w - c).max()


# ---- the same bits again; resuming; what is sent


def an_epoch(strategy, p=3, epochs=2, **options):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((37, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 37)
    trainer = trainer_of(p, OPTIMIZERS["momentum"], strategy)
    return trainer, trainer.fit(data, data, epochs=epochs, batch_size=4, progress=False, **options)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_second_run_has_the_same_bits(p, name):
    first, second = (an_epoch(SERVED[name], p)[1] for _ in range(2))
    assert first.weights_sha256 == second.weights_sha256 and len(set(first.weights_sha256)) > 1
    assert first["validation.loss"] == second["validation.loss"] and first["bytes_sent"] == second["bytes_sent"]


@pytest.mark.parametrize("name", ["synchronous", *SERVED])
def test_a_checkpoint_holds_the_centre(name, tmp_path):
    strategy = SERVED.get(name, gg.ElasticAveraging(period=3))
    half, _ = an_epoch(strategy, epochs=1)
    half.save(tmp_path / "c.safetensors")
    again = gg.Trainer.load(tmp_path / "c.safetensors")
    assert again.strategy == strategy and again.weights_sha256() == half.weights_sha256()
    assert np.array_equal(centre(again), centre(half))
    _, whole = an_epoch(strategy)
    _, resumed = an_epoch(strategy, resume=tmp_path / "c.safetensors")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed["validation.loss"] == whole["validation.loss"]


def barriers(p):
    """Messages of one byte: before the first step, and where all come to rest."""
    return 2 * p * math.ceil(math.log2(p))


@pytest.mark.parametrize("p", [2, 3, 5])
def test_traffic(p):
    """A message and an answer of the model's size for each exchange and rank but the server's own.

    With bfloat16 half of it, and for each rest the weights, once, and two exchanges that tell what rounding took.
    """
    floats = sum(-(-math.prod(shape) // 16) * 16 for shape in small_net().parameter_shapes().values())
    steps = math.ceil(math.ceil(37 / p) / 4)
    for strategy, exchanges in [
        (gg.ParameterServer(), steps),
        (gg.ParameterServer(period=100), 1),
        (gg.ElasticAveraging(synchronous=False, period=2), steps // 2),
        (gg.ParameterServer(servers=p), steps),
    ]:
        _, history = an_epoch(strategy, p, epochs=1)
        assert history.last["bytes_sent"] == 2 * 4 * floats * (p - 1) * exchanges + barriers(p)
        more = 2 if isinstance(strategy, gg.ParameterServer) else 0
        _, history = an_epoch(replace(strategy, wire_dtype="bfloat16"), p, epochs=1)
        assert history.last["bytes_sent"] == (2 * 2 * (exchanges + more) + 4) * floats * (p - 1) + barriers(p)


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", [gg.ElasticAveraging(period=2), *SERVED.values()], ids=repr)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(strategy):
    assert_steady(lambda one: trainer_of(3, OPTIMIZERS["momentum"], one), strategy, 3)


# ---- in virtual time


def virtual_seconds(strategy, p=4, **circumstances):
    layers = [gg.Linear(64, name="fc1"), gg.Tanh(name="tanh"), gg.Linear(4, name="fc2")]
    net = gg.Sequential(layers, input=(64,), name="wide")
    options = {key: circumstances.pop(key) for key in ("straggler",) if key in circumstances}
    comm = gg.VirtualCluster(p, **circumstances)
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.01), strategy=strategy, comm=comm, **options)
    workers = strategy.workers(p)
    data = np.zeros((160 * workers, 64), np.float32), np.zeros(160 * workers, np.int64)
    return trainer.fit(data, batch_size=8, progress=False).last["virtual_seconds"]


def test_ranks_wait_for_no_late_one():
    """With all ranks at once a step takes as long as its slowest, else an epoch as long as the slowest rank's."""
    late = {"compute_time": 1e-3, "straggler": gg.Straggler(probability=0.2, delay=10e-3)}
    together = virtual_seconds(gg.AllReduce(), **late)
    assert virtual_seconds(gg.ParameterServer(servers=1, dedicated=True), 5, **late) < 0.7 * together
    elastic = gg.ElasticAveraging(synchronous=False, period=1, servers=2, dedicated=True)
    assert virtual_seconds(elastic, 6, **late) < 0.7 * together


def test_servers_of_their_own_share_the_load():
    """On a slow network every step waits for the links of the servers."""
    slow = {"compute_time": 1e-4, "bandwidth": 20e6}
    one, two = (virtual_seconds(gg.ParameterServer(servers=n, dedicated=True), 6 + n, **slow) for n in (1, 2))
    assert two < 0.7 * one
    assert virtual_seconds(gg.ParameterServer(servers=1, dedicated=True), 3, **slow) < 0.6 * one


# ---- what is refused


@pytest.mark.parametrize(
    ("strategy", "p", "words"),
    [
        (lambda: gg.ParameterServer(servers=4), 3, ["servers: 4", "1 to 3"]),
        (lambda: gg.ParameterServer(servers=3, dedicated=True), 3, ["servers: 3", "1 to 2"]),
        (lambda: gg.ParameterServer(dedicated=True), 1, ["dedicated", "2 ranks"]),
        (lambda: gg.ElasticAveraging(alpha=0.6), 3, ["alpha: 0.6", "3 ranks", "0.5"]),
        (lambda: gg.ElasticAveraging(alpha=1.5), 1, ["alpha=1.5", "< 1"]),
        (lambda: gg.ElasticAveraging(alpha=0.0), 1, ["alpha=0.0", "> 0"]),
        (lambda: gg.ElasticAveraging(period=0), 1, ["period=0", "at least 1"]),
        (lambda: gg.ElasticAveraging(servers=2), 3, ["servers=2", "synchronous=False"]),
        (lambda: gg.ElasticAveraging(dedicated=True), 3, ["dedicated=True", "synchronous=False"]),
        (lambda: gg.ParameterServer(period=0), 1, ["period=0", "at least 1"]),
        (lambda: gg.ParameterServer(servers=0), 1, ["servers=0", "1..4096"]),
        (lambda: gg.ParameterServer(chunk_bytes=0), 1, ["chunk_bytes=0"]),
    ],
)
def test_what_cannot_be_is_refused(strategy, p, words):
    with pytest.raises(ValueError) as error:
        trainer_of(p, OPTIMIZERS["plain"], strategy())
    assert all(word in str(error.value) for word in words), error.value


def test_the_core_checks_too():
    team = _core.Team("virtual", size=3)
    optimizer = gg.SGD(lr=0.1).options()
    for options, word in [
        ({"name": "parameter-server", "period": "log2"}, "period"),
        ({"name": "parameter-server", "period": 1, "servers": 2**40}, "servers"),
        ({"name": "parameter-server", "period": 1, "chunk_bytes": 0}, "chunk_bytes"),
        ({"name": "elastic-averaging", "period": 1, "servers": 2}, "servers"),
        ({"name": "elastic-averaging", "period": 1, "alpha": -1.0}, "alpha"),
        ({"name": "elastic-averaging", "period": 1, "alpha": float("nan")}, "alpha"),
        ({"name": "elastic-averaging", "period": 1, "synchronous": False, "alpha": 1.0}, "alpha"),
    ]:
        team = _core.Team("virtual", size=3)
        with pytest.raises((TypeError, ValueError), match=word):
            _core.Trainer(small_net().graph, team, loss="cross_entropy", optimizer=optimizer, strategy=options)


# ---- under MPI

IMPORT = (
    f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport gossipgrad as gg\nimport test_centre\n"
)


@pytest.mark.full
@pytest.mark.parametrize("shared", ["1", "0"])
def test_nothing_is_lost_under_mpi(shared, mpirun):
    """Ranks of different speed; trainers that follow each other on one group."""
    text = IMPORT + (
        "import time\n"
        "class Slow(gg.Callback):\n"
        "    def on_progress(self, trainer, progress): time.sleep(0.002 * trainer.rank)\n"
        "for period, servers, dedicated in ((1, 1, False), (2, 3, False), (3, 1, True), (1, 2, True)):\n"
        "    strategy = gg.ParameterServer(period=period, servers=servers, dedicated=dedicated)\n"
        "    trainer = test_centre.counting_trainer(strategy)\n"
        "    assert test_centre.counted(trainer, trainer.workers), strategy\n"
        "    trainer.close()\n"
        "for strategy in test_centre.SERVED.values():\n"
        "    trainer = gg.Trainer(test_centre.small_net(), optimizer=gg.SGD(0.05, 0.9), strategy=strategy)\n"
        "    data = gg.data.synthetic((1, 8, 8), 4, 203, 40, noise=0.3)\n"
        "    fitted = trainer.fit(*data, epochs=8, batch_size=4, callbacks=[Slow()], progress=False)\n"
        "    same = {one for one in trainer.gather(json.dumps(fitted['validation.loss']).encode())}\n"
        "    trainer.close()\n"
        "    assert len(same) == 1 and fitted.last['validation']['accuracy'] > 0.9, fitted.last\n"
    )
    done = mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared})
    assert done.stderr == ""


@pytest.mark.full
def test_lenet_learns_under_mpi(mpirun, tmp_path):
    options = ["-m", "gossipgrad", "train", "--strategy", "parameter-server", "--servers", "1", "--dedicated"]
    options += ["--epochs", "1", "--lr", "0.01", "--batch-size", "32", "--report", str(tmp_path / "report.json")]
    mpirun(3, options)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["settings"]["dedicated"] and report["epochs"][0]["samples"] == 10000
    assert report["epochs"][0]["validation"]["accuracy"] > 0.9
