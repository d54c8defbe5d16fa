"""collectives="mpi": MPI's own sums. Results equal to rounding, with equal bits on every rank; and refusals."""

import hashlib
import json
import re
import sys

import pytest
from conftest import ROOT, run_group

import gossipgrad as gg

# Own sums would be tuned, and then their messages are not those of MPI's.
SIZES = {"bucket_bytes": 1 << 20, "chunk_bytes": 1 << 21}
# name: strategy without its collectives, optimiser. Layers of 84, 18,464 and 330 numbers, 203 samples over the ranks.
RUNS = {
    "allreduce": (gg.AllReduce, {}, "sgd"),
    "allreduce, adam": (gg.AllReduce, {}, "adam"),
    "layerwise": (gg.LayerwiseAllReduce, SIZES, "sgd"),
    "layerwise, small chunks": (gg.LayerwiseAllReduce, {"bucket_bytes": 1, "chunk_bytes": 6000}, "adam"),
    "periodic": (gg.PeriodicAllReduce, {"period": 2}, "adam"),
    "elastic": (gg.ElasticAveraging, {"period": 2}, "sgd"),
    "hierarchical": (gg.GossipGraD, {**SIZES, "hierarchical": True, "ranks_per_node": 2, "staleness": 1}, "sgd"),
    "hierarchical, gradients": (
        gg.GossipGraD,
        {**SIZES, "hierarchical": True, "ranks_per_node": 2, "exchange": "gradients"},
        "sgd",
    ),
}
TAKING = (gg.AllReduce, gg.LayerwiseAllReduce, gg.PeriodicAllReduce, gg.ElasticAveraging, gg.GossipGraD)
HEAD = f"import sys; sys.path[:0] = [{str(ROOT / 'tests')!r}]\nimport json\nimport gossipgrad as gg\n"
HEAD += "import test_collectives\n"


def net():
    layers = [gg.Conv2d(4, 3), gg.MaxPool2d(2), gg.Flatten(), gg.Linear(32), gg.Tanh(), gg.Linear(10)]
    return gg.Sequential(layers, input=(2, 26, 26), name="middling")


def found(name, collectives):
    """What a run ends with: weights, hashes, losses, bytes, messages. 16 steps an epoch at most, ragged ends."""
    kind, options, optimizer = RUNS[name]
    made: gg.Optimizer = gg.Adam(lr=0.003) if optimizer == "adam" else gg.SGD(lr=0.03, momentum=0.9)
    trainer = gg.Trainer(net(), optimizer=made, strategy=kind(collectives=collectives, **options), seed=3)
    train, _ = gg.data.synthetic((2, 26, 26), train=208, test=1, seed=1)
    history = trainer.fit(train, epochs=2, batch_size=13, progress=False)
    weights = {key: value.tolist() for key, value in trainer.consensus_weights().items() if key.endswith("bias")}
    last = history.last
    centre = hashlib.sha256(b"".join(value.tobytes() for value in trainer.consensus_weights().values())).digest()
    centres = [one.hex() for one in trainer.gather(centre)]
    trainer.close()
    return {
        "weights": weights,
        "hashes": history.weights_sha256,
        "centres": centres,
        "losses": history["train_loss"],
        "sent": [last["bytes_sent"], last["messages_sent"]],
    }


def answers(done):
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.core(1)
@pytest.mark.parametrize("p", [3, 1, 4])
def test_the_same_to_rounding(p, mpirun):
    text = HEAD + (
        "both, runs = gg.strategies.COLLECTIVES, test_collectives.RUNS\n"
        "found = {name: [test_collectives.found(name, one) for one in both] for name in runs}\n"
        "if gg.Trainer(test_collectives.net()).rank == 0: print(json.dumps(found))\n"
    )
    runs = answers(mpirun(p, ["-W", "ignore:hierarchical=True", "-c", text]))
    for name, (own, mpi) in runs.items():
        assert mpi["losses"] == pytest.approx(own["losses"], rel=1e-5), name
        for key, values in own["weights"].items():
            assert mpi["weights"][key] == pytest.approx(values, rel=1e-4, abs=2e-6), (name, key)
        assert mpi["sent"][0] == pytest.approx(own["sent"][0], rel=1e-3), name
        if RUNS[name][1].get("chunk_bytes", 1 << 21) > 6000:  # a chunk of 16 numbers has one slice of ours
            assert mpi["sent"][1] == own["sent"][1], name
        # In both runs the same ranks share their bits, and all hold one centre.
        assert [mpi["hashes"].index(h) for h in mpi["hashes"]] == [own["hashes"].index(h) for h in own["hashes"]], name
        assert len(set(mpi["centres"])) == 1, name
    assert p == 1 or runs["allreduce"][1]["sent"][0] > 0


def test_the_sums_are_those_of_float64(mpirun, tmp_path):
    """Gradients after one step: the weighted mean over the ranks, added up in float64 from the ranks' own."""
    text = HEAD + (
        "import numpy as np\n"
        "data = [gg.data.synthetic((2, 26, 26), train=5 + r, test=1, seed=r)[0] for r in range(3)]\n"
        "for kind in (gg.AllReduce, gg.LayerwiseAllReduce):\n"
        "    trainer = gg.Trainer(test_collectives.net(), strategy=kind(collectives='mpi'), seed=3)\n"
        "    own = data[trainer.rank]\n"
        "    trainer.train_step(own.samples, own.targets)\n"
        "    summed = trainer.gradients()\n"
        "    alone = gg.Trainer(test_collectives.net(), strategy=gg.NoExchange(), seed=3)\n"
        "    alone.train_step(own.samples, own.targets)\n"
        "    for key, value in alone.gradients().items():\n"
        "        parts = [np.frombuffer(one, np.float32) for one in trainer.gather(value.tobytes())]\n"
        "        terms = np.array([(5 + r) / 18 * part.astype(np.float64) for r, part in enumerate(parts)])\n"
        "        error = np.abs(summed[key].ravel() - terms.sum(0)) / (np.abs(terms).sum(0) + 1e-30)\n"
        "        assert error.max() < 5 * 2.0**-24, (key, error.max())\n"
        "print('checked')\n"
        f"trainer.save({str(tmp_path / 'run.safetensors')!r})\n"
        "hashes = trainer.weights_sha256()\n"
        "if trainer.rank == 0: print(json.dumps(hashes))\n"
    )
    done = mpirun(3, text)
    assert done.stdout.count("checked") == 3
    with pytest.warns(UserWarning, match="collectives 'mpi' -> 'own'"):
        again = gg.Trainer.load(tmp_path / "run.safetensors", comm=gg.VirtualCluster(3))
    assert again.strategy == gg.LayerwiseAllReduce() and list(again.weights_sha256()) == answers(done)


# ---- who may not


@pytest.mark.parametrize("kind", TAKING)
def test_only_ranks_of_mpi(kind):
    options = {"hierarchical": True} if kind is gg.GossipGraD else {}
    for comm in (None, gg.VirtualCluster(1), gg.VirtualCluster(3)):
        with pytest.raises(ValueError, match=r"collectives: 'mpi'.*(local|virtual).*allowed is 'own'"):
            gg.Trainer(net(), strategy=kind(collectives="mpi", **options), comm=comm)


def test_no_slow_network(mpirun):
    text = HEAD + (
        "for kind in test_collectives.TAKING[:2]:\n"
        "    strategy, network = kind(collectives='mpi'), gg.Network(latency=1e-3)\n"
        "    try: gg.Trainer(test_collectives.net(), strategy=strategy, network=network)\n"
        "    except ValueError as error: print(error)\n"
    )
    lines = mpirun(2, text).stdout.splitlines()
    assert len(lines) == 4 and all(
        re.search("collectives: 'mpi'.*slow network.*without network=", line) for line in lines
    )


def test_options_that_do_not_fit():
    for kind in TAKING:
        with pytest.raises(ValueError, match=r"collectives='nccl'.*'own', 'mpi'"):
            kind(collectives="nccl")
        with pytest.raises(ValueError, match=r"wire_dtype='bfloat16' with collectives='mpi'.*allowed: 'float32'"):
            kind(collectives="mpi", wire_dtype="bfloat16")
    with pytest.raises(ValueError, match=r"collectives='mpi': allowed only with hierarchical=True"):
        gg.GossipGraD(collectives="mpi")
    with pytest.raises(ValueError, match=r"collectives='mpi': allowed only with synchronous=True"):
        gg.ElasticAveraging(collectives="mpi", synchronous=False)


def test_the_command_line():
    words = [
        "-m",
        "gossipgrad",
        "train",
        "--dataset",
        "synthetic",
        "--batch-size",
        "50",
        "--epochs",
        "1",
        "--lr",
        "0.005",
    ]
    words += ["--strategy", "allreduce", "--collectives", "mpi"]
    alone = run_group([sys.executable, *words, "--quiet"])
    assert alone.returncode == 1 and "collectives: 'mpi'" in alone.stderr and len(alone.stderr.splitlines()) == 1


# ---- what goes wrong


@pytest.mark.full
def test_a_rank_that_does_not_come(mpirun):
    """All others say for which sum they waited, in which step, and end."""
    text = HEAD + (
        "import time, numpy as np\n"
        "from gossipgrad.training import loop\n"
        "train = loop.Loop._train\n"
        "def late(self, done):\n"  # after the ranks have agreed to begin an epoch
        "    if self.trainer.rank == 1 and self.trainer.epoch == 1: time.sleep(1000)\n"
        "    train(self, done)\n"
        "loop.Loop._train = late\n"
        "data = np.zeros((30, 2, 26, 26), np.float32), np.zeros(30, np.int64)\n"
        "strategy = gg.LayerwiseAllReduce(collectives='mpi', bucket_bytes=1)\n"
        "trainer = gg.Trainer(test_collectives.net(), strategy=strategy, timeout=1.0)\n"
        "trainer.fit(data, epochs=2, batch_size=5, progress=False)\n"
    )
    done = mpirun(3, text, check=False)
    assert done.returncode != 0
    for rank in (0, 2):
        waited = (
            rf"step 2, layers 'fc2' to 'fc2': .*rank {rank}: waited [1-9]\d*\.\d+ s for the sum"
            r" of \d+ values over 3 ranks"
        )
        assert re.search(waited, done.stderr) and "CommunicationError" in done.stderr, done.stderr


@pytest.mark.full
def test_an_exception_on_one_rank_ends_all(mpirun):
    text = HEAD + (
        "import numpy as np\n"
        "strategy = gg.LayerwiseAllReduce(collectives='mpi')\n"
        "with gg.Trainer(test_collectives.net(), strategy=strategy) as trainer:\n"
        "    for step in range(20):\n"
        "        if trainer.rank == 1 and step == 7: raise RuntimeError('on purpose')\n"
        "        trainer.train_step(np.zeros((2, 2, 26, 26), np.float32), np.zeros(2, np.int64))\n"
    )
    done = mpirun(3, text, check=False)
    assert done.returncode != 0
    assert done.stderr.count("RuntimeError: on purpose") == 1 and done.stderr.count("Traceback") == 1, done.stderr
