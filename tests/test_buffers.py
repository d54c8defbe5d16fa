"""No buffer in flight is ever written: every strategy runs with the check of buffers on.

That the check sees a buffer that is written is a test of the C programs (comm_cases.h, on both transports).
"""

import pytest
import test_mpi

import gossipgrad as gg

pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

# A message takes about as long as a step, so that buffers are in flight when the next step wants them.
SLOW = {"latency": 1e-4, "bandwidth": 1e8}


def test_every_strategy_is_there():
    assert {type(run[0]) for run in test_mpi.RUNS.values()} == set(gg.strategies.BY_NAME.values())


@pytest.mark.parametrize("name", test_mpi.RUNS)
def test_in_the_virtual_cluster(name, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_CHECK_BUFFERS", "1")
    _, checked = test_mpi.fit(name, gg.VirtualCluster(5, **SLOW))
    monkeypatch.delenv("GOSSIPGRAD_CHECK_BUFFERS")
    _, plain = test_mpi.fit(name, gg.VirtualCluster(5, **SLOW))
    assert checked.weights_sha256 == plain.weights_sha256
    assert checked["virtual_seconds"] == plain["virtual_seconds"]


@pytest.mark.parametrize("shared", ["1", "0"])
def test_under_mpi(shared, mpirun):
    text = test_mpi.IMPORT + "for name in test_mpi.RUNS: test_mpi.fit(name, epochs=1)\n"
    mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared, "GOSSIPGRAD_CHECK_BUFFERS": "1"})
