"""The plain C programs in tests/c: compiled against the core's archive and run, without Python."""

import os

import cbuild
import pytest
from conftest import run_group


@pytest.mark.parametrize("source", cbuild.SOURCES, ids=lambda p: p.stem)
def test_program(source, objects, tmp_path, mpiexec):
    program = cbuild.build(objects, source, tmp_path)
    ranks = cbuild.ranks(source)
    command = [mpiexec, "-n", str(ranks), "--bind-to", "none", str(program)] if ranks else [str(program)]
    done = run_group(command, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_there_are_programs():
    assert cbuild.SOURCES


def test_a_failing_check_fails(objects, tmp_path):
    source = tmp_path / "fails.c"
    source.write_text('#include "check.h"\nint main(void)\n{\n    CHECK(1 == 2);\n    return check_report();\n}\n')
    done = run_group([str(cbuild.build(objects, source, tmp_path))])
    assert done.returncode == 1 and "1 == 2" in done.stderr
