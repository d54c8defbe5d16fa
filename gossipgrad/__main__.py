"""python -m gossipgrad, and the console script."""

from __future__ import annotations

import os
import sys


def open_streams() -> None:
    """Opens closed standard streams, as those of "gossipgrad ... >&-", on the null device.

    Python has None in their place, and the next file that is opened, a checkpoint say, would become one of them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115, open to the end


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    open_streams()
    from gossipgrad import cli

    return cli.main(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
