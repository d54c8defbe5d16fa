"""The package's errors, and checks whose errors name the argument, its value and the allowed ones."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gossipgrad._core import Cancelled, CommunicationError, PeerError

__all__ = ["Cancelled", "CheckpointError", "CommunicationError", "DataError", "PeerError", "SavedOnSignal"]


MAX_SHOWN = 2000  # characters of a message that quotes a file


def printable(text: str) -> str:
    """`text` for a terminal: characters that move its cursor or hide others become escapes, and the middle of a long
    text is left out.
    """
    if len(text) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        text = f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def listed(names: Iterable[Any], most: int = 20) -> str:
    """Names with commas, the first `most` of them, and the number of others."""
    every = [str(name) for name in names]
    return ", ".join(every[:most]) + (f", and {len(every) - most:,} more" if len(every) > most else "")


class _OfFile(ValueError):
    """An error whose message quotes a file's content, so it goes through `printable`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in args))


class DataError(_OfFile):
    """A data file is missing, damaged or of another kind."""


# The exit code after a save on a signal, as sysexits' EX_TEMPFAIL: "try again".
SAVED = 75


class SavedOnSignal(SystemExit):
    """A signal has ended fit, and the state at that step is saved, as Checkpoint(save_on_signal=True) asks.

    If nobody catches it, it ends the process with exit code 75: "try again", by fit(resume=).
    paths  the checkpoints.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(SAVED)
        self.paths = list(paths)


class CheckpointError(_OfFile):
    """A checkpoint is damaged, incomplete, or of another model or group of ranks."""


# Names of other libraries.
_ELSEWHERE = {
    "mse": "mean_squared_error",
    "l2": "mean_squared_error",
    "mseloss": "mean_squared_error",
    "bce": "binary_cross_entropy",
    "binarycrossentropy": "binary_cross_entropy",
    "bcewithlogitsloss": "binary_cross_entropy",
    "ce": "cross_entropy",
    "categoricalcrossentropy": "cross_entropy",
    "sparsecategoricalcrossentropy": "cross_entropy",
    "crossentropyloss": "cross_entropy",
    "softmax": "cross_entropy",
    "valloss": "validation.loss",
    "valaccuracy": "validation.accuracy",
    "valacc": "validation.accuracy",
    "loss": "train_loss",
    "acc": "train_accuracy",
    "accuracy": "train_accuracy",
    "lr": "learning_rate",
    "bf16": "bfloat16",
    "fp32": "float32",
    "ddp": "layerwise-allreduce",
    "horovod": "layerwise-allreduce",
    "localsgd": "periodic-allreduce",
    "easgd": "elastic-averaging",
    "streamingdiloco": "diloco",
    "downpour": "parameter-server",
    "none": "no-exchange",
    "mkldnn": "onednn",
    "cifar": "cifar10",
    "learningrate": "--lr",
    "validationdata": "validation",
    "valdata": "validation",
    "verbose": "progress",
    "nbepochs": "epochs",
    "batch": "batch_size",
    "dense": "Linear",
    "maxpooling2d": "MaxPool2d",
    "averagepooling2d": "AvgPool2d",
    "concatenate": "Concat",
    "batchnormalization": "BatchNorm2d",
    "batchnorm": "BatchNorm2d",
    "globalaveragepooling2d": "GlobalAvgPool2d",
    "adamw": "Adam",
    "distributeddataparallel": "LayerwiseAllReduce",
    "modelcheckpoint": "Checkpoint",
    "reducelronplateau": "ReduceOnPlateau",
    "bs": "--batch-size",
    "wd": "--weight-decay",
    "workers": "--virtual-ranks",
    "ranks": "--virtual-ranks",
    "output": "--report",
}
# Other libraries' names of keywords in Python that differ from options of the command line.
_KEYWORDS_ELSEWHERE = {
    "learningrate": "lr",
    "numclasses": "classes",
    "inputshape": "input",
    "vocabsize": "vocabulary",
    "vocab": "vocabulary",
    "blocksize": "sequence",
    "nlayer": "layers",
    "numlayers": "layers",
    "nhead": "heads",
    "numheads": "heads",
    "nembd": "width",
    "hiddensize": "hidden",
    "kernelsize": "kernel",
    "outchannels": "out",
    "outfeatures": "out",
    "filters": "out",
    "units": "out",
    "numembeddings": "num",
    "p": "probability",
    "rate": "probability",
    "weight": "class_weights",
    "optim": "optimizer",
    "betas": "beta1",
}


def did_you_mean(value: Any, allowed: Iterable[Any]) -> str:
    """The hint "; did you mean 'x'?" for a name similar to an allowed one, or another library's; else ""."""
    if not isinstance(value, str):
        return ""

    def plain(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalnum())

    names = {plain(one): one for one in allowed if isinstance(one, str)}
    word = plain(value)
    known = [table.get(word) for table in (_ELSEWHERE, _KEYWORDS_ELSEWHERE)]
    begun = [one for one in names if len(word) > 2 and one.startswith(word)]
    near = [one for one in known if one in names.values()]
    near = near or [names[one] for one in sorted(begun, key=len) or _near(word, names)]
    return f"; did you mean {near[0]!r}?" if near else ""


def _near(name: str, names: Iterable[str]) -> list[str]:
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return sorted(near, key=lambda one: sorted(one) != sorted(name))[:1]  # swapped letters come first


def is_of(value: Any, package: str) -> bool:
    """True if a class of the value is from this package, which need not be installed."""
    return any(f"{one.__module__}.".startswith(f"{package}.") for one in type(value).__mro__)


# Keywords that are gone, and the remedy.
GONE = {"mix": "weights are always mixed by their displacement; leave mix out"}


def check_keywords(call: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """TypeError for a keyword that `call` does not have."""
    allowed = list(allowed)
    for one in given:
        if one not in allowed:
            hint = f": {GONE[one]}" if one in GONE else did_you_mean(one, allowed)
            raise TypeError(f"{call}() has no keyword {one!r}{hint}")


_Made = TypeVar("_Made", bound=Callable[..., Any])


def named_keywords(made: _Made) -> _Made:
    """A function, or a class with its constructor, with better errors.

    For an unknown keyword they name the probable one, and for an argument too many those allowed without a keyword.
    inspect and help show it unchanged.
    """
    if isinstance(made, type):
        cast(Any, made).__init__ = _checking(cast(Any, made).__init__, True)
        return made
    return cast(_Made, _checking(made, False))


def _checking(function: Callable[..., Any], constructor: bool) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters.values())[constructor:]
    keywords = [one.name for one in parameters]
    plain = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    takes_more = any(one.kind is one.VAR_POSITIONAL for one in parameters)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if len(args) - constructor > len(plain) and not takes_more:
            call = type(args[0]).__name__ if constructor else function.__name__
            raise TypeError(
                f"{call}(): {counted(len(args) - constructor, 'positional argument')}; allowed without a keyword: "
                f"{', '.join(plain) or 'none'}"
            )
        for one in kwargs:
            if one not in keywords:
                check_keywords(type(args[0]).__name__ if constructor else function.__name__, kwargs, keywords)
        return function(*args, **kwargs)

    return checked


def choice(argument: str, value: Any, allowed: Iterable[Any]) -> Any:
    """`value` in its form among `allowed`; a scalar of NumPy counts as Python's."""
    allowed = list(allowed)
    plain = value.item() if isinstance(value, np.generic) else value
    for one in allowed:
        if type(plain) is type(one) and plain == one:
            return one
    listed = ", ".join(repr(a) for a in allowed)
    raise ValueError(f"{argument}={value!r}: allowed: {listed}{did_you_mean(value, allowed)}")


def flag(argument: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{argument}={value!r}: allowed: True or False")
    return bool(value)


HIGHEST = 2**63 - 1  # max integer of the core
LARGEST = float(np.finfo(np.float32).max)  # max number of the core


def integer(argument: str, value: Any, low: int, high: int = HIGHEST) -> int:
    """`value` as an int in low..high."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    unlimited = high >= 2**31 - 1 and not (whole and value > high)
    allowed = f"an integer of at least {low}" if unlimited else f"an integer in {low}..{high}"
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}")
    number = int(value.__index__())
    if not low <= number <= high:
        raise ValueError(f"{argument}={value!r}: allowed: {allowed}")
    return number


def number(
    argument: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """`value` as a finite float with low <= value <= high, above < value < below; None: no such limit."""
    limits = [f">= {low:g}"] if low is not None else []
    limits += [f"> {above:g}"] if above is not None else []
    limits += [f"<= {high:g}"] if high is not None else []
    limits += [f"< {below:g}"] if below is not None else []
    allowed = " ".join(["a finite number", " and ".join(limits)]).strip()
    if isinstance(value, (bool, np.bool_, str, bytes)) or value is None:
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{argument}={value!r}: allowed: {allowed}") from None
    good = math.isfinite(result)
    good = good and (low is None or result >= low) and (high is None or result <= high)
    good = good and (above is None or result > above) and (below is None or result < below)
    if not good:
        raise ValueError(f"{argument}={value!r}: allowed: {allowed}")
    return result


def store(instance: Any, **checked: Any) -> None:
    """Give fields of a frozen dataclass their checked values, as plain Python ones."""
    for key, value in checked.items():
        object.__setattr__(instance, key, value)


def counted(n: int, what: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def unreadable(what: str, value: Any, error: Exception) -> str:
    """The error text for a value that NumPy cannot make an array of, or not without a copy."""
    return (
        f"{what} is a {type(value).__name__} that NumPy cannot read ({one_line(error)}); allowed: arrays of NumPy's "
        "types in the host's memory, without gradients of their own"
    )


def plain_array(what: str, value: Any) -> NDArray[Any]:
    """`value` as an array. ValueError for a masked one that masks any element: other arrays have no masks.

    TypeError, ValueError: NumPy makes no array of it.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(
            f"{what}: a masked array, of whose {value.size} elements {count} are masked; allowed: arrays without a "
            "mask, as x.filled(0) gives one"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(unreadable(what, value, error)) from error
    except (TypeError, RuntimeError) as error:
        raise TypeError(unreadable(what, value, error)) from error


def not_finite(array: NDArray[Any]) -> str:
    """ "[0, 3] is nan" for the first element that is NaN or infinite; "": there is none."""
    finite = np.isfinite(array)
    if finite.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~finite)[0])
    return f"{list(at) or ''} is {array[at]}"


def pair(argument: str, value: Any, low: int) -> tuple[int, int]:
    """(height, width) from one integer for both or two."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"{argument}={value!r}: allowed: one integer, or two (height, width)")
        return integer(argument, value[0], low), integer(argument, value[1], low)
    return (integer(argument, value, low),) * 2


def _outside(frame: FrameType) -> FrameType | None:
    """The caller's first frame, outside of this package; None: there is none, in a thread of ours."""
    ours = ("gossipgrad", "threading", "concurrent")
    found: FrameType | None = frame
    while found is not None and found.f_globals.get("__name__", "").partition(".")[0] in ours:
        found = found.f_back
    return found


def warn(text: str) -> None:
    """A UserWarning at the caller's line that called into this package.

    In a thread of the package's own, as those that read images, it is the current line of the main thread.
    """
    text = printable(text)
    frame = _outside(sys._getframe(1))
    if frame is None:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frame = main if main is None else _outside(main) or main
    if frame is None:
        warnings.warn(text, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "sys")
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, name, registry)


def one_line(error: BaseException) -> str:
    """An error's text for a terminal: one line, never empty."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{os.fspath(error.filename)!s}: {error.strerror}"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    elif isinstance(error, KeyError):
        text = f"KeyError: {error}"
    else:
        text = str(error)
    return printable(" ".join(text.split())) or type(error).__name__
