"""Arguments of a training, checked, and the core's options for them: optimiser, strategy, compression, device."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from typing import Any

from gossipgrad import _core, apoptosis, optim, strategies
from gossipgrad.apoptosis import Apoptosis
from gossipgrad.cluster import Network, Straggler, machines
from gossipgrad.compression import BY_NAME as COMPRESSIONS
from gossipgrad.compression import AdaComp
from gossipgrad.errors import choice, did_you_mean
from gossipgrad.launch import agreement, cuda_build, environment
from gossipgrad.literals import PRECISIONS, Backend, DType, Precision
from gossipgrad.model import Model
from gossipgrad.training import notices


def named(value: Any) -> str:
    return f"str, {value!r}" if isinstance(value, str) else type(value).__name__


def meant(arguments: str, given: Any, by_name: Mapping[str, type]) -> str:
    """The hint "; did you mean gossipgrad.X()?" if a name or a class was given in place of an object; else ""."""
    hint = did_you_mean(given, by_name) or did_you_mean(given, [made.__name__ for made in by_name.values()])
    near = [m for name, m in by_name.items() if m is given or repr(name) in hint or repr(m.__name__) in hint]
    return f"; did you mean gossipgrad.{near[0].__name__}({arguments})?" if near else ""


def checked_optimizer(optimizer: optim.Optimizer | None) -> optim.Optimizer:
    """A copy; None: SGD. TypeError for other objects."""
    if optimizer is None:
        return optim.SGD(lr=0.01, momentum=0.9)
    if not isinstance(optimizer, optim.Optimizer) or not optimizer.name:
        allowed = ", ".join(f"gossipgrad.{c.__name__}(...)" for c in optim.BY_NAME.values())
        hint = meant("...", optimizer, optim.BY_NAME)
        raise TypeError(f"optimizer is a {named(optimizer)}; allowed: {allowed}{hint}")
    return copy.copy(optimizer)  # a copy, because it receives the steps of this training


def checked_strategy(
    strategy: strategies.Strategy | str | None, auto: bool = False, changes: bool = False
) -> strategies.Strategy:
    """The strategy; None: GossipGraD. TypeError for other objects.

    auto     "auto" is allowed, and becomes strategies.Auto().
    changes  True: the core's strategy may change between two steps.
    """
    if strategy is None:
        return strategies.GossipGraD()
    if strategy == strategies.Auto.name or isinstance(strategy, strategies.Auto):
        if not auto:
            raise ValueError(
                "strategy='auto': allowed where the samples of a rank are known: gossipgrad.Trainer, gossipgrad.torch"
            )
        return strategies.Auto()
    if not isinstance(strategy, strategies.Strategy) or not strategy.name:
        names = [f"gossipgrad.{c.__name__}()" for c in strategies.BY_NAME.values()]
        allowed = ", ".join([*names, *(["'auto'"] if auto else [])])
        raise TypeError(f"strategy={strategy!r}: allowed: {allowed}{meant('', strategy, strategies.BY_NAME)}")
    first = strategy.changes_after
    if first and not changes:
        raise ValueError(f"allreduce_steps={first}: allowed with gossipgrad.Trainer, whose strategy can change; else 0")
    return strategy


def checked_compression(compression: AdaComp | None, strategy: strategies.Strategy) -> AdaComp | None:
    """The compression as the strategy applies it."""
    if compression is None:
        if getattr(strategy, "mix_gamma", None) is not None:
            raise ValueError(f"mix_gamma={strategy.mix_gamma!r}: allowed only with compression=")  # type: ignore[attr-defined]
        return None
    if not isinstance(compression, AdaComp):
        allowed = ", ".join(["None", *(f"gossipgrad.{c.__name__}(...)" for c in COMPRESSIONS.values())])
        hint = meant("", compression, COMPRESSIONS)
        raise TypeError(f"compression is a {named(compression)}; allowed: {allowed}{hint}")
    return strategy.compressed(compression)


def checked_device(device: str | None, backend: Backend | None) -> str:
    if device is None:
        device = environment.default_device(backend)
    if not isinstance(device, str):
        raise TypeError(f"device: a {type(device).__name__}; wanted a str, such as 'cpu'")
    if re.fullmatch(r"cuda(:\d+)?", device):
        cuda_build.build()
    if device.startswith("cuda"):
        environment.find_cuda_wheels()
    _core.find_device(device)
    if device == "cuda" and (count := _core.cuda()[0]) > 1:
        device = f"cuda:{environment.local_rank() % count}"
    return device


def checked_precision(precision: Precision, device: str) -> Precision:
    choice("precision", precision, PRECISIONS)
    if precision != "exact" and not device.startswith("cuda"):
        raise ValueError(f"precision: {precision!r} is for device 'cuda'; {device!r} computes exactly")
    return precision


def checked_apoptosis(given: Apoptosis | None, net: Model) -> Apoptosis | None:
    if given is None:
        return None
    if not isinstance(given, Apoptosis):
        hint = meant("", given, {"apoptosis": Apoptosis})
        raise TypeError(f"apoptosis is a {named(given)}; allowed: None, gossipgrad.Apoptosis(...){hint}")
    apoptosis.chosen("Apoptosis", given.layers, net)
    apoptosis.leasts("Apoptosis", given.least, net)
    return given


def norm_of(net: Model) -> strategies.Norm:
    """The normalisation of a network's layers, for strategies.choose."""
    kinds = {node["kind"] for node in net.graph.nodes()}
    if "group_norm" in kinds:
        return "group"
    return "batch" if kinds & {"batch_norm1d", "batch_norm2d"} else "none"


def momentum_of(optimizer: Any) -> dict[str, bool]:
    """What strategies.choose wants to know of an optimiser, of gossipgrad or torch."""
    own = isinstance(optimizer, optim.Optimizer)
    momentum = getattr(optimizer, "momentum", None) if own else optimizer.defaults.get("momentum")
    usual = type(optimizer).__name__ == "SGD" and abs((momentum or 0) - 0.9) < 0.05
    return {"usual": usual, "private": not own or momentum == 0}


def exchanged(
    strategy: strategies.Strategy, compression: AdaComp | None, team: _core.Team, links: Network | None
) -> str | None:
    """The exchange between partners, if the strategy's "auto" was resolved; None: the strategy has no such option.

    links: simulated ones.
    """
    if not isinstance(strategy, strategies.GossipGraD):
        return None
    used = strategy.exchange_on(machines(team, links))
    return used if compression is None else "weights"


def strategy_options(
    strategy: strategies.Strategy, exchange: str | None, compression: AdaComp | None, step: int = 0
) -> dict[str, Any]:
    """The core's options of the strategy in this step, with the result of `exchanged`, and of the compression."""
    options = strategy.options_at(step)
    if exchange is not None and options["name"] == strategy.name:
        options["exchange"] = exchange
    return options if compression is None else options | {"compression": compression.options()}


def dtype_of(given: DType, device: str, precision: Precision, backend: Backend | None, team: _core.Team) -> DType:
    """The network's type; "auto" is bfloat16 if every rank's CPU is faster in it, and for precision "fast" on GPUs.

    Collective. A rule and no measurement, so a run's bits follow from the machine and the options alone.
    """
    info = environment.core_info()
    has_it = bool(info["bfloat16_is_fast"] and info["onednn"]) and info["isa"] in ("avx512", "amx")
    own = has_it and (backend or os.environ.get("GOSSIPGRAD_BACKEND")) != "native" and device == "cpu"
    if device.startswith("cuda"):  # no GPU that can be opened is without
        own = precision == "fast"
    if given == "auto":
        fast = agreement.gather(team, b"1" if own else b"", "Trainer")
        return "bfloat16" if all(fast) else "float32"
    if given == "bfloat16" and device == "cpu":
        notices.slow_bfloat16(team.rank, info)
    return given


def simulated_seconds(straggler: Straggler | None, network: Network | None, parameters: int) -> float:
    """Seconds of lateness that the user simulates: of ranks, and of messages under way."""
    seconds = 0.0 if straggler is None else 2 * straggler.delay
    if network is None:
        return seconds
    moved = 8.0 * 4 * parameters
    return seconds + 8 * network.latency + (moved / network.bandwidth if network.bandwidth else 0.0)
