"""gg.Division deals each sample of an epoch once, whichever ranks die and join, and whatever was read ahead."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.data.dealing import Dealing, furthest
from gossipgrad.exchange import survivor as survivors


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
        self.split = False

    def all(self, call):
        """Makes a call of all ranks, also of newcomers that come meanwhile."""
        ranks = None
        while ranks is not self.ranks:
            ranks = self.ranks
            found = {call(one) for one in ranks if one in self.ranks}
        assert len(found) == 1
        return found.pop()

    def look(self):
        """All deaths and newcomers since the last look, in one change or, if it is split, two."""
        deaths, self.deaths, joins, self.joins = self.deaths, [], self.joins, []
        if not deaths and not joins:
            return False
        dead = [one for one, _ in deaths]
        lived = [one for one in self.ranks if one not in dead]
        told = {}
        for one in lived:
            told = furthest(one.dealings()[0].told(), told)
        new = [Rank(self, self.number + i, ahead) for i, ahead in enumerate(joins)]
        self.number += len(new)
        first, self.ranks = self.ranks + new, lived + new
        changes = [self.change(first, []), self.change(self.ranks, deaths)] if self.split else []
        for one, last in deaths:
            self.trained.update(sample for step in one.made[: max(0, last + 1)] for sample in step)
        found = set()
        for one in lived:
            again = [one.dealings()[0].changed(c, told) for c in changes or [self.change(self.ranks, deaths)]]
            found.add(sum(again))
        lost = [Counter(sample for step in one.made[max(0, last + 1) :] for sample in step) for one, last in deaths]
        if self.arguments[1] > 1:
            assert found == {sum(one.total() for one in lost)}
        teller = lived[0].dealings()[0]
        for one in new:
            one.made = [[]] * self.steps
            one.heard = {teller.key: Dealing.heard(teller.key, json.loads(json.dumps(teller.position())), one, one)}
        self.compare()
        return True

    def change(self, ranks, deaths):
        return {
            "ranks": [one.identity for one in ranks],
            "died": [one.identity for one, _ in deaths],
            "last_steps": [last for _, last in deaths],
            "made": [len(one.made) for one, _ in deaths],
        }

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
    group.split = draw.random() < 0.3
    if len(group.ranks) < 6 and draw.random() < 0.7:
        group.joins = [draw.choice([0, 1, 4]) for _ in range(draw.randint(1, 3))]


@pytest.mark.filterwarnings("ignore:.*no batch")
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


# samples, batch_size, drop_last; the sizes of the batches that a newcomer has for those that the others have read
# ahead; samples read twice
AHEAD = [
    ((60, 3, False), [3, 3, 3, 3], 0),
    ((60, 3, True), [3, 3, 3, 3], 0),
    ((37, 3, False), [1, 2, 2, 2], 0),  # 7 samples are left
    ((37, 3, True), [3, 3, 3, 3], 5),
    ((30, 3, False), [1, 1, 1, 1], 4),  # none are
    ((30, 3, True), [3, 3, 3, 3], 12),
    ((10, 1, False), [1, 1, 1, 1], 4),
    ((13, 1, False), [1, 1, 1, 1], 1),
]


@pytest.mark.parametrize("case, sizes, twice", AHEAD)
def test_a_newcomer_has_as_many_batches_as_the_others_have_read_ahead(case, sizes, twice):
    samples, batch, drop_last = case
    group = Group([4, 4], samples, batch, drop_last=drop_last, seed=5)
    steps = group.read()
    next(steps), next(steps)
    group.joins = [0]
    group.look()
    assert {one.dealings()[0].told()["trained"] for one in group.ranks} == {1}
    read = {one.dealings()[0].told()["asked"] for one in group.ranks[:2]}
    assert read == {5}
    new = group.ranks[2]
    assert not list(steps)[-1]
    assert [len(step) for step in new.made[1:5]] == sizes
    assert len({len(one.made) for one in group.ranks}) == 1
    found = group.ended()
    left_out = samples - len(found)
    assert left_out <= (3 * batch - 1 if drop_last else 0)
    assert found.total() - len(found) == twice and max(found.values()) <= 2


def test_two_changes_before_a_newcomer_begins_end_no_loader():
    group = Group([0], 30, 3, seed=5)
    steps = group.read()
    next(steps), next(steps)
    for _ in range(2):
        group.joins = [0]
        group.look()
    assert len(next(group.ranks[0].division._iteration)) == 3


def test_a_newcomer_that_dies_leaves_what_it_has_not_trained():
    group = Group([4, 4], 60, 3, seed=5)
    steps = group.read()
    for event in (lambda: None, lambda: None, lambda: group.joins.extend([0, 0])):
        event()
        group.look()
        next(steps)
    new = group.ranks[2:]
    next(steps)  # the newcomers' first step
    assert [len(one.made[1]) for one in new] == [3, 3]
    group.deaths = [(new[0], 1), (new[1], 0)]  # of one it counts
    group.look()
    assert len(group.ranks) == 2
    list(steps)
    assert group.ended() == Counter(range(60))


def test_the_last_batches_of_an_epoch():
    """A newcomer that comes with the last step has no batch, and meets the others at the epoch's end."""
    for ahead in (0, 3):
        group = Group([ahead] * 2, 12, 3, seed=1)
        steps = group.read()
        for _ in range(4):
            next(steps)
        group.joins = [ahead, ahead]
        group.look()
        assert next(steps, None) is None and [one.division.left for one in group.ranks] == [0] * 4
        assert all(one.division.epoch == 0 for one in group.ranks)
        assert group.ended() == Counter(range(12))
        for one in group.ranks:
            one.division.set_epoch(1)
        list(group.read())
        assert group.ended() == Counter(range(12))


def test_a_plain_loop_of_a_newcomer_that_comes_with_the_last_step():
    """It has nothing to read in this epoch, and does not read the epoch again."""
    group = Group([0], 6, 3, seed=1)
    steps = group.read()
    for _ in range(4):
        next(steps)
    group.joins = [0]
    group.look()
    new = group.ranks[1]
    new.build()
    assert list(new.division) == [] and new.division.left == 0


def test_an_epoch_that_is_read_again_is_of_the_ranks_of_now():
    """One has died and another has joined since: as many ranks, but others."""
    group = Group([0, 0], 24, 3, shuffle=False)
    list(group.read())
    assert group.ended() == Counter(range(24))
    group.deaths, group.joins = [(group.ranks[0], group.steps - 1)], [0]
    group.look()
    for one in group.ranks:
        one.build()
    assert Counter(sample for one in group.ranks for batch in one.division for sample in batch) == Counter(range(24))


def test_newcomers_while_nothing_is_read():
    group = Group([0, 0], 25, 3, seed=1)
    group.joins = [0]
    group.look()  # before the first step
    list(group.read())
    assert [sum(map(len, one.made)) for one in group.ranks] == [9, 8, 8]
    assert group.ended() == Counter(range(25))
    group.joins = [0]
    group.look()  # when all have met at the epoch's end
    group.joins = [0]
    group.look()  # before it has made its Division
    new = group.ranks[3]
    new.build()
    assert new.division.epoch == 1
    with pytest.raises(ValueError, match=r"epoch=0: .*joined .*in epoch 1; allowed: .*range\(division.epoch, epochs"):
        new.division.set_epoch(0)
    with pytest.raises(RuntimeError, match="Division.load_state_dict: this rank has joined .*exchange.view has no"):
        new.division.load_state_dict(group.ranks[0].division.state_dict(0))
    for epoch in (1, 2):
        for one in group.ranks:
            one.build()
            one.division.set_epoch(epoch)
        list(group.read())
        assert group.ended() == Counter(range(25))


@pytest.mark.parametrize("died", [True, False])
def test_a_newcomer_in_an_epoch_that_was_resumed(died):
    first = Group([0, 0], 60, 3, seed=2)
    steps = first.read()
    for _ in range(4):
        next(steps)
    if died:  # then the state lists the samples that are left
        first.deaths = [(first.ranks[1], 1)]
        first.look()
    done = Counter(sample for one in first.ranks for step in one.made for sample in step) + first.trained
    state = json.loads(json.dumps(first.ranks[0].division.state_dict(2)))
    assert ("left" in state) == died
    group = Group([1, 0, 0], 60, 2, seed=2)
    for one in group.ranks:
        one.division.load_state_dict(state)
    group.joins = [0]
    group.look()
    steps = group.read()
    for _ in range(4):
        next(steps)
    group.joins, group.deaths = [1], [(group.ranks[0], 0)]
    group.look()
    list(steps)
    assert done + group.ended() == Counter(range(60))


def test_more_newcomers_than_samples():
    group = Group([0], 3, 2, seed=1)
    group.joins = [0, 0, 0]
    group.look()
    list(group.read())
    assert [sum(map(len, one.made)) for one in group.ranks] == [1, 1, 1, 1]
    assert set(group.ended()) == set(range(3))


def test_a_newcomer_checks_a_division_that_the_others_lack():
    group = Group([0], 12, 8, seed=1)
    group.joins = [0]
    group.look()
    new = group.ranks[1]
    with pytest.raises(ValueError, match="batch_size=7: 12 samples on 2 ranks allow 1 to 6"):
        gg.Division(12, 7, new, seed=1)
    assert len(gg.Division(12, 8, new, seed=1)) == 1


def test_newcomers_that_leave_no_full_batch_bring_a_warning():
    group = Group([0], 3, 2, drop_last=True)
    group.joins = [0]
    group.look()
    assert len(group.ranks[0].division) == 0
    with pytest.warns(UserWarning, match="epoch 1: no batch: 3 samples on 2 ranks .*batch_size=2, drop_last=True"):
        group.ranks[0].division.set_epoch(1)


# ------------------------------------------------------------------------------------------------ what ranks tell


class Process:
    """A rank with a Survivor of its own, whose collective calls are a meeting of threads."""

    def __init__(self, identity, members, newcomer=False):
        self.identity, self.newcomer, self.kind, self.size = identity, newcomer, "net", len(members)
        self.calls, self.step, self.told = 0, 2, []
        calls = (lambda: self, lambda change: None, self.told.append)
        self._survivor = survivors.Survivor(self, *calls, facts={}, give=bytes, take=len, leave=dict)
        self._survivor.members = members

    @property
    def rank(self):
        return self._survivor.members.index(self.identity)

    def changed(self, change):
        self._survivor.members, self.size = change["ranks"], len(change["ranks"])
        self._survivor._pending.append(change)


def change_of(ranks, died=()):
    return {"view": 1, "ranks": ranks, "died": list(died), "last_steps": [1] * len(died), "made": [2] * len(died)}


def deal_all(monkeypatch, processes, deaths):
    """All deal until no change is pending. deaths: rank -> the gathering in which it dies."""
    answers, lock = {}, threading.Lock()
    meetings = {}

    def meet(process):
        living = [one for one in processes if deaths.get(one.identity, 99) >= process.calls]
        with lock:
            barrier = meetings.setdefault(process.calls, threading.Barrier(len(living)))
        barrier.wait(30)

    def gather(process, data, where):
        process.calls += 1
        lives = deaths.get(process.identity) != process.calls
        answers[process.calls, process.identity] = data if lives else None
        meet(process)
        if not lives:
            raise EOFError
        members = process._survivor.members
        found = {one: answers[process.calls, one] for one in members}
        if None in found.values():
            dead = [one for one in members if found[one] is None]
            process.changed(change_of([one for one in members if one not in dead], dead))
        return [one for one in found.values() if one is not None]

    def deal(process):
        try:
            while process._survivor._pending:
                process._survivor._deal()
        except EOFError:
            return None
        return process._survivor

    monkeypatch.setattr(survivors.agreement, "gather", gather)
    with ThreadPoolExecutor(len(processes)) as pool:
        return [one for one in pool.map(deal, processes) if one is not None]


@pytest.mark.parametrize("deaths", [{}, {0: 1}, {0: 2}, {1: 2}, {3: 1}, {0: 2, 1: 3}])
def test_newcomers_hear_of_all_divisions(monkeypatch, deaths):
    """Ranks die between the gatherings; newcomers hear the divisions of the ranks that live."""
    old = [Process(identity, [0, 1, 2]) for identity in range(3)]
    kinds = {"batch_size": 3, "seed": 4}, {"batch_size": 2, "seed": 5}
    divisions = {one: [gg.Division(60, ranks=one, **kind) for kind in kinds] for one in old}
    loaders = {one: iter(divisions[one][0]) for one in old}
    read = []
    for one in old:
        for _ in range(2):
            read += next(loaders[one])
            divisions[one][0].stepped()
        for _ in range((0, 2, 1)[one.identity]):  # ahead
            read += next(loaders[one])
    divisions[old[1]].append(gg.Division(30, 2, old[1]))  # one rank alone has it
    new = [Process(3, [0, 1, 2, 3, 4], newcomer=True), Process(4, [0, 1, 2, 3, 4], newcomer=True)]
    for one in [*old, *new]:
        one.changed(change_of([0, 1, 2, 3, 4]))
    lived = deal_all(monkeypatch, [*old, *new], deaths)
    assert len(lived) == 5 - len(deaths)
    ranks = [one for one in [*old, *new] if one._survivor in lived]
    for one in ranks:
        assert one.rank == ranks.index(one)
        assert [len(change["ranks"]) for change in one._survivor.changes][-1] == len(ranks)
        assert one._survivor.changes == one.told
        assert [change["trained_again"] for change in one.told] == [
            change["trained_again"] for change in ranks[0].told[-len(one.told) :]
        ]
    joined = [one for one in ranks if one in new]
    assert all(len(one._survivor.heard) == 2 + (deaths.get(1, 9) > 2) for one in joined)
    mine = [[gg.Division(60, ranks=one, **kind) for kind in kinds] for one in joined]
    for place in range(2):
        all_of = [divisions[one][place] for one in ranks if one in old] + [own[place] for own in mine]
        assert len({json.dumps(one.position()) for one in all_of}) == 1
        assert len({len(one) for one in all_of}) == 1
    assert all(own[0]._trained() == 2 for own in mine)
    for loader in [*loaders.values(), *(iter(own[0]) for own in mine)]:
        read += [sample for batch in loader for sample in batch]
    assert deaths or Counter(read) == Counter(range(60))
