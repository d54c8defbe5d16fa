"""The library of CUDA, built in a source tree when a GPU is first requested.

setup.py builds it on a machine with a GPU. A tree that was installed elsewhere, as on a cluster's first node, lacks it.
"""

from __future__ import annotations

import fcntl
import glob
import importlib
import os
import subprocess
import sys

from gossipgrad.launch import FOLDER, preload

COMMAND = "GOSSIPGRAD_CUDA=on pip install -e ."


def has_gpu() -> bool:
    """True if this machine has an NVIDIA GPU and its driver, as setup.py asks as well."""
    return any(glob.glob(f"/dev/{name}") for name in ("nvidia[0-9]*", "nvidiactl", "dxg"))


def build() -> None:
    """Build the library if there are a GPU and a source tree, and it is missing. The first rank of a host builds, and
    the others wait. NotImplementedError if it cannot be built."""
    library, root = os.path.join(FOLDER, "_cuda.so"), os.path.dirname(FOLDER)
    wanted = not os.environ.get("GOSSIPGRAD_CUDA_LIBRARY") and os.environ.get("GOSSIPGRAD_CUDA") != "off"
    sources = all(os.path.exists(os.path.join(root, name)) for name in ("setup.py", "csrc/cuda"))
    if not wanted or os.path.exists(library) or not sources or not has_gpu():
        return  # a core without the library raises an error with advice
    facts = preload.build_facts()
    try:
        with open(os.path.join(root, facts.OBJECTS, "cuda.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(library):
                print(
                    "gossipgrad: building the library of CUDA, once, which takes a minute or more",
                    file=sys.stderr,
                    flush=True,
                )
                choices = {"GOSSIPGRAD_CUDA": "on", "GOSSIPGRAD_BUILD": facts.VARIANT}
                done = subprocess.run(
                    [sys.executable, "setup.py", "cuda"],
                    cwd=root,
                    env={**os.environ, **choices, "GOSSIPGRAD_ISAS": ",".join(facts.ISAS)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
                if done.returncode:
                    raise NotImplementedError(
                        f"device 'cuda': its library cannot be built in {root}; once that is mended, {COMMAND!r} there "
                        f"builds it:\n{done.stdout[-2000:].strip()}"
                    )
    except OSError as error:
        raise NotImplementedError(
            f"device 'cuda': its library is not built, and {root} cannot be written ({error}): {COMMAND}"
        ) from error
    importlib.reload(facts)
