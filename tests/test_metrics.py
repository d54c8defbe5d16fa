"""Metrics on validation sets: their mathematics, that ranks change nothing, and what is refused."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.history import flat
from gossipgrad.training import evaluation

CLASSES = 7


def data(n=61, loss="cross_entropy", seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype("f4")
    if loss == "cross_entropy":
        return x, rng.integers(0, CLASSES, n)
    if loss == "binary_cross_entropy":
        return x, rng.integers(0, 2, (n, 1)).astype("f4")
    return x, rng.normal(size=(n, 3)).astype("f4")


def trainer(metrics, loss="cross_entropy", p=1, strategy=None):
    out = {"cross_entropy": CLASSES, "binary_cross_entropy": 1, "mean_squared_error": 3}[loss]
    net = gg.Sequential([gg.Linear(out)], input=(5,))
    options = {"optimizer": gg.SGD(lr=0.05), "strategy": strategy, "comm": gg.VirtualCluster(p)}
    return gg.Trainer(net, loss=loss, metrics=metrics, backend="native", **options)


def margin(outputs, targets):
    """A metric of one's own: of float64, so that the order of a plain sum would show."""
    return np.take_along_axis(outputs, targets[:, None], 1)[:, 0].astype("f8") ** 3


def share(outputs, targets):
    """Of numbers whose sum depends on the order in which they are added up."""
    return 1.0 / (targets + 3.0)


# ---------------------------------------------------------------------------------------------------- mathematics


def test_top_k_against_sorting():
    x, y = data()
    for k in (1, 2, 5, CLASSES):
        t = trainer([f"top_{k}_accuracy"])
        scores = t.predict(x)
        wanted = np.mean([y[i] in np.argsort(-scores[i], kind="stable")[:k] for i in range(len(y))])
        found = t.evaluate((x, y))
        assert math.isclose(found[f"top_{k}_accuracy"], wanted, rel_tol=1e-15)
        assert k != 1 or found["top_1_accuracy"] == found["accuracy"]
        assert k != CLASSES or found[f"top_{k}_accuracy"] == 1.0


def test_ties_and_what_is_not_finite():
    """Of equal scores the first class counts as higher, as for the accuracy; NaN is never among the highest."""
    top = gg.metrics.parse("top_2_accuracy", "cross_entropy", (3,))[0]
    scores = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, np.nan, 0]], "f4")
    assert gg.metrics.numbers(top, scores, np.array([0, 1, 2, 1])).reshape(-1).tolist() == [1, 1, 0, 0]


def test_mean_absolute_error():
    x, y = data(loss="mean_squared_error")
    t = trainer("mean_absolute_error", "mean_squared_error", p=3)
    wanted = np.abs(t.predict(x).astype("f8") - y).mean()
    assert math.isclose(t.evaluate((x, y))["mean_absolute_error"], wanted, rel_tol=1e-12)


def test_targets_have_the_shape_of_outputs_of_several_axes():
    """Of a sequence of numbers, as of one number a sample."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(13, 4, 5)).astype("f4"), rng.normal(size=(13, 4, 3)).astype("f4")
    seen = []

    def largest(outputs, targets):
        seen.append((outputs.shape, targets.shape))
        return np.abs(outputs - targets).max(axis=(1, 2))

    net = gg.Sequential([gg.Linear(3)], input=(4, 5))
    t = gg.Trainer(net, loss="mean_squared_error", metrics=["mean_absolute_error", largest], comm=gg.VirtualCluster(2))
    found, error = t.evaluate(x, y), np.abs(t.predict(x).astype("f8") - y)
    assert math.isclose(found["mean_absolute_error"], error.mean(), rel_tol=1e-6)
    assert math.isclose(found["largest"], error.max(axis=(1, 2)).mean(), rel_tol=1e-6)
    assert all(outputs == targets for outputs, targets in seen)


def test_auc_counts_pairs():
    x, y = data(loss="binary_cross_entropy")
    x = np.round(x)  # ties
    t = trainer("auc", "binary_cross_entropy", p=2)
    scores = t.predict(x).reshape(-1)
    ones, zeros = scores[y[:, 0] == 1], scores[y[:, 0] == 0]
    pairs = Fraction(
        int(2 * (ones[:, None] > zeros).sum() + (ones[:, None] == zeros).sum()), 2 * len(ones) * len(zeros)
    )
    assert t.evaluate((x, y))["auc"] == float(pairs)
    auc = gg.metrics.parse("auc", "binary_cross_entropy", (1,))[0]
    for values, wanted in [
        ([[1, 0], [2, 1]], 1.0),
        ([[2, 0], [1, 1]], 0.0),
        ([[1, 0], [1, 1]], 0.5),
        ([[1, 1], [2, 1]], math.nan),
        ([[math.nan, 0], [2, 1]], math.nan),
    ]:
        assert np.array_equal(auc.total(np.array(values, "f8")), wanted, equal_nan=True)
    with pytest.raises(ValueError, match="metrics: auc of 61 samples: targets other than 0 and 1; allowed: 0 and 1"):
        trainer("auc", "binary_cross_entropy").evaluate((x, y * 0.5))


def test_perplexity_is_exp_of_the_cross_entropy():
    x, y = data()
    found = {}
    for p in (1, 3):
        t = trainer("perplexity", p=p)
        scores = t.predict(x).astype("f8")
        loss = np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y])
        found[p] = t.evaluate((x, y))
        assert math.isclose(found[p]["perplexity"], math.exp(loss), rel_tol=1e-12)
        assert math.isclose(found[p]["perplexity"], math.exp(found[p]["loss"]), rel_tol=1e-5)
    one = gg.metrics.parse("perplexity", "cross_entropy", (2,))[0]
    scores = np.array([[1e30, -1e30], [0, 0]], "f4")  # too large for exp as they are
    assert one.total(gg.metrics.numbers(one, scores, np.array([0, 1]))) == math.exp(math.log(2) / 2)
    assert one.total(gg.metrics.numbers(one, scores[:1], np.array([1]))) == math.inf
    assert math.isnan(one.total(gg.metrics.numbers(one, scores * np.nan, np.array([1, 1]))))


@pytest.mark.parametrize("ignored", [None, -100, 3])
def test_metrics_of_positions(ignored):
    """Samples of several positions count by their positions, those that are ignored do not."""
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(6, 5, 4)).astype("f4"), rng.integers(0, 4, (6, 5))
    if ignored is not None:
        targets[rng.random((6, 5)) < 0.4] = ignored
        targets[2] = ignored  # a whole sample
    loss = gg.CrossEntropy(ignore_index=ignored)
    flat_scores, flat_targets = scores.reshape(-1, 4).astype("f8"), targets.reshape(-1)
    rows = np.flatnonzero(flat_targets != ignored) if ignored is not None else np.arange(30)
    entropy = (
        np.log(np.exp(flat_scores).sum(1)) - flat_scores[np.arange(30), np.where(flat_targets < 0, 0, flat_targets)]
    )
    top, perplexity = gg.metrics.parse(["top_2_accuracy", "perplexity"], loss, (5, 4))
    pieces = [gg.metrics.numbers(perplexity, scores[i : i + 2], targets[i : i + 2]) for i in (0, 2, 4)]
    assert math.isclose(perplexity.total(np.concatenate(pieces)), math.exp(entropy[rows].mean()), rel_tol=1e-12)
    right = [flat_targets[i] in np.argsort(-flat_scores[i])[:2] for i in rows]
    assert math.isclose(top.total(gg.metrics.numbers(top, scores, targets)), np.mean(right), rel_tol=1e-12)
    assert math.isnan(top.total(np.zeros((2, 2))))


# ------------------------------------------------------------------------------------------------ ranks and sizes


@pytest.mark.parametrize("n", [1, 2, 61])
def test_the_ranks_change_nothing(n, monkeypatch):
    """To the bit, where outputs are the same in other batches. Some ranks have no sample, some fewer calls."""
    monkeypatch.setattr(evaluation, "ROWS", 8)
    x, y = data(n)
    found = {}
    for p in (1, 2, 3, 8):
        t = trainer([margin, share, "top_3_accuracy"], p=p)
        found[p] = t.evaluate((x, y), batch_size=4)
    assert {one["share"] for one in found.values()} == {float(sum(map(Fraction, share(None, y)))) / n}
    assert len({one["top_3_accuracy"] for one in found.values()}) == 1
    wanted = np.mean(margin(t.predict(x), y))
    assert all(math.isclose(one["margin"], wanted, rel_tol=1e-4) for one in found.values())  # of other batches


@pytest.mark.parametrize("sizes", [(40, 1, 20), (1, 59, 1)])
def test_own_parts_of_the_ranks_are_the_whole_set(sizes, monkeypatch):
    """Of any sizes; weights of samples change the loss, not the metrics."""
    monkeypatch.setattr(evaluation, "ROWS", 8)
    x, y = data()
    ends = np.cumsum([0, *sizes])
    parts = [(x[a:b], y[a:b]) for a, b in zip(ends, ends[1:], strict=False)]
    t = trainer([share, "top_3_accuracy"], p=3)
    whole, own = t.evaluate((x, y)), t.evaluate(parts, sharded=True)
    weighted = t.evaluate(gg.data.Dataset(x, y, sample_weight=np.arange(61.0)))
    for name in ("share", "top_3_accuracy"):
        assert whole[name] == own[name] == weighted[name]
    assert weighted["loss"] != whole["loss"]
    record = t.fit(parts, validation=parts, sharded=True, batch_size=1, progress=False).last
    assert record["validation"]["share"] == whole["share"]


def test_metrics_in_the_history_and_for_callbacks(tmp_path, capsys):
    x, y = data()
    t = trainer({"margin": lambda o, t: margin(o, t), "own": lambda o, t: o[:, 0] > 0}, p=2)
    stop = gg.EarlyStopping("validation.margin", mode="max", patience=9)
    log = gg.CSVLogger(tmp_path / "log.csv")
    history = t.fit((x, y), (x, y), epochs=2, batch_size=8, callbacks=[stop, log], validate_replicas=True)
    assert sorted(t.record_names) == sorted(flat(history.last))
    assert history["validation.margin"][-1] == t.evaluate((x, y), batch_size=8)["margin"]
    assert stop.best == max(history["validation.margin"]) and 0 <= history.last["validation"]["own"] <= 1
    assert "validation.margin" in (tmp_path / "log.csv").read_text().splitlines()[0]
    assert ", margin " in capsys.readouterr().out and history.settings["metrics"] == ["margin", "own"]
    assert "margin" not in t.evaluate((x, y), replicas=True)[0]
    json.dumps(history.to_dict())


def test_a_centre_is_measured():
    x, y = data()
    t = trainer(margin, p=3, strategy=gg.ElasticAveraging(period=2))
    history = t.fit((x, y), (x, y), epochs=2, batch_size=8, progress=False)
    wanted = np.mean(margin(t.predict(x), y))
    assert math.isclose(history.last["validation"]["margin"], wanted, rel_tol=1e-12)


def test_a_checkpoint_has_the_named_ones(tmp_path):
    x, y = data()
    t = trainer([margin, "top_2_accuracy"])
    t.fit((x, y), batch_size=8, progress=False)
    t.save(tmp_path / "c")
    assert [one.name for one in gg.Trainer.load(tmp_path / "c").metrics] == ["top_2_accuracy"]
    again = gg.Trainer.load(tmp_path / "c", metrics=[margin], backend="native")
    found, wanted = (one.evaluate((x, y), batch_size=8)["margin"] for one in (again, t))
    assert found == wanted


def test_under_mpi_as_in_a_virtual_cluster(mpirun):
    """The same numbers, an error of one rank on both, uneven parts, and none for a rank."""
    program = """
import numpy as np, gossipgrad as gg, json
from gossipgrad.training import evaluation
evaluation.ROWS = 8
rng = np.random.default_rng(1)
x, y = rng.normal(size=(61, 5)).astype("f4"), rng.integers(0, 7, 61)
def margin(outputs, targets):
    return np.take_along_axis(outputs, targets[:, None], 1)[:, 0].astype("f8") ** 3
def first(outputs, targets):
    if (targets == y[0]).all(): raise KeyError("planted")
    return outputs[:, 0]
def run(comm, metrics):
    net = gg.Sequential([gg.Linear(7)], input=(5,))
    return gg.Trainer(net, optimizer=gg.SGD(lr=0.05), metrics=metrics, comm=comm)
both = [run(c, [margin, "top_3_accuracy"]) for c in (None, gg.VirtualCluster(2))]
found = [t.fit((x, y), (x, y), epochs=2, batch_size=4, progress=False)["validation"] for t in both]
found += [t.evaluate((x[:1], y[:1])) for t in both]
found += [t.evaluate((x[:3], y[:3]), batch_size=2) for t in both]
assert found[0] == found[1] and found[2] == found[3] and found[4] == found[5], found
t = run(None, first)
try: t.evaluate((x[:1], y[:1]))
except (KeyError, ValueError) as error: print(t.rank, type(error).__name__, error, flush=True)
assert t.evaluate((x[1:], y[1:]))["loss"] > 0
"""
    lines = sorted(line for line in mpirun(2, program).stdout.splitlines() if "planted" in line)
    assert lines == ["0 KeyError 'planted'", "1 KeyError 'rank 0: planted'"]


@pytest.mark.parametrize("loss", ["cross_entropy", "mean_squared_error"])
def test_a_function_that_writes_into_its_arrays_changes_nothing_else(loss):
    def writes(outputs, targets):
        outputs[:], targets[:] = 0, 0
        return outputs.reshape(len(outputs), -1)[:, 0]

    def mean_target(outputs, targets):
        return targets.reshape(len(targets), -1)[:, 0] + outputs[:, 0]

    x, y = data(loss=loss)
    y = np.ascontiguousarray(y, np.int32 if loss == "cross_entropy" else np.float32)  # as the core reads them
    before = y.copy()
    plain = trainer([mean_target], loss).evaluate(x, y)
    found = trainer([writes, mean_target], loss).evaluate(x, y)
    assert found["mean_target"] == plain["mean_target"] and found["writes"] == 0
    assert np.array_equal(y, before)


def test_ranks_must_measure_the_same():
    """The names are among what all ranks compare when they make a trainer."""
    facts = [trainer(one)._fingerprint(None)["metrics"] for one in (None, [margin], [margin, "top_2_accuracy"])]
    assert facts == ["", "margin", "margin, top_2_accuracy"]


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("metrics", "loss", "error", "words"),
    [
        ("top_5_acc", "cross_entropy", ValueError, "'top_5_acc': allowed: 'top_5_accuracy'.*did you mean 'top_5_acc"),
        ("top_8_accuracy", "cross_entropy", ValueError, "of 7 classes; allowed: 1..7"),
        ("accuracy", "cross_entropy", ValueError, "are measured without being named"),
        ("auc", "cross_entropy", ValueError, "allowed: with loss='binary_cross_entropy'"),
        ("mean_absolute_error", "cross_entropy", ValueError, "allowed: with loss='mean_squared_error'"),
        ("top_2_accuracy", "mean_squared_error", ValueError, "allowed: with loss='cross_entropy'"),
        ("perplexity", "binary_cross_entropy", ValueError, "allowed: with loss='cross_entropy'"),
        (lambda o, t: o, "cross_entropy", ValueError, "function called '<lambda>'; allowed: {name: function}"),
        ({"loss": margin}, "cross_entropy", ValueError, "'loss'; allowed: .*another name"),
        ({"a.b": margin}, "cross_entropy", ValueError, "'a.b'"),
        ([margin, margin], "cross_entropy", ValueError, "each name once"),
        ([5], "cross_entropy", TypeError, "metrics: 5: allowed: names, functions"),
        (5, "cross_entropy", TypeError, "metrics: 5: allowed: names, functions"),
    ],
)
def test_what_is_no_metric(metrics, loss, error, words):
    with pytest.raises(error, match=words):
        trainer(metrics, loss)


@pytest.mark.parametrize("value", [lambda o, t: 1.0, lambda o, t: o, lambda o, t: ["a"] * len(o), lambda o, t: None])
def test_what_a_function_may_give(value):
    with pytest.raises(
        ValueError, match=r"metrics: mine of \d+ samples: shape .*; allowed: numbers, of shape \(\d+,\)"
    ):
        trainer({"mine": value}, p=2).evaluate(data())
