"""Start, agreement, waits, common failure and leftovers of ranks; work that must precede loading the core.

`interrupts`, `preload`, `origin`, `start`, `mpiexec` and `leftovers` work before the core is loaded.
"""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package's
