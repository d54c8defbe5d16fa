"""Arrays of a caller: what a state of an exchange holds, and what goes on from it."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from conftest import run_group
from exchange_cases import SMALL, STRATEGIES, P, all_step, assert_same, made

import gossipgrad as gg


@pytest.mark.parametrize("latency", [0.0, 1e-6])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "gossip hierarchical"])
def test_saved_and_loaded_it_goes_on_to_the_bit(name: str, latency: float, tmp_path: Any) -> None:
    x, y = (made(STRATEGIES[name], comm=gg.VirtualCluster(P, latency=latency)) for _ in range(2))
    all_step(x, 3)
    x.save(tmp_path / "state.npz")
    y.load(tmp_path / "state.npz")
    assert y.steps == 3
    all_step(x, 4)
    all_step(y, 4)
    assert_same(x, y)
    assert x.counts()["clock_seconds"] == y.counts()["clock_seconds"]


@pytest.mark.parametrize("p", [1, 2, 5])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("server", "server of one")])
def test_on_other_ranks_all_begin_alike(name: str, p: int) -> None:
    x, y = made(STRATEGIES[name]), made(STRATEGIES[name], p=p)
    all_step(x, 3)
    state = x.state_dict()
    y.load_state_dict(state)
    assert y.steps == 3
    after = y.state_dict()["ranks"]
    for arena, arrays in after[0].items():
        for key in arrays:
            if arena == "weight":
                expected = state["consensus"][key]
            else:
                expected = np.mean([part[arena][key].astype(np.float64) for part in state["ranks"]], axis=0)
            for part in after:
                np.testing.assert_allclose(part[arena][key], expected, rtol=1e-6, atol=1e-7, err_msg=f"{arena} {key}")
    all_step(y, 2)


@pytest.mark.parametrize("name", ["server", "server of one"])
def test_servers_on_other_ranks(name: str) -> None:
    x, y = made(STRATEGIES[name]), made(STRATEGIES[name], p=5)
    all_step(x, 3)
    y.load_state_dict(x.state_dict())
    for key, array in x.consensus_weights().items():
        np.testing.assert_array_equal(y.consensus_weights()[key], array)
    all_step(y, 2)


def test_counts_leave_a_rank_alone_that_is_in_a_step() -> None:
    """Else they would write the residue while the step writes it. Rank 1 asks while rank 0 waits for its message."""
    x = gg.Exchange(
        {"w": np.ones(500, np.float32)},
        comm=gg.VirtualCluster(2),
        strategy=gg.AllReduce(),
        optimizer=gg.SGD(lr=1e-12),  # the weights remain ones
        compression=gg.AdaComp(bin_size=50, dense_below=1, warmup=0),
    )
    gradient = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    asked: list[float] = []

    def train(replica: gg.Replica) -> None:
        asked.append(x.counts(0)["residue"])
        replica.step({"w": gradient})

    x.run(train)
    first, busy = asked
    assert first == 0
    left = x.counts(0)["residue"]
    assert 0 < left < busy  # what rank 0 had sent was still part of its residue
    x.settle()
    assert x.counts(0)["residue"] == left


def test_compression_is_saved_as_well() -> None:
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    x, y = made(gg.AllReduce(), **options), made(gg.AllReduce(), **options)
    all_step(x, 3)
    assert x.counts()["residue"] > 0
    y.load_state_dict(x.state_dict())
    all_step(x, 2)
    all_step(y, 2)
    assert_same(x, y)


def test_a_state_goes_on_with_another_strategy() -> None:
    x, y = made(gg.GossipGraD(topology="ring")), made(gg.AllReduce(), optimizer=gg.Adam(lr=0.01))
    all_step(x, 3)
    y.load_state_dict(x.state_dict())
    for name, array in x.consensus_weights().items():
        for replica in y.replicas:
            np.testing.assert_array_equal(replica.weights[name], array)
    assert y.consensus_distance() < 1e-6 and y.steps == 3
    all_step(y, 1)


@pytest.mark.parametrize("strategy", [gg.DiLoCo(period=2), gg.NoLoCo(period=2)], ids=["diloco", "noloco"])
def test_outer_steps_of_a_state_without_them_begin_at_the_consensus(strategy: gg.Strategy) -> None:
    """An outer step moves from the outer weights to what is learnt since: here nothing, so the weights stay."""
    start = {"w": np.arange(1, 5, dtype=np.float32)}
    with gg.Exchange(start, strategy=gg.AllReduce(), comm=gg.VirtualCluster(2)) as x:
        state = x.state_dict()
    with gg.Exchange({"w": np.zeros(4)}, strategy=strategy, optimizer=gg.SGD(lr=0.1), comm=gg.VirtualCluster(2)) as y:
        y.load_state_dict(state)
        for _ in range(2):
            y.step([{"w": np.zeros(4)}] * 2)
        for replica in y.replicas:
            np.testing.assert_array_equal(replica.weights["w"], start["w"])


def test_moments_that_begin_later_count_from_there() -> None:
    """Adam's first steps are as long as its rate, whenever its moments begin; and so they are after another load."""
    x = gg.Exchange({"w": np.zeros(3)}, optimizer=gg.SGD(lr=0.1))
    for _ in range(50):
        x.step({"w": np.zeros(3)})
    y, z = (gg.Exchange({"w": np.ones(3)}, optimizer=gg.Adam(lr=0.01)) for _ in range(2))
    y.load_state_dict(x.state_dict())
    y.step({"w": np.ones(3)})
    np.testing.assert_allclose(y.weights["w"], -0.01, rtol=1e-5)
    z.load_state_dict(y.state_dict())
    z.step({"w": np.ones(3)})
    np.testing.assert_allclose(z.weights["w"], -0.02, rtol=1e-5)


@pytest.mark.parametrize("here", [gg.Adam(lr=0.01), gg.LARS(lr=0.01), gg.Lion()], ids=lambda o: o.name)
def test_moments_of_another_kind_of_optimizer_begin_at_zero(here: gg.Optimizer) -> None:
    """All call theirs "momentum", but Adam's is a mean of gradients, and LARS's of their scaled ones."""
    x = gg.Exchange({"w": np.ones((3, 3))}, optimizer=gg.SGD(lr=0.01, momentum=0.9))
    for _ in range(5):
        x.step({"w": np.full((3, 3), 10.0)})
    y, z = (gg.Exchange({"w": np.ones((3, 3))}, optimizer=here) for _ in range(2))
    y.load_state_dict(x.state_dict())
    z.load_weights({"w": x.weights["w"]})
    for one in (y, z):
        one.step({"w": np.ones((3, 3))})
    np.testing.assert_array_equal(y.weights["w"], z.weights["w"])


def test_copies_of_other_partners_begin_anew() -> None:
    """A loaded exchange then has the copies of one that was never trained, and the weights of the state."""
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    kinds = {"topology": "ring"}, {"topology": "dissemination"}, {"topology": "ring", "permutations": 2}
    x, other, few = (made(gg.GossipGraD(**one), **options) for one in kinds)
    same = made(gg.GossipGraD(topology="ring"), **options)
    copies = [name for name, kind in x.core.arenas().items() if kind == "copy"]
    assert copies and set(copies) <= set(other.core.arenas())
    all_step(x, 3)
    state = x.state_dict()
    same.load_state_dict(state)
    assert_same(x, same)
    for one in (other, few):
        one.load_state_dict(state)
        for part in one.state_dict()["ranks"]:
            for name in copies:
                assert not any(array.any() for array in part[name].values())


def test_a_residue_that_means_something_else_is_refused() -> None:
    options = {"compression": gg.AdaComp(bin_size=20, dense_below=1, warmup=0), "optimizer": gg.SGD(lr=0.1)}
    x, y, plain = made(gg.AllReduce(), **options), made(gg.PeriodicAllReduce(period=2), **options), made()
    all_step(x, 3)
    state = x.state_dict()
    with pytest.raises(ValueError, match=r"state: its residue is of gradients \(strategy 'allreduce'\), here it is of"):
        y.load_state_dict(state)
    plain.load_state_dict(state)  # has no residue
    for wrong in ({"strategy": 3}, {"strategy": {"strategy": "none of it"}}, {"optimizer": {}}):
        with pytest.raises(ValueError, match="state: "):
            y.load_state_dict(state | wrong)


def test_a_learning_rate_that_was_set_goes_on(tmp_path: Any) -> None:
    """In a file as well; another lr or schedule of the loading optimiser counts more, as in a trainer's checkpoint."""
    x, y, again = (made(gg.GossipGraD(**SMALL)) for _ in range(3))
    x.learning_rate = 0.003
    all_step(x, 2)
    x.save(tmp_path / "x.npz")
    y.load(tmp_path / "x.npz")
    assert y.learning_rate == 0.003
    for one in (x, y):
        all_step(one, 2)
    assert_same(x, y)
    other = made(gg.GossipGraD(**SMALL), optimizer=gg.SGD(lr=0.2, momentum=0.9))
    other.load(tmp_path / "x.npz")
    assert other.learning_rate == 0.2
    state = x.state_dict()
    with pytest.raises(ValueError, match="state: learning_rate=-1"):
        y.load_state_dict(state | {"learning_rate": -1})
    del state["learning_rate"]
    again.load_state_dict(state)
    assert again.learning_rate == 0.1


# Not a server: the order of its workers depends on other load of the machine.
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "server"])
def test_a_step_that_only_began_is_left(name: str) -> None:
    """Weights that are asked for in vain, and a settle in between, change no more than the settle."""
    x, y = made(STRATEGIES[name]), made(STRATEGIES[name])

    def begin(replica: Any) -> None:
        replica.begin()
        if replica.trains:
            replica.need("w")
        replica.begin()

    for _ in range(3):
        all_step(x, 1)
        all_step(y, 1)
        y.run(begin)
        assert y.core.under_way(0) and not y.core.under_way(0, True)
        x.settle()
        y.settle()
    assert_same(x, y)


def test_wrong_states(tmp_path: Any) -> None:
    x = made(p=2)
    state = x.state_dict()
    for change, text in (
        ({"format": 7}, "not what state_dict"),
        ({"workers": 0}, "state: workers=0"),
        ({"ranks": state["ranks"][:1]}, "state: workers=2: allowed: .* 1"),
        ({"clocks": [[1.0, 2.0]] * 2}, "three times of each of 2 ranks"),
        ({"clocks": [[1.0, 2.0, -1.0]] * 2}, "clocks"),
        ({"seed": 6}, "of seed 6; this exchange has seed 5"),
        ({"consensus": {"w": np.zeros((30, 7))}}, "missing"),
    ):
        with pytest.raises(ValueError, match=text):
            x.load_state_dict(state | change)
    with pytest.raises(ValueError, match="no array is named 'v'"):
        x.load_weights({"v": np.ones(1)})
    for missing in state:
        if missing not in ("strategy", "optimizer", "compression", "learning_rate", "clocks", "push_sum_since"):
            # without those the settings of here count
            with pytest.raises(ValueError, match="not what state_dict"):
                x.load_state_dict({key: value for key, value in state.items() if key != missing})
    x.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    np.save(tmp_path / "array.npy", np.ones(3))
    array = (tmp_path / "array.npy").read_bytes()
    for damaged in (b"PK and more", b"", whole[:10], whole[:100], whole[:-5], bytes(flipped), array):
        (tmp_path / "no.npz").write_bytes(damaged)
        with pytest.raises(gg.CheckpointError, match=r"no.npz: not a file that Exchange.save wrote"):
            x.load(tmp_path / "no.npz")
    with pytest.raises(gg.CheckpointError, match="nowhere.npz"):
        x.load(tmp_path / "nowhere.npz")


def test_under_mpi_ranks_that_load_other_states(mpirun: Any) -> None:
    """As where each node has files of its own by one path."""
    text = (
        "import numpy as np\nimport gossipgrad as gg\n"
        "with gg.Exchange({'w': np.ones(3)}, strategy=gg.AllReduce(), timeout=20) as x:\n"
        "    states = []\n"
        "    for _ in range(2):\n"
        "        x.step({'w': np.ones(3)})\n"
        "        states.append(x.state_dict())\n"
        "    states.append({**states[0], 'consensus': {'w': np.zeros(3, np.float32)}})\n"
        "    for second in (1, 2):\n"
        "        try:\n"
        "            x.load_state_dict(states[second if x.rank else 0])\n"
        "        except ValueError as error:\n"
        "            print(f'refused {second} {x.rank}|{error}')\n"
        "    x.load_state_dict(states[0])\n"
        "    assert x.steps == 1\n"
    )
    done = mpirun(2, text)
    lines = dict(line.split("|") for line in done.stdout.splitlines() if "|" in line)
    for rank in range(2):
        assert "step: 1 on rank 0; 2 on rank 1" in lines[f"refused 1 {rank}"], lines
        assert "consensus, w: checksum" in lines[f"refused 2 {rank}"], lines


LOADS = """
import sys, json
import numpy as np
import gossipgrad as gg
strategy = gg.ParameterServer(period=1, servers=3, dedicated=True, bucket_bytes=64)
comm = gg.VirtualCluster(4) if "virtual" in sys.argv else None
with gg.Exchange({"a": np.ones(64), "b": np.ones(16)}, optimizer=gg.SGD(lr=0.1), strategy=strategy, comm=comm) as x:
    for step in range(60):
        x.step([{name: np.sin(array + step) for name, array in one.weights.items()} for one in x.replicas])
        x.load_state_dict(x.state_dict()) if step % 2 else x.load_weights(x.consensus_weights())
    made = {name: array.tolist() for name, array in x.consensus_weights().items()}
    if x.rank == 0:
        print(json.dumps(made))
"""


@pytest.mark.full
def test_under_mpi_nothing_is_lost_where_a_centre_is_loaded(mpirun: Any) -> None:
    """A worker that has loaded is served by a rank that has not: not before it has, too."""
    alone = run_group([sys.executable, "-c", LOADS, "virtual"])
    assert alone.returncode == 0, alone.stderr
    assert json.loads(mpirun(4, LOADS).stdout) == json.loads(alone.stdout)
