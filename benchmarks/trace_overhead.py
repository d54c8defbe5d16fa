"""What the event trace costs: the step with it over the step without, in alternating short blocks.

    python benchmarks/trace_overhead.py
    gossipgrad run -n 2 benchmarks/trace_overhead.py --model mlp

Compared are CPU seconds of the process, which neighbours on the machine disturb less than the time that passes. The
target is less than 1 % for LeNet. Off, a trace costs one branch where something would be recorded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import gossipgrad as gg
from gossipgrad import bench, models
from gossipgrad.cli import TRACE_SPANS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=models.BY_NAME, default="lenet")
    parser.add_argument("--steps", type=int, default=5, help="of a block")
    parser.add_argument("--blocks", type=int, default=1000, help="of each")
    arguments = parser.parse_args()
    entry = models.by_name(arguments.model)
    trainers = [gg.Trainer(entry.make(), loss=entry.loss, trace=spans) for spans in (0, TRACE_SPANS)]
    x, y = bench.synthetic_batch(trainers[0].net, trainers[0].loss, entry.batch, seed=trainers[0].rank)
    used: list[list[float]] = [[], []]
    for block in range(arguments.blocks + 1):
        for which in (0, 1) if block % 2 else (1, 0):
            begin = time.process_time()
            trainers[which].core.bench(x, y, 0, arguments.steps)
            if block:  # the first warms up
                used[which].append((time.process_time() - begin) / arguments.steps)
    spans = len(trainers[1].core.exchange.spans()) + trainers[1].core.exchange.spans_lost()
    off, on = (statistics.median(one) for one in used)
    result = {"model": arguments.model, "ranks": trainers[0].size, "spans_a_step": round(spans / trainers[1].step, 1)}
    result |= {"cpu_ms_off": round(1e3 * off, 4), "cpu_ms_on": round(1e3 * on, 4)}
    # Neighbours in time see the same machine: the median of their ratios moves less than the ratio of medians.
    result["overhead"] = round(statistics.median(b / a for a, b in zip(*used, strict=True)) - 1, 4)
    if trainers[0].rank == 0:
        print(json.dumps(result))
    for trainer in trainers:
        trainer.core.exchange.settle()


if __name__ == "__main__":
    main()
