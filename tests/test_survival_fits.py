"""Processes of `gossipgrad run --survive` are killed between an epoch's steps and its record, or join later fits."""

from __future__ import annotations

import csv

import pytest
from survival_runs import survived

SCRIPT = """
import json, os, signal, subprocess, sys
import numpy as np
import gossipgrad as gg

case = json.loads(os.environ["CASE"])
samples = case.get("samples", 40)
x, y = np.eye(samples, dtype=np.float32), np.ones((samples, 1), np.float32)
net = gg.Sequential([gg.Linear(1, bias=False)], input=(samples,))
net.load_weights({name: np.zeros_like(value) for name, value in net.weights().items()})
me = int(os.environ["GOSSIPGRAD_NET_RANK"])
mine = case["own"].get(str(me), {})
strategy = eval(case.get("strategy", "gg.GossipGraD()"))
trainer = gg.Trainer(net, loss="mean_squared_error", optimizer=gg.SGD(lr=0.1), strategy=strategy,
                     straggler=gg.Straggler(probability=1.0, delay=case.get("delay", 0.001)))
class Dies(gg.Callback):
    every = 1
    def _at(self, place):
        if mine.get("at") == place: os.kill(os.getpid(), signal.SIGKILL)
    def on_step(self, trainer, step): self._at(f"step {step}")
    def on_epoch_end(self, trainer, record): self._at(f"epoch {record['epoch']}")
    def on_view(self, trainer, change):
        if change["joined"]: self._at("joined")

class Saves(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        if case.get("saves"): trainer.save(case["saves"])

class Tries(gg.Callback):
    def on_epoch_begin(self, trainer, epoch):
        if epoch == 3 and case.get("saved"):
            code = f"from gossipgrad.state import checkpoint_files; checkpoint_files.lock({case['saved']!r})"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr, file=sys.stderr)

validation = mine.get("validation", 20)
callbacks = [Dies(), Saves(), Tries(), *eval(mine.get("callbacks", case.get("callbacks", "[]")))]
if case.get("saved"): callbacks.append(gg.Checkpoint(case["saved"]))
for _ in range(case.get("fits", 1)):
    history = trainer.fit(x, y, validation=(x[:validation], y[:validation]), epochs=case.get("epochs", 2), batch_size=2,
                          progress=False, callbacks=callbacks)
if trainer.rank == 0:
    print(json.dumps({"samples": [record["samples"] for record in history], "members": trainer.members,
                      "epochs": [record["epoch"] for record in history], "step": trainer.step}))
"""


@pytest.fixture
def train(tmp_path):
    """train(ranks, case, *options) -> (what rank 0 printed last, stderr)."""

    def run(ranks, case, *options, code=0):
        lines, errors = survived(tmp_path, SCRIPT, case, "-n", str(ranks), *options, code=code, seconds=100)
        return (lines[-1] if lines else None), errors

    return run


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("strategy", ["gg.NoExchange()", "gg.PeriodicAllReduce(period=4)"])
def test_a_death_after_the_last_step_of_an_epoch_leaves_samples_to_it(strategy, saves, train, tmp_path):
    """In on_step of step 10, the last one: what nobody has received of the dead rank is trained before the record."""
    case = {"own": {"1": {"at": "step 10"}}, "strategy": strategy}
    if saves:
        case["saves"] = str(tmp_path / "run.safetensors")
    found, errors = train(2, case)
    assert found["members"] == [0] and found["samples"] == [40, 40], errors
    assert found["step"] > 10 + 20


def test_a_new_rank_has_the_epochs_before(train, tmp_path):
    """It is rank 0 at last, and writes the log and the checkpoint anew."""
    log = str(tmp_path / "log.csv")
    case = {"own": {"0": {"at": "step 4"}, "1": {"at": "epoch 2"}}, "epochs": 4, "delay": 0.05, "samples": 80}
    case["callbacks"] = f"[gg.CSVLogger({log!r})]"
    found, errors = train(2, case, "--respawn", "2")
    assert found["members"][0] in (2, 3) and found["epochs"] == [1, 2, 3, 4], errors
    with open(log, newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_a_new_rank_does_not_take_a_later_fit_for_its_first(train):
    """The others call fit three times, and are in the second call."""
    case = {"own": {"1": {"at": "step 14"}}, "epochs": 1, "fits": 3, "delay": 0.1}
    found, errors = train(2, case, "--respawn", "1")
    assert "this newcomer cannot join: number of this fit is 1 here, 2 in the group" in errors
    assert found["members"] == [0] and found["samples"][-1] == 40


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"validation": 10}, "validation, number of samples is 10 here, 20 in the group"),
        (
            {"callbacks": "[gg.EarlyStopping('train_loss', patience=8)]"},
            "callbacks, EarlyStopping, patience is 8 here, 9 in the group",
        ),
    ],
)
def test_a_new_rank_has_the_arguments_of_the_others(own, message, train):
    case = {"own": {"1": {"at": "step 4"}, "2": own}, "delay": 0.05, "callbacks": "[gg.EarlyStopping('train_loss', 9)]"}
    found, errors = train(2, case, "--respawn", "1")
    assert f"this newcomer cannot join: {message}" in errors
    assert found["members"] == [0] and found["samples"] == [40, 40]


def test_the_next_first_rank_holds_the_checkpoint(train, tmp_path):
    """While it trains, no other run can save there."""
    case = {"own": {"0": {"at": "step 4"}}, "epochs": 3, "saved": str(tmp_path / "run.safetensors")}
    found, errors = train(2, case)
    assert found["members"] == [1] and "another run saves there" in errors, errors
