"""Training that goes on in the middle of an epoch: with batches, state and counts as if it had never stopped."""

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data.source import Source

COUNT, BATCH = 47, 4


class Rows(Source):
    """A set that is read, not in memory."""

    def __init__(self, x, y):
        self.x, self.targets, self.shape, self.dtype = x, y, x.shape[1:], x.dtype

    def __len__(self):
        return len(self.x)

    def read(self, rows, epoch, samples, targets):
        samples[:] = self.x[rows]


def images():
    generator = np.random.default_rng(5)
    return generator.standard_normal((COUNT, 1, 8, 8), np.float32), generator.integers(0, 3, COUNT).astype(np.int32)


def network():
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(8), gg.Dropout(0.3), gg.Linear(3)]
    return gg.Sequential(layers, input=(1, 8, 8), name="small")


def trainer_of(strategy, ranks=3, net=None, optimizer=None, **options):
    return gg.Trainer(
        net or network(),
        loss="cross_entropy",
        optimizer=optimizer or gg.SGD(lr=0.05, momentum=0.9),
        strategy=strategy,
        comm=gg.VirtualCluster(ranks),
        **options,
    )


def begun(trainer, read=False):
    """The trainer with its training set, and the steps of an epoch."""
    x, y = images()
    made = gg.Dataset(Rows(x, y)) if read else gg.Dataset(x, y)
    return trainer.core.begin(
        made.for_network("cross_entropy", trainer.net.input_shape, trainer.net.output_shape), BATCH
    )


# ---- the position


@pytest.mark.parametrize("read", [False, True], ids=["memory", "source"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["still", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_epoch_goes_on_at_any_step(ranks, shuffled, read):
    """A second trainer, given the state of the first one after some steps, reads the batches that are left."""
    strategy = gg.GossipGraD(shuffle_samples=shuffled, staleness=0)
    for stop in (0, 1, 3):
        whole, first, second = (trainer_of(strategy, ranks) for _ in range(3))
        steps = [begun(one, read) for one in (whole, first, second)][0]
        for one in (whole, first):
            one.core.epoch(0)
            one.core.run(steps)
            one.core.epoch(1)
        assert whole.core.run(steps) == steps
        assert first.core.run(stop) == stop
        second.set_state(*first.state())
        second.core.epoch(1, stop)
        assert second.core.progress()["steps"] == 0
        assert second.core.run(steps) == steps  # the number of the step, not of those that this one has done
        assert second.core.progress()["steps"] == steps - stop
        assert second.weights_sha256() == whole.weights_sha256()
        for one in (whole, second):
            one.core.settle()
        assert [second.sample_ids(r).tolist() for r in range(ranks)] == [
            whole.sample_ids(r).tolist() for r in range(ranks)
        ]
        assert second.audit_samples()["ok"]
        for one in (whole, first, second):
            one.close()


def test_positions_outside_of_the_epoch_are_refused():
    trainer = trainer_of(gg.AllReduce(), 2)
    with pytest.raises(ValueError, match="step: 1; allowed in an epoch of 0 steps are 0 to 0"):
        trainer.core.epoch(0, 1)
    steps = begun(trainer)
    for wrong in (-1, steps + 1):
        with pytest.raises(ValueError, match=rf"step: {wrong}; allowed in an epoch of {steps} steps are 0 to {steps}"):
            trainer.core.epoch(0, wrong)
    trainer.core.epoch(0, steps)
    assert trainer.core.run(1) == steps and trainer.step == 0
