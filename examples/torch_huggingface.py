"""A GPT-2 of Hugging Face, made on the spot and trained by gossip: expect sequences that go on by the rule.

gossipgrad run -n 2 examples/torch_huggingface.py
python examples/torch_huggingface.py --steps 200 --save FOLDER     one rank; FOLDER is for from_pretrained
"""

import argparse
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import gossipgrad as gg

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=200, help="default: 200")
parser.add_argument("--save", metavar="FOLDER", help="where save_pretrained writes the consensus model")
options = parser.parse_args(sys.argv[1:])

torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
net = GPT2LMHeadModel(config)  # or GPT2LMHeadModel.from_pretrained(FOLDER)
model = gg.torch.wrap(net, optimizer=gg.Adam(lr=3e-3, decoupled=True, weight_decay=0.01), strategy=gg.GossipGraD())


def batch(step):
    """Each rank's own sequences: every token is the one before plus 5, modulo 64."""
    draw = torch.Generator().manual_seed(step * model.size + model.rank)
    return (torch.randint(64, (8, 1), generator=draw) + 5 * torch.arange(32)) % 64


for step in range(options.steps):
    tokens = batch(step)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    model.step()
    if model.rank == 0 and (step + 1) % 50 == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

state = model.consensus_state_dict()  # on all ranks
if model.rank == 0:
    whole = GPT2LMHeadModel(config)
    whole.load_state_dict(state)
    whole.eval()
    begin = torch.tensor([[3, 8, 13]])
    found = whole.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=6, do_sample=False)
    print("goes on:", *found[0].tolist())
    if options.save:
        whole.save_pretrained(options.save)
