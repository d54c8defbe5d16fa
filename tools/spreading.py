"""Draws docs/pictures/spreading.svg: an update of rank 0 reaches 16 ranks in 4 steps of gossip.

    python tools/spreading.py

In each step every rank sends to one other, the one that training uses. Messages that carry the update are in colour.
The picture moves by CSS, also as an image; where motion is not wanted it shows the last step.
"""

from __future__ import annotations

import math
from pathlib import Path

import pictures

from gossipgrad import _core

FILE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "spreading.svg"
RANKS = 16
SECONDS = 11
FIRST, STEP, TRAVEL = 10, 16, 11  # percent of the time: until the first step, of a step, of a message
SIDE, BELOW = 400, 40


def place(rank: int) -> tuple[float, float]:
    angle = 2 * math.pi * rank / RANKS - math.pi / 2
    return round(SIDE / 2 + 172 * math.cos(angle), 1), round(SIDE / 2 + 172 * math.sin(angle), 1)


def spread() -> list[set[int]]:
    """The ranks that have the update before each step, and after the last one."""
    known = [{0}]
    while len(known[-1]) < RANKS:
        step = len(known) - 1
        known.append(known[-1] | {_core.partners("dissemination", RANKS, step, one, False)[0] for one in known[-1]})
    return known


def style(steps: int) -> str:
    time = f"{SECONDS}s infinite"
    made = [
        "svg.gg .node{stroke:var(--p-gossip);stroke-width:1.5}svg.gg .number{font-size:12px;fill:var(--p-paper)}",
        "svg.gg .way{stroke:var(--p-other);stroke-width:.6;opacity:.12}",
        "svg.gg .way.new{stroke:var(--p-gossip);stroke-width:1.5;opacity:.3}",
        "svg.gg .dot{opacity:0}svg.gg .said{font-size:19px;opacity:0}svg.gg .said.last{opacity:1}",
    ]
    for step in range(steps):
        begin = FIRST + STEP * step
        arrived = begin + TRAVEL
        until = begin + STEP if step < steps - 1 else 100
        made += [
            f"@keyframes gg-dot-{step}{{0%,{begin}%{{transform:none;opacity:0}}{begin + 0.1}%{{opacity:1}}"
            f"{arrived}%{{transform:translate(var(--x),var(--y));opacity:1}}"
            f"{arrived + 0.1}%,100%{{transform:translate(var(--x),var(--y));opacity:0}}}}",
            f"@keyframes gg-way-{step}{{0%,{begin - 1}%{{opacity:0}}{begin}%,{arrived}%{{opacity:.9}}"
            f"{begin + STEP}%,100%{{opacity:.12}}}}",
            f"@keyframes gg-node-{step}{{0%,{arrived - 1}%{{fill:var(--p-paper)}}{arrived}%,100%"
            "{fill:var(--p-gossip)}}",
            f"@keyframes gg-number-{step}{{0%,{arrived - 1}%{{fill:var(--p-muted)}}{arrived}%,100%"
            "{fill:var(--p-paper)}}",
            f"@keyframes gg-said-{step}{{0%,{begin - 0.1}%{{opacity:0}}{begin}%,{until - 0.1:g}%{{opacity:1}}"
            f"{until}%,100%{{opacity:{1 if until == 100 else 0}}}}}",
        ]
        made += [f"svg.gg .{what}.s{step}{{animation:gg-{what}-{step} {time}}}" for what in ("dot", "way", "node")]
        made += [f"svg.gg .{what}.s{step}{{animation:gg-{what}-{step} {time}}}" for what in ("number", "said")]
    made += [
        f"@keyframes gg-first{{0%,{FIRST - 0.1}%{{opacity:1}}{FIRST}%,100%{{opacity:0}}}}",
        f"svg.gg .said.first{{animation:gg-first {time}}}",
        "@media(prefers-reduced-motion:reduce){svg.gg *{animation:none!important}}",
    ]
    return "\n".join(made)


def drawn() -> str:
    known = spread()
    steps = len(known) - 1
    ways, marks, nodes = [], [], []
    for step in range(steps):
        for rank in range(RANKS):
            (x, y), (to_x, to_y) = place(rank), place(_core.partners("dissemination", RANKS, step, rank, False)[0])
            new = " new" if rank in known[step] else ""
            ways.append(f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" class="way{new} s{step}"/>')
            kind, radius = ("gossip", 7) if new else ("other", 3.5)
            move = f"--x:{to_x - x:.1f}px;--y:{to_y - y:.1f}px"
            marks.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius}" class="{kind} dot s{step}" style="{move}"/>')
    for rank in range(RANKS):
        x, y = place(rank)
        learns = next(step for step in range(steps + 1) if rank in known[step])
        at = f" s{learns - 1}" if learns else ""
        nodes.append(f'<circle cx="{x:g}" cy="{y:g}" r="16" class="gossip node{at}"/>')
        nodes.append(pictures.text(x, y + 4.5, str(rank), f"number middle{at}"))
    said = [pictures.text(SIDE / 2, SIDE + 24, "rank 0 has an update", "ink said middle first")]
    for step in range(steps):
        last = " last" if step == steps - 1 else ""
        words = f"step {step + 1}: {len(known[step + 1])} of {RANKS} ranks have it"
        said.append(pictures.text(SIDE / 2, SIDE + 24, words, f"ink said middle s{step}{last}"))
    title = f"An update of rank 0 reaches {RANKS} ranks in {steps} steps; in each, every rank sends to one other"
    return pictures.document(SIDE + BELOW, title, [*ways, *marks, *nodes, *said], style(steps), SIDE)


if __name__ == "__main__":
    FILE.write_text(drawn(), encoding="utf-8")
