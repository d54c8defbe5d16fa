"""Networks trained by gossip as estimators of scikit-learn, which only this module needs.

from gossipgrad.sklearn import GossipClassifier

model = make_pipeline(StandardScaler(), GossipClassifier(hidden=(64,), comm=gg.VirtualCluster(4)))
model.fit(x_train, y_train).score(x_test, y_test)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as _missing:
    raise ImportError(
        "gossipgrad.sklearn wants scikit-learn 1.6 or newer: pip install 'gossipgrad[sklearn]'"
    ) from _missing

from gossipgrad import layers
from gossipgrad.cluster import VirtualCluster
from gossipgrad.errors import choice, integer
from gossipgrad.literals import Loss
from gossipgrad.model import Model, Sequential
from gossipgrad.optim import Adam
from gossipgrad.strategies import GossipGraD
from gossipgrad.trainer import Trainer

__all__ = ["GossipClassifier", "GossipRegressor"]

_ACTIVATIONS: dict[str, type[layers.Layer]] = {
    "relu": layers.ReLU,
    "tanh": layers.Tanh,
    "sigmoid": layers.Sigmoid,
    "gelu": layers.GELU,
}
_PREDICTED_AT_ONCE = 256


class _GossipEstimator(BaseEstimator):  # type: ignore[misc]
    """Common base of the estimators. fit checks parameters, as scikit-learn demands."""

    def __init__(
        self,
        hidden: Sequence[int] = (100,),
        activation: str = "relu",
        network: Callable[[int, int], Model] | None = None,
        optimizer: Any = None,
        strategy: Any = None,
        comm: Any = None,
        epochs: int = 100,
        batch_size: int = 32,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.network = network
        self.optimizer = optimizer
        self.strategy = strategy
        self.comm = comm
        self.epochs = epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose

    def _network(self, features: int, outputs: int) -> Model:
        if self.network is not None:
            made = self.network(features, outputs)
            if not isinstance(made, Model):
                raise TypeError(f"network: gave {made!r}; allowed: a function that gives a gossipgrad.Model")
            if made.output_shape != (outputs,):
                raise ValueError(
                    f"network: gave a model with output {made.output_shape}; allowed: ({outputs},), as its second "
                    "argument says"
                )
            return made
        activation = _ACTIVATIONS[choice("activation", self.activation, _ACTIVATIONS)]
        chosen: list[layers.Layer] = []
        if isinstance(self.hidden, str) or not isinstance(self.hidden, Iterable):
            raise TypeError(f"hidden={self.hidden!r}: allowed: the units of each hidden layer, as (100,)")
        for i, units in enumerate(self.hidden):
            chosen += [layers.Linear(integer(f"hidden[{i}]", units, 1)), activation()]
        return Sequential([*chosen, layers.Linear(outputs)], input=features)

    def _train(self, x: NDArray[Any], y: NDArray[Any], outputs: int, loss: Loss) -> None:
        epochs, batch_size = integer("epochs", self.epochs, 1), integer("batch_size", self.batch_size, 1)
        # Under MPI all ranks must draw alike, so a missing seed is not a new number on each.
        seed = 0 if self.random_state is None else check_random_state(self.random_state).randint(2**31 - 1)
        with Trainer(
            self._network(x.shape[1], outputs),
            loss=loss,
            optimizer=self.optimizer if self.optimizer is not None else Adam(),
            strategy=self.strategy if self.strategy is not None else GossipGraD(),
            comm=self.comm,
            seed=int(seed),
        ) as trainer:
            if len(x) < trainer.size:
                raise ValueError(f"n_samples={len(x)}: {trainer.size} ranks want at least one sample each")
            batch = min(batch_size, len(x) // trainer.size)
            self.history_ = trainer.fit(x, y, epochs=epochs, batch_size=batch, progress=bool(self.verbose))
            self.network_ = trainer.net.config()
            self.weights_ = trainer.consensus_weights()
        self.n_iter_ = epochs

    def _outputs(self, x: Any) -> NDArray[np.float64]:
        """The consensus model's outputs, computed by this process alone: also under MPI each rank has its own
        samples."""
        check_is_fitted(self, "weights_")
        checked = validate_data(self, x, reset=False, dtype=np.float32)
        net = Model.from_config(self.network_)
        net.load_weights(self.weights_)
        with Trainer(net, loss="mean_squared_error", comm=VirtualCluster(1)) as alone:
            return np.asarray(alone.predict(checked, _PREDICTED_AT_ONCE), np.float64)


class GossipClassifier(ClassifierMixin, _GossipEstimator):  # type: ignore[misc]
    """A classifier: a network trained by gossip, as an estimator of scikit-learn.

    hidden        units of the hidden layers; (): a linear model. activation: "relu", "tanh", "sigmoid", "gelu".
    network       instead of these two: a function (features, outputs) -> gossipgrad.Model, whose outputs are scores.
    optimizer     as gossipgrad.SGD(lr=0.1); None: Adam(). strategy: None: GossipGraD().
    comm          as for gossipgrad.Trainer: VirtualCluster(4) trains four replicas in this process; None under mpiexec:
                  all ranks, which call fit alike, with all samples.
    epochs, batch_size   passes over the data, and samples a rank and step, or all that a rank has.
    random_state  None: the seed 0, so that fits repeat each other.
    verbose       show the progress.

    After fit: classes_, n_features_in_, n_iter_, history_ (gossipgrad.History), weights_ and network_ (the consensus
    model: arrays by name, and the config for gossipgrad.Model.from_config). Features are dense, and are not scaled: put
    a StandardScaler before it. fit is collective; predictions are each process's own.
    """

    def fit(self, X: Any, y: Any) -> GossipClassifier:  # noqa: N803, scikit-learn's names
        """Train from scratch on (n, features) and n labels of any kind; returns self."""
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            (only,) = self.classes_.tolist()
            raise ValueError(f"y has one class, {only!r}; a classifier wants at least 2 classes")
        self._train(x, codes.astype(np.int32), len(self.classes_), "cross_entropy")
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Scores (n, classes); with two classes (n,), where positive scores mean the second."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities (n, classes), the softmax of the scores."""
        scores = self._outputs(X)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each sample, (n,)."""
        scores = self._outputs(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])


class GossipRegressor(RegressorMixin, _GossipEstimator):  # type: ignore[misc]
    """A regression: a network trained by gossip, as an estimator of scikit-learn.

    Parameters are those of GossipClassifier. The loss is the mean squared error of targets scaled to a mean of 0 and a
    deviation of 1; predict undoes the scaling. y may have several columns.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> GossipRegressor:  # noqa: N803
        """Train from scratch on (n, features) and targets (n,) or (n, outputs); returns self."""
        x, targets = validate_data(self, X, y, dtype=np.float32, y_numeric=True, multi_output=True)
        columns = np.asarray(targets, np.float64).reshape(len(x), -1)
        deviation = columns.std(axis=0)
        self.y_mean_, self.y_scale_ = columns.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
        self.y_shape_ = targets.shape[1:]
        scaled = ((columns - self.y_mean_) / self.y_scale_).astype(np.float32)
        self._train(x, scaled, columns.shape[1], "mean_squared_error")
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Predictions (n,) or (n, outputs), in the shape of the targets."""
        values = self._outputs(X)
        values = values * self.y_scale_ + self.y_mean_
        return np.asarray(values.reshape(len(values), *self.y_shape_))
