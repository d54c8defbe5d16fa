"""A few training steps of one network on one device, for what looks at a process from outside (on_gpu.sh).

python tests/cuda/one_step.py NETWORK DEVICE STEPS [mpi|time]

NETWORK is one of tests/test_strict.py, or of gossipgrad.models: lenet, resnet20, char_lstm. Prints the losses, with
"time" also the seconds of a warm step: median and range.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

import gossipgrad as gg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from test_strict import NETWORKS  # noqa: E402


def of_models(name: str):
    """(network, batch, loss) as a benchmark has them."""
    if name == "char_lstm":
        net, size = gg.models.char_lstm(65, 100), 50
        return net, lambda rng: (rng.integers(65, size=(size, 100)), rng.integers(65, size=(size, 100)))
    net = getattr(gg.models, name)()
    size, shape = {"lenet": (64, (1, 28, 28)), "resnet20": (128, (3, 32, 32))}[name]
    return net, lambda rng: (rng.standard_normal((size, *shape), np.float32), rng.integers(10, size=size))


def main() -> None:
    name, device, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    how = sys.argv[4] if len(sys.argv) > 4 else ""
    loss = "cross_entropy"
    if name in NETWORKS:
        make, batches, loss = NETWORKS[name]
        net, batch = make(), lambda rng: batches(rng, 12)
    else:
        net, batch = of_models(name)
    rng = np.random.default_rng(0)
    comm = None if how == "mpi" else gg.VirtualCluster(1)
    seconds = []
    with gg.Trainer(net, loss=loss, comm=comm, device=device, strategy=None if how == "mpi" else gg.NoExchange()) as t:
        x, y = batch(rng)
        given = (x, y) if how == "mpi" else ([x], [y])
        losses = []
        for _ in range(steps):
            begin = time.perf_counter()
            losses.append(t.train_step(*given))
            seconds.append(time.perf_counter() - begin)
        if t.rank == 0:
            print(name, device, losses[0], losses[-1])
    warm = seconds[len(seconds) // 5 :]
    if how == "time":
        print(f"{1e3 * statistics.median(warm):.3f} ms a step, {1e3 * min(warm):.3f} to {1e3 * max(warm):.3f}")


if __name__ == "__main__":
    main()
