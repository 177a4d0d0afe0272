"""A directory that always holds one whole version: immutable `versions/<n>/` and a `CURRENT` file replaced atomically.

    birds/
      CURRENT                   {"format": ..., "format_version": 1, "version": 2, "manifest_sha256": ...}
      versions/1/...            never changed once written
      versions/2/manifest.json  configuration, labels, and the sha256 and size of every other file
      versions/2/*.safetensors  tensors

A version is written beside its final name, every file and directory is synced, then it is renamed, then `CURRENT` is
replaced. A reader resolves `CURRENT` once. Whatever is interrupted wherever: `CURRENT` names a whole version.
Every byte is covered by a checksum, and nothing that is read is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from .errors import ModelFileError

FORMAT = "protodrift-model"
FORMAT_VERSION = 1

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Saved:
    """One whole version, read and verified.

    Attributes:
        version: its number.
        manifest: the JSON part.
        tensors: for each tensor file (its name without ending) the named tensors.
    """

    version: int
    manifest: dict[str, Any]
    tensors: dict[str, Tensors]


def write(path: str | Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> int:
    """Write a new version and make it the current one; return its number.

    Args:
        path: the model directory; made if it is missing, extended if it is a model.
        manifest: JSON-able; must not have a key "files".
        tensors: for each file name (without ending) its named tensors.

    Raises:
        ModelFileError: if `path` is something else than a model, is locked by another writer, or cannot be written.
            What was there before is still there.
    """
    path = Path(path)
    _check_target(path)
    try:
        (path / "versions").mkdir(parents=True, exist_ok=True)
        with locked(path):
            return _write_version(path, manifest, tensors)
    except OSError as error:
        raise ModelFileError(
            f"cannot write the model to {path}: {error.strerror or error}. What was there before is unchanged. "
            "Check that the disk is writable and not full."
        ) from error


def read(path: str | Path) -> Saved:
    """Read the current version and verify every byte of it.

    Raises:
        ModelFileError: if it is missing, damaged, or written by a newer version of protodrift.
    """
    path = Path(path)
    if not path.exists():
        raise ModelFileError(f"there is no model at {path}.")
    if not (path / "CURRENT").is_file():
        raise ModelFileError(f"{path} is not a protodrift model: it has no CURRENT file.")
    current = _json(path / "CURRENT", _bytes(path / "CURRENT"))
    _check_format(path, current)
    version, digest = current.get("version"), current.get("manifest_sha256")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path}/CURRENT is damaged: version {version!r}.")
    folder = path / "versions" / str(version)
    manifest, tensors = read_folder(folder, str(digest))  # a missing digest must not pass for "do not check"
    return Saved(version, manifest, tensors)


def read_folder(folder: Path, digest: str | None) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Read a folder that `write_folder` wrote, and verify every byte of it.

    Args:
        folder: the folder.
        digest: the sha256 of its manifest; None if the caller checks the manifest in another way.
    """
    data = _bytes(folder / "manifest.json")
    if digest is not None:
        _check_digest(folder / "manifest.json", data, digest)
    manifest = _json(folder / "manifest.json", data)
    files = manifest.pop("files", None)
    if not isinstance(files, dict):
        raise ModelFileError(f"{folder}/manifest.json is damaged: it does not list its files.")
    tensors = {}
    for name, facts in files.items():
        # A name from a file is never trusted as a path.
        if not name.endswith(".safetensors") or Path(name).name != name or not isinstance(facts, dict):
            raise ModelFileError(f"{folder}/manifest.json is damaged: it lists a file {name!r}.")
        content = _bytes(folder / name)
        _check_digest(folder / name, content, facts.get("sha256"))
        try:
            tensors[name.removesuffix(".safetensors")] = load_tensors(content)
        except (SafetensorError, ValueError, KeyError) as error:
            raise ModelFileError(f"{folder / name} is not a safetensors file: {error}") from None
    extra = {p.name for p in folder.iterdir()} - set(files) - {"manifest.json"}
    if extra:
        raise ModelFileError(f"{folder} holds files that its manifest does not list: {sorted(extra)[:5]}. Remove them.")
    return manifest, tensors


def write_folder(folder: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> str:
    """Write a folder of tensor files and a manifest with their checksums, all or nothing; return the manifest's sha256.

    It is written beside its final name, synced, and renamed; the caller syncs the folder that holds it.
    """
    draft = folder.with_name(f".new-{folder.name}")
    try:
        draft.mkdir()
        files = {}
        for name, named in sorted(tensors.items()):
            # safetensors wants plain layout; whoever loads copies into the layout of the network.
            # Cloned: it refuses tensors that share memory, such as tied weights or prototypes that did not move.
            plain = {key: value.detach().cpu().contiguous().clone() for key, value in named.items()}
            content = save_tensors(plain)
            _write_synced(draft / f"{name}.safetensors", content)
            files[f"{name}.safetensors"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        data = json.dumps({**manifest, "files": files}, indent=1, allow_nan=False).encode()
        _write_synced(draft / "manifest.json", data)
        sync_directory(draft)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return hashlib.sha256(data).hexdigest()


def _check_target(path: Path) -> None:
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


def _write_version(path: Path, manifest: Mapping[str, Any], tensors: Mapping[str, Tensors]) -> int:
    versions = path / "versions"
    for stale in versions.glob(".new-*"):  # left by a writer that was killed; we hold the lock
        shutil.rmtree(stale)
    numbers = [int(p.name) for p in versions.iterdir() if p.name.isdigit()]
    version = max(numbers, default=0) + 1
    digest = write_folder(versions / str(version), manifest, tensors)
    current = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": version,
        "manifest_sha256": digest,
    }
    _publish(path, versions / str(version), (json.dumps(current) + "\n").encode())
    return version


def _publish(path: Path, folder: Path, content: bytes) -> None:
    """Make `folder` the current version; if that fails, the one before is current again."""
    current = path / "CURRENT"
    before = current.read_bytes() if current.exists() else None
    try:
        sync_directory(folder.parent)
        replace_file(current, content)
    except BaseException:
        # The last sync can fail after CURRENT was replaced. An error must mean that nothing changed: put it back.
        with contextlib.suppress(OSError):
            now = current.read_bytes() if current.exists() else None
            if now == before:
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
        _write_synced(draft, content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_directory(path.parent)


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"the model is damaged: {path} is missing. Restore it from a backup.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise ModelFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None


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
    if got != FORMAT_VERSION:
        raise ModelFileError(f"{path}/CURRENT is damaged: format version {got!r}.")


def _check_digest(path: Path, data: bytes, expected: Any) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        raise ModelFileError(
            f"the model is damaged: {path} does not match its checksum (truncated or changed). Restore it from a "
            "backup."
        )
