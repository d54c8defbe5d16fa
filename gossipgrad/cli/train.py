"""gossipgrad train."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gossipgrad import models, report
from gossipgrad.callbacks import Callback, Checkpoint, CSVLogger, EarlyStopping, JSONLLogger, StopOnNaN
from gossipgrad.cli.options import (
    FAILURE,
    UsageError,
    add_apoptosis,
    add_circumstances,
    add_compression,
    add_data,
    add_data_options,
    add_keywords,
    add_machine,
    add_metrics,
    add_optimizer,
    add_schedule,
    add_strategy,
    check_limits,
    checked,
    circumstances,
    given,
    load_data,
    machine_options,
    make_apoptosis,
    make_compression,
    make_optimizer,
    make_strategy,
    option_of,
    path,
    reader,
    strategy_keys,
)
from gossipgrad.cli.parsing import Parser
from gossipgrad.cluster import MAX_VIRTUAL_RANKS, VirtualCluster
from gossipgrad.data.given import SHARDS, held_out, shard_sizes
from gossipgrad.errors import HIGHEST, CheckpointError, counted, number, warn
from gossipgrad.history import History
from gossipgrad.keywords import keywords
from gossipgrad.launch import failure, start
from gossipgrad.launch.terminal import on_terminal
from gossipgrad.literals import LOSSES, Loss
from gossipgrad.losses import CrossEntropy, numbers
from gossipgrad.model import Model
from gossipgrad.state import outputs
from gossipgrad.trainer import Trainer
from gossipgrad.training import notices
from gossipgrad.training.batches import batch_for, check_batch
from gossipgrad.training.progress import simulated

TRACE_SPANS = 200_000  # stored by each rank
SILENCE = 1.0  # seconds of preparation without a message
_OUTPUTS = ("report", "trace", "checkpoint", "log_csv", "log_jsonl")

_DESCRIPTION = """\
Trains a network; the default is LeNet on 10,000 digits of the package.
Several ranks: "gossipgrad run -n 4 train" (MPI), or --virtual-ranks 4."""
_SHORT = {
    "model": "lenet, resnet20, char_gpt, ...; default: %(default)s",
    "dataset": "csv, imagefolder, ...; default: the model's",
    "data": "its file or folder",
    "epochs": "default: %(default)s",
    "batch_size": "samples a rank and step; default: the model's",
    "validation_split": "validate on a part of the training samples",
    "optimizer": "default: the model's",
    "lr": "learning rate; default: the model's",
    "schedule": "how the rate changes: constant, cosine, step, ...",
    "metrics": "beside loss and accuracy: auc, perplexity, ...",
    "seed": "default: %(default)s",
    "strategy": "allreduce, no-exchange, ...; default: gossipgrad",
    "virtual_ranks": "train P ranks in this process",
    "threads": "cores of each rank; default: OMP_NUM_THREADS, else 1",
    "device": "cpu, cuda, cuda:1; default: cpu",
    "checkpoint": "save after each epoch; the best beside it",
    "resume": "go on from a checkpoint",
    "weights": "begin with these weights",
    "early_stopping": "stop after N epochs without a lower validation loss",
    "report": "write the history as JSON, or as a page: run.html",
    "trace": "write a trace for Perfetto",
    "quiet": "print errors only",
}
_EXAMPLES = """\
gossipgrad train --virtual-ranks 4 --report run.json
gossipgrad run -n 4 train --strategy allreduce --checkpoint run.safetensors
gossipgrad train --model resnet18 --data FOLDER --validation-split 0.1"""


def add_options(parser: Parser) -> None:
    add_data(parser)
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="how often the samples are gone through")
    help_ = "samples a rank and step; default: the model's, or what a rank has where that is less"
    parser.add_argument("--batch-size", type=int, metavar="N", help=help_)
    parser.add_argument("--loss", choices=LOSSES, help="default: the model's")
    add_keywords(parser, {CrossEntropy.name: CrossEntropy})
    parser.add_argument(
        "--class-weight",
        type=_class_weight,
        metavar="W,W,...|balanced",
        help="of training, as fit's class_weight=: what samples of each class count, divided by the number of samples, "
        "not by the weights' sum as with --class-weights; balanced: inversely to how often classes occur, with a mean "
        "of 1; default: all 1",
    )
    add_optimizer(parser)
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, help="another order in each epoch")
    parser.set_defaults(shuffle=True)  # later, because Python 3.10 would add its own words to the help
    help_ = "leave a last batch out that is not full, on all ranks"
    parser.add_argument("--drop-last", action="store_true", help=help_)
    parser.add_argument(
        "--validation-split",
        type=reader(lambda text: int(text) if text.isdecimal() else float(text), "a share below 1, or an integer"),
        metavar="X|N",
        help="validate on so much of the samples to train on, which are set aside, drawn by the seed (of text as "
        "streams: the end), instead of those that the set has for it; default: on those",
    )
    add_metrics(parser)
    help_ = "at the end all replicas become the consensus model"
    parser.add_argument("--final-mix", action="store_true", help=help_)
    parser.add_argument(
        "--shard",
        default="interleaved",
        choices=SHARDS,
        help="which samples a rank trains on: one of each P in a row, drawn by the seed, or a contiguous part",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, orders and draws")
    add_machine(parser)
    parser.add_argument(
        "--virtual-ranks",
        type=int,
        metavar="P",
        help="train P ranks in this process; default: those of mpiexec, else 1",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="seconds to wait for another rank, with --virtual-ranks virtual ones; default: 0, for ever",
    )
    add_circumstances(parser)
    add_strategy(parser.add_argument_group("strategy"), auto=True)
    add_compression(parser.add_argument_group("compression of what is sent"))
    add_apoptosis(parser.add_argument_group("apoptosis: the network shrinks while it trains"))
    add_schedule(parser)
    add_data_options(parser)
    files = parser.add_argument_group("what comes out")
    files.add_argument("--validate-replicas", action="store_true", help="validate every rank's own weights as well")
    help_ = "write the history as JSON; a name that ends in .html: as a page (wants Plotly)"
    files.add_argument("--report", type=path, metavar="FILE", help=help_)
    files.add_argument("--trace", type=path, metavar="FILE", help="write a trace for chrome://tracing or Perfetto")
    files.add_argument(
        "--checkpoint", type=path, metavar="FILE", help="save after every epoch; the best beside it, as *.best.*"
    )
    help_ = "save after so many steps, too, within an epoch; default: after epochs alone"
    files.add_argument("--checkpoint-every", type=int, metavar="N", help=help_)
    help_ = (
        "on TERM and USR1 save, on all ranks after the same step, and end with exit code 75; --resume goes on; "
        "default: TERM ends the run without that"
    )
    files.add_argument("--save-on-signal", action="store_true", help=help_)
    help_ = "the number of an epoch's record that tells the best one, as validation.accuracy; default: validation.loss"
    files.add_argument("--checkpoint-monitor", metavar="NAME", help=help_)
    files.add_argument("--resume", type=path, metavar="FILE", help="go on from a checkpoint, up to --epochs in all")
    help_ = (
        "begin with the weights of this file, a checkpoint of any number of ranks, .safetensors, .pt or .pth; layers "
        "of other shapes begin anew, with a warning; default: drawn by --seed"
    )
    files.add_argument("--weights", type=path, metavar="FILE", help=help_)
    files.add_argument(
        "--early-stopping", type=int, metavar="N", help="stop after N epochs without a lower validation loss"
    )
    help_ = "or without a better one by this number, as for --checkpoint-monitor; default: validation.loss"
    files.add_argument("--early-stopping-monitor", metavar="NAME", help=help_)
    files.add_argument("--log-csv", type=path, metavar="FILE", help="one row an epoch")
    files.add_argument("--log-jsonl", type=path, metavar="FILE", help="one line of JSON an epoch")
    files.add_argument("--quiet", action="store_true", help="print errors only")
    parser.shorten(_DESCRIPTION, _SHORT, _EXAMPLES)


def _class_weight(text: str) -> str | tuple[float, ...]:
    """The type of --class-weight."""
    try:
        return text if text == "balanced" else numbers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace("allowed: ", "allowed: balanced, or ")) from None


def _loss(arguments: argparse.Namespace, name: Loss) -> Loss | CrossEntropy:
    options = given(arguments, tuple(keywords({CrossEntropy.name: CrossEntropy})))
    for key, value in options.items():
        if name != CrossEntropy.name:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            raise UsageError(f"{option_of(key)} {shown}: goes with the loss {CrossEntropy.name}, not {name}")
    return checked(lambda: CrossEntropy(**options)) if options else name


def _keywords(arguments: argparse.Namespace, owner: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """The given keywords of a callback, as --OWNER-KEYWORD; UsageError for one without --OWNER."""
    found = given(arguments, tuple(f"{owner}_{key}" for key in keys))
    for key, value in found.items():
        if getattr(arguments, owner) is None:
            raise UsageError(f"{option_of(key)} {value}: goes with {option_of(owner)}")
    return {key.removeprefix(f"{owner}_"): value for key, value in found.items()}


def _callbacks(arguments: argparse.Namespace) -> list[Callback]:
    chosen: list[Callback] = [StopOnNaN()]
    stopping = _keywords(arguments, "early_stopping", ("monitor",))
    if arguments.early_stopping is not None:
        early = checked(lambda: EarlyStopping(patience=arguments.early_stopping, **stopping))
        early.argument = option_of("early_stopping_monitor")
        chosen.append(early)
    saving = _keywords(arguments, "checkpoint", ("every", "monitor"))
    if arguments.checkpoint:
        on_signal = arguments.save_on_signal
        checkpoint = checked(lambda: Checkpoint(arguments.checkpoint, save_on_signal=on_signal, **saving))
        checkpoint.argument = option_of("checkpoint_monitor")
        chosen.append(checkpoint)
    if arguments.log_csv:  # after the checkpoint, which matters more
        chosen.append(CSVLogger(arguments.log_csv))
    if arguments.log_jsonl:
        chosen.append(JSONLLogger(arguments.log_jsonl))
    return chosen


def check_outputs(arguments: argparse.Namespace) -> None:
    """UsageError before training for a path that cannot be written, or that another output has."""
    if arguments.save_on_signal and not arguments.checkpoint:
        raise UsageError("--save-on-signal: goes with --checkpoint")
    if failure.launched_rank() != 0:  # rank 0 alone writes most of them
        return
    wanted = [
        outputs.Output(option_of(key), path, checkpoint=key == "checkpoint")
        for key, path in given(arguments, _OUTPUTS).items()
    ]
    read = {option_of(key): path for key, path in given(arguments, ("resume", "weights")).items()}
    checked(lambda: outputs.check(wanted, read))
    if arguments.report and report.is_page(arguments.report):
        try:
            report.bundle()
        except ImportError as error:
            raise UsageError(f"--report {arguments.report}: {error}") from error


def _load_weights(net: Model, path: str) -> None:
    try:
        misfit = net.load_weights(path, strict=False)
    except CheckpointError as error:
        raise CheckpointError(f"--weights: {error}") from error
    if misfit and failure.launched_rank() == 0:
        warn(f"--weights {path}: what does not fit begins anew: {misfit}")


@contextlib.contextmanager
def _preparing(arguments: argparse.Namespace) -> Iterator[Callable[[], None]]:
    """On rank 0 print the current work, unless the yielded function is called soon."""

    def say() -> None:
        begin = "\r\x1b[K" if on_terminal(sys.stdout) else ""  # a bar may be drawn
        with contextlib.suppress(OSError, ValueError):  # no reader any more
            print(f"{begin}preparing to train {arguments.model} ...", flush=True)

    soon = threading.Timer(SILENCE, say)
    soon.daemon = True
    if failure.launched_rank() == 0 and not arguments.quiet:
        soon.start()
    try:
        yield soon.cancel
    finally:
        soon.cancel()


def train(arguments: argparse.Namespace) -> int:
    with _preparing(arguments) as described:
        return _train(arguments, described)


def _train(arguments: argparse.Namespace, described: Callable[[], None]) -> int:
    entry = models.by_name(arguments.model)
    strategy = make_strategy(arguments)
    compression = make_compression(arguments, strategy)
    apoptosis = make_apoptosis(arguments)
    optimizer = checked(lambda: make_optimizer(arguments))
    launched = start.launcher_world_size()
    comm = None
    if arguments.virtual_ranks is not None:
        if launched is not None and launched > 1:
            raise UsageError(
                f"--virtual-ranks {arguments.virtual_ranks}: not under mpiexec, which started {launched} ranks"
            )
        if not 1 <= arguments.virtual_ranks <= MAX_VIRTUAL_RANKS:
            raise UsageError(f"--virtual-ranks {arguments.virtual_ranks}: allowed: 1..{MAX_VIRTUAL_RANKS}")
        comm = checked(lambda: VirtualCluster(arguments.virtual_ranks, compute_time=arguments.compute_time))
    elif arguments.compute_time is not None:
        raise UsageError(f"--compute-time {arguments.compute_time}: goes with --virtual-ranks")
    straggler, network = checked(lambda: circumstances(arguments))
    limits = {"epochs": (1, 2**31 - 1), "batch_size": (1, HIGHEST), "threads": (1, 4096), "seed": (0, 2**64 - 1)}
    check_limits(arguments, limits | {"early_stopping": (1, HIGHEST), "checkpoint_every": (1, HIGHEST)})
    timeout = checked(lambda: number("timeout", arguments.timeout, 0.0))
    check_outputs(arguments)
    callbacks = _callbacks(arguments)
    loss = _loss(arguments, arguments.loss or entry.loss)
    if arguments.weights is not None and arguments.resume is not None:
        raise UsageError(f"--weights {arguments.weights}: not with --resume, whose checkpoint has its own weights")

    net, train_set, validation_set = load_data(arguments)
    if arguments.weights is not None:
        _load_weights(net, arguments.weights)
    ranks = arguments.virtual_ranks or launched or 1
    samples, split = len(train_set), arguments.validation_split
    if split is not None:
        samples -= checked(lambda: held_out(split, samples))
    sizes = shard_sizes(samples, max(strategy.workers(ranks), 1))
    batch_size = arguments.batch_size or batch_for(entry.batch, sizes)
    check_batch(sizes, batch_size)  # before all replicas are made
    trainer = Trainer(
        net,
        loss=loss,
        optimizer=optimizer,
        strategy=strategy if arguments.strategy or given(arguments, strategy_keys()) else None,
        compression=compression,
        apoptosis=apoptosis,
        metrics=arguments.metrics,
        seed=arguments.seed,
        comm=comm,
        **machine_options(arguments),
        trace=TRACE_SPANS if arguments.trace else 0,
        timeout=timeout,
        straggler=straggler,
        network=network,
    )
    if arguments.batch_size is None:
        notices.smaller_batches(trainer.rank, batch_size, entry.batch)
    speaks = trainer.rank == 0 and not arguments.quiet
    if speaks:
        callbacks.append(_Headline(described))
    history = trainer.fit(
        train_set,
        validation=validation_set if split is None else None,
        validation_split=split,
        epochs=arguments.epochs,
        batch_size=batch_size,
        callbacks=callbacks,
        validate_replicas=arguments.validate_replicas,
        shuffle=arguments.shuffle,
        drop_last=arguments.drop_last,
        final_mix=arguments.final_mix,
        shard=arguments.shard,
        class_weight=arguments.class_weight,
        progress=not arguments.quiet,
        resume=arguments.resume,
    )
    lost = [one.failure for one in callbacks if isinstance(one, (CSVLogger, JSONLLogger)) and one.failure is not None]
    whole = history.to_html if arguments.report and report.is_page(arguments.report) else history.write
    for key, write in (("report", whole), ("trace", trainer.write_trace)):
        path_given = getattr(arguments, key)
        if path_given and (key == "trace" or trainer.rank == 0):  # a trace is gathered from all ranks
            try:
                write(path_given)
            except OSError as error:
                lost.append(f"{option_of(key)} {path_given}: not written: {error.strerror or error}")
    if speaks:
        print(_closing(history, arguments, trainer.straggler is not None or trainer.network is not None), flush=True)
    trainer.close()
    for line in lost:
        print(f"gossipgrad: error: {line}", file=sys.stderr, flush=True)
    return FAILURE if lost else 0


class _Headline(Callback):
    """Prints the training's description as soon as fit has checked all arguments."""

    def __init__(self, described: Callable[[], None]) -> None:
        self._described = described

    def on_fit_begin(self, trainer: Trainer) -> None:
        self._described()
        print(_headline(trainer), flush=True)


def _headline(trainer: Trainer) -> str:
    ranks = counted(trainer.size, "rank")
    where = {"mpi": " under MPI", "net": " over net", "virtual": " in a virtual cluster"}.get(trainer.team.kind, "")
    threads = counted(trainer.threads, "thread")
    settings, shown, fit = trainer.strategy_settings(), ("topology", "exchange_used"), trainer.fit_settings
    how = [v if isinstance(v, str) else "a table of partners" for k, v in settings.items() if k in shown and v]
    slices = settings.get("slices") or 1
    how += [f"{slices} slices"] if slices > 1 else []
    permutations, copies = settings.get("permutations"), list(trainer.core.exchange.arenas().values()).count("copy")
    how += [] if permutations is None else [counted(permutations, "permutation")]
    how += [] if trainer.compression is None else [f"{trainer.compression.name} {trainer.compression.mode}"]
    how += [f"{counted(copies, 'more model')} a rank"] if copies else []
    words = f" ({', '.join(how)})" if how else ""
    return (
        f"{trainer.net.name}, {trainer.net.parameters:,} parameters, on {fit['dataset']}, {fit['train_samples']:,} + "
        f"{fit['validation_samples']:,} samples; {trainer.strategy.name}{words}; {trainer.optimizer.name}, "
        f"lr {trainer.optimizer.lr:g}; {ranks}{where}, {threads} each; "
        f"{trainer.core.backend}, {trainer.core.isa}, {trainer.dtype}"
    )


def _closing(history: History, arguments: argparse.Namespace, circumstances: bool) -> str:
    if not history.epochs:
        return "nothing to do"
    last = history.last
    seconds = f"{sum(history['seconds']):.1f} s of training{simulated(history, circumstances)}"
    parts = [f"done: {counted(len(history), 'epoch')} in {seconds}"]
    if "accuracy" in last.get("validation", {}):
        parts.append(f"validation accuracy {100 * last['validation']['accuracy']:.2f} %")
    if history.apoptosis:
        born = history.apoptosis["born"]["parameters"]
        parts.append(f"{last['parameters']:,} of {born:,} parameters")
    parts += [
        f"{key} {getattr(arguments, key)}" for key in ("report", "trace", "checkpoint") if getattr(arguments, key)
    ]
    return ", ".join(parts)
