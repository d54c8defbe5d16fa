"""Denormal numbers: zero wherever the core computes, and as they were for whoever called it."""

from __future__ import annotations

import platform

import numpy as np
import operations
import pytest

import gossipgrad as gg

if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
    pytest.skip("the core cannot flush on this CPU", allow_module_level=True)

TINY = np.float32(1e-40)
BACKENDS = ["native", *(["onednn"] if gg._core.info()["onednn"] else [])]


def set_all(trainer: gg.Trainer, value: np.float32) -> None:
    weights = {name: np.full_like(array, value) for name, array in trainer.core.exchange.arena("weight").items()}
    trainer.core.exchange.load_arena("weight", weights)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_denormals_are_zero_in_every_thread(backend, threads, ranks):
    """A product with a denormal weight is 0, and an update makes the weight 0 where there is a gradient; large enough
    that threads share it."""
    net = gg.Sequential([gg.Linear(512, bias=False)], input=512)
    comm = gg.VirtualCluster(2) if ranks == 2 else None
    x, y = np.full((64, 512), 1e30, np.float32), np.ones((64, 512), np.float32)
    options = dict(loss="mean_squared_error", optimizer=gg.SGD(lr=0.0), threads=threads, backend=backend, comm=comm)
    with gg.Trainer(net, **options) as trainer:
        set_all(trainer, TINY)
        assert all(
            (array == TINY).all() for array in trainer.core.exchange.arena("weight").values()
        )  # a copy computes nothing
        for _ in range(3):  # from the second time on the threads are there and were given back
            assert not trainer.predict(x).any()
            assert TINY * np.float32(2) != 0
        trainer.train_step(x if ranks == 1 else [x, x], y if ranks == 1 else [y, y])
        assert not any(array.any() for array in trainer.core.exchange.arena("weight").values())


def test_the_caller_has_its_own_mode_back():
    """Whatever it is, and to the last flag; results do not depend on it."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 8).astype(np.int32)
    own = operations.float_mode()
    found = []
    upward = 1 << 14 if platform.machine().lower() in ("x86_64", "amd64") else 1 << 22
    try:
        for mode in (own, own | upward):
            with gg.Trainer(gg.models.lenet(), threads=2) as trainer:
                operations.set_float_mode(mode)
                before = operations.float_mode()
                trainer.train_step(x, y)
                after = operations.float_mode()
                operations.set_float_mode(own)
                assert after & ~0x3F == before & ~0x3F  # Python itself raises flags
                found.append(trainer.weights())
    finally:
        operations.set_float_mode(own)
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


SCRIPT = """
import hashlib
import os
import sys

import numpy as np

import gossipgrad as gg


def weights_after(comm):
    net = gg.Sequential([gg.Linear(40), gg.ReLU(), gg.Linear(10)], input=30)
    strategy = gg.GossipGraD(wire_dtype=sys.argv[1], bucket_bytes=4096, chunk_bytes=1024)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 5, 16, 30)).astype(np.float32), rng.integers(0, 10, (2, 5, 16)).astype(np.int32)
    with gg.Trainer(net, optimizer=gg.SGD(lr=1e-4, momentum=0.9), strategy=strategy, comm=comm) as trainer:
        weights = trainer.core.exchange.arena("weight")
        weights = {n: (a * np.float32(1e-38)).astype(np.float32) for n, a in weights.items()}
        assert any(((a != 0) & (np.abs(a) < 2.0**-126)).any() for a in weights.values())
        trainer.core.exchange.load_arena("weight", weights)
        ranks = range(2) if comm is not None else [trainer.rank]
        for step in range(5):
            batches = [[a[r, step] for r in ranks] for a in (x, y)]
            trainer.train_step(*(batches if comm is not None else [b[0] for b in batches]))
        return [
            hashlib.sha256(b"".join(a.tobytes() for a in trainer.core.exchange.arena("weight", i).values())).hexdigest()
            for i in range(len(ranks))
        ]


rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
own, virtual = weights_after(None), weights_after(gg.VirtualCluster(2))
assert own[0] == virtual[rank], (own, virtual)
"""


@pytest.mark.core(1)
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_mpi_and_virtual_have_the_same_bits(mpirun, tmp_path, wire):
    script = tmp_path / "denormal.py"
    script.write_text(SCRIPT)
    mpirun(2, [script, wire])
