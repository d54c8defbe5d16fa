"""Numbers of a report in terms of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

# The parts of a rank's time, with meaning and colour.
PARTS = {
    "compute_seconds": ("computing", "#3b82c4"),
    "exposed_communication_seconds": ("waiting for messages", "#e0752d"),
    "data_wait_seconds": ("waiting for samples", "#b8901f"),
}


def at(record: Any, path: Sequence[str]) -> Any:
    """record[path[0]][path[1]]...; None if there is no such value."""
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def has(record: Record, key: str) -> bool:
    """True if the record has a number of this dotted name."""
    return isinstance(at(record, key.split(".")), (int, float))


def values(report: Record, key: str) -> list[float]:
    """The numbers of this dotted name, of the epochs that have it."""
    return [at(record, key.split(".")) for record in report["epochs"] if has(record, key)]


def total(report: Record, key: str) -> float:
    """The sum over the epochs."""
    return float(sum(values(report, key)))


def last(report: Record, key: str) -> float | None:
    """The last number of this name."""
    found = values(report, key)
    return found[-1] if found else None


def clock_of(reports: Mapping[str, Record]) -> str:
    """The name of the clock that all epochs of all runs have."""
    records = [record for report in reports.values() for record in report["epochs"]]
    return "virtual_seconds" if all("virtual_seconds" in record for record in records) else "seconds"


def waiting(report: Record) -> float | None:
    """The share of the seconds in which a rank waited for messages."""
    parts = [total(report, key) for key in PARTS]
    return parts[1] / sum(parts) if sum(parts) > 0 else None


def size(bytes_: float) -> tuple[float, str]:
    """(bytes of a unit, its name) for numbers up to this one."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(((unit, name) for unit, name in units if bytes_ >= unit), (1.0, "bytes"))
