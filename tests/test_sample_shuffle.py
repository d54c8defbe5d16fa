"""The shuffle of samples: where they are, that none is lost, that training is that on the samples which are there.

Epochs and messages are looked at in tests/c/test_samples.c, MPI and resuming in test_mpi and test_checkpoint.
"""

import gc

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

pytestmark = pytest.mark.filterwarnings("ignore:train. uint8")

RANKS = [1, 2, 3, 5, 8]
SHUFFLED, STILL = gg.GossipGraD(shuffle_samples=True), gg.GossipGraD()


class Ring:
    """The definition, sample numbers a rank: rows [s, s + b) of the slots that all have go one rank down."""

    def __init__(self, count, p, batch):
        self.shards = [_core.shard(count, r, p).tolist() for r in range(p)]
        self.slots, self.batch, self.first = count // p, batch, 0

    def exchange(self):
        rows = [(self.first + i) % self.slots for i in range(self.batch)]
        sent = [[shard[row] for row in rows] for shard in self.shards]
        for r, shard in enumerate(self.shards):
            for row, sample in zip(rows, sent[(r + 1) % len(sent)], strict=True):
                shard[row] = sample
        self.first = (self.first + self.batch) % self.slots

    def batches(self, step):
        """What each rank reads in this step of an epoch in order; a slot more is visited before the last."""
        found = []
        steps = -(-max(map(len, self.shards)) // self.batch)
        for shard in self.shards:
            order = list(range(self.slots))
            if len(shard) > self.slots:
                order.insert(self.slots - 1, self.slots)
            # A rank that has nothing left for the last step keeps one back.
            begin, end = (min(i * self.batch, len(order) - 1) for i in (step, step + 1))
            slots = order[begin:] if step == steps - 1 else order[begin : max(end, begin + 1)]
            found.append([shard[slot] for slot in slots])
        return found


def case(kind, count):
    """(net, loss, samples, targets); every sample is another."""
    generator = np.random.default_rng(count)
    if kind == "images":
        net = gg.Sequential([gg.Conv2d(2, 3), gg.Flatten(), gg.Linear(4)], input=(1, 6, 6), name="images")
        samples = generator.integers(0, 256, (count, 1, 6, 6), np.uint8)
        return net, "cross_entropy", samples, generator.integers(0, 4, count)
    if kind == "table":
        net = gg.Sequential([gg.Linear(5), gg.Tanh(), gg.Linear(3)], input=(7,), name="table")
        samples = generator.standard_normal((count, 7), np.float32)
        return net, "mean_squared_error", samples, generator.standard_normal((count, 3), np.float32)
    net = gg.Sequential([gg.Linear(4), gg.ReLU(), gg.Linear(2)], input=(9,), name="text")
    return net, "cross_entropy", generator.integers(0, 128, (count, 9)), generator.integers(0, 2, count)  # int64


def trainer_of(p, strategy, net, loss="cross_entropy", **options):
    optimizer = gg.SGD(lr=0.001, momentum=0.9)
    return gg.Trainer(net, loss=loss, optimizer=optimizer, strategy=strategy, comm=gg.VirtualCluster(p), **options)


def cases(p):
    """(samples, batch): even and uneven shards, a batch of one, of all, and of what does not go into the shard."""
    return [(4 * p, 2), (5 * p + p // 2, 3), (2 * p + 1, 1), (3 * p + p - 1, 3)]


@pytest.mark.parametrize("p", RANKS)
def test_samples_are_where_they_should_be_after_every_step(p):
    for count, batch in cases(p):
        net, loss, x, y = case("images", count)
        trainer, ring = trainer_of(p, SHUFFLED, net, loss), Ring(count, p, batch)
        core = trainer.core
        steps = core.begin(gg.data.Dataset(x, y).for_network(loss, net.input_shape, net.output_shape), batch)
        for epoch in range(3):
            core.epoch(epoch)
            for _ in range(steps):
                core.run(1)
                ring.exchange()
                if p > 1:
                    assert [trainer.sample_ids(r).tolist() for r in range(p)] == ring.shards
                found = trainer.audit_samples()
                assert found["ok"] and found["samples"] == count
        trainer.close()


@pytest.mark.parametrize("kind", ["images", "table", "text"])
@pytest.mark.parametrize("p", RANKS)
def test_training_is_on_the_samples_that_are_there(p, kind):
    """Bit for bit that of a trainer without a shuffle, to which the moved samples and targets are given."""
    for count, batch in cases(p):
        net, loss, x, y = case(kind, count)
        moved, still, ring = trainer_of(p, SHUFFLED, net, loss), trainer_of(p, STILL, net, loss), Ring(count, p, batch)
        history = moved.fit((x, y), epochs=3, batch_size=batch, shuffle=False, progress=False)
        for _ in range(3):
            for step in range(history.last["steps"]):
                rows = ring.batches(step)
                still.train_step([x[r] for r in rows], [y[r] for r in rows])
                ring.exchange()
        assert history.weights_sha256 == still.weights_sha256(), (count, batch)
        moved.close(), still.close()


def test_the_order_is_shuffled_and_alike_on_all_ranks():
    """Every rank's slots hold the same samples: whatever moves, nothing changes, unless ranks visit other slots."""
    p, rows = 4, 12
    net, loss, x, y = case("images", rows)
    x, y = np.repeat(x, p, axis=0), np.repeat(y, p)
    hashes = []
    for strategy in (SHUFFLED, gg.NoExchange()):
        options = {"epochs": 2, "batch_size": 5, "progress": False}
        hashes.append(trainer_of(p, strategy, net, loss).fit((x, y), **options).weights_sha256)
    assert len(set(hashes[0])) == 1 and len(set(hashes[1])) == p
    in_order = trainer_of(p, SHUFFLED, net, loss).fit((x, y), shuffle=False, **options).weights_sha256
    assert in_order[0] != hashes[0][0]


def test_one_rank_has_nobody_to_exchange_with():
    net, loss, x, y = case("table", 10)
    found = [
        trainer_of(1, strategy, net, loss).fit((x, y), epochs=2, batch_size=4, progress=False)
        for strategy in (SHUFFLED, STILL)
    ]
    assert found[0].weights_sha256 == found[1].weights_sha256
    assert found[0].last["sample_bytes_sent"] == found[0].last["sample_messages_sent"] == 0


@pytest.mark.parametrize("p", [2, 3, 8])
def test_traffic_of_samples_is_counted_apart(p):
    count, batch = 6 * p + 1, 3
    net, loss, x, y = case("table", count)

    def record(strategy):
        return trainer_of(p, strategy, net, loss).fit((x, y), batch_size=batch, progress=False).last

    moved, still = record(SHUFFLED), record(STILL)
    for key in ("bytes_sent", "messages_sent"):
        assert moved[key] == still[key] and still[f"sample_{key}"] == 0
    assert moved["sample_messages_sent"] == p * moved["steps"]
    assert moved["sample_bytes_sent"] == p * moved["steps"] * batch * (7 * 4 + 3 * 4 + 4)  # sample, target, number


def test_a_second_fit_goes_on_and_another_set_begins_anew():
    net, loss, x, y = case("images", 23)
    options = {"batch_size": 3, "progress": False}
    whole = trainer_of(3, SHUFFLED, net, loss)
    whole.fit((x, y), epochs=3, **options)
    parts = trainer_of(3, SHUFFLED, net, loss)
    parts.fit((x, y), epochs=1, **options)
    parts.fit((x, y), epochs=2, **options)
    assert parts.weights_sha256() == whole.weights_sha256()
    ids = [parts.sample_ids(r).tolist() for r in range(3)]
    assert ids == [whole.sample_ids(r).tolist() for r in range(3)]
    _, _, x, y = case("images", 31)
    parts.fit((x, y), epochs=1, **options)
    assert parts.audit_samples()["ok"] and parts.audit_samples()["samples"] == 31


def test_left_in_mid_epoch():
    """Dropped, or begun anew, with samples under way."""
    net, loss, x, y = case("images", 26)
    data = gg.data.Dataset(x, y).for_network(loss, net.input_shape, net.output_shape)
    gc.collect()
    before = _core.memory()[0]
    trainer = trainer_of(3, SHUFFLED, net, loss)
    hashes = []
    for steps in (2, 1, 3):
        trainer.core.begin(data, 4)
        trainer.core.epoch(0)
        trainer.core.run(steps)
    for _ in range(2):
        trainer = None
        trainer = trainer_of(3, SHUFFLED, net, loss)
        trainer.core.begin(data, 4)
        trainer.core.epoch(0)
        trainer.core.run(3)
        hashes.append(trainer.weights_sha256())
    assert hashes[0] == hashes[1]
    trainer = data = None
    gc.collect()
    assert _core.memory()[0] <= before


def test_a_warm_step_allocates_nothing():
    net, loss, x, y = case("images", 100)
    trainer = trainer_of(3, SHUFFLED, net, loss)
    trainer.core.begin(gg.data.Dataset(x, y).for_network(loss, net.input_shape, net.output_shape), 4)
    made = []
    for epoch in range(3):
        trainer.core.epoch(epoch)
        before = _core.memory()[1]
        trainer.core.run(100)
        made.append(_core.memory()[1] - before)
    assert made[1:] == [0, 0]


def test_waiting_for_samples_is_waiting_for_data():
    """On the virtual clock: a slow wire makes samples late, and nobody else is charged for it."""
    net, loss, x, y = case("images", 96)

    def record(strategy):
        comm = gg.VirtualCluster(3, bandwidth=1e4)
        trainer = gg.Trainer(net, strategy=strategy, comm=comm)
        return trainer.fit((x, y), batch_size=8, progress=False).last

    still, moved = record(gg.NoExchange()), record(SHUFFLED)
    assert still["data_wait_seconds"] == 0
    # Seven of eight exchanges are waited for by a read, the eighth by the end of the epoch.
    wire = moved["steps"] * 8 * (36 + 4 + 4) / 1e4
    assert moved["data_wait_seconds"] > 0.5 * wire


def test_ranks_that_only_serve_have_no_samples():
    net, loss, x, y = case("images", 23)
    served = gg.ParameterServer(servers=1, dedicated=True)
    trainer = trainer_of(4, served, net, loss)
    trainer.fit((x, y), batch_size=4, progress=False)
    ids = [trainer.sample_ids(r).tolist() for r in range(4)]
    assert ids == [_core.shard(23, r, 3).tolist() for r in range(3)] + [[]]
    assert trainer.audit_samples()["ok"] and trainer.audit_samples()["samples"] == 23
    options = {**served.options(), "shuffle_samples": True}
    with pytest.raises(ValueError, match="shuffle_samples: allowed only where all ranks train, here 3 of 4 do"):
        _core.Trainer(net.graph, trainer.team, loss=loss, optimizer=gg.SGD(lr=0.1).options(), strategy=options)


def test_a_neighbour_that_does_not_send_is_named():
    """It is late by more than patience allows, on the virtual clock."""
    net, loss, x, y = case("images", 48)
    comm = gg.VirtualCluster(3, straggler=gg.Straggler(0.3, 100.0))
    trainer = gg.Trainer(net, loss=loss, strategy=gg.NoExchange(shuffle_samples=True), comm=comm, timeout=1.0)
    with pytest.raises(gg.CommunicationError, match=r"rank \d: .*exchange \d of samples: .*waited .* rank \d"):
        trainer.fit((x, y), batch_size=4, progress=False)


def test_errors():
    for made in (gg.GossipGraD, gg.PeriodicAllReduce, gg.NoExchange):
        with pytest.raises(TypeError, match="shuffle_samples=1"):
            made(shuffle_samples=1)
    with pytest.raises(ValueError, match="shuffle_samples: not an option of strategy='allreduce'"):
        gg.strategies.by_name("allreduce", shuffle_samples=True)
    net, *_ = case("images", 8)
    trainer = trainer_of(2, SHUFFLED, net)
    for call in (trainer.audit_samples, trainer.sample_ids):
        with pytest.raises(RuntimeError, match="no data to train on yet"):
            call()
    with pytest.raises(ValueError, match="rank=2"):
        trainer.sample_ids(2)
    rows, classes = np.zeros((20, *net.input_shape), np.float32), np.zeros(20, np.int64)
    trainer.fit((rows, classes), batch_size=5, progress=False)  # which a harmless error has not made useless
    assert trainer.audit_samples()["ok"]
