"""A process that decodes pictures for a server, and that can be killed. Imports neither torch nor the web framework.

It reads requests from standard input and writes replies to standard output until its input ends. What a hostile file
can do is bounded: its memory and processor time by the system, its time by the server, which kills it.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import BinaryIO

from PIL import Image

from ..data.images import decode_smaller, load_photo, open_image
from ..errors import InputError, TooLargeError

REQUEST = struct.Struct(">QIQQd")
"""Bytes of the file, side of the decoded square, pixels above which it is refused, pixels above which it is put off,
seconds of processor time that it may take."""

REPLY = struct.Struct(">BQQ")
"""One of the kinds below, pixels of the picture, bytes that follow: pixels, or why there are none."""

DECODED, PUT_OFF, TOO_LARGE, NO_IMAGE = range(4)

BYTES_PER_PIXEL = 24
"""Of the largest picture: RGBA, a copy of it upright, one on white, one in RGB; the rest is for the decoder."""

OWN_MEMORY = 400 * 2**20
"""Bytes beside that, for Python, numpy and Pillow."""


def main() -> None:
    """Answer until there is nothing more to read; arguments: by how much to be nice, the most pixels of a picture."""
    niceness, most = int(sys.argv[1]), int(sys.argv[2])
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not become a reply
    Image.MAX_IMAGE_PIXELS = None  # the limit of the server decides
    _limit(niceness, most * BYTES_PER_PIXEL + OWN_MEMORY)
    while head := source.read(REQUEST.size):
        length, size, refuse, put_off, seconds = REQUEST.unpack(head)
        data = source.read(length)
        _end_after(2 * seconds)  # a decoder that is asked in pieces ends earlier, by itself
        reply = answer(data, size, refuse, put_off, seconds)
        _end_after(0)
        _reply(out, *reply)


def answer(data: bytes, size: int, refuse: int, put_off: int, seconds: float) -> tuple[int, int, bytes]:
    """Return kind, number of decoded pixels and content of the reply for one file."""
    pixels = 0
    try:
        with open_image(data) as image:
            decode_smaller(image, size)  # as `load_photo` does
            pixels = image.width * image.height
        if put_off < pixels <= refuse:
            return PUT_OFF, pixels, b""
        return DECODED, pixels, load_photo(data, size, pixels=refuse, seconds=seconds).tobytes()
    except TooLargeError as error:
        return TOO_LARGE, 0, _without_name(error)
    except InputError as error:
        return NO_IMAGE, pixels, _without_name(error)
    except Exception:  # whatever a damaged file makes one of Pillow's many decoders say
        return NO_IMAGE, pixels, b"cannot be read as an image (not an image, or damaged)."


def _without_name(error: InputError) -> bytes:
    return str(error).removeprefix("-").removeprefix(":").strip().encode()


def _limit(niceness: int, memory: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    os.nice(niceness)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))


def _end_after(seconds: float) -> None:
    """Have the system end this process after so many seconds of processor time, whatever a decoder does; 0: not."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(out: BinaryIO, kind: int, pixels: int, content: bytes) -> None:
    out.write(REPLY.pack(kind, pixels, len(content)) + content)
    out.flush()
