"""The command of a run or a comparison, from the settings in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from gossipgrad import compression, data, metrics, models, optim, schedules, strategies
from gossipgrad.apoptosis import Apoptosis

Record = Mapping[str, Any]

# The command line's defaults that no constructor has.
_USUAL = {
    "shuffle": True,
    "drop_last": False,
    "final_mix": False,
    "validate_replicas": False,
    "shard": "interleaved",
    "backend": None,
    "conv_algorithm": "auto",
    "tune": False,
    "dtype": "float32",
    "device": "cpu",
    "precision": "exact",
    "straggler_probability": None,
    "straggler_delay": None,
    "latency": None,
    "bandwidth": None,
}
# Settings of a comparison that other words say, or nothing does.
_OF_COMPARISON = {"strategies", "ranks", "samples", "points", "lr_grid"}
_OF_COMPARISON |= {"folder", "data_options", "straggler", "network"}


def _words(key: str, value: Any) -> list[str]:
    """An option with its value."""
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [name] if value else [name.replace("--", "--no-", 1)]
    if isinstance(value, Mapping):
        value = ",".join(f"{one}={_plain(number)}" for one, number in value.items())
    elif isinstance(value, (list, tuple)):
        value = ",".join(map(_plain, value)) or "none"
    return [name, _plain(value)]


def _plain(value: Any) -> str:
    """A number in few characters."""
    short = f"{value:.15g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _in_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _keywords(made: type[Any], settings: Record, prefix: str = "", always: Sequence[str] = ()) -> list[str]:
    """The keywords of a dataclass as options, but those with their defaults; `always`: with them as well."""
    words = []
    for one in fields(made):
        value, usual = settings.get(one.name), one.default
        if value is None or one.name == "schedule":
            continue
        same = usual is not MISSING and value == _in_json(usual)
        if not same or one.name in always:
            words += _words(prefix + one.name, value)
    return words


def _optimizer(settings: Record) -> list[str]:
    """Options of optimiser and schedule. The command line has other defaults than the constructors, by the network."""
    made, usual = optim.BY_NAME[settings["optimizer"]], models.by_name(settings["model"]).optimizer
    given = [key for key in ("lr", "momentum") if settings.get(key) is not None]
    if usual.name == made.name:
        given += [key for key in optim.keywords(made) if _in_json(getattr(usual, key)) != settings.get(key)]
    words = ["--optimizer", made.name, *_keywords(made, settings, always=given)]
    if settings["schedule"] != "constant":
        words += ["--schedule", settings["schedule"]]
    return words + _keywords(schedules.BY_NAME[settings["schedule"]], settings)


def of_run(report: Record) -> list[str] | None:
    """The command of a run with these settings; None if no command has them."""
    settings = report["settings"]
    try:
        return _of_run(settings, report["ranks"])
    except (KeyError, TypeError, ValueError):  # of Python alone
        return None


def _of_run(settings: Record, ranks: int) -> list[str]:
    cluster = settings["virtual_cluster"] or {}
    options, shrinks = settings["compression"], settings["apoptosis"]
    alone = [
        settings["dataset"] not in (*data.NAMES, "synthetic"),
        not isinstance(settings["loss"], (str, Mapping)),
        isinstance(settings.get("topology"), list),
        settings["weighted"] or settings.get("batch_size_changes") or settings["shard"] == "own",
        bool(set(settings["metrics"]) - set(metrics.named(settings["metrics"]))),
        cluster.get("compute_rate", 1.0) != 1.0 or isinstance(cluster.get("compute_time"), list),
        isinstance((shrinks or {}).get("probe"), Mapping),
    ]
    if any(alone):
        raise ValueError("of Python alone")
    run = {"mpi": ["run"], "net": ["run", "--transport", "net"]}.get(settings["comm"], [])
    words = ["gossipgrad", *([*run, "-n", str(ranks)] if run and ranks > 1 else []), "train"]
    words += _words("virtual_ranks", ranks) if settings["comm"] == "virtual" else []
    words += ["--model", settings["model"], "--dataset", settings["dataset"]]
    for key in ("epochs", "batch_size", "seed"):
        words += _words(key, settings[key])
    words += ["--threads", str(settings["threads"])] if settings["threads"] > 1 else []
    strategy = strategies.BY_NAME[settings["strategy"]]
    words += ["--strategy", strategy.name, *_keywords(strategy, settings), *_optimizer(settings)]
    loss = settings["loss"] if isinstance(settings["loss"], Mapping) else {"name": settings["loss"]}
    if loss["name"] != models.by_name(settings["model"]).loss or len(loss) > 1:
        words += ["--loss", loss["name"]]
    for key, value in loss.items():
        words += [] if key == "name" else _words(key, value)
    if options:
        words += ["--compression", options["name"]]
        words += _keywords(compression.BY_NAME[options["name"]], options, "compression_")
    if shrinks:
        words += ["--apoptosis", *_keywords(Apoptosis, shrinks, "apoptosis_")]
    words += _words("metrics", settings["metrics"]) if settings["metrics"] else []
    late = cluster.get("straggler") or {}
    circumstances = {f"straggler_{key}": late.get(key) for key in ("probability", "delay")}
    circumstances |= {key: cluster.get(key) or None for key in ("latency", "bandwidth", "compute_time")}
    for key, value in (circumstances | {k: settings[k] for k in _USUAL if settings[k] is not None}).items():
        words += _words(key, value) if value != _USUAL.get(key) else []
    return words


def of_comparison(settings: Record) -> list[str] | None:
    """The command of a comparison with these settings; None if no command has them."""
    try:
        labels = [
            one["label"] + (f":lr={'/'.join(map(str, one['rates']))}" if len(one["rates"]) > 1 else "")
            for one in settings["strategies"]
        ]
        words = ["gossipgrad", "compare", "--strategies", ",".join(labels), *_words("virtual_ranks", settings["ranks"])]
        optimizer = {"optimizer", *optim.keywords(optim.BY_NAME[settings["optimizer"]]), "schedule"}
        optimizer |= {one.name for one in fields(schedules.BY_NAME[settings["schedule"]])}
        for key in ("samples", "points"):
            words += _words(key, settings[key])
        words += _words("lr_grid", settings["lr_grid"]) if settings["lr_grid"] else []
        for key, value in settings.items():
            usual = key in _OF_COMPARISON or key in optimizer or value is None
            words += [] if usual or (key, value) == ("lr_scaling", "none") else _words(key, value)
        for owner, prefix in (("straggler", "straggler_"), ("network", ""), ("data_options", "")):
            for key, value in (settings.get(owner) or {}).items():
                words += [] if value is None else _words(prefix + key, value)
        words += [] if settings["network"] else ["--latency", "0", "--bandwidth", "0"]
        words += _words("data", settings["folder"]) if settings.get("folder") else []
        return words + _optimizer(settings)
    except (KeyError, TypeError, ValueError):
        return None
