"""Which ranks train together: one, an MPI group, or a virtual cluster in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gossipgrad import _core, _failure, _preload
from gossipgrad._launch import launcher_world_size
from gossipgrad.errors import integer, number


@dataclass(frozen=True)
class VirtualCluster:
    """p ranks as threads of this process: the same code, results and bits as under MPI, no launcher.

    Every rank has a clock of its own: computing takes the modelled time of each layer times compute_rate, a
    message takes latency (seconds) + size / bandwidth (bytes a second; 0: unlimited). Clocks do not change results.
    """

    p: int
    latency: float = 0.0
    bandwidth: float = 0.0
    compute_rate: float = 1.0

    def __post_init__(self) -> None:
        integer("p", self.p, 1, 4096)
        number("latency", self.latency, 0.0)
        number("bandwidth", self.bandwidth, 0.0)
        number("compute_rate", self.compute_rate, 0.0)

    def settings(self) -> dict[str, Any]:
        """The keywords, in terms of JSON."""
        return asdict(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> VirtualCluster:
        """The cluster that settings() described."""
        return cls(**{field.name: settings[field.name] for field in fields(cls)})


def make_team(comm: Any = None, timeout: float = 0.0) -> _core.Team:
    """The core's group of ranks for `comm`.

    None: the MPI world where a launcher started this process, else one rank. A VirtualCluster. Or a communicator of
    mpi4py (anything with py2f()). Collective. timeout: seconds a wait may take before it fails; 0: for ever.
    """
    if isinstance(comm, VirtualCluster):
        return _core.Team(
            "virtual",
            size=comm.p,
            latency=float(comm.latency),
            bandwidth=float(comm.bandwidth),
            compute_rate=float(comm.compute_rate),
            timeout=timeout,
        )
    launched = launcher_world_size()
    if comm is None:
        if launched is None:
            return _core.Team("single")
        _preload.mpi_environment()
        _failure.guard()
        return _core.Team("mpi", launched=launched, timeout=timeout)
    if not callable(getattr(comm, "py2f", None)):
        raise TypeError(
            f"comm is a {type(comm).__name__}; allowed: None, a gossipgrad.VirtualCluster, an mpi4py communicator"
        )
    _preload.mpi_environment()
    _failure.guard()
    return _core.Team("mpi", fortran_handle=comm.py2f(), launched=launched or 0, timeout=timeout)
