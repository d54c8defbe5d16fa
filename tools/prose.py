"""Counts how the prose of each room reads: comments of C and Python, docstrings, Markdown pages.

    python tools/prose.py                     # every room
    python tools/prose.py csrc/comm docs/*.md # these files and folders, each by itself

Columns: sentences; words in a sentence (median, 95th percentile); sentences that open with "Of", "The same", "It";
uses of "so many", "of which", "what" outside of questions; names with MAX or MIN in them. Code, tables and
addresses are left out. A count is a hint where to look, and no test asks for it.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
C = (".c", ".h", ".cu", ".cuh", ".cpp", ".inc")
COUNTS = {
    "Of": r"^of\b",
    "The same": r"^the same\b",
    "It": r"^it\b",
    "so many": r"\bso many\b",
    "of which": r"\bof which\b",
    "what": r"\bwhat\b(?!.*\?$)",
}


def c_comments(text: str) -> Iterator[str]:
    for found in re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*(.*?)\*/|((?://[^\n]*\n\s*)+)', text, re.S):
        if found[1]:
            yield re.sub(r"\n\s*\*(?!\*)", "\n", found[1])
        elif found[2]:
            yield re.sub(r"(?m)^\s*//", "", found[2])


def python_comments(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
    block, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("#! "))
            last = token.start[0]
    yield " ".join(block)


def markdown(text: str) -> Iterator[str]:
    text = re.sub(r"```.*?```|~~~.*?~~~|<!--.*?-->", "\n\n", text, flags=re.S)
    text = re.sub(r"(?m)^\s*(\||#|!\[|:::).*$", "\n", text)
    yield re.sub(r"(?m)^\s*([-*]|\d+\.)\s+", "\n\n", text)


def sentences(prose: str) -> Iterator[str]:
    prose = re.sub(r"(?m)^(?: {4,}|\t).*$", "\n", prose)  # code and diagrams are indented
    for paragraph in re.split(r"\n\s*\n", prose):
        paragraph = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`+[^`]*`+", "CODE", paragraph))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Za-z0-9*])", " ".join(paragraph.split())):
            if len(re.findall(r"[A-Za-z]{2,}", sentence)) > 1:
                yield sentence.strip("*_([ ")


def read(path: Path) -> tuple[list[str], int]:
    """The sentences of a file, and how many names in it have MAX or MIN."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [s for part in markdown(text) for s in sentences(part)], 0
    blocks = c_comments(text) if path.suffix in C else python_comments(text)
    found = [s for block in blocks for s in sentences(block)]
    return found, len(re.findall(r"\b(?:[A-Z0-9]+_)*(?:MAX|MIN)(?:_[A-Z0-9]+)*\b", text))


def room(name: str) -> str:
    parts = name.split("/")
    if len(parts) == 1:
        return name
    if parts[0] == "docs":
        return "/".join(parts[:-1]) if len(parts) > 2 else name
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def main(arguments: list[str]) -> None:
    files = subprocess.run(["git", "ls-files", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms: dict[str, tuple[list[str], int]] = {}
    for name in files.stdout.splitlines():
        if Path(name).suffix not in (".md", ".py", *C) or not (ROOT / name).is_file():
            continue
        found, names = read(ROOT / name)
        key = next((a.rstrip("/") for a in arguments if name.startswith(a.rstrip("/"))), room(name))
        for at in (key, "all"):
            rooms.setdefault(at, ([], 0))
            rooms[at] = (rooms[at][0] + found, rooms[at][1] + names)
    print(f"{'':32}{'sentences':>10}{'median':>8}{'95 %':>6}", *(f"{c:>9}" for c in (*COUNTS, "MAX")), sep="")
    for key, (found, names) in sorted(rooms.items(), key=lambda item: (item[0] == "all", item[0])):
        words = sorted(len(s.split()) for s in found) or [0]
        figures = [sum(bool(re.search(p, s, re.I)) for s in found) for p in COUNTS.values()]
        print(f"{key:32}{len(found):>10}{words[len(words) // 2]:>8}{words[len(words) * 95 // 100]:>6}", end="")
        print(*(f"{n:>9}" for n in (*figures, names)), sep="")


if __name__ == "__main__":
    main(sys.argv[1:])
