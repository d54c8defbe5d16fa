"""Strategies side by side: the same samples for each, on p virtual ranks for several p, as a table, data and plots.

Every configuration (a strategy, a p) trains in a process of its own, several at a time. Two results are reported: the
learning (loss against samples) and its cost (loss against virtual time).
"""

from gossipgrad.compare.plan import LINKS, LR_SCALINGS, MAIN, Comparison, Entry, entries
from gossipgrad.compare.processes import Process, complete, run, train, worker
from gossipgrad.compare.report import FINISHED, SCHEMA, files_in, remove_files, row, table, target_of, time_to, write

__all__ = [
    "FINISHED",
    "LINKS",
    "LR_SCALINGS",
    "MAIN",
    "SCHEMA",
    "Comparison",
    "Entry",
    "Process",
    "complete",
    "entries",
    "files_in",
    "remove_files",
    "row",
    "run",
    "table",
    "target_of",
    "time_to",
    "train",
    "worker",
    "write",
]
