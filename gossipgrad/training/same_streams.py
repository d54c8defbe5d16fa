"""Streams that must be the same on all ranks, compared after each epoch by what the ranks have passed."""

from __future__ import annotations

from typing import Any, cast

from gossipgrad.callbacks import Callback
from gossipgrad.data.given import Given
from gossipgrad.data.iterables import Stream, differs
from gossipgrad.errors import DataError
from gossipgrad.training.replicas import Replicas


class _Compared(Callback):
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def on_epoch_end(self, trainer: Any, record: Any) -> None:
        """DataError on all ranks where their passes had other targets up to the last batch that all have read."""
        gather, passed = cast(Replicas, trainer).gather, self.stream.passed
        end = min(int.from_bytes(one, "little") for one in gather(max(passed, default=0).to_bytes(8, "little")))
        if len(set(gather(passed.get(end, 0).to_bytes(4, "little")))) > 1:
            raise DataError(differs(self.stream.name, f"of its first {end:,} samples"))


def compared(callbacks: list[Callback], train: Given, processes: int) -> list[Callback]:
    """With a callback that compares the streams, where several processes pass through one each."""
    source = train.first.source
    if train.sharded or processes < 2 or not isinstance(source, Stream):
        return callbacks
    return [_Compared(source), *callbacks]
