"""What the exchange costs: the step without exchange over the step with a strategy, in alternating blocks on the
same pinned cores.

    gossipgrad run -n 2 benchmarks/exchange.py --network lenet --strategy gossipgrad
    gossipgrad run -n 2 benchmarks/exchange.py --network convnet --strategy gossipgrad --steps 10

One process a core trains both contestants in turn, so both see the same neighbours and clocks; a block's figure
is the mean step of the slowest rank. ratio 1 is free exchange. `convnet` is a VGG-like network on 32x32 images
(2.4 M weights) whose step takes more than 100 ms.
"""

from __future__ import annotations

import argparse
import json

import gossipgrad as gg
from gossipgrad import bench, strategies


def convnet() -> gg.Model:
    layers: list[gg.Layer] = []
    for channels in (64, 128, 256):
        layers += [
            gg.Conv2d(channels, 3, padding=1),
            gg.ReLU(),
            gg.Conv2d(channels, 3, padding=1),
            gg.ReLU(),
            gg.MaxPool2d(2),
        ]
    return gg.Sequential([*layers, gg.Flatten(), gg.Linear(256), gg.ReLU(), gg.Linear(10)], input=(3, 32, 32))


NETWORKS = {"lenet": (gg.models.lenet, "cross_entropy", 64), "convnet": (convnet, "cross_entropy", 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", choices=NETWORKS, default="lenet")
    parser.add_argument("--strategy", choices=strategies.BY_NAME, default="gossipgrad")
    parser.add_argument("--staleness", type=int, choices=(0, 1), default=0)
    parser.add_argument("--exchange", choices=strategies.EXCHANGES, default="weights+momentum")
    parser.add_argument("--wire-dtype", choices=strategies.WIRES, default="float32")
    parser.add_argument("--collectives", choices=strategies.COLLECTIVES, default="own")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=60, help="of a block")
    parser.add_argument("--blocks", type=int, default=9)
    arguments = parser.parse_args()
    make, loss, batch = NETWORKS[arguments.network]
    given = {"wire_dtype": arguments.wire_dtype, "collectives": arguments.collectives}
    options = {key: value for key, value in given.items() if value not in ("float32", "own")}
    if arguments.strategy == "gossipgrad":
        options |= {"staleness": arguments.staleness, "exchange": arguments.exchange}
    result = bench.exchange(
        strategies.by_name(arguments.strategy, **options),
        model=arguments.network,
        net=make(),
        loss=loss,
        batch_size=arguments.batch_size or batch,
        steps=arguments.steps,
        blocks=arguments.blocks,
    )
    if result is not None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
