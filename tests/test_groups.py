"""Groups of parameters: factors of learning rate and weight decay, and what does not decay, in every strategy."""

import warnings

import numpy as np
import pytest
from gossip_reference import small_batches, small_net

import gossipgrad as gg

# Random partners depend on the ranks' pace.
STRATEGIES = {
    "gossipgrad": gg.GossipGraD(chunk_bytes=64),
    "staleness": gg.GossipGraD(staleness=1, bucket_bytes=900, chunk_bytes=448),
    "weights": gg.GossipGraD(exchange="weights", wire_dtype="bfloat16"),
    "narrow": gg.GossipGraD(staleness=1, wire_dtype="bfloat16"),
    "gradients": gg.GossipGraD(exchange="gradients"),
    "push-sum": gg.GossipGraD(push_sum=True, topology="ring", wire_dtype="bfloat16"),
    "hierarchical": gg.GossipGraD(hierarchical=True, ranks_per_node=2),
    "allreduce": gg.AllReduce(),
    "layerwise": gg.LayerwiseAllReduce(chunk_bytes=64, wire_dtype="bfloat16"),
    "periodic": gg.PeriodicAllReduce(period=2),
    "overlapped": gg.OverlappedAveraging(chunk_bytes=64),
    "partitioned": gg.OverlappedAveraging(partition_fc=True, wire_dtype="bfloat16"),
    "elastic": gg.ElasticAveraging(period=2),
    "server": gg.ParameterServer(wire_dtype="bfloat16"),
    "diloco": gg.DiLoCo(period=2, fragments=2, outer_momentum=0.5),
    "noloco": gg.NoLoCo(period=2, wire_dtype="bfloat16", outer_momentum=0.5),
    "alone": gg.NoExchange(),
}
OPTIMIZERS = {
    "plain": gg.SGD(0.05),
    "nesterov": gg.SGD(0.05, momentum=0.9, nesterov=True),
    "adamw": gg.Adam(0.01, decoupled=True),
}


def with_factors(lr=1.0, weight_decay=1.0, optimizer=None, strategy=None, ranks=4):
    """A trainer of small_net whose layers have these factors."""
    config = small_net().config()
    for entry in config["layers"]:
        if entry["layer"] in ("Conv2d", "Linear"):
            entry["options"] |= {"lr": lr, "weight_decay": weight_decay}
    net = gg.Model.from_config(config)
    comm = gg.VirtualCluster(ranks)
    return gg.Trainer(net, optimizer=optimizer or gg.SGD(0.1), strategy=strategy or gg.AllReduce(), seed=3, comm=comm)


def train(trainer, steps=5):
    """All ranks' weights and moments after training on batches of its own for each rank."""
    with warnings.catch_warnings(), trainer:
        warnings.simplefilter("ignore")
        generator = np.random.default_rng(1)
        for _ in range(steps):
            trainer.train_step(*small_batches(generator, trainer.size, sizes=(5, 3, 8)))
        trainer.settle()
        return [trainer.rank_state(rank) for rank in range(trainer.size)]


def same(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        assert list(mine) == list(theirs)
        for arena, arrays in mine.items():
            for name, array in arrays.items():
                assert array.tobytes() == theirs[arena][name].tobytes(), (arena, name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_cut_at_groups_has_the_bits_of_a_whole_one(strategy, optimizer):
    """Without weight decay its factors change nothing, but every bias is a group of its own."""
    how = {"optimizer": OPTIMIZERS[optimizer], "strategy": STRATEGIES[strategy]}
    same(train(with_factors(weight_decay=(1, 0.5), **how)), train(with_factors(**how)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rate_of_zero_freezes_a_group(strategy):
    """Weights alone move; where replicas begin alike, biases that nobody trains stay to the bit."""
    trainer = with_factors(lr=(1, 0), optimizer=OPTIMIZERS["nesterov"], strategy=STRATEGIES[strategy])
    before = trainer.weights()
    for rank in train(trainer):
        for name, array in rank["weight"].items():
            # Push-sum's shares are rounded numbers.
            bound = {"push-sum": 1e-6}.get(strategy, 0) * np.abs(before[name])
            assert (np.abs(array - before[name]) <= bound).all() == name.endswith("bias"), name


def simulate(optimizer, gradients, weights, step, momentum, square, lr, decay):
    """One update in float64 of one parameter; returns the new weights and moments."""
    own, wd = optimizer.lr * lr, optimizer.weight_decay * decay
    if isinstance(optimizer, gg.SGD):
        d = gradients + wd * weights
        momentum = optimizer.momentum * momentum + d
        return weights - own * (d + optimizer.momentum * momentum if optimizer.nesterov else momentum), momentum, square
    d = gradients + (0 if optimizer.decoupled else wd) * weights
    momentum = optimizer.beta1 * momentum + (1 - optimizer.beta1) * d
    square = optimizer.beta2 * square + (1 - optimizer.beta2) * d * d
    first, second = momentum / (1 - optimizer.beta1**step), square / (1 - optimizer.beta2**step)
    shrunk = weights * (1 - own * wd if optimizer.decoupled else 1)
    return shrunk - own * first / (np.sqrt(second) + optimizer.eps), momentum, square


@pytest.mark.parametrize(
    "optimizer",
    [
        gg.SGD(0.1, weight_decay=0.3),
        gg.SGD(0.1, momentum=0.8, weight_decay=0.3, nesterov=True),
        gg.SGD(0.1, momentum=0.8, weight_decay=0.3, no_decay=("bias", "norm")),
        gg.Adam(0.01, weight_decay=0.3),
        gg.Adam(0.01, weight_decay=0.3, decoupled=True, no_decay="bias"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("strategy", ["allreduce", "partitioned"])
def test_factors_are_those_of_a_float64_reference(optimizer, strategy):
    lr, decay = {"weight": 0.5, "bias": 2.0}, {"weight": 1.5, "bias": 0.0 if optimizer.no_decay else 0.25}
    how = {"optimizer": optimizer, "strategy": STRATEGIES[strategy] if strategy == "allreduce" else None}
    trainer = with_factors((0.5, 2), (1.5, 0.25), ranks=1 if strategy == "partitioned" else 3, **how)
    assert "lr=[0.5, 2.0]" in repr(trainer.net._layers[1][0])
    like = trainer.weights()
    weights = {name: array.astype(np.float64) for name, array in like.items()}
    momentum = {name: np.zeros(array.shape) for name, array in like.items()}
    square = {name: np.zeros(array.shape) for name, array in like.items()}
    generator = np.random.default_rng(0)
    with trainer:
        for step in range(1, 5):
            trainer.train_step(*small_batches(generator, trainer.size))
            for name, gradient in trainer.gradients().items():
                role = name.split(".")[1]
                weights[name], momentum[name], square[name] = simulate(
                    optimizer,
                    gradient.astype(np.float64),
                    weights[name],
                    step,
                    momentum[name],
                    square[name],
                    lr[role],
                    decay[role],
                )
        for name, array in trainer.weights().items():
            np.testing.assert_allclose(array, weights[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_factors_are_part_of_the_network(tmp_path):
    net = gg.Sequential([gg.Linear(3, lr=(1, 2), weight_decay=0), gg.Linear(2, lr=1)], input=4)
    options = [entry["options"] for entry in net.config()["layers"][1:]]
    assert options[0]["lr"] == [1.0, 2.0] and options[0]["weight_decay"] == [0.0, 0.0]
    assert "lr" not in options[1] and "weight_decay" not in options[1]
    again = gg.Model.from_config(net.config())
    assert again.same_network(net) and not again.same_network(gg.Sequential([gg.Linear(3), gg.Linear(2)], input=4))
    for bad in (-1, (1, -2), (1, 2, 3), "fast", float("nan")):
        with pytest.raises((ValueError, TypeError), match="lr"):
            gg.Linear(3, lr=bad)


def test_factors_of_a_ready_network():
    """By name, by the part of names before a dot as in PyTorch's modules, or by a pattern; the network itself stays."""
    net = gg.models.resnet18(4, (3, 32, 32), width=4)
    start = {name: array + 1 for name, array in net.weights(3).items()}
    net.load_weights(start)
    before = net.config()
    made = net.freeze("*").factors("fc", "layer4", lr=(1, 2), weight_decay=0.5).factors("layer4.1.bn?", lr=0.25)
    assert net.config() == before and type(made) is type(net) and made.name == "resnet18"
    given = {
        entry["name"]: (entry["options"].get("lr"), entry["options"].get("weight_decay"))
        for entry in made.config()["layers"]
    }
    assert given["conv1"] == ([0.0, 0.0], None) and given["relu"] == (None, None)
    assert given["fc"] == given["layer4.0.conv1"] == ([1.0, 2.0], [0.5, 0.5])
    assert given["layer4.1.bn1"] == given["layer4.1.bn2"] == ([0.25, 0.25], [0.5, 0.5])
    assert given["layer3.1.bn2"] == ([0.0, 0.0], None)
    for name, array in made.weights().items():
        assert array.tobytes() == start[name].tobytes()
    assert made.factors("*", lr=1, weight_decay=1).same_network(net)


@pytest.mark.parametrize("strategy", ["all-reduce", "gossip"])
def test_a_frozen_layer_stays_and_the_others_train(strategy):
    net = gg.Sequential([gg.Linear(7, name="one"), gg.Tanh(), gg.Linear(3, name="two")], input=5).freeze("one")
    x, y = np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32), np.arange(64) % 3
    made = {"all-reduce": gg.AllReduce(), "gossip": gg.GossipGraD()}[strategy]
    with gg.Trainer(net, optimizer=gg.SGD(0.1, 0.9, 0.1), strategy=made, comm=gg.VirtualCluster(4)) as trainer:
        before = trainer.weights()
        trainer.fit(x, y, batch_size=4, progress=False)
        for name, array in trainer.weights().items():
            assert (array == before[name]).all() == name.startswith("one."), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda net: net.freeze("fc3"),
            r"freeze\('fc3'\): no layer has this name; did you mean 'fc2'\?; allowed: conv1, conv2, fc1, fc2, or",
        ),
        (lambda net: net.freeze("conv1", "layer*"), r"freeze\('layer\*'\): no layer has"),
        (lambda net: net.freeze("relu1"), r"freeze\('relu1'\): has no parameters"),
        (lambda net: net.freeze(), r"freeze\(\): allowed: names of layers"),
        (lambda net: net.freeze(3), r"freeze\(3\): allowed: names of layers"),
        (lambda net: net.factors("fc1"), r"factors\(\): allowed: lr=, weight_decay=, or both"),
        (lambda net: net.factors("fc1", lr=-1), r"lr=-1"),
        (lambda net: net.factors("fc1", weight_decay=(1, 2, 3)), r"weight_decay=\(1, 2, 3\): .* a pair of these"),
    ],
)
def test_what_cannot_be_frozen_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(gg.models.lenet())


def test_what_does_not_decay_is_an_option_and_is_saved(tmp_path):
    assert gg.SGD(0.1).no_decay == () and gg.SGD(0.1, no_decay="norm").no_decay == ("norm",)
    assert gg.Adam(no_decay=["norm", "bias"]).no_decay == ("bias", "norm")
    for bad in ("gamma", ("bias", "weights"), 3):
        with pytest.raises((ValueError, TypeError), match="no_decay.*'bias', 'norm'"):
            gg.SGD(0.1, no_decay=bad)
    optimizer = gg.SGD(0.1, weight_decay=0.1, no_decay=("bias",))
    with with_factors(optimizer=optimizer, ranks=2) as trainer:
        trainer.save(tmp_path / "c.safetensors")
    with gg.Trainer.load(tmp_path / "c.safetensors") as trainer:
        assert trainer.optimizer == optimizer
