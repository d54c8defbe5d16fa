"""No buffer in flight is ever written: every strategy runs with the check of buffers on.

That the check sees a buffer that is written is a test of the C programs (comm_cases.h, on both transports).
"""

import pytest
import test_mpi
from survival_runs import survived
from test_survival_net import SCRIPT

import gossipgrad as gg

pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

# The strategies whose bits test_mpi compares, and every other one with its defaults.
NAMES = list(dict.fromkeys([*test_mpi.RUNS, *gg.strategies.BY_NAME]))

# A message takes about as long as a step, so that buffers are in flight when the next step wants them.
SLOW = {"latency": 1e-4, "bandwidth": 1e8}


def fit(name, comm=None, epochs=2):
    if name in test_mpi.RUNS:
        trainer, history = test_mpi.fit(name, comm, epochs)
    else:
        trainer = gg.Trainer(test_mpi.net(), strategy=gg.strategies.BY_NAME[name](), comm=comm)
        train, _ = gg.data.synthetic((2, 26, 26), train=203, test=1, seed=1)
        history = trainer.fit(train, epochs=epochs, batch_size=13, progress=False)
    trainer.close()
    return history


@pytest.mark.core(40)
@pytest.mark.parametrize("name", NAMES)
def test_in_the_virtual_cluster(name, monkeypatch):
    monkeypatch.setenv("GOSSIPGRAD_CHECK_BUFFERS", "1")
    checked = fit(name, gg.VirtualCluster(5, **SLOW))
    monkeypatch.delenv("GOSSIPGRAD_CHECK_BUFFERS")
    plain = fit(name, gg.VirtualCluster(5, **SLOW))
    assert checked.weights_sha256 == plain.weights_sha256
    assert checked["virtual_seconds"] == plain["virtual_seconds"]


@pytest.mark.parametrize("name", ["default", "late", "allreduce"])
def test_where_ranks_die_and_join(name, monkeypatch):
    """Their messages pass through a view of the group, which leaves the check to the transport behind it."""

    def run():
        history = fit(name, gg.VirtualCluster(3, deaths={1: 4}, joins={6: 1}, **SLOW))
        assert [(view["died"], view["joined"]) for view in history.views] == [([1], []), ([], [3])]
        return history.weights_sha256

    monkeypatch.setenv("GOSSIPGRAD_CHECK_BUFFERS", "1")
    checked = run()
    monkeypatch.delenv("GOSSIPGRAD_CHECK_BUFFERS")
    assert checked == run()


def test_where_processes_die(tmp_path):
    case = {"deaths": [{"rank": 1, "at": "step 7"}]}
    found, _ = survived(tmp_path, SCRIPT, case, "-n", "3", GOSSIPGRAD_CHECK_BUFFERS="1")
    assert found[-1]["size"] == 2


@pytest.mark.full
@pytest.mark.parametrize("shared", ["1", "0"])
def test_under_mpi(shared, mpirun):
    text = test_mpi.IMPORT + "import test_buffers\nfor name in test_buffers.NAMES: test_buffers.fit(name, epochs=1)\n"
    mpirun(3, text, env={"GOSSIPGRAD_SHARED": shared, "GOSSIPGRAD_CHECK_BUFFERS": "1"})
