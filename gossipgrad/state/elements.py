"""Element types of foreign weights that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# PyTorch's name -> (bits of the exponent, bits of the fraction, True if the max exponent means infinity and NaN).
FLOAT8 = {"float8_e4m3fn": (4, 3, False), "float8_e5m2": (5, 2, True)}


def _float8(name: str) -> NDArray[np.float32]:
    """The value of each of the 256 codes."""
    exponent_bits, fraction_bits, infinite = FLOAT8[name]
    codes = np.arange(256)
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    bias = (1 << exponent_bits - 1) - 1
    values = np.ldexp(np.where(exponent > 0, 1 + fraction, fraction), np.maximum(exponent, 1) - bias)
    if infinite:
        values[exponent == (1 << exponent_bits) - 1] = np.nan
        values[(exponent == (1 << exponent_bits) - 1) & (fraction == 0)] = np.inf
    else:
        values[codes & 127 == 127] = np.nan
    return np.asarray(np.where(codes < 128, values, -values), np.float32)


def decoded(name: str, stored: NDArray[Any]) -> NDArray[Any]:
    """The elements of this type, by PyTorch's name: bfloat16 and 8-bit types as float32, all others as they are
    stored."""
    if name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return _float8(name)[stored] if name in FLOAT8 else stored
