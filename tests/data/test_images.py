"""One image is somebody else's data: what is opened, what it may cost, and that decoding it smaller changes nothing."""

from __future__ import annotations

import ast
import io
import itertools
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageFilter, ImageOps

import protodrift
from protodrift.data import images
from protodrift.data.images import MOST_PIXELS, endings, is_image, load_photo, read_image
from protodrift.errors import InputError, TooLargeError

SOURCE = Path(protodrift.__file__).parent
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def scene(width: int, height: int) -> Image.Image:
    """Return something like a photo: detail at every scale, in color."""
    rng = np.random.RandomState(0)
    picture = np.zeros((height, width, 3), np.float32)
    for scale in (4, 16, 64, 256):
        noise = rng.randint(0, 256, (max(2, height // scale), max(2, width // scale), 3), dtype=np.uint8)
        picture += np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray((picture / 4).astype(np.uint8)).filter(ImageFilter.GaussianBlur(1))


def png(width: int, height: int, bits: int = 1, color: int = 0) -> bytes:
    """Return a black PNG, written row by row: by zlib a thousandth of its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    channels = {0: 1, 2: 3, 6: 4}[color]
    packer, row = zlib.compressobj(1), bytes(1 + (width * bits * channels + 7) // 8)
    data = b"".join(packer.compress(row * 64) for _ in range(height // 64)) + packer.compress(row * (height % 64))
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data + packer.flush()), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def scans_of(jpeg: bytes) -> tuple[bytes, list[bytes]]:
    """Return a JPEG's head and its scans, each with the tables before it, without the end marker."""
    first, *others = [i for i in range(len(jpeg) - 1) if jpeg[i : i + 2] == b"\xff\xda"]
    cuts = [first, *others, len(jpeg) - 2]
    return jpeg[:first], [jpeg[a:b] for a, b in itertools.pairwise(cuts)]


def resized_header(jpeg: bytes, width: int, height: int) -> bytes:
    """Return a JPEG whose frame claims another size."""
    at = max(jpeg.find(b"\xff\xc0"), jpeg.find(b"\xff\xc2"))
    return jpeg[: at + 5] + struct.pack(">HH", height, width) + jpeg[at + 9 :]


# -- nothing is started -----------------------------------------------------------------------------------------------


def test_images_are_opened_in_one_place_with_a_list_of_formats():
    calls = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "PIL.Image.open"):
                calls.append((file.relative_to(SOURCE).as_posix(), [word.arg for word in node.keywords]))
    assert calls == [("data/images.py", ["formats"])]
    assert not {"EPS", "WMF", "PSD", "FPX", "MIC", "IM"} & set(images.FORMATS)


@pytest.mark.parametrize("command", ["learn", "predict", "stdin"])
def test_postscript_under_another_name_starts_no_program(tmp_path, command):
    """A `gs` that tells when it is started stands first on the path."""
    program, started = tmp_path / "bin" / "gs", tmp_path / "started"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    for name in ("owl", "emu"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(POSTSCRIPT)
        (tmp_path / "photos" / name / "2.eps").write_bytes(POSTSCRIPT)
    code = {
        "learn": "from protodrift.data.folder import find_photos, read_photos; read_photos(find_photos('photos'), 16)",
        "predict": "from protodrift.data.images import load_photo; load_photo('photos/owl/1.jpg', 16)",
        "stdin": "from protodrift.cli.predict import _from_stdin; from protodrift.data.images import load_photo;"
        " [load_photo(one, 16) for _, one in _from_stdin()]",
    }[command]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, input=POSTSCRIPT, capture_output=True, env=environment
    )
    assert b"not an image, or damaged" in done.stderr or b"no such file" in done.stderr
    assert not started.exists()
    assert ".eps" not in endings()


def test_every_format_is_opened_whatever_its_name(tmp_path):
    for kind in images.FORMATS:
        data = encoded(scene(40, 40), kind)
        (tmp_path / "x.gif").write_bytes(data)
        assert is_image(data)
        assert read_image(tmp_path / "x.gif", 16).shape == (16, 16, 3), kind
    assert {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif"} <= endings()
    assert not is_image(POSTSCRIPT)
    assert not is_image(encoded(scene(40, 40), "TGA"))


def heic(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, **options)
    return buffer.getvalue()


def test_heic_photos_are_read_turned_as_they_were_taken(tmp_path):
    data = heic(scene(120, 90), quality=90)
    (tmp_path / "IMG_1.jpg").write_bytes(data)
    assert is_image(data)
    assert {".heic", ".heif"} <= endings()
    apart = np.abs(read_image(tmp_path / "IMG_1.jpg", 32).astype(int) - load_photo(encoded(scene(120, 90), "PNG"), 32))
    assert apart.mean() < 2
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = load_photo(heic(scene(120, 90), quality=90, exif=exif.tobytes()), 32).astype(int)
    jpeg = load_photo(encoded(scene(120, 90), "JPEG", quality=95, exif=exif), 32)
    assert np.abs(turned - jpeg).mean() < 2 < 15 < np.abs(turned - np.rot90(jpeg)).mean()


def test_heic_without_the_extra_says_what_to_install(monkeypatch):
    data = heic(scene(40, 40))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(InputError, match=r"is a HEIC photo.*pip install 'protodrift\[heic\]'"):
        load_photo(data, 16)
    assert is_image(data)  # so that this is what is said, and not "no image"
    assert "HEIF" not in Image.OPEN  # other programs of the process see the Pillow they know


def test_heic_has_the_limits_of_the_others_also_where_its_header_lies():
    data = heic(Image.new("RGB", (2000, 1500), "red"), quality=10)
    with pytest.raises(TooLargeError, match="has 2000 x 1500 pixels; at most 2,999,999"):
        load_photo(data, 16, pixels=2_999_999)
    size = struct.pack(">II", 2000, 1500)
    assert data.count(size) >= 1
    with pytest.raises(InputError, match=r"cannot be read as an image \(.*exceeds the maximum"):
        load_photo(data.replace(size, struct.pack(">II", 64, 64)), 16, pixels=10_000)
    for cut in (30, 200, len(data) - 20):
        with pytest.raises(InputError, match="cannot be read as an image"):
            load_photo(data[:cut], 16)


# -- what an image may cost -------------------------------------------------------------------------------------------


def test_a_large_png_is_refused_by_its_header_in_every_reader(tmp_path):
    data = png(13_000, 13_000)  # 169 million pixels in a few kilobytes
    (tmp_path / "x.png").write_bytes(data)
    for read in (lambda: read_image(tmp_path / "x.png", 64), lambda: load_photo(data, 64)):
        with pytest.raises(TooLargeError, match=r"has 13000 x 13000 pixels; at most 67,108,864 are.* or as a JPEG"):
            read()


def test_the_limit_of_pixels_is_the_callers(tmp_path):
    data = png(200, 100)
    assert load_photo(data, 16, pixels=20_000).shape == (16, 16, 3)
    with pytest.raises(TooLargeError, match="at most 19,999"):
        load_photo(data, 16, pixels=19_999)


def test_a_large_jpeg_is_decoded_smaller():
    small = encoded(scene(1024, 1024), "JPEG")
    several = encoded(scene(1024, 1024), "MPO", save_all=True, append_images=[scene(64, 64)])  # as phones write them
    for data in (small, several):
        assert load_photo(data, 64, pixels=128 * 128).shape == (64, 64, 3)
    with pytest.raises(TooLargeError, match="1024 x 1024"):
        load_photo(small, 65, pixels=128 * 128)  # at an eighth it would be too coarse


def test_jpegs_whose_coefficients_are_all_held_count_in_full():
    """Whatever the size they are decoded at: progressive ones, and those with a scan per component."""
    progressive = encoded(scene(1024, 1024), "JPEG", progressive=True)
    with pytest.raises(TooLargeError, match="1024 x 1024"):
        load_photo(progressive, 64, pixels=1024 * 1024 - 1)
    assert load_photo(progressive, 64, pixels=1024 * 1024).shape == (64, 64, 3)
    whole = encoded(scene(64, 64), "JPEG")
    at = whole.index(b"\xff\xda")
    alone = whole[: at + 2] + b"\0\x08\x01\x01\0\0\x3f\0" + whole[at + 14 :]  # a first scan of one component
    for data in (
        alone,
        whole[:at] + b"\xff\xff\xfe\0\x04hi" + alone[at:],
        encoded(scene(64, 64), "JPEG", progressive=True),
    ):
        with pytest.raises(TooLargeError, match="65000 x 65000"):
            load_photo(resized_header(data, 65_000, 65_000), 16)
    assert load_photo(resized_header(whole, 65_000, 16_000), 16).shape == (16, 16, 3)  # in one scan; it ends early


def test_an_image_that_takes_too_long_is_given_up():
    head, scans = scans_of(encoded(Image.new("L", (3000, 3000)), "JPEG", progressive=True))
    data = head + b"".join(scans) + scans[-1] * 3000 + b"\xff\xd9"
    assert len(data) < 2_000_000
    with pytest.raises(TooLargeError, match=r"takes longer than 0\.3 s to decode"):
        load_photo(data, 64, seconds=0.3)


def test_a_file_of_many_bytes_is_refused_unread(tmp_path):
    with open(tmp_path / "x.webp", "wb") as file:
        file.write(encoded(scene(40, 40), "WEBP"))
        file.truncate(2**40)  # a hole: it takes no space
    with pytest.raises(TooLargeError, match="has 1,099,511,627,776 bytes"):
        load_photo(tmp_path / "x.webp", 16)


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/urandom", "pipe", "."])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.png").symlink_to(tmp_path / place)
    for read in (read_image, load_photo):
        with pytest.raises(InputError, match="not a regular file"):
            read(tmp_path / "x.png", 16)


LARGEST = {
    "rgba.png": lambda: png(8192, 8192, 8, 6),
    "gray16.png": lambda: png(8192, 8192, 16, 0),
    "palette.gif": lambda: encoded(Image.new("P", (8192, 8192)), "GIF", transparency=0),
    "rgb.webp": lambda: encoded(Image.new("RGB", (8192, 8192)), "WEBP", method=0),
    "rgb.tiff": lambda: encoded(Image.new("RGB", (8192, 8192)), "TIFF", compression="tiff_lzw"),
    "progressive.jpg": lambda: encoded(Image.new("RGB", (8192, 8192)), "JPEG", progressive=True),
    "rgb.heic": lambda: heic(Image.new("RGB", (8192, 8192)), quality=10),
    "phone.jpg": lambda: encoded(Image.new("RGB", (16_320, 12_240)), "JPEG"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_images_of_every_format_take_a_gigabyte_or_less(tmp_path, name):
    assert MOST_PIXELS == 8192 * 8192
    (tmp_path / name).write_bytes(LARGEST[name]())
    code = (
        "import re, sys; from protodrift.data.images import load_photo; load_photo(sys.argv[1], 224)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    print(f"{name}: {int(done.stdout) // 1024} MiB")
    assert int(done.stdout) < 1.1 * 2**20  # KiB, the interpreter included


# -- decoded smaller, the same picture --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(("width", "height"), [(800, 601), (1203, 901), (1999, 1500)])
@pytest.mark.parametrize("fit", ["center", "squash"])
def test_a_large_image_decoded_smaller_is_the_picture_of_a_full_decode(tmp_path, kind, width, height, fit):
    data = encoded(scene(width, height), kind, quality=90)
    (tmp_path / "x").write_bytes(data)
    with Image.open(io.BytesIO(data)) as whole:
        rgb = whole.convert("RGB")
        bilinear = Image.Resampling.BILINEAR
        full = rgb.resize((96, 96), bilinear) if fit == "squash" else ImageOps.fit(rgb, (96, 96), method=bilinear)
    apart = np.abs(read_image(tmp_path / "x", 96, fit).astype(int) - np.asarray(full).astype(int))
    assert apart.mean() < 1.5
    assert np.asarray(full).std() > 20  # of 256: there is something to be seen


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_image_is_turned_as_a_small_one_is(kind, orientation):
    image = Image.new("RGB", (400, 400), "white")
    image.paste("red", (0, 0, 200, 200))
    exif = Image.Exif()
    exif[0x0112] = orientation
    large, small = (encoded(one, kind, exif=exif) for one in (image, image.resize((20, 20))))
    apart = np.abs(load_photo(large, 20).astype(int) - load_photo(small, 20).astype(int))
    assert apart.mean() < 12  # JPEG's edges at 20 pixels


@pytest.mark.parametrize(
    ("mode", "color", "options", "expected"),
    [
        ("RGBA", (0, 0, 255, 0), {}, (255, 255, 255)),
        ("LA", (10, 0), {}, (255, 255, 255)),
        ("P", 0, {"transparency": 0}, (255, 255, 255)),
        ("P", 0, {}, (0, 0, 0)),
        ("1", 1, {}, (255, 255, 255)),
        ("L", 77, {}, (77, 77, 77)),
        ("RGB", (0, 0, 255), {"transparency": (0, 0, 255)}, (255, 255, 255)),
        ("I;16", 32768, {}, (127, 127, 127)),
    ],
)
def test_large_images_of_every_mode_become_rgb_over_white(mode, color, options, expected):
    pixels = load_photo(encoded(Image.new(mode, (300, 200), color), "PNG", **options), 16)
    assert (pixels == np.array(expected)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_float_images_with_values_that_are_no_numbers_are_refused(value):
    pixels = np.random.RandomState(0).rand(40, 40).astype(np.float32)
    pixels[30, 7] = value
    with pytest.raises(InputError, match=r"- holds values that are no finite numbers \(NaN or infinity\)"):
        load_photo(encoded(Image.fromarray(pixels), "TIFF"), 16)
