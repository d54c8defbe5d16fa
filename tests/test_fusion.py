"""Groups of nodes that one operation computes: the same bits as operations of their own, and no more memory."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

BACKENDS = ["native", *(["onednn"] if _core.info()["onednn"] else [])]


def network(fused: bool) -> gg.Model:
    """Every pattern; a dropout of 0 computes nothing, but no group reaches over it."""

    def behind(x, layer):
        return layer(x if fused else gg.Dropout(0.0)(x))

    def normed(x, name, stride=1, kernel=3):
        y = gg.Conv2d(16, kernel, stride=stride, padding=kernel // 2, bias=False, name=name)(x)
        return gg.BatchNorm2d(name=f"{name}.bn")(y)

    def added(a, b, name):
        return gg.Add(name=name)(a if fused else gg.Dropout(0.0)(a), b if fused else gg.Dropout(0.0)(b))

    x = gg.Input((3, 12, 10))
    y = behind(normed(x, "first"), gg.ReLU(name="first.relu"))
    # The shortcut is the input; a convolution and its normalisation behind the main branch; before it.
    y = behind(added(normed(y, "a"), y, "a.add"), gg.ReLU(name="a.relu"))
    main = normed(y, "b", 2)
    y = behind(added(main, normed(y, "b.short", 2, 1), "b.add"), gg.ReLU(name="b.relu"))
    short = normed(y, "c.short", 1, 1)
    y = behind(added(short, normed(y, "c"), "c.add"), gg.ReLU(name="c.relu"))
    y = added(normed(y, "d"), y, "d.add")  # without ReLU
    z = behind(added(gg.Conv2d(16, 1, name="e")(y), y, "e.add"), gg.ReLU(name="e.relu"))
    z = behind(gg.Conv2d(32, 3, padding=1, name="f")(z), gg.ReLU(name="f.relu"))
    z = behind(z, gg.MaxPool2d(2, name="f.pool"))
    z = behind(gg.MaxPool2d(2, name="g.pool")(z), gg.ReLU(name="g.relu"))
    z = behind(gg.Linear(7, name="h")(gg.Flatten()(z)), gg.ReLU(name="h.relu"))
    return gg.Model(x, gg.Linear(4, name="out")(z))


def trained(net, backend, n, threads=1):
    rng = np.random.default_rng(n)
    trainer = gg.Trainer(
        net,
        loss="cross_entropy",
        optimizer=gg.SGD(lr=0.05, momentum=0.9),
        strategy=gg.NoExchange(),
        backend=backend,
        threads=threads,
        conv_algorithm="direct",
    )
    for _ in range(2):
        x = rng.standard_normal((n, 3, 12, 10)).astype(np.float32)
        trainer.train_step(x, rng.integers(0, 4, n))
    names = [node["name"] for node in net.graph.nodes()]
    used = dict(zip(names, trainer.core.node_backends(), strict=True))
    weights, seen, bytes_ = trainer.weights(), trainer.predict(x), trainer.core.bytes()
    trainer.close()
    return weights, seen, used, bytes_


# The nodes that another one's operation computes.
INSIDE = {
    "first.relu",
    "a.add",
    "a.relu",
    "b.add",
    "b.relu",
    "c.add",
    "c.relu",
    "d.add",
    "e.relu",
    "f.relu",
    "g.relu",
    "h.relu",
}

# Those of a ReLU after pooling. Without AVX-512 oneDNN keeps images in blocks of 4 or 8 channels, which have none.
POOLED = {"f.relu", "g.relu"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 16, 19])
def test_groups_have_the_bits_of_separate_operations(backend, n):
    weights, seen, used, bytes_ = trained(network(True), backend, n, threads=1 + (n == 19))
    others, wanted, each, more = trained(network(False), backend, n, threads=1 + (n == 19))
    inside = {name for name, table in used.items() if not table}
    assert inside >= INSIDE - (
        POOLED if backend != "native" and _core.info()["isa"] not in ("avx512", "amx") else set()
    )
    assert not INSIDE & {name for name, table in each.items() if not table}
    for name in weights:
        np.testing.assert_array_equal(weights[name], others[name], err_msg=name)
    np.testing.assert_array_equal(seen, wanted)
    assert bytes_ <= more


def test_what_a_head_or_another_layer_reads_is_in_no_group():
    x = gg.Input((3, 8, 8))
    y = gg.BatchNorm2d(name="norm")(gg.Conv2d(8, 3, padding=1, name="conv")(x))
    z = gg.Add(name="add")(y, gg.ReLU(name="relu")(y))  # two readers of the normalisation
    end = gg.ReLU(name="end")(z)
    net = gg.Model(x, [gg.Linear(2, name="one")(gg.Flatten()(end)), gg.Linear(2, name="two")(gg.Flatten()(z))])
    trainer = gg.Trainer(net, loss=["cross_entropy"] * 2, strategy=gg.NoExchange())
    labels = np.zeros(4, np.int64)
    trainer.train_step(np.ones((4, 3, 8, 8), np.float32), [labels, labels])
    used = dict(zip([node["name"] for node in net.graph.nodes()], trainer.core.node_backends(), strict=True))
    assert all(used[name] for name in ("norm", "relu", "add", "end"))
    trainer.close()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("n", "threads"), [(1, 1), (6, 3)])
def test_a_gelu_behind_a_layer_over_positions_has_the_bits_of_its_own_operation(approximate, n, threads):
    rng = np.random.default_rng(n)
    x, labels = rng.standard_normal((n, 5, 19)).astype(np.float32), rng.integers(0, 4, n)

    def trained_as(fused):
        inputs = gg.Input((5, 19))
        y = gg.Linear(37, name="wide")(inputs)
        y = gg.GELU(approximate, name="gelu")(y if fused else gg.Dropout(0.0)(y))
        y = gg.GELU(approximate, name="flat.gelu")(gg.Linear(8, name="flat")(gg.Flatten()(y)))  # not over positions
        net = gg.Model(inputs, gg.Linear(4, name="out")(y))
        options = {"strategy": gg.NoExchange(), "backend": "native", "threads": threads, "tune": False}
        with gg.Trainer(net, loss="cross_entropy", optimizer=gg.SGD(lr=0.1), **options) as trainer:
            for _ in range(3):
                trainer.train_step(x, labels)
            names = [node["name"] for node in net.graph.nodes()]
            inside = {name for name, table in zip(names, trainer.core.node_backends(), strict=True) if not table}
            return trainer.weights(), trainer.predict(x), inside & {"gelu", "flat.gelu"}, trainer.core.bytes()

    weights, seen, inside, bytes_ = trained_as(True)
    others, wanted, none, more = trained_as(False)
    assert (inside, none) == ({"gelu"}, set())
    for name in weights:
        np.testing.assert_array_equal(weights[name], others[name], err_msg=name)
    np.testing.assert_array_equal(seen, wanted)
    assert bytes_ <= more
