"""Images a second that are decoded and augmented for training: gossipgrad.data against torchvision in a DataLoader.

    python benchmarks/loader_vs_torch.py FOLDER [--workers 1] [--size 224] [--rounds 5]

Random resized crop, flip and normalisation of every image of FOLDER/<class>/, batch by batch, alternately, and the
median of the rounds; the first round of each, in which files may come from the disk, is left out. gossipgrad's threads
give uint8, whose normalisation is part of copying a batch into the network, so that here it is done by NumPy and its
time counted. torchvision: ImageFolder with Pillow, and its own decode_image, in worker processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import gossipgrad as gg

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ours(arguments: argparse.Namespace) -> Callable[[int], int]:
    data = gg.data.image_folder(arguments.folder, arguments.size, workers=arguments.workers, progress=False)
    source = data.source
    pixels = np.empty((arguments.batch, *data.shape), np.uint8)
    batch = np.empty((arguments.batch, *data.shape), np.float32)
    scale, shift = source.scale[:, None, None], source.shift[:, None, None]

    def epoch(number: int) -> int:
        order = np.random.default_rng(number).permutation(len(data))
        for begin in range(0, len(order), arguments.batch):
            rows = order[begin : begin + arguments.batch]
            source.read(rows, number, pixels[: len(rows)], None)
            np.multiply(pixels[: len(rows)], scale, out=batch[: len(rows)])
            batch[: len(rows)] += shift
        return len(order)

    return epoch


def theirs(arguments: argparse.Namespace, decoder: str) -> Callable[[int], int]:
    import torch
    import torchvision
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    crop = [v2.RandomResizedCrop(arguments.size, antialias=True), v2.RandomHorizontalFlip()]
    to_float = [v2.ToImage()] if decoder == "pillow" else []
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]

    def decode(path: str) -> torch.Tensor:
        return torchvision.io.decode_image(path, torchvision.io.ImageReadMode.RGB)

    data = torchvision.datasets.ImageFolder(
        arguments.folder,
        v2.Compose([*crop, *to_float, *last]),
        loader=torchvision.datasets.folder.pil_loader if decoder == "pillow" else decode,
    )
    data[0]
    loader = torch.utils.data.DataLoader(
        data, arguments.batch, shuffle=True, num_workers=arguments.workers, persistent_workers=True
    )

    def epoch(number: int) -> int:
        torch.manual_seed(number)
        return sum(len(labels) for _, labels in loader)

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=1, help="threads, or processes of torch")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    runs = {"gossipgrad": ours(arguments)}
    for decoder in ("pillow", "decode_image"):
        try:
            runs[f"torchvision, {decoder}"] = theirs(arguments, decoder)
        except (ImportError, RuntimeError) as error:  # a build of torchvision without its decoder
            print(f"without torchvision, {decoder}: {' '.join(str(error).split())}")
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(arguments.rounds + 1):
        for name, epoch in runs.items():
            start = time.perf_counter()
            count = epoch(number)
            if number:
                rates[name].append(count / (time.perf_counter() - start))
    own = statistics.median(rates["gossipgrad"])
    for name, values in rates.items():
        middle = statistics.median(values)
        print(
            f"{name}: {middle:.0f} images/s with {arguments.workers} workers; gossipgrad is {own / middle:.2f} times it"
        )


if __name__ == "__main__":
    main()
