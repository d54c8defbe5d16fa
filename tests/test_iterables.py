"""Batches that something else makes: gathered into memory, or read as they come."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import iterables

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20) % 3


def batches(size=6, x=X, y=Y):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


class Tensor:
    """What a PyTorch tensor has, as far as it matters here."""

    def __init__(self, array, grad=True):
        self.array, self.grad = array, grad

    def detach(self):
        return Tensor(self.array, False)

    def cpu(self):
        return self

    def numpy(self):
        assert not self.grad
        return self.array


class Loader:
    """Like a DataLoader: a dataset with a length, batches of tensors, an order of its own in each pass."""

    def __init__(self, size=6, x=X, y=Y):
        self.passes, self.size, self.dataset = 0, size, np.zeros(len(x))
        self.open = 0  # passes that have begun and have not been ended
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __iter__(self):
        self.passes += 1
        self.open += 1
        try:
            for x, y in batches(self.size, self.x + 100 * (self.passes - 1), self.y):
                yield Tensor(x), Tensor(y)
        finally:
            self.open -= 1


@pytest.mark.parametrize("make", [batches, lambda: iter(batches()), lambda: (list(b) for b in batches()), Loader])
def test_gathered_into_memory(make):
    data = gg.data.from_iterable(make(), scale=2.0, name="mine")
    assert np.array_equal(data.samples, X) and np.array_equal(data.targets, Y) and data.name == "mine"
    assert data.scale == 2.0 and data.source is None


def test_fit_says_how_batches_are_given():
    with gg.Trainer(gg.Sequential([gg.Linear(1)], X.shape[1:])) as trainer:
        with pytest.raises(TypeError, match=r"train is a generator; .*gossipgrad.data.from_iterable\(train\)$"):
            trainer.fit(batch for batch in batches())
        with pytest.raises(TypeError, match=r"train is a int; .*\(samples, targets\)$"):
            trainer.fit(5)


def test_types_of_batches():
    assert gg.data.from_iterable(batches(x=X.astype(np.uint8))).dtype == np.uint8
    assert gg.data.from_iterable(batches(x=X.astype(np.float64))).dtype == np.float32
    assert gg.data.from_iterable(batches(), stream=True, samples=20).source.target_dtype == np.int32
    stream = gg.data.from_iterable(batches(x=X.astype(np.int64), y=X), stream=True, samples=20)
    assert stream.dtype == np.int32 and stream.source.target_dtype == np.float32
    assert stream.source.target_shape == (2,)


def test_a_torch_loader():
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    loader = torch.utils.data.DataLoader(pairs, batch_size=7)
    assert np.array_equal(gg.data.from_iterable(loader).samples, X)
    stream = gg.data.from_iterable(loader, stream=True)
    assert len(stream) == 20 and np.array_equal(stream.samples, X) and stream.targets.tolist() == Y.tolist()


@pytest.mark.parametrize("size", [1, 3, 8, 20, 50])
def test_a_stream_has_a_pass_in_each_epoch(size):
    loader = Loader(6)
    source = gg.data.from_iterable(loader, stream=True).source
    loader.passes = 0
    for epoch in range(3):
        found = [source.read_new(np.arange(i, min(i + size, 20)), epoch) for i in range(0, 20, size)]
        assert np.array_equal(np.concatenate([x for x, _ in found]), X + 100 * epoch)
        assert np.concatenate([y for _, y in found]).tolist() == Y.tolist()
        assert loader.passes == epoch + 1


def test_ranks_have_passes_of_their_own():
    loader = Loader(6)
    source = gg.data.from_iterable(loader, stream=True).source
    loader.passes = 0
    for i in range(0, 20, 4):  # rank 0 is ahead of rank 1, and both have every other row
        for rank in (0, 1):
            rows = np.array([i + rank, i + 2 + rank])
            x, y = source.read_new(rows, 0)
            assert (x % 100 == X[rows]).all() and (y == Y[rows]).all()
    assert loader.passes <= 2


@pytest.mark.core(1)
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("later", [False, True])  # with the first batch, as a generator
@pytest.mark.parametrize("ranks", [1, 2])
def test_processes_that_a_pass_starts_end_well(ranks, later):
    """As a DataLoader's workers: forked from a thread that Python has not made they would end with code 1."""
    codes = []

    def fork():
        threading.current_thread()  # which locks and queues call; a foreign thread is then known as such
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        codes.append(process.exitcode)

    def generator():
        fork()
        yield from batches()

    class Forks:
        def __iter__(self):
            if later:
                return generator()
            fork()
            return iter(batches())

    net = gg.Sequential([gg.Linear(3)], input=(2,))
    data = gg.data.from_iterable(Forks(), stream=True, samples=20)
    gg.Trainer(net, comm=gg.VirtualCluster(ranks)).fit(data, epochs=2, batch_size=5, progress=False)
    assert len(codes) > 2 and set(codes) == {0}


def test_a_pass_that_cannot_begin_is_an_error_of_fit():
    class Closed:
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes > 2:
                raise OSError("closed")
            return iter(batches())

    data = gg.data.from_iterable(Closed(), stream=True, samples=20)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(2,)))
    with pytest.raises(OSError, match="closed"):
        trainer.fit(data, epochs=4, batch_size=5, progress=False)


@pytest.mark.parametrize("begin, end", [(0, 20), (0, 10), (0, 6), (10, 20), (7, 13)])
def test_each_evaluation_is_a_pass_and_leaves_none_behind(begin, end):
    loader = Loader(6)
    source = gg.data.from_iterable(loader, stream=True).source
    loader.passes = 0
    for evaluation in range(70):
        rows = [np.arange(i, min(i + 4, end)) for i in range(begin, end, 4)]
        found = [source.read_new(each, -1) for each in rows]
        assert np.array_equal(np.concatenate([x for x, _ in found]), X[begin:end] + 100 * evaluation)
        assert loader.passes == evaluation + 1 and loader.open <= 1
    assert loader.open == (end < 20)


def test_threads_that_evaluate_leave_few_passes_behind(monkeypatch):
    monkeypatch.setattr(iterables, "MAX_CURSORS", 3)
    loader = Loader(6)
    source = gg.data.from_iterable(loader, stream=True).source
    release, read, found = threading.Event(), threading.Barrier(6), []

    def evaluate():  # the first half; all threads live at the same time, so that each is another one
        try:
            found.append(source.read_new(np.arange(10), -1))
        finally:
            read.wait(20)
            release.wait(20)

    threads = [threading.Thread(target=evaluate) for _ in range(5)]
    for one in threads:
        one.start()
    read.wait(20)
    left = loader.open
    release.set()
    for one in threads:
        one.join()
    assert len(found) == 5 and left <= 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_stream_validates_any_number_of_epochs(ranks):
    loader = Loader(6, X / 40 - 0.5, Y)
    stream = gg.data.from_iterable(loader, stream=True)
    with gg.Trainer(gg.Sequential([gg.Linear(3)], X.shape[1:]), comm=gg.VirtualCluster(ranks)) as trainer:
        history = trainer.fit(X / 40, Y, validation=stream, epochs=70, batch_size=5, progress=False)
    assert len(history) == 70 and loader.open <= ranks


def test_each_fit_has_passes_of_its_own(monkeypatch):
    """Loader adds 100 a pass: no sample of a fit is one of the pass that the fit before made."""
    monkeypatch.setattr(iterables, "MAX_CURSORS", 3)
    loader, seen = Loader(6), []

    class Seen(iterables.Stream):
        def read(self, rows, epoch, samples, targets):
            super().read(rows, epoch, samples, targets)
            seen.append(samples[:, 0] // 100)

    data = gg.Dataset(Seen(loader, 20, "mine"))
    for _ in range(5):
        seen.clear()
        before = loader.passes
        with gg.Trainer(gg.Sequential([gg.Linear(3)], X.shape[1:]), comm=gg.VirtualCluster(2)) as trainer:
            trainer.fit(data, epochs=1, batch_size=3, progress=False)
        assert np.concatenate(seen).min() >= before


def test_a_pass_that_failed_is_not_gone_on_with():
    class Flaky:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield X, Y
            if self.passes == 2:
                raise OSError("closed")
            yield X, Y

    source = gg.data.from_iterable(Flaky(), stream=True, samples=40).source
    for epoch in (0, -1):
        source.iterable.passes = 1
        with pytest.raises(OSError, match="closed"):
            source.read_new(np.arange(40), epoch)
        assert len(source.read_new(np.arange(40), epoch)[0]) == 40


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("what", ["fit", "evaluate"])
def test_a_stream_goes_on_after_an_error_of_its_iterable(at, what):
    class Once:
        failed = True

        def __iter__(self):
            for number, batch in enumerate(batches(5)):
                if number == at and not self.failed:
                    self.failed = True
                    raise OSError("the network")
                yield batch

    iterable = Once()
    data = gg.data.from_iterable(iterable, stream=True, samples=20)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(2,)), optimizer=gg.SGD(lr=0.0))
    iterable.failed = False
    call = {"fit": lambda: trainer.fit(data, batch_size=4, progress=False), "evaluate": lambda: trainer.evaluate(data)}
    with pytest.raises(OSError, match="the network"):
        call[what]()
    call[what]()


def test_what_cannot_be_streamed():
    with pytest.raises(TypeError, match="list_iterator, which can be gone through once"):
        gg.data.from_iterable(iter(batches()), stream=True, samples=20)
    with pytest.raises(ValueError, match="samples: missing"):
        gg.data.from_iterable(batches(), stream=True)
    with pytest.raises(ValueError, match="samples=20: allowed with stream=True"):
        gg.data.from_iterable(batches(), samples=20)
    with pytest.raises(ValueError, match="scale=2: allowed without stream"):
        gg.data.from_iterable(batches(), stream=True, samples=20, scale=2)
    long = gg.data.from_iterable(batches(), stream=True, samples=23, name="mine").source
    with pytest.raises(gg.DataError, match="mine: its batches end after 20 samples; samples=23 were announced"):
        long.read_new(np.arange(23), 0)
    other = [*batches(), (X[:, :1], Y)]
    with pytest.raises(gg.DataError, match=r"batch 4: samples \(1,\) of float32, .* those of the first are \(2,\)"):
        gg.data.from_iterable(other, stream=True, samples=40).source.read_new(np.arange(40), 0)
    for wrong in (Y + 0.5, Y + 2**32):  # neither is cut off
        with pytest.raises(
            gg.DataError, match=r"batch 4: .* targets \(\) of (float|int)64; those of the first .* int32"
        ):
            gg.data.from_iterable([*batches(), (X, wrong)], stream=True, samples=40).source.read_new(np.arange(40), 0)
    many = batches(1, np.zeros((100, 2), np.float32), np.zeros(100))
    source = gg.data.from_iterable(many, stream=True, samples=100).source
    with pytest.raises(gg.DataError, match="rows are not read in ascending order; allowed"):
        for row in range(99, -1, -1):
            source.read_new(np.array([row]), 0)


@pytest.mark.parametrize(
    ("iterable", "error", "words"),
    [
        (5, TypeError, "iterable: a int"),
        ([], gg.DataError, "no batches"),
        ([X], TypeError, "batch 0: a ndarray; wanted a pair"),
        ([*batches(), (X, Y, Y)], TypeError, "batch 4: a tuple of 3; wanted a pair"),
        ([{"x": X, "y": Y}], TypeError, "batch 0: a dict of 2"),
        ([(X, Y[:3])], ValueError, "batch 0: 20 samples but 3 targets"),
        ([(X, "labels")], TypeError, "batch 0: targets: str"),
        ([(X, 3)], TypeError, "batch 0: targets: int"),
        ([(X, Y), (X[:, :1], Y)], ValueError, r"batch 1: samples of shape \(1,\) and float32; those .* are \(2,\)"),
        ([(X, Y), (X.astype(np.uint8), Y)], ValueError, r"batch 1: samples of shape \(2,\) and uint8"),
    ],
)
def test_batches_that_are_none(iterable, error, words):
    with pytest.raises(error, match=words):
        gg.data.from_iterable(iterable)


def test_a_network_learns_from_batches():
    x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    data = gg.data.from_iterable(batches(32, x, (x[:, 0] > 0).astype(np.int64)))
    net = gg.Sequential([gg.Linear(2)], input=(4,))
    with gg.Trainer(net, optimizer=gg.SGD(lr=0.5), comm=gg.VirtualCluster(2)) as trainer:
        trainer.fit(data, epochs=5, batch_size=15, progress=False)
        assert trainer.evaluate(data)["accuracy"] > 0.95


@pytest.mark.parametrize("loss", ["mean_squared_error", "binary_cross_entropy"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float64])
def test_a_stream_has_the_targets_that_the_loss_takes(loss, dtype):
    """Whole numbers where it takes float32, as in memory."""
    y = (np.arange(20) % 2).astype(dtype)
    found = []
    for stream in (False, True):
        data = gg.data.from_iterable(batches(y=y), stream=stream, **({"samples": 20} if stream else {}))
        net = gg.Sequential([gg.Linear(1)], input=(2,))
        metric = "mean_absolute_error" if loss == "mean_squared_error" else "auc"
        trainer = gg.Trainer(net, loss=loss, seed=3, optimizer=gg.SGD(lr=1e-3), metrics=[metric])
        history = trainer.fit(data, validation=data, epochs=2, batch_size=5, shuffle=False, progress=False)
        assert trainer.predict(data).shape == (20, 1)
        found.append((history["train_loss"], history["validation.loss"], history[f"validation.{metric}"]))
    assert found[0] == found[1]


def test_a_stream_has_targets_beyond_int32_where_the_loss_takes_floats():
    y = np.int64(2) ** 40 + np.arange(20)
    data = gg.data.from_iterable(batches(y=y), stream=True, samples=20)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(2,)), loss="mean_squared_error")
    assert trainer.evaluate(data)["loss"] == pytest.approx(2.0**80, rel=1e-6)
    assert trainer.predict(data).shape == (20, 1)


# ---- passes that differ


def _shuffled(count=40):
    """Each pass has an order of its own, as a DataLoader with shuffle=True."""
    generator = np.random.default_rng(0)

    class Shuffled:
        dataset = range(count)

        def __iter__(self):
            order = generator.permutation(count)
            return ((order[i : i + 5, None] / count, order[i : i + 5]) for i in range(0, count, 5))

    return Shuffled()


def _regression(ranks):
    net = gg.Sequential([gg.Linear(1)], input=(1,))
    return gg.Trainer(net, loss="mean_squared_error", comm=gg.VirtualCluster(ranks))


def test_ranks_whose_passes_differ_are_an_error():
    data = gg.data.from_iterable(_shuffled(), stream=True)
    words = "passes differ, by the targets in batch 0, .*shuffle=False.*sharded=True"
    with _regression(2) as trainer, pytest.raises(gg.DataError, match=words):
        trainer.fit(data, batch_size=5, progress=False)
    with _regression(1) as trainer:
        trainer.fit(data, validation=data, epochs=2, batch_size=5, progress=False)
    with _regression(2) as trainer:
        parts = [gg.data.from_iterable(_shuffled(), stream=True) for _ in range(2)]
        trainer.fit(parts, sharded=True, epochs=2, batch_size=5, progress=False)


def test_the_first_batches_of_all_processes_are_compared():
    from gossipgrad.training import fingerprint

    one, other = (gg.data.from_iterable(_shuffled(), stream=True) for _ in range(2))
    again = gg.data.from_iterable(one.source.iterable, stream=True)
    marks = [fingerprint.data(data)["targets of the first batch"] for data in (one, other, again)]
    assert marks[0] == marks[1] != marks[2]


def test_processes_compare_what_they_have_passed():
    """After each epoch, up to the last batch that all have read."""
    from gossipgrad.data.given import Given
    from gossipgrad.training.fitting import with_same_streams

    own = gg.data.from_iterable(_shuffled(), stream=True)
    (callback,) = with_same_streams([], Given((own,), False), 2)
    for sharded, processes in ((True, 2), (False, 1)):
        assert with_same_streams([], Given((own,), sharded), processes) == []

    class Other:
        """A trainer beside which another process has passed other batches."""

        def __init__(self, passed):
            self.answers = [max(passed).to_bytes(8, "little"), passed.get(10, 0).to_bytes(4, "little")]

        def gather(self, one):
            return [one, self.answers.pop(0)]

    own.source.passed.update({5: 1, 10: 2, 15: 3})
    callback.on_epoch_end(Other({5: 1, 10: 2}), {})
    with pytest.raises(gg.DataError, match="by the targets of its first 10 samples"):
        callback.on_epoch_end(Other({5: 1, 10: 7}), {})


class _Persistent:
    """One iterator that each pass begins anew, as a DataLoader with persistent_workers=True has."""

    def __init__(self, count, batch):
        self.dataset, self.count, self.batch = range(count), count, batch
        self.at = 0

    def __iter__(self):
        self.at = 0
        return self.batches

    @property
    def batches(self):
        if not hasattr(self, "made"):
            outer = self

            class One:
                def __iter__(self):
                    return self

                def __next__(self):
                    if outer.at >= outer.count:
                        raise StopIteration
                    outer.at += outer.batch
                    rows = np.arange(outer.at - outer.batch, outer.at)
                    return rows[:, None] / outer.count, rows

            self.made = One()
        return self.made


def test_passes_that_share_an_iterator_are_an_error():
    """Those of a virtual cluster's ranks, and of training and evaluating in turn, which is allowed."""
    data = gg.data.from_iterable(_Persistent(4000, 5), stream=True)  # more batches than a rank reads ahead
    words = "begun the iterator of this one anew.*persistent_workers"
    with _regression(2) as trainer, pytest.raises(gg.DataError, match=words):
        trainer.fit(data, batch_size=5, progress=False)
    with _regression(1) as trainer:
        trainer.fit(data, validation=data, epochs=2, batch_size=5, progress=False)
