"""Folders of images in ImageNet's layout, one folder a class: decoded, cropped and flipped by threads when needed.

Crops after Szegedy et al., "Going deeper with convolutions" (2015), in the form of torchvision's RandomResizedCrop.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import io
import lzma
import math
import os
import shutil
import struct
import tarfile
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import cache as cache_files
from gossipgrad.data import draws
from gossipgrad.data.arrays import Dataset
from gossipgrad.data.classes import names_of
from gossipgrad.data.image_cache import FORMAT, Decoded, Pixels, decoded
from gossipgrad.data.source import Source
from gossipgrad.errors import DataError, counted, flag, integer, listed, number, one_line, pair, warn
from gossipgrad.launch import environment
from gossipgrad.launch.origin import launcher_world_size
from gossipgrad.launch.terminal import Bar
from gossipgrad.state import files

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz")
FORMATS = ("JPEG", "PNG")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in 0..1
ATTEMPTS = 10  # draws of a crop before the largest one in the middle is used
ORIENTATION = 0x0112  # EXIF's tag
LISTED = 5  # broken files that a message names
MAX_WORKERS = 8  # by default

Box = tuple[float, float, float, float]  # left, upper, right, lower


def pillow(what: str) -> Any:
    """Pillow's Image module; ImportError with advice if it is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"{what} are decoded by Pillow: pip install 'gossipgrad[images]'") from error
    return Image


def broken(image_module: Any) -> tuple[type[BaseException], ...]:
    """Pillow's exceptions for files that are damaged, or no images."""
    return (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        IndexError,
        struct.error,
        zlib.error,
        image_module.DecompressionBombError,
        image_module.DecompressionBombWarning,
    )


# ---- the files of a folder


@dataclass(frozen=True)
class Listing:
    """The images of a folder, sorted by class and name."""

    root: Path
    classes: list[str]
    paths: list[str]  # below the root
    targets: NDArray[np.int32]
    stamps: list[tuple[int, int]]  # size and time of each file

    def key(self, *more: object) -> str:
        """A name for data made from these files."""
        return cache_files.key(FORMAT, self.root.resolve(), *more, *zip(self.paths, self.stamps, strict=True))


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def kind_of(name: str) -> str:
    """Messages' name for a file that is no image."""
    suffix = os.path.splitext(name)[1].lower()
    return f"*{suffix}" if suffix else "no suffix"


def warn_of_others(place: str | os.PathLike[str], others: Counter[str]) -> None:
    """Warn of the files that are left out: counts and names."""
    if others:
        kinds = listed((f"{count:,} {kind}" for kind, count in others.most_common()), LISTED)
        warn(f"{os.fspath(place)}: {counted(others.total(), 'file')} left out: {kinds}; what is read: {_listed()}")


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted((one for one in found if not one.name.startswith(".")), key=lambda one: one.name)
    except OSError as error:
        raise DataError(f"{os.fspath(folder)}: {error.strerror or error}") from error


def _images(folder: str, others: Counter[str]) -> Iterator[os.DirEntry[str]]:
    """The images in a folder and the folders in it; others: counts other files by their kind."""
    for one in _entries(folder):
        if one.is_dir():
            yield from _images(one.path, others)
        elif is_image(one.name) and (one.is_file() or not os.path.exists(one.path)):
            yield one
        else:
            others[kind_of(one.name) if one.is_file() else "no regular file"] += 1


def list_images(folder: str | os.PathLike[str], classes: Sequence[str] | None = None, progress: bool = True) -> Listing:
    """The images under folder/<class>/. classes: allowed ones, in their order; None: all folders, sorted.

    DataError: no such folder, one that cannot be read, no class, a class without an image.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    kinds = [one for one in _entries(root) if one.is_dir()]
    if not kinds:
        loose = sum(is_image(one.name) for one in _entries(root))
        hint = f"; it has {counted(loose, 'image')} that are in no class" if loose else ""
        raise DataError(f"{root}: no folders of classes in it{hint}; wanted {root.name}/<class>/*.jpg or *.png")
    names = [one.name for one in kinds] if classes is None else list(classes)
    index = {name: i for i, name in enumerate(names)}
    unknown = [one.name for one in kinds if one.name not in index]
    if unknown:
        raise DataError(f"{root}: {', '.join(unknown[:LISTED])}: no classes of the training part")
    paths: list[str] = []
    targets: list[int] = []
    stamps: list[tuple[int, int]] = []
    left_out: Counter[str] = Counter()
    bar = Bar(root.name, progress)
    try:
        for i, kind in enumerate(kinds):
            others: Counter[str] = Counter()
            before = len(paths)
            for one in _images(kind.path, others):
                facts = one.stat()
                paths.append(os.path.relpath(one.path, root))
                targets.append(index[kind.name])
                stamps.append((facts.st_size, facts.st_mtime_ns))
            if len(paths) == before:
                found = f"; it has files with {listed(sorted(others))}" if others else ", it is empty"
                raise DataError(f"{kind.path}: no images in the folder of this class{found}; wanted {_listed()}")
            left_out += others
            bar.show((i + 1) / len(kinds), f"{len(paths):,} files found")
    except OSError as error:
        raise DataError(f"{error.filename or root}: {error.strerror or error}") from error
    finally:
        bar.close()
    warn_of_others(root, left_out)
    return Listing(root, names, paths, np.array(targets, np.int32), stamps)


def _listed() -> str:
    return ", ".join(f"*{suffix}" for suffix in SUFFIXES)


# ---- crops


def random_crops(
    seed: int, epoch: int, rows: NDArray[Any], scale: tuple[float, float], ratio: tuple[float, float]
) -> Callable[[int, int, int], Box]:
    """crop(i, width, height): the box of image rows[i] of this size in this epoch.

    The first of ten draws that fits into the image. Its area is uniform in `scale` times the image's, the logarithm of
    width / height uniform in that of `ratio`, its place uniform. If none fits, the largest one in the middle.
    """
    first = draws.uniform(seed, epoch, rows, 1)
    low, high = math.log(ratio[0]), math.log(ratio[1])

    def crop(i: int, width: int, height: int) -> Box:
        for attempt in range(ATTEMPTS):
            drawn = first[i] if attempt == 0 else draws.uniform(seed, epoch, rows[i : i + 1], 1 + attempt)[0]
            area = width * height * (scale[0] + (scale[1] - scale[0]) * float(drawn[0]))
            shape = math.exp(low + (high - low) * float(drawn[1]))
            w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < w <= width and 0 < h <= height:
                left, upper = int(float(drawn[2]) * (width - w + 1)), int(float(drawn[3]) * (height - h + 1))
                return left, upper, left + w, upper + h
        w, h = width, height
        if width < ratio[0] * height:
            h = round(width / ratio[0])
        elif width > ratio[1] * height:
            w = round(height * ratio[1])
        left, upper = (width - w) // 2, (height - h) // 2
        return left, upper, left + w, upper + h

    return crop


def centre_crop(width: int, height: int, size: tuple[int, int], resize: int) -> Box:
    """The box of the middle `size` (height, width) of the image when its shorter side is `resize` pixels."""
    factor = min(width, height) / resize
    w, h = min(size[1] * factor, width), min(size[0] * factor, height)
    left, upper = (width - w) / 2, (height - h) / 2
    return left, upper, left + w, upper + h


class _Decoder:
    """Files and pieces of them to pixels."""

    def __init__(self, channels: int, bits: int = 16, exif: bool = False) -> None:
        self.image = pillow("image folders")
        self.bits, self.exif = bits, exif
        self.dark = False  # True after an image that uses few of its bits
        self.mode = "L" if channels == 1 else "RGB"
        self.broken = broken(self.image)

    def open(self, content: bytes) -> Any:
        image = self.image.open(io.BytesIO(content), formats=FORMATS)
        if self.exif and image.getexif().get(ORIENTATION, 1) != 1:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(image)
        return image

    def reduce(self, image: Any, box: Box, size: tuple[int, int]) -> Box:
        """Decode a JPEG at a half, quarter or eighth of its size if the crop stays at least as large as its target.

        Returns the box in the resulting image.
        """
        width, height = image.size
        shrink = min((box[2] - box[0]) / size[1], (box[3] - box[1]) / size[0])
        if image.format == "JPEG" and shrink >= 2:
            image.draft(None, (math.ceil(width / shrink), math.ceil(height / shrink)))
            if image.size != (width, height):
                scale = 2 ** round(math.log2(width / image.size[0]))
                low, high = (value / scale for value in box[:2]), (value / scale for value in box[2:])
                ends = (min(value, most) for value, most in zip(high, image.size, strict=True))
                return (*low, *ends)
        return box

    def plain(self, image: Any) -> Any:
        """The image in a mode that allows mixing of pixels: grey, or red, green and blue."""
        if image.mode in ("L", "RGB"):
            return image
        if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
            image = self.image.fromarray(self.eight(np.asarray(image)))
        if image.mode in ("P", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
        return image.convert("RGB")

    def eight(self, values: NDArray[Any]) -> Pixels:
        """The upper 8 of the used bits of 16-bit pixels."""
        most = int(values.max())
        if most < 1 << self.bits - 3 and not self.dark:
            self.dark = True
            warn(
                f"a 16-bit image has no value above {most}, so it becomes nearly black; "
                f"bits={max(most.bit_length(), 8)} says that so many are used, here bits={self.bits}"
            )
        return np.asarray(np.minimum(values >> self.bits - 8, 255), np.uint8)

    def crop(self, image: Any, box: Box, size: tuple[int, int], flip: bool, out: Pixels) -> None:
        """Write the piece in this box, in this size, into out (channels, height, width)."""
        box = self.reduce(image, box, size)
        image = self.plain(image)
        if image.size != (size[1], size[0]) or box != (0, 0, size[1], size[0]):
            image = image.resize((size[1], size[0]), self.image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        if image.mode != self.mode:
            image = image.convert(self.mode)
        pixels = np.asarray(image)
        if flip:
            pixels = pixels[:, ::-1]
        out[...] = pixels if self.mode == "L" else pixels.transpose(2, 0, 1)

    def small(self, image: Any, resize: int) -> Pixels:
        """The whole image (height, width, channels), with its shorter side reduced to `resize` pixels if longer."""
        width, height = image.size
        factor = resize / min(width, height)
        if factor < 1:
            size = (max(round(height * factor), resize), max(round(width * factor), resize))
            box = self.reduce(image, (0, 0, width, height), size)
            image = self.plain(image).resize(size[::-1], self.image.Resampling.BILINEAR, box=box)
        image = self.plain(image)
        pixels = np.asarray(image if image.mode == self.mode else image.convert(self.mode))
        return pixels.reshape(*pixels.shape[:2], -1)


def _size(size: Any) -> tuple[int, int]:
    return pair("size", size, 1)


def _interval(argument: str, value: Any, below: float | None) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{argument}={value!r}: allowed: two numbers, the lower and the upper one")
    low = number(f"{argument}[0]", value[0], above=0.0, high=below)
    return low, number(f"{argument}[1]", value[1], low, below)


def _per_channel(argument: str, value: Any, channels: int, positive: bool) -> NDArray[np.float64]:
    several = [value] * channels if np.ndim(value) == 0 else list(value)
    if len(several) != channels:
        raise ValueError(f"{argument}: {len(several)} numbers; allowed: one, or {channels}, one a channel")
    checked = [number(f"{argument}[{i}]", one, above=0.0 if positive else None) for i, one in enumerate(several)]
    return np.array(checked)


def default_workers() -> int:
    """The cores of this process, divided among the ranks of a launcher, at most 8."""
    return max(1, min(MAX_WORKERS, environment.usable_cpus() // (launcher_world_size() or 1)))


class ImageFolder(Source):
    """The images of a folder as a source; see image_folder for its keywords.

    broken: the error of each broken file found so far, by its path.
    """

    dtype = np.dtype(np.uint8)
    targets: NDArray[Any]

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size: int | tuple[int, int] = 224,
        *,
        augment: bool = True,
        resize: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        mean: Any = "imagenet",
        deviation: Any = "imagenet",
        channels: int = 3,
        workers: int | None = None,
        strict: bool = False,
        cache: bool | str | os.PathLike[str] = False,
        classes: Sequence[str] | None = None,
        bits: int = 16,
        exif: bool = False,
        seed: int = 0,
        progress: bool = True,
        name: str | None = None,
    ) -> None:
        if channels not in (1, 3):
            raise ValueError(f"channels={channels!r}: allowed: 3 (red, green, blue), 1 (grey)")
        self._decoder = _Decoder(channels, integer("bits", bits, 8, 16), flag("exif", exif))
        self.size = _size(size)
        self.shape = (channels, *self.size)
        self.resize = max(*self.size, round(min(self.size) * 256 / 224)) if resize is None else resize
        self.resize = integer("resize", self.resize, max(self.size))
        self.augment, self.strict = flag("augment", augment), flag("strict", strict)
        self.crop_scale, self.crop_ratio = _interval("scale", scale, 1.0), _interval("ratio", ratio, None)
        self.flip = number("flip", flip, 0.0, 1.0)
        self.seed = integer("seed", seed, 0, 2**64 - 1)
        self.workers = default_workers() if workers is None else integer("workers", workers, 1, 1024)
        self._set_colours(mean, deviation, channels)
        self.progress = flag("progress", progress)
        root = unpacked(folder, self.progress).absolute()  # the current folder may change
        self.listing = list_images(root, names_of(classes), self.progress)
        self.classes = self.listing.classes
        self.targets = self.listing.targets
        self.name = name or root.name
        self.broken: dict[str, str] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._decoded: Decoded | None = None
        if cache:
            place = cache_files.root() / "images" if cache is True else Path(cache)
            self._decoded = self._stored(place)
            good = self._decoded.rows
            self.targets = self.targets[good]
            paths, stamps = [self.listing.paths[i] for i in good], [self.listing.stamps[i] for i in good]
            self.listing = Listing(root, self.listing.classes, paths, self.targets, stamps)

    def _set_colours(self, mean: Any, deviation: Any, channels: int) -> None:
        """Set scale and shift so that the network gets (pixel / 255 - mean) / deviation."""
        usual = {3: (MEAN, DEVIATION), 1: ((0.0,), (1.0,))}[channels]
        given = []
        for argument, value, default in (("mean", mean, usual[0]), ("deviation", deviation, usual[1])):
            if isinstance(value, str) and value != "imagenet":
                raise ValueError(f"{argument}={value!r}: allowed: 'imagenet', a number, or one a channel")
            plain = default if isinstance(value, str) else value
            given.append(_per_channel(argument, plain, channels, argument == "deviation"))
        self.scale = np.asarray(1 / (255 * given[1]), np.float32)
        self.shift = np.asarray(-given[0] / given[1], np.float32)

    def __len__(self) -> int:
        return len(self.listing.paths)

    def path(self, row: int) -> Path:
        """The file of a sample."""
        return self.listing.root / self.listing.paths[row]

    # ---- reading

    def read(self, rows: NDArray[Any], epoch: int, samples: NDArray[Any], targets: NDArray[Any] | None = None) -> None:
        rows = np.asarray(rows, np.int64)
        drawn = self.augment and epoch >= 0
        crop = random_crops(self.seed, epoch, rows, self.crop_scale, self.crop_ratio) if drawn else None
        flips = draws.uniform(self.seed, epoch, rows, 0)[:, 0] < self.flip if drawn else np.zeros(len(rows), bool)

        def one(i: int) -> None:
            def box(width: int, height: int) -> Box:
                if crop is None:
                    return centre_crop(width, height, self.size, self.resize)
                return crop(i, width, height)

            self._one(int(rows[i]), box, bool(flips[i]), samples[i])

        self._map(one, len(rows))

    def _map(self, work: Callable[[int], Any], count: int) -> list[Any]:
        if self.workers == 1 or count == 1:
            return [work(i) for i in range(count)]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, "gossipgrad-images")
                weakref.finalize(self, self._pool.shutdown, wait=False)
        return list(self._pool.map(work, range(count)))

    def _one(self, row: int, box: Callable[[int, int], Box], flip: bool, out: Pixels) -> None:
        """A sample; if its file is broken, that of the next image of its class."""
        for other in self._instead(row):
            try:
                if self._decoded is None:
                    image = self._decoder.open(files.content(self.path(other)))
                else:
                    image = self._decoder.image.fromarray(self._decoded_pixels(self._decoded, other))
                self._decoder.crop(image, box(*image.size), self.size, flip, out)
                return
            except self._decoder.broken as error:
                self.is_broken(self.path(other), error)
        name = self.listing.classes[self.targets[row]]
        raise DataError(f"{self.listing.root}: every image of class {name!r} is broken, as {self._broken_words()}")

    def _decoded_pixels(self, cache: Decoded, row: int) -> Pixels:
        """Pixels from the cache, or from the image's own file if the cache is damaged."""
        pixels = cache.pixels(row)
        if pixels is None:
            with self._lock:
                new, cache.damaged = not cache.damaged, True
            if new:
                warn(
                    f"{cache.path}: damaged, by the checksum of {self.path(row)}; such images are decoded again. "
                    "Remove it, and it is made anew"
                )
            pixels = self._small(row)
        return pixels

    def _small(self, row: int) -> Pixels:
        """The whole image of a file, with its shorter side reduced to `resize` pixels if longer."""
        return self._decoder.small(self._decoder.open(files.content(self.path(row))), self.resize)

    def _stored(self, place: Path) -> Decoded:
        """All images, decoded once into files of this folder. Broken ones are left out, and named."""
        channels, count = self.shape[0], len(self)

        def one(row: int) -> Pixels | None:
            try:
                return self._small(row)
            except self._decoder.broken as error:
                if self.strict:
                    self.is_broken(self.path(row), error)
                self.broken[str(self.path(row))] = _reason(error)
                return None

        def several(rows: range) -> list[Pixels | None]:
            return self._map(lambda i: one(rows[i]), len(rows))

        path = place / f"images-{self.listing.key(self.resize, channels, self._decoder.bits, self._decoder.exif)}.bin"
        found = decoded(path, count, channels, several, self.name, self.progress)
        missing = [self.listing.paths[i] for i in np.setdiff1d(np.arange(count), found.rows)]
        if missing:
            shown = ", ".join(missing[:LISTED]) + (", ..." if len(missing) > LISTED else "")
            if self.strict:
                raise DataError(f"{self.listing.root}: {counted(len(missing), 'broken file')}: {shown}")
            warn(f"{self.listing.root}: {counted(len(missing), 'broken file')} left out of {count:,}: {shown}")
        alone = sorted(set(self.targets.tolist()) - set(self.targets[found.rows].tolist()))
        if alone:
            raise DataError(f"{self.listing.root}: every image of class {self.listing.classes[alone[0]]!r} is broken")
        return found

    def _instead(self, row: int) -> Iterator[int]:
        """The row, then the others of its class; without known broken ones."""
        if str(self.path(row)) not in self.broken:
            yield row
        alike = np.flatnonzero(self.targets == self.targets[row])  # not side by side if classes= orders them
        place = int(np.searchsorted(alike, row))
        for other in np.roll(alike, -place)[1:].tolist():
            if str(self.path(other)) not in self.broken:
                yield other

    def is_broken(self, path: Path, error: BaseException) -> None:
        """Raise an error if strict; else count the file and warn of it."""
        reason = _reason(error)
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise DataError(f"{path}: {reason}") from error  # not the file's fault
        if self.strict:
            raise DataError(
                f"{path}: {reason} (strict=False, --no-strict on the command line, skips such files)"
            ) from error
        with self._lock:
            new = str(path) not in self.broken
            self.broken[str(path)] = reason
            count = len(self.broken)
        if new and (count <= LISTED or count & (count - 1) == 0):  # no flood of them
            warn(f"{path}: {reason}; skipped, another image of its class is read instead ({count} of {len(self):,})")

    def _broken_words(self) -> str:
        path, reason = next(iter(self.broken.items()))
        return f"{path}: {reason}"


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    if kind == "UnidentifiedImageError":
        return "no JPEG or PNG image, or a broken one"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"a broken image: {one_line(error)}"


def image_folder(
    folder: str | os.PathLike[str],
    size: int | tuple[int, int] = 224,
    *,
    augment: bool = True,
    resize: int | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    mean: Any = "imagenet",
    deviation: Any = "imagenet",
    channels: int = 3,
    workers: int | None = None,
    strict: bool = False,
    cache: bool | str | os.PathLike[str] = False,
    classes: Sequence[str] | None = None,
    bits: int = 16,
    exif: bool = False,
    seed: int = 0,
    progress: bool = True,
    name: str | None = None,
) -> Dataset:
    """The Dataset of images under folder/<class>/, JPEG or PNG, decoded while they are read: samples (channels, height,
    width) of uint8 with the classes as targets, numbered in the order of the folders' names, which are its `classes`.

    folder     or a tar archive of one, which is unpacked into the cache once.
    size       of the samples in pixels, one number or (height, width).
    augment    True: in training a random resized crop and a flip; False, and for evaluation: the shorter side becomes
               `resize`, and the middle is cut out.
    resize     None: 256 / 224 of the smaller side of `size`; at least the larger one.
    scale      of a random crop's area, as a share of the image's: (0.08, 1).
    ratio      of a random crop's width to its height: (3/4, 4/3).
    flip       the probability of mirroring: 0.5.
    mean       and deviation: the network gets (pixel / 255 - mean) / deviation, a number or one a channel; "imagenet":
               ImageNet's (for grey images 0 and 1).
    channels   3: red, green and blue; 1: grey.
    workers    threads that decode; None: the cores, divided among the ranks, at most 8.
    strict     True: a broken file is an error. False: a warning names and counts it, and the next image of its class is
               read in its place.
    cache      True, or a folder: images are decoded once into a memory map on the disk, with a shorter side of at most
               `resize` (3 bytes a pixel; default: the package's cache). Crops are cut out of these, and broken files
               are left out of the set.
    classes    allowed classes, in their order, as those of the training part for another part; None: all folders.
    bits       used by 16-bit images, 8 to 16: the upper 8 of them become the sample. 12 for a camera's or a scanner's
               12; a warning names an image that uses few.
    exif       True: images are turned by EXIF's orientation, as the camera noted. False: they are not, as by
               torchvision.
    seed       of crops and flips, which depend on (seed, epoch, sample) alone.
    progress   show a bar for long work.
    name       of the set, in messages and reports; None: the folder's.

    Files of other formats are left out, and a warning counts them by their suffixes. DataError: no such folder, no
    class, a class without images, folders that cannot be read. ImportError: no Pillow.
    """
    return Dataset(ImageFolder(**locals()))


# ---- archives


def unpacked(path: str | os.PathLike[str], progress: bool = True) -> Path:
    """The folder itself, or the folder in the cache into which a tar archive is unpacked once."""
    path = Path(path)
    if not path.name.lower().endswith(ARCHIVES) or path.is_dir():
        return path
    try:
        facts = path.stat()
        words = f"{FORMAT}\0{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}"
        key = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()
        base = cache_files.root() / "images"
        folder = base / f"unpacked-{key[:24]}"
        bar = Bar(path.name, progress)
        try:
            if not folder.is_dir():
                base.mkdir(parents=True, exist_ok=True)
                waiting = functools.partial(_show_unpacking, bar, facts.st_size)
                with cache_files.locked(base / f"{folder.name}.lock", waiting) as report:
                    if not folder.is_dir():
                        _unpack(path, folder, bar, report)
        finally:
            bar.close()
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged archive ({error})") from error
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or f'damaged archive ({error})'}") from error
    return _inside(folder)


def _show_unpacking(bar: Any, size: int, text: str) -> None:
    if text:
        bar.show(int(text) / max(size, 1), f"{int(text) / 1e6:,.0f} of {size / 1e6:,.0f} MB unpacked")


def _inside(folder: Path) -> Path:
    """The only folder in an unpacked archive, if it holds everything."""
    found = _entries(folder)
    deeper = [one for one in _entries(found[0].path) if one.is_dir()] if len(found) == 1 and found[0].is_dir() else []
    return Path(found[0].path) if deeper else folder


def check_end(path: Path, archive: tarfile.TarFile, file: IO[bytes]) -> None:
    """Verify the archive's end, a block of zeros: tarfile takes the end of the file, or a damaged header, for it."""
    stream = archive.fileobj
    assert stream is not None
    if stream is file:
        stream.seek(archive.offset)
        ended = stream.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    else:  # unpacked data cannot be read backwards; its checksum is at the end
        ended = stream.tell() == archive.offset + tarfile.BLOCKSIZE
        while stream.read(1 << 20):
            pass
    if not ended:
        raise DataError(f"{path}: truncated or damaged archive: it has no end, after {archive.offset} bytes")


def _unpack(path: Path, folder: Path, bar: Any, report: Callable[[str], None]) -> None:
    """Unpack the images of an archive, below a folder that appears when all of them are there."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
    try:
        _unpack_into(unfinished, path, bar, report)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _unpack_into(folder: Path, path: Path, bar: Any, report: Callable[[str], None]) -> None:
    """Write images alone, under their own names below the folder, and no link."""
    size = path.stat().st_size
    made: set[Path] = set()
    others: Counter[str] = Counter()
    with files.opened(path) as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
        for i, member in enumerate(archive):
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not member.isfile() or not parts or ".." in parts or not is_image(parts[-1]):
                if member.isfile() and parts and not parts[-1].startswith("."):
                    others[kind_of(parts[-1])] += 1
                continue
            stream = archive.extractfile(member)
            assert stream is not None  # it is a file
            content = stream.read()
            if len(content) != member.size:
                raise DataError(f"{path}: truncated or damaged archive, at {member.name}")
            target = folder.joinpath(*parts)
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            target.write_bytes(content)
            if i % 500 == 0:
                report(str(raw.tell()))
                _show_unpacking(bar, size, str(raw.tell()))
        check_end(path, archive, raw)
    if not made:
        raise DataError(f"{path}: no images ({_listed()}) in the archive")
    warn_of_others(path, others)


# ---- a folder with its parts

TRAIN, VALIDATION = ("train", "training"), ("val", "validation", "valid", "test")
SHARE = 0.1  # to validate on, of a folder without a part for that


def load(
    folder: str | os.PathLike[str],
    size: int | tuple[int, int] = 224,
    *,
    validation: float | None = None,
    seed: int = 0,
    progress: bool = True,
    **how: Any,
) -> tuple[Dataset, Dataset]:
    """(train, validation): folder/train/<class>/ and folder/val/<class>/ (or validation, valid, test), if they exist.

    Otherwise folder/<class>/ is divided: `validation` is the share to validate on, drawn by the seed; None: 0.1. All
    other keywords are image_folder's.
    """
    root = unpacked(folder, progress)
    parts = [next((root / name for name in names if (root / name).is_dir()), None) for names in (TRAIN, VALIDATION)]
    train, other = parts
    how |= {"seed": seed, "progress": progress}
    if train is not None and other is not None:
        if validation is not None:
            raise ValueError(f"validation={validation!r}: {root} has {other.name}/ to validate on; allowed: None")
        first = ImageFolder(train, size, name=root.name, **how)
        second = ImageFolder(other, size, **how | {"classes": first.classes, "augment": False, "name": root.name})
        return Dataset(first), Dataset(second)
    if train is not None or other is not None:
        there = train or other
        assert there is not None
        missing = "val/<class>/" if train is not None else "train/<class>/"
        raise DataError(f"{root}: has {there.name}/ but no {missing} beside it")
    whole = Dataset(ImageFolder(root, size, **how))
    share = number("validation", SHARE if validation is None else validation, above=0.0, below=1.0)
    rest, part = whole.split(1.0 - share, seed=seed)
    return rest, part
