"""Ranks of `gossipgrad run --survive` are killed in loops of their own, around gg.Exchange and PyTorch modules."""

from __future__ import annotations

import random
import re

import pytest
from conftest import DEADLINE
from survival_runs import NET, survived

COMMON = """
import json, os, signal, sys, threading, time
import numpy as np
import gossipgrad as gg
import gossipgrad.launch.surviving

case = json.loads(os.environ["CASE"])
samples = case.get("samples", 240)
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
strategy = eval(case.get("strategy", "gg.NoExchange()"))
timers = []

def at(place):
    for rank, where, seconds in case.get("sleeps", []):
        if rank == me and where == place:
            time.sleep(seconds)
    for rank, where, how in case["deaths"]:
        if rank == me and isinstance(where, float) and place == 0:
            timers.append(threading.Timer(where, os.kill, (os.getpid(), signal.SIGKILL)))
            timers[-1].start()
        if rank == me and where == place:
            if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
            if how == "_exit": os._exit(0)
            if how == "end":
                gossipgrad.launch.surviving.TO_END = 0.3
                sys.exit(0)
            if how == "error": raise ValueError("of this rank alone")
            sys.exit(3)
"""

EXCHANGE = (
    COMMON
    + """
x = gg.Exchange({"w": np.zeros(samples), "v": np.zeros(case.get("elements", 30000))}, strategy=strategy,
                optimizer=gg.SGD(lr=1.0), on_view=lambda x, change: at("view"))
if case.get("second"):
    gg.Exchange({"w": np.zeros(3)})
division = gg.Division(samples, 3, x, seed=2)
for batch in division:
    g = np.zeros(samples, np.float32)
    g[batch] = -1
    at(x.steps)
    if case.get("all") == x.steps:
        x.load_weights({"w": np.zeros(x.rank), "v": x.weights["v"]})
    x.step({"w": g, "v": x.weights["v"]})
for timer in timers:
    timer.cancel()  # one that came too late
at("state")
state = x.state_dict()
x.load_state_dict(state)
distance = x.consensus_distance()
at("end")
if x.rank == 0:
    moved = sum(np.asarray(one["weight"]["w"]) for one in state["ranks"])
    print(json.dumps({"members": x.view.members, "moved": moved.tolist(), "changes": x.view.changes, "steps": x.steps}))
if case.get("close", True):
    x.close()
if case.get("again"):
    try:
        gg.Exchange({"w": np.zeros(3)})
    except RuntimeError as error:
        print("again:", error, file=sys.stderr)
"""
)

TORCH = (
    COMMON
    + """
import torch
import gossipgrad.torch
from torch.utils.data import DataLoader, TensorDataset
"""
    + NET
    + """
model = gg.torch.wrap(Net(), gg.SGD(lr=1.0), strategy, on_view=lambda model, change: at("view"))
sampler = gg.torch.BatchSampler(range(samples), 3, model, seed=2)
workers = case.get("workers", 0)
loader = DataLoader(TensorDataset(torch.eye(samples)), batch_sampler=sampler, num_workers=workers,
                    multiprocessing_context="fork" if workers else None)
unused = 0

def look_at_outputs():
    global unused
    model(torch.eye(samples)[:3])
    unused += 1

while sampler.left:
    for (batch,) in loader:
        at(model.steps)
        (-model(batch).sum()).backward()
        model.step()
        if model.steps == case.get("last"):  # of the epoch
            look_at_outputs()
            at("last")
if "last" in case:
    look_at_outputs()
at("state")
state = model.training_state()
model.load_training_state(state)
one = model.consensus_training_state()
whole, distance = model.consensus_state_dict(), model.consensus_distance()
own = model.module.w.weight.detach().numpy().ravel()
rows = [np.frombuffer(row, np.float32) for row in model._group.team.allgather(own.tobytes())]
assert state["rank"] == model.rank and state["size"] == model.size == len(model.view.members)
assert int(model.module.mine) == (1 + me) * (model.steps + unused)  # a buffer stays the rank's own
at("end")
if model.rank == 0:
    print(json.dumps({"members": model.view.members, "moved": sum(rows).tolist(), "changes": model.view.changes,
                      "steps": model.steps, "mean": float(whole["w.weight"].sum())}))
if case.get("close", True):
    model.close()
"""
)


LOADS = (
    COMMON
    + """
x = gg.Exchange({"w": np.zeros(samples)}, strategy=strategy)

def train(until):
    while x.steps < until:
        x.step({"w": np.zeros(samples, np.float32)})

states = []
for steps in (2, 4, 9):
    train(steps)
    states.append(x.state_dict())
x.load_state_dict(states[1])
at("loaded")
distance = x.consensus_distance()
refused = ""
try:
    x.load_state_dict(states[0])
except ValueError as error:
    refused = str(error)
at("refused")
train(9)
if x.rank == 0:
    print(json.dumps({"members": x.view.members, "changes": x.view.changes, "steps": x.steps, "refused": refused}))
x.close()
"""
)


ALONE = (
    COMMON
    + """
x = gg.Exchange({"w": np.zeros(samples)}, strategy=strategy)
while x.steps < 9:
    at(x.steps)
    if me == 0 and x.steps == 3:
        x.state_dict()
    x.step({"w": np.zeros(samples, np.float32)})
print(json.dumps({"members": x.view.members}))
x.close()
"""
)


BESIDE = (
    COMMON
    + """
team = gg.Team()
x = gg.Exchange({"w": np.zeros(samples)}, strategy=strategy)
for step in range(9):
    at(step)
    if me == 1 and step == 6:
        try:
            team.barrier()
        except gg.PeerError as error:
            print(json.dumps({"error": str(error)}))
    x.step({"w": np.zeros(samples, np.float32)})
x.close()
"""
)


@pytest.fixture
def survive(tmp_path):
    """survive(script, ranks, case) -> (what the lowest rank printed, stderr)."""

    def run(text, ranks, case, *options, code=0):
        words = "-n", str(ranks), *options
        lines, errors = survived(tmp_path, text, case, *words, code=code, seconds=DEADLINE, OMP_NUM_THREADS="1")
        return (lines[-1] if lines else None), errors

    return run


def check(found, ranks, dead, exact=True):
    assert found["members"] == [rank for rank in range(ranks) if rank not in dead]
    assert sorted(rank for change in found["changes"] for rank in change["died"]) == sorted(dead)
    if exact:  # without an exchange nothing of the dead counts: the survivors train on each sample once
        assert set(found["moved"]) == {1.0}


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("ranks", "deaths"),
    [
        (3, [(0, 5, "kill"), (2, 9, "_exit")]),
        (2, [(0, 4, "error")]),
        (3, [(0, 7, "exit"), (1, "view", "kill")]),
        (3, [(2, "state", "kill")]),
        (3, [(1, 8, "end")]),
    ],
)
def test_one_exchange(ranks, deaths, survive):
    """Between two steps, in a change of the view and in a collective call, by every kind of exit."""
    found, errors = survive(EXCHANGE, ranks, {"deaths": deaths, "again": True})
    check(found, ranks, [rank for rank, _, _ in deaths], exact=all(where != "state" for _, where, _ in deaths))
    assert errors.count("on\n") >= len(deaths)
    refused = re.findall(r"again: rank \d: the ranks have changed since the script's first training", errors)
    assert len(refused) == ranks - len(deaths)  # another one is refused on each rank


@pytest.mark.core(1)
@pytest.mark.parametrize("step", [10, 26])
def test_a_death_while_a_rank_stands_at_the_end_of_the_epoch(step, survive):
    """Rank 0 stands there, rank 2 comes later, and both have more to train when rank 1 has died."""
    found, _ = survive(EXCHANGE, 3, {"deaths": [(1, 5, "kill")], "sleeps": [(1, 5, 0.5), (2, step, 1.0)]})
    check(found, 3, [1])


@pytest.mark.core(1)
@pytest.mark.parametrize("seed", range(6))
def test_random_deaths_lose_no_sample(seed, survive):
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 4])
    dead = draw.sample(range(ranks), draw.randint(1, ranks - 1))
    strategy = draw.choice(["gg.NoExchange()", "gg.GossipGraD()", "gg.GossipGraD(staleness=1)"])
    deaths = [(rank, draw.uniform(0.001, 0.03), "kill") for rank in dead]
    found, _ = survive(EXCHANGE, ranks, {"deaths": deaths, "strategy": strategy, "samples": 900})
    if found is None:  # the last rank has died before it had printed
        return
    alive = [rank for rank in dead if rank in found["members"]]  # a timer that came too late
    within = not alive and all(change["step"] < found["steps"] for change in found["changes"])  # the epoch
    check(found, ranks, [rank for rank in dead if rank not in alive], exact="NoExchange" in strategy and within)


def test_an_end_without_close_is_no_death(survive):
    found, errors = survive(EXCHANGE, 3, {"deaths": [], "close": False}, "--min-ranks", "3")
    check(found, 3, [])
    assert "on\n" not in errors and "all end" not in errors


def test_an_error_that_all_raise_together_ends_all(survive):
    found, errors = survive(EXCHANGE, 2, {"deaths": [], "all": 5}, code=1)
    assert found is None and "'w' has shape" in errors and "on\n" not in errors


def test_a_team_beside_an_exchange_says_that_it_does_not_go_on(survive):
    """Rank 2 waits in the change of the view for rank 1, which waits in a barrier for rank 2."""
    found, _ = survive(BESIDE, 3, {"deaths": [(0, 5, "kill")]})
    assert "rank 0 has died, and a gg.Team does not go on without it" in found["error"]


def test_a_call_of_one_rank_alone_ends_after_a_death(survive):
    """Rank 0 waits in it, while rank 2 comes to a later step."""
    case = {"deaths": [(1, 5, "kill")], "sleeps": [(1, 5, 0.5), (2, 6, 1.0)]}
    found, errors = survive(ALONE, 3, case)
    assert found["members"] == [2] and "the others go on in step 7, which this rank does not reach" in errors


def test_one_object_of_a_process_goes_on(survive):
    found, errors = survive(EXCHANGE, 2, {"deaths": [], "second": True}, code=1)
    assert found is None and "Exchange: not beside Exchange, where ranks may die" in errors


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("ranks", "deaths", "options"),
    [
        (3, [(0, 6, "kill"), (2, 9, "kill")], {"workers": 2}),
        (2, [(1, 7, "kill")], {"strategy": "gg.GossipGraD()", "close": False}),
        (3, [(1, "state", "kill")], {}),
    ],
)
def test_a_module_of_torch(ranks, deaths, options, survive):
    """What workers have read ahead stays with its rank. States of all kinds after the change load."""
    pytest.importorskip("torch")
    found, errors = survive(TORCH, ranks, {"deaths": deaths, "samples": 120, **options})
    assert "Traceback" not in errors  # of a rank that has not printed
    exact = "strategy" not in options and all(where != "state" for _, where, _ in deaths)
    check(found, ranks, [rank for rank, _, _ in deaths], exact)
    assert all(value > 0 for value in found["moved"]) or deaths[0][1] == "state"


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("place", "late"), [("state", [1]), ("last", [1]), ("last", [0, 2])], ids=["a call", "a meeting", "nobody waits"]
)
def test_a_death_after_a_forward_pass_that_no_step_uses(place, late, survive):
    """The others have begun a step that they do not make before the collective call."""
    pytest.importorskip("torch")
    case = {"deaths": [(1, place, "kill")], "sleeps": [(rank, place, 0.5) for rank in late], "last": 7}
    found, _ = survive(TORCH, 3, {"samples": 60, **case})
    check(found, 3, [1], exact=place == "last")
    assert found["changes"][0]["step"] == 7


@pytest.mark.core(1)
def test_a_death_after_an_earlier_state_was_loaded(survive):
    """Not one from before the last change: the next death would end the launcher."""
    deaths = [(1, "loaded", "kill"), (2, "refused", "kill")]
    found, _ = survive(LOADS, 3, {"deaths": deaths, "sleeps": [(1, "loaded", 0.5), (0, "refused", 0.5)]})
    check(found, 3, [1, 2], exact=False)
    assert found["changes"][0]["step"] == 4 and found["steps"] == 9
    assert "is of step 2, and the ranks have changed at step 4" in found["refused"]
