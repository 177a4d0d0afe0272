"""Files by what is in them: a hash that needs no memory, and files that have no name."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any


def file_sha256(path: Path) -> str:
    """Return the hash of a file's content, which need not fit in memory."""
    digest, buffer = hashlib.sha256(), bytearray(2**20)
    with open(path, "rb", buffering=0) as opened:
        while read := opened.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return digest.hexdigest()


def nameless_file(folder: str | Path, size: int) -> Any:
    """Open a new file of `size` bytes that has no name: no other program can open it, and it is gone with
    its last user.

    The room is taken now, where the system can do that: a full disk is told here, and not when the file is written.

    Raises:
        OSError: if there is no room.
    """
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - the caller closes it
    try:
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        file.close()
        raise
    return file
