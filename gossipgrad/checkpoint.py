"""Saving and restoring a trainer: what of it goes into a checkpoint, and what fits here. Every function is collective.

checkpoint_files.py knows the files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gossipgrad import agreement, notices
from gossipgrad import checkpoint_files as files
from gossipgrad.errors import CheckpointError
from gossipgrad.history import Record
from gossipgrad.model import Model
from gossipgrad.replicas import Arrays, Replicas


def save(replicas: Replicas, path: str | os.PathLike[str]) -> None:
    """Write the consensus weights to `path` and all ranks' state beside it. CheckpointError: not written."""
    path = os.fspath(path)
    team = replicas.team
    replicas.core.settle()
    step = replicas.core.step
    token = team.broadcast(os.urandom(4)).hex()
    state = f"step-{step:08}-{token}"

    def prepare() -> None:
        if team.rank == 0:
            files.prepare(path, state)

    def write() -> None:
        for local in range(team.local):
            files.write_rank(path, state, team.rank + local, step, replicas.rank_state(local))

    agreement.together(team, path, prepare, replicas.where)
    agreement.together(team, path, write, replicas.where)
    weights = replicas.core.consensus_weights()
    description = {
        "model": replicas.net.config(),
        "settings": replicas.settings(),
        "ranks": replicas.size,
        "step": step,
        "epoch": replicas.epoch,
        "epochs": replicas.history.epochs,
        "learning_rate": replicas.set_rate,
    }

    def commit() -> None:
        if team.rank == 0:
            files.commit(path, state, weights, description)

    agreement.together(team, path, commit, replicas.where)


@dataclass
class _Saved:
    """What a checkpoint says of itself."""

    net: Model
    ranks: int
    step: int
    epoch: int
    epochs: list[Record]
    settings: Record
    state: str
    learning_rate: float | None  # set by hand or by a plateau; None: by the schedule

    @classmethod
    def of(cls, name: str, description: dict[str, Any]) -> _Saved:
        try:
            return cls(
                net=Model.from_config(description["model"]),
                ranks=int(description["ranks"]),
                step=int(description["step"]),
                epoch=int(description["epoch"]),
                epochs=list(description["epochs"]),
                settings=dict(description["settings"]),
                state=description["state"],
                learning_rate=None if description.get("learning_rate") is None else float(description["learning_rate"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{name}: its description cannot be understood ({error!r})") from error

    def check(self, name: str, replicas: Replicas) -> None:
        """CheckpointError unless it is of the same network and as many ranks."""
        net = replicas.net
        if not net.same_network(self.net):
            raise CheckpointError(
                f"{name} is of another model: {self.net.name!r} with {self.net.parameters:,} parameters, here "
                f"{net.name!r} with {net.parameters:,}{_first_difference(self.net, net)}"
            )
        if self.ranks != replicas.size:
            raise CheckpointError(
                f"{name} is of {self.ranks} ranks, here are {replicas.size}; to go on it takes as many. "
                "net.load_weights takes its consensus weights alone"
            )


def restore(replicas: Replicas, path: str | os.PathLike[str]) -> None:
    """Go on from a checkpoint of the same network and number of ranks."""
    name = os.fspath(path)
    net, team = replicas.net, replicas.team
    consensus, description = files.read(name)
    saved = _Saved.of(name, description)
    saved.check(name, replicas)
    parts: list[dict[str, Arrays]] = []

    def load() -> None:
        for local in range(team.local):
            part = files.read_rank(name, saved.state, team.rank + local)
            where = f"{name}, rank {team.rank + local}"
            checked = {key: net.check_weights(arrays, where) if arrays else {} for key, arrays in part.items()}
            parts.append(checked | {"weight": net.check_weights(part["weight"], where)})

    agreement.together(team, "resume", load, replicas.where)
    replicas.core.settle()
    _restore_exchange(replicas, saved.settings)
    replicas.set_state(saved.step, parts, net.check_weights(consensus, name))
    _restore_rate(replicas, saved)
    replicas.epoch = saved.epoch
    replicas.history.epochs = saved.epochs
    notices.changed_settings(team.rank, name, saved.settings, replicas.settings())


def _restore_exchange(replicas: Replicas, saved: Record) -> None:
    """Where "auto" may choose, what was exchanged before goes on, whatever these ranks share."""
    if "exchange" in saved:  # before there was "auto"
        saved.setdefault("exchange_used", saved["exchange"])
    used = saved.get("exchange_used")
    if getattr(replicas.strategy, "exchange", None) == "auto" and used in ("weights+momentum", "weights"):
        replicas.set_exchange(used)


def _restore_rate(replicas: Replicas, saved: _Saved) -> None:
    """A rate that was set goes on, unless another lr or schedule is wanted from here on, which is warned of."""
    here = replicas.optimizer.settings()
    same = all(saved.settings.get(key) == here[key] for key in ("lr", *replicas.optimizer.timing.settings()))
    replicas.set_rate = saved.learning_rate if same else None


def _first_difference(saved: Model, here: Model) -> str:
    theirs, ours = saved.parameter_shapes(), here.parameter_shapes()
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            return f"; {name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
    return ""
