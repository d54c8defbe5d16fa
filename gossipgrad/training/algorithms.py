"""Which algorithm computes each pass of each convolution, where that is measured: the same on all ranks.

Without measuring, the core's cost model chooses (csrc/nn/cost.h), and nothing here is used.

A convolution is described by sixteen numbers: batch, channels, height and width of its input, channels of its output,
both paddings, whether it has a bias and a ReLU, its window, strides, dilations and groups. On a CPU those with windows
of 3 x 3 or 5 x 5 are measured, and where it has AMX and the images lie in blocks of sixteen channels all of at least
that many whose strides are 1 or 2, and in bfloat16 those of up to four channels; in bfloat16, where it multiplies that
faster in vector registers, all whose images lie alike before and behind them, and where it has no AMX all whose
channels fill vectors less than its samples do; on a GPU all of them, by the algorithms that cuDNN has for them in this
precision, in TF32 with few channels by own kernels as well.
Rank 0 measures those that neither the checkpoint nor the cache knows: of a training step all passes, those with the
most operations first, within a budget; of an evaluation the forward pass, and only where so many batches follow that it
pays. The cost model chooses for what has not been measured.

Before that, which of two tables is asked first for all operations of a training step, and so in which layout its
activations lie, is measured as a whole, reorders included: a few steps with each order. Unless one is CLEAR times as
fast, the convolutions are measured in the layouts of both, and then the steps again, with the fastest algorithms of
either, if there is time for that. Where it does not suffice for a step with each, or the memory does not, the cost
model decides, and the report says why.

The budget is SECONDS at most and, on a CPU, SHARE of the run. The cache holds times, and also that a budget did not
suffice.
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
KERNELS = 19  # raised with kernels or candidates of convolutions: times of other ones are measured anew
SECONDS = 20.0  # after which nothing further is begun
SHARE = 0.1  # of a run
LEAST_STEPS = 30  # of a run that is worth the one or two steps by which its length is estimated
LOCK_SECONDS = 5.0  # to wait for another process that writes the cache
PARTS = 8  # in which convolutions are measured, so that a bar moves
CLEAR = 2.5  # Winograd's convolutions may make more than twice as fast a step of which the rule expects nothing
PATIENCE = 0.25  # of a timeout of the ranks that wait meanwhile, at most
PAYS = 100  # full batches of an evaluation: measuring runs each candidate about ten times
_IMAGE = ("batch", "channels", "height", "width")
_WINDOW = ("window", "window_width", "stride_height", "stride_width", "dilation_height", "dilation_width", "groups")
_FIELDS = (*_IMAGE, "filters", "padding_height", "padding_width", "bias", "relu", *_WINDOW)


def cache_path() -> str:
    """$XDG_CACHE_HOME/gossipgrad/algorithms.json; ~/.cache where that is not set."""
    return os.path.join(cache_folder(), "algorithms.json")


def wanted(device: str, precision: str) -> bool:
    """Whether to measure where a trainer does not say: as $GOSSIPGRAD_TUNE (0 or 1) says; else on a GPU, unless its
    bits are to be the same in every run."""
    said = os.environ.get("GOSSIPGRAD_TUNE", "")
    return said != "0" if said else device.startswith("cuda") and precision != "exact"


class Budget:
    """Seconds for measuring, which run from the first question on.

    timeout  seconds after which others give up waiting; 0: they wait for ever, or there are none.
    steps    of the run; None: not known.
    step     gives the seconds of one.
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
        if self._steps < LEAST_STEPS:
            return 0.0
        return min(seconds, SHARE * self._steps * self._step())


def machine(isa: str, backend: str, threads: int, dtype: str) -> str:
    """What the times in the cache are of."""
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
    """The same of a GPU. facts: what `gossipgrad info` says of the GPUs and their libraries."""
    number = device.partition(":")[2] or "0"
    name = str(facts.get(f"cuda:{number}", "unknown")).partition(", peer access")[0]
    libraries = f"cuDNN {facts.get('cudnn', 'unknown')}, CUDA {facts.get('runtime', 'unknown')}"
    return f"gossipgrad {environment.VERSION}, kernels {KERNELS}, {name}, {libraries}, {dtype}, {precision}"


def _text(key: Key) -> str:
    return " ".join(map(str, key))


def _read(path: str) -> dict[str, Any]:
    """The cache; empty where there is none, or none that can be read: it is measured again then."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(content(path))
        if isinstance(found, dict):
            return found
    return {}


def _entries(cache: dict[str, Any], where: str) -> dict[str, Any]:
    entries = cache.get(where)
    return entries if isinstance(entries, dict) else {}


def _locked(folder: str) -> int | None:
    """None: somebody has had the lock for LOCK_SECONDS, perhaps a process that was stopped."""
    begun = time.monotonic()
    while (lock := locked_folder(folder)) is None and time.monotonic() - begun < LOCK_SECONDS:
        time.sleep(0.01)
    return lock


def _add(path: str, where: str, entries: dict[str, Any]) -> None:
    """Put these into the cache, beside what is there by now: other processes write to it as well."""
    with contextlib.suppress(OSError):  # a read-only home: measured again by the next process
        lock = _locked(os.path.dirname(path))
        try:
            cache = _read(path)
            cache[where] = _entries(cache, where) | entries
            with written(path) as file:  # in place of anything, a named pipe too
                file.write(json.dumps(cache, indent=0).encode())
        finally:
            if lock is not None:
                os.close(lock)


def _number(value: Any) -> bool:
    return isinstance(value, float) and value > 0


def _times(value: Any, known: Callable[[str], bool]) -> bool:
    """Seconds of at least one, by names that are known?"""
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
    """The times of these convolutions: those that this trainer has, its own, then those of the cache; what neither has
    of these passes is measured, and then in the cache. `own` is in the result, whatever is wanted."""
    read: Measured = {}
    for text, seconds in _entries(_read(path), where).items():
        with contextlib.suppress(ValueError):
            key = tuple(map(int, text.split()))
            if len(key) == len(_FIELDS) and _sound(seconds):
                read[key] = seconds
    own = own or {}
    known = read | own
    # A first layer's "data" is not computed: its convolution is known without.
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
    """What a report says of the order of tables: `own`, and the seconds of a step with each table first for this batch,
    from the cache or measured. network: what tells it from others. Where measuring gives none, but a reason, that; the
    cache has it, and it is tried again with twice the budget."""
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
    """A measurement that the cache says to have failed, and with which budget?"""
    return isinstance(value, dict) and isinstance(value.get("reason"), str) and isinstance(value.get("budget"), float)


def compared(
    steps: Callable[..., tuple[dict[str, float], str]], choices: Callable[[str, float], list[Choice]], budget: Budget
) -> tuple[dict[str, float], str]:
    """Seconds of a step with each table first, or why there are none. steps: measures them within so many seconds, and
    with the algorithms of each table, in the order in which it names them, where these are given; choices: measures
    those of a table, begun within so many seconds. All within the budget."""
    modelled, reason = steps(budget.left())
    if not modelled or max(modelled.values()) > CLEAR * min(modelled.values()):
        return modelled, reason
    share = budget.left() / 4
    chosen = [choices(name, share) for name in modelled]
    found, _ = steps(budget.left(), *chosen) if any(chosen) else ({}, "")
    return found or modelled, ""


def ordered(described: Iterable[Record]) -> list[Record]:
    """What a report says of the order of tables."""
    return [one for one in described if "table" in one]


def first_tables(described: Iterable[Record]) -> list[tuple[int, str]]:
    """What the core is told of it: batch sizes, and the table that is asked first; not what the cost model decides."""
    return [(int(one["batch"]), str(one["table"])) for one in ordered(described) if one["table"] is not None]


def fastest(seconds: Seconds) -> tuple[str, str, str]:
    """Of each pass the algorithm with the shortest time, or a more accurate one that takes hardly more; where nothing
    was measured direct, or widened if that was a candidate of another pass and this CPU multiplies bfloat16 slower than
    float32."""
    widened = any("widened" in times for times in seconds.values())
    rule = "widened" if widened and not environment.core_info()["bfloat16_is_fast"] else "direct"

    def of(one: str) -> str:
        times = seconds.get(one, {rule: 0.0})
        close = [algorithm for algorithm, time in times.items() if time <= HARDLY_MORE * min(times.values())]
        return min(close, key=lambda algorithm: (ACCURACY.get(algorithm, len(ACCURACY)), times[algorithm]))

    forward, weights, data = map(of, PASSES)
    return forward, weights, data


def report(found: Measured) -> list[dict[str, Any]]:
    """What was chosen, and what each candidate took, in terms of JSON."""
    return [
        {
            **dict(zip(_FIELDS, key, strict=True)),
            "algorithms": dict(zip(PASSES, fastest(seconds), strict=True)),
            "seconds": seconds,
        }
        for key, seconds in sorted(found.items())
    ]


def _key(one: dict[str, Any]) -> Key:
    """Of an entry of a report. Older ones do not name all of a window: 3 x 3, or square, and else all 1."""
    size = one.get("window", 3)
    window = dict.fromkeys(_WINDOW, 1) | {"window": size, "window_width": size}
    return tuple(int((window | one)[field]) for field in _FIELDS)


def known(described: Iterable[dict[str, Any]]) -> Measured:
    """The times in a report."""
    return {_key(one): one["seconds"] for one in described if "table" not in one}


def choices(described: Iterable[dict[str, Any]]) -> list[Choice]:
    """What the core is told, from a report. KeyError, TypeError, ValueError: it is none."""
    made = []
    for one in described:
        if "table" in one:
            continue
        forward, weights, data = (str(one["algorithms"][each]) for each in PASSES)
        made.append((_key(one), (forward, weights, data)))
    return made
