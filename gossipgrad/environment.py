"""What a run stands on: versions, compiler, CPU, MPI, libraries loaded. For `info` and for reports."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import numpy as np

from gossipgrad import _core, _preload

VERSION = "0.1.0"
_OF_A_RANK = ("initialised", "ours", "rank", "size")
_OPENMP = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")


def core_info() -> dict[str, Any]:
    """What the core says of itself."""
    return dict(_core.info())


def openmp_runtimes() -> list[str]:
    """The OpenMP runtimes loaded into this process; more than one is a reason for slow threads."""
    names = set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                name = os.path.basename(line.rstrip("\n").partition("/")[2])
                if _OPENMP.fullmatch(name):
                    names.add(name)
    except OSError:
        return []
    return sorted(names)


def default_threads() -> int:
    """OMP_NUM_THREADS, else 1."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else 1


def environment(threads: int | None = None) -> dict[str, Any]:
    """Versions and machine, in terms of JSON; no paths."""
    core = core_info()
    core["mpi"] = {key: value for key, value in core["mpi"].items() if key not in _OF_A_RANK}
    facts = _preload.build_facts()
    return {
        "gossipgrad": VERSION,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "threads": default_threads() if threads is None else threads,
        **{key: core[key] for key in core if key != "built"},
        "build": {
            "variant": facts.VARIANT,
            "mpi": facts.MPI_MODE,
            "onednn": facts.ONEDNN_MODE,
            "isas": list(facts.ISAS),
        },
        "cuda": "not built",
        "openmp_runtimes": openmp_runtimes(),
    }


def table(facts: dict[str, Any]) -> str:
    """Two columns for people."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            rows += [(f"{key} {inner}".replace("_", " "), _shown(v)) for inner, v in value.items()]
        else:
            rows.append((key.replace("_", " "), _shown(value)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in rows)


def _shown(value: Any) -> str:
    if value is None or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
