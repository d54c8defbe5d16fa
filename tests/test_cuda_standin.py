"""The room csrc/cuda on a stand-in for CUDA, cuDNN and cuBLASLt: no GPU is needed.

tests/cuda/standin/standin.h says what the stand-in checks. It is no substitute for a GPU.
"""

from __future__ import annotations

import os
import shutil

import cbuild
import cuda_build
import cuda_standin
import numpy as np
import pytest
from conftest import run_group

import gossipgrad as gg
from gossipgrad.training import algorithms

pytestmark = [pytest.mark.full, pytest.mark.skipif(shutil.which(cuda_build.CXX) is None, reason="no g++ here")]

models = gg.models
# Losses, gradients and weights as vectors: the difference to the CPU's over their norm. Sums of float32 have other
# orders there, about 1e-6 each, which normalisations of few values enlarge.
BOUND = 1e-4


@pytest.mark.parametrize("name", cuda_standin.PROGRAMS)
def test_the_standin_itself(objects, name):
    environment = {**os.environ, **cuda_build.ENVIRONMENT}
    done = run_group([str(cuda_standin.program(objects, name))], env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def library(objects):
    return cuda_standin.library(objects)


@pytest.mark.parametrize("name", ["test_device", "test_device_operations"])
def test_programs_that_load_the_library(objects, library, tmp_path, name):
    program = cuda_standin.device_program(objects, name, tmp_path)
    done = run_group([str(program)], env={**os.environ, "GOSSIPGRAD_CUDA_LIBRARY": str(library)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_convolutions(objects, library, tmp_path):
    program = cuda_standin.convolution_program(objects, tmp_path)
    done = run_group([str(program)], env={**os.environ, "GOSSIPGRAD_CUDA_LIBRARY": str(library)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_failures_name_their_step(objects, library, tmp_path):
    """Although later steps have been given to the device when a failure is found."""
    program = cbuild.build(objects, cbuild.ROOT / "tests" / "c" / "test_outstanding.c", tmp_path)
    done = run_group([str(program), "cuda"], env={**os.environ, "GOSSIPGRAD_CUDA_LIBRARY": str(library)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
def cuda(library, monkeypatch):
    """Device "cuda" is the stand-in. At the end nothing was wrong, and nothing is left."""
    monkeypatch.setenv("GOSSIPGRAD_CUDA_LIBRARY", str(library))
    standin = cuda_standin.Standin(library)
    standin.begin(7)
    failures = standin.kernel_failures()
    yield standin
    standin.memory(8 << 30)
    standin.devices(1)
    assert standin.violations() == []
    assert standin.leaks() == []
    assert standin.kernel_failures() == failures


def flat(values) -> np.ndarray:
    """All numbers of nested lists and dictionaries of arrays."""
    if isinstance(values, dict):
        values = [values[key] for key in sorted(values)]
    if isinstance(values, (list, tuple)):
        return np.concatenate([flat(value) for value in values] or [np.zeros(0)])
    return np.zeros(0) if values is None else np.atleast_1d(np.asarray(values, np.float64)).ravel()


def difference(a, b) -> float:
    """Of two vectors, over the norm of the first."""
    a, b = flat(a), flat(b)
    assert a.shape == b.shape and np.isfinite(a).all()
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-20))


def small_residuals(weights):
    """What residual blocks add made small: deep networks of random weights enlarge differences of the last bit."""
    last = "bn3.weight" if any(name.endswith("bn3.weight") for name in weights) else "bn2.weight"
    return {name: value * np.float32(0.1) if name.endswith(last) else value for name, value in weights.items()}


def step_of(make, batch, device, ranks=1, steps=1, **options):
    """Losses, and the gradients and weights of each rank after `steps` steps."""
    rng = np.random.default_rng(3)
    comm = gg.VirtualCluster(ranks)
    with gg.Trainer(make(), comm=comm, device=device, tune=False, **{"optimizer": gg.SGD(0.05), **options}) as trainer:
        losses = []
        trainer.load_weights(small_residuals(trainer.weights()))
        for _ in range(steps):
            pairs = [batch(rng) for _ in range(ranks)]
            losses.append(trainer.train_step([x for x, _ in pairs], [y for _, y in pairs]))
        arenas = [
            {name: trainer.core.exchange.arena(name, rank) for name in trainer.core.exchange.arenas()}
            for rank in range(ranks)
        ]
    return losses, arenas


def images(*shape, n=3):
    return lambda rng: (rng.standard_normal((n, *shape), np.float32), rng.integers(3, size=n))


def text(rng):
    return rng.integers(7, size=(3, 5)), rng.integers(7, size=(3, 5))


def vgg(make):
    return lambda: make(3, (3, 32, 32), dropout=0.25, hidden=6, width=2), images(3, 32, 32)


def resnet(make, size, width, n):
    return lambda: make(3, (3, size, size), width=width), images(3, size, size, n=n)


def rows(rng):
    return rng.standard_normal((4, 5), np.float32), rng.integers(3, size=4)


def pairs(rng):
    return rng.standard_normal((4, 5), np.float32), rng.integers(2, size=(4, 1)).astype(np.float32)


# Their smallest forms, and batches for these.
SMALLEST = {
    "alexnet": (lambda: models.alexnet(3, (3, 63, 63), hidden=6, width=2), images(3, 63, 63, n=2)),
    "char_gpt": (lambda: models.char_gpt(7, 5, layers=1, heads=2, width=8, dropout=0.1), text),
    "char_lstm": (lambda: models.char_lstm(7, 5, embedding=4, hidden=5, dropout=0.2, stateful=True), text),
    "cifar_quick": (lambda: models.cifar_quick(3, input=(3, 9, 9)), images(3, 9, 9)),
    "googlenet": (lambda: models.googlenet(3, (3, 40, 40), width=8), images(3, 40, 40)),
    "googlenet-published": (
        lambda: models.googlenet(3, (3, 80, 80), form="published", width=8),
        images(3, 80, 80, n=1),
    ),
    "lenet": (lambda: models.lenet(3, input=(1, 16, 16)), images(1, 16, 16)),
    "mlp": (lambda: models.mlp(5, (7, 3), 1), pairs),
    "resnet101": resnet(models.resnet101, 33, 1, 4),
    "resnet18": resnet(models.resnet18, 33, 2, 4),
    "resnet20": resnet(models.resnet20, 8, 4, 3),
    "resnet32": resnet(models.resnet32, 8, 4, 3),
    "resnet34": resnet(models.resnet34, 33, 2, 4),
    "resnet50": resnet(models.resnet50, 33, 1, 4),
    "resnet56": resnet(models.resnet56, 8, 4, 3),
    "speech_dnn": (lambda: models.speech_dnn(3, 5, (8,) * 6), rows),
    **{name: vgg(getattr(models, name)) for name in models.__all__ if name.startswith("vgg")},
}
LOSSES = {"mlp": "binary_cross_entropy"}


def test_all_networks_are_here():
    names = {name.split("-")[0] for name in SMALLEST}
    others = ("by_name", "set_options", "with_data")
    assert names == {name for name in models.__all__ if name.islower() and name not in others}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_step_of_each_network_is_that_of_the_cpu(cuda, name):
    make, batch = SMALLEST[name]
    options = {"loss": LOSSES.get(name, "cross_entropy"), "strategy": gg.NoExchange()}
    losses, arenas = step_of(make, batch, "cpu", backend="native", **options)
    losses_there, arenas_there = step_of(make, batch, "cuda", **options)
    assert difference(losses, losses_there) < BOUND
    assert difference(arenas[0]["gradient"], arenas_there[0]["gradient"]) < BOUND
    assert difference(arenas[0]["weight"], arenas_there[0]["weight"]) < BOUND
    assert cuda.count("tf32") == cuda.count("nondeterministic") == 0


@pytest.mark.parametrize("optimizer", [gg.Adam(1e-2, eps=1e-2), gg.LARS(0.1)], ids=["adam", "lars"])
def test_other_optimizers(cuda, optimizer):
    make, batch = SMALLEST["lenet"]
    options = {"strategy": gg.GossipGraD(), "optimizer": optimizer, "ranks": 2, "steps": 3}
    on_cpu = step_of(make, batch, "cpu", backend="native", **options)
    assert difference(on_cpu, step_of(make, batch, "cuda", **options)) < BOUND


def test_fast_products(cuda):
    """TF32 has 10 bits of precision, and algorithms need not be deterministic."""
    options = {"strategy": gg.NoExchange()}
    exact = step_of(*SMALLEST["lenet"], "cuda", **options)
    assert cuda.count("tf32") == 0
    fast = step_of(*SMALLEST["lenet"], "cuda", precision="fast", **options)
    assert cuda.count("tf32") > 0
    assert 1e-6 < difference(exact, fast) < 1e-2


@pytest.mark.parametrize("name", ["lenet", "cifar_quick", "resnet20", "char_lstm", "char_gpt"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_bfloat16(cuda, name, precision):
    """Activations have 8 bits, and so have the gradients of weights of convolutions."""
    options = {"strategy": gg.NoExchange()}
    wide = step_of(*SMALLEST[name], "cpu", backend="native", **options)
    narrow = step_of(*SMALLEST[name], "cuda", dtype="bfloat16", precision=precision, **options)
    assert difference(wide[0], narrow[0]) < 0.02
    assert 1e-3 < difference(wide[1][0]["gradient"], narrow[1][0]["gradient"]) < 0.2
    assert cuda.count("nondeterministic") == 0 or precision == "fast"


@pytest.mark.skipif(
    not gg._core.info()["onednn"]
    or gg._core.info()["isa"] not in ("avx512", "amx")
    or not gg._core.info()["bfloat16_is_fast"],
    reason="no bfloat16 here, or products that read the weights unrounded",
)
@pytest.mark.parametrize("name", ["alexnet", "char_gpt", "resnet18", "resnet20", "vgg11_bn"])
def test_bfloat16_is_that_of_the_cpu(cuda, name):
    """Both round what these networks compute at the same places: they are nearer to each other than to float32. Other
    algorithms than the direct one may read the weights unrounded, and so do convolutions of fewer than sixteen channels
    that oneDNN has no kernel for. With few values a ReLU that rounding decides otherwise would be seen."""
    wider = {"resnet18": resnet(gg.models.resnet18, 33, 16, 4), "resnet20": resnet(gg.models.resnet20, 8, 16, 32)}
    make, batch = wider.get(name, SMALLEST[name])
    options = {"strategy": gg.NoExchange()}
    _, (wide,) = step_of(make, batch, "cpu", **options)
    losses, (here,) = step_of(make, batch, "cpu", dtype="bfloat16", conv_algorithm="direct", **options)
    losses_there, (there,) = step_of(make, batch, "cuda", dtype="bfloat16", **options)
    assert difference(losses, losses_there) < 2e-3
    apart = difference(here["gradient"], there["gradient"])
    assert apart < max(0.02, difference(wide["gradient"], here["gradient"]) / 2)


def test_the_first_layer_reads_what_samples_become(cuda):
    """Images are made NHWC and bfloat16 where they arrive: nothing is rearranged in front of the first convolution."""
    step_of(*SMALLEST["cifar_quick"], "cuda", dtype="bfloat16", precision="fast", strategy=gg.NoExchange())
    assert cuda.count("kernel (gather_pixels_kernel<T, gg_bfloat16>)") > 0


@pytest.mark.parametrize("name", ["cifar_quick", "resnet20"])
def test_fast_images(cuda, name):
    options = {"strategy": gg.NoExchange()}
    exact = step_of(*SMALLEST[name], "cpu", backend="native", **options)
    assert difference(exact, step_of(*SMALLEST[name], "cuda", precision="fast", **options)) < 2e-2


def test_the_type_by_itself(cuda):
    with gg.Trainer(models.lenet(), comm=gg.VirtualCluster(1), device="cuda", dtype="auto") as trainer:
        assert trainer.dtype == "float32"
    options = {"comm": gg.VirtualCluster(2), "device": "cuda", "dtype": "auto", "precision": "fast", "tune": False}
    with gg.Trainer(SMALLEST["lenet"][0](), **options) as trainer:
        assert trainer.dtype == "bfloat16" and trainer.settings()["dtype"] == "bfloat16"


@pytest.mark.parametrize("how", [{}, {"dtype": "bfloat16", "precision": "fast"}], ids=["exact", "bfloat16"])
def test_warm_steps_allocate_nothing(cuda, how):
    make, batch = SMALLEST["lenet"]
    counted = ["cudaMalloc", "cudaHostAlloc", "cudaHostRegister", "cudaFree", "cudaEventCreateWithFlags", "pageable"]
    counted += ["cublasLtMatmulAlgoGetHeuristic", "cudnnGetConvolutionForwardAlgorithm_v7"]
    rng = np.random.default_rng(0)
    options = {"comm": gg.VirtualCluster(2), "strategy": gg.GossipGraD(), "device": "cuda", "tune": False}
    with gg.Trainer(make(), **options, **how) as trainer:
        counts = []
        for _ in range(5):
            pairs = [batch(rng) for _ in range(2)]
            trainer.train_step([x for x, _ in pairs], [y for _, y in pairs])
            counts.append([cuda.count(name) for name in counted])
    assert counts[2] == counts[3] == counts[4]


def test_several_devices(cuda):
    make, batch = SMALLEST["mlp"]
    options = {"loss": "binary_cross_entropy", "strategy": gg.GossipGraD(), "ranks": 2, "steps": 2}
    first = step_of(make, batch, "cuda", **options)
    cuda.devices(2)
    assert np.array_equal(flat(first), flat(step_of(make, batch, "cuda:1", **options)))
    with pytest.raises((ValueError, RuntimeError), match="cuda:2"):
        step_of(make, batch, "cuda:2", **options)


def test_no_driver(cuda):
    cuda.devices(0)
    with pytest.raises(Exception, match="NVIDIA driver"):
        step_of(*SMALLEST["mlp"], "cuda")


def test_too_little_memory(cuda):
    cuda.memory(2 << 20)
    step_of(*SMALLEST["lenet"], "cuda")
    with pytest.raises(MemoryError, match="on the GPU 0: .* bytes wanted, .* are free"):
        step_of(lambda: models.lenet(input=(1, 64, 64)), images(1, 64, 64), "cuda")


@pytest.mark.parametrize("work", ["cudnnConvolutionForward", "cudaMemcpyAsync", "kernel", "cublasLtMatmul"])
def test_a_device_that_is_lost(cuda, work):
    make, batch = SMALLEST["lenet"]
    rng = np.random.default_rng(0)
    with gg.Trainer(make(), comm=gg.VirtualCluster(2), strategy=gg.GossipGraD(), device="cuda", tune=False) as trainer:
        pairs = [batch(rng) for _ in range(2)]
        trainer.train_step([x for x, _ in pairs], [y for _, y in pairs])
        cuda.plant(work, 2, 719, lost=True, late=True)
        with pytest.raises(RuntimeError, match="GPU 0 failed.*unspecified launch failure"):
            for _ in range(3):
                trainer.train_step([x for x, _ in pairs], [y for _, y in pairs])
        cuda.begin()  # only the stand-in's memory can be freed after that


FAILING = [
    *["cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cudaMalloc", "cudaHostAlloc", "cudaMemcpyAsync"],
    *["cudaMemsetAsync", "cudaEventRecord", "cudaStreamSynchronize", "cudaEventSynchronize", "kernel"],
    *["cudnnCreate", "cudnnSetStream", "cudnnCreateTensorDescriptor", "cudnnSetTensor4dDescriptor"],
    *["cudnnCreateFilterDescriptor", "cudnnSetFilter4dDescriptor", "cudnnCreateConvolutionDescriptor"],
    *["cudnnSetConvolution2dDescriptor", "cudnnSetConvolutionGroupCount", "cudnnSetConvolutionMathType"],
    *["cudnnGetConvolutionForwardAlgorithm_v7", "cudnnGetConvolutionBackwardDataAlgorithm_v7"],
    *["cudnnGetConvolutionBackwardFilterAlgorithm_v7", "cudnnConvolutionForward", "cudnnConvolutionBackwardData"],
    *["cudnnConvolutionBackwardFilter", "cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute"],
    *["cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute"],
    *["cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"],
]
# Of recurrent networks.
FAILING_RNN = [
    *["cudnnSetTensorNdDescriptor", "cudnnGetTensorNdDescriptor", "cudnnCreateDropoutDescriptor"],
    *["cudnnSetDropoutDescriptor", "cudnnCreateRNNDescriptor", "cudnnSetRNNDescriptor_v8"],
    *["cudnnCreateRNNDataDescriptor", "cudnnSetRNNDataDescriptor", "cudnnGetRNNWeightSpaceSize"],
    *["cudnnGetRNNTempSpaceSizes", "cudnnGetRNNWeightParams", "cudnnRNNForward", "cudnnRNNBackwardData_v8"],
    *["cudnnRNNBackwardWeights_v8"],
]


@pytest.mark.parametrize("function", [*FAILING, *FAILING_RNN])
def test_a_call_that_fails(cuda, function):
    """It reaches Python as an error, nothing hangs, and nothing is left. Without graphs: what fails within a capture is
    given again."""
    network = "char_lstm" if function in FAILING_RNN else "lenet"
    code = 719 if function.startswith("cuda") or function == "kernel" else 13 if function.startswith("cublas") else 4000
    for nth in (1, 3):
        cuda.begin(nth)
        cuda.plant(function, nth, code)
        called = cuda.count(function)
        try:
            step_of(*SMALLEST[network], "cuda", steps=2, graphs=False)
        except (RuntimeError, MemoryError) as error:
            assert len(str(error)) > 20
        else:
            assert cuda.count(function) - called < nth, "the error was swallowed"
        assert cuda.violations() == [] and cuda.leaks() == []


ALGORITHMS = ["cudnnConvolutionForward 1", "cudnnGetConvolutionForwardWorkspaceSize 1"]
ALGORITHMS_OF_FAST = [
    *["cudnnConvolutionBackwardData 0", "cudnnGetConvolutionBackwardDataWorkspaceSize 0"],
    *["cudnnConvolutionBackwardFilter 3", "cudnnGetConvolutionBackwardFilterWorkspaceSize 3"],
]


@pytest.mark.parametrize(
    ("precision", "call"), [("exact", c) for c in ALGORITHMS] + [("fast", c) for c in ALGORITHMS + ALGORITHMS_OF_FAST]
)
def test_a_listed_algorithm_that_cudnn_refuses(cuda, precision, call):
    """The next one of the list computes the pass; the refused one is called no more."""
    options = {"precision": precision, "strategy": gg.NoExchange()}
    wanted = step_of(*SMALLEST["lenet"], "cpu", backend="native", steps=2, strategy=gg.NoExchange())
    for code in (3010, 4004):
        cuda.begin(2)
        cuda.plant(call, 0, code)
        if call.startswith("cudnnConvolutionForward"):  # with its bias, too
            cuda.plant("cudnnConvolutionBiasActivationForward 1", 0, code)
        found = step_of(*SMALLEST["lenet"], "cuda", steps=2, **options)
        assert difference(wanted, found) < (BOUND if precision == "exact" else 2e-2)
        assert 0 < cuda.count(call) <= 2  # two convolutions
    cuda.begin(2)
    cuda.plant(call, 0, 3007)  # a broken installation
    if "Workspace" in call:
        with pytest.raises(RuntimeError, match=call.split()[0]):
            step_of(*SMALLEST["lenet"], "cuda", **options)


def test_convolutions_without_an_algorithm_that_runs(cuda):
    for number in range(8):
        cuda.plant(f"cudnnConvolutionForward {number}", 0, 3000)
    with pytest.raises(Exception, match="cudnnConvolutionForward"):
        step_of(*SMALLEST["lenet"], "cuda")


@pytest.mark.parametrize("call", ["cudnnRNNForward", "cudnnSetRNNDescriptor_v8", "cudnnGetRNNWeightSpaceSize"])
@pytest.mark.parametrize("code", [2000, 3003, 3010])
def test_an_lstm_that_cudnn_refuses(cuda, call, code):
    wanted = step_of(*SMALLEST["char_lstm"], "cpu", backend="native", strategy=gg.NoExchange())
    cuda.plant(call, 0, code)
    assert difference(wanted, step_of(*SMALLEST["char_lstm"], "cuda", strategy=gg.NoExchange())) < BOUND
    assert cuda.count("cudnnRNNBackwardData_v8") == 0


def test_a_forked_process_cannot_use_a_gpu(cuda):
    """Whose parent has used CUDA, be it to see which GPUs there are: CUDA itself would speak of its initialization."""
    options = {"comm": gg.VirtualCluster(1), "device": "cuda", "tune": False}
    assert gg._core.cuda()[0] == 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gg.Trainer(gg.models.mlp(4, (3,), 2), **options)
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as said:
        assert "was forked from one that has used CUDA" in said.read()
    assert os.waitpid(child, 0)[1] == 0


def test_a_fast_lstm_of_few_samples_is_by_own_kernels(cuda):
    """A position is one kernel, in float32 and where the states divide into eights."""
    make, batch = lambda: models.char_lstm(7, 5, embedding=4, hidden=16, dropout=0.2, stateful=True), text
    wanted = step_of(make, batch, "cpu", backend="native", strategy=gg.NoExchange())
    found = step_of(make, batch, "cuda", precision="fast", strategy=gg.NoExchange())
    assert difference(wanted, found) < 2e-3 and cuda.count("cudnnRNNForward") == 0
    step_of(make, batch, "cuda", strategy=gg.NoExchange())
    assert cuda.count("cudnnRNNForward") > 0


@pytest.mark.parametrize("name", ["cifar_quick", "mlp", "lenet"])
@pytest.mark.parametrize("how", [{}, {"precision": "fast"}, {"dtype": "bfloat16", "precision": "fast"}], ids=str)
def test_nan_in_weights_reaches_the_loss(cuda, name, how):
    make, batch = SMALLEST[name]
    x, y = batch(np.random.default_rng(0))
    options = {"loss": LOSSES.get(name, "cross_entropy"), "device": "cuda", "tune": False}
    with gg.Trainer(make(), comm=gg.VirtualCluster(1), **options, **how) as trainer:
        weights = trainer.weights()
        first = next(key for key in weights if key.endswith("weight"))
        weights[first][:] = np.nan
        trainer.core.exchange.load_arena("weight", weights)
        assert np.isnan(trainer.train_step([x], [y]))
        with pytest.raises(FloatingPointError):
            trainer.fit(x, y, epochs=1, batch_size=len(x), progress=False)


def images_in_batches(n=12):
    rng = np.random.default_rng(5)
    return rng.standard_normal((n, 1, 16, 16), np.float32), rng.integers(3, size=n).astype(np.int32)


PASSES = algorithms.PASSES


def fitted(ranks=1, tune=True, batch_size=4, **options):
    """A trainer of a small LeNet after an epoch of three steps."""
    make, _ = SMALLEST["lenet"]
    comm = gg.VirtualCluster(ranks)
    trainer = gg.Trainer(make(), comm=comm, device="cuda", tune=tune, strategy=gg.NoExchange(), **options)
    trainer.fit(*images_in_batches(3 * batch_size * ranks), epochs=1, batch_size=batch_size, progress=False)
    return trainer


def numbered(trainer):
    """The numbers of the algorithms of each convolution, by passes."""
    return [{p: name for p, (_, name) in one.items()} for one in trainer.core.node_algorithms() if one]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_algorithms_are_measured(cuda, monkeypatch, tmp_path, precision):
    """Once for a GPU, its libraries and a precision: rank 0 measures for all, then they are in the cache.

    By batches of one: each candidate runs eight times, and on the emulation the own kernel is slow."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []
    measure = algorithms.measured

    def measured(wanted, passes, ask, where, path, own):
        def asked(missing):
            runs.append(where)
            if len(runs) > 1:
                raise InterruptedError("measures again")
            return ask(missing)

        return measure(wanted, passes, asked, where, path, own)

    monkeypatch.setattr(algorithms, "measured", measured)
    monkeypatch.setattr(algorithms, "SECONDS", 600.0)
    with fitted(2, batch_size=1, precision=precision) as trainer:
        described = trainer.algorithms
        assert len(described) == 2 and len(runs) == 1
        assert "stand-in 0" in runs[0] and "cuDNN 9.19.0" in runs[0] and runs[0].endswith(precision)
        for one in described:
            # Two of the stand-in's have no exact form, or none for the window: 5 x 5 is not for Winograd's.
            wanted = {"exact": {"cudnn0", "cudnn1", "cudnn2"}, "fast": {"cudnn0", "cudnn1", "tiled"}}[precision]
            assert set(one["seconds"]["forward"]) == wanted
            assert all(one["algorithms"][p] in times for p, times in one["seconds"].items())
        for used, one in zip(numbered(trainer), sorted(described, key=lambda d: d["channels"]), strict=True):
            assert {p: used[p] for p in one["seconds"]} == {p: one["algorithms"][p] for p in one["seconds"]}
    with fitted(batch_size=1, precision=precision) as trainer:
        assert trainer.algorithms == described and len(runs) == 1
    other = {"exact": "fast", "fast": "exact"}[precision]
    with pytest.raises(InterruptedError, match="measures again"):
        fitted(batch_size=1, precision=other)
    assert len(runs) == 2 and runs[1].endswith(other)


def test_what_memory_does_not_suffice_for_is_not_measured(cuda):
    with fitted(tune=False) as trainer:
        large, small = trainer.core.convolutions(4, True)
        cuda.plant("cudaMalloc", 1, 2)
        assert {row[0] for row in trainer.core.measure_algorithms(4, True, [large, small], 600.0)} == {small}
        assert {row[0] for row in trainer.core.measure_algorithms(4, True, [large, small], 600.0)} == {large, small}


@pytest.mark.parametrize("code", [3000, 4004])
def test_what_refuses_to_run_is_not_measured(cuda, code):
    with fitted(tune=False) as trainer:
        wanted = trainer.core.convolutions(4, True)
        everything = {row[1:3] for row in trainer.core.measure_algorithms(4, True, wanted, 600.0)}
        cuda.plant("cudnnConvolutionForward 2", 0, code)
        rest = {row[1:3] for row in trainer.core.measure_algorithms(4, True, wanted, 600.0)}
        assert len(everything - rest) == 1 and rest < everything
        assert "2" in str(*(everything - rest)) or "cudnn2" in str(*(everything - rest))
        cuda.plant("cudnnConvolutionForward 1", 0, 4000)
        with pytest.raises(RuntimeError, match="cudnnConvolutionForward"):
            trainer.core.measure_algorithms(4, True, wanted, 600.0)


def test_a_resumed_run_has_the_algorithms_of_its_checkpoint(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(algorithms, "fastest", lambda seconds: tuple(max(seconds.get(p, ["direct"])) for p in PASSES))
    with fitted() as trainer:
        # The highest numbers; those of the second layer, whose passes all run.
        assert numbered(trainer)[1] == {"forward": "cudnn2", "weights": "cudnn1", "data": "cudnn1"}
        trainer.save(tmp_path / "checkpoint")
        chosen = trainer.algorithms
    monkeypatch.setattr(algorithms, "measured", None)
    with gg.Trainer.load(tmp_path / "checkpoint", comm=gg.VirtualCluster(1), device="cuda") as trainer:
        trainer.fit(*images_in_batches(), epochs=2, batch_size=4, progress=False)
        assert trainer.algorithms == chosen
        assert numbered(trainer)[1] == {"forward": "cudnn2", "weights": "cudnn1", "data": "cudnn1"}


@pytest.mark.parametrize("changed", [{"precision": "fast"}, {"device": "cpu"}])
def test_algorithms_of_another_precision_or_device_are_not_those_of_a_checkpoint(cuda, monkeypatch, tmp_path, changed):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fitted() as trainer:
        trainer.save(tmp_path / "checkpoint")
    for other, kept in ({}, True), (changed, False):
        options = {"comm": gg.VirtualCluster(1), "device": "cuda", **other}
        with gg.Trainer.load(tmp_path / "checkpoint", **options) as trainer:
            assert bool(trainer.algorithms) == trainer.algorithms_saved == kept
