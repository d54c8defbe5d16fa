"""Buckets and chunks chosen at start: by the link as it is, the same on all ranks, and without effect on any weight."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from conftest import ROOT

import gossipgrad as gg

pytestmark = pytest.mark.filterwarnings("ignore:train. uint8")

DEFAULT = {"bucket_bytes": 1 << 20, "chunk_bytes": 2 << 20}
SLOW = {"latency": 1e-3, "bandwidth": 1e7, "compute_time": 1e-2}


def net():
    """Many layers that the default sizes join to one bucket."""
    layers = [layer for _ in range(12) for layer in (gg.Linear(64), gg.Tanh())]
    return gg.Sequential([gg.Flatten(), *layers, gg.Linear(4)], input=(1, 16, 16))


def data():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (96, 1, 16, 16), dtype=np.uint8)
    return images, generator.integers(0, 4, 96).astype(np.int32)


def run(strategy, comm=None, epochs=1, optimizer=None, **options):
    """The report, and how it was cut."""
    trainer = gg.Trainer(net(), comm=comm, strategy=strategy, optimizer=optimizer)
    history = trainer.fit(data(), epochs=epochs, batch_size=4, progress=False, **options)
    tuning = trainer.tuning
    assert history.tuning == tuning
    trainer.close()
    return history, tuning


STRATEGIES = [
    (gg.GossipGraD, {}),
    (gg.GossipGraD, {"staleness": 1, "wire_dtype": "bfloat16"}),
    (gg.GossipGraD, {"exchange": "gradients"}),
    (gg.GossipGraD, {"push_sum": True}),
    (gg.LayerwiseAllReduce, {}),
    (gg.OverlappedAveraging, {}),
    (gg.OverlappedAveraging, {"wire_dtype": "bfloat16", "overlap": False}),
]


@pytest.mark.parametrize(("kind", "options"), STRATEGIES, ids=repr)
@pytest.mark.parametrize("p", [2, 4])
def test_sizes_change_time_and_no_weight(p, kind, options):
    """On a slow link the choice is better than the default sizes, in virtual time, and gives their bits."""
    tuned, cut = run(kind(**options), gg.VirtualCluster(p, **SLOW))
    fixed, usual = run(kind(**options, **DEFAULT), gg.VirtualCluster(p, **SLOW))
    assert tuned.weights_sha256 == fixed.weights_sha256 and tuned["train_loss"] == fixed["train_loss"]
    assert tuned["bytes_sent"] == fixed["bytes_sent"]
    assert (usual["buckets"], usual["chunks"]) == (1, 1) and {k: usual[k] for k in DEFAULT} == DEFAULT
    if "staleness" in options:  # nobody waits for a bucket
        assert cut["buckets"] == 1
    else:
        assert 1 < cut["buckets"] <= 13
        gains = kind is not gg.LayerwiseAllReduce and "overlap" not in options
        assert tuned.last["virtual_seconds"] < (0.95 if gains else 1.02) * fixed.last["virtual_seconds"]


@pytest.mark.parametrize("p", [2, 3, 8])
def test_the_figures_are_those_of_the_virtual_links(p):
    for latency, bandwidth in ((0.0, 0.0), (1e-3, 0.0), (0.0, 1e8), (2.0, 1e5), (1e-5, 1e9)):
        trainer = gg.Trainer(net(), comm=gg.VirtualCluster(p, latency=latency, bandwidth=bandwidth))
        found = trainer.tuning
        small = 8 / bandwidth if bandwidth else 0.0
        assert found["latency_seconds"] == pytest.approx(latency + small, rel=1e-9, abs=1e-15)
        assert found["message_seconds"] == pytest.approx(small, rel=1e-6, abs=1e-12)
        if bandwidth:
            assert found["bytes_per_second"] == pytest.approx(bandwidth, rel=0.01)
        else:
            assert found["bytes_per_second"] is None


def fixed(record):
    return {k: v for k, v in record.items() if not k.startswith(("seconds", "samples_per_second"))}


@pytest.mark.parametrize("kind", [gg.GossipGraD, gg.LayerwiseAllReduce])
def test_measuring_leaves_no_trace_in_a_report(kind):
    """Chosen and given sizes that are equal give equal counts and virtual seconds; uneven and late ranks."""
    circumstances = SLOW | {"compute_time": [0.01, 0.02, 0.005], "straggler": gg.Straggler(0.3, 0.05)}
    tuned, cut = run(kind(), gg.VirtualCluster(3, **circumstances), epochs=2)
    again, _ = run(kind(), gg.VirtualCluster(3, **circumstances), epochs=2)
    given = {key: cut[key] for key in DEFAULT}
    assert given != DEFAULT
    told, unmeasured = run(kind(**given), gg.VirtualCluster(3, **circumstances), epochs=2)
    assert unmeasured == cut | {"latency_seconds": None, "message_seconds": None, "bytes_per_second": None}
    for other in (again, told):
        assert [fixed(record) for record in tuned] == [fixed(record) for record in other]
        assert tuned.weights_sha256 == other.weights_sha256


def test_options_fix_each():
    _, free = run(gg.GossipGraD(), gg.VirtualCluster(2, **SLOW))
    assert free["bucket_bytes"] < 1 << 20
    _, one = run(gg.GossipGraD(bucket_bytes=1 << 20), gg.VirtualCluster(2, **SLOW))
    assert one["bucket_bytes"] == 1 << 20 and one["latency_seconds"] > 0
    _, other = run(gg.GossipGraD(chunk_bytes=7000), gg.VirtualCluster(2, **SLOW))
    assert other["chunk_bytes"] == 7000 and other["bucket_bytes"] < 1 << 20


def test_who_is_not_tuned():
    """One rank, and those whose result depends on the cut: they have what they always had."""
    _, alone = run(gg.GossipGraD(), gg.VirtualCluster(1))
    assert alone["latency_seconds"] is None and {key: alone[key] for key in DEFAULT} == DEFAULT
    for size in (1, 2, 4):  # links inside a node and between nodes
        _, nodes = run(gg.GossipGraD(hierarchical=True, ranks_per_node=size), gg.VirtualCluster(4, **SLOW))
        assert nodes == alone
    for kind, options in (
        (gg.PullGossip, {"chunk_bytes": 2 << 20}),
        (gg.ParameterServer, DEFAULT),
        (gg.ElasticAveraging, DEFAULT | {"synchronous": False}),
    ):
        left = {key: value for key, value in options.items() if key not in DEFAULT}
        (open_, tuning), (told, _) = (run(kind(**o), gg.VirtualCluster(3, **SLOW)) for o in (left, options))
        assert tuning == {}
        assert fixed(open_.last) == fixed(told.last) and open_.weights_sha256 == told.weights_sha256


def test_a_timeout_is_for_training():
    """Figures of links on which a message takes longer than a rank is willing to wait."""
    trainer = gg.Trainer(net(), comm=gg.VirtualCluster(2, latency=5.0), timeout=1.0)
    assert trainer.tuning["latency_seconds"] == 5.0


def test_resuming_with_other_sizes(tmp_path):
    """A schedule's length makes the trainer anew, and a checkpoint goes to a cluster with other links."""
    optimizer = gg.SGD(lr=0.02, momentum=0.9, schedule=gg.schedules.Cosine())
    fast, slow = gg.VirtualCluster(3), gg.VirtualCluster(3, **SLOW)
    strategy = gg.GossipGraD(exchange="weights")  # what "auto" is on the slow one
    whole, _ = run(strategy, fast, epochs=2, optimizer=optimizer)

    class Stop(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.save(tmp_path / "c")
            trainer.stop = True

    _, first = run(gg.GossipGraD(), slow, epochs=2, optimizer=optimizer, callbacks=[Stop()])
    rest, second = run(gg.GossipGraD(), fast, epochs=2, optimizer=optimizer, resume=tmp_path / "c")
    assert first["buckets"] > second["buckets"]
    assert rest.weights_sha256 == whole.weights_sha256


def test_fields_are_documented():
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "report.md").read_text()))
    assert set(gg.Trainer(net(), comm=gg.VirtualCluster(2)).tuning) <= documented


UNDER_MPI = f"""
import json, sys
sys.path[:0] = [{str(ROOT / "tests")!r}]
import gossipgrad as gg
import test_tuning as t
found = {{}}
for name, network in (("as it is", None), ("slow", gg.Network(latency=0.002, bandwidth=1e8))):
    for kind in (gg.GossipGraD, gg.LayerwiseAllReduce):
        options = {{"exchange": "weights"}} if kind is gg.GossipGraD else {{}}
        trainer = gg.Trainer(t.net(), strategy=kind(**options), network=network)
        tuning = trainer.tuning
        all_ = [json.loads(one) for one in trainer.gather(json.dumps(tuning).encode())]
        assert all(one == tuning for one in all_), all_
        sizes = {{key: tuning[key] for key in t.DEFAULT}}
        history = trainer.fit(t.data(), batch_size=4, progress=False)
        again, _ = t.run(kind(**sizes, **options))
        assert all(again[key] == history[key] for key in ("bytes_sent", "messages_sent"))
        found[f"{{name}} {{kind.name}}"] = [tuning, history.weights_sha256]
if trainer.rank == 0: print(json.dumps(found))
"""


@pytest.mark.full
@pytest.mark.parametrize("environment", [{}, {"GOSSIPGRAD_RANKS_PER_NODE": "2"}], ids=repr)
def test_under_mpi(environment, mpirun):
    """All ranks have one opinion, whatever the machine does meanwhile, and the weights of the virtual cluster."""
    found = json.loads(mpirun(3, UNDER_MPI, env=environment).stdout.splitlines()[-1])
    for kind in (gg.GossipGraD, gg.LayerwiseAllReduce):
        options = {"exchange": "weights"} if kind is gg.GossipGraD else {}
        expected = run(kind(**options), gg.VirtualCluster(3))[0].weights_sha256
        (quick, ours), (slow, theirs) = (found[f"{name} {kind.name}"] for name in ("as it is", "slow"))
        assert ours == theirs == expected
        assert 0 < quick["latency_seconds"] and 0 < quick["bytes_per_second"]
        assert slow["latency_seconds"] >= 0.001 and 0 < slow["bytes_per_second"]  # as exact as a busy machine allows
