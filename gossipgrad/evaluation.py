"""The metrics of the consensus model on a set that is split over the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data.arrays import Dataset
from gossipgrad.data.checks import CLASS_LOSSES, targets_array
from gossipgrad.metrics import Metric, numbers
from gossipgrad.replicas import Replicas

ROWS = 65536  # samples whose outputs are in memory at a time, at most
BYTES = 2**26  # of outputs, about


def pieces(replicas: Replicas, parts: Sequence[Dataset], sharded: bool) -> list[Dataset]:
    """What each rank of this process is to evaluate of a set that all have, or of its own parts if `sharded`."""
    if sharded:
        return list(parts)
    whole, size = parts[0], replicas.size
    ends = [len(whole) * rank // size for rank in range(size + 1)]
    here = range(replicas.rank, replicas.rank + replicas.team.local)
    return [whole[ends[rank] : ends[rank + 1]] for rank in here if ends[rank] < ends[rank + 1]]


def measure(
    replicas: Replicas, parts: Sequence[Dataset], sharded: bool, batch: int, metrics: Sequence[Metric]
) -> dict[str, float]:
    """The metrics over all samples, by name; the same on every rank. parts: as for pieces. Collective."""
    if not metrics:
        return {}
    own = np.ascontiguousarray(_own_numbers(replicas, parts, sharded, batch, metrics), "<f8")
    everywhere = np.concatenate([np.frombuffer(one, "<f8") for one in replicas.gather(own.tobytes())])
    ends = np.cumsum([one.columns for one in metrics])
    columns = np.split(everywhere.reshape(-1, own.shape[1]), ends[:-1], axis=1)
    return {one.name: one.total(column) for one, column in zip(metrics, columns, strict=True)}


def _own_numbers(
    replicas: Replicas, parts: Sequence[Dataset], sharded: bool, batch: int, metrics: Sequence[Metric]
) -> NDArray[np.float64]:
    """The numbers of this process's samples, all metrics' side by side."""
    net = replicas.net
    rows = max(min(ROWS, BYTES // (4 * math.prod(net.output_shape))) // batch, 1) * batch
    chunks = [one[at : at + rows] for one in pieces(replicas, parts, sharded) for at in range(0, len(one), rows)]
    calls = max(int.from_bytes(one, "little") for one in replicas.gather(len(chunks).to_bytes(8, "little")))
    found = [np.empty((0, sum(one.columns for one in metrics)))]
    problem: Exception | None = None
    for call in range(calls):  # predict is collective: who has fewer samples asks for one more that it does not need
        chunk = chunks[call] if call < len(chunks) else parts[0][:1]
        outputs = replicas.core.predict(chunk.inputs_for_model(replicas.net.inputs), batch)[0]
        if call >= len(chunks) or problem is not None:
            continue
        try:
            head = replicas.heads[0]
            targets = targets_array(
                chunk.targets_of(head.target, replicas.net.target_names), head.kind, head.shape, "targets", head.ignored
            )
            if head.kind not in CLASS_LOSSES:  # the loss has them as rows
                targets = targets.reshape(outputs.shape)
            found.append(np.concatenate([numbers(one, outputs, targets) for one in metrics], axis=1))
        except Exception as error:  # a metric of a user's may raise anything
            problem = error
    with replicas.agreed("metrics"):
        if problem is not None:
            raise problem
    return np.concatenate(found)
