"""What ranks of MPI call of the core, for tests/sanitize.sh: mpiexec -n 2 python tests/sanitize_ranks.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import bindings  # noqa: F401, notes what is called
import numpy as np

import gossipgrad as gg
from gossipgrad import _core


class Watch(gg.Callback):
    every = 3

    def on_progress(self, trainer: gg.Trainer, progress: gg.callbacks.Progress) -> None:
        assert progress.step >= 0

    def on_step(self, trainer: gg.Trainer, step: int) -> None:
        trainer.evaluate(x, y)


folder = Path(sys.argv[1])
random = np.random.default_rng(0)
x, y = random.standard_normal((60, 6)).astype(np.float32), random.integers(0, 3, 60)


def trained(strategy: gg.Strategy, **options: object) -> list[str]:
    net = gg.Sequential([gg.Linear(9), gg.ReLU(), gg.Linear(3)], input=(6,)).factors("fc2", lr=0.5)
    apoptosis = gg.Apoptosis(every=4, start=1, probe=16)
    with gg.Trainer(net, strategy=strategy, apoptosis=apoptosis, seed=3, timeout=100, trace=5000) as trainer:
        history = trainer.fit(x, y, batch_size=4, progress=False, final_mix=True, **options)
        trainer.write_trace(folder / "trace.json")
        if strategy.settings().get("shuffle_samples"):
            assert trainer.audit_samples()["ok"]
        assert trainer.team.allgather(bytes([trainer.rank])) == [b"\0", b"\1"]
        trainer.team.barrier()
        assert trainer.team.timeout == 100 and trainer.core.measure_step(4) > 0
        return history.weights_sha256


for number, strategy in enumerate(
    (
        gg.GossipGraD(staleness=1),
        gg.GossipGraD(shuffle_samples=True),
        gg.PushGossip(),
        gg.ParameterServer(),
        gg.OverlappedAveraging(),
        gg.DiLoCo(period=3, fragments=2),
    )
):
    path = folder / f"{number}.safetensors"
    trained(strategy, epochs=1, callbacks=[gg.Checkpoint(path, every=3), Watch()], validation=(x, y))
    assert len(set(trained(strategy, epochs=2, resume=path))) == 1
team = gg.Team()
assert team.size == 2 and (team.allreduce(np.full(5, team.rank + 1.0), "sum") == 3).all()
exchange = gg.Exchange({"w": np.ones(7)})
exchange.gradients["w"][...] = team.rank
exchange.step()
exchange.load_state_dict(exchange.state_dict())
_core.first_to_report()
assert _core.cuda()[0] >= 0
team.barrier()
_core.note_exit(0)
