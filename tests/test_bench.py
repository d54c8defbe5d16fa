"""gossipgrad bench --exchange: any strategy, any model, against no exchange, in alternating blocks."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys

import pytest
from conftest import ROOT

import gossipgrad as gg
from gossipgrad import bench, cli

ALL = """
from gossipgrad import cli, strategies
for name in strategies.BY_NAME:
    words = f"bench --exchange --strategy {name} --model mlp --batch-size 4 --steps 2 --blocks 3 --warmup 1"
    assert cli.main(words.split()) == 0
words = "bench --exchange weights --strategy gossipgrad --staleness 1 --model lenet --batch-size 3 --steps 1 --blocks 2"
assert cli.main(words.split()) == 0
"""


@pytest.mark.full
def test_every_strategy_under_mpi(mpirun):
    done = mpirun(2, ALL)
    *records, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["strategy"] for record in records] == list(gg.strategies.BY_NAME)
    for record in [*records, last]:
        assert record["mode"] == "exchange" and record["ranks"] == 2
        for key in ("ms_no_exchange", "ms_strategy"):
            blocks = record[f"{key}_blocks"]
            assert len(blocks) == record["blocks"] and min(blocks) > 0
            assert record[key] == pytest.approx(statistics.median(blocks), abs=1e-4)
        assert record["ratio"] == pytest.approx(record["ms_no_exchange"] / record["ms_strategy"], abs=1e-3, rel=1e-3)
    assert last["model"] == "lenet" and last["exchange"] == "weights" and last["staleness"] == 1


def test_every_option_of_a_strategy_is_one_of_bench():
    commands = cli.parser()._subparsers._group_actions[0].choices
    train, timing = ({a.dest for a in commands[name]._actions} for name in ("train", "bench"))
    keys = {field.name for made in gg.strategies.BY_NAME.values() for field in dataclasses.fields(made)}
    assert keys <= train
    assert keys - {"shuffle_samples"} <= timing  # a step of bench reads no samples
    for by_name in (gg.optim.BY_NAME, gg.schedules.BY_NAME):
        assert {field.name for made in by_name.values() for field in dataclasses.fields(made)} - {"schedule"} <= train


CIRCUMSTANCES = """
from gossipgrad import cli
bench = "bench --exchange --model mlp --batch-size 4 --steps 3 --blocks 2 --warmup 1 --strategy allreduce"
late, slow = "--straggler-probability 1 --straggler-delay 0.02", "--latency 0.03 --bandwidth 2e7"
for words in (late, slow, f"{late} {slow}"): assert cli.main([*bench.split(), *words.split()]) == 0
"""


@pytest.mark.full
def test_a_slow_network_on_one_machine(mpirun):
    """No step is shorter than its delay, or than a reduce-scatter and an all-gather over these links."""
    late, slow, both = (json.loads(line) for line in mpirun(2, CIRCUMSTANCES).stdout.splitlines())
    given = {"straggler_probability": 1.0, "straggler_delay": 0.02, "latency": 0.03, "bandwidth": 2e7}
    assert {key: both[key] for key in given} == given
    assert late["latency"] is None and slow["straggler_delay"] is None
    exchange = 1e3 * 2 * (0.03 + 4 * gg.models.mlp().parameters / 2 / 2e7)  # ms: each half the model
    assert min(late["ms_no_exchange_blocks"]) >= 20 and min(late["ms_strategy_blocks"]) >= 20
    assert min(slow["ms_strategy_blocks"]) >= 0.99 * exchange
    assert min(both["ms_strategy_blocks"]) >= 0.99 * (20 + exchange) and min(both["ms_no_exchange_blocks"]) >= 20


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--latency 1", "--latency: only with --exchange"),
        ("--strategy allreduce --staleness 1", "--strategy, --staleness: only with --exchange"),
        ("--strategy gossipgrad", "--strategy: only with --exchange"),
        ("--no-rotate --blocks 3", "--blocks, --rotate: only with --exchange"),
        ("--exchange", "allowed: gossipgrad run -n P, P > 1"),
        ("--exchange --bandwidth -1", "bandwidth=-1"),
        ("--exchange --straggler-delay 1", "--straggler-delay 1.0: --straggler-probability is missing"),
        ("--exchange --compute-time 1", "unrecognized arguments: --compute-time"),
    ],
)
def test_what_cannot_be(words, what, capsys):
    assert cli.main(["bench", "--model", "mlp", *words.split()]) == 2
    assert what in capsys.readouterr().err


def test_blocks_take_turns():
    """Both see what the machine does meanwhile; the first round only warms up."""
    trainers = [gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy", strategy=gg.NoExchange()) for _ in range(2)]
    means = bench.alternate(trainers, batch=2, steps=3, warmup=2, blocks=4)
    assert [len(one) for one in means] == [4, 4] and all(seconds > 0 for one in means for seconds in one)
    assert [trainer.step for trainer in trainers] == [2 + 4 * 3] * 2


@pytest.mark.parametrize("mode", ["strict", "exact"])
def test_packing_is_timed_beside_a_copy(mode):
    """The program is built against the core of here, so that it stays one that can be."""
    words = ["--elements", "3000", "--bin", "50", "--bin", "500", "--rounds", "2", "--mode", mode]
    command = [sys.executable, str(ROOT / "benchmarks/pack_speed.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["bin"] for one in found] == [50, 500]
    assert all(one[f"{what}_gbs"] > 0 for one in found for what in ("copy", "pack", "unpack", "pieces", "both"))
    assert all(0 < one["sent"] < 0.5 and one["share"] > 0 and one["pieces_share"] > 0 for one in found)


@pytest.mark.full
def test_the_benchmarks_of_this_page_run(mpirun):
    """What the trace costs, and what a rank takes that waits: that they run and say so, not how much."""
    words = ["benchmarks/trace_overhead.py", "--model", "mlp", "--steps", "2", "--blocks", "3"]
    record = json.loads(mpirun(2, words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}).stdout)
    assert record["ranks"] == 2 and record["spans_a_step"] > 10 and record["cpu_ms_on"] > 0
    words = ["benchmarks/waiting.py", "--seconds", "0.2", "--strategy", "gossipgrad", "--strategy", "allreduce"]
    lines = mpirun(3, words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}).stdout.splitlines()
    assert [json.loads(line)["strategy"] for line in lines] == ["gossipgrad", "allreduce"]
    assert all(0 <= json.loads(line)["median_share"] <= json.loads(line)["most_share"] for line in lines)
