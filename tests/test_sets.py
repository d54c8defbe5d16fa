"""Sets by name: their options in Python and on the command line, and the network that fits them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_cli import cli_run

import gossipgrad as gg
from gossipgrad import models
from gossipgrad.data import sets


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).normal(50, 20, (300, 3))
    rows = "\n".join(",".join(f"{v:.3f}" for v in row) + f",{'abc'[int(row[0] > 40) + int(row[0] > 60)]}" for row in x)
    path = tmp_path / "t.csv"
    path.write_text("u,v,w,kind\n" + rows)
    return path


def test_a_table_by_name(table):
    train, test = gg.data.load("csv", table, label="kind", seed=3)
    assert (len(train), len(test)) == (270, 30) and train.classes == test.classes == ["a", "b", "c"]
    np.testing.assert_allclose(train.samples.std(0), 1, atol=1e-4)
    assert gg.data.load("csv", table, label="kind", standardize=False, test=table)[1].samples.mean() > 10


def test_options_that_a_set_does_not_have(table):
    with pytest.raises(TypeError, match=r"load of 'csv': load\(\) has no keyword 'lable'; did you mean 'label'"):
        gg.data.load("csv", table, lable="kind")
    with pytest.raises(TypeError, match="has no keyword 'sequence'"):
        gg.data.load("mnist-10k", sequence=3)
    with pytest.raises(TypeError, match="has no keyword 'augment'"):
        models.with_data(models.by_name("lenet"), "synthetic", augment=True)
    for name, words in (("csv", "wants a file"), ("imagefolder", "wants a folder")):
        with pytest.raises(gg.DataError, match=f"data: missing: .* {words}"):
            gg.data.load(name)
    with pytest.raises(gg.DataError, match="label: missing"):
        gg.data.load("csv", table)


def test_every_set_is_on_the_command_line(capsys):
    words = " ".join(cli_run(capsys, "train", "--help-all")[1].split())
    for name in (*sets.NAMES, "--label COLUMN", "--image-size N", "default: the model's, else 224"):
        assert name in words


def test_a_table_on_the_command_line(capsys, table, tmp_path):
    report = tmp_path / "r.json"
    how = ["train", "--model", "mlp", "--dataset", "csv", "--data", table, "--batch-size", 27, "--epochs", 3]
    code, out, err = cli_run(
        capsys, *how, "--label", "kind", "--loss", "cross_entropy", "--virtual-ranks", 2, "--report", report
    )
    assert code == 0 and "on t, 270 + 30 samples" in out, err
    found = json.loads(report.read_text())
    assert found["settings"]["dataset"] == "t" and found["epochs"][-1]["validation"]["accuracy"] > 0.6
    short = [word for word in how if word not in ("--batch-size", 27)] + ["--label", "kind", "--loss", "cross_entropy"]
    code, out, err = cli_run(capsys, *short, "--virtual-ranks", 2, "--report", report)  # the model's batch is 256
    assert code == 0 and json.loads(report.read_text())["settings"]["batch_size"] == 135, err
    code, out, err = cli_run(capsys, *how, "--label", "knd")
    assert code == 1 and "label='knd'" in err and "did you mean 'kind'" in err
    code, out, err = cli_run(capsys, *how)
    assert code == 1 and "label: missing" in err
    code, out, err = cli_run(capsys, "train", "--dataset", "mnist-10k", "--image-size", "3x4")
    assert code == 2 and "--dataset mnist-10k does not have it; it goes with --dataset imagefolder" in err
    code, out, err = cli_run(capsys, "train", "--dataset", "imagefolder", "--image-size", "3x4x5")
    assert code == 2 and "argument --image-size" in err


def test_the_size_of_images_is_the_models():
    assert models.by_name("lenet").options("imagefolder") == {"image_size": (28, 28), "channels": 1}
    assert models.by_name("cifar_quick").options("imagefolder") == {"image_size": (32, 32), "channels": 3}
    assert models.by_name("mlp").options("imagefolder") == {} == models.by_name("lenet").options("mnist")


def test_folders_of_images_on_the_command_line(capsys, tmp_path):
    image = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4)):
        for i in range(count):
            place = tmp_path / "set" / part / "xyz"[i % 3]
            place.mkdir(parents=True, exist_ok=True)
            image.fromarray(generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(place / f"{i}.jpg")
    how = ["train", "--dataset", "imagefolder", "--data", tmp_path / "set", "--epochs", 2, "--batch-size", 3]
    hashes = []
    for more in (["--workers", 1], ["--workers", 3], ["--no-augment"]):
        report = tmp_path / "r.json"
        code, out, err = cli_run(capsys, *how, "--model", "lenet", "--virtual-ranks", 2, "--report", report, *more)
        assert code == 0 and "on set, 12 + 4 samples" in out, err
        found = json.loads(report.read_text())
        assert found["settings"]["dataset"] == "set" and found["model"]["parameters"] < 431080  # of three classes
        hashes.append(found["weights_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]
    code, out, err = cli_run(capsys, *how, "--model", "cifar_quick", "--image-size", "40x24", "--epochs", 1)
    assert code == 0, err
    (tmp_path / "set" / "train" / "x" / "0.jpg").write_bytes(b"")
    code, out, err = cli_run(capsys, *how, "--strict")
    assert code == 1 and "0.jpg: no JPEG or PNG image" in err


def test_augmented_cifar10(tmp_path):
    generator = np.random.default_rng(0)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        rows = generator.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(4)
        (tmp_path / name).write_bytes(rows.tobytes())
    plain, test = gg.data.load("cifar10", tmp_path)
    train, again = gg.data.load("cifar10", tmp_path, augment=True, seed=5)
    assert again.source is None and np.array_equal(again.samples, test.samples)
    assert np.array_equal(train.samples, plain.samples) and np.array_equal(train.targets, plain.targets)
    drawn = train.source.read_new(np.arange(20), 0)[0]
    assert not np.array_equal(drawn, plain.samples)
    other = gg.data.load("cifar10", tmp_path, augment=True, seed=6)[0]
    assert not np.array_equal(other.source.read_new(np.arange(20), 0)[0], drawn)
    with pytest.raises(TypeError, match="augment=1"):
        gg.data.load("cifar10", tmp_path, augment=1)


def test_texts_on_the_command_line(capsys, tmp_path):
    """A network that can carry its state does so on streams, which are its usual windows."""
    text = tmp_path / "t.txt"
    text.write_text("to be, or not to be, that is the question:\n" * 40)
    entry = models.by_name("char_lstm")
    found = {}
    for windows in ("streams", "random"):
        net, train, _ = models.with_data(entry, "shakespeare", text, windows=windows, sequence=8)
        assert train.source.windows == windows and net.input_shape == (8,)
        assert net.output_shape == (8, len(train.source.vocabulary))
        found[windows] = "'stateful': True" in str(net.config())
    assert found == {"streams": True, "random": False}
    assert entry.options("shakespeare") == {"sequence": 64, "windows": "streams"}
    how = ["train", "--model", "char_lstm", "--data", text, "--epochs", 1, "--batch-size", 5, "--sequence", 8]
    code, out, err = cli_run(capsys, *how, "--virtual-ranks", 2)
    assert code == 0 and "on shakespeare, 193 + 21 samples" in out, err
    code, out, err = cli_run(capsys, *how, "--sequence", 400)
    assert code == 1 and "the part to validate on has 172 characters; sequence=400 wants at least 401" in err


# ---- classes of two sets


def _named(names, count=66, seed=0):
    y = np.arange(count) % len(names)
    x = np.eye(4)[y] + 0.01 * np.random.default_rng(seed).normal(size=(count, 4))
    made = gg.Dataset(x, y, name="+".join(names))
    made.classes = list(names)
    return made


def _trainer(ranks=1):
    net = gg.Sequential([gg.Linear(3)], input=(4,))
    return gg.Trainer(net, optimizer=gg.SGD(lr=1.0), comm=gg.VirtualCluster(ranks))


def test_sets_whose_classes_have_other_numbers_do_not_meet():
    """Where a class is missing from a part, all after it have other numbers."""
    train, other = _named(["ant", "bee", "cat"]), _named(["ant", "cat"])
    words = "has other classes than {}: number 1 is 'cat' here and 'bee' there.*classes=train.classes"
    with _trainer() as trainer:
        for give in (lambda: trainer.fit(train, other), lambda: trainer.fit(train, validation=other)):
            with pytest.raises(ValueError, match="validation " + words.format("the training set")):
                give()
        trainer.fit(train, validation=train[:5], progress=False)
        with pytest.raises(ValueError, match="data " + words.format("what was trained on")):
            trainer.evaluate(other)
        trainer.evaluate(_named(["ant", "bee"]))  # the numbers that are there are the same
        trainer.evaluate(other.samples, other.targets)
        with pytest.warns(UserWarning, match=r"ant\+cat has other classes than what was trained on before: number 1"):
            trainer.fit(other, progress=False)
    with _trainer(2) as trainer, pytest.raises(ValueError, match=r"train\[1\] " + words.format(r"train\[0\]")):
        trainer.fit([train, other], sharded=True, progress=False)
    with pytest.raises(ValueError, match=r"ant\+cat " + words.format("the training part")):
        gg.data.standardize(train, other)


def test_a_checkpoint_has_the_classes_that_a_set_is_compared_with(tmp_path):
    train, other = _named(["ant", "bee", "cat"]), _named(["ant", "cat"])
    with _trainer() as trainer:
        trainer.fit(train, batch_size=4, progress=False)
        trainer.save(tmp_path / "t")
    with _trainer() as trainer, pytest.warns(UserWarning, match="other classes than what was trained on before"):
        trainer.fit(other, epochs=2, batch_size=4, resume=tmp_path / "t", progress=False)
    with gg.Trainer.load(tmp_path / "t") as trainer, pytest.raises(ValueError, match="data has other classes than"):
        trainer.evaluate(other)


def test_processes_compare_their_classes():
    from gossipgrad.training import fingerprint

    one, other = _named(["ant", "bee"]), _named(["ant", "cat"])
    for sharded in (False, True):
        facts = [fingerprint.data(data, sharded)["names of classes"] for data in (one, other, one[:3])]
        assert facts[0] == facts[2] != facts[1]


def test_tables_and_texts_of_other_classes(tmp_path):
    (tmp_path / "a.csv").write_text("x,said\n1,ant\n2,bee\n3,cat\n")
    (tmp_path / "b.csv").write_text("x,said\n1,ant\n3,cat\n")
    train, wrong = (gg.data.csv(tmp_path / name, "said") for name in ("a.csv", "b.csv"))
    right = gg.data.csv(tmp_path / "b.csv", "said", classes=train.classes)
    assert right.targets.tolist() == [0, 2] and right.classes == train.classes
    net = gg.Sequential([gg.Linear(3)], input=(1,))
    with gg.Trainer(net) as trainer:
        with pytest.raises(ValueError, match="number 1 is 'cat' here and 'bee' there"):
            trainer.fit(train, validation=wrong, batch_size=1, progress=False)
        trainer.fit(train, validation=right, batch_size=1, progress=False)
    texts = [gg.data.text(text * 30, 4, validation=None) for text in ("abc\n", "abd\n")]
    with gg.Trainer(gg.models.char_gpt(vocabulary=4, sequence=4, width=8, heads=2, layers=1)) as trainer:
        with pytest.raises(ValueError, match="number 3 is 'd' here and 'c' there.*vocabulary= of text"):
            trainer.fit(texts[0], validation=texts[1], batch_size=4, progress=False)
