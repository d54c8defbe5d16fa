"""Measures beside the loss on a validation set: the consensus model's outputs against the targets.

A metric is a function of (outputs, targets) that gives one number a sample, (n,), and its value is their mean over all
samples of all ranks; or it has a name:

top_5_accuracy       the right class is among the 5 highest scores (any number for 5); loss "cross_entropy".
perplexity           exp of the mean cross entropy of the targets, without label smoothing; loss "cross_entropy".
mean_absolute_error  of each output; loss "mean_squared_error".
auc                  the area under the ROC curve, ties counted half; loss "binary_cross_entropy", one output, targets
                     0 and 1. NaN if only one of both occurs.

outputs are float32, (m, ...) for the samples at hand, scores without softmax or sigmoid. targets have the form of the
network's loss: classes (m,) as int32, for networks with a class for each position (m, positions), or float32 in the
outputs' shape. All samples and positions count alike, without sample weights. Metrics with names leave out positions
whose target the loss ignores. Accuracy is measured without being named.

Every rank computes its part of the set. Then all ranks know all samples' numbers and add them exactly (math.fsum), so
the value does not depend on the split of the set over ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.errors import did_you_mean, plain_array
from gossipgrad.losses import CrossEntropy

Function = Callable[[NDArray[np.float32], NDArray[Any]], Any]
Metrics = str | Function | Iterable[str | Function] | Mapping[str, Function]

NAMES = ("top_5_accuracy", "perplexity", "mean_absolute_error", "auc")


@dataclass(frozen=True)
class Metric:
    """values(outputs, targets): `columns` numbers a sample; total: the metric from all samples' numbers."""

    name: str
    values: Function
    total: Callable[[NDArray[np.float64]], float]
    columns: int = 1


def _mean(values: NDArray[np.float64]) -> float:
    return math.fsum(values[:, 0]) / len(values)


def _ratio(values: NDArray[np.float64]) -> float:
    """Ratio of the sums of two columns; NaN if nothing was counted."""
    count = math.fsum(values[:, 1])
    return math.fsum(values[:, 0]) / count if count else math.nan


def _perplexity(values: NDArray[np.float64]) -> float:
    mean = _ratio(values)
    return math.exp(mean) if mean < 700 else math.inf if mean == mean else math.nan


def _summed(each: NDArray[Any], counted: NDArray[Any]) -> Any:
    """(sum over a sample's counted positions, their number)"""
    rows = len(each)
    kept = np.where(counted, each, 0).reshape(rows, -1).sum(axis=1, dtype=np.float64)
    return np.stack([kept, counted.reshape(rows, -1).sum(axis=1)], axis=1)


def _counted(targets: NDArray[Any], ignored: int | None) -> NDArray[Any]:
    return np.ones(targets.shape, bool) if ignored is None else targets != ignored


def _is_top(k: int, outputs: NDArray[np.float32], targets: NDArray[Any]) -> NDArray[Any]:
    """True for targets whose class is among the k highest scores of the last axis."""
    classes = np.arange(outputs.shape[-1])
    right = np.take_along_axis(outputs, targets[..., None], -1)
    before = (outputs > right) | ((outputs == right) & (classes < targets[..., None]))
    return np.asarray((before.sum(axis=-1) < k) & np.isfinite(right[..., 0]))


def _top(k: int) -> Function:
    return lambda outputs, targets: _is_top(k, outputs, targets)


def _top_of_positions(k: int, ignored: int | None) -> Function:
    def values(outputs: NDArray[np.float32], targets: NDArray[Any]) -> Any:
        counted = _counted(targets, ignored)
        return _summed(_is_top(k, outputs, np.where(counted, targets, 0)), counted)

    return values


def _cross_entropy(ignored: int | None) -> Function:
    def values(outputs: NDArray[np.float32], targets: NDArray[Any]) -> Any:
        counted = _counted(targets, ignored)
        wide = outputs.astype(np.float64)
        wide -= wide.max(axis=-1, keepdims=True)
        right = np.take_along_axis(wide, np.where(counted, targets, 0)[..., None], -1)[..., 0]
        return _summed(np.log(np.exp(wide).sum(axis=-1)) - right, counted)

    return values


def _absolute_error(outputs: NDArray[np.float32], targets: NDArray[Any]) -> Any:
    wide = np.abs(outputs.astype(np.float64) - targets)
    return wide.reshape(len(wide), -1).mean(axis=1)


def _score_and_target(outputs: NDArray[np.float32], targets: NDArray[Any]) -> Any:
    if not np.isin(targets, (0, 1)).all():
        raise ValueError("targets other than 0 and 1; allowed: 0 and 1")
    return np.stack([outputs.reshape(-1), targets.reshape(-1)], axis=1)


def _auc(values: NDArray[np.float64]) -> float:
    """The share of pairs of a 1 and a 0 in which the 1 has the higher score; in float64 exact up to 2^26 samples."""
    scores, positive = values[:, 0], values[:, 1] == 1
    if not np.isfinite(scores).all() or positive.all() or not positive.any():
        return math.nan
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - counts + 1 + last) / 2  # from 1, of each distinct score; ties share the middle one
    ones = int(positive.sum())
    above = float(ranks[which.reshape(-1)][positive].sum()) - ones * (ones + 1) / 2
    return above / (ones * (len(values) - ones))


_TOP = re.compile(r"top_([1-9][0-9]{0,8})_accuracy")


def named(names: Iterable[str]) -> list[str]:
    """The metrics that parse knows by their names alone."""
    return [name for name in names if name in NAMES or _TOP.fullmatch(name)]


def _by_name(name: str, loss: str, output: Sequence[int], ignored: int | None) -> Metric:
    top = _TOP.fullmatch(name)
    if name in ("loss", "accuracy", "acc"):
        raise ValueError(f"metrics: {name!r}: the loss, and the accuracy of classes, are measured without being named")
    if top is None and name not in NAMES:
        listed = ", ".join(map(repr, NAMES))
        raise ValueError(f"metrics: {name!r}: allowed: {listed}, or a function{did_you_mean(name, NAMES)}")
    of = {"auc": "binary_cross_entropy", "perplexity": "cross_entropy"}
    wanted = "cross_entropy" if top else of.get(name, "mean_squared_error")
    if loss != wanted:
        raise ValueError(f"metrics: {name!r} with loss={loss!r}; allowed: with loss={wanted!r}")
    if top is not None:
        k = int(top.group(1))
        if k > output[-1]:
            raise ValueError(f"metrics: {name!r} of {output[-1]} classes; allowed: 1..{output[-1]}")
        if len(output) > 1 or ignored is not None:
            return Metric(name, _top_of_positions(k, ignored), _ratio, 2)
        return Metric(name, _top(k), _mean)
    if name == "perplexity":
        return Metric(name, _cross_entropy(ignored), _perplexity, 2)
    if name == "auc":
        if math.prod(output) != 1:
            raise ValueError(f"metrics: 'auc' of outputs of shape {tuple(output)}; allowed: one output, (1,)")
        return Metric(name, _score_and_target, _auc, 2)
    return Metric(name, _absolute_error, _mean)


def parse(
    given: Metrics | None,
    loss: str | CrossEntropy,
    output: Sequence[int],
    measured: Sequence[str] = ("loss", "accuracy"),
) -> list[Metric]:
    """The metrics that a user gave: names, functions, or functions by names.

    measured: names that are always measured, the losses and accuracies of each output.
    """
    ignored = None if isinstance(loss, str) else loss.ignore_index
    called = loss if isinstance(loss, str) else loss.name
    if given is None:
        return []
    items: list[tuple[Any, Any]]
    if isinstance(given, Mapping):
        items = list(given.items())
    else:
        several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        items = [(one if isinstance(one, str) else getattr(one, "__name__", ""), one) for one in several]
    found: list[Metric] = []
    for name, one in items:
        if isinstance(one, str):
            found.append(_by_name(one, called, output, ignored))
            continue
        if not callable(one):
            raise TypeError(f"metrics: {one!r}: allowed: names, functions (outputs, targets), or {{name: function}}")
        if not isinstance(name, str) or not name.isidentifier() or name in ("loss", "accuracy"):
            raise ValueError(f"metrics: a function called {name!r}; allowed: {{name: function}} with another name")
        found.append(Metric(name, one, _mean))
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise ValueError(f"metrics: {', '.join(names)}: allowed: each name once")
    for name in names:
        if name in measured:
            raise ValueError(
                f"metrics: {name!r}: what is measured of an output has this name; allowed: another one than "
                f"{', '.join(map(repr, measured))}, or an output of another name"
            )
    return found


def numbers(metric: Metric, outputs: NDArray[np.float32], targets: NDArray[Any]) -> NDArray[np.float64]:
    """A metric's numbers of these samples, (n, columns). ValueError if its function gave anything else."""
    try:
        # A copy: a function may write into its arguments, and targets may be the caller's memory.
        values = plain_array("its numbers", metric.values(outputs.copy(), targets.copy()))
        wanted = (len(outputs),) if metric.columns == 1 else (len(outputs), metric.columns)
        if values.shape != wanted or values.dtype.kind not in "biuf":
            raise ValueError(f"shape {values.shape} of {values.dtype}; allowed: numbers, of shape {wanted}")
    except ValueError as error:
        raise ValueError(f"metrics: {metric.name} of {len(outputs)} samples: {error}") from error
    return values.reshape(len(outputs), metric.columns).astype(np.float64)
