"""Messages between ranks as functions of arrays, against NumPy; MPI against a virtual cluster."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad import _core

SIZES = (1, 2, 3, 4, 5, 8)
TOPOLOGIES = ("dissemination", "cube", "ring", "exponential", "random")
DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex128")


def arrays(p: int, shape=(3, 5), dtype="float32", seed=0):
    drawn = np.random.default_rng(seed).standard_normal((p, *shape)) * 20
    return (drawn > 0) if dtype == "bool" else np.abs(drawn).astype(dtype) if dtype == "uint16" else drawn.astype(dtype)


def table_of(topology, p, step, seed=0, rotate=True, permutations=0):
    return np.array([_core.partners(topology, p, step, r, rotate, seed, permutations) for r in range(p)])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("p", SIZES)
def test_mix_is_the_mean_with_the_sender_and_keeps_the_mean(p, topology):
    x = arrays(p, dtype="float64")
    with gg.Team(gg.VirtualCluster(p)) as team:
        y = x
        for step in range(7):
            sources = table_of(topology, p, step, seed=3)[:, 1]
            wanted = np.stack([y[r] if s < 0 else y[r] + (y[s] - y[r]) / 2 for r, s in enumerate(sources)])
            before = y.copy()
            mixed = team.mix(y, step, topology, seed=3)
            assert mixed.tobytes() == wanted.tobytes() and (y == before).all()
            y = mixed
        np.testing.assert_allclose(y.mean(0), x.mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_mean_is_exact_where_halves_are(topology):
    """Numbers with room for ten halvings: no digit of their sum changes."""
    x = np.random.default_rng(1).integers(-(2**30), 2**30, (6, 40)).astype(np.float64) * 2**10
    team = gg.Team(gg.VirtualCluster(6))
    y = x
    for step in range(10):
        y = team.mix(y, step, topology)
    assert (y.sum(0) == x.sum(0)).all() and np.ptp(y, 0).max() < np.ptp(x, 0).min()


def test_mix_among_few_permutations():
    x = arrays(8, dtype="float64")
    with gg.Team(gg.VirtualCluster(8)) as team:
        for step in range(12):
            pairs = table_of("cube", 8, step, 3, permutations=2)
            assert [tuple(pair) for pair in pairs] == team.partners(step, "cube", seed=3, permutations=2)
            assert (team.mix(x, step, "cube", seed=3, permutations=2) == x + (x[pairs[:, 1]] - x) / 2).all()
        assert team.partners(6, "cube", permutations=2) == team.partners(0, "cube") != team.partners(6, "cube")
        assert team.partners(9, permutations=1) == team.partners(9, rotate=False)
        for how in ({"rotate": False}, {"topology": "random"}):
            with pytest.raises(ValueError, match="permutations=2 with .*allowed: None"):
                team.mix(x, 0, permutations=2, **how)
            with pytest.raises(ValueError, match="permutations=2 with .*allowed: None"):
                team.partners(0, permutations=2, **how)


@pytest.mark.parametrize("p", (2, 4, 8, 16))
def test_one_cycle_of_dissemination_is_the_mean(p):
    x = np.arange(p, dtype=np.float64)[:, None] * 2.0**20
    team = gg.Team(gg.VirtualCluster(p))
    for step in range(int(np.log2(p))):
        x = team.mix(x, step)
    assert (x == (p - 1) / 2 * 2.0**20).all()


def test_mix_takes_tables_that_balance():
    ring = [[1, 2, 0], [0, 1, 2], [-1, 2, 1]]
    team = gg.Team(gg.VirtualCluster(3))
    x = arrays(3)
    assert (team.mix(x, 0, ring) == x + (x[[2, 0, 1]] - x) / 2).all()
    assert (team.mix(x, 4, ring) == x).all()
    assert (team.mix(x, 5, ring) == x + (x[[0, 2, 1]] - x) / 2).all()
    with pytest.raises(ValueError, match="topology: row 1: rank 0 sends 1 and receives 0 arrays.*change the mean"):
        team.mix(x, 3, [[1, 2, 0], [1, 2, 1]])
    with pytest.raises(ValueError, match="table has 2 columns; allowed: 3, one a rank"):
        team.mix(x, 0, [[1, 0]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", (1, 3, 4))
def test_exchange_moves_every_dtype(p, dtype):
    x = arrays(p, dtype=dtype)
    partner = [p - 1 - r for r in range(p)]
    with gg.Team(gg.VirtualCluster(p)) as team:
        got = team.exchange(x, partner)
        assert got.dtype == x.dtype and got.tobytes() == x[::-1].tobytes()
        assert (team.exchange(x, [None] * p) == x).all()
        shifted = team.exchange(x, [((r + 1) % p, (r - 1) % p) for r in range(p)])
        assert (shifted == np.roll(x, 1, 0)).all()
        assert (team.exchange(x, team.partners(0)) == x[table_of("dissemination", p, 0)[:, 1]]).all() or p == 1


@pytest.mark.parametrize("op", ("sum", "mean", "max", "min"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", (1, 2, 5))
def test_allreduce_is_numpys_in_the_order_of_ranks(p, dtype, op):
    x = arrays(p, (2, 7), dtype)
    team = gg.Team(gg.VirtualCluster(p))
    if (dtype, op) in {("bool", "sum"), ("bool", "mean"), ("complex128", "max"), ("complex128", "min")}:
        with pytest.raises(ValueError, match=f"array: dtype {dtype}"):
            team.allreduce(x, op)
        return
    if op == "mean" and x.dtype.kind in "iu":
        x = x.astype(np.float64)
    ufunc = {"max": np.maximum, "min": np.minimum}.get(op, np.add)
    wide = x.astype(np.float32) if dtype == "float16" else x
    wanted = functools.reduce(ufunc, wide)
    wanted = (wanted / p if op == "mean" else wanted).astype(x.dtype)
    got = team.allreduce(arrays(p, (2, 7), dtype), op)
    assert got.dtype == wanted.dtype and got.shape == (p, 2, 7)
    assert all(row.tobytes() == wanted.tobytes() for row in got)


def test_what_float16_cannot_hold_is_no_part_of_a_mean():
    """Two ranks of 60000 and one of -60000: sums and differences of two are beyond float16, the results are not."""
    x = np.array([[60000.0], [60000.0], [-60000.0]], np.float16)
    team = gg.Team(gg.VirtualCluster(3))
    assert (team.allreduce(x, "mean") == np.float16(20000)).all() and (team.allreduce(x) == np.float16(60000)).all()
    assert (gg.Team(gg.VirtualCluster(2)).allreduce(x[:2], "mean") == np.float16(60000)).all()
    pair = gg.Team(gg.VirtualCluster(2)).mix(x[1:], 0)
    assert (pair == 0).all() and pair.dtype == np.float16


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (3, 1), (257,)])
def test_shapes(shape):
    x = arrays(4, shape, "float64")
    team = gg.Team(gg.VirtualCluster(4))
    assert (team.allreduce(x) == x[0] + x[1] + x[2] + x[3]).all() and team.allreduce(x).shape == x.shape
    assert (team.exchange(x, [1, 0, 3, 2]) == x[[1, 0, 3, 2]]).all()
    assert (team.broadcast(x, 2) == x[2]).all() and team.broadcast(x, 2).shape == x.shape
    assert (team.allgather(x) == x).all()
    assert team.mix(x, 0).shape == x.shape


def test_any_memory_order_and_byte_order():
    x = arrays(3, (4, 6), "float64")
    team = gg.Team(gg.VirtualCluster(3))
    wanted = team.mix(x, 0)
    for other in (np.asfortranarray(x), x.astype(">f8"), x.tolist(), np.repeat(x, 2, 2)[:, :, ::2]):
        assert (team.mix(other, 0) == wanted).all()


def test_one_rank_alone():
    team = gg.Team()
    x = np.arange(3.0)
    assert (team.size, team.rank, team.ranks, team.stacked) == (1, 0, range(1), False)
    for got in (team.mix(x, 4), team.exchange(x, 0), team.allreduce(x), team.broadcast(x), team.each(lambda _: x)):
        assert got.shape == (3,) and (got == x).all() and got is not x
    assert team.allgather(x).shape == (1, 3) and team.partners(0) == (-1, -1)
    team.barrier()
    assert team.bytes_sent == team.messages_sent == 0


def test_bytes_and_clocks_are_those_of_the_messages():
    p, n = 4, 1000
    team = gg.Team(gg.VirtualCluster(p, latency=0.25, bandwidth=8e3))
    x = np.ones((p, n))
    team.mix(x, 0)
    assert (team.bytes_sent, team.messages_sent) == (p * n * 8, p) and team.seconds == pytest.approx(0.25 + 1)
    team.allreduce(x)
    assert team.bytes_sent == p * n * 8 + 2 * (p - 1) * n * 8 and team.messages_sent == p + 2 * p * (p - 1)


def test_what_cannot_be_is_named():
    team = gg.Team(gg.VirtualCluster(3))
    x = arrays(3)
    bad = [
        (lambda: team.mix(x[:2], 0), r"array: shape \(2, 3, 5\); allowed in a virtual cluster of 3 ranks: \(3, ...\)"),
        (lambda: team.mix(1.0, 0), r"array: shape \(\)"),
        (lambda: team.mix(x.astype(int), 0), "array: dtype int64; allowed: floating or complex"),
        (lambda: team.mix(np.array(["a"] * 3), 0), "array: dtype <U1; allowed: bool"),
        (lambda: team.mix(x, -1), "step=-1: allowed"),
        (lambda: team.mix(x, 0.5), "step=0.5: allowed"),
        (lambda: team.mix(x, 0, "rings"), "topology='rings': allowed.*did you mean 'ring'"),
        (lambda: team.mix(x, 0, seed=-1), "seed=-1"),
        (lambda: team.exchange(x, [1, 2, 0]), "partner: rank 0 sends to rank 1, which receives from rank 2"),
        (lambda: team.exchange(x, [1, 0, 0]), "partner: rank 2 sends to rank 0, which receives from rank 1"),
        (lambda: team.exchange(x, [(1, -1), (-1, 2), None]), "rank 0 sends to rank 1, which receives from rank 2"),
        (lambda: team.exchange(x, [(-1, 1), None, None]), "rank 0 receives from rank 1, which sends to nobody"),
        (lambda: team.exchange(x, 1), "partner=1: allowed in a virtual cluster: 3 partners, one a rank"),
        (lambda: team.exchange(x, [3, 1, 0]), r"partner=3: allowed: an integer in -1..2"),
        (lambda: team.exchange(x, [(0, 1, 2), 1, 2]), r"partner=\(0, 1, 2\): allowed: a rank, or a pair"),
        (lambda: team.allreduce(x, "prod"), "op='prod': allowed: 'sum', 'mean', 'max', 'min'"),
        (lambda: team.broadcast(x, 3), r"root=3: allowed: an integer in 0..2"),
        (lambda: team.broadcast(None), "array: dtype object"),
        (lambda: gg.Team(timeout=-1), "timeout=-1"),
        (lambda: gg.Team(gg.VirtualCluster(2, latency=1.0), network=gg.Network(1.0)), "network="),
    ]
    for call, message in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            call()
    assert (team.exchange(x, [0, 2, 1]) == x[[0, 2, 1]]).all()  # it can still be used
    team.close()
    with pytest.raises(RuntimeError, match="closed"):
        team.mix(x, 0)
    assert repr(team) == "Team(closed)"


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied_or_pickled(of):
    with pytest.raises(TypeError, match=r"a Team cannot be copied or pickled.*allowed: a new gossipgrad\.Team"):
        of(gg.Team(gg.VirtualCluster(2)))


def test_nothing_is_left():
    before = _core.memory()[0]
    with gg.Team(gg.VirtualCluster(4)) as team:
        for step in range(3):
            team.allreduce(team.mix(arrays(4), step))
    assert _core.memory()[0] == before


UNDER_MPI = """
import gossipgrad as gg
import numpy as np

TOPOLOGIES = ("dissemination", "cube", "ring", "exponential", "random")
team = gg.Team()
p, r = team.size, team.rank
virtual = gg.Team(gg.VirtualCluster(p))
draw = lambda rank: np.random.default_rng(rank).standard_normal((5, 11)).astype(np.float32)
x, all_x = team.each(draw), virtual.each(draw)
same = lambda mine, theirs: np.asarray(mine).tobytes() == np.asarray(theirs[r]).tobytes()
for topology in (*TOPOLOGIES, [[(i + 1) % p for i in range(p)], [-1] * p]):
    y, all_y = x, all_x
    for step in range(5):
        y, all_y = team.mix(y, step, topology, seed=7), virtual.mix(all_y, step, topology, seed=7)
        assert team.partners(step, topology) == virtual.partners(step, topology)[r]
        assert same(y, all_y), (topology, step)
for op in ("sum", "mean", "max", "min"):
    assert same(team.allreduce(x, op), virtual.allreduce(all_x, op)), op
for size in (0, 1, 3, 100_003):
    big = np.arange(size) * (r + 1)
    assert (team.allreduce(big) == np.arange(size) * (p * (p + 1) // 2)).all()
assert (team.allgather(x) == all_x).all()
root = p - 1
for given in (x, x if r == root else None):
    assert (team.broadcast(given, root) == all_x[root]).all()
assert team.broadcast(np.float32(r), 1).shape == ()
assert (team.exchange(x, p - 1 - r) == all_x[p - 1 - r]).all()
assert team.exchange(x, team.partners(0)).shape == x.shape
team.barrier()

def refused(call, text):
    try:
        call()
    except (ValueError, TypeError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

differ = "Team.mix: ranks differ in what must be equal on all. array's "
refused(lambda: team.mix(x[: r + 1], 0), differ + "shape: (1, 11) on rank 0; (2, 11) on rank 1")
dtype = [np.float32, np.float64, np.float16][r]
refused(lambda: team.mix(x.astype(dtype), 0), differ + "dtype: float32 on rank 0; float64")
refused(lambda: team.mix(x, r), "step: 0 on rank 0; 1 on rank 1")
refused(lambda: team.mix(x, 0, "spiral" if r == 1 else "ring"), "topology='spiral': allowed")
refused(lambda: team.exchange(x, (r + 1) % p), "partner: rank 0 sends to rank 1, which receives from rank 2")
different = "ranks make different calls: Team.mix on rank 0; Team.allreduce"
refused(lambda: team.allreduce(x) if r else team.mix(x, 0), different)
different = "ranks make different calls: Team.barrier on rank 0; Team.allreduce"
refused(lambda: team.allreduce(x) if r else team.barrier(), different)
different = "array: float32 of shape (5, 11); float32 of shape (11,) on rank 0, the root"
refused(lambda: team.broadcast(x if r else x[0], 0), different)
assert (team.allreduce(np.int64(1)) == p).all()
with team:
    pass
print("fine", r, flush=True)
"""


def test_under_mpi_it_is_what_a_virtual_cluster_does(mpirun):
    done = mpirun(3, UNDER_MPI)
    assert sorted(done.stdout.split()) == sorted(["fine", "0", "fine", "1", "fine", "2"])


THREADS = """
import threading, time
import numpy as np
import gossipgrad as gg

gradients = {"a": np.ones(3, np.float32)}
parts = gg.Exchange(gradients, optimizer=gg.SGD(lr=0.1))
parts.step(gradients)
stepped, ends, said = threading.Event(), threading.Event(), []

def other():
    parts.step(gradients)  # the main thread may hand over what it has made
    stepped.set()
    ends.wait()

def refused(work):
    try:
        work()
    except RuntimeError as error:
        said.append(str(error))

thread = threading.Thread(target=other)
thread.start()
stepped.wait()
for work in (gg.Team, lambda: parts.step(gradients), lambda: parts.replicas[0].begin()):
    refused(work)
third = threading.Thread(target=refused, args=(gg.Team,))
third.start()
third.join()
assert len(said) == 4 and all("uses MPI, which thread" in one and "allowed: calls of one" in one for one in said), said
ends.set()
thread.join()
parts.step(gradients)
assert parts.steps == 3

with gg.Team(timeout=0.5) as team:
    if team.rank == 0:  # the other rank comes late
        for kind, text in ((gg.CommunicationError, "waited"), (RuntimeError, "messages of this Team have failed")):
            try:
                team.barrier()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
    else:
        time.sleep(1)
print("fine", flush=True)
"""


def test_two_threads_and_a_team_that_has_failed(mpirun):
    """MPI is FUNNELED: calls of two threads would meet those of other ranks in any order."""
    assert mpirun(2, THREADS).stdout == "fine\n" * 2


@pytest.mark.parametrize("kind", [_core.Team, _core.Trainer, _core.Exchange])
def test_nothing_is_half_made(kind):
    """What has no arguments is refused, and what is there does not become another one under those who have it."""
    with pytest.raises(TypeError):
        kind.__new__(kind)
    with gg.Trainer(gg.Sequential([gg.Linear(2)], (3,)), loss="cross_entropy", comm=gg.VirtualCluster(3)) as trainer:
        made = {_core.Team: trainer.team, _core.Trainer: trainer.core, _core.Exchange: trainer.core.exchange}[kind]
        before = trainer.team.size, trainer.core.exchange.step, trainer.core.bytes()
        with contextlib.suppress(TypeError, RuntimeError):
            made.__init__("single")
        assert before == (trainer.team.size, trainer.core.exchange.step, trainer.core.bytes())


def test_a_list_of_messages_that_grows_while_it_is_read():
    """The room is for those that were there first."""

    class Grows:
        looks = 0

        def __len__(self):
            self.looks += 1
            return 1 if self.looks < 2 else 2

        def __getitem__(self, i):
            return 1, bytes([7 + i])

    landing = bytearray(1)
    team = _core.Team("virtual", size=2)
    team.messages([Grows(), []], [[], [(0, landing)]])
    assert landing == b"\x07" and team.counts()[:2] == (1, 1)
