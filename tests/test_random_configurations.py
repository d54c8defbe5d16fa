"""240 random configurations, with --long 2400; `python tests/random_configurations.py --count 10000` tries more."""

import pytest
from random_configurations import POOLS, Configuration, check, keywords_of

from gossipgrad import strategies

EACH = 12


@pytest.fixture(autouse=True)
def buffers_are_checked(monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_CHECK_BUFFERS", "1")


@pytest.mark.core(4)
@pytest.mark.parametrize("first", range(0, 240, EACH))
def test_what_holds_for_every_run(first):
    for number in range(first, first + EACH):
        check(number)


@pytest.mark.long
@pytest.mark.parametrize("first", range(240, 2400, 10 * EACH))
def test_what_holds_for_many_runs(first):
    for number in range(first, first + 10 * EACH):
        check(number)


def test_every_option_of_every_strategy_is_drawn():
    for kind in strategies.BY_NAME.values():
        assert set(keywords_of(kind)) <= set(POOLS), kind
    drawn = [Configuration(number) for number in range(240)]
    assert {type(one.strategy) for one in drawn} == set(strategies.BY_NAME.values())
    packed = {type(one.strategy) for one in drawn if one.compression is not None}
    assert packed == {one for one in strategies.BY_NAME.values() if not one.not_compressed}
