"""A small transformer on tiny Shakespeare in nanoGPT's setting for a CPU: expect a validation loss below 1.90.

python examples/char_gpt.py                            2000 steps
python examples/char_gpt.py --steps 200 --sample 300   a short look, and 300 characters of its own

4 layers of 4 heads, 128 wide, context 64, batches of 12, no dropout; Adam with betas 0.9 and 0.99, decoupled decay of
0.1 for matrices, clipping by norm at 1; the rate rises for 100 steps to 0.001 and falls as a cosine to a tenth.
"""

import argparse

import numpy as np

import gossipgrad as gg
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", help="the text; default: shakespeare of gossipgrad.data.load")
parser.add_argument("--steps", type=count(1, 1_000_000), default=2000)
parser.add_argument("--sample", type=count(0, 1_000_000), default=0, help="characters to write in the end")
parser.add_argument("--seed", type=int, default=1337)
given = parser.parse_args()

train, test = gg.data.text(given.data, sequence=64) if given.data else gg.data.load("shakespeare")
vocabulary = train.source.vocabulary
epochs = -(-given.steps // max(len(train) // 12, 1))  # windows are drawn anew in each
train = train[: 12 * (given.steps // epochs)]  # epochs of one length, which may be some steps less than asked for
trainer = gg.Trainer(
    gg.models.char_gpt(len(vocabulary), 64, layers=4, heads=4, width=128),
    optimizer=gg.Adam(
        lr=1e-3,
        beta2=0.99,
        weight_decay=0.1,
        decoupled=True,
        no_decay=("bias", "norm"),
        clip_norm=1.0,
        schedule=gg.schedules.Cosine(final=1e-4, warmup=min(100, given.steps // 2)),
    ),
    seed=given.seed,
)
history = trainer.fit(train, validation=test, epochs=epochs, batch_size=12)
if trainer.rank == 0:
    print(f"validation loss {history.last['validation']['loss']:.4f}")

text, draw = "\n" * 64, np.random.default_rng(given.seed)
for _ in range(given.sample):
    scores = trainer.predict(vocabulary.encode(text[-64:])[None])[0, -1].astype(np.float64)
    chances = np.exp(scores - scores.max())
    text += vocabulary.decode([draw.choice(len(chances), p=chances / chances.sum())])
if given.sample and trainer.rank == 0:
    print(text[64:])
