"""Partner schedules: what each topology says, what they promise, and a user's table."""

import json
import math

import numpy as np
import pytest
from conftest import ROOT
from gossip_reference import Gradients, flat, small_batches, small_net
from test_strategies import OPTIMIZERS, compare_with_simulation, silent_step, silent_trainer, state, trainer_of

import gossipgrad as gg
from gossipgrad import _core
from gossipgrad.strategies import TOPOLOGIES, core_topology

pytestmark = pytest.mark.filterwarnings("ignore:topology='cube'")

# Rows are permutations, for any p: a shift, everybody at rest, exchange of neighbours, a larger shift.
BALANCED = {p: [[(r + 1) % p for r in range(p)], [-1] * p, [r ^ 1 if r ^ 1 < p else r for r in range(p)],
                [(r - 2) % p for r in range(p)]] for p in range(1, 9)}  # fmt: skip


def links(topology, p, step, rotate=True, seed=0, permutations=0):
    """What each rank sends to, -1: nobody; and that what the others receive agrees."""
    pairs = [_core.partners(core_topology(topology), p, step, rank, rotate, seed, permutations) for rank in range(p)]
    for rank, (to, source) in enumerate(pairs):
        assert to != rank and (source < 0 or pairs[source][0] == rank)
        assert to < 0 or pairs[to][1] == rank
    return [to for to, _ in pairs]


@pytest.fixture(scope="module")
def gradients_of():
    return Gradients(small_net())


# ---- what they say


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 13])
def test_formulas(p):
    k = math.ceil(math.log2(p))
    for step in range(2 * p + 3):
        if p == 1:
            assert all(links(topology, 1, step) == [-1] for topology in TOPOLOGIES)
            continue
        far, one = 2 ** (step % k), -1 if step % 2 == 0 else 1
        assert links("exponential", p, step, rotate=False) == [(r + far) % p for r in range(p)]
        assert links("ring", p, step, rotate=False) == [(r + one) % p for r in range(p)]
        if step < k:
            assert links("exponential", p, step) == [(r + far) % p for r in range(p)]
        if step < p - 1:
            assert links("ring", p, step) == [(r + one) % p for r in range(p)]


@pytest.mark.parametrize("p", [2, 3, 8, 9])
def test_random_is_a_matching_drawn_for_every_step(p):
    steps = [links("random", p, step, seed=4) for step in range(40)]
    for to in steps:
        assert to.count(-1) == p % 2
        assert all(partner < 0 or to[partner] == rank for rank, partner in enumerate(to))
    different = len({tuple(to) for to in steps})
    assert different == {2: 1, 3: 3}.get(p, different) and (p <= 3 or different > 20)
    assert steps == [links("random", p, step, rotate=False, seed=4) for step in range(40)]
    assert p == 2 or steps != [links("random", p, step, seed=5) for step in range(40)]


@pytest.mark.parametrize("p", [3, 4, 7])
def test_a_table_is_taken_at_its_word(p):
    for step in range(9):
        row = BALANCED[p][step % 4]
        assert links(BALANCED[p], p, step) == [-1 if to == rank else to for rank, to in enumerate(row)]


@pytest.mark.parametrize("topology", ["dissemination", "cube", "ring", "exponential"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 32])
def test_few_permutations_take_turns(p, topology):
    """Cycle c is that of cycle c mod R of a rotation without end, whose first R cycles stay as they are."""
    k = _core.schedule(topology, p)["stages"]
    for few in (1, 2, 3):
        period = few * k * (2 if topology == "ring" else 1)  # a ring turns round in each step
        met = [set() for _ in range(p)]
        for step in range(2 * period):
            found = links(topology, p, step, seed=4, permutations=few)
            assert step >= few * k or found == links(topology, p, step, seed=4)
            assert found == links(topology, p, step % period, seed=4, permutations=few)
            assert few > 1 or found == links(topology, p, step, rotate=False, seed=4)
            for rank, to in enumerate(found):
                met[rank] |= {to} - {-1}
                met[to] |= {rank} if to >= 0 else set()
        each = {"cube": k, "ring": 2}.get(topology, 2 * k)
        assert max(map(len, met)) <= min(p - 1, few * each)
        if few > 1 and p > 3 and topology != "ring":
            others = {tuple(links(topology, p, step, seed=4, permutations=few)) for step in range(period)}
            assert len(others) > k, "places change"
        facts = _core.schedule(topology, p, True, 4, few)
        assert topology == "cube" or facts["diffusion_steps"] == k == facts["stages"]
        assert p < 32 or facts["meeting_steps"] is None


# ---- what training makes of them


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("topology", ["ring", "exponential", "random", "table"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 6, 7, 8])
def test_gossip_is_what_its_contract_says(p, topology, staleness, gradients_of):
    exchange = ("weights+momentum", "weights", "weights" if staleness else "gradients")[p % 3]
    strategy = gg.GossipGraD(
        topology=BALANCED[p] if topology == "table" else topology,
        staleness=staleness,
        exchange=exchange,
        rotate=p % 2 == 0,
        **[{}, {"bucket_bytes": 1, "chunk_bytes": 64}][p % 2],
    )
    compare_with_simulation(p, strategy, OPTIMIZERS["nesterov"], gradients_of)


@pytest.mark.parametrize("topology", ["dissemination", "cube", "ring", "exponential"])
@pytest.mark.parametrize("p", [1, 3, 5, 8])
def test_gossip_among_few_permutations_is_what_its_contract_says(p, topology, gradients_of):
    more = [{}, {"hierarchical": True, "ranks_per_node": 1}, {"staleness": 1}, {"push_sum": True}]
    for permutations, how in zip((1, 2, 3, 2), more, strict=True):
        strategy = gg.GossipGraD(topology=topology, permutations=permutations, bucket_bytes=1, **how)
        compare_with_simulation(p, strategy, OPTIMIZERS["nesterov"], gradients_of)


@pytest.mark.parametrize("topology", [*TOPOLOGIES, "table"])
@pytest.mark.parametrize("p", [1, 2, 3, 5, 6, 7, 8])
def test_the_mean_is_kept_and_the_replicas_meet(p, topology):
    chosen = BALANCED[p] if topology == "table" else topology
    trainer, weights, momentum = silent_trainer(p, np.random.default_rng(p), topology=chosen, chunk_bytes=256)
    for _ in range(4 * p):
        silent_step(trainer)
    found, velocity = state(trainer)
    np.testing.assert_allclose(found.mean(0), weights.mean(0), atol=1e-6)
    np.testing.assert_allclose(velocity.mean(0), momentum.mean(0) * 0.5 ** (4 * p), atol=1e-6)
    assert p == 1 or np.abs(found - found.mean(0)).max() < 0.3 * np.abs(weights - weights.mean(0)).max()


# ---- the promises of the method


def test_communication_does_not_grow_with_the_ranks():
    """O(1): messages and bytes a rank and step, counted. A rank without a partner sends nothing."""
    net = small_net()

    def sent(p, topology):
        data = np.zeros((4 * p, 1, 8, 8), np.float32), np.zeros(4 * p, np.int64)
        trainer = trainer_of(p, OPTIMIZERS["momentum"], gg.GossipGraD(topology=topology), net=net)
        last = trainer.fit(data, batch_size=1, progress=False).last
        trainer.close()
        assert last["bytes_per_rank_step"] == last["bytes_sent"] / (p * last["steps"])
        return last["messages_per_rank_step"], last["bytes_per_rank_step"]

    one_partner = sent(2, "dissemination")
    assert one_partner[0] == 2 and 2 * 4 * net.parameters <= one_partner[1] < 2 * 4 * (net.parameters + 3 * 32)
    for p in range(2, 17):
        for topology in ("dissemination", "ring", "exponential", "random" if p % 2 == 0 else "ring"):
            assert sent(p, topology) == one_partner
        assert sent(p, "cube") == one_partner if p & (p - 1) == 0 else sent(p, "cube") < one_partner
        messages, size = sent(p, "random")
        assert messages == pytest.approx(one_partner[0] * (p - p % 2) / p)
        assert size == pytest.approx(one_partner[1] * (p - p % 2) / p)


@pytest.mark.parametrize("topology", ["dissemination", "exponential"])
@pytest.mark.parametrize("p", [2, 3, 4, 5, 7, 8, 11, 16, 17])
def test_news_is_everywhere_after_log2_p_steps(p, topology):
    """Diffusion: a marker in the weights of one rank, no learning."""
    k = math.ceil(math.log2(p))
    trainer, _, _ = silent_trainer(p, np.random.default_rng(0), topology=topology, momentum=0.0)
    for rank in range(p):
        zeros = {name: np.zeros_like(array) for name, array in trainer.weights(rank).items()}
        trainer.core.exchange.load_arena("weight", {n: a + (rank == p // 2) for n, a in zeros.items()}, rank)
    for step in range(k):
        reached = sum(bool(np.all(flat(trainer.weights(rank)) > 0)) for rank in range(p))
        assert reached <= 2**step < p, "what is reached doubles at most"
        silent_step(trainer)
    assert all(np.all(flat(trainer.weights(rank)) > 0) for rank in range(p))
    assert _core.schedule(topology, p)["diffusion_steps"] == k
    trainer.close()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rotation_makes_all_pairs_meet(topology):
    """Direct diffusion: every rank has sent to every other after some p/n log p cycles; n: others met in a cycle."""
    for p in range(2, 34):
        stages = _core.schedule(topology, p)["stages"]
        others = {"ring": min(2, p - 1), "random": 1}.get(topology, stages)
        cycles = math.ceil(2 + 4 * (p - 1) / others * math.log(p))
        met, step = np.eye(p, dtype=bool), 0
        while not met.all() and step < cycles * stages:
            for rank, to in enumerate(links(topology, p, step, seed=1)):
                met[rank, to if to >= 0 else rank] = True
            step += 1
        assert met.all(), f"{p} ranks, {cycles} cycles"
        assert _core.schedule(topology, p, seed=1)["meeting_steps"] == step


@pytest.mark.parametrize("topology", ["dissemination", "cube", "ring", "exponential"])
def test_without_rotation_few_pairs_meet(topology):
    p = 16
    met = {(r, to) for step in range(60) for r, to in enumerate(links(topology, p, step, rotate=False)) if to >= 0}
    assert len(met) == p * {"dissemination": 4, "cube": 4, "ring": 2, "exponential": 4}[topology]
    assert _core.schedule(topology, p, rotate=False)["meeting_steps"] is None


@pytest.mark.parametrize("p", [1, 2, 3, 6, 8, 33])
def test_facts_for_the_report(p):
    k = math.ceil(math.log2(p))
    for topology, stages in (("dissemination", k), ("exponential", k), ("ring", p - 1)):
        facts = _core.schedule(topology, p)
        assert (facts["stages"], facts["diffusion_steps"]) == (stages, stages)
    assert _core.schedule("random", p)["diffusion_steps"] >= k
    apart = core_topology([[-1] * p])
    never = 0 if p == 1 else None
    assert _core.schedule(apart, p) == {"stages": min(p - 1, 1), "diffusion_steps": never, "meeting_steps": never}
    shifts = core_topology([[(r + h) % p for r in range(p)] for h in range(1, p)] or [[0]])
    assert _core.schedule(shifts, p)["meeting_steps"] == p - 1


# ---- a table from outside

BAD = [
    ([[1, 0, 2]], 4, "3 columns; allowed: 4, one a rank"),
    ([[1, 0, 2], [2, 0, 3]], 3, "row 1, rank 2: partner 3; allowed: 0 to 2, or -1 for none"),
    ([[1, 0, -2]], 3, "row 0, rank 2: partner -2; allowed"),
    ([[1, 0, 2], [1, 2, 1]], 3, "row 1: ranks 0 and 2 both send to rank 1; allowed with push_sum=True only"),
    ([[1, 0, 2], [-1, 2, -1]], 3, "row 1: rank 2 receives from rank 1 and sends to nobody; allowed with push_sum"),
]


@pytest.mark.parametrize(("table", "p", "words"), BAD)
def test_a_wrong_table(table, p, words):
    with pytest.raises(ValueError, match=words):
        trainer_of(p, OPTIMIZERS["momentum"], gg.GossipGraD(topology=table))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([1, 0], r"shape \(2,\) and dtype int64"),
        ([[0.5, 1.0]], "dtype float64"),
        ([[1, 0], [1]], "rows of different lengths"),
        (None, "topology: None"),
    ],
)
def test_no_table(table, words):
    with pytest.raises(ValueError, match=f"{words}.*allowed: 'dissemination'.*or integers of shape"):
        gg.GossipGraD(topology=table)


def test_a_table_in_checkpoints_reports_and_files(tmp_path):
    data = np.zeros((30, 1, 8, 8), np.float32), np.arange(30) % 4
    strategy = gg.GossipGraD(topology=np.array(BALANCED[3], np.int32))
    assert strategy == gg.GossipGraD(topology=BALANCED[3])
    trainer = trainer_of(3, OPTIMIZERS["momentum"], strategy)
    trainer.fit(data, batch_size=4, progress=False)
    trainer.save(tmp_path / "c.safetensors")
    again = gg.Trainer.load(tmp_path / "c.safetensors")
    assert again.strategy == strategy
    for one in (trainer, again):
        one.train_step(*small_batches(np.random.default_rng(1), 3))
    assert again.weights_sha256() == trainer.weights_sha256()
    trainer.history.write(tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["settings"]["topology"] == BALANCED[3]
    facts = {"stages": 4, "diffusion_steps": 4, "meeting_steps": None}
    assert report["schedule"] == {"topology": "table", "rotate": True, **facts}


def test_a_table_from_the_command_line(tmp_path):
    from gossipgrad.cli import parser

    np.save(tmp_path / "t.npy", BALANCED[4])
    np.savetxt(tmp_path / "t.txt", BALANCED[4], fmt="%d")
    (tmp_path / "t.json").write_text(json.dumps(BALANCED[4]))
    for name in ("t.npy", "t.txt", "t.json"):
        for command in ("train", "bench"):
            found = parser().parse_args([command, "--topology", str(tmp_path / name)]).topology
            assert gg.GossipGraD(topology=found) == gg.GossipGraD(topology=BALANCED[4])


def test_a_table_under_mpi(mpirun):
    """MPI gives the bits of the virtual cluster."""
    text = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "import numpy as np, gossipgrad as gg\n"
        "from gossip_reference import small_net\n"
        "data = np.random.default_rng(0).standard_normal((90, 1, 8, 8)).astype(np.float32), np.arange(90) % 4\n"
        "def run(comm):\n"
        f"    trainer = gg.Trainer(small_net(), comm=comm, strategy=gg.GossipGraD(topology={BALANCED[3]}))\n"
        "    return trainer.fit(data, batch_size=7, progress=False).weights_sha256\n"
        "found = run(None)\n"
        "assert found == run(gg.VirtualCluster(3)) and len(set(found)) == 3\n"
    )
    mpirun(3, text)
