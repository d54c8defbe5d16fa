"""The environment of a run: versions, compiler, CPU, MPI, loaded libraries. For `info` and for reports."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from typing import Any

import numpy as np

from gossipgrad import _core
from gossipgrad.errors import counted, warn
from gossipgrad.launch import failure, preload, start

VERSION = "0.1.0"
_OF_A_RANK = ("initialised", "ours", "rank", "size")
_OPENMP = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")


def core_info() -> dict[str, Any]:
    """The core's facts about itself."""
    return dict(_core.info())


def openmp_runtimes() -> list[str]:
    """The OpenMP runtimes loaded into this process; several are a cause of slow threads."""
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


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def check_threads(threads: int) -> None:
    """Warn, on rank 0, of more threads than this process's CPUs, and of more threads of all ranks here than cores."""
    usable = usable_cpus()
    if failure.launched_rank() != 0:
        return
    if threads > usable:
        warn(
            f"threads={threads}: this process may use {counted(usable, 'CPU')}, and threads that share one wait for "
            f"each other; at most {usable} is faster"
        )
    elif start.crowded(threads) and "OMP_WAIT_POLICY" not in os.environ:
        warn(
            f"threads={threads}: the {start.local_ranks()} ranks of this machine have more threads than cores, and "
            "those that wait keep others from working; allowed: fewer threads, OMP_NUM_THREADS with this number, or "
            "OMP_WAIT_POLICY=passive in the environment of mpiexec"
        )


def environment(threads: int | None = None) -> dict[str, Any]:
    """Versions and machine, in terms of JSON; no paths."""
    core = core_info()
    core["mpi"] = {key: value for key, value in core["mpi"].items() if key not in _OF_A_RANK}
    facts = preload.build_facts()
    return {
        "gossipgrad": VERSION,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpus_usable": usable_cpus(),
        "threads": default_threads() if threads is None else threads,
        **{key: core[key] for key in core if key != "built"},
        "build": {
            "variant": facts.VARIANT,
            "mpi": facts.MPI_MODE,
            "onednn": facts.ONEDNN_MODE,
            "isas": list(facts.ISAS),
        },
        "cuda": f"{facts.CUDA_VERSION} ({', '.join(facts.CUDA_ARCHITECTURES)})" if facts.CUDA_VERSION else "not built",
        "openmp_runtimes": openmp_runtimes(),
    }


def find_cuda_wheels() -> None:
    """Names the folders of NVIDIA's wheels, if these are installed, in GOSSIPGRAD_CUDA_PATH. An installed library of
    CUDA finds them by itself, one in a source tree does not.
    """
    if os.environ.get("GOSSIPGRAD_CUDA_PATH"):
        return
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = [os.path.join(place, name, "lib") for place in places for name in ("cu13", "cudnn")]
    found = [folder for folder in folders if os.path.isdir(folder)]
    if found:
        os.environ["GOSSIPGRAD_CUDA_PATH"] = os.pathsep.join(found)


def default_device(backend: str | None = None) -> str:
    """$GOSSIPGRAD_DEVICE, else "cpu"; also "cpu" if a backend is given, because all are the CPU's."""
    backend = backend or os.environ.get("GOSSIPGRAD_BACKEND") or "auto"
    return (os.environ.get("GOSSIPGRAD_DEVICE") or "cpu") if backend == "auto" else "cpu"


def wants_graphs() -> bool:
    """True unless $GOSSIPGRAD_CUDA_GRAPHS is 0."""
    return os.environ.get("GOSSIPGRAD_CUDA_GRAPHS", "1") != "0"


def local_rank() -> int:
    """This process's number among the ranks of its node, from the launcher; 0 without."""
    names = (
        *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
        *("GOSSIPGRAD_NET_LOCAL_RANK", "SLURM_LOCALID"),
    )
    found = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdigit()), 0)


def devices() -> dict[str, Any]:
    """The devices of trainers, and facts about the GPUs and their libraries."""
    facts: dict[str, Any] = {"devices": ["cpu"]}
    if not preload.build_facts().CUDA_VERSION and not os.environ.get("GOSSIPGRAD_CUDA_LIBRARY"):
        return facts
    find_cuda_wheels()
    count, why, lines = _core.cuda()
    facts["gpu"] = dict(line.split(": ", 1) for line in lines.splitlines()) or f"none: {why}"
    if count:
        facts["devices"] += ["cuda", *(f"cuda:{i}" for i in range(1, count))]
    return facts


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
