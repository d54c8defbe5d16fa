"""gossipgrad compare."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from gossipgrad import compare
from gossipgrad.cli.options import (
    FAILURE,
    UsageError,
    add_backend,
    add_circumstances,
    add_data,
    add_data_options,
    add_optimizer,
    add_schedule,
    check_limits,
    checked,
    circumstances,
    data_options,
    dataset_of,
    given,
    load_data,
    make_optimizer,
    path,
    reader,
)
from gossipgrad.cli.parsing import Parser
from gossipgrad.errors import HIGHEST, counted, one_line
from gossipgrad.launch import start
from gossipgrad.state.files import locked_folder

_NUMBERS = reader(
    lambda text: tuple(int(one) for one in text.split(",")), "integers of at least 1 with commas, as 2,4,8"
)
_RATES = reader(
    lambda text: text if text == "auto" else tuple(float(one) for one in text.split(",")),
    "numbers with commas, as 0.01,0.03, or auto",
)


_DESCRIPTION = """\
Trains strategies side by side on virtual ranks, with equal samples for each.
Writes tables, data and pictures into a folder."""
_SHORT = {
    "strategies": "main (five), all, or names; default: %(default)s",
    "virtual_ranks": "numbers of ranks; default: 2,4,8",
    "report_dir": "a new or empty folder; default: compare-DATE",
    "model": "lenet, mlp, resnet20, ...; default: %(default)s",
    "dataset": "mnist-10k, cifar10, csv, ...; default: the model's",
    "data": "its file or folder",
    "samples": "trained on by each configuration; default: 10000",
    "global_batch": "samples of all ranks in a step; default: 128",
    "lr_grid": "rates to try, or auto; default: auto",
    "points": "of each curve; default: %(default)s",
    "seed": "default: %(default)s",
    "seeds": "trained with each, for means and bands; default: 3",
    "latency": "of a message; default: %(default)s",
    "bandwidth": f"of a link, a second; default: {compare.LINKS.bandwidth:g}",
    "straggler_probability": "that a rank comes late to a step",
    "straggler_delay": "by how much",
    "jobs": "configurations at a time; default: one a core",
    "resume": "train only what an interrupted command left out",
    "quiet": "print errors only",
}
_EXAMPLES = """\
gossipgrad compare
gossipgrad compare --strategies gossipgrad,allreduce --virtual-ranks 4,16
gossipgrad compare --straggler-probability 0.1 --straggler-delay 0.01"""


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--strategies",
        default="main",
        metavar="LIST",
        help="main (the five that matter first), all, or names with commas, each with options: "
        "gossipgrad:staleness=1, allreduce:lr=0.02, allreduce:compression=adacomp, allreduce:apoptosis=true",
    )
    parser.add_argument("--virtual-ranks", type=_NUMBERS, default=(2, 4, 8), metavar="P,P,...", help="numbers of ranks")
    add_data(parser)
    help_ = "where the files go, a new or empty folder; default: compare-DATE in the current one, made"
    parser.add_argument("--report-dir", type=path, metavar="DIR", help=help_)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--samples", type=int, metavar="N", help="trained on by each configuration; default: 10000")
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
    help_ = (
        "try each, report the lowest final loss; auto: lr and a third of it, for parameter-server divided by the "
        "ranks; default: auto, unless --lr is given"
    )
    parser.add_argument("--lr-grid", type=_RATES, metavar="LR,LR,...", help=help_)
    parser.add_argument(
        "--target", type=float, metavar="LOSS", help="report the time to it; default: 1.5 times the lowest"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, orders and draws")
    help_ = "seeds to train each configuration with, from --seed on, for means and bands; default: 3"
    parser.add_argument("--seeds", type=int, metavar="N", help=help_)
    add_circumstances(parser, links=compare.LINKS)
    add_schedule(parser)
    add_data_options(parser)
    add_backend(parser)
    parser.add_argument("--jobs", type=int, metavar="N", help="configurations at a time; default: one a core")
    parser.add_argument("--resume", action="store_true", help="train only what the same command has not trained yet")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.shorten(_DESCRIPTION, _SHORT, _EXAMPLES)


def plan_of(arguments: argparse.Namespace) -> compare.Comparison:
    """The comparison of the options; UsageError: invalid values."""

    def plan() -> compare.Comparison:
        straggler, network = circumstances(arguments)
        keys = ("samples", "points", "batch_size", "global_batch", "target", "seed", "seeds", "backend", "device")
        chosen = given(arguments, (*keys, "compute_time", "lr_scaling", "lr_limit", "lr_grid"))
        if arguments.lr is not None and not isinstance(arguments.lr_grid, str | None):
            raise UsageError(
                f"--lr {arguments.lr:g}: not with the rates of --lr-grid, which are tried in its place; allowed: one "
                "of both, or --lr-grid auto"
            )
        if arguments.lr is None and arguments.lr_grid is None:
            chosen["lr_grid"] = "auto"
        if arguments.batch_size is not None:
            chosen["global_batch"] = None
        return compare.Comparison(
            entries=compare.entries(arguments.strategies),
            ranks=arguments.virtual_ranks,
            model=arguments.model,
            dataset=dataset_of(arguments),
            folder=arguments.data,
            data_options=data_options(arguments),
            optimizer=make_optimizer(arguments),
            straggler=straggler,
            network=network,
            **chosen,
        )

    return checked(plan)


def side_by_side(arguments: argparse.Namespace) -> int:
    """0 if every configuration has been trained to its end."""
    if (start.launcher_world_size() or 1) > 1:
        raise UsageError("compare: not under mpiexec; it has virtual ranks")
    check_limits(arguments, {"epochs": (1, 2**31 - 1), "jobs": (1, HIGHEST)})
    comparison = plan_of(arguments)
    size = len(load_data(arguments)[1])  # before many processes look for it at a time
    if arguments.epochs is not None:
        comparison = replace(comparison, samples=arguments.epochs * size)
    checked(lambda: comparison.check(size))
    if arguments.resume and arguments.report_dir is None:
        raise UsageError("--resume: goes with --report-dir, the folder of the comparison that was interrupted")
    try:
        if arguments.report_dir is None:
            arguments.report_dir = _dated_folder()
        lock = locked_folder(arguments.report_dir)
    except OSError as error:
        raise UsageError(f"--report-dir: {one_line(error)}") from error
    if lock is None:
        raise UsageError(
            f"--report-dir {arguments.report_dir}: another comparison writes there; allowed: a folder for each"
        )
    try:
        _check_unused(arguments)
        return _compared(comparison, size, arguments)
    finally:
        os.close(lock)


def _dated_folder() -> str:
    """Make a folder named by the date, with "-2" and so on if it exists."""
    day = time.strftime("compare-%Y-%m-%d")
    for number in itertools.count(1):
        name = day if number == 1 else f"{day}-{number}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(name)
            break
    return name


def _check_unused(arguments: argparse.Namespace) -> None:
    """UsageError: the folder has files of another comparison, which would mix with this one's."""
    found = compare.files_in(arguments.report_dir)
    if found and not arguments.resume:
        interrupted = compare.FINISHED in found
        goes_on = f"--resume goes on with what {compare.FINISHED}/ has; " if interrupted else ""
        raise UsageError(
            f"--report-dir {arguments.report_dir}: has files of another comparison ({', '.join(found[:3])}"
            f"{', ...' if found[3:] else ''}); {goes_on}allowed: a new or empty folder"
        )


def _compared(comparison: compare.Comparison, size: int, arguments: argparse.Namespace) -> int:
    speaks = not arguments.quiet
    say: Callable[[str], None] = (lambda line: print(line, flush=True)) if speaks else (lambda line: None)
    finished = os.path.join(arguments.report_dir, compare.FINISHED)
    say("\n".join([f"files: {arguments.report_dir}", *comparison.few_periods(size)]))
    results = compare.run(comparison, finished, arguments.jobs, say, speaks)
    compare.remove_files(arguments.report_dir)  # of this command before its resume
    rows = compare.write(comparison, results, arguments.report_dir)
    say(f"\n{compare.table(rows, compare.target_of(comparison, results))}\nfiles: {arguments.report_dir}")
    if compare.complete(results):
        shutil.rmtree(finished)
    else:
        say(f"what failed is tried again by the same command with --resume; the rest is stored in {finished}")
    failures = [
        f"{row['strategy']}, {counted(row['ranks'], 'rank')}: {row['failure']}" for row in rows if row["failure"]
    ]
    for line in failures:
        print(f"gossipgrad: failed: {line}", file=sys.stderr, flush=True)
    return FAILURE if failures else 0
