"""DiLoCo and NoLoCo recomputed in float64 NumPy from their formulas.

Every rank trains alone. After the local update of step t (from 0):

1. Exchanges that began `delay` steps ago are applied: m = mu * m + lr * (mean - phi), with the mean of the sent weights
   over all ranks or over the group; phi += m (Nesterov: phi += lr * (mean - phi) + mu * m); w = phi + (w - sent).
2. Every fragment f of F with (t + 1) % period == (f + 1) * period // F % period sends its w.

At rest all exchanges in flight are applied.
"""

from __future__ import annotations

import numpy as np
from gossip_reference import LANE, Simulation

import gossipgrad as gg
from gossipgrad import _core


def fragments_of(like, fragments):
    """For each number of the flat parameters its fragment: the lanes of the arena in runs, the first ones longer."""
    places, at = [], 0
    for array in like.values():
        places.append(at + np.arange(array.size))
        at += -(-array.size // LANE) * LANE
    lanes = at // LANE
    sizes = [lanes // fragments + (f < lanes % fragments) for f in range(fragments)]
    return np.searchsorted(np.cumsum(sizes), np.concatenate(places) // LANE, side="right")


class OuterSteps(Simulation):
    def __init__(self, weights, momentum, optimizer, strategy, seed, like, phi=None):
        super().__init__(weights, momentum, optimizer, None, seed)
        self.outer = strategy
        self.phi = self.w.copy() if phi is None else phi.copy()
        self.m = np.zeros_like(self.w)
        self.fragment = fragments_of(like, strategy.fragments)
        self.delay = strategy.delay
        if self.delay is None:
            self.delay = 0 if strategy.fragments == 1 else strategy.period // strategy.fragments
        self.flying = []  # (begun, fragment, what was sent, means)

    def mean(self, sent, turn):
        """What each rank averages to."""
        if isinstance(self.outer, gg.DiLoCo):
            return np.broadcast_to(sent.mean(0), sent.shape)
        mean = np.empty_like(sent)
        for group in _core.groups(self.p, self.outer.group, turn, self.seed):
            mean[list(group)] = sent[list(group)].mean(0)
        return mean

    def apply(self):
        _, f, sent, mean = self.flying.pop(0)
        o, mine = self.outer, self.fragment == f
        m = o.outer_momentum * self.m + o.outer_lr * (mean - self.phi)
        nesterov = getattr(o, "outer_nesterov", False)
        phi = self.phi + (o.outer_lr * (mean - self.phi) + o.outer_momentum * m if nesterov else m)
        self.m, self.phi = np.where(mine, m, self.m), np.where(mine, phi, self.phi)
        self.w = np.where(mine, phi + (self.w - sent), self.w)

    def apply_due(self):
        while self.flying and self.flying[0][0] + self.delay <= self.t:
            self.apply()

    def step(self, gradients):
        self.update(gradients)
        self.apply_due()
        o = self.outer
        for f in range(o.fragments):
            if (self.t + 1) % o.period == (f + 1) * o.period // o.fragments % o.period:
                sent = self.w.copy()
                self.flying.append((self.t, f, sent, self.mean(sent, self.t * o.fragments + f)))
        self.apply_due()
        self.t += 1

    def settle(self):
        while self.flying:
            self.apply()
