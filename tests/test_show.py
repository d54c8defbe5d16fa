"""What objects show of themselves in a notebook: pictures, tables, a bar that moves."""

from __future__ import annotations

import html.parser
import io
import os
import resource

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.training.progress import ProgressBar


class Checker(html.parser.HTMLParser):
    """Of HTML: its words, and that each element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words_of(shown):
    checker = Checker()
    checker.feed(shown)
    checker.close()
    assert not checker.open
    return checker.words


@pytest.fixture(scope="module")
def trained():
    train, test = gg.data.synthetic((4,), 3, 60, 30)
    net = gg.Sequential([gg.Linear(3)], input=(4,), name="<odd> & small")
    trainer = gg.Trainer(net, comm=gg.VirtualCluster(2))
    trainer.fit(train, test, epochs=2, batch_size=10, progress=False)
    return trainer


def test_tables(trained):
    history = words_of(trained.history._repr_html_())
    assert history[0] == "<odd> & small on 2 ranks: 2 epochs"
    assert "validation.accuracy" in history and f"{trained.history.last['train_loss']:.4g}" in history
    assert words_of(gg.History()._repr_html_())[0] == "training on 1 rank: 0 epochs"
    about = words_of(trained._repr_html_())
    assert "gossipgrad" in about[0] and "cross_entropy" in about and "2 epochs" in about
    summary = trained.net.summary()
    assert isinstance(summary, str) and "multiply-adds" in summary
    assert repr(summary) == str(summary) == str(trained.net), "a prompt shows it as print does"
    for shown in (summary._repr_html_(), trained.net._repr_html_()):
        assert words_of(shown) == [str(summary)] and shown.startswith("<pre>")


@pytest.mark.full
def test_pictures_without_pyplot(trained):
    """A notebook calls _repr_png_; nobody has to import pyplot for it."""
    pytest.importorskip("matplotlib")
    plots = gg.plots
    for figure in (
        plots.training(trained.history),
        plots.loss({"a": trained.history, "b": trained.history}),
        plots.consensus(trained.history),
        plots.partner_schedule(4),
    ):
        shown = figure._repr_png_()
        assert shown.startswith(b"\x89PNG") and len(shown) > 2000


class Cell(io.StringIO):
    """What a notebook gives as sys.stdout."""


Cell.__module__ = "ipykernel.iostream"


def lines_of(text):
    """As a notebook shows it: a carriage return begins the line anew, and what is not written over stays."""
    shown = []
    for line in text.split("\n"):
        cells = ""
        for part in line.split("\r"):
            cells = part + cells[len(part) :]
        shown.append(cells.rstrip())
    return shown


def test_a_bar_in_a_notebook(trained, monkeypatch):
    monkeypatch.setattr("gossipgrad.launch.terminal.CELL_EVERY", 0.0)
    bar = ProgressBar(Cell())
    cell = bar.file
    progress = gg.callbacks.Progress(1, 2, 3, 10, 30, 1.5, 0.5, 1.0, 30.0)
    bar.on_epoch_begin(trained, 1)
    bar.on_progress(trained, progress)
    (long,) = lines_of(cell.getvalue())
    assert long.startswith("epoch 1/2 [###") and "3/10  loss 1.5" in long and "\x1b" not in cell.getvalue()
    bar.on_progress(trained, gg.callbacks.Progress(1, 2, 9, 10, 90, 0.5, 0.5, 1.0, 30.0))
    assert "9/10" in lines_of(cell.getvalue())[0] and "3/10" not in lines_of(cell.getvalue())[0]
    bar.on_epoch_end(trained, trained.history.last)
    shown = lines_of(cell.getvalue())
    assert len(shown) == 2 and shown[0].startswith("epoch 2/2: loss ") and "#" not in shown[0] and shown[1] == ""
    monkeypatch.setattr("gossipgrad.launch.terminal.CELL_EVERY", 1e9)  # seldom, but the end of an epoch
    rare = ProgressBar(Cell())
    rare.on_epoch_begin(trained, 1)
    rare.on_progress(trained, progress)
    assert rare.file.getvalue() == ""
    rare.on_progress(trained, gg.callbacks.Progress(1, 2, 10, 10, 90, 0.5, 0.5, 1.0, 30.0))
    assert "10/10" in rare.file.getvalue()
    plain = ProgressBar(io.StringIO())
    plain.on_epoch_begin(trained, 1)
    plain.on_progress(trained, progress)
    assert plain.file.getvalue() == ""  # a log gets a line an epoch
    np.testing.assert_equal(lines_of("abc\rx"), ["xbc"])


@pytest.mark.full
def test_a_picture_without_room_keeps_the_old_one(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "schedule.png"
    gg.plots.partner_schedule(4, path=path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    assert before.startswith(b"\x89PNG")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            gg.plots.partner_schedule(8, path=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["schedule.png"]
    gg.plots.partner_schedule(4, path=tmp_path / "plain")  # without an extension it is given one
    assert (tmp_path / "plain.png").read_bytes().startswith(b"\x89PNG")
