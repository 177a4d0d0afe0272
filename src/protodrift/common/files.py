"""Files that are whole or not there: atomic replacement, fsync, locks, checksums. Needs no torch.

What is read here belongs to a model or a run, so errors say that it is damaged (`ModelFileError`), or that the disk
did not give it (`UnreadableError`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import ModelFileError, UnreadableError

# -- checksums --------------------------------------------------------------------------------------------------------


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content, in hexadecimal; the file need not fit in memory."""
    digest, buffer = hashlib.sha256(), bytearray(2**20)
    with open(path, "rb", buffering=0) as opened:
        while read := opened.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return digest.hexdigest()


def json_sha256(value: Any) -> str:
    """Return the sha256 of a JSON-able value, in hexadecimal; the order of keys does not matter.

    >>> json_sha256({"a": 1, "b": 2}) == json_sha256({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def check_sha256(path: Path, found: str, expected: Any) -> None:
    """Raise ModelFileError if a file's checksum is not the expected one."""
    if found != expected:
        raise ModelFileError(
            f"the model is damaged: {path} does not match its checksum (truncated or changed). Restore it from a "
            "backup."
        )


# -- reading ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the disk into ours: a missing file is damage, an I/O error is not."""
    try:
        yield
    except FileNotFoundError:
        raise ModelFileError(f"the model is damaged: {path} is missing. Restore it from a backup.") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ModelFileError(f"the model is damaged: cannot read {path}: {error.strerror}.") from None
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror or error}.") from error


def read_bytes(path: Path) -> bytes:
    """Return a file's content."""
    with reading(path):
        try:
            return path.read_bytes()
        except ValueError as error:  # a name with a zero byte
            raise ModelFileError(f"cannot read {path}: {error}.") from None


def read_json(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Return a file's JSON object; its checksum is compared unless it is None."""
    data = read_bytes(path)
    if sha256 is not None:
        check_sha256(path, hashlib.sha256(data).hexdigest(), sha256)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is damaged: not a JSON object.")
    return value


# -- writing ----------------------------------------------------------------------------------------------------------


def write_synced(path: Path, parts: Iterable[bytes]) -> tuple[str, int]:
    """Write a file part by part and sync it; return its sha256 and its size.

    The sha256 is of the bytes that were meant, not of what the disk gives back: a bad write shows when it is read.
    """
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash it holds the old or the new content, whole."""
    draft = path.with_name(f".{path.name}.new")
    try:
        write_synced(draft, [content])
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if os.name == "nt":  # Windows cannot open a directory; its renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a directory's lock.

    Raises:
        ModelFileError: at once, if another process holds it.
    """
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ModelFileError(f"another process is writing to {path}. Try again when it has finished.") from None
    try:
        yield
    finally:
        lock.release()


# -- names ------------------------------------------------------------------------------------------------------------


def shown(path: str | Path) -> str:
    """Return a path as one line of text: control characters and broken encodings are written as escapes.

    >>> shown("a\\nb"), shown("Käuzchen 梟.jpg")
    ('a\\\\nb', 'Käuzchen 梟.jpg')
    """
    text = str(path)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
