"""Saving and restoring a trainer: the content of a checkpoint, and its checks. Every function is collective.

state/checkpoint_files.py knows the files.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gossipgrad import heads, optim, strategies
from gossipgrad.apoptosis import Apoptosis, Course
from gossipgrad.errors import LARGEST, CheckpointError, choice, counted, integer, not_finite, number
from gossipgrad.history import Record
from gossipgrad.launch import agreement, surviving
from gossipgrad.literals import CONV_ALGORITHMS, DTYPES
from gossipgrad.model import Model
from gossipgrad.state import checkpoint_files as files
from gossipgrad.state import clocks
from gossipgrad.training import algorithms, arenas, elastic, fingerprint, mixing, notices
from gossipgrad.training.arenas import RESIDUE
from gossipgrad.training.replicas import CARRIED, Arrays, Replicas


def save(replicas: Replicas, path: str | os.PathLike[str]) -> None:
    """Write the consensus weights to `path` and all ranks' state beside it. CheckpointError: not written."""
    path = os.fspath(path)
    team = replicas.team
    replicas.core.exchange.settle()
    step = replicas.core.exchange.step
    position = replicas.where_in_epoch()  # before messages of the save
    state = files.state_name(step, team.broadcast(os.urandom(4)))
    with contextlib.ExitStack() as stack:

        def prepare() -> None:
            if team.rank == 0:
                stack.enter_context(files.locked(path))
                files.prepare(path, state)

        agreement.together(team, path, prepare, replicas.where)
        try:
            with clocks.standing(team) as times:
                _write(replicas, path, state, step, position, times)
        except CheckpointError:  # raised on all ranks, so none writes any more
            if team.rank == 0:
                files.discard(path, state)
            raise


def _write(
    replicas: Replicas, path: str, state: str, step: int, position: Record | None, times: list[clocks.Clock]
) -> None:
    """Write the files of a save whose folder exists."""
    team = replicas.team
    digests: list[str] = []

    def write() -> None:
        for local in range(team.local):
            digests.append(files.write_rank(path, state, team.rank + local, step, replicas.rank_state(local)))

    agreement.together(team, path, write, replicas.where)
    everywhere = [one for text in replicas.gather(json.dumps(digests).encode()) for one in json.loads(text)]
    weights = replicas.core.exchange.consensus_weights()
    description = {
        "model": replicas.net.config(),
        "settings": replicas.settings(),
        "classes": replicas.class_names,
        "ranks": replicas.size,
        "step": step,
        "moments_since": replicas.core.exchange.moments_since,
        "push_sum_since": replicas.core.exchange.push_sum_since,
        "epoch": replicas.epoch,
        "fit_began": replicas.fit_began,
        "epochs": replicas.history.epochs,
        "batch_size": replicas.set_batch,
        "batch_size_changes": replicas.batch_changes,
        "position": position,
        "clocks": times,
        "learning_rate": replicas.set_rate,
        "apoptosis": _apoptosis(replicas),
        "algorithms": replicas.algorithms,
        "rank_files": everywhere,
    }

    def commit() -> None:
        if team.rank == 0:
            files.commit(path, state, weights, description)

    agreement.together(team, path, commit, replicas.where)


def _apoptosis(replicas: Replicas) -> Record | None:
    """The progress of apoptosis, and the units that have left; None: it has not begun."""
    course, report = replicas.course, replicas.history.apoptosis
    if course is None and not report:
        return None
    return {"course": None if course is None else course.settings(), "report": report}


def _read_apoptosis(saved: Record | None) -> Record | None:
    """The result of _apoptosis; KeyError, TypeError, ValueError: another thing."""
    if saved is not None and saved["course"] is not None:
        Course.of(Apoptosis(), saved["course"])
    return None if saved is None else {"course": saved["course"], "report": dict(saved["report"])}


def _classes(described: Any) -> list[str] | None:
    """The names of the classes; TypeError: another thing."""
    if described is None:
        return None
    if not isinstance(described, list) or not all(isinstance(one, str) for one in described):
        raise TypeError("classes: no list of names")
    return described


def _optional(check: Callable[..., Any], argument: str, described: Any, *limits: float) -> Any:
    return None if described is None else check(argument, described, *limits)


def _settings(described: Any) -> Record:
    """Settings of a trainer; an exception of any kind: these are none."""
    settings = dict(described)
    strategies.from_settings(settings)
    optim.from_settings(settings)
    integer("seed", settings.get("seed", 0), 0, 2**64 - 1)
    choice("dtype", settings.get("dtype", "float32"), DTYPES)
    choice("conv_algorithm", settings.get("conv_algorithm", "auto"), CONV_ALGORITHMS)
    for key in ("device", "precision", "strategy", "optimizer"):
        if not isinstance(settings.get(key, ""), str):
            raise TypeError(f"{key}={settings[key]!r}: no text")
    return settings


def _algorithms(described: Any) -> list[Record] | None:
    """The algorithms, if understood; KeyError, TypeError, ValueError: otherwise."""
    if described is None:
        return None
    algorithms.choices(described)
    algorithms.first_tables(described)
    return list(described)


def _position(saved: Record | None) -> Record | None:
    """The result of where_in_epoch; KeyError, TypeError, ValueError: another thing."""
    if saved is None:
        return None
    names = ("epoch", "step", "steps", "begun", "left", "batch_size", "paused_at")
    numbers: Record = {key: int(saved[key]) for key in names}
    if "rate" in saved:
        numbers["rate"] = float(saved["rate"])
    if "read" in saved:  # absent in older files
        numbers["read"] = [int(one) for one in saved["read"]]
    numbers["divisions"] = [[int(one) for one in read] for read in saved.get("divisions", ())]
    return {**numbers, "done": [int(one) for one in saved["done"]], "counts": [dict(one) for one in saved["counts"]]}


# Settings that determine the samples a rank has trained on in an epoch: they stay within an epoch.
_DIVIDES = ("train_samples", "shuffle", "drop_last", "shard", "seed", "shuffle_samples")


@dataclass
class Saved:
    """The description in a checkpoint."""

    net: Model
    ranks: int
    step: int
    epoch: int
    fit_began: int  # epochs done when the fit that saved it began; 0 if unknown
    epochs: list[Record]
    settings: Record
    classes: list[str] | None  # the names, for a text the characters; None: unknown, or not saved then
    learning_rate: float | None  # set by hand or by a plateau; None: by the schedule
    optimizer: str
    moments_since: int
    push_sum_since: int  # 0 if unknown
    apoptosis: Record | None
    batch_size: int | None  # set by hand; None: that of the settings
    batch_changes: list[Record]
    position: Record | None  # in the middle of an epoch; None: between two
    algorithms: list[Record] | None  # None: of a version without choices
    times: list[clocks.Clock]  # of a virtual cluster; [] otherwise, or of a version without

    @classmethod
    def of(cls, name: str, description: dict[str, Any]) -> Saved:
        try:
            net = Model.from_config(description["model"])
            heads.with_losses(net.heads, *heads.losses_of(description["settings"]).values())
            return cls(
                net=net,
                ranks=integer("ranks", description["ranks"], 1),
                step=integer("step", description["step"], 0),
                epoch=integer("epoch", description["epoch"], 0),
                fit_began=integer("fit_began", description.get("fit_began", 0), 0),
                epochs=[dict(one) for one in description["epochs"]],
                settings=_settings(description["settings"]),
                classes=_classes(description.get("classes")),
                learning_rate=_optional(number, "learning_rate", description.get("learning_rate"), 0.0, LARGEST),
                optimizer=str(description["settings"]["optimizer"]),
                moments_since=integer("moments_since", description["moments_since"], 0),
                push_sum_since=integer("push_sum_since", description.get("push_sum_since", 0), 0),
                batch_size=_optional(integer, "batch_size", description.get("batch_size"), 1),
                batch_changes=[dict(one) for one in description.get("batch_size_changes", ())],
                position=_position(description.get("position")),
                algorithms=_algorithms(description.get("algorithms")),
                times=clocks.checked(description.get("clocks"), int(description["ranks"])),
                apoptosis=_read_apoptosis(description.get("apoptosis")),
            )
        except Exception as error:  # a forged one may lead anywhere
            raise CheckpointError(f"{name}: its description cannot be understood ({error!r})") from error

    @property
    def workers(self) -> int:
        """The number of ranks that trained, the first ones."""
        return strategies.from_settings(self.settings).workers(self.ranks)

    def check(self, name: str, replicas: Replicas) -> None:
        """CheckpointError unless it is of the same network, perhaps shrunk, and these ranks can continue from it."""
        net = replicas.net
        if not (net.same_network(self.net) or replicas.born.same_network(self.net.resized(self.net.born))):
            raise CheckpointError(
                f"{name} is of another model: {self.net.name!r} with {self.net.parameters:,} parameters, here "
                f"{net.name!r} with {net.parameters:,}{_first_difference(self.net, net)}"
            )
        if self.position is not None and self._is_elastic(replicas):
            cannot = None
            if "read" not in self.position:
                cannot = "was saved by an older version"
            elif self.settings.get("shuffle_samples"):
                cannot = "was saved with shuffle_samples"
            elif self.settings.get("shard") == "own":
                cannot = "was saved with sharded data"
            if cannot is not None:
                raise CheckpointError(
                    f"{name} {cannot}, in the middle of epoch {self.epoch + 1}, on {counted(self.ranks, 'rank')}; here "
                    f"are {replicas.size}. Allowed on another number: what was saved between two epochs; "
                    "net.load_weights, and train --weights, load the consensus weights alone"
                )

    def _is_elastic(self, replicas: Replicas) -> bool:
        """True if other ranks train here than in the saved run."""
        return self.ranks != replicas.size or self.workers != replicas.workers

    def position_on(self, replicas: Replicas) -> Record | None:
        """The position on these ranks."""
        if self.position is None or not self._is_elastic(replicas):
            return self.position
        return elastic.continued(self.position, replicas.size, replicas.workers)


def restore(replicas: Replicas, path: str | os.PathLike[str]) -> None:
    """Continue from a checkpoint of the same network. Units that have left stay away.

    On another number of ranks all begin with the result of arenas.of_other_ranks. A newcomer gets its state from its
    donor; it reads `path` alone, because a save of the others may remove the ranks' files meanwhile.

    Moments belong to one kind of optimiser. From a checkpoint of another kind they begin at zero, and Adam counts its
    updates from here. A residue stays under other options of compression, too, if all of it will still be sent.
    """
    name = os.fspath(path)
    team = replicas.team
    found: list[tuple[Saved, Arrays, list[dict[str, Arrays]]]] = []
    checksums: list[str] = []
    residues: set[bool] = set()  # of each rank: True if its file has one

    def load() -> None:
        weights, description = files.read(name)
        checksums.append(fingerprint.description(description))
        saved = Saved.of(name, description)
        saved.check(name, replicas)
        net = saved.net
        consensus = _checked(net, weights, name)

        def part_of(rank: int) -> dict[str, Arrays]:
            part = files.read_rank(name, description, rank)
            where = f"{name}, rank {rank}"
            checked = {key: _checked(net, one, f"{where}, {key}") for key, one in part.items() if key != CARRIED}
            if net.parameter_shapes() and not checked.get("weight"):
                raise CheckpointError(f"{where}: without weights")
            _check_residue(replicas, saved, checked.get(RESIDUE, {}), where)
            residues.add(RESIDUE in checked)
            return checked | ({CARRIED: part[CARRIED]} if CARRIED in part else {})

        if team.newcomer:
            parts = [{"weight": consensus}]
        elif saved.ranks == replicas.size:
            parts = [part_of(rank) for rank in range(team.rank, team.rank + team.local)]
        else:
            trained, kinds = map(part_of, range(saved.workers)), replicas.core.exchange.arenas()
            here = saved.settings["strategy"], consensus, trained, kinds, replicas.workers
            parts = [arenas.of_other_ranks(*here)] * team.local
        found.append((saved, consensus, parts))

    with replicas.agreed("resume") as one:
        try:
            load()
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"resume: {error}") from error
        saved, consensus, parts = found[0]
        try:
            surviving.check_step(saved.step, replicas.history.views)
        except ValueError as error:
            raise CheckpointError(f"resume: {name}: {error}") from error
        one.facts = {"resume": name, f"description of {name}": checksums[0]}
    _check_position(name, saved, replicas)
    replicas.core.exchange.settle()
    if not replicas.net.same_network(saved.net) or replicas.net.born != saved.net.born:
        notices.shrunken(team.rank, name, saved.net, replicas.apoptosis)
        replicas.adopt(saved.net)
    if saved.ranks != replicas.size:
        notices.other_ranks(team.rank, name, saved.ranks, replicas.size)
    notices.residue(team.rank, name, True in residues, RESIDUE in replicas.core.exchange.arenas())
    _restore_exchange(replicas, saved.settings)
    here = replicas.settings()
    anew = arenas.begun_anew(saved.settings, here, replicas.core.exchange.arenas())
    parts = [{key: part[key] for key in part if key not in anew} for part in parts]
    same_ranks, exchange = saved.ranks == replicas.size, replicas.core.exchange
    exchange.moments_since = saved.moments_since if saved.optimizer == replicas.optimizer.name else saved.step
    replicas.set_state(saved.step, parts, consensus, saved.workers if same_ranks else None)
    mixing.go_on(exchange, team.local, consensus, saved.push_sum_since, saved.settings, here, same_ranks)
    _restore_rate(replicas, saved)
    _restore_batches(replicas, saved)
    # The fastest algorithms depend on type and kind of device, and other ones have other bits anyway. Before the
    # first step nothing has been chosen.
    alike = _computing(saved.settings, here) == _computing(here, here)
    if alike and saved.algorithms is not None and (saved.algorithms or saved.step > 0):
        try:
            replicas.set_algorithms(saved.algorithms, saved=True)
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"resume: {name}: its algorithms cannot be understood ({error!r})") from error
    replicas.epoch, replicas.fit_began = saved.epoch, saved.fit_began
    replicas.history.epochs = saved.epochs
    if replicas.class_names is None:
        replicas.class_names = saved.classes
    _restore_apoptosis(replicas, saved)
    notices.changed_settings(team.rank, name, saved.settings, here)
    clocks.go_on(team, saved.times)


def _computing(settings: dict[str, Any], otherwise: dict[str, Any]) -> tuple[Any, ...]:
    """The settings that algorithms of convolutions depend on: type, precision and kind of device; `otherwise` if
    unknown."""
    dtype, precision, device = (settings.get(key, otherwise[key]) for key in ("dtype", "precision", "device"))
    return dtype, precision, device.partition(":")[0]


def _restore_apoptosis(replicas: Replicas, saved: Saved) -> None:
    """Restore the rule and the history of events."""
    found = saved.apoptosis or {}
    replicas.history.apoptosis = found.get("report") or {}
    if replicas.apoptosis is not None and found.get("course") is not None:
        replicas.course = Course.of(replicas.apoptosis, found["course"])


def _checked(net: Model, arrays: Arrays, where: str) -> Arrays:
    """Arrays of the network's names and shapes, all numbers finite; {} for none. CheckpointError."""
    if not arrays:
        return {}
    for key, array in arrays.items():
        if found := not_finite(array):
            raise CheckpointError(
                f"{where}: {key}{found}: a run that diverged cannot be gone on with; "
                "net.load_weights loads the weights as they are"
            )
    return net.check_weights(arrays, where)


def _check_residue(replicas: Replicas, saved: Saved, residue: Arrays, where: str) -> None:
    """CheckpointError if a rank's residue has another meaning here. Parameters sent whole take their residue along."""
    compression = replicas.compression
    if not residue or compression is None or RESIDUE not in replicas.core.exchange.arenas():
        return
    differ = arenas.residues_differ(saved.settings, replicas.settings())
    if differ is not None:
        raise CheckpointError(f"{where}: {differ}; net.load_weights loads the weights alone")


def _restore_exchange(replicas: Replicas, saved: Record) -> None:
    """If "auto" may choose, restore the saved choice, whatever these ranks share."""
    if "exchange" in saved:  # older checkpoints have no "auto"
        saved.setdefault("exchange_used", saved["exchange"])
    used = saved.get("exchange_used")
    if (
        replicas.compression is None
        and getattr(replicas.strategy, "exchange", None) == "auto"
        and used in ("weights+momentum", "weights")
    ):
        replicas.set_exchange(used)


def _restore_rate(replicas: Replicas, saved: Saved) -> None:
    """Restore a rate that was set, unless another lr or schedule is given here, which a warning tells."""
    same = arenas.rates_alike(saved.settings, replicas.optimizer)
    replicas.set_rate = saved.learning_rate if same else None


def _check_position(name: str, saved: Saved, replicas: Replicas) -> None:
    """CheckpointError if training cannot continue in the middle of the saved epoch."""
    if saved.position is None:
        return
    here = replicas.settings()
    for key in _DIVIDES:
        if (saved.settings.get(key) or None) != (here.get(key) or None):  # not every strategy has all of them
            raise CheckpointError(
                f"resume: {name} was saved in the middle of epoch {saved.epoch + 1}; to go on there, {key} must be "
                f"{saved.settings.get(key)!r}, here it is {here.get(key)!r}"
            )


def _restore_batches(replicas: Replicas, saved: Saved) -> None:
    """Restore a size of batches that was set, unless another batch_size is given here; and the position."""
    replicas.fit_state.position = saved.position_on(replicas)
    replicas.batch_changes = saved.batch_changes
    if saved.settings.get("batch_size") == replicas.fit_settings.get("batch_size"):
        replicas.set_batch = saved.batch_size


def _first_difference(saved: Model, here: Model) -> str:
    """A parameter of another shape, else a layer with another option, else other inputs or outputs; "": none."""
    theirs, ours = saved.parameter_shapes(), here.parameter_shapes()
    for name in [*theirs, *ours]:
        if theirs.get(name) != ours.get(name):
            return f"; {name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
    there, own = saved.config(), here.config()
    for index, (one, other) in enumerate(zip(there["layers"], own["layers"], strict=False)):
        for key in ("layer", "name", "inputs"):
            if one[key] != other[key]:
                return f"; layer {index}: {key} is {one[key]!r} there and {other[key]!r} here"
        for key in dict.fromkeys([*one["options"], *other["options"]]):
            values = [str(layer["options"].get(key, "as by default")) for layer in (one, other)]
            if values[0] != values[1]:
                hint = " (net.freeze and net.factors set it)" if key in ("lr", "weight_decay") else ""
                return f"; layer {one['name']!r}: {key} is {values[0]} there and {values[1]} here{hint}"
    for key in ("inputs", "outputs"):
        if there.get(key) != own.get(key):
            return f"; {key} are {there.get(key, 'unnamed')} there and {own.get(key, 'unnamed')} here"
    return f"; {len(there['layers'])} layers there and {len(own['layers'])} here"
