"""Low communication: ranks train alone, and an outer optimiser steps by their joint progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gossipgrad.strategies import shared
from gossipgrad.strategies.base import Strategy
from gossipgrad.strategies.shared import Collectives, WireDtype

__all__ = ["DiLoCo", "NoLoCo"]


@dataclass(frozen=True, kw_only=True)
class _OuterSteps(Strategy):
    period: int = shared.option("diloco", "period")
    outer_lr: float = shared.option("diloco", "outer_lr")
    outer_momentum: float = shared.option("diloco", "outer_momentum")
    outer_nesterov: bool = shared.option("diloco", "outer_nesterov")
    fragments: int = shared.option("diloco", "fragments")
    delay: int | None = shared.option("diloco", "delay")
    wire_dtype: WireDtype = shared.option("diloco", "wire_dtype")

    not_compressed: ClassVar[str] = (
        "its outer steps multiply what they are given by outer_lr / (1 - outer_momentum), and so what is not sent too"
    )

    def __post_init__(self) -> None:
        shared.check(self)
        if self.delay is not None and self.delay > self.period:
            raise ValueError(f"delay={self.delay} with period={self.period}: allowed: 0 to the period")


@dataclass(frozen=True, kw_only=True)
class DiLoCo(_OuterSteps):
    """Ranks train alone; every `period` steps an outer step moves all of them by the mean of their progress.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), arXiv 2311.08105;
    fragments: Douillard et al., "Streaming DiLoCo with overlapping communication" (2025), arXiv 2501.18512. phi are the
    weights after the last outer step, at first the initial weights; w_r are rank r's. After each step t (from 0) with
    (t + 1) % period == 0, counted over epochs,

        g = phi - mean over all ranks of w_r
        m = outer_momentum * m - outer_lr * g
        phi = phi + m
        w_r = phi

    Between outer steps nothing is sent. The inner optimiser is any, and its moments stay with their rank. With
    outer_lr=1 and outer_momentum=0 this is PeriodicAllReduce without the mean of the moments.

    Evaluation and checkpoints use the mean of the replicas. phi and m are state: they are saved, resumed to the bit,
    and kept when the batch size changes or apoptosis shrinks the network. If they did not exist before, as in another
    strategy's checkpoint, or if weights are loaded, phi begins as those weights (with several replicas: their mean).

    Statistics of BatchNorm are not trained: at an outer step they become their mean over the ranks, without momentum
    and with rate 1 (less 2^-22, with "bfloat16" 2^-6, so that rounding leaves every variance above zero).

    Compression is refused: the outer momentum would multiply the unsent values.

    period          steps from one outer step to the next, at least 1.
    outer_lr        above 0. The paper's 0.7 suits models that are trained for many periods.
    outer_momentum  at least 0 and below 1.
    outer_nesterov  Nesterov's form, the paper's: phi = phi - outer_lr * g + outer_momentum * m, with the new m. It
                    oscillates less, in short trainings and when the inner rate falls to 0 at the end.
    fragments       the model is cut into this many runs of numbers of about equal size, which take turns: run f of F is
                    exchanged after each step t with (t + 1) % period == (f + 1) * period // F % period. A period sends
                    as much as with one, in F parts, so that the peak of the traffic falls.
    delay           steps that hide the exchange: the result of the exchange after step t is applied after step t +
                    delay. phi is computed from w as it was sent, and the rank's progress since then is added: w = phi
                    + (w - w that was sent). From 0 to period; None: 0 with one fragment, else period // fragments, so
                    that a fragment's exchange ends when the next one's begins. Evaluations, checkpoints and the end of
                    an epoch apply exchanges in flight at once.
    wire_dtype      "float32", or "bfloat16" for half the bytes: a rank's distance from phi and the mean of the
                    distances travel, rounded to nearest even; all ranks end with the same bits.
    collectives     as of AllReduce.
    """

    name: ClassVar[str] = "diloco"
    collectives: Collectives = shared.option("diloco", "collectives")


@dataclass(frozen=True, kw_only=True)
class NoLoCo(_OuterSteps):
    """DiLoCo by gossip: an outer step averages over a small group of ranks, drawn anew each time; no collective at all.

    Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models" (2025), arXiv
    2506.10911. Every rank has a phi of its own, its weights after its last outer step, at first the initial ones. After
    each step t (from 0) with (t + 1) % period == 0

        m = outer_momentum * m + outer_lr * mean of the group's (w - phi)
                               + outer_lr * (mean of the group's phi - phi)
        phi = phi + m
        w = phi

    where both terms have the same rate; together they are outer_lr * (mean of the group's w - phi). A rank sends its
    weights, once, to the others of its group, and waits for nobody else. The seed and the step give a permutation of
    the ranks, the same on all ranks, which is cut into groups. The last group has the remaining ranks. A single
    remaining rank makes an outer step with its own weights. Every average preserves the mean of the replicas.

    Model, state, statistics, compression, period, outer_lr, outer_momentum, outer_nesterov, fragments and delay: as of
    DiLoCo; phi and m are each rank's own, and the groups of every fragment are drawn anew.

    group       ranks that average, at least 2. Each sends its weights to group - 1 others.
    wire_dtype  "float32", or "bfloat16" for half the bytes: w travels rounded to nearest even, and a rank's mean is w +
                the sum of (received - own rounded w) / n. The mean of the group is preserved, and replicas agree to the
                precision of bfloat16.
    """

    name: ClassVar[str] = "noloco"
    group: int = shared.option("noloco", "group")
