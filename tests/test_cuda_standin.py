"""The room csrc/cuda on a stand-in for CUDA, cuDNN and cuBLASLt: no GPU is needed.

tests/cuda/standin/standin.h says what the stand-in checks. It is no substitute for a GPU.
"""

from __future__ import annotations

import os

import cuda_build
import cuda_standin
import pytest
from conftest import run_group


def test_the_standin_itself(objects):
    environment = {**os.environ, **cuda_build.ENVIRONMENT}
    done = run_group([str(cuda_standin.program(objects))], env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def library(objects):
    return cuda_standin.library(objects)


def test_memory_queues_and_marks(objects, library, tmp_path):
    program = cuda_standin.device_program(objects, tmp_path)
    done = run_group([str(program)], env={**os.environ, "GOSSIPGRAD_CUDA_LIBRARY": str(library)})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
