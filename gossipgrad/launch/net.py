"""A rank's links to the others without MPI: the node's memory and sockets, from what net_launcher.py has left.

Ranks of one node share memory that they inherit. A rank listens for the later ranks of other nodes and connects to the
earlier ones. Each side proves that it knows the job's secret before a byte of it counts. Where new ranks may come from
other nodes, all go on to listen.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import hmac
import os
import queue
import secrets
import socket
import threading
import time
from typing import Any

from gossipgrad import _core
from gossipgrad.errors import CommunicationError
from gossipgrad.launch import origin, stall
from gossipgrad.launch.lines import say

_HELLO = b"gossipgrad-net 2"
_WELCOME = b"\1"  # the connection is taken
_NONCE, _PROOF = 32, hashlib.sha256().digest_size
_TO_PROVE = 10.0  # seconds that whoever connects has
_TO_COME = 300.0  # seconds that another new rank has, which may be reading its data
_STRANGERS = 64  # connections that have not proved themselves at a time
_LOOK = 1.0  # seconds between looks at views while a newcomer connects
_TRIES, _TO_RETRY = 10, 0.1  # of a newcomer whose connections end, and seconds between them

_connected = False


def connect(timeout: float = 0.0) -> None:
    """Make this process's links, once. timeout: seconds to wait for ranks of other nodes; 0: for ever."""
    global _connected
    if _connected:
        return
    facts = origin.net_facts()
    for fd in (facts["memory"], facts["listener"], facts["views"]):
        if fd >= 0:
            os.set_inheritable(fd, False)
    rank, nodes = facts["rank"], facts["nodes"]
    sockets = [-1] * facts["size"]
    try:
        if facts["listener"] >= 0:
            handshakes = _Handshakes(facts, timeout)
            with stall.watch("connecting the nodes"):
                connections = handshakes.run()
            for other, one in connections.items():
                sockets[other] = one.detach()
        shared = (facts["memory"], facts["ring_bytes"], facts["heap_bytes"], facts["views"])
        _core.net_start(rank, nodes, sockets, *shared, facts["members"])
        if facts["listener"] >= 0:
            handshakes.admit()
    finally:
        origin.let_go()
    _connected = True
    atexit.register(_core.net_stop)


class _Handshakes:
    """One connection to each rank of other nodes, both sides of which have proved themselves."""

    def __init__(self, facts: dict[str, Any], timeout: float) -> None:
        self.rank: int = facts["rank"]
        self.secret = bytes.fromhex(facts["secret"])
        size, members = facts["size"], facts.get("members", facts["size"])
        self.addresses = [None if one is None else tuple(one) for one in facts["addresses"]]
        nodes = facts["nodes"]
        others = [other for other in range(members) if nodes[other] != nodes[self.rank]]
        self.earlier = [other for other in others if other < self.rank]
        self.later = {other for other in others if other > self.rank}
        self.new = range(max(members, self.rank + 1), size)  # not awaited
        self.views: Any = None  # a newcomer's: some that it looks for may die
        if self.rank >= members:
            self.earlier = [other for other in range(self.rank) if self.addresses[other] is not None]
            self.later = set()
            self.views = _core.ViewPages(facts["views"], size)
        self.members = members
        self.lock = threading.Lock()
        self.early: list[tuple[int, socket.socket]] | None = []  # came before `admit`
        self.listener = socket.socket(fileno=facts["listener"])
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout if timeout > 0 else None
        self.came: queue.Queue[tuple[int, socket.socket]] = queue.Queue()

    def run(self) -> dict[int, socket.socket]:
        found: dict[int, socket.socket] = {}
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            for other in self.earlier:
                one = self._connect(other)
                if one is not None:
                    found[other] = one
            while missing := self.later - found.keys():
                try:
                    other, one = self.came.get(timeout=self._left())
                except queue.Empty:
                    raise self._late(min(missing)) from None
                if other in found:
                    one.close()
                else:
                    found[other] = one
        except BaseException:
            for one in found.values():
                one.close()
            raise
        finally:
            if not self.new:
                with contextlib.suppress(OSError):
                    self.listener.shutdown(socket.SHUT_RDWR)  # ends accept
                self.listener.close()
        for one in found.values():
            _settle(one)
        return found

    def admit(self) -> None:
        """From now on newcomers that connect are links of this process."""
        with self.lock:
            early, self.early = self.early, None
            for other, one in early or ():
                _core.net_arrived(other, one.detach())

    def _left(self) -> float | None:
        return None if self.deadline is None else max(0.001, self.deadline - time.monotonic())

    def _late(self, other: int) -> CommunicationError:
        return CommunicationError(
            f"rank {self.rank}: waited {self.timeout:g} s for rank {other}, which is on another node, to connect"
        )

    def proof(self, role: bytes, later: int, earlier: int, nonces: bytes) -> bytes:
        """What only those can make who know the secret; a proof of one role, pair or connection is none of another."""
        text = role + later.to_bytes(4, "little") + earlier.to_bytes(4, "little") + nonces
        return hmac.new(self.secret, text, hashlib.sha256).digest()

    def _gone(self, other: int, since: float) -> bool:
        """True if a newcomer need not wait for this rank any longer. CommunicationError: nobody knows of it."""
        if self.views is None or other in self.views.view()["ranks"]:
            return False
        if other >= self.members and time.monotonic() < since + _TO_COME:  # it may join yet
            return False
        if other >= self.members:
            raise CommunicationError(f"rank {self.rank}: rank {other}, which is new as well, cannot be reached")
        return True

    def _gives_up(self) -> bool:
        """True if an attempt that has failed is the last one: only newcomers try again."""
        return self.views is None or (self.deadline is not None and time.monotonic() > self.deadline)

    def _dial(self, other: int) -> socket.socket | None:
        """A connection to the rank's address; None: it has died."""
        begin, address = time.monotonic(), self.addresses[other]
        assert address is not None
        while True:
            try:
                left = self._left()
                patience = left if self.views is None else min(_LOOK, left or _LOOK)
                one = socket.create_connection(address, timeout=patience)
            except OSError as error:
                if self._gives_up():
                    raise
                refused = isinstance(error, (ConnectionRefusedError, ConnectionResetError))
                if other not in self.views.view()["ranks"] if refused else self._gone(other, begin):
                    return None
                time.sleep(0.1)  # refused: the view does not know its death yet, or it lives, and would wait for this
            else:
                return one

    def _hear(self, one: socket.socket, count: int, other: int) -> bytes:
        """EOFError: the rank has ended, or died."""
        begin, data = time.monotonic(), b""
        while len(data) < count:
            try:
                data += _receive(one, 1 if self.views is not None else count)
            except TimeoutError:
                if self._gives_up():
                    raise
                if self._gone(other, begin):
                    raise EOFError("it has died") from None
        return data

    def _connect(self, other: int) -> socket.socket | None:
        """To a rank that listens; it answers when it makes its own links. None: a newcomer goes on without it.

        A newcomer tries again: a view tells of the other's death, or the other lives, and would wait for this rank.
        """
        begin = time.monotonic()
        for left in reversed(range(_TRIES if self.views is not None else 1)):
            one: socket.socket | None = None
            try:
                one = self._dial(other)
                if one is None:
                    return None
                self._prove(one, other)
            except TimeoutError:
                raise self._late(other) from None
            except (OSError, EOFError) as error:
                if self._gone(other, begin):
                    return None
                if not left:
                    raise CommunicationError(
                        f"rank {self.rank} waits for rank {other}, which has ended before it had connected ({error})"
                    ) from error
                time.sleep(_TO_RETRY)
            else:
                made, one = one, None
                return made
            finally:
                if one is not None:
                    one.close()
        return None

    def _prove(self, one: socket.socket, other: int) -> None:
        """OSError or EOFError: the connection has ended. CommunicationError: the other does not know the secret."""
        own = secrets.token_bytes(_NONCE)
        one.sendall(_HELLO + self.rank.to_bytes(4, "little") + own)
        answer = self._hear(one, _NONCE + _PROOF, other)
        nonces = own + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], self.proof(b"listens", self.rank, other, nonces)):
            raise CommunicationError(
                f"rank {self.rank}: who listens at {self.addresses[other]} does not know this job's secret, so it "
                f"is not rank {other}"
            )
        one.sendall(self.proof(b"connects", self.rank, other, nonces))
        self._hear(one, len(_WELCOME), other)

    def _listen(self) -> None:
        strangers = threading.BoundedSemaphore(_STRANGERS)
        while True:
            strangers.acquire()
            try:
                one, address = self.listener.accept()
            except OSError as error:
                strangers.release()
                if error.errno in (errno.EBADF, errno.EINVAL):  # closed
                    return
                time.sleep(0.1)
                continue
            threading.Thread(target=self._answer, args=(one, address, strangers), daemon=True).start()

    def _answer(self, one: socket.socket, address: Any, strangers: threading.BoundedSemaphore) -> None:
        until = time.monotonic() + _TO_PROVE
        try:
            hello = _receive(one, len(_HELLO) + 4 + _NONCE, until)
            other = int.from_bytes(hello[len(_HELLO) : len(_HELLO) + 4], "little")
            if not hello.startswith(_HELLO) or (other not in self.later and other not in self.new):
                raise EOFError("it is no rank of this job")
            own = secrets.token_bytes(_NONCE)
            nonces = hello[-_NONCE:] + own
            one.sendall(own + self.proof(b"listens", other, self.rank, nonces))
            if not hmac.compare_digest(_receive(one, _PROOF, until), self.proof(b"connects", other, self.rank, nonces)):
                raise EOFError("it does not know this job's secret")
            if other in self.new:
                self._arrived(other, one)
            else:
                one.sendall(_WELCOME)
                self.came.put((other, one))
        except (OSError, EOFError) as error:
            one.close()
            say(f"rank {self.rank} dropped a connection from {address[0]}:{address[1]}: {error}")
        finally:
            strangers.release()

    def _arrived(self, other: int, one: socket.socket) -> None:
        """A newcomer. It is welcomed when this process has its socket: then it may join."""
        _settle(one)
        with one.dup() as word, self.lock:
            if self.early is None:
                _core.net_arrived(other, one.detach())
            else:
                self.early.append((other, one))
            word.sendall(_WELCOME)


def _settle(one: socket.socket) -> None:
    one.settimeout(None)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _receive(one: socket.socket, count: int, until: float | None = None) -> bytes:
    """until: TimeoutError after this moment; None: after the socket's own time, each time that nothing comes."""
    data = b""
    while len(data) < count:
        if until is not None:
            one.settimeout(max(0.001, until - time.monotonic()))
        more = one.recv(count - len(data))
        if not more:
            raise EOFError("it ended before it had proved itself")
        data += more
    return data
