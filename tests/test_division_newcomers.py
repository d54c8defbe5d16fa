"""Processes of `gossipgrad run --survive --respawn 1` that read the samples of a gg.Division: each counts once."""

from __future__ import annotations

from collections import Counter

from conftest import DEADLINE
from survival_runs import survived

SAMPLES = 240
SCRIPT = """
import json, os, pathlib, signal, time
import numpy as np
import gossipgrad as gg
from gossipgrad.launch import joining

case = json.loads(os.environ["CASE"])
here, ahead = pathlib.Path(case["here"]), case["ahead"]
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
await_state = joining.await_state
def ready(*given):
    (here / "new").touch()
    return await_state(*given)
joining.await_state = ready
x = gg.Exchange({"w": np.zeros(2)}, strategy=gg.NoExchange(), optimizer=gg.SGD(lr=0.1))
division = gg.Division(case["samples"], 3, x, seed=2, accumulate=2)

def step(batches, epoch):
    print(json.dumps({"me": me, "epoch": epoch, "step": x.steps, "batches": batches}), flush=True)
    if me == 1 and epoch == 1 and x.steps >= case["at"]: os.kill(os.getpid(), signal.SIGKILL)
    while epoch == 1 and x.view.number == 1 and not (here / "new").exists(): time.sleep(0.01)
    if x.view.number == 1: time.sleep(0.03)
    x.step({"w": np.ones(2)})

def read(loader, epoch):
    queue = []
    while True:
        while loader is not None and len(queue) < ahead + 2:
            batch = next(loader, None)
            if batch is None: loader = None
            else: queue.append(batch)
        if not queue: break
        step(queue[:2], epoch)
        del queue[:2]

print(json.dumps({"me": me, "begins": division.epoch, "state": x.steps}), flush=True)
for epoch in range(division.epoch, 3):
    division.set_epoch(epoch)
    while division.left:
        read(iter(division), epoch)
print(json.dumps({"me": me, "ends": x.view.members, "steps": x.steps, "changes": x.view.changes[-1],
                  "position": division.state_dict(len(division))}))
x.close()
"""


def test_a_new_rank_reads_its_part_of_the_epoch(tmp_path):
    """What the dead rank has read in its last epoch is read again, since without an exchange it reached nobody."""
    case = {"here": str(tmp_path), "samples": SAMPLES, "ahead": 5, "at": 16}
    lines, errors = survived(tmp_path, SCRIPT, case, "--respawn", "1", "-n", "3", seconds=DEADLINE)
    assert "rank 3 (new) joins in step" in errors
    ends = [line for line in lines if "ends" in line]
    assert sorted(line["me"] for line in ends) == [0, 2, 3] and {tuple(line["ends"]) for line in ends} == {(0, 2, 3)}
    assert all((line["steps"], line["position"]) == (ends[0]["steps"], ends[0]["position"]) for line in ends)
    changes = [{**line["changes"], "seconds": 0} for line in ends]
    assert changes[0] == changes[1] == changes[2]
    (new,) = [line for line in lines if line.get("state", 0) > 0]
    assert new["begins"] in (1, 2)
    read = [line for line in lines if "batches" in line and (line["me"] != 1 or line["epoch"] == 0)]
    for epoch in range(3):
        found = Counter(one for line in read if line["epoch"] == epoch for batch in line["batches"] for one in batch)
        assert found == Counter(range(SAMPLES))
    made = {(line["me"], line["step"]) for line in read}
    assert all((rank, step) in made for rank in (0, 2, 3) for step in range(new["state"], ends[0]["steps"]))
