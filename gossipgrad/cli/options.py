"""Options of several commands, and the conversion of their texts to values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gossipgrad import compression, metrics, models, optim, schedules, strategies
from gossipgrad import data as gg_data
from gossipgrad.apoptosis import Apoptosis
from gossipgrad.cli.parsing import UsageError as UsageError
from gossipgrad.cluster import Network, Straggler
from gossipgrad.data import sets
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import integer, one_line
from gossipgrad.keywords import Keyword, keywords
from gossipgrad.literals import BACKENDS, CONV_ALGORITHMS, DTYPES, PRECISIONS
from gossipgrad.model import Model

SETS: dict[str, Any] = {name: made for name, made in sets.BY_NAME.items() if sets.options_of(name)}
DATASETS = (*gg_data.NAMES, "synthetic")
WITH_FILES = tuple(name for name in gg_data.NAMES if name != "mnist-10k")
USAGE, FAILURE, INTERRUPTED = 2, 1, 130
DEFAULT_STRATEGY = strategies.GossipGraD.name
OPTIMIZER_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.03, "momentum": 0.9},
    "lars": {"lr": 2.0},
}
CIRCUMSTANCES = ("straggler_probability", "straggler_delay", "latency", "bandwidth")


_T = TypeVar("_T")


# ---- values


def path(text: str) -> str:
    """The type of an option that is a path."""
    if not text:
        raise argparse.ArgumentTypeError("empty; allowed: a path")
    return text


def reader(make: Callable[[str], Any], allowed: str) -> Callable[[str], Any]:
    """The type of an option: the result of `make` for its text; `allowed` is for the error."""

    def read(text: str) -> Any:
        try:
            return make(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: {allowed}") from None

    return read


def count(low: int, high: int) -> Callable[[str], int]:
    """The type of an option that is an integer within these limits."""

    def make(text: str) -> int:
        return integer("value", int(text), low, high)

    return reader(make, f"{low} to {high}")


def checked(make: Callable[[], _T]) -> _T:
    """The value of an option; an invalid one is a usage error."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise UsageError(one_line(error)) from error


def given(arguments: argparse.Namespace, keys: tuple[str, ...]) -> dict[str, Any]:
    """The values of these options, if given."""
    return {key: getattr(arguments, key) for key in keys if getattr(arguments, key, None) is not None}


def option_of(key: str) -> str:
    """The option of a keyword."""
    return f"--{key.replace('_', '-')}"


def check_limits(arguments: argparse.Namespace, limits: Mapping[str, tuple[int, int]]) -> None:
    """UsageError for an option below its first limit or above its second."""
    for key, (low, high) in limits.items():
        value = getattr(arguments, key)
        if value is not None and not low <= value <= high:
            allowed = f"at least {low}" if value < low else f"at most {high}"
            raise UsageError(f"{option_of(key)} {value}: allowed: {allowed}")


# ---- options from the keywords of constructors


def _kind(word: Keyword) -> dict[str, Any]:
    """Arguments of argparse for a keyword's value."""
    if word.read is not None:
        read = word.read

        def from_text(text: str) -> Any:
            try:
                return read(text)
            except (OSError, ValueError) as error:
                raise argparse.ArgumentTypeError(one_line(error)) from error

        return {"type": from_text, "metavar": word.metavar}
    if word.types == [bool] and not word.values:
        return {"action": argparse.BooleanOptionalAction}
    if not word.types:
        return {"choices": word.values, "type": type(word.values[0]), "metavar": word.metavar}
    number = float if float in word.types else int if int in word.types else None
    metavar = word.metavar or {float: "X", int: "N", None: ""}[number]
    if not word.values and number is not None:
        return {"type": number, "metavar": metavar}
    texts = {str(one): one for one in word.values} | ({"true": True, "false": False} if bool in word.types else {})
    allowed = [*texts, *({float: ["a number"], int: ["an integer"], None: []}[number])]

    def value(text: str) -> Any:
        if text in texts:
            return texts[text]
        if number is None:
            raise ValueError(text)
        return number(text)

    return {
        "type": reader(value, ", or ".join(allowed)),
        "metavar": "|".join([*texts, *([metavar] if metavar else [])]),
    }


def _owners(word: Keyword, makers: Mapping[str, type]) -> str:
    """The owners of this keyword, in few words; "": all."""
    missing = [name for name in makers if name not in word.defaults]
    if not missing:
        return ""
    return f"all but {', '.join(missing)}" if len(missing) < len(word.defaults) else ", ".join(word.defaults)


def _defaults(word: Keyword) -> str:
    owners: dict[str, list[str]] = {}
    for owner in word.defaults:
        owners.setdefault(word.default(owner), []).append(owner)
    if len(owners) == 1:
        return next(iter(owners))
    return "; ".join(f"{text} ({', '.join(names)})" for text, names in owners.items())


def add_keywords(
    group: argparse._ActionsContainer,
    makers: Mapping[str, type],
    without: tuple[str, ...] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    prefix: str = "",
) -> None:
    """An option for each keyword of these dataclasses: type, choices, help and defaults are the fields'.

    without: keywords that get none; defaults: in place of the fields', by class and keyword; prefix: of the options.
    """
    for word in keywords(makers, without, defaults).values():
        owners = _owners(word, makers)
        help_ = f"{word.help}{f' ({owners})' if owners else ''}; default: {_defaults(word)}"
        how = _kind(word)
        if "metavar" in how and how["metavar"] is None:
            del how["metavar"]
        group.add_argument(option_of(prefix + word.name), default=None, help=help_.replace("%", "%%"), **how)


def strategy_keys() -> tuple[str, ...]:
    """The keywords of all strategies."""
    return tuple(keywords(strategies.BY_NAME))


# ---- groups of options, and their objects


def add_strategy(group: argparse._ActionsContainer, without: tuple[str, ...] = (), auto: bool = False) -> None:
    """--strategy, None if not given, and the keywords of all strategies. auto: "auto" is one."""
    help_ = f"what ranks send each other, to whom and when; default: {DEFAULT_STRATEGY}"
    names = [*strategies.BY_NAME, *([strategies.Auto.name] if auto else [])]
    help_ += "; auto: chosen by the samples of a rank" if auto else ""
    group.add_argument("--strategy", choices=names, help=help_)
    add_keywords(group, strategies.BY_NAME, without)


def make_strategy(arguments: argparse.Namespace, **others: Any) -> strategies.Strategy:
    """The strategy, with these keywords in place of options; UsageError: invalid values or keywords."""
    how = {key: value for key, value in (given(arguments, strategy_keys()) | others).items() if value is not None}
    return checked(lambda: strategies.by_name(arguments.strategy or DEFAULT_STRATEGY, **how))


_COMPRESSION = "compression_"  # prefix of the options: a schedule has a warmup, too


def compression_keys() -> tuple[str, ...]:
    """Names of all values of compression's options, --compression included."""
    return ("compression", *(_COMPRESSION + key for key in keywords(compression.BY_NAME)))


def add_compression(group: argparse._ActionsContainer) -> None:
    """--compression, None if not given, and the keywords of compressions as --compression-KEYWORD."""
    group.add_argument(
        "--compression", choices=compression.BY_NAME, help="how what ranks send is made smaller; default: it is not"
    )
    add_keywords(group, compression.BY_NAME, prefix=_COMPRESSION)


def make_compression(arguments: argparse.Namespace, strategy: strategies.Strategy) -> compression.AdaComp | None:
    """The compression of this strategy's messages; UsageError: invalid values, or a strategy without compression."""
    how = {key.removeprefix(_COMPRESSION): value for key, value in given(arguments, compression_keys()[1:]).items()}
    name = arguments.compression
    if name is None:
        for key, value in how.items():
            raise UsageError(f"{option_of(_COMPRESSION + key)} {value}: goes with --compression")
        if (gamma := getattr(strategy, "mix_gamma", None)) is not None:
            raise UsageError(f"{option_of('mix_gamma')} {gamma}: goes with --compression")
        return None

    try:
        chosen = compression.by_name(name, **how)
    except (TypeError, ValueError) as error:  # schedules have a warmup, a factor and a mode, too
        raise UsageError(f"--compression {name}: {one_line(error)}") from error
    return checked(lambda: strategy.compressed(chosen))


_APOPTOSIS = "apoptosis_"


def add_apoptosis(group: argparse._ActionsContainer) -> None:
    """--apoptosis, and its keywords as --apoptosis-KEYWORD."""
    help_ = "units that others make redundant leave the network while it trains"
    group.add_argument("--apoptosis", action="store_true", help=help_)
    add_keywords(group, {"apoptosis": Apoptosis}, prefix=_APOPTOSIS)


def make_apoptosis(arguments: argparse.Namespace) -> Apoptosis | None:
    """The apoptosis of --apoptosis and its options; UsageError: invalid values."""
    keys = tuple(_APOPTOSIS + key for key in keywords({"apoptosis": Apoptosis}))
    how = {key.removeprefix(_APOPTOSIS): value for key, value in given(arguments, keys).items()}
    if arguments.apoptosis:
        try:
            return Apoptosis(**how)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--apoptosis: {one_line(error)}") from error
    for key, value in how.items():
        shown = ",".join(value) if isinstance(value, tuple) else value
        raise UsageError(f"{option_of(_APOPTOSIS + key)} {shown}: goes with --apoptosis")
    return None


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning rate (steps; see gossipgrad.schedules)")
    group.add_argument("--schedule", choices=schedules.BY_NAME, default="constant", help="how the rate changes")
    add_keywords(group, schedules.BY_NAME)


def _by_model(value: Callable[[models.Entry], str]) -> str:
    """A default that depends on the model, in few words."""
    users: dict[str, list[str]] = {}
    for name, entry in models.BY_NAME.items():
        users.setdefault(value(entry), []).append(name)
    rest = max(users, key=lambda text: len(users[text]))
    usual = "; ".join(f"{text} for {', '.join(names)}" for text, names in users.items() if text != rest)
    return f"{usual}; {rest} for all others"


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    """--optimizer, None if not given, and the keywords of all optimisers except the schedule."""
    group = parser.add_argument_group("optimiser")
    help_ = f"how gradients become updates; default: {_by_model(lambda entry: entry.optimizer.name)}"
    group.add_argument("--optimizer", choices=optim.BY_NAME, help=help_)
    words = keywords(optim.BY_NAME, ("schedule",), OPTIMIZER_DEFAULTS)
    help_ = (
        f"{words['lr'].help}; default: {_by_model(lambda entry: format(entry.optimizer.lr, 'g'))}; "
        f"with another optimiser than the model's: {_defaults(words['lr'])}"
    )
    group.add_argument("--lr", type=float, metavar="X", help=help_)
    add_keywords(group, optim.BY_NAME, ("schedule", "lr"), OPTIMIZER_DEFAULTS)


def make_optimizer(arguments: argparse.Namespace) -> optim.Optimizer:
    """The optimiser with its schedule; ValueError, TypeError: invalid values or keywords."""
    schedule = schedules.by_name(arguments.schedule, **given(arguments, tuple(keywords(schedules.BY_NAME))))
    usual = models.by_name(arguments.model).optimizer
    name = arguments.optimizer or usual.name
    how: dict[str, Any] = dict(OPTIMIZER_DEFAULTS.get(name, {}))
    if name == usual.name:
        how |= {key: getattr(usual, key) for key in optim.keywords(optim.BY_NAME[name])}
    how |= given(arguments, tuple(keywords(optim.BY_NAME, ("schedule",))))
    return optim.by_name(name, schedule=schedule, **how)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=models.BY_NAME, default="lenet", help="the network")


def add_data(parser: argparse.ArgumentParser, saved: bool = False) -> None:
    """--model, --dataset, --data; saved: the first two are None if not given, and then a checkpoint's."""
    if saved:
        help_ = "the network, where --checkpoint has weights alone; default: the checkpoint's"
        parser.add_argument("--model", choices=models.BY_NAME, help=help_)
    else:
        add_model(parser)
    usual = "the checkpoint's, else the model's" if saved else _by_model(lambda entry: entry.dataset)
    parser.add_argument("--dataset", choices=DATASETS, help=f"mnist-10k is in the package; default: {usual}")
    files = ", ".join(WITH_FILES)
    help_ = f"where the files of --dataset {files} lie; of cifar10 and imagefolder also an archive, of csv a file"
    parser.add_argument("--data", type=path, metavar="PATH", help=f"{help_}; default: $GOSSIPGRAD_DATA, else the cache")


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """The options of the data sets."""
    add_keywords(parser.add_argument_group("data sets"), SETS)


def data_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given options of the data set; UsageError for options, or a --data, that it does not have."""
    name = dataset_of(arguments)
    if arguments.data is not None and name not in WITH_FILES:
        raise UsageError(
            f"--data {arguments.data}: --dataset {name} has no files; it goes with "
            f"--dataset {', '.join(WITH_FILES[:-1])} or {WITH_FILES[-1]}"
        )
    found = given(arguments, tuple(keywords(SETS)))
    for key, value in found.items():
        owners = [one for one in SETS if key in sets.options_of(one)]
        if name not in owners:
            raise UsageError(
                f"{option_of(key)} {value}: --dataset {name} does not have it; it goes with --dataset "
                f"{' or '.join(owners)}"
            )
    return found


def has_options(arguments: argparse.Namespace, name: str) -> bool:
    """True if this data set has all given options of data sets."""
    return set(given(arguments, tuple(keywords(SETS)))) <= set(sets.options_of(name))


def dataset_of(arguments: argparse.Namespace) -> str:
    """The data set's name."""
    return arguments.dataset or models.by_name(arguments.model).dataset


def load_data(arguments: argparse.Namespace) -> tuple[Model, Dataset, Dataset]:
    """The network, for the samples and classes of the data set, and (train, validation) of this."""
    return models.with_data(
        models.by_name(arguments.model),
        dataset_of(arguments),
        arguments.data,
        arguments.seed,
        loss=getattr(arguments, "loss", None),
        ignored=getattr(arguments, "ignore_index", None),
        progress=not arguments.quiet,
        **data_options(arguments),
    )


def add_circumstances(parser: argparse.ArgumentParser, virtual: bool = True, links: Network | None = None) -> None:
    """virtual: with --compute-time; links: the default of --latency and --bandwidth, None: the machine's."""
    group = parser.add_argument_group("stragglers and slow networks")
    group.add_argument("--straggler-probability", type=float, metavar="X", help="that a rank comes late to a step")
    group.add_argument("--straggler-delay", type=float, metavar="SECONDS", help="by how much")
    latency, bandwidth = (None, None) if links is None else (links.latency, links.bandwidth)
    none = "; default: the machine's" if links is None else ""
    group.add_argument("--latency", type=float, default=latency, metavar="SECONDS", help=f"of a message{none}")
    help_ = f"a second, of each rank's links; 0: unlimited{none}"
    group.add_argument("--bandwidth", type=float, default=bandwidth, metavar="BYTES", help=help_)
    if virtual:
        group.add_argument(
            "--compute-time",
            type=float,
            metavar="SECONDS",
            help="a step, in virtual time; default: the layers' flops at 50e9 a second",
        )


def circumstances(arguments: argparse.Namespace) -> tuple[Straggler | None, Network | None]:
    """The circumstances of these options; ValueError, TypeError: invalid values."""
    late = given(arguments, ("straggler_probability", "straggler_delay"))
    if len(late) == 1:
        (key, value), *_ = late.items()
        missing = "delay" if key == "straggler_probability" else "probability"
        raise ValueError(f"{option_of(key)} {value}: --straggler-{missing} is missing; allowed: both or neither")
    straggler = Straggler(*late.values()) if late else None
    links = given(arguments, ("latency", "bandwidth"))
    return straggler, Network(**links) if links else None


def add_backend(parser: argparse.ArgumentParser) -> None:
    allowed = [one for one in BACKENDS if one is not None]
    help_ = "of the CPU; default: $GOSSIPGRAD_BACKEND, else the faster of both"
    parser.add_argument("--backend", choices=allowed, help=help_)
    help_ = "what computes: cpu, cuda, cuda:1; default: $GOSSIPGRAD_DEVICE, unless --backend is given; else cpu"
    parser.add_argument("--device", metavar="NAME", help=help_)


def _metrics(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if "" in names:
        raise ValueError
    return names


def add_metrics(group: argparse._ActionsContainer, default: str = "none") -> None:
    """--metrics; default: help's text for its default, None."""
    names = ", ".join(metrics.NAMES)
    read = reader(_metrics, f"names with commas, of {names}")
    help_ = f"measured on samples to validate on, beside loss and accuracy: {names}; default: {default}"
    group.add_argument("--metrics", type=read, metavar="NAME,NAME,...", help=help_)


def add_machine(parser: argparse.ArgumentParser, saved: bool = False) -> None:
    """saved: --conv-algorithm and --dtype are None if not given, and then a checkpoint's."""
    parser.add_argument("--threads", type=int, metavar="N", help="of each rank; default: OMP_NUM_THREADS, else 1")
    add_backend(parser)
    usual = "the checkpoint's" if saved else "auto"
    help_ = f"how 3x3 and 5x5 convolutions are computed; auto: each pass of each layer by the fastest; default: {usual}"
    default = None if saved else "auto"
    parser.add_argument("--conv-algorithm", choices=CONV_ALGORITHMS, default=default, help=help_)
    help_ = (
        "measure algorithms before training, for a tenth of the run at most; the same seed may then give other last "
        "bits in another run; default: $GOSSIPGRAD_TUNE (0 or 1), else only on a GPU with --precision fast"
    )
    parser.add_argument("--tune", action=argparse.BooleanOptionalAction, help=help_)
    usual = "the checkpoint's" if saved else "float32"
    help_ = f"in which the network computes; auto: the faster here; default: {usual}"
    parser.add_argument("--dtype", choices=DTYPES, default=None if saved else "float32", help=help_)
    help_ = "of products on a GPU; fast: TF32, and algorithms that may add in any order; default: exact"
    parser.add_argument("--precision", choices=PRECISIONS, default="exact", help=help_)


def machine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The trainer's keywords for the options of add_machine."""
    names = ("threads", "backend", "conv_algorithm", "tune", "dtype", "device", "precision")
    return {name: getattr(arguments, name) for name in names}
