"""Unpack a publisher's archive: all of it or nothing, and never outside of its folder."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from ...errors import InputError
from .base import OnProgress

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


def unpack(
    archive: Path,
    into: Path,
    scratch_name: str = ".unpack",
    *,
    inner: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
) -> None:
    """Unpack a .tar, .tar.gz, .tgz or .zip: all of it, or nothing.

    Only plain files and folders below `into` are made; a path that leads out, or a link, is an error.

    Args:
        archive: the archive.
        into: the folder to put its content in.
        scratch_name: name of the folder, beside the content, that holds it until it is whole.
        inner: archives inside it, unpacked where they lie.
        on_progress: called with the number of files.

    Raises:
        InputError: if it is cut off, damaged, or would write outside.
    """
    scratch = into / scratch_name
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        _extract(archive, scratch, on_progress)
        for name in inner:
            nested = scratch / name
            if not nested.is_file():
                raise InputError(f"{archive} does not hold {name}: is it the right file?")
            _extract(nested, nested.parent, on_progress)
            nested.unlink()
        if hasattr(os, "sync"):
            os.sync()  # a name must not outlive a power cut that its content does not
        for path in sorted(scratch.iterdir(), key=lambda path: path.is_dir()):  # folders last: they are what counts
            if path.name != "__MACOSX":
                clear(into / path.name)
                os.replace(path, into / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def clear(target: Path) -> None:
    """Make way for a folder: an empty one is removed, one with content is an error."""
    if target.is_dir():
        try:
            target.rmdir()
        except OSError:
            raise InputError(f"{target} is in the way, and is not whole. Move or remove it, then try again.") from None


def _extract(archive: Path, folder: Path, on_progress: OnProgress | None) -> None:
    members = _zipped(archive) if zipfile.is_zipfile(archive) else _tarred(archive)
    try:
        for count, (name, plain, extract) in enumerate(members, 1):
            relative = PurePosixPath(name.replace("\\", "/"))
            if relative.is_absolute() or ".." in relative.parts or ":" in name or "\0" in name:
                raise InputError(f"{archive} is refused: it would write to {name!r}, outside of its folder.")
            if not plain:
                raise InputError(f"{archive} is refused: {name!r} is a link or a device, not a file.")
            extract(folder)
            if on_progress is not None and count % 50 == 0:
                on_progress(f"unpack {archive.name.removeprefix('.')}", count, None)
    except _DAMAGED as error:
        raise InputError(f"{archive} is cut off or damaged ({error}). Remove it and get it again.") from None


_Member = tuple[str, bool, Callable[[Path], object]]
"""A name, whether it is a plain file or folder, and a function that extracts it into a folder."""


def _zipped(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            yield info.filename, not stat.S_ISLNK(info.external_attr >> 16), partial(opened.extract, info)


def _tarred(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as tar:
        for member in tar:
            plain = member.replace(mode=0o755 if member.isdir() else 0o644, deep=False)  # no program, no setuid
            yield member.name, member.isreg() or member.isdir(), partial(tar.extract, plain, filter="data")
        # tarfile takes an archive that is cut off between two files for whole: look for the zeros at its end.
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError("its end is missing")
