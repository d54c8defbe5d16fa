"""Memory: a warm step allocates nothing, and what is gone has left nothing."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from conftest import DEADLINE, ROOT
from network_cases import GRAPHS, backends, batch_for, trainer_of

from gossipgrad import _core

pytestmark = pytest.mark.usefixtures("no_forced_backend")

STEADY = """
import sys
import numpy as np
import gossipgrad as gg
from gossipgrad import _core

backend, strategy = sys.argv[1], sys.argv[2]
rng = np.random.default_rng(0)
assert _core.memory()[0] == 0, _core.memory()


def main():
    x = gg.Input((1, 12, 12))
    a = gg.Conv2d(6, 5, name="a")(x)
    b = gg.Dropout(0.3)(gg.ReLU()(gg.Conv2d(6, 5, name="b")(x)))
    net = gg.Model(x, gg.Linear(10)(gg.Flatten()(gg.MaxPool2d(2)(gg.Concat()(a, b, gg.Add()(a, b))))))
    ranks = 2 if strategy == "gossipgrad" else 1
    schedule = gg.schedules.StepDecay(every=7)
    trainer = gg.Trainer(
        net,
        optimizer=gg.SGD(0.01, momentum=0.9, weight_decay=1e-4, nesterov=True, schedule=schedule),
        strategy=gg.GossipGraD() if ranks > 1 else gg.NoExchange(),
        comm=gg.VirtualCluster(2) if ranks > 1 else None,
        backend=None if backend == "auto" else backend,
    )
    samples = rng.integers(0, 256, (ranks * (110 * 8 + 3), 1, 12, 12)).astype(np.uint8)
    data = _core.Dataset(samples, rng.integers(0, 10, len(samples)).astype(np.int32), 1 / 255, -0.5)
    core = trainer.core
    assert core.begin(data, 8, True) == 111
    for epoch in range(2):
        core.epoch(epoch)
        core.run(8)
        live, made = _core.memory()
        core.run(100)
        assert _core.memory() == (live, made), (epoch, live, made, _core.memory())
        core.run(3)  # with the ragged batch
        record = core.end_epoch()
        assert np.isfinite(record["train_loss"]), record
    live, made = _core.memory()
    core.epoch(2)
    core.run(111)  # now the ragged batch's plan is warm as well
    assert _core.memory() == (live, made), (live, made, _core.memory())
    core.evaluate(data, 32)
    trainer.predict(samples[:7].astype(np.float32))
    core.exchange.arena("weight"), core.exchange.arena("gradient"), core.exchange.arena("momentum")


main()
for wrong in range(2):  # what fails leaves nothing either
    try:
        if wrong == 0:
            gg.Sequential([gg.Conv2d(3, 9)], input=(1, 5, 5))
        else:
            trainer = gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy")
            trainer.train_step(np.ones((2, 5), np.float32), np.ones((2, 1), np.float32))
    except ValueError:
        continue
    raise AssertionError(wrong)
trainer = None
import gc
gc.collect()
print("left", _core.memory()[0])
"""


@pytest.mark.core(2)
@backends
@pytest.mark.parametrize("strategy", ["no-exchange", "gossipgrad"])
def test_memory_of_warm_steps(backend, strategy):
    """A warm step allocates nothing; when all is gone the core holds nothing."""
    done = subprocess.run(
        [sys.executable, "-c", STEADY, backend, strategy], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["left", "0"], done.stdout + done.stderr


@pytest.mark.full
def test_memory_comes_back(rng):
    gc.collect()
    before = _core.memory()[0]
    for make in GRAPHS:
        net = make()
        trainer = trainer_of(net)
        trainer.train_step(*batch_for(net, rng, 5))
        trainer.predict(batch_for(net, rng, 3)[0])
        assert _core.memory()[0] > before
        trainer.close()
        del trainer, net
    gc.collect()
    assert _core.memory()[0] == before
