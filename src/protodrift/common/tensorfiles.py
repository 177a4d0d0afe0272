"""A directory that always holds one whole version: immutable `versions/<n>/` and a `CURRENT` file replaced atomically.

    birds/
      CURRENT                   {"format": ..., "format_version": 2, "version": 2, "manifest_sha256": ...}
      versions/1/...            never changed once written
      versions/2/manifest.json  configuration, labels, the version it came from, sha256 and size of every other file
      versions/2/*.safetensors  tensors

A version is written beside its final name, every file and directory is synced, then it is renamed, then `CURRENT` is
replaced. A reader resolves `CURRENT` once. Whatever is interrupted wherever: `CURRENT` names a whole version.
Every byte is covered by a checksum, and nothing that is read is ever executed.

A version names the one it came from (its parent) and the sha256 of that one's manifest: `undo` goes back along that
chain. What is not on the chain is no part of the model any more, and the next writer removes it.
`docs/model_format.md` describes every field.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file as load_mapped

from ..errors import ModelFileError
from .files import file_sha256
from .labels import Label

FORMAT = "protodrift-model"
FORMAT_VERSION = 2
"""2: calibration, drift history, held-out accuracy, the parent version. `model_format.migrated` reads version 1."""

Tensors = dict[str, torch.Tensor]
Seen = TypeVar("Seen")


class UnreadableError(ModelFileError):
    """A file that the disk did not give, for a reason of its own: nothing is known against what is in it."""


@dataclass(frozen=True)
class Saved:
    """One whole version, read and verified.

    Attributes:
        version: its number.
        manifest: the JSON part.
        tensors: for each tensor file (its name without ending) the named tensors.
        format_version: in which it was written.
    """

    version: int
    manifest: dict[str, Any]
    tensors: dict[str, Tensors]
    format_version: int = FORMAT_VERSION


def write(
    path: str | Path,
    manifest: Mapping[str, Any],
    tensors: Mapping[str, Tensors],
    *,
    holding: bool = False,
    root: bool = False,
    keep: int | None = None,
) -> int:
    """Write a new version and make it the current one; return its number.

    Args:
        path: the model directory; made if it is missing, extended if it is a model.
        manifest: JSON-able; must not have a key "files" or "parent".
        tensors: for each file name (without ending) its named tensors.
        holding: the caller holds the directory's lock already (`locked`).
        root: the new version has no parent: it cannot be undone, and all others are removed.
        keep: keep so many versions, the newest of the chain; None: all of them.

    Raises:
        ModelFileError: if `path` is something else than a model, is locked by another writer, or cannot be written:
            what was there before is still there. With `root` also if the new version is there, and others could not
            be removed; the message says so.
    """
    path = Path(path)
    check_target(path)
    try:
        (path / "versions").mkdir(parents=True, exist_ok=True)
        with contextlib.nullcontext() if holding else locked(path):
            version = _write_version(path, manifest, tensors, root)
            if root:
                remove_others(path)
            elif keep is not None:
                # The new version is current: what cannot be removed now, the next writer removes.
                with contextlib.suppress(OSError, ModelFileError):
                    remove_unreachable(path, keep)
            return version
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> ModelFileError:
    """Return what to tell when the disk refuses."""
    return ModelFileError(
        f"cannot write the model to {path}: {error.strerror or error}. What was there before is unchanged. "
        "Check that the disk is writable and not full."
    )


def read(path: str | Path) -> Saved:
    """Read the current version and verify every byte of it.

    Raises:
        ModelFileError: if it is missing, damaged, or written by a newer version of protodrift.
    """
    path = Path(path)

    def whole(current: Current) -> Saved:
        manifest, tensors = read_folder(folder_of(path, current), current.manifest_sha256)
        return Saved(current.version, manifest, tensors, current.format_version)

    return steadily(path, whole)


def steadily(path: Path, look: Callable[[Current], Seen]) -> Seen:
    """Return what `look` sees, given the current version; it looks again if a writer came between.

    A version may be removed (undo, forget, a lesson that drops the oldest) while it is read: that is no damage.
    """
    for _ in range(5):
        current = read_current(path)
        try:
            return look(current)
        except (ModelFileError, FileNotFoundError):
            if read_current(path) == current:
                raise
    raise ModelFileError(f"{path} changes faster than it can be read. Try again when the other processes are done.")


def folder_of(path: Path, one: Current) -> Path:
    """Return where a version lies."""
    return path / "versions" / str(one.version)


@dataclass(frozen=True)
class Current:
    """What a `CURRENT` file says."""

    version: int
    manifest_sha256: str
    format_version: int = FORMAT_VERSION

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        fields = {
            "format": FORMAT,
            "format_version": self.format_version,
            "version": self.version,
            "manifest_sha256": self.manifest_sha256,
        }
        return (json.dumps(fields) + "\n").encode()


def read_current(path: Path) -> Current:
    """Read which version is the current one."""
    if not path.exists():
        raise ModelFileError(f"there is no model at {path}.")
    if not (path / "CURRENT").is_file():
        raise ModelFileError(f"{path} is not a protodrift model: it has no CURRENT file.")
    current = _json(path / "CURRENT", _bytes(path / "CURRENT"))
    _check_format(path, current)
    version, digest = current.get("version"), current.get("manifest_sha256")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path}/CURRENT is damaged: version {version!r}.")
    # A missing digest must not pass for "do not check".
    return Current(version, str(digest), int(current["format_version"]))


def chain(path: Path, most: int | None = None) -> list[Current]:
    """Return the current version and those it came from, newest first, as far as they are kept; at most so many.

    Raises:
        ModelFileError: if the manifest of one of them is damaged: what it came from is not known then, and may be kept.
    """
    return steadily(path, lambda current: _chain_from(path, current, most))


def _chain_from(path: Path, current: Current, most: int | None) -> list[Current]:
    result = [current]
    while most is None or len(result) < most:
        try:
            parent = _parent(path, result[-1])
        except ModelFileError:
            if len(result) > 1 and not folder_of(path, result[-1]).is_dir():  # a writer removed it since we looked
                return result[:-1]
            raise
        if parent is None or not folder_of(path, parent).is_dir():
            return result
        result.append(parent)
    return result


def undo(path: str | Path) -> tuple[int, int]:
    """Make the version before the current one current again, and remove the current one; return both numbers.

    Raises:
        ModelFileError: if there is none, or it is damaged. Nothing has changed then.
    """
    path = Path(path)
    read_current(path)
    try:
        with locked(path):
            current = read_current(path)
            parent = _parent(path, current)
            if parent is None:
                raise ModelFileError(
                    f"nothing to undo: version {current.version} of {path} is the first one, or the first since a "
                    "class was forgotten."
                )
            folder = folder_of(path, parent)
            if not folder.is_dir():
                raise ModelFileError(f"nothing to undo: version {parent.version} of {path} was not kept.")
            read_folder(folder, parent.manifest_sha256)  # never go back to what is damaged
            _publish(path, None, parent.to_bytes())
            # It is undone: what cannot be removed now, the next writer removes.
            with contextlib.suppress(OSError, ModelFileError):
                _remove(folder_of(path, current))
                remove_unreachable(path)
            return current.version, parent.version
    except OSError as error:
        raise unwritable(path, error) from error


def unreachable(path: Path, keep: int | None = None) -> list[Path]:
    """Return what is below `versions` and is not on the chain, or not among its newest `keep`.

    That is what a writer that was killed has left, and what is too old.
    """
    if not (path / "versions").is_dir():
        return []
    kept = {str(one.version) for one in chain(path, keep)} if (path / "CURRENT").exists() else set()
    return sorted(p for p in (path / "versions").iterdir() if p.name not in kept and _is_ours(p))


def remove_unreachable(path: Path, keep: int | None = None) -> None:
    """Remove versions that are not on the chain, and those on it beyond the newest `keep`; the lock must be held."""
    for folder in unreachable(path, keep):
        _remove(folder)
    sync_directory(path / "versions")


def remove_others(path: Path) -> None:
    """Remove what is not on the chain, for somebody who relies on it being gone; the lock must be held.

    Raises:
        ModelFileError: if something could not be removed.
    """
    try:
        remove_unreachable(path)
    except OSError as error:
        left = ", ".join(f"versions/{folder.name}" for folder in unreachable(path))
        raise ModelFileError(
            f"{path} is version {read_current(path).version}, but older ones could not be removed: "
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}. Still there, with all that "
            f"is in them: {left}. Make them removable, and run the same command again: it removes them."
        ) from error


def _remove(folder: Path) -> None:
    if not folder.name.startswith("."):
        gone = folder.with_name(f".new-gone-{folder.name}")  # a half-removed version is never taken for a whole one
        os.rename(folder, gone)
        folder = gone
    shutil.rmtree(folder)


def listed_labels(folder: Path) -> list[Label]:
    """Return the classes that a version's manifest names, unverified; none if it cannot be read."""
    try:
        labels = _json(folder / "manifest.json", _bytes(folder / "manifest.json")).get("labels")
    except ModelFileError:
        return []
    return [label for label in labels if isinstance(label, str | int)] if isinstance(labels, list) else []


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and (path.name.isdigit() or path.name.startswith(".new-"))


def _parent(path: Path, one: Current) -> Current | None:
    folder = folder_of(path, one)
    data = _bytes(folder / "manifest.json")
    _check_digest(folder / "manifest.json", hashlib.sha256(data).hexdigest(), one.manifest_sha256)
    manifest = _json(folder / "manifest.json", data)
    if one.format_version == 1:  # it did not name its parent: that was always the newest one before it
        numbers = [int(p.name) for p in (path / "versions").iterdir() if p.name.isdigit() and int(p.name) < one.version]
        if not numbers:
            return None
        manifest_1 = path / "versions" / str(max(numbers)) / "manifest.json"
        return Current(max(numbers), hashlib.sha256(_bytes(manifest_1)).hexdigest(), 1)
    parent = manifest.get("parent")
    if parent is None:
        return None
    version = parent.get("version") if isinstance(parent, dict) else None
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < one.version:
        raise ModelFileError(f"{folder}/manifest.json is damaged: it names the parent {parent!r}.")
    known = parent.get("format_version")
    return Current(version, str(parent.get("manifest_sha256")), known if known in (1, 2) else FORMAT_VERSION)


MAPPED = 2**26
"""Bytes from which on a file of a run's tensors is memory-mapped instead of read."""


def read_folder(
    folder: Path, digest: str | None, *, mapped: bool = False, strict: bool = True
) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Read a folder that `write_folder` wrote, and verify every byte of it.

    Args:
        folder: the folder.
        digest: the sha256 of its manifest; None if the caller checks the manifest in another way.
        mapped: memory-map files of `MAPPED` bytes or more. They are verified before, but lie where others may change
            them after: for files of a run, which holds its lock, and not for models.
        strict: refuse files that the manifest does not list, instead of passing over them.

    Raises:
        UnreadableError: if the disk does not give a file.
        ModelFileError: if a file is missing or wrong.
    """
    data = _bytes(folder / "manifest.json")
    if digest is not None:
        _check_digest(folder / "manifest.json", hashlib.sha256(data).hexdigest(), digest)
    manifest = _json(folder / "manifest.json", data)
    files = manifest.pop("files", None)
    if not isinstance(files, dict):
        raise ModelFileError(f"{folder}/manifest.json is damaged: it does not list its files.")
    tensors = {}
    for name, facts in files.items():
        # A name from a file is never trusted as a path.
        if not name.endswith(".safetensors") or Path(name).name != name or not isinstance(facts, dict):
            raise ModelFileError(f"{folder}/manifest.json is damaged: it lists a file {name!r}.")
        try:
            tensors[name.removesuffix(".safetensors")] = _tensors(folder / name, facts.get("sha256"), mapped)
        except ModelFileError:
            raise
        except (SafetensorError, ValueError, KeyError) as error:
            raise ModelFileError(f"{folder / name} is not a safetensors file: {error}") from None
    with _reading(folder):
        extra = {p.name for p in folder.iterdir()} - set(files) - {"manifest.json"}
    if extra and strict:
        raise ModelFileError(f"{folder} holds files that its manifest does not list: {sorted(extra)[:5]}. Remove them.")
    return manifest, tensors


def _tensors(path: Path, digest: Any, mapped: bool) -> Tensors:
    with _reading(path):
        large = mapped and path.stat().st_size >= MAPPED
    if not large:
        content = _bytes(path)
        _check_digest(path, hashlib.sha256(content).hexdigest(), digest)
        return load_tensors(content)
    with _reading(path):
        found = file_sha256(path)
    _check_digest(path, found, digest)
    with _reading(path):
        return load_mapped(path)


def packed_parts(named: Tensors) -> Iterator[bytes]:
    """Yield the bytes of a safetensors file part by part; the same tensors always give the same bytes.

    They are the bytes that `safetensors.torch.save` gives, which would hold all of them at once; and it refuses tensors
    that share memory, such as tied weights or prototypes that did not move. Layout is plain; whoever loads copies into
    the layout of the network.
    """
    order = sorted(named, key=lambda name: (-_KINDS.index(named[name].dtype), name))
    header, end = {}, 0
    for name in order:
        value = named[name]
        start, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    held = bytearray(len(text).to_bytes(8, "little") + text)
    for name in order:
        value = named[name].detach()
        rows = value.reshape(1) if value.ndim == 0 else value
        size = max(1, rows[:1].numel() * rows.element_size())
        for part in rows.split(max(1, _PART // size)):
            held += part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            if len(held) >= _PART:
                yield bytes(held)
                held.clear()
    yield bytes(held)


_PART = 2**22  # bytes of a tensor that are held beside it

_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
_KINDS = list(_NAMES)  # safetensors puts the widest first


def packed(named: Tensors) -> bytes:
    """Return named tensors as the bytes of a safetensors file."""
    return b"".join(packed_parts(named))


def packed_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as the bytes of its file."""
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def write_folder(folder: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> str:
    """Write a folder of tensor files and a manifest with their checksums, all or nothing; return the manifest's sha256.

    It is written beside its final name, synced, and renamed; the caller syncs the folder that holds it.
    """
    draft = folder.with_name(f".new-{folder.name}")
    try:
        draft.mkdir()
        files = {}
        for name, named in sorted(tensors.items()):
            digest, size = _write_synced(draft / f"{name}.safetensors", packed_parts(named))
            files[f"{name}.safetensors"] = {"sha256": digest, "bytes": size}
        data = packed_manifest({**manifest, "files": files})
        _write_synced(draft / "manifest.json", [data])
        sync_directory(draft)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return hashlib.sha256(data).hexdigest()


def check_target(path: Path) -> None:
    """Refuse a path that a model cannot be written to because something else is there."""
    if path.exists() and not path.is_dir():
        raise ModelFileError(f"{path} exists and is a file, not a model directory. Choose another path.")
    if path.is_dir() and not (path / "CURRENT").exists():
        # An interrupted first save leaves only these; anything else is somebody's.
        others = sorted(p.name for p in path.iterdir() if p.name not in ("versions", ".lock", ".CURRENT.new"))
        if others:
            raise ModelFileError(
                f"{path} exists and is not a protodrift model (it holds {', '.join(others[:3])}). Choose another path."
            )
    elif path.is_dir():
        current = _json(path / "CURRENT", _bytes(path / "CURRENT"))
        _check_format(path, current)


def _write_version(path: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors], root: bool) -> int:
    versions = path / "versions"
    for stale in versions.glob(".new-*"):  # left by a writer that was killed; we hold the lock
        shutil.rmtree(stale)
    numbers = [int(p.name) for p in versions.iterdir() if p.name.isdigit()]
    version = max(numbers, default=0) + 1
    parent = None
    if not root and (path / "CURRENT").exists():
        before = read_current(path)
        parent = {
            "version": before.version,
            "manifest_sha256": before.manifest_sha256,
            "format_version": before.format_version,
        }
    digest = write_folder(versions / str(version), {**manifest, "parent": parent}, tensors)
    _publish(path, versions / str(version), Current(version, digest).to_bytes())
    return version


def _publish(path: Path, folder: Path | None, content: bytes) -> None:
    """Replace CURRENT, which names `folder` from now on; if that fails, the one before is current again.

    Args:
        folder: a new version, removed again if it could not be published; None for one that was there.
    """
    current = path / "CURRENT"
    before = current.read_bytes() if current.exists() else None
    try:
        sync_directory(path / "versions")
        replace_file(current, content)
    except BaseException:
        # The last sync can fail after CURRENT was replaced. An error must mean that nothing changed: put it back.
        with contextlib.suppress(OSError):
            now = current.read_bytes() if current.exists() else None
            if now == before:
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)  # no reader has ever seen it
            elif before is None:
                current.unlink()
            else:
                draft = current.with_name(".CURRENT.new")
                draft.write_bytes(before)  # not synced: it is syncing that fails
                os.replace(draft, current)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash it holds the old or the new content, whole."""
    draft = path.with_name(f".{path.name}.new")
    try:
        _write_synced(draft, [content])
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_directory(path.parent)


def _write_synced(path: Path, parts: Iterable[bytes]) -> tuple[str, int]:
    """Write a file part by part; return its sha256 and its size."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
            size += len(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


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
    """Hold a directory's lock, or say at once that another process does."""
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ModelFileError(f"another process is writing to {path}. Try again when it has finished.") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell a file that is missing, which is damage, from one that the disk does not give."""
    try:
        yield
    except FileNotFoundError:
        raise ModelFileError(f"the model is damaged: {path} is missing. Restore it from a backup.") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ModelFileError(f"the model is damaged: cannot read {path}: {error.strerror}.") from None
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror or error}.") from error


def _bytes(path: Path) -> bytes:
    with _reading(path):
        try:
            return path.read_bytes()
        except ValueError as error:  # a name with a zero byte
            raise ModelFileError(f"cannot read {path}: {error}.") from None


def _json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is damaged: not a JSON object.")
    return value


def _check_format(path: Path, current: dict[str, Any]) -> None:
    if current.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not a protodrift model: its CURRENT says format {current.get('format')!r}.")
    got = current.get("format_version")
    if isinstance(got, int) and got > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {got}, this protodrift reads up to {FORMAT_VERSION}. Upgrade protodrift."
        )
    if isinstance(got, bool) or got not in (1, FORMAT_VERSION):
        raise ModelFileError(f"{path}/CURRENT is damaged: format version {got!r}.")


def _check_digest(path: Path, found: str, expected: Any) -> None:
    if found != expected:
        raise ModelFileError(
            f"the model is damaged: {path} does not match its checksum (truncated or changed). Restore it from a "
            "backup."
        )
