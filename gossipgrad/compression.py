"""Compression: smaller messages between ranks. Each class is a description; the core does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from gossipgrad.errors import choice, did_you_mean, flag, integer, named_keywords, number, store
from gossipgrad.keywords import about
from gossipgrad.model import Model
from gossipgrad.optim import Part, parts, read_parts, roles

Family = Literal["conv", "linear", "recurrent", "other"]
Mode = Literal["strict", "safe", "exact"]
Values = Literal["bfloat16", "float32"]
Selection = Literal["local", "cyclic"]

FAMILIES = get_args(Family)
MODES = get_args(Mode)
VALUES = get_args(Values)
SELECTIONS = get_args(Selection)

MAX_BIN = 16383  # GG_MAX_BIN
BIN_SIZE: dict[str, int] = {"conv": 50, "linear": 500, "recurrent": 500, "other": 500}


def _bin_size(value: Any) -> dict[str, int]:
    """The bin's elements by the family of layers."""
    if value is None:
        return dict(BIN_SIZE)
    if not isinstance(value, Mapping):
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
            allowed = ", ".join(map(repr, FAMILIES))
            raise TypeError(f"bin_size={value!r}: allowed: an integer in 0..{MAX_BIN}, or a dict of these by {allowed}")
        return dict.fromkeys(FAMILIES, integer("bin_size", value, 0, MAX_BIN))
    _check_families("bin_size", value)
    return BIN_SIZE | {key: integer(f"bin_size[{key!r}]", one, 0, MAX_BIN) for key, one in value.items()}


def _factor(value: Any, usual: float) -> float | dict[str, float]:
    """One number, or one for each family of layers."""
    if not isinstance(value, Mapping):
        return number("factor", usual if value is None else value, 1.0)
    _check_families("factor", value)
    return dict.fromkeys(FAMILIES, usual) | {key: number(f"factor[{key!r}]", one, 1.0) for key, one in value.items()}


def _check_families(name: str, value: Mapping[str, Any]) -> None:
    for key in value:
        if key not in FAMILIES:
            allowed = ", ".join(map(repr, FAMILIES))
            raise ValueError(f"{name}: {key!r}; allowed keys: {allowed}{did_you_mean(key, FAMILIES)}")


def _read_by_family(name: str, read: type[int] | type[float], usual: str) -> Callable[[str], Any]:
    """A reader of a number, or FAMILY=N with commas or slashes between them."""

    def read_one(text: str) -> Any:
        try:
            if "=" not in text:
                return read(text)
            pairs = [one.partition("=") for one in text.replace("/", ",").split(",")]
            made = {key.strip(): read(value) for key, _, value in pairs}
            _check_families(name, made)
            return made
        except ValueError as error:
            said = str(error) if str(error).startswith(name) else f"{name}: {text!r}"
            raise ValueError(f"{said}; allowed: a number, or FAMILY=N with commas, as {usual}") from None

    return read_one


@named_keywords
@dataclass(frozen=True, kw_only=True)
class AdaComp:
    """The few largest elements of each bin of a parameter are sent; the rest is sent later, and nothing is lost.

    Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp: Adaptive Residual Gradient Compression for
    Data-Parallel Distributed Training" (2017), arXiv 1712.02679. In each step, for each parameter of each rank, with
    its gradient dW (times the rank's share of the samples) and a residue R, which is zero at first:

        G = R + dW;  H = G + (factor - 1) * dW
        gmax of a bin, which is so many elements in a row: its largest |G|;  s: the mean of gmax over the bins
        element j is sent where |H_j| >= gmax of its bin and gmax > 0;  then R = G - what was sent

    Every rank adds the messages of all ranks in their order, so all replicas have the same bits. Sent values and
    residue always add up to the gradients. Other strategies compress their own messages in place of dW:
    PeriodicAllReduce how far a rank has moved, for example. With one rank nothing is sent, so nothing is compressed.

    bin_size     elements in a bin, 1 to 16383: one number, or a dict by the kind of layer: "conv"olution, "linear"
                 (also attention's projections), "recurrent" (LSTM), "other" (embeddings and all else). Kinds missing in
                 the dict have the default: 50 for "conv", 500 for the others. 0: this family is not compressed. Bins
                 of less than 64 elements need 8 bits for each sent element, others 16; mode="exact" adds the values.
    factor       at least 1: weight of the new gradient in the choice: one number, or a dict by the kind of layer, as
                 bin_size. A larger factor sends more, and training is closer to that without compression. None, and
                 kinds missing in the dict: 2, with selection="cyclic" 4. 1.5 to 3 work well with "local".
    mode         the value sent for a chosen element. "strict": sign(G) * s, as in the paper, with one s a parameter.
                 "safe": as "strict", but only if |G| >= s / 2: quiet bins do not overshoot. "exact": G itself.
                 None: "strict"; with selection="cyclic" and with GossipGraD "exact", the only one there.
    values       with mode="exact": the type in which values travel; the rounding error of "bfloat16" stays in the
                 residue.
    dense        parameters that travel whole: "bias", "norm" (scale and shift of normalisations), both in a tuple, or
                 none, (). Statistics, as of batch normalisation, always do.
    dense_below  parameters of fewer elements travel whole as well.
    warmup       this many steps at the beginning of training send everything.
    selection    "local": each rank chooses for itself, so a rank receives more with more ranks. "cyclic": one rank
                 chooses in turn, and all send these elements, so the size of their sum does not depend on the number of
                 ranks (Chen et al., "ScaleCom", 2020). Elements wait longer in the residue than with "local": with a
                 small factor, a high rate and momentum, training can diverge.
    local_momentum  each rank's gradient goes through SGD's momentum, and weight decay, before the choice instead of
                 the sum after it (Lin et al., "Deep Gradient Compression", 2017). So waiting values in the residue have
                 their momentum, and short trainings lose less. With Adam each rank has the moments of its own
                 gradients, and G = R + the direction of its step. Every rank then subtracts lr times the sum (after
                 Chen et al., "Quantized Adam with Error Feedback", 2020). Squares of gradients count 1/p, because the
                 mean of p independent gradients has 1/p of the variance. The optimiser's arenas of moments are each
                 rank's own. With AllReduce and LayerwiseAllReduce; with Adam, and with SGD that has momentum, without
                 nesterov; without clip_norm.

    The residue is one more copy of the model on each rank. Checkpoints have it, so a resumed run has the same bits.
    """

    name: ClassVar[str] = "adacomp"
    bin_size: int | Mapping[str, int] | None = field(
        default=None,
        hash=False,
        metadata=about(
            f"elements in a bin: one number, or by {', '.join(FAMILIES)}; 0: not compressed",
            default=",".join(f"{family}={size}" for family, size in BIN_SIZE.items()),
            metavar="N|FAMILY=N,...",
            read=_read_by_family("bin_size", int, "conv=50,linear=500"),
        ),
    )
    factor: float | Mapping[str, float] | None = field(
        default=None,
        hash=False,
        metadata=about(
            f"how much more the new gradient counts in the choice: one number, or by {', '.join(FAMILIES)}",
            default="2, with selection cyclic 4",
            metavar="F|FAMILY=F,...",
            read=_read_by_family("factor", float, "conv=2,linear=1.5"),
        ),
    )
    mode: Mode | None = field(
        default=None,
        metadata=about(
            "what is sent of an element: its sign, the same with care, its value",
            default="strict, with selection cyclic and with gossipgrad exact",
        ),
    )
    values: Values = field(default="bfloat16", metadata=about("with mode exact: the type of values"))
    dense: tuple[Part, ...] | Part = field(
        default=("norm",),
        metadata=about(
            "what travels whole: bias, norm (of normalisations), bias,norm, or none",
            metavar="PARTS",
            read=read_parts("dense"),
        ),
    )
    dense_below: int = field(default=256, metadata=about("parameters of fewer elements travel whole"))
    warmup: int = field(default=0, metadata=about("so many steps at the beginning send everything"))
    selection: Selection = field(default="local", metadata=about("every rank chooses, or one in turns for all"))
    local_momentum: bool = field(
        default=False, metadata=about("the momentum of SGD, the moments of Adam, come before the choice")
    )

    def __post_init__(self) -> None:
        selection = choice("selection", self.selection, SELECTIONS)
        mode = None if self.mode is None else choice("mode", self.mode, MODES)
        store(
            self,
            bin_size=_bin_size(self.bin_size),
            factor=_factor(self.factor, 4.0 if selection == "cyclic" else 2.0),
            mode="exact" if mode is None and selection == "cyclic" else mode,
            values=choice("values", self.values, VALUES),
            dense=parts("dense", self.dense),
            dense_below=integer("dense_below", self.dense_below, 0),
            warmup=integer("warmup", self.warmup, 0),
            selection=selection,
            local_momentum=flag("local_momentum", self.local_momentum),
        )
        if self.selection == "cyclic" and self.mode != "exact":
            raise ValueError(
                f"mode={self.mode!r} with selection='cyclic': what one rank has chosen all others send the values of; "
                "allowed: 'exact'"
            )
        if self.values != "bfloat16" and self.mode not in ("exact", None):
            raise ValueError(f"values={self.values!r} with mode={self.mode!r}: no values travel; allowed: mode='exact'")

    def of_mode(self, mode: Mode) -> AdaComp:
        """A copy with this mode, if it has none yet."""
        return self if self.mode is not None else replace(self, mode=mode)

    def settings(self) -> dict[str, Any]:
        """The name and the keywords, in terms of JSON."""
        own = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {"name": self.name, **own}

    def packed(self, net: Model) -> dict[str, tuple[str, int]]:
        """The compressed tensors of a network: (family of the layer, elements of a bin) by name."""
        if not isinstance(net, Model):
            raise TypeError(f"net is a {type(net).__name__}; allowed: a gossipgrad.Model")
        return net.graph.compressed(self.options())

    def options(self) -> dict[str, Any]:
        """The core's options."""
        return {**asdict(self), "mode": self.mode or "strict", "dense": roles(parts("dense", self.dense))}


BY_NAME: dict[str, type[AdaComp]] = {AdaComp.name: AdaComp}


def by_name(name: str, **options: Any) -> AdaComp:
    """The compression of this name with these keywords; ValueError for another name, or a keyword it does not have."""
    made = BY_NAME[choice("compression", name, BY_NAME)]
    allowed = [one.name for one in fields(made)]
    for key in options:
        if key not in allowed:
            raise ValueError(f"{key}: not an option of compression={name!r}; it has {', '.join(allowed)}")
    return made(**options)


def from_settings(settings: Mapping[str, Any] | None) -> AdaComp | None:
    """The compression of a settings() dict; other keys are ignored, and missing ones keep their defaults."""
    if settings is None:
        return None
    made = BY_NAME[choice("compression", settings["name"], BY_NAME)]
    return made(**{one.name: settings[one.name] for one in fields(made) if one.name in settings})
