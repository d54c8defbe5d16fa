"""Ranks of several hosts, played by agents on the loopback interface: nodes die, are cut off, have no coordinator."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from test_net import is_alive, wait_for
from test_survival_net import SCRIPT, check
from test_view_keeper import host, tell, words

from gossipgrad.launch import coordinator, lines, net_launcher, start
from gossipgrad.launch.agent import Agent

KEY = "0123456789abcdef0123"
SLOW = {"delay": 0.02, "epochs": 3, "deaths": []}  # seconds of training


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Relay:
    """Passes bytes between an agent and the coordinator until it is cut; then connections stay open, and silent."""

    def __init__(self, port):
        self.target, self.cut = port, threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.sockets = [self.server]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.server.accept()
                try:
                    other = socket.create_connection(("127.0.0.1", self.target))
                except ConnectionRefusedError:
                    one.close()
                    continue
                self.sockets += [one, other]
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not self.cut.is_set():
                target.sendall(data)

    def close(self):
        for one in self.sockets:
            one.close()


class Job:
    def __init__(self, folder, case, script=SCRIPT):
        self.folder, self.port = folder, free_port()
        (folder / "script.py").write_text(script)
        self.env = {**os.environ, "CASE": json.dumps(case), "OMP_NUM_THREADS": "1", lines.SECRET: KEY}
        self.processes = {}
        self.relays = []

    def start(self, name, command, **env):
        out, err = open(self.folder / f"{name}.out", "w"), open(self.folder / f"{name}.err", "w")  # noqa: SIM115
        with out, err:
            one = subprocess.Popen(command, stdout=out, stderr=err, env={**self.env, **env})
        self.processes[name] = one
        return one

    def coordinate(self, name="coordinator"):
        return self.start(name, [sys.executable, "-m", "gossipgrad", "coordinator", f"127.0.0.1:{self.port}"])

    def launch(self, name, ranks, *options, port=None):
        """Starts an agent, with the script for its ranks."""
        folder = self.folder / f"job-{name}"
        folder.mkdir()
        words = ["-n", ranks, "--coordinator", f"127.0.0.1:{port or self.port}", *options, folder]
        command = [sys.executable, "-I", net_launcher.__file__, *words, sys.executable, self.folder / "script.py"]
        return self.start(name, [str(word) for word in command])

    def agent(self, node, lease=6, grace=60, least=1, port=None, respawn=0):
        """Starts one of two nodes, which have 4 ranks together."""
        options = ["--nodes", 2, "--node", node, "--survive", least, "--respawn", respawn]
        return self.launch(f"agent{node}", 4, *options, "--lease", lease, "--grace", grace, port=port)

    def join(self, ranks=1, name="agent9", grace=60):
        return self.launch(name, ranks, "--join", "--survive", 1, "--grace", grace)

    def relay(self):
        self.relays.append(Relay(self.port))
        return self.relays[-1]

    def said(self, name):
        return (self.folder / f"{name}.err").read_text()

    def errors(self):
        return {path.name: path.read_text() for path in self.folder.glob("*.err")}

    def live(self, *ranks):
        """True if a process of these ranks, which have begun to train, still lives."""
        return any(is_alive((self.folder / f"began{rank}.pid").read_text()) for rank in ranks)

    def trains(self):
        """All ranks are in fit: their first epoch has begun."""
        return all((self.folder / f"began{rank}").exists() for rank in range(4))

    def lines(self):
        """What ranks have printed as JSON."""
        text = "".join(path.read_text() for path in sorted(self.folder.glob("agent*.out")))
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def result(self):
        """What rank 0 has printed at its end."""
        ends = [line for line in self.lines() if "size" in line]
        assert len(ends) == 1, self.errors()
        return ends[0]

    def end(self):
        for one in self.relays:
            one.close()
        for one in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                one.send_signal(signal.SIGCONT)
                one.kill()
            one.wait()


@pytest.fixture
def job(tmp_path):
    made = []

    def make(**case):
        made.append(Job(tmp_path, {**SLOW, "began": str(tmp_path / "began"), **case}))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_rank_dies_and_all_hosts_go_on(job):
    one = job(deaths=[{"rank": 3, "at": "step 9"}], epochs=2, delay=0.001)
    coordinator_ = one.coordinate()
    agents = [one.agent(node) for node in (0, 1)]
    assert [process.wait(60) for process in (*agents, coordinator_)] == [0, 0, 0], one.said("agent0")
    check(one.result(), 4, [3])
    assert "rank 3 was ended by signal 9 (SIGKILL)" in one.said("agent1")
    assert "rank 3 died: 3 ranks go on" in one.said("coordinator")


@pytest.mark.core(1)
@pytest.mark.parametrize("step", [10, 60])  # before the first copy of the ledgers, mostly, and after one
def test_a_killed_agent_takes_its_ranks_along_and_the_record_has_their_samples(step, job):
    """Rank 2 kills its agent, and would then sleep."""
    one = job(deaths=[{"rank": 2, "at": f"step {step}", "how": "host"}], epochs=1, delay=0.05)
    coordinator_ = one.coordinate()
    agents = [one.agent(node) for node in (0, 1)]
    assert agents[1].wait(60) == -signal.SIGKILL, one.said("agent1")
    wait_for(lambda: not one.live(2, 3))
    assert "is dead" not in one.said("coordinator")  # nor have the others told them to end
    assert agents[0].wait(60) == 0 and coordinator_.wait(60) == 0, one.said("agent0")
    assert "node 1 (ranks 2 to 3) is dead" in one.said("coordinator")
    found = one.result()
    check(found, 4, [2, 3], epochs=1)
    assert found["loss"] == pytest.approx(1.0, abs=0.05)  # that of a sample which is trained on for the first time


def test_a_node_that_is_told_to_end_leaves_the_others_alone(job):
    """The coordinator asks whether the others train: no agent has told so since it began, with beats this far apart."""
    one = job(epochs=2)
    coordinator_ = one.coordinate()
    agents = [one.agent(node, lease=60) for node in (0, 1)]
    wait_for(one.trains)
    agents[1].terminate()
    assert agents[1].wait(60) == 143 and agents[0].wait(60) == 0 and coordinator_.wait(60) == 0
    check(one.result(), 4, [2, 3])


def test_a_cut_node_has_killed_its_ranks_before_the_others_go_on(job):
    one = job(epochs=8, stops=True)  # with the epoch of the change
    coordinator_ = one.coordinate()
    relay = one.relay()
    agents = [one.agent(0, lease=2), one.agent(1, lease=2, port=relay.port)]
    wait_for(one.trains)
    begin = time.monotonic()
    relay.cut.set()
    wait_for(lambda: not one.live(2, 3))
    killed = time.monotonic()
    assert "is dead" not in one.said("coordinator")
    wait_for(lambda: "is dead" in one.said("coordinator"))
    print(f"ranks killed after {killed - begin:.2f} s, declared after {time.monotonic() - begin:.2f} s")
    assert agents[1].wait(60) == 1 and agents[0].wait(60) == 0 and coordinator_.wait(60) == 0
    found = one.result()
    check(found, 4, [2, 3], epochs=found["epochs"])
    assert "node 1: the coordinator has not answered for 2 s: the ranks here are killed" in one.said("agent1")
    assert re.search(r"node 1 \(ranks 2 to 3\) is dead: nothing heard for \d", one.said("coordinator"))


def test_the_coordinator_dies_and_comes_back(job):
    """Meanwhile all train, and a rank dies; the next coordinator takes all from the agents."""
    one = job(deaths=[{"rank": 1, "at": "epoch_end 1"}], epochs=2)
    first = one.coordinate()
    agents = [one.agent(node) for node in (0, 1)]
    wait_for(one.trains)
    first.kill()
    first.wait()
    wait_for(lambda: "rank 1 was ended" in one.said("agent0"))
    second = one.coordinate("second")
    assert [process.wait(60) for process in (*agents, second)] == [0, 0, 0], one.said("agent0")
    check(one.result(), 4, [1])
    assert "the coordinator goes on where another was" in one.said("second")
    assert "the coordinator has ended; the ranks train on for 60 s" in one.said("agent0")


def test_without_a_coordinator_all_train_to_the_end(job):
    one = job(epochs=2, delay=0.01)
    first = one.coordinate()
    agents = [one.agent(node, grace=1000) for node in (0, 1)]
    wait_for(one.trains)
    first.kill()
    first.wait()
    wait_for(lambda: "{" in (one.folder / "agent0.out").read_text())
    check(one.result(), 4, [], epochs=2)
    assert all(process.poll() is None for process in agents)  # they wait to tell their ends
    assert one.coordinate("second").wait(60) == 0 and [process.wait(60) for process in agents] == [0, 0]


def test_after_the_grace_ranks_save_and_end(job, tmp_path):
    saved = tmp_path / "run.safetensors"
    one = job(checkpoint=str(saved), saves=True, epochs=1000)
    first = one.coordinate()
    agents = [one.agent(node, grace=0.3) for node in (0, 1)]
    wait_for(one.trains)
    first.kill()
    assert [process.wait(60) for process in agents] == [75, 75], one.said("agent0")
    assert saved.exists() and not one.live(0, 1, 2, 3)
    assert "no coordinator for 0.3 s" in one.said("agent0")


@pytest.mark.core(1)
@pytest.mark.parametrize("seed", range(2))
def test_deaths_of_a_rank_and_the_coordinator_lose_no_sample(seed, job):
    """Without an exchange nothing of a dead rank counts: the survivors train on each sample exactly once."""
    draw = random.Random(seed)
    dead = draw.sample(range(4), 1)
    deaths = [{"rank": rank, "at": draw.uniform(0.01, 0.5)} for rank in dead]
    one = job(deaths=deaths, strategy="gg.NoExchange()", epochs=1, delay=0.04)
    coordinators = [one.coordinate()]
    agents = [one.agent(node) for node in (0, 1)]
    wait_for(one.trains)
    for number in range(draw.randint(0, 2)):
        time.sleep(draw.uniform(0, 0.5))
        coordinators[-1].kill()
        coordinators[-1].wait()
        coordinators.append(one.coordinate(f"next{number}"))
    wait_for(lambda: all(process.poll() is not None for process in agents))
    found = one.result()
    check(found, 4, dead, epochs=1)
    assert set(found["counts"]) == {1}


def test_too_few_ranks_end_all_hosts(job):
    one = job(deaths=[{"rank": 0, "at": "step 9"}])
    coordinator_ = one.coordinate()
    agents = [one.agent(node, least=4) for node in (0, 1)]
    assert [process.wait(60) for process in (*agents, coordinator_)] == [137] * 3
    assert "rank 0 died: all end" in one.said("coordinator")


def test_another_secret_ends_a_command(job):
    one = job()
    one.coordinate()
    one.env[lines.SECRET] = "another secret of a job"
    commands = {"agent0": one.agent(0), "agent9": one.join()}
    for name, command in commands.items():
        assert command.wait(60) == 2
        said = f"the coordinator at 127.0.0.1:{one.port}: GOSSIPGRAD_SECRET differs from the job's; allowed: one secret"
        assert said in one.said(name) and "dropped its connection" not in one.said(name)


# ---- in one process


def pair(first, second):
    a, b = connected()
    return lines.Line(a, first, True), lines.Line(b, second, False)


def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return server.accept()[0], one


def test_lines_prove_the_secret_before_a_message_counts():
    one, other = pair(b"k" * 20, b"k" * 20)
    one.send({"kind": "x"})
    found = []
    wait_for(lambda: (one.receive(), found.extend(other.receive()), found)[2])
    assert found == [{"kind": "x"}] and one.proven
    other.close()
    wait_for(lambda: ended(one))
    one.close()


def test_a_long_message_that_comes_with_the_proof_is_heard():
    """As the hello of an agent is, when the coordinator is slow to read."""
    one, other = pair(b"k" * 20, b"k" * 20)
    other.send({"kind": "x", "pages": "0" * 9000})
    wait_for(lambda: (one.receive(), one.other)[1])
    wait_for(lambda: (other.receive(), other.proven)[1])
    found = []
    wait_for(lambda: (found.extend(one.receive()), found)[1])
    assert found[0]["pages"] == "0" * 9000
    one.close()
    other.close()


def ended(line):
    try:
        return line.receive() and False
    except EOFError:
        return True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no JSON"),
        (b"[1]\n", "no JSON object"),
        (b'{"protocol": "x"}\n', "does not speak"),
        (b"x" * 5000, "too long"),
        (b'{"protocol": "gossipgrad-agents 2", "nonce": "' + b"0" * 64 + b'"}\n{"kind": "hello"}\n', "secret"),
    ],
)
def test_strangers_are_dropped(text, why):
    ours, theirs = connected()
    line = lines.Line(ours, KEY.encode(), True)
    theirs.sendall(text)
    with theirs, pytest.raises(lines.DroppedError, match=why):
        wait_for(lambda: line.receive() and False)
    line.close()


class Fake:
    """An agent of which the test sends every word."""

    def __init__(self, port, node, key=KEY):
        self.line = lines.Line(socket.create_connection(("127.0.0.1", port)), key.encode(), False)
        self.node, self.heard = node, []
        if key == KEY:
            wait_for(self.pump)

    def pump(self):
        self.heard += self.line.receive()
        return self.line.proven

    def hello(self, **words):
        first = {"kind": "hello", "node": self.node, "size": 2, "nodes": 2, "least": 1, "respawn": 0, "lease": 600.0}
        first |= {"token": str(self.node), "addresses": [["127.0.0.1", 1]], "started": False, "serial": 0, "slot": ""}
        self.line.send({**first, "dead": [], "left": [], "newcomers": [], "pages": {}, **words})
        return self

    def say(self, kind, **words):
        self.line.send({"kind": kind, **words})

    def hears(self, kind):
        """The next message of this kind; those before it are dropped."""

        def come():
            if not self.heard or self.heard[0]["kind"] != kind:
                self.pump()
            while self.heard and self.heard[0]["kind"] != kind:
                self.heard.pop(0)
            return bool(self.heard)

        wait_for(come)
        return self.heard.pop(0)

    def is_dropped(self):
        wait_for(lambda: ended(self.line))


@pytest.fixture
def coordinated(monkeypatch):
    """(port, lines that were said, threads that coordinate): a coordinator in a thread."""
    said, threads, ports = [], [], []
    monkeypatch.setattr(coordinator, "say", said.append)

    def begin():
        listener = socket.create_server(("127.0.0.1", ports[0] if ports else 0))
        ports[:] = [listener.getsockname()[1]]
        one = coordinator.Coordinator(listener, KEY.encode())
        threads.append((one, threading.Thread(target=one.run)))
        threads[-1][1].start()
        return one, ports[0]

    yield begin, said
    for one, thread in threads:
        one.asked = signal.SIGTERM
        for node in one.nodes:
            node.state = "left"
        thread.join()
        one.listener.close()


def test_what_a_coordinator_refuses_and_drops(coordinated, monkeypatch):
    begin, said = coordinated
    one, port = begin()
    wrong = Fake(port, 0).hello(size=3, addresses=[["127.0.0.1", 1]] * 2)
    wait_for(lambda: one.facts)
    wrong.line.close()  # before the start its place is free again
    wait_for(lambda: not one.facts)
    agents = [Fake(port, node).hello() for node in (0, 1)]
    start_ = [agent.hears("start") for agent in agents]
    assert start_[0] == start_[1] and start_[0]["addresses"] == [["127.0.0.1", 1]] * 2 and start_[0]["serial"] == 1
    agents[0].say("beat", number=7, pages={})
    assert agents[0].hears("beat")["number"] == 7
    why = "new ranks and lease are (3, 2, 1, 0, 600.0) there, but (2, 2, 1, 0, 600.0) in this job"
    refused = Fake(port, 0)
    with monkeypatch.context() as patch:
        patch.setattr(refused.line, "flush", lambda: None)  # both lines go together
        refused.hello(size=3).say("beat", number=1)
    refused.line.flush()
    assert refused.hears("refused")["why"].endswith(why) and not said
    assert Fake(port, 0).hello(token="x").hears("refused")["why"] == "node 0 is another process"
    assert "allowed: 0 to 1" in Fake(port, 2).hello().hears("refused")["why"]
    stranger = Fake(port, 0, "another secret of a job").hello()
    with pytest.raises((EOFError, lines.DroppedError)):
        wait_for(lambda: stranger.line.receive() and False)
    wait_for(lambda: any("does not know this job's secret" in text for text in said))
    for wrong in (
        {"kind": "x"},
        {"kind": "told", "pages": {"9": "00"}},
        {"kind": "died"},
        {"kind": "told", "pages": 3},
    ):
        agents[1].line.send(wrong)
        agents[1].is_dropped()
        agents[1] = Fake(port, 1).hello(started=True, serial=1)
        agents[1].hears("start")
    assert sum("dropped a connection from node 1 (rank 1)" in text for text in said) == 4
    agents[0].say("bye", pages={})
    wait_for(lambda: one.nodes[0].state == "left")
    assert Fake(port, 0).hello().hears("refused")["why"] == "node 0 has ended"
    agents[1].say("end", code=5)
    assert agents[1].hears("end")["code"] == 5


@pytest.mark.parametrize("gathering", [False, True])
def test_agents_that_come_while_others_end(gathering, coordinated):
    """An agent with ranks ends them. An agent that has not started its ranks is refused."""
    begin, _ = coordinated
    one, port = begin()
    facts = {"size": 3, "nodes": 3, "started": True}
    agents = [Fake(port, node).hello(**facts) for node in ((0, 1) if gathering else (0, 1, 2))]
    wait_for(lambda: len([node for node in one.nodes if node.state == "here"]) == len(agents))
    agents[0].say("end", code=5)
    assert [agent.hears("end")["code"] for agent in agents] == [5] * len(agents)
    assert Fake(port, 1).hello(**facts).hears("end")["code"] == 5  # its connection had broken
    late = Fake(port, 2).hello(**{**facts, "started": False})
    assert late.hears("refused")["why"] == "the job has ended"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_dead_node_is_told_after_all_have_told_what_they_know_of_it(restarted, coordinated):
    """restarted: the node does not come to the next coordinator. Its last votes may still be on their way to others."""
    begin, said = coordinated
    one, port = begin()
    facts = {"size": 3, "nodes": 3, "started": restarted}
    agents = [Fake(port, node).hello(**facts) for node in ((0, 1) if restarted else (0, 1, 2))]
    own = host(3)
    tell(own, 0, trains=1)
    if restarted:
        wait_for(lambda: one.started)
        one.nodes[2].last -= 3600
    for agent in agents:
        agent.hears("start")
    tell(own, 2, vote=9)  # heard by rank 0 alone
    one.nodes[2].last -= 3600  # its agent was silent for so long
    assert [agent.hears("freeze")["ranks"] for agent in agents[:2]] == [[2], [2]]
    agents[1].say("frozen", ranks=[2], pages={})
    agents[0].say("frozen", ranks=[2], pages={str(rank): own.told(rank).hex() for rank in (0, 2)})
    for agent in agents[:2]:
        view = agent.hears("view")
        assert view["dead"] == [2] and words(bytes.fromhex(view["pages"]["2"]))[5] == 9 + (1 << 62)
        assert view["phase"] == "stopping"
    assert "rank 2 died: 2 ranks go on" in said


def test_another_coordinator_does_not_wait_for_nodes_whose_ranks_have_died(coordinated):
    """One may still come, as for new ranks."""
    begin, _ = coordinated
    one, port = begin()
    facts = {"size": 3, "nodes": 3, "started": True}
    Fake(port, 0).hello(**facts, dead=[1])
    start_ = Fake(port, 2).hello(**facts).hears("start")
    assert start_["dead"] == [1] and start_["phase"] == "stopping"
    assert Fake(port, 1).hello(**facts, dead=[1]).hears("start")["dead"] == [1]


def test_another_coordinator_does_not_tell_of_known_deaths(coordinated):
    begin, said = coordinated
    one, port = begin()
    facts = {"size": 3, "nodes": 3, "started": True}
    agents = [Fake(port, node).hello(**facts, dead=[1]) for node in (0, 2)]
    agents[0].hears("start")
    one.nodes[1].last -= 3600
    wait_for(lambda: one.nodes[1].state == "dead")
    one.nodes[2].last -= 3600
    assert agents[0].hears("freeze")["ranks"] == [2]
    assert len(said) == 1 and "node 2 (rank 2) is dead: nothing heard" in said[0]


def test_every_death_is_told_as_a_failure():
    """With exit code 0, too: a job that ends with such a death has code 1."""
    told = []
    one = object.__new__(Agent)
    one.dead, one.ranks, one._send = {}, [], told.append
    for code in (0, 3, -signal.SIGKILL):
        one._tell_died(2, code)
    assert [message["code"] for message in told] == [1, 3, 137]


def test_an_agent_looks_while_it_starts_its_ranks():
    """Its lease may else end before the last one."""
    order = []
    one = object.__new__(Agent)
    one.line, one.joining, one.ranks, one.most, one.size, one.node_of = None, 0, [0, 1], 2, 2, [0, 0]
    one.views, one.outputs, one.arguments = -1, {}, argparse.Namespace(folder="")
    one.host, one.meet, one._want = lambda: "127.0.0.1", lambda addresses: (addresses, ""), lambda places: None
    one._start_rank = lambda rank, *_: order.append(rank)
    one.look = lambda: order.append("look")
    one.start(set())
    assert order == [0, "look", 1, "look"] and one.started


def test_an_agent_parts_before_the_last_output():
    """Children of ranks may keep the pipes open: the coordinator must not take the node for dead meanwhile.

    It closes the connection when the coordinator has done so: with messages unread, TCP drops what is on its way.
    """
    order = []

    def receive():
        order.append("reads")
        if order.count("reads") > 1:
            raise EOFError
        return [{"kind": "beat", "number": 1}]

    one = object.__new__(Agent)
    one.running, one.wanted, one.code, one.deadline, one.ranks, one.finished = {}, [], 0, None, [], []
    one.line = argparse.Namespace(proven=True, out=b"", close=lambda: order.append("closed"), receive=receive)
    one.line.send, one.line.flush = lambda message: order.append(message["kind"]), lambda: None
    one.outputs = {1: argparse.Namespace(end=lambda: order.append("output"))}
    assert one.wait(set()) == 0
    assert order == ["bye", "reads", "reads", "closed", "output"]


def test_one_command_starts_one_node(monkeypatch):
    monkeypatch.setenv(lines.SECRET, KEY)
    words = ["-n", "5", "--transport", "net", "--survive", "--nodes", "2", "--coordinator", "a:1", "--bind", "none"]
    made = start.plan([*words, "--node", "1", "--lease", "3", "train"]).command
    assert made[made.index("--node") + 1] == "1" and made[made.index("--lease") + 1] == "3"
    assert KEY not in " ".join(made)
    with pytest.raises(start.LaunchError, match="--node is '2'; allowed: 0 to 1"):
        start.plan([*words, "--node", "2", "train"])


def test_a_node_is_dead_after_lease_and_margin():
    node = coordinator.Node(1, [2, 3], 100.0)
    assert node.deadline(4.0) == 106.0
    node.closed = 101.0
    assert node.deadline(4.0) == 103.0
