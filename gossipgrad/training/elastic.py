"""A position in the middle of an epoch, continued on another number of ranks."""

from __future__ import annotations

from typing import Any

from gossipgrad import _core

Record = dict[str, Any]

READ_ALL = 2**63 - 1  # a rank's whole share: csrc/data/division.h


def continued(position: Record, size: int, workers: int) -> Record:
    """The position of `Replicas.where_in_epoch` for `size` ranks; the first `workers` ranks train.

    The samples that no rank has read are dealt anew (csrc/data/division.h). The batch size, 0, is that of the new fit.
    """
    read = position["read"] if position["left"] else [READ_ALL] * len(position["read"])
    return position | {
        "begun": position["step"],
        "done": [0] * workers,
        "divisions": [*position["divisions"], read],
        "read": [0] * workers,
        "batch_size": 0,
        "counts": _counts(position["counts"], size),
    }


def go_on(core: _core.Trainer, epoch: int, position: Record, batch: int, rank: int, local: int) -> int:
    """Continue at the position of `Replicas.where_in_epoch`, in batches of `batch`; returns the steps done.

    Of the local ranks, the first one `rank`. Collective.
    """
    carried = [core.carried(one) for one in range(local)]
    former = position["batch_size"] or batch
    if former != batch:
        core.reshape(batch=former)
    core.epoch(epoch, *(position[key] for key in ("step", "begun", "done", "divisions")))
    if former != batch:
        core.reshape(batch=batch)
    core.set_counts(position["counts"][rank : rank + local])
    for one, state in enumerate(carried):
        core.load_carried(state, one)
    return int(position["step"])


def _counts(counts: list[Record], size: int) -> list[Record]:
    """Counts of `size` ranks with the same sums; their seconds are those of the slowest rank."""
    if not counts:
        return []
    first: Record = {}
    for key in counts[0]:
        values = [one[key] for one in counts]
        if isinstance(values[0], list):
            first[key] = [sum(column) for column in zip(*values, strict=True)]
        elif _is_shared(key):
            first[key] = max(values)
        else:
            first[key] = sum(values)
    others = {key: value if _is_shared(key) else _zero(value) for key, value in first.items()}
    return [first, *(dict(others) for _ in range(size - 1))]


def _is_shared(key: str) -> bool:
    """True for counts that all ranks share: they are not summed over the ranks."""
    return key == "steps" or key.endswith("seconds")


def _zero(value: Any) -> Any:
    return [0] * len(value) if isinstance(value, list) else type(value)(0)
