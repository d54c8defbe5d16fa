"""A small transformer of PyTorch's on tiny Shakespeare, as nanoGPT's for a CPU, by gossip: prints the validation loss.

gossipgrad run -n 2 examples/torch_char_gpt.py
gossipgrad run -n 2 examples/torch_char_gpt.py --strategy allreduce     what DistributedDataParallel computes

4 layers of 4 heads, 128 wide, context 64, 12 windows a rank and step; Adam as in examples/char_gpt.py, whose network
this one is.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

import gossipgrad as gg
import gossipgrad.torch
from gossipgrad import strategies
from gossipgrad.cli.options import count

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--data", help="the text; default: shakespeare of gossipgrad.data.load")
parser.add_argument("--strategy", choices=strategies.BY_NAME, default="gossipgrad")
parser.add_argument("--steps", type=count(1, 1_000_000), default=1000)
parser.add_argument("--seed", type=int, default=1337)
given = parser.parse_args()
CONTEXT, WIDTH, HEADS = 64, 128, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.ln1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, tokens, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, x):
        return self.head(self.last(self.blocks(self.token(x) + self.position.weight[: x.shape[1]])))


torch.set_num_threads(1)
torch.manual_seed(given.seed)
train, test = gg.data.text(given.data, sequence=CONTEXT) if given.data else gg.data.load("shakespeare")
texts = [torch.tensor(one.source.tokens).long() for one in (train, test)]
net = GPT(len(train.vocabulary))
model = gg.torch.wrap(
    net,
    optimizer=gg.Adam(
        lr=1e-3,
        beta2=0.99,
        weight_decay=0.1,
        decoupled=True,
        no_decay=("bias", "norm"),
        clip_norm=1.0,
        schedule=gg.schedules.Cosine(total=given.steps, final=1e-4, warmup=min(100, given.steps // 2)),
    ),
    strategy=strategies.by_name(given.strategy),
)
draw = torch.Generator().manual_seed(given.seed + model.rank)


def loss_of(network, text, places):
    windows = torch.stack([text[i : i + CONTEXT + 1] for i in places])
    return functional.cross_entropy(network(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


for _ in range(given.steps):
    loss_of(model, texts[0], torch.randint(len(texts[0]) - CONTEXT, (12,), generator=draw)).backward()
    model.step()

state = model.consensus_state_dict()  # the mean of the ranks' weights
model.close()
net.load_state_dict(state)
with torch.no_grad():
    places = torch.arange(0, len(texts[1]) - CONTEXT, CONTEXT).split(100)
    total = sum(len(part) * loss_of(net, texts[1], part).item() for part in places)
if model.rank == 0:
    print(f"{given.strategy}, {model.size} ranks: validation loss {total / sum(map(len, places)):.4f}")
