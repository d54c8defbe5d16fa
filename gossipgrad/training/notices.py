"""Warnings of a trainer: settings without effect, and data that are learnt badly as they are.

Rank 0 gives each once, at the line that called Trainer(...) or fit.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from gossipgrad import strategies
from gossipgrad._core import Team
from gossipgrad.apoptosis import Apoptosis
from gossipgrad.cluster import Network
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.classes import differ, one_sided
from gossipgrad.errors import counted, warn
from gossipgrad.history import Record
from gossipgrad.model import Model
from gossipgrad.strategies import GossipGraD, Norm, Partnered, Strategy

# Settings that may differ between a run and its resume without effect on learning, or that are no options.
_FREE = {
    *("epochs", "threads", "backend", "comm", "virtual_ranks", "virtual_cluster", "validate_replicas"),
    *("tune", "validation_samples", "dataset", "model", "exchange", "metrics", "final_mix"),
    *("straggler_probability", "straggler_delay", "latency", "bandwidth"),
}


def smaller_batches(rank: int, size: int, usual: int) -> None:
    """Warn that the usual size of batches does not fit the samples of a rank."""
    if rank == 0 and size < usual:
        warn(f"batch_size={size}, all samples of a rank, in place of the usual {usual}; batch_size= sets another")


def missing_partners(team: Team, strategy: Partnered) -> None:
    """Warn of gaps in the cube if p is no power of two, and of nodes without a common divisor of their sizes."""
    if team.rank != 0:
        return
    count, size = strategy.partners_on(team)
    nodes = strategy if isinstance(strategy, GossipGraD) and strategy.hierarchical else None
    if nodes is not None and size == 1 < team.size and nodes.ranks_per_node != 1:
        warn(
            f"hierarchical=True with {team.size} ranks: their nodes are of unlike sizes without a common divisor, "
            "so every rank is a node of its own"
        )
    if strategy.topology == "cube" and count & (count - 1):
        what = "ranks" if nodes is None else "nodes"
        warn(
            f"topology='cube' with {count} {what}: in some steps some {what} have no partner; "
            f"'dissemination' has partners for any number of {what}"
        )


def other_classes(rank: int, before: list[str] | None, train: Dataset) -> None:
    """Warn that the network was trained, by this trainer or before a resume, for classes with other numbers."""
    found = differ(train.class_names, before)
    if found is not None and rank == 0:
        warn(f"{train.name} has other classes than what was trained on before: {found}; each set numbers its own")


def one_rank(team: Team, network: Network | None, timeout: float) -> None:
    """Warn that one rank sends no message for these to delay or end; a launcher was probably intended."""
    if team.kind == "virtual" or team.size > 1 or team.newcomer:
        return
    for argument, value, without in (("network", network, None), ("timeout", timeout, 0.0)):
        if value != without:
            warn(
                f"{argument}={value!r}: without effect, one rank sends no messages; gossipgrad run -n P or mpiexec "
                "starts several, a VirtualCluster (--virtual-ranks) has them"
            )


_said_not_built = False


def kernels_not_built(rank: int, core: Record) -> None:
    """Warn once in a process of kernels that the CPU has and the build lacks. core: the result of _core.info()."""
    global _said_not_built
    if rank or _said_not_built or core["isa_not_built"] is None or os.environ.get("GOSSIPGRAD_ISA"):
        return
    _said_not_built = True
    warn(
        f"this CPU ({core['cpu']}) has {core['isa_not_built']}, and gossipgrad was built without its kernels: those of "
        f"{core['isa']} take longer. In the source tree this builds all: GOSSIPGRAD_ISAS=all pip install -e ."
    )


def slow_bfloat16(rank: int, core: Record) -> None:
    """Warn of bfloat16 that is slower than float32 here. core: the result of _core.info()."""
    if rank == 0 and core["isa"] in ("avx512", "amx") and not core["bfloat16"]:
        warn(
            f"dtype='bfloat16': this CPU ({core['cpu']}) has no instructions for it: products are computed in "
            "float32, and what they read and give is converted, so a step takes longer than in float32; dtype='auto' "
            "is float32 here"
        )


def few_samples(
    team: Team, strategy: Strategy, exchange: str | None, samples: int, norm: Norm, nodes: int, **how: bool
) -> None:
    """Warn of what few samples a rank cost by gossip, in the words of strategies.few_samples."""
    if team.rank == 0 and isinstance(strategy, GossipGraD):
        members = strategy.partners_on(team)[0]
        text = strategies.few_samples(strategy, exchange, samples, team.size, members, norm, nodes, **how)
        if text is not None:
            warn(text)


def sorted_samples(rank: int, train: Dataset, strategy: Strategy, workers: int) -> None:
    """Warn of contiguous shards: replicas with unlike samples drift apart, and their mean learns less."""
    if rank or not strategy.replicas_differ or getattr(strategy, "shuffle_samples", False):
        return
    what = one_sided(train.targets, workers)
    if what is not None:
        warn(
            f"train: {what}: the samples look sorted by class, and shard='contiguous' gives each rank a run of them. "
            "shard='interleaved' divides them evenly; or let them move (shuffle_samples=True, where the strategy has "
            "it)"
        )


def unscaled_pixels(rank: int, train: Dataset, validation: Dataset | None) -> None:
    """Warn of uint8 images without a scale: networks seldom learn from 0..255."""
    for argument, one in (("train", train), ("validation", validation)):
        if rank or one is None or one.dtype != np.uint8 or not one.unscaled:
            continue
        highest = one[:1000].samples.max(initial=0)  # the set may be large
        if highest <= 1:
            continue
        warn(
            f"{argument}: uint8 samples of 0..{highest} are used as they are; if they are pixels, "
            "gg.data.Dataset(x, y, scale=1/255) makes them 0..1"
        )
        return


def nothing_to_train(rank: int, name: str, epoch: int, epochs: int, step: int | None) -> None:
    """`epochs` counts those before a resume as well. `name`: the checkpoint's; step: its, of one within an epoch."""
    if rank == 0 and epoch >= epochs:
        when = f"after epoch {epoch}" if step is None else f"after step {step}, in epoch {epoch + 1}"
        warn(f"resume={name!r}: it was saved {when}, and epochs={epochs} is all that is wanted; nothing is trained")


def epoch_begins_anew(rank: int, epoch: int, position: Record | None) -> None:
    """Warn if fit does not continue from `position` in the epoch after `epoch`."""
    if rank == 0 and position is not None:
        warn(
            f"fit: {counted(position['step'], 'step')} of epoch {epoch + 1} had been made, and without resume= it "
            "begins anew; fit(..., resume=PATH) goes on where the checkpoint PATH was saved"
        )


MUCH_MEMORY = 1 << 28  # bytes


def compression_memory(rank: int, models: int, parameters: int, local: int) -> None:
    """Warn of much memory for compression's state: `models` models on each rank of this process."""
    size = 4 * models * parameters * local
    if rank == 0 and size >= MUCH_MEMORY:
        warn(
            f"compression: to remember what has not been sent yet takes the memory of {counted(models, 'model')} more "
            f"on each rank, {size / 2**30:.2f} GiB for {counted(local, 'rank')} in this process"
        )


def nothing_compressed(rank: int, size: int, packed: int) -> None:
    """packed: the number of parameters that a given compression compresses."""
    if rank == 0 and size > 1 and packed == 0:
        warn(
            "compression: no parameter of this network is compressed: each has a bin_size of 0, fewer elements than "
            "dense_below, or is among dense; compression.packed(net) says which are"
        )


def residue(rank: int, name: str, saved: bool, here: bool) -> None:
    """Warn if unsent values of compression are lost, because the saved run or this one has no residue."""
    if rank != 0 or saved == here:
        return
    if here:
        warn(f"{name}: saved without residues of compression; they begin at zero")
    else:
        warn(f"{name}: saved with residues of compression, here are none; what had not been sent yet is left out")


def other_ranks(rank: int, name: str, saved: int, here: int) -> None:
    """`name`: the checkpoint's, which is of `saved` ranks."""
    if rank == 0:
        warn(
            f"{name}: saved on {counted(saved, 'rank')}, here are {here}: all begin with the consensus weights and the "
            "mean of the optimiser's moments; batch_size is the samples of each rank"
        )


def shrunken(rank: int, name: str, net: Model, here: Apoptosis | None) -> None:
    """A run without apoptosis continues with a shrunken network. `name`: the checkpoint's; net: its network."""
    if rank == 0 and here is None and net.born:
        born = net.resized(net.born)
        warn(
            f"{name}: units have left its network, which had {born.parameters:,} parameters and has "
            f"{net.parameters:,}; training goes on with what is left of it, and without apoptosis"
        )


def _changes(key: str, before: Any, after: Any) -> list[str]:
    """Changes of one setting; for dictionaries, as compression's, of each entry."""
    if isinstance(before, dict) and isinstance(after, dict):
        both = [k for k in after if k in before and json.dumps(before[k]) != json.dumps(after[k])]
        return [one for k in both for one in _changes(f"{key}, {k}", before[k], after[k])]
    return [f"{key} {_shown(before)} -> {_shown(after)}"]


def _shown(value: Any) -> str:
    """A setting's text; for a description, as compression's, its name."""
    return (repr(value["name"]) if "name" in value else "on") if isinstance(value, dict) else repr(value)


def changed_settings(rank: int, name: str, saved: Record, here: Record) -> None:
    """Warn of other settings in a resume: allowed, but rarely intended. `name`: the checkpoint's."""
    changed = [k for k in here if k not in _FREE and k in saved and json.dumps(saved[k]) != json.dumps(here[k])]
    if changed and rank == 0:
        pairs = ", ".join(one for key in changed for one in _changes(key, saved[key], here[key]))
        if "optimizer" in changed:
            pairs += "; the optimizer's moments begin at zero"
        warn(f"{name}: goes on with other settings than it was saved with: {pairs}")
