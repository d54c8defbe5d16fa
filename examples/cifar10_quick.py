"""CIFAR-10 with Caffe's quick network and its schedule: expect a validation accuracy of 74 to 75 % after 10 epochs.

python examples/cifar10_quick.py                                   one rank
python examples/cifar10_quick.py --data DIR --epochs 1 --take 500  a short look

Caffe's solver: batches of 100, momentum 0.9, weight decay 0.004, rate 0.001 for eight tenths of the steps and a tenth
of it for the rest; weights and biases start as there, and pixels are 0..255 less the mean image. 74.6 % (seed 0) were
measured on images that had been stored as JPEG with half of the colours' resolution, which loses some. --mirror is an
option of Caffe's data layer that its schedule for this network leaves off.
"""

import argparse

import gossipgrad as gg
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", help="where CIFAR-10 lies; default: as of gossipgrad.data.load")
parser.add_argument("--epochs", type=count(1, 1_000_000), default=10)
parser.add_argument("--take", type=count(1, 1_000_000), help="train and validate on so many samples; default: all")
parser.add_argument("--mirror", action="store_true", help="images are mirrored at random while training")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument(
    "--ranks", type=count(1, 100), default=1, help="of a virtual cluster, which divide each batch of 100"
)
given = parser.parse_args()

train, test = gg.data.load("cifar10", given.data)
train, test = train[: given.take], test[: given.take]
mean = train.samples.mean(axis=0)  # an image
train, test = (gg.Dataset(one.samples, one.targets, shift=-mean, name="cifar10") for one in (train, test))
if given.mirror:
    train = gg.data.random_crop(train, padding=0, flip=0.5, seed=given.seed)

steps = given.epochs * -(-len(train) // 100)
trainer = gg.Trainer(
    gg.models.cifar_quick(initial="caffe"),
    optimizer=gg.SGD(
        lr=0.001, momentum=0.9, weight_decay=0.004, schedule=gg.schedules.StepDecay(every=max(4 * steps // 5, 1))
    ),
    comm=gg.VirtualCluster(given.ranks) if given.ranks > 1 else None,
    seed=given.seed,
)
history = trainer.fit(train, validation=test, epochs=given.epochs, batch_size=100 // given.ranks)
if trainer.rank == 0:
    print(f"validation accuracy {100 * history.last['validation']['accuracy']:.2f} %")
