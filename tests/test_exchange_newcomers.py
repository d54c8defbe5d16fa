"""Processes of `gossipgrad run --survive --respawn N` in loops of their own around gg.Exchange: new ones join."""

from __future__ import annotations

import pytest
from conftest import DEADLINE
from survival_runs import survived

SCRIPT = """
import gc, json, os, pathlib, signal, time
import numpy as np
import gossipgrad as gg
from gossipgrad.launch import joining

case = json.loads(os.environ["CASE"])
here = pathlib.Path(case["here"])
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
mine = case.get("own", {}).get(str(me), {})
(here / f"pid{me}").write_text(str(os.getpid()))

def say(**what): print(json.dumps({"me": me, **what}), flush=True)

def view():
    facts = json.loads(FACTS)
    return gg._core.ViewPages(facts["views"], facts["size"]).view()

FACTS = os.environ["GOSSIPGRAD_NET"]
check = joining.check
def kill_donor(theirs, own):
    # The next view, with another donor, has come before this newcomer goes on with the first one.
    check(theirs, own)
    now = view()
    if now["ranks"][0] == 0:
        os.kill(int((here / "pid0").read_text()), signal.SIGKILL)
        while view()["view"] == now["view"]: time.sleep(0.01)
if "kills" in mine: joining.check = kill_donor

def on_view(x, change):
    state = x.state_dict()
    new = {rank: state["ranks"][change["ranks"].index(rank)] for rank in change["joined"]}
    say(change=change, size=x.size, steps=x.steps, view=x.view.number, members=x.view.members)
    for one in new.values():
        equal = [all(np.array_equal(one[arena][name], other[arena][name]) for arena in one for name in one[arena])
                 for other in state["ranks"]]
        alike = [other for other, same in zip(change["ranks"], equal) if same]
        say(alike=alike, arenas=sorted(one), moved=bool(np.any(one["momentum"]["w"])), since=state["moments_since"])

def made(**options):
    return gg.Exchange({"w": np.zeros(40), "v": np.full((500, 3), float(me))}, strategy=eval(case["strategy"]),
                       optimizer=gg.Adam(lr=0.1), on_view=on_view, seed=options.pop("seed", 0), **options)

if me >= 3: (here / "new").touch()
network = gg.Network(latency=1e-5) if "slow" in case else None
if "second" in case and me < 3:
    made().close()
if "wrong" in mine:
    for wrong in mine["wrong"]:
        try:
            made(**wrong)
        except ValueError as error:
            say(error=str(error))
    gc.collect()
    raise SystemExit(1)
x = made(network=network)
if me >= 3: say(rank=x.rank, size=x.size, steps=x.steps, lr=x.learning_rate, changes=x.view.changes)
while x.view.number < case["until"] or x.steps < x.view.changes[-1]["step"] + 5:
    if mine.get("at") == x.steps: os.kill(os.getpid(), signal.SIGKILL)
    if x.steps == 2: x.learning_rate = 0.05
    if me == 0 and x.steps > 3 and x.view.number == 1 and "late" in case:
        while not (here / "new").exists(): time.sleep(0.01)
        time.sleep(0.05)  # the newcomer is ready while the others wait for this rank, in step(samples=1)
    else:
        time.sleep(0.01)
    x.gradients["w"], x.gradients["v"] = np.full(40, 1.0 + me), x.weights["v"]
    x.step(samples=1)
    x.consensus_distance()  # the newcomer, which begins with a step, makes it as well
say(end=x.view.members, distance=x.consensus_distance())
x.close()
"""


@pytest.fixture
def respawn(tmp_path):
    """respawn(case, N) -> (the lines of all ranks, stderr); 3 ranks."""

    def run(case, most):
        options = "--respawn", str(most), "-n", "3"
        lines, errors = survived(tmp_path, SCRIPT, {"here": str(tmp_path), **case}, *options, seconds=DEADLINE)
        return lines, errors

    return run


def of(lines, key):
    return [line for line in lines if key in line]


def test_a_new_rank_joins_in_the_place_of_a_dead_one(respawn):
    """It has its donor's bits and rate, and its own machine; a collective call of the others ends before it joins."""
    case = {"own": {"1": {"at": 3}}, "strategy": "gg.GossipGraD()", "until": 2, "slow": True, "late": True}
    lines, errors = respawn(case, 1)
    assert "rank 3 (new) joins in step" in errors and "; 3 ranks go on" in errors
    (new,) = of(lines, "lr")
    assert new["rank"] == 2 and new["size"] == 3 and new["lr"] == 0.05
    changes = [line for line in of(lines, "change") if line["change"]["joined"]]
    assert sorted(line["me"] for line in changes) == [0, 2, 3]
    for line in changes:
        assert line["change"]["joined"] == [3] and line["members"] == [0, 2, 3] and line["size"] == 3
        assert line["steps"] == line["change"]["step"] == new["steps"] and line["view"] == 2
    alike = of(lines, "alike")
    assert len(alike) == 3 and all(line["alike"] == [0, 3] and line["moved"] for line in alike)
    assert all(line["arenas"] == ["momentum", "second_moment", "weight"] for line in alike)
    assert [one["view"] for one in new["changes"]] == [2] and new["changes"][0]["joined"] == [3]
    ends = of(lines, "end")
    assert [line["end"] for line in ends] == [[0, 2, 3]] * 3 and len({line["distance"] for line in ends}) == 1


def test_a_donor_dies_before_the_copy_is_whole(respawn):
    """The next view, with another donor, comes while the newcomer still takes the first one's state."""
    case = {"own": {"1": {"at": 3}, "3": {"kills": True}}, "strategy": "gg.NoExchange()", "until": 3}
    lines, errors = respawn(case, 1)
    assert "rank 0 was ended by signal 9 (SIGKILL)" in errors
    assert sorted(line["me"] for line in of(lines, "end")) == [2, 3]
    joined = {line["me"]: line["change"] for line in of(lines, "change") if line["change"]["joined"]}
    assert joined[2]["died"] == joined[3]["died"] == [0] and joined[2]["joined"] == joined[3]["joined"] == [3]
    assert joined[2]["ranks"] == [2, 3] and {line["alike"][0] for line in of(lines, "alike")} == {2}


def test_other_options_are_refused(respawn):
    """The newcomer is in another loop of its script. It dies before it has its state, and the others go on."""
    own = {"1": {"at": 3}, "3": {"wrong": [{"seed": -1}, {}]}}
    case = {"own": own, "strategy": "gg.PullGossip()", "until": 3, "second": True}
    lines, errors = respawn(case, 1)
    assert [line["error"] for line in of(lines, "error")] == [
        "seed=-1: allowed: an integer of at least 0",
        "this newcomer cannot join: it has made 1 of its script's groups of ranks, the others 2; allowed: the first "
        "training of a script",
    ]
    assert "rank 3 ended with exit code 1: 2 ranks go on" in errors
    assert [line["end"] for line in of(lines, "end")] == [[0, 2]] * 2
    late = [line["change"] for line in of(lines, "change") if line["view"] > 1]
    assert [(change["ranks"], change["died"], change["joined"]) for change in late] == [([0, 2], [], [])] * 2
