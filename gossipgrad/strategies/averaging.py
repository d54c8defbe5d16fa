"""Averages over all ranks: of gradients in every step, of weights now and then, or none at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gossipgrad.errors import choice, integer, store
from gossipgrad.strategies import shared
from gossipgrad.strategies.base import Strategy
from gossipgrad.strategies.shared import Collectives, WireDtype

__all__ = ["AllReduce", "LayerwiseAllReduce", "PeriodicAllReduce", "OverlappedAveraging", "NoExchange"]

PARTITIONS = ("auto", True, False)


@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy):
    """The mean of all ranks' gradients, in one blocking all-reduce after the backward pass.

    With compression gradients are cut into messages of at least 4 MiB, in whole layers. One message travels while the
    next is packed and the weights of arrived ones are updated, unless the optimiser needs norms.

    wire_dtype   "float32", or "bfloat16" for half the bytes: gradients and their sum travel rounded to nearest even,
                 the sum is made in float32, and all ranks end with the same bits.
    collectives  "own": sums are made in the order of ranks, so MPI, the virtual cluster and every run give the same
                 bits.
                 "mpi": by the MPI library's MPI_Iallreduce, in an order of its choice. All ranks still end with the
                 same bits, but these differ from "own" and perhaps from run to run. It needs float32 on the wire and
                 ranks under MPI, without network= of the trainer, which cannot hold MPI's own messages back. The
                 library's traffic is unknown: bytes_sent and messages_sent count the need of a reduce-scatter and an
                 all-gather. The awaited rank is unknown, too: after `timeout` the error names the sum, its layers and
                 step, but no rank.
    """

    name: ClassVar[str] = "allreduce"
    residue: ClassVar[str] = "gradients"
    replicas_differ: ClassVar[bool] = False
    wire_dtype: WireDtype = shared.option("allreduce", "wire_dtype")
    collectives: Collectives = shared.option("allreduce", "collectives")

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        shared.check(self)


@dataclass(frozen=True, kw_only=True)
class LayerwiseAllReduce(Strategy):
    """AllReduce with the same bits, hidden behind the backward pass.

    The reduction of a bucket starts when the gradients of its layers are final, the last layers first.

    wire_dtype, collectives  as of AllReduce; with "mpi" the bits may differ from AllReduce's.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: chosen as for GossipGraD.
    chunk_bytes   a bucket is reduced in pieces of at most this many bytes; None: chosen likewise.
    """

    name: ClassVar[str] = "layerwise-allreduce"
    residue: ClassVar[str] = "gradients"
    replicas_differ: ClassVar[bool] = False
    wire_dtype: WireDtype = shared.option("layerwise-allreduce", "wire_dtype")
    collectives: Collectives = shared.option("layerwise-allreduce", "collectives")
    bucket_bytes: int | None = shared.option("layerwise-allreduce", "bucket_bytes")
    chunk_bytes: int | None = shared.option("layerwise-allreduce", "chunk_bytes")

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        shared.check(self)


@dataclass(frozen=True, kw_only=True)
class PeriodicAllReduce(Strategy):
    """Local SGD: every rank trains alone, and now and then weights and moments become the plain mean over all ranks.

    period       average after each step t (from 0) with (t + 1) % period == 0, counted over epochs; an integer of at
                 least 1, or "log2": max(1, ceil(log2 p)) for p ranks.
    wire_dtype   "float32", or "bfloat16" for half the bytes: values travel rounded to nearest even. The answer, also
                 bfloat16, is the difference to add: mean of the rounded - rounded w. So small updates that
                 bfloat16 cannot represent are not lost; replicas agree to the precision of bfloat16.
    collectives  as of AllReduce.
    shuffle_samples  as of GossipGraD.

    With compression a rank sends how far its weights have moved since the last mean. All ranks continue from that mean
    plus the mean of the sent values; moments stay each rank's own. During the warm-up, and once after weights have been
    loaded, whole weights and moments are averaged.
    """

    name: ClassVar[str] = "periodic-allreduce"
    residue: ClassVar[str] = "displacements"
    period: int | Literal["log2"] = shared.option("periodic-allreduce", "period", default="log2")
    wire_dtype: WireDtype = shared.option("periodic-allreduce", "wire_dtype")
    collectives: Collectives = shared.option("periodic-allreduce", "collectives")
    shuffle_samples: bool = shared.option("periodic-allreduce", "shuffle_samples")

    def _sums_over_ranks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        shared.check(self, but=("period",))
        if not isinstance(self.period, str):
            store(self, period=integer("period", self.period, 1))
        elif self.period != "log2":
            raise ValueError(f"period={self.period!r}: allowed: 'log2', or an integer of at least 1")


@dataclass(frozen=True, kw_only=True)
class OverlappedAveraging(Strategy):
    """AllReduce with the same bits; each rank updates 1/p of the weights and stores their optimiser's state alone.

    Lee, Agrawal, Balaprakash, Choudhary, Liao (2018). In the backward pass, when the gradients of a bucket are final,
    rank i receives slice i of it from all ranks. Rank i adds them in the order of ranks, updates the slice, and sends
    it to all. The next forward pass waits for a bucket's weights when it needs them, so half of the traffic can hide
    behind it.

    overlap       False: everything is exchanged after the backward pass, for comparison.
    partition_fc  of linear layers. True: instead of the weight's gradient ranks exchange the layer's inputs, sent in
                  the forward pass, and the errors of its outputs. Rank i receives all inputs and the errors of the
                  outputs in its slice, and computes this slice of every rank's gradient itself.
                  "auto": in every step, for the layers that then send fewer bytes: with B samples of all ranks
                  4*B*(inputs + outputs/p) against 4*inputs*outputs (2 for "bfloat16"). Layers with less than 64 KiB of
                  weights are left alone.
                  False: for no layer. The bits are the same. The history's `partitioned_fc` names the layers.
    wire_dtype    of gradients, as of AllReduce, whose bits it then has. Weights, inputs and errors travel as float32,
                  so "bfloat16" needs three quarters of the bytes of an exchange of gradients.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: chosen as for GossipGraD.
    chunk_bytes   a bucket travels in pieces of at most this many bytes; None: chosen likewise.
    """

    name: ClassVar[str] = "overlapped-averaging"
    not_compressed: ClassVar[str] = "its ranks receive weights, of which every element is used in the next step"
    replicas_differ: ClassVar[bool] = False
    overlap: bool = shared.option("overlapped-averaging", "overlap")
    partition_fc: bool | Literal["auto"] = shared.option("overlapped-averaging", "partition_fc")
    wire_dtype: WireDtype = shared.option("overlapped-averaging", "wire_dtype")
    bucket_bytes: int | None = shared.option("overlapped-averaging", "bucket_bytes")
    chunk_bytes: int | None = shared.option("overlapped-averaging", "chunk_bytes")

    def __post_init__(self) -> None:
        shared.check(self, but=("partition_fc",))
        store(self, partition_fc=choice("partition_fc", self.partition_fc, PARTITIONS))


@dataclass(frozen=True, kw_only=True)
class NoExchange(Strategy):
    """Models are not exchanged: p independent runs on p shards, the floor of every comparison.

    shuffle_samples  as of GossipGraD: in time every run sees all samples.
    """

    name: ClassVar[str] = "no-exchange"
    not_compressed: ClassVar[str] = "it sends nothing"
    shuffle_samples: bool = shared.option("no-exchange", "shuffle_samples")

    def __post_init__(self) -> None:
        shared.check(self)
