"""The plain C programs in tests/c: compiled against the core's archive and run, without Python."""

import os

import cbuild
import pytest
from conftest import run_group

LONG = ("test_gemm", "test_mpi", "test_paired", "test_plan", "test_split")


def programs() -> list:
    """Those that take long, last: they are of the full suite."""
    long = [pytest.param(p, marks=pytest.mark.full) for p in cbuild.SOURCES if p.stem in LONG]
    return [*(p for p in cbuild.SOURCES if p.stem not in LONG), *long]


def check(command, folder):
    done = run_group([str(word) for word in command], cwd=folder, env=dict(os.environ))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.core(len(cbuild.SOURCES))
@pytest.mark.parametrize("source", programs(), ids=lambda p: p.stem)
def test_program(source, objects, tmp_path, mpiexec):
    program = cbuild.build(objects, source, tmp_path)
    ranks = cbuild.ranks(source)
    check([mpiexec, "-n", ranks, "--bind-to", "none", program] if ranks else [program], tmp_path)


def test_products_of_small_matrices(objects, tmp_path):
    [source] = [p for p in cbuild.SOURCES if p.stem == "test_gemm"]
    check([cbuild.build(objects, source, tmp_path), 100000], tmp_path)


def test_there_are_programs():
    assert cbuild.SOURCES


def test_a_failing_check_fails(objects, tmp_path):
    source = tmp_path / "fails.c"
    source.write_text('#include "check.h"\nint main(void)\n{\n    CHECK(1 == 2);\n    return check_report();\n}\n')
    done = run_group([str(cbuild.build(objects, source, tmp_path))])
    assert done.returncode == 1 and "1 == 2" in done.stderr
