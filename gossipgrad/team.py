"""Messages between ranks as functions of NumPy arrays: for teaching, for research, and beside a trainer."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from gossipgrad import _core
from gossipgrad.cluster import Network, VirtualCluster, make_team, with_circumstances
from gossipgrad.errors import (
    CommunicationError,
    choice,
    flag,
    integer,
    named_keywords,
    number,
    one_line,
    plain_array,
)
from gossipgrad.launch import agreement, origin
from gossipgrad.strategies import Topology, check_permutations, check_topology, core_topology

Array = NDArray[Any]
Operation = Literal["sum", "mean", "max", "min"]
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}
_NOBODY = -1
# Packs two ranks into an integer of 63 bits, each with 1 added.
_RANK_BITS = 31


@named_keywords
class Team:
    """A group of ranks that exchange NumPy arrays.

        team = gg.Team(gg.VirtualCluster(8))  # or gg.Team() under mpiexec
        x = team.each(lambda rank: np.random.default_rng(rank).standard_normal(100))
        for step in range(12):
            x = team.mix(x, step)  # one step of gossip: the ranks agree, and their mean stays

    comm     as for a Trainer: None for the MPI world, or one rank if no launcher started this process; a
             VirtualCluster; a communicator of mpi4py.
    timeout  seconds that a wait for another rank may take before it fails; 0: for ever.
    network  a Network that slows the links down under MPI; a VirtualCluster has its own.

    One process a rank (MPI, one rank): every process gives its rank's array, of any shape, and gets its rank's result.
    A virtual cluster of p ranks: all arrays in one, of shape (p, ...), whose row r is rank r's. `each` makes such
    arrays, so the same line works in both. Arguments are never changed.

    All calls are collective: all ranks make the same ones, in the same order, with arrays of one shape and dtype. A
    difference is a ValueError on all ranks. Dtypes: bool, integers, floating and complex numbers. Results depend
    neither on time nor on threads: MPI and a virtual cluster give the same bits.

    Processes that a rank starts by multiprocessing, as workers of a DataLoader, have no part in MPI. Such a process
    imports the script again. `gg.Team()` at the script's top then knows the rank and size of its parent, and its calls
    raise RuntimeError.
    """

    def __init__(self, comm: Any = None, *, timeout: float = 0.0, network: Network | None = None) -> None:
        seconds = number("timeout", timeout, 0.0)
        given = with_circumstances(comm, None, network)
        self._failure = ""  # of a message: others may still be in flight
        parent = origin.parent_rank()
        # A child that imports its script again already has its name, but no parent_process() yet.
        worker = parent is not None and multiprocessing.current_process().name != "MainProcess"
        if parent is not None and worker and not isinstance(given, VirtualCluster):
            self._core = cast(_core.Team, _Elsewhere(*parent[1:]))
        else:
            self._core = make_team(given, seconds, network)

    @classmethod
    def around(cls, core: _core.Team) -> Team:
        """A Team of an existing group of ranks."""
        made = cls.__new__(cls)
        made._core, made._failure = core, ""
        return made

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the group's communicator and threads. Under MPI collective. Later calls raise RuntimeError."""
        self.__dict__.pop("_core", None)

    def __getattr__(self, name: str) -> Any:
        if name == "_core":
            raise RuntimeError("this Team is closed")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Team cannot be copied or pickled, since it is ranks of a group; allowed: a new gossipgrad.Team(...)"
        )

    def __repr__(self) -> str:
        if "_core" not in self.__dict__:
            return "Team(closed)"
        return f"Team({self._core.kind}, rank {self.rank} of {self.size})"

    # ---- who is here

    @property
    def size(self) -> int:
        """Ranks of the group, p."""
        return self._core.size

    @property
    def rank(self) -> int:
        """This process's rank; 0 of a virtual cluster."""
        return self._core.rank

    @property
    def ranks(self) -> range:
        """The ranks of this process: one, or all of a virtual cluster."""
        return range(self._core.rank, self._core.rank + self._core.local)

    @property
    def stacked(self) -> bool:
        """True if arrays have an axis of ranks in front: in a virtual cluster, also of one rank."""
        return self._core.kind == "virtual"

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by the ranks of this process since the group was made; comparisons of calls do not count."""
        return self._core.counts()[0]

    @property
    def messages_sent(self) -> int:
        """Messages sent, counted as bytes_sent."""
        return self._core.counts()[1]

    @property
    def seconds(self) -> float:
        """A clock for differences: virtual seconds of a virtual cluster, else real ones."""
        return self._core.counts()[2]

    def each(self, function: Callable[[int], Any]) -> Array:
        """function(rank) for the ranks of this process: its array, or, in a virtual cluster, all of them stacked."""
        made = [np.asarray(function(rank)) for rank in self.ranks]
        return np.stack(made) if self.stacked else made[0].copy()

    def partners(
        self,
        step: int,
        topology: Topology = "dissemination",
        rotate: bool = True,
        seed: int = 0,
        permutations: int | None = None,
    ) -> Any:
        """(rank to send to, rank to receive from) of a step of GossipGraD's schedule; -1: nobody.

        A pair, or, in a virtual cluster, a list of pairs, one a rank. `exchange` takes it as it is. No message is sent.
        """
        pairs = self._pairs(step, topology, rotate, seed, permutations)
        return pairs if self.stacked else pairs[0]

    # ---- messages

    def exchange(self, array: Any, partner: Any) -> Array:
        """The partner's array: every rank sends its array to one rank and receives another's.

        partner  a rank to send to and to receive from: it must name this rank. Or a pair (rank to send to, rank to
                 receive from), as `partners` gives. -1, None or the own rank: nobody; the result is then a copy of the
                 own array. In a virtual cluster: a sequence with one of these for each rank.
        """
        with self._agreed("exchange") as one:
            values = self._values(one, array)
            given = self._one_a_rank(partner)
            pairs = [self._pair(rank, value) for rank, value in zip(self.ranks, given, strict=True)]
            # Every rank must know the partners of all: one process has all pairs, a rank of MPI contributes its own.
            one.number = 0 if self.stacked else (pairs[0][0] + 1) << _RANK_BITS | (pairs[0][1] + 1)
        everybody = pairs if self.stacked else [_pair_of(number) for number in one.numbers]
        _check_pairs(everybody)
        return self._result(self._swap(values, pairs))

    def mix(
        self,
        array: Any,
        step: int,
        topology: Topology = "dissemination",
        rotate: bool = True,
        seed: int = 0,
        permutations: int | None = None,
    ) -> Array:
        """One step of gossip: the mean of the own array and this step's partner's.

        As GossipGraD mixes weights: x + (received - x)/2, for float16 in float32. A rank without a partner has its own
        array. The mean over the ranks stays, up to the rounding of the last digit.

        step       from 0: the step of the schedule.
        topology   a name, or a table, as for GossipGraD: "dissemination", "cube", "ring", "exponential", "random".
                   ValueError for a table in which a rank receives more, or less, than it sends: the mean would change.
        rotate     the ranks change places after each cycle. seed: draws the places.
        permutations  as for GossipGraD: the number of permutations that take turns; None: a new one after each cycle.

        Floating or complex numbers; ValueError for others.
        """
        with self._agreed("mix") as one:
            values = self._values(one, array)
            if values[0].dtype.kind not in "fc":
                raise ValueError(f"array: dtype {values[0].dtype}; allowed: floating or complex numbers")
            name = check_topology(topology)
            one.facts |= {"step": integer("step", step, 0), "topology": name, "rotate": rotate, "seed": seed}
            one.facts |= {"permutations": permutations}
            pairs = self._pairs(step, name, rotate, seed, permutations)
            if not isinstance(name, str):
                _check_balance(step % max(len(name), 1), name[step % max(len(name), 1)])
        received = self._swap(values, pairs)
        pairs_wide = [(_wide(own), _wide(other)) for own, other in zip(values, received, strict=True)]
        mixed = [own + (other - own) / 2 for own, other in pairs_wide]
        return self._result([one.astype(values[0].dtype, copy=False) for one in mixed])

    def allreduce(self, array: Any, op: Operation = "sum") -> Array:
        """The sum, mean, maximum or minimum over all ranks, element by element, on every rank.

        Added in the order of the ranks, so every rank has the same bits, in every run. A mean of integers is float64;
        float16 is added in float32 and rounded once. Each rank sends 2(p-1)/p of its array, in 2(p-1) messages.
        ValueError for the sum and the mean of bools, and for the maximum and the minimum of complex numbers.
        """
        with self._agreed("allreduce") as one:
            values = self._values(one, array)
            one.facts["op"] = reduction = choice("op", op, _REDUCTIONS)
            kind, dtype = values[0].dtype.kind, values[0].dtype
            if kind == ("b" if reduction in ("sum", "mean") else "c"):
                raise ValueError(f"array: dtype {dtype}; allowed with op={reduction!r}: other numbers")
        flat = [value.reshape(-1) for value in values]
        if reduction == "mean" and kind in "iu":
            flat = [value.astype(np.float64) for value in flat]
        reduced = self._reduced(flat, _REDUCTIONS[reduction], self.size if reduction == "mean" else 1)
        return self._result([one.reshape(values[0].shape) for one in reduced])

    def broadcast(self, array: Any, root: int = 0) -> Array:
        """The array of rank `root`, on every rank. Other ranks give an array of its shape and dtype, or None."""
        with self._agreed("broadcast") as one:
            one.facts["root"] = integer("root", root, 0, self.size - 1)
            values = None if array is None and root not in self.ranks else self._values(one, array, facts=False)
            own = None if values is None else values[root - self.rank if root in self.ranks else 0]
            of_root = _form(own) if own is not None and root in self.ranks else ""
        form = self._broadcast(of_root.encode(), root).decode()
        if own is not None and root not in self.ranks and _form(own) != form:
            error: Exception | None = ValueError(
                f"array: {_form_text(_form(own))}; {_form_text(form)} on rank {root}, the root"
            )
        else:
            error = None
        with self._agreed("broadcast"):
            if error is not None:
                raise error
        if self.stacked:
            assert own is not None
            return np.stack([own] * self.size)
        if root in self.ranks:
            assert own is not None
            self._broadcast(own.tobytes(), root)
            return own.copy()
        dtype, shape = _form_parts(form)
        return np.frombuffer(self._broadcast(b"", root), dtype).reshape(shape).copy()

    def allgather(self, array: Any) -> Array:
        """The arrays of all ranks, stacked, of shape (p, ...), on every rank."""
        with self._agreed("allgather") as one:
            values = self._values(one, array)
        if self.stacked:
            return np.stack(values)
        out = np.empty((self.size, *values[0].shape), values[0].dtype)
        out[self.rank] = values[0]
        if self.size > 1 and values[0].size:
            others = [rank for rank in range(self.size) if rank != self.rank]
            self._messages(
                [[(rank, values[0]) for rank in others]], [[(rank, out[rank : rank + 1]) for rank in others]]
            )
        return out

    def barrier(self) -> None:
        """Returns when all ranks have called it. In a virtual cluster: at once."""
        with self._agreed("barrier"):
            pass  # the agreement itself waits for all ranks

    # ---- within

    @contextlib.contextmanager
    def _agreed(self, call: str) -> Iterator[agreement.Agreement]:
        core = self._core
        if self._failure:
            raise RuntimeError(
                f"messages of this Team have failed ({self._failure}), so that what comes next may be those of another "
                "call; allowed: a new Team"
            )
        with self._watched(), agreement.agreed(core, f"Team.{call}") as one:
            yield one

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Encloses calls that send messages."""
        try:
            yield
        except CommunicationError as error:
            self._failure = one_line(error)
            raise

    def _messages(self, sends: Any, receives: Any) -> None:
        with self._watched():
            self._core.messages(sends, receives)

    def _broadcast(self, data: bytes, root: int) -> bytes:
        with self._watched():
            return self._core.broadcast(data, root)

    def _values(self, one: agreement.Agreement, array: Any, facts: bool = True) -> list[Array]:
        """The contiguous array of each rank of this process; ranks compare its form among their facts."""
        given = plain_array("array", array)
        if given.dtype.kind not in "biufc":
            raise TypeError(f"array: dtype {given.dtype}; allowed: bool, integers, floating or complex numbers")
        given = given.astype(given.dtype.newbyteorder("="), copy=False)
        if not self.stacked:
            values = [np.ascontiguousarray(given).reshape(given.shape)]
        elif given.ndim and given.shape[0] == self.size:
            whole = np.ascontiguousarray(given)
            values = [whole[rank, ...] for rank in self.ranks]
        else:
            raise ValueError(
                f"array: shape {given.shape}; allowed in a virtual cluster of {self.size} ranks: ({self.size}, ...), "
                "a row a rank"
            )
        if facts:
            one.facts |= {"array's shape": str(values[0].shape), "array's dtype": str(values[0].dtype)}
        return values

    def _result(self, values: Sequence[Array]) -> Array:
        return np.stack(values) if self.stacked else np.asarray(values[0])

    def _one_a_rank(self, partner: Any) -> list[Any]:
        if not self.stacked:
            return [partner]
        if isinstance(partner, (str, bytes)) or not hasattr(partner, "__len__") or len(partner) != self.size:
            raise ValueError(f"partner={partner!r}: allowed in a virtual cluster: {self.size} partners, one a rank")
        return list(partner)

    def _pair(self, rank: int, partner: Any) -> tuple[int, int]:
        """(send to, receive from) of a rank; the own rank counts as nobody."""
        both = list(partner) if isinstance(partner, (tuple, list, np.ndarray)) and np.ndim(partner) else [partner] * 2
        if len(both) != 2:
            raise ValueError(f"partner={partner!r}: allowed: a rank, or a pair (send to, receive from)")
        ranks = [_NOBODY if one is None else integer("partner", one, _NOBODY, self.size - 1) for one in both]
        to, source = (_NOBODY if one == rank else one for one in ranks)
        return to, source

    def _pairs(
        self, step: int, topology: Any, rotate: bool, seed: int, permutations: int | None
    ) -> list[tuple[int, int]]:
        name = check_topology(topology)
        chosen = core_topology(name)
        at = integer("step", step, 0)
        turns, draws = flag("rotate", rotate), integer("seed", seed, 0, 2**64 - 1)
        few = check_permutations(permutations, name, turns) or 0
        return [_core.partners(chosen, self.size, at, rank, turns, draws, few) for rank in self.ranks]

    def _swap(self, values: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> list[Array]:
        """The array that each rank of this process receives; its own if it has no sender."""
        received = [value.copy() for value in values]
        if values[0].size:
            sends = [[(to, value)] if to >= 0 else [] for value, (to, _) in zip(values, pairs, strict=True)]
            receives = [
                [(source, out)] if source >= 0 else [] for out, (_, source) in zip(received, pairs, strict=True)
            ]
            self._messages(sends, receives)
        return received

    def _reduced(self, values: Sequence[Array], operation: Callable[..., Any], divisor: int = 1) -> list[Array]:
        """A reduce-scatter and an all-gather: rank i reduces slice i of all ranks, in their order, and divides it."""
        p, n = self.size, values[0].size
        if p == 1 or n == 0:
            return [value.copy() for value in values]
        bounds = [rank * n // p for rank in range(p + 1)]
        slices = [slice(bounds[rank], bounds[rank + 1]) for rank in range(p)]
        parts = [np.empty((p, bounds[rank + 1] - bounds[rank]), values[0].dtype) for rank in self.ranks]
        sends, receives = [], []
        for rank, value, part in zip(self.ranks, values, parts, strict=True):
            part[rank] = value[slices[rank]]
            others = [other for other in range(p) if other != rank]
            sends.append([(other, value[slices[other]]) for other in others])
            receives.append([(other, part[other]) for other in others])
        self._messages(sends, receives)
        results = [np.empty_like(value) for value in values]
        sends, receives = [], []
        for rank, part, result in zip(self.ranks, parts, results, strict=True):
            total = np.array(_wide(part[0]))
            for other in range(1, p):
                operation(total, part[other], out=total)
            result[slices[rank]] = total if divisor == 1 else total / divisor
            others = [other for other in range(p) if other != rank]
            sends.append([(other, result[slices[rank]]) for other in others])
            receives.append([(other, result[slices[other]]) for other in others])
        self._messages(sends, receives)
        return results


def _wide(array: Array) -> Array:
    """The array in its type for sums: float16 has sums beyond its range, although the mean is within it."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


class _Elsewhere:
    """Stands for the group of the rank that started this process: its calls raise."""

    kind, local = "mpi", 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def __getattr__(self, name: str) -> NoReturn:
        origin.check()
        raise AttributeError(name)


def _form(array: Array) -> str:
    return f"{array.dtype.str} {','.join(str(size) for size in array.shape)}"


def _form_parts(form: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, _, shape = form.partition(" ")
    return np.dtype(dtype), tuple(int(size) for size in shape.split(",") if size)


def _form_text(form: str) -> str:
    dtype, shape = _form_parts(form)
    return f"{dtype} of shape {shape}"


def _pair_of(number: int) -> tuple[int, int]:
    return (number >> _RANK_BITS) - 1, (number & ((1 << _RANK_BITS) - 1)) - 1


def _check_pairs(pairs: Sequence[tuple[int, int]]) -> None:
    """ValueError if a rank sends to one that does not receive from it, or vice versa."""
    for rank, (to, source) in enumerate(pairs):
        if to >= 0 and pairs[to][1] != rank:
            raise ValueError(f"partner: rank {rank} sends to rank {to}, which {_receives(pairs[to][1])}")
        if source >= 0 and pairs[source][0] != rank:
            raise ValueError(f"partner: rank {rank} receives from rank {source}, which {_sends(pairs[source][0])}")


def _receives(source: int) -> str:
    return f"receives from rank {source}" if source >= 0 else "receives from nobody"


def _sends(to: int) -> str:
    return f"sends to rank {to}" if to >= 0 else "sends to nobody"


def _check_balance(row: int, partners: Sequence[int]) -> None:
    """ValueError if a row of a table would not preserve the mean."""
    senders: dict[int, list[int]] = {rank: [] for rank in range(len(partners))}
    for rank, to in enumerate(partners):
        if to not in (rank, _NOBODY):
            senders[to].append(rank)
    for rank, sources in senders.items():
        sends = int(partners[rank] not in (rank, _NOBODY))
        if len(sources) != sends:
            raise ValueError(
                f"topology: row {row}: rank {rank} sends {sends} and receives {len(sources)} arrays, which would "
                "change the mean; allowed: as many of one as of the other"
            )
