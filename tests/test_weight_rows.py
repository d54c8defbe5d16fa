"""With compression an all-reduce leaves the updates of large weights to the next forward pass, which makes rows current
as it reads them: the bits of updates at the end of the step."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from network_cases import ISAS

import gossipgrad as gg

STRATEGIES = [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=900)]
DECAY = {"schedule": gg.schedules.StepDecay(every=1, gamma=0.9)}  # another rate in each step
OPTIMIZERS = {
    "plain": gg.SGD(lr=0.05, **DECAY),
    "momentum": gg.SGD(lr=0.05, **DECAY, momentum=0.9, weight_decay=0.01),
    "nesterov": gg.SGD(lr=0.05, **DECAY, momentum=0.9, nesterov=True),
    "adam": gg.Adam(lr=0.01, weight_decay=0.01, **DECAY),
    "lion": gg.Lion(lr=0.01, weight_decay=0.01, **DECAY),
}
COMPRESSIONS = {
    "strict": gg.AdaComp(warmup=1, dense_below=1),
    "exact": gg.AdaComp(warmup=2, dense_below=1, mode="exact"),
    "local momentum": gg.AdaComp(warmup=0, dense_below=1, local_momentum=True),
}
# Rows that are no multiple of a vector; batches of which products are packed, and others.
SIZES = (64, 5, 64, 100, 64, 64)


def network():
    layers = [gg.Flatten(), gg.Linear(203), gg.ReLU(), gg.Linear(97, bias=False), gg.Linear(10)]
    return gg.Sequential(layers, input=(1, 27, 23), name="wide")


def trained(p, strategy, optimizer, compression, backend=None, threads=1, interrupt=lambda trainer, step: None):
    """The weights, moments and residues of all ranks after some steps, of ranks with different batches."""
    trainer = gg.Trainer(
        network(),
        optimizer=optimizer,
        strategy=strategy,
        seed=3,
        threads=threads,
        backend=backend,
        comm=gg.VirtualCluster(p),
        compression=compression,
    )
    generator = np.random.default_rng(1)
    for step, size in enumerate(SIZES):
        sizes = [size + rank for rank in range(p)]
        x = [generator.standard_normal((n, *trainer.net.input_shape)).astype(np.float32) for n in sizes]
        trainer.train_step(x, [generator.integers(0, 10, n) for n in sizes])
        interrupt(trainer, step)
    trainer.core.exchange.settle()
    names = [name for name in trainer.core.exchange.arenas() if name != "gradient"]
    found = {name: [trainer.core.exchange.arena(name, rank) for rank in range(p)] for name in names}
    trainer.close()
    return {
        name: [{key: one.tobytes() for key, one in rank.items()} for rank in ranks] for name, ranks in found.items()
    }


def settle(trainer, step):
    trainer.core.exchange.settle()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_settled_after_each_step_or_left(strategy, optimizer, compression):
    if optimizer in ("plain", "nesterov", "lion") and compression == "local momentum":
        pytest.skip("refused")
    how = (3, strategy, OPTIMIZERS[optimizer], COMPRESSIONS[compression], "native")
    assert trained(*how) == trained(*how, interrupt=settle)


@pytest.mark.parametrize("isa", ISAS)
def test_on_each_isa(monkeypatch, isa):
    monkeypatch.setenv("GOSSIPGRAD_ISA", isa)
    how = (2, gg.AllReduce(), OPTIMIZERS["momentum"], COMPRESSIONS["strict"], "native")
    assert trained(*how) == trained(*how, interrupt=settle)


@pytest.mark.parametrize("p", [2, 5])
def test_several_threads_leave_nothing(p):
    how = (p, gg.AllReduce(), OPTIMIZERS["momentum"], COMPRESSIONS["strict"], "native")
    assert trained(*how) == trained(*how, threads=2)


def test_a_rate_that_is_set_is_that_of_the_steps_behind_it():
    def sets(trainer, step):
        if step == 3:
            trainer.learning_rate = 1e-4

    def settles_and_sets(trainer, step):
        settle(trainer, step)
        sets(trainer, step)

    how = (2, gg.AllReduce(), gg.SGD(lr=0.1, momentum=0.9), COMPRESSIONS["strict"], "native")
    assert trained(*how, interrupt=sets) == trained(*how, interrupt=settles_and_sets)


# ------------------------------------------------------------------------- sums that the next step waits for


class Settles(gg.Callback):
    """What was in flight has been completed before on_step."""

    every = 1

    def on_step(self, trainer, step):
        pass


def fitted(p, strategy, how, callbacks=()):
    """Of three epochs of three steps, with small batches in the last one: the spans of all ranks, and all bits."""
    layers = [gg.Flatten(), gg.Linear(1340), gg.ReLU(), gg.Linear(800), gg.ReLU(), gg.Linear(10)]
    trainer = gg.Trainer(
        gg.Sequential(layers, input=(1, 28, 28), name="two messages"),
        optimizer=OPTIMIZERS["momentum"],
        strategy=strategy,
        seed=3,
        threads=1,
        backend="native",
        comm=gg.VirtualCluster(p, latency=1e-4, bandwidth=1e9),
        trace=10_000,
        compression=COMPRESSIONS[how],
    )
    generator = np.random.default_rng(1)
    n = 2 * 8 * p + 1
    data = generator.standard_normal((n, 1, 28, 28)).astype(np.float32), generator.integers(0, 10, n)
    history = trainer.fit(data, epochs=3, batch_size=8, progress=False, callbacks=callbacks)
    spans = [trainer.core.exchange.spans(rank) for rank in range(p)]
    names = [name for name in trainer.core.exchange.arenas() if name != "gradient"]
    bits = hashlib.sha256()
    for rank in range(p):
        for name in names:
            for one in trainer.core.exchange.arena(name, rank).values():
                bits.update(one.tobytes())
    trainer.close()
    return spans, (bits.hexdigest(), history["train_loss"])


@pytest.mark.core(2)
@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize("p", [2, 3, 5])
def test_sums_are_waited_for_where_the_next_step_needs_them(p, how):
    """With the bits of sums that are waited for in their step."""
    spans, bits = fitted(p, gg.AllReduce(), how)
    _, same = fitted(p, gg.AllReduce(), how, Settles())
    assert same == bits
    assert fitted(p, gg.LayerwiseAllReduce(bucket_bytes=1), how)[1] == bits

    def of_steps(found, rank, name, which):
        return {one[3]: one[which] for one in found[rank] if one[2] == name}

    for rank in range(p):
        ends, begins = of_steps(spans, rank, "step", 1), of_steps(spans, rank, "gradients", 0)
        sums = of_steps(spans, rank, "gradients", 1)
        assert set(sums) == set(ends) == set(range(9))
        # The first steps send everything, and nothing of them is left.
        assert {step for step in ends if sums[step] > ends[step]} == set(range(COMPRESSIONS[how].warmup, 9))
        assert all(sums[step] <= begins[step + 1] for step in range(8))


@pytest.mark.parametrize(("p", "own_sum"), [(2, False), (3, True)])
def test_a_large_bias_is_part_of_the_message_of_two_ranks(p, own_sum):
    """With three ranks, it would be a third more bytes in messages to all."""

    def sent(strategy, compression):
        trainer = gg.Trainer(
            gg.Sequential([gg.Linear(9500), gg.Linear(3)], input=(4,), name="biased"),
            optimizer=gg.SGD(lr=0.05, momentum=0.9),
            strategy=strategy,
            seed=3,
            comm=gg.VirtualCluster(p),
            compression=compression,
        )
        x = np.random.default_rng(0).standard_normal((p, 5, 4)).astype(np.float32)
        before = trainer.team.counts()[1]
        for _ in range(4):
            trainer.train_step(list(x), [np.arange(5) % 3] * p)
        messages = trainer.team.counts()[1] - before
        if compression is not None:
            assert list(compression.packed(trainer.net)) == ["fc1.weight", "fc2.weight"]
        trainer.close()
        return messages / 4 / p  # of a rank in a step

    messages = sent(gg.AllReduce(), gg.AdaComp(warmup=0, dense_below=9501)) - sent(gg.NoExchange(), None)
    assert messages > p - 1 if own_sum else messages == p - 1


UNLIKE = """
import os, sys, numpy as np, gossipgrad as gg
team = gg.Team()
rank, size = team.rank, team.size
team.close()
generator = np.random.default_rng(0)
n = 3 * 8 * size + 1
x, y = generator.standard_normal((n, 8)).astype(np.float32), generator.integers(0, 10, n)
found = []
for strategy in (gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)):
    trainer = gg.Trainer(
        gg.Sequential([gg.Linear(9500), gg.ReLU(), gg.Linear(10)], input=(8,), name="unlike"),
        optimizer=gg.SGD(lr=0.05, momentum=0.9), strategy=strategy, seed=3, backend="native", threads=1 + rank % 2,
        compression=gg.AdaComp(warmup=1, dense_below=9501))
    losses = trainer.fit((x, y), epochs=3, batch_size=8, progress=False)["train_loss"]
    for step in range(4):
        few = 1 + (rank + step) % size
        trainer.train_step(x[:few], y[:few])
    found.append((trainer.weights_sha256(), losses))
    trainer.close()
assert found[0] == found[1]
assert len(set(found[0][0])) == 1
print("alike", flush=True)
"""


@pytest.mark.core(1)
@pytest.mark.parametrize("links", ["shared", "messages", "TCP"])
@pytest.mark.parametrize("p", [2, 3])
def test_ranks_of_which_one_asks_and_another_does_not(mpirun, p, links):
    """One has two threads, and waits for sums in their step, also for that of the bias, which needs all ranks."""
    env = {"GOSSIPGRAD_SHARED": "1" if links == "shared" else "0", "GOSSIPGRAD_CHECK_BUFFERS": "1"}
    if links == "TCP":  # where a message of some KiB waits for its receiver
        rest = ("if_include", "lo"), ("eager_limit", "1024"), ("rndv_eager_limit", "1024")
        env |= {"OMPI_MCA_btl": "tcp,self", **{f"OMPI_MCA_btl_tcp_{name}": value for name, value in rest}}
    assert mpirun(p, UNLIKE, env=env).stdout.split() == ["alike"] * p
