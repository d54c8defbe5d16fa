"""HIGGS from CSV files: what they hold, and what is said of files that are damaged or missing."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from test_cli import cli_run

import gossipgrad as gg

HEAD = ",".join(["response", *(f"x{i}" for i in range(1, 29))])


def lines(rows, seed=0):
    generator = np.random.default_rng(seed)
    table = np.column_stack([np.arange(rows) % 2, generator.standard_normal((rows, 28)).round(3)])
    return table, "\n".join([HEAD, *(",".join(f"{value:.2e}" for value in row) for row in table)]) + "\n"


def write(folder, train=None, test=None):
    (folder / "higgs-train.csv").write_text(lines(40)[1] if train is None else train)
    with gzip.open(folder / "higgs-test-5k.csv.gz", "wt") as file:
        file.write(lines(20, 1)[1] if test is None else test)


def test_the_numbers_of_the_files(tmp_path, monkeypatch):
    (tmp_path / "higgs").mkdir()
    write(tmp_path / "higgs")
    for folder in (tmp_path, tmp_path / "higgs"):
        train, test = gg.data.load("higgs", folder)
        read = np.array([[float(f"{value:.2e}") for value in row] for row in lines(40)[0][:, 1:]])
        mean, deviation = read.mean(0), read.std(0)  # of the training part
        for found, (table, _) in ((train, lines(40)), (test, lines(20, 1))):
            assert found.samples.dtype == np.float32 and found.name == "higgs"
            np.testing.assert_allclose(found.samples * deviation + mean, table[:, 1:], rtol=6e-3, atol=1e-5)
            assert (np.asarray(found.targets) == table[:, :1]).all()
    monkeypatch.setenv("GOSSIPGRAD_DATA", str(tmp_path))
    assert len(gg.data.load("higgs")[0]) == 40


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("", "empty"),
        (HEAD + "\n", "no rows, only the names"),
        (HEAD.replace(",x28", "") + "\n" + 27 * "0," + "1\n", "27 numbers a line beside the label"),
        (lines(3)[1].replace("\n0.00e+00", "\n2.00e+00", 1), "row 1: a label of 2; allowed: 0 and 1"),
        (lines(3)[1] + "1,nan" + 27 * ",1" + "\n", "line 5: column 'x1' is 'nan'"),
        (lines(3)[1] + "1,2\n", "line 5: 2 fields; wanted 29"),
        (lines(3)[1] + "1,x" + 27 * ",1" + "\n", "line 5: column 'x1' is 'x', not a number"),
    ],
)
def test_damaged_files_are_named(train, words, tmp_path):
    write(tmp_path, train)
    with pytest.raises(gg.DataError, match=words) as caught:
        gg.data.load("higgs", tmp_path)
    assert "higgs-train.csv" in str(caught.value)


def test_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOSSIPGRAD_DATA", raising=False)
    with pytest.raises(gg.DataError, match=r"higgs not found in .*cache/higgs.*\\*.csv"):
        gg.data.load("higgs")
    write(tmp_path)
    (tmp_path / "other-train.csv").write_text("")
    with pytest.raises(gg.DataError, match="allowed: one file for train"):
        gg.data.load("higgs", tmp_path)
    (tmp_path / "other-train.csv").unlink()
    gzip_file = tmp_path / "higgs-test-5k.csv.gz"
    gzip_file.write_bytes(gzip_file.read_bytes()[:-20])
    with pytest.raises(gg.DataError, match="higgs-test-5k.csv.gz: truncated or damaged"):
        gg.data.load("higgs", tmp_path)
    gzip_file.unlink()
    with pytest.raises(gg.DataError, match="only one of both files"):
        gg.data.load("higgs", tmp_path)


def test_the_command_line_has_a_set_for_each_model(capsys, tmp_path):
    write(tmp_path, lines(600)[1])
    words = ["train", "--model", "mlp", "--data", tmp_path, "--epochs", 1, "--batch-size", 100]
    code, out, err = cli_run(capsys, *words, "--report", tmp_path / "r")
    assert code == 0 and out.startswith("mlp, 189,601 parameters, on higgs, 600 + 20 samples"), err
    assert json.loads((tmp_path / "r").read_text())["settings"]["dataset"] == "higgs"


def test_the_published_file_has_no_line_of_names(tmp_path):
    write(tmp_path, lines(40)[1].split("\n", 1)[1])
    assert len(gg.data.load("higgs", tmp_path)[0]) == 40
