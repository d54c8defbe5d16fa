"""gossipgrad evaluate."""

from __future__ import annotations

import argparse
import os
from typing import Any

from gossipgrad import data, heads, models
from gossipgrad.cli.options import (
    DATASETS,
    WITH_FILES,
    UsageError,
    add_data,
    add_data_options,
    add_machine,
    add_metrics,
    check_limits,
    data_options,
    has_options,
    load_data,
    machine_options,
    path,
)
from gossipgrad.cli.parsing import Parser
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import HIGHEST, CheckpointError, DataError, counted, warn
from gossipgrad.history import Record
from gossipgrad.metrics import named
from gossipgrad.model import Model
from gossipgrad.optim import SGD
from gossipgrad.state import checkpoint_files
from gossipgrad.state.files import json_text
from gossipgrad.strategies import NoExchange
from gossipgrad.trainer import Trainer
from gossipgrad.training.checkpoint import Saved
from gossipgrad.training.progress import measured

# Defaults without an option and a checkpoint's value.
_USUAL: Record = {"batch_size": 256, "seed": 0, "dtype": "float32", "conv_algorithm": "auto", "metrics": ()}

_DESCRIPTION = """\
Prints loss, accuracy and metrics of a saved network on validation samples."""
_SHORT = {
    "checkpoint": "what train --checkpoint wrote, or a file of weights (required)",
    "model": "the network of a file of weights; default: the checkpoint's",
    "dataset": "default: the checkpoint's, else the model's",
    "data": "its file or folder",
    "batch_size": "samples a rank and step; default: the checkpoint's",
    "metrics": "auc, perplexity, ...; default: the checkpoint's",
    "replicas": "evaluate the weights of every rank that saved as well",
    "device": "cpu, cuda, cuda:1; default: cpu",
    "threads": "cores of each rank; default: OMP_NUM_THREADS, else 1",
    "json": "print one line of JSON",
}
_EXAMPLES = """\
gossipgrad evaluate --checkpoint run.safetensors
gossipgrad evaluate --checkpoint resnet18.pth --model resnet18 --data FOLDER"""


def add_options(parser: Parser) -> None:
    help_ = "what train --checkpoint wrote, or with --model a file of weights alone, .safetensors, .pt, .pth (required)"
    parser.add_argument("--checkpoint", type=path, required=True, metavar="FILE", help=help_)
    add_data(parser, saved=True)
    help_ = "samples a rank and step; default: the checkpoint's, else the model's"
    parser.add_argument("--batch-size", type=int, metavar="N", help=help_)
    add_metrics(parser, "the checkpoint's")
    help_ = "evaluate the own weights of every rank that saved, too"
    parser.add_argument("--replicas", action="store_true", help=help_)
    help_ = "of what is drawn, as samples to validate on where a set has none; default: the checkpoint's, else 0"
    parser.add_argument("--seed", type=int, metavar="N", help=help_)
    add_machine(parser, saved=True)
    add_data_options(parser)
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    parser.shorten(_DESCRIPTION, _SHORT, _EXAMPLES)


def evaluate(arguments: argparse.Namespace) -> int:
    limits = {"batch_size": (1, HIGHEST), "threads": (1, 4096), "seed": (0, 2**64 - 1)}
    check_limits(arguments, limits)
    arguments.quiet = arguments.json
    arguments.guess = None  # a message about a set that was not named
    try:
        net, test, settings, description = _saved(arguments)
    except CheckpointError as error:
        raise CheckpointError(f"--checkpoint: {error}") from error
    with Trainer(
        net,
        **heads.losses_of(settings),
        optimizer=SGD(lr=0.0, momentum=0.0),  # nothing is trained
        strategy=NoExchange(),
        metrics=arguments.metrics,
        seed=arguments.seed,
        **machine_options(arguments),
    ) as trainer:
        same = test.class_names is not None and test.class_names == description.get("classes")
        if trainer.rank == 0 and arguments.guess is not None and not same:
            warn(arguments.guess)
        _check_classes(test, trainer, description.get("classes"))
        result: Record = {
            "checkpoint": arguments.checkpoint,
            "model": {"name": net.name, "parameters": net.parameters},
            **{key: description.get(key) for key in ("ranks", "epoch", "step")},
            "dataset": test.name,
            "samples": len(test),
            "evaluation": trainer.evaluate(test, batch_size=arguments.batch_size),
        }
        if arguments.replicas:
            result["replicas"] = []
            for rank in range(description["ranks"]):
                own = checkpoint_files.read_rank(arguments.checkpoint, description, rank)["weight"]
                trainer.core.exchange.load_arena("weight", net.check_weights(own))  # also of a diverged run
                result["replicas"].append(trainer.evaluate(test, batch_size=arguments.batch_size))
        if trainer.rank == 0:
            print(json_text(result) if arguments.json else _text(result, description, trainer), flush=True)
    return 0


def _saved(arguments: argparse.Namespace) -> tuple[Model, Dataset, Record, Record]:
    """(the network with its weights, the set to evaluate, settings, the checkpoint's description or {}).

    Missing options become the settings'.
    """
    try:
        weights, description = checkpoint_files.read(arguments.checkpoint)
    except CheckpointError as error:
        if not os.path.isfile(arguments.checkpoint):
            raise
        if arguments.model is None:
            if os.path.isdir(checkpoint_files.state_root(arguments.checkpoint)):
                raise  # a checkpoint that cannot be read
            raise CheckpointError(f"{error}; a file of weights alone wants --model") from error
        return _of_weights(arguments)
    saved = Saved.of(arguments.checkpoint, description)
    net = saved.net
    if arguments.model not in (None, net.name):
        raise CheckpointError(
            f"{arguments.checkpoint} is of another model than --model {arguments.model}: {net.name!r} with "
            f"{net.parameters:,} parameters"
        )
    arguments.dataset = _dataset(arguments, net, saved.settings)
    _complete(arguments, saved.settings)
    how: dict[str, Any] = models.set_options(net, arguments.dataset, net.carries_state) | data_options(arguments)
    progress = not arguments.quiet
    try:
        _, test = data.for_network(net, arguments.dataset, arguments.data, arguments.seed, progress=progress, **how)
    except ValueError as error:
        if arguments.guess is None:
            raise
        raise DataError(f"{arguments.guess}: {error}") from error
    net.load_weights(weights)
    return net, test, saved.settings, description


def _of_weights(arguments: argparse.Namespace) -> tuple[Model, Dataset, Record, Record]:
    """As _saved, for a file of weights alone, whose network --model names."""
    if arguments.replicas:
        raise UsageError(f"--replicas: {arguments.checkpoint} has weights alone, and not those of each rank")
    entry = models.by_name(arguments.model)
    settings = {"loss": entry.loss, "batch_size": entry.batch}
    _complete(arguments, settings)
    net, _, test = load_data(arguments)
    net.load_weights(arguments.checkpoint)
    return net, test, settings, {}


def _complete(arguments: argparse.Namespace, settings: Record) -> None:
    """Take missing options from the settings."""
    known = settings | {"metrics": named(settings.get("metrics", ()))}
    for key, usual in _USUAL.items():
        if getattr(arguments, key) is None:
            setattr(arguments, key, known.get(key, usual))


def _dataset(arguments: argparse.Namespace, net: Model, settings: Record) -> str:
    """The set's name: as given, else the checkpoint's; for --data of a set without a name the network's own.

    The set must have the given options of data sets: --label, for example, is of tables.
    """
    name = arguments.dataset or settings.get("dataset", "nothing")
    if name in DATASETS:
        return str(name)
    missing = f"--dataset: missing: {arguments.checkpoint} was trained on {name!r}, which is no set by name"
    own = models.BY_NAME[net.name].dataset if net.name in models.BY_NAME else ""
    if arguments.data is not None and own in WITH_FILES and has_options(arguments, own):
        arguments.guess = f"{missing}; --data {arguments.data} is read as {own}, the own set of {net.name}"
        return own
    raise UsageError(f"{missing}; allowed: {', '.join(DATASETS)}")


def _check_classes(test: Dataset, trainer: Trainer, trained: list[str] | None) -> None:
    """Warn if a set has other classes, or characters, than the network: each set numbers its own from 0 on.

    trained: the names of the network's classes, if the checkpoint has them.
    """
    known, head = test.class_names, trainer.heads[0]
    if trainer.rank != 0 or known is None:
        return
    count = len(trained) if trained is not None else head.shape[-1] if head.kind == "cross_entropy" else len(known)
    what = "characters" if test.classes is None else "classes"
    differ = f"{len(known)} {what}, and {trainer.net.name} was trained for {count}"
    if len(known) == count:
        differ = f"other {what} than {trainer.net.name} was trained for"
    differ = f"{test.name} has {differ}: each set numbers its own"
    if trained is not None and known != trained[: len(known)]:
        place = next((i for i, (here, there) in enumerate(zip(known, trained, strict=False)) if here != there), count)
        there = repr(trained[place]) if place < count else "none"
        warn(f"{differ}, and number {place} is {known[place]!r} here and {there} there, so the results mean nothing")
    elif trained is None and len(known) != count:
        warn(f"{differ}, so the results mean nothing unless they are the first ones of those trained on")


def _text(result: Record, description: Record, trainer: Trainer) -> str:
    """The result in lines."""
    model, core = result["model"], trainer.core
    when = [checkpoint_files.saved_at(description), counted(description["ranks"], "rank")] if description else []
    saved = f" ({', '.join(when)})" if when else ""
    lines = [
        f"{model['name']}, {model['parameters']:,} parameters, of {result['checkpoint']}{saved}, on "
        f"{result['dataset']}, {result['samples']:,} samples; {counted(trainer.size, 'rank')}, "
        f"{counted(trainer.threads, 'thread')} each; {core.backend}, {core.isa}, {trainer.dtype}",
        ", ".join(measured(result["evaluation"])),
    ]
    lines += [f"rank {rank}: {', '.join(measured(one))}" for rank, one in enumerate(result.get("replicas", []))]
    return "\n".join(lines)
