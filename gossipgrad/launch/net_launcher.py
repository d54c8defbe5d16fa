"""Start the ranks of `gossipgrad run --transport net` on this host, end them together, and tell each who has ended.

The counterpart of mpiexec. A program of its own, which loads only the parts of the package that it needs, where ranks
may die:

    python -I net_launcher.py -n RANKS [--nodes N] [--cpus "0,1;2,3"] [--stdin]
        [--survive N [--stopped S] [--respawn N]] FOLDER COMMAND ...

With --coordinator HOST:PORT --node I it starts node I alone, and is its agent (agent.py). With --join instead of --node
it starts RANKS new ranks of a job that runs.

Each rank inherits the memory of its node (a memfd, which nothing outlives), and finds the rest in GOSSIPGRAD_NET, with
the job's secret. Between nodes ranks connect by TCP, without a coordinator on the loopback interface. FOLDER is the
job's, for notes of ranks to each other.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import IO, Any

VARIABLE = "GOSSIPGRAD_NET"
RING_BYTES = 1 << 17
_SEGMENT_MAX = 1 << 45  # bytes of address space of a node's memory
_HUGE_PAGE = 2 << 20
_TO_END = 1.0  # seconds from SIGTERM to SIGKILL
_TO_READ = 2.0  # seconds for output to arrive after the ranks: their own children may keep the pipes open
SAVED = 75  # exit code of a rank that has saved, and is to be resumed
_POLL = 0.0005  # seconds between looks at ranks that change their view
_TO_LOOK = 0.01  # seconds between looks at newcomers, and at the last output
_PR_SET_PDEATHSIG = 1

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT}


def nodes_of(ranks: int, nodes: int) -> list[int]:
    """The lowest rank of each rank's node: `nodes` runs of ranks, the first ones longer by one."""
    found: list[int] = []
    for node in range(nodes):
        first = len(found)
        found += [first] * (ranks // nodes + (node < ranks % nodes))
    return found


def _heap_bytes(ranks: int) -> int:
    """Address space of each rank's message memory: the host's memory, if the node's ranks have room for so much."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(host, _SEGMENT_MAX // ranks) // _HUGE_PAGE * _HUGE_PAGE


class Output:
    """Passes on what ranks print, in whole lines, so that lines of several ranks do not mix."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = threading.Lock()
        self.pipes: list[IO[bytes]] = []
        self.started = False
        self.threads: list[threading.Thread] = []

    def add(self, pipe: IO[bytes]) -> None:
        """Pass this pipe on, from `start` on."""
        if self.started:
            self._begin(pipe)
        else:
            self.pipes.append(pipe)

    def start(self) -> None:
        self.started = True
        for pipe in self.pipes:
            self._begin(pipe)

    def _begin(self, pipe: IO[bytes]) -> None:
        thread = threading.Thread(target=self._pass_on, args=(pipe,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _pass_on(self, pipe: IO[bytes]) -> None:
        kept = b""
        with contextlib.suppress(OSError), pipe:  # without a reader the ranks' pipe ends as well
            while text := os.read(pipe.fileno(), 65536):
                whole, newline, kept = (kept + text).rpartition(b"\n")
                self._write(whole + newline)
            self._write(kept)

    def _write(self, text: bytes) -> None:
        with self.lock:
            while text:
                text = text[os.write(self.descriptor, text) :]

    def end(self) -> None:
        """Wait until the pipes end, for _TO_READ seconds beside those in which a write waits for the reader."""
        left = _TO_READ
        for thread in self.threads:
            while left > 0:
                thread.join(_TO_LOOK)
                if not thread.is_alive():
                    break
                if not self.lock.locked() or _ENDING & signal.sigpending():
                    left -= _TO_LOOK


def _module(name: str) -> Any:
    """A module of the package. Loading it changes no variable of the ranks, and starts no thread."""
    before = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    module = importlib.import_module(f"gossipgrad.{name}")
    os.environ.clear()
    os.environ.update(before)
    return module


def job_code(code: int) -> int:
    """The exit code of a job that a process with this one has ended: 128 and the signal's number; 1 for a code of 0."""
    return 128 - code if code < 0 else code or 1


def how(code: int) -> str:
    """How a rank has ended."""
    return f"was ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


def listen(host: str, backlog: int, port: int = 0) -> socket.socket:
    """A socket that listens at this address of this host; port 0: any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"gossipgrad: {text}", file=sys.stderr, flush=True)


def _is_stopped(process: int) -> bool:
    """True if the kernel shows it as stopped by a signal; a debugger's stop is another state."""
    try:
        with open(f"/proc/{process}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


class Stops:
    """Which processes have been stopped for more than `limit` seconds. Wants a look each limit/4 seconds."""

    def __init__(self, limit: float) -> None:
        self.limit, self.looked = limit, 0.0
        self.since: dict[int, float] = {}  # process: time at which it was first seen stopped

    def too_long(self, processes: Iterable[int], now: float) -> list[int]:
        if now - self.looked > self.limit / 2:  # this process was stopped as well
            self.since.clear()
        self.looked = now
        self.since = {one: self.since.get(one, now) for one in processes if _is_stopped(one)}
        return [one for one, since in self.since.items() if now - since > self.limit]


class Job:
    """The processes of a job."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.size: int = arguments.n
        self.spare: int = arguments.respawn  # ranks that may be started again
        self.most = self.size + self.spare  # each new rank has a number of its own
        first_of = nodes_of(self.size, arguments.nodes)
        firsts = sorted(set(first_of))
        node = max(arguments.node, 0)
        home = firsts[node] if node < len(firsts) else self.size  # lowest rank of the node of new ranks here
        here = firsts if arguments.node < 0 else [home]
        self.ranks = [rank for rank in range(self.size) if first_of[rank] in here]
        self.node_of = first_of + [home] * self.spare
        self.memory = {first: os.memfd_create("gossipgrad") for first in here}
        self.running: dict[int, int] = {}  # process: rank
        self.code = 0
        self.deadline: float | None = None  # of ranks that were asked to end
        self.outputs = {fd: Output(fd) for fd in (1, 2) if not os.isatty(fd)}
        self.views, self.changing = -1, False
        self.stops, self.paused = Stops(arguments.stopped), False  # paused: all ranks were stopped on purpose
        self.keeper: Any = None
        self.joined: set[int] = set()  # newcomers
        self.places: dict[int, int] = {}  # rank: its place among those here, whose CPUs it has
        self.here = len(self.ranks)  # places; a new rank has that of a dead one
        if arguments.survive:
            self.views = os.memfd_create("gossipgrad-views")
            self.keeper = self.keep(min(arguments.survive, self.size))

    def keep(self, least: int) -> Any:
        return _module("_core").ViewKeeper(self.views, self.size, self.most, least)

    def listens(self) -> bool:
        """True if new ranks may come from other hosts."""
        return False

    def host(self) -> str:
        """The address at which ranks listen for those of other nodes."""
        return "127.0.0.1"

    def meet(self, addresses: list[Any]) -> tuple[list[Any], str]:
        """The addresses of all ranks, and the secret by which they know each other; `addresses`: of the ranks here."""
        return addresses, secrets.token_hex(32)

    def start(self, mask: set[int]) -> None:
        several = len(set(self.node_of)) > 1 or self.listens()
        host = self.host()
        listeners = {rank: listen(host, self.most) for rank in self.ranks if several}
        addresses, secret = self.meet([one.getsockname()[:2] for one in listeners.values()])
        facts = {
            "size": self.most,
            "members": self.size,
            "nodes": self.node_of,
            "addresses": addresses,
            "secret": secret,
            "folder": self.arguments.folder,
            "ring_bytes": RING_BYTES,
            "views": self.views,
        }
        self.facts, self.mask = facts, mask
        for place, rank in enumerate(self.ranks):
            self._start_rank(rank, place, listeners[rank].fileno() if several else -1)
            self.has_started_one()
        for one in listeners.values():
            one.close()
        for output in self.outputs.values():  # threads, so only after the last process was started
            output.start()

    def _start_rank(self, rank: int, place: int, listener: int = -1, **facts: Any) -> None:
        """place: among those here, for its CPUs; a new rank has that of a dead one. facts: of this rank alone."""
        cpus = self.arguments.cpus.split(";") if self.arguments.cpus else []
        parent, mask, libc = os.getpid(), self.mask, ctypes.CDLL(None)
        first = self.node_of[rank]
        memory, here = self.memory[first], self.node_of.count(first)
        own = {"rank": rank, "memory": memory if here > 1 else -1, "listener": listener}
        own["heap_bytes"] = _heap_bytes(here)
        environ = {**os.environ, VARIABLE: json.dumps({**self.facts, **own, **facts})}
        environ |= {"GOSSIPGRAD_NET_RANK": str(rank), "GOSSIPGRAD_NET_SIZE": str(self.size)}
        environ |= {"GOSSIPGRAD_NET_LOCAL_RANK": str(place), "GOSSIPGRAD_NET_LOCAL_SIZE": str(self.here)}

        def prepare() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if cpus:
                os.sched_setaffinity(0, {int(cpu) for cpu in cpus[place].split(",")})
            if os.getppid() != parent:
                os._exit(1)

        process = subprocess.Popen(
            self.arguments.command,
            env=environ,
            stdin=None if self.arguments.stdin and rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE if 1 in self.outputs else None,
            stderr=subprocess.PIPE if 2 in self.outputs else None,
            bufsize=0,
            pass_fds=[fd for fd in (own["memory"], listener, self.views) if fd >= 0],
            preexec_fn=prepare,
        )
        process.returncode = 0  # waited for here alone
        self.running[process.pid] = rank
        self.places[rank] = place
        for fd, pipe in ((1, process.stdout), (2, process.stderr)):
            if pipe is not None:
                self.outputs[fd].add(pipe)

    def _replace(self, rank: int, code: int) -> None:
        """Start another rank, unless a new one has ended by itself: the next one would, too."""
        if code < 0 or rank < self.size:
            self._respawn(rank)

    def _respawn(self, rank: int) -> None:
        """Start a new rank in the place of one that has died, if one is left."""
        if self.spare > 0 and self.deadline is None:
            new, self.spare = self.most - self.spare, self.spare - 1
            self._start_rank(new, self.places[rank])

    def _tell_joined(self) -> None:
        view = self.keeper.view()
        new = [rank for rank in view["ranks"] if rank >= self.size and rank not in self.joined]
        self.joined.update(new)
        for rank in self.places.keys() & set(new):
            _say(f"rank {rank} (new) joins in step {view['step']}; {len(view['ranks'])} ranks go on")

    def _end_newcomers(self) -> None:
        """When all members have ended, nobody is left whom a newcomer could join."""
        if self.most > self.size and self.running:
            if not set(self.keeper.view()["ranks"]) & set(self.running.values()):
                self.end(0)

    def send(self, number: int) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def end(self, code: int) -> None:
        """End all ranks; `code` becomes the job's exit code, unless it has one."""
        self.code = self.code or code
        if self.deadline is None:
            self.deadline = time.monotonic() + _TO_END
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)

    def reap(self) -> None:
        while self.running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            if process in self.running:
                self._ended(self.running.pop(process), os.waitstatus_to_exitcode(status))

    def _mark_ended(self, rank: int) -> None:
        first = self.node_of[rank]
        place = self.node_of[:rank].count(first)
        os.pwrite(self.memory[first], struct.pack("=I", 1), 64 * place)  # GG_NET_ENDED

    def _died(self, rank: int, code: int) -> None:
        """The others go on. Its last messages are in place, since it has been reaped."""
        self._mark_ended(rank)
        self.keeper.died(rank)
        self.changing = self.keeper.poll() != "ended"
        left = len(set(self.keeper.view()["ranks"]) & set(self.running.values()))
        then = f"{left} rank{'s' if left > 1 else ''} {'go' if left > 1 else 'goes'} on" if self.changing else "all end"
        _say(f"rank {rank} {how(code)}: {then}")
        if not self.changing:
            self.end(job_code(code))
        self._replace(rank, code)

    def _newcomer_ended(self, rank: int, code: int) -> None:
        """It had not joined: the others do not know it."""
        self._mark_ended(rank)
        self.keeper.died(rank)
        _say(f"rank {rank} {how(code)}, before it had joined")
        self._replace(rank, code)

    def kill_stopped(self) -> None:
        """A rank that is stopped for too long counts as dead, so that the others need not wait for it."""
        if self.keeper is None or self.paused or self.deadline is not None:
            self.stops.since.clear()
            return
        training = [process for process, rank in self.running.items() if self.keeper.trains(rank)]
        for process in self.stops.too_long(training, time.monotonic()):
            del self.stops.since[process]
            _say(f"rank {self.running[process]} has been stopped for more than {self.stops.limit:g} s: killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _patience(self) -> float:
        """Seconds until the next look without a signal."""
        if self.deadline is not None:
            return 0.1
        if self.changing:
            return _POLL
        if self._newcomers_wait():
            return _TO_LOOK
        return 10.0 if self.keeper is None else min(1.0, self.stops.limit / 4)

    def _newcomers_wait(self) -> bool:
        """True if a new rank here has not joined yet."""
        return any(rank >= self.size and rank not in self.joined for rank in self.running.values())

    def _is_unknown(self, rank: int) -> bool:
        """True if a rank is new and has not joined: the others do not know it."""
        return rank >= self.size and rank not in self.keeper.view()["ranks"]

    def _ended(self, rank: int, code: int) -> None:
        if self.deadline is None and self._is_unknown(rank):
            self._newcomer_ended(rank, code)
            return
        if self.deadline is None and self.keeper is not None and self.keeper.trains(rank):
            self._died(rank, code)
            return
        if code == 0 or self.deadline is not None:
            self._mark_ended(rank)
            return
        marks = (os.path.join(self.arguments.folder, f"gossipgrad-net-{name}") for name in ("reported", f"told-{rank}"))
        reported = any(os.path.exists(mark) for mark in marks)
        if code < 0 or (not reported and code != SAVED):
            _say(f"rank {rank} {how(code)}: this ends all ranks")
        self.end(job_code(code))

    def look(self) -> None:
        """Between two signals."""
        if self.changing or self.most > self.size:
            self.changing = self.keeper.poll() in ("stopping", "goal") or not self.keeper.rests()
            self._tell_joined()

    def leave(self, number: int) -> None:
        """A signal ends this process."""
        self.end(128 + number)

    def is_over(self) -> bool:
        return not self.running

    def has_started_one(self) -> None:
        """Called after the start of each of the first ranks."""

    def part(self) -> None:
        """Called when all ranks here have ended, before `wait` awaits the rest of their output."""

    def wait(self, signals: set[int]) -> int:
        while not self.is_over():
            self.look()
            found = signal.sigtimedwait(signals, self._patience())
            number = None if found is None else found.si_signo
            if number in _ENDING:
                self.leave(int(number))
            elif number == signal.SIGTSTP:
                self.paused = True
                self.send(signal.SIGSTOP)
            elif number in _PASSED_ON:
                self.paused = self.paused and number != signal.SIGCONT
                self.send(int(number))
            self.reap()
            self._end_newcomers()
            self.kill_stopped()
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.send(signal.SIGKILL)
        self.part()
        for output in self.outputs.values():
            output.end()
        return self.code


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--stdin", action="store_true")
    parser.add_argument("--survive", type=int, default=0)
    parser.add_argument("--stopped", type=float, default=10.0)
    parser.add_argument("--respawn", type=int, default=0)
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--node", type=int, default=-1)
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--lease", type=float, default=5.0)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("folder")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        job: Job = _module("launch.agent").Agent(arguments) if arguments.coordinator else Job(arguments)
    except ConnectionError as error:
        _say(f"error: {error}")
        return 2
    signals: set[int] = {*_ENDING, *_PASSED_ON, signal.SIGCHLD, signal.SIGIO}
    signal.signal(signal.SIGCHLD, lambda *_: None)
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, signals)}
    try:
        job.start(before)
    except OSError as error:
        print(f"gossipgrad: error: {job.arguments.command[0]}: {error.strerror}", file=sys.stderr)
        job.end(2)
    code = job.wait(signals)
    shutil.rmtree(job.arguments.folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
