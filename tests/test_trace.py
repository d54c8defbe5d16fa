"""The event trace: complete, in order, on one clock, and its waits are the exposed seconds."""

import json
import os
from collections import defaultdict

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import small_net
from test_strategies import FORMS

import gossipgrad as gg

LAYERS = ["conv", "fc1", "fc2"]
STEPS, EPOCHS = 4, 2
# Those that wait within a step when the network is slow; after them, every strategy with its defaults.
WAITING = [
    gg.GossipGraD(bucket_bytes=1),
    gg.GossipGraD(staleness=1, bucket_bytes=1, chunk_bytes=200),
    gg.GossipGraD(exchange="gradients"),
    gg.AllReduce(),
    gg.LayerwiseAllReduce(bucket_bytes=1, chunk_bytes=200),
    gg.PeriodicAllReduce(period=2),
    gg.ElasticAveraging(synchronous=True, period=2),
    gg.OverlappedAveraging(partition_fc=True),
]
ALL = WAITING + [made() for made in gg.strategies.BY_NAME.values()]


def fit(comm, strategy, trace=100_000):
    """Four steps an epoch, two epochs; shards are uneven and the last batch is ragged."""
    trainer = gg.Trainer(small_net(), strategy=strategy, comm=comm, trace=trace)
    n = 19 * trainer.size - 1
    x = np.random.default_rng(0).standard_normal((n, 1, 8, 8)).astype(np.float32)
    history = trainer.fit((x, np.arange(n) % 4), epochs=EPOCHS, batch_size=5, progress=False)
    return trainer, history


def cluster(p=3):
    """A network about as slow as the computing."""
    return gg.VirtualCluster(p, latency=1e-6, bandwidth=1e9)


@pytest.mark.core(16)
@pytest.mark.parametrize("strategy", ALL, ids=lambda one: f"{one.name}-{ALL.index(one)}")
@pytest.mark.parametrize("p", [2, 3, 5])
def test_exposed_seconds_are_the_waits_that_the_lanes_show(strategy, p):
    trainer, history = fit(cluster(p), strategy)
    waits = [sum(s[1] - s[0] for s in trainer.core.exchange.spans(r) if s[2] == "wait" and s[4] == 0) for r in range(p)]
    exposed = sum(history["exposed_communication_seconds"])
    assert sum(waits) / p == pytest.approx(exposed, rel=1e-9)
    assert exposed > 0 or strategy not in WAITING
    one = max(history["exposed_communication_seconds_max"])
    assert one <= max(waits) * (1 + 1e-9)


def test_data_seconds_are_the_lane_of_data():
    """Waiting for samples that move from rank to rank is no exposed exchange; virtual clocks show nothing else."""
    slow = gg.VirtualCluster(3, latency=0.1)
    trainer, history = fit(slow, gg.GossipGraD(exchange="weights", shuffle_samples=True))
    lanes = [[s for s in trainer.core.exchange.spans(r) if s[4] == 2] for r in range(3)]
    assert {s[2] for lane in lanes for s in lane} == {"batch", "settle", "wait", "samples"}
    for names in ({"batch", "settle"}, {"wait"}):
        total = sum(s[1] - s[0] for lane in lanes for s in lane if s[2] in names)
        assert total > 0 and total / 3 == pytest.approx(sum(history["data_wait_seconds"]), rel=1e-9)
    for lane in lanes:
        outer = [s for s in lane if s[2] in ("batch", "settle")]
        for wait in (s for s in lane if s[2] == "wait"):
            assert any(o[0] <= wait[0] and wait[1] <= o[1] and o[3] == wait[3] for o in outer)


def write(tmp_path, strategy, comm=None):
    trainer, history = fit(comm, strategy)
    trainer.write_trace(tmp_path / "t.json")
    return trainer, history


def check(path, ranks, buckets, streams):
    """What the file of a run of GossipGraD has to show, whichever the transport."""
    document = json.loads(path.read_text())
    assert document["otherData"]["spans_lost"] == [0] * ranks
    events = document["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lanes == {(r, i): n for r in range(ranks) for i, n in enumerate(("compute", "exchange", "data"))}
    flights = {}
    for rank in range(ranks):
        own = [e for e in events if e["pid"] == rank and e["ph"] != "M"]
        assert min(e["ts"] for e in own) >= 0
        spans = [e for e in own if e["ph"] == "X"]
        check_compute([e for e in spans if e["tid"] == 0])
        batches = [e["args"]["step"] for e in spans if e["tid"] == 2 and e["name"] == "batch"]
        assert batches == list(range(STEPS * EPOCHS))
        found = check_exchange([e for e in own if e["tid"] == 1])
        assert len(found) == STEPS * EPOCHS * len(buckets) * len(streams)
        assert {name for name, *_ in found} == {f"{s} {b}" for s in streams for b in buckets}
        flights |= {(rank, *key): times for key, times in found.items()}
    return flights


def check_compute(spans):
    """Each layer's forward, backward and update once a step, in order; spans lie in one another, or apart."""
    names = defaultdict(list)
    for e in spans:
        names[e["args"]["step"]].append(e["name"])
    assert list(names) == sorted(names) and set(names) == set(range(STEPS * EPOCHS))
    for seen in names.values():
        assert seen.count("step") == 1
        wanted = [f"forward {x}" for x in LAYERS] + [f"{w} {x}" for x in LAYERS[::-1] for w in ("backward", "update")]
        found = [n for n in seen if n.split()[-1] in LAYERS and not n.startswith("reorder")]  # its input's
        assert sorted(found) == sorted(wanted)
        assert {f"{way} {x}" for way in ("forward", "backward") for x in ("pool", "tanh1")} <= set(seen)
    for what, order in (("forward", LAYERS), ("backward", LAYERS[::-1]), ("update", LAYERS[::-1])):
        for step in names:
            mine = {e["name"]: e["ts"] for e in spans if e["args"]["step"] == step}
            times = [mine[f"{what} {layer}"] for layer in order]
            assert times == sorted(times)
    open_until = []
    for e in sorted((e for e in spans if e["dur"] > 0), key=lambda e: (e["ts"], -e["dur"])):
        end, slack = e["ts"] + e["dur"], 2e-3  # the file has microseconds: rounding
        while open_until and open_until[-1] <= e["ts"] + slack:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + slack, e
        open_until.append(end)


def check_exchange(events):
    """check_flights of buckets of layers."""
    for e in events:
        about = e.get("args")
        assert about is None or (about["layers"][0] in LAYERS and about["bytes"] % 64 == 0)
    return check_flights(events)


def check_flights(events):
    """(name, step, peer) -> (sent, arrived, used, bytes) of each; every one has its parts in order."""
    found = {}
    threads = defaultdict(list)
    for e in events:
        threads[e["id"]].append(e)
    for parts in threads.values():
        assert [e["ph"] for e in parts] == ["b", "b", "e", "b", "e", "e"]
        times = [e["ts"] for e in parts]
        assert times == sorted(times) and times[0] == times[1] and times[2] == times[3] and times[4] == times[5]
        about = parts[0]["args"]
        found[parts[0]["name"], about["step"], about["peer"]] = (times[0], times[2], times[5], about["bytes"])
    return found


def check_one_clock(flights, latency):
    """What arrived had been sent before, on the clock of the file; sender and receiver exchange at the same step."""
    for (_, name, step, peer), (_, arrived, _, size) in flights.items():
        sent = [key for key in flights if key[0] == peer and key[1:3] == (name, step)]
        assert len(sent) == 1 and flights[sent[0]][3] == size
        assert flights[sent[0]][0] + latency <= arrived + 1e-3


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_file_of_a_virtual_cluster(staleness, tmp_path):
    both = {"exchange": "weights+momentum"}
    strategy = gg.GossipGraD(staleness=staleness, bucket_bytes=1, chunk_bytes=400, **both)
    write(tmp_path, strategy, cluster(5))
    flights = check(tmp_path / "t.json", 5, LAYERS, ("weights", "momentum"))
    check_one_clock(flights, latency=1.0)
    assert list(tmp_path.iterdir()) == [tmp_path / "t.json"]


def check_samples(path, ranks, latency):
    """Of each step a batch of samples to the rank before, where it arrives after it was sent, and is placed."""
    events = json.loads(path.read_text())["traceEvents"]
    flights = {}
    for rank in range(ranks):
        found = check_flights([e for e in events if e["pid"] == rank and e["ph"] in "be" and e["tid"] == 2])
        assert sorted(found) == [("samples", t, (rank + 1) % ranks) for t in range(STEPS * EPOCHS)]
        flights |= {(rank, *key): times for key, times in found.items()}
    check_one_clock(flights, latency)
    assert len({size for *_, size in flights.values()}) == 1
    for rank in range(ranks):  # one is placed before the next is sent
        own = sorted(times for key, times in flights.items() if key[0] == rank)
        assert all(one[2] <= next[0] + 1e-3 for one, next in zip(own, own[1:], strict=False))


def test_the_file_shows_the_way_of_samples(tmp_path):
    write(tmp_path, gg.GossipGraD(shuffle_samples=True), gg.VirtualCluster(3, latency=1e-6, bandwidth=1e9))
    check_samples(tmp_path / "t.json", 3, latency=1.0)
    write(tmp_path, gg.GossipGraD(), cluster(2))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e.get("tid") == 2 and e["ph"] != "M"} == {"batch"}


@pytest.mark.full
def test_the_file_of_mpi_ranks(tmp_path, mpirun):
    head = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport pathlib, test_trace\nimport gossipgrad as gg\n"
    )
    strategy = "gg.GossipGraD(bucket_bytes=1, shuffle_samples=True)"
    call = f"trainer, history = test_trace.write(pathlib.Path({{!r}}), {strategy})\n"
    tail = (
        "waits = sum(s[1] - s[0] for s in trainer.core.exchange.spans() if s[2] == 'wait' and s[4] == 0)\n"
        "total = sum(float(x) for x in trainer.gather(repr(waits).encode())) / trainer.size\n"
        "exposed = sum(history['exposed_communication_seconds'])\n"
        "assert abs(total - exposed) <= 1e-9 * total, (total, exposed)\n"
        "data = [s for s in trainer.core.exchange.spans() if s[4] == 2]\n"
        "seconds = {n: sum(s[1] - s[0] for s in data if s[2] in n) for n in (('batch', 'settle'), ('wait',))}\n"
        "said = trainer.size * sum(history['data_wait_seconds'])\n"
        "total = sum(float(x) for x in trainer.gather(repr(seconds['batch', 'settle']).encode()))\n"
        "assert abs(total - said) <= 1e-9 * said and 0 < seconds['wait',] <= seconds['batch', 'settle'], seconds\n"
    )
    mpirun(3, head + call.format(str(tmp_path)) + tail)
    check_one_clock(check(tmp_path / "t.json", 3, LAYERS, ("weights", "momentum")), latency=0)
    check_samples(tmp_path / "t.json", 3, latency=0)


@pytest.mark.parametrize(
    ("strategy", "steps", "name"),
    [
        (gg.AllReduce(), STEPS * EPOCHS, "gradients conv to fc2"),
        (gg.LayerwiseAllReduce(), STEPS * EPOCHS, "gradients conv to fc2"),
        (gg.PeriodicAllReduce(period=2), STEPS * EPOCHS // 2, "weights conv to fc2"),
    ],
    ids=repr,
)
def test_reductions_are_of_all(strategy, steps, name, tmp_path):
    write(tmp_path, strategy, cluster(3))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    found = check_exchange([e for e in events if e["pid"] == 1 and e["ph"] != "M" and e["tid"] == 1])
    assert len(found) == steps and {key[0] for key in found} == {name} and {key[2] for key in found} == {"all"}


@pytest.mark.parametrize(("exchange", "staleness"), FORMS)
def test_no_span_is_shorter_than_the_wire_needs(staleness, exchange):
    """Of buckets whose chunks leave one after the other, while others are still on their way."""
    p, bandwidth = 2, 1e7
    net = gg.Sequential([gg.Linear(256) for _ in range(3)], input=(256,), name="shown")
    strategy = gg.GossipGraD(staleness=staleness, exchange=exchange, bucket_bytes=500_000, chunk_bytes=40_000)
    trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(p, bandwidth=bandwidth), trace=1000)
    for _ in range(4):
        trainer.train_step([np.zeros((300, 256), np.float32)] * p, [np.zeros(300, np.int64)] * p)
    trainer.settle()
    for rank in range(p):
        spans = [s for s in trainer.core.exchange.spans(rank) if s[4] == 1]
        assert len(spans) == 4 * 2 * (2 if "+" in exchange else 1)
        for begin, end, name, step, _, first, _, _, arrived, size in spans:
            assert size / bandwidth <= (arrived - begin) * (1 + 1e-9) and arrived <= end, (rank, name, step, first)
    trainer.close()


def test_a_full_ring_keeps_the_newest_and_says_so(tmp_path):
    trainer, _ = fit(cluster(2), gg.GossipGraD(), trace=40)
    assert len(trainer.core.exchange.spans(1)) == 40 and trainer.core.exchange.spans(1)[-1][3] == STEPS * EPOCHS - 1
    with pytest.warns(
        UserWarning, match=r"trace=40 spans a rank: rank \d had \d+ more; the oldest are not in .*t.json"
    ):
        trainer.write_trace(tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    lost = document["otherData"]["spans_lost"]
    whole, _ = fit(cluster(2), gg.GossipGraD())
    assert lost == [len(whole.core.exchange.spans(r)) - 40 for r in range(2)] and whole.core.exchange.spans_lost(0) == 0
    assert {e["args"]["step"] for e in document["traceEvents"] if e["ph"] == "X"} <= {
        STEPS * EPOCHS - 2,
        STEPS * EPOCHS - 1,
    }


def test_off_is_nothing(tmp_path):
    trainer, history = fit(cluster(2), gg.GossipGraD(), trace=0)
    traced, same = fit(cluster(2), gg.GossipGraD())
    assert trainer.core.exchange.spans(0) == [] and traced.core.exchange.spans(0)
    assert history.weights_sha256 == same.weights_sha256
    for key in ("bytes_sent", "messages_sent", "virtual_seconds", "exposed_communication_seconds"):
        assert history[key] == same[key]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    trainer, _ = fit(cluster(2), gg.GossipGraD())
    (tmp_path / "t").mkdir()
    with pytest.raises(OSError):
        trainer.write_trace(tmp_path / "t")
    assert os.listdir(tmp_path) == ["t"]
