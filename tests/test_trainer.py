"""The trainer's surface: arguments, data that do not fit, steps, evaluation, prediction."""

from __future__ import annotations

import copy
import ctypes
import inspect
import pickle
import re
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.launch.environment import openmp_runtimes


def net(name="n"):
    return gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,), name=name)


def data(n=96):
    return gg.data.synthetic((6,), 3, n, 30, noise=0.3)


def make(**options):
    return gg.Trainer(net(), **({"optimizer": gg.SGD(lr=0.05, momentum=0.9)} | options))


def test_a_script_computes_with_the_threads_that_run_sets(monkeypatch):
    """Where it names none itself."""
    net = gg.Sequential([gg.Linear(3)], input=(4,))
    for variable, wanted in (("3", 3), ("2,4", 2), (None, 1)):
        if variable is None:
            monkeypatch.delenv("OMP_NUM_THREADS")
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", variable)
        with gg.Trainer(net) as trainer, gg.Trainer(net, threads=1) as own:
            assert (trainer.threads, own.threads) == (wanted, 1)


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"loss": "hinge"}, ValueError, ["loss='hinge'", "cross_entropy"]),
        ({"optimizer": "sgd"}, TypeError, ["optimizer is a str"]),
        ({"loss": "mse"}, ValueError, ["did you mean 'mean_squared_error'?"]),
        ({"optimizer": "adam"}, TypeError, ["optimizer is a str, 'adam'", "did you mean gossipgrad.Adam(...)?"]),
        ({"optimizer": gg.Adam}, TypeError, ["did you mean gossipgrad.Adam(...)?"]),
        ({"strategy": "allreduce"}, TypeError, ["did you mean gossipgrad.AllReduce()?"]),
        ({"strategy": "ddp"}, TypeError, ["did you mean gossipgrad.LayerwiseAllReduce()?"]),
        ({"strategy": gg.NoExchange}, TypeError, ["did you mean gossipgrad.NoExchange()?"]),
        ({"strategy": "gossip"}, TypeError, ["strategy='gossip'", "gossipgrad.GossipGraD()"]),
        ({"strategy": gg.GossipGraD}, TypeError, ["strategy="]),
        ({"seed": -1}, ValueError, ["seed=-1"]),
        ({"threads": 0}, ValueError, ["threads=0"]),
        ({"backend": "cuda"}, ValueError, ["backend='cuda'", "'onednn', 'native'"]),
        ({"dtype": "float16"}, ValueError, ["dtype='float16'", "'float32', 'bfloat16', 'auto'"]),
        ({"device": "cuda:99"}, ValueError, ["device: 'cuda:99'"]),  # without a GPU: why there is none
        ({"comm": 4}, TypeError, ["comm=4", "VirtualCluster"]),
        ({"apoptosis": True}, TypeError, ["apoptosis is a bool; allowed: None, gossipgrad.Apoptosis(...)"]),
        ({"apoptosis": gg.Apoptosis}, TypeError, ["did you mean gossipgrad.Apoptosis()?"]),
        ({"apoptosis": gg.Apoptosis(layers="fc9")}, ValueError, ["Apoptosis: layers='fc9'"]),
    ],
)
def test_bad_constructor_arguments(options, error, words):
    with pytest.raises(error) as caught:
        make(**options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("first", ["", "x"])  # either of both is cut off within a character
def test_a_message_that_is_cut_off(first):
    with pytest.raises(ValueError) as caught:
        make(device=first + "\u00e9" * 600)
    assert type(caught.value) is ValueError and str(caught.value).startswith(f"device: '{first}\u00e9\u00e9")


def test_other_libraries_compute_with_their_own_threads(monkeypatch, tmp_path):
    """OpenMP has one number for all libraries that a thread calls, PyTorch's among them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not any(name.startswith("libgomp.so.1") for name in openmp_runtimes()):
        pytest.skip("the core has another OpenMP")
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    net = gg.Sequential([gg.Conv2d(8, 3, padding=1), gg.ReLU(), gg.Flatten(), gg.Linear(3)], input=(2, 12, 12))
    train, _ = gg.data.synthetic((2, 12, 12), 3, 40, 5)
    try:
        openmp.omp_set_num_threads(3)
        for comm in (None, gg.VirtualCluster(2)):
            with gg.Trainer(net, comm=comm, tune=True) as trainer:
                trainer.fit(train, validation=train, batch_size=16, progress=False)
                trainer.predict(train)
            assert openmp.omp_get_max_threads() == 3
    finally:
        openmp.omp_set_num_threads(before)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("strategy", [gg.AllReduce(), gg.PushGossip(wire_dtype="bfloat16")], ids=["allreduce", "push"])
def test_a_network_without_parameters_predicts(strategy, ranks):
    net = gg.Sequential([gg.ReLU()], input=(4,))
    with gg.Trainer(net, strategy=strategy, comm=gg.VirtualCluster(ranks)) as trainer:
        x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
        assert np.array_equal(trainer.predict(x), np.maximum(x, 0))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epochs": 0}, ValueError, ["epochs=0"]),
        ({"batch_size": 0}, ValueError, ["batch_size=0"]),
        ({"batch_size": 33}, ValueError, ["batch_size=33", "32 samples", "96 over 3 ranks"]),
        ({"validate_replicas": True}, ValueError, ["validate_replicas=True", "validation"]),
        ({"callbacks": [print]}, TypeError, ["callbacks", "print"]),
        ({"train": (np.zeros((9, 5)), np.zeros(9, int))}, ValueError, ["train", "(5,)", "(6,)"]),
        ({"train": (np.zeros((9, 6)), np.arange(9))}, ValueError, ["train: targets[3] is 3", "0..2"]),
        ({"train": (np.zeros((2, 6)), np.zeros(2, int)), "batch_size": 1}, ValueError, ["2 samples for 3 ranks"]),
        ({"train": np.zeros((9, 6))}, TypeError, ["train is a ndarray"]),
        ({"validation": (np.zeros((9, 6)), np.zeros(8, int))}, ValueError, ["validation: 9 samples but 8"]),
    ],
)
def test_bad_fit_arguments(options, error, words):
    trainer = make(comm=gg.VirtualCluster(3))
    with pytest.raises(error) as caught:
        trainer.fit(**({"train": data()[0], "batch_size": 8, "progress": False} | options))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("p", [1, 3])
def test_fit_learns_and_tells(p):
    train, test = data()
    trainer = make(comm=gg.VirtualCluster(p))
    history = trainer.fit(train, validation=test, epochs=4, batch_size=8, validate_replicas=True, progress=False)
    assert len(history) == 4 and history["epoch"] == [1, 2, 3, 4]
    assert history.last["validation"]["accuracy"] > 0.9 and history["train_loss"][-1] < history["train_loss"][0]
    assert [len(one) for one in history["validation_replicas"]] == [p] * 4
    assert history["samples"] == [96] * 4
    assert trainer.step == 4 * history.last["steps"] and trainer.epoch == 4
    assert len(history.weights_sha256) == p


def test_fit_takes_up_where_it_stopped():
    one, two = make(), make()
    train, _ = data()
    one.fit(train, epochs=3, batch_size=8, progress=False)
    two.fit(train, epochs=2, batch_size=8, progress=False)
    history = two.fit(train, epochs=1, batch_size=8, progress=False)
    assert history["epoch"] == [1, 2, 3] and history.weights_sha256 == one.history.weights_sha256


def test_evaluate_and_predict_agree():
    train, test = data()
    trainer = make(comm=gg.VirtualCluster(3))
    trainer.fit(train, epochs=2, batch_size=8, progress=False)
    scores = trainer.predict(test, batch_size=7)
    assert scores.shape == (30, 3) and np.allclose(scores, trainer.predict(test.samples.astype(np.float64)), atol=1e-6)
    found = trainer.evaluate(test, batch_size=4)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == test.targets).mean())
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert found["loss"] == pytest.approx(-logs[np.arange(30), test.targets].mean(), rel=1e-4)
    assert len(trainer.evaluate(test, replicas=True)) == 3
    with pytest.raises(ValueError, match=r"x: shape \(2, 5\).*\(n, 6"):
        trainer.predict(np.zeros((2, 5)))


def test_fewer_samples_than_ranks_can_be_evaluated():
    _, test = data()
    trainer = make(comm=gg.VirtualCluster(5))
    assert trainer.evaluate(test[:3])["loss"] == pytest.approx(make().evaluate(test[:3])["loss"], rel=1e-5)


def test_a_step_is_the_loss_gradient_and_momentum_of_sgd():
    train, _ = data()
    trainer = make(optimizer=gg.SGD(lr=0.1, momentum=0.9), strategy=gg.NoExchange())
    before = trainer.weights()
    loss = trainer.train_step(train.samples[:8], train.targets[:8])
    after, gradients, state = trainer.weights(), trainer.gradients(), trainer.optimizer_state()
    assert isinstance(loss, float) and state["step"] == 1
    for name, w in before.items():
        assert np.array_equal(state["momentum"][name], gradients[name])
        assert np.allclose(after[name], w - np.float32(0.1) * gradients[name], atol=1e-7)


def test_a_virtual_step_takes_and_gives_lists():
    train, _ = data()
    trainer = make(comm=gg.VirtualCluster(2))
    losses = trainer.train_step([train.samples[:8], train.samples[8:11]], [train.targets[:8], train.targets[8:11]])
    assert len(losses) == 2 and losses[0] != losses[1]
    assert trainer.weights(rank=1)["fc1.weight"].shape == (8, 6)
    with pytest.raises(ValueError, match="rank=2: allowed: an integer in 0..1"):
        trainer.weights(rank=2)
    with pytest.raises(ValueError, match="x: a virtual cluster wants a list of 2 batches; got ndarray"):
        trainer.train_step(train.samples[:8], train.targets[:8])
    with pytest.raises(ValueError, match="x has 8 samples, y 7"):
        trainer.train_step([train.samples[:8]] * 2, [train.targets[:7]] * 2)


def test_loaded_weights_are_where_training_starts():
    weights = net().weights(seed=99)
    model = net()
    model.load_weights(weights)
    trainer = gg.Trainer(model, comm=gg.VirtualCluster(2), seed=5)
    assert all(np.array_equal(trainer.weights(1)[k], weights[k]) for k in weights)
    other = make(seed=5)
    assert all(np.array_equal(other.weights()[k], net().weights(5)[k]) for k in weights)
    other.load_weights(weights)
    assert all(np.array_equal(other.weights()[k], weights[k]) for k in weights)


def test_auto_schedules_end_with_the_run():
    train, _ = data()
    trainer = make(optimizer=gg.SGD(lr=0.1, schedule=gg.schedules.Cosine()), strategy=gg.NoExchange())
    with pytest.raises(ValueError, match="total='auto'"):
        trainer.train_step(train.samples[:8], train.targets[:8])
    trainer.fit(train, epochs=2, batch_size=8, progress=False)
    given = make(optimizer=gg.SGD(lr=0.1, schedule=gg.schedules.Cosine(total=24)), strategy=gg.NoExchange())
    given.fit(train, epochs=2, batch_size=8, progress=False)
    assert trainer.history.weights_sha256 == given.history.weights_sha256


@pytest.mark.parametrize(("loss", "output"), [("binary_cross_entropy", 1), ("mean_squared_error", 2)])
def test_other_losses(loss, output):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, 4), np.float32)
    y = (x @ generator.standard_normal((4, output))).astype(np.float64)
    y = (y > 0).astype(np.int64)[:, 0] if loss == "binary_cross_entropy" else y
    model = gg.models.mlp(4, (16,), output)
    trainer = gg.Trainer(model, loss=loss, optimizer=gg.SGD(lr=0.05, momentum=0.9), comm=gg.VirtualCluster(2))
    history = trainer.fit((x, y), validation=(x, y), epochs=15, batch_size=6, progress=False)
    assert history["validation.loss"][-1] < 0.5 * history["validation.loss"][0]


def test_uint8_images_are_scaled_in_the_core():
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (40, 6), dtype=np.uint8), generator.integers(0, 3, 40)
    whole = make(strategy=gg.NoExchange()).fit(gg.Dataset(x, y, 1 / 255, -0.5), batch_size=8, progress=False)
    scaled = x.astype(np.float32) * np.float32(1 / 255) - np.float32(0.5)
    floats = make(strategy=gg.NoExchange()).fit((scaled, y), batch_size=8, progress=False)
    assert whole["train_loss"] == pytest.approx(floats["train_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("dtype", "high", "scale", "said"),
    [
        (np.uint8, 256, 1.0, True),
        (np.uint8, 256, 1 / 255, False),
        (np.uint8, 2, 1.0, False),
        (np.float32, 256, 1, False),
    ],
)
def test_raw_pixels_are_told(dtype, high, scale, said, recwarn):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, high, (40, 6)).astype(dtype), generator.integers(0, 3, 40)
    for raw, other in ((gg.Dataset(x, y, scale), None), (gg.Dataset(x / 255, y), gg.Dataset(x, y, scale))):
        recwarn.clear()
        make(optimizer=gg.SGD(lr=1e-9)).fit(raw, other, batch_size=8, progress=False)
        told = [str(one.message) for one in recwarn if "uint8" in str(one.message)]
        assert len(told) == said and all("gg.data.Dataset(x, y, scale=1/255)" in one for one in told)
        if said:
            assert told[0].startswith(f"{'validation' if other else 'train'}: uint8 samples of 0..{x.max()} are")


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied_or_pickled(of):
    trainer = make(comm=gg.VirtualCluster(2))
    with pytest.raises(
        TypeError, match=r"a Trainer cannot be copied or pickled.*allowed: trainer\.save.*Trainer\.load"
    ):
        of(trainer)
    assert of(trainer.net) and of(trainer.comm)


def test_close_ends_it():
    with make() as trainer:
        assert trainer.step == 0
    with pytest.raises(RuntimeError, match="closed"):
        trainer.weights()


@pytest.mark.parametrize(
    ("ranks", "strategy", "kind", "said"),
    [
        (4, gg.GossipGraD(), "sorted", True),
        (4, gg.PeriodicAllReduce(), "sorted", True),
        (4, gg.GossipGraD(shuffle_samples=True), "sorted", False),
        (4, gg.AllReduce(), "sorted", False),
        (4, gg.OverlappedAveraging(), "sorted", False),
        (4, gg.GossipGraD(), "mixed", False),
        (1, gg.GossipGraD(), "sorted", False),
        (4, gg.GossipGraD(), "few", False),
    ],
)
@pytest.mark.parametrize("shard", ["contiguous", "interleaved"])
def test_contiguous_shards_of_sorted_samples_are_warned_of(ranks, strategy, kind, said, shard, recwarn):
    labels = np.repeat(np.arange(10), 2 if kind == "few" else 20)
    if kind == "mixed":
        np.random.default_rng(0).shuffle(labels)
    samples = np.zeros((len(labels), 3), np.float32)
    trainer = gg.Trainer(
        gg.Sequential([gg.Linear(10)], input=(3,)), strategy=strategy, comm=gg.VirtualCluster(ranks), seed=0
    )
    trainer.fit((samples, labels), batch_size=5, progress=False, shard=shard)
    told = [str(one.message) for one in recwarn if "sorted by class" in str(one.message)]
    assert len(told) == (said and shard == "contiguous")
    if told:
        assert told[0].startswith("train: the shard of rank 0 has 50 samples of 3 classes only, of 10 in the set")


def test_a_cube_with_gaps_says_so(recwarn):
    make(comm=gg.VirtualCluster(4), strategy=gg.GossipGraD(topology="cube"))
    make(comm=gg.VirtualCluster(3))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="topology='cube' with 3 ranks.*no partner"):
        make(comm=gg.VirtualCluster(3), strategy=gg.GossipGraD(topology="cube"))


SPLIT = """
import gossipgrad as gg
from mpi4py import MPI
train, test = gg.data.synthetic((6,), 3, 96, 30, noise=0.3)
group = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
net = gg.Sequential([gg.Linear(8), gg.Tanh(), gg.Linear(3)], input=(6,))
trainer = gg.Trainer(net, seed=MPI.COMM_WORLD.rank % 2, comm=group)
history = trainer.fit(train, epochs=1, batch_size=8, progress=False)
print(MPI.COMM_WORLD.rank, trainer.rank, trainer.size, *history.weights_sha256, flush=True)
"""


def test_groups_of_mpi4py_train_on_their_own(mpirun):
    pytest.importorskip("mpi4py")
    done = mpirun(4, SPLIT)
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[:3] for row in rows] == [["0", "0", "2"], ["1", "0", "2"], ["2", "1", "2"], ["3", "1", "2"]]
    assert rows[0][3:] == rows[2][3:] != rows[1][3:] == rows[3][3:]
    train, _ = data()
    for seed in (0, 1):
        alone = gg.Trainer(net(), seed=seed, comm=gg.VirtualCluster(2))
        assert alone.fit(train, epochs=1, batch_size=8, progress=False).weights_sha256 == rows[seed][3:]


STOP = """
import gossipgrad as gg

class Stop(gg.Callback):
    def on_epoch_end(self, trainer, record):
        trainer.stop = trainer.rank == 2 and record["epoch"] == 2

train, test = gg.data.synthetic((6,), 3, 96, 30)
trainer = gg.Trainer(gg.Sequential([gg.Linear(3)], input=(6,)))
history = trainer.fit(train, test, epochs=9, batch_size=8, callbacks=[Stop()], progress=False)
scores = trainer.predict(test)
print(trainer.rank, len(history), scores.sum(), trainer.evaluate(test), len(trainer.evaluate(test, replicas=True)))
"""


def test_under_mpi_ranks_agree_to_stop_and_on_answers(mpirun):
    rows = sorted(mpirun(3, STOP).stdout.splitlines())
    assert [row.split()[:2] for row in rows] == [["0", "2"], ["1", "2"], ["2", "2"]]
    assert len({row[1:] for row in rows}) == 1 and rows[0].endswith(" 3")


def test_contiguous_shards_of_two_sorted_classes_are_warned_of():
    trainer = gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)), comm=gg.VirtualCluster(2))
    x = np.zeros((40, 3), np.float32)
    for labels in (np.repeat([0, 1], 20), np.repeat(np.eye(2), 20, axis=0)):
        with pytest.warns(UserWarning, match="20 samples of 1 classes only, of 2 in the set.*shard='interleaved'"):
            trainer.fit(x, labels, batch_size=5, progress=False, shard="contiguous")


def test_warnings_are_at_the_line_that_called(tmp_path):
    """Not within the package, however deep the call is."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gg.Trainer(net(), timeout=1.0)
        trainer = make(strategy=gg.GossipGraD(topology="cube"), comm=gg.VirtualCluster(3), trace=1)
        x = np.full((96, 6), 9, np.uint8)
        trainer.fit((x, np.arange(96) // 32), batch_size=8, progress=False, shard="contiguous")
        trainer.save(tmp_path / "c")
        trainer.write_trace(tmp_path / "t")
        make(comm=gg.VirtualCluster(3)).fit((x, np.zeros(96, int)), batch_size=8, progress=False, resume=tmp_path / "c")
    said = [str(one.message) for one in seen if one.category is UserWarning]
    wanted = ["timeout=", "topology='cube'", "look sorted", "uint8", "spans a rank", "other settings", "nothing is"]
    assert all(any(words in text for text in said) for words in wanted), said
    assert {one.filename for one in seen} == {__file__}


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [(gg.SGD(0.1), []), (gg.SGD(0.1, momentum=0.9), ["momentum"]), (gg.Adam(), ["momentum", "second_moment"])],
)
def test_arenas_are_a_list_with_names(optimizer, moments):
    with gg.Trainer(gg.models.mlp(), optimizer=optimizer, comm=gg.VirtualCluster(2)) as trainer:
        core = trainer.core
        assert core.exchange.arenas() == {
            "weight": "weight",
            "gradient": "gradient",
            **dict.fromkeys(moments, "moment"),
        }
        assert list(trainer.rank_state(0)) == ["weight", *moments]
        for name in core.exchange.arenas():
            arrays = {key: np.full_like(value, 3) for key, value in core.exchange.arena(name, 1).items()}
            core.exchange.load_arena(name, arrays, 1)
            assert all(np.array_equal(core.exchange.arena(name, 1)[key], value) for key, value in arrays.items())
            assert not any(np.any(value == 3) for value in core.exchange.arena(name, 0).values())
        for call in (core.exchange.arena, lambda name: core.exchange.load_arena(name, {})):
            with pytest.raises(ValueError, match="arena: 'residue'; allowed: 'weight', 'gradient'"):
                call("residue")


def test_help_says_five_things_on_one_screen_and_each_argument_with_the_constructor():
    parameters = [name for name in inspect.signature(gg.Trainer).parameters if name != "net"]
    assert len(inspect.getdoc(gg.Trainer).splitlines()) <= 24
    first = re.findall(r"^(\w+)  +\S", inspect.getdoc(gg.Trainer), re.M)
    assert first == ["net", "loss", "optimizer", "strategy", "comm"]
    described = re.findall(r"^(\w+)  ?\S|^(\w+)  ", inspect.getdoc(gg.Trainer.__init__), re.M)
    assert set(parameters) <= {one or other for one, other in described}
