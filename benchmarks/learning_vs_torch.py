"""What is learned, ours against PyTorch's: the same data, augmentation, start, rates and number of steps.

    GOSSIPGRAD_DATA=../shared/data python benchmarks/learning_vs_torch.py higgs --seeds 3
    python benchmarks/learning_vs_torch.py resnet20 --epochs 5
    python benchmarks/learning_vs_torch.py cifar_quick --seeds 2
    python benchmarks/learning_vs_torch.py char_lstm --steps 2000

Needs PyTorch. Both sides start from gossipgrad's initial weights; the order of samples is drawn by each for itself.
resnet20: CIFAR-10 with random crops and flips; cifar_quick: with Caffe's schedule; char_lstm: tiny Shakespeare.
Prints one line a run, and the mean of the differences.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import gossipgrad as gg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import torch  # noqa: E402
import torch_networks as theirs  # noqa: E402


class Problem:
    """What both sides train: subclasses say the network, the data, the optimiser and what is measured at the end."""

    loss = "cross_entropy"
    measured = "accuracy"
    metrics: tuple[str, ...] = ()
    batch = 128

    def __init__(self, arguments: argparse.Namespace, seed: int) -> None:
        self.arguments, self.seed = arguments, seed
        self.train, self.test = self.sets()
        self.epochs = arguments.epochs or self.default_epochs
        self.steps_of_epoch = -(-len(self.train) // self.batch)

    def steps(self) -> int:
        return self.epochs * self.steps_of_epoch

    def ours(self) -> float:
        trainer = gg.Trainer(
            self.net(), loss=self.loss, optimizer=self.optimizer(), metrics=list(self.metrics) or None, seed=self.seed
        )
        history = trainer.fit(
            self.train,
            validation=self.test,
            epochs=self.epochs,
            batch_size=self.batch,
            progress=self.arguments.progress,
        )
        trainer.close()
        return history.last["validation"][self.measured]

    def torch_loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1))

    def read(self, data: gg.Dataset, rows: np.ndarray, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        if data.source is None:
            x, y = data.samples[rows], data.targets[rows]
        else:
            x, y = data.source.read_new(rows, epoch)
            y = data.targets[rows] if y is None else y
        x = torch.from_numpy(np.ascontiguousarray(x))
        if x.dtype == torch.int32:
            return x.long(), torch.from_numpy(y).long()
        shape = (-1,) + (1,) * (x.ndim - 2)
        scale, shift = (np.asarray(one, np.float32) for one in (data.scale, data.shift))
        scale, shift = (one.reshape(shape) if one.ndim == 1 else one for one in (scale, shift))
        y = torch.from_numpy(np.asarray(y))
        return x.float() * torch.from_numpy(scale) + torch.from_numpy(shift), self.target(y)

    def target(self, y: torch.Tensor) -> torch.Tensor:
        return y.long()

    def pytorch(self) -> float:
        torch.manual_seed(self.seed)
        module = self.module()
        start = {name: torch.from_numpy(array) for name, array in self.net().weights(self.seed).items()}
        module.load_state_dict(start, strict=False)
        optimizer, mine = self.torch_optimizer(module), self.optimizer()
        step = 0
        for epoch in range(self.epochs):
            module.train()
            order = torch.randperm(len(self.train)).numpy()
            for begin in range(0, len(order), self.batch):
                for group in optimizer.param_groups:
                    group["lr"] = group.get("factor", 1) * mine.rate(step, self.steps())
                optimizer.zero_grad()
                x, y = self.read(self.train, np.sort(order[begin : begin + self.batch]), epoch)
                self.torch_loss(module(x), y).backward()
                self.before_step(module)
                optimizer.step()
                step += 1
            if self.arguments.progress:
                print(f"PyTorch: epoch {epoch + 1}: {self.measured} {self.evaluated(module):.4f}", flush=True)
        return self.evaluated(module)

    def before_step(self, module: torch.nn.Module) -> None:
        """Between the gradients and the update."""

    def evaluated(self, module: torch.nn.Module) -> float:
        module.eval()
        outputs, targets = [], []
        with torch.no_grad():
            for begin in range(0, len(self.test), 500):
                x, y = self.read(self.test, np.arange(begin, min(begin + 500, len(self.test))), -1)
                outputs.append(module(x))
                targets.append(y)
        return self.figure(torch.cat(outputs), torch.cat(targets))

    def figure(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return (outputs.argmax(1) == targets).double().mean().item()


class Higgs(Problem):
    """AUC on the 10,000 + 5,000 rows, as examples/higgs.py."""

    loss, measured, metrics, default_epochs = "binary_cross_entropy", "auc", ("auc",), 20

    def sets(self):
        return gg.data.load("higgs", progress=False)

    def net(self):
        return gg.models.mlp()

    def module(self):
        return theirs.perceptron((28, 300, 300, 300, 1), torch.nn.ReLU)

    def optimizer(self):
        return gg.SGD(lr=0.05, momentum=0.9, weight_decay=5e-3, schedule=gg.schedules.Cosine())

    def torch_optimizer(self, module):
        return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3)

    def target(self, y):
        return y.float().reshape(-1, 1)

    def torch_loss(self, outputs, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs, y)

    def figure(self, outputs, targets):
        """The share of pairs in the right order, ties a half."""
        good, bad = (outputs[targets == value].double().numpy() for value in (1, 0))
        bad = np.sort(bad)
        less, most = np.searchsorted(bad, good, "left"), np.searchsorted(bad, good, "right")
        return float(((less + most) / 2).mean() / len(bad))


class ResNet20(Problem):
    """Accuracy on CIFAR-10, as examples/resnet20.py."""

    default_epochs = 5

    def sets(self):
        train, test = gg.data.load("cifar10", progress=False)
        how = {"scale": 1 / (255 * np.float32([0.247, 0.243, 0.262]))}
        how["shift"] = -np.float32([0.4914, 0.4822, 0.4465]) / np.float32([0.247, 0.243, 0.262])
        train, test = (gg.Dataset(one.samples, one.targets, name="cifar10", **how) for one in (train, test))
        take = self.arguments.take
        return gg.data.random_crop(train[:take], 4, 0.5, seed=self.seed), test[:take]

    def net(self):
        return gg.models.resnet20()

    def module(self):
        return theirs.cifar_resnet(20, 10, 16)

    def optimizer(self):
        return gg.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4, schedule=gg.schedules.Cosine())

    def torch_optimizer(self, module):
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


class CifarQuick(Problem):
    """Accuracy on CIFAR-10 with Caffe's definition and schedule, as examples/cifar10_quick.py."""

    default_epochs, batch = 10, 100

    def sets(self):
        take = self.arguments.take
        train, test = (one[:take] for one in gg.data.load("cifar10", progress=False))
        mean = train.samples.mean(axis=0)
        return tuple(gg.Dataset(one.samples, one.targets, shift=-mean, name="cifar10") for one in (train, test))

    def net(self):
        return gg.models.cifar_quick(initial="caffe")

    def module(self):
        pool, nn = {"kernel_size": 3, "stride": 2, "ceil_mode": True}, torch.nn
        return theirs.named(
            conv1=nn.Conv2d(3, 32, 5, padding=2),
            pool1=nn.MaxPool2d(**pool),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 32, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.AvgPool2d(**pool),
            conv3=nn.Conv2d(32, 64, 5, padding=2),
            relu3=nn.ReLU(),
            pool3=nn.AvgPool2d(**pool),
            flatten=nn.Flatten(),
            fc1=nn.Linear(1024, 64),
            fc2=nn.Linear(64, 10),
        )

    def optimizer(self):
        schedule = gg.schedules.StepDecay(every=max(4 * self.steps() // 5, 1))
        return gg.SGD(lr=0.001, momentum=0.9, weight_decay=0.004, schedule=schedule)

    def torch_optimizer(self, module):
        biases = [one for name, one in module.named_parameters() if name.endswith("bias")]
        weights = [one for name, one in module.named_parameters() if not name.endswith("bias")]
        groups = [{"params": weights, "factor": 1}, {"params": biases, "factor": 2}]
        return torch.optim.SGD(groups, lr=0.001, momentum=0.9, weight_decay=0.004)


class CharLSTM(Problem):
    """Validation loss on tiny Shakespeare, as examples/char_lstm.py."""

    measured, batch = "loss", 52

    def sets(self):
        train, test = gg.data.text(gg_text(), sequence=64, windows="random", validation=0.1, seed=self.seed)
        steps = self.arguments.steps
        self.default_epochs = -(-steps // (len(train) // self.batch))
        while steps % self.default_epochs:
            self.default_epochs += 1
        return train[: self.batch * steps // self.default_epochs], test

    def net(self):
        return gg.models.char_lstm(sequence=64)

    def module(self):
        return theirs.CharLSTM(65, 128, 128, 2)

    def optimizer(self):
        return gg.Adam(lr=2e-3)

    def torch_optimizer(self, module):
        return torch.optim.Adam(module.parameters(), lr=2e-3)

    def figure(self, outputs, targets):
        return self.torch_loss(outputs, targets).item()


def gg_text() -> Path:
    import os

    return Path(os.environ["GOSSIPGRAD_DATA"]) / "shakespeare" / "input.txt"


PROBLEMS = {"higgs": Higgs, "resnet20": ResNet20, "cifar_quick": CifarQuick, "char_lstm": CharLSTM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=1, help="runs, of seeds 0, 1, ...")
    parser.add_argument("--epochs", type=int, help="default: the problem's")
    parser.add_argument("--steps", type=int, default=2000, help="of char_lstm")
    parser.add_argument("--take", type=int, help="so many samples of CIFAR-10's sets")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; ours: OMP_NUM_THREADS")
    parser.add_argument("--only", choices=("ours", "pytorch"), help="one side")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    differences = []
    for seed in range(arguments.seeds):
        problem = PROBLEMS[arguments.problem](arguments, seed)
        found: dict[str, float] = {}
        print(f"{arguments.problem}, seed {seed}: {problem.measured}", end="", flush=True)
        for name in [arguments.only] if arguments.only else ["ours", "pytorch"]:
            begin = time.perf_counter()
            found[name] = getattr(problem, name)()
            print(f", {name} {found[name]:.4f} ({time.perf_counter() - begin:.0f} s)", end="", flush=True)
        print(flush=True)
        if len(found) == 2:
            differences.append(found["ours"] - found["pytorch"])
    if differences:
        print(f"mean of ours - PyTorch's: {statistics.mean(differences):+.4f}")


if __name__ == "__main__":
    main()
