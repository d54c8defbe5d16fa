"""Trainer(device="cuda") over the stand-in for CUDA, cuDNN and cuBLASLt: every network, every strategy, beside the CPU.

No GPU is needed, and none is tested: what the libraries compute is computed by plain loops.
"""

from __future__ import annotations

import gc
import os

import cuda_standin
import numpy as np
import pytest
import test_shrink
from conftest import ROOT
from test_strict import COMPRESSED, NETWORKS, SMALL, STRATEGIES, convolutions, set_of, trained, trained_on

import gossipgrad as gg
from gossipgrad import _core

pytestmark = pytest.mark.full

# tests/cuda/on_gpu.sh: the same on a GPU, whose libraries add in another order.
GPU = bool(os.environ.get("GOSSIPGRAD_TEST_GPU"))


@pytest.fixture(scope="module")
def library(objects):
    if GPU:
        return None
    path = cuda_standin.library(objects)
    return path, cuda_standin.Standin(path)


@pytest.fixture
def standin(library, monkeypatch):
    if library is None:
        yield None
        return
    path, standin = library
    monkeypatch.setenv("GOSSIPGRAD_CUDA_LIBRARY", str(path.resolve()))
    standin.begin(1)
    yield standin
    assert standin.violations() == []
    assert standin.leaks() == []


def numbers(found):
    """All numbers of a result, in order."""
    if isinstance(found, dict):
        return [n for key in found for n in numbers(found[key])]
    if isinstance(found, (list, tuple)):
        return [n for one in found for n in numbers(one)]
    return [] if found is None else list(np.asarray(found, np.float64).ravel())


def assert_near(network="convolutions", bound=2e-5, **options):
    bound = max(bound, 5e-4) if GPU else bound
    wanted, got = (np.array(numbers(trained(d, network, backend=b, **options))) for d, b in DEVICES)
    assert wanted.shape == got.shape and np.isfinite(wanted).all()
    assert np.abs(got - wanted).max() <= bound * max(1, np.abs(wanted).max())


DEVICES = [("cpu", "native"), ("cuda", None)]


@pytest.mark.parametrize("network", NETWORKS)
def test_networks(standin, network):
    assert_near(network, strategy=gg.NoExchange())


def test_fast(standin):
    """Products of TF32: near, and not equal to exact ones."""
    how = {"network": "convolutions", "backend": None, "strategy": gg.NoExchange()}
    exact, fast = (np.array(numbers(trained("cuda", precision=p, **how))) for p in ("exact", "fast"))
    assert 0 < np.abs(exact - fast).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("options", [{"precision": "fast"}, {"dtype": "bfloat16"}], ids=["fast", "bfloat16"])
@pytest.mark.parametrize("first", ["view", "samples", None])
def test_a_view_of_the_samples(standin, options, first):
    """Convolutions of the samples in another shape, beside one of the samples as they are or alone: where a batch is
    gathered as NHWC, it is so in one of these shapes."""

    def trained(device, **options):
        x = gg.Input((3, 8, 8))
        y = gg.Conv2d(4, 3, padding=1, name="view")(gg.Reshape((12, 4, 4))(x))
        if first is not None:
            z = gg.Conv2d(4, 2, stride=2, name="samples")(x)
            y = gg.Concat()(*((y, z) if first == "view" else (z, y)))
        net = gg.Model(x, gg.Linear(2)(gg.Flatten()(y)))
        with gg.Trainer(net, loss="cross_entropy", strategy=gg.NoExchange(), device=device, **options) as trainer:
            return np.array(numbers([trainer.train_step(samples, labels), trainer.gradients()]))

    rng = np.random.default_rng(1)
    samples, labels = rng.standard_normal((5, 3, 8, 8), np.float32), rng.integers(2, size=5)
    wanted = trained("cpu")
    assert np.abs(trained("cuda", **options) - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies(standin, name):
    # What is rounded to bfloat16 may be rounded to the neighbour, 2^-8 of it away.
    rounded = name.endswith(("bfloat16", "fragments")) or name == "push-sum"
    assert_near(strategy=STRATEGIES[name], bound=2e-3 if rounded else 2e-5)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compression(standin, name):
    strategy, compression = COMPRESSED[name]
    network = "resnet" if name == "allreduce-large" else "convolutions"  # which has a layer that is large and dense
    rounded = compression.values == "bfloat16"
    assert_near(network, strategy=strategy, compression=compression, bound=1e-3 if rounded else 2e-5)


@pytest.mark.parametrize("seed", [2, 3])
def test_the_order_of_work_makes_no_difference(standin, seed):
    """Late work gives the same bits."""
    options = {"strategy": gg.GossipGraD(staleness=1, **SMALL), "steps": 6, "ranks": 4, "backend": None}
    found = [numbers(trained("cuda", "mlp", **options))]
    if standin is not None:
        standin.begin(seed)
    assert found == [numbers(trained("cuda", "mlp", **options))]


def test_memory(standin):
    """A warm step allocates what it does on the CPU, on neither side more; what was allocated is given back. The second
    step captures."""
    make, batch, _ = NETWORKS["convolutions"]
    x, y = batch(np.random.default_rng(0), 6)
    counts = []
    for device, backend in DEVICES:
        live = _core.memory()[0]
        with gg.Trainer(make(), comm=gg.VirtualCluster(2), device=device, backend=backend, tune=False) as trainer:
            for _ in range(2):
                trainer.train_step([x, x], [y, y])
            before = _core.memory()
            assert before[0] > live + 50_000
            for _ in range(3):
                trainer.train_step([x, x], [y, y])
            counts.append([after - first for after, first in zip(_core.memory(), before, strict=True)])
        del trainer
        gc.collect()
        assert _core.memory()[0] <= live
    assert counts[0] == counts[1] and counts[0][0] == 0


@pytest.mark.parametrize("kind", ["channels", "source"])
def test_batches_go_up_as_the_set_has_them(standin, kind, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_TUNE", "0")
    wanted, got = (np.array(numbers(trained_on(d, kind, b, conv_algorithm="direct"))) for d, b in DEVICES)
    assert np.abs(got - wanted).max() <= (5e-4 if GPU else 2e-5) * np.abs(wanted).max()


def test_warm_epochs_allocate_nothing(standin):
    """Neither memory nor events; and no copy waits for host memory of the caller."""
    made = []
    calls = ("cudaMalloc", "cudaHostAlloc", "cudaHostRegister", "cudaEventCreateWithFlags", "pageable")

    class Watch(gg.Callback):
        every = 4

        def on_step(self, trainer, step):
            made.append([standin.count(name) if standin else 0 for name in calls])

    with gg.Trainer(convolutions(), comm=gg.VirtualCluster(1), device="cuda", tune=False) as trainer:
        trainer.fit(set_of("bytes", 96), epochs=1, batch_size=6, progress=False, callbacks=[Watch()])
    assert len(made) == 4 and made[1] == made[2] == made[3]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_units_are_compared_by_the_gpu(standin, precision):
    """The products of all pairs, where they are float32's: not with "fast"."""
    left = []
    for device in ("cpu", "cuda"):
        net = test_shrink.PLANTED["mlp"][0]()
        how = {} if device == "cpu" else {"precision": precision}
        with test_shrink.trainer_of(net, device=device, tune=False, **how) as trainer:
            products = standin.count("cublasLtMatmul") if standin else 0
            left.append(trainer.shrink(0.0, probe=None)["left"])
            by_gpu = device == "cuda" and precision == "exact"
            assert standin is None or (standin.count("cublasLtMatmul") > products) == by_gpu
    assert left[0] == left[1] and left[0]


@pytest.mark.skipif(GPU, reason="a GPU machine has as many as it has")
def test_ranks_of_a_node_are_spread_over_its_gpus(standin, monkeypatch):
    standin.devices(2)
    try:
        found = []
        for rank in range(3):
            monkeypatch.setenv("SLURM_LOCALID", str(rank))
            with gg.Trainer(gg.models.mlp(4, (3,), 2), comm=gg.VirtualCluster(1), device="cuda") as trainer:
                trainer.train_step([np.zeros((2, 4), np.float32)], [np.array([0, 1])])
                found.append(trainer.device)
        assert found == ["cuda:0", "cuda:1", "cuda:0"]
    finally:
        standin.devices(1)


def test_what_the_device_has_not(standin):
    options = {"comm": gg.VirtualCluster(2), "device": "cuda"}
    with pytest.raises(ValueError, match="backend: 'native'"):
        gg.Trainer(gg.models.lenet(), **options, backend="native")
    for wrong, words in (
        ({"device": "cuda:7"}, "cuda:7"),
        ({"precision": "tf32"}, "precision='tf32': allowed: 'exact', 'fast'"),
        ({"device": "cpu", "precision": "fast"}, "precision: 'fast' is for device 'cuda'; 'cpu' computes exactly"),
    ):
        with pytest.raises(ValueError, match=words):
            gg.Trainer(gg.models.lenet(), **{**options, **wrong})


def by_mpi():
    """Hashes of weights of a few strategies."""
    make, batch, _ = NETWORKS["convolutions"]
    found = []
    for name in ("gossipgrad-late", "gossipgrad-push-sum", "allreduce", "overlapped-fc", "diloco-fragments"):
        with gg.Trainer(make(), device="cuda", strategy=STRATEGIES[name], tune=False) as trainer:
            for step in range(3):
                trainer.train_step(*batch(np.random.default_rng([trainer.rank, step]), 3 + trainer.rank))
            found.append(trainer.weights_sha256())
    return found


@pytest.mark.skipif(GPU, reason="on a GPU MPI must be built for CUDA")
def test_messages_in_memory_of_the_gpu(standin, mpirun):
    """An MPI library that reads it moves them, and gives the bits that host memory gives."""
    script = f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport test_cuda_training as t\nprint(t.by_mpi())"
    lines = [
        mpirun(2, script, env={"GOSSIPGRAD_MPI_CUDA": own, "GOSSIPGRAD_STANDIN_OPEN": "1"}).stdout.splitlines()
        for own in ("off", "on")
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 2
