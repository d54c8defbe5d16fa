"""gg.Division deals each sample of an epoch once, whichever ranks die and join, and whatever was read ahead."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.data.dealing import Dealing, furthest


class Rank:
    """A process with an Exchange, its Survivor and its loader."""

    def __init__(self, group, identity, ahead):
        self.group, self.identity, self.ahead = group, identity, ahead
        self._survivor, self.team = self, self
        self.heard = {}
        self.division = None
        self.queue, self.loop, self.ready = [], None, False
        self.made = []  # the samples of each step

    @property
    def members(self):
        return [one.identity for one in self.group.ranks]

    @property
    def rank(self):
        return self.group.ranks.index(self)

    @property
    def size(self):
        return len(self.group.ranks)

    @property
    def steps(self):
        return self.group.steps

    def watch(self, division):
        pass

    def meet(self, where):
        return not self.group.look()

    def dealings(self):
        return list(self.heard.values()) or [self.division]

    def build(self):
        """Make the Division, if this is a newcomer."""
        if self.division is None:
            self.division = gg.Division(*self.group.arguments, self, **self.group.options)

    def read(self):
        """The loop over the loader: halts before each step."""
        while self.division.left:
            loader = iter(self.division)
            while True:
                while loader is not None and len(self.queue) < self.ahead + self.group.accumulate:
                    batch = next(loader, None)
                    if batch is None:
                        loader = None
                    else:
                        self.queue.append(batch)
                if not self.queue:
                    break
                yield True

    def get_ready(self):
        """False: the epoch has ended."""
        self.build()
        if not self.ready:
            self.loop = self.loop or self.read()
            self.ready = next(self.loop, False)
        return self.ready

    def step(self):
        count = self.group.accumulate
        taken, self.queue = self.queue[:count], self.queue[count:]
        self.made.append([one for batch in taken for one in batch])
        self.ready = False


class Group:
    """Ranks that make one step after the other, each with batches that it has asked for ahead."""

    def __init__(self, ahead, samples, batch, accumulate=1, **options):
        self.steps, self.accumulate = 0, accumulate
        self.arguments, self.options = (samples, batch), {"accumulate": accumulate, **options}
        self.trained = Counter()
        self.ranks = []
        for identity, count in enumerate(ahead):
            self.ranks.append(Rank(self, identity, count))
        for one in self.ranks:
            one.build()
        self.number = len(ahead)  # of the next newcomer
        self.deaths = []  # (rank, its last step that counts), noticed at the next look
        self.joins = []  # newcomers' counts of batches that they read ahead

    def all(self, call):
        """Of all ranks; newcomers that come meanwhile make the same call."""
        ranks = None
        while ranks is not self.ranks:
            ranks = self.ranks
            found = {call(one) for one in ranks if one in self.ranks}
        assert len(found) == 1
        return found.pop()

    def look(self):
        deaths, self.deaths, joins, self.joins = self.deaths, [], self.joins, []
        if not deaths and not joins:
            return False
        change = {"died": [one.identity for one, _ in deaths], "last_steps": [last for _, last in deaths]}
        change["made"] = [len(one.made) for one, _ in deaths]
        lived = [one for one in self.ranks if one.identity not in change["died"]]
        told = {}
        for one in lived:
            told = furthest(one.dealings()[0].told(), told)
        new = [Rank(self, self.number + i, ahead) for i, ahead in enumerate(joins)]
        self.number += len(new)
        self.ranks = lived + new
        change["ranks"] = [one.identity for one in self.ranks]
        for one, last in deaths:
            self.trained.update(sample for step in one.made[: last + 1] for sample in step)
        again = {one.dealings()[0].changed(change, told) for one in lived}
        lost = [Counter(sample for step in one.made[max(0, last + 1) :] for sample in step) for one, last in deaths]
        if self.arguments[1] > 1:
            assert again == {sum(one.total() for one in lost)}
        teller = lived[0].dealings()[0]
        for one in new:
            one.made = [[]] * self.steps
            one.heard = {teller.key: Dealing.heard(teller.key, json.loads(json.dumps(teller.position())), one, one)}
        self.compare()
        return True

    def compare(self):
        """All ranks know one position."""
        assert len({json.dumps({**one.dealings()[0].position(), "end": 0}) for one in self.ranks}) == 1

    def step(self):
        for one in self.ranks:
            one.step()
        self.steps += 1
        for one in self.ranks:
            one.division.stepped()

    def read(self):
        """The epoch's steps: true before each, when batches have been read ahead, and false after it."""
        while self.all(Rank.get_ready):
            yield True
            if self.all(Rank.get_ready):
                self.step()
            yield False
        for one in self.ranks:
            one.loop = None

    def ended(self):
        """The samples of the epoch, as often as they count."""
        for one in self.ranks:
            self.trained.update(sample for step in one.made for sample in step)
            one.made = [[]] * self.steps
        found, self.trained = self.trained, Counter()
        return found


@pytest.fixture
def repeated(monkeypatch):
    """The sizes of lists that were too short for their ranks' batches."""
    found, plain = [], np.resize
    monkeypatch.setattr(np, "resize", lambda ids, count: found.append(count) or plain(ids, count))
    return found


def some_ranks(draw, group):
    """Random deaths and newcomers."""
    if len(group.ranks) > 1 and draw.random() < 0.5:
        dead = draw.sample(group.ranks, draw.randint(1, len(group.ranks) - 1))
        group.deaths = [(one, len(one.made) - 1 - draw.randint(0, 2)) for one in dead]
    if len(group.ranks) < 6 and draw.random() < 0.7:
        group.joins = [draw.choice([0, 1, 4]) for _ in range(draw.randint(1, 3))]


@pytest.mark.parametrize("seed", range(150))
def test_each_sample_counts_once_whoever_dies_and_joins(seed, repeated):
    draw = random.Random(seed)
    p, batch, accumulate = draw.randint(1, 4), draw.choice([1, 2, 3, 5]), draw.choice([1, 1, 2, 3])
    ahead = [0] * p if draw.random() < 0.3 else [draw.choice([0, 1, 4, 9]) for _ in range(p)]
    samples, drop_last = draw.randint(max(6, p * batch), 130), draw.random() < 0.2
    options = {"shuffle": draw.random() < 0.7, "seed": seed, "drop_last": drop_last}
    group = Group(ahead, samples, batch, accumulate, **options)
    rate = draw.choice([0.0, 0.1, 0.3])
    for epoch in range(3):
        repeated.clear()
        while draw.random() < rate + 0.2:  # between epochs: nothing of the dead is lost
            some_ranks(draw, group)
            group.deaths = [(one, len(one.made) - 1) for one, _ in group.deaths]
            group.look()
        for one in group.ranks:
            one.build()
            assert one.division.epoch in (epoch, max(0, epoch - 1))
            one.division.set_epoch(epoch)
        for _ in group.read():
            while draw.random() < rate:
                some_ranks(draw, group)
                if draw.random() < 0.8:
                    group.look()
        found = group.ended()
        if drop_last:
            assert len(found) > samples - batch * len(group.ranks) or repeated
            assert max(found.values(), default=1) == 1 or repeated
        else:
            assert set(found) == set(range(samples))
            extra = sum(found.values()) - samples
            assert batch == 1 or extra == 0 or extra <= sum(repeated)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_division_is_that_of_the_core(shuffle):
    """Where nothing was read ahead, a change deals anew as a Trainer, or a resumed epoch, does."""
    group = Group([0, 0, 0], 50, 4, shuffle=shuffle, seed=7)
    steps = group.read()
    for _ in range(4):
        next(steps)
    group.deaths, group.joins = [(group.ranks[1], 0)], [0, 0]
    group.look()
    ranks = group.ranks
    assert not list(steps)[-1]
    for place, rank in enumerate(ranks):
        wanted, _ = _core.division(50, place, 4, 7, 0, shuffle, [[8, 4, 8]])
        assert [one for step in rank.made[2:] for one in step] == wanted.tolist()
    assert group.ended() == Counter(range(50))


def test_a_position_after_a_death_goes_on_on_any_number_of_ranks():
    group = Group([2, 2, 2], 60, 4, seed=3)
    steps = group.read()
    for _ in range(6):
        next(steps)
    group.deaths = [(group.ranks[2], 1)]
    group.look()
    done = Counter(one for rank in group.ranks for step in rank.made for one in step) + group.trained
    states = [one.division.state_dict(3) for one in group.ranks]  # while batches that were read ahead are left
    assert states[0] == states[1]
    for size in (1, 2, 4):
        rest = Counter()
        for rank in range(size):
            one = gg.Division(60, 3, SimpleNamespace(rank=rank, size=size), seed=3)
            one.load_state_dict(states[0])
            rest.update(sample for batch in one for sample in batch)
        assert done + rest == Counter(range(60))
        with pytest.raises(ValueError, match="Division: seed is 4, and 3 in the state"):
            gg.Division(60, 3, SimpleNamespace(rank=0, size=1), seed=4).load_state_dict(states[0])


def test_unread_samples_are_told():
    group = Group([20, 20], 40, 4, seed=3)
    steps = group.read()
    for _ in range(10):
        next(steps)
    group.deaths = [(group.ranks[1], 1)]
    group.look()
    division = group.ranks[0].division
    assert division.left > 0
    with pytest.warns(UserWarning, match="epoch 0: .* batches of a rank were not read.*sampler.left"):
        division.set_epoch(1)
    assert len(division) == 10 and division.left == 10
