"""gossipgrad.torch.lightning: Lightning's Trainer against a plain loop over the same wrapped module."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

from torch import nn  # noqa: E402

import gossipgrad.torch  # noqa: E402

torch.set_num_threads(1)

QUIET = {
    "max_epochs": 2,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Module(lightning.LightningModule):
    """A training script's module, as of DDP; scheduled: with a scheduler of the learning rate."""

    def __init__(self, scheduled=False, optimizers=1):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        self.scheduled, self.count = scheduled, optimizers
        self.automatic_optimization = optimizers == 1

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("validation", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        made = [torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9) for _ in range(self.count)]
        return (made, [torch.optim.lr_scheduler.StepLR(made[0], 1, 0.5)]) if self.scheduled else made


def samples():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(32, 4, generator=generator), torch.randint(0, 3, (32,), generator=generator)


def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples()), 4)


def weights(module):
    return torch.cat([one.detach().reshape(-1).float() for one in module.state_dict().values()])


def fitted(strategy, module=None, **options):
    module = Module() if module is None else module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice
        trainer = lightning.Trainer(strategy=strategy, **(QUIET | options))
        trainer.fit(module, loader(), loader() if "limit_val_batches" in options else None)
    return module, trainer


def looped(strategy, optimizer=None, accumulate=1, clip=None, synchronised=False):
    """This training by a plain loop."""
    module = Module()
    if synchronised:
        module.net = nn.SyncBatchNorm.convert_sync_batchnorm(module.net)
    own = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    wrapped = gg.torch.wrap(module.net, own if optimizer is None else optimizer, strategy, overlap=clip is None)
    x, y = samples()
    sampler = torch.utils.data.DistributedSampler(x, wrapped.size, wrapped.rank)  # as Lightning's
    for epoch in range(2):
        sampler.set_epoch(epoch)
        rows = torch.tensor(list(sampler)).split(4)
        for place in range(0, len(rows), accumulate):
            for turn in range(accumulate):
                part = rows[place + turn]
                loss = nn.functional.cross_entropy(wrapped(x[part]), y[part]) / accumulate
                if turn < accumulate - 1:
                    with wrapped.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            if clip is not None:
                for one in module.parameters():  # as with DDP the mean's norm counts
                    one.grad.copy_(torch.from_numpy(gg.Team().allreduce(one.grad.numpy(), "mean")))
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            wrapped.step()
    state = wrapped.consensus_state_dict()
    wrapped.close()
    module.net.load_state_dict(state)
    return module


CASES = {
    "fused": (gg.GossipGraD, True, {}, {}),
    "its own optimizer": (gg.GossipGraD, False, {}, {}),
    "all-reduce": (gg.AllReduce, False, {}, {}),
    "accumulated": (gg.GossipGraD, True, {"accumulate_grad_batches": 2}, {"accumulate": 2}),
    "clipped": (gg.AllReduce, True, {"gradient_clip_val": 0.5}, {"clip": 0.5}),
    "clipped, its own optimizer": (gg.AllReduce, False, {"gradient_clip_val": 0.5}, {"clip": 0.5}),
    "centre": (gg.ElasticAveraging, True, {}, {}),
    "synchronised": (gg.AllReduce, True, {"sync_batchnorm": True}, {"synchronised": True}),
}


def both(name):
    """(weights by Lightning, weights by a loop)"""
    strategy, fused, of_trainer, of_loop = CASES[name]
    optimizer = gg.SGD(lr=0.1, momentum=0.9) if fused else None
    given = gg.torch.lightning.GossipStrategy(strategy(), optimizer=optimizer)
    module, _ = fitted(given, **of_trainer)
    assert not isinstance(module.net[1], nn.SyncBatchNorm) or gg.Team().size == 1
    return weights(module), weights(looped(strategy(), optimizer, **of_loop))


@pytest.mark.parametrize("name", CASES)
def test_alone_it_is_the_loop(name):
    ours, loop = both(name)
    assert torch.equal(ours, loop)
    assert not torch.equal(ours, weights(Module()))


def test_alone_its_own_optimizer_is_lightnings_training():
    """Whatever the strategy: one rank has nobody to exchange with. What changed is subtracted, so up to rounding."""
    for options in ({}, {"gradient_clip_val": 0.3}, {"accumulate_grad_batches": 2}):
        options["use_distributed_sampler"] = False
        ours, _ = fitted(gg.torch.lightning.GossipStrategy(), Module(scheduled=True), **options)
        plain, _ = fitted("auto", Module(scheduled=True), **options)
        assert torch.allclose(weights(ours), weights(plain), rtol=1e-5, atol=1e-6)


UNDER_MPI = """
import sys, warnings
sys.path.insert(0, "tests")
import torch
import gossipgrad as gg
import gossipgrad.torch
from test_lightning import CASES, QUIET, RESUMED, Module, both, fitted, lightning, loader, resumed, samples, weights
rank = gg.Team().rank
for name in CASES:
    ours, loop = both(name)
    print("SAME", rank, name, torch.equal(ours, loop), ours.double().sum().item(), sep="|")
make = gg.torch.lightning.GossipStrategy
module, trainer = fitted(make(), enable_checkpointing=True, default_root_dir={folder!r}, limit_val_batches=1.0)
x, y = samples()
saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
print("SAVED", rank, torch.equal(torch.cat([one.reshape(-1).float() for one in saved["state_dict"].values()]),
                                 weights(module)), trainer.is_global_zero, trainer.world_size, sep="|")
print("METRIC", rank, trainer.callback_metrics["validation"].item(), sep="|")
s = trainer.strategy
assert s.broadcast({{"a": rank}}, 1) == {{"a": 1}}
assert s.reduce(torch.tensor([rank + 1.0])).item() == 1.5
assert s.reduce(torch.tensor(rank + 1), reduce_op="sum").item() == 3
assert s.reduce(torch.tensor(rank + 1.0, dtype=torch.bfloat16), reduce_op="max").item() == 2
assert s.all_gather(torch.tensor([rank, 7])).tolist() == [[0, 7], [1, 7]]
assert not s.reduce_boolean_decision(rank == 0) and s.reduce_boolean_decision(rank == 0, all=False)
s.barrier()
for name in RESUMED:
    print("RESUMED", rank, name, resumed(name, {folder!r} + name, save=rank == 0), sep="|")
try:
    fitted(make(), sync_batchnorm=True)
except ValueError as error:
    print("SYNCHRONISED", rank, "sync_batchnorm=True: " in str(error), sep="|")
class Broken(Module):
    def training_step(self, batch, index):
        if rank == 1 and index == 1: raise LookupError("no more of it")
        loss = super().training_step(batch, index)
        self.log("loss", loss, on_step=True, sync_dist=True)  # where rank 0 waits for rank 1
        return loss
fitted(make(gg.PushGossip()), Broken())
"""


def test_under_mpi(mpirun, tmp_path):
    """Two ranks: the bits of a loop, one model on all ranks afterwards and in the checkpoint; an exception ends all."""
    path = os.pathsep.join([*filter(None, sys.path)])
    done = mpirun(2, UNDER_MPI.format(folder=str(tmp_path)), env={"PYTHONPATH": path}, check=False)
    lines = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    same = [line for line in lines if line[0] == "SAME"]
    assert len(same) == 2 * len(CASES) and all(line[3] == "True" for line in same), done.stdout + done.stderr
    for name in CASES:
        assert len({line[4] for line in same if line[2] == name}) == 1, name
    saved = sorted(line[1:] for line in lines if line[0] == "SAVED")
    assert saved == [["0", "True", "True", "2"], ["1", "True", "False", "2"]], done.stderr
    assert len({line[2] for line in lines if line[0] == "METRIC"}) == 1
    assert len(list(Path(tmp_path).rglob("*.ckpt"))) == 1
    went_on = [line for line in lines if line[0] == "RESUMED"]
    assert len(went_on) == 2 * len(RESUMED) and all(line[3] == "True" for line in went_on), went_on
    assert [line[2] for line in lines if line[0] == "SYNCHRONISED"] == ["True"] * 2
    assert done.returncode != 0 and "LookupError: no more of it" in done.stderr, done.stderr


class Breaking(Module):
    """Whose second backward pass fails behind the last layer, which is exchanged then."""

    def training_step(self, batch, index):
        for place, part in enumerate(self.net):
            batch[0] = part(batch[0])
            if place == 2 and index == 1:
                batch[0].register_hook(self.fail)
        return nn.functional.cross_entropy(*batch)

    def fail(self, _):
        raise LookupError("no more of it")


def test_an_exception_in_the_middle_of_a_backward_pass_is_the_users():
    module = Breaking()
    with pytest.raises(LookupError, match="no more of it"):
        fitted(gg.torch.lightning.GossipStrategy(gg.GossipGraD(), optimizer=gg.SGD(lr=0.1)), module)
    before = weights(module)
    assert torch.isfinite(before).all() and not torch.equal(before, weights(Module()))
    with gg.torch.wrap(module.net, gg.SGD(lr=0.1)) as again:  # its parameters are plain
        nn.functional.cross_entropy(again(samples()[0]), samples()[1]).backward()
        again.step()
    assert not torch.equal(before, weights(module))


# Strategy, optimizer, options of the trainer.
_STEPS = gg.schedules.StepDecay(every=5, gamma=0.5)
RESUMED = {
    "fused and scheduled": (gg.GossipGraD, gg.SGD(lr=0.1, momentum=0.9, schedule=_STEPS), {}),
    "adam": (gg.AllReduce, gg.Adam(lr=0.01), {"gradient_clip_val": 0.3}),
    "its own": (gg.AllReduce, None, {}),
    "its own and gossip": (gg.GossipGraD, None, {"accumulate_grad_batches": 2}),
    "outer": (lambda: gg.DiLoCo(period=3), gg.SGD(lr=0.1, momentum=0.9), {}),
}


def resumed(name, folder, save=True):
    """Is a run that was saved after an epoch and went on equal to one that did not stop, bit by bit?"""
    strategy, optimizer, options = RESUMED[name]

    def run(path=None, **more):
        given = gg.torch.lightning.GossipStrategy(strategy(), optimizer=optimizer)
        callback = lightning.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1, filename="{epoch}")
        made = {"enable_checkpointing": True, "callbacks": [callback]} | options | more
        module = Module(scheduled=optimizer is None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(strategy=given, **(QUIET | made))
            trainer.fit(module, loader(), ckpt_path=path)
        return weights(module)

    whole = run(max_epochs=3)
    gone_on = run(path=os.path.join(folder, "epoch=0.ckpt"), max_epochs=3)
    return torch.equal(whole, gone_on)


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_as_if_it_had_never_stopped(name, tmp_path):
    """Also the schedule of gossipgrad's optimizer, and its moments."""
    assert resumed(name, str(tmp_path))


def test_a_checkpoint_of_plain_lightning_goes_on(tmp_path):
    """Its optimizer's state is that of all ranks, and a schedule goes on at its step."""
    fitted("auto", max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    (path,) = tmp_path.rglob("*.ckpt")
    steps = gg.schedules.StepDecay(every=8, gamma=1e-9)
    for optimizer in (None, gg.SGD(lr=0.1, schedule=steps)):
        module, strategy = Module(), gg.torch.lightning.GossipStrategy(optimizer=optimizer)
        trainer = lightning.Trainer(strategy=strategy, use_distributed_sampler=False, **QUIET)
        trainer.fit(module, loader(), ckpt_path=path)
        if optimizer is None:
            whole, _ = fitted("auto")
            assert torch.allclose(weights(module), weights(whole), rtol=1e-5, atol=1e-6)
        else:
            before = torch.load(path, weights_only=False)["state_dict"]["net.0.weight"]
            assert torch.allclose(module.net[0].weight, before, atol=1e-6)
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path / "b", "use_distributed_sampler": False}
    fitted(gg.torch.lightning.GossipStrategy(), max_epochs=1, **options)
    (path,) = (tmp_path / "b").rglob("*.ckpt")
    module = Module()
    lightning.Trainer(**QUIET).fit(module, loader(), ckpt_path=path)  # and the other way round
    assert torch.allclose(weights(module), weights(whole), rtol=1e-5, atol=1e-6)


def test_a_module_that_clips_by_itself():
    class Clipping(Module):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")

    ours, _ = fitted(gg.torch.lightning.GossipStrategy(optimizer=gg.SGD(lr=0.1, momentum=0.9)), Clipping())
    wanted, _ = fitted(
        gg.torch.lightning.GossipStrategy(optimizer=gg.SGD(lr=0.1, momentum=0.9, clip_norm=0.5)),
    )
    assert torch.allclose(weights(ours), weights(wanted), rtol=1e-5, atol=1e-6)


def test_a_checkpoint_goes_on(tmp_path):
    _, first = fitted(
        gg.torch.lightning.GossipStrategy(), max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path
    )
    path = first.checkpoint_callback.best_model_path
    module = Module()
    trainer = lightning.Trainer(strategy=gg.torch.lightning.GossipStrategy(), **QUIET)
    trainer.fit(module, loader(), ckpt_path=path)
    whole, _ = fitted(gg.torch.lightning.GossipStrategy())
    assert torch.allclose(weights(module), weights(whole), rtol=1e-5, atol=1e-6)
    found = trainer.validate(module, loader(), verbose=False)[0]["validation"]  # of the plain module
    with torch.no_grad():
        assert found == pytest.approx(module.eval().loss(samples()).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "module", "error", "words"),
    [
        ({"optimizer": gg.SGD(lr=0.1)}, {"scheduled": True}, ValueError, "a scheduler beside optimizer='sgd'"),
        ({}, {"optimizers": 2}, ValueError, "2 optimizers; allowed: one"),
        ({"comm": gg.VirtualCluster(2)}, {}, ValueError, "comm is a VirtualCluster; allowed"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)}, {}, TypeError, "one of torch's; allowed"),
        ({"timeout": -1}, {}, ValueError, "timeout=-1"),
    ],
)
def test_misuse(options, module, error, words):
    with pytest.raises(error, match=re.escape(words)):
        fitted(gg.torch.lightning.GossipStrategy(**options), Module(**module))


def test_under_torchrun_it_says_how_to_launch(monkeypatch):
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"torchrun \(WORLD_SIZE=4\).*gossipgrad run -n 4 script.py"):
        gg.torch.lightning.GossipStrategy()
