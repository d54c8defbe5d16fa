"""The command line: train, run, compare, info, bench. An option is the keyword of the constructor that it feeds."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from gossipgrad import _failure, _launch, bench, compare, environment, models, optim, schedules, strategies
from gossipgrad import data as gg_data
from gossipgrad.callbacks import Callback, Checkpoint, CSVLogger, EarlyStopping, JSONLLogger, StopOnNaN
from gossipgrad.cluster import MOST_VIRTUAL_RANKS, Network, Straggler, VirtualCluster
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import number, one_line
from gossipgrad.history import History
from gossipgrad.loop import check_batch
from gossipgrad.model import Model
from gossipgrad.replicas import BACKENDS, LOSSES
from gossipgrad.trainer import Trainer

DATASETS = (*gg_data.NAMES, "synthetic")
USAGE, FAILURE, INTERRUPTED = 2, 1, 130
TRACE_SPANS = 200_000  # kept a rank
_STRATEGY = strategies.GossipGraD.name
_BLOCKS = 5  # of bench --exchange


class UsageError(Exception):
    """Options that cannot be; exit code 2."""


class _Parser(argparse.ArgumentParser):
    """Errors in one line, and through the same door as all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Terminated(KeyboardInterrupt):
    """SIGTERM: what a launcher sends to end a rank."""


# ---- options


def _schedule_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning rate (steps; see gossipgrad.schedules)")
    group.add_argument("--schedule", choices=schedules.BY_NAME, default="constant")
    group.add_argument("--warmup", type=int, help="steps of linear rise")
    group.add_argument("--warmup-start", type=float, help="where it starts, as a share of lr")
    group.add_argument("--every", type=int, help="step: steps between two decays")
    group.add_argument("--gamma", type=float, help="step: factor of a decay")
    group.add_argument("--total", type=_total, help="cosine, polynomial: steps; default: all steps of the run")
    group.add_argument("--final", type=float, help="cosine, polynomial: the rate at the end")
    group.add_argument("--power", type=float, help="polynomial: exponent")


def _read(make: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """The type of an option: what `make` gives for its text; `allowed` is for the error."""

    def read(text: str) -> Any:
        try:
            return make(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: {allowed}") from None

    return read


_total = _read(lambda text: "auto" if text == "auto" else int(text), "auto, or an integer of at least 1")
_period = _read(lambda text: "log2" if text == "log2" else int(text), "log2, or an integer of at least 1")
_numbers = _read(
    lambda text: tuple(int(one) for one in text.split(",")), "integers of at least 1 with commas, as 2,4,8"
)
_rates = _read(lambda text: tuple(float(one) for one in text.split(",")), "numbers with commas, as 0.01,0.03")


def _partition(text: str) -> bool | str:
    known = {"true": True, "false": False}
    return known.get(text.lower(), text)


def _random_gossip_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--interval", type=int, metavar="N", help="pull- and push-gossip: steps to the next exchange")
    group.add_argument("--probability", type=float, metavar="P", help="of an exchange that is due")
    group.add_argument("--push-sum", action=argparse.BooleanOptionalAction, default=None, help="keep the mean")


def _hierarchy_options(group: argparse._ArgumentGroup) -> None:
    help_ = "all-reduce inside a node, gossip between nodes"
    group.add_argument("--hierarchical", action=argparse.BooleanOptionalAction, default=None, help=help_)
    group.add_argument("--ranks-per-node", type=int, metavar="N", help="default: the ranks that share memory")


_TOPOLOGY_HELP = f"{', '.join(strategies.TOPOLOGIES)}, or a table of partners [period, ranks]: .npy, .json, or text"


def _topology(text: str) -> Any:
    """A topology's name, or the table in a file; ValueError, OSError: neither."""
    kind = os.path.splitext(text)[1]
    try:
        if kind == ".npy":
            return strategies.check_topology(np.load(text))
        if kind == ".json":
            with open(text, encoding="utf-8") as file:
                return strategies.check_topology(json.load(file))
        if kind:
            return strategies.check_topology(np.loadtxt(text, dtype=np.int64, ndmin=2))
        return strategies.check_topology(text)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(one_line(error)) from error


def _centre_options(group: argparse._ArgumentGroup) -> None:
    yes_no = argparse.BooleanOptionalAction
    group.add_argument("--synchronous", action=yes_no, default=None, help="elastic-averaging: all ranks at once")
    group.add_argument("--alpha", type=float, help="elastic-averaging: the share of the way to the centre")
    group.add_argument("--servers", type=int, metavar="N", help="the last N ranks hold the centre")
    group.add_argument("--dedicated", action=yes_no, default=None, help="they do not train")


def _shared_strategy_options(group: argparse._ArgumentGroup) -> None:
    """What train and bench have in common."""
    group.add_argument("--strategy", choices=strategies.BY_NAME, default=_STRATEGY, help=f"default: {_STRATEGY}")
    group.add_argument("--topology", type=_topology, metavar="NAME|FILE", help=_TOPOLOGY_HELP)
    group.add_argument("--rotate", action=argparse.BooleanOptionalAction, default=None)
    _hierarchy_options(group)
    group.add_argument("--staleness", type=int, choices=(0, 1))
    group.add_argument("--mix", choices=strategies.MIXES)
    group.add_argument("--wire-dtype", choices=strategies.WIRES, help="type of what is sent; all but no-exchange")
    group.add_argument("--collectives", choices=strategies.COLLECTIVES, help="of sums over all ranks; default: own")
    group.add_argument("--bucket-bytes", type=int, metavar="N", help="layers travel together; default: tuned at start")
    group.add_argument("--chunk-bytes", type=int, metavar="N", help="of a message; default: tuned at start")
    group.add_argument("--period", type=_period, metavar="N", help="steps from one averaging to the next, or log2")
    _random_gossip_options(group)
    group.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=None, help="exchange while computing"
    )
    group.add_argument(
        "--partition-fc",
        type=_partition,
        metavar="auto|true|false",
        help="overlapped-averaging: linear layers exchange inputs and errors instead of gradients",
    )
    _centre_options(group)


def _strategy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("strategy")
    _shared_strategy_options(group)
    group.add_argument("--exchange", choices=strategies.EXCHANGES, help="what partners send; default: auto")
    group.add_argument(
        "--shuffle-samples",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="move the samples from rank to rank while they are trained on",
    )


def _keywords(makers: Mapping[str, Any], *without: str) -> tuple[str, ...]:
    """Of the constructors of these dataclasses, each once."""
    names = (field.name for made in makers.values() for field in fields(made))
    return tuple(name for name in dict.fromkeys(names) if name not in without)


_STRATEGY_KEYS = _keywords(strategies.BY_NAME)
_OPTIMIZER_KEYS = _keywords(optim.BY_NAME, "schedule")
_OPTIMIZER_DEFAULTS: dict[str, dict[str, float]] = {"sgd": {"lr": 0.03, "momentum": 0.9}, "adam": {}}
_SCHEDULE_KEYS = _keywords(schedules.BY_NAME)


def _optimizer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--optimizer", choices=optim.BY_NAME, default="sgd")
    parser.add_argument(
        "--lr", type=float, help="used as given: not multiplied by the ranks; default: 0.03, for adam 0.001"
    )
    parser.add_argument("--momentum", type=float, help="sgd; default: 0.9")
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--nesterov", action=argparse.BooleanOptionalAction, default=None, help="sgd")
    parser.add_argument("--beta1", type=float, help="adam")
    parser.add_argument("--beta2", type=float, help="adam")
    parser.add_argument("--eps", type=float, help="adam")
    parser.add_argument("--decoupled", action=argparse.BooleanOptionalAction, default=None, help="adam: AdamW")


def _given(arguments: argparse.Namespace, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: getattr(arguments, key) for key in keys if getattr(arguments, key, None) is not None}


def _option(key: str) -> str:
    """The option of a keyword."""
    return f"--{key.replace('_', '-')}"


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=models.BY_NAME, default="lenet")
    parser.add_argument(
        "--dataset", choices=DATASETS, default="mnist-10k", help="default: mnist-10k, which is in the package"
    )
    parser.add_argument(
        "--data", metavar="PATH", help="where the files of --dataset mnist or cifar10 lie; also an archive"
    )


def _circumstances_options(parser: argparse.ArgumentParser, virtual: bool = True) -> None:
    group = parser.add_argument_group("stragglers and slow networks")
    group.add_argument("--straggler-probability", type=float, metavar="X", help="that a rank comes late to a step")
    group.add_argument("--straggler-delay", type=float, metavar="SECONDS", help="by how much")
    group.add_argument("--latency", type=float, metavar="SECONDS", help="of a message")
    group.add_argument("--bandwidth", type=float, metavar="BYTES", help="a second, of each rank's links; 0: unlimited")
    if not virtual:
        return
    group.add_argument("--compute-time", type=float, metavar="SECONDS", help="a step, in virtual time")


_CIRCUMSTANCES = ("straggler_probability", "straggler_delay", "latency", "bandwidth")


def _circumstances(arguments: argparse.Namespace) -> tuple[Straggler | None, Network | None]:
    late = _given(arguments, ("straggler_probability", "straggler_delay"))
    if len(late) == 1:
        (given, value), *_ = late.items()
        missing = "delay" if given == "straggler_probability" else "probability"
        raise ValueError(f"{_option(given)} {value}: --straggler-{missing} is missing; allowed: both or neither")
    straggler = Straggler(*late.values()) if late else None
    links = _given(arguments, ("latency", "bandwidth"))
    return straggler, Network(**links) if links else None


def _machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="of each rank; default: OMP_NUM_THREADS, else 1")
    allowed = [one for one in BACKENDS if one is not None]
    parser.add_argument("--backend", choices=allowed, help="default: $GOSSIPGRAD_BACKEND, else the faster of both")


def parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands but run, whose words belong to the launcher."""
    top = _Parser(
        prog="gossipgrad", description="Data-parallel training that communicates by gossip.", allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"gossipgrad {environment.VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    train = commands.add_parser("train", help="train a network", allow_abbrev=False)
    _data_options(train)
    train.add_argument("--epochs", type=int, default=8)
    train.add_argument("--batch-size", type=int, help="samples a rank and step; default: the model's")
    train.add_argument("--loss", choices=LOSSES, help="default: the model's")
    _optimizer_options(train)
    train.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
    train.add_argument("--seed", type=int, default=0)
    _machine_options(train)
    train.add_argument("--virtual-ranks", type=int, metavar="P", help="train P ranks in this process, without mpiexec")
    train.add_argument(
        "--timeout",
        type=float,
        default=0.0,
        help="seconds to wait for another rank, with --virtual-ranks virtual ones; default: 0, for ever",
    )
    _circumstances_options(train)
    _strategy_options(train)
    _schedule_options(train)
    files = train.add_argument_group("what comes out")
    files.add_argument("--validate-replicas", action="store_true", help="validate every rank's own weights as well")
    files.add_argument("--report", metavar="FILE", help="write the history as JSON")
    files.add_argument("--trace", metavar="FILE", help="write a trace for chrome://tracing or Perfetto")
    files.add_argument("--checkpoint", metavar="FILE", help="save after every epoch; the best beside it, as *.best.*")
    files.add_argument("--resume", metavar="FILE", help="go on from a checkpoint, up to --epochs in all")
    files.add_argument(
        "--early-stopping", type=int, metavar="N", help="stop after N epochs without a lower validation loss"
    )
    files.add_argument("--log-csv", metavar="FILE", help="one row an epoch")
    files.add_argument("--log-jsonl", metavar="FILE", help="one line of JSON an epoch")
    files.add_argument("--quiet", action="store_true", help="print errors only")

    commands.add_parser("run", help="start ranks with mpiexec: gossipgrad run -n 4 train ...", add_help=False)

    info = commands.add_parser("info", help="versions, CPU, MPI, libraries", allow_abbrev=False)
    info.add_argument("--json", action="store_true")

    timing = commands.add_parser("bench", help="time a training step; prints one line of JSON", allow_abbrev=False)
    timing.add_argument("--model", choices=models.BY_NAME, default="lenet")
    timing.add_argument("--batch-size", type=int, help="default: the model's")
    timing.add_argument("--steps", type=int, default=60)
    timing.add_argument("--warmup", type=int, default=5)
    _machine_options(timing)
    _bench_strategy(timing)
    _circumstances_options(timing, virtual=False)
    _compare_options(
        commands.add_parser("compare", help="strategies side by side, on virtual ranks", allow_abbrev=False)
    )
    return top


def _compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategies",
        default="all",
        metavar="LIST",
        help="all, or names with options: gossipgrad:staleness=1,allreduce:lr=0.02",
    )
    parser.add_argument("--virtual-ranks", type=_numbers, default=(2, 4, 8), metavar="P,P,...", help="default: 2,4,8")
    _data_options(parser)
    parser.add_argument("--report-dir", required=True, metavar="DIR", help="where the files go; made if need be")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--samples", type=int, help="trained on by each configuration; default: 20000")
    amount.add_argument("--epochs", type=int, help="the same, in whole sets")
    parser.add_argument("--points", type=int, default=8, help="of each curve; default: 8")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--global-batch", type=int, help="samples of all ranks in a step; default: 128")
    batch.add_argument("--batch-size", type=int, help="of each rank instead: fewer steps on more ranks")
    _optimizer_options(parser)
    parser.add_argument(
        "--lr-scaling", choices=compare.LR_SCALINGS, default="none", help="lr times sqrt(ranks), or times ranks"
    )
    parser.add_argument("--lr-limit", type=float, help="where that stops")
    parser.add_argument("--lr-grid", type=_rates, metavar="LR,LR,...", help="try each, keep the lowest final loss")
    parser.add_argument(
        "--target", type=float, metavar="LOSS", help="tell the time to it; default: 1.5 times the lowest"
    )
    parser.add_argument("--seed", type=int, default=0)
    _circumstances_options(parser)
    _schedule_options(parser)
    parser.add_argument("--backend", choices=[one for one in BACKENDS if one is not None])
    parser.add_argument("--jobs", type=int, metavar="N", help="configurations at a time; default: one a core")
    parser.add_argument("--resume", action="store_true", help="train only what the same command has not trained yet")
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _bench_strategy(parser: argparse.ArgumentParser) -> None:
    """bench --exchange [WHAT]: the bare flag times the strategy against no exchange."""
    group = parser.add_argument_group("what exchange costs (under gossipgrad run -n P)")
    group.add_argument(
        "--exchange",
        nargs="?",
        const="",
        choices=("", *strategies.EXCHANGES),
        metavar="WHAT",
        help="time the strategy against no exchange, in alternating blocks; WHAT: what partners exchange",
    )
    group.add_argument("--blocks", type=int, metavar="N", help=f"of each; default: {_BLOCKS}")
    _shared_strategy_options(group)
    parser.set_defaults(strategy=None)  # so that one that is given is told from none


def _checked(make: Callable[[], Any]) -> Any:
    """What an option is turned into; a value it cannot have is a usage error."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise UsageError(one_line(error)) from error


def _optimizer(arguments: argparse.Namespace) -> optim.Optimizer:
    schedule = schedules.by_name(arguments.schedule, **_given(arguments, _SCHEDULE_KEYS))
    how: dict[str, Any] = _OPTIMIZER_DEFAULTS[arguments.optimizer] | _given(arguments, _OPTIMIZER_KEYS)
    return optim.by_name(arguments.optimizer, schedule=schedule, **how)


# ---- train


def _data(arguments: argparse.Namespace, net: Model) -> tuple[Dataset, Dataset]:
    if arguments.data is not None and arguments.dataset not in ("mnist", "cifar10"):
        raise UsageError(
            f"--data {arguments.data}: --dataset {arguments.dataset} has no files; it goes with "
            "--dataset mnist or cifar10"
        )
    return gg_data.for_network(net, arguments.dataset, arguments.data, arguments.seed, progress=not arguments.quiet)


def _callbacks(arguments: argparse.Namespace) -> list[Callback]:
    chosen: list[Callback] = [StopOnNaN()]
    if arguments.log_csv:
        chosen.append(CSVLogger(arguments.log_csv))
    if arguments.log_jsonl:
        chosen.append(JSONLLogger(arguments.log_jsonl))
    if arguments.early_stopping is not None:
        chosen.append(_checked(lambda: EarlyStopping(patience=arguments.early_stopping)))
    if arguments.checkpoint:
        chosen.append(Checkpoint(arguments.checkpoint))
    return chosen


def _check_outputs(arguments: argparse.Namespace) -> None:
    """A path that cannot be written is an error before training, not after it."""
    for key in ("report", "trace", "checkpoint", "log_csv", "log_jsonl"):
        path = getattr(arguments, key)
        if path is None:
            continue
        folder = os.path.dirname(path) or "."
        option = f"{_option(key)} {path}"
        if not os.path.isdir(folder):
            raise UsageError(f"{option}: no such folder: {folder}")
        if os.path.isdir(path):
            raise UsageError(f"{option}: is a folder")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{option}: {folder} cannot be written to")


def train(arguments: argparse.Namespace) -> int:
    entry = models.by_name(arguments.model)
    strategy = _checked(lambda: strategies.by_name(arguments.strategy, **_given(arguments, _STRATEGY_KEYS)))
    optimizer = _checked(lambda: _optimizer(arguments))
    launched = _launch.launcher_world_size()
    comm = None
    if arguments.virtual_ranks is not None:
        if launched is not None and launched > 1:
            raise UsageError(
                f"--virtual-ranks {arguments.virtual_ranks}: not under mpiexec, which started {launched} ranks"
            )
        if not 1 <= arguments.virtual_ranks <= MOST_VIRTUAL_RANKS:
            raise UsageError(f"--virtual-ranks {arguments.virtual_ranks}: allowed: 1..{MOST_VIRTUAL_RANKS}")
        comm = _checked(lambda: VirtualCluster(arguments.virtual_ranks, compute_time=arguments.compute_time))
    elif arguments.compute_time is not None:
        raise UsageError(f"--compute-time {arguments.compute_time}: goes with --virtual-ranks")
    straggler, network = _checked(lambda: _circumstances(arguments))
    for option, low in (("epochs", 1), ("batch_size", 1), ("threads", 1), ("seed", 0)):
        value = getattr(arguments, option)
        if value is not None and value < low:
            raise UsageError(f"{_option(option)} {value}: allowed: at least {low}")
    timeout = _checked(lambda: number("timeout", arguments.timeout, 0.0))
    _check_outputs(arguments)
    callbacks = _callbacks(arguments)

    net = entry.make()
    train_set, validation_set = _data(arguments, net)
    batch_size = arguments.batch_size or entry.batch
    ranks = arguments.virtual_ranks or launched or 1
    check_batch(train_set, max(strategy.workers(ranks), 1), batch_size)  # before all replicas are made
    trainer = Trainer(
        net,
        loss=arguments.loss or entry.loss,
        optimizer=optimizer,
        strategy=strategy,
        seed=arguments.seed,
        comm=comm,
        threads=arguments.threads,
        backend=arguments.backend,
        trace=TRACE_SPANS if arguments.trace else 0,
        timeout=timeout,
        straggler=straggler,
        network=network,
    )
    speaks = trainer.rank == 0 and not arguments.quiet
    if speaks:
        callbacks.append(_Headline(train_set, validation_set))
    history = trainer.fit(
        train_set,
        validation_set,
        epochs=arguments.epochs,
        batch_size=batch_size,
        callbacks=callbacks,
        validate_replicas=arguments.validate_replicas,
        shuffle=arguments.shuffle,
        progress=not arguments.quiet,
        resume=arguments.resume,
    )
    if arguments.report and trainer.rank == 0:
        history.write(arguments.report)
    if arguments.trace:
        trainer.write_trace(arguments.trace)
    if speaks:
        print(_closing(history, arguments), flush=True)
    trainer.close()
    return 0


class _Headline(Callback):
    """Says what will be trained when nothing stands in its way any more: fit has checked all it was given."""

    def __init__(self, train_set: Dataset, validation_set: Dataset) -> None:
        self.sets = (train_set, validation_set)

    def on_fit_begin(self, trainer: Trainer) -> None:
        print(_headline(trainer, *self.sets), flush=True)


def _headline(trainer: Trainer, train_set: Dataset, validation_set: Dataset) -> str:
    ranks = "1 rank" if trainer.size == 1 else f"{trainer.size} ranks"
    where = {"mpi": " under MPI", "virtual": " in a virtual cluster"}.get(trainer.team.kind, "")
    threads = "1 thread" if trainer.threads == 1 else f"{trainer.threads} threads"
    settings, shown = trainer.strategy_settings(), ("topology", "exchange_used")
    how = [v if isinstance(v, str) else "a table of partners" for k, v in settings.items() if k in shown and v]
    words = f" ({', '.join(how)})" if how else ""
    return (
        f"{trainer.net.name}, {trainer.net.parameters:,} parameters, on {train_set.name}, {len(train_set):,} + "
        f"{len(validation_set):,} samples; {trainer.strategy.name}{words}; {ranks}{where}, {threads} each; "
        f"{trainer.core.backend}, {trainer.core.isa}"
    )


def _closing(history: History, arguments: argparse.Namespace) -> str:
    if not history.epochs:
        return "nothing to do"
    last = history.last
    parts = [f"done: {len(history)} epochs in {sum(history['seconds']):.1f} s of training"]
    if "accuracy" in last.get("validation", {}):
        parts.append(f"validation accuracy {100 * last['validation']['accuracy']:.2f} %")
    parts += [
        f"{key} {getattr(arguments, key)}" for key in ("report", "trace", "checkpoint") if getattr(arguments, key)
    ]
    return ", ".join(parts)


# ---- compare


def side_by_side(arguments: argparse.Namespace) -> int:
    """0 if every configuration has been trained."""
    if (_launch.launcher_world_size() or 1) > 1:
        raise UsageError("compare: not under mpiexec; it has virtual ranks")
    entry = models.by_name(arguments.model)
    train_set, _ = _data(arguments, entry.make())  # once, before many look for it at a time
    if arguments.epochs is not None:
        arguments.samples = arguments.epochs * len(train_set)

    def plan() -> compare.Comparison:
        straggler, network = _circumstances(arguments)
        keys = ("samples", "points", "batch_size", "global_batch", "target", "seed", "backend", "compute_time")
        given = _given(arguments, (*keys, "lr_scaling", "lr_limit", "lr_grid"))
        if arguments.batch_size is not None:
            given["global_batch"] = None
        made = compare.Comparison(
            entries=compare.entries(arguments.strategies),
            ranks=arguments.virtual_ranks,
            model=arguments.model,
            dataset=arguments.dataset,
            folder=arguments.data,
            optimizer=_optimizer(arguments),
            straggler=straggler,
            network=network,
            **given,
        )
        made.check(len(train_set))
        return made

    comparison = _checked(plan)
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


# ---- info, bench


def info(arguments: argparse.Namespace) -> int:
    facts = environment.environment()
    if _failure.launched_rank() == 0:
        print(json.dumps(facts, indent=1) if arguments.json else environment.table(facts), flush=True)
    return 0


def time_it(arguments: argparse.Namespace) -> int:
    threads = environment.default_threads() if arguments.threads is None else arguments.threads
    common: dict[str, Any] = {"model": arguments.model, "batch_size": arguments.batch_size, "threads": threads}
    common |= {"steps": arguments.steps, "warmup": arguments.warmup, "backend": arguments.backend}
    for option, low in (("batch_size", 1), ("steps", 1), ("warmup", 0), ("threads", 1), ("blocks", 1)):
        value = getattr(arguments, option)
        if value is not None and value < low:
            raise UsageError(f"{_option(option)} {value}: allowed: at least {low}")
    straggler, network = _checked(lambda: _circumstances(arguments))
    if arguments.exchange is None:
        of_exchange = ("strategy", "blocks", *_STRATEGY_KEYS, *_CIRCUMSTANCES)
        given = ", ".join(_option(key) for key in _given(arguments, of_exchange))
        if given:
            raise UsageError(f"{given}: only with --exchange; without it one rank's step is timed, which sends nothing")
        result: dict[str, Any] | None = bench.step(**common)
        if _failure.launched_rank() != 0:
            result = None
    else:
        options = _given(arguments, _STRATEGY_KEYS)
        if options["exchange"] == "":
            del options["exchange"]
        strategy = _checked(lambda: strategies.by_name(arguments.strategy or _STRATEGY, **options))
        if (_launch.launcher_world_size() or 1) < 2:
            raise UsageError("--exchange: one rank has nobody to exchange with; allowed: gossipgrad run -n P, P > 1")
        blocks = _BLOCKS if arguments.blocks is None else arguments.blocks
        result = bench.exchange(strategy, blocks=blocks, straggler=straggler, network=network, **common)
    if result is not None:
        print(json.dumps(result), flush=True)
    return 0


# ---- main


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"gossipgrad: warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


def _say(text: str) -> Callable[[str], None]:
    def say(who: str) -> None:
        if os.environ.get("GOSSIPGRAD_TRACEBACK", "0") not in ("", "0") and sys.exc_info()[0] is not None:
            traceback.print_exc()
        print(f"gossipgrad: {'' if who in text else who}{text}", file=sys.stderr, flush=True)

    return say


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code: 0, 1 after an error, 2 for wrong options, 130 when interrupted.

    An error is one line on stderr, with the traceback before it if GOSSIPGRAD_TRACEBACK=1. Under MPI it ends all ranks.
    """
    if argv[:1] == ["run"]:
        return _launch.main(argv[1:])
    signal.signal(signal.SIGTERM, _terminate)
    try:
        arguments = parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            command = {"train": train, "compare": side_by_side, "info": info, "bench": time_it}[arguments.command]
            return command(arguments)
    except UsageError as error:
        code = USAGE
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _failure.end_all_ranks(_say(f"error: {error}"), code)
    except BrokenPipeError:  # the reader of our output has gone
        code = FAILURE
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, Python flushes it at the end
        _failure.end_all_ranks(lambda who: None, code)
    except _Terminated:
        code = 128 + signal.SIGTERM
        if _failure.launched_rank() == 0 and _failure.first_to_report():
            _say("terminated")("")
        if _failure.launched_size() > 1:  # the launcher is ending the other ranks as well
            sys.stdout.flush()
            os._exit(code)
    except KeyboardInterrupt:
        code = INTERRUPTED
        _failure.end_all_ranks(_say("interrupted"), code)
    except Exception as error:
        code = FAILURE
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another rank has said it, the launcher ends this one
        plain = isinstance(error, (ValueError, OSError, RuntimeError, ArithmeticError, NotImplementedError))
        text = one_line(error) if plain else f"{type(error).__name__}: {one_line(error)}"
        _failure.end_all_ranks(_say(f"error: {text}"), code, error)
    return code
