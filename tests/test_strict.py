"""The strict device: memory that the host may not touch, work that is done late. Everything trains on it with the bits
of the CPU's own kernels, or touches an arena, reads too early or overwrites too soon."""

import os
import subprocess
import sys

import numpy as np
import pytest
import test_shrink
from conftest import ROOT

import gossipgrad as gg
from gossipgrad import _core

RANKS, N = 2, 6


def images(rng, n):
    return rng.standard_normal((n, 3, 12, 12), np.float32), rng.integers(4, size=n)


def convolutions():
    """Normalisations, branches that meet, and poolings."""
    x = gg.Input((3, 12, 12))
    y = gg.ReLU()(gg.BatchNorm2d()(gg.Conv2d(8, 3, padding=1)(x)))
    z = gg.BatchNorm2d(affine=False)(gg.Conv2d(8, 3, padding=1, bias=False)(y))
    y = gg.LocalResponseNorm(3)(gg.ReLU()(gg.Add()(y, z)))
    sides = gg.MaxPool2d(2)(y), gg.AvgPool2d(2)(gg.Conv2d(5, 1)(y)), gg.LeakyReLU()(gg.Conv2d(4, 2, stride=2)(y))
    y = gg.Dropout(0.3)(gg.Sigmoid()(gg.Concat()(*sides)))
    y = gg.Linear(9)(gg.Flatten()(gg.AdaptiveAvgPool2d((2, 3))(y)))
    return gg.Model(x, gg.Linear(4)(gg.Tanh()(gg.BatchNorm1d()(y))))


def rows():
    """Layers over positions, and axes that move."""
    x = gg.Input((6, 8))
    y = gg.GELU()(gg.LayerNorm()(gg.Linear(8)(x)))
    y = gg.Add()(y, gg.MultiHeadAttention(8, 2)(y))
    y = gg.Softmax()(gg.Pad(0, 1, 2)(gg.Slice(0, 1, -1)(y)))
    y = gg.Permute((1, 0))(y)
    return gg.Model(x, gg.Linear(4)(gg.Flatten()(gg.Reshape((7, 8))(y))))


def heads():
    """Two inputs; two heads, one for training only, with weights of classes and positions that do not count."""
    tokens, facts = gg.Input((5,), dtype="int32"), gg.Input((3,))
    y = gg.LSTM(6, layers=2, stateful=True, name="rnn")(gg.Embedding(7, 4)(tokens))
    joined = gg.Concat()(gg.Flatten()(y), facts)
    ends = {"next": gg.Linear(7)(y), "size": gg.Linear(2)(joined), "aux": gg.Linear(7)(gg.Tanh()(y))}
    return gg.Model([tokens, facts], ends, training_only=["aux"], loss_weights={"size": 0.25})


def text(length, words):
    def made(rng, n):
        return rng.integers(words, size=(n, length)), rng.integers(words, size=(n, length))

    return made


def several(rng, n):
    x = [rng.integers(7, size=(n, 5)), rng.standard_normal((n, 3), np.float32)]
    return x, {"next": rng.integers(-1, 7, (n, 5)), "size": rng.standard_normal((n, 2), np.float32)}


LOSSES = {
    "next": gg.CrossEntropy(ignore_index=-1),
    "size": "mean_squared_error",
    "aux": gg.CrossEntropy(label_smoothing=0.1, ignore_index=-1, class_weights=[1, 2, 0.5, 3, 1, 1, 0]),
}

# What trains, its batches, its losses.
NETWORKS = {
    "mlp": (
        lambda: gg.models.mlp(10, (33, 7), 1),
        lambda rng, n: (rng.standard_normal((n, 10), np.float32), rng.integers(2, size=(n, 1)).astype(np.float32)),
        "binary_cross_entropy",
    ),
    "convolutions": (convolutions, images, "cross_entropy"),
    "resnet": (lambda: gg.models.resnet20(4, (3, 12, 12), width=4), images, "cross_entropy"),
    "rows": (
        rows,
        lambda rng, n: (rng.standard_normal((n, 6, 8), np.float32), rng.integers(4, size=n)),
        "cross_entropy",
    ),
    "lstm": (
        lambda: gg.models.char_lstm(11, 9, embedding=5, hidden=6, dropout=0.2, stateful=True),
        text(9, 11),
        "cross_entropy",
    ),
    "gpt": (
        lambda: gg.models.char_gpt(11, 9, layers=1, heads=2, width=8, dropout=0.1),
        text(9, 11),
        "cross_entropy",
    ),
    "heads": (heads, several, LOSSES),
}


def trained(device, network="convolutions", steps=3, ranks=RANKS, backend="native", **options):
    """Losses, weights, moments and carried state of each rank after steps; evaluation and prediction."""
    make, batch, loss = NETWORKS[network]
    options = {"optimizer": gg.SGD(0.05, momentum=0.9)} | options
    rng = np.random.default_rng(len(network))
    with gg.Trainer(
        make(), loss=loss, comm=gg.VirtualCluster(ranks), device=device, backend=backend, tune=False, **options
    ) as trainer:
        found = []
        for step in range(steps):
            pairs = [batch(rng, N + 3 * rank + 16 * (step == 1)) for rank in range(ranks)]
            found.append(trainer.train_step([x for x, _ in pairs], [y for _, y in pairs]))
        x, y = batch(rng, 21)
        found.append(trainer.evaluate(x, y, batch_size=8))
        found.append(trainer.predict(x, batch_size=8))
        # A sum of compressed gradients is applied piece by piece on the CPU, and lies nowhere.
        names = [
            name for name in trainer.core.exchange.arenas() if name != "gradient" or options.get("compression") is None
        ]
        for rank in range(ranks):
            found += [trainer.core.exchange.arena(name, rank) for name in names]
            found.append(trainer.core.carried(rank))
        found.append(trainer.core.exchange.consensus_distance())
    return found


def same(a, b):
    """Whether two results are equal to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b


def agree(*args, device="strict", **options):
    assert same(trained("cpu", *args, **options), trained(device, *args, **options))


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_have_the_bits_of_the_cpu(network):
    agree(network, strategy=gg.NoExchange())


BF16 = {"wire_dtype": "bfloat16"}
SMALL = {"bucket_bytes": 300, "chunk_bytes": 128}

STRATEGIES = {
    "gossipgrad": gg.GossipGraD(),
    "gossipgrad-late": gg.GossipGraD(staleness=1, **SMALL),
    "gossipgrad-bfloat16": gg.GossipGraD(**BF16, **SMALL),
    "gossipgrad-gradients": gg.GossipGraD(exchange="gradients"),
    "gossipgrad-weights": gg.GossipGraD(exchange="weights", staleness=1),
    "gossipgrad-slices": gg.GossipGraD(slices=2, **SMALL),
    "gossipgrad-by-slices": gg.GossipGraD(exchange="slices"),
    "gossipgrad-push-sum": gg.GossipGraD(push_sum=True),
    "gossipgrad-hierarchical": gg.GossipGraD(hierarchical=True, ranks_per_node=2),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(probability=0.7),
    "push-sum": gg.PushGossip(push_sum=True, **BF16),
    "allreduce": gg.AllReduce(),
    "allreduce-bfloat16": gg.AllReduce(**BF16),
    "layerwise": gg.LayerwiseAllReduce(**SMALL),
    "layerwise-bfloat16": gg.LayerwiseAllReduce(**BF16, **SMALL),
    "overlapped": gg.OverlappedAveraging(**SMALL),
    "overlapped-fc": gg.OverlappedAveraging(partition_fc=True),
    "overlapped-bfloat16": gg.OverlappedAveraging(overlap=False, **BF16, **SMALL),
    "periodic": gg.PeriodicAllReduce(period=2),
    "elastic": gg.ElasticAveraging(period=2),
    "elastic-late": gg.ElasticAveraging(period=1, synchronous=False, **SMALL),
    "server": gg.ParameterServer(**SMALL),
    "server-bfloat16": gg.ParameterServer(period=2, **BF16),
    "diloco": gg.DiLoCo(period=2),
    "diloco-fragments": gg.DiLoCo(period=2, fragments=2, delay=1, **BF16),
    "noloco": gg.NoLoCo(period=2, delay=1),
    "none": gg.NoExchange(),
}


@pytest.mark.core(16)
@pytest.mark.parametrize("messages", ["off", "on"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_have_the_bits_of_the_cpu(name, messages, monkeypatch):
    """With messages in the host's memory, and in the device's own, which the host may not touch."""
    monkeypatch.setenv("GOSSIPGRAD_MPI_CUDA", messages)
    agree(strategy=STRATEGIES[name])


def test_a_wrong_place_of_messages_is_named(monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_MPI_CUDA", "yes")
    with pytest.raises(ValueError, match="GOSSIPGRAD_MPI_CUDA: 'yes'; allowed are auto, on, off"):
        gg.Trainer(convolutions(), comm=gg.VirtualCluster(RANKS), device="strict")


# Short bins of one byte a code, and longer ones of two.
BINS = {"bin_size": {"conv": 5, "linear": 70, "recurrent": 7, "other": 9}, "dense_below": 20}
BUCKETS = {"bucket_bytes": 900}

COMPRESSED = {
    "allreduce-strict": (gg.AllReduce(), gg.AdaComp(mode="strict", **BINS)),
    "allreduce-safe": (gg.AllReduce(), gg.AdaComp(mode="safe", **BINS)),
    "allreduce-large": (gg.AllReduce(), gg.AdaComp(mode="exact", **BINS | {"dense_below": 1200})),
    "allreduce-momentum": (gg.AllReduce(), gg.AdaComp(mode="strict", local_momentum=True, warmup=1, **BINS)),
    "layerwise-bfloat16": (gg.LayerwiseAllReduce(**BUCKETS), gg.AdaComp(mode="exact", **BINS)),
    "layerwise-float32": (gg.LayerwiseAllReduce(**BUCKETS), gg.AdaComp(mode="exact", values="float32", **BINS)),
    "layerwise-cyclic": (gg.LayerwiseAllReduce(**BUCKETS), gg.AdaComp(selection="cyclic", warmup=1, **BINS)),
    "layerwise-cyclic-momentum": (
        gg.LayerwiseAllReduce(**BUCKETS),
        gg.AdaComp(selection="cyclic", values="float32", local_momentum=True, **BINS),
    ),
    "periodic": (gg.PeriodicAllReduce(period=2), gg.AdaComp(mode="safe", **BINS)),
    "elastic": (gg.ElasticAveraging(period=1), gg.AdaComp(mode="exact", **BINS)),
    "elastic-late": (gg.ElasticAveraging(period=1, synchronous=False, **BUCKETS), gg.AdaComp(warmup=1, **BINS)),
    "server": (gg.ParameterServer(**BUCKETS), gg.AdaComp(mode="safe", **BINS)),
    "gossipgrad": (gg.GossipGraD(**BUCKETS), gg.AdaComp(**BINS)),
    "gossipgrad-warm": (gg.GossipGraD(**BUCKETS), gg.AdaComp(values="float32", warmup=3, **BINS)),
}


@pytest.mark.parametrize("messages", ["off", "on"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compression_has_the_bits_of_the_cpu(name, messages, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_MPI_CUDA", messages)
    strategy, compression = COMPRESSED[name]
    agree("resnet", strategy=strategy, compression=compression, steps=5, ranks=3)


@pytest.mark.parametrize("seed", range(1, 4))
def test_the_order_of_work_makes_no_difference(seed):
    agree("mlp", device=f"strict:{seed}", strategy=gg.GossipGraD(staleness=1, **SMALL), steps=12, ranks=4)


@pytest.fixture
def untuned(monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_TUNE", "0")


def fitted(device, path, **options):
    """What a set, its epochs, an evaluation and checkpoints give."""
    train, test = gg.data.synthetic((3, 12, 12), 4, 90, 31)
    how = {
        "comm": gg.VirtualCluster(RANKS),
        "device": device,
        "backend": "native",
        "optimizer": gg.Adam(0.01),
    } | options
    with gg.Trainer(convolutions(), **how) as trainer:
        history = trainer.fit(train, validation=test, epochs=2, batch_size=10, progress=False)
        trainer.save(path)
        found = [trainer.weights(), trainer.evaluate(test), trainer.predict(test), trainer.weights_sha256()]
        found += [[epoch["train_loss"], epoch["validation"], epoch.get("compression")] for epoch in history.epochs]
    where = {key: how[key] for key in ("comm", "device", "backend")}
    with gg.Trainer.load(path, **where) as again:
        found += [again.weights(), [again.core.exchange.arena(name, 1) for name in again.core.exchange.arenas()]]
        again.fit(train, epochs=3, batch_size=10, progress=False)
        found.append(again.weights())
    return found


@pytest.mark.parametrize("name", ["gossipgrad-late", "overlapped", "allreduce", "elastic", "diloco"])
def test_epochs_evaluations_and_checkpoints(name, tmp_path, untuned):
    strategy = STRATEGIES[name]
    assert same(*(fitted(device, tmp_path / f"{device}.gg", strategy=strategy) for device in ("cpu", "strict")))


class Bytes(gg.data.Source):
    """Images that are made when they are read."""

    shape, dtype, scale, shift = (3, 12, 12), np.dtype(np.uint8), 1 / 255, -0.5

    def __len__(self):
        return 40

    def read(self, rows, epoch, samples, targets):
        samples[:] = np.random.default_rng(3).integers(256, size=(40, 3, 12, 12), dtype=np.uint8)[rows]


def set_of(kind, n=40):
    rng = np.random.default_rng(3)
    x, y = rng.integers(256, size=(n, 3, 12, 12), dtype=np.uint8), rng.integers(4, size=n)
    channels = np.array([0.5, 1, 2], np.float32)
    how = {
        "bytes": {"scale": 1 / 255, "shift": -0.5},
        "channels": {"scale": 0.01 * channels, "shift": -channels},
        "elements": {"scale": 0.01, "shift": -rng.random((3, 12, 12), np.float32)},
        "weights": {"scale": 1 / 255, "sample_weight": rng.random(n, np.float32)},
    }
    return gg.Dataset(Bytes(), y) if kind == "source" else gg.Dataset(x, y, **how[kind])


def trained_on(device, kind, backend="native", **options):
    with gg.Trainer(
        convolutions(), comm=gg.VirtualCluster(RANKS), device=device, backend=backend, **options
    ) as trainer:
        losses = [one["train_loss"] for one in trainer.fit(set_of(kind), epochs=2, batch_size=6, progress=False).epochs]
        return [losses, trainer.weights(), trainer.evaluate(set_of(kind), batch_size=16)]


@pytest.mark.parametrize("kind", ["bytes", "channels", "elements", "weights", "source"])
def test_batches_go_up_as_the_set_has_them(kind, untuned):
    strategy = gg.GossipGraD(shuffle_samples=kind in ("channels", "weights", "source"))
    assert same(*(trained_on(device, kind, strategy=strategy) for device in ("cpu", "strict")))


@pytest.mark.parametrize("name", ["layerwise-float32", "allreduce-momentum", "gossipgrad", "server"])
def test_residues_and_copies_in_checkpoints(name, tmp_path, untuned):
    strategy, compression = COMPRESSED[name]
    how = {"strategy": strategy, "compression": compression, "optimizer": gg.SGD(0.05, momentum=0.9)}
    assert same(*(fitted(device, tmp_path / f"{device}.gg", **how) for device in ("cpu", "strict")))


def test_a_checkpoint_goes_on_another_device(tmp_path, untuned):
    found = []
    for first, second in (("cpu", "strict"), ("strict", "cpu")):
        how = {"comm": gg.VirtualCluster(RANKS), "backend": "native", "optimizer": gg.SGD(0.1)}
        train, _ = gg.data.synthetic((3, 12, 12), 4, 50, 5)
        with gg.Trainer(convolutions(), device=first, **how) as trainer:
            trainer.fit(train, epochs=1, batch_size=10, progress=False)
            trainer.save(tmp_path / "a.gg")
        with pytest.warns(UserWarning, match=f"device '{first}' -> '{second}'"):
            trainer = gg.Trainer.load(tmp_path / "a.gg", device=second, backend="native")
        trainer.fit(train, epochs=2, batch_size=10, progress=False)
        found.append(trainer.weights())
        trainer.close()
    assert same(*found)


@pytest.mark.parametrize("compressed", [None, "layerwise-bfloat16", "layerwise-cyclic", "gossipgrad"])
def test_warm_steps_allocate_nothing(compressed):
    """But what a step does on the CPU, too: the caller's batches are checked."""
    strategy, compression = COMPRESSED[compressed] if compressed else (None, None)
    made = []
    x, y = images(np.random.default_rng(1), N)
    for device in ("cpu", "strict"):
        how = {"device": device, "strategy": strategy, "compression": compression}
        with gg.Trainer(convolutions(), comm=gg.VirtualCluster(RANKS), **how) as trainer:
            for _ in range(4):
                trainer.train_step([x] * RANKS, [y] * RANKS)
            before = _core.memory()
            for _ in range(5):
                trainer.train_step([x] * RANKS, [y] * RANKS)
            made.append([after - was for after, was in zip(_core.memory(), before, strict=True)])
    assert made[0] == made[1] and made[0][0] == 0


def test_a_step_is_not_timed_where_a_batch_would_have_to_go_up():
    with (
        gg.Trainer(convolutions(), device="strict") as trainer,
        pytest.raises(NotImplementedError, match="on a CPU alone"),
    ):
        trainer.core.measure_step(4)


def test_algorithms_are_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train, _ = gg.data.synthetic((3, 12, 12), 4, 40, 5)
    with gg.Trainer(convolutions(), comm=gg.VirtualCluster(RANKS), device="strict", tune=True) as trainer:
        history = trainer.fit(train, epochs=1, batch_size=20, progress=False)
        assert trainer.algorithms
    assert history.epochs[0]["train_loss"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "gpu"}, ["device: 'gpu'", "allowed are cpu", "strict", "cuda"]),
        ({"device": "cpu:0"}, ["there is one 'cpu', without a number"]),
        ({"device": "strict:"}, ["behind the colon", "'strict:0'"]),
        ({"device": "strict:-1"}, ["behind the colon"]),
        ({"device": 1}, ["device: a int", "wanted a str"]),
        ({"device": "strict", "backend": "onednn"}, ["backend: 'onednn'", "auto, native"]),
        ({"device": "strict", "dtype": "bfloat16"}, ["dtype: 'bfloat16'", "float32"]),
    ],
)
def test_wrong_devices_are_named(options, words):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        gg.Trainer(convolutions(), comm=gg.VirtualCluster(RANKS), **options)
    assert all(word in str(caught.value) for word in words)


def by_mpi():
    """Hashes of a few strategies' weights on all ranks, of processes."""
    found = {}
    named = ("gossipgrad-late", "gossipgrad-push-sum", "allreduce", "overlapped-fc", "diloco-fragments", "noloco")
    chosen = {name: {"strategy": STRATEGIES[name]} for name in named}
    for name in ("layerwise-cyclic", "allreduce-safe", "gossipgrad"):
        chosen[f"packed {name}"] = dict(zip(("strategy", "compression"), COMPRESSED[name], strict=True))
    for name, options in chosen.items():
        make, batch, loss = NETWORKS["convolutions"]
        for device in ("cpu", "strict"):
            how = {"optimizer": gg.SGD(0.05, momentum=0.9), "tune": False} | options
            with gg.Trainer(make(), loss=loss, device=device, backend="native", **how) as trainer:
                for step in range(4):
                    trainer.train_step(*batch(np.random.default_rng([trainer.rank, step]), N + trainer.rank))
                found[name, device] = trainer.weights_sha256()
    return found


@pytest.mark.full
def test_processes_have_the_bits_of_the_cpu(mpirun):
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport test_strict\n"
        "found = test_strict.by_mpi()\n"
        "wrong = [name for name, device in found if found[name, 'cpu'] != found[name, 'strict']]\n"
        "assert not wrong and len(found) == 18, wrong\n"
    )
    mpirun(2, script)


@pytest.mark.parametrize("name", test_shrink.PLANTED)
def test_units_leave(name):
    """Arenas, and state that is carried, move to the smaller network."""
    found = []
    make, _ = test_shrink.PLANTED[name]
    loss = "mean_squared_error" if name == "recurrent" else "cross_entropy"
    for device in ("cpu", "strict"):
        net = make(stateful=True) if name == "recurrent" else make()
        rng = np.random.default_rng(3)
        x = rng.standard_normal((RANKS, N, *net.input_shape), np.float32)
        y = (
            rng.standard_normal((RANKS, N, 4, 3), np.float32)
            if name == "recurrent"
            else rng.integers(3, size=(RANKS, N))
        )
        with test_shrink.trainer_of(net, loss=loss, device=device, backend="native", tune=False) as trainer:
            losses = [trainer.train_step([*x], [*y])]
            event = trainer.shrink(0.4, probe=None)
            losses += [trainer.train_step([*x], [*y]) for _ in range(2)]
            found.append([losses, event["left"], trainer.weights(), trainer.momentum(), trainer.core.carried(1)])
    assert same(*found) and found[0][1]


def test_strategies_change():
    found = []
    for device in ("cpu", "strict"):
        rng = np.random.default_rng(4)
        how = {"device": device, "backend": "native", "tune": False, "optimizer": gg.SGD(0.05, momentum=0.9)}
        with gg.Trainer(convolutions(), comm=gg.VirtualCluster(RANKS), **how) as trainer:
            for name in ("allreduce", "overlapped", "elastic", "diloco", "server", "noloco", "gossipgrad-weights"):
                pairs = [images(rng, N) for _ in range(RANKS)]
                found.append(trainer.train_step([x for x, _ in pairs], [y for _, y in pairs]))
                trainer.core.reshape(strategy=STRATEGIES[name].options())
            found.append([trainer.core.exchange.arena(name, 1) for name in trainer.core.exchange.arenas()])
    half = len(found) // 2
    assert same(found[:half], found[half:])


SHIPPED = """
from gossipgrad import _core

for name, words in (("strict", "allowed are cpu"), ("strange:1", "backend's library: /nowhere/strange.so")):
    try:
        _core.find_device(name)
    except ValueError as error:
        assert words in str(error) and "strict" not in str(error).replace("'strict'", ""), error
    else:
        raise AssertionError(name)
"""


def test_the_package_has_no_strict_device():
    """What GOSSIPGRAD_DEVICE_LIBRARY names is all that there is beside the CPU and CUDA."""
    environment = {**os.environ, "GOSSIPGRAD_DEVICE_LIBRARY": "/nowhere/strange.so"}
    done = subprocess.run([sys.executable, "-c", SHIPPED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


UNLIKE = """
import gossipgrad as gg

rank = gg.Team().rank
try:
    gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)), device=["cpu", "strict"][rank])
except ValueError as error:
    assert "device: cpu on rank 0; strict on rank 1" in str(error), error
    print("refused", flush=True)
"""


def test_ranks_with_other_kinds_of_devices_are_refused(mpirun):
    assert mpirun(2, UNLIKE).stdout.count("refused") == 2


def test_the_default_device(monkeypatch):
    """$GOSSIPGRAD_DEVICE, unless a backend is asked for: all backends are the CPU's."""
    net, one = gg.models.mlp(4, (3,), 2), gg.VirtualCluster(1)

    def device(**options):
        with gg.Trainer(net, comm=one, **options) as trainer:
            return trainer.device

    monkeypatch.delenv("GOSSIPGRAD_DEVICE", raising=False)
    monkeypatch.delenv("GOSSIPGRAD_BACKEND", raising=False)
    assert device() == "cpu"
    monkeypatch.setenv("GOSSIPGRAD_DEVICE", "strict")
    assert device() == "strict" and device(backend="native") == device(device="cpu") == "cpu"
    monkeypatch.setenv("GOSSIPGRAD_BACKEND", "native")
    assert device() == "cpu" and device(device="strict") == "strict"
    monkeypatch.delenv("GOSSIPGRAD_BACKEND")
    monkeypatch.setenv("GOSSIPGRAD_DEVICE", "strange")
    with pytest.raises(ValueError, match="device: 'strange'; allowed are cpu"):
        device()
