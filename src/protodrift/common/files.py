"""Files that are whole or not there: atomic replacement, fsync, locks, checksums. Needs no torch.

What is read here belongs to a model or a run, so errors say that it is damaged (`ModelFileError`), or that the disk
did not give it (`UnreadableError`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import ModelFileError, UnreadableError

# -- checksums --------------------------------------------------------------------------------------------------------


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content, in hexadecimal; the file need not fit in memory."""
    digest, buffer = hashlib.sha256(), bytearray(2**20)
    with open_regular(path) as opened:
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


def open_regular(path: Path) -> io.FileIO:
    """Open a regular file, or a link to one, for reading, without ever waiting.

    Raises:
        OSError: if it is something else: a pipe would make us wait for ever, a device has no end.
    """
    if stat.S_ISREG(os.stat(path).st_mode):
        file = io.FileIO(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)))
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it may have been exchanged meanwhile
            return file
        file.close()
    raise OSError(errno.EINVAL, "not a regular file", str(path))


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


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of a regular file of at most `most` bytes."""
    with reading(path):
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if most is not None and size > most:
                    raise ModelFileError(
                        f"the model is damaged: {path} has {size:,} bytes; at most {most:,} make sense."
                    )
                return file.readall()
        except ValueError as error:  # a name with a zero byte
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"cannot read {path}: {error}.") from None
        except MemoryError:
            raise ModelFileError(f"{path} does not fit in memory.") from None


MOST_JSON = 2**26
"""Bytes of a JSON file: 100,000 classes and 100 tasks take 20 million."""


def read_json(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Return a file's JSON object; its checksum is compared unless it is None."""
    data = read_bytes(path, MOST_JSON)
    if sha256 is not None:
        check_sha256(path, hashlib.sha256(data).hexdigest(), sha256)
    return parse_json(path, data)


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object that a file's content is."""
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


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing; their names are durable, too."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in reversed(missing):
        sync_directory(place.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if os.name == "nt":  # Windows cannot open a directory; its renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Held:
    """A directory whose lock this process holds: by descriptor, since a name may lead elsewhere by the time of writing.

    Attributes:
        path: its name when it was locked; for messages and for reading.
        inside: where to write: the same directory, whatever its name leads to now.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.inside = path
        self._lock = _identity(path / ".lock")
        self._directory = _identity(path if descriptor is None else descriptor)
        if descriptor is not None and _identity(Path(f"/proc/self/fd/{descriptor}")) == self._directory:
            self.inside = Path(f"/proc/self/fd/{descriptor}")

    def check(self) -> None:
        """Raise ModelFileError if the directory or its lock was removed or exchanged since it was locked."""
        for name, before, now in (
            (self.path, self._directory, _identity(self.path)),
            (self.path / ".lock", self._lock, _identity(self.inside / ".lock")),
        ):
            if now != before:
                raise ModelFileError(
                    f"{name} was {'removed' if now is None else 'exchanged'} while this process worked on it: nothing "
                    "was written, neither into what was there nor into what is there now. Find out who did that, put "
                    "it back, and run the same command again."
                )


def _identity(place: Path | int) -> tuple[int, int] | None:
    """Return which file or directory this is, by device and number; None: there is none."""
    try:
        found = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Held]:
    """Hold a directory's lock.

    Raises:
        ModelFileError: at once, if another process holds it.
    """
    lock = FileLock(path / ".lock", timeout=0)
    with contextlib.ExitStack() as stack:
        descriptor = None
        if os.name != "nt":  # Windows cannot open a directory, nor exchange one in which a file is open
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
        try:
            lock.acquire()
        except Timeout:
            raise ModelFileError(f"another process is writing to {path}. Try again when it has finished.") from None
        stack.callback(lock.release)
        held = Held(path, descriptor)
        held.check()
        yield held


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


def printable(text: str) -> str:
    """Return a message with what is not printable written as escapes, as `shown` does, and its lines as they are."""
    return "\n".join(map(shown, text.split("\n")))


def is_litter(name: str) -> bool:
    """Return whether a file is what an operating system leaves in folders that are looked at."""
    return name in (".DS_Store", "Thumbs.db", "desktop.ini") or name.startswith("._")
