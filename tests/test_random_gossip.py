"""Pull and push gossip: what must hold whatever arrives when, in the virtual cluster and under MPI."""

import json

import numpy as np
import pytest
from gossip_reference import assert_steady, flat, randomise, small_batches, small_net
from test_mpi import IMPORT, answers
from test_strategies import OPTIMIZERS, trainer_of

import gossipgrad as gg
from gossipgrad import _core

KINDS = [gg.PullGossip, gg.PushGossip]
STILL = gg.SGD(lr=0.0)
PARAMETERS = 265  # of small_net, in an arena of 304


def replicas(trainer):
    return np.stack([flat(trainer.weights(r)) for r in range(trainer.size)])


def zeros(p, steps):
    """Data for `steps` steps of 4 samples a rank."""
    return np.zeros((4 * p * steps, 1, 8, 8), np.float32), np.zeros(4 * p * steps, np.int64)


def fit_still(p, strategy, steps, **options):
    """Weights of all ranks before and after `steps` steps at rate 0, and the history's last record."""
    trainer = trainer_of(p, STILL, strategy, **options)
    before, _ = randomise(trainer, np.random.default_rng(p))
    history = trainer.fit(zeros(p, steps), batch_size=4, progress=False)
    return before, replicas(trainer), history.last


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_no_exchange_bit_for_bit(kind, optimizer):
    hashes = []
    for strategy in (gg.NoExchange(), kind(), kind(push_sum=True)):
        trainer = trainer_of(1, OPTIMIZERS[optimizer], strategy)
        generator = np.random.default_rng(0)
        for _ in range(5):
            trainer.train_step(*small_batches(generator, 1))
        hashes.append(trainer.weights_sha256())
    assert hashes[0] == hashes[1] == hashes[2]


@pytest.mark.parametrize("wire, cut", [("float32", None), ("float32", 64), ("bfloat16", 300)])
@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_replicas_come_together(p, kind, push_sum, wire, cut):
    before, after, last = fit_still(p, kind(push_sum=push_sum, wire_dtype=wire, chunk_bytes=cut), steps=60)
    rounding = 2**-7 if wire == "bfloat16" else 1e-5
    assert last["consensus_distance"] < 1e-3 + rounding
    assert last["exchanges_skipped"] == 0
    # Mixing is averaging: nothing leaves the range of what there was.
    assert (after >= before.min(0) - rounding).all() and (after <= before.max(0) + rounding).all()
    if push_sum:
        np.testing.assert_allclose(after.mean(0), before.mean(0), atol=2e-6)
    else:
        assert abs(after.mean(0) - before.mean(0)).max() > 1e-3


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_push_sum_keeps_the_mean_however_often_all_rest(p, kind, steps):
    trainer = trainer_of(p, STILL, kind(push_sum=True))
    before, _ = randomise(trainer, np.random.default_rng(p))
    x, y = small_batches(np.random.default_rng(0), p, sizes=(4, 1, 30))  # ranks of uneven speed
    for _ in range(4):
        for _ in range(steps):
            trainer.train_step(x, y)
        now = replicas(trainer)
        np.testing.assert_allclose(now.mean(0), before.mean(0), atol=2e-6)
    assert abs(now - before).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_that_exchange_once(kind):
    """One exchange, then rest: with two ranks who meets whom is known, and both have the mean."""
    before, after, last = fit_still(2, kind(interval=3), steps=3)
    np.testing.assert_allclose(after, np.broadcast_to(before.mean(0), after.shape), atol=1e-6)
    assert last["exchanges_skipped"] == 0


@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_the_same_bits_in_a_second_run(p, kind, push_sum):
    generator = np.random.default_rng(p)
    data = generator.standard_normal((p * 43, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, p * 43)

    def run():
        strategy = kind(push_sum=push_sum, probability=0.7, chunk_bytes=256)
        trainer = trainer_of(p, OPTIMIZERS["momentum"], strategy)
        history = trainer.fit(data, epochs=2, batch_size=8, progress=False)
        return history.weights_sha256, history["train_loss"], history["messages_sent"]

    first = run()
    assert first == run() and len(set(first[0])) == p


@pytest.mark.parametrize("cut, chunks", [(None, 1), (256, 5)])
@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [2, 3, 8])
def test_what_is_sent(p, kind, interval, cut, chunks):
    """One model an exchange with a note before it, a question before each pull; at rest one note to everybody."""
    *_, last = fit_still(p, kind(interval=interval, chunk_bytes=cut), steps=24)
    exchanges = p * 24 // interval
    notes = exchanges * (2 if kind is gg.PullGossip else 1) + p * (p - 1)
    assert last["messages_sent"] == notes + exchanges * chunks
    model = (last["bytes_sent"] - 24 * notes) / exchanges
    assert 4 * PARAMETERS <= model < 4 * PARAMETERS + 3 * 64


@pytest.mark.parametrize("kind", KINDS)
def test_probability(kind):
    p, steps = 4, 250
    *_, last = fit_still(p, kind(probability=0.3), steps)
    exchanges = (last["messages_sent"] - p * (p - 1)) / (3 if kind is gg.PullGossip else 2)
    assert abs(exchanges - 0.3 * p * steps) < 4 * (0.3 * 0.7 * p * steps) ** 0.5
    assert last["exchanges_skipped"] == 0


def test_partners_are_drawn_uniformly():
    """One marked rank, one push a rank: over many seeds each of the others has the same chance to hear of it."""
    p, trials, heard = 4, 300, np.zeros(4)
    for seed in range(trials):
        trainer = trainer_of(p, STILL, gg.PushGossip(), seed=seed)
        for r in range(p):
            trainer.core.exchange.load_arena(
                "weight", {k: np.full_like(v, r == 1) for k, v in trainer.weights(r).items()}, r
            )
        trainer.train_step(*small_batches(np.random.default_rng(0), p))
        heard += [trainer.weights(r)["fc2.bias"][0] > 0 for r in range(p)]
        trainer.close()
    assert heard[1] == trials
    assert heard[[0, 2, 3]].sum() == trials and (abs(heard[[0, 2, 3]] - trials / 3) < 4 * (trials * 2 / 9) ** 0.5).all()


@pytest.mark.core(1)
@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_step_allocates_nothing_and_nothing_is_left(kind, push_sum):
    assert_steady(lambda one: trainer_of(3, OPTIMIZERS["momentum"], one), kind(push_sum=push_sum, chunk_bytes=64), 3)


@pytest.mark.parametrize("push_sum", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_rank_holds_nobody_up(kind, push_sum, tmp_path):
    """In virtual time, rank 0 ten times slower: the others compute on, and leave out what it does not take."""
    cluster = gg.VirtualCluster(4, compute_time=[1e-2, 1e-3, 1e-3, 1e-3], latency=1e-4)
    trainer = gg.Trainer(small_net(), optimizer=STILL, strategy=kind(push_sum=push_sum), comm=cluster, trace=10000)
    before, _ = randomise(trainer, np.random.default_rng(0))
    last = trainer.fit(zeros(4, 30), batch_size=4, progress=False).last
    after = replicas(trainer)
    trainer.write_trace(tmp_path / "trace.json")
    computing = [
        event
        for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if event["ph"] == "X" and event["tid"] == 0 and event["name"] != "wait"
    ]
    for rank, seconds in enumerate([0.3, 0.03, 0.03, 0.03]):
        end = max(event["ts"] + event["dur"] for event in computing if event["pid"] == rank)
        assert end / 1e6 == pytest.approx(seconds)
    assert last["exchanges_skipped"] > 0 and last["virtual_seconds"] == pytest.approx(0.3, rel=0.01)
    if push_sum:
        np.testing.assert_allclose(after.mean(0), before.mean(0), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_half_the_bytes_by_bfloat16(kind):
    narrow, wide = (fit_still(3, kind(wire_dtype=wire), steps=40) for wire in ("bfloat16", "float32"))
    notes = 24 * (3 * 40 * (2 if kind is gg.PullGossip else 1) + 6)
    assert 2 * (narrow[2]["bytes_sent"] - notes) == wide[2]["bytes_sent"] - notes
    assert narrow[2]["consensus_distance"] < 2**-7


@pytest.mark.parametrize("kind", KINDS)
def test_more_chunks_than_can_be_told_apart(kind):
    net = gg.Sequential([gg.Linear(4000)], input=(200,), name="wide")
    with pytest.raises(ValueError, match="chunk_bytes"):
        trainer_of(2, STILL, kind(chunk_bytes=64), net=net)


@pytest.mark.parametrize("name", ["pull-gossip", "push-gossip"])
def test_the_core_checks_too(name):
    optimizer = gg.SGD(lr=0.1).options()
    for option, value in [("interval", 0), ("probability", 0.0), ("probability", float("nan")), ("chunk_bytes", 0)]:
        with pytest.raises(ValueError, match=option):
            _core.Trainer(
                small_net().graph,
                _core.Team("virtual", size=2),
                loss="cross_entropy",
                optimizer=optimizer,
                strategy={"name": name, option: value},
            )


UNEVEN = (
    """
import os, sys
if sys.argv[1] == "slow" and os.environ["OMPI_COMM_WORLD_RANK"] == "0": os.environ["GOSSIPGRAD_ISA"] = "scalar"
"""
    + IMPORT
    + """
import numpy as np
import test_random_gossip as own

def run(strategy):
    trainer = gg.Trainer(test_mpi.net(), optimizer=gg.SGD(lr=0.0), strategy=strategy, seed=1)
    generator = np.random.default_rng(trainer.rank)
    weights = {k: generator.standard_normal(v.shape).astype(np.float32) for k, v in trainer.weights().items()}
    trainer.core.exchange.load_arena("weight", weights)
    before, distance = trainer.consensus_weights(), trainer.consensus_distance()
    x, y = np.zeros((4 * trainer.size * 40, 2, 26, 26), np.float32), np.zeros(4 * trainer.size * 40, np.int64)
    last = trainer.fit((x, y), batch_size=4, progress=False).last
    after = trainer.consensus_weights()
    trained = [k for k, role in trainer.net.parameter_roles().items() if role != "statistic"]
    moved = max(float(abs(after[k] - before[k]).max()) for k in trained)
    trainer.close()
    return [last["consensus_distance"] / distance, moved, last["messages_sent"], last["exchanges_skipped"]]

for kind in own.KINDS:  # left in mid step: what is under way comes to rest first
    trainer = gg.Trainer(test_mpi.net(), strategy=kind(), seed=1)
    data = gg.data.synthetic((2, 26, 26), train=8, test=1, seed=trainer.rank)[0]
    for _ in range(3): trainer.train_step(data.samples, data.targets)
    trainer.close()

found = [run(kind(push_sum=push_sum, chunk_bytes=20000)) for kind in own.KINDS for push_sum in (False, True)]
if gg.Trainer(test_mpi.net()).rank == 0: print(json.dumps(found))
"""
)


@pytest.mark.core(1)
@pytest.mark.parametrize("speeds", ["even", "slow"])
@pytest.mark.parametrize("shared", ["1", "0"])
def test_under_mpi(shared, speeds, mpirun, tmp_path):
    """Who is how fast is not ours to say there: all end, come together, and with push_sum keep their mean."""
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    found = answers(mpirun(3, [str(script), speeds], env={"GOSSIPGRAD_SHARED": shared}))
    assert len(found) == 4
    for i, (distance, moved, messages, skipped) in enumerate(found):
        push_sum = i % 2 == 1
        assert distance < 0.9 and 0 <= skipped < 3 * 40
        if push_sum:
            assert moved < 1e-5
        else:  # 4 chunks a model, a note before it, and a question before that
            assert messages == (3 * 40 - skipped) * (6 if i < 2 else 5) + 3 * 2
