"""Pickles that are read without running them.

Python's own reader imports and calls any name in a file. This one knows containers, numbers and text, and only the
given classes and functions. Any other name is an error that shows it, and nothing is imported.
"""

from __future__ import annotations

import io
import pickletools
import reprlib
from collections.abc import Callable, Mapping
from typing import IO, Any

_LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Unreadable(ValueError):
    """Not a pickle, damaged, or with an unknown class or function in it."""


def shown(value: Any) -> str:
    """A value's text for messages. A repr follows every reference, and a small file can make it endless."""
    return reprlib.repr(value)


class Made:
    """The result of a known name: an object whose state the file sets afterwards."""

    def set_state(self, state: Any) -> None:
        raise NotImplementedError


class Name:
    """A class or function of the file, by its full name, with its substitute here."""

    def __init__(self, full: str, value: Any) -> None:
        self.full, self.value = full, value


_MARK = object()
DEPTH = 16


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, known: Mapping[str, Any], persistent: Callable[[Any], Any] | None) -> None:
        self.known, self.persistent = known, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Unreadable("damaged: the stack is empty")
        return self.stack.pop()

    def top(self, kind: type | tuple[type, ...]) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise Unreadable("damaged: elements without a container")
        return self.stack[-1]

    def to_mark(self) -> list[Any]:
        """Remove and return the stack above the last mark, and the mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise Unreadable("damaged: no mark")

    def name(self, full: str) -> None:
        if full not in self.known:
            raise Unreadable(f"it holds {full!r}, which is not read; allowed: {_shown(self.known)}")
        value = self.known[full]
        self.stack.append(Name(full, value) if callable(value) else value)

    def call(self) -> None:
        arguments, what = self.pop(), self.pop()
        if not isinstance(what, Name) or not isinstance(arguments, tuple):
            raise Unreadable("damaged: a call of what is no function")
        self.stack.append(what.value(*arguments))

    def set_state(self) -> None:
        state = self.pop()
        target = self.top(object)
        if isinstance(target, Made):
            target.set_state(state)
        elif not isinstance(target, dict):  # attributes of a dict, as the version of a state_dict, do not matter
            raise Unreadable("damaged: a state for what has none")

    def pairs(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise Unreadable("damaged: a key without a value")
        check_keys(values[::2])
        self.top(dict).update(zip(values[::2], values[1::2], strict=True))

    def step(self, code: str, argument: Any) -> None:
        stack = self.stack
        if code in _LITERALS:
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _EMPTY:
            stack.append(_EMPTY[code]())
        elif code == "MARK":
            stack.append(_MARK)
        elif code in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.top(object)
        elif code == "MEMOIZE":
            self.memo[len(self.memo)] = self.top(object)
        elif code in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif code in _SIZES:
            stack.append(tuple(reversed([self.pop() for _ in range(_SIZES[code])])))
        elif code == "TUPLE":
            stack.append(tuple(self.to_mark()))
        elif code == "APPEND":
            one = self.pop()
            self.top(list).append(one)
        elif code == "APPENDS":
            several = self.to_mark()
            self.top(list).extend(several)
        elif code == "ADDITEMS":
            several = self.to_mark()
            check_keys(several)
            self.top(set).update(several)
        elif code == "LIST":
            stack.append(self.to_mark())
        elif code == "DICT":
            values = self.to_mark()
            stack.append({})
            self.pairs(values)
        elif code == "SETITEM":
            value, key = self.pop(), self.pop()
            self.pairs([key, value])
        elif code == "SETITEMS":
            self.pairs(self.to_mark())
        elif code == "GLOBAL":
            self.name(".".join(argument.split(" ")))
        elif code == "STACK_GLOBAL":
            name, module = self.pop(), self.pop()
            if not isinstance(name, str) or not isinstance(module, str):
                raise Unreadable("damaged: a name that is no text")
            self.name(f"{module}.{name}")
        elif code in ("REDUCE", "NEWOBJ"):
            self.call()
        elif code == "BUILD":
            self.set_state()
        elif code == "BINPERSID" and self.persistent is not None:
            stack.append(self.persistent(self.pop()))
        elif code not in ("PROTO", "FRAME"):
            raise Unreadable(f"it has the instruction {code}, which is not read")


def check_keys(keys: list[Any]) -> None:
    """Refuse nested tuples as keys: Python hashes them by unbounded recursion, so a small file could end the
    process."""
    for key in keys:
        if isinstance(key, tuple) and any(isinstance(one, tuple) for one in key):
            raise Unreadable("it has a key of tuples in a tuple, which is not read")


def converted(value: Any, leaf: Callable[[Any], Any], key: Callable[[Any], Any] = lambda key: key) -> Any:
    """A copy of nested dicts, lists and tuples, with leaf(x) for each x in them and key(k) for each key.

    A container with several references is copied once. Unreadable: nested deeper than DEPTH, also if one contains
    itself.
    """
    copies: dict[int, Any] = {}

    def of(one: Any, depth: int) -> Any:
        if not isinstance(one, (dict, list, tuple)):
            return leaf(one)
        if depth > DEPTH:
            raise Unreadable(f"more than {DEPTH} containers in each other")
        if id(one) not in copies:
            if isinstance(one, dict):
                copies[id(one)] = {key(name): of(inside, depth + 1) for name, inside in one.items()}
            else:
                copies[id(one)] = type(one)(of(inside, depth + 1) for inside in one)
        return copies[id(one)]

    return of(value, 0)


def _shown(known: Mapping[str, Any]) -> str:
    names = sorted(known)
    return ", ".join(names) if len(names) < 9 else f"{', '.join(names[:8])}, ..."


def read(content: bytes | IO[bytes], known: Mapping[str, Any], persistent: Callable[[Any], Any] | None = None) -> Any:
    """The object of one pickle; of a file, from its position on, which afterwards is after the pickle.

    known       the substitute of a class, function or constant, by its full name ("collections.OrderedDict"). Callables
                are called with the file's arguments, so they must check them.
    persistent  returns the object of a persistent id; None: there are none.

    Unreadable: damaged, or with another name in it.
    """
    machine = _Machine(known, persistent)
    try:
        for code, argument, _ in pickletools.genops(io.BytesIO(content) if isinstance(content, bytes) else content):
            if code.name == "STOP":
                return machine.pop()
            machine.step(code.name, argument)
    except Unreadable:
        raise
    except Exception as error:  # also errors of a known function with unexpected arguments
        raise Unreadable(f"damaged: {error}") from error
    raise Unreadable("damaged: it has no end")
