"""Modules on a device, by copies that stand for a GPU's: late, and poisonous to whoever does not wait for them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch_cases import Odd, batch, close, convolutional, images, small, tokens  # noqa: E402

import gossipgrad as gg  # noqa: E402
import gossipgrad.torch  # noqa: E402
from gossipgrad.torch import device  # noqa: E402


class Moment:
    """A place in the sequence of a stand-in's copies or computations."""

    def __init__(self, copies, count, computed):
        self.copies, self.count, self.computed, self.asked = copies, count, computed, 0

    def query(self):
        """It comes when it has been asked for three times: copies are late."""
        self.asked += 1
        if self.asked > 3:
            self.synchronize()
        return self.copies.done >= self.count

    def synchronize(self):
        self.copies.run_to(self.count)
        self.copies.known = max(self.copies.known, self.count)


class LateCopies:
    """Copies that wait in a list until somebody waits for them. Until then their target holds NaN."""

    def __init__(self):
        self.waiting, self.done, self.log = [], 0, []
        self.known = 0  # copies that the host has waited for
        self.reads = {}  # pinned memory that is copied up: the number of the copy
        self.clock = 0  # computations given to the device; tests advance it
        self.readers = 0  # the clock of the last computation that reads weights

    def pinned(self, like):
        return torch.full(like.shape, float("nan"), dtype=like.dtype)

    def computed(self):
        return Moment(self, 0, self.clock)

    def copied(self):
        return Moment(self, self.done + len(self.waiting), None)

    def down(self, source, host):
        assert source.dtype == host.dtype and source.shape == host.shape
        self._ask("down", source, host)

    def up(self, host, target, after):
        assert after.computed is not None and after.computed >= self.readers, "weights are still read"
        # It holds new values, so it was written since: the host must know that the last copy had been made.
        assert self.reads.get(id(host), 0) <= self.known, "pinned memory was written while it may be copied"
        self._ask("up", host, target)
        self.reads[id(host)] = self.done + len(self.waiting)

    def _ask(self, kind, source, target):
        for _, _, other in self.waiting:
            assert other is not target, "two copies to one place at once"
            assert other is not source, "a copy of what another copy writes"
        self.waiting.append((kind, source.detach(), target))
        self.log.append(kind)
        with torch.no_grad():
            target.fill_(float("nan"))

    def run_to(self, count):
        while self.done < count:
            _, source, target = self.waiting.pop(0)
            with torch.no_grad():
                target.copy_(source)
            self.done += 1

    def compute_after_copies(self):
        self.run_to(self.done + len(self.waiting))


@pytest.fixture
def made(monkeypatch):
    """All stand-ins that wrapped models have asked for."""
    found = []

    def copies_of(_):
        found.append(LateCopies())
        return found[-1]

    monkeypatch.setattr(device, "copies_of", copies_of)
    return found


def run(models, copies, loss_of, steps=6, **how):
    """Steps of two backward passes; the first only adds up; evaluations in between."""

    def train(model, rank):
        own = copies[rank] if copies else None
        for step in range(steps):
            for part in range(2 if how.get("accumulate") else 1):
                if own is not None:
                    own.clock += 1
                if how.get("accumulate") and part == 0:
                    with model.no_sync():
                        loss_of(model, step + 100, rank).backward()
                else:
                    loss_of(model, step, rank).backward()
                if own is not None:
                    own.readers = own.clock
            model.step()
            if how.get("evaluate") and rank == 0:
                with torch.no_grad():
                    loss_of(model, step, rank)
                if own is not None:
                    own.clock += 1
                    own.readers = own.clock

    models.run(train)
    models.settle()
    return [{name: one.clone() for name, one in model.state_dict().items()} for model in models]


def image_loss(model, step, rank):
    x, y = images(step, rank)
    return F.cross_entropy(model(x), y)


def text_loss(model, step, rank):
    x, y = tokens(step, rank)
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def odd():
    torch.manual_seed(0)
    return Odd()


CASES = {
    "gossip": (convolutional, image_loss, {}, {}),
    "late gossip": (convolutional, image_loss, {"strategy": gg.GossipGraD(staleness=1)}, {"evaluate": True}),
    "all-reduce": (convolutional, image_loss, {"strategy": gg.LayerwiseAllReduce()}, {"accumulate": True}),
    "no overlap": (convolutional, image_loss, {"overlap": False}, {"accumulate": True, "evaluate": True}),
    "clipped": (convolutional, image_loss, {"optimizer": gg.SGD(0.05, clip_norm=0.1)}, {}),
    "shared, frozen, unused": (odd, text_loss, {}, {"evaluate": True}),
    "of torch": (convolutional, image_loss, {"optimizer": lambda net: torch.optim.Adam(net.parameters(), 0.01)}, {}),
}


@pytest.mark.filterwarnings("ignore:.*no gradient in step")
@pytest.mark.parametrize("case", CASES)
def test_a_module_on_a_device_trains_as_one_in_memory(case, monkeypatch):
    make, loss_of, options, how = CASES[case]
    options = {"optimizer": gg.SGD(0.05, momentum=0.9)} | options
    wanted = run(gg.torch.replicas(make, 2, **options), None, loss_of, **how)
    found = []
    monkeypatch.setattr(device, "copies_of", lambda _: found.append(LateCopies()) or found[-1])
    models = gg.torch.replicas(make, 2, **options)
    got = run(models, found, loss_of, **how)
    for one, other in zip(got, wanted, strict=True):
        close(one, other, rtol=0, atol=0)
    assert all({"up", "down"} <= set(one.log) and not one.waiting for one in found)
    models.close()
    for model, state in zip(models, wanted, strict=True):
        close(model.module.state_dict(), state, rtol=0, atol=0)


def test_copies_begin_in_the_backward_pass_and_the_host_does_not_wait_for_them(made):
    model = gg.torch.wrap(small(), gg.SGD(0.1))
    (copies,) = made
    asked = []
    model.module[0].weight.register_hook(lambda _: asked.append((len(copies.waiting), copies.done)))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    # The last layer's two gradients are on their way before the first layer's are there, and nobody has waited.
    assert asked[0][0] >= 2 and copies.log.count("down") == 4 and copies.waiting
    model.step()
    assert not copies.waiting
    # Weights go up when the next forward pass asks for them.
    ups = copies.log.count("up")
    model(batch(1)[0])
    assert copies.log.count("up") == ups + 4


def test_what_the_stand_in_is_for(made):
    """A step that does not wait trains on NaN."""

    class Impatient(device.DeviceStep):
        def _arrive(self, wait):
            while self._coming:
                layer, _ = self._coming.popleft()
                for name, _ in self.layers[layer].parameters:
                    self.gradients[name].copy_(self._from_device[name])
                self._finish(layer)

    model = gg.torch.wrap(small(), gg.SGD(0.1))
    model._step.__class__ = Impatient
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    model.step()
    assert any(one.isnan().any() for one in model.state_dict().values())


def test_states_of_a_module_on_a_device(made):
    model, other = (gg.torch.wrap(convolutional(), gg.Adam(0.01)) for _ in range(2))
    for step in range(3):
        image_loss(model, step, 0).backward()
        model.step()
    state = model.training_state()
    other.load_training_state(state)
    for step in range(3, 5):
        for one in (model, other):
            image_loss(one, step, 0).backward()
            one.step()
    close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    close(model.consensus_state_dict(), model.state_dict(), rtol=0, atol=0)
    other.load_state_dict(state["module"])
    close(other.state_dict(), state["module"], rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="a second gradient in step 5"):
        loss = image_loss(model, 5, 0)
        loss.backward(retain_graph=True)
        loss.backward()


def test_modules_on_several_devices_are_refused():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match="1.weight: is on meta; allowed: tensors on the CPU, or on a CUDA device"):
        gg.torch.wrap(net)
    with pytest.raises(ValueError, match="1.weight: is on meta, 0.weight on cpu; allowed: all on one device"):
        gossipgrad.torch.modules.device_of(
            [
                gossipgrad.torch.modules.Layer("", net, [(name, one)])
                for name, one in net.named_parameters()
                if name.endswith("weight")
            ]
        )
