"""AdaComp(local_momentum=True): each rank's own moments come before the choice, and none after the sum."""

from __future__ import annotations

import numpy as np
import pytest
from gossip_reference import Gradients, flat, small_batches
from test_compression_strategies import SMALL, own_gradients, residues, sent_by, trainer_of

import gossipgrad as gg

STRATEGIES = [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=900)]
EVERYTHING = {
    "warm-up": gg.AdaComp(local_momentum=True, warmup=1000, **SMALL),
    "whole": gg.AdaComp(local_momentum=True, dense_below=10**6, bin_size=1),
    "bins of one": gg.AdaComp(local_momentum=True, mode="exact", values="float32", factor=1, bin_size=1, dense_below=1),
}
SOME = {
    "strict": gg.AdaComp(local_momentum=True, **SMALL),
    "cyclic": gg.AdaComp(local_momentum=True, selection="cyclic", **SMALL),
}


def optimizer(decay=0.01):
    return gg.SGD(lr=0.1, momentum=0.9, weight_decay=decay)


def momenta(trainer):
    return [trainer.core.exchange.arena("momentum", rank) for rank in range(trainer.size)]


@pytest.mark.parametrize("how", EVERYTHING)
@pytest.mark.parametrize("p", [1, 2, 4])
def test_it_is_the_momentum_of_the_sum_where_everything_is_sent(p, how):
    """With weight decay, statistics, and batches of unlike sizes, one of them empty."""
    for strategy in STRATEGIES:
        pair = [trainer_of(p, strategy, one, "norm", optimizer()) for one in (None, EVERYTHING[how])]
        generator = np.random.default_rng(p)
        for step in range(8):
            x, y = small_batches(generator, p, [3 + (rank + step) % 3 * (rank > 0) for rank in range(p)])
            for trainer in pair:
                trainer.train_step(x, y)
        dense, local = (trainer.weights() for trainer in pair)
        for name, weight in dense.items():
            np.testing.assert_allclose(local[name], weight, rtol=2e-5, atol=2e-6, err_msg=name)
        mean = [
            {name: np.mean([one[name] for one in momenta(trainer)], axis=0) for name in momenta(trainer)[0]}
            for trainer in pair
        ]
        for name, momentum in mean[0].items():
            np.testing.assert_allclose(mean[1][name], momentum, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("how", SOME)
def test_sent_and_left_are_the_accumulated_gradients(how):
    """w = w0 - lr (the sum over steps of the mean momentum - the sum of the residues), of what is trained."""
    p = 3
    for strategy in STRATEGIES:
        trainer = trainer_of(p, strategy, SOME[how], "small", optimizer(0.0))
        before = {name: one.astype(np.float64) for name, one in trainer.weights().items()}
        total = dict.fromkeys(before, 0.0)
        generator = np.random.default_rng(0)
        for _ in range(8):
            trainer.train_step(*small_batches(generator, p, [3, 5, 2]))
            for name in total:
                total[name] = total[name] + np.mean([one[name].astype(np.float64) for one in momenta(trainer)], axis=0)
        left = residues(trainer)
        for name, one in trainer.weights().items():
            waits = sum(own[name].astype(np.float64) for own in left)
            np.testing.assert_allclose(one, before[name] - 0.1 * (total[name] - waits), rtol=1e-5, atol=1e-6)
        assert any(np.abs(own[name]).max() > 0 for own in left for name in own)
        for rank in range(1, p):
            for name, one in trainer.weights(0).items():
                assert np.array_equal(one, trainer.weights(rank)[name])


class Adam:
    """Of one rank in float64, before the sum: squares count 1/p each."""

    def __init__(self, like, p, decay=0.0):
        self.p, self.decay, self.steps = p, decay, 0
        self.mean, self.square = np.zeros(like.size), np.zeros(like.size)

    def __call__(self, gradient, weights, scale):
        d = scale * gradient.astype(np.float64) + self.decay * weights
        self.steps += 1
        self.mean = 0.8 * self.mean + 0.2 * d
        self.square = 0.95 * self.square + 0.05 * d * d
        root = np.sqrt(self.square / (1 - 0.95**self.steps) / self.p)
        return self.mean / (1 - 0.8**self.steps) / (root + 1e-3)


def adam(decay=0.0, decoupled=False):
    """eps is large, so that it counts."""
    return gg.Adam(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=decay, decoupled=decoupled)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("p", [2, 4])
def test_adam_of_every_rank_where_everything_is_sent(p, decoupled):
    """The sum is the mean of the ranks' directions; batches of unlike sizes."""
    decay, lr = 0.3, 0.02
    for strategy in STRATEGIES:
        for how in ("warm-up", "bins of one"):
            trainer = trainer_of(p, strategy, EVERYTHING[how], optimizer=adam(decay, decoupled))
            gradients_of, generator = Gradients(trainer.net), np.random.default_rng(p)
            own = [Adam(flat(trainer.weights()), p, 0.0 if decoupled else decay) for _ in range(p)]
            for step in range(8):
                x, y = small_batches(generator, p, [3 + (rank + step) % 3 * (rank > 0) for rank in range(p)])
                before = flat(trainer.weights()).astype(np.float64)
                scales = [p * len(one) / sum(map(len, y)) for one in y]
                gradients = own_gradients(gradients_of, trainer, x, y)
                directions = [one(*what) for one, *what in zip(own, gradients, [before] * p, scales, strict=True)]
                trainer.train_step(x, y)
                wanted = before - lr * np.mean(directions, axis=0) - lr * decay * decoupled * before
                np.testing.assert_allclose(flat(trainer.weights()), wanted, rtol=1e-4, atol=2e-5)
            for rank, one in enumerate(own):
                for name, moment in (("momentum", one.mean), ("second_moment", one.square)):
                    np.testing.assert_allclose(
                        flat(trainer.core.exchange.arena(name, rank)), moment, rtol=1e-3, atol=1e-6
                    )


@pytest.mark.parametrize("how", SOME)
def test_sent_and_left_are_the_directions_of_adam(how):
    """w = w0 - lr (the sum over steps of the mean direction - the sum of the residues), in float64."""
    p, sizes = 3, [3, 5, 2]
    for strategy in STRATEGIES:
        trainer = trainer_of(p, strategy, SOME[how], optimizer=adam())
        gradients_of, generator = Gradients(trainer.net), np.random.default_rng(0)
        start = flat(trainer.weights()).astype(np.float64)
        own, total = [Adam(start, p) for _ in range(p)], np.zeros(start.size)
        for _ in range(8):
            x, y = small_batches(generator, p, sizes)
            gradients = own_gradients(gradients_of, trainer, x, y)
            trainer.train_step(x, y)
            for one, gradient, size in zip(own, gradients, sizes, strict=True):
                total += one(gradient, 0.0, p * size / sum(sizes)) / p
        left = residues(trainer)
        waits = sum(flat(one).astype(np.float64) for one in left)
        np.testing.assert_allclose(flat(trainer.weights()), start - 0.02 * (total - waits), rtol=1e-4, atol=2e-5)
        assert np.abs(waits).max() > 0.1
        for rank in range(1, p):
            assert np.array_equal(flat(trainer.weights(0)), flat(trainer.weights(rank)))


@pytest.mark.parametrize("size", [50, 300, 3000])
@pytest.mark.parametrize("mode", ["strict", "safe"])
def test_large_parameters_are_chosen_from_as_the_definition_says(mode, size):
    """To the bit: of more elements than are worked on at once, in bins that are not whole vectors."""
    p, lr = 2, 0.1
    net = gg.Sequential([gg.Flatten(), gg.Linear(99), gg.ReLU(), gg.Linear(4)], input=(1, 8, 8))
    how = gg.AdaComp(local_momentum=True, mode=mode, bin_size=size, dense_below=1000)
    trainer = gg.Trainer(
        net, optimizer=optimizer(), strategy=gg.AllReduce(), compression=how, comm=gg.VirtualCluster(p)
    )
    ((name, (_, found)),) = how.packed(trainer.net).items()
    assert found == size and trainer.weights()[name].size == 99 * 64
    generator, gradients_of = np.random.default_rng(size), Gradients(trainer.net)
    wanted = [0.0] * p
    for _ in range(4):
        x, y = small_batches(generator, p, [5, 5])
        before, left = trainer.weights()[name].ravel(), residues(trainer)
        decay, gradients = 0.01 * flat(trainer.weights()), own_gradients(gradients_of, trainer, x, y)
        trainer.train_step(x, y)
        total = np.zeros_like(before)
        for rank, own in enumerate(momenta(trainer)):
            wanted[rank] = 0.9 * wanted[rank] + gradients[rank].astype(np.float64) + decay
            np.testing.assert_allclose(flat(own), wanted[rank], rtol=1e-4, atol=1e-6)
            sent, rest = sent_by(how, size, 1 / p, own[name], left[rank][name])
            assert np.array_equal(residues(trainer)[rank][name].ravel(), rest)
            total += sent
        np.testing.assert_allclose(trainer.weights()[name].ravel(), before - lr * total, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("chosen", [optimizer, adam])
@pytest.mark.parametrize("how", SOME)
def test_resuming_is_never_having_stopped(how, chosen, tmp_path):
    """The ranks have momenta of their own, which a checkpoint gives back to each."""
    generator = np.random.default_rng(0)
    data = generator.standard_normal((36, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, 36)

    def fit(epochs, **options):
        trainer = trainer_of(3, STRATEGIES[1], SOME[how], optimizer=chosen())
        return trainer, trainer.fit(data, epochs=epochs, batch_size=4, progress=False, **options)

    half, _ = fit(2)
    half.save(tmp_path / "half.safetensors")
    first, *others = momenta(half)
    assert any(not np.array_equal(first[name], one[name]) for one in others for name in first)
    _, resumed = fit(4, resume=tmp_path / "half.safetensors")
    _, whole = fit(4)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert len(set(whole.weights_sha256)) == 1


@pytest.mark.parametrize(
    ("strategy", "chosen", "message"),
    [
        (gg.AllReduce(), gg.LARS(lr=0.01), "local_momentum=True: allowed only with Adam, or with SGD, momentum above"),
        (gg.AllReduce(), gg.SGD(lr=0.1), "local_momentum=True: allowed only with Adam, or with SGD, momentum above 0"),
        (gg.AllReduce(), gg.Adam(lr=0.1, clip_norm=1.0), "local_momentum=True with clip_norm=1: .*=None"),
        (gg.AllReduce(), gg.SGD(lr=0.1, momentum=0.9, nesterov=True), "and nesterov=False"),
        (gg.AllReduce(), gg.SGD(lr=0.1, momentum=0.9, clip_norm=1.0), "local_momentum=True with clip_norm=1: .*=None"),
        (
            gg.PeriodicAllReduce(),
            gg.SGD(lr=0.1, momentum=0.9),
            "it does not send gradients; allowed with: ",
        ),
    ],
)
def test_what_it_does_not_go_with(strategy, chosen, message):
    with pytest.raises(ValueError, match=message):
        trainer_of(2, strategy, SOME["strict"], optimizer=chosen)
