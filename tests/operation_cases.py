"""What the tests of operations share: tables and instruction sets, and how near to float64 a result has to be.

Tolerances are in units of rounding: an element may be off by a few roundings of the sum of the absolute values of its
terms, and a few more the longer the sum is.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import operations
import pytest

from gossipgrad import _core

ISAS = _core.info()["isas"]
ONEDNN = bool(_core.info()["onednn"])
# oneDNN takes its instruction set once a process: here the default, the others in processes of their own.
# At the level amx oneDNN's table leaves large products of float32 to the native one.
TABLES = [("native", isa) for isa in ISAS] + ([("onednn", "avx512" if ISAS[-1] == "amx" else None)] if ONEDNN else [])
tables = pytest.mark.parametrize(("backend", "isa"), TABLES, ids=[f"{b}-{i or 'default'}" for b, i in TABLES])
isas = pytest.mark.parametrize("isa", ISAS)
# Of products of matrices, which the level amx has of its own.
PRODUCTS = list(dict.fromkeys([*TABLES, ("native", "amx"), *([("onednn", "amx")] if ONEDNN else [])]))
products = pytest.mark.parametrize(("backend", "isa"), PRODUCTS, ids=[f"{b}-{i or 'default'}" for b, i in PRODUCTS])
product_isas = pytest.mark.parametrize("isa", operations.ISAS)

ROUNDING = 2.0**-24  # of float32, to nearest
TINY = 2.0**-126


def float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(what: str, found: np.ndarray, wanted: np.ndarray, magnitude: np.ndarray | float, terms: int = 1) -> None:
    """found is wanted (float64) up to roundings of `magnitude`, the sum of the absolute values of `terms` terms."""
    assert found.dtype == np.float32 and found.shape == wanted.shape, f"{what}: {found.shape}, wanted {wanted.shape}"
    allowed = ROUNDING * (4 + math.sqrt(terms)) * np.broadcast_to(magnitude, wanted.shape) + TINY
    with np.errstate(invalid="ignore"):
        off = np.abs(found.astype(np.float64) - wanted)
    bad = ~((off <= allowed) | (found == wanted))
    if bad.any():
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(bad, off / allowed, 0)), bad.shape))
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} elements are wrong, worst at {at}: "
            f"{found[at]!r}, wanted {wanted[at]!r} +- {allowed[at]:.3g}"
        )


def same(what: str, found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(found, wanted.astype(np.float32), err_msg=what)


def seeded(case) -> np.random.Generator:
    """Numbers of the case's own, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(case).encode()))


def relu_of(x):
    return np.where(x <= 0, np.float32(0), x)


def bfloat16(a):
    """Rounded to the nearest bfloat16, ties to even, by arithmetic on exact numbers."""
    mantissa, exponent = np.frexp(np.asarray(a, np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32)
