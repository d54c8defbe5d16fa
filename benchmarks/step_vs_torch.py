"""One training step, ours against PyTorch's, in alternating runs on the same machine: a table of ratios.

    python benchmarks/step_vs_torch.py --torch-reference ../shared/bench/torch_reference.py

The peer's script prints one JSON line for `step --model M --threads T --steps N [--channels-last]`; each model
is measured with and without channels-last, and with tcmalloc preloaded where the system has it, and its best
median of each round is the peer. Ours is `gossipgrad bench`. Every round runs each contestant once, one after
the other, on the same pinned cores; the ratio is the median over the rounds of PyTorch's time / ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

MODELS = {"lenet": 64, "mlp": 256}


def one_json_line(command: list[str], environment: dict[str, str]) -> dict:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def tcmalloc() -> str | None:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    return next((line.split()[-1] for line in listed.splitlines() if "libtcmalloc_minimal.so.4" in line), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch-reference", required=True, metavar="FILE", help="the peer's script")
    parser.add_argument("--torch-python", default=sys.executable, metavar="PYTHON", help="an interpreter with torch")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", metavar="FILE", help="write all lines")
    arguments = parser.parse_args()

    cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
    os.sched_setaffinity(0, cores)
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    preload = tcmalloc()
    settings = [([], None), (["--channels-last"], None)]
    if preload:
        settings += [([], preload), (["--channels-last"], preload)]
    records = []
    print(f"{'model':8}{'batch':>6}{'PyTorch ms':>12}{'ours ms':>10}{'ratio':>8}   rounds, settings of the best peer")
    for model in arguments.models:
        ratios, peers, ours_all, best_settings = [], [], [], []
        common = [
            "--model",
            model,
            "--threads",
            str(arguments.threads),
            "--steps",
            str(arguments.steps),
            "--warmup",
            "10",
        ]
        for _ in range(arguments.rounds):
            best = None
            for extra, library in settings:
                if model == "mlp" and extra:
                    continue  # no images, no channels
                with_library = {**environment, "LD_PRELOAD": library} if library else environment
                line = one_json_line(
                    [arguments.torch_python, arguments.torch_reference, "step", *common, *extra], with_library
                )
                records.append({"who": "torch", **line})
                if best is None or line["ms_median"] < best[0]:
                    best = (line["ms_median"], " ".join(extra) + (" tcmalloc" if library else ""))
            line = one_json_line(
                [sys.executable, "-m", "gossipgrad", "bench", *common, "--batch-size", str(MODELS[model])], environment
            )
            records.append({"who": "gossipgrad", **line})
            peers.append(best[0])
            ours_all.append(line["ms_median"])
            ratios.append(best[0] / line["ms_median"])
            best_settings.append(best[1].strip() or "plain")
        rounds = " ".join(f"{ratio:.2f}" for ratio in ratios)
        chosen = statistics.mode(best_settings)
        print(
            f"{model:8}{MODELS[model]:>6}{statistics.median(peers):>12.3f}{statistics.median(ours_all):>10.3f}"
            f"{statistics.median(ratios):>8.2f}   {rounds}, {chosen}"
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()
