"""Whole runs in the virtual cluster: they learn, they repeat themselves bit for bit, they can be resumed."""

import itertools
import math

import numpy as np
import pytest

import gossipgrad as gg

# The trainer says that a cube of another size than 2^k has ranks without a partner; test_strategies looks at that.
pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

STRATEGIES = {
    "gossip": gg.GossipGraD(),
    "cube, late": gg.GossipGraD(topology="cube", staleness=1),
    "weights, small pieces": gg.GossipGraD(exchange="weights", bucket_bytes=1, chunk_bytes=256),
    "gradients": gg.GossipGraD(exchange="gradients"),
    "allreduce": gg.AllReduce(),
    "no-exchange": gg.NoExchange(),
}


@pytest.fixture(scope="module")
def digits():
    return gg.data.load("mnist-10k")


def small_cnn():
    layers = [gg.Conv2d(6, 5), gg.MaxPool2d(4), gg.Flatten(), gg.Linear(32), gg.ReLU(), gg.Dropout(0.1), gg.Linear(10)]
    return gg.Sequential(layers, input=(1, 28, 28), name="small-cnn")


def trainer_of(strategy, comm=None, lr=0.05, momentum=0.9, **options):
    return gg.Trainer(
        small_cnn(), optimizer=gg.SGD(lr=lr, momentum=momentum), strategy=strategy, seed=3, comm=comm, **options
    )


def fitted(strategy, data, comm, epochs=1, batch_size=37, **options):
    trainer = trainer_of(strategy, comm)
    return trainer, trainer.fit(data, epochs=epochs, batch_size=batch_size, progress=False, **options)


# ---- learning


@pytest.mark.core(12)
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("topology", ["dissemination", "cube"])
@pytest.mark.parametrize("p", range(1, 9))
def test_it_runs_and_learns(p, topology, staleness, digits):
    """An odd batch and, for most p, shards of unequal size. Starts at log 10 = 2.3."""
    train = digits[0][:3011]
    trainer = trainer_of(
        gg.GossipGraD(topology=topology, staleness=staleness), gg.VirtualCluster(p), lr=0.02 * min(p, 5)
    )
    history = trainer.fit(train, epochs=5, batch_size=37, progress=False)
    losses = history["train_loss"]
    assert losses[-1] < 0.4 * losses[0] and losses[-1] < 0.8
    assert history["samples"] == [len(train)] * 5
    assert max(history["consensus_distance"]) < 0.2


@pytest.mark.full
def test_lenet_by_gossip_is_as_good_as_by_allreduce(digits):
    accuracy = {}
    for strategy in (gg.GossipGraD(), gg.AllReduce()):
        optimizer = gg.SGD(lr=0.06, momentum=0.9, schedule=gg.schedules.Cosine(warmup=10))
        trainer = gg.Trainer(gg.models.lenet(), optimizer=optimizer, strategy=strategy, comm=gg.VirtualCluster(4))
        last = trainer.fit(*digits, epochs=2, batch_size=32, validate_replicas=True, progress=False).last
        accuracy[strategy.name] = last["validation"]["accuracy"]
        for replica in last["validation_replicas"]:
            assert replica["accuracy"] == pytest.approx(last["validation"]["accuracy"], abs=0.01)
    assert accuracy["gossipgrad"] > 0.95 and accuracy["allreduce"] > 0.95
    assert accuracy["gossipgrad"] > accuracy["allreduce"] - 0.01


# ---- the same again


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_bits_and_clocks_again(name, digits):
    def run():
        comm = gg.VirtualCluster(5, latency=1e-4, bandwidth=1e8)
        _, history = fitted(STRATEGIES[name], digits[0][:555], comm, epochs=2)
        measured = ("seconds", "seconds_max", "samples_per_second")  # by the clock on the wall
        return history.weights_sha256, [{k: v for k, v in r.items() if k not in measured} for r in history.epochs]

    first = run()
    assert run() == first
    assert first[1][0]["virtual_seconds"] > 0
    assert len(set(first[0])) == (1 if name == "allreduce" else 5)


def test_clocks_change_no_bit_and_mean_something(digits):
    def run(strategy, **network):
        trainer, history = fitted(strategy, digits[0][:555], gg.VirtualCluster(3, **network))
        return trainer.weights_sha256(), history.last

    for staleness in (0, 1):
        strategy = gg.GossipGraD(staleness=staleness, exchange="weights+momentum")
        fast, ideal = run(strategy)
        slow, waiting = run(strategy, latency=0.01, bandwidth=1e7)
        doubled, twice = run(strategy, compute_rate=2.0)
        assert fast == slow == doubled
        assert ideal["exposed_communication_seconds"] == 0
        assert waiting["exposed_communication_seconds"] > 0.01 * (waiting["steps"] - 1) * 0.5
        assert waiting["virtual_seconds"] == pytest.approx(
            ideal["virtual_seconds"] + waiting["exposed_communication_seconds_max"], rel=0.2
        )
        assert twice["virtual_seconds"] == pytest.approx(2 * ideal["virtual_seconds"], rel=1e-9)


def test_staleness_hides_what_a_step_can_hide(digits):
    """Messages that take most of a step: staleness 1 hides them behind one, staleness 0 cannot."""

    def run(staleness, latency):
        comm = gg.VirtualCluster(4, latency=latency)
        return fitted(gg.GossipGraD(staleness=staleness, bucket_bytes=1), digits[0][:592], comm)[1].last

    ideal = run(0, 0.0)
    step = ideal["virtual_seconds"] / ideal["steps"]
    late, prompt = run(1, 0.7 * step), run(0, 0.7 * step)
    assert prompt["exposed_communication_seconds"] > 0.3 * step * (prompt["steps"] - 1)
    # but for the last exchange, which the end of the epoch waits for
    assert late["exposed_communication_seconds"] == pytest.approx(0.7 * step, rel=0.05)


# ---- resuming


@pytest.mark.parametrize("name", STRATEGIES)
def test_resuming_is_never_having_stopped(name, digits, tmp_path):
    train, comm = digits[0][:500], gg.VirtualCluster(3)
    whole, history = fitted(STRATEGIES[name], train, comm, epochs=3)
    first, _ = fitted(STRATEGIES[name], train, comm, epochs=1)
    first.save(tmp_path / "run.safetensors")
    resumed, again = fitted(STRATEGIES[name], train, comm, epochs=3, resume=tmp_path / "run.safetensors")
    assert again.weights_sha256 == history.weights_sha256
    assert resumed.step == whole.step
    for rank in range(3):
        for key, value in whole.momentum(rank).items():
            np.testing.assert_array_equal(resumed.momentum(rank)[key], value)
    assert again["train_loss"] == history["train_loss"]

    loaded = gg.Trainer.load(tmp_path / "run.safetensors")
    loaded.fit(train, epochs=2, batch_size=37, progress=False)
    assert loaded.weights_sha256() == history.weights_sha256


def test_a_schedule_goes_on_where_it_was(digits, tmp_path):
    def run(epochs, **options):
        schedule = gg.schedules.Cosine(total=60, warmup=5)
        trainer = gg.Trainer(
            small_cnn(), optimizer=gg.SGD(lr=0.05, momentum=0.9, schedule=schedule), comm=gg.VirtualCluster(2)
        )
        trainer.fit(digits[0][:500], epochs=epochs, batch_size=37, progress=False, **options)
        return trainer

    run(1).save(tmp_path / "run.safetensors")
    assert run(3, resume=tmp_path / "run.safetensors").weights_sha256() == run(3).weights_sha256()


# ---- between the steps


@pytest.mark.parametrize("staleness", [0, 1])
def test_looking_at_weights_twice_shows_the_same(staleness, digits):
    trainer, _ = fitted(gg.GossipGraD(staleness=staleness), digits[0][:200], gg.VirtualCluster(3), batch_size=16)
    x = digits[0].samples[:12].astype(np.float32) / 255
    y = digits[0].targets[:12]
    trainer.train_step(list(x.reshape(3, 4, 1, 28, 28)), list(y.reshape(3, 4)))
    first = trainer.weights_sha256()
    trainer.evaluate(digits[1][:100])
    trainer.consensus_distance()
    assert trainer.weights_sha256() == first


@pytest.mark.parametrize("name", ["gossip", "cube, late", "gradients"])
def test_a_trainer_that_is_left_in_mid_step(name, digits):
    """Closed with messages under way; another takes its place."""
    x = digits[0].samples[:12].astype(np.float32).reshape(3, 4, 1, 28, 28) / 255
    y = digits[0].targets[:12].reshape(3, 4)

    def run():
        trainer = trainer_of(STRATEGIES[name], gg.VirtualCluster(3))
        for _ in range(3):
            trainer.train_step(list(x), list(y))
        return trainer

    expected = run().weights_sha256()
    for _ in range(3):
        run().close()
        assert run().weights_sha256() == expected


def test_evaluation_of_replicas_and_consensus(digits):
    trainer, _ = fitted(gg.NoExchange(), digits[0][:600], gg.VirtualCluster(3), epochs=2)
    test = digits[1][:301]
    replicas = trainer.evaluate(test, replicas=True)
    assert len(replicas) == 3 and len({r["loss"] for r in replicas}) == 3
    for rank, replica in enumerate(replicas):
        alone = trainer_of(gg.NoExchange())
        alone.load_weights(trainer.weights(rank))
        found = alone.evaluate(test)
        assert found["accuracy"] == replica["accuracy"] and found["loss"] == pytest.approx(replica["loss"], rel=1e-6)
    alone.load_weights(trainer.consensus_weights())
    consensus = trainer.evaluate(test, batch_size=50)
    expected = alone.evaluate(test)
    assert consensus["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert consensus["accuracy"] == pytest.approx(expected["accuracy"])
    # by hand
    scores = trainer.predict(test, batch_size=64).astype(np.float64)
    assert np.mean(scores.argmax(1) == test.targets) == pytest.approx(consensus["accuracy"])
    shifted = scores - scores.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(301), test.targets]
    assert losses.mean() == pytest.approx(consensus["loss"], rel=1e-5)


def test_every_sample_once_an_epoch(digits):
    """The rate is 0, so the mean loss of an epoch is the loss of the data, whatever the order."""
    train = digits[0][:411]
    net = gg.Sequential([gg.Flatten(), gg.Linear(10)], input=(1, 28, 28))
    for p, batch in itertools.product((1, 3, 4), (10, 37)):
        trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.0), strategy=gg.NoExchange(), comm=gg.VirtualCluster(p))
        history = trainer.fit(train, epochs=2, batch_size=batch, progress=False)
        expected = trainer.evaluate(train)["loss"]
        assert history["samples"] == [411, 411]
        assert history["train_loss"] == pytest.approx([expected, expected], rel=1e-6)
        assert history["steps"] == [math.ceil(math.ceil(411 / p) / batch)] * 2
