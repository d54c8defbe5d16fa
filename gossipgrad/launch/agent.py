"""The agent of a node: starts and reaps its ranks, and stands for them before the coordinator (coordinator.py).

It carries what its ranks tell in their host's shared memory to the coordinator, and views back. It has a lease, which
each answered beat renews. When the lease ends it kills its ranks, because the coordinator may then declare them dead.

A rank that has died is replaced by a new one, whose number and connections the coordinator gives. An agent that joins
(gossipgrad join) starts new ranks alone.

A coordinator that has ended cannot declare anybody dead: if its host refuses connections, ranks train on for `grace`
seconds. Then they are asked to save and end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import select
import signal
import socket
import time
from typing import Any

from gossipgrad.launch.lines import (
    MALFORMED,
    SECRET,
    DroppedError,
    Line,
    Message,
    SecretError,
    address,
    job_secret,
    say,
)
from gossipgrad.launch.net_launcher import SAVED, Job, how, job_code, listen

_BEATS = 5  # a lease
_TO_SAVE = 30.0  # seconds for ranks that save when there is no coordinator
_TO_RETRY = 0.5
_TO_ENTER = 10.0  # seconds for the coordinator's answer to a node that joins
_TO_SAY = 2.0  # max seconds until the coordinator has heard the last words
_OTHER_SECRET = f"{SECRET} differs from the job's; allowed: one secret on all hosts"
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _EndError(Exception):
    """The job has ended before its ranks were started."""


class Agent(Job):
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.coordinator = address("--coordinator", arguments.coordinator)
        self.key = job_secret()
        os.environ.pop(SECRET, None)  # no rank needs it
        self.parent = os.getppid()
        self.token = secrets.token_hex(8)
        self.line: Line | None = None
        self.begun: Message | None = None  # the coordinator's word to start
        self.joining: int = arguments.n if arguments.join else 0  # ranks
        self.early: list[Message] = []  # came together with the coordinator's answer to a node that joins
        if self.joining:
            self._enter(arguments)
        super().__init__(arguments)
        self.here = self.joining or self.here
        self.node: int = arguments.node
        self.lease, self.grace = float(arguments.lease), float(arguments.grace)
        self.beat = self.lease / _BEATS
        self.place = ""  # this host's address
        self.addresses: list[Any] = []
        self.ready = self.started = False  # ready: its ranks listen
        self.serial, self.slot = 0, ""
        self.left: list[int] = []  # nodes that have ended without a death
        self.dead: dict[int, int] = {}  # ranks of all nodes; exit codes of those here
        self.beats: dict[int, float] = {}  # sent, not answered: number: time
        self.number = 0
        self.next_beat = self.next_try = 0.0
        self.lease_ends: float | None = None  # None: no lease has begun, or it is over
        self.absent: float | None = None  # since when there is no coordinator
        self.waiting = False  # it was said that there is none yet
        self.cut = self.told_end = self.leaving = False
        self.told: dict[int, bytes] = {}
        self.newcomers: list[list[Any]] = []  # of all nodes: number, node, address
        self.wanted: list[tuple[socket.socket, int]] = []  # listeners and places of new ranks without a number
        self.last_code = 1  # of the last rank here that has died
        self.finished: list[int] = []  # ranks here that have ended without a death
        if self.begun is not None:
            self._view(self.begun)

    def keep(self, least: int) -> Any:
        from gossipgrad import _core

        return _core.ViewPages(self.views, self.most)

    # ---- start

    def _enter(self, arguments: argparse.Namespace) -> None:
        """Become a node of a job that runs. ConnectionError: it is not possible."""
        where, until = arguments.coordinator, time.monotonic() + arguments.grace
        line, heard, self.early = self._ask_to_enter(where)
        if line is None or heard.get("later"):
            say(f"join: waits for the coordinator at {where}, and the start of its job")
        while (line is None or heard.get("later")) and time.monotonic() < until:
            if line is not None:
                line.close()
            time.sleep(_TO_RETRY)
            line, heard, self.early = self._ask_to_enter(where)
        if line is None or heard["kind"] != "joined":
            raise ConnectionError(f"join: the coordinator at {where}: {heard.get('why')}")
        self.begun, self.line = heard, line
        arguments.n, arguments.nodes, arguments.survive, arguments.respawn, arguments.lease = heard["facts"]
        arguments.node = int(heard["node"])

    def _ask_to_enter(self, where: str) -> tuple[Line | None, Message, list[Message]]:
        """The coordinator's answer, and what came with it; no line: there is none at its address."""
        try:
            one = socket.create_connection(self.coordinator, timeout=_TO_ENTER)
        except ConnectionRefusedError:
            return None, {"why": "nobody listens there"}, []
        except OSError as error:
            raise ConnectionError(f"join: no coordinator at {where}: {error.strerror or error}") from None
        line, until = Line(one, self.key, False), time.monotonic() + _TO_ENTER
        heard: list[Message] = []
        line.send({"kind": "join", "token": self.token})
        try:
            while not heard and time.monotonic() < until:
                select.select([one], [], [], 0.1)
                line.flush()
                heard = line.receive()
        except SecretError:
            raise ConnectionError(f"join: the coordinator at {where}: {_OTHER_SECRET}") from None
        except (*MALFORMED, OSError, EOFError) as error:
            raise ConnectionError(f"join: no answer of the coordinator at {where}: {error}") from None
        if not heard:
            raise ConnectionError(f"join: the coordinator at {where} has not answered for {_TO_ENTER:g} s")
        return line, heard[0], heard[1:]

    def listens(self) -> bool:
        return bool(self.most > self.size)

    def host(self) -> str:
        """The address by which this host reaches the coordinator."""
        while self.line is None and not self.place:
            self._connect(time.monotonic())
            self._wait()
        if self.line is not None:
            self.place = str(self.line.socket.getsockname()[0])
        return self.place

    def meet(self, addresses: list[Any]) -> tuple[list[Any], str]:
        self.addresses, self.ready = addresses, True
        if self.line is not None and self.begun is None:
            self._greet(self.line)
        while self.begun is None:
            self.look()
            self._wait()
        return self.begun["addresses"], str(self.begun["secret"])

    def _wait(self) -> None:
        if self.deadline is not None:
            raise _EndError
        found = signal.sigtimedwait({*_ENDING, signal.SIGIO}, min(self.beat, 0.2))
        if found is not None and found.si_signo in _ENDING:
            self.leave(int(found.si_signo))
            raise _EndError

    def start(self, mask: set[int]) -> None:
        if self.line is not None:  # of a node that joins: now SIGIO is blocked
            self._signals(self.line.socket)
        with contextlib.suppress(_EndError):
            super().start(mask)
            self.started = True
            self._want(list(range(self.joining)))

    def has_started_one(self) -> None:
        self.look()  # many starts may take longer than a lease

    # ---- the connection

    def _connect(self, now: float) -> None:
        if self.cut or now < self.next_try:
            return
        self.next_try = now + min(self.beat, 1.0)
        try:
            one = socket.create_connection(self.coordinator, timeout=self.beat)
        except ConnectionRefusedError:
            self._no_coordinator(now)
            return
        except OSError:  # nothing is known of it: the lease goes on
            self._say_waiting()
            return
        self.line = Line(one, self.key, False)
        self._signals(one)
        if self.ready:
            self._greet(self.line)

    def _signals(self, one: socket.socket) -> None:
        """SIGIO when messages come."""
        fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)

    def _say_waiting(self) -> None:
        if not self.started and not self.waiting:
            self.waiting = True
            say(f"node {self.node} waits for the coordinator at {self.arguments.coordinator}")

    def _no_coordinator(self, now: float) -> None:
        """There is none at its address, so nobody can declare this node dead."""
        self._say_waiting()
        if self.started and self.absent is None:
            self.absent = now
            say(f"node {self.node}: the coordinator has ended; the ranks train on for {self.grace:g} s without it")
        if self.lease_ends is not None:
            self.lease_ends = now + self.lease

    def _greet(self, line: Line) -> None:
        message = {
            "kind": "hello",
            "node": self.node,
            "size": self.size,
            "nodes": self.arguments.nodes,
            "least": min(self.arguments.survive, self.size),
            "respawn": self.spare,
            "lease": self.lease,
            "token": self.token,
            "addresses": self.addresses,
            "started": self.started,
            "serial": self.serial,
            "slot": self.slot,
            "dead": sorted(self.dead),
            "left": self.left,
            "newcomers": self.newcomers,
            "pages": self._pages(range(self.most)) if self.started else {},
        }
        line.send(message)
        self.beats.clear()
        self.next_beat = 0.0

    def _news(self) -> Message:
        return {"pages": self._pages(self.ranks), "finished": self.finished}

    def _pages(self, ranks: Any) -> dict[str, str]:
        return {str(rank): self.keeper.told(rank).hex() for rank in ranks}

    def _send(self, message: Message) -> None:
        if self.line is not None:
            self.line.send(message)

    def _close(self) -> None:
        if self.line is not None:
            self.line.close()
        self.line = None

    # ---- between two signals

    def look(self) -> None:
        now = time.monotonic()
        while self.early:
            self._hear(self.early.pop(0))
        if self.line is None:
            self._connect(now)
        if self.line is not None:
            self._receive(self.line)
        if self.line is not None:
            if now >= self.next_beat and self.ready:
                self.number += 1
                self.beats[self.number] = now
                self._send({"kind": "beat", "number": self.number, **self._news()})
                self.next_beat = now + self.beat
            self.line.flush()
        if self.changing or self._newcomers_wait():
            self._carry()
        if self.lease_ends is not None and now > self.lease_ends:
            self._lease_over()
        if self.absent is not None and now > self.absent + self.grace and not self.cut:
            self._grace_over(now)

    def _patience(self) -> float:
        if self.line is None:
            return min(super()._patience(), self.beat / 4) if not self.changing else self.beat / 4
        return min(super()._patience(), self.beat)

    def is_over(self) -> bool:
        # A coordinator that comes back must hear that the ranks have ended.
        heard = self.line is not None and self.line.proven
        if self.wanted and self.deadline is None:
            return False
        return not self.running and (heard or self.cut or self.deadline is not None)

    def _receive(self, line: Line) -> None:
        try:
            while messages := line.receive():
                for message in messages:
                    self._hear(message)
                if self.line is not line:
                    return
        except EOFError:  # its process has closed it
            self._close()
            if self.lease_ends is not None:
                self.lease_ends = time.monotonic() + self.lease
        except OSError:
            self._close()
        except MALFORMED as error:
            if isinstance(error, SecretError) and self.begun is None:
                say(f"node {self.node}: the coordinator at {self.arguments.coordinator}: {_OTHER_SECRET}")
                self._kill(2)
                return
            said = str(error) if isinstance(error, DroppedError) else repr(error)
            say(f"node {self.node} dropped its connection to {self.arguments.coordinator}: {said}")
            self._close()
            self.next_try = time.monotonic() + self.beat

    def _hear(self, m: Message) -> None:
        kind = m["kind"]
        if kind == "beat":
            sent = self.beats.pop(m["number"], None)
            if sent is not None and not self.cut:
                self.lease_ends, self.absent = sent + self.lease, None
        elif kind in ("view", "start"):
            self._view(m)
            if kind == "start" and self.begun is None:
                self.begun = m
            if kind == "start":  # what this coordinator has not heard is said again
                self._ask()
        elif kind == "given":
            self._view(m)
            self._given(m)
        elif kind == "freeze":
            ranks = [int(rank) for rank in m["ranks"]]
            for rank in ranks:
                self.keeper.freeze(rank)
            self._send({"kind": "frozen", "ranks": ranks, "pages": self._pages([*ranks, *self.ranks])})
        elif kind == "ask":
            self._send({"kind": "answer", "pages": self._pages(self.ranks)})
        elif kind == "end":
            self.told_end = True
            self.end(int(m["code"]))
        elif kind == "refused":
            say(f"the coordinator refuses node {self.node}: {m['why']}")
            self._kill(2 if not self.started else 1)
        else:
            raise DroppedError(f"{kind!r} is no message of a coordinator")

    def _view(self, m: Message) -> None:
        if int(m["serial"]) <= self.serial:
            return
        for rank, told in m["pages"].items():
            self.keeper.tell(int(rank), bytes.fromhex(told))
        for rank in m["dead"]:
            self.dead.setdefault(int(rank), 1)
            if int(rank) in self.ranks:
                self._mark_ended(int(rank))
        self.keeper.publish(bytes.fromhex(m["slot"]))
        self.serial, self.slot, self.left = int(m["serial"]), str(m["slot"]), list(m["left"])
        self.newcomers = list(m["newcomers"])
        self.changing = m["phase"] not in ("run", "ended")
        self._tell_joined()

    def _carry(self) -> None:
        """Tell what the ranks have told since."""
        for rank in self.ranks:
            told = self.keeper.told(rank)
            if self.line is not None and told != self.told.get(rank):
                self.told[rank] = told
                self._send({"kind": "told", "pages": {str(rank): told.hex()}})

    # ---- new ranks

    def _respawn(self, rank: int) -> None:
        if self.spare > 0:
            self._want([self.places[rank]])

    def _want(self, places: list[int]) -> None:
        """New ranks, each for the CPUs of a place."""
        if self.deadline is not None or not places:
            return
        host = self.host()
        self.wanted += [(listen(host, self.most), place) for place in places]
        self._ask()

    def _ask(self) -> None:
        if self.wanted:
            self._send({"kind": "want", "addresses": [list(one.getsockname()[:2]) for one, _ in self.wanted]})

    def _given(self, m: Message) -> None:
        """Numbers for the oldest of the wanted, and where the others listen; no number is left for the rest."""
        for rank, address_ in m["ranks"]:
            found = next((one for one in self.wanted if list(one[0].getsockname()[:2]) == address_), None)
            if found is None:
                continue
            self.wanted.remove(found)
            self.ranks.append(rank)
            others = [m["addresses"].get(str(other)) for other in range(self.most)]
            with found[0]:
                try:
                    self._start_rank(rank, found[1], found[0].fileno(), addresses=others)
                except OSError as error:
                    say(f"rank {rank} cannot be started: {error.strerror}")
                    self._tell_died(rank, 1)
                    self.code = self.code or 2
        if m["none_left"]:
            if self.joining:
                say(f"{len(self.wanted)} of the new ranks cannot join; allowed: {self.spare} in all (--respawn)")
                self.code = self.code or 2
            elif not self.running:
                self.code = self.code or self.last_code
            for one, _ in self.wanted:
                one.close()
            self.wanted.clear()

    def _newcomer_ended(self, rank: int, code: int) -> None:
        self._mark_ended(rank)
        say(f"rank {rank} {how(code)}, before it had joined")
        self._tell_died(rank, code)
        self._replace(rank, code)
        if code >= 0 and not self.running and not self.joined & set(self.ranks):
            self.code = self.code or code

    def _end_newcomers(self) -> None:
        """The coordinator ends them, when all members of all nodes have ended."""

    # ---- ends

    def _kill(self, code: int) -> None:
        self.cut, self.lease_ends, self.absent = True, None, None
        self._close()
        self.code = self.code or code
        self.deadline = time.monotonic()
        self.send(signal.SIGKILL)

    def _lease_over(self) -> None:
        say(f"node {self.node}: the coordinator has not answered for {self.lease:g} s: the ranks here are killed")
        self._kill(1)

    def _grace_over(self, now: float) -> None:
        trains = bool(self.running or self.wanted)
        if trains:
            say(
                f"node {self.node}: no coordinator for {self.grace:g} s: the ranks save, if they do on signals, and end"
            )
        self.cut, self.lease_ends, self.absent = True, None, None
        self._close()
        if trains:
            self.end(1)
            self.deadline = now + max(_TO_SAVE, self.grace)

    def leave(self, number: int) -> None:
        """Ends this node. The others go on if its ranks train."""
        self.leaving = True
        if os.getppid() != self.parent:  # `gossipgrad run` was killed: a signal to save would end all nodes
            self.deadline = time.monotonic()
            self.send(signal.SIGKILL)
        super().end(128 + number)

    def end(self, code: int) -> None:
        """Ends all nodes."""
        if not self.told_end:
            self.told_end = True
            self._send({"kind": "end", "code": code})
        super().end(code)

    def _died(self, rank: int, code: int) -> None:
        """The others go on. What it has told last is in place, since it has been reaped."""
        say(f"rank {rank} {how(code)}")
        self._tell_died(rank, code)
        self._replace(rank, code)
        self.last_code = job_code(code)
        if not self.running and not self.wanted:
            self.code = self.code or self.last_code

    def _tell_died(self, rank: int, code: int) -> None:
        self.dead[rank] = code
        self._send({"kind": "died", "rank": rank, "code": job_code(code), "pages": self._pages(self.ranks)})

    def _ended(self, rank: int, code: int) -> None:
        if self.leaving and not self.cut and (self._is_unknown(rank) or self.keeper.trains(rank)):
            self._died(rank, code)
        elif self.leaving and not self.told_end and code != 0:  # outside of fit the others cannot go on
            self.end(self.code)
        else:
            if self.cut and code == SAVED:
                self.code = SAVED
            super()._ended(rank, code)
            if code == 0 and rank not in self.dead:
                self.finished.append(rank)
                self.next_beat = 0.0

    def part(self) -> None:
        if self.line is not None:
            self._send({"kind": "bye", **self._news()})
            until = time.monotonic() + _TO_SAY
            # The coordinator closes the connection when it has heard that; a close here could drop what is on its way.
            with contextlib.suppress(OSError, EOFError, DroppedError):
                while time.monotonic() < until:
                    self.line.receive()
                    self.line.flush()
                    signal.sigtimedwait({signal.SIGIO}, 0.01)
            self.line.close()
