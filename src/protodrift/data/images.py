"""From an image file to pixels. Imports no torch: worker processes start in a fraction of a second."""

from __future__ import annotations

import io
import stat
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from ..common.files import shown
from ..errors import InputError

Fit = Literal["center", "squash"]
"""How an image becomes square: its center is cropped, or both sides are resized."""

_WIDE = ("I", "I;16", "I;16B", "I;16L", "F")
"""Pillow's modes of more than 8 bits per value."""

SMALLEST_SIDE = 8
"""Pixels; what is smaller or thinner shows nothing."""

_BAND = 2**18  # pixels that are held as float64 at a time


def read_image(path: str | Path, size: int, fit: Fit = "center") -> np.ndarray:
    """Decode one image of any kind as (size, size, 3) uint8.

    EXIF orientation is honored; transparent parts become white; gray, palette, CMYK and 16-bit images become RGB.
    `fit="center"` resizes the short side to `size` and crops the center; `fit="squash"` resizes both sides to `size`.

    Raises:
        InputError: naming the file, if it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            return fitted(image, size, fit)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}.") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{path} cannot be read as an image ({error}). Remove or replace it.") from None


def load_photo(source: str | Path | bytes, size: int) -> np.ndarray:
    """Decode one photo, a file or its bytes, as (size, size, 3) uint8.

    Raises:
        InputError: naming the file and why it cannot be used.
    """
    name = "-" if isinstance(source, bytes) else shown(source)
    try:
        if not isinstance(source, bytes):
            _check_file(Path(source), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large images and odd metadata; what is too large is refused
            with Image.open(_opened(source)) as image:
                if min(image.size) < SMALLEST_SIDE:
                    raise InputError(f"{name} is too small: {image.size[0]} x {image.size[1]} pixels.")
                return fitted(image, size)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such file.") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{name} cannot be read as an image ({_reason(error)}).") from None


def _check_file(path: Path, name: str) -> None:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):  # a pipe would make us wait for ever
        raise InputError(f"{name} is not a file.")
    if facts.st_size == 0:
        raise InputError(f"{name} is empty.")


def _opened(source: str | Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return "not an image, or damaged" if "cannot identify image file" in text else text.split("\n")[0]


def fitted(image: Image.Image, size: int, fit: Fit = "center") -> np.ndarray:
    """Return an opened image as `read_image` does; what is wrong with it, Pillow says in its own words."""
    upright = ImageOps.exif_transpose(image)
    # What is gray stays so until it is small: RGB takes four times the memory.
    upright = _stretched(upright) if upright.mode in _WIDE else to_rgb(upright)
    if fit == "squash":
        small = upright.resize((size, size), resample=Image.Resampling.BILINEAR)
    else:
        small = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
    return np.array(small.convert("RGB"), dtype=np.uint8)  # a copy: Pillow's own is read-only


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
