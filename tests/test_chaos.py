"""benchmarks/chaos.py reads what ranks wrote down: lives, samples trained, records of epochs."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "chaos.py"


@pytest.fixture
def chaos(monkeypatch):
    import sys

    spec = importlib.util.spec_from_file_location("chaos", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "chaos", module)
    spec.loader.exec_module(module)
    return module


def rank(chaos, identity, begin, first, last, *others):
    """A step of 10 samples a second."""
    step = {"kind": "step", "epoch": 1, "samples": 10, "loss": 1.0 + identity}
    steps = [{"at": at, **step} for at in range(first, last + 1)]
    events = [{"kind": "begin", "at": begin}, *steps, *others]
    return chaos.Rank(0, identity % 2, identity, 100 + identity, events, float(last))


VIEW = {"kind": "view", "at": 5, "view": 1, "epoch": 1, "seconds": 0.1, "trained_again": 20, "died": [1]}
VIEW |= {"step": 5, "last_steps": [3]}


def found(chaos, samples):
    """Ranks 0 and 1, which dies at 5; in its place rank 3."""
    epoch = {"kind": "epoch", "at": 9, "epoch": 1, "samples": samples, "ranks": 1}
    ranks = [rank(chaos, 0, 0, 1, 10, VIEW, epoch), rank(chaos, 1, 0, 1, 5), rank(chaos, 3, 6, 8, 10)]
    faults = [chaos.Fault("kill", 5.0, 101), chaos.Fault("stop", 7.5, 103, seconds=0.5)]
    return chaos.Run(ranks, faults, 1.0, 10.0)


def test_what_ranks_wrote_down(chaos, tmp_path):
    one = found(chaos, 161)
    assert list(one.living()) == [(4.0, 2), (3.0, 1), (2.0, 2)]
    assert one.trained() == 10 * (10 + 5 + 3) - 20
    assert chaos.of_living(one, {1: 10.0, 2: 20.0}) == 4 * 20 + 3 * 10 + 2 * 20
    assert chaos.of_living(one, {2: 20.0}) == 4 * 20 + 3 * 10 + 2 * 20
    rows = {place: [own.identity for own in row] for place, row in chaos.rows(one).items()}
    assert rows == {(0, 0): [0], (0, 1): [1, 3]}
    assert list(chaos.at_work([1.0, 2.0, 3.0, 9.0, 10.0])) == [(1.0, 3.0), (9.0, 10.0)]
    assert chaos.losses(one, 1) == ([4.5], [pytest.approx((10 * 1 + 5 * 2 + 3 * 4) / 18)])
    chaos.draw(one, one, "title", str(tmp_path / "chaos.png"))
    assert (tmp_path / "chaos.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("size", "record", "kind", "error"),
    [
        (160, 161, "kill", None),  # 180 in steps, 20 of them trained again
        (176, 176, "kill", None),  # the last step of the dead rank is not written down
        (160, 159, "kill", "epoch 1: 159 samples of 160 in the record"),
        (160, 159, "coordinator", "epoch 1: 159 samples of 160 in the record"),
        (160, 159, "agent", None),  # a host died whole
        (160, 162, "kill", "epoch 1: 162 samples of 160 in the record"),
        (177, 177, "kill", "epoch 1: 180 samples of 177 in steps, 20 trained again"),
        (158, 158, "kill", "epoch 1: 180 samples of 158 in steps, 20 trained again"),
    ],
)
def test_each_sample_counts_once(size, record, kind, error, chaos, monkeypatch):
    monkeypatch.setattr(chaos, "SAMPLES", size)
    one = found(chaos, record)
    one.faults[0].kind = kind
    assert chaos.audit(one, 2) == (max(record - size, 0), 20)
    assert one.problems == ([error] if error else [])


@pytest.mark.parametrize(("kind", "size", "wrong"), [("kill", 143, True), ("agent", 143, False), ("cut", 142, True)])
def test_a_dead_host_may_have_made_more_steps_than_it_has_told(kind, size, wrong, chaos, monkeypatch):
    """Up to the change: here one of 16 samples after the last that others have received, beside 20 that were told."""
    monkeypatch.setattr(chaos, "SAMPLES", size)
    one = found(chaos, size)
    one.faults[0].kind = kind
    chaos.audit(one, 2)
    assert one.problems == [f"epoch 1: 180 samples of {size} in steps, 20 trained again"] * wrong


@pytest.mark.parametrize(
    ("codes", "wrong"), [([0], False), ([0, -9, 2], False), ([1, -9], True), ([None], True), ([0, None], True)]
)
def test_a_command_that_did_not_end_is_a_problem(codes, wrong, chaos, monkeypatch, tmp_path):
    monkeypatch.setattr(chaos.tempfile, "mkdtemp", lambda: str(tmp_path))
    monkeypatch.setattr(chaos, "ended", lambda code: code)
    (tmp_path / "errors").touch()
    job = chaos.Job(2, 0.0, [])
    job.commands = codes
    assert job.end() == [f"exit codes {codes}\n"] * wrong


@pytest.mark.parametrize(("size", "wrong"), [(145, False), (144, True)])
def test_a_step_in_a_change_may_have_had_a_short_batch(size, wrong, chaos, monkeypatch):
    """The first rank knows only that it was no longer than 16 samples: here it had one."""
    monkeypatch.setattr(chaos, "SAMPLES", size)
    one = found(chaos, size)
    one.ranks[0].of("step")[4]["bound"] = True
    chaos.audit(one, 1)
    assert one.problems == [f"epoch 1: 180 samples of {size} in steps, 20 trained again"] * wrong


@pytest.mark.parametrize(("living", "spared"), [(2, True), (3, False)])
def test_a_coordinator_is_spared_while_new_ranks_are_awaited(living, spared, chaos, monkeypatch, tmp_path):
    """Else each fault would kill it, and nobody could join."""
    asked = argparse.Namespace(seed=1, minutes=1, faults=3, stop=1.0, lease=1.0, stopped=1.0)
    asked.kinds = ["coordinator"]
    monkeypatch.setattr(chaos, "training", lambda folder: [(node, 100 + node) for node in range(living)])
    one = chaos.Chaos(asked)
    killed = []
    one._coordinator = lambda job, fault: killed.append(fault)
    one._fault(argparse.Namespace(folder=tmp_path, ranks=8))
    assert (killed == []) == spared


def test_others_stand_still(chaos):
    """Rank 0 makes a step a second, and one of 4 s after the kill."""
    one = found(chaos, 160)
    steps = one.ranks[0].of("step")
    one.ranks[0].events = [step for step in steps if step["at"] not in (6, 7, 8)]
    one.faults = one.faults[:1]
    assert chaos.standstill(one) == {"kill": [3.0]}
