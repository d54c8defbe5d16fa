"""SIGINT and SIGTERM end training on all ranks after the same step, and leave a checkpoint that goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DEADLINE, ENVIRONMENT, ROOT, end_group
from test_failures import HEAD, TRAIN

import gossipgrad as gg


@pytest.mark.core(1)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_keeps_the_last_checkpoint(sign, tmp_path):
    path = tmp_path / "run.safetensors"
    environ = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT} | {"GOSSIPGRAD_TUNE": "0"}
    options = ["train", "--dataset", "synthetic", "--epochs", "100000", "--batch-size", "50", "--lr", "0.01"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gossipgrad", "run", "-n", "3", *options, "--checkpoint", str(path)],
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
        assert path.exists(), "the first epoch was never saved"
        time.sleep(0.2)
        os.kill(process.pid, sign)
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 128 + sign
        said = "interrupted" if sign == signal.SIGINT else "terminated"
        assert re.search(rf"\ngossipgrad: {said}; the last checkpoint is {path} \(epoch \d+\)\n$", err), err
        assert "Traceback" not in err, err
        deadline = time.monotonic() + DEADLINE
        while any_left(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any_left(process.pid)
    finally:
        end_group(process)

    trainer = gg.Trainer.load(path, comm=gg.VirtualCluster(3))
    assert trainer.epoch >= 1 and trainer.step == trainer.epoch * 14
    train, _ = gg.data.synthetic((1, 28, 28))
    trainer.fit(train, epochs=1, batch_size=50, progress=False)
    whole = gg.Trainer(gg.models.lenet(), optimizer=gg.SGD(lr=0.01, momentum=0.9), comm=gg.VirtualCluster(3), seed=0)
    whole.fit(train, epochs=trainer.epoch, batch_size=50, progress=False)
    assert whole.weights_sha256() == trainer.weights_sha256()


def any_left(group):
    """Is any process of this session alive?"""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            return True
    return False


def test_interrupting_a_virtual_cluster(tmp_path):
    path = tmp_path / "run.safetensors"
    outputs = ["--log-jsonl", str(tmp_path / "log"), "--checkpoint", str(path)]
    process = subprocess.Popen(
        [sys.executable, *TRAIN, "--virtual-ranks", "3", "--epochs", "100000", *outputs],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while not (tmp_path / "log").exists() or (tmp_path / "log").read_text().count("\n") < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 130
        said = rf"gossipgrad: interrupted; the last checkpoint is {path} \(epoch \d+\)"
        assert re.fullmatch(said, err.strip().splitlines()[-1]) and "Traceback" not in err, err
        assert all(json.loads(line)["epoch"] for line in (tmp_path / "log").read_text().splitlines())
    finally:
        end_group(process)


# Rank 1 interrupts rank 0, itself or both, in the middle of an epoch or behind the end of one.
INTERRUPTED = """
import os, pathlib, signal
from gossipgrad.training import loop
loop.CHUNK = 0.02  # short pieces: they end in the middle of an epoch
folder, path = pathlib.Path({folder!r}), {folder!r} + "/run.safetensors"
trainer = gg.Trainer(small_net(), strategy=gg.{strategy}(), optimizer=gg.SGD(lr=0.001))
(folder / f"step{{trainer.rank}}").write_text("0")
pids = [int(one) for one in trainer.gather(str(os.getpid()).encode())]
draws = np.random.default_rng(0)
data = draws.standard_normal(({samples}, 1, 8, 8), np.float32), draws.integers(0, 4, {samples})

class Interrupt(gg.Callback):
    done = False
    def on_progress(self, trainer, progress):
        file = folder / f"step{{trainer.rank}}"
        file.with_suffix(".new").write_text(str(progress.step))
        file.with_suffix(".new").rename(file)
        if trainer.rank == 1 and not self.done and progress.step >= {first}:
            self.done = True
            while {ahead} and int((folder / "step0").read_text()) < progress.step + {ahead}: time.sleep(0.01)
            for rank, late in {order}:
                time.sleep(late)
                os.kill(pids[rank], signal.SIGINT)

try:
    trainer.fit(data, epochs=10**6, batch_size={batch}, callbacks=[Interrupt()], progress=False)
except KeyboardInterrupt as error:
    assert type(error) is KeyboardInterrupt
    trainer.save(path)
    step, epochs = trainer.step, trainer.epoch + 1
    if {resumes}:
        trainer.fit(data, epochs=epochs, batch_size={batch}, progress=False, resume=path)
        whole = gg.Trainer(small_net(), strategy=gg.{strategy}(), optimizer=gg.SGD(lr=0.001))
        whole.fit(data, epochs=epochs, batch_size={batch}, progress=False)
        assert trainer.step == whole.step and trainer.weights_sha256() == whole.weights_sha256()
    print(trainer.rank, error, "; saved at step", step)
"""
# 40000 steps an epoch; from step 4368 on ranks meet seldom, so that they stop where they have not met anyway.
MANY = {"samples": 80_000, "batch": 1, "first": 4400, "ahead": 0}
FEW = {"samples": 600, "batch": 5, "first": 1, "ahead": 0}  # 60, so ranks meet again and again meanwhile


def interrupted(mpirun, folder, **options):
    """The step that both ranks have saved."""
    done = mpirun(2, HEAD + INTERRUPTED.format(folder=str(folder), **options))
    said = re.findall(r"(\d) fit was interrupted (?:after|before).*, on all ranks ; saved at step (\d+)", done.stdout)
    assert sorted(rank for rank, _ in said) == ["0", "1"] and len({step for _, step in said}) == 1, done.stdout
    return int(said[0][1])


@pytest.mark.core(1)
@pytest.mark.parametrize("order", [[(0, 0)], [(1, 0)], [(1, 0), (0, 0.02)]])
@pytest.mark.parametrize(("strategy", "where"), [("GossipGraD", MANY), ("AllReduce", MANY), ("AllReduce", FEW)])
def test_all_ranks_stop_after_the_same_step(strategy, where, order, mpirun, tmp_path):
    """SIGINT that reaches one rank alone, or one after the other: a save works on all, and a run goes on as ever."""
    assert interrupted(mpirun, tmp_path, strategy=strategy, order=order, resumes=True, **where) >= where["first"]


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", ["NoExchange", "PullGossip"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_far_behind(strategy, rank, mpirun, tmp_path):
    """A rank that need not wait for another does not, until one is interrupted; then the other comes to its step."""
    where = {"samples": 200_000, "batch": 1, "first": 5000, "ahead": 2000}
    step = interrupted(mpirun, tmp_path, strategy=strategy, order=[(rank, 0)], resumes=False, **where)
    assert step >= where["first"] + where["ahead"]


@pytest.mark.full
def test_one_interrupt_that_reaches_a_rank_late(mpirun, tmp_path):
    """SIGINT of a rank that has left fit for that of another is the same one, and only the next one is another."""
    text = HEAD + (
        "import os, signal\n"
        "from gossipgrad.launch import interrupts\n"
        "interrupts.LATE = 1e6\n"
        "trainer = gg.Trainer(small_net())\n"
        "def interrupt(): os.kill(os.getpid(), signal.SIGINT)\n"
        "class Once(gg.Callback):\n"
        "    every = 3\n"
        "    def on_step(self, trainer, step):\n"
        "        if trainer.rank == 1: interrupt()\n"
        "data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
        "try: trainer.fit(data, epochs=10**6, batch_size=5, callbacks=[Once()], progress=False)\n"
        "except KeyboardInterrupt:\n"
        "    if trainer.rank == 0: interrupt()\n"
        f"    trainer.save({str(tmp_path / 'run.safetensors')!r})\n"
        "    try: interrupt(); print('not raised')\n"
        "    except KeyboardInterrupt: print('raised by', trainer.rank)\n"
    )
    assert sorted(mpirun(2, text).stdout.splitlines()) == ["raised by 0", "raised by 1"]


@pytest.mark.core(1)
@pytest.mark.parametrize("times", [1, 2])
def test_a_second_interrupt_ends_at_once(times, mpirun):
    """One waits for the end of a callback, and of the step; a second one for nothing."""
    text = HEAD + (
        "import os, signal\n"
        "class Twice(gg.Callback):\n"
        "    every = 3\n"
        "    def on_step(self, trainer, step):\n"
        f"        for _ in range({times} * trainer.rank): os.kill(os.getpid(), signal.SIGINT)\n"
        "        if trainer.rank == 1: print('went on', flush=True)\n"
        "data = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)\n"
        "try: gg.Trainer(small_net()).fit(data, epochs=10**6, batch_size=5, callbacks=[Twice()], progress=False)\n"
        "except KeyboardInterrupt as error: print(error)\n"
    )
    done = mpirun(2, text, check=False)
    if times == 1:
        said = re.findall("fit was interrupted after step ([3-6]), on all ranks", done.stdout)
        assert done.returncode == 0 and len(said) == 2 and said[0] == said[1], done
    else:
        assert done.returncode != 0 and not done.stdout, done
