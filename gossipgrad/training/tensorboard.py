"""Logs for TensorBoard, written by tensorboardX or by torch's own writer, whichever is installed."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from gossipgrad.callbacks import Callback, Progress
from gossipgrad.errors import flag, named_keywords, warn
from gossipgrad.history import Record, flat
from gossipgrad.launch import agreement
from gossipgrad.state.outputs import fixed_path
from gossipgrad.training import survival

if TYPE_CHECKING:
    from gossipgrad.trainer import Trainer

# Numbers of a record that are positions, not results.
_POSITIONS = ("epoch", "steps")


def _writer_class() -> Any:
    """tensorboardX's or torch's SummaryWriter; ImportError with advice if both are missing."""
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(module).SummaryWriter
    raise ImportError(
        "TensorBoard's logs are written by tensorboardX, or by torch with tensorboard: "
        "pip install 'gossipgrad[tensorboard]'"
    )


@named_keywords
class TensorBoard(Callback):
    """Writes every number of an epoch's record for TensorBoard, at the number of training steps.

        trainer.fit(train, validation=test, epochs=5, callbacks=[gg.TensorBoard("runs/gossip")])

    folder     of the logs, one a run; created if missing. `tensorboard --logdir runs` shows all runs below.
    histograms also of the consensus model's weights, after each epoch.
    writer     instead of a new one: anything with add_scalar(tag, value, step), add_text, add_histogram, flush; it is
               not closed. folder is then None.

    Tags are the dotted names of the record with a slash for the dot, as "validation/accuracy". "progress/loss" is the
    epoch's loss so far on the ranks of the first process, a few times a second. "settings" is a text. When ranks die,
    "ranks" is how many are left and "views" a text. Rank 0 alone writes. A resumed run continues in the same folder and
    replaces records after the checkpoint's step. ImportError without tensorboardX and torch's writer. If writing fails,
    as on a full disk, one warning says so, and training continues.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, histograms: bool = False, writer: Any = None
    ) -> None:
        if (folder is None) == (writer is None):
            raise ValueError(f"folder={folder!r}, writer={writer!r}: allowed: one of both")
        self.folder = None if folder is None else fixed_path("folder", folder)
        self.histograms = flag("histograms", histograms)
        self.failure: str | None = None
        self._given = writer
        self._class = _writer_class() if writer is None else None
        self._writer: Any = None

    def _write(self, method: str, *arguments: Any) -> None:
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*arguments)
        except OSError as error:
            self._writer, self.failure = None, f"{self.folder}: this log ends here: {error.strerror or error}"
            warn(self.failure)

    def _open(self, step: int) -> None:
        if self._class is None:
            self._writer = self._given
            return
        assert self.folder is not None
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._writer = self._class(self.folder, purge_step=step + 1 if step else None)
        except OSError as error:
            raise ValueError(f"folder={self.folder!r}: cannot be written to: {error.strerror or error}") from None

    def on_fit_begin(self, trainer: Trainer) -> None:
        self.failure = None
        with agreement.agreed(trainer.team, f"TensorBoard({self.folder!r})"):
            if trainer.rank == 0:
                self._open(trainer.step)
        settings = json.dumps(trainer.settings(), indent=1, default=str)
        self._write("add_text", "settings", "\n".join("    " + line for line in settings.splitlines()), trainer.step)

    def on_view(self, trainer: Trainer, change: Record) -> None:
        if trainer.rank == 0 and self._writer is None:
            self._open(trainer.step)  # the log was a dead rank's
        self._write("add_scalar", "ranks", float(trainer.size), trainer.step)
        self._write("add_text", "views", survival.said(change), trainer.step)

    def on_progress(self, trainer: Trainer, progress: Progress) -> None:
        if math.isfinite(progress.loss):
            self._write("add_scalar", "progress/loss", progress.loss, trainer.step)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        for name, value in flat(record).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in _POSITIONS:
                self._write("add_scalar", name.replace(".", "/"), float(value), trainer.step)
        self._write("add_scalar", "epoch", record["epoch"], trainer.step)
        if self.histograms:
            for name, weights in trainer.consensus_weights().items():  # collective, so on all ranks
                self._write("add_histogram", f"weights/{name.replace('.', '/')}", weights, trainer.step)
        self._write("flush")

    def on_fit_end(self, trainer: Trainer) -> None:
        if self._writer is not None and self._class is not None:
            self._write("close")
        self._writer = None
