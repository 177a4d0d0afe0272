"""From an image file to pixels; and a worker process that does it for many files.

Imports neither torch nor the rest of the package: a worker starts in a fraction of a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from .errors import InputError

Job = dict[str, Any]
"""What a worker is told: "part" (which array), "start" (its first row), "files"."""


def read_image(path: str | Path, size: int, fit: str = "centre") -> np.ndarray:
    """Decode one image of any kind as (size, size, 3) uint8.

    EXIF orientation is honoured; transparent parts become white; grey, palette, CMYK and 16-bit images become RGB.
    `fit="centre"` resizes the short side to `size` and crops the centre; `fit="squash"` resizes both sides to `size`.

    Raises:
        InputError: naming the file, if it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            upright = to_rgb(ImageOps.exif_transpose(image))
            if fit == "squash":
                fitted = upright.resize((size, size), resample=Image.Resampling.BILINEAR)
            else:
                fitted = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
            return np.asarray(fitted, dtype=np.uint8)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}.") from None
    except Exception as error:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError(f"{path} cannot be read as an image ({error}). Remove or replace it.") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB; what is transparent becomes white, not whatever colour hides below it."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
        # Pillow clips these at 255: a 16-bit image would turn white. Stretch its own range instead.
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" else max(float(values.max()), 1e-12)
        scaled = values if values.max() <= 255 and image.mode != "F" else values * (255.0 / top)
        return Image.fromarray(np.clip(scaled, 0, 255).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def serve() -> None:
    """Be a worker: read one line with the arrays, then one line a job; answer each with the rows that failed."""
    decode = decoder(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(decode(json.loads(line))) + "\n")
        sys.stdout.flush()


def decoder(task: dict[str, Any]) -> Callable[[Job], dict[str, str]]:
    """Return a function that decodes a job's files into their rows, and says why for each row that failed.

    Args:
        task: "outs": `.npy` files of (N, 3, size, size) uint8; "size" and "fit" as in `read_image`.
    """
    arrays = [np.lib.format.open_memmap(out, mode="r+") for out in task["outs"]]

    def decode(job: Job) -> dict[str, str]:
        failed = {}
        for row, file in enumerate(job["files"], job["start"]):
            try:
                arrays[job["part"]][row] = read_image(file, task["size"], task["fit"]).transpose(2, 0, 1)
            except InputError as error:
                failed[str(row)] = str(error)
        return failed

    return decode
