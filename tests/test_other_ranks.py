"""A checkpoint that goes on on another number of ranks: nobody has learnt alone what the others go on without."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.state import checkpoint_files
from gossipgrad.strategies import Strategy

COMPRESSION = gg.AdaComp(bin_size=20, dense_below=1, warmup=0)


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 48, 30, noise=0.3)


def make(p, strategy=None, optimizer=None, **options):
    net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
    optimizer = optimizer or gg.SGD(lr=0.05, momentum=0.9)
    return gg.Trainer(net, optimizer=optimizer, strategy=strategy, comm=gg.VirtualCluster(p), seed=3, **options)


def fit(trainer, data, epochs, batch=4, **options):
    return trainer.fit(data[0], data[1], epochs=epochs, batch_size=batch, progress=False, **options)


def gone_on(trainer, path, data, epochs=2, **options):
    with pytest.warns(UserWarning, match="saved on .* here are"):
        return fit(trainer, data, epochs, resume=path, **options)


def means(path, workers):
    """Of all arrays in the ranks' files, by arena and name, in float64."""
    description = checkpoint_files.read(path)[1]
    parts = [checkpoint_files.read_rank(path, description, rank) for rank in range(workers)]
    return {
        arena: {name: np.mean([part[arena][name].astype(np.float64) for part in parts], axis=0) for name in arrays}
        for arena, arrays in parts[0].items()
    }


def assert_close(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("optimizer", [gg.SGD(lr=0.05, momentum=0.9), gg.Adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize(
    "strategy", [gg.AllReduce(), gg.GossipGraD(), gg.DiLoCo(period=2), gg.NoLoCo(period=2)], ids=repr
)
def test_all_begin_with_the_mean(strategy: Strategy, p, optimizer, data, tmp_path):
    before = make(3, strategy, optimizer)
    fit(before, data, 2)
    before.save(tmp_path / "c")
    expected, consensus = means(tmp_path / "c", 3), before.consensus_weights()
    after = make(p, strategy, optimizer)
    with pytest.warns(UserWarning, match="nothing is trained"):
        gone_on(after, tmp_path / "c", data)
    assert after.step == before.step and after.epoch == 2
    for local in range(p):
        state = after.rank_state(local)
        assert state.keys() == expected.keys()
        for arena, arrays in state.items():
            assert_close(arrays, consensus if arena == "weight" else expected[arena])
    fit(after, data, 1)


@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.PeriodicAllReduce(period=4)], ids=repr)
@pytest.mark.parametrize("p", [3, 4])
def test_what_was_not_sent_still_is(p, strategy, data, tmp_path):
    """Residues hold each rank's share of what was to be sent: their sum stays what it was. A base is weights."""
    before = make(2, strategy, compression=COMPRESSION)
    fit(before, data, 2)
    before.save(tmp_path / "c")
    after = make(p, strategy, compression=COMPRESSION)
    with pytest.warns(UserWarning, match="nothing is trained"):
        gone_on(after, tmp_path / "c", data)
    mean = means(tmp_path / "c", 2)
    assert max(np.abs(array).max() for array in mean["residue"].values()) > 0
    for local in range(p):
        state = after.rank_state(local)
        assert_close(state["residue"], {name: array * 2 / p for name, array in mean["residue"].items()})
        assert_close(state.get("base", {}), mean.get("base", {}))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_gradients_of_the_whole_set_do_not_care(p, data, tmp_path):
    """With one step an epoch, of all samples, training is gradient descent on any number of ranks."""
    n = len(data[0])
    whole = make(1)
    fit(whole, data, 6, n)
    before = make(3, gg.AllReduce())
    fit(before, data, 3, n // 3)
    before.save(tmp_path / "c")
    after = make(p, gg.AllReduce())
    with pytest.warns(UserWarning, match="batch_size"):  # another one
        gone_on(after, tmp_path / "c", data, 6, batch=n // p)
    assert after.step == 6
    for name, array in whole.consensus_weights().items():
        np.testing.assert_allclose(after.consensus_weights()[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


EVERY: list[tuple[Strategy, gg.AdaComp | None]] = [
    (gg.ParameterServer(), None),
    (gg.ParameterServer(dedicated=True), None),
    (gg.ParameterServer(dedicated=True), COMPRESSION),
    (gg.ElasticAveraging(period=3), COMPRESSION),
    (gg.GossipGraD(topology="ring"), COMPRESSION),
    (gg.GossipGraD(slices=3), None),
    (gg.PeriodicAllReduce(period=3), COMPRESSION),
    (gg.LayerwiseAllReduce(), COMPRESSION),
    (gg.OverlappedAveraging(chunk_bytes=64), None),
    (gg.PullGossip(), None),
    (gg.PushGossip(push_sum=True), None),
    (gg.NoExchange(), None),
]


@pytest.mark.parametrize(("strategy", "compression"), EVERY, ids=repr)
@pytest.mark.parametrize(("saved", "p"), [(2, 5), (4, 3)])
def test_every_strategy_goes_on(strategy, compression, saved, p, data, tmp_path):
    before = make(saved, strategy, compression=compression)
    first = fit(before, data, 3)
    before.save(tmp_path / "c")
    after = make(p, strategy, compression=compression)
    history = gone_on(after, tmp_path / "c", data, 6)
    assert history.epochs[:3] == first.epochs and len(history.epochs) == 6
    assert history["train_loss"][-1] < first["train_loss"][0]
    again = gg.Trainer.load(tmp_path / "c", comm=gg.VirtualCluster(saved))  # as many: to the bit, without a word
    assert again.weights_sha256() == before.weights_sha256()


def test_carried_state_begins_anew(tmp_path):
    def made(p):
        tokens = gg.Input((4,), dtype="int32")
        net = gg.Model(tokens, gg.Linear(7)(gg.LSTM(5, stateful=True)(gg.Embedding(7, 4)(tokens))))
        return gg.Trainer(net, comm=gg.VirtualCluster(p), seed=3)

    tokens = np.random.default_rng(0).integers(7, size=(2, 3, 5))
    before = made(2)
    before.train_step([one[:, :-1] for one in tokens], [one[:, 1:] for one in tokens])
    before.save(tmp_path / "c")
    assert all("carried" in before.rank_state(local) for local in range(2))
    with pytest.warns(UserWarning, match="saved on 2 ranks, here are 3"):
        after = gg.Trainer.load(tmp_path / "c", comm=gg.VirtualCluster(3))
    assert after.step == 1
    for local in range(3):
        assert not any(array.any() for array in after.rank_state(local).get("carried", {}).values())


def test_within_an_epoch_as_many_are_needed(data, tmp_path):
    class Save(gg.Callback):
        every = 3

        def on_step(self, trainer, step):
            trainer.save(tmp_path / "c")

    fit(make(3), data, 1, callbacks=[Save()])
    with pytest.raises(gg.CheckpointError, match="in the middle of epoch 1, on 3 ranks; .* here are 2.*load_weights"):
        fit(make(2), data, 2, resume=tmp_path / "c")


def test_mpi_and_a_virtual_cluster_go_on_alike(data, tmp_path, mpirun):
    before = make(3, gg.AllReduce(), compression=COMPRESSION)
    fit(before, data, 2)
    before.save(tmp_path / "c")
    history = gone_on(make(2, gg.AllReduce(), compression=COMPRESSION), tmp_path / "c", data, 4)
    script = tmp_path / "resume.py"
    script.write_text(
        f"""
import gossipgrad as gg
train, test = gg.data.synthetic((6,), 3, 48, 30, noise=0.3)
net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
compression = gg.AdaComp(bin_size=20, dense_below=1, warmup=0)
optimizer = gg.SGD(lr=0.05, momentum=0.9)
trainer = gg.Trainer(net, seed=3, optimizer=optimizer, strategy=gg.AllReduce(), compression=compression)
history = trainer.fit(train, test, epochs=4, batch_size=4, progress=False, resume={str(tmp_path / "c")!r})
if trainer.rank == 0:
    history.write({str(tmp_path / "r.json")!r})
"""
    )
    mpirun(2, [script])
    assert json.loads((tmp_path / "r.json").read_text())["weights_sha256"] == history.weights_sha256
