"""The result of fit and the content of a report: settings, environment, one record an epoch; docs/report.md has the
fields."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gossipgrad import show
from gossipgrad.errors import counted, did_you_mean
from gossipgrad.report import write as write_page
from gossipgrad.state.files import content, json_text, write_atomically

SCHEMA = 1
PARTS_OF_TIME = ("compute_seconds", "exposed_communication_seconds", "data_wait_seconds")
Record = dict[str, Any]

# The order of an epoch's record; other numbers of the core follow.
_ORDER = (
    "epoch",
    "seconds",
    "seconds_max",
    "virtual_seconds",
    "steps",
    "samples",
    "samples_per_second",
    "train_loss",
    "train_accuracy",
    "learning_rate",
    "validation",
    "validation_replicas",
    "compute_seconds",
    "compute_seconds_max",
    "exposed_communication_seconds",
    "exposed_communication_seconds_max",
    "data_wait_seconds",
    "data_wait_seconds_max",
    "bytes_sent",
    "messages_sent",
    "exchanges_skipped",
    "bytes_per_rank_step",
    "messages_per_rank_step",
    "compression",
    "sample_bytes_sent",
    "sample_messages_sent",
    "optimizer_state_bytes",
    "optimizer_state_bytes_saved",
    "consensus_distance",
    "parameters",
    "units",
    "apoptosis_seconds",
)


# Fields that not every record has.
_SOMETIMES = {"virtual_seconds", "train_accuracy", "validation", "validation_replicas", "compression", "units"}
_SOMETIMES |= {"apoptosis_seconds"}
_BINS = 17  # classes of bins by the number of sent elements: 0, 1, ..., 15, 16 or more
# Names of the families of layers in the report.
_KINDS = {"conv": "conv2d", "linear": "linear", "recurrent": "recurrent", "other": "other"}


def number_names(
    virtual: bool,
    classes: bool,
    families: Sequence[str],
    validation: Iterable[str],
    replica: Iterable[str],
    replicas: int = 0,
    units: Iterable[str] = (),
    apoptosis: bool = False,
) -> list[str]:
    """The numbers of an epoch's record, by dotted names, before there is one.

    virtual: in a virtual cluster; classes: the loss has classes; families: of layers, empty without compression;
    validation: names of the validation's numbers, empty without; replica: names of the validation of each of `replicas`
    ranks; units: the layers that have some; apoptosis: True if the network may shrink.
    """
    names = [name for name in _ORDER if name not in _SOMETIMES]
    names += ["virtual_seconds"] if virtual else []
    names += ["train_accuracy"] if classes else []
    names += [f"units.{one}" for one in units] + ["apoptosis_seconds"] * apoptosis
    nothing = {family: 0 for family in families}
    counts = {"dense_bytes": nothing, "sent_bytes": nothing, "bins_with": [0] * _BINS}
    if families:
        names += flat({"compression": compressed({**counts, "elements": 0, "elements_sent": 0, "residue": 0.0})})
    names += [f"validation.{one}" for one in validation]
    return names + [f"validation_replicas.{rank}.{one}" for one in replica for rank in range(replicas)]


# Fields of a record shown in a notebook.
_SHOWN = (
    "epoch",
    "train_loss",
    "train_accuracy",
    "validation.loss",
    "validation.accuracy",
    "learning_rate",
    "seconds",
    "virtual_seconds",
    "samples_per_second",
    "bytes_sent",
    "compression.ratio",
    "consensus_distance",
)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def compressed(counts: Mapping[str, Any]) -> Record:
    """The record's "compression", from the core's counts; None: nothing was sent."""
    dense, sent = (
        {_KINDS[family]: counts[what][family] for family in _KINDS if family in counts[what]}
        for what in ("dense_bytes", "sent_bytes")
    )
    # A rank may have sent a server its initial weights, and nothing else.
    return {
        "ratio": _ratio(sum(dense.values()), sum(sent.values())) or None,
        "by_kind": {kind: _ratio(dense[kind], sent[kind]) or None for kind in dense},
        "dense_bytes": sum(dense.values()),
        "packed_bytes": sum(sent.values()),
        "elements_sent": _ratio(counts["elements_sent"], counts["elements"]),
        "bins": list(counts["bins_with"]),
        "residue": counts["residue"],
    }


def ordered(record: Mapping[str, Any]) -> Record:
    """The record in its documented order."""
    return {k: record[k] for k in _ORDER if k in record} | {k: v for k, v in record.items() if k not in _ORDER}


def lookup(record: Mapping[str, Any], key: str) -> Any:
    """record["a"]["b"] for the key "a.b", also if b is the name of a layer, with dots in it; KeyError lists the
    existing names.
    """
    value: Any = record
    rest = key
    while rest:
        part = rest if isinstance(value, Mapping) and rest in value else rest.partition(".")[0]
        if not isinstance(value, Mapping) or part not in value:
            names = flat(record)
            raise KeyError(f"{key!r} is not in an epoch's record; it has {', '.join(names)}{did_you_mean(key, names)}")
        value, rest = value[part], rest[len(part) + 1 :]
    return value


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record's numbers with dotted names: {"train_loss": ..., "validation.accuracy": ...}."""
    result: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            result |= {f"{key}.{name}": inner for name, inner in flat(value).items()}
        elif isinstance(value, list):
            for i, entry in enumerate(value):
                inner_record = entry if isinstance(entry, Mapping) else {"": entry}
                result |= {f"{key}.{i}.{name}".rstrip("."): inner for name, inner in flat(inner_record).items()}
        else:
            result[key] = value
    return result


@dataclass(eq=False, repr=False)
class History:
    """The records of a run, in the attributes that docs/report.md names; `epochs` has one record an epoch.

    history["train_loss"], history["validation.accuracy"]: one value an epoch; KeyError if a record lacks it.
    """

    settings: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    ranks: int = 1
    model: Record = field(default_factory=dict)
    epochs: list[Record] = field(default_factory=list)
    weights_sha256: list[str] = field(default_factory=list)
    schedule: Record = field(default_factory=dict)
    partitioned_fc: list[str] = field(default_factory=list)
    tuning: Record = field(default_factory=dict)
    algorithms: list[Record] = field(default_factory=list)
    graphs: Record = field(default_factory=dict)
    apoptosis: Record = field(default_factory=dict)
    time_by_rank: list[Record] = field(default_factory=list)
    views: list[Record] = field(default_factory=list)

    def __setstate__(self, state: Record) -> None:
        """A pickle of an earlier version lacks newer fields."""
        self.__dict__.update(History().__dict__ | state)

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.epochs)

    def __getitem__(self, key: str) -> list[Any]:
        if not isinstance(key, str):
            names = ", ".join(flat(self.last)) if self.epochs else "none before the first epoch"
            raise TypeError(
                f"history[{key!r}]: allowed: a name in an epoch's record, for its values of all epochs ({names}); "
                "history.epochs[i] is the record of an epoch, history.last that of the last one"
            )
        return [lookup(record, key) for record in self.epochs]

    @property
    def last(self) -> Record:
        """The record of the last epoch. IndexError if there is none."""
        return self.epochs[-1]

    def __repr__(self) -> str:
        return f"<History of {counted(len(self), 'epoch')} on {counted(self.ranks, 'rank')}>"

    def _repr_html_(self) -> str:
        shown = [*_SHOWN, *(["parameters"] if self.apoptosis else [])]
        keys = [key for key in shown if self.epochs and key in flat(self.last)]
        rows = [[flat(record).get(key) for key in keys] for record in self.epochs]
        about = f"{self.model.get('name', 'training')} on {counted(self.ranks, 'rank')}"
        return show.table(f"{about}: {counted(len(self), 'epoch')}", keys, rows)

    def to_dict(self) -> Record:
        """The report: schema 1 of docs/report.md."""
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        last = {key: facts.pop(key) for key in ("epochs", "time_by_rank", "weights_sha256")}  # long fields go last
        return {"schema": SCHEMA, **facts, **last}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, NaN and infinities as null; the file appears complete or not at all."""
        write_atomically(path, json_text(self.to_dict(), indent=1).encode() + b"\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page with pictures, settings and the command of this run; it loads nothing from elsewhere.

        The file appears complete or not at all. ImportError without Plotly, which pip install 'gossipgrad[report]'
        installs. `gossipgrad report` writes one page of several reports.
        """
        write_page({str(self.model.get("name", "run")): self.to_dict()}, path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """The history in a report. ValueError if it is none. OSError: missing, or not a regular file."""
        try:
            report = json.loads(content(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)}: no report: {error}") from error
        if not isinstance(report, dict) or report.get("schema") != SCHEMA:
            raise ValueError(f"{os.fspath(path)}: no report of schema {SCHEMA}")
        known = cls().to_dict()
        unknown = [key for key in report if key not in known]
        if unknown:
            raise ValueError(
                f"{os.fspath(path)}: no report of a training: it has {', '.join(map(repr, unknown))}; allowed: "
                f"{', '.join(known)}"
            )
        for key, value in report.items():
            if type(value) is not type(known[key]):
                wanted = {dict: "an object", list: "a list", int: "an integer"}[type(known[key])]
                raise ValueError(f"{os.fspath(path)}: no report of a training: {key} {value!r:.40}; allowed: {wanted}")
        for record in report.get("epochs", []):
            if not isinstance(record, dict):
                raise ValueError(f"{os.fspath(path)}: no report of a training: epoch {record!r:.40}; allowed: objects")
        return cls(**{key: value for key, value in report.items() if key != "schema"})
