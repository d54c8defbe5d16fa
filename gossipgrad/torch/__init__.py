"""PyTorch modules trained by gossipgrad's strategies: a training loop of DDP becomes one by gossip in three lines.

    import gossipgrad as gg
    import gossipgrad.torch

    model = gg.torch.wrap(net, optimizer=gg.SGD(lr=0.02, momentum=0.9), strategy=gg.GossipGraD())
    for x, y in loader:
        loss_of(model(x), y).backward()
        model.step()

Started by mpiexec (gossipgrad run -n 4 train.py), every process a rank. Only this module needs PyTorch.
"""

import importlib
import os
from typing import TYPE_CHECKING

try:
    from torch import Tensor as _Tensor
    from torch import __file__ as _torch_file
except ImportError as _missing:
    raise ImportError("gossipgrad.torch wants PyTorch, 2.1 or newer: pip install 'gossipgrad[torch]'") from _missing
if not hasattr(_Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError("gossipgrad.torch wants PyTorch, 2.1 or newer: pip install 'gossipgrad[torch]'")

from gossipgrad.launch import stall  # noqa: E402
from gossipgrad.torch.batch_sampler import BatchSampler  # noqa: E402
from gossipgrad.torch.replicas import Replicas, replicas  # noqa: E402
from gossipgrad.torch.wrapped import Wrapped  # noqa: E402
from gossipgrad.torch.wrapping import wrap  # noqa: E402

stall.leave_out(os.path.dirname(_torch_file))

__all__ = ["BatchSampler", "Replicas", "Wrapped", "replicas", "wrap"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """gossipgrad.torch.lightning, imported on first use, because it needs Lightning."""
        if name == "lightning":
            return importlib.import_module("gossipgrad.torch.lightning")
        raise AttributeError(f"module 'gossipgrad.torch' has no attribute {name!r}")
