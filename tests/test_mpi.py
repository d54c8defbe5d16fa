"""Under mpiexec: the same bits as in the virtual cluster, with and without shared memory, resumed or not; reports."""

import json
import math
import sys

import pytest
from conftest import ROOT

import gossipgrad as gg
from gossipgrad.launch.start import launcher_world_size

# The trainer says that a cube of another size than 2^k has ranks without a partner; test_strategies looks at that.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{what}") for what in ("topology='cube'", "hierarchical=True")]

SEED = 7
OPTIMIZERS = {
    "adam": gg.Adam(lr=0.01, beta1=0.5),
    "clipped": gg.SGD(lr=0.05, momentum=0.9, clip_norm=0.5),
    "lars": gg.LARS(lr=2.0, weight_decay=1e-3, clip_norm=5),
}


def one_worker(kind, **options):
    """Strategies with servers, for p ranks with one that trains: no order of arrival matters."""
    return lambda p: kind(**options, **({"servers": p - 1, "dedicated": True, "chunk_bytes": 6000} if p > 1 else {}))


# name: strategy, or a function of p; samples; batch; momentum or a name of OPTIMIZERS.
# 203 and 101 samples: shards of unequal size.
RUNS = {
    "default": (gg.GossipGraD(), 203, 16, 0.9),
    "late": (gg.GossipGraD(staleness=1), 203, 16, 0.9),
    "cube": (gg.GossipGraD(topology="cube", rotate=False), 203, 16, 0.9),
    "cube, late, weights": (gg.GossipGraD(topology="cube", staleness=1, exchange="weights"), 203, 16, 0.9),
    "weights": (gg.GossipGraD(exchange="weights"), 203, 16, 0.9),
    "samples": (gg.GossipGraD(shuffle_samples=True), 203, 16, 0.9),
    "samples, late": (gg.GossipGraD(shuffle_samples=True, staleness=1), 101, 13, 0.9),
    "gradients": (gg.GossipGraD(exchange="gradients"), 203, 16, 0.9),
    "no momentum": (gg.GossipGraD(), 101, 13, 0.0),
    "a layer a bucket, small chunks": (gg.GossipGraD(bucket_bytes=1, chunk_bytes=6000), 203, 16, 0.9),
    "late, tiny chunks": (gg.GossipGraD(staleness=1, bucket_bytes=100, chunk_bytes=1200), 101, 13, 0.9),
    "gradients, small chunks": (gg.GossipGraD(exchange="gradients", bucket_bytes=1, chunk_bytes=20000), 101, 13, 0.9),
    "slices": (gg.GossipGraD(slices=3), 203, 16, 0.9),
    "slices, late, bfloat16, small chunks": (
        gg.GossipGraD(slices=5, staleness=1, wire_dtype="bfloat16", bucket_bytes=1, chunk_bytes=1200),
        101,
        13,
        "adam",
    ),
    "by slices": (gg.GossipGraD(exchange="slices"), 101, 13, 0.9),
    "ring": (gg.GossipGraD(topology="ring"), 101, 13, 0.9),
    "exponential, late": (gg.GossipGraD(topology="exponential", staleness=1), 101, 13, 0.9),
    "random": (gg.GossipGraD(topology="random"), 101, 13, 0.9),
    "hierarchical": (gg.GossipGraD(hierarchical=True, ranks_per_node=2, staleness=1), 203, 16, 0.9),
    "push-sum": (gg.GossipGraD(push_sum=True), 203, 16, 0.9),
    "push-sum, bfloat16, late": (gg.GossipGraD(push_sum=True, wire_dtype="bfloat16", staleness=1), 203, 16, 0.9),
    "all-reduce first": (gg.GossipGraD(allreduce_steps=3, staleness=1, shuffle_samples=True), 203, 16, 0.9),
    "bfloat16": (gg.GossipGraD(wire_dtype="bfloat16"), 203, 16, 0.9),
    "bfloat16, late, small chunks": (
        gg.GossipGraD(wire_dtype="bfloat16", staleness=1, bucket_bytes=1, chunk_bytes=6000),
        101,
        13,
        0.9,
    ),
    "bfloat16, gradients": (gg.GossipGraD(wire_dtype="bfloat16", exchange="gradients"), 203, 16, 0.9),
    "bfloat16, allreduce": (gg.AllReduce(wire_dtype="bfloat16"), 203, 16, 0.9),
    "bfloat16, layerwise": (gg.LayerwiseAllReduce(wire_dtype="bfloat16", bucket_bytes=1), 203, 16, 0.9),
    "bfloat16, overlapped": (gg.OverlappedAveraging(wire_dtype="bfloat16", chunk_bytes=6000), 203, 16, 0.9),
    "bfloat16, periodic": (gg.PeriodicAllReduce(wire_dtype="bfloat16"), 203, 16, 0.9),
    "adam": (gg.GossipGraD(), 203, 16, "adam"),
    "adam, periodic, bfloat16": (gg.PeriodicAllReduce(wire_dtype="bfloat16"), 203, 16, "adam"),
    "adam, overlapped": (gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=6000), 101, 13, "adam"),
    "clipped, late": (gg.GossipGraD(staleness=1), 101, 13, "clipped"),
    "clipped, gradients": (gg.GossipGraD(exchange="gradients"), 101, 13, "clipped"),
    "clipped, overlapped": (gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=6000), 101, 13, "clipped"),
    "lars, layerwise": (gg.LayerwiseAllReduce(), 101, 13, "lars"),
    "lars, partitioned": (gg.OverlappedAveraging(partition_fc=True), 101, 13, "lars"),
    "allreduce": (gg.AllReduce(), 203, 16, 0.9),
    "layerwise": (gg.LayerwiseAllReduce(), 203, 16, 0.9),
    "layerwise, small chunks": (gg.LayerwiseAllReduce(bucket_bytes=1, chunk_bytes=1200), 101, 13, 0.9),
    "periodic": (gg.PeriodicAllReduce(), 203, 16, 0.9),
    "periodic, 3": (gg.PeriodicAllReduce(period=3), 101, 13, 0.9),
    "overlapped": (gg.OverlappedAveraging(), 203, 16, 0.9),
    "overlapped, small chunks": (gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=1200), 101, 13, 0.9),
    "overlapped, not overlapped": (gg.OverlappedAveraging(overlap=False, bucket_bytes=1), 101, 13, 0.0),
    "partitioned": (gg.OverlappedAveraging(partition_fc=True), 203, 16, 0.9),
    "partitioned, bfloat16, small chunks": (
        gg.OverlappedAveraging(partition_fc=True, wire_dtype="bfloat16", chunk_bytes=6000),
        203,
        16,
        0.9,
    ),
    "partitioned, not overlapped": (gg.OverlappedAveraging(partition_fc=True, overlap=False), 203, 16, 0.9),
    "elastic": (gg.ElasticAveraging(period=3), 101, 13, 0.9),
    "bfloat16, elastic": (gg.ElasticAveraging(period=2, wire_dtype="bfloat16"), 203, 16, 0.9),
    "adam, bfloat16, elastic": (gg.ElasticAveraging(period=1, wire_dtype="bfloat16"), 101, 13, "adam"),
    "one worker, elastic": (one_worker(gg.ElasticAveraging, synchronous=False, period=3), 101, 13, 0.9),
    "one worker, bfloat16, elastic": (
        one_worker(gg.ElasticAveraging, synchronous=False, period=2, wire_dtype="bfloat16"),
        101,
        13,
        0.9,
    ),
    "one worker, server": (one_worker(gg.ParameterServer), 101, 13, 0.9),
    "one worker, bfloat16, server": (one_worker(gg.ParameterServer, period=2, wire_dtype="bfloat16"), 101, 13, "adam"),
    "diloco": (gg.DiLoCo(period=3, outer_momentum=0.5), 203, 16, 0.9),
    "diloco, fragments": (gg.DiLoCo(period=4, fragments=3, outer_momentum=0.5), 101, 13, "adam"),
    "diloco, bfloat16, late": (gg.DiLoCo(period=3, delay=3, fragments=2, wire_dtype="bfloat16"), 101, 13, "clipped"),
    "diloco, lars, every step": (gg.DiLoCo(period=1, outer_momentum=0.3, outer_nesterov=True), 101, 13, "lars"),
    "noloco": (gg.NoLoCo(period=3, outer_momentum=0.5), 203, 16, 0.9),
    "noloco, fragments": (gg.NoLoCo(period=4, fragments=3, outer_momentum=0.5), 101, 13, "adam"),
    "noloco, bfloat16, late": (
        gg.NoLoCo(period=3, delay=3, fragments=2, group=3, wire_dtype="bfloat16", outer_momentum=0.5),
        101,
        13,
        "clipped",
    ),
    "quasi-global": (gg.QuasiGlobal(bucket_bytes=1, chunk_bytes=6000), 101, 13, 0.9),
    "quasi-global, bfloat16, clipped": (gg.QuasiGlobal(wire_dtype="bfloat16"), 203, 16, "clipped"),
    "no-exchange": (gg.NoExchange(), 101, 13, 0.9),
    "adacomp, allreduce": (gg.AllReduce(), 203, 16, 0.9),
    "adacomp, layerwise": (gg.LayerwiseAllReduce(), 203, 16, 0.9),
    "adacomp, exact, layerwise": (gg.LayerwiseAllReduce(bucket_bytes=1), 101, 13, "clipped"),
    "adacomp, cyclic, layerwise": (gg.LayerwiseAllReduce(bucket_bytes=1), 101, 13, "adam"),
    "adacomp, warm, periodic": (gg.PeriodicAllReduce(period=3), 101, 13, 0.9),
    "adacomp, cyclic, periodic": (gg.PeriodicAllReduce(period=2), 101, 13, 0.9),
}
# The compression of cases by name.
COMPRESSIONS = {
    "adacomp, allreduce": gg.AdaComp(bin_size={"conv": 9, "linear": 70}, dense_below=0),
    "adacomp, layerwise": gg.AdaComp(bin_size={"conv": 9, "linear": 70}, dense_below=0),
    "adacomp, exact, layerwise": gg.AdaComp(mode="exact", values="float32", bin_size=4),
    "adacomp, cyclic, layerwise": gg.AdaComp(selection="cyclic", bin_size=3, dense_below=0),
    "adacomp, warm, periodic": gg.AdaComp(warmup=4, mode="safe", bin_size=20),
    "adacomp, cyclic, periodic": gg.AdaComp(
        selection="cyclic", values="float32", bin_size={"linear": 0}, dense_below=0
    ),
}
# With one rank every strategy is synchronous.
ALONE = {
    f"{kind.name}, {wire}": (kind(**options, wire_dtype=wire), 101, 13, 0.9)
    for kind, options in (
        (gg.PullGossip, {}),
        (gg.PushGossip, {"push_sum": True}),
        (gg.ElasticAveraging, {"synchronous": False}),
    )
    for wire in gg.strategies.WIRES
}


def runs(p):
    return [*RUNS, *(ALONE if p == 1 else ())]


def net():
    """Layers of 84, 16 (8 of them statistics), 18,464 and 330 numbers: messages of more and of less than a page."""
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(32), gg.ReLU()]
    return gg.Sequential([*layers, gg.Dropout(0.2), gg.Linear(10)], input=(2, 26, 26), name="middling")


def trainer_of(name, comm=None, **options):
    strategy, _, _, momentum = {**RUNS, **ALONE}[name]
    if callable(strategy):
        strategy = strategy(comm.p if comm else launcher_world_size())
    optimizer: gg.Optimizer = OPTIMIZERS.get(momentum) or gg.SGD(lr=0.05, momentum=momentum, weight_decay=1e-3)
    options = {"compression": COMPRESSIONS.get(name), **options}
    return gg.Trainer(net(), optimizer=optimizer, strategy=strategy, seed=SEED, comm=comm, **options)


def fit(name, comm=None, epochs=2, **options):
    trainer = trainer_of(name, comm)
    _, samples, batch, _ = {**RUNS, **ALONE}[name]
    train, _ = gg.data.synthetic((2, 26, 26), train=samples, test=1, seed=1)
    history = trainer.fit(train, epochs=epochs, batch_size=batch, progress=False, **options)
    return trainer, history


IMPORT = (
    f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport gossipgrad as gg\nimport test_mpi\n"
)


def answers(done):
    """What rank 0 printed as JSON."""
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def virtual():
    """weights_sha256 and losses of each run in the virtual cluster, computed once."""
    known = {}

    def run(name, p):
        if (name, p) not in known:
            trainer, history = fit(name, gg.VirtualCluster(p))
            known[name, p] = [history.weights_sha256, history["train_loss"], history["consensus_distance"]]
            trainer.close()
        return known[name, p]

    return run


@pytest.mark.core(1)
@pytest.mark.parametrize(("p", "shared"), [(3, "1"), (2, "1"), (3, "0"), (4, "1"), (5, "1")])
def test_the_bits_of_the_virtual_cluster(p, shared, mpirun, virtual):
    text = IMPORT + (
        "found = {}\n"
        f"for name in test_mpi.runs({p}):\n"
        "    trainer, history = test_mpi.fit(name)\n"
        "    assert trainer.team.kind == 'mpi'\n"
        "    found[name] = [history.weights_sha256, history['train_loss'], history['consensus_distance']]\n"
        "    trainer.close()\n"
        "if trainer.rank == 0: print(json.dumps(found))\n"
    )
    found = answers(mpirun(p, text, env={"GOSSIPGRAD_SHARED": shared}))
    assert found["layerwise"] == found["overlapped"] == found["allreduce"]
    assert found["partitioned"] == found["partitioned, not overlapped"] == found["allreduce"]
    assert found["partitioned, bfloat16, small chunks"] == found["bfloat16, allreduce"]
    assert found["bfloat16, overlapped"] == found["bfloat16, allreduce"] == found["bfloat16, layerwise"]
    assert found["allreduce"] != found["bfloat16, allreduce"] or p == 1
    assert found["adacomp, allreduce"] == found["adacomp, layerwise"]
    assert found["allreduce"] != found["adacomp, allreduce"] or p == 1
    for name in runs(p):
        assert found[name] == virtual(name, p), f"{name}: MPI and the virtual cluster differ"
        assert len(found[name][0]) == p
        # Whether the last step is one that averages depends on p.
        strategy, samples, batch, _ = {**RUNS, **ALONE}[name]
        if callable(strategy):
            continue
        if isinstance(strategy, gg.PeriodicAllReduce) and strategy.wire_dtype == "bfloat16":
            same = p == 1
        elif isinstance(strategy, gg.PeriodicAllReduce):
            period = max(1, math.ceil(math.log2(p))) if strategy.period == "log2" else strategy.period
            same = p == 1 or 2 * math.ceil(math.ceil(samples / p) / batch) % period == 0
        elif isinstance(strategy, gg.DiLoCo):  # with fragments the last step is the turn of one of them at most
            steps = 2 * math.ceil(math.ceil(samples / p) / batch)
            same = p == 1 or strategy.fragments == 1 and steps % strategy.period == 0
        else:
            same = p == 1 or isinstance(strategy, (gg.AllReduce, gg.LayerwiseAllReduce, gg.OverlappedAveraging))
        assert len(set(found[name][0])) == 1 if same else len(set(found[name][0])) > 1 or p == 2


def test_every_strategy_is_compared_with_both_wires():
    """Those whose schedule depends on nobody's speed."""
    compared = {strategy(3) if callable(strategy) else strategy for strategy, *_ in RUNS.values()}
    for name, kind in gg.strategies.BY_NAME.items():
        if name in ("pull-gossip", "push-gossip", "no-exchange"):
            continue
        wires = {one.wire_dtype for one in compared if type(one) is kind}
        assert wires == set(gg.strategies.WIRES), name


def test_single_steps_and_state(mpirun):
    """train_step, gradients, momentum, predict, evaluate, one process a rank."""
    script = IMPORT + (
        "import hashlib, numpy as np\n"
        "def digest(arrays): return hashlib.sha256(b''.join(a.tobytes() for a in arrays.values())).hexdigest()\n"
        "comm = gg.VirtualCluster(3) if len(sys.argv) > 1 else None\n"
        "trainer = test_mpi.trainer_of('late', comm)\n"
        "ranks = range(3) if comm else [trainer.rank]\n"
        "losses = []\n"
        "for step in range(4):\n"
        "    data = [gg.data.synthetic((2, 26, 26), train=5 + r, test=1, seed=10 * step + r)[0] for r in ranks]\n"
        "    x, y = [d.samples for d in data], [d.targets for d in data]\n"
        "    losses.append(trainer.train_step(x, y) if comm else trainer.train_step(x[0], y[0]))\n"
        "own = [[digest(trainer.gradients(r)), digest(trainer.momentum(r)), digest(trainer.weights(r))]\n"
        "       for r in (ranks if comm else [0])]\n"
        "test = gg.data.synthetic((2, 26, 26), train=50, test=1)[0]\n"
        "common = [digest(trainer.consensus_weights()), digest({'y': trainer.predict(test)}),\n"
        "          trainer.evaluate(test), trainer.evaluate(test, replicas=True), trainer.consensus_distance()]\n"
        "if comm: print(json.dumps([own, list(map(list, zip(*losses))), common]))\n"
        "else:\n"
        "    parts = [json.loads(one) for one in trainer.gather(json.dumps([own[0], losses, common]).encode())]\n"
        "    assert all(part[2] == parts[0][2] for part in parts)\n"
        "    if trainer.rank == 0: print(json.dumps([[a for a, _, _ in parts], [b for _, b, _ in parts], common]))\n"
    )
    from conftest import run_group

    alone = run_group([sys.executable, "-c", script, "virtual"])
    assert alone.returncode == 0, alone.stderr
    assert answers(mpirun(3, script)) == answers(alone)


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "name",
    [
        "default",
        "samples",
        "late",
        "gradients",
        "layerwise",
        "periodic, 3",
        "diloco, fragments",
        "noloco, bfloat16, late",
        "overlapped, small chunks",
        "bfloat16, elastic",
        "one worker, bfloat16, server",
        "adacomp, cyclic, layerwise",
        "adacomp, warm, periodic",
    ],
)
def test_resuming_is_never_having_stopped(name, mpirun, tmp_path):
    """Saved by MPI, continued by MPI and by the virtual cluster, and the other way round."""
    path, other = str(tmp_path / "mpi.safetensors"), tmp_path / "virtual.safetensors"
    whole, history = fit(name, gg.VirtualCluster(3), epochs=3)
    half, _ = fit(name, gg.VirtualCluster(3), epochs=1)
    half.save(other)
    text = IMPORT + (
        f"trainer, _ = test_mpi.fit({name!r}, epochs=1)\n"
        f"trainer.save({path!r})\n"
        f"_, again = test_mpi.fit({name!r}, epochs=3, resume={path!r})\n"
        f"_, taken = test_mpi.fit({name!r}, epochs=3, resume={str(other)!r})\n"
        "if trainer.rank == 0: print(json.dumps([again.weights_sha256, again['train_loss'], taken.weights_sha256]))\n"
    )
    resumed, losses, taken = answers(mpirun(3, text))
    assert resumed == taken == history.weights_sha256
    assert losses == history["train_loss"]
    _, here = fit(name, gg.VirtualCluster(3), epochs=3, resume=path)
    assert here.weights_sha256 == history.weights_sha256


@pytest.mark.core(1)
@pytest.mark.parametrize(("p", "ranks_per_node"), [(2, 1), (4, 2)])
def test_several_nodes_exchange_weights(p, ranks_per_node, mpirun, tmp_path):
    """exchange="auto" where ranks lie on several nodes; a checkpoint of it, and of one node, goes on as it was."""
    ours, theirs = str(tmp_path / "nodes.safetensors"), str(tmp_path / "one.safetensors")
    inside = gg.GossipGraD(hierarchical=True, ranks_per_node=ranks_per_node, exchange="weights")

    def virtual(strategy, epochs=2, resume=None):
        train, _ = gg.data.synthetic((2, 26, 26), train=203, test=1, seed=1)
        optimizer = gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3)
        trainer = gg.Trainer(net(), optimizer=optimizer, strategy=strategy, seed=SEED, comm=gg.VirtualCluster(p))
        return trainer, trainer.fit(train, epochs=epochs, batch_size=16, progress=False, resume=resume)

    one, _ = virtual(gg.GossipGraD(), 1)
    assert (one.exchange, one.settings()["exchange"]) == ("weights+momentum", "auto")
    one.save(theirs)
    text = IMPORT + (
        "trainer, history = test_mpi.fit('default')\n"
        f"assert trainer.team.nodes() == {(p // ranks_per_node, ranks_per_node)}, trainer.team.nodes()\n"
        "used = [history.settings[key] for key in ('exchange', 'exchange_used')]\n"
        "assert used == ['auto', 'weights'] and trainer.exchange == 'weights', used\n"
        "half, _ = test_mpi.fit('default', epochs=1)\n"
        f"half.save({ours!r})\n"
        f"taken, other = test_mpi.fit('default', resume={theirs!r})\n"
        "assert taken.exchange == 'weights+momentum'\n"
        "test_mpi.RUNS['inside'] = (gg.GossipGraD(hierarchical=True), 203, 16, 0.9)\n"
        "third, nodes = test_mpi.fit('inside')\n"
        "assert third.exchange == 'weights'\n"
        "if trainer.rank == 0: print(json.dumps([one.weights_sha256 for one in (history, other, nodes)]))\n"
    )
    found, other, nodes = answers(mpirun(p, text, env={"GOSSIPGRAD_RANKS_PER_NODE": str(ranks_per_node)}))
    assert found == virtual(gg.GossipGraD(exchange="weights"))[1].weights_sha256
    assert other == virtual(gg.GossipGraD())[1].weights_sha256 != found
    assert nodes == virtual(inside)[1].weights_sha256 != found or ranks_per_node == 1
    rest, history = virtual(gg.GossipGraD(), resume=ours)
    assert rest.exchange == "weights" and history.weights_sha256 == found


def test_ranks_per_node_that_are_no_number(mpirun):
    """Where one rank has such a value, no rank goes on without it."""
    text = IMPORT + (
        "import os\n"
        "odd = (os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']) == '1'\n"
        "for value in ('abc', '2x', '', '0', '-2', '99999999999999999999'):\n"
        "    os.environ['GOSSIPGRAD_RANKS_PER_NODE'] = value if odd else '2'\n"
        "    wanted = f'{value!r}; must be a whole number, at least 1'\n"
        "    if not odd: wanted = 'rank 1 has no whole number, at least 1, there'\n"
        "    said = None\n"
        "    try: test_mpi.trainer_of('default')\n"
        "    except ValueError as error: said = str(error)\n"
        "    assert said == 'GOSSIPGRAD_RANKS_PER_NODE: ' + wanted, said\n"
    )
    mpirun(3, text)


@pytest.mark.full
@pytest.mark.parametrize("shared", ["1", "0"])
def test_trainers_that_are_left_in_mid_step(shared, mpirun):
    """Dropped with messages under way, while others of the group are still computing; the next one is not disturbed."""
    text = IMPORT + (
        "import time\n"
        "def steps(name, settle):\n"
        "    trainer = test_mpi.trainer_of(name)\n"
        "    data = gg.data.synthetic((2, 26, 26), train=8, test=1, seed=trainer.rank)[0]\n"
        "    for step in range(3):\n"
        "        trainer.train_step(data.samples, data.targets)\n"
        "        if step == 1 and trainer.rank == 1: time.sleep(0.02)\n"
        "    if settle: trainer.settle()\n"
        "    return trainer\n"
        "for name in ('default', 'late', 'gradients', 'late, tiny chunks', 'layerwise', 'periodic, 3',\n"
        "             'layerwise, small chunks', 'overlapped', 'overlapped, small chunks', 'diloco, fragments',\n"
        "             'noloco, fragments'):\n"
        "    expected = steps(name, True).weights_sha256()\n"
        "    for settle in (False, True, False, True):\n"
        "        steps(name, settle).close()\n"
        "        assert steps(name, False).weights_sha256() == expected\n"
    )
    done = mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared})
    assert done.stderr == ""


def test_what_a_late_rank_has_not_read_is_not_freed(mpirun):
    """A rank that has settled may be closed while another, to which it has sent, is late."""
    text = (
        "import time\n"
        "import numpy as np\n"
        "import gossipgrad as gg\n"
        "net = gg.Sequential([gg.Linear(2000), gg.Linear(1000)], input=(1000,), name='wide')\n"
        "for kind in (gg.NoLoCo, gg.DiLoCo):\n"
        "    trainer = gg.Trainer(net, strategy=kind(period=1, delay=1), optimizer=gg.SGD(lr=0.01))\n"
        "    trainer.train_step(np.ones((4, 1000), np.float32), np.zeros(4, np.int64))\n"
        "    if trainer.rank == 1: time.sleep(0.3)\n"
        "    trainer.core.exchange.settle()\n"
        "    trainer.close()\n"
    )
    assert mpirun(2, text, env={"GOSSIPGRAD_SHARED": "0"}).stderr == ""


COUNTS = ("samples", "bytes_sent", "messages_sent", "steps")
SECONDS = ("compute_seconds", "exposed_communication_seconds", "data_wait_seconds")


def test_report_and_command_line(mpirun, tmp_path):
    """Equal options give equal weights under mpiexec and with virtual ranks; the report has its documented keys."""
    from conftest import run_group

    options = ["-m", "gossipgrad", "train", "--dataset", "synthetic", "--epochs", "2", "--batch-size", "100"]
    options += ["--lr", "0.005", "--staleness", "1", "--validate-replicas"]
    options += ["--bucket-bytes", "1000000", "--chunk-bytes", "1000000"]  # tuned, messages may differ
    done = mpirun(2, [*options, "--report", str(tmp_path / "mpi.json")])
    lines = done.stdout.splitlines()
    assert sum("lenet, 431,080 parameters" in line for line in lines) == 1, "rank 0 alone speaks"
    alone = run_group([sys.executable, *options, "--virtual-ranks", "2", "--report", str(tmp_path / "virtual.json")])
    assert alone.returncode == 0, alone.stderr

    report, virtual = (json.loads((tmp_path / f"{kind}.json").read_text()) for kind in ("mpi", "virtual"))
    assert report["schema"] == 1 and report["ranks"] == 2
    assert report["model"] == {"name": "lenet", "parameters": 431080}
    assert report["weights_sha256"] == virtual["weights_sha256"] and len(report["weights_sha256"]) == 2
    assert report["settings"]["staleness"] == 1 and report["settings"]["strategy"] == "gossipgrad"
    assert report["settings"]["comm"] == "mpi" and virtual["settings"]["comm"] == "virtual"
    assert report["environment"]["gossipgrad"] == gg.__version__
    for i, (record, twin) in enumerate(zip(report["epochs"], virtual["epochs"], strict=True)):
        assert record["epoch"] == i + 1
        assert all(record[key] == twin[key] for key in (*COUNTS, "train_loss", "consensus_distance", "validation"))
        assert record["validation_replicas"] == twin["validation_replicas"] and len(twin["validation_replicas"]) == 2
        assert record["samples"] == 2000 and record["steps"] == 10
        # weights and momentum, to one partner a step and rank
        assert 2 * 10 * 2 * 4 * 431080 <= record["bytes_sent"] < 1.001 * 2 * 10 * 2 * 4 * 431080
        assert record["seconds"] > 0 and record["samples_per_second"] == pytest.approx(2000 / record["seconds"])
        parts = sum(record[key] for key in SECONDS)
        assert 0 < parts <= 1.001 * record["seconds"]  # what is left is between them: the loop, Python
        for key in (*SECONDS, "seconds"):
            assert 0 <= record[key] <= record[f"{key}_max"]


@pytest.mark.core(1)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_samples_are_where_the_virtual_cluster_has_them(shared, mpirun):
    """After every step, counted by all ranks."""
    text = IMPORT + (
        "trainer = test_mpi.trainer_of('samples')\n"
        "train, _ = gg.data.synthetic((2, 26, 26), train=203, test=1, seed=1)\n"
        "steps = trainer.core.begin(train.for_network('cross_entropy', (2, 26, 26), (10,)), 16)\n"
        "for epoch in range(2):\n"
        "    trainer.core.epoch(epoch)\n"
        "    for _ in range(steps):\n"
        "        trainer.core.run(1)\n"
        "        found = trainer.audit_samples()\n"
        "        assert found['ok'], found\n"
        "held = [json.loads(one) for one in trainer.gather(json.dumps(trainer.sample_ids().tolist()).encode())]\n"
        "last = trainer.core.end_epoch()\n"
        "sent = [last[f'sample_{key}_sent'] for key in ('bytes', 'messages')]\n"
        "if trainer.rank == 0: print(json.dumps([held, found, sent]))\n"
    )
    trainer, history = fit("samples", gg.VirtualCluster(3))
    held = [trainer.sample_ids(r).tolist() for r in range(3)]
    sent = [history.last["sample_bytes_sent"], history.last["sample_messages_sent"]]
    assert answers(mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared})) == [held, trainer.audit_samples(), sent]
