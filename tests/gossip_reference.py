"""GossipGraD recomputed in float64 NumPy from its contract, and what the tests of strategies share.

The contract: step t (from 0) uses stage t mod k, k = ceil(log2 p).
staleness 0: after the local update s = w is sent, and before the next use w = s + (received - s)/2, momentum alike.
staleness 1: s, taken after the update of step t, is mixed after the update of step t+1: w += (received - s)/2;
             momentum just before that update.
slices: in step t only those numbers of a bucket count that lie in its slice t mod m, and the partners are those of step
             t div m.
push_sum: x = scalar * w and the scalar are halved, one half goes to the partner, what comes is added; w = x / scalar.
Adam's second moment, unless gradients are exchanged, is that of the mean over the p ranks: after 2/(1 - beta1) updates
             s = beta2*s + (1 - beta2)*(a*g^2 + (1 - a)*m^2), m the corrected momentum, of a variance of k gradients;
             a = (1/p - k)/(1 - k), at least 0. A gradient of age j counts in k with variance max(2^(-j/slices), 1/p) if
             momenta are exchanged, else with 1.
settle completes and mixes what is in flight.
"""

from __future__ import annotations

import gc

import numpy as np

import gossipgrad as gg
from gossipgrad import _core


def small_net():
    """Layers of 30, 203 and 32 parameters, all smooth: rounding cannot tip a maximum or a kink."""
    layers = [
        gg.Conv2d(3, 3, name="conv"),
        gg.Tanh(name="tanh1"),
        gg.AvgPool2d(2, name="pool"),
        gg.Flatten(name="flatten"),
        gg.Linear(7, name="fc1"),
        gg.Tanh(name="tanh2"),
        gg.Linear(4, name="fc2"),
    ]
    return gg.Sequential(layers, input=(1, 8, 8), name="small")


def small_batches(generator, ranks, sizes=(5,)):
    """One batch a rank: lists of samples and of labels."""
    chosen = [sizes[r % len(sizes)] for r in range(ranks)]
    x = [generator.standard_normal((n, 1, 8, 8)).astype(np.float32) for n in chosen]
    return x, [generator.integers(0, 4, n) for n in chosen]


def flat(arrays):
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays.values()])


def unflat(vector, like):
    out, at = {}, 0
    for name, array in like.items():
        out[name] = vector[at : at + array.size].reshape(array.shape).astype(np.float32)
        at += array.size
    assert at == vector.size
    return out


def randomise(trainer, generator, scale=0.5):
    """Other weights and momentum on every rank of a virtual cluster; returns both as (ranks, parameters) in float64."""
    like = trainer.weights(0)
    size = flat(like).size
    weights = generator.standard_normal((trainer.size, size)) * scale
    momentum = generator.standard_normal((trainer.size, size)) * scale
    keeps = bool(trainer.momentum(0))
    for rank in range(trainer.size):
        trainer.core.exchange.load_arena("weight", unflat(weights[rank], like), rank)
        if keeps:
            trainer.core.exchange.load_arena("momentum", unflat(momentum[rank], like), rank)
    momentum *= keeps
    return weights.astype(np.float32).astype(np.float64), momentum.astype(np.float32).astype(np.float64)


def state(trainer):
    """Weights and momentum of all ranks at rest, as (ranks, parameters)."""
    ranks = range(trainer.size)
    weights = np.stack([flat(trainer.weights(r)) for r in ranks])
    momentum = [trainer.momentum(r) for r in ranks]
    return weights, np.stack([flat(m) if m else np.zeros(weights.shape[1]) for m in momentum])


class Gradients:
    """The core's own gradients at given weights, from one plain rank."""

    def __init__(self, net, loss="cross_entropy"):
        # fmt: off
        self.trainer = gg.Trainer(net, loss=loss, optimizer=gg.SGD(lr=0.0), strategy=gg.NoExchange(),
                                  comm=gg.VirtualCluster(1))
        # fmt: on
        self.like = self.trainer.weights()

    def __call__(self, weights, x, y):
        self.trainer.core.exchange.load_arena("weight", unflat(weights, self.like))
        self.trainer.train_step([x], [y])
        return flat(self.trainer.gradients())


LANE = 16  # numbers; every parameter begins at a multiple, and slices are of whole ones


def slices_of(like, bucket_bytes, slices):
    """For each number of the flat parameters, in which slice of its bucket it lies, from the contract alone."""
    layers: dict[str, list[tuple[int, int]]] = {}
    at = 0  # in the arena
    for name, array in like.items():
        layers.setdefault(name.rpartition(".")[0], []).append((at, array.size))
        at += -(-array.size // LANE) * LANE
    ends = [*(parts[0][0] for parts in layers.values()), at][1:]
    found, end = {}, at  # by the offset of a layer: its bucket
    members: list[int] = []
    for parts, stop in reversed(list(zip(layers.values(), ends, strict=True))):
        members.append(parts[0][0])
        if (end - parts[0][0]) * 4 >= bucket_bytes or parts[0][0] == 0:
            found |= dict.fromkeys(members, (parts[0][0], end))
            end, members = parts[0][0], []
        assert stop <= at
    numbers = []
    for parts in layers.values():
        first, last = found[parts[0][0]]
        lanes = (last - first) // LANE
        bounds = [lanes * s // slices for s in range(1, slices)]
        for offset, size in parts:
            lane = (offset - first + np.arange(size)) // LANE
            numbers.append(np.searchsorted(bounds, lane, side="right"))
    return np.concatenate(numbers)


class Simulation:
    """What GossipGraD (or, strategy None, plain SGD on every rank) does to weights and momentum."""

    def __init__(self, weights, momentum, optimizer, strategy, seed, like=None):
        self.w, self.v = weights.copy(), momentum.copy()
        self.s = np.zeros_like(weights)  # Adam's second moment
        self.optimizer, self.strategy, self.seed = optimizer, strategy, seed
        self.both = strategy is not None and strategy.exchange in ("auto", "weights+momentum")
        self.m = strategy.slices or 1 if strategy is not None else 1
        if self.m > 1:
            self.slice_of = slices_of(like, strategy.bucket_bytes or 1 << 20, self.m)
        self.p = len(weights)
        self.t = 0
        self.scalar = np.ones((self.m, self.p))  # push_sum: of each slice
        self.pending = None  # staleness 1: (sources, what was sent) of the last step; push_sum: what to add
        self.pending_moments = None  # the same of v and s

    def sources(self):
        """From whom each rank receives in this step; itself where a partner is missing."""
        s = self.strategy
        topology = gg.strategies.core_topology(s.topology)
        how = s.rotate, self.seed, s.permutations or 0
        pairs = [_core.partners(topology, self.p, self.t // self.m, r, *how) for r in range(self.p)]
        for rank, (to, source) in enumerate(pairs):
            assert (to < 0) == (source < 0)
            assert source < 0 or pairs[source][0] == rank, "who receives from a rank is sent to by it"
        return np.array([rank if source < 0 else source for rank, (_, source) in enumerate(pairs)])

    def mixed(self, own, sources, sent, step=None):
        """`own` with what came from `sources`; where nothing came it stays. step: when it was sent; None: now."""
        there = own + (sent[sources] - sent) / 2
        stays = (sources == np.arange(self.p))[:, None]
        if self.m > 1:
            stays = stays | (self.slice_of != (self.t if step is None else step) % self.m)
        return np.where(stays, own, there)

    def push_sum(self, *values):
        """What this step's messages make of each array, by the definition; the scalars with them."""
        topology = gg.strategies.core_topology(self.strategy.topology)
        move = np.eye(self.p)  # column: from, row: to
        for rank in range(self.p):
            how = self.strategy.rotate, self.seed, self.strategy.permutations or 0
            to, _ = _core.partners(topology, self.p, self.t // self.m, rank, *how)
            if to >= 0:
                move[rank, rank] = move[to, rank] = 0.5
        due = self.t % self.m
        x = [move @ (self.scalar[due][:, None] * value) for value in values]
        self.scalar[due] = move @ self.scalar[due]
        there = [one / self.scalar[due][:, None] for one in x]
        if self.m == 1:
            return there
        return [np.where(self.slice_of == due, one, value) for one, value in zip(there, values, strict=True)]

    def update(self, g):
        o = self.optimizer
        if isinstance(o, gg.Adam):
            self._adam(g)
            return
        if isinstance(o, gg.Lion):
            decayed = self.w * (1 - o.lr * o.weight_decay)
            self.w = decayed - o.lr * np.sign(o.betas[0] * self.v + (1 - o.betas[0]) * g)
            self.v = o.betas[1] * self.v + (1 - o.betas[1]) * g
            return
        g = g + o.weight_decay * self.w
        if o.momentum:
            self.v = o.momentum * self.v + g
            g = g + o.momentum * self.v if o.nesterov else self.v
        self.w = self.w - o.lr * g

    def _adam(self, g):
        o, t = self.optimizer, self.t + 1
        if o.decoupled:
            self.w = self.w * (1 - o.lr * o.weight_decay)
        else:
            g = g + o.weight_decay * self.w
        self.v = o.beta1 * self.v + (1 - o.beta1) * g
        share = self._gradient_share()
        mean = self.v / (1 - o.beta1**t)
        self.s = o.beta2 * self.s + (1 - o.beta2) * (share * g * g + (1 - share) * mean * mean)
        step = self.v / (1 - o.beta1**t) / (np.sqrt(self.s / (1 - o.beta2**t)) + o.eps)
        self.w = self.w - o.lr * step

    def _gradient_share(self):
        """Of Adam's second moment of the mean over the ranks: the share of the gradient's square."""
        s, t, beta1 = self.strategy, self.t + 1, self.optimizer.beta1
        if s is None or s.exchange == "gradients" or self.p == 1 or t <= 2 / (1 - beta1):
            return 1.0
        left = [max(0.5 ** (age / self.m), 1 / self.p) if self.both else 1.0 for age in range(t)]
        shares = [(1 - beta1) * beta1**age / (1 - beta1**t) for age in range(t)]
        noise = sum(share**2 * variance for share, variance in zip(shares, left, strict=True))
        return max((1 / self.p - noise) / (1 - noise), 0.0) if noise < 1 else 0.0

    def step(self, gradients):
        if self.strategy is None:
            self.update(gradients)
        elif self.strategy.exchange == "gradients":
            self._step_of_gradients(gradients)
        else:
            self._step_of_weights(gradients)
        self.t += 1

    def _step_of_weights(self, gradients):
        both = self.both
        if self.strategy.push_sum:
            self.settle_moments()
            self.update(gradients)
            self.settle()
            sent = [self.w, self.v, self.s]
            mixed = self.push_sum(*sent)
            self.pending, *moments = [there - here for there, here in zip(mixed, sent, strict=True)]
            self.pending_moments = moments if both else None
            if self.strategy.staleness == 0:
                self.settle()
            return
        sources = self.sources()
        self.settle_moments()
        self.update(gradients)
        if self.strategy.staleness == 0:
            self.w = self.mixed(self.w, sources, self.w)
            if both:
                self.v = self.mixed(self.v, sources, self.v)
                self.s = self.mixed(self.s, sources, self.s)
        else:
            self.settle()
            self.pending = (sources, self.w.copy())
            self.pending_moments = (self.v.copy(), self.s.copy()) if both else None

    def _step_of_gradients(self, gradients):
        sources = self.sources()
        self.update(self.mixed(gradients, sources, gradients))

    def settle_moments(self):
        """Mixes the moments in flight."""
        if self.pending_moments is None:
            return
        (v, s), self.pending_moments = self.pending_moments, None
        if self.strategy.push_sum:
            self.v, self.s = self.v + v, self.s + s
        else:
            self.v, self.s = (self.mixed(one, self.pending[0], o, self.t - 1) for one, o in ((self.v, v), (self.s, s)))

    def settle(self):
        """Mixes what is in flight."""
        self.settle_moments()
        if self.pending is None:
            return
        pending, self.pending = self.pending, None
        if self.strategy.push_sum:
            self.w = self.w + pending
            return
        sources, sent = pending
        self.w = self.mixed(self.w, sources, sent, self.t - 1)


def assert_steady(make, strategy, p, warm=1, steps=6):
    """Warm steps of make(strategy)'s trainer allocate nothing, and when it is closed nothing is left of it.

    train_step itself allocates some, whatever the strategy: as much as with NoExchange, of which make is called too.
    """
    x, y = small_batches(np.random.default_rng(0), p)
    gc.collect()
    before = _core.memory()[0]
    made = []
    for one in (strategy, gg.NoExchange()):
        with make(one) as trainer:
            for _ in range(warm):
                trainer.train_step(x, y)
            so_far = _core.memory()[1]
            for _ in range(steps):
                trainer.train_step(x, y)
            made.append(_core.memory()[1] - so_far)
    assert made[0] == made[1]
    del trainer
    gc.collect()
    assert _core.memory()[0] == before
