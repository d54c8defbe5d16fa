"""40 random networks that lose units; `python tests/random_apoptosis.py --count 1000` tries more."""

import pytest
from random_apoptosis import BOUNDED, NETWORKS, check

EACH = 10


@pytest.mark.core(1)
@pytest.mark.parametrize("first", range(0, 40, EACH))
def test_copies_leave_without_a_trace_and_bounds_hold(first):
    found = [check(number) for number in range(first, first + EACH)]
    planted, left, share = (sum(column) for column in zip(*found, strict=True))
    assert planted > 0 and left > 0 and share > 0.01, "nothing was tried"


def test_every_kind_of_network_is_there():
    assert len(NETWORKS) == 7 and len(BOUNDED) == 4
