"""Training that goes on in the middle of an epoch: with batches, state and counts as if it had never stopped."""

import gc
import json

import numpy as np
import pytest
from conftest import ROOT

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.data.source import Source

COUNT, BATCH = 83, 4


class Rows(Source):
    """A set that is read, not in memory."""

    def __init__(self, x, y):
        self.x, self.targets, self.shape, self.dtype = x, y, x.shape[1:], x.dtype

    def __len__(self):
        return len(self.x)

    def read(self, rows, epoch, samples, targets):
        samples[:] = self.x[rows]


def images():
    generator = np.random.default_rng(5)
    return generator.standard_normal((COUNT, 1, 8, 8), np.float32), generator.integers(0, 3, COUNT).astype(np.int32)


def network():
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(8), gg.Dropout(0.3), gg.Linear(3)]
    return gg.Sequential(layers, input=(1, 8, 8), name="small")


def trainer_of(strategy, ranks=3, net=None, optimizer=None, comm=None, **options):
    return gg.Trainer(
        net or network(),
        loss="cross_entropy",
        optimizer=optimizer or gg.SGD(lr=0.05, momentum=0.9),
        strategy=strategy,
        comm=comm or (gg.VirtualCluster(ranks) if ranks else None),
        **options,
    )


def begun(trainer, read=False):
    """The trainer with its training set, and the steps of an epoch."""
    x, y = images()
    made = gg.Dataset(Rows(x, y)) if read else gg.Dataset(x, y)
    return trainer.core.begin(
        made.for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape), BATCH
    )


# ---- the position


@pytest.mark.parametrize("read", [False, True], ids=["memory", "source"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["still", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_epoch_goes_on_at_any_step(ranks, shuffled, read):
    """A second trainer, given the state of the first one after some steps, reads the batches that are left."""
    strategy = gg.GossipGraD(shuffle_samples=shuffled, staleness=0)
    for stop in (0, 1, 3):
        whole, first, second = (trainer_of(strategy, ranks) for _ in range(3))
        steps = [begun(one, read) for one in (whole, first, second)][0]
        for one in (whole, first):
            one.core.epoch(0)
            one.core.run(steps)
            one.core.epoch(1)
        assert whole.core.run(steps) == steps
        assert first.core.run(stop) == stop
        second.set_state(*first.state())
        second.core.epoch(1, stop)
        assert second.core.progress()["steps"] == 0
        assert second.core.run(steps) == steps  # the number of the step, not of those that this one has done
        assert second.core.progress()["steps"] == steps - stop
        assert second.weights_sha256() == whole.weights_sha256()
        for one in (whole, second):
            one.core.exchange.settle()
        assert [second.sample_ids(r).tolist() for r in range(ranks)] == [
            whole.sample_ids(r).tolist() for r in range(ranks)
        ]
        assert second.audit_samples()["ok"]
        for one in (whole, first, second):
            one.close()


def test_positions_outside_of_the_epoch_are_refused():
    trainer = trainer_of(gg.AllReduce(), 2)
    with pytest.raises(ValueError, match="step: 1; allowed in an epoch of 0 steps are 0 to 0"):
        trainer.core.epoch(0, 1)
    steps = begun(trainer)
    for wrong in (-1, steps + 1):
        with pytest.raises(ValueError, match=rf"step: {wrong}; allowed in an epoch of {steps} steps are 0 to {steps}"):
            trainer.core.epoch(0, wrong)
    trainer.core.epoch(0, steps)
    assert trainer.core.run(1) == steps and trainer.step == 0


# ---- another shape


STRATEGIES = {
    "allreduce": gg.AllReduce(),
    "layerwise": gg.LayerwiseAllReduce(bucket_bytes=1),
    "periodic": gg.PeriodicAllReduce(period=3),
    "none": gg.NoExchange(),
    "overlapped": gg.OverlappedAveraging(),
    "gossip-0": gg.GossipGraD(staleness=0),
    "gossip-1": gg.GossipGraD(staleness=1),
    "gossip-samples": gg.GossipGraD(shuffle_samples=True),
    "gossip-gradients": gg.GossipGraD(exchange="gradients"),
    "pull": gg.PullGossip(),
    "push": gg.PushGossip(),
    "push-sum": gg.PushGossip(push_sum=True),
    "elastic": gg.ElasticAveraging(),
    "server": gg.ParameterServer(),
    "diloco": gg.DiLoCo(period=3, fragments=2, delay=3, outer_momentum=0.5),
    "noloco": gg.NoLoCo(period=3, fragments=2, delay=3, outer_momentum=0.5),
}
CHANGES = [
    ("gossip-1", "overlapped"),
    ("overlapped", "layerwise"),
    ("elastic", "gossip-0"),
    ("none", "server"),
    ("periodic", "push-sum"),
    ("gossip-1", "noloco"),
    ("noloco", "diloco"),
    ("diloco", "overlapped"),
]
SAME_WITHOUT_REST = {"allreduce", "layerwise", "periodic", "none", "overlapped"}


def options_of(trainer, strategy=None):
    """The core's options of a strategy, as the trainer would have made them of it."""
    if strategy is None:
        return trainer._strategy_options(trainer.step)
    return strategy.options() | {"exchange": "weights+momentum"}


def everything(trainer):
    """All that is left of a run, for comparisons: arenas of each rank and the consensus model."""
    step, parts, consensus = trainer.state()
    return (
        step,
        [{f"{name}/{key}": a.tobytes() for name, one in part.items() for key, a in one.items()} for part in parts],
        {key: a.tobytes() for key, a in consensus.items()},
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_shape_is_no_change(name, ranks):
    """Twice in an epoch, bit for bit: a run that was settled there, or one that never stopped where that is one."""
    settled, plain, shaped = (trainer_of(STRATEGIES[name], ranks) for _ in range(3))
    runs = [one for one in (settled, plain, shaped) if one is not plain or name in SAME_WITHOUT_REST]
    steps = [begun(one) for one in (settled, plain, shaped)][0]
    summaries = []
    for one in runs:
        for epoch in range(2):
            one.core.epoch(epoch)
            for stop in (2, 5):
                one.core.run(stop - one.core.progress()["steps"])
                if one is settled:
                    one.core.exchange.settle()
                if one is shaped:
                    one.core.reshape(**({"strategy": options_of(one)} if stop == 5 else {}))
                    assert one.core.progress()["steps"] == stop
            assert one.core.run(steps) == steps
            summaries.append(one.core.end_epoch())
    assert all(everything(one) == everything(shaped) for one in runs)
    for before, after in zip(summaries[:2], summaries[-2:], strict=True):
        for key in ("steps", "samples", "train_loss", "train_accuracy", "consensus_distance", "sample_bytes_sent"):
            assert before[key] == after[key], key
        if name not in ("pull", "push", "push-sum", "elastic", "server"):
            assert before["bytes_sent"] == after["bytes_sent"] and before["messages_sent"] == after["messages_sent"]
    for one in (settled, plain, shaped):
        one.close()


@pytest.mark.parametrize("optimizer", [gg.SGD(lr=0.05, momentum=0.9), gg.Adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_another_strategy_goes_on_as_a_trainer_that_is_given_the_state(before, after, ranks, optimizer):
    first, second = (
        trainer_of(STRATEGIES[before], ranks, optimizer=optimizer),
        trainer_of(STRATEGIES[after], ranks, optimizer=optimizer),
    )
    steps = [begun(one) for one in (first, second)][0]
    first.core.epoch(0)
    first.core.run(5)
    state = first.state()
    second.set_state(*state)
    second.core.epoch(0, 5)
    first.core.reshape(strategy=options_of(second))
    assert first.core.exchange.arenas() == second.core.exchange.arenas()
    assert everything(first) == everything(second)
    for one in (first, second):
        assert one.core.run(steps) == steps
    assert everything(first) == everything(second)
    assert first.core.end_epoch()["steps"] == steps and second.core.end_epoch()["steps"] == steps - 5
    first.close(), second.close()


COMPRESSED = {
    "allreduce": gg.AllReduce(),
    "layerwise": gg.LayerwiseAllReduce(bucket_bytes=1),
    "gossip": gg.GossipGraD(topology="cube"),
    "server": gg.ParameterServer(),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_compression_has_not_sent_is_not_lost(name):
    """The residues, and the copies that edges have, are carried over; the counts of what was sent go on."""
    compression = gg.AdaComp(bin_size=5, dense_below=0)
    settled, shaped = (trainer_of(COMPRESSED[name], 2, compression=compression) for _ in range(2))
    summaries = []
    for one in (settled, shaped):
        steps = begun(one)
        one.core.epoch(0)
        one.core.run(3)
        one.core.reshape() if one is shaped else one.core.exchange.settle()
        one.core.run(steps)
        summaries.append(one.core.end_epoch())
    assert any(kind in ("residue", "copy") for kind in shaped.core.exchange.arenas().values())
    assert everything(settled) == everything(shaped)
    if name != "server":
        assert summaries[0]["compression"] == summaries[1]["compression"]
    settled.close(), shaped.close()


UNSENT = [
    ("allreduce", gg.PeriodicAllReduce(period=3), {}),  # residues of gradients, and of moved weights
    ("gossip", gg.GossipGraD(topology="ring"), {}),  # copies for other partners
    ("gossip", gg.GossipGraD(topology="cube", rotate=False), {}),
    ("gossip", gg.GossipGraD(topology="cube", permutations=2), {}),
    ("layerwise", gg.LayerwiseAllReduce(bucket_bytes=1), None),  # nobody would send the residues
    ("layerwise", gg.LayerwiseAllReduce(bucket_bytes=1), {"dense_below": 50}),
]


@pytest.mark.parametrize(("before", "after", "changes"), UNSENT)
def test_what_has_not_been_sent_is_for_those_that_it_was_made_for(before, after, changes):
    options = {"bin_size": 5, "dense_below": 0}
    trainer = trainer_of(COMPRESSED[before], 4, compression=gg.AdaComp(**options))
    other = trainer_of(after, 4, compression=None if changes is None else gg.AdaComp(**options | changes))
    steps = begun(trainer)
    trainer.core.epoch(0)
    trainer.core.run(3)
    state = everything(trainer)
    with pytest.raises(ValueError, match="compressed and not sent yet would mean something else, or be lost"):
        trainer.core.reshape(strategy=options_of(other))
    assert everything(trainer) == state
    trainer.core.reshape(strategy=options_of(trainer))
    assert everything(trainer) == state and trainer.core.run(steps) == steps
    trainer.close(), other.close()


def test_lenet_and_layers_that_carry_state():
    generator = np.random.default_rng(2)
    x, y = generator.standard_normal((40, 1, 28, 28), np.float32), generator.integers(0, 10, 40).astype(np.int32)
    tokens = generator.integers(0, 7, 81).astype(np.int32)
    ids = gg.Input((4,), dtype="int32", name="ids")
    text = gg.Model(ids, gg.Linear(7)(gg.LSTM(5, stateful=True)(gg.Embedding(7, 3)(ids))))
    words = gg.Dataset(tokens[:80].reshape(20, 4), tokens[1:].reshape(20, 4))
    sets = [(gg.models.lenet(), gg.Dataset(x, y)), (text, words)]
    for net, made in sets:
        for strategy in (gg.GossipGraD(staleness=0), gg.OverlappedAveraging()):
            found = []
            for reshapes in (False, True):
                trainer = trainer_of(strategy, 2, net=net)
                one = trainer.core
                steps = one.begin(made.for_model(net.inputs, trainer.heads, net.target_names), 3)
                one.epoch(0)
                one.run(2)
                state = one.carried()
                if reshapes:
                    one.reshape()
                assert all(np.array_equal(state[key], one.carried()[key]) for key in state)
                assert one.run(steps) == steps > 2
                found.append(everything(trainer))
                trainer.close()
            assert found[0] == found[1]


def test_between_epochs_other_ranks_may_train():
    """Dedicated servers, and samples that move, divide the set in another way: not in the middle of an epoch."""
    shapes = {"served": gg.ParameterServer(dedicated=True), "shuffled": gg.GossipGraD(shuffle_samples=True)}
    for name, strategy in shapes.items():
        plain, other = trainer_of(gg.AllReduce()), trainer_of(strategy)
        steps = begun(plain)
        plain.core.epoch(0)
        plain.core.run(2)
        before = everything(plain)
        with pytest.raises(ValueError, match=rf"reshape: after step 2 of an epoch's {steps} .*between epochs they may"):
            plain.core.reshape(strategy=options_of(other))
        assert everything(plain) == before and plain.core.run(steps) == steps
        state = plain.state()
        plain.core.reshape(strategy=options_of(other))
        begun(other)
        other.set_state(*state)
        for one in (plain, other):
            one.core.epoch(1)
            one.core.run(1000)
        assert everything(plain) == everything(other), name
        assert plain.audit_samples()["ok"]
        plain.close(), other.close()


def test_samples_of_each_ranks_own_stay_where_they_are():
    trainer = trainer_of(gg.AllReduce(), 2)
    x, y = images()
    parts = [gg.Dataset(x[:40], y[:40]), gg.Dataset(x[40:], y[40:])]
    net = trainer.net
    trainer.core.begin([one.for_network("cross_entropy", net.input_shape, net.output_shape) for one in parts], BATCH)
    before = everything(trainer)
    for strategy in (gg.GossipGraD(shuffle_samples=True), gg.ParameterServer(dedicated=True)):
        with pytest.raises(ValueError, match="every rank has brought samples of its own"):
            trainer.core.reshape(strategy=options_of(trainer, strategy))
    trainer.core.reshape(strategy=options_of(trainer, gg.GossipGraD()))
    assert everything(trainer) == before
    trainer.core.epoch(0)
    assert trainer.core.run(1000) == 11


def test_options_that_a_strategy_refuses_change_nothing():
    trainer = trainer_of(gg.AllReduce())
    steps = begun(trainer)
    trainer.core.epoch(0)
    trainer.core.run(2)
    before = everything(trainer)
    with pytest.raises(ValueError, match="period=-1"):
        trainer.core.reshape(strategy={"name": "periodic-allreduce", "period": -1})
    with pytest.raises(ValueError, match="none such"):
        trainer.core.reshape(strategy={"name": "none such"})
    assert everything(trainer) == before and trainer.core.run(steps) == steps


def test_a_trainer_that_could_not_be_reshaped_says_so():
    trainer = trainer_of(gg.AllReduce())
    begun(trainer)
    trainer.core.epoch(0)
    compression = gg.AdaComp(dense_below=0).options()
    with pytest.raises(ValueError, match="compression"):
        trainer.core.reshape(strategy=gg.PushGossip().options() | {"compression": compression})
    core = trainer.core
    reads = (
        core.exchange.arenas,
        lambda: core.exchange.arena("weight"),
        lambda: core.exchange.resume_arena("weight", [{}], None, 1),
    )
    for call in (core.progress, core.exchange.settle, core.reshape, lambda: core.run(1), *reads):
        with pytest.raises(RuntimeError, match="this trainer could not be reshaped and has no state any more"):
            call()
    assert trainer.core.partitioned_fc() == []
    trainer.close()


def test_nothing_is_left_and_clock_and_trace_go_on():
    gc.collect()
    before = _core.memory()[0]
    seconds = []
    for reshapes in (False, True):
        cluster = gg.VirtualCluster(3, compute_time=(1.0, 2.0, 3.0))
        trainer = trainer_of(gg.AllReduce(), comm=cluster, trace=100_000)
        steps = begun(trainer)
        trainer.core.epoch(0)
        trainer.core.run(2)
        spans = len(trainer.core.exchange.spans())
        if reshapes:
            trainer.core.reshape(strategy=options_of(trainer))
            assert len(trainer.core.exchange.spans()) >= spans > 0
        trainer.core.run(1)
        warm = _core.memory()[1]
        assert trainer.core.run(steps) == steps
        assert _core.memory()[1] == warm
        seconds.append(trainer.core.end_epoch()["virtual_seconds"])
        assert len(trainer.core.exchange.spans()) > 2 * spans
        trainer.close()
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01) and seconds[0] >= 3 * steps
    del trainer
    gc.collect()
    assert _core.memory()[0] == before


def changed(comm=None):
    """Weights after an epoch of three strategies, as they are on every rank. How many messages there are is tuned."""
    trainer = trainer_of(gg.GossipGraD(staleness=1), ranks=0, comm=comm)
    steps = begun(trainer)
    trainer.core.epoch(0)
    for after in ("overlapped", "layerwise", "gossip-0"):
        trainer.core.run(2)
        trainer.core.reshape(strategy=options_of(trainer, STRATEGIES[after]))
    assert trainer.core.run(steps) == steps
    counts = trainer.core.end_epoch()
    found = [trainer.weights_sha256(), counts["samples"], counts["bytes_sent"]]
    rank = trainer.rank
    trainer.close()
    return found, rank


@pytest.mark.full
def test_mpi_gives_the_bits_of_the_virtual_cluster(mpirun):
    script = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport test_reshape\n"
        "found, rank = test_reshape.changed()\nif rank == 0: print(json.dumps(found))\n"
    )
    done = mpirun(3, script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == changed(gg.VirtualCluster(3))[0]


# ---- one state where replicas are equal by construction

DIFFERING = ["gossip-1", "gossip-gradients", "none", "periodic", "push-sum", "elastic", "server"]
EQUAL = {
    "allreduce": [{}],
    "layerwise": [{"bucket_bytes": 1, "chunk_bytes": 64}, {"bucket_bytes": 1 << 20, "chunk_bytes": 1 << 20}],
    "overlapped": [
        {"bucket_bytes": 1, "chunk_bytes": 64},
        {"bucket_bytes": 300, "chunk_bytes": 256},
        {"bucket_bytes": 1 << 20, "chunk_bytes": 1 << 20},
    ],
}


@pytest.mark.parametrize("optimizer", [gg.SGD(lr=0.05, momentum=0.9), gg.Adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("before", DIFFERING)
def test_replicas_that_stay_equal_begin_from_one_state(before, optimizer):
    """Whatever pieces they exchange and own, reshaped or resumed: consensus weights, and the mean of the moments."""
    first = trainer_of(STRATEGIES[before], optimizer=optimizer)
    steps = begun(first)
    first.core.epoch(0)
    first.core.run(5)
    step, parts, consensus = first.state()
    assert len(set(first.weights_sha256())) == 3
    moments = {
        name: {key: np.mean([part[name][key] for part in parts], 0, np.float64) for key in consensus}
        for name, kind in first.core.exchange.arenas().items()
        if kind == "moment"
    }
    first.close()
    found = set()
    for after, sizes in EQUAL.items():
        for size in sizes:
            reshaped = trainer_of(STRATEGIES[before], optimizer=optimizer)
            begun(reshaped)
            reshaped.core.epoch(0)
            reshaped.core.run(5)
            reshaped.core.reshape(strategy=options_of(reshaped, STRATEGIES[after]) | size)
            loaded = trainer_of(STRATEGIES[after], optimizer=optimizer)
            loaded.core.reshape(strategy=options_of(loaded, STRATEGIES[after]) | size)
            begun(loaded)
            loaded.set_state(step, parts, consensus)
            loaded.core.epoch(0, 5)
            for one in (reshaped, loaded):
                for rank in range(3):
                    weights = one.core.exchange.arena("weight", rank)
                    assert all(np.array_equal(weights[key], consensus[key]) for key in consensus)
                    for name, mean in moments.items():
                        arrays = one.core.exchange.arena(name, rank)
                        assert all(np.allclose(arrays[key], mean[key], 1e-5, 1e-7) for key in consensus)
                assert one.core.run(steps) == steps
                found.add(tuple(one.weights_sha256()))
                one.close()
    assert len(found) == 1 and len(set(found.pop())) == 1


def test_a_checkpoint_of_gossip_resumed_by_a_strategy_whose_replicas_stay_equal(tmp_path):
    x, y = images()
    first = trainer_of(gg.GossipGraD(staleness=1))
    first.fit(x, y, epochs=1, batch_size=BATCH)
    first.save(tmp_path / "a.gg")
    assert len(set(first.weights_sha256())) == 3
    found = set()
    for size in ({}, {"bucket_bytes": 1, "chunk_bytes": 64}):
        second = trainer_of(gg.OverlappedAveraging(**size))
        second.fit(x, y, epochs=2, batch_size=BATCH, resume=tmp_path / "a.gg")
        found.add(tuple(second.weights_sha256()))
    assert len(found) == 1 and len(set(found.pop())) == 1
