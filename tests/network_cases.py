"""Networks that the tests of whole networks share, their trainers and batches, and how near a result has to be."""

from __future__ import annotations

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

ISAS = _core.info()["isas"]
BACKENDS = ["auto", "native", *(["onednn"] if _core.info()["onednn"] else [])]
backends = pytest.mark.parametrize("backend", BACKENDS)
# oneDNN takes its instruction set once a process; test_operations runs some files again for the others.
TABLES = [("native", isa) for isa in ISAS] + [(backend, "") for backend in BACKENDS if backend != "native"]
tables = pytest.mark.parametrize(("backend", "isa"), TABLES, ids=[f"{b}-{i or 'default'}" for b, i in TABLES])


def trainer_of(net, backend="auto", loss="cross_entropy", **options) -> gg.Trainer:
    options.setdefault("optimizer", gg.SGD(lr=0.1))
    options.setdefault("strategy", gg.NoExchange())
    return gg.Trainer(net, loss=loss, backend=None if backend == "auto" else backend, **options)


def near(what: str, found, wanted, tolerance: float = 2e-6) -> None:
    """The largest error, relative to the largest element; and the error's norm, relative to the norm."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, f"{what}: {found.shape}, wanted {wanted.shape}"
    off = np.abs(found - wanted).max()
    assert off <= 2 * tolerance * max(np.abs(wanted).max(), 1e-20), (
        f"{what}: off by {off:.3g} of {np.abs(wanted).max():.3g}"
    )
    norm = np.linalg.norm(found - wanted)
    assert norm <= tolerance * max(np.linalg.norm(wanted), 1e-20), (
        f"{what}: norm {norm:.3g} of {np.linalg.norm(wanted):.3g}"
    )


def all_near(found, wanted, tolerance: float = 2e-6) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        near(name, found[name], wanted[name], tolerance)


def gradients_near(trainer, before, wanted, tolerance: float = 2e-6) -> None:
    """Of statistics, which have no gradient to be shown, how they have moved."""
    found = trainer.gradients()
    after = trainer.weights()
    moved = {name: before[name] - after[name] for name in wanted if ".running_" in name}
    assert not found.keys() & moved.keys()
    all_near(found | moved, wanted, tolerance)


def double(weights):
    return {name: array.astype(np.float64) for name, array in weights.items()}


def branches():
    """Two ways of different depth that meet in an Add and in a Concat; their inputs are used again."""
    x = gg.Input((3, 9, 8))
    a = gg.Conv2d(6, 3, padding=1, name="a")(x)
    b = gg.ReLU()(gg.Conv2d(6, 1, name="b")(x))
    c = gg.Add()(a, b)
    d = gg.Concat()(c, b, gg.Conv2d(4, 3, padding=1, groups=2, name="d")(gg.ReLU()(c)))
    e = gg.MaxPool2d(3, 2, padding=1)(d)
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(e)))


def inception():
    """Four ways from one value, joined; one is a mere pool, one is the value itself."""
    x = gg.Input((5, 7, 7))
    stem = gg.ReLU()(gg.Conv2d(16, 3, stride=2, padding=1, name="stem")(x))
    one = gg.Conv2d(16, 1, name="one")(stem)
    three = gg.Tanh()(gg.Conv2d(16, 3, padding=1, name="three")(gg.Conv2d(3, 1, name="reduce")(stem)))
    pool = gg.MaxPool2d(3, 1, padding=1)(stem)
    joined = gg.Concat()(one, three, pool, stem)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AvgPool2d(2, ceil_mode=True)(joined))))


def residual():
    """A chain of sums in which every sum is used three times; sums of a value with itself."""
    node = x = gg.Input((4, 5, 5))
    for i in range(3):
        branch = gg.Conv2d(4, 3, padding=1, bias=False, name=f"conv{i}")(gg.ReLU()(node))
        node = gg.Add()(node, branch, node)
    twice = node + node
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AvgPool2d(5)(twice))))


def joins_of_joins():
    """A concatenation within another, the input in a join, one value twice in a join."""
    x = gg.Input((3, 4, 4))
    a = gg.Conv2d(16, 1, name="a")(x)
    b = gg.Conv2d(16, 1, name="b")(x)
    inner = gg.Concat()(a, b)
    outer = gg.Concat()(inner, a, x, inner)
    more = gg.Concat()(gg.Sigmoid()(outer), gg.Conv2d(2, 3, padding=1, name="c")(inner))
    return gg.Model(x, gg.Linear(2, name="out")(gg.Flatten()(more)))


def flat():
    """Without images: features joined and summed; dropout that drops nothing."""
    x = gg.Input((13,))
    a = gg.Tanh()(gg.Linear(7, name="a")(x))
    b = gg.Dropout(0.0)(gg.Sigmoid()(gg.Linear(7, name="b")(x)))
    both = gg.Concat()(a, gg.Add()(a, b), x)
    c = gg.ReLU()(gg.Linear(16, bias=False, name="c")(both))
    return gg.Model(x, gg.Linear(5, name="out")(gg.Concat()(c, c)))


def shared_activation():
    """A convolution whose output is read by a ReLU and by others: the ReLU must not be done in place, nor fused."""
    x = gg.Input((2, 6, 5))
    a = gg.Conv2d(3, 2, name="a")(x)
    r, t = gg.ReLU()(a), gg.Tanh()(a)
    p = gg.AvgPool2d(3, 2, padding=1, count_include_pad=False)(a)
    q = gg.AvgPool2d(3, 2, padding=1)(gg.Add()(r, t, a))
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.Concat()(p, q))))


def activations_in_a_row():
    x = gg.Input((11,))
    node = gg.Linear(9, name="a")(x)
    for layer in (gg.ReLU(), gg.Tanh(), gg.Sigmoid(), gg.ReLU(), gg.Tanh()):
        node = layer(node)
    return gg.Model(x, gg.ReLU()(gg.Linear(4, name="b")(node)))


def normalised():
    """Batch normalisations with and without a ReLU behind them, in branches that meet."""
    x = gg.Input((3, 9, 8))
    a = gg.ReLU()(gg.BatchNorm2d(name="a.bn")(gg.Conv2d(20, 3, padding=1, bias=False, name="a")(x)))
    b = gg.BatchNorm2d(name="b.bn", momentum=0.5, eps=1e-2)(gg.Conv2d(20, 3, padding=1, bias=False, name="b")(a))
    c = gg.ReLU()(gg.Add()(a, b))
    d = gg.Concat()(gg.BatchNorm2d(name="d.bn")(c), gg.BatchNorm2d(affine=False, name="c.bn")(gg.Tanh()(b)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(gg.MaxPool2d(2)(d))))


def adaptive_windows():
    """Windows of several sizes, of one size, larger outputs than inputs, and the whole image."""
    x = gg.Input((3, 9, 8))
    a = gg.AdaptiveAvgPool2d((4, 5))(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.AdaptiveAvgPool2d((None, 11))(gg.Conv2d(5, 3, padding=1, name="b")(a))
    c = gg.AdaptiveAvgPool2d((2, 11))(gg.Tanh()(b))
    joined = gg.Concat()(gg.GlobalAvgPool2d()(gg.ReLU()(c)), gg.GlobalAvgPool2d()(a))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(joined)))


def curves():
    """Layer normalisation of images and of vectors, GELU, LeakyReLU and softmax, among convolutions."""
    x = gg.Input((3, 9, 8))
    a = gg.GELU()(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.LeakyReLU(0.2)(gg.LayerNorm(8, name="a.ln")(gg.Conv2d(5, 3, padding=1, bias=False, name="b")(a)))
    c = gg.LayerNorm((5, 9, 8), bias=False, name="b.ln")(gg.Conv2d(5, 3, padding=1, name="c")(b))
    d = gg.LeakyReLU(-0.5)(gg.Add()(b, gg.Softmax(dim=1)(c)))
    e = gg.GELU(approximate="tanh")(gg.Linear(11, name="e")(gg.Flatten()(d)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Softmax()(gg.LayerNorm(name="e.ln", elementwise_affine=False)(e))))


def root_mean_squares():
    """RMSNorm over one axis and over all, of images and of vectors, with and without a weight."""
    x = gg.Input((3, 9, 7))
    a = gg.RMSNorm(7, name="a.rms")(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.RMSNorm((5, 7, 5), eps=0.1, name="b.rms")(gg.Conv2d(5, 3, name="b")(gg.Tanh()(a)))
    c = gg.RMSNorm(name="c.rms")(gg.Linear(11, name="c")(gg.Flatten()(b)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.RMSNorm(elementwise_affine=False, name="d.rms")(gg.Tanh()(c))))


def grouped_norms():
    """GroupNorm of images, with one group, some, and one a channel, and of features, with and without parameters."""
    x = gg.Input((3, 9, 7))
    a = gg.GroupNorm(4, name="a.gn")(gg.Conv2d(20, 3, padding=1, name="a")(x))
    b = gg.GroupNorm(1, eps=0.1, name="b.gn")(gg.Conv2d(6, 3, name="b")(gg.ReLU()(a)))
    c = gg.GroupNorm(6, name="c.gn")(gg.Conv2d(6, 3, bias=False, name="c")(gg.Tanh()(b)))
    d = gg.GroupNorm(3, eps=0.1, name="d.gn")(gg.Linear(15, name="d")(gg.Flatten()(c)))
    return gg.Model(x, gg.Linear(4, name="out")(gg.GroupNorm(3, eps=0.1, affine=False, name="e.gn")(gg.Tanh()(d))))


def local_responses():
    """Local response normalisation with odd and even windows, the papers' power and others."""
    x = gg.Input((3, 9, 8))
    a = gg.LocalResponseNorm(5, alpha=0.5)(gg.ReLU()(gg.Conv2d(20, 3, padding=1, name="a")(x)))
    b = gg.LocalResponseNorm(4, alpha=0.3, beta=1.2, k=2.0)(gg.Conv2d(5, 3, padding=1, name="b")(a))
    return gg.Model(x, gg.Linear(4, name="out")(gg.Flatten()(gg.MaxPool2d(2)(b))))


def odd_windows():
    x = gg.Input((6, 11, 10))
    node = gg.Conv2d(4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, name="a")(x)
    node = gg.AvgPool2d((2, 3), stride=(2, 2), padding=(1, 1), ceil_mode=True, count_include_pad=False)(node)
    node = gg.Conv2d(8, (5, 5), padding=(2, 2), groups=4, name="b")(node)
    node = gg.MaxPool2d(2, 1, dilation=2, padding=1)(node)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(node)))


def only_a_layer():
    return gg.Sequential([gg.Linear(3, name="out")], input=(5,))


def starts_without_parameters():
    """Layers before the first parameters: nobody wants their gradient."""
    x = gg.Input((3, 8, 8))
    a, b = gg.MaxPool2d(2)(x), gg.AvgPool2d(2)(gg.Tanh()(x))
    joined = gg.Concat()(a, b)
    c = gg.Conv2d(5, 3, name="c")(joined)
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.Concat()(c, gg.Conv2d(2, 3, name="d")(a)))))


GRAPHS = [
    branches,
    inception,
    residual,
    joins_of_joins,
    flat,
    shared_activation,
    activations_in_a_row,
    odd_windows,
    normalised,
    adaptive_windows,
    curves,
    root_mean_squares,
    grouped_norms,
    local_responses,
    only_a_layer,
    starts_without_parameters,
]
graphs = pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)


def batch_for(net, rng, n, loss="cross_entropy"):
    x = rng.standard_normal((n, *net.input_shape)).astype(np.float32)
    out = net.output_shape
    if loss == "cross_entropy":
        return x, rng.integers(0, out[0], n).astype(np.int32)
    if loss == "binary_cross_entropy":
        return x, rng.integers(0, 2, (n, *out)).astype(np.float32)
    return x, rng.standard_normal((n, *out)).astype(np.float32)
