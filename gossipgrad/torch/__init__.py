"""PyTorch modules trained by gossipgrad's strategies: a training loop of DDP becomes one by gossip in three lines.

    import gossipgrad as gg
    import gossipgrad.torch

    model = gg.torch.wrap(net, optimizer=gg.SGD(lr=0.02, momentum=0.9), strategy=gg.GossipGraD())
    for x, y in loader:
        loss_of(model(x), y).backward()
        model.step()

Started by mpiexec (gossipgrad run -n 4 train.py), every process a rank. Only this module needs PyTorch.
"""

from gossipgrad.torch.replicas import Replicas, replicas
from gossipgrad.torch.wrapped import Wrapped, wrap

__all__ = ["Replicas", "Wrapped", "replicas", "wrap"]
