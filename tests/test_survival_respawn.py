"""Processes of `gossipgrad run --survive --respawn N` are killed while fit trains: new ones join in their place."""

from __future__ import annotations

import json
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import run_group
from survival_runs import ONE_WEIGHT_A_SAMPLE, survived
from test_net import RUN

import gossipgrad as gg
from gossipgrad import cluster
from gossipgrad.launch import agreement, failure, origin

SCRIPT = (
    ONE_WEIGHT_A_SAMPLE
    + """
mine = case.get("own", {}).get(str(me), {})
if mine.get("at") == "build": os.kill(os.getpid(), signal.SIGKILL)
if mine.get("at") == "slow":
    open(case["began"] + "slow", "w").close()
    signal.pause()
until, delay = set(case.get("until", [])), case.get("delay", 0.02)  # steps are slow until these train; none: always
optimizer = eval(case.get("optimizer", "gg.SGD(lr=0.1)")) if "lr" not in mine else gg.SGD(lr=mine["lr"])
trainer = gg.Trainer(net, loss="mean_squared_error", optimizer=optimizer,
                     strategy=eval(case.get("strategy", "gg.NoExchange()")),
                     straggler=gg.Straggler(probability=0.0 if until else 1.0, delay=delay))
base = np.zeros(samples, np.float32)

def own():
    return next(iter(trainer.weights().values())).ravel().copy()

class Dies(gg.Callback):
    every = 1
    epochs = []
    def _at(self, place):
        if mine.get("at") != place: return
        if "removes" in mine: shutil.rmtree(mine["removes"])
        os.kill(os.getpid(), signal.SIGKILL)
    def on_step(self, trainer, step):
        trainer.stop = trainer.stop or step >= case.get("stop", step + 1)
        if not until.issubset(trainer.members): time.sleep(delay)
        self._at(f"step {step}")
    def on_epoch_end(self, trainer, record): self.epochs.append(record["epoch"]); self._at(f"epoch {record['epoch']}")
    def on_view(self, trainer, change):
        global base
        assert trainer.step == change["step"] and trainer.size == len(change["ranks"])
        now = own()  # collective: the view may change again
        if me in change["joined"]:
            base = now
            here = int(os.environ["GOSSIPGRAD_NET_LOCAL_SIZE"])
            views = len(trainer.history.views)
            print(json.dumps({"joined": me, "rank": trainer.rank, "views": views, "here": here}), flush=True)
        self._at("view")
        if change["joined"]: self._at("joined")

history = trainer.fit(x, y, validation=(x[:50], y[:50]), epochs=case.get("epochs", 2), batch_size=2, progress=False,
                      resume=case.get("resume"), callbacks=[Dies(), *eval(case.get("callbacks", "[]"))])
rows = [np.frombuffer(one, np.float32) for one in trainer.gather((own() != base).astype(np.float32).tobytes())]
seen = trainer.gather(json.dumps(Dies.epochs).encode())
if trainer.rank == 0:
    print(json.dumps({
        "size": trainer.size, "views": history.views, "counts": np.stack(rows).sum(axis=0).tolist(),
        "samples": [record["samples"] for record in history],
        "members": trainer.members, "hashes": history.weights_sha256, "epochs": [json.loads(one) for one in seen]}))
"""
)


@pytest.fixture
def respawn(tmp_path):
    """respawn(ranks, case, N, code=0) -> (what rank 0 printed last, the newcomers' lines, stderr)."""

    def run(ranks, case, most, code=0):
        options = "--respawn", str(most), "-n", str(ranks)
        lines, errors = survived(tmp_path, SCRIPT, case, *options, code=code, seconds=100)
        joined = [line for line in lines if "joined" in line]
        ends = [line for line in lines if "size" in line]
        return (ends[-1] if ends else None), joined, errors

    return run


def names(views, key):
    return [rank for view in views for rank in view[key]]


@pytest.mark.core(2)
@pytest.mark.parametrize("dead", [0, 1])
def test_a_new_rank_joins_in_the_place_of_a_dead_one(dead, respawn):
    """Rank 0 is nothing special. Each sample of the only epoch is trained on by one living rank."""
    before = set(os.listdir("/dev/shm"))
    found, joined, errors = respawn(2, {"own": {str(dead): {"at": "step 4"}}, "epochs": 1, "until": [2]}, 1)
    assert "was ended by signal 9 (SIGKILL): 1 rank goes on" in errors
    assert [line["joined"] for line in joined] == [2], errors
    assert "rank 2 (new) joins in step" in errors and "; 2 ranks go on" in errors
    assert names(found["views"], "joined") == [2] and found["members"] == sorted({0, 1, 2} - {dead})
    assert set(found["counts"]) == {1}
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "gossipgrad" in name]


def test_new_ranks_die_and_are_replaced(respawn):
    """One while it builds, one when it has joined; and callbacks of the last one see the epochs that it joins."""
    own = {"1": {"at": "step 3"}, "3": {"at": "build"}, "4": {"at": "view"}}
    found, joined, errors = respawn(3, {"own": own, "epochs": 3, "strategy": "gg.GossipGraD()", "until": [5]}, 3)
    assert [line["joined"] for line in joined] == [4, 5], errors
    assert "rank 3 was ended by signal 9 (SIGKILL), before it had joined" in errors
    assert names(found["views"], "joined")[-1] == 5 and found["members"] == [0, 2, 5]
    assert found["epochs"][:2] == [[1, 2, 3], [1, 2, 3]] and found["epochs"][2] in ([1, 2, 3], [2, 3], [3])
    assert len(found["hashes"]) == 3


GOSSIP = ["gg.GossipGraD(staleness=1)", "gg.PushGossip()"]
SUMS = ["gg.LayerwiseAllReduce()", "gg.AllReduce()", "gg.PeriodicAllReduce(period=3)", "gg.DiLoCo(period=3, delay=1)"]


@pytest.mark.core(2)  # one of each list
@pytest.mark.parametrize("strategy", GOSSIP + SUMS)
def test_two_die_and_two_join(strategy, respawn):
    """Where all sum, the last epoch has each sample once. Sums of gradients leave all ranks equal."""
    own = {"0": {"at": "step 3"}, "2": {"at": "step 20"}}
    case = {"own": own, "strategy": strategy, "optimizer": "gg.Adam(lr=0.05)", "until": [3, 4]}
    found, joined, errors = respawn(3, case, 2)
    assert sorted(line["joined"] for line in joined) == [3, 4], errors
    assert found["members"] == [1, 3, 4] and found["size"] == 3
    assert strategy in GOSSIP or found["samples"][-1] == 600
    assert not strategy.endswith("AllReduce()") or len(set(found["hashes"])) == 1


def test_a_newcomer_of_a_group_that_is_to_stop_trains_the_epoch_to_its_end(respawn):
    """A callback has asked for the stop before the newcomer came; it is made after the epoch."""
    found, joined, errors = respawn(2, {"own": {"1": {"at": "step 4"}}, "epochs": 5, "stop": 5, "until": [2]}, 1)
    assert [line["joined"] for line in joined] == [2], errors
    assert found["epochs"] == [[1], [1]] and set(found["counts"]) == {1}


def test_monitors_of_a_new_rank_know_the_epochs_before(respawn, tmp_path):
    """The first epoch has the greatest loss: else the new rank would take its own first one for the best, and save."""
    how = "monitor='train_loss', mode='max'"
    callbacks = f"[gg.Checkpoint({str(tmp_path / 'run.safetensors')!r}, {how}), gg.EarlyStopping({how}, patience=9), "
    callbacks += f"gg.ReduceOnPlateau({how}, patience=1)]"
    case = {"own": {"1": {"at": "epoch 1"}}, "epochs": 4, "samples": 160, "callbacks": callbacks, "until": [2]}
    found, joined, errors = respawn(2, case, 1)
    assert [line["joined"] for line in joined] == [2] and found["epochs"][0] == [1, 2, 3, 4], errors
    assert "restore_best: the best epoch, 1, was before this fit, or before a new rank" in errors


GROWS = """
import json, os, signal
import numpy as np
import gossipgrad as gg

class Grows(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        if me == 1 and step == 3: os.kill(os.getpid(), signal.SIGKILL)
        if trainer.size == 1 and trainer.batch_size < 30: trainer.set_batch_size(30)
        trainer.stop = trainer.stop or any(view["joined"] for view in trainer.history.views)

me = int(os.environ["GOSSIPGRAD_NET_RANK"])
x = np.ones((40, 1), np.float32)
trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(1,)), loss="mean_squared_error",
                     straggler=gg.Straggler(probability=1.0, delay=0.02))
history = trainer.fit(x, x, epochs=10**4, batch_size=2, progress=False, callbacks=[Grows()])
changes = [json.loads(one) for one in trainer.gather(json.dumps(trainer.batch_changes).encode())]
if trainer.rank == 0:
    print(json.dumps({"size": trainer.size, "batch": trainer.batch_size, "changes": changes,
                      "settings": history.settings["batch_size_changes"]}))
"""


def test_a_new_rank_makes_batches_smaller_that_were_set_for_fewer(tmp_path):
    (found,), errors = survived(tmp_path, GROWS, {}, "-n", "2", "--respawn", "1")
    assert (found["size"], found["batch"]) == (2, 20), errors
    assert [change["batch_size"] for change in found["settings"]] == [30, 20]
    assert found["changes"] == [found["settings"]] * 2


@pytest.mark.core(1)
@pytest.mark.parametrize("ranks", [1, 2])  # that have saved
def test_a_new_rank_resumes_without_the_ranks_files(ranks, respawn, tmp_path):
    """It has none of its own, and a save of the others may remove those of another one."""
    saved = str(tmp_path / "run.safetensors")
    trainer = gg.Trainer(
        gg.Sequential([gg.Linear(1, bias=False)], input=(600,)),
        loss="mean_squared_error",
        optimizer=gg.SGD(lr=0.1),
        strategy=gg.NoExchange(),
        comm=None if ranks == 1 else gg.VirtualCluster(ranks),
    )
    x, y = np.eye(600, dtype=np.float32), np.ones((600, 1), np.float32)
    trainer.fit(x, y, epochs=1, batch_size=2, progress=False)
    trainer.save(saved)
    own = {"1": {"at": f"step {trainer.step + 4}", "removes": saved + ".state"}}
    found, joined, errors = respawn(2, {"own": own, "resume": saved}, 1)
    assert [line["joined"] for line in joined] == [2] and found["members"] == [0, 2], errors
    assert found["samples"] == [600, 600]


def test_counts_of_the_dead_stay_where_ranks_join(respawn):
    """Rank 0 counts what rank 2 has trained, a view without deaths comes, and rank 1 counts both."""
    own = {"2": {"at": "step 6"}, "0": {"at": "joined"}}
    found, joined, errors = respawn(3, {"own": own, "strategy": "gg.GossipGraD()", "epochs": 1, "until": [3]}, 1)
    assert [line["joined"] for line in joined] == [3] and found["members"] == [1, 3], errors
    assert names(found["views"], "died") == [2, 0] and 600 <= found["samples"][0] < 603


def test_a_newcomer_that_comes_too_late_ends_quietly(respawn):
    case = {"own": {"1": {"at": "epoch 1"}}, "epochs": 2, "samples": 16, "delay": 0.001}
    found, joined, errors = respawn(2, case, 1)
    assert found["members"] in ([0], [0, 2]) and "Traceback" not in errors
    assert len(joined) == len(found["members"]) - 1


@pytest.mark.core(1)
@pytest.mark.parametrize("strategy", ["gg.NoExchange()", "gg.AllReduce()"])
def test_another_optimiser_is_refused(strategy, respawn):
    """The newcomer dies before it has its state."""
    case = {"own": {"1": {"at": "step 3"}, "2": {"lr": 0.3}}, "epochs": 1, "strategy": strategy}
    found, joined, errors = respawn(2, case, 1)
    assert "this newcomer cannot join: lr is 0.3 here, 0.1 in the group" in errors
    assert not joined and found["members"] == [0] and found["samples"] == [600]
    assert "All" in strategy or set(found["counts"]) == {1}


REFUSED = """
import numpy as np
import gossipgrad as gg

elastic = gg.ElasticAveraging()
try:
    gg.Trainer(gg.Sequential([gg.Linear(1)], input=(2,)), strategy=elastic)
except ValueError as error:
    print(error)
gg.Exchange({"w": np.zeros(2)}, strategy=elastic)
"""


def test_what_newcomers_cannot_join_is_refused_at_the_start(tmp_path):
    """An error of all ranks, so nobody is replaced."""
    script = tmp_path / "script.py"
    script.write_text(REFUSED)
    done = run_group([*RUN, "--survive", "--respawn", "1", "-n", "2", str(script)], 100)
    assert done.returncode == 1, done.stderr
    refused = "not with the strategy elastic-averaging, which needs all ranks; allowed: "
    assert done.stdout.count(refused) == 2 and refused in done.stderr
    assert "on\n" not in done.stderr and "(new)" not in done.stderr


class _EndedError(Exception):
    pass


@pytest.mark.parametrize("size", [1, 2])  # that the job has begun with
@pytest.mark.parametrize("joined", [False, True])
def test_an_error_of_a_new_rank_ends_it_at_once(joined, size, monkeypatch):
    """Nobody knows it yet: it waits for no other rank's report, and leaves the one report of all ranks to them."""
    happened = []
    monkeypatch.setattr(failure, "launched_size", lambda: size)
    monkeypatch.setattr(failure, "launched_rank", lambda: size)
    monkeypatch.setattr(failure, "may_grow", lambda: True)
    monkeypatch.setattr(failure, "is_newcomer", lambda: True)
    monkeypatch.setattr(failure, "has_joined", joined)
    monkeypatch.setattr(failure, "first_to_report", lambda: happened.append("first") or False)
    monkeypatch.setattr(failure.time, "sleep", lambda seconds: happened.append(seconds))
    monkeypatch.setattr(failure, "_wait_until_read", lambda seconds: None)

    def end(code):
        raise _EndedError(code)

    monkeypatch.setattr(failure.os, "_exit", end)
    monkeypatch.setattr(failure, "by_net", lambda: True)
    monkeypatch.setattr(failure, "_reported", False)
    monkeypatch.setattr(failure, "threading", SimpleNamespace(Timer=lambda *_: SimpleNamespace(start=lambda: None)))
    with pytest.raises(_EndedError):
        failure.end_all_ranks(happened.append, 1, ValueError("its own"))
    assert happened == ([1.0, "first", 30.0, 0.1] if joined else [f"rank {size}: "])


@pytest.mark.parametrize("new", [0, 1])
def test_errors_of_a_rank_that_others_may_join_are_seen(new, monkeypatch):
    """An uncaught one, and sys.exit(1): else the end of the process waits for the others, which stand still."""
    for name in ("excepthook", "exit"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    for name in ("_guarded", "exits_with_error"):
        monkeypatch.setattr(failure, name, 0)
    monkeypatch.setattr(origin, "parent_rank", lambda: None)
    monkeypatch.setenv(origin.NET, json.dumps({"rank": 0, "members": 1, "size": 1 + new}))
    monkeypatch.setattr(failure, "launched_size", lambda: 1)
    before = sys.excepthook
    failure.guard()
    with pytest.raises(SystemExit):
        sys.exit(1)
    assert failure.exits_with_error == (new == 1) and (sys.excepthook is before) == (new == 0)


@pytest.mark.parametrize(("rank", "joined"), [(1, False), (1, True), (0, False)])
def test_all_ranks_that_train_together_agree_on_an_error(rank, joined, monkeypatch):
    """A new rank does before another group, when it has joined. The job has begun with one rank."""
    refused = []
    monkeypatch.setattr(origin, "parent_rank", lambda: None)
    monkeypatch.setenv(origin.NET, json.dumps({"rank": rank, "members": 1, "size": 2}))
    monkeypatch.setattr(failure, "launched_size", lambda: 1)
    monkeypatch.setattr(failure, "has_joined", joined)
    monkeypatch.setattr(cluster, "make_team", lambda *_, **__: "team")
    monkeypatch.setattr(agreement, "refuse", lambda *call: refused.append(call))
    error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong"):
        cluster.refuse(None, "Trainer", error)
    assert refused == ([] if rank == 1 and not joined else [("team", "Trainer", error)])
