"""gossipgrad run: start ranks with mpiexec or net_launcher.py, with the settings for this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace

from gossipgrad.launch import FOLDER, lines, mpiexec, origin, preload
from gossipgrad.launch.mpiexec import LaunchError as LaunchError
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
_NAMES = {"-np": "-n", "--ranks": "-n"} | {name: name for name in ("-n", *_WITH_VALUE, *_OF_HOSTS)}  # as typed
_JOIN = "--join"  # join_words'
_OF_JOIN = ("-n", "--threads", "--bind", "--stopped", "--grace", "--transport", "--coordinator")
# Sub-commands with a --threads of their own.
_THREADED = ("train", "evaluate", "bench", "compare")


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
    return ranks > 1 and (threads if mpiexec.narrowed() else ranks * threads) > mpiexec.usable_cores()


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


# ------------------------------------------------------------------------------------ the command line


@dataclass(frozen=True)
class Plan:
    """The request of `gossipgrad run`."""

    command: list[str]
    environment: dict[str, str]  # to be added to the environment
    only_print: bool
    stdin: bool
    checkpoint: str | None  # path of the ranks' checkpoint
    words: list[str] | None  # of a sub-command of this package; None: a Python file
    saves: bool  # True if SIGTERM and SIGUSR1 let the ranks save
    openmpi: bool = False
    net: bool = False  # without MPI
    elsewhere: bool = False  # True if ranks may write on other hosts, or relative to another folder
    many: int = 0  # ranks, if they are on this host and more than _MANY times its cores; else 0
    waits: bool = False  # True if the command is an agent, which waits for its coordinator without ranks


def _count(option: str, text: str, most: int, least: int = 1) -> int:
    if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise LaunchError(f"{option} is {text!r}; allowed: {least} to {most}")
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


def rank_command(command: list[str], is_file: bool) -> list[str]:
    """The command of each rank: a Python file, or a sub-command of this package."""
    if is_file:
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


def plan(argv: list[str]) -> Plan:
    """The plan of a command line. LaunchError: impossible."""
    options, flags, words = _parsed(argv)
    net = _by_net(options)
    several = not net and mpiexec.several_hosts(options.get("--hosts"))
    ranks = _count("run: -n", options["-n"], MAX_RANKS_OF_SEVERAL if several else MAX_RANKS)
    survival = _survival(options, flags, net, ranks)
    hosts = _hosts(options, flags)
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
    threads, environment = _threads(options, words, is_file)
    if "--save-on-signal" in flags and not is_file and "--save-on-signal" not in words:
        words.append("--save-on-signal")
    shared = Plan(
        command=rank_command(words, is_file),
        environment=environment,
        only_print="--print" in flags,
        stdin="--stdin" in flags,
        checkpoint=_value_of("--checkpoint", words) if words[0] == "train" and not is_file else None,
        words=None if is_file else words,
        saves="--save-on-signal" in (flags if is_file else words),
    )
    if net:
        return _net_plan(shared, options, ranks, threads, hosts, survival)
    return _mpi_plan(shared, options, ranks, threads, several)


def _parsed(argv: list[str]) -> tuple[dict[str, str], set[str], list[str]]:
    """(options with their values, flags, COMMAND's words)."""
    options: dict[str, str] = {}
    flags: set[str] = set()
    words = list(argv)
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
        if name not in _NAMES:
            raise LaunchError(
                f"run: unknown option {word!r}; allowed: -n {' '.join((*_WITH_VALUE, *_OF_HOSTS))} --survive --stdin "
                "--save-on-signal --print"
            )
        if not equals:
            if not words:
                raise LaunchError(f"run: {word} wants a value")
            value = words.pop(0)
        options[_NAMES[name]] = value
    if _JOIN in flags:
        _check_join(options, flags)
    if "-n" not in options:
        late = "-n" in words[1:]
        raise LaunchError(
            "run: -n RANKS is missing: how many processes shall run?"
            f"{' It stands before the command: gossipgrad run -n 4 train' if late else ''}"
        )
    return options, flags, words


def _threads(options: Mapping[str, str], words: list[str], is_file: bool) -> tuple[int, dict[str, str]]:
    """Threads of a rank, and the variable to add for them. Adds --threads to the `words` of a sub-command."""
    inner = None if is_file else _value_of("--threads", words)
    asked = options.get("--threads", inner)
    if inner is not None and inner != asked:
        raise LaunchError(f"run: --threads {asked} and --threads {inner} contradict each other")
    if asked is None:  # OpenMP's list of numbers, one for each level of nesting
        first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip() or "1"
        threads = _count("OMP_NUM_THREADS", first, MAX_THREADS)
        return threads, {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    if inner is None and words[0] in _THREADED:
        words += ["--threads", asked]
    threads = _count("run: --threads", asked, MAX_THREADS)
    return threads, {"OMP_NUM_THREADS": str(threads)}


def _net_plan(
    shared: Plan, options: Mapping[str, str], ranks: int, threads: int, hosts: list[str], survival: list[str]
) -> Plan:
    nodes = _count("run: --nodes", options.get("--nodes", "1"), ranks)
    here = ranks
    if hosts and _JOIN not in hosts:
        node = _count("run: --node", options.get("--node", "0"), nodes - 1, least=0)
        here = ranks // nodes + (node < ranks % nodes)
        hosts = [*hosts, "--node", str(node)]
    fits = here * threads <= mpiexec.usable_cores()
    command = _net_command(ranks, nodes, here, threads if fits and options.get("--bind") != "none" else 0)
    command += [*hosts, *(["--stdin"] if shared.stdin else []), *survival, *_respawn(options, ranks, nodes)]
    return replace(
        shared,
        command=[*command, NET_FOLDER, *shared.command],
        environment=shared.environment | mpiexec.rank_environment(here, "other", several=False, crowded=not fits),
        net=True,
        waits=bool(hosts),
    )


def _mpi_plan(shared: Plan, options: Mapping[str, str], ranks: int, threads: int, several: bool) -> Plan:
    program = mpiexec.find()
    kind = mpiexec.flavour(program)
    openmpi = kind != "other"
    extra = _words("--mpi", options.get("--mpi", ""))
    cores = mpiexec.usable_cores()
    fits = several or ranks * threads <= cores
    made = shared.environment | mpiexec.rank_environment(ranks, kind, several, crowded=not fits)

    def has(pattern: str) -> bool:
        return any(re.match(pattern, word) for word in extra)

    command = [program, "-n", str(ranks)]
    if options.get("--hosts"):
        command += mpiexec.host_options(kind, options["--hosts"], made)
    if not has("-?-(bind-to|map-by|rank-by|cpu-set|rankfile)"):
        if options.get("--bind") != "none" and fits and (several or not mpiexec.narrowed()):
            command += mpiexec.bind_options(kind, threads, several)
        elif openmpi:  # by default it binds one or two ranks to one core each, whatever their threads
            command += ["--bind-to", "none"]
    if kind == "openmpi5" and sys.stdout.isatty() and not has("--(output|stream-buffering)"):
        # It holds back unfinished lines, as a progress bar. Without a terminal that keeps lines whole.
        command += ["--output", ":raw"]
    if openmpi and not shared.stdin and "--stdin" not in extra:
        command += ["--stdin", "none"]  # with the null device instead a reading rank 0 would wait for ever
    return replace(
        shared,
        command=[*command, *extra, *shared.command],
        environment=made,
        openmpi=openmpi,
        elsewhere=several or has("-?-wd"),
        many=ranks if not several and ranks > _MANY * cores else 0,
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


def _survival(options: Mapping[str, str], flags: set[str], net: bool, ranks: int) -> list[str]:
    """The launcher's options where ranks outlive others; none: all end together."""
    survive = "--survive" in flags
    alone = [one for one in _OF_SURVIVAL if one in options]
    if alone and not survive:
        raise LaunchError(f"run: {alone[0]} without --survive; allowed: with it")
    if survive and not net:
        raise LaunchError("run: --survive with --transport mpi, where all ranks end together; allowed: --transport net")
    if not survive:
        return []
    least = _count("run: --min-ranks", options.get("--min-ranks", "1"), ranks)
    return ["--survive", str(least), "--stopped", f"{_seconds(options, '--stopped', 10.0, 86400):g}"]


def _hosts(options: Mapping[str, str], flags: set[str]) -> list[str]:
    """The launcher's options of a job of several hosts; none: it has one."""
    given = [one for one in _OF_HOSTS if one in options]
    if not given:
        return []
    if "--coordinator" not in options or "--survive" not in flags:
        missing = "--survive" if "--coordinator" in options else "--coordinator"
        raise LaunchError(f"run: {given[0]} without {missing}; allowed: with it")
    try:
        lines.address("run: --coordinator", options["--coordinator"])
        lines.job_secret()
    except ValueError as error:
        raise LaunchError(str(error)) from None
    lease, grace = _seconds(options, "--lease", 5.0, 3600), _seconds(options, "--grace", 60.0, 86400)
    words = ["--coordinator", options["--coordinator"], "--lease", f"{lease:g}", "--grace", f"{grace:g}"]
    return words + ([_JOIN] if _JOIN in flags else [])


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


def _respawn(options: Mapping[str, str], ranks: int, nodes: int) -> list[str]:
    """The launcher's option for ranks that are started in the place of dead ones, if there are any."""
    given = options.get("--respawn", "0")
    if given == "0":
        return []
    if nodes > 1 and "--coordinator" not in options:
        raise LaunchError(f"run: --respawn with --nodes {nodes}; allowed: --nodes 1, --coordinator")
    return ["--respawn", str(_count("run: --respawn", given, MAX_RANKS - ranks))]


def _net_command(ranks: int, nodes: int, here: int, threads: int) -> list[str]:
    """net_launcher.py with its options; each of the ranks here is bound to `threads` cores (0: to none)."""
    command = [sys.executable, "-I", os.path.join(FOLDER, "launch", "net_launcher.py"), "-n", str(ranks)]
    command += ["--nodes", str(nodes)] if nodes > 1 else []
    if threads and not mpiexec.narrowed():
        cores = sorted(mpiexec.cores(), key=min)
        sets = [set().union(*cores[rank * threads : (rank + 1) * threads]) for rank in range(here)]
        command += ["--cpus", ";".join(",".join(map(str, sorted(one))) for one in sets)]
    return command


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
            mpiexec.check_folder({**os.environ, **asked.environment})
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
    end = 0
    while end < len(argv) and argv[end].startswith("-"):
        end += 2 if argv[end] in _NAMES else 1
    return argv[:end]
