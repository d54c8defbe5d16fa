"""Changes of the group of an Exchange, or a wrapped module, whose caller makes the steps: ranks have died, and the
others go on."""

from __future__ import annotations

import functools
import json
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gossipgrad import _core
from gossipgrad.launch import agreement, stall, surviving

if TYPE_CHECKING:
    from gossipgrad.data.division import Division

Record = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class View:
    """The ranks of a group that live.

    epoch    changes so far.
    members  the ranks' first numbers, by their numbers of now.
    rank     this process's, of now; 0 of a virtual cluster.
    size     ranks that live.
    changes  the changes so far: dicts with "view", "step", "ranks", "died", "last_steps" (of each dead rank the last
             step whose update some rank has received), "trained_again" (samples of a Division), "seconds".
    """

    epoch: int
    members: tuple[int, ...]
    rank: int
    size: int
    changes: tuple[Record, ...]


class Survivor:
    """Goes on without ranks that have died, for an object that has a compiled Exchange.

    core     the compiled exchange of now.
    adapt    called after a change, before divisions and callbacks hear of it.
    on_view  the caller's own.
    """

    def __init__(
        self,
        team: _core.Team,
        core: Callable[[], _core.Exchange],
        adapt: Callable[[Record], None],
        on_view: Callable[[Record], object],
    ) -> None:
        self.team, self._core, self._adapt, self._on_view = team, core, adapt, on_view
        self.members: list[int] = list(range(team.size))
        self.changes: list[Record] = []
        self._divisions: weakref.WeakSet[Division] = weakref.WeakSet()
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

    def watch(self, division: Division) -> None:
        """Deal this division's samples anew after each change."""
        self._divisions.add(division)

    def begin(self, name: str) -> None:
        """From now on the others go on when this process ends, and it when others do."""
        if self.team.kind != "virtual":
            surviving.begin(self.team, name, self.look)

    def end(self) -> None:
        """All ranks end together. Collective, unless it was called before."""
        if surviving.is_of(self.team):
            with stall.within("close"):
                if not agreement.all_end(self.team):
                    raise ValueError("close: other ranks make another call; all ranks make the same calls")
            surviving.end(self.team)

    def meet(self, where: str) -> bool:
        """True if all ranks that live meet here. False: the group has changed, and a rank may have more to train."""
        if agreement.alone(self.team):
            return not self.look()
        return agreement.met(self.team, where)

    def stepped(self) -> None:
        """After a step: look."""
        for one in list(self._divisions):
            one.stepped()
        self.look()

    def look(self) -> bool:
        """Between two steps: go on without ranks that have died; True if some have. Waits while the view changes."""
        begin = time.monotonic()
        change = self._core().change_view()
        if change is None:
            return False
        self.members = change["ranks"]
        self._pending.append(change)
        self._adapt(change)
        change["seconds"] = time.monotonic() - begin
        if self._dealing:  # ranks have died while the others agreed: the outer call goes on
            return True
        self._dealing = True
        try:
            with stall.within("change of the view"):  # ranks may come from different calls
                while self._pending:
                    self._deal()
        finally:
            self._dealing = False
        return True

    def _deal(self) -> None:
        """All divisions deal anew what is left, after all ranks have told how far they have been read."""
        divisions = [one for one in self._divisions if one.lives]
        own: dict[str, int] = {}
        for one in divisions:
            own[one.key] = max(own.get(one.key, 0), one.asked())
        kept: dict[str, int] = {}
        for text in agreement.gather(self.team, json.dumps(own).encode(), "change of the view"):
            for key, count in json.loads(text).items():
                kept[key] = max(kept.get(key, 0), count)
        changes, self._pending = self._pending, []
        for change in changes:
            again = {}
            for one in divisions:
                again[one.key] = one.changed(change, kept[one.key])
            told = {key: one for key, one in change.items() if key not in ("made", "local")}
            self.changes.append({**told, "trained_again": sum(again.values())})
        for change in self.changes[-len(changes) :]:
            self._on_view(change)


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """A call that all ranks make of an object with a `_survivor` (None: no rank dies).

    Those that live make it again if ranks have died before all had completed it.
    """

    @functools.wraps(method)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        one: Any = args[0]
        if one._survivor is None:
            return method(*args, **kwargs)
        return agreement.surviving(one._survivor.team, lambda: method(*args, **kwargs))

    return again
