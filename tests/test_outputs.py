"""Paths that are written to are checked before training: they can be written, and none overwrites another. They stay
what they were when they were given."""

from __future__ import annotations

import itertools
import os

import pytest
from test_cli import QUICK, cli_run

import gossipgrad as gg
from gossipgrad.state import outputs
from gossipgrad.state.outputs import Output


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        ("x", "x", ""),
        ("x.best", "x", ", its best epoch's file"),
        ("run.best.st", "run.st", ", its best epoch's file"),
        ("x.state", "x", ", its folder of the ranks' state"),
        ("x.best.state", "x", ", its folder of the ranks' state"),
        ("./sub/../x", "x", ""),
        ("link", "x", ""),
        ("hard", "there", ""),
        ("inside/x", "x", ""),
    ],
)
def test_no_output_overwrites_another(one, other, what, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("x")
    (tmp_path / "there").write_text("")
    os.link(tmp_path / "there", tmp_path / "hard")
    (tmp_path / "inside").symlink_to(".")
    pair = [Output("report", tmp_path / one), Output("checkpoint", tmp_path / other, checkpoint=True)]
    for both in (pair, pair[::-1]):
        with pytest.raises(ValueError, match=r"^(report|checkpoint)='.*the same file") as caught:
            outputs.check(both)
        assert all(word in str(caught.value) for word in ("report=", "checkpoint=", what.strip(", ")))
    outputs.check([Output("report", tmp_path / "y"), pair[1]])  # and others do not


@pytest.mark.parametrize(
    ("name", "checkpoint", "words"),
    [
        ("x" * 255, False, None),
        ("é" * 127 + "x", False, None),
        ("x" * 256, False, "too long: File name too long"),
        ("é" * 128, False, "too long: File name too long"),
        ("x" * 244, True, None),
        ("x" * 245, True, "too long for its folder of the ranks' state"),  # that of ".best.state"
        ("x" * 252, True, "too long for its best epoch's file"),
    ],
    ids=range(7),
)
def test_a_name_that_is_too_long_is_an_error_before_training(name, checkpoint, words, tmp_path):
    output = Output("report", tmp_path / name, checkpoint)
    if words is None:
        outputs.check([output])
        return
    with pytest.raises(ValueError, match=f"^report='.*': the name is {words}"):
        outputs.check([output])


def test_an_input_is_not_overwritten(tmp_path):
    path = tmp_path / "c"
    outputs.check([Output("checkpoint", path, checkpoint=True)], {"resume": path})
    with pytest.raises(ValueError, match=r"^report='.*/c': would overwrite resume='.*/c', which is read"):
        outputs.check([Output("report", path)], {"resume": path})


@pytest.mark.parametrize("path", [b"run", 3, None])
def test_what_is_no_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = gg.Sequential([gg.Linear(2)], input=(3,))
    with gg.Trainer(net, strategy=gg.NoExchange(), trace=8) as trainer:
        for write in (trainer.save, trainer.write_trace, net.save_weights, gg.Checkpoint, gg.CSVLogger):
            with pytest.raises(TypeError, match=f"^path={path!r}: allowed: a path, a string or a pathlib.Path"):
                write(path)
    assert not os.listdir(tmp_path)


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in (
        ("", "report='': empty; allowed: a path"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "x", f"no such folder: {tmp_path / 'none'}"),
        (tmp_path / "file" / "x", "no such folder"),
        ("/proc/x", "/proc cannot be written to"),  # also by root
    ):
        with pytest.raises(ValueError) as caught:
            outputs.check([Output("report", path)])
        assert words in str(caught.value)
    assert not [one for one in tmp_path.iterdir() if one.name != "file"]  # trying leaves nothing


def test_devices_and_pipes_are_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        outputs.check([Output("report", path), Output("log", path)])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--report x --checkpoint x", "--checkpoint {0}/x: the same file as --report {0}/x"),
        ("--report x --trace x", "--trace {0}/x: the same file as --report {0}/x"),
        ("--log-csv x --log-jsonl x", "--log-jsonl {0}/x: the same file as --log-csv {0}/x"),
        ("--report x.best --checkpoint x", "--checkpoint {0}/x: the same file (its best epoch's file) as --report"),
        ("--report x --resume x", "--report {0}/x: would overwrite --resume {0}/x"),
        ("--report none/x", "--report {0}/none/x: no such folder"),
        ("--trace .", "is a folder"),
        ("--checkpoint /proc/c", "--checkpoint /proc/c: /proc cannot be written to"),
    ],
)
def test_the_command_line_says_so_before_training(words, text, capsys, tmp_path):
    paths = [str(tmp_path / word) if not word.startswith(("--", "/")) else word for word in words.split()]
    code, out, err = cli_run(capsys, "train", *QUICK, *paths)
    assert code == 2 and text.format(tmp_path) in err and len(err.splitlines()) == 1 and out == "", err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "key", ["report", "trace", "checkpoint", "resume", "weights", "log-csv", "log-jsonl", "data", "topology"]
)
def test_an_empty_path_is_a_wrong_option(key, capsys):
    code, _, err = cli_run(capsys, "train", *QUICK, f"--{key}", "")
    assert code == 2 and f"--{key}" in err and "empty; allowed: " in err, err


def test_an_empty_path_of_compare(capsys):
    for words in (["--report-dir", ""], ["--report-dir", "x", "--data", ""]):
        code, _, err = cli_run(capsys, "compare", *words)
        assert code == 2 and f"{words[-2]}: empty; allowed: a path" in err


def test_callbacks_are_checked_before_training(tmp_path):
    """All of a fit together, before it trains; an empty path already when it is given."""
    train, _ = gg.data.synthetic((4,), 3, 40, 8)
    trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(4,)))
    x, best = tmp_path / "x.csv", tmp_path / "x.best.csv"
    for callbacks, resume, words in (
        ([gg.CSVLogger(x), gg.JSONLLogger(x)], None, "JSONLLogger='.*x.csv': the same file as CSVLogger='"),
        ([gg.Checkpoint(x), gg.CSVLogger(best)], None, "CSVLogger='.*': the same file as checkpoint='.*best epoch"),
        ([gg.CSVLogger(x)], x, "CSVLogger='.*': would overwrite resume='"),
        ([gg.CSVLogger(tmp_path)], None, "CSVLogger='.*': is a folder"),
        ([gg.Checkpoint("/proc/c")], None, "checkpoint='/proc/c': /proc cannot be written to"),
        ([], "", "resume='': empty"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer.fit(train, batch_size=5, callbacks=callbacks, resume=resume, progress=False)
    assert trainer.step == 0 and not list(tmp_path.iterdir())
    callbacks = [gg.CSVLogger(x), gg.Checkpoint(tmp_path / "c")]
    history = trainer.fit(train, batch_size=5, callbacks=callbacks, progress=False)
    assert len(history) == 1 and x.exists()
    for make in (gg.CSVLogger, gg.JSONLLogger, gg.Checkpoint, history.write, trainer.save, trainer.write_trace):
        with pytest.raises(ValueError, match="^path='': empty; allowed: a path"):
            make("")


def trainer():
    return gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)), comm=gg.VirtualCluster(2))


class Elsewhere(gg.Callback):
    """Changes the current folder whenever it can."""

    def __init__(self, folders):
        self.folders = itertools.cycle(folders)

    def on_fit_begin(self, trainer):
        os.chdir(next(self.folders))

    def on_epoch_end(self, trainer, record):
        os.chdir(next(self.folders))


def test_files_stay_where_they_were_asked_for(tmp_path, monkeypatch):
    """Whatever folder a callback makes the current one."""
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    train, _ = gg.data.synthetic((6,), 3, 96, 30)
    gone = Elsewhere([other, here, other])
    written = [gg.Checkpoint("c.safetensors"), gg.CSVLogger("a.csv"), gg.JSONLLogger("../here/a.jsonl")]
    trainer().fit(train, epochs=3, batch_size=8, callbacks=[gone, *written], progress=False)
    assert os.getcwd() == str(other) and os.listdir(other) == []
    names = [
        "a.csv",
        "a.jsonl",
        "c.best.safetensors",
        "c.best.safetensors.state",
        "c.safetensors",
        "c.safetensors.state",
    ]
    assert sorted(os.listdir(here)) == names
    assert gg.Trainer.load(here / "c.safetensors").epoch == 3
    monkeypatch.chdir(here)
    resumed = trainer().fit(
        train, epochs=4, batch_size=8, resume="c.safetensors", callbacks=Elsewhere([other]), progress=False
    )
    assert len(resumed) == 4


def test_a_folder_keeps_the_name_it_has_for_the_user(tmp_path, monkeypatch):
    """Nodes may have it in different places, which links of one name lead to; and paths must be equal on all ranks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    for name, folder in ((tmp_path / "link", "link"), (tmp_path, "real"), ("link", "real"), ("", "real")):
        monkeypatch.setenv("PWD", str(name))
        assert gg.Checkpoint("c.safetensors").path == str(tmp_path / folder / "c.safetensors"), name
