"""The choice of algorithms for convolutions: by the cost model, or measured once and cached; the same on all ranks and
after a resume."""

import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core, bench
from gossipgrad.training import algorithms

PASSES = algorithms.PASSES
CANDIDATES = {"direct", "winograd4", "winograd2", "winograd6"}
PLAIN = (1, 1, 1, 1, 1)  # strides, dilations, groups
KEY = (8, 16, 10, 9, 20, 1, 1, 1, 1, 3, 3, *PLAIN)  # of the second convolution of network(), with batches of 8
SECONDS = {
    "forward": {"direct": 3.0, "winograd4": 2.0, "winograd2": 1.0},
    "weights": {"direct": 1.0, "winograd4": 2.0},
    "data": {"direct": 3.0, "winograd4": 1.0, "winograd2": 2.0},
}
CHOSEN = ("winograd2", "direct", "winograd4")


def network():
    layers = [
        gg.Conv2d(16, 3, padding=1),
        gg.ReLU(),
        gg.Conv2d(20, 3, padding=1),
        gg.ReLU(),
        gg.Flatten(),
        gg.Linear(3),
    ]
    return gg.Sequential(layers, input=(5, 10, 9))


def data(n=32):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 5, 10, 9), np.float32), rng.integers(0, 3, n).astype(np.int32)


def fit(trainer, epochs=1, **options):
    return trainer.fit(*data(), epochs=epochs, batch_size=8, progress=False, **options)


def used(trainer):
    """What the second convolution is computed by."""
    return {one: algorithm for one, (_, algorithm) in trainer.core.node_algorithms()[3].items()}


def refuse(*_):
    raise AssertionError("measured")


@pytest.fixture
def patient(monkeypatch, tmp_path):
    """There is time to measure for any run; the cache is in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(algorithms, "MIN_STEPS", 0)
    monkeypatch.setattr(algorithms, "SHARE", 1e9)


@pytest.fixture
def injected(monkeypatch, tmp_path):
    """Times that are not measured; the cache is in an empty folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(algorithms, "measured", lambda *_: {KEY: SECONDS})


def test_what_is_measured_is_in_the_cache(tmp_path):
    path = str(tmp_path / "folder" / "cache.json")
    other, asked = (4, *KEY[1:]), []

    def found(wanted, where="here", own=None, passes=PASSES):
        return algorithms.measured(wanted, passes, measure, where, path, own)

    def measure(missing):
        asked.append(missing)
        return [(KEY, one, name, time) for one in PASSES for name, time in SECONDS[one].items() if KEY in missing]

    assert found([KEY]) == found([KEY]) == found([KEY, other]) == {KEY: SECONDS}
    assert found([other]) == {}  # for which there was no time
    assert found([KEY], "another CPU") == {KEY: SECONDS}
    assert asked == [[KEY], [other], [other], [KEY]]
    own = {KEY: {one: {"direct": 1.0} for one in PASSES}, other: {"forward": {"direct": 1.0}}}
    assert found([KEY], own=own) == own  # what this trainer has used comes first, and stays
    assert found([other], own=own, passes=("forward",)) == own and asked[4:] == []
    assert found([other], own=own) == own and asked[4:] == [[other]]  # of a training step more is wanted
    own = {other: {one: {"direct": 1.0} for one in ("forward", "weights")}}
    assert found([other], own=own) == own and len(asked) == 5  # a first layer, whose samples want no gradient


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 100_000, '{"here": 3}', '{"here": {"1 2": {}}}'),
        *(json.dumps({"here": {" ".join(map(str, KEY)): {one: value for one in PASSES}}}) for value in (0, {"x": 1.0})),
    ],
)
def test_a_cache_that_cannot_be_read_is_measured_again(tmp_path, text):
    path = tmp_path / "cache.json"
    path.write_text(text)
    rows = [(KEY, one, name, time) for one in PASSES for name, time in SECONDS[one].items()]
    assert algorithms.measured([KEY], PASSES, lambda missing: rows, "here", str(path)) == {KEY: SECONDS}
    assert json.loads(path.read_text())["here"]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    rows = [(KEY, "forward", "direct", 1.0)]
    found = algorithms.measured([KEY], PASSES, lambda _: rows, "here", str(tmp_path / "file" / "cache.json"))
    assert found == {KEY: {"forward": {"direct": 1.0}}}


def test_a_trainer_in_use_is_not_given_other_algorithms():
    """Plans in which another thread computes are not freed."""
    found = []

    class Asks(gg.data.Source):
        shape, dtype = (5, 10, 9), np.float32
        targets = np.zeros(16, np.int32)

        def __len__(self):
            return 16

        def read(self, rows, epoch, samples, targets):
            samples[...] = 0
            for call in (
                lambda: trainer.core.set_algorithms([]),
                lambda: trainer.core.measure_algorithms(8, True, [], 1.0),
            ):
                try:
                    call()
                except RuntimeError as error:
                    found.append(str(error))

    with gg.Trainer(network(), comm=gg.VirtualCluster(1)) as trainer:
        trainer.evaluate(gg.Dataset(Asks()), batch_size=8)
    assert len(found) >= 2 and set(found) == {"this trainer is in use by another thread"}


def test_times_are_of_a_machine_and_its_products(monkeypatch):
    facts = gg.launch.environment.core_info()
    found = set()
    for paired in (False, True):
        monkeypatch.setattr(gg.launch.environment, "core_info", lambda paired=paired: facts | {"paired": paired})
        found.add(algorithms.machine("avx512", "native", 2, "float32"))
    assert len(found) == 2


def test_the_fastest_of_each_pass(monkeypatch):
    assert algorithms.fastest(SECONDS) == CHOSEN
    assert algorithms.fastest({"data": SECONDS["data"]}) == ("direct", "direct", "winograd4")
    near = {"direct": 1.02, "winograd2": 1.04, "winograd4": 1.0, "winograd6": 1.0}
    assert algorithms.fastest({"forward": near})[0] == "direct"
    assert algorithms.fastest({"forward": near | {"direct": 1.1}})[0] == "winograd4"
    for fast, rule in ((False, "widened"), (True, "direct")):
        monkeypatch.setattr(gg.launch.environment, "core_info", lambda fast=fast: {"bfloat16_is_fast": fast})
        narrow = {"forward": {"direct": 3.0, "widened": 1.0, "winograd4": 1.2}}
        assert algorithms.fastest(narrow) == ("widened", rule, rule)
    monkeypatch.undo()
    assert algorithms.fastest({"forward": near | {"direct": 1.1, "winograd6": 0.9}})[0] == "winograd6"
    described = json.loads(json.dumps(algorithms.report({KEY: SECONDS})))
    assert algorithms.choices(described) == [(KEY, CHOSEN)]
    older = [{name: value for name, value in described[0].items() if name != "window"}]
    assert algorithms.choices(older) == [(KEY, CHOSEN)] and algorithms.known(older) == {KEY: SECONDS}
    assert described[0]["seconds"] == SECONDS and described[0]["filters"] == 20


def test_the_core_measures_every_candidate():
    first = (8, 5, 10, 9, 16, 1, 1, 1, 1, 3, 3, *PLAIN)
    with gg.Trainer(network(), backend="native") as trainer:
        keys = trainer.core.convolutions(8, True)
        assert keys == [KEY, first]  # the one with more operations first
        rows = trainer.core.measure_algorithms(8, True, keys, 100.0)
        assert {(key, one): {name for k, o, name, _ in rows if (k, o) == (key, one)} for key, one, *_ in rows} == {
            (first, "forward"): CANDIDATES,
            (first, "weights"): CANDIDATES,
            **{(KEY, one): CANDIDATES for one in PASSES},
        }
        assert all(seconds > 0 for *_, seconds in rows)
        assert {key for key, *_ in trainer.core.measure_algorithms(8, True, [first], 100.0)} == {first}
        assert {(key, one) for key, one, *_ in trainer.core.measure_algorithms(8, False, [KEY], 100.0)} == {
            (KEY, "forward")
        }
        assert trainer.core.measure_algorithms(8, True, keys, 0.0) == []  # no time
    with gg.Trainer(network(), device="cpu") as trainer:  # whichever layouts its tables choose
        keys = trainer.core.convolutions(8, True)
        assert all(name in CANDIDATES for *_, name, _ in trainer.core.measure_algorithms(8, True, keys, 100.0))
    with gg.Trainer(gg.models.mlp(), loss="binary_cross_entropy") as trainer:
        assert trainer.core.convolutions(8, True) == []


def test_fit_uses_what_was_measured(injected):
    with gg.Trainer(
        network(), backend="native", tune=True, comm=gg.VirtualCluster(2), strategy=gg.AllReduce()
    ) as trainer:
        history = fit(trainer)
        assert used(trainer) == dict(zip(PASSES, CHOSEN, strict=True))
        assert history.algorithms == algorithms.report({KEY: SECONDS})
        assert history.to_dict()["algorithms"] == history.algorithms and history.settings["tune"] is True
        assert len(set(trainer.weights_sha256())) == 1
    with gg.Trainer(network(), backend="native", tune=False) as trainer:
        assert fit(trainer).algorithms == []
    with gg.Trainer(network(), backend="native", tune=True, conv_algorithm="winograd") as trainer:
        assert fit(trainer).algorithms == []
        assert set(used(trainer).values()) == {"winograd4"}


def test_a_step_and_bench_use_what_was_measured(injected):
    x, y = data(8)
    with gg.Trainer(network(), backend="native", tune=True, comm=gg.VirtualCluster(2)) as trainer:
        trainer.train_step([x, x], [y, y])
        assert used(trainer) == dict(zip(PASSES, CHOSEN, strict=True))
        trainer.train_step([x[:3], x[:3]], [y[:3], y[:3]])
        assert [one["batch"] for one in trainer.algorithms] == [8]  # those of the first step; the cost model for others
    with gg.Trainer(network(), backend="native", tune=False) as trainer:
        trainer.train_step(x, y)
        assert trainer.algorithms == []


def test_bench_measures(monkeypatch, tmp_path):
    cache = tmp_path / "gossipgrad" / "algorithms.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    how = {"model": "resnet20", "batch_size": 2, "steps": 1, "warmup": 1}
    assert bench.step(**how, tune=False)["first_step_s"] > 0 and not cache.exists()
    bench.step(**how, tune=True)
    assert cache.exists()


def test_evaluation_measures_only_where_it_pays(monkeypatch, tmp_path):
    """The forward pass alone, once; with few batches what is in the cache is used."""
    asked = []

    def measured(wanted, passes, measure, where, path, own):
        asked.append((wanted[0][0], passes))
        rows = list(measure(wanted))
        return {wanted[0]: {"forward": SECONDS["forward"]}} | (own or {}) if rows else own or {}

    monkeypatch.setattr(algorithms, "measured", measured)
    monkeypatch.setattr(algorithms, "PAYS", 4)
    (x, y), plain = data(32), ("forward",)
    for comm in (None, gg.VirtualCluster(2)):
        asked.clear()
        with gg.Trainer(network(), backend="native", tune=True, comm=comm) as trainer:
            size = trainer.size
            trainer.predict(x[:7], batch_size=8)  # no full batch
            trainer.predict(x[: 16 * size], batch_size=16)  # one
            assert asked == [(16, plain)] and trainer.algorithms == []
            trainer.evaluate(x[: 16 * size], y[: 16 * size], batch_size=16)
            assert asked == [(16, plain)]
            trainer.evaluate(np.tile(x, (size, 1, 1, 1)), np.tile(y, size), batch_size=8)
            assert asked == [(16, plain), (8, plain)] and [one["seconds"] for one in trainer.algorithms] == [
                {"forward": SECONDS["forward"]}
            ]
            trainer.evaluate(np.tile(x, (size, 1, 1, 1)), np.tile(y, size), batch_size=8)
            batch = ([x[:8]] * size, [y[:8]] * size) if comm else (x[:8], y[:8])
            trainer.train_step(*batch)
            assert asked == [(16, plain), (8, plain), (8, PASSES)]
    with gg.Trainer(network(), tune=False) as trainer:
        trainer.evaluate(x, y, batch_size=8)
    assert len(asked) == 3


def test_a_resumed_run_computes_the_same_bits(injected, monkeypatch, tmp_path):
    options = {"backend": "native", "comm": gg.VirtualCluster(2), "seed": 3}
    with gg.Trainer(network(), tune=True, **options) as whole:
        wanted = fit(whole, epochs=2).weights_sha256
    with gg.Trainer(network(), tune=True, **options) as half:
        fit(half)
        half.save(tmp_path / "c")
    monkeypatch.setattr(algorithms, "measured", refuse)
    for tune in (True, False):
        with gg.Trainer(network(), tune=tune, **options) as rest:
            history = fit(rest, epochs=2, resume=tmp_path / "c")
            assert history.weights_sha256 == wanted and used(rest) == dict(zip(PASSES, CHOSEN, strict=True))
    with gg.Trainer(network(), tune=False, conv_algorithm="direct", **options) as other:
        assert fit(other, epochs=2).weights_sha256 != wanted
    with gg.Trainer(network(), tune=False, **options) as first:  # of rules, and so it goes on
        fit(first)
        first.save(tmp_path / "rules")
        wanted = fit(first, epochs=1).weights_sha256
    with gg.Trainer(network(), tune=True, **options) as rest:
        assert fit(rest, epochs=2, resume=tmp_path / "rules").weights_sha256 == wanted


def test_load_measures_as_a_new_trainer_does(injected, monkeypatch, tmp_path):
    for tune in (False, True):
        with gg.Trainer(network(), tune=tune) as trainer:
            trainer.save(tmp_path / f"{tune}")
    for wanted in ("1", "0", ""):
        monkeypatch.setenv("GOSSIPGRAD_TUNE", wanted)
        loaded = [gg.Trainer.load(tmp_path / f"{tune}") for tune in (False, True)]
        assert [one.settings()["tune"] for one in loaded] == [wanted == "1"] * 2


def test_a_checkpoint_from_before_the_first_step_has_chosen_nothing(injected, monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_TUNE", "1")
    with gg.Trainer(network()) as trainer:
        trainer.save(tmp_path / "c")
    with gg.Trainer.load(tmp_path / "c") as again:
        fit(again)
        assert again.algorithms[-1:] == algorithms.report({KEY: SECONDS})


@pytest.mark.skipif(
    not gg._core.info()["onednn"] or gg._core.info()["isa"] not in ("avx512", "amx"), reason="no bfloat16 here"
)
def test_algorithms_are_those_of_a_type(injected, tmp_path):
    with gg.Trainer(network(), tune=True) as trainer:
        fit(trainer)
        trainer.save(tmp_path / "c")
    for dtype in ("float32", "bfloat16"):
        with gg.Trainer(network(), tune=False, dtype=dtype) as trainer:
            fit(trainer, epochs=2, resume=tmp_path / "c")
            assert bool(trainer.algorithms) == trainer.algorithms_saved == (dtype == "float32")


MEASURES = ("convolutions", "measure_algorithms", "measure_tables", "measure_step")


def test_by_default_nothing_is_measured(monkeypatch, tmp_path):
    """Not even asked of the core, and the cache is neither read nor written; by $GOSSIPGRAD_TUNE and tune= it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GOSSIPGRAD_TUNE", raising=False)
    monkeypatch.setattr("gossipgrad.training.tuning.measured", refuse)
    x, y = data(8)
    for comm in (None, gg.VirtualCluster(2)):
        with gg.Trainer(network(), comm=comm) as trainer:
            history = fit(trainer)
            assert history.algorithms == [] and history.settings["tune"] is False
            trainer.evaluate(*data(), batch_size=8)
            trainer.train_step(*(([x, x], [y, y]) if comm else (x, y)))
    bench.step("lenet", batch_size=2, steps=1, warmup=1)
    assert os.listdir(tmp_path) == []
    for said, tune in (("1", None), ("", True)):
        monkeypatch.setenv("GOSSIPGRAD_TUNE", said)
        with gg.Trainer(network(), tune=tune) as trainer, pytest.raises(AssertionError, match="measured"):
            fit(trainer)


def test_who_measures_without_a_word(monkeypatch):
    for said, found in (("", [False, False, True]), ("0", [False] * 3), ("1", [True] * 3)):
        monkeypatch.setenv("GOSSIPGRAD_TUNE", said)
        kinds = (("cpu", "exact"), ("cuda:1", "exact"), ("cuda", "fast"))
        assert [algorithms.wanted(*kind) for kind in kinds] == found


CHOICES = """
import test_algorithms as t, gossipgrad as gg
for batch in (1, 8, 64):
    with gg.Trainer(t.network()) as trainer:
        x, y = t.data(batch)
        trainer.train_step(x, y)
        print(trainer.core.node_backends(), trainer.core.node_algorithms(), trainer.weights_sha256())
"""


def test_the_choice_is_the_same_in_another_process(tmp_path):
    """With another cache, and beside a process that computes all the while."""
    found = []
    for busy in (False, True):
        environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path / str(busy)), "PYTHONPATH": os.path.dirname(__file__)}
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * busy)]
        try:
            run = subprocess.run(
                [sys.executable, "-c", CHOICES], env=environ, capture_output=True, text=True, check=True
            )
        finally:
            for one in others:
                one.kill()
                one.wait()
        found.append(run.stdout)
    assert found[0] == found[1] != ""


def test_ranks_choose_by_the_kind_of_rank_0(monkeypatch):
    """And so do all of its trainers; a kind that there is not is refused."""
    with gg.Trainer(network()) as trainer:
        assert trainer.costs == _core.info()["costs"]
        assert fit(trainer).environment["costs"] == trainer.costs
    monkeypatch.setattr(gg.launch.agreement, "gather", lambda team, own, where: [b"scalar", own])
    with gg.Trainer(network()) as trainer:
        assert trainer.costs == "scalar"
    monkeypatch.setattr(gg.launch.agreement, "gather", lambda team, own, where: [b"zen99", own])
    with pytest.raises(ValueError, match="zen99"):
        gg.Trainer(network())


both_tables = pytest.mark.skipif(not _core.info()["onednn"], reason="this build has one table")


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
@pytest.mark.skipif(_core.info()["isa"] not in ("avx2", "avx512", "amx"), reason="kinds that were measured")
def test_single_samples_are_in_blocks_and_full_lanes_are_not():
    def tables(net, batch, loss="cross_entropy"):
        with gg.Trainer(net, loss=loss) as trainer:
            x, y = bench.synthetic_batch(trainer.net, trainer.loss, batch)
            trainer.train_step(x, y)
            return set(trainer.core.node_backends()) - {""}

    assert "onednn" in tables(gg.models.resnet20(), 1)
    assert tables(gg.models.lenet(), 64) == {"native"}
    with gg.Trainer(gg.models.lenet(), conv_algorithm="direct") as trainer:
        trainer.train_step(*bench.synthetic_batch(trainer.net, trainer.loss, 64))
        assert {name for one in trainer.core.node_algorithms() if one for _, name in one.values()} == {"direct"}


def test_measuring_for_itself(patient, tmp_path, capsys):
    with gg.Trainer(network(), backend="native", tune=True) as trainer:
        first = fit(trainer).algorithms
        assert capsys.readouterr().out == ""  # progress=False
    assert len(first) == 2 and (tmp_path / "cache" / "gossipgrad" / "algorithms.json").exists()
    with gg.Trainer(network(), backend="native", tune=True) as trainer:
        assert fit(trainer).algorithms == first


def test_measuring_says_what_it_gives_up(patient, capsys):
    with gg.Trainer(network(), backend="native", tune=True) as trainer:
        trainer.fit(*data(), epochs=1, batch_size=8)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("measuring algorithms: ") and "bits may differ from those of other runs" in said[0]
    with gg.Trainer(network(), backend="native", tune=True) as trainer:  # by the cache
        trainer.fit(*data(), epochs=1, batch_size=8)
    assert "measuring" not in capsys.readouterr().out


def _add_many(path, name):
    for i in range(40):
        algorithms._add(path, "here", {f"{name} {i}": {"forward": {"direct": 1.0}}})


def test_two_processes_lose_nothing_of_the_cache(tmp_path):
    path, context = str(tmp_path / "gossipgrad" / "cache.json"), multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(path, name)) for name in "ab"]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    found = json.loads((tmp_path / "gossipgrad" / "cache.json").read_text())["here"]
    assert set(found) == {f"{name} {i}" for name in "ab" for i in range(40)}


def test_a_lock_that_is_never_released_is_passed_by(tmp_path, monkeypatch):
    monkeypatch.setattr(algorithms, "LOCK_SECONDS", 0.05)
    lock = gg.state.files.locked_folder(str(tmp_path))
    algorithms._add(str(tmp_path / "cache.json"), "here", {"a": 1})
    os.close(lock)
    assert json.loads((tmp_path / "cache.json").read_text()) == {"here": {"a": 1}}


@pytest.mark.parametrize("choices", [{}, [3], [(KEY, ("direct",))], [(KEY[:3], CHOSEN)], [(KEY, ("fft",) * 3)]])
def test_choices_are_checked(choices):
    with gg.Trainer(network()) as trainer, pytest.raises((TypeError, ValueError)):
        trainer.core.set_algorithms(choices)


class Seconds:
    """A budget that stays unspent."""

    def __init__(self, seconds):
        self.seconds = seconds

    def left(self):
        return self.seconds


def test_the_order_of_tables_is_in_the_cache(tmp_path):
    path, asked = str(tmp_path / "folder" / "cache.json"), []

    def measure(batch, net):
        asked.append(batch)
        return ({"onednn": 0.5, "native": 0.25}, "") if batch != 3 else ({}, "too slow" if net == "slow" else "")

    def found(batch, net="net", where="here", own=(), seconds=2.0):
        budget = Seconds(seconds)
        return algorithms.tables(batch, net, lambda size: measure(size, net), where, path, list(own), budget)

    wanted = [{"batch": 8, "table": "native", "seconds": {"onednn": 0.5, "native": 0.25}}]
    assert found(8) == found(8) == wanted and asked == [8]
    assert found(8, own=wanted) == wanted and asked == [8]
    assert found(8, net="other") == found(8, where="there") == wanted and asked == [8, 8, 8]
    assert found(3) == [] and found(3, own=wanted) == wanted  # nothing to choose
    slow = {"batch": 3, "table": None, "reason": "too slow"}
    assert found(3, net="slow", own=wanted) == [*wanted, slow] and found(3, net="slow", own=[slow]) == [slow]
    assert asked[3:] == [3, 3, 3]
    assert found(3, net="slow") == found(3, net="slow", seconds=3.9) == [slow] and asked[6:] == []  # of the cache
    assert found(3, net="slow", seconds=4.0) == [slow] and asked[6:] == [3]
    assert found(3, net="slow", seconds=7.9) == [slow] and asked[7:] == []  # it has the larger budget
    assert algorithms.first_tables([*wanted, slow]) == [(8, "native")]
    assert algorithms.known([slow]) == {} and algorithms.choices([slow]) == []
    described = algorithms.report({KEY: SECONDS}) + found(4, own=wanted)
    assert algorithms.first_tables(described) == [(8, "native"), (4, "native")]
    assert algorithms.known(described) == {KEY: SECONDS} and algorithms.choices(described) == [(KEY, CHOSEN)]
    for damaged in ({"native": "fast"}, {"nosuch": 1.0}, {"reason": "slow"}, {"reason": 3, "budget": 1.0}):
        (tmp_path / "folder" / "cache.json").write_text(json.dumps({"here, first table": {"net 8": damaged}}))
        asked.clear()
        assert found(8) == wanted and asked == [8]


def test_tables_are_compared_with_the_fastest_algorithms_of_each():
    """The faster one by the cost model is not the faster one by what its convolutions are measured to take."""
    calls = []

    def steps(seconds, *chosen):
        calls.append(("steps", *chosen))
        assert 0 < seconds <= 8.0
        return ({"onednn": 0.3, "native": 0.1}, "") if chosen else (by_rule, "")

    def choices(name, seconds):
        calls.append(name)
        assert 0 < seconds <= 2.0
        return [name]

    by_rule = {"onednn": 0.4, "native": 0.5}
    assert algorithms.compared(steps, choices, Seconds(8.0)) == ({"onednn": 0.3, "native": 0.1}, "")
    assert calls == [("steps",), "onednn", "native", ("steps", ["onednn"], ["native"])]
    by_rule, calls[:] = {"onednn": 0.1, "native": 0.1 * algorithms.CLEAR * 1.01}, []
    assert algorithms.compared(steps, choices, Seconds(8.0)) == (by_rule, "") and calls == [("steps",)]
    assert algorithms.compared(lambda _, *chosen: ({}, "why"), choices, Seconds(8.0)) == ({}, "why")
    near = {"onednn": 0.1, "native": 0.2}  # with them no time was left
    assert algorithms.compared(lambda _, *chosen: ({}, "why") if chosen else (near, ""), choices, Seconds(8.0)) == (
        near,
        "",
    )
    by_rule, calls[:] = near, []  # without convolutions there is nothing to compare again
    assert algorithms.compared(steps, lambda *_: [], Seconds(8.0)) == (near, "") and calls == [("steps",)]


def test_what_measuring_the_tables_has_measured_stays_in_the_cache(tmp_path):
    path, passes = str(tmp_path / "cache.json"), ("forward",)

    def rows(_):
        return [(KEY, "forward", name, seconds) for name, seconds in SECONDS["forward"].items()]

    def measure(_):
        algorithms.measured([KEY], passes, rows, "here, native first", path)
        return {"onednn": 0.5, "native": 0.25}, ""

    wanted = [{"batch": 8, "table": "native", "seconds": {"onednn": 0.5, "native": 0.25}}]
    assert algorithms.tables(8, "net", measure, "here", path, [], Seconds(1.0)) == wanted
    assert algorithms.measured([KEY], passes, refuse, "here, native first", path) == {
        KEY: {"forward": SECONDS["forward"]}
    }
    assert algorithms.tables(8, "net", refuse, "here", path, [], Seconds(1.0)) == wanted


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
def test_the_steps_of_each_table_have_its_algorithms():
    """Seen by the memory of the plans. What is given is not set, and what is set does not count."""
    key = (16, 16, 24, 24, 16, 2, 2, 1, 0, 5, 5, *PLAIN)

    def memory(*given, set_before="direct"):
        layers = [gg.Conv2d(16, 5, padding=2), gg.Conv2d(16, 5, padding=2), gg.Flatten(), gg.Linear(10)]
        with gg.Trainer(gg.Sequential(layers, input=(3, 24, 24)), tune=False) as trainer:
            assert key in trainer.core.convolutions(16, True, "native")
            trainer.core.set_algorithms([(key, (set_before,) * 3)])
            trainer.core.measure_tables(16, 100.0, *([(key, (name,) * 3)] for name in given))
            assert trainer.algorithms == []
            return trainer.core.bytes()

    direct, winograd = memory("direct", "direct"), memory("winograd4", "winograd4")
    assert memory("direct", "winograd4") > direct == memory() == memory("direct", "direct", set_before="winograd4")
    assert memory(set_before="winograd4") == winograd > direct
    with gg.Trainer(network(), tune=False) as trainer:
        choice = (KEY, CHOSEN)
        for wrong in ([[choice]], [[choice], [3]], [[choice], [(KEY, ("fast",) * 3)]], [[(3, CHOSEN)], []], [{}, []]):
            with pytest.raises((TypeError, ValueError)):
                trainer.core.measure_tables(8, 100.0, *wrong)
        trainer.core.measure_tables(8, 100.0, [choice], [])


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
@pytest.mark.parametrize("first", ["native", "onednn"])
def test_fit_asks_the_table_first_that_was_faster(injected, monkeypatch, tmp_path, first):
    entry = {"batch": 8, "table": first, "seconds": {first: 1.0}}
    monkeypatch.setattr(algorithms, "tables", lambda *_: [entry])
    options = {"comm": gg.VirtualCluster(2), "strategy": gg.AllReduce(), "seed": 3}

    def names(trainer):
        return {name for name in trainer.core.node_backends() if name} - ({"native"} if first == "onednn" else set())

    with gg.Trainer(network(), tune=True, **options) as trainer:
        history = fit(trainer)
        assert names(trainer) == {first} and history.algorithms[0] == entry
        assert len(set(trainer.weights_sha256())) == 1
        trainer.save(tmp_path / "c")
        wanted = fit(trainer).weights_sha256
    monkeypatch.setattr(algorithms, "tables", refuse)
    monkeypatch.setattr(algorithms, "measured", refuse)
    with gg.Trainer(network(), tune=True, **options) as trainer:
        history = fit(trainer, epochs=2, resume=tmp_path / "c")
        assert names(trainer) == {first} and history.weights_sha256 == wanted and history.algorithms[0] == entry


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
def test_measuring_steps_changes_nothing():
    x, y = data(8)
    with gg.Trainer(network(), tune=False) as trainer:
        trainer.train_step(x, y)
        before = trainer.weights_sha256()
        seconds, reason = trainer.core.measure_tables(8, 100.0)
        assert set(seconds) == {"onednn", "native"} and all(0 < one < 60 for one in seconds.values()) and not reason
        for budget in (0.0, -1.0, 1e-9, float("nan")):  # 1e-9: the time is spent within the first step
            seconds, reason = trainer.core.measure_tables(8, budget)
            assert seconds == {} and reason.endswith(" s do not suffice for a step with each table first")
        assert trainer.weights_sha256() == before
        trainer.train_step(x, y)
        after = trainer.weights_sha256()
        for wrong in ([3], [(8, "cuda")], [("8", "native")]):
            with pytest.raises((TypeError, ValueError)):
                trainer.core.set_algorithms([], wrong)
    with gg.Trainer(network(), tune=False) as trainer:
        for _ in range(2):
            trainer.train_step(x, y)
        assert trainer.weights_sha256() == after
    with gg.Trainer(network(), backend="native") as trainer:
        assert trainer.core.measure_tables(8, 100.0) == ({}, "")


@both_tables
def test_a_measurement_that_fails_changes_nothing(injected, monkeypatch):
    """The ranks that wait for the measuring one have changed nothing either."""
    x, y = data(8)
    with gg.Trainer(network(), tune=False) as trainer:
        trainer.train_step(x, y)
        wanted = trainer.core.node_backends()
    for first in ("native", "onednn"):
        entry = {"batch": 8, "table": first, "seconds": {first: 1.0}}
        monkeypatch.setattr(algorithms, "tables", lambda *_, entry=entry: [entry])
        monkeypatch.setattr(algorithms, "measured", refuse)
        with gg.Trainer(network(), tune=True) as trainer:
            with pytest.raises(AssertionError, match="measured"):
                fit(trainer)
            with monkeypatch.context() as without:
                without.setattr(gg.Trainer, "choose_algorithms", lambda *_: None)
                trainer.train_step(x, y)
            assert trainer.core.node_backends() == wanted and trainer.algorithms == []


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
def test_a_measurement_is_given_the_first_table():
    """Which a measurement is given, and which is not set by it."""
    with gg.Trainer(network(), tune=False) as trainer:
        # oneDNN's table has its images NHWC, which no other algorithm reads.
        assert KEY in trainer.core.convolutions(8, True, "native")
        assert KEY not in trainer.core.convolutions(8, True, "onednn")
        for first in ("native", "onednn", None):
            assert trainer.core.measure_algorithms(8, True, [KEY], 0.0, first) == []
        for call in (
            lambda: trainer.core.convolutions(8, True, "cuda"),
            lambda: trainer.core.measure_algorithms(8, True, [KEY], 1.0, "cuda"),
        ):
            with pytest.raises(ValueError, match="cuda"):
                call()


@pytest.mark.cpu("which of its tables is asked first")
@both_tables
def test_without_time_the_cost_model_chooses_the_order_of_tables(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with gg.Trainer(network(), tune=False) as trainer:
        wanted = fit(trainer).weights_sha256
    with gg.Trainer(network(), tune=True) as trainer:
        history = fit(trainer)
        assert history.weights_sha256 == wanted and len(history.algorithms) == 1
        assert history.algorithms[0]["table"] is None and "do not suffice" in history.algorithms[0]["reason"]
        trainer.save(tmp_path / "c")
        wanted = fit(trainer).weights_sha256
    with gg.Trainer(network(), tune=True) as trainer:
        assert fit(trainer, epochs=2, resume=tmp_path / "c").weights_sha256 == wanted


def test_measuring_takes_a_share_of_the_run_and_of_a_timeout():
    def whole(*args):
        return pytest.approx(algorithms.Budget(*args).left(), abs=0.01)

    assert algorithms.SECONDS == whole() == whole(1e6) == whole(0.0, 10**9, lambda: 1.0)
    assert 4.0 * algorithms.PATIENCE == whole(4.0) == whole(4.0, 10**9, lambda: 1.0)
    assert 2.0 == whole(0.0, 100, lambda: 0.2) and whole(0.0, 100, lambda: 1e-6) == 0.0
    assert algorithms.Budget(0.0, algorithms.MIN_STEPS - 1, refuse).left() == 0.0  # not worth a step
    assert algorithms.Budget().left() > 0
    with gg.Trainer(network()) as trainer:
        trainer.train_step(*data(8))
        before = trainer.weights_sha256()
        assert 0 < trainer.core.measure_step(8) < 60 and trainer.weights_sha256() == before
        for wrong in ("8", None, 2.5):
            with pytest.raises(TypeError):
                trainer.core.measure_step(wrong)


def test_a_budget_runs_out(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(algorithms.time, "monotonic", lambda: now[0])
    budget = algorithms.Budget(0.0, 100, lambda: 0.2)
    assert budget.left() == 2.0
    now[0] += 1.5
    assert budget.left() == 0.5
    now[0] += 1.5
    assert budget.left() == 0.0
