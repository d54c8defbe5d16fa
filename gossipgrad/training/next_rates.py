"""The learning rates of the next steps, as the core reads them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from gossipgrad import _core, optim

Record = dict[str, Any]


def until(optimizer: optim.Optimizer, fixed: float | None, step: int, last: int) -> Record:
    """The rates of the steps from `step` to `last`. fixed: a rate in place of the optimiser's."""
    if fixed is not None:
        return {"kind": "constant", "lr": fixed}
    first = max(step - 1, 0)  # exchanges in flight may still belong to the step before
    return optimizer.rates(first, last + 1 - first)


def said(rates: Record, step: int, last: int) -> str:
    """The first and the last rate, and a checksum of all."""
    values = np.asarray(rates.get("values", ()), np.float64)
    text = json.dumps(rates | {"values": values.tolist()}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{_core.rate(rates, step):g} to {_core.rate(rates, last):g} (checksum {digest})"
