"""Streams: pieces of sequences whose state goes on from batch to batch. Each counts once, with the state of its row."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.training import evaluation

LENGTH, SYMBOLS = 4, 7


class Pieces(gg.data.Source):
    """Windows of tokens that go on in each other, and which of them were read."""

    shape, dtype, values, streams = (LENGTH,), np.dtype(np.int32), SYMBOLS, True
    target_shape, target_dtype = (LENGTH,), np.dtype(np.int32)

    def __init__(self, count, seed=0):
        self.tokens = np.random.default_rng(seed).integers(0, SYMBOLS, (count, LENGTH)).astype(np.int32)
        self.read_rows = []

    def __len__(self):
        return len(self.tokens)

    def read(self, rows, epoch, samples, targets):
        self.read_rows.append((epoch, list(rows)))
        samples[:], targets[:] = self.tokens[rows], self.tokens[rows][:, ::-1]


def network(length=LENGTH):
    ids = gg.Input((length,), dtype="int32")
    return gg.Model(ids, gg.Linear(SYMBOLS)(gg.LSTM(5, stateful=True)(gg.Embedding(SYMBOLS, 3)(ids))))


def trainer(p, **options):
    how = {"comm": gg.VirtualCluster(p), "strategy": gg.AllReduce(), "optimizer": gg.SGD(lr=0.5), "tune": False}
    return gg.Trainer(network(), metrics="perplexity", seed=1, **(how | options))


def sizes_of(batches):
    return [len(one) for one in batches]


@pytest.mark.parametrize(
    ("count", "p", "batch"),
    [(100, 1, 51), (100, 1, 64), (10, 1, 10), (11, 2, 5), (9, 2, 4), (23, 3, 2), (3, 1, 1), (5, 2, 1)],
)
def test_each_window_is_trained_on_once(count, p, batch):
    """Rows go on from batch to batch, and batches do not grow. Batches of one read the last one twice at most."""
    source = Pieces(count)
    one = trainer(p)
    record = one.fit(gg.Dataset(source), epochs=1, batch_size=batch, progress=False).last
    ends = [0, *np.cumsum([count // p + (r < count % p) for r in range(p)])]
    assert record["steps"] == math.ceil(ends[1] / batch)
    for begin, end in zip(ends, ends[1:], strict=False):
        batches = [rows for epoch, rows in source.read_rows if epoch == 0 and begin <= rows[0] < end]
        seen = sorted(row for rows in batches for row in rows)
        assert sorted(set(seen)) == list(range(begin, end)) and (len(seen) == end - begin or batch == 1)
        assert len(batches) == record["steps"] and sizes_of(batches) == sorted(sizes_of(batches), reverse=True)
        for before, after in zip(batches, batches[1:], strict=False):
            assert batch == 1 or after == [row + 1 for row in before[: len(after)]]


def test_parts_of_unlike_sizes_are_read_once_too():
    sources = [Pieces(13), Pieces(4), Pieces(1)]
    one = trainer(3)
    one.fit([gg.Dataset(source) for source in sources], epochs=1, batch_size=4, progress=False, sharded=True)
    assert one.step == 4
    for source in sources:
        batches = [rows for epoch, rows in source.read_rows if epoch == 0]
        assert sorted({row for rows in batches for row in rows}) == list(range(len(source)))
        assert len(batches) == 4 and sizes_of(batches) == sorted(sizes_of(batches), reverse=True)


def unrolled(weights, tokens):
    """Mean cross entropy of one row: its windows as one long sequence, in one piece."""
    length = tokens.size
    net = network(length)
    net.load_weights(weights)
    scores = gg.Trainer(net, tune=False).predict(tokens.reshape(1, -1))[0].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return -log[np.arange(length), tokens[:, ::-1].reshape(-1)].sum()


def rows_of(count, batch):
    """The runs of windows that a rank with so many has."""
    batch = min(batch, count)
    steps = math.ceil(count / batch)
    lengths = [steps - (row >= count - batch * (steps - 1)) for row in range(batch)]
    ends = [0, *np.cumsum(lengths)]
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


@pytest.mark.parametrize(("count", "p", "batch"), [(20, 1, 3), (20, 1, 11), (20, 1, 99), (21, 2, 4), (22, 3, 1)])
@pytest.mark.parametrize("most", [3, 10**6])
def test_loss_and_metrics_are_of_long_sequences(count, p, batch, most, monkeypatch):
    """Every window once, with the state that its row has; the metrics see the same outputs, piece by piece."""
    monkeypatch.setattr(evaluation, "ROWS", most)
    source = Pieces(count)
    one = trainer(p)
    found = one.evaluate(gg.Dataset(source), batch_size=batch)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)
    total, begin = 0.0, 0
    for rank in range(p):
        own = source.tokens[begin : (begin := begin + count // p + (rank < count % p))]
        total += sum(unrolled(one.consensus_weights(), own[row]) for row in rows_of(len(own), batch))
    assert found["loss"] == pytest.approx(total / source.tokens.size, rel=1e-5)


def test_the_validation_of_fit_and_evaluate_agree():
    """In batches of the training, also after a load; another size has other rows and another loss."""
    data, validation = gg.Dataset(Pieces(40)), gg.Dataset(Pieces(30, 1))
    one = trainer(2)
    record = one.fit(data, validation=validation, epochs=2, batch_size=4, progress=False).last["validation"]
    assert record["perplexity"] == pytest.approx(math.exp(record["loss"]), rel=1e-5)
    assert one.evaluate(validation)["loss"] == record["loss"] != one.evaluate(validation, batch_size=5)["loss"]
    assert np.array_equal(one.predict(validation), one.predict(validation, batch_size=4))


def test_a_default_batch_outlives_a_checkpoint(tmp_path):
    one = trainer(1)
    one.fit(gg.Dataset(Pieces(12)), epochs=1, batch_size=3, progress=False)
    one.save(tmp_path / "c")
    validation = gg.Dataset(Pieces(9, 1))
    again = gg.Trainer.load(tmp_path / "c")
    assert again.evaluate(validation)["loss"] == one.evaluate(validation, batch_size=3)["loss"]


def test_full_batches_alone_where_they_are_asked_for():
    source = Pieces(23)
    one = trainer(1)
    record = one.fit(gg.Dataset(source), epochs=1, batch_size=5, drop_last=True, progress=False).last
    assert (record["steps"], record["samples"]) == (4, 20)
    assert [rows for epoch, rows in source.read_rows if epoch == 0] == [
        [t, 4 + t, 8 + t, 12 + t, 16 + t] for t in range(4)
    ]
