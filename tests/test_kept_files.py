"""Files that earlier versions wrote are read, with the values that were in them: tests/fixtures/make.py made them."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from fixtures import make

import gossipgrad as gg
from gossipgrad import plots
from gossipgrad.state import checkpoint_files, safetensors

ARCHIVES = sorted(path.stem for path in (ROOT / "tests" / "fixtures").glob("*.zip"))


@pytest.fixture(scope="module", params=ARCHIVES)
def kept(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    with zipfile.ZipFile(ROOT / "tests" / "fixtures" / f"{request.param}.zip") as file:
        file.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def arrays(kept):
    return dict(np.load(kept / "data.npz"))


def said(kept, name):
    return json.loads((kept / f"{name}.json").read_text())


def assert_close(found, kept, name, close=1e-3, but=()):
    """but: names of what is not compared."""
    wanted = np.load(kept / f"{name}.after.npy")
    flat = np.concatenate([one.ravel() for one in found.values()])
    compared = np.concatenate([np.full(one.size, key not in but) for key, one in found.items()])
    assert flat.shape == wanted.shape
    assert np.abs(flat - wanted)[compared].max() <= close * np.abs(wanted).max()


def ranks_of(case):
    """The group for a resume: that of the case, and for its MPI ranks as many virtual ones."""
    return gg.VirtualCluster(case.comm) if isinstance(case.comm, int) else case.comm


@pytest.mark.parametrize("name", make.CASES)
def test_a_checkpoint_goes_on(name, kept, arrays):
    case, facts = make.CASES[name], said(kept, name)
    path = kept / f"{name}.safetensors"
    x, y = make.data_of(case, arrays)
    trainer = gg.Trainer.load(path, comm=ranks_of(case))
    loaded = make.facts(trainer)
    if isinstance(case.comm, int):  # only a virtual cluster has clocks
        assert facts.pop("clocks") == []
        loaded.pop("clocks")
    assert json.loads(json.dumps(loaded)) == facts
    case.train(trainer, x, y, make.WHOLE, resume=path)
    after = trainer.consensus_weights()
    assert_close(after, kept, name, case.close)
    again = case.trainer(ranks_of(case))
    case.train(again, x, y, make.WHOLE, resume=path)
    assert again.weights_sha256() == trainer.weights_sha256()
    assert again.epoch == make.WHOLE and len(again.history.epochs) == make.WHOLE


@pytest.mark.filterwarnings("ignore:.*all begin with the consensus weights")
@pytest.mark.parametrize("name", ["mpi", "adam", "residues", "server_residues", "diloco", "elastic"])
def test_a_checkpoint_goes_on_on_other_ranks(name, kept, arrays):
    case = make.CASES[name]
    path = kept / f"{name}.safetensors"
    trainer = gg.Trainer.load(path, comm=gg.VirtualCluster(5))
    weights, _ = checkpoint_files.read(path)
    assert make.digest(trainer.weights(4)) == make.digest(weights)
    case.train(trainer, *make.data_of(case, arrays), make.WHOLE, resume=path)
    assert trainer.epoch == make.WHOLE


def test_what_a_checkpoint_says(kept):
    _, description = checkpoint_files.read(kept / "carried.safetensors")
    assert description["position"]["epoch"] == 2 and description["classes"] == sorted(set(make.TEXT))
    assert all("carried/lstm1" in safetensors.read(one)[0] for one in kept.glob("carried.safetensors.state/*/*"))
    _, description = checkpoint_files.read(kept / "algorithms.safetensors")
    assert any("algorithms" in one for one in description["algorithms"])
    trainer = gg.Trainer.load(kept / "algorithms.safetensors")
    assert trainer.algorithms == description["algorithms"]
    trainer = gg.Trainer.load(kept / "apoptosis.safetensors")
    assert trainer.net.born == {"fc1": 5} and trainer.net.units["fc1"] < 5 and trainer.history.apoptosis["events"]


def test_the_best_epoch(kept):
    weights, description = checkpoint_files.read(kept / "mpi.best.safetensors")
    losses = [one["validation"]["loss"] for one in description["epochs"]]
    assert losses[-1] == min(losses)
    net = make.perceptron()
    net.load_weights(kept / "mpi.best.safetensors")
    assert make.digest(net.weights()) == make.digest(weights)


def test_weights(kept):
    net, wanted = make.images(), make.images().weights(5)
    assert not net.loaded
    net.load_weights(kept / "weights.safetensors")
    for name, array in net.weights().items():  # draws of normal numbers may differ by a last bit on another CPU
        np.testing.assert_allclose(array, wanted[name], rtol=1e-6, atol=1e-7, err_msg=name)
    again = gg.Model.from_config(json.loads((kept / "network.json").read_text()))
    assert again.same_network(net)
    found = gg.read_weights(kept / "torch_weights.pt")
    assert found["step"] == 7 and found["model"]["0.weight"].shape == (5, 6)


def test_pickles(kept):
    objects = pickle.loads((kept / "objects.pickle").read_bytes())
    assert objects["network"].loaded and objects["network"].same_network(make.images())
    stored, _ = safetensors.read(kept / "weights.safetensors")
    assert make.digest(objects["network"].weights()) == make.digest(stored)
    assert objects["optimizer"] == gg.LARS(lr=0.5, schedule=gg.schedules.StepDecay(every=3, gamma=0.5))
    assert objects["strategy"] == gg.DiLoCo(period=4, fragments=2)
    assert objects["compression"] == make.ADACOMP
    assert objects["cluster"] == gg.VirtualCluster(3, straggler=gg.Straggler(0.2, 1e-6))
    assert objects["apoptosis"] == gg.Apoptosis(every=3)
    assert objects["loss"] == gg.CrossEntropy(label_smoothing=0.1)
    assert [one.patience for one in objects["callbacks"]] == [3, 2]
    assert objects["vocabulary"] == gg.data.Vocabulary([make.TEXT])
    history = pickle.loads((kept / "history.pickle").read_bytes())
    assert history.to_dict() == gg.History.read(kept / "report.json").to_dict()


def test_a_report(kept, tmp_path):
    history = gg.History.read(kept / "report.json")
    assert history.ranks == 2 and len(history) == make.SAVED and history.settings["strategy"] == "allreduce"
    assert history["train_loss"][1] < history["train_loss"][0] and history["validation.accuracy"][1] > 0.3
    assert history.last["compression"]["ratio"] > 1 and len(history.last["validation_replicas"]) == 2
    history.write(tmp_path / "again.json")
    newer: dict = {"time_by_rank": [], "views": []}
    assert json.loads((tmp_path / "again.json").read_text()) == newer | json.loads((kept / "report.json").read_text())
    assert "2 epochs" in repr(history) and "train_loss" in history._repr_html_()


def test_a_comparison(kept):
    pytest.importorskip("matplotlib")
    found = json.loads((kept / "compare.json").read_text())
    assert found["schema"] == 1 and len(found["runs"]) == 4 and {one["ranks"] for one in found["runs"]} == {2, 3}
    plots.comparison_curves([one for one in found["runs"] if one["ranks"] == 2])
    plots.comparison_scaling(found["runs"], found["target_loss"])


@pytest.mark.parametrize("form", ["file", "dictionary"])
def test_an_exchange_goes_on(form, kept):
    x, facts = make.exchange(), said(kept, "exchange")
    if form == "file":
        x.load(kept / "exchange.npz")
    else:
        x.load_state_dict(pickle.loads((kept / "exchange.pickle").read_bytes()))
    state = x.state_dict()
    assert x.steps == facts["step"] and json.loads(json.dumps(state["clocks"])) == facts["clocks"]
    assert [{name: make.digest(of) for name, of in rank.items()} for rank in state["ranks"]] == facts["state"]
    make.exchange_steps(x, 3)
    assert_close(x.consensus_weights(), kept, "exchange")


@pytest.mark.parametrize("optimizer", ["core", "torch"])
def test_a_training_state_of_torch_goes_on(optimizer, kept, arrays):
    torch = pytest.importorskip("torch")
    models, facts = make.replicas_of_torch(optimizer), said(kept, f"torch_{optimizer}")
    models.load_training_states([torch.load(kept / f"torch_{optimizer}_{rank}.pt") for rank in range(2)])
    assert models[0].steps == facts["step"] and make.torch_state(models) == facts["state"]
    make.torch_steps(models, arrays["x"], arrays["y"], 5, 8)
    after = {key: one.numpy() for key, one in models[0].consensus_state_dict().items() if "num_" not in key}
    # The gradient of a bias before a normalisation is rounding alone, and Adam makes whole steps of it.
    assert_close(after, kept, f"torch_{optimizer}", but=["0.bias"])


@pytest.mark.filterwarnings("ignore:Trying to unpickle")  # of another version of scikit-learn
def test_pickled_estimators(kept, arrays):
    pytest.importorskip("sklearn")
    estimators = pickle.loads((kept / "estimators.pickle").read_bytes())
    wanted = np.load(kept / "estimators.npz")
    x = arrays["x"].reshape(len(arrays["x"]), -1)
    np.testing.assert_allclose(estimators["classifier"].decision_function(x), wanted["scores"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(estimators["regressor"].predict(x), wanted["values"], rtol=1e-4, atol=1e-5)
    assert set(estimators["classifier"].predict(x)) <= set("abc")
