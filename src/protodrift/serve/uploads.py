"""From the body of a request to the files in it; `decoding` makes pixels of them."""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..common.files import shown
from .limits import Limits

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
