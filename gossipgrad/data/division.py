"""The samples of an epoch for a loop of the caller's own: each counts once, on any number of ranks, when ranks die
and when new ones join."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from gossipgrad.data.dealing import Batches, Dealing, Ranks, key_of
from gossipgrad.errors import counted, flag, integer, warn
from gossipgrad.launch import origin


class Division(Dealing):
    """This rank's batches of sample numbers, for a loop of your own around an Exchange.

        division = gg.Division(len(x), 32, exchange)
        for epoch in range(division.epoch, 3):
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

    A new rank makes its Division with the same arguments, and begins where the others are: `epoch` is theirs. For the
    batches that they have read ahead it has as many of its own: smaller ones if few samples are left, and at least one
    sample in each. With drop_last these are full. Some samples are then read twice. Divisions that are read at the same
    time need different arguments, such as their seeds: by these a new rank finds the others'.

    It is for training: a step of `ranks` counts for all divisions that are read. To evaluate where ranks may die, read
    the whole set on each rank, or range(ranks.rank, samples, ranks.size).

    ValueError: a batch larger than the smallest rank's part; on a new rank, an epoch before the others'.
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
        samples = len(samples) if isinstance(samples, Sized) else integer("samples", samples, 1)
        batch_size, accumulate = integer("batch_size", batch_size, 1), integer("accumulate", accumulate, 1)
        shuffle, drop_last, seed = flag("shuffle", shuffle), flag("drop_last", drop_last), integer("seed", seed, 0)
        survivor: Any = getattr(ranks, "_survivor", None)  # where ranks may die
        arguments = samples, batch_size, accumulate, shuffle, drop_last, seed
        heard = None if survivor is None else survivor.heard.pop(key_of(*arguments), None)
        smallest = samples // ranks.size
        if batch_size > smallest and heard is None:
            raise ValueError(
                f"batch_size={batch_size}: {counted(samples, 'sample')} on {counted(ranks.size, 'rank')} "
                f"allow 1 to {smallest}"
            )
        super().__init__(*arguments, ranks, survivor)
        self._joined: int | None = None  # the epoch in which this newcomer has joined the others
        if heard is not None:
            self._take(heard)
            self._joined = self.epoch
        if survivor is not None:
            survivor.watch(self)

    # ---- an epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0. The epoch of a loaded state goes on."""
        if integer("epoch", epoch, 0) == self.epoch:
            return
        if self._joined is not None and epoch < self._joined:
            raise ValueError(
                f"epoch={epoch}: this rank has joined the others in epoch {self._joined}; allowed: this one or later, "
                "by `for epoch in range(division.epoch, epochs)`"
            )
        if len(self._parts) > 1 and self.left:
            warn(
                f"epoch {self.epoch}: {self.left} batches of a rank were not read: samples that were dealt anew "
                "after the loader had ended. Allowed: `while sampler.left:` around the loop over the loader"
            )
        self.epoch, self._divisions, self._rest = epoch, [], None
        self._divide()
        if not len(self):
            warn(
                f"epoch {epoch}: no batch: {counted(self.samples, 'sample')} on {counted(self.size, 'rank')} with "
                f"batch_size={self.batch_size}, drop_last=True. Allowed: a smaller batch_size, or drop_last=False"
            )

    @property
    def left(self) -> int:
        """Batches of the epoch that this rank has not trained. Where ranks may die, a collective call at its end."""
        self._meet()
        return len(self) - self._trained()

    def __iter__(self) -> Iterator[list[int]]:
        kind = getattr(getattr(self._ranks, "_core", None), "kind", "virtual")  # of a gg.Team
        if self._survivor is None and kind != "virtual" and origin.survives():
            raise RuntimeError(
                f"{type(self).__name__}: ranks is a gg.Team, which does not hear of deaths (run --survive): samples "
                "would be lost. Allowed: the gg.Exchange or the wrapped model"
            )
        last = self._iteration
        if last is not None and last.ended and (last.joins or last.given < len(self)):
            last.joins = False
            return last
        if last is not None and self._survivor is not None and last.ended and 0 < last.trained[-1] < last.given:
            raise RuntimeError(
                f"epoch {self.epoch}: {last.given - last.trained[-1]} of {last.given} batches were read, and no step "
                f"came after them (accumulate={self.accumulate}). Allowed: model.step() after the loader's end for the "
                f"batches since the last step; to evaluate, no {type(self).__name__}, because each step counts for all "
                "of them: the whole set on each rank, or its part by rank and size"
            )
        if last is not None and (len(self._parts) > 1 or self._parts[0].members != self._members()):
            self._divide()
        self._iteration = Batches(self, 0 if self._survivor is None else self._survivor.steps)
        return self._iteration

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
        """Continue at a position, saved on any number of ranks.

        ValueError: of another set, seed or shuffle. RuntimeError: a newcomer has the others' position.
        """
        if self._joined is not None:
            raise RuntimeError(
                f"{type(self).__name__}.load_state_dict: this rank has joined the others at their position; allowed: "
                "load before training, if exchange.view has no changes"
            )
        for key in ("samples", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                name = type(self).__name__
                raise ValueError(f"{name}: {key} is {getattr(self, key)!r}, and {state[key]!r} in the state")
        self.epoch = integer("epoch", state["epoch"], 0)
        self._divisions = [[int(one) for one in read] for read in state["divisions"]]
        self._rest = [int(one) for one in state["left"]] if "left" in state else None
        self._divide()
