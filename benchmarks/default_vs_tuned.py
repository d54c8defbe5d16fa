"""A training step by the cost model's choices and by measured ones, alternately in one run.

    python benchmarks/default_vs_tuned.py
    python benchmarks/default_vs_tuned.py --networks lenet odd ragged --threads 2 --rounds 9

Each line: ms of the default, ms with tune=True, default over tuned (above 1, measuring gains), and whether both chose
the same. The figures are medians over rounds of blocks of steps. Networks are those of step_vs_peers.py, and five of
odd widths, batches and image sizes, which are not among the measurements of the model. Nothing cached is used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any

import step_vs_peers

import gossipgrad as gg
from gossipgrad.bench import synthetic_batch

BLOCK_SECONDS = 0.3


def odd() -> tuple[gg.Model, int]:
    layers: list[Any] = [gg.Conv2d(24, 5, padding=2), gg.ReLU(), gg.MaxPool2d(2)]
    layers += [gg.Conv2d(52, 3, padding=1), gg.ReLU(), gg.Conv2d(76, 3, padding=1), gg.ReLU(), gg.MaxPool2d(2)]
    return gg.Sequential([*layers, gg.Flatten(), gg.Linear(130), gg.ReLU(), gg.Linear(7)], input=(3, 45, 37)), 37


def narrow() -> tuple[gg.Model, int]:
    layers: list[Any] = []
    for width in (40, 80, 160):
        for _ in range(2):
            layers += [gg.Conv2d(width, 3, padding=1, bias=False), gg.BatchNorm2d(), gg.ReLU()]
        layers.append(gg.MaxPool2d(2))
    return gg.Sequential([*layers, gg.GlobalAvgPool2d(), gg.Flatten(), gg.Linear(11)], input=(3, 64, 64)), 24


def depthwise() -> tuple[gg.Model, int]:
    layers: list[Any] = [gg.Conv2d(32, 3, stride=2, padding=1), gg.ReLU()]
    for width, out in ((32, 64), (64, 96), (96, 128)):
        layers += [gg.Conv2d(width, 3, padding=1, groups=width), gg.ReLU(), gg.Conv2d(out, 1), gg.ReLU()]
    return gg.Sequential([*layers, gg.GlobalAvgPool2d(), gg.Flatten(), gg.Linear(10)], input=(3, 96, 96)), 10


def branches() -> tuple[gg.Model, int]:
    x = gg.Input((3, 72, 72))
    node = gg.MaxPool2d(2)(gg.ReLU()(gg.Conv2d(30, 7, stride=2, padding=3)(x)))
    for _ in range(2):
        parts = [gg.ReLU()(gg.Conv2d(20, 1)(node))]
        for kernel, width in ((3, 44), (5, 18)):
            reduced = gg.ReLU()(gg.Conv2d(width // 2, 1)(node))
            parts.append(gg.ReLU()(gg.Conv2d(width, kernel, padding=kernel // 2)(reduced)))
        node = gg.Concat()(*parts)
    return gg.Model(x, gg.Linear(13)(gg.Flatten()(gg.GlobalAvgPool2d()(node)))), 50


def single() -> tuple[gg.Model, int]:
    return gg.models.resnet18(input=(3, 64, 64), classes=10), 3


ODD = {"odd": odd, "narrow": narrow, "depthwise": depthwise, "branches": branches, "single": single}


def trainers(name: str, threads: int) -> tuple[list[gg.Trainer], Any, Any, int]:
    """By default and tuned, with a batch."""
    made = []
    for tune in (False, True):
        how: dict[str, Any] = {"threads": threads, "tune": tune, "optimizer": gg.SGD(lr=0.001, momentum=0.9)}
        if name in ODD:
            net, batch = ODD[name]()
        else:
            entry = gg.models.by_name(name)
            net = entry.make(**step_vs_peers.OPTIONS.get(name, {}))
            batch, how["loss"] = step_vs_peers.NETWORKS[name].batch, entry.loss
        made.append(gg.Trainer(net, strategy=gg.NoExchange(), **how))
    x, y = synthetic_batch(made[0].net, made[0].loss, batch) if name in ODD else step_vs_peers.a_batch(name, "cpu")
    for one in made:
        one.choose_algorithms(batch)
    return made, x, y, batch


def choices(trainer: gg.Trainer) -> Any:
    return trainer.core.node_backends(), trainer.core.node_algorithms()


def compare(name: str, threads: int, rounds: int) -> None:
    made, x, y, batch = trainers(name, threads)
    warm = [one.core.bench(x, y, 0, 2)[1] for one in made]
    steps = max(1, int(BLOCK_SECONDS / min(warm)))
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for own, one in zip(seconds, made, strict=True):
            own.append(statistics.median(one.core.bench(x, y, 0, steps)))
    default, tuned = (statistics.median(own) for own in seconds)
    same = "the same choices" if choices(made[0]) == choices(made[1]) else "other choices"
    line = f"{name:12}{batch:>6}{threads:>8}{1e3 * default:>12.4g}{1e3 * tuned:>10.4g}{default / tuned:>8.3f}  {same}"
    print(line, flush=True)
    for one in made:
        one.close()


def main() -> None:
    names = [*step_vs_peers.NETWORKS, *ODD]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'network':12}{'batch':>6}{'threads':>8}{'default ms':>12}{'tuned ms':>10}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name in arguments.networks:
            compare(name, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
