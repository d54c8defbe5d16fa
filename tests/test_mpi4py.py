"""Beside mpi4py: any communicator, either import order, their messages and ours in one program."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from conftest import ROOT, run_group

import gossipgrad as gg

pytest.importorskip("mpi4py")

IMPORTS = {
    "ours first": "import gossipgrad as gg\nfrom mpi4py import MPI\n",
    "theirs first": "from mpi4py import MPI\nimport gossipgrad as gg\n",
    "theirs when ours has started MPI": "import gossipgrad as gg\nwith gg.Team():\n    pass\nfrom mpi4py import MPI\n",
    "ours starts MPI for both": "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
    "import gossipgrad as gg\nwith gg.Team():\n    assert MPI.Is_initialized()\n",
}

COMMON = """
import numpy as np
world = MPI.COMM_WORLD
r = world.rank
train, _ = gg.data.synthetic((6,), 3, 48, 12, noise=0.3)

def trainer(comm, seed=0):
    net = gg.Sequential([gg.Linear(4), gg.Tanh(), gg.Linear(3)], input=(6,))
    return gg.Trainer(net, seed=seed, comm=comm)

def bits(made):
    return made.fit(train, epochs=1, batch_size=4, progress=False).weights_sha256[0][:16]
"""

# Six groups of different kinds, one after the other; mpi4py's messages are in flight meanwhile.
GROUPS = """
def nobody(comm):
    try:
        trainer(comm)
    except ValueError as error:
        assert "comm: null, as Split gives it" in str(error), error
        return
    raise AssertionError("a trainer without ranks")

theirs = [world.isend(np.full(1000, r), (r + 1) % 4, tag=5), world.irecv(1 << 16, (r - 1) % 4, tag=5)]
members = world.Get_group().Incl([3, 1])
groups = {
    "world": world,
    "none": None,
    "self": MPI.COMM_SELF,
    "dup": world.Dup(),
    "grid": world.Create_cart([2, 2]),
    "halves": world.Split(r // 2),
    "backwards": world.Split(0, -r),
    "two": world.Create_group(members) if r in (1, 3) else MPI.COMM_NULL,
    "three": world.Split(0 if r < 3 else MPI.UNDEFINED, r),
}
for name, comm in groups.items():
    if comm == MPI.COMM_NULL:
        nobody(comm)
        continue
    with trainer(comm) as made:
        assert comm is None or (made.rank, made.size) == (comm.rank, comm.size)
        print(f"{name} {made.size} {bits(made)}", flush=True)
assert (MPI.Request.waitall(theirs)[1] == (r - 1) % 4).all()
freed = world.Dup()
freed.Free()
nobody(freed)
inter = groups["halves"].Create_intercomm(0, world, 2 if r < 2 else 0)
for refused in (lambda: trainer(inter), lambda: gg.Team(inter)):
    try:
        refused()
    except ValueError as error:
        assert "comm: an intercommunicator; allowed: a communicator of one group" in str(error), error
    else:
        raise AssertionError("trained over an intercommunicator")
with gg.Team(inter.Merge(r >= 2)) as team:
    assert team.allreduce(r) == world.allreduce(r) == 6
"""

# Three trainers at once, step by step in turn: of all ranks, of halves by Split, of odd and even ranks.
AT_ONCE = """
made = [trainer(world), trainer(world.Split(r // 2, r), 1 + r // 2), trainer(world.Split(r % 2, r), 3 + r % 2)]
for step in range(6):
    generator = np.random.default_rng((r, step))
    x, y = generator.standard_normal((4, 6)).astype(np.float32), generator.integers(0, 3, 4)
    for one in made:
        one.train_step(x, y)
        assert world.allreduce(step) == 4 * step
for one in made:
    weights = one.weights()
    print(r, one.size, *(f"{array.astype(np.float64).sum():.17g}" for array in weights.values()), flush=True)
# A trainer that is closed by some groups and not by others harms none.
if r < 2:
    made[1].close()
for one in (made[0], made[2]):
    one.train_step(x, y)
print("closed", r, flush=True)
"""


def small(ranks, seed=0):
    net = gg.Sequential([gg.Linear(4), gg.Tanh(), gg.Linear(3)], input=(6,))
    return gg.Trainer(net, seed=seed, comm=gg.VirtualCluster(ranks))


def bits(ranks):
    train, _ = gg.data.synthetic((6,), 3, 48, 12, noise=0.3)
    return small(ranks).fit(train, epochs=1, batch_size=4, progress=False).weights_sha256[0][:16]


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_any_communicator_trains_as_a_virtual_cluster_of_its_size(mpirun, order):
    lines = mpirun(4, IMPORTS[order] + COMMON + GROUPS).stdout.splitlines()
    wanted = {"world": 4, "none": 4, "self": 1, "dup": 4, "grid": 4, "halves": 2, "backwards": 4, "two": 2, "three": 3}
    trained = {size: bits(size) for size in set(wanted.values())}
    for name, size in wanted.items():
        assert {line for line in lines if line.startswith(f"{name} ")} == {f"{name} {size} {trained[size]}"}


@pytest.mark.parametrize("order", ["theirs when ours has started MPI", "ours starts MPI for both"])
def test_who_starts_mpi_does_not_matter(mpirun, order):
    program = IMPORTS[order] + COMMON + 'print("sum", world.allreduce(r), bits(trainer(world)), flush=True)\n'
    assert set(mpirun(2, program).stdout.splitlines()) == {f"sum 1 {bits(2)}"}


def test_groups_at_once(mpirun):
    lines = mpirun(4, IMPORTS["theirs first"] + COMMON + AT_ONCE).stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("closed")) == [f"closed {r}" for r in range(4)]
    members = [([0, 1, 2, 3], 0), ([0, 1], 1), ([2, 3], 2), ([0, 2], 3), ([1, 3], 4)]
    wanted = set()
    for ranks, seed in members:
        alone = small(len(ranks), seed)
        for step in range(6):
            drawn = [np.random.default_rng((r, step)) for r in ranks]
            x = [one.standard_normal((4, 6)).astype(np.float32) for one in drawn]
            alone.train_step(x, [one.integers(0, 3, 4) for one in drawn])
        for place, r in enumerate(ranks):
            sums = (f"{array.astype(np.float64).sum():.17g}" for array in alone.weights(rank=place).values())
            wanted.add(" ".join([str(r), str(len(ranks)), *sums]))
    assert {line for line in lines if not line.startswith("closed")} == wanted


FINALIZED = """
team, made = gg.Team(), trainer(world)
parts = gg.Exchange({"a": np.ones(3, np.float32)}, optimizer=gg.SGD(lr=0.1))
MPI.Finalize()
calls = [gg.Team, team.barrier, lambda: team.allreduce(np.ones(3)), lambda: parts.step({"a": np.ones(3, np.float32)})]
calls += [lambda: made.evaluate(train), lambda: bits(made), made.weights]
for call in calls:
    try: call()
    except RuntimeError as error: assert "MPI has been finalised in this process" in str(error), error
    else: raise AssertionError("it went on")
print("refused", flush=True)
"""


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_after_the_user_has_finalised_mpi(mpirun, order):
    """Open MPI would end the job."""
    done = mpirun(2, IMPORTS[order] + COMMON + FINALIZED)
    assert done.stdout == "refused\n" * 2 and not done.stderr, done


# How rank 1 ends while rank 0 waits for it -> (the exit code of all, what is on the screen)
ENDS = {
    "sys.exit(3)": (3, "gossipgrad: rank 1 ended with exit code 3: this ends all ranks"),
    "raise SystemExit(3)": (1, "rank 0 waits for rank 1, which has ended"),
    "sys.exit(0)": (1, "rank 0 waits for rank 1, which has ended"),
    "try: sys.exit(3)\n    except SystemExit: pass": (1, "rank 0 waits for rank 1, which has ended"),
}


@pytest.mark.parametrize(
    ("order", "end"),
    [
        *(("theirs first", end) for end in ENDS),
        ("ours first", "sys.exit(0)"),
        ("theirs when ours has started MPI", "sys.exit(3)"),
    ],
)
def test_a_rank_that_ends_does_not_leave_the_others_waiting(mpirun, order, end):
    """mpi4py finalises MPI before the process ends."""
    code, words = ENDS[end]
    program = (
        f"import sys\n{IMPORTS[order]}team = gg.Team()\nif team.rank == 1:\n    {end}\nelse:\n    team.barrier()\n"
    )
    done = mpirun(2, program, check=False, timeout=60)
    assert done.returncode == code and words in done.stderr, done


def test_without_a_launcher():
    """A notebook or a script that mpi4py starts alone: its groups have one rank, and train."""
    program = IMPORTS["theirs first"] + COMMON + "print(bits(trainer(MPI.COMM_WORLD)), bits(trainer(MPI.COMM_SELF)))"
    done = run_group([sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [bits(1)] * 2
