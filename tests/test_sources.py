"""Sets that a source reads: the same training as from memory, ahead of the network, with its errors."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time

import numpy as np
import pytest
from conftest import run_group

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.data.source import Source


class Arrays(Source):
    """Arrays that are read as if they were somewhere else; notes who reads what."""

    def __init__(self, x, y, targets=False, **attributes):
        self.x, self.y = x, y
        self.shape, self.dtype, self.name = x.shape[1:], x.dtype, "somewhere else"
        self.targets = y if targets else None
        self.target_shape, self.target_dtype = y.shape[1:], y.dtype
        self.calls, self.threads, self.lock = [], set(), threading.Lock()
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.x)

    def read(self, rows, epoch, samples, targets):
        with self.lock:
            self.calls.append((epoch, rows.tolist()))
            self.threads.add(threading.get_ident())
        samples[...] = self.x[rows]
        if targets is None:
            assert self.targets is not None
        else:
            targets[...] = self.y[rows]


def arrays(count, shape=(6,), classes=3, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, *shape)).astype(dtype) if dtype == np.uint8 else rng.normal(size=(count, *shape))
    return x.astype(dtype), rng.integers(0, classes, count).astype(np.int32)


def trained(train, ranks=3, batch=4, strategy=None, epochs=2, validation=None, net=None, **options):
    net = net or gg.Sequential([gg.Linear(5), gg.Tanh(), gg.Linear(3)], input=(6,))
    comm = gg.VirtualCluster(ranks)
    with gg.Trainer(net, comm=comm, strategy=strategy or gg.GossipGraD(), seed=7) as trainer:
        history = trainer.fit(train, validation=validation, epochs=epochs, batch_size=batch, progress=False, **options)
        return history.weights_sha256, history.last, trainer.audit_samples()["ok"]


@pytest.mark.parametrize("count", [37, 40])
@pytest.mark.parametrize("targets", [False, True])
def test_a_source_trains_as_memory_does(count, targets):
    """Bits do not depend on the reader or its threads; seed and epoch give the order."""
    x, y = arrays(count)
    validation = gg.Dataset(*arrays(17, seed=1))
    wanted = trained(gg.Dataset(x, y), validation=validation)
    for readers, ahead in ((1, 1), (3, 2), (2, 5)):
        source = Arrays(x, y, targets, readers=readers, ahead=ahead)
        found = trained(gg.Dataset(source), validation=gg.Dataset(Arrays(*arrays(17, seed=1))))
        assert found[0] == wanted[0]
        for key in ("train_loss", "train_accuracy", "validation"):
            assert found[1][key] == wanted[1][key], key
        assert found[2]
        assert threading.get_ident() not in source.threads
        for epoch in (0, 1):
            rows = sorted(row for at, chosen in source.calls if at == epoch for row in chosen)
            assert rows == list(range(count))


def test_parts_of_a_source():
    x, y = arrays(60)
    part = np.random.default_rng(1).permutation(60)[:41]
    assert trained(gg.Dataset(Arrays(x, y))[part])[0] == trained(gg.Dataset(x, y)[part])[0]
    assert trained(gg.Dataset(Arrays(x, y, True))[part])[0] == trained(gg.Dataset(x, y)[part])[0]


@pytest.mark.parametrize(("count", "batch"), [(36, 4), (38, 4), (38, 1), (4, 1), (5, 1)])
def test_samples_that_move_are_read_where_they_would_be(count, batch):
    """shuffle_samples without messages: the bits of the ring of shards; with batches of one some are read twice."""
    x, y = arrays(count)
    strategy = gg.GossipGraD(shuffle_samples=True)
    wanted, found = (
        trained(data, strategy=strategy, batch=batch) for data in (gg.Dataset(x, y), gg.Dataset(Arrays(x, y)))
    )
    assert found[0] == wanted[0] and found[2]
    assert wanted[1]["sample_bytes_sent"] > 0 == found[1]["sample_bytes_sent"]


def test_a_resumed_run_reads_what_it_would_have_read(tmp_path):
    x, y = arrays(37)
    path = str(tmp_path / "half")
    net = gg.Sequential([gg.Linear(5), gg.Tanh(), gg.Linear(3)], input=(6,))
    whole = trained(gg.Dataset(x, y), ranks=2, epochs=3, net=net)[0]
    with gg.Trainer(net, comm=gg.VirtualCluster(2), strategy=gg.GossipGraD(), seed=7) as trainer:
        trainer.fit(gg.Dataset(Arrays(x, y)), epochs=1, batch_size=4, progress=False)
        trainer.save(path)
    source = Arrays(x, y)
    assert trained(gg.Dataset(source), ranks=2, epochs=3, net=net, resume=path)[0] == whole
    assert {epoch for epoch, _ in source.calls} == {1, 2}


def test_pixels_have_a_scale_for_each_channel():
    x, y = arrays(23, (3, 5, 4), dtype=np.uint8)
    scale, shift = np.float32([1 / 255, 0.5, 2]), np.float32([-0.5, 0, 1])
    net = gg.Sequential([gg.Conv2d(4, 3), gg.ReLU(), gg.Flatten(), gg.Linear(3)], input=(3, 5, 4))
    plain = x * scale[:, None, None] + shift[:, None, None]
    with gg.Trainer(net, seed=1) as trainer:
        wanted = trainer.predict(plain.astype(np.float32), batch_size=8)
        for data in (gg.Dataset(x, y, scale, shift), gg.Dataset(Arrays(x, y, scale=scale, shift=shift))):
            np.testing.assert_allclose(trainer.predict(data, batch_size=8), wanted, rtol=1e-4, atol=1e-4)


class InOrder(Arrays):
    """Rows that can only be read in ascending order; counts the calls that are in it at the same time."""

    ordered = True

    def __init__(self, *arguments, **attributes):
        super().__init__(*arguments, **attributes)
        self.inside, self.most = 0, 0

    def read(self, rows, epoch, samples, targets):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.002)  # other threads run
        super().read(rows, epoch, samples, targets)
        self.inside -= 1


def test_ranks_of_a_virtual_cluster_read_an_ordered_source_one_at_a_time():
    source = InOrder(*arrays(96))
    trained(gg.Dataset(source), ranks=4)
    assert len(source.threads) == 4 and source.most == 1


# ---- what goes wrong


class BrokenError(Exception):
    pass


class Breaks(Arrays):
    def __init__(self, *arguments, at, **attributes):
        super().__init__(*arguments, **attributes)
        self.at = at

    def read(self, rows, epoch, samples, targets):
        super().read(rows, epoch, samples, targets)
        if self.at in rows and epoch >= 0:
            raise BrokenError(f"picture_{self.at}.jpg: not read")


def test_an_error_of_a_source_is_the_callers():
    """On the step that needs the sample, as it was raised; reading ahead does not bring it forward."""
    x, y = arrays(40)
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    with gg.Trainer(net, seed=7) as trainer:
        data = gg.Dataset(Breaks(x, y, at=33, ahead=4))
        with pytest.raises(BrokenError, match=r"picture_33\.jpg: not read") as caught:
            trainer.fit(data, batch_size=4, shuffle=False, progress=False)
        assert trainer.step == 8  # batches 0 to 7 came first
        if hasattr(caught.value, "__notes__"):
            assert "step 8" in "".join(caught.value.__notes__)
    with gg.Trainer(net, comm=gg.VirtualCluster(2), seed=7) as trainer, pytest.raises(BrokenError, match="picture_3"):
        trainer.fit(gg.Dataset(Breaks(x, y, at=3)), batch_size=4, progress=False)


class ToldOnceError(Exception):
    """A text that cannot be had again, as where the handler of a signal raises meanwhile."""

    told = False

    def __str__(self):
        if self.told:
            raise RuntimeError("asked for again")
        self.told = True
        return "told once"


@pytest.mark.parametrize("error", [KeyError(8), KeyError("s"), ValueError(""), ToldOnceError()], ids=repr)
def test_any_error_of_a_source_is_raised_with_its_place(error):
    """Also one whose text is in that of the place, or in that of another reader's error."""

    class Raises(Arrays):
        def read(self, rows, epoch, samples, targets):
            super().read(rows, epoch, samples, targets)
            if 33 in rows:
                raise error

    with gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)), seed=7) as trainer:
        with pytest.raises(type(error)) as caught:
            trainer.fit(gg.Dataset(Raises(*arrays(40))), batch_size=4, shuffle=False, progress=False)
        assert caught.value is error
        if hasattr(error, "__notes__"):
            assert error.__notes__ == ["step 8, samples"]


def test_a_source_fills_what_it_is_given():
    """What it returns would train on whatever the memory holds."""

    class Returns(Arrays):
        def read(self, rows, epoch, samples, targets):
            return self.x[rows], self.y[rows]

    words = r"read of a source gave a tuple; allowed: None, after samples and targets have been filled"
    with pytest.raises(TypeError, match=words):
        trained(gg.Dataset(Returns(*arrays(40))), ranks=1)


def test_signals_reach_what_a_source_starts():
    """Processes that it starts, as a decoder's or a DataLoader's workers, inherit what its thread has blocked."""
    blocked = []

    class Looks(Arrays):
        def read(self, rows, epoch, samples, targets):
            super().read(rows, epoch, samples, targets)
            blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    trained(gg.Dataset(Looks(*arrays(40), readers=2)), ranks=2)
    here = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert len(blocked) > 2 and all(one == here for one in blocked)


def test_what_a_source_reads_is_checked():
    x, y = arrays(40)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[11, 2], bad_y[12] = np.nan, 3
    for source, words in (
        (Arrays(bad_x, y), "samples: sample 11 has nan"),
        (Arrays(x, bad_y), "targets: sample 12 has class 3; allowed are 0 to 2"),
    ):
        with pytest.raises(ValueError, match=words):
            trained(gg.Dataset(source), ranks=2)


def test_scales_of_a_field():
    """A scale for samples without values is refused; scales given twice are held once."""
    for samples in ([], np.zeros((3, 0), np.float32)):
        with pytest.raises(ValueError, match="data set: "):
            _core.Dataset(samples, None, 2.0)
    x, scale = np.zeros((4, 3), np.float32), np.ones(3, np.float32)
    gc.collect()
    before = _core.memory()[0]
    for _ in range(2):
        _core.Dataset({"array": x, "scale": scale}, None, scale)
    gc.collect()
    assert _core.memory()[0] == before


SLOW_AT_ONE_PLACE = """
import sys, time
import numpy as np, gossipgrad as gg

class Slow(gg.data.Source):
    shape, dtype = (6,), np.dtype(np.float32)
    def __init__(self): self.targets = np.arange(32, dtype=np.int32) % 3
    def __len__(self): return 32
    def read(self, rows, epoch, samples, targets):
        if 20 in rows: time.sleep(2)
        samples[...] = 1

comm = gg.VirtualCluster(2) if sys.argv[1] == "virtual" else None
with gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)), comm=comm, seed=1) as trainer:
    trainer.fit(gg.Dataset(Slow()), batch_size=4, progress=False, shuffle=False)
"""


@pytest.mark.full
@pytest.mark.parametrize("comm", ["one-process", "virtual"])
def test_a_slow_source_is_named_without_mpi_too(comm):
    environment = {**os.environ, "GOSSIPGRAD_STALL_SECONDS": "0.2"}
    done = run_group([sys.executable, "-c", SLOW_AT_ONE_PLACE, comm], env=environment)
    assert done.returncode == 0 and "in Trainer.fit" in done.stderr, done.stderr
    assert "for the samples that its source reads. Waiting goes on" in done.stderr


@pytest.mark.parametrize(
    "classes, ignored, allowed",
    [
        ((3, 3), (None, -100000), False),
        ((3, 3), (-100000, None), False),
        ((3, 3), (-100000, -100000), True),
        ((3, 3), (-100000, -7), False),
        ((3, 5), (4, None), True),  # the second head has class 4
        ((5, 3), (None, 4), True),
        ((5, 3), (4, None), False),
    ],
)
def test_a_target_that_is_ignored_must_be_so_for_all_its_heads(classes, ignored, allowed):
    x, y = arrays(20)
    y[13] = next(value for value in ignored if value is not None)
    node = gg.Input((6,))
    heads = [gg.Linear(count, name=f"head{i}")(node) for i, count in enumerate(classes)]
    loss = ["cross_entropy" if value is None else gg.CrossEntropy(ignore_index=value) for value in ignored]
    with gg.Trainer(gg.Model(node, heads, targets=[0, 0]), loss=loss) as trainer:
        train = gg.Dataset(Arrays(x, y))
        if allowed:
            assert np.isfinite(trainer.fit(train, batch_size=20, progress=False).last["train_loss"])
        else:
            with pytest.raises(ValueError, match=f"sample 13 has class {y[13]}; allowed are 0 to {min(classes) - 1}$"):
                trainer.fit(train, batch_size=20, progress=False)


def test_a_source_that_only_goes_on():
    """Rows are asked for in ascending order, whatever is wanted; moving samples are refused with the reason."""
    x, y = arrays(37)
    source = Arrays(x, y, ordered=True)
    assert trained(gg.Dataset(source), ranks=1)[0] == trained(gg.Dataset(x, y), ranks=1, shuffle=False)[0]
    rows = [row for epoch, chosen in source.calls if epoch == 1 for row in chosen]
    assert rows == sorted(rows)
    with pytest.raises(ValueError, match="shuffle_samples: .*one after the other"):
        trained(gg.Dataset(Arrays(x, y, ordered=True)), strategy=gg.GossipGraD(shuffle_samples=True))
    with pytest.raises(ValueError, match="stay in their order"):
        trained(gg.Dataset(Arrays(x, y, ordered=True))[np.array([3, 2, 9, 5, 7, 11])], ranks=1)


def test_streams_go_on_in_their_rows():
    """Row b of a batch goes on where row b of the batch before ended, on each rank in its own part."""
    x, y = arrays(45)
    source = Arrays(x, y, streams=True)
    trained(gg.Dataset(source), ranks=2, batch=3, epochs=1)
    calls = [rows for epoch, rows in source.calls if epoch == 0]
    shards = [[rows for rows in calls if (rows[0] < 23) == first] for first in (True, False)]
    for begin, count, batches in zip((0, 23), (23, 22), shards, strict=True):
        rows = [[begin + first + t for first in (0, 8, 8 + 7 + (count > 22))] for t in range(7)]
        last = [begin + 7, begin + 15] if count > 22 else [begin + 7]
        assert sorted(batches) == sorted([*rows, last])
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    with gg.Trainer(net, seed=1) as trainer:  # 45 samples in 4 rows of 11, and one more
        trainer.fit(gg.Dataset(Arrays(x, y, streams=True)), epochs=2, batch_size=4, progress=False)
        assert trainer.step == 24
    with pytest.raises(ValueError, match="shuffle_samples: pieces of sequences stay"):
        trained(gg.Dataset(Arrays(x, y, streams=True)), strategy=gg.GossipGraD(shuffle_samples=True))


def test_warm_steps_allocate_nothing_and_all_is_freed():
    x, y = arrays(400)
    source = Arrays(x, y)
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    gc.collect()
    before = _core.memory()[0]
    with gg.Trainer(net, comm=gg.VirtualCluster(2), seed=7) as trainer:
        data = gg.Dataset(source).for_network("cross_entropy", (6,), (3,))
        core = trainer.core
        core.begin(data, 4)
        core.epoch(0)
        core.run(8)
        warm = _core.memory()
        core.run(30)
        assert _core.memory() == warm
        del core
    del data, trainer
    gc.collect()
    assert _core.memory()[0] == before


SLOW = """
import os, time
import numpy as np
import gossipgrad as gg
from gossipgrad.data.source import Source

class Slow(Source):
    shape, dtype, values = (6,), np.dtype(np.float32), 3
    def __len__(self):
        return 32
    def read(self, rows, epoch, samples, targets):
        if 20 in rows:
            time.sleep(2)
        samples[...], targets[...] = np.sin(rows)[:, None] + np.arange(6), rows % 3

trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)), strategy=gg.GossipGraD(), seed=1)
history = trainer.fit(gg.Dataset(Slow()), batch_size=4, progress=False, shuffle=False, shard="contiguous")
if trainer.rank == 0:
    print(history.weights_sha256)
"""


@pytest.mark.full
def test_a_slow_source_is_waited_for_with_a_word(mpirun):
    """The rank that waits for its samples says so; nothing else comes of it: the weights are the virtual cluster's."""
    done = mpirun(2, SLOW, env={"GOSSIPGRAD_STALL_SECONDS": "0.7"})
    assert "in Trainer.fit for the samples that its source reads" in done.stderr
    x = (np.sin(np.arange(32))[:, None] + np.arange(6)).astype(np.float32)
    net = gg.Sequential([gg.Linear(3)], input=(6,))
    with gg.Trainer(net, comm=gg.VirtualCluster(2), strategy=gg.GossipGraD(), seed=1) as trainer:
        data = gg.Dataset(x, np.arange(32) % 3)
        history = trainer.fit(data, batch_size=4, progress=False, shuffle=False, shard="contiguous")
    assert str(history.weights_sha256) in done.stdout


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("readers", 0, "source: readers is 0; allowed are 1 to 1024"),
        ("ahead", -1, "source: ahead is -1; allowed are 1 to 1024"),
        ("shape", 6, "somewhere else: shape=6: allowed: a tuple of integers, as (28,) or (3, 8, 8)"),
        ("shape", (6.0,), "somewhere else: shape[0]=6.0: allowed: an integer of at least 1"),
        ("classes", 3, "somewhere else: classes=3: allowed: a list of names, or None"),
        ("classes", "cat", "somewhere else: classes='cat': allowed: a list of names, or None"),
    ],
)
def test_attributes_of_a_source_that_cannot_be(attribute, value, message):
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        trained(gg.Dataset(Arrays(*arrays(24), **{attribute: value})))
