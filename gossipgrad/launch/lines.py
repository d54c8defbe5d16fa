"""Messages between a coordinator and its agents: lines of JSON over TCP.

Both sides prove first that they know the job's secret, by an HMAC over two fresh nonces. No message counts before. What
follows is neither encrypted nor signed. Each message has its `kind`:

agent        meaning
hello        the node of this number, and all that its agent knows of the job
join         a node that was not there from the start
beat         the lease is to be renewed; answered by the same number
told         what ranks here have told since, of their steps and votes; beat, died and others carry it as well
died         a rank here has died
want         addresses at which new ranks listen, which have no number yet
frozen       answers freeze
answer       answers ask
end          all ranks of all nodes end
bye          the ranks here have ended

coordinator  meaning
start        answers hello when all nodes have come: the addresses of all ranks, their secret, and the view
joined       answers join: the same, with the node's number and the facts of the job
refused      answers hello or join: why
view         another view, or a part of a change to it
given        answers want: numbers, the view, and where other ranks listen
freeze       a node is dead: hear no vote of its ranks any more, and tell those that are known
ask          do the ranks there train?
beat, end    as above
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import sys
from typing import Any

SECRET = "GOSSIPGRAD_SECRET"
SECRET_MIN = 16  # characters
PROTOCOL = "gossipgrad-agents 2"
_TO_PROVE = 1 << 12  # bytes of a line up to the proof
_LINE_MAX = 1 << 26

Message = dict[str, Any]


class DroppedError(Exception):
    """The other side does not follow the protocol; the text says why."""


class SecretError(DroppedError):
    """The two sides have different secrets."""


def job_secret() -> bytes:
    """The job's secret, from the environment. ValueError: there is none, or too short a one."""
    text = os.environ.get(SECRET, "")
    if len(text) < SECRET_MIN:
        raise ValueError(
            f"{SECRET} has {len(text)} characters; allowed: at least {SECRET_MIN}, one secret on all hosts of a job, "
            "such as: openssl rand -hex 32"
        )
    return text.encode()


def address(option: str, text: str) -> tuple[str, int]:
    """HOST:PORT. ValueError: it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{option} is {text!r}; allowed: HOST:PORT, such as node1:29400")
    return host.strip("[]"), int(port)


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"gossipgrad: {text}", file=sys.stderr, flush=True)


# Errors of reading a message that is not of the expected form.
MALFORMED = (DroppedError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


class Line:
    """A connection. receive() and send() never wait."""

    def __init__(self, one: socket.socket, key: bytes, listens: bool) -> None:
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.key, self.listens = one, key, listens
        self.proven = False  # the other side is of this job
        self.nonce, self.other = secrets.token_hex(32), ""
        self.came, self.read = b"", 0
        self.queue: list[bytes] = []  # until the other side is proven
        self.out = b""
        self.broken: OSError | None = None  # a broken connection reads as a closed one afterwards
        self._put({"protocol": PROTOCOL, "nonce": self.nonce})

    def _proof(self, listens: bool) -> str:
        """Of one role and connection; it is none of another."""
        nonces = (self.nonce, self.other) if self.listens else (self.other, self.nonce)
        role = "listens" if listens else "connects"
        return hmac.new(self.key, " ".join((PROTOCOL, role, *nonces)).encode(), hashlib.sha256).hexdigest()

    def _put(self, message: Message) -> None:
        self.out += json.dumps(message).encode() + b"\n"
        self.flush()

    def send(self, message: Message) -> None:
        if self.proven:
            self._put(message)
        else:
            self.queue.append(json.dumps(message).encode() + b"\n")

    def flush(self) -> None:
        """Write what can be written now; `out` is what is left. An end is met by receive()."""
        with contextlib.suppress(OSError):
            while self.out:
                self.out = self.out[self.socket.send(self.out) :]

    def receive(self) -> list[Message]:
        """The messages that have come. EOFError: the other side has closed; OSError: the connection has broken."""
        found: list[Message] = []
        ended = False
        while True:
            try:
                more = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                self.broken = self.broken or error
                break
            ended = not more
            if ended:
                break
            self.came += more
            *whole, self.came = self.came.split(b"\n")
            for text in whole:
                self._check(text)
                message = _parsed(text)
                if self.proven:
                    found.append(message)
                else:
                    self._prove(message)
            self._check(self.came)
        if self.broken is not None and not found:
            raise self.broken
        if ended and not found:
            raise EOFError("it has closed the connection")
        return found

    def _check(self, text: bytes) -> None:
        """The lines behind the proof may be long, and come together with it."""
        if len(text) > (_LINE_MAX if self.proven else _TO_PROVE):
            raise DroppedError("its line is too long")

    def _prove(self, message: Message) -> None:
        if not self.other:
            nonce = message.get("nonce")
            if message.get("protocol") != PROTOCOL or not isinstance(nonce, str) or len(nonce) != 64:
                raise DroppedError(f"it does not speak {PROTOCOL!r}")
            self.other = nonce
            self._put({"proof": self._proof(self.listens)})
            return
        proof = message.get("proof")
        wanted = self._proof(not self.listens)
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), wanted.encode()):
            raise SecretError("it does not know this job's secret")
        self.proven = True
        self.out += b"".join(self.queue)
        self.queue = []
        self.flush()

    def close(self) -> None:
        self.socket.close()


def _parsed(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise DroppedError("its line is no JSON") from None
    if not isinstance(message, dict):
        raise DroppedError("its line is no JSON object")
    return message
