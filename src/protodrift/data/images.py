"""From an image file to pixels. Imports no torch: worker processes start in a fraction of a second.

`open_image` is the one place that opens an image, and `_pixels` the one that decodes it. An image is somebody else's
data: only formats that are decoded in this process are opened, and pixels, bytes and seconds are limited.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from ..common.files import open_regular, shown
from ..errors import InputError, TooLargeError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""What is opened, whatever a file is called. Pillow knows more, among them formats that start other programs (EPS)."""

HEIC_ENDINGS = (".heic", ".heif", ".hif")
"""Of the photos of an iPhone; they are opened, too, with the extra `heic`."""

MOST_PIXELS = 2**26
"""Pixels that are decoded at once. A JPEG is decoded at down to an eighth of its size, so the largest has as many."""

MOST_BYTES = 8 * MOST_PIXELS
"""Of a file: four 16-bit values per pixel."""

MOST_SECONDS = 10.0
"""Of processor time for one image: a busy machine does not change what is refused."""

Fit = Literal["center", "squash"]
"""How an image becomes square: its center is cropped, or both sides are resized."""

_WIDE = ("I", "I;16", "I;16B", "I;16L", "F")
"""Pillow's modes of more than 8 bits per value."""

SMALLEST_SIDE = 8
"""Pixels; what is smaller or thinner shows nothing."""

_BAND = 2**18  # pixels that are held as float64 at a time
_BLOCK = 2**14  # bytes that a decoder is given at a time
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"})  # HEVC inside; AVIF has others


# -- reading ----------------------------------------------------------------------------------------------------------


def read_image(
    path: str | Path, size: int, fit: Fit = "center", *, pixels: int = MOST_PIXELS, seconds: float = MOST_SECONDS
) -> np.ndarray:
    """Decode one image of any kind as (size, size, 3) uint8.

    EXIF orientation is honored; transparent parts become white; gray, palette, CMYK and 16-bit images become RGB.
    `fit="center"` resizes the short side to `size` and crops the center; `fit="squash"` resizes both sides to `size`.

    Args:
        path: the file; it may be in any of `FORMATS`, whatever it is called.
        size: side of the decoded square.
        fit: how it becomes square.
        pixels: that are decoded at most; a JPEG may have 64 times as many, and is decoded at a part of its size.
        seconds: of processor time at most.

    Raises:
        TooLargeError: naming the file, if it has more pixels or bytes, or takes longer.
        InputError: naming the file, if it cannot be decoded.
    """
    try:
        return _pixels(path, size, fit, 1, pixels, seconds)
    except FileNotFoundError:
        raise InputError(f"there is no image {shown(path)}.") from None
    except InputError as error:
        raise type(error)(f"{shown(path)} {error}") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(
            f"{shown(path)} cannot be read as an image ({_reason(error)}). Remove or replace it."
        ) from None


def load_photo(
    source: str | Path | bytes, size: int, *, pixels: int = MOST_PIXELS, seconds: float = MOST_SECONDS
) -> np.ndarray:
    """Decode one photo, a file or its bytes, as `read_image` does; what is too small is refused.

    Raises:
        TooLargeError, InputError: as `read_image`; "-" stands for bytes.
    """
    name = "-" if isinstance(source, bytes) else shown(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large images and odd metadata; what is too large is refused
            return _pixels(source, size, "center", SMALLEST_SIDE, pixels, seconds)
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file.") from None
    except InputError as error:
        raise type(error)(f"{name} {error}") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{name} cannot be read as an image ({_reason(error)}).") from None


def is_image(data: bytes) -> bool:
    """Return whether bytes begin as an image that can be opened; of HEIC, if need be with the extra."""
    with contextlib.suppress(Exception), open_image(data):
        return True
    return _is_heic(data)


def endings() -> frozenset[str]:
    """Return the endings of names, such as ".jpg", that files of `FORMATS` and HEIC photos have."""
    for name in FORMATS:
        with contextlib.suppress(ImportError):  # a Pillow that was built without it
            importlib.import_module(f"PIL.{name.title()}ImagePlugin")
    return frozenset(ending for ending, kind in Image.EXTENSION.items() if kind in FORMATS).union(HEIC_ENDINGS)


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "not an image, or damaged" if "cannot identify image file" in text else text.split("\n")[0]


# -- opening, with limits ---------------------------------------------------------------------------------------------


class _Watched(io.BufferedReader):
    """A file that refuses to be read on when a decoder has taken too long.

    Pillow's decoders ask for a few kilobytes at a time, so this ends one that would go on for minutes (a progressive
    JPEG with thousands of scans). WebP, AVIF, HEIC and TIFF are decoded in one piece; their number of pixels limits
    them.
    """

    def __init__(self, raw: Any, seconds: float) -> None:
        super().__init__(raw)
        self.seconds = seconds
        self.end = time.thread_time() + seconds

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as usual, until the time is over."""
        if time.thread_time() > self.end:
            raise TooLargeError(f"takes longer than {self.seconds:g} s to decode. Save it smaller.")
        return super().read(size)


@contextlib.contextmanager
def open_image(source: str | Path | bytes, *, seconds: float = MOST_SECONDS) -> Iterator[Image.Image]:
    """Open an image of one of `FORMATS`, or HEIC, a file or its bytes; its header is read, nothing is decoded.

    Raises:
        TooLargeError: if the file is too large.
        InputError: if it is HEIC, and the extra is missing.
        OSError, ...: what Pillow says, and for what is no regular file.
    """
    raw = io.BytesIO(source) if isinstance(source, bytes) else open_regular(Path(source))
    with raw:
        length = raw.seek(0, io.SEEK_END)
        if length == 0:
            raise OSError("the file is empty")
        if length > MOST_BYTES:
            raise TooLargeError(f"has {length:,} bytes; at most {MOST_BYTES:,} are read. Save it smaller.")
        raw.seek(0)
        file = _Watched(raw, seconds)
        try:
            heic = _is_heic(file.read(64))
            file.seek(0)
            image: Any = _heic(file) if heic else Image.open(file, formats=FORMATS)
        except Image.DecompressionBombError:  # Pillow's own limit: ours is below
            image = _large(file)
        with image:
            image.decodermaxblock = min(_BLOCK, getattr(image, "decodermaxblock", _BLOCK))
            yield image


def _is_heic(start: bytes) -> bool:
    """Return whether a file begins as HEIC does: its first box lists the brands that it is compatible with.

    >>> _is_heic(b"\\0\\0\\0\\x18ftypmif1\\0\\0\\0\\0mif1heic"), _is_heic(b"\\0\\0\\0\\x18ftypavif\\0\\0\\0\\0avifmif1")
    (True, False)
    """
    brands = start[8:12] + start[16 : min(64, int.from_bytes(start[:4], "big"))]
    return start[4:8] == b"ftyp" and any(brands[at : at + 4] in _HEIC_BRANDS for at in range(0, len(brands), 4))


def _heic(file: _Watched) -> Any:
    """Open a HEIC photo. Pillow's own list of formats stays as it is: it is the whole process's."""
    try:
        import pillow_heif
    except ImportError:
        raise InputError(
            "is a HEIC photo, as iPhones take them: pip install 'protodrift[heic]' to read it, or save it as JPEG."
        ) from None
    opener: Any = pillow_heif.HeifImageFile  # without types
    return opener(file, "")


def _large(file: _Watched) -> Any:
    """Open an image that has more pixels than `Image.open` admits: our callers have limits of their own."""
    file.seek(0)
    start = file.read(16)
    for factory, accept in (Image.OPEN[kind] for kind in FORMATS if kind in Image.OPEN):
        if accept is None or accept(start) is True:
            file.seek(0)
            return factory(file, "")
    raise TooLargeError("has too many pixels.")


def _pixels(source: str | Path | bytes, size: int, fit: Fit, smallest: int, pixels: int, seconds: float) -> np.ndarray:
    """Decode an image as `read_image` does; the messages of its errors lack the name of the file."""
    with open_image(source, seconds=seconds) as image:
        width, height = image.size
        if min(width, height) < smallest:
            raise InputError(f"is too small: {width} x {height} pixels.")
        drafted = decode_smaller(image, size)
        held, whole = image.width * image.height, not _is_jpeg(image)
        if width * height > max(pixels, held) and _holds_coefficients(image):
            held, whole = width * height, True
        if held > pixels:
            hint = ", or as a JPEG that is not progressive: it is decoded at a part of its size" if whole else ""
            raise TooLargeError(
                f"has {width} x {height} pixels; at most {pixels:,} are decoded. Save it smaller{hint}."
            )
        return fitted(image, size, fit, drafted)


def decode_smaller(image: Any, size: int) -> tuple[float, float] | None:
    """Have an opened JPEG decoded at 1/2, 1/4 or 1/8 of its size, if it is large; nothing is decoded yet.

    Both sides stay at least twice as long as `size`: what is dropped are frequencies that the resizing would remove.
    Other formats cannot do this. (A HEIC photo may hold a thumbnail, but nobody promises that it shows the same.)

    Returns:
        Width and height in pixels as they are decoded, no whole numbers; None: as it is.
    """
    drafted = image.draft(None, (2 * size, 2 * size)) if _is_jpeg(image) else None
    return drafted[1][2:] if drafted else None


def _is_jpeg(image: Any) -> bool:
    return image.format in ("JPEG", "MPO")  # MPO: several in one file, as phones write them; the first is taken


def _holds_coefficients(image: Any) -> bool:
    """Return whether a JPEG's coefficients are all held in memory, whatever the size it is decoded at.

    That is so where a pixel's values come in several scans: in progressive files, and where the first scan lacks a
    component. It is read off the markers before the first scan.
    """
    file, components = image.fp, 0
    file.seek(2)
    while len(start := file.read(2)) == 2 and start[0] == 0xFF:
        marker = start[1]
        if marker == 0xFF:  # a fill byte
            file.seek(-1, io.SEEK_CUR)
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
            continue
        segment = file.read(max(0, int.from_bytes(file.read(2), "big") - 2))
        if marker == 0xDA:
            return not segment or segment[0] != components
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame
            if marker not in (0xC0, 0xC1, 0xC9) or len(segment) < 6:  # not sequential
                return True
            components = segment[5]
    return True


# -- from what was opened to a square of RGB --------------------------------------------------------------------------


def fitted(image: Any, size: int, fit: Fit, extent: tuple[float, float] | None) -> np.ndarray:
    """Return an opened image as `read_image` does.

    Args:
        image: as it was opened.
        size, fit: as for `read_image`.
        extent: its width and height in pixels as they are decoded; None: those it has. Of a JPEG that is decoded
            smaller they are no whole numbers: the last row and column stand for fewer pixels than the others.
    """
    image.load()
    width, height = extent or image.size
    factor = min(image.size) // (2 * size)
    small = image
    if factor >= 2 and image.mode not in _WIDE:
        # Whole blocks of pixels are averaged first: what follows takes little time and memory. Pillow's `reducing_gap`
        # does the same, but only in the last step.
        if "transparency" in image.info or image.mode in ("1", "P", "PA"):  # modes without a mean
            small = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
        small = small.reduce(factor)
        width, height = width / factor, height / factor
    # What is gray stays so until it is small: RGB takes four times the memory.
    small = _stretched(small) if small.mode in _WIDE else to_rgb(small)
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (0, 0, width, height) if fit == "squash" else (left, top, left + side, top + side)
    small = small.resize((size, size), Image.Resampling.BILINEAR, box=box).convert("RGB")
    small.info = image.info
    return np.array(ImageOps.exif_transpose(small), dtype=np.uint8)  # a copy: Pillow's own is read-only


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB; what is transparent becomes white, not whatever color hides below it."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _WIDE:
        return _stretched(image).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _stretched(image: Image.Image) -> Image.Image:
    """Bring the values of a wide mode to 8-bit gray.

    Pillow clips them at 255: a 16-bit image would turn white. Its own range is stretched instead, by bands of rows: in
    float64 the whole of a large image would take a gigabyte.
    """
    width, height = image.size
    rows = max(1, _BAND // width)
    bands = [(top, min(top + rows, height)) for top in range(0, height, rows)]

    def values(band: tuple[int, int]) -> np.ndarray:
        return np.asarray(image.crop((0, band[0], width, band[1])), dtype=np.float64)

    highest = float(np.max([values(band).max() for band in bands]))
    lowest = float(np.min([values(band).min() for band in bands])) if image.mode == "F" else 0.0
    if not np.isfinite([lowest, highest]).all():
        raise InputError("holds values that are no finite numbers (NaN or infinity). Replace them, or leave it out.")
    factor = 255.0 / (65535.0 if image.mode != "F" else max(highest, 1e-12))
    if highest <= 255 and image.mode != "F":
        factor = 1.0
    gray = np.empty((height, width), dtype=np.uint8)
    for band in bands:
        gray[slice(*band)] = np.clip(values(band) * factor, 0, 255)
    return Image.fromarray(gray)


def decode_rows(out: str, start: int, files: list[str], size: int, fit: Fit) -> dict[int, str]:
    """Decode files into consecutive rows of an array on disk; return why each row that failed did.

    Args:
        out: a `.npy` file of (N, 3, size, size) uint8.
        start: row of the first file.
        files, size, fit: as for `read_image`.
    """
    array = np.lib.format.open_memmap(out, mode="r+")
    failed = {}
    for row, file in enumerate(files, start):
        try:
            array[row] = read_image(file, size, fit).transpose(2, 0, 1)
        except InputError as error:
            failed[row] = str(error)
    return failed
