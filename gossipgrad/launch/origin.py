"""How this process was started: as a rank, by a rank, or by a launcher that starts no MPI.

A process that a rank starts inherits the variables by which MPI finds the rank's launcher. With them it would join MPI
in the rank's place. So a rank marks its environment when the package is imported (claim), and removes the variables
when MPI runs (let_go). OMPI_COMM_WORLD_RANK, PMI_RANK and their like stay: scripts read them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

# The connection of a rank without MPI (launch/net.py).
NET = "GOSSIPGRAD_NET"

# "PROCESS RANK SIZE CHECKSUM" of the environment's rank; the checksum is of its connection.
MARK = "GOSSIPGRAD_RANK"

# Variables for the process itself alone: Open MPI's, PMIx's, PMI's, Hydra's, Slurm's and ours.
_TAKEN_OUT = re.compile(
    r"PMIX_(?!MCA_|PREFIX$)\w+|PMI2?_(?!RANK$|SIZE$|LOCAL_RANK$|LOCAL_SIZE$)\w+|HYDI_\w+|SLURM_PMI\w*|PRTE_LAUNCHED|"
    r"OMPI_FILE_LOCATION|GOSSIPGRAD_NET|OMPI_ARGV|OMPI_COMMAND|OMPI_MCA_(?:initial_wdir|num_procs|ess_base_\w+|orte_\w+)"
)
# A launcher with PMI or PMIx sets at least one of these.
_CONNECTION = ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_FD", "PMI_PORT", "PMI_ID", "HYDI_CONTROL_FD", NET)
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_SIZE", "GOSSIPGRAD_NET_SIZE")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "GOSSIPGRAD_NET_RANK")
# Launchers without MPI: (name, variable of the size, variable of the rank).
_OTHERS = (
    ("torchrun", "WORLD_SIZE", "LOCAL_RANK"),
    ("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)

# The remedy if the launcher belongs to another MPI.
OTHER_LAUNCHER = (
    "it belongs to another MPI than the library in use; allowed: gossipgrad run -n RANKS script.py, which finds the "
    "right one"
)

_taken: dict[str, str] = {}  # removed from the environment, for this process alone


def variable(name: str) -> str:
    """A variable of the launcher, also if removed from the environment; "": there is none."""
    return os.environ.get(name, "") or ("" if parent_rank() is not None else _taken.get(name, ""))


def by_net() -> bool:
    """True if this process is a rank without MPI, started by `gossipgrad run --transport net`."""
    return parent_rank() is None and bool(variable(NET))


def job_folder() -> tuple[str, str]:
    """(folder, job): where ranks of this host leave notes, and the name of the job in it; "": no such folder."""
    if by_net():
        return json.loads(variable(NET))["folder"], "net"
    return variable("PMIX_SERVER_TMPDIR"), variable("PMIX_NAMESPACE").replace("/", "-")


def all_here(size: int) -> bool:
    """True if the launcher started all of `size` ranks on this host."""
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "GOSSIPGRAD_NET_LOCAL_SIZE")
    return any(os.environ.get(name, "") == str(size) for name in names)


def _all() -> Mapping[str, str]:
    return os.environ if parent_rank() is not None else ChainMap(_taken, os.environ)


# ---- as a rank


def launcher_world_size(environ: Mapping[str, str] | None = None) -> int | None:
    """The number of ranks, from this process's launcher; None: no launcher started it, or it does not tell."""
    if environ is None and parent_rank() is not None:
        return None
    known = _all() if environ is None else environ
    for name in _SIZES:
        if known.get(name, "").isdigit():
            return int(known[name])
    if "PMIX_RANK" in known or "PMI_RANK" in known or "PMI_FD" in known:
        if known.get("SLURM_STEP_NUM_TASKS", "").isdigit():
            return int(known["SLURM_STEP_NUM_TASKS"])
    return None


def launcher_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """This process's rank, from its launcher; None: no launcher started it."""
    if environ is None and parent_rank() is not None:
        return None
    known = _all() if environ is None else environ
    for name in _RANKS:
        if known.get(name, "").isdigit():
            return int(known[name])
    return None


def is_launched() -> bool:
    """True if a launcher of MPI started this process."""
    return launcher_world_size() is not None or launcher_rank() is not None


# ---- by a rank


def _checksum(environ: Mapping[str, str]) -> str:
    parts = [f"{name}={environ.get(name, '')}" for name in (*_CONNECTION, *_RANKS)]
    return f"{zlib.crc32(chr(0).join(parts).encode()):08x}"


def parent_rank() -> tuple[int, int, int] | None:
    """(process, rank, size) of the rank that started this process, directly or not; None: no rank did.

    A rank of a separate job, which a rank has started with mpiexec, has other variables and is none of its children.
    """
    found = re.fullmatch(r"(\d+) (\d+) (\d+) (\w+)", os.environ.get(MARK, ""))
    if found is None or int(found[1]) == os.getpid():
        return None
    if any(name in os.environ for name in _CONNECTION) and _checksum(os.environ) != found[4]:
        return None
    return int(found[1]), int(found[2]), int(found[3])


def claim() -> None:
    """Mark the environment of a rank, before it starts other processes."""
    size = launcher_world_size()
    if is_launched() and size != 1:
        os.environ[MARK] = f"{os.getpid()} {launcher_rank() or 0} {size or 0} {_checksum(os.environ)}"
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is not None and mpi4py.Is_initialized():
        let_go()


def net_facts() -> dict[str, Any]:
    """What net_launcher.py tells this rank; empty if another launcher has started it."""
    facts: dict[str, Any] = json.loads(variable(NET)) if by_net() else {}
    return facts


def survives() -> bool:
    """True if this process is a rank that may die while the others go on: gossipgrad run --survive."""
    return bool(net_facts().get("views", -1) >= 0)


def may_grow() -> bool:
    """True if processes that are started later may join the ranks."""
    facts = net_facts()
    return "members" in facts and facts["members"] < facts["size"]


def is_newcomer() -> bool:
    """True if this process is a rank that was started after the first ones."""
    facts = net_facts()
    return "members" in facts and facts["rank"] >= facts["members"]


def let_go() -> None:
    """Remove the launcher's connection from the environment, because MPI runs."""
    if parent_rank() is None:
        for name in [one for one in os.environ if _TAKEN_OUT.fullmatch(one)]:
            _taken[name] = os.environ.pop(name)


# ---- processes without MPI


def _child(parent: tuple[int, int, int]) -> str:
    process, rank, size = parent
    of = f" of {size}" if size else ""
    return (
        f"process {os.getpid()} was started by rank {rank}{of}, process {process}, and has no part in its MPI; allowed "
        "here: comm=gossipgrad.VirtualCluster(1), or --virtual-ranks 1, which trains in this process alone. A script "
        "that multiprocessing imports again has what ranks do under if __name__ == '__main__':"
    )


def _other_launcher(environ: Mapping[str, str]) -> str | None:
    if any(name in environ for name in (*_CONNECTION, *_SIZES)):
        return None
    for launcher, size, rank in _OTHERS:
        ranks = environ.get(size, "")
        marked = rank in environ or (launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in environ)
        if marked and ranks.isdigit() and int(ranks) > 1:
            without = ", where no MPI runs" if launcher != "srun" else " without PMI, so that no MPI runs"
            command = f"mpiexec -n {ranks} python script.py"
            if launcher == "srun":
                command = f"srun --mpi=pmix -n {ranks} python script.py where srun --mpi=list names pmix"
            return (
                f"this process was started by {launcher} ({size}={ranks}){without}, so every process would train "
                f"alone; allowed: gossipgrad run -n {ranks} script.py, or {command}"
            )
    return None


def check(environ: Mapping[str, str] | None = None) -> None:
    """RuntimeError in a process that is one of several but cannot be a rank of MPI.

    These were started by a rank, or by torchrun, horovodrun or srun without PMI.
    """
    parent = parent_rank() if environ is None else None
    text = _child(parent) if parent is not None else _other_launcher(_all() if environ is None else environ)
    if text is not None:
        raise RuntimeError(text)
