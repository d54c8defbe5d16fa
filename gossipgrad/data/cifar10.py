"""CIFAR-10: the binary and the Python version, or images in a folder or a tar archive, decoded once into the cache.

Source: A. Krizhevsky, "Learning multiple layers of features from tiny images" (2009). A record of the binary version is
a label and 3 x 32 x 32 bytes: the red, green and blue planes, row by row.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import struct
import tarfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossipgrad.data import cache, images, pickled_arrays
from gossipgrad.data.arrays import Dataset
from gossipgrad.errors import DataError
from gossipgrad.launch.terminal import Bar
from gossipgrad.state import files

SHAPE = (3, 32, 32)
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES = len(CLASS_NAMES)
RECORD = 1 + 3 * 32 * 32
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILES = ("test_batch.bin",)
BINARY_FILES = (*TRAIN_FILES, *TEST_FILES)
BINARY_ARCHIVE = "cifar-10-binary.tar.gz"
PYTHON_FILES = tuple(name.removesuffix(".bin") for name in BINARY_FILES)
PYTHON_ARCHIVE = "cifar-10-python.tar.gz"
PARTS = ("train", "test")
FORMAT = 2  # of the cache file
BY_TURNS = 500  # images between two reports of progress

Pixels = NDArray[np.uint8]
Arrays = dict[str, Pixels]  # train_x, test_x: (n, 3, 32, 32); train_y, test_y: (n,)
Report = Callable[[float, int], None]  # share of the work, images so far


def cache_folder() -> Path:
    """Folder of decoded sets, and the last place to look for the source."""
    return cache.root() / "cifar10"


# ---- finding


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(images.ARCHIVES)


def _look(place: Path) -> Path | None:
    """The source in a folder: a folder of binary files or of train/ and test/, or an archive; None: nothing there."""
    for folder in (place, place / "cifar-10-batches-bin", place / "cifar-10-batches-py"):
        for names in (BINARY_FILES, PYTHON_FILES):
            present = [name for name in names if (folder / name).is_file()]
            if present:
                missing = ", ".join(name for name in names if name not in present)
                if missing:
                    raise DataError(f"{folder}: missing beside the other CIFAR-10 files: {missing}")
                return folder
    parts = [part for part in PARTS if (place / part).is_dir()]
    if parts:
        missing = "".join(part for part in PARTS if part not in parts)
        if missing:
            raise DataError(f"{place}: has {parts[0]}/ but no {missing}/<class>/ beside it")
        return place
    for name in (BINARY_ARCHIVE, PYTHON_ARCHIVE):
        if (place / name).is_file():
            return place / name
    found = sorted(p for p in place.glob("*") if p.is_file() and _is_archive(p) and "cifar" in p.name.lower())
    if len(found) > 1:
        raise DataError(f"{place}: several archives: {', '.join(p.name for p in found)}; name one of them by --data")
    return found[0] if found else None


def locate(source: str | os.PathLike[str] | None = None) -> Path:
    """The archive, or the folder with the binary files or with train/ and test/. No other place is tried for a given
    one."""
    if source is not None:
        path = Path(source)
        if path.is_file():
            if not _is_archive(path):
                raise DataError(f"data: {path}: no archive; allowed: {', '.join(images.ARCHIVES)}, or a folder")
            return path
        if not path.is_dir():
            raise DataError(f"data: no such file or folder: {os.fspath(source)!r}")
    looked = cache.places("cifar10", source)
    for place in looked:
        found = _look(place) if place.is_dir() else None
        if found is not None:
            return found
    raise DataError(
        f"cifar10 not found in {', '.join(map(str, looked))}. Put {BINARY_ARCHIVE} or {PYTHON_ARCHIVE} "
        "(from https://www.cs.toronto.edu/~kriz/cifar.html), their six files data_batch_1.bin ... test_batch.bin (or "
        "without .bin), the folders train/<class>/ and test/<class>/ with images, or a tar archive of these "
        "(cifar*.tar.xz) into one of these "
        "folders, or name theirs by --data"
    )


# ---- the binary version


def _records(content: bytes, name: str) -> tuple[Pixels, Pixels]:
    """(images (n, 3, 32, 32), labels (n,)) of a binary file's content."""
    if not content or len(content) % RECORD:
        raise DataError(f"{name}: truncated: {len(content)} bytes are not a number of records of {RECORD} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    bad = np.flatnonzero(rows[:, 0] >= CLASSES)
    if len(bad):
        raise DataError(f"{name}: record {bad[0]} has label {rows[bad[0], 0]}; CIFAR-10 has 0..{CLASSES - 1}")
    return rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0]


def _pickled(content: bytes, name: str) -> tuple[Pixels, Pixels]:
    """(images (n, 3, 32, 32), labels (n,)) of a Python version's file, without running it."""
    found = pickled_arrays.read(content, name)
    if not isinstance(found, dict) or not {"data", "labels"} <= set(found):
        raise DataError(f"{name}: no batch of CIFAR-10's Python version, a dict with data and labels")
    x, y = found["data"], np.asarray(found["labels"])
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != RECORD - 1 or not len(x):
        raise DataError(f"{name}: data is no uint8 array (n, {RECORD - 1})")
    if y.dtype.kind not in "iu" or y.shape != (len(x),):
        raise DataError(f"{name}: labels are no list of {len(x)} integers")
    bad = np.flatnonzero((y < 0) | (y >= CLASSES))
    if len(bad):
        raise DataError(f"{name}: labels[{bad[0]}] is {y[bad[0]]}; CIFAR-10 has 0..{CLASSES - 1}")
    return x.reshape(-1, *SHAPE), y.astype(np.uint8)


def _from_six(contents: Callable[[str], bytes], place: Path, names: Sequence[str]) -> Arrays:
    """Arrays from the six files of the binary or the Python version."""
    read = _records if names == BINARY_FILES else _pickled
    arrays: Arrays = {}
    for part, chosen in (("train", names[:-1]), ("test", names[-1:])):
        pieces = [read(contents(name), f"{place / name}") for name in chosen]
        arrays[f"{part}_x"] = np.concatenate([x for x, _ in pieces])
        arrays[f"{part}_y"] = np.concatenate([y for _, y in pieces])
    return arrays


def _read(path: Path) -> bytes:
    try:
        return files.content(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


# ---- images


def _decoder() -> Callable[[bytes, str], bytes]:
    """A function (content of an image file, its name for errors) -> red, green and blue planes."""
    image_module = images.pillow("CIFAR-10's images")
    size = (SHAPE[2], SHAPE[1])

    def decode(content: bytes, name: str) -> bytes:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", image_module.DecompressionBombWarning)
                with image_module.open(io.BytesIO(content)) as image:
                    found = image.size
                    pixels = np.asarray(image.convert("RGB")) if found == size else None
        except image_module.UnidentifiedImageError as error:
            raise DataError(f"{name}: a broken image, or none: no format that Pillow knows") from error
        except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
            raise DataError(f"{name}: a broken image: {error}") from error
        except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
            raise DataError(f"{name}: {error}; wanted {size[0]} x {size[1]} pixels") from error
        if pixels is None:
            raise DataError(f"{name}: {found[0]} x {found[1]} pixels; wanted {size[0]} x {size[1]}")
        return pixels.transpose(2, 0, 1).tobytes()

    return decode


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


class _Collector:
    """Decoded images of both parts in any order; arrays() puts them into an order that follows from their names alone.

    That order mixes the classes: ranks train on contiguous shards, and in the order of folders each would see a class
    or two.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.decode = _decoder()
        self.pixels = {part: bytearray() for part in PARTS}
        self.names: dict[str, list[tuple[str, str]]] = {part: [] for part in PARTS}

    def __len__(self) -> int:
        return sum(map(len, self.names.values()))

    def add(self, part: str, kind: str, name: str, content: bytes) -> None:
        self.pixels[part] += self.decode(content, f"{self.source}: {part}/{kind}/{name}")
        self.names[part].append((kind, name))

    def arrays(self) -> Arrays:
        kinds = {part: sorted({kind for kind, _ in self.names[part]}) for part in PARTS}
        for part in PARTS:
            if not kinds[part]:
                raise DataError(f"{self.source}: no classes: no images {part}/<class>/*.jpg or *.png in it")
        for part, other in (PARTS, PARTS[::-1]):
            alone = sorted(set(kinds[part]) - set(kinds[other]))
            if alone:
                raise DataError(f"{self.source}: classes with images in {part}/ alone: {', '.join(alone)}")
        if len(kinds["train"]) != CLASSES:
            listed = ", ".join(kinds["train"][: 2 * CLASSES])
            raise DataError(f"{self.source}: {len(kinds['train'])} classes ({listed}); wanted {CLASSES}")
        result: Arrays = {}
        for part in PARTS:
            keys = [(_digest(f"{kind}/{os.path.splitext(name)[0]}"), name) for kind, name in self.names[part]]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            pixels = np.frombuffer(self.pixels[part], np.uint8).reshape(-1, *SHAPE)
            result[f"{part}_x"] = pixels[order]
            index = {kind: i for i, kind in enumerate(kinds[part])}
            result[f"{part}_y"] = np.array([index[self.names[part][i][0]] for i in order], np.uint8)
        return result


def _image_files(folder: Path) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """(part, class, file) of the images under train/<class>/ and test/<class>/."""
    others: Counter[str] = Counter()
    for part in PARTS:
        with os.scandir(folder / part) as kinds:
            for kind in sorted((k for k in kinds if k.is_dir() and not k.name.startswith(".")), key=lambda k: k.name):
                with os.scandir(kind.path) as listing:
                    there = [file for file in listing if file.is_file() and not file.name.startswith(".")]
                found = [file for file in there if images.is_image(file.name)]
                others.update(images.kind_of(file.name) for file in there if not images.is_image(file.name))
                if not found:
                    raise DataError(f"{kind.path}: no images (*.jpg, *.png) in the folder of this class")
                for file in found:
                    yield part, kind.name, file
    images.warn_of_others(folder, others)


def _from_folder(folder: Path, files: list[tuple[str, str, os.DirEntry[str]]], report: Report) -> Arrays:
    collected = _Collector(folder)
    for i, (part, kind, file) in enumerate(files):
        collected.add(part, kind, file.name, _read(Path(file.path)))
        if i % BY_TURNS == 0:
            report(i / len(files), i)
    return collected.arrays()


def _from_archive(path: Path, report: Report) -> Arrays:
    """Binary files or images in a tar archive, in whatever folder; nothing is unpacked to disk."""
    six = (*BINARY_FILES, *PYTHON_FILES)
    batches: dict[str, bytes] = {}
    collected: _Collector | None = None
    size = max(path.stat().st_size, 1)
    try:
        with files.opened(path) as file, tarfile.open(fileobj=file, mode="r:*") as archive:
            for i, member in enumerate(archive):
                parts = member.name.split("/")
                image = len(parts) >= 3 and parts[-3] in PARTS and images.is_image(parts[-1])
                stream = archive.extractfile(member) if image or parts[-1] in six else None
                if stream is None or not member.isfile():
                    continue
                content = stream.read()
                if len(content) != member.size:
                    raise DataError(f"{path}: truncated or damaged archive, at {member.name}")
                if not image:
                    batches[parts[-1]] = content
                else:
                    collected = collected or _Collector(path)
                    collected.add(parts[-3], parts[-2], parts[-1], content)
                if i % BY_TURNS == 0:
                    report(file.tell() / size, len(collected or ()))
            images.check_end(path, archive, file)
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged archive ({error})") from error
    except OSError as error:  # includes gzip.BadGzipFile
        raise DataError(f"{path}: {error.strerror or f'truncated or damaged archive ({error})'}") from error
    if batches:
        names = BINARY_FILES if any(name in batches for name in BINARY_FILES) else PYTHON_FILES
        missing = ", ".join(name for name in names if name not in batches)
        if missing:
            raise DataError(f"{path}: missing in the archive beside the other CIFAR-10 files: {missing}")
        return _from_six(batches.__getitem__, path, names)
    if collected is None:
        raise DataError(
            f"{path}: no classes: neither images train/<class>/*.jpg or *.png in it nor {BINARY_FILES[0]} "
            f"or {PYTHON_FILES[0]}"
        )
    return collected.arrays()


# ---- the cache


def _kept(path: Path) -> Arrays | None:
    """The arrays in a cache file; None if there is none, or it is damaged."""
    try:
        with files.opened(path) as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in ("train_x", "train_y", "test_x", "test_y")}
    except Exception:  # a damaged header may raise anything
        return None
    for part in PARTS:
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        if x.dtype != np.uint8 or x.shape != (len(y), *SHAPE) or y.shape != (len(y),):
            return None
    return arrays


def _once(key: str, make: Callable[[Report], Arrays], progress: bool) -> Arrays:
    """The arrays of this key from the cache; else one process of a machine makes and stores them.

    The others wait for the file, and on rank 0 show the maker's progress. An unwritable cache costs a warning and the
    work in each process.
    """
    folder = cache_folder()
    path = folder / f"decoded-{key}.npz"
    arrays = _kept(path)
    if arrays is not None:
        return arrays
    bar = Bar("cifar10", progress)

    def waiting(text: str) -> None:
        share, _, count = text.partition(" ")
        if count:
            bar.show(float(share), f"{int(count):,} images decoded")

    def made(say: Callable[[str], None]) -> Arrays:
        def report(share: float, count: int) -> None:
            say(f"{share:.4f} {count}")
            bar.show(share, f"{count:,} images decoded")

        arrays = make(report)
        bar.close(f"{len(arrays['train_y']) + len(arrays['test_y']):,} images decoded")
        return arrays

    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with cache.locked(folder / ".lock", waiting) as say:
                arrays = _kept(path)  # by another process, meanwhile
                if arrays is None:
                    arrays = made(say)
                    cache.remove_left(folder)
                    with files.written(os.fspath(path)) as file:
                        np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            warnings.warn(
                f"{folder}: {error.strerror or error}: the decoded images are not stored; GOSSIPGRAD_CACHE names "
                "another folder",
                stacklevel=2,
            )
            if arrays is None:
                arrays = made(lambda text: None)
    finally:
        bar.close()
    return arrays


def load(source: str | os.PathLike[str] | None = None, progress: bool = True) -> tuple[Dataset, Dataset]:
    """(50,000 to train, 10,000 to test), samples (3, 32, 32) in 0..1, stored as uint8.

    source: an archive, or the folder that holds one, the six files of the binary or of the Python version (whose
    pickles are read without being run), or train/<class>/ and test/<class>/ with images; None:
    $GOSSIPGRAD_DATA/cifar10, the cache. Classes of folders are numbered in alphabetical order; images
    come in the order of the SHA-256 of "<class>/<file without its suffix>", which mixes the classes. Archives and
    images are decoded once into the cache. progress: show it. DataError names missing or damaged files; images need
    Pillow.
    """
    place = locate(source)
    try:
        if place.is_file():
            facts = place.stat()
            key = cache.key(FORMAT, place.resolve(), facts.st_size, facts.st_mtime_ns)
            arrays = _once(key, lambda report: _from_archive(place, report), progress)
        elif (place / BINARY_FILES[0]).is_file():
            arrays = _from_six(lambda name: _read(place / name), place, BINARY_FILES)
        elif (place / PYTHON_FILES[0]).is_file():
            arrays = _from_six(lambda name: _read(place / name), place, PYTHON_FILES)
        else:
            files = list(_image_files(place))
            seen = sorted((p, k, f.name, f.stat().st_size, f.stat().st_mtime_ns) for p, k, f in files)
            key = cache.key(FORMAT, place.resolve(), *seen)
            arrays = _once(key, lambda report: _from_folder(place, files, report), progress)
    except OSError as error:
        raise DataError(f"{error.filename or place}: {error.strerror or error}") from error
    sets = [Dataset(arrays[f"{part}_x"], arrays[f"{part}_y"], 1 / 255, name="cifar10") for part in PARTS]
    for one in sets:
        one.classes = list(CLASS_NAMES)
    return sets[0], sets[1]
