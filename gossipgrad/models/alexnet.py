"""AlexNet, in the form of torchvision."""

from __future__ import annotations

from gossipgrad.layers import AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, ReLU
from gossipgrad.model import Model
from gossipgrad.models.building import Shape, at_least, chain, image, network, rate


@network
def alexnet(
    classes: int = 1000, input: Shape = (3, 224, 224), dropout: float = 0.5, *, hidden: int = 4096, width: int = 64
) -> Model:
    """AlexNet on one device: 61,100,840 parameters at 1000 classes; loss "cross_entropy".

    After Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), as in torchvision, whose
    names and initial weights these are. `hidden`: the width of the two linear layers before the last; `width`:
    channels of the first convolution. Images of at least 63 x 63.
    """
    dropout, hidden, width = rate(dropout), at_least("hidden", hidden), at_least("width", width)
    y = chain(
        x := image(input),
        [
            Conv2d(width, 11, stride=4, padding=2, name="features.0"),
            ReLU(name="features.1"),
            MaxPool2d(3, 2, name="features.2"),
            Conv2d(3 * width, 5, padding=2, name="features.3"),
            ReLU(name="features.4"),
            MaxPool2d(3, 2, name="features.5"),
            Conv2d(6 * width, 3, padding=1, name="features.6"),
            ReLU(name="features.7"),
            Conv2d(4 * width, 3, padding=1, name="features.8"),
            ReLU(name="features.9"),
            Conv2d(4 * width, 3, padding=1, name="features.10"),
            ReLU(name="features.11"),
            MaxPool2d(3, 2, name="features.12"),
            AdaptiveAvgPool2d(6, name="avgpool"),
            Flatten(name="flatten"),
            Dropout(dropout, name="classifier.0"),
            Linear(hidden, name="classifier.1"),
            ReLU(name="classifier.2"),
            Dropout(dropout, name="classifier.3"),
            Linear(hidden, name="classifier.4"),
            ReLU(name="classifier.5"),
            Linear(at_least("classes", classes), name="classifier.6"),
        ],
    )
    return Model(x, y, name="alexnet")
