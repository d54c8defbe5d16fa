"""The samples of an epoch, dealt to ranks, and dealt anew when ranks die or join. All ranks compute the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core

Ids = NDArray[np.int32]
_NONE = np.zeros(0, np.int32)


class Ranks(Protocol):
    """A wrapped model, gg.Team, gg.Exchange or one of its replicas."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


@dataclass
class Part:
    """Batches of an epoch on the same ranks, which share a list: sample i is sample i // ranks of rank i % ranks."""

    begin: int  # number of the first batch
    members: Sequence[int]  # the ranks' first numbers
    order: Ids  # this rank's samples; none: it is no member
    left: int  # samples of the list
    ids: Ids | None = None  # the list; None: not made yet
    batches: int | None = None  # the number of a rank's batches, equally large; None: by batch_size
    end: int | None = None  # number of the first batch of the part after it; None: the last part

    @property
    def ranks(self) -> int:
        return len(self.members)

    def share(self, place: int) -> int:
        """Samples of the rank at this place."""
        return self.left // self.ranks + (place < self.left % self.ranks)


@dataclass
class Cut:
    """A change of the group in an epoch."""

    trained: int  # batches that each rank has trained
    kept: int  # batches that each rank has been given, or will be
    members: list[int]
    counts: list[tuple[int, int]]  # dead ranks, each with its batches that count


def furthest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Takes the larger of both ranks' counts, by key."""
    return {key: max(number, other.get(key, 0)) for key, number in one.items()}


def key_of(*arguments: int) -> str:
    """Names a Dealing by its arguments from samples to seed, which are equal on all ranks."""
    return json.dumps(arguments)


class Dealing:
    """The parts of this rank's epoch, and how far it has been read.

    ranks     its rank and size.
    survivor  where ranks may die, or join.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        accumulate: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        ranks: Ranks,
        survivor: Any,
    ) -> None:
        self.samples, self.batch_size, self.accumulate = samples, batch_size, accumulate
        self.shuffle, self.drop_last, self.seed = shuffle, drop_last, seed
        self.key = key_of(samples, batch_size, accumulate, shuffle, drop_last, seed)
        self.rank, self.size = ranks.rank, ranks.size
        self.epoch = 0
        self._ranks = ranks
        self._survivor = survivor
        self._divisions: list[list[int]] = []
        self._rest: list[int] | None = None  # the samples of a loaded rest that no divisions give
        self._divide()

    # ---- an epoch

    def _divide(self) -> None:
        """Begin the epoch, or the rest of it, on the ranks of now."""
        if self._survivor is not None:
            self.rank, self.size = self._ranks.rank, self._ranks.size
        self._begin(self._members())

    def _members(self) -> list[int]:
        """The first numbers of the ranks of now."""
        return list(range(self.size)) if self._survivor is None else list(self._survivor.members)

    def _begin(self, members: Sequence[int], joins: bool = False) -> None:
        """Begin on these ranks. joins: this one is a newcomer, and none of them."""
        if self._rest is not None:
            self._parts = [self._dealt(0, members, np.array(self._rest, np.int32))]
        elif len(members) > self.samples:  # newcomers have joined
            self._parts = [self._dealt(0, members, self._drawn(0, 1)[0])]
        else:
            order, left = self._drawn(0 if joins else self.rank, len(members))
            self._parts = [Part(0, members, _NONE if joins else order, left)]
        self._cuts: list[Cut] = []
        self._iteration: Batches | None = None  # the last one of the epoch

    def _drawn(self, rank: int, size: int) -> tuple[Ids, int]:
        return _core.division(self.samples, rank, size, self.seed, self.epoch, self.shuffle, self._divisions)

    @property
    def _identity(self) -> int:
        """This rank's first number."""
        return self.rank if self._survivor is None else int(self._survivor.members[self.rank])

    def _dealt(self, begin: int, members: Sequence[int], ids: Ids, batches: int | None = None) -> Part:
        """A part whose list is these samples; if they are fewer than ranks, some are there twice."""
        ranks, own = len(members), self._identity
        if 0 < len(ids) < ranks:
            ids = np.resize(ids, ranks)
        order = ids[members.index(own) :: ranks] if own in members else _NONE
        return Part(begin, members, order, len(ids), ids, batches)

    def __len__(self) -> int:
        """Batches of the epoch, or of the rest of a loaded one; more of them after a death."""
        return self._parts[-1].begin + self._batches(self._parts[-1])

    def _trained(self) -> int:
        """Batches whose steps have been made."""
        if self._iteration is None:
            return 0
        if self._survivor is None:
            return self._iteration.given
        return self._iteration.trained[-1]

    def _meet(self) -> None:
        """At the epoch's end: learn of deaths in its last steps, whose samples are then left."""
        one = self._iteration
        if self._survivor is None or one is None:
            return
        while not one.over and self._trained() == len(self):
            one.over = self._survivor.meet(f"end of epoch {self.epoch}")

    def _batches(self, part: Part) -> int:
        if part.batches is not None:
            return part.batches
        shares = part.share(0), part.share(part.ranks - 1)
        if self.drop_last:
            return shares[1] // self.batch_size
        return -(-shares[0] // self.batch_size)

    def _first(self, part: Part, share: int, batch: int) -> int:
        """Where a batch begins in a rank's order. The last has a sample, which the one before leaves it."""
        if part.batches is not None:
            return batch * share // part.batches
        begin = batch * self.batch_size
        return begin if self.drop_last else min(begin, share - 1)

    def _read(self, part: Part, place: int, batches: int) -> int:
        """The samples that a rank has read of its part after some batches."""
        share, count = part.share(place), self._batches(part)
        if batches >= count and not self.drop_last:
            return share
        if self.batch_size == 1:
            return min(batches, share)
        return self._first(part, share, batches)

    def _batch(self, number: int) -> list[int]:
        part = [one for one in self._parts if one.begin <= number and len(one.order)][-1]
        batch, count = number - part.begin, self._batches(part)
        share = len(part.order)
        begin = self._first(part, share, batch)
        last = batch == count - 1 and not self.drop_last
        end = share if last else self._first(part, share, batch + 1)
        return [int(one) for one in part.order[begin : max(end, begin + 1)]]

    # ---- ranks that have died, and newcomers

    def _left(self, counts: Mapping[int, int]) -> Ids:
        """The samples that are left after the first counts[r] batches of rank r; of all ranks of the last part."""
        *earlier, last = self._parts
        if last.ids is None:
            last.ids = self._listed(last)
        lost: list[Ids] = []
        for part in earlier:
            assert part.end is not None
            for place, member in enumerate(part.members):
                if member in counts and counts[member] < part.end:
                    done = self._read(part, place, max(0, counts[member] - part.begin))
                    end = self._read(part, place, part.end - part.begin)
                    lost.append(self._order(part, place)[done:end])
        read = [self._read(last, place, max(0, counts[one] - last.begin)) for place, one in enumerate(last.members)]
        at = np.arange(len(last.ids))
        kept = last.ids[at // last.ranks >= np.array(read)[at % last.ranks]] if len(last.ids) else last.ids
        if not self.shuffle:
            kept = np.sort(kept)
        return np.concatenate([kept, *lost])

    def _listed(self, part: Part) -> Ids:
        """The list of a part that was drawn."""
        ids = np.empty(part.left, np.int32)
        for place in range(part.ranks):
            ids[place :: part.ranks] = self._drawn(place, part.ranks)[0]
        return ids

    def _order(self, part: Part, place: int) -> Ids:
        assert part.ids is not None
        return part.ids[place :: part.ranks]

    @property
    def lives(self) -> bool:
        """False for a division of a virtual rank that has died."""
        return bool(getattr(self._ranks, "lives", True))

    def told(self) -> dict[str, int]:
        """Counts that other ranks hear when the view changes. Each rank goes by the largest of each.

        asked    batches that this rank keeps.
        trained  batches whose steps have been made.
        end      batches after which a loader has said that there are no more, before the last of them were trained.
        """
        one = self._iteration
        if one is None:
            return {"asked": 0, "trained": 0, "end": 0}
        end = one.given if one.ended and not one.joins else one.stop
        return {"asked": one.given, "trained": one.trained[-1], "end": end}

    def changed(self, change: Mapping[str, Any], told: Mapping[str, int]) -> int:
        """Deal anew what is left when ranks have died, or joined; all that were there keep the batches asked for.

        Returns the number of samples of the dead that are trained again.
        """
        self.rank, self.size = self._ranks.rank, self._ranks.size
        one = self._iteration
        if one is None:
            self._divide()
        if one is None or one.over:
            return 0
        kept = max(self._parts[-1].begin, min(told["asked"], len(self)))
        counts: list[tuple[int, int]] = []
        again = 0
        for dead, last, made in zip(change["died"], change["last_steps"], change["made"], strict=True):
            if dead in self._parts[-1].members:
                counts.append((dead, self._after(last + 1)))
                again += self._between(dead, counts[-1][1], self._after(made))
        self._cut(Cut(told["trained"], kept, list(change["ranks"]), counts))
        one.stops(told["end"])
        return again

    def _cut(self, cut: Cut) -> None:
        last = self._parts[-1]
        left = self._left(dict.fromkeys(last.members, cut.kept) | dict(cut.counts))
        last.end = cut.kept
        joined = [one for one in cut.members if one not in last.members]
        ahead = cut.kept - cut.trained
        if joined and ahead:  # as many batches as the others have been given, and have not trained
            taken = left[: len(joined) * ahead * self.batch_size]
            left = left[len(taken) :]
            least = len(joined) * ahead * (self.batch_size if self.drop_last else 1)
            if len(taken) < least:
                taken = np.resize(taken if len(taken) else self._some(), least)
            self._parts.append(self._dealt(cut.trained, joined, taken, ahead))
            self._parts[-1].end = cut.kept
        self._parts.append(self._dealt(cut.kept, cut.members, left))
        self._cuts.append(cut)

    def _some(self) -> Ids:
        """The last list that has samples."""
        return next(one.ids for one in reversed(self._parts) if one.ids is not None and len(one.ids))

    def stepped(self) -> None:
        """The model has made a step."""
        one = self._iteration
        if one is not None:
            one.trained.append(min(one.given, one.trained[-1] + self.accumulate))

    def _after(self, steps: int) -> int:
        """Batches of the iteration after this number of the model's steps."""
        assert self._iteration is not None
        trained = self._iteration.trained
        return trained[max(0, min(steps - self._iteration.begun, len(trained) - 1))]

    def _between(self, member: int, begin: int, end: int) -> int:
        """Samples in a rank's batches from one number to another."""
        found = 0
        for part in self._parts:
            if member in part.members:
                place = part.members.index(member)
                until = end if part.end is None else min(end, part.end)
                first, last = (self._read(part, place, max(0, one - part.begin)) for one in (begin, until))
                found += max(0, last - first)
        return found

    # ---- the place in the epoch, for newcomers

    def position(self) -> dict[str, Any]:
        """Describes this epoch for a newcomer; after the last meeting of all ranks, the next epoch."""
        one = self._iteration
        if one is not None and one.over:
            return {"epoch": self.epoch + 1, "divisions": [], "rest": None}
        found: dict[str, Any] = {"epoch": self.epoch, "divisions": self._divisions, "rest": self._rest}
        if one is not None:
            found |= {"members": self._parts[0].members, "begun": one.begun, "trained": one.trained}
            found |= {"end": self.told()["end"], "cuts": [vars(cut) for cut in self._cuts]}
        return found

    @staticmethod
    def heard(key: str, position: Mapping[str, Any], ranks: Ranks, survivor: Any) -> Dealing:
        """Makes a newcomer's Dealing from the `position` of another rank; its gg.Division takes it later."""
        samples, batch_size, accumulate, shuffle, drop_last, seed = json.loads(key)
        found = Dealing(samples, batch_size, accumulate, shuffle, drop_last, seed, ranks, survivor)
        found.epoch, found._divisions, found._rest = position["epoch"], position["divisions"], position["rest"]
        if "members" not in position:
            found._divide()
            return found
        found._begin(position["members"], joins=True)
        for cut in position["cuts"]:
            found._cut(Cut(**cut))
        found._iteration = Batches.joining(found, position)
        return found

    def _take(self, heard: Dealing) -> None:
        """Go on at the place of this newcomer's Dealing `heard`."""
        self.epoch, self._divisions, self._rest = heard.epoch, heard._divisions, heard._rest
        self._parts, self._cuts, self._iteration = heard._parts, heard._cuts, heard._iteration
        if self._iteration is not None:
            self._iteration.dealing = self


class Batches(Iterator[list[int]]):
    """An iteration. After its end it goes on, if a change of the group has left samples."""

    def __init__(self, dealing: Dealing, begun: int) -> None:
        self.dealing = dealing
        self.begun = begun  # the model's steps at its begin
        self.given = 0  # batches that have been asked for
        self.trained = [0]  # where ranks may die: batches that were trained before each step since then
        self.ended = False  # it has said that there are no more
        self.stop = 0  # it says so once behind this batch, as it did on other ranks, which had read ahead
        self.over = False  # all ranks have trained all batches: deaths leave no samples any more
        self.joins = False  # of a newcomer, which has not begun it

    @staticmethod
    def joining(dealing: Dealing, position: Mapping[str, Any]) -> Batches:
        """Makes a newcomer's iteration; steps of the others count for it as well."""
        one = Batches(dealing, position["begun"])
        one.trained = list(position["trained"])
        one.given = one.trained[-1]
        one.ended = one.joins = True
        one.stops(position["end"])
        return one

    def stops(self, end: int) -> None:
        """Other ranks have ended, or will end, after this number of batches: so does this one."""
        if end > self.given or (end == self.given and not self.ended):
            self.stop = end

    def __next__(self) -> list[int]:
        if self.given == len(self.dealing):
            self.dealing._meet()
        stops = self.stop == self.given > 0
        if self.given >= len(self.dealing) or stops:
            self.ended, self.stop = True, 0
            raise StopIteration
        self.ended = False
        self.given += 1
        return self.dealing._batch(self.given - 1)
