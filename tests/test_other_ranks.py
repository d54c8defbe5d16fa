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


class Saving(gg.Callback):
    """Saves after a step, and stops there."""

    def __init__(self, path, step):
        self.path, self.at, self.every = path, step, step

    def on_step(self, trainer, step):
        if step == self.at:
            trainer.save(self.path)
            raise KeyboardInterrupt


def one_weight_each(samples, targets=None):
    """Sample i alone moves weight i: a weight that is still 0 has not been trained on."""
    x = np.eye(samples, dtype=np.float32)
    y = np.full((samples, 1), 4, np.float32) if targets is None else targets
    return gg.Dataset(x, y)


def trainer_of_weights(p, samples, strategy=None, **options):
    net = gg.Sequential([gg.Linear(1, bias=False)], input=(samples,))
    net.load_weights({name: np.zeros_like(array) for name, array in net.weights().items()})
    options = {"seed": 3, "optimizer": gg.SGD(lr=0.1), "strategy": strategy, "comm": gg.VirtualCluster(p)} | options
    return gg.Trainer(net, loss="mean_squared_error", **options)


def interrupted(trainer, data, path, step, **options):
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, progress=False, callbacks=[Saving(path, step)], **options)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("p", "q"), [(3, 2), (2, 3), (4, 1), (1, 4), (5, 3)])
def test_the_rest_of_an_epoch_goes_on_on_other_ranks(p, q, shuffle, tmp_path):
    """The samples that nobody has read are read once."""
    data, path = one_weight_each(59), tmp_path / "c"
    with trainer_of_weights(p, 59, gg.AllReduce()) as before:
        interrupted(before, data, path, 2, batch_size=4, epochs=2, shuffle=shuffle)
        read = {i for i, weight in enumerate(next(iter(before.weights().values())).ravel()) if weight}
    assert len(read) == 2 * 4 * p
    with trainer_of_weights(q, 59, gg.AllReduce()) as after, pytest.warns(UserWarning, match="here are"):
        history = after.fit(data, progress=False, batch_size=3, epochs=1, shuffle=shuffle, resume=path)
        weights = next(iter(after.weights().values())).ravel()
        assert (weights != 0).all()
        assert history.last["samples"] == 59
        left, batch = 59 - len(read), 3 * q
        assert history.last["steps"] == 2 + -(-left // batch)
        # Plain SGD on the mean over a step's samples: each weight has the step of its own.
        moved = {round(float(weight), 6) for i, weight in enumerate(weights) if i in read}
        assert moved == {round(0.1 * 2 * 4 / (4 * p), 6)}


def test_what_goes_back_after_deaths_is_in_a_checkpoint(tmp_path):
    """Two ranks die one after the other; the second one's samples of two views are left."""
    data, path = one_weight_each(61), tmp_path / "c"
    deaths = gg.VirtualCluster(5, deaths={4: 0, 2: 1}, compute_time=1.0, detect=0.4)
    with trainer_of_weights(5, 61, gg.NoExchange(), comm=deaths) as before:
        interrupted(before, data, path, 4, batch_size=2, epochs=1)
        divisions = before.core.position()["divisions"]
        assert [[2, 2, 2, 2, 0], [2, 2, 0, 2], [-1, 2, 0]] == divisions
    with trainer_of_weights(2, 61, gg.NoExchange()) as after, pytest.warns(UserWarning, match="here are"):
        history = after.fit(data, progress=False, batch_size=3, epochs=1, resume=path)
        moved = [next(iter(after.weights(rank).values())).ravel() != 0 for rank in range(2)]
        assert history.last["samples"] == 61 and (moved[0] | moved[1]).all()


def test_an_epoch_on_three_numbers_of_ranks(tmp_path):
    """With a change of the batch size in between; the next epoch is whole."""
    data, path = one_weight_each(61), tmp_path / "c"
    with trainer_of_weights(4, 61) as first:
        interrupted(first, data, path, 3, batch_size=2, epochs=3)
    with trainer_of_weights(3, 61) as second, pytest.warns(UserWarning, match="here are"):
        interrupted(second, data, path, 5, batch_size=3, epochs=3, resume=path)

    class Smaller(gg.Callback):
        every = 6

        def on_step(self, trainer, step):
            if step == 6:
                trainer.set_batch_size(2)

    with trainer_of_weights(2, 61) as third, pytest.warns(UserWarning, match="here are"):
        history = third.fit(data, progress=False, batch_size=4, epochs=3, resume=path, callbacks=[Smaller()])
        assert [one["samples"] for one in history.epochs] == [61, 61, 61]
        assert [one["steps"] for one in history.epochs] == [6 + -(-(61 - 24 - 18 - 8) // 4), 16, 16]
        assert (next(iter(third.weights().values())) != 0).all()


@pytest.mark.parametrize("step", [3, 5, 7])
def test_what_goes_on_on_other_ranks_is_saved_and_resumed_to_the_bit(step, data, tmp_path):
    def go_on(path, epochs, **options):
        trainer = make(2, gg.GossipGraD())
        return trainer, lambda: gone_on(trainer, path, data, epochs, **options)

    with make(3, gg.GossipGraD()) as before:
        interrupted(before, data[0], tmp_path / "a", 2, batch_size=4, epochs=2)
    whole, run = go_on(tmp_path / "a", 2, callbacks=[gg.Checkpoint(tmp_path / "unread", every=step)])
    run()
    part, run = go_on(tmp_path / "a", 2, callbacks=[Saving(tmp_path / "b", step)])
    with pytest.raises(KeyboardInterrupt):
        run()
    with make(2, gg.GossipGraD()) as again:
        history = fit(again, data, 2, resume=tmp_path / "b")
        for name, array in again.weights().items():
            np.testing.assert_array_equal(array, whole.weights()[name], err_msg=name)
        assert [one["samples"] for one in history.epochs] == [48, 48]
    whole.close(), part.close()


def test_an_epoch_whose_record_was_left_ends_on_other_ranks(tmp_path):
    """With drop_last: what the first ranks left out stays out."""
    data, path = one_weight_each(22), tmp_path / "c"
    with trainer_of_weights(3, 22) as before:
        interrupted(before, data, path, 2, batch_size=3, epochs=1, drop_last=True)

    class Ends(gg.Callback):
        def on_epoch_end(self, trainer, record):
            assert record["epoch"] > 1 or trainer.core.position()["steps"] == 2

    with trainer_of_weights(2, 22) as after, pytest.warns(UserWarning, match="here are"):
        options = {"batch_size": 2, "epochs": 2, "drop_last": True, "callbacks": [Ends()]}
        history = after.fit(data, progress=False, resume=path, **options)
        assert [one["samples"] for one in history.epochs] == [18, 20]


def test_what_cannot_go_on_on_other_ranks_within_an_epoch(data, tmp_path):
    with make(3, gg.GossipGraD(shuffle_samples=True)) as before:
        interrupted(before, data[0], tmp_path / "c", 2, batch_size=4)
    words = "shuffle_samples, in the middle of epoch 1, on 3 ranks; here are 2.*load_weights"
    with make(2, gg.GossipGraD(shuffle_samples=True)) as after, pytest.raises(gg.CheckpointError, match=words):
        fit(after, data, 2, resume=tmp_path / "c")


def test_mpi_and_a_virtual_cluster_go_on_alike(data, tmp_path, mpirun):
    """In the middle of an epoch."""
    before = make(3, gg.AllReduce(), compression=COMPRESSION)
    interrupted(before, data[0], tmp_path / "c", 6, batch_size=4, epochs=2)
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
