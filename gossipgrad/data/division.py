"""The samples of an epoch for a loop of the caller's own: each counts once, on any number of ranks, and when ranks
die."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.errors import counted, flag, integer, warn
from gossipgrad.launch import origin

Ids = NDArray[np.int32]


class Ranks(Protocol):
    """A wrapped model, gg.Team, gg.Exchange or one of its replicas."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


@dataclass
class _Part:
    """Batches of an epoch on the same ranks, which share a list: sample i is sample i // ranks of rank i % ranks."""

    begin: int  # number of the first batch
    members: Sequence[int]  # the ranks' first numbers
    order: Ids  # this rank's samples
    left: int  # samples of the list
    ids: Ids | None = None  # the list; None: not made yet

    @property
    def ranks(self) -> int:
        return len(self.members)

    def share(self, place: int) -> int:
        """Samples of the rank at this place."""
        return self.left // self.ranks + (place < self.left % self.ranks)


class Division:
    """This rank's batches of sample numbers, for a loop of your own around an Exchange.

        division = gg.Division(len(x), 32, exchange)
        for epoch in range(3):
            division.set_epoch(epoch)
            for batch in division:
                exchange.step(gradients_of(exchange.weights, x[batch], y[batch]))

    An epoch reads each sample once. All ranks have equally many batches; the last may be smaller. With batches of one a
    rank may read its last sample a second time. The state of a running epoch loads on any number of ranks, with any
    batch size: they share the samples that no rank has read.

    samples     their number, or a set with a length; at least one sample for each rank.
    batch_size  samples of a rank and batch.
    ranks       a gg.Exchange, its replica or a wrapped model; a gg.Team, if no ranks die.
    shuffle     an order drawn from `seed`, rank and epoch; False: the set's.
    drop_last   full batches only; the samples that are left over are not read.
    accumulate  batches of a step.

    When a rank has died, its samples that reached nobody are dealt anew, with all that nobody has asked for. A rank
    keeps the batches that it has been given: what a DataLoader with workers has read ahead is still trained, by the
    same rank. `left` then tells if the epoch has more batches after the loader's end.

    ValueError: a batch larger than the smallest rank's part.
    """

    def __init__(
        self,
        samples: int | Sized,
        batch_size: int,
        ranks: Ranks,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.samples = len(samples) if isinstance(samples, Sized) else integer("samples", samples, 1)
        self.rank, self.size = ranks.rank, ranks.size
        self.batch_size = integer("batch_size", batch_size, 1)
        self.accumulate = integer("accumulate", accumulate, 1)
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.seed = integer("seed", seed, 0)
        smallest = self.samples // self.size
        if self.batch_size > smallest:
            raise ValueError(
                f"batch_size={self.batch_size}: {counted(self.samples, 'sample')} on {counted(self.size, 'rank')} "
                f"allow 1 to {smallest}"
            )
        self.epoch = 0
        self._ranks = ranks
        self._survivor: Any = getattr(ranks, "_survivor", None)  # where ranks may die
        self._divisions: list[list[int]] = []
        self._rest: list[int] | None = None  # the samples of a loaded rest that no divisions give
        self._divide()
        # Equal on all ranks for divisions of one set.
        self.key = str((self.samples, self.batch_size, self.accumulate, self.shuffle, self.drop_last, self.seed))
        if self._survivor is not None:
            self._survivor.watch(self)

    # ---- an epoch

    def _divide(self) -> None:
        """Begin the epoch, or the rest of it, on the ranks of now."""
        if self._survivor is not None:
            self.rank, self.size = self._ranks.rank, self._ranks.size
        members = list(range(self.size)) if self._survivor is None else self._survivor.members
        if self._rest is None:
            order, left = self._drawn(self.rank, self.size)
            self._parts = [_Part(0, members, order, left)]
        else:
            self._parts = [self._dealt(0, members, np.array(self._rest, np.int32))]
        self._iteration: _Batches | None = None  # the last one of the epoch

    def _drawn(self, rank: int, size: int) -> tuple[Ids, int]:
        return _core.division(self.samples, rank, size, self.seed, self.epoch, self.shuffle, self._divisions)

    def _dealt(self, begin: int, members: Sequence[int], ids: Ids) -> _Part:
        """A part whose list is these samples; if they are fewer than ranks, some are there twice."""
        ranks = len(members)
        if 0 < len(ids) < ranks:
            ids = np.resize(ids, ranks)
        return _Part(begin, members, ids[self.rank :: ranks], len(ids), ids)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0. The epoch of a loaded state goes on."""
        if integer("epoch", epoch, 0) == self.epoch:
            return
        if len(self._parts) > 1 and self.left:
            warn(
                f"epoch {self.epoch}: {self.left} batches of a rank were not read: samples of ranks that have died, "
                "after the loader had ended. Allowed: `while sampler.left:` around the loop over the loader"
            )
        self.epoch, self._divisions, self._rest = epoch, [], None
        self._divide()

    def __len__(self) -> int:
        """Batches of the epoch, or of the rest of a loaded one; more of them after a death."""
        return self._parts[-1].begin + self._batches(self._parts[-1])

    @property
    def left(self) -> int:
        """Batches of the epoch that this rank has not trained. Where ranks may die, a collective call at its end."""
        self._meet()
        return len(self) - self._trained()

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

    def _batches(self, part: _Part) -> int:
        shares = part.share(0), part.share(part.ranks - 1)
        if self.drop_last:
            return shares[1] // self.batch_size
        return -(-shares[0] // self.batch_size)

    def _first(self, share: int, batch: int) -> int:
        """Where a batch begins in a rank's order. The last has a sample, which the one before leaves it."""
        begin = batch * self.batch_size
        return begin if self.drop_last else min(begin, share - 1)

    def _read(self, part: _Part, place: int, batches: int) -> int:
        """The samples that a rank has read of its part after some batches."""
        share, count = part.share(place), self._batches(part)
        if batches >= count and not self.drop_last:
            return share
        if self.batch_size == 1:
            return min(batches, share)
        return self._first(share, batches)

    def _batch(self, number: int) -> list[int]:
        part = next(one for one in reversed(self._parts) if one.begin <= number)
        batch, count = number - part.begin, self._batches(part)
        share = len(part.order)
        begin = self._first(share, batch)
        last = batch == count - 1 and not self.drop_last
        end = share if last else self._first(share, batch + 1)
        return [int(one) for one in part.order[begin : max(end, begin + 1)]]

    def __iter__(self) -> Iterator[list[int]]:
        kind = getattr(getattr(self._ranks, "_core", None), "kind", "virtual")  # of a gg.Team
        if self._survivor is None and kind != "virtual" and origin.survives():
            raise RuntimeError(
                f"{type(self).__name__}: ranks is a gg.Team, which does not hear of deaths (run --survive): samples "
                "would be lost. Allowed: the gg.Exchange or the wrapped model"
            )
        last = self._iteration
        if last is not None and last.ended and last.given < len(self):
            return last
        if last is not None and self._survivor is not None and last.ended and 0 < last.trained[-1] < last.given:
            raise RuntimeError(
                f"epoch {self.epoch}: {last.given - last.trained[-1]} of {last.given} batches were read, and no step "
                f"came after them (accumulate={self.accumulate}). Allowed: model.step() after the loader's end for the "
                "batches since the last step"
            )
        if last is not None and (len(self._parts) > 1 or len(self._parts[0].members) != self.size):
            self._divide()
        self._iteration = _Batches(self, 0 if self._survivor is None else self._survivor.steps)
        return self._iteration

    # ---- ranks that have died

    def _left(self, counts: Mapping[int, int]) -> Ids:
        """The samples that are left after the first counts[r] batches of rank r; of all ranks of the last part."""
        *earlier, last = self._parts
        if last.ids is None:
            last.ids = self._listed(last)
        lost: list[Ids] = []
        for part, after in zip(earlier, self._parts[1:], strict=True):
            for place, member in enumerate(part.members):
                if member in counts and counts[member] < after.begin:
                    done = self._read(part, place, max(0, counts[member] - part.begin))
                    end = self._read(part, place, after.begin - part.begin)
                    lost.append(self._order(part, place)[done:end])
        read = [self._read(last, place, max(0, counts[one] - last.begin)) for place, one in enumerate(last.members)]
        at = np.arange(len(last.ids))
        kept = last.ids[at // last.ranks >= np.array(read)[at % last.ranks]] if len(last.ids) else last.ids
        if not self.shuffle:
            kept = np.sort(kept)
        return np.concatenate([kept, *lost])

    def _listed(self, part: _Part) -> Ids:
        """The list of a part that was drawn."""
        ids = np.empty(part.left, np.int32)
        for place in range(part.ranks):
            ids[place :: part.ranks] = self._drawn(place, part.ranks)[0]
        return ids

    def _order(self, part: _Part, place: int) -> Ids:
        assert part.ids is not None
        return part.ids[place :: part.ranks]

    @property
    def lives(self) -> bool:
        """False for a division of a virtual rank that has died."""
        return bool(getattr(self._ranks, "lives", True))

    def asked(self) -> int:
        """Batches that this rank keeps when the view changes."""
        return 0 if self._iteration is None else self._iteration.given

    def changed(self, change: Mapping[str, Any], kept: int) -> int:
        """Deal anew what is left when ranks have died; all that live keep their first `kept` batches.

        Returns the number of samples of the dead that are trained again.
        """
        self.rank, self.size = self._ranks.rank, self._ranks.size
        if self._iteration is None:
            self._divide()
        if self._iteration is None or self._iteration.over:
            return 0
        kept = max(self._parts[-1].begin, min(kept, len(self)))
        counts = dict.fromkeys(self._parts[-1].members, kept)
        again = 0
        for dead, last, made in zip(change["died"], change["last_steps"], change["made"], strict=True):
            if dead in counts:
                counts[dead] = self._after(last + 1)
                again += self._between(dead, counts[dead], self._after(made))
        left = self._left(counts)
        self._parts.append(self._dealt(kept, list(change["ranks"]), left))
        return again

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
        for part, after in zip(self._parts, [*self._parts[1:], None], strict=True):
            if member in part.members:
                place = part.members.index(member)
                until = end if after is None else min(end, after.begin)
                first, last = (self._read(part, place, max(0, one - part.begin)) for one in (begin, until))
                found += max(0, last - first)
        return found

    # ---- the position

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The position after `batches` batches of this iteration have been trained on: equal on all ranks.

        A DataLoader with workers reads ahead, so the sampler cannot know the number.
        """
        count, divisions, epoch, rest = len(self), self._divisions, self.epoch, self._rest
        if integer("batches", batches, 0, count) == count:
            epoch, divisions, rest = epoch + 1, [], None
        elif len(self._parts) > 1 or (batches and rest is not None):
            counts = dict.fromkeys(self._parts[-1].members, batches)
            rest, divisions = self._left(counts).tolist(), []
        elif batches:
            part = self._parts[0]
            divisions = [*divisions, [self._read(part, place, batches) for place in range(part.ranks)]]
        return {
            "samples": self.samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": epoch,
            "divisions": divisions,
            **({} if rest is None else {"left": rest}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position, saved on any number of ranks. ValueError: of another set, seed or shuffle."""
        for key in ("samples", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                name = type(self).__name__
                raise ValueError(f"{name}: {key} is {getattr(self, key)!r}, and {state[key]!r} in the state")
        self.epoch = integer("epoch", state["epoch"], 0)
        self._divisions = [[int(one) for one in read] for read in state["divisions"]]
        self._rest = [int(one) for one in state["left"]] if "left" in state else None
        self._divide()


class _Batches(Iterator[list[int]]):
    """An iteration. After its end it goes on, if a death has left samples."""

    def __init__(self, division: Division, begun: int) -> None:
        self._division = division
        self.begun = begun  # the model's steps at its begin
        self.given = 0  # batches that have been asked for
        self.trained = [0]  # where ranks may die: batches that were trained before each step since then
        self.ended = False  # it has said that there are no more
        self.over = False  # all ranks have trained all batches: deaths leave no samples any more

    def __next__(self) -> list[int]:
        if self.given == len(self._division):
            self._division._meet()
        if self.given >= len(self._division):
            self.ended = True
            raise StopIteration
        self.ended = False
        self.given += 1
        return self._division._batch(self.given - 1)
