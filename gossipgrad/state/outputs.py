"""Output paths of a run, checked before it starts, because an unwritable one would be found only at its end."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Output:
    """A file that will be written.

    argument    the caller's name for it: "report" in Python, "--report" on the command line.
    checkpoint  True for a checkpoint: beside it come the best one's file, and a folder of the ranks' state for each.
    """

    argument: str
    path: Path
    checkpoint: bool = False

    def __str__(self) -> str:
        path = os.fspath(self.path)
        return f"{self.argument} {path}" if self.argument.startswith("-") else f"{self.argument}={path!r}"

    def files(self) -> Iterator[tuple[str, str]]:
        """(path, its meaning) of all written files; "": the requested file."""
        path = os.fspath(self.path)
        yield path, ""
        if self.checkpoint:
            best = best_path(path)
            yield best, "its best epoch's file"
            for one in (path, best):
                yield f"{one}.state", "its folder of the ranks' state"


def best_path(path: Path) -> str:
    """Path of the best epoch's checkpoint: "run.best.safetensors" for "run.safetensors"."""
    stem, extension = os.path.splitext(os.fspath(path))
    return f"{stem}.best{extension}"


def check(outputs: Sequence[Output], inputs: Mapping[str, Path] | None = None) -> None:
    """ValueError unless every output can be written, and none overwrites another one or an input.

    inputs: files that are read, by argument; a checkpoint may replace the resumed one. Links are followed. An existing
    path that is no regular file (a device, a pipe) is written to as it is, also by several outputs.
    """
    for one in outputs:
        _check_path(one)
    seen: list[tuple[str, str, Output]] = []
    for output in outputs:
        for path, what in output.files():
            if _is_special(path):
                continue
            for other_path, other_what, other in seen:
                if other is not output and _same(path, other_path):
                    mine, theirs = f" ({what})" if what else "", f", {other_what}" if other_what else ""
                    raise ValueError(
                        f"{output}: the same file{mine} as {other}{theirs}; allowed: a file of its own for each"
                    )
            for argument, source in (inputs or {}).items():
                if _same(path, os.fspath(source)) and not output.checkpoint:
                    raise ValueError(f"{output}: would overwrite {Output(argument, source)}, which is read")
            seen.append((path, what, output))


def check_path(argument: str, path: Path) -> str:
    """The path as a text. TypeError for other types, also bytes; ValueError for an empty one, as an unset variable of a
    shell gives.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(f"{argument}={path!r}: allowed: a path, a string or a pathlib.Path")
    if not text:
        raise ValueError(f"{Output(argument, text)}: empty; allowed: a path")
    return text


def fixed_path(argument: str, path: Path) -> str:
    """check_path, as an absolute one: outputs of a run go to one place, even if a callback changes the current
    folder."""
    text = check_path(argument, path)
    return text if os.path.isabs(text) else os.path.join(_current_folder(), text)


def _current_folder() -> str:
    """The current folder by its name in PWD, which is valid on all nodes; links may lead to other folders on each."""
    name = os.environ.get("PWD", "")
    return name if os.path.isabs(name) and _same(name, os.curdir) else os.getcwd()


def _check_path(output: Output) -> None:
    path = check_path(output.argument, output.path)
    for one, what in output.files():
        try:
            os.lstat(one)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                words = f" for {what}" if what else ""
                raise ValueError(f"{output}: the name is too long{words}: {error.strerror}") from None
    if path.endswith(os.sep) or os.path.isdir(path):
        raise ValueError(f"{output}: is a folder; allowed: a file")
    if os.path.exists(path):
        if not os.access(path, os.W_OK):
            raise ValueError(f"{output}: cannot be written to: permission denied")
        if _is_special(path):
            return
    folder = os.path.dirname(os.path.realpath(path)) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"{output}: no such folder: {folder}")
    try:  # permissions are not enough: a file system may be read-only, or another machine's
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{output}: {folder} cannot be written to: {error.strerror or error}") from None


def _is_special(path: str) -> bool:
    """True if it exists, and is neither a regular file nor a folder."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _same(one: str, other: str) -> bool:
    """True if both name the same file, existing or not, also through links."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
