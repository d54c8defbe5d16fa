"""Logs for TensorBoard: what is in the files, and what a writer is called with."""

from __future__ import annotations

import struct
import sys
import types

import numpy as np
import pytest

import gossipgrad as gg


def trainer(ranks=2):
    return gg.Trainer(gg.Sequential([gg.Linear(3)], input=4), optimizer=gg.SGD(0.1), comm=gg.VirtualCluster(ranks))


class Recorder:
    """A writer that remembers."""

    def __init__(self, *given, **options):
        self.given, self.options = given, options
        self.scalars, self.texts, self.histograms, self.closed = {}, {}, {}, False

    def add_scalar(self, tag, value, step):
        self.scalars.setdefault(tag, []).append((step, value))

    def add_text(self, tag, text, step):
        self.texts[tag] = text

    def add_histogram(self, tag, values, step):
        self.histograms[tag] = values

    def flush(self):
        pass

    def close(self):
        self.closed = True


def fit(made, callback, **options):
    train, test = gg.data.synthetic((4,), 3, 32, 8)
    return made.fit(train, test, batch_size=4, progress=False, callbacks=[callback], **options)


def test_every_number_of_a_record_is_a_scalar_at_its_step():
    recorder = Recorder()
    with trainer() as made:
        history = fit(made, gg.TensorBoard(writer=recorder, histograms=True), epochs=2)
        weights = made.consensus_weights()
    for name in ("train_loss", "train_accuracy", "learning_rate", "bytes_sent", "consensus_distance"):
        assert recorder.scalars[name] == [(4 * e, history.epochs[e - 1][name]) for e in (1, 2)], name
    assert recorder.scalars["validation/accuracy"][1] == (8, history.last["validation"]["accuracy"])
    assert recorder.scalars["epoch"] == [(4, 1), (8, 2)] and "steps" not in recorder.scalars
    assert '"strategy": "gossipgrad"' in recorder.texts["settings"] and not recorder.closed
    assert recorder.histograms.keys() == {f"weights/{name.replace('.', '/')}" for name in weights}
    for name, array in weights.items():
        assert (recorder.histograms[f"weights/{name.replace('.', '/')}"] == array).all()


def scalars(folder):
    """(tag, step, value) of the event files, in the order of the files."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            at += 16 + length
    return found


def test_files_that_tensorboard_reads(tmp_path):
    pytest.importorskip("tensorboardX")
    with trainer() as made:
        history = fit(made, gg.TensorBoard(tmp_path / "deep" / "run"), epochs=2)
    losses = [(step, value) for tag, step, value in scalars(tmp_path / "deep" / "run") if tag == "train_loss"]
    assert [step for step, _ in losses] == [4, 8]
    np.testing.assert_allclose([value for _, value in losses], [one["train_loss"] for one in history.epochs], rtol=1e-6)


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path, monkeypatch):
    made_writers = []

    def writer(*given, **options):
        made_writers.append(Recorder(*given, **options))
        return made_writers[-1]

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=writer))
    monkeypatch.chdir(tmp_path)
    relative = gg.TensorBoard("run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with trainer() as made:
        fit(made, relative, epochs=1)
        made.save(tmp_path / "c.safetensors")
    with trainer() as made:
        fit(made, gg.TensorBoard(tmp_path / "run"), epochs=2, resume=tmp_path / "c.safetensors")
    first, second = made_writers
    assert first.given == second.given == (str(tmp_path / "run"),) and first.closed and second.closed
    assert first.options == {"purge_step": None} and second.options == {"purge_step": 5}
    assert [step for step, _ in second.scalars["train_loss"]] == [8]


def test_without_a_writer_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'gossipgrad\[tensorboard\]'"):
        gg.TensorBoard("runs")


def test_torchs_writer_serves_where_tensorboardx_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    stand_in = types.SimpleNamespace(SummaryWriter=Recorder)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(utils=types.SimpleNamespace(tensorboard=stand_in)))
    monkeypatch.setitem(sys.modules, "torch.utils", types.SimpleNamespace(tensorboard=stand_in))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    with trainer() as made:
        fit(made, gg.TensorBoard(tmp_path / "run"), epochs=1)


def test_what_cannot_be_is_named(tmp_path):
    for options in ({}, {"folder": "a", "writer": Recorder()}):
        with pytest.raises(ValueError, match="folder=.*writer=.*allowed: one of both"):
            gg.TensorBoard(**options)
    with pytest.raises(ValueError, match="folder.*empty"):
        gg.TensorBoard("")
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with trainer() as made, pytest.raises(ValueError, match="folder='.*file/run': cannot be written to: "):
        fit(made, gg.TensorBoard(tmp_path / "file" / "run"), epochs=1)


def test_a_full_disk_is_a_warning_and_training_goes_on():
    class Full(Recorder):
        def add_scalar(self, tag, value, step):
            raise OSError(28, "No space left on device")

    callback = gg.TensorBoard(writer=Full())
    with trainer() as made, pytest.warns(UserWarning, match="this log ends here: No space left") as told:
        history = fit(made, callback, epochs=2)
    assert len(history) == 2 and len(told) == 1 and "No space left" in callback.failure


UNDER_MPI = """
import sys
import gossipgrad as gg
train, test = gg.data.synthetic((4,), 3, 32, 8)
trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=4))
log = gg.TensorBoard(sys.argv[1], histograms=True)
trainer.fit(train, test, epochs=2, batch_size=4, progress=False, callbacks=[log])
"""


def test_under_mpi_rank_0_alone_writes(mpirun, tmp_path):
    pytest.importorskip("tensorboardX")
    script = tmp_path / "script.py"
    script.write_text(UNDER_MPI)
    mpirun(2, [script, tmp_path / "run"])
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert [step for tag, step, _ in scalars(tmp_path / "run") if tag == "epoch"] == [4, 8]
