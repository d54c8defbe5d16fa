"""Training curves of lenet, resnet20 and char_lstm on two devices, which computed the same but for rounding.

python tests/cuda/curves.py [DEVICE] [STEPS] [NETWORK...]

Each network learns to tell made-up classes apart, or to continue a made-up text, from the same weights and samples on
the CPU and on DEVICE (cuda), with precision="exact". Fails where the losses of the first steps differ by more than
rounding explains, or where the second half has another mean.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import gossipgrad as gg

FIRST, NEAR = 5, 2e-3  # first steps; max relative difference of their losses from the CPU's
MEAN = 0.05  # max difference between the means of the second half, relative to the first loss


def images(shape: tuple[int, ...], size: int):
    """Ten pictures, with as much noise again."""
    pictures = np.random.default_rng(1).standard_normal((10, *shape), np.float32)

    def batch(rng):
        y = rng.integers(10, size=size)
        return pictures[y] + rng.standard_normal((size, *shape), np.float32), y

    return batch


def text(rng):
    """Each character follows from the one before it, but for one in ten."""
    x = np.empty((32, 65), np.int64)
    x[:, 0] = rng.integers(65, size=32)
    for i in range(64):
        x[:, i + 1] = np.where(rng.random(32) < 0.1, rng.integers(65, size=32), (7 * x[:, i] + 3) % 65)
    return x[:, :-1], x[:, 1:]


NETWORKS = {
    "lenet": (gg.models.lenet, images((1, 28, 28), 64), gg.SGD(0.002, momentum=0.9)),
    "resnet20": (gg.models.resnet20, images((3, 32, 32), 128), gg.SGD(0.05, momentum=0.9)),
    "char_lstm": (lambda: gg.models.char_lstm(65, 64, hidden=128), text, gg.Adam(0.003)),
}


def curve(name: str, device: str, steps: int) -> np.ndarray:
    make, batch, optimizer = NETWORKS[name]
    rng = np.random.default_rng(0)
    threads = len(os.sched_getaffinity(0)) if device == "cpu" else 1
    options = {"optimizer": optimizer, "strategy": gg.NoExchange(), "device": device, "threads": threads}
    with gg.Trainer(make(), comm=gg.VirtualCluster(1), tune=False, **options) as trainer:
        losses = []
        for _ in range(steps):
            x, y = batch(rng)
            losses += trainer.train_step([x], [y])
    return np.array(losses)


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 120
    failed = []
    for name in sys.argv[3:] or NETWORKS:
        wanted, found = curve(name, "cpu", steps), curve(name, device, steps)
        first = np.abs(found[:FIRST] / wanted[:FIRST] - 1).max()
        means = wanted[steps // 2 :].mean(), found[steps // 2 :].mean()
        apart = abs(means[1] - means[0]) / wanted[0]
        good = np.isfinite(found).all() and first <= NEAR and apart <= MEAN
        print(
            f"{name}: loss {wanted[0]:.4f} at first, mean of the second half {means[0]:.4f} (cpu), {means[1]:.4f} "
            f"({device}); the first steps differ by {first:.1e}: {'the same curve' if good else 'ANOTHER CURVE'}",
            flush=True,
        )
        failed += [] if good else [name]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
