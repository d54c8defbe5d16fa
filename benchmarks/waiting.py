"""What a rank that waits takes of its core: rank 0 sleeps, all others wait for it in their exchange.

    gossipgrad run -n 8 benchmarks/waiting.py

More ranks than cores is the case that matters: a rank that spins takes the core of one that computes. For each strategy
the CPU seconds of each waiting rank (getrusage, all its threads) over the seconds it waited: the median and the most.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import numpy as np

import gossipgrad as gg
from gossipgrad import bench, strategies
from gossipgrad.launch import failure


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def share(strategy: strategies.Strategy, seconds: float, steps: int) -> list[float]:
    """Of each rank but 0: CPU seconds over seconds while rank 0 sleeps. Steps enough that everyone meets rank 0."""
    trainer = gg.Trainer(gg.Sequential([gg.Linear(64), gg.Linear(4)], input=(32,)), strategy=strategy)
    x, y = bench.synthetic_batch(trainer.net, trainer.loss, 8)
    trainer.core.bench(x, y, 0, steps)
    trainer.core.exchange.settle()
    trainer.team.barrier()
    begin, used = time.perf_counter(), cpu_seconds()
    if trainer.rank == 0:
        time.sleep(seconds)
    trainer.core.bench(x, y, 0, steps)
    trainer.core.exchange.settle()
    own = np.float64((cpu_seconds() - used) / (time.perf_counter() - begin))
    shares = [float(np.frombuffer(one)[0]) for one in trainer.team.allgather(own.tobytes())]
    trainer.close()
    return shares[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="rank 0 sleeps")
    parser.add_argument("--strategy", choices=strategies.BY_NAME, action="append", help="default: all that exchange")
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    for name in arguments.strategy or [n for n in strategies.BY_NAME if n != gg.NoExchange.name]:
        shares = share(strategies.by_name(name), arguments.seconds, arguments.steps)
        result = {"strategy": name, "ranks": len(shares) + 1, "seconds": arguments.seconds}
        result |= {"median_share": round(statistics.median(shares), 4), "most_share": round(max(shares), 4)}
        if failure.launched_rank() == 0:
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
