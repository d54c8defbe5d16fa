"""SIGTERM and SIGUSR1 of a scheduler: saved at one step on all ranks, and an exit code that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import DEADLINE, ENVIRONMENT, ROOT, end_group, run_group

import gossipgrad as gg

COMMAND = os.path.join(os.path.dirname(sys.executable), "gossipgrad")


def net():
    return gg.Sequential([gg.Flatten(), gg.Linear(3)], input=(1, 2, 2))


def data():
    draws = np.random.default_rng(0)
    return draws.standard_normal((400, 1, 2, 2), np.float32), draws.integers(0, 3, 400)


class Send(gg.Callback):
    """A signal to this process after a step of training, or from on_epoch_end."""

    def __init__(self, number, step=0, at_end=False):
        self.number, self.every, self.at_end = number, step, at_end

    def on_step(self, trainer, step):
        os.kill(os.getpid(), self.number)

    def on_epoch_end(self, trainer, record):
        if self.at_end:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("comm", [None, gg.VirtualCluster(3)])
@pytest.mark.parametrize("where", [{"step": 7}, {"at_end": True}])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_it_goes_on_as_if_it_had_never_stopped(comm, where, number, tmp_path):
    path = tmp_path / "run.safetensors"
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
    trainer = gg.Trainer(net(), comm=comm)
    saving = gg.Checkpoint(path, save_on_signal=True)
    with pytest.raises(gg.SavedOnSignal) as error:
        trainer.fit(data(), epochs=3, batch_size=10, callbacks=[Send(number, **where), saving], progress=False)
    assert error.value.code == 75 and error.value.paths == [str(path)]
    assert before == [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
    assert 0 < trainer.step < 3 * 40
    resumed = gg.Trainer(net(), comm=comm)
    resumed.fit(data(), epochs=3, batch_size=10, progress=False, resume=path)
    whole = gg.Trainer(net(), comm=comm)
    whole.fit(data(), epochs=3, batch_size=10, progress=False)
    assert resumed.step == whole.step and resumed.weights_sha256() == whole.weights_sha256()


def test_where_it_cannot_be():
    with pytest.raises(ValueError, match="save_on_signal=True: allowed with save_last=True"):
        gg.Checkpoint("x", save_last=False, save_on_signal=True)
    found = []

    def train():
        try:
            saving = gg.Checkpoint("x", save_on_signal=True)
            gg.Trainer(net()).fit(data(), batch_size=10, callbacks=saving, progress=False)
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=train, name="other")
    thread.start()
    thread.join()
    assert found == [
        "save_on_signal=True: fit runs in the thread 'other', which no signal comes to; allowed: in the main thread"
    ]
    done = run_group([COMMAND, "train", "--save-on-signal"])
    assert done.returncode == 2 and "--save-on-signal: goes with --checkpoint" in done.stderr


def test_a_save_that_fails_is_the_error(tmp_path):
    """And the locks of the checkpoint are given back."""
    path = tmp_path / "folder" / "run.safetensors"
    path.parent.mkdir()

    class Remove(gg.Callback):
        every = 3

        def on_step(self, trainer, step):
            path.parent.rename(tmp_path / "gone")
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises((gg.CheckpointError, OSError)):
        gg.Trainer(net()).fit(
            data(), batch_size=10, callbacks=[Remove(), gg.Checkpoint(path, save_on_signal=True)], progress=False
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_run_lets_all_ranks_save(number, tmp_path):
    """A signal to `gossipgrad run` alone."""
    path = tmp_path / "run.safetensors"
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT} | {"GOSSIPGRAD_TUNE": "0"}
    train = ["train", "--dataset", "synthetic", "--epochs", "100000", "--batch-size", "5", "--lr", "0.001"]
    process = subprocess.Popen(
        [COMMAND, "run", "-n", "2", *train, "--checkpoint", str(path), "--save-on-signal", "--quiet"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=DEADLINE)
    finally:
        end_group(process)
    assert process.returncode == 75, err
    said = f"gossipgrad: stopped by a signal, to be resumed (exit code 75); the last checkpoint is {path}"
    assert err.count("gossipgrad: ") == 1 and said in err and "Traceback" not in err, err
    trainer = gg.Trainer.load(path, comm=gg.VirtualCluster(2))
    assert trainer.step > 0
