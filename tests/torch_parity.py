"""A network against the same one in PyTorch: one step, and some more.

PyTorch's float64 results are the reference. Its float32 results measure rounding: each of our tensors may differ from
the reference by a few times as much, in the norm of the difference.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gossipgrad as gg

torch = pytest.importorskip("torch")
TIMES = 8  # as far from float64 as PyTorch's float32 is, times this
MIN = 3e-6  # of the tensor's norm, where PyTorch happens to be nearer


def losses(kind):
    """PyTorch's loss of this name, of outputs and targets."""
    functional = torch.nn.functional
    return {
        "cross_entropy": lambda out, y: functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1).long()),
        "binary_cross_entropy": lambda out, y: functional.binary_cross_entropy_with_logits(out, y.reshape(out.shape)),
        "mean_squared_error": lambda out, y: functional.mse_loss(out, y),
    }[kind]


def as_torch(array, dtype):
    found = torch.from_numpy(np.ascontiguousarray(array))
    return found.to(dtype) if found.is_floating_point() else found.long()


class Pair:
    """A module in float32 and in float64, and what it starts from."""

    def __init__(self, module, loss_of):
        self.module, self.loss_of = module.train(), loss_of
        self.start = {name: value.clone() for name, value in module.state_dict().items()}

    def copies(self):
        for dtype in (torch.float32, torch.float64):
            yield dtype, copy.deepcopy(self.module).to(dtype)


def near(what, ours, single, double, scale):
    """`scale`: the norm that is always compared with, for what is 0 but for rounding."""
    apart, allowed = np.linalg.norm(ours - double), TIMES * np.linalg.norm(single - double)
    allowed = max(allowed, MIN * np.linalg.norm(double), 1e-6 * scale)
    assert apart <= allowed, f"{what}: {apart:.3g} from PyTorch's float64; allowed {allowed:.3g}"


def arrays(values):
    return {name: value.detach().numpy().astype(np.float64) for name, value in values.items()}


def same(net, module, batches, loss="cross_entropy", loss_of=None, optimizers=("step", "sgd", "adam"), lr=0.01):
    """Loss and all gradients of the first batch, and weights and statistics after a step on each of `batches`."""
    loss_of = loss_of or losses(loss)
    pair = Pair(module, loss_of)
    net.load_weights(pair.start)
    shapes = net.parameter_shapes()
    parameters = {name for name, _ in module.named_parameters()}
    if "step" in optimizers:
        x, y = batches[0]
        found = []
        for dtype, one in pair.copies():
            value = loss_of(one(as_torch(x, dtype)), as_torch(y, dtype))
            value.backward()
            found.append((value.item(), arrays({n: p.grad for n, p in one.named_parameters()})))
        (loss32, single), (loss64, double) = found
        trainer = gg.Trainer(
            net, loss=loss, optimizer=gg.SGD(lr=0.0), strategy=gg.NoExchange(), conv_algorithm="direct"
        )
        ours = trainer.train_step(x, y)
        near("loss", np.float64(ours), np.float64(loss32), np.float64(loss64), 0)
        gradients = trainer.gradients()
        scale = max(np.linalg.norm(one) for one in double.values())
        for name in parameters:
            near(f"gradient of {name}", gradients[name], single[name], double[name], scale)
        trainer.close()
    how = {
        "sgd": (
            gg.SGD(lr=lr, momentum=0.9, weight_decay=1e-3),
            lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=1e-3),
        ),
        "adam": (gg.Adam(lr=lr / 10, eps=1e-4), lambda p: torch.optim.Adam(p, lr=lr / 10, eps=1e-4)),
    }
    for kind in optimizers:
        if kind == "step":
            continue
        mine, make = how[kind]
        found = []
        for dtype, one in pair.copies():
            optimizer = make(one.parameters())
            for x, y in batches:
                optimizer.zero_grad()
                loss_of(one(as_torch(x, dtype)), as_torch(y, dtype)).backward()
                optimizer.step()
            found.append(arrays(one.state_dict()))
        trainer = gg.Trainer(net, loss=loss, optimizer=mine, strategy=gg.NoExchange(), conv_algorithm="direct")
        for x, y in batches:
            trainer.train_step(x, y)
        weights = trainer.weights()
        trainer.close()
        for name in shapes:
            moved = np.linalg.norm(found[1][name] - arrays(pair.start)[name])
            assert moved > 0, f"{name} was not trained"
            near(f"{kind}: {name}", weights[name], found[0][name], found[1][name], moved)


def images(shape, batch, classes, steps=20, seed=0):
    """Batches of random images, of `batch` samples and now and then of other numbers."""
    draw = np.random.default_rng(seed)
    sizes = [batch if step % 5 else batch + 1 + step % 3 for step in range(steps)]
    return [
        (draw.normal(size=(n, *shape)).astype(np.float32), draw.integers(0, classes, n).astype(np.int32)) for n in sizes
    ]
