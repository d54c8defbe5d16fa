"""compression=: its options, what of a network it compresses, where it goes with what, and residues in checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import warnings

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import flat, small_net

import gossipgrad as gg
from gossipgrad import _core, cli, compare, compression
from gossipgrad.training import checkpoint, notices

# Bins of few elements, so that the small network's parameters have several, with a rest.
SMALL = gg.AdaComp(bin_size={"conv": 7, "linear": 30}, dense_below=0, dense=("bias", "norm"))
CYCLIC = {"selection": "cyclic", "mode": "exact"}


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.core(99)
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"bin_size": -1}, ValueError, ["bin_size=-1", "0..16383"]),
        ({"bin_size": 2.5}, TypeError, ["bin_size=2.5", "integer"]),
        ({"bin_size": [50, 500]}, TypeError, ["bin_size=[50, 500]", "in 0..16383, or a dict of these by 'conv'"]),
        ({"bin_size": {"conv": 16384}}, ValueError, ["bin_size['conv']=16384", "0..16383"]),
        ({"bin_size": {"convs": 50}}, ValueError, ["bin_size: 'convs'", "'recurrent'", "did you mean 'conv'?"]),
        ({"factor": 0.9}, ValueError, ["factor=0.9", ">= 1"]),
        ({"factor": float("nan")}, ValueError, ["factor=nan", "finite"]),
        ({"factor": {"conv": 0.5}}, ValueError, ["factor['conv']=0.5", ">= 1"]),
        ({"factor": {"convs": 2}}, ValueError, ["factor: 'convs'", "'conv', 'linear'"]),
        ({"mode": "exakt"}, ValueError, ["mode='exakt'", "'strict'", "did you mean 'exact'?"]),
        ({"mode": "exact", "values": "float16"}, ValueError, ["values='float16'", "'bfloat16'", "'float32'"]),
        ({"values": "float32", "mode": "safe"}, ValueError, ["values='float32'", "mode='safe'", "mode='exact'"]),
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
    mixed = gg.AdaComp(factor={"linear": 3}, selection="cyclic")
    assert mixed.factor == {"conv": 4.0, "linear": 3.0, "recurrent": 4.0, "other": 4.0}
    assert compression.from_settings(json.loads(json.dumps(mixed.settings()))) == mixed
    assert gg.AdaComp(bin_size=7).bin_size == dict.fromkeys(compression.FAMILIES, 7)
    assert gg.AdaComp().mode is None and gg.AdaComp(selection="cyclic").mode == "exact"
    assert (
        gg.AdaComp().dense == ("norm",) and gg.AdaComp().factor == 2.0 and gg.AdaComp(selection="cyclic").factor == 4.0
    )
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
    bins = {"conv": 20, "linear": 70, "recurrent": 60, "other": 50}
    made = gg.AdaComp(bin_size=bins, dense_below=0, dense=("bias", "norm"))
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
    with pytest.raises(TypeError, match=r"net is a str; allowed: a gossipgrad\.Model"):
        made.packed("lenet")
    some = gg.AdaComp(bin_size={"conv": 0}, dense_below=161, dense=("bias", "norm")).packed(net)
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
        (gg.GossipGraD(exchange="slices", slices=2), ["exchange='slices'", "'weights'"]),
    ],
)
def test_what_it_does_not_go_with(strategy, words):
    packed = gg.AdaComp(mode="exact")
    with pytest.raises(ValueError) as caught:
        gg.Trainer(gg.models.lenet(), strategy=strategy, compression=packed, comm=gg.VirtualCluster(2))
    assert all(word in str(caught.value) for word in words), caught.value
    gg.Trainer(gg.models.lenet(), strategy=strategy, comm=gg.VirtualCluster(2)).close() if "mpi" not in words[0] else 0


@pytest.mark.parametrize(
    ("strategy", "how", "words"),
    [
        (gg.AllReduce(), {"values": "float32"}, ["values='float32' with mode='strict'", "allowed: mode='exact'"]),
        (gg.GossipGraD(), {"mode": "strict"}, ["mode='strict' with strategy='gossipgrad'", "allowed: 'exact'"]),
        (gg.GossipGraD(), {"selection": "cyclic"}, ["selection='cyclic' with strategy='gossipgrad'", "'local'"]),
        (gg.ParameterServer(), {"selection": "cyclic"}, ["selection='cyclic' with strategy='parameter-server'"]),
        (gg.ElasticAveraging(synchronous=False), {"selection": "cyclic"}, ["selection='cyclic'", "'local'"]),
    ],
)
def test_which_of_its_forms_do_not_go_with_a_strategy(strategy, how, words):
    with pytest.raises(ValueError) as caught:
        gg.Trainer(gg.models.lenet(), strategy=strategy, compression=gg.AdaComp(**how), comm=gg.VirtualCluster(2))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("value", "hint"), [("adacomp", "gossipgrad.AdaComp()"), (gg.AdaComp, "gossipgrad.AdaComp()")])
def test_a_name_or_a_class_is_no_compression(value, hint):
    with pytest.raises(TypeError) as caught:
        gg.Trainer(gg.models.lenet(), compression=value, comm=gg.VirtualCluster(2))
    assert f"did you mean {hint}?" in str(caught.value)


def test_it_stays_as_it_was_made():
    with gg.Trainer(gg.models.lenet(), comm=gg.VirtualCluster(1), compression=gg.AdaComp()) as gossip:
        assert gossip.compression.mode == "exact"
    how = {"strategy": gg.AllReduce(), "compression": gg.AdaComp()}
    with gg.Trainer(gg.models.lenet(), comm=gg.VirtualCluster(1), **how) as trainer:
        with pytest.raises(AttributeError, match="compression"):
            trainer.compression = None
        assert trainer.settings()["compression"] == {**gg.AdaComp(mode="strict").settings(), "name": "adacomp"}
        assert "residue" not in trainer.core.exchange.arenas()  # one rank sends nothing


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


# ---------------------------------------------------------------------------------------------- training


def data(count=61):
    """Of a number of samples that divides by no number of ranks: some ranks have no part in some steps."""
    generator = np.random.default_rng(5)
    return gg.data.Dataset(
        generator.standard_normal((count, 1, 8, 8)).astype(np.float32), generator.integers(0, 4, count)
    )


def trainer(p=4, compression=SMALL, **how):
    optimizer = gg.SGD(lr=0.05, momentum=0.9, clip_norm=0.5, schedule=gg.schedules.StepDecay(every=5, gamma=0.5))
    options = {"optimizer": optimizer, "strategy": gg.AllReduce(), "seed": 3, "comm": gg.VirtualCluster(p), **how}
    return gg.Trainer(small_net(), compression=compression, **options)


def fit(one, epochs, **how):
    return one.fit(data(), epochs=epochs, batch_size=5, progress=False, **how)


def residues(one):
    return np.array([flat(one.core.exchange.arena("residue", rank)) for rank in range(one.size)])


STRATEGIES = [gg.AllReduce(), gg.LayerwiseAllReduce(bucket_bytes=200), gg.PeriodicAllReduce(period=3)]
CENTRED = [gg.ElasticAveraging(period=3), gg.ElasticAveraging(period=3, synchronous=False)]
CENTRED += [gg.ParameterServer(period=3), gg.ParameterServer(servers=2, dedicated=True)]


@pytest.mark.parametrize("strategy", CENTRED, ids=repr)
@pytest.mark.parametrize("how", [{}, {"mode": "exact", "warmup": 5}], ids=str)
def test_resuming_with_a_centre(strategy, how, tmp_path):
    path = tmp_path / "c.safetensors"
    how = {"strategy": strategy, "compression": dataclasses.replace(SMALL, **how)}
    with trainer(**how) as whole:
        hashes, sent = fit(whole, 2).weights_sha256, sum(whole.history["bytes_sent"])
    with trainer(**how) as part:
        fit(part, 1)
        part.save(path)
    with gg.Trainer.load(path) as rest:
        assert fit(rest, 1).weights_sha256 == hashes
    with trainer(strategy=strategy, compression=None) as plain:
        assert fit(plain, 2).weights_sha256 != hashes and sum(plain.history["bytes_sent"]) > sent


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("how", [{}, {"mode": "safe"}, CYCLIC, {"mode": "exact", "warmup": 5}], ids=str)
def test_resuming_equals_never_having_stopped(strategy, how, tmp_path):
    """With a rate that changes, gradients that are clipped, and ranks without samples; bits of weights and residues.

    An epoch has 4 steps, so that one checkpoint is between two means of PeriodicAllReduce, and in a warm-up.
    """
    packed = dataclasses.replace(SMALL, **how)
    path = tmp_path / "c.safetensors"
    how = {"strategy": strategy, "compression": packed}
    with trainer(**how) as whole:
        assert fit(whole, 3).last["steps"] == 4
        residues_of_whole = residues(whole)
    for epoch in (1, 2):
        with trainer(**how) as part:
            fit(part, epoch, **({} if epoch == 1 else {"resume": path}))
            part.save(path)
    for forgets in (False, True):
        with gg.Trainer.load(path) as rest:
            assert rest.compression == strategy.compressed(packed)
            if forgets:
                for rank in range(4):
                    zeros = {key: 0 * array for key, array in rest.core.exchange.arena("residue", rank).items()}
                    rest.core.exchange.load_arena("residue", zeros, rank)
            fit(rest, 1)
            assert (rest.history.weights_sha256 == whole.history.weights_sha256) == (not forgets)
            assert np.array_equal(residues(rest), residues_of_whole) == (not forgets)


def test_nothing_is_lost_where_a_rank_has_no_samples():
    """Sent values and residues add up to the gradients of two steps. In the second one only rank 0 has a sample.

    With a rate of 0 the weights stay, so dense training has the same gradients; the momentum, 0.5 times the first plus
    the second, gives the first.
    """
    sums = []
    for packed in (None, SMALL, dataclasses.replace(SMALL, **CYCLIC)):
        optimizer = gg.SGD(lr=0.0, momentum=0.5, clip_norm=1e6)  # which needs the sum as an array
        with trainer(compression=packed, optimizer=optimizer) as one:
            last = one.fit(data(21), epochs=1, batch_size=5, progress=False).last
            assert last["steps"] == 2
            second, momentum = flat(one.core.exchange.arena("gradient")), flat(one.core.exchange.arena("momentum"))
            sums.append(2 * (momentum - second) + second + (0 if packed is None else residues(one).sum(axis=0)))
            assert packed is None or all(rest.any() for rest in residues(one))
    for one in sums[1:]:
        np.testing.assert_allclose(one, sums[0], rtol=1e-5, atol=1e-7)


def test_where_everything_is_sent_it_is_as_without():
    """By a warm-up that does not end, bins of 0 elements, and bins of one whose element is sent as it is."""
    with trainer(compression=None) as one:
        plain = fit(one, 2).weights_sha256
        weights = flat(one.consensus_weights())
    for packed in (
        gg.AdaComp(bin_size=9, dense_below=0, warmup=1000),
        gg.AdaComp(bin_size=0),
        gg.AdaComp(bin_size=9),  # all are small
    ):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one = trainer(compression=packed)
        words = ["no parameter of this network is compressed" in str(w.message) for w in said]
        assert any(words) == (not packed.packed(one.net)) == (packed.warmup == 0)
        with one:
            assert fit(one, 2).weights_sha256 == plain
            assert "residue" not in one.core.exchange.arenas() or not residues(one).any()
    exact = gg.AdaComp(bin_size=1, factor=1, mode="exact", values="float32", dense=(), dense_below=0)
    with trainer(compression=exact) as one:
        fit(one, 2)
        assert not residues(one).any()
        np.testing.assert_allclose(flat(one.consensus_weights()), weights, rtol=1e-4, atol=1e-6)
    with trainer(compression=SMALL) as one:
        assert fit(one, 2).weights_sha256 != plain


def test_one_rank_sends_nothing():
    hashes = []
    for packed in (None, SMALL):
        with trainer(1, packed) as one:
            hashes.append(fit(one, 1).weights_sha256)
    assert hashes[0] == hashes[1]


def test_much_memory_is_said(monkeypatch):
    parameters = small_net().parameters
    monkeypatch.setattr(notices, "MUCH_MEMORY", 4 * 4 * parameters)
    with pytest.warns(UserWarning, match=r"memory of 1 model more on each rank, 0.00 GiB for 4 ranks in this process"):
        trainer().close()
    with pytest.warns(UserWarning, match=r"memory of 2 models more"):  # the weights at the last mean as well
        trainer(3, strategy=gg.PeriodicAllReduce()).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(3).close()
        trainer(compression=None).close()


# ---------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_without_residues_begins_at_zero_and_says_so(tmp_path):
    path = tmp_path / "c.safetensors"
    with trainer(compression=None) as plain:
        fit(plain, 1)
        plain.save(path)
    with trainer() as one, pytest.warns(UserWarning) as said:
        checkpoint.restore(one, path)
        assert not residues(one).any()
    assert any("saved without residues of compression; they begin at zero" in str(w.message) for w in said)
    assert any("compression None -> 'adacomp'" in str(w.message) for w in said)
    with trainer() as one:
        fit(one, 1)
        one.save(path)
        before = residues(one)
        assert before.any()
    with trainer(compression=None) as plain, pytest.warns(UserWarning) as said:
        fit(plain, 2, resume=path)
    assert any("what had not been sent yet is left out" in str(w.message) for w in said)
    other = dataclasses.replace(SMALL, factor=3.0, dense=())
    with trainer(compression=other) as one, pytest.warns(UserWarning) as said:
        checkpoint.restore(one, path)
        assert np.array_equal(residues(one), before)
    wanted = "compression, factor 2.0 -> 3.0, compression, dense ['bias', 'norm'] -> []"
    assert any(wanted in str(w.message) for w in said)


def test_residues_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    with trainer() as one:
        fit(one, 1)
        one.save(path)
    with trainer(strategy=gg.PeriodicAllReduce()) as other, pytest.raises(gg.CheckpointError) as caught:
        checkpoint.restore(other, path)
    for word in ["residue is of gradients (strategy 'allreduce')", "of displacements"]:
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize("changes", [{"bin_size": {"conv": 0}}, {"dense_below": 28 + 1}], ids=str)
@pytest.mark.parametrize("selection", [{}, CYCLIC], ids=["local", "cyclic"])
def test_a_residue_of_what_travels_whole_here_travels_with_it(tmp_path, changes, selection):
    path, packing = tmp_path / "c.safetensors", dataclasses.replace(SMALL, **selection)
    with trainer(compression=packing) as one:
        fit(one, 1)
        one.save(path)
        assert all(one.core.exchange.arena("residue", rank)["conv.weight"].any() for rank in range(4))
    with trainer(compression=dataclasses.replace(packing, **changes)) as other, pytest.warns(UserWarning):
        fit(other, 2, resume=path)
        found = [other.core.exchange.arena("residue", rank) for rank in range(4)]
        assert not any(one["conv.weight"].any() for one in found) and found[0]["fc1.weight"].any()


# ---------------------------------------------------------------------------------------------- what it is made with


def test_the_command_line(capsys, tmp_path):
    words = "train --dataset synthetic --model mlp --epochs 1 --virtual-ranks 2 --strategy allreduce --quiet".split()
    words += "--compression adacomp --compression-bin-size linear=60 --compression-mode exact".split()
    words += "--compression-values float32 --compression-dense none --compression-warmup 1".split()
    assert cli.main([*words, "--report", str(tmp_path / "r.json")]) == 0
    settings = json.loads((tmp_path / "r.json").read_text())["settings"]
    made = gg.AdaComp(bin_size={"linear": 60}, mode="exact", values="float32", dense=(), warmup=1)
    assert compression.from_settings(settings["compression"]) == made
    for wrong, said in [
        ("train --compression-mode safe", "--compression-mode safe: goes with --compression"),
        ("train --mix-gamma 0.2", "--mix-gamma 0.2: goes with --compression"),
        ("train --strategy no-exchange --compression adacomp", "strategy='no-exchange': it sends nothing"),
        ("train --compression adacomp --compression-bin-size conv=x", "bin_size: 'conv=x'; allowed: a number, or FAM"),
        ("train --compression adacomp --compression-bin-size con=1", "did you mean 'conv'?"),
        ("train --strategy allreduce --compression adacomp --compression-factor 0", "factor=0.0"),
        ("bench --compression adacomp", "--compression: only with --exchange"),
    ]:
        assert cli.main(wrong.split()) == 2
        assert said in capsys.readouterr().err


def test_under_mpi(mpirun, tmp_path):
    """Ranks that give it unlike are told; else they have the bits of a virtual cluster, after a resume as well."""
    done = mpirun(
        2,
        f"""import sys; sys.path[:0] = [{str(ROOT / "tests")!r}]
import dataclasses, os
import gossipgrad as gg
from test_compression import SMALL, fit, trainer
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
try:
    trainer(comm=None, compression=dataclasses.replace(SMALL, factor=2 + rank))
except ValueError as error:
    print(rank, error)
with trainer(comm=None) as one:
    fit(one, 1)
    one.save({str(tmp_path / "c.safetensors")!r})
with gg.Trainer.load({str(tmp_path / "c.safetensors")!r}) as one:
    print("hashes", *fit(one, 1).weights_sha256)
""",
    )
    assert done.stdout.count("ranks differ") == 2 and "compression, factor: 2.0 on rank 0; 3.0 on rank 1" in done.stdout
    with trainer(2) as one:
        assert done.stdout.count(" ".join(["hashes", *fit(one, 2).weights_sha256])) == 2
