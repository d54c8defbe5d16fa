"""Where a call of fit is, as one object with named stages.

              begin             begin_epoch        all steps made
    REST ------------> BETWEEN -----------> WITHIN --------------> MADE
     ^                  |   ^                  |                     |
     |                  |   +------------------+---------------------+
     | end              | last epoch done        the epoch's numbers
     +------ OVER <-----+

An error leads from each stage to REST by on_fit_end; `error` then stays true until the next fit begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gossipgrad.history import Record


class Stage(Enum):
    REST = "no fit is at work"
    BETWEEN = "before the first step of an epoch, or after its last one has been counted"
    WITHIN = "steps of an epoch have been made, or come next"
    MADE = "on_step of an epoch's last step is called; the epoch's record comes next"
    OVER = "all epochs are done, and mixed if final_mix says so; on_fit_end is called"


class Watcher(Protocol):
    """The loop: while fit runs, it hears of changes that callbacks and users make to its trainer."""

    def rebatched(self) -> None: ...

    def shrunk(self, event: Record) -> None: ...

    def viewed(self, change: Record) -> None: ...


@dataclass
class FitState:
    """The stage of fit, and the position of training in an epoch."""

    stage: Stage = Stage.REST
    error: bool = False  # in this fit, or in the last one
    watcher: Watcher | None = None  # None: no fit runs
    mixed: bool = False  # fit is over, and all replicas have become the consensus model
    shrinking: bool = False  # on_shrink is called
    epoch_begun: int = 0  # the step with which this epoch began
    paused_at: int = -1  # the last step after which on_step has been called
    # The middle of an epoch, from a checkpoint or an error at which all ranks stopped: the next fit continues there.
    position: Record | None = None

    @property
    def fitting(self) -> bool:
        return self.stage is not Stage.REST

    @property
    def within(self) -> bool:
        return self.stage is Stage.WITHIN

    @property
    def more_batches(self) -> bool:
        """True if batches may follow."""
        return self.stage in (Stage.BETWEEN, Stage.WITHIN, Stage.MADE) and not self.error

    @property
    def failed(self) -> bool:
        """True if the last fit ended by an error, and while fit runs, until its last epoch is done."""
        return self.error or self.more_batches

    def begin(self, watcher: Watcher) -> None:
        self.stage, self.error, self.watcher = Stage.BETWEEN, False, watcher

    def begin_epoch(self, first: int) -> None:
        self.stage, self.epoch_begun = Stage.WITHIN, first

    def over(self, mixed: bool) -> None:
        self.stage, self.mixed = Stage.OVER, mixed

    def end(self) -> None:
        self.stage, self.mixed, self.watcher = Stage.REST, False, None
