"""The command line: what comes out, and one clear line with a code where something is wrong."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from conftest import DEADLINE, end_group, run_group

import gossipgrad as gg
from gossipgrad import bench, cli, data, profile
from gossipgrad.cli import options
from gossipgrad.keywords import about, keywords

QUICK = ["--dataset", "synthetic", "--model", "mlp", "--epochs", "2", "--batch-size", "50"]


def cli_run(capsys, *words):
    """(exit code, stdout, stderr) of a command in this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = cli.main([str(w) for w in words])
    except SystemExit as stop:  # --help, --version
        code = stop.code
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_and_version(capsys):
    for words in (["--help"], ["train", "--help"], ["evaluate", "--help"], ["bench", "--help"], ["info", "--help"]):
        code, out, _ = cli_run(capsys, *words)
        assert code == 0 and "usage: gossipgrad" in out
    assert cli_run(capsys, "--version")[1].startswith("gossipgrad 0.")
    assert "RANKS" in cli_run(capsys, "run", "--help")[1]


def test_no_command_is_help(capsys):
    assert cli_run(capsys) == cli_run(capsys, "--help")
    code, out, err = cli_run(capsys)
    assert code == 0 and not err and "gossipgrad run -n 2 train" in out and "compare" in out


@pytest.mark.parametrize("command", ["", "run", "train", "evaluate", "compare", "bench", "info", "report"])
def test_help_is_one_screen(command, capsys, monkeypatch):
    """Of 40 lines of 80 columns; --help-all has every option, in 80 columns, too."""
    monkeypatch.setenv("COLUMNS", "80")
    code, short, _ = cli_run(capsys, *command.split(), "--help")
    assert code == 0 and len(short.splitlines()) <= 40 and max(map(len, short.splitlines())) <= 80
    all_options = "--help-all" if command not in ("", "info", "report") else "--help"
    code, whole, _ = cli_run(capsys, *command.split(), all_options)
    assert code == 0 and max(map(len, whole.splitlines())) <= 80
    if command in ("train", "evaluate", "compare", "bench"):
        names = [action.option_strings[0] for action in actions(command)]
        assert f"all {len(names)} options" in short and all(f"\n  {name}" in whole for name in names if name != "-h")
        assert set(re.findall(r"^  (--[\w-]+)", short, re.MULTILINE)) < set(names)


def actions(command):
    return cli.parser()._subparsers._group_actions[0].choices[command]._actions


def test_help_shows_every_default(capsys):
    """Of every option with a value, in the words of the constructor's field where it feeds one."""
    for command in ("train", "evaluate", "bench", "compare"):
        _, out, _ = cli_run(capsys, command, "--help-all")
        blocks = re.split(r"\n  (?=-)", " ".join(out.split("\n\n")[1:]))
        for action in actions(command):
            block = next(one for one in blocks if re.match(re.escape(action.option_strings[0]) + r"(?![\w-])", one))
            switch = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
            assert switch or action.required or "default:" in " ".join(block.split()), block
    _, out, _ = cli_run(capsys, "train", "--help-all")
    out = " ".join(out.split())
    for words in (
        "default: log2 (periodic-allreduce); 10 (elastic-averaging); 1 (parameter-server); 50 (diloco, noloco)",
        "default: adam for char_gpt, char_lstm; sgd for all others",
        "0.1 for resnet20, resnet32, resnet56, speech_dnn; ",
        "0.01 for all others; with another optimiser than the model's: 0.03 (sgd); 0.001 (adam); 2 (lars); "
        "0.0001 (lion)",
        "shakespeare for char_gpt, char_lstm; synthetic for speech_dnn; imagefolder for all others",
        "(pull-gossip, push-gossip); default: 1",
        "--every N steps between two decays (step); default: none, it must be given",
        "--shuffle, --no-shuffle another order in each epoch; default: on",
    ):
        assert words in out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Novel(gg.Strategy):
    """A strategy that the command line has never heard of."""

    name: ClassVar[str] = "novel"
    colour: Literal["red", "blue"] = dataclasses.field(default="red", metadata=about("a choice"))
    depth: int | Literal["deep"] = dataclasses.field(default=3, metadata=about("a union", metavar="D"))
    bold: bool = dataclasses.field(default=True, metadata=about("a switch"))
    share: float | None = dataclasses.field(default=None, metadata=about("a number", default="100% of it"))
    period: int = dataclasses.field(default=7, metadata=about("shared"))


def test_a_new_strategys_keywords_are_options(monkeypatch, capsys):
    monkeypatch.setitem(gg.strategies.BY_NAME, "novel", Novel)
    for command in ("train", "bench"):
        _, out, _ = cli_run(capsys, command, "--help-all")
        out = " ".join(out.split())
        for words in (
            "--colour {red,blue} a choice (novel); default: red",
            "--depth deep|D a union (novel); default: 3",
            "--bold, --no-bold a switch (novel); default: on",
            "--share X a number (novel); default: 100% of it",
            "50 (diloco, noloco); 7 (novel)",
        ):
            assert words in out, out
    words = "train --strategy novel --colour blue --depth deep --no-bold --share 0.5 --period 2"
    arguments = cli.parser().parse_args(words.split())
    assert options.make_strategy(arguments) == Novel(colour="blue", depth="deep", bold=False, share=0.5, period=2)
    assert options.make_strategy(cli.parser().parse_args(["train", "--strategy", "novel"])) == Novel()
    code, _, err = cli_run(capsys, "train", "--depth", "x")
    assert code == 2 and "--depth: 'x': allowed: deep, or an integer" in err


def test_a_keyword_wants_help_and_a_type():
    @dataclasses.dataclass
    class Bare:
        one: int = 1

    @dataclasses.dataclass
    class Odd:
        one: bytes = dataclasses.field(default=b"", metadata=about("no form"))

    with pytest.raises(TypeError, match="Bare.one: no help"):
        keywords({"bare": Bare})
    with pytest.raises(TypeError, match=r"one: .*bytes.* has no form on the command line"):
        keywords({"odd": Odd})


def test_train_writes_all_it_was_asked_for(capsys, tmp_path):
    files = {k: tmp_path / f"f.{k}" for k in ("report", "trace", "checkpoint", "log-csv", "log-jsonl")}
    options = [word for key, path in files.items() for word in (f"--{key}", path)]
    code, out, err = cli_run(capsys, "train", *QUICK, "--virtual-ranks", 3, "--validate-replicas", *options)
    assert code == 0 and err == ""
    assert out.startswith("mlp, 189,601 parameters") and "3 ranks in a virtual cluster" in out
    assert "epoch 2/2: loss " in out and "done: 2 epochs" in out
    report = json.loads(files["report"].read_text())
    assert report["ranks"] == 3 and len(report["epochs"][1]["validation_replicas"]) == 3
    assert report["settings"]["dataset"] == "synthetic"
    assert all(path.stat().st_size for path in files.values())
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.parametrize("command", ["train", "bench", "compare"])
@pytest.mark.parametrize("value", ["-1", str(10**30)])
def test_every_integer_has_bounds(command, value, capsys, tmp_path):
    """A number that no option can have is a usage error that names the option."""
    common = {"train": QUICK, "bench": ["--model", "mlp"], "compare": ["--report-dir", tmp_path / "x"]}[command]
    tried = 0
    for action in actions(command):
        texts = [value, f"{value},2"] if action.dest == "virtual_ranks" and command == "compare" else [value]
        if action.type is int or action.dest in ("period", "total", "virtual_ranks"):
            for text in texts:
                code, out, err = cli_run(capsys, command, *common, f"{action.option_strings[0]}={text}")
                assert code == 2 and out == "" and len(err.splitlines()) == 1, (action.dest, out, err)
                names = (action.dest, action.option_strings[0])
                assert any(name in err for name in names) and "too big" not in err, err
                tried += 1
    assert tried >= 10 and not (tmp_path / "x").exists()


def test_one_epoch_is_no_epochs(capsys):
    _, out, _ = cli_run(capsys, "train", *QUICK, "--epochs", 1)
    assert "done: 1 epoch in " in out and "1 rank, 1 thread each" in out
    assert repr(gg.History(epochs=[{}])) == "<History of 1 epoch on 1 rank>"


def test_simulated_circumstances_are_shown(capsys):
    """Both clocks, and what part of the virtual one is waiting, as it is in the report."""
    words = "--virtual-ranks 4 --latency 1e-2 --bandwidth 1e8 --compute-time 0.05 --strategy allreduce".split()
    code, out, err = cli_run(capsys, "train", *QUICK, *words)
    assert code == 0, err
    lines = [line for line in out.splitlines() if line.startswith(("epoch ", "done: "))]
    clocks = re.compile(r"[0-9.]+ s(?: of training)?, ([0-9.e+]+) virtual s, ([0-9.]+) % of it waiting")
    found = [clocks.search(one) for one in lines]
    seconds, shares = ([float(one[i]) for one in found] for i in (1, 2))
    assert len(lines) == 3 and seconds[2] == pytest.approx(seconds[0] + seconds[1], rel=1e-3)
    # 10 steps; a reduce-scatter and an all-gather, each of three quarters of the model over a rank's link
    steps = 2000 / 4 / 50
    exchange = 2 * (1e-2 + 3 * 4 * gg.models.mlp().parameters / 4 / 1e8)
    assert seconds[0] == pytest.approx(steps * (0.05 + exchange), rel=0.01)
    assert shares[0] == pytest.approx(100 * exchange / (0.05 + exchange), abs=1)
    _, out, _ = cli_run(capsys, "train", *QUICK)
    assert "waiting" not in out and "virtual" not in out


def test_a_long_silence_before_training_is_broken(capsys, monkeypatch):
    """By a line before the data are read; there is none where training begins soon, where it fails, or with --quiet."""
    module, line = importlib.import_module("gossipgrad.cli.train"), "preparing to train mlp ...\n"
    load, heard = module.load_data, []

    def loaded(arguments):
        for one in [one for one in threading.enumerate() if isinstance(one, threading.Timer) and module.SILENCE == 0]:
            one.join()
        heard.append(capsys.readouterr().out)
        return load(arguments)

    monkeypatch.setattr(module, "load_data", loaded)
    for seconds, quiet, wanted in ((0.0, [], line), (1e6, [], ""), (0.0, ["--quiet"], "")):
        monkeypatch.setattr(module, "SILENCE", seconds)
        code, out, _ = cli_run(capsys, "train", *QUICK, *quiet)
        assert code == 0 and heard.pop() == wanted and out.startswith("" if quiet else "mlp, ")
    assert not any(isinstance(one, threading.Timer) for one in threading.enumerate())


def test_quiet_prints_nothing(capsys):
    assert cli_run(capsys, "train", *QUICK, "--quiet") == (0, "", "")


def test_every_option_reaches_the_report(capsys, tmp_path):
    words = (
        "--strategy gossipgrad --topology cube --no-rotate --staleness 1 --exchange weights "
        "--bucket-bytes 5000 --chunk-bytes 700 --lr 0.02 --momentum 0.8 --weight-decay 0.001 --nesterov --seed 5 "
        "--schedule polynomial --power 2 --final 0.001 --warmup 3 --warmup-start 0.1 --no-shuffle --threads 2 "
        "--backend native"
    ).split()
    code, _, err = cli_run(capsys, "train", *QUICK, "--quiet", *words, "--report", tmp_path / "r")
    assert code == 0, err
    settings = json.loads((tmp_path / "r").read_text())["settings"]
    wanted = {"topology": "cube", "rotate": False, "staleness": 1, "exchange": "weights"}
    wanted |= {"bucket_bytes": 5000, "chunk_bytes": 700, "lr": 0.02, "momentum": 0.8, "weight_decay": 0.001}
    wanted |= {"nesterov": True, "seed": 5, "schedule": "polynomial", "power": 2.0, "final": 0.001, "total": "auto"}
    wanted |= {"warmup": 3, "warmup_start": 0.1, "shuffle": False, "threads": 2, "backend": "native"}
    assert {key: settings[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", gg.SGD(lr=0.03, momentum=0.9)),
        ("--model resnet20", gg.SGD(lr=0.1, momentum=0.9)),
        ("--model resnet20 --lr 0.2 --momentum 0.5", gg.SGD(lr=0.2, momentum=0.5)),
        ("--model resnet20 --optimizer adam", gg.Adam(lr=0.001)),
        ("--model resnet20 --optimizer lars", gg.LARS(lr=2.0)),
        ("--model resnet20 --optimizer lion --betas 0.95,0.98", gg.Lion(lr=1e-4, betas=(0.95, 0.98))),
        ("--model char_lstm --beta2 0.99", gg.Adam(lr=0.002, beta2=0.99)),
        ("--model char_lstm --optimizer sgd", gg.SGD(lr=0.03, momentum=0.9)),
    ],
)
def test_each_network_has_an_optimiser_and_a_rate(words, wanted):
    """Of the command line, unless it names others."""
    for command in ("train", "compare --report-dir x"):
        assert options.make_optimizer(cli.parser().parse_args([*command.split(), *words.split()])) == wanted


def test_partners_and_copies_are_shown_before_the_start(capsys, tmp_path):
    words = "--virtual-ranks 8 --topology cube --permutations 2 --compression adacomp".split()
    code, out, err = cli_run(capsys, "train", *QUICK, *words, "--report", tmp_path / "r")
    assert code == 0 and "gossipgrad (cube, weights, 2 permutations, adacomp exact, 6 more models a rank)" in out, err
    report = json.loads((tmp_path / "r").read_text())
    assert report["settings"]["permutations"] == report["schedule"]["permutations"] == 2
    code, _, err = cli_run(capsys, "train", *QUICK, "--no-rotate", "--permutations", "2")
    assert code == 2 and "permutations=2 with rotate=False" in err


def test_the_rate_of_the_network_is_shown(capsys, tmp_path):
    code, out, err = cli_run(capsys, "train", *QUICK, "--report", tmp_path / "r")
    settings = json.loads((tmp_path / "r").read_text())["settings"]
    assert code == 0 and (settings["optimizer"], settings["lr"]) == ("sgd", 0.05), err
    assert "; sgd, lr 0.05; 1 rank" in out


def test_weights_of_classes_and_an_ignored_target(capsys, tmp_path):
    """The same as by the constructor and by fit, to the bit; an ignored target is no class of the network."""
    rows = np.random.default_rng(0).standard_normal((200, 4)).round(4)
    labels = np.where(rows[:, 0] > 0.5, 2, (rows[:, 1] > 0).astype(int))
    labels[::7] = 9
    table = tmp_path / "t.csv"
    table.write_text(
        "a,b,c,d,y\n" + "".join(f"{','.join(map(str, r))},{k}\n" for r, k in zip(rows, labels, strict=True))
    )
    words = ["--model", "speech_dnn", "--dataset", "csv", "--data", table, "--label", "y", "--epochs", 1, "--quiet"]
    words += "--label-smoothing 0.1 --class-weights 1,2,0.5 --ignore-index 9 --class-weight balanced".split()
    words += ["--batch-size", 20, "--optimizer", "adam", "--report", tmp_path / "r"]
    code, _, err = cli_run(capsys, "train", *words)
    assert code == 0, err
    report = json.loads((tmp_path / "r").read_text())
    wanted = {"name": "cross_entropy", "label_smoothing": 0.1, "class_weights": [1.0, 2.0, 0.5], "ignore_index": 9}
    assert report["settings"]["loss"] == wanted and report["settings"]["weighted"] is True
    train, test = data.load("csv", str(table), label="y", progress=False)
    loss = gg.CrossEntropy(label_smoothing=0.1, class_weights=[1, 2, 0.5], ignore_index=9)
    with gg.Trainer(gg.models.speech_dnn(3, 4), loss=loss, optimizer=gg.Adam()) as trainer:
        history = trainer.fit(train, validation=test, batch_size=20, class_weight="balanced", progress=False)
    assert history.weights_sha256 == report["weights_sha256"]


def test_a_checkpoint_within_epochs(capsys, tmp_path, monkeypatch):
    """Epochs have 40 steps: saves come after every 15 steps and after each epoch. The first epoch is the best."""
    saved, save = [], gg.Trainer.save

    def watched(trainer, path):
        saved.append((trainer.step, path))
        save(trainer, path)

    monkeypatch.setattr(gg.Trainer, "save", watched)
    path = str(tmp_path / "c")
    code, _, err = cli_run(capsys, "train", *QUICK, "--quiet", "--checkpoint", path, "--checkpoint-every", 15)
    assert code == 0, err
    assert [step for step, where in saved if where == path] == [15, 30, 40, 45, 60, 75, 80]


def test_what_the_best_epoch_is_chosen_by(capsys, tmp_path):
    """And stopped by: a constant learning rate was never better than at first. The loss was: by it the last one is."""
    words = [*QUICK, "--epochs", 3, "--lr", 1e-4, "--quiet", "--checkpoint", tmp_path / "c"]
    monitored = ["--checkpoint-monitor", "learning_rate", "--early-stopping", 1]
    monitored += ["--early-stopping-monitor", "learning_rate"]
    for monitor, best, last in (([], 3, 3), (monitored, 1, 2)):
        code, _, err = cli_run(capsys, "train", *words, *monitor)
        assert code == 0, err
        assert gg.Trainer.load(tmp_path / "c").epoch == last
        assert gg.Trainer.load(tmp_path / "c.best").epoch == best


def test_metrics_and_a_share_to_validate_on(capsys, tmp_path):
    """The same as by the constructor's metrics= and fit's validation_split=, to the bit."""
    words = [*QUICK, "--metrics", "auc", "--report", tmp_path / "r", "--seed", 4, "--lr", 1e-4]
    code, out, err = cli_run(capsys, "train", *words, "--validation-split", 0.25)
    assert code == 0 and "on synthetic, 1,500 + 500 samples; " in out and re.search(r", auc 0\.\d+, lr ", out), err
    report = json.loads((tmp_path / "r").read_text())
    how = {"loss": "binary_cross_entropy", "optimizer": gg.SGD(lr=1e-4, momentum=0.9), "metrics": "auc", "seed": 4}
    with gg.Trainer(gg.models.mlp(), **how) as trainer:
        train, _ = gg.data.synthetic((28,), 1, seed=4)
        history = trainer.fit(train, validation_split=0.25, epochs=2, batch_size=50, progress=False)
    assert history.weights_sha256 == report["weights_sha256"]
    assert history["validation.auc"] == [one["validation"]["auc"] for one in report["epochs"]]


def test_batches_are_of_what_is_left_to_train_on(capsys, tmp_path):
    """Where a part is set aside and no size of batches is given."""
    words = ["--dataset", "synthetic", "--model", "mlp", "--epochs", 1, "--quiet", "--report", tmp_path / "r"]
    code, _, err = cli_run(capsys, "train", *words, "--validation-split", 1900)
    settings = json.loads((tmp_path / "r").read_text())["settings"]
    assert code == 0 and settings["batch_size"] == settings["train_samples"] == 100, err


@pytest.mark.parametrize("words", ["", "--apoptosis --apoptosis-every 8 --apoptosis-budget 0.05 --apoptosis-probe 50"])
def test_resume_goes_on(words, capsys, tmp_path):
    common = [*QUICK, "--virtual-ranks", 2, "--quiet", *words.split()]
    assert cli_run(capsys, "train", *common, "--report", tmp_path / "whole")[0] == 0
    one = [*common, "--epochs", 1, "--checkpoint", tmp_path / "c"]
    assert cli_run(capsys, "train", *one)[0] == 0
    code, _, err = cli_run(capsys, "train", *common, "--resume", tmp_path / "c", "--report", tmp_path / "rest")
    assert code == 0, err
    whole, rest = (json.loads((tmp_path / n).read_text()) for n in ("whole", "rest"))
    assert whole["weights_sha256"] == rest["weights_sha256"] and len(rest["epochs"]) == 2
    sizes = [one["parameters"] for one in whole["epochs"]]
    assert sizes == [one["parameters"] for one in rest["epochs"]] and (sizes[-1] < 189601) == bool(words)


def test_weights_begin_a_training_on_any_number_of_ranks(capsys, tmp_path):
    path, other, foreign = tmp_path / "c", tmp_path / "d", tmp_path / "e"
    common = [*QUICK, "--quiet"]
    assert cli_run(capsys, "train", *common, "--virtual-ranks", 2, "--checkpoint", path)[0] == 0
    still = ["train", *common, "--lr", 0, "--momentum", 0, "--virtual-ranks", 3, "--checkpoint", other]
    code, _, err = cli_run(capsys, *still, "--weights", path)
    assert code == 0 and err == "", err
    before, after = gg.read_weights(path), gg.read_weights(other)
    assert list(before) == list(after)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-6, atol=1e-9)  # the mean of three equal replicas
    gg.models.mlp(28, (300, 300, 300), 2).save_weights(foreign)
    code, _, err = cli_run(capsys, *still, "--weights", foreign)
    assert code == 0 and len(err.splitlines()) == 1, err
    assert f"--weights {foreign}: what does not fit begins anew: fc4.weight has shape (2, 300)" in err
    gg.models.lenet().save_weights(foreign)
    for words, code, text in (
        (["--weights", foreign], 1, f"--weights: {foreign} is of another model than 'mlp': it has no"),
        (["--weights", tmp_path / "none"], 1, "--weights: "),
        (["--weights", path, "--resume", path], 2, f"--weights {path}: not with --resume"),
        (["--weights", path, "--report", path], 2, f"--report {path}: would overwrite --weights {path}"),
    ):
        found, _, err = cli_run(capsys, "train", *common, *words)
        assert found == code and text in err and len(err.splitlines()) == 1, err


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("fly", 2, "invalid choice: 'fly'"),
        ("train --lr fast", 2, "--lr: invalid float value: 'fast'"),
        ("train --lr -1", 2, "lr=-1.0: allowed"),
        ("train --model vgg", 2, "--model: invalid choice: 'vgg'"),
        ("train --dataset cifar", 2, "invalid choice: 'cifar'"),
        ("train --strategy ring", 2, "invalid choice: 'ring'"),
        ("train --epoch 3", 2, "unrecognized arguments: --epoch 3; did you mean '--epochs'? (see gossipgrad train"),
        ("train --learning-rate=3", 2, "did you mean '--lr'?"),
        ("train --strategy gossip", 2, "did you mean 'gossipgrad'?"),
        ("train --dat x", 2, "did you mean '--data'?"),
        ("bench --batchsize 3", 2, "did you mean '--batch-size'?"),
        ("train --mix halves", 2, "unrecognized arguments: --mix halves; weights are always mixed by their"),
        ("train --modle lenet", 2, "unrecognized arguments: --modle lenet; did you mean '--model'?"),
        (
            "train -n 4",
            2,
            "unrecognized arguments: -n 4; several ranks are started by gossipgrad run -n N COMMAND (see",
        ),
        ("train --zzzzzz", 2, "unrecognized arguments: --zzzzzz (see"),
        ("train --strategy gosipgrad", 2, "did you mean 'gossipgrad'?"),
        ("train --model lenet5", 2, "did you mean 'lenet'?"),
        ("train --dataset minst", 2, "did you mean 'mnist'?"),
        ("train --loss mse", 2, "did you mean 'mean_squared_error'?"),
        ("train --label-smoothing 1", 2, "label_smoothing=1.0: allowed: a finite number >= 0 and < 1"),
        ("train --model mlp --label-smoothing 0.1", 2, "goes with the loss cross_entropy, not binary_cross_entropy"),
        ("train --model mlp --ignore-index 0", 2, "--ignore-index 0: goes with the loss cross_entropy, not binary"),
        (
            "train --compression adacomp --compression-warmup -1",
            2,
            "--compression adacomp: warmup=-1: allowed: an integer",
        ),
        (
            "train --compression adacomp --compression-factor 0.5",
            2,
            "--compression adacomp: factor=0.5: allowed: a finite",
        ),
        ("train --apoptosis --apoptosis-budget 1.5", 2, "--apoptosis: budget=1.5: allowed: a finite number >= 0 and"),
        ("train --apoptosis --apoptosis-start 9 --apoptosis-stop 5", 2, "--apoptosis: stop=5: allowed: above start=9"),
        ("train --apoptosis --apoptosis-least fc1=0", 2, "--apoptosis-least: least['fc1']=0: allowed: an integer"),
        ("train --apoptosis --apoptosis-probe few", 2, "--apoptosis-probe: 'few': allowed: a number of samples"),
        ("train --apoptosis-layers fc1,conv*", 2, "--apoptosis-layers fc1,conv*: goes with --apoptosis"),
        ("train --apoptosis --apoptosis-layers fc1,fc3", 1, "layers='fc3': no layer with units has this name; did you"),
        (
            "train --apoptosis --apoptosis-layers fc2",
            1,
            "layers='fc2': cannot shrink: fc2: 'fc2' (linear) is an output",
        ),
        ("train --metrics perplexity,", 2, "--metrics: 'perplexity,': allowed: names with commas, of top_5_accuracy, "),
        ("train --metrics perplexty", 1, "metrics: 'perplexty': allowed: "),
        ("train --metrics top_5_accuracy,perplexty", 1, "; did you mean 'perplexity'?"),
        ("train --validation-split x", 2, "--validation-split: 'x': allowed: a share below 1, or an integer"),
        ("train --validation-split 1.5", 2, "validation_split=1.5: allowed: a finite number > 0 and < 1"),
        ("train --validation-split 10000", 2, "validation_split=10000: allowed: "),
        ("train --checkpoint-every 5", 2, "--checkpoint-every 5: goes with --checkpoint"),
        ("train --checkpoint-monitor train_loss", 2, "--checkpoint-monitor train_loss: goes with --checkpoint"),
        ("train --early-stopping-monitor lr", 2, "--early-stopping-monitor lr: goes with --early-stopping"),
        ("train --early-stopping 1 --early-stopping-monitor acc", 1, "error: --early-stopping-monitor acc: no number"),
        ("train --class-weights 1,x", 2, "--class-weights: '1,x': allowed: numbers with commas"),
        ("train --class-weights 1,-1", 2, "class_weights[1]=-1.0: allowed"),
        ("train --class-weights 1,2", 1, "class_weights: 2 of them, but the output has 10 classes"),
        ("train --class-weight balance", 2, "--class-weight: 'balance': allowed: balanced, or numbers with commas"),
        ("train --class-weight 1,2", 1, "class_weight"),
        ("trian", 2, "did you mean 'train'?"),
        ("train --bucket-bytes 99999999999999999999", 2, "bucket_bytes=99999999999999999999: allowed: "),
        ("train --epochs 99999999999999999999", 2, "--epochs 99999999999999999999: allowed: at most"),
        ("train --warmup 99999999999999999999", 2, "warmup=99999999999999999999: allowed"),
        ("train --strat allreduce", 2, "unrecognized arguments: --strat"),
        ("train --strategy allreduce --staleness 1", 2, "staleness: not an option of strategy='allreduce'"),
        ("train --period 5", 2, "; period is one of periodic-allreduce, elastic-averaging, parameter-server"),
        ("train --period foo", 2, "--period: 'foo': allowed: log2, or an integer"),
        ("train --total x", 2, "--total: 'x': allowed: auto, or an integer"),
        ("train --straggler-probability 0.1", 2, "--straggler-probability 0.1: --straggler-delay is missing"),
        ("train --schedule cosine --gamma 0.5", 2, "gamma: not an option of schedule='cosine'"),
        ("train --epochs 0", 2, "--epochs 0: allowed: at least 1"),
        ("train --threads 0", 2, "--threads 0"),
        ("train --virtual-ranks 0", 2, "--virtual-ranks 0: allowed: 1..4096"),
        ("train --report /nowhere/r", 2, "--report /nowhere/r: no such folder"),
        ("train --checkpoint /", 2, "is a folder"),
        ("train --data .", 2, "--data .: --dataset mnist-10k has no files"),
        ("train --dataset mnist --data /nowhere", 1, "data: no such folder: '/nowhere'"),
        ("train --model mlp --dataset mnist-10k", 1, "samples of shape (1, 28, 28), but the network's input is (28,)"),
        ("train --batch-size 10001", 1, "batch_size=10001: the smallest shard has 10000"),
        ("train --virtual-ranks 7 --batch-size 1429", 1, "the smallest shard has 1428 samples"),
        ("train --resume /nowhere", 1, "/nowhere: No such file"),
        ("train --dataset synthetic --model mlp --lr 1e30", 1, "the loss is"),
        ("bench --steps 0", 2, "--steps 0"),
        ("bench --strategy allreduce --exchange weights", 2, "exchange: not an option"),
        ("run train", 2, "-n RANKS"),
        ("run train -n 2", 2, "-n RANKS is missing: how many processes shall run? It stands before the command"),
        ("run -n 2 trian", 2, "did you mean 'train'?"),
        ("run -n 2 train --lr fast", 2, "--lr: invalid float value: 'fast' (see gossipgrad train --help-all)"),
    ],
)
def test_errors_are_one_line(words, code, text, capsys):
    found, _, err = cli_run(capsys, *words.split())
    assert found == code and text in err and len(err.splitlines()) == 1 and err.startswith("gossipgrad: "), err


def test_a_monitor_is_called_by_its_option(capsys, tmp_path):
    """Both options may be given, and one of them is wrong."""
    words = ["train", *QUICK, "--checkpoint", tmp_path / "c", "--checkpoint-monitor"]
    good, wrong = "validation.accuracy", "validation.acuracy"
    for own, other, option in ((wrong, good, "--checkpoint-monitor"), (good, wrong, "--early-stopping-monitor")):
        code, out, err = cli_run(capsys, *words, own, "--early-stopping", 1, "--early-stopping-monitor", other)
        assert code == 1 and out == "" and err.startswith(f"gossipgrad: error: {option} {wrong}: no number"), err
        assert err.endswith(f"; did you mean {good!r}?\n") and len(err.splitlines()) == 1


def test_a_headline_is_of_what_will_be_trained(capsys, tmp_path):
    """None before an error known at the start: no such checkpoint, one of another model, a set that does not fit."""
    path, common = tmp_path / "c", ["--dataset", "synthetic", "--epochs", 1, "--batch-size", 500]
    code, out, _ = cli_run(capsys, "train", "--model", "mlp", *common, "--checkpoint", path)
    assert code == 0 and out.startswith("mlp, 189,601 parameters, on synthetic")
    code, out, _ = cli_run(capsys, "train", "--model", "mlp", *common, "--resume", path)
    assert code == 0 and out.startswith("mlp, ") and "nothing to do" not in out
    for words in (["--resume", "/nowhere"], ["--resume", path], ["--model", "mlp", "--dataset", "mnist-10k"]):
        code, out, err = cli_run(capsys, "train", *common, *words)
        assert code == 1 and out == "" and len(err.splitlines()) == 1, (out, err)


def test_a_traceback_on_demand(capsys, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_TRACEBACK", "1")
    _, _, err = cli_run(capsys, "train", "--resume", "/nowhere")
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("gossipgrad: error: ")


def test_info(capsys):
    code, out, _ = cli_run(capsys, "info")
    assert code == 0
    for word in ("compiler", "cpu", "isa", "threads", "mpi library", "onednn", "cuda", "openmp runtimes"):
        assert word in out
    facts = json.loads(cli_run(capsys, "info", "--json")[1])
    assert facts["mpi"]["library"] and facts["devices"][0] == "cpu"
    assert facts["cuda"] == "not built" or facts["gpu"]


def test_bench_prints_the_reference_fields(capsys):
    code, out, _ = cli_run(capsys, "bench", "--model", "mlp", "--batch-size", 8, "--steps", 5, "--warmup", 1)
    record = json.loads(out)
    wanted = (
        "mode model batch dtype threads optim params step_gflop ms_min ms_median ms_max steps others_busy "
        "samples_per_s peak_rss_growth_mib loss backend isa gflops"
    )
    assert code == 0 and len(out.splitlines()) == 1 and set(wanted.split()) <= set(record)
    assert record["params"] == 189_601 and record["steps"] == 5 and record["batch"] == 8
    assert record["step_gflop"] == pytest.approx(6 * 8 * (28 * 300 + 2 * 90_000 + 300) / 1e9, abs=5e-5)
    assert 0 < record["ms_min"] <= record["ms_median"] <= record["ms_max"]


@pytest.mark.parametrize("others", [0, 3])
def test_bench_beside_other_jobs_says_so(others, capsys, monkeypatch):
    monkeypatch.setattr(bench, "_others_cpu_seconds", lambda: others * time.perf_counter())
    monkeypatch.setattr(profile, "product_peak", lambda *_: 1.0)
    monkeypatch.setattr(profile, "copy_peak", lambda *_: 1.0)
    for words in ([], ["--profile"]):
        code, out, err = cli_run(capsys, "bench", "--model", "mlp", "--steps", 1, "--warmup", 0, *words)
        said = f"gossipgrad: warning: other processes used {others:.1f} of "
        assert code == 0 and out and (err.startswith(said) if others else not err)


def test_mnist_files_by_option(capsys, tmp_path):
    from gossipgrad.data import embedded, idx

    for part in embedded.PARTS:
        for name in embedded.file_names(part):
            array = idx.read(embedded.FOLDER / name)[:200]
            (tmp_path / name.removeprefix("mnist-10k-").removesuffix(".gz")).write_bytes(idx.encode(array))
    words = ["train", "--dataset", "mnist", "--data", tmp_path, "--epochs", 1, "--batch-size", 20]
    code, out, err = cli_run(capsys, *words)
    assert code == 0 and "on mnist, 200 + 200 samples" in out, err
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    code, _, err = cli_run(capsys, *words)
    assert code == 1 and "train-images-idx3-ubyte: truncated" in err and len(err.splitlines()) == 1


FULL = "/dev/full"  # a device whose disk is always full


@pytest.mark.core(1)
@pytest.mark.parametrize(
    "words", [["info"], ["info", "--json"], ["run", "-n", "2", "--print", "train"], ["run", "--help"]]
)
def test_standard_output_without_room_or_reader(words):
    command = [sys.executable, "-m", "gossipgrad", *words]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # what could not be written is still there when Python ends
    with open(FULL, "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE, env=buffered)
    assert (done.returncode, done.stderr) == (1, "gossipgrad: error: standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_failing_output_costs_no_other(capsys, tmp_path):
    """Each is written or not by itself; what was not is named at the end, with exit code 1."""
    names = ("report", "trace", "log-csv", "log-jsonl")
    for failing in names:
        folder = tmp_path / failing
        folder.mkdir()
        paths = {name: str(folder / name) for name in (*names, "checkpoint")} | {failing: FULL}
        options = [word for name, path in paths.items() for word in (f"--{name}", path)]
        code, out, err = cli_run(capsys, "train", *QUICK, *options)
        assert code == 1 and "done: 2 epochs" in out
        last = err.splitlines()[-1]
        assert last.startswith("gossipgrad: error: ") and FULL in last and "No space left" in last, err
        assert {p.name for p in folder.iterdir()} >= {*names, "checkpoint"} - {failing}
        assert all((folder / name).stat().st_size for name in names if name != failing)
        assert gg.Trainer.load(folder / "checkpoint").epoch == 2
        if failing.startswith("log"):
            assert err.count(FULL) == 2 and "warning" in err.splitlines()[0]  # when it happens, and at the end


def test_a_log_that_fails_ends_no_training(tmp_path):
    """In Python as well: one warning, and `failure` says why."""
    train, _ = gg.data.synthetic((4,), 3, 40, 8)
    log = gg.CSVLogger(FULL)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(4,)))
    with pytest.warns(UserWarning, match="/dev/full: this log ends here: No space left") as warned:
        history = trainer.fit(train, epochs=3, batch_size=10, callbacks=[log], progress=False)
    assert len(history) == 3 and "No space left" in log.failure
    assert sum("this log ends" in str(one.message) for one in warned) == 1


# ---- processes


LONG = ["train", "--epochs", "10000", "--dataset", "synthetic", "--model", "mlp", "--batch-size", "50"]


def wait_for(path, process):
    end = time.monotonic() + DEADLINE
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {path}"  # its output would have to be waited for
        time.sleep(0.05)


@pytest.mark.core(2)
@pytest.mark.parametrize("ranks", [None, 3])
@pytest.mark.parametrize(
    ("sign", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ctrl_c_keeps_the_last_checkpoint(ranks, sign, code, word, tmp_path):
    virtual = [] if ranks is None else ["--virtual-ranks", str(ranks)]
    command = [sys.executable, "-m", "gossipgrad", *LONG, *virtual, "--checkpoint", str(tmp_path / "c")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(tmp_path / "c", process)
        process.send_signal(sign)
        _, err = process.communicate(timeout=DEADLINE)
    finally:
        end_group(process)
    said = rf"gossipgrad: {word}; the last checkpoint is {re.escape(str(tmp_path / 'c'))} \(epoch [1-9][0-9]*\)"
    assert process.returncode == code and re.fullmatch(said, err.strip()), err
    from gossipgrad import Trainer

    assert Trainer.load(tmp_path / "c").epoch >= 1
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


INTERRUPTS_ITSELF = """
import os, signal, sys

class Hook:
    def find_spec(self, name, *_):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Hook())
"""


@pytest.mark.parametrize("how", ["module", "gossipgrad", "script.py"])
def test_ctrl_c_while_the_package_is_imported(how, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_ITSELF)
    script = tmp_path / how
    script.write_text("from gossipgrad.__main__ import main\nmain(['info'])")
    words = ["-m", "gossipgrad", "info"] if how == "module" else [str(script)]
    path = os.pathsep.join([str(tmp_path), str(Path(gg.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "PYTHONPATH": path},
    )
    if how == "script.py":  # not ours to end
        assert "KeyboardInterrupt" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (130, "gossipgrad: interrupted\n")


def test_ctrl_c_ends_all_ranks(tmp_path):
    command = [sys.executable, "-m", "gossipgrad", "run", "-n", "2", *LONG, "--checkpoint", str(tmp_path / "c")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        wait_for(tmp_path / "c", process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE)
    finally:
        end_group(process)
    assert process.returncode != 0
    from gossipgrad import Trainer, VirtualCluster

    assert Trainer.load(tmp_path / "c", comm=VirtualCluster(2)).epoch >= 1


@pytest.mark.full
def test_ranks_print_and_fail_once(mpirun):
    done = mpirun(3, ["-m", "gossipgrad", "train", *QUICK])
    assert done.stdout.count("epoch 2/2") == 1 and "\r" not in done.stdout
    assert "3 ranks under MPI" in done.stdout and done.stderr == "" and "waiting" not in done.stdout
    late = ["--straggler-probability", "0.5", "--straggler-delay", "0.01"]
    done = mpirun(3, ["-m", "gossipgrad", "train", *QUICK, *late])
    assert len(re.findall(r" s(?: of training)?, [0-9.]+ % of it waiting", done.stdout)) == 3, done.stdout
    done = mpirun(3, ["-m", "gossipgrad", "train", *QUICK, "--lr", "1e30"], check=False)
    assert done.returncode != 0 and done.stderr.count("gossipgrad: error: the loss is") == 1
    done = mpirun(3, ["-m", "gossipgrad", "train", "--lr", "x"], check=False)
    assert done.returncode == 2 and done.stderr.count("gossipgrad: error: ") == 1
    done = mpirun(2, ["-m", "gossipgrad", "train", "--virtual-ranks", "2"], check=False)
    assert done.returncode == 2 and "not under mpiexec, which started 2 ranks" in done.stderr


FAILING = """
import sys
import gossipgrad as gg

class Bad(gg.Callback):
    def on_epoch_end(self, trainer, record):
        if trainer.rank in {ranks}:
            raise RuntimeError("planted")

train, _ = gg.data.synthetic((6,), 3, 96, 30)
trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)))
trainer.fit(train, epochs=1000, batch_size=8, callbacks=[Bad()], progress=False)
"""


@pytest.mark.core(1)
@pytest.mark.parametrize("ranks", [[0], [2], [0, 1, 2]])
def test_an_exception_on_one_rank_ends_all(ranks, mpirun):
    done = mpirun(3, FAILING.replace("{ranks}", str(ranks)), check=False)
    assert done.returncode != 0 and done.stderr.count("RuntimeError: planted") == 1


def test_same_bits_under_mpi_and_in_the_virtual_cluster(mpirun, tmp_path, capsys):
    common = ["train", *QUICK, "--staleness", "1", "--topology", "cube", "--chunk-bytes", "300000"]
    common += ["--bucket-bytes", "100000", "--apoptosis", "--apoptosis-every", "5", "--apoptosis-budget", "0.1"]
    mpirun(3, ["-m", "gossipgrad", *common, "--report", tmp_path / "mpi"])
    assert cli_run(capsys, *common, "--virtual-ranks", 3, "--quiet", "--report", tmp_path / "virtual")[0] == 0
    mpi, virtual = (json.loads((tmp_path / n).read_text()) for n in ("mpi", "virtual"))
    assert mpi["weights_sha256"] == virtual["weights_sha256"]
    assert len(mpi["time_by_rank"]) == len(virtual["time_by_rank"]) == 3
    assert mpi["apoptosis"]["bound"] == virtual["apoptosis"]["bound"] and mpi["epochs"][-1]["parameters"] < 189601
    for a, b in zip(mpi["epochs"], virtual["epochs"], strict=True):
        for key in (
            "train_loss",
            "validation",
            "consensus_distance",
            "bytes_sent",
            "messages_sent",
            "samples",
            "units",
        ):
            assert a[key] == b[key], key


def test_bench_exchange_under_mpi(mpirun):
    words = "bench --exchange --model mlp --batch-size 16 --steps 3 --blocks 2 --staleness 1".split()
    record = json.loads(mpirun(2, ["-m", "gossipgrad", *words]).stdout)
    assert record["mode"] == "exchange" and record["ranks"] == 2 and record["staleness"] == 1
    assert record["ratio"] == pytest.approx(record["ms_no_exchange"] / record["ms_strategy"], rel=1e-2)
    assert len(record["ms_strategy_blocks"]) == 2


def test_the_main_job(tmp_path):
    """gossipgrad run -n 2 train, as a user types it."""
    report = tmp_path / "r.json"
    command = [sys.executable, "-m", "gossipgrad", "run", "-n", "2", "train", "--epochs", "2", "--report", str(report)]
    done = run_group(command, env={**os.environ})
    assert done.returncode == 0, done.stderr
    last = json.loads(report.read_text())["epochs"][-1]
    assert last["validation"]["accuracy"] > 0.94 and last["samples"] == len(data.load("mnist-10k")[0])
