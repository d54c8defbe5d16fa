"""An LSTM over the characters of tiny Shakespeare: expect a validation loss of about 1.72 after 2000 steps.

python examples/char_lstm.py                                    one rank
python examples/char_lstm.py --ranks 4                          GossipGraD on four ranks of a virtual cluster
python examples/char_lstm.py --ranks 4 --strategy allreduce     the same samples with AllReduce

The batch of 52 windows of 64 characters is divided among the ranks. Losses are in nats a character. On four ranks
expect 1.73 with AllReduce, and 1.67 at twice the rate.
"""

import argparse
import math

import gossipgrad as gg
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", help="the text; default: shakespeare of gossipgrad.data.load")
parser.add_argument("--steps", type=count(1, 1_000_000), default=2000)
parser.add_argument("--lr", type=float, default=2e-3, help="of Adam")
parser.add_argument("--ranks", type=count(1, 52), default=1, help="of a virtual cluster")
parser.add_argument("--strategy", choices=("gossipgrad", "allreduce"), default="gossipgrad")
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()

train, test = gg.data.text(given.data, sequence=64) if given.data else gg.data.load("shakespeare")
vocabulary = train.source.vocabulary
epochs = -(-given.steps // max(len(train) // 52, 1))  # windows are drawn anew in each
train = train[: 52 * (given.steps // epochs)]  # epochs of one length, which may be some steps less than asked for
trainer = gg.Trainer(
    gg.models.char_lstm(len(vocabulary), sequence=64),
    optimizer=gg.Adam(lr=given.lr),
    strategy=gg.GossipGraD() if given.strategy == "gossipgrad" else gg.AllReduce(),
    comm=gg.VirtualCluster(given.ranks) if given.ranks > 1 else None,
    seed=given.seed,
)
history = trainer.fit(train, validation=test, epochs=epochs, batch_size=52 // given.ranks)
loss = history.last["validation"]["loss"]
if trainer.rank == 0:
    print(f"validation loss {loss:.4f}, perplexity {math.exp(loss):.2f}")
