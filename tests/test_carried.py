"""Tokens, heads with a class a position, and state that layers carry from batch to batch, on one and several ranks."""

import gc
import json
import sys

import numpy as np
import pytest
from conftest import ROOT, run_group

import gossipgrad as gg
from gossipgrad import _core

WORDS, HIDDEN = 7, 5
STRATEGIES = {
    "gossip": gg.GossipGraD(),
    "late": gg.GossipGraD(staleness=1, bucket_bytes=1),
    "allreduce": gg.AllReduce(),
    "overlapped": gg.OverlappedAveraging(bucket_bytes=1),
    "periodic": gg.PeriodicAllReduce(period=2),
    "elastic": gg.ElasticAveraging(period=2),
    "noloco": gg.NoLoCo(period=2, delay=1),
}


def network(length, stateful):
    """Two inputs, tokens and numbers; two heads, the next token at each position and a number of the sequence."""
    tokens, facts = gg.Input((length,), dtype="int32", name="tokens"), gg.Input((3,), name="facts")
    rows = gg.LSTM(HIDDEN, layers=2, stateful=stateful, name="rnn")(gg.Embedding(WORDS, 4, name="table")(tokens))
    rows = gg.LSTM(3, stateful=stateful, name="above")(rows)
    joined = gg.Concat()(gg.Flatten()(rows), facts)
    ends = {"next": gg.Linear(WORDS, name="next")(rows), "size": gg.Linear(1, name=f"size{length}")(joined)}
    return gg.Model([tokens, facts], ends, loss_weights={"size": 0.5})


LOSSES = {"next": gg.CrossEntropy(ignore_index=-1), "size": "mean_squared_error"}


def batch(seed, n, length):
    random = np.random.default_rng(seed)
    following = random.integers(-1, WORDS, (n, length))
    x = {"tokens": random.integers(WORDS, size=(n, length)), "facts": random.standard_normal((n, 3), np.float32)}
    return x, {"next": following, "size": random.standard_normal((n, 1), np.float32)}


def steps(name, comm=None, count=5):
    """Weights and losses after steps on batches of other sizes on each rank."""
    trainer = gg.Trainer(network(4, True), loss=LOSSES, strategy=STRATEGIES[name], comm=comm, seed=3)
    ranks = range(trainer.size) if comm else [trainer.rank]
    losses = []
    for step in range(count):
        pairs = [batch(100 * step + rank, 3 + rank + 16 * (step == 2), 4) for rank in ranks]
        x, y = [one for one, _ in pairs], [one for _, one in pairs]
        found = trainer.train_step(x, y) if comm else [trainer.train_step(x[0], y[0])]
        losses.append(found)
    found = trainer.weights_sha256()
    state = [trainer.core.carried(local)["above"].tobytes().hex()[:64] for local in range(trainer.team.local)]
    if not comm:
        parts = [json.loads(one) for one in trainer.gather(json.dumps([losses, state]).encode())]
        losses = [[part[0][step][0] for part in parts] for step in range(count)]
        state = [part[1][0] for part in parts]
    trainer.close()
    return [found, losses, state]


@pytest.mark.full
def test_mpi_gives_the_bits_of_the_virtual_cluster(mpirun):
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import json\nimport gossipgrad as gg\nimport test_carried\n"
        "comm = gg.VirtualCluster(3) if len(sys.argv) > 1 else None\n"
        "found = {name: test_carried.steps(name, comm) for name in test_carried.STRATEGIES}\n"
        "if comm or gg.Trainer(test_carried.network(4, True)).rank == 0: print(json.dumps(found))\n"
    )
    alone = run_group([sys.executable, "-c", script, "virtual"])
    assert alone.returncode == 0, alone.stderr
    found, wanted = (json.loads(one.stdout.strip().splitlines()[-1]) for one in (mpirun(3, script), alone))
    assert found == wanted
    assert len(set(found["allreduce"][0])) == 1 < len({json.dumps(one[0]) for one in found.values()})


def still(net, **options):
    """A trainer whose weights do not change."""
    return gg.Trainer(net, loss=LOSSES, optimizer=gg.SGD(lr=0.0), strategy=gg.AllReduce(), **options)


def losses_of_next(trainer, x, y):
    """Of the head `next` alone."""
    whole = trainer.train_step(x, y)
    size = trainer.train_step(x, y | {"next": np.full_like(y["next"], -1)})  # nothing counts there
    return whole - size


@pytest.mark.parametrize("n", [1, 6])
def test_two_batches_are_one_sequence(n):
    """The loss of the second half, begun with the state of the first, is that of the second half of the whole."""
    x, y = batch(1, n, 8)
    y["next"] = np.abs(y["next"])  # every position counts
    whole = still(network(8, False))
    halves = still(network(4, True))
    weights = whole.weights()
    halves.load_weights(halves.weights() | {key: value for key, value in weights.items() if "size" not in key})
    parts = []
    for half in (slice(0, 4), slice(4, 8)):
        xs, ys = x | {"tokens": x["tokens"][:, half]}, y | {"next": y["next"][:, half]}
        before = halves.core.carried()
        parts.append(halves.train_step(xs, ys))
        after = halves.core.carried()
        halves.core.load_carried(before, 0)
        parts[-1] -= halves.train_step(xs, ys | {"next": np.full_like(ys["next"], -1)})
        halves.core.load_carried(after, 0)
    assert losses_of_next(whole, x, y) == pytest.approx(sum(parts) / 2, rel=1e-5)
    halves.reset_state()
    xs, ys = x | {"tokens": x["tokens"][:, 4:]}, y | {"next": y["next"][:, 4:]}
    assert losses_of_next(halves, xs, ys) != pytest.approx(parts[1], rel=1e-5)


def test_state_is_saved_and_follows_its_row(tmp_path):
    trainer = gg.Trainer(network(4, True), loss=LOSSES, comm=gg.VirtualCluster(2))
    trainer.train_step(*([one[i] for one in (batch(1, 5, 4), batch(2, 3, 4))] for i in (0, 1)))
    trainer.save(tmp_path / "carried")
    again = gg.Trainer.load(tmp_path / "carried")
    for rank in range(2):
        state = trainer.core.carried(rank)["rnn"]
        assert np.array_equal(again.core.carried(rank)["rnn"], state)
        assert np.array_equal(again.core.carried(rank)["above"], trainer.core.carried(rank)["above"])
        assert state.shape == (16, 4 * HIDDEN) and state[:3].any(axis=1).all() and not state[5:].any()
    pairs = [batch(3, 20, 4), batch(4, 3, 4)]  # more rows than before
    found = [one.train_step([x for x, _ in pairs], [y for _, y in pairs]) for one in (trainer, again)]
    assert found[0] == found[1] and trainer.weights_sha256() == again.weights_sha256()
    again = gg.Trainer.load(tmp_path / "carried")
    again.reset_state()
    assert again.train_step([x for x, _ in pairs], [y for _, y in pairs]) != found[0]


def test_evaluation_begins_at_zero_and_leaves_nothing():
    trainer = still(network(4, True))
    x, y = batch(1, 6, 4)
    before = trainer.predict(x)
    trainer.train_step(x, y)
    state = trainer.core.carried()["rnn"]
    after = trainer.predict(x)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert np.array_equal(trainer.core.carried()["rnn"], state) and state.any()


def test_tokens_are_checked():
    trainer = still(network(4, True))
    x, y = batch(1, 2, 4)
    for wrong, text in [
        (x | {"tokens": x["tokens"].astype(np.float32)}, r"x\['tokens'\]: dtype float32; wanted whole numbers"),
        (x | {"tokens": x["tokens"][:, :3]}, r"x\['tokens'\]: shape \(2, 3\), but the network wants \(n, 4\)"),
        (x | {"tokens": x["tokens"] - WORDS}, r"x\['tokens'\]: -\d+ to -\d+; allowed: numbers from 0"),
        (x | {"tokens": x["tokens"] + WORDS}, r"token \d+; the network has tokens 0 to 6"),
        (x | {"facts": x["facts"][:1]}, r"x\['facts'\] has 1 samples, x\['tokens'\] 2"),
        ({"tokens": x["tokens"]}, "x: no 'facts'; allowed: tokens, facts"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            trainer.train_step(wrong, y)


@pytest.mark.full
def test_a_warm_epoch_allocates_nothing_and_nothing_is_left():
    gc.collect()
    before = _core.memory()[0]
    x, y = batch(1, 30, 4)  # 30 samples in batches of 8: the last one has 6
    trainer = gg.Trainer(network(4, True), loss=LOSSES, comm=gg.VirtualCluster(2), strategy=gg.AllReduce())
    trainer.fit(x, y, epochs=1, batch_size=8, progress=False)
    steps = trainer.step
    trainer.core.epoch(1)
    warm = _core.memory()[1]
    assert trainer.core.run(steps) == steps
    assert _core.memory()[1] == warm
    trainer.close()
    del trainer  # and with it the network
    gc.collect()
    assert _core.memory()[0] == before
