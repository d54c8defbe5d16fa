"""Checkpoints whose checksums are right and whose content is not: one type of error, and no file beside their own."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.state import checkpoint_files, safetensors
from gossipgrad.training import checkpoint

VALUES = [None, True, -1, 1e308, 2**70, "", "x", [], [None], [[]], {}, {"a": 1}, [{}], float("nan")]


def make():
    net = gg.Sequential([gg.Linear(3), gg.ReLU(), gg.Linear(2)], input=(4,))
    return gg.Trainer(net, optimizer=gg.SGD(lr=0.1, momentum=0.9), comm=gg.VirtualCluster(2))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    with make() as trainer:
        x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        trainer.fit(x, x[:, 0] > 0, batch_size=8, progress=False)
        trainer.save(path)
    return path


def places(value, before=()):
    yield before
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*before, key))


def changed(description, place, value):
    made = copy.deepcopy(description)
    of = made
    for key in place[:-1]:
        of = of[key]
    of[place[-1]] = value
    return made


def forge(saved, path, description=None, **metadata):
    arrays, before = safetensors.read(saved)
    texts = {key: before[key] for key in ("format", "state", "gossipgrad")} | metadata
    if description is not None:
        texts["gossipgrad"] = json.dumps(description)
    safetensors.write(path, arrays, texts, checksums=True)
    shutil.copytree(checkpoint_files.state_root(str(saved)), checkpoint_files.state_root(str(path)), dirs_exist_ok=True)


def test_what_a_description_says_is_checked_where_it_is_read(saved, tmp_path, monkeypatch):
    """Every value of it in turn becomes others."""
    description = json.loads(safetensors.read(saved)[1]["gossipgrad"])
    monkeypatch.setattr(safetensors, "header_digest", lambda path, metadata: "")
    texts, arrays = safetensors.read(saved)[::-1]
    refused = 0
    for place in places(description):
        for value in VALUES if place else ():
            forged = json.dumps(changed(description, place, value))
            monkeypatch.setattr(safetensors, "read", lambda path, t=texts | {"gossipgrad": forged}: (arrays, t))
            try:
                checkpoint.Saved.of("c", checkpoint_files.read("c")[1])
            except gg.CheckpointError:
                refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "push_sum"), {}),
        (("settings", "device"), {}),
        (("settings", "seed"), [{}]),
        (("settings", "loss"), ""),
        (("settings", "dtype"), [None]),
        (("model", "layers", 1, "inputs", 0), 7),
        (("model", "layers", 1, "options"), []),
        (("rank_files",), {}),
        (("algorithms",), [{"table": 3}]),
        (("learning_rate",), -1),
    ],
)
def test_a_forged_description_is_a_checkpoint_error_wherever_it_is_read(saved, tmp_path, place, value):
    forge(saved, tmp_path / "f", changed(json.loads(safetensors.read(saved)[1]["gossipgrad"]), place, value))
    with pytest.raises(gg.CheckpointError):
        gg.Trainer.load(tmp_path / "f")
    x = np.zeros((64, 4), np.float32)
    with make() as trainer, pytest.raises(gg.CheckpointError):
        trainer.fit(x, x[:, 0] > 0, epochs=2, batch_size=8, resume=tmp_path / "f", progress=False)


@pytest.mark.parametrize("state", ["../..", "", ".", "/tmp", "step-00000004-0123456", "step-00000004-01234567/.."])
def test_no_file_outside_of_the_checkpoint_is_read(saved, tmp_path, state, monkeypatch):
    forge(saved, tmp_path / "f", state=state)
    monkeypatch.setattr(checkpoint_files, "read_rank", lambda *_: pytest.fail("a rank's file was read"))
    with pytest.raises(gg.CheckpointError, match="its description cannot be read .*state"):
        gg.Trainer.load(tmp_path / "f")
