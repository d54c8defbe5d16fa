"""Which functions of the compiled core are called: a plugin of pytest, and a check of the files that it wrote.

GOSSIPGRAD_BINDINGS=FOLDER python -m pytest -p bindings ...    a process writes a file
python tests/bindings.py FOLDER                                fails where no process called a function
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

# These end the process, or want a launcher: tests/c/test_net.c and test_view_pages.c run the code behind them under the
# sanitizers.
LEFT_OUT = {"abort", "net_arrived", "net_start", "net_stop"}
LEFT_OUT |= {"Team.goal"}  # of processes that die alone
LEFT_OUT |= {"Team.await_member", "ViewKeeper.rests", "Exchange.hear", "Exchange.join"}  # newcomers'
LEFT_OUT |= {"Trainer.hear", "Trainer.join", "Trainer.set_text"}

called: set[str] = set()


def bindings(core: Any) -> list[str]:
    """All functions of the core, and methods and properties of its types."""
    names = []
    for name, one in vars(core).items():
        if isinstance(one, type) and one.__module__.startswith("gossipgrad") and not issubclass(one, BaseException):
            names += [f"{name}.{inner}" for inner, value in vars(one).items() if _is_one(inner, value)]
        elif type(one).__name__ == "builtin_function_or_method":
            names.append(name)
    return sorted(set(names) - LEFT_OUT)


def _is_one(name: str, value: Any) -> bool:
    return type(value).__name__ in ("method_descriptor", "getset_descriptor") and not name.startswith("__")


def watch(core: Any) -> None:
    """Note each call from here on."""
    for name in bindings(core):
        holder, _, inner = name.rpartition(".")
        owner = getattr(core, holder) if holder else core
        setattr(owner, inner, _noted(name, vars(owner)[inner]))


def _noted(name: str, one: Any) -> Any:
    if not callable(one):

        def get(self: Any) -> Any:
            called.add(name)
            return one.__get__(self)

        def put(self: Any, value: Any) -> None:
            called.add(name)
            one.__set__(self, value)

        return property(get, put)

    @functools.wraps(one)
    def noted(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return one(*args, **kwargs)

    return noted


def write() -> None:
    Path(os.environ["GOSSIPGRAD_BINDINGS"], f"{os.getpid()}.json").write_text(json.dumps(sorted(called)))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what starts MPI."""
    starting = [item for item in items if "mpirun" in item.fixturenames]
    config.hook.pytest_deselected(items=starting)
    items[:] = [item for item in items if item not in starting]


def no_other_python(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to start a Python: it would find the core of the source tree, which no sanitizer watches."""
    if event == "subprocess.Popen" and any(Path(str(one)).name.startswith("python") for one in arguments[1][:8]):
        raise RuntimeError(f"a test of the sample starts another Python: {arguments[1]}")


def main(folder: str) -> int:
    """1 where a function was called by no process."""
    from gossipgrad import _core

    found: set[str] = set()
    for path in Path(folder).glob("*.json"):
        found.update(json.loads(path.read_text()))
    missing = [name for name in bindings(_core) if name not in found]
    if missing:
        print(f"called by no test under the sanitizers: {', '.join(missing)}; allowed: none but {', '.join(LEFT_OUT)}")
    return 1 if missing or not found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
if "GOSSIPGRAD_BINDINGS" in os.environ:
    from gossipgrad import _core

    watch(_core)
    sys.addaudithook(no_other_python)
    atexit.register(write)
