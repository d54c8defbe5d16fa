"""Several ranks in one process: copies of a module that train in a virtual cluster, by the same code as under MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch

from gossipgrad.cluster import VirtualCluster
from gossipgrad.compression import AdaComp
from gossipgrad.errors import flag, integer, named_keywords
from gossipgrad.strategies import Strategy
from gossipgrad.torch.group import Group
from gossipgrad.torch.modules import check_optimizer, forms_of, layers_of
from gossipgrad.torch.parameter_groups import with_groups
from gossipgrad.torch.training_state import checked
from gossipgrad.torch.wrapped import Wrapped


class Replicas:
    """The result of gossipgrad.torch.replicas: a sequence of wrapped modules, one a rank, and `run`."""

    def __init__(self, models: list[Wrapped], group: Group) -> None:
        self._models, self._group = models, group

    def __len__(self) -> int:
        return len(self._models)

    def __getitem__(self, rank: int) -> Wrapped:
        return self._models[rank]

    def __iter__(self) -> Iterator[Wrapped]:
        return iter(self._models)

    def run(self, function: Callable[[Wrapped, int], Any]) -> list[Any]:
        """function(model, rank) for each rank on a thread of its own; returns the results by rank.

        One thread runs at a time, in an order that every run repeats; a rank that waits for a message lets others run.
        An exception of one rank ends all, and is raised. Sources of random numbers get a generator of their own for
        each rank. All ranks may call settle() inside. Loading, setting a rate and calls for all ranks, as
        training_state(), are made outside.
        """
        results: list[Any] = [None] * len(self._models)
        threads, grad, autocast = torch.get_num_threads(), torch.is_grad_enabled(), _autocast()

        def of_rank(rank: int) -> None:
            torch.set_num_threads(threads)  # a thread begins with its own defaults, not the caller's
            with torch.set_grad_enabled(grad), torch.autocast("cpu", **autocast):
                results[rank] = function(self._models[rank], rank)

        self._group.running = True
        try:
            self._group.core.run(of_rank)
        except BaseException:
            self._group.failed = True
            raise
        finally:
            self._group.running = False
        return results

    def settle(self) -> None:
        """Complete and mix all exchanges in flight. Outside of run, as all calls below."""
        self._models[0].settle()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this state into all modules; the optimiser's moments stay."""
        for model in self._models:
            model.load_state_dict(state_dict)

    def consensus_state_dict(self) -> dict[str, Any]:
        """The state of the mean of all modules; copies."""
        return self._models[0].consensus_state_dict()

    def training_states(self) -> list[dict[str, Any]]:
        """Wrapped.training_state of each rank."""
        return [model.training_state() for model in self._models]

    def consensus_training_state(self) -> dict[str, Any]:
        """Wrapped.consensus_training_state: one state for all ranks."""
        return self._models[0].consensus_training_state()

    def load_training_states(self, states: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Continue from the result of training_states, or consensus_training_state.

        ValueError, and nothing has changed, if a rank's does not fit.
        """
        if isinstance(states, Mapping):
            states = [states] * len(self._models)
        if len(states) != len(self._models):
            raise ValueError(f"states: of {len(states)} ranks; allowed: of {len(self._models)}")
        found = [checked(state, model) for model, state in zip(self._models, states, strict=True)]
        steps, orders = [step for step, _ in found], [order for _, order in found]
        if len(set(steps)) > 1:
            raise ValueError(f"states: of the steps {steps}; allowed: of one step")
        if any(order != orders[0] for order in orders):
            raise ValueError("states: of layers in several orders; allowed: in one order, as all ranks have it")
        for model, state in zip(self._models, states, strict=True):
            model.load_training_state(state)

    def close(self) -> None:
        """Give the modules memory of their own again, also after a failed run."""
        for model in self._models:
            model.close()


@named_keywords
def replicas(
    make_module: Callable[[], Any],
    cluster: VirtualCluster | int,
    optimizer: Any = None,
    strategy: Strategy | Literal["auto"] | None = None,
    *,
    batch_size: int | None = None,
    groups: Callable[[Any], Sequence[Mapping[str, Any]]] | None = None,
    compression: AdaComp | None = None,
    seed: int = 0,
    timeout: float = 0.0,
    overlap: bool = True,
    trace: int = 0,
) -> Replicas:
    """Copies of a module that train in this process, for research and tests without MPI, with the same results.

        models = gg.torch.replicas(make_net, 8, gg.SGD(lr=0.02), gg.GossipGraD())

        def train(model, rank):  # a rank's training loop, as under MPI
            for x, y in batches_of(rank):
                loss_of(model(x), y).backward()
                model.step()

        models.run(train)

    make_module  called once a rank; all begin with the first one's parameters and buffers.
    cluster      the number of ranks, or a VirtualCluster with latency, bandwidth and compute_time; not with a
                 straggler.
    optimizer    of gossipgrad, or a function of a module that gives one of torch.optim.
    groups       a function of a module that returns the groups of wrap.

    All other arguments are as of gossipgrad.torch.wrap.
    """
    comm = cluster if isinstance(cluster, VirtualCluster) else VirtualCluster(integer("cluster", cluster, 1))
    overlap = flag("overlap", overlap)
    modules = [make_module() for _ in range(comm.p)]
    layers = [layers_of(module) for module in modules]
    _check_alike(modules)
    if isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; allowed: one of gossipgrad's, or a function of a module that "
            "gives one of torch.optim"
        )
    of_torch = [optimizer(module) for module in modules] if _makes(optimizer) else None
    for one, own in zip(of_torch or (), layers, strict=False):
        check_optimizer(one, own)
    chosen = of_torch[0] if of_torch else optimizer
    if groups is not None:
        if not callable(groups):
            raise TypeError(f"groups is a {type(groups).__name__}; allowed: a function of a module that gives a list")
        for module, own in zip(modules, layers, strict=True):
            made_for = with_groups(groups(module), of_torch[0] if of_torch else optimizer, module, own)
            if own is layers[0]:
                chosen = made_for
        _check_factors(layers)
    group = Group(
        modules,
        layers,
        optimizer=chosen,
        strategy=strategy,
        compression=compression,
        comm=comm,
        seed=seed,
        timeout=timeout,
        network=None,
        trace=trace,
        batch_size=batch_size,
    )
    made = [
        Wrapped(module, group, rank, overlap, of_torch[rank] if of_torch else None)
        for rank, module in enumerate(modules)
    ]
    return Replicas(made, group)


def _autocast() -> dict[str, Any]:
    """The keywords of torch.autocast("cpu", ...) that give the calling thread's state."""
    if hasattr(torch, "get_autocast_dtype"):
        return {"enabled": torch.is_autocast_enabled("cpu"), "dtype": torch.get_autocast_dtype("cpu")}
    return {"enabled": torch.is_autocast_cpu_enabled(), "dtype": torch.get_autocast_cpu_dtype()}


def _check_alike(modules: Sequence[Any]) -> None:
    """ValueError: a module is there twice, or has other tensors than the first one."""
    if len({id(module) for module in modules}) < len(modules):
        raise ValueError("make_module: gave one module twice; allowed: a new one in each call")
    first, *others = [forms_of(module) for module in modules]
    for rank, own in enumerate(others, 1):
        for name in first | own:
            here, there = first.get(name, "absent"), own.get(name, "absent")
            if here != there:
                raise ValueError(f"make_module: {name!r} is {here} on rank 0, {there} on rank {rank}; allowed: alike")


def _check_factors(layers: Sequence[Sequence[Any]]) -> None:
    """ValueError: groups are not alike for all ranks."""
    first, *others = [{name: one for layer in own for name, one in layer.factors.items()} for own in layers]
    for rank, own in enumerate(others, 1):
        for name in own:
            if own[name] != first.get(name):
                raise ValueError(f"groups: {name!r} is in other groups on rank {rank} than on rank 0; allowed: alike")


def _makes(optimizer: Any) -> bool:
    """True if it is a function that makes optimisers of torch."""
    return callable(optimizer) and not isinstance(optimizer, type) and not hasattr(optimizer, "options")
