"""The scripts under examples/ run, on small data and for a few steps. What they reach is in their first lines."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    def call(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """The binary version, with few images: an image is the brighter the higher its class."""
    folder = tmp_path_factory.mktemp("cifar10")
    draw = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        labels = np.arange(26, dtype=np.uint8) % 10
        images = draw.integers(0, 40, (26, 3072)) + 20 * labels[:, None]
        np.concatenate([labels[:, None], images.astype(np.uint8)], axis=1).tofile(folder / name)
    return folder


@pytest.fixture(scope="module")
def higgs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("higgs")
    draw = np.random.default_rng(0)
    for name, rows in (("higgs-train.csv", 300), ("higgs-test.csv", 100)):
        x = draw.normal(size=(rows, 28))
        table = np.column_stack([x[:, 0] + x[:, 1] > 0, x])
        header = ",".join(["response", *(f"x{i}" for i in range(1, 29))])
        np.savetxt(folder / name, table, "%.5g", ",", header=header, comments="")
    return folder


def test_all_say_what_to_expect():
    for path in EXAMPLES.glob("*.py"):
        first = path.read_text().splitlines()[0]
        assert re.fullmatch('"""[A-Z].*[.]', first), f"{path.name}: {first}"


def test_cifar10_quick(run, cifar):
    assert "validation accuracy" in run("cifar10_quick.py", "--data", cifar, "--epochs", 2, "--take", 100)


@pytest.mark.parametrize("strategy", ["gossipgrad", "allreduce"])
def test_higgs(run, higgs, strategy):
    out = run("higgs.py", "--data", higgs, "--ranks", 4, "--strategy", strategy, "--epochs", 8)
    assert float(re.search("AUC (.*)", out)[1]) > 0.7


@pytest.mark.full
def test_resnet20(run, cifar):
    assert "validation accuracy" in run("resnet20.py", "--data", cifar, "--epochs", 1, "--ranks", 4)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "input.txt"
    path.write_text("the quick brown fox jumps over the lazy dog, and then again.\n" * 500)
    return path


def test_char_lstm(run, text):
    for strategy in ("gossipgrad", "allreduce"):
        out = run("char_lstm.py", "--data", text, "--steps", 4, "--ranks", 4, "--strategy", strategy)
        assert float(re.search("validation loss (\\S*), perplexity", out)[1]) < 3.5


def test_char_gpt(run, text):
    out = run("char_gpt.py", "--data", text, "--steps", 4, "--sample", 5)
    assert float(re.search("^validation loss (.*)$", out, re.M)[1]) < 5
    assert len(out[out.index("\n", out.rindex("validation loss")) + 1 :]) == 6, "five characters and a line end"


def test_linear_regression(run):
    found, best = (line.split()[-6:] for line in run("linear_regression.py").splitlines())
    np.testing.assert_allclose(np.array(found, float), np.array(best, float), atol=1e-3)


def test_logistic_regression(run):
    lines = run("logistic_regression.py").splitlines()
    assert len(lines) == 4 and all(0.9 < float(line.rpartition(" ")[2]) < 0.96 for line in lines)


def test_own_strategy(run, mpirun):
    """The three meet at one solution; a ring's rank sends a message a step. MPI gives what a virtual cluster gives."""
    lines = run("own_strategy.py", "--ranks", 3).splitlines()
    found = {
        line.split()[0]: [float(n.replace(",", "")) for n in re.findall(r"\d[\d,.]*\d|\d", line)] for line in lines
    }
    assert list(found) == ["all_reduce", "local_sgd", "ring"]
    assert all(error < 0.02 for error, *_ in found.values())
    assert found["all_reduce"][1] == found["local_sgd"][1] == 0 < found["ring"][1] < 0.01
    assert found["ring"][2:] == [400 * 24 * 8, 400] and found["all_reduce"][3] == 8 * found["local_sgd"][3] == 1600
    assert mpirun(3, [EXAMPLES / "own_strategy.py", "--mpi"]).stdout.splitlines() == lines


@pytest.mark.full
def test_torch_lenet(run):
    pytest.importorskip("torch")
    out = run("torch_lenet.py", "--data", "mnist-10k", "--take", 2000, "--epochs", 1)
    assert float(re.search("test accuracy (.*) %", out)[1]) > 40


def test_torch_char_gpt(run, text):
    pytest.importorskip("torch")
    out = run("torch_char_gpt.py", "--data", text, "--steps", 4, "--strategy", "allreduce")
    assert float(re.search("validation loss (.*)", out)[1]) < 5


def transformers_or_skip() -> ModuleType:
    """It is of no extra: what is shown is that a model of its kind trains."""
    try:
        return importlib.import_module("transformers")
    except ImportError:
        pytest.skip("wants transformers")


@pytest.mark.full
def test_torch_huggingface(run, tmp_path):
    transformers = transformers_or_skip()
    out = run("torch_huggingface.py", "--steps", 100, "--save", tmp_path / "saved")
    assert "goes on: 3 8 13 18 23 28 33 38 43" in out
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert sum(one.numel() for one in saved.parameters()) == 28_544


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("char_gpt.py", "steps", -1),
        ("char_gpt.py", "sample", -1),
        ("char_lstm.py", "steps", 0),
        ("char_lstm.py", "ranks", 53),
        ("cifar10_quick.py", "ranks", 0),
        ("cifar10_quick.py", "take", -1),
        ("higgs.py", "ranks", 129),
        ("resnet18_overfits.py", "epochs", 0),
        ("resnet20.py", "ranks", 0),
        ("torch_lenet.py", "take", 0),
        ("torch_char_gpt.py", "steps", 0),
    ],
)
def test_numbers_that_cannot_be(run, capsys, name, option, value):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    with pytest.raises(SystemExit) as ended:
        run(name, "--data", "nowhere", f"--{option}", value)
    assert ended.value.code == 2
    assert f"error: argument --{option}: '{value}': allowed: " in capsys.readouterr().err


@pytest.mark.parametrize("name", [one.name for one in sorted(EXAMPLES.glob("*.py"))])
def test_unknown_words_are_refused(run, capsys, name):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    if name == "torch_huggingface.py":
        transformers_or_skip()
    with pytest.raises(SystemExit) as ended:
        run(name, "--no-such-option", *(["--data", "nowhere"] if name == "resnet18_overfits.py" else []))
    assert ended.value.code == 2
    assert "error: unrecognized arguments: --no-such-option" in capsys.readouterr().err


def test_a_prime_number_of_steps_makes_no_epochs_of_one_step(run, text):
    out = run("char_lstm.py", "--data", text, "--steps", 11)  # an epoch has 8 at most
    assert "epoch 2/2:" in out


def test_a_text_of_few_windows(run, text, tmp_path):
    (tmp_path / "short").write_text(text.read_text()[:700])
    with pytest.raises(ValueError, match=r"^batch_size=12: the smallest shard has [0-9]+ samples"):
        run("char_gpt.py", "--data", tmp_path / "short", "--steps", 4)
