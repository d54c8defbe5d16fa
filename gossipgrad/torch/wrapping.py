"""gossipgrad.torch.wrap: a module of PyTorch becomes one rank's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gossipgrad.cluster import Network, VirtualCluster, refuse
from gossipgrad.compression import AdaComp
from gossipgrad.errors import flag, named_keywords, warn
from gossipgrad.strategies import Strategy
from gossipgrad.torch.group import CALL, Group
from gossipgrad.torch.modules import check_optimizer, layers_of
from gossipgrad.torch.parameter_groups import with_groups
from gossipgrad.torch.wrapped import Wrapped


@named_keywords
def wrap(
    module: Any,
    optimizer: Any = None,
    strategy: Strategy | Literal["auto"] | None = None,
    *,
    batch_size: int | None = None,
    comm: Any = None,
    groups: Sequence[Mapping[str, Any]] | None = None,
    compression: AdaComp | None = None,
    seed: int = 0,
    timeout: float = 0.0,
    network: Network | None = None,
    overlap: bool = True,
    trace: int = 0,
    on_view: Callable[[Wrapped, dict[str, Any]], object] | None = None,
) -> Wrapped:
    """A PyTorch module that trains with the other ranks: call it, call backward(), and its `step()`.

        model = gg.torch.wrap(net, optimizer=gg.SGD(lr=0.02), strategy=gg.GossipGraD())
        for x, y in loader:  # of this rank's samples
            loss_of(model(x), y).backward()
            model.step()

    module       a torch.nn.Module with float32 parameters on the CPU, the same on all ranks; a torch.compiled one too.
                 All ranks begin with rank 0's parameters and buffers. Trainable parameters (requires_grad) become views
                 of the core's memory: the same Parameter objects, without a copy. So do their gradients, except those
                 of 16384 elements and more, which stay in autograd's memory. Frozen parameters stay as they are.
                 On a CUDA device (all trainable parameters on one; move the module first) parameters stay there.
                 Gradients and weights are copied through pinned memory of the host, beside the computing. This has been
                 tested with a stand-in for the device only; it has not run on a GPU.
    optimizer    of gossipgrad: fused with the exchange, as gg.SGD(lr=0.1) or gg.Adam(); None: SGD(lr=0.01,
                 momentum=0.9). Or a torch.optim one of the module's parameters. That is slower: each rank's step is
                 made first, and its changes are then exchanged like the gradient of an SGD with a rate of 1.
    strategy     None: GossipGraD(), in nodes where batch_size= is small, as in a Trainer. `gg.AllReduce()` computes
                 what DistributedDataParallel does. Strategies compute as in a Trainer. Only asynchronous servers
                 (ParameterServer) differ, from their first exchange on: a server answers when its process looks for
                 requests, which a module's hooks do at other moments than a Trainer. So changes are added in another
                 order. "auto": chosen by batch_size, as gossipgrad.strategies.Auto says; `model.decision` names it and
                 the reason.
    batch_size   samples of a rank and step, for the choice of a strategy and a warning where they are few; the loop may
                 give others.
    comm         None: the ranks of mpiexec; or a communicator of mpi4py. For several ranks in one process there is
                 gg.torch.replicas.
    groups       parameters with settings of their own, as torch.optim's param_groups: a list of dicts with "params" and
                 any of "lr", "weight_decay" and, for SGD and LARS, "momentum": groups=[{"params":
                 net.head.parameters(), "lr": 0.1}]. Other settings, and those of parameters in no group, are the
                 optimizer's. Schedules, and model.learning_rate, change all rates by the same factor. no_decay of the
                 optimizer comes first.
    overlap      True: a layer is exchanged as soon as its gradient is there, while the backward pass goes on. False:
                 all in step(), so that gradients may be changed before (clip_grad_norm_, gradient penalties by two
                 backward passes), and a pass may read weights beside their gradients (layer.weight.detach()).
    compression, seed, timeout, network, trace   as of gossipgrad.Trainer. With timeout= a rank that does not come, for
                 example because it skipped a step, is an error on those that wait.
    on_view      called with the wrapped model and the change after ranks have died, or new ones have joined (run
                 --survive). On a new rank before wrap returns.

    Options of a Trainer alone are refused: shuffle_samples and dedicated of strategies, schedules with total="auto",
    which need a number of steps here, and Plateau; set model.learning_rate in place of it.

    The running mean and variance of batch normalisation are exchanged as the strategy exchanges weights; other buffers,
    of all kinds, are each rank's own after the first. With strategies that average gradients SyncBatchNorm has the
    statistics of all ranks' samples; with others it is refused. Collective; ValueError, TypeError on all ranks for
    modules or options that are not allowed or differ, RuntimeError under torchrun, where no MPI runs.
    """
    try:
        if isinstance(comm, VirtualCluster):
            raise ValueError("comm is a VirtualCluster; allowed: gossipgrad.torch.replicas(make_module, cluster)")
        overlap = flag("overlap", overlap)
        layers = layers_of(module)
        check_optimizer(optimizer, layers)
        optimizer = with_groups(groups, optimizer, module, layers)
    except (TypeError, ValueError) as error:
        refuse(comm, CALL, error)
    group = Group(
        [module],
        [layers],
        optimizer=optimizer,
        strategy=strategy,
        compression=compression,
        comm=comm,
        seed=seed,
        timeout=timeout,
        network=network,
        trace=trace,
        batch_size=batch_size,
        on_view=on_view,
    )
    if group.unfused and group.team.rank == 0:
        warn("optimizer: one of torch's, whose step is a pass of its own: gossipgrad's, as gg.SGD(...), is faster")
    model = Wrapped(module, group, 0, overlap, optimizer if group.unfused else None)
    group.join()
    return model
