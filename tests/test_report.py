"""The report: its fields are those that are documented, and its numbers are what they say."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.history import History, flat, lookup
from gossipgrad.launch import environment

ROOT = Path(__file__).resolve().parent.parent
EPOCH = (
    "epoch seconds samples samples_per_second train_loss validation compute_seconds exposed_communication_seconds "
    "data_wait_seconds bytes_sent messages_sent exchanges_skipped bytes_per_rank_step "
    "messages_per_rank_step consensus_distance"
).split()


@pytest.fixture(scope="module")
def run():
    train, test = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,), name="tiny")
    how = {"strategy": gg.GossipGraD(exchange="weights+momentum"), "comm": gg.VirtualCluster(3, latency=1e-5)}
    trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.05, momentum=0.5), seed=3, **how)
    trainer.fit(train, test, epochs=2, batch_size=8, validate_replicas=True, progress=False)
    return trainer


def test_fields(run, tmp_path):
    run.history.write(tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    names = ["schema", "settings", "environment", "ranks", "model", "schedule", "partitioned_fc", "tuning"]
    names += ["algorithms", "graphs", "apoptosis", "views", "epochs", "time_by_rank", "weights_sha256"]
    assert list(report) == names
    facts = {"stages": 2, "diffusion_steps": 2, "meeting_steps": 2}
    assert report["schedule"] == {"topology": "dissemination", "rotate": True, **facts}
    assert report["schema"] == 1 and report["ranks"] == 3 and report["model"] == {"name": "tiny", "parameters": 83}
    for record in report["epochs"]:
        assert not set(EPOCH) - set(record) and set(record["validation"]) >= {"loss", "accuracy"}
        assert len(record["validation_replicas"]) == 3
        assert record["parameters"] == 83 and record["units"] == {"fc1": 8, "fc2": 3}
    assert History.read(tmp_path / "r.json").to_dict() == run.history.to_dict() == report
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_the_schedule_among_few_permutations():
    strategy = gg.GossipGraD(topology="cube", permutations=2, slices=3)
    net = gg.Sequential([gg.Linear(3)], input=(6,), name="tiny")
    with gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(8), seed=4) as one:
        data = np.zeros((64, 6), np.float32), np.zeros(64, np.int64)
        found = one.fit(data, batch_size=4, progress=False).to_dict()
    facts = {"stages": 9, "diffusion_steps": 9, "meeting_steps": None, "slices": 3}
    assert found["schedule"] == {"topology": "cube", "rotate": True, "permutations": 2, **facts}
    assert found["settings"]["permutations"] == 2


def test_every_field_is_documented(run):
    text = (ROOT / "docs" / "report.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text))
    for record in run.history.epochs:
        missing = {k for k in record if k.removesuffix("_max") not in documented}
        assert not missing


def test_numbers(run):
    last = run.history.last
    assert last["samples"] == 96 and last["steps"] == 4
    assert last["samples_per_second"] == pytest.approx(last["samples"] / last["seconds"])
    # 4 steps: each rank sends its weights and momentum to one partner
    assert last["bytes_sent"] >= 4 * 3 * 2 * 4 * 83 and last["messages_sent"] >= 4 * 3
    for key in ("seconds", "compute_seconds", "exposed_communication_seconds", "data_wait_seconds"):
        assert 0 <= last[key] <= last[f"{key}_max"] * (1 + 1e-9)
    weights = [run.weights(r) for r in range(3)]
    flatten = [np.concatenate([w.ravel() for w in one.values()]).astype(np.float64) for one in weights]
    mean = np.mean(flatten, axis=0)
    distance = np.mean([np.linalg.norm(w - mean) for w in flatten]) / np.linalg.norm(mean)
    assert last["consensus_distance"] == pytest.approx(distance, rel=1e-4, abs=1e-9)


def test_time_by_rank(run):
    """Its means are the sums of the epochs' records."""
    assert len(run.history.time_by_rank) == 3
    for key in ("compute_seconds", "exposed_communication_seconds", "data_wait_seconds"):
        found = [one[key] for one in run.history.time_by_rank]
        assert np.mean(found) == pytest.approx(sum(run.history[key])), key
        assert max(found) <= sum(run.history[f"{key}_max"]) * (1 + 1e-9), key


def test_hashes(run):
    for r, found in enumerate(run.history.weights_sha256):
        content = b"".join(array.astype("<f4").tobytes() for array in run.weights(r).values())
        assert hashlib.sha256(content).hexdigest() == found


def test_settings_hold_every_option(run):
    settings = run.history.settings
    wanted = {"strategy": "gossipgrad", "topology": "dissemination", "rotate": True, "staleness": 0, "epochs": 2}
    wanted |= {"lr": 0.05, "momentum": 0.5, "schedule": "constant", "seed": 3, "batch_size": 8, "virtual_ranks": 3}
    assert {key: settings[key] for key in wanted} == wanted


def test_environment_has_no_paths(run):
    text = json.dumps(run.history.environment)
    assert run.history.environment["isa"] and run.history.environment["backend"]
    assert "/usr" not in text and "/home" not in text and str(ROOT) not in text
    assert "compiler" in environment.table(environment.environment())


def test_what_is_no_number_is_null(tmp_path):
    """JSON has no NaN and no infinities; in the history they stay what they are."""
    record = {"epoch": 1, "validation": {"auc": math.nan, "loss": 2.5}, "compression": {"bins": [math.inf, 3]}}
    history = History(epochs=[record], settings={"betas": (0.5, -math.inf)})
    history.write(tmp_path / "r")
    log = gg.callbacks.JSONLLogger(tmp_path / "l")
    for text in ((tmp_path / "r").read_text(), log.line(record, True)):
        assert not re.search("nan|inf", text, re.IGNORECASE)
    wanted = {"epoch": 1, "validation": {"auc": None, "loss": 2.5}, "compression": {"bins": [None, 3]}}
    read = History.read(tmp_path / "r")
    assert json.loads(log.line(record, True)) == wanted == read.last and read.settings == {"betas": [0.5, None]}
    assert math.isnan(history["validation.auc"][0])


def test_history_access(run, tmp_path):
    assert run.history["validation.accuracy"] == [r["validation"]["accuracy"] for r in run.history]
    assert run.history["units.fc1"] == [8, 8] and {"parameters", "units.fc1"} <= set(run.record_names)
    assert lookup({"units": {"layer1.0.conv1": 5, "layer1": 3}}, "units.layer1.0.conv1") == 5
    with pytest.raises(KeyError, match="'speed' is not in an epoch's record; it has epoch"):
        run.history["speed"]
    for name, meant in {"loss": "train_loss", "val_loss": "validation.loss", "lr": "learning_rate"}.items():
        with pytest.raises(KeyError, match=f"did you mean '{meant}'"):
            run.history[name]
    assert lookup(run.history.last, "validation.loss") == flat(run.history.last)["validation.loss"]
    (tmp_path / "x").write_text("{")
    with pytest.raises(ValueError, match="no report"):
        History.read(tmp_path / "x")
    (tmp_path / "x").write_text('{"schema": 2}')
    with pytest.raises(ValueError, match="no report of schema 1"):
        History.read(tmp_path / "x")
    (tmp_path / "x").write_text('{"schema": 1, "settings": {}, "environment": {}, "target_loss": 1, "runs": []}')
    with pytest.raises(ValueError, match="x: no report of a training: it has 'target_loss', 'runs'; allowed: schema, "):
        History.read(tmp_path / "x")


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("epochs", 3, "epochs 3; allowed: a list"),
        ("epochs", [{}, 4], "epoch 4; allowed: objects"),
        ("settings", None, "settings None; allowed: an object"),
        ("ranks", "2", "ranks '2'; allowed: an integer"),
    ],
)
def test_fields_of_other_types(field, value, wanted, tmp_path):
    (tmp_path / "x").write_text(json.dumps({"schema": 1, field: value}))
    with pytest.raises(ValueError, match=f"x: no report of a training: {re.escape(wanted)}$"):
        History.read(tmp_path / "x")


def test_trace(tmp_path):
    train, _ = gg.data.synthetic((6,), 3, 96, 30)
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    trainer = gg.Trainer(net, comm=gg.VirtualCluster(2), trace=1000)
    trainer.fit(train, batch_size=8, progress=False)
    trainer.write_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0, 1} and min(e["ts"] for e in spans) == 0
    assert all(e["dur"] >= 0 for e in spans) and {e["args"]["step"] for e in spans} >= set(range(6))
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(0, "compute"), (0, "exchange"), (0, "data"), (1, "compute")} <= names


@pytest.mark.full
def test_plots(run, tmp_path):
    pytest.importorskip("matplotlib")
    for i, make in enumerate((gg.plots.loss, gg.plots.consensus, gg.plots.training)):
        make({"one": run.history, "two": run.history}, tmp_path / f"{i}.png")
        make(run.history)
        assert (tmp_path / f"{i}.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match=r"path .*x.foo: a picture of format 'foo' cannot be written; allowed: .*.png"):
        gg.plots.loss(run.history, tmp_path / "x.foo")
    figure = gg.plots.partner_schedule(8, "cube", tmp_path / "s.svg")
    assert len(figure.axes[0].texts) == 8 * 6, "an arrow a rank and step"
    assert len(gg.plots.partner_schedule(6, "cube", steps=3, rotate=False).axes[0].texts) == 6 + 4 + 4
    titles = {None: "places change after each", 1: "a cycle", 2: "places change after each, among 2"}
    for few, words in titles.items():
        drawn = gg.plots.partner_schedule(8, steps=9, permutations=few)
        assert drawn.axes[0].get_title().endswith(words) and len(drawn.axes[0].texts) == 8 * 9
    arrows = [text.xy for text in gg.plots.partner_schedule(8, steps=9, permutations=2).axes[0].texts]
    assert arrows[48:] == [(step + 6, to) for step, to in arrows[:24]]
    with pytest.raises(ValueError, match="permutations=2 with rotate=False"):
        gg.plots.partner_schedule(8, rotate=False, permutations=2)
    for topology in gg.strategies.TOPOLOGIES:
        assert len(gg.plots.partner_schedule(4, topology, steps=5).axes[0].texts) == 4 * 5
    assert len(gg.plots.partner_schedule(3, [[1, -1, 0], [0, 0, 2]]).axes[0].texts) == 2 * (2 + 1)
    with pytest.raises(ValueError, match="topology='torus'"):
        gg.plots.partner_schedule(8, "torus")
    with pytest.raises(ValueError, match="row 1, rank 0: partner 3; allowed: 0 to 2, or -1 for none"):
        gg.plots.partner_schedule(3, [[1, -1, 0], [3, 0, 2]])
