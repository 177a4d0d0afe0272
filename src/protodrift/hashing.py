"""What a file is, whatever its name."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Return the hash of a file's content, which need not fit in memory."""
    digest, buffer = hashlib.sha256(), bytearray(2**20)
    with open(path, "rb", buffering=0) as opened:
        while read := opened.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return digest.hexdigest()
