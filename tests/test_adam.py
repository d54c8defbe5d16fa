"""Adam with every strategy, in the virtual cluster: against a float64 simulation, and by what must hold.

eps is large where float32 is compared with float64: a gradient of almost 0 else decides the sign of a whole step.
"""

import math

import numpy as np
import pytest
from gossip_reference import Gradients, Simulation, randomise, small_batches, small_net, state, unflat
from test_strategies import CUTS, EXCHANGES, trainer_of

import gossipgrad as gg
from gossipgrad import _core, optim
from gossipgrad.training import checkpoint

OPTIMIZERS = {
    "adam": gg.Adam(lr=0.05, weight_decay=0.1, eps=0.1),
    "adamw": gg.Adam(lr=0.05, beta1=0.8, beta2=0.9, weight_decay=0.1, decoupled=True, eps=0.1),
    "no first moment": gg.Adam(lr=0.02, beta1=0.0, eps=0.1),
    "short first moment": gg.Adam(lr=0.02, beta1=0.5, beta2=0.9, eps=0.1),
}


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def squares(trainer):
    return np.stack([np.concatenate([a.ravel() for a in trainer.optimizer_state(r)["second_moment"].values()])
                     for r in range(trainer.size)])  # fmt: skip


def compare(p, strategy, optimizer, gradients_of, steps=(4, 3), average=lambda simulation: None):
    """Runs the core and the simulation; compares where all is at rest."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, optimizer, strategy)
    simulated = strategy if isinstance(strategy, gg.GossipGraD) else None
    simulation = Simulation(*randomise(trainer, generator, 0.2), optimizer, simulated, trainer.seed)
    start = generator.uniform(0.5, 1, simulation.w.shape)
    for rank in range(p):
        trainer.core.exchange.load_arena("second_moment", unflat(start[rank], trainer.weights(0)), rank)
    simulation.s = start.astype(np.float32).astype(np.float64)
    for leg in steps:
        for _ in range(leg):
            x, y = small_batches(generator, p, sizes=(5, 3, 8))
            gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
            trainer.train_step(x, y)
            simulation.step(gradients)
            average(simulation)
        simulation.settle()
        weights, momentum = state(trainer)
        np.testing.assert_allclose(weights, simulation.w, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(momentum, simulation.v, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(squares(trainer), simulation.s, rtol=2e-5, atol=2e-5)
    trainer.close()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_gossip(p, exchange, optimizer, gradients_of):
    """With weights and momentum the second moment is exchanged, too."""
    for staleness, cut in ((0, "joined"), (1, "layers"))[: 1 if exchange == "gradients" else 2]:
        strategy = gg.GossipGraD(exchange=exchange, staleness=staleness, **CUTS[cut])
        compare(p, strategy, OPTIMIZERS[optimizer], gradients_of)


@pytest.mark.parametrize("p", [1, 3])
def test_no_exchange(p, gradients_of):
    compare(p, gg.NoExchange(), OPTIMIZERS["adamw"], gradients_of)


@pytest.mark.parametrize("p", [2, 5])
def test_periodic_averages_all_moments(p, gradients_of):
    def average(simulation):
        if simulation.t % 2 == 0:
            for array in (simulation.w, simulation.v, simulation.s):
                array[:] = array.mean(0)

    compare(p, gg.PeriodicAllReduce(period=2), OPTIMIZERS["adam"], gradients_of, average=average)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)], ids=lambda s: s.name)
@pytest.mark.parametrize("p", [2, 3])
def test_allreduce_is_one_rank_with_a_larger_batch(p, strategy, optimizer):
    generator = np.random.default_rng(p)
    many, one = trainer_of(p, OPTIMIZERS[optimizer], strategy), trainer_of(1, OPTIMIZERS[optimizer], gg.NoExchange())
    for step in range(5):
        x, y = small_batches(generator, p, sizes=[(4,), (4, 1, 7)][step % 2])
        many.train_step(x, y)
        one.train_step([np.concatenate(x)], [np.concatenate(y)])
    assert len(set(many.weights_sha256())) == 1
    for found, wanted in zip((*state(many), squares(many)), (*state(one), squares(one)), strict=True):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("strategy", [gg.GossipGraD(), gg.PeriodicAllReduce(period=3)], ids=lambda s: s.name)
def test_resuming_carries_both_moments(strategy, tmp_path):
    data = gg.data.synthetic((1, 8, 8), 4, 60, 1)[0]

    def fit(epochs, **options):
        trainer = trainer_of(3, gg.Adam(lr=0.01, beta1=0.5, schedule=gg.schedules.Cosine(total=20)), strategy)
        return trainer, trainer.fit(data, epochs=epochs, batch_size=5, progress=False, **options)

    half, _ = fit(2)
    half.save(tmp_path / "c")
    again = gg.Trainer.load(tmp_path / "c")
    assert again.optimizer == half.optimizer
    for rank in range(3):
        for key in ("momentum", "second_moment"):
            found, wanted = again.optimizer_state(rank)[key], half.optimizer_state(rank)[key]
            assert found.keys() == wanted.keys() == again.weights().keys()
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert fit(4, resume=tmp_path / "c")[1].weights_sha256 == fit(4)[1].weights_sha256


def test_a_checkpoint_of_another_optimizer(tmp_path):
    """Moments that the other one does not keep are left out, with a warning."""
    for one, other in [(gg.SGD(0.1, 0.9), gg.Adam()), (gg.Adam(), gg.SGD(0.1)), (gg.Adam(), gg.SGD(0.1, 0.5))]:
        saved = trainer_of(2, one, gg.NoExchange())
        saved.train_step(*small_batches(np.random.default_rng(0), 2))
        saved.save(tmp_path / "c")
        taken = trainer_of(2, other, gg.NoExchange())
        with pytest.warns(UserWarning, match="optimizer"):
            checkpoint.restore(taken, tmp_path / "c")
        assert taken.weights_sha256() == saved.weights_sha256()
        state = taken.optimizer_state()
        assert bool(state["second_moment"]) == isinstance(other, gg.Adam)
        assert not any(np.any(array) for array in state["momentum"].values())


def test_it_learns():
    data = gg.data.synthetic((1, 8, 8), 4, 400, 200, noise=0.3)
    for strategy in (gg.GossipGraD(), gg.GossipGraD(staleness=1)):
        trainer = trainer_of(4, gg.Adam(lr=0.01), strategy)
        history = trainer.fit(*data, epochs=6, batch_size=10, progress=False)
        assert history["validation.accuracy"][-1] > 0.95 and math.isfinite(history["train_loss"][-1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1}, ("lr=-1",)),
        ({"beta1": 1.0}, ("beta1=1.0", "< 1")),
        ({"beta2": -0.1}, ("beta2=-0.1", ">= 0")),
        ({"eps": 0.0}, ("eps=0.0", ">= 1.17549e-38")),
        ({"weight_decay": float("inf")}, ("weight_decay=inf",)),
        ({"momentum": 0.9}, ("momentum: not an option of optimizer='adam'", "beta1")),
    ],
)
def test_options_out_of_range(options, words):
    with pytest.raises(ValueError) as caught:
        optim.by_name("adam", **options)
    assert all(word in str(caught.value) for word in words)


def test_the_core_checks_too():
    for change, word in [({"name": "lamb"}, "lamb"), ({"beta1": 1.0}, "beta1"), ({"eps": 0.0}, "eps")]:
        options = gg.Adam().options() | change
        with pytest.raises(ValueError, match=word):
            _core.Trainer(small_net().graph, _core.Team("single"), loss="cross_entropy", optimizer=options, strategy={})


@pytest.mark.core(1)
@pytest.mark.parametrize("exchange", ["weights+momentum", "weights"])
def test_lenet_learns_with_the_default_eps(exchange):
    """Weights that one rank has not seen a gradient for yet must not fly off when another's moment is mixed in."""
    train, test = gg.data.load("mnist-10k")
    trainer = gg.Trainer(
        gg.models.lenet(), optimizer=gg.Adam(), strategy=gg.GossipGraD(exchange=exchange), comm=gg.VirtualCluster(4)
    )
    history = trainer.fit(train, test, batch_size=64, progress=False)
    assert history["validation.accuracy"][-1] > 0.8 and history["train_loss"][-1] < 1
