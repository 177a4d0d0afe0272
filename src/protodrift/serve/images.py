"""From the body of a request to checked pixels."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..common.files import shown
from ..data.images import load_photo
from ..errors import InputError
from .limits import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""What is decoded: pictures. Pillow knows more, among them formats that start other programs (EPS)."""

NOT_IMAGES = ("application/json", "text/", "multipart/")


@dataclass(frozen=True)
class Upload:
    """A file as it came, and what the client calls it."""

    name: str
    data: bytes


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the images of a request: one as its body, or one or many as multipart/form-data.

    Raises:
        HTTPException: 400 malformed, 413 too many, 415 something else than images, 422 none.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        uploads = await _parts(request, limits)
    elif kind.startswith(NOT_IMAGES):
        raise HTTPException(
            415, f"{kind} cannot be read. Send an image as the body, or one or many as multipart/form-data."
        )
    else:
        body = await request.body()
        uploads = [Upload("image", body)] if body else []
    if not uploads:
        raise HTTPException(422, "the request holds no image.")
    return uploads


class _Form(MultiPartParser):
    """Starlette's parser, which passes over a part without an end in silence; this one knows whether all has come."""

    complete = False

    def on_end(self) -> None:
        """Note the closing boundary."""
        self.complete = True


async def _parts(request: Request, limits: Limits) -> list[Upload]:
    parser = _Form(request.headers, request.stream(), max_files=limits.images + 1, max_fields=16)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise _too_many(limits) from None
        raise _malformed(error.message) from None
    except FormParserError as error:
        raise _malformed(str(error)) from None
    except UnicodeError:  # of a charset such as idna; of most others Starlette falls back to latin-1
        raise _malformed("its names cannot be read by the charset of the content-type. Send them as utf-8.") from None
    try:
        if not parser.complete:
            raise _malformed("the closing boundary is missing. Send the whole form again.")
        parts = form.multi_items()
        plain = [name for name, value in parts if not isinstance(value, UploadFile)]
        if plain:
            raise HTTPException(422, f"the part {shown(plain[0])!r} is not a file: it has no filename.")
        if len(parts) > limits.images:
            raise _too_many(limits)
        files = [value for _, value in parts if isinstance(value, UploadFile)]
        return [Upload(shown(file.filename or "image"), await file.read()) for file in files]
    finally:
        await form.close()


def _malformed(why: str) -> HTTPException:
    return HTTPException(400, f"malformed multipart/form-data: {why}")


def _too_many(limits: Limits) -> HTTPException:
    return HTTPException(413, f"more than {limits.images} images in one request. Send several requests.")


def admit(limits: Limits) -> None:
    """Raise Pillow's own limit of pixels to ours, once for the whole process: threads cannot have one each."""
    if Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, limits.pixels)


def decode(uploads: Sequence[Upload], size: int, limits: Limits, deadline: float) -> np.ndarray:
    """Decode images as (N, size, size, 3) uint8; runs in a thread.

    Args:
        uploads: N files.
        size: side of the decoded squares.
        limits: how many pixels one may have.
        deadline: on the monotonic clock; nothing more is decoded after it, for nobody waits any more.

    Raises:
        HTTPException: 413 too many pixels, 422 not an image or damaged, naming every such file.
    """
    pixels, wrong = [], []
    for upload in uploads:
        if time.monotonic() > deadline:
            raise HTTPException(504, "the images could not be decoded in time.")
        try:
            _check_header(upload, limits)
            pixels.append(load_photo(upload.data, size))
        except InputError as error:
            wrong.append(f"{upload.name} {str(error).removeprefix('- ').removeprefix('-: ')}")
    if wrong:
        more = f" And {len(wrong) - 5} more." if len(wrong) > 5 else ""
        raise HTTPException(422, " ".join(wrong[:5]) + more)
    return np.stack(pixels)


def _check_header(upload: Upload, limits: Limits) -> None:
    """Refuse by what the header says: a few kilobytes can claim a picture of many gigabytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures: our own limit decides
            with Image.open(io.BytesIO(upload.data), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError:  # more than twice Pillow's limit, which is not below ours
        raise HTTPException(413, f"{upload.name} has more than {limits.pixels:,} pixels.") from None
    except Exception:  # whatever a damaged file makes one of Pillow's many decoders say
        raise InputError("cannot be read as an image (not an image, or damaged).") from None
    if width * height > limits.pixels:
        raise HTTPException(
            413, f"{upload.name} has {width} x {height} pixels; at most {limits.pixels:,} are taken. Send it smaller."
        )
