"""Linear regression by gossip, on arrays: expect the weights of least squares to about four digits.

python examples/linear_regression.py                              four ranks of a virtual cluster
mpiexec -n 4 python examples/linear_regression.py --mpi           the same on four processes, with the same result
"""

import argparse

import numpy as np

import gossipgrad as gg

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--mpi", action="store_true", help="the ranks that mpiexec has started")
options = parser.parse_args()
draw = np.random.default_rng(0)
samples = draw.normal(size=(400, 5))
targets = samples @ np.arange(1.0, 6.0) + 3 + 0.1 * draw.normal(size=400)


def train(replica):
    a, y = samples[replica.rank :: 4], targets[replica.rank :: 4]  # a quarter of the samples
    for _ in range(300):
        error = a @ replica.weights["w"] + replica.weights["b"] - y
        replica.step({"w": a.T @ error / len(y), "b": error.mean()})


comm = None if options.mpi else gg.VirtualCluster(4)
x = gg.Exchange({"w": np.zeros(5), "b": np.zeros(())}, strategy=gg.GossipGraD(), optimizer=gg.SGD(lr=0.05), comm=comm)
x.run(train)
found = x.consensus_weights()
if x.rank == 0:
    best, *_ = np.linalg.lstsq(np.column_stack([samples, np.ones(400)]), targets, rcond=None)
    print("by gossip    ", *(f"{value:.4f}" for value in [*found["w"], found["b"]]))
    print("least squares", *(f"{value:.4f}" for value in best))
