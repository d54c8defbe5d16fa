"""Ranks that train together: one, an MPI group, or a virtual cluster in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NoReturn

from gossipgrad import _core
from gossipgrad.errors import CommunicationError, integer, named_keywords, number, store, warn
from gossipgrad.launch import agreement, failure, joining, net, origin, preload, stall

MAX_VIRTUAL_RANKS = 4096


@named_keywords
@dataclass(frozen=True)
class Straggler:
    """Ranks that now and then come late: before each step a rank pauses for `delay` seconds with `probability`.

    Drawn from (seed, rank, step), so the same ranks are late at the same steps in every run. In a virtual cluster the
    rank's clock moves, elsewhere it sleeps. Like the delays of up to 300 ms in Jin, Yuan, Iandola, Keutzer, "How to
    scale distributed deep learning?" (2016), arXiv 1611.04581.
    """

    probability: float
    delay: float

    def __post_init__(self) -> None:
        store(
            self,
            probability=number("probability", self.probability, 0.0, 1.0),
            delay=number("delay", self.delay, 0.0),
        )


@named_keywords
@dataclass(frozen=True)
class Network:
    """The links of every rank, one out and one in, each carrying one message at a time.

    latency    seconds from the departure of a message's first byte to its arrival.
    bandwidth  bytes a second of a link; 0: unlimited.

    A message of b bytes alone takes latency + b / bandwidth. A rank's messages leave one after the other, and messages
    to one rank arrive one after the other. So senders to one server wait for each other, and those of a ring do not. In
    a virtual cluster clocks move; under MPI messages are held back, so that one machine shows a slow network.
    """

    latency: float = 0.0
    bandwidth: float = 0.0

    def __post_init__(self) -> None:
        store(
            self,
            latency=number("latency", self.latency, 0.0),
            bandwidth=number("bandwidth", self.bandwidth, 0.0),
        )


@named_keywords
@dataclass(frozen=True)
class Death:
    """The moment in which a virtual rank dies.

    step            the step of training, from 0.
    after_messages  messages that it has sent in that step; 0: at the step's begin. If it sends fewer, it dies at the
                    step's end.
    """

    step: int
    after_messages: int = 0

    def __post_init__(self) -> None:
        store(
            self,
            step=integer("step", self.step, 0),
            after_messages=integer("after_messages", self.after_messages, 0, 2**31 - 1),
        )


def _deaths(given: Any, ranks: int) -> tuple[tuple[int, Death], ...]:
    """VirtualCluster's deaths: (rank, Death) by rank."""
    if given is None:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    found: dict[int, Death] = {}
    for rank, death in pairs:
        at = integer("rank in deaths", rank, 0, ranks - 1)
        if isinstance(death, Mapping):
            death = Death(**death)
        found[at] = death if isinstance(death, Death) else Death(step=integer(f"deaths[{at}]", death, 0))
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def _joins(given: Any, ranks: int) -> tuple[tuple[int, int], ...]:
    """VirtualCluster's joins: (step, number of new ranks) by step."""
    found: dict[int, int] = {}
    for step, more in () if given is None else given.items() if isinstance(given, Mapping) else given:
        found[integer("step in joins", step, 0)] = integer(f"joins[{step}]", more, 1, MAX_VIRTUAL_RANKS - ranks)
    integer("ranks with those that join", ranks + sum(found.values()), 1, MAX_VIRTUAL_RANKS)
    return tuple(sorted(found.items()))


@named_keywords
@dataclass(frozen=True)
class VirtualCluster:
    """p ranks as threads of this process: the same code, results and bits as under MPI, no launcher.

    Every rank has a clock of its own, and runs repeat exactly, asynchronous strategies included. If a strategy's steps
    wait for each other, clocks change no result. GossipGraD's exchange="auto" depends on whether there is a latency or
    a bandwidth.

    latency, bandwidth  the network: seconds, and bytes a second (0: unlimited); see Network.
    compute_rate        multiplies the seconds of computing.
    compute_time        seconds of a step, whatever its batch; a sequence: of each rank's. A third is the forward pass;
                        layers share it by their flops. None: each layer's flops at 50e9 a second.
    straggler           a Straggler, or None.
    seed                of the straggler; None: the trainer's.
    deaths              ranks that die: a dict of rank to the step, or to a gossipgrad.Death. The others go on with the
                        samples that no rank has trained on (docs/survival.md).
    joins               ranks that join: a dict of a step to the number of new ranks. They are ranks p, p + 1, ... in
                        the order of the steps; deaths may name them. Each takes another rank's state, and a share of
                        what is left of the epoch. With compute_time as a sequence each has a number there, too.
    detect              seconds of virtual time from a death until the others know of it.
    """

    p: int
    latency: float = 0.0
    bandwidth: float = 0.0
    compute_rate: float = 1.0
    compute_time: float | Sequence[float] | None = None
    straggler: Straggler | None = None
    seed: int | None = None
    deaths: Mapping[int, int | Death] | Sequence[tuple[int, Death]] | None = ()
    joins: Mapping[int, int] | Sequence[tuple[int, int]] | None = ()
    detect: float = 0.01

    def __post_init__(self) -> None:
        store(
            self,
            p=integer("p", self.p, 1, MAX_VIRTUAL_RANKS),
            detect=number("detect", self.detect, 1e-9),
            latency=number("latency", self.latency, 0.0),
            bandwidth=number("bandwidth", self.bandwidth, 0.0),
            compute_rate=number("compute_rate", self.compute_rate, 0.0),
            straggler=_checked("straggler", self.straggler, Straggler),
            seed=None if self.seed is None else integer("seed", self.seed, 0, 2**64 - 1),
        )
        store(self, joins=_joins(self.joins, self.p))
        store(self, deaths=_deaths(self.deaths, self.most))
        seconds = self.step_seconds()
        if seconds is not None:
            alike = not hasattr(self.compute_time, "__len__")
            store(self, compute_time=seconds[0] if alike else tuple(seconds))

    @property
    def newcomers(self) -> list[int]:
        """The step from which each newcomer is ready."""
        return [step for step, ranks in _joins(self.joins, self.p) for _ in range(ranks)]

    @property
    def most(self) -> int:
        """Ranks that are ever there."""
        return self.p + len(self.newcomers)

    def step_seconds(self) -> list[float] | None:
        """compute_time of every rank, newcomers included; None: by the flops."""
        given: Any = self.compute_time
        if given is None:
            return None
        if isinstance(given, str) or not hasattr(given, "__len__"):
            return [number("compute_time", given, 0.0)] * self.most
        if len(given) != self.most:
            raise ValueError(f"compute_time={given!r}: allowed: one number, or {self.most}, one a rank")
        return [number(f"compute_time[{rank}]", one, 0.0) for rank, one in enumerate(given)]

    def settings(self) -> dict[str, Any]:
        """The keywords, in terms of JSON; those of deaths and joins only if ranks die or join."""
        found = asdict(self)
        if not self.joins:
            del found["joins"]
        if not self.deaths:
            del found["deaths"], found["detect"]
        seconds = self.step_seconds()
        if seconds is not None and hasattr(self.compute_time, "__len__"):
            found["compute_time"] = seconds
        return found

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> VirtualCluster:
        """The cluster of a settings() dict."""
        given = {field.name: settings[field.name] for field in fields(cls) if field.name in settings}
        if given.get("straggler") is not None:
            given["straggler"] = Straggler(**given["straggler"])
        return cls(**given)


def _checked(argument: str, value: Any, wanted: type) -> Any:
    """`value`, if it is None or a `wanted`."""
    if value is None or isinstance(value, wanted):
        return value
    raise TypeError(f"{argument}={value!r}: allowed: None, or a gossipgrad.{wanted.__name__}")


def with_circumstances(comm: Any, straggler: Straggler | None, network: Network | None) -> Any:
    """`comm`; a VirtualCluster that lacks a straggler or a network gets these. ValueError if it has its own."""
    _checked("straggler", straggler, Straggler)
    _checked("network", network, Network)
    if not isinstance(comm, VirtualCluster):
        return comm
    if straggler is not None:
        if comm.straggler is not None:
            raise ValueError(f"straggler={straggler!r}: the VirtualCluster has one; allowed: one of both")
        comm = replace(comm, straggler=straggler)
    if network is not None:
        if comm.latency or comm.bandwidth:
            raise ValueError(f"network={network!r}: the VirtualCluster has its own; allowed: one of both")
        comm = replace(comm, latency=network.latency, bandwidth=network.bandwidth)
    return comm


def links(comm: Any, network: Network | None) -> Network | None:
    """The simulated links of `comm`, as with_circumstances gives it: a VirtualCluster's own, else `network`."""
    return Network(comm.latency, comm.bandwidth) if isinstance(comm, VirtualCluster) else network


def machines(team: _core.Team, network: Network | None) -> int:
    """The number of machines of the ranks; ranks behind the links of a `network` count as one machine each.

    A newcomer counts as those that it joins have.
    """
    simulated = network is not None and (network.latency > 0 or network.bandwidth > 0)
    if simulated:
        return joining.first_size(team)
    return team.nodes()[0]


def by_mpi(comm: Any) -> bool:
    """True if the ranks of `comm`, as given to make_team, will be MPI's."""
    if origin.parent_rank() is not None or origin.by_net():
        return False
    return origin.is_launched() if comm is None else not isinstance(comm, VirtualCluster)


def refuse(comm: Any, call: str, error: Exception) -> NoReturn:
    """Raise this error, met before the group was made, on all ranks of `comm` that come to `call`.

    On a newcomer alone before it has joined: its group has no others yet.
    """
    if failure.has_yet_to_join():
        raise error
    is_group = comm is None or callable(getattr(comm, "py2f", None))
    several = by_mpi(comm) or (origin.by_net() and comm is None)
    if several and is_group and (comm is not None or failure.several()):
        try:
            team = make_team(comm, agreement.error_patience(), error=error)
        except CommunicationError:  # the others never reach the creation of groups
            raise error from None
        agreement.refuse(team, call, error)
    raise error


def refuse_joins(comm: Any) -> None:
    """ValueError for a virtual cluster whose ranks join, where only fit takes them."""
    if isinstance(comm, VirtualCluster) and comm.joins:
        raise ValueError(f"joins={comm.joins!r}: allowed for a gossipgrad.Trainer, whose fit goes on with them")


def make_team(
    comm: Any = None,
    timeout: float = 0.0,
    network: Network | None = None,
    error: Exception | None = None,
    survives: bool = False,
) -> _core.Team:
    """The core's group of ranks for `comm`.

    None: the MPI world if a launcher started this process, else one rank. A VirtualCluster. Or a communicator of
    mpi4py (anything with py2f()). Collective. timeout: seconds a wait may take before it fails; 0: for ever.
    network: holds messages back under MPI; a VirtualCluster has its own. error: an error to raise on all ranks.
    survives: the caller goes on when ranks of a VirtualCluster die.
    RuntimeError, except for a VirtualCluster: a rank started this process, or a launcher without MPI did.
    """
    links: dict[str, Any] = {key: float(value) for key, value in asdict(network or Network()).items()}
    stall.start()
    if isinstance(comm, VirtualCluster):
        if comm.deaths and not survives:
            raise ValueError(
                f"deaths={comm.deaths!r}: allowed for a gossipgrad.Trainer, whose fit goes on without them, and for "
                "the step() of a gossipgrad.Exchange"
            )
        if not survives:
            refuse_joins(comm)
        alone = not _core.info()["mpi"]["initialised"]  # otherwise it has trained with the others, too
        processes = failure.launched_size()
        if alone and processes > 1 and failure.launched_rank() == 0:
            warn(
                f"comm=VirtualCluster({comm.p}): each of the {processes} processes that were started "
                "trains a virtual cluster of its own, all the same; without comm they train together"
            )
        return _core.Team(
            "virtual",
            size=comm.p,
            latency=float(comm.latency),
            bandwidth=float(comm.bandwidth),
            compute_rate=float(comm.compute_rate),
            timeout=timeout,
            deaths=[(one, death.step, death.after_messages) for one, death in _deaths(comm.deaths, comm.most)] or None,
            joins=comm.newcomers or None,
            detect=float(comm.detect),
        )
    origin.check()
    if origin.by_net():
        if comm is not None:
            raise TypeError(
                f"comm={comm!r}: these ranks were started with --transport net, without MPI; allowed: None, a "
                "gossipgrad.VirtualCluster"
            )
        failure.guard()
        net.connect(timeout)
        return _core.Team("net", timeout=timeout, survives=survives, **links)
    launched = origin.launcher_world_size() or 0
    handle: dict[str, Any] = {}
    if comm is None:
        if not origin.is_launched():
            return _core.Team("single")
    elif callable(getattr(comm, "py2f", None)):
        handle = {"fortran_handle": comm.py2f()}
    else:
        raise TypeError(f"comm={comm!r}: allowed: None, a gossipgrad.VirtualCluster, an mpi4py communicator")
    preload.mpi_environment()
    failure.guard()
    if comm is None:
        with failure.starting(timeout, error), stall.watch("MPI_Init"):
            _core.mpi_start(launched)
    try:
        team = _core.Team("mpi", launched=launched, timeout=timeout, **handle, **links)
    finally:
        origin.let_go()
    rank, size = origin.launcher_rank() or 0, _core.info()["mpi"]["size"]
    if rank >= size:
        raise RuntimeError(
            f"the launcher started this process as rank {rank}, but MPI sees {size}: {origin.OTHER_LAUNCHER}"
        )
    return team
