"""Steps in pieces that a device captures and replays: the same bits, few calls, and nothing else changes."""

from __future__ import annotations

import cuda_standin
import numpy as np
import pytest
from test_strict import NETWORKS, SMALL, STRATEGIES, same

import gossipgrad as gg
from gossipgrad import _core

pytestmark = pytest.mark.full

EVERY_LAYER = {"bucket_bytes": 4}  # a bucket each
INPUTS_AND_ERRORS = gg.OverlappedAveraging(partition_fc=True, **SMALL)


@pytest.fixture(scope="module")
def library(objects):
    path = cuda_standin.library(objects)
    return path, cuda_standin.Standin(path)


@pytest.fixture
def standin(library, monkeypatch):
    path, standin = library
    monkeypatch.setenv("GOSSIPGRAD_CUDA_LIBRARY", str(path.resolve()))
    standin.begin(3)
    yield standin
    assert standin.violations() == []
    assert standin.leaks() == []


def trainer_of(net, device, ranks=2, **options):
    options = {"optimizer": gg.SGD(0.05, momentum=0.9), "tune": False} | options
    backend = "native" if device != "cuda" else None
    return gg.Trainer(net, comm=gg.VirtualCluster(ranks), device=device, backend=backend, **options)


def steps_of(trainer, batch, steps, ranks=2):
    """All that is left of `steps` steps on batches of one size, with an evaluation between them."""
    rng, found = np.random.default_rng(1), []
    for step in range(steps):
        pairs = [batch(rng, 6) for _ in range(ranks)]
        found.append(trainer.train_step([x for x, _ in pairs], [y for _, y in pairs]))
        if step == 3:
            found.append(trainer.evaluate(*batch(rng, 21), batch_size=6))
    for rank in range(ranks):
        found += [trainer.core.exchange.arena(name, rank) for name in trainer.core.exchange.arenas()]
        found.append(trainer.core.carried(rank))
    return found


def found_on(device, network="convolutions", ranks=2, **options):
    make, batch, loss = NETWORKS[network]
    with trainer_of(make(), device, ranks, loss=loss, **options) as trainer:
        return steps_of(trainer, batch, 7, ranks), trainer.core.graphs()


def check_bits(network="convolutions", **options):
    wanted, none = found_on("cpu", network, **options)
    replayed, how = found_on("strict", network, **options)
    assert none is None and how["replayed"] > 0 and how["failure"] is None
    assert same(replayed, wanted)
    assert same(found_on("strict", network, graphs=False, **options), (wanted, None))
    return how


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_networks_have_the_same_bits(network):
    check_bits(network, strategy=gg.GossipGraD(**SMALL))


@pytest.mark.parametrize("name", [n for n in STRATEGIES if "bfloat16" not in n])
def test_strategies_have_the_same_bits(name):
    check_bits(strategy=STRATEGIES[name])


def test_inputs_and_errors_that_a_strategy_reads_are_never_captured():
    """Linear layers whose inputs and errors go to the strategy are pieces of their own, forward and backward."""
    how = check_bits("mlp", strategy=INPUTS_AND_ERRORS)
    assert how["pieces"] - how["replayed"] == 2 * 3


def pieces(strategy, ranks=2):
    with trainer_of(gg.models.lenet(), "strict", ranks, strategy=strategy) as trainer:
        x, y = np.zeros((4, 1, 28, 28), np.float32), np.arange(4)
        for _ in range(3):
            trainer.train_step([x] * ranks, [y] * ranks)
        how = trainer.core.graphs()
        assert how["replayed"] == how["pieces"]
        return how["pieces"]


def test_pieces_end_where_the_strategy_acts():
    """With b buckets b begin forward and b end backward; the last to begin, the loss and the first to end are one."""
    layers = 4
    assert pieces(gg.NoExchange()) == pieces(gg.AllReduce()) == 1
    assert pieces(gg.GossipGraD(**EVERY_LAYER)) == pieces(gg.LayerwiseAllReduce(**EVERY_LAYER)) == 2 * layers - 1
    assert pieces(gg.GossipGraD(bucket_bytes=1 << 30)) == pieces(gg.GossipGraD(**EVERY_LAYER), ranks=1) == 1


def test_other_addresses_are_captured_anew():
    """Batches of other sizes, a new strategy, a new network's arenas: none replays what was captured for others."""
    found = []
    make, batch, loss = NETWORKS["convolutions"]
    for device in ("cpu", "strict"):
        rng = np.random.default_rng(2)
        with trainer_of(make(), device, loss=loss, strategy=gg.NoExchange()) as trainer:
            told = []
            for n in (6, 9, 6, 9, 6, 6, 33, 6, 6, 9, 9, 9):
                pairs = [batch(rng, n) for _ in range(2)]
                told.append(trainer.train_step([x for x, _ in pairs], [y for _, y in pairs]))
            told += steps_of(trainer, batch, 5)
            found.append(told)
    assert same(*found)


def test_the_option(monkeypatch):
    x, y = np.zeros((2, 4), np.float32), np.array([0, 1])

    def graphs(**options):
        with trainer_of(gg.models.mlp(4, (3,), 2), "strict", 1, **options) as trainer:
            trainer.train_step([x], [y])
            return trainer.graphs, trainer.core.graphs() is not None

    assert graphs() == graphs(graphs=True) == (True, True)
    assert graphs(graphs=False) == (False, False)
    monkeypatch.setenv("GOSSIPGRAD_CUDA_GRAPHS", "0")
    assert graphs() == (False, False) and graphs(graphs=True) == (True, True)
    with pytest.raises(TypeError, match="graphs"):
        graphs(graphs="yes")


def test_the_report():
    make, batch, loss = NETWORKS["convolutions"]
    x, y = batch(np.random.default_rng(0), 36)
    with trainer_of(make(), "strict", loss=loss, strategy=gg.NoExchange()) as trainer:
        history = trainer.fit(x, y, epochs=1, batch_size=6)
    assert history.to_dict()["graphs"] == {"pieces": 1, "replayed": 1, "failure": None}


# ---- on the stand-in for CUDA


CALLS = ("cudaGraphLaunch", "kernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cublasLtMatmul", "cudnnConvolutionForward")


def calls_of_a_step(standin, net, shape, strategy, graphs):
    """What the host gives the device in a warm step of one of two ranks, and what it was given in all."""
    x, y = np.random.default_rng(0).standard_normal((4, *shape), np.float32), np.arange(4)
    with trainer_of(net, "cuda", strategy=strategy, graphs=graphs) as trainer:
        for _ in range(3):
            trainer.train_step([x, x], [y, y])
        before, allocated = [standin.count(name) for name in CALLS], _core.memory()
        losses = [trainer.train_step([x, x], [y, y]) for _ in range(2)]
        counted = [(standin.count(name) - was) / 4 for name, was in zip(CALLS, before, strict=True)]
        assert _core.memory()[0] == allocated[0]
        found = [losses, *(trainer.core.exchange.arena(name, 1) for name in trainer.core.exchange.arenas())]
        how = trainer.core.graphs()
    return dict(zip(CALLS, counted, strict=True)), found, how


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.LayerwiseAllReduce()], ids=["gossip", "layerwise"])
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_few_calls_a_step(standin, name, strategy):
    net, shape = gg.models.lenet(), (1, 28, 28)
    if name == "resnet20":
        net, shape = gg.models.resnet20(4, (3, 12, 12), width=4), (3, 12, 12)
    calls, found, how = calls_of_a_step(standin, net, shape, strategy, True)
    eager, wanted, none = calls_of_a_step(standin, net, shape, strategy, False)
    assert same(found, wanted) and none is None
    assert calls["cudaGraphLaunch"] == how["pieces"] == how["replayed"] > 0 == eager["cudaGraphLaunch"]
    assert calls["cublasLtMatmul"] == calls["cudnnConvolutionForward"] == 0 < eager["cudnnConvolutionForward"]
    assert 3 * sum(calls.values()) < 2 * sum(eager.values())


@pytest.mark.parametrize("call", ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_what_cannot_be_captured_is_done_without(standin, call):
    """And the report says why; results stay the same."""
    options = {"network": "mlp", "ranks": 1, "strategy": gg.NoExchange()}
    wanted, _ = found_on("cuda", graphs=False, **options)
    standin.plant(call, 1, 2)
    found, how = found_on("cuda", **options)
    assert same(found, wanted)
    assert how["replayed"] == 0 and call in how["failure"] and "out of memory" in how["failure"]


def test_work_that_fails_while_it_is_captured(standin):
    wanted, _ = found_on("cuda", "mlp", graphs=False, strategy=gg.NoExchange())
    standin.begin(3)
    with pytest.raises(RuntimeError, match="719|launch failure"):
        standin.plant("cudaGraphLaunch", 2, 719)
        found_on("cuda", "mlp", strategy=gg.NoExchange())
    found, how = found_on("cuda", "mlp", strategy=gg.NoExchange())
    assert same(found, wanted) and how["replayed"] == 1
