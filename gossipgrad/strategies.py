"""Strategies: what ranks send each other, to whom and when. Each class is a description; the core does the work."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gossipgrad._core import Team
from gossipgrad.compression import AdaComp, Mode
from gossipgrad.errors import choice, flag, integer, named_keywords, number, store
from gossipgrad.keywords import about

TopologyName = Literal["dissemination", "cube", "ring", "exponential", "random"]
Topology = TopologyName | Sequence[Sequence[int]] | NDArray[np.integer[Any]]
Exchange = Literal["auto", "weights+momentum", "weights", "slices", "gradients"]
Mix = Literal["displacement", "halves"]
WireDtype = Literal["float32", "bfloat16"]
Collectives = Literal["own", "mpi"]

TOPOLOGIES = get_args(TopologyName)
EXCHANGES = get_args(Exchange)
MIXES = get_args(Mix)
WIRES = get_args(WireDtype)
COLLECTIVES = get_args(Collectives)
PARTITIONS = ("auto", True, False)
USUAL_SLICES = 8  # of exchange="slices"


# Keywords that several strategies share: each call makes a field, with its help for the command line.


def _wire_dtype() -> Any:
    return field(default="float32", metadata=about("type of what is sent"))


def _collectives() -> Any:
    return field(default="own", metadata=about("who adds over all ranks: this package, or the MPI library"))


_TUNED = "tuned at the start"


def _bucket_bytes(default: str = _TUNED) -> Any:
    return field(default=None, metadata=about("layers are joined to buckets of at least this size", default=default))


def _chunk_bytes(default: str = _TUNED) -> Any:
    return field(default=None, metadata=about("the longest message", default=default))


def _shuffle_samples() -> Any:
    return field(default=False, metadata=about("move the samples from rank to rank while they are trained on"))


def _push_sum() -> Any:
    return field(default=False, metadata=about("preserve the mean of the replicas, whoever sends to whom"))


def _servers() -> Any:
    return field(default=1, metadata=about("the last N ranks hold the centre"))


def _dedicated() -> Any:
    return field(default=False, metadata=about("these ranks do not train"))


@dataclass(frozen=True)
class Strategy:
    """The base. `name` is the strategy's on the command line and in reports."""

    name: ClassVar[str] = ""
    replicas_differ: ClassVar[bool] = True  # between exchanges; False: the gradients' mean is everybody's at every step
    not_compressed: ClassVar[str] = ""  # why compression does not go with it; "": it does
    residue: ClassVar[str] = ""  # what compression's residue is made of, where there is one
    compression_mode: ClassVar[Mode] = "strict"  # where the compression is given none

    def workers(self, ranks: int) -> int:
        """How many of these ranks train, the first ones; the others only serve."""
        return ranks

    def rate_share(self, ranks: int) -> float:
        """The share of one rank's learning rate that suits so many: below 1 where their updates are added up."""
        return 1.0

    def compressed(self, compression: AdaComp) -> AdaComp:
        """A compression as this strategy has it; ValueError where what it sends cannot be compressed so."""
        made = compression.of_mode(self.compression_mode)
        self.check_compression(made)
        return made

    def check_compression(self, compression: AdaComp) -> None:
        """ValueError where what this strategy sends cannot be compressed so."""
        name = compression.name
        if self.not_compressed:
            allowed = ", ".join(one for one, c in BY_NAME.items() if not c.not_compressed)
            raise ValueError(
                f"compression={name!r} with strategy={self.name!r}: {self.not_compressed}; allowed with it: {allowed}"
            )
        for key, value, why in self._uncompressed():
            if getattr(self, key, value) != value:
                raise ValueError(f"{key}={getattr(self, key)!r} with compression={name!r}: {why}; allowed: {value!r}")
        if compression.selection != "local" and not self._sums_over_ranks():
            raise ValueError(
                f"selection={compression.selection!r} with strategy={self.name!r}: its messages go from rank to rank, "
                "and no sum over all ranks is made of them; allowed: 'local'"
            )

    def _sums_over_ranks(self) -> bool:
        """Whether what is compressed is added over all ranks at once."""
        return False

    def _uncompressed(self) -> list[tuple[str, Any, str]]:
        """Keywords whose value must be this one where something is compressed, and why."""
        return [
            ("collectives", "own", "MPI adds no packed messages"),
            ("wire_dtype", "float32", "the compression says how values travel"),
        ]

    def settings(self) -> dict[str, Any]:
        """The keywords, with the name as "strategy", in terms of JSON."""
        return {"strategy": self.name, **asdict(self)}

    def options(self) -> dict[str, Any]:
        """What the core wants."""
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if value is not None}}


def check_topology(topology: Any) -> str | tuple[tuple[int, ...], ...]:
    """A topology's name, or a table [period, p] as tuples; the core checks the partners when it knows p."""
    if isinstance(topology, str):
        return str(choice("topology", topology, TOPOLOGIES))
    allowed = ", ".join(repr(name) for name in TOPOLOGIES) + ", or integers of shape [period, ranks]"
    try:
        table = np.asarray(topology)
    except ValueError:
        raise ValueError(f"topology: rows of different lengths; allowed: {allowed}") from None
    if table.ndim != 2 or table.dtype.kind not in "iu":
        what = f"an array of shape {table.shape} and dtype {table.dtype}" if table.ndim else repr(topology)
        raise ValueError(f"topology: {what}; allowed: {allowed}")
    return tuple(tuple(int(partner) for partner in row) for row in table)


def read_topology(text: str) -> str | tuple[tuple[int, ...], ...]:
    """A topology's name, or the table in a file: .npy, .json, or text with a line a step. ValueError, OSError."""
    if not text:
        raise ValueError(f"empty; allowed: {', '.join(TOPOLOGIES)}, or a file")
    kind = os.path.splitext(text)[1]
    if kind == ".npy":
        return check_topology(np.load(text))
    if kind == ".json":
        with open(text, encoding="utf-8") as file:
            return check_topology(json.load(file))
    if kind:
        return check_topology(np.loadtxt(text, dtype=np.int64, ndmin=2))
    return check_topology(text)


def core_topology(topology: Topology | str) -> str | NDArray[np.int64]:
    """What the core wants for what check_topology gave."""
    return topology if isinstance(topology, str) else np.array(topology, np.int64, ndmin=2)


def _check_shared(strategy: Any) -> None:
    """Check the keywords that several strategies have, those that this one has."""
    for key in ("bucket_bytes", "chunk_bytes"):
        if getattr(strategy, key, None) is not None:
            store(strategy, **{key: integer(key, getattr(strategy, key), 1)})
    for key in ("push_sum", "shuffle_samples", "dedicated"):
        if hasattr(strategy, key):
            store(strategy, **{key: flag(key, getattr(strategy, key))})
    if hasattr(strategy, "wire_dtype"):
        store(strategy, wire_dtype=choice("wire_dtype", strategy.wire_dtype, WIRES))
    if hasattr(strategy, "servers"):
        store(strategy, servers=integer("servers", strategy.servers, 1, 4096))
    if hasattr(strategy, "collectives"):
        store(strategy, collectives=choice("collectives", strategy.collectives, COLLECTIVES))
        if strategy.collectives == "mpi" and strategy.wire_dtype != "float32":
            raise ValueError(
                f"wire_dtype={strategy.wire_dtype!r} with collectives='mpi': MPI has no sum of {strategy.wire_dtype}; "
                "allowed: 'float32', or collectives='own'"
            )


@dataclass(frozen=True, kw_only=True)
class GossipGraD(Strategy):
    """In each step every rank exchanges with one partner, which changes from step to step.

    Daily, Vishnu, Siegel, Warfel, Amatya, "GossipGraD: Scalable Deep Learning using Gossip Communication based
    Asynchronous Gradient Descent" (2018), arXiv 1803.05880. docs/sources.md says what is from there. Step t of training
    is step h = t mod k of a cycle of k steps; p ranks, r is a rank.

    topology      "dissemination": send to (r - 2^h) mod p, receive from (r + 2^h) mod p; k = ceil(log2 p).
                  "cube": both with r XOR 2^h; a partner that does not exist is skipped, by both sides; k = ceil(log2
                  p).
                  "ring": send to r - 1, receive from r + 1, and the other way round in odd steps t; k = p - 1.
                  "exponential": send to (r + 2^h) mod p, receive from (r - 2^h) mod p, the one-peer exponential graph:
                  dissemination in a mirror; k = ceil(log2 p).
                  "random": pairs drawn from the seed, anew for every step; for odd p one rank rests; k = 1.
                  A table, integers of shape [k, p]: table[h][r] is the rank that r sends to; r itself or -1: it rests.
                  Without push_sum every rank that sends must receive from one rank, the others from none.
    rotate        after each cycle the ranks change places by a permutation drawn from the seed; without effect on
                  "random" and on a table.
    staleness     0: what was sent after an update is mixed before the layer is used again.
                  1: it is mixed after the update of the next step, so that a whole step hides the exchange; moments are
                  mixed just before that update.
    exchange      "weights+momentum" (with Adam both moments), "weights", or "gradients" (for comparison: nothing pulls
                  the replicas together). A ring all-reduce sends 2(p-1)/p models a rank and step, gossip of weights 1,
                  of weights and momentum 2, with Adam 3: so the latter two never send fewer bytes than the ring.
                  "auto": "weights+momentum" where all ranks share memory, because a message there costs no more than
                  reading it; "weights" where they are on several machines. A virtual cluster is one machine, or, with
                  a latency or a bandwidth, several; so are MPI ranks with a Network. Trainer.exchange says which; it
                  is chosen when the trainer is made, and stored in checkpoints.
                  "slices": "weights" with `slices`, 8 of them where that is None.
    slices        m: every bucket is cut into m slices of about equal size, and step t exchanges slice t mod m of each:
                  m times fewer bytes, and less work, also in shared memory. Nothing is lost, no memory is needed, and
                  the mean of the replicas is preserved as with whole buckets. The partners change every m steps, so
                  that each slice meets every partner: what an update learns reaches all ranks within m * k steps. None:
                  1, whole buckets. With "weights+momentum" the momentum's slices travel with the weights'; with
                  push_sum every slice has scalars of its own. Not with "gradients".
    mix           "displacement": w += (received - sent) / 2, which preserves the mean of the replicas.
                  "halves": w = (w + received) / 2, the authors' form.
    hierarchical  gossip between nodes: inside a node gradients are averaged by a layer-wise all-reduce, each rank's
                  weighted by its number of samples, so all ranks of a node have the same weights. Topology, rotate and
                  the rest then speak of nodes in place of ranks, and each rank of a node exchanges with the rank at the
                  same place in the partner node. With one node this is AllReduce, with nodes of one rank plain
                  GossipGraD, bit for bit.
    ranks_per_node  with hierarchical: nodes are this many consecutive ranks, the last one the remainder; None: the
                  ranks that share memory, in a virtual cluster all. Nodes must be alike: where they are not, each is
                  divided into nodes as large as the greatest common divisor of their sizes (10 ranks by 4: five nodes
                  of 2).
    collectives   with hierarchical: of the sums inside a node, as of AllReduce.
    push_sum      any number of ranks may send to one: every rank has a scalar, 1 at first. It sends half of it along
                  with its weights, and becomes the mean of its own weights and of those that arrive, each weighted by
                  its scalar. Every exchange preserves the mean over the ranks of scalar * weights, and without training
                  all weights converge to the mean of the first ones; a rank's update counts with its scalar at that
                  time. The table must lead from every rank to every other. Weights or weights and momentum,
                  displacement mix.
    wire_dtype    "float32", or "bfloat16" for half the bytes: what is sent is rounded to nearest even. The displacement
                  mix then adds (received - rounded w) / 2, which preserves the mean; replicas agree to the precision of
                  bfloat16, 8 bits.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: chosen when the trainer is made, by
                  what messages between these ranks are measured to cost: Trainer.tuning. No weight depends on it. With
                  hierarchical 1 MiB: links inside a node and between nodes differ, so nothing is measured; and with
                  slices, which are cut out of buckets, so that weights do depend on it.
    chunk_bytes   a bucket travels in pieces of at most this many bytes; None: likewise, with hierarchical 2 MiB.
    mix_gamma     with the trainer's compression, above 0 and at most 0.5; None: 0.5. Two ranks that are partners in a
                  step then hold the same copy of the weights, and when they meet, each sends the other of the
                  difference between its weights and the copy what is largest in each bin, m: as values, whatever the
                  compression's mode, where the difference times 1 + (factor - 1) / 32 is at least the greatest of its
                  bin. Then w += g * (m of the partner - own m), and both copies += g * (sum of both m); g is mix_gamma.
                  The mean of the replicas is preserved, and what is not sent stays in the next difference. Where a
                  rank receives from another than it sends to (topologies other than "cube" and "random"), it exchanges
                  with both of them, and g is half of mix_gamma. A rank holds a copy for each partner: ceil(log2 p) for
                  "cube" without rotate, up to twice as many for "dissemination", 2 for "ring", p - 1 with rotate or
                  "random"; at most 32. Only weights are exchanged, not momentum. With staleness 0 and the displacement
                  mix, without slices, push_sum and hierarchical.
    shuffle_samples  the ranks' shards move around a ring while they are trained on: in each step every rank sends one
                  batch of samples with their targets to rank r - 1, and those from rank r + 1 replace them. It costs a
                  copy of the shard. A sample stays at its place in the shard, and all ranks visit the places in one
                  order, so every sample is trained on once an epoch, by the rank that holds it then. See
                  Trainer.audit_samples.
    """

    name: ClassVar[str] = "gossipgrad"
    compression_mode: ClassVar[Mode] = "exact"
    topology: Topology = field(
        default="dissemination",
        metadata=about(
            f"who sends to whom: {', '.join(TOPOLOGIES)}, or a file with a table [period, ranks]: .npy, .json, text",
            metavar="NAME|FILE",
            read=read_topology,
        ),
    )
    rotate: bool = field(default=True, metadata=about("ranks change places after each cycle of partners"))
    staleness: Literal[0, 1] = field(
        default=0, metadata=about("steps from sending to mixing; 1 hides the exchange behind a whole step")
    )
    exchange: Exchange = field(default="auto", metadata=about("what partners send"))
    slices: int | None = field(
        default=None,
        metadata=about(
            "exchange one of this many slices of every bucket a step", default="1, with --exchange slices 8"
        ),
    )
    mix: Mix = field(default="displacement", metadata=about("how received weights are mixed in"))
    hierarchical: bool = field(default=False, metadata=about("all-reduce inside a node, gossip between nodes"))
    ranks_per_node: int | None = field(
        default=None, metadata=about("with --hierarchical: the size of a node", default="the ranks that share memory")
    )
    collectives: Collectives = _collectives()
    push_sum: bool = _push_sum()
    wire_dtype: WireDtype = _wire_dtype()
    bucket_bytes: int | None = _bucket_bytes()
    chunk_bytes: int | None = _chunk_bytes()
    mix_gamma: float | None = field(
        default=None, metadata=about("with --compression: the share of the partners in a mix", default="0.5")
    )
    shuffle_samples: bool = _shuffle_samples()

    def _uncompressed(self) -> list[tuple[str, Any, str]]:
        why = "each edge of the schedule has a copy of the weights that both its ranks know"
        return [
            *super()._uncompressed(),
            ("hierarchical", False, why),
            ("push_sum", False, why),
            ("mix", "displacement", why),
            ("staleness", 0, why),
        ]

    def check_compression(self, compression: AdaComp) -> None:
        super().check_compression(compression)
        name = compression.name
        if compression.mode != "exact":
            raise ValueError(
                f"mode={compression.mode!r} with strategy={self.name!r}: copies with one scale a parameter do not come "
                "near the weights, and training diverges; allowed: 'exact'"
            )
        if self.exchange not in ("auto", "weights"):
            raise ValueError(
                f"exchange={self.exchange!r} with compression={name!r}: only weights have copies; allowed: 'weights', "
                "and 'auto', which then is 'weights'"
            )
        if (self.slices or 1) > 1:
            raise ValueError(
                f"slices={self.slices} with compression={name!r}: copies are of whole weights, and each sends less; "
                "allowed: None"
            )

    def __post_init__(self) -> None:
        store(
            self,
            topology=check_topology(self.topology),
            rotate=flag("rotate", self.rotate),
            staleness=choice("staleness", self.staleness, (0, 1)),
            exchange=choice("exchange", self.exchange, EXCHANGES),
            mix=choice("mix", self.mix, MIXES),
            hierarchical=flag("hierarchical", self.hierarchical),
        )
        _check_shared(self)
        self._check_slices()
        if self.mix_gamma is not None:
            store(self, mix_gamma=number("mix_gamma", self.mix_gamma, high=0.5, above=0.0))
        if self.ranks_per_node is not None:
            store(self, ranks_per_node=integer("ranks_per_node", self.ranks_per_node, 1))
            if not self.hierarchical:
                raise ValueError(f"ranks_per_node={self.ranks_per_node}: allowed only with hierarchical=True")
        if self.collectives != "own" and not self.hierarchical:
            raise ValueError(f"collectives={self.collectives!r}: allowed only with hierarchical=True")
        if self.push_sum:
            if self.exchange == "gradients":
                raise ValueError(
                    "push_sum=True with exchange='gradients': allowed: 'auto', 'weights+momentum', 'weights'"
                )
            if self.mix == "halves":
                raise ValueError("push_sum=True with mix='halves': allowed: 'displacement'")

    def _check_slices(self) -> None:
        if self.slices is not None:
            store(self, slices=integer("slices", self.slices, 1))
        if self.exchange == "slices":
            store(self, slices=USUAL_SLICES if self.slices is None else self.slices)
            if self.slices == 1:
                raise ValueError("slices=1 with exchange='slices': allowed: at least 2, or exchange='weights'")
        if (self.slices or 1) > 1 and self.exchange == "gradients":
            raise ValueError(
                f"slices={self.slices} with exchange='gradients', which pulls no replicas together: "
                "allowed: 'auto', 'weights+momentum', 'weights', 'slices'"
            )

    def settings(self) -> dict[str, Any]:
        made = super().settings()
        if not isinstance(self.topology, str):
            made["topology"] = [list(row) for row in self.topology]
        return made

    def options(self) -> dict[str, Any]:
        exchange = "weights" if self.exchange == "slices" else self.exchange
        return super().options() | {"topology": core_topology(self.topology), "exchange": exchange}

    def exchange_on(self, nodes: int) -> str:
        """What is exchanged by ranks on so many machines."""
        if self.exchange == "slices":
            return "weights"
        if self.exchange != "auto":
            return self.exchange
        return "weights+momentum" if nodes == 1 else "weights"

    def partners_on(self, team: Team) -> tuple[int, int]:
        """How many partners gossip on this team, each of how many ranks: nodes where it is hierarchical, else ranks."""
        return team.nodes(self.ranks_per_node or 0) if self.hierarchical else (team.size, 1)


@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy):
    """The mean of all ranks' gradients, in one blocking all-reduce after the backward pass.

    wire_dtype   "float32", or "bfloat16" for half the bytes: gradients and their sum travel rounded to nearest even,
                 the sum is made in float32, and all ranks end with the same bits.
    collectives  "own": sums are made in the order of ranks, so MPI, the virtual cluster and every run give the same
                 bits.
                 "mpi": by the MPI library's MPI_Iallreduce, in an order of its choice: all ranks still end with the
                 same bits, but neither those of "own" nor, perhaps, those of another run. float32 on the wire, ranks
                 under MPI, and no network= of the trainer, which cannot hold MPI's own messages back. What the library
                 sends is not known: bytes_sent and messages_sent count what a reduce-scatter and an all-gather need.
                 Nor is it known for whom it waits: after `timeout` the error names the sum, its layers and step, but no
                 rank.
    """

    name: ClassVar[str] = "allreduce"
    residue: ClassVar[str] = "gradients"
    replicas_differ: ClassVar[bool] = False
    wire_dtype: WireDtype = _wire_dtype()
    collectives: Collectives = _collectives()

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        _check_shared(self)


@dataclass(frozen=True, kw_only=True)
class LayerwiseAllReduce(Strategy):
    """AllReduce with the same bits, hidden behind the backward pass.

    The reduction of a bucket starts when the gradients of its layers are final, the last layers first.

    wire_dtype, collectives  as of AllReduce; with "mpi" the bits may differ from AllReduce's.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: chosen as for GossipGraD.
    chunk_bytes   a bucket is reduced in pieces of at most this many bytes; None: likewise.
    """

    name: ClassVar[str] = "layerwise-allreduce"
    residue: ClassVar[str] = "gradients"
    replicas_differ: ClassVar[bool] = False
    wire_dtype: WireDtype = _wire_dtype()
    collectives: Collectives = _collectives()
    bucket_bytes: int | None = _bucket_bytes()
    chunk_bytes: int | None = _chunk_bytes()

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        _check_shared(self)


@dataclass(frozen=True, kw_only=True)
class PeriodicAllReduce(Strategy):
    """Local SGD: every rank trains alone, and now and then weights and moments become the plain mean over all ranks.

    period       after each step t (from 0) with (t + 1) % period == 0, whatever epoch it is in; an integer of at least
                 1, or "log2": max(1, ceil(log2 p)) for p ranks.
    wire_dtype   "float32", or "bfloat16" for half the bytes: values travel rounded to nearest even, and what returns,
                 as bfloat16 too, is the difference to add: mean of the rounded - rounded w. So small updates that
                 bfloat16 cannot represent are not lost; replicas agree to the precision of bfloat16.
    collectives  as of AllReduce.
    shuffle_samples  as of GossipGraD.

    With compression a rank sends how far its weights have moved since the last mean, and all ranks go on from that mean
    plus the mean of what was sent; moments stay each rank's own. During the warm-up, and once after weights have been
    loaded, whole weights and moments are averaged.
    """

    name: ClassVar[str] = "periodic-allreduce"
    residue: ClassVar[str] = "displacements"
    period: int | Literal["log2"] = field(
        default="log2", metadata=about("steps from one averaging to the next; log2: ceil(log2 ranks)")
    )
    wire_dtype: WireDtype = _wire_dtype()
    collectives: Collectives = _collectives()
    shuffle_samples: bool = _shuffle_samples()

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        _check_shared(self)
        if not isinstance(self.period, str):
            store(self, period=integer("period", self.period, 1))
        elif self.period != "log2":
            raise ValueError(f"period={self.period!r}: allowed: 'log2', or an integer of at least 1")


@dataclass(frozen=True, kw_only=True)
class _RandomGossip(Strategy):
    interval: int = field(default=1, metadata=about("steps from one exchange to the next"))
    probability: float = field(default=1.0, metadata=about("of an exchange that is due"))
    push_sum: bool = _push_sum()
    wire_dtype: WireDtype = _wire_dtype()
    chunk_bytes: int | None = _chunk_bytes("2 MiB")

    def __post_init__(self) -> None:
        _check_shared(self)
        store(
            self,
            interval=integer("interval", self.interval, 1),
            probability=number("probability", self.probability, above=0, high=1),
        )


@dataclass(frozen=True, kw_only=True)
class PullGossip(_RandomGossip):
    """Asynchronous gossip: now and then a rank averages its weights with what a random other rank last published.

    Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581. After the update of
    step t with (t + 1) % interval == 0, and then with the given probability, rank r asks rank j, drawn uniformly from
    the others by (seed, r, t). Every rank publishes its weights after each update, before it mixes. When the answer has
    arrived, at the end of a step (usually the next one): w = (w + w_j) / 2. The optimiser's moments stay local.

    No rank waits for another before it settles: a pull from a rank that has not answered our last two, or while four
    are unanswered, is left out and counted in the history's `exchanges_skipped`. Which version of w_j arrives when
    depends on the ranks' speeds, so only in a virtual cluster do two runs have the same bits.

    interval     steps from one pull to the next, at least 1.
    probability  with which a pull that is due is made, above 0 and at most 1.
    push_sum     False: the mean of the replicas is not preserved. True: it is, but for rounding. Every rank has a mass,
                 at first 1; who answers gives half of it away, w = (m w + m_j w_j) / (m + m_j), and m + m_j is the new
                 mass. This preserves the sum of m w over the ranks; an update counts with its rank's mass. Answers then
                 wait for the end of the other rank's step. At rest the masses become 1 again: one all-reduce shifts all
                 replicas by the same vector, which preserves their plain mean.
    wire_dtype   "float32", or "bfloat16" for half the bytes: what is sent is rounded to nearest even, and replicas
                 agree to the precision of bfloat16, 8 bits. With push_sum the sender adds the rounding error to its own
                 weights, so that the mean is preserved all the same.
    chunk_bytes  weights travel in pieces of at most this many bytes; None: 2 MiB. What has arrived when depends on it.

    A rank stores four snapshots of its weights, and has four areas for weights that cannot be read in place. A pull
    sends a question, a note and one model.
    """

    name: ClassVar[str] = "pull-gossip"
    not_compressed: ClassVar[str] = "who reads a snapshot is not known, so nobody knows what a reader lacks"


@dataclass(frozen=True, kw_only=True)
class PushGossip(_RandomGossip):
    """Asynchronous gossip: now and then a rank sends its weights to a random other rank, which mixes what has arrived.

    Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581. After the update of
    step t with (t + 1) % interval == 0, and then with the given probability, rank r sends w to rank j, drawn uniformly
    from the others by (seed, r, t). At the end of each step, a rank at which n >= 1 models have arrived whole mixes
    them: w = (w + sum of them) / (n + 1). The optimiser's moments stay local.

    No rank waits for another before it settles: a push to a rank that has not mixed our last two, or while four are not
    mixed, is left out and counted in the history's `exchanges_skipped`. When what arrives depends on the ranks' speeds,
    so only in a virtual cluster do two runs have the same bits.

    interval     steps from one push to the next, at least 1.
    probability  with which a push that is due is made, above 0 and at most 1.
    push_sum     False: the mean of the replicas is not preserved. True: it is, but for rounding. Every rank has a mass,
                 at first 1; who sends gives half of it away with w, and w = (m w + sum of m_i w_i) / (m + sum of m_i),
                 with that sum as the new mass. This preserves the sum of m w over the ranks; an update counts with its
                 rank's mass. At rest the masses become 1 again: one all-reduce shifts all replicas by the same vector,
                 which preserves their plain mean.
    wire_dtype   "float32", or "bfloat16" for half the bytes: what is sent is rounded to nearest even, and replicas
                 agree to the precision of bfloat16, 8 bits. With push_sum the sender adds the rounding error to its own
                 weights, so that the mean is preserved all the same.
    chunk_bytes  weights travel in pieces of at most this many bytes; None: 2 MiB. What has arrived when depends on it.

    A rank stores four snapshots of its weights, and has four areas for weights that cannot be read in place. A push
    sends a note and one model.
    """

    name: ClassVar[str] = "push-gossip"
    not_compressed: ClassVar[str] = "when a model is mixed is not known to its sender, so it has no residue"


@dataclass(frozen=True, kw_only=True)
class OverlappedAveraging(Strategy):
    """AllReduce with the same bits; each rank updates 1/p of the weights and stores their optimiser's state alone.

    Lee, Agrawal, Balaprakash, Choudhary, Liao (2018). In the backward pass, when the gradients of a bucket are final,
    rank i receives slice i of it from all ranks. It adds them in the order of ranks, updates the slice, and sends it to
    all. The next forward pass waits for a bucket's weights when it needs them, so half of the traffic can hide behind
    it.

    overlap       False: everything is exchanged after the backward pass, for comparison.
    partition_fc  of linear layers: True: ranks exchange, instead of the weight's gradient, the layer's inputs, sent in
                  the forward pass, and the errors of its outputs. Rank i receives all inputs and the errors of the
                  outputs in its slice, and computes this slice of every rank's gradient itself.
                  "auto": in every step, of those layers where it sends fewer bytes: with B samples of all ranks
                  4*B*(inputs + outputs/p) against 4*inputs*outputs (2 for "bfloat16"); layers with less than 64 KiB of
                  weights are left alone.
                  False: of none. The bits are the same. The history's `partitioned_fc` names the layers.
    wire_dtype    of gradients, as of AllReduce, whose bits it then has; weights, inputs and errors travel as float32,
                  so "bfloat16" needs three quarters of the bytes of an exchange of gradients.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: chosen as for GossipGraD.
    chunk_bytes   a bucket travels in pieces of at most this many bytes; None: likewise.
    """

    name: ClassVar[str] = "overlapped-averaging"
    not_compressed: ClassVar[str] = "its ranks receive weights, of which every element is used in the next step"
    replicas_differ: ClassVar[bool] = False
    overlap: bool = field(default=True, metadata=about("exchange while computing"))
    partition_fc: bool | Literal["auto"] = field(
        default="auto", metadata=about("linear layers exchange inputs and errors instead of gradients")
    )
    wire_dtype: WireDtype = _wire_dtype()
    bucket_bytes: int | None = _bucket_bytes()
    chunk_bytes: int | None = _chunk_bytes()

    def __post_init__(self) -> None:
        _check_shared(self)
        store(
            self,
            overlap=flag("overlap", self.overlap),
            partition_fc=choice("partition_fc", self.partition_fc, PARTITIONS),
        )


@dataclass(frozen=True, kw_only=True)
class ElasticAveraging(Strategy):
    """EASGD: ranks train alone, tied to a common centre c by an elastic force; with a momentum optimiser, EAMSGD.

    Compared by Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581.

    After the local step t (from 0) with (t + 1) % period == 0, from the weights w after that step and the centre as it
    is then, s = alpha * (w - c); c += s; w -= s. (The EAMSGD of their code computes s before the local step and
    subtracts it after; here both are after it.) Momentum stays with its rank. At first c is the initial weights.

    The model that is evaluated, used by predict and saved is the centre. consensus_distance is among the ranks.

    With compression (see AdaComp) both sides move by what is sent of s, so every exchange preserves the sum of c and of
    all w. What is not sent is in w - c still, of which the next s is made: there is no residue. Not synchronous: what
    travels to the server is how far w is from what the server knows of it, and the residue is the part not sent yet.

    period       steps from one exchange to the next, at least 1.
    alpha        the force. None: 0.8 / p, or 0.9 / p if not synchronous, for p ranks that train. Above 0 and below 2 /
                 (p + 1), or 1 if not synchronous: beyond, the centre diverges.
    synchronous  True: all ranks at once and from the same c, to which the sum of their s is added; every rank stores c,
                 and an all-reduce replaces the server.
                 False: c lies on servers, and every rank exchanges at its own time, waiting for a server's answer only.
    wire_dtype   "float32", or "bfloat16" for half the bytes: s is rounded to nearest even. The rounded s is what moves
                 both sides, so every exchange preserves the sum of c and of all w, and no small s is lost. Synchronous:
                 the sum of s is rounded once more, and the rank that adds it adds the difference to its w. Not
                 synchronous: what travels to the server is how far w is from what the server knows of it, rounded, and
                 the server makes s from what it then knows; after each rest (see ParameterServer) the ranks begin by
                 sending it their w, as float32.
    collectives  if synchronous: as of AllReduce.
    servers, dedicated, bucket_bytes, chunk_bytes
                 if not synchronous: as of ParameterServer.
    """

    name: ClassVar[str] = "elastic-averaging"
    residue: ClassVar[str] = "differences to the centre"
    period: int = field(default=10, metadata=about("steps from one exchange with the centre to the next"))
    alpha: float | None = field(
        default=None,
        metadata=about("the share of the way to the centre", default="0.8 / ranks, or 0.9 / ranks if not synchronous"),
    )
    synchronous: bool = field(default=True, metadata=about("all ranks meet the centre at once"))
    wire_dtype: WireDtype = _wire_dtype()
    collectives: Collectives = _collectives()
    servers: int = _servers()
    dedicated: bool = _dedicated()
    bucket_bytes: int | None = _bucket_bytes("1 MiB")
    chunk_bytes: int | None = _chunk_bytes("2 MiB")

    def _sums_over_ranks(self) -> bool:
        return self.synchronous

    def __post_init__(self) -> None:
        _check_shared(self)
        store(
            self,
            period=integer("period", self.period, 1),
            alpha=None if self.alpha is None else number("alpha", self.alpha, above=0.0, below=1.0),
            synchronous=flag("synchronous", self.synchronous),
        )
        if self.collectives != "own" and not self.synchronous:
            raise ValueError(f"collectives={self.collectives!r}: allowed only with synchronous=True")
        for key, value, free in (("servers", self.servers, 1), ("dedicated", self.dedicated, False)):
            if self.synchronous and value != free:
                raise ValueError(f"{key}={value!r}: allowed: {free!r}; only synchronous=False has servers")

    def workers(self, ranks: int) -> int:
        return ranks - self.servers if self.dedicated else ranks


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """Downpour: asynchronous SGD around a centre c on servers; a rank waits for a server's answer, for no other rank.

    Compared by Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581.

    After the local step t (from 0) with (t + 1) % period == 0 a rank sends the servers how its weights have moved since
    it last received the centre, d = w - base; c += d; then w = base = c. Coming to rest (the end of an epoch, an
    evaluation, a checkpoint) sends what has moved since. Servers answer in the order in which messages arrive, bucket
    by bucket, between the layers they compute and while they wait. The local step is the optimiser's, and its momentum
    stays with its rank. The centre moves by the sum over the ranks, not their mean: p ranks learn as with about p times
    the rate. With one rank it is plain SGD. Under MPI the clock decides who is answered first: runs differ.

    The model that is evaluated, used by predict and saved is the centre. consensus_distance is among the ranks.

    With compression (see AdaComp) d travels packed, and base moves by what is sent of it; what returns is how far c is
    ahead of base, packed, and base and w move by that. So w - base, the residue, is what is still to be sent: c is its
    first value plus all that was trained, less all residues. A residue remains at rest, where other forms send all. A
    bucket is one message of whole layers, so chunk_bytes has no meaning, and a server may own no layer at all.

    period        steps from one exchange to the next, at least 1.
    servers       the last `servers` ranks hold the centre, each a part of it.
    dedicated     False: they train as well. True: they do not; the samples go to the others. Such a rank's weights are
                  the centre's, its batch in train_step is ignored and its loss there is NaN.
    wire_dtype    "float32", or "bfloat16" for half the bytes: d travels rounded to nearest even and base moves by the
                  rounded d, so the remainder is sent the next time; what returns is how far c is ahead of base,
                  rounded, and base and w move by that, so that base approaches c. Nothing is lost in either direction.
                  At each rest d is sent in three parts, to the precision of float32, and after it the ranks begin by
                  sending the servers their w, as float32: it saves bytes from four exchanges between two rests on.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: 1 MiB.
    chunk_bytes   a bucket travels in pieces of at most this many bytes, and of the model's size / servers; None: 2 MiB.
                  Neither is tuned: what a rank finds at a server depends on them.
    """

    name: ClassVar[str] = "parameter-server"
    residue: ClassVar[str] = "differences to the centre"
    period: int = field(default=1, metadata=about("steps from one exchange with the centre to the next"))
    servers: int = _servers()
    dedicated: bool = _dedicated()
    wire_dtype: WireDtype = _wire_dtype()
    bucket_bytes: int | None = _bucket_bytes("1 MiB")
    chunk_bytes: int | None = _chunk_bytes("2 MiB")

    def __post_init__(self) -> None:
        _check_shared(self)
        store(self, period=integer("period", self.period, 1))

    def workers(self, ranks: int) -> int:
        return ranks - self.servers if self.dedicated else ranks

    def rate_share(self, ranks: int) -> float:
        return 1 / max(self.workers(ranks), 1)


@dataclass(frozen=True, kw_only=True)
class _OuterSteps(Strategy):
    period: int = field(default=50, metadata=about("steps from one outer step to the next"))
    outer_lr: float = field(default=0.7, metadata=about("learning rate of outer steps"))
    outer_momentum: float = field(default=0.9, metadata=about("momentum of outer steps"))
    outer_nesterov: bool = field(default=False, metadata=about("Nesterov's form of outer steps"))
    fragments: int = field(default=1, metadata=about("parts of the model that take turns in a period"))
    delay: int | None = field(
        default=None,
        metadata=about(
            "steps that hide the exchange of an outer step", default="0 with one fragment, else period / fragments"
        ),
    )
    wire_dtype: WireDtype = _wire_dtype()

    not_compressed: ClassVar[str] = (
        "its outer steps multiply what they are given by outer_lr / (1 - outer_momentum), and so what is not sent too"
    )

    def __post_init__(self) -> None:
        _check_shared(self)
        store(
            self,
            period=integer("period", self.period, 1),
            outer_lr=number("outer_lr", self.outer_lr, high=1e6, above=0.0),
            outer_momentum=number("outer_momentum", self.outer_momentum, 0.0, below=1.0),
            outer_nesterov=flag("outer_nesterov", self.outer_nesterov),
            fragments=integer("fragments", self.fragments, 1, 1024),
        )
        if self.delay is not None:
            store(self, delay=integer("delay", self.delay, 0))
            if self.delay > self.period:
                raise ValueError(f"delay={self.delay} with period={self.period}: allowed: 0 to the period")


@dataclass(frozen=True, kw_only=True)
class DiLoCo(_OuterSteps):
    """Ranks train alone; every `period` steps an outer step moves all of them by the mean of what they have learnt.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), arXiv 2311.08105;
    fragments: Douillard et al., "Streaming DiLoCo with overlapping communication" (2025), arXiv 2501.18512. phi are the
    weights after the last outer step, at first the initial weights; w_r are rank r's. After each step t (from 0) with
    (t + 1) % period == 0, whatever epoch it is in,

        g = phi - mean over all ranks of w_r;  m = outer_momentum * m - outer_lr * g;  phi = phi + m;  w_r = phi.

    Between outer steps nothing is sent. The inner optimiser is any, and its moments stay with their rank. With
    outer_lr=1 and outer_momentum=0 this is PeriodicAllReduce without the mean of the moments.

    The model that is evaluated and saved is the mean of the replicas. phi and m are state: they are saved, resumed to
    the bit, and go on through Trainer.reshape. Where they were not there before, another strategy's checkpoint for
    example, or where weights are loaded, phi begins as those weights (of several replicas: their mean).

    Statistics of BatchNorm are not trained: at an outer step they become their mean over the ranks, without momentum
    and with rate 1 (less 2^-22, with "bfloat16" 2^-6, so that rounding leaves every variance above zero).

    Compression is refused: what it does not send, the outer momentum would multiply.

    period          steps from one outer step to the next, at least 1.
    outer_lr        above 0. The paper's 0.7 suits models that are trained for many periods.
    outer_momentum  at least 0 and below 1.
    outer_nesterov  Nesterov's form, the paper's: phi = phi - outer_lr * g + outer_momentum * m, with the new m. It
                    oscillates less, in short trainings and where the inner rate falls to 0 at the end.
    fragments       the model is cut into this many runs of numbers of about equal size, which take turns: run f of F is
                    exchanged after each step t with (t + 1) % period == (f + 1) * period // F % period. A period sends
                    as much as with one, in F parts, so that the peak of what is sent falls.
    delay           what the exchange after step t brings is applied after step t + delay, and so many steps hide it:
                    phi is computed from w as it was sent, and what a rank has learnt since then is added to it: w = phi
                    + (w - w that was sent). From 0 to period; None: 0 with one fragment, else period // fragments, so
                    that a fragment's exchange ends when the next one's begins. Evaluations, checkpoints and the end of
                    an epoch apply what is in flight at once.
    wire_dtype      "float32", or "bfloat16" for half the bytes: what travels is how far a rank has moved from phi, and
                    the mean of that, rounded to nearest even; all ranks end with the same bits.
    collectives     as of AllReduce.
    """

    name: ClassVar[str] = "diloco"
    collectives: Collectives = _collectives()


@dataclass(frozen=True, kw_only=True)
class NoLoCo(_OuterSteps):
    """DiLoCo by gossip: an outer step averages over a small group of ranks, drawn anew each time; no collective at all.

    Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models" (2025), arXiv
    2506.10911. Every rank has a phi of its own, its weights after its last outer step, at first the initial ones. After
    each step t (from 0) with (t + 1) % period == 0

        m = outer_momentum * m + outer_lr * mean of the group's (w - phi) + outer_lr * (mean of the group's phi - phi);
        phi = phi + m;  w = phi,

    and as both terms have the same rate, together they are outer_lr * (mean of the group's w - phi): a rank sends its
    weights, once, to the others of its group, and waits for nobody else. The groups are cut out of a permutation of the
    ranks that the seed and the step give, the same on all ranks; the last group is what is left, and a rank that is
    left over makes an outer step with its own weights. The mean of the replicas is preserved by every average.

    Model, state, statistics, compression, period, outer_lr, outer_momentum, outer_nesterov, fragments and delay: as of
    DiLoCo; phi and m are each rank's own, and the groups of every fragment are drawn anew.

    group       ranks that average, at least 2. Each sends its weights to group - 1 others.
    wire_dtype  "float32", or "bfloat16" for half the bytes: w travels rounded to nearest even, and a rank's mean is w +
                the sum of (received - own rounded w) / n: the mean of the group is preserved, and replicas agree to the
                precision of bfloat16.
    """

    name: ClassVar[str] = "noloco"
    group: int = field(default=2, metadata=about("ranks that average in an outer step"))

    def __post_init__(self) -> None:
        super().__post_init__()
        store(self, group=integer("group", self.group, 2, 4096))


@dataclass(frozen=True, kw_only=True)
class NoExchange(Strategy):
    """Models are not exchanged: p independent runs on p shards, the floor of every comparison.

    shuffle_samples  as of GossipGraD: in time every run sees all samples.
    """

    name: ClassVar[str] = "no-exchange"
    not_compressed: ClassVar[str] = "it sends nothing"
    shuffle_samples: bool = _shuffle_samples()

    def __post_init__(self) -> None:
        _check_shared(self)


BY_NAME: dict[str, type[Strategy]] = {
    c.name: c
    for c in (
        GossipGraD,
        AllReduce,
        LayerwiseAllReduce,
        PeriodicAllReduce,
        PullGossip,
        PushGossip,
        OverlappedAveraging,
        ElasticAveraging,
        ParameterServer,
        DiLoCo,
        NoLoCo,
        NoExchange,
    )
}
for _one in BY_NAME.values():
    named_keywords(_one)


def by_name(name: str, **options: Any) -> Strategy:
    """The strategy of this name with these keywords; ValueError for another name, or a keyword it does not have."""
    choice("strategy", name, BY_NAME)
    made = BY_NAME[name]
    allowed = [field.name for field in fields(made)]
    for key in options:
        if key not in allowed:
            others = [one for one, c in BY_NAME.items() if key in (field.name for field in fields(c))]
            hint = f"; {key} is one of {', '.join(others)}" if others else ""
            raise ValueError(f"{key}: not an option of strategy={name!r}; it has {', '.join(allowed)}{hint}")
    return made(**options)


def from_settings(settings: Mapping[str, Any]) -> Strategy:
    """The strategy that settings() described; other keys are ignored, and what is not there keeps its default."""
    made = BY_NAME[choice("strategy", settings["strategy"], BY_NAME)]
    return made(**{field.name: settings[field.name] for field in fields(made) if field.name in settings})
