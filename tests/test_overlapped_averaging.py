"""OverlappedAveraging in the virtual cluster: AllReduce's bits; each rank keeps its slices of the optimiser's state."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from gossip_reference import small_batches, small_net
from test_allreduce_family import CUTS, bits
from test_strategies import OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core

LANES = 16  # whole lanes make a slice
OPTIMIZERS = OPTIMIZERS | {"adam": gg.Adam(lr=0.01, weight_decay=0.1, decoupled=True)}


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


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 8])
def test_allreduce_bit_for_bit(p, optimizer, cut, overlap, allreduce):
    """With 8 ranks and layers of 30 to 203 parameters some ranks have no slice of a layer, and some only one of 16."""
    sizes = [(4,), (4, 1, 7)]
    assert run(p, optimizer, gg.OverlappedAveraging(overlap=overlap, **CUTS[cut]), sizes) == allreduce(
        p, optimizer, sizes
    )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("cut", ["layers", "default"])
@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_allreduce_bit_for_bit_with_rounded_gradients(p, cut, overlap, allreduce):
    strategy = gg.OverlappedAveraging(overlap=overlap, wire_dtype="bfloat16", **CUTS[cut])
    found = run(p, "nesterov", strategy, [(4, 1, 7)])
    assert found == allreduce(p, "nesterov", [(4, 1, 7)], wire_dtype="bfloat16")


@pytest.mark.parametrize("strategy", [gg.OverlappedAveraging(), gg.OverlappedAveraging(bucket_bytes=1, chunk_bytes=99)])
def test_epochs_with_ragged_ends(strategy):
    """Batches of 37 from uneven shards; the last one of an epoch is smaller, and not the same on all ranks."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((302, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 302)
    expected, found = (
        trainer_of(3, OPTIMIZERS["nesterov"], s).fit(data, epochs=3, batch_size=37, progress=False)
        for s in (gg.AllReduce(), strategy)
    )
    assert found.weights_sha256 == expected.weights_sha256 and len(set(found.weights_sha256)) == 1
    for key in ("train_loss", "bytes_sent", "samples"):
        assert found[key] == expected[key]
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
    for cut in CUTS.values():
        bytes_kept, saved = kept(gg.OverlappedAveraging(**cut))
        assert bytes_kept + saved == whole[0]
        chunks = 1 + whole[0] // p // cut["chunk_bytes"] + 2 if cut else 1
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
    second.core.load_weights(first.weights(1))
    second.core.load_momentum(first.momentum(2))
    second.core.step = first.step
    assert whole(second, 1) == whole(first, 1)
    for trainer in (first, second):
        train(trainer, slice(2, 4))
    assert whole(second, 0) == whole(first, 0) and second.weights_sha256() == first.weights_sha256()
    bad = {k: v for k, v in first.momentum().items() if k != "fc1.bias"}
    with pytest.raises(ValueError, match=r"momentum.*fc1\.bias"):
        second.core.load_momentum(bad)
    assert whole(second, 0) == whole(first, 0)


@pytest.mark.parametrize("save_cut", ["default", "layers"])
def test_resuming_in_another_cut(save_cut, tmp_path):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((53, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 53)

    def fit(epochs, cut, **options):
        trainer = trainer_of(4, OPTIMIZERS["momentum"], gg.OverlappedAveraging(**CUTS[cut]))
        return trainer, trainer.fit(data, epochs=epochs, batch_size=5, progress=False, **options)

    path = tmp_path / "middle.safetensors"
    half, _ = fit(1, save_cut)
    half.save(path)
    with pytest.warns(UserWarning, match="chunk_bytes"):
        _, resumed = fit(3, "joined", resume=path)
    assert resumed.weights_sha256 == fit(3, "default")[1].weights_sha256


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
    for strategy, chunks in ((gg.OverlappedAveraging(), 1), (gg.OverlappedAveraging(chunk_bytes=4 * 16 * p), 0)):
        record = trainer_of(p, OPTIMIZERS["plain"], strategy, net=net).fit(data, batch_size=4, progress=False).last
        chunks = chunks or -(-200 // p)
        assert record["bytes_sent"] == 2 * record["steps"] * (p - 1) * 4 * 3200
        narrow = trainer_of(p, OPTIMIZERS["plain"], replace(strategy, wire_dtype="bfloat16"), net=net)
        assert 4 * narrow.fit(data, batch_size=4, progress=False).last["bytes_sent"] == 3 * record["bytes_sent"]
        slices = p if chunks == 1 else 200 / chunks
        assert record["messages_sent"] == pytest.approx(2 * record["steps"] * (p - 1) * slices * chunks)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_warm_step_allocates_nothing_and_nothing_is_left(overlap):
    x, y = small_batches(np.random.default_rng(0), 3)
    gc.collect()
    before = _core.memory()[0]

    def allocations(strategy):
        trainer = trainer_of(3, OPTIMIZERS["momentum"], strategy)
        trainer.train_step(x, y)
        warm = _core.memory()[1]
        for _ in range(6):
            trainer.train_step(x, y)
        made = _core.memory()[1] - warm
        trainer.close()
        return made

    assert allocations(gg.OverlappedAveraging(overlap=overlap, chunk_bytes=64)) == allocations(gg.NoExchange())
    gc.collect()
    assert _core.memory()[0] == before


def test_what_cannot_be():
    net = gg.Sequential([gg.Linear(4000)], input=(200,), name="wide")
    with pytest.raises(ValueError, match="chunk_bytes"):
        trainer_of(2, OPTIMIZERS["momentum"], gg.OverlappedAveraging(chunk_bytes=64), net=net)
    options = {"name": "overlapped-averaging", "bucket_bytes": 0}
    with pytest.raises(ValueError, match="bucket_bytes"):
        _core.Trainer(
            small_net().graph,
            _core.Team("virtual", size=2),
            loss="cross_entropy",
            optimizer=gg.SGD(lr=0.1).options(1),
            strategy=options,
        )
