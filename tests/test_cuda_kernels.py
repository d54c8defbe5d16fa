"""The own CUDA kernels, compiled for the host against an emulation of a GPU: no GPU is needed.

tests/cuda/emulation/emulation.h says what is emulated and what is checked.
"""

from __future__ import annotations

import os
import shutil

import cuda_build
import pytest
from conftest import run_group

pytestmark = [pytest.mark.full, pytest.mark.skipif(shutil.which(cuda_build.CXX) is None, reason="no g++ here")]


@pytest.fixture(scope="module", params=list(cuda_build.VARIANTS))
def programs(request, objects):
    return cuda_build.build(objects, request.param), request.param


def run_program(programs, *words):
    built, _ = programs
    return run_group([str(built[words[0]]), *words[1:]], env={**os.environ, **cuda_build.ENVIRONMENT})


@pytest.mark.parametrize("name", [path.stem for path in cuda_build.PROGRAMS])
def test_program(programs, name):
    done = run_program(programs, name)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("mistake", ["read", "write", "misaligned"])
def test_a_planted_mistake_is_seen(programs, mistake):
    done = run_program(programs, "test_emulation", mistake)
    assert done.returncode != 0
    if mistake == "misaligned":
        words = "misaligned address"
    else:
        words = "AddressSanitizer: heap-buffer-overflow" if programs[1] == "asan" else "out of bounds"
    assert words in done.stderr
