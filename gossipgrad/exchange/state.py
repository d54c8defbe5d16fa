"""The state of an exchange: gathered from all ranks, checked, loaded, and as the bytes of a file."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gossipgrad import _core, strategies
from gossipgrad.errors import LARGEST, CheckpointError, choice, integer, number
from gossipgrad.exchange.arrays import Array, Arrays, Shapes
from gossipgrad.launch import agreement
from gossipgrad.optim import Optimizer
from gossipgrad.state import clocks
from gossipgrad.training import arenas, mixing

_FORMAT = 1  # of state_dict
_STATE = {"step", "seed", "workers", "moments_since", "ranks", "consensus"}  # required keys
# Exceptions of NumPy for a damaged file, or one of another kind.
_DAMAGED = (ValueError, TypeError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def gathered(core: _core.Exchange, team: _core.Team, shapes: Shapes, seed: int) -> dict[str, Any]:
    """The complete training state of all ranks. Settles. Collective."""
    core.settle()
    parts = [
        {name: shapes.shaped(arrays) for name, arrays in mixing.read(core, local).items()}
        for local in range(team.local)
    ]
    with clocks.standing(team) as times:
        consensus = shapes.shaped(core.consensus_weights())
    if not agreement.alone(team):
        parts = [_unpacked(one) for one in agreement.gather(team, _packed(parts[0]), f"step {core.step}")]
    return {
        "format": _FORMAT,
        "step": core.step,
        "seed": seed,
        "workers": core.workers,
        "moments_since": core.moments_since,
        "push_sum_since": core.push_sum_since,
        "clocks": times,
        "ranks": parts,
        "consensus": consensus,
    }


def checked(
    state: Any,
    shapes: Shapes,
    size: int,
    trains: int,
    seed: int,
    here: Mapping[str, Any],
    kinds: Mapping[str, str],
) -> tuple[list[dict[str, Arrays]], Arrays, list[clocks.Clock]]:
    """(each rank's arenas, the consensus, the clocks) of a state, for a group of this size; ValueError, TypeError.

    trains: the number of its ranks that train.

    Arenas that begin anew under the settings of `here` are left out. For another number of ranks: the common start of
    all ranks here.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or not _STATE <= set(state):
        raise ValueError("state: not what state_dict of an Exchange gives")
    ranks = len(state["ranks"])
    workers = integer("state: workers", state["workers"], 1, ranks)
    if int(state["seed"]) != seed:
        raise ValueError(f"state: of seed {state['seed']}; this exchange has seed {seed}")
    saved = _settings(state, here)
    anew = arenas.begun_anew(saved, here, kinds)
    parts = [
        {arena: shapes.fitting_all(f"state, {arena}", arrays) for arena, arrays in part.items() if arena not in anew}
        for part in state["ranks"]
    ]
    if arenas.RESIDUE in kinds and any(arenas.RESIDUE in part for part in parts):
        differ = arenas.residues_differ(saved, here)
        if differ is not None:
            raise ValueError(f"state: {differ}; load_weights loads the weights alone")
    times = clocks.checked(state.get("clocks"), ranks)
    consensus = shapes.fitting_all("state, consensus", state["consensus"])
    if ranks != size:
        parts = [arenas.of_other_ranks(saved["strategy"], consensus, parts[:workers], kinds, trains)] * size
    return parts, consensus, times


def _settings(state: Mapping[str, Any], here: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the strategy and the optimiser of a state; those of `here` if the state has none."""
    if "strategy" not in state or "optimizer" not in state:
        return here
    for key in ("strategy", "optimizer"):
        if not isinstance(state[key], Mapping) or not isinstance(state[key].get(key), str):
            raise ValueError(f"state: {key} is {state[key]!r}; allowed: what state_dict of an Exchange gives")
    choice("state: strategy", state["strategy"]["strategy"], strategies.BY_NAME)
    return {**state["strategy"], **state["optimizer"], "compression": state.get("compression")}


def set_rate(state: Mapping[str, Any], optimizer: Optimizer) -> float | None:
    """The learning rate that was set and still applies with this optimiser; None: its schedule's."""
    rate = state.get("learning_rate")
    if rate is None or not arenas.rates_alike(state.get("optimizer", optimizer.settings()), optimizer):
        return None
    return number("state: learning_rate", rate, 0.0, LARGEST)


def resume(
    core: _core.Exchange,
    team: _core.Team,
    shapes: Shapes,
    state: Mapping[str, Any],
    parts: list[dict[str, Arrays]],
    consensus: Arrays,
    times: list[clocks.Clock],
    here: Mapping[str, Any],
) -> None:
    """Continue from a checked state. Collective."""
    flat = shapes.flat(consensus)
    same_ranks = len(state["ranks"]) == len(parts)
    own = parts[team.rank : team.rank + team.local]
    given = [{name: shapes.flat(arrays) for name, arrays in part.items()} for part in own]
    mixing.resume(core, given, flat, int(state["workers"]) if same_ranks else core.workers)
    moments = [name for name, kind in core.arenas().items() if kind == "moment"]
    begin = any(name not in part for part in parts for name in moments)  # at zero: Adam counts from here
    core.moments_since = int(state["step"] if begin else state["moments_since"])
    core.step = int(state["step"])
    since = int(state.get("push_sum_since", 0))
    mixing.go_on(core, team.local, flat, since, _settings(state, here), here, same_ranks)
    clocks.go_on(team, times)


# ---- files


def _packed(part: Mapping[str, Mapping[str, Array]]) -> bytes:
    """One rank's state as bytes."""
    stream = io.BytesIO()
    names = [[arena, name] for arena, arrays in part.items() for name in arrays]
    flat = {f"a{i}": part[arena][name] for i, (arena, name) in enumerate(names)}
    np.savez(stream, names=np.frombuffer(json.dumps(names).encode(), np.uint8), **flat)  # type: ignore[arg-type]
    return stream.getvalue()


def _unpacked(data: bytes) -> dict[str, Arrays]:
    part: dict[str, Arrays] = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        for i, (arena, name) in enumerate(json.loads(found["names"].tobytes())):
            part.setdefault(arena, {})[name] = found[f"a{i}"]
    return part


def packed(state: Mapping[str, Any]) -> bytes:
    """A state as the bytes of a file, an .npz of NumPy."""
    stream = io.BytesIO()
    plain = {key: value for key, value in state.items() if key not in ("ranks", "consensus")}
    parts = [*state["ranks"], {"consensus": state["consensus"]}]
    arrays = {f"part{i}": np.frombuffer(_packed(part), np.uint8) for i, part in enumerate(parts)}
    np.savez(stream, state=np.frombuffer(json.dumps(plain).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """The state in the bytes of a file; CheckpointError if packed did not make them."""
    try:
        archive = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it has a single array")
        with archive as found:
            state: dict[str, Any] = json.loads(found["state"].tobytes())
            parts = [_unpacked(found[f"part{i}"].tobytes()) for i in range(len(found.files) - 1)]
        *ranks, last = parts
        return {**state, "ranks": ranks, "consensus": last["consensus"]}
    except _DAMAGED as error:
        raise CheckpointError(f"not a file that Exchange.save wrote: {error}") from error
