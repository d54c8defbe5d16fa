"""The ranks' event traces as a file for chrome://tracing or https://ui.perfetto.dev.

A process a rank, with three lanes:

compute   each step; in it forward, backward and update of every layer, and the waits, whose sum is the rank's exposed
          seconds. Between steps each "change of the view", when ranks have died.
exchange  each bucket of layers, from sent and requested, over arrived, to used; with its bytes and peer.
data      "batch" and "settle", whose sum is the rank's data seconds; in them each "wait" for shuffled samples; and
          these samples' own way, from sent, over arrived, to in their places.

A GPU has two more, by its own clock: "GPU compute" (for each step "forward and backward", including overlapping parts
of the exchange, and "end", the work after them) and "GPU copy" (each "batch" on its way). Times are in microseconds
since the first span of all, on rank 0's clock.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from gossipgrad import _core
from gossipgrad.launch import agreement, stall
from gossipgrad.state.files import write_atomically

LANES = ("compute", "exchange", "data", "GPU compute", "GPU copy")
_GPU = 3  # the first lane of a device with times of its own
_EXCHANGE = 1

Span = tuple[float, float, str, int, int, int, int, int, float, int]


def _flight(span: Span, layers: Sequence[str], pid: int, number: int, zero: float) -> Iterator[dict[str, Any]]:
    """Asynchronous spans may overlap: the whole of an exchange, and in it its two parts."""
    begin, end, name, step, lane, first, last, peer, arrived, size = span
    facts: dict[str, Any] = {"step": step, "bytes": size, "peer": peer if peer >= 0 else "all"}
    if lane == _EXCHANGE:
        facts["layers"] = list(layers[first : last + 1])
        name += f" {layers[first]}" if first == last else f" {layers[first]} to {layers[last]}"
    event = {"cat": LANES[lane], "id": f"{pid}.{number}", "pid": pid, "tid": lane}
    parts = ((name, begin, end), ("under way", begin, arrived), ("arrived, not used yet", arrived, end))
    yield event | {"ph": "b", "name": parts[0][0], "ts": (begin - zero) * 1e6, "args": facts}
    for title, start, stop in parts[1:]:
        yield event | {"ph": "b", "name": title, "ts": (start - zero) * 1e6}
        yield event | {"ph": "e", "name": title, "ts": (stop - zero) * 1e6}
    yield event | {"ph": "e", "name": parts[0][0], "ts": (end - zero) * 1e6}


def events(
    rank: int, spans: Sequence[Span], nodes: Sequence[str], layers: Sequence[str], zero: float
) -> Iterator[dict[str, Any]]:
    """One rank's spans as trace events. nodes, layers: names, by the numbers in the spans; zero: the file's time 0."""
    about = {"ph": "M", "pid": rank}
    yield about | {"name": "process_name", "args": {"name": f"rank {rank}"}}
    yield about | {"name": "process_sort_index", "args": {"sort_index": rank}}
    own_times = any(span[4] >= _GPU for span in spans)
    for lane, title in enumerate(LANES if own_times else LANES[:_GPU]):
        yield about | {"name": "thread_name", "tid": lane, "args": {"name": title}}
    # By time, an outer span before its inner ones; on a virtual clock many begin at once, also the end of a step.
    for number, span in enumerate(sorted(spans, key=lambda one: (one[0], one[3], -one[1]))):
        begin, end, name, step, lane, index = span[:6]
        if lane == _EXCHANGE or span[9] > 0:  # messages; spans of samples have bytes if they are one
            yield from _flight(span, layers, rank, number, zero)
            continue
        title = name if index < 0 else f"{name} {nodes[index]}"
        place = {"pid": rank, "tid": lane, "ts": (begin - zero) * 1e6, "dur": (end - begin) * 1e6}
        yield {"ph": "X", "name": title, **place, "args": {"step": step}}


def parts(texts: Sequence[bytes], lost: Sequence[int]) -> list[bytes]:
    """The file, from every process's events as `encoded` returned them. lost: spans overwritten, by rank."""
    tail = {"displayTimeUnit": "ms", "otherData": {"spans_lost": list(lost)}}
    return [b'{"traceEvents": [\n', b",\n".join(texts), b"\n], ", json.dumps(tail)[1:].encode()]


def encoded(some: Iterator[dict[str, Any]]) -> bytes:
    """Events as JSON, without the brackets around them."""
    return ",\n".join(json.dumps(event) for event in some).encode()


def write(
    core: _core.Exchange,
    team: _core.Team,
    nodes: Sequence[str],
    layers: Sequence[str],
    path: str | os.PathLike[str],
) -> list[int]:
    """Write all ranks' spans; returns the number overwritten by newer ones, by rank. Collective."""
    where = f"step {core.step}"
    spans = [core.spans(local) for local in range(team.local)]
    own = {
        "begin": [min(span[0] for span in one) for one in spans if one],
        "lost": [core.spans_lost(local) for local in range(team.local)],
    }
    facts = [json.loads(one) for one in agreement.gather(team, json.dumps(own).encode(), where)]
    zero = min((begin for one in facts for begin in one["begin"]), default=0.0)
    lost = [number for one in facts for number in one["lost"]]
    all_events = (events(team.rank + local, one, nodes, layers, zero) for local, one in enumerate(spans))
    texts = team.gather(encoded(itertools.chain.from_iterable(all_events)))
    with agreement.agreed(team, stall.current("writing"), where):
        if texts is not None:
            write_atomically(path, *parts(texts, lost))
    return lost
