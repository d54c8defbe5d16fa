"""Lightning's Trainer under `gossipgrad run --survive`: ranks die, and the others finish the epoch."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from test_survival_scripts import COMMON, check, survive  # noqa: F401  a fixture

import gossipgrad as gg

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

import gossipgrad.torch  # noqa: E402
from gossipgrad.torch.lightning_survival import Loader, Samples, check_trainer, training_loader  # noqa: E402

SCRIPT = (
    COMMON
    + """
import torch, warnings
import lightning.pytorch as L
import gossipgrad.torch
from torch.utils.data import DataLoader, TensorDataset
warnings.simplefilter("ignore")
torch.set_num_threads(1)

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(samples, 1, bias=False)
        torch.nn.init.zeros_(self.w.weight)
        self.validated = []
    def training_step(self, batch, index):
        at(self.trainer.global_step)
        return -self.w(batch[0]).sum()
    def on_validation_epoch_start(self):
        self.validated = []
        at("validation")
    def validation_step(self, batch, index):
        self.validated += batch[0].argmax(1).tolist()
        self.log("ranks", float(self.trainer.world_size), sync_dist=True)
    def on_save_checkpoint(self, checkpoint):
        at("checkpoint")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

data = TensorDataset(torch.eye(samples))
how = {"num_workers": case.get("workers", 0)}
if how["num_workers"]:
    how["multiprocessing_context"] = "fork"
loader, validation = DataLoader(data, 3, shuffle=True, **how), DataLoader(data, 3)
saves = L.callbacks.ModelCheckpoint(dirpath=case["folder"], filename="{epoch}", save_top_k=-1)
given = gg.torch.lightning.GossipStrategy(strategy, optimizer=gg.SGD(lr=1.0))
trainer = L.Trainer(strategy=given, max_epochs=case.get("epochs", 1), logger=False, enable_progress_bar=False,
                    enable_model_summary=False, accelerator="cpu", callbacks=[saves], num_sanity_val_steps=0,
                    accumulate_grad_batches=case.get("accumulate", 1))
kept = {}
class Kept(L.Callback):
    def on_train_end(self, trainer, module):
        kept.update(view=given.wrapped.view, own=given.wrapped.module.w.weight.detach().numpy().ravel().copy())
trainer.callbacks.append(Kept())
module = Module()
trainer.fit(module, loader, validation, ckpt_path=case.get("resume"))
view = kept["view"]
rows = given._team.allgather(kept["own"])
seen = given._team.allgather(np.bincount(module.validated, minlength=samples))
trainer.validate(module, validation, verbose=False)
after = given._team.allgather(np.bincount(module.validated, minlength=samples))
if trainer.is_global_zero:
    print(json.dumps({"members": view.members, "moved": rows.sum(0).tolist(), "changes": view.changes,
                      "steps": trainer.global_step, "ranks": trainer.callback_metrics["ranks"].item(),
                      "validated": seen.sum(0).tolist(), "after": after.sum(0).tolist(), "world": trainer.world_size}))
"""
)


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("ranks", "deaths", "options"),
    [
        (3, [(0, 6, "kill")], {"workers": 2, "epochs": 2}),  # rank 1 becomes the first, and writes the checkpoint
        (3, [(1, 13, "kill")], {}),  # in the last step: samples are left when the epoch seems to be over
        (3, [(0, 2, "kill")], {"accumulate": 2, "epochs": 2}),
        (3, [(2, "validation", "kill"), (0, "checkpoint", "kill")], {}),
    ],
)
def test_a_trainer_goes_on(ranks, deaths, options, survive, tmp_path):  # noqa: F811
    """Without an exchange nothing of the dead counts: the survivors train on each sample once, and validate on all."""
    case = {"deaths": deaths, "samples": 120, "folder": str(tmp_path), **options}
    found, errors = survive(SCRIPT, ranks, case)
    assert found is not None, errors
    within = all(isinstance(where, int) for _, where, _ in deaths)
    check(found, ranks, [rank for rank, _, _ in deaths], exact=False)
    assert found["world"] == ranks - len(deaths) and min(found["after"]) >= 1
    *_, path = sorted(tmp_path.glob("*.ckpt"))
    assert path.name == f"epoch={options.get('epochs', 1) - 1}.ckpt"
    saved = torch.load(path, weights_only=False)
    assert saved["state_dict"]["w.weight"].shape == (1, 120)
    if within:
        assert set(found["moved"]) == {options.get("epochs", 1) / options.get("accumulate", 1)}
        assert min(found["validated"]) >= 1 and found["ranks"] == found["world"]
        assert len(saved["optimizer_states"][0]["gossipgrad_state"]["ranks"]) in (0, found["world"])


@pytest.mark.core(0)
def test_a_checkpoint_goes_on(survive, tmp_path):  # noqa: F811
    """Each rank has trained on its half; then the one that lives trains on all."""
    case = {"deaths": [], "samples": 60, "folder": str(tmp_path)}
    survive(SCRIPT, 2, case)
    (path,) = tmp_path.glob("*.ckpt")
    found, _ = survive(SCRIPT, 2, case | {"deaths": [(0, 14, "kill")], "epochs": 2, "resume": str(path)})
    assert sorted(found["moved"]) == [1] * 30 + [2] * 30 and found["world"] == 1


def test_a_checkpoint_of_the_middle_of_an_epoch_is_refused():
    data = torch.arange(20)
    given = torch.utils.data.DataLoader(data, batch_sampler=gg.torch.BatchSampler(data, 5, MODEL))
    epoch = SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=3)))
    made = trainer()
    made.fit_loop.epoch_loop = epoch
    samples = training_loader(given, made, MODEL).batch_sampler
    next(iter(samples))
    with pytest.raises(ValueError, match="checkpoint: after 2 batches of an epoch; allowed where ranks may die"):
        samples.fetched()
    epoch.batch_progress.current.ready = 1
    samples.fetched()


def trainer(**options):
    given = {"limit_train_batches": 1.0, "accumulate_grad_batches": 1, "reload_dataloaders_every_n_epochs": 0}
    loop = SimpleNamespace(_data_fetcher=None, _combined_loader=None, max_batches=0, restarting=False)
    return SimpleNamespace(**{**given, **options}, fit_loop=loop)


MODEL = SimpleNamespace(rank=0, size=2)


def test_a_loader_becomes_one_of_a_batch_sampler():
    data = torch.arange(20)
    sampler = torch.utils.data.DistributedSampler(data, 2, 0, shuffle=False, seed=3)
    given = torch.utils.data.DataLoader(data, 4, sampler=sampler, drop_last=True)
    made = training_loader(given, trainer(limit_train_batches=1), MODEL)
    samples = made.batch_sampler
    assert isinstance(made, Loader) and isinstance(samples, Samples) and samples.sampler is samples
    assert (samples.seed, samples.shuffle, samples.drop_last, len(made)) == (3, False, True, 1)
    wanted = gg.torch.BatchSampler(data, 4, MODEL, shuffle=False, seed=3, drop_last=True)
    assert [batch.tolist() for batch in made] == list(wanted)[:1] and len(wanted) == 2
    own = gg.torch.BatchSampler(data, 5, gg.Team(), seed=2)
    made = training_loader(torch.utils.data.DataLoader(data, batch_sampler=own), trainer(), MODEL)
    assert (len(made), made.batch_sampler.seed, made.batch_sampler.size) == (2, 2, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [1, 2], "a list; allowed"),
        (lambda: torch.utils.data.DataLoader(range(8), 2), "a DataLoader with a SequentialSampler; allowed"),
        (lambda: torch.utils.data.DataLoader(range(8), 2, sampler=[1, 2]), "a DataLoader with a list; allowed"),
    ],
)
def test_a_loader_that_cannot_be_dealt_anew(make, words):
    with pytest.raises(ValueError, match=f"train_dataloader: {words}.*use_distributed_sampler=False"):
        training_loader(make(), trainer(), MODEL)


def test_a_collective_call_in_a_step_is_refused():
    """No rank can leave a step in its middle: after a death the others would wait without end."""
    given = gg.torch.lightning.GossipStrategy()
    given._survives, given.wrapped = True, SimpleNamespace(_step=SimpleNamespace(open=True))
    with pytest.raises(RuntimeError, match="collective call between the forward pass and the step.*on_step=False"):
        given.reduce(torch.ones(1))
    given.wrapped._step.open = False
    assert given.reduce(torch.ones(1)).item() == 1


@pytest.mark.parametrize(
    "options", [{"limit_train_batches": 0.5}, {"reload_dataloaders_every_n_epochs": 1}], ids=json.dumps
)
def test_options_of_a_trainer_that_are_refused(options):
    check_trainer(trainer())
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value}: allowed where ranks may die"):
        check_trainer(trainer(**options))
