"""The core's membership of processes, as the launcher keeps it."""

from __future__ import annotations

import os

import pytest

from gossipgrad import _core


def test_a_death_without_answers_waits_and_few_ranks_end():
    memory = os.memfd_create("views")
    keeper = _core.ViewKeeper(memory, 3, 3, 2)
    assert keeper.view() == {"view": 0, "step": 0, "ranks": [0, 1, 2]} and keeper.poll() == "run"
    assert not keeper.trains(1)
    keeper.died(1)
    assert keeper.poll() == "stopping"  # nobody has told a limit
    keeper.died(0)
    assert keeper.poll() == "ended"
    with pytest.raises(ValueError, match="death of rank 3; allowed: 0 to 2"):
        keeper.died(3)
    with pytest.raises(ValueError, match="2 members of at most 1"):
        _core.ViewKeeper(memory, 2, 1, 1)
    with pytest.raises(ValueError, match="most: 0; must be at least 1"):
        _core.ViewKeeper(memory, 0, 0, 0)
    with pytest.raises(OSError):
        _core.ViewKeeper(-1, 2, 2, 1)
    os.close(memory)
