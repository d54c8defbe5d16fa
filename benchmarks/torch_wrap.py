"""PyTorch modules on several ranks: wrapped by gossipgrad against DistributedDataParallel and all-reduce by hand.

    python benchmarks/torch_wrap.py --ranks 1 2 --networks lenet resnet18          (shared memory, one core a rank)
    python benchmarks/torch_wrap.py --ranks 4 --rate 1gbit --networks lenet        (as root; Linux: network namespaces)

All contestants train the same module on the same random images in the same processes, alternately: `--rounds` blocks of
`--steps` steps each, between barriers. Printed are medians over rounds: a block's step, samples a second of all ranks,
and this rate over DDP's in the same round (bfloat16 over DDP's with a bfloat16 hook). "alone" trains without exchange.

With one rank, "wrapped, no exchange" over "alone" is the cost of the hooks: our steps against those with PyTorch's
fused SGD. CPU time of the process counts, which other programs disturb less.
"by hand" is what Horovod does without overlap: all gradients in one buffer, one all-reduce after the backward pass.
DDP has static graphs and buckets as views of gradients, gloo; PyTorch's SGD is fused. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NETWORKS = ("lenet", "resnet18", "mlp")
# Names of contestants: the strategy's keywords, or PyTorch's.
OURS: dict[str, dict] = {
    "wrapped GossipGraD": {},
    "wrapped GossipGraD weights": {"exchange": "weights"},
    "wrapped GossipGraD weights, slices=8": {"exchange": "weights", "slices": 8},
    "wrapped GossipGraD weights, bf16": {"exchange": "weights", "wire_dtype": "bfloat16"},
    "wrapped GossipGraD weights, slices=8, bf16": {"exchange": "weights", "slices": 8, "wire_dtype": "bfloat16"},
    "wrapped, no exchange": {"none": True},
}
PEERS = ("alone", "DDP", "DDP, bf16 hook", "by hand")


def module_of(network: str):
    """A module, its batch and the shape of its samples."""
    import torch
    from torch import nn

    sys.path.insert(0, str(HERE.parent / "tests"))
    import torch_networks

    torch.manual_seed(0)
    if network == "lenet":
        features = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*features, nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)), 64, (1, 28, 28)
    if network == "mlp":
        parts = [nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
        return nn.Sequential(nn.Flatten(), *parts), 64, (1, 28, 28)
    return torch_networks.resnet(torch_networks.Basic, [2, 2, 2, 2], 10, 64), 8, (3, 64, 64)


def contestant(label: str, network: str, x, y):
    """(one step, what completes a block)."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import gossipgrad as gg
    import gossipgrad.torch

    net = module_of(network)[0]
    if label in OURS:
        keywords = dict(OURS[label])
        strategy = gg.NoExchange() if keywords.pop("none", False) else gg.GossipGraD(**keywords)
        model = gg.torch.wrap(net, gg.SGD(lr=0.001, momentum=0.9), strategy)

        def ours() -> None:
            F.cross_entropy(model(x), y).backward()
            model.step()

        return ours, model.settle
    if label.startswith("DDP"):
        net = DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
    if label == "DDP, bf16 hook":

        def hook(_, bucket):
            # What torch's bf16_compress_hook does; that one refuses gloo by name.
            small = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
            future = dist.all_reduce(small, async_op=True).get_future()
            return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

        net.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, fused=True)

    def reduce_by_hand() -> None:
        gradients = [one.grad for one in net.parameters()]
        flat = torch.cat([one.view(-1) for one in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            one.copy_(part.view(one.shape))

    def theirs() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if label == "by hand":
            reduce_by_hand()
        optimizer.step()

    return theirs, lambda: None


def rank_main(arguments: argparse.Namespace) -> None:
    """On every rank; rank 0 prints a JSON line of seconds a step: a list over rounds for each contestant."""
    import gossipgrad as gg

    team = gg.Team()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[team.rank % len(cores)]})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if arguments.address:
        os.environ |= {"MASTER_ADDR": arguments.address, "MASTER_PORT": str(arguments.port)}
        dist.init_process_group("gloo", rank=team.rank, world_size=team.size)
    else:
        dist.init_process_group("gloo", init_method=f"file://{arguments.store}", rank=team.rank, world_size=team.size)
    network = arguments.networks[0]
    _, batch, shape = module_of(network)
    torch.manual_seed(team.rank)
    x, y = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))
    made = {label: contestant(label, network, x, y) for label in arguments.only}
    seconds: dict[str, list[float]] = {label: [] for label in made}
    cpu: dict[str, list[float]] = {label: [] for label in made}
    for step, complete in made.values():
        for _ in range(3):
            step()
        complete()
    for _ in range(arguments.rounds):
        for label, (step, complete) in made.items():
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for _ in range(arguments.steps):
                step()
            complete()
            cpu[label].append((time.process_time() - used) / arguments.steps)
            dist.barrier()
            seconds[label].append((time.perf_counter() - begin) / arguments.steps)
    if team.rank == 0:
        print(json.dumps({"seconds": seconds, "cpu": cpu, "batch": batch}), flush=True)
    team.barrier()
    dist.destroy_process_group()


# ---- outside of ranks


def launched(arguments: argparse.Namespace, ranks: int, network: str, rate: str | None, only: list[str]) -> dict:
    words = [str(Path(__file__).resolve()), "--worker", "--networks", network, "--steps", str(arguments.steps)]
    words += ["--rounds", str(arguments.rounds), "--only", *only]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    start = [sys.executable, "-m", "gossipgrad", "run", "-n", str(ranks)]
    if rate is None:
        with tempfile.TemporaryDirectory() as folder:
            mpi = "--bind-to none --oversubscribe" if ranks > (os.cpu_count() or 1) else "--bind-to none"
            return finished([*start, "--mpi", mpi, *words, "--store", f"{folder}/store"], environment)
    sys.path.insert(0, str(HERE))
    import slow_network

    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as file:
        file.write(slow_network.AGENT)
    os.chmod(file.name, 0o755)
    try:
        with slow_network.Hosts(ranks, rate) as hosts:
            where = f"{slow_network.NET}.0/24"
            mpi = (
                f"--prtemca plm_ssh_agent {file.name} --prtemca oob_tcp_if_include {where} --mca btl_tcp_if_include "
                f"{where} --mca btl self,tcp --bind-to none --map-by node -x PYTHONPATH -x GLOO_SOCKET_IFNAME"
            )
            start += ["--hosts", ",".join(f"{name}:1" for name in hosts.names), "--mpi", mpi, *words]
            start += ["--address", f"{slow_network.NET}.1", "--port", "29511"]
            named = f"hostname {hosts.names[0]}; exec {shlex.join(start)}"
            command = hosts.command(0, "unshare", "-u", "sh", "-c", named)
            return finished(command, environment | {"GLOO_SOCKET_IFNAME": "net0"})
    finally:
        os.unlink(file.name)


def finished(command: list[str], environment: dict[str, str]) -> dict:
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text = process.communicate(timeout=540)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines or process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{text[-3000:]}")
    return json.loads(lines[-1])


def table(title: str, ranks: int, found: dict) -> None:
    print(f"\n{title}, medians of {len(next(iter(found['seconds'].values())))} rounds")
    print(f"{'':44}{'ms/step':>10}{'CPU ms':>9}{'samples/s':>11}{'to DDP':>9}{'to alone':>9}")
    of_cpu = ranks == 1  # ranks that wait for messages use their core, too
    for label, seconds in found["seconds"].items():
        middle, own = statistics.median(seconds), found["cpu"][label]
        cells = f"{1e3 * middle:10.2f}{1e3 * statistics.median(own):9.2f}{ranks * found['batch'] / middle:11.0f}"
        for base in ("DDP, bf16 hook" if "bf16" in label else "DDP", "alone"):
            others = found["cpu" if of_cpu else "seconds"].get(base)
            mine = own if of_cpu else seconds
            pairs = [other / one for one, other in zip(mine, others or (), strict=bool(others))]
            cells += f"{statistics.median(pairs):9.2f}" if pairs else " " * 9
        print(f"{label:44}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["lenet", "resnet18"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--rate", help="of links between namespaces, each way, in tc's units; default: shared memory")
    parser.add_argument("--only", nargs="+", choices=[*OURS, *PEERS], help="contestants")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        rank_main(arguments)
        return
    if arguments.rate and os.geteuid():
        raise SystemExit("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is taken away
    records = []
    for network in arguments.networks:
        for ranks in arguments.ranks:
            only = arguments.only
            if only is None:
                only = ["alone", "DDP", "by hand", "wrapped GossipGraD"]
                if arguments.rate:
                    only[2:] = ["DDP, bf16 hook", *(name for name in OURS if "weights" in name)]
                if ranks == 1:
                    only = ["alone", "wrapped, no exchange", "wrapped GossipGraD"]
            found = launched(arguments, ranks, network, arguments.rate, only)
            records.append({"network": network, "ranks": ranks, "rate": arguments.rate, **found})
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(records, indent=1), encoding="utf-8")
            table(f"{network}, {ranks} ranks, {arguments.rate or 'shared memory'}", ranks, found)


if __name__ == "__main__":
    main()
