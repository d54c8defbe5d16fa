"""Random networks that lose units, and what must hold for each of them.

    python tests/random_apoptosis.py --count 1000 [--first 0]

draws that many, one after the other, and prints each that fails with the number that reproduces it. What holds:

- Exactness: every group of units that can shrink gets planted copies. At budget 0 the copies leave, and nothing else.
  Outputs change by rounding alone. A virtual cluster of two or four ranks has the same event, and every rank compares
  the plan's hash before it applies the plan.
- The bound: the outputs read all hidden units of a network. With a budget, a sample's outputs change by at most the
  event's bound times the norm of the units' input (csrc/apoptosis/merge.h).
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import numpy as np

import gossipgrad as gg

SAMPLES = 6
ACTIVATIONS = [None, gg.ReLU, gg.LeakyReLU, gg.Tanh, gg.Sigmoid, gg.GELU]


def activated(rng, y):
    kind = ACTIVATIONS[rng.integers(len(ACTIVATIONS))]
    return y if kind is None else kind()(y)


def integers(rng, low, high, count=1):
    found = [int(one) for one in rng.integers(low, high + 1, count)]
    return found if count > 1 else found[0]


# ---- networks with several groups of units


def perceptron(rng):
    x = y = gg.Input((integers(rng, 3, 8),))
    for i in range(integers(rng, 1, 3)):
        y = activated(rng, gg.Linear(integers(rng, 4, 12), bias=bool(rng.integers(4)), name=f"hidden{i}")(y))
    return gg.Model(x, gg.Linear(3, name="out")(y))


def convolution(rng, y, name, out, kernel=3, norm=None):
    norm = bool(rng.integers(2)) if norm is None else norm
    y = gg.Conv2d(out, kernel, padding=int(rng.integers(2)) * (kernel // 2), bias=not norm, name=name)(y)
    return gg.BatchNorm2d(name=f"{name}.bn")(y) if norm else y


def convolutional(rng):
    x = y = gg.Input((2, 12, 12))
    for i in range(integers(rng, 1, 2)):
        y = activated(rng, convolution(rng, y, f"hidden{i}", integers(rng, 4, 8)))
        if rng.integers(2):
            y = (gg.MaxPool2d if rng.integers(2) else gg.AvgPool2d)(2)(y)
    if rng.integers(2):
        y = activated(rng, gg.Linear(integers(rng, 4, 9), name="flat")(gg.Flatten()(y)))
        return gg.Model(x, gg.Linear(3, name="out")(y))
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AdaptiveAvgPool2d(1)(y))))


def residual(rng):
    """Two stages as ResNet's: blocks around which their inputs are added, with zeros for channels that are new."""
    x, width = gg.Input((2, 6, 6)), integers(rng, 4, 6)
    y = gg.ReLU()(gg.BatchNorm2d(name="stem.bn")(gg.Conv2d(width, 3, padding=1, bias=False, name="stem")(x)))
    for i in range(2):
        out = width + 8 * i
        inside = y
        for part, channels in (("a", integers(rng, 4, 7)), ("b", out)):
            inside = gg.Conv2d(channels, 3, padding=1, bias=False, name=f"block{i}.{part}")(inside)
            inside = gg.BatchNorm2d(name=f"block{i}.{part}.bn")(inside)
            inside = gg.ReLU()(inside) if part == "a" else inside
        y = gg.ReLU()(gg.Add()(inside, gg.Pad(0, 4, 4, name="pad")(y) if i else y))
    return gg.Model(x, gg.Linear(3, name="out")(gg.Flatten()(gg.AdaptiveAvgPool2d(1)(y))))


def joined(rng):
    x = gg.Input((5,))
    a, b = (activated(rng, gg.Linear(integers(rng, 4, 7), name=name)(x)) for name in ("a", "b"))
    return gg.Model(x, gg.Linear(3, name="out")(gg.Concat()(a, b)))


def recurrent(rng):
    x = gg.Input((4, integers(rng, 2, 5)))
    y = activated(rng, gg.Linear(integers(rng, 4, 7), name="in")(x))
    y = gg.LSTM(integers(rng, 4, 7), layers=integers(rng, 1, 3), bias=bool(rng.integers(2)), name="lstm")(y)
    return gg.Model(x, gg.Linear(3, name="out")(activated(rng, gg.Linear(5, name="behind")(y))))


def attention(rng, y, width, name):
    heads, size, causal = integers(rng, 3, 5), integers(rng, 1, 4), bool(rng.integers(2))
    if rng.integers(2):
        bias = bool(rng.integers(2))
        return gg.MultiHeadAttention(width, heads, head_size=size, causal=causal, bias=bias, name=name)(y)
    y = gg.Linear(3 * heads * size, bias=bool(rng.integers(2)), name=f"{name}.rows")(y)
    return gg.Linear(width, name=f"{name}.proj")(gg.Attention(heads, causal=causal, name=name)(y))


def transformer(rng):
    width = integers(rng, 3, 6)
    x = y = gg.Input((integers(rng, 2, 5), width))
    for i in range(integers(rng, 1, 2)):
        y = gg.Add()(y, attention(rng, gg.LayerNorm()(y), width, f"block{i}.attn"))
        inside = gg.GELU()(gg.Linear(integers(rng, 4, 9), name=f"block{i}.up")(gg.LayerNorm()(y)))
        y = gg.Add()(y, gg.Linear(width, name=f"block{i}.down")(inside))
    return gg.Model(x, gg.Linear(3, name="out")(y))


def turned(rng):
    x = gg.Input((5, 4))
    y = gg.Permute((1, 0))(activated(rng, gg.Linear(integers(rng, 6, 9), name="a")(x)))
    parts = [gg.Flatten()(gg.Slice(0, begin, end, name=f"part{begin}")(y)) for begin, end in ((0, 4), (2, None))]
    return gg.Model(x, gg.Add()(*[gg.Linear(3, name=f"out{i}")(part) for i, part in enumerate(parts)]))


NETWORKS = [perceptron, convolutional, residual, joined, recurrent, transformer, turned]


def random_weights(rng, net):
    weights, roles = net.weights(), net.parameter_roles()
    for name, array in weights.items():
        role = roles[name]
        reach = 1.7 / np.sqrt(max(1, array[0].size)) if role == "weight" else 0.5
        low, high = (0.5, 2.0) if role == "scale" or name.endswith("running_var") else (-reach, reach)
        array[...] = rng.uniform(low, high, array.shape)
    return weights


def blocks_of(name, array):
    """The rows of a tensor as (times, units, rows of a unit, ...): of gates, and of queries, keys and values."""
    if "lstm" in name:
        return array.reshape(4, array.shape[0] // 4, 1, -1)
    return array.reshape(1, array.shape[0], 1, -1)


def heads_of(net, layer):
    """Of attention with projections inside, or of the layer before it."""
    divided = layer.endswith(".rows") or f"{layer}.in_proj_weight" in net.parameter_shapes()
    return net.units[layer.removesuffix(".rows")] if divided else None


def plant(rng, net, weights):
    """Makes one unit of each group that can shrink a copy of another one; how many."""
    planted = {}
    for number, group in enumerate(net.graph.units()):
        heads = [heads_of(net, layer) for layer in group["layers"]]
        sizes = [one or net.units[layer] for one, layer in zip(heads, group["layers"], strict=True)]
        if group["fixed"] or group["single"] or not group["readers"] or set(sizes) != {group["units"]}:
            continue
        a, b = (int(one) for one in rng.choice(group["units"], 2, replace=False))
        factor = {"linear": rng.choice([-2.0, 0.4]), "positive": rng.choice([2.0, 0.4]), "odd": rng.choice([-1.0, 1.0])}
        c = float(factor.get(group["rule"], 1.0))
        for layer, count in zip(group["layers"], heads, strict=True):
            norm = f"{layer}.bn.weight" in weights
            for name, array in weights.items():
                if not name.startswith(f"{layer}.") or "out_proj" in name:
                    continue
                if count:
                    if name.removeprefix(f"{layer}.") in ("weight", "bias", "in_proj_weight", "in_proj_bias"):
                        rows = array.reshape(3, count, -1)
                        rows[:, a] = rows[:, b]
                elif name.startswith(f"{layer}.bn."):
                    array[a] = array[b] * (c if name.endswith((".weight", ".bias")) else 1)
                elif name.count(".") == layer.count(".") + 1:
                    rows = blocks_of(name, array)
                    rows[:, a] = rows[:, b] * (1 if norm else c)
        planted[number] = group["layers"][0]
    return planted


def check_exactness(rng):
    net = NETWORKS[rng.integers(len(NETWORKS))](rng)
    weights = random_weights(rng, net)
    planted = plant(rng, net, weights)
    net.load_weights(weights)
    x = rng.uniform(-1, 1, (SAMPLES, *net.inputs[0].shape)).astype("f4")
    events, ranks = [], [1] if rng.integers(4) else [1, 2 * integers(rng, 1, 2)]  # whose mean is exact
    for p in ranks:
        with gg.Trainer(net, loss="mean_squared_error", comm=gg.VirtualCluster(p) if p > 1 else None) as trainer:
            before = trainer.predict(x)
            events.append(trainer.shrink(0.0)["indices"])
            after, small = trainer.predict(x), trainer.net
        for number, (was, now) in enumerate(zip(net.graph.units(), small.graph.units(), strict=True)):
            left = was["units"] - now["units"]
            assert left == (number in planted), f"{was['layers']}: {left} of {was['units']} left; planted: {planted}"
        error = np.abs(after - before).max()
        assert error <= 3e-5 * (1 + np.abs(before).max()), (
            f"the outputs change by {error:g} of {np.abs(before).max():g}"
        )
    assert all(one == events[0] for one in events), f"the events of {ranks} ranks differ: {events}"
    return len(planted)


# ---- networks with one group of units, which the outputs read


def squares(x):
    """Each sample's sum of squares of a Linear's input at all positions, plus 1 for the bias of each."""
    return (x.astype("f8") ** 2).sum(axis=tuple(range(1, x.ndim))) + np.prod(x.shape[1:-1])


def window_squares(x, kernel, padding):
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
    return (windows**2).sum(axis=(1, 2, 3, 4, 5)) + windows.shape[2] * windows.shape[3]


def one_linear(rng):
    positions = [] if rng.integers(2) else [integers(rng, 2, 4)]
    x = gg.Input((*positions, integers(rng, 2, 6)))
    y = activated(rng, gg.Linear(integers(rng, 5, 30), name="hidden")(x))
    y = gg.Flatten()(y)
    if rng.integers(2):
        return gg.Model(x, gg.Linear(3, name="out")(y)), squares
    return gg.Model(x, gg.Concat()(gg.Linear(3, name="a")(y), gg.Linear(2, name="b")(y))), squares


def one_sum(rng):
    """Two layers of the same input whose outputs are added: what they read counts twice."""
    x, units = gg.Input((4,)), integers(rng, 5, 20)
    y = gg.Add()(*[gg.Linear(units, name=name)(x) for name in ("hidden", "other")])
    return gg.Model(x, gg.Linear(3)(activated(rng, y))), lambda x: 2 * squares(x)


def one_convolution(rng):
    kernel = integers(rng, 1, 3)
    padding = int(rng.integers(kernel // 2 + 1))
    x = gg.Input((2, 7, 7))
    y = gg.Conv2d(integers(rng, 5, 12), kernel, padding=padding, name="hidden")(x)
    y = activated(rng, gg.BatchNorm2d(name="hidden.bn")(y) if rng.integers(2) else y)
    if rng.integers(2):
        size, stride = integers(rng, 2, 3), integers(rng, 1, 3)
        y = (gg.MaxPool2d if rng.integers(2) else gg.AvgPool2d)(size, stride, padding=int(rng.integers(2)))(y)
    if rng.integers(2):
        y = gg.Flatten()(gg.Conv2d(3, 3, padding=1, stride=integers(rng, 1, 2), name="out")(y))
    else:
        y = gg.Linear(3, name="out")(gg.Flatten()(y))
    return gg.Model(x, y), lambda x: window_squares(x, kernel, padding)


def one_attention(rng):
    width = integers(rng, 2, 6)
    x = gg.Input((integers(rng, 1, 5), width))
    return gg.Model(x, attention(rng, x, width, "hidden")), squares


BOUNDED = [one_linear, one_sum, one_convolution, one_attention]


def check_bound(rng):
    """How many units left, and the largest error as a share of its bound."""
    net, squared = BOUNDED[rng.integers(len(BOUNDED))](rng)
    weights, x = random_weights(rng, net), rng.uniform(-1, 1, (SAMPLES, *net.inputs[0].shape)).astype("f4")
    if rng.integers(2):  # errors of one sign, which do not cancel where they are added
        x = np.abs(x)
        for name, role in net.parameter_roles().items():
            if role in ("weight", "bias"):
                weights[name] = np.abs(weights[name]) * (0.1 if name.startswith("hidden.weight") else 1)
    net.load_weights(weights)
    budget, least = float(rng.choice([0.02, 0.1, 0.3, 1.0])), integers(rng, 1, 3)
    with gg.Trainer(net, loss="mean_squared_error") as trainer:
        before = trainer.predict(x).reshape(SAMPLES, -1).astype("f8")
        event = trainer.shrink(budget, least=least)
        after = trainer.predict(x).reshape(SAMPLES, -1).astype("f8")
        groups = [one for one in trainer.net.graph.units() if not one["fixed"]]
    assert len(groups) == 1 and groups[0]["units"] >= least, groups
    bound = sum(event["bound"].values()) * np.sqrt(squared(x))
    error = np.linalg.norm(after - before, axis=1)
    assert (error <= bound + 2e-5 * (1 + np.abs(before).max())).all(), f"{error} above {bound}, budget {budget}"
    share = float((error / np.maximum(bound, 1e-3)).max()) if event["left"] else 0.0
    return sum(event["left"].values()), share


def check(number):
    """Both, for this number: (planted, left, the largest error as a share of its bound)."""
    return check_exactness(np.random.default_rng([number, 0])), *check_bound(np.random.default_rng([number, 1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    begin, failed, found = time.perf_counter(), [], []
    for number in range(given.first, given.first + given.count):
        try:
            found.append(check(number))
        except Exception:
            failed.append(number)
            print(f"number {number} fails:\n{traceback.format_exc()}", flush=True)
    planted, left, share = zip(*found, strict=True) if found else ((0,), (0,), (0.0,))
    print(
        f"{given.count} networks of each kind in {time.perf_counter() - begin:.0f} s: {len(failed)} fail {failed[:9]}; "
        f"{sum(planted)} planted copies left at budget 0 and nothing else; {sum(left)} units left with a budget, "
        f"the largest error is {max(share):.2f} of its bound"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
