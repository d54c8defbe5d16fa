"""benchmarks/chaos.py reads what ranks wrote down: lives, samples trained, records of epochs."""

from __future__ import annotations

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
    steps = [{"kind": "step", "at": at, "samples": 10, "loss": 1.0 + identity} for at in range(first, last + 1)]
    events = [{"kind": "begin", "at": begin}, *steps, *others]
    return chaos.Rank(identity, 100 + identity, events, float(last))


VIEW = {"kind": "view", "at": 5, "view": 1, "epoch": 1, "seconds": 0.1, "trained_again": 20}


def found(chaos, samples):
    epoch = {"kind": "epoch", "at": 9, "epoch": 1, "samples": samples, "ranks": 1}
    ranks = [rank(chaos, 0, 0, 1, 10, VIEW, epoch), rank(chaos, 1, 0, 1, 5), rank(chaos, 2, 6, 8, 10)]
    return chaos.Run(ranks, [chaos.Fault("kill", 5.0, 101), chaos.Fault("stop", 2.0, 100, 0.5)], 1.0, 10.0)


def test_what_ranks_wrote_down(chaos, tmp_path):
    one = found(chaos, 10_001)
    assert list(one.living()) == [(4.0, 2), (3.0, 1), (2.0, 2)]
    assert one.trained() == 10 * (10 + 5 + 3)
    assert chaos.of_living(one, {1: 10.0, 2: 20.0}) == 4 * 20 + 3 * 10 + 2 * 20
    assert [[own.identity for own in row] for row in chaos.rows(one)] == [[0], [1, 2]]
    assert chaos.audit(one, 2) == (1, 20)
    with pytest.raises(SystemExit, match="epoch 1: 9999 samples of 10000"):
        chaos.audit(found(chaos, 9_999), 2)
    with pytest.raises(SystemExit, match="10002 samples"):
        chaos.audit(found(chaos, 10_002), 2)
    assert list(chaos.at_work([1.0, 2.0, 3.0, 9.0, 10.0])) == [(1.0, 3.0), (9.0, 10.0)]
    assert chaos.losses(one, 1) == ([4.5], [pytest.approx((10 * 1 + 5 * 2 + 3 * 3) / 18)])
    chaos.draw(one, one, "title", str(tmp_path / "chaos.png"))
    assert (tmp_path / "chaos.png").stat().st_size > 1000
