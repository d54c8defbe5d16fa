"""GossipGraD(allreduce_steps=N): an all-reduce in the first N steps, gossip from there on."""

from types import SimpleNamespace

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import bench, strategies
from gossipgrad.training.replicas import Replicas

RANKS, BATCH, STEPS = 4, 2, 5  # of an epoch


def network():
    layers = [gg.Conv2d(4, 3), gg.BatchNorm2d(), gg.ReLU(), gg.Flatten(), gg.Linear(3)]
    return gg.Sequential(layers, input=(1, 5, 5))


def samples():
    rng = np.random.default_rng(0)
    count = RANKS * BATCH * STEPS
    return rng.random((count, 1, 5, 5), np.float32), rng.integers(0, 3, count).astype(np.int32)


def trainer(strategy, optimizer=None, **how):
    return gg.Trainer(
        network(),
        optimizer=optimizer or gg.SGD(lr=0.1, momentum=0.9),
        strategy=strategy,
        comm=gg.VirtualCluster(RANKS),
        **how,
    )


def fit(strategy, epochs=1, **how):
    made = trainer(strategy, **how)
    made.fit(*samples(), epochs=epochs, batch_size=BATCH, progress=False)
    return made


def train(made, steps):
    """Steps on fixed batches."""
    x, y = samples()
    for _ in range(steps):
        at = [slice(rank * BATCH, (rank + 1) * BATCH) for rank in range(RANKS)]
        made.train_step([x[one] for one in at], [y[one] for one in at])


OPTIONS = [
    {},
    {"staleness": 1, "exchange": "weights"},
    {"slices": 2},
    {"push_sum": True},
    {"hierarchical": True, "ranks_per_node": 2},
    {"topology": [[1, 2, 3, 0]]},
    {"wire_dtype": "bfloat16", "bucket_bytes": 1, "chunk_bytes": 64},
]


@pytest.mark.core(99)
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize("optimizer", [gg.SGD(lr=0.1, momentum=0.9), gg.Adam(lr=0.01)], ids=["sgd", "adam"])
def test_it_is_an_allreduce_and_then_gossip_to_the_bit(options, optimizer):
    shared = {key: options[key] for key in ("wire_dtype", "bucket_bytes", "chunk_bytes") if key in options}
    first = trainer(gg.LayerwiseAllReduce(**shared), optimizer)
    both = trainer(gg.GossipGraD(allreduce_steps=3, **options), optimizer)
    later = trainer(gg.GossipGraD(**options), optimizer)
    train(first, 3)
    train(both, 3)
    assert len(set(both.weights_sha256())) == 1
    assert both.weights_sha256() == first.weights_sha256()
    later.set_state(*first.state())
    train(later, 4)
    train(both, 4)
    if not options.get("hierarchical"):  # two nodes are equal after each exchange
        assert len(set(both.weights_sha256())) > 1
    assert both.weights_sha256() == later.weights_sha256()


@pytest.mark.core(99)
def test_fit_changes_within_an_epoch():
    made = trainer(gg.GossipGraD(allreduce_steps=3))
    equal = {}

    class Look(gg.Callback):
        every = 1

        def on_step(self, trainer, step):
            equal[step] = len(set(trainer.weights_sha256())) == 1

    history = made.fit(*samples(), epochs=2, batch_size=BATCH, callbacks=[Look()], progress=False)
    assert [step for step, one in equal.items() if one] == [1, 2, 3]
    assert len(equal) == 2 * STEPS
    assert history.settings["allreduce_steps"] == 3
    assert made.weights_sha256() == fit(gg.GossipGraD(allreduce_steps=3), 2).weights_sha256()


@pytest.mark.core(99)
def test_it_may_change_never_or_at_once():
    assert fit(gg.GossipGraD(allreduce_steps=99)).weights_sha256() == fit(gg.AllReduce()).weights_sha256()
    assert fit(gg.GossipGraD(allreduce_steps=0)).weights_sha256() == fit(gg.GossipGraD()).weights_sha256()


@pytest.mark.core(99)
@pytest.mark.parametrize("saved", [2, 3, 4, 5, 7])
def test_it_resumes_to_the_bit(saved, tmp_path):
    strategy, path = gg.GossipGraD(allreduce_steps=3), str(tmp_path / "saved.safetensors")

    class Save(gg.Callback):
        every = 1

        def on_step(self, trainer, step):
            if step == saved:
                trainer.save(path)

    whole = trainer(strategy)
    whole.fit(*samples(), epochs=2, batch_size=BATCH, callbacks=[Save()], progress=False)
    resumed = trainer(strategy)
    resumed.fit(*samples(), epochs=2, batch_size=BATCH, resume=path, progress=False)
    assert resumed.weights_sha256() == whole.weights_sha256()
    loaded = gg.Trainer.load(path, comm=gg.VirtualCluster(RANKS))
    assert loaded.strategy == strategy
    assert (len(set(loaded.weights_sha256())) == 1) == (saved <= 3)


@pytest.mark.core(99)
def test_a_remade_trainer_is_in_its_step():
    made = trainer(gg.GossipGraD(allreduce_steps=3))
    train(made, 4)
    before = made.weights_sha256()
    made.set_exchange("weights")
    assert made.weights_sha256() == before
    assert len(set(before)) > 1


@pytest.mark.core(99)
def test_no_few_samples_are_warned_of(recwarn):
    fit(gg.GossipGraD(allreduce_steps=3))
    assert not [one for one in recwarn if "accuracy by gossip" in str(one.message)]
    auto = strategies.auto
    assert auto.few_samples(gg.GossipGraD(), "weights", 1, 64, 64, "batch", 1) is not None
    assert auto.few_samples(gg.GossipGraD(allreduce_steps=3), "weights", 1, 64, 64, "batch", 1) is None


@pytest.mark.core(99)
def test_where_it_is_refused():
    first = gg.GossipGraD(allreduce_steps=3)
    with pytest.raises(ValueError, match=r"allreduce_steps=-1"):
        gg.GossipGraD(allreduce_steps=-1)
    with pytest.raises(TypeError, match=r"allreduce_steps"):
        gg.GossipGraD(allreduce_steps=0.5)
    with pytest.raises(ValueError, match=r"allreduce_steps=3: allowed with gossipgrad\.Trainer"):
        gg.Exchange({"w": np.zeros(3, np.float32)}, strategy=first)
    with pytest.raises(ValueError, match=r"allreduce_steps=3 with compression='adacomp': .* allowed: 0"):
        trainer(first, compression=gg.AdaComp())
    here = SimpleNamespace(survives=True), SimpleNamespace(check_survival=lambda: None)
    with pytest.raises(ValueError, match=r"ranks that may die: not with allreduce_steps"):
        Replicas.check_survival(SimpleNamespace(team=here[0], core=here[1], apoptosis=None, strategy=first))
    with pytest.raises(ValueError, match=r"allreduce_steps=3: the steps after these are timed; allowed: 0"):
        bench.exchange(first)
    torch = pytest.importorskip("torch")
    import gossipgrad.torch

    with pytest.raises(ValueError, match=r"allreduce_steps=3: allowed with gossipgrad\.Trainer"):
        gossipgrad.torch.replicas(lambda: torch.nn.Linear(2, 2), 2, gg.SGD(lr=0.1), strategy=first)
