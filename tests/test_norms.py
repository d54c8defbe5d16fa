"""Clipping and LARS, which need whole norms before the first update: in every strategy, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from gossip_reference import Gradients, flat, small_batches, small_net, unflat
from test_groups import STRATEGIES, train, with_factors

import gossipgrad as gg

CLIP = 0.05  # far below the gradients' norms
OPTIMIZERS = {
    "clipped": gg.SGD(0.1, momentum=0.5, weight_decay=0.1, clip_norm=CLIP),
    "nesterov": gg.SGD(0.1, momentum=0.5, nesterov=True, clip_norm=CLIP),
    "adam": gg.Adam(0.01, clip_norm=CLIP),
    "lars": gg.LARS(5.0, momentum=0.5, weight_decay=0.1),
    "lars, all": gg.LARS(5.0, momentum=0, no_adaptation=(), no_decay="bias", clip_norm=CLIP),
}


class Reference:
    """One rank's weights, by name, and its optimiser in float64, which is given the gradients that updates use."""

    def __init__(self, optimizer, weights):
        self.optimizer = optimizer
        self.w = {name: array.astype(np.float64) for name, array in weights.items()}
        self.m = {name: np.zeros(array.shape) for name, array in weights.items()}
        self.s = {name: np.zeros(array.shape) for name, array in weights.items()}
        self.steps = 0

    def rate(self, name, gradient, decay):
        o = self.optimizer
        if name.endswith("bias") and "bias" in o.no_adaptation:
            return o.lr
        length, slope = np.linalg.norm(self.w[name]), np.linalg.norm(gradient)
        return o.lr * (o.trust * length / (slope + decay * length) if length > 0 and slope > 0 else 1)

    def step(self, gradients):
        o = self.optimizer
        self.steps += 1
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        factor = 1.0 if o.clip_norm is None else min(1.0, o.clip_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            g = gradient * factor
            decay = 0.0 if name.endswith("bias") and "bias" in o.no_decay else o.weight_decay
            if isinstance(o, gg.LARS):
                self.m[name] = o.momentum * self.m[name] + self.rate(name, g, decay) * (g + decay * self.w[name])
                self.w[name] = self.w[name] - self.m[name]
                continue
            g = g + decay * self.w[name]
            if isinstance(o, gg.SGD):
                self.m[name] = o.momentum * self.m[name] + g
                self.w[name] = self.w[name] - o.lr * (g + o.momentum * self.m[name] if o.nesterov else self.m[name])
                continue
            self.m[name] = o.beta1 * self.m[name] + (1 - o.beta1) * g
            self.s[name] = o.beta2 * self.s[name] + (1 - o.beta2) * g * g
            first = self.m[name] / (1 - o.beta1**self.steps)
            self.w[name] = self.w[name] - o.lr * first / (np.sqrt(self.s[name] / (1 - o.beta2**self.steps)) + o.eps)


@pytest.fixture(scope="module")
def gradients_of():
    """The network's gradients by name for float64 weights and a batch."""
    core, like = Gradients(small_net()), small_net().weights()
    return lambda weights, x, y: unflat(core(flat(weights), x, y), like)


def near(trainer, references, tolerance=2e-4):
    for rank, reference in enumerate(references):
        for name, array in trainer.weights(rank).items():
            np.testing.assert_allclose(array, reference.w[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["alone", "allreduce", "layerwise", "overlapped", "periodic", "gradients"])
def test_updates_are_those_of_a_float64_reference(strategy, optimizer, gradients_of):
    """Own gradients, or the mean over all ranks, or over partners; "periodic" averages what it has every 2 steps."""
    how = {"optimizer": OPTIMIZERS[optimizer], "ranks": 2 if strategy == "gradients" else 3}
    if strategy != "layerwise":
        how["strategy"] = STRATEGIES[strategy]
    else:
        how["strategy"] = gg.LayerwiseAllReduce(chunk_bytes=64)
    trainer = with_factors(**how)
    references = [Reference(OPTIMIZERS[optimizer], trainer.weights(rank)) for rank in range(trainer.size)]
    generator = np.random.default_rng(2)
    with trainer:
        for step in range(4):
            x, y = small_batches(generator, trainer.size, sizes=(4, 4))
            own = [gradients_of(r.w, *batch) for r, *batch in zip(references, x, y, strict=True)]
            own = [{name: array.astype(np.float64) for name, array in one.items()} for one in own]
            mean = {name: np.mean([one[name] for one in own], axis=0) for name in own[0]}
            for reference, mine in zip(references, own, strict=True):
                reference.step(mine if strategy in ("alone", "periodic") else mean)
            if strategy == "periodic" and step % 2:
                for what in ("w", "m", "s"):
                    all_ = [getattr(r, what) for r in references]
                    for reference in references:
                        setattr(reference, what, {n: np.mean([one[n] for one in all_], axis=0) for n in all_[0]})
            trainer.train_step(x, y)
        near(trainer, references)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_averaging_strategies_have_equal_replicas_and_one_result(optimizer):
    """Equal bits on every rank, and equal results whoever adds, cuts and updates."""
    found = {}
    for name in ("allreduce", "layerwise", "overlapped"):
        strategy = gg.LayerwiseAllReduce(chunk_bytes=64) if name == "layerwise" else STRATEGIES[name]
        ranks = train(with_factors(optimizer=OPTIMIZERS[optimizer], strategy=strategy, ranks=3))
        for rank in ranks[1:]:
            assert all(np.array_equal(rank["weight"][key], value) for key, value in ranks[0]["weight"].items())
        found[name] = flat(ranks[0]["weight"])
    assert np.array_equal(found["allreduce"], found["layerwise"])
    # Norms are sums in double of the same numbers in another order.
    np.testing.assert_allclose(found["overlapped"], found["allreduce"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", ["alone", "allreduce", "overlapped", "gradients"])
def test_gradients_of_frozen_layers_do_not_count_in_the_norm(strategy):
    """The update of what is trained is as long as clip_norm says."""
    limit, net = 1e-3, small_net().freeze("conv", "fc2")
    optimizer, comm = gg.SGD(1.0, clip_norm=limit), gg.VirtualCluster(2)
    with gg.Trainer(net, optimizer=optimizer, strategy=STRATEGIES[strategy], comm=comm) as trainer:
        before = trainer.weights()
        trainer.train_step(*small_batches(np.random.default_rng(4), 2, sizes=(4, 4)))
        change = {name: array - before[name] for name, array in trainer.weights().items()}
    assert {name for name, array in change.items() if array.any()} == {"fc1.weight", "fc1.bias"}
    assert np.linalg.norm(flat(change)) == pytest.approx(limit, 1e-3)


@pytest.mark.parametrize("optimizer", ["clipped", "adam"])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "server"])  # whose results follow the pace
def test_a_limit_that_no_norm_reaches_changes_no_bit(strategy, optimizer):
    """Although updates wait for norms. A low one shortens the updates."""
    given = OPTIMIZERS[optimizer]
    free, loose, low = (
        train(with_factors(optimizer=replace(given, clip_norm=limit), strategy=STRATEGIES[strategy]))
        for limit in (None, 1e6, CLIP)
    )
    for mine, theirs in zip(loose, free, strict=True):
        for arena, arrays in theirs.items():
            for name, array in arrays.items():
                assert np.array_equal(array, mine[arena][name]), (arena, name)
    assert not np.array_equal(flat(low[0]["weight"]), flat(free[0]["weight"]))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_adapts(strategy):
    """With a tiny trust what adapts stays, and biases, which have the plain rate, move."""
    trainer = with_factors(optimizer=gg.LARS(0.1, momentum=0.5, trust=1e-30), strategy=STRATEGIES[strategy])
    before = trainer.weights()
    for rank in train(trainer):
        for name, array in rank["weight"].items():
            bound = {"push-sum": 1e-6}.get(strategy, 0) * np.abs(before[name])
            assert (np.abs(array - before[name]) <= bound).all() == name.endswith("weight"), name


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "1", True])
def test_bad_limits_say_so(bad):
    with pytest.raises((ValueError, TypeError), match="clip_norm"):
        gg.SGD(0.1, clip_norm=bad)
    with pytest.raises((ValueError, TypeError), match="trust"):
        gg.LARS(0.1, trust=bad)


def test_gradients_that_are_not_finite_do_what_pytorch_does():
    """NaN spreads to all weights; the loss says so at the next step."""
    with with_factors(optimizer=OPTIMIZERS["clipped"], ranks=1, strategy=gg.NoExchange()) as trainer:
        x = np.full((2, 1, 8, 8), np.nan, np.float32)
        trainer.train_step([x], [np.zeros(2, np.int32)])
        assert all(np.isnan(array).all() for array in trainer.weights().values())


def test_pytorch_clips_alike():
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(4)
    with with_factors(optimizer=OPTIMIZERS["clipped"], ranks=1, strategy=gg.NoExchange()) as trainer:
        weights = {name: torch.tensor(array, requires_grad=True) for name, array in trainer.weights().items()}
        optimizer = torch.optim.SGD(weights.values(), lr=0.1, momentum=0.5, weight_decay=0.1)
        for _ in range(5):
            x, y = small_batches(generator, 1)
            trainer.train_step(x, y)
            h = torch.tanh(torch.conv2d(torch.tensor(x[0]), weights["conv.weight"], weights["conv.bias"]))
            h = torch.nn.functional.avg_pool2d(h, 2).flatten(1)
            h = torch.tanh(h @ weights["fc1.weight"].T + weights["fc1.bias"])
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                h @ weights["fc2.weight"].T + weights["fc2.bias"], torch.tensor(y[0])
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
            optimizer.step()
        for name, array in trainer.weights().items():
            np.testing.assert_allclose(array, weights[name].detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_lars_is_saved_and_restored(tmp_path):
    optimizer = gg.LARS(3.0, momentum=0.8, weight_decay=0.1, trust=0.01, no_adaptation="norm", clip_norm=2)
    with with_factors(optimizer=optimizer, ranks=2, strategy=gg.OverlappedAveraging()) as trainer:
        trainer.train_step(*small_batches(np.random.default_rng(0), 2))
        trainer.save(tmp_path / "c.safetensors")
        wanted = [trainer.rank_state(rank) for rank in range(2)]
    with gg.Trainer.load(tmp_path / "c.safetensors") as trainer:
        assert trainer.optimizer == optimizer
        for rank in range(2):
            for name, array in trainer.momentum(rank).items():
                assert np.array_equal(array, wanted[rank]["momentum"][name])
