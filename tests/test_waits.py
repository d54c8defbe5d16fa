"""A rank that waits too long for another one names it, the step and the layers."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from gossip_reference import small_batches, small_net
from test_failures import HEAD

import gossipgrad as gg


def test_a_peer_that_does_not_come_is_named(mpirun):
    text = HEAD + (
        "class Late(gg.Callback):\n"
        "    def on_epoch_begin(self, trainer, epoch):\n"
        "        if trainer.rank == 1 and epoch == 2: time.sleep(1000)\n"
        "data = np.zeros((40, 1, 8, 8), np.float32), np.zeros(40, np.int64)\n"
        "trainer = gg.Trainer(small_net(), timeout=2.0)\n"
        "trainer.fit(data, epochs=2, batch_size=5, callbacks=[Late()], progress=False)\n"
    )
    done = mpirun(2, text, check=False)
    assert done.returncode != 0
    assert "CommunicationError" in done.stderr
    waited = r"step 4, Trainer.fit, begin of epoch 2: agreement of .*: rank 0: waited [\d.]+ s for .* from rank 1"
    assert re.search(waited, done.stderr), done.stderr


def test_a_group_that_not_all_ranks_make(mpirun):
    """MPI's own collective calls, with which groups and their memory are made, fail after the timeout, too.

    On a busy machine ranks come to the same place seconds apart: the first trainer is made without a timeout, and the
    rank that fails first waits longer than usual for the other's report.
    """
    text = HEAD + (
        "from gossipgrad.launch import failure\n"
        "failure.OTHER_REPORTS = 60.0\n"
        "trainer = gg.Trainer(small_net())\n"
        "if trainer.rank == 1: time.sleep(1000)\n"
        "trainer.team.timeout = 1.0\n"
        "if trainer.rank == 0: gg.Trainer(small_net(), timeout=1.0)\n"
        "trainer._make()\n"
    )
    done = mpirun(3, text, check=False)
    assert done.returncode != 0
    waited = r"waited [1-9]\d*\.\d+ s for "
    assert re.search(rf"Error: rank 0: {waited}all of 3 ranks .*: making the group", done.stderr), done.stderr
    assert re.search(rf"Error: .*rank 2: {waited}", done.stderr), done.stderr


class Stop(gg.Callback):
    """Rank 1 stops answering: between epochs, or somewhere in a step, where no polite signal reaches it."""

    def __init__(self, where):
        self.where = where

    def on_epoch_begin(self, trainer, epoch):
        if self.where == "in a step" and trainer.rank == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()

    def on_epoch_end(self, trainer, record):
        if self.where == "between epochs" and trainer.rank == 1:
            time.sleep(1000)


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("where", "samples", "strategy", "place"),
    [
        ("in a step", 300_000, "GossipGraD()", r"step \d+, layers '\w+' to '\w+': "),
        ("in a step", 300_000, "AllReduce()", r"step \d+, layers 'conv' to 'fc2': allreduce of \d+ values: "),
        # awaited: inputs and errors of a layer, or a sum
        (
            "in a step",
            300_000,
            "OverlappedAveraging(partition_fc=True)",
            r"step \d+, layers '\w+' to '\w+': (?:allreduce of \d+ values: )?",
        ),
        ("between epochs", 60, "GossipGraD()", "step 4, Trainer.fit, end of epoch 1: agreement of the ranks: "),
    ],
)
def test_a_rank_that_stops_is_named_by_all_others(where, samples, strategy, place, mpirun):
    text = HEAD + (
        "import test_waits\n"
        f"data = np.zeros(({samples}, 1, 8, 8), np.uint8), np.zeros({samples}, np.int64)\n"
        f"trainer = gg.Trainer(small_net(), strategy=gg.{strategy}, timeout=2.0)\n"
        f"trainer.fit(data, batch_size=5, callbacks=[test_waits.Stop({where!r})], progress=False)\n"
    )
    done = mpirun(3, text, check=False)
    assert done.returncode != 0
    for rank in (0, 2):
        what = r"\d+ bytes (from|to be received by) rank [012] with tag"
        waited = rf"{place}rank {rank}: waited [1-9]\d*\.\d+ s for {what}"
        assert re.search(waited, done.stderr), done.stderr
    assert re.search("(from|by) rank 1 with tag", done.stderr), done.stderr


def late_cluster(staleness):
    """A network slower than the ranks' patience."""
    strategy = gg.GossipGraD(staleness=staleness, bucket_bytes=1)
    return gg.Trainer(small_net(), strategy=strategy, comm=gg.VirtualCluster(3, latency=10.0), timeout=1.0)


ZEROS = np.zeros((60, 1, 8, 8), np.float32), np.zeros(60, np.int64)


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_layers_that_wait_are_named(staleness):
    """One virtual rank fails: which, when and where is said, and all end."""
    trainer = late_cluster(staleness)
    with pytest.raises(gg.CommunicationError) as caught:
        trainer.fit(ZEROS, batch_size=5, progress=False)
    text = str(caught.value)
    layer = "fc2" if staleness else "conv"  # the first that is mixed: in the backward or the forward pass
    assert re.match(rf"rank \d: step 1, layers '{layer}' to '{layer}': ", text), text
    assert re.search(r"waited 1.000 s for \d+ bytes from rank \d", text), text
    with pytest.raises(RuntimeError, match="an earlier run failed"):
        trainer.fit(ZEROS, batch_size=5, progress=False)
    trainer.close()


WAITING = (gg.GossipGraD, gg.AllReduce, gg.LayerwiseAllReduce, gg.PeriodicAllReduce, gg.OverlappedAveraging)


def partitioned():
    return gg.OverlappedAveraging(partition_fc=True)


def outer_steps():
    return gg.DiLoCo(period=1, fragments=2)


def outer_gossip():
    return gg.NoLoCo(period=2, delay=1, group=3)


@pytest.mark.parametrize("made", [*WAITING, partitioned, outer_steps, outer_gossip])
def test_strategies_say_where_they_wait(made):
    """The step, the layers, who waited for whom, how long. Small messages come in time, parts of a model do not."""
    comm = gg.VirtualCluster(3, bandwidth=300.0)
    trainer = gg.Trainer(small_net(), strategy=made(), comm=comm, timeout=1.0)
    with pytest.raises(gg.CommunicationError) as caught:
        trainer.fit(ZEROS, batch_size=5, epochs=2, progress=False)
    text = str(caught.value)
    assert re.match(r"rank \d: step \d+, layers '\w+' to '\w+': ", text), text
    assert re.search(r"waited \d+\.\d+ s for \d+ bytes (from|to be received by) rank \d", text), text


@pytest.mark.parametrize("made", [c for c in gg.strategies.BY_NAME.values() if c not in (*WAITING, gg.NoExchange)])
def test_those_that_wait_for_nobody_in_a_step_say_it_at_its_end(made):
    comm = gg.VirtualCluster(3, latency=0.9, bandwidth=300.0)
    trainer = gg.Trainer(small_net(), strategy=made(), comm=comm, timeout=1.0)
    with pytest.raises(gg.CommunicationError) as caught:
        trainer.fit(ZEROS, batch_size=5, epochs=2, progress=False)
    text = str(caught.value)
    assert re.match(r"rank \d: step \d+, (layers '\w+' to '\w+'|[\w ]+): ", text), text
    assert re.search(r"waited \d+\.\d+ s for (\d+ bytes (from|to be received by) )?rank \d", text), text


@pytest.mark.parametrize("compression", [None, gg.AdaComp(dense_below=0)], ids=["dense", "packed"])
def test_a_message_that_was_not_read_is_named(compression):
    """Rank 0 looks for it when the next step begins."""
    shape = (4,) if compression is None else (40, 40)  # of one slice, which is rank 0's; compressed
    comm = gg.VirtualCluster(2)
    x = gg.Exchange({"w": np.zeros(shape)}, strategy=gg.LayerwiseAllReduce(), compression=compression, comm=comm)
    calls = []

    def train(replica):
        for step in range(3):
            replica.gradients["w"] = np.ones(shape)
            calls.append((replica.rank, step))
            replica.begin()
            replica.need("w")
            replica.ready("w")
            if replica.rank == 1 and step == 1:
                return
            replica.end()

    with pytest.raises(gg.CommunicationError, match=r"step 2, layers 'w' to 'w': .*rank 0 waits for rank 1 to receive"):
        x.run(train)
    assert (0, 2) in calls


def test_a_sample_that_does_not_come_is_said():
    trainer = gg.Trainer(
        small_net(),
        strategy=gg.GossipGraD(shuffle_samples=True),
        comm=gg.VirtualCluster(3, latency=10.0),
        timeout=1.0,
    )
    with pytest.raises(gg.CommunicationError, match=r"step 1, shuffle: .*waited 1.000 s for \d+ bytes from rank \d"):
        trainer.fit(ZEROS, batch_size=5, progress=False)


def test_a_patient_rank_waits():
    comm = gg.VirtualCluster(3, latency=10.0)
    trainer = gg.Trainer(small_net(), comm=comm, timeout=11.0)
    for _ in range(3):
        trainer.train_step(*small_batches(np.random.default_rng(0), 3))


def test_nothing_is_left_after_a_failure():
    """The memory of a cluster that failed in the middle of its messages is given back."""
    import gc

    from gossipgrad import _core

    gc.collect()
    before = _core.memory()[0]
    for staleness in (0, 1):
        trainer = late_cluster(staleness)
        with pytest.raises(gg.CommunicationError):
            trainer.fit((ZEROS[0].copy(), ZEROS[1]), batch_size=5, progress=False)
        trainer.close()
        del trainer
    gc.collect()
    assert _core.memory()[0] == before
