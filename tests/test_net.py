"""Ranks without MPI (gossipgrad run --transport net): bits of the virtual cluster, ends of ranks, authentication."""

import contextlib
import dataclasses
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import test_mpi
from conftest import ROOT, own_lines, run_group
from test_view_keeper import tell

from gossipgrad import _core
from gossipgrad.errors import CommunicationError
from gossipgrad.launch import leftovers, net, net_launcher, start

virtual = test_mpi.virtual  # a fixture
pytestmark = test_mpi.pytestmark

RUN = [sys.executable, "-m", "gossipgrad", "run", "--transport", "net"]
# Of test_mpi's: every form of message, gossip and collectives.
FEW = [
    "late",
    "samples",
    "gradients",
    "cube, late, weights",
    "late, tiny chunks",
    "slices, late, bfloat16, small chunks",
    "hierarchical",
    "push-sum",
    "adam, periodic, bfloat16",
    "clipped, late",
    "lars, partitioned",
    "overlapped, small chunks",
    "one worker, elastic",
    "noloco, fragments",
    "adacomp, cyclic, layerwise",
]


@pytest.fixture
def netrun(tmp_path):
    """netrun(n, "source text" | ["train", ...], nodes=) -> CompletedProcess; a return code other than 0 fails."""

    def run(n, text, *options, check=True, env=None):
        words = text
        if isinstance(text, str):
            script = tmp_path / "ranks.py"
            script.write_text(text)
            words = [str(script)]
        done = run_group([*RUN, "-n", str(n), *options, *words], env={**os.environ, **(env or {})})
        if check and done.returncode:
            pytest.fail(f"rc {done.returncode}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}")
        return done

    return run


def as_on_one_node():
    """test_mpi's runs; exchange="auto" would differ on several nodes."""
    for name, (strategy, *others) in test_mpi.RUNS.items():
        if getattr(strategy, "exchange", "") == "auto":
            strategy = dataclasses.replace(strategy, exchange=strategy.exchange_on(1))
        test_mpi.RUNS[name] = (strategy, *others)


def compare(names, p, options, netrun, virtual):
    text = test_mpi.IMPORT + (
        "import test_net\ntest_net.as_on_one_node()\nfound = {}\n"
        f"for name in {list(names)!r}:\n"
        "    trainer, history = test_mpi.fit(name)\n"
        "    assert trainer.team.kind == 'net'\n"
        "    found[name] = [history.weights_sha256, history['train_loss'], history['consensus_distance']]\n"
        "    trainer.close()\n"
        "assert not gg._core.info()['mpi']['initialised']\n"
        "if trainer.rank == 0: print(json.dumps(found))\n"
    )
    found = test_mpi.answers(netrun(p, text, *options))
    assert len(found) == len(names)
    for name in names:
        assert found[name] == virtual(name, p), f"{name}: net and the virtual cluster differ"


@pytest.mark.core(1)
@pytest.mark.parametrize(("p", "nodes"), [(3, 2), (2, 1)])
def test_the_bits_of_the_virtual_cluster(p, nodes, netrun, virtual):
    compare(FEW if p == 3 else FEW[:4], p, ["--nodes", str(nodes)], netrun, virtual)


@pytest.mark.full
@pytest.mark.parametrize(("p", "nodes"), [(1, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2)])
def test_the_bits_of_every_strategy(p, nodes, netrun, virtual):
    compare(test_mpi.runs(p), p, ["--nodes", str(nodes)], netrun, virtual)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


CALLS = """
import numpy as np, gossipgrad as gg
team = gg.Team()
rows = {"w": np.full((2, 3), float(team.rank), np.float32)}
x = gg.Exchange(rows, strategy=gg.AllReduce(), optimizer=gg.SGD(lr=1.0, momentum=0.0))
x.gradients["w"][:] = team.rank
x.step()
told = [team.allgather(team.each(lambda rank: np.arange(2) + rank)).tolist(), x.weights["w"].tolist()]
for comm in (gg.VirtualCluster(2), type("Comm", (), {"py2f": lambda self: 7})()):
    try: told.append(gg.Team(comm).size)
    except TypeError as error: told.append("without MPI" in str(error))
try: gg.Exchange(rows, strategy=gg.AllReduce(collectives="mpi"))
except ValueError as error: told.append("not MPI alone" in str(error))
if team.rank == 0: print(json.dumps(told))
"""


def test_teams_and_exchanges(netrun):
    mean = [[-0.5] * 3] * 2
    found = test_mpi.answers(netrun(2, "import json\n" + CALLS, "--nodes", "2"))
    assert found == [[[0, 1], [1, 2]], mean, 2, True, True]


# ---- ends

HEAD = "import os, sys, time, signal\nimport numpy as np\nimport gossipgrad as gg\nteam = gg.Team()\nx = np.ones(3)\n"
ENDS = {
    "exception": ("raise ValueError('on purpose')", 1, [], "ValueError: on purpose"),
    "code": ("sys.exit(3)", 3, ["gossipgrad: rank 1 ended with exit code 3: this ends all ranks"], ""),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        137,
        ["gossipgrad: rank 1 was ended by signal 9 (SIGKILL): this ends all ranks"],
        "",
    ),
    "left": ("sys.exit(0)", 1, [], "rank 0 waits for rank 1, which has ended"),
}


@pytest.mark.core(1)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("nodes", [pytest.param("1", marks=pytest.mark.full), "2"])
def test_however_one_rank_ends_all_end(end, nodes, netrun, tmp_path):
    how, code, lines, word = ENDS[end]
    text = HEAD + f"if team.rank == 1: {how}\nwhile True: team.allreduce(x)\n"
    place = tmp_path / "temporary"
    place.mkdir()
    done = netrun(2, text, "--nodes", nodes, check=False, env={"TMPDIR": str(place)})
    assert not list(place.iterdir())
    assert done.returncode == code, done.stderr
    own = [one for one in own_lines(done.stderr) if "which has ended" not in one]
    assert own == lines, done.stderr
    assert word in done.stderr and done.stderr.count("on purpose") <= 2  # a traceback has the line, and the error


@pytest.mark.full
def test_lines_of_ranks_do_not_mix(netrun):
    """Each rank writes its lines in pieces; the last one without an end."""
    text = HEAD + (
        "for i in range(200):\n"
        "    os.write(1, f'rank {team.rank} '.encode())\n"
        "    os.write(1, b'line\\n')\n"
        "if team.rank == 0: os.write(1, b'end')\n"
    )
    lines = netrun(2, text).stdout.replace("end", "").splitlines()
    assert sorted(filter(None, lines)) == ["rank 0 line"] * 200 + ["rank 1 line"] * 200


def test_a_signal_ends_all(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(HEAD + "print('here', flush=True)\nwhile True: team.allreduce(x)\n")
    process = subprocess.Popen(
        [*RUN, "-n", "2", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and own_lines(err)[-1] == "gossipgrad: terminated", err


@pytest.mark.core(1)
@pytest.mark.parametrize("killed", ["supervisor", "launcher"])
def test_a_killed_launcher_leaves_nothing(killed, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(HEAD + "print(os.getpid(), os.getppid(), flush=True)\nwhile True: team.allreduce(x)\n")
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*RUN, "-n", "2", str(script)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    assert process.stdout is not None
    pids = [[int(word) for word in process.stdout.readline().split()] for _ in range(2)]
    assert [one for one in tmp_path.iterdir() if one.name.startswith("gossipgrad-net-")]
    os.kill(process.pid if killed == "supervisor" else pids[0][1], signal.SIGKILL)
    process.stdout.read()  # ends with the last process
    process.wait(60)
    wait_for(lambda: [one.name for one in tmp_path.iterdir()] == ["ranks.py"])
    wait_for(lambda: not [pid for pair in pids for pid in pair if is_alive(pid)])


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_folders_of_ended_jobs_are_removed(tmp_path):
    here, host = os.getpid(), os.uname().nodename
    names = [
        f"gossipgrad-net-{host}-{here}-ab",
        f"gossipgrad-net-{host}-999999999-cd",
        "gossipgrad-net-else-999999999-e",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    shared = tmp_path / "shm"
    assert leftovers.remove_leftovers(str(shared), str(tmp_path), -60.0) == [str(tmp_path / names[1])]


# ---- authentication


@pytest.fixture
def handshakes(monkeypatch):
    """handshakes(secret of rank 0, secret of rank 1): of two ranks of two nodes; and the lines that they print."""
    said: list[str] = []
    monkeypatch.setattr(net, "say", said.append)
    made = []

    def make(*secrets):
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in secrets]
        facts = {"size": 2, "nodes": [0, 1], "addresses": [one.getsockname() for one in listeners]}
        for rank, secret in enumerate(secrets):
            own = {"rank": rank, "secret": secret.hex(), "listener": listeners[rank].detach()}
            made.append(net._Handshakes({**facts, **own}, 60.0))
        return [*made, said]

    yield make
    for one in made:
        one.listener.close()


def test_ranks_that_know_the_secret_meet_and_strangers_are_dropped(handshakes):
    zero, one, said = handshakes(b"s" * 32, b"s" * 32)
    found = {}
    threads = [threading.Thread(target=lambda own=own: found.update(own.run())) for own in (zero, one)]
    threads[0].start()
    hello = net._HELLO + (1).to_bytes(4, "little") + bytes(32)
    for text in (b"GET / HTTP/1.1\r\n" * 10, net._HELLO, net._HELLO + bytes(40), hello + bytes(32)):
        with socket.create_connection(zero.addresses[0]) as stranger:
            stranger.sendall(text)
            if text.startswith(hello):
                net._receive(stranger, 64)
    wait_for(lambda: len(said) == 4)
    assert all("rank 0 dropped a connection from 127.0.0.1:" in one for one in said)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert found.keys() == {0, 1}
    found[1].sendall(b"whole")
    assert net._receive(found[0], 5) == b"whole"
    whole = " ".join(said)
    assert "it does not know this job's secret" in whole and whole.count("it is no rank of this job") == 2
    for connection in found.values():
        connection.close()


def test_a_stranger_that_sends_a_byte_now_and_then_is_dropped_in_time(handshakes, monkeypatch):
    """It would else hold a thread and a descriptor of a rank for as long as it likes."""
    monkeypatch.setattr(net, "_TO_PROVE", 0.3)
    zero, _, said = handshakes(b"s" * 32, b"s" * 32)
    threading.Thread(target=zero._listen, daemon=True).start()
    with socket.create_connection(zero.addresses[0]) as stranger:
        for one in net._HELLO[:12]:
            with contextlib.suppress(ConnectionError):  # it is dropped
                stranger.send(bytes([one]))
            time.sleep(0.1)
        assert len(said) == 1 and "dropped a connection" in said[0]


def test_a_bad_secret_is_refused_by_both_sides(handshakes):
    zero, one, said = handshakes(b"s" * 32, b"t" * 32)
    threading.Thread(target=zero._listen, daemon=True).start()
    with pytest.raises(CommunicationError, match="does not know this job's secret, so it is not rank 0"):
        one.run()
    wait_for(lambda: len(said) == 1)
    assert zero.came.empty()
    zero.listener.shutdown(socket.SHUT_RDWR)


def test_a_rank_that_does_not_connect_is_named(handshakes):
    zero, _, _ = handshakes(b"s" * 32, b"s" * 32)
    zero.timeout, zero.deadline = 0.05, time.monotonic() + 0.05
    with pytest.raises(CommunicationError, match="rank 0: waited 0.05 s for rank 1, which is on another node"):
        zero.run()


@pytest.mark.parametrize(
    ("dial", "said"),
    [
        (None, r"rank 1 waits for rank 0, which has ended before it had connected \(.*refused"),
        (TimeoutError, "rank 1: waited 60 s for rank 0, which is on another node, to connect"),
    ],
)
def test_a_rank_that_cannot_be_reached_is_named(handshakes, monkeypatch, dial, said):
    _, one, _ = handshakes(b"s" * 32, b"s" * 32)

    def fails(*_, **__):
        raise dial

    if dial is not None:
        monkeypatch.setattr(net.socket, "create_connection", fails)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        one.addresses[0] = closed.getsockname()
        with pytest.raises(CommunicationError, match=said):
            one.run()


def test_a_newcomer_tries_again_until_the_view_tells_of_a_death(monkeypatch):
    """Without a coordinator no view tells of it. A rank that lives and has dropped the connection takes the next."""
    monkeypatch.setattr(net, "_TO_PROVE", 0.0)
    monkeypatch.setattr(net, "_TO_RETRY", 0.01)
    memory = os.memfd_create("keeper")
    keeper, pages = _core.ViewKeeper(memory, 2, 3, 1), _core.ViewPages(memory, 3)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [listeners[0].getsockname(), None, listeners[1].getsockname()]
    facts = {"size": 3, "members": 2, "nodes": [0, 1, 1], "addresses": addresses, "secret": 32 * "ab"}
    first = net._Handshakes({**facts, "rank": 0, "listener": listeners[0].detach()}, 60.0)
    new = net._Handshakes({**facts, "rank": 2, "views": memory, "listener": listeners[1].detach()}, 60.0)
    assert new.earlier == [0]

    def drop_one():
        first.listener.accept()[0].close()
        first._listen()

    first.new, first._arrived = range(3), lambda _, one: first.came.put(one.sendall(net._WELCOME) or (2, one))
    threading.Thread(target=drop_one, daemon=True).start()
    with new._connect(0), first.came.get()[1]:
        pass
    first.listener.shutdown(socket.SHUT_RDWR)
    first.listener.close()
    found = []
    thread = threading.Thread(target=lambda: found.append(new._connect(0)))
    thread.start()
    keeper.died(0)
    tell(pages, 1, limit=4, limit_of=2)
    assert keeper.poll() == "goal" and not found
    tell(pages, 1, report_of=2)
    assert keeper.poll() == "run"
    thread.join()
    assert found == [None]
    new.listener.close()


# ---- the command line


def test_a_slow_reader_gets_all_lines(monkeypatch):
    """The pipe of a silent child is given up."""
    monkeypatch.setattr(net_launcher, "_TO_READ", 0.3)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    output = net_launcher.Output(writer)
    silent = os.pipe()
    sources = [os.pipe() for _ in range(4)]
    for source, sink in sources:
        os.write(sink, 4095 * b"x" + b"\n")
        os.close(sink)
        output.add(open(source, "rb", buffering=0))
    output.add(open(silent[0], "rb", buffering=0))
    output.start()
    found = []

    def read():
        time.sleep(0.6)
        while text := os.read(reader, 4096):
            found.append(text)

    thread = threading.Thread(target=read)
    thread.start()
    output.end()
    assert [one.is_alive() for one in output.threads] == [False] * 4 + [True]
    os.close(writer)
    thread.join()
    assert sum(map(len, found)) == 4 * 4096
    os.close(silent[1])
    output.threads[-1].join()
    os.close(reader)


def test_nodes():
    assert net_launcher.nodes_of(5, 2) == [0, 0, 0, 3, 3]
    assert net_launcher.nodes_of(4, 1) == [0, 0, 0, 0]
    assert net_launcher.nodes_of(3, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--transport", "tcp"], "--transport is 'tcp'; allowed: mpi, net"),
        (["--transport", "net", "--hosts", "a:1"], "--hosts with --transport net; allowed: with --transport mpi"),
        (["--nodes", "2"], "--nodes with --transport mpi; allowed: with --transport net"),
        (["--transport", "net", "--nodes", "3"], "--nodes is '3'; allowed: 1 to 2"),
    ],
)
def test_options_that_contradict(words, text):
    with pytest.raises(start.LaunchError) as error:
        start.plan(["-n", "2", *words, "train"])
    assert text in str(error.value)


def test_no_mpiexec_is_looked_for(monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_MPIEXEC", "none-such")
    made = start.plan(["-n", "2", "--transport", "net", "train"])
    assert made.net and not made.openmpi and made.command[-1] == "train" and "net_launcher.py" in made.command[2]
    assert not [name for name in made.environment if name.startswith(("OMPI_", "PRTE_"))]
