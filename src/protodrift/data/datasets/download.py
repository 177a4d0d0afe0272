"""Download a publisher's files: verified, resumed where they broke off, unpacked safely, in place only when whole.

<data>/.cifar-100-python.tar.gz.part        what has arrived; another call goes on from there
<data>/.cifar-100-python.tar.gz.part.tag    which version of the file that is (the server's ETag)
<data>/.cifar-100-python.tar.gz.part.new    an answer that begins anew, until it is better than what has arrived
<data>/.cifar-100-python.tar.gz             arrived whole, until it is unpacked
<data>/.unpack-cifar100/                    unpacked, not yet in place; removed by the next call
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import http.client
import os
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from filelock import FileLock

from ... import __version__
from ...errors import InputError
from .base import NamedDataset, OnProgress, RemoteFile, data_directories, locate
from .registry import get_dataset

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT = 30.0  # seconds without a byte
TRIES = 5  # in a row without any progress
BLOCK = 1 << 18

_BROKEN = (OSError, http.client.HTTPException)  # a connection that breaks in the middle
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_ARCHIVES = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


class _Stale(Exception):
    """What has arrived is no part of what the server has now."""


def prepare_dataset(
    name: str | NamedDataset,
    data: str | Path | None = None,
    *,
    on_progress: OnProgress | None = None,
    pause: float = 1.0,
) -> Path:
    """Make a dataset's folder: nothing to do if it is there, else download and unpack it; return the folder.

    A publisher's file that is in the data directory already is used instead of a download, if its checksum is right.

    Args:
        name: a name from `DATASETS`, or an entry of it.
        data: the data directory; None: $PROTODRIFT_DATA, or the user's cache directory.
        on_progress: called as `on_progress(what, done, total)`, in bytes or files.
        pause: seconds before a broken connection is tried again; doubles each time.

    Raises:
        InputError: that says what happened and what to do by hand. What has arrived is kept for the next call.
    """
    dataset = get_dataset(name) if isinstance(name, str) else name
    with contextlib.suppress(InputError):
        return locate(dataset, data)
    if not dataset.files:
        raise InputError(f"{dataset.title} has no address to download from. {dataset.how_to_get(data)}")
    directory = data_directories(data)[0]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / f".{dataset.name}.lock"):
            for file in dataset.files if dataset.lacks(directory / dataset.folders[0]) else ():
                _place(dataset, file, directory, on_progress, pause)
    except OSError as error:
        raise InputError(
            f"cannot write to {directory}: {error.strerror or error}. Free some space or name another "
            "directory (--data)."
        ) from error
    return locate(dataset, directory)


def _place(
    dataset: NamedDataset, file: RemoteFile, directory: Path, on_progress: OnProgress | None, pause: float
) -> None:
    into = directory / file.into
    if file.gives and (into / file.gives).is_dir():
        return  # unpacked before; it is there only when it is whole
    folder = PurePosixPath(dataset.folders[0])
    if file.unpack and folder.is_relative_to(file.into):
        for name in folder.relative_to(file.into).parts[:1]:
            _clear(into / name)  # an error before a download of hours, not after it
    into.mkdir(parents=True, exist_ok=True)
    own, outer = into / file.name, directory / file.name
    given = None
    passed = ""
    if own.is_file():
        verify(own, file)
        given = own
    elif outer.is_file():
        try:
            verify(outer, file)
            given = outer
        except InputError as error:  # files of another dataset have the same names: no reason to stop
            passed = f" Not used: {error}"
    if not file.unpack and given == outer != own:
        copy = into / f".{file.name}.copy"
        shutil.copyfile(outer, copy)
        os.replace(copy, own)
    # Our own download of an archive is hidden: after an interrupted unpacking it must not pass for the user's file.
    archive = given or (into / f".{file.name}" if file.unpack else own)
    if given is None and not _verified(archive, file):
        try:
            download(file, archive, on_progress=on_progress, pause=pause)
        except InputError as error:
            raise InputError(f"{error}{passed} By hand: {dataset.how_to_get(directory)}") from None
    if file.unpack:
        unpack(archive, into, f".unpack-{dataset.name}", inner=file.inner, on_progress=on_progress)
        if given is None:
            archive.unlink()


def _verified(path: Path, file: RemoteFile) -> bool:
    try:
        verify(path, file)
    except (FileNotFoundError, InputError):
        return False
    return True


def download(file: RemoteFile, target: Path, *, on_progress: OnProgress | None = None, pause: float = 1.0) -> None:
    """Download a file to `target`, whole and verified, or not at all; what has arrived is kept beside it.

    Raises:
        InputError: if the server has no such file or one of another size, cannot be reached, or sent other bytes.
    """
    part = target.with_name(f".{target.name.removeprefix('.')}.part")
    problems = []
    for url in (file.url, *file.mirrors):
        try:
            resumed = _fetch(url, file, part, on_progress, pause)
            try:
                verify(part, file, url)
            except InputError:
                _forget(part)  # wrong bytes are no beginning for the next try
                if not resumed:
                    raise
                _fetch(url, file, part, on_progress, pause)  # the two halves did not belong together: once more, whole
                try:
                    verify(part, file, url)
                except InputError:
                    _forget(part)
                    raise
        except InputError as error:
            problems.append(str(error))
            continue
        os.replace(part, target)
        _forget(part)
        return
    raise InputError(" ".join(problems))


def verify(path: Path, file: RemoteFile, url: str | None = None) -> None:
    """Raise an `InputError` if a file's size or checksum is not the published one."""
    got = path.stat().st_size
    name = f"what {url} sent" if url else str(path)
    if file.bytes is not None and got != file.bytes:
        raise InputError(f"{name} has {got:,} bytes, the published file has {file.bytes:,}: it is cut off or another.")
    if file.checksum is None:
        return
    kind, _, expected = file.checksum.partition(":")
    digest = hashlib.new(kind)
    with open(path, "rb") as opened:
        while block := opened.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise InputError(
            f"{name} has the {kind} {digest.hexdigest()}, the published file has {expected}: it is damaged or another "
            "file. Remove it and get it again."
        )


def _fetch(url: str, file: RemoteFile, part: Path, on_progress: OnProgress | None, pause: float) -> bool:
    """Bring `part` to its full length; return whether it began with bytes of an earlier call or connection."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"{url} is not an http address.")
    resumed = False
    tries = 0
    while True:
        had = part.stat().st_size if part.exists() else 0
        try:
            total = _receive(url, file, part, on_progress)
            now = part.stat().st_size
            if total is None or now >= total:
                return resumed or had > 0
            problem = f"the connection broke off after {now:,} of {total:,} bytes"
        except _Stale:
            _forget(part)
            resumed, problem = False, "the file changed on the server"
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):
                raise InputError(f"{url} answers {error.code} {error.reason}.") from None
            problem = f"the server answers {error.code} {error.reason}"
        except urllib.error.URLError as error:
            problem = f"the server cannot be reached ({error.reason})"
        except _BROKEN as error:
            if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK):
                raise  # the disk, not the network
            problem = f"the connection broke ({error or type(error).__name__})"
        now = part.stat().st_size if part.exists() else 0
        resumed = resumed or now > 0
        tries = 0 if now > had else tries + 1
        if tries >= TRIES or (tries and had == now == 0 and "cannot be reached" in problem):
            kept = f" The {now:,} bytes that arrived are kept: the same command goes on from there." * (now > 0)
            raise InputError(f"cannot download {url}: {problem}.{kept}")
        time.sleep(pause * 2**tries)


def _receive(url: str, file: RemoteFile, part: Path, on_progress: OnProgress | None) -> int | None:
    """Receive bytes until the end or a break; return the file's full length if the server says it or it is known."""
    have = part.stat().st_size if part.exists() else 0
    if file.bytes is not None and have > file.bytes:
        _forget(part)  # no beginning of the published file
        have = 0
    tag_file = part.with_name(f"{part.name}.tag")
    known = tag_file.read_text(encoding="latin1") if have and tag_file.exists() else ""
    headers = {"User-Agent": f"protodrift/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if known:
            headers["If-Range"] = known
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing after what we have: whole, or of another version
            if have == file.bytes:
                return have
            raise _Stale from None
        raise
    with response:
        start, total = _range(response)
        if start not in (0, have):
            raise _Stale
        if file.bytes is not None and total is not None and total != file.bytes:
            raise InputError(
                f"{url} has {total:,} bytes now, the published file has {file.bytes:,}: it is another file."
            )
        free = shutil.disk_usage(part.parent).free
        if total is not None and total - start > free:
            raise InputError(f"{part.parent} has {free:,} bytes free, {total - start:,} are needed. Free some space.")
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if tag.startswith("W/"):  # a weak tag promises nothing about bytes
            tag = ""
        # Another version, with its length: what had arrived is of no use, however long it is.
        changed = total is not None and bool(known and tag) and tag != known
        if have and not start and not changed:
            return _receive_aside(response, url, file, part, tag, total, on_progress)
        if not start:
            _forget(part)
        if tag:
            tag_file.write_text(tag, encoding="latin1")
        return _copy(response, url, file, part, start, total, on_progress)


def _receive_aside(
    response: http.client.HTTPResponse,
    url: str,
    file: RemoteFile,
    part: Path,
    tag: str,
    total: int | None,
    on_progress: OnProgress | None,
) -> int | None:
    """Receive an answer that begins anew though a part is there; it takes the part's place only if it is better.

    It may be the page of a network that asks for a login, or break off sooner than the part did.
    """
    have = part.stat().st_size
    fresh = part.with_name(f"{part.name}.new")
    better = False
    try:
        try:
            expected = _copy(response, url, file, fresh, 0, total, on_progress)
            got = fresh.stat().st_size
            if expected is None or got == expected:
                verify(fresh, file, url)
                if file.bytes is None and file.checksum is None and got < have:
                    raise InputError(
                        f"{url} sent {got:,} bytes, but {have:,} had arrived before, and no published size or checksum "
                        f"tells which are right. If the file is a shorter one now, remove {part} and try again."
                    )
                better = True
        except InputError:
            fresh.unlink(missing_ok=True)
            raise
        return expected
    finally:
        if fresh.exists():
            if better or fresh.stat().st_size > have:
                _forget(part, fresh=False)
                os.replace(fresh, part)
                if tag:
                    part.with_name(f"{part.name}.tag").write_text(tag, encoding="latin1")
            else:
                fresh.unlink()


def _copy(
    response: http.client.HTTPResponse,
    url: str,
    file: RemoteFile,
    path: Path,
    start: int,
    total: int | None,
    on_progress: OnProgress | None,
) -> int | None:
    """Write an answer to `path` from `start` on; return the full length, as far as it is known."""
    done = start
    with open(path, "ab" if start else "wb") as out:
        while block := response.read(BLOCK):
            done += len(block)
            if file.bytes is not None and done > file.bytes:
                break
            out.write(block)
            if on_progress is not None:
                on_progress(f"download {file.name}", done, total)
    if file.bytes is not None and done > file.bytes:  # a stream without a length could go on for ever
        os.truncate(path, start)
        if not start:
            _forget(path)
        raise InputError(
            f"{url} sends more than the {file.bytes:,} bytes that the published file has: it is another file."
        )
    if total is None and response.status == 200 and response.chunked:
        return done  # the last chunk is marked: this was all, not a break
    return file.bytes if total is None else total


def _range(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return where the answer starts, and how long the whole file is."""
    if response.status == 206:
        # "bytes 100-199/200"
        unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
        span, _, total = rest.partition("/")
        first = span.partition("-")[0]
        if unit != "bytes" or not first.isdigit():
            raise _Stale
        return int(first), int(total) if total.isdigit() else None
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _forget(part: Path, *, fresh: bool = True) -> None:
    for ending in ("", ".tag", *([".new"] if fresh else [])):
        part.with_name(f"{part.name}{ending}").unlink(missing_ok=True)


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
                _move(path, into / path.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _move(path: Path, target: Path) -> None:
    _clear(target)
    os.replace(path, target)


def _clear(target: Path) -> None:
    """Make way for a folder: an empty one is removed, one with content is an error."""
    if target.is_dir():
        try:
            target.rmdir()
        except OSError:
            raise InputError(f"{target} is in the way, and is not whole. Move or remove it, then try again.") from None


def _extract(archive: Path, folder: Path, on_progress: OnProgress | None) -> None:
    count = 0
    try:
        for name, source in _members(archive):
            relative = PurePosixPath(name.replace("\\", "/"))
            if relative.is_absolute() or ".." in relative.parts or ":" in name or "\0" in name:
                raise InputError(f"{archive} is refused: it would write to {name!r}, outside of its folder.")
            target = folder.joinpath(*relative.parts)
            if source is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, BLOCK)
            count += 1
            if on_progress is not None and count % 50 == 0:
                on_progress(f"unpack {archive.name.removeprefix('.')}", count, None)
    except _ARCHIVES as error:
        raise InputError(f"{archive} is cut off or damaged ({error}). Remove it and get it again.") from None


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield each name with an open file, or with None for a folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise InputError(f"{archive} is refused: {info.filename!r} is a link.")
                yield info.filename, None if info.is_dir() else opened.open(info)
        return
    with tarfile.open(archive, "r:*", tarinfo=_Member) as tar:
        for member in tar:
            if not (member.isreg() or member.isdir()):
                raise InputError(f"{archive} is refused: {member.name!r} is a link or a device, not a file.")
            yield member.name, None if member.isdir() else tar.extractfile(member)
        if not getattr(tar, "ended", False):
            raise EOFError("its end is missing")


class _Member(tarfile.TarInfo):
    """Notes that the archive's end was seen: tarfile takes one that is cut off between two files for whole."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            archive.ended = True  # type: ignore[attr-defined]
            raise
