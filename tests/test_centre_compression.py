"""Strategies with a centre, compressed: what is not sent is still to be sent, and nothing is lost or counted twice.

Invariants are computed in float64 from each rank's own gradients: by plain SGD a rank's training is the sum of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import assert_steady, flat, randomise, small_batches
from test_compression_strategies import SMALL, batches, sent_by, trainer_of

import gossipgrad as gg

LR = 0.03
PLAIN = gg.SGD(lr=LR)
COMPRESSIONS = {
    "strict": gg.AdaComp(**SMALL),
    "safe": gg.AdaComp(mode="safe", factor=1.5, **SMALL),
    "bfloat16": gg.AdaComp(mode="exact", **SMALL),
    "float32": gg.AdaComp(mode="exact", values="float32", factor=3.0, **SMALL | {"dense": ()}),
}
SERVED = {
    "server": gg.ParameterServer(),
    "server, seldom": gg.ParameterServer(period=3, servers=2, bucket_bytes=1),
    "elastic": gg.ElasticAveraging(synchronous=False, period=2),
    "elastic, servers": gg.ElasticAveraging(synchronous=False, period=1, servers=2, bucket_bytes=1),
}


def centre(trainer):
    return flat(trainer.consensus_weights()).astype(np.float64)


def weights(trainer):
    return np.array([flat(trainer.weights(rank)) for rank in range(trainer.workers)], np.float64)


def unsent(trainer):
    """What each worker still has to send, at rest."""
    trainer.settle()
    return np.array([flat(trainer.core.exchange.arena("residue", rank)) for rank in range(trainer.workers)], np.float64)


def trained(trainer):
    """What the last step changed on each rank, by itself."""
    return -LR * np.array(
        [flat(trainer.core.exchange.arena("gradient", rank)) for rank in range(trainer.workers)], np.float64
    )


def placements(p):
    """Servers beside workers, one or many, and dedicated ones."""
    yield from ({"servers": servers} for servers in {1, 2, p})
    yield from ({"servers": servers, "dedicated": True} for servers in {1, p - 1})


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_the_centre_and_what_is_still_to_be_sent_is_what_was_trained(p, how):
    """ParameterServer, element by element, after every step."""
    for place, period in itertools.product(placements(p), (1, 3)):
        generator = np.random.default_rng(p)
        strategy = gg.ParameterServer(period=period, bucket_bytes=1, **place)
        with trainer_of(p, strategy, COMPRESSIONS[how], optimizer=PLAIN) as trainer:
            randomise(trainer, generator)
            expected, left = centre(trainer), 0.0
            for _ in range(5):
                trainer.train_step(*batches(generator, p, "small", (5, 3, 8)))
                rest = unsent(trainer)
                expected += trained(trainer).sum(0)
                np.testing.assert_allclose(centre(trainer) + rest.sum(0), expected, rtol=1e-6, atol=1e-6)
                left = max(left, np.abs(rest).max())
            assert left > 0 or trainer.workers == trainer.strategy.servers == 1


@pytest.mark.parametrize("how", [*COMPRESSIONS, "cyclic, bfloat16", "cyclic, float32"])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_an_elastic_force_moves_both_sides_alike(p, how):
    """The centre and all weights together change by training alone; with it, by what each rank trained."""
    if how.startswith("cyclic"):
        compression = gg.AdaComp(selection="cyclic", values=how.split()[1], **SMALL)
        strategies = [gg.ElasticAveraging(period=1)]
    else:
        compression = COMPRESSIONS[how]
        served = [gg.ElasticAveraging(synchronous=False, period=2, bucket_bytes=1, **one) for one in placements(p)]
        strategies = [gg.ElasticAveraging(period=1), *served]
    for strategy in strategies:
        generator = np.random.default_rng(p)
        with trainer_of(p, strategy, compression, optimizer=PLAIN) as trainer:
            randomise(trainer, generator)
            first = centre(trainer)
            expected = first + weights(trainer).sum(0)
            for _ in range(6):
                trainer.train_step(*batches(generator, p, "small", (5, 3, 8)))
                trainer.settle()
                expected += trained(trainer).sum(0)
                np.testing.assert_allclose(centre(trainer) + weights(trainer).sum(0), expected, rtol=1e-6, atol=2e-6)
            assert np.abs(centre(trainer) - first).max() > 0


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_a_worker_sends_what_the_definition_chooses(how):
    """One worker and its server, bit for bit: G is all that is not sent, w - base, and H = factor * G."""
    compression, generator = COMPRESSIONS[how], np.random.default_rng(0)
    with trainer_of(2, gg.ParameterServer(dedicated=True), compression, optimizer=PLAIN) as trainer:
        base, bins = trainer.weights(0), compression.packed(trainer.net)
        for _ in range(5):
            trainer.train_step(*batches(generator, 2, "small", (5, 3)))
            trainer.settle()
            now, known = trainer.weights(0), trainer.core.exchange.arena("base", 0)
            there, rest = trainer.consensus_weights(), trainer.core.exchange.arena("residue", 0)
            for key, before in base.items():
                size = bins[key][1] if key in bins else 0
                sent, _ = sent_by(compression, size, 1, now[key] - before, np.zeros_like(before))
                assert np.array_equal(known[key], before + sent.reshape(before.shape)), key
                assert np.array_equal(rest[key], now[key] - known[key] if size else np.zeros_like(before))
                assert np.array_equal(there[key], known[key])  # nobody else has trained
            base = known


@pytest.mark.parametrize("how", ["strict", "float32"])
@pytest.mark.parametrize("name", SERVED)
def test_without_learning_all_agree(name, how):
    """The centre of parameter servers stays, and workers approach it; an elastic force draws both together."""
    p, generator = 3, np.random.default_rng(3)
    with trainer_of(p, SERVED[name], COMPRESSIONS[how], optimizer=gg.SGD(lr=0.0)) as trainer:
        randomise(trainer, generator)
        w, c = weights(trainer), centre(trainer)
        for _ in range(300):
            trainer.train_step(*small_batches(generator, p))
        now, there = weights(trainer), centre(trainer)
        if isinstance(trainer.strategy, gg.ElasticAveraging):
            np.testing.assert_allclose(now.sum(0) + there, w.sum(0) + c, atol=1e-5)
        else:
            assert np.array_equal(there, c)
        assert np.abs(now - there).max() < 0.05 * np.abs(w - c).max()


@pytest.mark.parametrize(
    "strategy",
    [
        gg.ElasticAveraging(period=2),
        gg.ElasticAveraging(synchronous=False, period=1, dedicated=True, alpha=0.4),
        gg.ParameterServer(dedicated=True),
    ],
    ids=repr,
)
def test_the_first_steps_send_everything(strategy):
    """While they last it is as without compression, but for rounding, and afterwards it is not.

    With one worker: whom a server answers first depends on the length of messages.
    """
    generator = np.random.default_rng(1)
    x, y = small_batches(generator, 2)
    with (
        trainer_of(2, strategy, gg.AdaComp(warmup=4, **SMALL), optimizer=PLAIN) as one,
        trainer_of(2, strategy, None, optimizer=PLAIN) as dense,
    ):
        for step in range(8):
            one.train_step(x, y)
            dense.train_step(x, y)
            alike = [
                np.allclose(centre(one), centre(dense), rtol=1e-5, atol=1e-6),
                np.allclose(weights(one), weights(dense), rtol=1e-5, atol=1e-6),
            ]
            assert all(alike) if step < 4 else step < 6 or not alike[0]


def an_epoch(strategy, compression, p=3, epochs=1, **options):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((61, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 61)
    trainer = trainer_of(p, strategy, compression, optimizer=gg.SGD(lr=LR, momentum=0.9))
    return trainer, trainer.fit(data, data, epochs=epochs, batch_size=4, progress=False, **options)


@pytest.mark.parametrize("how", ["strict", "bfloat16"])
@pytest.mark.parametrize("name", ["synchronous", *SERVED])
def test_resuming_is_never_having_stopped(name, how, tmp_path):
    """Weights, centre, bases and what is not sent; and a second run has the same bits."""
    strategy = SERVED.get(name, gg.ElasticAveraging(period=3))

    def state(trainer):
        arenas = [a for a in ("weight", "base", "residue", "momentum") if a in trainer.core.exchange.arenas()]
        return (
            trainer.weights_sha256(),
            centre(trainer).tobytes(),
            [flat(trainer.core.exchange.arena(a, rank)).tobytes() for a in arenas for rank in range(3)],
        )

    half, _ = an_epoch(strategy, COMPRESSIONS[how])
    half.save(tmp_path / "c.safetensors")
    whole, history = an_epoch(strategy, COMPRESSIONS[how], epochs=3)
    again, _ = an_epoch(strategy, COMPRESSIONS[how], epochs=3)
    assert state(again) == state(whole)
    resumed, later = an_epoch(strategy, COMPRESSIONS[how], epochs=3, resume=tmp_path / "c.safetensors")
    assert state(resumed) == state(whole)
    assert later["validation.loss"] == history["validation.loss"]
    for trainer in (half, whole, again, resumed):
        trainer.close()


def test_what_another_optimizer_leaves_behind_is_still_sent(tmp_path):
    """A checkpoint's residue is kept where its moments are not: the base is what the weights are without it."""
    strategy, compression = gg.ParameterServer(dedicated=True), COMPRESSIONS["strict"]
    trainer, _ = an_epoch(strategy, compression, p=2)
    trainer.save(tmp_path / "c.safetensors")
    rest, there = unsent(trainer), centre(trainer)
    trainer.close()
    data = np.zeros((40, 1, 8, 8), np.float32), np.zeros(40, np.int64)
    with trainer_of(2, strategy, compression, optimizer=gg.Adam(lr=0.0)) as other:
        other.fit(data, epochs=2, batch_size=1, progress=False, resume=tmp_path / "c.safetensors")
        np.testing.assert_allclose(centre(other) + unsent(other)[0], there + rest[0], rtol=1e-6, atol=1e-7)
        assert 0 < np.abs(unsent(other)).max() < 0.2 * np.abs(rest).max()


def test_weights_that_are_loaded_are_a_new_beginning():
    """They are no training: the centre is them, and does not move by how far they are from those before."""
    for strategy in SERVED.values():
        generator = np.random.default_rng(4)
        with trainer_of(3, strategy, COMPRESSIONS["bfloat16"], optimizer=PLAIN) as trainer:
            for _ in range(3):
                trainer.train_step(*small_batches(generator, 3))
            trainer.settle()
            zeros = {key: 0 * array for key, array in trainer.weights().items()}
            for rank in range(3):
                trainer.core.exchange.load_arena("residue", zeros, rank)
            loaded = {key: np.ones_like(array) for key, array in zeros.items()}
            trainer.load_weights(loaded)
            x = [np.zeros((2, 1, 8, 8), np.float32)] * 3
            trainer.train_step(x, [np.zeros(2, np.int64)] * 3)
            assert np.abs(centre(trainer) - 1).max() < 10 * LR * 3


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", [gg.ElasticAveraging(period=2), *SERVED.values()], ids=repr)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(strategy):
    assert_steady(
        lambda one: trainer_of(3, one, COMPRESSIONS["strict"] if one is strategy else None), strategy, 3, warm=3
    )


@pytest.mark.parametrize("name", ["synchronous", *SERVED])
def test_what_is_counted_is_what_travels(name):
    """All bytes but those of a few barriers and numbers; in the first epoch the bases that servers learn as well."""
    strategy = SERVED.get(name, gg.ElasticAveraging(period=1))
    trainer, history = an_epoch(strategy, COMPRESSIONS["strict"], epochs=2)
    trainer.close()
    copies = 2 if name == "synchronous" else 1  # each message goes to two other ranks
    for record in history:
        counted = record["compression"]
        assert 0 <= record["bytes_sent"] - copies * counted["packed_bytes"] <= 100
        assert counted["ratio"] == pytest.approx(counted["dense_bytes"] / counted["packed_bytes"])
    assert history.last["compression"]["ratio"] > 4


def test_a_weight_that_is_no_number_names_rank_and_layer():
    for strategy in (gg.ParameterServer(bucket_bytes=1), gg.ElasticAveraging(synchronous=False, period=1)):
        generator = np.random.default_rng(0)
        with trainer_of(3, strategy, COMPRESSIONS["strict"], optimizer=PLAIN) as trainer:
            x, y = small_batches(generator, 3)
            trainer.train_step(x, y)
            bad = trainer.weights(0)
            key = next(key for key in bad if key.startswith("fc"))
            bad[key] = np.full_like(bad[key], np.nan)
            trainer.core.exchange.load_arena("weight", bad, 0)
            with pytest.raises(FloatingPointError) as error:
                for _ in range(3):
                    trainer.train_step(x, y)
            assert "rank 0" in str(error.value) and "layers" in str(error.value)


@pytest.mark.parametrize("strategy", [gg.ParameterServer(), gg.ElasticAveraging(synchronous=False)], ids=repr)
def test_no_rank_can_choose_for_others_that_send_at_another_time(strategy):
    with pytest.raises(ValueError, match="selection='cyclic' .* allowed: 'local'"):
        trainer_of(3, strategy, gg.AdaComp(selection="cyclic", **SMALL))


@pytest.mark.full
def test_under_mpi(mpirun):
    """All ranks at once, and one worker with its server, have the bits of a virtual cluster; else nothing is lost."""
    program = f"""import sys; sys.path[:0] = [{str(ROOT / "tests")!r}]
import numpy as np
import gossipgrad as gg
from gossip_reference import small_net
from test_centre_compression import mpi_cases
for name, strategy, compression, data in mpi_cases():
    with gg.Trainer(small_net(), strategy=strategy, compression=compression, optimizer=gg.SGD(lr=0.03), seed=5) as one:
        hashes = one.fit(data, epochs=2, batch_size=4, progress=False).weights_sha256
        if one.rank == 0:
            print(name, *hashes)
"""
    done = mpirun(2, program)
    for name, strategy, compression, data in mpi_cases():
        with trainer_of(2, strategy, compression, optimizer=PLAIN) as one:
            hashes = one.fit(data, epochs=2, batch_size=4, progress=False).weights_sha256
        assert " ".join([name, *hashes]) in done.stdout, name


def mpi_cases():
    generator = np.random.default_rng(7)
    data = generator.standard_normal((37, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 37)
    for how, compression in COMPRESSIONS.items():
        yield f"elastic-{how}", gg.ElasticAveraging(period=2), compression, data
        yield f"server-{how}", gg.ParameterServer(dedicated=True, bucket_bytes=1), compression, data
