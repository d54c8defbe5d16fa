"""GossipGraD with compression: a copy of the weights for each edge of the schedule, at both of its ends."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import flat, randomise, small_net

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.training import notices

pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

SMALL = gg.AdaComp(bin_size={"conv": 7, "linear": 30}, dense_below=0)
GRID = [2, 3, 5, 8]


def data(count=160):
    generator = np.random.default_rng(7)
    x = generator.standard_normal((count, 1, 8, 8)).astype(np.float32)
    return gg.data.Dataset(x, (x.reshape(count, -1)[:, :2] > 0) @ [1, 2])


def trainer(p=4, lr=0.05, compression=SMALL, net=None, seed=4, **how):
    strategy = gg.GossipGraD(**{"rotate": False, "exchange": "weights", **how})
    optimizer = gg.SGD(lr=lr, momentum=0.9)
    return gg.Trainer(
        net or small_net(), optimizer=optimizer, strategy=strategy, compression=compression, seed=seed,
        comm=gg.VirtualCluster(p),
    )  # fmt: skip


def fit(one, epochs=1, **how):
    return one.fit(data(), epochs=epochs, batch_size=4, progress=False, **how)


def weights(one):
    return np.array([flat(one.core.exchange.arena("weight", rank)) for rank in range(one.size)])


def edges(p, rotate=False, topology="dissemination", permutations=None, steps=64, seed=4):
    """The partners of each rank, in the order of its edges."""
    if (rotate and permutations is None) or topology == "random":
        return [[peer for peer in range(p) if peer != rank] for rank in range(p)]
    found = [[] for _ in range(p)]
    for step in range(steps):
        for rank in range(p):
            pair = _core.partners(topology, p, step, rank, rotate, seed, permutations or 0)
            found[rank] += [peer for peer in dict.fromkeys(pair) if min(pair) >= 0 and peer not in found[rank]]
    return found


# ---------------------------------------------------------------------------------------------- invariants


TWO = {"rotate": True, "permutations": 2}


@pytest.mark.parametrize("p", GRID)
@pytest.mark.parametrize(
    "how",
    [{}, {"rotate": True}, {"topology": "cube"}, {"topology": "ring"}, TWO, {"topology": "cube", **TWO},
     {"topology": "ring", **TWO}],
    ids=str,
)  # fmt: skip
def test_the_mean_is_preserved_and_both_ends_hold_the_same_bits(p, how):
    """With a rate of 0 nothing but mixing moves the weights; the replicas begin apart."""
    with trainer(p, lr=0.0, **how) as one:
        randomise(one, np.random.default_rng(p))
        before = weights(one)
        one.fit(data(4 * 40 * p), epochs=1, batch_size=4, progress=False)
        after = weights(one)
        np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=0, atol=1e-6)
        assert np.abs(after - after.mean(axis=0)).max() < 0.25 * np.abs(before - before.mean(axis=0)).max()
        check_copies(one, edges(p, **how))


def check_copies(one, partners):
    """Both ends of every edge hold the same bits; returns how many edges there are."""
    for rank, others in enumerate(partners):
        for edge, peer in enumerate(others):
            mine = one.core.exchange.arena(f"edge{edge}", rank)
            theirs = one.core.exchange.arena(f"edge{partners[peer].index(rank)}", peer)
            assert flat(mine).any() and all(np.array_equal(mine[key], theirs[key]) for key in mine), (rank, peer)


@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_an_independent_reference(values):
    """Copies, choice and mix in NumPy; three ranks that train nothing, and exchange with both others in each step."""
    p, steps, gamma, factor = 3, 12, 0.3, 9.0
    packed = gg.AdaComp(bin_size=11, dense_below=20, factor=factor, mode="exact", values=values, warmup=3)
    with trainer(p, lr=0.0, compression=packed, mix_gamma=gamma) as one:
        randomise(one, np.random.default_rng(1))
        like = one.core.exchange.arena("weight")
        bins = {name: size for name, (_, size) in packed.packed(one.net).items()}
        assert 1 <= len(bins) < len(like)
        w = [{k: v.astype(np.float32) for k, v in one.core.exchange.arena("weight", r).items()} for r in range(p)]
        copies: dict[frozenset[int], dict[str, np.ndarray]] = {}
        one.fit(data(p * 4 * steps), epochs=1, batch_size=4, progress=False)
        assert one.step == steps
        share = np.float32(gamma / 2)
        for step in range(steps):
            sent = {}
            for rank in range(p):
                for peer in range(p):
                    copy = copies.get(frozenset((rank, peer)), {})
                    for key, value in w[rank].items() if peer != rank else ():
                        rest = (value - copy.get(key, np.float32(0))).ravel()
                        if copy and step >= packed.warmup and key in bins:
                            rest = chosen(rest, bins[key], 1 + (factor - 1) / 32, values)
                        sent[rank, peer, key] = rest.reshape(value.shape)
            for rank, peer, key in sent:
                w[rank][key] += share * (sent[peer, rank, key] - sent[rank, peer, key])
                if rank < peer:
                    copy = copies.setdefault(frozenset((rank, peer)), {})
                    part = share if step >= packed.warmup else np.float32(0.5)
                    both = part * sent[rank, peer, key] + part * sent[peer, rank, key]
                    copy[key] = copy.get(key, np.float32(0)) + both
        for rank in range(p):
            np.testing.assert_allclose(flat(one.core.exchange.arena("weight", rank)), flat(w[rank]), rtol=0, atol=1e-5)


def chosen(rest, size, threshold, values):
    """What is sent of a parameter's differences."""
    out = np.zeros_like(rest)
    for begin in range(0, len(rest), size):
        part = rest[begin : begin + size]
        most = np.abs(part).max()
        takes = (np.float32(threshold) * np.abs(part) >= most) & (part != 0)
        sent = part if values == "float32" else rounded(part)
        out[begin : begin + size] = np.where(takes, sent, 0)
    return out


def rounded(x):
    """To bfloat16, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_one_permutation_is_no_rotation():
    """With copies and without, bit for bit; and a rotation without end that has not come round is that of many."""
    for packed in (SMALL, None):
        found = []
        for how in ({}, {"rotate": True, "permutations": 1}, {"rotate": True}, {"rotate": True, "permutations": 99}):
            with trainer(3, compression=packed, **how) as one:
                found.append(fit(one, 2).weights_sha256)
        assert found[0] == found[1] != found[2] == found[3]


def test_where_all_is_sent_it_is_gossip_of_weights():
    """A warm-up without end, where partners exchange with each other anyway."""
    always = gg.AdaComp(bin_size=9, dense_below=0, warmup=10**6)
    with trainer(8, compression=None, topology="cube") as one:
        fit(one, 3)
        plain = weights(one)
    with trainer(8, compression=always, topology="cube") as one:
        fit(one, 3)
        np.testing.assert_allclose(weights(one), plain, rtol=0, atol=2e-4)


def test_it_learns_and_replicas_stay_near():
    net = gg.Sequential([gg.Flatten(), gg.Linear(32), gg.ReLU(), gg.Linear(4)], input=(1, 8, 8), name="small")
    found = {}
    for packed in (None, gg.AdaComp(bin_size=40, dense_below=0)):
        with trainer(8, compression=packed, net=net) as one:
            history = fit(one, 25)
            found[packed is None] = history.last["train_loss"], history.last["consensus_distance"]
            if packed is not None:
                assert history.last["compression"]["ratio"] > 7
                rest = []
                for rank, w in enumerate(weights(one)):
                    copies = [
                        flat(one.core.exchange.arena(k, rank))
                        for k, kind in one.core.exchange.arenas().items()
                        if kind == "copy"
                    ]
                    rest.append(np.sqrt(np.mean([((w - copy) ** 2).sum() for copy in copies]) / (w**2).sum()))
                assert history.last["compression"]["residue"] == pytest.approx(np.mean(rest), rel=1e-4)
    assert found[False][0] < found[True][0] + 0.05 and found[True][0] < 0.3
    assert found[False][1] < 0.5


@pytest.mark.parametrize("topology", ["dissemination", "cube"])
def test_what_is_counted_is_what_travels(topology):
    """Every byte of every message, those included that carry all weights and begin a copy."""
    with trainer(4, topology=topology) as one:
        for record in fit(one, 2):
            assert record["compression"]["packed_bytes"] == record["bytes_sent"]


def test_a_number_that_is_none_is_an_error():
    with trainer(3) as one:
        bad = one.core.exchange.arena("weight", 1)
        bad["fc2.bias"][2] = np.inf
        one.core.exchange.load_arena("weight", bad, 1)
        with pytest.raises(FloatingPointError) as caught:
            fit(one, 1)
        assert "rank 1" in str(caught.value)


# ---------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("how", [{}, {"rotate": True}, {"topology": "cube", **TWO}], ids=str)
def test_resuming_equals_never_having_stopped(how, tmp_path):
    """Also from a checkpoint that was made before some edges had been used, for a warm-up, and after loaded weights."""
    path = tmp_path / "c.safetensors"
    for packed in (SMALL, gg.AdaComp(bin_size=20, dense_below=0, warmup=9)):
        with trainer(5, compression=packed, **how) as one:
            whole = fit(one, 3).weights_sha256
            copies = [
                flat(one.core.exchange.arena(name, 3)) for name in one.core.exchange.arenas() if name.startswith("edge")
            ]
        for epoch in (1, 2):
            with trainer(5, compression=packed, **how) as one:
                fit(one, epoch, **({} if epoch == 1 else {"resume": path}))
                one.save(path)
        with gg.Trainer.load(path) as one:
            assert fit(one, 1).weights_sha256 == whole
            again = [
                flat(one.core.exchange.arena(name, 3)) for name in one.core.exchange.arenas() if name.startswith("edge")
            ]
            assert all(np.array_equal(a, b) for a, b in zip(copies, again, strict=True))
    with trainer(5, **how) as one:
        one.fit(data(20), epochs=1, batch_size=4, progress=False)  # one step
        one.save(path)
        assert one.step == 1
        rest = one.fit(data(), epochs=1, batch_size=4, progress=False).weights_sha256
    with gg.Trainer.load(path) as one:
        assert one.fit(data(), epochs=1, batch_size=4, progress=False).weights_sha256 == rest


def test_copies_of_other_partners_begin_anew(tmp_path):
    path = tmp_path / "c.safetensors"
    with trainer(8) as one:
        fit(one, 2)
        one.save(path)
    for how in ({"topology": "cube"}, {"topology": "ring"}, {"rotate": True}, TWO):
        with trainer(8, **how) as one, pytest.warns(UserWarning, match="other settings"):
            one.fit(data(4 * 40 * 8), epochs=3, batch_size=4, progress=False, resume=path)
            check_copies(one, edges(8, **how))


@pytest.mark.filterwarnings("ignore:.*nothing is trained")
@pytest.mark.parametrize("how", [{"permutations": 3}, {"permutations": None}, {"seed": 5}], ids=str)
def test_copies_for_other_permutations_begin_anew(how, tmp_path):
    """Also where only the seed differs, which draws them: its partners are others."""
    path = tmp_path / "c.safetensors"
    two = {"topology": "cube", **TWO}
    with trainer(8, **two) as one:
        fit(one, 2)
        one.save(path)
    with trainer(8, **two | how) as one, pytest.warns(UserWarning, match="other settings.*(permutations|seed)"):
        one.fit(data(), epochs=2, batch_size=4, progress=False, resume=path)
        copies = [name for name, kind in one.core.exchange.arenas().items() if kind == "copy"]
        assert len(copies) >= 5
        assert not any(flat(one.core.exchange.arena(name, rank)).any() for name in copies for rank in range(8))
    with trainer(8, **two | how) as one, pytest.warns(UserWarning, match="other settings"):
        one.fit(data(4 * 40 * 8), epochs=3, batch_size=4, progress=False, resume=path)
        check_copies(one, edges(8, **two | how))


def test_copies_of_weights_that_were_loaded_begin_anew():
    """One rank alone gets other weights: its partners are sent all of them."""
    with trainer(4, lr=0.0) as one:
        fit(one, 1)
        other = {key: array + 1 for key, array in one.core.exchange.arena("weight", 2).items()}
        one.core.exchange.load_arena("weight", other, 2)
        mean = weights(one).mean(axis=0)
        one.fit(data(32), epochs=1, batch_size=4, progress=False)  # both stages
        np.testing.assert_allclose(weights(one).mean(axis=0), mean, rtol=0, atol=1e-5)
        check_copies(one, edges(4, False))
        apart = np.abs(weights(one) - mean).max()
        one.fit(data(4 * 40 * 4), epochs=1, batch_size=4, progress=False)
        np.testing.assert_allclose(weights(one).mean(axis=0), mean, rtol=0, atol=1e-5)
        assert np.abs(weights(one) - mean).max() < apart / 4


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"push_sum": True}, ["push_sum=True", "allowed: False"]),
        ({"staleness": 1}, ["staleness=1", "allowed: 0"]),
        ({"exchange": "weights+momentum"}, ["exchange='weights+momentum'", "'weights'"]),
        ({"exchange": "gradients"}, ["exchange='gradients'", "'weights'"]),
        ({"hierarchical": True}, ["hierarchical=True", "allowed: False"]),
        ({"slices": 4}, ["slices=4", "allowed: None"]),
        ({"wire_dtype": "bfloat16"}, ["wire_dtype='bfloat16'", "allowed: 'float32'"]),
        ({"compression": gg.AdaComp(selection="cyclic")}, ["selection='cyclic'", "allowed: 'local'"]),
        ({"compression": None, "mix_gamma": 0.1}, ["mix_gamma=0.1", "only with compression"]),
        ({"p": 34, "rotate": True}, ["a rank of 34 has 33 partners", "allowed are 32", "rotate False"]),
        ({"p": 34, "topology": "random"}, ["a rank of 34 has 33 partners", "which change"]),
        (
            {"p": 64, "rotate": True, "permutations": 5},
            ["a rank of 64 has 33 or more partners", "which change", "are 32"],
        ),
        (
            {"p": 64, "rotate": True, "permutations": 2**31 - 1},
            ["or more partners", "permutations R has at most R times"],
        ),
        ({"p": 4, "permutations": 2}, ["permutations=2 with rotate=False", "allowed: None"]),
    ],
    ids=str,
)
def test_what_it_does_not_go_with(how, words):
    with pytest.raises(ValueError) as caught:
        trainer(**how)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("value", [0, -0.1, 0.6, float("nan"), "much"])
def test_the_share_of_a_mix_is_checked(value):
    with pytest.raises((TypeError, ValueError), match="mix_gamma="):
        gg.GossipGraD(mix_gamma=value)


@pytest.mark.parametrize(
    ("p", "how", "copies"),
    [(2, {}, 1), (5, {}, 4), (8, {}, 5), (8, {"topology": "cube"}, 3), (8, {"rotate": True}, 7),
     (8, {"topology": "ring"}, 2), (17, {"topology": "random"}, 16), (1, {}, 0), (8, TWO, 7), (1, TWO, 0), (2, TWO, 1),
     (8, {"topology": "cube", **TWO}, 5), (8, {"topology": "cube", "rotate": True, "permutations": 1}, 3),
     (5, {"topology": "ring", **TWO}, 4), (8, {"topology": "ring", **TWO}, 4), (32, TWO, 17),
     (40, {"topology": "cube", **TWO}, 11), (64, {"topology": "ring", **TWO}, 4)],
)  # fmt: skip
def test_the_memory_of_copies_is_said(p, how, copies, recwarn, monkeypatch):
    monkeypatch.setattr(notices, "MUCH_MEMORY", 0 if copies else 1)
    with trainer(p, **how) as one:
        kinds = list(one.core.exchange.arenas().values())
        assert kinds.count("copy") == copies and "residue" not in kinds
    said = [str(w.message) for w in recwarn if "takes the memory of" in str(w.message)]
    assert len(said) == (copies > 0)
    assert not said or f"the memory of {copies} model" in said[0]


def test_a_network_of_small_tensors_has_no_copies():
    """Where nothing is compressed it is gossip of weights as without."""
    with trainer(4, compression=gg.AdaComp(dense_below=10**6)) as one:
        assert "copy" not in one.core.exchange.arenas().values()
        small = fit(one, 1).weights_sha256
    with trainer(4, compression=None) as one:
        assert fit(one, 1).weights_sha256 == small


TURNS = ({"rotate": False}, {"rotate": True}, {"topology": "cube", **TWO})


@pytest.mark.full
def test_the_bits_of_mpi(mpirun):
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import gossipgrad as gg\nimport test_gossip_edges as t\n"
        "for how in t.TURNS:\n"
        "    for size in (1, 1 << 20):\n"
        "        strategy = gg.GossipGraD(**how, bucket_bytes=size)\n"
        "        one = gg.Trainer(t.small_net(), optimizer=gg.SGD(lr=0.05, momentum=0.9), strategy=strategy,\n"
        "                         compression=t.SMALL, seed=4)\n"
        "        history = t.fit(one, 2)\n"
        "        if one.rank == 0: print(size, *history.weights_sha256)\n"
        "        one.close()\n"
    )
    found = [
        mpirun(4, text, env={"GOSSIPGRAD_SHARED": shared, "GOSSIPGRAD_CHECK_BUFFERS": "1"}).stdout.split()
        for shared in "10"
    ]
    virtual = []
    for how in TURNS:
        for size in (1, 1 << 20):
            with trainer(4, **how, bucket_bytes=size) as one:
                virtual += [str(size), *fit(one, 2).weights_sha256]
    assert found[0] == found[1] == virtual
