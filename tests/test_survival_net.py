"""Processes of `gossipgrad run --survive` are killed while fit trains, and the others go on."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess

import numpy as np
import pytest
from conftest import run_group
from survival_runs import ONE_WEIGHT_A_SAMPLE, survived
from test_net import HEAD, RUN
from test_survival_allreduce import check_once

from gossipgrad.launch import lines, net_launcher, start

SCRIPT = (
    ONE_WEIGHT_A_SAMPLE
    + """
if case.get("began"): pathlib.Path(f"{case['began']}{me}.pid").write_text(str(os.getpid()))
strategy = eval(case.get("strategy", "gg.GossipGraD()"))
other = gg.Trainer(net, strategy=gg.NoExchange()) if case.get("again") else None
trainer = gg.Trainer(net, loss="mean_squared_error", optimizer=gg.SGD(lr=0.1), strategy=strategy,
                     straggler=gg.Straggler(probability=0.5, delay=case.get("delay", 0.01)))

def die(how):
    if how == "segv": signal.raise_signal(signal.SIGSEGV)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "host": os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)
    if how.startswith("stop"):
        if how != "stop": subprocess.Popen(["sh", "-c", f"sleep {how[4:]}; kill -CONT {os.getpid()}"])
        return os.kill(os.getpid(), signal.SIGSTOP)
    sys.exit(0) if how == "exit 0" else os._exit(int(how))

deaths = [one for one in case["deaths"] if one["rank"] == me]
prepare_rates = trainer.prepare_rates

def rates(*args):
    if trainer.history.views and any(one["at"] == "rates" for one in deaths): die("kill")
    return prepare_rates(*args)

trainer.__dict__["prepare_rates"] = rates

class Dies(gg.Callback):
    every = 1
    def _at(self, place):
        for one in deaths:
            if one["at"] == place: die(one.get("how", "kill"))
    def on_fit_begin(self, trainer): self._at("fit_begin")
    def on_epoch_begin(self, trainer, epoch):
        if case.get("began"): open(f"{case['began']}{me}", "w").close()
        self._at(f"epoch_begin {epoch}")
        for one in deaths:
            if isinstance(one["at"], float) and epoch == 1:
                threading.Timer(one["at"], die, (one.get("how", "kill"),)).start()
    def on_step(self, trainer, step): self._at(f"step {step}")
    def on_epoch_end(self, trainer, record):
        trainer.stop = trainer.stop or bool(case.get("stops") and trainer.history.views)
        self._at(f"epoch_end {record['epoch']}")
    def on_view(self, trainer, change):
        assert trainer.step == change["step"] and trainer.size == len(change["ranks"])
        self._at("view")

callbacks = [Dies()]
if case.get("checkpoint"): callbacks.append(gg.Checkpoint(case["checkpoint"], save_on_signal=case.get("saves", False)))
if case.get("csv"): callbacks.append(gg.CSVLogger(case["csv"]))
history = trainer.fit(x, y, validation=(x[:50], y[:50]), epochs=case.get("epochs", 2), batch_size=2, progress=False,
                      callbacks=callbacks)
own = next(iter(trainer.weights().values())).ravel()
rows = [np.frombuffer(one, np.float32) for one in trainer.gather(own.astype(np.float32).tobytes())]
if trainer.rank == 0:
    moved = np.stack(rows) != 0
    print(json.dumps({
        "size": trainer.size, "views": history.views, "counts": moved.sum(axis=0).tolist(),
        "weights": rows[0].tolist(), "epochs": len(history),
        "samples": [record["samples"] for record in history], "loss": history.epochs[0]["train_loss"],
        "hashes": history.weights_sha256}))
if other is not None:
    trainer.fit(x, y, epochs=1, batch_size=2, progress=False)
    for what in (lambda: other.fit(x, y, batch_size=2, progress=False), lambda: gg.Trainer(net)):
        try:
            what()
        except RuntimeError as error:
            print("again:", error, file=sys.stderr)
    print(f"in all {len(trainer.history)}", file=sys.stderr)
"""
)


FEW = 240  # samples where deaths come at known steps


@pytest.fixture
def survive(tmp_path):
    """survive(ranks, case, *options) -> (what rank 0 printed, stderr); the exit code must be 0."""

    def run(ranks, case, *options, code=0):
        found, errors = survived(tmp_path, SCRIPT, case, "-n", str(ranks), *options, code=code)
        return (found[-1] if found else None), errors

    return run


def died(found):
    return sorted(rank for view in found["views"] for rank in view["died"])


def check(found, ranks, dead, epochs=2, samples=600):
    """The last view may have fewer samples than ranks left: each rank then has one."""
    assert died(found) == sorted(dead) and found["size"] == ranks - len(dead) and found["epochs"] == epochs
    assert all(count >= 1 for count in found["counts"])
    assert all(samples <= one < samples + ranks for one in found["samples"])
    numbers = [view["view"] for view in found["views"]]  # two changes at one step are told as one
    assert numbers == sorted(set(numbers))


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("ranks", "death"),
    [
        (3, {"rank": 0, "at": "step 7"}),
        (2, {"rank": 1, "at": "epoch_end 1"}),
        (3, {"rank": 2, "at": "step 30", "how": "137"}),
        (3, {"rank": 1, "at": "step 9", "how": "3"}),
        (3, {"rank": 1, "at": "step 9", "how": "exit 0"}),
        (2, {"rank": 0, "at": "step 11", "how": "segv"}),
        (4, {"rank": 3, "at": "epoch_begin 2"}),
        (3, {"rank": 1, "at": "fit_begin"}),
    ],
)
def test_one_death_at_a_known_place(ranks, death, survive):
    """A callback of one rank ends it: between two steps, at the ends of an epoch, by every kind of exit."""
    found, errors = survive(ranks, {"deaths": [death], "again": True, "samples": FEW})
    check(found, ranks, [death["rank"]], samples=FEW)
    assert re.search(rf"rank {death['rank']} .*: {ranks - 1} ranks? goe?s? on|rank {death['rank']} .*go on", errors)
    assert errors.count("in all 3") == ranks - 1  # another fit of this trainer is allowed, another trainer's is not
    assert errors.count("again: Trainer.fit: the ranks have changed") == ranks - 1
    assert len(re.findall(r"again: rank \d: the ranks have changed", errors)) == ranks - 1


@pytest.mark.core(1)
def test_the_last_step_of_a_dead_rank_is_trained_again(survive):
    """It dies between two steps: that nobody has received its step is told as well. A step has two samples."""
    found, _ = survive(2, {"deaths": [{"rank": 1, "at": "step 4"}], "strategy": "gg.NoExchange()", "samples": 40})
    assert [view["trained_again"] for view in found["views"]] == [8]
    assert found["samples"] == [40, 40]


@pytest.mark.core(1)
@pytest.mark.parametrize(
    "seed", [0, 1, 4, 5, 6, 7, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 8, 9, 10, 11))]
)
def test_a_random_death_loses_no_sample(seed, survive):
    """Without an exchange nothing of a dead rank counts: the survivors train on each sample exactly once."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 4])
    dead = draw.sample(range(ranks), 1)
    deaths = [{"rank": rank, "at": draw.uniform(0.01, 0.2)} for rank in dead]
    found, _ = survive(ranks, {"deaths": deaths, "strategy": "gg.NoExchange()", "epochs": 1})
    check(found, ranks, dead, epochs=1)
    assert set(found["counts"]) == {1}


@pytest.mark.core(3)  # three strategies
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "strategy",
    [
        "gg.GossipGraD()",
        "gg.GossipGraD(staleness=1)",
        "gg.GossipGraD(exchange='weights', slices=2)",
        "gg.PushGossip()",
        "gg.PeriodicAllReduce(period=3)",
        "gg.DiLoCo(period=5, fragments=2)",
    ],
)
def test_random_deaths_by_strategy(strategy, seed, survive):
    draw = random.Random(seed * 31 + len(strategy))
    ranks = draw.choice([2, 3, 4])
    dead = draw.sample(range(ranks), draw.randint(1, ranks - 1))
    deaths = [{"rank": rank, "at": draw.uniform(0.01, 0.25)} for rank in dead]
    found, _ = survive(ranks, {"deaths": deaths, "strategy": strategy})
    check(found, ranks, dead)


@pytest.mark.core(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_deaths_on_several_nodes(seed, survive):
    """Ranks of other nodes are reached by sockets, which end before the view tells of the death."""
    draw = random.Random(seed)
    deaths = [{"rank": rank, "at": draw.uniform(0.01, 0.2)} for rank in draw.sample(range(4), 2)]
    found, _ = survive(4, {"deaths": deaths}, "--nodes", "2")
    check(found, 4, [one["rank"] for one in deaths])


@pytest.mark.core(2)  # one of each form
@pytest.mark.parametrize("seed", range(6))
def test_sums_of_gradients(seed, survive):
    """Replicas stay bit-equal, and a step counts for all ranks or for none: no sample is lost, none counts twice."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 4])
    dead = draw.sample(range(ranks), draw.randint(1, ranks - 1))
    deaths = [{"rank": rank, "at": draw.uniform(0.01, 0.1)} for rank in dead]
    strategy = "gg.LayerwiseAllReduce(chunk_bytes=256)" if seed % 2 else "gg.AllReduce()"
    found, _ = survive(ranks, {"deaths": deaths, "strategy": strategy, "epochs": 1, "delay": 0.004})
    assert died(found) == sorted(dead) and found["size"] == ranks - len(dead)
    assert len(set(found["hashes"])) == 1
    check_once(np.array(found["weights"]))


STRATEGIES = [
    "gg.GossipGraD()",
    "gg.GossipGraD(staleness=1)",
    "gg.GossipGraD(exchange='weights', slices=2)",
    "gg.PullGossip()",
    "gg.PushGossip(push_sum=True)",
    "gg.NoExchange()",
    "gg.AllReduce()",
    "gg.LayerwiseAllReduce(chunk_bytes=256)",
    "gg.PeriodicAllReduce(period=3)",
    "gg.DiLoCo(period=5, fragments=2)",
]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_random_moments(ranks, seed, survive):
    """Any strategy, moment and kind of exit, often two at once or one in the change; half of the ranks die at most."""
    draw = random.Random(1000 * ranks + seed)
    dead = draw.sample(range(ranks), draw.randint(1, max(1, ranks // 2)))
    moment = draw.uniform(0.005, 0.3)
    deaths = []
    for rank in dead:
        phase = draw.choice(["view", "rates", "epoch_end 1", "epoch_begin 2", f"step {draw.randint(1, 60)}"])
        at = draw.choice([moment, moment, draw.uniform(0.005, 0.3), phase])
        deaths.append({"rank": rank, "at": at, "how": draw.choice(["kill", "kill", "segv", "3", "0"])})
    if not any(one["at"] not in ("view", "rates") for one in deaths):
        deaths[0]["at"] = moment  # else no view changes
    found, _ = survive(
        ranks, {"deaths": deaths, "strategy": draw.choice(STRATEGIES)}, *draw.choice([[], ["--nodes", "2"]])
    )
    assert found["epochs"] == 2 and found["size"] == ranks - len(died(found)) and set(died(found)) <= set(dead)
    check(found, ranks, died(found))


def test_two_at_once_and_one_in_the_change(survive):
    deaths = [{"rank": 0, "at": "step 8"}, {"rank": 3, "at": "step 8"}, {"rank": 1, "at": "view"}]
    found, _ = survive(4, {"deaths": deaths, "samples": FEW})
    check(found, 4, [0, 1, 3], samples=FEW)


def test_one_in_the_calls_of_a_change(survive):
    """Callbacks hear of the changes in their order, each with the ranks that train then."""
    deaths = [{"rank": 0, "at": "step 8"}, {"rank": 1, "at": "rates"}]
    found, _ = survive(4, {"deaths": deaths, "samples": FEW})
    check(found, 4, [0, 1], samples=FEW)


def test_files_of_rank_0_go_on(survive, tmp_path):
    case = {"deaths": [{"rank": 0, "at": "epoch_end 1"}], "epochs": 3, "samples": FEW}
    case |= {"csv": str(tmp_path / "run.csv"), "checkpoint": str(tmp_path / "run.safetensors")}
    found, _ = survive(3, case)
    check(found, 3, [0], epochs=3, samples=FEW)
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 4
    import gossipgrad as gg

    assert len(gg.Trainer.load(tmp_path / "run.safetensors", comm=gg.VirtualCluster(2)).history) == 3


def test_a_rank_that_is_stopped_for_too_long_dies(survive):
    case = {"deaths": [{"rank": 1, "at": "step 9", "how": "stop"}], "samples": FEW}
    found, errors = survive(3, case, "--stopped", "0.2")
    check(found, 3, [1], samples=FEW)
    assert "rank 1 has been stopped for more than 0.2 s: killed" in errors


def test_others_wait_for_a_rank_that_goes_on(survive):
    case = {"deaths": [{"rank": 1, "at": "step 9", "how": "stop 0.2"}], "samples": FEW}
    found, errors = survive(2, case, "--stopped", "30")
    check(found, 2, [], samples=FEW)
    assert "killed" not in errors


def test_stops_are_counted_while_the_launcher_looks():
    with subprocess.Popen(["sleep", "60"]) as process:
        stops = net_launcher.Stops(1.0)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert [stops.too_long([process.pid], now) for now in (0.0, 0.4, 0.8)] == [[]] * 3
        assert stops.too_long([process.pid], 1.2) == [process.pid]
        assert stops.too_long([process.pid], 9.0) == []  # the launcher was stopped, too
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert [stops.too_long([process.pid], now) for now in (9.4, 9.8, 10.2)] == [[]] * 3
        process.kill()


def test_too_few_ranks_end(survive):
    found, errors = survive(3, {"deaths": [{"rank": 1, "at": "step 5"}]}, "--min-ranks", "3", code=137)
    assert found is None and "rank 1 was ended by signal 9 (SIGKILL): all end" in errors


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_outside_of_fit_the_end_of_a_rank_is_an_error(nodes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + "if team.rank == 1: sys.exit(0)\nwhile True: team.allreduce(x)\n")
    done = run_group([*RUN, "--survive", "--nodes", nodes, "-n", "2", str(script)], 60, env=dict(os.environ))
    assert done.returncode == 1 and ("which has ended" in done.stderr or "a rank has died" in done.stderr)


def test_an_error_of_all_ranks_ends_all(survive):
    found, errors = survive(2, {"deaths": [], "strategy": "gg.OverlappedAveraging()"}, code=1)
    assert found is None and "needs all ranks" in errors and "go on" not in errors


HOSTS = ["--coordinator", "a:1", "--nodes", "2", "--node", "0"]


@pytest.mark.core(10)
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--transport", "mpi", "--survive"], "--survive with --transport mpi"),
        (["--stopped", "3"], "--stopped without --survive"),
        (["--respawn", "1"], "--respawn without --survive"),
        (
            ["--survive", "--nodes", "2", "--respawn", "1"],
            "--respawn with --nodes 2; allowed: --nodes 1, --coordinator",
        ),
        (["--survive", *HOSTS, "--respawn", "5000"], "--respawn is '5000'; allowed: 1 to 4094"),
        (["--survive", "--node", "0"], "--node without --coordinator; allowed: with it"),
        (["--coordinator", "a:1"], "--coordinator without --survive; allowed: with it"),
        (["--survive", "--coordinator", "a"], "--coordinator is 'a'; allowed: HOST:PORT"),
        (["--survive", "--coordinator", "a:1"], "GOSSIPGRAD_SECRET has 0 characters; allowed: at least 16"),
        (["--survive", "--stopped", "nan"], "--stopped is 'nan'; allowed: more than 0, at most 86400 seconds"),
    ],
)
def test_wrong_options_are_named(words, text, monkeypatch):
    monkeypatch.setenv(lines.SECRET, "0" * 64 if "--nodes" in words else "")
    with pytest.raises(start.LaunchError, match=re.escape(text)):
        start.plan(["-n", "2", "--transport", "net", *words, "train"])
