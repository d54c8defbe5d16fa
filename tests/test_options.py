"""Optimisers, schedules, strategies, clusters: their keywords, and the errors that name them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import typing

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core, compression, optim, plots, schedules, strategies


def test_the_core_knows_the_same_names():
    core = {key: set(names) for key, names in _core.choices().items()}
    gossip = _core.describe("strategy")["gossipgrad"]
    core |= {key: set(gossip[key]["names"]) for key in ("exchange", "wire_dtype", "collectives")}
    assert core == {
        "strategy": set(strategies.BY_NAME),
        "optimizer": set(optim.BY_NAME),
        "topology": set(strategies.TOPOLOGIES),
        "exchange": set(strategies.EXCHANGES) - {"auto", "slices"},
        "wire_dtype": set(strategies.WIRES),
        "collectives": set(strategies.COLLECTIVES),
        "family": set(compression.FAMILIES),
        "mode": set(compression.MODES),
        "selection": set(compression.SELECTIONS),
    }


@pytest.mark.parametrize("name", strategies.BY_NAME)
def test_strategies_have_the_keywords_and_defaults_of_the_core(name):
    described = _core.describe("strategy")[name]
    kind = strategies.BY_NAME[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    own = {"topology"} if issubclass(kind, strategies.Partnered) else set()
    own |= {"allreduce_steps"} if kind is strategies.GossipGraD else set()
    assert set(fields) - set(described) == own
    assert set(described) - set(fields) <= {"shuffle_samples"}  # a fact of the trainer
    for key, said in described.items():
        if key in fields and key != "exchange":
            unset = "log2" if (name, key) == ("periodic-allreduce", "period") else None
            assert fields[key].default == (unset if said["unset"] else said["default"])


def test_a_strategy_is_offered_by_its_row_and_its_class():
    assert list(strategies.BY_NAME) == list(_core.describe("strategy")) == list(plots._STYLES)
    assert len(set(plots._STYLES.values())) == len(plots._STYLES)
    for made in strategies.BY_NAME.values():
        assert made.__name__ in gg.__all__ and getattr(gg, made.__name__) is made


@pytest.mark.parametrize("name", optim.BY_NAME)
def test_defaults_and_help_are_those_of_the_core(name):
    described = _core.describe("optimizer")[name]
    for field in dataclasses.fields(optim.BY_NAME[name]):
        if field.name == "schedule":
            continue
        said = described[field.name]
        given = None if field.default is dataclasses.MISSING else field.default
        default = [] if said["type"] == "set" and not said["default"] else said["default"]
        assert (optim.roles(given) if said["type"] == "set" else given) == default
        assert said["required"] == (field.default is dataclasses.MISSING)
        assert field.metadata["help"] == said["help"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"lr": "fast"}, TypeError, "lr: 'fast' is no number"),
        ({"momentum": None, "weight_decay": -1}, ValueError, "weight_decay=-1: must be finite and at least 0"),
        ({"no_decay": ["edge"]}, ValueError, "no_decay: 'edge'; allowed are weight, bias"),
        ({"moments_since": 2**70}, None, ""),
        ({"moments_since": -(2**70)}, ValueError, "moments_since=-9.2.*: must be at least 0"),
    ],
)
def test_the_core_reads_options_as_it_describes_them(change, error, words):
    graph = gg.Sequential([gg.Linear(3)], input=(2,)).graph
    options = {"name": "sgd", "lr": 0.1} | change
    with pytest.raises(error, match=words) if error else contextlib.nullcontext():
        _core.Trainer(graph, _core.Team("single"), loss="cross_entropy", optimizer=options, strategy={})


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: gg.SGD(lr=-1), ValueError, ["lr=-1", ">= 0"]),
        (lambda: gg.SGD(lr="1"), TypeError, ["lr='1'"]),
        (lambda: gg.SGD(lr=float("inf")), ValueError, ["lr=inf", "finite"]),
        (lambda: gg.SGD(lr=1e39), ValueError, ["lr=1e+39", "a finite number >= 0 and <= 3.40282e+38"]),
        (lambda: gg.Adam(lr=1e39), ValueError, ["lr=1e+39", "<= 3.40282e+38"]),
        (lambda: gg.Adam(eps=1e39), ValueError, ["eps=1e+39", "<= 3.40282e+38"]),
        (lambda: gg.Adam(beta2=1 - 1e-9), ValueError, ["beta2=0.999999999", "1 in float32"]),
        (lambda: gg.SGD(lr=1, momentum=1 - 2**-25), ValueError, ["momentum=0.99999997", "< 1 - 2**-25"]),
        (lambda: gg.SGD(lr=1, weight_decay=1e39), ValueError, ["weight_decay=1e+39", "<= 3.40282e+38"]),
        (lambda: gg.SGD(lr=1, clip_norm=1e39), ValueError, ["clip_norm=1e+39", "<= 3.40282e+38"]),
        (lambda: gg.Lion(betas=(0.9, 1.0)), ValueError, ["betas[1]=1.0", "< 1"]),
        (lambda: gg.Lion(betas=(0.9, 1 - 1e-9)), ValueError, ["betas[1]=0.999999999", "1 in float32"]),
        (lambda: gg.Lion(betas=0.9), ValueError, ["betas=0.9", "2 numbers, as (0.9, 0.99)"]),
        (lambda: gg.Lion(beta1=0.9), TypeError, ["Lion() has no keyword 'beta1'", "'betas'"]),
        (lambda: gg.LARS(lr=1, trust=1e39), ValueError, ["trust=1e+39", "<= 3.40282e+38"]),
        (lambda: schedules.Cosine(final=1e39), ValueError, ["final=1e+39", "<= 3.40282e+38"]),
        (lambda: schedules.Polynomial(final=1e39), ValueError, ["final=1e+39", "<= 3.40282e+38"]),
        (lambda: schedules.Plateau(min_lr=1e39), ValueError, ["min_lr=1e+39", "<= 3.40282e+38"]),
        (lambda: gg.SGD(lr=1, momentum=1), ValueError, ["momentum=1", "< 1"]),
        (lambda: gg.SGD(lr=1, nesterov=True), ValueError, ["nesterov=True", "momentum=0"]),
        (lambda: gg.SGD(lr=1, schedule="cosine"), TypeError, ["schedule='cosine'"]),
        (lambda: schedules.Cosine(total=0), ValueError, ["total=0"]),
        (lambda: schedules.Cosine(total="all"), ValueError, ["total='all'", "auto"]),
        (lambda: schedules.StepDecay(every=0), ValueError, ["every=0"]),
        (lambda: schedules.StepDecay(every=1, gamma=2), ValueError, ["gamma=2", "<= 1"]),
        (lambda: schedules.Polynomial(power=0), ValueError, ["power=0"]),
        (lambda: schedules.Constant(warmup=-1), ValueError, ["warmup=-1"]),
        (lambda: schedules.by_name("cosine", every=3), ValueError, ["every", "cosine", "final"]),
        (lambda: schedules.by_name("step"), ValueError, ["step", "every"]),
        (lambda: gg.GossipGraD(topology="torus"), ValueError, ["topology='torus'", "'dissemination', 'cube'"]),
        (lambda: gg.GossipGraD(staleness=2), ValueError, ["staleness=2", "0, 1"]),
        (lambda: gg.GossipGraD(staleness=True), ValueError, ["staleness=True"]),
        (lambda: gg.GossipGraD(exchange="all"), ValueError, ["exchange='all'", "weights+momentum"]),
        (lambda: gg.GossipGraD(staleness=1, exchange="gradients"), ValueError, ["staleness=1", "allowed: 0, or"]),
        (lambda: gg.GossipGraD(push_sum=True, exchange="gradients"), ValueError, ["'auto', 'weights+momentum'"]),
        (lambda: gg.GossipGraD(mix="halves"), TypeError, ["no keyword 'mix'", "leave mix out"]),
        (lambda: strategies.by_name("gossipgrad", mix="halves"), ValueError, ["mix", "leave mix out"]),
        (lambda: strategies.from_settings({"strategy": "gossipgrad", "mix": "halves"}), ValueError, ["mix='halves'"]),
        (lambda: gg.GossipGraD(rotate=1), TypeError, ["rotate=1"]),
        (lambda: gg.GossipGraD(permutations=0), ValueError, ["permutations=0", "at least 1"]),
        (lambda: gg.GossipGraD(permutations=2**31), ValueError, ["permutations=2147483648", "1..2147483647"]),
        (lambda: gg.GossipGraD(permutations=True), TypeError, ["permutations=True", "an integer"]),
        (lambda: gg.GossipGraD(permutations=2.0), TypeError, ["permutations=2.0", "an integer"]),
        (lambda: gg.GossipGraD(permutations=2, rotate=False), ValueError, ["permutations=2 with rotate=False", "None"]),
        (
            lambda: gg.GossipGraD(permutations=2, topology="random"),
            ValueError,
            ["permutations=2 with topology='random'", "None, or one of 'dissemination'"],
        ),
        (
            lambda: gg.GossipGraD(permutations=1, topology=[[1, 0]]),
            ValueError,
            ["permutations=1 with topology=a table"],
        ),
        (lambda: gg.GossipGraD(wire_dtype="float16"), ValueError, ["wire_dtype='float16'", "bfloat16"]),
        (lambda: gg.AllReduce(wire_dtype=16), ValueError, ["wire_dtype=16", "float32"]),
        (lambda: gg.LayerwiseAllReduce(wire_dtype=None), ValueError, ["wire_dtype=None", "float32"]),
        (lambda: gg.PeriodicAllReduce(wire_dtype="half"), ValueError, ["wire_dtype='half'", "float32"]),
        (
            lambda: strategies.by_name("no-exchange", wire_dtype="bfloat16"),
            ValueError,
            ["wire_dtype", "no-exchange", "it has shuffle_samples"],
        ),
        (lambda: gg.GossipGraD(chunk_bytes=0), ValueError, ["chunk_bytes=0"]),
        (
            lambda: strategies.by_name("ring"),
            ValueError,
            [
                "strategy='ring'",
                "'gossipgrad', 'allreduce'",
            ],
        ),
        (
            lambda: strategies.by_name("allreduce", topology="cube"),
            ValueError,
            ["topology", "allreduce", "it has wire_dtype"],
        ),
        (lambda: gg.LayerwiseAllReduce(bucket_bytes=0), ValueError, ["bucket_bytes=0", "at least 1"]),
        (lambda: gg.LayerwiseAllReduce(chunk_bytes="1"), TypeError, ["chunk_bytes='1'"]),
        (lambda: gg.PeriodicAllReduce(period=0), ValueError, ["period=0", "at least 1"]),
        (lambda: gg.PeriodicAllReduce(period="log"), ValueError, ["period='log'", "'log2'", "at least 1"]),
        (lambda: gg.PeriodicAllReduce(period=2.0), TypeError, ["period=2.0"]),
        (lambda: gg.PeriodicAllReduce(period=True), TypeError, ["period=True"]),
        (lambda: gg.PullGossip(interval=0), ValueError, ["interval=0", "at least 1"]),
        (lambda: gg.PushGossip(interval=1.0), TypeError, ["interval=1.0"]),
        (lambda: gg.PullGossip(probability=0), ValueError, ["probability=0", "> 0 and <= 1"]),
        (lambda: gg.PushGossip(probability=1.5), ValueError, ["probability=1.5", "> 0 and <= 1"]),
        (lambda: gg.PushGossip(push_sum=1), TypeError, ["push_sum=1"]),
        (lambda: gg.PushGossip(wire_dtype="float16"), ValueError, ["wire_dtype='float16'", "bfloat16"]),
        (lambda: gg.PullGossip(chunk_bytes=0), ValueError, ["chunk_bytes=0"]),
        (lambda: gg.OverlappedAveraging(overlap=1), TypeError, ["overlap=1", "True or False"]),
        (lambda: gg.OverlappedAveraging(chunk_bytes=0), ValueError, ["chunk_bytes=0", "at least 1"]),
        (lambda: gg.VirtualCluster(0), ValueError, ["p=0"]),
        (lambda: gg.VirtualCluster(2, latency=-1), ValueError, ["latency=-1"]),
    ],
)
def test_bad_keywords(make, error, words):
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_rates():
    sgd = gg.SGD(0.4, schedule=schedules.StepDecay(every=10, gamma=0.5))
    assert [sgd.rate(t) for t in (0, 9, 10, 25)] == pytest.approx([0.4, 0.4, 0.2, 0.1])
    sgd = gg.SGD(0.4, schedule=schedules.Cosine(total=100, final=0.1))
    assert [sgd.rate(t) for t in (0, 50, 100, 200)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    sgd = gg.SGD(0.4, schedule=schedules.Polynomial(total=100, power=2))
    assert sgd.rate(50) == pytest.approx(0.1)
    sgd = gg.SGD(0.4, schedule=schedules.Constant(warmup=4, warmup_start=0.5))
    assert [sgd.rate(t) for t in (0, 2, 4, 5)] == pytest.approx([0.2, 0.3, 0.4, 0.4])


def test_auto_total_is_the_whole_run_with_its_warmup():
    sgd = gg.SGD(1.0, schedule=schedules.Cosine(warmup=20))
    assert sgd.rate(20, total=120) == 1.0
    assert sgd.rate(70, total=120) == pytest.approx(0.5)
    assert sgd.rate(120, total=120) == 0.0
    assert sgd.rate(119, total=120) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.99)))
    with pytest.raises(ValueError, match="total='auto'"):
        sgd.rate(3)


def test_settings_make_the_same_objects():
    for schedule in (
        schedules.Constant(),
        schedules.StepDecay(every=3),
        schedules.Cosine(),
        schedules.Polynomial(total=9),
    ):
        sgd = gg.SGD(0.1, 0.9, 1e-4, True, schedule)
        adam = gg.Adam(0.1, 0.8, 0.99, 1e-7, 1e-4, True, schedule)
        for optimizer in (sgd, adam):
            assert optim.from_settings(optimizer.settings()) == optimizer
    for strategy in (
        gg.GossipGraD(topology="cube", staleness=1, chunk_bytes=99, shuffle_samples=True),
        gg.AllReduce(wire_dtype="bfloat16"),
        gg.LayerwiseAllReduce(bucket_bytes=7),
        gg.PeriodicAllReduce(),
        gg.PeriodicAllReduce(period=3),
        gg.PullGossip(interval=3, probability=0.25, push_sum=True),
        gg.PushGossip(chunk_bytes=99, wire_dtype="bfloat16"),
        gg.OverlappedAveraging(overlap=False, chunk_bytes=64),
        gg.ElasticAveraging(synchronous=False, alpha=0.1, servers=2),
        gg.ParameterServer(dedicated=True),
        gg.NoExchange(shuffle_samples=True),
    ):
        assert strategies.from_settings(strategy.settings()) == strategy
        assert strategies.by_name(**{"name": strategy.name}).name == strategy.name
    # A checkpoint may be older than a keyword.
    assert strategies.from_settings({"strategy": "gossipgrad", "staleness": 1, "lr": 2}) == gg.GossipGraD(staleness=1)
    cluster = gg.VirtualCluster(3, 1e-6, 1e9, 2.0)
    assert gg.VirtualCluster.from_settings(cluster.settings()) == cluster


# ---- whatever kind of number the caller has


def fields_of(kind):
    """Of all dataclasses that users construct: (class, other keywords it wants, keyword) where it allows this type."""
    made = [*strategies.BY_NAME.values(), *optim.BY_NAME.values(), *schedules.BY_NAME.values()]
    others = {gg.SGD: {"lr": 0.5, "momentum": 0.5}, gg.LARS: {"lr": 0.5}, schedules.StepDecay: {"every": 3}}
    others |= {gg.Straggler: {"probability": 0.5, "delay": 1.0}, gg.VirtualCluster: {"p": 2}}
    found = []
    for one in dict.fromkeys([*made, gg.Network, *others]):
        for key, annotation in typing.get_type_hints(one).items():
            allowed = typing.get_args(annotation) or (annotation,)
            if key in {field.name for field in dataclasses.fields(one)} and kind in allowed and key != "betas":
                own = dict(others.get(one, {}))
                if key == "ranks_per_node":
                    own["hierarchical"] = True
                if one is gg.ElasticAveraging and key in ("servers", "dedicated", "bucket_bytes", "chunk_bytes"):
                    own["synchronous"] = False
                found.append(pytest.param(one, own, key, id=f"{one.__name__}-{key}"))
    return found


def plain(value):
    """No NumPy anywhere in it."""
    if isinstance(value, dict):
        return all(map(plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return type(value) in (int, float, bool, str, type(None))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize(("made", "others", "key"), fields_of(int))
def test_numpy_integers_become_pythons(made, others, key, kind):
    one = made(**others | {key: kind(2)})
    assert one == made(**others | {key: 2}) and type(getattr(one, key)) is int
    json.dumps(dataclasses.asdict(one))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("made", "others", "key"), fields_of(float))
def test_numpy_floats_become_pythons(made, others, key, kind):
    one = made(**others | {key: kind(0.5)})
    assert one == made(**others | {key: 0.5}) and type(getattr(one, key)) is float
    json.dumps(dataclasses.asdict(one))


@pytest.mark.parametrize(("made", "others", "key"), fields_of(bool))
def test_numpy_truths_become_pythons(made, others, key):
    for value in (True, False):
        one = made(**others | {key: np.bool_(value)})
        assert one == made(**others | {key: value}) and type(getattr(one, key)) is bool
        json.dumps(dataclasses.asdict(one))


@pytest.mark.parametrize(("made", "others", "key"), fields_of(int))
def test_an_integer_that_the_core_cannot_hold_is_named(made, others, key):
    for value in (2**64, 10**30):
        with pytest.raises(ValueError, match=f"^{key}={value}: allowed: an integer in [012]..[0-9]+$"):
            made(**others | {key: value})


def test_every_keyword_is_among_those():
    found = {(p.values[0], p.values[2]) for kind in (int, float, bool) for p in fields_of(kind)}
    assert len(found) > 40 and (gg.GossipGraD, "bucket_bytes") in found and (gg.VirtualCluster, "p") in found


def test_numpy_scalars_of_choices_and_sequences():
    assert gg.GossipGraD(staleness=np.int64(1)) == gg.GossipGraD(staleness=1)
    assert type(gg.GossipGraD(staleness=np.int64(1)).staleness) is int
    assert gg.AllReduce(wire_dtype=np.str_("bfloat16")).settings()["wire_dtype"] == "bfloat16"
    cluster = gg.VirtualCluster(2, compute_time=np.array([1, 2], np.float32))
    assert cluster == gg.VirtualCluster(2, compute_time=(1.0, 2.0)) and plain(cluster.settings())
    assert gg.VirtualCluster.from_settings(json.loads(json.dumps(cluster.settings()))) == cluster


def test_numpy_scalars_train_and_report(tmp_path):
    """From end to end: a report and a checkpoint are JSON."""
    trainer = gg.Trainer(
        gg.Sequential([gg.Linear(np.int64(3))], input=(np.int64(4),)),
        optimizer=gg.SGD(lr=np.float32(0.1), schedule=schedules.Cosine(warmup=np.int64(1))),
        strategy=gg.PeriodicAllReduce(period=np.int64(2), shuffle_samples=np.True_),
        comm=gg.VirtualCluster(np.int64(2), straggler=gg.Straggler(np.float32(0.5), np.int64(1))),
        seed=np.uint64(3),
        threads=np.int32(1),
    )
    train, _ = gg.data.synthetic((4,), 3, 40, 8)
    train = gg.data.Dataset(train.samples, train.targets, scale=np.float32(1), shift=np.float16(0))
    history = trainer.fit(train, epochs=np.int64(1), batch_size=np.int32(5), shuffle=np.True_, progress=False)
    history.write(tmp_path / "r")
    trainer.save(tmp_path / "c")
    assert plain(history.settings) and gg.Trainer.load(tmp_path / "c").weights_sha256() == trainer.weights_sha256()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gg.models.lenet().weights(2**64), "seed=18446744073709551616"),
        (lambda: trainer_of_nothing().evaluate(([[0.0] * 4], [0]), batch_size=2**64), "batch_size="),
        (lambda: trainer_of_nothing().predict(np.zeros((2, 4), np.float32), batch_size=2**64), "batch_size="),
        (lambda: trainer_of_nothing().fit(([[0.0] * 4], [0]), epochs=2**40), "epochs="),
        (lambda: gg.SGD(lr=0.1).rate(2**64), "step="),
        (lambda: gg.SGD(lr=10**400), "lr="),
        (lambda: gg.Linear(2**64), "out="),
    ],
)
def test_numbers_beyond_all_measure_are_named(make, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        make()
    assert "allowed: " in str(caught.value) and "too big" not in str(caught.value)


def trainer_of_nothing():
    return gg.Trainer(gg.Sequential([gg.Linear(3)], input=(4,)))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: gg.Trainer(gg.models.mlp(), loss="mse"), "mean_squared_error"),
        (lambda: gg.Trainer(gg.models.mlp(), loss="BCEWithLogitsLoss"), "binary_cross_entropy"),
        (lambda: strategies.by_name("gossip-grad"), "gossipgrad"),
        (lambda: strategies.by_name("all_reduce"), "allreduce"),
        (lambda: optim.by_name("Adam"), "adam"),
        (lambda: gg.data.load("minst"), "mnist"),
        (lambda: gg.models.by_name("LeNet5"), "lenet"),
        (lambda: gg.GossipGraD(topology="Ring"), "ring"),
    ],
)
def test_a_name_that_is_nearly_right(make, name):
    with pytest.raises(ValueError, match=f"; did you mean '{name}'\\?$"):
        make()
    with pytest.raises(ValueError) as caught:
        strategies.by_name("xyz")
    assert "did you mean" not in str(caught.value)


def test_names_of_other_libraries_get_a_hint():
    trainer = gg.Trainer(gg.Sequential([gg.Linear(2)], input=(3,)), comm=gg.VirtualCluster(2))
    with pytest.raises(TypeError, match=r"fit\(\) has no keyword 'validation_data'; did you mean 'validation'\?"):
        trainer.fit(None, validation_data=None)
    with pytest.raises(TypeError, match=r"evaluate\(\) has no keyword 'batchsize'; did you mean 'batch_size'\?"):
        trainer.evaluate(None, batchsize=3)
    with pytest.raises(AttributeError, match=r"no attribute 'Dense'; did you mean 'Linear'\?"):
        _ = gg.Dense
    with pytest.raises(AttributeError, match=r"no attribute 'EarlyStoping'; did you mean 'EarlyStopping'\?"):
        _ = gg.EarlyStoping
    with pytest.raises(AttributeError, match="no attribute 'Zebra'$"):
        _ = gg.Zebra
