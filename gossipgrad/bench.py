"""Timing: one training step on synthetic data in memory, and the cost of a strategy's exchange."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad import models, strategies
from gossipgrad.cluster import Network, Straggler
from gossipgrad.compression import AdaComp
from gossipgrad.errors import integer, warn
from gossipgrad.literals import Backend, ConvAlgorithm, DType, Loss, Precision
from gossipgrad.model import Model
from gossipgrad.optim import SGD
from gossipgrad.trainer import Trainer

_BUSY = 0.5  # cores of others that are worth a warning
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}  # as in reports of peers
_CIRCUMSTANCES = ("straggler_probability", "straggler_delay", "latency", "bandwidth")


def synthetic_batch(net: Model, loss: str, batch: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Normal samples, or tokens, and random targets of the network's shapes."""
    generator = np.random.default_rng(seed)
    x: NDArray[Any]
    tokens = net.tokens()
    if tokens is None:
        x = generator.standard_normal((batch, *net.input_shape), np.float32)
    else:
        x = generator.integers(tokens, size=(batch, *net.input_shape), dtype=np.int32)
    *places, values = net.output_shape
    if loss == "cross_entropy":
        return x, generator.integers(values, size=(batch, *places), dtype=np.int32)
    return x, generator.integers(2, size=(batch, *places, values)).astype(np.float32)


def _memory_mib(field: str) -> float:
    """A field of /proc/self/status in MiB: VmRSS now, VmHWM peak."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{field}:"))


def _others_cpu_seconds() -> float:
    """CPU seconds the machine has spent outside this process."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    own = os.times()
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - own.user - own.system


class Others:
    """Counts the cores that other processes use, from its creation on."""

    def __init__(self) -> None:
        self._seconds, self._start = _others_cpu_seconds(), time.perf_counter()

    def cores(self) -> float:
        return round((_others_cpu_seconds() - self._seconds) / (time.perf_counter() - self._start), 2)


def warn_of_others(cores: float) -> None:
    """Warn if other processes used `cores` meanwhile, too many for meaningful times."""
    if cores >= _BUSY:
        warn(
            f"other processes used {cores:.1f} of {os.cpu_count()} CPUs meanwhile: steps took longer than they take "
            "alone, and shares of the machine's peaks mean little; time it again while nothing else runs"
        )


def _trainer(
    net: Model, loss: Loss, strategy: strategies.Strategy, threads: int, backend: Backend | None, **circumstances: Any
) -> Trainer:
    return Trainer(
        net,
        loss=loss,
        optimizer=SGD(lr=0.01, momentum=0.9),
        strategy=strategy,
        threads=threads,
        backend=backend,
        **circumstances,
    )


def step(
    model: str = "lenet",
    batch_size: int | None = None,
    threads: int = 1,
    steps: int = 60,
    warmup: int = 5,
    backend: Backend | None = None,
    conv_algorithm: ConvAlgorithm = "auto",
    tune: bool | None = None,
    dtype: DType = "float32",
    device: str | None = None,
    precision: Precision = "exact",
) -> dict[str, Any]:
    """The time of a training step (forward, loss, backward, SGD with momentum) of one rank, in milliseconds.

    A step's time runs from the completion of the step before to its own. A device that works later gets its next step
    during the current one, as in training; steps whose completion is seen at once have equal parts.
    tune, device, precision: as of Trainer. A dict comes back: ms_min, ms_median and ms_max of `steps` steps, and
    further facts. first_step_s: seconds to the end of the first step, with choosing of algorithms and building of the
    plan. step_gflop counts 6 per multiply-add of the forward pass; others_busy: cores that other processes used
    meanwhile.
    """
    entry = models.by_name(model)
    batch = integer("batch_size", entry.batch if batch_size is None else batch_size, 1)
    integer("steps", steps, 1)
    integer("warmup", warmup, 0)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts again from now; a sandbox may refuse
    before = _memory_mib("VmRSS")
    options: dict[str, Any] = {"conv_algorithm": conv_algorithm, "tune": tune, "dtype": dtype}
    options |= {"device": device, "precision": precision}
    trainer = _trainer(entry.make(), entry.loss, strategies.NoExchange(), threads, backend, **options)
    x, y = synthetic_batch(trainer.net, trainer.loss, batch)
    start = time.perf_counter()
    trainer.choose_algorithms(batch)
    core = trainer.core
    core.bench(x, y, 0, 1)
    first = time.perf_counter() - start
    if warmup > 1:
        core.bench(x, y, 0, warmup - 1)
    neighbours = Others()
    times = [1e3 * seconds for seconds in core.bench(x, y, 0, steps)]
    others = neighbours.cores()
    median = statistics.median(times)
    gflop = 6 * batch * sum(node["macs"] for node in trainer.net.graph.nodes()) / 1e9
    loss = core.train_step([x] * trainer.team.local, [y] * trainer.team.local)[0]
    return {
        "mode": "step",
        "model": model,
        "batch": batch,
        "dtype": _SHORT[trainer.dtype],
        "threads": threads,
        "optim": "sgd",
        "params": trainer.net.parameters,
        "step_gflop": round(gflop, 4),
        "ms_min": round(min(times), 4),
        "ms_median": round(median, 4),
        "ms_max": round(max(times), 4),
        "steps": steps,
        "first_step_s": round(first, 3),
        "others_busy": others,
        "samples_per_s": round(batch / median * 1e3, 1),
        "gflops": round(gflop / median * 1e3, 1),
        "peak_rss_growth_mib": round(_memory_mib("VmHWM") - before, 1),
        "loss": round(loss, 4),
        "backend": core.backend,
        "isa": core.isa,
        "device": trainer.device,
        "precision": trainer.precision,
    }


def alternate(trainers: Sequence[Trainer], batch: int, steps: int, warmup: int, blocks: int) -> list[list[float]]:
    """Seconds of a step of the slowest rank, by trainer and block: blocks of `steps` steps, each trainer's in turn.

    So all meet the same neighbours and clocks. The trainers share a group of ranks and the network's shapes.
    Collective.
    """
    team = trainers[0].team
    x, y = synthetic_batch(trainers[0].net, trainers[0].loss, batch, seed=team.rank)
    means: list[list[float]] = [[] for _ in trainers]
    for block in range(blocks + 1):
        for mine, trainer in zip(means, trainers, strict=True):
            team.barrier()
            start = time.perf_counter()
            trainer.core.bench(x, y, 0, max(warmup, 1) if block == 0 else steps)
            trainer.core.exchange.settle()
            seconds = np.float64(time.perf_counter() - start)
            slowest = max(float(np.frombuffer(one)[0]) for one in team.allgather(seconds.tobytes()))
            if block:
                mine.append(slowest / steps)
    return means


def exchange(
    strategy: strategies.Strategy,
    model: str = "lenet",
    batch_size: int | None = None,
    threads: int = 1,
    steps: int = 60,
    warmup: int = 5,
    blocks: int = 5,
    backend: Backend | None = None,
    conv_algorithm: ConvAlgorithm = "auto",
    tune: bool | None = None,
    dtype: DType = "float32",
    device: str | None = None,
    precision: Precision = "exact",
    net: Model | None = None,
    loss: Loss = "cross_entropy",
    straggler: Straggler | None = None,
    network: Network | None = None,
    compression: AdaComp | None = None,
) -> dict[str, Any] | None:
    """The step without exchange over the step with `strategy`, in alternating blocks; None but on rank 0. Collective.

    tune, compression, device, precision: as of Trainer. straggler, network: as of Trainer, for both contestants: ranks
    come late without exchange, too.
    net: a network of your own with this loss, called `model` in the result; None: the model of this name.
    A block's figure is the mean step of the slowest rank; both medians are over the blocks. ratio: 1 is free exchange.
    """
    if net is None:
        entry = models.by_name(model)
        net, loss = entry.make(), entry.loss
        batch_size = entry.batch if batch_size is None else batch_size
    batch = integer("batch_size", 64 if batch_size is None else batch_size, 1)
    integer("blocks", blocks, 1)
    integer("steps", steps, 1)
    if first := strategy.changes_after:
        raise ValueError(f"allreduce_steps={first}: the steps after these are timed; allowed: 0")
    circumstances: dict[str, Any] = {"straggler": straggler, "network": network}
    circumstances |= {"conv_algorithm": conv_algorithm, "tune": tune, "dtype": dtype}
    circumstances |= {"device": device, "precision": precision}
    both = (strategies.NoExchange(), None), (strategy, compression)
    contestants = [_trainer(net, loss, s, threads, backend, compression=c, **circumstances) for s, c in both]
    for trainer in contestants:
        trainer.choose_algorithms(batch)
    settings = contestants[1].settings()
    team = contestants[0].team
    means = alternate(contestants, batch, steps, warmup, blocks)
    if team.rank:
        return None
    alone, together = (statistics.median(one) for one in means)
    return {
        "mode": "exchange",
        "model": model,
        "batch": batch,
        "ranks": team.size,
        "threads": threads,
        **contestants[1].strategy_settings(),
        "compression": settings["compression"],
        **{key: settings[key] for key in _CIRCUMSTANCES},
        "steps": steps,
        "blocks": blocks,
        "ms_no_exchange": round(1e3 * alone, 4),
        "ms_strategy": round(1e3 * together, 4),
        "ratio": round(alone / together, 4),
        "ms_no_exchange_blocks": [round(1e3 * s, 4) for s in means[0]],
        "ms_strategy_blocks": [round(1e3 * s, 4) for s in means[1]],
        "backend": contestants[1].core.backend,
        "isa": contestants[1].core.isa,
        "device": contestants[1].device,
        "precision": contestants[1].precision,
        "dtype": contestants[1].dtype,
    }
