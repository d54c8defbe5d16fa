"""PyTorch's LeNet in a loop of your own, by gossip: prints the test accuracy of the mean of the ranks' weights.

gossipgrad run -n 2 examples/torch_lenet.py
gossipgrad run -n 2 examples/torch_lenet.py --strategy allreduce     what DistributedDataParallel computes
"""

import argparse

import torch
from torch import nn

import gossipgrad as gg
import gossipgrad.torch
from gossipgrad import strategies
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--strategy", choices=strategies.BY_NAME, default="gossipgrad")
parser.add_argument("--data", default="mnist-10k", help="mnist-10k, which is part of the package, or mnist")
parser.add_argument("--epochs", type=count(1, 1_000_000), default=3)
parser.add_argument("--take", type=count(1, 1_000_000), help="train on so many samples")
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(given.seed)
net = nn.Sequential(
    *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
)
model = gg.torch.wrap(net, optimizer=gg.SGD(lr=0.02, momentum=0.9), strategy=strategies.by_name(given.strategy))

train, test = gg.data.load(given.data)
train = train.take(given.take or len(train))
x, y = torch.tensor(train.samples) / 255, torch.tensor(train.targets).long()
test_x, test_y = torch.tensor(test.samples) / 255, torch.tensor(test.targets).long()
sampler = torch.utils.data.DistributedSampler(range(len(x)), model.size, model.rank, seed=given.seed)
for epoch in range(given.epochs):
    sampler.set_epoch(epoch)
    for rows in torch.tensor(list(sampler)).split(32):
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        model.step()

state = model.consensus_state_dict()  # the mean of the ranks' weights
model.close()
net.load_state_dict(state)
right = 0
with torch.no_grad():
    for part in torch.arange(len(test_x)).split(500):
        right += int((net(test_x[part]).argmax(1) == test_y[part]).sum())
if model.rank == 0:
    print(f"{given.strategy}, {model.size} ranks: test accuracy {100 * right / len(test_x):.2f} %")
