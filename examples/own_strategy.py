"""A strategy of your own on gg.Team, beside two known ones: expect one error from all, and fewest messages from yours.

python examples/own_strategy.py                        eight ranks of a virtual cluster
gossipgrad run -n 8 examples/own_strategy.py --mpi     the same on eight processes, with the same result
"""

import argparse

import numpy as np

import gossipgrad as gg

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--ranks", type=int, default=8, help="of the virtual cluster; default: 8")
parser.add_argument("--mpi", action="store_true", help="the ranks that mpiexec has started")
options = parser.parse_args()
team = gg.Team() if options.mpi else gg.Team(gg.VirtualCluster(options.ranks))
truth = np.arange(1.0, 25.0)


def gradient(rank, step, w):
    """On the rank's own 16 samples of this step. Each rank lacks some directions, which only others can learn."""
    draw = np.random.default_rng((rank, step))
    x = draw.normal(size=(16, 24)) * (np.arange(24) % team.size != rank)
    return x.T @ (x @ (w - truth) - 0.1 * draw.normal(size=16)) / 16


def gradients(w, step):
    return team.each(lambda rank: gradient(rank, step, w[rank] if team.stacked else w))


def all_reduce(w, step):
    return team.allreduce(w, "mean")


def local_sgd(w, step):
    return team.allreduce(w, "mean") if step % 8 == 7 else w


def ring(w, step):
    """Yours: to the next rank in even steps, to the one before in odd steps. The mean over the ranks stays."""
    way = 1 if step % 2 == 0 else -1
    pairs = [((rank + way) % team.size, (rank - way) % team.size) for rank in team.ranks]  # (to, from)
    return (w + team.exchange(w, pairs if team.stacked else pairs[0])) / 2


for strategy in (all_reduce, local_sgd, ring):
    w, begun = team.each(lambda rank: np.zeros(24)), (team.bytes_sent, team.messages_sent)
    for step in range(400):
        w = strategy(w - 0.05 * gradients(w, step), step)
    each = len(team.ranks)
    sent, messages = (team.bytes_sent - begun[0]) // each, (team.messages_sent - begun[1]) // each
    mean = team.allreduce(w, "mean")  # the consensus model
    apart = np.max(team.allreduce(np.sqrt(((w - mean) ** 2).sum(axis=-1)), "max"))
    error = np.abs(mean - truth).max()
    if team.rank == 0:
        print(f"{strategy.__name__:10}  error {error:.4f}  apart {apart:.4f}", end="")
        print(f"  sent by a rank: {sent:7,} bytes, {messages:5,} messages")
