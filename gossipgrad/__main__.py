"""python -m gossipgrad, and the console script."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    from gossipgrad import cli

    return cli.main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
