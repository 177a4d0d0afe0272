"""Photos as people keep them: what cannot be used is named, counted and passed over, never a traceback."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from protodrift.common.files import shown
from protodrift.data.folder import Found, find_images, find_photos, read_photos, summary_of
from protodrift.data.images import load_photo
from protodrift.data.spill import is_mapped
from protodrift.errors import InputError

RNG = np.random.RandomState(0)


def picture(size=(24, 24), mode="RGB"):
    array = RNG.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(array).convert(mode)


def encoded(image, kind, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has width x height pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture((24, 40)), "JPEG", exif=exif)


def profiled() -> bytes:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return encoded(picture(), "JPEG", icc_profile=profile)


def animated(kind: str) -> bytes:
    return encoded(picture(), kind, save_all=True, append_images=[picture(), picture()])


GOOD = {
    "plain.jpg": lambda: encoded(picture(), "JPEG"),
    "CAPITAL.JPG": lambda: encoded(picture(), "JPEG"),
    "png-named.jpg": lambda: encoded(picture(), "PNG"),
    "sixteen.png": lambda: encoded(Image.fromarray((RNG.rand(24, 24) * 65535).astype(np.uint16)), "PNG"),
    "float.tiff": lambda: encoded(Image.fromarray(RNG.rand(24, 24).astype(np.float32)), "TIFF"),
    "cmyk.jpg": lambda: encoded(picture(mode="CMYK"), "JPEG"),
    "gray.png": lambda: encoded(picture(mode="L"), "PNG"),
    "bits.png": lambda: encoded(picture(mode="1"), "PNG"),
    "palette.gif": lambda: encoded(picture(mode="P"), "GIF"),
    "alpha.png": lambda: encoded(picture(mode="RGBA"), "PNG"),
    "animated.gif": lambda: animated("GIF"),
    "animated.webp": lambda: animated("WEBP"),
    "exif.jpg": rotated,
    "icc.jpg": profiled,
    "broken-icc.jpg": lambda: encoded(picture(), "JPEG", icc_profile=b"no profile"),
    "broken-exif.jpg": lambda: encoded(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "Käuzchen 梟 🦉.jpg": lambda: encoded(picture(), "JPEG"),
    "new\nline.jpg": lambda: encoded(picture(), "JPEG"),
    "wide.png": lambda: encoded(picture((900, 9)), "PNG"),
}
BAD = {
    "empty.jpg": (lambda: b"", "is empty"),
    "zeros.png": (lambda: b"\0" * 500, "not an image, or damaged"),
    "text.jpg": (lambda: b"not an image at all", "not an image, or damaged"),
    "truncated.jpg": (lambda: encoded(picture((200, 200)), "JPEG")[:2000], "cannot be read"),
    "truncated.png": (lambda: encoded(picture((200, 200)), "PNG")[:5000], "cannot be read"),
    "head-only.gif": (lambda: encoded(picture(mode="P"), "GIF")[:20], "cannot be read"),
    "one.png": (lambda: encoded(picture((1, 1)), "PNG"), "too small: 1 x 1"),
    "thin.png": (lambda: encoded(Image.new("RGB", (1, 10000)), "PNG"), "too small: 1 x 10000"),
    "bomb.png": (lambda: bomb(30_000, 30_000), "has 30000 x 30000 pixels"),
    "line-bomb.png": (lambda: bomb(8, 2**31 - 1), "2147483647 pixels; at most"),
    "page.html.jpg": (lambda: b"<html>404</html>", "not an image, or damaged"),
    "svg.png": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image, or damaged"),
    "program.bmp": (lambda: b"MZ\x90\0" + b"\0" * 60, "not an image, or damaged"),
    "wrong-crc.png": (lambda: encoded(picture(), "PNG").replace(b"IDAT", b"IDAX"), "cannot be read"),
    "half-byte-flips.jpg": (lambda: encoded(picture((64, 64)), "JPEG")[:300] + b"\xff" * 40, "cannot be read"),
}
IGNORED = [".DS_Store", "Thumbs.db", "notes.txt", "clip.mp4", ".hidden.jpg", "noending"]


@pytest.fixture
def mess(tmp_path):
    """A class folder with every kind of file, beside one of good photos."""
    owl, emu = tmp_path / "photos" / "owl", tmp_path / "photos" / "emu"
    owl.mkdir(parents=True)
    emu.mkdir()
    for name, make in GOOD.items():
        (owl / name).write_bytes(make())
    for name, (make, _) in BAD.items():
        (owl / name).write_bytes(make())
    for name in IGNORED:
        (owl / name).write_bytes(b"x")
    (owl / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (owl / "loop.jpg").symlink_to(owl / "loop.jpg")
    (owl / "again").symlink_to(owl, target_is_directory=True)
    (owl / "folder.jpg").mkdir()
    os.mkfifo(owl / "pipe.jpg")  # to open it would mean to wait for ever
    for i in range(2):
        (emu / f"{i}.png").write_bytes(encoded(picture(), "PNG"))
    return tmp_path / "photos"


def test_more_than_25_kinds_of_trouble_are_named_counted_and_passed_over(mess):
    assert len(GOOD) + len(BAD) + len(IGNORED) + 5 > 40
    found = find_photos(mess)
    photos = read_photos(found, 16)
    assert photos.examples.images.shape == (len(GOOD) + 2, 3, 16, 16)
    assert {p.name for p in photos.paths} == {*GOOD, "0.png", "1.png"}
    why = {one.path.name: one.why for one in photos.skipped}
    assert set(why) == {*BAD, "gone.jpg", "loop.jpg", "pipe.jpg"}
    for name, (_, reason) in BAD.items():
        assert reason in why[name], (name, why[name])
    assert "no such file" in why["gone.jpg"]
    assert "not a regular file" in why["pipe.jpg"]
    assert {one.path.name for one in found.skipped} == set(IGNORED)
    lines = summary_of([*found.skipped, *photos.skipped])
    assert sum(int(line.split(" x ")[0]) for line in lines) == len(BAD) + len(IGNORED) + 3
    assert all("\n" not in line for line in lines)


def test_the_same_picture_under_two_classes_is_found_whatever_its_file(tmp_path):
    image = picture()
    for name, kind in (("owl/a.png", "PNG"), ("emu/b.bmp", "BMP"), ("emu/c.png", "PNG")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encoded(image, kind))
    photos = read_photos(find_photos(tmp_path), 16)
    assert [(a.name, b.name) for a, b in photos.twins] == [("b.bmp", "a.png")]
    assert [(a.name, b.name) for a, b in photos.repeats] == [("b.bmp", "c.png")]


def test_a_path_listed_again_is_one_photo_and_a_copy_of_it_a_repeat(tmp_path):
    for name in ("a.png", "copy.png"):
        (tmp_path / name).write_bytes(encoded(Image.new("RGB", (24, 24), "red"), "PNG"))
    table = tmp_path / "list.csv"
    table.write_text("a.png,owl\n./a.png,owl\na.png,owl\ncopy.png,owl\na.png,emu\n")
    found = find_photos(table)
    assert found.classes == {"emu": 1, "owl": 2}
    assert [(one.path.name, one.why) for one in found.skipped] == [("a.png", "listed before with the same label")] * 2
    photos = read_photos(found, 16)
    assert [(a.name, b.name) for a, b in photos.repeats] == [("a.png", "copy.png")]
    assert [(a.name, b.name) for a, b in photos.twins] == [("a.png", "a.png")]
    twice = Found("by hand", found.files[:1] * 3, ())
    assert len(read_photos(twice, 16).repeats) == 2


def test_nothing_usable_is_an_error_that_gives_an_example(tmp_path):
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "a.jpg").write_bytes(b"x")
    with pytest.raises(InputError, match=r"none of the 1 images can be used, for example .*a\.jpg: cannot be read"):
        read_photos(find_photos(tmp_path), 16)


def test_a_csv_of_paths_and_labels(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(picture(), "PNG"))
    (tmp_path / "b, c.png").write_bytes(encoded(picture(), "PNG"))
    table = tmp_path / "list.csv"
    table.write_text('path,label\na.png,owl\n"b, c.png",emu\n\nnowhere.png,emu\n')
    found = find_photos(table)
    assert [(path.name, label) for path, label in found.files] == [("a.png", "owl"), ("b, c.png", "emu")]
    assert [(one.path.name, one.why) for one in found.skipped] == [("nowhere.png", "there is no such file")]
    table.write_text("a.png,owl\n")  # a heading is not needed
    assert find_photos(table).classes == {"owl": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lists no image"),
        (b"path,label\n", "lists no image"),
        (b"a.png\n", "line 1: a path and a label are needed"),
        (b"path,label\nx.png,\n", "line 2: a path and a label are needed"),
        (b"\xff\xfe\x00", "cannot be read as a CSV"),
        (b"nowhere.png,owl\n", "1 are missing"),
        (b'path,label\na.png,"owl\nb.png,emu\nc.png,emu\n', r"line 2: not a row .*end of data in line 4.*quote"),
        (b'a.png,owl\n"b.png,emu\n' + b"c.png,emu\n" * 20_000, "line 2: not a row .*larger than field limit"),
        (b'a.png,owl\n"b.png"x,emu\n', "line 2: not a row"),
        (b'"a\nb.png",owl\nc.png\n', "line 3: a path and a label are needed"),
    ],
)
def test_a_csv_that_cannot_be_used_is_explained(tmp_path, content, message):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        find_photos(tmp_path / "list.csv")


def test_places_are_found_in_order_and_empty_ones_are_said(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError, match="holds no image"):
        list(find_images([tmp_path / "x"]))
    for name in ("x/2.png", "x/1.png"):
        (tmp_path / name).write_bytes(encoded(picture(), "PNG"))
    assert [p.name for p in find_images([tmp_path / "nowhere.png", tmp_path / "x"])] == [
        "nowhere.png",
        "1.png",
        "2.png",
    ]


def test_bytes_are_read_like_files(tmp_path):
    data = encoded(picture((30, 20)), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    assert np.array_equal(load_photo(data, 16), load_photo(tmp_path / "a.png", 16))


@pytest.mark.parametrize("name", ["truncated.jpg", "truncated.png", "text.jpg", "one.png"])
def test_bytes_that_cannot_be_read_are_explained_as_files_are(tmp_path, name):
    data = BAD[name][0]()
    (tmp_path / name).write_bytes(data)
    said = []
    for source in (data, tmp_path / name):
        with pytest.raises(InputError) as caught:
            load_photo(source, 16)
        said.append(str(caught.value))
    assert said[0].startswith("- ")
    assert said[1] == f"{tmp_path / name} {said[0][2:]}"


def test_many_photos_go_to_a_file_without_a_name_and_are_the_same(tmp_path):
    for i in range(3):
        (tmp_path / "owl").mkdir(exist_ok=True)
        (tmp_path / "owl" / f"{i}.png").write_bytes(encoded(picture(), "PNG"))
    found = find_photos(tmp_path)
    small = read_photos(found, 16).examples.images
    large = read_photos(found, 16, ram=10, folder=tmp_path).examples.images
    assert is_mapped(large)
    assert np.array_equal(small.numpy(), large.numpy())
    assert [path.name for path in tmp_path.iterdir()] == ["owl"]


def test_names_are_shown_on_one_line():
    assert shown("a\nb\x1b[31m\udcff") == "a\\nb\\x1b[31m\\udcff"
