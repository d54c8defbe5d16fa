"""Virtual ranks die while the others sum gradients: survivors stay bit-equal, and each sample counts exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from test_survival import linear, one_hot, own_weights

import gossipgrad as gg

SAMPLES, BATCH, LR = 61, 3, 0.1
COMPRESSION = gg.AdaComp(bin_size=8, dense_below=1, warmup=0)

STRATEGIES = {
    "allreduce": lambda: gg.AllReduce(),
    "bfloat16": lambda: gg.AllReduce(wire_dtype="bfloat16"),
    "layerwise": lambda: gg.LayerwiseAllReduce(bucket_bytes=1, chunk_bytes=128),
}
OPTIMIZERS = {
    "sgd": lambda: gg.SGD(lr=LR),
    "momentum": lambda: gg.SGD(lr=LR, momentum=0.9),
    "adam": lambda: gg.Adam(lr=0.01),
}


def trained(strategy, p, deaths, *, optimizer="sgd", epochs=1, net=None, compression=None, **options):
    x, y = one_hot(SAMPLES)
    trainer = gg.Trainer(
        net or linear(SAMPLES),
        loss="mean_squared_error",
        optimizer=OPTIMIZERS[optimizer](),
        strategy=strategy,
        compression=compression,
        comm=gg.VirtualCluster(p, deaths=deaths, **options),
    )
    history = trainer.fit(x, y, epochs=epochs, batch_size=BATCH, progress=False)
    return trainer, history


def check_once(weights: np.ndarray, tolerance: float = 1e-3) -> None:
    """Weight i has moved by 2 * lr / B, in one step of B samples, and B - 1 others have moved as far."""
    batch = 2 * LR / weights
    whole = np.rint(batch)
    assert (np.abs(batch - whole) <= tolerance * batch).all(), batch
    sizes, counts = np.unique(whole, return_counts=True)
    assert (counts % sizes == 0).all(), (sizes, counts)


def check_equal(trainer, history, p, deaths) -> None:
    assert trainer.size == p - len(deaths) and len(set(history.weights_sha256)) == 1
    assert sorted(rank for view in history.views for rank in view["died"]) == sorted(deaths)
    assert all(view["trained_again"] == 0 for view in history.views)


@pytest.mark.parametrize("name", ["allreduce", "layerwise"])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_a_step_counts_for_all_or_for_none(name, p):
    """A death before, in and after each message of a step: 2 * (p - 1) of a reduction."""
    for after in range(2 * (p - 1) * (8 if name == "layerwise" else 1) + 2):
        deaths = {p - 1: gg.Death(step=2, after_messages=after)}
        trainer, history = trained(STRATEGIES[name](), p, deaths)
        check_equal(trainer, history, p, deaths)
        check_once(own_weights(trainer)[0])
