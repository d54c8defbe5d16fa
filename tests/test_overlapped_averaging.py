"""OverlappedAveraging in the virtual cluster: AllReduce's bits; each rank keeps its slices of the optimiser's state."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import assert_steady, small_batches, small_net
from test_allreduce_family import CUTS, bits
from test_strategies import OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core

LANES = 16  # whole lanes make a slice
# overlap, partition_fc
WAYS = [(True, False), (False, False), (True, True), (False, True)]
OPTIMIZERS = OPTIMIZERS | {"adam": gg.Adam(lr=0.01, weight_decay=0.1, decoupled=True), "lion": gg.Lion(lr=0.01)}


def run(p, optimizer, strategy, sizes, steps=6):
    """Losses of every step, and of every third all that can be seen."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, OPTIMIZERS[optimizer], strategy)

    def look():
        moments = [trainer.optimizer_state(r)["second_moment"] for r in range(p)]
        return bits(trainer), [{k: v.tobytes() for k, v in m.items()} for m in moments]

    seen = []
    for step in range(steps):
        losses = trainer.train_step(*small_batches(generator, p, sizes=sizes[step % len(sizes)]))
        seen.append([list(losses), look() if step % 3 == 2 else None])  # settles now and then only
    trainer.close()
    return seen


@pytest.fixture(scope="module")
def allreduce():
    known = {}

    def run_once(p, optimizer, sizes, **options):
        key = (p, optimizer, *options)
        if key not in known:
            known[key] = run(p, optimizer, gg.AllReduce(**options), sizes)
        return known[key]

    return run_once


@pytest.mark.parametrize(("overlap", "partition"), WAYS[:3])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_allreduce_bit_for_bit(p, optimizer, cut, overlap, partition, allreduce):
    """With 8 ranks and layers of 30 to 203 parameters some ranks have no slice of a layer, and some only one of 16."""
    sizes = [(4,), (4, 1, 7)]
    strategy = gg.OverlappedAveraging(overlap=overlap, partition_fc=partition, **CUTS[cut])
    assert run(p, optimizer, strategy, sizes) == allreduce(p, optimizer, sizes)


@pytest.mark.parametrize(("overlap", "partition"), WAYS)
@pytest.mark.parametrize("cut", ["layers", "default"])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_allreduce_bit_for_bit_with_rounded_gradients(p, cut, overlap, partition, allreduce):
    strategy = gg.OverlappedAveraging(overlap=overlap, partition_fc=partition, wire_dtype="bfloat16", **CUTS[cut])
    found = run(p, "nesterov", strategy, [(4, 1, 7)])
    assert found == allreduce(p, "nesterov", [(4, 1, 7)], wire_dtype="bfloat16")


STRATEGIES = [
    gg.OverlappedAveraging(),
    gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=99),
    gg.OverlappedAveraging(partition_fc=True),
    gg.OverlappedAveraging(partition_fc=True, bucket_bytes=1, chunk_bytes=99),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_epochs_with_ragged_ends(strategy):
    """Batches of 37 from uneven shards; the last one of an epoch is smaller, and not the same on all ranks."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((302, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 302)
    expected, found = (
        trainer_of(3, OPTIMIZERS["nesterov"], s).fit(data, epochs=3, batch_size=37, progress=False)
        for s in (gg.AllReduce(), strategy)
    )
    assert found.weights_sha256 == expected.weights_sha256 and len(set(found.weights_sha256)) == 1
    for key in ("train_loss", "samples") if strategy.partition_fc is True else ("train_loss", "bytes_sent", "samples"):
        assert found[key] == expected[key]
    assert found.partitioned_fc == (["fc1", "fc2"] if strategy.partition_fc is True else [])
    assert found.last["consensus_distance"] < 1e-6  # the mean of three equal numbers rounds


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_each_rank_keeps_its_slices(p):
    net = gg.Sequential([gg.Linear(120), gg.Tanh(), gg.Linear(4)], input=(60,), name="wide")
    data = np.zeros((8 * p, 60), np.float32), np.zeros(8 * p, np.int64)

    def kept(strategy, optimizer="momentum"):
        trainer = trainer_of(p, OPTIMIZERS[optimizer], strategy, net=net)
        record = trainer.fit(data, batch_size=4, progress=False).last
        return record["optimizer_state_bytes"], record["optimizer_state_bytes_saved"]

    whole = kept(gg.AllReduce())
    assert whole[0] >= p * 4 * net.parameters and whole[1] == 0
    assert kept(gg.AllReduce(), "adam") == (2 * whole[0], 0)
    for cut, partition in itertools.product(CUTS.values(), (True, False)):
        bytes_kept, saved = kept(gg.OverlappedAveraging(partition_fc=partition, **cut))
        assert bytes_kept + saved == whole[0]
        chunks = 1 + whole[0] // p // cut["chunk_bytes"] + 2 if cut else 1 + 4 * partition
        assert whole[0] // p <= bytes_kept <= whole[0] // p + p * chunks * LANES * 4
    assert kept(gg.OverlappedAveraging(), "adam") == tuple(2 * n for n in kept(gg.OverlappedAveraging()))
    assert kept(gg.OverlappedAveraging(), "plain") == (0, 0)


def test_momentum_is_shown_and_set_whole():
    """From any rank, wherever it is kept; whatever the cut, as it is after a change of chunk_bytes."""
    generator = np.random.default_rng(1)
    batches = [small_batches(generator, 3) for _ in range(4)]

    def train(trainer, steps):
        for batch in batches[steps]:
            trainer.train_step(*batch)

    def whole(trainer, rank):
        return {k: v.tobytes() for k, v in trainer.optimizer_state(rank)["momentum"].items()}

    first = trainer_of(3, OPTIMIZERS["momentum"], gg.OverlappedAveraging())
    train(first, slice(0, 2))
    assert whole(first, 0) == whole(first, 1) == whole(first, 2)
    assert set(whole(first, 0)) == set(first.weights())
    second = trainer_of(3, OPTIMIZERS["momentum"], gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=64))
    second.core.exchange.load_arena("weight", first.weights(1))
    second.core.exchange.load_arena("momentum", first.momentum(2))
    second.core.exchange.step = first.step
    assert whole(second, 1) == whole(first, 1)
    for trainer in (first, second):
        train(trainer, slice(2, 4))
    assert whole(second, 0) == whole(first, 0) and second.weights_sha256() == first.weights_sha256()
    bad = {k: v for k, v in first.momentum().items() if k != "fc1.bias"}
    with pytest.raises(ValueError, match=r"momentum.*fc1\.bias"):
        second.core.exchange.load_arena("momentum", bad)
    assert whole(second, 0) == whole(first, 0)


@pytest.mark.parametrize("partition", [True, False])
@pytest.mark.parametrize("save_cut", ["default", "layers"])
def test_resuming_in_another_cut(save_cut, partition, tmp_path):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((53, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 53)

    def fit(epochs, cut, partition, **options):
        strategy = gg.OverlappedAveraging(partition_fc=partition, **CUTS[cut])
        trainer = trainer_of(4, OPTIMIZERS["momentum"], strategy)
        return trainer, trainer.fit(data, epochs=epochs, batch_size=5, progress=False, **options)

    path = tmp_path / "middle.safetensors"
    half, _ = fit(1, save_cut, partition)
    half.save(path)
    with pytest.warns(UserWarning, match="chunk_bytes"):
        _, resumed = fit(3, "joined", not partition, resume=path)
    assert resumed.weights_sha256 == fit(3, "default", "auto")[1].weights_sha256


def test_it_hides_behind_both_passes():
    """On the virtual clock, where a network takes the time of its arithmetic and a slow wire the time of its bytes."""
    net = gg.Sequential([gg.Linear(300) for _ in range(6)], input=(300,), name="deep")
    data = np.zeros((1024, 300), np.float32), np.zeros(1024, np.int64)

    def exposed(strategy, bandwidth=5e8):
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(4, bandwidth=bandwidth))
        return trainer.fit(data, batch_size=64, progress=False).last["exposed_communication_seconds"]

    layerwise = exposed(gg.LayerwiseAllReduce(bucket_bytes=1))
    assert exposed(gg.OverlappedAveraging(bucket_bytes=1)) < 0.85 * layerwise
    assert exposed(gg.OverlappedAveraging(bucket_bytes=1, overlap=False)) > layerwise
    fast = exposed(gg.OverlappedAveraging(bucket_bytes=1), 1e10), exposed(gg.AllReduce(), 1e10)
    assert fast[0] < 0.3 * fast[1]


@pytest.mark.parametrize("p", [2, 3, 5])
def test_traffic(p):
    """One gradient slice and one weight slice to every peer; ranks without a slice of a chunk send no weights of it."""
    net = gg.Sequential([gg.Linear(64, bias=False)], input=(50,), name="one")  # 3200 parameters, 200 lanes
    data = np.zeros((8 * p, 50), np.float32), np.zeros(8 * p, np.int64)
    whole = gg.OverlappedAveraging(partition_fc=False)
    for strategy, chunks in ((whole, 1), (replace(whole, chunk_bytes=4 * 16 * p), 0)):
        record = trainer_of(p, OPTIMIZERS["plain"], strategy, net=net).fit(data, batch_size=4, progress=False).last
        chunks = chunks or -(-200 // p)
        assert record["bytes_sent"] == 2 * record["steps"] * (p - 1) * 4 * 3200
        narrow = trainer_of(p, OPTIMIZERS["plain"], replace(strategy, wire_dtype="bfloat16"), net=net)
        assert 4 * narrow.fit(data, batch_size=4, progress=False).last["bytes_sent"] == 3 * record["bytes_sent"]
        slices = p if chunks == 1 else 200 / chunks
        assert record["messages_sent"] == pytest.approx(2 * record["steps"] * (p - 1) * slices * chunks)


@pytest.mark.core(1)
@pytest.mark.parametrize(("overlap", "partition"), WAYS)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(overlap, partition):
    strategy = gg.OverlappedAveraging(overlap=overlap, partition_fc=partition, chunk_bytes=64)
    assert_steady(lambda one: trainer_of(3, OPTIMIZERS["momentum"], one), strategy, 3)


# ---- inputs and errors instead of gradients


def dag():
    """The network's input and another activation go to two linear layers each; Flatten, ReLU and dropout before some,
    a ReLU behind one; fewer outputs than ranks; with and without bias; sizes that fill no lane."""
    x = gg.Input((3, 5, 7))
    flat = gg.Flatten()(x)
    a, b = gg.Linear(33)(flat), gg.Linear(33, bias=False)(flat)
    wide = gg.Dropout(0.3)(gg.ReLU()(gg.Add()(a, b)))
    c, d = gg.ReLU()(gg.Linear(17)(wide)), gg.Tanh()(gg.Linear(2)(wide))
    image = gg.Flatten()(gg.MaxPool2d(2)(gg.Conv2d(4, 2)(x)))
    return gg.Model(x, gg.Linear(3)(gg.Concat()(c, d, gg.Linear(5)(image))))


def dag_run(p, strategy, sizes, steps=4, **options):
    """Batches of unlike sizes: each table computes some of them."""
    trainer = trainer_of(p, OPTIMIZERS["nesterov"], strategy, net=dag(), **options)
    generator = np.random.default_rng(3)
    seen = []
    for step in range(steps):
        counts = [sizes[(step + rank) % len(sizes)] for rank in range(p)]
        x = [generator.standard_normal((n, 3, 5, 7)).astype(np.float32) for n in counts]
        losses = trainer.train_step(x, [generator.integers(0, 3, n) for n in counts])
        seen.append([list(losses), bits(trainer) if step % 2 else None])
    taken = trainer.core.partitioned_fc()
    trainer.close()
    return seen, taken


@pytest.mark.core(3)
@pytest.mark.parametrize("backend", ["auto", "native", "onednn"])
@pytest.mark.parametrize("p", [2, 3, 8])
def test_any_network_any_batches(p, backend, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_BACKEND", backend)
    for sizes, options in (((1, 40, 5, 16), {}), ((300, 70), {"threads": 2}), ((2, 9, 1), {"wire_dtype": "bfloat16"})):
        wire = {key: value for key, value in options.items() if key == "wire_dtype"}
        rest = {key: value for key, value in options.items() if key != "wire_dtype"}
        expected, none = dag_run(p, gg.AllReduce(**wire), sizes, **rest)
        assert none == []
        for overlap in (True, False):
            strategy = gg.OverlappedAveraging(partition_fc=True, overlap=overlap, **wire)
            found, taken = dag_run(p, strategy, sizes, **rest)
            assert found == expected
            assert len(taken) == 6


@pytest.mark.parametrize("isa", _core.info()["isas"])
def test_every_instruction_set(isa, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    expected, _ = dag_run(3, gg.AllReduce(), (300, 5))
    assert dag_run(3, gg.OverlappedAveraging(partition_fc=True), (300, 5))[0] == expected


def wide():
    """64 to 256 weighs 64 KiB; 256 to 48 is less, and goes with its neighbours."""
    layers = [gg.Linear(256, bias=False), gg.Tanh(), gg.Linear(48, bias=False)]
    return gg.Sequential(layers, input=(64,), name="wide")


def wide_run(strategy, p, batches):
    """One step with each of these batches a rank: bytes sent, layers partitioned, weights and momentum."""
    trainer = trainer_of(p, OPTIMIZERS["momentum"], strategy, net=wide())
    generator = np.random.default_rng(1)
    sent = []
    for i, batch in enumerate(batches):
        data = generator.standard_normal((p * batch, 64)).astype(np.float32), generator.integers(0, 48, p * batch)
        record = trainer.fit(data, epochs=i + 1, batch_size=batch, progress=False).last
        assert record["steps"] == 1
        sent.append(record["bytes_sent"])
    taken, seen = trainer.history.partitioned_fc, bits(trainer)
    trainer.close()
    return sent, taken, seen


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_the_cheaper_way_is_taken_in_every_step(wire):
    """With 4 ranks B * (64 + 256/4) is 64 * 256 at B = 128, and at half of that for gradients of 2 bytes: there nothing
    is won, and one sample less a rank is cheaper."""
    p, batches = 4, [15, 16, 17, 31, 32, 33, 4]
    strategy = gg.OverlappedAveraging(wire_dtype=wire)
    size = {"float32": 4, "bfloat16": 2}[wire]
    sent, taken, found = wide_run(strategy, p, batches)
    assert taken == ["fc1"]
    for batch, bytes_sent in zip(batches, sent, strict=True):
        whole, partitioned = 64 * 256 * size, 4 * p * batch * (64 + 256 // p)
        assert (partitioned < whole) == (batch < 8 * size)
        assert bytes_sent == (p - 1) * (min(whole, partitioned) + 256 * 48 * size + 4 * (64 + 48) * 256)
    assert found == wide_run(gg.AllReduce(wire_dtype=wire), p, batches)[2]
    assert wide_run(strategy, p, [33])[1] == []
    assert wide_run(replace(strategy, partition_fc=False), p, [4])[1] == []
    assert wide_run(strategy, 1, [4])[1] == []


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_bytes_of_inputs_and_errors(p):
    """To each rank with a slice all inputs, and the errors of the rows that its slice touches; biases as ever."""
    net = gg.Sequential([gg.Linear(7), gg.Linear(6)], input=(37,), name="ragged")
    trainer = trainer_of(p, OPTIMIZERS["plain"], gg.OverlappedAveraging(partition_fc=True), net=net)
    n = 2 * p + 1
    sizes = [len(_core.shard(n, rank, p)) for rank in range(p)]
    assert len(set(sizes)) == 2
    record = trainer.fit((np.zeros((n, 37), np.float32), np.zeros(n, np.int64)), batch_size=2, progress=False).last
    steps = record["steps"]
    assert steps == 2  # of two samples and one, or of one and one
    expected = messages = 0
    for inputs, outputs in ((37, 7), (7, 6)):
        lanes = -(-inputs * outputs // LANES)
        ends = [LANES * (lanes // p * r + min(r, lanes % p)) for r in range(p + 1)]
        for owner, (begin, end) in enumerate(itertools.pairwise(ends)):
            last = min(end, inputs * outputs) - 1
            if begin <= last:
                values = inputs + last // inputs + 1 - begin // inputs
                expected += 4 * (n - sizes[owner]) * values + steps * (p - 1) * 4 * (end - begin)
                messages += steps * 3 * (p - 1)
        expected += steps * 2 * (p - 1) * 4 * LANES  # the bias: one lane, which one rank keeps
        messages += steps * 2 * (p - 1)
    assert record["bytes_sent"] == expected and record["messages_sent"] == messages
    trainer.close()


@pytest.mark.full
@pytest.mark.parametrize("shared", ["1", "0"])
def test_growing_batches_under_mpi(shared, mpirun):
    """Room for more samples is made while weights are under way; the ways change from step to step."""
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import numpy as np\nimport gossipgrad as gg\nimport test_overlapped_averaging as test\n"
        "def run(strategy):\n"
        "    trainer = gg.Trainer(test.wide(), strategy=strategy)\n"
        "    generator = np.random.default_rng(trainer.rank)\n"
        "    for n in (1, 3, 60, 2, 8, 9 + 20 * trainer.rank, 70, 5):\n"
        "        x = generator.standard_normal((n, 64)).astype(np.float32)\n"
        "        trainer.train_step(x, generator.integers(0, 48, n))\n"
        "    return trainer.weights_sha256(), trainer.core.partitioned_fc()\n"
        "wanted, none = run(gg.AllReduce())\n"
        "for options in ({}, {'partition_fc': True}, {'partition_fc': True, 'chunk_bytes': 5000, 'overlap': False}):\n"
        "    found, taken = run(gg.OverlappedAveraging(**options))\n"
        "    assert found == wanted and none == [], options\n"
        "    assert taken == (['fc1', 'fc2'] if options else ['fc1']), taken\n"
    )
    mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared, "GOSSIPGRAD_CHECK_BUFFERS": "1"})


def test_inputs_travel_under_the_forward_pass():
    """On the virtual clock: fewer bytes, and half of what is left goes earlier."""
    net = gg.Sequential([gg.Linear(300) for _ in range(6)], input=(300,), name="deep")
    data = np.zeros((512, 300), np.float32), np.zeros(512, np.int64)

    def exposed(batch, **options):
        strategy = gg.OverlappedAveraging(bucket_bytes=1, **options)
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(4, bandwidth=5e8))
        return trainer.fit(data, batch_size=batch, progress=False).last["exposed_communication_seconds"]

    assert exposed(16) < 0.7 * exposed(16, partition_fc=False)
    assert exposed(64, partition_fc=True) < 0.9 * exposed(64, partition_fc=False)  # though they are a little more


def test_the_trace_shows_inputs_and_errors():
    net = gg.Sequential([gg.Linear(20), gg.Tanh(), gg.Linear(4)], input=(30,), name="shown")
    strategy = gg.OverlappedAveraging(partition_fc=True)
    trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(2, bandwidth=1e6), trace=1000)
    trainer.train_step([np.zeros((3, 30), np.float32)] * 2, [np.zeros(3, np.int64)] * 2)
    spans = [s for s in trainer.core.exchange.spans(1) if s[2] in ("inputs", "errors")]
    found = {(name, first, last): size for _, _, name, _, _, first, last, _, _, size in spans}
    # What came from the other rank: three samples of all inputs, and of the errors of the rows of the own slice.
    assert found == {
        ("inputs", 0, 0): 4 * 3 * 30,
        ("errors", 0, 0): 4 * 3 * 10,
        ("inputs", 1, 1): 4 * 3 * 20,
        ("errors", 1, 1): 4 * 3 * 2,
    }
    trainer.close()


@pytest.mark.parametrize("options", [{}, {"partition_fc": True}, {"chunk_bytes": 40_000}, {"overlap": False}], ids=str)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_no_span_is_shorter_than_the_wire_needs(bucket_bytes, options):
    """Also of buckets whose chunks go out in another order than they lie in: set apart, and not taken."""
    p, bandwidth = 4, 1e7
    layers = [gg.Linear(256), gg.Tanh(), gg.Linear(256), gg.Tanh(), gg.Linear(64)]
    net = gg.Sequential(layers, input=(256,), name="shown")
    strategy = gg.OverlappedAveraging(**{"chunk_bytes": 1 << 21, "bucket_bytes": bucket_bytes, **options})
    trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(p, bandwidth=bandwidth), trace=1000)
    for _ in range(2):
        trainer.train_step([np.zeros((300, 256), np.float32)] * p, [np.zeros(300, np.int64)] * p)
    trainer.evaluate((np.zeros((p, 256), np.float32), np.zeros(p, np.int64)))  # at rest
    buckets = 3 if bucket_bytes == 1 else 1
    for rank in range(p):
        spans = [s for s in trainer.core.exchange.spans(rank) if s[2] in ("gradients", "weights")]
        assert len(spans) == 2 * 2 * buckets
        for begin, end, name, _, _, first, _, _, arrived, size in spans:
            need = size * (p - 1) / p / bandwidth  # what a rank gets of it: the slices are equal
            assert need <= (arrived - begin) * (1 + 1e-9) and arrived <= end, (rank, name, first)
    trainer.close()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"partition_fc='always': allowed: 'auto', True, False"):
        gg.OverlappedAveraging(partition_fc="always")
    with pytest.raises(TypeError, match="partition_fc: 1 is no name"):
        _core.Trainer(
            small_net().graph,
            _core.Team("virtual", size=2),
            loss="cross_entropy",
            optimizer=gg.SGD(lr=0.1).options(),
            strategy={"name": "overlapped-averaging", "partition_fc": 1},
        )
    net = gg.Sequential([gg.Linear(4000)], input=(200,), name="wide")
    with pytest.raises(ValueError, match="chunk_bytes"):
        trainer_of(2, OPTIMIZERS["momentum"], gg.OverlappedAveraging(chunk_bytes=64), net=net)
    options = {"name": "overlapped-averaging", "bucket_bytes": 0}
    with pytest.raises(ValueError, match="bucket_bytes"):
        _core.Trainer(
            small_net().graph,
            _core.Team("virtual", size=2),
            loss="cross_entropy",
            optimizer=gg.SGD(lr=0.1).options(),
            strategy=options,
        )
