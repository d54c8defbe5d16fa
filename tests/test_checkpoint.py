"""Checkpoints: resuming equals never having stopped, and what does not fit is refused."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.state import checkpoint_files, safetensors


def net(width=8, activation=None, rate=0.2):
    layers = [gg.Linear(width), activation or gg.Tanh(), gg.Dropout(rate), gg.Linear(3)]
    return gg.Sequential(layers, input=(6,), name="small")


OPTIONS = {
    "optimizer": gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3, schedule=gg.schedules.Cosine(warmup=3)),
    "seed": 11,
}


def make(p=3, **options):
    return gg.Trainer(net(), **(OPTIONS | {"comm": gg.VirtualCluster(p)} | options))


@pytest.fixture(scope="module")
def data():
    return gg.data.synthetic((6,), 3, 100, 30, noise=0.3)


def fit(trainer, data, epochs, **options):
    return trainer.fit(data[0], data[1], epochs=epochs, batch_size=8, progress=False, **options)


STRATEGIES = [gg.GossipGraD(), gg.GossipGraD(staleness=1, topology="cube"), gg.AllReduce(), gg.NoExchange()]
STRATEGIES += [gg.GossipGraD(shuffle_samples=True)]
STRATEGIES += [gg.GossipGraD(wire_dtype="bfloat16"), gg.GossipGraD(wire_dtype="bfloat16", exchange="gradients")]
STRATEGIES += [gg.DiLoCo(period=4, fragments=3), gg.NoLoCo(period=3), gg.QuasiGlobal(topology="ring")]
STRATEGIES += [gg.LayerwiseAllReduce(), gg.PeriodicAllReduce(), gg.PeriodicAllReduce(period=7)]
STRATEGIES += [gg.OverlappedAveraging(chunk_bytes=64)]
STRATEGIES += [gg.ElasticAveraging(period=3), gg.ElasticAveraging(synchronous=False), gg.ParameterServer(period=3)]
STRATEGIES += [gg.GossipGraD(topology="random"), gg.GossipGraD(topology="ring", staleness=1)]
STRATEGIES += [gg.PullGossip(), gg.PushGossip(push_sum=True)]
# Of 20 steps the last is one that averages with log2 of 3 ranks, and is none with 7.
SAME_ON_ALL = (gg.AllReduce(), gg.LayerwiseAllReduce(), gg.PeriodicAllReduce(), gg.OverlappedAveraging(chunk_bytes=64))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_resuming_equals_never_having_stopped(strategy, data, tmp_path):
    whole = fit(make(strategy=strategy), data, 4)

    class Stop(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.save(tmp_path / "c.safetensors")
            trainer.stop = record["epoch"] == 2

    fit(make(strategy=strategy), data, 4, callbacks=[Stop()])
    rest = make(strategy=strategy)
    history = fit(rest, data, 4, resume=tmp_path / "c.safetensors")
    assert history.weights_sha256 == whole.weights_sha256
    assert (len(set(history.weights_sha256)) == 1) == (strategy in SAME_ON_ALL)
    for key in ("train_loss", "validation.loss", "consensus_distance", "bytes_sent"):
        assert history[key] == whole[key], key


NOBODY_WAITS = [gg.PullGossip(), gg.PushGossip(), gg.PushGossip(push_sum=True), gg.ElasticAveraging(synchronous=False)]
NOBODY_WAITS += [gg.ParameterServer(), gg.ParameterServer(period=3)]
NETWORKS = {
    "free": {},
    "latency": {"latency": 1e-7},
    "slow": {"latency": 1e-6, "bandwidth": 1e9, "straggler": gg.Straggler(0.2, 1e-6)},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("strategy", NOBODY_WAITS, ids=repr)
def test_virtual_clocks_go_on(strategy, network, tmp_path):
    """What has arrived when depends on the clocks, which are rounded."""
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((71, 5)).astype(np.float32), generator.integers(0, 3, 71)

    def trained(epochs, **options):
        net = gg.Sequential([gg.Linear(17), gg.Linear(5), gg.Linear(3)], input=(5,))
        trainer = gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(8, **NETWORKS[network]), tune=False)
        history = trainer.fit(x, y, epochs=epochs, batch_size=2, progress=False, **options)
        times = trainer.team.clocks()
        trainer.save(tmp_path / "c")
        assert trainer.team.clocks() == times  # to save takes no time
        return history.weights_sha256, times

    whole = trained(3)
    trained(1)
    assert trained(3, resume=tmp_path / "c") == whole


class Interrupt(gg.Callback):
    """Ctrl-C in the middle of an epoch, which one process raises at once."""

    every = 3

    def on_step(self, trainer, step):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("comm", [None, gg.VirtualCluster(3)], ids=["one rank", "virtual"])
def test_an_interrupted_epoch_goes_on_from_a_save(comm, data, tmp_path):
    whole, first, rest = (make(comm=comm) for _ in range(3))
    fit(whole, data, 2)
    with pytest.raises(KeyboardInterrupt):
        fit(first, data, 2, callbacks=[Interrupt()])
    assert (first.epoch, first.step) == (0, 3)
    first.save(tmp_path / "c")
    fit(rest, data, 2, resume=tmp_path / "c")
    assert (rest.step, rest.weights_sha256()) == (whole.step, whole.weights_sha256())
    with pytest.warns(UserWarning, match="3 steps of epoch 1 had been made, and without resume= it begins anew"):
        fit(first, data, 1)
    assert first.step == 3 + whole.step // 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("comm", [None, gg.VirtualCluster(3)], ids=["one rank", "virtual"])
def test_an_error_behind_the_last_step_of_an_epoch_goes_on_from_a_save(kind, comm, data, tmp_path):
    """No step is left, and the epoch's record has not been made."""
    fails = []

    def zero(outputs, targets):
        if fails:
            raise fails.pop()
        return np.zeros(len(outputs), np.float32)

    whole, first, rest = (make(comm=comm, metrics=[zero]) for _ in range(3))
    history = fit(whole, data, 2)
    fails.append(kind("on purpose"))
    with pytest.raises(kind):
        fit(first, data, 2)
    assert (first.epoch, first.step) == (0, whole.step // 2)
    first.save(tmp_path / "c")
    again = fit(rest, data, 2, resume=tmp_path / "c")
    assert (rest.step, again.weights_sha256) == (whole.step, history.weights_sha256)
    assert again["train_loss"] == history["train_loss"] and again["bytes_sent"] == history["bytes_sent"]


def test_a_save_within_an_epoch_says_so(data, tmp_path):
    """Where nothing is left to train."""

    class Save(gg.Callback):
        every = 8  # of epochs of 5 steps

        def on_step(self, trainer, step):
            trainer.save(tmp_path / "c")

    fit(make(), data, 2, callbacks=[Save()])
    with pytest.warns(UserWarning, match="saved after step 8, in epoch 2, and epochs=1 is all that is wanted; nothing"):
        fit(make(), data, 1, resume=tmp_path / "c")


def test_load_computes_as_the_checkpoint(tmp_path, data):
    trainer = make(1, conv_algorithm="direct")
    fit(trainer, data, 1)
    trainer.save(tmp_path / "c")
    assert gg.Trainer.load(tmp_path / "c").conv_algorithm == "direct"
    assert gg.Trainer.load(tmp_path / "c", conv_algorithm="winograd").conv_algorithm == "winograd"
    with pytest.raises(ValueError, match="dtype='half': allowed"):
        gg.Trainer.load(tmp_path / "c", dtype="half")


def test_load_rebuilds_everything(data, tmp_path):
    trainer = make(strategy=gg.GossipGraD(rotate=False))
    fit(trainer, data, 2)
    trainer.save(tmp_path / "c")
    again = gg.Trainer.load(tmp_path / "c")
    assert (again.size, again.step, again.epoch, again.seed) == (3, trainer.step, 2, 11)
    assert again.strategy == trainer.strategy and again.optimizer == trainer.optimizer
    assert again.weights_sha256() == trainer.weights_sha256()
    for r in range(3):
        momentum = again.momentum(r)
        assert all(np.array_equal(momentum[k], v) for k, v in trainer.momentum(r).items())
    assert again.evaluate(data[1]) == trainer.evaluate(data[1])
    assert fit(again, data, 1)["train_loss"][:2] == trainer.history["train_loss"]


def test_the_consensus_weights_are_a_plain_safetensors_file(data, tmp_path):
    trainer = make(strategy=gg.NoExchange())
    fit(trainer, data, 1)
    path = tmp_path / "c.safetensors"
    trainer.save(path)
    mean = {k: np.mean([trainer.weights(r)[k] for r in range(3)], axis=0) for k in trainer.weights()}
    other = net()
    other.load_weights(path)
    assert all(np.allclose(other.weights()[k], mean[k], atol=1e-6) for k in mean)
    reader = pytest.importorskip("safetensors.numpy")
    arrays = reader.load_file(path)
    assert all(np.array_equal(arrays[k], other.weights()[k]) for k in mean) and set(arrays) == set(mean)


def test_files_of_others_are_read(tmp_path):
    writer = pytest.importorskip("safetensors.numpy")
    arrays = {"b": np.arange(6, dtype=np.float64).reshape(2, 3), "a": np.float16([1, 2]), "n": np.int64([3])}
    arrays |= {
        "mask": np.array([True, False]),
        "large": np.uint64([2**64 - 1]),
        "u": np.uint32([7]),
        "v": np.uint16([8]),
    }
    writer.save_file(arrays, tmp_path / "f", {"about": "x"})
    found, metadata = safetensors.read(tmp_path / "f")
    assert metadata == {"about": "x"} and set(found) == set(arrays)
    assert all(np.array_equal(found[k], v) and found[k].dtype == v.dtype for k, v in arrays.items())


def test_saving_replaces_and_leaves_nothing_else(data, tmp_path):
    trainer = make()
    path = tmp_path / "c.safetensors"
    for epochs in (1, 1):
        fit(trainer, data, epochs)
        trainer.save(path)
    trainer.save(path)
    assert sorted(os.listdir(tmp_path)) == ["c.safetensors", "c.safetensors.state"]
    states = os.listdir(f"{path}.state")
    assert len(states) == 1 and sorted(os.listdir(f"{path}.state/{states[0]}")) == [
        f"rank-{r:05}.safetensors" for r in range(3)
    ]


def test_no_folder_is_made_for_a_checkpoint(tmp_path, monkeypatch):
    """By no way of saving: a wrong path is told, not made true."""
    path = tmp_path / "missing" / "c"
    with pytest.raises(gg.CheckpointError, match="missing/c: no such folder: .*missing'"):
        make().save(path)
    assert not os.listdir(tmp_path)
    monkeypatch.chdir(tmp_path)
    make().save("c")
    assert sorted(os.listdir(tmp_path)) == ["c", "c.state"]


@pytest.mark.parametrize("when", ["write_rank", "commit"])
def test_an_interrupted_save_keeps_the_old_checkpoint(when, data, tmp_path, monkeypatch):
    trainer = make()
    fit(trainer, data, 1)
    path = tmp_path / "c.safetensors"
    trainer.save(path)
    before = trainer.weights_sha256()
    fit(trainer, data, 1)
    write = safetensors.write
    calls = []

    def failing(name, *arguments, **options):
        calls.append(name)
        if len(calls) == (2 if when == "write_rank" else 4):
            raise OSError(28, "No space left on device")  # as the write itself says it
        return write(name, *arguments, **options)

    monkeypatch.setattr(safetensors, "write", failing)
    kept = os.listdir(f"{path}.state")
    with pytest.raises(gg.CheckpointError, match=r"c\.safetensors: No space left on device$"):
        trainer.save(path)
    assert os.listdir(f"{path}.state") == kept and len(kept) == 1  # what was written of the new one leaves room
    monkeypatch.undo()
    assert gg.Trainer.load(path).weights_sha256() == before
    trainer.save(path)
    assert len(os.listdir(f"{path}.state")) == 1


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    trainer = make()
    fit(trainer, data, 1)
    path = tmp_path_factory.mktemp("saved") / "c.safetensors"
    trainer.save(path)
    return path


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: net().freeze("fc1"), r"layer 'fc1': lr is as by default there and \[0.0, 0.0\] here \(net.freeze"),
        (lambda: net().factors("fc2", weight_decay=0.5), "layer 'fc2': weight_decay is as by default there and"),
        (lambda: net(activation=gg.ReLU()), "layer 2: layer is 'Tanh' there and 'ReLU' here"),
        (lambda: net(rate=0.3), "layer 'dropout1': p is 0.2 there and 0.3 here"),
    ],
)
def test_what_differs_between_networks_of_the_same_parameters_is_named(saved, data, other, words):
    one = gg.Trainer(other(), comm=gg.VirtualCluster(3), tune=False)
    with pytest.raises(gg.CheckpointError, match=words):
        fit(one, data, 2, resume=saved)


def test_what_does_not_fit_is_refused(saved, data, tmp_path):
    other = gg.Trainer(net(9), comm=gg.VirtualCluster(3))
    with pytest.raises(gg.CheckpointError, match=r"of another model.*fc1.weight is \(8, 6\) there and \(9, 6\) here"):
        fit(other, data, 2, resume=saved)
    with pytest.raises(gg.CheckpointError, match="nowhere: No such file"):
        fit(make(), data, 2, resume=tmp_path / "nowhere")
    with pytest.raises(gg.CheckpointError, match="a folder"):
        fit(make(), data, 2, resume=tmp_path)
    safetensors.write(tmp_path / "plain", net().weights())
    with pytest.raises(gg.CheckpointError, match="without a trainer's state"):
        gg.Trainer.load(tmp_path / "plain")


def test_other_settings_are_told(saved, data):
    with pytest.warns(UserWarning, match="seed 11 -> 12"):
        fit(make(seed=12), data, 2, resume=saved)


def test_auto_goes_on_with_what_was_exchanged(data, tmp_path, monkeypatch):
    path = tmp_path / "c"
    monkeypatch.setattr(gg.GossipGraD, "exchange_on", lambda self, nodes: "weights")
    whole = fit(make(), data, 4)
    half = make()

    class Stop(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.save(path)
            trainer.stop = record["epoch"] == 2

    fit(half, data, 4, callbacks=[Stop()])
    monkeypatch.undo()
    rest = make()
    assert (half.exchange, rest.exchange, gg.Trainer.load(path).exchange) == ("weights", "weights+momentum", "weights")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fit(rest, data, 4, resume=path)
    assert rest.exchange == "weights" and history.weights_sha256 == whole.weights_sha256
    assert (history.settings["exchange"], history.settings["exchange_used"]) == ("auto", "weights")
    with pytest.warns(UserWarning, match="exchange_used 'weights' -> 'gradients'"):
        fit(make(strategy=gg.GossipGraD(exchange="gradients")), data, 4, resume=path)


def test_checkpoints_from_before_auto(data, tmp_path, monkeypatch):
    """They say in "exchange" what was exchanged."""
    made = make(strategy=gg.GossipGraD(exchange="weights"))
    settings = made.settings()
    del settings["exchange_used"]
    monkeypatch.setattr(made, "settings", lambda: settings)
    made.save(tmp_path / "c")
    rest = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(rest, data, 1, resume=tmp_path / "c")
    assert rest.exchange == "weights"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: b[:-4], "truncated"),
        (lambda b: b[:20], "truncated"),
        (lambda b: b[:3], "truncated"),
        (lambda b: b"\xff" * 8 + b[8:], "no safetensors file"),
        (lambda b: b[:8] + b"x" + b[9:], "no JSON"),
        (lambda b: b.replace(b'"shape":[3]', b'"shape":[2]', 1), "bytes for shape"),
    ],
)
def test_damaged_files_are_told(spoil, words, saved, tmp_path):
    (tmp_path / "c").write_bytes(spoil(saved.read_bytes()))
    with pytest.raises(gg.CheckpointError, match=words):
        gg.Trainer.load(tmp_path / "c")


def test_every_byte_of_a_file_of_others_belongs_to_one_array(tmp_path):
    def write(size, **arrays):
        entries = {
            name: {"dtype": "U16", "shape": list(shape), "data_offsets": [begin, end]}
            for name, (shape, begin, end) in arrays.items()
        }
        header = json.dumps(entries).encode()
        (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))

    write(8, b=([2], 4, 8), none=([0, 3], 4, 4), a=([2], 0, 4))
    assert [one.shape for one in safetensors.read(tmp_path / "f")[0].values()] == [(2,), (0, 3), (2,)]
    for arrays, words in (
        ({"a": ([2], 0, 4), "b": ([2], 2, 6)}, "b begins at byte .*, which overlaps"),
        ({"a": ([2], 0, 4), "b": ([2], 0, 4)}, "b begins at byte .*, which overlaps"),
        ({"a": ([2], 0, 4), "b": ([1], 6, 8)}, "b begins at byte .*no array's"),
        ({"a": ([0, 2**70], 0, 0)}, "a: shape"),
    ):
        write(max(end for _, _, end in arrays.values()), **arrays)
        with pytest.raises(gg.CheckpointError, match=words):
            safetensors.read(tmp_path / "f")


def test_a_missing_rank_is_told(data, tmp_path):
    trainer = make()
    trainer.save(tmp_path / "c")
    state = checkpoint_files.read(tmp_path / "c")[1]["state"]
    os.unlink(checkpoint_files.rank_file(str(tmp_path / "c"), state, 1))
    with pytest.raises(gg.CheckpointError, match="rank-00001.safetensors: No such file"):
        gg.Trainer.load(tmp_path / "c")


@pytest.mark.parametrize("left", [gg.SGD(lr=0.05, momentum=0.9), gg.SGD(lr=0.05)], ids=["momentum", "plain"])
def test_moments_of_another_optimizer_are_left_behind(left, data, tmp_path):
    """Adam after SGD is Adam from its first update on, on these weights; and so it goes on after another save."""

    def alone(optimizer):  # dropout would differ with the step
        layers = [gg.Linear(8), gg.Tanh(), gg.Linear(3)]
        return gg.Trainer(gg.Sequential(layers, input=(6,)), optimizer=optimizer, comm=gg.VirtualCluster(1))

    before = alone(left)
    fit(before, data, 2)
    before.save(tmp_path / "sgd")
    fresh, resumed = alone(gg.Adam(lr=0.01)), alone(gg.Adam(lr=0.01))
    fresh.load_weights(before.weights())
    with pytest.warns(UserWarning, match="'sgd' -> 'adam'.*moments begin at zero"):
        fit(resumed, data, 2, resume=tmp_path / "sgd")
    assert resumed.step == before.step > 0
    x, y = data[0].samples[:8], data[0].targets[:8]

    def train(trainer):
        for _ in range(3):
            trainer.train_step([x], [y])
        return trainer.weights_sha256()

    train(resumed), train(fresh)
    assert all(np.array_equal(resumed.momentum()[k], v) for k, v in fresh.momentum().items())
    assert resumed.weights_sha256() == fresh.weights_sha256()
    resumed.save(tmp_path / "adam")
    again = gg.Trainer.load(tmp_path / "adam", comm=gg.VirtualCluster(1))
    assert train(again) == train(fresh) == train(resumed)


def test_a_moment_that_was_not_saved_begins_at_zero(data, tmp_path):
    plain = make(2, optimizer=gg.SGD(lr=0.05))
    fit(plain, data, 1)
    plain.save(tmp_path / "c")
    other = make(2, optimizer=gg.SGD(lr=0.05, momentum=0.9))
    fit(other, data, 1)
    assert any(np.any(array) for array in other.momentum(1).values())
    with pytest.warns(UserWarning, match="momentum 0.0 -> 0.9"):
        fit(other, data, 1, resume=tmp_path / "c")
    assert not any(np.any(array) for rank in (0, 1) for array in other.momentum(rank).values())


def rank_path(path, rank):
    return checkpoint_files.rank_file(str(path), checkpoint_files.read(path)[1]["state"], rank)


def test_damage_is_seen(data, tmp_path):
    """In any file, in any part of it."""
    trainer = make()
    fit(trainer, data, 1)
    path = tmp_path / "c"
    trainer.save(path)
    for name in (path, rank_path(path, 0), rank_path(path, 2)):
        with open(name, "rb") as file:
            good = file.read()
        spoilt = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(9, len(good), len(good) // 9)]
        for bad in [*spoilt, good + b"\0", good[:-64] + bytes(64)]:
            with open(name, "wb") as file:
                file.write(bad)
            with pytest.raises(gg.CheckpointError):
                gg.Trainer.load(path)
        with open(name, "wb") as file:
            file.write(good)
    assert gg.Trainer.load(path).weights_sha256() == trainer.weights_sha256()


def test_a_part_of_another_save_is_refused(data, tmp_path):
    """Of another step, of another run at the same step, of another rank."""
    trainer = make()
    trainer.save(tmp_path / "early")
    fit(trainer, data, 1)
    trainer.save(tmp_path / "c")
    other = make(seed=12)
    fit(other, data, 1)
    other.save(tmp_path / "other")
    good = (tmp_path / "c").parent / rank_path(tmp_path / "c", 1)
    for source, words in (
        (rank_path(tmp_path / "early", 1), "the state after step 0, not 5"),
        (rank_path(tmp_path / "other", 1), "of another save or run"),
        (rank_path(tmp_path / "c", 0), "not the state of rank 1"),
    ):
        shutil.copy(source, good)
        with pytest.raises(gg.CheckpointError, match=words):
            gg.Trainer.load(tmp_path / "c")


def test_a_diverged_state_is_refused(data, tmp_path):
    trainer = make(2)
    weights = trainer.weights()
    weights["fc2.bias"][1] = np.nan
    trainer.core.exchange.load_arena("weight", weights)
    trainer.save(tmp_path / "c")
    with pytest.raises(gg.CheckpointError, match=r"fc2.bias\[1\] is nan"):
        gg.Trainer.load(tmp_path / "c")


def test_weights_that_are_not_finite_are_not_loaded_to_train_on(data, tmp_path):
    trainer = make(2)
    good, path = trainer.weights(), tmp_path / "w.safetensors"
    for bad in (np.nan, np.inf):
        weights = {name: array.copy() for name, array in good.items()}
        weights["fc2.bias"][1] = bad
        trainer.net.load_weights(weights)  # to look at
        trainer.net.save_weights(path)
        for given, what in ((weights, "weights"), (path, "w.safetensors")):
            with pytest.raises(gg.CheckpointError, match=rf"{what}: fc2.bias\[1\] is {bad}: .*allowed: finite numbers"):
                trainer.load_weights(given)
    assert all(np.array_equal(array, good[name]) for name, array in trainer.weights().items())


def test_strangers_in_the_folder_of_the_state_stay(data, tmp_path):
    trainer = make(2)
    path = tmp_path / "c"
    trainer.save(path)
    for name in ("mine", "step-notes", "step-00000001-abc"):
        (tmp_path / "c.state" / name).mkdir()
    (tmp_path / "c.state" / "step-00000009-0123abcd").mkdir()  # of a save that was killed
    trainer.save(path)
    left = sorted(os.listdir(tmp_path / "c.state"))
    assert left[0] == "mine" and left[-1] == "step-notes" and "step-00000001-abc" in left and len(left) == 4


def test_two_runs_on_one_path(data, tmp_path):
    """While another process saves there, this one is refused, before it trains; two trainers of one process are not."""
    path = tmp_path / "c"
    seen = []

    def free():
        handle = os.open(f"{path}.state", os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    class Look(gg.Callback):
        def on_epoch_begin(self, trainer, epoch):
            seen.append(free())

        def on_epoch_end(self, trainer, record):
            seen.append(free())

    fit(make(2), data, 2, callbacks=[Look(), gg.Checkpoint(path, save_best=False)])
    assert seen == [False] * 4 and free()
    handle = os.open(f"{path}.state", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    trainer, before = make(2), path.read_bytes()
    with pytest.raises(gg.CheckpointError, match="another run saves there"):
        fit(trainer, data, 1, callbacks=[gg.Checkpoint(path)])
    assert trainer.step == 0
    with pytest.raises(gg.CheckpointError, match="another run saves there"):
        trainer.save(path)
    os.close(handle)
    assert path.read_bytes() == before
    trainer.save(path)
    assert free()


def test_a_device_is_no_place_for_a_checkpoint(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(gg.CheckpointError, match="null: not a regular file"):
        make(2).save(tmp_path / "null")
    assert os.listdir(tmp_path) == ["null"]


def test_mpi_ranks_resume_what_a_virtual_cluster_saved(data, tmp_path, mpirun):
    """Half of it here and half under MPI gives the bits of all of it here."""
    whole = fit(make(2), data, 4)
    stopped = make(2)

    class Stop(gg.Callback):
        def on_epoch_end(self, trainer, record):
            trainer.save(tmp_path / "c")
            trainer.stop = record["epoch"] == 2

    fit(stopped, data, 4, callbacks=[Stop()])
    script = tmp_path / "resume.py"
    script.write_text(
        f"""
import gossipgrad as gg
train, test = gg.data.synthetic((6,), 3, 100, 30, noise=0.3)
layers = [gg.Linear(8), gg.Tanh(), gg.Dropout(0.2), gg.Linear(3)]
net = gg.Sequential(layers, input=(6,), name="small")
schedule = gg.schedules.Cosine(warmup=3)
trainer = gg.Trainer(net, seed=11, optimizer=gg.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3, schedule=schedule))
history = trainer.fit(train, test, epochs=4, batch_size=8, progress=False, resume={str(tmp_path / "c")!r})
trainer.save({str(tmp_path / "d")!r})
if trainer.rank == 0:
    history.write({str(tmp_path / "r.json")!r})
"""
    )
    mpirun(2, [script])
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["weights_sha256"] == whole.weights_sha256 and report["settings"]["comm"] == "mpi"
    again = gg.Trainer.load(tmp_path / "d", comm=gg.VirtualCluster(2))
    assert again.epoch == 4 and again.weights_sha256() == whole.weights_sha256


def test_a_network_without_parameters(tmp_path):
    x = np.ones((4, 3), np.float32)
    net = gg.Sequential([gg.Tanh()], input=(3,))
    path = tmp_path / "c"
    with gg.Trainer(net, loss="mean_squared_error", strategy=gg.NoExchange()) as trainer:
        trainer.fit(x, x, epochs=1, batch_size=2, progress=False)
        trainer.save(path)
    with gg.Trainer.load(path) as trainer:
        assert trainer.fit(x, x, epochs=2, batch_size=2, progress=False, resume=path)["epoch"] == [1, 2]
