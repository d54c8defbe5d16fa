"""Stragglers, slow networks and virtual time: what they cost, by hand, and that they repeat themselves."""

import json
import re
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core, cli

STRAGGLER = 5  # the purpose of its random numbers
BYTES = 896  # of one_layer's weights in a message: 210 of them, in whole cache lines


def one_layer():
    return gg.Sequential([gg.Linear(10)], input=(20,), name="one layer")


def fit(strategy, comm, samples=40, net=None, epochs=1, **options):
    data = np.random.default_rng(0).standard_normal((samples, 20)).astype(np.float32), np.arange(samples) % 10
    with gg.Trainer(net or one_layer(), strategy=strategy, comm=comm, **options) as trainer:
        return trainer.fit(data, epochs=epochs, batch_size=2, progress=False)


def late(seed, rank, steps, probability):
    """In how many of the first steps a rank comes late."""
    return sum(float(_core.random_uniform(seed, STRAGGLER, rank, t, 1)[0]) < probability for t in range(steps))


# ---- computing


def test_compute_time_is_that_of_a_step():
    """Whatever the batch: the last one of some ranks is ragged."""
    record = fit(gg.NoExchange(), gg.VirtualCluster(3, compute_time=0.5), samples=23).last
    assert record["steps"] == 4 and record["virtual_seconds"] == pytest.approx(2.0)
    assert record["exposed_communication_seconds"] == 0


def test_compute_time_of_each_rank():
    record = fit(gg.NoExchange(), gg.VirtualCluster(4, compute_time=[0.1, 0.2, 0.3, 1.0])).last
    assert record["steps"] == 5
    assert record["compute_seconds"] == pytest.approx(5 * 0.4) and record["compute_seconds_max"] == pytest.approx(5.0)
    twice = fit(gg.NoExchange(), gg.VirtualCluster(4, compute_rate=2.0, compute_time=0.1)).last
    assert twice["virtual_seconds"] == pytest.approx(1.0)


def test_compute_time_is_spread_by_flops():
    """The exchange of a layer is hidden by the layers before it."""
    layers = [gg.Linear(20), gg.Linear(200), gg.Linear(10)]
    comm = gg.VirtualCluster(2, compute_time=3.0, latency=0.1)
    net = gg.Sequential(layers, input=(20,), name="three")
    record = fit(gg.GossipGraD(bucket_bytes=1), comm, net=net, samples=8).last
    flops = np.array([20 * 20, 20 * 200, 200 * 10]) / (20 * 20 + 20 * 200 + 200 * 10)
    # Sent last and needed first, the first layer's is waited for; the next hides behind the first's backward pass.
    assert 2.0 * flops[0] > 0.1 and record["virtual_seconds"] == pytest.approx(2 * (3.0 + 0.1))


# ---- messages


def test_a_message_takes_latency_and_its_bytes():
    """One layer cannot hide its exchange: every step waits for it."""
    comm = gg.VirtualCluster(2, compute_time=1.0, latency=0.25, bandwidth=BYTES / 0.5)
    record = fit(gg.GossipGraD(exchange="weights"), comm).last
    assert record["messages_sent"] == 2 * record["steps"] and record["bytes_sent"] == BYTES * record["messages_sent"]
    assert record["virtual_seconds"] == pytest.approx(record["steps"] * (1.0 + 0.25 + 0.5))
    assert record["exposed_communication_seconds"] == pytest.approx(record["steps"] * 0.75)


def test_network_of_the_trainer_is_that_of_the_cluster():
    strategy, links = gg.GossipGraD(), {"latency": 0.01, "bandwidth": 1e5}
    inside = fit(strategy, gg.VirtualCluster(3, **links))
    outside = fit(strategy, gg.VirtualCluster(3), network=gg.Network(**links))
    assert inside.last["virtual_seconds"] == outside.last["virtual_seconds"]
    assert inside.settings == outside.settings and inside.settings["bandwidth"] == 1e5


# ---- stragglers


@pytest.mark.parametrize("seed", [None, 9])
def test_draws_of_stragglers(seed):
    """Counted by the virtual clock: an hour each time, and nothing else takes any."""
    straggler = gg.Straggler(probability=0.3, delay=3600.0)
    comm = gg.VirtualCluster(3, compute_time=0.0, straggler=straggler, seed=seed)
    records = fit(gg.NoExchange(), comm, samples=1200, epochs=2, seed=4).epochs
    counts = [late(4 if seed is None else seed, rank, 400, 0.3) for rank in range(3)]
    assert sum(r["compute_seconds"] for r in records) * 3 == pytest.approx(3600 * sum(counts))
    assert sum(counts) == pytest.approx(3 * 400 * 0.3, rel=0.15) and len(set(counts)) > 1


def test_who_waits_for_stragglers():
    comms = [gg.VirtualCluster(4, compute_time=t) for t in (1.0, [1.0, 1.0, 1.0, 3.0])]
    for strategy, grows in ((gg.AllReduce(), True), (gg.NoExchange(), False)):
        even, uneven = (fit(strategy, comm).last for comm in comms)
        assert even["virtual_seconds"] == pytest.approx(5.0) and uneven["virtual_seconds"] == pytest.approx(15.0)
        waits = uneven["exposed_communication_seconds"]
        assert waits == pytest.approx(3 * 10.0 / 4 if grows else 0.0)


def test_the_same_clocks_again():
    """Also where messages meet on a link and ranks are late; the wall clock cuts nothing."""

    def run():
        comm = gg.VirtualCluster(5, 1e-3, 1e6, straggler=gg.Straggler(0.2, 0.05), compute_time=0.01, seed=1)
        history = fit(gg.GossipGraD(staleness=1), comm, samples=203, epochs=2)
        keys = ("virtual_seconds", "exposed_communication_seconds", "compute_seconds_max", "train_loss")
        return [[record[key] for key in keys] for record in history.epochs], history.weights_sha256

    assert run() == run()


# ---- under MPI


UNDER_MPI = """
import sys, json, numpy as np, gossipgrad as gg
sys.path[:0] = ["tests"]
import test_circumstances as t
late = gg.Straggler(1.0, 0.02)
slow = gg.Network(latency=0.02, bandwidth=t.BYTES / 0.01)
found = []
for options in ({}, {"straggler": late}, {"network": slow}):
    history = t.fit(gg.GossipGraD(exchange="weights"), None, **options)
    exposed, computed = history.last["exposed_communication_seconds"], history.last["compute_seconds"]
    found.append([history.weights_sha256, history.last["seconds"], exposed, history.last["bytes_sent"], computed])
if gg.Trainer(t.one_layer()).rank == 0: print(json.dumps(found))
"""


@pytest.mark.full
def test_slow_under_mpi(mpirun):
    """Real time is spent, and not a bit changes."""
    plain, late, slow = json.loads(mpirun(3, UNDER_MPI).stdout.strip().splitlines()[-1])
    twin = fit(gg.GossipGraD(exchange="weights"), gg.VirtualCluster(3))
    steps = twin.last["steps"]
    assert plain[0] == late[0] == slow[0] == twin.weights_sha256
    assert plain[3] == slow[3] == twin.last["bytes_sent"]
    assert late[1] >= 0.02 * steps
    # The last step's message goes on under the end of the epoch. What a slow machine computes meanwhile is not exposed.
    assert slow[2] > 0 and slow[2] + slow[4] >= (0.02 + 0.01) * (steps - 1)


# ---- the run of a virtual cluster


class Interrupt(gg.Callback):
    def __init__(self):
        self.steps = None

    def on_progress(self, trainer, progress):
        if self.steps is None and progress.step > 0:
            self.steps = progress.step
            raise KeyboardInterrupt
        assert progress.step <= progress.steps


def test_an_interrupt_leaves_the_ranks_at_one_step():
    data = np.zeros((60000, 20), np.float32), np.zeros(60000, np.int64)
    trainer = gg.Trainer(one_layer(), comm=gg.VirtualCluster(3))
    interrupt = Interrupt()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, batch_size=1, callbacks=[interrupt], progress=False)
    assert interrupt.steps <= trainer.step < 20000
    before = trainer.step
    assert trainer.consensus_distance() < 1
    trainer.fit((data[0][:30], data[1][:30]), batch_size=10, progress=False)
    assert trainer.step == before + 1


def test_a_failing_rank_is_named_once():
    data = np.zeros((60, 20), np.float32), np.zeros(60, np.int64)
    trainer = gg.Trainer(one_layer(), comm=gg.VirtualCluster(3, latency=10.0), timeout=1.0)
    with pytest.raises(gg.CommunicationError) as caught:
        trainer.fit(data, batch_size=5, progress=False)
    rank = re.match(r"rank (\d): step 1, ", str(caught.value)).group(1)
    assert str(caught.value).count(f"rank {rank}: ") == 1


# ---- the command line, and what cannot be


def test_options_of_the_command_line(tmp_path):
    path = tmp_path / "report.json"
    words = "train --model mlp --dataset synthetic --batch-size 16 --virtual-ranks 2 --epochs 1 --quiet"
    words += " --straggler-probability 0.5 --straggler-delay 2 --latency 0.5 --bandwidth 1e6 --compute-time 0.25"
    assert cli.main([*words.split(), "--report", str(path)]) == 0
    report = gg.History.read(path)
    late_steps = [late(0, rank, report.last["steps"], 0.5) for rank in range(2)]
    assert report.last["compute_seconds"] == pytest.approx(0.25 * report.last["steps"] + sum(late_steps))
    expected = {"straggler_probability": 0.5, "straggler_delay": 2.0, "latency": 0.5, "bandwidth": 1e6}
    assert {key: report.settings[key] for key in expected} == expected
    again = gg.VirtualCluster.from_settings(report.settings["virtual_cluster"])
    assert again.straggler == gg.Straggler(0.5, 2.0) and again.compute_time == 0.25


def test_ranks_behind_links_are_several_machines(tmp_path):
    """So "auto" exchanges weights alone, as it does there; a cluster without a network is one machine."""
    train, _ = gg.data.synthetic((4,), 3, 60, 8)

    def run(exchange, network=None, **cluster):
        net = gg.Sequential([gg.Linear(3)], input=(4,))
        comm = gg.VirtualCluster(3, **cluster)
        trainer = gg.Trainer(net, strategy=gg.GossipGraD(exchange=exchange), comm=comm, network=network)
        history = trainer.fit(train, batch_size=5, progress=False)
        assert history.settings["exchange"] == exchange
        return history.settings["exchange_used"], history.weights_sha256, history["bytes_sent"]

    ideal, weights, both = run("auto"), run("weights"), run("weights+momentum")
    assert ideal == both and weights[2] < both[2]
    for slow in ({"latency": 1e-3}, {"bandwidth": 1e6}, {"network": gg.Network(latency=1e-3)}):
        assert run("auto", **slow) == weights
    assert run("auto", network=gg.Network()) == ideal


def test_data_are_checked_before_replicas_are_made(monkeypatch, capsys):
    monkeypatch.setattr("gossipgrad.cli.train.Trainer", None)
    assert cli.main("train --virtual-ranks 4096 --batch-size 64".split()) == 1
    assert "batch_size=64: the smallest shard has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gg.Straggler(1.5, 1), ["probability=1.5", "<= 1"]),
        (lambda: gg.Straggler(0.5, -1), ["delay=-1", ">= 0"]),
        (lambda: gg.Network(latency=-1), ["latency=-1"]),
        (lambda: gg.Network(bandwidth=float("inf")), ["bandwidth=inf"]),
        (lambda: gg.VirtualCluster(3, compute_time=-1), ["compute_time=-1"]),
        (lambda: gg.VirtualCluster(3, compute_time=[1, 2]), ["compute_time=[1, 2]", "3, one a rank"]),
        (lambda: gg.VirtualCluster(2, compute_time=[1, float("nan")]), ["compute_time[1]=nan"]),
        (lambda: gg.VirtualCluster(2, straggler=0.5), ["straggler=0.5", "gossipgrad.Straggler"]),
        (lambda: gg.VirtualCluster(2, seed=-1), ["seed=-1"]),
        (lambda: gg.Trainer(one_layer(), network=3), ["network=3", "gossipgrad.Network"]),
        (
            lambda: gg.Trainer(one_layer(), comm=gg.VirtualCluster(2, latency=1.0), network=gg.Network(2.0)),
            ["network=", "one of both"],
        ),
        (
            lambda: gg.Trainer(
                one_layer(),
                comm=gg.VirtualCluster(2, straggler=gg.Straggler(0, 0)),
                straggler=gg.Straggler(0, 0),
            ),
            ["straggler=", "one of both"],
        ),
    ],
)
def test_what_cannot_be(make, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--virtual-ranks 2 --straggler-probability 0.5", "--straggler-probability"),
        ("--compute-time 1", "goes with --virtual-ranks"),
        ("--virtual-ranks 2 --compute-time -1", "compute_time=-1"),
        ("--latency -1", "latency=-1"),
    ],
)
def test_what_the_command_line_refuses(words, what, capsys):
    assert cli.main(["train", "--dataset", "synthetic", "--quiet", *words.split()]) == 2
    assert what in capsys.readouterr().err


def test_one_rank_has_no_messages_to_delay():
    def told(**options):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gg.Trainer(one_layer(), **options).close()
        return [str(one.message).split(":")[0] for one in found]

    slow = gg.Network(latency=1.0)
    assert told(network=slow) == ["network=Network(latency=1.0, bandwidth=0.0)"]
    assert told(timeout=2.0) == ["timeout=2.0"]
    assert told() == told(timeout=0) == told(straggler=gg.Straggler(0.5, 0.0)) == []
    assert told(comm=gg.VirtualCluster(1), network=slow, timeout=2.0) == []


# ---- the processes and cores of this machine


def test_more_threads_than_cpus_are_warned_of(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3})
    with pytest.warns(UserWarning, match=r"^threads=2: this process may use 1 CPU, .* at most 1 is faster$"):
        gg.Trainer(one_layer(), strategy=gg.NoExchange(), threads=2).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gg.Trainer(one_layer(), strategy=gg.NoExchange(), threads=1).close()


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_several_processes_has_a_virtual_cluster_of_its_own(rank, monkeypatch):
    monkeypatch.setattr("gossipgrad.launch.failure.launched_size", lambda: 2)
    monkeypatch.setattr("gossipgrad.launch.failure.launched_rank", lambda: rank)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gg.Trainer(one_layer(), comm=gg.VirtualCluster(3)).close()
    texts = [str(one.message) for one in found]
    told = rank == 0 and not _core.info()["mpi"]["initialised"]  # by another test in this process
    assert len(texts) == (1 if told else 0), texts
    assert all(text.startswith("comm=VirtualCluster(3): each of the 2 processes") for text in texts)
