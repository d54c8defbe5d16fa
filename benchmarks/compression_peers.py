"""What others send: PowerSGD and top-k with error feedback, p ranks in one process. Needs PyTorch.

Used by benchmarks/compression.py peers. PyTorch computes each rank's gradient on its part of
the batch, beginning with gossipgrad's initial weights. Messages follow the published algorithms; they are counted, not
sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gossipgrad as gg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import torch  # noqa: E402
import torch_networks as theirs  # noqa: E402

Gradients = list[torch.Tensor]  # of one rank, a tensor each


class Dense:
    """The mean of the gradients, by an all-reduce."""

    gathers = False  # how it travels: an all-gather of what each contributes, or else a ring all-reduce

    def __init__(self, shapes: list[torch.Size], ranks: int) -> None:
        self.shapes, self.ranks = shapes, ranks
        self.contributed = 0  # bytes that a rank contributes, of all steps

    def mean(self, gradients: list[Gradients]) -> Gradients:
        """One step: each rank's gradients in, what all apply out."""
        return [self.one(i, [of_rank[i] for of_rank in gradients]) for i in range(len(self.shapes))]

    def one(self, i: int, gradients: list[torch.Tensor]) -> torch.Tensor:
        self.contributed += 4 * gradients[0].numel()
        return sum(gradients) / self.ranks

    def sent(self) -> float:
        """Bytes that a rank sends, by what its contributions cost in an all-gather or a ring all-reduce."""
        return self.contributed * (self.ranks - 1 if self.gathers else 2 * (self.ranks - 1) / self.ranks)


class PowerSGD(Dense):
    """Vogels, Karimireddy, Jaggi, "PowerSGD" (2019), as PyTorch's hook does it: error feedback, and each step starts
    from the factor of the last one. A tensor travels dense if its factors would be more than half of it."""

    def __init__(self, shapes: list[torch.Size], ranks: int, rank: int) -> None:
        super().__init__(shapes, ranks)
        self.rank = rank
        generator = torch.Generator().manual_seed(0)
        self.factor: dict[int, torch.Tensor] = {}
        self.error: dict[int, list[torch.Tensor]] = {}
        for i, shape in enumerate(shapes):
            rows, columns = shape[0], shape.numel() // shape[0]
            least = min(rows, columns, rank)
            if len(shape) > 1 and 2 * (rows + columns) * least < rows * columns:
                self.factor[i] = torch.randn(columns, least, generator=generator)
                self.error[i] = [torch.zeros(rows, columns) for _ in range(ranks)]

    def one(self, i: int, gradients: list[torch.Tensor]) -> torch.Tensor:
        if i not in self.factor:
            return super().one(i, gradients)
        errors = self.error[i]
        whole = [g.reshape(e.shape) + e for g, e in zip(gradients, errors, strict=True)]
        p = torch.linalg.qr(sum(m @ self.factor[i] for m in whole) / self.ranks).Q
        q = sum(m.T @ p for m in whole) / self.ranks
        mean = p @ q.T
        self.factor[i] = q
        self.error[i] = [m - mean for m in whole]
        self.contributed += 4 * (p.numel() + q.numel())
        return mean.reshape(self.shapes[i])


class TopK(Dense):
    """Of each tensor's residue plus gradient the largest `share`, as 32-bit places and float32 values; the rest stays
    in the residue. Vectors travel dense."""

    gathers = True

    def __init__(self, shapes: list[torch.Size], ranks: int, share: float) -> None:
        super().__init__(shapes, ranks)
        self.chosen = {i: max(1, round(share * shape.numel())) for i, shape in enumerate(shapes) if len(shape) > 1}
        self.error = {i: [torch.zeros(shapes[i].numel()) for _ in range(ranks)] for i in self.chosen}

    def one(self, i: int, gradients: list[torch.Tensor]) -> torch.Tensor:
        if i not in self.chosen:
            return super().one(i, gradients)
        mean = torch.zeros(self.shapes[i].numel())
        for error, gradient in zip(self.error[i], gradients, strict=True):
            error += gradient.reshape(-1) / self.ranks
            places = error.abs().topk(self.chosen[i], sorted=False).indices
            mean[places] += error[places]
            error[places] = 0
        self.contributed += 8 * self.chosen[i]
        return mean.reshape(self.shapes[i])


def lenet() -> torch.nn.Module:
    nn = torch.nn
    return theirs.named(
        conv1=nn.Conv2d(1, 20, 5),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(20, 50, 5),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(800, 500),
        relu1=nn.ReLU(),
        fc2=nn.Linear(500, 10),
    )


MODULES = {"lenet": lenet}


def pixels(data: gg.Dataset, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    x = data.samples[rows].astype(np.float32) * np.float32(data.scale) + np.float32(data.shift)
    return torch.from_numpy(x), torch.from_numpy(np.asarray(data.targets[rows], np.int64))


def train(
    module: torch.nn.Module,
    start: dict[str, np.ndarray],
    train: gg.Dataset,
    test: gg.Dataset,
    make: Callable[[list[torch.Size], int], Dense],
    *,
    ranks: int,
    batch: int,
    epochs: int,
    optimizer: gg.SGD,
    seed: int,
) -> dict[str, float]:
    """Accuracy, and bytes a rank and step, of SGD with momentum on what `make` lets through."""
    module.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    parameters = list(module.parameters())
    shapes = [one.shape for one in parameters]
    sends = make(shapes, ranks)
    update = torch.optim.SGD(parameters, lr=0.1, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay)
    whole = batch * ranks
    steps_of_epoch, step = -(-len(train) // whole), 0
    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        order = generator.permutation(len(train))
        for begin in range(0, len(order), whole):
            for group in update.param_groups:
                group["lr"] = optimizer.rate(step, epochs * steps_of_epoch)
            rows = order[begin : begin + whole]
            gradients = []
            for part in np.array_split(rows, ranks):
                x, y = pixels(train, part)
                loss = torch.nn.functional.cross_entropy(module(x), y, reduction="sum") * (ranks / len(rows))
                gradients.append([g.detach() for g in torch.autograd.grad(loss, parameters)])
            mean = sends.mean(gradients)
            for parameter, gradient in zip(parameters, mean, strict=True):
                parameter.grad = gradient
            update.step()
            step += 1
    module.eval()
    with torch.no_grad():
        hits = 0
        for begin in range(0, len(test), 500):
            x, y = pixels(test, np.arange(begin, min(begin + 500, len(test))))
            hits += int((module(x).argmax(1) == y).sum())
    return {
        "accuracy": hits / len(test),
        "contributed": sends.contributed / step,
        "bytes": sends.sent() / step,
    }
