"""Optimisers: what to compute, by name; the core computes it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np

from gossipgrad import _core, schedules
from gossipgrad.errors import LARGEST, choice, flag, integer, named_keywords, number, store
from gossipgrad.keywords import about

Part = Literal["bias", "norm"]

# The roles of tensors that the optimisers' options name; "norm" is what normalisations multiply by and add.
_ROLES: dict[str, tuple[str, ...]] = {"bias": ("bias",), "norm": ("scale", "shift")}


def parts(argument: str, value: Any) -> tuple[Part, ...]:
    """Names of parts, each once, from one or a sequence of them; TypeError, ValueError: what they are not."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, (tuple, list, set, frozenset)):
        raise TypeError(f"{argument}={value!r}: allowed: a tuple of {', '.join(map(repr, _ROLES))}")
    for one in given:
        choice(argument, one, _ROLES)
    return tuple(part for part in ("bias", "norm") if part in given)


def roles(of: tuple[Part, ...]) -> list[str]:
    """The core's names of what these parts are."""
    return [role for part in of for role in _ROLES[part]]


def read_parts(argument: str) -> Callable[[str], tuple[Part, ...]]:
    """What makes parts of an option's text."""
    return lambda text: parts(argument, [] if text == "none" else text.split(","))


def _share(argument: str, value: Any) -> float:
    """`value` as a number from 0 to below 1 that float32, in which the core computes, does not round to 1."""
    made = number(argument, value, 0.0, below=1.0)
    if np.float32(made) == 1:
        raise ValueError(f"{argument}={value!r}: is 1 in float32; allowed: a finite number >= 0 and < 1 - 2**-25")
    return made


class Optimizer:
    """The base. `name` is the optimiser's on the command line and in reports; every one has an lr and a schedule."""

    name: ClassVar[str] = ""
    lr: float
    no_decay: Any  # a tuple of parts, once it is made
    clip_norm: float | None
    schedule: Any  # a Schedule, once it is made
    _total = None  # steps of all training, where a trainer has said so

    def __post_init__(self) -> None:
        no_decay = parts("no_decay", self.no_decay)
        store(self, lr=number("lr", self.lr, 0.0, LARGEST), no_decay=no_decay, schedule=schedules.of(self.schedule))
        if self.clip_norm is not None:
            store(self, clip_norm=number("clip_norm", self.clip_norm, high=LARGEST, above=0.0))

    @property
    def timing(self) -> schedules.Schedule:
        """The schedule; a function that was given as one is a schedules.Function here."""
        return schedules.of(self.schedule)

    @property
    def total(self) -> int | None:
        """Steps of all training, which schedules of total="auto" need; a trainer's optimiser knows them within fit."""
        return self._total

    def of_total(self, total: int | None) -> Optimizer:
        """The same that knows the steps of all training."""
        known = copy.copy(self)
        store(known, _total=total)
        return known

    def _own(self) -> dict[str, Any]:
        """The keywords but schedule."""
        return {key: getattr(self, key) for key in keywords(BY_NAME[self.name])}

    def settings(self) -> dict[str, Any]:
        """The keywords, with the name as "optimizer", in terms of JSON."""
        own = {key: list(value) if isinstance(value, tuple) else value for key, value in self._own().items()}
        return {"optimizer": self.name, **own, **self.timing.settings()}

    def options(self) -> dict[str, Any]:
        """What the core wants, the learning rate aside."""
        own = {key: value for key, value in self._own().items() if value is not None}
        for key, value in own.items():
            if isinstance(value, tuple):
                own[key] = roles(value)
        return {"name": self.name, **own}

    def rates(self, first: int, count: int) -> dict[str, Any]:
        """What the core wants to know the learning rates of `count` steps from step `first` on."""
        return self.timing.rates(self.lr, first, count, self.total)

    def rate(self, step: int, total: int | None = None) -> float:
        """The learning rate that the schedule gives for this step, from 0.

        total: the steps of all training, for schedules of total="auto"; trainer.optimizer knows them within fit.
        """
        step = integer("step", step, 0)
        known = self if total is None else self.of_total(integer("total", total, 1))
        return _core.rate(known.rates(step, 1), step)


_LR = "learning rate; used as given, not multiplied by the ranks"


def _weight_decay() -> Any:
    return field(default=0.0, metadata=about("times the weights, added to the gradients"))


def _no_decay() -> Any:
    help_ = "what does not decay: bias, norm (of normalisations), or bias,norm"
    return field(default=(), metadata=about(help_, metavar="PARTS", read=read_parts("no_decay")))


def _clip_norm() -> Any:
    return field(default=None, metadata=about("largest norm of the gradients, else they are shortened", default="off"))


@named_keywords
@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent in PyTorch's form: g += weight_decay * w; v = momentum * v + g; w -= lr * v.

    lr            used as given: with p ranks of batch b, which learn as from a batch of p*b, lr * p is the usual choice
                  (Goyal et al. 2017).
    nesterov      w -= lr * (g + momentum * v).
    schedule      one of gossipgrad.schedules, or a function of the step whose value multiplies lr.
    no_decay      what weight decay leaves alone: "bias", "norm" (what normalisations multiply by and add), or both in a
                  tuple. By default everything decays, as in PyTorch.

    clip_norm     the largest Euclidean norm of all gradients together: where it is larger, all are multiplied by
                  clip_norm / (norm + 1e-6), as by torch.nn.utils.clip_grad_norm_. Those of frozen layers (lr=0) do not
                  count. Strategies that average gradients (AllReduce, LayerwiseAllReduce, OverlappedAveraging,
                  GossipGraD(exchange="gradients")) clip the averaged ones, hierarchical GossipGraD those of a node, all
                  others each rank's own. Updates wait for the end of the backward pass then, and so does what is sent
                  after them; at staleness 0 exchange="gradients" also waits for the partner. A norm that is NaN makes
                  all weights NaN, one that is infinite those whose gradient is; StopOnNaN ends the run at the next
                  loss.

    Layers may have factors of lr and weight_decay of their own: gossipgrad.Conv2d(..., lr=(1, 2)).
    """

    name: ClassVar[str] = "sgd"
    lr: float = field(metadata=about(_LR))
    momentum: float = field(default=0.0, metadata=about("share of the last update that is added to the next"))
    weight_decay: float = _weight_decay()
    nesterov: bool = field(default=False, metadata=about("Nesterov's momentum"))
    schedule: schedules.Schedule | Callable[[int], float] = field(default_factory=schedules.Constant)
    no_decay: tuple[Part, ...] | Part = _no_decay()
    clip_norm: float | None = _clip_norm()

    def __post_init__(self) -> None:
        super().__post_init__()
        store(
            self,
            momentum=_share("momentum", self.momentum),
            weight_decay=number("weight_decay", self.weight_decay, 0.0, LARGEST),
            nesterov=flag("nesterov", self.nesterov),
        )
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

    GossipGraD's exchange="weights+momentum" means both moments, as does PeriodicAllReduce: a first moment that is mixed
    without its second is divided by almost nothing. exchange="weights" learns as well on LeNet and MNIST with 4 and 8
    ranks, for a third of the bytes.
    """

    name: ClassVar[str] = "adam"
    lr: float = field(default=1e-3, metadata=about(_LR))
    beta1: float = field(default=0.9, metadata=about("decay of the first moment"))
    beta2: float = field(default=0.999, metadata=about("decay of the second moment"))
    eps: float = field(default=1e-8, metadata=about("added to the root of the second moment"))
    weight_decay: float = _weight_decay()
    decoupled: bool = field(default=False, metadata=about("weight decay of the weights themselves: AdamW"))
    schedule: schedules.Schedule | Callable[[int], float] = field(default_factory=schedules.Constant)
    no_decay: tuple[Part, ...] | Part = _no_decay()
    clip_norm: float | None = _clip_norm()

    def __post_init__(self) -> None:
        super().__post_init__()
        store(
            self,
            beta1=_share("beta1", self.beta1),
            beta2=_share("beta2", self.beta2),
            eps=number("eps", self.eps, 2.0**-126, LARGEST),
            weight_decay=number("weight_decay", self.weight_decay, 0.0, LARGEST),
            decoupled=flag("decoupled", self.decoupled),
        )


@named_keywords
@dataclass(frozen=True)
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017), for large batches.

    Each parameter w with gradient g has a ratio trust * |w| / (|g| + weight_decay * |w|), by Euclidean norms, or 1
    where one of them is 0: v = momentum * v + lr * ratio * (g + weight_decay * w); w -= v. As in the paper lr is inside
    of v, so a new lr acts on new gradients alone.

    lr             larger than SGD's: the ratio is of the size of trust. What has no ratio gets lr as it is, so a very
                   large one wants no_adaptation=(), or layers with factors: gossipgrad.Linear(..., lr=(1, 0.01)).
    trust          the paper's eta.
    no_adaptation  what has the ratio 1: "bias", "norm" (what normalisations multiply by and add), or both in a tuple.
    schedule, no_decay, clip_norm  as of SGD. Gradients are clipped before the ratios. Norms are of the gradients that
                   clip_norm would clip, so updates wait for the end of the backward pass.
    """

    name: ClassVar[str] = "lars"
    lr: float = field(metadata=about(_LR))
    momentum: float = field(default=0.9, metadata=about("share of the last update that is added to the next"))
    weight_decay: float = _weight_decay()
    trust: float = field(default=0.001, metadata=about("the length of an update in terms of the parameter's"))
    schedule: schedules.Schedule | Callable[[int], float] = field(default_factory=schedules.Constant)
    no_decay: tuple[Part, ...] | Part = _no_decay()
    no_adaptation: tuple[Part, ...] | Part = field(
        default=("bias", "norm"),
        metadata=about(
            "what has the plain learning rate: bias, norm, bias,norm, or none",
            metavar="PARTS",
            read=read_parts("no_adaptation"),
        ),
    )
    clip_norm: float | None = _clip_norm()

    def __post_init__(self) -> None:
        super().__post_init__()
        store(
            self,
            momentum=_share("momentum", self.momentum),
            weight_decay=number("weight_decay", self.weight_decay, 0.0, LARGEST),
            trust=number("trust", self.trust, high=LARGEST, above=0.0),
            no_adaptation=parts("no_adaptation", self.no_adaptation),
        )


BY_NAME: dict[str, type[SGD] | type[Adam] | type[LARS]] = {"sgd": SGD, "adam": Adam, "lars": LARS}


def keywords(made: type[SGD] | type[Adam] | type[LARS]) -> list[str]:
    """An optimiser's keywords but schedule."""
    return [one.name for one in fields(made) if one.name != "schedule"]


def by_name(name: str, schedule: schedules.Schedule | None = None, **options: Any) -> Optimizer:
    """The optimiser of this name with these keywords; ValueError for another name, or a keyword it does not have."""
    made = BY_NAME[choice("optimizer", name, BY_NAME)]
    allowed = keywords(made)
    for key in options:
        if key not in allowed:
            raise ValueError(f"{key}: not an option of optimizer={name!r}; it has {', '.join(allowed)}")
    return made(**options, schedule=schedules.Constant() if schedule is None else schedule)


def from_settings(settings: Mapping[str, Any]) -> Optimizer:
    """The optimiser that settings() described; other keys are ignored."""
    made = BY_NAME[choice("optimizer", settings["optimizer"], BY_NAME)]
    own = {key: settings[key] for key in keywords(made) if key in settings}  # an older checkpoint has fewer
    return made(**own, schedule=schedules.from_settings(settings))
