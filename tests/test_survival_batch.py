"""What a batch job asks of ranks that may die: a signal lets all save, and is nobody's death."""

from __future__ import annotations

import pytest
from survival_runs import survived

SAVES = """
import json, os, signal
import numpy as np
import gossipgrad as gg

class Signals(gg.Callback):
    every = 1
    def on_step(self, trainer, step):
        if trainer.rank == 1 and step == 5: signal.raise_signal(signal.SIGUSR1)

x = np.eye(40, dtype=np.float32)
trainer = gg.Trainer(gg.Sequential([gg.Linear(1)], input=(40,)), loss="mean_squared_error")
saving = gg.Checkpoint(json.loads(os.environ["CASE"]), save_on_signal=True)
trainer.fit(x, x[:, :1], epochs=1000, batch_size=2, progress=False, callbacks=[Signals(), saving])
"""


@pytest.mark.core(2)
def test_ranks_that_save_on_a_signal_have_not_died(tmp_path):
    """Else the others would go on, and new ranks would come in their places."""
    saved = tmp_path / "run.safetensors"
    _, errors = survived(tmp_path, SAVES, str(saved), "-n", "2", "--respawn", "1", code=75)
    assert saved.exists() and "ended with" not in errors, errors
