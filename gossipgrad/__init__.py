"""Data-parallel training that communicates by gossip: a C core under a thin Python package.

    import gossipgrad as gg

    train, test = gg.data.load("mnist-10k")
    trainer = gg.Trainer(gg.models.lenet(), optimizer=gg.SGD(lr=0.02, momentum=0.9), comm=gg.VirtualCluster(4))
    history = trainer.fit(train, validation=test, epochs=2)

The method: Daily et al., "GossipGraD" (2018), arXiv 1803.05880. Under mpiexec the same code trains on all ranks.
"""

import importlib
from typing import TYPE_CHECKING

from gossipgrad.launch import interrupts as _interrupts

_interrupts.begin_import()  # before all that takes time

from gossipgrad.launch import origin as _origin  # noqa: E402
from gossipgrad.launch import preload as _preload  # noqa: E402
from gossipgrad.launch import start as _start  # noqa: E402

_start.wait_passively()  # before anything that loads OpenMP
_origin.claim()  # before this process starts others
_preload.load()  # before anything that imports the compiled core

from gossipgrad import callbacks, data, metrics, models, plots, schedules  # noqa: E402
from gossipgrad.apoptosis import Apoptosis  # noqa: E402
from gossipgrad.callbacks import (  # noqa: E402
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    JSONLLogger,
    ReduceOnPlateau,
    StopOnNaN,
)
from gossipgrad.cluster import Death, Network, Straggler, VirtualCluster  # noqa: E402
from gossipgrad.compression import AdaComp  # noqa: E402
from gossipgrad.data import Dataset  # noqa: E402
from gossipgrad.data.division import Division  # noqa: E402
from gossipgrad.errors import (  # noqa: E402
    Cancelled,
    CheckpointError,
    CommunicationError,
    DataError,
    PeerError,
    SavedOnSignal,
    did_you_mean,
)
from gossipgrad.exchange import Exchange  # noqa: E402
from gossipgrad.history import History  # noqa: E402
from gossipgrad.launch.environment import VERSION as __version__  # noqa: E402
from gossipgrad.layers import (  # noqa: E402
    GELU,
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    RMSNorm,
    Sigmoid,
    Softmax,
    Tanh,
)
from gossipgrad.losses import CrossEntropy  # noqa: E402
from gossipgrad.model import Input, Model, Sequential  # noqa: E402
from gossipgrad.optim import LARS, SGD, Adam, Lion, Optimizer  # noqa: E402
from gossipgrad.sequences import (  # noqa: E402
    LSTM,
    Attention,
    Embedding,
    MultiHeadAttention,
    Pad,
    Permute,
    PositionEmbedding,
    Reshape,
    Slice,
)
from gossipgrad.strategies.every import *  # noqa: E402, F403
from gossipgrad.strategies.every import __all__ as __all__  # type: ignore[attr-defined]  # noqa: E402
from gossipgrad.team import Team  # noqa: E402
from gossipgrad.trainer import Trainer  # noqa: E402
from gossipgrad.training.progress import ProgressBar  # noqa: E402
from gossipgrad.training.tensorboard import TensorBoard  # noqa: E402
from gossipgrad.weights import read as read_weights  # noqa: E402

__all__ += (  # after the strategies
    "AdaComp",
    "Adam",
    "AdaptiveAvgPool2d",
    "Add",
    "Apoptosis",
    "Attention",
    "AvgPool2d",
    "LocalResponseNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "CSVLogger",
    "Callback",
    "Cancelled",
    "Checkpoint",
    "CheckpointError",
    "CommunicationError",
    "Concat",
    "Conv2d",
    "CrossEntropy",
    "DataError",
    "Dataset",
    "Death",
    "Division",
    "Dropout",
    "EarlyStopping",
    "Embedding",
    "Exchange",
    "Flatten",
    "GELU",
    "GlobalAvgPool2d",
    "GroupNorm",
    "History",
    "Input",
    "JSONLLogger",
    "LARS",
    "LSTM",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "Lion",
    "MaxPool2d",
    "Model",
    "MultiHeadAttention",
    "Network",
    "Optimizer",
    "Pad",
    "PeerError",
    "Permute",
    "PositionEmbedding",
    "ProgressBar",
    "RMSNorm",
    "ReLU",
    "ReduceOnPlateau",
    "Reshape",
    "SGD",
    "SavedOnSignal",
    "Sequential",
    "Sigmoid",
    "Slice",
    "Softmax",
    "StopOnNaN",
    "Straggler",
    "Tanh",
    "Team",
    "TensorBoard",
    "Trainer",
    "VirtualCluster",
    "__version__",
    "callbacks",
    "data",
    "metrics",
    "models",
    "plots",
    "read_weights",
    "schedules",
)

if not TYPE_CHECKING:  # a checker of types would take any name for given

    def __dir__() -> list[str]:
        """The public names, and the modules imported on first use that are always available."""

        return sorted({*__all__, "bench", "profile"})

    def __getattr__(name: str) -> object:
        """gossipgrad.torch and gossipgrad.sklearn, imported when they are asked for, since they want these libraries.

        So are gossipgrad.bench and gossipgrad.profile, which training does not need.
        AttributeError that says which name is most like another one, also of another library's.
        """
        if name in ("torch", "sklearn", "bench", "profile"):
            return importlib.import_module(f"gossipgrad.{name}")
        raise AttributeError(f"module 'gossipgrad' has no attribute {name!r}{did_you_mean(name, __all__)}")
