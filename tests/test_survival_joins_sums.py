"""Virtual ranks join while the others sum over all ranks: ranks stay bit-equal, and each sample counts exactly once."""

from __future__ import annotations

import numpy as np
import pytest
import test_survival_allreduce
from test_survival import own_weights
from test_survival_allreduce import (
    BATCH,
    COMPRESSION,
    LOCAL,
    SAMPLES,
    STRATEGIES,
    Steps,
    arenas,
    check_once,
    deep,
)
from test_survival_joins import Sees, check_pairs

import gossipgrad as gg


def trained(strategy, p, *, joins, deaths=None, **options):
    return test_survival_allreduce.trained(strategy, p, deaths, joins=joins, **options)[0]


def names(trainer, key):
    return [rank for view in trainer.history.views for rank in view[key]]


# A newcomer alone; several; with a death before it, in its step, as the group stops for it, and of itself.
CASES = [
    (1, {0: 1}, {}),
    (1, {5: 2}, {}),
    (2, {1: 1, 3: 2}, {}),
    (3, {2: 1}, {1: 2}),
    (3, {2: 1}, {0: gg.Death(step=2, after_messages=3)}),
    (3, {2: 1}, {0: gg.Death(step=1, after_messages=2)}),
    (3, {1: 1}, {3: gg.Death(step=2, after_messages=1)}),
    (2, {2: 2, 3: 1}, {1: gg.Death(step=2, after_messages=1), 0: 4}),
]


@pytest.mark.parametrize("name", ["allreduce", "layerwise"])
@pytest.mark.parametrize("p, joins, deaths", CASES)
def test_a_step_counts_for_all_or_for_none(name, p, joins, deaths):
    runs = [trained(STRATEGIES[name](), p, joins=joins, deaths=deaths, bandwidth=1e6) for _ in range(2)]
    trainer = runs[0]
    assert len(set(trainer.weights_sha256())) == 1
    check_once(own_weights(trainer)[0])
    assert names(trainer, "joined") == list(range(p, p + sum(joins.values())))
    assert sorted(names(trainer, "died")) == sorted(deaths)
    assert all(view["trained_again"] == 0 for view in trainer.history.views)
    assert all(not (view["died"] and view["joined"]) for view in trainer.history.views)
    assert trainer.weights_sha256() == runs[1].weights_sha256() and trainer.history.views == runs[1].history.views
    assert trainer.history.last["samples"] == SAMPLES


@pytest.mark.parametrize("seed", range(12))
def test_random_joins_and_deaths(seed):
    """Each sample of an epoch is in one step of all ranks, whatever ranks come and go."""
    rng = np.random.default_rng(seed)
    name, p = rng.choice(["allreduce", "layerwise", "bfloat16"]), int(rng.integers(1, 5))
    joins = {int(step): int(rng.integers(1, 3)) for step in rng.choice(8, rng.integers(1, 4), replace=False)}
    most = p + sum(joins.values())
    dead = rng.choice(most, rng.integers(0, p), replace=False).tolist()
    deaths = {rank: gg.Death(step=int(rng.integers(0, 9)), after_messages=int(rng.integers(0, 9))) for rank in dead}
    trainer = trained(STRATEGIES[name](), p, joins=joins, deaths=deaths, detect=float(rng.choice([1e-9, 0.01])))
    assert len(set(trainer.weights_sha256())) == 1, (p, joins, deaths)
    more = trainer.history.last["samples"] - SAMPLES  # with fewer samples left than ranks, each has one all the same
    assert 0 <= more < trainer.size
    if more == 0:
        check_once(own_weights(trainer)[0], 1e-3 if name != "bfloat16" else 3e-2)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("deaths", [{}, {1: gg.Death(step=3, after_messages=2)}, {1: 6, 3: 7}])
def test_local_steps_go_on(name, deaths):
    """No sample is lost, and what was equal on all ranks is so again after the first step with newcomers."""
    make, compression = LOCAL[name]
    joins = {2: 1, 5: 2}
    how = {"optimizer": "momentum", "epochs": 2, "compression": compression, "deaths": deaths, "joins": joins}
    runs = [trained(make(), 3, **how) for _ in range(2)]
    trainer = runs[0]
    assert trainer.weights_sha256() == runs[1].weights_sha256()
    assert names(trainer, "joined") == [3, 4, 5] and sorted(names(trainer, "died")) == sorted(deaths)
    assert (own_weights(trainer) != 0).any(axis=0).all() and np.isfinite(own_weights(trainer)).all()
    own = [arenas(trainer, rank) for rank in range(trainer.size)]
    equal = [key for key in own[0] if key.startswith("outer") and "groups" not in name]
    equal += ["weight", "momentum"] if name == "mean of each step" else []
    equal += ["weight"] if name == "moves" else []
    for key in equal:
        for one in own[1:]:
            np.testing.assert_array_equal(one[key], own[0][key], key)
    assert [record["samples"] for record in trainer.history] == [SAMPLES] * 2


KINDS = {
    "allreduce": (gg.AllReduce(), None),
    "layerwise": (gg.LayerwiseAllReduce(), None),
    "compressed": (gg.LayerwiseAllReduce(), COMPRESSION),
    "means": (gg.PeriodicAllReduce(period=3), None),
    "moves": (gg.PeriodicAllReduce(period=3), COMPRESSION),
    "outer": (gg.DiLoCo(period=3), None),
    "hidden": (gg.DiLoCo(period=4, delay=2, fragments=2), None),
    "groups": (gg.NoLoCo(period=2), None),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_newcomer_has_its_donors_bits(name):
    """Weights, statistics, moments, outer weights and their momentum; and the step, which Adam counts."""
    strategy, compression = KINDS[name]
    rng, sees, steps = np.random.default_rng(1), Sees(), Steps()
    x, y = rng.standard_normal((SAMPLES, 1, 6, 6), np.float32), rng.standard_normal((SAMPLES, 1), np.float32)
    trainer = gg.Trainer(
        deep(),
        loss="mean_squared_error",
        optimizer=gg.Adam(lr=0.01),
        strategy=strategy,
        compression=compression,
        comm=gg.VirtualCluster(3, joins={4: 1, 9: 2}, deaths={0: 8}),
    )
    trainer.fit(x, y, epochs=3, batch_size=BATCH, progress=False, callbacks=[sees, steps])
    assert trainer.size == 5
    check_pairs(sees, zero=("residue", "base"))
    if name in ("allreduce", "layerwise", "compressed"):
        for first, *others in steps.states.values():
            for one in others:
                for key in first.keys() - {"residue"}:
                    np.testing.assert_array_equal(one[key], first[key], key)
