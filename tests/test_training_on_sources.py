"""Training on what is not in memory: the same as on arrays, on ranks of both kinds; errors that reach the caller."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

import gossipgrad as gg

SIDE = 12


@pytest.fixture
def folder(tmp_path):
    """Two classes of small images, of random colours."""
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for i in range(23):
        place = tmp_path / "set" / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (SIDE + i % 3, SIDE + i % 5, 3), dtype=np.uint8)
        file = io.BytesIO()
        image.fromarray(pixels).save(file, "PNG")
        (place / f"{i}.png").write_bytes(file.getvalue())
    return tmp_path / "set"


TEXT = "to be, or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer\n" * 4


def image_network():
    return gg.Sequential([gg.Conv2d(4, 3), gg.ReLU(), gg.Flatten(), gg.Linear(2)], input=(3, SIDE, SIDE))


def text_network(values, sequence=8):
    x = gg.Input((sequence,), dtype="int32")
    return gg.Model(x, gg.Linear(values)(gg.ReLU()(gg.Linear(16)(gg.Embedding(values, 6)(x)))))


def trained(net, data, p=2, epochs=2, batch=4, **how):
    with gg.Trainer(net, seed=3, comm=gg.VirtualCluster(p), optimizer=gg.SGD(lr=0.05, momentum=0.9)) as trainer:
        last = trainer.fit(data, validation=data, epochs=epochs, batch_size=batch, progress=False, **how).last
        return trainer.weights_sha256(), last["train_loss"], last["validation"]["loss"]


# ---- images


@pytest.mark.parametrize("p", [1, 3])
def test_images_of_a_folder_train_as_arrays_do(folder, p):
    data = gg.data.image_folder(folder, SIDE, augment=False, workers=2)
    arrays = gg.Dataset(data.samples, data.targets, data.scale, data.shift)
    assert trained(image_network(), data, p) == trained(image_network(), arrays, p)
    part = np.array([20, 3, 4, 11, 0, 1, 7, 9, 22])
    assert trained(image_network(), data[part], 1) == trained(image_network(), arrays[part], 1)


def test_augmentation_does_not_depend_on_threads_or_ranks(folder):
    runs = [trained(image_network(), gg.data.image_folder(folder, SIDE, workers=workers)) for workers in (1, 3)]
    assert runs[0] == runs[1] != trained(image_network(), gg.data.image_folder(folder, SIDE, augment=False))
    drawn: dict[int, dict[tuple[int, int], bytes]] = {}
    for p in (1, 3):
        data = gg.data.image_folder(folder, SIDE, workers=1)
        seen = drawn.setdefault(p, {})
        plain = data.source.read

        def read(rows, epoch, samples, targets=None, plain=plain, seen=seen):
            plain(rows, epoch, samples, targets)
            for row, sample in zip(rows, samples, strict=True):
                seen[int(row), epoch] = sample.tobytes()

        data.source.read = read
        trained(image_network(), data, p)
    assert set(drawn[1]) >= {(row, epoch) for row in range(23) for epoch in (-1, 0, 1)}
    assert all(drawn[3][key] == value for key, value in drawn[1].items() if key in drawn[3]) and len(drawn[3]) > 60


@pytest.mark.parametrize("p", [1, 2])
def test_the_error_of_a_broken_file_reaches_the_caller(folder, p):
    (folder / "b" / "3.png").write_bytes(b"\x89PNG")
    data = gg.data.image_folder(folder, SIDE, strict=True)
    with gg.Trainer(image_network(), comm=gg.VirtualCluster(p)) as trainer:
        with pytest.raises(gg.DataError, match=r"b/3.png: .*strict=False, --no-strict on the command line, skips"):
            trainer.fit(data, epochs=1, batch_size=4, progress=False)
    with gg.Trainer(image_network(), comm=gg.VirtualCluster(p)) as trainer:
        with pytest.warns(UserWarning, match=r"b/3.png: .*skipped"):
            trainer.fit(gg.data.image_folder(folder, SIDE, workers=1), epochs=1, batch_size=4, progress=False)


# ---- text


@pytest.mark.parametrize("windows", ["consecutive", "random"])
def test_windows_of_a_text_train_as_arrays_do(windows):
    data = gg.data.text(TEXT, 8, windows=windows, validation=None)
    net = text_network(data.source.values)
    arrays = gg.Dataset(data.samples, data.targets)
    assert arrays.dtype == np.int32
    found, plain = trained(net, data), trained(net, arrays)
    assert found == plain if windows == "consecutive" else found[0] != plain[0]
    assert found == trained(net, gg.data.text(TEXT, 8, windows=windows, validation=None))


@pytest.mark.parametrize(("p", "batch"), [(1, 4), (2, 3)])
def test_streams_go_on_from_batch_to_batch(p, batch):
    """Row b of a batch is the window behind row b of the batch before, in every epoch."""
    data = gg.data.text(TEXT, 8, windows="streams", validation=None)
    found: list[tuple[int, list[int]]] = []
    plain = data.source.read

    def read(rows, epoch, samples, targets=None):
        found.append((epoch, rows.tolist()))
        plain(rows, epoch, samples, targets)

    data.source.read = read
    with gg.Trainer(text_network(data.source.values), comm=gg.VirtualCluster(p)) as trainer:
        trainer.fit(data, epochs=2, batch_size=batch, progress=False)
    for epoch in (0, 1):
        batches = [rows for number, rows in found if number == epoch]
        assert sorted(row for rows in batches for row in rows) == list(range(len(data)))
        assert sum(len(rows) != batch for rows in batches) <= p  # each rank's last may have fewer
        begins = {rows[0]: rows for rows in batches}
        behind = [([row + 1 for row in rows], begins.get(rows[0] + 1)) for rows in batches]
        follow = [rows for wanted, rows in behind if rows is not None and rows == wanted[: len(rows)]]
        assert len(follow) == len(batches) - p  # all but each rank's last


def test_characters_are_learnt_and_measured():
    data = gg.data.text(TEXT, 8, windows="random", validation=None)
    found = {}
    for p in (1, 3):
        net = text_network(data.source.values)
        with gg.Trainer(net, metrics=["perplexity", "top_2_accuracy"], comm=gg.VirtualCluster(p)) as trainer:
            before = trainer.evaluate(data)
            assert before["perplexity"] == pytest.approx(np.exp(before["loss"]), rel=1e-5)
            found[p] = before
    assert found[1]["perplexity"] == pytest.approx(found[3]["perplexity"], rel=1e-6)
    assert found[1]["top_2_accuracy"] == found[3]["top_2_accuracy"]
    net = text_network(data.source.values)
    with gg.Trainer(net, optimizer=gg.Adam(lr=0.01), metrics="perplexity") as trainer:
        last = trainer.fit(data, validation=data, epochs=15, batch_size=8, progress=False).last
        assert last["validation"]["perplexity"] < 6 < before["perplexity"]
        scores = trainer.predict(data)
        assert scores.shape == (len(data), 8, data.source.values)


def test_tokens_that_a_network_does_not_know():
    data = gg.data.text(TEXT, 8, validation=None)
    with gg.Trainer(text_network(data.source.values - 1)) as trainer:
        with pytest.raises(ValueError, match=f"{data.source.values}|{data.source.values - 1}"):
            trainer.fit(data, epochs=1, batch_size=4, progress=False)


# ---- streams of batches


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shard", ["interleaved", "contiguous"])
def test_a_stream_trains_as_arrays_do(p, shard):
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((50, 4)).astype(np.float32), generator.integers(0, 2, 50)
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 50, 8)]
    net = gg.Sequential([gg.Linear(2)], input=(4,))
    stream = gg.data.from_iterable(batches, stream=True, samples=50)
    expected = trained(net, gg.Dataset(x, y), p, batch=6, shuffle=False, shard=shard)
    assert trained(net, stream, p, batch=6, shuffle=False, shard=shard) == expected
    assert trained(net, stream, p, batch=6, shuffle=True, shard=shard) == expected  # the stream has the order


# ---- under MPI

RUN = """
import json, sys
import numpy as np
import gossipgrad as gg
from gossipgrad.launch.start import launcher_world_size
sys.path.insert(0, "tests")
from test_training_on_sources import TEXT, image_network, text_network, trained_on
comm = None if launcher_world_size() else gg.VirtualCluster(2)
found = {}
for name, net, data in (
    ("images", image_network(), gg.data.image_folder(sys.argv[1], 12, workers=2)),
    ("text", None, gg.data.text(TEXT, 8, validation=None)),
    ("streams", None, gg.data.text(TEXT, 8, windows="streams", validation=None)),
):
    found[name] = trained_on(net or text_network(data.source.values), data, comm)
if found["images"] is not None:
    print(json.dumps(found))
"""


def trained_on(net, data, comm):
    """Of rank 0: the hashes of all ranks' weights, and the loss; None on others."""
    with gg.Trainer(net, seed=3, comm=comm, metrics=["top_2_accuracy"]) as trainer:
        last = trainer.fit(data, validation=data, epochs=2, batch_size=3, progress=False).last
        hashes = trainer.weights_sha256()
        return None if trainer.rank else [hashes, last["train_loss"], last["validation"]]


def test_ranks_of_mpi_have_the_same_bits(mpirun, folder, tmp_path):
    import sys

    from conftest import run_group

    script = tmp_path / "run.py"
    script.write_text(RUN)
    alone = run_group([sys.executable, str(script), str(folder)])
    assert alone.returncode == 0, alone.stderr
    group = mpirun(2, [script, folder])
    found, expected = (json.loads(one.stdout.strip().splitlines()[-1]) for one in (group, alone))
    assert found == expected and len(set(found["images"][0])) == 2


def test_what_ranks_compare_of_a_set_reads_little():
    """Of a stream nothing, since that would be a pass through it; of other sources some of the samples."""
    from gossipgrad.training import fingerprint

    rows: list[int] = []
    for ordered in (False, True):
        data = gg.data.text(TEXT * 20, 8, validation=None)
        data.source.ordered = ordered
        plain = data.source.read

        def read(numbers, epoch, samples, targets=None, plain=plain):
            rows.extend(numbers)
            plain(numbers, epoch, samples, targets)

        data.source.read = read
        facts = fingerprint.data(data) | fingerprint.inputs(data) | fingerprint.data(data, sharded=True)
        for fact in facts.values():
            _ = fact() if callable(fact) else fact
        assert (len(set(rows)) == fingerprint.ROWS < len(data)) if not ordered else not rows
        rows.clear()
