"""Random numbers of samples: functions of (seed, epoch, sample) alone, so no rank, thread or order changes them.

Philox4x32-10 as in csrc/base/random.c, for many samples at a time: the sample is the block's index, the epoch its step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

AUGMENT = 12  # GG_RANDOM_AUGMENT
ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_A, _B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)


def words(seed: int, epoch: int, samples: ArrayLike, block: int = 0, purpose: int = AUGMENT) -> NDArray[np.uint64]:
    """Four random integers in 0..2^32-1 for each sample, (n, 4). block: 0, 1, ... gives further ones."""
    c0 = np.atleast_1d(np.asarray(samples)).astype(np.uint64) & _LOW
    c1 = np.full_like(c0, epoch & 0xFFFFFFFF)
    c2 = np.full_like(c0, (epoch >> 32 & 0xFFFFFF) | purpose << 24)
    c3 = np.full_like(c0, block)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(ROUNDS):
        a, b = _A * c0, _B * c2
        c0, c1 = (b >> _HALF) ^ c1 ^ np.uint64(k0), b & _LOW
        c2, c3 = (a >> _HALF) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def uniform(seed: int, epoch: int, samples: ArrayLike, block: int = 0) -> NDArray[np.float64]:
    """Four numbers in [0, 1) for each sample, (n, 4)."""
    return np.asarray(words(seed, epoch, samples, block) * 2.0**-32)


def integers(seed: int, epoch: int, samples: ArrayLike, count: int) -> NDArray[np.int64]:
    """One integer in 0..count-1 for each sample, (n,), uniform to the precision of 53 bits."""
    drawn = words(seed, epoch, samples)
    bits = (drawn[:, 0] << np.uint64(21)) | (drawn[:, 1] >> np.uint64(11))
    return np.minimum((bits * 2.0**-53 * count).astype(np.int64), count - 1)
