"""Compressed sums: nothing is lost, all ranks get the same bits, and what is sent is what AdaComp's definition says.

The definition is written again in NumPy, in float32 and in the order of the core, so that bits can be compared. What
must hold whatever is chosen is computed in float64: sent + residues = gradients.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gossip_reference import Gradients, assert_steady, flat, small_batches, small_net, unflat

import gossipgrad as gg

BINS = {"conv": 5, "linear": 12, "recurrent": 100, "other": 7}
SMALL = {"bin_size": BINS, "dense_below": 20, "dense": ("bias", "norm")}
COMPRESSIONS = {
    "strict": gg.AdaComp(mode="strict", **SMALL),
    "safe": gg.AdaComp(mode="safe", factor={"conv": 1.5, "linear": 1.0, "recurrent": 3.0}, **SMALL),
    "bfloat16": gg.AdaComp(mode="exact", **SMALL),
    "float32": gg.AdaComp(mode="exact", values="float32", factor=3.0, **SMALL | {"dense": ()}),
    "cyclic, bfloat16": gg.AdaComp(selection="cyclic", **SMALL),
    "cyclic, float32": gg.AdaComp(selection="cyclic", values="float32", **SMALL),
}
# Clips nothing; but it needs the norm of the sum, which is then an array where the gradient was.
MEASURED = gg.SGD(lr=0.2, momentum=0.9, clip_norm=1e6)
CUTS = {"layers": {"bucket_bytes": 1}, "joined": {"bucket_bytes": 900}, "default": {}}


def norm_net():
    layers = [gg.Conv2d(6, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Conv2d(5, 3), gg.BatchNorm2d(), gg.Flatten()]
    return gg.Sequential([*layers, gg.Linear(4)], input=(1, 8, 8), name="normed")


def recurrent_net():
    rows = gg.LSTM(6, name="rnn")(x := gg.Input((8, 8), name="x"))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(rows)))


NETS = {"small": small_net, "norm": norm_net, "recurrent": recurrent_net}


def batches(generator, p, net, sizes):
    x, y = small_batches(generator, p, sizes)
    return ([one.reshape(-1, 8, 8) for one in x] if net == "recurrent" else x), y


def trainer_of(p, strategy, compression, net="small", optimizer=MEASURED, **options):
    return gg.Trainer(
        NETS[net](),
        optimizer=optimizer,
        strategy=strategy,
        seed=5,
        comm=gg.VirtualCluster(p, **options),
        compression=compression,
    )


def residues(trainer):
    """At rest, of each rank."""
    trainer.core.exchange.settle()
    return [trainer.core.exchange.arena("residue", rank) for rank in range(trainer.size)]


def sum_of(trainer):
    """The sum of the gradients, those of statistics included, with an optimiser that measures it."""
    trainer.core.exchange.settle()
    return trainer.core.exchange.arena("gradient", trainer.size - 1)


class Own(Gradients):
    """Gradients by parameter, those of statistics included."""

    def __call__(self, weights, x, y):
        super().__call__(weights, x, y)
        return self.trainer.core.exchange.arena("gradient", 0)


# ---------------------------------------------------------------------------------------- the definition again


def to_bfloat16(values):
    """To nearest even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def chosen(compression, g, h, size):
    """Which elements of a parameter are sent, and the greatest |G| of each bin."""
    bins = range(0, g.size, size)
    most = np.array([np.abs(g[at : at + size]).max() for at in bins], np.float32)
    scale = np.float32(most.astype(np.float64).sum() / most.size)
    limit = np.repeat(most, size)[: g.size]
    sends = (np.abs(h) >= limit) & (limit > 0) & (g != 0)
    if compression.mode == "safe":
        sends &= np.abs(g) >= scale / np.float32(2)
    return sends, scale


def sent_by(compression, size, share, gradient, residue, family="linear"):
    """(what one rank sends of one parameter, what is left), as float32."""
    factor = compression.factor[family] if isinstance(compression.factor, dict) else compression.factor
    d = np.float32(share) * gradient.ravel()
    g = residue.ravel() + d
    if size == 0:
        return g, np.zeros_like(g)
    sends, scale = chosen(compression, g, g + np.float32(factor - 1) * d, size)
    value = np.sign(g).astype(np.float32) * scale
    if compression.mode == "exact":
        value = to_bfloat16(g) if compression.values == "bfloat16" else g
    sent = np.where(sends, value, np.float32(0))
    return sent, g - sent


def own_gradients(gradients_of, trainer, x, y):
    """Each rank's gradients at the weights that all ranks share."""
    weights = flat(trainer.weights())
    return [gradients_of(weights, *one) for one in zip(x, y, strict=True)]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("mode", ["strict", "safe", "bfloat16", "float32"])
def test_messages_are_what_the_definition_says(mode, net):
    """To the bit, in sums and residues, over steps of uneven batches."""
    compression, p = COMPRESSIONS[mode], 3
    trainer = trainer_of(p, gg.LayerwiseAllReduce(bucket_bytes=900), compression, net)
    packed = compression.packed(trainer.net)
    assert packed
    gradients_of = Own(trainer.net)
    left = [{key: np.zeros_like(one) for key, one in trainer.weights().items()} for _ in range(p)]
    generator = np.random.default_rng(1)
    for _ in range(5):
        x, y = batches(generator, p, net, (5, 3, 8))
        own = own_gradients(gradients_of, trainer, x, y)
        shares = np.float32([len(one) for one in y]) / np.float32(sum(map(len, y)))
        trainer.train_step(x, y)
        total, found = sum_of(trainer), residues(trainer)
        for name, array in total.items():
            wanted = np.zeros(array.size, np.float32)
            for rank in range(p):
                family, size = packed.get(name, ("other", 0))
                sent, rest = sent_by(compression, size, shares[rank], own[rank][name], left[rank][name], family)
                left[rank][name] = rest.reshape(array.shape)
                wanted += sent
                assert np.array_equal(found[rank][name], left[rank][name]), (name, rank)
            assert np.array_equal(array.ravel(), wanted), name
    trainer.close()


# ------------------------------------------------------------------------------------------------ nothing is lost


def assert_balanced(before, after, terms):
    """Equal but for the rounding of float32 in sums of `terms`."""
    size = sum(np.abs(one) for one in terms)
    np.testing.assert_array_less(np.abs(before - after), 3e-7 * size + 1e-30)


HOWS = {
    "momentum": (MEASURED, gg.AllReduce()),
    "adam": (gg.Adam(lr=0.01, clip_norm=1e6), gg.LayerwiseAllReduce(bucket_bytes=1)),
    "clipped": (gg.SGD(lr=0.1, momentum=0.9, clip_norm=0.05), gg.LayerwiseAllReduce(bucket_bytes=900)),
    "lars": (gg.LARS(lr=1.0), gg.AllReduce()),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_sent_and_left_are_the_gradients(p, how, net):
    optimizer, strategy = list(HOWS.values())[(p + list(COMPRESSIONS).index(how)) % len(HOWS)]
    trainer = trainer_of(p, strategy, COMPRESSIONS[how], net, optimizer)
    packed = COMPRESSIONS[how].packed(trainer.net)
    gradients_of = Own(trainer.net)
    generator = np.random.default_rng(p)
    left = np.zeros((p, flat(trainer.weights()).size))
    for step in range(8):
        x, y = batches(generator, p, net, [(5, 3, 8), (1,), (20, 4)][step % 3])
        own = [flat(one) for one in own_gradients(gradients_of, trainer, x, y)]
        shares = np.float32([len(one) for one in y]) / np.float32(sum(map(len, y)))
        weighted = [share * one for share, one in zip(shares.astype(np.float64), own, strict=True)]
        trainer.train_step(x, y)
        assert len(set(trainer.weights_sha256())) == 1
        total = sum_of(trainer)
        sent, now = flat(total), np.array([flat(one) for one in residues(trainer)])
        assert_balanced(sum(left) + sum(weighted), sum(now) + sent, [*left, *weighted, *now])
        left = now
        share = np.mean([np.count_nonzero(total[name]) / total[name].size for name in packed])
        assert share > 0, "something is sent"
    assert np.abs(left).max() > 0
    trainer.close()


@pytest.mark.parametrize("values", ["float32", "bfloat16"])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_one_chooses_for_all(p, values):
    """Cyclic: of each bin what the rank whose turn it is would have sent, with the values of all."""
    compression = COMPRESSIONS[f"cyclic, {values}"]
    trainer = trainer_of(p, gg.LayerwiseAllReduce(bucket_bytes=900), compression)
    sizes = {name: size for name, (_, size) in compression.packed(trainer.net).items()}
    gradients_of = Own(trainer.net)
    generator = np.random.default_rng(p)
    left = [{key: np.zeros_like(one) for key, one in trainer.weights().items()} for _ in range(p)]
    for step in range(2 * p):
        x, y = small_batches(generator, p, (5, 3, 8))
        own = own_gradients(gradients_of, trainer, x, y)
        shares = np.float32([len(one) for one in y]) / np.float32(sum(map(len, y)))
        trainer.train_step(x, y)
        total, found = sum_of(trainer), residues(trainer)
        for name, array in total.items():
            d = [shares[r] * own[r][name].ravel() for r in range(p)]
            g = [left[r][name].ravel() + d[r] for r in range(p)]
            sends = np.ones(array.size, bool)
            if name in sizes:
                turn = step % p
                h = g[turn] + np.float32(compression.factor - 1) * d[turn]
                sends, _ = chosen(compression, g[turn], h, sizes[name])
            wanted = np.zeros(array.size, np.float32)
            for rank in range(p):
                value = to_bfloat16(g[rank]) if values == "bfloat16" and name in sizes else g[rank]
                sent = np.where(sends, value, np.float32(0))
                wanted += sent
                left[rank][name] = (g[rank] - sent).reshape(array.shape)
                assert np.array_equal(found[rank][name], left[rank][name]), (name, rank)
            if name in sizes:
                assert np.array_equal(array.ravel(), wanted), name
            else:  # in one sum with the shares
                np.testing.assert_allclose(array.ravel(), wanted, rtol=1e-5, atol=1e-7)
    trainer.close()


def test_bytes_of_a_cyclic_sum_do_not_grow_with_the_ranks():
    data = np.random.default_rng(0).standard_normal((96, 1, 8, 8)).astype(np.float32), np.arange(96) % 4

    def sent(p, selection):
        compression = gg.AdaComp(selection=selection, mode="exact", values="float32", bin_size=10, dense_below=20)
        trainer = trainer_of(p, gg.AllReduce(), compression, optimizer=gg.SGD(lr=0.0))
        return trainer.fit(data, batch_size=4, progress=False).last["bytes_sent"] / (96 // 4)  # a step of one rank

    assert sent(12, "cyclic") < 1.9 * sent(3, "cyclic")
    assert sent(12, "local") > 4 * sent(3, "local")


# ------------------------------------------------------------------------------------------------ equal bits


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("net", ["small", "norm"])
def test_layerwise_is_allreduce_bit_for_bit(net, how):
    """With ragged ends."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((53, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 53)
    hashes = []
    for strategy in (gg.AllReduce(), *(gg.LayerwiseAllReduce(**cut) for cut in CUTS.values())):
        trainer = trainer_of(4, strategy, COMPRESSIONS[how], net, gg.SGD(lr=0.05, momentum=0.9, clip_norm=1.0))
        history = trainer.fit(data, epochs=2, batch_size=5, progress=False)
        hashes.append((history.weights_sha256, history["train_loss"]))
        assert len(set(history.weights_sha256)) == 1
        trainer.close()
    assert all(one == hashes[0] for one in hashes)


@pytest.mark.core(2)
@pytest.mark.parametrize("clip", [None, 1e6], ids=["in pieces", "measured"])
@pytest.mark.parametrize("how", ["strict", "bfloat16", "cyclic, float32"])
def test_several_messages_of_an_allreduce_have_its_bits(how, clip):
    """Gradients of 4 MiB are a message, and so is what is left in front of them."""
    compression = dataclasses.replace(COMPRESSIONS[how], bin_size=None, dense=())
    found, messages = [], []
    for strategy in (gg.AllReduce(), *(gg.LayerwiseAllReduce(bucket_bytes=size) for size in (1, 1 << 30))):
        layers = [gg.Conv2d(4, 3), gg.Flatten(), gg.Linear(1056), gg.ReLU(), gg.Linear(1000), gg.ReLU()]
        trainer = gg.Trainer(
            gg.Sequential([*layers, gg.Linear(1060), gg.ReLU(), gg.Linear(4)], input=(1, 8, 8)),
            optimizer=gg.SGD(lr=0.05, momentum=0.9, clip_norm=clip),
            strategy=strategy,
            seed=5,
            comm=gg.VirtualCluster(3),
            compression=compression,
        )
        generator = np.random.default_rng(2)
        for _ in range(4):
            trainer.train_step(*small_batches(generator, 3, (5, 3, 8)))
        left = [flat(one).tobytes() for one in residues(trainer)]
        found.append((trainer.weights_sha256(), left))
        messages.append(trainer.team.counts()[1])
        trainer.close()
    assert len(set(found[0][0])) == 1
    assert found[0] == found[1] == found[2]
    if how != "cyclic, float32":  # 4 steps, 3 ranks, 2 others
        assert [(n - messages[2]) / (4 * 3 * 2) for n in messages] == [2, 4, 0]


def large_trainer(optimizer, strategy, compression, threads):
    """One parameter is longer than a piece for each thread, one travels whole, and one is small and not compressed."""
    compression = dataclasses.replace(compression, dense_below=1200)
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.Flatten(), gg.Linear(299), gg.ReLU(), gg.Linear(4)]
    trainer = gg.Trainer(
        gg.Sequential(layers, input=(1, 8, 8), name="large"),
        optimizer=optimizer,
        strategy=strategy,
        seed=5,
        threads=threads,
        comm=gg.VirtualCluster(3),
        compression=compression,
    )
    sizes = {name: one.size for name, one in trainer.weights().items()}
    assert max(sizes.values()) > threads * 16384
    assert set(compression.packed(trainer.net)) < set(sizes)
    return trainer


IN_PIECES = [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=900)]
LOCAL = [how for how in COMPRESSIONS if "cyclic" not in how]


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "adam"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", LOCAL)
@pytest.mark.parametrize("strategy", IN_PIECES, ids=repr)
def test_a_sum_that_is_no_array_has_its_bits(strategy, how, threads, adam):
    """Which is where no norm is needed: the update reads it piece by piece."""
    hashes = []
    for clip in (None, 1e6):
        sgd = gg.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, clip_norm=clip)
        optimizer = gg.Adam(lr=0.01, weight_decay=0.01, clip_norm=clip) if adam else sgd
        trainer = large_trainer(optimizer, strategy, COMPRESSIONS[how], threads)
        generator = np.random.default_rng(2)
        for _ in range(5):
            trainer.train_step(*small_batches(generator, 3, (5, 3, 8)))
        trainer.core.exchange.settle()
        left = np.array([flat(one) for one in residues(trainer)])
        moments = [trainer.core.exchange.arena(name, 1) for name in ("momentum", "second_moment")[: 1 + adam]]
        hashes.append((trainer.weights_sha256(), [flat(one).tobytes() for one in moments], left.tobytes()))
        trainer.close()
    assert len(set(hashes[0][0])) == 1
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "adam"])
@pytest.mark.parametrize("strategy", IN_PIECES, ids=repr)
def test_a_sum_of_moments_that_is_no_array_is_what_the_messages_say(strategy, adam):
    """Norms are not allowed there, so that no array has the same. What a rank has packed is its momentum, or with Adam
    its gradient, which with two threads is an array."""
    lr = 0.0625  # so that its product is exact
    optimizer = gg.Adam(lr=lr, weight_decay=0.01) if adam else gg.SGD(lr=lr, momentum=0.9, weight_decay=0.01)
    for how in LOCAL:
        compression = dataclasses.replace(COMPRESSIONS[how], local_momentum=True, warmup=0)
        trainer = large_trainer(optimizer, strategy, compression, 2)
        packed = dataclasses.replace(compression, dense_below=1200).packed(trainer.net)
        generator = np.random.default_rng(2)
        for _ in range(4):
            before, left = trainer.weights(), residues(trainer)
            trainer.train_step(*small_batches(generator, 3, (5, 3, 8)))
            after, found = trainer.weights(), residues(trainer)
            own = [trainer.core.exchange.arena("gradient" if adam else "momentum", rank) for rank in range(3)]
            for name, (family, size) in packed.items():
                total = np.zeros(before[name].size, np.float32)
                for rank in range(3):
                    sent, rest = sent_by(compression, size, 1 / 3, own[rank][name], left[rank][name], family)
                    assert np.array_equal(found[rank][name].ravel(), rest), (how, name, rank)
                    total += sent
                wanted = before[name].ravel() - np.float32(lr) * total
                assert np.array_equal(after[name].ravel(), wanted), (how, name)
                assert np.count_nonzero(total) > 10
        trainer.close()


@pytest.mark.parametrize("table", ["native", "onednn"])
@pytest.mark.parametrize("optimizer", ["plain", "local", "local adam"])
@pytest.mark.parametrize("size", [7, 50, 500, 3000])
@pytest.mark.parametrize("strategy", IN_PIECES, ids=repr)
def test_gradients_that_are_no_arrays_have_their_bits(strategy, size, optimizer, table, monkeypatch):
    """On one thread rows of a linear layer's gradient are computed where elements are chosen from them."""
    monkeypatch.setenv("GOSSIPGRAD_BACKEND", table)
    generator = np.random.default_rng(size)
    images = generator.normal(size=(37, 1, 27, 26)).astype(np.float32)
    data = gg.data.Dataset(images, generator.integers(0, 10, 37))  # a rank's last batch is smaller than the others
    made = gg.Adam(lr=0.01) if "adam" in optimizer else gg.SGD(lr=0.05, momentum=0.9)
    found = []
    for threads in (1, 2):
        layers = [gg.Flatten(), gg.Linear(160), gg.ReLU(), gg.Linear(90), gg.Linear(10)]
        trainer = gg.Trainer(
            gg.Sequential(layers, input=(1, 27, 26), name="wide"),
            optimizer=made,
            strategy=strategy,
            seed=5,
            threads=threads,
            comm=gg.VirtualCluster(2),
            compression=gg.AdaComp(bin_size=size, warmup=1, local_momentum="local" in optimizer),
        )
        trainer.fit(data, epochs=1, batch_size=8, progress=False)
        before = trainer.core.exchange.arena("gradient", 0)
        trainer.fit(data, epochs=3, batch_size=8, progress=False)
        after = trainer.core.exchange.arena("gradient", 0)
        left = np.array([flat(one) for one in residues(trainer)])
        moments = [
            trainer.core.exchange.arena(name, 1) for name in ("momentum", "second_moment")[: 1 + ("adam" in optimizer)]
        ]
        found.append((trainer.weights_sha256(), left.tobytes(), [flat(one).tobytes() for one in moments]))
        written = {name for name in before if not np.array_equal(before[name], after[name])}
        assert len({name for name in written if "weight" in name}) == (1 if threads == 1 else 3), written
        trainer.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("optimizer", ["plain", "clipped", "local"])
@pytest.mark.parametrize("mode", ["strict", "safe"])
@pytest.mark.parametrize("size", [1, 5, 16, 50, 64, 65, 75, 500])
def test_what_is_sent_leaves_the_residue_when_it_is_read_again(size, mode, optimizer):
    """Or when training comes to rest, with the same bits: an element may be sent in every step."""
    clip, local = 1e6 if optimizer == "clipped" else None, optimizer == "local"
    bins = {family: size for family in BINS}
    compression = gg.AdaComp(mode=mode, bin_size=bins, dense_below=20, local_momentum=local, warmup=0)
    found = []
    for rests in (False, True):
        made = gg.SGD(lr=0.05, momentum=0.9, clip_norm=clip)
        trainer = trainer_of(2, gg.LayerwiseAllReduce(bucket_bytes=900), compression, optimizer=made)
        generator = np.random.default_rng(size)
        for _ in range(6):
            trainer.train_step(*small_batches(generator, 2, (5, 3, 8)))
            if rests:
                trainer.core.exchange.settle()
        left = np.array([flat(one) for one in residues(trainer)])
        found.append((trainer.weights_sha256(), left.tobytes()))
        trainer.close()
    assert found[0] == found[1]
    assert left.any()


@pytest.mark.parametrize(("p", "own_sum"), [(2, False), (3, True)])
def test_a_large_bias_is_part_of_the_message_of_two_ranks(p, own_sum):
    """With three ranks, it would be a third more bytes in messages to all."""

    def sent(strategy, compression):
        trainer = gg.Trainer(
            gg.Sequential([gg.Linear(9500), gg.Linear(3)], input=(4,), name="biased"),
            optimizer=gg.SGD(lr=0.05, momentum=0.9),
            strategy=strategy,
            seed=3,
            comm=gg.VirtualCluster(p),
            compression=compression,
        )
        x = np.random.default_rng(0).standard_normal((p, 5, 4)).astype(np.float32)
        before = trainer.team.counts()[1]
        for _ in range(4):
            trainer.train_step(list(x), [np.arange(5) % 3] * p)
        messages = trainer.team.counts()[1] - before
        if compression is not None:
            assert list(compression.packed(trainer.net)) == ["fc1.weight", "fc2.weight"]
        trainer.close()
        return messages / 4 / p  # of a rank in a step

    messages = sent(gg.AllReduce(), gg.AdaComp(warmup=0, dense_below=9501)) - sent(gg.NoExchange(), None)
    assert messages > p - 1 if own_sum else messages == p - 1


@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)], ids=["allreduce", "layer"]
)
def test_gradients_are_the_sum_of_the_last_step_or_an_error_that_says_why(strategy):
    """Without clip_norm the sum of packed messages never is an array. Of the step before, which was dense, it is."""
    compression = gg.AdaComp(bin_size=10, dense_below=1, warmup=1)
    found = []
    for optimizer in (gg.SGD(lr=0.2, momentum=0.9), MEASURED):
        trainer = trainer_of(2, strategy, compression, optimizer=optimizer)
        generator = np.random.default_rng(0)
        trainer.train_step(*small_batches(generator, 2, (4, 4)))
        found.append(trainer.gradients())
        trainer.train_step(*small_batches(generator, 2, (4, 4)))
        if optimizer is MEASURED:
            before = trainer.gradients(0)
            for name, one in trainer.gradients(1).items():
                assert np.array_equal(one, before[name])
        else:
            for rank in (0, 1):
                with pytest.raises(RuntimeError, match=r"gradients: no array has the sum.*clip_norm=1e9"):
                    trainer.gradients(rank)
            assert trainer.momentum() and trainer.consensus_distance() == 0  # it goes on
            trainer.train_step(*small_batches(generator, 2, (4, 4)))
        trainer.close()
    for name, one in found[0].items():
        assert one.any() and np.array_equal(one, found[1][name])


@pytest.mark.parametrize("selection", ["local", "cyclic"])
def test_what_travels_whole_is_what_it_is_without_compression(selection):
    """A large parameter is reduced apart from the messages, to the bits of a dense sum."""
    layers = [gg.Conv2d(4, 3, name="conv"), gg.Flatten(), gg.Linear(80, name="wide"), gg.Linear(4, name="last")]
    net = gg.Sequential(layers, input=(1, 8, 8), name="wide")
    generator = np.random.default_rng(0)
    x, y = small_batches(generator, 3, (5, 3, 8))
    found = {}
    for name, strategy, compressed in (
        ("dense", gg.AllReduce(), False),
        ("allreduce", gg.AllReduce(), True),
        ("layerwise", gg.LayerwiseAllReduce(bucket_bytes=1), True),
    ):
        bins = {"conv": 6, "linear": 0}
        compression = (
            gg.AdaComp(selection=selection, bin_size=bins, dense_below=0, dense="bias") if compressed else None
        )
        how = {"strategy": strategy, "compression": compression}
        trainer = gg.Trainer(net, optimizer=MEASURED, seed=5, comm=gg.VirtualCluster(3), **how)
        trainer.train_step(x, y)
        found[name] = sum_of(trainer)
        if compressed:
            left = {key for one in residues(trainer) for key in one if one[key].any()}
            assert left == {"conv.weight"}
        trainer.close()
    for name in ("allreduce", "layerwise"):
        # In messages of three ranks it would be a third more bytes.
        assert found[name]["wide.weight"].size * 4 * 2 / 3 >= 24 * 1024
        assert np.array_equal(found[name]["wide.weight"], found["dense"]["wide.weight"])
        assert not np.array_equal(found[name]["conv.weight"], found["dense"]["conv.weight"])
    for key, one in found["allreduce"].items():
        assert np.array_equal(one, found["layerwise"][key])


@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(), gg.PeriodicAllReduce(period=2)], ids=repr
)
def test_one_rank_compresses_nothing(strategy):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((53, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 53)
    found = []
    for one, compression in ((strategy, COMPRESSIONS["strict"]), (gg.NoExchange(), None)):
        trainer = trainer_of(1, one, compression)
        history = trainer.fit(data, epochs=2, batch_size=5, progress=False)
        assert "residue" not in trainer.core.exchange.arenas()
        found.append((history.weights_sha256, history["train_loss"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "strategy",
    [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1), gg.PeriodicAllReduce(period=2)],
    ids=["allreduce", "layerwise", "periodic"],
)
@pytest.mark.parametrize("selection", ["local", "cyclic"])
def test_the_first_steps_send_everything(selection, strategy):
    generator = np.random.default_rng(0)
    compressed, dense = (
        trainer_of(3, strategy, compression)
        for compression in (gg.AdaComp(warmup=4, selection=selection, **SMALL), None)
    )
    for step in range(8):
        x, y = small_batches(generator, 3, (5, 3, 8))
        compressed.train_step(x, y)
        dense.train_step(x, y)
        same = compressed.weights_sha256() == dense.weights_sha256()
        assert same if step < 4 else not same or isinstance(strategy, gg.PeriodicAllReduce)
        assert any(flat(one).any() for one in residues(compressed)) == (not same and (step + 1) % 2 == 0) or step >= 4
    assert not same


# ------------------------------------------------------------------------------------------------ periodic


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_periodic_moves_by_the_mean_of_what_was_sent(p, how):
    """A second trainer goes the same steps alone, so that the weights just before a mean are known."""
    optimizer, period = gg.SGD(lr=0.1, momentum=0.9), 3
    trainer = trainer_of(p, gg.PeriodicAllReduce(period=period), COMPRESSIONS[how], optimizer=optimizer)
    alone = trainer_of(p, gg.NoExchange(), None, optimizer=optimizer)
    generator = np.random.default_rng(p)
    like = trainer.weights()
    left, base = np.zeros((p, flat(like).size)), flat(like)
    for step in range(4 * period):
        x, y = small_batches(generator, p, (5, 3, 8))
        trainer.train_step(x, y)
        alone.train_step(x, y)
        if (step + 1) % period:
            assert trainer.weights_sha256() == alone.weights_sha256()
            continue
        assert len(set(trainer.weights_sha256())) == 1
        there = flat(trainer.weights())
        moved = [(flat(alone.weights(rank)) - base) / p for rank in range(p)]
        now = np.array([flat(one) for one in residues(trainer)])
        terms = [*left, *moved, *now, base, there]  # the base and the weights are rounded as well
        assert_balanced(sum(left) + sum(moved), sum(now) + there - base, terms)
        assert np.abs(there - base).max() > 0 and np.abs(now).max() > 0
        left, base = now, there
        for rank in range(p):
            np.testing.assert_equal(trainer.momentum(rank), alone.momentum(rank))  # each rank's own
            alone.core.exchange.load_arena("weight", trainer.weights(), rank)
    trainer.close()


@pytest.mark.parametrize(
    "strategy", [gg.PeriodicAllReduce(period=4), gg.ElasticAveraging(period=4, alpha=0.2)], ids=["periodic", "elastic"]
)
def test_ranks_choose_in_turns_whatever_the_period(strategy):
    """The period is a multiple of the ranks, so all sums are in steps of one remainder."""
    compression, p, optimizer = COMPRESSIONS["cyclic, float32"], 2, gg.SGD(lr=0.1)
    trainer = trainer_of(p, strategy, compression, optimizer=optimizer)
    alone = trainer_of(p, gg.NoExchange(), None, optimizer=optimizer)
    sizes = {name: size for name, (_, size) in compression.packed(trainer.net).items()}
    generator, share = np.random.default_rng(3), np.float32(-0.2 if "elastic" in strategy.name else 0.5)
    middle, left = trainer.consensus_weights(), [dict.fromkeys(sizes, np.float32(0))] * p  # the base, or the centre
    for step in range(4 * strategy.period):
        x, y = small_batches(generator, p, (5, 3))
        trainer.train_step(x, y)
        alone.train_step(x, y)
        if (step + 1) % strategy.period:
            continue
        turn = step // strategy.period % p
        before, after = alone.weights(turn), trainer.weights(turn)
        for name, size in sizes.items():
            d = (share * (before[name] - middle[name])).ravel()
            g = np.float32(left[turn][name]).ravel() + d
            sends, _ = chosen(compression, g, g + np.float32(compression.factor - 1) * d, size)
            changed = after[name] != (before if share < 0 else middle)[name]
            assert np.array_equal(changed.ravel(), sends), (step, name)
        middle = trainer.consensus_weights()
        if share > 0:
            left = residues(trainer)
        for rank in range(p):
            alone.core.exchange.load_arena("weight", trainer.weights(rank), rank)
    trainer.close()


def test_elastic_averaging_has_no_residue():
    """What is not sent of the force is in the weights' distance to the centre still: no other place has it."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((48, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 48)
    trainer = trainer_of(3, gg.ElasticAveraging(period=2, alpha=0.2), COMPRESSIONS["strict"])
    record = trainer.fit(data, epochs=1, batch_size=4, progress=False).last["compression"]
    assert 0 < record["elements_sent"] < 1 and record["residue"] == 0.0
    assert "residue" not in trainer.core.exchange.arenas() and "residue" not in trainer.optimizer_state()


def test_periodic_after_weights_were_loaded():
    """What all ranks had last is not known then: the next mean is one of whole weights."""
    trainer = trainer_of(3, gg.PeriodicAllReduce(period=2), COMPRESSIONS["strict"], optimizer=gg.SGD(lr=0.0))
    generator = np.random.default_rng(0)
    like = trainer.weights()
    for loaded in ([0, 1, 2], [1]):
        values = [flat(trainer.weights(rank)) for rank in range(3)]
        for rank in loaded:
            values[rank] = generator.standard_normal(values[rank].size).astype(np.float32).astype(np.float64)
            trainer.core.exchange.load_arena("weight", unflat(values[rank], like), rank)
        for _ in range(2):
            trainer.train_step(*small_batches(generator, 3))
        np.testing.assert_allclose(flat(trainer.weights()), np.mean(values, 0), rtol=1e-5, atol=1e-6)
        assert len(set(trainer.weights_sha256())) == 1


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("how", ["strict", "bfloat16", "cyclic, bfloat16"])
@pytest.mark.parametrize(
    "strategy", [gg.LayerwiseAllReduce(), gg.PeriodicAllReduce(period=4)], ids=["sums", "periodic"]
)
def test_resuming_is_never_having_stopped(strategy, how, tmp_path):
    """Three steps an epoch, so with period 4 it is saved between two means."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((36, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 36)

    def fit(epochs, **options):
        trainer = trainer_of(3, strategy, COMPRESSIONS[how])
        return trainer, trainer.fit(data, epochs=epochs, batch_size=4, progress=False, **options)

    path = tmp_path / "half.safetensors"
    half, _ = fit(2)
    half.save(path)
    _, resumed = fit(5, resume=path)
    _, whole = fit(5)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed["train_loss"] == whole["train_loss"]


@pytest.mark.core(1)
@pytest.mark.parametrize("how", ["strict", "float32", "cyclic, bfloat16"])
@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1), gg.PeriodicAllReduce(period=2)], ids=repr
)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(strategy, how):
    assert_steady(lambda one: trainer_of(3, one, COMPRESSIONS[how] if one is strategy else None), strategy, 3)


@pytest.mark.parametrize("selection", ["local", "cyclic"])
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)], ids=repr)
def test_a_gradient_that_is_no_number_names_rank_and_layer(strategy, selection):
    trainer = trainer_of(3, strategy, gg.AdaComp(selection=selection, **SMALL))
    x, y = small_batches(np.random.default_rng(0), 3)
    trainer.train_step(x, y)
    x[1][:] = np.nan
    with pytest.raises(ArithmeticError, match=r"rank 1.*step 1, layers '.*'.*'(conv|fc1|fc2).weight'.* is nan"):
        trainer.train_step(x, y)


def test_packed_sums_hide_behind_the_backward_pass():
    layers = [gg.Linear(300), gg.Linear(300), gg.Linear(300), gg.Linear(300)]
    net = gg.Sequential(layers, input=(300,), name="deep")
    data = np.random.default_rng(0).standard_normal((512, 300)).astype(np.float32), np.zeros(512, np.int64)

    def exposed(strategy):
        comm = gg.VirtualCluster(4, bandwidth=1e8)
        trainer = gg.Trainer(net, strategy=strategy, comm=comm, compression=gg.AdaComp())
        return trainer.fit(data, batch_size=64, progress=False).last["exposed_communication_seconds"]

    assert exposed(gg.LayerwiseAllReduce(bucket_bytes=1)) < 0.6 * exposed(gg.AllReduce())


@pytest.mark.parametrize("how", ["strict", "cyclic, bfloat16"])
@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1), gg.PeriodicAllReduce(period=2)], ids=repr
)
def test_exposed_seconds_are_the_waits_of_the_trace(strategy, how):
    comm = gg.VirtualCluster(3, latency=1e-6, bandwidth=1e8)
    trainer = gg.Trainer(small_net(), strategy=strategy, comm=comm, trace=10_000, compression=COMPRESSIONS[how])
    x = np.random.default_rng(0).standard_normal((56, 1, 8, 8)).astype(np.float32)
    history = trainer.fit((x, np.arange(56) % 4), epochs=2, batch_size=5, progress=False)
    waits = [
        one[1] - one[0]
        for rank in range(3)
        for one in trainer.core.exchange.spans(rank)
        if one[2] == "wait" and one[4] == 0
    ]
    assert sum(waits) / 3 == pytest.approx(sum(history["exposed_communication_seconds"]), rel=1e-9)
    assert sum(waits) > 0
