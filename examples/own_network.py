"""A network of your own, any graph, trained by gossip.

python examples/own_network.py                         one rank
gossipgrad run -n 4 examples/own_network.py            four ranks under mpiexec
"""

import argparse

import gossipgrad as gg

argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()  # there are no options
x = gg.Input((1, 28, 28))
y = gg.MaxPool2d(2)(gg.Conv2d(16, 5, padding=2)(x))
narrow = gg.ReLU()(gg.Conv2d(16, 1)(y))
wide = gg.ReLU()(gg.Conv2d(16, 3, padding=1)(y))
y = gg.Concat()([narrow, wide])
y = gg.Add()([y, gg.Conv2d(32, 3, padding=1)(y)])
y = gg.Linear(10)(gg.Flatten()(gg.MaxPool2d(2)(y)))
net = gg.Model(x, y)

train, test = gg.data.load("mnist-10k")
trainer = gg.Trainer(net, optimizer=gg.SGD(lr=0.02, momentum=0.9), strategy=gg.GossipGraD(topology="dissemination"))
if trainer.rank == 0:
    print(net.summary())
trainer.fit(train, validation=test, epochs=2, batch_size=64)
