"""gossipgrad.torch: gradients of several batches are added up before they are compressed; nothing is lost meanwhile."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch_cases import batch, small, wide  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)
LR, STEPS, PARTS = 0.05, 6, 3
SMALL = {"bin_size": 12, "dense_below": 10, "dense": (), "warmup": 0}
COMPRESSIONS = {
    "strict": gg.AdaComp(**SMALL),
    "safe": gg.AdaComp(mode="safe", factor=1.5, **SMALL),
    "bfloat16": gg.AdaComp(mode="exact", **SMALL),
    "float32": gg.AdaComp(mode="exact", values="float32", factor=3.0, **SMALL),
    "cyclic": gg.AdaComp(selection="cyclic", **SMALL),
    "local momentum": gg.AdaComp(local_momentum=True, **SMALL),
    "cyclic, local momentum": gg.AdaComp(selection="cyclic", local_momentum=True, **SMALL),
}
ALL_REDUCES = {"all-reduce": gg.AllReduce(), "layer-wise": gg.LayerwiseAllReduce(bucket_bytes=900)}
SERVED = {"server": gg.ParameterServer(), "served elastic": gg.ElasticAveraging(period=2, synchronous=False)}
GOSSIP = gg.GossipGraD(rotate=False, topology="ring")
EQUAL_STEPS = {**ALL_REDUCES, "periodic": gg.PeriodicAllReduce(period=2), "elastic": gg.ElasticAveraging(period=2)}
STRATEGIES = {**EQUAL_STEPS, "gossip": GOSSIP, **SERVED}
MOMENTUM = gg.SGD(0.1, momentum=0.9)
OPTIMIZERS = {
    "momentum": MOMENTUM,
    "clipped": gg.SGD(0.1, momentum=0.9, clip_norm=0.3),
    "adam": gg.Adam(0.01),
    "other rates": gg.SGD(0.1, momentum=0.9, schedule=gg.schedules.StepDecay(every=2, gamma=0.5)),
}


def goes(strategy, compression, optimizer=MOMENTUM):
    """Whether these three go together, as documented."""
    cyclic = compression.selection == "local" or strategy in EQUAL_STEPS
    exact = compression.mode == "exact" or strategy != "gossip"
    local = not compression.local_momentum or (strategy in ALL_REDUCES and optimizer.clip_norm is None)
    return cyclic and exact and local


CASES = [(one, how) for one in STRATEGIES for how in COMPRESSIONS if goes(one, COMPRESSIONS[how])]


def parts_of(step, rank):
    """Batches of unlike sizes; the last step has a single one."""
    count = 1 if step == STEPS - 1 else PARTS
    return [batch(10 * step + part, rank, 2 + (part + rank) % 3) for part in range(count)]


def backward(model, step, rank, parts):
    """The gradient of the mean over the samples of these batches; the last one's pass is exchanged."""
    n = sum(len(y) for _, y in parts)
    for part, (x, y) in enumerate(parts):
        with model.no_sync() if part < len(parts) - 1 else contextlib.nullcontext():
            (F.cross_entropy(model(x), y, reduction="sum") / n).backward()


def made(strategy, how, p, optimizer=MOMENTUM, make=wide, **options):
    compression = COMPRESSIONS[how]
    return gg.torch.replicas(make, p, optimizer, STRATEGIES[strategy], compression=compression, seed=5, **options)


def trained(models, first, last):
    def train(model, rank):
        for step in range(first, last):
            backward(model, step, rank, parts_of(step, rank))
            model.step()

    models.run(train)
    models.settle()


def arenas(core, p):
    kinds = core.arenas()
    return {
        (name, rank, key): array.copy()
        for name, kind in kinds.items()
        if kind != "gradient"
        for rank in range(p)
        for key, array in core.arena(name, rank).items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, array in one.items():
        np.testing.assert_array_equal(array, other[key], err_msg=str(key))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("strategy", "how"), [case for case in CASES if case[0] not in SERVED])
def test_it_has_the_bits_of_one_gradient(strategy, how, optimizer, overlap):
    """gg.Exchange is given the sums. Servers answer at other times there."""
    made_by = OPTIMIZERS[optimizer]
    if not goes(strategy, COMPRESSIONS[how], made_by):
        pytest.skip("refused")
    for p in (1, 2, 3):
        models = made(strategy, how, p, made_by, overlap=overlap)
        given = [[] for _ in range(p)]

        def train(model, rank, given=given):
            for step in range(STEPS):
                backward(model, step, rank, parts_of(step, rank))
                model.step()
                own = model.module.named_parameters()
                given[rank].append({name: tensor.grad.numpy().copy() for name, tensor in own})

        models.run(train)
        models.settle()
        first = {name: tensor.detach().numpy() for name, tensor in wide().named_parameters()}
        exchange = gg.Exchange(
            first,
            optimizer=made_by,
            strategy=STRATEGIES[strategy],
            compression=COMPRESSIONS[how],
            comm=gg.VirtualCluster(p),
            seed=5,
            families=dict.fromkeys(first, "linear"),
            layers={layer: [f"{layer}.weight", f"{layer}.bias"] for layer in ("0", "2", "4")},
        )
        for step in range(STEPS):
            exchange.step([own[step] for own in given])
        exchange.settle()
        assert_same(arenas(models[0]._group.core, p), arenas(exchange.core, p))
        models.close()


def gradient_of_all(model, rank, step):
    """Of one batch that has all samples of the step, in float64, by name."""
    net = small().double()
    net.load_state_dict({name: one.double() for name, one in model.state_dict().items()})
    parts = parts_of(step, rank)
    x, y = (torch.cat([one[i] for one in parts]) for i in range(2))
    F.cross_entropy(net(x.double()), y).backward()
    return {name: one.grad.numpy() for name, one in net.named_parameters()}


def preserved(models, strategy):
    """What training alone changes, by name, in float64: by minus the rate times the ranks' gradients, or their mean."""
    core, p = models[0]._group.core, len(models)

    def total(arena):
        found = [core.arena(arena, rank) for rank in range(p)] if arena in core.arenas() else []
        return {name: sum(one[name].astype(np.float64) for one in found) for name in core.weights(0)}

    def with_(arrays, other, factor=1.0):
        return {
            name: one.astype(np.float64).reshape(-1) + factor * np.ravel(other[name]) for name, one in arrays.items()
        }

    if strategy in ALL_REDUCES:
        return with_(core.arena("weight", 0), total("residue"), -LR)
    if strategy == "periodic":
        return with_(core.arena("weight", 0), total("residue"))
    if strategy == "server":
        return with_(core.consensus_weights(), total("residue"))
    if strategy == "gossip":
        return {name: one.reshape(-1) for name, one in total("weight").items()}
    return with_(core.consensus_weights(), total("weight"))


@pytest.mark.parametrize(("strategy", "how"), [one for one in CASES if not COMPRESSIONS[one[1]].local_momentum])
def test_sent_and_left_are_the_gradient_of_all_samples(strategy, how):
    """Whatever is chosen: of one batch that has them all, by autograd in float64 at each rank's weights."""
    for p in (2, 3):
        models = made(strategy, how, p, gg.SGD(LR), small)
        mean = strategy in ALL_REDUCES or strategy == "periodic"
        expected = preserved(models, strategy)
        left = 0.0
        for step in range(STEPS):
            of_ranks = [gradient_of_all(model, rank, step) for rank, model in enumerate(models)]
            trained(models, step, step + 1)
            for name in expected:
                change = sum(one[name].ravel() for one in of_ranks)
                expected[name] = expected[name] - LR * change / (p if mean else 1)
            if strategy == "periodic" and step % 2 == 0:
                continue  # what a rank has moved since the last mean is in its weights alone
            for name, one in preserved(models, strategy).items():
                np.testing.assert_allclose(one, expected[name], rtol=2e-6, atol=2e-6, err_msg=f"{name}, step {step}")
            left = max(left, models[0].counts()["residue"])
        assert left > 0 or strategy in ("elastic", "served elastic", "gossip")
        models.close()


@pytest.mark.parametrize(("strategy", "how"), CASES)
def test_a_resume_has_the_same_bits(strategy, how):
    for p in (1, 2, 3):
        whole, half, again = (made(strategy, how, p) for _ in range(3))
        trained(whole, 0, 3)
        trained(whole, 3, STEPS)
        trained(half, 0, 3)
        again.load_training_states(half.training_states())
        trained(again, 3, STEPS)
        assert_same(arenas(whole[0]._group.core, p), arenas(again[0]._group.core, p))
        for one in (whole, half, again):
            one.close()


@pytest.mark.parametrize("make", [small, wide])
@pytest.mark.parametrize("torch_optimizer", [False, True])
def test_a_state_between_two_passes_of_a_step_is_refused(torch_optimizer, make):
    """It has no gradients. What goes on from one forgets those that it had."""

    def replicas():
        optimizer = (lambda net: torch.optim.SGD(net.parameters(), 0.1)) if torch_optimizer else MOMENTUM
        return gg.torch.replicas(make, 2, optimizer, gg.AllReduce(), compression=COMPRESSIONS["strict"], seed=5)

    def half(model, rank):
        with model.no_sync():
            F.cross_entropy(model(batch(7, rank)[0]), batch(7, rank)[1]).backward()

    models, other = replicas(), replicas()
    trained(models, 0, 2)
    states = models.training_states()
    models.run(half)
    with pytest.raises(RuntimeError, match=r"training_state\(\): '0.weight', .* in step 2, .*model.step\(\)"):
        models.training_states()
    for model in models:
        model.zero_grad()
    assert models[0].training_state()["step"] == 2
    other.run(half)
    other.load_training_states(states)
    for one in (models, other):
        trained(one, 2, 4)
    assert_same(*(arenas(one[0]._group.core, 2) for one in (models, other)))
