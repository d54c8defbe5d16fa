"""ResNet-18 learns 200 photographs of 200 classes by heart: expect a training accuracy of 100 %.

python examples/resnet18_overfits.py --data DIR        DIR/<class>/*.JPEG
python examples/resnet18_overfits.py --data DIR --size 64 --epochs 2

What a network that trains as it should can do, and one with a wrong gradient cannot. No augmentation; the photographs
are 112 x 112 by default, so that an epoch takes seconds.
"""

import argparse

import gossipgrad as gg
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", required=True, help="a folder of images, one folder a class")
parser.add_argument("--epochs", type=count(1, 1_000_000), default=40)
parser.add_argument("--size", type=int, default=112, help="of the images")
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

photographs = gg.data.image_folder(given.data, given.size, augment=False)
train = gg.Dataset(photographs.samples, photographs.targets, photographs.scale, photographs.shift, name="photographs")
trainer = gg.Trainer(
    gg.models.resnet18(len(photographs.classes), (3, given.size, given.size)),
    optimizer=gg.SGD(lr=0.05, momentum=0.9, schedule=gg.schedules.Cosine()),
    seed=given.seed,
)
history = trainer.fit(train, epochs=given.epochs, batch_size=20)
found = trainer.evaluate(train)
if trainer.rank == 0:
    print(f"accuracy on what it was trained on {100 * found['accuracy']:.2f} % (as evaluated)")
