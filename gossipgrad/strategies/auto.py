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

__all__ = ["Auto", "by_default", "choose", "cost", "few_samples", "spread"]

Norm = Literal["batch", "group", "none"]

WARNED = 0.5  # points of accuracy; below, gossip is left as it is
WANTED = 0.3  # points of accuracy that the nodes of "auto" may cost
POINTS = {"batch": 1.05, "group": 1.4, "none": 0.7}  # of accuracy for a variance of 1, by normalisation
FEWEST_NODES = 4  # fewer nodes send about as much as an all-reduce
MEASURED = 16, 128  # fewest and most members of the measurements; 8 with a sample each lost a tenth of the estimate
FEWEST_SAMPLES = 4  # of a member and step, in these measurements

_MOMENTUM = 0.9
_STEPS = 100  # after which neither momentum nor distance is left of a gradient


@dataclass(frozen=True, kw_only=True)
class Auto(Strategy):
    """The strategy that suits the samples of a rank; strategy="auto" is the same.

    GossipGraD(), unless few samples a rank would cost accuracy, on 16 ranks or more. Then ranks form the smallest nodes
    that suffice, which sum their gradients: GossipGraD(hierarchical=True, ranks_per_node=...). If there would be fewer
    than four nodes, it is AllReduce(), as it is where ranks may die. A Trainer chooses in its first fit or train_step,
    says what and why, and stores the chosen strategy in its history and checkpoints. Until then it is GossipGraD().
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


def _may_cost(samples: int, ranks: int, norm: Norm, points: float, members: int, usual: bool) -> str:
    """The cost in words: a number of points within the range of the measurements, else none.

    members   replicas that gossip; `points` is their cost.
    usual     the optimiser is the measured one: SGD with momentum 0.9.
    """
    network = "this network" if norm == "none" else f"a network with {norm} normalisation"
    measured = (
        usual
        and norm != "none"
        and MEASURED[0] <= members <= MEASURED[1]
        and samples * ranks >= FEWEST_SAMPLES * members
    )
    much = f"about {points:.1f} points of accuracy" if measured else "accuracy"
    return f"{counted(samples, 'sample')} a rank and step on {ranks} ranks may cost {network} {much}"


def choose(
    samples: int,
    ranks: int,
    norm: Norm,
    nodes: int,
    *,
    mortal: bool = False,
    usual: bool = True,
    private: bool = False,
) -> tuple[Strategy, str]:
    """The strategy for so many samples a rank and step, and a line that says which, and why.

    nodes    machines of the ranks: on several GossipGraD() sends no momentum.
    mortal   ranks may die while the others go on: then ranks form no nodes.
    usual    the optimiser is SGD with momentum 0.9.
    private  momenta are never exchanged, or there are none.
    """
    momentum = not private and GossipGraD().exchange_on(nodes) == "weights+momentum"
    alone = cost(samples, ranks, norm, momentum)
    if ranks < MEASURED[0]:
        return GossipGraD(), f"GossipGraD(): no cost of few samples is known below {MEASURED[0]} ranks"
    if alone <= WARNED:
        return GossipGraD(), f"GossipGraD(): {counted(samples, 'sample')} a rank and step suffice on {ranks} ranks"
    why = _may_cost(samples, ranks, norm, alone, ranks, usual)
    for size in range(2, 0 if mortal else ranks // FEWEST_NODES + 1):
        if ranks % size == 0 and cost(samples * size, ranks // size, norm, momentum) <= WANTED:
            return (
                GossipGraD(hierarchical=True, ranks_per_node=size),
                f"GossipGraD(hierarchical=True, ranks_per_node={size}): {why} without nodes",
            )
    return AllReduce(), f"AllReduce(): {why} by gossip"


def by_default(
    samples: int, ranks: int, norm: Norm, nodes: int, *, usual: bool = True, **how: bool
) -> tuple[Strategy, str]:
    """The strategy of a training that names none, and a line that says why it is not GossipGraD().

    As of choose, with its options: nodes, where the network has a normalisation and the optimiser is the measured one.
    Gossip stays gossip: elsewhere it is GossipGraD(), and few_samples warns.
    """
    strategy, why = choose(samples, ranks, norm, nodes, usual=usual, **how)
    if usual and norm != "none" and isinstance(strategy, GossipGraD) and strategy.hierarchical:
        return strategy, why
    return GossipGraD(), ""


def few_samples(
    strategy: Strategy,
    exchange: str | None,
    samples: int,
    ranks: int,
    members: int,
    norm: Norm,
    nodes: int,
    *,
    mortal: bool = False,
    usual: bool = True,
    private: bool = False,
    fixed: bool = False,
) -> str | None:
    """A sentence with the remedy if this strategy has few samples a member; None: it has enough.

    exchange  the resolved one.
    members   nodes if hierarchical, else ranks.
    mortal, usual, private  as of choose.
    fixed     neither strategy="auto" nor another exchange is allowed with the other arguments.
    """
    if not isinstance(strategy, GossipGraD) or exchange == "gradients" or strategy.allreduce_steps:
        return None
    own, momentum = samples * (ranks // members), not private and exchange == "weights+momentum"
    points = cost(own, members, norm, momentum)
    if members < MEASURED[0] or points <= WARNED:
        return None
    if not (fixed or private or momentum) and nodes == 1 and cost(own, members, norm) <= WARNED:
        remedies = ["exchange='weights+momentum'"]
    elif fixed:
        remedies = []
    else:
        chosen = choose(samples, ranks, norm, nodes, mortal=mortal, private=private)[1].partition(":")[0]
        remedies = [f"strategy='auto', which is {chosen} here"]
    more = "a larger batch_size" if norm == "none" else f"batch_size={math.ceil(samples * (points / WARNED) ** 2)}"
    advice = "; compare with" if norm == "none" else ", but better:"
    return (
        f"{_may_cost(samples, ranks, norm, points, members, usual)} by gossip. Allowed{advice} "
        f"{'; or '.join([*remedies, more])} (docs/learning_by_gossip.md)"
    )
