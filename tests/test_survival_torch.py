"""Processes of `gossipgrad run --survive --respawn N` are killed in loops around PyTorch modules: new ones join."""

from __future__ import annotations

import json

import pytest
from conftest import DEADLINE
from survival_runs import NET, survived

SCRIPT = (
    """
import json, os, signal, sys, time
import numpy as np
import gossipgrad as gg
import torch
import gossipgrad.torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
case = json.loads(os.environ["CASE"])
os.chdir(os.path.dirname(__file__))
samples, epochs, workers = case.get("samples", 120), case.get("epochs", 1), case.get("workers", 0)
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
deaths = {int(rank): step for rank, step in case["deaths"].items()}
holds = {int(step): rank for step, rank in case["holds"].items()}  # at this step all wait for this newcomer
late = me >= case["ranks"]  # a newcomer
"""
    + NET
    + """
def state(model):
    tensors = {name: one.flatten().tolist() for name, one in model.state_dict().items()}
    if isinstance(optimizer, torch.optim.Optimizer):
        one = optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in one["param_groups"]]
        inner = {f"{place} {name}": value.flatten().tolist() for place, of in one["state"].items()
                 for name, value in of.items()}
        tensors |= {"groups": repr(groups), **inner}
    else:
        tensors |= {"rate": model.learning_rate}
        for arena, kind in model._group.core.arenas().items():
            if kind == "moment":
                tensors[arena] = [one.ravel().tolist() for one in model._group.core.arena(arena, 0).values()]
    tensors |= {"in flight": model._step._in_flight}
    return {"state": tensors, "of": me, "step": model.steps}

def seen(model, change):
    if change["joined"] and me not in change["joined"]:
        print(json.dumps(state(model)), flush=True)

net = Net()
if late and case.get("wrong"):
    net.other = torch.nn.Linear(2, 2)
optimizer = eval(case.get("optimizer", "gg.SGD(lr=1.0)"))
strategy = eval(case.get("strategy", "gg.NoExchange()"))
try:
    model = gg.torch.wrap(net, optimizer, strategy, on_view=seen, **case.get("options", {}))
except ValueError as error:
    print(error, file=sys.stderr, flush=True)
    open("refused", "w").close()
    sys.exit(3)
base = net.w.weight.detach().clone()
if late:
    print(json.dumps({**state(model), "joined": me, "size": model.size}), flush=True)
else:
    with torch.no_grad():
        net.frozen.fill_(1.0 + me)
    if "rate" in case:
        model.learning_rate = case["rate"]
if case.get("scheduler"):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 2),
                                                  last_epoch=model.steps - 1)
together = case.get("accumulate", 1)
sampler = gg.torch.BatchSampler(range(samples), 3, model, seed=2, accumulate=together)
loader = DataLoader(TensorDataset(torch.eye(samples)), batch_sampler=sampler, num_workers=workers,
                    multiprocessing_context="fork" if workers else None)

def at(step):
    if deaths.get(me) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 60
    while step in holds and not model._step.open and time.monotonic() < until:
        if any(holds[step] in change["joined"] for change in model.view.changes):
            break
        if case.get("wrong") and os.path.exists("refused") and model.view.members == (0,):
            break
        model._survivor.look()
        time.sleep(0.01)

def train(batch):
    at(model.steps)
    (-model(batch).sum()).backward()
    step()

def step():
    model.step()
    if case.get("scheduler"):
        scheduler.step()

def over():
    joined = [change["step"] for change in model.view.changes if change["joined"]]
    return model.steps >= (joined[-1] + 5 if joined else case["steps"])

while "steps" in case and not over():
    train(torch.eye(samples)[model.steps % (samples - 3) :][:3])
    time.sleep(0.01)
    distance = model.consensus_distance()  # a newcomer, which begins with a step, makes it as well
for epoch in range(sampler.epoch, epochs):
    sampler.set_epoch(epoch)
    while sampler.left:
        batches = 0
        for (batch,) in loader:
            at(model.steps)
            with model.no_sync():
                (-model(batch).sum()).backward()
            batches += 1
            if batches % together == 0:
                step()
        if batches % together:
            step()
moved = (net.w.weight.detach() - base).numpy().ravel()
rows = [np.frombuffer(row, np.float32) for row in model._group.team.allgather(moved.tobytes())]
rates = [optimizer.param_groups[0]["lr"]] if case.get("scheduler") else [model.learning_rate] if "rate" in case else []
rates = [json.loads(one) for one in model._group.team.allgather(json.dumps(rates).encode().ljust(64))]
model.consensus_state_dict()
if model.rank == 0:
    print(json.dumps({"members": model.view.members, "moved": sum(rows).tolist(), "changes": model.view.changes,
                      "steps": model.steps, "rates": rates}))
model.close()
"""
)


@pytest.fixture
def joins(tmp_path):
    """joins(ranks, case, N) -> (what the lowest rank printed last, the newcomers' states, those of others, stderr)."""
    pytest.importorskip("torch")

    def run(ranks, case, most, code=0):
        options = "--respawn", str(most), "-n", str(ranks)
        case = {"ranks": ranks, **case}
        lines, errors = survived(tmp_path, SCRIPT, case, *options, code=code, seconds=DEADLINE, OMP_NUM_THREADS="1")
        ends = [line for line in lines if "members" in line]
        joined = [line for line in lines if "joined" in line]
        others = [line for line in lines if "state" in line and line not in joined]
        return (ends[-1] if ends else None), joined, others, errors

    return run


CASES = [
    ({"workers": 2, "epochs": 2}, 2, {"0": 4, "1": 11}, {8: 2, 14: 3}),
    ({"accumulate": 2, "workers": 1, "samples": 300}, 3, {"1": 3}, {8: 3}),
    ({"accumulate": 3, "samples": 131, "epochs": 3}, 2, {"1": 3}, {6: 2}),
]


@pytest.mark.core(1)
@pytest.mark.parametrize("options, ranks, deaths, holds", CASES)
def test_new_ranks_join_a_loop(options, ranks, deaths, holds, joins):
    """Whatever workers have read ahead, each sample of each epoch is trained on by one living rank."""
    found, joined, others, errors = joins(ranks, {"deaths": deaths, "holds": holds, **options}, len(deaths))
    assert [one["joined"] for one in joined] == list(holds.values()), errors
    assert found["members"] == [rank for rank in range(ranks + len(deaths)) if str(rank) not in deaths]
    assert set(found["moved"]) == {float(options.get("epochs", 1))}
    for one, step in zip(joined, holds, strict=True):
        assert one["size"] == ranks and one["step"] == step
        assert one["state"] in [other["state"] for other in others]


OPTIMIZERS = [
    {"optimizer": "torch.optim.Adam(net.w.parameters(), lr=0.01)", "scheduler": True},
    {"optimizer": "gg.Adam(lr=0.01)", "rate": 0.005},
]


@pytest.mark.core(1)
@pytest.mark.parametrize("options", OPTIMIZERS)
def test_a_newcomer_has_its_donors_optimizer(options, joins):
    """It joins when a step begins: calls of all ranks after each step find all."""
    case = {"deaths": {"1": 4}, "holds": {}, "strategy": "gg.GossipGraD()", "steps": 5000, "epochs": 0, **options}
    found, joined, others, errors = joins(3, case, 1)
    assert [one["joined"] for one in joined] == [3], errors
    assert joined[0]["state"] in [one["state"] for one in others]
    assert len({json.dumps(one) for one in found["rates"]}) == 1 and found["rates"][0]


@pytest.mark.full
def test_another_module_is_refused(joins):
    case = {"deaths": {"1": 4}, "holds": {7: 2}, "wrong": True, "steps": 12, "epochs": 0}
    found, joined, _, errors = joins(2, case, 1)
    assert not joined and found["members"] == [0]
    assert "this newcomer cannot join: order of the module's tensors is " in errors, errors
