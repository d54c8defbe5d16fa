"""With compression an all-reduce leaves the updates of large weights to the next forward pass, which makes rows current
as it reads them: the bits of updates at the end of the step."""

from __future__ import annotations

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
    trainer.core.settle()
    names = [name for name in trainer.core.arenas() if name != "gradient"]
    found = {name: [trainer.core.arena(name, rank) for rank in range(p)] for name in names}
    trainer.close()
    return {
        name: [{key: one.tobytes() for key, one in rank.items()} for rank in ranks] for name, ranks in found.items()
    }


def settle(trainer, step):
    trainer.core.settle()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_settled_after_each_step_or_left(strategy, optimizer, compression):
    if optimizer in ("plain", "nesterov") and compression == "local momentum":
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
