"""Changes of the group while fit trains: ranks have died, and the others go on."""

from __future__ import annotations

from typing import Any

from gossipgrad.errors import counted

Record = dict[str, Any]


def said(change: Record) -> str:
    """A line about a change of the view."""
    died = " and ".join(str(rank) for rank in change["died"])
    who = f"rank {died} has" if len(change["died"]) == 1 else f"ranks {died} have"
    left, again = counted(len(change["ranks"]), "rank"), counted(change["trained_again"], "sample")
    goes = "goes" if len(change["ranks"]) == 1 else "go"
    return f"step {change['step']}: {who} died; {left} {goes} on; {again} trained again"
