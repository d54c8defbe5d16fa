"""Makes csrc/nn/cost_*.c: coefficients of the cost model, from measurements of this machine. Needs SciPy.

    python tools/fit_costs.py measure costs-zen4.jsonl --seconds 90
    python tools/fit_costs.py fit zen4=costs-zen4.jsonl avx512=costs-zen4.jsonl+costs-unpaired.jsonl:linear
    python tools/fit_costs.py check costs-zen4.jsonl

`measure` times every pass of every operation of made-up networks, within training steps: with either table first, and
with each algorithm of their convolutions. Networks are drawn by --seed; it appends to the file, so several runs with
several seeds give one set. Run it on a quiet machine; GOSSIPGRAD_ISA and GOSSIPGRAD_PAIRED choose the kernels that are
measured. `fit` finds the coefficients by non-negative least squares of relative errors, a row of them for each kind of
pass (csrc/nn/cost.h), and writes a file for each kind of CPU. It prints the error of each
row, and what the choice of algorithms by them costs over the best one. `check` only prints.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import gossipgrad as gg

ROWS = Path(__file__).resolve().parent.parent / "csrc" / "nn"
ALGORITHMS = ("direct", "winograd2", "winograd4", "winograd6", "split")
NARROW = (
    "direct",
    "widened",
    "winograd2",
    "winograd4",
    "winograd6",
    "turned",
    "turned2",
    "turned4",
    "turned6",
    "tiled",
)
MIN_ROUNDS, MAX_ROUNDS, ROUNDS_SECONDS = 2, 8, 0.12
MIN_TIMES = 4  # of a row

Key = tuple[Any, ...]


# ---- networks


def _batch(draw: random.Random) -> int:
    return draw.choice([1, 2, 4, 8, 10, 16, 16, 20, 24, 32, 32, 48, 50, 64, 64, 100, 128, 128, 256])


def _channels(draw: random.Random, most: int) -> int:
    usual = [16, 32, 64, 96, 128, 192, 256, 384, 512]
    value = draw.choice(usual) if draw.random() < 0.55 else round(2 ** draw.uniform(2.5, 8.2))
    return max(2, min(value, most))


def _images(draw: random.Random, macs: float) -> tuple[gg.Model, int]:
    """A chain of blocks of a convolution and what follows one, then a linear layer."""
    batch = _batch(draw)
    size = draw.choice([7, 8, 14, 16, 20, 28, 28, 32, 32, 45, 56, 64, 112, 224])
    channels = draw.choice([1, 3, 3, 3, _channels(draw, 256)])
    node = x = gg.Input((channels, size, size))
    budget = macs / batch
    for _ in range(draw.randint(2, 6)):
        kernel = draw.choice([1, 1, 3, 3, 3, 3, 3, 5, 5, 7, 11])
        if kernel > size + 2 * (kernel // 2):
            kernel = 1
        stride = draw.choice([1, 1, 1, 1, 2]) if kernel < 11 else 4
        made = -(-size // stride)
        most = int(budget / (kernel * kernel * channels * made * made * 4))
        if most < 4:
            node, size = gg.MaxPool2d(2)(node), size // 2
            continue
        out, groups = _channels(draw, min(most, 512)), 1
        if draw.random() < 0.12 and channels > 4:
            groups = channels if draw.random() < 0.5 else 2
            groups = groups if channels % groups == 0 else 1
            out = channels * max(1, out // channels) if groups == channels else out + out % 2
        padding = kernel // 2 if draw.random() < 0.85 else 0
        if size + 2 * padding < kernel:
            padding = kernel // 2
        node = gg.Conv2d(out, kernel, stride=stride, padding=padding, groups=groups, bias=draw.random() < 0.6)(node)
        budget -= kernel * kernel * channels * made * made * out / groups
        size = (size + 2 * padding - kernel) // stride + 1
        channels = out
        what = draw.random()
        if what < 0.3:
            node = gg.BatchNorm2d()(node)
            if draw.random() < 0.25:
                other = gg.Conv2d(channels, 1)(node)
                node = gg.Add()(gg.BatchNorm2d()(other), node)
        elif what < 0.36:
            node = gg.LocalResponseNorm(5)(node)
        if draw.random() < 0.8:
            node = draw.choice([gg.ReLU, gg.ReLU, gg.ReLU, gg.ReLU, gg.ReLU, gg.Tanh, gg.LeakyReLU])()(node)
        if size >= 4 and draw.random() < 0.45:
            pool = gg.MaxPool2d if draw.random() < 0.75 else gg.AvgPool2d
            kernel = draw.choice([2, 2, 3])
            node = pool(kernel, stride=2)(node)
            size = (size - kernel) // 2 + 1
        if draw.random() < 0.12:
            branches = [gg.Conv2d(_channels(draw, 64), 1)(node), gg.Conv2d(_channels(draw, 64), 3, padding=1)(node)]
            node = gg.Concat()(*branches)
            channels = 64
        if size < 2:
            break
    if draw.random() < 0.4:
        node = gg.GlobalAvgPool2d()(node)
    node = gg.Flatten()(node)
    if draw.random() < 0.5:
        node = gg.ReLU()(gg.Linear(_channels(draw, 512))(node))
        if draw.random() < 0.5:
            node = gg.Dropout(0.5)(node)
    return gg.Model(x, gg.Linear(draw.choice([10, 10, 100]))(node)), batch


def _deep(draw: random.Random) -> tuple[gg.Model, int]:
    """Few pixels and many channels: weights are most of what is read."""
    batch, size = draw.choice([1, 2, 3, 4, 6, 8, 16, 24, 32]), draw.choice([2, 3, 4, 5, 7, 8])
    channels = draw.choice([64, 128, 192, 256, 384, 512])
    node = x = gg.Input((channels, size, size))
    for _ in range(draw.randint(1, 3)):
        channels, kernel = draw.choice([128, 192, 256, 320, 384, 512]), draw.choice([1, 3, 3, 3, 3, 5])
        if kernel == 5:
            channels = min(channels, 192)
        node = gg.ReLU()(gg.Conv2d(channels, kernel, padding=kernel // 2)(node))
    return gg.Model(x, gg.Linear(10)(gg.Flatten()(gg.GlobalAvgPool2d()(node)))), batch


def _vectors(draw: random.Random) -> tuple[gg.Model, int]:
    batch, node = _batch(draw), gg.Input((draw.choice([10, 28, 100, 256, 784, 1024]),))
    x = node
    for _ in range(draw.randint(1, 4)):
        node = gg.Linear(draw.choice([10, 32, 50, 64, 100, 128, 256, 300, 500]))(node)
        node = draw.choice([gg.ReLU, gg.Tanh, gg.Sigmoid])()(node)
        if draw.random() < 0.3:
            node = gg.Dropout(0.3)(node)
    return gg.Model(x, gg.Linear(10)(node)), batch


def _sequences(draw: random.Random) -> tuple[gg.Model, int]:
    batch = draw.choice([1, 2, 4, 8, 12, 16, 32])
    if draw.random() < 0.5:
        return gg.models.char_lstm(hidden=draw.choice([32, 64, 128, 200])), batch
    return gg.models.char_gpt(), min(batch, 12)


def _network(draw: random.Random, dtype: str, macs: float) -> tuple[gg.Model, int]:
    what = draw.random()
    if what < 0.7:
        return _images(draw, macs)
    if what < 0.84 or dtype == "bfloat16":
        return _deep(draw)
    return _vectors(draw) if what < 0.92 else _sequences(draw)


# ---- measuring


def _data(net: gg.Model, batch: int) -> tuple[Any, Any]:
    from gossipgrad.bench import synthetic_batch

    return synthetic_batch(net, "cross_entropy", batch)


def _profile(core: Any, x: Any, y: Any, deadline: float) -> list[dict[str, Any]]:
    """The operations of a step, with the shortest time of each pass."""
    core.bench(x, y, 0, 1)
    found: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for round_ in range(MAX_ROUNDS):
        core.set_timing(True)
        core.bench(x, y, 0, 1)
        own = core.profile()["operations"]
        for at, operation in enumerate(own):
            for name, one in operation["passes"].items():
                if found:
                    least = found[at]["passes"][name]
                    least["seconds"] = min(least["seconds"], one["seconds"])
        found = found or own
        now = time.perf_counter()
        if round_ + 1 >= MIN_ROUNDS and (now - begin > ROUNDS_SECONDS or now > deadline):
            break
    return found


def measure(arguments: argparse.Namespace) -> None:
    draw = random.Random(arguments.seed)
    deadline = time.perf_counter() + arguments.seconds
    networks = 0
    with open(arguments.file, "a", encoding="utf-8") as file:
        while time.perf_counter() < deadline:
            try:
                net, batch = _network(draw, arguments.dtype, arguments.macs)
                records = _of_network(net, batch, arguments, deadline)
            except ValueError:
                continue  # a shape that some layer does not have
            networks += 1
            for record in records:
                file.write(json.dumps({"network": f"{arguments.seed}.{networks}", "batch": batch, **record}) + "\n")
            file.flush()
    print(f"{networks} networks")


def _of_network(net: gg.Model, batch: int, arguments: argparse.Namespace, deadline: float) -> list[dict[str, Any]]:
    how: dict[str, Any] = {"threads": arguments.threads, "dtype": arguments.dtype, "tune": False}
    records = []
    with gg.Trainer(net, strategy=gg.NoExchange(), optimizer=gg.SGD(1e-6), **how) as trainer:
        core, (x, y) = trainer.core, _data(net, batch)
        nodes = net.graph.nodes()
        for first in ("onednn", "native") if arguments.dtype == "float32" else ("onednn",):
            seen: set[Key] = set()
            keys = core.convolutions(batch, True, first)
            for algorithm in (ALGORITHMS if arguments.dtype == "float32" else NARROW) if keys else ("direct",):
                core.set_algorithms([(key, (algorithm,) * 3) for key in keys], [(batch, first)])
                counts: dict[Any, int] = defaultdict(int)  # reorders come and go: steps have no fixed numbers
                for operation in _profile(core, x, y, deadline):
                    at = operation["nodes"][0], operation["operation"]
                    counts[at] += 1
                    number = f"{at[0]} {at[1]} {counts[at]}"
                    for one in operation["passes"].values():
                        row, features = one["cost"]
                        if one["with_update"] or (number, row) in seen:
                            continue
                        seen.add((number, row))
                        records.append(
                            {
                                "first": first,
                                "number": number,
                                "shape": nodes[operation["nodes"][0]]["shape"],
                                "row": row,
                                "features": features,
                                "products": one["products"],
                                "seconds": one["seconds"],
                            }
                        )
                if time.perf_counter() > deadline:
                    return records
    return records


# ---- fitting


def read(paths: str) -> list[dict[str, Any]]:
    records = []
    for path in paths.split(","):
        with open(path, encoding="utf-8") as file:
            records += [json.loads(line) | {"file": path} for line in file]
    for one in records:
        one["row"], one["network"] = tuple(one["row"]), f"{one['file']} {one['network']}"
    return records


def fitted(records: list[dict[str, Any]]) -> dict[Key, Any]:
    """Of each row the coefficients in nanoseconds, by relative errors."""
    by_row = defaultdict(list)
    for one in records:
        by_row[one["row"]].append(one)
    return {row: _coefficients(own) for row, own in sorted(by_row.items()) if len(own) >= MIN_TIMES}


def _coefficients(own: list[dict[str, Any]]) -> Any:
    features = np.array([one["features"] for one in own])
    nanoseconds = np.array([one["seconds"] for one in own]) * 1e9
    scale = features.max(axis=0)
    scale[scale == 0] = 1
    weights = 1 / (nanoseconds + 500)  # a clock read is some of the shortest times
    for _ in range(3):  # what is far off counts less
        coefficients = nnls(features / scale * weights[:, None], nanoseconds * weights)[0] / scale
        error = np.abs(features @ coefficients / nanoseconds - 1)
        weights = 1 / (nanoseconds + 500) / np.maximum(1, error / 0.25)
    return coefficients


def likeness(a: Key, b: Key) -> int:
    """As in cost.c."""
    dtype, kind, native, input_, output, form, algorithm, pass_ = (x == y for x, y in zip(a, b, strict=True))
    if not kind or not pass_ or (not algorithm and a[1] == "conv2d"):
        return -1
    return 32 * output + 16 * native + 8 * input_ + 4 * form + 2 * dtype + algorithm


def most_alike(row: Key, rows: dict[Key, Any]) -> Any:
    """The coefficients for a row that may not be there."""
    return rows[row] if row in rows else rows[max(rows, key=lambda other: likeness(row, other))]


def predicted(one: dict[str, Any], rows: dict[Key, Any]) -> float:
    return float(np.dot(one["features"], most_alike(one["row"], rows))) * 1e-9


def report(records: list[dict[str, Any]], rows: dict[Key, Any]) -> None:
    by_row = defaultdict(list)
    for one in records:
        by_row[one["row"]].append((predicted(one, rows) / one["seconds"] - 1, one["seconds"]))
    total = sum(one["seconds"] for one in records)
    for row, own in sorted(by_row.items(), key=lambda item: -sum(s for _, s in item[1])):
        share = sum(s for _, s in own) / total
        error = math.sqrt(sum(e * e * s for e, s in own) / sum(s for _, s in own))
        if share > 0.002:
            print(f"{' '.join(map(str, row)):75} {len(own):5} {share:6.1%}  error {error:.1%}")
    passes = defaultdict(list)
    for one in records:
        row = one["row"]
        if row[1] == "conv2d":
            passes[one["network"], one["first"], one["number"], row[3], row[4], row[7]].append(one)
    lost, of_form = defaultdict(float), defaultdict(float)
    several = {at: own for at, own in passes.items() if len(own) > 1}
    for at, own in several.items():
        chosen = min(own, key=lambda one: predicted(one, rows))
        best = min(one["seconds"] for one in own)
        lost[at[3], at[5]] += chosen["seconds"] - best
        of_form[at[3], at[5]] += best
    for form, best in sorted(of_form.items()):
        print(f"regret of algorithms, {' '.join(form)}: {lost[form] / best:.1%}")
    steps: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    for one in records:
        if one["row"][1] != "conv2d":
            step = steps[one["network"]].setdefault(one["first"], [0.0, 0.0])
            step[0] += one["seconds"]
            step[1] += predicted(one, rows)
    for at, own in passes.items():
        chosen = min(own, key=lambda one: predicted(one, rows))
        step = steps[at[0]].setdefault(at[1], [0.0, 0.0])
        step[0] += chosen["seconds"]
        step[1] += predicted(chosen, rows)
    lost_steps = [
        own[min(own, key=lambda first: own[first][1])][0] / min(step[0] for step in own.values()) - 1
        for own in steps.values()
        if len(own) > 1
    ]
    if lost_steps:
        print(f"regret of tables: mean {statistics.mean(lost_steps):.1%}, of {len(lost_steps)} networks")
        print("  largest:", ", ".join(f"{one:.0%}" for one in sorted(lost_steps)[-10:]))


def constant(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).upper()


def fit(arguments: argparse.Namespace) -> None:
    for one in arguments.sets:
        name, _, groups = one.partition("=")
        rows: dict[Key, Any] = {}
        for group in groups.split("+"):
            paths, _, words = group.partition(":")
            records = read(paths)
            made = fitted(records)
            rows |= {row: own for row, own in made.items() if not words or set(words.split(",")) & set(row)}
            print(f"{name}: {len(records)} times of {paths}, {len(rows)} rows")
            report(records, rows)
        lines = ["/* Made by tools/fit_costs.py. */", '#include "nn/cost_internal.h"', "", "/* clang-format off */"]
        lines += ["static const gg_cost_row rows[] = {"]
        for row, coefficients in sorted(rows.items()):
            numbers = ", ".join(f"{one:.4g}" for one in coefficients)
            lines.append(f"GG_COST_ROW({', '.join(map(constant, row))}, {numbers}),")
        lines += ["};", "/* clang-format on */", ""]
        count = "(int)(sizeof rows / sizeof *rows)"
        lines += [f'const gg_cost_model gg_cost_{name} = {{.name = "{name}", .row = rows, .rows = {count}}};']
        (ROWS / f"cost_{name}.c").write_text("\n".join(lines) + "\n", encoding="utf-8")


def check(arguments: argparse.Namespace) -> None:
    for one in arguments.files:
        records = read(one)
        print(f"{one}: {len(records)} times")
        report(records, fitted(records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure", help="append measurements of this machine to a file")
    one.add_argument("file", type=Path)
    one.add_argument("--seconds", type=float, default=90, help="default: 90")
    one.add_argument("--seed", type=int, default=0, help="draws networks")
    one.add_argument("--threads", type=int, default=1)
    help_ = "multiply-adds of a network of images, at most; default: 6e8, a step of some 50 ms by sums of products"
    one.add_argument("--macs", type=float, default=6e8, help=help_)
    one.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    one.set_defaults(run=measure)
    one = commands.add_parser("check", help="print how well rows fit")
    one.add_argument("files", nargs="+", metavar="FILE[,FILE...]")
    one.set_defaults(run=check)
    one = commands.add_parser("fit", help="write the rows of a kind of CPU")
    help_ = (
        "a file cost_NAME.c each; rows of the files behind a + replace those of the files before it, with words only "
        "those that have one of them in their key"
    )
    one.add_argument("sets", nargs="+", metavar="NAME=FILE[,FILE...][+FILE:WORD,...]", help=help_)
    one.set_defaults(run=fit)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
