"""gossipgrad bench, and gossipgrad info."""

from __future__ import annotations

import argparse
from typing import Any

from gossipgrad import bench, drawing, plots, profile, strategies
from gossipgrad.cli.options import (
    CIRCUMSTANCES,
    UsageError,
    add_circumstances,
    add_compression,
    add_machine,
    add_model,
    add_strategy,
    check_limits,
    checked,
    circumstances,
    compression_keys,
    given,
    make_compression,
    make_strategy,
    option_of,
    path,
    strategy_keys,
)
from gossipgrad.cli.parsing import Parser
from gossipgrad.errors import HIGHEST
from gossipgrad.launch import environment, failure, start
from gossipgrad.state import outputs
from gossipgrad.state.files import json_text

_STEPS, _PROFILED = 60, 20
_BLOCKS = 5  # of --exchange
_OF_EXCHANGE = ("strategy", "blocks", *strategy_keys(), *compression_keys(), *CIRCUMSTANCES)

_DESCRIPTION = """\
Times a training step on synthetic data, and prints one line of JSON.
With --exchange: the time without exchange over the time with it."""
_SHORT = {
    "model": "lenet, resnet20, char_gpt, ...; default: %(default)s",
    "batch_size": "samples a rank and step; default: the model's",
    "steps": f"steps that are timed; default: {_STEPS}, with --profile {_PROFILED}",
    "threads": "cores of each rank; default: OMP_NUM_THREADS, else 1",
    "device": "cpu, cuda, cuda:1; default: cpu",
    "dtype": "of the computation; default: %(default)s",
    "profile": "print each pass of each operation",
    "profile_plot": "draw it (wants matplotlib)",
    "exchange": "time the exchange; under gossipgrad run -n P",
    "strategy": "of --exchange; default: gossipgrad",
    "compression": "of what --exchange sends; default: none",
}
_EXAMPLES = """\
gossipgrad bench --model resnet20
gossipgrad bench --model cifar_quick --profile
gossipgrad run -n 2 bench --exchange --strategy allreduce"""


def add_info_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def info(arguments: argparse.Namespace) -> int:
    facts = environment.environment() | environment.devices()
    if failure.launched_rank() == 0:
        print(json_text(facts, indent=1) if arguments.json else environment.table(facts), flush=True)
    return 0


def add_options(parser: Parser) -> None:
    add_model(parser)
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples a rank and step; default: the model's")
    help_ = f"that are timed, with --exchange in each block; default: {_STEPS}, with --profile {_PROFILED}"
    parser.add_argument("--steps", type=int, metavar="N", help=help_)
    parser.add_argument("--warmup", type=int, default=5, metavar="N", help="steps before them")
    add_machine(parser)
    group = parser.add_argument_group("where the time of a step goes")
    group.add_argument("--profile", action="store_true", help="print each pass of each operation, beside the peaks")
    help_ = "the same as a picture: where the time goes, and the roof (wants matplotlib)"
    group.add_argument("--profile-plot", type=path, metavar="FILE", help=help_)
    group.add_argument("--json", action="store_true", help="with --profile: as JSON")
    _add_exchange(parser)
    add_circumstances(parser, virtual=False)
    parser.shorten(_DESCRIPTION, _SHORT, _EXAMPLES)


def _add_exchange(parser: argparse.ArgumentParser) -> None:
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
    add_strategy(group, without=("exchange", "shuffle_samples"))  # a step of bench reads no samples
    add_compression(group)


def _profile(arguments: argparse.Namespace, common: dict[str, Any]) -> None:
    without_use = [option_of(key) for key in given(arguments, ("exchange", *_OF_EXCHANGE))]
    if without_use:
        raise UsageError(f"{', '.join(without_use)}: not with --profile, of a rank's step that sends nothing")
    if (start.launcher_world_size() or 1) > 1:
        raise UsageError("--profile: of one process; allowed without gossipgrad run and mpiexec")
    if arguments.profile_plot is not None:
        checked(lambda: outputs.check([outputs.Output("--profile-plot", arguments.profile_plot)]))
        checked(lambda: drawing.check_format("--profile-plot", arguments.profile_plot))
    if common.pop("device") not in (None, "cpu") or common.pop("precision") != "exact":
        raise UsageError("--profile: of the CPU's operations; allowed: without --device and --precision")
    result = profile.step(**common)
    bench.warn_of_others(result["others_busy"])
    if arguments.profile:
        print(json_text(result) if arguments.json else profile.table(result), flush=True)
    if arguments.profile_plot is not None:
        plots.profile(result, arguments.profile_plot)


def time_it(arguments: argparse.Namespace) -> int:
    threads = environment.default_threads() if arguments.threads is None else arguments.threads
    common: dict[str, Any] = {"model": arguments.model, "batch_size": arguments.batch_size, "threads": threads}
    profiled = arguments.profile or arguments.profile_plot is not None
    if arguments.steps is None:
        arguments.steps = _PROFILED if profiled else _STEPS
    common |= {"steps": arguments.steps, "warmup": arguments.warmup, "backend": arguments.backend}
    common |= {"conv_algorithm": arguments.conv_algorithm, "tune": arguments.tune}
    common |= {"dtype": arguments.dtype, "device": arguments.device, "precision": arguments.precision}
    limits = {"batch_size": (1, HIGHEST), "steps": (1, HIGHEST), "warmup": (0, HIGHEST), "blocks": (1, HIGHEST)}
    check_limits(arguments, limits | {"threads": (1, 4096)})
    straggler, network = checked(lambda: circumstances(arguments))
    if arguments.json and not arguments.profile:
        raise UsageError("--json: only with --profile; without it the result is JSON")
    if profiled:
        _profile(arguments, common)
        return 0
    if arguments.exchange is None:
        without_use = ", ".join(option_of(key) for key in given(arguments, _OF_EXCHANGE))
        if without_use:
            raise UsageError(
                f"{without_use}: only with --exchange; without it one rank's step is timed, which sends nothing"
            )
        timed = bench.step(**common)
        result: dict[str, Any] | None = timed if failure.launched_rank() == 0 else None
        if (start.launcher_world_size() or 1) == 1:  # other ranks are other processes, too
            bench.warn_of_others(timed["others_busy"])
    else:
        strategy = make_strategy(arguments, exchange=arguments.exchange or None)
        compression = make_compression(arguments, strategy)
        if (start.launcher_world_size() or 1) < 2:
            raise UsageError("--exchange: one rank has nobody to exchange with; allowed: gossipgrad run -n P, P > 1")
        blocks = _BLOCKS if arguments.blocks is None else arguments.blocks
        circumstanced: dict[str, Any] = {"straggler": straggler, "network": network, **common}
        result = bench.exchange(strategy, compression=compression, blocks=blocks, **circumstanced)
    if result is not None:
        print(json_text(result), flush=True)
    return 0
