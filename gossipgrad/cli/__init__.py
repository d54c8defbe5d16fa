"""The command line: each option is a keyword of a constructor."""

from gossipgrad.cli.commands import main, parser
from gossipgrad.cli.options import FAILURE, INTERRUPTED, USAGE, UsageError
from gossipgrad.cli.train import TRACE_SPANS

__all__ = ["FAILURE", "INTERRUPTED", "TRACE_SPANS", "USAGE", "UsageError", "main", "parser"]
