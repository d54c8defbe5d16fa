"""A slow network on one machine: network namespaces joined by a bridge whose links carry --rate each way.

    python benchmarks/slow_network.py --ranks 2 4 --rounds 3 --torch-python python        (as root; Linux)
    python benchmarks/slow_network.py --rate 1gbit 100mbit --only no-exchange "allreduce, adacomp" "ddp gloo"

Trains fully connected layers (784-2048-2048-10, 5.8 M weights) on random images, each contestant in turn, `--rounds`
times. Each namespace has one process with one thread. Prints medians for each contestant: the step, the compute
thread's wait in it, samples a second over all ranks, bytes and messages that a rank sends in a step. A ratio compares
the step with the step without exchange in the same round.

--torch-python names an interpreter with torch. PyTorch's DistributedDataParallel then runs in the same rounds, on gloo,
with a static graph and buckets as gradient views: without a hook, with the bfloat16 hook, and with the PowerSGD hook,
which compresses from the second step on. --rate measures at several rates one after the other. The namespaces are
removed at the end, also after an error, an interrupt or SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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

BATCH = 64
WIDTHS = (784, 2048, 2048, 10)
BRIDGE = "ggbr"
NET = "10.77.0"

# label: name of the strategy and its keywords; "compression" are those of gg.AdaComp
OURS = {
    "no-exchange": ("no-exchange", {}),
    "gossipgrad weights, slices=8": ("gossipgrad", {"exchange": "weights", "slices": 8}),
    "gossipgrad weights, slices=40": ("gossipgrad", {"exchange": "weights", "slices": 40}),
    "gossipgrad weights, slices=100": ("gossipgrad", {"exchange": "weights", "slices": 100}),
    "allreduce, adacomp": ("allreduce", {"compression": {}}),
    "allreduce, adacomp, factor 1.5": ("allreduce", {"compression": {"factor": 1.5}}),
    "allreduce, adacomp, local momentum": ("allreduce", {"compression": {"local_momentum": True, "factor": 1.5}}),
    "layerwise-allreduce, adacomp, local momentum": (
        "layerwise-allreduce",
        {"compression": {"local_momentum": True, "factor": 1.5}},
    ),
    "layerwise-allreduce, adacomp": ("layerwise-allreduce", {"compression": {}}),
    "layerwise-allreduce, cyclic": ("layerwise-allreduce", {"compression": {"selection": "cyclic"}}),
    "gossipgrad weights": ("gossipgrad", {"exchange": "weights"}),
    "gossipgrad weights, staleness 1": ("gossipgrad", {"exchange": "weights", "staleness": 1}),
    "gossipgrad weights+momentum": ("gossipgrad", {"exchange": "weights+momentum"}),
    "gossipgrad weights, bf16": ("gossipgrad", {"exchange": "weights", "wire_dtype": "bfloat16"}),
    "allreduce": ("allreduce", {}),
    "layerwise-allreduce": ("layerwise-allreduce", {}),
    "layerwise-allreduce, bf16": ("layerwise-allreduce", {"wire_dtype": "bfloat16"}),
    "overlapped-averaging": ("overlapped-averaging", {}),
    "overlapped-averaging, gradients": ("overlapped-averaging", {"partition_fc": False}),
}
PEERS = {"ddp gloo": "float32", "ddp gloo, bf16 hook": "bfloat16", "ddp gloo, powersgd rank 1": "powersgd"}


# ------------------------------------------------------------------------------------ inside a rank


def ours(name: str, keywords: dict, steps: int) -> None:
    """One contestant of this package; rank 0 prints a JSON line."""
    import numpy as np

    import gossipgrad as gg
    from gossipgrad import strategies

    layers: list[gg.Layer] = [gg.Flatten()]
    for width in WIDTHS[1:-1]:
        layers += [gg.Linear(width), gg.ReLU()]
    net = gg.Sequential([*layers, gg.Linear(WIDTHS[-1])], input=(1, 28, 28))
    optimizer = gg.SGD(lr=0.001, momentum=0.9)
    how = keywords.pop("compression", None)
    strategy = strategies.by_name(name, **keywords)
    compression = None if how is None else gg.AdaComp(**how)
    trainer = gg.Trainer(net, optimizer=optimizer, strategy=strategy, compression=compression)
    generator = np.random.default_rng(0)
    samples = steps * BATCH * trainer.team.size
    images = generator.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, samples, dtype=np.int32)
    history = trainer.fit(gg.data.Dataset(images, labels, scale=1 / 255), epochs=2, batch_size=BATCH, progress=False)
    one = history.epochs[-1]  # the first one warms up
    if trainer.rank == 0:
        ranks = trainer.team.size
        line = {
            "ms": 1e3 * one["seconds_max"] / steps,
            "exposed_ms": 1e3 * one["exposed_communication_seconds"] / steps,
            "samples_per_second": samples / one["seconds_max"],
            "bytes": one["bytes_sent"] / steps / ranks,
            "messages": one["messages_sent"] / steps / ranks,
        }
        print(json.dumps(line), flush=True)


def ddp(wire: str, steps: int) -> None:
    """PyTorch's contestant; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group("gloo")

    def bfloat16_hook(_, bucket):
        # What torch's bf16_compress_hook does; that one refuses gloo by name.
        small = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
        future = dist.all_reduce(small, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    layers: list[nn.Module] = []
    for before, after in zip(WIDTHS, WIDTHS[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    how: dict = {"gradient_as_bucket_view": True, "static_graph": True}
    if wire == "powersgd":
        # One bucket: gloo ends with a mismatch of sizes where the hook has several in flight, as it does not say in
        # which order the continuations of their sums run.
        how["bucket_cap_mb"] = 1000
    net = DistributedDataParallel(nn.Sequential(*layers[:-1]), **how)
    if wire == "bfloat16":
        net.register_comm_hook(None, bfloat16_hook)
    if wire == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, fused=True)
    x, y = torch.rand(BATCH, WIDTHS[0]), torch.randint(WIDTHS[-1], (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    for _ in range(5):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    dist.barrier()
    seconds = time.perf_counter() - start
    if dist.get_rank() == 0:
        whole = BATCH * steps * dist.get_world_size()
        print(json.dumps({"ms": 1e3 * seconds / steps, "samples_per_second": whole / seconds}), flush=True)
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------ outside


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}: {done.stderr.strip()}")


def take_away(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"left behind: {shlex.join(words)}: {done.stderr.strip()}", file=sys.stderr)


def forget(folder: Path) -> None:
    with contextlib.suppress(OSError):  # somebody else's files may lie there, too
        (folder / "hosts").unlink(missing_ok=True)
        folder.rmdir()


class Hosts:
    """`count` namespaces gg1, gg2, ... on one bridge; `with` takes away what it has made, and nothing else."""

    def __init__(self, count: int, rate: str) -> None:
        self.names = [f"gg{i}" for i in range(1, count + 1)]
        self.rate = rate
        self.made = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as made:
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            made.callback(take_away, "ip", "link", "del", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            for i, name in enumerate(self.names, 1):
                run("ip", "netns", "add", name)
                made.callback(take_away, "ip", "netns", "del", name)
                run("ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "net0", "netns", name)
                made.callback(take_away, "ip", "link", "del", f"v{name}")
                run("ip", "link", "set", f"v{name}", "master", BRIDGE, "up")
                run("ip", "-n", name, "addr", "add", f"{NET}.{i}/24", "dev", "net0")
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "link", "set", "net0", "up")
                # Both ends are limited: what the host sends, and what the bridge sends to it.
                limit = ("root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "5ms")
                run("tc", "-n", name, "qdisc", "add", "dev", "net0", *limit)
                run("tc", "qdisc", "add", "dev", f"v{name}", *limit)
                # `ip netns exec` shows this file as /etc/hosts
                folder = Path("/etc/netns") / name
                folder.mkdir(parents=True)
                made.callback(forget, folder)
                lines = [f"{NET}.{k} {other}" for k, other in enumerate(self.names, 1)]
                (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n", encoding="ascii")
            self.made = made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.made.close()

    def command(self, i: int, *words: str) -> list[str]:
        """Run words on host i, on a core of its own where there are enough."""
        cores = sorted(os.sched_getaffinity(0))
        return ["taskset", "-c", str(cores[i % len(cores)]), "ip", "netns", "exec", self.names[i], *words]


AGENT = """#!/bin/sh
# mpiexec calls this in place of ssh: AGENT HOST COMMAND...
host=$1; shift
number=${host#gg}
exec taskset -c $(( (number - 1) % $(nproc --all) )) ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
"""


def stop(process: subprocess.Popen) -> None:
    """mpiexec that is killed leaves its ranks behind; asked to end, it ends them."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def finish(processes: list[subprocess.Popen], seconds: float, what: str) -> dict:
    """The JSON line among what the processes print."""
    deadline = time.monotonic() + seconds
    try:
        outputs = [one.communicate(timeout=max(1.0, deadline - time.monotonic()))[0] for one in processes]
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{what}: no end after {seconds:.0f} s") from None
    finally:
        for one in processes:
            if one.poll() is None:
                stop(one)
    lines = [line for text in outputs for line in text.splitlines() if line.startswith("{")]
    if not lines or any(one.returncode for one in processes):
        raise SystemExit(f"{what} failed:\n" + "\n".join(outputs)[-3000:])
    return json.loads(lines[-1])


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def measure_ours(hosts: Hosts, label: str, steps: int, agent: str) -> dict:
    name, keywords = OURS[label]
    ranks = len(hosts.names)
    mpi = (
        f"--prtemca plm_ssh_agent {agent} --prtemca oob_tcp_if_include {NET}.0/24 --mca btl_tcp_if_include {NET}.0/24 "
        "--mca btl self,tcp --bind-to none --map-by node"
    )
    inner = [sys.executable, "-m", "gossipgrad", "run", "-n", str(ranks), "--hosts"]
    inner += [",".join(f"{name}:1" for name in hosts.names), "--mpi", mpi, os.path.abspath(__file__)]
    inner += ["--worker", json.dumps([name, keywords]), "--steps", str(steps)]
    named = f"hostname {hosts.names[0]}; exec {shlex.join(inner)}"
    command = hosts.command(0, "unshare", "-u", "sh", "-c", named)
    return finish([start(command, {"OMP_NUM_THREADS": "1"})], 600, label)


def measure_ddp(hosts: Hosts, label: str, steps: int, python: str, port: int) -> dict:
    ranks = len(hosts.names)
    processes = []
    for i in range(ranks):
        words = [python, os.path.abspath(__file__), "--peer", PEERS[label], "--steps", str(steps)]
        environment = {"RANK": str(i), "WORLD_SIZE": str(ranks), "MASTER_ADDR": f"{NET}.1", "MASTER_PORT": str(port)}
        environment |= {"GLOO_SOCKET_IFNAME": "net0", "OMP_NUM_THREADS": "1"}
        processes.append(start(hosts.command(i, *words), environment))
    return finish(processes, 600, label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", nargs="+", default=["1gbit"], help="of each link, each way, in tc's units")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=[*OURS, *PEERS], help="contestants; default: all")
    parser.add_argument("--torch-python", metavar="PYTHON", help="an interpreter with torch; none: no peer")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        ours(*json.loads(arguments.worker), arguments.steps)
        return
    if arguments.peer:
        ddp(arguments.peer, arguments.steps)
        return
    if os.geteuid():
        raise SystemExit("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is taken away
    wanted = arguments.only or [*OURS, *(PEERS if arguments.torch_python else ())]
    records = []
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as file:
        file.write(AGENT)
    os.chmod(file.name, 0o755)
    try:
        for rate, ranks in itertools.product(arguments.rate, arguments.ranks):
            found: dict[str, list[dict]] = {label: [] for label in wanted}
            with Hosts(ranks, rate) as hosts:
                for i in range(arguments.rounds):
                    for k, label in enumerate(wanted):
                        if label in OURS:
                            line = measure_ours(hosts, label, arguments.steps, file.name)
                        else:
                            port = 29500 + 100 * i + k
                            line = measure_ddp(hosts, label, arguments.steps, arguments.torch_python, port)
                        found[label].append(line)
                        records.append({"ranks": ranks, "rate": rate, "round": i, "who": label, **line})
                        if arguments.json:
                            Path(arguments.json).write_text(json.dumps(records, indent=1), encoding="utf-8")
            table(ranks, rate, found)
    finally:
        os.unlink(file.name)


def table(ranks: int, rate: str, found: dict[str, list[dict]]) -> None:
    print(f"\n{ranks} ranks, {rate}: medians of {len(next(iter(found.values())))} rounds")
    print(f"{'':34}{'ms/step':>9}{'exposed':>9}{'samples/s':>11}{'MB/step':>9}{'messages':>9}{'to none':>9}")

    def median(lines: list[dict], key: str) -> float | None:
        return statistics.median(line[key] for line in lines) if key in lines[0] else None

    alone = [line["ms"] for line in found.get("no-exchange", ())]
    for label, lines in found.items():
        bytes_sent = median(lines, "bytes")
        over = [line["ms"] / without for line, without in zip(lines, alone, strict=bool(alone))]
        cells = [(median(lines, "ms"), 9, 1), (median(lines, "exposed_ms"), 9, 1)]
        cells += [(median(lines, "samples_per_second"), 11, 0)]
        cells += [(None if bytes_sent is None else bytes_sent / 1e6, 9, 2), (median(lines, "messages"), 9, 1)]
        cells += [(statistics.median(over) if over else None, 9, 2)]
        print(f"{label:34}" + "".join(f"{'' if v is None else format(v, f'.{d}f'):>{w}}" for v, w, d in cells))


if __name__ == "__main__":
    main()
