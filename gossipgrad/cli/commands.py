"""The parser of all commands, and how an error ends one."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from gossipgrad.cli import bench, compare, evaluate, report, train
from gossipgrad.cli.options import FAILURE, INTERRUPTED, USAGE, UsageError
from gossipgrad.cli.parsing import Parser
from gossipgrad.errors import SAVED, SavedOnSignal, one_line
from gossipgrad.launch import coordinator, environment, failure, interrupts, origin, start, supervisor
from gossipgrad.state import checkpoint_files


class _Terminated(KeyboardInterrupt):
    """SIGTERM, a launcher's signal to end a rank."""


_FIRST = """\
examples:
  gossipgrad train                    LeNet on 10,000 digits, on one rank
  gossipgrad run -n 2 train           on two ranks of MPI
  gossipgrad train --virtual-ranks 8  on eight ranks in one process
  gossipgrad compare                  strategies side by side
  gossipgrad COMMAND --help           the options of a command"""
_COMMANDS: dict[str, tuple[Callable[[Parser], None], Callable[[argparse.Namespace], int], str]] = {
    "train": (train.add_options, train.train, "train a network"),
    "evaluate": (evaluate.add_options, evaluate.evaluate, "loss and metrics of a saved network"),
    "info": (bench.add_info_options, bench.info, "versions, CPU, MPI, libraries"),
    "bench": (bench.add_options, bench.time_it, "time a training step; prints one line of JSON"),
    "report": (report.add_options, report.make, "one page of runs, with pictures"),
    "coordinator": (coordinator.add_options, coordinator.serve, "for ranks on several hosts that may die"),
    "compare": (compare.add_options, compare.side_by_side, "strategies side by side, on virtual ranks"),
}


def parser() -> argparse.ArgumentParser:
    """The parser of all sub-commands except run and join, whose words belong to the launcher."""
    how = {"prog": "gossipgrad", "usage": "%(prog)s COMMAND [options]"}
    top = Parser(**how, description="Data-parallel training that communicates by gossip.", epilog=_FIRST)
    top.add_argument("--version", action="version", version=f"gossipgrad {environment.VERSION}", help="print it")
    commands = top.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=Parser, prog="gossipgrad"
    )
    commands.add_parser("run", help="start ranks with mpiexec: gossipgrad run -n 4 train ...", add_help=False)
    commands.add_parser("join", help="start new ranks of a job of several hosts that trains", add_help=False)
    for name, (add_options, _, help_) in _COMMANDS.items():
        add_options(commands.add_parser(name, help=help_))
    return top


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


def _quietly(text: str) -> Callable[[str], None]:
    """_say, unless a `gossipgrad run` prints it after the end of all ranks."""
    return (lambda who: None) if os.environ.get(supervisor.VARIABLE) else _say(text)


def _check(words: list[str], here: bool) -> None:
    """LaunchError: invalid words of a sub-command, or, if ranks are `here`, unwritable files.

    --help prints the help and ends this process.
    """
    try:
        arguments = parser().parse_args(words)
        if here and arguments.command == "train":
            train.check_outputs(arguments)
    except UsageError as error:
        raise start.LaunchError(str(error)) from None


def _to_nobody() -> None:
    """Replace an unwritable standard output, which Python flushes at the end."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _is_of_output(error: Exception) -> bool:
    """True if standard output could not be written; errors of other files name them."""
    failed = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    return isinstance(error, OSError) and error.filename is None and error.errno in failed


def _text(error: Exception) -> str:
    """An error's line."""
    if _is_of_output(error):
        return f"standard output: {one_line(error)}"
    plain = isinstance(error, (ValueError, OSError, RuntimeError, ArithmeticError, NotImplementedError))
    return one_line(error) if plain else f"{type(error).__name__}: {one_line(error)}"


def _run(words: list[str], join: bool) -> int:
    """gossipgrad run or join; its own output may have no reader, or no room."""
    try:
        return start.main(words, _check, checkpoint_files.last_checkpoint, join)
    except BrokenPipeError:
        _to_nobody()
    except OSError as error:
        _to_nobody()
        _say(f"error: {_text(error)}")("")
    return FAILURE


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code: 0, 1 after an error, 2 for wrong options, 130 when interrupted.

    75: saved on a signal (train --save-on-signal).

    An error is one line on stderr, with the traceback before it if GOSSIPGRAD_TRACEBACK=1. Under MPI it ends all ranks.
    """
    argv = argv or ["--help"]
    if argv[0] in ("run", "join"):
        return _run(argv[1:], argv[0] == "join")
    signal.signal(signal.SIGTERM, _terminate)
    checkpoint: str | None = None  # named when a signal ends the command
    try:
        interrupts.end_import()
        arguments = parser().parse_args(argv)
        checkpoint = arguments.checkpoint if arguments.command == "train" else None
        alone = arguments.command in ("info", "report", "coordinator")
        if not alone and getattr(arguments, "virtual_ranks", None) is None:
            origin.check()
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return _COMMANDS[arguments.command][1](arguments)
    except UsageError as error:
        code = USAGE
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        failure.end_all_ranks(_say(f"error: {error}"), code)
    except BrokenPipeError:  # the reader of our output has gone
        code = FAILURE
        _to_nobody()
        failure.end_all_ranks(lambda who: None, code)
    except SavedOnSignal:
        code = SAVED
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the scheduler sends it once more
        last = checkpoint_files.last_checkpoint(checkpoint)
        failure.end_all_ranks(_quietly(f"stopped by a signal, to be resumed (exit code {SAVED}){last}"), code)
    except _Terminated:
        code = 128 + signal.SIGTERM
        if failure.launched_rank() == 0 and failure.first_to_report():
            _quietly(f"terminated{checkpoint_files.last_checkpoint(checkpoint)}")("")
        if failure.several():  # the launcher is ending the other ranks as well
            sys.stdout.flush()
            os._exit(code)
    except KeyboardInterrupt:
        code = INTERRUPTED
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends this process at once
        failure.end_all_ranks(_quietly(f"interrupted{checkpoint_files.last_checkpoint(checkpoint)}"), code)
    except Exception as error:
        code = FAILURE
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another rank has printed it, and the launcher ends this one
        if _is_of_output(error):
            _to_nobody()
        failure.end_all_ranks(_say(f"error: {_text(error)}"), code, error)
    return code
