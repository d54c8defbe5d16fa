"""What several benchmarks share: runs stored in a file as they are made, so that none is made twice; and tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Results:
    """Runs by what they are, in a file if there is one.

    result  what is printed of a record beside its seconds. writes: False on ranks that neither print nor write.
    """

    def __init__(self, path: str | None, result: Callable[[Record], str], writes: bool = True) -> None:
        self.path = Path(path) if path else None
        self.records: list[Record] = []
        self._result, self._writes = result, writes
        if self.path and self.path.exists():
            self.records = json.loads(self.path.read_text(encoding="utf-8"))

    def run(self, what: Record, function: Callable[[], Record]) -> Record:
        """The record of this run, which has "seconds": found, or made now."""
        for one in self.records:
            if what.items() <= one.items():
                return one
        one = what | function()
        if self._writes:
            words = ", ".join(f"{key} {value}" for key, value in what.items() if value is not None)
            print(f"[{words}: {one['seconds']:.0f} s {self._result(one)}]", flush=True)
            self.records.append(one)
            if self.path:
                self.path.write_text(json.dumps(self.records, indent=1), encoding="utf-8")
        return one


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print rows in columns, the first one to the left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells), flush=True)
