"""Gossip: in a step a rank exchanges with one other rank, its partner of this step or one drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from gossipgrad import _core
from gossipgrad._core import Team
from gossipgrad.compression import AdaComp, Mode
from gossipgrad.errors import choice, integer, store
from gossipgrad.keywords import about
from gossipgrad.strategies import shared
from gossipgrad.strategies.base import Strategy
from gossipgrad.strategies.shared import Collectives, WireDtype
from gossipgrad.strategies.topologies import (
    TOPOLOGIES,
    Topology,
    check_permutations,
    check_topology,
    core_topology,
    read_topology,
)

__all__ = ["GossipGraD", "QuasiGlobal", "PullGossip", "PushGossip"]

Exchange = Literal["auto", "weights+momentum", "weights", "slices", "gradients"]

EXCHANGES = get_args(Exchange)
USUAL_SLICES = 8  # of exchange="slices"
_OF_ALLREDUCE = ("wire_dtype", "collectives", "bucket_bytes", "chunk_bytes", "shuffle_samples")  # keywords of both


@dataclass(frozen=True, kw_only=True)
class Partnered(Strategy):
    """The base of strategies whose partners follow from the step alone; GossipGraD describes the keywords."""

    topology: Topology = field(
        default="dissemination",
        metadata=about(
            f"who sends to whom: {', '.join(TOPOLOGIES)}, or a file with a table [period, ranks]: .npy, .json, text",
            metavar="NAME|FILE",
            read=read_topology,
        ),
    )
    rotate: bool = shared.option("gossipgrad", "rotate")
    permutations: int | None = shared.option("gossipgrad", "permutations")

    def __post_init__(self) -> None:
        store(self, topology=check_topology(self.topology))
        shared.check(self, but=("staleness", "exchange", "permutations"))
        store(self, permutations=check_permutations(self.permutations, self.topology, self.rotate))

    def settings(self) -> dict[str, Any]:
        made = super().settings()
        if not isinstance(self.topology, str):
            made["topology"] = [list(row) for row in self.topology]
        return made

    def options(self) -> dict[str, Any]:
        return super().options() | {"topology": core_topology(self.topology)}

    def partners_on(self, team: Team) -> tuple[int, int]:
        """(number of gossiping members, ranks of each) on this team; members are nodes if hierarchical, else ranks."""
        return team.size, 1

    def schedule(self, team: Team, seed: int) -> dict[str, Any]:
        """The report's facts about partners."""
        topology, few = core_topology(self.topology), self.permutations
        places = {"rotate": self.rotate} | ({} if few is None else {"permutations": few})
        facts = _core.schedule(topology, self.partners_on(team)[0], self.rotate, seed, few or 0)
        return {"topology": topology if isinstance(topology, str) else "table", **places, **facts}


@dataclass(frozen=True, kw_only=True)
class GossipGraD(Partnered):
    """In each step every rank exchanges with one partner, which changes from step to step.

    Daily, Vishnu, Siegel, Warfel, Amatya, "GossipGraD: Scalable Deep Learning using Gossip Communication based
    Asynchronous Gradient Descent" (2018), arXiv 1803.05880. docs/sources.md names the parts taken from it. Step t of
    training is step h = t mod k of a cycle of k steps; p ranks, r is a rank.

    topology      "dissemination": send to (r - 2^h) mod p, receive from (r + 2^h) mod p; k = ceil(log2 p).
                  "cube": both with r XOR 2^h; if this partner does not exist, the rank skips the step; k = ceil(log2
                  p).
                  "ring": send to r - 1, receive from r + 1, and vice versa in odd steps t; k = p - 1.
                  "exponential": send to (r + 2^h) mod p, receive from (r - 2^h) mod p, the one-peer exponential graph:
                  mirrored dissemination; k = ceil(log2 p).
                  "random": pairs drawn from the seed, anew for every step; for odd p one rank rests; k = 1.
                  A table, integers of shape [k, p]: rank r sends to table[h][r]; r itself or -1: it rests.
                  Without push_sum every rank that sends must receive from one rank, the others from none.
    rotate        after each cycle the ranks change places by a permutation drawn from the seed; without effect on
                  "random" and on a table.
    permutations  R, at least 1, with rotate: cycle c has the permutation of cycle c mod R; the first is that of the
                  ranks themselves. So a rank has at most 2 R k partners in "dissemination" and "exponential", R k in
                  "cube", 2 R in "ring", and never more than p - 1. None: a new one after each cycle, so that every rank
                  becomes a partner. 1 is as rotate=False. Not with "random" and a table. It is meant for compression,
                  where each partner needs a copy of the model.
    staleness     0: values sent after an update are mixed before the layer is used again: w += (received - sent) / 2,
                  which preserves the mean of the replicas.
                  1: they are mixed after the update of the next step, so that a whole step hides the exchange; moments
                  are mixed just before that update.
    exchange      "weights+momentum" (with Adam both moments), "weights", or "gradients" (for comparison, at staleness
                  0: nothing pulls the replicas together). A ring all-reduce sends 2(p-1)/p models a rank and step.
                  Gossip sends 1 of weights, 2 of weights and momentum, 3 with Adam: the latter two never send fewer
                  bytes than the ring.
                  "auto": "weights+momentum" if all ranks share memory, because a message then costs no more than
                  reading it; "weights" if they are on several machines. A virtual cluster is one machine, or, with
                  a latency or a bandwidth, several; so are MPI ranks with a Network. The choice is made with the
                  trainer and stored in checkpoints; Trainer.exchange names it.
                  "slices": "weights" with `slices`, 8 of them if that is None.
    slices        m: every bucket is cut into m slices of about equal size, and step t exchanges slice t mod m of each.
                  This sends m times fewer bytes and costs less work, also in shared memory. Nothing is lost, no memory
                  is needed, and the mean of the replicas is preserved as with whole buckets. The partners change every
                  m steps, so that each slice meets every partner: an update reaches all ranks within m * k steps. None:
                  1, whole buckets. With "weights+momentum" the momentum's slices travel with the weights'; with
                  push_sum every slice has scalars of its own. Not with "gradients".
    hierarchical  gossip between nodes. Inside a node a layer-wise all-reduce averages gradients, each rank's weighted
                  by its number of samples, so all ranks of a node have the same weights. Topology, rotate and the rest
                  then refer to nodes in place of ranks. Each rank of a node exchanges with the rank at its place in the
                  partner node. With one node this is AllReduce, with nodes of one rank plain GossipGraD, bit for bit.
    ranks_per_node  with hierarchical: nodes are this many consecutive ranks, the last one the remainder; None: the
                  ranks that share memory, in a virtual cluster all. Unequal nodes are divided: the new nodes are as
                  large as the greatest common divisor of the sizes (10 ranks by 4: five nodes of 2).
    collectives   with hierarchical: of the sums inside a node, as of AllReduce.
    push_sum      any number of ranks may send to one. Every rank has a scalar, 1 at first. It sends half of it along
                  with its weights, and becomes the mean of its own weights and the arriving ones, each weighted by
                  its scalar. Every exchange preserves the mean over the ranks of scalar * weights. Without training
                  all weights converge to the mean of the first ones; a rank's update counts with its scalar at that
                  time. The consensus model is the mean by the scalars. The table must lead from every rank to every
                  other. Weights or weights and momentum.
    wire_dtype    "float32", or "bfloat16" for half the bytes: messages are rounded to nearest even. A mix
                  then adds (received - rounded w) / 2, which preserves the mean; replicas agree to the precision of
                  bfloat16, 8 bits.
    bucket_bytes  layers are joined to buckets of at least this many bytes. None: chosen when the trainer is made, from
                  the measured cost of messages between these ranks (Trainer.tuning). No weight depends on it. None is
                  1 MiB with hierarchical, because links inside a node and between nodes differ; and with slices,
                  because these are cut out of buckets, so weights depend on it.
    chunk_bytes   a bucket travels in pieces of at most this many bytes; None: likewise, with hierarchical 2 MiB.
    mix_gamma     with the trainer's compression, above 0 and at most 0.5; None: 0.5. Two ranks that are partners in a
                  step then hold the same copy of the weights. When they meet, each takes the difference between its
                  weights and the copy, and sends the largest elements of each bin, m, as values, whatever the
                  compression's mode. An element is sent if its difference times 1 + (factor - 1) / 32 is at least the
                  max of its bin. Then w += g * (m of the partner - own m), and both copies += g * (sum of both m); g is
                  mix_gamma. The mean of the replicas is preserved, and unsent elements stay in the next difference.
                  In topologies other than "cube" and "random" a rank receives from another rank than it sends to. It
                  then exchanges with both, and g is half of mix_gamma. A rank holds a copy for each partner: without
                  rotate ceil(log2 p) for "cube", up to twice as many for "dissemination", 2 for "ring"; with
                  permutations=R at most R times as many; with rotate alone, and for "random", p - 1, the most possible.
                  At most 32 are allowed. Only weights are exchanged, not momentum. With staleness 0,
                  without slices, push_sum and hierarchical.
    allreduce_steps  N: the first N steps of a training are those of LayerwiseAllReduce(), with these collectives, sizes
                  and wire_dtype; gossip follows. Replicas are farthest apart in the first steps, where that costs
                  accuracy with few samples a rank (docs/learning_by_gossip.md). A resumed training continues to count.
                  Of a Trainer alone; not with compression, and not where ranks may die.
    shuffle_samples  the ranks' shards move around a ring during training. In each step every rank sends one batch of
                  samples with their targets to rank r - 1, and those from rank r + 1 replace them. It costs a copy of
                  the shard. A sample stays at its place in the shard, and all ranks visit the places in one order. So
                  every sample is trained on once an epoch, by the rank that holds it then. See Trainer.audit_samples.
    """

    name: ClassVar[str] = "gossipgrad"
    compression_mode: ClassVar[Mode] = "exact"
    staleness: Literal[0, 1] = shared.option("gossipgrad", "staleness")
    exchange: Exchange = shared.option("gossipgrad", "exchange", default="auto")
    slices: int | None = shared.option("gossipgrad", "slices")
    hierarchical: bool = shared.option("gossipgrad", "hierarchical")
    ranks_per_node: int | None = shared.option("gossipgrad", "ranks_per_node")
    collectives: Collectives = shared.option("gossipgrad", "collectives")
    push_sum: bool = shared.option("gossipgrad", "push_sum")
    wire_dtype: WireDtype = shared.option("gossipgrad", "wire_dtype")
    bucket_bytes: int | None = shared.option("gossipgrad", "bucket_bytes")
    chunk_bytes: int | None = shared.option("gossipgrad", "chunk_bytes")
    mix_gamma: float | None = shared.option("gossipgrad", "mix_gamma")
    allreduce_steps: int = field(
        default=0, metadata=about("an all-reduce in this many first steps of the training, then gossip")
    )
    shuffle_samples: bool = shared.option("gossipgrad", "shuffle_samples")

    def _uncompressed(self) -> list[tuple[str, Any, str]]:
        why = "each edge of the schedule has a copy of the weights that both its ranks know"
        return [
            *super()._uncompressed(),
            ("hierarchical", False, why),
            ("push_sum", False, why),
            ("staleness", 0, why),
            ("allreduce_steps", 0, why),
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
            staleness=choice("staleness", self.staleness, (0, 1)),
            exchange=choice("exchange", self.exchange, EXCHANGES),
            allreduce_steps=integer("allreduce_steps", self.allreduce_steps, 0),
        )
        super().__post_init__()
        self._check_slices()
        if self.ranks_per_node is not None and not self.hierarchical:
            raise ValueError(f"ranks_per_node={self.ranks_per_node}: allowed only with hierarchical=True")
        if self.collectives != "own" and not self.hierarchical:
            raise ValueError(f"collectives={self.collectives!r}: allowed only with hierarchical=True")
        if self.staleness and self.exchange == "gradients":
            raise ValueError(f"staleness={self.staleness} with exchange='gradients': allowed: 0, or another exchange")
        if self.push_sum and self.exchange == "gradients":
            raise ValueError("push_sum=True with exchange='gradients': allowed: 'auto', 'weights+momentum', 'weights'")

    def _check_slices(self) -> None:
        if self.exchange == "slices":
            store(self, slices=USUAL_SLICES if self.slices is None else self.slices)
            if self.slices == 1:
                raise ValueError("slices=1 with exchange='slices': allowed: at least 2, or exchange='weights'")
        if (self.slices or 1) > 1 and self.exchange == "gradients":
            raise ValueError(
                f"slices={self.slices} with exchange='gradients', which pulls no replicas together: "
                "allowed: 'auto', 'weights+momentum', 'weights', 'slices'"
            )

    @property
    def changes_after(self) -> int:
        return self.allreduce_steps

    def options_at(self, step: int) -> dict[str, Any]:
        if step >= self.allreduce_steps:
            return self.options()
        alike = {key: getattr(self, key) for key in _OF_ALLREDUCE}
        return {"name": "layerwise-allreduce", **{key: value for key, value in alike.items() if value is not None}}

    def options(self) -> dict[str, Any]:
        made = super().options() | {"exchange": "weights" if self.exchange == "slices" else self.exchange}
        del made["allreduce_steps"]
        return made

    def exchange_on(self, nodes: int) -> str:
        """The kind of exchange for ranks on `nodes` machines."""
        if self.exchange == "slices":
            return "weights"
        if self.exchange != "auto":
            return self.exchange
        return "weights+momentum" if nodes == 1 else "weights"

    def partners_on(self, team: Team) -> tuple[int, int]:
        return team.nodes(self.ranks_per_node or 0) if self.hierarchical else (team.size, 1)

    def schedule(self, team: Team, seed: int) -> dict[str, Any]:
        facts = super().schedule(team, seed)
        if (turns := self.slices or 1) > 1:
            for key in ("stages", "diffusion_steps", "meeting_steps"):
                facts[key] = None if facts[key] is None else turns * facts[key]
            facts["slices"] = turns
        if self.hierarchical:
            nodes, ranks = self.partners_on(team)
            facts |= {"nodes": nodes, "ranks_per_node": ranks}
        return facts


@dataclass(frozen=True, kw_only=True)
class QuasiGlobal(Partnered):
    """Gossip of weights whose momentum follows the mixed weights, so that ranks with unlike samples disturb each other
    less; no more bytes than GossipGraD's exchange="weights".

    Lin, Karimireddy, Stich, Jaggi, "Quasi-Global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous
    Data" (2021), arXiv 2102.04761: QG-DSGDm. A rank has weights x and momentum m, at first 0. In a step with learning
    rate lr and gradient g, weight decay included, where beta is the momentum of SGD and w' are the partner's weights:

        v = beta * m + g;  w = x - lr * v;  x' = w + (w' - w) / 2;  m' = mu * m + (1 - mu) * (x - x') / lr.

    With SGD's nesterov w = x - lr * (g + beta * v). A rank without a partner has x' = w. So m follows all that moved
    the weights, the partners' updates too. m' is made when the layer is needed again. At rest it is the optimiser's
    momentum: it is saved, resumed to the bit, and becomes that of another strategy. A learning rate of 0 keeps m.
    Statistics of BatchNorm are mixed like weights and have no momentum.

    One rank has m' = (1 - (1 - mu) * (1 - beta)) * m + (1 - mu) * g: under a constant gradient a step is as long as
    SGD's, for any mu. With mu=0 it is SGD, but for rounding. So rates of SGD suit.

    The optimiser is SGD with momentum; others are refused. Every exchange preserves the mean of the replicas. A rank
    stores one model more than GossipGraD.

    topology      as of GossipGraD; so are rotate, permutations, wire_dtype, bucket_bytes, chunk_bytes and
                  shuffle_samples.
    mu            the share of the former momentum, at least 0 and below 1. 0.9 is the authors' value. m follows the
                  weights within about 1 / ((1 - mu) * (1 - beta)) steps: short trainings want a smaller mu, such as
                  0.5. With mu=0 the mixes themselves gain momentum, and trainings on 32 ranks and more diverged.
    """

    name: ClassVar[str] = "quasi-global"
    not_compressed: ClassVar[str] = "its momentum follows whole exchanges of the weights"
    mu: float = shared.option("quasi-global", "mu")
    wire_dtype: WireDtype = shared.option("quasi-global", "wire_dtype")
    bucket_bytes: int | None = shared.option("quasi-global", "bucket_bytes")
    chunk_bytes: int | None = shared.option("quasi-global", "chunk_bytes")
    shuffle_samples: bool = shared.option("quasi-global", "shuffle_samples")


@dataclass(frozen=True, kw_only=True)
class _RandomGossip(Strategy):
    interval: int = shared.option("pull-gossip", "interval")
    probability: float = shared.option("pull-gossip", "probability")
    push_sum: bool = shared.option("pull-gossip", "push_sum")
    wire_dtype: WireDtype = shared.option("pull-gossip", "wire_dtype")
    chunk_bytes: int | None = shared.option("pull-gossip", "chunk_bytes")

    def __post_init__(self) -> None:
        shared.check(self)


@dataclass(frozen=True, kw_only=True)
class PullGossip(_RandomGossip):
    """Asynchronous gossip: now and then a rank averages its weights with the last published ones of a random other
    rank.

    Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581. After the update of
    step t with (t + 1) % interval == 0, and then with the given probability, rank r asks rank j, drawn uniformly from
    the others by (seed, r, t). Every rank publishes its weights after each update, before it mixes. When the answer has
    arrived, at the end of a step (usually the next one): w = (w + w_j) / 2. The optimiser's moments stay local.

    No rank waits for another before it settles. A pull is left out if its rank has not answered our last two, or while
    four are unanswered; the history's `exchanges_skipped` counts these. The version of w_j and the time of its arrival
    depend on the ranks' speeds, so only in a virtual cluster do two runs have the same bits.

    interval     steps from one pull to the next, at least 1.
    probability  of making a pull that is due, above 0 and at most 1.
    push_sum     False: the mean of the replicas is not preserved. True: it is, but for rounding. Every rank has a mass,
                 at first 1. The answering rank gives half of its mass away: w = (m w + m_j w_j) / (m + m_j), and
                 m + m_j is the new mass. This preserves the sum of m w over the ranks; an update counts with its rank's
                 mass. Answers then wait for the end of the other rank's step. At rest the masses become 1 again: one
                 all-reduce shifts all replicas by the same vector, which preserves their plain mean.
    wire_dtype   "float32", or "bfloat16" for half the bytes: messages are rounded to nearest even, and replicas
                 agree to the precision of bfloat16, 8 bits. With push_sum the sender adds the rounding error to its own
                 weights, which preserves the mean.
    chunk_bytes  weights travel in pieces of at most this many bytes; None: 2 MiB. The times of arrival depend on it.

    A rank stores four snapshots of its weights, and has four areas for weights that cannot be read in place. A pull
    sends a question, a note and one model.
    """

    name: ClassVar[str] = "pull-gossip"
    not_compressed: ClassVar[str] = "who reads a snapshot is not known, so nobody knows what a reader lacks"


@dataclass(frozen=True, kw_only=True)
class PushGossip(_RandomGossip):
    """Asynchronous gossip: now and then a rank sends its weights to a random other rank, which mixes them after
    arrival.

    Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581. After the update of
    step t with (t + 1) % interval == 0, and then with the given probability, rank r sends w to rank j, drawn uniformly
    from the others by (seed, r, t). At the end of each step, a rank mixes the n >= 1 models that have arrived whole:
    w = (w + sum of them) / (n + 1). The optimiser's moments stay local.

    No rank waits for another before it settles. A push is left out if its rank has not mixed our last two, or while
    four are not mixed; the history's `exchanges_skipped` counts these. The times of arrival depend on the ranks'
    speeds, so only in a virtual cluster do two runs have the same bits.

    interval     steps from one push to the next, at least 1.
    probability  of making a push that is due, above 0 and at most 1.
    push_sum     False: the mean of the replicas is not preserved. True: it is, but for rounding. Every rank has a mass,
                 at first 1. The sender gives half of its mass away with w: w = (m w + sum of m_i w_i) / (m + sum of
                 m_i), with that sum as the new mass. This preserves the sum of m w over the ranks; an update counts
                 with its rank's mass. At rest the masses become 1 again: one all-reduce shifts all replicas by the same
                 vector, which preserves their plain mean.
    wire_dtype   "float32", or "bfloat16" for half the bytes: messages are rounded to nearest even, and replicas
                 agree to the precision of bfloat16, 8 bits. With push_sum the sender adds the rounding error to its own
                 weights, which preserves the mean.
    chunk_bytes  weights travel in pieces of at most this many bytes; None: 2 MiB. The times of arrival depend on it.

    A rank stores four snapshots of its weights, and has four areas for weights that cannot be read in place. A push
    sends a note and one model.
    """

    name: ClassVar[str] = "push-gossip"
    not_compressed: ClassVar[str] = "when a model is mixed is not known to its sender, so it has no residue"
