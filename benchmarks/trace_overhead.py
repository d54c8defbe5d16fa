"""What the event trace costs: the step with it over the step without, in alternating blocks on the same cores.

    gossipgrad run -n 2 benchmarks/trace_overhead.py
    python benchmarks/trace_overhead.py --model mlp

The target is less than 1 % for LeNet. Off, a trace costs one branch where something would be recorded.
"""

from __future__ import annotations

import argparse
import json
import statistics

import gossipgrad as gg
from gossipgrad import bench, models
from gossipgrad.cli import TRACE_SPANS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=models.BY_NAME, default="lenet")
    parser.add_argument("--steps", type=int, default=60, help="of a block")
    parser.add_argument("--blocks", type=int, default=25)
    arguments = parser.parse_args()
    entry = models.by_name(arguments.model)
    trainers = [gg.Trainer(entry.make(), loss=entry.loss, trace=spans) for spans in (0, TRACE_SPANS)]
    off, on = bench.alternate(trainers, entry.batch, arguments.steps, 5, arguments.blocks)
    if trainers[0].rank:
        return
    done = trainers[1].step
    spans = len(trainers[1].core.spans()) + trainers[1].core.spans_lost()
    result = {"model": arguments.model, "ranks": trainers[0].size, "spans_a_step": round(spans / done, 1)}
    result |= {"ms_off": round(1e3 * statistics.median(off), 4), "ms_on": round(1e3 * statistics.median(on), 4)}
    # Neighbours in time see the same machine: the median of their ratios moves less than the ratio of medians.
    ratios = sorted(b / a for a, b in zip(off, on, strict=True))
    result["overhead"] = round(statistics.median(ratios) - 1, 4)
    result["quartiles"] = [round(ratios[len(ratios) * k // 4] - 1, 4) for k in (1, 3)]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
