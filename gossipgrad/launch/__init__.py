"""How ranks start, agree, wait, fail together, and what they leave; what must happen before the core is loaded.

`interrupts`, `preload`, `origin`, `start` and `leftovers` work before the core is loaded.
"""

from __future__ import annotations

import os

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package's
