"""Sets by name, and their options, which are keywords of load and options of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gossipgrad.data import characters, cifar10, embedded, higgs, images, mnist, shifts, tables
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import DataError, check_keywords, choice, flag
from gossipgrad.keywords import about

Path_ = str | os.PathLike[str]
Pair = tuple[Dataset, Dataset]


@dataclass(frozen=True)
class Common:
    """Options of every set."""

    folder: Path_ | None
    seed: int
    progress: bool
    download: bool


@dataclass(frozen=True)
class Digits:
    """The small MNIST in the package."""

    def load(self, common: Common) -> Pair:
        return embedded.load()


@dataclass(frozen=True)
class Mnist:
    def load(self, common: Common) -> Pair:
        return mnist.load(common.folder, common.download)


@dataclass(frozen=True)
class Cifar10:
    augment: bool = field(default=False, metadata=about("move and mirror, or crop, images at random in training"))

    def load(self, common: Common) -> Pair:
        train, test = cifar10.load(common.folder, common.progress)
        return (shifts.random_crop(train, seed=common.seed) if flag("augment", self.augment) else train), test


@dataclass(frozen=True)
class Higgs:
    def load(self, common: Common) -> Pair:
        return higgs.load(common.folder, common.progress)


def _number_or_name(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text


def _file_or_share(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Table:
    """A CSV file, --data; see gossipgrad.data.csv."""

    label: int | str | None = field(
        default=None,
        metadata=about("column of the targets, its name or number", metavar="COLUMN", read=_number_or_name),
    )
    test: Path_ | float | None = field(
        default=None,
        metadata=about(
            "another file to validate on, or a share of --data", default="0.1", metavar="FILE|X", read=_file_or_share
        ),
    )
    standardize: bool = field(default=True, metadata=about("give features mean 0 and deviation 1"))
    strict: bool = field(default=True, metadata=about("broken rows or images are an error; off: they are skipped"))

    def load(self, common: Common) -> Pair:
        if common.folder is None:
            raise DataError("data: missing: --dataset csv wants a file")
        if self.label is None:
            raise DataError("label: missing: --dataset csv wants the column of the targets, its name or number")
        how: dict[str, Any] = {"standardize": self.standardize, "strict": self.strict, "seed": common.seed}
        test = 0.1 if self.test is None else self.test
        made: Pair = tables.csv(common.folder, self.label, test=test, progress=common.progress, **how)
        return made


@dataclass(frozen=True)
class Shakespeare:
    """Tiny Shakespeare, or any text by --data; see gossipgrad.data.text."""

    sequence: int | None = field(default=None, metadata=about("characters of a sample", default="the model's, else 64"))
    windows: characters.Windows | None = field(
        default=None,
        metadata=about(
            "where samples begin; streams: where the batch before ended",
            default="streams for models that carry their state, else random",
        ),
    )

    def load(self, common: Common) -> Pair:
        sequence = 64 if self.sequence is None else self.sequence
        return characters.shakespeare(common.folder, sequence, self.windows or "random", common.seed)


@dataclass(frozen=True)
class Folder:
    """A folder of images; see gossipgrad.data.image_folder."""

    image_size: int | tuple[int, int] | None = field(
        default=None,
        metadata=about(
            "pixels of a side, or HEIGHTxWIDTH",
            default="the model's, else 224",
            metavar="N",
            read=lambda text: _size(text),
        ),
    )
    channels: int | None = field(default=None, metadata=about("3: colours, 1: grey", default="the model's, else 3"))
    augment: bool = field(default=True, metadata=about("crop and mirror images at random in training"))
    workers: int | None = field(
        default=None, metadata=about("threads that decode", default="the cores, divided among the ranks, at most 8")
    )
    strict: bool = field(default=False, metadata=about("a broken file is an error"))
    cache_images: bool = field(default=False, metadata=about("decode once, into a memory map in the cache"))
    bits: int = field(default=16, metadata=about("that 16-bit images use", metavar="N"))
    exif: bool = field(default=False, metadata=about("turn images as the camera noted"))

    def load(self, common: Common) -> Pair:
        if common.folder is None:
            raise DataError("data: missing: --dataset imagefolder wants a folder, or an archive, of images")
        return images.load(
            common.folder,
            224 if self.image_size is None else self.image_size,
            seed=common.seed,
            progress=common.progress,
            channels=3 if self.channels is None else self.channels,
            augment=self.augment,
            workers=self.workers,
            strict=self.strict,
            cache=flag("cache_images", self.cache_images),
            bits=self.bits,
            exif=self.exif,
        )


def _size(text: str) -> int | tuple[int, int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2:
        raise ValueError(f"{text!r}: allowed: one number, or HEIGHTxWIDTH")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


BY_NAME: dict[str, Callable[..., Any]] = {
    "mnist-10k": Digits,
    "mnist": Mnist,
    "cifar10": Cifar10,
    "higgs": Higgs,
    "csv": Table,
    "shakespeare": Shakespeare,
    "imagefolder": Folder,
}
NAMES = tuple(BY_NAME)


def load(
    name: str,
    folder: Path_ | None = None,
    *,
    download: bool = True,
    progress: bool = True,
    seed: int = 0,
    **options: Any,
) -> Pair:
    """(train, test) of a set by name.

    "mnist-10k", in the package: 10,000 + 2,000 digits. The others are:

    mnist        from `folder`, $GOSSIPGRAD_DATA/mnist, the cache ($GOSSIPGRAD_CACHE, $XDG_CACHE_HOME/gossipgrad or
                 ~/.cache/gossipgrad), or the network if `download`.
    cifar10      from `folder` (or an archive), $GOSSIPGRAD_DATA/cifar10 or the cache. augment=True: moved by up to 4
                 pixels and mirrored in training.
    higgs        CSV files from `folder`, $GOSSIPGRAD_DATA/higgs or the cache; each feature has mean 0 and deviation 1
                 in the training part.
    csv          `folder` is a file; label=, test=, standardize=True, strict=True as of gossipgrad.data.csv; without
                 test, a tenth.
    shakespeare  input.txt from `folder` (or any text file), $GOSSIPGRAD_DATA/shakespeare or the cache; sequence=64,
                 windows="random" as of gossipgrad.data.text.
    imagefolder  the images in `folder` (or an archive), which has train/<class>/ and val/<class>/, or <class>/ alone,
                 with a tenth to validate on; image_size=224, channels=3, augment=True, workers=, strict=False,
                 cache_images=False, bits=16, exif=False as size= and so on of gossipgrad.data.image_folder.

    progress: show the progress of reading and decoding. seed: of random choices.
    Errors: DataError for files, ValueError for another name, TypeError for an option that the set does not have.
    """
    choice("dataset", name, NAMES)
    check_keywords(f"load of {name!r}: load", options, options_of(name))
    made: Pair = BY_NAME[name](**options).load(Common(folder, seed, progress, download))
    return made


def options_of(name: str) -> tuple[str, ...]:
    """The keywords of a set."""
    return tuple(getattr(BY_NAME[name], "__dataclass_fields__", ()))
