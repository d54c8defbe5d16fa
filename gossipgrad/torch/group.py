"""The ranks of a process that train copies of one module: their team, and the exchange that they share."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gossipgrad import _core, optim, strategies
from gossipgrad.cluster import Network, VirtualCluster, links, machines, make_team, refuse, with_circumstances
from gossipgrad.compression import AdaComp
from gossipgrad.errors import integer, number
from gossipgrad.exchange.survivor import Survivor
from gossipgrad.launch import agreement, environment, joining, surviving
from gossipgrad.launch.origin import check as check_launcher
from gossipgrad.schedules import Constant, Function
from gossipgrad.torch import newcomers
from gossipgrad.torch.modules import Layer, forms_of, tensors_of, write
from gossipgrad.torch.synchronised import check_synchronised
from gossipgrad.training import arenas, fingerprint, mixing, notices
from gossipgrad.training.chosen import (
    checked_compression,
    checked_optimizer,
    checked_strategy,
    exchanged,
    momentum_of,
    strategy_options,
)

Arrays = dict[str, NDArray[np.float32]]
# Learning rates that a function of the step computes at a time.
_RATES_AT_ONCE = 256
# Counts of an exchange since its creation; messages and the clock are the team's.
_COUNTED = ("exposed_seconds", "skipped")
CALL = "gossipgrad.torch.wrap"


def _norm_of(module: Any) -> strategies.Norm:
    """The normalisation of a module's layers, for strategies.choose."""
    parts = list(module.modules())
    if any(isinstance(one, torch.nn.GroupNorm) for one in parts):
        return "group"
    return "batch" if any(isinstance(one, torch.nn.modules.batchnorm._BatchNorm) for one in parts) else "none"


class Group:
    """Shared state of the wrapped modules of one process. The layers are those of each module, in the core's order."""

    def __init__(
        self,
        modules: Sequence[Any],
        layers: Sequence[Sequence[Layer]],
        *,
        optimizer: Any,
        strategy: strategies.Strategy | Literal["auto"] | None,
        compression: AdaComp | None,
        comm: Any,
        seed: int,
        timeout: float,
        network: Network | None,
        trace: int,
        batch_size: int | None = None,
        on_view: Callable[[Any, dict[str, Any]], object] | None = None,
    ) -> None:
        if not isinstance(comm, VirtualCluster):
            check_launcher()
        try:
            self.unfused = isinstance(optimizer, torch.optim.Optimizer)
            self.optimizer = optim.SGD(lr=1.0) if self.unfused else checked_optimizer(optimizer)
            self.strategy = checked_strategy(strategy, auto=True)
            samples = None if batch_size is None else integer("batch_size", batch_size, 1)
            if samples is None and isinstance(self.strategy, strategies.Auto):
                raise ValueError("strategy='auto' chooses by the samples of a rank: batch_size= says how many")
            self.compression = checked_compression(compression, self.strategy)
            self.seed = integer("seed", seed, 0, 2**64 - 1)
            self.trace = integer("trace", trace, 0)
            if getattr(self.strategy, "shuffle_samples", False):
                raise ValueError("shuffle_samples=True: allowed: False; the samples are the training loop's own")
            if self.optimizer.timing.auto:
                raise ValueError("schedule: total='auto' is known only in Trainer.fit; allowed: a number of steps")
            if self.optimizer.timing.kind == "plateau":
                raise ValueError("schedule: 'plateau' follows a Trainer's epochs; allowed: model.learning_rate = ...")
            if isinstance(self.optimizer.timing, Function) and isinstance(comm, VirtualCluster):
                raise ValueError("schedule: a function of Python's; allowed for replicas: one of gossipgrad.schedules")
            given = with_circumstances(comm, None, network)
            self.virtual = given if isinstance(given, VirtualCluster) else None
            if self.virtual is not None and self.virtual.straggler is not None:
                raise ValueError(f"straggler={self.virtual.straggler!r}: allowed only for a Trainer")
            seconds = number("timeout", timeout, 0.0)
            if on_view is not None and not callable(on_view):
                raise TypeError(f"on_view={on_view!r}: allowed: None, or what can be called with the model, change")
        except (TypeError, ValueError) as error:
            refuse(comm, CALL, error)
        self.team = make_team(given, seconds, network, survives=self.virtual is None)
        self.grows = joining.grows(self.team)
        self.layers = [list(one) for one in layers]  # of each local rank
        links_given = links(given, network)
        with agreement.agreed(self.team, CALL) as one:
            surviving.check(self.team, CALL, begun=True)
            if self.strategy.workers(self.team.size) != self.team.size:
                raise ValueError("dedicated=True: allowed: False; every process trains a module")
            ranks = max(2, self.team.size) if self.grows else self.team.size
            check_synchronised(modules[0], self.strategy, ranks, self.virtual is not None)
            one.facts = self._facts(modules[0], layers[0], optimizer, network, timeout) | {
                "batch_size": samples,
                "strategy is given": strategy is not None,
            }
        if self.team.size > 1:
            self._share_first_weights(modules)
        notices.kernels_not_built(self.team.rank, environment.core_info())
        self.decision = ""  # which strategy was chosen, and why; "": the given one, or GossipGraD()
        ranks = joining.first_size(self.team)
        norm, nodes = _norm_of(modules[0]), machines(self.team, links_given)
        how = {"mortal": self.team.survives} | momentum_of(optimizer or self.optimizer)
        by_default = strategy is None and compression is None
        if samples is not None and (by_default or isinstance(self.strategy, strategies.Auto)):
            decide = strategies.by_default if by_default else strategies.choose
            self.strategy, self.decision = decide(samples, ranks, norm, nodes, **how)
        self.exchange = exchanged(self.strategy, self.compression, self.team, links_given)
        if samples is not None:
            how["fixed"] = self.compression is not None
            notices.few_samples(self.team, self.strategy, self.exchange, samples, norm, nodes, **how)
        self.rate: float | None = None  # by set_rate; None: the optimiser's schedule applies
        self._given = self.optimizer
        self._rates_until = 0
        self._before: list[dict[str, float]] = []  # each rank's counts before the last new layout of the arenas
        self.members: list[Any] = []  # the wrapped modules of the local ranks
        self.running = False  # True while the threads of virtual ranks run
        self.failed = False  # True if one of them has raised: others may have ended in the middle of a step
        self.core = self._made()
        for rank in range(len(self.layers)):
            self.load_module(rank)
        self.survivor: Survivor | None = None  # where ranks may die
        if self.team.survives:
            self.core.check_survival()
            self._on_view = on_view
            alike = agreement.flat(one.facts | self.strategy.settings() | {"exchange used": str(self.exchange)})
            calls = (lambda: self.core, self._adapt, self._told, self._leave)
            self.survivor = Survivor(self.team, *calls, facts=alike, give=self._given_to_new, take=self._take)
            self.survivor.begin(CALL)

    def join(self) -> None:
        """A newcomer, whose module is wrapped, becomes a member, with its donor's state. On other ranks a no-op."""
        if self.survivor is not None:
            self.survivor.join()

    def _given_to_new(self) -> bytes:
        model = self.members[0]
        return newcomers.given(model.module, self.layers[0], model._optimizer, self.rate)

    def _take(self, given: bytes) -> None:
        model = self.members[0]
        self.set_rate(newcomers.take(given, model.module, self.layers[0], model._optimizer))
        model._joined()

    def _leave(self) -> None:
        """Leave a step that only a forward pass has begun."""
        for one in self.members:
            if not one._closed and one._step.open and not one._step.exchanged():
                one._step.leave()

    def _adapt(self, _: Any) -> None:
        """After a change of the view: nothing is in flight, and all weights are current."""
        for one in self.members:
            if not one._closed:
                one._step.settled()

    def _told(self, change: dict[str, Any]) -> None:
        if self._on_view is not None:
            self._on_view(self.members[0], change)

    def _facts(
        self, module: Any, layers: Sequence[Layer], optimizer: Any, network: Network | None, timeout: float
    ) -> dict[str, Any]:
        """Facts that must be equal on all ranks."""
        forms = forms_of(module)
        return {
            "gossipgrad": environment.VERSION,
            "torch": str(torch.__version__),
            "module": forms,
            "order of the module's tensors": " ".join(forms),
            "trained": {
                name: _about(layer, name) for layer in layers for name, _ in layer.parameters + layer.statistics
            },
            **self.strategy.settings(),
            "compression": "none" if self.compression is None else self.compression.settings(),
            **({"optimizer": type(optimizer).__name__} if self.unfused else self.optimizer.settings()),
            "seed": self.seed,
            "timeout": timeout,
            "trace": self.trace,
            "slow network": network,
            **fingerprint.environment(),
        }

    def _share_first_weights(self, modules: Sequence[Any]) -> None:
        """Begin on all ranks with rank 0's parameters and buffers, including frozen and not persistent ones."""
        others = [tensors_of(one) for one in modules[1:]]
        for name, tensor in tensors_of(modules[0]).items():
            if tensor.device.type != "meta":
                value = self.of_first(tensor)
                if self.team.rank:
                    write(tensor, value)
                for one in others:
                    write(one[name], value)

    def of_first(self, tensor: Any) -> Any:
        """Rank 0's values of a tensor of all ranks, of any layout. Under MPI collective; else `tensor`."""
        if self.team.local == self.team.size:
            return tensor.detach()
        plain = tensor.detach().cpu()
        if plain.layout == torch.strided:
            data = self.team.broadcast(plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes(), 0)
            received = torch.frombuffer(bytearray(data), dtype=tensor.dtype) if data else plain.reshape(-1)
            return received.view(tensor.shape)
        stream = io.BytesIO()
        torch.save(plain, stream)
        return torch.load(io.BytesIO(self.team.broadcast(stream.getvalue(), 0)), weights_only=True)

    # ---- the core's exchange

    def _made(self) -> _core.Exchange:
        timing = self.optimizer.timing
        schedule = timing.options() | {"lr": self.optimizer.lr}
        return _core.Exchange(
            self.team,
            [layer.described() for layer in self.layers[0]],
            optimizer=self.optimizer.options() | {"schedule": schedule},
            strategy=strategy_options(self.strategy, self.exchange, self.compression),
            seed=self.seed,
            threads=1,
            trace=self.trace,
            compute_time=None if self.virtual is None else self.virtual.step_seconds(),
        )

    def load_module(self, rank: int) -> None:
        """Load the tensors of a rank's module into its weights, and into a centre. At rest."""
        values = values_of(self.layers[rank])
        self.core.load_arena("weight", values, rank)
        if rank == 0:
            self.core.load_consensus(values)

    def reorder(self, order: Sequence[int]) -> None:
        """Lay out the arenas in another order of layers; all state stays. Collective, at rest, outside of run.

        No tensor may be a view of the arenas, because they are freed.
        """
        state = [self.state(rank) for rank in range(len(self.layers))]
        consensus = self.core.consensus_weights()
        step, since = self.core.step, self.core.push_sum_since
        self._before = [self.counts(rank) for rank in range(len(self.layers))]
        self.layers = [[layers[place] for place in order] for layers in self.layers]
        del self.core
        self.core = self._made()
        self.core.step, self.core.push_sum_since = step, since
        self.core.load_consensus(consensus)  # first, since it sets outer weights too
        for rank, own in enumerate(state):
            for name, arrays in own.items():
                self.core.load_arena(name, arrays, rank)
        self._rates_until = 0

    def state(self, rank: int) -> dict[str, Arrays]:
        """All arenas but the gradients', by name: copies. Collective."""
        return mixing.read(self.core, rank)

    def counts(self, rank: int) -> dict[str, float]:
        """A rank's totals of messages and waits since the beginning, over all layouts of its arenas."""
        found = self.core.counts(rank)
        if self._before:
            found |= {key: found[key] + self._before[rank][key] for key in _COUNTED}
        return found

    def agreed_order(self, own: Sequence[int]) -> list[int]:
        """Rank 0's order. Collective."""
        return [int(one) for one in json.loads(self.team.broadcast(json.dumps(list(own)).encode(), 0))]

    def settle(self, rank: int) -> None:
        """Complete all exchanges in flight; for virtual ranks outside of run, of all of them. Collective."""
        if self.resting():
            self.core.settle()
        else:
            self.core.settle(rank)

    def resting(self) -> bool:
        """True for virtual ranks whose threads do not run. Calls are then made for all of them."""
        return self.virtual is not None and not self.running

    # ---- learning rates

    def set_rate(self, lr: float | None) -> None:
        """A constant rate from the next step on; None: the schedule's. Between two steps."""
        self.rate, self.optimizer = lr, self._given
        if lr is not None:
            self.optimizer = dataclasses.replace(self._given, lr=lr, schedule=Constant())  # type: ignore[type-var]
        self.core.set_schedule(self.optimizer.timing.options() | {"lr": self.optimizer.lr})
        self._rates_until = 0

    def settings(self) -> dict[str, Any]:
        """Settings of the given strategy and optimiser, and the seed, in terms of JSON."""
        return {**self.strategy.settings(), **self._given.settings(), "seed": self.seed}

    def rate_of(self, settings: Mapping[str, Any], rate: Any) -> float | None:
        """The rate that was set in a state of these settings, if it applies here; None: the schedule's."""
        return None if rate is None or not arenas.rates_alike(settings, self._given) else float(rate)

    def next_rates(self) -> None:
        """Compute the next steps' rates of a schedule that is a function of Python's. Between two steps."""
        timing = self.optimizer.timing
        if isinstance(timing, Function) and self.core.step >= self._rates_until:
            self.core.set_schedule(self.optimizer.rates(self.core.step, _RATES_AT_ONCE))
            self._rates_until = self.core.step + _RATES_AT_ONCE


def _about(layer: Layer, name: str) -> str:
    factors = layer.factors.get(name)
    own = "" if factors is None else ", times {:g} lr, {:g} weight decay, {:g} momentum".format(*factors)
    return f"in {type(layer.module).__name__}{own}"


def values_of(layers: Sequence[Layer]) -> Arrays:
    """Copies of the tensors, in the core's shapes."""
    return {
        name: tensor.detach().cpu().contiguous().numpy().reshape(shape).copy()
        for layer in layers
        for (name, tensor), (_, shape, *_) in zip(
            layer.parameters + layer.statistics, layer.described()[1], strict=True
        )
    }
