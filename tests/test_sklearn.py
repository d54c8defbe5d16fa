"""Networks trained by gossip as estimators of scikit-learn."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import gossipgrad as gg

pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from gossipgrad.sklearn import GossipClassifier, GossipRegressor  # noqa: E402

# What scikit-learn itself leaves out where array_api or pandas are not there. None fails.
MAY_BE_SKIPPED = {"check_array_api_input", "check_classifier_data_not_an_array", "check_regressor_data_not_an_array"}


def blobs(n=120, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    return generator.standard_normal((n, 4)) + 4 * np.eye(4)[labels], np.array(["ant", "bee", "cat"])[labels]


@pytest.mark.filterwarnings("ignore:Skipping check")
@pytest.mark.parametrize(("kind", "ranks"), [(GossipClassifier, 2), (GossipRegressor, 1)])
def test_check_estimator(kind, ranks):
    results = check_estimator(kind(comm=gg.VirtualCluster(ranks)), on_fail=None)
    assert len(results) > 40
    assert {one["check_name"] for one in results if one["status"] != "passed"} <= MAY_BE_SKIPPED


def test_a_classifier_learns_and_says_probabilities():
    x, y = blobs()
    model = GossipClassifier((8,), optimizer=gg.Adam(0.02), comm=gg.VirtualCluster(3), epochs=40).fit(x, y)
    assert list(model.classes_) == ["ant", "bee", "cat"] and model.score(x, y) > 0.97
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    assert (model.classes_[p.argmax(1)] == model.predict(x)).all() and (
        p.argmax(1) == model.decision_function(x).argmax(1)
    ).all()
    assert model.history_.last["epoch"] == model.n_iter_ == 40 and model.history_.ranks == 3


def test_the_same_as_a_trainer():
    x, y = blobs()
    model = GossipClassifier(
        (5,), "tanh", optimizer=gg.SGD(0.05), comm=gg.VirtualCluster(2), epochs=3, batch_size=10, random_state=4
    ).fit(x, y)
    seed = int(np.random.RandomState(4).randint(2**31 - 1))
    net = gg.Sequential([gg.Linear(5), gg.Tanh(), gg.Linear(3)], input=4)
    codes = np.unique(y, return_inverse=True)[1].astype(np.int32)
    with gg.Trainer(net, optimizer=gg.SGD(0.05), comm=gg.VirtualCluster(2), seed=seed) as trainer:
        trainer.fit(x.astype(np.float32), codes, epochs=3, batch_size=10, progress=False)
        for name, array in trainer.consensus_weights().items():
            assert (model.weights_[name] == array).all()
        np.testing.assert_array_equal(model.decision_function(x), trainer.predict(x.astype(np.float32)))


@pytest.mark.parametrize("columns", [None, 1, 3])
def test_a_regression_of_targets_of_any_scale(columns):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((200, 4))
    y = 1e6 + 1e3 * (x @ generator.standard_normal((4, columns or 1)))
    y = y[:, 0] if columns is None else y
    model = GossipRegressor(hidden=(), optimizer=gg.SGD(0.1), comm=gg.VirtualCluster(2), epochs=30).fit(x, y)
    assert model.predict(x).shape == y.shape and model.score(x, y) > 0.999


def test_in_a_pipeline_and_a_grid_search():
    x, y = blobs(90)
    pipe = make_pipeline(
        StandardScaler(), GossipClassifier(optimizer=gg.Adam(0.02), comm=gg.VirtualCluster(2), epochs=20)
    )
    search = GridSearchCV(pipe, {"gossipclassifier__hidden": [(2,), (8,)]}, cv=3).fit(100 * x + 7, y)
    assert search.best_score_ > 0.9


def test_own_networks_copies_and_pickles():
    def net(features, outputs):
        return gg.Sequential([gg.Linear(6), gg.BatchNorm1d(), gg.ReLU(), gg.Linear(outputs)], input=features)

    x, y = blobs()
    model = GossipClassifier(network=net, strategy=gg.AllReduce(), comm=gg.VirtualCluster(2), epochs=5)
    again = clone(model).fit(x, y)
    model.fit(x, y)
    assert again is not model and (again.predict_proba(x) == model.predict_proba(x)).all()
    del model.network  # a local function has no pickle
    assert (pickle.loads(pickle.dumps(model)).predict_proba(x) == again.predict_proba(x)).all()


def test_what_cannot_be_is_named():
    x, y = blobs(6)
    for options, message in (
        ({"hidden": (0,)}, r"hidden\[0\]=0: allowed"),
        ({"hidden": 5}, "hidden=5: allowed: the units of each hidden layer"),
        ({"hidden": "5"}, "hidden='5': allowed: the units of each hidden layer"),
        ({"activation": "rulu"}, "activation='rulu': allowed.*did you mean 'relu'"),
        ({"epochs": 0}, "epochs=0"),
        ({"network": lambda features, outputs: None}, "network: gave None; allowed: a function"),
        (
            {"network": lambda features, outputs: gg.Sequential([gg.Linear(outputs + 1)], input=features)},
            r"network: gave a model with output \(4,\); allowed: \(3,\)",
        ),
        ({"comm": gg.VirtualCluster(7)}, "n_samples=6: 7 ranks want at least one sample each"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            GossipClassifier(**options).fit(x, y)
    with pytest.raises(ValueError, match="y has one class, .*ant"):
        GossipClassifier().fit(x, ["ant"] * 6)
    with pytest.raises(ValueError, match="y has one class, 3; a classifier wants at least 2 classes"):
        GossipClassifier().fit(x, np.full(6, 3))
    with pytest.raises(NotFittedError):
        GossipClassifier().predict(x)


UNDER_MPI = """
import numpy as np
import gossipgrad as gg
from gossipgrad.sklearn import GossipClassifier
x = np.random.default_rng(0).standard_normal((40, 3))
y = (x[:, 0] > 0).astype(int)
model = GossipClassifier(hidden=(4,), epochs=3).fit(x, y)
rank = model.history_.ranks and gg.Team().rank
if rank == 1:  # what is predicted is each process's own
    print(model.predict_proba(x).sum(0).tolist(), flush=True)
"""


def test_under_mpi_as_in_a_virtual_cluster(mpirun):
    x = np.random.default_rng(0).standard_normal((40, 3))
    model = GossipClassifier(hidden=(4,), epochs=3, comm=gg.VirtualCluster(2)).fit(x, (x[:, 0] > 0).astype(int))
    assert mpirun(2, UNDER_MPI).stdout.strip() == str(model.predict_proba(x).sum(0).tolist())


def test_nothing_else_needs_it():
    program = "import sys, gossipgrad; assert not [m for m in sys.modules if m.split('.')[0] == 'sklearn']"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    program = (
        "import sys; sys.modules['sklearn'] = None\ntry:\n    import gossipgrad.sklearn\n"
        "except ImportError as error:\n    assert 'pip install' in str(error)\nelse:\n    raise SystemExit(1)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
