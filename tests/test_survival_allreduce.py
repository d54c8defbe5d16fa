"""Virtual ranks die while the others sum gradients: survivors stay bit-equal, and each sample counts exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from test_survival import linear, one_hot, own_weights

import gossipgrad as gg

SAMPLES, BATCH, LR = 61, 3, 0.1
COMPRESSION = gg.AdaComp(bin_size=8, dense_below=1, warmup=0)

STRATEGIES = {
    "allreduce": lambda: gg.AllReduce(),
    "bfloat16": lambda: gg.AllReduce(wire_dtype="bfloat16"),
    "layerwise": lambda: gg.LayerwiseAllReduce(bucket_bytes=1, chunk_bytes=128),
}
OPTIMIZERS = {
    "sgd": lambda: gg.SGD(lr=LR),
    "momentum": lambda: gg.SGD(lr=LR, momentum=0.9),
    "adam": lambda: gg.Adam(lr=0.01),
}


def trained(strategy, p, deaths, *, optimizer="sgd", epochs=1, compression=None, callback=(), **options):
    x, y = one_hot(SAMPLES)
    trainer = gg.Trainer(
        linear(SAMPLES),
        loss="mean_squared_error",
        optimizer=OPTIMIZERS[optimizer](),
        strategy=strategy,
        compression=compression,
        comm=gg.VirtualCluster(p, deaths=deaths, **options),
    )
    history = trainer.fit(x, y, epochs=epochs, batch_size=BATCH, progress=False, callbacks=callback)
    return trainer, history


def check_once(weights: np.ndarray, tolerance: float = 1e-3) -> None:
    """Weight i has moved by 2 * lr / B, in one step of B samples, and B - 1 others have moved as far."""
    batch = 2 * LR / weights
    whole = np.rint(batch)
    assert (np.abs(batch - whole) <= tolerance * batch).all(), batch
    sizes, counts = np.unique(whole, return_counts=True)
    assert (counts % sizes == 0).all(), (sizes, counts)


def check_equal(trainer, history, p, deaths) -> None:
    assert trainer.size == p - len(deaths) and len(set(history.weights_sha256)) == 1
    assert sorted(rank for view in history.views for rank in view["died"]) == sorted(deaths)
    assert all(view["trained_again"] == 0 for view in history.views)


@pytest.mark.parametrize("name", ["allreduce", "layerwise"])
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_step_counts_for_all_or_for_none(name, p):
    """A death before, in and after each message of a step: 2 * (p - 1) of a reduction."""
    messages = 2 * (p - 1) * (2 if name == "layerwise" else 1)
    for after in range(0, messages + 2, 1 if p < 8 else 3):
        deaths = {p - 1: gg.Death(step=1, after_messages=after)}
        trainer, history = trained(STRATEGIES[name](), p, deaths)
        check_equal(trainer, history, p, deaths)
        check_once(own_weights(trainer)[0])


@pytest.mark.parametrize("name", ["allreduce", "layerwise"])
@pytest.mark.parametrize(
    "p, deaths",
    [
        (3, {0: 0, 1: 0}),
        (5, {0: gg.Death(step=2, after_messages=5), 4: gg.Death(step=2, after_messages=6)}),
        (5, {1: gg.Death(step=1, after_messages=3), 2: 2, 3: 3}),
        (8, {2: gg.Death(step=1, after_messages=9), 5: gg.Death(step=1, after_messages=2), 7: 1}),
        (2, {1: 10}),
        (4, {3: gg.Death(step=5, after_messages=4)}),
    ],
)
@pytest.mark.parametrize("detect", [1e-9, 0.01])
def test_several_deaths(name, p, deaths, detect):
    """At once, one after the other, and in the last step of an epoch."""
    runs = [trained(STRATEGIES[name](), p, deaths, detect=detect, bandwidth=1e6) for _ in range(2)]
    trainer, history = runs[0]
    check_equal(trainer, history, p, deaths)
    check_once(own_weights(trainer)[0])
    assert history.weights_sha256 == runs[1][1].weights_sha256


# ---- the state


def deep() -> gg.Model:
    """Several buckets, and statistics."""
    layers = [gg.Conv2d(3, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(16), gg.ReLU(), gg.Linear(1)]
    return gg.Sequential(layers, input=(1, 6, 6))


def arenas(trainer, rank) -> dict[str, np.ndarray]:
    exchange = trainer.core.exchange
    return {
        name: np.concatenate([part.ravel() for part in exchange.arena(name, rank).values()])
        for name, kind in exchange.arenas().items()
        if kind != "gradient"
    }


class Steps(gg.Callback):
    """The state of each rank after each step."""

    every = 1

    def __init__(self) -> None:
        self.states: dict[int, list[dict[str, np.ndarray]]] = {}

    def on_fit_begin(self, trainer) -> None:
        self.states[0] = [arenas(trainer, rank) for rank in range(trainer.size)]

    def on_step(self, trainer, step) -> None:
        self.states[step] = [arenas(trainer, rank) for rank in range(trainer.size)]


class Compared(gg.Callback):
    """At the first change each survivor has the state of a run without deaths after the same steps, to the bit."""

    def __init__(self, states) -> None:
        self.states, self.step = states, None

    def on_view(self, trainer, change) -> None:
        if self.step is not None:
            return
        self.step = change["step"]
        assert self.step == trainer.step
        for place, rank in enumerate(change["ranks"]):
            for name, values in arenas(trainer, place).items():
                np.testing.assert_array_equal(values, self.states[self.step][rank][name], f"rank {rank}, {name}")


def fitted(kind, p, deaths, callback, *, epochs=2):
    strategy, optimizer, compression = KINDS[kind]
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((SAMPLES, 1, 6, 6), np.float32), rng.standard_normal((SAMPLES, 1), np.float32)
    trainer = gg.Trainer(
        deep(),
        loss="mean_squared_error",
        optimizer=OPTIMIZERS[optimizer](),
        strategy=STRATEGIES[strategy](),
        compression=compression,
        comm=gg.VirtualCluster(p, deaths=deaths),
    )
    history = trainer.fit(x, y, epochs=epochs, batch_size=BATCH, progress=False, callbacks=[callback])
    return trainer, history


KINDS = {
    "sgd": ("allreduce", "momentum", None),
    "bfloat16": ("bfloat16", "adam", None),
    "adam": ("layerwise", "adam", None),
    "packed": ("allreduce", "sgd", COMPRESSION),
    "packed layers": ("layerwise", "adam", COMPRESSION),
    "own momentum": ("layerwise", "momentum", gg.AdaComp(bin_size=8, dense_below=1, warmup=0, local_momentum=True)),
    "warm-up": ("allreduce", "momentum", gg.AdaComp(bin_size=8, dense_below=1, warmup=2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_that_of_whole_steps(kind):
    """Weights, moments, statistics and residues, after a broken step that some have made, or none."""
    p, steps = 3, Steps()
    _, plain = fitted(kind, p, None, steps, epochs=1)
    made = set()
    _, mortal = fitted(kind, p, {1: 10**6}, gg.Callback(), epochs=1)
    assert mortal.weights_sha256 == plain.weights_sha256  # without a death nothing changes
    messages = round(plain.epochs[0]["messages_per_rank_step"])
    for after in np.unique(np.linspace(0, messages + 1, 14, dtype=int)).tolist():
        for dead in (0, 2):
            compared = Compared(steps.states)
            trainer, history = fitted(kind, p, {dead: gg.Death(step=3, after_messages=after)}, compared)
            check_equal(trainer, history, p, [dead])
            made.add(compared.step)
    assert made == {3, 4}


# ---- means of weights, and outer steps

LOCAL = {
    "mean of each step": (lambda: gg.PeriodicAllReduce(period=1), None),
    "means": (lambda: gg.PeriodicAllReduce(period=3), None),
    "bfloat16": (lambda: gg.PeriodicAllReduce(period=2, wire_dtype="bfloat16"), None),
    "moves": (lambda: gg.PeriodicAllReduce(period=1), COMPRESSION),
    "outer": (lambda: gg.DiLoCo(period=2), None),
    "hidden": (lambda: gg.DiLoCo(period=3, delay=2), None),
    "fragments": (lambda: gg.DiLoCo(period=4, fragments=3, outer_nesterov=True), None),
    "groups": (lambda: gg.NoLoCo(period=2), None),
    "hidden groups": (lambda: gg.NoLoCo(period=3, delay=2, group=3), None),
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_go_on(name):
    """No sample is lost, and what was equal on all ranks is so again after the first step without the dead."""
    make, compression = LOCAL[name]
    for optimizer in ("momentum", "adam"):
        plain = trained(make(), 3, None, optimizer=optimizer, compression=compression)[0]
        mortal = trained(make(), 3, {1: 10**6}, optimizer=optimizer, compression=compression)[0]
        assert mortal.weights_sha256() == plain.weights_sha256()
    for p, jump in (2, 3), (3, 1), (5, 7):
        for after in range(0, 5 * p, jump):
            for step in (1, 2):
                deaths = {p - 1: gg.Death(step=step, after_messages=after)}
                how = {"optimizer": "momentum", "epochs": 2, "compression": compression}
                trainer, history = trained(make(), p, deaths, **how)
                assert trainer.size == p - 1 and history.views[0]["died"] == [p - 1]
                assert (own_weights(trainer) != 0).any(axis=0).all()
                assert np.isfinite(own_weights(trainer)).all()
                own = [arenas(trainer, rank) for rank in range(trainer.size)]
                equal = [key for key in own[0] if key.startswith("outer") and "groups" not in name]
                equal += ["weight", "momentum"] if name == "mean of each step" else []
                equal += ["weight"] if name == "moves" else []
                for key in equal:
                    for one in own[1:]:
                        np.testing.assert_array_equal(one[key], own[0][key], f"{p} {after} {step} {key}")


def test_a_broken_mean_changes_nothing():
    """At the change, at most three steps later, a survivor has made the mean over all ranks, or none of it."""
    alone, means = Steps(), Steps()
    trained(gg.NoExchange(), 3, None, optimizer="adam", callback=alone)
    trained(gg.PeriodicAllReduce(period=4), 3, None, optimizer="adam", callback=means)
    found = set()

    class Look(gg.Callback):
        def on_view(self, trainer, change):
            step = change["step"]
            for place, rank in enumerate(change["ranks"]):
                own = arenas(trainer, place)
                kinds = [
                    kind
                    for kind, steps in (("alone", alone), ("mean", means))
                    if all((own[key] == steps.states[step][rank][key]).all() for key in own)
                ]
                assert len(kinds) == 1, rank
                found.add(kinds[0])

    for after in range(20):
        deaths = {2: gg.Death(step=3, after_messages=after)}
        trained(gg.PeriodicAllReduce(period=4), 3, deaths, optimizer="adam", callback=Look())
    assert found == {"alone", "mean"}


def test_a_broken_mean_of_moves_keeps_the_residue():
    means, found = Steps(), set()
    trained(gg.PeriodicAllReduce(period=3), 3, None, callback=means, compression=COMPRESSION)

    class Look(gg.Callback):
        def on_view(self, trainer, change):
            for place, rank in enumerate(change["ranks"]):
                own, made = arenas(trainer, place), means.states[change["step"]][rank]
                whole = all((own[key] == made[key]).all() for key in own)
                found.add(whole)
                if not whole:
                    for key in ("residue", "base"):
                        np.testing.assert_array_equal(own[key], means.states[5][rank][key], key)

    for after in range(8):
        deaths = {2: gg.Death(step=5, after_messages=after)}
        trained(gg.PeriodicAllReduce(period=3), 3, deaths, callback=Look(), compression=COMPRESSION)
    assert found == {True, False}


def test_several_messages_of_a_step():
    """Gradients of more than 4 MiB, compressed: no message's weights are updated before the last has come."""
    x, y = np.ones((8, 1024), np.float32), np.ones((8, 1024), np.float32)

    def fit(deaths, callback):
        trainer = gg.Trainer(
            gg.Sequential([gg.Linear(1024, bias=False), gg.Linear(1024, bias=False)], input=(1024,)),
            loss="mean_squared_error",
            optimizer=gg.SGD(lr=LR),
            strategy=gg.AllReduce(),
            compression=gg.AdaComp(warmup=0),
            comm=gg.VirtualCluster(3, deaths=deaths),
        )
        trainer.fit(x, y, epochs=1, batch_size=1, progress=False, callbacks=callback)

    steps = Steps()
    fit(None, steps)
    for after in (2, 3):  # of two messages to two ranks
        changed = Compared(steps.states)
        fit({2: gg.Death(step=1, after_messages=after)}, changed)
        assert changed.step == after - 1


def test_auto_forms_no_nodes():
    """With so few samples ranks would form nodes, which need all their ranks."""
    assert gg.strategies.choose(BATCH, 16, "none", 1)[0].hierarchical
    trainer, history = trained("auto", 16, {1: 1})
    assert trainer.strategy == gg.AllReduce() and trainer.size == 15 and len(set(history.weights_sha256)) == 1
