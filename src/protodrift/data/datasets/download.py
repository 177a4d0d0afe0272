"""Download a publisher's files: verified, resumed where they broke off, in place only when whole.

<data>/.cifar-100-python.tar.gz.part        what has arrived; another call goes on from there
<data>/.cifar-100-python.tar.gz.part.tag    which version of the file that is (the server's ETag)
<data>/.cifar-100-python.tar.gz.part.new    an answer that begins anew, until it is better than what has arrived
<data>/.cifar-100-python.tar.gz             arrived whole, until it is unpacked
<data>/.unpack-cifar100/                    unpacked, not yet in place; removed by the next call
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock

from ... import __version__
from ...errors import InputError
from .base import NamedDataset, OnProgress, RemoteFile, data_directories, locate
from .registry import get_dataset
from .unpack import clear, unpack

TIMEOUT = 30.0  # seconds without a byte
TRIES = 5  # in a row without any progress
BLOCK = 1 << 18

_BROKEN = (OSError, http.client.HTTPException)  # a connection that breaks in the middle
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


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
            clear(into / name)  # an error before a download of hours, not after it
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
        transfer = _Transfer(url, file, part, on_progress, pause)
        try:
            if not transfer.verified(again=transfer.fetch()):
                transfer.fetch()  # the two halves did not belong together: once more, whole
                transfer.verified(again=False)
        except InputError as error:
            problems.append(str(error))
            continue
        os.replace(part, target)
        transfer.forget()
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


@dataclass
class _Transfer:
    """One address of a file, and what has arrived of it in `part`."""

    url: str
    file: RemoteFile
    part: Path
    on_progress: OnProgress | None
    pause: float

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise InputError(f"{self.url} is not an http address.")
        self.tag = self.part.with_name(f"{self.part.name}.tag")
        self.fresh = self.part.with_name(f"{self.part.name}.new")

    @property
    def arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def forget(self) -> None:
        for path in (self.part, self.tag, self.fresh):
            path.unlink(missing_ok=True)

    def verified(self, *, again: bool) -> bool:
        """Return whether the part is the published file; if not, forget it, and raise unless it is tried `again`."""
        try:
            verify(self.part, self.file, self.url)
        except InputError:
            self.forget()  # wrong bytes are no beginning for the next try
            if not again:
                raise
            return False
        return True

    def fetch(self) -> bool:
        """Bring the part to its full length; return whether it began with bytes of an earlier call or connection."""
        resumed = False
        tries = 0
        while True:
            had = self.arrived
            try:
                total = self._receive()
                if total is None or self.arrived >= total:
                    return resumed or had > 0
                problem = f"the connection broke off after {self.arrived:,} of {total:,} bytes"
            except _Stale:
                self.forget()
                resumed, problem = False, "the file changed on the server"
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code not in (408, 429):
                    raise InputError(f"{self.url} answers {error.code} {error.reason}.") from None
                problem = f"the server answers {error.code} {error.reason}"
            except urllib.error.URLError as error:
                problem = f"the server cannot be reached ({error.reason})"
            except _BROKEN as error:
                if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK):
                    raise  # the disk, not the network
                problem = f"the connection broke ({error or type(error).__name__})"
            now = self.arrived
            resumed = resumed or now > 0
            tries = 0 if now > had else tries + 1
            if tries >= TRIES or (tries and had == now == 0 and "cannot be reached" in problem):
                kept = f" The {now:,} bytes that arrived are kept: the same command goes on from there." * (now > 0)
                raise InputError(f"cannot download {self.url}: {problem}.{kept}")
            time.sleep(self.pause * 2**tries)

    def _receive(self) -> int | None:
        """Receive bytes until the end or a break; return the file's full length, as far as it is known."""
        published = self.file.bytes
        if published is not None and self.arrived > published:
            self.forget()  # no beginning of the published file
        have = self.arrived
        known = self.tag.read_text(encoding="latin1") if have and self.tag.exists() else ""
        headers = {"User-Agent": f"protodrift/{__version__}", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if known:
                headers["If-Range"] = known
        try:
            response = urllib.request.urlopen(urllib.request.Request(self.url, headers=headers), timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing after what we have: whole, or of another version
                if have == published:
                    return have
                raise _Stale from None
            raise
        with response:
            start, total = _range(response)
            if start not in (0, have):
                raise _Stale
            if published is not None and total is not None and total != published:
                raise InputError(
                    f"{self.url} has {total:,} bytes now, the published file has {published:,}: it is another file."
                )
            free = shutil.disk_usage(self.part.parent).free
            if total is not None and total - start > free:
                raise InputError(
                    f"{self.part.parent} has {free:,} bytes free, {total - start:,} are needed. Free some space."
                )
            tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            if tag.startswith("W/"):  # a weak tag promises nothing about bytes
                tag = ""
            # Another version, with its length: what had arrived is of no use, however long it is.
            changed = total is not None and bool(known and tag) and tag != known
            if have and not start and not changed:
                return self._receive_aside(response, tag, total)
            if not start:
                self.forget()
            if tag:
                self.tag.write_text(tag, encoding="latin1")
            return self._copy(response, self.part, start, total)

    def _receive_aside(self, response: http.client.HTTPResponse, tag: str, total: int | None) -> int | None:
        """Receive an answer that begins anew though a part is there; it takes the part's place only if it is better.

        It may be the page of a network that asks for a login, or break off sooner than the part did.
        """
        have, better = self.arrived, False
        try:
            try:
                expected = self._copy(response, self.fresh, 0, total)
                got = self.fresh.stat().st_size
                if expected is None or got == expected:
                    verify(self.fresh, self.file, self.url)
                    if self.file.bytes is None and self.file.checksum is None and got < have:
                        raise InputError(
                            f"{self.url} sent {got:,} bytes, but {have:,} had arrived before, and no published size or "
                            "checksum tells which are right. If the file is a shorter one now, remove "
                            f"{self.part} and try again."
                        )
                    better = True
            except InputError:
                self.fresh.unlink(missing_ok=True)
                raise
            return expected
        finally:
            if self.fresh.exists():
                if better or self.fresh.stat().st_size > have:
                    os.replace(self.fresh, self.part)
                    self.tag.unlink(missing_ok=True)
                    if tag:
                        self.tag.write_text(tag, encoding="latin1")
                else:
                    self.fresh.unlink()

    def _copy(self, response: http.client.HTTPResponse, path: Path, start: int, total: int | None) -> int | None:
        """Write an answer to `path` from `start` on; return the full length, as far as it is known."""
        published, done = self.file.bytes, start
        with open(path, "ab" if start else "wb") as out:
            while block := response.read(BLOCK):
                done += len(block)
                if published is not None and done > published:
                    break
                out.write(block)
                if self.on_progress is not None:
                    self.on_progress(f"download {self.file.name}", done, total)
        if published is not None and done > published:  # a stream without a length could go on for ever
            os.truncate(path, start)
            if not start and path == self.part:
                self.forget()
            raise InputError(
                f"{self.url} sends more than the {published:,} bytes that the published file has: it is another file."
            )
        if total is None and response.status == 200 and response.chunked:
            return done  # the last chunk is marked: this was all, not a break
        return published if total is None else total


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
