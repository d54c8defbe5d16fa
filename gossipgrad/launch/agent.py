"""The agent of a node: starts and reaps its ranks, and stands for them before the coordinator (coordinator.py).

It carries what its ranks tell in their host's shared memory to the coordinator, and views back. It has a lease, which
each answered beat renews. When the lease ends it kills its ranks, because the coordinator may then declare them dead.

A coordinator that has ended cannot declare anybody dead: if its host refuses connections, ranks train on for `grace`
seconds. Then they are asked to save and end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import time
from typing import Any

from gossipgrad.launch.lines import MALFORMED, SECRET, DroppedError, Line, Message, address, job_secret, say
from gossipgrad.launch.net_launcher import SAVED, Job, _how

_BEATS = 5  # a lease
_TO_SAVE = 30.0  # seconds for ranks that save when there is no coordinator
_TO_SAY = 2.0  # seconds for the last words
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _EndError(OSError):
    """The job has ended before its ranks were started."""


class Agent(Job):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.coordinator = address("--coordinator", arguments.coordinator)
        self.key = job_secret()
        os.environ.pop(SECRET, None)  # no rank needs it
        self.node: int = arguments.node
        self.lease, self.grace = float(arguments.lease), float(arguments.grace)
        self.beat = self.lease / _BEATS
        self.token = secrets.token_hex(8)
        self.line: Line | None = None
        self.addresses: list[Any] = []
        self.begun: Message | None = None  # the coordinator's word to start
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

    def keep(self, least: int) -> Any:
        from gossipgrad import _core

        return _core.ViewPages(self.views, self.size)

    # ---- start

    def host(self) -> str:
        """The address by which this host reaches the coordinator."""
        while self.line is None:
            self._connect(time.monotonic())
            self._wait()
        return str(self.line.socket.getsockname()[0])

    def meet(self, addresses: list[Any]) -> tuple[list[Any], str]:
        self.addresses, self.ready = addresses, True
        if self.line is not None:
            self._greet(self.line)
        while self.begun is None:
            self.look()
            self._wait()
        return self.begun["addresses"], str(self.begun["secret"])

    def _wait(self) -> None:
        if self.deadline is not None:
            raise _EndError(self.code)
        found = signal.sigtimedwait({*_ENDING, signal.SIGIO}, min(self.beat, 0.2))
        if found is not None and found.si_signo in _ENDING:
            self.leave(int(found.si_signo))
            raise _EndError(self.code)

    def start(self, mask: set[int]) -> None:
        with contextlib.suppress(_EndError):
            super().start(mask)
            self.started = True

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
        fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | os.O_ASYNC)
        if self.ready:
            self._greet(self.line)

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
            "nodes": len(set(self.node_of)),
            "least": min(self.arguments.survive, self.size),
            "lease": self.lease,
            "token": self.token,
            "addresses": self.addresses,
            "started": self.started,
            "serial": self.serial,
            "slot": self.slot,
            "dead": sorted(self.dead),
            "left": self.left,
            "pages": self._pages(range(self.size)) if self.started else {},
        }
        line.send(message)
        self.beats.clear()
        self.next_beat = 0.0

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
        if self.line is None:
            self._connect(now)
        if self.line is not None:
            self._receive(self.line)
        if self.line is not None:
            if now >= self.next_beat and self.ready:
                self.number += 1
                self.beats[self.number] = now
                self._send({"kind": "beat", "number": self.number, "pages": self._pages(self.ranks)})
                self.next_beat = now + self.beat
            self.line.flush()
        if self.changing:
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
        self.changing = m["phase"] in ("stopping", "goal")

    def _carry(self) -> None:
        """Tell what the ranks have told since."""
        for rank in self.ranks:
            told = self.keeper.told(rank)
            if self.line is not None and told != self.told.get(rank):
                self.told[rank] = told
                self._send({"kind": "told", "pages": {str(rank): told.hex()}})

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
        say(f"node {self.node}: no coordinator for {self.grace:g} s: the ranks save, if they do on signals, and end")
        self.cut, self.lease_ends, self.absent = True, None, None
        self._close()
        self.end(1)
        self.deadline = now + max(_TO_SAVE, self.grace)

    def leave(self, number: int) -> None:
        """Ends this node. The others go on if its ranks train."""
        self.leaving = True
        super().end(128 + number)

    def end(self, code: int) -> None:
        """Ends all nodes."""
        if not self.told_end:
            self.told_end = True
            self._send({"kind": "end", "code": code})
        super().end(code)

    def _died(self, rank: int, code: int) -> None:
        """The others go on. What it has told last is in place, since it has been reaped."""
        self.dead[rank] = code
        say(f"rank {rank} {_how(code)}")
        code = code if code > 0 else 128 - code
        self._send({"kind": "died", "rank": rank, "code": code, "pages": self._pages(self.ranks)})
        if not self.running:
            self.code = self.code or code

    def _ended(self, rank: int, code: int) -> None:
        if self.leaving and not self.cut and self.keeper.trains(rank):
            self._died(rank, code)
        elif self.leaving and not self.told_end and code != 0:  # outside of fit the others cannot go on
            self.end(self.code)
        else:
            if self.cut and code == SAVED:
                self.code = SAVED
            super()._ended(rank, code)

    def wait(self, signals: set[int]) -> int:
        code = super().wait(signals)
        if self.line is not None:
            self._send({"kind": "bye", "pages": self._pages(self.ranks)})
            until = time.monotonic() + _TO_SAY
            with contextlib.suppress(OSError, EOFError, DroppedError):
                while (self.line.out or not self.line.proven) and time.monotonic() < until:
                    self.line.receive()
                    self.line.flush()
                    signal.sigtimedwait({signal.SIGIO}, 0.01)
            self.line.close()
        return code
