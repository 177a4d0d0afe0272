"""Weight files from the network: fetched once, checked by their hash, kept in the user's cache."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from ..common.files import file_sha256
from ..errors import InputError

MOST_BYTES = 2 << 30
"""What a weight file may weigh; VGG16's has 0.5 GB."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return file_sha256(path)
    except OSError as error:
        raise InputError(f"the weight file {path} cannot be read: {error.strerror or error}.") from None


def expected_hash(url: str) -> str:
    """Return the start of the sha256 that an address promises, or "".

    Either all of it, as a fragment, or what torchvision puts into its file names:

    >>> expected_hash("https://download.pytorch.org/models/resnet18-f37072fd.pth")
    'f37072fd'
    """
    address, _, fragment = url.partition("#")
    if fragment:
        found = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
        if not found:
            raise InputError(f"{url}: after # only sha256=<64 hexadecimal digits> is understood.")
        return found[1].lower()
    found = re.search(r"-([0-9a-f]{8,64})\.\w+$", address)
    return found[1] if found else ""


def fetch(url: str) -> Path:
    """Return the local copy of a file, downloading it the first time.

    Raises:
        InputError: if it cannot be had, is too large, or is not what its hash promises. Wrong bytes are not kept.
    """
    from ..data.datasets.base import RemoteFile, cache_home
    from ..data.datasets.download import download

    expected = expected_hash(url)
    address = url.partition("#")[0]
    parts = urlsplit(address)
    name = parts.path.rsplit("/", 1)[-1]
    if not name or not parts.hostname:
        raise InputError(f"weights={url!r} names no file: https://host/path/file.pth is needed.")
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK and len(expected) < 64:
        raise InputError(f"{url}: anyone on the way can change what http brings. Use https, or add #sha256=<the hash>.")
    # Another address is another file, whatever its name.
    kept = cache_home() / "weights" / f"{hashlib.sha256(address.encode()).hexdigest()[:12]}-{name}"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(kept.with_name(f".{kept.name}.lock")):
            if kept.is_file() and sha256_of(kept).startswith(expected):
                return kept
            logging.getLogger("protodrift").info("downloading %s", address)
            download(RemoteFile(address, unpack=False), kept, on_progress=_limited)
            got = sha256_of(kept)
            if not got.startswith(expected):
                kept.unlink()
                promised = expected + "..." * (len(expected) < 64)
                raise InputError(f"{address} is not what it should be: its sha256 is {got}, promised was {promised}.")
    except OSError as error:
        raise InputError(f"cannot write to {kept.parent}: {error.strerror or error}. Make room there.") from None
    except InputError as error:
        part = kept.with_name(f".{kept.name}.part")  # kept to go on from, but not if it is far too much
        if part.is_file() and part.stat().st_size > MOST_BYTES:
            part.unlink()
        raise InputError(f"{error} Or get the file by other means, and give its path.") from None
    return kept


def _limited(what: str, done: int, total: int | None) -> None:
    if max(done, total or 0) > MOST_BYTES:
        raise InputError(f"{what}: more than {MOST_BYTES:,} bytes are no weight file.")
