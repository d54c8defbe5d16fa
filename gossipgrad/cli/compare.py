"""gossipgrad compare."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable

from gossipgrad import _launch, compare, models
from gossipgrad.cli.options import (
    FAILURE,
    UsageError,
    add_backend,
    add_circumstances,
    add_data,
    add_optimizer,
    add_schedule,
    checked,
    circumstances,
    given,
    load_data,
    make_optimizer,
    path,
    reader,
)
from gossipgrad.errors import one_line

_NUMBERS = reader(
    lambda text: tuple(int(one) for one in text.split(",")), "integers of at least 1 with commas, as 2,4,8"
)
_RATES = reader(lambda text: tuple(float(one) for one in text.split(",")), "numbers with commas, as 0.01,0.03")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategies",
        default="all",
        metavar="LIST",
        help="all, or names with options: gossipgrad:staleness=1,allreduce:lr=0.02",
    )
    parser.add_argument("--virtual-ranks", type=_NUMBERS, default=(2, 4, 8), metavar="P,P,...", help="numbers of ranks")
    add_data(parser)
    parser.add_argument(
        "--report-dir", type=path, required=True, metavar="DIR", help="where the files go; made if need be (required)"
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--samples", type=int, metavar="N", help="trained on by each configuration; default: 20000")
    amount.add_argument("--epochs", type=int, metavar="N", help="the same, in whole sets")
    parser.add_argument("--points", type=int, default=8, metavar="N", help="of each curve")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--global-batch", type=int, metavar="N", help="samples of all ranks in a step; default: 128")
    batch.add_argument("--batch-size", type=int, metavar="N", help="of each rank instead: fewer steps on more ranks")
    add_optimizer(parser)
    parser.add_argument(
        "--lr-scaling", choices=compare.LR_SCALINGS, default="none", help="lr times sqrt(ranks), or times ranks"
    )
    parser.add_argument("--lr-limit", type=float, metavar="X", help="where that stops")
    parser.add_argument("--lr-grid", type=_RATES, metavar="LR,LR,...", help="try each, keep the lowest final loss")
    parser.add_argument(
        "--target", type=float, metavar="LOSS", help="tell the time to it; default: 1.5 times the lowest"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, orders and draws")
    add_circumstances(parser)
    add_schedule(parser)
    add_backend(parser)
    parser.add_argument("--jobs", type=int, metavar="N", help="configurations at a time; default: one a core")
    parser.add_argument("--resume", action="store_true", help="train only what the same command has not trained yet")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def side_by_side(arguments: argparse.Namespace) -> int:
    """0 if every configuration has been trained."""
    if (_launch.launcher_world_size() or 1) > 1:
        raise UsageError("compare: not under mpiexec; it has virtual ranks")
    entry = models.by_name(arguments.model)
    train_set, _ = load_data(arguments, entry.make())  # once, before many look for it at a time
    if arguments.epochs is not None:
        arguments.samples = arguments.epochs * len(train_set)

    def plan() -> compare.Comparison:
        straggler, network = circumstances(arguments)
        keys = ("samples", "points", "batch_size", "global_batch", "target", "seed", "backend", "compute_time")
        chosen = given(arguments, (*keys, "lr_scaling", "lr_limit", "lr_grid"))
        if arguments.batch_size is not None:
            chosen["global_batch"] = None
        made = compare.Comparison(
            entries=compare.entries(arguments.strategies),
            ranks=arguments.virtual_ranks,
            model=arguments.model,
            dataset=arguments.dataset,
            folder=arguments.data,
            optimizer=make_optimizer(arguments),
            straggler=straggler,
            network=network,
            **chosen,
        )
        made.check(len(train_set))
        return made

    comparison = checked(plan)
    try:
        os.makedirs(arguments.report_dir, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report-dir: {one_line(error)}") from error
    speaks = not arguments.quiet
    say: Callable[[str], None] = (lambda line: print(line, flush=True)) if speaks else (lambda line: None)
    finished = os.path.join(arguments.report_dir, "finished")
    if not arguments.resume:
        shutil.rmtree(finished, ignore_errors=True)
    results = compare.run(comparison, finished, arguments.jobs, say, speaks)
    rows = compare.write(comparison, results, arguments.report_dir)
    say(f"\n{compare.table(rows, compare.target_of(comparison, results))}\nfiles: {arguments.report_dir}")
    if compare.complete(results):
        shutil.rmtree(finished)
    else:
        say(f"what failed is tried again by the same command with --resume; the rest is kept in {finished}")
    failures = [f"{row['strategy']}, {row['ranks']} ranks: {row['failure']}" for row in rows if row["failure"]]
    for line in failures:
        print(f"gossipgrad: failed: {line}", file=sys.stderr, flush=True)
    return FAILURE if failures else 0
