"""Ranks that train around a common centre, stored on all of them or on a few servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gossipgrad.strategies import shared
from gossipgrad.strategies.base import Strategy
from gossipgrad.strategies.shared import Collectives, WireDtype

__all__ = ["ElasticAveraging", "ParameterServer"]


@dataclass(frozen=True, kw_only=True)
class ElasticAveraging(Strategy):
    """EASGD: ranks train alone, tied to a common centre c by an elastic force; with a momentum optimiser, EAMSGD.

    Compared by Jin, Yuan, Iandola, Keutzer, "How to scale distributed deep learning?" (2016), arXiv 1611.04581.

    After the local step t (from 0) with (t + 1) % period == 0, from the weights w after that step and the current
    centre: s = alpha * (w - c); c += s; w -= s. (The EAMSGD of their code computes s before the local step and
    subtracts it after; here both are after it.) Momentum stays with its rank. At first c is the initial weights.

    The centre is the model of evaluate, predict and save. consensus_distance is among the ranks.

    With compression (see AdaComp) both sides move by the sent part of s, so every exchange preserves the sum of c and
    of all w. The unsent part moves neither side: w - c keeps it, and the next s is made of w - c. So no residue is
    carried from exchange to exchange or into checkpoints, and the report's residue is 0. The choice needs the memory of
    one more model. Not synchronous: the distance of w from the server's knowledge of it travels to the server, and the
    residue is the part not sent yet.

    period       steps from one exchange to the next, at least 1.
    alpha        the force. None: 0.8 / p, or 0.9 / p if not synchronous, for p ranks that train. Above 0 and below 2 /
                 (p + 1), or 1 if not synchronous: beyond, the centre diverges.
    synchronous  True: all ranks exchange at once and from the same c, to which the sum of their s is added. Every rank
                 stores c, and an all-reduce replaces the server.
                 False: c lies on servers. Every rank exchanges at its own time and waits only for a server's answer.
    wire_dtype   "float32", or "bfloat16" for half the bytes: s is rounded to nearest even. The rounded s moves both
                 sides, so every exchange preserves the sum of c and of all w, and no small s is lost. Synchronous:
                 the sum of s is rounded once more, and the rank that adds it adds the difference to its w. Not
                 synchronous: the distance of w from the server's knowledge of it travels to the server, rounded. The
                 server adds it and makes s from the result. After each rest (see ParameterServer) the ranks first
                 send their w, as float32.
    collectives  if synchronous: as of AllReduce.
    servers, dedicated, bucket_bytes, chunk_bytes
                 if not synchronous: as of ParameterServer.
    """

    name: ClassVar[str] = "elastic-averaging"
    residue: ClassVar[str] = "differences to the centre"
    period: int = shared.option("elastic-averaging", "period")
    alpha: float | None = shared.option("elastic-averaging", "alpha")
    synchronous: bool = shared.option("elastic-averaging", "synchronous")
    wire_dtype: WireDtype = shared.option("elastic-averaging", "wire_dtype")
    collectives: Collectives = shared.option("elastic-averaging", "collectives")
    servers: int = shared.option("elastic-averaging", "servers")
    dedicated: bool = shared.option("elastic-averaging", "dedicated")
    bucket_bytes: int | None = shared.option("elastic-averaging", "bucket_bytes")
    chunk_bytes: int | None = shared.option("elastic-averaging", "chunk_bytes")

    def _sums_over_ranks(self) -> bool:
        return self.synchronous

    def __post_init__(self) -> None:
        shared.check(self)
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

    After the local step t (from 0) with (t + 1) % period == 0 a rank sends the servers how far its weights have moved
    since it last received the centre, d = w - base; c += d; then w = base = c. Coming to rest (the end of an epoch, an
    evaluation, a checkpoint) sends the movement since then. Servers answer in the order of arrival, bucket by bucket,
    between the layers they compute and while they wait. The local step is the optimiser's, and its momentum
    stays with its rank. The centre moves by the sum over the ranks, not their mean: p ranks learn as with about p times
    the rate. With one rank it is plain SGD. Under MPI the clock decides the order of answers, so runs differ.

    The centre is the model of evaluate, predict and save. consensus_distance is among the ranks.

    With compression (see AdaComp) d travels packed, and base moves by the sent part. The answer is c - base, packed,
    and moves base and w. So w - base, the residue, is still to be sent: c is its first value plus all training, less
    all residues. A residue remains at rest, while other forms send everything. A bucket is one message of whole layers,
    so chunk_bytes has no meaning, and a server may own no layer at all.

    period        steps from one exchange to the next, at least 1.
    servers       the last `servers` ranks hold the centre, each a part of it.
    dedicated     False: they train as well. True: they do not; the samples go to the others. Such a rank's weights are
                  the centre's, its batch in train_step is ignored and its loss there is NaN.
    wire_dtype    "float32", or "bfloat16" for half the bytes. d travels rounded to nearest even and base moves by the
                  rounded d, so the remainder is sent the next time. The answer is c - base, rounded, and moves base and
                  w, so that base approaches c. Nothing is lost in either direction.
                  At each rest d is sent in three parts, to the precision of float32, and after it the ranks first
                  send the servers their w, as float32. So it saves bytes from four exchanges between two rests on.
    bucket_bytes  layers are joined to buckets of at least this many bytes; None: 1 MiB.
    chunk_bytes   a bucket travels in pieces of at most this many bytes, and of the model's size / servers; None: 2 MiB.
                  Neither is tuned, because a server's answers depend on them.
    """

    name: ClassVar[str] = "parameter-server"
    residue: ClassVar[str] = "differences to the centre"
    period: int = shared.option("parameter-server", "period")
    servers: int = shared.option("parameter-server", "servers")
    dedicated: bool = shared.option("parameter-server", "dedicated")
    wire_dtype: WireDtype = shared.option("parameter-server", "wire_dtype")
    bucket_bytes: int | None = shared.option("parameter-server", "bucket_bytes")
    chunk_bytes: int | None = shared.option("parameter-server", "chunk_bytes")

    def __post_init__(self) -> None:
        shared.check(self)

    def workers(self, ranks: int) -> int:
        return ranks - self.servers if self.dedicated else ranks

    def rate_share(self, ranks: int) -> float:
        return 1 / max(self.workers(ranks), 1)
