"""gossipgrad evaluate: what a checkpoint knows need not be said again, and its numbers are those of training."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest
from test_cli import QUICK, cli_run

import gossipgrad as gg
from gossipgrad.launch import start
from gossipgrad.state import safetensors


def evaluated(capsys, *words):
    """What evaluate prints as JSON."""
    code, out, err = cli_run(capsys, "evaluate", *words, "--json")
    assert code == 0 and err == "" and len(out.splitlines()) == 1, (out, err)
    return json.loads(out)


def trained(capsys, folder, *words):
    """(the path of a checkpoint, the last epoch's record, the settings)"""
    files = ["--checkpoint", folder / "c", "--report", folder / "r"]
    code, _, err = cli_run(capsys, "train", *words, "--quiet", *files)
    assert code == 0, err
    report = json.loads((folder / "r").read_text())
    return folder / "c", report["epochs"][-1], report["settings"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(the path of a checkpoint of three ranks, its last epoch's record)"""
    folder = tmp_path_factory.mktemp("saved")
    train, test = gg.data.synthetic((28,), 1, seed=5)
    cluster = gg.VirtualCluster(3)
    trainer = gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy", metrics="auc", seed=5, comm=cluster)
    history = trainer.fit(train, validation=test, batch_size=50, epochs=2, validate_replicas=True, progress=False)
    trainer.save(folder / "c")
    return folder / "c", history.last


def near(numbers):
    """The same, however many ranks added them up."""
    return pytest.approx(numbers, rel=1e-6)


def test_its_numbers_are_those_of_training(saved, capsys):
    """Network, loss, set, seed, batches and metrics are the checkpoint's."""
    path, record = saved
    found = evaluated(capsys, "--checkpoint", path)
    assert found["evaluation"] == near(record["validation"]) and "auc" in found["evaluation"]
    assert found["model"] == {"name": "mlp", "parameters": 189_601} and "replicas" not in found
    about = {key: found[key] for key in ("checkpoint", "ranks", "epoch", "step", "dataset")}
    assert about == {"checkpoint": str(path), "ranks": 3, "epoch": 2, "step": 28, "dataset": "synthetic"}
    assert found["evaluation"] != near(evaluated(capsys, "--checkpoint", path, "--seed", 6)["evaluation"])


def test_each_ranks_own_weights(saved, capsys):
    path, record = saved
    found = evaluated(capsys, "--checkpoint", path, "--replicas")
    for own, wanted in zip(found["replicas"], record["validation_replicas"], strict=True):
        assert {key: own[key] for key in wanted} == near(wanted) and "auc" in own
    assert found["evaluation"] == near(record["validation"])


def test_in_words(saved, capsys):
    path, record = saved
    code, out, err = cli_run(capsys, "evaluate", "--checkpoint", path, "--replicas")
    head, *lines = out.splitlines()
    assert code == 0 and err == "" and len(lines) == 4
    assert head.startswith(f"mlp, 189,601 parameters, of {path} (epoch 2, 3 ranks), on synthetic, ")
    numbers = record["validation"]
    assert lines[0].startswith(f"loss {numbers['loss']:.4f}, accuracy {100 * numbers['accuracy']:.2f} %, auc ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["rank 0", "rank 1", "rank 2"]


def test_a_checkpoint_of_the_middle_of_an_epoch_in_words(capsys, tmp_path):
    path, trainer = tmp_path / "c", gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy")

    class Save(gg.Callback):
        every = 3

        def on_step(self, trainer, step):
            trainer.save(path)
            trainer.stop = True

    train, _ = gg.data.synthetic((28,), 1, 200)
    trainer.fit(train, batch_size=50, callbacks=Save(), progress=False)
    code, out, err = cli_run(capsys, "evaluate", "--checkpoint", path)
    assert code == 0 and out.startswith(f"mlp, 189,601 parameters, of {path} (step 3, in epoch 1, 1 rank), on "), err


def test_any_number_of_ranks_share_the_set(saved, mpirun):
    path, record = saved
    done = mpirun(2, ["-m", "gossipgrad", "evaluate", "--checkpoint", path, "--replicas", "--json"])
    found = json.loads(done.stdout)
    assert found["evaluation"] == near(record["validation"]) and len(found["replicas"]) == 3
    assert found["replicas"][2]["loss"] == near(record["validation_replicas"][2]["loss"])


def test_metrics_by_name(saved, capsys):
    """Those that are asked for, in place of the checkpoint's; one that the loss does not have is an error."""
    path, _ = saved
    words = ["evaluate", "--checkpoint", path, "--metrics"]
    assert set(evaluated(capsys, *words[1:], "auc")["evaluation"]) == {"loss", "accuracy", "auc"}
    code, out, err = cli_run(capsys, *words, "perplexity")
    assert code == 1 and out == "" and "metrics: 'perplexity' with loss='binary_cross_entropy'" in err


def test_a_text_in_the_networks_own_form(capsys, tmp_path):
    """How long its samples are, and where they begin, the network says: it carries its state or not."""
    text = tmp_path / "t.txt"
    text.write_text("the quick brown fox jumps over the lazy dog; " * 60)
    for windows in ("streams", "random"):
        folder = tmp_path / windows
        folder.mkdir()
        words = ["--model", "char_lstm", "--data", text, "--sequence", 12, "--windows", windows]
        path, record, _ = trained(capsys, folder, *words, "--epochs", 1, "--batch-size", 10, "--metrics", "perplexity")
        found = evaluated(capsys, "--checkpoint", path, "--data", text)
        assert found["dataset"] == "shakespeare" and found["evaluation"] == near(record["validation"])


def test_images_in_the_networks_own_form():
    net = gg.models.resnet18(classes=4, input=(1, 40, 48))
    assert gg.models.set_options(net, "imagefolder", False) == {"image_size": (40, 48), "channels": 1}
    assert gg.models.set_options(net, "shakespeare", False) == gg.models.set_options(net, "csv", False) == {}


def test_a_table_and_its_loss(capsys, tmp_path):
    """The set is named again, since a table is called by its file; the part to validate on is drawn as in training."""
    rows = np.random.default_rng(0).standard_normal((200, 4)).round(4)
    table, options = tmp_path / "t.csv", ["--dataset", "csv", "--label", "y", "--data", tmp_path / "t.csv"]
    lines = [f"{','.join(map(str, row))},{int(row[0] > 0)}\n" for row in rows]
    table.write_text("a,b,c,d,y\n" + "".join(lines))
    words = ["--model", "speech_dnn", *options, "--epochs", 1, "--batch-size", 20, "--label-smoothing", 0.2]
    path, record, _ = trained(capsys, tmp_path, *words, "--seed", 3, "--optimizer", "adam")
    assert evaluated(capsys, "--checkpoint", path, *options)["evaluation"] == near(record["validation"])
    code, _, err = cli_run(capsys, "evaluate", "--checkpoint", path, "--data", table)
    assert code == 2 and f"--dataset: missing: {path} was trained on 't', which is no set by name; allowed: " in err


def test_the_networks_own_set_is_a_guess(capsys, tmp_path):
    """Where that of the checkpoint has no name: it is said, unless the characters, or the classes, are those."""
    text = tmp_path / "t.txt"
    text.write_text("abc " * 200)
    tokens = np.random.default_rng(0).integers(0, 4, (20, 12)).astype("i4")
    sets = {"arrays": (tokens, tokens), "mine": gg.data.text(text, 12, windows="random", name="mine")[0]}
    for name, data in sets.items():
        with gg.Trainer(gg.models.char_lstm(vocabulary=4, sequence=12)) as trainer:
            trainer.fit(data, batch_size=10, progress=False)
            trainer.save(tmp_path / name)
    path = tmp_path / "arrays"
    words = ["evaluate", "--checkpoint", path, "--data", text]
    code, out, err = cli_run(capsys, *words)
    said = f"--dataset: missing: {path} was trained on 'train', which is no set by name; "
    read = f"--data {text} is read as shakespeare, the own set of char_lstm"
    assert (code, err) == (0, f"gossipgrad: warning: {said}{read}\n") and "on shakespeare, " in out
    for known in ([*words, "--dataset", "shakespeare"], ["evaluate", "--checkpoint", tmp_path / "mine", *words[3:]]):
        assert cli_run(capsys, *known)[::2] == (0, "")
    code, out, err = cli_run(capsys, *words, "--label", "y")  # of tables alone
    assert code == 2 and out == "" and f"error: {said}allowed: " in err
    text.write_text("abc")  # what is wrong with it may be that it is another set
    code, out, err = cli_run(capsys, *words)
    assert code == 1 and out == "" and err.startswith(f"gossipgrad: error: {said}{read}: ") and "\n" not in err[:-1]


def test_a_set_with_other_classes_is_warned_of(capsys, tmp_path):
    """Each set numbers its own, so that numbers of another one would be wrong without a word."""
    table, text = ["--dataset", "csv", "--label", "y", "--data"], ["--model", "char_lstm", "--sequence", 12, "--data"]
    for name, values in (("t", "abc"), ("u", "bc")):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "".join(f"{i},{values[i % len(values)]}\n" for i in range(60)))
        (tmp_path / f"{name}.txt").write_text(f"{values} " * 200)
    cases = [("csv", ["--model", "speech_dnn", *table], table, "u has 2 classes, and speech_dnn was trained for 3: ")]
    cases += [("txt", text, text[-1:], "shakespeare has 3 characters, and char_lstm was trained for 4: ")]
    for kind, words, again, warned in cases:
        path, record, _ = trained(capsys, tmp_path, *words, tmp_path / f"t.{kind}", "--epochs", 1, "--batch-size", 5)
        assert evaluated(capsys, "--checkpoint", path, *again, tmp_path / f"t.{kind}")["evaluation"] == near(
            record["validation"]
        )
        code, _, err = cli_run(capsys, "evaluate", "--checkpoint", path, *again, tmp_path / f"u.{kind}")
        assert code == 0 and err.startswith(f"gossipgrad: warning: {warned}") and len(err.splitlines()) == 1, err


def test_as_many_classes_of_other_names_are_warned_of(capsys, tmp_path):
    """The checkpoint has the names; of one that has none, as those of before, the number alone is compared."""
    table = ["--dataset", "csv", "--label", "y", "--data"]
    for name, values in (("t", ("cat", "dog", "eel")), ("u", ("cat", "eel", "fox")), ("v", ("cat", "dog"))):
        rows = "".join(f"{i},{values[i % len(values)]}\n" for i in range(60))
        (tmp_path / f"{name}.csv").write_text("x,y\n" + rows)
    words = ["--model", "speech_dnn", *table, tmp_path / "t.csv", "--epochs", 1, "--batch-size", 5]
    path, _, _ = trained(capsys, tmp_path, *words)
    words = ["evaluate", "--checkpoint", path, *table]
    code, _, err = cli_run(capsys, *words, tmp_path / "u.csv")
    said = "u has other classes than speech_dnn was trained for: each set numbers its own, and number 1 is 'eel' here "
    assert code == 0 and err == f"gossipgrad: warning: {said}and 'dog' there, so the results mean nothing\n"
    for name in "tv":  # those of v are the first ones
        assert cli_run(capsys, *words, tmp_path / f"{name}.csv")[::2] == (0, "")
    trainer = gg.Trainer.load(path)
    assert trainer.class_names == ["cat", "dog", "eel"]
    trainer.save(path)  # untrained, it is of the same classes
    assert cli_run(capsys, *words, tmp_path / "u.csv")[2] == err
    arrays, metadata = safetensors.read(path)
    description = json.loads(metadata["gossipgrad"])
    for before in ("no names", "no key"):
        description["classes"] = None
        if before == "no key":
            del description["classes"]
        kept = {"format": metadata["format"], "state": metadata["state"], "gossipgrad": json.dumps(description)}
        safetensors.write(path, arrays, kept, checksums=True)
        assert cli_run(capsys, *words, tmp_path / "u.csv")[::2] == (0, "")
        code, _, err = cli_run(capsys, *words, tmp_path / "v.csv")
        assert code == 0 and "v has 2 classes, and speech_dnn was trained for 3: each set numbers its own, so " in err
        assert gg.Trainer.load(path).class_names is None
    description["classes"] = 3
    safetensors.write(path, arrays, kept | {"gossipgrad": json.dumps(description)}, checksums=True)
    code, _, err = cli_run(capsys, *words, tmp_path / "v.csv")
    assert code == 1 and "its description cannot be understood (TypeError('classes: no list of names'))" in err


def test_as_many_other_characters_are_warned_of(capsys, tmp_path):
    for name, values in (("t", "abc"), ("u", "abd")):
        (tmp_path / f"{name}.txt").write_text(f"{values} " * 200)
    words = ["--model", "char_lstm", "--sequence", 12, "--epochs", 1, "--batch-size", 5, "--data", tmp_path / "t.txt"]
    path, _, _ = trained(capsys, tmp_path, *words)
    code, _, err = cli_run(capsys, "evaluate", "--checkpoint", path, "--data", tmp_path / "u.txt")
    assert code == 0 and "shakespeare has other characters than char_lstm was trained for: " in err
    assert "number 3 is 'd' here and 'c' there" in err and len(err.splitlines()) == 1


def test_a_damaged_checkpoint_is_no_file_of_weights(saved, capsys, tmp_path):
    shutil.copy(saved[0], tmp_path / "c")
    shutil.copytree(f"{saved[0]}.state", tmp_path / "c.state")
    with open(tmp_path / "c", "r+b") as file:
        file.truncate(1000)
    code, out, err = cli_run(capsys, "evaluate", "--checkpoint", tmp_path / "c")
    assert code == 1 and out == "" and len(err.splitlines()) == 1 and "--model" not in err, err


def test_weights_alone(capsys, tmp_path):
    """Of a file that says no more, with the network's name; its loss and its batches are the network's own."""
    path, net = tmp_path / "w.safetensors", gg.models.mlp()
    net.save_weights(path, seed=7)
    found = evaluated(capsys, "--checkpoint", path, "--model", "mlp", "--dataset", "synthetic")
    net.load_weights(path)
    with gg.Trainer(net, loss="binary_cross_entropy") as trainer:
        wanted = trainer.evaluate(gg.data.synthetic((28,), 1, seed=0)[1])
    assert found["evaluation"] == wanted and found["epoch"] is found["ranks"] is None
    code, out, err = cli_run(capsys, "evaluate", "--checkpoint", path, "--model", "mlp", "--dataset", "synthetic")
    assert code == 0 and out.startswith(f"mlp, 189,601 parameters, of {path}, on synthetic, "), err


def test_what_is_no_number_is_null(capsys, tmp_path):
    """JSON has no NaN: Python alone reads it."""
    path, net = tmp_path / "w.safetensors", gg.models.mlp()
    net.load_weights({name: np.full_like(array, np.nan) for name, array in net.weights().items()})
    net.save_weights(path)
    words = ["evaluate", "--checkpoint", path, "--model", "mlp", "--dataset", "synthetic", "--metrics", "auc"]
    code, out, err = cli_run(capsys, *words, "--json")
    assert code == 0 and "NaN" not in out, err
    assert json.loads(out)["evaluation"]["loss"] is json.loads(out)["evaluation"]["auc"] is None
    assert "loss nan, " in cli_run(capsys, *words)[1]


def test_replicas_of_a_run_that_diverged(capsys, tmp_path):
    path, net = tmp_path / "c", gg.models.mlp()
    with gg.Trainer(net, loss="binary_cross_entropy", comm=gg.VirtualCluster(2), strategy=gg.NoExchange()) as trainer:
        trainer.core.exchange.load_arena(
            "weight", {key: np.full_like(one, np.nan) for key, one in net.weights().items()}, 1
        )
        trainer.save(path)
    words = ["evaluate", "--checkpoint", path, "--dataset", "synthetic", "--replicas", "--json"]
    code, out, err = cli_run(capsys, *words)
    assert code == 0, err
    first, second = json.loads(out)["replicas"]
    assert first["loss"] > 0 and second["loss"] is None


WRONG = {
    "nowhere": (["--checkpoint", "/nowhere"], 1, "--checkpoint: /nowhere: No such file or directory"),
    "nowhere, named": (["--checkpoint", "/nowhere", "--model", "mlp"], 1, "--checkpoint: /nowhere: No such file"),
    "a folder": (["--checkpoint", "/"], 1, "--checkpoint: /: a folder; a checkpoint is named by its"),
    "nothing": ([], 2, "the following arguments are required: --checkpoint"),
    "another network": (["--checkpoint", "C", "--model", "lenet"], 1, "C is of another model than --model lenet: "),
    "another set": (["--checkpoint", "C", "--dataset", "mnist-10k"], 1, "samples of shape (1, 28, 28), but the n"),
    "no files": (["--checkpoint", "C", "--data", "."], 2, "--data .: --dataset synthetic has no files"),
    "weights": (["--checkpoint", "W"], 1, "without a trainer's state; "),
    "weights, no model": (["--checkpoint", "W"], 1, "; a file of weights alone wants --model"),
    "others' weights": (["--checkpoint", "W", "--model", "lenet"], 1, "W is of another model than 'lenet': it has "),
    "replicas": (["--checkpoint", "W", "--model", "mlp", "--replicas"], 2, "--replicas: W has weights alone"),
    "no weights": (["--checkpoint", "T", "--model", "mlp", "--dataset", "synthetic"], 1, "--checkpoint: T: "),
    "no ranks": (["--checkpoint", "M", "--replicas"], 1, "rank-00001.safetensors: No such file"),
    "batch": (["--checkpoint", "C", "--batch-size", "0"], 2, "--batch-size 0: allowed: at least 1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_one_line(what, saved, capsys, tmp_path):
    words, code, text = WRONG[what]
    path, _ = saved
    files = {one: str(tmp_path / one) for one in "WTM"} | {"C": str(path)}
    gg.models.mlp().save_weights(files["W"])
    (tmp_path / "T").write_text("no weights")
    shutil.copy(path, files["M"])  # and of its state what one rank has
    shutil.copytree(f"{path}.state", f"{files['M']}.state")
    next(tmp_path.glob("M.state/*/rank-00001.safetensors")).unlink()
    found, out, err = cli_run(capsys, "evaluate", *[files.get(word, word) for word in words])
    for name, one in files.items():
        text = text.replace(f"{name} ", f"{one} ").replace(f" {name}:", f" {one}:")
    assert found == code and out == "" and text in err and len(err.splitlines()) == 1, err


def test_every_integer_has_bounds(saved, capsys):
    for option in ("--batch-size", "--threads", "--seed"):
        for value in ("-1", str(10**30)):
            code, out, err = cli_run(capsys, "evaluate", "--checkpoint", saved[0], f"{option}={value}")
            assert code == 2 and out == "" and f"{option} {value}: allowed: " in err, err


def test_what_it_reads_is_no_last_checkpoint(saved, capsys, monkeypatch):
    """Ctrl-C names what a training wrote. Under run, --threads is the ranks'."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gg.Trainer, "evaluate", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        found = cli_run(capsys, "evaluate", "--checkpoint", saved[0])
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == (130, "", "gossipgrad: interrupted\n")
    words = ["-n", "1", "--threads", "2"]
    plan = start.plan([*words, "evaluate", "--checkpoint", str(saved[0])])
    assert plan.checkpoint is None and plan.command[-2:] == ["--threads", "2"]
    assert start.plan([*words, "train", "--checkpoint", "c"]).checkpoint == "c"


def test_a_network_that_shrank(capsys, tmp_path):
    words = "--apoptosis --apoptosis-every 8 --apoptosis-budget 0.05 --apoptosis-probe 50".split()
    path, record, _ = trained(capsys, tmp_path, *QUICK, *words)
    found = evaluated(capsys, "--checkpoint", path)
    assert found["evaluation"] == near(record["validation"]) and found["model"]["parameters"] < 189_601
