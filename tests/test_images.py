"""Folders of images: what is read, crops and flips that depend on the sample alone, and every way to be broken."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import threading
import warnings

import numpy as np
import pytest

import gossipgrad as gg
from gossipgrad.data import image_cache, images

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSIPGRAD_CACHE", str(tmp_path / "cache"))


def picture(width, height, seed=0, mode="RGB"):
    """Smooth, so that JPEG hardly changes it: two waves in each channel."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(generator.uniform(0.5, 2) * x + generator.uniform(0.5, 2) * y + i) for i in range(3)]
    pixels = (127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image, suffix):
    file = io.BytesIO()
    image.save(file, "PNG" if suffix == ".png" else "JPEG", **({} if suffix == ".png" else {"quality": 95}))
    return file.getvalue()


SIZES = {
    ("cat", "a.jpg"): (80, 60),
    ("cat", "b.png"): (50, 70),
    ("dog", "c.JPEG"): (64, 64),
    ("dog", "d.jpg"): (33, 47),
}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pets"
    for i, ((kind, name), (width, height)) in enumerate(SIZES.items()):
        (root / kind).mkdir(parents=True, exist_ok=True)
        (root / kind / name).write_bytes(encoded(picture(width, height, i), os.path.splitext(name)[1].lower()))
    return root


def read(data, epoch=-1, rows=None):
    return data.source.read_new(np.arange(len(data)) if rows is None else np.asarray(rows), epoch)[0]


def near(a, b, limit=3.0):
    assert np.abs(a.astype(float) - b.astype(float)).mean() < limit


# ---- what is read


def test_samples_and_classes(folder):
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "cat" / ".hidden.jpg").write_text("no image")
    (folder / ".git").mkdir()
    data = gg.data.image_folder(folder, 32, workers=1)
    assert data.classes == ["cat", "dog"] and data.targets.tolist() == [0, 0, 1, 1] and len(data) == 4
    assert data.shape == (3, 32, 32) and data.dtype == np.uint8 and data.name == "pets"
    assert [os.path.basename(data.source.path(i)) for i in range(4)] == ["a.jpg", "b.png", "c.JPEG", "d.jpg"]
    for i, size in enumerate(SIZES.values()):
        image = picture(*size, i)
        factor = 37 / min(size)  # the shorter side, then the middle
        small = image.resize((round(size[0] * factor), round(size[1] * factor)), Image.Resampling.BILINEAR)
        left, upper = (small.size[0] - 32) / 2, (small.size[1] - 32) / 2
        expected = np.asarray(small.crop((round(left), round(upper), round(left) + 32, round(upper) + 32)))
        near(read(data, rows=[i])[0], expected.transpose(2, 0, 1), 5)
    assert np.array_equal(data.samples, read(data)) and np.array_equal(data[[3, 1]].samples, read(data)[[3, 1]])


def test_images_of_their_own_size_are_read_as_they_are(folder):
    data = gg.data.image_folder(folder, 64, resize=64, augment=False)
    assert np.array_equal(read(data, 5), read(data))
    expected = np.asarray(Image.open(folder / "dog" / "c.JPEG")).transpose(2, 0, 1)
    assert np.array_equal(read(data, rows=[2])[0], expected)
    assert gg.data.image_folder(folder, (20, 30)).shape == (3, 20, 30)


def test_the_network_sees_normalised_pixels(folder):
    data = gg.data.image_folder(folder, 16)
    seen = np.concatenate(list(data.batches(3)))
    mean, deviation = np.array(images.MEAN)[:, None, None], np.array(images.DEVIATION)[:, None, None]
    np.testing.assert_allclose(seen, (data.samples / 255 - mean) / deviation, rtol=1e-4, atol=1e-4)
    data = gg.data.image_folder(folder, 16, mean=0.5, deviation=(0.1, 0.2, 0.4))
    np.testing.assert_allclose(
        next(data.batches(4)), (data.samples / 255 - 0.5) / np.array([0.1, 0.2, 0.4])[:, None, None], atol=1e-4
    )
    grey = gg.data.image_folder(folder, 16, channels=1)
    assert grey.shape == (1, 16, 16)
    near(read(grey)[:, 0], read(data).transpose(0, 2, 3, 1) @ [0.299, 0.587, 0.114])
    np.testing.assert_allclose(next(grey.batches(4)), grey.samples / 255, atol=1e-6)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK", "I;16"])
def test_images_of_other_modes(tmp_path, mode):
    (tmp_path / "x").mkdir()
    plain = picture(40, 40, mode="L" if mode in ("L", "LA", "1", "I;16") else "RGB")
    if mode == "I;16":
        image = Image.fromarray(np.asarray(plain).astype(np.uint16) * 256 + 7)
    else:
        image = plain.convert(mode)
    image.save(tmp_path / "x" / ("a.jpg" if mode == "CMYK" else "a.png"), quality=95)
    data = gg.data.image_folder(tmp_path, 40, resize=40)
    expected = np.asarray((image if mode in ("1", "P") else plain).convert("RGB")).transpose(2, 0, 1)
    near(read(data)[0], expected)


@pytest.mark.parametrize("cache", [False, True])
def test_the_range_of_16_bit_images(tmp_path, cache):
    """Of images that use 12 of the bits, which are nearly black as 16."""
    (tmp_path / "in" / "x").mkdir(parents=True)
    plain = np.asarray(picture(40, 40, mode="L"))
    Image.fromarray(plain.astype(np.uint16) * 16 + 7).save(tmp_path / "in" / "x" / "a.png")
    how = {"size": 40, "resize": 40, "channels": 1, "cache": cache}
    assert np.array_equal(read(gg.data.image_folder(tmp_path / "in", bits=12, **how))[0, 0], plain)
    with pytest.warns(UserWarning, match="no value above 3639, so it becomes nearly black; bits=12 says") as caught:
        dark = gg.data.image_folder(tmp_path / "in", **how)
        assert np.array_equal(read(dark)[0, 0], plain // 16)
        read(dark)
    assert len(caught) == 1
    Image.fromarray(np.full((40, 40), 1 << 12, np.uint16)).save(tmp_path / "in" / "x" / "a.png")
    assert (read(gg.data.image_folder(tmp_path / "in", bits=12, **how)) == 255).all()  # not 0, as 256 in a byte is


@pytest.mark.parametrize("cache", [False, True])
def test_the_orientation_that_a_camera_noted(tmp_path, cache):
    (tmp_path / "in" / "x").mkdir(parents=True)
    image, noted = picture(60, 40), Image.Exif()
    noted[0x0112] = 6  # a quarter turn to the right
    image.save(tmp_path / "in" / "x" / "a.jpg", quality=95, exif=noted)
    middle = image.crop((10, 0, 50, 40))
    for exif, seen in ((False, middle), (True, middle.transpose(Image.Transpose.ROTATE_270))):
        data = gg.data.image_folder(tmp_path / "in", 40, resize=40, exif=exif, cache=cache)
        near(read(data)[0], np.asarray(seen).transpose(2, 0, 1))


def test_files_of_other_formats_are_counted(folder, tmp_path):
    """In a folder and in an archive; a pipe is no image, and is not waited for."""
    content = encoded(picture(20, 20), ".jpg")
    (folder / "cat" / "e.jfif").write_bytes(content)
    for kind, name in (("cat", "f.webp"), ("dog", "g.WEBP"), ("dog", "h.bmp"), ("dog", "i"), ("dog", ".hidden")):
        (folder / kind / name).write_bytes(content)
    packed(folder, tmp_path / "a.tar")
    os.mkfifo(folder / "dog" / "pipe.png")
    words = r"pets: 5 files left out: 2 \*.webp, 1 \*.bmp, 1 no suffix, 1 no regular file; what is read: \*.jpg"
    with pytest.warns(UserWarning, match=words) as caught:
        assert len(gg.data.image_folder(folder, 16)) == 5
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=r"a.tar: 4 files left out: 2 \*.webp, 1 \*.bmp, 1 no suffix;"):
        assert len(gg.data.image_folder(tmp_path / "a.tar", 16)) == 5


def test_a_pipe_in_the_place_of_a_stored_set(folder):
    stored = gg.data.image_folder(folder, 16, cache=True)
    wanted = read(stored)
    place = stored.source._decoded.path
    for path in (place.with_suffix(".npy"), place):
        path.unlink()
        os.mkfifo(path)
        assert np.array_equal(read(gg.data.image_folder(folder, 16, cache=True)), wanted)
    one = gg.data.image_folder(folder, 16)
    (folder / "cat" / "a.jpg").unlink()
    os.mkfifo(folder / "cat" / "a.jpg")
    with pytest.warns(UserWarning, match="a.jpg: not a regular file; skipped"):
        read(one)


def test_large_jpegs_are_decoded_smaller(tmp_path):
    """Which is faster, and nearly the same as decoding them whole."""
    (tmp_path / "x").mkdir()
    image = picture(403, 317)
    (tmp_path / "x" / "a.jpg").write_bytes(encoded(image, ".jpg"))
    (tmp_path / "x" / "b.png").write_bytes(encoded(image, ".png"))
    data = gg.data.image_folder(tmp_path, 24, seed=3)
    decoder = data.source._decoder
    opened = decoder.open((tmp_path / "x" / "a.jpg").read_bytes())
    box = decoder.reduce(opened, (3, 5, 403, 305), (24, 24))
    assert opened.size == (51, 40) and np.allclose(box, (3 / 8, 5 / 8, 403 / 8, 305 / 8))
    for epoch in range(-1, 30):
        crop = images.random_crops(3, epoch, np.array([1, 1]), (0.08, 1), (3 / 4, 4 / 3))(0, 403, 317)
        flip = gg.data.draws.uniform(3, epoch, [1])[0, 0] < 0.5
        if epoch < 0:
            crop, flip = images.centre_crop(403, 317, (24, 24), 27), False
        found = read(data, epoch, rows=[1])[0]  # the PNG
        whole = image.resize((24, 24), Image.Resampling.BILINEAR, box=crop)
        expected = np.asarray(whole)[:, ::-1] if flip else np.asarray(whole)
        near(found, expected.transpose(2, 0, 1), 1)
        shrunk = np.empty_like(found)
        decoder.crop(decoder.open((tmp_path / "x" / "a.jpg").read_bytes()), crop, (24, 24), bool(flip), shrunk)
        near(shrunk, found)


# ---- what is drawn


def test_augmentation_is_of_seed_epoch_and_sample_alone(folder):
    data = gg.data.image_folder(folder, 24, workers=1, seed=7)
    whole = read(data, 3)
    threads = gg.data.image_folder(folder, 24, workers=4, seed=7)
    assert np.array_equal(read(threads, 3), whole) and np.array_equal(read(threads, 3, [2, 0, 2]), whole[[2, 0, 2]])
    for row in range(4):
        assert np.array_equal(read(data, 3, [row])[0], whole[row])
    assert not np.array_equal(read(data, 4), whole)
    assert not np.array_equal(read(gg.data.image_folder(folder, 24, seed=8), 3), whole)
    assert not np.array_equal(read(data), whole) and np.array_equal(read(data), read(threads))
    found: list = []
    readers = [threading.Thread(target=lambda: found.append(read(threads, 3))) for _ in range(4)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    assert len(found) == 4 and all(np.array_equal(one, whole) for one in found)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (30, 300), (300, 30), (1, 1)])
def test_random_crops(width, height):
    crop = images.random_crops(1, 2, np.arange(500), (0.2, 0.9), (0.5, 2.0))
    boxes = np.array([crop(i, width, height) for i in range(500)])
    left, upper, right, lower = boxes.T
    assert left.min() >= 0 and upper.min() >= 0 and right.max() <= width and lower.max() <= height
    w, h = right - left, lower - upper
    assert w.min() >= 1 and h.min() >= 1
    if width == 500:
        area, shape = w * h / (width * height), w / h
        assert 0.19 < area.min() < 0.25 and 0.8 < area.max() < 0.91
        assert 0.49 < shape.min() < 0.55 and 1.8 < shape.max() < 2.05
        assert abs(np.mean(left / (width - w + 1)) - 0.5) < 0.1 and len({tuple(box) for box in boxes}) > 490
    if 30 in (width, height):  # mostly none fits: the largest in the middle
        middle = tuple(int(one) for one in np.array([(width - min(width, 60)) / 2, (height - min(height, 60)) / 2]))
        assert tuple(boxes[0][:2]) == middle


def test_crops_are_torchvisions(monkeypatch):
    """Equal draws give the box of RandomResizedCrop.get_params, whose code this is in short."""
    crop = images.random_crops(5, 0, np.arange(200), (0.08, 1.0), (3 / 4, 4 / 3))
    for i in range(200):
        width, height = 300 + i, 480 - 2 * i
        expected = None
        for attempt in range(10):
            a, r, x, y = gg.data.draws.uniform(5, 0, [i], 1 + attempt)[0]
            area = width * height * (0.08 + 0.92 * a)
            shape = np.exp(np.log(3 / 4) + (np.log(4 / 3) - np.log(3 / 4)) * r)
            w, h = int(round(np.sqrt(area * shape))), int(round(np.sqrt(area / shape)))
            if 0 < w <= width and 0 < h <= height:
                left, upper = int(np.floor(x * (width - w + 1))), int(np.floor(y * (height - h + 1)))
                expected = (left, upper, left + w, upper + h)
                break
        if expected is not None:
            assert crop(i, width, height) == expected


def test_flips(folder):
    how = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "resize": 64}
    never, always = (gg.data.image_folder(folder, 64, flip=flip, **how) for flip in (0.0, 1.0))
    for epoch in range(3):
        straight = read(never, epoch, [2])
        assert np.array_equal(straight, read(never, rows=[2]))
        assert np.array_equal(read(always, epoch, [2]), straight[..., ::-1])
    half = gg.data.image_folder(folder, 64, **how)
    flipped = [np.array_equal(read(half, epoch, [2]), straight[..., ::-1]) for epoch in range(60)]
    assert 15 < sum(flipped) < 45


# ---- what is broken


def test_broken_files_are_named_counted_and_skipped(folder):
    whole = (folder / "dog" / "c.JPEG").read_bytes()
    (folder / "dog" / "c.JPEG").write_bytes(whole[:-200])
    (folder / "cat" / "a.jpg").write_bytes(b"GIF89a is no JPEG")
    data = gg.data.image_folder(folder, 24, workers=1)
    with pytest.warns(UserWarning) as caught:
        found = read(data, 1)
    words = [str(one.message) for one in caught]
    assert {one.filename for one in caught} == {__file__}
    assert len(words) == 2 and any("c.JPEG: a broken image: " in one and "truncated" in one for one in words)
    assert any("a.jpg: no JPEG or PNG image" in one and "of 4)" in one for one in words)
    assert sorted(os.path.basename(path) for path in data.source.broken) == ["a.jpg", "c.JPEG"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each is named once
        assert np.array_equal(read(data, 1), found)
    drawn = images.random_crops(0, 1, np.array([2]), (0.08, 1), (3 / 4, 4 / 3))(0, 33, 47)
    expected = Image.open(folder / "dog" / "d.jpg").resize((24, 24), Image.Resampling.BILINEAR, box=drawn)
    planes = np.asarray(expected).transpose(2, 0, 1)
    near(found[2], planes[..., ::-1] if gg.data.draws.uniform(0, 1, [2])[0, 0] < 0.5 else planes, 1)


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"text"])
@pytest.mark.parametrize("workers", [1, 3])
def test_strict_means_an_error(folder, content, workers):
    (folder / "cat" / "b.png").write_bytes(content)
    data = gg.data.image_folder(folder, 24, strict=True, workers=workers)
    with pytest.raises(
        gg.DataError, match=r"b.png: .*\(strict=False, --no-strict on the command line, skips such files\)"
    ):
        read(data, 0)


def test_a_damaged_png_and_a_file_that_went(folder):
    png = bytearray((folder / "cat" / "b.png").read_bytes())
    png[len(png) // 2] ^= 0x55
    (folder / "cat" / "b.png").write_bytes(png)
    data = gg.data.image_folder(folder, 24)
    (folder / "dog" / "d.jpg").unlink()
    with pytest.warns(UserWarning) as caught:
        read(data)
    words = " ".join(str(one.message) for one in caught)
    assert "b.png: a broken image" in words and "d.jpg: No such file or directory" in words


@pytest.mark.parametrize("workers", [1, 3])
def test_a_broken_file_is_named_at_the_line_that_trains(folder, workers):
    """Not at a line of the threads that read it."""
    (folder / "cat" / "b.png").write_bytes(b"text")
    data = gg.data.image_folder(folder, 24, workers=workers)
    net = gg.Sequential([gg.Flatten(), gg.Linear(2)], input=(3, 24, 24))
    with gg.Trainer(net) as trainer, pytest.warns(UserWarning, match="no JPEG") as caught:
        trainer.fit(data, batch_size=2, progress=False)
    assert [one.filename for one in caught] == [__file__]


def test_a_broken_file_is_replaced_by_its_class_in_any_order_of_classes(folder):
    data = gg.data.image_folder(folder, 24, classes=["dog", "cat"], workers=1)
    assert data.targets.tolist() == [1, 1, 0, 0]
    whole = read(data)
    broken = {"cat": "a.jpg", "dog": "d.jpg"}
    for kind, name in broken.items():
        (folder / kind / name).write_bytes(b"text")
    with pytest.warns(UserWarning, match="no JPEG"):
        found = read(data)
    near(found, whole[[1, 1, 2, 2]], 40)
    assert np.array_equal(found[[1, 2]], whole[[1, 2]])
    paths = [[data.source.path(other).name for other in data.source._instead(row)] for row in range(4)]
    assert paths == [["b.png"], ["b.png"], ["c.JPEG"], ["c.JPEG"]]


def test_a_class_of_which_every_image_is_broken(folder):
    for name in ("a.jpg", "b.png"):
        (folder / "cat" / name).write_bytes(b"")
    data = gg.data.image_folder(folder, 24)
    with (
        pytest.warns(UserWarning),
        pytest.raises(gg.DataError, match="every image of class 'cat' is broken, as .*cat/"),
    ):
        read(data)
    with (
        pytest.warns(UserWarning, match="2 broken files left out of 4"),
        pytest.raises(gg.DataError, match="class 'cat'"),
    ):
        gg.data.image_folder(folder, 24, cache=True)


def test_folders_that_are_none(folder, tmp_path, monkeypatch):
    for path, words in (
        (tmp_path / "none", "none: no such folder"),
        (folder / "cat" / "a.jpg", "a.jpg: not a folder"),
        (folder / "cat", "cat: no folders of classes in it; it has 2 images that are in no class; wanted cat/<class>/"),
    ):
        with pytest.raises(gg.DataError, match=words):
            gg.data.image_folder(path)
    (folder / "bird").mkdir()
    with pytest.raises(gg.DataError, match=r"bird: no images in the folder of this class, it is empty; wanted \*.jpg"):
        gg.data.image_folder(folder)
    (folder / "bird" / "x.gif").write_bytes(b"")
    with pytest.raises(gg.DataError, match=r"bird: .*; it has files with \*.gif; wanted"):
        gg.data.image_folder(folder)
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("bird"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(gg.DataError, match="bird: Permission denied"):
        gg.data.image_folder(folder)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": (1, 2, 3)}, ValueError, "size="),
        ({"resize": 10}, ValueError, "resize=10"),
        ({"channels": 4}, ValueError, "channels=4"),
        ({"scale": 0.5}, ValueError, "scale=0.5"),
        ({"scale": (0.5, 0.1)}, ValueError, r"scale\[1\]=0.1"),
        ({"scale": (0.5, 1.5)}, ValueError, r"scale\[1\]=1.5"),
        ({"ratio": (0, 1)}, ValueError, r"ratio\[0\]=0"),
        ({"flip": 2}, ValueError, "flip=2"),
        ({"mean": (1, 2)}, ValueError, "mean: 2 numbers; allowed: one, or 3"),
        ({"deviation": 0}, ValueError, r"deviation\[0\]=0"),
        ({"mean": "mine"}, ValueError, "mean='mine'"),
        ({"workers": 0}, ValueError, "workers=0"),
        ({"strict": 1}, TypeError, "strict=1"),
        ({"augment": "yes"}, TypeError, "augment='yes'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"classes": ["cat"]}, gg.DataError, "dog: no classes of the training part"),
    ],
)
def test_bad_arguments(folder, how, error, words):
    with pytest.raises(error, match=words):
        gg.data.image_folder(folder, **{"size": 24, **how})


@pytest.mark.parametrize("classes", [0, "cat", [], ["cat", "cat"]])
def test_classes_that_are_no_list_of_names(folder, classes):
    with pytest.raises((TypeError, ValueError), match="classes.*allowed: "):
        gg.data.image_folder(folder, classes=classes)


def test_without_pillow_the_command_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'gossipgrad\[images\]'"):
        gg.data.image_folder(folder)


# ---- the cache


def test_decoded_images_are_stored_once(folder, tmp_path, monkeypatch):
    data = gg.data.image_folder(folder, 24, cache=True)
    assert len(list((tmp_path / "cache" / "images").glob("images-*.bin"))) == 1
    monkeypatch.setattr(image_cache, "_decode_all", None)  # not again
    again = gg.data.image_folder(folder, 24, cache=True, workers=3)
    plain = gg.data.image_folder(folder, 24)
    for epoch in (-1, 0, 5):
        assert np.array_equal(read(data, epoch), read(again, epoch))
    near(read(data), read(plain), 4)
    assert isinstance(data.source._decoded.bytes, np.memmap)
    small = data.source._decoded.pixels(0)
    assert min(small.shape[:2]) == data.source.resize == 27 and small.shape[1] / small.shape[0] == pytest.approx(4 / 3)


def test_a_stored_set_that_is_damaged_or_of_other_files_is_made_again(folder, tmp_path):
    place = tmp_path / "mine"
    gg.data.image_folder(folder, 24, cache=place)
    (file,) = place.glob("*.bin")
    file.write_bytes(file.read_bytes()[:-1])
    assert len(gg.data.image_folder(folder, 24, cache=place)) == 4 and file.stat().st_size > 100
    (folder / "cat" / "new.jpg").write_bytes((folder / "cat" / "a.jpg").read_bytes())
    assert len(gg.data.image_folder(folder, 24, cache=place)) == 5
    assert len(list(place.glob("*.bin"))) == 2
    gg.data.image_folder(folder, 24, resize=30, cache=place)
    assert len(list(place.glob("*.bin"))) == 3


def test_broken_files_are_left_out_of_a_stored_set(folder, tmp_path):
    (folder / "cat" / "a.jpg").write_bytes((folder / "cat" / "a.jpg").read_bytes()[:300])
    for _ in range(2):  # when it is made, and when it is found
        with pytest.warns(UserWarning, match="pets: 1 broken file left out of 4: cat/a.jpg"):
            data = gg.data.image_folder(folder, 24, cache=True)
        assert len(data) == 3 and data.targets.tolist() == [0, 1, 1]
        assert np.array_equal(read(data, 0, [1]), read(data, 0)[1:2])
    with pytest.raises(gg.DataError, match="a.jpg"):
        gg.data.image_folder(folder, 24, cache=True, strict=True)
    with pytest.raises(gg.DataError, match="a.jpg"):
        gg.data.image_folder(folder, 24, cache=tmp_path / "new", strict=True)


def test_stored_images_that_are_not_what_was_written_are_decoded_again(folder, tmp_path):
    place = tmp_path / "mine"
    wanted = read(gg.data.image_folder(folder, 24, cache=place))
    (file,) = place.glob("*.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # of one image
    file.write_bytes(content)
    data = gg.data.image_folder(folder, 24, cache=place)
    with pytest.warns(
        UserWarning, match=f"{file}: damaged, by the checksum of .*Remove it, and it is made anew"
    ) as said:
        assert np.array_equal(read(data), wanted)
    assert len(said) == 1
    file.unlink()
    assert np.array_equal(read(gg.data.image_folder(folder, 24, cache=place)), wanted)


def test_a_cache_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(gg.DataError, match="cache: .*; cache= names another folder"):
        gg.data.image_folder(folder, 24, cache=tmp_path / "file" / "below")


def test_a_bar_while_images_are_decoded(folder, monkeypatch, capsys):
    from gossipgrad.launch import terminal

    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    gg.data.image_folder(folder, 24, cache=True)
    out = capsys.readouterr().out
    assert "pets: 4 files found, 100 %" in out and "pets: 4 images decoded, 100 %" in out
    gg.data.image_folder(folder, 30, cache=True, progress=False)
    assert capsys.readouterr().out == ""


# ---- archives, and parts


def packed(folder, path, inside=""):
    with tarfile.open(path, "w:xz") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, inside + file.relative_to(folder).as_posix(), recursive=False)
    return path


@pytest.mark.parametrize("inside", ["", "deep/"])
def test_an_archive_is_unpacked_once(folder, tmp_path, inside, monkeypatch):
    path = packed(folder, tmp_path / "pets.tar.xz", inside)
    data = gg.data.image_folder(path, 24)
    assert data.classes == ["cat", "dog"] and np.array_equal(read(data, 2), read(gg.data.image_folder(folder, 24), 2))
    monkeypatch.setattr(images, "_unpack", None)
    assert np.array_equal(gg.data.image_folder(path, 24).samples, data.samples)


def test_a_folder_that_was_named_from_elsewhere(folder, monkeypatch):
    """It is read while training, when another folder may be the current one."""
    monkeypatch.chdir(folder.parent)
    data = gg.data.image_folder("pets", 32)
    monkeypatch.chdir("/")
    assert np.array_equal(read(data), read(gg.data.image_folder(folder, 32))) and not data.source.broken


def test_an_archive_in_a_folder_whose_name_is_no_text(folder, tmp_path):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(place)
    with tarfile.open(os.path.join(place, "pets.tar"), "w") as archive:
        archive.add(folder, "pets")
    assert len(gg.data.image_folder(os.path.join(place, "pets.tar"), 32)) == 4


def test_archives_that_are_wrong(folder, tmp_path):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        for name in ("../out/cat/a.jpg", "x/../../cat/a.jpg", "x.txt"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("cat/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(gg.DataError, match=r"bad.tar: no images \(\*.jpg, \*.jpeg, \*.jfif, \*.png\) in the archive"):
        gg.data.image_folder(tmp_path / "bad.tar")
    path = packed(folder, tmp_path / "pets.tar.xz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(gg.DataError, match="pets.tar.xz: truncated or damaged"):
        gg.data.image_folder(path)
    assert not list((tmp_path / "cache").rglob("*.jpg"))
    path.write_bytes(content)
    assert len(gg.data.image_folder(path)) == 4
    with pytest.raises(gg.DataError, match="none.tar: No such file"):
        gg.data.image_folder(tmp_path / "none.tar")


@pytest.mark.parametrize("part", ["val", "validation", "test"])
def test_folders_with_parts(folder, tmp_path, part):
    (tmp_path / "set").mkdir()
    folder.rename(tmp_path / "set" / "train")
    (tmp_path / "set" / part / "dog").mkdir(parents=True)
    (tmp_path / "set" / part / "dog" / "e.png").write_bytes(encoded(picture(30, 30, 9), ".png"))
    train, other = gg.data.load("imagefolder", tmp_path / "set")
    assert (len(train), len(other)) == (4, 1) and train.name == other.name == "set"
    assert other.targets.tolist() == [1] and other.classes == ["cat", "dog"] and train.shape == (3, 224, 224)
    assert train.source.augment and not other.source.augment
    (tmp_path / "set" / part / "cow").mkdir()
    with pytest.raises(gg.DataError, match="cow: no classes of the training part"):
        gg.data.load("imagefolder", tmp_path / "set")


def test_a_folder_without_parts_is_divided(folder, tmp_path):
    train, other = images.load(folder, 24, validation=0.25, seed=1)
    assert (len(train), len(other)) == (3, 1) and other.source is train.source
    again = images.load(folder, 24, validation=0.25, seed=1)[1]
    assert np.array_equal(again.samples, other.samples)
    with pytest.raises(gg.DataError, match="data: missing: --dataset imagefolder wants a folder"):
        gg.data.load("imagefolder")
    (tmp_path / "half").mkdir()
    folder.rename(tmp_path / "half" / "train")
    with pytest.raises(gg.DataError, match="has train/ but no val/<class>/"):
        gg.data.load("imagefolder", tmp_path / "half")


def test_real_photographs(data_dir):
    data = gg.data.image_folder(data_dir / "imagenet-sample", 64, strict=True, workers=2)
    assert len(data) == len(data.classes) == 200 and data.targets.tolist() == list(range(200))
    found = read(data, 0)
    assert found.shape == (200, 3, 64, 64) and found.std(axis=(1, 2, 3)).min() > 5
