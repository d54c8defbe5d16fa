"""The time of a training step: each pass of each operation, beside the peaks of the machine.

The peaks are measured shortly before, by the same core with as many threads: a product of two matrices, and a copy in
memory. A pass with a high share of the first is bound by arithmetic, a pass with a high share of the second by memory.
Shares may be above 1: with Winograd's method a convolution has fewer operations than counted, and caches are faster
than memory.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np

from gossipgrad import models, strategies
from gossipgrad.bench import Others, synthetic_batch
from gossipgrad.errors import integer
from gossipgrad.layers import Linear
from gossipgrad.literals import Backend, ConvAlgorithm, DType, Loss
from gossipgrad.model import Model, Sequential
from gossipgrad.optim import SGD
from gossipgrad.trainer import Trainer

Record = dict[str, Any]

_SIZE = 1024  # of the matrices
_COPIED = 2**26  # copied bytes, far more than caches hold
_TIMES = 8  # repetitions: the fastest counts


def product_peak(threads: int = 1, dtype: DType = "float32") -> float:
    """GFLOP/s of a product of two matrices of 1024 x 1024 in this type by the faster of the tables."""
    best = 0.0
    for backend in get_args(Backend) if dtype == "float32" else ("onednn",):
        net = Sequential([Linear(_SIZE, bias=False)], input=(_SIZE,))
        with Trainer(
            net,
            loss="mean_squared_error",
            strategy=strategies.NoExchange(),
            threads=threads,
            backend=backend,
            tune=False,
            dtype=dtype,
            device="cpu",
        ) as one:
            x, y = synthetic_batch(net, "mean_squared_error", _SIZE)
            for _ in range(_TIMES):
                one.core.bench(x, y, 0, 1)
                one.core.set_timing(True)
                one.core.bench(x, y, 0, 1)
                seconds = [
                    step["passes"][name]["seconds"] / step["passes"][name]["products"]
                    for step in one.core.profile()["operations"]
                    if step["operation"] == "linear"
                    for name in step["passes"]
                ]
                best = max(best, 2e-9 * _SIZE**3 / min(seconds))
    return best


def copy_peak(threads: int = 1) -> float:
    """GB/s of copying in memory; bytes read and bytes written count."""
    source, target = np.ones(_COPIED // 8), np.zeros(_COPIED // 8)
    pieces = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def copied() -> float:
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pieces))
            return time.perf_counter() - start

        return 2e-9 * _COPIED / min(copied() for _ in range(_TIMES))


def step(
    model: str = "lenet",
    batch_size: int | None = None,
    threads: int = 1,
    steps: int = 20,
    warmup: int = 5,
    backend: Backend | None = None,
    conv_algorithm: ConvAlgorithm = "auto",
    tune: bool | None = None,
    dtype: DType = "float32",
    net: Model | None = None,
    loss: Loss = "cross_entropy",
) -> Record:
    """A training step of one rank on the CPU (SGD with momentum) by operations and passes, in terms of JSON.

    Arguments as of bench.step. net, loss: a network of your own, called `model` in the result.

    "operations": one record for each pass of each operation. Its fields: number (of the operation), name (its layers,
    joined by "+"), operation, pass, layout, backend, algorithm (of convolutions), ms (its shortest in all steps), share
    (of the step), gflops (GFLOP/s) and of_product (share of "product_gflops"), mbytes (the min it has to move),
    gbytes_per_s and of_copy (share of "copy_gbytes_per_s"), with_update. with_update: the update computes the gradient
    of this weight itself, row by row. Then ms is of the bias alone, and bytes and operations are 0.

    "ms": the fastest whole step. "loss_ms", "update_ms": the losses, the optimiser. "other_ms": the rest of the step:
    reading the batch, gaps between the operations, and time taken by other processes. "others_busy": cores that these
    used meanwhile; all figures are for a machine on which nothing else runs.
    """
    if net is None:
        entry = models.by_name(model)
        net, loss = entry.make(), entry.loss
        batch_size = entry.batch if batch_size is None else batch_size
    if not isinstance(net, Model):
        raise TypeError(f"net={net!r}: allowed: a gossipgrad.Model; a network of gossipgrad.models is model={net!r}")
    batch = integer("batch_size", 64 if batch_size is None else batch_size, 1)
    steps, warmup = integer("steps", steps, 1), integer("warmup", warmup, 0)
    how: dict[str, Any] = {"threads": threads, "backend": backend, "conv_algorithm": conv_algorithm, "tune": tune}
    how["dtype"] = dtype
    nodes = net.graph.nodes()
    neighbours = Others()
    with Trainer(
        net,
        loss=loss,
        optimizer=SGD(lr=0.01, momentum=0.9),
        strategy=strategies.NoExchange(),
        trace=8 * len(nodes) * steps,
        device="cpu",
        **how,
    ) as trainer:
        x, y = synthetic_batch(trainer.net, trainer.loss, batch)
        trainer.choose_algorithms(batch)
        core = trainer.core
        core.bench(x, y, 0, max(warmup, 1))
        begun = trainer.step
        runs: list[tuple[float, Record]] = []
        for _ in range(steps):
            core.set_timing(True)
            runs.append((core.bench(x, y, 0, 1)[0], core.profile()))
        updates = [0.0] * steps
        for begin, end, what, at, *_ in core.exchange.spans():
            if what == "update" and at >= begun:
                updates[at - begun] += end - begin
        made = {"backend": core.backend, "isa": core.isa}
        used = trainer.dtype  # "auto" resolved
    product, copy = product_peak(threads, used), copy_peak(threads)
    seconds, profiles = min(own for own, _ in runs), [found for _, found in runs]
    operations = _fastest([found["operations"] for found in profiles])
    update, loss_seconds = min(updates), min(found["loss_seconds"] for found in profiles)
    records = [
        {"number": number, **_record(operation, name, nodes, batch, seconds, product, copy)}
        for number, operation in enumerate(operations)
        for name in operation["passes"]
    ]
    other = seconds - loss_seconds - update - sum(one["ms"] for one in records) / 1e3
    return {
        "mode": "profile",
        "model": model,
        "batch": batch,
        "dtype": used,
        "threads": threads,
        "steps": steps,
        "ms": 1e3 * seconds,
        "product_gflops": product,
        "copy_gbytes_per_s": copy,
        "operations": records,
        "loss_ms": 1e3 * loss_seconds,
        "update_ms": 1e3 * update,
        "other_ms": 1e3 * other,
        "others_busy": neighbours.cores(),
        **made,
    }


def _fastest(runs: list[list[Record]]) -> list[Record]:
    """The operations of several steps, with the shortest time of each pass."""
    for operations in zip(*runs, strict=True):
        for name, one in operations[0]["passes"].items():
            one["seconds"] = min(same["passes"][name]["seconds"] for same in operations)
    return runs[0]


def _record(
    operation: Record,
    name: str,
    nodes: list[Record],
    batch: int,
    step_seconds: float,
    product: float,
    copy: float,
) -> Record:
    one, mine = operation["passes"][name], [nodes[i] for i in operation["nodes"]]
    seconds = one["seconds"]
    reorders = operation["operation"] == "reorder"
    products, moved = (0, 0.0) if one["with_update"] else (one["products"], one["bytes"])
    gflop = 0.0 if reorders else 2e-9 * batch * products * sum(node["macs"] for node in mine)
    gflops, gbytes = gflop / seconds, moved / 1e9 / seconds
    return {
        "name": "+".join(node["name"] for node in mine),
        "operation": operation["operation"],
        "pass": name,
        "layout": operation["output"],
        "backend": one["backend"],
        "algorithm": one["algorithm"] if operation["operation"] == "conv2d" else None,
        "ms": 1e3 * seconds,
        "share": seconds / step_seconds,
        "gflops": gflops,
        "of_product": gflops / product,
        "mbytes": moved / 1e6,
        "gbytes_per_s": gbytes,
        "of_copy": gbytes / copy,
        "with_update": one["with_update"],
    }


_COLUMNS = ("layers", "operation", "pass", "by", "ms", "step", "GFLOP/s", "of peak", "MB", "GB/s", "of copy")


def table(profile: Record) -> str:
    """The result of `step` as text: the operations in their order, then the sums."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for one in profile["operations"]:
        by = one["backend"] if one["algorithm"] in (None, "direct") else f"{one['backend']} {one['algorithm']}"
        if one["with_update"]:
            by = "with the update"
        numbers = (f"{one['gflops']:.1f}", f"{one['of_product']:.0%}") if one["gflops"] else ("", "")
        memory = (f"{one['mbytes']:.2f}", f"{one['gbytes_per_s']:.1f}", f"{one['of_copy']:.0%}")
        if not one["mbytes"]:
            memory = ("", "", "")
        time_ = (f"{one['ms']:.3f}", f"{one['share']:.1%}")
        rows.append((one["name"], one["operation"], one["pass"], by, *time_, *numbers, *memory))
    for name, key in (("losses", "loss_ms"), ("update", "update_ms"), ("other", "other_ms"), ("step", "ms")):
        rows.append((name, "", "", "", f"{profile[key]:.3f}", f"{profile[key] / profile['ms']:.1%}", *[""] * 5))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]

    def line(row: tuple[str, ...]) -> str:
        cells = (
            cell.ljust(width) if i < 4 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    about = (
        f"{profile['model']}, batch {profile['batch']}, {profile['dtype']}, threads {profile['threads']}, "
        f"{profile['backend']}, {profile['isa']}. This machine: a product of matrices "
        f"{profile['product_gflops']:.1f} GFLOP/s, a copy {profile['copy_gbytes_per_s']:.1f} GB/s"
    )
    return "\n".join([about, "", *map(line, rows)])
