"""A step of each network, ours and PyTorch's and JAX's alternately in one run: a table of ratios beside the floors.

    python benchmarks/step_vs_peers.py --threads 2
    python benchmarks/step_vs_peers.py --networks lenet mlp --dtype bfloat16 --json steps.json
    python benchmarks/step_vs_peers.py --evaluate --threads 1 2
    python benchmarks/step_vs_peers.py --memory
    python benchmarks/step_vs_peers.py --device cuda --dtype bfloat16

A step is forward, loss, backward and SGD with momentum on one batch in memory; with --evaluate the forward pass alone.
Each contestant is a process of its own, pinned to as many cores as it has threads, which builds its network and warms
up; then all run blocks of steps in turn, one at a time. Its figure is its fastest step; the ratio is that of the best
peer to ours: above 1, ours is faster. The peers: PyTorch with the settings of peers_torch.py, with glibc's malloc and
with tcmalloc, which Debian's libtcmalloc-minimal4 has (--tcmalloc FILE where it is elsewhere), compiled by
torch.compile where --compiled says so, and JAX for the mlp. Who cannot be imported is left out, and said.

--device cuda: on a GPU, with its own batches and floors. PyTorch as it is, captured as one CUDA graph, compiled, and
compiled and captured, or those of them that --peers names; its batch lies in the GPU's memory, while ours goes up with
every step. A figure is the mean step of the fastest block, with the wait for the GPU at its end. float32 is --precision
fast unless said otherwise: both may use TF32. Each contestant runs alone, as all of them together need more memory than
a GPU has.

--memory: what a process with a network needs while it trains (or, with --evaluate, computes) at most, without what
importing the library took, each in a process that makes a few steps and does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Network:
    """floors: the least ratios that are wanted in float32 and bfloat16; small: both allocators are tried."""

    batch: int
    shape: tuple[int, ...]
    classes: int
    floors: tuple[float, float]
    small: bool = True
    tokens: bool = False


NETWORKS = {
    "vgg16": Network(8, (3, 224, 224), 1000, (2.0, 1.05), small=False),
    "googlenet": Network(16, (3, 224, 224), 1000, (1.6, 1.3), small=False),
    "resnet50": Network(16, (3, 224, 224), 1000, (1.25, 1.1), small=False),
    "alexnet": Network(32, (3, 224, 224), 1000, (1.2, 1.05), small=False),
    "resnet20": Network(128, (3, 32, 32), 10, (1.4, 1.3)),
    "cifar_quick": Network(100, (3, 32, 32), 10, (1.6, 1.2)),
    "lenet": Network(64, (1, 28, 28), 10, (2.1, 1.6)),
    "char_lstm": Network(32, (64,), 65, (1.05, 1.1), tokens=True),  # two layers of 512
    "char_gpt": Network(12, (64,), 65, (1.5, 1.2), tokens=True),
    "mlp": Network(256, (28,), 1, (1.3, 1.2)),
}
# Of ours, where the networks that PyTorch is given are not those by default.
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": {"form": "published"}, "char_lstm": {"hidden": 512}}
# On a GPU; both floors of those that are wanted in one type are the same.
ON_GPU = {
    "lenet": Network(64, (1, 28, 28), 10, (3.0, 3.0)),
    "resnet20": Network(128, (3, 32, 32), 10, (1.5, 1.5)),
    "resnet50": Network(256, (3, 224, 224), 1000, (1.0, 1.0)),
    "googlenet": Network(256, (3, 224, 224), 1000, (1.1, 1.1)),
    "vgg16": Network(128, (3, 224, 224), 1000, (1.0, 1.0)),
    "char_lstm": Network(32, (64,), 65, (1.1, 1.1), tokens=True),
}
GPU_PEERS = ("torch", "torch graphs", "torch compile", "torch compile graphs")
EVALUATION = 1.2  # the floor of every network's forward pass
BLOCK_SECONDS = 0.4  # of steps that a contestant makes in its turn, at least one


def networks_on(device: str) -> dict[str, Network]:
    return NETWORKS if device == "cpu" else ON_GPU


def a_batch(name: str, device: str) -> tuple[Any, Any]:
    network, draw = networks_on(device)[name], np.random.default_rng(0)
    n, places = network.batch, network.shape if network.tokens else ()
    if network.tokens:
        x: Any = draw.integers(0, network.classes, (n, *network.shape), dtype=np.int32)
    else:
        x = draw.standard_normal((n, *network.shape), np.float32)
    if name == "mlp":
        return x, draw.integers(0, 2, (n, 1)).astype(np.float32)
    return x, draw.integers(0, network.classes, (n, *places), dtype=np.int32)


# ---- a contestant's process


def memory_mib(field: str) -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def others_cpu_seconds() -> float:
    """CPU seconds that the machine has spent outside this process."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    own = os.times()
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def our_step(name: str, threads: int, arguments: argparse.Namespace) -> tuple[Any, int]:
    """(a function that makes a number of steps and returns the seconds of each, the parameters of the network)"""
    import gossipgrad as gg

    entry = gg.models.by_name(name)
    net = entry.make(**OPTIONS.get(name, {}))
    how: dict[str, Any] = {"device": arguments.device, "dtype": arguments.dtype, "threads": threads}
    if arguments.device.startswith("cuda"):
        how["precision"] = arguments.precision
    trainer = gg.Trainer(net, loss=entry.loss, optimizer=gg.SGD(lr=0.001, momentum=0.9), **how)
    x, y = a_batch(name, arguments.device)
    parameters = trainer.net.parameters
    trainer.choose_algorithms(len(x))
    if not arguments.evaluate:
        train = functools.partial(trainer.core.bench, x, y, 0)
        return train if arguments.device == "cpu" else by_blocks(train), parameters
    batches = 4
    samples = np.concatenate([x] * batches)

    def predict(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            trainer.predict(samples, batch_size=len(x))
            seconds.append((time.perf_counter() - begin) / batches)
        return seconds

    return predict, parameters


def by_blocks(run: Any) -> Any:
    """The mean step in place of each, for what returns before it is done but at the end."""

    def timed(steps: int) -> list[float]:
        begin = time.perf_counter()
        run(steps)
        return [(time.perf_counter() - begin) / steps] * steps

    return timed


def peer_step(who: str, name: str, threads: int, arguments: argparse.Namespace) -> tuple[Any, int]:
    x, y = a_batch(name, arguments.device)
    bfloat16, evaluate = arguments.dtype == "bfloat16", arguments.evaluate
    if who.startswith("jax"):
        import peers_jax

        step, parameters = peers_jax.jax_step(name, x, y, bfloat16=bfloat16, evaluate=evaluate)
    else:
        import peers_torch

        how = {"threads": threads, "bfloat16": bfloat16, "compiled": "compile" in who, "evaluate": evaluate}
        how |= {"device": arguments.device, "fast": arguments.precision == "fast", "graphs": "graphs" in who}
        step, parameters = peers_torch.torch_step(name, x, y, **how)
        if arguments.device != "cpu":

            def block(steps: int) -> None:
                for _ in range(steps):
                    step()
                peers_torch.finish()

            return by_blocks(block), parameters

    def run(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return run, parameters


def contestant(arguments: argparse.Namespace) -> None:
    """Build, say so, then make as many steps as each line of the input says, until it ends."""
    (threads,), (name,), who = arguments.threads, arguments.networks, arguments.contestant
    if arguments.device == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if who == "ours":
        import gossipgrad  # noqa: F401
    elif who.startswith("jax"):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax  # noqa: F401
    else:
        import torch  # noqa: F401
    imported = memory_mib("VmRSS")
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts again from now; a sandbox may refuse
    begin = time.perf_counter()
    if who == "ours":
        run, parameters = our_step(name, threads, arguments)
    else:
        run, parameters = peer_step(who, name, threads, arguments)
    run(1)
    first = time.perf_counter() - begin
    warm = run(1)
    print(json.dumps({"parameters": parameters, "first": first, "warm": warm}), flush=True)
    for line in sys.stdin:
        others, begin = others_cpu_seconds(), time.perf_counter()
        seconds = run(int(line))
        others = (others_cpu_seconds() - others) / (time.perf_counter() - begin)
        grown = memory_mib("VmHWM") - imported
        print(json.dumps({"seconds": seconds, "others": others, "grown": grown}), flush=True)


# ---- the comparison


def tcmalloc() -> str | None:
    """The system's. What lists libraries is on the path of root alone."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/sbin", "/usr/sbin"])
    program = shutil.which("ldconfig", path=path)
    listed = subprocess.run([program, "-p"], capture_output=True, text=True).stdout if program else ""
    return next((line.split()[-1] for line in listed.splitlines() if "libtcmalloc_minimal.so.4" in line), None)


def contestants(name: str, arguments: argparse.Namespace) -> list[str]:
    """Ours, then the peers."""
    if arguments.device != "cpu":
        compiled = ["torch compile", "torch compile graphs"] if name in arguments.compiled else []
        peers = ["torch", "torch graphs", *compiled]
        return ["ours", *(peer for peer in peers if peer in (arguments.peers or peers))]
    mallocs = ["", " tcmalloc"] if NETWORKS[name].small else [" tcmalloc"]
    if not arguments.tcmalloc:
        mallocs = [""]
    peers = [f"torch{malloc}" for malloc in mallocs]
    if name in arguments.compiled:
        peers += [f"torch compile{malloc}" for malloc in mallocs[-1:]]
    if name == "mlp":
        peers += ["jax"]
    return ["ours", *peers]


class Process:
    """A contestant that waits for its turns."""

    def __init__(self, who: str, name: str, threads: int, dtype: str, arguments: argparse.Namespace):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if "tcmalloc" in who:
            environment["LD_PRELOAD"] = arguments.tcmalloc
        command = [sys.executable, __file__, "--contestant", who, "--networks", name, "--threads", str(threads)]
        command += ["--dtype", dtype, *(["--evaluate"] if arguments.evaluate else [])]
        command += ["--device", arguments.device, "--precision", arguments.precision]
        self.who, self.errors = who, tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )
        self.seconds: list[float] = []
        self.others: list[float] = []
        self.grown = 0.0
        self.built: dict[str, Any] | None = None

    def answer(self) -> dict[str, Any] | None:
        """None: it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def turn(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        found = self.answer()
        if found is None:
            raise SystemExit(f"{self.who}: failed while it ran:\n{self.why()}")
        self.seconds += found["seconds"]
        self.others.append(found["others"])
        self.grown = found["grown"]

    def why(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-2000:]

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.errors.close()

    def record(self) -> dict[str, Any]:
        times = [1e3 * seconds for seconds in self.seconds]
        return {
            "who": self.who,
            "ms_min": round(min(times), 4),
            "ms_median": round(statistics.median(times), 4),
            "steps": len(times),
            "others_busy": round(min(self.others), 2),
            "first_step_s": round(self.built["first"], 2) if self.built else None,
            "grown_mib": round(self.grown, 1),
        }


def started(who: str, name: str, threads: int, dtype: str, arguments: argparse.Namespace) -> Process | None:
    """None, with a word: a peer that is not there. SystemExit: ours failed."""
    process = Process(who, name, threads, dtype, arguments)
    process.built = process.answer()
    if process.built is not None:
        return process
    why = process.why()
    process.close()
    if who == "ours":
        raise SystemExit(f"ours, {name}: failed:\n{why}")
    print(f"{name}: {who} is left out: {why.strip().splitlines()[-1] if why.strip() else 'it ended'}", file=sys.stderr)
    return None


def rounds(running: list[Process], count: int, steps: int | None = None) -> None:
    """So many blocks of each in turn; steps None: as many as take BLOCK_SECONDS."""
    for _ in range(count):
        for process in running:
            step = min(process.seconds or process.built["warm"])  # type: ignore[index]
            process.turn(steps or max(1, min(200, int(BLOCK_SECONDS / step))))


def compare(name: str, threads: int, dtype: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Blocks of steps in turn; each alone with --memory, and on a GPU, whose memory they would share."""
    running: list[Process] = []
    records: list[dict[str, Any]] = []
    parameters: set[int | None] = set()
    alone = arguments.memory or arguments.device != "cpu"
    try:
        for who in contestants(name, arguments):
            process = started(who, name, threads, dtype, arguments)
            if process is None:
                continue
            running.append(process)
            parameters.add(process.built["parameters"] if process.built else None)
            if alone:
                rounds(running, 1 if arguments.memory else arguments.rounds, 3 if arguments.memory else None)
                records.append(running.pop().record())
                process.close()
            if len(parameters) > 1:
                raise SystemExit(f"{name}: the networks differ in parameters: {who} has {process.built}")
        rounds(running, arguments.rounds)
        records += [process.record() for process in running]
    finally:
        for process in running:
            process.close()
    network = networks_on(arguments.device)[name]
    floor = EVALUATION if arguments.evaluate else network.floors[DTYPES.index(dtype)]
    what = "grown_mib" if arguments.memory else "ms_min"
    peers = sorted(records[1:], key=lambda record: record[what])
    result = {"network": name, "batch": network.batch, "threads": threads, "dtype": dtype, "contestants": records}
    result["device"] = arguments.device
    result |= {"ours": records[0][what], "peer": peers[0][what] if peers else None}
    result |= {"best_peer": peers[0]["who"] if peers else None, "floor": 1.0 if arguments.memory else floor}
    result["ratio"] = round(result["peer"] / result["ours"], 3) if peers else None
    return result


def line_of(result: dict[str, Any]) -> str:
    start = f"{result['network']:12}{result['batch']:>6}{result['threads']:>8}  {result['dtype']:9}"
    if result["ratio"] is None:
        return f"{start}{'none':>10}{result['ours']:>10.4g}"
    met = "met" if result["ratio"] >= result["floor"] else f"missed by {1 - result['ratio'] / result['floor']:.0%}"
    busy = max(record["others_busy"] for record in result["contestants"])
    return (
        f"{start}{result['peer']:>10.4g}{result['ours']:>10.4g}{result['ratio']:>7.2f}{result['floor']:>7.2f}  {met}, "
        f"{result['best_peer']}" + (f", others used {busy:.1f} cores" if busy > 0.1 else "")
    )


def scaling(results: list[dict[str, Any]]) -> list[str]:
    """The fewest threads' time over the most threads', ours and the best peer's, of the networks that have both."""
    lines = []
    for name in {result["network"]: None for result in results}:
        own = sorted((one for one in results if one["network"] == name), key=lambda one: one["threads"])
        first, last = own[0], own[-1]
        if first["threads"] == last["threads"] or first["peer"] is None or last["peer"] is None:
            continue
        ours, peer = first["ours"] / last["ours"], first["peer"] / last["peer"]
        threads = f"{last['threads']} threads over {first['threads']}"
        lines.append(f"{name:12}{last['dtype']:>9}  {threads}: ours {ours:.2f}, the best peer {peer:.2f}")
    return lines


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed: an integer of at least 1")
    return int(text)


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """A usage error for what cannot be measured as it is asked for."""
    if arguments.device == "cpu" and arguments.precision:
        parser.error(f"--precision {arguments.precision}: only with --device cuda")
    if arguments.device != "cpu" and arguments.memory:
        parser.error("--memory: of the CPU; not with --device cuda")
    if arguments.device == "cpu" and arguments.peers:
        parser.error(f"--peers {' '.join(arguments.peers)}: only with --device cuda")
    without = [name for name in arguments.networks if name not in networks_on(arguments.device)]
    if without:
        parser.error(f"--networks {' '.join(without)}: with --device cuda allowed are {', '.join(ON_GPU)}")
    unused = [name for name in arguments.compiled or [] if name not in arguments.networks]
    if unused:
        parser.error(f"--compiled {' '.join(unused)}: not one of --networks")
    if arguments.tcmalloc and arguments.device == "cpu":  # a loader that finds no such library goes on without it
        environment = {**os.environ, "LD_PRELOAD": arguments.tcmalloc}
        tried = subprocess.run([sys.executable, "-ISc", ""], capture_output=True, text=True, env=environment)
        if tried.returncode or tried.stderr:
            parser.error(f"--tcmalloc {arguments.tcmalloc}: cannot be preloaded: {tried.stderr.strip()}")
    if arguments.json:
        try:
            with open(arguments.json, "a", encoding="utf-8"):
                pass
        except OSError as error:
            parser.error(f"--json {arguments.json}: cannot be written: {error.strerror or error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), metavar="NAME")
    help_ = "one table line each; default: 1, with --device cuda 4"
    parser.add_argument("--threads", nargs="+", type=at_least_one, help=help_)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1; default: cpu")
    parser.add_argument("--precision", choices=("exact", "fast"), help="of float32 on a GPU; default: fast")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--evaluate", action="store_true", help="the forward pass, as users predict")
    parser.add_argument("--memory", action="store_true", help="MiB in place of milliseconds")
    parser.add_argument("--rounds", type=at_least_one, default=6, help="blocks of each contestant; default: 6")
    help_ = "networks that PyTorch compiles as well; default: resnet20, with --device cuda all"
    parser.add_argument("--compiled", nargs="*", choices=list(NETWORKS), metavar="NAME", help=help_)
    help_ = f"on a GPU these alone, of {', '.join(GPU_PEERS)}; default: all"
    parser.add_argument("--peers", nargs="+", choices=GPU_PEERS, metavar="NAME", help=help_)
    parser.add_argument("--tcmalloc", default=tcmalloc(), metavar="FILE", help="the library; default: the system's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures; those of a run before stay in it")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        contestant(arguments)
        return
    gpu = arguments.device != "cpu"
    if arguments.networks is None:
        arguments.networks = list(networks_on(arguments.device))
    check(parser, arguments)
    arguments.threads = arguments.threads or [4 if gpu else 1]
    arguments.precision = arguments.precision or "fast"
    if arguments.compiled is None:
        arguments.compiled = arguments.networks if gpu else ["resnet20"]
    if not arguments.tcmalloc and not gpu:
        print("tcmalloc was not found: PyTorch's large networks are slower without it", file=sys.stderr)
    unit = "MiB" if arguments.memory else "ms"
    head = f"{'network':12}{'batch':>6}{'threads':>8}  {'dtype':9}{f'peer {unit}':>10}{f'ours {unit}':>10}"
    print(f"{head}{'ratio':>7}{'floor':>7}", flush=True)
    results = []
    for name in arguments.networks:
        for threads in arguments.threads:
            results.append(compare(name, threads, arguments.dtype, arguments))
            print(line_of(results[-1]), flush=True)
            if arguments.json:
                write(arguments.json, results[-1], arguments)
    if not arguments.memory:
        for line in scaling(results):
            print(line)


def write(path: Path, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    """One line a comparison, with what it was made on."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    about = {"what": "memory" if arguments.memory else "evaluate" if arguments.evaluate else "step"}
    if arguments.device != "cpu":
        from gossipgrad.launch import environment

        about["gpu"] = environment.devices().get("gpu")
    about |= {"cpu": cpu or platform.machine(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(about | result) + "\n")


if __name__ == "__main__":
    main()
