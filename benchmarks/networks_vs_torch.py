"""A training step of each network, time and memory, ours against PyTorch with its default settings: a table.

    python benchmarks/networks_vs_torch.py --threads 2
    python benchmarks/networks_vs_torch.py --models resnet20 char_gpt --rounds 3

Each measurement is a process of its own, which builds the network, makes `--steps` steps of SGD with momentum on random
samples, and says the median time of a step and the largest resident memory (of the process, and without what importing
the library took). Both sides of a round run one after the other; the ratio is the median over the rounds of PyTorch's
time / ours. PyTorch's networks are those that the tests compare with (tests/torch_networks.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# name: samples a step
BATCHES = {
    "mlp": 256,
    "lenet": 64,
    "cifar_quick": 100,
    "resnet20": 128,
    "char_lstm": 50,
    "char_gpt": 12,
    "speech_dnn": 256,
    "alexnet": 32,
    "vgg16": 4,
    "vgg16_bn": 4,
    "googlenet": 16,
    "resnet18": 16,
    "resnet50": 16,
}


def memory_mib(field: str) -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def timed(step, steps: int) -> list[float]:
    seconds = []
    for i in range(steps + 1):
        begin = time.perf_counter()
        step()
        if i > 0:
            seconds.append(time.perf_counter() - begin)
    return seconds


def ours(model: str, batch: int, steps: int, threads: int) -> list[float]:
    import numpy as np

    import gossipgrad as gg

    entry = gg.models.by_name(model)
    net = entry.make()
    trainer = gg.Trainer(net, loss=entry.loss, optimizer=gg.SGD(lr=0.001, momentum=0.9), threads=threads)
    random = np.random.default_rng(0)
    if entry.samples == "tokens":
        x, y = (random.integers(0, 65, (batch, *net.input_shape)) for _ in range(2))
    else:
        x = random.standard_normal((batch, *net.input_shape), np.float32)
        y = random.integers(0, 2, (batch, 1)) if model == "mlp" else random.integers(0, net.output_shape[-1], batch)
    return timed(lambda: trainer.train_step(x, y), steps)


def theirs(model: str, batch: int, steps: int, threads: int) -> list[float]:
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
    import torch
    import torch_networks as networks
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)
    image, classes = (3, 224, 224), 1000
    if model == "mlp":
        module, image, classes = networks.perceptron([28, 300, 300, 300, 1], nn.ReLU), (28,), 1
    elif model == "lenet":
        module = nn.Sequential(
            *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
        )
        image, classes = (1, 28, 28), 10
    elif model == "cifar_quick":
        module = nn.Sequential(
            *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU()),
            *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2, ceil_mode=True)),
            *(nn.Flatten(), nn.Linear(1024, 64), nn.Linear(64, 10)),
        )
        image, classes = (3, 32, 32), 10
    elif model == "resnet20":
        module, image, classes = networks.cifar_resnet(20, 10, 16), (3, 32, 32), 10
    elif model == "speech_dnn":
        module, image, classes = networks.perceptron([440, *[1024] * 6, 5999], nn.Sigmoid), (440,), 5999
    elif model == "char_lstm":
        module, image, classes = networks.CharLSTM(65, 128, 128, 2), None, 65
    elif model == "char_gpt":
        module, image, classes = networks.CharGPT(65, 64, 4, 4, 128, False), None, 65
    elif model == "alexnet":
        module = networks.alexnet(1000, 4096, 64)
    elif model.startswith("vgg"):
        module = networks.vgg(16, 1000, 4096, 64, model.endswith("bn"))
    elif model == "googlenet":
        module = networks.GoogLeNet(1000)
    else:
        block, blocks = (networks.Basic, (2, 2, 2, 2)) if model == "resnet18" else (networks.Bottleneck, (3, 4, 6, 3))
        module = networks.resnet(block, blocks, 1000, 64)
    optimizer = torch.optim.SGD(module.parameters(), 0.001, momentum=0.9)
    if image is None:
        tokens = torch.randint(classes, (batch, 65))
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    else:
        x = torch.randn(batch, *image)
        y = torch.rand(batch, 1).round() if model == "mlp" else torch.randint(classes, (batch,))

    def loss_of(out):
        if isinstance(out, tuple):
            return sum(w * functional.cross_entropy(o, y) for w, o in zip((1, 0.3, 0.3), out, strict=True))
        if model == "mlp":
            return functional.binary_cross_entropy_with_logits(out, y)
        return functional.cross_entropy(out.reshape(-1, out.shape[-1]), y)

    def step():
        optimizer.zero_grad()
        loss_of(module(x)).backward()
        optimizer.step()

    return timed(step, steps)


def worker(arguments: argparse.Namespace) -> None:
    if arguments.worker == "ours":
        import gossipgrad  # noqa: F401
    else:
        import torch  # noqa: F401
    imported = memory_mib("VmRSS")
    measure = ours if arguments.worker == "ours" else theirs
    seconds = measure(arguments.models[0], BATCHES[arguments.models[0]], arguments.steps, arguments.threads)
    peak = memory_mib("VmHWM")
    print(json.dumps({"ms": 1000 * statistics.median(seconds), "peak": peak, "grown": peak - imported}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(BATCHES), choices=list(BATCHES), metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--worker", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    print(f"{'network':12}{'batch':>6}{'PyTorch ms':>12}{'ours ms':>10}{'ratio':>7}{'PyTorch MiB':>13}{'ours MiB':>10}")
    for model in arguments.models:
        found: dict[str, list[dict]] = {"theirs": [], "ours": []}
        for _ in range(arguments.rounds):
            for who, lines in found.items():
                command = [sys.executable, __file__, "--worker", who, "--models", model]
                command += ["--threads", str(arguments.threads), "--steps", str(arguments.steps)]
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    raise SystemExit(f"{who}, {model}: failed ({done.returncode}):\n{done.stderr[-2000:]}")
                lines.append(json.loads(done.stdout.splitlines()[-1]))
        ratio = statistics.median(a["ms"] / b["ms"] for a, b in zip(found["theirs"], found["ours"], strict=True))
        middle = {
            (who, what): statistics.median(line[what] for line in lines)
            for who, lines in found.items()
            for what in ("ms", "peak", "grown")
        }
        memory = [f"{middle[who, 'peak']:.0f}/{middle[who, 'grown']:.0f}" for who in ("theirs", "ours")]
        print(
            f"{model:12}{BATCHES[model]:>6}{middle['theirs', 'ms']:>12.1f}{middle['ours', 'ms']:>10.1f}{ratio:>7.2f}"
            f"{memory[0]:>13}{memory[1]:>10}",
            flush=True,
        )


if __name__ == "__main__":
    main()
