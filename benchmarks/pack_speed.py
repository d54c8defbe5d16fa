"""Packing and unpacking of messages (csrc/exchange/codec/packed.h) beside a copy of the same floats, on one core.

    python benchmarks/pack_speed.py
    python benchmarks/pack_speed.py --elements 250000 --bin 50 --mode exact --isa avx2

In every round the copy, gg_pack, gg_unpack_add and gg_unpack_pieces take turns on arrays that the compression of random
gradients has brought into a steady state; seconds are the thread's own CPU time, and each figure is the median over the
rounds. GB/s are of the floats that go in. `share` is the rate of packing and unpacking together over that of the copy,
floats for floats; `pieces_share` the same where the sum is no array, as in an all-reduce, but is given out piece by
piece. `traffic_share` is `share` in moved bytes: 8 for each float of the copy, 12 for packing, which reads gradient and
residue and writes the residue. Sent bytes do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gossipgrad import _core
from gossipgrad.launch import preload

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import cbuild  # noqa: E402  how the C programs are linked with the core

MODES = ("strict", "safe", "exact")
SIZES = (25_000, 250_000, 2_000_000, 16_000_000)


def measure(program: Path, isa: str, elements: int, width: int, mode: str, values: str, rounds: int) -> dict:
    words = [isa, str(elements), str(width), str(MODES.index(mode)), str(int(values == "bfloat16")), str(rounds)]
    done = subprocess.run([str(program), *words], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    copy, pack, unpack, pieces = (statistics.median(found[name]) for name in ("copy", "pack", "unpack", "pieces"))
    share, pieces_share = (
        statistics.median(c / (p + u) for c, p, u in zip(found["copy"], found["pack"], found[how], strict=True))
        for how in ("unpack", "pieces")
    )
    gigabytes = 4e-9 * elements
    return {
        "isa": isa,
        "elements": elements,
        "bin": width,
        "mode": mode if mode != "exact" else f"exact, {values}",
        "sent": found["sent"],
        "copy_gbs": round(gigabytes / copy, 2),
        "pack_gbs": round(gigabytes / pack, 2),
        "unpack_gbs": round(gigabytes / unpack, 2),
        "pieces_gbs": round(gigabytes / pieces, 2),
        "both_gbs": round(gigabytes / (pack + unpack), 2),
        "share": round(share, 3),
        "pieces_share": round(pieces_share, 3),
        "traffic_share": round(1.5 * share, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--bin", type=int, action="append", help="default: 50 and 500")
    parser.add_argument("--mode", choices=MODES, default="strict")
    parser.add_argument("--values", choices=("float32", "bfloat16"), default="float32", help="of mode exact")
    parser.add_argument("--isa", choices=_core.info()["isas"], default=_core.info()["isa"])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        objects = ROOT / preload.build_facts().OBJECTS
        program = cbuild.build(objects, ROOT / "benchmarks" / "pack_speed.c", Path(folder))
        for width in arguments.bin or (50, 500):
            for elements in arguments.elements or SIZES:
                options = (arguments.isa, elements, width, arguments.mode, arguments.values, arguments.rounds)
                print(json.dumps(measure(program, *options)), flush=True)


if __name__ == "__main__":
    main()
