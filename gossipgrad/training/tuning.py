"""Measuring the fastest algorithms and the fastest table of operations for a network, if a trainer is to tune."""

from __future__ import annotations

import functools
import time

from gossipgrad.errors import counted
from gossipgrad.history import Record
from gossipgrad.launch import environment
from gossipgrad.launch.terminal import Bar
from gossipgrad.training import algorithms, fingerprint
from gossipgrad.training.replicas import Replicas


def measured(
    replicas: Replicas, batch: int, training: bool, pays: bool, budget: algorithms.Budget, shown: bool
) -> list[Record]:
    """The algorithms of the convolutions of a step with this batch, as in trainer.algorithms. By rank 0.

    pays: measure those missing in the cache. shown: print that it measures.
    """
    if replicas.device.startswith("cuda"):
        where = algorithms.gpu(environment.devices()["gpu"], replicas.device, replicas.dtype, replicas.precision)
    else:
        where = algorithms.machine(replicas.core.isa, replicas.core.backend, replicas.threads, replicas.dtype)
    path, own = algorithms.cache_path(), algorithms.known(replicas.algorithms)
    orders = algorithms.ordered(replicas.algorithms)
    passes = algorithms.PASSES if training else algorithms.PASSES[:1]
    bar = Bar("measuring algorithms", shown)
    rows: list[tuple[algorithms.Key, str, str, float]] = []  # measured by this call
    seen: dict[str | None, algorithms.Measured] = {}  # for an unwritable cache

    # An argument of each measurement, not a setting: if one fails, this rank continues as the others do.

    def convolutions(first: str | None, within: float | None = None) -> algorithms.Measured:
        def measure(missing: list[algorithms.Key]) -> list[tuple[algorithms.Key, str, str, float]]:
            made: list[tuple[algorithms.Key, str, str, float]] = []
            left = budget.left() if within is None else within
            end, size = time.monotonic() + left, -(-len(missing) // algorithms.PARTS)
            for at in range(0, len(missing) if pays else 0, size):
                if time.monotonic() > end:
                    break
                bar.show(at / len(missing), f"{at} of {len(missing)} convolutions")
                part = missing[at : at + size]
                made += replicas.core.measure_algorithms(batch, training, part, end - time.monotonic(), first)
            rows.extend(made)
            return made

        wanted = replicas.core.convolutions(batch, training, first)
        there = where + (f", {first} first" if first is not None else "")
        seen[first] = algorithms.measured(wanted, passes, measure, there, path, own | seen.get(first, {}))
        return seen[first]

    def choices(first: str, within: float) -> list[algorithms.Choice]:
        return algorithms.choices(algorithms.report(convolutions(first, within)))

    try:
        if training and replicas.dtype == "float32":  # in bfloat16 one table has the operations
            net = fingerprint.text(fingerprint.network(replicas.net))

            def steps(size: int) -> tuple[dict[str, float], str]:
                return algorithms.compared(functools.partial(replicas.core.measure_tables, size), choices, budget)

            orders = algorithms.tables(batch, net, steps, where, path, orders, budget)
        first = dict(algorithms.first_tables(orders)).get(batch)
        found = orders + algorithms.report(convolutions(first))
    finally:
        bar.close()
    if rows:
        bar.close(f"{counted(len(rows), 'time')}; last bits may differ from those of other runs and machines;")
    return found
