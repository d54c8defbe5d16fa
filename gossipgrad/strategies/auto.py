"""Few samples a rank: the accuracy that gossip then costs, and strategy="auto", which chooses by this estimate.

docs/learning_by_gossip.md derives the estimate and compares it with measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from gossipgrad.errors import counted
from gossipgrad.strategies.averaging import AllReduce
from gossipgrad.strategies.base import Strategy
from gossipgrad.strategies.gossip import GossipGraD

__all__ = ["Auto", "choose", "cost", "few_samples", "spread"]

Norm = Literal["batch", "group", "none"]

WARNED = 0.5  # points of accuracy; below, gossip is left as it is
WANTED = 0.3  # points of accuracy that the nodes of "auto" may cost
POINTS = {"batch": 1.05, "group": 1.4, "none": 0.7}  # of accuracy for a variance of 1, by normalisation
FEWEST_NODES = 4  # fewer nodes send about as much as an all-reduce

_MOMENTUM = 0.9
_STEPS = 100  # after which neither momentum nor distance is left of a gradient


@dataclass(frozen=True, kw_only=True)
class Auto(Strategy):
    """The strategy that suits the samples of a rank; strategy="auto" is the same.

    GossipGraD(), unless few samples a rank would cost accuracy. Then ranks form the smallest nodes that suffice, which
    sum their gradients: GossipGraD(hierarchical=True, ranks_per_node=...). If there would be fewer than four nodes, it
    is AllReduce(), as it is where ranks may die. A Trainer chooses in its first fit or train_step, says what and why,
    and stores the chosen strategy in its history and checkpoints. Until then it is GossipGraD().
    docs/learning_by_gossip.md has the estimate.
    """

    name: ClassVar[str] = "auto"
    not_compressed: ClassVar[str] = "the chosen strategy may be one that cannot compress"


@lru_cache(maxsize=256)
def spread(members: int, momentum: bool = True) -> float:
    """The variance of replicas around their mean, for gradients of variance 1 and rate 1, by dissemination.

    A step adds the momentum, of factor 0.9, to a member's weights, and averages these with a partner's. The sum is over
    the ages of a gradient; gradients of steps and members are independent.

    members   replicas that gossip.
    momentum  True: the momentum is averaged as well.
    """
    weight, moment = np.zeros(members), np.zeros(members)
    moment[0] = 1.0
    total, cycle = 0.0, max(1, math.ceil(math.log2(members)))
    for step in range(_STEPS):
        distance = 1 << step % cycle
        weight = weight + moment
        weight = (weight + np.roll(weight, distance)) / 2
        if momentum:
            moment = (moment + np.roll(moment, distance)) / 2
        moment = moment * _MOMENTUM
        total += float(np.square(weight - weight.mean()).sum())
    return total


def cost(samples: int, members: int, norm: Norm, momentum: bool = True) -> float:
    """Estimate of the points of accuracy that gossip costs, against an all-reduce with the same batches.

    samples   of a member and step.
    norm      the network's normalisation.
    """
    return POINTS[norm] * math.sqrt(spread(members, momentum) / samples)


def _words(samples: int, ranks: int, norm: Norm) -> str:
    network = "this network" if norm == "none" else f"a network with {norm} normalisation"
    return f"{counted(samples, 'sample')} a rank and step on {ranks} ranks may cost {network}"


def choose(samples: int, ranks: int, norm: Norm, nodes: int, mortal: bool = False) -> tuple[Strategy, str]:
    """The strategy for so many samples a rank and step, and a line that says which, and why.

    nodes   machines of the ranks: on several GossipGraD() sends no momentum.
    mortal  ranks may die while the others go on: then ranks form no nodes.
    """
    momentum = GossipGraD().exchange_on(nodes) == "weights+momentum"
    alone = cost(samples, ranks, norm, momentum)
    if alone <= WARNED:
        return GossipGraD(), f"GossipGraD(): {counted(samples, 'sample')} a rank and step suffice on {ranks} ranks"
    why = f"{_words(samples, ranks, norm)} {alone:.1f} points of accuracy"
    for size in range(2, 0 if mortal else ranks // FEWEST_NODES + 1):
        if ranks % size == 0 and cost(samples * size, ranks // size, norm, momentum) <= WANTED:
            return (
                GossipGraD(hierarchical=True, ranks_per_node=size),
                f"GossipGraD(hierarchical=True, ranks_per_node={size}): {why} without nodes",
            )
    return AllReduce(), f"AllReduce(): {why} by gossip"


def few_samples(
    strategy: Strategy, exchange: str | None, samples: int, ranks: int, members: int, norm: Norm, nodes: int
) -> str | None:
    """A sentence with the remedy if this strategy has few samples a member; None: it has enough.

    exchange   the resolved one.
    members    nodes if hierarchical, else ranks.
    """
    if not isinstance(strategy, GossipGraD) or exchange == "gradients" or members < 2 or strategy.allreduce_steps:
        return None
    momentum = exchange == "weights+momentum"
    points = cost(samples * (ranks // members), members, norm, momentum)
    if points <= WARNED:
        return None
    enough = math.ceil(samples * (points / WARNED) ** 2)
    chosen = choose(samples, ranks, norm, nodes)[1].partition(":")[0]
    return (
        f"{_words(samples, ranks, norm)} about {points:.1f} points of accuracy by gossip. Allowed, but better: "
        f"strategy='auto', which is {chosen} here; or batch_size={enough} (docs/learning_by_gossip.md)"
    )
