"""The metrics of the consensus model on a set that is split over the ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import given
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.checks import CLASS_LOSSES, targets_array
from gossipgrad.metrics import Metric, numbers
from gossipgrad.training.replicas import Replicas

ROWS = 65536  # max samples whose outputs are in memory at a time
BYTES = 2**26  # of outputs, about


def pieces(replicas: Replicas, parts: Sequence[Dataset], sharded: bool) -> list[Dataset]:
    """Each local rank's piece of a set that all ranks have, or its own part if `sharded`.

    Ranks have the same samples as in the core's evaluation of the loss.
    """
    if sharded:
        return list(parts)
    whole, size = parts[0], replicas.size
    ends = [0, *itertools.accumulate(given.shard_sizes(len(whole), size))]
    here = range(replicas.rank, replicas.rank + replicas.team.local)
    return [whole[ends[rank] : ends[rank + 1]] for rank in here if ends[rank] < ends[rank + 1]]


def chunks(part: Dataset, batch: int, most: int) -> list[tuple[Dataset, int]]:
    """Pieces of about `most` samples at most, and the size of their batches: the outputs are those of the whole part.

    Streams are cut into whole rows, along which layers carry their state; one row is a piece, however long.
    """
    if not part.streams:
        rows = max(most // batch, 1) * batch
        return [(part[at : at + rows], batch) for at in range(0, len(part), rows)]
    count = min(batch, len(part))
    steps = -(-len(part) // count)
    longer = len(part) - count * (steps - 1)  # rows with a sample more, the first ones
    each = max(most // steps, 1)
    firsts = [*range(0, count, each), count]
    begins = [row * (steps - 1) + min(row, longer) for row in firsts]
    ends = zip(begins, begins[1:], firsts, firsts[1:], strict=False)
    return [(part[begin:end], stop - first) for begin, end, first, stop in ends]


def measure(
    replicas: Replicas, parts: Sequence[Dataset], sharded: bool, batch: int, metrics: Sequence[Metric]
) -> dict[str, float]:
    """The metrics over all samples, by name; equal on every rank. parts: as for pieces. Collective."""
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
    most = min(ROWS, BYTES // (4 * math.prod(net.output_shape)))
    found_in = [one for part in pieces(replicas, parts, sharded) for one in chunks(part, batch, most)]
    calls = max(int.from_bytes(one, "little") for one in replicas.gather(len(found_in).to_bytes(8, "little")))
    found = [np.empty((0, sum(one.columns for one in metrics)))]
    problem: Exception | None = None
    for call in range(calls):  # predict is collective: a rank with fewer samples predicts one that it does not need
        chunk, size = found_in[call] if call < len(found_in) else (parts[0][:1], 1)
        outputs = replicas.core.predict(chunk.inputs_for_model(replicas.net.inputs), size)[0]
        if call >= len(found_in) or problem is not None:
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
