"""Optimisers: descriptions by name; the core computes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal

from gossipgrad import _core, schedules
from gossipgrad.described import checked, field_of, metadata_of
from gossipgrad.errors import choice, integer, named_keywords, store

Part = Literal["bias", "norm"]

# The roles of tensors that the optimisers' options name; "norm" is the scale and shift of normalisations.
_ROLES: dict[Part, tuple[str, ...]] = {"bias": ("bias",), "norm": ("scale", "shift")}
_PARTS = ("no_decay", "no_adaptation")  # options that are parts
_OPTIONS = _core.describe("optimizer")


def parts(argument: str, value: Any) -> tuple[Part, ...]:
    """Names of parts, each once, from one name or a sequence; TypeError, ValueError: other names."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (tuple, list, set, frozenset)):
        raise TypeError(f"{argument}={value!r}: allowed: a tuple of {', '.join(map(repr, _ROLES))}")
    for one in given:
        choice(argument, one, _ROLES)
    return tuple(part for part in ("bias", "norm") if part in given)


def roles(of: tuple[Part, ...]) -> list[str]:
    """The core's names of the roles of these parts."""
    return [role for part in of for role in _ROLES[part]]


def read_parts(argument: str) -> Callable[[str], tuple[Part, ...]]:
    """A reader of parts from an option's text."""
    return lambda text: parts(argument, [] if text == "none" else text.split(","))


class Optimizer:
    """The base. `name` is the optimiser's on the command line and in reports; every one has an lr and a schedule."""

    name: ClassVar[str] = ""
    lr: float
    no_decay: Any  # a tuple of parts after construction
    clip_norm: float | None
    schedule: Any  # a Schedule after construction
    _total = None  # steps of all training, if a trainer has set it

    def __post_init__(self) -> None:
        store(self, schedule=schedules.of(self.schedule))
        for key in keywords(type(self)):
            read = parts if key in _PARTS else partial(checked, _OPTIONS[self.name][key])
            store(self, **{key: read(key, getattr(self, key))})

    @property
    def timing(self) -> schedules.Schedule:
        """The schedule; a given function is a schedules.Function here."""
        return schedules.of(self.schedule)

    @property
    def total(self) -> int | None:
        """Steps of all training, which schedules of total="auto" need; a trainer's optimiser knows them within fit."""
        return self._total

    def of_total(self, total: int | None) -> Optimizer:
        """A copy that knows the steps of all training."""
        known = copy.copy(self)
        store(known, _total=total)
        return known

    def _own(self) -> dict[str, Any]:
        """The keywords except schedule."""
        return {key: getattr(self, key) for key in keywords(BY_NAME[self.name])}

    def settings(self) -> dict[str, Any]:
        """The keywords, with the name as "optimizer", in terms of JSON."""
        own = {key: list(value) if isinstance(value, tuple) else value for key, value in self._own().items()}
        return {"optimizer": self.name, **own, **self.timing.settings()}

    def options(self) -> dict[str, Any]:
        """The core's options, without the learning rate."""
        own = {key: value for key, value in self._own().items() if value is not None}
        return {"name": self.name, **{key: roles(one) if key in _PARTS else one for key, one in own.items()}}

    def rates(self, first: int, count: int) -> dict[str, Any]:
        """The core's description of the learning rates of `count` steps from step `first` on."""
        return self.timing.rates(self.lr, first, count, self.total)

    def rate(self, step: int, total: int | None = None) -> float:
        """The learning rate that the schedule gives for this step, from 0.

        total: the steps of all training, for schedules of total="auto"; trainer.optimizer knows them within fit.
        """
        step = integer("step", step, 0)
        known = self if total is None else self.of_total(integer("total", total, 1))
        return _core.rate(known.rates(step, 1), step)


def _option(optimizer: str, key: str) -> Any:
    """A field with default and help of the core's option."""
    if key not in _PARTS:
        return field_of(_OPTIONS[optimizer][key])
    said = _OPTIONS[optimizer][key]
    named = tuple(part for part, own in _ROLES.items() if set(own) <= set(said["default"]))
    return field(default=named, metadata=metadata_of(said) | {"metavar": "PARTS", "read": read_parts(key)})


def _rate(optimizer: str) -> Mapping[str, Any]:
    return metadata_of(_OPTIONS[optimizer]["lr"])


_schedule = partial(field, default_factory=schedules.Constant)


@named_keywords
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent in PyTorch's form: g += weight_decay * w; v = momentum * v + g; w -= lr * v.

    lr            used as given: with p ranks of batch b, which learn as from a batch of p*b, lr * p is the usual choice
                  (Goyal et al. 2017).
    nesterov      w -= lr * (g + momentum * v).
    schedule      one of gossipgrad.schedules, or a function of the step whose value multiplies lr.
    no_decay      parameters without weight decay: "bias", "norm" (scale and shift of normalisations), or both in a
                  tuple. By default everything decays, as in PyTorch.

    clip_norm     the max Euclidean norm of all gradients together. If it is larger, all are multiplied by
                  clip_norm / (norm + 1e-6), as by torch.nn.utils.clip_grad_norm_. Gradients of frozen layers (lr=0) do
                  not count. Strategies that average gradients (AllReduce, LayerwiseAllReduce, OverlappedAveraging,
                  GossipGraD(exchange="gradients")) clip the averaged ones, hierarchical GossipGraD those of a node, all
                  others each rank's own. Updates, and messages after them, then wait for the end of the backward pass.
                  exchange="gradients" also waits for the partner. A NaN norm makes all weights NaN, an
                  infinite norm those whose gradient is infinite; StopOnNaN ends the run at the next loss.

    Layers may have factors of lr and weight_decay of their own: gossipgrad.Conv2d(..., lr=(1, 2)).
    """

    name: ClassVar[str] = "sgd"
    lr: float = field(metadata=_rate("sgd"))
    momentum: float = _option("sgd", "momentum")
    weight_decay: float = _option("sgd", "weight_decay")
    nesterov: bool = _option("sgd", "nesterov")
    schedule: schedules.Schedule | Callable[[int], float] = _schedule()
    no_decay: tuple[Part, ...] | Part = _option("sgd", "no_decay")
    clip_norm: float | None = _option("sgd", "clip_norm")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError(f"nesterov=True: allowed only with momentum > 0; momentum={self.momentum!r}")


@named_keywords
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) in PyTorch's form, without amsgrad; with decoupled=True AdamW.

    g += weight_decay * w; m = beta1 * m + (1 - beta1) * g; s = beta2 * s + (1 - beta2) * g * g; w -= lr * (m / (1 -
    beta1^t)) / (sqrt(s / (1 - beta2^t)) + eps), where t counts the updates from 1.

    eps        at least 2^-126, about 1.18e-38, the smallest normal float32.
    decoupled  decays the weights themselves, w -= lr * weight_decay * w, in place of the gradient (Loshchilov and
               Hutter 2019).
    schedule   one of gossipgrad.schedules, or a function of the step whose value multiplies lr.
    no_decay, clip_norm  as of SGD.

    Under gossip (GossipGraD of weights, PullGossip, PushGossip) with p ranks, s is that of the mean gradient of all
    ranks after 2 / (1 - beta1) updates: s = beta2 * s + (1 - beta2) * (a * g * g + (1 - a) * n * n), with n = m / (1 -
    beta1^t) and a = max(0, (1/p - k) / (1 - k)). k is the variance of n if a gradient's is 1; it falls where momenta
    are mixed. With s of a rank's own gradient, steps are up to sqrt(p) shorter than an all-reduce's. They are a little
    shorter where a is 0: for beta1=0.9 from about 64 ranks on, with exchange="weights" from 20.

    GossipGraD's exchange="weights+momentum" means both moments, as does PeriodicAllReduce: a first moment that is mixed
    without its second is divided by almost nothing. exchange="weights" learns as well on LeNet and MNIST with 4 and 8
    ranks, for a third of the bytes.
    """

    name: ClassVar[str] = "adam"
    lr: float = _option("adam", "lr")
    beta1: float = _option("adam", "beta1")
    beta2: float = _option("adam", "beta2")
    eps: float = _option("adam", "eps")
    weight_decay: float = _option("adam", "weight_decay")
    decoupled: bool = _option("adam", "decoupled")
    schedule: schedules.Schedule | Callable[[int], float] = _schedule()
    no_decay: tuple[Part, ...] | Part = _option("adam", "no_decay")
    clip_norm: float | None = _option("adam", "clip_norm")


@named_keywords
@dataclass(frozen=True)
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017), for large batches.

    Each parameter w with gradient g has a ratio trust * |w| / (|g| + weight_decay * |w|), by Euclidean norms, or 1
    if one of them is 0: v = momentum * v + lr * ratio * (g + weight_decay * w); w -= v. As in the paper lr is inside
    v, so a new lr acts on new gradients alone.

    lr             larger than SGD's, because the ratio is of the size of trust. Parameters without a ratio get lr as it
                   is. So a very large lr wants no_adaptation=(), or layers with factors: gossipgrad.Linear(..., lr=(1,
                   0.01)).
                   Under gossip g is a rank's own gradient. Its noise makes |g| up to sqrt(p) times as long as that of
                   the mean over p ranks, so steps are shorter than an all-reduce's, and a larger rate suits: in trials
                   twice that on 32 ranks, four times on 64 (docs/learning_by_gossip.md).
    trust          the paper's eta.
    no_adaptation  parameters with the ratio 1: "bias", "norm" (scale and shift of normalisations), or both in a tuple.
    schedule, no_decay, clip_norm  as of SGD. Gradients are clipped before the ratios. Norms are of the gradients that
                   clip_norm would clip, so updates wait for the end of the backward pass.
    """

    name: ClassVar[str] = "lars"
    lr: float = field(metadata=_rate("lars"))
    momentum: float = _option("lars", "momentum")
    weight_decay: float = _option("lars", "weight_decay")
    trust: float = _option("lars", "trust")
    schedule: schedules.Schedule | Callable[[int], float] = _schedule()
    no_decay: tuple[Part, ...] | Part = _option("lars", "no_decay")
    no_adaptation: tuple[Part, ...] | Part = _option("lars", "no_adaptation")
    clip_norm: float | None = _option("lars", "clip_norm")


@named_keywords
@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion: the weight moves by the sign of a mix of momentum and gradient.

    Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), arXiv 2302.06675. With betas (b1, b2): c = b1 *
    m + (1 - b1) * g; w -= lr * (sign(c) + weight_decay * w); m = b2 * m + (1 - b2) * g. The sign of 0 is 0.

    lr            every weight moves by it, whatever its gradient: the paper uses a third to a tenth of AdamW's rate,
                  and raises its weight_decay by the inverse factor.
    betas         the momentum's shares of c and of the next m.
    weight_decay  decays the weights themselves, not the gradient.
    schedule, no_decay, clip_norm  as of SGD.

    It stores one moment, half of Adam's. The sign makes the update sensitive to averaging: signs of a mean of
    gradients are not the mean of signs. So strategies that average gradients and those that average weights differ more
    than with SGD. AdaComp(local_momentum=True) is refused: its momentum comes before the sum, the sign after it.
    """

    name: ClassVar[str] = "lion"
    lr: float = _option("lion", "lr")
    betas: tuple[float, float] = _option("lion", "betas")
    weight_decay: float = _option("lion", "weight_decay")
    schedule: schedules.Schedule | Callable[[int], float] = _schedule()
    no_decay: tuple[Part, ...] | Part = _option("lion", "no_decay")
    clip_norm: float | None = _option("lion", "clip_norm")


BY_NAME: dict[str, type[Any]] = {made.name: made for made in (SGD, Adam, LARS, Lion)}


def keywords(made: type[Any]) -> list[str]:
    """An optimiser's keywords except schedule."""
    return [one.name for one in fields(made) if one.name != "schedule"]


def by_name(name: str, schedule: schedules.Schedule | None = None, **options: Any) -> Optimizer:
    """The optimiser of this name with these keywords; ValueError for another name, or a keyword it does not have."""
    made = BY_NAME[choice("optimizer", name, BY_NAME)]
    allowed = keywords(made)
    for key in options:
        if key not in allowed:
            raise ValueError(f"{key}: not an option of optimizer={name!r}; it has {', '.join(allowed)}")
    found: Optimizer = made(**options, schedule=schedules.Constant() if schedule is None else schedule)
    return found


def from_settings(settings: Mapping[str, Any]) -> Optimizer:
    """The optimiser of a settings() dict; other keys are ignored."""
    made = BY_NAME[choice("optimizer", settings["optimizer"], BY_NAME)]
    own = {key: settings[key] for key in keywords(made) if key in settings}  # an older checkpoint has fewer
    found: Optimizer = made(**own, schedule=schedules.from_settings(settings))
    return found
