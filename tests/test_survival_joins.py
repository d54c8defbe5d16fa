"""Virtual ranks join while fit trains: each sample counts once, newcomers have their donors' bits, and runs repeat."""

from __future__ import annotations

import numpy as np
import pytest
from test_survival import SAMPLES, STRATEGIES, few_samples, linear, one_hot, own_weights, trained  # noqa: F401

import gossipgrad as gg


class Sees(gg.Callback):
    """Keeps the changes, and each newcomer's state beside its donor's."""

    def __init__(self):
        self.changes, self.base, self.pairs = [], {}, []

    def on_view(self, trainer, change):
        self.changes.append(change)
        ranks = change["ranks"]
        for rank in change["joined"]:
            old = [other for other in ranks if other not in change["joined"]]
            donor = next((other for other in old if other > rank), old[0])
            own, given = (trainer.rank_state(ranks.index(one)) for one in (rank, donor))
            self.pairs.append((own, given))
            self.base[rank] = next(iter(trainer.weights(ranks.index(rank)).values())).ravel().copy()


def check_pairs(sees, zero=()):
    """Three newcomers have their donors' bits, and zeros in the arenas `zero`."""
    assert len(sees.pairs) == 3
    for own, given in sees.pairs:
        assert own.keys() == given.keys() and any(np.any(one) for one in given["weight"].values())
        for arena in own:
            for parameter, value in own[arena].items():
                expected = given[arena][parameter]
                expected = np.zeros_like(expected) if arena in zero else expected
                np.testing.assert_array_equal(value, expected, f"{arena} {parameter}")


def fit(strategy, p, *, deaths=None, joins=None, epochs=1, batch_size=3, optimizer=None, samples=SAMPLES, **options):
    x, y = one_hot(samples)
    sees = Sees()
    trainer = gg.Trainer(
        linear(samples),
        loss="mean_squared_error",
        optimizer=optimizer or gg.SGD(lr=0.1, momentum=0.0),
        strategy=strategy,
        comm=gg.VirtualCluster(p, deaths=deaths, joins=joins, **options),
    )
    trainer.fit(x, y, epochs=epochs, batch_size=batch_size, progress=False, callbacks=[sees])
    return trainer, sees


# Deaths with the first join or before it, or of a newcomer: nothing that a dead rank did counts for any other.
CASES = [
    (1, None, {0: 1}),
    (1, None, {7: 3}),
    (2, None, {4: 1}),
    (3, None, {2: 1, 5: 2}),
    (2, {0: 2}, {3: 1}),
    (3, {0: 3, 1: 3}, {4: 2}),
    (3, {0: 1, 2: 3}, {4: 2, 6: 1}),
    (3, {3: 3}, {2: 1}),
    (2, {2: 2, 3: 2}, {2: 2, 9: 1}),
]


@pytest.mark.parametrize("p, deaths, joins", CASES)
def test_each_sample_is_trained_on_by_one_survivor(p, deaths, joins):
    """Without an exchange: what a rank has changed since its begin, newcomers since they have joined."""
    trainer, sees = fit(gg.NoExchange(), p, deaths=deaths, joins=joins)
    base = np.stack([sees.base.get(rank, np.zeros(SAMPLES, np.float32)) for rank in trainer.members])
    assert ((own_weights(trainer) != base).sum(axis=0) == 1).all()
    joined = [rank for change in sees.changes for rank in change["joined"]]
    assert joined == list(range(p, p + sum(joins.values())))
    everyone = set(range(p)) | set(joined)
    assert set(trainer.members) == everyone - set(deaths or ())
    assert trainer.size == len(trainer.members) == trainer.history.ranks


@pytest.mark.parametrize("name", STRATEGIES)
def test_joins_and_deaths_of_each_strategy(name):
    """No sample is lost, an epoch's record has each once, and runs repeat."""
    optimizer = gg.SGD(lr=0.1, momentum=0.9 if name == "quasi-global" else 0.0)
    how = {"deaths": {1: 4, 3: 9}, "joins": {3: 1, 6: 2}, "epochs": 2, "optimizer": optimizer}
    runs = [fit(STRATEGIES[name](), 3, **how)[0] for _ in range(2)]
    first, second = runs
    assert (own_weights(first) != 0).any(axis=0).all()
    assert first.history.weights_sha256 == second.history.weights_sha256
    assert first.history.views == second.history.views
    assert [(view["died"], view["joined"]) for view in first.history.views] == [([], [3]), ([1], [4, 5]), ([3], [])]
    assert [record["samples"] for record in first.history] == [SAMPLES] * 2


OPTIMIZERS = {"sgd": lambda: gg.SGD(lr=0.05, momentum=0.9), "adam": lambda: gg.Adam(lr=0.01)}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["weights+momentum", "gradients", "push-sum", "pull"])
def test_a_newcomer_has_its_donors_bits(name, strategy):
    """Weights, statistics of normalisation, moments; and the step, which Adam counts."""
    train, _ = gg.data.synthetic((1, 6, 6), 3, 120, 10)
    net = gg.Sequential([gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(3)], input=(1, 6, 6))
    sees = Sees()
    trainer = gg.Trainer(
        net,
        optimizer=OPTIMIZERS[name](),
        strategy=STRATEGIES[strategy](),
        comm=gg.VirtualCluster(3, joins={4: 1, 9: 2}, deaths={0: 8}),
    )
    trainer.fit(train, epochs=3, batch_size=6, progress=False, callbacks=[sees])
    check_pairs(sees)


def test_a_newcomer_goes_on_like_its_donor_in_the_next_epoch():
    """With the same samples, donor and newcomer would stay equal: on one sample a rank, in full steps, they do."""
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    trainer = gg.Trainer(
        gg.Sequential([gg.Linear(1)], input=(2,)),
        loss="mean_squared_error",
        optimizer=gg.Adam(lr=0.1, schedule=gg.schedules.Cosine(total=20)),
        strategy=gg.NoExchange(),
        comm=gg.VirtualCluster(1, joins={4: 1}),
    )
    trainer.fit(x, y, epochs=3, batch_size=1, progress=False)
    assert trainer.size == 2 and len(set(trainer.weights_sha256())) == 1


def test_compression_goes_on():
    """Copies that partners share begin anew on all ranks."""
    runs = []
    for _ in range(2):
        x, y = one_hot()
        trainer = gg.Trainer(
            linear(),
            loss="mean_squared_error",
            optimizer=gg.SGD(lr=0.1),
            strategy=gg.GossipGraD(exchange="weights", staleness=0),
            compression=gg.AdaComp(bin_size=8, dense_below=1, warmup=0),
            comm=gg.VirtualCluster(3, deaths={2: 8}, joins={5: 1}),
        )
        history = trainer.fit(x, y, epochs=3, batch_size=3, progress=False)
        assert trainer.size == 3 and history.last["train_loss"] < history.epochs[0]["train_loss"]
        runs.append(history.weights_sha256)
    assert runs[0] == runs[1]


def test_history_and_a_second_fit_go_on():
    x, y = one_hot()
    trainer, sees = fit(gg.GossipGraD(), 2, joins={3: 1, 12: 1}, compute_time=[1.0, 1.0, 2.0, 3.0])
    assert trainer.size == 3 and len(trainer.history.time_by_rank) == 3
    said = gg.training.survival.said(sees.changes[0])
    assert said == "step 3: rank 2 (new) has joined; 3 ranks go on"
    trainer.fit(x, y, validation=(x, y), epochs=2, batch_size=3, progress=False, validate_replicas=True)
    assert trainer.size == 4 and trainer.members == [0, 1, 2, 3]
    assert len(trainer.history.last["validation_replicas"]) == 4 and len(trainer.history.weights_sha256) == 4


def test_a_checkpoint_from_before_the_last_change_is_refused(tmp_path):
    x, y = one_hot()
    trainer = gg.Trainer(linear(), loss="mean_squared_error", comm=gg.VirtualCluster(2, joins={3: 1}))
    trainer.save(tmp_path / "early.safetensors")
    trainer.fit(x, y, epochs=1, batch_size=3, progress=False)
    with pytest.raises(gg.CheckpointError, match="is of step 0, and the ranks have changed at step 3"):
        trainer.fit(x, y, epochs=2, batch_size=3, progress=False, resume=tmp_path / "early.safetensors")


class Grows(gg.Callback):
    """Batches for the ranks that are left."""

    every = 1

    def on_step(self, trainer, step):
        if step == 3:
            trainer.set_batch_size(SAMPLES // 2)


@pytest.mark.parametrize(
    "p, deaths, joins, batch, size",
    [(2, None, {1: 2}, 20, 15), (3, None, {2: 1}, 20, 15), (3, {2: 1}, {4: 1}, 3, 20)],
    ids=["within an epoch", "between epochs", "after a death"],
)
def test_batches_become_smaller_where_more_ranks_have_less_than_one(p, deaths, joins, batch, size):
    """Batches that were set for fewer ranks, too. An epoch's record still has each sample once."""
    x, y = one_hot()
    trainer = gg.Trainer(
        linear(),
        loss="mean_squared_error",
        strategy=gg.NoExchange(),
        comm=gg.VirtualCluster(p, deaths=deaths, joins=joins),
    )
    grows = [Grows()] if deaths else []
    history = trainer.fit(x, y, epochs=4, batch_size=batch, progress=False, callbacks=grows)
    changes = history.settings["batch_size_changes"]
    (step,) = (view["step"] for view in history.views if view["joined"])
    assert trainer.batch_size == size and changes[len(grows) :] == [{"step": step, "batch_size": size}]
    assert [record["samples"] for record in history] == [SAMPLES] * 4


def test_ranks_that_never_come_change_nothing():
    plain, _ = trained(gg.GossipGraD(), 3, None)
    late, sees = fit(gg.GossipGraD(), 3, joins={10**6: 2})
    assert plain.weights_sha256() == late.weights_sha256() and not sees.changes


def test_refusals():
    x, y = one_hot()
    cluster = gg.VirtualCluster(3, joins={2: 1}, deaths={3: 5})
    with pytest.raises(ValueError, match="ranks that may die: not with the strategy overlapped-averaging"):
        gg.Trainer(linear(), loss="mean_squared_error", strategy=gg.OverlappedAveraging(), comm=cluster)
    with pytest.raises(ValueError, match="joins=.*allowed for a gossipgrad.Trainer"):
        gg.Exchange({"w": np.zeros(2)}, comm=cluster)
    with pytest.raises(ValueError, match="joins=.*allowed for a gossipgrad.Trainer"):
        gg.Team(gg.VirtualCluster(3, joins={2: 1}))
    for joins, message in (({-1: 1}, "step in joins=-1"), ({3: 0}, r"joins\[3\]=0"), ({3: 4096}, r"joins\[3\]=4096")):
        with pytest.raises(ValueError, match=message):
            gg.VirtualCluster(3, joins=joins)
    with pytest.raises(ValueError, match="rank in deaths=4"):
        gg.VirtualCluster(3, joins={2: 1}, deaths={4: 1})
    with pytest.raises(ValueError, match="one number, or 4, one a rank"):
        gg.VirtualCluster(3, joins={2: 1}, compute_time=[1.0, 1.0, 1.0])
    assert gg.VirtualCluster.from_settings(cluster.settings()) == cluster
    assert "joins" not in gg.VirtualCluster(3).settings()
    trainer = gg.Trainer(linear(), loss="mean_squared_error", comm=cluster)
    with pytest.raises(ValueError, match="train has 3 samples for 4 ranks; allowed: at least one a rank"):
        trainer.fit(x[:3], y[:3], batch_size=1, progress=False)
