"""The coordinator of ranks on several hosts: it decides who trains, and declares nodes dead.

    gossipgrad coordinator HOST:PORT

One agent a node (launch/agent.py) connects to it. Agents tell of deaths and carry what ranks tell; the coordinator
feeds one membership (_core.ViewKeeper) and sends each view to all agents. It keeps nothing on disk: one that is started
again takes all from the agents.

New ranks have numbers behind the first ones, which it gives to agents: for ranks that have died, and for nodes that
join (gossipgrad join), whose numbers follow the first nodes'.

A node is dead when its agent has been silent for lease + margin seconds, or `margin` after it has closed its
connection. By then its agent has killed its ranks, or was killed with them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import ipaddress
import os
import selectors
import signal
import socket
import time
from types import FrameType
from typing import Any, NamedTuple

from gossipgrad.launch.lines import MALFORMED, DroppedError, Line, Message, address, job_secret, say
from gossipgrad.launch.net_launcher import listen, nodes_of

MARGIN = 0.5  # of a lease
_TO_PROVE = 10.0  # seconds


class Facts(NamedTuple):
    """What all nodes of a job have alike."""

    ranks: int
    nodes: int
    least: int
    new: int  # ranks that may be started later
    lease: float

    def hosts(self) -> bool:
        return self.nodes > 1 or self.new > 0


class Node:
    def __init__(self, number: int, ranks: list[int], now: float) -> None:
        self.number, self.ranks = number, ranks
        self.first = len(ranks)  # new ones follow
        self.state = "absent"  # then "here", "left", "dead"
        self.line: Line | None = None
        self.token = ""
        self.addresses: list[list[Any]] = []
        self.last = now  # when its agent was last heard
        self.closed: float | None = None  # when it closed its connection

    def deadline(self, lease: float) -> float:
        silent = self.last + lease * (1 + MARGIN)
        return silent if self.closed is None else min(silent, self.closed + lease * MARGIN)

    def __str__(self) -> str:
        if not self.ranks:
            return f"node {self.number}"
        first, last = self.ranks[0], self.ranks[-1]
        if last - first + 1 > len(self.ranks):
            return f"node {self.number} (ranks {', '.join(map(str, self.ranks))})"
        return f"node {self.number} ({f'rank {first}' if first == last else f'ranks {first} to {last}'})"


class Coordinator:
    def __init__(self, listener: socket.socket, key: bytes, wait: float | None = None) -> None:
        """wait: max seconds until all nodes have come; None: no limit."""
        from gossipgrad import _core

        self.core: Any = _core
        self.key, self.listener = key, listener
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        listener.setblocking(False)
        self.strangers: dict[Line, tuple[str, float]] = {}  # not yet of the job: who, since when
        self.facts: Facts | None = None
        self.nodes: list[Node] = []
        self.gathering, self.started = True, False
        self.newest: tuple[int, str] = (0, "")  # serial and what was published: of a coordinator before this one
        self.serial, self.slot = 0, b""
        self.dead: set[int] = set()  # ranks
        self.finished: set[int] = set()  # ranks that have ended without a death
        self.newcomers: list[list[Any]] = []  # new ranks in the order of their numbers: number, node, address
        self.joined: set[int] = set()
        self.freezing: list[tuple[Node, set[int]]] = []  # dead nodes, and the nodes that must still answer
        self.undecided: list[tuple[list[int], int]] = []  # dead ranks and exit codes: does another rank train?
        self.asked_nodes: set[int] = set()  # nodes that must still say whether their ranks train
        self.phase = "run"
        self.code, self.ending = 0, False
        self.looked = time.monotonic()
        self.wait, self.wait_ends = wait, None if wait is None else self.looked + wait
        self.asked = 0  # a signal that ends all ranks

    # ---- connections

    def run(self) -> int:
        while not self._over():
            for key, mask in self.selector.select(0.2 if self.facts is None else min(0.2, self.facts.lease / 20)):
                if key.fileobj is self.listener:
                    self._accept()
                    continue
                line: Line = key.data
                if line.socket.fileno() < 0:  # dropped meanwhile
                    continue
                if mask & selectors.EVENT_READ:
                    self._read(line)
                if line.socket.fileno() >= 0:
                    line.flush()
                    self._watch(line)
            self._look(time.monotonic())
            if self.asked and not self.ending:
                say(f"the coordinator ends all ranks: {signal.Signals(self.asked).name}")
                self.end(128 + self.asked)
        for line in [node.line for node in self.nodes if node.line is not None]:
            line.close()
        return self.code

    def _over(self) -> bool:
        if self.facts is None:
            return self.ending
        return all(node.state in ("left", "dead") or (self.ending and node.line is None) for node in self.nodes)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            one, who = self.listener.accept()
            line = Line(one, self.key, True)
            self.strangers[line] = (f"{who[0]}:{who[1]}", time.monotonic())
            self.selector.register(one, selectors.EVENT_READ, line)

    def _watch(self, line: Line) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.out else 0)
        if self.selector.get_key(line.socket).events != events:
            self.selector.modify(line.socket, events, line)

    def _send(self, line: Line, message: Message) -> None:
        line.send(message)
        self._watch(line)

    def _send_all(self, message: Message) -> None:
        for node in self.nodes:
            if node.line is not None:
                self._send(node.line, message)

    def _drop(self, line: Line, orderly: bool = False) -> None:
        self.strangers.pop(line, None)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(line.socket)
        line.close()
        for node in self.nodes:
            if node.line is line:
                node.line = None
                node.closed = time.monotonic() if orderly else None
                self._answers(node.number)
                if self.gathering and not self.started:  # its ranks have not begun: another agent may come
                    node.state, node.token = "absent", ""

    def _read(self, line: Line) -> None:
        node = next((one for one in self.nodes if one.line is line), None)
        who = self.strangers[line][0] if node is None else str(node)
        try:
            for message in line.receive():
                if node is None:
                    node = self._join(line, message) if message.get("kind") == "join" else self._hello(line, message)
                    if node is None:  # refused: its next words do not count
                        return
                else:
                    node.last = time.monotonic()
                    self._hear(node, message)
        except EOFError:
            self._drop(line, orderly=True)
        except OSError:
            self._drop(line)
        except MALFORMED as error:
            said = str(error) if isinstance(error, DroppedError) else f"its message is malformed ({error!r})"
            say(f"the coordinator dropped a connection from {who}: {said}")
            self._drop(line)

    def _look(self, now: float) -> None:
        stopped = self.facts is not None and now - self.looked > self.facts.lease / 4
        if stopped:  # it has heard nobody
            for node in self.nodes:
                node.last += now - self.looked
        self.looked = now
        if self.gathering and not self.started and all(node.state == "absent" for node in self.nodes):
            self.facts, self.nodes = None, []
        if self.gathering and not self.started and self.wait_ends is not None and now > self.wait_ends:
            self._missed()
        for line in [one for one, (_, since) in self.strangers.items() if now > since + _TO_PROVE]:
            say(f"the coordinator dropped a connection from {self.strangers[line][0]}: it has said nothing")
            self._drop(line)
        for node in self.nodes:
            due = node.state == "here" or (node.state == "absent" and self.started)
            if self.facts is not None and due and now > node.deadline(self.facts.lease):
                self._lost(node, now)
        self._end_newcomers()

    # ---- agents come and go

    def _hello(self, line: Line, m: Message) -> Node | None:
        facts = Facts(int(m["size"]), int(m["nodes"]), int(m["least"]), int(m["respawn"]), float(m["lease"]))
        names = "ranks, nodes, least ranks, new ranks and lease"
        if self.facts is None:
            if not (
                0 < facts.least <= facts.ranks < 1 << 20
                and 0 < facts.nodes <= facts.ranks
                and 0 <= facts.new < 1 << 20
                and 0 < facts.lease < 1e6
            ):
                raise DroppedError(f"{names} are {tuple(facts)}")
            self._begin(facts)
        number = int(m["node"])
        why = ""
        if facts == self.facts and self.gathering and m["started"]:
            self._learn(m["newcomers"], number)
        if facts != self.facts:
            why = f"{names} are {tuple(facts)} there, but {tuple(self.facts or ())} in this job"
        elif not 0 <= number < len(self.nodes):
            why = f"node {number}; allowed: 0 to {facts.nodes - 1}"
        elif self.nodes[number].state in ("left", "dead"):
            dead = "been declared dead; allowed: gossipgrad join, with --respawn"
            why = f"node {number} has {'ended' if self.nodes[number].state == 'left' else dead}"
        elif self.nodes[number].token not in ("", m["token"]):
            why = f"node {number} is another process"
        elif self.ending and not m["started"]:
            why = "the job has ended"
        if why:
            self._refuse(line, why)
            return None
        node = self.nodes[number]
        if len(m["addresses"]) != (node.first if facts.hosts() else 0):
            raise DroppedError(f"{len(m['addresses'])} addresses of {node.first} ranks")
        self._comes(node, line, str(m["token"]))
        node.addresses = list(m["addresses"])
        self.started = self.started or bool(m["started"])
        if self.gathering and int(m["serial"]) > self.newest[0]:
            self.newest = (int(m["serial"]), str(m["slot"]))
        self._tell(m["pages"])
        if self.ending:
            self._send(line, {"kind": "end", "code": self.code})
            return node
        if self.gathering:
            self.dead |= {int(rank) for rank in m["dead"]}
            for left in m["left"]:
                self._node(int(left)).state = "left"
            self._gathered()
            return node
        for rank in m["dead"]:
            self._died([int(rank)])
        self._send(line, self._start())
        for lost, waiting in self.freezing:
            if number in waiting:
                self._send(line, {"kind": "freeze", "ranks": lost.ranks})
        return node

    def _refuse(self, line: Line, why: str, later: bool = False) -> None:
        """later: a node that joins may ask again."""
        self.strangers.pop(line, None)
        self.selector.unregister(line.socket)
        line.send({"kind": "refused", "why": why, "later": later})
        line.close()

    def _comes(self, node: Node, line: Line, token: str) -> None:
        """An agent's connection, in the place of its former one."""
        if node.line is not None:
            self._drop(node.line)
        self.strangers.pop(line, None)
        node.line, node.token, node.state = line, token, "here"
        node.last, node.closed = time.monotonic(), None

    def _begin(self, facts: Facts) -> None:
        self.facts = facts
        size, nodes, least, new, _ = facts
        self.memory: int = os.memfd_create("gossipgrad-views")
        self.keeper: Any = self.core.ViewKeeper(self.memory, size, size + new, least)
        self.pages: Any = self.core.ViewPages(self.memory, size + new)
        first_of = nodes_of(size, nodes)
        ranks = [[rank for rank in range(size) if first_of[rank] == first] for first in sorted(set(first_of))]
        self.nodes = [Node(number, own, time.monotonic()) for number, own in enumerate(ranks)]

    def _gathered(self) -> None:
        """Begin, or go on, when nobody is missing any more but nodes whose ranks have all died."""
        if not self.gathering or any(node.state == "absent" and set(node.ranks) - self.dead for node in self.nodes):
            return
        self.gathering = False
        self.serial = self.newest[0]
        if self.newest[1]:
            self.keeper.restore(bytes.fromhex(self.newest[1]))
            self.joined = set(self.keeper.view()["ranks"])  # the other one has said so
            say("the coordinator goes on where another was")
        for rank in sorted(self.dead):
            self.keeper.died(rank)
        if self.keeper.poll() == "ended":
            self.end(1)
        self._publish(always=True)
        for node in self.nodes:
            if node.state == "dead" and set(node.ranks) - self.dead:
                self._freeze(node)

    def _missed(self) -> None:
        """Some nodes have not come in time: all end."""
        missing = [str(node.number) for node in self.nodes if node.state == "absent"]
        who = f"node {missing[0]} has not" if len(missing) == 1 else f"nodes {', '.join(missing)} have not"
        say(f"{who if self.nodes else 'no node has'} come within {self.wait:g} s (--wait): all end")
        self.wait_ends = None
        self.end(1)

    def _start(self) -> Message:
        addresses = [one for node in self.nodes for one in node.addresses]
        # An agent that has started its ranks takes only the view of this.
        secret = hmac.new(self.key, b"gossipgrad ranks", hashlib.sha256).hexdigest()
        return {**self._view(), "kind": "start", "addresses": addresses, "secret": secret}

    # ---- new ranks

    def _node(self, number: int) -> Node:
        """A node, which may have joined."""
        assert self.facts is not None
        if not 0 <= number < self.facts.nodes + self.facts.new:
            raise DroppedError(f"node {number}; allowed: 0 to {self.facts.nodes + self.facts.new - 1}")
        while len(self.nodes) <= number:
            self.nodes.append(Node(len(self.nodes), [], time.monotonic()))
        return self.nodes[number]

    def _learn(self, newcomers: list[list[Any]], number: int) -> None:
        """What an agent knows of new ranks and of its own node, which may have joined."""
        assert self.facts is not None
        self._node(number)
        for rank, node, address_ in newcomers[len(self.newcomers) :]:
            if rank != self.facts.ranks + len(self.newcomers) or len(self.newcomers) >= self.facts.new:
                raise DroppedError(f"new rank {rank}; allowed: {self.facts.new} in the order of their numbers")
            self.newcomers.append([rank, node, address_])
            self._node(int(node)).ranks.append(rank)

    def _join(self, line: Line, m: Message) -> Node | None:
        """A node that was not there from the start."""
        token, facts = str(m["token"]), self.facts
        why = ""
        later = (facts is None or self.gathering) and not self.ending
        if later or self.ending:
            why = "no job trains here; allowed: after all of its nodes have started"
        elif facts is not None and (len(self.newcomers) >= facts.new or len(self.nodes) >= facts.nodes + facts.new):
            why = f"the job takes no more new ranks; allowed: {facts.new} in all (--respawn)"
        if facts is None or why:
            self._refuse(line, why, later)
            return None
        node = self._node(len(self.nodes))
        self._comes(node, line, token)
        say(f"{node} joins")
        self._send(line, {**self._start(), "kind": "joined", "node": node.number, "facts": list(facts)})
        return node

    def _give(self, node: Node, addresses: list[Any]) -> None:
        """Give numbers to new ranks of a node that listen at these addresses; the same ones if it asks again."""
        assert self.facts is not None
        if self.gathering or self.ending:  # it asks again after the start
            return
        given = []
        for one in addresses:
            before = [rank for rank, number, other in self.newcomers if (number, other) == (node.number, one)]
            known = before[0] if before else None
            if known is None and len(self.newcomers) < self.facts.new:
                known = self.facts.ranks + len(self.newcomers)
                self.newcomers.append([known, node.number, [str(one[0]), int(one[1])]])
                node.ranks.append(known)
            if known is not None:
                given.append([known, one])
        self._publish(always=True)  # all know of it before it connects to them
        if node.line is not None:
            none_left = len(given) < len(addresses)
            message = {**self._view(), "kind": "given", "ranks": given, "none_left": none_left}
            self._send(node.line, {**message, "addresses": self._listening(node)})

    def _listening(self, node: Node) -> dict[str, Any]:
        """Where living ranks of other nodes listen."""
        found: dict[str, Any] = {}
        for other in self.nodes:
            found |= {str(rank): one for rank, one in zip(other.ranks, other.addresses, strict=False)}
        found |= {str(rank): one for rank, _, one in self.newcomers}
        gone = self.dead | self._ended() | set(node.ranks)
        return {rank: one for rank, one in found.items() if int(rank) not in gone}

    def _ended(self) -> set[int]:
        """Ranks that have ended without a death."""
        return self.finished | {rank for node in self.nodes if node.state == "left" for rank in node.ranks}

    def _end_newcomers(self) -> None:
        """When all members have ended, nobody is left whom a newcomer could join."""
        if self.newcomers and not self.gathering and not self.ending:
            if set(self.keeper.view()["ranks"]) <= self.dead | self._ended():
                self.end(0)

    def _lost(self, node: Node, now: float) -> None:
        silent = now - node.last
        known = node.state == "absent" and set(node.ranks) <= self.dead  # to a coordinator before this one
        node.state = "dead"
        if node.line is not None:
            self._drop(node.line)
        if not known:
            say(f"{node} is dead: " + ("its agent has ended" if node.closed else f"nothing heard for {silent:.1f} s"))
        self._answered(node.number)
        if self.gathering:
            self._gathered()
        elif not known:
            self._freeze(node)

    def _freeze(self, node: Node) -> None:
        """Declare the ranks of a dead node dead, when the others have told all that they know of their votes."""
        if self.ending:
            return
        others = {one.number for one in self.nodes if one.state == "here"}
        self.freezing.append((node, others))
        self._send_all({"kind": "freeze", "ranks": node.ranks})
        self._frozen()

    def _answered(self, number: int, ranks: list[int] | None = None) -> None:
        """This node has told all that it knows of a dead one's votes, or never will."""
        for lost, waiting in self.freezing:
            if ranks is None or lost.ranks == ranks:
                waiting.discard(number)
        self._frozen()

    def _frozen(self) -> None:
        for lost, waiting in list(self.freezing):
            if not waiting:
                self.freezing.remove((lost, waiting))
                for rank in lost.ranks:
                    self.pages.freeze(rank)
                self._died(lost.ranks)

    # ---- what agents tell

    def _hear(self, node: Node, m: Message) -> None:
        kind = m["kind"]
        self._tell(m.get("pages", {}))
        self.finished |= {int(rank) for rank in m.get("finished", ())}
        if kind == "beat":
            if node.line is not None:
                self._send(node.line, {"kind": "beat", "number": m["number"]})
        elif kind == "died":
            self._died([int(m["rank"])], int(m["code"]))
        elif kind == "frozen":
            self._answered(node.number, list(m["ranks"]))
        elif kind == "end":
            self.end(int(m["code"]))
        elif kind == "bye":
            if node.line is not None:
                self._drop(node.line)
            if self.gathering and not self.started:
                return
            node.state = "left"
            self._answered(node.number)
            self._gathered()
            self._publish(always=True)
        elif kind == "want":
            self._give(node, list(m["addresses"]))
        elif kind == "answer":
            self._answers(node.number)
        elif kind != "told":
            raise DroppedError(f"{kind!r} is no message of an agent")
        if not self.gathering:
            self._publish()

    def _tell(self, pages: dict[str, str]) -> None:
        for rank, told in pages.items():
            self.pages.tell(int(rank), bytes.fromhex(told))

    def _died(self, ranks: list[int], code: int = 1) -> None:
        new = [rank for rank in ranks if rank not in self.dead]
        if not new or self.ending:
            return
        self.dead |= set(new)
        if self.gathering:
            return
        members = self.keeper.view()["ranks"]
        for rank in new:
            self.keeper.died(rank)
        new = [rank for rank in new if rank in members]
        if not new:  # they had not joined
            self._publish(always=True)
            return
        if self.keeper.poll() == "ended" or self._others_train():
            self._go_on(new, code)
            return
        # They may have begun to train since their agents' last beats.
        self.undecided.append((new, code))
        self.asked_nodes = {node.number for node in self.nodes if node.line is not None}
        self._send_all({"kind": "ask"})
        self._answers(None)

    def _answers(self, number: int | None) -> None:
        """A node has told whether its ranks train, or never will."""
        self.asked_nodes -= {number}
        if not self.asked_nodes:
            undecided, self.undecided = self.undecided, []
            for new, code in undecided:
                self._go_on(new, code)

    def _go_on(self, new: list[int], code: int) -> None:
        ends = self.keeper.poll() == "ended" or not self._others_train()
        left = len(set(self.keeper.view()["ranks"]) - self.dead)
        goes = "all end" if ends else f"{left} rank{'s go' if left > 1 else ' goes'} on"
        say(f"{'rank' if len(new) == 1 else 'ranks'} {' and '.join(map(str, new))} died: {goes}")
        if ends:
            self.end(code)
        self._publish(always=True)

    def _others_train(self) -> bool:
        """True if living ranks are in fit, where they go on without the dead; outside of it all end."""
        return any(self.keeper.trains(rank) for rank in self.keeper.view()["ranks"] if rank not in self.dead)

    def _view(self) -> Message:
        dead = sorted(self.dead)
        return {
            "kind": "view",
            "serial": self.serial,
            "slot": self.slot.hex(),
            "phase": self.phase,
            "dead": dead,
            "left": [node.number for node in self.nodes if node.state == "left"],
            "newcomers": self.newcomers,
            "pages": {str(rank): self.pages.told(rank).hex() for rank in dead},
        }

    def _publish(self, always: bool = False) -> None:
        if self.gathering:
            return
        self.phase = self.keeper.poll()
        if self.phase == "run" and not self.keeper.rests():  # newcomers may have waited for this view
            self.phase = self.keeper.poll()
        if self.phase == "run" and not self.keeper.rests():
            self.phase = "copying"
        self._tell_joined()
        slot = self.pages.published()
        if slot == self.slot and not always:
            return
        first, self.slot = not self.slot, slot
        self.serial += 1
        self._send_all(self._start() if first else self._view())

    def _tell_joined(self) -> None:
        view = self.keeper.view()
        new = {rank for rank in view["ranks"] if self.facts and rank >= self.facts.ranks} - self.joined
        self.joined |= new
        for rank in sorted(new):
            say(f"rank {rank} (new) joins in step {view['step']}; {len(view['ranks'])} ranks go on")

    def end(self, code: int) -> None:
        """All ranks end."""
        self.code = self.code or code
        if not self.ending:
            self.ending = True
            self._send_all({"kind": "end", "code": code})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="HOST:PORT", help="where it listens; agents are given the same words")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="max until all nodes have come; default: none")


def _unreachable(host: str, at: str) -> str:
    """A line about a host name whose address here is known to this host alone; "": it is none."""
    if host in (at, "localhost") or not ipaddress.ip_address(at).is_loopback:
        return ""
    return f"warning: {host} is {at} here, which other hosts cannot reach; for these: an address of hostname -I"


def serve(arguments: argparse.Namespace) -> int:
    """The command `gossipgrad coordinator`."""
    try:
        if arguments.wait is not None and not arguments.wait > 0:
            raise ValueError(f"--wait is {arguments.wait:g}; allowed: more than 0 seconds")
        host, port = address("coordinator", arguments.address)
        key = job_secret()
        listener = listen(host, 64, port)
        if line := _unreachable(host, listener.getsockname()[0]):
            say(line)
    except (OSError, ValueError) as error:
        say(f"error: {error}")
        return 2
    one = Coordinator(listener, key, arguments.wait)

    def end(number: int, _: FrameType | None) -> None:
        one.asked = number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with listener:
        return one.run()
