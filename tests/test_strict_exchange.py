"""Every form of every strategy on the strict device, whose memory the host may not touch and whose work is late.

They have the bits of the CPU: in the virtual cluster, and over MPI, where messages are held back for the device.
"""

from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import gossipgrad as gg

SMALL = {"bucket_bytes": 300, "chunk_bytes": 128}
BF16 = {"wire_dtype": "bfloat16"}

# Over MPI too; what depends on the times of messages is not here.
FORMS = {
    "none": lambda: gg.NoExchange(),
    "allreduce": lambda: gg.AllReduce(),
    "allreduce-bfloat16": lambda: gg.AllReduce(**BF16),
    "layerwise": lambda: gg.LayerwiseAllReduce(**SMALL),
    "layerwise-bfloat16": lambda: gg.LayerwiseAllReduce(**BF16, **SMALL),
    "periodic": lambda: gg.PeriodicAllReduce(period=2, shuffle_samples=True),
    "periodic-bfloat16": lambda: gg.PeriodicAllReduce(period=1, **BF16),
    "gossipgrad": lambda: gg.GossipGraD(**SMALL),
    "gossipgrad-stale": lambda: gg.GossipGraD(staleness=1, shuffle_samples=True, **SMALL),
    "gossipgrad-stale-bfloat16": lambda: gg.GossipGraD(staleness=1, **BF16, **SMALL),
    "gossipgrad-weights": lambda: gg.GossipGraD(exchange="weights", **BF16, **SMALL),
    "gossipgrad-weights-stale": lambda: gg.GossipGraD(exchange="weights", staleness=1, **SMALL),
    "gossipgrad-gradients": lambda: gg.GossipGraD(exchange="gradients", **SMALL),
    "gossipgrad-gradients-bfloat16": lambda: gg.GossipGraD(exchange="gradients", **BF16, **SMALL),
    "gossipgrad-slices": lambda: gg.GossipGraD(slices=3, **SMALL),
    "gossipgrad-slices-stale": lambda: gg.GossipGraD(slices=2, staleness=1, **BF16, **SMALL),
    "gossipgrad-ring": lambda: gg.GossipGraD(topology="ring", rotate=False, **SMALL),
    "push-sum": lambda: gg.GossipGraD(push_sum=True, **SMALL),
    "push-sum-stale": lambda: gg.GossipGraD(push_sum=True, staleness=1, **BF16, **SMALL),
    "push-sum-slices": lambda: gg.GossipGraD(push_sum=True, slices=2, staleness=1, **SMALL),
    "hierarchical": lambda: gg.GossipGraD(hierarchical=True, ranks_per_node=1, **SMALL),
    "hierarchical-one-node": lambda: gg.GossipGraD(hierarchical=True, staleness=1, **BF16, **SMALL),
    "elastic": lambda: gg.ElasticAveraging(period=2),
    "elastic-bfloat16": lambda: gg.ElasticAveraging(period=1, **BF16),
    "overlapped": lambda: gg.OverlappedAveraging(**SMALL),
    "overlapped-fc": lambda: gg.OverlappedAveraging(partition_fc=True, **SMALL),
    "overlapped-fc-bfloat16": lambda: gg.OverlappedAveraging(partition_fc=True, **BF16),
    "overlapped-not": lambda: gg.OverlappedAveraging(overlap=False, partition_fc=False, **BF16, **SMALL),
    "diloco": lambda: gg.DiLoCo(period=2),
    "diloco-fragments": lambda: gg.DiLoCo(period=2, fragments=2, delay=1, outer_nesterov=True, **BF16),
    "noloco": lambda: gg.NoLoCo(period=2),
    "noloco-late": lambda: gg.NoLoCo(period=2, fragments=2, delay=1, group=3, **BF16),
}

# What happens depends on the times of messages: with the virtual cluster's clocks it is the same each time.
TIMED = {
    "pull": lambda: gg.PullGossip(chunk_bytes=128),
    "pull-push-sum": lambda: gg.PullGossip(push_sum=True, **BF16),
    "push": lambda: gg.PushGossip(probability=0.7, chunk_bytes=128),
    "push-push-sum": lambda: gg.PushGossip(push_sum=True, **BF16),
    "elastic-servers": lambda: gg.ElasticAveraging(period=1, synchronous=False, servers=2, **SMALL),
    "elastic-servers-bfloat16": lambda: gg.ElasticAveraging(period=2, synchronous=False, **BF16, **SMALL),
    "parameter-server": lambda: gg.ParameterServer(**SMALL),
    "parameter-server-dedicated": lambda: gg.ParameterServer(dedicated=True, **SMALL),
    "parameter-server-bfloat16": lambda: gg.ParameterServer(servers=2, period=2, **BF16, **SMALL),
}

OPTIMIZERS = {
    "momentum": lambda: gg.SGD(0.05, momentum=0.9, weight_decay=1e-3),
    "clipped": lambda: gg.SGD(0.05, momentum=0.9, clip_norm=0.5),
    "adam": lambda: gg.Adam(1e-2),
}


def network():
    """With statistics, and a linear layer large enough to be partitioned."""
    x = gg.Input((1, 6, 6))
    y = gg.ReLU()(gg.BatchNorm2d()(gg.Conv2d(5, 3)(x)))
    return gg.Model(x, gg.Linear(3)(gg.Tanh()(gg.Linear(19)(gg.Flatten()(y)))))


def trained(device, strategy, ranks, path, *, virtual=True, optimizer="momentum", **options):
    """What this process's ranks have after an epoch, a save, weights that are loaded, and an epoch more."""
    if virtual:
        options["comm"] = gg.VirtualCluster(
            ranks, latency=1e-3, bandwidth=1e6, compute_time=2e-3, straggler=gg.Straggler(0.3, 1e-3), seed=1
        )
    generator = np.random.default_rng(ranks)
    x = generator.standard_normal((ranks * 24 + 5, 1, 6, 6), np.float32)
    y = generator.integers(3, size=len(x))
    with gg.Trainer(
        network(),
        device=device,
        backend="native",
        tune=False,
        strategy=strategy,
        optimizer=OPTIMIZERS[optimizer](),
        seed=3,
        **options,
    ) as trainer:
        found = {}

        def note(moment):
            found[f"loss {moment}"] = trainer.evaluate(x, y, batch_size=8)
            found[f"hashes {moment}"] = list(trainer.weights_sha256())
            for rank in range(trainer.team.local):
                for name in trainer.core.exchange.arenas():
                    found[f"{name} {rank} {moment}"] = trainer.core.exchange.arena(name, rank)

        found["losses"] = trainer.fit(x, y, batch_size=8, progress=False)["train_loss"]
        note("after one epoch")
        trainer.save(path)
        trainer.load_weights({name: value + np.float32(0.01) for name, value in trainer.consensus_weights().items()})
        trainer.fit(x, y, batch_size=8, progress=False)
        note("at the end")
    return found


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b


def both(tmp_path, make, ranks, **options):
    """The differences between a run on the CPU and a run on the strict device."""
    runs = []
    for device in ("cpu", "strict"):
        (tmp_path / device).mkdir(exist_ok=True)
        runs.append(trained(device, make(), ranks, tmp_path / device / "run.safetensors", **options))
    assert runs[0].keys() == runs[1].keys()
    return [name for name in runs[0] if not same(runs[0][name], runs[1][name])]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("form", FORMS | TIMED)
def test_the_bits_of_the_cpu(form, ranks, tmp_path):
    assert both(tmp_path, (FORMS | TIMED)[form], ranks) == []


DEDICATED = {
    "parameter-server-dedicated": TIMED["parameter-server-dedicated"],
    "parameter-server-dedicated-two": lambda: gg.ParameterServer(servers=2, dedicated=True, period=2, **BF16, **SMALL),
    "elastic-dedicated": lambda: gg.ElasticAveraging(period=1, synchronous=False, dedicated=True, **SMALL),
}


@pytest.mark.parametrize("form", ["elastic-servers", "elastic-servers-bfloat16", "parameter-server", *DEDICATED])
def test_servers_send_from_the_memory_of_the_device(form, monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_MPI_CUDA", "on")
    assert both(tmp_path, (TIMED | DEDICATED)[form], 3) == []


# Updates that need norms of all gradients, and two moments; nodes of two ranks.
@pytest.mark.parametrize(
    ("form", "optimizer"),
    [
        ("allreduce", "clipped"),
        ("layerwise", "clipped"),
        ("overlapped", "clipped"),
        ("gossipgrad-gradients", "clipped"),
        ("gossipgrad-stale", "adam"),
        ("push-sum-stale", "adam"),
        ("overlapped-fc", "adam"),
        ("periodic", "adam"),
        ("hierarchical-one-node", "adam"),
    ],
)
def test_other_updates(form, optimizer, tmp_path):
    assert both(tmp_path, FORMS[form], 3, optimizer=optimizer) == []


@pytest.mark.parametrize("exchange", ["weights+momentum", "gradients"])
def test_nodes_of_two(exchange, tmp_path):
    def make():
        return gg.GossipGraD(hierarchical=True, ranks_per_node=2, exchange=exchange, **SMALL)

    assert both(tmp_path, make, 4) == []


# Weights are loaded in between: bases and edges begin anew.
@pytest.mark.parametrize(
    ("form", "optimizer"),
    [
        ("layerwise", "adam"),
        ("gossipgrad", "clipped"),
        ("gossipgrad-ring", "adam"),
        ("periodic", "adam"),
        ("elastic-servers", "momentum"),
        ("parameter-server-dedicated", "momentum"),
    ],
)
def test_compressed(form, optimizer, tmp_path):
    own = form == "layerwise"
    bins = {"bin_size": {"conv": 9, "linear": 70, "recurrent": 50, "other": 7}, "dense_below": 10}
    compression = gg.AdaComp(mode="safe" if own else None, local_momentum=own, warmup=2, **bins)
    make = (FORMS | TIMED)[form]
    others = both(tmp_path, make, 3, optimizer=optimizer, compression=compression)
    # Where the CPU adds messages up piece by piece, the sum is no array.
    assert [one for one in others if not (own and one.startswith("gradient"))] == []


# ---- over MPI

LIBRARY = {
    "allreduce-mpi": lambda: gg.AllReduce(collectives="mpi"),
    "layerwise-mpi": lambda: gg.LayerwiseAllReduce(collectives="mpi", **SMALL),
    "periodic-mpi": lambda: gg.PeriodicAllReduce(period=2, collectives="mpi"),
    "elastic-mpi": lambda: gg.ElasticAveraging(period=2, collectives="mpi"),
    "hierarchical-mpi": lambda: gg.GossipGraD(hierarchical=True, collectives="mpi", **SMALL),
}


# One of each way of exchanging.
MPI_FORMS = """allreduce layerwise-bfloat16 periodic gossipgrad gossipgrad-stale-bfloat16 gossipgrad-gradients
    push-sum-slices hierarchical elastic-bfloat16 overlapped-fc diloco-fragments noloco-late""".split()


def mpi_rank(ranks, folder):
    """This rank's differences, by the forms that have some."""
    found = {}
    folder = Path(folder)
    # A library's sum of two numbers has one order.
    for form, make in {name: FORMS[name] for name in MPI_FORMS}.items() if ranks > 2 else LIBRARY.items():
        found[form] = both(folder, make, ranks, virtual=False)
    network = gg.Network(latency=1e-4, bandwidth=1e8)
    found["network"] = both(folder, FORMS["gossipgrad-stale"], ranks, virtual=False, network=network)
    for form, make in (TIMED | (DEDICATED if ranks > 2 else {})).items():  # no two runs are the same
        if form in ("pull-push-sum", "push", "elastic-servers-bfloat16", "parameter-server", *DEDICATED):
            losses = trained("strict", make(), ranks, folder / "strict" / "run.safetensors", virtual=False)["losses"]
            found[form] = [] if np.isfinite(losses).all() else losses
    return {form: names for form, names in found.items() if names}


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "shared", "own"), [(2, "1", "off"), (3, "0", "off"), (2, "1", "on"), (3, "1", "on")])
def test_the_bits_of_the_cpu_over_mpi(ranks, shared, own, mpirun, tmp_path):
    """Messages through shared memory, as MPI sends them, and from the device's own memory; buffers are checked."""
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import test_strict_exchange as test\n"
        f"print('differs:', test.mpi_rank({ranks}, {str(tmp_path)!r}))\n"
    )
    env = {"GOSSIPGRAD_CHECK_BUFFERS": "1", "GOSSIPGRAD_SHARED": shared, "GOSSIPGRAD_MPI_CUDA": own}
    done = mpirun(ranks, ["-W", "ignore", "-c", text], env=env)
    assert done.stdout.count("differs: {}") == ranks, done.stdout
