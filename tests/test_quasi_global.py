"""QuasiGlobal in the virtual cluster against float64; test_mpi compares the same bits under MPI."""

import numpy as np
import pytest
from exchange_cases import SHAPES, SMALL, all_step, assert_same, made
from gossip_reference import Gradients, assert_steady, randomise, small_batches, small_net, state
from test_strategies import trainer_of

import gossipgrad as gg
from gossipgrad import _core

OPTIMIZERS = {
    "momentum": gg.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": gg.SGD(lr=0.05, momentum=0.8, nesterov=True),
}


class Reference:
    """The docstring's rule."""

    def __init__(self, weights, momentum, optimizer, strategy, seed):
        self.w, self.m, self.t = weights.copy(), momentum.copy(), 0
        self.optimizer, self.strategy, self.seed = optimizer, strategy, seed

    def step(self, gradients, lr):
        o, s, p = self.optimizer, self.strategy, len(self.w)
        pairs = [_core.partners(s.topology, p, self.t, rank, s.rotate, self.seed, 0) for rank in range(p)]
        sources = [rank if source < 0 else source for rank, (_, source) in enumerate(pairs)]
        g = gradients + o.weight_decay * self.w
        v = o.momentum * self.m + g
        own = self.w - lr * (g + o.momentum * v if o.nesterov else v)
        mixed = own + (own[sources] - own) / 2
        if lr > 0:
            self.m = s.mu * self.m + (1 - s.mu) * (self.w - mixed) / lr
        self.w, self.t = mixed, self.t + 1


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def compare(p, strategy, optimizer, gradients_of, rates=(), rests=(0, 3)):
    """At rest after these steps and the last one; rates: by step, those that are set before it."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, optimizer, strategy)
    reference = Reference(*randomise(trainer, generator), optimizer, strategy, trainer.seed)
    rate = optimizer.lr
    for step in range(8):
        if step in dict(rates):
            rate = trainer.learning_rate = dict(rates)[step]
        x, y = small_batches(generator, p, sizes=(5, 3, 8))
        gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(reference.w, x, y, strict=True)])
        trainer.train_step(x, y)
        reference.step(gradients, rate)
        if step in (*rests, 7):
            for mine, right in zip(state(trainer), (reference.w, reference.m), strict=True):
                np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-5)
    trainer.close()


@pytest.mark.core(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("p", [1, 3, 4])
def test_the_formula(p, optimizer, gradients_of):
    compare(p, gg.QuasiGlobal(mu=0.7, **SMALL), OPTIMIZERS[optimizer], gradients_of)


@pytest.mark.filterwarnings("ignore:topology='cube'")
def test_without_a_partner_a_rank_goes_on_alone(gradients_of):
    compare(3, gg.QuasiGlobal(topology="cube", rotate=False), OPTIMIZERS["momentum"], gradients_of)


@pytest.mark.parametrize("p", [1, 3])
def test_a_displacement_is_divided_by_the_rate_of_its_step(p, gradients_of):
    """Also where the rate changes while the exchange is in flight; 0 keeps the momentum."""
    rates = {1: 0.2, 2: 0.05, 4: 0.0, 6: 0.1}
    compare(p, gg.QuasiGlobal(), OPTIMIZERS["momentum"], gradients_of, rates.items(), rests=(5,))


def test_one_rank_without_mu_is_sgd():
    x, y = small_batches(np.random.default_rng(0), 1)
    found = []
    for strategy in (gg.QuasiGlobal(mu=0.0), gg.NoExchange()):
        with trainer_of(1, OPTIMIZERS["momentum"], strategy) as trainer:
            for _ in range(6):
                trainer.train_step(x, y)
            found.append(state(trainer))
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5, atol=2e-6)


def trained(strategy, rests=(), p=3):
    x, y = small_batches(np.random.default_rng(0), p)
    with trainer_of(p, OPTIMIZERS["momentum"], strategy) as trainer:
        for step in range(6):
            trainer.train_step(x, y)
            if step in rests:
                trainer.settle()
        return [one.tobytes() for one in state(trainer)]


def test_neither_rest_nor_cuts_change_a_bit():
    bits = trained(gg.QuasiGlobal())
    assert trained(gg.QuasiGlobal(), rests=(0, 3)) == trained(gg.QuasiGlobal(bucket_bytes=1, chunk_bytes=64)) == bits
    assert trained(gg.GossipGraD(exchange="weights")) != bits


def test_an_exchange_goes_on_to_the_bit(tmp_path):
    x, y = (made(gg.QuasiGlobal(**SMALL), comm=gg.VirtualCluster(3, latency=1e-6)) for _ in range(2))
    all_step(x, 3)
    x.save(tmp_path / "state.npz")
    y.load(tmp_path / "state.npz")
    all_step(x, 3), all_step(y, 3)
    assert_same(x, y)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (gg.Adam(lr=0.01), "optimizer: adam with the strategy quasi-global, which .*; allowed is sgd"),
        (gg.SGD(lr=0.1), "momentum: 0 of SGD with the strategy quasi-global, .*; must be above 0"),
    ],
)
def test_only_momentum_of_sgd_is_allowed(optimizer, said):
    with pytest.raises(ValueError, match=said):
        trainer_of(2, optimizer, gg.QuasiGlobal())


def test_compression_is_refused():
    with pytest.raises(ValueError, match="compression='adacomp' with strategy='quasi-global': its momentum follows"):
        trainer_of(2, OPTIMIZERS["momentum"], gg.QuasiGlobal(), compression=gg.AdaComp())


def test_a_warm_step_allocates_nothing():
    assert_steady(lambda strategy: trainer_of(3, OPTIMIZERS["momentum"], strategy), gg.QuasiGlobal(), 3, warm=4)


def test_a_rank_that_did_not_ask_for_its_weights_waits_for_them():
    """ready alone, as of a rank without samples, while the partner's weights are on their way."""
    found = []
    for asks in (True, False):
        x = made(gg.QuasiGlobal(**SMALL), comm=gg.VirtualCluster(3, latency=1.0))

        def steps(rank, x=x, asks=asks):
            for _ in range(4):
                x.core.begin(rank)
                for layer in range(len(SHAPES)) if asks else ():
                    x.core.need(rank, layer)
                for array in x.core.gradients(rank).values():
                    array[...] = rank
                for layer in reversed(range(len(SHAPES))):
                    x.core.ready(rank, layer)
                x.core.end(rank)

        x.core.run(steps)
        found.append(x)
    assert_same(*found)


def test_weights_that_one_rank_writes_between_steps_are_no_displacement():
    found = []
    for written in (0.0, 1.0):
        x = made(gg.QuasiGlobal(), p=1)
        for _ in range(3):
            x.step([{name: np.ones(shape) for name, shape in SHAPES.items()}])
            x.core.weights()["w"][...] += written
        found.append(x.core.arena("momentum")["w"])
    np.testing.assert_allclose(*found, rtol=1e-4)
