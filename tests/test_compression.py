"""compression=: its options, what of a network it compresses, where it goes with what, and residues in checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import pytest

import gossipgrad as gg
from gossipgrad import _core, compare, compression, strategies

COMPRESSING = [name for name, made in strategies.BY_NAME.items() if not made.not_compressed]


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"bin_size": -1}, ValueError, ["bin_size=-1", "0..16383"]),
        ({"bin_size": 2.5}, TypeError, ["bin_size=2.5", "integer"]),
        ({"bin_size": {"conv": 16384}}, ValueError, ["bin_size['conv']=16384", "0..16383"]),
        ({"bin_size": {"convs": 50}}, ValueError, ["bin_size: 'convs'", "'recurrent'", "did you mean 'conv'?"]),
        ({"factor": 0.9}, ValueError, ["factor=0.9", ">= 1"]),
        ({"factor": float("nan")}, ValueError, ["factor=nan", "finite"]),
        ({"mode": "exakt"}, ValueError, ["mode='exakt'", "'strict'", "did you mean 'exact'?"]),
        ({"mode": "exact", "values": "float16"}, ValueError, ["values='float16'", "'bfloat16'", "'float32'"]),
        ({"values": "float32"}, ValueError, ["values='float32'", "mode='strict'", "allowed: mode='exact'"]),
        ({"dense": "biases"}, ValueError, ["dense='biases'", "'bias'", "'norm'"]),
        ({"dense": 1}, TypeError, ["dense=1", "tuple"]),
        ({"dense_below": -1}, ValueError, ["dense_below=-1", "at least 0"]),
        ({"warmup": 1.5}, TypeError, ["warmup=1.5", "integer"]),
        ({"selection": "global"}, ValueError, ["selection='global'", "'cyclic'"]),
        ({"selection": "cyclic", "mode": "safe"}, ValueError, ["mode='safe'", "selection='cyclic'", "'exact'"]),
    ],
)
def test_wrong_values_are_named(how, error, words):
    with pytest.raises(error) as caught:
        gg.AdaComp(**how)
    assert all(word in str(caught.value) for word in words), caught.value


def test_values_are_plain_and_go_to_json_and_back():
    made = gg.AdaComp(bin_size={"conv": 30}, factor=3, dense=["norm", "bias"], mode="exact", values="float32", warmup=7)
    assert made.bin_size == {"conv": 30, "linear": 500, "recurrent": 500, "other": 500}
    assert made.dense == ("bias", "norm") and made.factor == 3.0 and isinstance(made.factor, float)
    assert compression.from_settings(json.loads(json.dumps(made.settings()))) == made
    assert pickle.loads(pickle.dumps(made)) == made and hash(made) == hash(dataclasses.replace(made))
    assert gg.AdaComp(bin_size=7).bin_size == dict.fromkeys(compression.FAMILIES, 7)
    assert gg.AdaComp().mode == "strict" and gg.AdaComp(selection="cyclic").mode == "exact"
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.factor = 2.0
    with pytest.raises(ValueError, match="compression='powersgd': allowed: 'adacomp'"):
        compression.by_name("powersgd")
    with pytest.raises(ValueError, match="rank: not an option of compression='adacomp'; it has bin_size, factor"):
        compression.by_name("adacomp", rank=2)


def test_the_core_checks_as_well():
    graph = gg.models.lenet().graph
    options = gg.AdaComp().options()
    for key, value, word in [
        ("bin_size", {"conv": -1}, "bin_size: -1 for 'conv'"),
        ("bin_size", {"linear": 2**40}, "for 'linear'; allowed are 1 to 16383"),
        ("factor", float("inf"), "factor: inf"),
        ("warmup", -1, "warmup: -1"),
        ("dense_below", -1, "dense_below: -1"),
        ("mode", "x", "mode"),
        ("dense", ["x"], "dense"),
    ]:
        with pytest.raises(ValueError) as caught:
            graph.compressed(options | {key: value})
        assert word in str(caught.value)


# ---------------------------------------------------------------------------------------------- what is compressed


def network() -> gg.Model:
    """A layer of each family, and parameters of each role."""
    tokens = gg.Input((5,), dtype="int32", name="tokens")
    x = gg.Embedding(11, 12)(tokens)
    x = gg.LSTM(16)(x)
    x = gg.MultiHeadAttention(16, 4)(x)
    x = gg.LayerNorm()(x)
    x = gg.Reshape((5, 4, 4))(x)
    x = gg.BatchNorm2d()(gg.Conv2d(8, 3)(x))
    return gg.Model(tokens, gg.Linear(10)(gg.Flatten()(x)))


def test_families_and_bins():
    net = network()
    made = gg.AdaComp(bin_size={"conv": 20, "linear": 70, "recurrent": 60, "other": 50}, dense_below=0)
    packed = made.packed(net)
    shapes, roles = net.parameter_shapes(), net.parameter_roles()
    assert set(packed) == {name for name, role in roles.items() if role == "weight"}
    families = {"embedding": "other", "lstm": "recurrent", "attention": "linear", "conv": "conv", "fc": "linear"}
    for name, (family, size) in packed.items():
        layer = next(key for key in families if name.startswith(key))
        assert family == families[layer] and size == min(made.bin_size[family], math.prod(shapes[name])), name
    everything = dataclasses.replace(made, dense=()).packed(net)
    assert set(everything) == {name for name, role in roles.items() if role != "statistic"}
    assert set(dataclasses.replace(made, dense="bias").packed(net)) == {
        name for name, role in roles.items() if role not in ("statistic", "bias")
    }
    some = gg.AdaComp(bin_size={"conv": 0}, dense_below=161).packed(net)
    assert set(some) == {n for n, (f, _) in packed.items() if f != "conv" and math.prod(shapes[n]) > 160}


# ---------------------------------------------------------------------------------------------- what it goes with


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (gg.NoExchange(), ["compression='adacomp' with strategy='no-exchange'", "sends nothing", "allreduce"]),
        (gg.OverlappedAveraging(), ["strategy='overlapped-averaging'", "receive weights"]),
        (gg.PullGossip(), ["strategy='pull-gossip'", "allowed with it: gossipgrad"]),
        (gg.PushGossip(), ["strategy='push-gossip'"]),
        (gg.AllReduce(wire_dtype="bfloat16"), ["wire_dtype='bfloat16'", "allowed: 'float32'"]),
        (gg.LayerwiseAllReduce(collectives="mpi"), ["collectives='mpi'", "allowed: 'own'"]),
        (gg.GossipGraD(exchange="gradients"), ["exchange='gradients'", "'weights'"]),
        (gg.GossipGraD(hierarchical=True), ["hierarchical=True", "allowed: False"]),
        (gg.GossipGraD(push_sum=True), ["push_sum=True", "allowed: False"]),
    ],
)
def test_what_it_does_not_go_with(strategy, words):
    with pytest.raises(ValueError) as caught:
        gg.Trainer(gg.models.lenet(), strategy=strategy, compression=gg.AdaComp(), comm=gg.VirtualCluster(2))
    assert all(word in str(caught.value) for word in words), caught.value
    gg.Trainer(gg.models.lenet(), strategy=strategy, comm=gg.VirtualCluster(2)).close() if "mpi" not in words[0] else 0


@pytest.mark.parametrize(("value", "hint"), [("adacomp", "gossipgrad.AdaComp()"), (gg.AdaComp, "gossipgrad.AdaComp()")])
def test_a_name_or_a_class_is_no_compression(value, hint):
    with pytest.raises(TypeError) as caught:
        gg.Trainer(gg.models.lenet(), compression=value, comm=gg.VirtualCluster(2))
    assert f"did you mean {hint}?" in str(caught.value)


def test_it_stays_as_it_was_made():
    with gg.Trainer(gg.models.lenet(), comm=gg.VirtualCluster(1), compression=gg.AdaComp()) as trainer:
        with pytest.raises(AttributeError, match="compression"):
            trainer.compression = None
        assert trainer.settings()["compression"] == {**gg.AdaComp().settings(), "name": "adacomp"}
        assert "residue" not in trainer.core.arenas()  # one rank sends nothing


def test_entries_of_a_comparison():
    one, two = compare.entries(
        "allreduce:compression=adacomp:compression-bin-size=conv=30/linear=70:compression-mode=safe,allreduce"
    )
    assert one.compression == gg.AdaComp(bin_size={"conv": 30, "linear": 70}, mode="safe") and two.compression is None
    assert one.settings()["compression"]["mode"] == "safe"
    with pytest.raises(ValueError, match="strategy='no-exchange'"):
        compare.entries("no-exchange:compression=adacomp")
    with pytest.raises(ValueError, match="compression_mode: only with compression=NAME"):
        compare.entries("allreduce:compression-mode=safe")
    with pytest.raises(ValueError, match="bins: not an option of compression"):
        compare.entries("allreduce:compression=adacomp:compression-bins=3")


def test_what_no_strategy_compresses_is_an_error():
    """The core does not send whole what was to be compressed."""
    net, team = gg.models.lenet(), _core.Team("virtual", size=2)
    with pytest.raises(ValueError, match="compression: the strategy no-exchange does not compress what it sends"):
        options = {"name": "no-exchange", "compression": gg.AdaComp().options()}
        _core.Trainer(net.graph, team, loss="cross_entropy", optimizer={"name": "sgd"}, strategy=options)
