"""Processes of `gossipgrad run --survive` are killed between an epoch's steps and its record, or join later fits."""

from __future__ import annotations

import csv

import pytest
from survival_runs import ONE_WEIGHT_A_SAMPLE, survived

SCRIPT = (
    ONE_WEIGHT_A_SAMPLE
    + """
mine = case["own"].get(str(me), {})
strategy = eval(case.get("strategy", "gg.GossipGraD()"))
optimizer = eval(case.get("optimizer", "gg.SGD(lr=0.1)"))
trainer = gg.Trainer(net, loss="mean_squared_error", optimizer=optimizer, strategy=strategy,
                     straggler=gg.Straggler(probability=1.0, delay=case.get("delay", 0.001)))
class Batches(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        trainer.stop = trainer.stop or os.path.exists(until)
        if "evaluates" in case: trainer.stop = any(view["joined"] for view in trainer.history.views)
        if step == case.get("rebatches"): trainer.set_batch_size(1)

class Dies(gg.Callback):
    every = 1
    def on_fit_begin(self, trainer): self._at("fit")
    def _at(self, place):
        if mine.get("at") == place: os.kill(os.getpid(), signal.SIGKILL)
    def on_step(self, trainer, step): self._at(f"step {step}")
    def on_epoch_end(self, trainer, record):
        if "evaluates" in case: trainer.evaluate(x, y, batch_size=4)
        self._at(f"epoch {record['epoch']}")
    def on_view(self, trainer, change):
        if change["joined"]: self._at("joined")

class Saves(Dies):
    def on_step(self, trainer, step):
        if step == case.get("saves"):
            if mine.get("at") == "save": trainer.__dict__["where_in_epoch"] = lambda: self._at("save")
            trainer.save(case["saved"])

class Tries(gg.Callback):
    def on_epoch_begin(self, trainer, epoch):
        if epoch == 3 and case.get("saved"):
            code = f"from gossipgrad.state import checkpoint_files; checkpoint_files.lock({case['saved']!r})"
            print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr, file=sys.stderr)

validation = mine.get("validation", 20)
callbacks = [Batches(), Dies(), Saves(), Tries(), *eval(mine.get("callbacks", case.get("callbacks", "[]")))]
if case.get("saved") and not case.get("saves"): callbacks.append(gg.Checkpoint(case["saved"]))
until = case.get("until", "")  # a newcomer's error ends the training of the others
for epochs in case.get("fits", [case.get("epochs", 2)]):
    try:
        history = trainer.fit(x, y, validation=(x[:validation], y[:validation]), epochs=epochs, progress=False,
                              batch_size=case.get("batch", 2), resume=case.get("resume"), callbacks=callbacks)
    except ValueError:
        if until: open(until, "w").close()
        raise
batches = [json.loads(one) for one in trainer.gather(json.dumps(trainer.fit_settings["batch_size"]).encode())]
if trainer.rank == 0:
    print(json.dumps({"samples": [record["samples"] for record in history], "members": trainer.members,
                      "epochs": [record["epoch"] for record in history], "step": trainer.step,
                      "rates": [record["learning_rate"] for record in history], "batches": batches}))
"""
)


@pytest.fixture
def train(tmp_path):
    """train(ranks, case, *options) -> (what rank 0 printed last, stderr)."""

    def run(ranks, case, *options, code=0):
        case = {"samples": 40} | case
        lines, errors = survived(tmp_path, SCRIPT, case, "-n", str(ranks), *options, code=code, seconds=100)
        return (lines[-1] if lines else None), errors

    return run


@pytest.mark.parametrize("at", ["step 10", "save"])
@pytest.mark.parametrize("strategy", ["gg.NoExchange()", "gg.PeriodicAllReduce(period=4)"])
def test_a_death_after_the_last_step_of_an_epoch_leaves_samples_to_it(strategy, at, train, tmp_path):
    """In on_step of step 10, the last one: what nobody has received of the dead rank is trained before the record."""
    case = {"own": {"1": {"at": at}}, "strategy": strategy, "saves": 10, "saved": str(tmp_path / "run.safetensors")}
    found, errors = train(2, case)
    assert found["members"] == [0] and found["samples"] == [40, 40], errors
    assert found["step"] > 10 + 20
    resumed, errors = train(1, {"own": {}, "strategy": strategy, "resume": case["saved"]})
    assert resumed["samples"] == [40, 40], errors


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_of_the_last_step_that_a_death_interrupts_resumes(ranks, train, tmp_path):
    """The position is of the ranks that live."""
    saved = str(tmp_path / "run.safetensors")
    found, errors = train(3, {"own": {"1": {"at": "save"}}, "saves": 10, "saved": saved, "samples": 60})
    assert found["members"] == [0, 2] and found["samples"] == [60, 60], errors
    resumed, errors = train(ranks, {"own": {}, "resume": saved, "samples": 60})
    assert resumed["samples"] == [60, 60] and resumed["epochs"] == [1, 2], errors


def test_a_death_before_a_resume_goes_on(train, tmp_path):
    """The checkpoint is of the middle of an epoch, and the rank dies in on_fit_begin."""
    saved = str(tmp_path / "run.safetensors")
    train(2, {"own": {}, "saves": 4, "saved": saved, "epochs": 1})
    found, errors = train(2, {"own": {"1": {"at": "fit"}}, "resume": saved})
    assert found["members"] == [0] and found["samples"] == [40, 40], errors


def test_a_death_after_another_size_of_batches_was_set_at_the_end(train):
    """In the last on_step of an epoch, for the next one: the epoch must end."""
    found, errors = train(2, {"own": {"1": {"at": "step 10"}}, "rebatches": 10})
    assert found["members"] == [0] and found["samples"] == [40, 40] and found["step"] == 10 + 40, errors


def test_schedules_know_the_steps_after_a_death_between_two_epochs(train):
    """After 10 steps of two ranks, one makes 20 in each of two epochs."""
    case = {
        "own": {"1": {"at": "epoch 1"}},
        "epochs": 3,
        "optimizer": "gg.SGD(lr=0.1, schedule=gg.schedules.Polynomial())",
    }
    found, errors = train(2, case)
    assert found["step"] == 50 and found["rates"] == pytest.approx([0.1 * 21 / 30, 0.1 * 21 / 50, 0.1 / 50]), errors


def test_a_new_rank_evaluates_as_the_others(train):
    """They have agreed on algorithms for it in the first epoch."""
    case = {"own": {"1": {"at": "step 14"}}, "evaluates": True, "epochs": 10**6, "delay": 0.02}
    found, errors = train(2, case, "--respawn", "1")
    assert found["members"] == [0, 2] and set(found["samples"]) == {40}, errors


def test_a_new_rank_has_the_batches_of_the_group(train):
    """Without batch_size they are as large as the group's smallest shares."""
    case = {"own": {"1": {"at": "step 4"}}, "batch": None, "epochs": 200, "delay": 0.02}
    found, errors = train(2, case, "--respawn", "1")
    assert found["members"] == [0, 2] and found["batches"] == [20, 20], errors


def test_a_new_rank_has_the_epochs_before(train, tmp_path):
    """It is rank 0 at last, and writes the log and the checkpoint anew."""
    log = str(tmp_path / "log.csv")
    case = {"own": {"0": {"at": "step 4"}, "1": {"at": "epoch 2"}}, "epochs": 4, "delay": 0.05, "samples": 80}
    case["callbacks"] = f"[gg.CSVLogger({log!r})]"
    found, errors = train(2, case, "--respawn", "2")
    assert found["members"][0] in (2, 3) and found["epochs"] == [1, 2, 3, 4], errors
    with open(log, newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_a_new_rank_does_not_take_a_later_fit_for_its_first(train, tmp_path):
    case = {"own": {"1": {"at": "step 14"}}, "fits": [1, 10**6], "delay": 0.02, "until": str(tmp_path / "ended")}
    found, errors = train(2, case, "--respawn", "1")
    assert "this newcomer cannot join: number of this fit is 1 here, 2 in the group" in errors
    assert found["members"] == [0] and found["samples"][-1] == 40


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"validation": 10}, "validation, number of samples is 10 here, 20 in the group"),
        (
            {"callbacks": "[gg.EarlyStopping('train_loss', patience=8)]"},
            "callbacks, EarlyStopping, patience is 8 here, 1000000 in the group",
        ),
    ],
)
def test_a_new_rank_has_the_arguments_of_the_others(own, message, train, tmp_path):
    case = {"own": {"1": {"at": "step 4"}, "2": own}, "delay": 0.02, "until": str(tmp_path / "ended")}
    case |= {"epochs": 10**6, "callbacks": "[gg.EarlyStopping('train_loss', 10**6)]"}
    found, errors = train(2, case, "--respawn", "1")
    assert f"this newcomer cannot join: {message}" in errors
    assert found["members"] == [0] and set(found["samples"]) == {40}


def test_the_next_first_rank_holds_the_checkpoint(train, tmp_path):
    """While it trains, no other run can save there."""
    case = {"own": {"0": {"at": "step 4"}}, "epochs": 3, "saved": str(tmp_path / "run.safetensors")}
    found, errors = train(2, case)
    assert found["members"] == [1] and "another run saves there" in errors, errors
