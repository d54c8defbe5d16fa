"""What the exchange costs with one core a rank: the step without exchange over the step with it, strategy by strategy.

    python benchmarks/exchange.py --torch-reference ../shared/bench/torch_reference.py
    python benchmarks/exchange.py --networks convnet --steps 10 --rounds 3
    python benchmarks/exchange.py --transport mpi net --only gossipgrad allreduce
    python benchmarks/exchange.py --networks resnet20 googlenet vgg16 --steps 1 --blocks 12 --rounds 2 --only gossipgrad

Every round runs each contestant once, one after the other, as `--ranks` pinned processes, and the figure is the median
over the rounds; 1 is free exchange. Ours trains both ways in alternating blocks within each run, so both see the same
neighbours and clocks; a block's figure is the mean step of the slowest rank. The peer is DistributedDataParallel
(gloo, static graph, buckets as gradient views): all ranks side by side without exchange over the step under DDP.

`lenet` has a step of some 4 ms, `cifar_quick` of 25, and `convnet`, a VGG-like network on 32x32 images with 2.4 M
weights, of 300. `resnet20`, `googlenet` and `vgg16` have the batches of step_vs_peers.py. The lowest quarter of the
blocks is what a machine shows where neighbours disturb the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

import gossipgrad as gg
from gossipgrad import bench, strategies

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def one_json_line(command: list[str], environment: dict[str, str]) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def convnet() -> gg.Model:
    layers: list[gg.Layer] = []
    for channels in (64, 128, 256):
        for _ in range(2):
            layers += [gg.Conv2d(channels, 3, padding=1), gg.ReLU()]
        layers.append(gg.MaxPool2d(2))
    return gg.Sequential([*layers, gg.Flatten(), gg.Linear(256), gg.ReLU(), gg.Linear(10)], input=(3, 32, 32))


# name: our network, what the peer's script calls it, and the batch
NETWORKS = {
    "lenet": (gg.models.lenet, "lenet", 64),
    "cifar_quick": (gg.models.cifar_quick, "cifarnet", 64),
    "convnet": (convnet, None, 64),
    "resnet20": (gg.models.resnet20, None, 128),
    "googlenet": (lambda: gg.models.googlenet(form="published"), None, 16),
    "vgg16": (gg.models.vgg16, None, 8),
}
# label: name of the strategy and its keywords
OURS = {
    "gossipgrad": ("gossipgrad", {"exchange": "weights+momentum"}),
    "gossipgrad, bf16": ("gossipgrad", {"exchange": "weights+momentum", "wire_dtype": "bfloat16"}),
    "gossipgrad, staleness 1": ("gossipgrad", {"exchange": "weights+momentum", "staleness": 1}),
    "gossipgrad, staleness 1, bf16": (
        "gossipgrad",
        {"exchange": "weights+momentum", "staleness": 1, "wire_dtype": "bfloat16"},
    ),
    "gossipgrad, 8 slices": ("gossipgrad", {"exchange": "weights+momentum", "slices": 8}),
    "gossipgrad weights, 8 slices": ("gossipgrad", {"exchange": "weights", "slices": 8}),
    "gossipgrad weights": ("gossipgrad", {"exchange": "weights"}),
    "gossipgrad weights, bf16": ("gossipgrad", {"exchange": "weights", "wire_dtype": "bfloat16"}),
    "allreduce": ("allreduce", {}),
    "allreduce, mpi": ("allreduce", {"collectives": "mpi"}),
    "layerwise-allreduce": ("layerwise-allreduce", {}),
    "overlapped-averaging": ("overlapped-averaging", {}),
}
PEER = "PyTorch DDP (gloo)"


def worker(network: str, name: str, keywords: dict, steps: int, blocks: int) -> None:
    """One contestant of this package on every rank; rank 0 prints a JSON line."""
    strategy = strategies.by_name(name, **keywords)
    make, _, batch = NETWORKS[network]
    result = bench.exchange(strategy, model=network, net=make(), batch_size=batch, steps=steps, blocks=blocks)
    if result is not None:
        print(json.dumps(result), flush=True)


def ours(arguments: argparse.Namespace, network: str, label: str, transport: str) -> dict:
    task = json.dumps([network, *OURS[label], arguments.steps, arguments.blocks])
    command = [sys.executable, "-m", "gossipgrad", "run", "--transport", transport, "-n", str(arguments.ranks)]
    return one_json_line([*command, os.path.abspath(__file__), "--worker", task], ENVIRONMENT)


def peer(arguments: argparse.Namespace, network: str) -> dict:
    command = [arguments.torch_python, "-m", "torch.distributed.run", "--nproc_per_node", str(arguments.ranks)]
    command += [arguments.torch_reference, "ddp", "--model", NETWORKS[network][1], "--batch", str(NETWORKS[network][2])]
    command += ["--channels-last", "--warmup", "10", "--steps", str(arguments.steps * arguments.blocks)]
    line = one_json_line(command, ENVIRONMENT)
    return {**line, "ratio": line["efficiency_exchange_only"], "ms_strategy": line["ms_median"]}


def shown(label: str, transport: str) -> str:
    return label if transport == "mpi" else f"{label}, {transport}"


def lowest_quarter(line: dict) -> float:
    """The ratio of a run by the blocks at the end of the lowest quarter in place of the medians."""
    alone, together = (
        sorted(line[f"ms_{who}_blocks"])[len(line[f"ms_{who}_blocks"]) // 4] for who in ("no_exchange", "strategy")
    )
    return alone / together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["lenet", "cifar_quick"])
    parser.add_argument("--only", nargs="+", choices=[*OURS, PEER], help="contestants; default: all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", nargs="+", choices=["mpi", "net"], default=["mpi"], help="one after the other")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of a block")
    parser.add_argument("--blocks", type=int, default=9, help="with the strategy, of a run; as many without")
    parser.add_argument("--torch-reference", metavar="FILE", help="the peer's script; none: no peer")
    parser.add_argument("--torch-python", default=sys.executable, metavar="PYTHON", help="an interpreter with torch")
    parser.add_argument("--json", metavar="FILE", help="write all lines")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(*json.loads(arguments.worker))
        return
    records = []
    for network in arguments.networks:
        wanted = arguments.only or [*OURS, PEER]
        if arguments.torch_reference is None or NETWORKS[network][1] is None:
            wanted = [label for label in wanted if label != PEER]
        contestants = [(label, by) for label in wanted for by in arguments.transport[: 1 if label == PEER else None]]
        contestants = [one for one in contestants if one != ("allreduce, mpi", "net")]  # MPI's own sums
        found: dict[str, list[dict]] = {shown(*one): [] for one in contestants}
        for i in range(arguments.rounds):
            for label, by in contestants:
                line = peer(arguments, network) if label == PEER else ours(arguments, network, label, by)
                found[shown(label, by)].append(line)
                records.append({"who": shown(label, by), "round": i, "network": network, **line})
        print(f"\n{network}, {arguments.ranks} ranks: medians of {arguments.rounds} rounds")
        print(f"{'':32}{'ratio':>7}{'ms/step':>9}{'lowest quarter':>16}   ratios of the rounds")
        for label, lines in found.items():
            ratios = " ".join(f"{line['ratio']:.3f}" for line in lines)
            milliseconds = statistics.median(line["ms_strategy"] for line in lines)
            ratio = statistics.median(line["ratio"] for line in lines)
            lowest = "" if label == PEER else f"{statistics.median(lowest_quarter(line) for line in lines):.3f}"
            print(f"{label:32}{ratio:>7.3f}{milliseconds:>9.2f}{lowest:>16}   {ratios}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()
