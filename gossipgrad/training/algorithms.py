"""Measured algorithms for each pass of each convolution, the same on all ranks.

Without measuring, the core's cost model chooses (csrc/nn/cost.h), and nothing here is used.

Sixteen numbers describe a convolution: batch, channels, height and width of its input, channels of its output, both
paddings, flags for bias and ReLU, its window, strides, dilations and groups. These are measured:

- on a CPU: windows of 3 x 3 or 5 x 5;
- with AMX, if the images lie in blocks of sixteen channels: all with at least sixteen channels and strides of 1 or 2;
in
  bfloat16 also those of up to four channels;
- in bfloat16, if the CPU multiplies it faster in vector registers: all whose images have one layout before and after;
  without AMX also all whose channels fill vectors less than the samples do;
- on a GPU: all, by cuDNN's algorithms in this precision, and in TF32 with few channels by own kernels as well.

Rank 0 measures convolutions that neither the checkpoint nor the cache knows. For a training step it measures all
passes, those with the most operations first, within a budget. For an evaluation it measures the forward pass, only if
enough batches follow. The cost model chooses for the rest.

Before that, the order of the two tables of operations is measured as a whole, reorders included: a few steps with each
table first, which also decides the layout of activations. Unless one order is CLEAR times as fast, the convolutions are
measured in the layouts of both. Then the steps are measured again with the fastest algorithms of either, if time
allows. If time or memory does not suffice for a step with each, the cost model decides, and the report has the reason.

The budget is SECONDS at most and, on a CPU, SHARE of the run. The cache holds times, and records of insufficient
budgets.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any

from gossipgrad.launch import environment
from gossipgrad.literals import BACKENDS
from gossipgrad.state.files import cache_folder, content, locked_folder, written

Key = tuple[int, ...]
Seconds = dict[str, dict[str, float]]  # by pass, then by algorithm
Measured = dict[Key, Seconds]
Record = dict[str, Any]  # in terms of JSON
Measure = Callable[[list[Key]], Iterable[tuple[Key, str, str, float]]]
Choice = tuple[Key, tuple[str, str, str]]
PASSES = ("forward", "weights", "data")
# The best first.
ACCURACY = {"direct": 0, "widened": 0, "turned": 0, "split": 0, "tiled": 0}
ACCURACY |= {"winograd2": 1, "turned2": 1, "winograd4": 2, "turned4": 2, "winograd6": 3, "turned6": 3}
HARDLY_MORE = 1.03
KERNELS = 19  # raised with every change of kernels or candidates of convolutions: old times are then invalid
SECONDS = 20.0  # after these no further measurement begins
SHARE = 0.1  # of a run
MIN_STEPS = 30  # min steps of a run that is worth the one or two steps for estimating its length
LOCK_SECONDS = 5.0  # to wait for another process that writes the cache
PARTS = 8  # pieces of measuring convolutions, so that a bar moves
CLEAR = 2.5  # with Winograd's convolutions a step can be more than twice as fast although the rule expects no gain
PATIENCE = 0.25  # max share of the timeout of the waiting ranks
PAYS = 100  # full batches of an evaluation: measuring runs each candidate about ten times
_IMAGE = ("batch", "channels", "height", "width")
_WINDOW = ("window", "window_width", "stride_height", "stride_width", "dilation_height", "dilation_width", "groups")
_FIELDS = (*_IMAGE, "filters", "padding_height", "padding_width", "bias", "relu", *_WINDOW)


def cache_path() -> str:
    """$XDG_CACHE_HOME/gossipgrad/algorithms.json; ~/.cache if that is not set."""
    return os.path.join(cache_folder(), "algorithms.json")


def wanted(device: str, precision: str) -> bool:
    """Default for measuring if a trainer gives none: $GOSSIPGRAD_TUNE (0 or 1); else on a GPU, unless its bits must
    repeat in every run.
    """
    said = os.environ.get("GOSSIPGRAD_TUNE", "")
    return said != "0" if said else device.startswith("cuda") and precision != "exact"


class Budget:
    """Seconds for measuring, counted from the first question on.

    timeout  seconds after which other ranks give up waiting; 0: they wait for ever, or there are none.
    steps    of the run; None: not known.
    step     returns the seconds of one step.
    """

    def __init__(self, timeout: float = 0.0, steps: int | None = None, step: Callable[[], float] | None = None) -> None:
        self._timeout, self._steps, self._step = timeout, steps, step
        self._end: float | None = None

    def left(self) -> float:
        if self._end is None:
            self._end = time.monotonic() + self._whole()
        return max(self._end - time.monotonic(), 0.0)

    def _whole(self) -> float:
        seconds = min(SECONDS, PATIENCE * self._timeout) if self._timeout > 0 else SECONDS
        if self._steps is None or self._step is None:
            return seconds
        if self._steps < MIN_STEPS:
            return 0.0
        return min(seconds, SHARE * self._steps * self._step())


def machine(isa: str, backend: str, threads: int, dtype: str) -> str:
    """Key of the machine whose times the cache holds."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        found: dict[str, str] = {}
        for line in file:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
        cpu = " ".join(found.get(key, "") for key in ("model name", "cpu family", "model", "stepping"))
    paired = ", paired" if environment.core_info()["paired"] else ""
    own = f"{isa}{paired}, {backend}, threads {threads}, {dtype}"
    return f"gossipgrad {environment.VERSION}, kernels {KERNELS}, {cpu}, {own}"


def gpu(facts: Record, device: str, dtype: str, precision: str) -> str:
    """Key of a GPU whose times the cache holds. facts: about the GPUs and their libraries, from `gossipgrad info`."""
    number = device.partition(":")[2] or "0"
    name = str(facts.get(f"cuda:{number}", "unknown")).partition(", peer access")[0]
    libraries = f"cuDNN {facts.get('cudnn', 'unknown')}, CUDA {facts.get('runtime', 'unknown')}"
    return f"gossipgrad {environment.VERSION}, kernels {KERNELS}, {name}, {libraries}, {dtype}, {precision}"


def _text(key: Key) -> str:
    return " ".join(map(str, key))


def _read(path: str) -> dict[str, Any]:
    """The cache; empty if missing or unreadable: then everything is measured again."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(content(path))
        if isinstance(found, dict):
            return found
    return {}


def _entries(cache: dict[str, Any], where: str) -> dict[str, Any]:
    entries = cache.get(where)
    return entries if isinstance(entries, dict) else {}


def _locked(folder: str) -> int | None:
    """A locked handle; None: another process has held the lock for LOCK_SECONDS, perhaps a stopped one."""
    begun = time.monotonic()
    while (lock := locked_folder(folder)) is None and time.monotonic() - begun < LOCK_SECONDS:
        time.sleep(0.01)
    return lock


def _add(path: str, where: str, entries: dict[str, Any]) -> None:
    """Add entries to the cache, beside its current ones: other processes write to it as well."""
    with contextlib.suppress(OSError):  # a read-only home: the next process measures again
        lock = _locked(os.path.dirname(path))
        try:
            cache = _read(path)
            cache[where] = _entries(cache, where) | entries
            with written(path) as file:  # replaces anything, also a named pipe
                file.write(json.dumps(cache, indent=0).encode())
        finally:
            if lock is not None:
                os.close(lock)


def _number(value: Any) -> bool:
    return isinstance(value, float) and value > 0


def _times(value: Any, known: Callable[[str], bool]) -> bool:
    """True for seconds of at least one known name."""
    return isinstance(value, dict) and bool(value) and all(known(key) and _number(value[key]) for key in value)


def _is_algorithm(name: str) -> bool:
    return name in ACCURACY or name.startswith("cudnn")


def _sound(seconds: Any) -> bool:
    return isinstance(seconds, dict) and all(
        one in PASSES and _times(times, _is_algorithm) for one, times in seconds.items()
    )


def measured(
    wanted: list[Key], passes: tuple[str, ...], measure: Measure, where: str, path: str, own: Measured | None = None
) -> Measured:
    """The times of these convolutions: this trainer's own, then those of the cache. Missing ones of these passes are
    measured and stored in the cache. The result always includes `own`.
    """
    read: Measured = {}
    for text, seconds in _entries(_read(path), where).items():
        with contextlib.suppress(ValueError):
            key = tuple(map(int, text.split()))
            if len(key) == len(_FIELDS) and _sound(seconds):
                read[key] = seconds
    own = own or {}
    known = read | own
    # A first layer's "data" is not computed: its convolution is complete without.
    missing = [key for key in wanted if not set(passes) - {"data"} <= set(known.get(key, {}))]
    fresh: Measured = {}
    for key, one, algorithm, took in measure(missing) if missing else ():
        fresh.setdefault(tuple(key), {}).setdefault(one, {})[algorithm] = took
    if fresh:
        _add(path, where, {_text(key): seconds for key, seconds in fresh.items()})
    found = known | fresh
    return {key: found[key] for key in wanted if key in found} | {key: found[key] for key in own}


def tables(
    batch: int,
    network: str,
    measure: Callable[[int], tuple[dict[str, float], str]],
    where: str,
    path: str,
    own: list[Record],
    budget: Budget,
) -> list[Record]:
    """The report's entries on the order of tables: `own`, and the seconds of a step with each table first for this
    batch, from the cache or measured. network: distinguishes it from others. A failed measurement gives its reason
    instead; the cache stores it, and it is tried again with twice the budget.
    """
    if any(one["batch"] == batch for one in own):
        return own
    where, key = f"{where}, first table", f"{network} {batch}"
    found: Any = _entries(_read(path), where).get(key)
    reason = ""
    if _failed(found) and budget.left() < 2 * found["budget"]:
        found, reason = {}, found["reason"]
    elif not _times(found, BACKENDS.__contains__):
        seconds = budget.left()
        found, reason = measure(batch)
        if found or reason:
            _add(path, where, {key: found or {"reason": reason, "budget": seconds}})
    if found:
        return [*own, {"batch": batch, "table": min(found, key=lambda name: found[name]), "seconds": found}]
    return [*own, {"batch": batch, "table": None, "reason": reason}] if reason else own


def _failed(value: Any) -> bool:
    """True for a failed measurement of the cache, with its budget."""
    return isinstance(value, dict) and isinstance(value.get("reason"), str) and isinstance(value.get("budget"), float)


def compared(
    steps: Callable[..., tuple[dict[str, float], str]], choices: Callable[[str, float], list[Choice]], budget: Budget
) -> tuple[dict[str, float], str]:
    """Seconds of a step with each table first, or the reason for none. steps: measures them within the given seconds,
    with the algorithms of each table, in its order of names, if given. choices: measures the algorithms of a table,
    begun within the given seconds. All within the budget.
    """
    modelled, reason = steps(budget.left())
    if not modelled or max(modelled.values()) > CLEAR * min(modelled.values()):
        return modelled, reason
    share = budget.left() / 4
    chosen = [choices(name, share) for name in modelled]
    found, _ = steps(budget.left(), *chosen) if any(chosen) else ({}, "")
    return found or modelled, ""


def ordered(described: Iterable[Record]) -> list[Record]:
    """The report's entries on the order of tables."""
    return [one for one in described if "table" in one]


def first_tables(described: Iterable[Record]) -> list[tuple[int, str]]:
    """The core's form of measured orders: batch sizes, and the table that comes first; decisions of the cost model are
    left out.
    """
    return [(int(one["batch"]), str(one["table"])) for one in ordered(described) if one["table"] is not None]


def fastest(seconds: Seconds) -> tuple[str, str, str]:
    """For each pass the algorithm with the shortest time, or a more accurate one that takes hardly more. Without
    measurements: direct; or widened if that was a candidate of another pass and this CPU multiplies bfloat16 slower
    than float32.
    """
    widened = any("widened" in times for times in seconds.values())
    rule = "widened" if widened and not environment.core_info()["bfloat16_is_fast"] else "direct"

    def of(one: str) -> str:
        times = seconds.get(one, {rule: 0.0})
        close = [algorithm for algorithm, time in times.items() if time <= HARDLY_MORE * min(times.values())]
        return min(close, key=lambda algorithm: (ACCURACY.get(algorithm, len(ACCURACY)), times[algorithm]))

    forward, weights, data = map(of, PASSES)
    return forward, weights, data


def report(found: Measured) -> list[dict[str, Any]]:
    """The choice, and the time of each candidate, in terms of JSON."""
    return [
        {
            **dict(zip(_FIELDS, key, strict=True)),
            "algorithms": dict(zip(PASSES, fastest(seconds), strict=True)),
            "seconds": seconds,
        }
        for key, seconds in sorted(found.items())
    ]


def _key(one: dict[str, Any]) -> Key:
    """The key of a report's entry. Older entries lack parts of a window: 3 x 3, or square, and all others 1."""
    size = one.get("window", 3)
    window = dict.fromkeys(_WINDOW, 1) | {"window": size, "window_width": size}
    return tuple(int((window | one)[field]) for field in _FIELDS)


def known(described: Iterable[dict[str, Any]]) -> Measured:
    """The times in a report."""
    return {_key(one): one["seconds"] for one in described if "table" not in one}


def choices(described: Iterable[dict[str, Any]]) -> list[Choice]:
    """The core's choices from a report. KeyError, TypeError, ValueError: it is none."""
    made = []
    for one in described:
        if "table" in one:
            continue
        forward, weights, data = (str(one["algorithms"][each]) for each in PASSES)
        made.append((_key(one), (forward, weights, data)))
    return made
