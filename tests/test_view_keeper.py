"""The core's membership of processes, as the launcher keeps it."""

from __future__ import annotations

import os

import numpy as np
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


def host(most):
    return _core.ViewPages(os.memfd_create("host"), most)


def carry(source, *targets):
    for target in targets:
        for rank in range(3):
            target.tell(rank, source.told(rank))


def words(told):
    return list(np.frombuffer(told, np.int64))


def tell(pages, rank, **values):
    """What a rank has told, with these words of its page (view_pages.c)."""
    places = {"step": 0, "limit": 1, "limit_of": 2, "report_of": 3, "trains": 4, "vote": 5, "ready": 6, "copied_of": 7}
    found = np.frombuffer(pages.told(rank), np.int64).copy()
    for name, value in values.items():
        found[places[name]] = value
    pages.tell(rank, found.tobytes())


def test_agents_carry_a_change_and_another_keeper_takes_over():
    memory = os.memfd_create("keeper")
    keeper, own, other = _core.ViewKeeper(memory, 3, 3, 1), _core.ViewPages(memory, 3), host(3)
    other.publish(own.published())
    tell(other, 2, trains=1, step=7)
    carry(other, own)
    assert own.trains(2) and keeper.trains(2) and own.told(2) == other.told(2)
    keeper.died(1)
    other.publish(own.published())
    tell(other, 0, limit=8, limit_of=2)
    tell(other, 2, limit=9, limit_of=2)
    carry(other, own)
    assert keeper.poll() == "goal"
    other.publish(own.published())  # the keeper ends here; another one goes on from what a host has
    memory = os.memfd_create("second")
    second, pages = _core.ViewKeeper(memory, 3, 3, 1), _core.ViewPages(memory, 3)
    second.restore(other.published())
    assert second.poll() == "goal"
    second.died(1)  # told again
    for rank in (0, 2):
        tell(other, rank, report_of=2)  # of view 0, with one death
    carry(other, pages)
    assert second.poll() == "run" and second.view() == {"view": 1, "step": 9, "ranks": [0, 2]}
    third = _core.ViewKeeper(os.memfd_create("third"), 3, 3, 2)
    third.restore(pages.published())
    assert third.view() == second.view()
    third.died(0)
    assert third.poll() == "ended"


def test_a_change_for_a_newcomer_goes_on_under_another_keeper():
    """Without a death nothing else would make the next view."""
    memory = os.memfd_create("keeper")
    keeper, own = _core.ViewKeeper(memory, 2, 3, 1), _core.ViewPages(memory, 3)
    assert own.view() == keeper.view() == {"view": 0, "step": 0, "ranks": [0, 1]} and host(3).view()["ranks"] == []
    tell(own, 2, ready=1)
    assert not keeper.rests() and keeper.poll() == "stopping"
    memory = os.memfd_create("second")
    second, pages = _core.ViewKeeper(memory, 2, 3, 1), _core.ViewPages(memory, 3)
    carry(own, pages)
    second.restore(own.published())
    for rank in (0, 1):
        tell(pages, rank, limit=5, limit_of=1)
    assert second.poll() == "goal"
    for rank in (0, 1):
        tell(pages, rank, report_of=1)
    assert second.poll() == "run" and second.view() == {"view": 1, "step": 5, "ranks": [0, 1, 2]} == pages.view()
    assert not second.rests()
    tell(pages, 2, copied_of=2)
    assert second.poll() == "run" and second.rests()


def test_older_words_of_a_rank_change_nothing():
    pages = host(3)
    old = pages.told(1)
    tell(pages, 1, step=5, limit=6, limit_of=2, vote=8)
    new = pages.told(1)
    pages.tell(1, old)
    assert pages.told(1) == new
    tell(pages, 1, vote=4)
    assert words(pages.told(1))[5] == 8
    pages.freeze(1)
    assert words(pages.told(1))[5] == 8 + (1 << 62)


def test_words_of_other_lengths_are_refused():
    pages, keeper = host(3), _core.ViewKeeper(os.memfd_create("keeper"), 3, 3, 1)
    for call in (lambda: pages.tell(0, b"x"), lambda: pages.publish(b"x"), lambda: keeper.restore(b"x")):
        with pytest.raises(ValueError, match="1 bytes; allowed: "):
            call()
    with pytest.raises(ValueError, match="rank 3; allowed: 0 to 2"):
        pages.told(3)
    with pytest.raises(ValueError, match="no view of at most 3 ranks"):
        keeper.restore(bytes(len(pages.published())))
