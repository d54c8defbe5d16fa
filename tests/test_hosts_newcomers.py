"""New ranks on several hosts, played by agents on the loopback interface: on hosts of dead ranks, and on new ones."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
import test_hosts
from test_hosts import Fake
from test_net import wait_for
from test_survival_respawn import SCRIPT, names
from test_view_keeper import tell

from gossipgrad import _core
from gossipgrad.launch import joining, lines, start

coordinated = test_hosts.coordinated  # a fixture

BEGAN = """
    def on_epoch_begin(self, trainer, epoch): open(f"{case['began']}{me}", "w").close()
"""
# A donor dies as soon as a view has its newcomer: before, while or after it gives its state.
DONOR = """
if mine.get("at") == "donor":
    import threading, time
    facts = json.loads(os.environ["GOSSIPGRAD_NET"])
    pages = gg._core.ViewPages(facts["views"], facts["size"])
    def watch():
        while mine["newcomer"] not in pages.view()["ranks"]: time.sleep(1e-4)
        time.sleep(mine["after"])
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=watch, daemon=True).start()
"""
# The script's ranks leave a mark when they train.
MARKED = SCRIPT.replace("    epochs = []\n", f"    epochs = []{BEGAN}").replace(
    'if mine.get("at") ==', f'{DONOR}\nif mine.get("at") ==', 1
)


@pytest.fixture
def job(tmp_path):
    made = []

    def make(**case):
        made.append(test_hosts.Job(tmp_path, {"delay": 0.02, "began": str(tmp_path / "began"), **case}, MARKED))
        return made[-1]

    yield make
    for one in made:
        one.end()


def told(one):
    """What rank 0 printed last, and the newcomers that have joined."""
    return one.result(), sorted(line["joined"] for line in one.lines() if "joined" in line)


def here(one):
    """What each newcomer was told: how many ranks its host has."""
    return {line["joined"]: line["here"] for line in one.lines() if "joined" in line}


def wait_all(one, *processes, codes=None):
    found = [process.wait(90) for process in processes]
    assert found == (codes or [0] * len(found)), one.errors()


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", ["gg.NoExchange()", pytest.param("gg.GossipGraD()", marks=pytest.mark.full)])
def test_a_new_rank_joins_on_the_host_of_a_dead_one(strategy, job):
    """Each sample of the only epoch is trained on by one living rank."""
    one = job(own={"3": {"at": "step 4"}}, epochs=1, strategy=strategy)
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=1) for node in (0, 1)]
    wait_all(one, *agents, coordinator_)
    found, joined = told(one)
    assert joined == [4] and found["members"] == [0, 1, 2, 4] and names(found["views"], "joined") == [4]
    assert strategy != "gg.NoExchange()" or set(found["counts"]) == {1}
    assert here(one) == {4: 2}
    assert "rank 4 (new) joins in step" in one.said("agent1") and "rank 4 (new)" not in one.said("agent0")
    assert "rank 3 died: 3 ranks go on" in one.said("coordinator")
    assert "rank 4 (new) joins in step" in one.said("coordinator")


@pytest.mark.full
def test_all_ranks_of_a_host_are_replaced_and_some_of_another(job):
    """New ranks meet each other, in shared memory and by TCP; donors are on another host."""
    own = {"2": {"at": "step 3"}, "3": {"at": "step 5"}, "0": {"at": "step 4"}}
    one = job(own=own, epochs=2, strategy="gg.GossipGraD()", until=[4, 5, 6])
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=3) for node in (0, 1)]
    wait_all(one, *agents, coordinator_)
    found, joined = told(one)
    assert joined == [4, 5, 6] and found["members"] == [1, 4, 5, 6] and len(found["hashes"]) == 4


@pytest.mark.full
def test_new_ranks_die_and_are_replaced_until_no_number_is_left(job):
    """One while it builds, one when it has joined."""
    own = {"3": {"at": "step 3"}, "4": {"at": "build"}, "5": {"at": "view"}, "6": {"at": "view"}}
    one = job(own=own, epochs=3, strategy="gg.GossipGraD()")
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=3) for node in (0, 1)]
    wait_all(one, *agents, coordinator_)
    found, joined = told(one)
    assert joined == [5, 6] and found["members"] == [0, 1, 2]
    assert "rank 4 was ended by signal 9 (SIGKILL), before it had joined" in one.said("agent1")


@pytest.mark.full
@pytest.mark.parametrize("after", [0.0, 0.002, 0.005])
def test_a_donor_on_another_host_dies(after, job):
    """The new rank gets another donor, or has its copy."""
    own = {"3": {"at": "step 3"}, "0": {"at": "donor", "newcomer": 4, "after": after}}
    one = job(own=own, epochs=2, strategy="gg.GossipGraD()")
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=2) for node in (0, 1)]
    wait_all(one, *agents, coordinator_)
    found, joined = told(one)
    assert joined == [4, 5] and found["members"] == [1, 2, 4, 5] and len(found["hashes"]) == 4
    assert sorted(names(found["views"], "died")) == [0, 3]


@pytest.mark.full
def test_the_next_coordinator_knows_of_new_ranks(job):
    """A rank dies without a coordinator. The next one gives a number that no rank has had."""
    own = {"3": {"at": "step 3"}, "0": {"at": "epoch 1"}}
    one = job(own=own, epochs=3, strategy="gg.GossipGraD()", delay=0.04)
    first = one.coordinate()
    agents = [one.agent(node, respawn=2) for node in (0, 1)]
    # Until it is whole, a change of the view waits for a coordinator.
    wait_for(lambda: '{"joined": 4' in (one.folder / "agent1.out").read_text())
    first.kill()
    first.wait()
    wait_for(lambda: "rank 0 was ended" in one.said("agent0"))
    second = one.coordinate("second")
    wait_all(one, *agents, second)
    found, joined = told(one)
    assert joined == [4, 5] and found["members"] == [1, 2, 4, 5]
    assert "the coordinator goes on where another was" in one.said("second")


@pytest.mark.full
@pytest.mark.parametrize("seed", [2, 7, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 1, 3))])
def test_random_deaths_of_a_rank_and_the_coordinator(seed, job):
    """The full suite has one and two deaths of the coordinator, and a new rank that dies while it builds, or does not.

    Nothing of the dead rank counts without an exchange: living ranks train on each sample exactly once."""
    draw = random.Random(seed)
    own = {str(draw.randrange(4)): {"at": f"step {draw.randint(2, 40)}"}, "4": {"at": draw.choice(["build", "never"])}}
    one = job(own=own, epochs=1, delay=0.03, samples=1200)
    coordinators = [one.coordinate()]
    agents = [one.agent(node, respawn=3) for node in (0, 1)]
    wait_for(lambda: one.trains())
    for number in range(draw.randint(0, 2)):
        time.sleep(draw.uniform(0, 1.5))
        coordinators[-1].kill()
        coordinators[-1].wait()
        coordinators.append(one.coordinate(f"next{number}"))
    wait_all(one, *agents, coordinators[-1])
    assert set(one.result()["counts"]) == {1}, one.errors()


# ---- hosts that join


@pytest.mark.core(1)
def test_a_host_joins(job):
    """It may come first. The next coordinator knows of it, too."""
    one = job(epochs=2, strategy="gg.GossipGraD()", samples=1200)
    first = one.coordinate()
    time.sleep(0.5)
    agents = [one.join(2), *(one.agent(node, respawn=3) for node in (0, 1))]
    wait_for(lambda: "rank 5 (new) joins" in one.said("agent9"))
    first.kill()
    first.wait()
    wait_all(one, *agents, one.coordinate("second"))
    found, joined = told(one)
    assert joined == [4, 5] and found["members"] == [0, 1, 2, 3, 4, 5] and here(one) == {4: 2, 5: 2}
    assert "node 2 joins" in one.said("coordinator")


@pytest.mark.full
def test_a_host_whose_agent_was_killed_comes_back(job):
    one = job(epochs=3, samples=1200, until=[4, 5])
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=2, lease=2) for node in (0, 1)]
    wait_for(one.trains)
    agents[1].kill()
    back = one.join(2)
    wait_all(one, agents[0], back, coordinator_)
    found, joined = told(one)
    assert joined == [4, 5] and found["members"] == [0, 1, 4, 5]
    assert sorted(names(found["views"], "died")) == [2, 3]


def test_a_host_without_a_coordinator_does_not_wait_for_ever(job):
    one = job()
    wait_all(one, one.join(1, grace=0.1), codes=[2])
    assert "join: waits for the coordinator at" in one.said("agent9") and "nobody listens there" in one.said("agent9")


@pytest.mark.full
def test_new_ranks_that_cannot_join_end_and_the_others_go_on(job):
    """One has other options; one is more than the job takes; then no host may join."""
    one = job(own={"4": {"lr": 0.3}}, epochs=2)
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=1) for node in (0, 1)]
    wait_for(one.trains)
    wait_all(one, one.join(2), codes=[2])
    assert "1 of the new ranks cannot join; allowed: 1 in all (--respawn)" in one.said("agent9")
    assert "this newcomer cannot join: lr is 0.3 here, 0.1 in the group" in one.said("agent9")
    wait_all(one, one.join(1, "agent8"), codes=[2])
    assert "the job takes no more new ranks; allowed: 1 in all (--respawn)" in one.said("agent8")
    wait_all(one, *agents, coordinator_)
    assert one.result()["members"] == [0, 1, 2, 3]


@pytest.mark.full
def test_a_join_that_is_interrupted_leaves_the_others_alone(job):
    one = job(own={"4": {"at": "slow"}}, epochs=2)
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=1) for node in (0, 1)]
    wait_for(one.trains)
    late = one.join(1)
    wait_for((one.folder / "beganslow").exists)
    late.send_signal(signal.SIGINT)
    wait_all(one, late, codes=[130])
    wait_all(one, *agents, coordinator_)
    assert one.result()["members"] == [0, 1, 2, 3]


@pytest.mark.full
def test_a_new_rank_that_ends_by_itself_is_not_replaced(job):
    """The next one would end as well, until no number is left for the dead."""
    one = job(own={"4": {"lr": 0.3}}, epochs=2)
    coordinator_ = one.coordinate()
    agents = [one.agent(node, respawn=3) for node in (0, 1)]
    wait_for(one.trains)
    late = one.join(1)
    assert late.wait(90) not in (0, None)
    wait_all(one, *agents, coordinator_)
    assert "lr is 0.3 here, 0.1 in the group" in one.said("agent9") and "rank 5" not in one.said("agent9")
    assert one.result()["members"] == [0, 1, 2, 3]


# ---- in one process


def test_two_changes_at_one_step_are_told_as_one():
    """The donor 1 died before the copy of 4 was whole; 5 died as well, and never trained."""
    first = {"view": 2, "step": 9, "ranks": [0, 1, 4, 5], "died": [3], "last_steps": [7], "joined": [4, 5]}
    second = {"view": 3, "step": 9, "ranks": [0, 4], "died": [1, 5], "last_steps": [8, -1], "joined": []}
    made = joining.as_one(
        {**first, "trained_again": 3, "seconds": 0.5}, {**second, "trained_again": 2, "seconds": 0.25}
    )
    sums = {"trained_again": 5, "seconds": 0.75}
    assert made == {**second, **sums, "died": [1, 3], "last_steps": [8, 7], "joined": [4]}


def test_numbers_of_new_ranks(coordinated):
    begin, said = coordinated
    one, port = begin()
    facts = {"size": 2, "nodes": 2, "respawn": 2}
    agents = [Fake(port, node).hello(**facts) for node in (0, 1)]
    for agent in agents:
        agent.hears("start")
    place = ["127.0.0.1", 7]
    agents[1].say("want", addresses=[place])
    for _ in range(2):
        given = agents[1].hears("given")
        assert given["ranks"] == [[2, place]] and not given["none_left"]
        assert given["addresses"] == {"0": ["127.0.0.1", 1]}  # of other nodes
        agents[1].say("want", addresses=[place])  # the answer may have been lost
    assert agents[0].hears("view")["newcomers"] == [[2, 1, place]]
    agents[1].say("died", rank=2, code=137, pages={})  # it had not joined
    agents[0].say("want", addresses=[["127.0.0.1", 8], ["127.0.0.1", 9]])
    given = agents[0].hears("given")
    assert given["ranks"] == [[3, ["127.0.0.1", 8]]] and given["none_left"]
    assert given["addresses"] == {"1": ["127.0.0.1", 1]} and given["dead"] == [2]
    assert not [line for line in said if "died" in line]
    agents[0].say("beat", number=1, pages={}, finished=[0])
    agents[1].say("beat", number=1, pages={}, finished=[1])
    assert agents[0].hears("end")["code"] == 0  # rank 3 has nobody left to join


def test_a_node_that_joins_gets_the_job(coordinated):
    begin, said = coordinated
    one, port = begin()
    early = Fake(port, 9)
    early.say("join", token="e")
    refused = early.hears("refused")
    assert "no job trains here" in refused["why"] and refused["later"]
    facts = {"size": 2, "nodes": 2, "respawn": 1}
    agents = [Fake(port, node).hello(**facts) for node in (0, 1)]
    start_ = agents[0].hears("start")
    node = Fake(port, 9)
    node.say("join", token="n")
    joined = node.hears("joined")
    assert joined["node"] == 2 and joined["facts"] == [2, 2, 1, 1, 600.0]
    assert {**joined, "kind": "start", "node": 0, "facts": 0} == {**start_, "node": 0, "facts": 0}
    node.say("want", addresses=[["127.0.0.1", 5]])
    assert node.hears("given")["addresses"] == {"0": ["127.0.0.1", 1], "1": ["127.0.0.1", 1]}
    one.nodes[2].last -= 3600  # it was silent for so long
    assert agents[0].hears("freeze")["ranks"] == [2]
    assert "node 2 (rank 2) is dead: nothing heard" in said[-1]
    late = Fake(port, 9)
    late.say("join", token="l")
    refused = late.hears("refused")
    assert "takes no more new ranks; allowed: 1 in all" in refused["why"] and not refused["later"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "join: HOST:PORT is missing"),
        (["a:1", "--lease", "3", "train"], "join: --lease; allowed: -n --threads"),
        (["a:1", "--stdin", "train"], "join: --stdin; allowed: -n --threads"),
    ],
)
def test_wrong_words_of_join_are_named(words, text, monkeypatch):
    monkeypatch.setenv(lines.SECRET, test_hosts.KEY)
    with pytest.raises(start.LaunchError, match=text):
        start.plan(start.join_words(words))


def test_the_words_of_join(monkeypatch):
    monkeypatch.setenv(lines.SECRET, test_hosts.KEY)
    made = start.plan(start.join_words(["a:1", "--grace", "5", "--bind", "none", "train"])).command
    text = " ".join(made)
    assert "-n 1 --coordinator a:1 --lease 5 --grace 5 --join" in text and "--node" not in made


def test_another_coordinator_tells_of_a_new_rank_once(coordinated):
    """The one before has told of those that were in the view."""
    begin, said = coordinated
    _, port = begin()
    memory = os.memfd_create("keeper")
    keeper, pages = _core.ViewKeeper(memory, 1, 4, 1), _core.ViewPages(memory, 4)

    def change(view, step):
        assert keeper.poll() == "stopping"
        tell(pages, 0, limit=step, limit_of=2 * view + 1)
        assert keeper.poll() == "goal"
        tell(pages, 0, report_of=(view << 16) + 1)
        assert keeper.poll() == "run"

    tell(pages, 1, ready=1)
    change(0, 5)
    tell(pages, 1, copied_of=2)
    keeper.poll()
    tell(pages, 2, ready=1)
    facts = {"size": 1, "nodes": 1, "respawn": 3, "started": True}
    newcomers = [[1, 0, ["127.0.0.1", 5]], [2, 0, ["127.0.0.1", 6]]]
    agent = Fake(port, 0).hello(**facts, newcomers=newcomers, serial=1, slot=pages.published().hex())
    agent.hears("start")
    told = {str(rank): pages.told(rank).hex() for rank in range(4)}
    agent.say("told", pages=told)
    assert agent.hears("view")["phase"] == "stopping"
    for rank in (0, 1):
        tell(pages, rank, limit=9, limit_of=3)
        tell(pages, rank, report_of=(1 << 16) + 1)
    agent.say("told", pages={str(rank): pages.told(rank).hex() for rank in range(4)})
    assert agent.hears("view")["phase"] == "copying"
    assert said == [
        "the coordinator goes on where another was",
        "rank 2 (new) joins in step 9; 3 ranks go on",
    ]


def test_another_coordinator_takes_over_new_ranks(coordinated):
    """Of a node that does not come back, too."""
    begin, said = coordinated
    _, port = begin()
    facts = {"size": 2, "nodes": 2, "respawn": 3, "started": True, "serial": 0}
    newcomers = [[2, 2, ["127.0.0.1", 5]], [3, 0, ["127.0.0.1", 6]]]
    wrong = Fake(port, 0).hello(**facts, newcomers=[[3, 0, ["127.0.0.1", 5]]])
    wrong.is_dropped()
    agents = [Fake(port, 0).hello(**facts, newcomers=newcomers), Fake(port, 1).hello(**facts)]
    assert any("new rank 3; allowed: 3 in the order of their numbers" in line for line in said)
    joined = Fake(port, 2).hello(**facts, newcomers=newcomers[:1], addresses=[])
    starts = [agent.hears("start") for agent in (*agents, joined)]
    assert all(one["newcomers"] == newcomers for one in starts)
    agents[1].say("want", addresses=[["127.0.0.1", 9]])
    given = agents[1].hears("given")
    assert given["ranks"] == [[4, ["127.0.0.1", 9]]]
    assert given["addresses"] == {"0": ["127.0.0.1", 1], "2": ["127.0.0.1", 5], "3": ["127.0.0.1", 6]}
