"""Changes of the group of an Exchange, or a wrapped module, whose caller makes the steps: ranks have died, or new ones
have joined, and all go on."""

from __future__ import annotations

import functools
import json
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from gossipgrad import _core
from gossipgrad.data.dealing import Dealing, furthest
from gossipgrad.launch import agreement, joining, stall, surviving

Record = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")
_INNER = ("made", "local", "gives")  # of a change, not shown


@dataclass(frozen=True)
class View:
    """The ranks of a group that live.

    number   changes so far.
    members  the ranks' first numbers, by their numbers of now.
    rank     this process's, of now; 0 of a virtual cluster.
    size     ranks that live.
    changes  the changes so far: dicts with "view", "step", "ranks", "died", "last_steps" (of each dead rank the last
             step whose update some rank has received), "joined" (new ranks), "trained_again" (samples of a Division),
             "seconds". A new rank's begin with the one in which it has joined.
    """

    number: int
    members: tuple[int, ...]
    rank: int
    size: int
    changes: tuple[Record, ...]


class Survivor:
    """Goes on without ranks that have died, and with new ones, for an object that has a compiled Exchange.

    core     the compiled exchange of now.
    adapt    called after a change, before divisions and callbacks hear of it.
    on_view  the caller's own.
    leave    called before collective calls: leaves a step that has begun, and in which nothing is exchanged. The others
             would wait for its end, which comes after the call.
    facts    agreement.flat of all that must be equal on a new rank and the others.
    give     called on the donor of new ranks, after `adapt`; returns their state outside of the exchange.
    take     called with it on a new rank, by `join`, when it has the state of the exchange.

    grows    new processes may join: the view then changes when a step begins, else when it ends.
    """

    def __init__(
        self,
        team: _core.Team,
        core: Callable[[], _core.Exchange],
        adapt: Callable[[Record], None],
        on_view: Callable[[Record], object],
        leave: Callable[[], object],
        *,
        facts: Mapping[str, str],
        give: Callable[[], bytes],
        take: Callable[[bytes], object],
    ) -> None:
        self.grows = joining.grows(team)
        self.team, self._core, self._adapt, self._on_view, self.leave = team, core, adapt, on_view, leave
        self._facts, self._give, self._take = dict(facts), give, take
        self.members: list[int] = list(range(team.size))
        self.changes: list[Record] = []
        self._divisions: weakref.WeakSet[Dealing] = weakref.WeakSet()
        self._hears = team.newcomer  # the divisions of the others
        self.heard: dict[str, Dealing] = {}  # a newcomer's by key, until it makes a gg.Division with these arguments
        self._pending: list[Record] = []
        self._dealing = False

    @property
    def steps(self) -> int:
        """Steps of the exchange."""
        return self._core().step

    def view(self) -> View:
        """The ranks of now."""
        number = self.changes[-1]["view"] if self.changes else 0
        return View(number, tuple(self.members), self.team.rank, self.team.size, tuple(self.changes))

    def check_step(self, step: int) -> None:
        """ValueError for a state of this step, if the group has changed at a later one."""
        surviving.check_step(step, self.changes)

    def watch(self, division: Dealing) -> None:
        """Deal this division's samples anew after each change."""
        self._divisions.add(division)

    def begin(self, name: str) -> None:
        """From now on the others go on when this process ends, and it when others do."""
        if self.team.kind != "virtual":
            surviving.begin(self.team, name, self.look)

    def join(self) -> None:
        """This new rank becomes a member, with its donor's state. After `begin`; on other ranks a no-op.

        Calls on_view, as the others do, since it may make collective calls.
        """
        if not self.team.newcomer:
            return
        try:
            change, given = joining.await_state(self.team, self._take_state)
            self.members = change["ranks"]
            self._take(given)
            self._pending.append({**change, "seconds": 0.0})
            self._deal_all()
        except BaseException as error:
            surviving.end(self.team, error)  # this process dies: its end waits for nobody
            raise

    def _take_state(self) -> tuple[Record, bytes] | None:
        text = self._core().hear()
        length = int.from_bytes(text[:8], "little")
        heard = json.loads(text[8 : 8 + length])
        joining.check(heard["facts"], self._facts)
        return (heard["change"], text[8 + length :]) if self._core().join() else None

    def _text(self, change: Record) -> bytes:
        """Packs the facts, the change and the state outside of the exchange, for new ranks of this donor."""
        own = json.dumps({"facts": self._facts, "change": change}).encode()
        return len(own).to_bytes(8, "little") + own + self._give()

    def end(self) -> None:
        """All ranks end together. Collective, unless it was called before."""
        if surviving.is_of(self.team):
            self.leave()
            with stall.within("close"):
                if not agreement.all_end(self.team):
                    raise ValueError("close: other ranks make another call; all ranks make the same calls")
            surviving.end(self.team)

    def meet(self, where: str) -> bool:
        """True if all ranks that live meet here. False: the group has changed, and a rank may have more to train."""
        self.leave()
        if agreement.alone(self.team):
            return self.grows or not self.look()
        return agreement.met(self.team, where)

    def begins(self) -> bool:
        """Before a step, where new ranks may join: look; True if the group has changed.

        So new ranks begin with this step, and miss no call that the others make between two steps. Not before the first
        one, where scripts load states.
        """
        return self.grows and self.steps > 0 and self.look()

    def stepped(self) -> None:
        """After a step: tell divisions; look, where ranks die alone."""
        for one in list(self._divisions):
            one.stepped()
        if not self.grows:
            self.look()

    def look(self) -> bool:
        """Between two steps: go on without ranks that have died, and with new ones; False: neither. Waits while the
        view changes."""
        begin = time.monotonic()
        change = self._change_view()
        if change is None:
            return False
        self._pending.append(change)
        change["seconds"] = time.monotonic() - begin
        if not self._dealing:  # else ranks have died while the others agreed: the outer call goes on
            self._deal_all()
        return True

    def _change_view(self) -> Record | None:
        def take(change: Record, made: Record) -> bool:
            self.members = change["ranks"]
            self._adapt(change)
            return self._core().give(self._text(made) if change["gives"] else b"")

        return joining.follow(lambda: self._core().change_view(), lambda: self.members, take)

    def _deal_all(self) -> None:
        """Deal for all changes that are pending, also those that come meanwhile."""
        self._dealing = True
        try:
            with stall.within(joining.CHANGE):
                while self._pending:
                    self._deal()
        finally:
            self._dealing = False

    def _deal(self) -> None:
        """All divisions deal anew what is left, after all ranks have told how far they have been read."""
        divisions = [one for one in self._divisions if one.lives] + list(self.heard.values())
        own: dict[str, dict[str, int]] = {}
        for one in divisions:
            own[one.key] = furthest(one.told(), own.get(one.key, {}))
        told = self._gather({"hears": self._hears, "divisions": own})
        of_all: dict[str, dict[str, int]] = {}
        for text in told:
            for key, numbers in text["divisions"].items():
                of_all[key] = furthest(numbers, of_all.get(key, {}))
        changes, self._pending = self._pending, []
        again = []
        for change in changes:
            again.append(sum({one.key: one.changed(change, of_all[one.key]) for one in divisions}.values()))
        if any(text["hears"] for text in told):
            again = self._hear(divisions, [text["divisions"] for text in told], again)
        for change, samples in zip(changes, again, strict=True):
            shown = {key: one for key, one in change.items() if key not in _INNER}
            self.changes.append({**shown, "trained_again": samples})
        for change in self.changes[-len(changes) :]:
            self._on_view(change)

    def _gather(self, own: Record) -> list[Record]:
        texts = agreement.gather(self.team, json.dumps(own).encode(), joining.CHANGE)
        return [json.loads(text) for text in texts]

    def _hear(self, divisions: list[Dealing], keys: list[Record], again: list[int]) -> list[int]:
        """Newcomers hear the divisions of the others; of each key the lowest rank that has it tells.

        Returns the samples that are trained again after each change.
        """
        rank = self.team.rank
        tells = keys[rank].keys() - {key for lower in keys[:rank] for key in lower}
        # If several have one key, the position of the last one is told: it has been read furthest.
        divisions = sorted(divisions, key=lambda one: one.told()["asked"])
        own = {one.key: one.position() for one in divisions if one.key in tells}
        for text in self._gather({"again": again, "divisions": own}):
            if self._hears:
                again = [max(samples, here) for samples, here in zip(text["again"][-len(again) :], again, strict=True)]
                for key, position in text["divisions"].items():
                    self.heard[key] = Dealing.heard(key, position, self.team, self)
        self._hears = self._hears and bool(self._pending)  # else a rank has died, and may have told nothing
        return again


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """A call that all ranks make of an object with a `_survivor` (None: no rank dies).

    Those that live make it again if ranks have died before all had completed it.
    """

    @functools.wraps(method)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        one: Any = args[0]
        if one._survivor is None:
            return method(*args, **kwargs)
        one._survivor.leave()
        return agreement.surviving(one._survivor.team, lambda: method(*args, **kwargs))

    return again
