"""Lion with the strategies, in the virtual cluster: against its published rule in float64, and by what must hold."""

from __future__ import annotations

import numpy as np
import pytest
from gossip_reference import Gradients, Simulation, randomise, small_batches, small_net, state
from test_strategies import CUTS, EXCHANGES, trainer_of

import gossipgrad as gg

LION = gg.Lion(lr=0.01, betas=(0.8, 0.9), weight_decay=0.5)


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


def compare(p, strategy, gradients_of, optimizer=LION, average=lambda simulation: None):
    """Runs the core and the simulation; compares where all is at rest. A sign that rounding turns would move a weight
    by twice the rate."""
    generator = np.random.default_rng(p)
    trainer = trainer_of(p, optimizer, strategy)
    simulated = strategy if isinstance(strategy, gg.GossipGraD) else None
    simulation = Simulation(*randomise(trainer, generator, 0.2), optimizer, simulated, trainer.seed)
    for leg in (3, 2):
        for _ in range(leg):
            x, y = small_batches(generator, p, sizes=(5, 3, 8))
            gradients = np.stack([gradients_of(w, *batch) for w, *batch in zip(simulation.w, x, y, strict=True)])
            trainer.train_step(x, y)
            simulation.step(gradients)
            average(simulation)
        simulation.settle()
        for found, wanted in zip(state(trainer), (simulation.w, simulation.v), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    trainer.close()


@pytest.mark.core(12)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("p", range(1, 9))
def test_gossip(p, exchange, gradients_of):
    for staleness, cut in ((0, "joined"), (1, "layers"))[: 1 if exchange == "gradients" else 2]:
        compare(p, gg.GossipGraD(exchange=exchange, staleness=staleness, **CUTS[cut]), gradients_of)


@pytest.mark.parametrize("p", [1, 3])
def test_no_exchange(p, gradients_of):
    compare(p, gg.NoExchange(), gradients_of)


def test_periodic_averages_the_momentum(gradients_of):
    def average(simulation):
        if simulation.t % 2 == 0:
            for array in (simulation.w, simulation.v):
                array[:] = array.mean(0)

    compare(3, gg.PeriodicAllReduce(period=2), gradients_of, average=average)


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=1)], ids=lambda s: s.name)
@pytest.mark.parametrize("p", [2, 3])
def test_allreduce_is_one_rank_with_a_larger_batch(p, strategy):
    generator = np.random.default_rng(p)
    many, one = trainer_of(p, LION, strategy), trainer_of(1, LION, gg.NoExchange())
    for step in range(5):
        x, y = small_batches(generator, p, sizes=[(4,), (4, 1, 7)][step % 2])
        many.train_step(x, y)
        one.train_step([np.concatenate(x)], [np.concatenate(y)])
    assert len(set(many.weights_sha256())) == 1
    for found, wanted in zip(state(many), state(one), strict=True):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "strategy", [gg.GossipGraD(), gg.OverlappedAveraging(), gg.DiLoCo(period=3)], ids=lambda s: s.name
)
def test_resuming_with_a_schedule_has_the_same_bits(strategy, tmp_path):
    data = gg.data.synthetic((1, 8, 8), 4, 60, 1)[0]

    def fit(epochs, **options):
        schedule = gg.schedules.Cosine(total=20, warmup=2)
        optimizer = gg.Lion(lr=0.01, weight_decay=0.1, schedule=schedule, no_decay="bias", clip_norm=1.0)
        trainer = trainer_of(3, optimizer, strategy)
        return trainer, trainer.fit(data, epochs=epochs, batch_size=5, progress=False, **options)

    half, _ = fit(2)
    half.save(tmp_path / "c")
    assert gg.Trainer.load(tmp_path / "c").optimizer == half.optimizer
    assert fit(4, resume=tmp_path / "c")[1].weights_sha256 == fit(4)[1].weights_sha256


def test_the_momentum_of_a_local_choice_is_refused():
    with pytest.raises(ValueError, match=r"local_momentum=True: allowed only with Adam, or with SGD"):
        gg.Trainer(
            small_net(),
            optimizer=LION,
            strategy=gg.AllReduce(),
            comm=gg.VirtualCluster(2),
            compression=gg.AdaComp(dense_below=1, local_momentum=True),
        )


def published(w, m, g, lr, decay):
    """Program 1 of the paper."""
    c = LION.betas[0] * m + (1 - LION.betas[0]) * g
    return w - lr * (np.sign(c) + decay * w), LION.betas[1] * m + (1 - LION.betas[1]) * g


def test_exchange_of_a_callers_gradients():
    """A vector counts as a bias, which does not decay."""
    generator = np.random.default_rng(0)
    x = gg.Exchange({"w": np.ones((1, 5)), "b": np.ones(3)}, optimizer=gg.Lion(0.01, LION.betas, 0.5, no_decay="bias"))
    w, m = np.ones(8), np.zeros(8)
    decay = np.repeat([0.5, 0.0], (5, 3))
    for _ in range(4):
        g = generator.standard_normal(8).astype(np.float32)
        x.step({"w": g[None, :5], "b": g[5:]})
        w, m = published(w, m, g, 0.01, decay)
    np.testing.assert_allclose(np.concatenate([x.weights["w"][0], x.weights["b"]]), w, rtol=1e-6)


def test_groups_of_torch():
    torch = pytest.importorskip("torch")
    import gossipgrad.torch  # noqa: F401, PLC0415

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    groups = [{"params": net[0].parameters(), "lr": 0.02, "weight_decay": 0.0}]
    mine = {name: (one.detach().double().numpy().copy(), 0.0) for name, one in net.named_parameters()}
    model = gg.torch.wrap(net, LION, groups=groups)
    for _ in range(4):
        x = torch.randn(7, 6)
        loss = model(x).square().mean()
        loss.backward()
        gradients = {name: one.grad.double().numpy().copy() for name, one in net.named_parameters()}
        model.step()
        for name, (w, m) in mine.items():
            lr, decay = (0.02, 0.0) if name.startswith("0") else (LION.lr, LION.weight_decay)
            mine[name] = published(w, m, gradients[name], lr, decay)
    for name, one in net.named_parameters():
        np.testing.assert_allclose(one.detach().numpy(), mine[name][0], rtol=1e-5, atol=1e-6, err_msg=name)


def test_numbers_of_numpy_become_pythons():
    betas = gg.Lion(betas=[np.float32(0.5), np.float64(0.25)]).betas
    assert betas == (0.5, 0.25) and all(type(one) is float for one in betas)


def test_it_learns():
    data = gg.data.synthetic((1, 8, 8), 4, 400, 200, noise=0.3)
    history = trainer_of(4, gg.Lion(lr=0.003), gg.GossipGraD()).fit(*data, epochs=6, batch_size=10, progress=False)
    assert history["validation.accuracy"][-1] > 0.95
