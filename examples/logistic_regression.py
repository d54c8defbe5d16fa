"""Logistic regression by gossip, on arrays: expect an accuracy of about 0.93 on every rank.

python examples/logistic_regression.py     four ranks of a virtual cluster; under mpiexec: its ranks
"""

import argparse
import os

import numpy as np

import gossipgrad as gg

argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()  # there are no options
draw = np.random.default_rng(0)
classes = draw.integers(0, 2, 2000).astype(np.float32)
points = draw.normal(size=(2000, 10)) + classes[:, None]

comm = None if "OMPI_COMM_WORLD_SIZE" in os.environ else gg.VirtualCluster(4)
x = gg.Exchange({"w": np.zeros(10), "b": np.zeros(1)}, optimizer=gg.SGD(lr=0.5, momentum=0.9), comm=comm)
for step in range(200):
    for replica in x.replicas:  # one under mpiexec, all in a virtual cluster
        rows = np.random.default_rng([step, replica.rank]).integers(0, 1600, 32)
        chance = 1 / (1 + np.exp(-points[rows] @ replica.weights["w"] - replica.weights["b"]))
        replica.gradients["w"] = points[rows].T @ (chance - classes[rows]) / 32
        replica.gradients["b"][...] = (chance - classes[rows]).mean()
    x.step()
for replica in x.replicas:
    right = (points[1600:] @ replica.weights["w"] + replica.weights["b"] > 0) == classes[1600:]
    print(f"rank {replica.rank}: accuracy {right.mean():.3f}")
